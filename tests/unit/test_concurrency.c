/* SPDX-License-Identifier: Apache-2.0 */
/* One plan run from eight threads at once, by OpenMP and by a parallel_for of the caller's, forward and backward; run
 * again under ThreadSanitizer by ci/tsan. All results must be equal bit for bit: the work items do not know who runs
 * them. */
#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/tessera.h"

enum { CALLERS = 8, B = 1, HQ = 4, HKV = 2, S = 70, D = 24, N = B * S * HQ * D, NKV = B * S * HKV * D };

/* ---- A parallel_for on pthreads ---------------------------------------------------------------- */

enum { WORKERS = 3 };

typedef struct job {
  void (*body)(void *arg, int64_t i, int32_t worker);
  void *arg;
  atomic_llong *next;
  int64_t n;
  int32_t worker;
} job;

static void *work(void *arg) {
  job *j = arg;
  for (int64_t i = atomic_fetch_add(j->next, 1); i < j->n; i = atomic_fetch_add(j->next, 1)) {
    j->body(j->arg, i, j->worker);
  }
  return NULL;
}

static void pthread_for(void *user, int64_t n, void (*body)(void *arg, int64_t i, int32_t worker), void *arg) {
  pthread_t threads[WORKERS];
  job jobs[WORKERS];
  atomic_llong next = 0;
  (void)user;
  for (int32_t w = 0; w < WORKERS; w++) {
    jobs[w] = (job){body, arg, &next, n, w};
    pthread_create(&threads[w], NULL, work, &jobs[w]);
  }
  for (int32_t w = 0; w < WORKERS; w++) {
    pthread_join(threads[w], NULL);
  }
}

/* ---- The problem ------------------------------------------------------------------------------- */

typedef struct output {
  float o[N], lse[B * HQ * S], dq[N], dk[NKV], dv[NKV];
} output;

typedef struct input {
  float q[N], k[NKV], v[NKV], dout[N];
} input;

static const input *make_input(void) {
  input *in = malloc(sizeof(*in));
  uint32_t x = 12345;
  for (size_t i = 0; i < sizeof(*in) / sizeof(float); i++) {
    x = x * 1664525u + 1013904223u;
    ((float *)in)[i] = (float)(x >> 8) / 8388608.0f - 1.0f;
  }
  return in;
}

static tsr_attention_desc describe(int32_t op) {
  tsr_attention_desc d = tsr_attention_desc_init();
  d.op = op;
  d.flags = TSR_CAUSAL;
  d.q = d.o = tsr_layout_dense(TSR_F32, B, S, HQ, D);
  d.k = d.v = tsr_layout_dense(TSR_F32, B, S, HKV, D);
  d.lse = tsr_layout_dense(TSR_F32, B, HQ, S, 1);
  if (op == TSR_BACKWARD) {
    d.dout = d.dq = d.q;
    d.dk = d.dv = d.k;
  }
  return d;
}

static void run(const tsr_plan *plan, int32_t op, const input *in, output *out) {
  tsr_run_args a = tsr_run_args_init();
  tsr_error err;
  int64_t bytes = 0;
  void *memory = NULL;
  if (tsr_plan_workspace(plan, &bytes, NULL, &err) != TSR_OK || posix_memalign(&memory, 64, (size_t)bytes + 64) != 0) {
    abort();
  }
  memset(memory, 0xa5, (size_t)bytes + 64);
  a.q = tsr_buffer_in(in->q);
  a.k = tsr_buffer_in(in->k);
  a.v = tsr_buffer_in(in->v);
  a.o = tsr_buffer_out(out->o);
  a.lse = tsr_buffer_out(out->lse);
  if (op == TSR_BACKWARD) {
    a.dout = tsr_buffer_in(in->dout);
    a.dq = tsr_buffer_out(out->dq);
    a.dk = tsr_buffer_out(out->dk);
    a.dv = tsr_buffer_out(out->dv);
  }
  a.workspace = tsr_buffer_out(memory);
  a.workspace_bytes = bytes;
  if (tsr_run_attention(plan, &a, &err) != TSR_OK) {
    fprintf(stderr, "%s: %s\n", err.field, err.text);
    abort();
  }
  free(memory);
}

typedef struct caller {
  const tsr_plan *forward, *backward;
  const input *in;
  output *out;
} caller;

static void *call(void *arg) {
  const caller *c = arg;
  memset(c->out, 0xff, sizeof(*c->out));
  for (int round = 0; round < 3; round++) {
    run(c->forward, TSR_FORWARD, c->in, c->out);
    run(c->backward, TSR_BACKWARD, c->in, c->out);
  }
  return NULL;
}

static void eight_callers(const tsr_context_params *params, output *expected, int is_first) {
  const input *in = make_input();
  tsr_context *context = NULL;
  tsr_device *device = NULL;
  tsr_plan *forward = NULL, *backward = NULL;
  pthread_t threads[CALLERS];
  caller callers[CALLERS];
  const tsr_attention_desc df = describe(TSR_FORWARD), db = describe(TSR_BACKWARD);
  assert_int_equal(tsr_context_create(params, &context, NULL), TSR_OK);
  assert_int_equal(tsr_device_open(context, "cpu", &device, NULL), TSR_OK);
  assert_int_equal(tsr_plan_attention(device, &df, &forward, NULL), TSR_OK);
  assert_int_equal(tsr_plan_attention(device, &db, &backward, NULL), TSR_OK);
  tsr_device_close(device); /* plans keep what they need */
  tsr_context_destroy(context);
  for (int i = 0; i < CALLERS; i++) {
    callers[i] = (caller){forward, backward, in, malloc(sizeof(output))};
    pthread_create(&threads[i], NULL, call, &callers[i]);
  }
  for (int i = 0; i < CALLERS; i++) {
    pthread_join(threads[i], NULL);
    if (i == 0 && is_first) {
      *expected = *callers[0].out;
    }
    assert_memory_equal(callers[i].out, expected, sizeof(output));
    free(callers[i].out);
  }
  tsr_plan_destroy(forward);
  tsr_plan_destroy(backward);
  free((void *)in);
}

static output expected;

static void serial(void **state) {
  tsr_context_params p = tsr_context_params_init();
  (void)state;
  p.num_threads = 1;
  eight_callers(&p, &expected, 1);
  for (size_t i = 0; i < sizeof(expected) / sizeof(float); i++) {
    const float x = ((const float *)&expected)[i];
    assert_true(x > -1e3f && x < 1e3f);
  }
}

static void openmp(void **state) {
  tsr_context_params p = tsr_context_params_init();
  (void)state;
  p.num_threads = 3;
  eight_callers(&p, &expected, 0);
}

static void own_threads(void **state) {
  tsr_context_params p = tsr_context_params_init();
  (void)state;
  p.num_threads = WORKERS;
  p.parallel_for = pthread_for;
  eight_callers(&p, &expected, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(serial), cmocka_unit_test(openmp), cmocka_unit_test(own_threads)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
