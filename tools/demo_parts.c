/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "demo.h"
#include "tests/conformance/engine/devices.h"

tool_options demo_options(const demo_state *demo) {
  const tool_options *from = demo->options;
  tool_options o;
  memset(&o, 0, sizeof(o));
  o.command = from->command;
  o.term = from->term;
  o.quiet = from->quiet;
  o.json = from->json;
  o.device = from->device;
  o.isa = from->isa;
  o.module = from->module;
  o.cache_dir = from->cache_dir;
  o.variant = from->variant;
  o.threads = from->threads;
  return o;
}

/* ---- 2. A long sequence ---------------------------------------------------------------------- */

enum { LONG_HEAD_DIM = 64, LONG_ROWS = 64 };

typedef struct long_result {
  int64_t seqlen, peak_bytes;
  double pairs, standard_bytes;
  engine_report report;
  verify_report verified;
} long_result;

static void print_long(const demo_state *demo, const long_result *r) {
  const tool_term *t = &demo->options->term;
  const verify_result *o = &r->verified.results[0];
  const int64_t workspace = r->report.plan.workspace_bytes; /* certain; the account of resident pages lags by some */
  const double extra = (double)(r->peak_bytes > workspace ? r->peak_bytes : workspace);
  term_number a, b;
  printf("  visible pairs    %s\n", format_count(a, r->pairs));
  printf("  time             %s%s%s, %s\n", term_style(t, STYLE_BOLD), format_seconds(a, r->report.seconds),
         term_style(t, STYLE_RESET), format_flops(b, r->report.plan.flops / r->report.seconds));
  printf("  extra memory     %s%s%s %s\n", term_style(t, STYLE_BOLD), format_bytes(a, extra),
         term_style(t, STYLE_RESET), r->peak_bytes >= 0 ? "(measured, beyond q, k, v and o)" : "(workspace)");
  printf("  the standard way %s%s%s for the scores alone\n", term_style(t, STYLE_BOLD),
         format_bytes(a, r->standard_bytes), term_style(t, STYLE_RESET));
  printf("  checked          %lld full rows against the float64 oracle, max error %.2g of %.2g allowed  %s%s%s\n",
         (long long)r->verified.rows, o->max_error, o->max_allowed,
         term_style(t, r->verified.passed ? STYLE_GREEN : STYLE_RED), r->verified.passed ? "ok" : "FAIL",
         term_style(t, STYLE_RESET));
}

static void long_json(json_writer *w, const long_result *r) {
  json_open(w, "long", '{');
  json_put_int(w, "seqlen", r->seqlen);
  json_put_double(w, "visible_pairs", r->pairs);
  json_put_string(w, "variant", r->report.variant);
  json_put_double(w, "seconds", r->report.seconds);
  json_put_double(w, "flops_per_second", r->report.plan.flops / r->report.seconds);
  json_put_int(w, "workspace_bytes", r->report.plan.workspace_bytes);
  if (r->peak_bytes >= 0)
    json_put_int(w, "extra_bytes", r->peak_bytes);
  json_put_double(w, "standard_bytes", r->standard_bytes);
  verify_json(w, &r->verified);
  json_close(w, '}');
}

tsr_status demo_long(demo_state *demo, tsr_error *err) {
  tool_options o = demo_options(demo);
  tool_problem problem;
  measure_memory memory;
  long_result r;
  memset(&r, 0, sizeof(r));
  r.seqlen = demo->options->long_seqlen.given ? demo->options->long_seqlen.value : 131072;
  o.heads.given = o.heads.value = 1;
  o.causal = 1;
  const problem_sizes sizes = {r.seqlen, r.seqlen, LONG_HEAD_DIM, 0, TSR_F32, 1};
  tsr_status status = problem_build(&problem, &o, &sizes, 0, err);
  if (status != TSR_OK)
    return status;
  r.pairs = (double)r.seqlen * (double)(r.seqlen + 1) / 2;
  r.standard_bytes = 4.0 * (double)r.seqlen * (double)r.seqlen;
  measure_memory_begin(&memory);
  status = engine_run(demo->engine, &problem.forward, &problem.forward_args, "  attention", &r.report, err);
  r.peak_bytes = demo->engine->info.host_memory ? measure_memory_end(&memory) : -1; /* a device: the workspace */
  r.verified.passed = 1;
  if (status == TSR_OK)
    status = verify_problem(demo->engine, &problem, LONG_ROWS, verify_threads(demo->options), &r.verified, err);
  if (status == TSR_OK) {
    demo->passed &= r.verified.passed;
    long_json(demo->w, &r);
    if (!demo->options->json)
      print_long(demo, &r);
  }
  problem_free(&problem);
  return status;
}

/* ---- 3. Devices x variants ------------------------------------------------------------------- */

typedef struct device_row {
  const char *device, *level, *variant;
  int32_t ran;
  double seconds, flops;
  verify_report verified;
  const char *why_not;
} device_row;

static void put_device_row(demo_state *demo, const device_row *r) {
  const tool_term *t = &demo->options->term;
  json_writer *w = demo->w;
  term_number time, rate;
  json_open(w, NULL, '{');
  json_put_string(w, "device", r->device);
  json_put_string(w, "level", r->level);
  json_put_string(w, "variant", r->variant);
  json_put_bool(w, "ran", r->ran);
  if (r->ran) {
    json_put_double(w, "seconds", r->seconds);
    json_put_double(w, "flops_per_second", r->flops / r->seconds);
    verify_json(w, &r->verified);
  } else {
    json_put_string(w, "why_not", r->why_not);
  }
  json_close(w, '}');
  if (demo->options->json)
    return;
  printf("  %-10s %-8s %-20s", r->device, r->level, r->variant);
  if (r->ran)
    printf(" %10.2g %10s %14s  %s%s%s\n", r->verified.results[0].max_error, format_seconds(time, r->seconds),
           format_flops(rate, r->flops / r->seconds), term_style(t, r->verified.passed ? STYLE_GREEN : STYLE_RED),
           r->verified.passed ? "ok" : "FAIL", term_style(t, STYLE_RESET));
  else
    printf(" %s%s%s\n", term_style(t, STYLE_DIM), r->why_not, term_style(t, STYLE_RESET));
  fflush(stdout);
}

typedef struct variant_work {
  engine_plan plan;
} variant_work;

static tsr_status run_variant(void *arg, tsr_error *err) {
  variant_work *work = arg;
  return engine_repeat(&work->plan, 1, err);
}

static tsr_status measure_variant(demo_state *demo, tool_engine *engine, const tool_problem *problem, device_row *row,
                                  tsr_error *err) {
  tsr_attention_desc desc = problem->forward;
  variant_work work;
  measure_time time;
  tsr_plan_info info;
  desc.variant = row->variant;
  memset(&row->verified, 0, sizeof(row->verified));
  row->verified.passed = 1;
  memset(problem->outputs[OUTPUT_o].data, 0xFF, (size_t)problem->outputs[OUTPUT_o].bytes); /* before copies are made */
  tsr_status status = engine_prepare(engine, &desc, &problem->forward_args, &work.plan, err);
  if (status == TSR_UNSUPPORTED) {
    row->why_not = err->text;
    put_device_row(demo, row);
    return TSR_OK;
  }
  if (status != TSR_OK)
    return status;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  status = measure_repeat(run_variant, &work, 3, 0.05, &time, err);
  if (status == TSR_OK)
    status = engine_fetch(&work.plan, err);
  if (status == TSR_OK)
    status = tsr_plan_get(work.plan.plan, &info, err);
  engine_release(&work.plan);
  if (status == TSR_OK)
    status = verify_problem(engine, problem, 0, verify_threads(demo->options), &row->verified, err);
  if (status != TSR_OK)
    return status;
  row->ran = 1;
  row->seconds = time.median;
  row->flops = info.flops;
  demo->passed &= row->verified.passed;
  put_device_row(demo, row);
  return TSR_OK;
}

static tsr_status measure_device(demo_state *demo, const tool_problem *problem, const char *name, const char *level,
                                 tsr_error *err) {
  tool_options o = demo_options(demo);
  tool_engine engine;
  o.variant = NULL;
  o.device = NULL;
  tsr_status status = engine_open(&engine, &o, name, level, err);
  if (status != TSR_OK)
    return status;
  device_row row = {engine.info.name, level ? level : engine.info.isa, "", 0, 0, 0, {0}, NULL};
  if (!engine.info.computes) {
    row.variant = "-";
    row.why_not = "records launches, computes nothing";
    put_device_row(demo, &row);
  }
  for (int32_t i = 0; engine.info.computes && status == TSR_OK; i++) {
    row.variant = tsr_device_variant(engine.device, TSR_OP_FORWARD, i);
    if (!row.variant)
      break;
    row.ran = 0;
    status = measure_variant(demo, &engine, problem, &row, err);
  }
  engine_close(&engine);
  return status;
}

typedef struct device_walk {
  demo_state *demo;
  const tool_problem *problem;
  tsr_status status;
  tsr_error *err;
} device_walk;

static int measure_place(void *user, const char *device, const char *level) {
  device_walk *w = user;
  w->status = measure_device(w->demo, w->problem, device, level, w->err);
  return w->status != TSR_OK;
}

/* The CPU once per instruction set level, every other device once. */
static tsr_status measure_backend(demo_state *demo, const tool_problem *problem, const tsr_backend_info *backend,
                                  tsr_error *err) {
  device_walk walk = {demo, problem, TSR_OK, err};
  if (backend->why_not) {
    const device_row row = {backend->name, "", "-", 0, 0, 0, {0}, backend->why_not};
    put_device_row(demo, &row);
    return TSR_OK;
  }
  conf_devices_of(backend, measure_place, &walk);
  return walk.status;
}

tsr_status demo_devices(demo_state *demo, tsr_error *err) {
  const tool_term *t = &demo->options->term;
  tool_options o = demo_options(demo);
  const problem_sizes sizes = {512, 512, 64, 0, TSR_F32, 1};
  tool_problem problem;
  o.variant = NULL;
  o.heads.given = 1;
  o.heads.value = 4;
  tsr_status status = problem_build(&problem, &o, &sizes, 0, err);
  if (status != TSR_OK)
    return status;
  json_open(demo->w, "devices", '[');
  if (!demo->options->json)
    printf("  %s%-10s %-8s %-20s %10s %10s %14s%s\n", term_style(t, STYLE_BOLD), "device", "level", "variant",
           "max error", "time", "rate", term_style(t, STYLE_RESET));
  for (int32_t i = 0; i < tsr_backend_count(demo->engine->context) && status == TSR_OK; i++) {
    tsr_backend_info backend;
    memset(&backend, 0, sizeof(backend));
    backend.size = sizeof(backend);
    status = tsr_backend_get(demo->engine->context, i, &backend, err);
    if (status == TSR_OK)
      status = measure_backend(demo, &problem, &backend, err);
  }
  json_close(demo->w, ']');
  problem_free(&problem);
  return status;
}

/* ---- 4. Beside materialised attention -------------------------------------------------------- */

tsr_status demo_standard(demo_state *demo, const char *svg, tsr_error *err) {
  static const int64_t seqlens[] = {512, 1024, 2048, 4096};
  enum { COUNT = sizeof(seqlens) / sizeof(seqlens[0]) };
  bench_point points[COUNT];
  tool_options o = demo_options(demo);
  tool_text chart = {0};
  char machine[256];
  tsr_status status = TSR_OK;
  o.heads.given = 1;
  o.heads.value = 4;
  json_open(demo->w, "bench", '[');
  if (!demo->options->json)
    bench_print_heading(&o.term, 1);
  for (int i = 0; i < COUNT && status == TSR_OK; i++) {
    const bench_case c = {TSR_F32, 64, seqlens[i], 1, 1, 3, 0.2};
    status = bench_measure(demo->engine, &o, &c, &points[i], err);
    if (status == TSR_OK) {
      bench_json(demo->w, &points[i]);
      if (!demo->options->json)
        bench_print_point(&o.term, &points[i], 1);
    }
  }
  json_close(demo->w, ']');
  if (status != TSR_OK)
    return status;
  report_machine(machine);
  bench_chart(&chart, points, COUNT, 1, machine);
  if (chart.failed)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for the chart");
  else
    status = output_save(svg, chart.data, (int64_t)chart.len, err);
  text_free(&chart);
  return status;
}
