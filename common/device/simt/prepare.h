/* SPDX-License-Identifier: Apache-2.0 */
/* Work lists for lengths that only the device knows: list[b], b = 0..batch, is how many items of "forward" come before
 * sequence b, so that sequences without rows have none. One work group. */
#ifndef TSR_SIMT_PREPARE_H
#define TSR_SIMT_PREPARE_H

#define TSR_ARENA_BYTES (TSR_K_THREADS * 8)

TSR_FN tsr_i64 tsr_prepare_items(const tsr_env *e, tsr_i64 b) {
  const tsr_seq seq = tsr_seq_load(e->a, &e->masks, b);
  const tsr_i64 rows = e->l->tile_q / e->l->pack;
  return (seq.q_len + rows - 1) / rows * e->l->heads * e->l->num_splits;
}

TSR_KERNEL(TSR_K_THREADS) tsr_prepare(TSR_ATTN_PARAMS) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  TSR_LOCAL tsr_i64 *part = (TSR_LOCAL tsr_i64 *)arena;
  TSR_GLOBAL tsr_i64 *list = TSR_AT(tsr_i64, workspace, l.workspace + l.list);
  tsr_i64 b, each, first, last, sum = 0;
  tsr_i32 n;
  TSR_ROWS_BEGIN(e, p);
  each = (a.batch + TSR_K_THREADS - 1) / TSR_K_THREADS; /* sequences of a thread, neighbours */
  first = tsr_min_i64(each * e.t, a.batch);
  last = tsr_min_i64(first + each, a.batch);
  for (b = first; b < last; b++) {
    sum += tsr_prepare_items(&e, b);
  }
  part[e.t] = sum;
  TSR_BARRIER();
  sum = 0;
  for (n = 0; n < e.t; n++) {
    sum += part[n];
  }
  for (b = first; b < last; b++) {
    list[b] = sum;
    sum += tsr_prepare_items(&e, b);
  }
  if (last == a.batch && (first < last || e.t == 0)) {
    list[a.batch] = sum;
  }
}

#endif
