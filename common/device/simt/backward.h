/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of the backward pass share (FlashAttention-2's: P is made again from Q, K and LSE): P and dS of a
 * tile in registers, as tile.h lays out scores, and the sums over a tile that make gradients of them.
 *   p = exp(s - lse), dP' = dP or its dropped and scaled form, dS = p (dP' - delta) d(score) / d(scaled dot product)
 * Every sum runs in the order of its index: no atomic, no order of groups. Tiles are rows of one head: pack is 1. */
#ifndef TSR_SIMT_BACKWARD_H
#define TSR_SIMT_BACKWARD_H

#define TSR_KR (TSR_K_TILE_K / TSR_ROWS) /* keys of a thread where keys are rows */

/* Gradients in registers: a thread has rows of its tr and, in each group of 16 * EACH channels, EACH of its tc. */
#define TSR_EACH(dim) ((dim) < 64 ? 2 : 4)
#define TSR_OWN(dim) ((dim) / TSR_COLS) /* channels of a thread */
/* Channels whose sums a thread can keep; a wider head is done in pieces, each of which makes P and dS again. */
#define TSR_PIECE_KV(dim) ((dim) <= 128 ? (dim) : (dim) <= 256 ? 128 : 192) /* dK and dV together */
#define TSR_PIECE_Q(dim) ((dim) <= 256 ? (dim) : 320)
/* Rows of an operand in local memory at once, by the channels of a piece. */
#define TSR_AT_ONCE(piece) ((piece) <= 128 ? 32 : (piece) <= 256 ? 16 : 8)

/* The arena, in bytes. The stage has slices, rows of an operand, or words of pairs. */
#define TSR_PAIR_FLOATS TSR_MAX2(TSR_K_TILE_Q *TSR_LD_K, TSR_K_TILE_K *TSR_LD_Q)
#define TSR_STAGE_FLOATS TSR_MAX2(TSR_MAX2(TSR_SLICE *(TSR_LD_Q + TSR_LD_K), TSR_K_TILE_Q *TSR_K_TILE_K), 32 * 128)
#define TSR_AT_PAIRS (TSR_STAGE_FLOATS * 4)
#define TSR_AT_Q_ROWS (TSR_AT_PAIRS + TSR_PAIR_FLOATS * 4)
#define TSR_AT_DO_ROWS (TSR_AT_Q_ROWS + TSR_K_TILE_Q * 8)
#define TSR_AT_K_ROWS (TSR_AT_DO_ROWS + TSR_K_TILE_Q * 8)
#define TSR_AT_V_ROWS (TSR_AT_K_ROWS + TSR_K_TILE_K * 8)
#define TSR_AT_KEY_S (TSR_AT_V_ROWS + TSR_K_TILE_K * 8)
#define TSR_AT_KEY_B (TSR_AT_KEY_S + TSR_K_TILE_K * 8)
#define TSR_AT_LSE (TSR_AT_KEY_B + TSR_K_TILE_K * 4)
#define TSR_AT_DELTA (TSR_AT_LSE + TSR_K_TILE_Q * 4)
#define TSR_AT_VOTE (TSR_AT_DELTA + TSR_K_TILE_Q * 4)
#define TSR_ARENA_BYTES (TSR_AT_VOTE + TSR_VOTE_WORDS * 4)

#define TSR_F32_AT(offset) ((TSR_LOCAL float *)(g->arena + (offset)))
#define TSR_I64_AT(offset) ((TSR_LOCAL tsr_i64 *)(g->arena + (offset)))
#define TSR_I32_AT(offset) ((TSR_LOCAL tsr_i32 *)(g->arena + (offset)))

/* Where a work group stands. */
typedef struct tsr_grad {
  tsr_seq seq;
  tsr_work work; /* head, q0 and q_rows of the tile; b */
  tsr_i64 j0, j1;
  tsr_i32 kv_head;
  int for_bias; /* dS is wanted as the gradient of the bias: without the factor of the soft cap */
  tsr_philox_key key;
  TSR_LOCAL tsr_u8 *arena;
} tsr_grad;

/* What every such kernel begins with; e, p and g are its names. */
#if defined(TSR_K_EXPR)
#define TSR_GRAD_EXPR(e) e.x = &x
#else
#define TSR_GRAD_EXPR(e)
#endif
#define TSR_GRAD_BEGIN(e, p, g)        \
  tsr_params p;                        \
  tsr_env e;                           \
  tsr_grad g;                          \
  TSR_PARAMS(TSR_X_COPY)               \
  e.a = &a;                            \
  e.l = &l;                            \
  e.p = &p;                            \
  TSR_GRAD_EXPR(e);                    \
  tsr_env_init(&e);                    \
  g.arena = arena;                     \
  g.for_bias = 0;                      \
  g.key.k0 = 0;                        \
  g.key.k1 = 0;                        \
  if (TSR_FLAGS(&a) & TSR_A_DROPOUT) { \
    g.key = tsr_run_key(&e);           \
  }

/* Delta of row 0 of a head; the next rows follow. */
TSR_FN TSR_GLOBAL float *tsr_delta_at(const tsr_env *e, const tsr_seq *seq, tsr_i32 h) {
  const tsr_i64 rows = (TSR_FLAGS(e->a) & TSR_A_Q_PACKED) ? e->a->total_q : e->a->seqlen_q;
  return TSR_AT(float, e->p->workspace, e->l->workspace + e->l->delta) + (seq->q_b * e->a->heads_q + h) * rows +
         seq->q_row0;
}

/* ---- Steps ------------------------------------------------------------------------------------- */

/* To head h of a sequence. */
TSR_FN void tsr_grad_head(const tsr_env *e, tsr_grad *g, tsr_i32 h) {
  g->work.head = h;
  g->work.b = g->seq.b;
  g->kv_head = h / e->a->group;
}

/* To the rows from i0 on: where Q and dO are, -LSE (-inf for a row without keys, and past the rows) and delta. The
 * caller's barriers stand before and after. */
TSR_FN void tsr_grad_rows(const tsr_env *e, tsr_grad *g, tsr_i64 i0) {
  const tsr_attn_args *a = e->a;
  const tsr_t4 *t = &a->u.bwd.dout;
  const tsr_i32 h = g->work.head;
  TSR_GLOBAL const float *lse = TSR_CAT(float, e->p->lse, a->lse.offset_bytes);
  TSR_GLOBAL const float *delta = tsr_delta_at(e, &g->seq, h);
  tsr_i32 r;
  g->work.q0 = i0;
  g->work.q_rows = (tsr_i32)tsr_min_i64(TSR_K_TILE_Q, g->seq.q_len - i0);
  for (r = e->t; r < TSR_K_TILE_Q; r += TSR_K_THREADS) {
    const tsr_i64 row = g->seq.q_row0 + i0 + r;
    const int exists = r < g->work.q_rows;
    float x = -TSR_INF;
    TSR_I64_AT(TSR_AT_Q_ROWS)
    [r] = exists ? g->seq.q_b * a->q.stride[0] + row * a->q.stride[1] + h * a->q.stride[2] : -1;
    TSR_I64_AT(TSR_AT_DO_ROWS)
    [r] = exists ? g->seq.q_b * t->stride[0] + row * t->stride[1] + h * t->stride[2] : -1;
    if (exists) {
      x = -lse[g->seq.q_b * a->lse.stride[0] + h * a->lse.stride[1] + row * a->lse.stride[2]];
    }
    TSR_F32_AT(TSR_AT_LSE)[r] = x == TSR_INF ? -TSR_INF : x;
    TSR_F32_AT(TSR_AT_DELTA)[r] = exists ? delta[i0 + r] : 0.0f;
  }
}

/* To the keys from j0 on. The caller's barriers stand before and after. */
TSR_FN void tsr_grad_keys(const tsr_env *e, tsr_grad *g, tsr_i64 j0) {
  g->j0 = j0;
  g->j1 = tsr_min_i64(j0 + TSR_K_TILE_K, g->seq.kv_len);
  tsr_place_keys(e, &g->seq, g->kv_head, j0, g->j1, TSR_I64_AT(TSR_AT_K_ROWS), TSR_I64_AT(TSR_AT_V_ROWS),
                 TSR_I64_AT(TSR_AT_KEY_S), TSR_I32_AT(TSR_AT_KEY_B));
}

/* What positions say of rows from i0 on against keys from j0 on. */
TSR_FN int tsr_grad_class(const tsr_env *e, const tsr_grad *g, tsr_i64 i0, tsr_i64 j0) {
  return tsr_class_position(e->a, &g->seq, i0, tsr_min_i64(i0 + TSR_K_TILE_Q, g->seq.q_len), j0,
                            tsr_min_i64(j0 + TSR_K_TILE_K, g->seq.kv_len));
}

/* Pairs of the tile at hand that are allowed; *any 0: nobody has one. Uniform. */
TSR_FN tsr_u32 tsr_grad_allowed(const tsr_env *e, const tsr_grad *g, int tile_class, tsr_u32 *any) {
  tsr_u32 bits = 0xffffffffu;
  *any = 1;
  if (tile_class != TSR_CLASS_FULL || g->j1 - g->j0 < TSR_K_TILE_K || (TSR_FLAGS(e->a) & TSR_TENSOR_MASKS)) {
    bits = tsr_allowed_bits(e, &g->seq, &g->work, g->j0, TSR_I32_AT(TSR_AT_KEY_B));
    if (TSR_FLAGS(e->a) & TSR_TENSOR_MASKS) {
      *any = tsr_vote((TSR_LOCAL tsr_u32 *)(g->arena + TSR_AT_VOTE), e->t, bits);
    }
  }
  return bits;
}

/* ---- Pairs ------------------------------------------------------------------------------------- */

/* Dot products of the tile's rows and keys. Barriers after each slice. */
TSR_FN void tsr_grad_dot(const tsr_env *e, const tsr_grad *g, TSR_GLOBAL const void *rows, int row_type,
                         tsr_i64 row_step, tsr_i32 row_at, TSR_GLOBAL const void *keys, int key_type, tsr_i64 key_step,
                         tsr_i32 key_at, tsr_i32 channels, float acc[TSR_RQ][TSR_CK]) {
  TSR_LOCAL float *xs = TSR_F32_AT(0), *ys = xs + TSR_SLICE * TSR_LD_Q;
  tsr_rows x, y;
  tsr_i32 c0, r, k;
  x.at = TSR_I64_AT(row_at);
  x.s = 0;
  x.b = 0;
  y.at = TSR_I64_AT(key_at);
  y.s = 0;
  y.b = 0;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      acc[r][k] = 0.0f;
    }
  }
  TSR_LOOP
  for (c0 = 0; c0 < channels; c0 += TSR_SLICE) {
    tsr_load_slice(e->t, rows, row_type, row_step, &x, 0, 0, c0, channels, TSR_K_TILE_Q, TSR_LD_Q, xs);
    tsr_load_slice(e->t, keys, key_type, key_step, &y, 0, 0, c0, channels, TSR_K_TILE_K, TSR_LD_K, ys);
    TSR_BARRIER();
    tsr_outer_slice(e, xs, ys, acc);
    TSR_BARRIER();
  }
}

TSR_FN void tsr_grad_scores(const tsr_env *e, const tsr_grad *g, float s[TSR_RQ][TSR_CK]) {
  const tsr_attn_args *a = e->a;
  tsr_grad_dot(e, g, TSR_CAT(void, e->p->q, a->q.offset_bytes), TSR_K_TYPE, a->q.stride[3], TSR_AT_Q_ROWS,
               TSR_CAT(void, e->p->k, a->k.offset_bytes), TSR_K_K_TYPE, a->k.stride[3], TSR_AT_K_ROWS, a->head_dim, s);
}

TSR_FN void tsr_grad_dp(const tsr_env *e, const tsr_grad *g, float dp[TSR_RQ][TSR_CK]) {
  const tsr_attn_args *a = e->a;
  tsr_grad_dot(e, g, TSR_CAT(void, e->p->dout, a->u.bwd.dout.offset_bytes), TSR_K_DO_TYPE, a->u.bwd.dout.stride[3],
               TSR_AT_DO_ROWS, TSR_CAT(void, e->p->v, a->v.offset_bytes), TSR_K_V_TYPE, a->v.stride[3], TSR_AT_V_ROWS,
               a->head_dim_v, dp);
}

#if defined(TSR_K_RICH)
/* The score of one pair from its scaled dot product, as tsr_modify_one has it, and its slope. */
TSR_FN float tsr_grad_score(const tsr_env *e, const tsr_grad *g, tsr_i32 h, tsr_i64 i, tsr_i64 j, float x, float *slope,
                            int *masked) {
  const tsr_attn_args *a = e->a;
  *slope = 1.0f;
  if (TSR_FLAGS(a) & TSR_A_SOFTCAP) {
    const float t = tsr_tanh(x / a->softcap);
    *slope = g->for_bias ? 1.0f : 1.0f - t * t;
    x = t * a->softcap;
  }
  if (TSR_FLAGS(a) & TSR_A_ALIBI) {
    const tsr_i64 d = i + g->seq.off - j;
    const float down = TSR_CAT(float, e->p->alibi_slopes,
                               a->alibi.offset_bytes)[g->seq.b * a->alibi.stride[0] + h * a->alibi.stride[1]] *
                       (float)(d < 0 ? -d : d);
    x = x - down;
  }
  if (TSR_FLAGS(a) & TSR_A_BIAS) {
    const float bias =
        tsr_load(TSR_CAT(void, e->p->bias, a->bias.offset_bytes), e->l->type[TSR_TYPE_BIAS],
                 g->seq.b * a->bias.stride[0] + h * a->bias.stride[1] + i * a->bias.stride[2] + j * a->bias.stride[3]);
    x = x + bias;
    *masked = bias == -TSR_INF;
  }
#if defined(TSR_K_EXPR_GRAD)
  *slope *= tsr_expr_grad(e->x, &e->aux, x, g->seq.b, h, h / a->group, i, j, g->seq.q_len, g->seq.kv_len, g->seq.off);
#endif
#if defined(TSR_K_EXPR_SCORE)
  x = tsr_expr_score(e->x, &e->aux, x, g->seq.b, h, h / a->group, i, j, g->seq.q_len, g->seq.kv_len, g->seq.off);
#endif
  return x;
}

/* tsr_grad_pairs where a pair's place matters: a loop over the thread's pairs, with its words in local memory, where an
 * index can reach them. */
TSR_FN void tsr_grad_pairs_rich(const tsr_env *e, const tsr_grad *g, tsr_u32 bits, float p[TSR_RQ][TSR_CK],
                                float ds[TSR_RQ][TSR_CK]) {
  const tsr_attn_args *a = e->a;
  TSR_LOCAL float *ps = TSR_F32_AT(TSR_AT_PAIRS) + e->t, *dss = TSR_F32_AT(0) + e->t;
  const int drops = (TSR_FLAGS(a) & TSR_A_DROPOUT) != 0;
  const tsr_u32 kept = drops ? tsr_kept_bits(e, g->key, &g->work, g->j0, bits) : bits;
  tsr_i32 n;
  TSR_UNROLL
  for (n = 0; n < TSR_RQ * TSR_CK; n++) {
    ps[n * TSR_K_THREADS] = p[n / TSR_CK][n % TSR_CK];
    dss[n * TSR_K_THREADS] = ds[n / TSR_CK][n % TSR_CK];
  }
  TSR_LOOP
  for (n = 0; n < TSR_RQ * TSR_CK; n++) {
    const tsr_i32 row = e->tr * TSR_RQ + n / TSR_CK;
    float weight = 0.0f, out = 0.0f;
    if ((bits >> n & 1u) && row < g->work.q_rows) {
      float x = ps[n * TSR_K_THREADS] * a->scale, dp = dss[n * TSR_K_THREADS], slope;
      int masked = 0;
      x = tsr_grad_score(e, g, g->work.head, g->work.q0 + row, g->j0 + e->tc * TSR_CK + n % TSR_CK, x, &slope, &masked);
      if (!masked) {
        const int keeps = (int)(kept >> n & 1u);
        const float all = tsr_exp2((x + TSR_F32_AT(TSR_AT_LSE)[row]) * TSR_LOG2E);
        weight = !drops ? all : keeps ? all * a->dropout_scale : 0.0f;
        dp = !drops ? dp : keeps ? dp * a->dropout_scale : 0.0f;
        out = all * (dp - TSR_F32_AT(TSR_AT_DELTA)[row]) * slope;
      }
    }
    ps[n * TSR_K_THREADS] = weight;
    dss[n * TSR_K_THREADS] = out;
  }
  TSR_UNROLL
  for (n = 0; n < TSR_RQ * TSR_CK; n++) {
    p[n / TSR_CK][n % TSR_CK] = ps[n * TSR_K_THREADS];
    ds[n / TSR_CK][n % TSR_CK] = dss[n * TSR_K_THREADS];
  }
  TSR_BARRIER();
}
#endif

/* Dot products S and dP to P (dropped and scaled: what dV sums) and dS, both exactly 0 where a pair is masked, whatever
 * came out for it. */
TSR_FN void tsr_grad_pairs(const tsr_env *e, const tsr_grad *g, tsr_u32 bits, float p[TSR_RQ][TSR_CK],
                           float ds[TSR_RQ][TSR_CK]) {
  tsr_i32 r, k;
#if defined(TSR_K_RICH)
  if (TSR_FLAGS(e->a) & (TSR_MODIFY_FLAGS | TSR_A_DROPOUT)) {
    tsr_grad_pairs_rich(e, g, bits, p, ds);
    return;
  }
#endif
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    const float neg_lse = TSR_F32_AT(TSR_AT_LSE)[e->tr * TSR_RQ + r];
    const float delta = TSR_F32_AT(TSR_AT_DELTA)[e->tr * TSR_RQ + r];
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      const float x = tsr_exp2(tsr_fma(p[r][k], e->a->scale, neg_lse) * TSR_LOG2E);
      const int allowed = (int)(bits >> (r * TSR_CK + k) & 1u);
      p[r][k] = allowed ? x : 0.0f;
      ds[r][k] = allowed ? x * (ds[r][k] - delta) : 0.0f;
    }
  }
}

/* ---- Sums -------------------------------------------------------------------------------------- */

/* acc[rows][TSR_OWN(dim)] += pairs^T x over `count` rows of x, `dim` floats apart; pairs[n * ld + ...] has what row n
 * gives each of the thread's rows. scrub: 0 times what is not finite is 0. */
TSR_FN void tsr_grad_sum(float *acc, const int rows, const int dim, TSR_LOCAL const float *pairs, const int ld,
                         TSR_LOCAL const float *x, const int count, tsr_i32 tc, const int scrub) {
  tsr_i32 n, c, r, i;
  TSR_LOOP
  for (n = 0; n < count; n++) {
    float weight[8];
    tsr_read_row(pairs + n * ld, rows, weight);
    TSR_UNROLL
    for (c = 0; c < TSR_OWN(dim) / TSR_EACH(dim); c++) {
      TSR_LOCAL const float *at = x + n * dim + c * TSR_EACH(dim) * TSR_COLS + tc * TSR_EACH(dim);
      float y[4];
      tsr_read_row(at, TSR_EACH(dim), y);
      TSR_UNROLL
      for (r = 0; r < rows; r++) {
        if (!scrub || weight[r] != 0.0f) {
          TSR_UNROLL
          for (i = 0; i < TSR_EACH(dim); i++) {
            acc[r * TSR_OWN(dim) + c * TSR_EACH(dim) + i] =
                tsr_fma(weight[r], y[i], acc[r * TSR_OWN(dim) + c * TSR_EACH(dim) + i]);
          }
        }
      }
    }
  }
}

/* Is one of n sums not a number, or infinite? */
TSR_FN tsr_u32 tsr_grad_bad(const float *acc, const int n) {
  float sum = 0.0f;
  tsr_i32 i;
  TSR_UNROLL
  for (i = 0; i < n; i++) {
    sum += acc[i] * 0.0f;
  }
  return sum != sum;
}

/* Rows [first, first + TSR_AT_ONCE(piece)) of an operand, channels from c0 on, to the stage. */
TSR_FN void tsr_grad_load(const tsr_env *e, const tsr_grad *g, TSR_GLOBAL const void *x, int type, tsr_i64 step,
                          tsr_i32 rows_at, tsr_i32 first, tsr_i32 c0, tsr_i32 channels, const int piece) {
  tsr_rows rows;
  rows.at = TSR_I64_AT(rows_at);
  rows.s = 0;
  rows.b = 0;
  tsr_load_natural(e->t, TSR_CAT(void, x, c0 *step *(type == TSR_T_F32 ? 4 : 2)), type, step, &rows, 0, 0, first,
                   TSR_AT_ONCE(piece), channels - c0, piece, TSR_F32_AT(0));
}

TSR_FN void tsr_grad_zero(float *acc, const int n) {
  tsr_i32 i;
  TSR_UNROLL
  for (i = 0; i < n; i++) {
    acc[i] = 0.0f;
  }
}

/* Writes the thread's rows [first, first + rows) that are below `end`, channels from c0 on, times factor. at: element
 * of row 0, channel 0. */
TSR_FN void tsr_grad_store(const float *acc, const int rows, const int dim, tsr_i32 first, tsr_i32 end, tsr_i32 tc,
                           float factor, TSR_GLOBAL void *out, int type, const tsr_t4 *t, tsr_i64 at, tsr_i32 c0,
                           tsr_i32 channels) {
  tsr_i32 r, n;
  TSR_UNROLL
  for (r = 0; r < rows; r++) {
    TSR_UNROLL
    for (n = 0; n < TSR_OWN(dim); n++) {
      const tsr_i32 c = c0 + n / TSR_EACH(dim) * TSR_EACH(dim) * TSR_COLS + tc * TSR_EACH(dim) + n % TSR_EACH(dim);
      if (first + r < end && c < channels) {
        tsr_store(out, type, at + (first + r) * t->stride[1] + c * t->stride[3], acc[r * TSR_OWN(dim) + n] * factor);
      }
    }
  }
}

#endif
