/* SPDX-License-Identifier: Apache-2.0 */
/* S^T = K Q^T for one tile: queries in lanes, keys broadcast, and no packing of K. */
#ifndef TSR_CPU_SCORES_H
#define TSR_CPU_SCORES_H

#include "backends/cpu/kernels/generic/shape.h"
#include "backends/cpu/kernels/generic/vec.h"

/* RK keys x `nv` vectors of queries (a constant where this is inlined): s[key][lane] = sum over channels, in order, whatever
 * nv is. `max` takes the largest score per lane. */
static inline __attribute__((always_inline)) void scores_block(const float *const *keys, const float *q, int channels,
                                                               float *s, float *max, int nv) {
  vf acc[RK][RV];
  const float *k[RK];
  for (int r = 0; r < RK; r++) {
    k[r] = keys[r];
    for (int v = 0; v < nv; v++) {
      acc[r][v] = vf_all(0.0f);
    }
  }
  for (int c = 0; c < channels; c++, q += TILE_Q) {
    vf x[RV];
    for (int v = 0; v < nv; v++) {
      x[v] = vf_load(q + v * VL);
    }
    for (int r = 0; r < RK; r++) {
      const vf b = vf_all(k[r][c]);
      for (int v = 0; v < nv; v++) {
        acc[r][v] += b * x[v];
      }
    }
  }
  for (int v = 0; v < nv; v++) {
    vf m = vf_load(max + v * VL);
    for (int r = 0; r < RK; r++) {
      vf_store(s + r * TILE_Q + v * VL, acc[r][v]);
      m = vf_max(m, acc[r][v]);
    }
    vf_store(max + v * VL, m);
  }
}

static void scores_block_1(const float *const *keys, const float *q, int channels, float *s, float *max) {
  scores_block(keys, q, channels, s, max, 1);
}
static void scores_block_2(const float *const *keys, const float *q, int channels, float *s, float *max) {
  scores_block(keys, q, channels, s, max, 2);
}
static void scores_block_3(const float *const *keys, const float *q, int channels, float *s, float *max) {
  scores_block(keys, q, channels, s, max, 3);
}

/* Scores of keys [j0, j1) of a tile (multiples of RK) for `vectors` vectors of queries. */
static void scores_tile(const float *const *keys, const float *q, int channels, int j0, int j1, int vectors, float *s,
                        float *max) {
  for (int v = 0; v < vectors; v += RV) {
    const int at = v * VL;
    for (int j = j0; j < j1; j += RK) {
      switch (vectors - v) {
      case 1: scores_block_1(keys + j, q + at, channels, s + j * TILE_Q + at, max + at); break;
      case 2: scores_block_2(keys + j, q + at, channels, s + j * TILE_Q + at, max + at); break;
      default: scores_block_3(keys + j, q + at, channels, s + j * TILE_Q + at, max + at);
      }
    }
  }
}

#endif
