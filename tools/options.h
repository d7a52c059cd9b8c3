/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: one table of options for all subcommands, each taking the groups it names.
 *
 * Values are checked for their form here (a number is a number, in its range); what they mean together is
 * decided by problem.c and, above all, by the library. */
#ifndef TESSERA_TOOL_OPTIONS_H
#define TESSERA_TOOL_OPTIONS_H

#include "fields.h"
#include "term.h"
#include "tool.h"

enum {
  OPTION_GROUP_GENERAL = 1,
  OPTION_GROUP_DEVICE = 2,
  OPTION_GROUP_SHAPE = 4,     /* sizes when no file gives them */
  OPTION_GROUP_ATTENTION = 8, /* what is computed */
  OPTION_GROUP_INPUT = 16,
  OPTION_GROUP_OUTPUT = 32,
  OPTION_GROUP_CHECK = 64,
  OPTION_GROUP_BENCH = 128,
  OPTION_GROUP_SVG = 256,
  OPTION_GROUP_DEMO = 512,
  OPTION_GROUP_INFO = 1024,
  OPTION_GROUP_SUITE = 2048,
  OPTION_GROUP_MERGE = 4096,
  OPTION_GROUP_APPEND = 8192
};

enum { OPTION_MAX_LIST = 16 };
typedef struct option_list {
  int32_t count;
  const char *items[OPTION_MAX_LIST];
} option_list;

typedef struct option_int {
  int32_t given;
  int64_t value;
} option_int;

typedef struct option_float {
  int32_t given;
  double value;
} option_float;

/* Texts point into argv. A text that was not given is NULL, a flag that was not is 0. */
typedef struct tool_options {
  const tool_command *command;
  const char *program; /* argv[0] of the process */
  tool_term term;
  int32_t num_arguments; /* what is no option */
  char **arguments;

  /* general */
  int32_t json, quiet, help, support;
  const char *color;

  /* device */
  const char *device, *isa, *variant, *module, *cache_dir;
  option_int threads, splits;
  int32_t deterministic, batch_invariant, fast;

  /* shape; texts with commas are lists for bench */
  const char *seqlen, *seqlen_q, *seqlen_k, *head_dim, *dtype;
  option_int batch, heads, kv_heads, v_head_dim, random_seed;

  /* attention */
  int32_t backward, causal, top_left, v_in_k, mask_bits;
  const char *window, *block, *score_expr, *mask_expr, *kv_dtype, *out_dtype, *layout;
  option_int sink_tokens, chunk, seed, offset;
  option_float scale, softcap, dropout;
  option_list scalars, aux;

  /* files */
  const char *input;
  int32_t use_metadata;
  const char *inputs[INPUT_COUNT];
  const char *output;
  const char *outputs[OUTPUT_COUNT];
  const char *grad_dtype;

  /* checks */
  int32_t check;
  const char *given, *expect;
  option_float tolerance;
  option_int rows;

  /* bench, demo, drawings */
  const char *versus, *masks, *svg, *data;
  option_int repeats, head, sequence, long_seqlen;
  option_float min_time;

  /* append */
  int32_t interleaved, static_scales;
  option_int rotary_dim;

  /* the conformance suite */
  int32_t full, verbose, copies;
  const char *filter, *case_line, *part;
  option_int random_cases;
  option_float seconds;
} tool_options;

/* Parses argv[1 ..] for a command. Returns TOOL_OK, or TOOL_USAGE after a sentence on stderr. */
int options_parse(tool_options *options, const tool_command *command, int argc, char **argv);

/* Prints the help of a command: synopsis, text, the options of its groups, examples. */
void options_help(const tool_command *command);

/* Numbers separated by commas, each in [least, most]; *count holds the capacity before and the number after.
 * TSR_INVALID with a sentence naming `option`. */
tsr_status options_int_list(const char *text, const char *option, int64_t least, int64_t most, int64_t *values,
                            int32_t *count, tsr_error *err);
/* Element type names separated by commas (f32, f16, bf16, f8e4m3, f8e5m2, i8, u4). */
tsr_status options_dtype_list(const char *text, const char *option, tsr_dtype *values, int32_t *count, tsr_error *err);

#endif
