/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths, page tables and indices of a run by value, where the host can read them. Only entries that the run uses are
 * read. */
#include "common/validate.h"

/* ---- Lengths --------------------------------------------------------------------------------- */

tsr_status tsr__check_cu_seqlens(const void *cu, const tsr_layout *layout, const char *name, int64_t batch,
                                 int64_t total, tsr_error *err) {
  int64_t before = tsr__index_at(cu, layout->dtype, 0);
  if (before != 0) {
    const tsr__field f = tsr__field_entry(name, 0);
    return tsr__invalid(err, f.name, "is %lld, must be 0", (long long)before);
  }
  for (int64_t b = 1; b <= batch; b++) {
    const int64_t end = tsr__index_at(cu, layout->dtype, b * layout->stride[0]);
    if (end < before || end > total) {
      const tsr__field f = tsr__field_entry(name, b);
      return end < before ? tsr__invalid(err, f.name, "is %lld, must be at least %s[%lld] = %lld", (long long)end, name,
                                         (long long)(b - 1), (long long)before)
                          : tsr__invalid(err, f.name, "is %lld, must be at most %lld, the packed tokens",
                                         (long long)end, (long long)total);
    }
    before = end;
  }
  return TSR_OK;
}

/* What one side of the problem knows of its lengths; NULL: not there, or not readable. */
typedef struct side {
  const void *cu, *len;
  const tsr_layout *cu_layout, *len_layout;
  const char *cu_name, *len_name, *max_name;
  int64_t total, max;
} side;

/* Lengths used: at most the slot and the longest sequence of the plan. */
static tsr_status check_side(const side *s, int64_t batch, int len_expected, tsr_error *err) {
  if (s->cu != NULL) {
    const tsr_status st = tsr__check_cu_seqlens(s->cu, s->cu_layout, s->cu_name, batch, s->total, err);
    if (st != TSR_OK) {
      return st;
    }
  }
  for (int64_t b = 0; s->cu != NULL && !len_expected && b < batch; b++) {
    const int64_t n = tsr__index_at(s->cu, s->cu_layout->dtype, (b + 1) * s->cu_layout->stride[0]) -
                      tsr__index_at(s->cu, s->cu_layout->dtype, b * s->cu_layout->stride[0]);
    if (n > s->max) {
      const tsr__field f = tsr__field_entry(s->cu_name, b + 1);
      return tsr__invalid(err, f.name, "makes sequence %lld %lld long, must be at most %s = %lld", (long long)b,
                          (long long)n, s->max_name, (long long)s->max);
    }
  }
  for (int64_t b = 0; s->len != NULL && b < batch; b++) {
    const int64_t n = tsr__index_at(s->len, s->len_layout->dtype, b * s->len_layout->stride[0]);
    int64_t most = s->max;
    const char *what = s->max_name;
    if (s->cu != NULL) {
      const int64_t slot = tsr__index_at(s->cu, s->cu_layout->dtype, (b + 1) * s->cu_layout->stride[0]) -
                           tsr__index_at(s->cu, s->cu_layout->dtype, b * s->cu_layout->stride[0]);
      what = slot < most ? "its slot" : what;
      most = slot < most ? slot : most;
    }
    if (n < 0 || n > most) {
      const tsr__field f = tsr__field_entry(s->len_name, b);
      return tsr__invalid(err, f.name, "is %lld, must be 0..%lld, %s", (long long)n, (long long)most, what);
    }
  }
  return TSR_OK;
}

tsr_status tsr__check_lengths(const tsr__problem *p, const tsr_attn_args *args, const tsr__tables *t, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const side q = {t->cu_q,     t->len_q,       &d->cu_seqlens_q, &d->seqlens_q, "cu_seqlens_q",
                  "seqlens_q", "max_seqlen_q", args->total_q,    p->seqlen_q};
  const side k = {t->cu_k,     t->len_k,       &d->cu_seqlens_k, &d->seqlens_k, "cu_seqlens_k",
                  "seqlens_k", "max_seqlen_k", args->total_k,    p->seqlen_k};
  const tsr_status st = check_side(&q, args->batch, (p->features & TSR_A_SEQLENS_Q) != 0, err);
  return st == TSR_OK ? check_side(&k, args->batch, (p->features & TSR_A_SEQLENS_K) != 0, err) : st;
}

/* ---- Pages ----------------------------------------------------------------------------------- */

/* CSR lengths; seqlens_k, where given, stays within them. */
static tsr_status check_csr(const tsr__problem *p, const tsr__bound *bound, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const tsr_attn_ptrs *ptrs = &bound->ptrs;
  for (int64_t b = 0; b < bound->args.batch; b++) {
    const int64_t lo = ptrs->kv_indptr[b * d->kv_indptr.stride[0]];
    const int64_t hi = ptrs->kv_indptr[(b + 1) * d->kv_indptr.stride[0]];
    int64_t last, capacity = 0;
    if (lo < 0 || hi < lo || hi > p->max_pages) {
      const tsr__field f = tsr__field_entry("kv_indptr", lo < 0 ? b : b + 1);
      return tsr__invalid(err, f.name,
                          "is %lld, must be %lld..%lld: never decrease, end at most at kv_indices.shape[0]",
                          (long long)(lo < 0 ? lo : hi), (long long)(lo < 0 ? 0 : lo), (long long)p->max_pages);
    }
    if (hi > lo) {
      last = ptrs->last_page_len[b * d->last_page_len.stride[0]];
      if (last < 1 || last > p->page_size) {
        const tsr__field f = tsr__field_entry("last_page_len", b);
        return tsr__invalid(err, f.name, "is %lld, must be 1..%lld, the page size", (long long)last,
                            (long long)p->page_size);
      }
      capacity = (hi - lo - 1) * p->page_size + last;
    }
    if ((p->features & TSR_A_SEQLENS_K) != 0) {
      const int64_t n = tsr__index_at(ptrs->len_k, d->seqlens_k.dtype, b * d->seqlens_k.stride[0]);
      if (n > capacity) {
        const tsr__field f = tsr__field_entry("seqlens_k", b);
        return tsr__invalid(err, f.name, "is %lld, must be at most %lld, what its pages hold", (long long)n,
                            (long long)capacity);
      }
    } else if (capacity > p->seqlen_k) {
      const tsr__field f = tsr__field_entry("kv_indptr", b + 1);
      return tsr__invalid(err, f.name, "makes sequence %lld %lld long, must be at most max_seqlen_k = %lld",
                          (long long)b, (long long)capacity, (long long)p->seqlen_k);
    }
  }
  return TSR_OK;
}

tsr_status tsr__check_pages(const tsr__problem *p, const tsr__bound *bound, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int table = (p->features & TSR_A_PAGED_TABLE) != 0, csr = (p->features & TSR_A_PAGED_CSR) != 0;
  const int64_t step = table ? d->block_table.stride[1] : d->kv_indices.stride[0];
  for (int64_t b = 0; (table || csr) && b < bound->args.batch; b++) {
    const tsr_seq seq = tsr_seq_load(&bound->args, &bound->ptrs, b);
    const int64_t used = seq.kv_len == 0 ? 0 : (seq.kv_len - 1) / p->page_size + 1;
    const tsr_i32 *id = used == 0 ? NULL
                        : table   ? bound->ptrs.block_table + b * d->block_table.stride[0]
                                  : bound->ptrs.kv_indices + seq.page0 * step;
    for (int64_t n = 0; n < used; n++) {
      if (id[n * step] < 0 || id[n * step] >= p->num_pages) {
        const tsr__field f =
            table ? tsr__field_entry2("block_table", b, n) : tsr__field_entry("kv_indices", seq.page0 + n);
        return tsr__invalid(err, f.name, "is %d, must be a page, 0..%lld", (int)id[n * step],
                            (long long)p->num_pages - 1);
      }
    }
  }
  return TSR_OK;
}

/* ---- Masks ----------------------------------------------------------------------------------- */

static tsr_status check_prefix(const tsr__problem *p, const tsr__bound *bound, tsr_error *err) {
  const tsr_layout *l = &p->desc.prefix;
  for (int64_t b = 0; b < bound->args.batch; b++) {
    const int64_t n = tsr__index_at(bound->ptrs.prefix, l->dtype, b * l->stride[0]);
    if (n < 0) {
      const tsr__field f = tsr__field_entry("prefix", b);
      return tsr__invalid(err, f.name, "is %lld, must be at least 0", (long long)n);
    }
  }
  return TSR_OK;
}

/* Bit masks with an offset and a row stride a sequence: every bit used lies in the memory that the mask's layout spans.
 */
static tsr_status check_mask_rows(const tsr__problem *p, const tsr__bound *bound, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int64_t span = tsr__layout_span_bytes(&d->mask);
  const int64_t heads = (d->mask.shape[1] - 1) * d->mask.stride[1];
  for (int64_t b = 0; b < bound->args.batch; b++) {
    const tsr_seq seq = tsr_seq_load(&bound->args, &bound->ptrs, b);
    const int64_t at = bound->ptrs.mask_offsets[b * d->mask_offsets.stride[0]];
    const int64_t step = bound->ptrs.mask_row_strides[b * d->mask_row_strides.stride[0]];
    int64_t last;
    if (seq.q_len == 0 || seq.kv_len == 0) {
      continue;
    }
    if (step < 0) {
      const tsr__field f = tsr__field_entry("mask_row_strides", b);
      return tsr__invalid(err, f.name, "is %lld, must be at least 0", (long long)step);
    }
    if (at < 0 || __builtin_mul_overflow(seq.q_len - 1, step, &last) || __builtin_add_overflow(last, at, &last) ||
        __builtin_add_overflow(last, heads + (seq.kv_len - 1) / 8, &last) || last >= span) {
      const tsr__field f = tsr__field_entry("mask_offsets", b);
      return tsr__invalid(
          err, f.name, "is %lld, its %lld rows of %lld bits, %lld bytes apart, must lie within the mask's %lld bytes",
          (long long)at, (long long)seq.q_len, (long long)seq.kv_len, (long long)step, (long long)span);
    }
  }
  return TSR_OK;
}

/* Rows [0, rows) of the index of (b, h). */
static tsr_status check_block_rows(const tsr__problem *p, const tsr__bound *bound, int64_t b, int64_t h, int64_t rows,
                                   tsr_error *err) {
  const tsr_layout *lp = &p->desc.block_indptr, *li = &p->desc.block_indices;
  const tsr_i32 *ptr = bound->ptrs.block_indptr + b * lp->stride[0] + h * lp->stride[1];
  const int64_t first = b * li->stride[0] + h * li->stride[1], n = li->shape[2];
  const int64_t cols = (p->seqlen_k + p->desc.block_cols - 1) / p->desc.block_cols;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t lo = ptr[r * lp->stride[2]], hi = ptr[(r + 1) * lp->stride[2]];
    int64_t before = -1;
    if (lo < 0 || hi < lo || hi > n) {
      const tsr__field f = tsr__field_entry3("block_indptr", b, h, lo < 0 ? r : r + 1);
      return tsr__invalid(err, f.name,
                          "is %lld, must be %lld..%lld: never decrease, end at most at block_indices.shape[2]",
                          (long long)(lo < 0 ? lo : hi), (long long)(lo < 0 ? 0 : lo), (long long)n);
    }
    for (int64_t i = lo; i < hi; i++) {
      const int64_t col = bound->ptrs.block_indices[first + i * li->stride[2]];
      if (col <= before || col >= cols) {
        const tsr__field f = tsr__field_entry3("block_indices", b, h, i);
        return tsr__invalid(err, f.name, "is %lld, must be %lld..%lld: ascending and unique in a row", (long long)col,
                            (long long)before + 1, (long long)cols - 1);
      }
      before = col;
    }
  }
  return TSR_OK;
}

static int64_t longest(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static tsr_status check_blocks(const tsr__problem *p, const tsr__bound *bound, tsr_error *err) {
  const tsr_layout *lp = &p->desc.block_indptr, *li = &p->desc.block_indices;
  const int shared = lp->shape[0] <= 1 && li->shape[0] <= 1; /* one index for all sequences: rows of the longest */
  const int64_t heads = longest(lp->shape[1], li->shape[1]);
  int64_t most = 0;
  for (int64_t b = 0; b < bound->args.batch; b++) {
    const tsr_seq seq = tsr_seq_load(&bound->args, &bound->ptrs, b);
    most = shared ? longest(most, seq.q_len) : seq.q_len;
    if (shared && b + 1 < bound->args.batch) {
      continue;
    }
    for (int64_t h = 0; h < heads; h++) {
      const int64_t rows = (most + p->desc.block_rows - 1) / p->desc.block_rows;
      const tsr_status st = check_block_rows(p, bound, shared ? 0 : b, h, rows, err);
      if (st != TSR_OK) {
        return st;
      }
    }
  }
  return TSR_OK;
}

tsr_status tsr__check_tables(const tsr__problem *p, const tsr__bound *bound, tsr_error *err) {
  const uint32_t f = p->features;
  tsr_status st = TSR_OK;
  if ((f & TSR_A_PAGED_CSR) != 0) {
    st = check_csr(p, bound, err);
  }
  if (st == TSR_OK && (f & TSR_A_PREFIX) != 0) {
    st = check_prefix(p, bound, err);
  }
  if (st == TSR_OK && (f & TSR_A_MASK_ROWS) != 0) {
    st = check_mask_rows(p, bound, err);
  }
  if (st == TSR_OK && (f & TSR_A_BLOCKS) != 0) {
    st = check_blocks(p, bound, err);
  }
  return st;
}
