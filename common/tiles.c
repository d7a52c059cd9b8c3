/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tiles.h"

/* Scans one row of a byte mask. */
static void scan_bytes(const tsr_u8 *m, tsr_i64 stride, tsr_i64 n, int *any, int *all) {
  int some = 0, every = 1;
  for (tsr_i64 j = 0; j < n; j++) {
    const int set = m[j * stride] != 0;
    some |= set;
    every &= set;
  }
  *any |= some;
  *all &= every;
}

/* Scans bits [j0, j1) of a row of a bit mask. */
static void scan_bits(const tsr_u8 *m, tsr_i64 j0, tsr_i64 j1, int *any, int *all) {
  for (tsr_i64 j = j0; j < j1;) {
    const tsr_i64 end = tsr_min_i64((j | 7) + 1, j1);
    const int width = (int)(end - j);
    const int want = ((1 << width) - 1) << (j & 7);
    const int got = m[j >> 3] & want;
    *any |= got != 0;
    *all &= got == want;
    j = end;
  }
}

static int class_boolean(const tsr__bound *r, const tsr_seq *s, const tsr__tile_box *box) {
  const tsr_attn_args *a = &r->args;
  int any = 0, all = 1;
  for (tsr_i32 h = box->h0; h < box->h1; h++) {
    for (tsr_i64 i = box->i0; i < box->i1 && !(any && !all); i++) {
      if (a->flags & TSR_A_MASK_U8) {
        scan_bytes(r->ptrs.mask + s->b * a->mask.stride[0] + h * a->mask.stride[1] + i * a->mask.stride[2] +
                       box->j0 * a->mask.stride[3],
                   a->mask.stride[3], box->j1 - box->j0, &any, &all);
      } else {
        tsr_i64 at = h * a->mask.stride[1];
        at += (a->flags & TSR_A_MASK_ROWS) ? r->ptrs.mask_offsets[s->b * a->mask_offsets.stride] +
                                                 i * r->ptrs.mask_row_strides[s->b * a->mask_row_strides.stride]
                                           : s->b * a->mask.stride[0] + i * a->mask.stride[2];
        scan_bits(r->ptrs.mask + at, box->j0, box->j1, &any, &all);
      }
      if (a->mask.stride[2] == 0 && !(a->flags & TSR_A_MASK_ROWS)) {
        break; /* all rows are this one */
      }
    }
    if (a->mask.stride[1] == 0) {
      break;
    }
  }
  return tsr_class_of(any, all);
}

static int class_segments(const tsr__bound *r, const tsr_seq *s, const tsr__tile_box *box) {
  const tsr_attn_args *a = &r->args;
  const tsr_i32 *q = r->ptrs.segments_q + s->q_b * a->segments_q.stride[0] + s->q_row0 * a->segments_q.stride[1];
  const tsr_i32 *k = r->ptrs.segments_k + s->k_b * a->segments_k.stride[0] + s->k_row0 * a->segments_k.stride[1];
  tsr_i32 q_lo = q[box->i0 * a->segments_q.stride[1]], q_hi = q_lo;
  tsr_i32 k_lo = k[box->j0 * a->segments_k.stride[1]], k_hi = k_lo;
  for (tsr_i64 i = box->i0; i < box->i1; i++) {
    const tsr_i32 v = q[i * a->segments_q.stride[1]];
    q_lo = v < q_lo ? v : q_lo;
    q_hi = v > q_hi ? v : q_hi;
  }
  for (tsr_i64 j = box->j0; j < box->j1; j++) {
    const tsr_i32 v = k[j * a->segments_k.stride[1]];
    k_lo = v < k_lo ? v : k_lo;
    k_hi = v > k_hi ? v : k_hi;
  }
  return tsr_class_of(q_hi >= 0 && k_hi >= 0 && q_lo <= k_hi && k_lo <= q_hi,
                      q_lo == q_hi && k_lo == k_hi && q_lo == k_lo && q_lo >= 0);
}

/* Masked rows [lo, hi) of one key against the rows of a tile. */
static void flash_interval(tsr_i64 lo, tsr_i64 hi, const tsr__tile_box *box, int *touches, int *covers) {
  *touches |= lo < hi && lo < box->i1 && hi > box->i0;
  *covers |= lo <= box->i0 && hi >= box->i1;
}

static int class_flash(const tsr__bound *r, const tsr_seq *s, const tsr__tile_box *box) {
  const tsr_attn_args *a = &r->args;
  const tsr_i64 n = a->flashmask.stride[3];
  const tsr_i64 far = box->i1; /* as good as infinity */
  int any = 0, all = 1;
  for (tsr_i32 h = box->h0; h < box->h1; h++) {
    const tsr_i32 *c =
        r->ptrs.flashmask + s->b * a->flashmask.stride[0] + (h / a->flash_head_div) * a->flashmask.stride[1];
    for (tsr_i64 j = box->j0; j < box->j1; j++) {
      const tsr_i32 *at = c + j * a->flashmask.stride[2];
      int touches = 0, covers = 0;
      if (a->flash_n == 1) {
        flash_interval(at[0], far, box, &touches, &covers);
      } else if (a->flash_n == 2 && (a->flags & TSR_A_CAUSAL)) {
        flash_interval(at[0], at[n], box, &touches, &covers);
      } else if (a->flash_n == 2) {
        flash_interval(at[0], far, box, &touches, &covers);
        flash_interval(box->i0, at[n], box, &touches, &covers);
      } else {
        flash_interval(at[0], at[n], box, &touches, &covers);
        flash_interval(at[2 * n], at[3 * n], box, &touches, &covers);
      }
      any |= !covers;
      all &= !touches;
    }
    if (a->flashmask.stride[1] == 0) {
      break;
    }
  }
  return tsr_class_of(any, all);
}

static int class_blocks(const tsr__bound *r, const tsr_seq *s, const tsr__tile_box *box) {
  const tsr_attn_args *a = &r->args;
  const tsr_i64 c0 = box->j0 / a->block_cols, c1 = (box->j1 - 1) / a->block_cols;
  int any = 0, all = 1;
  for (tsr_i32 h = box->h0; h < box->h1; h++) {
    for (tsr_i64 row = box->i0 / a->block_rows; row <= (box->i1 - 1) / a->block_rows; row++) {
      tsr_i64 end;
      const tsr_i64 lo = tsr_block_find(a, &r->ptrs, s, h, row, c0, &end);
      const tsr_i64 hi = tsr_block_find(a, &r->ptrs, s, h, row, c1 + 1, &end);
      any |= hi > lo;
      all &= hi - lo == c1 - c0 + 1;
    }
    if (a->block_indptr.stride[1] == 0 && a->block_indices.stride[1] == 0) {
      break;
    }
  }
  return tsr_class_of(any, all);
}

static int class_expression(const tsr__problem *p, const tsr__bound *r, const tsr_seq *s, const tsr__tile_box *box) {
  tsr_expr_range range[TSR_EXPR_VAR_COUNT];
  range[TSR_EXPR_VAR_B] = (tsr_expr_range){s->b, s->b};
  range[TSR_EXPR_VAR_H] = (tsr_expr_range){box->h0, box->h1 - 1};
  range[TSR_EXPR_VAR_HKV] = (tsr_expr_range){box->h0 / p->group, (box->h1 - 1) / p->group};
  range[TSR_EXPR_VAR_I] = (tsr_expr_range){box->i0, box->i1 - 1};
  range[TSR_EXPR_VAR_J] = (tsr_expr_range){box->j0, box->j1 - 1};
  range[TSR_EXPR_VAR_Q_LEN] = (tsr_expr_range){s->q_len, s->q_len};
  range[TSR_EXPR_VAR_KV_LEN] = (tsr_expr_range){s->kv_len, s->kv_len};
  range[TSR_EXPR_VAR_OFF] = (tsr_expr_range){s->off, s->off};
  return tsr__expr_classify(p->mask_expr, &r->env, range);
}

int tsr__tile_class(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *seq, const tsr__tile_box *box) {
  const tsr_u32 flags = bound->args.flags;
  int c;
  if (box->i0 >= box->i1 || box->j0 >= box->j1) {
    return TSR_TILE_SKIP;
  }
  c = tsr_class_position(&bound->args, seq, box->i0, box->i1, box->j0, box->j1);
  if (c != TSR_TILE_SKIP && (flags & (TSR_A_MASK_U8 | TSR_A_MASK_BIT))) {
    c = tsr_class_both(c, class_boolean(bound, seq, box));
  }
  if (c != TSR_TILE_SKIP && (flags & TSR_A_SEGMENTS)) {
    c = tsr_class_both(c, class_segments(bound, seq, box));
  }
  if (c != TSR_TILE_SKIP && (flags & TSR_A_FLASHMASK)) {
    c = tsr_class_both(c, class_flash(bound, seq, box));
  }
  if (c != TSR_TILE_SKIP && (flags & TSR_A_BLOCKS)) {
    c = tsr_class_both(c, class_blocks(bound, seq, box));
  }
  if (c != TSR_TILE_SKIP && p->mask_expr != NULL) {
    c = tsr_class_both(c, class_expression(p, bound, seq, box));
  }
  return c;
}

static tsr_i64 tiles_in(tsr_i64 lo, tsr_i64 hi, tsr_i64 tile) {
  return hi > lo ? (hi - 1) / tile - lo / tile + 1 : 0;
}

tsr__kv_iter tsr__kv_first(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *seq, tsr_i32 h0, tsr_i32 h1,
                           tsr_i64 i0, tsr_i64 i1, tsr_i64 kv_lo, tsr_i64 kv_hi, tsr_i64 tile_k) {
  tsr__kv_iter it = {p, bound, seq, {i0, i1, 0, 0, h0, h1}, tile_k, kv_lo, kv_hi, 0, 0, 0, TSR_TILE_SKIP};
  const tsr_span v = tsr_span_visible(&bound->args, seq->prefix, i0 + seq->off, i1 - 1 + seq->off, seq->kv_len);
  it.end = i0 < i1 ? tsr_min_i64(kv_hi, seq->kv_len) : kv_lo;
  if (v.hi < it.end) {
    const tsr_i64 hi = tsr_max_i64(v.hi, kv_lo);
    const tsr_i64 kept_end = (hi + tile_k - 1) / tile_k * tile_k; /* the tile that holds v.hi - 1 stays */
    it.skipped += tiles_in(kept_end, it.end, tile_k);
    it.end = tsr_min_i64(it.end, kept_end);
  }
  return it;
}

int tsr__kv_next(tsr__kv_iter *it) {
  const tsr_seq *s = it->seq;
  const tsr_span v =
      tsr_span_visible(&it->bound->args, s->prefix, it->rows.i0 + s->off, it->rows.i1 - 1 + s->off, s->kv_len);
  const tsr_i64 sink_end = (v.sink + it->tile_k - 1) / it->tile_k * it->tile_k;
  const tsr_i64 window_start = tsr_max_i64(v.lo, 0) / it->tile_k * it->tile_k;
  while (it->next < it->end) {
    if (it->next >= sink_end && it->next < window_start) { /* the gap between sink tokens and the window */
      const tsr_i64 to = tsr_min_i64(window_start, it->end);
      it->skipped += tiles_in(it->next, to, it->tile_k);
      it->next = to;
      continue;
    }
    it->j0 = it->next;
    it->j1 = tsr_min_i64(it->j0 + it->tile_k, it->end);
    it->next = it->j0 + it->tile_k;
    it->rows.j0 = it->j0;
    it->rows.j1 = it->j1;
    it->tile_class = tsr__tile_class(it->p, it->bound, s, &it->rows);
    if (it->tile_class != TSR_TILE_SKIP) {
      return 1;
    }
    it->skipped++;
  }
  return 0;
}

void tsr__tiles_count(const tsr__problem *p, int64_t tile_q, int64_t tile_k, int64_t *total, int64_t *visited) {
  tsr_attn_args a;
  const tsr_i64 off = (p->desc.flags & TSR_TOP_LEFT) ? 0 : p->seqlen_k - p->seqlen_q;
  const int64_t heads = p->batch * p->heads_q;
  int64_t per_head = 0;
  tsr__bind_layout(p, &a);
  for (int64_t i0 = 0; i0 < p->seqlen_q && p->seqlen_k > 0; i0 += tile_q) {
    const int64_t i1 = tsr_min_i64(i0 + tile_q, p->seqlen_q);
    const tsr_span v = tsr_span_visible(&a, 0, i0 + off, i1 - 1 + off, p->seqlen_k);
    const int64_t hi = tsr_max_i64(v.hi, 0), lo = tsr_min_i64(tsr_max_i64(v.lo, 0), hi);
    const int64_t window = tiles_in(lo, hi, tile_k);
    const int64_t before = hi > lo ? lo / tile_k : (hi + tile_k - 1) / tile_k; /* whole tiles left of the window */
    per_head += window + tsr_min_i64((tsr_min_i64(v.sink, hi) + tile_k - 1) / tile_k, before);
  }
  *total = heads * ((p->seqlen_q + tile_q - 1) / tile_q) * ((p->seqlen_k + tile_k - 1) / tile_k);
  *visited = heads * per_head;
}
