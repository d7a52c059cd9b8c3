/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the tensors of a problem: where they are, which element type they become. Used by problem.c alone. */
#ifndef TESSERA_TOOL_PROBLEM_INPUTS_H
#define TESSERA_TOOL_PROBLEM_INPUTS_H

#include "problem.h"

/* Element types that the options ask for; NONE: as in the file. */
typedef struct input_types {
  tsr_dtype main, kv;
} input_types;

/* Loads every tensor that options or the input file give into p->inputs, p->aux and p->expected, brings them to
 * their element types, and takes causal and scale from the metadata where asked to (*causal -1 and *scale 0: not
 * there). dout keeps its file's type. */
tsr_status inputs_load(tool_problem *p, const tool_options *options, const input_types *types, int32_t *causal,
                       double *scale, tsr_error *err);
int32_t input_axes(int32_t input);

#endif
