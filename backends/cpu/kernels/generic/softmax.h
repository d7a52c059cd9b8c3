/* SPDX-License-Identifier: Apache-2.0 */
/* Online softmax of one tile, a query a lane (common/device/softmax.h says what m and l are). */
#ifndef TSR_CPU_SOFTMAX_H
#define TSR_CPU_SOFTMAX_H

#include <math.h>

#include "backends/cpu/kernels/generic/item.h"

/* Scores of keys [first, last) and `nv` vectors from lane `at` on (nv a constant where this is inlined) become
 * probabilities relative to the new maximum; updates m and l; alpha is exactly 1 where the maximum stays. */
static inline __attribute__((always_inline)) void softmax_block(fwd_item *f, int first, int last, int at, int nv) {
  const vf unit = vf_all(f->units.log2), floor = vf_all(-127.0f / f->units.log2);
  float *s = f->s + first * TILE_Q + at;
  vf ref[RV], sum[RV];
  TSR_CPU_UNROLL
  for (int v = 0; v < nv; v++) {
    const int lane = at + v * VL;
    const vf old = vf_load(f->m + lane);
    const vf now = vf_max(old, vf_load(f->tile_max + lane));
    const vf safe = vf_select(now == vf_all(-INFINITY), vf_all(0.0f), now);
    vf_store(f->m + lane, now);
    vf_store(f->alpha + lane, vf_exp2_scaled(old - safe, unit, floor));
    ref[v] = safe;
    sum[v] = vf_all(0.0f);
  }
  for (int j = first; j < last; j++, s += TILE_Q) {
    TSR_CPU_UNROLL
    for (int v = 0; v < nv; v++) {
      const vf p = vf_exp2_scaled(vf_load(s + v * VL) - ref[v], unit, floor);
      vf_store(s + v * VL, p);
      sum[v] += p;
    }
  }
  TSR_CPU_UNROLL
  for (int v = 0; v < nv; v++) {
    const int lane = at + v * VL;
    vf_store(f->l + lane, vf_load(f->l + lane) * vf_load(f->alpha + lane) + sum[v]);
  }
}

static void softmax_tile(fwd_item *f, int first, int last) {
  for (int v = 0; v < f->vectors; v += RV) {
    switch (f->vectors - v) {
    case 1: softmax_block(f, first, last, v * VL, 1); break;
    case 2: softmax_block(f, first, last, v * VL, 2); break;
    default: softmax_block(f, first, last, v * VL, RV);
    }
  }
}

#endif
