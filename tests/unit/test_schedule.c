/* SPDX-License-Identifier: Apache-2.0 */
/* The schedule covers every (b, h, i, key) exactly once, whatever the splits and the packing. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/schedule.h"
#include "random.h"

static tsr__problem problem(int64_t b, int32_t heads, int32_t group, int64_t sq, int64_t sk) {
  tsr__problem p;
  memset(&p, 0, sizeof(p));
  p.batch = b;
  p.heads_q = heads * group;
  p.heads_kv = heads;
  p.group = group;
  p.seqlen_q = sq;
  p.seqlen_k = sk;
  p.head_dim = p.head_dim_v = 16;
  return p;
}

static void every_pair_once(void **state) {
  (void)state;
  for (int round = 0; round < 300; round++) {
    const int64_t b = random_int(1, 3), sq = random_int(1, 40), sk = random_int(0, 60);
    const int32_t group = (int32_t)random_int(1, 9);
    tsr__problem p = problem(b, (int32_t)random_int(1, 2), group, sq, sk);
    tsr__schedule s;
    int *count;
    p.desc.num_splits = (int32_t)(random_int(0, 1) * random_int(1, 7));
    p.desc.flags = random_int(0, 3) == 0 ? TSR_BATCH_INVARIANT : 0;
    p.desc.num_splits = p.desc.flags != 0 ? 0 : p.desc.num_splits;
    s = tsr__schedule_init(&p, (int32_t)random_int(1, 12), (int32_t)random_int(1, 8), (int32_t)random_int(1, 16));
    assert_true(s.pack <= s.tile_q && group % s.pack == 0);
    assert_true(s.split_keys % s.tile_k == 0);
    count = calloc((size_t)(b * p.heads_q * sq * (sk + 1)), sizeof(*count));
    for (int64_t item = 0; item < s.items; item++) {
      const tsr_seq seq = {.b = tsr__schedule_batch(&s, item), .q_len = sq, .kv_len = sk};
      const tsr_work w = tsr__schedule_item(&s, &seq, item);
      assert_int_equal(w.b, seq.b);
      for (int32_t r = 0; r < w.q_rows; r++) {
        const int64_t i = w.q0 + r / s.pack, h = (int64_t)w.head * s.pack + r % s.pack;
        assert_true(i < sq && h < p.heads_q);
        for (int64_t j = w.kv_lo; j < w.kv_hi; j++) {
          count[((w.b * p.heads_q + h) * sq + i) * (sk + 1) + j]++;
        }
        count[((w.b * p.heads_q + h) * sq + i) * (sk + 1) + sk]++;
      }
    }
    for (int64_t row = 0; row < b * p.heads_q * sq; row++) {
      for (int64_t j = 0; j < sk; j++) {
        assert_int_equal(count[row * (sk + 1) + j], 1);
      }
      assert_int_equal(count[row * (sk + 1) + sk], s.num_splits);
    }
    free(count);
  }
}

/* What the promises say the schedule may look at. */
static void promises(void **state) {
  tsr__problem p = problem(1, 2, 4, 1, 100000);
  tsr__schedule few, many;
  (void)state;
  few = tsr__schedule_init(&p, 48, 128, 2);
  many = tsr__schedule_init(&p, 48, 128, 64);
  assert_true(few.num_splits < many.num_splits);
  p.desc.flags = TSR_DETERMINISTIC;
  few = tsr__schedule_init(&p, 48, 128, 2);
  many = tsr__schedule_init(&p, 48, 128, 64);
  assert_int_equal(few.num_splits, many.num_splits);
  assert_true(few.num_splits > 1);
  p.desc.flags = TSR_BATCH_INVARIANT;
  many = tsr__schedule_init(&p, 48, 128, 64);
  assert_int_equal(many.num_splits, 1);
  p.seqlen_q = 5000;
  few = tsr__schedule_init(&p, 48, 128, 64);
  assert_int_equal(few.pack, many.pack);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_once), cmocka_unit_test(promises)};
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
