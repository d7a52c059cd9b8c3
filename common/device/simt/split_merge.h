/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the partial results of splits (Flash-Decoding): a team of 32 threads a row. Items: batch x heads_q x
 * ceil(seqlen_q / (TSR_K_THREADS / 32)). A result depends on nothing but the row's splits. */
#ifndef TSR_SIMT_SPLIT_MERGE_H
#define TSR_SIMT_SPLIT_MERGE_H

#define TSR_TEAM 32
#define TSR_TEAMS (TSR_K_THREADS / TSR_TEAM)
#define TSR_SPLITS_MOST 256 /* TSR_MAX_SPLITS */
#define TSR_ARENA_BYTES (TSR_TEAMS * (TSR_SPLITS_MOST + TSR_TEAM) * 4)

/* One row by its team; rows that do not exist take part in the barriers. */
TSR_FN void tsr_split_merge_row(const tsr_env *e, const tsr_row_block *x, tsr_i64 i, int exists,
                                TSR_LOCAL float *weight, TSR_LOCAL float *part) {
  const tsr_attn_args *a = e->a;
  const tsr_i32 lane = e->t % TSR_TEAM, splits = exists ? e->l->num_splits : 0;
  const tsr_units units = tsr_units_of(e, x->seq.b, x->h / a->group);
  const tsr_i64 row = x->seq.q_row0 + i;
  TSR_GLOBAL const float *ml = TSR_CAT(float, e->p->workspace, e->l->workspace + e->l->partial_ml);
  TSR_GLOBAL const float *o = TSR_CAT(float, e->p->workspace, e->l->workspace + e->l->partial_o);
  float m = -TSR_INF, sum = 0.0f, z = -TSR_INF, lse, factor = 0.0f;
  tsr_i32 s, c;
  for (s = lane; s < splits; s += TSR_TEAM) {
    weight[s] = ml[2 * tsr_partial_at(e, &x->seq, s, i, x->h)];
    m = tsr_max_or_nan(m, weight[s]);
  }
  part[lane] = m;
  TSR_BARRIER();
  for (s = 0; s < TSR_TEAM; s++) {
    m = tsr_max_or_nan(m, part[s]);
  }
  TSR_BARRIER();
  for (s = lane; s < splits; s += TSR_TEAM) {
    const float l = ml[2 * tsr_partial_at(e, &x->seq, s, i, x->h) + 1];
    weight[s] = l == 0.0f ? 0.0f : l * tsr_exp2((weight[s] - m) * units.log2);
    sum += weight[s];
  }
  part[lane] = sum;
  TSR_BARRIER();
  sum = 0.0f;
  for (s = 0; s < TSR_TEAM; s++) {
    sum += part[s];
  }
  if (exists) {
    if (TSR_FLAGS(a) & TSR_A_SINK) {
      z = TSR_CAT(float, e->p->sink, a->sink.offset_bytes)[x->h * a->sink.stride];
    }
    lse = z;
    if (sum != 0.0f) {
      factor = tsr_finish_row(m * (units.raw ? units.scale : 1.0f), sum, z,
                              (TSR_FLAGS(a) & TSR_A_DROPOUT) ? a->dropout_scale : 1.0f, &lse);
    }
    for (c = lane; c < a->head_dim_v; c += TSR_TEAM) {
      float acc = 0.0f;
      for (s = 0; s < splits; s++) {
        if (weight[s] != 0.0f) { /* an empty split is not read */
          acc += o[tsr_partial_at(e, &x->seq, s, i, x->h) * a->head_dim_v + c] * (weight[s] * factor);
        }
      }
      tsr_store(TSR_AT(void, e->p->o, a->o.offset_bytes), e->l->type[TSR_TYPE_O],
                x->seq.q_b * a->o.stride[0] + row * a->o.stride[1] + x->h * a->o.stride[2] + c * a->o.stride[3], acc);
    }
    if (lane == 0 && e->p->lse != 0) {
      TSR_AT(float, e->p->lse, a->lse.offset_bytes)
      [x->seq.q_b * a->lse.stride[0] + x->h * a->lse.stride[1] + row * a->lse.stride[2]] = lse;
    }
  }
  TSR_BARRIER();
}

TSR_KERNEL(TSR_K_THREADS) tsr_split_merge(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  TSR_LOCAL float *store = (TSR_LOCAL float *)arena;
  tsr_row_block x;
  tsr_i64 w;
  tsr_i32 team;
  TSR_ROWS_BEGIN(e, p);
  team = e.t / TSR_TEAM;
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    if (tsr_row_block_at(&e, w, TSR_TEAMS, &x)) {
      tsr_split_merge_row(&e, &x, x.i0 + team, x.i0 + team < x.i1, store + team * TSR_SPLITS_MOST,
                          store + TSR_TEAMS * TSR_SPLITS_MOST + team * TSR_TEAM);
    }
  }
}

#endif
