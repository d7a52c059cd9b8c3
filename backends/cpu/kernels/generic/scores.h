/* SPDX-License-Identifier: Apache-2.0 */
/* S^T = K Q^T for one tile: queries in lanes, keys broadcast, and no packing of K. */
#ifndef TSR_CPU_SCORES_H
#define TSR_CPU_SCORES_H

#include "backends/cpu/kernels/generic/shape.h"
#include "backends/cpu/kernels/generic/vec.h"

/* `nk` keys x `nv` vectors of queries (constants where this is inlined). Channels are summed in runs of SUM_RUN and the
 * runs' sums in order, whatever nv is: the rounding error of one long sum would be the largest error of large f32
 * logits. `max` takes the largest score per lane. */
static inline __attribute__((always_inline)) void scores_block(const float *const *keys, const float *q, int channels,
                                                               float *s, float *max, int nk, int nv) {
  const float *k[2 * SK];
  vf sum[2 * SK][RV];
  TSR_CPU_UNROLL
  for (int r = 0; r < nk; r++) {
    k[r] = keys[r];
    TSR_CPU_UNROLL
    for (int v = 0; v < nv; v++) {
      sum[r][v] = vf_all(0.0f);
    }
  }
  for (int c = 0; c < channels;) {
    const int end = channels - c > SUM_RUN ? c + SUM_RUN : channels;
    vf acc[2 * SK][RV];
    TSR_CPU_UNROLL
    for (int r = 0; r < nk; r++) {
      TSR_CPU_UNROLL
      for (int v = 0; v < nv; v++) {
        acc[r][v] = vf_all(0.0f);
      }
    }
    for (; c < end; c++, q += TILE_Q) {
      vf x[RV];
      TSR_CPU_UNROLL
      for (int v = 0; v < nv; v++) {
        x[v] = vf_load(q + v * VL);
      }
      TSR_CPU_UNROLL
      for (int r = 0; r < nk; r++) {
        const vf b = vf_all(k[r][c]);
        TSR_CPU_UNROLL
        for (int v = 0; v < nv; v++) {
          acc[r][v] += b * x[v];
        }
      }
    }
    TSR_CPU_UNROLL
    for (int r = 0; r < nk; r++) {
      TSR_CPU_UNROLL
      for (int v = 0; v < nv; v++) {
        sum[r][v] += acc[r][v];
      }
    }
  }
  TSR_CPU_UNROLL
  for (int v = 0; v < nv; v++) {
    vf m = vf_load(max + v * VL);
    TSR_CPU_UNROLL
    for (int r = 0; r < nk; r++) {
      vf_store(s + r * TILE_Q + v * VL, sum[r][v]);
      m = vf_max(m, sum[r][v]);
    }
    vf_store(max + v * VL, m);
  }
}

typedef void scores_fn(const float *const *keys, const float *q, int channels, float *s, float *max);

#define TSR_CPU_SCORES(name, nk, nv)                                                               \
  static void name(const float *const *keys, const float *q, int channels, float *s, float *max) { \
    scores_block(keys, q, channels, s, max, nk, nv);                                               \
  }
TSR_CPU_SCORES(scores_long_1, 2 * SK, 1) /* one vector of few keys would wait for its own sums */
TSR_CPU_SCORES(scores_1, SK, 1)
TSR_CPU_SCORES(scores_2, SK, 2)
TSR_CPU_SCORES(scores_3, SK, 3)
#undef TSR_CPU_SCORES

/* Scores of keys [j0, j1) of a tile (multiples of SK) for `vectors` vectors of queries. */
static void scores_tile(const float *const *keys, const float *q, int channels, int j0, int j1, int vectors, float *s,
                        float *max) {
  static scores_fn *const block[] = {scores_1, scores_2, scores_3};
  for (int v = 0; v < vectors; v += RV) {
    const int n = (vectors - v < RV ? vectors - v : RV) - 1, at = v * VL;
    int j = j0;
    for (; n == 0 && j + 2 * SK <= j1; j += 2 * SK) {
      scores_long_1(keys + j, q + at, channels, s + j * TILE_Q + at, max + at);
    }
    for (; j < j1; j += SK) {
      block[n](keys + j, q + at, channels, s + j * TILE_Q + at, max + at);
    }
  }
}

#endif
