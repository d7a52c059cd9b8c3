/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's forward: results computed by hand, masks drawn row by row, properties of attention, edge cases. */
#include "reference_case.h"

static attention_case c1, c2;

/* ---- By hand --------------------------------------------------------------------------------- */

static void test_philox_known_answers(void **state) { /* Random123's kat_vectors, philox4x32 10 */
  static const uint32_t known[3][10] = {
      {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
      {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
       0x6d5451fd},
      {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
       0x24126ea1},
  };
  (void)state;
  for (int n = 0; n < 3; n++) {
    uint32_t words[4];
    tsr__ref_philox(known[n], known[n] + 4, words);
    assert_memory_equal(words, known[n] + 6, sizeof(words));
  }
}

static void test_two_by_two(void **state) {
  static const float q[4] = {1.0f, 0.0f, 0.0f, 2.0f}, k[4] = {1.0f, 0.0f, 3.0f, -1.0f},
                     v[4] = {1.0f, 10.0f, 5.0f, 20.0f};
  const double e2 = exp(-2.0); /* rows of s: 1, 3 and 0, -2: weights e^-2 : 1 and 1 : e^-2 */
  (void)state;
  case_init(&c1, 1, 2, 2, 1, 1, 2, 2);
  memcpy(c1.q, q, sizeof(q));
  memcpy(c1.k, k, sizeof(k));
  memcpy(c1.v, v, sizeof(v));
  c1.args.scale = 1.0f;
  case_run(&c1);
  case_near(c1.o[0], (e2 * 1 + 5) / (1 + e2), 1e-15);
  case_near(c1.o[1], (e2 * 10 + 20) / (1 + e2), 1e-15);
  case_near(c1.o[2], (1 + e2 * 5) / (1 + e2), 1e-15);
  case_near(c1.o[3], (10 + e2 * 20) / (1 + e2), 1e-15);
  case_near(c1.lse[0], 3 + log(1 + e2), 1e-15);
  case_near(c1.lse[1], log(1 + e2), 1e-15);
  case_near(c1.max_s[0], 3.0, 0.0);
}

/* One pair: lse is s itself, and o is v. All terms in their order; default scale 1/sqrt(D). */
static void test_order_of_operations(void **state) {
  static const float slope = 0.5f, bias = 0.25f;
  const double dot = 3.0, s1 = 1.5 * tanh(dot / 2.0 / 1.5), s2 = s1 - 0.0 + 0.25;
  (void)state;
  case_init(&c1, 1, 1, 1, 1, 1, 4, 1);
  c1.q[0] = 1.0f;
  c1.k[0] = 3.0f;
  c1.q[1] = c1.q[2] = c1.q[3] = 0.0f;
  c1.desc.flags = TSR_SOFTCAP;
  c1.args.softcap = 1.5f;
  CASE_GIVE(&c1, bias, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &bias);
  CASE_GIVE(&c1, alibi_slopes, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &slope);
  c1.desc.score_expr = "2.0 * score + 1.0";
  case_run(&c1);
  case_near(c1.lse[0], 2 * s2 + 1, 1e-15);
  case_near(c1.max_s[0], 2 * s2 + 1, 1e-15);
  assert_true(c1.o[0] == (double)c1.v[0]);
}

static void test_alibi(void **state) {
  static const float slopes[4] = {0.5f, 2.0f, -1.0f, 0.0f}; /* [B][Hq] */
  (void)state;
  for (int top_left = 0; top_left < 2; top_left++) {
    const int64_t off = top_left ? 0 : 2;
    case_init(&c1, 2, 3, 5, 2, 1, 1, 1);
    memset(c1.q, 0, sizeof(c1.q));
    c1.desc.flags = top_left ? TSR_TOP_LEFT : 0;
    CASE_GIVE(&c1, alibi_slopes, tsr_layout_dense(TSR_F32, 2, 2, 1, 1), slopes);
    case_run(&c1);
    for (int64_t n = 0; n < 12; n++) { /* lse [b][h][i] */
      double sum = 0.0;
      for (int64_t j = 0; j < 5; j++) {
        sum += exp(-(double)slopes[n / 3] * fabs((double)(n % 3 + off - j)));
      }
      case_near(c1.lse[n], log(sum), 1e-14);
    }
  }
}

static void test_heads_share_keys(void **state) {
  (void)state;
  case_init(&c1, 1, 1, 1, 14, 2, 3, 1);
  case_run(&c1);
  for (int h = 0; h < 14; h++) {
    assert_true(c1.o[h] == (double)c1.v[h / 7]);
  }
}

/* ---- Masks, drawn ---------------------------------------------------------------------------- */

/* q = 0 makes all allowed keys equal and v = 1 at (j, j) makes o the probabilities: row i of the drawing has 1 where
 * the pair is allowed. Every head and sequence must look so. */
static void draw_init(attention_case *c, int64_t sq, int64_t sk) {
  case_init(c, 1, sq, sk, 1, 1, 2, sk);
  memset(c->q, 0, sizeof(c->q));
  for (int64_t n = 0; n < sk * sk; n++) {
    c->v[n] = n / sk == n % sk ? 1.0f : 0.0f;
  }
}

static void expect_drawing(attention_case *c, const char *drawing) {
  const int64_t sk = c->desc.k.shape[1];
  case_run(c);
  for (int64_t i = 0; i < c->desc.q.shape[1]; i++, drawing += sk + (drawing[sk] != '\0')) {
    int64_t count = 0;
    for (int64_t j = 0; j < sk; j++) {
      count += drawing[j] == '1';
    }
    for (int64_t j = 0; j < sk; j++) {
      const double want = drawing[j] == '1' ? 1.0 / (double)count : 0.0;
      if (fabs(c->o[i * sk + j] - want) > 1e-15) {
        fail_msg("row %lld key %lld: p = %g, drawn %g", (long long)i, (long long)j, c->o[i * sk + j], want);
      }
    }
    case_near(c->lse[i], count == 0 ? -(double)INFINITY : log((double)count), 1e-15);
  }
}

static void expect_flags(uint64_t flags, int64_t sq, int64_t sk, int64_t left, int64_t right, int64_t sinks,
                         int64_t chunk, const char *drawing) {
  draw_init(&c1, sq, sk);
  c1.desc.flags = flags;
  c1.desc.window_left = left;
  c1.desc.window_right = right;
  c1.desc.sink_tokens = sinks;
  c1.desc.chunk = chunk;
  expect_drawing(&c1, drawing);
}

static void test_position_masks(void **state) {
  (void)state;
  expect_flags(0, 2, 3, 0, 0, 0, 0, "111 111");
  expect_flags(TSR_CAUSAL, 3, 3, 0, 0, 0, 0, "100 110 111");
  expect_flags(TSR_CAUSAL, 2, 4, 0, 0, 0, 0, "1110 1111");
  expect_flags(TSR_CAUSAL, 4, 2, 0, 0, 0, 0, "00 00 10 11");
  expect_flags(TSR_CAUSAL | TSR_TOP_LEFT, 2, 4, 0, 0, 0, 0, "1000 1100");
  expect_flags(TSR_CAUSAL | TSR_TOP_LEFT, 4, 2, 0, 0, 0, 0, "10 11 11 11");
  expect_flags(TSR_WINDOW, 4, 4, 1, 0, 0, 0, "1000 1100 0110 0011");
  expect_flags(TSR_WINDOW, 4, 4, 0, 1, 0, 0, "1100 0110 0011 0001");
  expect_flags(TSR_WINDOW, 3, 3, 0, 0, 0, 0, "100 010 001");
  expect_flags(TSR_WINDOW, 3, 3, -1, 0, 0, 0, "100 110 111");
  expect_flags(TSR_WINDOW, 3, 3, 0, -1, 0, 0, "111 011 001");
  expect_flags(TSR_WINDOW, 3, 3, -1, -1, 0, 0, "111 111 111");
  expect_flags(TSR_WINDOW, 2, 5, 1, 0, 0, 0, "00110 00011");
  expect_flags(TSR_WINDOW | TSR_TOP_LEFT, 2, 5, 1, 0, 0, 0, "10000 11000");
  expect_flags(TSR_WINDOW, 4, 5, 0, 0, 2, 0, "11000 11100 11010 11001");
  expect_flags(TSR_WINDOW | TSR_CAUSAL, 4, 4, 0, -1, 2, 0, "1000 1100 1110 1101");
  expect_flags(TSR_WINDOW, 2, 2, INT64_MAX, INT64_MAX, 0, 0, "11 11");
  expect_flags(TSR_CHUNK, 5, 5, 0, 0, 0, 2, "11000 11000 00110 00110 00001");
  expect_flags(TSR_CHUNK, 3, 5, 0, 0, 0, 3, "11100 00011 00011");
  expect_flags(TSR_CHUNK, 5, 3, 0, 0, 0, 2, "000 000 110 110 001"); /* rows before key 0 */
}

static void test_tensor_masks(void **state) {
  static const uint8_t bytes[6] = {1, 0, 255, 0, 0, 2}, bits[4] = {0x05, 0x02, 0xff, 0x00};
  static const int64_t offset = 1, row_stride = 2;
  static const int32_t ids_q[3] = {0, -1, 7}, ids_k[4] = {0, 7, -1, 0}, prefix = 2;
  (void)state;
  draw_init(&c1, 2, 3);
  CASE_GIVE(&c1, mask, tsr_layout_dense(TSR_U8, 1, 1, 2, 3), bytes);
  expect_drawing(&c1, "101 001");
  draw_init(&c1, 2, 3);
  CASE_GIVE(&c1, mask, tsr_layout_dense(TSR_U8, 1, 1, 1, 3), bytes);
  expect_drawing(&c1, "101 101");
  draw_init(&c1, 2, 10);
  CASE_GIVE(&c1, mask, tsr_layout_dense(TSR_BIT, 1, 1, 2, 10), bits);
  c1.desc.mask.stride[2] = 2;
  expect_drawing(&c1, "1010000001 1111111100");
  draw_init(&c1, 1, 8);
  CASE_GIVE(&c1, mask, tsr_layout_dense(TSR_BIT, 1, 1, 1, 8), bits);
  CASE_GIVE(&c1, mask_offsets, tsr_layout_dense(TSR_I64, 1, 1, 1, 1), &offset);
  CASE_GIVE(&c1, mask_row_strides, tsr_layout_dense(TSR_I64, 1, 1, 1, 1), &row_stride);
  expect_drawing(&c1, "01000000");
  draw_init(&c1, 3, 4);
  CASE_GIVE(&c1, segments_q, tsr_layout_dense(TSR_I32, 1, 3, 1, 1), ids_q);
  CASE_GIVE(&c1, segments_k, tsr_layout_dense(TSR_I32, 1, 4, 1, 1), ids_k);
  expect_drawing(&c1, "1001 0000 0100");
  draw_init(&c1, 3, 3);
  c1.desc.flags = TSR_CAUSAL;
  CASE_GIVE(&c1, prefix, tsr_layout_dense(TSR_I32, 1, 1, 1, 1), &prefix);
  expect_drawing(&c1, "110 110 111");
}

static void expect_flashmask(uint64_t flags, int64_t n, const int32_t *bounds, const char *drawing) {
  draw_init(&c1, 4, 3);
  c1.desc.flags = flags;
  CASE_GIVE(&c1, flashmask, tsr_layout_dense(TSR_I32, 1, 1, 3, n), bounds);
  expect_drawing(&c1, drawing);
}

static void test_flashmask(void **state) {
  static const int32_t lts[3] = {2, 4, 0}, two[6] = {1, 3, 0, 0, 3, 9}, open[6] = {3, 1, 4, 0, 0, 0};
  static const int32_t four[12] = {1, 2, 3, 4, 0, 4, 0, 0, 2, 2, 0, 1};
  (void)state;
  expect_flashmask(TSR_CAUSAL | TSR_TOP_LEFT, 1, lts, "100 110 010 010");
  expect_flashmask(TSR_CAUSAL | TSR_TOP_LEFT, 2, two, "100 010 011 110");
  expect_flashmask(0, 2, open, "010 110 110 010"); /* i >= c0 or i < c1 */
  expect_flashmask(0, 4, four, "100 001 101 001");
}

/* One column of bounds for each kv head: heads 0, 1 use the first, heads 2, 3 the second. */
static void test_flashmask_of_kv_heads(void **state) {
  static const int32_t bounds[4] = {0, 9, 9, 0}; /* [2 heads][2 keys]: key 0 masked, then key 1 */
  (void)state;
  case_init(&c1, 1, 2, 2, 4, 2, 2, 2);
  c1.desc.flags = TSR_CAUSAL;
  CASE_GIVE(&c1, flashmask, tsr_layout_dense(TSR_I32, 1, 2, 2, 1), bounds);
  case_run(&c1);
  for (int h = 0; h < 4; h++) { /* row 1 of head h sees one key, whose v it is */
    const int j = h < 2 ? 1 : 0;
    assert_true(c1.o[(4 + h) * 2] == (double)c1.v[(j * 2 + h / 2) * 2]);
  }
}

static void test_bit_mask_of_sequences(void **state) {
  static const uint8_t bits[2] = {0x1, 0x2};
  (void)state;
  case_init(&c1, 2, 1, 2, 1, 1, 2, 2);
  CASE_GIVE(&c1, mask, tsr_layout_dense(TSR_BIT, 2, 1, 1, 2), bits);
  c1.desc.mask.stride[0] = 1;
  case_run(&c1);
  assert_true(c1.o[0] == (double)c1.v[0] && c1.o[2] == (double)c1.v[6]);
}

static void test_blocks(void **state) {
  static const int32_t indptr[3] = {0, 1, 3}, indices[3] = {1, 0, 2};
  (void)state;
  draw_init(&c1, 3, 5);
  c1.desc.block_rows = c1.desc.block_cols = 2;
  CASE_GIVE(&c1, block_indptr, tsr_layout_dense(TSR_I32, 1, 1, 3, 1), indptr);
  CASE_GIVE(&c1, block_indices, tsr_layout_dense(TSR_I32, 1, 1, 3, 1), indices);
  expect_drawing(&c1, "00110 00110 11001");
  draw_init(&c1, 4, 3);
  c1.desc.block_rows = 3;
  c1.desc.block_cols = 1;
  CASE_GIVE(&c1, block_indptr, tsr_layout_dense(TSR_I32, 1, 1, 3, 1), indptr);
  CASE_GIVE(&c1, block_indices, tsr_layout_dense(TSR_I32, 1, 1, 3, 1), indices);
  expect_drawing(&c1, "010 010 010 101");
}

static void test_bias_that_masks(void **state) {
  static float bias[6] = {0, -INFINITY, 0, -INFINITY, -INFINITY, -INFINITY};
  static float lowest[3] = {-3.4028234663852886e38f, -3.4028234663852886e38f, -3.4028234663852886e38f};
  (void)state;
  draw_init(&c1, 2, 3);
  CASE_GIVE(&c1, bias, tsr_layout_dense(TSR_F32, 1, 1, 2, 3), bias);
  expect_drawing(&c1, "101 000");
  draw_init(&c1, 1, 3); /* the lowest finite value is a value: a uniform row */
  CASE_GIVE(&c1, bias, tsr_layout_dense(TSR_F32, 1, 1, 1, 3), lowest);
  case_run(&c1);
  for (int n = 0; n < 3; n++) {
    case_near(c1.o[n], 1.0 / 3.0, 1e-15);
  }
}

static void test_mask_expression(void **state) {
  static const int32_t doc[4] = {0, 0, 1, 1};
  (void)state;
  draw_init(&c1, 4, 4);
  c1.desc.flags = TSR_CAUSAL;
  c1.desc.mask_expr = "aux0[i] == aux0[j] || j == 0";
  c1.desc.num_aux = 1;
  c1.desc.aux[0] = tsr_layout_dense(TSR_I32, 4, 1, 1, 1);
  c1.args.aux[0] = tsr_buffer_in(doc);
  expect_drawing(&c1, "1000 1100 1010 1011");
}

/* ---- Properties ------------------------------------------------------------------------------ */

static void test_shift_invariance(void **state) {
  static float bias[20];
  (void)state;
  case_init(&c1, 2, 4, 20, 2, 2, 8, 5);
  random_fill(bias, 20);
  CASE_GIVE(&c1, bias, tsr_layout_dense(TSR_F32, 1, 1, 1, 20), bias);
  case_run(&c1);
  c2 = c1;
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  c2.out.max_s = c2.max_s;
  for (int n = 0; n < 20; n++) {
    bias[n] += 256.0f;
  }
  case_run(&c2);
  for (int64_t n = 0; n < c1.num_lse; n++) {
    c2.lse[n] -= 256.0;
  }
  case_same(&c1, &c2, 1e-13);
}

static void test_permutation_of_keys(void **state) {
  (void)state;
  case_init(&c1, 1, 3, 16, 1, 1, 8, 8);
  case_init(&c2, 1, 3, 16, 1, 1, 8, 8);
  memcpy(c2.q, c1.q, sizeof(c1.q));
  for (int j = 0; j < 16; j++) { /* 5 is a unit modulo 16 */
    memcpy(c2.k + j * 5 % 16 * 8, c1.k + j * 8, 8 * sizeof(float));
    memcpy(c2.v + j * 5 % 16 * 8, c1.v + j * 8, 8 * sizeof(float));
  }
  case_run(&c1);
  case_run(&c2);
  case_same(&c1, &c2, 1e-14);
}

static void test_rows_and_strides(void **state) {
  static const int64_t rows[3] = {5, 0, 99};
  (void)state;
  case_init(&c1, 2, 6, 7, 2, 1, 4, 3);
  c1.desc.flags = TSR_CAUSAL;
  case_run(&c1);
  memcpy(&c2, &c1, sizeof(c1)); /* the same q stored [b][h][s][d], k and v with gaps and an odd address */
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  c2.out.max_s = NULL;
  c2.desc.q = tsr_layout_bhsd(TSR_F32, 2, 2, 6, 4);
  CASE_GIVE(&c2, q, c2.desc.q, c2.q);
  CASE_GIVE(&c2, k, tsr_layout_dense(TSR_F32, 2, 7, 1, 4), (unsigned char *)c2.k + 3);
  for (int a = 0; a < 4; a++) {
    c2.desc.k.stride[a] *= 2;
  }
  for (int64_t b = 0; b < 2; b++) {
    for (int64_t n = 0; n < 48; n++) { /* n = (s * 2 + h) * 4 + d */
      c2.q[b * 48 + (n / 4 % 2 * 6 + n / 8) * 4 + n % 4] = c1.q[b * 48 + n];
    }
  }
  memset(c2.k, 0xff, sizeof(c2.k)); /* the gaps are NaN */
  for (int64_t n = 0; n < 56; n++) {
    memcpy((unsigned char *)c2.k + 3 + n * 8, &c1.k[n], sizeof(float));
  }
  c2.out.rows = rows;
  c2.out.num_rows = 3;
  case_run(&c2);
  for (int64_t n = 0; n < c1.num_o; n++) {
    const int64_t i = n / 6 % 6;
    assert_true(c2.o[n] == (i == 0 || i == 5 ? c1.o[n] : case_poison));
  }
}

static void test_packed_equals_dense(void **state) {
  static const int64_t cu_q[4] = {1, 4, 4, 6}, cu_k[4] = {0, 5, 7, 11}, used_k[3] = {3, 2, 4};
  (void)state;
  case_init(&c1, 1, 8, 12, 2, 1, 4, 3);
  c1.desc.flags = TSR_CAUSAL;
  c1.desc.batch = 3;
  CASE_GIVE(&c1, cu_seqlens_q, tsr_layout_dense(TSR_I64, 4, 1, 1, 1), cu_q);
  CASE_GIVE(&c1, cu_seqlens_k, tsr_layout_dense(TSR_I64, 4, 1, 1, 1), cu_k);
  CASE_GIVE(&c1, seqlens_k, tsr_layout_dense(TSR_I64, 3, 1, 1, 1), used_k);
  case_run(&c1);
  for (int b = 0; b < 3; b++) {
    const int64_t sq = cu_q[b + 1] - cu_q[b];
    case_init(&c2, 1, sq, used_k[b], 2, 1, 4, 3);
    c2.desc.flags = TSR_CAUSAL;
    memcpy(c2.q, c1.q + cu_q[b] * 8, (size_t)sq * 8 * sizeof(float));
    memcpy(c2.k, c1.k + cu_k[b] * 4, (size_t)used_k[b] * 4 * sizeof(float));
    memcpy(c2.v, c1.v + cu_k[b] * 3, (size_t)used_k[b] * 3 * sizeof(float));
    case_run(&c2);
    assert_memory_equal(c2.o, c1.o + cu_q[b] * 6, (size_t)sq * 6 * sizeof(double));
    for (int64_t n = 0; n < sq * 2; n++) { /* lse [h][T] */
      assert_true(c2.lse[n] == c1.lse[n / sq * 8 + cu_q[b] + n % sq]);
    }
  }
  for (int64_t n = 0; n < 6; n++) { /* rows before and after the sequences */
    assert_true(c1.o[n] == case_poison && c1.o[6 * 6 + n] == case_poison && c1.o[7 * 6 + n] == case_poison);
  }
}

/* ---- Edge cases ------------------------------------------------------------------------------ */

static void test_empty_rows(void **state) {
  static const float sinks[2] = {0.5f, -INFINITY};
  (void)state;
  for (int with_sink = 0; with_sink < 2; with_sink++) {
    for (int64_t sk = 0; sk < 3; sk++) { /* 4 rows, causal: rows i < 4 - sk are empty */
      case_init(&c1, 1, 4, sk, 2, 2, 2, 2);
      c1.desc.flags = TSR_CAUSAL;
      if (with_sink) {
        CASE_GIVE(&c1, sink, tsr_layout_dense(TSR_F32, 2, 1, 1, 1), sinks);
      }
      case_run(&c1);
      for (int64_t h = 0; h < 2; h++) {
        for (int64_t i = 0; i < 4; i++) {
          const double *o = c1.o + (i * 2 + h) * 2, lse = c1.lse[h * 4 + i];
          if (i < 4 - sk) {
            assert_true(o[0] == 0.0 && o[1] == 0.0);
            assert_true(lse == (with_sink ? (double)sinks[h] : -(double)INFINITY));
          } else {
            assert_true(o[0] != 0.0 && isfinite(lse));
          }
        }
      }
      assert_true(sk > 0 || c1.max_s[0] == -(double)INFINITY);
    }
  }
}

static void test_sink(void **state) {
  static const float sink = 1.25f, large = 1e4f;
  double weight;
  (void)state;
  case_init(&c1, 1, 2, 6, 1, 1, 4, 2);
  case_run(&c1);
  c2 = c1;
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  c2.out.max_s = c2.max_s;
  CASE_GIVE(&c2, sink, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &sink);
  case_run(&c2);
  for (int i = 0; i < 2; i++) {
    case_near(c2.lse[i], log(exp(c1.lse[i]) + exp(1.25)), 1e-14);
    weight = exp(c1.lse[i] - c2.lse[i]);
    case_near(c2.o[i * 2], c1.o[i * 2] * weight, 1e-14);
    case_near(c2.o[i * 2 + 1], c1.o[i * 2 + 1] * weight, 1e-14);
  }
  assert_true(c1.max_s[0] == c2.max_s[0]); /* no sink in it */
  CASE_GIVE(&c2, sink, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &large);
  case_run(&c2);
  assert_true(c2.lse[0] == 1e4 && c2.o[0] == 0.0);
}

/* Poison in everything that is masked or unused changes no bit; poison in what is used does. */
static void test_nan_rule(void **state) {
  static uint8_t mask[4 * 8];
  static const int32_t used = 6;
  (void)state;
  case_init(&c1, 1, 4, 8, 1, 1, 4, 3);
  for (int n = 0; n < 32; n++) {
    mask[n] = n % 8 != 2; /* key 2 is masked for all rows; keys 6, 7 are not used */
  }
  CASE_GIVE(&c1, mask, tsr_layout_dense(TSR_U8, 1, 1, 4, 8), mask);
  CASE_GIVE(&c1, seqlens_k, tsr_layout_dense(TSR_I32, 1, 1, 1, 1), &used);
  case_run(&c1);
  memcpy(&c2, &c1, sizeof(c1));
  c2.args.k = tsr_buffer_in(c2.k);
  c2.args.v = tsr_buffer_in(c2.v);
  c2.args.q = tsr_buffer_in(c2.q);
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  c2.out.max_s = c2.max_s;
  for (int j = 2; j < 8; j += j == 2 ? 4 : 1) {
    for (int n = 0; n < 4; n++) {
      c2.k[j * 4 + n] = NAN;
      c2.v[j * 3 + n % 3] = INFINITY;
    }
  }
  case_run(&c2);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
  assert_memory_equal(c1.lse, c2.lse, sizeof(c1.lse));
  c2.v[3 * 3 + 1] = NAN; /* one channel of an allowed key */
  c2.q[2 * 4] = NAN;     /* one row */
  case_run(&c2);
  for (int i = 0; i < 4; i++) {
    assert_true(isnan(c2.lse[i]) == (i == 2));
    for (int n = 0; n < 3; n++) {
      assert_true(isnan(c2.o[i * 3 + n]) == (i == 2 || n == 1));
    }
  }
}

static void test_large_logits(void **state) { /* graveyard 1: finite sentinels */
  (void)state;
  case_init(&c1, 1, 1, 1, 4, 1, 128, 2);
  for (int n = 0; n < 512; n++) {
    c1.q[n] = 64.0f;
    c1.k[n] = -64.0f;
  }
  c1.desc.flags = TSR_CAUSAL;
  case_run(&c1);
  for (int h = 0; h < 4; h++) {
    assert_true(c1.o[h * 2] == (double)c1.v[0] && c1.o[h * 2 + 1] == (double)c1.v[1]);
    case_near(c1.lse[h], -64.0 * 64.0 * 128.0 / sqrt(128.0), 1e-15);
  }
}

static void test_no_sequences(void **state) {
  (void)state;
  case_init(&c1, 0, 4, 4, 1, 1, 2, 2);
  case_run(&c1);
  assert_true(c1.o[0] == case_poison && c1.max_s[0] == -(double)INFINITY);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_philox_known_answers),
      cmocka_unit_test(test_two_by_two),
      cmocka_unit_test(test_order_of_operations),
      cmocka_unit_test(test_alibi),
      cmocka_unit_test(test_heads_share_keys),
      cmocka_unit_test(test_position_masks),
      cmocka_unit_test(test_tensor_masks),
      cmocka_unit_test(test_flashmask),
      cmocka_unit_test(test_flashmask_of_kv_heads),
      cmocka_unit_test(test_bit_mask_of_sequences),
      cmocka_unit_test(test_blocks),
      cmocka_unit_test(test_bias_that_masks),
      cmocka_unit_test(test_mask_expression),
      cmocka_unit_test(test_shift_invariance),
      cmocka_unit_test(test_permutation_of_keys),
      cmocka_unit_test(test_rows_and_strides),
      cmocka_unit_test(test_packed_equals_dense),
      cmocka_unit_test(test_empty_rows),
      cmocka_unit_test(test_sink),
      cmocka_unit_test(test_nan_rule),
      cmocka_unit_test(test_large_logits),
      cmocka_unit_test(test_no_sequences),
  };
  random_seed();
  return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
