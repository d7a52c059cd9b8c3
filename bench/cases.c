/* SPDX-License-Identifier: Apache-2.0 */
/* Times cases of the conformance suite: the same lines, the same tensors, every device, level and variant.
 * Usage: bench_cases [--device D] [--isa L] [--variant V] [--threads N] [--seconds S] [LINE ...]
 * e.g.   bench_cases "fwd b=1 hq=8 hkv=2 sq=2048 sk=2048 d=64 dv=64 causal f16"; without a line: a few of all kinds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/conformance/engine/runner.h"

static const char *const default_lines[] = {
    "fwd b=1 hq=4 hkv=4 sq=1024 sk=1024 d=64 dv=64",
    "fwd b=1 hq=4 hkv=4 sq=1024 sk=1024 d=64 dv=64 causal",
    "fwd b=1 hq=4 hkv=2 sq=1024 sk=1024 d=128 dv=128 causal bf16",
    "fwd b=4 hq=8 hkv=2 sq=1 sk=4096 d=128 dv=128 f16 kv_table seqlens_k page=16",
    "fwd b=1 hq=8 hkv=2 sq=1 sk=8192 d=128 dv=128 kv_i8 scale_token",
    "fwd b=1 hq=16 hkv=1 sq=1 sk=2048 d=576 dv=512 bf16 v_in_k",
    "bwd b=1 hq=2 hkv=2 sq=512 sk=512 d=64 dv=64 causal",
};
enum { MAX_REPEATS = 1000, MIN_REPEATS = 5, MAX_LINES = 64 };

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Median seconds of a run; < 0: it failed, why is printed. */
static double median_seconds(const tsr_plan *plan, const conf_problem *p, double seconds) {
  static double times[MAX_REPEATS];
  tsr_run_args args = p->args;
  conf_workspace w;
  int64_t bytes = 0, align = 0;
  tsr_error err;
  int count = 0;
  double spent = 0.0;
  if (tsr_plan_workspace(plan, &bytes, &align, &err) != TSR_OK || !conf_workspace_make(&w, bytes, align, 0)) {
    return -1.0;
  }
  args.workspace = bytes > 0 ? tsr_buffer_out(w.data) : args.workspace;
  args.workspace_bytes = bytes;
  for (int n = -1; count < MAX_REPEATS && (n < MIN_REPEATS || spent < seconds); n++) { /* the first warms up */
    const double begin = conf_now();
    if (tsr_run_attention(plan, &args, &err) != TSR_OK) {
      printf("    %s\n", err.text);
      conf_workspace_free(&w);
      return -1.0;
    }
    if (n >= 0) {
      times[count++] = conf_now() - begin;
      spent += times[count - 1];
    }
  }
  conf_workspace_free(&w);
  qsort(times, (size_t)count, sizeof(times[0]), by_value);
  return times[count / 2];
}

static int time_variant(conf_target *target, const char *variant, const conf_problem *p, double seconds) {
  tsr_attention_desc desc = p->desc;
  tsr_plan *plan = NULL;
  tsr_plan_info info;
  tsr_error err;
  double median = -1.0;
  desc.variant = variant;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  if (tsr_plan_attention(target->device, &desc, &plan, &err) == TSR_OK && tsr_plan_get(plan, &info, &err) == TSR_OK) {
    median = median_seconds(plan, p, seconds);
  }
  if (median >= 0) {
    printf("  %-16s %-12s %10.1f us %9.1f GFLOP/s  %lld bytes of workspace\n", target->label, info.variant,
           1e6 * median, 1e-9 * info.flops / median, (long long)info.workspace_bytes);
  } else if (plan == NULL) {
    printf("  %-16s %-12s no: %s\n", target->label, variant, err.text);
  }
  tsr_plan_destroy(plan);
  return median >= 0;
}

static int time_line(conf_runner *r, const char *line, double seconds) {
  conf_case c;
  conf_problem *p;
  char why[200];
  int timed = 0;
  if (conf_case_parse(line, &c, why, sizeof(why)) != 0) {
    fprintf(stderr, "bench_cases: %s\n", why);
    return 0;
  }
  p = conf_problem_build(&c);
  printf("%s\n", line);
  for (int t = 0; p != NULL && t < r->num_targets; t++) {
    const int32_t op = c.op == TSR_BACKWARD ? TSR_OP_BACKWARD : TSR_OP_FORWARD;
    const char *v;
    for (int32_t n = 0; r->targets[t].computes && (v = tsr_device_variant(r->targets[t].device, op, n)) != NULL; n++) {
      timed += conf_wants_variant(r, v) && time_variant(&r->targets[t], v, p, seconds);
    }
  }
  conf_problem_free(p);
  return timed > 0;
}

typedef struct request {
  tsr_conformance_options options;
  const char *lines[MAX_LINES];
  int count;
  double seconds;
} request;

/* 0: a word is not understood. */
static int parse(int argc, char **argv, request *q) {
  for (int n = 1; n < argc; n++) {
    const char *key = argv[n], *value = n + 1 < argc ? argv[n + 1] : "";
    if (strncmp(key, "--", 2) != 0) {
      q->lines[q->count] = key;
      q->count += q->count < MAX_LINES - 1;
      continue;
    }
    n++;
    if (strcmp(key, "--device") == 0) {
      q->options.device = value;
    } else if (strcmp(key, "--isa") == 0) {
      q->options.cpu_isa = value;
    } else if (strcmp(key, "--variant") == 0) {
      q->options.variant = value;
    } else if (strcmp(key, "--threads") == 0) {
      q->options.num_threads = (int32_t)strtol(value, NULL, 10);
    } else if (strcmp(key, "--seconds") == 0) {
      q->seconds = strtod(value, NULL);
    } else {
      fprintf(stderr, "bench_cases: \"%s\" is not understood\n", key);
      return 0;
    }
  }
  if (q->count == 0) {
    q->count = (int)(sizeof(default_lines) / sizeof(default_lines[0]));
    memcpy(q->lines, default_lines, sizeof(default_lines));
  }
  return 1;
}

int main(int argc, char **argv) {
  static tsr_conformance_result result;
  static conf_runner r;
  static request q;
  int failed = 0;
  q.seconds = 0.3;
  if (!parse(argc, argv, &q)) {
    return 2;
  }
  r.options = &q.options;
  r.result = &result;
  conf_rules_init(&r.rules);
  if (conf_targets_open(&r) != 0) {
    fprintf(stderr, "bench_cases: %s\n", result.failures[0].what);
    return 2;
  }
  for (int n = 0; n < q.count; n++) {
    failed += !time_line(&r, q.lines[n], q.seconds);
  }
  conf_targets_close(&r);
  return failed != 0;
}
