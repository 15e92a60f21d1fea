// exp in fp64, for results that are correctly rounded to fp32 in all but one of millions of cases.
#pragma once

#include "deep_gemm_rocm/hardware/hip_declarations.h"

namespace deep_gemm_rocm {

// e^value up to an error of about 2^-46 of it; the limits for infinities, and a NaN for a NaN.
DG_DEVICE double exponential(double value) {
  constexpr double kLog2OfE = 1.4426950408889634;
  // ln(2)^k / k!, for 2^x with |x| <= 1/2.
  constexpr double kCoefficients[] = {1.0,
                                      0.6931471805599453,
                                      0.24022650695910072,
                                      0.05550410866482158,
                                      0.009618129107628477,
                                      0.0013333558146428443,
                                      0.0001540353039338161,
                                      1.5252733804059841e-05,
                                      1.3215486790144307e-06,
                                      1.0178086009239699e-07,
                                      7.054911620801123e-09,
                                      4.44553827187081e-10};
  constexpr int kTerms = sizeof(kCoefficients) / sizeof(double);
  constexpr double kMost = 1024;  // beyond that, the result is 0 or infinity, whatever the fraction is
  const double whole = __builtin_rint(value * kLog2OfE);
  const double fraction = __builtin_fabs(value) > kMost ? 0 : __builtin_fma(value, kLog2OfE, -whole);
  double result = kCoefficients[kTerms - 1];
#pragma unroll
  for (int i = kTerms - 2; i >= 0; --i) result = __builtin_fma(result, fraction, kCoefficients[i]);
  // v_cvt_i32_f64 saturates, and takes a NaN to 0.
  int exponent;
  asm("v_cvt_i32_f64 %0, %1" : "=v"(exponent) : "v"(whole));
  return __builtin_amdgcn_ldexp(result, exponent);
}

}  // namespace deep_gemm_rocm
