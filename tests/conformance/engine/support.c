/* SPDX-License-Identifier: Apache-2.0 */
/* The support table: each feature with a probe, a case whose description every device is asked about. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feature_list.h"
#include "runner.h"

enum { TABLE_REASON = 200 };

/* ---- Probes ---------------------------------------------------------------------------------------- */

static int probe_case(int op, const char *words, int length, conf_case *c) {
  char line[300], why[128];
  snprintf(line, sizeof(line), "%s b=2 hq=4 hkv=2 sq=20 sk=40 d=32 dv=32 page=4 seed=3 %.*s",
           op == TSR_BACKWARD ? "bwd" : "fwd", length, words);
  return conf_case_parse(line, c, why, sizeof(why)) == 0;
}

/* Does some variant take it? 1, 0 with the reason, -1 with what went wrong. */
static int ask(const conf_target *target, const conf_problem *p, char *reason, size_t bytes) {
  tsr_verdict verdicts[64];
  int32_t count = 64;
  tsr_error err;
  const tsr_attention_desc desc = conf_desc_on(target, p);
  const tsr_status st = tsr_attention_verdicts(target->device, &desc, verdicts, &count, &err);
  reason[0] = '\0';
  if (st == TSR_UNSUPPORTED) { /* of no variant, whatever the device */
    snprintf(reason, bytes, "%s", err.text);
    return 0;
  }
  if (st != TSR_OK) {
    snprintf(reason, bytes, "%s: %s", tsr_status_name(st), err.text);
    return -1;
  }
  for (int32_t n = 0; n < count && n < 64; n++) {
    if (verdicts[n].accepted) {
      return 1;
    }
    snprintf(reason, bytes, "%s", verdicts[n].reason);
  }
  return 0;
}

void conf_support_probe(conf_runner *r, conf_target *target) {
  for (int op = 0; op < 2; op++) {
    for (int n = 0; n < CONF_ITEM_COUNT; n++) {
      const conf_set all = conf_set_of_flags(0, 0);
      conf_case c;
      conf_problem *p;
      char reason[512];
      if (!probe_case(op, "", 0, &c)) {
        continue;
      }
      memset(&c.items, 0, sizeof(c.items));
      conf_add(&c.items, n);
      if (!conf_set_close(&r->rules, &all, 0, &c.items)) {
        continue;
      }
      c.kv_heads = conf_has(&c.items, CONF_v_in_k) ? 1 : c.kv_heads;
      p = conf_problem_build(&c);
      if (p != NULL && ask(target, p, reason, sizeof(reason)) == 1) {
        conf_add(&target->promised[op], n);
      }
      conf_problem_free(p);
    }
  }
}

/* ---- Table ----------------------------------------------------------------------------------------- */

typedef struct writer {
  char *text;
  size_t bytes, at;
} writer;

static void put(writer *w, const char *text) {
  const size_t n = strlen(text);
  if (w->at + n < w->bytes) {
    memcpy(w->text + w->at, text, n + 1);
  }
  w->at += n;
}

static void put_cell(const conf_target *target, int op, const char *probes, writer *w) {
  char reason[512] = "";
  int yes = 1;
  if (probes == NULL) {
    put(w, " |");
    return;
  }
  while (yes == 1 && *probes != '\0') {
    const int length = (int)strcspn(probes, "|");
    conf_case c;
    conf_problem *p = probe_case(op, probes, length, &c) ? conf_problem_build(&c) : NULL;
    yes = p == NULL ? -1 : ask(target, p, reason, sizeof(reason));
    conf_problem_free(p);
    probes += length + (probes[length] == '|');
  }
  reason[TABLE_REASON] = '\0';
  put(w, yes == 1 ? " yes |" : yes == 0 ? " no: " : " invalid: ");
  if (yes != 1) {
    put(w, reason);
    put(w, " |");
  }
}

/* The first target of each back end speaks for it. */
static int speaks(const conf_runner *r, int n) {
  for (int m = 0; m < n; m++) {
    if (strcmp(r->targets[m].backend, r->targets[n].backend) == 0) {
      return 0;
    }
  }
  return r->targets[n].computes;
}

/* Operations beside attention: one column a back end. */
static void put_cache_table(const conf_runner *r, writer *w) {
  put(w, "\n| operation |");
  for (int n = 0; n < r->num_targets; n++) {
    if (speaks(r, n)) {
      put(w, " ");
      put(w, r->targets[n].backend);
      put(w, " |");
    }
  }
  put(w, "\n|---|");
  for (int n = 0; n < r->num_targets; n++) {
    put(w, speaks(r, n) ? "---|" : "");
  }
  put(w, "\n");
  for (int i = 0; i < conf_num_cache_features; i++) {
    put(w, "| ");
    put(w, conf_cache_features[i].label);
    put(w, " |");
    for (int n = 0; n < r->num_targets; n++) {
      char reason[512];
      if (speaks(r, n)) {
        const int yes = conf_cache_probe(&r->targets[n], conf_cache_features[i].kind, 1, reason, sizeof(reason));
        put(w, yes ? " yes" : " no: ");
        put(w, yes ? "" : reason);
        put(w, " |");
      }
    }
    put(w, "\n");
  }
}

static void put_table(const conf_runner *r, writer *w) {
  put(w, "| feature |");
  for (int n = 0; n < r->num_targets; n++) {
    if (speaks(r, n)) {
      put(w, " ");
      put(w, r->targets[n].backend);
      put(w, " forward | ");
      put(w, r->targets[n].backend);
      put(w, " backward |");
    }
  }
  put(w, "\n|---|");
  for (int n = 0; n < r->num_targets; n++) {
    put(w, speaks(r, n) ? "---|---|" : "");
  }
  put(w, "\n");
  for (int i = 0; i < conf_num_features; i++) {
    put(w, "| ");
    put(w, conf_features[i].label);
    put(w, " |");
    for (int n = 0; n < r->num_targets; n++) {
      if (speaks(r, n)) {
        put_cell(&r->targets[n], TSR_FORWARD, conf_features[i].forward, w);
        put_cell(&r->targets[n], TSR_BACKWARD, conf_features[i].backward, w);
      }
    }
    put(w, "\n");
  }
  put_cache_table(r, w);
  put(w, "\nEvidence: a \"yes\" runs on the machine that made this table and agrees with the float64 oracle within the "
         "tolerance rule, at every CPU level it has; each \"no\" is the answer that a plan gives, with that reason.");
  for (int n = 0; n < r->num_targets; n++) {
    if (!r->targets[n].computes) {
      put(w, " `");
      put(w, r->targets[n].backend);
      put(w, "` records launches and computes nothing.");
    }
  }
  put(w, "\n");
}

int tsr_conformance_support_table(char *text, size_t bytes) {
  conf_runner *r = calloc(1, sizeof(*r));
  tsr_conformance_result *result = calloc(1, sizeof(*result));
  const tsr_conformance_options options = {0};
  writer w = {text, bytes, 0};
  int length = -1;
  if (r != NULL && result != NULL) {
    r->options = &options;
    r->result = result;
    conf_rules_init(&r->rules);
    if (conf_targets_open(r) == 0) {
      put_table(r, &w);
      length = (int)w.at;
    } else {
      snprintf(text, bytes, "%s", result->failures[0].what);
    }
    conf_targets_close(r);
  }
  free(r);
  free(result);
  return length;
}

/* ---- Check ----------------------------------------------------------------------------------------- */

/* A "no" is what a plan answers, with the reason of the table. */
static void check_no(conf_runner *r, conf_target *target, const conf_case *c) {
  char line[640], reason[512];
  conf_problem *p = conf_problem_build(c);
  tsr_plan *plan = NULL;
  tsr_error err;
  conf_case_print(c, line, sizeof(line));
  if (p == NULL) {
    conf_fail(r, target, "", line, "no memory");
    return;
  }
  const int answer = ask(target, p, reason, sizeof(reason));
  if (answer == -1) {
    conf_fail(r, target, "", line, "the probe of a feature is no valid description: %s", reason);
  } else if (answer == 0) {
    const tsr_attention_desc desc = conf_desc_on(target, p);
    const tsr_status st = tsr_plan_attention(target->device, &desc, &plan, &err);
    if (st != TSR_UNSUPPORTED || reason[0] == '\0' || strstr(err.text, reason) == NULL) {
      conf_fail(r, target, "", line, "the table says no (%s), a plan answers %s: %s", reason, tsr_status_name(st),
                st == TSR_OK ? "" : err.text);
    } else {
      conf_pass(r, target, 0.0, line);
    }
    tsr_plan_destroy(plan);
  }
  conf_problem_free(p);
}

void conf_support_check(conf_runner *r, const conf_case *c) {
  char line[640], reason[512];
  int yes = 0;
  conf_case_print(c, line, sizeof(line));
  if (!conf_begin(r, c->name, line)) {
    return;
  }
  for (int n = 0; n < r->num_targets; n++) {
    conf_problem *p = r->targets[n].computes && !r->targets[n].lost ? conf_problem_build(c) : NULL;
    if (p != NULL && ask(&r->targets[n], p, reason, sizeof(reason)) == 1) {
      yes = 1;
    } else if (p != NULL) {
      check_no(r, &r->targets[n], c);
    }
    conf_problem_free(p);
  }
  if (yes) {
    conf_run_begun(r, c, line); /* forces and runs each variant that takes it */
  }
}

const char *conf_support_cases(conf_each *each, void *user) {
  for (int i = 0; i < conf_num_features; i++) {
    for (int op = 0; op < 2; op++) {
      const char *probes = op == TSR_BACKWARD ? conf_features[i].backward : conf_features[i].forward;
      while (probes != NULL && *probes != '\0') {
        const int length = (int)strcspn(probes, "|");
        conf_case c;
        if (!probe_case(op, probes, length, &c)) {
          return probes;
        }
        snprintf(c.name, sizeof(c.name), "support %.50s", conf_features[i].label);
        c.undrawn = CONF_UNDRAWN_SEED;
        each(user, &c);
        probes += length + (probes[length] == '|');
      }
    }
  }
  return NULL;
}
