/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of a sequence and rows of its keys. The host has checked what it can see; devices clamp what it cannot. */
#ifndef TSR_DEVICE_SEQ_H
#define TSR_DEVICE_SEQ_H

TSR_FN tsr_i64 tsr_len_at(TSR_GLOBAL const void *p, tsr_u32 flags, tsr_i64 index) {
  return (flags & TSR_A_LEN64) ? ((TSR_GLOBAL const tsr_i64 *)p)[index]
                               : (tsr_i64)((TSR_GLOBAL const tsr_i32 *)p)[index];
}

/* Slot [start, start + length) of a packed tensor, clamped to [0, total]. */
TSR_FN tsr_i64 tsr_slot(TSR_GLOBAL const void *cu, tsr_i64 stride, tsr_u32 flags, tsr_i64 b, tsr_i64 total,
                        tsr_i64 *start) {
  tsr_i64 lo = tsr_len_at(cu, flags, b * stride);
  tsr_i64 hi = tsr_len_at(cu, flags, (b + 1) * stride);
  lo = tsr_min_i64(tsr_max_i64(lo, 0), total);
  hi = tsr_min_i64(tsr_max_i64(hi, lo), total);
  *start = lo;
  return hi - lo;
}

TSR_FN tsr_seq tsr_seq_load(const tsr_attn_args *a, const tsr_attn_ptrs *p, tsr_i64 b) {
  tsr_seq s;
  s.b = b;
  s.q_b = (TSR_FLAGS(a) & TSR_A_Q_PACKED) ? 0 : b;
  s.k_b = (TSR_FLAGS(a) & TSR_A_K_PACKED) ? 0 : b;
  s.q_row0 = 0;
  s.k_row0 = 0;
  s.page0 = 0;
  s.q_len = a->seqlen_q;
  s.kv_len = a->seqlen_k;
  if (TSR_FLAGS(a) & TSR_A_Q_PACKED) {
    s.q_len = tsr_min_i64(tsr_slot(p->cu_q, a->cu_q.stride, TSR_FLAGS(a), b, a->total_q, &s.q_row0), a->seqlen_q);
  }
  if (TSR_FLAGS(a) & TSR_A_K_PACKED) {
    s.kv_len = tsr_min_i64(tsr_slot(p->cu_k, a->cu_k.stride, TSR_FLAGS(a), b, a->total_k, &s.k_row0), a->seqlen_k);
  }
  if (TSR_FLAGS(a) & TSR_A_PAGED_CSR) {
    const tsr_i64 lo = tsr_min_i64(tsr_max_i64(p->kv_indptr[b * a->u.fwd.kv_indptr.stride], 0), a->max_pages);
    const tsr_i64 n = tsr_min_i64(p->kv_indptr[(b + 1) * a->u.fwd.kv_indptr.stride], a->max_pages) - lo;
    const tsr_i64 last = tsr_max_i64(p->last_page_len[b * a->u.fwd.last_page_len.stride], 0);
    s.page0 = lo;
    s.kv_len = n <= 0 ? 0 : tsr_min_i64(a->seqlen_k, (n - 1) * a->page_size + tsr_min_i64(last, a->page_size));
  }
  if (TSR_FLAGS(a) & TSR_A_SEQLENS_Q) {
    s.q_len = tsr_min_i64(s.q_len, tsr_max_i64(0, tsr_len_at(p->len_q, TSR_FLAGS(a), b * a->len_q.stride)));
  }
  if (TSR_FLAGS(a) & TSR_A_SEQLENS_K) {
    s.kv_len = tsr_min_i64(s.kv_len, tsr_max_i64(0, tsr_len_at(p->len_k, TSR_FLAGS(a), b * a->len_k.stride)));
  }
  s.off = (TSR_FLAGS(a) & TSR_A_TOP_LEFT) ? 0 : s.kv_len - s.q_len;
  s.prefix = (TSR_FLAGS(a) & TSR_A_PREFIX) ? tsr_len_at(p->prefix, TSR_FLAGS(a), b * a->prefix.stride) : 0;
  return s;
}

/* Where key j is: indices (b, s) of axes 0 and 1 of k, v and their scales, and how many keys follow without a break. */
typedef struct tsr_kv_pos {
  tsr_i64 b, s, run;
} tsr_kv_pos;

TSR_FN tsr_kv_pos tsr_kv_at(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i64 j) {
  tsr_kv_pos r;
  if (TSR_FLAGS(a) & (TSR_A_PAGED_TABLE | TSR_A_PAGED_CSR)) {
    const tsr_i64 page = j / a->page_size;
    r.b = (TSR_FLAGS(a) & TSR_A_PAGED_TABLE)
              ? p->block_table[s->b * a->u.fwd.block_table.stride[0] + page * a->u.fwd.block_table.stride[1]]
              : p->kv_indices[(s->page0 + page) * a->u.fwd.kv_indices.stride];
    r.s = j - page * a->page_size;
    r.run = tsr_min_i64(a->page_size - r.s, s->kv_len - j);
  } else {
    r.b = s->k_b;
    r.s = s->k_row0 + j;
    r.run = s->kv_len - j;
  }
  return r;
}

#endif
