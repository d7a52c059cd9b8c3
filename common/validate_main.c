/* SPDX-License-Identifier: Apache-2.0 */
/* The main tensors: sizes, arrangement (dense, packed, paged), dtypes, lengths and page tables. */
#include <string.h>

#include "common/validate.h"

#define ALL_FLAGS                                                                                           \
  (TSR_CAUSAL | TSR_TOP_LEFT | TSR_WINDOW | TSR_CHUNK | TSR_SOFTCAP | TSR_DROPOUT | TSR_V_IN_K | TSR_FAST | \
   TSR_DETERMINISTIC | TSR_BATCH_INVARIANT)

/* ---- Every layout ---------------------------------------------------------------------------- */

static tsr_status check_switches(const tsr_attention_desc *d, tsr_error *err) {
  if (d->op != TSR_FORWARD && d->op != TSR_BACKWARD) {
    return tsr__invalid(err, "op", "is %d, must be TSR_FORWARD or TSR_BACKWARD", (int)d->op);
  }
  if (d->memory < TSR_MEMORY_NATIVE || d->memory > TSR_MEMORY_SVM) {
    return tsr__invalid(err, "memory", "is %d, must be a TSR_MEMORY_ constant", (int)d->memory);
  }
  if ((d->flags & ~ALL_FLAGS) != 0) {
    return tsr__invalid(err, "flags", "is 0x%llx, bits 0x%llx are unknown", (unsigned long long)d->flags,
                        (unsigned long long)(d->flags & ~ALL_FLAGS));
  }
  if (d->num_splits < 0 || d->num_splits > TSR_MAX_SPLITS) {
    return tsr__invalid(err, "num_splits", "is %d, must be 0..%d", (int)d->num_splits, TSR_MAX_SPLITS);
  }
  if (d->num_splits != 0 && d->op == TSR_BACKWARD) {
    return tsr__invalid(err, "num_splits", "is %d, must be 0: backward has no splits", (int)d->num_splits);
  }
  if ((d->flags & TSR_BATCH_INVARIANT) != 0 && (d->flags & TSR_DROPOUT) != 0) {
    return tsr__invalid(err, "flags", "has TSR_BATCH_INVARIANT and TSR_DROPOUT, which exclude each other");
  }
  if ((d->flags & TSR_BATCH_INVARIANT) != 0 && d->num_splits != 0) {
    return tsr__invalid(err, "num_splits", "is %d, must be 0 with TSR_BATCH_INVARIANT", (int)d->num_splits);
  }
  if (d->num_aux < 0 || d->num_aux > TSR_EXPR_MAX_AUX) {
    return tsr__invalid(err, "num_aux", "is %d, must be 0..%d", (int)d->num_aux, TSR_EXPR_MAX_AUX);
  }
  return TSR_OK;
}

tsr_status tsr__validate_layouts(tsr__problem *p, tsr_error *err) {
  tsr_attention_desc *d = &p->desc;
  tsr_status st = check_switches(d, err);
  if (st != TSR_OK) {
    return st;
  }
  if ((d->flags & TSR_V_IN_K) != 0) { /* v lies where k lies */
    memcpy(d->v.stride, d->k.stride, sizeof(d->v.stride));
    d->v.align_bytes = d->k.align_bytes;
  }
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    const tsr__slot *slot = &tsr__slots[s];
    const tsr_layout *l = tsr__slot_layout(d, s);
    const int written = slot->writes[d->op];
    if (l->dtype == TSR_DTYPE_NONE) {
      st = tsr__check_absent(l, slot->name, err);
    } else if (!written && !slot->reads[d->op]) {
      return tsr__invalid(err, slot->name, "is given, must be absent in %s",
                          d->op == TSR_FORWARD ? "forward" : "backward");
    } else {
      st = tsr__layout_check(l, slot->name, written, err);
      p->present |= UINT64_C(1) << s;
    }
    if (st != TSR_OK) {
      return st;
    }
  }
  return TSR_OK;
}

/* ---- Presence -------------------------------------------------------------------------------- */

static tsr_status need(const tsr__problem *p, int slot, const char *because, tsr_error *err) {
  if (!tsr__problem_has(p, slot)) {
    return tsr__invalid(err, tsr__slots[slot].name, "is absent, must be given%s", because);
  }
  return TSR_OK;
}

static tsr_status check_presence(const tsr__problem *p, int need_outputs, tsr_error *err) {
  static const int backward[] = {TSR_SLOT_dout, TSR_SLOT_o, TSR_SLOT_lse};
  tsr_status st = TSR_OK;
  for (int s = TSR_SLOT_q; st == TSR_OK && s <= TSR_SLOT_v; s++) {
    st = need(p, s, "", err);
  }
  if (p->desc.op == TSR_FORWARD) {
    return st == TSR_OK && need_outputs ? need(p, TSR_SLOT_o, "", err) : st;
  }
  for (int i = 0; st == TSR_OK && i < (need_outputs ? 3 : 1); i++) {
    st = need(p, backward[i], " in backward", err);
  }
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_o) != tsr__problem_has(p, TSR_SLOT_lse)) {
    return tsr__invalid(err, tsr__problem_has(p, TSR_SLOT_o) ? "lse" : "o", "is absent, must come with %s",
                        tsr__problem_has(p, TSR_SLOT_o) ? "o" : "lse");
  }
  return st;
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

static tsr_status check_dtypes(const tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const uint32_t q_bit = TSR__DTYPE_BIT(d->q.dtype);
  const uint32_t quantised = TSR__FP8 | TSR__DTYPE_BIT(TSR_I8) | TSR__DTYPE_BIT(TSR_U4);
  tsr_status st = tsr__check_dtype(&d->q, "q", TSR__FLOATS | TSR__FP8, err);
  if (st == TSR_OK) {
    st = tsr__check_dtype(&d->k, "k", (q_bit & TSR__FP8) != 0 ? q_bit : q_bit | quantised, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_dtype(&d->v, "v", d->k.dtype == d->q.dtype ? q_bit : quantised, err);
  }
  if (st == TSR_OK && (d->flags & TSR_V_IN_K) != 0) {
    st = tsr__check_dtype(&d->v, "v", TSR__DTYPE_BIT(d->k.dtype), err);
  }
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_o)) {
    st = tsr__check_dtype(&d->o, "o", (q_bit & TSR__FP8) != 0 ? TSR__FLOATS : q_bit | TSR__DTYPE_BIT(TSR_F32), err);
  }
  return st;
}

/* ---- Heads and channels ---------------------------------------------------------------------- */

/* Extents of heads and channels become 32-bit numbers here. */
static tsr_status check_heads(tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int64_t hq = d->q.shape[2], hkv = d->k.shape[2];
  if (hq < 1 || hq > INT32_MAX) {
    return tsr__invalid(err, "q.shape[2]", "is %lld, must be 1..2^31 - 1 heads", (long long)hq);
  }
  if (hkv < 1 || hkv > hq || hq % hkv != 0) {
    return tsr__invalid(err, "k.shape[2]", "is %lld, must divide q.shape[2] = %lld", (long long)hkv, (long long)hq);
  }
  if (d->v.shape[2] != hkv) {
    return tsr__invalid(err, "v.shape[2]", "is %lld, must be k.shape[2] = %lld", (long long)d->v.shape[2],
                        (long long)hkv);
  }
  if ((d->flags & TSR_V_IN_K) != 0 && hkv != 1) {
    return tsr__invalid(err, "k.shape[2]", "is %lld, must be 1 with TSR_V_IN_K", (long long)hkv);
  }
  p->heads_q = (int32_t)hq;
  p->heads_kv = (int32_t)hkv;
  p->group = (int32_t)(hq / hkv);
  return TSR_OK;
}

static tsr_status check_channels(tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int64_t n = d->q.shape[3], nv = d->v.shape[3];
  if (n < 1) {
    return tsr__invalid(err, "q.shape[3]", "is %lld, must be at least 1", (long long)n);
  }
  if (d->k.shape[3] != n) {
    return tsr__invalid(err, "k.shape[3]", "is %lld, must be q.shape[3] = %lld", (long long)d->k.shape[3],
                        (long long)n);
  }
  if (nv < 1) {
    return tsr__invalid(err, "v.shape[3]", "is %lld, must be at least 1", (long long)nv);
  }
  if ((d->flags & TSR_V_IN_K) != 0 && nv > n) {
    return tsr__invalid(err, "v.shape[3]", "is %lld, must be at most k.shape[3] = %lld with TSR_V_IN_K", (long long)nv,
                        (long long)n);
  }
  if (n > TSR_MAX_HEAD_DIM || nv > TSR_MAX_HEAD_DIM) {
    return tsr__fail(err, TSR_UNSUPPORTED, n > TSR_MAX_HEAD_DIM ? "q.shape[3]" : "v.shape[3]",
                     "%s is %lld, head dimensions above %d are not supported",
                     n > TSR_MAX_HEAD_DIM ? "q.shape[3]" : "v.shape[3]", (long long)(n > TSR_MAX_HEAD_DIM ? n : nv),
                     TSR_MAX_HEAD_DIM);
  }
  p->head_dim = (int32_t)n;
  p->head_dim_v = (int32_t)nv;
  return TSR_OK;
}

/* ---- Batch and lengths ----------------------------------------------------------------------- */

/* index [n,1,1,1] of the plan's index type, which the first such field decides. */
static tsr_status check_lengths(tsr__problem *p, int slot, int64_t n, const char *what, tsr_error *err) {
  const tsr_layout *l = tsr__slot_layout(&p->desc, slot);
  const char *name = tsr__slots[slot].name;
  const tsr__extent want[4] = {{n, what, 0}, {1, "", 0}, {1, "", 0}, {1, "", 0}};
  tsr_status st;
  if (!tsr__problem_has(p, slot)) {
    return TSR_OK;
  }
  st = tsr__check_dtype(l, name, TSR__INDEX, err);
  if (st != TSR_OK) {
    return st;
  }
  if (p->len_dtype != TSR_DTYPE_NONE && l->dtype != p->len_dtype) {
    const tsr__field f = tsr__field_part(name, "dtype");
    return tsr__invalid(err, f.name, "is %s, must be %s as the lengths before it: one index type a plan",
                        tsr_dtype_name(l->dtype), tsr_dtype_name(p->len_dtype));
  }
  p->len_dtype = l->dtype;
  return tsr__check_shape(l, name, want, err);
}

static tsr_status check_batch(tsr__problem *p, tsr_error *err) {
  tsr_attention_desc *d = &p->desc;
  static const int slots[] = {TSR_SLOT_cu_seqlens_q, TSR_SLOT_cu_seqlens_k, TSR_SLOT_seqlens_q, TSR_SLOT_seqlens_k,
                              TSR_SLOT_prefix};
  const int packed = tsr__problem_has(p, TSR_SLOT_cu_seqlens_q);
  tsr_status st = TSR_OK;
  if (d->batch < 0) {
    return tsr__invalid(err, "batch", "is %lld, must be at least 0", (long long)d->batch);
  }
  p->batch = packed ? d->cu_seqlens_q.shape[0] - 1 : d->q.shape[0];
  if (packed && p->batch < 0) {
    return tsr__invalid(err, "cu_seqlens_q.shape[0]", "is 0, must be batch + 1");
  }
  if (!packed && d->batch != 0 && d->batch != p->batch) {
    return tsr__invalid(err, "batch", "is %lld, must be 0 or q.shape[0] = %lld", (long long)d->batch,
                        (long long)p->batch);
  }
  if (packed && d->batch != 0) {
    p->batch = d->batch;
  }
  if (p->batch == INT64_MAX) {
    return tsr__invalid(err, "batch", "is 2^63 - 1");
  }
  for (int i = 0; st == TSR_OK && i < 5; i++) {
    st = i < 2 ? check_lengths(p, slots[i], p->batch + 1, "batch + 1", err)
               : check_lengths(p, slots[i], p->batch, "batch", err);
  }
  return st;
}

enum { DENSE, PACKED, PAGED };

/* The longest sequence of a side: what was asked for, else what the tensor can hold (`slot_len`). A dense slot is used
 * whole unless lengths say otherwise; a packed tensor may be shorter than the longest sequence of other runs. */
static tsr_status resolve_length(int64_t asked, int64_t slot_len, int kind, int has_lengths, const char *field,
                                 const char *slot_field, int64_t *length, tsr_error *err) {
  if (asked < 0) {
    return tsr__invalid(err, field, "is %lld, must be at least 0", (long long)asked);
  }
  if (asked > slot_len && kind != PACKED) {
    return tsr__invalid(err, field, "is %lld, must be at most %s = %lld", (long long)asked, slot_field,
                        (long long)slot_len);
  }
  if (kind == DENSE && asked != 0 && asked < slot_len && !has_lengths) {
    return tsr__invalid(err, field, "is %lld, must be %s = %lld where no lengths are given", (long long)asked,
                        slot_field, (long long)slot_len);
  }
  *length = asked != 0 ? asked : slot_len;
  if (*length > INT32_MAX && (asked != 0 || kind == DENSE)) {
    return tsr__invalid(err, asked != 0 ? field : slot_field, "is %lld, must be below 2^31", (long long)*length);
  }
  if (*length > INT32_MAX) {
    *length = INT32_MAX; /* more than one sequence can use */
  }
  return TSR_OK;
}

/* ---- Arrangement ----------------------------------------------------------------------------- */

static tsr_status check_tables(tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int table = tsr__problem_has(p, TSR_SLOT_block_table), csr = tsr__problem_has(p, TSR_SLOT_kv_indptr);
  static const int ints[] = {TSR_SLOT_block_table, TSR_SLOT_kv_indptr, TSR_SLOT_kv_indices, TSR_SLOT_last_page_len};
  const tsr__extent want[4][4] = {{{p->batch, "batch", 0}, {0, NULL, 0}, {1, "", 0}, {1, "", 0}},
                                  {{p->batch + 1, "batch + 1", 0}, {1, "", 0}, {1, "", 0}, {1, "", 0}},
                                  {{0, NULL, 0}, {1, "", 0}, {1, "", 0}, {1, "", 0}},
                                  {{p->batch, "batch", 0}, {1, "", 0}, {1, "", 0}, {1, "", 0}}};
  tsr_status st = TSR_OK;
  if (table && csr) {
    return tsr__invalid(err, "kv_indptr", "is given with block_table, they exclude each other");
  }
  if ((table || csr) && tsr__problem_has(p, TSR_SLOT_cu_seqlens_k)) {
    return tsr__invalid(err, "cu_seqlens_k", "is given, must be absent for paged k and v");
  }
  for (int i = 2; i < 4; i++) {
    if (tsr__problem_has(p, ints[i]) != csr) {
      return tsr__invalid(err, tsr__slots[ints[i]].name,
                          csr ? "is absent, must come with kv_indptr" : "is given, needs kv_indptr");
    }
  }
  if (table) {
    st = need(p, TSR_SLOT_seqlens_k, " with block_table", err);
  }
  for (int i = 0; st == TSR_OK && i < 4; i++) {
    const tsr_layout *l = tsr__slot_layout(d, ints[i]);
    if (tsr__problem_has(p, ints[i])) {
      st = tsr__check_dtype(l, tsr__slots[ints[i]].name, TSR__DTYPE_BIT(TSR_I32), err);
      if (st == TSR_OK) {
        st = tsr__check_shape(l, tsr__slots[ints[i]].name, want[i], err);
      }
    }
  }
  return st;
}

static tsr_status check_q_side(tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int packed = tsr__problem_has(p, TSR_SLOT_cu_seqlens_q);
  if (packed && d->q.shape[0] != 1) {
    return tsr__invalid(err, "q.shape[0]", "is %lld, must be 1 with cu_seqlens_q", (long long)d->q.shape[0]);
  }
  p->total_q = packed ? d->q.shape[1] : 0;
  return resolve_length(d->max_seqlen_q, d->q.shape[1], packed ? PACKED : DENSE,
                        tsr__problem_has(p, TSR_SLOT_seqlens_q), "max_seqlen_q", "q.shape[1]", &p->seqlen_q, err);
}

static tsr_status check_paged_side(tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  int64_t capacity;
  p->page_size = d->k.shape[1];
  p->num_pages = d->k.shape[0];
  if (p->page_size < 1) {
    return tsr__invalid(err, "k.shape[1]", "is 0, must be a page size of at least 1");
  }
  p->max_pages = tsr__problem_has(p, TSR_SLOT_block_table) ? d->block_table.shape[1] : d->kv_indices.shape[0];
  if (__builtin_mul_overflow(p->max_pages, p->page_size, &capacity)) {
    capacity = INT64_MAX;
  }
  return resolve_length(d->max_seqlen_k, capacity, PAGED, 1, "max_seqlen_k", "pages * page size", &p->seqlen_k, err);
}

static tsr_status check_k_side(tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int packed = tsr__problem_has(p, TSR_SLOT_cu_seqlens_k);
  tsr_status st;
  if (tsr__problem_has(p, TSR_SLOT_block_table) || tsr__problem_has(p, TSR_SLOT_kv_indptr)) {
    st = check_paged_side(p, err);
  } else if (d->k.shape[0] != (packed ? 1 : p->batch)) {
    return packed ? tsr__invalid(err, "k.shape[0]", "is %lld, must be 1 with cu_seqlens_k", (long long)d->k.shape[0])
                  : tsr__invalid(err, "k.shape[0]", "is %lld, must be batch = %lld", (long long)d->k.shape[0],
                                 (long long)p->batch);
  } else {
    p->total_k = packed ? d->k.shape[1] : 0;
    st = resolve_length(d->max_seqlen_k, d->k.shape[1], packed ? PACKED : DENSE,
                        tsr__problem_has(p, TSR_SLOT_seqlens_k), "max_seqlen_k", "k.shape[1]", &p->seqlen_k, err);
  }
  for (int a = 0; st == TSR_OK && a < 2; a++) {
    if (d->v.shape[a] != d->k.shape[a]) {
      const tsr__field f = tsr__field_axis("v", "shape", a);
      return tsr__invalid(err, f.name, "is %lld, must be k.shape[%d] = %lld", (long long)d->v.shape[a], a,
                          (long long)d->k.shape[a]);
    }
  }
  return st;
}

/* o, lse and max_s; dropout_mask is in validate_mask.c. */
static tsr_status check_results(const tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const tsr__extent hq = {p->heads_q, "q.shape[2]", 0}, one = {1, "", 0};
  const tsr__extent b = {d->q.shape[0], "q.shape[0]", 0}, s = {d->q.shape[1], "q.shape[1]", 0};
  const tsr__extent dv = {p->head_dim_v, "v.shape[3]", 0};
  const tsr__extent o[4] = {b, s, hq, dv}, lse[4] = {b, hq, s, one}, max_s[4] = {hq, one, one, one};
  tsr_status st = TSR_OK;
  if (tsr__problem_has(p, TSR_SLOT_o)) {
    st = tsr__check_shape(&d->o, "o", o, err);
  }
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_lse)) {
    st = tsr__check_dtype(&d->lse, "lse", TSR__DTYPE_BIT(TSR_F32), err);
    st = st == TSR_OK ? tsr__check_shape(&d->lse, "lse", lse, err) : st;
  }
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_max_s)) {
    st = tsr__check_dtype(&d->max_s, "max_s", TSR__DTYPE_BIT(TSR_F32), err);
    st = st == TSR_OK ? tsr__check_shape(&d->max_s, "max_s", max_s, err) : st;
  }
  return st;
}

/* Products that later stages form (work items, partial results of TSR_MAX_SPLITS splits in bytes, pairs) stay below
 * 2^62. */
static tsr_status check_products(const tsr__problem *p, tsr_error *err) {
  const int64_t rows = p->seqlen_q > 0 ? p->seqlen_q : 1, keys = p->seqlen_k > 0 ? p->seqlen_k : 1;
  const int64_t channels = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
  const int64_t limit = INT64_C(1) << 62, partials = TSR_MAX_SPLITS * (int64_t)sizeof(float);
  int64_t q = 0, k = 0, pairs = 0;
  int over = __builtin_mul_overflow(p->batch, (int64_t)p->heads_q * rows, &q); /* 2^31 * 2^31 fits */
  over |= __builtin_mul_overflow(q, keys, &pairs) || pairs > limit;
  over |= __builtin_mul_overflow(q, channels * partials, &q) || q > limit;
  over |= __builtin_mul_overflow(p->batch, p->heads_kv * keys, &k) || __builtin_mul_overflow(k, channels * 8, &k) ||
          k > limit;
  if (over) {
    return tsr__invalid(err, "batch",
                        "is %lld, its product with q.shape[2] = %d, max_seqlen_q = %lld and max_seqlen_k = %lld is too "
                        "large (give the longest lengths where the tensors are packed or paged)",
                        (long long)p->batch, (int)p->heads_q, (long long)p->seqlen_q, (long long)p->seqlen_k);
  }
  return TSR_OK;
}

tsr_status tsr__validate_main(tsr__problem *p, int need_outputs, tsr_error *err) {
  tsr_status st = check_presence(p, need_outputs, err);
  if (st == TSR_OK) {
    st = check_dtypes(p, err);
  }
  if (st == TSR_OK) {
    st = check_heads(p, err);
  }
  if (st == TSR_OK) {
    st = check_channels(p, err);
  }
  if (st == TSR_OK) {
    st = check_batch(p, err);
  }
  if (st == TSR_OK) {
    st = check_tables(p, err);
  }
  if (st == TSR_OK) {
    st = check_q_side(p, err);
  }
  if (st == TSR_OK) {
    st = check_k_side(p, err);
  }
  if (st == TSR_OK) {
    st = check_results(p, err);
  }
  return st == TSR_OK ? check_products(p, err) : st;
}
