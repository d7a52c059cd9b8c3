/* SPDX-License-Identifier: Apache-2.0 */
/* Folds the largest scores that the items of "forward" left: an item a query head. A maximum, and whether there was a
 * NaN, depend on no order. */
#ifndef TSR_SIMT_MAX_S_H
#define TSR_SIMT_MAX_S_H

#define TSR_ARENA_BYTES (TSR_K_THREADS * 4)

/* The thread's share of the items [first, first + count). */
TSR_FN float tsr_max_s_items(const tsr_env *e, TSR_GLOBAL const float *item_max, tsr_i64 first, tsr_i64 count,
                             tsr_i32 slot, float m) {
  tsr_i64 n;
  for (n = e->t; n < count; n += TSR_K_THREADS) {
    m = tsr_max_or_nan(m, item_max[(first + n) * e->l->pack + slot]);
  }
  return m;
}

TSR_FN float tsr_max_s_head(const tsr_env *e, tsr_i32 h) {
  const tsr_launch_args *l = e->l;
  TSR_GLOBAL const float *item_max = TSR_CAT(float, e->p->workspace, l->workspace + l->item_max);
  const tsr_i64 head = h / l->pack;
  const tsr_i32 slot = h % l->pack;
  float m = -TSR_INF;
  tsr_i64 b;
  for (b = 0; b < e->a->batch; b++) {
    tsr_i64 first, count; /* items of the head in this sequence */
    if (l->list >= 0) {
      TSR_GLOBAL const tsr_i64 *list = TSR_CAT(tsr_i64, e->p->workspace, l->workspace + l->list);
      count = (list[b + 1] - list[b]) / l->heads;
      first = list[b] + head * count;
    } else {
      count = l->q_blocks * l->num_splits;
      first = (b * l->heads + head) * count;
    }
    m = tsr_max_s_items(e, item_max, first, count, slot, m);
  }
  return m;
}

TSR_KERNEL(TSR_K_THREADS) tsr_max_s(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  TSR_LOCAL float *part = (TSR_LOCAL float *)arena;
  tsr_i64 w;
  TSR_ROWS_BEGIN(e, p);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    tsr_i32 n;
    part[e.t] = tsr_max_s_head(&e, (tsr_i32)w);
    TSR_BARRIER();
    if (e.t == 0) {
      float m = part[0];
      for (n = 1; n < TSR_K_THREADS; n++) {
        m = tsr_max_or_nan(m, part[n]);
      }
      TSR_AT(float, max_s, a.max_s.offset_bytes)[w * a.max_s.stride] = m;
    }
    TSR_BARRIER();
  }
}

#endif
