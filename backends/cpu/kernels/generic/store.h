/* SPDX-License-Identifier: Apache-2.0 */
/* The end of an item: normalise, take the sink, write rows of O and LSE, or partial results of a split. */
#ifndef TSR_CPU_STORE_H
#define TSR_CPU_STORE_H

#include <math.h>

#include "backends/cpu/kernels/generic/convert.h"
#include "backends/cpu/kernels/generic/item.h"

/* Writes [channel][lane] values times factor[lane] as rows of `t`; index has the first element of each of the `rows`
 * lanes. */
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

/* A row's sum l relative to m (natural units) with the sink z (-INFINITY: none): what its O^T is to be multiplied by,
 * and its LSE. */
static inline float finish_row(float m, float l, float z, float dropout_scale, float *lse) {
  if (z == -INFINITY) {
    *lse = m + logf(l);
    return dropout_scale / l;
  } else {
    const float most = z > m ? z : m, own = expf(m - most);
    const float sum = l * own + expf(z - most);
    *lse = most + logf(sum);
    return dropout_scale * own / sum;
  }
}

static inline float dropout_scale(const tsr_attn_args *a) {
  return (a->flags & TSR_A_DROPOUT) ? a->dropout_scale : 1.0f;
}

static inline float sink_at(const tsr_cpu_run *run, tsr_i64 h) {
  const float *sink = (const float *)run->bound->ptr[TSR_SLOT_sink];
  return sink != NULL ? sink[h * run->bound->args.sink.stride] : -INFINITY;
}

/* A row that saw no key has l = 0 (m = -inf alone may also be a maximum that lost a NaN): nothing was summed, whatever
 * its O^T holds. */
static void clear_row(fwd_item *f, int r) {
  for (int c = 0; c < f->head_dim_v; c++) {
    f->ot[c * TILE_Q + r] = 0.0f;
  }
}

/* ---- Partial results of splits: normalised O, without dropout's factor, and {m, l} in units of the scores: joining
 * them then costs no more accuracy than one long pass (an LSE in f32 would) ---- */

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
  float factor[TILE_Q] = {0}, *state = (float *)(void *)(workspace + build->partial_lse);
  tsr_i64 index[TILE_Q];
  for (int r = 0; r < f->rows; r++) {
    const tsr_i64 row = f->work.split * partial_rows(f->p) + partial_row(f->p, &f->seq, f->i[r]);
    const tsr_i64 at = row * f->p->heads_q + f->h[r];
    index[r] = at * f->head_dim_v;
    factor[r] = 1.0f / (f->l[r] * f->shrink[r]); /* of an empty row: never read */
    state[2 * at] = f->m[r];
    state[2 * at + 1] = f->l[r];
  }
  store_transposed(f->ot, factor, f->head_dim_v, f->rows, TSR_F32, workspace + build->partial_o, index, 1);
}

static void store_result(fwd_item *f) {
  const tsr_i64 *os = f->a->o.stride, *ls = f->a->lse.stride;
  float *lse = (float *)f->bound->ptr[TSR_SLOT_lse];
  float factor[TILE_Q] = {0};
  tsr_i64 index[TILE_Q];
  for (int r = 0; r < f->rows; r++) {
    const tsr_i64 row = f->seq.q_row0 + f->i[r];
    const float z = sink_at(f->run, f->h[r]);
    float row_lse = z;
    if (f->l[r] == 0.0f) {
      clear_row(f, r);
    } else {
      factor[r] =
          finish_row(f->m[r] * natural_unit(f->units), f->l[r], z, dropout_scale(f->a), &row_lse) / f->shrink[r];
    }
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
    float m = f->m[r] * natural_unit(f->units);
    if (f->l[r] != f->l[r] && (m != INFINITY || f->nan[r])) {
      m = NAN; /* a maximum may lose a NaN, the sum does not */
    }
    out[r % pack] = max_or_nan(out[r % pack], m);
  }
}

#endif
