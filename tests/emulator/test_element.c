/* SPDX-License-Identifier: Apache-2.0 */
/* common/device/simt/element.h: one at a time and eight at a time, every 8- and 16-bit pattern, against numeric.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/kernel.h"
#include "common/device/gpu.h"
#include "common/device/gpu_args.h"
#include "common/device/simt/element.h"

enum { COUNT = 65536 };

static _Alignas(16) uint8_t memory[COUNT * 4];

static uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

/* What element n is to be, from its pattern. */
static float expected(int type, int n) {
  uint16_t half;
  float word;
  switch (type) {
  case TSR_T_F32: memcpy(&word, memory + 4 * n, 4); return word;
  case TSR_T_F16: memcpy(&half, memory + 2 * n, 2); return tsr_f16_to_f32(half);
  case TSR_T_BF16: memcpy(&half, memory + 2 * n, 2); return tsr_bf16_to_f32(half);
  case TSR_T_F8E4M3: return tsr_f8e4m3_to_f32(memory[n]);
  case TSR_T_F8E5M2: return tsr_f8e5m2_to_f32(memory[n]);
  case TSR_T_U4: return (float)(n % 2 == 0 ? memory[n / 2] % 16 : memory[n / 2] / 16);
  default: return (float)(memory[n] < 128 ? memory[n] : memory[n] - 256);
  }
}

static void fill(int type) {
  for (int n = 0; n < COUNT; n++) {
    const uint16_t half = (uint16_t)n;
    const uint32_t word = (uint32_t)n * 65537u + 77u;
    if (type == TSR_T_F32) {
      memcpy(memory + 4 * n, &word, 4);
    } else if (type == TSR_T_F16 || type == TSR_T_BF16) {
      memcpy(memory + 2 * n, &half, 2);
    } else {
      memory[n] = (uint8_t)(n ^ n >> 8);
    }
  }
}

static void test_loads(void **state) {
  (void)state;
  for (int type = TSR_T_F32; type <= TSR_T_U4; type++) {
    fill(type);
    for (int n = 0; n < COUNT; n += 8) {
      float x[8];
      tsr_load8(memory, type, n, x);
      for (int k = 0; k < 8; k++) {
        assert_int_equal(bits_of(x[k]), bits_of(expected(type, n + k)));
        assert_int_equal(bits_of(tsr_load(memory, type, n + k)), bits_of(x[k]));
      }
    }
  }
}

/* What was loaded is stored as it was (NaN stay NaN); what lies between two elements goes to the nearer. */
static void test_stores(void **state) {
  static const int types[] = {TSR_T_F32, TSR_T_F16, TSR_T_BF16, TSR_T_F8E4M3, TSR_T_F8E5M2};
  (void)state;
  for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
    fill(types[t]);
    for (int n = 0; n < COUNT; n++) {
      const float x = expected(types[t], n);
      tsr_store(memory, types[t], n, x);
      if (x != x) {
        assert_true(expected(types[t], n) != expected(types[t], n));
      } else if (types[t] != TSR_T_F8E5M2 || x * 0.0f == 0.0f) { /* fp8 has no way to an infinity */
        assert_int_equal(bits_of(expected(types[t], n)), bits_of(x));
      }
    }
  }
  tsr_store(memory, TSR_T_BF16, 5, 1.0f + 0x1p-9f);
  assert_true(expected(TSR_T_BF16, 5) == 1.0f);
  tsr_store(memory, TSR_T_F16, 5, 65519.0f);
  assert_true(expected(TSR_T_F16, 5) == 65504.0f);
  tsr_store(memory, TSR_T_F8E4M3, 5, 1e9f);
  assert_true(expected(TSR_T_F8E4M3, 5) == 448.0f);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_loads), cmocka_unit_test(test_stores)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
