/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"
#include "tests/conformance/engine/rng.h"

uint64_t random_next(uint64_t *state) {
  conf_rng rng = {*state};
  const uint64_t bits = conf_next(&rng);
  *state = rng.state;
  return bits;
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
