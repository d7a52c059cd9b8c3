/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of a case, and which pairs they leave visible. */
#include <math.h>
#include <string.h>

#include "build.h"

static int has(const conf_problem *p, int item) {
  return conf_has(&p->c.items, item);
}

static int64_t floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && a < 0);
}

/* ---- Positions --------------------------------------------------------------------------------- */

static void set_positions(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "positions");
  tsr_attention_desc *d = &p->desc;
  const int64_t reach = p->c.seqlen_k / 3 + 1;
  int64_t left = conf_range(&r, 0, reach), right = conf_range(&r, 0, reach / 2);
  d->flags |= has(p, CONF_causal) ? TSR_CAUSAL : 0;
  d->flags |= has(p, CONF_top_left) ? TSR_TOP_LEFT : 0;
  if (has(p, CONF_window) || has(p, CONF_window_open)) {
    if (has(p, CONF_window_open)) {
      *(conf_chance(&r, 0.5) ? &left : &right) = -1;
    }
    d->flags |= TSR_WINDOW;
    d->window_left = p->c.window_left != CONF_DRAWN ? p->c.window_left : left;
    d->window_right = p->c.window_right != CONF_DRAWN ? p->c.window_right : right;
    d->sink_tokens = has(p, CONF_sink_tokens) ? conf_range(&r, 1, 4) : 0;
  }
  if (has(p, CONF_chunk)) {
    d->flags |= TSR_CHUNK;
    d->chunk = p->c.chunk != CONF_DRAWN ? p->c.chunk : conf_range(&r, 2, reach + 2);
  }
}

static int make_prefix(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "prefix");
  if (!conf_make_vector(p, CONF_T_prefix, 0, p->index_dtype, p->batch_plan, 1)) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    conf_put(&p->t[CONF_T_prefix], b, 0, 0, 0, (double)conf_range(&r, 0, p->c.seqlen_k));
  }
  return 1;
}

/* ---- Boolean masks ------------------------------------------------------------------------------- */

static int64_t bit_at(const conf_problem *p, int64_t b, int64_t h, int64_t i) {
  const conf_tensor *m = &p->t[CONF_T_mask];
  int64_t at = m->layout.shape[1] == 1 ? 0 : h * m->layout.stride[1];
  if (has(p, CONF_mask_rows)) {
    at += (int64_t)conf_get(&p->t[CONF_T_mask_offsets], b, 0, 0, 0);
    return at + i * (int64_t)conf_get(&p->t[CONF_T_mask_row_strides], b, 0, 0, 0);
  }
  at += m->layout.shape[0] == 1 ? 0 : b * m->layout.stride[0];
  return at + (m->layout.shape[2] == 1 ? 0 : i * m->layout.stride[2]);
}

static int mask_get(const conf_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const conf_tensor *m = &p->t[CONF_T_mask];
  if (m->layout.dtype == TSR_U8) {
    return conf_get(m, b, h, i, j) != 0.0;
  }
  return m->data[bit_at(p, b, h, i) + j / 8] >> (j % 8) & 1;
}

static void mask_put(conf_problem *p, int64_t b, int64_t h, int64_t i, int64_t j, int allow, conf_rng *r) {
  conf_tensor *m = &p->t[CONF_T_mask];
  if (m->layout.dtype == TSR_U8) {
    conf_put(m, b, h, i, j, allow ? (double)conf_range(r, 1, 255) : 0.0);
    return;
  }
  unsigned char *byte = m->data + bit_at(p, b, h, i) + j / 8;
  *byte = (unsigned char)(allow ? *byte | 1 << j % 8 : *byte & ~(1 << j % 8));
}

/* Rows of each sequence one after another, with a row stride of its own. */
static int make_mask_rows(conf_problem *p, int64_t heads) {
  int64_t head_bytes = 1, at = 5;
  tsr_layout l;
  if (!conf_make_vector(p, CONF_T_mask_offsets, 0, TSR_I64, p->batch_plan, 1) ||
      !conf_make_vector(p, CONF_T_mask_row_strides, 0, TSR_I64, p->batch_plan, 1)) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    const int64_t row = p->slot_k[b] / 8 + 1 + b, bytes = p->slot_q[b] * row;
    conf_put(&p->t[CONF_T_mask_offsets], b, 0, 0, 0, (double)at);
    conf_put(&p->t[CONF_T_mask_row_strides], b, 0, 0, 0, (double)row);
    at += bytes;
    head_bytes = at;
  }
  l = tsr_layout_dense(TSR_BIT, 1, heads, 1, head_bytes * 8); /* heads outermost; offsets are within a head's bytes */
  l.stride[0] = l.stride[2] = 0;
  l.stride[1] = head_bytes;
  return conf_tensor_make(p, CONF_T_mask, 0, &l, 0);
}

static int make_mask(conf_problem *p) {
  const int64_t n0 = has(p, CONF_mask_b1) ? 1 : p->batch_plan, n1 = has(p, CONF_mask_h1) ? 1 : p->c.q_heads;
  const int64_t n2 = has(p, CONF_mask_q1) ? 1 : p->c.seqlen_q, n3 = has(p, CONF_mask_k1) ? 1 : p->c.seqlen_k;
  conf_rng r = conf_rng_for(p->c.seed, "mask");
  const int64_t blank = conf_range(&r, 0, p->c.seqlen_q - 1);
  int ok;
  if (has(p, CONF_mask_rows)) {
    ok = make_mask_rows(p, n1);
  } else if (has(p, CONF_mask_bit)) {
    const int64_t row = n3 / 8 + 1 + conf_range(&r, 0, 2);
    tsr_layout l = tsr_layout_dense(TSR_BIT, n0, n1, n2, n3);
    l.stride[2] = row;
    l.stride[1] = row * n2;
    l.stride[0] = row * n2 * n1;
    ok = conf_tensor_make(p, CONF_T_mask, 0, &l, (int)conf_range(&r, 0, 3));
  } else {
    ok = conf_make_local(p, CONF_T_mask, TSR_U8, n0, n1, n2, n3);
  }
  for (int64_t b = 0; ok && b < (n0 == 1 && !has(p, CONF_mask_rows) ? (p->c.batch > 0) : p->c.batch); b++) {
    for (int64_t h = 0; h < n1; h++) {
      for (int64_t i = 0; i < n2; i++) {
        for (int64_t j = 0; j < n3; j++) {
          const int rows_of_all = n0 == 1 && !has(p, CONF_mask_rows);
          const int allow = conf_chance(&r, 0.8) && !(has(p, CONF_empty_rows) && i == blank);
          if (rows_of_all || n2 == 1 || n3 == 1 || (i < p->slot_q[b] && j < p->slot_k[b])) {
            mask_put(p, b, h, i, j, allow, &r);
          }
        }
      }
    }
  }
  return ok;
}

/* ---- Segments, FlashMask, blocks ------------------------------------------------------------------- */

static int make_segments(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "segments");
  const conf_tensor *q = &p->t[CONF_T_q], *k = &p->t[CONF_T_k];
  const int local_k = p->paged;
  if (!conf_make_vector(p, CONF_T_segments_q, 0, TSR_I32, q->layout.shape[0], q->layout.shape[1]) ||
      !conf_make_vector(p, CONF_T_segments_k, 0, TSR_I32, local_k ? p->batch_plan : k->layout.shape[0],
                        local_k ? p->c.seqlen_k : k->layout.shape[1])) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    const int64_t cut_q = conf_range(&r, 0, p->len_q[b]), cut_k = conf_range(&r, 0, p->len_k[b]);
    int64_t i0, i1;
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      conf_locate_q(p, b, i, &i0, &i1);
      conf_put(&p->t[CONF_T_segments_q], i0, i1, 0, 0, conf_chance(&r, 0.05) ? -1.0 : i < cut_q ? 0.0 : 7.0);
    }
    for (int64_t j = 0; j < p->len_k[b]; j++) {
      i0 = b;
      i1 = j;
      if (!local_k) {
        conf_locate_k(p, b, j, &i0, &i1);
      }
      conf_put(&p->t[CONF_T_segments_k], i0, i1, 0, 0, conf_chance(&r, 0.05) ? -1.0 : j < cut_k ? 0.0 : 7.0);
    }
  }
  return 1;
}

static int segments_see(const conf_problem *p, int64_t b, int64_t i, int64_t j) {
  int64_t q0, q1, k0 = b, k1 = j;
  double q, k;
  conf_locate_q(p, b, i, &q0, &q1);
  if (!p->paged) {
    conf_locate_k(p, b, j, &k0, &k1);
  }
  q = conf_get(&p->t[CONF_T_segments_q], q0, q1, 0, 0);
  k = conf_get(&p->t[CONF_T_segments_k], k0, k1, 0, 0);
  return q == k && q >= 0.0;
}

static int make_flashmask(conf_problem *p, int numbers) {
  conf_rng r = conf_rng_for(p->c.seed, "flashmask");
  const int64_t heads = has(p, CONF_fm_hq) ? p->c.q_heads : has(p, CONF_fm_hkv) ? p->c.kv_heads : 1;
  const int64_t rows = p->c.seqlen_q;
  if (!conf_make_local(p, CONF_T_flashmask, TSR_I32, p->batch_plan, heads, p->c.seqlen_k, numbers)) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t j = 0; j < p->len_k[b]; j++) {
        int64_t c[4] = {conf_range(&r, rows / 2, rows + 1), conf_range(&r, 0, rows / 2), 0, 0};
        if (numbers == 4 || has(p, CONF_fm_c2)) { /* intervals, some of them empty */
          c[0] = conf_range(&r, 0, rows);
          c[1] = c[0] + conf_range(&r, 0, rows / 4);
          c[2] = conf_range(&r, 0, rows);
          c[3] = c[2] + conf_range(&r, -1, rows / 4);
        }
        for (int n = 0; n < numbers; n++) {
          conf_put(&p->t[CONF_T_flashmask], b, h, j, n, (double)c[n]);
        }
      }
    }
  }
  return 1;
}

static int flashmask_sees(const conf_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const conf_tensor *f = &p->t[CONF_T_flashmask];
  const int64_t heads = f->layout.shape[1];
  const int64_t g = heads == p->c.q_heads ? h : heads == 1 ? 0 : h / (p->c.q_heads / p->c.kv_heads);
  double c[4] = {0, 0, 0, 0};
  for (int n = 0; n < f->layout.shape[3]; n++) {
    c[n] = conf_get(f, b, g, j, n);
  }
  if (has(p, CONF_fm_c1)) {
    return !((double)i >= c[0]);
  }
  if (has(p, CONF_fm_n2)) {
    return !((double)i >= c[0] || (double)i < c[1]);
  }
  return !((double)i >= c[0] && (double)i < c[1]) && !(has(p, CONF_fm_n4) && (double)i >= c[2] && (double)i < c[3]);
}

static int make_blocks(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "blocks");
  const int shared = has(p, CONF_blocks_shared);
  const int64_t n0 = shared ? 1 : p->batch_plan, n1 = shared ? 1 : p->c.q_heads;
  int64_t rows, cols;
  p->desc.block_rows = (int32_t)conf_range(&r, 1, p->c.seqlen_q > 40 ? 24 : 4);
  p->desc.block_cols = (int32_t)conf_range(&r, 1, p->c.seqlen_k > 40 ? 40 : 5);
  rows = (p->c.seqlen_q + p->desc.block_rows - 1) / p->desc.block_rows;
  cols = (p->c.seqlen_k + p->desc.block_cols - 1) / p->desc.block_cols;
  if (!conf_make_local(p, CONF_T_block_indptr, TSR_I32, n0, n1, rows + 1, 1) ||
      !conf_make_local(p, CONF_T_block_indices, TSR_I32, n0, n1, rows * cols, 1)) {
    return 0;
  }
  for (int64_t b = 0; b < (shared ? p->c.batch > 0 : p->c.batch); b++) {
    for (int64_t h = 0; h < n1; h++) {
      int64_t at = 0;
      conf_put(&p->t[CONF_T_block_indptr], b, h, 0, 0, 0.0);
      for (int64_t row = 0; row < rows; row++) {
        for (int64_t col = 0; col < cols; col++) {
          if (conf_chance(&r, 0.7)) {
            conf_put(&p->t[CONF_T_block_indices], b, h, at++, 0, (double)col);
          }
        }
        conf_put(&p->t[CONF_T_block_indptr], b, h, row + 1, 0, (double)at);
      }
    }
  }
  return 1;
}

static int blocks_see(const conf_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t row = i / p->desc.block_rows, col = j / p->desc.block_cols;
  const int64_t end = (int64_t)conf_get(&p->t[CONF_T_block_indptr], b, h, row + 1, 0);
  for (int64_t n = (int64_t)conf_get(&p->t[CONF_T_block_indptr], b, h, row, 0); n < end; n++) {
    if (conf_get(&p->t[CONF_T_block_indices], b, h, n, 0) == (double)col) {
      return 1;
    }
  }
  return 0;
}

/* ---- Together ------------------------------------------------------------------------------------ */

int conf_build_masks(conf_problem *p) {
  const int numbers = has(p, CONF_fm_c1)                         ? 1
                      : has(p, CONF_fm_c2) || has(p, CONF_fm_n2) ? 2
                      : has(p, CONF_fm_n4)                       ? 4
                                                                 : 0;
  set_positions(p);
  if (has(p, CONF_prefix) && !make_prefix(p)) {
    return 0;
  }
  if ((has(p, CONF_mask_u8) || has(p, CONF_mask_bit) || has(p, CONF_mask_rows)) && !make_mask(p)) {
    return 0;
  }
  if (has(p, CONF_segments) && !make_segments(p)) {
    return 0;
  }
  if (numbers != 0 && !make_flashmask(p, numbers)) {
    return 0;
  }
  return (!has(p, CONF_blocks) && !has(p, CONF_blocks_shared)) || make_blocks(p);
}

static int positions_see(const conf_problem *p, int64_t b, int64_t i, int64_t j) {
  const tsr_attention_desc *d = &p->desc;
  const int64_t own = i + ((d->flags & TSR_TOP_LEFT) ? 0 : p->len_k[b] - p->len_q[b]);
  const int64_t prefix = has(p, CONF_prefix) ? (int64_t)conf_get(&p->t[CONF_T_prefix], b, 0, 0, 0) : 0;
  int ok = 1;
  if (d->flags & TSR_CAUSAL) {
    ok = j <= own || j < prefix;
  }
  if (d->flags & TSR_WINDOW) {
    const int near =
        (d->window_left < 0 || own - d->window_left <= j) && (d->window_right < 0 || j <= own + d->window_right);
    ok = ok && (near || j < d->sink_tokens);
  }
  if (d->flags & TSR_CHUNK) {
    ok = ok && floor_div(own, d->chunk) == floor_div(j, d->chunk);
  }
  return ok;
}

int conf_visible(const conf_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (!positions_see(p, b, i, j)) {
    return 0;
  }
  if (p->t[CONF_T_mask].raw != NULL && !mask_get(p, b, h, i, j)) {
    return 0;
  }
  if (p->t[CONF_T_segments_q].raw != NULL && !segments_see(p, b, i, j)) {
    return 0;
  }
  if (p->t[CONF_T_flashmask].raw != NULL && !flashmask_sees(p, b, h, i, j)) {
    return 0;
  }
  if (p->t[CONF_T_block_indptr].raw != NULL && !blocks_see(p, b, h, i, j)) {
    return 0;
  }
  return p->t[CONF_T_bias].raw == NULL || conf_get(&p->t[CONF_T_bias], b, h, i, j) != -(double)INFINITY;
}
