/* SPDX-License-Identifier: Apache-2.0 */
/* One dense f32 problem of random numbers and its runs on the CPU back end. Include cmocka.h before. */
#ifndef TSR_TEST_CPU_CASE_H
#define TSR_TEST_CPU_CASE_H

#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "tessera/tessera.h"

typedef struct cpu_case {
  tsr_attention_desc desc; /* what a test adds to */
  tsr_run_args args;
  int64_t heads_q, heads_kv, seqlen_q, seqlen_k, head_dim;
  float *q, *k, *v, *o, *lse;
  tsr_run_stats stats;
  int64_t workspace_bytes;
  tsr_plan_info info;
} cpu_case;

static inline float *cpu_random(int64_t n) {
  float *x = malloc((size_t)n * sizeof(float) + 1);
  assert_non_null(x);
  random_fill(x, n);
  return x;
}

static inline void cpu_case_init(cpu_case *c, int64_t heads_q, int64_t heads_kv, int64_t seqlen_q, int64_t seqlen_k,
                                 int64_t head_dim) {
  memset(c, 0, sizeof(*c));
  c->heads_q = heads_q;
  c->heads_kv = heads_kv;
  c->seqlen_q = seqlen_q;
  c->seqlen_k = seqlen_k;
  c->head_dim = head_dim;
  c->q = cpu_random(seqlen_q * heads_q * head_dim);
  c->k = cpu_random(seqlen_k * heads_kv * head_dim);
  c->v = cpu_random(seqlen_k * heads_kv * head_dim);
  c->o = cpu_random(seqlen_q * heads_q * head_dim);
  c->lse = cpu_random(seqlen_q * heads_q);
  c->desc = tsr_attention_desc_init();
  c->desc.q = c->desc.o = tsr_layout_dense(TSR_F32, 1, seqlen_q, heads_q, head_dim);
  c->desc.k = c->desc.v = tsr_layout_dense(TSR_F32, 1, seqlen_k, heads_kv, head_dim);
  c->desc.lse = tsr_layout_dense(TSR_F32, 1, heads_q, seqlen_q, 1);
  c->args = tsr_run_args_init();
  c->args.q = tsr_buffer_in(c->q);
  c->args.k = tsr_buffer_in(c->k);
  c->args.v = tsr_buffer_in(c->v);
  c->args.o = tsr_buffer_out(c->o);
  c->args.lse = tsr_buffer_out(c->lse);
}

static inline void cpu_case_free(cpu_case *c) {
  free(c->q);
  free(c->k);
  free(c->v);
  free(c->o);
  free(c->lse);
}

/* Plans and runs with a context of these parameters, outputs and workspace poisoned, the workspace's end guarded. */
static inline tsr_status cpu_case_run(cpu_case *c, const tsr_context_params *params, tsr_error *err) {
  tsr_context *context = NULL;
  tsr_device *device = NULL;
  tsr_plan *plan = NULL;
  unsigned char *memory = NULL;
  tsr_status st = tsr_context_create(params, &context, err);
  c->stats = tsr_run_stats_init();
  c->info.size = sizeof(c->info);
  memset(c->o, 0xff, (size_t)(c->seqlen_q * c->heads_q * c->head_dim) * sizeof(float));
  memset(c->lse, 0xff, (size_t)(c->seqlen_q * c->heads_q) * sizeof(float));
  st = st == TSR_OK ? tsr_device_open(context, "cpu", &device, err) : st;
  st = st == TSR_OK ? tsr_plan_attention(device, &c->desc, &plan, err) : st;
  if (st == TSR_OK) {
    const size_t guard = 256;
    assert_int_equal(tsr_plan_get(plan, &c->info, NULL), TSR_OK);
    assert_int_equal(tsr_plan_workspace(plan, &c->workspace_bytes, NULL, NULL), TSR_OK);
    assert_int_equal(posix_memalign((void **)&memory, 64, (size_t)c->workspace_bytes + guard), 0);
    memset(memory, 0xff, (size_t)c->workspace_bytes + guard);
    c->args.workspace = tsr_buffer_out(memory);
    c->args.workspace_bytes = c->workspace_bytes;
    c->args.stats = &c->stats;
    st = tsr_run_attention(plan, &c->args, err);
    for (size_t i = 0; i < guard; i++) {
      assert_int_equal(memory[(size_t)c->workspace_bytes + i], 0xff);
    }
    free(memory);
  }
  tsr_plan_destroy(plan);
  tsr_device_close(device);
  tsr_context_destroy(context);
  return st;
}

static inline void cpu_case_run_ok(cpu_case *c, const tsr_context_params *params) {
  tsr_error err;
  if (cpu_case_run(c, params, &err) != TSR_OK) {
    fail_msg("%s: %s", err.field, err.text);
  }
}

#endif
