/* SPDX-License-Identifier: Apache-2.0 */
/* dK and dV: a work group takes a tile of keys of one kv head through the rows of its whole group of query heads, so
 * that the sum over the group costs nothing. Items: batch x heads_kv x ceil(seqlen_k / TSR_K_TILE_K). TSR_K_PART: 0
 * both, 1 dK alone, 2 dV alone (wide heads: the sums of both do not fit the registers). */
#ifndef TSR_SIMT_DKDV_H
#define TSR_SIMT_DKDV_H

#if !defined(TSR_K_PART)
#define TSR_K_PART 0
#endif
#define TSR_WANT_DK (TSR_K_PART != 2)
#define TSR_WANT_DV (TSR_K_PART != 1)
#define TSR_DK_COUNT (TSR_KR * TSR_OWN(TSR_K_DIM))
#define TSR_DV_COUNT (TSR_KR * TSR_OWN(TSR_K_DIM_V))

/* acc += pairs^T x of the tile at hand: x rows of Q or of dO. Barriers at both ends. */
TSR_FN void tsr_dkdv_add(const tsr_env *e, const tsr_grad *g, float pairs[TSR_RQ][TSR_CK], TSR_GLOBAL const void *x,
                         int type, tsr_i64 step, tsr_i32 rows_at, tsr_i32 channels, const int dim, float *acc,
                         int scrub) {
  TSR_LOCAL float *ps = TSR_F32_AT(TSR_AT_PAIRS), *xs = TSR_F32_AT(0);
  tsr_rows rows;
  tsr_i32 r, k, first;
  rows.at = TSR_I64_AT(rows_at);
  rows.s = 0;
  rows.b = 0;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      ps[(e->tr * TSR_RQ + r) * TSR_LD_K + e->tc * TSR_CK + k] = pairs[r][k];
    }
  }
  TSR_LOOP
  for (first = 0; first < g->work.q_rows; first += TSR_AT_ONCE(dim)) {
    tsr_load_natural(e->t, x, type, step, &rows, 0, 0, first, TSR_AT_ONCE(dim), channels, dim, xs);
    TSR_BARRIER();
    if (scrub) {
      tsr_grad_sum(acc, TSR_KR, dim, ps + first * TSR_LD_K + e->tr * TSR_KR, TSR_LD_K, xs, TSR_AT_ONCE(dim), e->tc, 1);
    } else {
      tsr_grad_sum(acc, TSR_KR, dim, ps + first * TSR_LD_K + e->tr * TSR_KR, TSR_LD_K, xs, TSR_AT_ONCE(dim), e->tc, 0);
    }
    TSR_BARRIER();
  }
}

/* Rows from i0 on of the head at hand. */
TSR_FN void tsr_dkdv_tile(const tsr_env *e, tsr_grad *g, tsr_i64 i0, int tile_class, int scrub, float *dk, float *dv) {
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
  if (TSR_WANT_DK) {
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
  if (TSR_WANT_DV) {
    tsr_dkdv_add(e, g, p, TSR_CAT(void, e->p->dout, a->u.bwd.dout.offset_bytes), TSR_K_DO_TYPE,
                 a->u.bwd.dout.stride[3], TSR_AT_DO_ROWS, a->head_dim_v, TSR_K_DIM_V, dv, scrub);
  }
  if (TSR_WANT_DK) {
    tsr_dkdv_add(e, g, ds, TSR_CAT(void, e->p->q, a->q.offset_bytes), TSR_K_TYPE, a->q.stride[3], TSR_AT_Q_ROWS,
                 a->head_dim, TSR_K_DIM, dk, scrub);
  }
}

/* All rows of the group once. */
TSR_FN void tsr_dkdv_pass(const tsr_env *e, tsr_grad *g, tsr_i32 hkv, int scrub, float *dk, float *dv) {
  tsr_i32 n;
  tsr_i64 i0;
  if (TSR_WANT_DK) {
    tsr_grad_zero(dk, TSR_DK_COUNT);
  }
  if (TSR_WANT_DV) {
    tsr_grad_zero(dv, TSR_DV_COUNT);
  }
  TSR_LOOP
  for (n = 0; n < e->a->group; n++) {
    tsr_grad_head(e, g, hkv * e->a->group + n);
    TSR_LOOP
    for (i0 = 0; i0 < g->seq.q_len; i0 += TSR_K_TILE_Q) {
      const int tile_class = tsr_grad_class(e, g, i0, g->j0);
      if (tile_class != TSR_CLASS_SKIP) {
        tsr_dkdv_tile(e, g, i0, tile_class, scrub, dk, dv);
      }
    }
  }
}

TSR_FN void tsr_dkdv_item(const tsr_env *e, tsr_grad *g, tsr_i64 item) {
  const tsr_attn_args *a = e->a;
  const tsr_i64 blocks = (a->seqlen_k + TSR_K_TILE_K - 1) / TSR_K_TILE_K, b = item / (blocks * a->heads_kv);
  const tsr_i32 hkv = (tsr_i32)(item / blocks % a->heads_kv);
  const tsr_i64 j0 = item % blocks * TSR_K_TILE_K;
  const tsr_t4 *tk = &a->u.bwd.dk, *tv = &a->u.bwd.dv;
  float dk[TSR_WANT_DK ? TSR_DK_COUNT : 1], dv[TSR_WANT_DV ? TSR_DV_COUNT : 1];
  tsr_i32 pass, keys;
  if (b >= a->batch) {
    return;
  }
  g->seq = tsr_seq_load(a, &e->masks, b);
  if (j0 >= g->seq.kv_len) {
    return;
  }
  tsr_grad_head(e, g, hkv * a->group);
  tsr_grad_keys(e, g, j0);
  /* The NaN rule: what is not finite in a row that masks the key may have come in as 0 * NaN. It shows, is rare, and
   * the tile is done again without those products. */
  TSR_LOOP
  for (pass = 0; pass < 2; pass++) {
    tsr_u32 bad = 0;
    tsr_dkdv_pass(e, g, hkv, pass, dk, dv);
    if (TSR_WANT_DK) {
      bad |= tsr_grad_bad(dk, TSR_DK_COUNT);
    }
    if (TSR_WANT_DV) {
      bad |= tsr_grad_bad(dv, TSR_DV_COUNT);
    }
    if (!tsr_vote((TSR_LOCAL tsr_u32 *)(g->arena + TSR_AT_VOTE), e->t, bad)) {
      break;
    }
  }
  keys = (tsr_i32)(g->j1 - j0);
  if (TSR_WANT_DK && e->p->dk != 0) {
    tsr_grad_store(dk, TSR_KR, TSR_K_DIM, e->tr * TSR_KR, keys, e->tc, a->scale,
                   TSR_AT(void, e->p->dk, tk->offset_bytes), e->l->type[TSR_TYPE_DK], tk,
                   g->seq.k_b * tk->stride[0] + (g->seq.k_row0 + j0) * tk->stride[1] + hkv * tk->stride[2],
                   a->head_dim);
  }
  if (TSR_WANT_DV && e->p->dv != 0) {
    tsr_grad_store(dv, TSR_KR, TSR_K_DIM_V, e->tr * TSR_KR, keys, e->tc, 1.0f,
                   TSR_AT(void, e->p->dv, tv->offset_bytes), e->l->type[TSR_TYPE_DV], tv,
                   g->seq.k_b * tv->stride[0] + (g->seq.k_row0 + j0) * tv->stride[1] + hkv * tv->stride[2],
                   a->head_dim_v);
  }
}

TSR_KERNEL(TSR_K_THREADS) tsr_dkdv(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  tsr_i64 w;
  TSR_GRAD_BEGIN(e, p, g);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    tsr_dkdv_item(&e, &g, w);
    TSR_BARRIER();
  }
}

#endif
