/* SPDX-License-Identifier: Apache-2.0 */
#include "common/schedule.h"

/* A split shorter than this costs more to merge than it gains. */
enum { MIN_SPLIT_KEYS = 1024 };
/* What deterministic plans assume instead of the machine's thread count. */
enum { NOMINAL_THREADS = 16 };

static int64_t ceil_div(int64_t n, int64_t d) {
  return (n + d - 1) / d;
}

/* Largest divisor of group that fits a tile: those heads share K and V in cache and fill lanes. */
static int32_t pack_of(const tsr__problem *p, int32_t tile_q) {
  int32_t pack = p->group;
  if (!(p->desc.flags & TSR_BATCH_INVARIANT) && p->seqlen_q >= tile_q) {
    return 1; /* rows alone fill the tiles */
  }
  while (pack > tile_q || p->group % pack != 0) {
    pack--;
  }
  return pack;
}

/* Threads that splits are chosen for; 0: there are never any. */
static int32_t threads_to_fill(const tsr__problem *p, int32_t threads) {
  return p->desc.op == TSR_BACKWARD || (p->desc.flags & TSR_BATCH_INVARIANT) ? 0
         : (p->desc.flags & TSR_DETERMINISTIC)                               ? NOMINAL_THREADS
                                                                             : threads;
}

/* Enough for two items a thread, where whole rows do not give each thread one. */
static int32_t choose_splits(const tsr__problem *p, int64_t items, int32_t threads) {
  const int64_t fill = threads_to_fill(p, threads);
  const int64_t wanted = items == 0 || items >= fill ? 1 : ceil_div(2 * fill, items);
  const int64_t most = tsr_min_i64(ceil_div(p->seqlen_k, MIN_SPLIT_KEYS), TSR_MAX_SPLITS);
  return (int32_t)tsr_max_i64(1, tsr_min_i64(wanted, most));
}

int64_t tsr__schedule_split_rows(const tsr__problem *p, int32_t tile_q, int32_t threads) {
  return INT64_C(3) * threads_to_fill(p, threads) * tile_q; /* splits x items < 2 fill + items, and items < fill */
}

tsr__schedule tsr__schedule_init(const tsr__problem *p, int32_t tile_q, int32_t tile_k, int32_t threads) {
  tsr__schedule s;
  s.batch = p->batch;
  s.tile_q = tile_q;
  s.tile_k = tile_k;
  s.pack = pack_of(p, tile_q);
  s.heads = p->heads_q / s.pack;
  s.q_blocks = ceil_div(p->seqlen_q, tile_q / s.pack);
  s.num_splits = p->desc.num_splits;
  if (s.num_splits == 0) {
    s.num_splits = choose_splits(p, s.batch * s.heads * s.q_blocks, threads);
  }
  s.split_keys = ceil_div(ceil_div(p->seqlen_k, s.num_splits), tile_k) * tile_k;
  s.items = s.batch * s.heads * s.q_blocks * s.num_splits;
  return s;
}

int64_t tsr__schedule_batch(const tsr__schedule *s, int64_t index) {
  return index / (s->num_splits * s->q_blocks * s->heads);
}

tsr_work tsr__schedule_item(const tsr__schedule *s, const tsr_seq *seq, int64_t index) {
  const tsr_i64 rows = s->tile_q / s->pack;
  tsr_work w;
  tsr_i64 left;
  w.split = (tsr_i32)(index % s->num_splits);
  index /= s->num_splits;
  w.q0 = (s->q_blocks - 1 - index % s->q_blocks) * rows; /* last rows see most keys: longest first */
  index /= s->q_blocks;
  w.head = (tsr_i32)(index % s->heads);
  w.b = index / s->heads;
  left = tsr_max_i64(0, tsr_min_i64(rows, seq->q_len - w.q0));
  w.q_rows = (tsr_i32)left * s->pack;
  w.kv_lo = tsr_min_i64(w.split * s->split_keys, seq->kv_len);
  w.kv_hi = s->num_splits == 1 ? seq->kv_len : tsr_min_i64(w.kv_lo + s->split_keys, seq->kv_len);
  w.reserved = 0;
  return w;
}
