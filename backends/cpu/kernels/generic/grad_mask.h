/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs of a partial tile are allowed: g->allow, query rows in lanes. The same rules as tsr_mask_allow, turned round
 * so that most of them are one or two intervals of rows for each key. */
#ifndef TSR_CPU_GENERIC_GRAD_MASK_H
#define TSR_CPU_GENERIC_GRAD_MASK_H

#include "backends/cpu/kernels/generic/grad_state.h"

/* Rows of the tile, [lo, hi). */
typedef struct grad_span {
  int64_t lo, hi;
} grad_span;

static inline void grad_narrow(grad_span *s, int64_t lo, int64_t hi) {
  s->lo = tsr_max_i64(s->lo, lo);
  s->hi = tsr_min_i64(s->hi, hi);
}

/* Rows (relative to i0) that causal, window and chunk let see key j. */
static grad_span grad_span_of(const grad *g, int64_t j) {
  const tsr_attn_args *a = g->a;
  const int64_t far = INT64_C(1) << 40; /* beyond any position */
  const int64_t same = j - g->seq.off - g->i0; /* the row at j's own position */
  grad_span s = {0, g->nq};
  if ((a->flags & TSR_A_CAUSAL) && j >= g->seq.prefix) {
    grad_narrow(&s, same, far);
  }
  if ((a->flags & TSR_A_WINDOW) && j >= a->sink_tokens) {
    if (a->window_left >= 0) {
      grad_narrow(&s, 0, same + tsr_min_i64(a->window_left, far) + 1);
    }
    if (a->window_right >= 0) {
      grad_narrow(&s, same - tsr_min_i64(a->window_right, far), far);
    }
  }
  if (a->flags & TSR_A_CHUNK) {
    const int64_t chunk = tsr_min_i64(a->chunk, far);
    const int64_t start = tsr_floor_div(j, chunk) * chunk - g->seq.off - g->i0;
    grad_narrow(&s, start, start + chunk);
  }
  return s;
}

static inline vi grad_lanes(int v) {
  vi x;
  for (int l = 0; l < VL; l++) {
    x[l] = v * VL + l;
  }
  return x;
}

/* -1 in lanes of rows [lo, hi), for every row of the tile. */
static inline void grad_fill(int32_t *row, int64_t lo, int64_t hi) {
  const int32_t from = (int32_t)tsr_min_i64(tsr_max_i64(lo, 0), TILE_Q);
  const int32_t to = (int32_t)tsr_min_i64(tsr_max_i64(hi, 0), TILE_Q);
  for (int v = 0; v < TILE_Q / VL; v++) {
    const vi lane = grad_lanes(v);
    *(vi *)(row + v * VL) = (lane >= from) & (lane < to);
  }
}

/* Clears lanes of rows [lo, hi), local to the sequence. */
static inline void grad_clear(const grad *g, int32_t *row, int64_t lo, int64_t hi) {
  const int32_t from = (int32_t)tsr_min_i64(tsr_max_i64(lo - g->i0, 0), TILE_Q);
  const int32_t to = (int32_t)tsr_min_i64(tsr_max_i64(hi - g->i0, 0), TILE_Q);
  for (int v = 0; v < TILE_Q / VL; v++) {
    const vi lane = grad_lanes(v);
    *(vi *)(row + v * VL) &= (lane < from) | (lane >= to);
  }
}

static void grad_mask_flash(const grad *g, int64_t j, int32_t *row) {
  const tsr_attn_args *a = g->a;
  const int64_t n = a->flashmask.stride[3], end = g->i0 + TILE_Q;
  const tsr_i32 *c = g->r->ptrs.flashmask + g->seq.b * a->flashmask.stride[0] +
                     (g->h / a->flash_head_div) * a->flashmask.stride[1] + j * a->flashmask.stride[2];
  if (a->flags & TSR_A_CAUSAL) {
    grad_clear(g, row, c[0], a->flash_n == 1 ? end : c[n]);
  } else if (a->flash_n == 2) {
    grad_clear(g, row, c[0], end);
    grad_clear(g, row, 0, c[n]);
  } else {
    grad_clear(g, row, c[0], c[n]);
    grad_clear(g, row, c[2 * n], c[3 * n]);
  }
}

/* Rules that look at each pair. */
static void grad_mask_pairs(const grad *g, int64_t j, int32_t *row) {
  const tsr_attn_ptrs *ptrs = &g->r->ptrs;
  for (int i = 0; i < g->nq; i++) {
    if (row[i] != 0 && !tsr_mask_boolean(g->a, ptrs, &g->seq, g->h, g->i0 + i, j)) {
      row[i] = 0;
    }
  }
  if (g->a->flags & TSR_A_SEGMENTS) {
    for (int i = 0; i < g->nq; i++) {
      row[i] &= -tsr_mask_segments(g->a, ptrs, &g->seq, g->i0 + i, j);
    }
  }
}

/* A row of blocks at a time. */
static void grad_mask_blocks(const grad *g, int64_t j, int32_t *row) {
  const int64_t size = g->a->block_rows, end = g->i0 + g->nq;
  for (int64_t i = g->i0; i < end; i = (i / size + 1) * size) {
    if (!tsr_mask_blocks(g->a, &g->r->ptrs, &g->seq, g->h, i, j)) {
      grad_clear(g, row, i, (i / size + 1) * size);
    }
  }
}

/* What expressions see of rows i0.. and key j. */
static tsr_expr_lanes grad_expr_lanes(const grad *g, int64_t j, const int64_t *rows, const float *score) {
  tsr_expr_lanes lanes;
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; v++) {
    lanes.lane[v] = NULL;
  }
  lanes.score = score;
  lanes.lane[TSR_EXPR_VAR_I] = rows;
  lanes.uniform[TSR_EXPR_VAR_B] = g->seq.b;
  lanes.uniform[TSR_EXPR_VAR_H] = g->h;
  lanes.uniform[TSR_EXPR_VAR_HKV] = g->h / g->a->group;
  lanes.uniform[TSR_EXPR_VAR_I] = 0;
  lanes.uniform[TSR_EXPR_VAR_J] = j;
  lanes.uniform[TSR_EXPR_VAR_Q_LEN] = g->seq.q_len;
  lanes.uniform[TSR_EXPR_VAR_KV_LEN] = g->seq.kv_len;
  lanes.uniform[TSR_EXPR_VAR_OFF] = g->seq.off;
  return lanes;
}

static void grad_rows_of(const grad *g, int64_t rows[TILE_Q]) {
  for (int i = 0; i < TILE_Q; i++) {
    rows[i] = g->i0 + i;
  }
}

static void grad_mask_expr(const grad *g, int64_t j, const int64_t *rows, int32_t *row) {
  const tsr_expr_lanes lanes = grad_expr_lanes(g, j, rows, NULL);
  uint8_t allow[TSR_EXPR_MAX_LANES];
  tsr__expr_eval_mask(g->p->mask_expr, &g->r->env, &lanes, g->nq, allow);
  for (int i = 0; i < g->nq; i++) {
    row[i] &= -(int32_t)allow[i];
  }
}

/* Fills `allow` for the tile (class FULL: all pairs, which the bias may still mask), and [k_lo, k_hi). */
static void grad_mask_tile(grad *g, int tile_class) {
  const uint32_t flags = g->a->flags;
  const int keys = (g->nk + GRAD_KEYS - 1) / GRAD_KEYS * GRAD_KEYS;
  int64_t rows[TILE_Q];
  int32_t *row = g->allow;
  grad_rows_of(g, rows);
  g->k_lo = keys;
  g->k_hi = 0;
  for (int k = 0; k < keys; k++, row += TILE_Q) {
    const int64_t j = g->j0 + k;
    const grad_span all = {0, g->nq}, none = {0, 0};
    const grad_span s = k >= g->nk ? none : tile_class == TSR_TILE_FULL ? all : grad_span_of(g, j);
    grad_fill(row, s.lo, s.hi);
    if (s.lo >= s.hi) {
      continue;
    }
    if (tile_class != TSR_TILE_FULL) {
      if (flags & (TSR_A_MASK_U8 | TSR_A_MASK_BIT | TSR_A_SEGMENTS)) {
        grad_mask_pairs(g, j, row);
      }
      if (flags & TSR_A_FLASHMASK) {
        grad_mask_flash(g, j, row);
      }
      if (flags & TSR_A_BLOCKS) {
        grad_mask_blocks(g, j, row);
      }
      if (g->p->mask_expr != NULL) {
        grad_mask_expr(g, j, rows, row);
      }
    }
    g->k_lo = k < g->k_lo ? k / GRAD_KEYS * GRAD_KEYS : g->k_lo;
    g->k_hi = (k / GRAD_KEYS + 1) * GRAD_KEYS;
  }
}

#endif
