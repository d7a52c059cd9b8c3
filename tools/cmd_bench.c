/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera bench`: sweeps over sizes and element types. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { MAX_VALUES = 16, MAX_POINTS = 1024 };

typedef struct sweep {
  int64_t seqlens[MAX_VALUES], head_dims[MAX_VALUES];
  tsr_dtype dtypes[MAX_VALUES];
  int32_t causal[2];
  int32_t num_seqlens, num_head_dims, num_dtypes, num_masks;
  int32_t standard, num_points;
  bench_point *points;
} sweep;

static tsr_status read_sweep(sweep *s, const tool_options *o, tsr_error *err) {
  s->num_seqlens = s->num_head_dims = s->num_dtypes = MAX_VALUES;
  tsr_status status = options_int_list(o->seqlen ? o->seqlen : "512,1024,2048,4096", "--seqlen", 1, INT64_C(1) << 32,
                                       s->seqlens, &s->num_seqlens, err);
  if (status == TSR_OK)
    status = options_int_list(o->head_dim ? o->head_dim
                              : o->versus ? "64"
                                          : "64,128",
                              "--head-dim", 1, TSR_MAX_HEAD_DIM, s->head_dims, &s->num_head_dims, err);
  if (status == TSR_OK)
    status = options_dtype_list(o->dtype ? o->dtype : "f32", "--dtype", s->dtypes, &s->num_dtypes, err);
  if (status == TSR_OK && (o->seqlen_q || o->seqlen_k || o->input || o->inputs[INPUT_q]))
    tool_error(err, status = TSR_INVALID, "", "bench measures random input with equal lengths: use --seqlen");
  if (o->causal && !o->masks) {
    s->causal[s->num_masks++] = 1;
  } else {
    if (!o->masks || strstr(o->masks, "full"))
      s->causal[s->num_masks++] = 0;
    if (!o->masks || strstr(o->masks, "causal"))
      s->causal[s->num_masks++] = 1;
  }
  s->standard = o->versus != NULL;
  const int64_t count = (int64_t)s->num_seqlens * s->num_head_dims * s->num_dtypes * s->num_masks;
  s->points = calloc((size_t)count + 1, sizeof(*s->points));
  if (status == TSR_OK && !s->points)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for %lld points", (long long)count);
  return status;
}

/* What is being measured, until its row replaces it. */
static void announce(const tool_options *o, const bench_case *c, int on) {
  if (!o->term.bar || o->quiet)
    return;
  if (on)
    fprintf(stderr, "\r\x1b[K%s D=%lld S=%lld %s ...", tsr_dtype_name(c->dtype), (long long)c->head_dim,
            (long long)c->seqlen, c->causal ? "causal" : "full");
  else
    fprintf(stderr, "\r\x1b[K");
  fflush(stderr);
}

static tsr_status measure_all(sweep *s, tool_engine *engine, tool_options *o, tsr_error *err) {
  bench_case c = {0,
                  0,
                  0,
                  0,
                  s->standard,
                  o->repeats.given ? (int32_t)o->repeats.value : 5,
                  o->min_time.given ? o->min_time.value : 0.2};
  tsr_status status = TSR_OK;
  const int total = s->num_dtypes * s->num_head_dims * s->num_masks * s->num_seqlens;
  for (int i = 0; i < total && status == TSR_OK; i++) {
    c.seqlen = s->seqlens[i % s->num_seqlens];
    c.causal = s->causal[i / s->num_seqlens % s->num_masks];
    c.head_dim = s->head_dims[i / s->num_seqlens / s->num_masks % s->num_head_dims];
    c.dtype = s->dtypes[i / s->num_seqlens / s->num_masks / s->num_head_dims];
    announce(o, &c, 1);
    status = bench_measure(engine, o, &c, &s->points[s->num_points], err);
    announce(o, &c, 0);
    if (status == TSR_OK && !o->json)
      bench_print_point(&o->term, &s->points[s->num_points], s->standard);
    s->num_points += status == TSR_OK;
  }
  return status;
}

static void write_json(const sweep *s, const tool_engine *engine, const tool_options *o, tool_text *out) {
  json_writer w = {out, 0, 0};
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "bench");
  json_put_string(&w, "op", o->backward ? "backward" : "forward");
  report_machine_json(&w);
  report_device_json(&w, &engine->info);
  json_open(&w, "results", '[');
  for (int32_t i = 0; i < s->num_points; i++)
    bench_json(&w, &s->points[i]);
  json_close(&w, ']');
  json_put_string(&w, "svg", o->svg);
  json_put_int(&w, "exit_code", TOOL_OK);
  json_close(&w, '}');
}

static tsr_status save_results(const sweep *s, const tool_engine *engine, const tool_options *o, tool_text *json,
                               tsr_error *err) {
  tool_text chart = {0};
  char machine[256];
  tsr_status status = TSR_OK;
  report_machine(machine);
  write_json(s, engine, o, json);
  if (o->svg)
    bench_chart(&chart, s->points, s->num_points, s->standard, machine);
  if (json->failed || chart.failed)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for the results");
  if (status == TSR_OK && o->output)
    status = output_save(o->output, json->data, (int64_t)json->len, err);
  if (status == TSR_OK && o->svg)
    status = output_save(o->svg, chart.data, (int64_t)chart.len, err);
  text_free(&chart);
  return status;
}

static void print_context(const tool_engine *engine, const tool_options *o, const sweep *s) {
  char machine[256];
  report_machine(machine);
  printf("%s\n%s: %s\n%s, random data, warm, median; ", machine, engine->info.name, engine->info.description,
         o->backward ? "backward" : "forward");
  printf("batch %lld, %lld heads\n", o->batch.given ? (long long)o->batch.value : 1LL,
         o->heads.given ? (long long)o->heads.value : 8LL);
  if (s->standard)
    printf("standard: the scores [B,H,S,S] in memory in f32, softmax over them, their product with v; %s\n",
           engine->info.host_memory ? "same threads" : "on this machine's CPU");
  if (s->standard && !engine->info.host_memory)
    printf("memory: of tessera the workspace on %s, of standard the peak on the CPU, both beyond inputs and outputs\n",
           engine->info.name);
  printf("\n");
  bench_print_heading(&o->term, s->standard);
}

static int bench(tool_options *options) {
  sweep s;
  tool_engine engine;
  tool_text json = {0};
  tsr_error err;
  memset(&s, 0, sizeof(s));
  memset(&engine, 0, sizeof(engine));
  if (options->num_arguments > 0) {
    fprintf(stderr, "tessera bench: '%s' is no option\n", options->arguments[0]);
    return TOOL_USAGE;
  }
  tsr_status status = read_sweep(&s, options, &err);
  if (status == TSR_OK)
    status = engine_open(&engine, options, NULL, NULL, &err);
  if (status == TSR_OK && !engine.info.computes)
    tool_error(&err, status = TSR_UNSUPPORTED, "", "device %s records launches and computes nothing", engine.info.name);
  if (status == TSR_OK && !options->json)
    print_context(&engine, options, &s);
  if (status == TSR_OK)
    status = measure_all(&s, &engine, options, &err);
  if (status == TSR_OK)
    status = save_results(&s, &engine, options, &json, &err);
  int code = TOOL_OK;
  if (status != TSR_OK) {
    code = tool_fail(options, &err);
  } else if (options->json) {
    fputs(json.data, stdout);
  } else {
    if (options->output)
      printf("\nsaved %s\n", options->output);
    if (options->svg)
      printf("\nchart %s\n", options->svg);
  }
  text_free(&json);
  free(s.points);
  engine_close(&engine);
  return code;
}

const tool_command command_bench = {
    "bench",
    "sweeps over sizes and element types; time and memory beside materialised attention",
    "[sizes as lists] [options]",
    "Measures attention on random data: warm, at least --repeats runs and --min-time seconds a point, the median "
    "counts. FLOPs are\n"
    "4 S S D a head, half of that when causal; traffic is the IO model's bytes in that time. On a device, runs are\n"
    "enqueued in groups of some milliseconds and waited for. With --vs standard, time and peak memory stand beside "
    "attention as it "
    "is\n"
    "usually written down: all scores in memory, in f32, with blocked and vectorised products on the same threads.\n",
    "  tessera bench --seqlen 512,1024,2048,4096 --head-dim 64,128 --dtype f32,bf16\n"
    "  tessera bench --vs standard --masks causal --svg bench.svg\n"
    "  tessera bench --backward --seqlen 2048 -o results.json\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_SHAPE | OPTION_GROUP_ATTENTION | OPTION_GROUP_BENCH,
    bench};
