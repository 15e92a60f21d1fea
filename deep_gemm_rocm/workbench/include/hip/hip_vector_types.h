// Vectors of one to four numbers: HIP_vector_type<float, 4> is float4.
#pragma once

#include "hip_runtime_api.h"

template <class T, unsigned count>
struct __hip_vector_storage;
template <class T>
struct __hip_vector_storage<T, 1> {
  union {
    T x;
    T data;
  };
  constexpr __HIP_BOTH__ __hip_vector_storage(T x) : x(x) {}
  __hip_vector_storage() = default;
};
template <class T>
struct __hip_vector_storage<T, 2> {
  typedef T Native __attribute__((ext_vector_type(2)));
  union {
    struct {
      T x, y;
    };
    Native data;
  };
  constexpr __HIP_BOTH__ __hip_vector_storage(T x, T y) : x(x), y(y) {}
  constexpr __HIP_BOTH__ explicit __hip_vector_storage(T all) : x(all), y(all) {}
  __hip_vector_storage() = default;
};
template <class T>
struct __hip_vector_storage<T, 3> {
  T x, y, z;
  constexpr __HIP_BOTH__ __hip_vector_storage(T x, T y, T z) : x(x), y(y), z(z) {}
  constexpr __HIP_BOTH__ explicit __hip_vector_storage(T all) : x(all), y(all), z(all) {}
  __hip_vector_storage() = default;
};
template <class T>
struct __hip_vector_storage<T, 4> {
  typedef T Native __attribute__((ext_vector_type(4)));
  union {
    struct {
      T x, y, z, w;
    };
    Native data;
  };
  constexpr __HIP_BOTH__ __hip_vector_storage(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {}
  constexpr __HIP_BOTH__ explicit __hip_vector_storage(T all) : x(all), y(all), z(all), w(all) {}
  __hip_vector_storage() = default;
};

template <class T, unsigned count>
struct HIP_vector_type : __hip_vector_storage<T, count> {
  using value_type = T;

  HIP_vector_type() = default;
  constexpr __HIP_BOTH__ HIP_vector_type(T all) : __hip_vector_storage<T, count>(all) {}
  template <class... Others>
  constexpr __HIP_BOTH__ HIP_vector_type(T first, T second, Others... others)
      : __hip_vector_storage<T, count>(first, second, static_cast<T>(others)...) {}

  __HIP_BOTH__ T& operator[](unsigned i) { return reinterpret_cast<T*>(this)[i]; }
  __HIP_BOTH__ const T& operator[](unsigned i) const { return reinterpret_cast<const T*>(this)[i]; }

#define __HIP_OPERATOR(op)                                                                        \
  __HIP_BOTH__ HIP_vector_type& operator op##=(const HIP_vector_type & other) {                   \
    _Pragma("unroll") for (unsigned i = 0; i < count; ++i)(*this)[i] = T((*this)[i] op other[i]); \
    return *this;                                                                                 \
  }                                                                                               \
  friend __HIP_BOTH__ HIP_vector_type operator op(HIP_vector_type a, const HIP_vector_type& b) {  \
    return a op##= b;                                                                             \
  }
  __HIP_OPERATOR(+)
  __HIP_OPERATOR(-)
  __HIP_OPERATOR(*)
  __HIP_OPERATOR(/)
  __HIP_OPERATOR(%)
  __HIP_OPERATOR(&)
  __HIP_OPERATOR(|)
  __HIP_OPERATOR(^)
  __HIP_OPERATOR(<<)
  __HIP_OPERATOR(>>)
#undef __HIP_OPERATOR

  __HIP_BOTH__ HIP_vector_type operator-() const {
    HIP_vector_type result;
    for (unsigned i = 0; i < count; ++i) result[i] = -(*this)[i];
    return result;
  }
  friend __HIP_BOTH__ bool operator==(const HIP_vector_type& a, const HIP_vector_type& b) {
    bool same = true;
    for (unsigned i = 0; i < count; ++i) same &= a[i] == b[i];
    return same;
  }
  friend __HIP_BOTH__ bool operator!=(const HIP_vector_type& a, const HIP_vector_type& b) { return !(a == b); }
};

#define __HIP_VECTORS(T, name)                                                                     \
  typedef HIP_vector_type<T, 1> name##1;                                                           \
  typedef HIP_vector_type<T, 2> name##2;                                                           \
  typedef HIP_vector_type<T, 3> name##3;                                                           \
  typedef HIP_vector_type<T, 4> name##4;                                                           \
  __HIP_INLINE_BOTH__ constexpr name##1 make_##name##1(T x) { return name##1(x); }                 \
  __HIP_INLINE_BOTH__ constexpr name##2 make_##name##2(T x, T y) { return name##2(x, y); }         \
  __HIP_INLINE_BOTH__ constexpr name##3 make_##name##3(T x, T y, T z) { return name##3(x, y, z); } \
  __HIP_INLINE_BOTH__ constexpr name##4 make_##name##4(T x, T y, T z, T w) { return name##4(x, y, z, w); }
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
__HIP_VECTORS(signed char, char)
__HIP_VECTORS(unsigned char, uchar)
__HIP_VECTORS(short, short)
__HIP_VECTORS(unsigned short, ushort)
__HIP_VECTORS(int, int)
__HIP_VECTORS(unsigned int, uint)
__HIP_VECTORS(long, long)
__HIP_VECTORS(unsigned long, ulong)
__HIP_VECTORS(long long, longlong)
__HIP_VECTORS(unsigned long long, ulonglong)
__HIP_VECTORS(float, float)
__HIP_VECTORS(double, double)
#undef __HIP_VECTORS
