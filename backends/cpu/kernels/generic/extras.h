/* SPDX-License-Identifier: Apache-2.0 */
/* The launches that may follow "forward": joining splits, folding the largest scores, exporting the dropout mask. */
#ifndef TSR_CPU_EXTRAS_H
#define TSR_CPU_EXTRAS_H

#include "backends/cpu/kernels/generic/dropout.h"
#include "backends/cpu/kernels/generic/store.h"

enum { ROW_BLOCK = 16 }; /* query rows of one head that an item of these launches handles */

/* Item -> sequence, head, rows [*i0, *i1). 0: none. */
static int row_block(const tsr_cpu_run *run, int64_t item, tsr_seq *seq, tsr_i32 *head, tsr_i64 *i0, tsr_i64 *i1) {
  const tsr__problem *p = &run->problem->attn;
  const tsr_i64 blocks = (p->seqlen_q + ROW_BLOCK - 1) / ROW_BLOCK;
  const tsr_i64 b = item / (blocks * p->heads_q);
  if (b >= run->bound->args.batch) {
    return 0;
  }
  *seq = tsr_seq_load(&run->bound->args, &run->bound->ptrs, b);
  *head = (tsr_i32)(item / blocks % p->heads_q);
  *i0 = item % blocks * ROW_BLOCK;
  *i1 = tsr_min_i64(*i0 + ROW_BLOCK, seq->q_len);
  return *i0 < *i1;
}

/* ---- Splits ------------------------------------------------------------------------------------ */

/* Where split s of a row lies among the partial results. */
static inline tsr_i64 partial_at(const tsr_cpu_run *run, const tsr_seq *seq, tsr_i32 h, tsr_i64 i, int s) {
  const tsr__problem *p = &run->problem->attn;
  return (s * partial_rows(p) + partial_row(p, seq, i)) * p->heads_q + h;
}

/* The common maximum of a row's splits and their sums relative to it, weight[s], left to right in *l. */
static float weigh_splits(const tsr_cpu_run *run, const tsr_seq *seq, tsr_i32 h, tsr_i64 i, float unit, float *weight,
                          float *l) {
  const float *state = (const float *)(const void *)((const char *)run->workspace + run->build->partial_lse);
  const int splits = run->build->schedule.num_splits;
  float m = -INFINITY;
  for (int s = 0; s < splits; s++) {
    m = max_or_nan(m, state[2 * partial_at(run, seq, h, i, s)]);
  }
  *l = 0.0f;
  for (int s = 0; s < splits; s++) {
    const float *own = state + 2 * partial_at(run, seq, h, i, s);
    weight[s] = own[1] == 0.0f ? 0.0f : own[1] * exp2f((own[0] - m) * unit);
    *l += weight[s];
  }
  return m;
}

static void merge_row(const tsr_cpu_run *run, const tsr_seq *seq, tsr_i32 h, tsr_i64 i) {
  const tsr__problem *p = &run->problem->attn;
  const tsr_attn_args *a = &run->bound->args;
  const float *o = (const float *)(const void *)((const char *)run->workspace + run->build->partial_o);
  const tsr_i64 row = seq->q_row0 + i, out = seq->q_b * a->o.stride[0] + row * a->o.stride[1] + h * a->o.stride[2];
  const score_units units = units_of(run, seq->b, h / p->group);
  const float z = sink_at(run, h);
  float weight[TSR_MAX_SPLITS], acc[TSR_MAX_HEAD_DIM] = {0}, l, lse = z;
  const float m = weigh_splits(run, seq, h, i, units.log2, weight, &l);
  const float factor = l == 0.0f ? 0.0f : finish_row(m * natural_unit(units), l, z, dropout_scale(a), &lse);
  for (int s = 0; s < run->build->schedule.num_splits; s++) {
    const float *part = o + partial_at(run, seq, h, i, s) * p->head_dim_v, w = weight[s] * factor;
    for (int c = 0; c < p->head_dim_v && weight[s] != 0.0f; c++) { /* an empty split is not read */
      acc[c] += part[c] * w;
    }
  }
  for (int c = 0; c < p->head_dim_v; c++) {
    f32_store_as(p->desc.o.dtype, run->bound->ptr[TSR_SLOT_o], out + c * a->o.stride[3], acc[c]);
  }
  if (run->bound->ptr[TSR_SLOT_lse] != NULL) {
    ((float *)
         run->bound->ptr[TSR_SLOT_lse])[seq->q_b * a->lse.stride[0] + h * a->lse.stride[1] + row * a->lse.stride[2]] =
        lse;
  }
}

static void merge_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  tsr_seq seq;
  tsr_i32 head;
  tsr_i64 i0, i1;
  (void)scratch;
  (void)counts;
  if (row_block(run, item, &seq, &head, &i0, &i1)) {
    for (tsr_i64 i = i0; i < i1; i++) {
      merge_row(run, &seq, head, i);
    }
  }
}

/* ---- Largest score ------------------------------------------------------------------------------ */

/* One item: a maximum is cheap, and in this order it depends on no thread. */
static void max_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__schedule *s = &run->build->schedule;
  const tsr_i64 stride = run->bound->args.max_s.stride;
  float *out = (float *)run->bound->ptr[TSR_SLOT_max_s];
  const tsr_seq none = {0};
  (void)item;
  (void)scratch;
  (void)counts;
  for (int h = 0; h < run->problem->attn.heads_q; h++) {
    out[h * stride] = -INFINITY;
  }
  for (int64_t n = 0; n < s->items; n++) {
    const tsr_i64 head = (tsr_i64)tsr__schedule_item(s, &none, n).head * s->pack;
    for (int h = 0; h < s->pack; h++) {
      out[(head + h) * stride] = max_or_nan(out[(head + h) * stride], item_max(run, n)[h]);
    }
  }
}

/* ---- Dropout mask ------------------------------------------------------------------------------- */

static void dropout_row(const tsr_cpu_run *run, const tsr_seq *seq, tsr_i32 h, tsr_i64 i) {
  const tsr_attn_args *a = &run->bound->args;
  const int64_t *st = run->problem->attn.desc.dropout_mask.stride;
  uint8_t *out = (uint8_t *)run->bound->ptr[TSR_SLOT_dropout_mask] + seq->b * st[0] + h * st[1] + i * st[2];
  const tsr_u64 bh = (tsr_u64)seq->b * (tsr_u64)a->heads_q + (tsr_u64)h;
  for (tsr_i64 j = 0; j < seq->kv_len; j += 4) {
    tsr_u32 r[4];
    tsr_dropout_words(run->dropout_key, bh, (tsr_u32)i, (tsr_u32)(j >> 2), r);
    for (int k = 0; k < 4 && j + k < seq->kv_len; k++) {
      out[(j + k) * st[3]] = r[k] >= a->dropout_threshold;
    }
  }
}

static void dropout_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  tsr_seq seq;
  tsr_i32 head;
  tsr_i64 i0, i1;
  (void)scratch;
  (void)counts;
  if (row_block(run, item, &seq, &head, &i0, &i1)) {
    for (tsr_i64 i = i0; i < i1; i++) {
      dropout_row(run, &seq, head, i);
    }
  }
}

#endif
