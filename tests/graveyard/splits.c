/* SPDX-License-Identifier: Apache-2.0 */
/* Splits, plans, time: lines 19 to 22. */
#include "kit.h"

#include <stdatomic.h>

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};

/* ---- 19 -------------------------------------------------------------------------------------- */

static void has_splits(gy_problem *p, gy_run *run, void *user) {
  (void)user;
  if (p->desc.num_splits != 0 && run->info.num_splits != p->desc.num_splits) {
    gy_fail("%d splits planned, %d asked for", run->info.num_splits, p->desc.num_splits);
  }
}

static void g19_any_number_of_splits(void **state) {
  static const int splits[] = {1, 2, 3, 5, 17, 128};
  static const int64_t q_lens[4] = {1, 70, 3, 0}, kv_lens[4] = {333, 130, 1, 40};
  gy_problem *p[4];
  (void)state;
  for (int n = 0; n < 3; n++) {
    gy_dims dims = {TSR_FORWARD, floats[n], 4, 5, 300, 6, 2, 64, 64};
    p[0] = gy_packed(dims, q_lens, kv_lens, 0);
    p[1] = gy_paged(dims, (gy_pages){16, TSR_DTYPE_NONE, 0}, kv_lens);
    p[2] = gy_paged(dims, (gy_pages){7, TSR_DTYPE_NONE, 1}, kv_lens);
    p[3] = gy_dense(dims);
    for (int m = 0; m < 4; m++) {
      p[m]->desc.flags |= n == 1 ? TSR_CAUSAL : n == 2 ? TSR_WINDOW : 0;
      p[m]->desc.window_left = n == 2 ? 60 : 0;
      GY_OUT(p[m], max_s, tsr_layout_dense(TSR_F32, 6, 1, 1, 1));
      if (n == 1) {
        GY_IN(p[m], sink, tsr_layout_dense(TSR_F32, 6, 1, 1, 1));
      }
      for (size_t s = 0; s < sizeof(splits) / sizeof(splits[0]); s++) {
        gy_say("%s, %s, splits %d",
               m == 0   ? "packed"
               : m == 3 ? "dense"
                        : "paged",
               tsr_dtype_name(floats[n]), splits[s]);
        p[m]->desc.num_splits = splits[s];
        gy_check_also(p[m], has_splits, NULL);
      }
      gy_free(p[m]);
    }
  }
}

/* ---- 20 -------------------------------------------------------------------------------------- */

/* Bits of rows [from, to) of axis 1 of an output. */
static void rows_equal(const tsr_layout *la, const tsr_buffer *ba, const tsr_layout *lb, const tsr_buffer *bb,
                       int64_t slot_a, int64_t slot_b, int64_t from_a, int64_t from_b, int64_t rows, const char *name) {
  for (int64_t e = 0; e < rows * la->shape[2] * la->shape[3]; e++) {
    const int64_t row = e / (la->shape[2] * la->shape[3]), h = e / la->shape[3] % la->shape[2], c = e % la->shape[3];
    const double x = gy_get(la, ba, slot_a, from_a + row, h, c), y = gy_get(lb, bb, slot_b, from_b + row, h, c);
    if (!(x == y)) {
      gy_fail("%s, row %lld head %lld channel %lld: %.9g and %.9g", name, (long long)row, (long long)h, (long long)c, x,
              y);
    }
  }
}

#define ROWS_EQUAL(a, b, name, slot_a, slot_b, from_a, from_b, rows)                                           \
  rows_equal(&(a)->desc.name, &(a)->args.name, &(b)->desc.name, &(b)->args.name, (slot_a), (slot_b), (from_a), \
             (from_b), (rows), #name)

/* Copies of rows of an input, bit for bit as far as numbers go. */
static void copy_rows(const tsr_layout *to, const tsr_buffer *bt, const tsr_layout *from, const tsr_buffer *bf,
                      int64_t slot_to, int64_t slot_from, int64_t row_to, int64_t row_from, int64_t rows) {
  for (int64_t e = 0; e < rows * to->shape[2] * to->shape[3]; e++) {
    const int64_t row = e / (to->shape[2] * to->shape[3]), h = e / to->shape[3] % to->shape[2], c = e % to->shape[3];
    gy_put(to, bt, slot_to, row_to + row, h, c, gy_get(from, bf, slot_from, row_from + row, h, c));
  }
}

#define COPY_ROWS(to, from, name, slot_to, slot_from, row_to, row_from, rows)                                   \
  copy_rows(&(to)->desc.name, &(to)->args.name, &(from)->desc.name, &(from)->args.name, (slot_to), (slot_from), \
            (row_to), (row_from), (rows))

typedef struct pair {
  gy_problem *other;
  int64_t slot[3], row_q[3], row_k[3], other_slot[3], other_row_q[3], other_row_k[3], q_rows[3],
      k_rows[3]; /* what has to agree */
  int n;
} pair;

static void same_rows(gy_problem *p, gy_run *run, void *user) {
  const pair *x = user;
  gy_run second;
  gy_go(p, run);
  if (!gy_plan(x->other, run->target, run->variant, &second)) {
    gy_fail("one is accepted, the other refused");
  }
  gy_go(x->other, &second);
  for (int n = 0; n < x->n; n++) {
    if (p->desc.op == TSR_FORWARD) {
      ROWS_EQUAL(p, x->other, o, x->slot[n], x->other_slot[n], x->row_q[n], x->other_row_q[n], x->q_rows[n]);
    } else {
      ROWS_EQUAL(p, x->other, dq, x->slot[n], x->other_slot[n], x->row_q[n], x->other_row_q[n], x->q_rows[n]);
      ROWS_EQUAL(p, x->other, dk, x->slot[n], x->other_slot[n], x->row_k[n], x->other_row_k[n], x->k_rows[n]);
      ROWS_EQUAL(p, x->other, dv, x->slot[n], x->other_slot[n], x->row_k[n], x->other_row_k[n], x->k_rows[n]);
    }
  }
  gy_compare(x->other, &second);
  gy_unplan(&second);
  gy_compare(p, run);
}

/* Sequences 0 and 2 keep their numbers, sequence 1 changes its length. */
static void g20_other_sequences_change_nothing(void **state) {
  static const int64_t q_lens[3] = {40, 33, 77}, kv_lens[3] = {130, 33, 300};
  static const int64_t others_q[3][3] = {{40, 18, 77}, {40, 150, 77}, {40, 0, 77}};
  static const int64_t others_kv[3][3] = {{130, 700, 300}, {130, 150, 300}, {130, 0, 300}};
  (void)state;
  for (int n = 0; n < 18; n++) {
    const int64_t *oq = others_q[n % 3], *ok = others_kv[n % 3];
    gy_dims dims = {n / 9, floats[n / 3 % 3], 3, 0, 0, 4, 2, 64, 64};
    gy_problem *p = gy_packed(dims, q_lens, kv_lens, 0), *other = gy_packed(dims, oq, ok, 0);
    pair x = {other, {0, 0}, {0, 73}, {0, 163}, {0, 0}, {0, 40 + oq[1]}, {0, 130 + ok[1]}, {40, 77}, {130, 300}, 2};
    gy_say("packed, op %d, sequence 1 becomes %lld x %lld", n / 9, (long long)oq[1], (long long)ok[1]);
    p->desc.flags |= TSR_BATCH_INVARIANT | (n % 2 ? TSR_CAUSAL : 0);
    other->desc.flags |= p->desc.flags;
    for (int m = 0; m < 2; m++) {
      COPY_ROWS(other, p, q, 0, 0, x.other_row_q[m], x.row_q[m], x.q_rows[m]);
      COPY_ROWS(other, p, k, 0, 0, x.other_row_k[m], x.row_k[m], x.k_rows[m]);
      COPY_ROWS(other, p, v, 0, 0, x.other_row_k[m], x.row_k[m], x.k_rows[m]);
      if (dims.op == TSR_BACKWARD) {
        COPY_ROWS(other, p, dout, 0, 0, x.other_row_q[m], x.row_q[m], x.q_rows[m]);
      }
    }
    gy_each(p, same_rows, &x);
    gy_free(p);
    gy_free(other);
  }
}

/* A row has the same bits in a prefill of the whole, in a chunk of it, and alone; and in any batch. */
static void g20_prefill_chunk_and_decode_agree(void **state) {
  static const int64_t chunks[] = {1, 5, 64, 100};
  (void)state;
  for (int n = 0; n < 12; n++) {
    const int64_t chunk = chunks[n % 4], sk = n % 2 ? 257 : 140, hkv = n % 5 ? 2 : 8;
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, floats[n % 3], 1, sk, sk, 8, hkv, n < 6 ? 64 : 128, 64});
    gy_problem *other = gy_dense((gy_dims){TSR_FORWARD, floats[n % 3], 3, chunk, sk, 8, hkv, n < 6 ? 64 : 128, 64});
    pair x = {other, {0}, {sk - chunk}, {0}, {1}, {0}, {0}, {chunk}, {0}, 1};
    gy_say("last %lld of %lld rows", (long long)chunk, (long long)sk);
    p->desc.flags |= TSR_BATCH_INVARIANT | TSR_CAUSAL;
    other->desc.flags |= p->desc.flags;
    COPY_ROWS(other, p, q, 1, 0, 0, sk - chunk, chunk);
    COPY_ROWS(other, p, k, 1, 0, 0, 0, sk);
    COPY_ROWS(other, p, v, 1, 0, 0, 0, sk);
    gy_each(p, same_rows, &x);
    gy_free(p);
    gy_free(other);
  }
}

/* Long enough for a plan to split where it may: a row alone, and among other sequences, shorter and longer. */
static void g20_long_decode_in_any_batch(void **state) {
  static const int64_t lens[3] = {7000, 5000, 12};
  (void)state;
  for (int n = 0; n < 3; n++) {
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, floats[n], 1, 1 + n, 5000, 2, 1, 32, 32});
    gy_problem *other = gy_dense((gy_dims){TSR_FORWARD, floats[n], 3, 1, 7000, 2, 1, 32, 32});
    pair x = {other, {0}, {n}, {0}, {1}, {0}, {0}, {1}, {0}, 1};
    gy_say("row %d, %s", n, tsr_dtype_name(floats[n]));
    p->desc.flags |= TSR_BATCH_INVARIANT | TSR_CAUSAL;
    other->desc.flags |= p->desc.flags;
    GY_INTS(other, seqlens_k, TSR_I32, lens, 3);
    COPY_ROWS(other, p, q, 1, 0, 0, n, 1);
    COPY_ROWS(other, p, k, 1, 0, 0, 0, 5000);
    COPY_ROWS(other, p, v, 1, 0, 0, 0, 5000);
    gy_each(p, same_rows, &x);
    gy_free(p);
    gy_free(other);
  }
}

/* ---- 21 -------------------------------------------------------------------------------------- */

static void two_scales(gy_problem *p, gy_run *run, void *user) {
  gy_problem *const other = user; /* the same but for the scale */
  for (int n = 0; n < 2; n++) {   /* one plan, one and the other, twice */
    gy_run as_other = *run;
    gy_go(p, run);
    gy_compare(p, run);
    p->args.scale = other->args.scale;
    gy_go(p, run);
    p->args.scale = 0.0f;
    for (int m = 0; m < p->num_out; m++) {
      memcpy(other->out[m].raw, p->out[m].raw, (size_t)p->out[m].raw_bytes);
    }
    gy_compare(other, &as_other);
  }
}

static void g21_plans_remember_nothing(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) { /* a plan with a custom mask, then a causal one, then the first again */
    const tsr_dtype dtype = floats[n % 3];
    gy_dims dims = {n / 3, dtype, 2, 70, 90, 4, 2, 64, 64};
    gy_problem *masked = gy_dense(dims), *causal = gy_dense(dims), *plain = gy_dense(dims);
    GY_IN(masked, mask, tsr_layout_dense(TSR_U8, 2, 4, 70, 90));
    causal->desc.flags |= TSR_CAUSAL;
    gy_say("masks in turn, %s, op %d", tsr_dtype_name(dtype), n / 3);
    gy_check(masked);
    gy_check(causal);
    gy_check(plain);
    gy_check(masked);
    gy_free(masked);
    gy_free(causal);
    gy_free(plain);
  }
  for (int n = 0; n < 3; n++) { /* one plan and two scales */
    gy_dims dims = {TSR_FORWARD, floats[n], 2, 70, 90, 4, 2, 64, 64};
    gy_problem *p = gy_dense(dims), *other = gy_dense(dims);
    gy_say("two scales, %s", tsr_dtype_name(floats[n]));
    other->args.scale = 0.3f;
    COPY_ROWS(other, p, q, 0, 0, 0, 0, 70);
    COPY_ROWS(other, p, k, 0, 0, 0, 0, 90);
    COPY_ROWS(other, p, v, 0, 0, 0, 0, 90);
    COPY_ROWS(other, p, q, 1, 1, 0, 0, 70);
    COPY_ROWS(other, p, k, 1, 1, 0, 0, 90);
    COPY_ROWS(other, p, v, 1, 1, 0, 0, 90);
    gy_each(p, two_scales, other);
    gy_free(p);
    gy_free(other);
  }
}

/* ---- 22 -------------------------------------------------------------------------------------- */

/* Windows about as long as the keys, on every type: each of them ends, within the limit that every test has. */
static void g22_windows_end(void **state) {
  static const tsr_dtype dtypes[] = {TSR_F8E4M3, TSR_F8E5M2, TSR_F16, TSR_BF16, TSR_F32};
  static const int64_t windows[] = {511, 255, 256, 257, 0, 1000000};
  (void)state;
  for (int n = 0; n < 30; n++) {
    const int64_t sq = n % 3 == 0 ? 1 : n % 3 == 1 ? 257 : 60;
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, dtypes[n % 5], 1, sq, 257, 2, 1, 128, 128});
    gy_say("%s, window %lld, Sq %lld", tsr_dtype_name(dtypes[n % 5]), (long long)windows[n / 5], (long long)sq);
    p->desc.flags |= TSR_WINDOW | (n % 2 ? TSR_CAUSAL : 0);
    p->desc.window_left = windows[n / 5];
    p->desc.window_right = n % 4 < 2 ? 0 : -1;
    gy_check_free(p);
  }
}

/* Counts questions down; says stop when there are none left. */
static int32_t stop_soon(void *user, int64_t done, int64_t total) {
  (void)done;
  (void)total;
  return atomic_fetch_sub((atomic_int *)user, 1) <= 1;
}

/* Runs the problem on the CPU and expects it to be cancelled after so many questions. */
static void is_stopped(gy_problem *p, int after, int threads) {
  atomic_int questions = after;
  tsr_context_params params = tsr_context_params_init();
  tsr_context *context;
  tsr_error err;
  tsr_status st;
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  params.num_threads = threads;
  params.should_stop = stop_soon;
  params.device = "cpu";
  params.user = &questions;
  assert_int_equal(tsr_context_create(&params, &context, &err), TSR_OK);
  st = tsr_attention_once(context, &p->desc, &p->args, &err);
  tsr_context_destroy(context);
  if (st != TSR_CANCELLED) {
    gy_fail("%s, %d questions left, must be cancelled", tsr_status_name(st), atomic_load(&questions));
  }
}

/* The limit works: a run that is told to stop does, and says so; between the pieces of its work, and within one. */
static void g22_runs_can_be_stopped(void **state) {
  gy_problem *p;
  (void)state;
  for (int op = 0; op < 2; op++) {
    p = gy_dense((gy_dims){op, TSR_F32, 1, 4096, 4096, 4, 4, 64, 64});
    gy_say("op %d", op);
    if (op == TSR_BACKWARD) { /* whatever they are: the run is not to finish */
      GY_FILL(p, o, 0);
      GY_FILL(p, lse, 0);
    }
    is_stopped(p, 1, 2);
    gy_free(p);
  }
  p = gy_dense((gy_dims){TSR_FORWARD, TSR_F32, 1, 1, 1, 1, 1, 64, 64});
  gy_say("one row, 2^24 keys");
  p->desc.k.shape[1] = p->desc.v.shape[1] = INT64_C(1) << 24; /* all of them the same */
  p->desc.k.stride[1] = p->desc.v.stride[1] = 0;
  p->desc.num_splits = 1;
  is_stopped(p, 4, 1);
  gy_free(p);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g19_any_number_of_splits),
      GY_TEST(g20_other_sequences_change_nothing),
      GY_TEST(g20_prefill_chunk_and_decode_agree),
      GY_TEST(g20_long_decode_in_any_batch),
      GY_TEST(g21_plans_remember_nothing),
      GY_TEST(g22_windows_end),
      GY_TEST(g22_runs_can_be_stopped),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
