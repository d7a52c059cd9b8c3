/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera check`: the conformance suite on this machine's devices. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine.h"
#include "report.h"
#include "tests/conformance/conformance.h"

typedef struct check_state {
  const tool_options *options;
  tool_progress progress;
  char label[64];
} check_state;

static int32_t on_stop(void *user) {
  (void)user;
  return term_interrupted();
}

static void on_progress(void *user, const tsr_conformance_progress *p) {
  check_state *s = user;
  if (p->failed > 0)
    snprintf(s->label, sizeof(s->label), "%lld failed", (long long)p->failed);
  progress_update(&s->progress, p->done, p->total);
}

/* Lines of failing cases would break into the bar. */
static void on_line(void *user, const char *text) {
  check_state *s = user;
  if (s->options->json)
    return;
  if (s->progress.term->bar)
    fprintf(stderr, "\r\x1b[K");
  printf("%s\n", text);
  fflush(stdout);
}

/* NumPy's recorded cases, from the source tree or where they were installed; NULL: neither. */
static const char *find_pairwise(void) {
  static const char *const places[] = {TOOL_DATA_SOURCE "/pairwise.bin", TOOL_DATA_INSTALLED "/pairwise.bin"};
  struct stat st;
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
    if (stat(places[i], &st) == 0 && S_ISREG(st.st_mode))
      return places[i];
  }
  return NULL;
}

/* By TSR_CONFORMANCE_ENDED_*. */
static const char *const ended_words[] = {"complete", "out of time", "interrupted"};

static void print_result(const tool_options *o, const tsr_conformance_result *r, int code) {
  const tool_term *t = &o->term;
  term_number runs, time;
  printf("%s%-16s %9s %8s %8s  %s%s\n", term_style(t, STYLE_BOLD), "device", "passed", "failed", "refused",
         "largest error of what is allowed", term_style(t, STYLE_RESET));
  for (int32_t i = 0; i < r->num_devices; i++) {
    const tsr_conformance_device *d = &r->devices[i];
    if (d->computes)
      printf("%-16s %9lld %s%8lld%s %8lld  %.0f %%  %s%s%s\n", d->name, (long long)d->passed,
             term_style(t, d->failed ? STYLE_RED : STYLE_GREEN), (long long)d->failed, term_style(t, STYLE_RESET),
             (long long)d->refused, 100 * d->worst, term_style(t, STYLE_DIM), d->description,
             term_style(t, STYLE_RESET));
    else
      printf("%-16s %srecords launches only: not run, not counted%s\n", d->name, term_style(t, STYLE_DIM),
             term_style(t, STYLE_RESET));
  }
  for (int32_t i = 0; i < r->num_failures; i++)
    printf("\n%sFAILED%s %s: %s\n  case: %s\n", term_style(t, STYLE_RED), term_style(t, STYLE_RESET),
           r->failures[i].where, r->failures[i].what, r->failures[i].line);
  printf("\n%s%s%s: %s runs, %lld passed, %lld failed, %lld cases skipped, seed %llu, %s\n",
         term_style(t, code == TOOL_OK ? STYLE_GREEN : STYLE_RED),
         r->failed > 0    ? "FAILED"
         : r->passed == 0 ? "nothing ran"
                          : "passed",
         term_style(t, STYLE_RESET), format_count(runs, (double)r->runs), (long long)r->passed, (long long)r->failed,
         (long long)r->skipped, (unsigned long long)r->seed, format_seconds(time, r->seconds));
  if (r->ended != TSR_CONFORMANCE_ENDED_COMPLETE)
    printf("%s before its end: what is skipped was not looked at\n", ended_words[r->ended]);
  if (o->output)
    printf("report %s\n", o->output);
}

static void write_json(json_writer *w, const tsr_conformance_result *r, int code) {
  json_open(w, NULL, '{');
  json_put_string(w, "command", "check");
  report_machine_json(w);
  json_put_string(w, "commit", tsr_conformance_commit());
  json_put_int(w, "seed", (int64_t)r->seed);
  json_put_double(w, "seconds", r->seconds);
  json_put_int(w, "cases", r->cases);
  json_put_int(w, "skipped", r->skipped);
  json_put_int(w, "runs", r->runs);
  json_put_int(w, "passed", r->passed);
  json_put_int(w, "failed", r->failed);
  json_put_int(w, "refused", r->refused);
  json_put_double(w, "worst", r->worst);
  json_put_string(w, "worst_case", r->worst_line);
  json_open(w, "devices", '[');
  for (int32_t i = 0; i < r->num_devices; i++) {
    const tsr_conformance_device *d = &r->devices[i];
    json_open(w, NULL, '{');
    json_put_string(w, "name", d->name);
    json_put_string(w, "description", d->description);
    json_put_bool(w, "computes", d->computes);
    json_put_int(w, "runs", d->runs);
    json_put_int(w, "passed", d->passed);
    json_put_int(w, "failed", d->failed);
    json_put_int(w, "refused", d->refused);
    json_put_double(w, "worst", d->worst);
    json_close(w, '}');
  }
  json_close(w, ']');
  json_open(w, "failures", '[');
  for (int32_t i = 0; i < r->num_failures; i++) {
    json_open(w, NULL, '{');
    json_put_string(w, "where", r->failures[i].where);
    json_put_string(w, "what", r->failures[i].what);
    json_put_string(w, "case", r->failures[i].line);
    json_close(w, '}');
  }
  json_close(w, ']');
  json_put_string(w, "ended", ended_words[r->ended]);
  json_put_int(w, "exit_code", code);
  json_close(w, '}');
}

/* Both forms carry the same document. */
static int finish(const tool_options *o, const tsr_conformance_result *r, int code) {
  tool_text text = {0};
  json_writer w = {&text, 0, 0};
  tsr_error err;
  tsr_status status = TSR_OK;
  write_json(&w, r, code);
  if (text.failed)
    tool_error(&err, status = TSR_OUT_OF_MEMORY, "", "no memory for the report");
  else if (o->output)
    status = output_save(o->output, text.data, (int64_t)text.len, &err);
  if (status != TSR_OK)
    code = tool_fail(o, &err);
  else if (o->json)
    fputs(text.data, stdout);
  else
    print_result(o, r, code);
  text_free(&text);
  return code;
}

/* "I/N"; 0: it is not. */
static int take_part(const char *text, tsr_conformance_options *suite) {
  char rest;
  return text == NULL || (sscanf(text, "%" SCNd32 "/%" SCNd32 "%c", &suite->part, &suite->parts, &rest) == 2 &&
                          suite->part >= 0 && suite->part < suite->parts);
}

/* The option's, else the tests' own, else 0: from the clock. */
static uint64_t choose_seed(const tool_options *options) {
  const char *text = getenv("TESSERA_TEST_SEED");
  return options->random_seed.given ? (uint64_t)options->random_seed.value : text ? strtoull(text, NULL, 0) : 0;
}

static int choose(const tool_options *options, check_state *state, tsr_conformance_options *suite) {
  memset(suite, 0, sizeof(*suite));
  suite->suite = options->full ? TSR_CONFORMANCE_FULL : TSR_CONFORMANCE_QUICK;
  suite->verbose = options->verbose && !options->json;
  suite->num_threads = (int32_t)options->threads.value;
  suite->device = options->device;
  suite->variant = options->variant;
  suite->cpu_isa = options->isa;
  suite->module = options->module;
  suite->filter = options->filter;
  suite->case_line = options->case_line;
  suite->pairwise = options->case_line ? NULL : find_pairwise();
  suite->seed = choose_seed(options);
  suite->random_cases =
      options->random_cases.given ? (options->random_cases.value > 0 ? options->random_cases.value : -1) : 0;
  suite->total_seconds = options->seconds.value;
  suite->copies = options->copies;
  suite->should_stop = on_stop;
  suite->progress = on_progress;
  suite->line = on_line;
  suite->user = state;
  return take_part(options->part, suite);
}

static int exit_code(const tsr_conformance_result *r, int outcome) {
  if (r->failed > 0)
    return TOOL_CHECK_FAILED;
  if (r->ended == TSR_CONFORMANCE_ENDED_STOPPED)
    return TOOL_INTERRUPTED;
  return outcome == 0 ? TOOL_OK : TOOL_CHECK_FAILED;
}

static int check(tool_options *options) {
  check_state state = {options, {0}, "checking"};
  tsr_conformance_options suite;
  char path[ENGINE_PATH_BYTES];
  tsr_error err;
  if (options->num_arguments > 0) {
    fprintf(stderr, "tessera check: '%s' is no option\n", options->arguments[0]);
    return TOOL_USAGE;
  }
  if (!choose(options, &state, &suite)) {
    fprintf(stderr, "tessera check: --part: '%s' is not I/N with 0 <= I < N\n", options->part);
    return TOOL_USAGE;
  }
  tsr_conformance_result *result = calloc(1, sizeof(*result));
  if (!result) {
    tool_error(&err, TSR_OUT_OF_MEMORY, "", "no memory for the results");
    return tool_fail(options, &err);
  }
  suite.cache_dir = engine_cache_dir(options, path);
  progress_begin(&state.progress, &options->term, options->quiet ? NULL : state.label);
  const int outcome = tsr_conformance_run(&suite, result);
  progress_end(&state.progress);
  int code;
  if (outcome == 2) {
    tool_error(&err, TSR_INVALID, "", "%s", result->failures[0].what);
    code = tool_fail(options, &err);
  } else {
    code = finish(options, result, exit_code(result, outcome));
  }
  free(result);
  return code;
}

const tool_command command_check = {
    "check",
    "the conformance suite on this machine's devices, with a report to send",
    "[options]",
    "Runs every feature, every pair of features and random problems on every back end, device, instruction set level "
    "and\n"
    "variant, and compares all values with the float64 oracle. --full adds the shapes of other libraries' tests and "
    "takes\n"
    "hours. A report tells others what your device does: please send it where it failed or is new.\n",
    "  tessera check\n"
    "  tessera check --full --report report.json\n"
    "  tessera check --device cpu --isa v3 --filter causal\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_SUITE,
    check};
