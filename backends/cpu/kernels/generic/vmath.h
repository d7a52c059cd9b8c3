/* SPDX-License-Identifier: Apache-2.0 */
/* Elementary functions on vectors of f32: no table, no branch, no denormal trap. */
#ifndef TSR_CPU_VMATH_H
#define TSR_CPU_VMATH_H

#include "backends/cpu/kernels/generic/vec.h"

#define TSR_LOG2E 1.44269504088896340736f
#define TSR_LN2 0.69314718055994530942f

/* 2^(x c) for x c <= 0.5, c > 0 given with floor = -127 / c: 1 at x = 0, exactly 0 where x c < -126.5 and at x = -inf,
 * NaN for NaN; else within 1 ulp or so (degree 6, relative error 2e-9 before rounding). With FMA the product x c is not
 * rounded before its integer part is taken off; without, its rounding adds up to 0.7 ulp for each unit of |x c|, which
 * only small probabilities feel. */
static inline vf vf_exp2_scaled(vf x, vf c, vf floor) {
  /* 1.5 2^23 makes the unit of the sum 1; + 127 leaves the biased exponent in its low bits. */
  const vf magic = vf_all(12582912.0f + 127.0f);
  const vf y = vf_max(floor, x);
  const vf z = vf_fma(y, c, magic);
  const vf f = vf_fma(y, c, magic - z);
  vf p = vf_all(1.5353361928681613e-4f);
  p = p * f + vf_all(1.339887440754687e-3f);
  p = p * f + vf_all(9.618437357537637e-3f);
  p = p * f + vf_all(5.5503324711464935e-2f);
  p = p * f + vf_all(2.4022647913630865e-1f);
  p = p * f + vf_all(6.931472028550523e-1f);
  p = p * f + vf_all(1.0f);
  return p * (vf)((vu)z << 23);
}

/* tanh within 2 ulp or so, odd exactly; +-1 at infinities, NaN for NaN. */
static inline vf vf_tanh(vf x) {
  const vf a = vf_abs(x), y = x * x;
  const vf e = vf_exp2_scaled(a * -2.0f, vf_all(TSR_LOG2E), vf_all(-127.0f / TSR_LOG2E));
  const vf large = (1.0f - e) / (1.0f + e); /* from 0.625 on: e <= 0.29 hurts little */
  vf p = vf_all(2.092839583381576e-3f);
  p = p * y + vf_all(-8.123097931149117e-3f);
  p = p * y + vf_all(2.1678986784941057e-2f);
  p = p * y + vf_all(-5.394285704120231e-2f);
  p = p * y + vf_all(1.3333175696943966e-1f);
  p = p * y + vf_all(-3.3333330049808096e-1f);
  p = a + a * (y * p);
  p = vf_select(a < 0.625f, p, large);
  return (vf)((vi)p | ((vi)x & (int32_t)0x80000000));
}

#endif
