/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of append and merge. Their runs are in cache_bind.c. */
#include "common/cache_ops.h"

#include <string.h>

#include "common/validate_cache.h"

static const tsr__extent one = {1, "", 0};
static const tsr__extent any = {0, NULL, 0};

static tsr__extent exactly(int64_t n, const char *what) {
  const tsr__extent e = {n, what, 0};
  return e;
}

static int has(const tsr_layout *l) {
  return l->dtype != TSR_DTYPE_NONE;
}

/* dtype and shape of a tensor, if it is there. */
static tsr_status check_tensor(const tsr_layout *l, const char *name, uint32_t dtypes, tsr__extent e0, tsr__extent e1,
                               tsr__extent e2, tsr__extent e3, tsr_error *err) {
  const tsr__extent want[4] = {e0, e1, e2, e3};
  tsr_status st;
  if (!has(l)) {
    return TSR_OK;
  }
  st = tsr__check_dtype(l, name, dtypes, err);
  return st == TSR_OK ? tsr__check_shape(l, name, want, err) : st;
}

static tsr_status check_memory(int32_t memory, tsr_error *err) {
  if (memory < TSR_MEMORY_NATIVE || memory > TSR_MEMORY_SVM) {
    return tsr__invalid(err, "memory", "is %d, must be a TSR_MEMORY_ constant", (int)memory);
  }
  return TSR_OK;
}

static tsr_status check_head_dim(int64_t n, const char *field, tsr_error *err) {
  if (n < 1) {
    return tsr__invalid(err, field, "is %lld, must be at least 1", (long long)n);
  }
  if (n > TSR_MAX_HEAD_DIM) {
    return tsr__fail(err, TSR_UNSUPPORTED, field, "%s is %lld, head dimensions above %d are not supported", field,
                     (long long)n, TSR_MAX_HEAD_DIM);
  }
  return TSR_OK;
}

static tsr_status check_heads(int64_t n, const char *field, tsr_error *err) {
  if (n < 1 || n > INT32_MAX) {
    return tsr__invalid(err, field, "is %lld, must be 1..2^31 - 1 heads", (long long)n);
  }
  return TSR_OK;
}

/* batch * rows * heads * channels below 2^62. */
static tsr_status check_product(int64_t batch, int64_t rows, int64_t heads, int64_t channels, const char *field,
                                tsr_error *err) {
  int64_t n;
  if (__builtin_mul_overflow(batch, rows > 0 ? rows : 1, &n) || __builtin_mul_overflow(n, heads, &n) ||
      __builtin_mul_overflow(n, channels, &n) || n > INT64_C(1) << 62) {
    return tsr__invalid(err, field, "is %lld, its product with rows, heads and channels is too large",
                        (long long)batch);
  }
  return TSR_OK;
}

/* ---- Append: layouts --------------------------------------------------------------------------- */

const tsr__append_slot tsr__append_slots[TSR__APPEND_SLOTS] = {
#define SLOT(name, writes, uses) \
  { #name, offsetof(tsr_append_desc, name), offsetof(tsr_append_args, name), writes, TSR__APPEND_##uses }
    SLOT(k_new, 0, TOKENS),      SLOT(v_new, 0, TOKENS),  SLOT(cu_seqlens_new, 0, STARTS),
    SLOT(k_cache, 1, CACHE),     SLOT(v_cache, 1, CACHE), SLOT(seqlens_k, 0, BATCH),
    SLOT(block_table, 0, BATCH), SLOT(k_scale, 2, CACHE), SLOT(v_scale, 2, CACHE),
    SLOT(cos, 0, ALL),           SLOT(sin, 0, ALL),       SLOT(positions, 0, TOKENS),
    SLOT(q, 0, TOKENS),          SLOT(q_out, 1, TOKENS),
#undef SLOT
};

static tsr_layout *layout_at(tsr_append_desc *d, int slot) {
  return (tsr_layout *)(void *)((char *)d + tsr__append_slots[slot].desc_offset);
}

static tsr_status check_append_layouts(tsr_append_desc *d, tsr_error *err) {
  const int dynamic = (d->flags & TSR_APPEND_STATIC_SCALES) == 0;
  const struct {
    const tsr_layout *layout;
    const char *name;
  } needed[] = {{&d->k_new, "k_new"}, {&d->v_new, "v_new"}, {&d->k_cache, "k_cache"}, {&d->v_cache, "v_cache"}};
  const struct {
    const tsr_layout *a, *b;
    const char *a_name, *b_name;
  } pairs[] = {{&d->cos, &d->sin, "cos", "sin"}, {&d->q, &d->q_out, "q", "q_out"}};
  tsr_status st = TSR_OK;
  for (int s = 0; st == TSR_OK && s < TSR__APPEND_SLOTS; s++) {
    const tsr__append_slot *slot = &tsr__append_slots[s];
    const tsr_layout *l = layout_at(d, s);
    st = !has(l) ? tsr__check_absent(l, slot->name, err)
                 : tsr__layout_check(l, slot->name, slot->writes == 1 || (slot->writes == 2 && dynamic), err);
  }
  for (int i = 0; st == TSR_OK && i < 4; i++) {
    if (!has(needed[i].layout)) {
      return tsr__invalid(err, needed[i].name, "is absent, must be given");
    }
  }
  for (int i = 0; st == TSR_OK && i < 2; i++) {
    if (has(pairs[i].a) != has(pairs[i].b)) {
      return tsr__invalid(err, has(pairs[i].a) ? pairs[i].b_name : pairs[i].a_name, "is absent, must come with %s",
                          has(pairs[i].a) ? pairs[i].a_name : pairs[i].b_name);
    }
  }
  return st;
}

static tsr_status check_append_flags(const tsr_append_desc *d, tsr_error *err) {
  const uint32_t known = TSR_APPEND_INTERLEAVED | TSR_APPEND_STATIC_SCALES;
  if ((d->flags & ~known) != 0) {
    return tsr__invalid(err, "flags", "is 0x%x, bits 0x%x are unknown", (unsigned)d->flags,
                        (unsigned)(d->flags & ~known));
  }
  if ((d->flags & TSR_APPEND_STATIC_SCALES) != 0 && !has(&d->k_scale) && !has(&d->v_scale)) {
    return tsr__invalid(err, "flags", "has TSR_APPEND_STATIC_SCALES, which needs k_scale or v_scale");
  }
  if ((d->flags & TSR_APPEND_INTERLEAVED) != 0 && !has(&d->cos)) {
    return tsr__invalid(err, "flags", "has TSR_APPEND_INTERLEAVED, which needs cos and sin");
  }
  if (d->reserved != 0) {
    return tsr__invalid(err, "reserved", "is %d, must be 0", (int)d->reserved);
  }
  return check_memory(d->memory, err);
}

/* ---- Append: new rows ---------------------------------------------------------------------------- */

static tsr_status check_new(tsr__append_problem *p, tsr_error *err) {
  const tsr_append_desc *d = &p->desc;
  const tsr__extent b = exactly(d->k_new.shape[0], "k_new.shape[0]"), s = exactly(d->k_new.shape[1], "k_new.shape[1]");
  const tsr__extent h = exactly(d->k_new.shape[2], "k_new.shape[2]");
  tsr_status st = tsr__check_dtype(&d->k_new, "k_new", TSR__FLOATS, err);
  if (st == TSR_OK) {
    st = check_heads(d->k_new.shape[2], "k_new.shape[2]", err);
  }
  if (st == TSR_OK) {
    st = check_head_dim(d->k_new.shape[3], "k_new.shape[3]", err);
  }
  if (st == TSR_OK) {
    st = check_tensor(&d->v_new, "v_new", TSR__DTYPE_BIT(d->k_new.dtype), b, s, h, any, err);
  }
  if (st == TSR_OK) {
    st = check_head_dim(d->v_new.shape[3], "v_new.shape[3]", err);
  }
  if (st == TSR_OK) {
    p->heads_kv = (int32_t)d->k_new.shape[2];
    p->head_dim = (int32_t)d->k_new.shape[3];
    p->head_dim_v = (int32_t)d->v_new.shape[3];
  }
  return st;
}

static tsr_status check_new_sizes(tsr__append_problem *p, tsr_error *err) {
  const tsr_append_desc *d = &p->desc;
  const int packed = has(&d->cu_seqlens_new);
  const int64_t slot = d->k_new.shape[1];
  if (d->batch < 0 || d->batch == INT64_MAX || (!packed && d->batch != 0 && d->batch != d->k_new.shape[0])) {
    return tsr__invalid(err, "batch", "is %lld, must be 0 or %s", (long long)d->batch,
                        packed ? "the number of sequences" : "k_new.shape[0]");
  }
  if (packed && d->k_new.shape[0] != 1) {
    return tsr__invalid(err, "k_new.shape[0]", "is %lld, must be 1 with cu_seqlens_new", (long long)d->k_new.shape[0]);
  }
  if (packed && d->cu_seqlens_new.shape[0] < 1) {
    return tsr__invalid(err, "cu_seqlens_new.shape[0]", "is 0, must be batch + 1");
  }
  p->batch = !packed ? d->k_new.shape[0] : d->batch != 0 ? d->batch : d->cu_seqlens_new.shape[0] - 1;
  p->total_new = packed ? slot : 0;
  if (d->max_seqlen_new < 0 || (!packed && d->max_seqlen_new != 0 && d->max_seqlen_new != slot)) {
    return tsr__invalid(err, "max_seqlen_new", "is %lld, must be %s", (long long)d->max_seqlen_new,
                        packed ? "at least 0" : "0 or k_new.shape[1]");
  }
  p->seqlen_new = d->max_seqlen_new != 0 ? d->max_seqlen_new : slot;
  if (p->seqlen_new > INT32_MAX && (!packed || d->max_seqlen_new != 0)) {
    return tsr__invalid(err, packed ? "max_seqlen_new" : "k_new.shape[1]", "is %lld, must be below 2^31",
                        (long long)p->seqlen_new);
  }
  if (p->seqlen_new > INT32_MAX) {
    p->seqlen_new = INT32_MAX; /* more than one sequence can use */
  }
  return TSR_OK;
}

static tsr_status check_append_lengths(tsr__append_problem *p, tsr_error *err) {
  const tsr_append_desc *d = &p->desc;
  tsr_status st = check_tensor(&d->cu_seqlens_new, "cu_seqlens_new", TSR__INDEX, exactly(p->batch + 1, "batch + 1"),
                               one, one, one, err);
  if (st == TSR_OK) {
    st = check_tensor(&d->seqlens_k, "seqlens_k", TSR__INDEX, exactly(p->batch, "batch"), one, one, one, err);
  }
  if (st == TSR_OK && has(&d->cu_seqlens_new) && has(&d->seqlens_k) && d->cu_seqlens_new.dtype != d->seqlens_k.dtype) {
    return tsr__invalid(err, "seqlens_k.dtype", "is %s, must be %s as cu_seqlens_new's: one index type a plan",
                        tsr_dtype_name(d->seqlens_k.dtype), tsr_dtype_name(d->cu_seqlens_new.dtype));
  }
  p->len_dtype = has(&d->cu_seqlens_new) ? d->cu_seqlens_new.dtype : has(&d->seqlens_k) ? d->seqlens_k.dtype : TSR_I32;
  return st;
}

/* ---- Append: caches ------------------------------------------------------------------------------ */

static tsr_status check_caches(tsr__append_problem *p, tsr_error *err) {
  const tsr_append_desc *d = &p->desc;
  const int paged = has(&d->block_table);
  const uint32_t quantised = TSR__FP8 | TSR__DTYPE_BIT(TSR_I8) | TSR__DTYPE_BIT(TSR_U4);
  const uint32_t same = TSR__DTYPE_BIT(d->k_new.dtype);
  const tsr__extent hkv = exactly(p->heads_kv, "k_new.shape[2]");
  const tsr__extent b = paged ? any : exactly(p->batch, "batch");
  tsr_status st =
      check_tensor(&d->k_cache, "k_cache", same | quantised, b, any, hkv, exactly(p->head_dim, "k_new.shape[3]"), err);
  if (st == TSR_OK) {
    st =
        check_tensor(&d->v_cache, "v_cache", d->k_cache.dtype == d->k_new.dtype ? same : quantised,
                     exactly(d->k_cache.shape[0], "k_cache.shape[0]"), exactly(d->k_cache.shape[1], "k_cache.shape[1]"),
                     hkv, exactly(p->head_dim_v, "v_new.shape[3]"), err);
  }
  if (st == TSR_OK) {
    st = check_tensor(&d->block_table, "block_table", TSR__DTYPE_BIT(TSR_I32), exactly(p->batch, "batch"), any, one,
                      one, err);
  }
  if (st != TSR_OK) {
    return st;
  }
  p->capacity = d->k_cache.shape[1];
  if (paged) {
    p->page_size = d->k_cache.shape[1];
    if (p->page_size < 1) {
      return tsr__invalid(err, "k_cache.shape[1]", "is 0, must be a page size of at least 1");
    }
    if (__builtin_mul_overflow(d->block_table.shape[1], p->page_size, &p->capacity) || p->capacity > INT32_MAX) {
      p->capacity = INT32_MAX; /* positions are below 2^31 */
    }
  } else if (p->capacity > INT32_MAX) {
    return tsr__invalid(err, "k_cache.shape[1]", "is %lld, must be below 2^31", (long long)p->capacity);
  }
  return TSR_OK;
}

static tsr_status check_scale(const tsr__append_problem *p, const tsr_layout *cache, const char *cache_name,
                              const tsr_layout *scale, const char *name, int64_t channels, int32_t *group,
                              tsr_error *err) {
  const int fixed = (p->desc.flags & TSR_APPEND_STATIC_SCALES) != 0;
  const tsr__field f0 = tsr__field_axis(cache_name, "shape", 0), f1 = tsr__field_axis(cache_name, "shape", 1);
  const tsr__field f2 = tsr__field_axis(cache_name, "shape", 2), f3 = tsr__field_axis(name, "shape", 3);
  const tsr__extent e0 = {cache->shape[0], f0.name, fixed}, e1 = {cache->shape[1], f1.name, fixed};
  const tsr__extent e2 = {cache->shape[2], f2.name, fixed};
  tsr_status st;
  *group = 0;
  if (!has(scale)) {
    if (cache->dtype == TSR_I8 || cache->dtype == TSR_U4) {
      return tsr__invalid(err, name, "is absent, must be given where %s.dtype is %s", cache_name,
                          tsr_dtype_name(cache->dtype));
    }
    return TSR_OK;
  }
  if (cache->dtype == p->desc.k_new.dtype) {
    return tsr__invalid(err, name, "is given, must be absent where %s.dtype is %s", cache_name,
                        tsr_dtype_name(cache->dtype));
  }
  st = check_tensor(scale, name, TSR__FLOATS, e0, e1, e2, any, err);
  if (st == TSR_OK && (scale->shape[3] < 1 || channels % scale->shape[3] != 0)) {
    return tsr__invalid(err, f3.name, "is %lld, must divide %s.shape[3] = %lld", (long long)scale->shape[3], cache_name,
                        (long long)channels);
  }
  *group = st == TSR_OK ? (int32_t)(channels / scale->shape[3]) : 0;
  return st;
}

/* ---- Append: rotary ------------------------------------------------------------------------------ */

static tsr_status check_rotary(tsr__append_problem *p, tsr_error *err) {
  tsr_append_desc *d = &p->desc;
  const tsr__extent b = exactly(d->k_new.shape[0], "k_new.shape[0]"), s = exactly(d->k_new.shape[1], "k_new.shape[1]");
  const uint32_t f32 = TSR__DTYPE_BIT(TSR_F32);
  tsr_status st;
  if (!has(&d->cos)) {
    const char *field = d->rotary_dim != 0 ? "rotary_dim" : has(&d->positions) ? "positions" : has(&d->q) ? "q" : NULL;
    return field == NULL ? TSR_OK : tsr__invalid(err, field, "is given, needs cos and sin");
  }
  if (d->rotary_dim < 0 || d->rotary_dim > p->head_dim || d->rotary_dim % 2 != 0) {
    return tsr__invalid(err, "rotary_dim", "is %d, must be even and at most k_new.shape[3] = %d", (int)d->rotary_dim,
                        (int)p->head_dim);
  }
  if (d->rotary_dim == 0 && p->head_dim % 2 != 0) {
    return tsr__invalid(err, "rotary_dim", "is 0, must be given where k_new.shape[3] = %d is odd", (int)p->head_dim);
  }
  if (d->rotary_dim == 0) {
    d->rotary_dim = p->head_dim;
  }
  st = check_tensor(&d->cos, "cos", f32, any, exactly(d->rotary_dim / 2, "rotary_dim / 2"), one, one, err);
  if (st == TSR_OK) {
    st = check_tensor(&d->sin, "sin", f32, exactly(d->cos.shape[0], "cos.shape[0]"),
                      exactly(d->rotary_dim / 2, "rotary_dim / 2"), one, one, err);
  }
  if (st == TSR_OK) {
    st = check_tensor(&d->positions, "positions", TSR__DTYPE_BIT(TSR_I32), b, s, one, one, err);
  }
  if (st != TSR_OK || !has(&d->q)) {
    return st;
  }
  st = check_tensor(&d->q, "q", TSR__FLOATS, b, s, any, exactly(p->head_dim, "k_new.shape[3]"), err);
  if (st == TSR_OK) {
    st = check_heads(d->q.shape[2], "q.shape[2]", err);
  }
  if (st == TSR_OK) {
    st = tsr__check_dtype(&d->q_out, "q_out", TSR__DTYPE_BIT(d->q.dtype), err);
  }
  p->heads_q = (int32_t)d->q.shape[2];
  return st == TSR_OK ? tsr__check_same_shape(&d->q_out, "q_out", &d->q, "q", err) : st;
}

static tsr_status append_check(tsr__append_problem *p, tsr_error *err) {
  tsr_append_desc *d = &p->desc;
  tsr_status st = check_append_layouts(d, err);
  if (st == TSR_OK) {
    st = check_append_flags(d, err);
  }
  if (st == TSR_OK) {
    st = check_new(p, err);
  }
  if (st == TSR_OK) {
    st = check_new_sizes(p, err);
  }
  if (st == TSR_OK) {
    st = check_append_lengths(p, err);
  }
  if (st == TSR_OK) {
    st = check_caches(p, err);
  }
  if (st == TSR_OK) {
    st = check_scale(p, &d->k_cache, "k_cache", &d->k_scale, "k_scale", p->head_dim, &p->k_group, err);
  }
  if (st == TSR_OK) {
    st = check_scale(p, &d->v_cache, "v_cache", &d->v_scale, "v_scale", p->head_dim_v, &p->v_group, err);
  }
  if (st == TSR_OK) {
    st = check_rotary(p, err);
  }
  return st == TSR_OK ? check_product(p->batch, p->seqlen_new, p->heads_q > p->heads_kv ? p->heads_q : p->heads_kv,
                                      p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v, "batch", err)
                      : st;
}

tsr_status tsr__append_init(const tsr_append_desc *desc, tsr__append_problem *p, tsr_error *err) {
  tsr_status st;
  memset(p, 0, sizeof(*p));
  st = tsr__struct_import(&p->desc, sizeof(p->desc), 0, desc, "tsr_append_desc", err);
  if (st == TSR_OK) {
    st = append_check(p, err);
  }
  if (st != TSR_OK) {
    memset(p, 0, sizeof(*p));
    return st;
  }
  for (int s = 0; s < TSR__APPEND_SLOTS; s++) {
    tsr_layout *l = layout_at(&p->desc, s);
    if (has(l)) {
      *l = tsr__layout_resolve(l);
    }
  }
  p->desc.batch = p->batch;
  p->desc.max_seqlen_new = p->seqlen_new;
  p->desc.variant = NULL;
  return tsr__ok(err);
}

/* ---- Merge ----------------------------------------------------------------------------------- */

static tsr_status check_merge_layouts(const tsr_merge_desc *d, tsr_error *err) {
  const struct {
    const tsr_layout *layout;
    const char *name;
    int needed, writes;
  } all[] = {{&d->partial_o, "partial_o", 1, 0},
             {&d->partial_lse, "partial_lse", 1, 0},
             {&d->o, "o", 1, 1},
             {&d->lse, "lse", 0, 1},
             {&d->sink, "sink", 0, 0}};
  for (int i = 0; i < 5; i++) {
    const tsr_layout *l = all[i].layout;
    const tsr_status st =
        has(l) ? tsr__layout_check(l, all[i].name, all[i].writes, err) : tsr__check_absent(l, all[i].name, err);
    if (st != TSR_OK) {
      return st;
    }
    if (all[i].needed && !has(l)) {
      return tsr__invalid(err, all[i].name, "is absent, must be given");
    }
  }
  return TSR_OK;
}

static tsr_status merge_check(const tsr_merge_desc *d, tsr_error *err) {
  const uint32_t f32 = TSR__DTYPE_BIT(TSR_F32);
  const tsr__extent b = exactly(d->o.shape[0], "o.shape[0]"), s = exactly(d->o.shape[1], "o.shape[1]");
  const tsr__extent h = exactly(d->o.shape[2], "o.shape[2]");
  tsr_status st = check_memory(d->memory, err);
  if (st == TSR_OK && d->reserved != 0) {
    return tsr__invalid(err, "reserved", "is %d, must be 0", (int)d->reserved);
  }
  if (st == TSR_OK && (d->num_partials < 1 || d->num_partials > TSR_MAX_PARTIALS)) {
    return tsr__invalid(err, "num_partials", "is %lld, must be 1..%d", (long long)d->num_partials, TSR_MAX_PARTIALS);
  }
  if (st == TSR_OK) {
    st = check_merge_layouts(d, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_dtype(&d->o, "o", TSR__FLOATS, err);
  }
  if (st == TSR_OK) {
    st = check_heads(d->o.shape[2], "o.shape[2]", err);
  }
  if (st == TSR_OK) {
    st = check_head_dim(d->o.shape[3], "o.shape[3]", err);
  }
  if (st == TSR_OK) {
    st = tsr__check_dtype(&d->partial_o, "partial_o", TSR__DTYPE_BIT(d->o.dtype) | f32, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_same_shape(&d->partial_o, "partial_o", &d->o, "o", err);
  }
  if (st == TSR_OK) {
    st = check_tensor(&d->partial_lse, "partial_lse", f32, b, h, s, one, err);
  }
  if (st == TSR_OK) {
    st = check_tensor(&d->lse, "lse", f32, b, h, s, one, err);
  }
  if (st == TSR_OK) {
    st = check_tensor(&d->sink, "sink", f32, h, one, one, one, err);
  }
  return st == TSR_OK ? check_product(d->o.shape[0], d->o.shape[1], d->o.shape[2], d->o.shape[3], "o.shape[0]", err)
                      : st;
}

tsr_status tsr__merge_init(const tsr_merge_desc *desc, tsr__merge_problem *p, tsr_error *err) {
  tsr_layout *const all[] = {&p->desc.partial_o, &p->desc.partial_lse, &p->desc.o, &p->desc.lse, &p->desc.sink};
  tsr_status st;
  memset(p, 0, sizeof(*p));
  st = tsr__struct_import(&p->desc, sizeof(p->desc), 0, desc, "tsr_merge_desc", err);
  if (st == TSR_OK) {
    st = merge_check(&p->desc, err);
  }
  if (st != TSR_OK) {
    memset(p, 0, sizeof(*p));
    return st;
  }
  for (int i = 0; i < 5; i++) {
    if (has(all[i])) {
      *all[i] = tsr__layout_resolve(all[i]);
    }
  }
  p->desc.variant = NULL;
  return tsr__ok(err);
}
