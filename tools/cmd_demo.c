/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera demo`: the library at work, in about a minute. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "demo.h"

/* --data, else the source tree this was built from, else where it was installed. */
static const char *find_data(const tool_options *options) {
  struct stat st;
  if (options->data)
    return options->data;
  return stat(TOOL_DATA_SOURCE, &st) == 0 && S_ISDIR(st.st_mode) ? TOOL_DATA_SOURCE : TOOL_DATA_INSTALLED;
}

static void heading(const demo_state *demo, int number, const char *title, const char *remark) {
  char text[120];
  if (demo->options->json)
    return;
  snprintf(text, sizeof(text), "%d  %s", number, title);
  if (number > 1)
    printf("\n");
  term_heading(&demo->options->term, text, remark);
  fflush(stdout);
}

static tsr_status all_parts(demo_state *demo, const char *svg, tsr_error *err) {
  heading(demo, 1, "Attention over real words", "q, k, v recorded from language models");
  tsr_status status = demo_words(demo, err);
  if (status == TSR_OK) {
    char title[80];
    term_number tokens;
    const option_int *length = &demo->options->long_seqlen;
    snprintf(title, sizeof(title), "Causal attention over %s tokens",
             format_count(tokens, length->given ? (double)length->value : 131072));
    heading(demo, 2, title, "one head, D = 64, f32");
    status = demo_long(demo, err);
  }
  if (status == TSR_OK) {
    heading(demo, 3, "Every device, level and kernel variant here",
            "causal, S = 512, 4 heads, D = 64, f32, all values checked");
    status = demo_devices(demo, err);
  }
  if (status == TSR_OK) {
    heading(demo, 4, "Beside attention as it is usually written down",
            "the scores in memory; same threads, causal, 4 heads");
    status = demo_standard(demo, svg, err);
  }
  return status;
}

static void print_end(const demo_state *demo, const char *svg, double seconds) {
  const tool_term *t = &demo->options->term;
  char path[4096];
  term_number time;
  char *real = realpath(svg, NULL);
  snprintf(path, sizeof(path), "%s", real ? real : svg);
  free(real);
  printf("  chart: %s\n\n", path);
  term_heading(t, "5  Try a mask of your own", NULL);
  printf("  %s mask 'j <= i && (i - j < 256 || j < 64)' --seqlen 2048 -o mask.svg\n", demo->options->program);
  printf("\n%s%s%s in %s\n", term_style(t, demo->passed ? STYLE_GREEN : STYLE_RED),
         demo->passed ? "All results agree with the oracle" : "SOME RESULTS ARE WRONG", term_style(t, STYLE_RESET),
         format_seconds(time, seconds));
}

static int demo(tool_options *options) {
  tool_engine engine;
  tool_text out = {0};
  json_writer w = {&out, 0, 0};
  demo_state state = {options, &engine, &w, find_data(options), 1};
  const char *svg = options->svg ? options->svg : "tessera-demo.svg";
  const double start = term_seconds();
  char machine[256];
  tsr_error err;
  if (options->num_arguments > 0) {
    fprintf(stderr, "tessera demo: '%s' is no option\n", options->arguments[0]);
    return TOOL_USAGE;
  }
  tsr_status status = engine_open(&engine, options, NULL, NULL, &err);
  if (status == TSR_OK && !engine.info.computes)
    tool_error(&err, status = TSR_UNSUPPORTED, "", "device %s records launches and computes nothing", engine.info.name);
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "demo");
  report_machine_json(&w);
  if (status == TSR_OK)
    report_device_json(&w, &engine.info);
  if (status == TSR_OK && !options->json) {
    report_machine(machine);
    printf("%sTessera %s%s  %s%s%s\n\n", term_style(&options->term, STYLE_BOLD), tsr_version(),
           term_style(&options->term, STYLE_RESET), term_style(&options->term, STYLE_DIM), machine,
           term_style(&options->term, STYLE_RESET));
  }
  if (status == TSR_OK)
    status = all_parts(&state, svg, &err);
  int code = status != TSR_OK ? tool_fail(options, &err) : state.passed ? TOOL_OK : TOOL_CHECK_FAILED;
  json_put_string(&w, "svg", svg);
  json_put_bool(&w, "passed", state.passed);
  json_put_double(&w, "seconds", term_seconds() - start);
  json_put_int(&w, "exit_code", code);
  json_close(&w, '}');
  if (status == TSR_OK && options->json)
    code = report_print_json(&out) == TOOL_OK ? code : TOOL_FAILED;
  else if (status == TSR_OK)
    print_end(&state, svg, term_seconds() - start);
  text_free(&out);
  engine_close(&engine);
  return code;
}

const tool_command command_demo = {"demo",
                                   "the library at work in about a minute: real words, a long sequence, all variants",
                                   "[options]",
                                   "Five parts: attention over recorded words, compared with the language model's own "
                                   "output and with the oracle; causal\n"
                                   "attention over 131,072 tokens; every device and kernel variant of this machine; "
                                   "time and memory beside materialised\n"
                                   "attention, with a chart; and a line to try a mask of your own.\n",
                                   "  tessera demo\n"
                                   "  tessera demo --long-seqlen 32768 --svg chart.svg\n"
                                   "  tessera demo --json\n",
                                   OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_DEMO,
                                   demo};
