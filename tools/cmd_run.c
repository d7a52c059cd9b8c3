/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera run`: attention on files or random tensors, checked and saved as asked. */
#include <stdio.h>
#include <string.h>

#include "report.h"
#include "verify.h"

/* ---- Where outputs go ------------------------------------------------------------------------ */

/* The file of each output; NULL: not saved. */
typedef struct save_plan {
  const char *path[OUTPUT_COUNT];
} save_plan;

static int is_default_output(const tool_problem *problem, int32_t output) {
  if (problem->outputs[output].dtype == TSR_DTYPE_NONE)
    return 0;
  return problem->has_backward ? output >= OUTPUT_dq : output <= OUTPUT_lse;
}

static tsr_status plan_saves(const tool_options *options, const tool_problem *problem, save_plan *plan,
                             tsr_error *err) {
  memset(plan, 0, sizeof(*plan));
  const char *path = options->output;
  if (path && path_has_suffix(path, ".safetensors")) {
    for (int32_t i = 0; i < OUTPUT_COUNT; i++)
      plan->path[i] = is_default_output(problem, i) ? path : NULL;
  } else if (path && path_has_suffix(path, ".npy") && !problem->has_backward) {
    plan->path[OUTPUT_o] = path;
  } else if (path) {
    tool_error(err, TSR_INVALID, "output", "--output: '%.200s' does not end in .safetensors%s", path,
               problem->has_backward ? ", which holds all gradients" : " or .npy");
    return err->status;
  }
  for (int32_t i = 0; i < OUTPUT_COUNT; i++) {
    path = options->outputs[i];
    if (!path)
      continue;
    if (problem->outputs[i].dtype == TSR_DTYPE_NONE) {
      tool_error(err, TSR_INVALID, "", "--save-%s: this run makes no %s%s", problem_output_name(i),
                 problem_output_name(i), i >= OUTPUT_dq && !problem->has_backward ? " (add --backward)" : "");
      return err->status;
    }
    if (!path_has_suffix(path, ".npy") && !path_has_suffix(path, ".safetensors")) {
      tool_error(err, TSR_INVALID, "", "--save-%s: '%.200s' does not end in .npy or .safetensors",
                 problem_output_name(i), path);
      return err->status;
    }
    plan->path[i] = path;
  }
  return TSR_OK;
}

static tsr_status save_file(const tool_problem *problem, const save_plan *plan, int32_t first, tool_output *output,
                            tsr_error *err) {
  const char *names[OUTPUT_COUNT], *path = plan->path[first];
  const tool_tensor *tensors[OUTPUT_COUNT];
  static const char *const metadata[] = {"written_by", "tessera", NULL};
  int64_t count = 0;
  int32_t index;
  tsr_status status = output_open(output, path, &index, err);
  if (status != TSR_OK)
    return status;
  if (path_has_suffix(path, ".npy"))
    return npy_write(output, index, &problem->outputs[first], err);
  for (int32_t i = first; i < OUTPUT_COUNT; i++) {
    if (plan->path[i] && strcmp(plan->path[i], path) == 0) {
      names[count] = problem_output_name(i);
      tensors[count++] = &problem->outputs[i];
    }
  }
  return safetensors_write(output, index, names, tensors, count, metadata, err);
}

static tsr_status save_outputs(const tool_problem *problem, const save_plan *plan, tsr_error *err) {
  tool_output output = {0};
  tsr_status status = TSR_OK;
  for (int32_t i = 0; i < OUTPUT_COUNT && status == TSR_OK; i++) {
    int repeated = 0;
    for (int32_t j = 0; j < i && plan->path[i]; j++)
      repeated |= plan->path[j] && strcmp(plan->path[j], plan->path[i]) == 0;
    if (!plan->path[i])
      continue;
    if (!repeated)
      status = save_file(problem, plan, i, &output, err);
    else if (path_has_suffix(plan->path[i], ".npy"))
      tool_error(err, status = TSR_INVALID, "", "%s: named for two outputs; .npy holds one", plan->path[i]);
    if (status == TSR_OK && term_interrupted())
      tool_error(err, status = TSR_CANCELLED, "", "interrupted");
  }
  if (status == TSR_OK)
    return output_commit(&output, err);
  output_abort(&output);
  return status;
}

/* ---- Running --------------------------------------------------------------------------------- */

typedef struct run_state {
  const tool_options *options;
  tool_problem problem;
  tool_engine engine;
  engine_report forward, backward;
  verify_report verified;
  save_plan saves;
} run_state;

/* Takes outputs from a file instead of computing them. */
static tsr_status load_given(run_state *s, tsr_error *err) {
  const char *path = s->options->given;
  tool_problem *p = &s->problem;
  const int npy = path_has_suffix(path, ".npy");
  if (npy && p->has_backward) {
    tool_error(err, TSR_INVALID, "given", "--given: gradients come in a .safetensors file");
    return err->status;
  }
  for (int32_t i = 0; i < OUTPUT_COUNT; i++) {
    tool_tensor *out = &p->outputs[i], loaded;
    if (!is_default_output(p, i) || (npy && i != OUTPUT_o))
      continue;
    tsr_status status = tensor_load(path, problem_output_name(i), TSR_DTYPE_NONE, &loaded, err);
    if (status == TSR_OK) {
      int same = loaded.rank == out->rank && loaded.dtype == out->dtype;
      for (int32_t axis = 0; same && axis < out->rank; axis++)
        same = loaded.shape[axis] == out->shape[axis] &&
               (loaded.stride[axis] == out->stride[axis] || out->shape[axis] == 1);
      if (same) {
        memcpy(out->data, loaded.data, (size_t)out->bytes);
      } else {
        tool_error(err, status = TSR_INVALID, problem_output_name(i),
                   "%s: %s is not the %s in C order, of the shape, that "
                   "this run would make",
                   path, problem_output_name(i), tsr_dtype_name(out->dtype));
      }
      tensor_free(&loaded);
    }
    if (status != TSR_OK)
      return status;
  }
  if (npy) { /* there is no LSE to judge */
    tensor_free(&p->outputs[OUTPUT_lse]);
    memset(&p->forward.lse, 0, sizeof(p->forward.lse));
    memset(&p->forward_args.lse, 0, sizeof(p->forward_args.lse));
  }
  return TSR_OK;
}

static tsr_status compute(run_state *s, tsr_error *err) {
  tool_problem *p = &s->problem;
  if (s->options->given)
    return load_given(s, err);
  if (!s->engine.info.computes) {
    tool_error(err, TSR_UNSUPPORTED, "", "device %s records launches and computes nothing", s->engine.info.name);
    return err->status;
  }
  tsr_status status = engine_run(&s->engine, &p->forward, &p->forward_args, "forward", &s->forward, err);
  if (status == TSR_OK && p->has_backward)
    status = engine_run(&s->engine, &p->backward, &p->backward_args, "backward", &s->backward, err);
  return status;
}

static tsr_status verify(run_state *s, tsr_error *err) {
  const tool_options *o = s->options;
  tsr_status status = TSR_OK;
  s->verified.passed = 1;
  if (o->check)
    status = verify_problem(&s->engine, &s->problem, o->rows.value, verify_threads(o), &s->verified, err);
  if (status != TSR_OK || !o->expect)
    return status;
  if (strcmp(o->expect, "self") != 0)
    status = tensor_load(o->expect, "o", TSR_DTYPE_NONE, &s->problem.expected, err);
  else if (s->problem.expected.dtype == TSR_DTYPE_NONE)
    tool_error(err, status = TSR_INVALID, "expect", "--expect self: the input file has no tensor o");
  return status == TSR_OK ? verify_expected(&s->problem, &s->problem.expected, o->tolerance.value, &s->verified, err)
                          : status;
}

/* ---- Reports --------------------------------------------------------------------------------- */

static void print_pass(const run_state *s, const char *name, const engine_report *r) {
  const tool_term *t = &s->options->term;
  term_number time, rate, bytes;
  printf("%-13s %s%s%s, %s  %svariant %s, tiles %d x %d, %d split%s, workspace %s%s\n", name, term_style(t, STYLE_BOLD),
         format_seconds(time, r->seconds), term_style(t, STYLE_RESET), format_flops(rate, r->plan.flops / r->seconds),
         term_style(t, STYLE_DIM), r->variant, r->plan.tile_q, r->plan.tile_k, r->plan.num_splits,
         r->plan.num_splits == 1 ? "" : "s", format_bytes(bytes, (double)r->plan.workspace_bytes),
         term_style(t, STYLE_RESET));
  const double visited = (double)(r->stats.tiles_full + r->stats.tiles_partial);
  const double all = visited + (double)r->stats.tiles_skipped;
  term_number full, partial, skipped;
  if (all > 0)
    printf("%-13s %s full, %s partial, %s skipped  %s(%.1f %% of the work saved)%s\n", "  tiles",
           format_count(full, (double)r->stats.tiles_full), format_count(partial, (double)r->stats.tiles_partial),
           format_count(skipped, (double)r->stats.tiles_skipped), term_style(t, STYLE_DIM), 100 * (1 - visited / all),
           term_style(t, STYLE_RESET));
}

static void print_report(const run_state *s) {
  const tool_options *o = s->options;
  char features[256];
  report_features(&s->problem, features);
  report_tensors(o, &s->problem);
  if (s->problem.random)
    printf("%-13s seed %llu\n", "random input", (unsigned long long)s->problem.random_seed);
  if (s->problem.ignored && *s->problem.ignored)
    printf("%-13s %s (tensors of the file whose names mean nothing here)\n", "ignored", s->problem.ignored);
  printf("%-13s %s\n", "features", features);
  printf("%-13s %s  %s%s%s\n", "device", s->engine.info.name, term_style(&o->term, STYLE_DIM),
         s->engine.info.description, term_style(&o->term, STYLE_RESET));
  if (o->given) {
    printf("%-13s %s\n", "given", o->given);
  } else {
    print_pass(s, "forward", &s->forward);
    if (s->problem.has_backward)
      print_pass(s, "backward", &s->backward);
  }
  if (s->verified.rows > 0)
    printf("%-13s %lld random query rows of each sequence\n", "checked", (long long)s->verified.rows);
  verify_print(o, &s->verified);
  for (int32_t i = 0; i < OUTPUT_COUNT; i++) {
    if (s->saves.path[i] && s->verified.passed)
      printf("%-13s %s -> %s\n", "saved", problem_output_name(i), s->saves.path[i]);
  }
}

static void pass_json(json_writer *w, const char *name, const engine_report *r) {
  json_open(w, name, '{');
  json_put_string(w, "variant", r->variant);
  json_put_double(w, "seconds", r->seconds);
  json_put_double(w, "plan_seconds", r->plan_seconds);
  json_put_double(w, "flops", r->plan.flops);
  json_put_int(w, "tile_q", r->plan.tile_q);
  json_put_int(w, "tile_k", r->plan.tile_k);
  json_put_int(w, "num_splits", r->plan.num_splits);
  json_put_int(w, "workspace_bytes", r->plan.workspace_bytes);
  if (r->stats.tiles_full + r->stats.tiles_partial + r->stats.tiles_skipped > 0) { /* the CPU counts them */
    json_put_int(w, "tiles_full", r->stats.tiles_full);
    json_put_int(w, "tiles_partial", r->stats.tiles_partial);
    json_put_int(w, "tiles_skipped", r->stats.tiles_skipped);
  }
  json_close(w, '}');
}

static int print_json(const run_state *s, int code) {
  tool_text out = {0};
  json_writer w = {&out, 0, 0};
  char features[256];
  report_features(&s->problem, features);
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "run");
  report_device_json(&w, &s->engine.info);
  report_tensors_json(&w, &s->problem);
  json_put_string(&w, "features", features);
  if (s->problem.random)
    json_put_int(&w, "random_seed", (int64_t)s->problem.random_seed);
  if (!s->options->given)
    pass_json(&w, "forward", &s->forward);
  if (!s->options->given && s->problem.has_backward)
    pass_json(&w, "backward", &s->backward);
  verify_json(&w, &s->verified);
  json_open(&w, "saved", '{');
  for (int32_t i = 0; i < OUTPUT_COUNT; i++) {
    if (s->saves.path[i] && s->verified.passed)
      json_put_string(&w, problem_output_name(i), s->saves.path[i]);
  }
  json_close(&w, '}');
  json_put_int(&w, "exit_code", code);
  json_close(&w, '}');
  return report_print_json(&out) == TOOL_OK ? code : TOOL_FAILED;
}

static int run(tool_options *options) {
  run_state s;
  tsr_error err;
  memset(&s, 0, sizeof(s));
  s.options = options;
  if (options->num_arguments > 0) {
    fprintf(stderr, "tessera run: '%s' is no option (files: FILE.safetensors, or --q FILE.npy and so on)\n",
            options->arguments[0]);
    return TOOL_USAGE;
  }
  if (options->given && !options->check && !options->expect) {
    fprintf(stderr, "tessera run: --given is compared with something: --check, --expect FILE or both\n");
    return TOOL_USAGE;
  }
  if (options->rows.given && (options->backward || !options->check)) {
    fprintf(stderr, "tessera run: --rows chooses rows of o for --check%s\n",
            options->backward ? "; a gradient sums over all rows: leave it out with --backward" : "");
    return TOOL_USAGE;
  }
  tsr_status status = problem_build(&s.problem, options, NULL, 0, &err);
  if (status == TSR_OK)
    status = plan_saves(options, &s.problem, &s.saves, &err);
  if (status == TSR_OK)
    status = engine_open(&s.engine, options, NULL, NULL, &err);
  if (status == TSR_OK)
    status = compute(&s, &err);
  if (status == TSR_OK)
    status = verify(&s, &err);
  if (status == TSR_OK && s.verified.passed)
    status = save_outputs(&s.problem, &s.saves, &err);
  int code = status == TSR_OK ? (s.verified.passed ? TOOL_OK : TOOL_CHECK_FAILED) : tool_fail(options, &err);
  if (status == TSR_OK && options->json)
    code = print_json(&s, code);
  else if (status == TSR_OK)
    print_report(&s);
  engine_close(&s.engine);
  problem_free(&s.problem);
  return code;
}

const tool_command command_run = {
    "run",
    "attention on .npy or .safetensors files, checked against the oracle",
    "[FILE.safetensors | --q Q --k K --v V | sizes] [options] [-o FILE]",
    "Computes attention, or its gradients with --backward, on tensors from files or on random ones.\n"
    "With --check every value is compared with a float64 oracle that shares no code with the kernels, under\n"
    "the tolerance rule (per sequence and head: max error <= 2 x that of a plain computation in the same element\n"
    "type + u max|ref|); with --expect, o is compared with a tensor computed elsewhere. Output appears only when the\n"
    "run and its checks succeeded.\n",
    "  tessera run --seqlen 2048 --heads 8 --heads-kv 2 --dtype bf16 --causal --check\n"
    "  tessera run --q q.npy --k k.npy --v v.npy --window 256,0 -o o.npy --save-lse lse.npy\n"
    "  tessera run layer.safetensors --use-metadata --expect self --check\n"
    "  tessera run layer.safetensors --causal --backward -o grads.safetensors\n"
    "  tessera run --cu-seqlens-q 0,300,512 --cu-seqlens-k 0,300,512 --causal --check\n"
    "  tessera run --seqlen 512 --score-expr 'score + slope * (j - i)' --scalar slope=0.1 --causal\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_SHAPE | OPTION_GROUP_ATTENTION | OPTION_GROUP_INPUT |
        OPTION_GROUP_OUTPUT | OPTION_GROUP_CHECK,
    run};
