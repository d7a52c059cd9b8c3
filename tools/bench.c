/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standard.h"
#include "svg.h"
#include "tessera/cpu.h"

/* ---- Tessera --------------------------------------------------------------------------------- */

typedef struct library_work {
  engine_plan plan;
  int32_t times; /* runs between two waits: on a device waiting takes a while of its own */
} library_work;

static tsr_status run_library(void *arg, tsr_error *err) {
  library_work *work = arg;
  return engine_repeat(&work->plan, work->times, err);
}

/* Enough runs for a device to be busy for some milliseconds. */
static tsr_status choose_times(const tool_engine *engine, library_work *work, tsr_error *err) {
  work->times = 1;
  if (engine->info.host_memory)
    return TSR_OK;
  const double start = term_seconds();
  const tsr_status status = run_library(work, err);
  const double seconds = term_seconds() - start;
  work->times = seconds >= 5e-3 ? 1 : seconds <= 5e-5 ? 100 : (int32_t)(5e-3 / seconds);
  return status;
}

static tsr_status measure_library(tool_engine *engine, const tool_problem *problem, bench_point *point,
                                  tsr_error *err) {
  const tsr_attention_desc *desc = problem->has_backward ? &problem->backward : &problem->forward;
  const tsr_run_args *args = problem->has_backward ? &problem->backward_args : &problem->forward_args;
  library_work work;
  measure_memory memory;
  tsr_plan_info info;
  tsr_status status = TSR_OK;
  if (problem->has_backward) { /* o and lse for the gradients */
    engine_report report;
    status = engine_run(engine, &problem->forward, &problem->forward_args, NULL, &report, err);
  }
  if (status != TSR_OK)
    return status;
  work.times = 1;
  measure_memory_begin(&memory);
  status = engine_prepare(engine, desc, args, &work.plan, err);
  if (status != TSR_OK)
    return status;
  status = run_library(&work, err);
  /* the system's account knows nothing of a device's memory, but there the workspace is all that a run takes */
  point->peak_bytes = engine->info.host_memory ? measure_memory_end(&memory) : -1;
  if (status == TSR_OK)
    status = engine_fetch(&work.plan, err);
  if (status == TSR_OK)
    status = choose_times(engine, &work, err);
  if (status == TSR_OK)
    status = measure_repeat(run_library, &work, point->of.repeats, point->of.min_seconds, &point->time, err);
  point->time.median /= work.times;
  point->time.least /= work.times;
  point->time.most /= work.times;
  point->time.repeats *= work.times;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  if (status == TSR_OK)
    status = tsr_plan_get(work.plan.plan, &info, err);
  if (status == TSR_OK) {
    snprintf(point->variant, sizeof(point->variant), "%s", info.variant);
    point->flops = info.flops;
    point->bytes = info.bytes_read + info.bytes_written;
    point->workspace_bytes = info.workspace_bytes;
  }
  engine_release(&work.plan);
  return status;
}

/* ---- Standard -------------------------------------------------------------------------------- */

typedef struct standard_work {
  standard_problem problem;
  const char *isa;
  float *scratch;
} standard_work;

static tsr_status run_standard(void *arg, tsr_error *err) {
  standard_work *work = arg;
  (void)err;
  standard_attention(&work->problem, work->isa, work->scratch);
  return TSR_OK;
}

/* An f32 copy of a contiguous tensor, or its own data. */
static const float *as_f32(const tool_tensor *t, tool_tensor *copy, tsr_error *err) {
  if (t->dtype == TSR_F32)
    return t->data;
  if (tensor_create(copy, TSR_F32, t->rank, t->shape, err) != TSR_OK)
    return NULL;
  for (int64_t i = 0; i < t->count; i++)
    ((float *)copy->data)[i] = (float)tsr_decode(t->dtype, t->data, i);
  return copy->data;
}

static double largest_difference(const tool_tensor *o, const float *other) {
  double largest = 0;
  for (int64_t i = 0; i < o->count; i++)
    largest = fmax(largest, fabs(tsr_decode(o->dtype, o->data, i) - other[i]));
  return largest;
}

static const char *best_level(void) {
  const char *last = strrchr(tsr_cpu_levels(), ' ');
  return last ? last + 1 : tsr_cpu_levels();
}

static tsr_status measure_standard(tool_engine *engine, const tool_problem *p, bench_point *point, tsr_error *err) {
  const int64_t available = sysconf(_SC_AVPHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
  tool_tensor copies[3], out;
  standard_work work;
  measure_memory memory;
  memset(copies, 0, sizeof(copies));
  memset(&work, 0, sizeof(work));
  const int host = engine->info.host_memory; /* it runs on the CPU in any case */
  work.isa = host ? engine->info.isa : best_level();
  work.problem = (standard_problem){NULL,
                                    NULL,
                                    NULL,
                                    NULL,
                                    p->num_sequences,
                                    p->heads,
                                    p->kv_heads,
                                    p->max_seqlen_q,
                                    p->max_seqlen_k,
                                    p->head_dim,
                                    p->v_head_dim,
                                    point->of.causal,
                                    (float)(1 / sqrt((double)p->head_dim)),
                                    host ? engine->info.num_threads : (int32_t)sysconf(_SC_NPROCESSORS_ONLN)};
  const int64_t bytes = point->standard_scratch_bytes = standard_scratch_bytes(&work.problem);
  if (bytes > available / 10 * 8)
    return TSR_OK; /* the table says how much it would need */
  tsr_status status = tensor_create(&out, TSR_F32, p->outputs[OUTPUT_o].rank, p->outputs[OUTPUT_o].shape, err);
  if (status != TSR_OK)
    return status;
  work.problem.o = out.data;
  work.problem.q = as_f32(&p->inputs[INPUT_q], &copies[0], err);
  work.problem.k = work.problem.q ? as_f32(&p->inputs[INPUT_k], &copies[1], err) : NULL;
  work.problem.v = work.problem.k ? as_f32(&p->inputs[INPUT_v], &copies[2], err) : NULL;
  if (!work.problem.v)
    status = err->status;
  if (status == TSR_OK) {
    measure_memory_begin(&memory);
    work.scratch = engine_pages(bytes);
    if (!work.scratch)
      tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for %lld bytes of scores", (long long)bytes);
  }
  if (status == TSR_OK) {
    run_standard(&work, err);
    point->standard_peak_bytes = measure_memory_end(&memory);
    point->difference = largest_difference(&p->outputs[OUTPUT_o], out.data);
    status = measure_repeat(run_standard, &work, point->of.repeats, point->of.min_seconds, &point->standard, err);
    point->has_standard = status == TSR_OK;
  }
  engine_pages_free(work.scratch, bytes);
  for (int i = 0; i < 3; i++)
    tensor_free(&copies[i]);
  tensor_free(&out);
  return status;
}

static tsr_status check_standard(const tool_problem *p, const bench_case *of, tsr_error *err) {
  char features[256];
  report_features(p, features);
  if (!p->has_backward && !p->bhsd && strcmp(features, of->causal ? "causal" : "no mask") == 0)
    return TSR_OK;
  tool_error(err, TSR_UNSUPPORTED, "vs", "--vs standard knows full and causal forward attention in bshd only, not %s%s",
             features, p->has_backward ? " backward" : "");
  return err->status;
}

tsr_status bench_measure(tool_engine *engine, const tool_options *options, const bench_case *of, bench_point *point,
                         tsr_error *err) {
  const problem_sizes sizes = {of->seqlen, of->seqlen, of->head_dim, 0, of->dtype, of->causal};
  tool_problem problem;
  memset(point, 0, sizeof(*point));
  point->of = *of;
  point->peak_bytes = point->standard_peak_bytes = -1;
  tsr_status status = problem_build(&problem, options, &sizes, 0, err);
  if (status != TSR_OK)
    return status;
  point->batch = problem.num_sequences;
  point->heads = problem.heads;
  point->heads_kv = problem.kv_heads;
  point->seqlen_q = problem.max_seqlen_q;
  point->seqlen_k = problem.max_seqlen_k;
  if (of->beside_standard)
    status = check_standard(&problem, of, err);
  if (status == TSR_OK)
    status = measure_library(engine, &problem, point, err);
  if (status == TSR_OK && of->beside_standard)
    status = measure_standard(engine, &problem, point, err);
  problem_free(&problem);
  return status;
}

/* ---- Table and JSON -------------------------------------------------------------------------- */

void bench_print_heading(const tool_term *term, int standard) {
  printf("%s", term_style(term, STYLE_BOLD));
  if (standard) /* within 80 columns */
    printf("%-5s %4s %6s %-6s %8s %8s %6s %9s %9s %7s", "dtype", "D", "S", "mask", "time", "standard", "ratio",
           "memory", "standard", "ratio");
  else
    printf("%-5s %4s %7s %-6s %9s %14s %10s  %s", "dtype", "D", "S", "mask", "time", "rate", "traffic", "variant");
  printf("%s\n", term_style(term, STYLE_RESET));
}

/* "8.40x", or "200x" when large. */
static const char *format_ratio(term_number out, double ratio) {
  snprintf(out, sizeof(term_number), ratio < 9.95 ? "%.2fx" : ratio < 99.5 ? "%.1fx" : "%.0fx", ratio);
  return out;
}

/* The system's account of resident pages lags by some; the workspace is certain. */
static double extra_bytes(const bench_point *p) {
  return (double)(p->peak_bytes > p->workspace_bytes ? p->peak_bytes : p->workspace_bytes);
}

static double standard_bytes(const bench_point *p) {
  return (double)(p->standard_peak_bytes >= 0 ? p->standard_peak_bytes : p->standard_scratch_bytes);
}

static void print_beside(const tool_term *term, const bench_point *p) {
  term_number a, b, c, d;
  printf("%-5s %4lld %6lld %-6s %8s", tsr_dtype_name(p->of.dtype), (long long)p->of.head_dim, (long long)p->of.seqlen,
         p->of.causal ? "causal" : "full", format_seconds(a, p->time.median));
  if (p->has_standard) {
    const double ratio = p->standard.median / p->time.median;
    printf(" %8s %s%6s%s %9s %9s", format_seconds(a, p->standard.median),
           term_style(term, ratio >= 1 ? STYLE_GREEN : STYLE_YELLOW), format_ratio(b, ratio),
           term_style(term, STYLE_RESET), format_bytes(c, extra_bytes(p)), format_bytes(d, standard_bytes(p)));
  } else {
    printf(" %8s %6s %9s %9s", "-", "-", format_bytes(a, extra_bytes(p)), format_bytes(b, standard_bytes(p)));
  }
  if (extra_bytes(p) > 0)
    printf(" %s%7s%s", term_style(term, STYLE_GREEN), format_ratio(a, standard_bytes(p) / extra_bytes(p)),
           term_style(term, STYLE_RESET));
  printf("%s\n", p->has_standard ? "" : "  not run: too large here");
}

void bench_print_point(const tool_term *term, const bench_point *p, int standard) {
  term_number time, rate;
  if (standard)
    print_beside(term, p);
  else
    printf("%-5s %4lld %7lld %-6s %9s %14s %6.1f GB/s  %s%s, %d runs%s\n", tsr_dtype_name(p->of.dtype),
           (long long)p->of.head_dim, (long long)p->of.seqlen, p->of.causal ? "causal" : "full",
           format_seconds(time, p->time.median), format_flops(rate, p->flops / p->time.median),
           p->bytes / p->time.median * 1e-9, term_style(term, STYLE_DIM), p->variant, p->time.repeats,
           term_style(term, STYLE_RESET));
  fflush(stdout);
}

static void time_json(json_writer *w, const char *name, const measure_time *t) {
  json_open(w, name, '{');
  json_put_double(w, "median_seconds", t->median);
  json_put_double(w, "least_seconds", t->least);
  json_put_double(w, "most_seconds", t->most);
  json_put_int(w, "repeats", t->repeats);
  json_close(w, '}');
}

static void memory_json(json_writer *w, const char *name, int64_t bytes) {
  if (bytes >= 0)
    json_put_int(w, name, bytes);
}

void bench_json(json_writer *w, const bench_point *p) {
  json_open(w, NULL, '{');
  json_put_string(w, "dtype", tsr_dtype_name(p->of.dtype));
  json_put_int(w, "batch", p->batch);
  json_put_int(w, "heads", p->heads);
  json_put_int(w, "heads_kv", p->heads_kv);
  json_put_int(w, "seqlen_q", p->seqlen_q);
  json_put_int(w, "seqlen_k", p->seqlen_k);
  json_put_int(w, "head_dim", p->of.head_dim);
  json_put_bool(w, "causal", p->of.causal);
  json_put_string(w, "variant", p->variant);
  time_json(w, "time", &p->time);
  json_put_double(w, "flops", p->flops);
  json_put_double(w, "flops_per_second", p->flops / p->time.median);
  json_put_double(w, "predicted_bytes", p->bytes);
  json_put_double(w, "predicted_bytes_per_second", p->bytes / p->time.median);
  json_put_int(w, "workspace_bytes", p->workspace_bytes);
  memory_json(w, "peak_bytes", p->peak_bytes);
  if (p->of.beside_standard) {
    json_open(w, "standard", '{');
    json_put_bool(w, "ran", p->has_standard);
    json_put_int(w, "scratch_bytes", p->standard_scratch_bytes);
    if (p->has_standard) {
      time_json(w, "time", &p->standard);
      memory_json(w, "peak_bytes", p->standard_peak_bytes);
      json_put_double(w, "max_difference", p->difference);
      json_put_double(w, "time_ratio", p->standard.median / p->time.median);
    }
    json_close(w, '}');
  }
  json_close(w, '}');
}

/* ---- Chart ----------------------------------------------------------------------------------- */

static const char *rate_label(char out[40], double value) {
  return format_flops(out, value);
}

/* Powers of ten without decimals. */
static const char *seconds_label(char out[40], double value) {
  const double scale = value >= 0.999 ? 1 : value >= 0.999e-3 ? 1e3 : 1e6;
  snprintf(out, 40, "%.0f %s", value * scale, scale == 1 ? "s" : scale == 1e3 ? "ms" : "us");
  return out;
}

static const char *bytes_label(char out[40], double value) {
  return format_bytes(out, value);
}

static void add_value(chart_series *s, double x, double y) {
  if (y > 0 && s->count < CHART_MAX_POINTS) {
    s->x[s->count] = x;
    s->y[s->count++] = y;
  }
}

/* Points that differ from the first in nothing but the sequence length. */
static int same_line(const bench_point *a, const bench_point *b) {
  return a->of.dtype == b->of.dtype && a->of.head_dim == b->of.head_dim && a->of.causal == b->of.causal;
}

static void start_series(chart_series *s, const char *name, const char *color) {
  memset(s, 0, sizeof(*s));
  snprintf(s->name, sizeof(s->name), "%s", name);
  s->color = color;
}

static int32_t standard_panels_of(const bench_point *points, int32_t count, chart_panel *panels) {
  const bench_point *line = &points[count - 1]; /* causal, the largest head dimension */
  for (int i = 0; i < 2; i++) {
    panels[i].title = i == 0 ? "Time (median)" : "Peak memory beyond inputs and output";
    panels[i].format = i == 0 ? seconds_label : bytes_label;
    panels[i].y_step = i == 0 ? 10 : 16;
    panels[i].num_series = 2;
    start_series(&panels[i].series[0], "tessera", SVG_ACCENT);
    start_series(&panels[i].series[1], "standard: scores in memory", SVG_RIVAL);
  }
  for (int32_t i = 0; i < count; i++) {
    const bench_point *p = &points[i];
    const double x = (double)p->of.seqlen;
    if (!same_line(p, line))
      continue;
    add_value(&panels[0].series[0], x, p->time.median);
    add_value(&panels[1].series[0], x, extra_bytes(p));
    add_value(&panels[0].series[1], x, p->has_standard ? p->standard.median : 0);
    add_value(&panels[1].series[1], x, p->has_standard ? standard_bytes(p) : (double)p->standard_scratch_bytes);
  }
  return 2;
}

static int32_t rate_panel_of(const bench_point *points, int32_t count, chart_panel *panel) {
  static const char *const colors[] = {SVG_ACCENT, SVG_RIVAL, "#3ebd93", "#8719e0"};
  panel->title = "Rate (median)";
  panel->format = rate_label;
  panel->y_step = 10;
  int32_t firsts[CHART_MAX_SERIES] = {0}; /* a point of each line */
  for (int32_t i = 0; i < count; i++) {
    int32_t s = 0;
    while (s < panel->num_series && !same_line(&points[i], &points[firsts[s]]))
      s++;
    if (s == CHART_MAX_SERIES)
      continue;
    if (s == panel->num_series) {
      char name[48];
      snprintf(name, sizeof(name), "%s D=%lld %s", tsr_dtype_name(points[i].of.dtype), (long long)points[i].of.head_dim,
               points[i].of.causal ? "causal" : "full");
      firsts[panel->num_series++] = i;
      start_series(&panel->series[s], name, colors[s]);
    }
    add_value(&panel->series[s], (double)points[i].of.seqlen, points[i].flops / points[i].time.median);
  }
  return 1;
}

void bench_chart(tool_text *out, const bench_point *points, int32_t count, int standard, const char *machine) {
  chart_panel panels[2];
  char title[160];
  memset(panels, 0, sizeof(panels));
  const bench_point *last = &points[count - 1];
  const int32_t num_panels =
      standard ? standard_panels_of(points, count, panels) : rate_panel_of(points, count, panels);
  if (standard)
    snprintf(title, sizeof(title), "%s attention, %lld head%s, D = %lld, %s", last->of.causal ? "Causal" : "Full",
             (long long)last->heads, last->heads == 1 ? "" : "s", (long long)last->of.head_dim,
             tsr_dtype_name(last->of.dtype));
  else
    snprintf(title, sizeof(title), "Attention, %lld head%s", (long long)last->heads, last->heads == 1 ? "" : "s");
  chart_draw(out, title, machine, "sequence length", panels, num_panels);
}
