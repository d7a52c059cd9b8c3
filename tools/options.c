/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_FLAG, KIND_TEXT, KIND_LIST, KIND_INT, KIND_FLOAT };

typedef struct option_row {
  const char *name;   /* '_' is written '-' on the command line */
  const char *prefix; /* put before the name: "save-" */
  int32_t letter;     /* 0: none */
  int32_t kind;
  uint32_t group;
  size_t field;
  int64_t least, most;  /* KIND_INT */
  const char *argument; /* its placeholder in --help */
  const char *help;
} option_row;

#define AT(field) offsetof(tool_options, field)
#define FLAG(name, group, field, help) \
  { name, "", 0, KIND_FLAG, OPTION_GROUP_##group, AT(field), 0, 0, NULL, help }
#define TEXT(name, letter, group, field, argument, help) \
  { name, "", letter, KIND_TEXT, OPTION_GROUP_##group, AT(field), 0, 0, argument, help }
#define INT(name, group, field, least, most, help) \
  { name, "", 0, KIND_INT, OPTION_GROUP_##group, AT(field), least, most, "N", help }
#define FLOAT(name, group, field, help) \
  { name, "", 0, KIND_FLOAT, OPTION_GROUP_##group, AT(field), 0, 0, "X", help }
#define LIST(name, group, field, argument, help) \
  { name, "", 0, KIND_LIST, OPTION_GROUP_##group, AT(field), 0, 0, argument, help }
#define INPUT(field, axes, type, help) \
  {#field, "", 0, KIND_TEXT, OPTION_GROUP_INPUT, AT(inputs) + INPUT_##field * sizeof(char *), 0, 0, "FILE", help},
#define OUTPUT(field, help)                                                                                \
  {#field, "save-", 0,      KIND_TEXT, OPTION_GROUP_OUTPUT, AT(outputs) + OUTPUT_##field * sizeof(char *), \
   0,      0,       "FILE", help},

static const option_row rows[] = {
    FLAG("json", GENERAL, json, "print one JSON document on stdout and nothing else"),
    FLAG("quiet", GENERAL, quiet, "no progress bar"),
    TEXT("color", 0, GENERAL, color, "WHEN", "auto (default), always or never; NO_COLOR is honoured"),
    {"help", "", 'h', KIND_FLAG, OPTION_GROUP_GENERAL, AT(help), 0, 0, NULL, "this text"},

    FLAG("support", INFO, support, "the support table in Markdown, from the variant tables"),

    TEXT("device", 0, DEVICE, device, "NAME", "device, e.g. cpu or cuda:0 (default: TESSERA_DEVICE, else the best)"),
    TEXT("variant", 0, DEVICE, variant, "NAME", "force a kernel variant (`tessera info` lists them)"),
    TEXT("isa", 0, DEVICE, isa, "LEVEL", "highest CPU instruction set: x86-64, v3, v4"),
    INT("threads", DEVICE, threads, 1, 4096, "CPU threads (default: what OpenMP would use)"),
    TEXT("module", 0, DEVICE, module, "FILE", "load a back end module first"),
    TEXT("cache-dir", 0, DEVICE, cache_dir, "DIR",
         "where compiled kernels are kept (default: TESSERA_CACHE_DIR, else ~/.cache/tessera; none: nowhere)"),
    INT("splits", ATTENTION, splits, 0, TSR_MAX_SPLITS, "split the keys in N parts (0: chosen by the library)"),
    FLAG("deterministic", ATTENTION, deterministic, "same bits whatever the thread count"),
    FLAG("batch-invariant", ATTENTION, batch_invariant, "a row's bits depend on its own sequence only"),
    FLAG("fast", ATTENTION, fast, "allow departures from IEEE f32 products"),

    INT("batch", SHAPE, batch, 1, INT64_C(1) << 40, "sequences (default 1; packed: from cu-seqlens)"),
    TEXT("seqlen", 0, SHAPE, seqlen, "N", "query and key length (default 1024)"),
    TEXT("seqlen-q", 0, SHAPE, seqlen_q, "N", "query length; with packed or paged files: the longest"),
    TEXT("seqlen-k", 0, SHAPE, seqlen_k, "N", "key length; the same"),
    INT("heads", SHAPE, heads, 1, INT64_C(1) << 40, "query heads (default 8)"),
    INT("heads-kv", SHAPE, kv_heads, 1, INT64_C(1) << 40, "key/value heads (default: as query heads)"),
    TEXT("head-dim", 0, SHAPE, head_dim, "N", "channels of q and k (default 64)"),
    INT("head-dim-v", SHAPE, v_head_dim, 1, INT64_C(1) << 40, "channels of v and o (default: head-dim)"),
    INT("random-seed", SHAPE, random_seed, 0, INT64_MAX, "seed of random q, k, v, dout (default: from the clock)"),

    FLAG("backward", ATTENTION, backward, "gradients instead of the output"),
    FLAG("causal", ATTENTION, causal, "key j <= query i, the last ones aligned"),
    FLAG("top-left", ATTENTION, top_left, "align the first query and key instead of the last"),
    TEXT("window", 0, ATTENTION, window, "L[,R]", "L keys to the left, R (default 0) to the right; -1: all"),
    INT("sink-tokens", ATTENTION, sink_tokens, 0, INT64_MAX, "with --window: first keys that all rows may see"),
    INT("chunk", ATTENTION, chunk, 1, INT64_MAX, "attention inside chunks of N positions"),
    TEXT("block", 0, ATTENTION, block, "R,C", "rows and columns of a block of block-indptr"),
    FLOAT("softcap", ATTENTION, softcap, "scores become X tanh(s / X)"),
    FLOAT("scale", ATTENTION, scale, "factor of the scores (default 1/sqrt(head-dim))"),
    FLOAT("dropout", ATTENTION, dropout, "probability that a pair is dropped"),
    INT("seed", ATTENTION, seed, INT64_MIN, INT64_MAX, "of dropout"),
    INT("offset", ATTENTION, offset, INT64_MIN, INT64_MAX, "of dropout"),
    TEXT("score-expr", 0, ATTENTION, score_expr, "EXPR", "replaces the score, e.g. 'score - 0.1 * abs(i - j)'"),
    TEXT("mask-expr", 0, ATTENTION, mask_expr, "EXPR", "nonzero = may attend, e.g. 'j <= i && i - j < 256'"),
    LIST("scalar", ATTENTION, scalars, "NAME=X", "a scalar of the expressions (repeat)"),
    LIST("aux", ATTENTION, aux, "FILE", "aux0, aux1, ... of the expressions (repeat)"),
    FLAG("v-in-k", ATTENTION, v_in_k, "MLA: v is the first head-dim-v channels of k"),
    FLAG("mask-bits", ATTENTION, mask_bits, "the mask holds bits, 8 keys a byte, lowest first"),
    TEXT("dtype", 0, ATTENTION, dtype, "TYPE", "f32, f16, bf16, f8e4m3, f8e5m2: of random input; converts files"),
    TEXT("kv-dtype", 0, ATTENTION, kv_dtype, "TYPE",
         "of k and v: u8 files are taken as codes (f8e4m3, f8e5m2, i8, u4)"),
    TEXT("out-dtype", 0, ATTENTION, out_dtype, "TYPE", "of o (default: q's; fp8: f32)"),
    TEXT("grad-dtype", 0, ATTENTION, grad_dtype, "TYPE", "of dq, dk, dv, dbias (default: the tensor's own; f32)"),
    TEXT("layout", 0, ATTENTION, layout, "AXES", "order of the axes in files: bshd (default) or bhsd"),

    TEXT("input", 'i', INPUT, input, "FILE", "a .safetensors file; tensors of the names below are taken from it"),
    FLAG("use-metadata", INPUT, use_metadata, "take 'causal' and 'scale' from the file's metadata"),
    TOOL_INPUTS(INPUT)

        TEXT("output", 'o', OUTPUT, output, "FILE", ".npy: o; .safetensors: o and lse, or all gradients"),
    TOOL_OUTPUTS(OUTPUT)

        FLAG("check", CHECK, check, "compare with the float64 oracle under the tolerance rule"),
    TEXT("given", 0, CHECK, given, "FILE", "check or compare this output instead of computing one"),
    TEXT("expect", 0, CHECK, expect, "FILE", "compare o with someone else's; 'self': tensor o of --input"),
    FLOAT("tolerance", CHECK, tolerance, "largest error --expect allows (default: 8 u max|o|)"),
    INT("rows", CHECK, rows, 1, INT64_MAX, "with --check: only N random query rows (not with --backward)"),

    TEXT("versus", 0, BENCH, versus, "WHAT", "standard: time and memory of materialised attention beside"),
    TEXT("vs", 0, BENCH, versus, "WHAT", "the same"),
    TEXT("masks", 0, BENCH, masks, "LIST", "full, causal or both: full,causal (default)"),
    INT("repeats", BENCH, repeats, 1, 100000, "least number of timed runs (default 5); the median counts"),
    FLOAT("min-time", BENCH, min_time, "least seconds a point (default 0.2)"),
    TEXT("report", 'o', BENCH, output, "FILE", "write the JSON document"),
    TEXT("svg", 0, BENCH, svg, "FILE", "draw a chart"),

    TEXT("output", 'o', SVG, output, "FILE", "the drawing"),
    INT("head", SVG, head, 0, INT64_MAX, "query head to draw (default 0)"),
    INT("sequence", SVG, sequence, 0, INT64_MAX, "sequence to draw (default 0)"),

    TEXT("output", 'o', MERGE, output, "FILE", ".npy: o; .safetensors: o and lse"),
    TEXT("sink", 0, MERGE, inputs[INPUT_sink], "FILE", "sink logit of each query head [H], taken once here"),
    TEXT("out-dtype", 0, MERGE, out_dtype, "TYPE", "of o (default: the partials' own)"),
    TEXT("layout", 0, MERGE, layout, "AXES", "order of the axes in files: bshd (default) or bhsd"),
    FLAG("check", MERGE, check, "compare with the float64 oracle"),

    TEXT("input", 'i', APPEND, input, "FILE", "the .safetensors file; --input may be left out"),
    TEXT("output", 'o', APPEND, output, "FILE", ".safetensors: the caches, dynamic scales, q_out"),
    INT("rotary-dim", APPEND, rotary_dim, 2, TSR_MAX_HEAD_DIM, "channels that are turned (default with cos: all)"),
    FLAG("interleaved", APPEND, interleaved, "rotary pairs are channels 2n, 2n+1 (default: n, n + R/2)"),
    FLAG("static-scales", APPEND, static_scales, "k_scale and v_scale are read, not made"),
    TEXT("kv-dtype", 0, APPEND, kv_dtype, "TYPE", "of the caches, where the file has u8 codes: u4"),
    TEXT("layout", 0, APPEND, layout, "AXES", "order of the axes in files: bshd (default) or bhsd"),
    FLAG("check", APPEND, check, "compare all bytes with the oracle's"),

    FLAG("full", SUITE, full, "also all shapes of other libraries' tests: hours"),
    TEXT("report", 'o', SUITE, output, "FILE", "write the JSON document, to send"),
    TEXT("filter", 0, SUITE, filter, "TEXT", "only cases whose line contains this"),
    TEXT("case", 0, SUITE, case_line, "LINE", "only this case, as a failure prints it"),
    INT("random-cases", SUITE, random_cases, 0, INT64_MAX, "number of random problems"),
    INT("suite-seed", SUITE, random_seed, 1, INT64_MAX,
        "seed of the cases (default: TESSERA_TEST_SEED, else from the clock)"),
    FLOAT("seconds", SUITE, seconds, "begin no more cases after this time"),
    TEXT("part", 0, SUITE, part, "I/N", "only part I (from 0) of N; give all parts the same seed"),
    FLAG("copies", SUITE, copies, "CPU runs go through copies, as on devices with memory of their own"),
    FLAG("verbose", SUITE, verbose, "a line for every case"),

    TEXT("data", 0, DEMO, data, "DIR", "where the recorded tensors are"),
    TEXT("svg", 0, DEMO, svg, "FILE", "the chart (default tessera-demo.svg in the current directory)"),
    INT("long-seqlen", DEMO, long_seqlen, 1024, INT64_C(1) << 24, "tokens of the long example (default 131072)"),
};
enum { NUM_ROWS = sizeof(rows) / sizeof(rows[0]), NAME_BYTES = 32, FIRST_CODE = 1000 };

static void option_name(const option_row *row, char out[NAME_BYTES]) {
  snprintf(out, NAME_BYTES, "%s%s", row->prefix, row->name);
  for (char *c = out; *c; c++) {
    if (*c == '_')
      *c = '-';
  }
}

/* ---- Values ---------------------------------------------------------------------------------- */

static int parse_int(const option_row *row, const char *text, option_int *out) {
  char *end;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  out->given = 1;
  out->value = value;
  return end != text && *end == '\0' && errno == 0 && value >= row->least && value <= row->most;
}

static int parse_float(const char *text, option_float *out) {
  char *end;
  out->given = 1;
  out->value = strtod(text, &end);
  return end != text && *end == '\0' && isfinite(out->value);
}

static int set_value(tool_options *options, const option_row *row, const char *text, const char *name) {
  char *field = (char *)options + row->field;
  switch (row->kind) {
  case KIND_FLAG: *(int32_t *)(void *)field = 1; return TOOL_OK;
  case KIND_TEXT: *(const char **)(void *)field = text; return TOOL_OK;
  case KIND_LIST: {
    option_list *list = (option_list *)(void *)field;
    if (list->count == OPTION_MAX_LIST) {
      fprintf(stderr, "tessera: --%s: at most %d times\n", name, OPTION_MAX_LIST);
      return TOOL_USAGE;
    }
    list->items[list->count++] = text;
    return TOOL_OK;
  }
  case KIND_INT:
    if (parse_int(row, text, (option_int *)(void *)field))
      return TOOL_OK;
    if (row->most == INT64_MAX)
      fprintf(stderr, "tessera: --%s: '%s' is not an integer >= %lld\n", name, text, (long long)row->least);
    else
      fprintf(stderr, "tessera: --%s: '%s' is not an integer from %lld to %lld\n", name, text, (long long)row->least,
              (long long)row->most);
    return TOOL_USAGE;
  default:
    if (parse_float(text, (option_float *)(void *)field))
      return TOOL_OK;
    fprintf(stderr, "tessera: --%s: '%s' is not a finite number\n", name, text);
    return TOOL_USAGE;
  }
}

static int check_words(const tool_options *o) {
  const char *name = NULL, *value = NULL, *allowed = NULL;
  if (o->color && strcmp(o->color, "auto") != 0 && strcmp(o->color, "always") != 0 && strcmp(o->color, "never") != 0)
    name = "color", value = o->color, allowed = "auto, always or never";
  if (o->layout && strcmp(o->layout, "bshd") != 0 && strcmp(o->layout, "bhsd") != 0)
    name = "layout", value = o->layout, allowed = "bshd or bhsd";
  if (o->versus && strcmp(o->versus, "standard") != 0)
    name = "vs", value = o->versus, allowed = "standard";
  if (o->masks && strcmp(o->masks, "full") != 0 && strcmp(o->masks, "causal") != 0 &&
      strcmp(o->masks, "full,causal") != 0 && strcmp(o->masks, "causal,full") != 0)
    name = "masks", value = o->masks, allowed = "full, causal or full,causal";
  if (!name)
    return TOOL_OK;
  fprintf(stderr, "tessera: --%s: '%s' is not %s\n", name, value, allowed);
  return TOOL_USAGE;
}

int options_parse(tool_options *options, const tool_command *command, int argc, char **argv) {
  char names[NUM_ROWS][NAME_BYTES], letters[2 * NUM_ROWS + 2] = ":";
  struct option table[NUM_ROWS + 1];
  int index[NUM_ROWS], count = 0, code;
  memset(options, 0, sizeof(*options));
  options->command = command;
  for (int i = 0; i < NUM_ROWS; i++) {
    if (!(rows[i].group & command->groups))
      continue;
    option_name(&rows[i], names[count]);
    table[count].name = names[count];
    table[count].has_arg = rows[i].kind == KIND_FLAG ? no_argument : required_argument;
    table[count].flag = NULL;
    table[count].val = FIRST_CODE + count;
    if (rows[i].letter) {
      const char spec[3] = {(char)rows[i].letter, rows[i].kind == KIND_FLAG ? '\0' : ':', '\0'};
      strcat(letters, spec);
    }
    index[count++] = i;
  }
  memset(&table[count], 0, sizeof(table[count]));
  opterr = 0;
  optind = 1;
  while ((code = getopt_long(argc, argv, letters, table, NULL)) != -1) {
    int row = code - FIRST_CODE;
    if (code < FIRST_CODE) {
      for (row = 0; row < count && rows[index[row]].letter != code; row++)
        continue;
    }
    if (code == '?' || code == ':' || row >= count) {
      const char *what = code == ':' ? "needs a value" : "unknown, ambiguous or with a value it does not take";
      fprintf(stderr, "tessera %s: option %s: %s (`tessera %s --help` lists all)\n", command->name, argv[optind - 1],
              what, command->name);
      return TOOL_USAGE;
    }
    const int result = set_value(options, &rows[index[row]], optarg, names[row]);
    if (result != TOOL_OK)
      return result;
  }
  options->num_arguments = argc - optind;
  options->arguments = argv + optind;
  static const char suffix[] = ".safetensors";
  const char *operand = options->num_arguments > 0 ? options->arguments[0] : "";
  const size_t length = strlen(operand);
  if ((command->groups & (OPTION_GROUP_INPUT | OPTION_GROUP_APPEND)) && !options->input && length > strlen(suffix) &&
      strcmp(operand + length - strlen(suffix), suffix) == 0) { /* --input may be left out */
    options->input = operand;
    options->num_arguments--;
    options->arguments++;
  }
  return check_words(options);
}

tsr_status options_int_list(const char *text, const char *option, int64_t least, int64_t most, int64_t *values,
                            int32_t *count, tsr_error *err) {
  const int32_t capacity = *count;
  const char *at = text;
  for (*count = 0;; at++) {
    char *end;
    errno = 0;
    const long long value = strtoll(at, &end, 10);
    if (end == at || errno != 0 || (*end != ',' && *end != '\0') || value < least || value > most) {
      tool_error(err, TSR_INVALID, option, "%s: '%.80s' is not an integer from %lld to %lld%s", option, text,
                 (long long)least, (long long)most, capacity > 1 ? ", or several with commas" : "");
      return err->status;
    }
    if (*count == capacity) {
      tool_error(err, TSR_INVALID, option, "%s: '%.80s': at most %d value%s", option, text, capacity,
                 capacity == 1 ? "" : "s");
      return err->status;
    }
    values[(*count)++] = value;
    at = end;
    if (*at == '\0')
      return TSR_OK;
  }
}

tsr_status options_dtype_list(const char *text, const char *option, tsr_dtype *values, int32_t *count, tsr_error *err) {
  static const tsr_dtype known[] = {TSR_F32, TSR_F16, TSR_BF16, TSR_F8E4M3, TSR_F8E5M2, TSR_I8, TSR_U4};
  const int32_t capacity = *count;
  const char *at = text;
  for (*count = 0;; at++) {
    const size_t length = strcspn(at, ",");
    tsr_dtype found = TSR_DTYPE_NONE;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
      const char *name = tsr_dtype_name(known[i]);
      if (strlen(name) == length && strncmp(at, name, length) == 0)
        found = known[i];
    }
    if (found == TSR_DTYPE_NONE || *count == capacity) {
      tool_error(err, TSR_INVALID, option, "%s: '%.80s' is not %s f32 f16 bf16 f8e4m3 f8e5m2 i8 u4", option, text,
                 capacity > 1 ? "a list of" : "one of");
      return err->status;
    }
    values[(*count)++] = found;
    at += length;
    if (*at == '\0')
      return TSR_OK;
  }
}

/* ---- Help ------------------------------------------------------------------------------------ */

static const struct {
  uint32_t group;
  const char *title;
} groups[] = {
    {OPTION_GROUP_INPUT, "Input files (.npy, .safetensors, or file.safetensors:tensor; vectors also as 1,2,3)"},
    {OPTION_GROUP_SHAPE, "Sizes, where no file gives them (q, k, v are then random)"},
    {OPTION_GROUP_ATTENTION, "What is computed"},
    {OPTION_GROUP_OUTPUT, "Output files"},
    {OPTION_GROUP_SVG, "The drawing"},
    {OPTION_GROUP_CHECK, "Checks"},
    {OPTION_GROUP_BENCH, "Measuring"},
    {OPTION_GROUP_DEMO, "The demonstration"},
    {OPTION_GROUP_INFO, "What is listed"},
    {OPTION_GROUP_SUITE, "The suite"},
    {OPTION_GROUP_MERGE, "Merging"},
    {OPTION_GROUP_APPEND, "Appending"},
    {OPTION_GROUP_DEVICE, "Where and how"},
    {OPTION_GROUP_GENERAL, "General"}};

static void print_row(const option_row *row) {
  char name[NAME_BYTES], letter[8] = "    ", left[64];
  option_name(row, name);
  if (row->letter)
    snprintf(letter, sizeof(letter), "-%c, ", row->letter);
  snprintf(left, sizeof(left), "%s--%s%s%s", letter, name, row->argument ? " " : "",
           row->argument ? row->argument : "");
  printf("  %-28s %s\n", left, row->help);
}

void options_help(const tool_command *command) {
  printf("Usage: tessera %s %s\n\n%s", command->name, command->synopsis, command->text);
  for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
    if (!(groups[g].group & command->groups))
      continue;
    printf("\n%s:\n", groups[g].title);
    for (int i = 0; i < NUM_ROWS; i++) {
      if (rows[i].group == groups[g].group)
        print_row(&rows[i]);
    }
  }
  printf("\nExamples:\n%s", command->examples);
}
