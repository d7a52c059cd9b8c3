/* SPDX-License-Identifier: Apache-2.0 */
/* dSink_h = -sum over all rows of exp(z_h - lse_i) delta_i: an item a query head. Each thread sums its rows, and then
 * one the threads, in the order of their index; sums carry their rounding errors along, as a head may have millions of
 * rows. */
#ifndef TSR_SIMT_DSINK_H
#define TSR_SIMT_DSINK_H

#define TSR_TEAM 16 /* neighbours share a sequence */
#define TSR_ARENA_BYTES (2 * TSR_K_THREADS * 4)

/* One sequence's rows from `lane` on, TSR_TEAM apart. */
TSR_FN void tsr_dsink_rows(const tsr_env *e, tsr_i64 b, tsr_i32 h, float z, tsr_i32 lane, tsr_sum *sum) {
  const tsr_attn_args *a = e->a;
  const tsr_seq seq = tsr_seq_load(a, &e->masks, b);
  const tsr_i64 rows = (TSR_FLAGS(a) & TSR_A_Q_PACKED) ? a->total_q : a->seqlen_q;
  TSR_GLOBAL const float *delta =
      TSR_CAT(float, e->p->workspace, e->l->workspace + e->l->delta) + (seq.q_b * a->heads_q + h) * rows + seq.q_row0;
  TSR_GLOBAL const float *lse = TSR_CAT(float, e->p->lse, a->lse.offset_bytes) + seq.q_b * a->lse.stride[0] +
                                h * a->lse.stride[1] + seq.q_row0 * a->lse.stride[2];
  tsr_i64 i;
  for (i = lane; i < seq.q_len; i += TSR_TEAM) {
    const float x = lse[i * a->lse.stride[2]];
    if (x != -TSR_INF) {
      tsr_sum_add(sum, -tsr_exp(z - x) * delta[i]);
    }
  }
}

TSR_KERNEL(TSR_K_THREADS) tsr_dsink(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  TSR_LOCAL float *part = (TSR_LOCAL float *)arena;
  tsr_i64 w, b;
  TSR_ROWS_BEGIN(e, p);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    const float z = TSR_CAT(float, sink, a.sink.offset_bytes)[w * a.sink.stride];
    tsr_sum sum;
    tsr_i32 n;
    sum.high = 0.0f;
    sum.low = 0.0f;
    for (b = e.t / TSR_TEAM; b < a.batch && z != -TSR_INF; b += TSR_K_THREADS / TSR_TEAM) {
      tsr_dsink_rows(&e, b, (tsr_i32)w, z, e.t % TSR_TEAM, &sum);
    }
    part[2 * e.t] = sum.high;
    part[2 * e.t + 1] = sum.low;
    TSR_BARRIER();
    if (e.t == 0) {
      for (n = 1; n < TSR_K_THREADS; n++) {
        tsr_sum_add(&sum, part[2 * n]);
        sum.low += part[2 * n + 1];
      }
      TSR_AT(float, dsink, a.u.bwd.dsink.offset_bytes)[w * a.u.bwd.dsink.stride] = tsr_sum_value(&sum);
    }
    TSR_BARRIER();
  }
}

#endif
