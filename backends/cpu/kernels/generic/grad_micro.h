/* SPDX-License-Identifier: Apache-2.0 */
/* The three products of a backward tile, each a block of accumulators in registers over one loop. Every sum runs in an
 * order that its length alone decides, one fused multiply-add a step, so that its bits do not depend on how the problem
 * was cut into tiles.
 *
 * Forms of an operand in scratch:
 *   sliced      rows of K or V: [slice of GRAD_SLICE channels][key][GRAD_SLICE], so that neighbouring keys are a
 * constant stride apart whatever D is; channels up to a multiple of 8 are zero natural     rows of Q or dO: [row][ld],
 * ld a multiple of the lanes, the tail zero transposed  [channel][TILE_Q]: query rows in lanes pairs       P and dS:
 * [key][TILE_Q] */
#ifndef TSR_CPU_GENERIC_GRAD_MICRO_H
#define TSR_CPU_GENERIC_GRAD_MICRO_H

#include "backends/cpu/kernels/generic/shape.h"
/* The stages that the forward pass has in common with this one work on tiles of more keys here. */
#undef TILE_K
#define TILE_K 384
#include "backends/cpu/kernels/generic/vec.h"

enum {
  GRAD_SLICE = 64, /* channels */
  GRAD_KEYS = 8,   /* keys are handled in groups of this many */
};

/* out[RK keys][vectors] = rows of a (sliced; slice_stride floats between slices) times bt (transposed), over d
 * channels: in runs of SUM_RUN and the runs' sums in order, as the forward pass sums its scores. One long sum would be
 * the largest error of f32 gradients. */
static inline __attribute__((always_inline)) void grad_dot_block(const float *a, int64_t slice_stride, int d,
                                                                 const float *bt, float *out, const int vectors) {
  for (int c0 = 0; c0 < d; c0 += SUM_RUN) {
    const float *run = a + c0 / GRAD_SLICE * slice_stride + c0 % GRAD_SLICE;
    const int n = d - c0 < SUM_RUN ? d - c0 : SUM_RUN;
    vf acc[RK][RV];
    for (int k = 0; k < RK; k++) {
      for (int v = 0; v < vectors; v++) {
        acc[k][v] = vf_all(0.0f);
      }
    }
    for (int c = 0; c < n; c++, bt += TILE_Q) {
      vf b[RV];
      for (int v = 0; v < vectors; v++) {
        b[v] = vf_load(bt + v * VL);
      }
#pragma GCC unroll 8
      for (int k = 0; k < RK; k++) {
        const vf x = vf_all(run[k * GRAD_SLICE + c]);
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) {
          acc[k][v] += x * b[v];
        }
      }
    }
#pragma GCC unroll 8
    for (int k = 0; k < RK; k++) {
#pragma GCC unroll 3
      for (int v = 0; v < vectors; v++) {
        float *to = out + k * TILE_Q + v * VL;
        if (c0 > 0) {
          acc[k][v] += vf_load(to);
        }
        vf_store(to, acc[k][v]);
      }
    }
  }
}

/* out[keys][TILE_Q], keys a multiple of GRAD_KEYS; rows up to whole vectors of the first `rows`. */
static void grad_dot(const float *a, int64_t slice_stride, int d, const float *bt, float *out, int keys, int rows) {
  for (int r = 0; r < rows; r += RV * VL) {
    const int left = rows - r;
    for (int k = 0; k < keys; k += RK) {
      const float *ak = a + k * GRAD_SLICE;
      float *o = out + k * TILE_Q + r;
      if (left > 2 * VL) {
        grad_dot_block(ak, slice_stride, d, bt + r, o, 3);
      } else if (left > VL) {
        grad_dot_block(ak, slice_stride, d, bt + r, o, 2);
      } else {
        grad_dot_block(ak, slice_stride, d, bt + r, o, 1);
      }
    }
  }
}

/* out[k][0 .. vectors) += sum over rows of pairs[k][row] * x[row] for `keys` keys; ldx and ld in floats. */
static inline __attribute__((always_inline)) void grad_sum_block(const float *pairs, const float *x, int64_t ldx,
                                                                 int rows, float *out, int64_t ld, const int keys,
                                                                 const int vectors) {
  vf acc[8][4];
#pragma GCC unroll 8
  for (int k = 0; k < keys; k++) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
      acc[k][v] = vf_load(out + k * ld + v * VL);
    }
  }
  for (int r = 0; r < rows; r++, x += ldx) {
    vf b[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
      b[v] = vf_load(x + v * VL);
    }
#pragma GCC unroll 8
    for (int k = 0; k < keys; k++) {
      const vf y = vf_all(pairs[k * TILE_Q + r]);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; v++) {
        acc[k][v] += y * b[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < keys; k++) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
      vf_store(out + k * ld + v * VL, acc[k][v]);
    }
  }
}

/* GRAD_KEYS keys against `vectors` vectors of channels, the best block for the number of registers. */
static inline void grad_sum_step(const float *pairs, const float *x, int64_t ldx, int rows, float *out, int64_t ld,
                                 int vectors) {
  enum { HALF = GRAD_KEYS / 2 };
#if RK == 8
  if (vectors >= 4) {
    grad_sum_block(pairs, x, ldx, rows, out, ld, HALF, 4);
    grad_sum_block(pairs + HALF * TILE_Q, x, ldx, rows, out + HALF * ld, ld, HALF, 4);
  } else if (vectors == 3) {
    grad_sum_block(pairs, x, ldx, rows, out, ld, GRAD_KEYS, 3);
  } else if (vectors == 2) {
    grad_sum_block(pairs, x, ldx, rows, out, ld, GRAD_KEYS, 2);
  } else {
    grad_sum_block(pairs, x, ldx, rows, out, ld, GRAD_KEYS, 1);
  }
#else
  if (vectors >= 3) {
    grad_sum_block(pairs, x, ldx, rows, out, ld, HALF, 3);
    grad_sum_block(pairs + HALF * TILE_Q, x, ldx, rows, out + HALF * ld, ld, HALF, 3);
  } else if (vectors == 2) {
    grad_sum_block(pairs, x, ldx, rows, out, ld, HALF, 2);
    grad_sum_block(pairs + HALF * TILE_Q, x, ldx, rows, out + HALF * ld, ld, HALF, 2);
  } else {
    grad_sum_block(pairs, x, ldx, rows, out, ld, GRAD_KEYS, 1);
  }
#endif
}

/* dV += P^T dO and dK += dS^T Q: out[keys][ld] += pairs[keys][rows] x[rows][ld], keys a multiple of GRAD_KEYS. */
static void grad_sum(const float *pairs, const float *x, int rows, float *out, int keys, int64_t ld) {
#if RK == 8
  enum { WIDE = 4 };
#else
  enum { WIDE = 3 };
#endif
  const int total = (int)(ld / VL);
  for (int v = 0; v < total; v += WIDE) {
    for (int k = 0; k < keys; k += GRAD_KEYS) {
      grad_sum_step(pairs + k * TILE_Q, x + v * VL, ld, rows, out + k * ld + v * VL, ld, total - v);
    }
  }
}

/* out[RK channels][vectors] += sum over keys of a[key][channel] * pairs[key]. */
static inline __attribute__((always_inline)) void grad_dq_block(const float *a, const float *pairs, int keys,
                                                                float *out, const int vectors) {
  vf acc[RK][RV];
#pragma GCC unroll 8
  for (int c = 0; c < RK; c++) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) {
      acc[c][v] = vf_load(out + c * TILE_Q + v * VL);
    }
  }
  for (int k = 0; k < keys; k++, a += GRAD_SLICE, pairs += TILE_Q) {
    vf b[RV];
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) {
      b[v] = vf_load(pairs + v * VL);
    }
#pragma GCC unroll 8
    for (int c = 0; c < RK; c++) {
      const vf x = vf_all(a[c]);
#pragma GCC unroll 3
      for (int v = 0; v < vectors; v++) {
        acc[c][v] += x * b[v];
      }
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < RK; c++) {
#pragma GCC unroll 3
    for (int v = 0; v < vectors; v++) {
      vf_store(out + c * TILE_Q + v * VL, acc[c][v]);
    }
  }
}

/* dQ^T (transposed, channels up to a multiple of 8) += K^T dS; a sliced, `keys` of any number. */
static void grad_dq(const float *a, int64_t slice_stride, int d, const float *pairs, int keys, float *out, int rows) {
  for (int r = 0; r < rows; r += RV * VL) {
    const int left = rows - r;
    for (int c = 0; c < d; c += RK) {
      const float *ac = a + c / GRAD_SLICE * slice_stride + c % GRAD_SLICE;
      float *o = out + c * TILE_Q + r;
      if (left > 2 * VL) {
        grad_dq_block(ac, pairs + r, keys, o, 3);
      } else if (left > VL) {
        grad_dq_block(ac, pairs + r, keys, o, 2);
      } else {
        grad_dq_block(ac, pairs + r, keys, o, 1);
      }
    }
  }
}

#endif
