/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: every 8- and 16-bit pattern, the ties between neighbours, and random f32, against values formed here
 * from integers (decoding) and by a search among all values of the type (encoding). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/dtype.h"
#include "tessera/reference.h"
#include "random.h"

/* ---- What a pattern means, in units of the smallest subnormal ---------------------------------- */

typedef struct type {
  tsr_dtype dtype;
  int bits, man_bits;
  double unit;         /* the smallest subnormal */
  uint32_t num_finite; /* nonnegative patterns below it are finite, and ascend */
  uint32_t inf;        /* pattern of +infinity; 0: the type has none */
  int saturates;
} type;

static const type types[] = {
    {TSR_F16, 16, 10, 0x1p-24, 0x7c00, 0x7c00, 0},
    {TSR_BF16, 16, 7, 0x1p-133, 0x7f80, 0x7f80, 0},
    {TSR_F8E4M3, 8, 3, 0x1p-9, 0x7f, 0, 1},
    {TSR_F8E5M2, 8, 2, 0x1p-16, 0x7c, 0x7c, 1},
};
enum { NUM_TYPES = 4 };

/* Magnitude of a finite pattern: an integer significand shifted by the exponent. */
static double magnitude(const type *t, uint32_t pattern) {
  const uint32_t exp = pattern >> t->man_bits, man = pattern & ((1u << t->man_bits) - 1);
  double x = (double)(exp == 0 ? man : man + (1u << t->man_bits)) * t->unit;
  for (uint32_t n = 1; n < exp; n++) {
    x += x;
  }
  return x;
}

static int same(double a, double b) {
  return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

static void test_decode_every_pattern(void **state) {
  (void)state;
  for (int n = 0; n < NUM_TYPES; n++) {
    const type *t = &types[n];
    const uint32_t sign = 1u << (t->bits - 1);
    for (uint32_t pattern = 0; pattern < sign; pattern++) {
      const double want = pattern < t->num_finite            ? magnitude(t, pattern)
                          : t->inf != 0 && pattern == t->inf ? (double)INFINITY
                                                             : (double)NAN;
      assert_true(same(tsr__dtype_decode_bits(t->dtype, pattern), want));
      assert_true(same(tsr__dtype_decode_bits(t->dtype, pattern | sign), -want));
    }
  }
}

/* From the formats' own specifications. */
static void test_known_values(void **state) {
  static const struct {
    tsr_dtype dtype;
    uint32_t bits;
    double value;
  } known[] = {
      {TSR_F16, 0x3c00, 1.0},
      {TSR_F16, 0xc000, -2.0},
      {TSR_F16, 0x7bff, 65504.0},
      {TSR_F16, 0x0400, 0x1p-14},
      {TSR_F16, 0x0001, 0x1p-24},
      {TSR_F16, 0x3555, 0.333251953125},
      {TSR_BF16, 0x3f80, 1.0},
      {TSR_BF16, 0x4049, 3.140625},
      {TSR_BF16, 0x7f7f, 0x1.fep127},
      {TSR_BF16, 0x0080, 0x1p-126},
      {TSR_BF16, 0x0001, 0x1p-133},
      {TSR_F8E4M3, 0x7e, 448.0},
      {TSR_F8E4M3, 0x38, 1.0},
      {TSR_F8E4M3, 0x08, 0x1p-6},
      {TSR_F8E4M3, 0x07, 0.875 * 0x1p-6},
      {TSR_F8E4M3, 0x01, 0x1p-9},
      {TSR_F8E4M3, 0xfe, -448.0},
      {TSR_F8E5M2, 0x7b, 57344.0},
      {TSR_F8E5M2, 0x3c, 1.0},
      {TSR_F8E5M2, 0x04, 0x1p-14},
      {TSR_F8E5M2, 0x03, 0.75 * 0x1p-14},
      {TSR_F8E5M2, 0x01, 0x1p-16},
      {TSR_F32, 0x3f800000, 1.0},
      {TSR_F32, 0x00000001, 0x1p-149},
      {TSR_F32, 0xff7fffff, -0x1.fffffep127},
  };
  (void)state;
  for (size_t n = 0; n < sizeof(known) / sizeof(known[0]); n++) {
    assert_true(tsr__dtype_decode_bits(known[n].dtype, known[n].bits) == known[n].value);
    assert_true(tsr__dtype_encode_bits(known[n].dtype, known[n].value) == known[n].bits);
  }
  assert_true(isnan(tsr__dtype_decode_bits(TSR_F8E4M3, 0x7f)));
  assert_true(isnan(tsr__dtype_decode_bits(TSR_F8E4M3, 0xff)));
  assert_true(isinf(tsr__dtype_decode_bits(TSR_F8E5M2, 0x7c)));
}

static void test_round_trip(void **state) {
  (void)state;
  for (int n = 0; n < NUM_TYPES; n++) {
    const type *t = &types[n];
    const uint32_t sign = 1u << (t->bits - 1);
    for (uint32_t pattern = 0; pattern < 2 * sign; pattern++) {
      const double x = tsr__dtype_decode_bits(t->dtype, pattern);
      const uint64_t back = tsr__dtype_encode_bits(t->dtype, x);
      if (isnan(x)) {
        assert_true(isnan(tsr__dtype_decode_bits(t->dtype, back)));
      } else if (isinf(x) && t->saturates) {
        assert_true(back == ((pattern & sign) | (t->num_finite - 1)));
      } else {
        assert_true(back == pattern);
      }
    }
  }
}

/* ---- Encoding --------------------------------------------------------------------------------- */

/* Nearest pattern by bisection over all finite values; a tie goes to the even pattern. x >= 0. */
static uint32_t nearest(const type *t, double x) {
  uint32_t lo = 0, hi = t->num_finite; /* hi: the value after the largest, as if the format went on */
  const uint32_t top = t->num_finite - 1;
  const double beyond = 2.0 * magnitude(t, top) - magnitude(t, top - 1);
  if (x >= beyond) {
    lo = top;
  }
  while (hi - lo > 1) {
    const uint32_t mid = (lo + hi) / 2;
    if (magnitude(t, mid) <= x) {
      lo = mid;
    } else {
      hi = mid;
    }
  }
  if (x < beyond) {
    const double below = x - magnitude(t, lo), above = (hi == t->num_finite ? beyond : magnitude(t, hi)) - x;
    lo = below < above || (below == above && lo % 2 == 0) ? lo : hi;
  } else {
    lo = hi;
  }
  return lo < t->num_finite ? lo : t->saturates ? top : t->inf;
}

static void check_encode(const type *t, double x) {
  const uint32_t want = nearest(t, x), sign = 1u << (t->bits - 1);
  const uint64_t got = tsr__dtype_encode_bits(t->dtype, x);
  if (got != want || tsr__dtype_encode_bits(t->dtype, -x) != (want | sign)) {
    fail_msg("%s: %a gives 0x%llx, nearest is 0x%x", tsr_dtype_name(t->dtype), x, (unsigned long long)got, want);
  }
}

static void test_encode_ties(void **state) {
  (void)state;
  for (int n = 0; n < NUM_TYPES; n++) {
    const type *t = &types[n];
    for (uint32_t pattern = 0; pattern < t->num_finite; pattern++) {
      const double x = magnitude(t, pattern);
      const double next = pattern + 1 < t->num_finite ? magnitude(t, pattern + 1) : 2 * x - magnitude(t, pattern - 1);
      const double middle = (x + next) / 2; /* exact */
      check_encode(t, middle);
      check_encode(t, nextafter(middle, 0.0));
      check_encode(t, nextafter(middle, INFINITY));
      check_encode(t, nextafter(x, INFINITY));
    }
  }
}

static void test_encode_random(void **state) {
  (void)state;
  for (int n = 0; n < NUM_TYPES; n++) {
    for (int round = 0; round < 200000; round++) {
      const int exp = (int)(random_bits() % 320) - 180;
      check_encode(&types[n], ldexp((double)(random_bits() >> 11), exp - 53));
    }
  }
}

static void test_encode_special(void **state) {
  (void)state;
  for (int n = 0; n < NUM_TYPES; n++) {
    const type *t = &types[n];
    const uint32_t end = t->saturates ? t->num_finite - 1 : t->inf, sign = 1u << (t->bits - 1);
    assert_true(tsr__dtype_encode_bits(t->dtype, (double)INFINITY) == end);
    assert_true(tsr__dtype_encode_bits(t->dtype, -(double)INFINITY) == (end | sign));
    assert_true(tsr__dtype_encode_bits(t->dtype, 1e300) == end);
    assert_true(tsr__dtype_encode_bits(t->dtype, -1e300) == (end | sign));
    assert_true(tsr__dtype_encode_bits(t->dtype, 5e-324) == 0);
    assert_true(tsr__dtype_encode_bits(t->dtype, -0.0) == sign);
    assert_true(isnan(tsr__dtype_decode_bits(t->dtype, tsr__dtype_encode_bits(t->dtype, (double)NAN))));
  }
}

/* ---- f32 -------------------------------------------------------------------------------------- */

static uint32_t bits_of(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof(bits));
  return bits;
}

static void test_f32(void **state) {
  static const double edges[] = {0x1.fffffefffffffp127,  0x1.ffffffp127,  1e39,       0x1p-150,
                                 0x1.0000000000001p-150, 0x1p-151,        0x1.8p-149, 0x1.000001p0,
                                 0x1.000003p0,           0x1.fffffffp-127};
  (void)state;
  for (int round = 0; round < 2000000; round++) {
    const uint32_t bits = (uint32_t)random_bits();
    float f;
    double x;
    memcpy(&f, &bits, sizeof(f));
    x = tsr__dtype_decode_bits(TSR_F32, bits);
    assert_true(same(x, (double)f));
    if (!isnan(f)) {
      assert_true(tsr__dtype_encode_bits(TSR_F32, x) == bits);
    }
    x = ldexp((double)(int64_t)random_bits(), (int)(random_bits() % 300) - 220);
    assert_true(tsr__dtype_encode_bits(TSR_F32, x) == bits_of((float)x));
  }
  for (size_t n = 0; n < sizeof(edges) / sizeof(edges[0]); n++) {
    assert_true(tsr__dtype_encode_bits(TSR_F32, edges[n]) == bits_of((float)edges[n]));
    assert_true(tsr__dtype_encode_bits(TSR_F32, -edges[n]) == bits_of((float)-edges[n]));
  }
  assert_true(isnan(tsr__dtype_decode_bits(TSR_F32, tsr__dtype_encode_bits(TSR_F32, (double)NAN))));
}

/* ---- Integers --------------------------------------------------------------------------------- */

static void test_integers(void **state) {
  static const struct {
    double x;
    int64_t i8, u4, u8, i32;
  } cases[] = {
      {0.5, 0, 0, 0, 0},
      {1.5, 2, 2, 2, 2},
      {2.5, 2, 2, 2, 2},
      {-0.5, 0, 0, 0, 0},
      {-1.5, -2, 0, 0, -2},
      {-2.5, -2, 0, 0, -2},
      {127.5, 127, 15, 128, 128},
      {-128.5, -128, 0, 0, -128},
      {-129.0, -128, 0, 0, -129},
      {15.5, 16, 15, 16, 16},
      {14.5, 14, 14, 14, 14},
      {255.5, 127, 15, 255, 256},
      {1e300, 127, 15, 255, INT32_MAX},
      {-1e300, -128, 0, 0, INT32_MIN},
      {INFINITY, 127, 15, 255, INT32_MAX},
      {NAN, 0, 0, 0, 0},
  };
  (void)state;
  for (int code = -128; code < 128; code++) {
    const int8_t byte = (int8_t)code;
    assert_true(tsr_decode(TSR_I8, &byte, 0) == (double)code);
    assert_true(tsr__dtype_encode_bits(TSR_I8, (double)code) == (uint8_t)byte);
  }
  for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
    assert_true(tsr__dtype_encode_bits(TSR_I8, cases[n].x) == (uint8_t)(int8_t)cases[n].i8);
    assert_true(tsr__dtype_encode_bits(TSR_U4, cases[n].x) == (uint64_t)cases[n].u4);
    assert_true(tsr__dtype_encode_bits(TSR_U8, cases[n].x) == (uint64_t)cases[n].u8);
    assert_true(tsr__dtype_encode_bits(TSR_I32, cases[n].x) == (uint32_t)(int32_t)cases[n].i32);
  }
  assert_true(tsr__dtype_encode_bits(TSR_I64, 1e300) == (uint64_t)INT64_MAX);
  assert_true(tsr__dtype_encode_bits(TSR_I64, -1e300) == (uint64_t)INT64_MIN);
  assert_true(tsr__dtype_encode_bits(TSR_I64, -3.0) == (uint64_t)-INT64_C(3));
  assert_true(tsr__dtype_decode_bits(TSR_I64, (uint64_t)-INT64_C(3)) == -3.0);
  assert_true(tsr__dtype_decode_bits(TSR_I32, 0x80000000u) == -2147483648.0);
}

/* ---- Memory ------------------------------------------------------------------------------------ */

static void test_nibbles(void **state) {
  unsigned char data[4] = {0xa5, 0xa5, 0xa5, 0xa5};
  (void)state;
  assert_true(tsr_decode(TSR_U4, data, 2) == 5.0 && tsr_decode(TSR_U4, data, 3) == 10.0);
  for (int64_t n = 0; n < 8; n++) {
    for (int code = 0; code < 16; code++) {
      unsigned char want[4] = {0xa5, 0xa5, 0xa5, 0xa5};
      const int shift = n % 2 == 0 ? 0 : 4;
      memcpy(data, want, 4);
      want[n / 2] = (unsigned char)((want[n / 2] & (0xf0 >> shift)) | code << shift);
      tsr_encode(TSR_U4, data, n, (double)code);
      assert_memory_equal(data, want, 4);
      assert_true(tsr_decode(TSR_U4, data, n) == (double)code);
    }
  }
}

/* Elements at odd addresses; neighbours keep their bytes. */
static void test_unaligned(void **state) {
  static const tsr_dtype all[] = {TSR_F32, TSR_F16, TSR_BF16, TSR_F8E4M3, TSR_F8E5M2, TSR_I8, TSR_U8, TSR_I32, TSR_I64};
  (void)state;
  for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++) {
    unsigned char memory[64], before[64];
    const int64_t bytes = tsr_dtype_bits(all[n]) / 8;
    for (size_t c = 0; c < sizeof(memory); c++) {
      memory[c] = before[c] = (unsigned char)random_bits();
    }
    tsr_encode(all[n], memory + 1, 3, 24.0);
    assert_true(tsr_decode(all[n], memory + 1, 3) == 24.0);
    assert_memory_equal(memory, before, (size_t)(1 + 3 * bytes));
    assert_memory_equal(memory + 1 + 4 * bytes, before + 1 + 4 * bytes, (size_t)(63 - 4 * bytes));
  }
}

static void test_names(void **state) {
  static const struct {
    tsr_dtype dtype;
    const char *name;
    int32_t bits;
    int is_fp8;
  } table[] = {
      {TSR_DTYPE_NONE, "none", 0, 0},
      {TSR_F32, "f32", 32, 0},
      {TSR_F16, "f16", 16, 0},
      {TSR_BF16, "bf16", 16, 0},
      {TSR_F8E4M3, "f8e4m3", 8, 1},
      {TSR_F8E5M2, "f8e5m2", 8, 1},
      {TSR_I8, "i8", 8, 0},
      {TSR_U4, "u4", 4, 0},
      {TSR_U8, "u8", 8, 0},
      {TSR_BIT, "bit", 1, 0},
      {TSR_I32, "i32", 32, 0},
      {TSR_I64, "i64", 64, 0},
      {-1, "?", 0, 0},
      {1000, "?", 0, 0},
  };
  (void)state;
  for (size_t n = 0; n < sizeof(table) / sizeof(table[0]); n++) {
    assert_string_equal(tsr_dtype_name(table[n].dtype), table[n].name);
    assert_int_equal(tsr_dtype_bits(table[n].dtype), table[n].bits);
    assert_int_equal(tsr__dtype_is_fp8(table[n].dtype), table[n].is_fp8);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_decode_every_pattern),
      cmocka_unit_test(test_known_values),
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_encode_ties),
      cmocka_unit_test(test_encode_random),
      cmocka_unit_test(test_encode_special),
      cmocka_unit_test(test_f32),
      cmocka_unit_test(test_integers),
      cmocka_unit_test(test_nibbles),
      cmocka_unit_test(test_unaligned),
      cmocka_unit_test(test_names),
  };
  random_seed();
  return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
