/* SPDX-License-Identifier: Apache-2.0 */
/* Dropout on the probabilities of a tile: Philox4x32-10 with a query a lane (common/device/philox.h is the scalar
 * text). The factor of kept pairs is applied once, to the finished row. */
#ifndef TSR_CPU_DROPOUT_H
#define TSR_CPU_DROPOUT_H

#include "backends/cpu/kernels/generic/mask.h"

/* High and low words of a * m. */
static inline vu vu_mul_wide(vu a, uint32_t m, vu *low) {
#if TSR_CPU_LANES == 16 && defined(__AVX512F__)
  const __m512i f = _mm512_set1_epi32((int)m);
  const vu even = (vu)_mm512_mul_epu32((__m512i)a, f);
  const vu odd = (vu)_mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), f);
  const vu high = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64((__m512i)even, 32), (__m512i)odd);
#elif TSR_CPU_LANES == 8 && defined(__AVX2__)
  const __m256i f = _mm256_set1_epi32((int)m);
  const vu even = (vu)_mm256_mul_epu32((__m256i)a, f);
  const vu odd = (vu)_mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), f);
  const vu high = (vu)_mm256_blend_epi32(_mm256_srli_epi64((__m256i)even, 32), (__m256i)odd, 0xaa);
#else
  vu high;
  for (int l = 0; l < VL; l++) {
    high[l] = tsr_mul_hi(a[l], m);
  }
#endif
  *low = a * m;
  return high;
}

typedef struct philox_lanes {
  vu row, bh_low, bh_high; /* counter words 1 to 3 */
} philox_lanes;

/* Random words of keys 4 j4 .. 4 j4 + 3. */
static inline void philox_words(const philox_lanes *x, tsr_philox_key key, uint32_t j4, vu c[4]) {
  c[0] = vu_all(j4);
  c[1] = x->row;
  c[2] = x->bh_low;
  c[3] = x->bh_high;
  for (int round = 0; round < 10; round++) {
    vu low0, low1;
    const vu high0 = vu_mul_wide(c[0], 0xD2511F53u, &low0);
    const vu high1 = vu_mul_wide(c[2], 0xCD9E8D57u, &low1);
    c[0] = high1 ^ c[1] ^ key.k0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key.k1;
    c[3] = low0;
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

static inline philox_lanes philox_of_lanes(const int64_t *i, const int64_t *h, tsr_i64 b, tsr_i32 heads) {
  philox_lanes x;
  uint32_t row[VL], low[VL], high[VL];
  for (int l = 0; l < VL; l++) {
    const uint64_t bh = (uint64_t)b * (uint64_t)heads + (uint64_t)h[l];
    row[l] = (uint32_t)i[l];
    low[l] = (uint32_t)bh;
    high[l] = (uint32_t)(bh >> 32);
  }
  x.row = *(const vu *)row;
  x.bh_low = *(const vu *)low;
  x.bh_high = *(const vu *)high;
  return x;
}

/* All ones where a word of this value drops the pair; threshold 0..2^32. */
static inline vi dropped(vu r, tsr_u64 threshold) {
  return threshold > 0xffffffffu ? vi_all(-1) : (vi)(r < (uint32_t)threshold);
}

/* Probabilities of dropped pairs of keys [first, last) become 0; where bits[] count, their bits too. */
static void dropout_tile(fwd_item *f, int first, int last) {
  const tsr_u64 threshold = f->a->dropout_threshold;
  for (int v = 0; v < item_lanes(f); v += VL) {
    const philox_lanes x = philox_of_lanes(f->i + v, f->h + v, f->seq.b, f->a->heads_q);
    for (int j = first & ~3; j < last; j += 4) {
      vu c[4];
      philox_words(&x, f->run->dropout_key, (uint32_t)((f->j0 + j) >> 2), c);
      for (int k = 0; k < 4; k++) {
        float *at = f->s + (j + k) * TILE_Q + v;
        if (j + k >= first && j + k < last) {
          const vi kept = ~dropped(c[k], threshold);
          vf_store(at, (vf)((vi)vf_load(at) & kept));
          if (f->masked) {
            keep_where(&f->bits[j / 32][v], (j + k) & 31, kept);
          }
        }
      }
    }
  }
}

#endif
