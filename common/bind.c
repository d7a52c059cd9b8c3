/* SPDX-License-Identifier: Apache-2.0 */
#include "common/bind.h"

#include <math.h>
#include <string.h>

#include "common/validate.h"

/* ---- Layouts --------------------------------------------------------------------------------- */

enum { ANY_OP = -1 };

/* Where tsr_attn_args keeps a tensor: {offset_bytes, stride[axes]}. */
typedef struct place {
  int slot;
  int axes;
  int op; /* members of the union: whose they are */
  size_t at;
} place;

#define PLACE(slot, axes, op, member) \
  { TSR_SLOT_##slot, axes, op, offsetof(tsr_attn_args, member) }

static const place places[] = {
    PLACE(q, 4, ANY_OP, q),
    PLACE(k, 4, ANY_OP, k),
    PLACE(v, 4, ANY_OP, v),
    PLACE(o, 4, ANY_OP, o),
    PLACE(lse, 3, ANY_OP, lse),
    PLACE(bias, 4, ANY_OP, bias),
    PLACE(mask, 4, ANY_OP, mask),
    PLACE(flashmask, 4, ANY_OP, flashmask),
    PLACE(segments_q, 2, ANY_OP, segments_q),
    PLACE(segments_k, 2, ANY_OP, segments_k),
    PLACE(alibi_slopes, 2, ANY_OP, alibi),
    PLACE(sink, 1, ANY_OP, sink),
    PLACE(max_s, 1, ANY_OP, max_s),
    PLACE(block_indptr, 3, ANY_OP, block_indptr),
    PLACE(block_indices, 3, ANY_OP, block_indices),
    PLACE(cu_seqlens_q, 1, ANY_OP, cu_q),
    PLACE(cu_seqlens_k, 1, ANY_OP, cu_k),
    PLACE(seqlens_q, 1, ANY_OP, len_q),
    PLACE(seqlens_k, 1, ANY_OP, len_k),
    PLACE(prefix, 1, ANY_OP, prefix),
    PLACE(mask_offsets, 1, ANY_OP, mask_offsets),
    PLACE(mask_row_strides, 1, ANY_OP, mask_row_strides),
    PLACE(k_scale, 4, TSR_FORWARD, u.fwd.k_scale),
    PLACE(k_zero, 4, TSR_FORWARD, u.fwd.k_zero),
    PLACE(v_scale, 4, TSR_FORWARD, u.fwd.v_scale),
    PLACE(v_zero, 4, TSR_FORWARD, u.fwd.v_zero),
    PLACE(q_descale, 2, TSR_FORWARD, u.fwd.q_descale),
    PLACE(block_table, 2, TSR_FORWARD, u.fwd.block_table),
    PLACE(kv_indptr, 1, TSR_FORWARD, u.fwd.kv_indptr),
    PLACE(kv_indices, 1, TSR_FORWARD, u.fwd.kv_indices),
    PLACE(last_page_len, 1, TSR_FORWARD, u.fwd.last_page_len),
    PLACE(dout, 4, TSR_BACKWARD, u.bwd.dout),
    PLACE(dq, 4, TSR_BACKWARD, u.bwd.dq),
    PLACE(dk, 4, TSR_BACKWARD, u.bwd.dk),
    PLACE(dv, 4, TSR_BACKWARD, u.bwd.dv),
    PLACE(dbias, 4, TSR_BACKWARD, u.bwd.dbias),
    PLACE(dlse, 3, TSR_BACKWARD, u.bwd.dlse),
    PLACE(dsink, 1, TSR_BACKWARD, u.bwd.dsink),
};

/* The member as {offset_bytes, stride[0], ...}. */
static tsr_i64 *place_of(tsr_attn_args *args, const place *pl) {
  return (tsr_i64 *)(void *)((char *)args + pl->at);
}

static int place_used(const tsr__problem *p, const place *pl) {
  return tsr__problem_has(p, pl->slot) && (pl->op == ANY_OP || pl->op == p->desc.op);
}

void tsr__bind_layout(const tsr__problem *p, tsr_attn_args *args) {
  const tsr_attention_desc *d = &p->desc;
  memset(args, 0, sizeof(*args));
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
    if (place_used(p, &places[i])) {
      const tsr_layout *l = tsr__slot_layout(d, places[i].slot);
      tsr_i64 *member = place_of(args, &places[i]);
      for (int a = 0; a < places[i].axes; a++) {
        member[1 + a] = l->stride[a];
      }
    }
  }
  args->batch = p->batch;
  args->seqlen_q = p->seqlen_q;
  args->seqlen_k = p->seqlen_k;
  args->total_q = p->total_q;
  args->total_k = p->total_k;
  args->window_left = (d->flags & TSR_WINDOW) != 0 ? d->window_left : -1;
  args->window_right = (d->flags & TSR_WINDOW) != 0 ? d->window_right : -1;
  args->sink_tokens = d->sink_tokens;
  args->chunk = d->chunk;
  args->page_size = p->page_size;
  args->num_pages = (tsr_i32)tsr_min_i64(p->num_pages, INT32_MAX); /* ids and entries are 32-bit */
  args->max_pages = (tsr_i32)tsr_min_i64(p->max_pages, INT32_MAX);
  args->heads_q = p->heads_q;
  args->heads_kv = p->heads_kv;
  args->group = p->group;
  args->head_dim = p->head_dim;
  args->head_dim_v = p->head_dim_v;
  args->block_rows = d->block_rows;
  args->block_cols = d->block_cols;
  args->flash_head_div = d->flashmask.shape[1] == p->heads_q    ? 1
                         : d->flashmask.shape[1] == p->heads_kv ? p->group
                                                                : p->heads_q;
  args->flash_n = (tsr_i32)d->flashmask.shape[3];
  args->k_group = p->k_group;
  args->v_group = p->v_group;
  args->flags = p->features;
  args->scale = (float)(1.0 / sqrt((double)p->head_dim));
  args->dropout_scale = 1.0f;
}

/* ---- Numbers --------------------------------------------------------------------------------- */

static tsr_status bind_size(int64_t value, int64_t most, const char *field, const char *what, tsr_i64 *out,
                            tsr_error *err) {
  if (value < 0 || value > most) {
    return tsr__invalid(err, field, "is %lld, must be 0..%s = %lld", (long long)value, what, (long long)most);
  }
  if (value != 0) {
    *out = value;
  }
  return TSR_OK;
}

static tsr_status bind_sizes(const tsr__problem *p, const tsr_run_args *a, tsr_attn_args *out, tsr_error *err) {
  tsr_status st = bind_size(a->batch, p->batch, "batch", "the plan's batch", &out->batch, err);
  if (st == TSR_OK) {
    st = bind_size(a->total_q, p->total_q, "total_q",
                   (p->features & TSR_A_Q_PACKED) != 0 ? "the plan's q.shape[1]" : "(q is not packed)", &out->total_q,
                   err);
  }
  if (st == TSR_OK) {
    st = bind_size(a->total_k, p->total_k, "total_k",
                   (p->features & TSR_A_K_PACKED) != 0 ? "the plan's k.shape[1]" : "(k is not packed)", &out->total_k,
                   err);
  }
  return st;
}

static tsr_status bind_dropout(const tsr__problem *p, const tsr_run_args *a, tsr_attn_args *out, tsr_error *err) {
  const int on = (p->features & TSR_A_DROPOUT) != 0;
  const double keep = 1.0 - (double)a->dropout_p;
  if (!on && a->dropout_p != 0.0f) {
    return tsr__invalid(err, "dropout_p", "is %g, must be 0 without TSR_DROPOUT", (double)a->dropout_p);
  }
  if (!(a->dropout_p >= 0.0f && a->dropout_p <= 1.0f)) {
    return tsr__invalid(err, "dropout_p", "is %g, must be 0..1", (double)a->dropout_p);
  }
  if ((!on || (p->features & TSR_A_RNG_STATE) != 0) && (a->seed != 0 || a->offset != 0)) {
    return tsr__invalid(err, a->seed != 0 ? "seed" : "offset", "is set, must be 0 %s",
                        on ? "with rng_state" : "without TSR_DROPOUT");
  }
  if (on) {
    out->seed = a->seed;
    out->offset = a->offset;
    out->dropout_threshold = (tsr_u64)floor((double)a->dropout_p * 4294967296.0);
    out->dropout_scale = keep > 0.0 ? (float)(1.0 / keep) : 0.0f;
  }
  return TSR_OK;
}

static tsr_status bind_scalars(const tsr__problem *p, const tsr_run_args *a, tsr__bound *bound, tsr_error *err) {
  for (int i = 0; i < TSR_EXPR_MAX_SCALARS; i++) {
    if (i >= p->desc.num_scalars && a->scalars[i] != 0.0f) {
      return tsr__fail(err, TSR_INVALID, "scalars", "scalars[%d] is set, the plan has %lld scalars", i,
                       (long long)p->desc.num_scalars);
    }
    bound->env.scalar[i] = a->scalars[i];
  }
  return TSR_OK;
}

static tsr_status bind_numbers(const tsr__problem *p, const tsr_run_args *a, tsr_attn_args *out, tsr_error *err) {
  const int cap = (p->features & TSR_A_SOFTCAP) != 0;
  if (!isfinite(a->scale)) {
    return tsr__invalid(err, "scale", "is %g, must be finite", (double)a->scale);
  }
  if (cap ? !(a->softcap > 0.0f && isfinite(a->softcap)) : a->softcap != 0.0f) {
    return tsr__invalid(err, "softcap", "is %g, must be %s", (double)a->softcap,
                        cap ? "above 0 and finite" : "0 without TSR_SOFTCAP");
  }
  if (a->reserved != 0) {
    return tsr__invalid(err, "reserved", "is %u, must be 0", (unsigned)a->reserved);
  }
  if (a->scale != 0.0f) {
    out->scale = a->scale;
  }
  out->softcap = a->softcap;
  return bind_dropout(p, a, out, err);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

/* Whose memory a slot uses: with TSR_V_IN_K, k's serves v. */
static int source_of(const tsr__problem *p, int slot) {
  if ((p->desc.flags & TSR_V_IN_K) != 0) {
    return slot == TSR_SLOT_v         ? TSR_SLOT_k
           : slot == TSR_SLOT_v_scale ? TSR_SLOT_k_scale
           : slot == TSR_SLOT_v_zero  ? TSR_SLOT_k_zero
                                      : slot;
  }
  return slot;
}

enum { EVERY_SLOT = -1 };

/* What tiles are classed by: bit per slot. */
static int64_t tile_slots(const tsr__problem *p) {
  static const int slots[] = {TSR_SLOT_cu_seqlens_q,     TSR_SLOT_cu_seqlens_k, TSR_SLOT_seqlens_q,
                              TSR_SLOT_seqlens_k,        TSR_SLOT_kv_indptr,    TSR_SLOT_last_page_len,
                              TSR_SLOT_prefix,           TSR_SLOT_mask,         TSR_SLOT_mask_offsets,
                              TSR_SLOT_mask_row_strides, TSR_SLOT_segments_q,   TSR_SLOT_segments_k,
                              TSR_SLOT_flashmask,        TSR_SLOT_block_indptr, TSR_SLOT_block_indices};
  int64_t set = 0;
  for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
    set |= INT64_C(1) << slots[i];
  }
  for (int i = 0; p->mask_expr != NULL && i < p->desc.num_aux; i++) {
    set |= INT64_C(1) << (TSR_SLOT_aux0 + i);
  }
  return set;
}

/* slots: bit per slot; the others are not looked at. */
static tsr_status bind_buffers(const tsr__problem *p, const tsr_run_args *a, int host, int64_t slots, tsr__bound *bound,
                               tsr_error *err) {
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    const int source = source_of(p, s);
    const tsr_buffer *b = tsr__slot_buffer(a, source);
    tsr_status st = TSR_OK;
    if (!(slots >> s & 1)) {
      continue;
    }
    if (source != s && s != TSR_SLOT_v) {
      st = tsr__check_no_buffer(tsr__slot_buffer(a, s), tsr__slots[s].name, err);
    }
    if (st == TSR_OK && !tsr__problem_has(p, s)) {
      st = tsr__check_no_buffer(b, tsr__slots[s].name, err);
    } else if (st == TSR_OK && source == s) {
      if (b->ptr == NULL) {
        const tsr_layout used = tsr__run_layout(p, &bound->args, s);
        st = tsr__check_buffer(b, tsr__slots[s].name, &used, host, err);
      } else {
        st = tsr__check_buffer(b, tsr__slots[s].name, tsr__slot_layout(&p->desc, s), host, err);
      }
    }
    if (st != TSR_OK) {
      return st;
    }
    if (tsr__problem_has(p, s)) {
      bound->ptr[s] = host ? tsr__buffer_address(b) : b->ptr;
    }
  }
  for (size_t i = 0; !host && i < sizeof(places) / sizeof(places[0]); i++) {
    if (place_used(p, &places[i])) {
      place_of(&bound->args, &places[i])[0] = tsr__slot_buffer(a, source_of(p, places[i].slot))->offset_bytes;
    }
  }
  return TSR_OK;
}

static void bind_pointers(const tsr__problem *p, tsr__bound *bound) {
  tsr_attn_ptrs *ptrs = &bound->ptrs;
  void *const *ptr = bound->ptr;
  ptrs->cu_q = ptr[TSR_SLOT_cu_seqlens_q];
  ptrs->cu_k = ptr[TSR_SLOT_cu_seqlens_k];
  ptrs->len_q = ptr[TSR_SLOT_seqlens_q];
  ptrs->len_k = ptr[TSR_SLOT_seqlens_k];
  ptrs->prefix = ptr[TSR_SLOT_prefix];
  ptrs->mask = (const tsr_u8 *)ptr[TSR_SLOT_mask];
  ptrs->mask_offsets = (const tsr_i64 *)ptr[TSR_SLOT_mask_offsets];
  ptrs->mask_row_strides = (const tsr_i64 *)ptr[TSR_SLOT_mask_row_strides];
  ptrs->segments_q = (const tsr_i32 *)ptr[TSR_SLOT_segments_q];
  ptrs->segments_k = (const tsr_i32 *)ptr[TSR_SLOT_segments_k];
  ptrs->flashmask = (const tsr_i32 *)ptr[TSR_SLOT_flashmask];
  ptrs->block_indptr = (const tsr_i32 *)ptr[TSR_SLOT_block_indptr];
  ptrs->block_indices = (const tsr_i32 *)ptr[TSR_SLOT_block_indices];
  ptrs->block_table = (const tsr_i32 *)ptr[TSR_SLOT_block_table];
  ptrs->kv_indptr = (const tsr_i32 *)ptr[TSR_SLOT_kv_indptr];
  ptrs->kv_indices = (const tsr_i32 *)ptr[TSR_SLOT_kv_indices];
  ptrs->last_page_len = (const tsr_i32 *)ptr[TSR_SLOT_last_page_len];
  for (int i = 0; i < p->desc.num_aux; i++) {
    const tsr_layout *l = &p->desc.aux[i];
    tsr_expr_aux *aux = &bound->env.aux[i];
    aux->data = ptr[TSR_SLOT_aux0 + i];
    aux->dtype = l->dtype;
    memcpy(aux->shape, l->shape, sizeof(aux->shape));
    memcpy(aux->stride, l->stride, sizeof(aux->stride));
    aux->rank = tsr__aux_rank(l);
  }
}

/* Seed and offset in memory that the host can read; element 1 of a stride-0 tensor is element 0. */
static void bind_rng_state(const tsr__problem *p, tsr__bound *bound) {
  const tsr_i64 *state = (const tsr_i64 *)bound->ptr[TSR_SLOT_rng_state];
  if (state != NULL) {
    bound->args.seed = (tsr_u64)state[0];
    bound->args.offset = (tsr_u64)state[p->desc.rng_state.stride[0]];
  }
}

/* ---- The whole ------------------------------------------------------------------------------- */

static tsr_status check_extras(const tsr__problem *p, const tsr_run_args *a, int host, tsr_error *err) {
  const struct {
    const void *copy;
    const char *field;
    int slot;
  } copies[] = {{a->host_cu_seqlens_q, "host_cu_seqlens_q", TSR_SLOT_cu_seqlens_q},
                {a->host_cu_seqlens_k, "host_cu_seqlens_k", TSR_SLOT_cu_seqlens_k},
                {a->host_seqlens_q, "host_seqlens_q", TSR_SLOT_seqlens_q},
                {a->host_seqlens_k, "host_seqlens_k", TSR_SLOT_seqlens_k}};
  for (int i = 0; i < 4; i++) {
    if (copies[i].copy != NULL && (host || !tsr__problem_has(p, copies[i].slot))) {
      return tsr__invalid(err, copies[i].field, "is given, must be NULL %s %s", host ? "on host memory:" : "without",
                          host ? "the tensor itself is read" : tsr__slots[copies[i].slot].name);
    }
  }
  if (a->stats != NULL && !tsr__struct_size_ok(a->stats->size, sizeof(*a->stats))) {
    return tsr__invalid(err, "stats", "has size %zu, must be sizeof(tsr_run_stats)", a->stats->size);
  }
  return tsr__check_queue(a->queue, a->wait_events, a->num_wait_events, a->event, host, err);
}

/* Lengths, and on host memory everything that is read by value. */
static tsr_status bind_tables(const tsr__problem *p, const tsr_run_args *a, int host, tsr__bound *bound,
                              tsr_error *err) {
  tsr__tables tables;
  tsr_status st;
  tables.cu_q = host ? bound->ptr[TSR_SLOT_cu_seqlens_q] : a->host_cu_seqlens_q;
  tables.cu_k = host ? bound->ptr[TSR_SLOT_cu_seqlens_k] : a->host_cu_seqlens_k;
  tables.len_q = host ? bound->ptr[TSR_SLOT_seqlens_q] : a->host_seqlens_q;
  tables.len_k = host ? bound->ptr[TSR_SLOT_seqlens_k] : a->host_seqlens_k;
  st = tsr__check_lengths(p, &bound->args, &tables, err);
  if (st == TSR_OK && host) {
    bind_pointers(p, bound);
    bind_rng_state(p, bound);
    st = tsr__check_tables(p, bound, err);
  }
  return st;
}

tsr_status tsr__bind(const tsr__problem *p, const tsr_run_args *args, int host, int validate, int64_t workspace_bytes,
                     int64_t workspace_align, tsr__bound *bound, tsr_error *err) {
  tsr_run_args a;
  tsr_status st = tsr__struct_import(&a, sizeof(a), 0, args, "tsr_run_args", err);
  if (st != TSR_OK) {
    return st;
  }
  memset(bound, 0, sizeof(*bound));
  tsr__bind_layout(p, &bound->args);
  st = bind_sizes(p, &a, &bound->args, err);
  if (st == TSR_OK) {
    st = bind_numbers(p, &a, &bound->args, err);
  }
  if (st == TSR_OK) {
    st = bind_scalars(p, &a, bound, err);
  }
  if (st == TSR_OK) {
    st = check_extras(p, &a, host, err);
  }
  if (st == TSR_OK) {
    st = bind_buffers(p, &a, host, EVERY_SLOT, bound, err);
  }
  if (st == TSR_OK) {
    st = bind_tables(p, &a, host, bound, err);
  }
  if (st == TSR_OK && host) {
    st = tsr__check_pages(p, bound, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_workspace(&a.workspace, a.workspace_bytes, host, workspace_bytes, workspace_align, err);
  }
  if (st == TSR_OK && host && validate) {
    st = tsr__check_overlap(p, bound, &a.workspace, workspace_bytes, err);
  }
  if (st == TSR_OK) {
    bound->workspace = host ? tsr__buffer_address(&a.workspace) : a.workspace.ptr;
    bound->stats = a.stats;
    st = tsr__ok(err);
  }
  return st;
}

tsr_status tsr__bind_tiles(const tsr__problem *p, const tsr_run_args *args, tsr__bound *bound, tsr_error *err) {
  tsr_run_args a;
  tsr_status st = tsr__struct_import(&a, sizeof(a), 0, args, "tsr_run_args", err);
  if (st != TSR_OK) {
    return st;
  }
  memset(bound, 0, sizeof(*bound));
  tsr__bind_layout(p, &bound->args);
  st = bind_sizes(p, &a, &bound->args, err);
  if (st == TSR_OK) {
    st = bind_scalars(p, &a, bound, err);
  }
  if (st == TSR_OK) {
    st = bind_buffers(p, &a, 1, tile_slots(p), bound, err);
  }
  return st == TSR_OK ? bind_tables(p, &a, 1, bound, err) : st;
}
