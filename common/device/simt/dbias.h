/* SPDX-License-Identifier: Apache-2.0 */
/* dBias: dS (without the factor of the soft cap) summed over the axes along which the bias repeats. An item is a tile
 * of the bias's rows and columns; an axis of extent 1 that is summed has one tile, for which the work group goes over
 * all tiles of pairs. Items: shape[0] x shape[1] x tiles of shape[2] x tiles of shape[3]. */
#ifndef TSR_SIMT_DBIAS_H
#define TSR_SIMT_DBIAS_H

/* A piece of the gradient: where it lies and which axes are summed. */
typedef struct tsr_bias_item {
  tsr_i64 b, h, i0, j0; /* a summed axis: 0 */
  int sum_b, sum_h, sum_i, sum_j;
} tsr_bias_item;

TSR_FN tsr_bias_item tsr_bias_item_at(const tsr_env *e, tsr_i64 item) {
  const tsr_i64 *shape = e->l->u.dbias_shape;
  const tsr_i64 columns = shape[3] == 1 ? 1 : (shape[3] + TSR_K_TILE_K - 1) / TSR_K_TILE_K;
  const tsr_i64 rows = shape[2] == 1 ? 1 : (shape[2] + TSR_K_TILE_Q - 1) / TSR_K_TILE_Q;
  tsr_bias_item x;
  x.j0 = item % columns * TSR_K_TILE_K;
  x.i0 = item / columns % rows * TSR_K_TILE_Q;
  x.h = item / (columns * rows) % shape[1];
  x.b = item / (columns * rows * shape[1]);
  x.sum_b = shape[0] == 1;
  x.sum_h = shape[1] == 1;
  x.sum_i = shape[2] == 1;
  x.sum_j = shape[3] == 1;
  return x;
}

/* Adds the tile at hand to the thread's pairs. */
TSR_FN void tsr_bias_tile(const tsr_env *e, tsr_grad *g, tsr_i64 i0, tsr_i64 j0, tsr_sum sum[TSR_RQ][TSR_CK]) {
  float p[TSR_RQ][TSR_CK], ds[TSR_RQ][TSR_CK];
  const int tile_class = tsr_grad_class(e, g, i0, j0);
  tsr_u32 bits, any;
  tsr_i32 r, k;
  if (tile_class == TSR_CLASS_SKIP) {
    return;
  }
  TSR_BARRIER();
  tsr_grad_rows(e, g, i0);
  tsr_grad_keys(e, g, j0);
  TSR_BARRIER();
  bits = tsr_grad_allowed(e, g, tile_class, &any);
  if (!any) {
    return;
  }
  tsr_grad_scores(e, g, p);
  tsr_grad_dp(e, g, ds);
  tsr_grad_pairs(e, g, bits, p, ds);
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      tsr_sum_add(&sum[r][k], ds[r][k]);
    }
  }
}

/* All that one head of one sequence adds. */
TSR_FN void tsr_bias_head(const tsr_env *e, tsr_grad *g, const tsr_bias_item *x, tsr_sum sum[TSR_RQ][TSR_CK]) {
  const tsr_i64 j_end = x->sum_j ? g->seq.kv_len : tsr_min_i64(x->j0 + TSR_K_TILE_K, g->seq.kv_len);
  const tsr_i64 i_end = x->sum_i ? g->seq.q_len : tsr_min_i64(x->i0 + TSR_K_TILE_Q, g->seq.q_len);
  tsr_i64 i0, j0;
  TSR_LOOP
  for (j0 = x->j0; j0 < j_end; j0 += TSR_K_TILE_K) {
    TSR_LOOP
    for (i0 = x->i0; i0 < i_end; i0 += TSR_K_TILE_Q) {
      tsr_bias_tile(e, g, i0, j0, sum);
    }
  }
}

/* Element (row, column) of the piece: one pair's sum, or that of a row, a column, or all. high, low: [row][column] with
 * TSR_LD_K. */
TSR_FN float tsr_bias_value(const tsr_bias_item *x, TSR_LOCAL const float *high, TSR_LOCAL const float *low,
                            tsr_i32 row, tsr_i32 column) {
  const tsr_i32 row_end = x->sum_i ? TSR_K_TILE_Q : row + 1, column_end = x->sum_j ? TSR_K_TILE_K : column + 1;
  tsr_sum sum;
  tsr_i32 r, k;
  sum.high = 0.0f;
  sum.low = 0.0f;
  for (r = row; r < row_end; r++) {
    for (k = column; k < column_end; k++) {
      tsr_sum_add(&sum, high[r * TSR_LD_K + k]);
      sum.low += low[r * TSR_LD_K + k];
    }
  }
  return tsr_sum_value(&sum);
}

/* Writes rows that a sequence uses, all columns. `used`: the longest sequence's rows. */
TSR_FN void tsr_bias_store(const tsr_env *e, const tsr_grad *g, const tsr_bias_item *x, tsr_i64 used,
                           tsr_sum sum[TSR_RQ][TSR_CK]) {
  const tsr_t4 *t = &e->a->u.bwd.dbias;
  const tsr_i32 columns = x->sum_j ? 1 : (tsr_i32)tsr_min_i64(TSR_K_TILE_K, e->l->u.dbias_shape[3] - x->j0);
  const tsr_i32 rows = x->sum_i ? 1 : (tsr_i32)tsr_max_i64(0, tsr_min_i64(TSR_K_TILE_Q, used - x->i0));
  const tsr_i64 at = x->b * t->stride[0] + x->h * t->stride[1] + x->i0 * t->stride[2] + x->j0 * t->stride[3];
  TSR_LOCAL float *high = TSR_F32_AT(TSR_AT_PAIRS), *low = TSR_F32_AT(0);
  tsr_i32 r, k, n;
  TSR_BARRIER();
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      high[(e->tr * TSR_RQ + r) * TSR_LD_K + e->tc * TSR_CK + k] = sum[r][k].high;
      low[(e->tr * TSR_RQ + r) * TSR_LD_K + e->tc * TSR_CK + k] = sum[r][k].low;
    }
  }
  TSR_BARRIER();
  for (n = e->t; n < rows * columns; n += TSR_K_THREADS) {
    tsr_store(TSR_AT(void, e->p->dbias, t->offset_bytes), e->l->type[TSR_TYPE_DBIAS],
              at + n / columns * t->stride[2] + n % columns * t->stride[3],
              tsr_bias_value(x, high, low, n / columns, n % columns));
  }
}

TSR_FN void tsr_dbias_item(const tsr_env *e, tsr_grad *g, tsr_i64 item) {
  const tsr_attn_args *a = e->a;
  const tsr_bias_item x = tsr_bias_item_at(e, item);
  const tsr_i64 b_end = x.sum_b ? a->batch : x.b + 1;
  const tsr_i32 h_end = x.sum_h ? a->heads_q : (tsr_i32)x.h + 1;
  tsr_sum sum[TSR_RQ][TSR_CK];
  tsr_i64 b, used = 0;
  tsr_i32 h, r, k;
  if (!x.sum_b && x.b >= a->batch) {
    return;
  }
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      sum[r][k].high = 0.0f;
      sum[r][k].low = 0.0f;
    }
  }
  TSR_LOOP
  for (b = x.b; b < b_end; b++) {
    g->seq = tsr_seq_load(a, &e->masks, b);
    used = tsr_max_i64(used, g->seq.q_len);
    TSR_LOOP
    for (h = (tsr_i32)x.h; h < h_end; h++) {
      tsr_grad_head(e, g, h);
      tsr_bias_head(e, g, &x, sum);
    }
  }
  tsr_bias_store(e, g, &x, used, sum);
}

TSR_KERNEL_ALONE(TSR_K_THREADS) tsr_dbias(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  tsr_i64 w;
  TSR_GRAD_BEGIN(e, p, g);
  g.for_bias = 1;
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    tsr_dbias_item(&e, &g, w);
    TSR_BARRIER();
  }
}

#endif
