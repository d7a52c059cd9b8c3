/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tensors into scratch and back. */
#ifndef TSR_CPU_GENERIC_GRAD_ROWS_H
#define TSR_CPU_GENERIC_GRAD_ROWS_H

#include "backends/cpu/kernels/generic/convert.h"
#include "backends/cpu/kernels/generic/grad_state.h"

/* Is any of n floats (a multiple of VL) inf or NaN? */
static inline int grad_finite(const float *x, int64_t n) {
  vi bad = vi_all(0);
  for (int64_t i = 0; i < n; i += VL) {
    bad |= ((vi)vf_load(x + i) & 0x7f800000) == 0x7f800000;
  }
  return !vi_any(bad);
}

static inline void grad_zero(float *x, int64_t n) {
  for (int64_t i = 0; i < n; i += VL) {
    vf_store(x + i, vf_all(0.0f));
  }
}

/* Index of element (b, s, h, 0) of a tensor with those axes. */
static inline int64_t grad_index(const tsr_t4 *t, int64_t b, int64_t s, int64_t h) {
  return b * t->stride[0] + s * t->stride[1] + h * t->stride[2];
}

/* Rows [s0, s0 + rows) of head h in natural form; rows up to whole vectors are zero. Returns whether all is finite. */
static int grad_load_rows(const void *base, tsr_dtype dtype, const tsr_t4 *t, int64_t b, int64_t s0, int64_t h,
                          int rows, int channels, int64_t ld, float *out) {
  const int padded = (rows + VL - 1) / VL * VL;
  for (int i = 0; i < rows; i++, out += ld) {
    row_to_f32(dtype, base, grad_index(t, b, s0 + i, h), t->stride[3], channels, out);
    for (int64_t c = channels; c < ld; c++) {
      out[c] = 0.0f;
    }
  }
  grad_zero(out, (padded - rows) * ld);
  return grad_finite(out - rows * ld, rows * ld);
}

/* Keys [j0, j0 + nk) of K or V in sliced form, zero up to `keys` keys. */
static int grad_load_keys(const grad *g, int slot, const tsr_t4 *t, tsr_dtype dtype, int channels, float *out) {
  int finite = 1;
  for (int c = 0; c < channels; c += GRAD_SLICE) {
    const int n = channels - c < GRAD_SLICE ? channels - c : GRAD_SLICE;
    int64_t at = grad_index(t, g->f.seq.k_b, g->f.seq.k_row0 + g->f.j0, g->f.kv_head) + c * t->stride[3];
    float *row = out + c / GRAD_SLICE * g->tile_k * GRAD_SLICE;
    for (int k = 0; k < g->keys; k++, row += GRAD_SLICE, at += t->stride[1]) {
      row_to_f32(dtype, g->f.bound->ptr[slot], at, t->stride[3], n, row);
      for (int i = n; i < GRAD_SLICE && i % GRAD_PAD != 0; i++) {
        row[i] = 0.0f;
      }
      finite &= grad_finite(row, grad_padded(n));
    }
    for (int k = g->keys; k % GRAD_KEYS != 0; k++, row += GRAD_SLICE) {
      grad_zero(row, GRAD_SLICE);
    }
  }
  return finite;
}

/* [rows][ld] to [channels][TILE_Q], or back: rows and channels up to whole vectors. */
static void grad_transpose(const float *x, int64_t ldx, int64_t rows, int64_t columns, float *out, int64_t ldo) {
  for (int64_t r = 0; r < rows; r += VL) {
    for (int64_t c = 0; c < columns; c += VL) {
      vf m[VL];
      for (int l = 0; l < VL; l++) {
        m[l] = vf_load(x + (r + l) * ldx + c);
      }
      vf_transpose(m);
      for (int l = 0; l < VL; l++) {
        vf_store(out + (c + l) * ldo + r, m[l]);
      }
    }
  }
}

static void grad_store_row(const float *x, int channels, void *base, tsr_dtype dtype, int64_t index, int64_t step) {
  int c = 0;
  for (; step == 1 && c + VL <= channels; c += VL) {
    vf_store_as(dtype, (char *)base + (index + c) * element_bytes(dtype), vf_load(x + c));
  }
  for (; c < channels; c++) {
    f32_store_as(dtype, base, index + c * step, x[c]);
  }
}

/* Writes rows of a gradient times `factor`. */
static void grad_store_rows(float *x, int64_t ld, int rows, int channels, float factor, void *base, tsr_dtype dtype,
                            const tsr_t4 *t, int64_t b, int64_t s0, int64_t h) {
  for (int i = 0; i < rows; i++, x += ld) {
    for (int64_t c = 0; c < ld; c += VL) {
      vf_store(x + c, vf_load(x + c) * factor);
    }
    grad_store_row(x, channels, base, dtype, grad_index(t, b, s0 + i, h), t->stride[3]);
  }
}

/* Steps to the keys from j0 on: loads K and V. */
static void grad_set_keys(grad *g, int64_t j0) {
  const tsr_attention_desc *d = &g->f.p->desc;
  g->f.j0 = j0;
  g->keys = (int)tsr_min_i64(g->tile_k, g->f.seq.kv_len - j0);
  g->kv_finite = grad_load_keys(g, TSR_SLOT_k, &g->f.a->k, d->k.dtype, g->f.head_dim, g->k);
  g->kv_finite &= grad_load_keys(g, TSR_SLOT_v, &g->f.a->v, d->v.dtype, g->f.head_dim_v, g->v);
}

/* Steps to the rows from i0 on of the head at hand: loads Q, dO, LSE and delta. */
static void grad_set_rows(grad *g, int64_t i0) {
  const tsr_attention_desc *d = &g->f.p->desc;
  const tsr_attn_args *a = g->f.a;
  const tsr_seq *s = &g->f.seq;
  const int32_t h = grad_head(g);
  const int rows = (int)tsr_min_i64(TILE_Q, s->q_len - i0);
  const int64_t first = s->q_row0 + i0, lanes = (rows + VL - 1) / VL * VL;
  const float *lse = (const float *)g->f.bound->ptr[TSR_SLOT_lse] + s->q_b * a->lse.stride[0] + h * a->lse.stride[1] +
                     first * a->lse.stride[2];
  const float *delta = grad_delta_at(g->f.run, s, h) + i0;
  g->f.rows = rows;
  g->f.vectors = (int)lanes / VL;
  g->q_finite = grad_load_rows(g->f.bound->ptr[TSR_SLOT_q], d->q.dtype, &a->q, s->q_b, first, h, rows, g->f.head_dim,
                               g->ld, g->q);
  g->q_finite &= grad_load_rows(g->f.bound->ptr[TSR_SLOT_dout], d->dout.dtype, &a->u.bwd.dout, s->q_b, first, h, rows,
                                g->f.head_dim_v, g->ldv, g->dout);
  grad_transpose(g->q, g->ld, lanes, g->ld, g->qt, TILE_Q);
  grad_transpose(g->dout, g->ldv, lanes, g->ldv, g->doutt, TILE_Q);
  for (int i = 0; i < TILE_Q; i++) {
    const float x = i < rows ? -lse[i * a->lse.stride[2]] : -INFINITY;
    g->f.i[i] = i0 + (i < rows ? i : rows - 1);
    g->f.h[i] = h;
    g->neg_lse[i] = x == INFINITY ? -INFINITY : x;
    g->delta[i] = i < rows ? delta[i] : 0.0f;
  }
}

#endif
