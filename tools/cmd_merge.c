/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera merge`: joins results over disjoint sets of keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "verify.h"
#include "verify_compare.h"

typedef struct merge_state {
  const tool_options *options;
  tool_engine engine;
  int32_t count, bhsd;
  tool_tensor *partial_o, *partial_lse; /* [count] */
  tsr_buffer *o_buffers, *lse_buffers;
  tool_tensor sink, o, lse;
  tsr_merge_desc desc;
  tsr_merge_args args;
  char variant[48];
  double seconds;
  verify_report verified;
} merge_state;

static tsr_status load_partial(merge_state *s, int32_t i, tsr_error *err) {
  tsr_layout o, lse;
  const char *path = s->options->arguments[i];
  tsr_status status = tensor_load(path, "o", TSR_DTYPE_NONE, &s->partial_o[i], err);
  if (status == TSR_OK)
    status = tensor_load(path, "lse", TSR_DTYPE_NONE, &s->partial_lse[i], err);
  if (status == TSR_OK)
    status = layout_of_tensor(&s->partial_o[i], AXES_BSHD, s->bhsd, "o", &o, err);
  if (status == TSR_OK)
    status = layout_of_tensor(&s->partial_lse[i], AXES_BHS, 0, "lse", &lse, err);
  if (status != TSR_OK)
    return status;
  s->o_buffers[i] = tsr_buffer_in(s->partial_o[i].data);
  s->lse_buffers[i] = tsr_buffer_in(s->partial_lse[i].data);
  if (i == 0) {
    s->desc.partial_o = o;
    s->desc.partial_lse = lse;
  } else if (memcmp(&o, &s->desc.partial_o, sizeof(o)) != 0 || memcmp(&lse, &s->desc.partial_lse, sizeof(lse)) != 0) {
    tool_error(err, TSR_INVALID, "", "%s: its o or lse differs from the first file's in type, shape or order", path);
    return err->status;
  }
  return TSR_OK;
}

static tsr_status load_sink(merge_state *s, tsr_error *err) {
  const char *spec = s->options->inputs[INPUT_sink];
  if (!spec)
    return TSR_OK;
  tsr_status status = tensor_load(spec, "sink", TSR_F32, &s->sink, err);
  if (status == TSR_OK)
    status = layout_of_tensor(&s->sink, AXES_VECTOR, 0, "sink", &s->desc.sink, err);
  s->args.sink = tsr_buffer_in(s->sink.data);
  return status;
}

static tsr_status build(merge_state *s, tsr_error *err) {
  int32_t one = 1;
  s->count = s->options->num_arguments;
  s->bhsd = s->options->layout && strcmp(s->options->layout, "bhsd") == 0;
  s->partial_o = calloc((size_t)s->count + 1, sizeof(tool_tensor));
  s->partial_lse = calloc((size_t)s->count + 1, sizeof(tool_tensor));
  s->o_buffers = calloc((size_t)s->count + 1, sizeof(tsr_buffer));
  s->lse_buffers = calloc((size_t)s->count + 1, sizeof(tsr_buffer));
  if (!s->partial_o || !s->partial_lse || !s->o_buffers || !s->lse_buffers) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for %d partials", s->count);
    return err->status;
  }
  s->desc = tsr_merge_desc_init();
  s->args = tsr_merge_args_init();
  s->desc.memory = TSR_MEMORY_HOST;
  s->desc.num_partials = s->count;
  s->desc.variant = s->options->variant;
  tsr_status status = TSR_OK;
  for (int32_t i = 0; i < s->count && status == TSR_OK; i++)
    status = load_partial(s, i, err);
  if (status == TSR_OK)
    status = load_sink(s, err);
  tsr_dtype dtype = s->partial_o[0].dtype;
  if (status == TSR_OK && s->options->out_dtype)
    status = options_dtype_list(s->options->out_dtype, "--out-dtype", &dtype, &one, err);
  if (status == TSR_OK)
    status = tensor_create(&s->o, dtype, s->partial_o[0].rank, s->partial_o[0].shape, err);
  if (status == TSR_OK)
    status = tensor_create(&s->lse, TSR_F32, s->partial_lse[0].rank, s->partial_lse[0].shape, err);
  if (status == TSR_OK)
    status = layout_of_tensor(&s->o, AXES_BSHD, s->bhsd, "o", &s->desc.o, err);
  if (status == TSR_OK)
    status = layout_of_tensor(&s->lse, AXES_BHS, 0, "lse", &s->desc.lse, err);
  s->args.partial_o = s->o_buffers;
  s->args.partial_lse = s->lse_buffers;
  s->args.o = tsr_buffer_out(s->o.data);
  s->args.lse = tsr_buffer_out(s->lse.data);
  return status;
}

static tsr_status compute(merge_state *s, tsr_error *err) {
  engine_report report;
  int32_t count = 0;
  if (!s->engine.info.computes) {
    tool_error(err, TSR_UNSUPPORTED, "", "device %s records launches and computes nothing", s->engine.info.name);
    return err->status;
  }
  engine_block *blocks = calloc((size_t)(2 * s->count) + 3, sizeof(*blocks));
  if (!blocks) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for %d partials", s->count);
    return err->status;
  }
  blocks[count++] = (engine_block){s->o.data, s->o.bytes, 1};
  blocks[count++] = (engine_block){s->lse.data, s->lse.bytes, 1};
  for (int32_t i = 0; i < s->count; i++) {
    blocks[count++] = (engine_block){s->partial_o[i].data, s->partial_o[i].bytes, 0};
    blocks[count++] = (engine_block){s->partial_lse[i].data, s->partial_lse[i].bytes, 0};
  }
  if (s->sink.data)
    blocks[count++] = (engine_block){s->sink.data, s->sink.bytes, 0};
  const tsr_status status = engine_merge(&s->engine, &s->desc, &s->args, blocks, count, &report, err);
  snprintf(s->variant, sizeof(s->variant), "%s", report.variant);
  s->seconds = report.seconds;
  free(blocks);
  return status;
}

/* ---- Check ----------------------------------------------------------------------------------- */

static double read_at(const tool_tensor *t, const tsr_layout *l, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  return tsr_decode(t->dtype, t->data, i0 * l->stride[0] + i1 * l->stride[1] + i2 * l->stride[2] + i3 * l->stride[3]);
}

/* The yardstick: weights and sums in f32, one after the other, rounded to the output's type. */
static void plain_row(const merge_state *s, int64_t b, int64_t r, int64_t h, float *lse_out, double *o) {
  const tsr_layout *po = &s->desc.partial_o, *pl = &s->desc.partial_lse;
  float most = -INFINITY, total = 0;
  for (int32_t k = 0; k < s->count; k++)
    most = fmaxf(most, (float)read_at(&s->partial_lse[k], pl, b, h, r, 0));
  const float sink = s->sink.dtype ? (float)tsr_decode(TSR_F32, s->sink.data, h * s->desc.sink.stride[0]) : -INFINITY;
  most = fmaxf(most, sink);
  for (int32_t k = 0; k < s->count && most > -INFINITY; k++)
    total += expf((float)read_at(&s->partial_lse[k], pl, b, h, r, 0) - most);
  if (sink > -INFINITY)
    total += expf(sink - most);
  *lse_out = total > 0 ? most + logf(total) : -INFINITY;
  for (int64_t d = 0; d < po->shape[3]; d++) {
    unsigned char rounded[8];
    float sum = 0;
    for (int32_t k = 0; k < s->count; k++) {
      const float lse = (float)read_at(&s->partial_lse[k], pl, b, h, r, 0);
      if (lse > -INFINITY)
        sum += expf(lse - *lse_out) * (float)read_at(&s->partial_o[k], po, b, r, h, d);
    }
    tsr_encode(s->o.dtype, rounded, 0, sum);
    o[d] = tsr_decode(s->o.dtype, rounded, 0);
  }
}

static tsr_status verify(merge_state *s, tsr_error *err) {
  const tsr_layout *l = &s->desc.o;
  const int64_t batch = l->shape[0], rows = l->shape[1], heads = l->shape[2], dim = l->shape[3];
  double *memory = calloc((size_t)(2 * (s->o.count + s->lse.count)) + 1, sizeof(double));
  if (!memory) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for the oracle");
    return err->status;
  }
  double *o = memory, *plain_o = o + s->o.count, *lse = plain_o + s->o.count, *plain_lse = lse + s->lse.count;
  tsr_status status = tsr_reference_merge(&s->desc, &s->args, o, lse, err);
  for (int64_t b = 0; b < batch && status == TSR_OK; b++) {
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t h = 0; h < heads; h++) {
        float row_lse;
        plain_row(s, b, r, h, &row_lse, plain_o + ((b * rows + r) * heads + h) * dim);
        plain_lse[(b * heads + h) * rows + r] = row_lse;
      }
    }
  }
  compare_input in;
  memset(&in, 0, sizeof(in));
  in.num_sequences = batch;
  in.num_heads = heads;
  in.plain_factor = 2;
  in.name = "o";
  in.layout = l;
  in.data = s->o.data;
  in.reference = o;
  in.plain = plain_o;
  in.grouping = GROUP_BSHD;
  if (status == TSR_OK)
    status = compare_tensor(&in, &s->verified.results[0], err);
  in.name = "lse";
  in.layout = &s->desc.lse;
  in.data = s->lse.data;
  in.reference = lse;
  in.plain = plain_lse;
  in.grouping = GROUP_BHS;
  in.lse = 1;
  if (status == TSR_OK)
    status = compare_tensor(&in, &s->verified.results[1], err);
  s->verified.count = 2;
  s->verified.passed = s->verified.results[0].passed && s->verified.results[1].passed;
  free(memory);
  return status;
}

/* ---- Output ---------------------------------------------------------------------------------- */

static tsr_status save(const merge_state *s, tsr_error *err) {
  const char *const names[] = {"o", "lse"}, *path = s->options->output;
  const tool_tensor *const tensors[] = {&s->o, &s->lse};
  static const char *const metadata[] = {"written_by", "tessera", NULL};
  tool_output output = {0};
  int32_t index;
  if (!path)
    return TSR_OK;
  if (!path_has_suffix(path, ".npy") && !path_has_suffix(path, ".safetensors")) {
    tool_error(err, TSR_INVALID, "output", "--output: '%.200s' does not end in .npy or .safetensors", path);
    return err->status;
  }
  tsr_status status = output_open(&output, path, &index, err);
  if (status == TSR_OK)
    status = path_has_suffix(path, ".npy") ? npy_write(&output, index, &s->o, err)
                                           : safetensors_write(&output, index, names, tensors, 2, metadata, err);
  if (status == TSR_OK)
    return output_commit(&output, err);
  output_abort(&output);
  return status;
}

static int report(const merge_state *s, int code) {
  tool_text out = {0};
  json_writer w = {&out, 0, 0};
  term_number time;
  if (!s->options->json) {
    printf("%-13s %d partials, %s, %s on %s\n", "merged", s->count, format_seconds(time, s->seconds), s->variant,
           s->engine.info.name);
    verify_print(s->options, &s->verified);
    if (s->options->output && code == TOOL_OK)
      printf("%-13s %s\n", "saved", s->options->output);
    return code;
  }
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "merge");
  report_device_json(&w, &s->engine.info);
  json_put_int(&w, "partials", s->count);
  json_put_string(&w, "variant", s->variant);
  json_put_double(&w, "seconds", s->seconds);
  verify_json(&w, &s->verified);
  json_put_string(&w, "saved", code == TOOL_OK ? s->options->output : NULL);
  json_put_int(&w, "exit_code", code);
  json_close(&w, '}');
  return report_print_json(&out) == TOOL_OK ? code : TOOL_FAILED;
}

static int merge(tool_options *options) {
  merge_state s;
  tsr_error err;
  memset(&s, 0, sizeof(s));
  s.options = options;
  s.verified.passed = 1;
  if (options->num_arguments < 1) {
    fprintf(stderr, "tessera merge: name the files of the partial results (.safetensors with o and lse)\n");
    return TOOL_USAGE;
  }
  tsr_status status = build(&s, &err);
  if (status == TSR_OK)
    status = engine_open(&s.engine, options, NULL, NULL, &err);
  if (status == TSR_OK)
    status = compute(&s, &err);
  if (status == TSR_OK && options->check)
    status = verify(&s, &err);
  if (status == TSR_OK && s.verified.passed)
    status = save(&s, &err);
  const int code =
      status != TSR_OK ? tool_fail(options, &err) : report(&s, s.verified.passed ? TOOL_OK : TOOL_CHECK_FAILED);
  engine_close(&s.engine);
  for (int32_t i = 0; i < s.count && s.partial_o && s.partial_lse; i++) {
    tensor_free(&s.partial_o[i]);
    tensor_free(&s.partial_lse[i]);
  }
  free(s.partial_o);
  free(s.partial_lse);
  free(s.o_buffers);
  free(s.lse_buffers);
  tensor_free(&s.sink);
  tensor_free(&s.o);
  tensor_free(&s.lse);
  return code;
}

const tool_command command_merge = {
    "merge",
    "joins attention results over disjoint sets of keys",
    "A.safetensors B.safetensors ... [options] [-o FILE]",
    "Each file holds o and lse of the same queries over its own keys, as `tessera run -o` writes them. The result is "
    "what\n"
    "attention over all keys would have given. Partials are computed without the sink, which is taken here.\n",
    "  tessera run --q q.npy --k k1.npy --v v1.npy -o a.safetensors\n"
    "  tessera run --q q.npy --k k2.npy --v v2.npy -o b.safetensors\n"
    "  tessera merge a.safetensors b.safetensors --check -o o.npy\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_MERGE,
    merge};
