/* SPDX-License-Identifier: Apache-2.0 */
/* Work items of a plan in closed form: item index -> (sequence, head, query block, split). Longest first within a head
 * (causal balance), a head's items next to each other (its K and V stay in cache). The number of items follows from the
 * plan's maxima; items past a sequence's lengths are empty. Split KV (Flash-Decoding): keys [split * split_keys, ...).
 */
#ifndef TSR_COMMON_SCHEDULE_H
#define TSR_COMMON_SCHEDULE_H

#include "common/bind.h"

typedef struct tsr__schedule {
  int64_t batch, q_blocks, items;
  int64_t split_keys; /* keys of a split, a multiple of tile_k; num_splits 1: all */
  int32_t tile_q;     /* rows of a tile, packed heads included */
  int32_t tile_k;
  int32_t pack;  /* query heads of one kv head that share a tile, a divisor of the group, 1 = none; rows of a
                    tile are (i, head) with the head fastest: row r is (q0 + r / pack, work.head * pack +
                    r % pack); kv head = query head / group */
  int32_t heads; /* heads_q / pack */
  int32_t num_splits;
} tsr__schedule;

/* threads: what a run may use (ignored with TSR_BATCH_INVARIANT). tile_q, tile_k of the variant. Never fails: the
 * problem's sizes are below 2^62 in product, which validation has checked. */
tsr__schedule tsr__schedule_init(const tsr__problem *p, int32_t tile_q, int32_t tile_k, int32_t threads);

/* An upper bound of the rows (splits x rows of the tiles) of all partial results, over every problem of these flags
 * that is at most as large and has its splits chosen here; 0: there are none. */
int64_t tsr__schedule_split_rows(const tsr__problem *p, int32_t tile_q, int32_t threads);

/* Item `index`; q_rows is 0 when there is nothing to do at all (empty query block). kv_lo >= kv_hi: an empty split. */
tsr_work tsr__schedule_item(const tsr__schedule *s, const tsr_seq *seq, int64_t index);
/* The sequence that item `index` belongs to. */
int64_t tsr__schedule_batch(const tsr__schedule *s, int64_t index);

#endif
