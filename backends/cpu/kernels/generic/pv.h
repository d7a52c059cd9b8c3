/* SPDX-License-Identifier: Apache-2.0 */
/* O^T = O^T alpha + V^T P^T for one tile: queries in lanes, values broadcast, V read in place. */
#ifndef TSR_CPU_PV_H
#define TSR_CPU_PV_H

#include "backends/cpu/kernels/generic/mask.h"

/* `rc` channels from `channel` on x `nv` vectors from lane `at` on: the tile's sum over keys [first, last), in runs of
 * SUM_KEYS, joins what earlier tiles gave. With `scrub` a pair whose bit is off adds nothing even where its value is
 * not finite. The last three are constants where this is inlined. */
static inline __attribute__((always_inline)) void pv_block(fwd_item *f, int channel, int at, int first, int last,
                                                           int rc, int nv, int scrub) {
  const float *const *values = f->values;
  const float *p = f->s + first * TILE_Q + at;
  float *o = f->ot + channel * TILE_Q + at;
  vf sum[2 * SK][RV];
  TSR_CPU_UNROLL
  for (int r = 0; r < rc; r++) {
    TSR_CPU_UNROLL
    for (int v = 0; v < nv; v++) {
      sum[r][v] = vf_all(0.0f);
    }
  }
  for (int j = first; j < last;) {
    const int end = (j / SUM_KEYS + 1) * SUM_KEYS < last ? (j / SUM_KEYS + 1) * SUM_KEYS : last;
    vf acc[2 * SK][RV];
    TSR_CPU_UNROLL
    for (int r = 0; r < rc; r++) {
      TSR_CPU_UNROLL
      for (int v = 0; v < nv; v++) {
        acc[r][v] = vf_all(0.0f);
      }
    }
    for (; j < end; j++, p += TILE_Q) {
      const float *value = values[j] + channel;
      vf x[RV];
      TSR_CPU_UNROLL
      for (int v = 0; v < nv; v++) {
        x[v] = vf_load(p + v * VL);
      }
      TSR_CPU_UNROLL
      for (int r = 0; r < rc; r++) {
        const vf b = vf_all(value[r]);
        TSR_CPU_UNROLL
        for (int v = 0; v < nv; v++) {
          acc[r][v] += (scrub ? vf_select(mask_lanes(f, j, at + v * VL), b, vf_all(0.0f)) : b) * x[v];
        }
      }
    }
    TSR_CPU_UNROLL
    for (int r = 0; r < rc; r++) {
      TSR_CPU_UNROLL
      for (int v = 0; v < nv; v++) {
        sum[r][v] += acc[r][v];
      }
    }
  }
  TSR_CPU_UNROLL
  for (int r = 0; r < rc; r++) {
    TSR_CPU_UNROLL
    for (int v = 0; v < nv; v++) {
      float *to = o + r * TILE_Q + v * VL;
      vf_store(to, vf_load(to) * vf_load(f->alpha + at + v * VL) + sum[r][v]);
    }
  }
}

typedef void pv_fn(fwd_item *f, int channel, int at, int first, int last);

#define TSR_CPU_PV(name, rc, nv, scrub)                                     \
  static void name(fwd_item *f, int channel, int at, int first, int last) { \
    pv_block(f, channel, at, first, last, rc, nv, scrub);                   \
  }
TSR_CPU_PV(pv_wide_1, 2 * SK, 1, 0) /* few rows: V had better be read in long pieces */
TSR_CPU_PV(pv_wide_2, SK, 2, 0)
TSR_CPU_PV(pv_wide_3, SK, 3, 0)
TSR_CPU_PV(pv_one_1, 1, 1, 0)
TSR_CPU_PV(pv_one_2, 1, 2, 0)
TSR_CPU_PV(pv_one_3, 1, 3, 0)
TSR_CPU_PV(pv_scrub_1, 1, 1, 1)
TSR_CPU_PV(pv_scrub_2, 1, 2, 1)
TSR_CPU_PV(pv_scrub_3, 1, 3, 1)
#undef TSR_CPU_PV

static void pv_tile(fwd_item *f, int first, int last, int scrub) {
  static pv_fn *const wide[] = {pv_wide_1, pv_wide_2, pv_wide_3};
  static pv_fn *const one[] = {pv_one_1, pv_one_2, pv_one_3};
  static pv_fn *const scrubbed[] = {pv_scrub_1, pv_scrub_2, pv_scrub_3};
  for (int v = 0; v < f->vectors; v += RV) {
    const int n = (f->vectors - v < RV ? f->vectors - v : RV) - 1;
    const int step = n == 0 ? 2 * SK : SK;
    int c = 0;
    for (; c + step <= f->head_dim_v && !scrub; c += step) {
      wide[n](f, c, v * VL, first, last);
    }
    for (; c < f->head_dim_v; c++) {
      (scrub ? scrubbed : one)[n](f, c, v * VL, first, last);
    }
  }
}

#endif
