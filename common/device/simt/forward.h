/* SPDX-License-Identifier: Apache-2.0 */
/* Forward attention (FlashAttention-2, arXiv 2307.08691): one work group takes a tile of query rows through the keys of
 * one split. O stays in registers: thread (tr, tc) has its rows and channels 64 g + 4 tc + (0..3). */
#ifndef TSR_SIMT_FORWARD_H
#define TSR_SIMT_FORWARD_H

#define TSR_OC (TSR_K_DIM_V / TSR_COLS)     /* channels of a thread: 2, else a multiple of 4 */
#define TSR_VK (TSR_K_DIM_V > 128 ? 8 : 16) /* rows of V at once */

/* Channels of O that go out together. */
#define TSR_O_EACH (TSR_OC < 4 ? TSR_OC : 4)
#define TSR_O_GROUPS (TSR_OC / TSR_O_EACH)
#define TSR_O_WIDTH (TSR_O_EACH * TSR_COLS)
#define TSR_LD_O (TSR_O_WIDTH + 4)

/* The arena, in bytes. Partial maxima and O on its way out live where the slices were. */
#define TSR_STAGE_FLOATS \
  TSR_MAX2(TSR_MAX2(TSR_SLICE *(TSR_LD_Q + TSR_LD_K), TSR_VK *TSR_K_DIM_V), TSR_K_TILE_Q *TSR_MAX2(TSR_LD_O, 17))
#define TSR_AT_P (TSR_STAGE_FLOATS * 4)
#define TSR_AT_M (TSR_AT_P + TSR_K_TILE_K * TSR_LD_Q * 4)
#define TSR_AT_ALPHA (TSR_AT_M + TSR_K_TILE_Q * 4)
#define TSR_AT_L (TSR_AT_ALPHA + TSR_K_TILE_Q * 4)
#define TSR_AT_Q_ROWS (TSR_AT_L + TSR_K_TILE_Q * 4)
#define TSR_AT_K_ROWS (TSR_AT_Q_ROWS + TSR_K_TILE_Q * 8)
#define TSR_AT_V_ROWS (TSR_AT_K_ROWS + TSR_K_TILE_K * 8)
#define TSR_AT_KEY_S (TSR_AT_V_ROWS + TSR_K_TILE_K * 8)
#define TSR_AT_KEY_B (TSR_AT_KEY_S + TSR_K_TILE_K * 8)
#define TSR_AT_VOTE (TSR_AT_KEY_B + TSR_K_TILE_K * 4)
#define TSR_ARENA_BYTES (TSR_AT_VOTE + TSR_VOTE_WORDS * 4)

/* How a pass over the keys treats what is not finite. */
#define TSR_PASS_PLAIN 0  /* multiplies a masked pair's probability 0 by whatever the value is */
#define TSR_PASS_SCRUB 1  /* does not */
#define TSR_PASS_SHRINK 2 /* does not, and multiplies probabilities by 2^-32: sums of huge values stay finite */
#define TSR_SHRINK 2.3283064365386963e-10f

typedef struct tsr_fwd {
  tsr_seq seq;
  tsr_work work;
  tsr_units units;
  tsr_i32 kv_head;
  float l[TSR_RQ]; /* the thread's share of the sums of probabilities */
  float o[TSR_RQ][TSR_OC];
  TSR_LOCAL tsr_u8 *arena;
} tsr_fwd;

#define TSR_F32_AT(offset) ((TSR_LOCAL float *)(f->arena + (offset)))
#define TSR_I64_AT(offset) ((TSR_LOCAL tsr_i64 *)(f->arena + (offset)))
#define TSR_I32_AT(offset) ((TSR_LOCAL tsr_i32 *)(f->arena + (offset)))

/* S of the tile at hand, as dot products. */
TSR_FN void tsr_fwd_scores(const tsr_env *e, tsr_fwd *f, const tsr_quant *quant, float s[TSR_RQ][TSR_CK]) {
  const tsr_attn_args *a = e->a;
  TSR_LOCAL float *qs = TSR_F32_AT(0), *ks = qs + TSR_SLICE * TSR_LD_Q;
  TSR_GLOBAL const void *q = TSR_CAT(void, e->p->q, a->q.offset_bytes), *k = TSR_CAT(void, e->p->k, a->k.offset_bytes);
  tsr_rows q_rows, k_rows;
  tsr_i32 c0, r, n;
  q_rows.at = TSR_I64_AT(TSR_AT_Q_ROWS);
  q_rows.s = 0;
  q_rows.b = 0;
  k_rows.at = TSR_I64_AT(TSR_AT_K_ROWS);
  k_rows.s = TSR_I64_AT(TSR_AT_KEY_S);
  k_rows.b = TSR_I32_AT(TSR_AT_KEY_B);
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (n = 0; n < TSR_CK; n++) {
      s[r][n] = 0.0f;
    }
  }
  c0 = 0;
  do {
    tsr_load_slice(e->t, q, TSR_K_TYPE, a->q.stride[3], &q_rows, 0, 0, c0, a->head_dim, TSR_K_TILE_Q, TSR_LD_Q, qs);
    tsr_load_slice(e->t, k, TSR_K_K_TYPE, a->k.stride[3], &k_rows, quant, f->kv_head, c0, a->head_dim, TSR_K_TILE_K,
                   TSR_LD_K, ks);
    TSR_BARRIER();
    tsr_outer_slice(e, qs, ks, s);
    TSR_BARRIER();
    c0 += TSR_SLICE;
  } while (c0 < a->head_dim);
}

/* Joins the tile's maxima to the rows'; leaves what to subtract in safe[] and multiplies earlier sums. */
TSR_FN void tsr_fwd_maximum(const tsr_env *e, tsr_fwd *f, float s[TSR_RQ][TSR_CK], float *safe) {
  TSR_LOCAL float *part = TSR_F32_AT(0), *m = TSR_F32_AT(TSR_AT_M), *alpha = TSR_F32_AT(TSR_AT_ALPHA);
  tsr_i32 r, n;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    part[(e->tr * TSR_RQ + r) * 17 + e->tc] = tsr_fmax(tsr_fmax(s[r][0], s[r][1]), tsr_fmax(s[r][2], s[r][3]));
  }
  TSR_BARRIER();
  for (r = e->t; r < TSR_K_TILE_Q; r += TSR_K_THREADS) {
    const float old = m[r];
    float most = old;
    TSR_UNROLL
    for (n = 0; n < TSR_COLS; n++) {
      most = tsr_fmax(most, part[r * 17 + n]);
    }
    m[r] = most;
    alpha[r] = tsr_exp2((old - tsr_softmax_ref(most)) * f->units.log2);
  }
  TSR_BARRIER();
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    const float factor = alpha[e->tr * TSR_RQ + r];
    safe[r] = tsr_softmax_ref(m[e->tr * TSR_RQ + r]);
    f->l[r] *= factor;
    TSR_UNROLL
    for (n = 0; n < TSR_OC; n++) {
      f->o[r][n] *= factor;
    }
  }
}

/* O += P V over rows [first, first + TSR_VK) of the tile. */
TSR_FN void tsr_fwd_values(const tsr_env *e, tsr_fwd *f, TSR_LOCAL const float *ps, TSR_LOCAL const float *vs,
                           int scrub) {
  tsr_i32 k, r, n;
  TSR_LOOP
  for (k = 0; k < TSR_VK; k++) {
    float p[TSR_RQ], v[TSR_OC];
    tsr_read_row(ps + k * TSR_LD_Q + e->tr * TSR_RQ, TSR_RQ, p);
    if (TSR_OC < 4) {
      TSR_UNROLL
      for (n = 0; n < TSR_OC; n++) {
        v[n] = vs[k * TSR_K_DIM_V + e->tc * TSR_OC + n];
      }
    } else {
      TSR_UNROLL
      for (n = 0; n < TSR_OC / 4; n++) {
        tsr_read_row(vs + k * TSR_K_DIM_V + n * 64 + e->tc * 4, 4, v + 4 * n);
      }
    }
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      if (!scrub || p[r] != 0.0f) {
        TSR_UNROLL
        for (n = 0; n < TSR_OC; n++) {
          f->o[r][n] = tsr_fma(p[r], v[n], f->o[r][n]);
        }
      }
    }
  }
}

/* One tile of keys [j0, j1), of which a thread has the pairs of `bits`. full: all of them, and bits does not count. */
TSR_FN void tsr_fwd_tile(const tsr_env *e, tsr_fwd *f, const tsr_quant *k_quant, const tsr_quant *v_quant,
                         tsr_philox_key key, tsr_i64 j0, tsr_i64 j1, int full, tsr_u32 bits, int pass, float shrink) {
  const tsr_attn_args *a = e->a;
  TSR_LOCAL float *ps = TSR_F32_AT(TSR_AT_P);
  TSR_GLOBAL const void *v = TSR_CAT(void, e->p->v, a->v.offset_bytes);
  float s[TSR_RQ][TSR_CK], safe[TSR_RQ];
  tsr_rows v_rows;
  tsr_i32 r, k, first;
  v_rows.at = TSR_I64_AT(TSR_AT_V_ROWS);
  v_rows.s = TSR_I64_AT(TSR_AT_KEY_S);
  v_rows.b = TSR_I32_AT(TSR_AT_KEY_B);
  tsr_fwd_scores(e, f, k_quant, s);
  if (!f->units.raw) {
    tsr_modify(e, &f->seq, &f->work, &f->units, j0, ps, &bits, s);
  }
  if (!full || (TSR_FLAGS(a) & TSR_A_BIAS)) {
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        s[r][k] = bits >> (r * TSR_CK + k) & 1u ? s[r][k] : -TSR_INF;
      }
    }
  }
  tsr_fwd_maximum(e, f, s, safe);
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      s[r][k] = tsr_exp2((s[r][k] - safe[r]) * f->units.log2);
      f->l[r] += s[r][k];
    }
  }
#if defined(TSR_K_RICH)
  if (TSR_FLAGS(a) & TSR_A_DROPOUT) {
    bits = tsr_kept_bits(e, key, &f->work, j0, bits);
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        s[r][k] = bits >> (r * TSR_CK + k) & 1u ? s[r][k] : 0.0f;
      }
    }
  }
#else
  (void)key;
#endif
  if (pass == TSR_PASS_SHRINK) {
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        s[r][k] *= shrink;
      }
    }
  }
  TSR_UNROLL
  for (k = 0; k < TSR_CK; k++) {
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      ps[(e->tc * TSR_CK + k) * TSR_LD_Q + e->tr * TSR_RQ + r] = s[r][k];
    }
  }
  first = 0;
  do {
    TSR_LOCAL float *vs = TSR_F32_AT(0);
    TSR_BARRIER();
    tsr_load_natural(e->t, v, TSR_K_V_TYPE, a->v.stride[3], &v_rows, v_quant, f->kv_head, first, TSR_VK, a->head_dim_v,
                     TSR_K_DIM_V, vs);
    TSR_BARRIER();
    if (pass == TSR_PASS_PLAIN) {
      tsr_fwd_values(e, f, ps + first * TSR_LD_Q, vs, 0);
    } else {
      tsr_fwd_values(e, f, ps + first * TSR_LD_Q, vs, 1);
    }
    first += TSR_VK;
  } while (first < TSR_K_TILE_K && j0 + first < j1);
  TSR_BARRIER();
}

/* All keys of the split once. */
TSR_FN void tsr_fwd_pass(const tsr_env *e, tsr_fwd *f, const tsr_quant *k_quant, const tsr_quant *v_quant,
                         tsr_philox_key key, int pass, float shrink) {
  const tsr_attn_args *a = e->a;
  const tsr_i64 i0 = f->work.q0, i1 = i0 + f->work.q_rows / e->l->pack;
  const tsr_span v = tsr_span_visible(a, f->seq.prefix, i0 + f->seq.off, i1 - 1 + f->seq.off, f->seq.kv_len);
  const tsr_i64 sink_end = (v.sink + TSR_K_TILE_K - 1) / TSR_K_TILE_K * TSR_K_TILE_K;
  const tsr_i64 window_start = tsr_max_i64(v.lo, 0) / TSR_K_TILE_K * TSR_K_TILE_K;
  const tsr_i64 end = tsr_min_i64(f->work.kv_hi, tsr_max_i64(v.hi, 0));
  tsr_i64 j0 = f->work.kv_lo, j1;
  tsr_u32 bits, any;
  tsr_i32 r, n;
  int full;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    f->l[r] = 0.0f;
    TSR_UNROLL
    for (n = 0; n < TSR_OC; n++) {
      f->o[r][n] = 0.0f;
    }
  }
  for (r = e->t; r < TSR_K_TILE_Q; r += TSR_K_THREADS) {
    TSR_F32_AT(TSR_AT_M)[r] = -TSR_INF;
  }
  do { /* where nothing is left to see, one tile without keys is the cheapest */
    do {
      int c = TSR_CLASS_SKIP;
      while (j0 < end && c == TSR_CLASS_SKIP) {
        if (j0 >= sink_end && j0 < window_start) { /* the gap between sink tokens and the window */
          j0 = window_start;
        } else {
          c = tsr_class_position(a, &f->seq, i0, i1, j0, tsr_min_i64(j0 + TSR_K_TILE_K, f->work.kv_hi));
          j0 += c == TSR_CLASS_SKIP ? TSR_K_TILE_K : 0;
        }
      }
      j1 = c == TSR_CLASS_SKIP ? j0 : tsr_min_i64(j0 + TSR_K_TILE_K, f->work.kv_hi);
      full = c == TSR_CLASS_FULL && j1 - j0 == TSR_K_TILE_K &&
             !(TSR_FLAGS(a) & (TSR_TENSOR_MASKS | TSR_A_PAGED_TABLE | TSR_A_PAGED_CSR));
      TSR_BARRIER();
      tsr_place_keys(e, &f->seq, f->kv_head, j0, j1, TSR_I64_AT(TSR_AT_K_ROWS), TSR_I64_AT(TSR_AT_V_ROWS),
                     TSR_I64_AT(TSR_AT_KEY_S), TSR_I32_AT(TSR_AT_KEY_B));
      TSR_BARRIER();
      bits = 0xffffffffu;
      if (!full) {
        bits = tsr_allowed_bits(e, &f->seq, &f->work, j0, TSR_I32_AT(TSR_AT_KEY_B));
      }
      any = 1;
#if defined(TSR_K_RICH)
      any = tsr_vote((TSR_LOCAL tsr_u32 *)(f->arena + TSR_AT_VOTE), e->t, bits);
#endif
      j0 += any == 0 ? TSR_K_TILE_K : 0;
    } while (any == 0 && j0 < end); /* a tile that tensors mask as a whole is skipped too */
    tsr_fwd_tile(e, f, k_quant, v_quant, key, j0, j1, full, bits, pass, shrink);
    j0 += TSR_K_TILE_K;
  } while (j0 < end);
}

/* Sums of probabilities over the columns, to local memory. Barriers at both ends. */
TSR_FN void tsr_fwd_sums(const tsr_env *e, tsr_fwd *f) {
  TSR_LOCAL float *part = TSR_F32_AT(0), *l = TSR_F32_AT(TSR_AT_L);
  tsr_i32 r, n;
  TSR_BARRIER();
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    part[(e->tr * TSR_RQ + r) * 17 + e->tc] = f->l[r];
  }
  TSR_BARRIER();
  for (r = e->t; r < TSR_K_TILE_Q; r += TSR_K_THREADS) {
    float sum = 0.0f;
    for (n = 0; n < TSR_COLS; n++) {
      sum += part[r * 17 + n];
    }
    l[r] = sum;
  }
  TSR_BARRIER();
}

/* Is an element of O of the thread's rows not a number while its row's sum is one? */
TSR_FN int tsr_fwd_bad(const tsr_env *e, const tsr_fwd *f) {
  int bad = 0;
  tsr_i32 r, n;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    const float l = TSR_F32_AT(TSR_AT_L)[e->tr * TSR_RQ + r];
    float sum = 0.0f;
    TSR_UNROLL
    for (n = 0; n < TSR_OC; n++) {
      sum += f->o[r][n] * 0.0f;
    }
    bad |= e->tr * TSR_RQ + r < f->work.q_rows && l == l && sum != sum;
  }
  return bad;
}

/* What each row is to be multiplied by, to local memory (where alpha was); writes LSE, or the state of a split. */
TSR_FN void tsr_fwd_finish(const tsr_env *e, const tsr_fwd *f, float shrink) {
  const tsr_attn_args *a = e->a;
  const float unit = f->units.raw ? f->units.scale : 1.0f;
  const float kept = (TSR_FLAGS(a) & TSR_A_DROPOUT) ? a->dropout_scale : 1.0f;
  tsr_i32 r;
  for (r = e->t; r < f->work.q_rows; r += TSR_K_THREADS) {
    const tsr_i64 i = tsr_row_i(e, &f->work, r);
    const tsr_i32 h = tsr_row_h(e, &f->work, r);
    const float m = TSR_F32_AT(TSR_AT_M)[r], l = TSR_F32_AT(TSR_AT_L)[r];
    float factor = 0.0f;
    if (e->l->num_splits > 1) {
      TSR_GLOBAL float *ml = TSR_AT(float, e->p->workspace, e->l->workspace + e->l->partial_ml) +
                             2 * tsr_partial_at(e, &f->seq, f->work.split, i, h);
      ml[0] = m;
      ml[1] = l;
      factor = 1.0f / (l * shrink);
    } else {
      const float z =
          (TSR_FLAGS(a) & TSR_A_SINK) ? TSR_CAT(float, e->p->sink, a->sink.offset_bytes)[h * a->sink.stride] : -TSR_INF;
      float lse = z;
      if (l != 0.0f) {
        factor = tsr_finish_row(m * unit, l, z, kept, &lse) / shrink;
      }
      if (e->p->lse != 0) {
        TSR_AT(float, e->p->lse, a->lse.offset_bytes)
        [f->seq.q_b * a->lse.stride[0] + h * a->lse.stride[1] + (f->seq.q_row0 + i) * a->lse.stride[2]] = lse;
      }
    }
    TSR_F32_AT(TSR_AT_ALPHA)[r] = factor;
  }
  TSR_BARRIER();
}

/* Rows of O through local memory, 64 channels at a time, so that neighbours write to neighbours. */
TSR_FN void tsr_fwd_store(const tsr_env *e, const tsr_fwd *f) {
  const tsr_attn_args *a = e->a;
  TSR_LOCAL float *out = TSR_F32_AT(0);
  tsr_i32 g, r, n, u;
  TSR_UNROLL
  for (g = 0; g < TSR_O_GROUPS; g++) {
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (n = 0; n < TSR_O_EACH; n++) {
        out[(e->tr * TSR_RQ + r) * TSR_LD_O + e->tc * TSR_O_EACH + n] = f->o[r][g * TSR_O_EACH + n];
      }
    }
    TSR_BARRIER();
    TSR_LOOP
    for (u = e->t; u < f->work.q_rows * TSR_O_WIDTH; u += TSR_K_THREADS) {
      const tsr_i32 row = u / TSR_O_WIDTH, c = u % TSR_O_WIDTH + g * TSR_O_WIDTH;
      if (c < a->head_dim_v) {
        const tsr_i64 i = tsr_row_i(e, &f->work, row);
        const tsr_i32 h = tsr_row_h(e, &f->work, row);
        const float factor = TSR_F32_AT(TSR_AT_ALPHA)[row];
        /* a row that saw no key has a sum of 0: nothing was summed, whatever its O holds */
        const float x = TSR_F32_AT(TSR_AT_L)[row] == 0.0f ? 0.0f : out[row * TSR_LD_O + u % TSR_O_WIDTH] * factor;
        if (e->l->num_splits > 1) {
          TSR_AT(float, e->p->workspace, e->l->workspace + e->l->partial_o)
          [tsr_partial_at(e, &f->seq, f->work.split, i, h) * a->head_dim_v + c] = x;
        } else {
          tsr_store(TSR_AT(void, e->p->o, a->o.offset_bytes), e->l->type[TSR_TYPE_O],
                    f->seq.q_b * a->o.stride[0] + (f->seq.q_row0 + i) * a->o.stride[1] + h * a->o.stride[2] +
                        c * a->o.stride[3],
                    x);
        }
      }
    }
    TSR_BARRIER();
  }
}

/* The largest score of each packed head, for the launch "max_s". */
TSR_FN void tsr_fwd_store_max(const tsr_env *e, const tsr_fwd *f, tsr_i64 item) {
  TSR_LOCAL const float *m = TSR_F32_AT(TSR_AT_M), *l = TSR_F32_AT(TSR_AT_L);
  const float unit = f->units.raw ? f->units.scale : 1.0f;
  tsr_i32 r;
  if (e->t < e->l->pack) {
    float most = -TSR_INF;
    for (r = e->t; r < f->work.q_rows; r += e->l->pack) {
      float x = m[r] * unit;
      if (l[r] != l[r] && x != TSR_INF) {
        x = l[r]; /* a maximum may lose a NaN, the sum does not */
      }
      most = tsr_max_or_nan(most, x);
    }
    TSR_AT(float, e->p->workspace, e->l->workspace + e->l->item_max)[item * e->l->pack + e->t] = most;
  }
}

TSR_FN void tsr_fwd_quant(const tsr_env *e, tsr_quant *k, tsr_quant *v) {
  const tsr_attn_args *a = e->a;
  k->group = a->k_group;
  k->scale = TSR_CAT(void, e->p->k_scale, a->u.fwd.k_scale.offset_bytes);
  k->zero = TSR_CAT(void, e->p->k_zero, a->u.fwd.k_zero.offset_bytes);
  k->scale_at = &a->u.fwd.k_scale;
  k->zero_at = &a->u.fwd.k_zero;
  k->scale_type = e->l->type[TSR_TYPE_K_SCALE];
  k->zero_type = e->l->type[TSR_TYPE_K_ZERO];
  v->group = a->v_group;
  v->scale = TSR_CAT(void, e->p->v_scale, a->u.fwd.v_scale.offset_bytes);
  v->zero = TSR_CAT(void, e->p->v_zero, a->u.fwd.v_zero.offset_bytes);
  v->scale_at = &a->u.fwd.v_scale;
  v->zero_at = &a->u.fwd.v_zero;
  v->scale_type = e->l->type[TSR_TYPE_V_SCALE];
  v->zero_type = e->l->type[TSR_TYPE_V_ZERO];
}

TSR_FN void tsr_fwd_item(const tsr_env *e, tsr_fwd *f, tsr_i64 item, int exists) {
  const tsr_attn_args *a = e->a;
  const tsr_i32 pack = e->l->pack;
  tsr_philox_key key;
  tsr_quant k_quant, v_quant;
  float shrink;
  tsr_u32 again;
  tsr_i32 r, pass;
  f->work = tsr_work_at(e, item, &f->seq);
  f->work.q_rows = exists ? f->work.q_rows : 0;
  f->work.kv_hi = f->work.q_rows != 0 ? f->work.kv_hi : f->work.kv_lo;
  f->kv_head = f->work.head * pack / a->group;
  f->units = tsr_units_of(e, f->seq.b, f->kv_head);
  for (r = e->t; r < TSR_K_TILE_Q; r += TSR_K_THREADS) {
    const tsr_i64 i = f->seq.q_row0 + tsr_row_i(e, &f->work, r);
    TSR_I64_AT(TSR_AT_Q_ROWS)
    [r] = r < f->work.q_rows
              ? f->seq.q_b * a->q.stride[0] + i * a->q.stride[1] + tsr_row_h(e, &f->work, r) * a->q.stride[2]
              : -1;
  }
  tsr_fwd_quant(e, &k_quant, &v_quant);
  key.k0 = 0;
  key.k1 = 0;
  if (TSR_FLAGS(a) & TSR_A_DROPOUT) {
    key = tsr_run_key(e);
  }
  /* The NaN rule: a masked value that is not finite may have reached rows that must not see it (0 * NaN), and huge
   * values may have overflowed before the division by the sum. Both show as values that are not finite, are rare, and
   * the tile is redone: first without the products, then with smaller probabilities. */
  pass = TSR_PASS_PLAIN;
  do {
    shrink = pass == TSR_PASS_SHRINK ? TSR_SHRINK : 1.0f;
    tsr_fwd_pass(e, f, &k_quant, &v_quant, key, pass, shrink);
    tsr_fwd_sums(e, f);
    again = tsr_vote((TSR_LOCAL tsr_u32 *)(f->arena + TSR_AT_VOTE), e->t, (tsr_u32)tsr_fwd_bad(e, f));
    pass++;
  } while (again != 0 && pass <= TSR_PASS_SHRINK);
  if (e->l->item_max >= 0 && exists) {
    tsr_fwd_store_max(e, f, item);
  }
  tsr_fwd_finish(e, f, shrink);
  tsr_fwd_store(e, f);
}

TSR_KERNEL(TSR_K_THREADS) tsr_forward(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  tsr_params p;
  tsr_env e;
  tsr_fwd f;
  tsr_i64 w, items = l.items;
  TSR_PARAMS(TSR_X_COPY)
  e.a = &a;
  e.l = &l;
  e.p = &p;
#if defined(TSR_K_EXPR)
  e.x = &x;
#endif
  tsr_env_init(&e);
  f.arena = arena;
  if (l.list >= 0) {
    items = TSR_CAT(tsr_i64, workspace, l.workspace + l.list)[a.batch];
  }
  w = TSR_GROUP();
  do { /* a group without work goes through the motions, without rows */
    tsr_fwd_item(&e, &f, w, w < items);
    TSR_BARRIER();
    w += TSR_GROUPS();
  } while (w < items);
}

#endif
