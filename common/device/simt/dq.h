/* SPDX-License-Identifier: Apache-2.0 */
/* dQ: a work group takes a tile of query rows of one head through its keys. Items: batch x heads_q x ceil(seqlen_q /
 * TSR_K_TILE_Q). */
#ifndef TSR_SIMT_DQ_H
#define TSR_SIMT_DQ_H

#define TSR_PIECE TSR_PIECE_Q(TSR_K_DIM)
#define TSR_DQ_COUNT (TSR_RQ * TSR_OWN(TSR_PIECE))

/* Keys from j0 on, channels from c0 on. */
TSR_FN void tsr_dq_tile(const tsr_env *e, tsr_grad *g, tsr_i64 j0, tsr_i32 c0, int tile_class, int scrub, float *dq) {
  const tsr_attn_args *a = e->a;
  TSR_LOCAL float *dss = TSR_F32_AT(TSR_AT_PAIRS);
  float p[TSR_RQ][TSR_CK], ds[TSR_RQ][TSR_CK];
  tsr_u32 bits, any;
  tsr_i32 r, k, first;
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
  for (k = 0; k < TSR_CK; k++) {
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      dss[(e->tc * TSR_CK + k) * TSR_LD_Q + e->tr * TSR_RQ + r] = ds[r][k];
    }
  }
  TSR_LOOP
  for (first = 0; j0 + first < g->j1; first += TSR_AT_ONCE(TSR_PIECE)) {
    TSR_LOCAL const float *own = dss + first * TSR_LD_Q + e->tr * TSR_RQ;
    tsr_grad_load(e, g, TSR_CAT(void, e->p->k, a->k.offset_bytes), TSR_K_K_TYPE, a->k.stride[3], TSR_AT_K_ROWS, first,
                  c0, a->head_dim, TSR_PIECE);
    TSR_BARRIER();
    if (scrub) {
      tsr_grad_sum(dq, TSR_RQ, TSR_PIECE, own, TSR_LD_Q, TSR_F32_AT(0), TSR_AT_ONCE(TSR_PIECE), e->tc, 1);
    } else {
      tsr_grad_sum(dq, TSR_RQ, TSR_PIECE, own, TSR_LD_Q, TSR_F32_AT(0), TSR_AT_ONCE(TSR_PIECE), e->tc, 0);
    }
    TSR_BARRIER();
  }
}

/* Channels from c0 on of the rows at hand. */
TSR_FN void tsr_dq_channels(const tsr_env *e, tsr_grad *g, tsr_i32 c0) {
  const tsr_attn_args *a = e->a;
  const tsr_t4 *t = &a->u.bwd.dq;
  float dq[TSR_DQ_COUNT];
  tsr_i32 pass;
  tsr_i64 j0;
  TSR_LOOP
  for (pass = 0; pass < 2; pass++) { /* again without products by 0, as in dkdv.h */
    tsr_grad_zero(dq, TSR_DQ_COUNT);
    TSR_LOOP
    for (j0 = 0; j0 < g->seq.kv_len; j0 += TSR_K_TILE_K) {
      const int tile_class = tsr_grad_class(e, g, g->work.q0, j0);
      if (tile_class != TSR_CLASS_SKIP) {
        tsr_dq_tile(e, g, j0, c0, tile_class, pass, dq);
      }
    }
    if (!tsr_vote((TSR_LOCAL tsr_u32 *)(g->arena + TSR_AT_VOTE), e->t, tsr_grad_bad(dq, TSR_DQ_COUNT))) {
      break;
    }
  }
  tsr_grad_store(dq, TSR_RQ, TSR_PIECE, e->tr * TSR_RQ, g->work.q_rows, e->tc, a->scale,
                 TSR_AT(void, e->p->dq, t->offset_bytes), e->l->type[TSR_TYPE_DQ], t,
                 g->seq.q_b * t->stride[0] + (g->seq.q_row0 + g->work.q0) * t->stride[1] + g->work.head * t->stride[2],
                 c0, a->head_dim);
}

TSR_FN void tsr_dq_item(const tsr_env *e, tsr_grad *g, tsr_i64 item) {
  const tsr_attn_args *a = e->a;
  const tsr_i64 blocks = (a->seqlen_q + TSR_K_TILE_Q - 1) / TSR_K_TILE_Q, b = item / (blocks * a->heads_q);
  const tsr_i64 i0 = (blocks - 1 - item % blocks) * TSR_K_TILE_Q; /* causal: the longest first */
  tsr_i32 c0;
  if (b >= a->batch) {
    return;
  }
  g->seq = tsr_seq_load(a, &e->masks, b);
  if (i0 >= g->seq.q_len) {
    return;
  }
  tsr_grad_head(e, g, (tsr_i32)(item / blocks % a->heads_q));
  tsr_grad_rows(e, g, i0);
  TSR_LOOP
  for (c0 = 0; c0 < a->head_dim; c0 += TSR_PIECE) {
    tsr_dq_channels(e, g, c0);
  }
}

/* Without the pointers of RICH two groups fit next to each other. */
#if defined(TSR_K_RICH)
TSR_KERNEL_ALONE(TSR_K_THREADS)
#else
TSR_KERNEL(TSR_K_THREADS)
#endif
tsr_dq(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  tsr_i64 w;
  TSR_GRAD_BEGIN(e, p, g);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    tsr_dq_item(&e, &g, w);
    TSR_BARRIER();
  }
}

#endif
