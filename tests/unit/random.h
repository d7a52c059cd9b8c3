/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the unit tests: the conformance suite's generator, from a seed that is printed; TESSERA_TEST_SEED
 * repeats a run. */
#ifndef TSR_TEST_RANDOM_H
#define TSR_TEST_RANDOM_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/conformance/engine/rng.h"

static conf_rng test_rng;

/* Seeds the generator; returns the seed, for tests with a generator of their own. Call it in main. */
static inline uint64_t random_seed(void) {
  const char *text = getenv("TESSERA_TEST_SEED");
  test_rng.state = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
  printf("seed %llu (TESSERA_TEST_SEED)\n", (unsigned long long)test_rng.state);
  return test_rng.state;
}

static inline uint64_t random_bits(void) {
  return conf_next(&test_rng);
}

/* lo..hi, both included. */
static inline int64_t random_int(int64_t lo, int64_t hi) {
  return conf_range(&test_rng, lo, hi);
}

/* 0..n-1 */
static inline int random_below(size_t n) {
  return (int)random_int(0, (int64_t)n - 1);
}

/* (-2, 2), multiples of 2^-12. */
static inline float random_value(void) {
  return (float)random_int(-8191, 8191) / 4096.0f;
}

static inline void random_fill(float *x, int64_t n) {
  for (int64_t c = 0; c < n; c++) {
    x[c] = random_value();
  }
}

#endif
