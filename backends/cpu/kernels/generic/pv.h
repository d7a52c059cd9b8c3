/* SPDX-License-Identifier: Apache-2.0 */
/* O^T = O^T alpha + V^T P^T for one tile: queries in lanes, values broadcast, V read in place. */
#ifndef TSR_CPU_PV_H
#define TSR_CPU_PV_H

#include "backends/cpu/kernels/generic/shape.h"
#include "backends/cpu/kernels/generic/vec.h"

/* `rc` channels x `nv` vectors: the tile's sum over keys [first, last), in runs of SUM_KEYS, joins what earlier tiles gave.
 * With `scrub` a pair of probability 0 adds nothing even where its value is not finite. All three are constants where this is
 * inlined. */
static inline __attribute__((always_inline)) void pv_block(const float *const *values, const float *p, int channel,
                                                           int first, int last, const float *alpha, float *o, int rc,
                                                           int nv, int scrub) {
  vf sum[2 * SK][RV];
  for (int r = 0; r < rc; r++) {
    for (int v = 0; v < nv; v++) {
      sum[r][v] = vf_all(0.0f);
    }
  }
  p += first * TILE_Q;
  for (int j = first; j < last;) {
    const int end = (j / SUM_KEYS + 1) * SUM_KEYS < last ? (j / SUM_KEYS + 1) * SUM_KEYS : last;
    vf acc[2 * SK][RV];
    for (int r = 0; r < rc; r++) {
      for (int v = 0; v < nv; v++) {
        acc[r][v] = vf_all(0.0f);
      }
    }
    for (; j < end; j++, p += TILE_Q) {
      const float *value = values[j] + channel;
      vf x[RV];
      for (int v = 0; v < nv; v++) {
        x[v] = vf_load(p + v * VL);
      }
      for (int r = 0; r < rc; r++) {
        const vf b = vf_all(value[r]);
        for (int v = 0; v < nv; v++) {
          if (scrub) {
            const vf keep = vf_select(x[v] != 0.0f, b, vf_all(0.0f));
            acc[r][v] += keep * x[v];
          } else {
            acc[r][v] += b * x[v];
          }
        }
      }
    }
    for (int r = 0; r < rc; r++) {
      for (int v = 0; v < nv; v++) {
        sum[r][v] += acc[r][v];
      }
    }
  }
  for (int r = 0; r < rc; r++) {
    for (int v = 0; v < nv; v++) {
      float *at = o + (channel + r) * TILE_Q + v * VL;
      vf_store(at, vf_load(at) * vf_load(alpha + v * VL) + sum[r][v]);
    }
  }
}

typedef void pv_fn(const float *const *values, const float *p, int channel, int first, int last, const float *alpha,
                   float *o);

#define TSR_CPU_PV(name, rc, nv, scrub)                                                                            \
  static void name(const float *const *values, const float *p, int channel, int first, int last, const float *alpha, \
                   float *o) {                                                                                     \
    pv_block(values, p, channel, first, last, alpha, o, rc, nv, scrub);                                            \
  }
TSR_CPU_PV(pv_wide_1, 2 * SK, 1, 0) /* few rows: what counts is to read V in long pieces */
TSR_CPU_PV(pv_wide_2, SK, 2, 0)
TSR_CPU_PV(pv_wide_3, SK, 3, 0)
TSR_CPU_PV(pv_one_1, 1, 1, 0)
TSR_CPU_PV(pv_one_2, 1, 2, 0)
TSR_CPU_PV(pv_one_3, 1, 3, 0)
TSR_CPU_PV(pv_scrub_1, 1, 1, 1)
TSR_CPU_PV(pv_scrub_2, 1, 2, 1)
TSR_CPU_PV(pv_scrub_3, 1, 3, 1)
#undef TSR_CPU_PV

static void pv_tile(const float *const *values, const float *p, int channels, int first, int last, int vectors,
                    const float *alpha, float *o, int scrub) {
  static pv_fn *const wide[] = {pv_wide_1, pv_wide_2, pv_wide_3};
  static pv_fn *const one[] = {pv_one_1, pv_one_2, pv_one_3};
  static pv_fn *const scrubbed[] = {pv_scrub_1, pv_scrub_2, pv_scrub_3};
  for (int v = 0; v < vectors; v += RV) {
    const int n = (vectors - v < RV ? vectors - v : RV) - 1, at = v * VL;
    const int step = n == 0 ? 2 * SK : SK;
    int c = 0;
    for (; c + step <= channels && !scrub; c += step) {
      wide[n](values, p + at, c, first, last, alpha + at, o + at);
    }
    for (; c < channels; c++) {
      (scrub ? scrubbed : one)[n](values, p + at, c, first, last, alpha + at, o + at);
    }
  }
}

#endif
