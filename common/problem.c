/* SPDX-License-Identifier: Apache-2.0 */
/* From a caller's description to a problem: the order of the rules, expressions, and what follows for later stages. */
#include "common/problem.h"

#include <string.h>

#include "common/validate.h"

/* ---- Expressions ----------------------------------------------------------------------------- */

int32_t tsr__aux_rank(const tsr_layout *layout) {
  int32_t rank = 4;
  while (rank > 1 && layout->shape[rank - 1] == 1) {
    rank--;
  }
  return rank;
}

static tsr_status check_names(const tsr_attention_desc *d, tsr_error *err) {
  const int any = d->score_expr != NULL || d->mask_expr != NULL;
  if (d->num_scalars < 0 || d->num_scalars > TSR_EXPR_MAX_SCALARS) {
    return tsr__invalid(err, "num_scalars", "is %lld, must be 0..%d", (long long)d->num_scalars, TSR_EXPR_MAX_SCALARS);
  }
  if (d->num_scalars > 0 && d->scalar_names == NULL) {
    return tsr__invalid(err, "scalar_names", "is NULL, must have num_scalars = %lld names", (long long)d->num_scalars);
  }
  if (!any && d->num_scalars != 0) {
    return tsr__invalid(err, "num_scalars", "is %lld, must be 0 without an expression", (long long)d->num_scalars);
  }
  if (!any && d->num_aux != 0) {
    return tsr__invalid(err, "num_aux", "is %d, must be 0 without an expression", (int)d->num_aux);
  }
  return TSR_OK;
}

static tsr_status check_aux(const tsr__problem *p, tsr_expr_aux_type types[TSR_EXPR_MAX_AUX], tsr_error *err) {
  for (int i = 0; i < TSR_EXPR_MAX_AUX; i++) {
    const int slot = TSR_SLOT_aux0 + i;
    const tsr_layout *l = &p->desc.aux[i];
    tsr_status st;
    if (tsr__problem_has(p, slot) != (i < p->desc.num_aux)) {
      return tsr__invalid(err, tsr__slots[slot].name, "is %s, num_aux is %d", i < p->desc.num_aux ? "absent" : "given",
                          (int)p->desc.num_aux);
    }
    if (i >= p->desc.num_aux) {
      continue;
    }
    st = tsr__check_dtype(l, tsr__slots[slot].name, TSR__DTYPE_BIT(TSR_F32) | TSR__DTYPE_BIT(TSR_I32), err);
    if (st != TSR_OK) {
      return st;
    }
    types[i].dtype = l->dtype;
    types[i].rank = tsr__aux_rank(l);
  }
  return TSR_OK;
}

static tsr_status parse_expressions(tsr__problem *p, tsr_error *err) {
  tsr_attention_desc *d = &p->desc;
  tsr_expr_aux_type types[TSR_EXPR_MAX_AUX];
  tsr_status st = check_names(d, err);
  memset(types, 0, sizeof(types));
  if (st == TSR_OK) {
    st = check_aux(p, types, err);
  }
  if (st == TSR_OK && d->score_expr != NULL) {
    st = tsr__expr_parse(p->alloc, d->score_expr, TSR_EXPR_KIND_SCORE, d->scalar_names, (int)d->num_scalars, types,
                         d->num_aux, "score_expr", &p->score_expr, err);
  }
  if (st == TSR_OK && d->mask_expr != NULL) {
    st = tsr__expr_parse(p->alloc, d->mask_expr, TSR_EXPR_KIND_MASK, d->scalar_names, (int)d->num_scalars, types,
                         d->num_aux, "mask_expr", &p->mask_expr, err);
  }
  if (st == TSR_OK && d->op == TSR_BACKWARD && p->score_expr != NULL) {
    st = tsr__expr_derive(p->alloc, p->score_expr, "score_expr", &p->score_grad, err);
  }
  return st;
}

/* ---- What follows ---------------------------------------------------------------------------- */

static uint32_t features_of(const tsr__problem *p) {
  static const struct {
    uint64_t flag;
    uint32_t feature;
  } flags[] = {{TSR_CAUSAL, TSR_A_CAUSAL}, {TSR_TOP_LEFT, TSR_A_TOP_LEFT}, {TSR_WINDOW, TSR_A_WINDOW},
               {TSR_CHUNK, TSR_A_CHUNK},   {TSR_SOFTCAP, TSR_A_SOFTCAP},   {TSR_DROPOUT, TSR_A_DROPOUT}};
  static const struct {
    int slot;
    uint32_t feature;
  } slots[] = {{TSR_SLOT_prefix, TSR_A_PREFIX},           {TSR_SLOT_mask_offsets, TSR_A_MASK_ROWS},
               {TSR_SLOT_segments_q, TSR_A_SEGMENTS},     {TSR_SLOT_flashmask, TSR_A_FLASHMASK},
               {TSR_SLOT_block_indptr, TSR_A_BLOCKS},     {TSR_SLOT_bias, TSR_A_BIAS},
               {TSR_SLOT_alibi_slopes, TSR_A_ALIBI},      {TSR_SLOT_sink, TSR_A_SINK},
               {TSR_SLOT_cu_seqlens_q, TSR_A_Q_PACKED},   {TSR_SLOT_cu_seqlens_k, TSR_A_K_PACKED},
               {TSR_SLOT_block_table, TSR_A_PAGED_TABLE}, {TSR_SLOT_kv_indptr, TSR_A_PAGED_CSR},
               {TSR_SLOT_seqlens_q, TSR_A_SEQLENS_Q},     {TSR_SLOT_seqlens_k, TSR_A_SEQLENS_K},
               {TSR_SLOT_rng_state, TSR_A_RNG_STATE}};
  uint32_t f = 0;
  for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
    f |= (p->desc.flags & flags[i].flag) != 0 ? flags[i].feature : 0;
  }
  for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
    f |= tsr__problem_has(p, slots[i].slot) ? slots[i].feature : 0;
  }
  f |= p->desc.mask.dtype == TSR_U8 ? TSR_A_MASK_U8 : 0;
  f |= p->desc.mask.dtype == TSR_BIT ? TSR_A_MASK_BIT : 0;
  f |= p->score_expr != NULL ? TSR_A_SCORE_EXPR : 0;
  f |= p->mask_expr != NULL ? TSR_A_MASK_EXPR : 0;
  f |= p->len_dtype == TSR_I64 ? TSR_A_LEN64 : 0;
  f |= p->k_group != 0 || p->v_group != 0 ? TSR_A_QUANT : 0;
  return f;
}

static void resolve(tsr__problem *p) {
  tsr_attention_desc *d = &p->desc;
  if (p->len_dtype == TSR_DTYPE_NONE) {
    p->len_dtype = TSR_I32;
  }
  if ((d->flags & TSR_V_IN_K) != 0) { /* k's scales serve v */
    const uint64_t scale = p->present >> TSR_SLOT_k_scale & 1, zero = p->present >> TSR_SLOT_k_zero & 1;
    d->v_scale = d->k_scale;
    d->v_zero = d->k_zero;
    p->present |= scale << TSR_SLOT_v_scale | zero << TSR_SLOT_v_zero;
    p->v_group = p->k_group;
  }
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    if (tsr__problem_has(p, s)) {
      tsr_layout *l = (tsr_layout *)(void *)((char *)d + tsr__slots[s].desc_offset);
      *l = tsr__layout_resolve(l);
    }
  }
  d->batch = p->batch;
  d->max_seqlen_q = p->seqlen_q;
  d->max_seqlen_k = p->seqlen_k;
  d->variant = NULL;
  d->score_expr = NULL;
  d->mask_expr = NULL;
  d->scalar_names = NULL;
  p->features = features_of(p);
}

/* ---- Entry points ---------------------------------------------------------------------------- */

static tsr_status init(const tsr__alloc *alloc, const tsr_attention_desc *desc, int need_outputs, tsr__problem *p,
                       tsr_error *err) {
  tsr_status st;
  memset(p, 0, sizeof(*p));
  p->alloc = alloc;
  st = tsr__struct_import(&p->desc, sizeof(p->desc), 0, desc, "tsr_attention_desc", err);
  if (st == TSR_OK) {
    st = tsr__validate_layouts(p, err);
  }
  if (st == TSR_OK) {
    st = tsr__validate_main(p, need_outputs, err);
  }
  if (st == TSR_OK) {
    st = tsr__validate_masks(p, err);
  }
  if (st == TSR_OK) {
    st = tsr__validate_quant(p, err);
  }
  if (st == TSR_OK) {
    st = parse_expressions(p, err);
  }
  if (st == TSR_OK) { /* last: what is only unsupported is otherwise valid */
    st = tsr__validate_backward(p, need_outputs, err);
  }
  if (st != TSR_OK) {
    tsr__problem_free(p);
    return st;
  }
  resolve(p);
  return tsr__ok(err);
}

tsr_status tsr__problem_init(const tsr__alloc *alloc, const tsr_attention_desc *desc, tsr__problem *p, tsr_error *err) {
  return init(alloc, desc, 1, p, err);
}

tsr_status tsr__problem_init_inputs(const tsr__alloc *alloc, const tsr_attention_desc *desc, tsr__problem *p,
                                    tsr_error *err) {
  return init(alloc, desc, 0, p, err);
}

void tsr__problem_free(tsr__problem *p) {
  tsr__expr_destroy(p->alloc, p->score_expr);
  tsr__expr_destroy(p->alloc, p->score_grad);
  tsr__expr_destroy(p->alloc, p->mask_expr);
  memset(p, 0, sizeof(*p));
}
