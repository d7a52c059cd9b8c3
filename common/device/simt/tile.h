/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of the portable kernels: a work group of TSR_K_THREADS threads holds TSR_K_TILE_Q query rows against
 * TSR_K_TILE_K keys, as a grid of TSR_ROWS x 16 threads. Thread (tr, tc) has rows tr * TSR_RQ ... and keys tc * TSR_CK
 * ... of the scores in registers. Operands come through local memory in slices of 32 channels, channel by channel, so
 * that a thread reads its rows and its keys of one channel as vectors; no size depends on the head dimension. */
#ifndef TSR_SIMT_TILE_H
#define TSR_SIMT_TILE_H

#define TSR_COLS 16
#define TSR_ROWS (TSR_K_THREADS / TSR_COLS)
#define TSR_RQ (TSR_K_TILE_Q / TSR_ROWS) /* query rows of a thread */
#define TSR_CK (TSR_K_TILE_K / TSR_COLS) /* keys of a thread: 4 */
#define TSR_SLICE 32
#define TSR_LD_Q (TSR_K_TILE_Q + 4)
#define TSR_LD_K (TSR_K_TILE_K + 4)
#define TSR_LOG2E 1.4426950408889634f
#define TSR_MODIFY_FLAGS (TSR_A_SOFTCAP | TSR_A_ALIBI | TSR_A_BIAS | TSR_A_SCORE_EXPR)
/* Masks that only a look at each pair can decide. */
#define TSR_TENSOR_MASKS \
  (TSR_A_MASK_U8 | TSR_A_MASK_BIT | TSR_A_SEGMENTS | TSR_A_FLASHMASK | TSR_A_BLOCKS | TSR_A_MASK_EXPR)

#define TSR_MAX2(a, b) ((a) > (b) ? (a) : (b))
#define TSR_AT(type, ptr, offset) ((TSR_GLOBAL type *)((TSR_GLOBAL tsr_u8 *)(ptr) + (offset)))
#define TSR_CAT(type, ptr, offset) ((TSR_GLOBAL const type *)((TSR_GLOBAL const tsr_u8 *)(ptr) + (offset)))

/* ---- Parameters -------------------------------------------------------------------------------- */

#if defined(TSR_K_BACKWARD)
#define TSR_PARAMS_OP(X) TSR_PARAMS_BACKWARD(X)
#else
#define TSR_PARAMS_OP(X) TSR_PARAMS_FORWARD(X)
#endif
#if defined(TSR_K_RICH)
#define TSR_PARAMS_MORE(X) TSR_PARAMS_RICH(X)
#else
#define TSR_PARAMS_MORE(X)
#endif
#if defined(TSR_K_EXPR)
#define TSR_PARAMS_EXPR(X) TSR_PARAMS_AUX(X)
#define TSR_EXPR_PARAM , const tsr_expr_args x
#else
#define TSR_PARAMS_EXPR(X)
#define TSR_EXPR_PARAM
#endif
#define TSR_PARAMS(X) TSR_PARAMS_BASE(X) TSR_PARAMS_OP(X) TSR_PARAMS_MORE(X) TSR_PARAMS_EXPR(X)

#define TSR_X_PARAM(type, name) TSR_GLOBAL type *TSR_RESTRICT name,
#define TSR_X_MEMBER(type, name) TSR_GLOBAL type *name;
#define TSR_X_COPY(type, name) p.name = name;

/* The list of an attention kernel. */
#define TSR_ATTN_PARAMS TSR_PARAMS(TSR_X_PARAM) const tsr_attn_args a, const tsr_launch_args l TSR_EXPR_PARAM

/* All pointers as given. */
typedef struct tsr_params {
  TSR_PARAMS(TSR_X_MEMBER)
} tsr_params;

/* One work group's view of a run. */
typedef struct tsr_env {
  const tsr_attn_args *a;
  const tsr_launch_args *l;
  const tsr_params *p;
  tsr_attn_ptrs masks;
#if defined(TSR_K_EXPR)
  const tsr_expr_args *x;
  tsr_expr_ptrs aux;
#endif
  tsr_i32 t, tr, tc; /* thread, its row and column of the grid */
} tsr_env;

/* Fills env (a, l, p set) but for x. */
TSR_FN void tsr_env_init(tsr_env *e) {
  const tsr_attn_args *a = e->a;
  const tsr_params *p = e->p;
  tsr_attn_ptrs *m = &e->masks;
  e->t = TSR_THREAD();
  e->tr = e->t / TSR_COLS;
  e->tc = e->t % TSR_COLS;
  m->cu_q = TSR_CAT(void, p->cu_seqlens_q, a->cu_q.offset_bytes);
  m->cu_k = TSR_CAT(void, p->cu_seqlens_k, a->cu_k.offset_bytes);
  m->len_q = TSR_CAT(void, p->seqlens_q, a->len_q.offset_bytes);
  m->len_k = TSR_CAT(void, p->seqlens_k, a->len_k.offset_bytes);
  m->prefix = TSR_CAT(void, p->prefix, a->prefix.offset_bytes);
#if !defined(TSR_K_BACKWARD)
  m->block_table = TSR_CAT(tsr_i32, p->block_table, a->u.fwd.block_table.offset_bytes);
  m->kv_indptr = TSR_CAT(tsr_i32, p->kv_indptr, a->u.fwd.kv_indptr.offset_bytes);
  m->kv_indices = TSR_CAT(tsr_i32, p->kv_indices, a->u.fwd.kv_indices.offset_bytes);
  m->last_page_len = TSR_CAT(tsr_i32, p->last_page_len, a->u.fwd.last_page_len.offset_bytes);
#else
  m->block_table = 0;
  m->kv_indptr = 0;
  m->kv_indices = 0;
  m->last_page_len = 0;
#endif
#if defined(TSR_K_RICH)
  m->mask = TSR_CAT(tsr_u8, p->mask, a->mask.offset_bytes);
  m->mask_offsets = TSR_CAT(tsr_i64, p->mask_offsets, a->mask_offsets.offset_bytes);
  m->mask_row_strides = TSR_CAT(tsr_i64, p->mask_row_strides, a->mask_row_strides.offset_bytes);
  m->segments_q = TSR_CAT(tsr_i32, p->segments_q, a->segments_q.offset_bytes);
  m->segments_k = TSR_CAT(tsr_i32, p->segments_k, a->segments_k.offset_bytes);
  m->flashmask = TSR_CAT(tsr_i32, p->flashmask, a->flashmask.offset_bytes);
  m->block_indptr = TSR_CAT(tsr_i32, p->block_indptr, a->block_indptr.offset_bytes);
  m->block_indices = TSR_CAT(tsr_i32, p->block_indices, a->block_indices.offset_bytes);
#else
  m->mask = 0;
  m->mask_offsets = 0;
  m->mask_row_strides = 0;
  m->segments_q = 0;
  m->segments_k = 0;
  m->flashmask = 0;
  m->block_indptr = 0;
  m->block_indices = 0;
#endif
#if defined(TSR_K_EXPR)
  e->aux.aux[0] = p->aux0;
  e->aux.aux[1] = p->aux1;
  e->aux.aux[2] = p->aux2;
  e->aux.aux[3] = p->aux3;
  e->aux.aux[4] = p->aux4;
  e->aux.aux[5] = p->aux5;
  e->aux.aux[6] = p->aux6;
  e->aux.aux[7] = p->aux7;
#endif
}

/* ---- Work -------------------------------------------------------------------------------------- */

/* Item `index` as common/schedule.c has it; q_rows 0: nothing to do. Loads its sequence (of an item past the batch, the
 * last). */
TSR_FN tsr_work tsr_work_at(const tsr_env *e, tsr_i64 index, tsr_seq *seq) {
  const tsr_launch_args *l = e->l;
  const tsr_i64 rows = TSR_K_TILE_Q / l->pack;
  tsr_i64 blocks = l->q_blocks;
  tsr_work w;
  w.b = 0;
  if (l->list >= 0) { /* the last sequence that begins at or before the item */
    TSR_GLOBAL const tsr_i64 *first = TSR_CAT(tsr_i64, e->p->workspace, l->workspace + l->list);
    tsr_i64 lo = 0, hi = e->a->batch;
    while (hi - lo > 1) {
      const tsr_i64 mid = lo + (hi - lo) / 2;
      if (first[mid] <= index) {
        lo = mid;
      } else {
        hi = mid;
      }
    }
    w.b = lo;
    index -= first[lo];
  } else {
    const tsr_i64 each = (tsr_i64)l->num_splits * blocks * l->heads;
    w.b = index / each;
    index -= w.b * each;
  }
  w.q_rows = 0;
  w.reserved = 0;
  w.q0 = 0;
  w.kv_lo = 0;
  w.kv_hi = 0;
  w.split = (tsr_i32)(index % l->num_splits);
  index /= l->num_splits;
  w.head = 0;
  *seq = tsr_seq_load(e->a, &e->masks, tsr_min_i64(w.b, e->a->batch - 1));
  if (w.b >= e->a->batch) {
    return w;
  }
  if (l->list >= 0) {
    blocks = tsr_max_i64((seq->q_len + rows - 1) / rows, 1);
  }
  w.q0 = (blocks - 1 - index % blocks) * rows; /* last rows see most keys: longest first */
  w.head = (tsr_i32)(index / blocks % l->heads);
  w.q_rows = (tsr_i32)tsr_max_i64(0, tsr_min_i64(rows, seq->q_len - w.q0)) * l->pack;
  w.kv_lo = tsr_min_i64(w.split * l->split_keys, seq->kv_len);
  w.kv_hi = l->num_splits == 1 ? seq->kv_len : tsr_min_i64(w.kv_lo + l->split_keys, seq->kv_len);
  return w;
}

/* ---- Votes and sums of a group ------------------------------------------------------------------ */

#define TSR_VOTE_WORDS (TSR_K_THREADS + 16)

/* The OR of every thread's word, for every thread. Barriers at both ends. */
TSR_FN tsr_u32 tsr_vote(TSR_LOCAL tsr_u32 *vote, tsr_i32 t, tsr_u32 word) {
  tsr_u32 all = 0;
  tsr_i32 n;
  TSR_BARRIER();
  vote[t] = word;
  TSR_BARRIER();
  if (t < 16) {
    for (n = t; n < TSR_K_THREADS; n += 16) {
      all |= vote[n];
    }
    vote[TSR_K_THREADS + t] = all;
  }
  TSR_BARRIER();
  all = 0;
  for (n = 0; n < 16; n++) {
    all |= vote[TSR_K_THREADS + n];
  }
  TSR_BARRIER();
  return all;
}

/* ---- Rows through local memory ------------------------------------------------------------------ */

/* Scales of quantised rows; scale null and zero null: none. */
typedef struct tsr_quant {
  TSR_GLOBAL const void *scale, *zero;
  const tsr_t4 *scale_at, *zero_at;
  tsr_i32 scale_type, zero_type, group;
} tsr_quant;

/* Where rows of a tile lie: element offset of channel 0 (-1: no row, read as zero), and the position (b, s) that scales
 * go by. In local memory. */
typedef struct tsr_rows {
  TSR_LOCAL tsr_i64 *at;
  TSR_LOCAL const tsr_i64 *s;
  TSR_LOCAL const tsr_i32 *b;
} tsr_rows;

TSR_FN tsr_f4 tsr_local4(TSR_LOCAL const float *p) {
  return *(TSR_LOCAL const tsr_f4 *)p;
}

/* Channels [c, c + 8) of a row, zero from `channels` on. at: of channel 0. */
TSR_FN void tsr_row8(TSR_GLOBAL const void *base, int type, tsr_i64 at, tsr_i64 step, tsr_i32 c, tsr_i32 channels,
                     float *out) {
  tsr_i32 n;
#if defined(TSR_K_VECTOR)
  if (c < channels) {
    tsr_load8(base, type, at + c, out);
    return;
  }
  (void)step;
#endif
  TSR_UNROLL
  for (n = 0; n < 8; n++) {
    out[n] = c + n < channels ? tsr_load(base, type, at + (c + n) * step) : 0.0f;
  }
}

/* x = scale (code - zero) for channels [c, c + 8) of one row. */
TSR_FN void tsr_dequantise8(const tsr_quant *q, int type, tsr_i64 b, tsr_i64 s, tsr_i32 head, tsr_i32 c,
                            tsr_i32 channels, float *x) {
  const tsr_i64 scale_at = b * q->scale_at->stride[0] + s * q->scale_at->stride[1] + head * q->scale_at->stride[2];
  const tsr_i64 zero_at = b * q->zero_at->stride[0] + s * q->zero_at->stride[1] + head * q->zero_at->stride[2];
  tsr_i32 n, last = -1;
  float scale = 1.0f, zero = type == TSR_T_U4 ? 8.0f : 0.0f;
  TSR_UNROLL
  for (n = 0; n < 8; n++) {
    if (c + n < channels) {
      const tsr_i32 g = (c + n) / q->group;
      if (g != last) {
        last = g;
        if (q->scale_type != TSR_T_NONE) {
          scale = tsr_load(q->scale, q->scale_type, scale_at + g * q->scale_at->stride[3]);
        }
        if (q->zero_type != TSR_T_NONE) {
          zero = tsr_load(q->zero, q->zero_type, zero_at + g * q->zero_at->stride[3]);
        }
      }
      x[n] = scale * (x[n] - zero);
    }
  }
}

/* Where row `row` of channels [8 chunk, 8 chunk + 8) of a slice is: rows are exchanged in blocks of eight by chunk, so
 * that four threads that share a row and eight that share a chunk write to different banks. */
#define TSR_SWIZZLE(row, chunk, rows) ((row) ^ (((chunk)*8) & ((rows)-1)))

/* A slice: channels [c0, c0 + 32) of `count` rows, channel by channel. quant NULL: not quantised. */
TSR_FN void tsr_load_slice(tsr_i32 t, TSR_GLOBAL const void *base, int type, tsr_i64 step, const tsr_rows *rows,
                           const tsr_quant *quant, tsr_i32 head, tsr_i32 c0, tsr_i32 channels, tsr_i32 count,
                           tsr_i32 ld, TSR_LOCAL float *out) {
  tsr_i32 u;
  TSR_UNROLL
  for (u = t; u < count * 4; u += TSR_K_THREADS) {
    const tsr_i32 chunk = u & 3, row = u >> 2;
    const tsr_i64 at = rows->at[row];
    const tsr_i32 to = TSR_SWIZZLE(row, chunk, count);
    float x[8];
    tsr_i32 n;
    if (at >= 0) {
      tsr_row8(base, type, at, step, c0 + chunk * 8, channels, x);
      if (quant != 0 && quant->group != 0) {
        tsr_dequantise8(quant, type, rows->b[row], rows->s[row], head, c0 + chunk * 8, channels, x);
      }
    } else {
      TSR_UNROLL
      for (n = 0; n < 8; n++) {
        x[n] = 0.0f;
      }
    }
    TSR_UNROLL
    for (n = 0; n < 8; n++) {
      out[(chunk * 8 + n) * ld + to] = x[n];
    }
  }
}

/* Rows [first, first + count) of the tile, channels [0, dim): row by row, `dim` floats apart. */
TSR_FN void tsr_load_natural(tsr_i32 t, TSR_GLOBAL const void *base, int type, tsr_i64 step, const tsr_rows *rows,
                             const tsr_quant *quant, tsr_i32 head, tsr_i32 first, tsr_i32 count, tsr_i32 channels,
                             tsr_i32 dim, TSR_LOCAL float *out) {
  tsr_i32 u;
  TSR_UNROLL
  for (u = t; u < count * (dim / 8); u += TSR_K_THREADS) {
    const tsr_i32 chunk = u % (dim / 8), row = u / (dim / 8);
    const tsr_i64 at = rows->at[first + row];
    float x[8];
    tsr_i32 n;
    if (at >= 0) {
      tsr_row8(base, type, at, step, chunk * 8, channels, x);
      if (quant != 0 && quant->group != 0) {
        tsr_dequantise8(quant, type, rows->b[first + row], rows->s[first + row], head, chunk * 8, channels, x);
      }
    } else {
      TSR_UNROLL
      for (n = 0; n < 8; n++) {
        x[n] = 0.0f;
      }
    }
    TSR_UNROLL
    for (n = 0; n < 8; n++) {
      out[row * dim + chunk * 8 + n] = x[n];
    }
  }
}

/* ---- Keys of a tile ------------------------------------------------------------------------------ */

/* Positions of keys [j0, j0 + TSR_K_TILE_K) below j1 for K and V. b -1: no such key, or a page id out of range. */
TSR_FN void tsr_place_keys(const tsr_env *e, const tsr_seq *seq, tsr_i32 kv_head, tsr_i64 j0, tsr_i64 j1,
                           TSR_LOCAL tsr_i64 *k_at, TSR_LOCAL tsr_i64 *v_at, TSR_LOCAL tsr_i64 *s,
                           TSR_LOCAL tsr_i32 *b) {
  const tsr_attn_args *a = e->a;
  tsr_i32 n;
  for (n = e->t; n < TSR_K_TILE_K; n += TSR_K_THREADS) {
    tsr_i64 k = -1, v = -1, slot = 0;
    tsr_i32 batch = -1;
    if (j0 + n < j1) {
      const tsr_kv_pos pos = tsr_kv_at(a, &e->masks, seq, j0 + n);
      if (!(TSR_FLAGS(a) & (TSR_A_PAGED_TABLE | TSR_A_PAGED_CSR)) || (pos.b >= 0 && pos.b < a->num_pages)) {
        batch = (tsr_i32)pos.b;
        slot = pos.s;
        k = pos.b * a->k.stride[0] + pos.s * a->k.stride[1] + kv_head * a->k.stride[2];
        v = pos.b * a->v.stride[0] + pos.s * a->v.stride[1] + kv_head * a->v.stride[2];
      }
    }
    k_at[n] = k;
    v_at[n] = v;
    s[n] = slot;
    b[n] = batch;
  }
}

/* ---- Scores --------------------------------------------------------------------------------------- */

/* n floats, by fours where n is a multiple of four (and p so aligned). */
TSR_FN void tsr_read_row(TSR_LOCAL const float *p, int n, float *x) {
  int k;
  if (n % 4 == 0) {
    TSR_UNROLL
    for (k = 0; k < n; k += 4) {
      const tsr_f4 v = tsr_local4(p + k);
      x[k] = v.x;
      x[k + 1] = v.y;
      x[k + 2] = v.z;
      x[k + 3] = v.w;
    }
  } else {
    TSR_UNROLL
    for (k = 0; k < n; k++) {
      x[k] = p[k];
    }
  }
}

/* acc += A B^T over one slice: rows tr * TSR_RQ ... of A, rows tc * 4 ... of B. */
TSR_FN void tsr_outer_slice(const tsr_env *e, TSR_LOCAL const float *as, TSR_LOCAL const float *bs,
                            float acc[TSR_RQ][TSR_CK]) {
  tsr_i32 chunk, c, r;
  TSR_LOOP
  for (chunk = 0; chunk < 4; chunk++) {
    TSR_LOCAL const float *a = as + chunk * 8 * TSR_LD_Q + TSR_SWIZZLE(e->tr * TSR_RQ, chunk, TSR_K_TILE_Q);
    TSR_LOCAL const float *b = bs + chunk * 8 * TSR_LD_K + TSR_SWIZZLE(e->tc * TSR_CK, chunk, TSR_K_TILE_K);
    TSR_UNROLL
    for (c = 0; c < 8; c++) {
      const tsr_f4 y = tsr_local4(b + c * TSR_LD_K);
      float x[TSR_RQ];
      tsr_read_row(a + c * TSR_LD_Q, TSR_RQ, x);
      TSR_UNROLL
      for (r = 0; r < TSR_RQ; r++) {
        acc[r][0] = tsr_fma(x[r], y.x, acc[r][0]);
        acc[r][1] = tsr_fma(x[r], y.y, acc[r][1]);
        acc[r][2] = tsr_fma(x[r], y.z, acc[r][2]);
        acc[r][3] = tsr_fma(x[r], y.w, acc[r][3]);
      }
    }
  }
}

/* What a score is. raw: the scale waits and is in log2; else scores are in natural units (see the CPU's item.h). */
typedef struct tsr_units {
  int raw;
  float scale; /* natural units per dot product */
  float log2;  /* log2 units per score */
} tsr_units;

TSR_FN tsr_units tsr_units_of(const tsr_env *e, tsr_i64 b, tsr_i32 kv_head) {
  tsr_units u;
  u.scale = e->a->scale;
#if !defined(TSR_K_BACKWARD)
  if (e->p->q_descale != 0) {
    u.scale *=
        TSR_CAT(float, e->p->q_descale, e->a->u.fwd.q_descale.offset_bytes)[b * e->a->u.fwd.q_descale.stride[0] +
                                                                            kv_head * e->a->u.fwd.q_descale.stride[1]];
  }
  u.raw = !(TSR_FLAGS(e->a) & TSR_MODIFY_FLAGS) && u.scale > 1e-30f && u.scale < 1e30f;
#else
  (void)b;
  (void)kv_head;
  u.raw = 0;
#endif
  u.log2 = u.raw ? u.scale * TSR_LOG2E : TSR_LOG2E;
  return u;
}

/* Query row and head of row `row` of a tile. */
TSR_FN tsr_i32 tsr_row_i(const tsr_env *e, const tsr_work *w, tsr_i32 row) {
  return (tsr_i32)w->q0 + (e->l->pack == 1 ? row : row / e->l->pack);
}
TSR_FN tsr_i32 tsr_row_h(const tsr_env *e, const tsr_work *w, tsr_i32 row) {
  return e->l->pack == 1 ? w->head : w->head * e->l->pack + row % e->l->pack;
}

/* Which pairs of a thread are allowed: bit r * 4 + k. Rows past the tile's: none. */
TSR_FN tsr_u32 tsr_allowed_bits(const tsr_env *e, const tsr_seq *seq, const tsr_work *w, tsr_i64 j0,
                                TSR_LOCAL const tsr_i32 *key_b) {
  tsr_u32 bits = 0;
  tsr_i32 n;
  TSR_LOOP
  for (n = 0; n < TSR_RQ * TSR_CK; n++) {
    const tsr_i32 row = e->tr * TSR_RQ + n / TSR_CK, col = e->tc * TSR_CK + n % TSR_CK;
    if (row < w->q_rows && key_b[col] >= 0) {
      const tsr_i32 i = tsr_row_i(e, w, row), h = tsr_row_h(e, w, row);
      int ok = tsr_mask_allow(e->a, &e->masks, seq, h, i, j0 + col);
#if defined(TSR_K_EXPR_MASK)
      ok = ok &&
           tsr_expr_mask(e->x, &e->aux, seq->b, h, h / e->a->group, i, j0 + col, seq->q_len, seq->kv_len, seq->off);
#endif
      bits |= (tsr_u32)ok << n;
    }
  }
  return bits;
}

#if defined(TSR_K_RICH)
/* One natural score: soft cap, ALiBi, bias, expression. *masked: set where the bias is -inf. */
TSR_FN float tsr_modify_one(const tsr_env *e, const tsr_seq *seq, tsr_i32 h, tsr_i64 i, tsr_i64 j, float x,
                            int *masked) {
  const tsr_attn_args *a = e->a;
  if (TSR_FLAGS(a) & TSR_A_SOFTCAP) {
    x = tsr_tanh(x / a->softcap) * a->softcap;
  }
  if (TSR_FLAGS(a) & TSR_A_ALIBI) {
    const tsr_i64 d = i + seq->off - j;
    const float slope =
        TSR_CAT(float, e->p->alibi_slopes, a->alibi.offset_bytes)[seq->b * a->alibi.stride[0] + h * a->alibi.stride[1]];
    const float down = slope * (float)(d < 0 ? -d : d);
    x = x - down;
  }
  if (TSR_FLAGS(a) & TSR_A_BIAS) {
    const float bias =
        tsr_load(TSR_CAT(void, e->p->bias, a->bias.offset_bytes), e->l->type[TSR_TYPE_BIAS],
                 seq->b * a->bias.stride[0] + h * a->bias.stride[1] + i * a->bias.stride[2] + j * a->bias.stride[3]);
    x = x + bias;
    *masked = bias == -TSR_INF;
  }
#if defined(TSR_K_EXPR_SCORE)
  x = tsr_expr_score(e->x, &e->aux, x, seq->b, h, h / a->group, i, j, seq->q_len, seq->kv_len, seq->off);
#endif
  return x;
}
#endif

/* Dot products to natural scores. Only pairs of `bits`; a bias of -inf clears its bit. scratch: a word for each pair of
 * the tile, [key][row], of which a thread uses its own: the loop over pairs needs them where an index can reach. */
TSR_FN void tsr_modify(const tsr_env *e, const tsr_seq *seq, const tsr_work *w, const tsr_units *u, tsr_i64 j0,
                       TSR_LOCAL float *scratch, tsr_u32 *bits, float s[TSR_RQ][TSR_CK]) {
  tsr_i32 r, k;
  TSR_UNROLL
  for (r = 0; r < TSR_RQ; r++) {
    TSR_UNROLL
    for (k = 0; k < TSR_CK; k++) {
      s[r][k] *= u->scale;
    }
  }
#if defined(TSR_K_RICH)
  if (TSR_FLAGS(e->a) & TSR_MODIFY_FLAGS) {
    TSR_LOCAL float *own = scratch + e->tc * TSR_CK * TSR_LD_Q + e->tr * TSR_RQ;
    tsr_i32 n;
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        own[k * TSR_LD_Q + r] = s[r][k];
      }
    }
    TSR_LOOP
    for (n = 0; n < TSR_RQ * TSR_CK; n++) {
      if (*bits >> n & 1u) {
        const tsr_i32 row = e->tr * TSR_RQ + n / TSR_CK;
        TSR_LOCAL float *at = own + n % TSR_CK * TSR_LD_Q + n / TSR_CK;
        int masked = 0;
        if (row < w->q_rows) {
          *at = tsr_modify_one(e, seq, tsr_row_h(e, w, row), tsr_row_i(e, w, row), j0 + e->tc * TSR_CK + n % TSR_CK,
                               *at, &masked);
        }
        *bits &= ~((tsr_u32)masked << n);
      }
    }
    TSR_UNROLL
    for (r = 0; r < TSR_RQ; r++) {
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        s[r][k] = own[k * TSR_LD_Q + r];
      }
    }
  }
#else
  (void)seq;
  (void)w;
  (void)j0;
  (void)scratch;
  (void)bits;
#endif
}

/* Pairs of `bits` that dropout keeps. */
TSR_FN tsr_u32 tsr_kept_bits(const tsr_env *e, tsr_philox_key key, const tsr_work *w, tsr_i64 j0, tsr_u32 bits) {
  const tsr_u64 threshold = e->a->dropout_threshold;
  tsr_i32 r, k;
  TSR_LOOP
  for (r = 0; r < TSR_RQ; r++) {
    const tsr_i32 row = e->tr * TSR_RQ + r;
    if (bits >> (r * TSR_CK) & 15u) {
      tsr_u32 word[4];
      tsr_dropout_words(key, (tsr_u64)w->b * (tsr_u64)e->a->heads_q + (tsr_u64)tsr_row_h(e, w, row),
                        (tsr_u32)tsr_row_i(e, w, row), (tsr_u32)((j0 + e->tc * TSR_CK) >> 2), word);
      TSR_UNROLL
      for (k = 0; k < TSR_CK; k++) {
        if (word[k] < threshold) {
          bits &= ~(1u << (r * TSR_CK + k));
        }
      }
    }
  }
  return bits;
}

/* The key of a run: seed and offset by value, or read where the caller keeps them. */
TSR_FN tsr_philox_key tsr_run_key(const tsr_env *e) {
  if (TSR_FLAGS(e->a) & TSR_A_RNG_STATE) {
    TSR_GLOBAL const tsr_i64 *state = TSR_CAT(tsr_i64, e->p->rng_state, e->l->rng_state);
    return tsr_dropout_key((tsr_u64)state[0], (tsr_u64)state[e->l->rng_stride]);
  }
  return tsr_dropout_key(e->a->seed, e->a->offset);
}

/* ---- Results -------------------------------------------------------------------------------------- */

/* The larger; NaN once there is one. */
TSR_FN float tsr_max_or_nan(float m, float s) {
  return m != m || s <= m ? m : s;
}

/* Where row (i, h) of a split is among the partial results. */
TSR_FN tsr_i64 tsr_partial_at(const tsr_env *e, const tsr_seq *seq, tsr_i32 split, tsr_i64 i, tsr_i32 h) {
  const tsr_i64 row = e->l->by_row ? seq->q_row0 + i : seq->b * e->a->seqlen_q + i;
  return (split * e->l->partial_rows + row) * e->a->heads_q + h;
}

/* A row's sum l relative to m (natural units) with the sink z (-inf: none): what its O is to be multiplied by. */
TSR_FN float tsr_finish_row(float m, float l, float z, float kept, float *lse) {
  if (z == -TSR_INF) {
    *lse = m + tsr_log(l);
    return kept / l;
  } else {
    const float most = z > m ? z : m, own = tsr_exp(m - most);
    const float sum = l * own + tsr_exp(z - most);
    *lse = most + tsr_log(sum);
    return kept * own / sum;
  }
}

#endif
