/* SPDX-License-Identifier: Apache-2.0 */
/* One case on every target and variant. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

enum { MAX_VARIANTS = 64 };

static void tamper(conf_runner *r, int when, const conf_problem *p, tsr_run_args *args) {
  if (r->options->tamper != NULL) {
    r->options->tamper(r->options->user, when, &p->desc, args);
  }
}

static tsr_status run_plan(conf_runner *r, conf_target *target, const tsr_plan *plan, conf_problem *p, char *why,
                           size_t why_bytes) {
  tsr_run_args args = p->args;
  tsr_run_stats stats = tsr_run_stats_init();
  int64_t bytes = 0, align = 0;
  conf_workspace w;
  tsr_error err;
  tsr_status st = tsr_plan_workspace(plan, &bytes, &align, &err);
  if (st != TSR_OK || !conf_workspace_make(&w, bytes, align, (p->c.seed & 1) != 0 ? 0xff : 0xa5)) {
    snprintf(why, why_bytes, "no workspace of %lld bytes: %s", (long long)bytes, st != TSR_OK ? err.text : "no memory");
    return st != TSR_OK ? st : TSR_OUT_OF_MEMORY;
  }
  if (bytes > 0) {
    args.workspace = tsr_buffer_out(w.data);
    args.workspace_bytes = bytes;
  }
  args.stats = (p->c.seed & 2) != 0 ? &stats : NULL;
  conf_problem_poison(p);
  tamper(r, TSR_CONFORMANCE_BEFORE_RUN, p, &args);
  r->deadline = conf_now() + conf_case_seconds(r);
  st = conf_run_attention(r, target, plan, p, &w, &args, &err);
  r->deadline = 0.0;
  tamper(r, TSR_CONFORMANCE_AFTER_RUN, p, &args);
  if (st != TSR_OK) {
    snprintf(why, why_bytes, "the run ended with %s: %s%s", tsr_status_name(st), err.text,
             st == TSR_CANCELLED ? " (time limit)" : "");
  } else if (!conf_workspace_intact(&w)) {
    snprintf(why, why_bytes, "bytes outside the %lld of the workspace were written", (long long)bytes);
    st = TSR_DEVICE_ERROR;
  }
  conf_workspace_free(&w);
  return st;
}

tsr_status conf_run_once(conf_runner *r, conf_target *target, const char *variant, conf_problem *p, char ran[48],
                         char *why, size_t why_bytes) {
  tsr_attention_desc desc = conf_desc_on(target, p);
  tsr_plan_info info;
  tsr_plan *plan = NULL;
  tsr_error err;
  tsr_status st;
  desc.variant = variant[0] != '\0' ? variant : NULL;
  st = tsr_plan_attention(target->device, &desc, &plan, &err);
  if (st != TSR_OK) {
    snprintf(why, why_bytes, "%s", err.text);
    return st;
  }
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  st = tsr_plan_get(plan, &info, &err);
  if (st == TSR_OK) {
    snprintf(ran, 48, "%s", info.variant);
    st = run_plan(r, target, plan, p, why, why_bytes);
  } else {
    snprintf(why, why_bytes, "the plan cannot be asked: %s", err.text);
  }
  tsr_plan_destroy(plan);
  return st;
}

/* A variant that says no must say the same from verdicts and from a plan that forces it. */
static int same_refusal(conf_runner *r, conf_target *target, conf_problem *p, const tsr_verdict *v, const char *line) {
  tsr_attention_desc desc = conf_desc_on(target, p);
  tsr_plan *plan = NULL;
  tsr_error err;
  tsr_status st;
  desc.variant = v->variant;
  st = tsr_plan_attention(target->device, &desc, &plan, &err);
  tsr_plan_destroy(plan);
  if (st != TSR_UNSUPPORTED || v->reason[0] == '\0' || strstr(err.text, v->reason) == NULL) {
    conf_fail(r, target, v->variant, line, "refused for \"%s\", but a plan that forces it answers %s: %s", v->reason,
              tsr_status_name(st), st == TSR_OK ? "a plan" : err.text);
    return 0;
  }
  return 1;
}

static void run_variant(conf_runner *r, conf_target *target, conf_problem *p, const conf_truth *truth,
                        const tsr_verdict *v, const char *line) {
  char ran[48], why[480];
  conf_score score;
  if (!v->accepted) {
    if (same_refusal(r, target, p, v, line)) {
      r->result->refused++;
      target->stats->refused++;
    }
    return;
  }
  if (conf_run_once(r, target, v->variant, p, ran, why, sizeof(why)) != TSR_OK) {
    conf_fail(r, target, v->variant, line, "%s", why);
    return;
  }
  if (strcmp(ran, v->variant) != 0) {
    conf_fail(r, target, v->variant, line, "this variant was forced, the plan has %s", ran);
    return;
  }
  conf_compare(p, truth, &score);
  if (score.ok) {
    conf_pass(r, target, score.worst, line);
  } else {
    conf_fail(r, target, v->variant, line, "%s", score.text);
  }
}

/* Are all items of the case taken by themselves? Then together, too. */
static int is_promised(const conf_target *target, const conf_case *c) {
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    if (conf_case_has(c, n) && !conf_has(&target->promised[c->op], n)) {
      return 0;
    }
  }
  return 1;
}

static void run_target(conf_runner *r, conf_target *target, conf_problem *p, const conf_truth *truth,
                       const char *line) {
  tsr_verdict verdicts[MAX_VARIANTS];
  int32_t count = MAX_VARIANTS, accepted = 0;
  tsr_error err;
  const tsr_attention_desc desc = conf_desc_on(target, p);
  const tsr_status st = tsr_attention_verdicts(target->device, &desc, verdicts, &count, &err);
  if (st != TSR_OK) {
    conf_fail(r, target, "", line, "the description is refused: %s", err.text);
    return;
  }
  count = count < MAX_VARIANTS ? count : MAX_VARIANTS;
  for (int32_t n = 0; n < count; n++) {
    accepted += verdicts[n].accepted;
    if (conf_wants_variant(r, verdicts[n].variant) && !target->lost) {
      run_variant(r, target, p, truth, &verdicts[n], line);
    }
  }
  if (accepted == 0 && is_promised(target, &p->c)) {
    conf_fail(r, target, "", line,
              "no variant takes the case, although each of its features is supported by itself: %s",
              count > 0 ? verdicts[count - 1].reason : "there are no variants");
  }
}

static void report_progress(conf_runner *r, const char *line) {
  tsr_conformance_progress progress;
  if (r->options->progress == NULL) {
    return;
  }
  progress.done = r->result->cases + r->result->skipped;
  progress.done = progress.done < r->total ? progress.done : r->total;
  progress.total = r->total;
  progress.passed = r->result->passed;
  progress.failed = r->result->failed;
  progress.refused = r->result->refused;
  progress.case_line = line;
  r->options->progress(r->options->user, &progress);
}

int conf_next_is_mine(const conf_runner *r) {
  return r->options->parts <= 1 || r->chosen % r->options->parts == r->options->part;
}

int conf_begin(conf_runner *r, const char *name, const char *line) {
  const char *filter = r->options->filter;
  if (filter != NULL && strstr(line, filter) == NULL && strstr(name, filter) == NULL) {
    return 0;
  }
  const int mine = conf_next_is_mine(r);
  r->chosen++;
  if (!mine) {
    return 0;
  }
  report_progress(r, line);
  if (conf_over(r)) {
    r->result->skipped++;
    return 0;
  }
  if (r->options->verbose) {
    conf_say(r, "%s: %s", name, line);
  }
  r->result->cases++;
  return 1;
}

static void run_built(conf_runner *r, conf_problem *p, const char *line) {
  conf_truth truth;
  tsr_error err;
  tsr_status st;
  memset(&err, 0, sizeof(err));
  r->deadline = conf_now() + 4 * conf_case_seconds(r);
  st = conf_truth_make(r->contexts[0], p, 0, &truth, &err);
  r->deadline = 0.0;
  if (st != TSR_OK) {
    conf_fail(r, NULL, "", line, "%s: %s", tsr_status_name(st), err.text);
    return;
  }
  for (int n = 0; n < r->num_targets; n++) {
    if (r->targets[n].computes && !r->targets[n].lost) {
      run_target(r, &r->targets[n], p, &truth, line);
    }
  }
  conf_truth_free(&truth);
}

void conf_run_begun(conf_runner *r, const conf_case *c, const char *line) {
  conf_problem *p = conf_problem_build(c);
  if (p == NULL) {
    conf_fail(r, NULL, "", line, "no memory for the tensors");
    return;
  }
  run_built(r, p, line);
  conf_problem_free(p);
}

void conf_run_case(conf_runner *r, const conf_case *c) {
  char line[640];
  conf_case_print(c, line, sizeof(line));
  if (conf_begin(r, c->name, line)) {
    conf_run_begun(r, c, line);
  }
}
