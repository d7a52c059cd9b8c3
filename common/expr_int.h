/* SPDX-License-Identifier: Apache-2.0 */
/* The integer operations of expressions that C leaves undefined for some operands. */
#ifndef TSR_COMMON_EXPR_INT_H
#define TSR_COMMON_EXPR_INT_H

#include <stdint.h>

/* Modulo 2^64. */
static inline int64_t tsr__expr_int_neg(int64_t x) {
  return (int64_t)(0 - (uint64_t)x);
}

/* Rounds toward minus infinity; x / 0 = 0; the one quotient that does not fit wraps. */
static inline int64_t tsr__expr_int_div(int64_t x, int64_t y) {
  if (y == 0) {
    return 0;
  }
  if (y == -1) {
    return tsr__expr_int_neg(x);
  }
  return x / y - (x % y != 0 && (x < 0) != (y < 0));
}

/* The sign of y; x % 0 = 0. */
static inline int64_t tsr__expr_int_mod(int64_t x, int64_t y) {
  if (y == 0 || y == -1) {
    return 0;
  }
  const int64_t rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* Toward zero, saturating; NaN gives 0. */
static inline int64_t tsr__expr_int_from_f32(float x) {
  if (x >= 0x1p63f) {
    return INT64_MAX;
  }
  if (x >= -0x1p63f) {
    return (int64_t)x;
  }
  return x != x ? 0 : INT64_MIN;
}

#endif
