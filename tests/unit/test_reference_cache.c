/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's K/V caches: paged look-up, dequantisation, append, merge. */
#include "reference_case.h"

static attention_case c1, c2;

static void second_from_first(void) {
  memcpy(&c2, &c1, sizeof(c1));
  c2.args.q = tsr_buffer_in(c2.q);
  c2.args.k = tsr_buffer_in(c2.k);
  c2.args.v = tsr_buffer_in(c2.v);
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  c2.out.max_s = c2.max_s;
}

/* ---- Paged ------------------------------------------------------------------------------------ */

enum { PAGE = 3, PAGES = 9, LENGTH_0 = 8, LENGTH_1 = 4 };

/* Two sequences of 8 and 4 keys; page n of sequence b is page table[b][n]. Unused rows of pages are NaN. */
static void scatter(const int32_t *table, int64_t row_stride) {
  static const int64_t length[2] = {LENGTH_0, LENGTH_1};
  memset(c2.k, 0xff, sizeof(c2.k));
  memset(c2.v, 0xff, sizeof(c2.v));
  for (int64_t b = 0; b < 2; b++) {
    for (int64_t j = 0; j < length[b]; j++) {
      const int64_t row = table[b * row_stride + j / PAGE] * PAGE + j % PAGE;
      memcpy(c2.k + row * 2 * 4, c1.k + (b * LENGTH_0 + j) * 2 * 4, 8 * sizeof(float));
      memcpy(c2.v + row * 2 * 5, c1.v + (b * LENGTH_0 + j) * 2 * 5, 10 * sizeof(float));
    }
  }
  c2.desc.k = tsr_layout_dense(TSR_F32, PAGES, PAGE, 2, 4);
  c2.desc.v = tsr_layout_dense(TSR_F32, PAGES, PAGE, 2, 5);
}

static void test_paged(void **state) {
  static const int64_t lengths[2] = {LENGTH_0, LENGTH_1};
  /* A table of 4 columns with a row stride of 5; entries past the lengths point outside the pool. */
  static const int32_t table[10] = {7, 2, 5, 1 << 30, -1, 0, 8, -5, 1 << 30, -1};
  static const int32_t indptr[3] = {1, 4, 6}, indices[6] = {-1, 7, 2, 5, 0, 8}, last[2] = {2, 1};
  (void)state;
  case_init(&c1, 2, 3, LENGTH_0, 4, 2, 4, 5);
  c1.desc.flags = TSR_CAUSAL;
  CASE_GIVE(&c1, seqlens_k, tsr_layout_dense(TSR_I64, 2, 1, 1, 1), lengths);
  case_run(&c1);
  second_from_first();
  scatter(table, 5);
  CASE_GIVE(&c2, block_table, tsr_layout_dense(TSR_I32, 2, 4, 1, 1), table);
  c2.desc.block_table.stride[0] = 5;
  case_run(&c2);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
  assert_memory_equal(c1.lse, c2.lse, sizeof(c1.lse));
  memset(&c2.desc.block_table, 0, sizeof(c2.desc.block_table));
  memset(&c2.desc.seqlens_k, 0, sizeof(c2.desc.seqlens_k));
  CASE_GIVE(&c2, kv_indptr, tsr_layout_dense(TSR_I32, 3, 1, 1, 1), indptr);
  CASE_GIVE(&c2, kv_indices, tsr_layout_dense(TSR_I32, 6, 1, 1, 1), indices);
  CASE_GIVE(&c2, last_page_len, tsr_layout_dense(TSR_I32, 2, 1, 1, 1), last);
  case_run(&c2);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
}

static void test_sequence_without_pages(void **state) {
  static const int32_t indptr[3] = {0, 0, 2}, indices[2] = {1, 0}, last[2] = {0, 3};
  (void)state;
  case_init(&c1, 2, 1, 3, 1, 1, 2, 2);
  c1.desc.k.shape[0] = c1.desc.v.shape[0] = 2;
  CASE_GIVE(&c1, kv_indptr, tsr_layout_dense(TSR_I32, 3, 1, 1, 1), indptr);
  CASE_GIVE(&c1, kv_indices, tsr_layout_dense(TSR_I32, 2, 1, 1, 1), indices);
  CASE_GIVE(&c1, last_page_len, tsr_layout_dense(TSR_I32, 2, 1, 1, 1), last);
  case_run(&c1);
  assert_true(c1.o[0] == 0.0 && c1.o[1] == 0.0 && c1.lse[0] == -(double)INFINITY);
  assert_true(c1.o[2] != 0.0 && isfinite(c1.lse[1]));
}

static void test_one_length_for_all(void **state) {
  static const int32_t length = 3;
  (void)state;
  case_init(&c1, 3, 2, 3, 1, 1, 2, 2);
  case_run(&c1);
  second_from_first();
  c2.desc.k = tsr_layout_dense(TSR_F32, 3, 5, 1, 2);
  c2.desc.v = tsr_layout_dense(TSR_F32, 3, 5, 1, 2);
  c2.desc.k.stride[0] = c2.desc.v.stride[0] = 6;
  CASE_GIVE(&c2, seqlens_k, tsr_layout_dense(TSR_I32, 3, 1, 1, 1), &length);
  c2.desc.seqlens_k.stride[0] = 0;
  case_run(&c2);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
}

static void test_v_in_k(void **state) {
  (void)state;
  case_init(&c1, 2, 3, 5, 4, 1, 8, 6);
  for (int64_t n = 0; n < 2 * 5 * 6; n++) {
    c1.v[n] = c1.k[n / 6 * 8 + n % 6];
  }
  case_run(&c1);
  second_from_first();
  c2.desc.flags |= TSR_V_IN_K;
  c2.args.v = tsr_buffer_in(NULL);
  case_run(&c2);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
}

/* ---- Quantised --------------------------------------------------------------------------------- */

static float scales[4][256];
static unsigned char codes[2][4096];

/* x = scale * (code - zero), written here once more from the definition; groups of 4 channels. */
static void dequantise(float *x, tsr_dtype dtype, const unsigned char *data, const float *scale, const float *zero,
                       int64_t rows, int64_t d) {
  for (int64_t n = 0; n < rows * d; n++) {
    const int64_t group = n / d * (d / 4) + n % d / 4;
    double code = 0.0;
    if (dtype == TSR_U4) {
      code = n % 2 == 0 ? data[n / 2] % 16 : data[n / 2] / 16;
    } else if (dtype == TSR_I8) {
      code = data[n] < 128 ? data[n] : data[n] - 256;
    } else {
      code = tsr_decode(dtype, data, n);
    }
    x[n] = (float)((double)scale[group] * (code - (zero != NULL ? (double)zero[group] : dtype == TSR_U4 ? 8.0 : 0.0)));
  }
}

static void check_quantised(tsr_dtype dtype, int with_zero) {
  const int64_t rows = 2 * 7 * 2, d = 8, dv = 4;
  case_init(&c1, 2, 3, 7, 4, 2, d, dv);
  for (int n = 0; n < 4096; n++) {
    codes[0][n] = (unsigned char)(random_bits() & 0x77); /* no NaN in fp8 */
    codes[1][n] = (unsigned char)(random_bits() & 0x77);
  }
  for (int t = 0; t < 4; t++) {
    for (int n = 0; n < 256; n++) { /* few bits, so that f32 holds each product */
      scales[t][n] = (float)(1 + random_bits() % 7) * (dtype == TSR_F8E5M2 ? 0x1p-14f : 0x1p-6f);
    }
  }
  dequantise(c1.k, dtype, codes[0], scales[0], with_zero ? scales[1] : NULL, rows, d);
  dequantise(c1.v, dtype, codes[1], scales[2], with_zero ? scales[3] : NULL, rows, dv);
  case_run(&c1);
  second_from_first();
  CASE_GIVE(&c2, k, tsr_layout_dense(dtype, 2, 7, 2, d), codes[0]);
  CASE_GIVE(&c2, v, tsr_layout_dense(dtype, 2, 7, 2, dv), codes[1]);
  CASE_GIVE(&c2, k_scale, tsr_layout_dense(TSR_F32, 2, 7, 2, d / 4), scales[0]);
  CASE_GIVE(&c2, v_scale, tsr_layout_dense(TSR_F32, 2, 7, 2, dv / 4), scales[2]);
  if (with_zero) {
    CASE_GIVE(&c2, k_zero, tsr_layout_dense(TSR_F32, 2, 7, 2, d / 4), scales[1]);
    CASE_GIVE(&c2, v_zero, tsr_layout_dense(TSR_F32, 2, 7, 2, dv / 4), scales[3]);
  }
  case_run(&c2);
  /* c1's k and v are in f32, which is exact but for f8e5m2's wide range less a zero */
  case_same(&c1, &c2, dtype == TSR_F8E5M2 && with_zero ? 1e-5 : 1e-13);
}

static void test_quantised(void **state) {
  (void)state;
  for (int with_zero = 0; with_zero < 2; with_zero++) {
    check_quantised(TSR_I8, with_zero);
    check_quantised(TSR_U4, with_zero);
    check_quantised(TSR_F8E4M3, with_zero);
    check_quantised(TSR_F8E5M2, with_zero);
  }
}

static void test_broadcast_scale_and_q_descale(void **state) {
  static const float k_scale[2] = {0.5f, 2.0f}, v_scale = 4.0f, q_descale[4] = {0.25f, 1.0f, 2.0f, 0.5f};
  static unsigned char q8[4096];
  (void)state;
  case_init(&c1, 2, 3, 5, 4, 2, 4, 4);
  for (int64_t n = 0; n < 4096; n++) {
    q8[n] = (unsigned char)(random_bits() & 0xb7);
    codes[0][n] = (unsigned char)(random_bits() & 0xb7);
    codes[1][n] = (unsigned char)(random_bits() & 0xb7);
  }
  for (int64_t n = 0; n < 2 * 3 * 4 * 4; n++) { /* q [b][s][h][d], a descale for each kv head */
    c1.q[n] = (float)tsr_decode(TSR_F8E4M3, q8, n) * q_descale[n / 48 * 2 + n / 4 % 4 / 2];
  }
  for (int64_t n = 0; n < 2 * 5 * 2 * 4; n++) {
    c1.k[n] = (float)tsr_decode(TSR_F8E4M3, codes[0], n) * k_scale[n / 4 % 2];
    c1.v[n] = (float)tsr_decode(TSR_F8E4M3, codes[1], n) * v_scale;
  }
  case_run(&c1);
  second_from_first();
  CASE_GIVE(&c2, q, tsr_layout_dense(TSR_F8E4M3, 2, 3, 4, 4), q8);
  CASE_GIVE(&c2, k, tsr_layout_dense(TSR_F8E4M3, 2, 5, 2, 4), codes[0]);
  CASE_GIVE(&c2, v, tsr_layout_dense(TSR_F8E4M3, 2, 5, 2, 4), codes[1]);
  CASE_GIVE(&c2, q_descale, tsr_layout_dense(TSR_F32, 2, 2, 1, 1), q_descale);
  CASE_GIVE(&c2, k_scale, tsr_layout_dense(TSR_F32, 1, 1, 2, 1), k_scale);
  CASE_GIVE(&c2, v_scale, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &v_scale);
  case_run(&c2);
  case_same(&c1, &c2, 1e-14);
  c2.out.mode = TSR_REFERENCE_PLAIN; /* P in e4m3: within its 2^-4, and not exact */
  case_run(&c2);
  for (int64_t n = 0; n < c1.num_o; n++) {
    assert_true(fabs(c1.o[n] - c2.o[n]) < 2048.0 / 16.0); /* |v| <= 15 * 2^k stays below 2048 here */
  }
  assert_memory_not_equal(c1.o, c2.o, sizeof(c1.o));
}

/* ---- Append ------------------------------------------------------------------------------------ */

static tsr_append_desc ad;
static tsr_append_args aa;

#define APPEND_GIVE(name, layout, memory) \
  do {                                    \
    ad.name = layout;                     \
    aa.name = tsr_buffer_in(memory);      \
  } while (0)

static void append(void) {
  tsr_error err;
  assert_int_equal(tsr__reference_append(&ad, &aa, &err), TSR_OK);
}

static void append_init(void) {
  ad = tsr_append_desc_init();
  aa = tsr_append_args_init();
}

/* Appending in two goes into shuffled pages, then attending, is attending over the whole. */
static void test_append_then_attend(void **state) {
  static const int32_t before[2] = {0, 2}, between[2] = {3, 5}, after[2] = {7, 9};
  static const int32_t table[8] = {6, 1, 4, 8, 0, 7, 2, 5};
  (void)state;
  case_init(&c1, 2, 2, 9, 2, 2, 4, 5);
  CASE_GIVE(&c1, seqlens_k, tsr_layout_dense(TSR_I32, 2, 1, 1, 1), after);
  case_run(&c1);
  second_from_first();
  memset(c2.k, 0xff, sizeof(c2.k));
  memset(c2.v, 0xff, sizeof(c2.v));
  append_init();
  APPEND_GIVE(k_cache, tsr_layout_dense(TSR_F32, PAGES, PAGE, 2, 4), c2.k);
  APPEND_GIVE(v_cache, tsr_layout_dense(TSR_F32, PAGES, PAGE, 2, 5), c2.v);
  APPEND_GIVE(block_table, tsr_layout_dense(TSR_I32, 2, 4, 1, 1), table);
  ad.batch = 2;
  { /* the two tokens that sequence 1 has already */
    const int32_t cu[3] = {0, 0, 2};
    APPEND_GIVE(k_new, tsr_layout_dense(TSR_F32, 1, 2, 2, 4), c1.k + 9 * 8);
    APPEND_GIVE(v_new, tsr_layout_dense(TSR_F32, 1, 2, 2, 5), c1.v + 9 * 10);
    APPEND_GIVE(cu_seqlens_new, tsr_layout_dense(TSR_I32, 3, 1, 1, 1), cu);
    append();
    memset(&ad.cu_seqlens_new, 0, sizeof(ad.cu_seqlens_new));
  }
  for (int step = 0; step < 2; step++) { /* 3 and 4 tokens each: dense k_new, strides of the whole run */
    const int64_t done = step == 0 ? 0 : 3, count = step == 0 ? 3 : 4;
    APPEND_GIVE(k_new, tsr_layout_dense(TSR_F32, 2, count, 2, 4), c1.k + done * 8);
    APPEND_GIVE(v_new, tsr_layout_dense(TSR_F32, 2, count, 2, 5), c1.v + done * 10);
    ad.k_new.stride[0] = (9 + 2) * 8; /* sequence 1 begins at its token 2 */
    ad.v_new.stride[0] = (9 + 2) * 10;
    APPEND_GIVE(seqlens_k, tsr_layout_dense(TSR_I32, 2, 1, 1, 1), step == 0 ? before : between);
    append();
  }
  c2.desc.k = ad.k_cache;
  c2.desc.v = ad.v_cache;
  CASE_GIVE(&c2, block_table, ad.block_table, table);
  case_run(&c2);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
}

static void test_append_past_capacity(void **state) {
  static float cache_k[10], cache_v[10]; /* 3 rows of 2, and what must stay */
  static const float token[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  static const int32_t length = 2;
  (void)state;
  append_init();
  for (int n = 0; n < 10; n++) {
    cache_k[n] = cache_v[n] = -1.0f;
  }
  APPEND_GIVE(k_new, tsr_layout_dense(TSR_F32, 1, 2, 1, 2), token);
  APPEND_GIVE(v_new, tsr_layout_dense(TSR_F32, 1, 2, 1, 2), token);
  APPEND_GIVE(k_cache, tsr_layout_dense(TSR_F32, 1, 3, 1, 2), cache_k);
  APPEND_GIVE(v_cache, tsr_layout_dense(TSR_F32, 1, 3, 1, 2), cache_v);
  APPEND_GIVE(seqlens_k, tsr_layout_dense(TSR_I32, 1, 1, 1, 1), &length);
  append();
  assert_true(cache_k[3] == -1.0f && cache_k[4] == 1.0f && cache_k[5] == 2.0f && cache_v[5] == 2.0f);
  for (int n = 6; n < 10; n++) {
    assert_true(cache_k[n] == -1.0f && cache_v[n] == -1.0f);
  }
}

/* 3 tokens of 2 heads, D = 8, R = 4, bf16: against the rotation written out. */
static void test_rotary(void **state) {
  static unsigned char k_new[3 * 2 * 8 * 2], q[3 * 2 * 8 * 2], cache[8 * 2 * 8 * 2], v_cache[8 * 2 * 8 * 2];
  static float cos_sin[2][6 * 2];
  static const int32_t positions[3] = {5, 0, 3}, length = 4;
  (void)state;
  for (int64_t n = 0; n < 48; n++) {
    tsr_encode(TSR_BF16, k_new, n, (double)random_value());
    tsr_encode(TSR_BF16, q, n, tsr_decode(TSR_BF16, k_new, n));
  }
  random_fill(cos_sin[0], 12);
  random_fill(cos_sin[1], 12);
  for (uint32_t flags = 0; flags <= TSR_APPEND_INTERLEAVED; flags++) {
    for (int with_positions = 0; with_positions < 2; with_positions++) {
      append_init();
      ad.flags = flags;
      ad.rotary_dim = 4;
      APPEND_GIVE(k_new, tsr_layout_dense(TSR_BF16, 1, 3, 2, 8), k_new);
      APPEND_GIVE(v_new, tsr_layout_dense(TSR_BF16, 1, 3, 2, 8), k_new);
      APPEND_GIVE(k_cache, tsr_layout_dense(TSR_BF16, 1, 8, 2, 8), cache);
      APPEND_GIVE(v_cache, tsr_layout_dense(TSR_BF16, 1, 8, 2, 8), v_cache);
      APPEND_GIVE(seqlens_k, tsr_layout_dense(TSR_I32, 1, 1, 1, 1), &length);
      APPEND_GIVE(cos, tsr_layout_dense(TSR_F32, 6, 2, 1, 1), cos_sin[0]);
      APPEND_GIVE(sin, tsr_layout_dense(TSR_F32, 6, 2, 1, 1), cos_sin[1]);
      APPEND_GIVE(q, tsr_layout_dense(TSR_BF16, 1, 3, 2, 8), q);
      APPEND_GIVE(q_out, tsr_layout_dense(TSR_BF16, 1, 3, 2, 8), q); /* in place */
      if (with_positions) {
        APPEND_GIVE(positions, tsr_layout_dense(TSR_I32, 1, 3, 1, 1), positions);
      }
      memcpy(q, k_new, sizeof(q));
      append();
      assert_memory_equal(q, cache + 4 * 2 * 8 * 2, sizeof(q));           /* the same rule for both */
      assert_memory_equal(v_cache + 4 * 2 * 8 * 2, k_new, sizeof(k_new)); /* v is never turned */
      for (int64_t n = 0; n < 48; n++) {
        const int64_t t = n / 16, c = n % 8, pair = flags != 0 ? c / 2 : c % 2, second = flags != 0 ? c % 2 : c / 2;
        const int64_t at = n - c, x_at = flags != 0 ? pair * 2 : pair, y_at = flags != 0 ? pair * 2 + 1 : pair + 2;
        const int64_t angle = with_positions ? positions[t] : length + t;
        unsigned char want[2];
        if (c >= 4 || angle >= 6) {
          assert_memory_equal(q + 2 * n, k_new + 2 * n, 2);
          continue;
        }
        const float x = (float)tsr_decode(TSR_BF16, k_new, at + x_at),
                    y = (float)tsr_decode(TSR_BF16, k_new, at + y_at);
        const float cs = cos_sin[0][angle * 2 + pair], sn = cos_sin[1][angle * 2 + pair];
        const volatile float a = second ? x * sn : x * cs, b = second ? y * cs : y * sn;
        tsr_encode(TSR_BF16, want, 0, (double)(second ? a + b : a - b));
        assert_memory_equal(q + 2 * n, want, 2);
      }
    }
  }
}

/* Rotary rounds to k's own dtype, and then the cache quantises: as if the turned k had been given. */
static void test_rotary_then_quantise(void **state) {
  static unsigned char k_new[4 * 16 * 2], turned[4 * 16 * 2], plain[4 * 16 * 2], cache[2][4 * 16];
  static float cos_sin[2][4 * 8], scale[2][4 * 2];
  (void)state;
  for (int64_t n = 0; n < 64; n++) {
    tsr_encode(TSR_BF16, k_new, n, (double)random_value());
  }
  random_fill(cos_sin[0], 32);
  random_fill(cos_sin[1], 32);
  for (int pass = 0; pass < 3; pass++) { /* k turned and kept; turned and quantised; the first quantised */
    append_init();
    APPEND_GIVE(k_new, tsr_layout_dense(TSR_BF16, 1, 4, 1, 16), pass == 2 ? turned : k_new);
    APPEND_GIVE(v_new, tsr_layout_dense(TSR_BF16, 1, 4, 1, 16), k_new);
    APPEND_GIVE(v_cache, tsr_layout_dense(TSR_BF16, 1, 4, 1, 16), plain);
    if (pass == 0) {
      APPEND_GIVE(k_cache, tsr_layout_dense(TSR_BF16, 1, 4, 1, 16), turned);
    } else {
      APPEND_GIVE(k_cache, tsr_layout_dense(TSR_I8, 1, 4, 1, 16), cache[pass - 1]);
      APPEND_GIVE(k_scale, tsr_layout_dense(TSR_F32, 1, 4, 1, 2), scale[pass - 1]);
    }
    if (pass < 2) {
      APPEND_GIVE(cos, tsr_layout_dense(TSR_F32, 4, 8, 1, 1), cos_sin[0]);
      APPEND_GIVE(sin, tsr_layout_dense(TSR_F32, 4, 8, 1, 1), cos_sin[1]);
    }
    append();
  }
  assert_memory_equal(cache[0], cache[1], sizeof(cache[0]));
  assert_memory_equal(scale[0], scale[1], sizeof(scale[0]));
}

/* Dynamic scales: amax / largest code, and every value within half a step of it. */
static void test_quantising_append(void **state) {
  static const struct {
    tsr_dtype dtype;
    double top, step; /* step: relative to the scale, of the largest value */
  } kinds[4] = {{TSR_I8, 127.0, 0.5}, {TSR_U4, 7.0, 0.5}, {TSR_F8E4M3, 448.0, 16.0}, {TSR_F8E5M2, 57344.0, 4096.0}};
  static unsigned char cache[2][256];
  static float scale[2][64];
  (void)state;
  for (int n = 0; n < 4; n++) {
    case_init(&c1, 1, 1, 3, 2, 2, 8, 8);
    memset(c1.k, 0, 4 * sizeof(float)); /* a group of zeros: scale 1 */
    append_init();
    APPEND_GIVE(k_new, tsr_layout_dense(TSR_F32, 1, 3, 2, 8), c1.k);
    APPEND_GIVE(v_new, tsr_layout_dense(TSR_F32, 1, 3, 2, 8), c1.v);
    APPEND_GIVE(k_cache, tsr_layout_dense(kinds[n].dtype, 1, 3, 2, 8), cache[0]);
    APPEND_GIVE(v_cache, tsr_layout_dense(kinds[n].dtype, 1, 3, 2, 8), cache[1]);
    APPEND_GIVE(k_scale, tsr_layout_dense(TSR_F32, 1, 3, 2, 2), scale[0]);
    APPEND_GIVE(v_scale, tsr_layout_dense(TSR_F32, 1, 3, 2, 1), scale[1]);
    append();
    assert_true(scale[0][0] == 1.0f);
    for (int64_t x = 0; x < 48; x++) {
      const double zero = kinds[n].dtype == TSR_U4 ? 8.0 : 0.0, s = (double)scale[0][x / 4];
      double amax = 0.0;
      assert_true(fabs(s * (tsr_decode(kinds[n].dtype, cache[0], x) - zero) - (double)c1.k[x]) <=
                  s * kinds[n].step * 1.0001);
      for (int64_t y = x / 8 * 8; y < x / 8 * 8 + 8; y++) {
        amax = fmax(amax, fabs((double)c1.v[y]));
      }
      assert_true(scale[1][x / 8] == (float)(amax / kinds[n].top));
    }
    memcpy(scale[1], scale[0], sizeof(scale[0])); /* static: the same scales give the same codes, and are only read */
    memcpy(cache[1], cache[0], sizeof(cache[0]));
    memset(cache[0], 0, sizeof(cache[0]));
    ad.flags = TSR_APPEND_STATIC_SCALES;
    APPEND_GIVE(v_cache, tsr_layout_dense(TSR_F32, 1, 3, 2, 8), c2.v);
    memset(&ad.v_scale, 0, sizeof(ad.v_scale));
    append();
    assert_memory_equal(cache[0], cache[1], (size_t)(48 * tsr_dtype_bits(kinds[n].dtype) / 8));
    assert_memory_equal(scale[0], scale[1], sizeof(scale[0]));
    assert_memory_equal(c2.v, c1.v, 48 * sizeof(float));
  }
}

/* ---- Merge ------------------------------------------------------------------------------------- */

static tsr_merge_desc md;
static tsr_merge_args ma;
static float part_o[4][512], part_lse[4][64];
static tsr_buffer part_o_buffers[4], part_lse_buffers[4];
static double merged_o[512], merged_lse[64];

static void merge(int64_t n) {
  tsr_error err;
  md.num_partials = n;
  for (int i = 0; i < 4; i++) {
    part_o_buffers[i] = tsr_buffer_in(part_o[i]);
    part_lse_buffers[i] = tsr_buffer_in(part_lse[i]);
  }
  ma.partial_o = part_o_buffers;
  ma.partial_lse = part_lse_buffers;
  assert_int_equal(tsr__reference_merge(&md, &ma, merged_o, merged_lse, &err), TSR_OK);
}

static void merge_init(int64_t b, int64_t s, int64_t h, int64_t dv) {
  md = tsr_merge_desc_init();
  ma = tsr_merge_args_init();
  md.partial_o = md.o = tsr_layout_dense(TSR_F32, b, s, h, dv);
  md.partial_lse = md.lse = tsr_layout_dense(TSR_F32, b, h, s, 1);
}

/* Keys 0..3, 4..9 and 10..11 apart, then joined, with the sink once: the whole, to the f32 of the partials. */
static void test_merge_of_splits(void **state) {
  static const int64_t cut[4] = {0, 4, 10, 12};
  static const float sinks[2] = {0.75f, -INFINITY};
  (void)state;
  case_init(&c1, 2, 3, 12, 2, 1, 4, 5);
  CASE_GIVE(&c1, sink, tsr_layout_dense(TSR_F32, 2, 1, 1, 1), sinks);
  case_run(&c1);
  merge_init(2, 3, 2, 5);
  md.sink = c1.desc.sink;
  ma.sink = c1.args.sink;
  second_from_first();
  memset(&c2.desc.sink, 0, sizeof(c2.desc.sink));
  for (int n = 0; n < 3; n++) {
    c2.desc.k.shape[1] = c2.desc.v.shape[1] = cut[n + 1] - cut[n];
    c2.args.k = tsr_buffer_in(c2.k + cut[n] * 4);
    c2.args.v = tsr_buffer_in(c2.v + cut[n] * 5);
    case_run(&c2);
    for (int64_t x = 0; x < c2.num_o; x++) {
      part_o[n][x] = (float)c2.o[x];
      part_lse[n][x % c2.num_lse] = (float)c2.lse[x % c2.num_lse];
    }
  }
  merge(3);
  for (int64_t x = 0; x < c1.num_o; x++) {
    case_near(merged_o[x], c1.o[x], 1e-6);
  }
  for (int64_t x = 0; x < c1.num_lse; x++) {
    case_near(merged_lse[x], c1.lse[x], 1e-6);
  }
}

static void test_merge_of_empty(void **state) {
  static const float sink = 0.5f;
  (void)state;
  merge_init(1, 2, 1, 3);
  for (int n = 0; n < 4; n++) { /* 3 empty partials whose o is NaN, and one that is not */
    for (int x = 0; x < 6; x++) {
      part_o[n][x] = n == 2 ? random_value() : NAN;
    }
    part_lse[n][0] = part_lse[n][1] = n == 2 ? random_value() : -INFINITY;
  }
  merge(4);
  for (int x = 0; x < 6; x++) {
    assert_true(merged_o[x] == (double)part_o[2][x]);
  }
  assert_true(merged_lse[0] == (double)part_lse[2][0] && merged_lse[1] == (double)part_lse[2][1]);
  merge(2);
  assert_true(merged_o[0] == 0.0 && merged_o[5] == 0.0 && merged_lse[1] == -(double)INFINITY);
  md.sink = tsr_layout_dense(TSR_F32, 1, 1, 1, 1);
  ma.sink = tsr_buffer_in(&sink);
  merge(2);
  assert_true(merged_o[0] == 0.0 && merged_o[5] == 0.0 && merged_lse[1] == 0.5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_paged),
      cmocka_unit_test(test_sequence_without_pages),
      cmocka_unit_test(test_one_length_for_all),
      cmocka_unit_test(test_v_in_k),
      cmocka_unit_test(test_quantised),
      cmocka_unit_test(test_broadcast_scale_and_q_descale),
      cmocka_unit_test(test_append_then_attend),
      cmocka_unit_test(test_append_past_capacity),
      cmocka_unit_test(test_rotary),
      cmocka_unit_test(test_rotary_then_quantise),
      cmocka_unit_test(test_quantising_append),
      cmocka_unit_test(test_merge_of_splits),
      cmocka_unit_test(test_merge_of_empty),
  };
  random_seed();
  return cmocka_run_group_tests_name("reference_cache", tests, NULL, NULL);
}
