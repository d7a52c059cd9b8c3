/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's gradients against central differences of its own forward, over single features and random
 * combinations of them. Inputs lie on a grid of 2^-12, so that f32 holds every perturbed value exactly; the
 * differences are of fourth order: their own error is far below the tolerance. */
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

enum { B = 2, SQ = 5, SK = 7, D = 4, DV = 3, HQ = 4, MAX_ELEMENTS = 512 };

enum {
  GQA = 1 << 0,
  CAUSAL = 1 << 1,
  TOP_LEFT = 1 << 2,
  WINDOW = 1 << 3,
  CHUNK = 1 << 4,
  SOFTCAP = 1 << 5,
  BIAS = 1 << 6,
  BIAS_BROADCAST = 1 << 7, /* with BIAS: extents of 1 */
  ALIBI = 1 << 8,
  SINK = 1 << 9,
  DROPOUT = 1 << 10,
  SCORE_EXPR = 1 << 11,
  MASK_EXPR = 1 << 12,
  DLSE = 1 << 13,
  PACKED = 1 << 14,
  MASK = 1 << 15,
  SEGMENTS = 1 << 16,
  FLASHMASK = 1 << 17,
  BLOCKS = 1 << 18,
  SEQLENS = 1 << 19,
  GIVEN = 1 << 20, /* backward takes o and lse from the arguments */
  SCALE = 1 << 21,
  NUM_FEATURES = 22
};

typedef struct problem {
  tsr_attention_desc desc;
  tsr_run_args args;
  float q[MAX_ELEMENTS], k[MAX_ELEMENTS], v[MAX_ELEMENTS], dout[MAX_ELEMENTS], dlse[MAX_ELEMENTS];
  float bias[MAX_ELEMENTS], sink[HQ], alibi[HQ], aux[SK], o[MAX_ELEMENTS], lse[MAX_ELEMENTS];
  int64_t num_o, num_lse, num_bias;
  uint8_t mask[B * HQ * SQ * SK];
  int32_t cu_q[B + 1], cu_k[B + 1], seqlens_q[B], seqlens_k[B], segments_q[B * SQ], segments_k[B * SK];
  int32_t flashmask[B * SK * 2], indptr[4], indices[6];
  const char *scalar_names[1];
} problem;

/* ---- Problems -------------------------------------------------------------------------------- */

#define GIVE(p, name, layout, memory)       \
  do {                                      \
    (p)->desc.name = layout;                \
    (p)->args.name = tsr_buffer_in(memory); \
  } while (0)

static void add_masks(problem *p, unsigned features) {
  tsr_attention_desc *d = &p->desc;
  if ((features & MASK) != 0) {
    for (size_t n = 0; n < sizeof(p->mask); n++) {
      p->mask[n] = (uint8_t)(random_bits() % 4 != 0);
    }
    GIVE(p, mask, tsr_layout_dense(TSR_U8, B, HQ, SQ, SK), p->mask);
  }
  if ((features & SEGMENTS) != 0) {
    const int packed = (features & PACKED) != 0;
    for (int n = 0; n < B * SQ; n++) {
      p->segments_q[n] = (int32_t)(random_bits() % 3) - (random_bits() % 8 == 0);
    }
    for (int n = 0; n < B * SK; n++) {
      p->segments_k[n] = (int32_t)(random_bits() % 3) - (random_bits() % 8 == 0);
    }
    GIVE(p, segments_q, tsr_layout_dense(TSR_I32, packed ? 1 : B, packed ? B * SQ : SQ, 1, 1), p->segments_q);
    GIVE(p, segments_k, tsr_layout_dense(TSR_I32, packed ? 1 : B, packed ? B * SK : SK, 1, 1), p->segments_k);
  }
  if ((features & FLASHMASK) != 0) {
    for (int n = 0; n < B * SK * 2; n++) {
      p->flashmask[n] = (int32_t)(random_bits() % (SQ + 1));
    }
    GIVE(p, flashmask, tsr_layout_dense(TSR_I32, B, 1, SK, 2), p->flashmask);
  }
  if ((features & BLOCKS) != 0) { /* blocks of 2 x 3: 3 rows of up to 3 */
    static const int32_t indptr[4] = {0, 2, 3, 5}, indices[5] = {0, 2, 1, 0, 1};
    memcpy(p->indptr, indptr, sizeof(indptr));
    memcpy(p->indices, indices, sizeof(indices));
    d->block_rows = 2;
    d->block_cols = 3;
    GIVE(p, block_indptr, tsr_layout_dense(TSR_I32, 1, 1, 4, 1), p->indptr);
    GIVE(p, block_indices, tsr_layout_dense(TSR_I32, 1, 1, 5, 1), p->indices);
  }
}

static void add_terms(problem *p, unsigned features) {
  tsr_attention_desc *d = &p->desc;
  if ((features & SOFTCAP) != 0) {
    d->flags |= TSR_SOFTCAP;
    p->args.softcap = 1.5f;
  }
  if ((features & BIAS) != 0) {
    const int narrow = (features & BIAS_BROADCAST) != 0;
    const unsigned ones = narrow ? 1 + random_bits() % 15 : 0; /* axes of extent 1 */
    d->bias = tsr_layout_dense(TSR_F32, ones & 1 ? 1 : B, ones & 2 ? 1 : HQ, ones & 4 ? 1 : SQ, ones & 8 ? 1 : SK);
    p->num_bias = d->bias.shape[0] * d->bias.shape[1] * d->bias.shape[2] * d->bias.shape[3];
    random_fill(p->bias, p->num_bias);
    if (!narrow) {
      p->bias[random_bits() % (uint32_t)p->num_bias] = -INFINITY;
    }
    p->args.bias = tsr_buffer_in(p->bias);
  }
  if ((features & ALIBI) != 0) {
    random_fill(p->alibi, HQ);
    GIVE(p, alibi_slopes, tsr_layout_dense(TSR_F32, 1, HQ, 1, 1), p->alibi);
  }
  if ((features & SINK) != 0) {
    random_fill(p->sink, HQ);
    p->sink[1] = -INFINITY;
    GIVE(p, sink, tsr_layout_dense(TSR_F32, HQ, 1, 1, 1), p->sink);
  }
  if ((features & DROPOUT) != 0) {
    d->flags |= TSR_DROPOUT;
    p->args.dropout_p = 0.4f;
    p->args.seed = (uint64_t)random_bits() << 32 | random_bits();
    p->args.offset = random_bits();
  }
  if ((features & (SCORE_EXPR | MASK_EXPR)) != 0) {
    p->scalar_names[0] = "gain";
    d->scalar_names = p->scalar_names;
    d->num_scalars = 1;
    p->args.scalars[0] = 0.75f;
    random_fill(p->aux, SK);
    d->num_aux = 1;
    d->aux[0] = tsr_layout_dense(TSR_F32, SK, 1, 1, 1);
    p->args.aux[0] = tsr_buffer_in(p->aux);
  }
  if ((features & SCORE_EXPR) != 0) {
    d->score_expr = "j % 2 == 0 ? gain * tanh(score) + aux0[j] : h == 1 ? score * score * 0.25 : "
                    "log(1.0 + exp(score)) - 0.1 * (i - j) / pow(2.0 + score * score, 0.5)";
  }
  if ((features & MASK_EXPR) != 0) {
    d->mask_expr = "(i + j) % 3 != 1 || aux0[j] > gain";
  }
}

static void add_lengths(problem *p, unsigned features) {
  const int32_t cut_q = (int32_t)(random_bits() % (B * SQ - 4)) / 2, cut_k = (int32_t)(random_bits() % SK);
  if ((features & PACKED) != 0) {
    p->cu_q[1] = cut_q < SQ ? cut_q : SQ;
    p->cu_q[2] = p->cu_q[1] + SQ;
    p->cu_k[1] = cut_k;
    p->cu_k[2] = cut_k + SK;
    GIVE(p, cu_seqlens_q, tsr_layout_dense(TSR_I32, B + 1, 1, 1, 1), p->cu_q);
    GIVE(p, cu_seqlens_k, tsr_layout_dense(TSR_I32, B + 1, 1, 1, 1), p->cu_k);
    p->desc.batch = B;
    p->desc.max_seqlen_q = SQ;
    p->desc.max_seqlen_k = SK;
  }
  if ((features & SEQLENS) != 0) {
    for (int b = 0; b < B; b++) {
      const int32_t slot_q = (features & PACKED) != 0 ? p->cu_q[b + 1] - p->cu_q[b] : SQ;
      const int32_t slot_k = (features & PACKED) != 0 ? p->cu_k[b + 1] - p->cu_k[b] : SK;
      p->seqlens_q[b] = (int32_t)(random_bits() % (uint32_t)(slot_q + 1));
      p->seqlens_k[b] = (int32_t)(random_bits() % (uint32_t)(slot_k + 1));
    }
    GIVE(p, seqlens_q, tsr_layout_dense(TSR_I32, B, 1, 1, 1), p->seqlens_q);
    GIVE(p, seqlens_k, tsr_layout_dense(TSR_I32, B, 1, 1, 1), p->seqlens_k);
  }
}

static void make_problem(problem *p, unsigned features) {
  const int packed = (features & PACKED) != 0;
  const int64_t hkv = (features & GQA) != 0 ? 2 : HQ, b = packed ? 1 : B, sq = packed ? B * SQ : SQ,
                sk = packed ? B * SK : SK;
  tsr_attention_desc *d = &p->desc;
  memset(p, 0, sizeof(*p));
  *d = tsr_attention_desc_init();
  p->args = tsr_run_args_init();
  random_fill(p->q, MAX_ELEMENTS);
  random_fill(p->k, MAX_ELEMENTS);
  random_fill(p->v, MAX_ELEMENTS);
  random_fill(p->dout, MAX_ELEMENTS);
  random_fill(p->dlse, MAX_ELEMENTS);
  GIVE(p, q, tsr_layout_dense(TSR_F32, b, sq, HQ, D), p->q);
  GIVE(p, k, tsr_layout_bhsd(TSR_F32, b, hkv, sk, D), p->k);
  GIVE(p, v, tsr_layout_dense(TSR_F32, b, sk, hkv, DV), p->v);
  GIVE(p, o, tsr_layout_dense(TSR_F32, b, sq, HQ, DV), NULL);
  GIVE(p, lse, tsr_layout_dense(TSR_F32, b, HQ, sq, 1), NULL);
  GIVE(p, dout, tsr_layout_bhsd(TSR_F32, b, HQ, sq, DV), p->dout);
  if ((features & DLSE) != 0) {
    GIVE(p, dlse, tsr_layout_dense(TSR_F32, b, HQ, sq, 1), p->dlse);
  }
  p->num_o = b * sq * HQ * DV;
  p->num_lse = b * sq * HQ;
  d->flags |= (features & CAUSAL) != 0 ? TSR_CAUSAL : 0;
  d->flags |= (features & TOP_LEFT) != 0 ? TSR_TOP_LEFT : 0;
  if ((features & WINDOW) != 0) {
    d->flags |= TSR_WINDOW;
    d->window_left = 2;
    d->window_right = 1;
    d->sink_tokens = random_bits() % 2;
  }
  if ((features & CHUNK) != 0) {
    d->flags |= TSR_CHUNK;
    d->chunk = 3;
  }
  if ((features & SCALE) != 0) {
    p->args.scale = 0.8125f;
  }
  add_lengths(p, features);
  add_masks(p, features);
  add_terms(p, features);
}

/* ---- Differences ----------------------------------------------------------------------------- */

static void evaluate(problem *p, int32_t op, const tsr_reference_out *out) {
  tsr_error err;
  p->desc.op = op;
  if (tsr__reference_attention(NULL, NULL, NULL, &p->desc, &p->args, out, &err) != TSR_OK) {
    fail_msg("%s: %s", err.field, err.text);
  }
}

/* sum(dout * o) + sum(dlse * lse) over the rows that are written and, for lse, not empty. */
static double loss(problem *p) {
  static double o[MAX_ELEMENTS], lse[MAX_ELEMENTS];
  const int64_t *shape = p->desc.o.shape;
  tsr_reference_out out = tsr_reference_out_init();
  double sum = 0.0;
  memset(o, 0, sizeof(o));
  memset(lse, 0, sizeof(lse));
  out.o = o;
  out.lse = lse;
  evaluate(p, TSR_FORWARD, &out);
  for (int64_t n = 0; n < p->num_o; n++) { /* o is bshd, dout is bhsd */
    const int64_t c = n % DV, h = n / DV % HQ, s = n / DV / HQ % shape[1], b = n / DV / HQ / shape[1];
    sum += o[n] * (double)p->dout[((b * HQ + h) * shape[1] + s) * DV + c];
  }
  for (int64_t n = 0; p->desc.dlse.dtype != TSR_DTYPE_NONE && n < p->num_lse; n++) {
    sum += isinf(lse[n]) ? 0.0 : lse[n] * (double)p->dlse[n];
  }
  return sum;
}

static double difference(problem *p, float *x) {
  const float h = 1.0f / 1024.0f, at = *x;
  double f[4];
  for (int n = 0; n < 4; n++) {
    static const float steps[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
    *x = at + steps[n] * h;
    f[n] = loss(p);
  }
  *x = at;
  return (8.0 * (f[2] - f[1]) - (f[3] - f[0])) / (12.0 * (double)h);
}

/* Element n of a logical [b][s][h][d] array in memory of `layout`. */
static int64_t place(const tsr_layout *l, int64_t n) {
  const int64_t i3 = n % l->shape[3], i2 = n / l->shape[3] % l->shape[2];
  const int64_t i1 = n / l->shape[3] / l->shape[2] % l->shape[1], i0 = n / l->shape[3] / l->shape[2] / l->shape[1];
  return i0 * l->stride[0] + i1 * l->stride[1] + i2 * l->stride[2] + i3 * l->stride[3];
}

static const double untouched = 12345.0;

static void compare(problem *p, const char *name, const tsr_layout *layout, float *x, const double *grad) {
  const int64_t n = layout->shape[0] * layout->shape[1] * layout->shape[2] * layout->shape[3];
  for (int64_t c = 0; c < n; c++) {
    float *at = x + place(layout, c);
    const double want = isinf(*at) ? 0.0 : difference(p, at);
    const double got = grad[c] == untouched ? 0.0 : grad[c]; /* a row that is not used: nothing depends on it */
    if (!(fabs(got - want) <= 2e-8 * (1.0 + fabs(want)))) {
      fail_msg("d%s[%lld]: %.12g, by differences %.12g", name, (long long)c, got, want);
    }
  }
}

static void check_gradients(unsigned features) {
  static problem p;
  static double dq[MAX_ELEMENTS], dk[MAX_ELEMENTS], dv[MAX_ELEMENTS], dbias[MAX_ELEMENTS], dsink[HQ];
  tsr_reference_out out = tsr_reference_out_init();
  make_problem(&p, features);
  for (int n = 0; n < MAX_ELEMENTS; n++) {
    dq[n] = dk[n] = dv[n] = dbias[n] = untouched;
  }
  out.dq = dq;
  out.dk = dk;
  out.dv = dv;
  out.dbias = (features & BIAS) != 0 ? dbias : NULL;
  out.dsink = (features & SINK) != 0 ? dsink : NULL;
  evaluate(&p, TSR_BACKWARD, &out);
  compare(&p, "q", &p.desc.q, p.q, dq);
  compare(&p, "k", &p.desc.k, p.k, dk);
  compare(&p, "v", &p.desc.v, p.v, dv);
  if ((features & BIAS) != 0) {
    compare(&p, "bias", &p.desc.bias, p.bias, dbias);
  }
  if ((features & SINK) != 0) {
    compare(&p, "sink", &p.desc.sink, p.sink, dsink);
  }
}

/* ---- Tests ----------------------------------------------------------------------------------- */

static void test_each_feature(void **state) {
  (void)state;
  for (int n = 0; n < NUM_FEATURES; n++) {
    if (1u << n != GIVEN) {
      printf("feature %d\n", n);
      check_gradients(1u << n | (n == 7 ? BIAS : 0));
    }
  }
}

static void test_pairs_that_meet(void **state) {
  static const unsigned cases[] = {
      CAUSAL | TOP_LEFT,
      CAUSAL | WINDOW | GQA,
      SINK | DLSE,
      SINK | DLSE | PACKED | CAUSAL | SEQLENS, /* empty rows with a sink: dz = dlse */
      SOFTCAP | BIAS | BIAS_BROADCAST | ALIBI | SCORE_EXPR,
      DROPOUT | SINK | GQA | DLSE,
      PACKED | BIAS | BIAS_BROADCAST | SEQLENS,
      FLASHMASK | CAUSAL,
      FLASHMASK | BLOCKS | SEGMENTS | MASK,
      SCORE_EXPR | MASK_EXPR | SOFTCAP | DROPOUT,
  };
  (void)state;
  for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
    printf("features 0x%x\n", cases[n]);
    check_gradients(cases[n]);
  }
}

static void test_random_combinations(void **state) {
  (void)state;
  for (int n = 0; n < 60; n++) {
    const unsigned features = random_bits() & random_bits() & ((1u << NUM_FEATURES) - 1) & ~(unsigned)GIVEN;
    printf("features 0x%x\n", features);
    check_gradients(features);
  }
}

/* dbias is written over the rows that are used and its sums, empty ones too; what lies beyond keeps its bits. */
static void test_extent_of_dbias(void **state) {
  static problem p;
  static double dbias[MAX_ELEMENTS];
  (void)state;
  for (unsigned ones = 0; ones < 16; ones++) {
    tsr_reference_out out = tsr_reference_out_init();
    const int64_t nb = ones & 1 ? 1 : B, nh = ones & 2 ? 1 : HQ, nq = ones & 4 ? 1 : SQ, nk = ones & 8 ? 1 : SK;
    make_problem(&p, CAUSAL | SEQLENS);
    p.seqlens_q[0] = 0;
    p.seqlens_q[1] = 2;
    p.seqlens_k[1] = 3;
    random_fill(p.bias, MAX_ELEMENTS);
    GIVE(&p, bias, tsr_layout_dense(TSR_F32, nb, nh, nq, nk), p.bias);
    for (int n = 0; n < MAX_ELEMENTS; n++) {
      dbias[n] = untouched;
    }
    out.dbias = dbias;
    evaluate(&p, TSR_BACKWARD, &out);
    for (int64_t n = 0; n < MAX_ELEMENTS; n++) {
      const int64_t j = n % nk, i = n / nk % nq, b = n / nk / nq / nh;
      const int64_t rows = nq == 1 ? 1 : nb == 1 ? 2 : b == 0 ? 0 : 2;
      const int written = n < nb * nh * nq * nk && i < rows;
      assert_true((dbias[n] != untouched) == written);
      assert_true(!written || (nk > 1 && j >= 3 ? dbias[n] == 0.0 : fabs(dbias[n]) < 100.0));
      assert_true(!written || nb == 1 || b == 1 || dbias[n] == 0.0); /* the sum over no rows */
    }
  }
}

/* With the forward's o and lse (rounded to f32) the gradients are those of its own, up to that rounding. */
static void test_given_forward(void **state) {
  static problem p;
  static double o[MAX_ELEMENTS], lse[MAX_ELEMENTS], own[MAX_ELEMENTS], given[MAX_ELEMENTS];
  (void)state;
  for (int n = 0; n < 20; n++) {
    const unsigned features = random_bits() & random_bits() & ((1u << NUM_FEATURES) - 1);
    tsr_reference_out out = tsr_reference_out_init();
    printf("features 0x%x\n", features);
    make_problem(&p, features);
    memset(own, 0, sizeof(own));
    memset(given, 0, sizeof(given));
    out.o = o;
    out.lse = lse;
    out.dq = own;
    evaluate(&p, TSR_BACKWARD, &out);
    for (int64_t c = 0; c < MAX_ELEMENTS; c++) {
      p.o[c] = (float)o[c];
      p.lse[c] = (float)lse[c];
    }
    p.args.o = tsr_buffer_in(p.o);
    p.args.lse = tsr_buffer_in(p.lse);
    out = tsr_reference_out_init();
    out.dq = given;
    evaluate(&p, TSR_BACKWARD, &out);
    for (int64_t c = 0; c < MAX_ELEMENTS; c++) {
      assert_true(fabs(own[c] - given[c]) <= 1e-5);
    }
    p.lse[0] += 0.5f; /* they are read: another lse is another gradient, if row 0 has one */
    evaluate(&p, TSR_BACKWARD, &out);
    if (own[0] != 0.0) {
      assert_true(fabs(own[0] - given[0]) > 1e-6 * fabs(own[0]));
    }
  }
}

/* Plain mode in f32: the same gradients to f32's accuracy, and not the same bits. */
static void test_plain(void **state) {
  static problem p;
  static double exact[MAX_ELEMENTS], plain[MAX_ELEMENTS];
  (void)state;
  for (int which = 0; which < 3; which++) {
    tsr_reference_out out = tsr_reference_out_init();
    double differ = 0.0;
    make_problem(&p, GQA | SOFTCAP | BIAS | DLSE | SINK | SCORE_EXPR | DROPOUT);
    for (int mode = TSR_REFERENCE_F64; mode <= TSR_REFERENCE_PLAIN; mode++) {
      double *x = mode == TSR_REFERENCE_PLAIN ? plain : exact;
      memset(x, 0, MAX_ELEMENTS * sizeof(double));
      out.mode = mode;
      out.dq = which == 0 ? x : NULL;
      out.dk = which == 1 ? x : NULL;
      out.dv = which == 2 ? x : NULL;
      evaluate(&p, TSR_BACKWARD, &out);
    }
    for (int n = 0; n < MAX_ELEMENTS; n++) {
      differ = fmax(differ, fabs(exact[n] - plain[n]));
      assert_true(plain[n] == (double)(float)plain[n]);
    }
    assert_true(differ > 0.0 && differ < 1e-4);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_each_feature),        cmocka_unit_test(test_pairs_that_meet),
      cmocka_unit_test(test_random_combinations), cmocka_unit_test(test_given_forward),
      cmocka_unit_test(test_extent_of_dbias),     cmocka_unit_test(test_plain),
  };
  random_seed();
  return cmocka_run_group_tests_name("reference_grad", tests, NULL, NULL);
}
