/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of append and merge. */
#include <string.h>

#include "common/validate_cache.h"

/* ---- Append ---------------------------------------------------------------------------------- */

static const tsr_layout *layout_of(const tsr__append_problem *p, int slot) {
  return (const tsr_layout *)(const void *)((const char *)&p->desc + tsr__append_slots[slot].desc_offset);
}

static const tsr_buffer *buffer_of(const tsr_append_args *a, int slot) {
  return (const tsr_buffer *)(const void *)((const char *)a + tsr__append_slots[slot].args_offset);
}

static tsr_status append_buffers(const tsr__append_problem *p, const tsr_append_args *a, int host, tsr_error *err) {
  for (int s = 0; s < TSR__APPEND_SLOTS; s++) {
    const tsr_layout *l = layout_of(p, s);
    const tsr_status st = l->dtype != TSR_DTYPE_NONE
                              ? tsr__check_buffer(buffer_of(a, s), tsr__append_slots[s].name, l, host, err)
                              : tsr__check_no_buffer(buffer_of(a, s), tsr__append_slots[s].name, err);
    if (st != TSR_OK) {
      return st;
    }
  }
  return TSR_OK;
}

/* Slot and first row of sequence b in k_new, v_new, q and positions, and how many rows it adds. */
typedef struct new_rows {
  int64_t slot, first, count;
} new_rows;

static new_rows rows_of(const tsr__append_problem *p, const tsr_append_args *a, int64_t b) {
  const tsr_layout *cu = &p->desc.cu_seqlens_new;
  new_rows r = {b, 0, p->seqlen_new};
  if (cu->dtype != TSR_DTYPE_NONE) {
    const void *data = tsr__buffer_address(&a->cu_seqlens_new);
    r.slot = 0;
    r.first = tsr__index_at(data, cu->dtype, b * cu->stride[0]);
    r.count = tsr__index_at(data, cu->dtype, (b + 1) * cu->stride[0]) - r.first;
  }
  return r;
}

static int64_t length_before(const tsr__append_problem *p, const tsr_append_args *a, int64_t b) {
  const tsr_layout *l = &p->desc.seqlens_k;
  return l->dtype == TSR_DTYPE_NONE ? 0 : tsr__index_at(tsr__buffer_address(&a->seqlens_k), l->dtype, b * l->stride[0]);
}

/* Pages that the new rows [before, before + count) of sequence b go to. */
static tsr_status append_pages(const tsr__append_problem *p, const tsr_append_args *a, int64_t b, int64_t before,
                               int64_t count, tsr_error *err) {
  const tsr_layout *l = &p->desc.block_table;
  const int32_t *id = (const int32_t *)tsr__buffer_address(&a->block_table);
  for (int64_t n = before / p->page_size; n * p->page_size < before + count; n++) {
    const int32_t page = id[b * l->stride[0] + n * l->stride[1]];
    if (page < 0 || page >= p->desc.k_cache.shape[0]) {
      const tsr__field f = tsr__field_entry2("block_table", b, n);
      return tsr__invalid(err, f.name, "is %d, must be a page, 0..%lld", (int)page,
                          (long long)p->desc.k_cache.shape[0] - 1);
    }
  }
  return TSR_OK;
}

static tsr_status append_positions(const tsr__append_problem *p, const tsr_append_args *a, int64_t b, int64_t before,
                                   new_rows rows, tsr_error *err) {
  const int64_t most = p->desc.cos.shape[0];
  const tsr_layout *l = &p->desc.positions;
  const int32_t *given = (const int32_t *)tsr__buffer_address(&a->positions);
  if (l->dtype == TSR_DTYPE_NONE && before + rows.count > most) {
    return tsr__invalid(err, "cos", "has %lld positions, sequence %lld needs %lld", (long long)most, (long long)b,
                        (long long)(before + rows.count));
  }
  for (int64_t t = 0; l->dtype != TSR_DTYPE_NONE && t < rows.count; t++) {
    const int32_t n = given[rows.slot * l->stride[0] + (rows.first + t) * l->stride[1]];
    if (n < 0 || n >= most) {
      const tsr__field f = tsr__field_entry2("positions", rows.slot, rows.first + t);
      return tsr__invalid(err, f.name, "is %d, must be 0..%lld, a row of cos and sin", (int)n, (long long)most - 1);
    }
  }
  return TSR_OK;
}

static tsr_status append_sequence(const tsr__append_problem *p, const tsr_append_args *a, int64_t b, tsr_error *err) {
  const new_rows rows = rows_of(p, a, b);
  const int64_t before = length_before(p, a, b);
  tsr_status st = TSR_OK;
  if (rows.count > p->seqlen_new) {
    const tsr__field f = tsr__field_entry("cu_seqlens_new", b + 1);
    return tsr__invalid(err, f.name, "makes sequence %lld %lld long, must be at most max_seqlen_new = %lld",
                        (long long)b, (long long)rows.count, (long long)p->seqlen_new);
  }
  if (before < 0 || before > p->capacity) {
    const tsr__field f = tsr__field_entry("seqlens_k", b);
    return tsr__invalid(err, f.name, "is %lld, must be 0..%lld, what the cache holds", (long long)before,
                        (long long)p->capacity);
  }
  if (rows.count > p->capacity - before) {
    const tsr__field f = tsr__field_entry("seqlens_k", b);
    return tsr__invalid(err, p->desc.seqlens_k.dtype != TSR_DTYPE_NONE ? f.name : "k_cache",
                        "leaves no room: sequence %lld has %lld keys and adds %lld, the cache holds %lld", (long long)b,
                        (long long)before, (long long)rows.count, (long long)p->capacity);
  }
  if (p->page_size != 0 && rows.count > 0) {
    st = append_pages(p, a, b, before, rows.count, err);
  }
  return st == TSR_OK && p->desc.cos.dtype != TSR_DTYPE_NONE ? append_positions(p, a, b, before, rows, err) : st;
}

/* ---- Append: overlap ------------------------------------------------------------------------- */

/* Rows [lo, hi) of a page of the cache that new rows go to. */
typedef struct page_use {
  int64_t id, lo, hi;
} page_use;

static int64_t first_page(const tsr__append_problem *p, const tsr_append_args *a, int64_t b) {
  return length_before(p, a, b) / p->page_size;
}

static int64_t last_page(const tsr__append_problem *p, const tsr_append_args *a, int64_t b) {
  const int64_t end = length_before(p, a, b) + rows_of(p, a, b).count;
  return rows_of(p, a, b).count == 0 ? first_page(p, a, b) - 1 : (end - 1) / p->page_size;
}

/* What sequence b writes through entry n of its table. */
static page_use use_of(const tsr__append_problem *p, const tsr_append_args *a, int64_t b, int64_t n) {
  const tsr_layout *l = &p->desc.block_table;
  const int64_t before = length_before(p, a, b), end = before + rows_of(p, a, b).count, start = n * p->page_size;
  page_use u;
  u.id = ((const int32_t *)tsr__buffer_address(&a->block_table))[b * l->stride[0] + n * l->stride[1]];
  u.lo = tsr_max_i64(before - start, 0);
  u.hi = tsr_min_i64(end - start, p->page_size);
  return u;
}

/* An earlier use of one of the rows that entry n of sequence b writes. */
static tsr_status find_same_rows(const tsr__append_problem *p, const tsr_append_args *a, int64_t b, int64_t n,
                                 tsr_error *err) {
  const page_use mine = use_of(p, a, b, n);
  for (int64_t b2 = 0; b2 <= b; b2++) {
    const int64_t end = b2 < b ? last_page(p, a, b2) : n - 1;
    for (int64_t n2 = first_page(p, a, b2); n2 <= end; n2++) {
      const page_use other = use_of(p, a, b2, n2);
      if (other.id == mine.id && other.lo < mine.hi && mine.lo < other.hi) {
        const tsr__field f = tsr__field_entry2("block_table", b, n);
        return tsr__invalid(err, f.name, "is %lld: row %lld of that page is also written by block_table[%lld,%lld]",
                            (long long)mine.id, (long long)tsr_max_i64(mine.lo, other.lo), (long long)b2,
                            (long long)n2);
      }
    }
  }
  return TSR_OK;
}

/* No row of a paged cache is the target of two new rows. Dense caches have none: an output names no element twice. */
static tsr_status append_targets(const tsr__append_problem *p, const tsr_append_args *a, tsr_error *err) {
  enum { WORDS = 1024 };
  uint64_t met[WORDS] = {0}; /* bit per page id modulo their number: only what has been met is searched for */
  for (int64_t b = 0; b < a->batch; b++) {
    for (int64_t n = first_page(p, a, b); n <= last_page(p, a, b); n++) {
      const int64_t id = use_of(p, a, b, n).id;
      uint64_t *word = &met[id / 64 % WORDS];
      const uint64_t bit = UINT64_C(1) << id % 64;
      const tsr_status st = (*word & bit) != 0 ? find_same_rows(p, a, b, n, err) : TSR_OK;
      if (st != TSR_OK) {
        return st;
      }
      *word |= bit;
    }
  }
  return TSR_OK;
}

static int is_written(const tsr__append_problem *p, int slot) {
  const int writes = tsr__append_slots[slot].writes;
  return writes == 1 || (writes == 2 && (p->desc.flags & TSR_APPEND_STATIC_SCALES) == 0);
}

static tsr_layout layout_used(const tsr__append_problem *p, const tsr_append_args *a, int slot) {
  tsr_layout l = *layout_of(p, slot);
  const int packed = p->desc.cu_seqlens_new.dtype != TSR_DTYPE_NONE;
  switch (tsr__append_slots[slot].uses) {
  case TSR__APPEND_TOKENS:
    l.shape[packed ? 1 : 0] = tsr_min_i64(l.shape[packed ? 1 : 0], packed ? a->total_new : a->batch);
    break;
  case TSR__APPEND_BATCH: l.shape[0] = tsr_min_i64(l.shape[0], a->batch); break;
  case TSR__APPEND_STARTS: l.shape[0] = tsr_min_i64(l.shape[0], a->batch + 1); break;
  case TSR__APPEND_CACHE: l.shape[0] = p->page_size != 0 ? l.shape[0] : tsr_min_i64(l.shape[0], a->batch); break;
  default: break;
  }
  return l;
}

/* A tensor by itself, or q rotated in place. */
static int may_be_same(const tsr__append_problem *p, const tsr_append_args *a, int x, int y) {
  const tsr_layout *lx = layout_of(p, x), *ly = layout_of(p, y);
  const int is_q = (lx == &p->desc.q && ly == &p->desc.q_out) || (lx == &p->desc.q_out && ly == &p->desc.q);
  return x == y || (is_q && tsr__buffer_address(&a->q) == tsr__buffer_address(&a->q_out) &&
                    memcmp(lx->stride, ly->stride, sizeof(lx->stride)) == 0);
}

static tsr_status append_overlap(const tsr__append_problem *p, const tsr_append_args *a, int64_t workspace_bytes,
                                 tsr_error *err) {
  const tsr_layout scratch = tsr_layout_dense(TSR_U8, 1, 1, 1, workspace_bytes);
  for (int w = 0; w < TSR__APPEND_SLOTS; w++) {
    const tsr_layout out = layout_used(p, a, w);
    const void *data = tsr__buffer_address(buffer_of(a, w));
    if (data == NULL) {
      continue;
    }
    if (a->workspace.ptr != NULL && tsr__layouts_overlap(&out, data, &scratch, tsr__buffer_address(&a->workspace))) {
      return tsr__invalid(err, "workspace", "overlaps %s", tsr__append_slots[w].name);
    }
    for (int r = 0; is_written(p, w) && r < TSR__APPEND_SLOTS; r++) {
      const void *other = tsr__buffer_address(buffer_of(a, r));
      const tsr_layout in = layout_used(p, a, r);
      if (other != NULL && !may_be_same(p, a, w, r) && tsr__layouts_overlap(&out, data, &in, other)) {
        return tsr__invalid(err, tsr__append_slots[w].name, "overlaps %s", tsr__append_slots[r].name);
      }
    }
  }
  return p->page_size != 0 ? append_targets(p, a, err) : TSR_OK;
}

/* ---- Append: the whole ----------------------------------------------------------------------- */

static tsr_status append_sizes(const tsr__append_problem *p, tsr_append_args *a, tsr_error *err) {
  if (a->batch < 0 || a->batch > p->batch) {
    return tsr__invalid(err, "batch", "is %lld, must be 0..the plan's batch = %lld", (long long)a->batch,
                        (long long)p->batch);
  }
  if (a->total_new < 0 || a->total_new > p->total_new) {
    return tsr__invalid(
        err, "total_new", "is %lld, must be 0..%lld%s", (long long)a->total_new, (long long)p->total_new,
        p->desc.cu_seqlens_new.dtype != TSR_DTYPE_NONE ? ", the plan's k_new.shape[1]" : " where k_new is not packed");
  }
  a->batch = a->batch != 0 ? a->batch : p->batch;
  a->total_new = a->total_new != 0 ? a->total_new : p->total_new;
  return TSR_OK;
}

tsr_status tsr__append_bind(const tsr__append_problem *p, const tsr_append_args *args, int host, int validate,
                            int64_t workspace_bytes, int64_t workspace_align, tsr_append_args *out, tsr_error *err) {
  const tsr_layout *cu = &p->desc.cu_seqlens_new;
  tsr_status st = tsr__struct_import(out, sizeof(*out), 0, args, "tsr_append_args", err);
  if (st == TSR_OK) {
    st = append_sizes(p, out, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_queue(out->queue, out->wait_events, out->num_wait_events, out->event, host, err);
  }
  if (st == TSR_OK) {
    st = append_buffers(p, out, host, err);
  }
  if (st == TSR_OK && host && cu->dtype != TSR_DTYPE_NONE) {
    st = tsr__check_cu_seqlens(tsr__buffer_address(&out->cu_seqlens_new), cu, "cu_seqlens_new", out->batch,
                               out->total_new, err);
  }
  for (int64_t b = 0; st == TSR_OK && host && b < out->batch; b++) {
    st = append_sequence(p, out, b, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_workspace(&out->workspace, out->workspace_bytes, host, workspace_bytes, workspace_align, err);
  }
  if (st == TSR_OK && host && validate) {
    st = append_overlap(p, out, workspace_bytes, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

/* ---- Merge ----------------------------------------------------------------------------------- */

static tsr_status merge_partials(const tsr_buffer *list, const char *name, const tsr_layout *layout, int64_t n,
                                 int host, tsr_error *err) {
  if (list == NULL) {
    return tsr__invalid(err, name, "is NULL, must have num_partials = %lld buffers", (long long)n);
  }
  for (int64_t i = 0; i < n; i++) {
    const tsr__field f = tsr__field_entry(name, i);
    const tsr_status st = tsr__check_buffer(&list[i], f.name, layout, host, err);
    if (st != TSR_OK) {
      return st;
    }
  }
  return TSR_OK;
}

/* A tensor that something may overlap. */
typedef struct region {
  const char *name;
  const tsr_layout *layout;
  const tsr_buffer *buffer;
} region;

static int regions_overlap(const region *x, const region *y) {
  const void *dx = tsr__buffer_address(x->buffer), *dy = tsr__buffer_address(y->buffer);
  return dx != NULL && dy != NULL && tsr__layouts_overlap(x->layout, dx, y->layout, dy);
}

/* x against the tensors that a run has one of, from `first` on (o, lse, sink), and all partials. The later one of two
 * is the workspace or an output. */
static tsr_status merge_clear_of(const tsr__merge_problem *p, const tsr_merge_args *a, const region *x, int first,
                                 tsr_error *err) {
  const tsr_merge_desc *d = &p->desc;
  const region single[3] = {{"o", &d->o, &a->o}, {"lse", &d->lse, &a->lse}, {"sink", &d->sink, &a->sink}};
  for (int i = first; i < 3; i++) {
    if (regions_overlap(x, &single[i])) {
      return tsr__invalid(err, x->name, "overlaps %s", single[i].name);
    }
  }
  for (int64_t n = 0; n < d->num_partials; n++) {
    const region o = {"partial_o", &d->partial_o, &a->partial_o[n]};
    const region lse = {"partial_lse", &d->partial_lse, &a->partial_lse[n]};
    if (regions_overlap(x, &o) || regions_overlap(x, &lse)) {
      return tsr__invalid(err, x->name, "overlaps %s[%lld]", regions_overlap(x, &o) ? o.name : lse.name, (long long)n);
    }
  }
  return TSR_OK;
}

static tsr_status merge_overlap(const tsr__merge_problem *p, const tsr_merge_args *a, int64_t workspace_bytes,
                                tsr_error *err) {
  const tsr_layout scratch = tsr_layout_dense(TSR_U8, 1, 1, 1, workspace_bytes);
  const region workspace = {"workspace", &scratch, &a->workspace};
  const region o = {"o", &p->desc.o, &a->o}, lse = {"lse", &p->desc.lse, &a->lse};
  tsr_status st = merge_clear_of(p, a, &workspace, 0, err);
  if (st == TSR_OK) {
    st = merge_clear_of(p, a, &o, 1, err);
  }
  return st == TSR_OK ? merge_clear_of(p, a, &lse, 2, err) : st;
}

tsr_status tsr__merge_bind(const tsr__merge_problem *p, const tsr_merge_args *args, int host, int validate,
                           int64_t workspace_bytes, int64_t workspace_align, tsr_merge_args *out, tsr_error *err) {
  const tsr_merge_desc *d = &p->desc;
  tsr_status st = tsr__struct_import(out, sizeof(*out), 0, args, "tsr_merge_args", err);
  if (st == TSR_OK) {
    st = tsr__check_queue(out->queue, out->wait_events, out->num_wait_events, out->event, host, err);
  }
  if (st == TSR_OK) {
    st = merge_partials(out->partial_o, "partial_o", &d->partial_o, d->num_partials, host, err);
  }
  if (st == TSR_OK) {
    st = merge_partials(out->partial_lse, "partial_lse", &d->partial_lse, d->num_partials, host, err);
  }
  if (st == TSR_OK) {
    st = tsr__check_buffer(&out->o, "o", &d->o, host, err);
  }
  if (st == TSR_OK) {
    st = d->lse.dtype != TSR_DTYPE_NONE ? tsr__check_buffer(&out->lse, "lse", &d->lse, host, err)
                                        : tsr__check_no_buffer(&out->lse, "lse", err);
  }
  if (st == TSR_OK) {
    st = d->sink.dtype != TSR_DTYPE_NONE ? tsr__check_buffer(&out->sink, "sink", &d->sink, host, err)
                                         : tsr__check_no_buffer(&out->sink, "sink", err);
  }
  if (st == TSR_OK) {
    st = tsr__check_workspace(&out->workspace, out->workspace_bytes, host, workspace_bytes, workspace_align, err);
  }
  if (st == TSR_OK && host && validate) {
    st = merge_overlap(p, out, workspace_bytes, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}
