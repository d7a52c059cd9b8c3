/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of keys a block of query rows has to visit, and how carefully. A class is sound: SKIP means that no pair of the
 * tile is allowed, FULL that every pair is (bias -inf aside); PARTIAL is always right. Host memory only. */
#ifndef TSR_COMMON_TILES_H
#define TSR_COMMON_TILES_H

#include "common/bind.h"

/* Rows [i0, i1) of query heads [h0, h1) (a packed group, else one head), keys [j0, j1) with j1 <= kv_len. */
typedef struct tsr__tile_box {
  tsr_i64 i0, i1, j0, j1;
  tsr_i32 h0, h1;
} tsr__tile_box;

/* TSR_TILE_SKIP, TSR_TILE_PARTIAL or TSR_TILE_FULL. */
int tsr__tile_class(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *seq, const tsr__tile_box *box);

/* Iterates the key tiles of [kv_lo, kv_hi) (kv_lo a multiple of tile_k), in ascending order, without stepping over what
 * causal, window, chunk and block-sparse rule out wholesale: tsr__kv_iter it = tsr__kv_first(...); while
 * (tsr__kv_next(&it)) { it.j0, it.j1, it.tile_class } Skipped tiles are counted in it.skipped. */
typedef struct tsr__kv_iter {
  const tsr__problem *p;
  const tsr__bound *bound;
  const tsr_seq *seq;
  tsr__tile_box rows; /* i0, i1, h0, h1 */
  tsr_i64 tile_k, next, end;
  tsr_i64 j0, j1; /* the current tile */
  tsr_i64 skipped;
  int tile_class; /* PARTIAL or FULL */
} tsr__kv_iter;

tsr__kv_iter tsr__kv_first(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *seq, tsr_i32 h0, tsr_i32 h1,
                           tsr_i64 i0, tsr_i64 i1, tsr_i64 kv_lo, tsr_i64 kv_hi, tsr_i64 tile_k);
int tsr__kv_next(tsr__kv_iter *it);

/* Tiles visited and total for the plan's maxima by position rules alone (dense lengths, prefix 0). */
void tsr__tiles_count(const tsr__problem *p, int64_t tile_q, int64_t tile_k, int64_t *total, int64_t *visited);

#endif
