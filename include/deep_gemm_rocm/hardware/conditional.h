// One of two types.
#pragma once

namespace deep_gemm_rocm {

template <bool kCondition, class True, class False>
struct ConditionalType {
  using Type = True;
};

template <class True, class False>
struct ConditionalType<false, True, False> {
  using Type = False;
};

template <bool kCondition, class True, class False>
using Conditional = typename ConditionalType<kCondition, True, False>::Type;

template <class T, class U>
constexpr bool kIsSame = false;
template <class T>
constexpr bool kIsSame<T, T> = true;

}  // namespace deep_gemm_rocm
