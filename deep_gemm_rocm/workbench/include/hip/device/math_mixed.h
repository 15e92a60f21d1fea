// Arguments that are integers, or of two types: C++ computes in double then. Those of float with an integer have the
// overload for float, which ROCm's pow has, too.
#pragma once

#include "math_parts.h"

#define __HIP_M __HIP_INLINE_DEVICE__

namespace __hip_math {
template <bool condition, class T>
struct If {};
template <class T>
struct If<true, T> {
  typedef T type;
};
template <class T, class U>
constexpr bool are_integers = __is_integral(T) && __is_integral(U);
template <class T, class U>
constexpr bool are_other_integers = are_integers<T, U> && !__is_same(T, U);
template <class T, class U>
constexpr bool are_floats =
    (__is_same(T, float) && __is_same(U, double)) || (__is_same(T, double) && __is_same(U, float));
}  // namespace __hip_math

#define __HIP_OF_INTEGER(result, name)                                        \
  template <class T>                                                          \
  __HIP_M typename __hip_math::If<__is_integral(T), result>::type name(T x) { \
    return name(double(x));                                                   \
  }
#define __HIP_DOUBLE_OF_INTEGER(name) __HIP_OF_INTEGER(double, name)
__HIP_DOUBLE_OF_INTEGER(acos)
__HIP_DOUBLE_OF_INTEGER(acosh)
__HIP_DOUBLE_OF_INTEGER(asin)
__HIP_DOUBLE_OF_INTEGER(asinh)
__HIP_DOUBLE_OF_INTEGER(atan)
__HIP_DOUBLE_OF_INTEGER(atanh)
__HIP_DOUBLE_OF_INTEGER(cbrt)
__HIP_DOUBLE_OF_INTEGER(ceil)
__HIP_DOUBLE_OF_INTEGER(cos)
__HIP_DOUBLE_OF_INTEGER(cosh)
__HIP_DOUBLE_OF_INTEGER(erf)
__HIP_DOUBLE_OF_INTEGER(erfc)
__HIP_DOUBLE_OF_INTEGER(exp)
__HIP_DOUBLE_OF_INTEGER(exp10)
__HIP_DOUBLE_OF_INTEGER(exp2)
__HIP_DOUBLE_OF_INTEGER(expm1)
__HIP_DOUBLE_OF_INTEGER(fabs)
__HIP_DOUBLE_OF_INTEGER(floor)
__HIP_DOUBLE_OF_INTEGER(log)
__HIP_DOUBLE_OF_INTEGER(log10)
__HIP_DOUBLE_OF_INTEGER(log1p)
__HIP_DOUBLE_OF_INTEGER(log2)
__HIP_DOUBLE_OF_INTEGER(logb)
__HIP_DOUBLE_OF_INTEGER(nearbyint)
__HIP_DOUBLE_OF_INTEGER(rint)
__HIP_DOUBLE_OF_INTEGER(round)
__HIP_DOUBLE_OF_INTEGER(rsqrt)
__HIP_DOUBLE_OF_INTEGER(sin)
__HIP_DOUBLE_OF_INTEGER(sinh)
__HIP_DOUBLE_OF_INTEGER(sqrt)
__HIP_DOUBLE_OF_INTEGER(tan)
__HIP_DOUBLE_OF_INTEGER(tanh)
__HIP_DOUBLE_OF_INTEGER(trunc)
__HIP_OF_INTEGER(bool, isfinite)
__HIP_OF_INTEGER(bool, isinf)
__HIP_OF_INTEGER(bool, isnan)
__HIP_OF_INTEGER(bool, signbit)
#undef __HIP_DOUBLE_OF_INTEGER
#undef __HIP_OF_INTEGER

#define __HIP_MIXED(name)                                                                                       \
  template <class T, class U>                                                                                   \
  __HIP_M typename __hip_math::If<__hip_math::are_integers<T, U> || __hip_math::are_floats<T, U>, double>::type \
  name(T x, U y) {                                                                                              \
    return name(double(x), double(y));                                                                          \
  }
__HIP_MIXED(atan2)
__HIP_MIXED(copysign)
__HIP_MIXED(fdim)
__HIP_MIXED(fmax)
__HIP_MIXED(fmin)
__HIP_MIXED(fmod)
__HIP_MIXED(hypot)
__HIP_MIXED(nextafter)
__HIP_MIXED(pow)
__HIP_MIXED(remainder)
#undef __HIP_MIXED

#define __HIP_MIXED(name)                                                                               \
  template <class T, class U>                                                                           \
  __HIP_M typename __hip_math::If<__hip_math::are_other_integers<T, U> || __hip_math::are_floats<T, U>, \
                                  decltype(T() + U())>::type                                            \
  name(T x, U y) {                                                                                      \
    typedef decltype(T() + U()) Common;                                                                 \
    return name(Common(x), Common(y));                                                                  \
  }
__HIP_MIXED(max)
__HIP_MIXED(min)
#undef __HIP_MIXED

template <class T>
__HIP_M typename __hip_math::If<__is_integral(T), double>::type ldexp(T x, int power) {
  return ldexp(double(x), power);
}

#undef __HIP_M
