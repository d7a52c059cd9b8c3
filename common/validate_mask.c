/* SPDX-License-Identifier: Apache-2.0 */
/* Masks, biases, quantisation and dropout. "Sq" and "Sk" of these fields are the longest sequences, max_seqlen_q and
 * max_seqlen_k after their defaults. */
#include "common/validate.h"

static const tsr__extent one = {1, "", 0};
static const tsr__extent any = {0, NULL, 0};

static tsr__extent exactly(int64_t n, const char *what) {
  const tsr__extent e = {n, what, 0};
  return e;
}

static tsr__extent or_one(int64_t n, const char *what) {
  const tsr__extent e = {n, what, 1};
  return e;
}

/* dtype and shape of a tensor, if it is there. */
static tsr_status check_tensor(const tsr__problem *p, int slot, uint32_t dtypes, tsr__extent e0, tsr__extent e1,
                               tsr__extent e2, tsr__extent e3, tsr_error *err) {
  const tsr_layout *l = tsr__slot_layout(&p->desc, slot);
  const tsr__extent want[4] = {e0, e1, e2, e3};
  tsr_status st;
  if (!tsr__problem_has(p, slot)) {
    return TSR_OK;
  }
  st = tsr__check_dtype(l, tsr__slots[slot].name, dtypes, err);
  return st == TSR_OK ? tsr__check_shape(l, tsr__slots[slot].name, want, err) : st;
}

/* Two tensors that only make sense together. */
static tsr_status check_pair(const tsr__problem *p, int a, int b, tsr_error *err) {
  if (tsr__problem_has(p, a) != tsr__problem_has(p, b)) {
    const int missing = tsr__problem_has(p, a) ? b : a, given = missing == a ? b : a;
    return tsr__invalid(err, tsr__slots[missing].name, "is absent, must come with %s", tsr__slots[given].name);
  }
  return TSR_OK;
}

/* ---- Numbers of the description ---------------------------------------------------------------- */

static tsr_status check_number(int64_t value, int on, int64_t least, const char *field, const char *flag,
                               tsr_error *err) {
  if (!on && value != 0) {
    return tsr__invalid(err, field, "is %lld, must be 0 without %s", (long long)value, flag);
  }
  if (on && (value < least || value > INT32_MAX)) {
    return tsr__invalid(err, field, "is %lld, must be %lld..2^31 - 1%s", (long long)value, (long long)least,
                        least == -1 ? ", -1 is unlimited" : "");
  }
  return TSR_OK;
}

static tsr_status check_numbers(const tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int window = (d->flags & TSR_WINDOW) != 0, blocks = tsr__problem_has(p, TSR_SLOT_block_indptr);
  tsr_status st = check_number(d->window_left, window, -1, "window_left", "TSR_WINDOW", err);
  if (st == TSR_OK) {
    st = check_number(d->window_right, window, -1, "window_right", "TSR_WINDOW", err);
  }
  if (st == TSR_OK) {
    st = check_number(d->sink_tokens, window, 0, "sink_tokens", "TSR_WINDOW", err);
  }
  if (st == TSR_OK) {
    st = check_number(d->chunk, (d->flags & TSR_CHUNK) != 0, 1, "chunk", "TSR_CHUNK", err);
  }
  if (st == TSR_OK) {
    st = check_number(d->block_rows, blocks, 1, "block_rows", "block_indptr", err);
  }
  return st == TSR_OK ? check_number(d->block_cols, blocks, 1, "block_cols", "block_indptr", err) : st;
}

/* ---- Masks ----------------------------------------------------------------------------------- */

static tsr_status check_mask(const tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int by_sequence = tsr__problem_has(p, TSR_SLOT_mask_offsets);
  const tsr__extent b = exactly(p->batch, "batch");
  tsr_status st;
  if (by_sequence && d->mask.dtype != TSR_BIT) {
    return tsr__invalid(err, "mask_offsets", "is given, needs a mask of dtype bit");
  }
  st = check_tensor(p, TSR_SLOT_mask, TSR__DTYPE_BIT(TSR_U8) | TSR__DTYPE_BIT(TSR_BIT),
                    by_sequence ? any : or_one(p->batch, "batch"), or_one(p->heads_q, "q.shape[2]"),
                    by_sequence ? any : or_one(p->seqlen_q, "max_seqlen_q"),
                    by_sequence ? any : or_one(p->seqlen_k, "max_seqlen_k"), err);
  if (st == TSR_OK && d->mask.dtype == TSR_BIT && d->mask.shape[3] == 1 && p->seqlen_k > 1) {
    return tsr__invalid(err, "mask.shape[3]", "is 1, a bit mask has a bit for every key and does not repeat one");
  }
  if (st == TSR_OK) {
    st = check_pair(p, TSR_SLOT_mask_offsets, TSR_SLOT_mask_row_strides, err);
  }
  if (st == TSR_OK) {
    st = check_tensor(p, TSR_SLOT_mask_offsets, TSR__DTYPE_BIT(TSR_I64), b, one, one, one, err);
  }
  return st == TSR_OK ? check_tensor(p, TSR_SLOT_mask_row_strides, TSR__DTYPE_BIT(TSR_I64), b, one, one, one, err) : st;
}

static tsr_status check_segments(const tsr__problem *p, tsr_error *err) {
  const uint32_t i32 = TSR__DTYPE_BIT(TSR_I32);
  tsr_status st = check_pair(p, TSR_SLOT_segments_q, TSR_SLOT_segments_k, err);
  if (st == TSR_OK) {
    st = tsr__problem_has(p, TSR_SLOT_cu_seqlens_q)
             ? check_tensor(p, TSR_SLOT_segments_q, i32, one, exactly(p->total_q, "q.shape[1]"), one, one, err)
             : check_tensor(p, TSR_SLOT_segments_q, i32, exactly(p->batch, "batch"),
                            exactly(p->seqlen_q, "max_seqlen_q"), one, one, err);
  }
  if (st == TSR_OK) {
    st = tsr__problem_has(p, TSR_SLOT_cu_seqlens_k)
             ? check_tensor(p, TSR_SLOT_segments_k, i32, one, exactly(p->total_k, "k.shape[1]"), one, one, err)
             : check_tensor(p, TSR_SLOT_segments_k, i32, exactly(p->batch, "batch"),
                            exactly(p->seqlen_k, "max_seqlen_k"), one, one, err);
  }
  return st;
}

static tsr_status check_flashmask(const tsr__problem *p, tsr_error *err) {
  const tsr_layout *l = &p->desc.flashmask;
  const int causal = (p->desc.flags & TSR_CAUSAL) != 0;
  const int64_t heads = l->shape[1], n = l->shape[3];
  const tsr_status st = check_tensor(p, TSR_SLOT_flashmask, TSR__DTYPE_BIT(TSR_I32), exactly(p->batch, "batch"), any,
                                     exactly(p->seqlen_k, "max_seqlen_k"), any, err);
  if (st != TSR_OK || !tsr__problem_has(p, TSR_SLOT_flashmask)) {
    return st;
  }
  if (heads != 1 && heads != p->heads_kv && heads != p->heads_q) {
    return tsr__invalid(err, "flashmask.shape[1]", "is %lld, must be 1, k.shape[2] = %d or q.shape[2] = %d",
                        (long long)heads, (int)p->heads_kv, (int)p->heads_q);
  }
  if (causal ? n != 1 && n != 2 : n != 2 && n != 4) {
    return tsr__invalid(err, "flashmask.shape[3]", "is %lld, must be %s", (long long)n,
                        causal ? "1 or 2 with TSR_CAUSAL" : "2 or 4 without TSR_CAUSAL");
  }
  return TSR_OK;
}

static tsr_status check_blocks(const tsr__problem *p, tsr_error *err) {
  const uint32_t i32 = TSR__DTYPE_BIT(TSR_I32);
  const tsr__extent b = or_one(p->batch, "batch"), h = or_one(p->heads_q, "q.shape[2]");
  tsr_status st = check_pair(p, TSR_SLOT_block_indptr, TSR_SLOT_block_indices, err);
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_block_indptr)) {
    const int64_t rows = (p->seqlen_q + p->desc.block_rows - 1) / p->desc.block_rows;
    st = check_tensor(p, TSR_SLOT_block_indptr, i32, b, h, exactly(rows + 1, "ceil(max_seqlen_q / block_rows) + 1"),
                      one, err);
  }
  return st == TSR_OK ? check_tensor(p, TSR_SLOT_block_indices, i32, b, h, any, one, err) : st;
}

/* ---- Terms of the score ------------------------------------------------------------------------ */

static tsr_status check_terms(const tsr__problem *p, tsr_error *err) {
  const uint32_t f32 = TSR__DTYPE_BIT(TSR_F32);
  const tsr__extent hq = exactly(p->heads_q, "q.shape[2]");
  tsr_status st =
      check_tensor(p, TSR_SLOT_bias, TSR__FLOATS, or_one(p->batch, "batch"), or_one(p->heads_q, "q.shape[2]"),
                   or_one(p->seqlen_q, "max_seqlen_q"), or_one(p->seqlen_k, "max_seqlen_k"), err);
  if (st == TSR_OK) {
    st = check_tensor(p, TSR_SLOT_alibi_slopes, f32, or_one(p->batch, "batch"), hq, one, one, err);
  }
  return st == TSR_OK ? check_tensor(p, TSR_SLOT_sink, f32, hq, one, one, one, err) : st;
}

static tsr_status check_dropout(const tsr__problem *p, tsr_error *err) {
  const int on = (p->desc.flags & TSR_DROPOUT) != 0;
  const int slots[2] = {TSR_SLOT_rng_state, TSR_SLOT_dropout_mask};
  tsr_status st;
  for (int i = 0; i < 2; i++) {
    if (tsr__problem_has(p, slots[i]) && !on) {
      return tsr__invalid(err, tsr__slots[slots[i]].name, "is given, needs TSR_DROPOUT");
    }
  }
  st = check_tensor(p, TSR_SLOT_rng_state, TSR__DTYPE_BIT(TSR_I64), exactly(2, ""), one, one, one, err);
  return st == TSR_OK ? check_tensor(p, TSR_SLOT_dropout_mask, TSR__DTYPE_BIT(TSR_U8), exactly(p->batch, "batch"),
                                     exactly(p->heads_q, "q.shape[2]"), exactly(p->seqlen_q, "max_seqlen_q"),
                                     exactly(p->seqlen_k, "max_seqlen_k"), err)
                      : st;
}

tsr_status tsr__validate_masks(tsr__problem *p, tsr_error *err) {
  tsr_status st = check_numbers(p, err);
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_prefix) && (p->desc.flags & TSR_CAUSAL) == 0) {
    return tsr__invalid(err, "prefix", "is given, needs TSR_CAUSAL");
  }
  if (st == TSR_OK) {
    st = check_mask(p, err);
  }
  if (st == TSR_OK) {
    st = check_segments(p, err);
  }
  if (st == TSR_OK) {
    st = check_flashmask(p, err);
  }
  if (st == TSR_OK) {
    st = check_blocks(p, err);
  }
  if (st == TSR_OK) {
    st = check_terms(p, err);
  }
  return st == TSR_OK ? check_dropout(p, err) : st;
}

/* ---- Quantised K and V ------------------------------------------------------------------------- */

/* scale and zero of k or v; *group: channels that share one of either. */
static tsr_status check_scales(const tsr__problem *p, int tensor, int scale, int zero, int64_t channels, int32_t *group,
                               tsr_error *err) {
  const tsr_layout *l = tsr__slot_layout(&p->desc, tensor);
  const char *tensor_name = tsr__slots[tensor].name, *scale_name = tsr__slots[scale].name;
  const char *zero_name = tsr__slots[zero].name;
  const uint32_t quantised = TSR__FP8 | TSR__DTYPE_BIT(TSR_I8) | TSR__DTYPE_BIT(TSR_U4);
  const int has_scale = tsr__problem_has(p, scale), has_zero = tsr__problem_has(p, zero);
  const tsr__field f0 = tsr__field_axis(tensor_name, "shape", 0), f1 = tsr__field_axis(tensor_name, "shape", 1);
  const tsr__field f2 = tsr__field_axis(tensor_name, "shape", 2);
  const tsr__extent e0 = or_one(l->shape[0], f0.name), e1 = or_one(l->shape[1], f1.name);
  const tsr__extent e2 = or_one(l->shape[2], f2.name);
  const int slots[2] = {scale, zero};
  int64_t groups = 1;
  if ((has_scale || has_zero) && (TSR__DTYPE_BIT(l->dtype) & quantised) == 0) {
    return tsr__invalid(err, has_scale ? scale_name : zero_name, "is given, must be absent where %s.dtype is %s",
                        tensor_name, tsr_dtype_name(l->dtype));
  }
  if (!has_scale && (has_zero || l->dtype == TSR_I8 || l->dtype == TSR_U4)) {
    return tsr__invalid(err, scale_name, "is absent, must be given where %s.dtype is %s%s", tensor_name,
                        tsr_dtype_name(l->dtype), has_zero ? " with a zero" : "");
  }
  for (int i = 0; i < 2; i++) {
    const tsr_layout *s = tsr__slot_layout(&p->desc, slots[i]);
    const tsr__field f = tsr__field_axis(tsr__slots[slots[i]].name, "shape", 3);
    const tsr_status st = check_tensor(p, slots[i], TSR__FLOATS, e0, e1, e2, any, err);
    if (st != TSR_OK || !tsr__problem_has(p, slots[i])) {
      if (st != TSR_OK) {
        return st;
      }
      continue;
    }
    if (s->shape[3] < 1 || channels % s->shape[3] != 0) {
      return tsr__invalid(err, f.name, "is %lld, must divide %s.shape[3] = %lld", (long long)s->shape[3], tensor_name,
                          (long long)channels);
    }
    if (groups > 1 && s->shape[3] > 1 && s->shape[3] != groups) {
      return tsr__invalid(err, f.name, "is %lld, must be %s.shape[3] = %lld or 1", (long long)s->shape[3], scale_name,
                          (long long)groups);
    }
    groups = s->shape[3] > groups ? s->shape[3] : groups;
  }
  *group = has_scale ? (int32_t)(channels / groups) : 0;
  return TSR_OK;
}

tsr_status tsr__validate_quant(tsr__problem *p, tsr_error *err) {
  const int v_in_k = (p->desc.flags & TSR_V_IN_K) != 0;
  const int v_slots[2] = {TSR_SLOT_v_scale, TSR_SLOT_v_zero};
  tsr_status st = check_scales(p, TSR_SLOT_k, TSR_SLOT_k_scale, TSR_SLOT_k_zero, p->head_dim, &p->k_group, err);
  for (int i = 0; st == TSR_OK && v_in_k && i < 2; i++) {
    if (tsr__problem_has(p, v_slots[i])) {
      return tsr__invalid(err, tsr__slots[v_slots[i]].name, "is given, must be absent with TSR_V_IN_K: k's serves");
    }
  }
  if (st == TSR_OK && !v_in_k) {
    st = check_scales(p, TSR_SLOT_v, TSR_SLOT_v_scale, TSR_SLOT_v_zero, p->head_dim_v, &p->v_group, err);
  }
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_q_descale) && (TSR__DTYPE_BIT(p->desc.q.dtype) & TSR__FP8) == 0) {
    return tsr__invalid(err, "q_descale", "is given, must be absent where q.dtype is %s",
                        tsr_dtype_name(p->desc.q.dtype));
  }
  if (st == TSR_OK) {
    st = check_tensor(p, TSR_SLOT_q_descale, TSR__DTYPE_BIT(TSR_F32), or_one(p->batch, "batch"),
                      or_one(p->heads_kv, "k.shape[2]"), one, one, err);
  }
  return st;
}
