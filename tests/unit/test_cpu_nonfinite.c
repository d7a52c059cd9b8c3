/* SPDX-License-Identifier: Apache-2.0 */
/* Scores that are not finite, on the CPU back end at every level of this machine: what max_s says of them, and rows
 * whose scores are all -inf. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cpu_case.h"
#include "tessera/cpu.h"

enum { HQ = 4, HKV = 2, D = 8, MOST = 300 };

/* ---- Levels ---------------------------------------------------------------------------------- */

/* The level at *at, which is moved behind it; 0: no more. */
static int next_level(const char **at, char level[16]) {
  const char *end = strchr(*at, ' ');
  const size_t n = end != NULL ? (size_t)(end - *at) : strlen(*at);
  memset(level, 0, 16);
  assert_true(n < 16);
  memcpy(level, *at, n);
  *at += n + (end != NULL);
  return n > 0;
}

static tsr_context_params params(const char *level) {
  tsr_context_params p = tsr_context_params_init();
  p.num_threads = 1;
  p.cpu_isa = level;
  return p;
}

/* ---- max_s ----------------------------------------------------------------------------------- */

static const float specials[] = {INFINITY, NAN, -INFINITY, -3e38f, 0.0f};

/* Where special values enter: the bias, or channel 0 of rows of q (times 1 in k) or of k (times 1 in q). */
typedef enum entry { IN_BIAS, IN_Q, IN_K } entry;

static void put_specials(cpu_case *c, float *bias, entry where) {
  const int count = (int)random_int(0, 4);
  for (int64_t n = 0; n < c->seqlen_k * HKV; n++) {
    c->k[n * D] = 1.0f;
  }
  for (int64_t n = 0; n < c->seqlen_q * HQ; n++) {
    c->q[n * D] = 1.0f;
  }
  memset(bias, 0, (size_t)(c->seqlen_q * c->seqlen_k) * sizeof(float));
  for (int n = 0; n < count; n++) {
    const float x = specials[random_below(sizeof(specials) / sizeof(specials[0]))];
    const int64_t i = random_int(0, c->seqlen_q - 1), j = random_int(0, c->seqlen_k - 1);
    if (where == IN_BIAS) {
      bias[i * c->seqlen_k + j] = x;
    } else if (where == IN_K) {
      c->k[(j * HKV + random_below(HKV)) * D] = x;
    } else {
      c->q[(i * HQ + random_below(HQ)) * D] = x;
    }
  }
}

static int class_of(double x) {
  return isnan(x) ? 2 : isinf(x) ? (x > 0 ? 1 : -1) : 0;
}

static void max_s_is_nan_once_a_score_is(void **state) {
  static float bias[MOST * MOST], max_s[HQ];
  int seen[4] = {0, 0, 0, 0};
  (void)state;
  for (int round = 0; round < 600; round++) {
    const entry where = (entry)random_below(3);
    const char *levels = tsr_cpu_levels();
    char level[16];
    double want[HQ];
    tsr_reference_out out = tsr_reference_out_init();
    cpu_case c;
    cpu_case_init(&c, HQ, HKV, random_int(1, 60), random_int(1, MOST - 1), D);
    c.desc.max_s = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
    c.desc.bias = tsr_layout_dense(TSR_F32, 1, 1, c.seqlen_q, c.seqlen_k);
    c.desc.flags = random_below(2) ? TSR_CAUSAL : 0;
    c.desc.num_splits = random_below(4);
    c.args.bias = tsr_buffer_in(bias);
    c.args.max_s = tsr_buffer_out(max_s);
    put_specials(&c, bias, where);
    if (where != IN_BIAS && random_below(2)) { /* nothing between the product and the softmax: another path */
      c.desc.bias = (tsr_layout){0};
      c.args.bias = (tsr_buffer){0};
    }
    out.max_s = want;
    assert_int_equal(tsr_reference_attention(NULL, &c.desc, &c.args, &out, NULL), TSR_OK);
    while (next_level(&levels, level)) {
      const tsr_context_params p = params(level);
      memset(max_s, 0x11, sizeof(max_s));
      cpu_case_run_ok(&c, &p);
      for (int h = 0; h < HQ; h++) {
        seen[class_of(want[h]) + 1]++;
        if (class_of(max_s[h]) != class_of(want[h]) ||
            (class_of(want[h]) == 0 && fabs(max_s[h] - want[h]) > 1e-5 * (1 + fabs(want[h])))) {
          fail_msg("round %d, %s, head %d: %g, not %g", round, level, h, (double)max_s[h], want[h]);
        }
      }
    }
    cpu_case_free(&c);
  }
  print_message("-inf %d, finite %d, inf %d, NaN %d\n", seen[0], seen[1], seen[2], seen[3]);
  assert_true(seen[1] > 100 && seen[2] > 100 && seen[3] > 100);
}

/* The smallest case: every order of +inf, NaN and 0 among three keys of one row. */
static void order_does_not_matter(void **state) {
  static const float value[] = {INFINITY, NAN, 0.0f};
  (void)state;
  for (int order = 0; order < 27; order++) {
    const int pick[3] = {order % 3, order / 3 % 3, order / 9};
    const int any_nan = pick[0] == 1 || pick[1] == 1 || pick[2] == 1;
    const int any_inf = pick[0] == 0 || pick[1] == 0 || pick[2] == 0;
    float bias[3], max_s[HQ];
    cpu_case c;
    cpu_case_init(&c, HQ, HKV, 1, 3, D);
    for (int j = 0; j < 3; j++) {
      bias[j] = value[pick[j]];
    }
    memset(c.q, 0, sizeof(float) * HQ * D);
    c.desc.max_s = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
    c.desc.bias = tsr_layout_dense(TSR_F32, 1, 1, 1, 3);
    c.args.bias = tsr_buffer_in(bias);
    c.args.max_s = tsr_buffer_out(max_s);
    cpu_case_run_ok(&c, NULL);
    for (int h = 0; h < HQ; h++) {
      assert_int_equal(class_of(max_s[h]), any_nan ? 2 : any_inf ? 1 : 0);
    }
    cpu_case_free(&c);
  }
}

/* ---- Rows whose scores are all -inf ---------------------------------------------------------- */

/* Products of row 1 overflow f32 to -inf at every key; all of v is NaN where only that row sees it. Row 0 sees key 0
 * alone (causal, top left) and is as ever. */
static void overflow_case(cpu_case *c, tsr_attention_desc *desc) {
  for (int64_t n = 0; n < HQ * D; n++) {
    c->q[HQ * D + n] = -1e30f;
  }
  for (int64_t n = 0; n < c->seqlen_k * HKV * D; n++) {
    c->k[n] = 1e30f;
  }
  for (int64_t n = 0; n < HKV * D; n++) {
    c->k[n] = 1e20f; /* -8e50: still beyond f32 for row 1 */
  }
  memset(c->q, 0, sizeof(float) * HQ * D);
  for (int64_t n = HKV * D; n < c->seqlen_k * HKV * D; n++) {
    c->v[n] = NAN;
  }
  desc->flags |= TSR_CAUSAL | TSR_TOP_LEFT;
}

static void rows_of_minus_infinity_are_empty(void **state) {
  static const float sink[HQ] = {-1.5f, 0.0f, 700.0f, -INFINITY};
  (void)state;
  for (int splits = 0; splits < 3; splits++) {
    for (int with_sink = 0; with_sink < 2; with_sink++) {
      for (int with_bias = 0; with_bias < 2; with_bias++) { /* the scale is applied early or late */
        const char *levels = tsr_cpu_levels();
        char level[16];
        while (next_level(&levels, level)) {
          static const float zeros[2 * 2];
          const tsr_context_params p = params(level);
          float max_s[HQ];
          cpu_case c;
          cpu_case_init(&c, HQ, HKV, 2, 2, D);
          overflow_case(&c, &c.desc);
          c.desc.num_splits = splits;
          c.desc.max_s = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
          c.args.max_s = tsr_buffer_out(max_s);
          if (with_sink) {
            c.desc.sink = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
            c.args.sink = tsr_buffer_in(sink);
          }
          if (with_bias) {
            c.desc.bias = tsr_layout_dense(TSR_F32, 1, 1, 2, 2);
            c.args.bias = tsr_buffer_in(zeros);
          }
          cpu_case_run_ok(&c, &p);
          for (int h = 0; h < HQ; h++) {
            for (int ch = 0; ch < D; ch++) {
              assert_true(c.o[(HQ + h) * D + ch] == 0.0f);
              assert_true(isfinite(c.o[h * D + ch]));
            }
            assert_true(c.lse[h * 2 + 1] == (with_sink ? sink[h] : -INFINITY));
            assert_true(max_s[h] == 0.0f); /* row 0's */
          }
          cpu_case_free(&c);
        }
      }
    }
  }
}

/* The oracle in the arithmetic of f32 agrees; in float64 nothing overflows. */
static void the_plain_reference_agrees(void **state) {
  double o[2 * HQ * D], lse[2 * HQ];
  tsr_reference_out out = tsr_reference_out_init();
  cpu_case c;
  (void)state;
  cpu_case_init(&c, HQ, HKV, 2, 2, D);
  overflow_case(&c, &c.desc);
  out.o = o;
  out.lse = lse;
  out.mode = TSR_REFERENCE_PLAIN;
  assert_int_equal(tsr_reference_attention(NULL, &c.desc, &c.args, &out, NULL), TSR_OK);
  for (int n = 0; n < HQ * D; n++) {
    assert_true(o[HQ * D + n] == 0.0);
  }
  assert_true(lse[1] == -(double)INFINITY);
  out.mode = TSR_REFERENCE_F64;
  assert_int_equal(tsr_reference_attention(NULL, &c.desc, &c.args, &out, NULL), TSR_OK);
  assert_true(isfinite(lse[1]));
  cpu_case_free(&c);
}

/* Backward of such a row, v finite: nothing of it reaches a gradient but, by its dlse, dsink. */
static void rows_of_minus_infinity_have_no_gradient(void **state) {
  static const float sink[HQ] = {-1.5f, 0.0f, 2.0f, -0.25f};
  (void)state;
  for (int with_sink = 0; with_sink < 2; with_sink++) {
    float dout[2 * HQ * D], dlse[2 * HQ], dq[2 * HQ * D], dk[2 * HKV * D], dv[2 * HKV * D], dsink[HQ];
    float o[2 * HQ * D], lse[2 * HQ];
    double want[HQ];
    tsr_reference_out out = tsr_reference_out_init();
    cpu_case c;
    cpu_case_init(&c, HQ, HKV, 2, 2, D);
    overflow_case(&c, &c.desc);
    random_fill(c.v, 2 * HKV * D);
    random_fill(dout, 2 * HQ * D);
    random_fill(dlse, 2 * HQ);
    if (with_sink) {
      c.desc.sink = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
      c.args.sink = tsr_buffer_in(sink);
    }
    cpu_case_run_ok(&c, NULL);
    memcpy(o, c.o, sizeof(o)); /* the next run poisons its own */
    memcpy(lse, c.lse, sizeof(lse));
    c.desc.op = TSR_BACKWARD;
    c.desc.dout = c.desc.dq = c.desc.o;
    c.desc.dk = c.desc.dv = c.desc.k;
    c.desc.dlse = c.desc.lse;
    c.desc.dsink = c.desc.sink;
    c.args.o = tsr_buffer_in(o);
    c.args.lse = tsr_buffer_in(lse);
    c.args.dout = tsr_buffer_in(dout);
    c.args.dlse = tsr_buffer_in(dlse);
    c.args.dq = tsr_buffer_out(dq);
    c.args.dk = tsr_buffer_out(dk);
    c.args.dv = tsr_buffer_out(dv);
    c.args.dsink = tsr_buffer_out(with_sink ? dsink : NULL);
    cpu_case_run_ok(&c, NULL);
    for (int n = 0; n < HQ * D; n++) {
      assert_true(dq[HQ * D + n] == 0.0f);
    }
    for (int n = 0; n < HKV * D; n++) { /* of key 1, which only that row sees */
      assert_true(dk[HKV * D + n] == 0.0f && dv[HKV * D + n] == 0.0f);
      assert_true(isfinite(dk[n]) && isfinite(dv[n]));
    }
    out.mode = TSR_REFERENCE_PLAIN;
    out.dsink = want;
    if (with_sink) {
      assert_int_equal(tsr_reference_attention(NULL, &c.desc, &c.args, &out, NULL), TSR_OK);
    }
    for (int h = 0; with_sink && h < HQ; h++) {
      if (fabs(dsink[h] - want[h]) > 1e-5 * (1 + fabs(want[h]))) {
        fail_msg("head %d: dsink %g, not %g", h, (double)dsink[h], want[h]);
      }
    }
    cpu_case_free(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(max_s_is_nan_once_a_score_is),
      cmocka_unit_test(order_does_not_matter),
      cmocka_unit_test(rows_of_minus_infinity_are_empty),
      cmocka_unit_test(the_plain_reference_agrees),
      cmocka_unit_test(rows_of_minus_infinity_have_no_gradient),
  };
  random_seed();
  return cmocka_run_group_tests_name("cpu_nonfinite", tests, NULL, NULL);
}
