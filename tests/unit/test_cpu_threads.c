/* SPDX-License-Identifier: Apache-2.0 */
/* How runs use threads: the caller's parallel_for, the caller's parallel region, cancellation and progress, and that
 * none of it changes a bit of a deterministic result. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu_case.h"

enum { HQ = 4, HKV = 2, SQ = 130, SK = 300, D = 24, N = HQ * SQ * D };

/* ---- parallel_for ------------------------------------------------------------------------------ */

typedef struct loop_record {
  int64_t calls, items, largest;
  int32_t workers;
} loop_record;

/* Last item first, workers dealt round: neither may matter. */
static void backwards(void *user, int64_t n, void (*body)(void *arg, int64_t i, int32_t worker), void *arg) {
  loop_record *r = (loop_record *)user;
  r->calls++;
  r->items += n;
  r->largest = n > r->largest ? n : r->largest;
  for (int64_t i = n - 1; i >= 0; i--) {
    body(arg, i, (int32_t)(i % r->workers));
  }
}

static void callers_loop(void **state) {
  tsr_context_params serial = tsr_context_params_init(), own = tsr_context_params_init();
  loop_record record = {0, 0, 0, 3};
  float expected[N];
  cpu_case c;
  (void)state;
  serial.num_threads = 1;
  own.num_threads = record.workers;
  own.parallel_for = backwards;
  own.user = &record;
  cpu_case_init(&c, HQ, HKV, SQ, SK, D);
  c.desc.num_splits = 2;
  cpu_case_run_ok(&c, &serial);
  memcpy(expected, c.o, sizeof(expected));
  cpu_case_run_ok(&c, &own);
  assert_memory_equal(c.o, expected, sizeof(expected));
  assert_int_equal(record.calls, c.info.num_launches); /* one loop a launch, all through the hook */
  assert_true(record.items > record.calls);
  cpu_case_free(&c);
}

/* ---- Thread counts ------------------------------------------------------------------------------ */

static void same_bits(uint64_t flags, int64_t seqlen_q, int32_t num_splits) {
  float *expected = malloc((size_t)(HQ * seqlen_q * D) * sizeof(float));
  cpu_case c;
  cpu_case_init(&c, HQ, HKV, seqlen_q, 5000, D);
  c.desc.flags = flags | TSR_DETERMINISTIC;
  c.desc.num_splits = num_splits;
  for (int32_t threads = 1; threads <= 5; threads++) {
    tsr_context_params p = tsr_context_params_init();
    p.num_threads = threads;
    cpu_case_run_ok(&c, &p);
    if (threads == 1) {
      memcpy(expected, c.o, (size_t)(HQ * seqlen_q * D) * sizeof(float));
    }
    assert_memory_equal(c.o, expected, (size_t)(HQ * seqlen_q * D) * sizeof(float));
  }
  free(expected);
  cpu_case_free(&c);
}

static void thread_count_changes_no_bit(void **state) {
  (void)state;
  same_bits(TSR_CAUSAL, 100, 0);
  same_bits(0, 1, 0); /* decode, split by the library */
  same_bits(0, 3, 7);
}

/* ---- The caller's parallel region ---------------------------------------------------------------- */

#ifdef _OPENMP
typedef struct region_record {
  int deepest; /* parallel regions around a question */
} region_record;

static int32_t note_level(void *user, int64_t done, int64_t total) {
  region_record *r = (region_record *)user;
  (void)done;
  (void)total;
  r->deepest = omp_get_level() > r->deepest ? omp_get_level() : r->deepest;
  return 0;
}

static void no_region_in_a_region(void **state) {
  int failures = 0;
  (void)state;
#pragma omp parallel num_threads(2) reduction(+ : failures)
  {
    region_record record = {0};
    tsr_context_params p = tsr_context_params_init();
    tsr_context *context = NULL;
    float x[32 * 64 * 8] = {0}, o[32 * 64 * 8];
    tsr_attention_desc d = tsr_attention_desc_init();
    tsr_run_args a = tsr_run_args_init();
    p.num_threads = 4; /* more than the caller leaves */
    p.should_stop = note_level;
    p.user = &record;
    d.q = d.k = d.v = d.o = tsr_layout_dense(TSR_F32, 1, 64, 32, 8);
    a.q = a.k = a.v = tsr_buffer_in(x);
    a.o = tsr_buffer_out(o);
    failures += tsr_context_create(&p, &context, NULL) != TSR_OK;
    failures += tsr_attention_once(context, &d, &a, NULL) != TSR_OK;
    failures += record.deepest != omp_get_level();
    tsr_context_destroy(context);
  }
  assert_int_equal(failures, 0);
}

static void one_thread_enters_no_region(void **state) {
  region_record record = {0};
  tsr_context_params p = tsr_context_params_init();
  cpu_case c;
  (void)state;
  p.num_threads = 1;
  p.should_stop = note_level;
  p.user = &record;
  cpu_case_init(&c, 8, 8, 2000, 2000, 64); /* some 30 ms: asked within */
  cpu_case_run_ok(&c, &p);
  assert_int_equal(record.deepest, 0);
  cpu_case_free(&c);
}
#endif

/* ---- Cancellation and progress -------------------------------------------------------------------- */

typedef struct stop_record {
  int64_t calls, stop_at, last_done, total;
  int backward; /* progress that went back or past its end */
} stop_record;

static int32_t count_calls(void *user, int64_t done, int64_t total) {
  stop_record *r = (stop_record *)user;
  r->backward |= done < r->last_done || done > total || (r->calls > 0 && total != r->total);
  r->last_done = done;
  r->total = total;
  return ++r->calls == r->stop_at;
}

static tsr_status run_until(cpu_case *c, stop_record *record, tsr_error *err) {
  tsr_context_params p = tsr_context_params_init();
  p.num_threads = 1; /* the hook is not synchronised */
  p.should_stop = count_calls;
  p.user = record;
  return cpu_case_run(c, &p, err);
}

static void cancelled_before_work(void **state) {
  stop_record record = {0, 1, 0, 0, 0};
  tsr_error err;
  cpu_case c;
  (void)state;
  cpu_case_init(&c, 1, 1, 1, 1, 8);
  assert_int_equal(run_until(&c, &record, &err), TSR_CANCELLED);
  assert_int_equal(record.calls, 1);
  assert_true(err.text[0] != '\0');
  cpu_case_free(&c);
}

/* A long item is left in its middle, not at its end. */
static void cancelled_within_an_item(void **state) {
  stop_record record = {0, 3, 0, 0, 0};
  tsr_error err;
  cpu_case c;
  (void)state;
  cpu_case_init(&c, 1, 1, 48, 200000, 64);
  c.desc.num_splits = 1;
  assert_int_equal(run_until(&c, &record, &err), TSR_CANCELLED);
  assert_int_equal(record.calls, 3);
  assert_int_equal(record.total, 1);
  assert_int_equal(record.last_done, 0);
  cpu_case_free(&c);
}

static void progress_ends_at_total(void **state) {
  stop_record record = {0, -1, 0, 0, 0};
  tsr_error err;
  cpu_case c;
  (void)state;
  cpu_case_init(&c, 4, 2, 1000, 1000, 64);
  assert_int_equal(run_until(&c, &record, &err), TSR_OK);
  assert_true(record.calls >= 3); /* before, after, and about once a millisecond between */
  assert_int_equal(record.last_done, record.total);
  assert_false(record.backward);
  cpu_case_free(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(callers_loop),           cmocka_unit_test(thread_count_changes_no_bit),
#ifdef _OPENMP
      cmocka_unit_test(no_region_in_a_region),  cmocka_unit_test(one_thread_enters_no_region),
#endif
      cmocka_unit_test(cancelled_before_work),  cmocka_unit_test(cancelled_within_an_item),
      cmocka_unit_test(progress_ends_at_total),
  };
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
