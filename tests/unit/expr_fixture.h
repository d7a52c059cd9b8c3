/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of expressions share: declarations, values, and parsing that must succeed. */
#ifndef TSR_TESTS_EXPR_FIXTURE_H
#define TSR_TESTS_EXPR_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "common/expr.h"

static const char *const names[] = {"keep", "_w2"};
static const tsr_expr_aux_type aux_types[] = {{TSR_F32, 1}, {TSR_I32, 2}, {TSR_F32, 4}};

static inline tsr_status parse(const tsr__alloc *alloc, const char *text, int32_t kind, tsr_expr **out,
                               tsr_error *err) {
  return tsr__expr_parse(alloc, text, kind, names, 2, aux_types, 3, "mask_expr", out, err);
}

static inline tsr_expr *parsed(const char *text, int32_t kind) {
  tsr_expr *expr;
  tsr_error err;
  if (parse(NULL, text, kind, &expr, &err) != TSR_OK) {
    fail_msg("'%s': %s", text, err.text);
  }
  assert_int_equal(err.status, TSR_OK);
  return expr;
}

static const float aux0[3] = {1.5f, -2.0f, 4.0f};
static const int32_t aux1[6] = {10, 11, 12, 20, 21, INT32_MIN};
static const float aux2[1] = {7.0f};

static inline tsr_expr_env environment(void) {
  const tsr_expr_env env = {
      .scalar = {2.5f, -1.0f},
      .aux = {{aux0, TSR_F32, 1, {3}, {1}},
              {aux1, TSR_I32, 2, {2, 3}, {3, 1}},
              {aux2, TSR_F32, 4, {2, 1, 9, 1}, {0, 0, 0, 0}}},
  };
  return env;
}

/* b h hkv i j q_len kv_len off */
static const int64_t where[TSR_EXPR_VAR_COUNT] = {1, 7, 3, 5, 9, 12, 20, 8};

static inline float value_at(const char *text, float score) {
  const tsr_expr_env env = environment();
  tsr_expr_lanes lanes = {.score = &score};
  tsr_expr *expr = parsed(text, TSR_EXPR_KIND_SCORE);
  float out = -12345;
  memcpy(lanes.uniform, where, sizeof(where));
  tsr__expr_eval(expr, &env, &lanes, 1, &out);
  tsr__expr_destroy(NULL, expr);
  return out;
}

static inline int allowed(const char *text) {
  const tsr_expr_env env = environment();
  tsr_expr_lanes lanes = {.score = NULL};
  tsr_expr *expr = parsed(text, TSR_EXPR_KIND_MASK);
  uint8_t allow = 77;
  memcpy(lanes.uniform, where, sizeof(where));
  tsr__expr_eval_mask(expr, &env, &lanes, 1, &allow);
  tsr__expr_destroy(NULL, expr);
  return allow;
}

/* `repeat` times `unit`, then `end`. */
static inline char *repeated(const char *unit, int repeat, const char *end) {
  static char text[8192];
  size_t at = 0;
  for (int k = 0; k < repeat; ++k) {
    at += (size_t)snprintf(text + at, sizeof(text) - at, "%s", unit);
  }
  snprintf(text + at, sizeof(text) - at, "%s", end);
  return text;
}

#endif
