/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing outputs: with the oracle under the tolerance rule (tests/conformance/engine/rule.h), or with someone else's
 * tensor. Vectors of one number a head (max_s, dsink) are judged as a whole. */
#ifndef TESSERA_TOOL_VERIFY_H
#define TESSERA_TOOL_VERIFY_H

#include "engine.h"
#include "problem.h"

typedef struct verify_result {
  char name[16];
  int32_t passed;
  int64_t elements;        /* compared */
  int64_t wrong_nonfinite; /* elements where only one side is finite */
  /* of the group that comes closest to its limit, or passes it by most */
  int64_t sequence, head;
  double max_error, max_allowed;
  double rms_error, rms_allowed; /* LSE, max_s and tensors compared by --expect: 0 allowed means not judged */
  double plain_max_error;
} verify_result;

enum { VERIFY_MAX_RESULTS = OUTPUT_COUNT + 1 };
typedef struct verify_report {
  int32_t count;
  int32_t passed; /* all of them */
  int64_t rows;   /* query rows of each sequence that were checked; 0: all */
  double seconds;
  verify_result results[VERIFY_MAX_RESULTS];
} verify_report;

/* Checks every output of the problem (of backward: the gradients) against the oracle. rows > 0: that many random
 * query rows only (forward). threads: how many oracles run side by side. */
tsr_status verify_problem(tool_engine *engine, const tool_problem *problem, int64_t rows, int32_t threads,
                          verify_report *report, tsr_error *err);

/* Compares o with another tensor of the same shape in the file's order. tolerance 0: 8 u max|expected| of each
 * (sequence, head), u the coarser unit roundoff of q and o. Appends one result. */
tsr_status verify_expected(const tool_problem *problem, const tool_tensor *expected, double tolerance,
                           verify_report *report, tsr_error *err);

/* Lines for people, and an array "checks" for --json. */
void verify_print(const tool_options *options, const verify_report *report);
void verify_json(json_writer *w, const verify_report *report);

/* How many oracles fit beside each other: online processors. */
int32_t verify_threads(const tool_options *options);

#endif
