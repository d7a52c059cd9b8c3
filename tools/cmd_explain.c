/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera explain`: the plan of a problem without running it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"

typedef struct explanation {
  const tool_options *options;
  tool_problem problem;
  tool_engine engine;
  tsr_verdict *verdicts;
  int32_t num_verdicts;
  tsr_status plan_status; /* TSR_UNSUPPORTED still has verdicts worth printing */
  tsr_error plan_error;
  tsr_plan *plan;
  tsr_plan_info info;
  int64_t bound_bytes, bound_align;
} explanation;

static tsr_status explain_verdicts(explanation *e, const tsr_attention_desc *desc, tsr_error *err) {
  tsr_status status = tsr_attention_verdicts(e->engine.device, desc, NULL, &e->num_verdicts, err);
  if (status != TSR_OK)
    return status;
  e->verdicts = calloc((size_t)e->num_verdicts + 1, sizeof(*e->verdicts));
  if (!e->verdicts) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for %d verdicts", e->num_verdicts);
    return err->status;
  }
  return tsr_attention_verdicts(e->engine.device, desc, e->verdicts, &e->num_verdicts, err);
}

static tsr_status explain_plan(explanation *e, tsr_error *err) {
  tsr_attention_desc *desc = e->problem.has_backward ? &e->problem.backward : &e->problem.forward;
  desc->memory = TSR_MEMORY_NATIVE;
  tsr_status status = explain_verdicts(e, desc, err);
  if (status != TSR_OK)
    return status;
  e->plan_status = tsr_plan_attention(e->engine.device, desc, &e->plan, &e->plan_error);
  if (e->plan_status == TSR_UNSUPPORTED)
    return TSR_OK;
  *err = e->plan_error;
  if (e->plan_status != TSR_OK)
    return e->plan_status;
  e->info.size = sizeof(e->info);
  status = tsr_plan_get(e->plan, &e->info, err);
  if (status == TSR_OK)
    status = tsr_workspace_bound(e->engine.device, desc, &e->bound_bytes, &e->bound_align, err);
  return status;
}

/* ---- For people ------------------------------------------------------------------------------ */

static void print_verdicts(const explanation *e) {
  const tool_term *t = &e->options->term;
  printf("\n");
  term_heading(t, "variants", "best first");
  for (int32_t i = 0; i < e->num_verdicts; i++) {
    const tsr_verdict *v = &e->verdicts[i];
    printf("  %s%-8s%s %-24s %s\n",
           term_style(t, v->chosen     ? STYLE_GREEN
                         : v->accepted ? STYLE_CYAN
                                       : STYLE_YELLOW),
           v->chosen     ? "chosen"
           : v->accepted ? "could"
                         : "refused",
           term_style(t, STYLE_RESET), v->variant, v->reason);
  }
}

static void print_plan(const explanation *e) {
  const tool_term *t = &e->options->term;
  const tsr_plan_info *p = &e->info;
  term_number a, b, c;
  printf("\n");
  term_heading(t, "plan", NULL);
  printf("  %-22s %s on %s\n", "variant", p->variant, e->engine.info.name);
  printf("  %-22s %d queries x %d keys", "tile", p->tile_q, p->tile_k);
  if (p->gqa_packed > 1)
    printf(", %d query heads share one", p->gqa_packed);
  printf("\n  %-22s %d:", "launches", p->num_launches);
  const char *name = tsr_plan_launch(e->plan, 0);
  for (int32_t i = 0; name; name = tsr_plan_launch(e->plan, ++i))
    printf(" %s", name);
  printf("\n  %-22s %d\n", "splits of the keys", p->num_splits);
  printf("  %-22s %s, aligned to %lld (at most %s for any smaller problem)\n", "workspace",
         format_bytes(a, (double)p->workspace_bytes), (long long)p->workspace_align,
         format_bytes(b, (double)e->bound_bytes));
  printf("  %-22s %s of %s", "tiles visited", format_count(a, (double)p->tiles_visited),
         format_count(b, (double)p->tiles_total));
  if (p->tiles_total > 0)
    printf("  %s(%.1f %% saved; masks in tensors and expressions may save more)%s", term_style(t, STYLE_DIM),
           100 * (1 - (double)p->tiles_visited / (double)p->tiles_total), term_style(t, STYLE_RESET));
  printf("\n  %-22s %.4g\n", "FLOPs", p->flops);
  printf("  %-22s %s read, %s written\n", "predicted traffic", format_bytes(a, p->bytes_read),
         format_bytes(b, p->bytes_written));
  const double traffic = p->bytes_read + p->bytes_written;
  printf("  %-22s %s", "least possible", format_bytes(c, p->bytes_minimum));
  if (p->bytes_minimum > 0)
    printf("  %s(the plan moves %.2f times that)%s", term_style(t, STYLE_DIM), traffic / p->bytes_minimum,
           term_style(t, STYLE_RESET));
  if (traffic > 0)
    printf("\n  %-22s %.1f FLOP per byte", "intensity", p->flops / traffic);
  const double scores = 4.0 * (double)e->problem.num_sequences * (double)e->problem.heads *
                        (double)e->problem.max_seqlen_q * (double)e->problem.max_seqlen_k;
  printf("\n  %-22s %s for the scores alone, in f32\n", "materialised", format_bytes(a, scores));
}

static void print_explanation(const explanation *e) {
  char features[256];
  report_features(&e->problem, features);
  report_tensors(e->options, &e->problem);
  printf("%-13s %s%s\n", "features", features, e->problem.has_backward ? " (backward)" : "");
  printf("%-13s %s  %s%s%s\n", "device", e->engine.info.name, term_style(&e->options->term, STYLE_DIM),
         e->engine.info.description, term_style(&e->options->term, STYLE_RESET));
  print_verdicts(e);
  if (e->plan_status == TSR_OK)
    print_plan(e);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static int print_json(const explanation *e, int code) {
  const tsr_plan_info *p = &e->info;
  tool_text out = {0};
  json_writer w = {&out, 0, 0};
  char features[256];
  report_features(&e->problem, features);
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "explain");
  report_device_json(&w, &e->engine.info);
  report_tensors_json(&w, &e->problem);
  json_put_string(&w, "features", features);
  json_put_string(&w, "op", e->problem.has_backward ? "backward" : "forward");
  json_open(&w, "variants", '[');
  for (int32_t i = 0; i < e->num_verdicts; i++) {
    json_open(&w, NULL, '{');
    json_put_string(&w, "name", e->verdicts[i].variant);
    json_put_bool(&w, "accepted", e->verdicts[i].accepted);
    json_put_bool(&w, "chosen", e->verdicts[i].chosen);
    json_put_string(&w, "reason", e->verdicts[i].reason);
    json_close(&w, '}');
  }
  json_close(&w, ']');
  if (e->plan_status == TSR_OK) {
    json_open(&w, "plan", '{');
    json_put_string(&w, "variant", p->variant);
    json_open(&w, "launches", '[');
    const char *name = tsr_plan_launch(e->plan, 0);
    for (int32_t i = 0; name; name = tsr_plan_launch(e->plan, ++i))
      json_put_string(&w, NULL, name);
    json_close(&w, ']');
    json_put_int(&w, "tile_q", p->tile_q);
    json_put_int(&w, "tile_k", p->tile_k);
    json_put_int(&w, "num_splits", p->num_splits);
    json_put_int(&w, "gqa_packed", p->gqa_packed);
    json_put_int(&w, "workspace_bytes", p->workspace_bytes);
    json_put_int(&w, "workspace_align", p->workspace_align);
    json_put_int(&w, "workspace_bound_bytes", e->bound_bytes);
    json_put_int(&w, "tiles_total", p->tiles_total);
    json_put_int(&w, "tiles_visited", p->tiles_visited);
    json_put_double(&w, "flops", p->flops);
    json_put_double(&w, "bytes_read", p->bytes_read);
    json_put_double(&w, "bytes_written", p->bytes_written);
    json_put_double(&w, "bytes_minimum", p->bytes_minimum);
    json_close(&w, '}');
  } else {
    json_put_string(&w, "why_not", e->plan_error.text);
  }
  json_put_int(&w, "exit_code", code);
  json_close(&w, '}');
  return report_print_json(&out) == TOOL_OK ? code : TOOL_FAILED;
}

static int explain(tool_options *options) {
  explanation e;
  tsr_error err;
  memset(&e, 0, sizeof(e));
  e.options = options;
  if (options->num_arguments > 0) {
    fprintf(stderr, "tessera explain: '%s' is no option\n", options->arguments[0]);
    return TOOL_USAGE;
  }
  tsr_status status = problem_build(&e.problem, options, NULL, PROBLEM_NO_DATA, &err);
  if (status == TSR_OK)
    status = engine_open(&e.engine, options, NULL, NULL, &err);
  if (status == TSR_OK)
    status = explain_plan(&e, &err);
  int code;
  if (status != TSR_OK) {
    code = tool_fail(options, &err);
  } else {
    code = tool_exit_code(e.plan_status);
    if (options->json)
      code = print_json(&e, code);
    else
      print_explanation(&e);
    if (e.plan_status != TSR_OK)
      fprintf(stderr, "tessera explain: unsupported: %s\n", e.plan_error.text);
  }
  tsr_plan_destroy(e.plan);
  free(e.verdicts);
  engine_close(&e.engine);
  problem_free(&e.problem);
  return code;
}

const tool_command command_explain = {
    "explain",
    "the plan of a problem: variant, refusals, tiles, launches, predicted bytes",
    "[FILE.safetensors | --q Q --k K --v V | sizes] [options]",
    "Plans a problem without running it and says which kernel variant would run, why the others would not, and what "
    "it\n"
    "costs: tiles, launches, splits, workspace, FLOPs, and the bytes an IO model predicts beside the least possible.\n",
    "  tessera explain --seqlen 8192 --heads 32 --heads-kv 8 --head-dim 128 --causal\n"
    "  tessera explain --seqlen-q 1 --seqlen-k 32768 --heads 32 --heads-kv 8 --dtype bf16\n"
    "  tessera explain layer.safetensors --causal --backward --json\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_SHAPE | OPTION_GROUP_ATTENTION | OPTION_GROUP_INPUT,
    explain};
