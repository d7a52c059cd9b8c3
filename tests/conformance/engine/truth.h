/* SPDX-License-Identifier: Apache-2.0 */
/* What a case has to give: the oracle's float64 results and those of its plain mode; and the comparison with a run, by the
 * project's one tolerance rule. */
#ifndef TSR_TESTS_CONFORMANCE_TRUTH_H
#define TSR_TESTS_CONFORMANCE_TRUTH_H

#include "case.h"

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

/* Evaluates the case. Backward: fills o and lse of the problem with the oracle's forward results, rounded to their types, unless
 * keep_forward, and takes them from there. context: for its should_stop. On failure nothing is left to free. */
tsr_status conf_truth_make(tsr_context *context, conf_problem *p, int keep_forward, conf_truth *truth, tsr_error *err);
void conf_truth_free(conf_truth *truth);

/* The forward problem of a backward one: same inputs, o and lse as outputs. */
void conf_forward_of(const conf_problem *p, tsr_attention_desc *desc, tsr_run_args *args);

typedef struct conf_score {
  int ok;
  double worst;   /* largest error over what is allowed, over all groups; above 1: not ok */
  char text[400]; /* the first thing that is wrong */
} conf_score;

/* Compares the outputs of the problem with the truth: ALL values, of each (b, h) by itself; then what must not be
 * written. */
void conf_compare(const conf_problem *p, const conf_truth *truth, conf_score *score);

#endif
