/* SPDX-License-Identifier: Apache-2.0 */
/* dK and dV: a work group takes a tile of keys of one kv head through the rows of its whole group of query heads, so
 * that the sum over the group costs nothing. Items: batch x heads_kv x ceil(seqlen_k / TSR_K_TILE_K). */
#ifndef TSR_SIMT_DKDV_H
#define TSR_SIMT_DKDV_H

#define TSR_PIECE_K TSR_PIECE_KV(TSR_K_DIM)
#define TSR_PIECE_V TSR_PIECE_KV(TSR_K_DIM_V)
#define TSR_DK_COUNT (TSR_KR * TSR_OWN(TSR_PIECE_K))
#define TSR_DV_COUNT (TSR_KR * TSR_OWN(TSR_PIECE_V))

/* One piece of the channels of both gradients. */
typedef struct tsr_dkdv_piece {
  tsr_i32 k0, v0; /* its first channels */
  int dk, dv;     /* is there anything to do for each? */
  int scrub;
} tsr_dkdv_piece;

/* acc += pairs^T x of the tile at hand: x rows of Q or of dO, channels from c0 on. Barriers at both ends. */
TSR_FN void tsr_dkdv_add(const tsr_env *e, const tsr_grad *g, float pairs[TSR_RQ][TSR_CK], TSR_GLOBAL const void *x,
                         int type, tsr_i64 step, tsr_i32 rows_at, tsr_i32 c0, tsr_i32 channels, const int piece,
                         float *acc, int scrub) {
  TSR_LOCAL float *ps = TSR_F32_AT(TSR_AT_PAIRS);
  tsr_i32 r, k, first;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      ps[(e->tr * TSR_RQ + r) * TSR_LD_K + e->tc * TSR_CK + k] = pairs[r][k];
    }
  }
  TSR_LOOP
  for (first = 0; first < g->work.q_rows; first += TSR_AT_ONCE(piece)) {
    TSR_LOCAL const float *own = ps + first * TSR_LD_K + e->tr * TSR_KR;
    tsr_grad_load(e, g, x, type, step, rows_at, first, c0, channels, piece);
    TSR_BARRIER();
    if (scrub) {
      tsr_grad_sum(acc, TSR_KR, piece, own, TSR_LD_K, TSR_F32_AT(0), TSR_AT_ONCE(piece), e->tc, 1);
    } else {
      tsr_grad_sum(acc, TSR_KR, piece, own, TSR_LD_K, TSR_F32_AT(0), TSR_AT_ONCE(piece), e->tc, 0);
    }
    TSR_BARRIER();
  }
}

/* Rows from i0 on of the head at hand. */
TSR_FN void tsr_dkdv_tile(const tsr_env *e, tsr_grad *g, const tsr_dkdv_piece *x, tsr_i64 i0, int tile_class, float *dk,
                          float *dv) {
  const tsr_attn_args *a = e->a;
  float p[TSR_RQ][TSR_CK], ds[TSR_RQ][TSR_CK];
  tsr_u32 bits, any;
  tsr_i32 r, k;
  tsr_grad_rows(e, g, i0);
  TSR_BARRIER();
  bits = tsr_grad_allowed(e, g, tile_class, &any);
  if (!any) {
    return;
  }
  tsr_grad_scores(e, g, p);
  if (x->dk) {
    tsr_grad_dp(e, g, ds);
  } else {
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        ds[r][k] = 0.0f;
      }
    }
  }
  tsr_grad_pairs(e, g, bits, p, ds);
  if (x->dv) {
    tsr_dkdv_add(e, g, p, TSR_CAT(void, e->p->dout, a->u.bwd.dout.offset_bytes), TSR_K_DO_TYPE, a->u.bwd.dout.stride[3],
                 TSR_AT_DO_ROWS, x->v0, a->head_dim_v, TSR_PIECE_V, dv, x->scrub);
  }
  if (x->dk) {
    tsr_dkdv_add(e, g, ds, TSR_CAT(void, e->p->q, a->q.offset_bytes), TSR_K_TYPE, a->q.stride[3], TSR_AT_Q_ROWS, x->k0,
                 a->head_dim, TSR_PIECE_K, dk, x->scrub);
  }
}

/* All rows of the group once. */
TSR_FN void tsr_dkdv_pass(const tsr_env *e, tsr_grad *g, const tsr_dkdv_piece *x, tsr_i32 hkv, float *dk, float *dv) {
  tsr_i32 n;
  tsr_i64 i0;
  tsr_grad_zero(dk, TSR_DK_COUNT);
  tsr_grad_zero(dv, TSR_DV_COUNT);
  TSR_LOOP
  for (n = 0; n < e->a->group; n++) {
    tsr_grad_head(e, g, hkv * e->a->group + n);
    TSR_LOOP
    for (i0 = 0; i0 < g->seq.q_len; i0 += TSR_K_TILE_Q) {
      const int tile_class = tsr_grad_class(e, g, i0, g->j0);
      if (tile_class != TSR_CLASS_SKIP) {
        tsr_dkdv_tile(e, g, x, i0, tile_class, dk, dv);
      }
    }
  }
}

/* One piece of the tile of keys at hand. */
TSR_FN void tsr_dkdv_channels(const tsr_env *e, tsr_grad *g, tsr_dkdv_piece *x, tsr_i32 hkv) {
  const tsr_attn_args *a = e->a;
  const tsr_t4 *tk = &a->u.bwd.dk, *tv = &a->u.bwd.dv;
  const tsr_i64 row = g->seq.k_row0 + g->j0;
  const tsr_i32 keys = (tsr_i32)(g->j1 - g->j0);
  float dk[TSR_DK_COUNT], dv[TSR_DV_COUNT];
  /* The NaN rule: what is not finite in a row that masks the key may have come in as 0 * NaN. It shows, is rare, and
   * the tile is done again without those products. */
  TSR_LOOP
  for (x->scrub = 0; x->scrub < 2; x->scrub++) {
    tsr_dkdv_pass(e, g, x, hkv, dk, dv);
    if (!tsr_vote((TSR_LOCAL tsr_u32 *)(g->arena + TSR_AT_VOTE), e->t,
                  tsr_grad_bad(dk, TSR_DK_COUNT) | tsr_grad_bad(dv, TSR_DV_COUNT))) {
      break;
    }
  }
  if (x->dk) {
    tsr_grad_store(dk, TSR_KR, TSR_PIECE_K, e->tr * TSR_KR, keys, e->tc, a->scale,
                   TSR_AT(void, e->p->dk, tk->offset_bytes), e->l->type[TSR_TYPE_DK], tk,
                   g->seq.k_b * tk->stride[0] + row * tk->stride[1] + hkv * tk->stride[2], x->k0, a->head_dim);
  }
  if (x->dv) {
    tsr_grad_store(dv, TSR_KR, TSR_PIECE_V, e->tr * TSR_KR, keys, e->tc, 1.0f, TSR_AT(void, e->p->dv, tv->offset_bytes),
                   e->l->type[TSR_TYPE_DV], tv, g->seq.k_b * tv->stride[0] + row * tv->stride[1] + hkv * tv->stride[2],
                   x->v0, a->head_dim_v);
  }
}

TSR_FN void tsr_dkdv_item(const tsr_env *e, tsr_grad *g, tsr_i64 item) {
  const tsr_attn_args *a = e->a;
  const tsr_i64 blocks = (a->seqlen_k + TSR_K_TILE_K - 1) / TSR_K_TILE_K, b = item / (blocks * a->heads_kv);
  const tsr_i32 hkv = (tsr_i32)(item / blocks % a->heads_kv);
  const tsr_i64 j0 = item % blocks * TSR_K_TILE_K;
  const int dk = e->p->dk != 0, dv = e->p->dv != 0;
  tsr_dkdv_piece x;
  if (b >= a->batch) {
    return;
  }
  g->seq = tsr_seq_load(a, &e->masks, b);
  if (j0 >= g->seq.kv_len) {
    return;
  }
  tsr_grad_head(e, g, hkv * a->group);
  tsr_grad_keys(e, g, j0);
  x.k0 = 0;
  x.v0 = 0;
  TSR_LOOP
  for (;;) {
    x.dk = dk && x.k0 < a->head_dim;
    x.dv = dv && x.v0 < a->head_dim_v;
    if (!x.dk && !x.dv) {
      break;
    }
    tsr_dkdv_channels(e, g, &x, hkv);
    x.k0 += TSR_PIECE_K;
    x.v0 += TSR_PIECE_V;
  }
}

TSR_KERNEL_ALONE(TSR_K_THREADS) tsr_dkdv(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  tsr_i64 w;
  TSR_GRAD_BEGIN(e, p, g);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    tsr_dkdv_item(&e, &g, w);
    TSR_BARRIER();
  }
}

#endif
