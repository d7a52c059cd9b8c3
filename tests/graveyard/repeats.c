/* SPDX-License-Identifier: Apache-2.0 */
/* Repeats and queues: lines 34 and 36. */
#include "kit.h"

#include <pthread.h>

/* ---- 34 -------------------------------------------------------------------------------------- */

static void repeat(gy_problem *p, gy_run *run, void *user) {
  const int repeats = *(const int *)user;
  unsigned char *first, *next;
  size_t bytes;
  gy_go(p, run);
  first = gy_snapshot(p, &bytes);
  for (int n = 1; n < repeats; n++) {
    gy_go(p, run);
    next = gy_snapshot(p, &bytes);
    if (memcmp(first, next, bytes) != 0) {
      gy_fail("repeat %d has other bits", n);
    }
    free(next);
  }
  free(first);
  gy_compare(p, run);
}

static void g34_the_same_bits_250_times(void **state) {
  (void)state;
  for (int n = 0; n < 4; n++) {
    gy_problem *p = gy_dense((gy_dims){n % 2, n < 2 ? TSR_BF16 : TSR_F32, 60, 20, 24, 2, 1, 16, 16});
    int repeats = 250;
    gy_say("%s, op %d", n < 2 ? "bf16" : "f32", n % 2);
    p->desc.flags |= TSR_DETERMINISTIC | (n < 2 ? TSR_CAUSAL : 0);
    gy_each(p, repeat, &repeats);
    gy_free(p);
  }
}

/* Few, long sequences: split KV, and dQ summed over many key blocks, by two threads. */
static void g34_the_same_bits_of_long_sequences(void **state) {
  (void)state;
  for (int n = 0; n < 2; n++) {
    gy_problem *p = gy_dense((gy_dims){n, TSR_BF16, 1, n ? 70 : 1, n ? 300 : 5000, 2, 1, 32, 32});
    int repeats = gy_full() ? 250 : 100;
    gy_say("op %d", n);
    p->desc.flags |= TSR_DETERMINISTIC;
    gy_each(p, repeat, &repeats);
    gy_free(p);
  }
}

/* ---- 36 -------------------------------------------------------------------------------------- */

/* On the CPU there are no queues: one that is given is refused, before anything is written. */
static void g36_no_queue_on_host_memory(void **state) {
  (void)state;
  for (int n = 0; n < 8; n++) {
    gy_problem *p = gy_dense((gy_dims){n % 2, TSR_F32, 1, 8, 8, 1, 1, 16, 16});
    const void *const events[1] = {p};
    void *event = NULL;
    gy_say("case %d", n / 2);
    p->forward_done = 1; /* the oracle refuses too */
    if (n / 2 == 0) {
      p->args.queue = p;
    } else if (n / 2 == 1) {
      p->args.wait_events = events;
    } else if (n / 2 == 2) {
      p->args.num_wait_events = 1;
    } else {
      p->args.event = &event;
    }
    gy_refused_on_host(p, TSR_INVALID, n / 2 == 0 ? "queue" : n / 2 == 3 ? "event" : n / 2 == 1 ? "wait_events" : "");
    assert_null(event);
    gy_free(p);
  }
}

/* Devices of several contexts, open at once, used from threads that opened none of them and in another order. */
typedef struct worker {
  gy_problem *p;
  const gy_target *targets;
  int first, count;
  tsr_status status;
  tsr_error err;
  char *workspace;
} worker;

static void *work(void *user) {
  worker *w = user;
  for (int n = 0; n < w->count && w->status == TSR_OK; n++) {
    const gy_target *t = &w->targets[(w->first + w->count - n) % w->count];
    tsr_plan *plan = NULL;
    tsr_run_args args = w->p->args;
    int64_t bytes = 0, align = 0;
    w->p->desc.memory = t->host_memory ? TSR_MEMORY_HOST : TSR_MEMORY_NATIVE;
    w->status = tsr_plan_attention(t->device, &w->p->desc, &plan, &w->err);
    if (w->status == TSR_OK) {
      w->status = tsr_plan_workspace(plan, &bytes, &align, &w->err);
    }
    if (w->status == TSR_OK) {
      void *workspace = aligned_alloc(4096, (size_t)(bytes + 8191) / 4096 * 4096);
      args.workspace = tsr_buffer_out(bytes > 0 ? workspace : NULL);
      args.workspace_bytes = bytes;
      w->status = gy_run_plan(t, plan, w->p, &args, workspace, bytes, &w->err);
      free(workspace);
    }
    tsr_plan_destroy(plan);
  }
  return NULL;
}

static void g36_any_thread_and_device(void **state) {
  worker w[4];
  pthread_t threads[4];
  int count;
  const gy_target *t = gy_targets(&count);
  (void)state;
  for (int n = 0; n < 4; n++) {
    memset(&w[n], 0, sizeof(w[n]));
    w[n].p = gy_dense((gy_dims){n % 2, TSR_F32, 2, 70, 130, 4, 2, 64, 64});
    w[n].p->desc.flags |= n / 2 ? TSR_CAUSAL : 0;
    gy_forward_results(w[n].p);
    gy_poison(w[n].p);
    w[n].targets = t;
    w[n].first = n % count;
    w[n].count = count;
  }
  for (int n = 0; n < 4; n++) {
    assert_int_equal(pthread_create(&threads[n], NULL, work, &w[n]), 0);
  }
  for (int n = 0; n < 4; n++) {
    pthread_join(threads[n], NULL);
  }
  for (int n = 0; n < 4; n++) {
    gy_say("thread %d", n);
    if (w[n].status != TSR_OK) {
      gy_fail("%s: %s %s", tsr_status_name(w[n].status), w[n].err.field, w[n].err.text);
    }
    gy_compare(w[n].p, NULL); /* what the last device of the thread wrote */
    gy_free(w[n].p);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g34_the_same_bits_250_times),
      GY_TEST(g34_the_same_bits_of_long_sequences),
      GY_TEST(g36_no_queue_on_host_memory),
      GY_TEST(g36_any_thread_and_device),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
