/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs a mask allows, found with the oracle alone: with all scores equal, the LSE of a row is the logarithm
 * of the number of its visible keys, and with values that say which column of cells a key lies in, its output is
 * their distribution. */
#ifndef TESSERA_TOOL_MASK_PAIRS_H
#define TESSERA_TOOL_MASK_PAIRS_H

#include "engine.h"
#include "problem.h"

enum { MASK_MAX_CELLS = 256 };

typedef struct mask_pairs {
  int32_t known;       /* 0: too large to look into; the rest is 0 */
  int32_t exact;       /* all rows were counted; else those sampled for the cells */
  double visible, all; /* pairs of one (sequence, head) */
  int32_t rows, cols;  /* of cells; one row and several keys each */
  float *density;      /* [rows][cols]: share of the cell's keys that are visible; owned */
} mask_pairs;

/* Looks into sequence b and query head h. seqlen_q and seqlen_k are the sequence's used lengths. */
tsr_status mask_pairs_find(tool_engine *engine, const tool_problem *problem, int64_t b, int64_t h, int64_t seqlen_q,
                           int64_t seqlen_k, mask_pairs *pairs, tsr_error *err);
/* Keys of sequence b of a problem whose pages come as CSR. */
int64_t mask_csr_length(const tool_problem *problem, int64_t b);
void mask_pairs_free(mask_pairs *pairs);

#endif
