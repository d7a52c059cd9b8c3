/* SPDX-License-Identifier: Apache-2.0 */
/* Valid descriptions to start from, one for each arrangement and group of features, and memory for their tensors: each
 * in an allocation of exactly its span, so that an address sanitizer sees a byte too far. Used by test_problem.c,
 * test_bind.c and the fuzz target. */
#ifndef TSR_TEST_PROBLEM_BASES_H
#define TSR_TEST_PROBLEM_BASES_H

#include <stdlib.h>
#include <string.h>

#include "common/bind.h"

enum { BASE_B = 2, BASE_SQ = 5, BASE_SK = 7, BASE_HQ = 4, BASE_HKV = 2, BASE_D = 8, BASE_DV = 6, BASE_PAGE = 3 };

typedef enum base_kind {
  BASE_DENSE,    /* q, k, v, o, lse, max_s */
  BASE_PACKED,   /* both sides, lengths from cu_seqlens */
  BASE_USED,     /* both sides packed, lengths from seqlens in slots that are larger; i64 */
  BASE_TABLE,    /* k, v by block_table */
  BASE_CSR,      /* k, v by kv_indptr, q packed */
  BASE_MASKS,    /* dense, every mask and term */
  BASE_BITROWS,  /* packed q, bit mask with an offset and a row stride a sequence */
  BASE_QUANT,    /* paged, k i8 with zeros, v u4 in groups */
  BASE_FP8,      /* fp8 q, k, v with descales */
  BASE_MLA,      /* v in k, quantised */
  BASE_BACKWARD, /* dense, every gradient */
  BASE_EXPR,     /* score and mask expressions, two scalars, two aux tensors */
  BASE_COUNT
} base_kind;

static const char *const base_scalars[] = {"gain", "keep"};

static inline tsr_layout base_vector(tsr_dtype dtype, int64_t n) {
  return tsr_layout_dense(dtype, n, 1, 1, 1);
}

static inline void base_main(tsr_attention_desc *d, tsr_dtype dtype) {
  d->q = tsr_layout_dense(dtype, BASE_B, BASE_SQ, BASE_HQ, BASE_D);
  d->k = tsr_layout_dense(dtype, BASE_B, BASE_SK, BASE_HKV, BASE_D);
  d->v = tsr_layout_dense(dtype, BASE_B, BASE_SK, BASE_HKV, BASE_DV);
  d->o = tsr_layout_dense(dtype, BASE_B, BASE_SQ, BASE_HQ, BASE_DV);
  d->lse = tsr_layout_dense(TSR_F32, BASE_B, BASE_HQ, BASE_SQ, 1);
  d->max_s = base_vector(TSR_F32, BASE_HQ);
}

static inline void base_pack(tsr_attention_desc *d, int q, int k, tsr_dtype index) {
  if (q) {
    d->q = tsr_layout_dense(d->q.dtype, 1, 9, BASE_HQ, BASE_D);
    d->o = tsr_layout_dense(d->o.dtype, 1, 9, BASE_HQ, BASE_DV);
    d->lse = tsr_layout_dense(TSR_F32, 1, BASE_HQ, 9, 1);
    d->cu_seqlens_q = base_vector(index, BASE_B + 1);
    d->max_seqlen_q = BASE_SQ;
    d->batch = BASE_B;
  }
  if (k) {
    d->k = tsr_layout_dense(d->k.dtype, 1, 12, BASE_HKV, BASE_D);
    d->v = tsr_layout_dense(d->v.dtype, 1, 12, BASE_HKV, BASE_DV);
    d->cu_seqlens_k = base_vector(index, BASE_B + 1);
    d->max_seqlen_k = BASE_SK;
  }
}

/* 8 pages of 3 keys; a row of the table has 3. */
static inline void base_page(tsr_attention_desc *d, int csr) {
  d->k = tsr_layout_dense(d->k.dtype, 8, BASE_PAGE, BASE_HKV, BASE_D);
  d->v = tsr_layout_dense(d->v.dtype, 8, BASE_PAGE, BASE_HKV, BASE_DV);
  d->max_seqlen_k = BASE_SK;
  if (csr) {
    d->kv_indptr = base_vector(TSR_I32, BASE_B + 1);
    d->kv_indices = base_vector(TSR_I32, 6);
    d->last_page_len = base_vector(TSR_I32, BASE_B);
  } else {
    d->block_table = tsr_layout_dense(TSR_I32, BASE_B, 3, 1, 1);
    d->seqlens_k = base_vector(TSR_I32, BASE_B);
  }
}

static inline void base_masks(tsr_attention_desc *d) {
  d->flags = TSR_CAUSAL | TSR_WINDOW | TSR_CHUNK | TSR_SOFTCAP | TSR_DROPOUT;
  d->window_left = 3;
  d->window_right = -1;
  d->sink_tokens = 1;
  d->chunk = 4;
  d->seqlens_q = base_vector(TSR_I64, BASE_B);
  d->seqlens_k = base_vector(TSR_I64, BASE_B);
  d->prefix = base_vector(TSR_I64, BASE_B);
  d->mask = tsr_layout_dense(TSR_U8, 1, BASE_HQ, BASE_SQ, BASE_SK);
  d->segments_q = tsr_layout_dense(TSR_I32, BASE_B, BASE_SQ, 1, 1);
  d->segments_k = tsr_layout_dense(TSR_I32, BASE_B, BASE_SK, 1, 1);
  d->flashmask = tsr_layout_dense(TSR_I32, BASE_B, BASE_HKV, BASE_SK, 2);
  d->block_rows = 2;
  d->block_cols = 3;
  d->block_indptr = tsr_layout_dense(TSR_I32, 1, BASE_HQ, 4, 1);
  d->block_indices = tsr_layout_dense(TSR_I32, 1, 1, 8, 1);
  d->bias = tsr_layout_dense(TSR_BF16, BASE_B, 1, BASE_SQ, BASE_SK);
  d->alibi_slopes = tsr_layout_dense(TSR_F32, 1, BASE_HQ, 1, 1);
  d->sink = base_vector(TSR_F32, BASE_HQ);
  d->rng_state = base_vector(TSR_I64, 2);
  d->dropout_mask = tsr_layout_dense(TSR_U8, BASE_B, BASE_HQ, BASE_SQ, BASE_SK);
}

static inline void base_backward(tsr_attention_desc *d) {
  d->op = TSR_BACKWARD;
  memset(&d->max_s, 0, sizeof(d->max_s));
  d->bias = tsr_layout_dense(TSR_F16, 1, BASE_HQ, BASE_SQ, BASE_SK);
  d->sink = base_vector(TSR_F32, BASE_HQ);
  d->dout = d->o;
  d->dlse = d->lse;
  d->dq = d->q;
  d->dk = d->k;
  d->dv = d->v;
  d->dv.dtype = TSR_F32;
  d->dbias = d->bias;
  d->dbias.dtype = TSR_F32;
  d->dsink = d->sink;
}

static inline tsr_attention_desc base_desc(base_kind kind) {
  tsr_attention_desc d = tsr_attention_desc_init();
  base_main(&d, kind == BASE_FP8 ? TSR_F8E4M3 : kind == BASE_QUANT || kind == BASE_MLA ? TSR_F16 : TSR_F32);
  switch (kind) {
  case BASE_PACKED: base_pack(&d, 1, 1, TSR_I32); break;
  case BASE_USED:
    base_pack(&d, 1, 1, TSR_I64);
    d.seqlens_q = base_vector(TSR_I64, BASE_B);
    d.seqlens_k = base_vector(TSR_I64, BASE_B);
    break;
  case BASE_TABLE: base_page(&d, 0); break;
  case BASE_CSR:
    base_pack(&d, 1, 0, TSR_I32);
    base_page(&d, 1);
    break;
  case BASE_MASKS: base_masks(&d); break;
  case BASE_BITROWS:
    base_pack(&d, 1, 1, TSR_I32);
    d.mask = tsr_layout_dense(TSR_BIT, 1, 1, 1, 8 * 16);
    d.mask_offsets = base_vector(TSR_I64, BASE_B);
    d.mask_row_strides = base_vector(TSR_I64, BASE_B);
    break;
  case BASE_QUANT:
    d.k.dtype = TSR_I8;
    d.v.dtype = TSR_U4;
    base_page(&d, 0);
    d.k_scale = tsr_layout_dense(TSR_F16, 8, BASE_PAGE, BASE_HKV, 1);
    d.k_zero = tsr_layout_dense(TSR_F32, 8, 1, 1, 4);
    d.v_scale = tsr_layout_dense(TSR_BF16, 1, 1, BASE_HKV, 3);
    break;
  case BASE_FP8:
    d.o.dtype = TSR_BF16;
    d.q_descale = tsr_layout_dense(TSR_F32, BASE_B, BASE_HKV, 1, 1);
    d.k_scale = tsr_layout_dense(TSR_F32, BASE_B, 1, BASE_HKV, 1);
    d.v_scale = d.k_scale;
    break;
  case BASE_MLA:
    d.flags = TSR_V_IN_K;
    d.k = tsr_layout_dense(TSR_I8, BASE_B, BASE_SK, 1, BASE_D);
    d.v = tsr_layout_dense(TSR_I8, BASE_B, BASE_SK, 1, BASE_DV);
    d.k_scale = tsr_layout_dense(TSR_F32, 1, BASE_SK, 1, 2);
    break;
  case BASE_BACKWARD: base_backward(&d); break;
  case BASE_EXPR:
    d.score_expr = "score * gain + aux0[h, i]";
    d.mask_expr = "j % 4 < keep && aux1[j] != 3";
    d.scalar_names = base_scalars;
    d.num_scalars = 2;
    d.num_aux = 2;
    d.aux[0] = tsr_layout_dense(TSR_F32, BASE_HQ, BASE_SQ, 1, 1);
    d.aux[1] = tsr_layout_dense(TSR_I32, BASE_SK, 1, 1, 1);
    break;
  default: break;
  }
  return d;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

typedef struct base_memory {
  void *data[TSR_SLOT_COUNT];
} base_memory;

static inline tsr_buffer *base_buffer(tsr_run_args *args, int slot) {
  return (tsr_buffer *)(void *)((char *)args + tsr__slots[slot].args_offset);
}

/* Zeroed memory for every tensor of a problem. Returns 0, with nothing allocated, if that is more than `most` bytes. */
static inline int base_memory_init(const tsr__problem *p, int64_t most, base_memory *m, tsr_run_args *args) {
  int64_t total = 0;
  memset(m, 0, sizeof(*m));
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    const int64_t bytes = tsr__problem_has(p, s) ? tsr__layout_span_bytes(tsr__slot_layout(&p->desc, s)) : 0;
    if (bytes > most || (total += bytes) > most) {
      return 0;
    }
  }
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    const int64_t bytes = tsr__problem_has(p, s) ? tsr__layout_span_bytes(tsr__slot_layout(&p->desc, s)) : 0;
    const int alias =
        (p->desc.flags & TSR_V_IN_K) != 0 && (s == TSR_SLOT_v || s == TSR_SLOT_v_scale || s == TSR_SLOT_v_zero);
    if (bytes > 0 && !alias) {
      /* a promise of up to 4096 bytes is kept at the start; the end is where the tensor ends */
      const size_t align = (size_t)tsr__slot_layout(&p->desc, s)->align_bytes;
      if (align <= 16) {
        m->data[s] = calloc(1, (size_t)bytes);
      } else if (posix_memalign(&m->data[s], align, (size_t)bytes) == 0) {
        memset(m->data[s], 0, (size_t)bytes);
      }
      base_buffer(args, s)->ptr = m->data[s];
    }
  }
  return 1;
}

static inline void base_memory_free(base_memory *m) {
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    free(m->data[s]);
  }
}

static inline void base_put(tsr_run_args *args, const tsr__problem *p, int slot, int64_t index, int64_t value) {
  void *data = base_buffer(args, slot)->ptr;
  if (tsr__slot_layout(&p->desc, slot)->dtype == TSR_I64) {
    ((int64_t *)data)[index] = value;
  } else {
    ((int32_t *)data)[index] = (int32_t)value;
  }
}

/* Values that make the tensors of a base valid, and its numbers. */
static inline void base_fill(base_kind kind, const tsr__problem *p, tsr_run_args *args) {
  static const struct {
    int slot, n;
    int64_t value[8];
  } tables[] = {{TSR_SLOT_cu_seqlens_q, 3, {0, 4, 9}},
                {TSR_SLOT_cu_seqlens_k, 3, {0, 5, 12}},
                {TSR_SLOT_seqlens_q, 2, {3, 5}},
                {TSR_SLOT_seqlens_k, 2, {4, 7}},
                {TSR_SLOT_block_table, 6, {6, 1, -9, 0, 7, 3}},
                {TSR_SLOT_kv_indptr, 3, {0, 2, 5}},
                {TSR_SLOT_kv_indices, 6, {5, 0, 2, 7, 1, -9}},
                {TSR_SLOT_last_page_len, 2, {2, 1}},
                {TSR_SLOT_prefix, 2, {0, 2}},
                {TSR_SLOT_mask_offsets, 2, {0, 5}},
                {TSR_SLOT_mask_row_strides, 2, {1, 2}},
                {TSR_SLOT_block_indices, 8, {0, 2, 1, 0, 1, 2, -1, 9}},
                {TSR_SLOT_rng_state, 2, {77, 5}}};
  for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
    const tsr_layout *l = tsr__slot_layout(&p->desc, tables[i].slot);
    const int64_t count = l->dtype == TSR_DTYPE_NONE ? 0 : tsr__layout_span_bytes(l) / (tsr_dtype_bits(l->dtype) / 8);
    for (int n = 0; n < tables[i].n && n < count; n++) {
      base_put(args, p, tables[i].slot, n, tables[i].value[n]);
    }
  }
  for (int n = 0; tsr__problem_has(p, TSR_SLOT_block_indptr) && n < 4 * BASE_HQ; n++) {
    static const int64_t rows[4] = {0, 2, 3, 6};
    if (n < tsr__layout_span_bytes(&p->desc.block_indptr) / 4) {
      base_put(args, p, TSR_SLOT_block_indptr, n, rows[n % 4]);
    }
  }
  if (kind == BASE_MASKS) {
    args->softcap = 30.0f;
    args->dropout_p = 0.25f;
  }
  if (kind == BASE_EXPR) {
    args->scalars[0] = 2.0f;
    args->scalars[1] = 3.0f;
  }
}

/* ---- What kernels may touch -------------------------------------------------------------------- */

/* Reads, or for outputs rewrites, the last byte of an element; axes of extent 1 broadcast. */
static inline void base_element(const tsr__problem *p, const tsr__bound *bound, int slot, int64_t i0, int64_t i1,
                                int64_t i2, int64_t i3) {
  const tsr_layout *l = tsr__slot_layout(&p->desc, slot);
  const int64_t i[4] = {i0, i1, i2, i3}, bits = tsr_dtype_bits(l->dtype);
  volatile uint8_t *byte;
  int64_t index = 0;
  if (!tsr__problem_has(p, slot)) {
    return;
  }
  for (int a = 0; a < 4; a++) {
    if (i[a] < 0 || (i[a] >= l->shape[a] && l->shape[a] != 1)) {
      abort(); /* the rules let a run use an element that the layout does not have */
    }
    index += i[a] * l->stride[a];
  }
  byte = (volatile uint8_t *)bound->ptr[slot] + (index * bits + bits - 1) / 8;
  if (tsr__slots[slot].writes[p->desc.op]) {
    *byte = 0;
  } else {
    (void)*byte;
  }
}

static inline void base_touch_keys(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *seq) {
  static const int slots[] = {TSR_SLOT_k,       TSR_SLOT_v,      TSR_SLOT_k_scale, TSR_SLOT_k_zero,
                              TSR_SLOT_v_scale, TSR_SLOT_v_zero, TSR_SLOT_dk,      TSR_SLOT_dv};
  for (int64_t j = 0; j < seq->kv_len; j++) {
    const tsr_kv_pos at = tsr_kv_at(&bound->args, &bound->ptrs, seq, j);
    for (int h = 0; h < p->heads_kv; h++) {
      for (size_t n = 0; n < sizeof(slots) / sizeof(slots[0]); n++) {
        const int grouped = slots[n] >= TSR_SLOT_k_scale && slots[n] <= TSR_SLOT_v_zero;
        const int of_v = slots[n] == TSR_SLOT_v || slots[n] == TSR_SLOT_dv || slots[n] == TSR_SLOT_v_scale ||
                         slots[n] == TSR_SLOT_v_zero;
        const int64_t last = (of_v ? p->head_dim_v : p->head_dim) - 1, group = of_v ? p->v_group : p->k_group;
        base_element(p, bound, slots[n], at.b, at.s, h, 0);
        base_element(p, bound, slots[n], at.b, at.s, h, !grouped ? last : group != 0 ? last / group : 0);
      }
    }
  }
}

static inline void base_touch_row(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *seq, int32_t h,
                                  int64_t i) {
  const int64_t row = seq->q_row0 + i;
  base_element(p, bound, TSR_SLOT_q, seq->q_b, row, h, p->head_dim - 1);
  base_element(p, bound, TSR_SLOT_dq, seq->q_b, row, h, p->head_dim - 1);
  base_element(p, bound, TSR_SLOT_o, seq->q_b, row, h, p->head_dim_v - 1);
  base_element(p, bound, TSR_SLOT_dout, seq->q_b, row, h, p->head_dim_v - 1);
  base_element(p, bound, TSR_SLOT_lse, seq->q_b, h, row, 0);
  base_element(p, bound, TSR_SLOT_dlse, seq->q_b, h, row, 0);
  for (int64_t j = 0; j < seq->kv_len; j++) {
    (void)tsr_mask_allow(&bound->args, &bound->ptrs, seq, h, i, j);
    base_element(p, bound, TSR_SLOT_bias, seq->b, h, i, j);
    base_element(p, bound, TSR_SLOT_dbias, seq->b, h, i, j);
    base_element(p, bound, TSR_SLOT_dropout_mask, seq->b, h, i, j);
  }
}

/* All that an accepted run lets kernels read and write. */
static inline void base_touch(const tsr__problem *p, const tsr__bound *bound) {
  for (int64_t b = 0; b < bound->args.batch; b++) {
    const tsr_seq seq = tsr_seq_load(&bound->args, &bound->ptrs, b);
    base_touch_keys(p, bound, &seq);
    for (int32_t h = 0; h < p->heads_q; h++) {
      base_element(p, bound, TSR_SLOT_alibi_slopes, b, h, 0, 0);
      base_element(p, bound, TSR_SLOT_sink, h, 0, 0, 0);
      base_element(p, bound, TSR_SLOT_dsink, h, 0, 0, 0);
      base_element(p, bound, TSR_SLOT_max_s, h, 0, 0, 0);
      base_element(p, bound, TSR_SLOT_q_descale, b, h / p->group, 0, 0);
      for (int64_t i = 0; i < seq.q_len; i++) {
        base_touch_row(p, bound, &seq, h, i);
      }
    }
  }
}

#endif
