/* SPDX-License-Identifier: Apache-2.0 */
/* common/device/numeric.h, the bit tricks of the kernels, against common/dtype.c, the arithmetic of the oracle: the
 * same value for every 8- and 16-bit pattern, the same bits for every f32 that could show a difference. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/dtype.h"
#include "common/kernel.h"
#include "random.h"

static const struct {
  tsr_dtype dtype;
  uint32_t patterns;
  float (*decode)(tsr_u32);
  tsr_u32 (*encode)(float);
} types[] = {{TSR_F16, 65536, tsr_f16_to_f32, tsr_f32_to_f16},
             {TSR_BF16, 65536, tsr_bf16_to_f32, tsr_f32_to_bf16},
             {TSR_F8E4M3, 256, tsr_f8e4m3_to_f32, tsr_f32_to_f8e4m3},
             {TSR_F8E5M2, 256, tsr_f8e5m2_to_f32, tsr_f32_to_f8e5m2}};
enum { NUM_TYPES = 4 };

static void check_encode(uint32_t bits) {
  const float x = tsr_as_f32(bits);
  for (int t = 0; t < NUM_TYPES; t++) {
    const uint64_t want = tsr__dtype_encode_bits(types[t].dtype, (double)x);
    if (types[t].encode(x) != want) {
      fail_msg("%s of %08x: %x, not %x", tsr_dtype_name(types[t].dtype), bits, types[t].encode(x), (unsigned)want);
    }
  }
}

static void every_pattern_decodes_alike(void **state) {
  (void)state;
  for (int t = 0; t < NUM_TYPES; t++) {
    for (uint32_t p = 0; p < types[t].patterns; p++) {
      const double want = tsr__dtype_decode_bits(types[t].dtype, p), got = (double)types[t].decode(p);
      if (isnan(want) ? !isnan(got) : got != want || signbit(got) != signbit(want)) {
        fail_msg("%s %x: %g, not %g", tsr_dtype_name(types[t].dtype), p, got, want);
      }
    }
  }
}

/* A value of the type comes back as its own bits, a NaN as the quiet one with the same sign. */
static void every_pattern_comes_back(void **state) {
  static const uint32_t quiet[NUM_TYPES] = {0x7e00, 0x7fc0, 0x7f, 0x7e};
  (void)state;
  for (int t = 0; t < NUM_TYPES; t++) {
    const uint32_t sign = types[t].patterns / 2;
    for (uint32_t p = 0; p < types[t].patterns; p++) {
      const float x = types[t].decode(p);
      const int saturates = isinf(x) && types[t].dtype == TSR_F8E5M2;
      assert_int_equal(types[t].encode(x), x != x ? quiet[t] | (p & sign) : saturates ? 0x7bu | (p & sign) : p);
      assert_int_equal(types[t].encode(x), tsr__dtype_encode_bits(types[t].dtype, (double)x));
    }
  }
}

/* Every upper half of an f32, with lower halves next to where 13 to 21 bits are cut: all exponents, all ties of normal
 * results, infinities, NaN of all kinds. And every neighbour of a tie between two values of a type, subnormal or not.
 */
static void every_rounding_is_alike(void **state) {
  static const uint32_t low[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff};
  (void)state;
  for (uint32_t high = 0; high < 65536; high++) {
    for (size_t i = 0; i < sizeof(low) / sizeof(low[0]); i++) {
      check_encode(high << 16 | low[i]);
    }
  }
  for (int t = 0; t < NUM_TYPES; t++) {
    const uint32_t half = types[t].patterns / 2;
    for (uint32_t p = 0; p + 1 < half; p++) {
      const double a = tsr__dtype_decode_bits(types[t].dtype, p), b = tsr__dtype_decode_bits(types[t].dtype, p + 1);
      const uint32_t tie = tsr_as_u32((float)(a + (b - a) / 2));
      for (uint32_t bits = tie - 1; bits != tie + 2; bits++) { /* below 0 is a NaN: it will do as well */
        check_encode(bits);
        check_encode(bits ^ 0x80000000u);
      }
    }
  }
}

static void random_bits_are_alike(void **state) {
  (void)state;
  for (int n = 0; n < 1000000; n++) {
    check_encode((uint32_t)random_bits());
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_pattern_decodes_alike),
      cmocka_unit_test(every_pattern_comes_back),
      cmocka_unit_test(every_rounding_is_alike),
      cmocka_unit_test(random_bits_are_alike),
  };
  random_seed();
  return cmocka_run_group_tests_name("numeric", tests, NULL, NULL);
}
