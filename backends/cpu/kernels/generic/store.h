/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an item: normalise, take the sink, write rows of O and LSE, or partial results of a split. */
#ifndef TSR_CPU_STORE_H
#define TSR_CPU_STORE_H

#include <math.h>

#include "backends/cpu/kernels/generic/convert.h"
#include "backends/cpu/kernels/generic/item.h"

/* Writes [channel][lane] values times factor[lane] as rows of `t`; index has the first element of each of the `rows` lanes. */
static void store_transposed(const float *src, const float *factor, int channels, int rows, tsr_dtype t, void *base,
                             const tsr_i64 *index, tsr_i64 step) {
  for (int v = 0; v < rows; v += VL) {
    const vf scale = vf_load(factor + v);
    const int n = rows - v < VL ? rows - v : VL;
    int c = 0;
    for (; step == 1 && c + VL <= channels; c += VL) {
      vf block[VL];
      for (int r = 0; r < VL; r++) {
        block[r] = vf_load(src + (c + r) * TILE_Q + v) * scale;
      }
      vf_transpose(block);
      for (int r = 0; r < n; r++) {
        vf_store_as(t, (char *)base + (index[v + r] + c) * element_bytes(t), block[r]);
      }
    }
    for (; c < channels; c++) {
      for (int r = 0; r < n; r++) {
        f32_store_as(t, base, index[v + r] + c * step, src[c * TILE_Q + v + r] * factor[v + r]);
      }
    }
  }
}

/* Natural units per unit of m. */
static inline float natural_unit(const fwd_item *f) {
  return f->raw ? f->scale : 1.0f;
}

/* What each lane's O^T is to be multiplied by, and its LSE, the sink z included (-INFINITY: none). A row that saw no key gets
 * factor 0, and its O^T is cleared: nothing was summed there, whatever it holds. */
static void finish_row(fwd_item *f, int r, float z, float *factor, float *lse) {
  const float dropout = (f->a->flags & TSR_A_DROPOUT) ? f->a->dropout_scale : 1.0f;
  const float m = (f->m[r] + f->raise[r]) * natural_unit(f), l = f->l[r];
  if (f->m[r] == -INFINITY) {
    for (int c = 0; c < f->head_dim_v; c++) {
      f->ot[c * TILE_Q + r] = 0.0f;
    }
    *factor = 0.0f;
    *lse = z;
  } else if (z == -INFINITY) {
    *factor = dropout / l;
    *lse = m + logf(l);
  } else {
    const float most = z > m ? z : m, own = expf(m - most);
    const float sum = l * own + expf(z - most);
    *factor = dropout * own / sum;
    *lse = most + logf(sum);
  }
}

/* Rows that partial results have room for. */
static inline tsr_i64 partial_rows(const tsr__problem *p) {
  const tsr_i64 slots = p->batch * p->seqlen_q;
  return (p->features & TSR_A_Q_PACKED) ? tsr_min_i64(slots, p->total_q) : slots;
}

/* Row of query i of a sequence among them. */
static inline tsr_i64 partial_row(const tsr__problem *p, const tsr_seq *seq, tsr_i64 i) {
  return (p->features & TSR_A_Q_PACKED) && p->total_q <= p->batch * p->seqlen_q ? seq->q_row0 + i
                                                                                : seq->b * p->seqlen_q + i;
}

static void store_partial(fwd_item *f) {
  const tsr__plan_build *build = f->run->build;
  char *workspace = (char *)f->run->workspace;
  float factor[TILE_Q] = {0}, *lse = (float *)(workspace + build->partial_lse);
  tsr_i64 index[TILE_Q];
  for (int r = 0; r < f->rows; r++) {
    const tsr_i64 row = f->work.split * partial_rows(f->p) + partial_row(f->p, &f->seq, f->i[r]);
    const tsr_i64 at = row * f->p->heads_q + f->h[r];
    index[r] = at * f->head_dim_v;
    finish_row(f, r, -INFINITY, &factor[r], &lse[at]);
  }
  store_transposed(f->ot, factor, f->head_dim_v, f->rows, TSR_F32, workspace + build->partial_o, index, 1);
}

static void store_result(fwd_item *f) {
  const tsr_i64 *os = f->a->o.stride, *ls = f->a->lse.stride;
  const float *sink = (const float *)f->bound->ptr[TSR_SLOT_sink];
  float *lse = (float *)f->bound->ptr[TSR_SLOT_lse];
  float factor[TILE_Q] = {0};
  tsr_i64 index[TILE_Q];
  for (int r = 0; r < f->rows; r++) {
    const tsr_i64 row = f->seq.q_row0 + f->i[r];
    float row_lse;
    finish_row(f, r, sink != NULL ? sink[f->h[r] * f->a->sink.stride] : -INFINITY, &factor[r], &row_lse);
    index[r] = f->seq.q_b * os[0] + row * os[1] + f->h[r] * os[2];
    if (lse != NULL) {
      lse[f->seq.q_b * ls[0] + f->h[r] * ls[1] + row * ls[2]] = row_lse;
    }
  }
  store_transposed(f->ot, factor, f->head_dim_v, f->rows, f->p->desc.o.dtype, f->bound->ptr[TSR_SLOT_o], index, os[3]);
}

/* ---- Largest score ---------------------------------------------------------------------------- */

/* Where item `item` leaves the largest score of each of its heads, until the launch "max_s" folds them. */
static inline float *item_max(const tsr_cpu_run *run, int64_t item) {
  return (float *)((char *)run->workspace + run->build->own[0]) + item * run->build->schedule.pack;
}

/* The larger; NaN once there is one. */
static inline float max_or_nan(float m, float s) {
  return m != m || s <= m ? m : s;
}

static void store_max(fwd_item *f, int64_t item) {
  const int pack = f->run->build->schedule.pack;
  float *out = item_max(f->run, item);
  for (int r = 0; r < f->rows; r++) {
    float m = f->m[r] * natural_unit(f);
    if (f->l[r] != f->l[r] && m != INFINITY) {
      m = NAN; /* a maximum may lose a NaN, the sum does not */
    }
    out[r % pack] = max_or_nan(out[r % pack], m);
  }
}

#endif
