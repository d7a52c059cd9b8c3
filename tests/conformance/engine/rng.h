/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the cases: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). A stream for each tensor, from the
 * case's seed and the tensor's name, so that taking a feature out of a case leaves the other tensors as they were. */
#ifndef TSR_TESTS_CONFORMANCE_RNG_H
#define TSR_TESTS_CONFORMANCE_RNG_H

#include <math.h>
#include <stdint.h>

typedef struct conf_rng {
  uint64_t state;
} conf_rng;

static inline uint64_t conf_next(conf_rng *r) {
  uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));
  z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
  return z ^ z >> 31;
}

static inline conf_rng conf_rng_for(uint64_t seed, const char *what) {
  conf_rng r = {seed};
  for (; *what != '\0'; what++) {
    r.state = (conf_next(&r) ^ (unsigned char)*what) * UINT64_C(0x100000001b3);
  }
  return r;
}

/* [0, 1) */
static inline double conf_unit(conf_rng *r) {
  return (double)(conf_next(r) >> 11) * 0x1p-53;
}
static inline double conf_uniform(conf_rng *r, double lo, double hi) {
  return lo + (hi - lo) * conf_unit(r);
}
/* Both ends included. */
static inline int64_t conf_range(conf_rng *r, int64_t lo, int64_t hi) {
  return hi <= lo ? lo : lo + (int64_t)(conf_next(r) % (uint64_t)(hi - lo + 1));
}
static inline int conf_chance(conf_rng *r, double p) {
  return conf_unit(r) < p;
}
/* Nearly N(0, 1): the sum of twelve uniforms, less 6. */
static inline double conf_normal(conf_rng *r) {
  uint64_t sum = 0;
  for (int n = 0; n < 3; n++) {
    const uint64_t x = conf_next(r);
    sum += (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
  }
  return ((double)sum + 6.0) * 0x1p-16 - 6.0;
}

#endif
