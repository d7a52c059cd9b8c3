/* SPDX-License-Identifier: Apache-2.0 */
/* delta_i = sum(dO_i O_i) - dLSE_i, once a row. Channels in the order, and with the fused products, in which dP is
 * summed: where one key has all the weight, O is its V and dP - delta exactly 0. Rows of zeros, as empty rows have,
 * give 0 whatever dO holds. Items: batch x heads_q x ceil(seqlen_q / 64). */
#ifndef TSR_SIMT_DELTA_H
#define TSR_SIMT_DELTA_H

#define TSR_DELTA_ROWS 64
#define TSR_DELTA_LD (TSR_DELTA_ROWS + 4)
#define TSR_SLICE_FLOATS (TSR_SLICE * TSR_DELTA_LD)
#define TSR_ARENA_BYTES (2 * TSR_SLICE_FLOATS * 4 + 2 * TSR_DELTA_ROWS * 8)

/* Element of channel 0 of each row of the block; -1: no row. */
TSR_FN void tsr_delta_rows(const tsr_env *e, const tsr_row_block *x, const tsr_t4 *t, TSR_LOCAL tsr_i64 *at) {
  tsr_i32 r;
  for (r = e->t; r < TSR_DELTA_ROWS; r += TSR_K_THREADS) {
    at[r] = x->i0 + r < x->i1
                ? x->seq.q_b * t->stride[0] + (x->seq.q_row0 + x->i0 + r) * t->stride[1] + x->h * t->stride[2]
                : -1;
  }
}

TSR_FN void tsr_delta_block(const tsr_env *e, const tsr_row_block *x, TSR_LOCAL tsr_u8 *arena) {
  const tsr_attn_args *a = e->a;
  TSR_LOCAL float *douts = (TSR_LOCAL float *)arena, *os = douts + TSR_SLICE_FLOATS;
  TSR_LOCAL tsr_i64 *at = (TSR_LOCAL tsr_i64 *)(arena + 2 * TSR_SLICE_FLOATS * 4);
  float sum = 0.0f;
  tsr_u32 nonzero = 0;
  tsr_rows rows;
  tsr_i32 c0, c;
  rows.s = 0;
  rows.b = 0;
  tsr_delta_rows(e, x, &a->u.bwd.dout, at);
  tsr_delta_rows(e, x, &a->o, at + TSR_DELTA_ROWS);
  TSR_BARRIER();
  TSR_LOOP
  for (c0 = 0; c0 < a->head_dim_v; c0 += TSR_SLICE) {
    rows.at = at;
    tsr_load_slice(e->t, TSR_CAT(void, e->p->dout, a->u.bwd.dout.offset_bytes), e->l->type[TSR_TYPE_DOUT],
                   a->u.bwd.dout.stride[3], &rows, 0, 0, c0, a->head_dim_v, TSR_DELTA_ROWS, TSR_DELTA_LD, douts);
    rows.at = at + TSR_DELTA_ROWS;
    tsr_load_slice(e->t, TSR_CAT(void, e->p->o, a->o.offset_bytes), e->l->type[TSR_TYPE_O], a->o.stride[3], &rows, 0, 0,
                   c0, a->head_dim_v, TSR_DELTA_ROWS, TSR_DELTA_LD, os);
    TSR_BARRIER();
    if (e->t < TSR_DELTA_ROWS) {
      for (c = 0; c < TSR_SLICE; c++) {
        const tsr_i32 n = c * TSR_DELTA_LD + TSR_SWIZZLE(e->t, c / 8, TSR_DELTA_ROWS);
        nonzero |= os[n] != 0.0f;
        sum = tsr_fma(douts[n], os[n], sum);
      }
    }
    TSR_BARRIER();
  }
  if (e->t < x->i1 - x->i0) {
    const tsr_i64 rows_of = (TSR_FLAGS(a) & TSR_A_Q_PACKED) ? a->total_q : a->seqlen_q;
    const tsr_i64 row = x->seq.q_row0 + x->i0 + e->t;
    const tsr_t3 *t = &a->u.bwd.dlse;
    sum = nonzero ? sum : 0.0f;
    if (e->p->dlse != 0) {
      sum -= TSR_CAT(float, e->p->dlse,
                     t->offset_bytes)[x->seq.q_b * t->stride[0] + x->h * t->stride[1] + row * t->stride[2]];
    }
    TSR_AT(float, e->p->workspace, e->l->workspace + e->l->delta)
    [(x->seq.q_b * a->heads_q + x->h) * rows_of + row] = sum;
  }
}

TSR_KERNEL(TSR_K_THREADS) tsr_delta(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  tsr_row_block x;
  tsr_i64 w;
  TSR_ROWS_BEGIN(e, p);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    if (tsr_row_block_at(&e, w, TSR_DELTA_ROWS, &x)) {
      tsr_delta_block(&e, &x, arena);
    }
  }
}

#endif
