/* SPDX-License-Identifier: Apache-2.0 */
/* From options and files to descriptions and run arguments.
 *
 * Tensors come from files; q, k, v (and dout) that no file gives are random. Sizes, element types and flags are
 * only brought into the library's form here: whether they fit together is the library's to say. */
#ifndef TESSERA_TOOL_PROBLEM_H
#define TESSERA_TOOL_PROBLEM_H

#include "options.h"
#include "tensor_io.h"

/* Sizes of a random problem. 0: the option's value, or its default. */
typedef struct problem_sizes {
  int64_t seqlen_q, seqlen_k, head_dim, v_head_dim;
  tsr_dtype dtype;
  int32_t causal; /* -1: as the option says, 0, 1 */
} problem_sizes;

typedef struct tool_problem {
  tsr_attention_desc forward;
  tsr_run_args forward_args;
  int32_t has_backward; /* --backward: the two below are filled */
  tsr_attention_desc backward;
  tsr_run_args backward_args;

  tool_tensor inputs[INPUT_COUNT]; /* dtype NONE: absent */
  tool_tensor aux[TSR_EXPR_MAX_AUX];
  tool_tensor outputs[OUTPUT_COUNT]; /* in the axis order of the files */
  tool_tensor expected;              /* tensor `o` of the input file, where it has one */
  const char *scalar_names[TSR_EXPR_MAX_SCALARS];
  char *scalar_text; /* storage of the names */
  char *ignored;     /* tensors of the input file that were not used, separated by blanks; NULL: none */

  uint64_t random_seed;
  int32_t random; /* q, k, v are random */
  int32_t bhsd, paged;
  int64_t num_sequences, max_seqlen_q, max_seqlen_k;
  int64_t heads, kv_heads, head_dim, v_head_dim;
} tool_problem;

enum {
  PROBLEM_NO_DATA = 1, /* random tensors and outputs get layouts but no memory */
  PROBLEM_UNSET = 2    /* they get memory that is not set, for calls that want addresses only */
};

/* sizes NULL: from the options. On failure the problem is empty. problem_free accepts both. */
tsr_status problem_build(tool_problem *problem, const tool_options *options, const problem_sizes *sizes, int32_t flags,
                         tsr_error *err);
void problem_free(tool_problem *problem);

/* Logical layout [b,s,h,d], ... of a tensor in a file (layout.c). TSR_INVALID: its rank does not fit. */
tsr_status layout_of_tensor(const tool_tensor *tensor, int32_t axes, int32_t bhsd, const char *name, tsr_layout *layout,
                            tsr_error *err);
/* Shape in a file's axis order of a tensor shaped like q but with other extents. */
void layout_like(const tool_tensor *q, int64_t last, int32_t *rank, int64_t *shape);

/* The two places of an input or output. */
tsr_layout *problem_input_layout(tsr_attention_desc *desc, int32_t input);
tsr_buffer *problem_input_buffer(tsr_run_args *args, int32_t input);
tsr_layout *problem_output_layout(tsr_attention_desc *desc, int32_t output);
tsr_buffer *problem_output_buffer(tsr_run_args *args, int32_t output);
const char *problem_output_name(int32_t output);
const char *problem_input_name(int32_t input);

/* Random numbers of about the normal distribution, mean 0 and variance 1, into a tensor (by encoding). */
void random_fill(tool_tensor *tensor, double factor, uint64_t seed);
uint64_t random_next(uint64_t *state);

#endif
