/* SPDX-License-Identifier: Apache-2.0 */
/* What a case has to give: the oracle's float64 results and those of its plain mode; and the comparison with a run, by
 * the project's one tolerance rule. */
#ifndef TSR_TESTS_CONFORMANCE_TRUTH_H
#define TSR_TESTS_CONFORMANCE_TRUTH_H

#include "case.h"
#include "rule.h"

/* Results contiguous in the order of the layouts' shapes; NULL: the case has no such output. */
typedef struct conf_results {
  double *o, *lse, *max_s, *dq, *dk, *dv, *dbias, *dsink;
  uint8_t *dropout_mask;
} conf_results;

typedef struct conf_truth {
  conf_results exact, plain;
  uint8_t *row_seen; /* backward: [batch][q_heads][seqlen_q], row sees a key */
  uint8_t *key_seen; /* backward: [batch][kv_heads][seqlen_k], key is seen by a row */
} conf_truth;

/* Evaluates the case. Backward: fills o and lse of the problem with the oracle's forward results, rounded to their
 * types, unless keep_forward, and takes them from there. context: for its should_stop. On failure nothing is left to
 * free. */
tsr_status conf_truth_make(tsr_context *context, conf_problem *p, int keep_forward, conf_truth *truth, tsr_error *err);
void conf_truth_free(conf_truth *truth);

/* The exact results alone, with o and lse of backward as they are in the problem. dbias: where that gradient goes, for
 * whoever changed its layout in the description; NULL: to results. */
tsr_status conf_results_make(tsr_context *context, conf_problem *p, double *dbias, conf_results *results);
void conf_results_free(conf_results *results);
/* condition.c: how much of what the tolerance rule allows for a case rounding takes up, or some value above `enough`
 * if it is more than that; 0 where 16-bit operands leave nothing to fear. */
double conf_case_rounding(const conf_case *c, double enough);

/* The forward problem of a backward one: same inputs, o and lse as outputs. */
void conf_forward_of(const conf_problem *p, tsr_attention_desc *desc, tsr_run_args *args);

typedef struct conf_score {
  int ok;
  double worst;   /* largest error over what is allowed, over all groups; above 1: not ok */
  char text[400]; /* the first thing that is wrong */
} conf_score;

/* The values of one tensor and one (b, h), being compared. */
typedef struct conf_group {
  conf_score *score;
  const conf_tensor *t;
  const char *where; /* "b=1 h=2" */
  conf_rule rule;
  int64_t elements, at_row, at_col; /* at: of the rule's largest error */
} conf_group;

/* factor: 2, gradients 3. is_lse: the rule for LSE. where: which (b, h), for the text; must outlive the group. */
void conf_group_begin(conf_group *g, conf_score *score, const conf_tensor *t, double factor, int is_lse,
                      const char *where);
/* One value; row and col are for the text. */
void conf_group_add(conf_group *g, int64_t row, int64_t col, double got, double ref, double plain);
void conf_group_end(conf_group *g);
/* A value that no tolerance allows. */
void conf_group_wrong(conf_group *g, int64_t row, int64_t col, double got, double want, const char *why);
void conf_score_fail(conf_score *score, double ratio, const char *text);

/* Compares the outputs of the problem with the truth: ALL values, of each (b, h) by itself; then what must not be
 * written. */
void conf_compare(const conf_problem *p, const conf_truth *truth, conf_score *score);

#endif
