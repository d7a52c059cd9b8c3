/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's forward beyond masks: element access, dropout, the plain mode, the stop hook. */
#include "reference_case.h"

static attention_case c1, c2, c3;

/* The short ways to decode 16-bit floats against the general one, over every pattern and at odd addresses. */
static void test_element_access(void **state) {
  static unsigned char memory[1 + 65536 * 2];
  static double row[65536];
  static const tsr_dtype dtypes[2] = {TSR_F16, TSR_BF16};
  (void)state;
  for (int64_t n = 0; n < 65536; n++) {
    memory[1 + 2 * n] = (unsigned char)n;
    memory[2 + 2 * n] = (unsigned char)(n >> 8);
  }
  for (int t = 0; t < 2; t++) {
    const tsr_layout layout = tsr_layout_dense(dtypes[t], 1, 1, 1, 65536);
    const tsr_buffer buffer = {memory, 1};
    const tsr__ref_view view = tsr__ref_view_of(&layout, buffer);
    tsr__ref_row(&view, 0, 0, 0, 65536, row);
    for (int64_t n = 0; n < 65536; n++) {
      const double want = tsr_decode(dtypes[t], memory + 1, n), got = tsr__ref_at(&view, 0, 0, 0, n);
      assert_true(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want));
      assert_true(isnan(want) ? isnan(row[n]) : row[n] == want);
    }
  }
}

/* ---- Dropout --------------------------------------------------------------------------------- */

static void drop(attention_case *c, float p, uint8_t *mask) {
  c->desc.flags = TSR_DROPOUT;
  c->args.dropout_p = p;
  c->out.dropout_mask = mask;
  case_run(c);
}

static void test_dropout(void **state) {
  static uint8_t mask[2 * 2 * 16 * 16], again[2 * 2 * 16 * 16];
  const double keep = (double)(float)(1.0 / (1.0 - (double)0.48f));
  int64_t kept = 0;
  (void)state;
  case_init(&c1, 2, 16, 16, 2, 2, 4, 16);
  for (int n = 0; n < 2 * 16 * 2 * 16; n++) { /* v [b][j][h][j]: identity, so that o shows p */
    c1.v[n] = n / 32 % 16 == n % 16 ? 1.0f : 0.0f;
  }
  case_run(&c1);
  memcpy(&c2, &c1, sizeof(c1));
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  c2.args.seed = (uint64_t)random_bits() << 32 | random_bits();
  c2.args.offset = (uint64_t)random_bits() << 32 | random_bits();
  drop(&c2, 0.48f, mask);
  for (int64_t n = 0; n < 2 * 16 * 2 * 16; n++) {
    const int64_t j = n % 16, h = n / 16 % 2, i = n / 32 % 16, b = n / 512, bh = b * 2 + h;
    const uint32_t zero_key[2] = {(uint32_t)c2.args.seed, (uint32_t)(c2.args.seed >> 32)};
    const uint32_t zero[4] = {(uint32_t)c2.args.offset, (uint32_t)(c2.args.offset >> 32), 0, 0};
    const uint32_t counter[4] = {(uint32_t)j >> 2, (uint32_t)i, (uint32_t)bh, 0};
    uint32_t subkey[4], words[4];
    tsr__ref_philox(zero, zero_key, subkey);
    tsr__ref_philox(counter, subkey, words);
    assert_int_equal(mask[(bh * 16 + i) * 16 + j], words[j % 4] >= (uint32_t)((double)0.48f * 4294967296.0));
    case_near(c2.o[n], mask[(bh * 16 + i) * 16 + j] ? keep * c1.o[n] : 0.0, 1e-15);
    kept += mask[n];
  }
  assert_true(fabs((double)kept / 1024.0 - 0.52) < 0.1); /* 6.4 sigma */
  assert_memory_equal(c1.lse, c2.lse, sizeof(c1.lse));
  c3 = c2; /* the same seed and offset from memory, then the next offset */
  c3.out.o = c3.o;
  c3.out.lse = c3.lse;
  {
    const int64_t rng[2] = {(int64_t)c2.args.seed, (int64_t)c2.args.offset};
    CASE_GIVE(&c3, rng_state, tsr_layout_dense(TSR_I64, 2, 1, 1, 1), rng);
    c3.args.seed = c3.args.offset = 0;
    drop(&c3, 0.48f, again);
    assert_memory_equal(mask, again, sizeof(mask));
  }
  c2.args.offset++;
  drop(&c2, 0.48f, again);
  assert_memory_not_equal(mask, again, sizeof(mask));
}

/* A pair is lost iff its word is below floor(p * 2^32): not at it, and not at what a rounded-up product would be. */
static void test_dropout_threshold(void **state) {
  static uint8_t mask[4096];
  uint32_t word = UINT32_MAX;
  int64_t at = 0;
  (void)state;
  case_init(&c1, 1, 64, 64, 1, 1, 1, 1);
  for (uint64_t seed = 0; word >= 1u << 22; seed++) { /* a word that, and whose half, f32 holds as a share of 2^32 */
    const uint32_t key[2] = {(uint32_t)seed, 0}, zero[4] = {0, 0, 0, 0};
    uint32_t subkey[4];
    c1.args.seed = seed;
    tsr__ref_philox(zero, key, subkey);
    for (int64_t n = 0; n < 4096 && word >= 1u << 22; n++) {
      const uint32_t counter[4] = {(uint32_t)(n % 64 / 4), (uint32_t)(n / 64), 0, 0};
      uint32_t words[4];
      tsr__ref_philox(counter, subkey, words);
      word = words[n % 4];
      at = n;
    }
  }
  drop(&c1, (float)((double)word * 0x1p-32), mask);
  assert_int_equal(mask[at], 1);
  drop(&c1, (float)(((double)word + 0.5) * 0x1p-32), mask);
  assert_int_equal(mask[at], 1);
  drop(&c1, (float)(((double)word + 1.0) * 0x1p-32), mask);
  assert_int_equal(mask[at], 0);
}

static void test_dropout_of_all_and_none(void **state) {
  static uint8_t mask[64];
  (void)state;
  case_init(&c1, 1, 4, 4, 1, 1, 2, 2);
  case_run(&c1);
  memcpy(&c2, &c1, sizeof(c1));
  c2.out.o = c2.o;
  c2.out.lse = c2.lse;
  drop(&c2, 0.0f, mask);
  assert_memory_equal(c1.o, c2.o, sizeof(c1.o));
  drop(&c2, 1.0f, mask);
  for (int64_t n = 0; n < c2.num_o; n++) {
    assert_true(c2.o[n] == 0.0);
  }
  assert_memory_equal(c1.lse, c2.lse, sizeof(c1.lse));
}

/* ---- Plain mode and the stop hook -------------------------------------------------------------- */

/* The yardstick errs by about the unit roundoff of its type: not by nothing, not by much more. */
static void test_plain(void **state) {
  static const tsr_dtype dtypes[3] = {TSR_F32, TSR_F16, TSR_BF16};
  static const double unit[3] = {0x1p-24, 0x1p-11, 0x1p-8};
  static unsigned char memory[3][CASE_MAX * 4];
  (void)state;
  for (int n = 0; n < 3; n++) {
    double worst = 0.0;
    case_init(&c1, 1, 8, 64, 2, 1, 16, 16);
    for (int64_t x = 0; x < 1024; x++) {
      tsr_encode(dtypes[n], memory[0], x, (double)c1.q[x]);
      tsr_encode(dtypes[n], memory[1], x, (double)c1.k[x]);
      tsr_encode(dtypes[n], memory[2], x, (double)c1.v[x]);
    }
    c1.desc.q.dtype = c1.desc.k.dtype = c1.desc.v.dtype = c1.desc.o.dtype = dtypes[n];
    c1.args.q = tsr_buffer_in(memory[0]);
    c1.args.k = tsr_buffer_in(memory[1]);
    c1.args.v = tsr_buffer_in(memory[2]);
    memcpy(&c2, &c1, sizeof(c1));
    c2.out.o = c2.o;
    c2.out.lse = c2.lse;
    c2.out.mode = TSR_REFERENCE_PLAIN;
    case_run(&c1);
    case_run(&c2);
    for (int64_t x = 0; x < c1.num_o; x++) {
      double rounded;
      unsigned char element[4];
      tsr_encode(dtypes[n], element, 0, c2.o[x]);
      rounded = tsr_decode(dtypes[n], element, 0);
      assert_true(rounded == c2.o[x]);
      worst = fmax(worst, fabs(c1.o[x] - c2.o[x]));
    }
    assert_true(worst > unit[n] / 16 && worst < unit[n] * 16);
  }
}

/* fp8: P goes to e4m3 after x256, so that 2^-10 survives. */
static void test_plain_fp8(void **state) {
  static unsigned char zeros[1024], ones[1024];
  (void)state;
  case_init(&c1, 1, 1, 1024, 1, 1, 1, 1);
  memset(ones, 0x38, sizeof(ones));
  CASE_GIVE(&c1, q, tsr_layout_dense(TSR_F8E4M3, 1, 1, 1, 1), zeros);
  CASE_GIVE(&c1, k, tsr_layout_dense(TSR_F8E4M3, 1, 1024, 1, 1), zeros);
  CASE_GIVE(&c1, v, tsr_layout_dense(TSR_F8E4M3, 1, 1024, 1, 1), ones);
  c1.out.mode = TSR_REFERENCE_PLAIN;
  case_run(&c1);
  assert_true(c1.o[0] == 1.0);
}

/* f16: a logit beyond 65504 is kept as f32 has it; the yardstick stays finite. */
static void test_plain_large_logits(void **state) {
  static unsigned char k[4], q[2], v[4];
  (void)state;
  case_init(&c1, 1, 1, 2, 1, 1, 1, 1);
  tsr_encode(TSR_F16, q, 0, 300.0);
  tsr_encode(TSR_F16, k, 0, 300.0);
  tsr_encode(TSR_F16, k, 1, 301.0);
  tsr_encode(TSR_F16, v, 0, 1.0);
  tsr_encode(TSR_F16, v, 1, 2.0);
  CASE_GIVE(&c1, q, tsr_layout_dense(TSR_F16, 1, 1, 1, 1), q);
  CASE_GIVE(&c1, k, tsr_layout_dense(TSR_F16, 1, 2, 1, 1), k);
  CASE_GIVE(&c1, v, tsr_layout_dense(TSR_F16, 1, 2, 1, 1), v);
  c1.desc.o.dtype = TSR_F16;
  c1.out.mode = TSR_REFERENCE_PLAIN;
  case_run(&c1);
  assert_true(c1.o[0] == 2.0 && c1.lse[0] == 90300.0);
}

static int32_t stop_at_third(void *user, int64_t done, int64_t total) {
  int64_t *calls = (int64_t *)user;
  assert_int_equal(done, *calls);
  assert_int_equal(total, 2 * 3 * 5);
  return ++*calls == 3;
}

static void test_stop(void **state) {
  int64_t calls = 0;
  tsr_error err;
  (void)state;
  case_init(&c1, 2, 5, 4, 3, 1, 2, 2);
  assert_int_equal(tsr__reference_attention(NULL, stop_at_third, &calls, &c1.desc, &c1.args, &c1.out, &err),
                   TSR_CANCELLED);
  assert_int_equal(err.status, TSR_CANCELLED);
  assert_int_equal(calls, 3);
}

/* What the public entry refuses of its own struct, before anything is computed. */
static void test_out_rules(void **state) {
  const int64_t rows[2] = {4, 0}, negative[2] = {4, -1}, beyond[2] = {4, 5};
  const struct {
    const char *field;
    int32_t mode, reserved;
    const int64_t *rows;
    int64_t num_rows;
  } wrong[] = {
      {"mode", 2, 0, NULL, 0},     {"mode", -1, 0, NULL, 0},     {"reserved", 0, 1, NULL, 0},
      {"num_rows", 0, 0, NULL, 1}, {"num_rows", 0, 0, rows, -1}, {"rows", 0, 0, negative, 2},
      {"rows", 0, 0, beyond, 2},
  };
  tsr_error err;
  (void)state;
  case_init(&c1, 1, 5, 4, 1, 1, 2, 2);
  for (size_t n = 0; n < sizeof(wrong) / sizeof(wrong[0]); n++) {
    c1.out.mode = wrong[n].mode;
    c1.out.reserved = wrong[n].reserved;
    c1.out.rows = wrong[n].rows;
    c1.out.num_rows = wrong[n].num_rows;
    c1.o[0] = case_poison;
    assert_int_equal(tsr_reference_attention(NULL, &c1.desc, &c1.args, &c1.out, &err), TSR_INVALID);
    assert_string_equal(err.field, wrong[n].field);
    assert_true(c1.o[0] == case_poison);
  }
  c1.out.rows = rows;
  c1.out.num_rows = 2;
  assert_int_equal(tsr_reference_attention(NULL, &c1.desc, &c1.args, &c1.out, &err), TSR_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_element_access),
      cmocka_unit_test(test_dropout),
      cmocka_unit_test(test_dropout_threshold),
      cmocka_unit_test(test_dropout_of_all_and_none),
      cmocka_unit_test(test_plain),
      cmocka_unit_test(test_plain_fp8),
      cmocka_unit_test(test_plain_large_logits),
      cmocka_unit_test(test_stop),
      cmocka_unit_test(test_out_rules),
  };
  random_seed();
  return cmocka_run_group_tests_name("reference_modes", tests, NULL, NULL);
}
