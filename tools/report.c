/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "a C compiler"
#endif

/* "model name" of the first processor, or the machine's architecture. */
static void processor_name(char name[128], const struct utsname *system) {
  char line[256];
  FILE *file = fopen("/proc/cpuinfo", "re");
  snprintf(name, 128, "%s", system->machine);
  while (file && fgets(line, sizeof(line), file)) {
    char *colon = strchr(line, ':');
    if (colon && strncmp(line, "model name", 10) == 0) {
      colon += 1 + strspn(colon + 1, " \t");
      colon[strcspn(colon, "\n")] = '\0';
      snprintf(name, 128, "%.127s", colon);
      break;
    }
  }
  if (file)
    fclose(file);
}

void report_machine(char text[256]) {
  struct utsname system;
  char name[128];
  memset(&system, 0, sizeof(system));
  uname(&system);
  processor_name(name, &system);
  snprintf(text, 256, "%.100s, %ld processors, %.20s %.20s %.20s, %.40s", name, sysconf(_SC_NPROCESSORS_ONLN),
           system.sysname, system.release, system.machine, COMPILER);
}

void report_machine_json(json_writer *w) {
  struct utsname system;
  char name[128];
  memset(&system, 0, sizeof(system));
  uname(&system);
  processor_name(name, &system);
  json_open(w, "machine", '{');
  json_put_string(w, "processor", name);
  json_put_int(w, "processors_online", sysconf(_SC_NPROCESSORS_ONLN));
  json_put_double(w, "memory_bytes", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
  json_put_string(w, "system", system.sysname);
  json_put_string(w, "release", system.release);
  json_put_string(w, "architecture", system.machine);
  json_put_string(w, "compiler", COMPILER);
  json_put_string(w, "tessera", tsr_version());
  json_close(w, '}');
}

void report_device_json(json_writer *w, const tsr_device_info *info) {
  json_open(w, "device", '{');
  json_put_string(w, "name", info->name);
  json_put_string(w, "description", info->description);
  json_put_string(w, "backend", info->backend);
  json_put_string(w, "isa", info->isa);
  json_put_int(w, "threads", info->num_threads);
  json_put_bool(w, "computes", info->computes);
  json_put_bool(w, "host_memory", info->host_memory);
  json_close(w, '}');
}

/* ---- Tensors --------------------------------------------------------------------------------- */

static int is_dense(const tool_tensor *t) {
  int64_t stride = 1;
  for (int32_t i = t->rank; i-- > 0;) {
    if (t->shape[i] > 1 && t->stride[i] != stride)
      return 0;
    stride *= t->shape[i];
  }
  return 1;
}

static void print_tensor(const tool_options *options, const char *name, const tool_tensor *t) {
  const tool_term *term = &options->term;
  tool_text shape = {0};
  term_number bytes;
  if (t->dtype == TSR_DTYPE_NONE)
    return;
  for (int32_t i = 0; i < t->rank; i++)
    text_printf(&shape, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
  printf("%-13s %-7s [%s]  %s%s%s%s\n", name, tsr_dtype_name(t->dtype), shape.data ? shape.data : "",
         term_style(term, STYLE_DIM), format_bytes(bytes, (double)t->bytes), is_dense(t) ? "" : ", strided",
         term_style(term, STYLE_RESET));
  text_free(&shape);
}

void report_tensors(const tool_options *options, const tool_problem *problem) {
  for (int32_t i = 0; i < INPUT_COUNT; i++)
    print_tensor(options, problem_input_name(i), &problem->inputs[i]);
  for (int32_t i = 0; i < TSR_EXPR_MAX_AUX; i++) {
    const char name[5] = {'a', 'u', 'x', (char)('0' + i), '\0'};
    print_tensor(options, name, &problem->aux[i]);
  }
  for (int32_t i = 0; i < OUTPUT_COUNT; i++)
    print_tensor(options, problem_output_name(i), &problem->outputs[i]);
}

static void tensor_json(json_writer *w, const char *name, const tool_tensor *t) {
  if (t->dtype == TSR_DTYPE_NONE)
    return;
  json_open(w, name, '{');
  json_put_string(w, "dtype", tsr_dtype_name(t->dtype));
  json_open(w, "shape", '[');
  for (int32_t i = 0; i < t->rank; i++)
    json_put_int(w, NULL, t->shape[i]);
  json_close(w, ']');
  json_close(w, '}');
}

void report_tensors_json(json_writer *w, const tool_problem *problem) {
  json_open(w, "tensors", '{');
  for (int32_t i = 0; i < INPUT_COUNT; i++)
    tensor_json(w, problem_input_name(i), &problem->inputs[i]);
  for (int32_t i = 0; i < TSR_EXPR_MAX_AUX; i++) {
    const char name[5] = {'a', 'u', 'x', (char)('0' + i), '\0'};
    tensor_json(w, name, &problem->aux[i]);
  }
  for (int32_t i = 0; i < OUTPUT_COUNT; i++)
    tensor_json(w, problem_output_name(i), &problem->outputs[i]);
  json_close(w, '}');
}

/* ---- Features -------------------------------------------------------------------------------- */

static void add_word(char text[256], const char *format, ...) {
  const size_t used = strlen(text);
  va_list args;
  if (used > 0)
    snprintf(text + used, 256 - used, ", ");
  const size_t at = strlen(text);
  va_start(args, format);
  vsnprintf(text + at, 256 - at, format, args);
  va_end(args);
}

void report_features(const tool_problem *problem, char text[256]) {
  const tsr_attention_desc *d = problem->has_backward ? &problem->backward : &problem->forward;
  text[0] = '\0';
  if (d->flags & TSR_CAUSAL)
    add_word(text, "causal");
  if (d->flags & TSR_TOP_LEFT)
    add_word(text, "top-left");
  if (d->flags & TSR_WINDOW)
    add_word(text, "window %lld,%lld", (long long)d->window_left, (long long)d->window_right);
  if (d->sink_tokens > 0)
    add_word(text, "%lld sink tokens", (long long)d->sink_tokens);
  if (d->flags & TSR_CHUNK)
    add_word(text, "chunk %lld", (long long)d->chunk);
  if (d->flags & TSR_SOFTCAP)
    add_word(text, "softcap %g", problem->forward_args.softcap);
  if (d->flags & TSR_DROPOUT)
    add_word(text, "dropout %g", problem->forward_args.dropout_p);
  if (d->flags & TSR_V_IN_K)
    add_word(text, "v in k");
  if (problem->paged)
    add_word(text, "paged");
  for (int32_t i = INPUT_prefix; i <= INPUT_sink; i++) {
    if (problem->inputs[i].dtype != TSR_DTYPE_NONE && i != INPUT_mask_offsets && i != INPUT_mask_row_strides &&
        i != INPUT_segments_k && i != INPUT_block_indices)
      add_word(text, "%s",
               i == INPUT_block_indptr ? "block-sparse"
               : i == INPUT_segments_q ? "segments"
                                       : problem_input_name(i));
  }
  if (d->score_expr)
    add_word(text, "score expression");
  if (d->mask_expr)
    add_word(text, "mask %.60s", d->mask_expr);
  if (!text[0])
    add_word(text, "no mask");
}

int report_print_json(tool_text *document) {
  const int failed = document->failed;
  if (!failed)
    fputs(document->data, stdout);
  else
    fprintf(stderr, "tessera: out of memory\n");
  text_free(document);
  return failed ? TOOL_FAILED : TOOL_OK;
}
