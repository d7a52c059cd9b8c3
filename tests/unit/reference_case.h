/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the oracle's tests: a small dense f32 problem to vary. */
#ifndef TSR_TESTS_REFERENCE_CASE_H
#define TSR_TESTS_REFERENCE_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/reference.h"
#include "random.h"

enum { CASE_MAX = 8192 };

/* q, k, v of one dtype f32; results of the last run. Results are poisoned before each run. */
typedef struct attention_case {
  tsr_attention_desc desc;
  tsr_run_args args;
  tsr_reference_out out;
  float q[CASE_MAX], k[CASE_MAX], v[CASE_MAX];
  double o[CASE_MAX], lse[CASE_MAX], max_s[64];
  int64_t num_o, num_lse;
} attention_case;

/* Gives a tensor its layout and memory. */
#define CASE_GIVE(c, name, layout, memory)  \
  do {                                      \
    (c)->desc.name = layout;                \
    (c)->args.name = tsr_buffer_in(memory); \
  } while (0)

static inline void case_init(attention_case *c, int64_t b, int64_t sq, int64_t sk, int64_t hq, int64_t hkv, int64_t d,
                             int64_t dv) {
  memset(c, 0, sizeof(*c));
  c->desc = tsr_attention_desc_init();
  c->args = tsr_run_args_init();
  c->out = tsr_reference_out_init();
  random_fill(c->q, CASE_MAX);
  random_fill(c->k, CASE_MAX);
  random_fill(c->v, CASE_MAX);
  CASE_GIVE(c, q, tsr_layout_dense(TSR_F32, b, sq, hq, d), c->q);
  CASE_GIVE(c, k, tsr_layout_dense(TSR_F32, b, sk, hkv, d), c->k);
  CASE_GIVE(c, v, tsr_layout_dense(TSR_F32, b, sk, hkv, dv), c->v);
  CASE_GIVE(c, o, tsr_layout_dense(TSR_F32, b, sq, hq, dv), NULL);
  c->num_o = b * sq * hq * dv;
  c->num_lse = b * sq * hq;
  c->out.o = c->o;
  c->out.lse = c->lse;
  c->out.max_s = c->max_s;
}

static const double case_poison = -777.25; /* what is never written keeps this */

static inline void case_run(attention_case *c) {
  tsr_error err;
  for (int64_t n = 0; n < CASE_MAX; n++) {
    c->o[n] = c->lse[n] = case_poison;
  }
  c->desc.op = TSR_FORWARD;
  if (tsr__reference_attention(NULL, NULL, NULL, &c->desc, &c->args, &c->out, &err) != TSR_OK) {
    fail_msg("%s: %s", err.field, err.text);
  }
}

static inline void case_near(double got, double want, double tolerance) {
  if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want))) && got != want) {
    fail_msg("%.17g, expected %.17g", got, want);
  }
}

/* All results of a and b agree. */
static inline void case_same(const attention_case *a, const attention_case *b, double tolerance) {
  assert_int_equal(a->num_o, b->num_o);
  for (int64_t n = 0; n < a->num_o; n++) {
    case_near(a->o[n], b->o[n], tolerance);
  }
  for (int64_t n = 0; n < a->num_lse; n++) {
    case_near(a->lse[n], b->lse[n], tolerance);
  }
}

#endif
