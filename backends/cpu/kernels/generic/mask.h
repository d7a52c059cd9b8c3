/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs of a partial tile are allowed: one bit a pair, 32 keys a word, made before the scores so that keys nobody
 * sees are not computed. The same meaning as tsr_mask_allow of common/device/mask.h, a row or a vector at a time. */
#ifndef TSR_CPU_MASK_H
#define TSR_CPU_MASK_H

#include "backends/cpu/kernels/generic/item.h"

static inline uint32_t low_bits(tsr_i64 n) {
  return n <= 0 ? 0 : n >= 32 ? 0xffffffffu : (1u << n) - 1u;
}

/* Keys [lo, hi) of the tile as bits of word w. */
static inline uint32_t range_bits(tsr_i64 lo, tsr_i64 hi, int w) {
  return low_bits(hi - 32 * w) & ~low_bits(lo - 32 * w);
}

/* Position rules: a row sees [lo, hi), and of the sink tokens those that causal and chunk leave. */
static void mask_position(fwd_item *f, int n) {
  const tsr_attn_args *a = f->a;
  for (int r = 0; r < item_lanes(f); r++) {
    const tsr_i64 pos = f->i[r] + f->seq.off;
    tsr_i64 lo = 0, hi = f->j0 + n, sink;
    if (a->flags & TSR_A_CAUSAL) {
      hi = tsr_min_i64(hi, tsr_max_i64(pos + 1, f->seq.prefix));
    }
    if (a->flags & TSR_A_CHUNK) {
      lo = tsr_floor_div(pos, a->chunk) * a->chunk;
      hi = tsr_min_i64(hi, lo + a->chunk);
    }
    sink = (a->flags & TSR_A_WINDOW) ? tsr_min_i64(hi, a->sink_tokens) : 0;
    for (int w = 0; w < TILE_WORDS; w++) {
      f->bits[w][r] = range_bits(lo - f->j0, sink - f->j0, w);
    }
    if ((a->flags & TSR_A_WINDOW) && a->window_left >= 0) {
      lo = tsr_max_i64(lo, pos - a->window_left);
    }
    if ((a->flags & TSR_A_WINDOW) && a->window_right >= 0) {
      hi = tsr_min_i64(hi, pos + a->window_right + 1);
    }
    for (int w = 0; w < TILE_WORDS; w++) {
      f->bits[w][r] |= range_bits(lo - f->j0, hi - f->j0, w);
    }
  }
}

/* Are lanes r and r - 1 the same row of a tensor whose head and row strides these are? */
static inline int same_row(const fwd_item *f, int r, tsr_i64 head_stride, tsr_i64 row_stride) {
  return r > 0 && (head_stride == 0 || f->h[r] == f->h[r - 1]) && (row_stride == 0 || f->i[r] == f->i[r - 1]);
}

/* 32 bits from bit `at` of a row on, of which `n` lie in the tile: no byte beyond them is touched. */
static uint32_t read_bits(const tsr_u8 *row, tsr_i64 at, int n) {
  uint64_t word = 0;
  const int shift = (int)(at & 7), bytes = (shift + n + 7) >> 3;
  for (int b = 0; b < bytes; b++) {
    word |= (uint64_t)row[(at >> 3) + b] << (8 * b);
  }
  return (uint32_t)(word >> shift);
}

static uint32_t read_bytes(const tsr_u8 *at, tsr_i64 step, int n) {
  uint32_t word = 0;
  for (int k = 0; k < n; k++) {
    word |= (uint32_t)(at[k * step] != 0) << k;
  }
  return word;
}

static void mask_boolean(fwd_item *f, int n) {
  const tsr_attn_args *a = f->a;
  const tsr_attn_ptrs *p = &f->bound->ptrs;
  const tsr_i64 *st = a->mask.stride;
  const tsr_i64 b = f->seq.b;
  const int by_sequence = (a->flags & TSR_A_MASK_ROWS) != 0;
  const tsr_i64 row_stride = by_sequence ? p->mask_row_strides[b * a->mask_row_strides.stride] : st[2];
  const tsr_i64 base = by_sequence ? p->mask_offsets[b * a->mask_offsets.stride] : b * st[0];
  uint32_t words[TILE_WORDS];
  for (int r = 0; r < item_lanes(f); r++) {
    const tsr_u8 *row = p->mask + base + f->h[r] * st[1] + f->i[r] * row_stride;
    const int same = same_row(f, r, st[1], row_stride);
    for (int w = 0; w < TILE_WORDS && 32 * w < n; w++) {
      const int left = n - 32 * w < 32 ? n - 32 * w : 32;
      if (!same) {
        words[w] = (a->flags & TSR_A_MASK_BIT) ? read_bits(row, f->j0 + 32 * w, left)
                                               : read_bytes(row + (f->j0 + 32 * w) * st[3], st[3], left);
      }
      f->bits[w][r] &= words[w];
    }
  }
}

/* Clears bit k of every lane whose mask is off. */
static inline void keep_where(uint32_t *word, int k, vi allowed) {
  *(vi *)word &= allowed | (vi)vu_all(~(1u << k));
}

static void mask_segments(fwd_item *f, int n) {
  const tsr_attn_args *a = f->a;
  const tsr_i32 *q = f->bound->ptrs.segments_q + f->seq.q_b * a->segments_q.stride[0];
  const tsr_i32 *k = f->bound->ptrs.segments_k + f->seq.k_b * a->segments_k.stride[0];
  int32_t id[TILE_Q];
  for (int r = 0; r < item_lanes(f); r++) {
    id[r] = q[(f->seq.q_row0 + f->i[r]) * a->segments_q.stride[1]];
  }
  for (int j = 0; j < n; j++) {
    const vi key = vi_all(k[(f->seq.k_row0 + f->j0 + j) * a->segments_k.stride[1]]);
    for (int v = 0; v < item_lanes(f); v += VL) {
      const vi row = vi_load(id + v);
      keep_where(&f->bits[j / 32][v], j & 31, (row == key) & (row >= 0));
    }
  }
}

/* Bounds c[4] of one key for the lanes of one head, as intervals [c0, c1) and [c2, c3) of masked rows. */
static void flash_bounds(const tsr_attn_args *a, const tsr_i32 *at, int32_t c[4]) {
  const tsr_i64 n = a->flashmask.stride[3];
  const int causal = (a->flags & TSR_A_CAUSAL) != 0;
  c[0] = at[0];
  c[1] = a->flash_n == 4 || (a->flash_n == 2 && causal) ? at[n] : INT32_MAX;
  c[2] = a->flash_n == 4 ? at[2 * n] : INT32_MIN;
  c[3] = a->flash_n == 4 ? at[3 * n] : a->flash_n == 2 && !causal ? at[n] : INT32_MIN;
}

static void mask_flash(fwd_item *f, int n) {
  const tsr_attn_args *a = f->a;
  const tsr_i64 *st = a->flashmask.stride;
  const tsr_i32 *base = f->bound->ptrs.flashmask + f->seq.b * st[0];
  int32_t row[TILE_Q];
  for (int r = 0; r < item_lanes(f); r++) {
    row[r] = (int32_t)f->i[r];
  }
  for (int j = 0; j < n; j++) {
    int32_t c[4][TILE_Q];
    for (int r = 0; r < item_lanes(f); r++) {
      int32_t one[4];
      if (r == 0 || f->h[r] != f->h[r - 1]) {
        flash_bounds(a, base + f->h[r] / a->flash_head_div * st[1] + (f->j0 + j) * st[2], one);
      }
      for (int e = 0; e < 4; e++) {
        c[e][r] = one[e];
      }
    }
    for (int v = 0; v < item_lanes(f); v += VL) {
      const vi i = vi_load(row + v);
      const vi masked =
          ((i >= vi_load(c[0] + v)) & (i < vi_load(c[1] + v))) | ((i >= vi_load(c[2] + v)) & (i < vi_load(c[3] + v)));
      keep_where(&f->bits[j / 32][v], j & 31, ~masked);
    }
  }
}

static void block_words(const fwd_item *f, tsr_i32 h, tsr_i64 row, int n, uint32_t words[TILE_WORDS]) {
  const tsr_attn_args *a = f->a;
  const tsr_attn_ptrs *p = &f->bound->ptrs;
  const tsr_i32 *index = p->block_indices + f->seq.b * a->block_indices.stride[0] + h * a->block_indices.stride[1];
  tsr_i64 end, at = tsr_block_find(a, p, &f->seq, h, row, f->j0 / a->block_cols, &end);
  memset(words, 0, TILE_WORDS * sizeof(words[0]));
  for (; at < end; at++) {
    const tsr_i64 lo = (tsr_i64)index[at * a->block_indices.stride[2]] * a->block_cols - f->j0;
    if (lo >= n) {
      break;
    }
    for (int w = 0; w < TILE_WORDS; w++) {
      words[w] |= range_bits(lo, lo + a->block_cols, w);
    }
  }
}

static void mask_blocks(fwd_item *f, int n) {
  uint32_t words[TILE_WORDS];
  for (int r = 0; r < item_lanes(f); r++) {
    const tsr_i64 row = f->i[r] / f->a->block_rows;
    if (r == 0 || f->h[r] != f->h[r - 1] || row != f->i[r - 1] / f->a->block_rows) {
      block_words(f, (tsr_i32)f->h[r], row, n, words);
    }
    for (int w = 0; w < TILE_WORDS; w++) {
      f->bits[w][r] &= words[w];
    }
  }
}

/* The variables of an expression for key j of the tile, all lanes. */
static inline tsr_expr_lanes expression_lanes(const fwd_item *f, int j) {
  tsr_expr_lanes x;
  memset(&x, 0, sizeof(x));
  x.lane[TSR_EXPR_VAR_I] = f->i;
  x.lane[TSR_EXPR_VAR_H] = f->h;
  x.uniform[TSR_EXPR_VAR_B] = f->seq.b;
  x.uniform[TSR_EXPR_VAR_HKV] = f->kv_head;
  x.uniform[TSR_EXPR_VAR_J] = f->j0 + j;
  x.uniform[TSR_EXPR_VAR_Q_LEN] = f->seq.q_len;
  x.uniform[TSR_EXPR_VAR_KV_LEN] = f->seq.kv_len;
  x.uniform[TSR_EXPR_VAR_OFF] = f->seq.off;
  return x;
}

static void mask_expression(fwd_item *f, int n) {
  uint8_t allow[TILE_Q];
  for (int j = 0; j < n; j++) {
    const tsr_expr_lanes x = expression_lanes(f, j);
    uint32_t *word = f->bits[j / 32];
    tsr__expr_eval_mask(f->p->mask_expr, &f->bound->env, &x, item_lanes(f), allow);
    for (int r = 0; r < item_lanes(f); r++) {
      word[r] &= ~((uint32_t)!allow[r] << (j & 31));
    }
  }
}

/* Fills bits[] for keys [j0, j0 + n) and says which of them any row sees, [*first, *last). */
static void mask_tile(fwd_item *f, int n, int *first, int *last) {
  const tsr_u32 flags = f->a->flags;
  *first = n;
  *last = 0;
  mask_position(f, n);
  if (flags & (TSR_A_MASK_U8 | TSR_A_MASK_BIT)) {
    mask_boolean(f, n);
  }
  if (flags & TSR_A_SEGMENTS) {
    mask_segments(f, n);
  }
  if (flags & TSR_A_FLASHMASK) {
    mask_flash(f, n);
  }
  if (flags & TSR_A_BLOCKS) {
    mask_blocks(f, n);
  }
  if (f->p->mask_expr != NULL) {
    mask_expression(f, n);
  }
  for (int w = 0; w < TILE_WORDS; w++) {
    uint32_t any = 0;
    for (int r = 0; r < item_lanes(f); r++) {
      any |= f->bits[w][r];
    }
    for (int k = 0; k < 32; k++) {
      if (any >> k & 1) {
        *first = 32 * w + k < *first ? 32 * w + k : *first;
        *last = 32 * w + k + 1;
      }
    }
  }
}

/* Every pair of the tile is allowed so far. */
static void mask_none(fwd_item *f) {
  memset(f->bits, 0xff, sizeof(f->bits));
  f->masked = 1;
}

/* All ones where key j of the tile is allowed, lanes from `at` on. */
static inline vi mask_lanes(const fwd_item *f, int j, int at) {
  return ((vi)vu_all(1u << (j & 31)) & vi_load((const int32_t *)&f->bits[j / 32][at])) != 0;
}

/* Scores of disallowed pairs of keys [first, last) become -inf; tile_max is taken anew. */
static void mask_apply(fwd_item *f, int first, int last) {
  for (int v = 0; v < item_lanes(f); v += VL) {
    vf most = vf_all(-INFINITY);
    for (int j = first; j < last; j++) {
      float *at = f->s + j * TILE_Q + v;
      vf s = vf_load(at);
      if (f->masked) {
        s = vf_select(mask_lanes(f, j, v), s, vf_all(-INFINITY));
        vf_store(at, s);
      }
      most = vf_max(most, s);
    }
    vf_store(f->tile_max + v, most);
  }
}

#endif
