/* SPDX-License-Identifier: Apache-2.0 */
/* What takes more than one run of a case to see. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

/* compared: with the oracle, so that the seed has to suit that. */
static conf_problem *problem_of(conf_runner *r, conf_target *target, const char *line, uint64_t seed, int compared) {
  conf_case c;
  conf_problem *p = NULL;
  char why[200] = "no memory";
  if (conf_case_parse(line, &c, why, sizeof(why)) == 0) {
    conf_rng rng = conf_rng_for(seed, "property");
    if (compared) {
      conf_case_draw_seed(&c, &rng);
    } else {
      c.seed = conf_next(&rng) >> 16;
    }
    p = conf_problem_build(&c);
  }
  if (p == NULL) {
    conf_fail(r, target, "", line, "%s", why);
  }
  return p;
}

conf_problem *conf_property_problem(conf_runner *r, conf_target *target, const char *line, uint64_t seed) {
  return problem_of(r, target, line, seed, 0);
}

/* ---- Bits of the outputs --------------------------------------------------------------------------- */

static int64_t output_bytes(const conf_problem *p) {
  int64_t bytes = 0;
  for (int id = 0; id < CONF_T_COUNT; id++) {
    bytes += p->t[id].output ? p->t[id].raw_bytes : 0;
  }
  return bytes;
}

/* All outputs, one after another; NULL: no memory. */
static unsigned char *outputs_copy(const conf_problem *p) {
  unsigned char *copy = malloc((size_t)output_bytes(p) + 1), *at = copy;
  for (int id = 0; copy != NULL && id < CONF_T_COUNT; id++) {
    if (p->t[id].output) {
      memcpy(at, p->t[id].raw, (size_t)p->t[id].raw_bytes);
      at += p->t[id].raw_bytes;
    }
  }
  return copy;
}

/* NULL if the outputs are bit for bit the copy, else the first tensor that is not. */
static const char *outputs_differ(const conf_problem *p, const unsigned char *copy) {
  for (int id = 0; id < CONF_T_COUNT; id++) {
    if (p->t[id].output) {
      if (memcmp(p->t[id].raw, copy, (size_t)p->t[id].raw_bytes) != 0) {
        return p->t[id].name;
      }
      copy += p->t[id].raw_bytes;
    }
  }
  return NULL;
}

/* ---- Deterministic, whatever the thread count -------------------------------------------------------- */

static const char *const deterministic_lines[] = {
    "fwd b=1 hq=4 hkv=1 sq=1 sk=5000 d=64 dv=64 deterministic",
    "fwd b=3 hq=6 hkv=2 sq=100 sk=300 d=40 dv=24 deterministic causal q_packed kv_packed f16",
    "fwd b=2 hq=4 hkv=2 sq=3 sk=2500 d=64 dv=64 page=16 deterministic kv_table seqlens_k kv_i8 scale_token splits=5",
    "bwd b=3 hq=6 hkv=2 sq=150 sk=200 d=40 dv=24 deterministic causal bias_f32 bias_b1 bias_h1 sink dbias dsink",
    "bwd b=2 hq=8 hkv=1 sq=70 sk=130 d=64 dv=64 deterministic q_packed kv_packed bf16 dropout window",
};

/* The device again, in a context with so many threads. */
static int open_again(conf_runner *r, const conf_target *target, int32_t threads, conf_target *again) {
  tsr_error err;
  *again = *target;
  again->context = NULL;
  again->device = NULL;
  return conf_context_create(r, target->level, threads, &again->context, &err) == TSR_OK &&
         tsr_device_open(again->context, target->name, &again->device, &err) == TSR_OK;
}

static void close_again(conf_target *again) {
  tsr_device_close(again->device);
  tsr_context_destroy(again->context);
}

/* Runs with 1, 2, 3, 8 threads, twice each and with other contents of the workspace; all outputs the same bits. */
static void check_threads(conf_runner *r, conf_target *target, const char *variant, const char *line, uint64_t seed) {
  static const int32_t threads[] = {1, 2, 3, 8, 2, 1};
  conf_problem *p = conf_property_problem(r, target, line, seed);
  unsigned char *first = NULL;
  char why[480] = "", ran[48];
  int failed = p == NULL;
  for (int n = 0; !failed && n < 6; n++) {
    conf_target again, *on = target;
    const char *differs = NULL;
    p->c.seed ^= (uint64_t)n & 1; /* chooses what the workspace holds */
    if (target->host_memory) {    /* the CPU has threads, and nothing to compile again */
      on = &again;
      failed = !open_again(r, target, threads[n], on);
    }
    if (!failed && conf_run_once(r, on, variant, p, ran, why, sizeof(why)) != TSR_OK) {
      conf_fail(r, target, variant, line, "%d threads: %s", threads[n], why);
      failed = 1;
    }
    if (!failed && first == NULL) {
      first = outputs_copy(p);
      failed = first == NULL;
    } else if (!failed && (differs = outputs_differ(p, first)) != NULL) {
      conf_fail(r, target, variant, line, "deterministic, but %s has other bits with %d threads than with 1", differs,
                threads[n]);
      failed = 1;
    }
    if (on == &again) {
      close_again(on);
    }
  }
  if (!failed) {
    conf_pass(r, target, 0.0, line);
  }
  free(first);
  conf_problem_free(p);
}

/* ---- One plan, eight threads ------------------------------------------------------------------------- */

enum { CALLERS = 8, REPEATS = 3 };

typedef struct caller {
  conf_runner *r;
  conf_target *target;
  const tsr_plan *plan;
  conf_problem *p;
  conf_workspace w;
  const unsigned char *want;
  tsr_status status;
  tsr_error err;
  const char *differs;
} caller;

static void *call(void *arg) {
  caller *c = arg;
  for (int n = 0; n < REPEATS && c->status == TSR_OK && c->differs == NULL; n++) {
    tsr_run_args args = c->p->args;
    if (c->w.bytes > 0) {
      args.workspace = tsr_buffer_out(c->w.data);
      args.workspace_bytes = c->w.bytes;
    }
    conf_problem_poison(c->p);
    c->status = conf_run_attention(c->r, c->target, c->plan, c->p, &c->w, &args, &c->err);
    c->differs = c->status == TSR_OK && c->want != NULL ? outputs_differ(c->p, c->want) : NULL;
  }
  return NULL;
}

/* All callers at once; returns what is wrong, or NULL. */
static const char *call_together(caller callers[CALLERS]) {
  pthread_t threads[CALLERS];
  const char *wrong = NULL;
  int started = 0;
  while (started < CALLERS && pthread_create(&threads[started], NULL, call, &callers[started]) == 0) {
    started++;
  }
  for (int n = 0; n < started; n++) {
    pthread_join(threads[n], NULL);
    if (callers[n].status != TSR_OK) {
      wrong = callers[n].err.text;
    } else if (callers[n].differs != NULL) {
      wrong = callers[n].differs;
    } else if (!conf_workspace_intact(&callers[n].w)) {
      wrong = "workspace";
    }
  }
  return started == CALLERS ? wrong : "no threads";
}

static void check_callers(conf_runner *r, conf_target *target, const char *variant, const char *line, uint64_t seed) {
  caller callers[CALLERS];
  tsr_plan *plan = NULL;
  int64_t bytes = 0, align = 0;
  unsigned char *want = NULL;
  const char *wrong = "no memory";
  tsr_error err;
  int ok = 1;
  memset(callers, 0, sizeof(callers));
  memset(&err, 0, sizeof(err));
  for (int n = 0; ok && n < CALLERS; n++) {
    callers[n].p = conf_property_problem(r, target, line, seed);
    ok = callers[n].p != NULL;
  }
  if (ok) {
    tsr_attention_desc desc = conf_desc_on(target, callers[0].p);
    desc.variant = variant;
    ok = tsr_plan_attention(target->device, &desc, &plan, &err) == TSR_OK &&
         tsr_plan_workspace(plan, &bytes, &align, &err) == TSR_OK;
    wrong = ok ? wrong : err.text;
  }
  for (int n = 0; ok && n < CALLERS; n++) {
    callers[n].r = r;
    callers[n].target = target;
    callers[n].plan = plan;
    ok = conf_workspace_make(&callers[n].w, bytes, align, 0xff);
  }
  if (ok) {
    r->deadline = conf_now() + conf_case_seconds(r);
    call(&callers[0]); /* alone first */
    want = outputs_copy(callers[0].p);
    for (int n = 0; n < CALLERS; n++) {
      callers[n].want = want;
    }
    wrong = want == NULL ? "no memory" : call_together(callers);
    r->deadline = 0.0;
  }
  if (wrong != NULL) {
    conf_fail(r, target, variant, line, "one plan run by %d threads at once: %s", CALLERS, wrong);
  } else {
    conf_pass(r, target, 0.0, line);
  }
  for (int n = 0; n < CALLERS; n++) {
    conf_workspace_free(&callers[n].w);
    conf_problem_free(callers[n].p);
  }
  tsr_plan_destroy(plan);
  free(want);
}

/* ---- Backward after the device's own forward ----------------------------------------------------------- */

static const char *const chained_lines[] = {
    "bwd b=2 hq=4 hkv=2 sq=60 sk=90 d=40 dv=24 causal sink dsink",
    "bwd b=2 hq=3 hkv=1 sq=40 sk=70 d=64 dv=64 f16 q_packed kv_packed dropout softcap",
    "bwd b=3 hq=4 hkv=4 sq=33 sk=129 d=32 dv=32 bf16 bias_f32 dbias dlse seqlens_k",
};

/* o and lse of the problem from the device. */
static int forward_on(conf_runner *r, conf_target *target, const conf_problem *p, char *why, size_t bytes) {
  tsr_attention_desc desc;
  tsr_run_args args;
  tsr_plan *plan = NULL;
  conf_workspace w;
  int64_t size = 0, align = 0;
  tsr_error err;
  tsr_status st;
  memset(&w, 0, sizeof(w));
  conf_forward_of(p, &desc, &args);
  desc.memory = conf_desc_on(target, p).memory;
  st = tsr_plan_attention(target->device, &desc, &plan, &err);
  if (st == TSR_OK) {
    st = tsr_plan_workspace(plan, &size, &align, &err);
  }
  if (st == TSR_OK && conf_workspace_make(&w, size, align, 0xa5)) {
    if (size > 0) {
      args.workspace = tsr_buffer_out(w.data);
      args.workspace_bytes = size;
    }
    st = conf_run_attention(r, target, plan, p, &w, &args, &err);
  }
  if (st != TSR_OK) {
    snprintf(why, bytes, "forward: %s", err.text);
  }
  conf_workspace_free(&w);
  tsr_plan_destroy(plan);
  return st == TSR_OK;
}

static void check_chain(conf_runner *r, conf_target *target, const char *variant, const char *line, uint64_t seed) {
  conf_problem *p = problem_of(r, target, line, seed, 1);
  conf_truth truth;
  conf_score score;
  char why[480] = "", ran[48];
  tsr_error err;
  if (p == NULL) {
    return;
  }
  memset(&err, 0, sizeof(err));
  if (!forward_on(r, target, p, why, sizeof(why))) {
    conf_fail(r, target, variant, line, "%s", why);
    conf_problem_free(p);
    return;
  }
  conf_tensor_seal(&p->t[CONF_T_o]);
  conf_tensor_seal(&p->t[CONF_T_lse]);
  if (conf_truth_make(r->contexts[0], p, 1, &truth, &err) != TSR_OK) {
    conf_fail(r, target, variant, line, "the oracle: %s", err.text);
    conf_problem_free(p);
    return;
  }
  if (conf_run_once(r, target, variant, p, ran, why, sizeof(why)) != TSR_OK) {
    conf_fail(r, target, variant, line, "%s", why);
  } else {
    conf_compare(p, &truth, &score);
    if (score.ok) {
      conf_pass(r, target, score.worst, line);
    } else {
      conf_fail(r, target, variant, line, "after the device's own forward: %s", score.text);
    }
  }
  conf_truth_free(&truth);
  conf_problem_free(p);
}

/* ---- All --------------------------------------------------------------------------------------------- */

/* Does this variant take the line's case? */
static int takes(conf_runner *r, conf_target *target, const char *variant, const char *line, uint64_t seed) {
  conf_problem *p = conf_property_problem(r, target, line, seed);
  tsr_attention_desc desc;
  tsr_plan *plan = NULL;
  if (p == NULL) {
    return 0;
  }
  desc = conf_desc_on(target, p);
  desc.variant = variant;
  tsr_plan_attention(target->device, &desc, &plan, NULL);
  tsr_plan_destroy(plan);
  conf_problem_free(p);
  return plan != NULL;
}

typedef void check_fn(conf_runner *r, conf_target *target, const char *variant, const char *line, uint64_t seed);

static void each_variant(conf_runner *r, conf_target *target, const char *name, const char *line, uint64_t seed,
                         check_fn *check) {
  const int32_t op = line[0] == 'b' ? TSR_OP_BACKWARD : TSR_OP_FORWARD;
  const char *variant;
  for (int32_t n = 0; (variant = tsr_device_variant(target->device, op, n)) != NULL; n++) {
    if (conf_wants_variant(r, variant) && !target->lost && takes(r, target, variant, line, seed) &&
        conf_begin(r, name, line)) {
      check(r, target, variant, line, seed);
    }
  }
}

void conf_properties(conf_runner *r, uint64_t seed) {
  for (int t = 0; t < r->num_targets; t++) {
    conf_target *target = &r->targets[t];
    for (size_t n = 0; target->computes && n < sizeof(deterministic_lines) / sizeof(deterministic_lines[0]); n++) {
      each_variant(r, target, "property: any thread count", deterministic_lines[n], seed, check_threads);
      each_variant(r, target, "property: many callers", deterministic_lines[n], seed, check_callers);
    }
    for (size_t n = 0; target->computes && n < sizeof(chained_lines) / sizeof(chained_lines[0]); n++) {
      each_variant(r, target, "property: after its own forward", chained_lines[n], seed, check_chain);
    }
  }
  conf_invariance(r, seed);
}
