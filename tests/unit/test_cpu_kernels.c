/* SPDX-License-Identifier: Apache-2.0 */
/* The vector functions and micro-kernels of the cpu back end against plain C, compiled once per instruction set level:
 * every 16- and 8-bit pattern, sweeps of exp2 and tanh, products with values that are not finite around them. A level
 * that the machine lacks is skipped. */
#include <stdarg.h>
#include <setjmp.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/cpu/kernels/generic/dropout.h"
#include "backends/cpu/kernels/generic/load.h"
#include "backends/cpu/kernels/generic/pv.h"
#include "backends/cpu/kernels/generic/scores.h"
#include "backends/cpu/kernels/generic/softmax.h"
#include "backends/cpu/kernels/generic/store.h"
#include "random.h"
#include "tessera/cpu.h"

#define QUOTE2(x) #x
#define QUOTE(x) QUOTE2(x)

/* ---- Elementary functions ------------------------------------------------------------------------ */

static float lane0_exp2(float x, float c) {
  return vf_exp2_scaled(vf_all(x), vf_all(c), vf_all(-127.0f / c))[0];
}

static double ulps(double got, double exact) {
  int e;
  frexp(exact, &e);
  return fabs(got - exact) / ldexp(1.0, (e < -125 ? -125 : e) - 24);
}

static void exp2_is_exact_enough(void **state) {
#if defined(__FMA__) || defined(__aarch64__)
  const double product = 0.0;
#else
  const double product = 0.7; /* ulp of the result for each unit of an argument that is rounded to f32 */
#endif
  double worst = 0;
  (void)state;
  for (int n = 0; n < 400000; n++) {
    const float x = -(float)((double)(random_bits() >> 11) * 0x1p-53 * 125.0);
    const float c = n % 2 == 0 ? 1.0f : TSR_LOG2E;
    const double t = (double)x * (double)c;
    if (t > -125.5) {
      worst = fmax(worst, ulps((double)lane0_exp2(x, c), exp2(t)) + product * t);
    }
  }
  print_message("exp2: %.2f ulp\n", worst);
  assert_true(worst <= 1.5);
}

static void exp2_at_its_ends(void **state) {
  (void)state;
  for (float c = 1e-28f; c < 1e28f; c *= 3.7f) {
    assert_true(lane0_exp2(0.0f, c) == 1.0f);
    assert_true(lane0_exp2(-INFINITY, c) == 0.0f);
    assert_true(lane0_exp2(-FLT_MAX, 1.0f) == 0.0f);
    assert_true(lane0_exp2(-126.75f / c, c) == 0.0f); /* exactly, never a small number */
    assert_true(isnan(lane0_exp2(NAN, c)));
  }
  for (int n = 0; n <= 125; n++) {
    assert_true(lane0_exp2((float)-n, 1.0f) == ldexpf(1.0f, -n));
  }
}

static void tanh_is_exact_enough(void **state) {
  double worst = 0;
  (void)state;
  for (int n = 0; n < 400000; n++) {
    const float x = ldexpf((float)random_int(1, 1 << 24) * 0x1p-24f, (int)random_int(-30, 4));
    const float got = vf_tanh(vf_all(x))[0];
    worst = fmax(worst, ulps((double)got, tanh((double)x)));
    assert_true(vf_tanh(vf_all(-x))[VL - 1] == -got);
  }
  print_message("tanh: %.2f ulp\n", worst);
  assert_true(worst <= 3.0);
  assert_true(vf_tanh(vf_all(INFINITY))[0] == 1.0f && vf_tanh(vf_all(-INFINITY))[0] == -1.0f);
  assert_true(vf_tanh(vf_all(0.0f))[0] == 0.0f && isnan(vf_tanh(vf_all(NAN))[0]));
}

static void max_keeps_the_second_operands_nan(void **state) {
  (void)state;
  assert_true(vf_max(vf_all(1.0f), vf_all(2.0f))[0] == 2.0f);
  assert_true(vf_max(vf_all(2.0f), vf_all(1.0f))[0] == 2.0f);
  assert_true(isnan(vf_max(vf_all(1.0f), vf_all(NAN))[0]));
}

static void transposition(void **state) {
  float a[VL * VL];
  vf m[VL];
  (void)state;
  random_fill(a, VL * VL);
  for (int i = 0; i < VL; i++) {
    m[i] = vf_load(a + i * VL);
  }
  vf_transpose(m);
  for (int i = 0; i < VL * VL; i++) {
    assert_true(m[i % VL][i / VL] == a[i]);
  }
}

/* ---- Conversions ----------------------------------------------------------------------------------- */

static void expect_same(float got, float expected) {
  assert_true(isnan(expected) ? isnan(got) : memcmp(&got, &expected, sizeof(got)) == 0);
}

/* Every pattern of a type, in each lane, against the scalar text of common/device. */
static void decode_all(tsr_dtype t, int patterns, float (*scalar)(tsr_u32)) {
  for (int p = 0; p < patterns; p++) {
    unsigned char bytes[2 * VL];
    vf x;
    for (int l = 0; l < VL; l++) {
      const unsigned code = (unsigned)(p + l) % (unsigned)patterns;
      bytes[l * element_bytes(t)] = (unsigned char)code;
      bytes[l * element_bytes(t) + element_bytes(t) - 1] = (unsigned char)(patterns > 256 ? code >> 8 : code);
    }
    x = vf_load_as(t, bytes);
    for (int l = 0; l < VL; l++) {
      expect_same(x[l], scalar((unsigned)(p + l) % (unsigned)patterns));
      expect_same(f32_at(t, bytes, l), scalar((unsigned)(p + l) % (unsigned)patterns));
    }
  }
}

static float i8_to_f32(tsr_u32 b) {
  return (float)(int8_t)b;
}

static void every_pattern_decodes(void **state) {
  (void)state;
  decode_all(TSR_F16, 65536, tsr_f16_to_f32);
  decode_all(TSR_BF16, 65536, tsr_bf16_to_f32);
  decode_all(TSR_F8E4M3, 256, tsr_f8e4m3_to_f32);
  decode_all(TSR_F8E5M2, 256, tsr_f8e5m2_to_f32);
  decode_all(TSR_I8, 256, i8_to_f32);
}

static void encode_one(float x) {
  uint16_t h[VL];
  vf_store_as(TSR_F16, h, vf_all(x));
  if (isnan(x)) {
    assert_true((h[0] & 0x7c00) == 0x7c00 && (h[0] & 0x3ff) != 0);
  } else {
    assert_int_equal(h[0], tsr_f32_to_f16(x));
  }
  vf_store_as(TSR_BF16, h, vf_all(x));
  if (isnan(x)) {
    assert_true((h[VL - 1] & 0x7f80) == 0x7f80 && (h[VL - 1] & 0x7f) != 0);
  } else {
    assert_int_equal(h[VL - 1], tsr_f32_to_bf16(x));
  }
}

/* Random bit patterns, and the neighbours of every 16-bit value and midpoint. */
static void rounding_to_16_bits(void **state) {
  (void)state;
  for (int n = 0; n < 300000; n++) {
    encode_one(tsr_as_f32((tsr_u32)random_bits()));
  }
  for (tsr_u32 h = 0; h < 65536; h++) {
    const tsr_u32 at[] = {tsr_as_u32(tsr_f16_to_f32(h)), (h << 16) | 0x8000u, h << 16};
    for (int e = 0; e < 3; e++) {
      encode_one(tsr_as_f32(at[e] - 1));
      encode_one(tsr_as_f32(at[e]));
      encode_one(tsr_as_f32(at[e] + 1));
      encode_one(tsr_as_f32(at[e] + 0x1000u)); /* half a unit of f16 */
    }
  }
}

/* Rows of any type, step and length through the tile loader, nothing beyond the row touched. */
static void rows_convert(void **state) {
  static const tsr_dtype types[] = {TSR_F32, TSR_F16, TSR_BF16, TSR_F8E4M3, TSR_F8E5M2, TSR_I8, TSR_U4};
  (void)state;
  for (int round = 0; round < 2000; round++) {
    const tsr_dtype t = types[random_below(sizeof(types) / sizeof(types[0]))];
    const int n = (int)random_int(1, 70), step = (int)random_int(1, 3), first = (int)random_int(0, 5);
    unsigned char bytes[4 * 256];
    float row[71];
    for (size_t i = 0; i < sizeof(bytes); i++) {
      bytes[i] = (unsigned char)random_bits();
    }
    row[n] = 1234.0f;
    row_to_f32(t, bytes, first, step, n, row);
    assert_true(row[n] == 1234.0f);
    for (int c = 0; c < n; c++) {
      expect_same(row[c], (float)tsr_decode(t, bytes, first + c * step));
    }
  }
}

/* ---- Tiles ------------------------------------------------------------------------------------------- */

enum { CHANNELS = 77 };

typedef struct tile {
  fwd_item f;
  float q[CHANNELS * TILE_Q], s[TILE_K * TILE_Q], o[(CHANNELS + 1) * TILE_Q];
  float k[TILE_K * (CHANNELS + 1)];
  float o_before[(CHANNELS + 1) * TILE_Q], s_before[TILE_K * TILE_Q];
} tile;

/* Random operands; what no result may depend on is NaN. */
static void fill_tile(tile *t, int channels, int keys, int vectors) {
  memset(t, 0xff, sizeof(*t));
  t->f.qt = t->q;
  t->f.s = t->s;
  t->f.ot = t->o;
  t->f.head_dim = t->f.head_dim_v = channels;
  t->f.vectors = vectors;
  t->f.masked = 0;
  for (int j = 0; j < keys; j++) {
    random_fill(t->k + j * (CHANNELS + 1), channels);
  }
  for (int j = 0; j < TILE_K; j++) {
    t->f.keys[j] = t->f.values[j] = t->k + (j < keys ? j : keys - 1) * (CHANNELS + 1);
  }
  for (int c = 0; c < channels; c++) {
    random_fill(t->q + c * TILE_Q, vectors * VL);
    random_fill(t->o + c * TILE_Q, vectors * VL);
  }
  for (int r = 0; r < vectors * VL; r++) {
    t->f.alpha[r] = 0.5f + 0.25f * random_value();
    t->f.tile_max[r] = -INFINITY;
  }
}

static void scores_are_dot_products(void **state) {
  tile *t = malloc(sizeof(*t));
  (void)state;
  for (int round = 0; round < 300; round++) {
    const int channels = (int)random_int(1, CHANNELS), keys = (int)random_int(1, TILE_K);
    const int vectors = (int)random_int(1, TILE_Q / VL), begin = (int)random_int(0, keys - 1) / SK * SK;
    const int end = (keys + SK - 1) / SK * SK;
    fill_tile(t, channels, keys, vectors);
    scores_tile(t->f.keys, t->q, channels, begin, end, vectors, t->s, t->f.tile_max);
    for (int r = 0; r < vectors * VL; r++) {
      float most = -INFINITY;
      for (int j = begin; j < keys; j++) {
        double exact = 0, size = 0;
        for (int c = 0; c < channels; c++) {
          const double term = (double)t->q[c * TILE_Q + r] * (double)t->k[j * (CHANNELS + 1) + c];
          exact += term;
          size += fabs(term);
        }
        assert_true(fabs((double)t->s[j * TILE_Q + r] - exact) <= size * (SUM_RUN + CHANNELS / SUM_RUN) * 0x1p-24);
        most = fmaxf(most, t->s[j * TILE_Q + r]);
      }
      assert_true(t->f.tile_max[r] == most);
    }
    for (int r = vectors * VL; r < TILE_Q; r++) {
      assert_true(isnan(t->s[begin * TILE_Q + r])); /* lanes that are not there are not written */
    }
  }
  free(t);
}

/* With and without masked values that are not finite. */
static void outputs_are_weighted_sums(void **state) {
  tile *t = malloc(sizeof(*t));
  (void)state;
  for (int round = 0; round < 300; round++) {
    const int channels = (int)random_int(1, CHANNELS), keys = (int)random_int(1, TILE_K), scrub = round % 2;
    const int vectors = (int)random_int(1, TILE_Q / VL), first = (int)random_int(0, keys - 1);
    const int hidden = (int)random_int(first, keys - 1);
    fill_tile(t, channels, keys, vectors);
    for (int j = first; j < keys; j++) {
      random_fill(t->s + j * TILE_Q, vectors * VL);
    }
    if (scrub) {
      mask_none(&t->f);
      for (int r = 0; r < vectors * VL; r++) {
        t->s[hidden * TILE_Q + r] = 0.0f;
        t->f.bits[hidden / 32][r] &= ~(1u << (hidden & 31));
      }
      for (int c = 0; c < channels; c++) {
        t->k[hidden * (CHANNELS + 1) + c] = c % 2 == 0 ? NAN : INFINITY;
      }
    }
    memcpy(t->o_before, t->o, sizeof(t->o));
    pv_tile(&t->f, first, keys, scrub);
    for (int c = 0; c < channels; c++) {
      for (int r = 0; r < vectors * VL; r++) {
        double exact = (double)t->o_before[c * TILE_Q + r] * (double)t->f.alpha[r], size = fabs(exact);
        for (int j = first; j < keys; j++) {
          const double term =
              scrub && j == hidden ? 0.0 : (double)t->s[j * TILE_Q + r] * (double)t->k[j * (CHANNELS + 1) + c];
          exact += term;
          size += fabs(term);
        }
        assert_true(fabs((double)t->o[c * TILE_Q + r] - exact) <= size * (SUM_KEYS + TILE_K / SUM_KEYS) * 0x1p-24);
      }
    }
    for (int r = 0; r < TILE_Q; r++) {
      assert_true(isnan(t->o[channels * TILE_Q + r]));
    }
  }
  free(t);
}

/* A row's bits do not depend on how many vectors share its block, nor on its lane. */
static void variants_agree_bit_for_bit(void **state) {
  tile *one = malloc(sizeof(*one)), *many = malloc(sizeof(*many));
  (void)state;
  for (int round = 0; round < 100; round++) {
    const int channels = (int)random_int(1, CHANNELS), keys = (int)random_int(1, TILE_K);
    const int vectors = TILE_Q / VL, v = random_below((size_t)vectors), end = (keys + SK - 1) / SK * SK;
    fill_tile(many, channels, keys, vectors);
    fill_tile(one, channels, keys, 1);
    memcpy(one->k, many->k, sizeof(one->k));
    for (int c = 0; c < channels; c++) {
      memcpy(one->q + c * TILE_Q, many->q + c * TILE_Q + v * VL, VL * sizeof(float));
      memcpy(one->o + c * TILE_Q, many->o + c * TILE_Q + v * VL, VL * sizeof(float));
    }
    for (tile *t = many;; t = one) {
      t->f.units.log2 = 0.2f;
      for (int r = 0; r < t->f.vectors * VL; r++) {
        t->f.m[r] = -1.0f;
        t->f.l[r] = 3.0f;
      }
      scores_tile(t->f.keys, t->q, channels, 0, end, t->f.vectors, t->s, t->f.tile_max);
      softmax_tile(&t->f, 0, keys);
      pv_tile(&t->f, 0, keys, 0);
      if (t == one) {
        break;
      }
    }
    for (int c = 0; c < channels; c++) {
      assert_memory_equal(one->o + c * TILE_Q, many->o + c * TILE_Q + v * VL, VL * sizeof(float));
    }
    assert_memory_equal(one->f.l, many->f.l + v * VL, VL * sizeof(float));
    assert_memory_equal(one->f.m, many->f.m + v * VL, VL * sizeof(float));
  }
  free(one);
  free(many);
}

static void philox_in_lanes(void **state) {
  (void)state;
  for (int round = 0; round < 1000; round++) {
    const tsr_philox_key key = {(tsr_u32)random_bits(), (tsr_u32)random_bits()};
    const tsr_u32 j4 = (tsr_u32)random_bits();
    const tsr_i64 b = random_int(0, 1 << 30);
    int64_t i[VL], h[VL];
    vu words[4];
    philox_lanes x;
    for (int l = 0; l < VL; l++) {
      i[l] = random_int(0, INT32_MAX);
      h[l] = random_int(0, 1 << 16);
    }
    x = philox_of_lanes(i, h, b, 70000);
    philox_words(&x, key, j4, words);
    for (int l = 0; l < VL; l++) {
      tsr_u32 r[4];
      tsr_dropout_words(key, (tsr_u64)b * 70000u + (tsr_u64)h[l], (tsr_u32)i[l], j4, r);
      for (int w = 0; w < 4; w++) {
        assert_int_equal(words[w][l], r[w]);
      }
    }
  }
}

/* Words of bit masks and byte masks, with the byte before and after the tile's own inaccessible by value. */
static void mask_words(void **state) {
  (void)state;
  for (int round = 0; round < 5000; round++) {
    tsr_u8 bits[16], bytes[64];
    const int at = (int)random_int(0, 60), n = (int)random_int(1, 32);
    uint32_t expected_bits = 0, expected_bytes = 0;
    for (int i = 0; i < 16; i++) {
      bits[i] = (tsr_u8)random_bits();
    }
    for (int i = 0; i < 64; i++) {
      bytes[i] = (tsr_u8)(random_bits() % 3);
    }
    for (int k = 0; k < n; k++) {
      expected_bits |= (uint32_t)(bits[(at + k) >> 3] >> ((at + k) & 7) & 1) << k;
      expected_bytes |= (uint32_t)(bytes[2 * k] != 0) << k;
    }
    assert_int_equal(read_bits(bits, at, n) & low_bits(n), expected_bits);
    assert_int_equal(read_bytes(bytes, 2, n), expected_bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exp2_is_exact_enough),
      cmocka_unit_test(exp2_at_its_ends),
      cmocka_unit_test(tanh_is_exact_enough),
      cmocka_unit_test(max_keeps_the_second_operands_nan),
      cmocka_unit_test(transposition),
      cmocka_unit_test(every_pattern_decodes),
      cmocka_unit_test(rounding_to_16_bits),
      cmocka_unit_test(rows_convert),
      cmocka_unit_test(scores_are_dot_products),
      cmocka_unit_test(outputs_are_weighted_sums),
      cmocka_unit_test(variants_agree_bit_for_bit),
      cmocka_unit_test(philox_in_lanes),
      cmocka_unit_test(mask_words),
  };
  if (strstr(tsr_cpu_levels(), QUOTE(TSR_CPU_LEVEL_TEXT)) == NULL) {
    return 77; /* this machine cannot run what was compiled here */
  }
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
