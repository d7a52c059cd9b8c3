/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

/* SplitMix64 (Steele, Lea and Flood 2014): one addition and a mix a number, any seed will do. */
uint64_t random_next(uint64_t *state) {
  uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

/* The sum of four 16-bit uniforms, centred and scaled to variance 1: bell-shaped, within 3.47. */
static double bell(uint64_t bits) {
  const double sum =
      (double)(bits & 0xFFFF) + (double)(bits >> 16 & 0xFFFF) + (double)(bits >> 32 & 0xFFFF) + (double)(bits >> 48);
  return (sum - 131070.0) / 37837.2; /* sqrt(4 * 65536^2 / 12) */
}

void random_fill(tool_tensor *tensor, double factor, uint64_t seed) {
  const double centre = tensor->dtype == TSR_U4 ? 8 : 0;
  float *f32 = tensor->dtype == TSR_F32 ? tensor->data : NULL;
  for (int64_t i = 0; i < tensor->count; i++) {
    double value = factor * bell(random_next(&seed)) + centre;
    if (f32) {
      f32[i] = (float)value;
      continue;
    }
    if (tensor->dtype == TSR_U4)
      value = value < 0 ? 0 : value > 15 ? 15 : value;
    tsr_encode(tensor->dtype, tensor->data, i, value);
  }
}
