/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera append`: new keys and values into a K/V cache, with rotary embedding and quantisation. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include "verify.h"

/* The tensors of the file. q_out is made here. */
enum { PLAIN_TYPE, CACHE_TYPE, INDEX_TYPE, I32_TYPE, FLOAT_TYPE };
#define APPEND_TENSORS(X)                    \
  X(k_new, AXES_BSHD, PLAIN_TYPE)            \
  X(v_new, AXES_BSHD, PLAIN_TYPE)            \
  X(cu_seqlens_new, AXES_VECTOR, INDEX_TYPE) \
  X(k_cache, AXES_BSHD, CACHE_TYPE)          \
  X(v_cache, AXES_BSHD, CACHE_TYPE)          \
  X(seqlens_k, AXES_VECTOR, INDEX_TYPE)      \
  X(block_table, AXES_TABLE, I32_TYPE)       \
  X(k_scale, AXES_SCALE, FLOAT_TYPE)         \
  X(v_scale, AXES_SCALE, FLOAT_TYPE)         \
  X(cos, AXES_TABLE, FLOAT_TYPE)             \
  X(sin, AXES_TABLE, FLOAT_TYPE)             \
  X(positions, AXES_ROWS, I32_TYPE)          \
  X(q, AXES_BSHD, PLAIN_TYPE)

#define X(field, axes, type) APPEND_##field,
enum { APPEND_TENSORS(X) APPEND_q_out, APPEND_COUNT };
#undef X

static const struct {
  const char *name;
  int32_t axes, type;
  size_t layout_at, buffer_at;
} fields[APPEND_COUNT] = {
#define X(field, axes, type) {#field, axes, type, offsetof(tsr_append_desc, field), offsetof(tsr_append_args, field)},
    APPEND_TENSORS(X)
#undef X
        {"q_out", AXES_BSHD, PLAIN_TYPE, offsetof(tsr_append_desc, q_out), offsetof(tsr_append_args, q_out)}};

typedef struct append_state {
  const tool_options *options;
  tool_engine engine;
  int32_t bhsd;
  tool_tensor tensors[APPEND_COUNT], twins[APPEND_COUNT]; /* twins: the oracle's copies of what is written */
  tsr_append_desc desc;
  tsr_append_args args, twin_args;
  char variant[48];
  double seconds;
  int64_t differences[APPEND_COUNT]; /* bytes */
  int32_t passed;
} append_state;

static tsr_buffer *buffer_of(tsr_append_args *args, int32_t field) {
  return (tsr_buffer *)(void *)((char *)args + fields[field].buffer_at);
}

static tsr_layout *layout_of(tsr_append_desc *desc, int32_t field) {
  return (tsr_layout *)(void *)((char *)desc + fields[field].layout_at);
}

static int is_written(const append_state *s, int32_t field) {
  if (s->tensors[field].dtype == TSR_DTYPE_NONE)
    return 0;
  if (field == APPEND_k_scale || field == APPEND_v_scale)
    return !s->options->static_scales;
  return field == APPEND_k_cache || field == APPEND_v_cache || field == APPEND_q_out;
}

/* ---- Input ----------------------------------------------------------------------------------- */

static tsr_status fix_type(append_state *s, int32_t field, tsr_error *err) {
  tool_tensor *t = &s->tensors[field];
  tsr_dtype dtype = TSR_DTYPE_NONE;
  int32_t one = 1;
  if (fields[field].type == I32_TYPE && t->dtype == TSR_I64)
    return tensor_convert(t, TSR_I32, fields[field].name, err);
  if (fields[field].type != CACHE_TYPE || !s->options->kv_dtype)
    return TSR_OK;
  const tsr_status status = options_dtype_list(s->options->kv_dtype, "--kv-dtype", &dtype, &one, err);
  if (status != TSR_OK)
    return status;
  if (t->dtype == TSR_U8)
    return tensor_reinterpret(t, dtype, fields[field].name, err);
  if (t->dtype == dtype)
    return TSR_OK;
  tool_error(err, TSR_INVALID, fields[field].name, "%s: is %s, not u8 codes of %s", fields[field].name,
             tsr_dtype_name(t->dtype), tsr_dtype_name(dtype));
  return err->status;
}

static tsr_status load(append_state *s, tsr_error *err) {
  tool_file file;
  safetensors st;
  tsr_status status = file_open(&file, s->options->input, err);
  if (status != TSR_OK)
    return status;
  status = safetensors_open(&file, &st, err);
  for (int32_t i = 0; i < APPEND_q_out && status == TSR_OK; i++) {
    const tensor_entry *entry = safetensors_find(&st, fields[i].name);
    if (!entry)
      continue;
    status = tensor_read(&file, entry, st.data_offset, &s->tensors[i], err);
    if (status == TSR_OK)
      status = fix_type(s, i, err);
  }
  if (status == TSR_OK && s->tensors[APPEND_q].dtype != TSR_DTYPE_NONE)
    status = tensor_create(&s->tensors[APPEND_q_out], s->tensors[APPEND_q].dtype, s->tensors[APPEND_q].rank,
                           s->tensors[APPEND_q].shape, err);
  safetensors_free(&st);
  file_close(&file);
  return status;
}

static tsr_status copy_tensor(const tool_tensor *from, tool_tensor *to, tsr_error *err) {
  *to = *from;
  to->data = malloc((size_t)from->bytes + 1);
  if (!to->data) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for the oracle's copy");
    return err->status;
  }
  memcpy(to->data, from->data, (size_t)from->bytes);
  return TSR_OK;
}

static int64_t longest_new(const tool_tensor *cu) {
  int64_t longest = 0;
  for (int64_t i = 0; i + 1 < cu->count; i++) {
    const int64_t length = (int64_t)(tsr_decode(cu->dtype, cu->data, i + 1) - tsr_decode(cu->dtype, cu->data, i));
    longest = length > longest ? length : longest;
  }
  return longest;
}

static tsr_status build(append_state *s, tsr_error *err) {
  const tool_options *o = s->options;
  const tool_tensor *cu = &s->tensors[APPEND_cu_seqlens_new];
  s->bhsd = o->layout && strcmp(o->layout, "bhsd") == 0;
  s->desc = tsr_append_desc_init();
  s->args = tsr_append_args_init();
  s->desc.memory = TSR_MEMORY_HOST;
  s->desc.flags = (o->interleaved ? TSR_APPEND_INTERLEAVED : 0) | (o->static_scales ? TSR_APPEND_STATIC_SCALES : 0);
  s->desc.variant = o->variant;
  s->desc.rotary_dim = (int32_t)o->rotary_dim.value;
  tsr_status status = load(s, err);
  for (int32_t i = 0; i < APPEND_COUNT && status == TSR_OK; i++) {
    if (s->tensors[i].dtype == TSR_DTYPE_NONE)
      continue;
    status = layout_of_tensor(&s->tensors[i], fields[i].axes, s->bhsd, fields[i].name, layout_of(&s->desc, i), err);
    *buffer_of(&s->args, i) = tsr_buffer_out(s->tensors[i].data);
  }
  if (cu->dtype != TSR_DTYPE_NONE) {
    s->desc.batch = cu->count - 1;
    s->desc.max_seqlen_new = longest_new(cu);
  }
  s->twin_args = s->args;
  for (int32_t i = 0; i < APPEND_COUNT && status == TSR_OK; i++) {
    if (!o->check || !is_written(s, i))
      continue;
    status = copy_tensor(&s->tensors[i], &s->twins[i], err);
    *buffer_of(&s->twin_args, i) = tsr_buffer_out(s->twins[i].data);
  }
  return status;
}

/* ---- Work ------------------------------------------------------------------------------------ */

static tsr_status compute(append_state *s, tsr_error *err) {
  engine_block blocks[APPEND_COUNT];
  engine_report report;
  int32_t count = 0;
  if (!s->engine.info.computes) {
    tool_error(err, TSR_UNSUPPORTED, "", "device %s records launches and computes nothing", s->engine.info.name);
    return err->status;
  }
  for (int32_t i = 0; i < APPEND_COUNT; i++) {
    if (s->tensors[i].dtype != TSR_DTYPE_NONE)
      blocks[count++] = (engine_block){s->tensors[i].data, s->tensors[i].bytes, is_written(s, i)};
  }
  const tsr_status status = engine_append(&s->engine, &s->desc, &s->args, blocks, count, &report, err);
  snprintf(s->variant, sizeof(s->variant), "%s", report.variant);
  s->seconds = report.seconds;
  return status;
}

static tsr_status verify(append_state *s, tsr_error *err) {
  const tsr_status status = tsr_reference_append(&s->desc, &s->twin_args, err);
  for (int32_t i = 0; i < APPEND_COUNT && status == TSR_OK; i++) {
    const unsigned char *mine = s->tensors[i].data, *twin = s->twins[i].data;
    for (int64_t j = 0; twin && j < s->tensors[i].bytes; j++)
      s->differences[i] += mine[j] != twin[j];
    s->passed &= s->differences[i] == 0;
  }
  return status;
}

static tsr_status save(append_state *s, tsr_error *err) {
  static const char *const metadata[] = {"written_by", "tessera", NULL};
  const char *names[APPEND_COUNT], *path = s->options->output;
  const tool_tensor *tensors[APPEND_COUNT];
  tool_output output = {0};
  int64_t count = 0;
  int32_t index;
  if (!path)
    return TSR_OK;
  if (!path_has_suffix(path, ".safetensors")) {
    tool_error(err, TSR_INVALID, "output", "--output: '%.200s' does not end in .safetensors", path);
    return err->status;
  }
  tsr_status status = output_open(&output, path, &index, err);
  for (int32_t i = 0; i < APPEND_COUNT && status == TSR_OK; i++) {
    if (!is_written(s, i))
      continue;
    if (s->tensors[i].dtype == TSR_U4)
      status = tensor_reinterpret(&s->tensors[i], TSR_U8, fields[i].name, err);
    names[count] = fields[i].name;
    tensors[count++] = &s->tensors[i];
  }
  if (status == TSR_OK)
    status = safetensors_write(&output, index, names, tensors, count, metadata, err);
  if (status == TSR_OK)
    return output_commit(&output, err);
  output_abort(&output);
  return status;
}

/* ---- Reports --------------------------------------------------------------------------------- */

static int report(const append_state *s, int code) {
  const tool_term *t = &s->options->term;
  tool_text out = {0};
  json_writer w = {&out, 0, 0};
  term_number time, bytes;
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "append");
  report_device_json(&w, &s->engine.info);
  json_put_string(&w, "variant", s->variant);
  json_put_double(&w, "seconds", s->seconds);
  json_open(&w, "checks", '[');
  if (!s->options->json)
    printf("%-13s %s, %s on %s\n", "appended", format_seconds(time, s->seconds), s->variant, s->engine.info.name);
  for (int32_t i = 0; i < APPEND_COUNT; i++) {
    if (!s->options->check || !is_written(s, i))
      continue;
    json_open(&w, NULL, '{');
    json_put_string(&w, "tensor", fields[i].name);
    json_put_bool(&w, "passed", s->differences[i] == 0);
    json_put_int(&w, "bytes", s->tensors[i].bytes);
    json_put_int(&w, "different_bytes", s->differences[i]);
    json_close(&w, '}');
    if (!s->options->json)
      printf("%-13s %s%s%s  %lld of %s differ from the oracle's\n", fields[i].name,
             term_style(t, s->differences[i] ? STYLE_RED : STYLE_GREEN), s->differences[i] ? "FAIL" : "ok  ",
             term_style(t, STYLE_RESET), (long long)s->differences[i],
             format_bytes(bytes, (double)s->tensors[i].bytes));
  }
  json_close(&w, ']');
  json_put_string(&w, "saved", code == TOOL_OK ? s->options->output : NULL);
  json_put_int(&w, "exit_code", code);
  json_close(&w, '}');
  if (s->options->json)
    return report_print_json(&out) == TOOL_OK ? code : TOOL_FAILED;
  if (s->options->output && code == TOOL_OK)
    printf("%-13s %s\n", "saved", s->options->output);
  text_free(&out);
  return code;
}

static int append(tool_options *options) {
  append_state s;
  tsr_error err;
  memset(&s, 0, sizeof(s));
  s.options = options;
  s.passed = 1;
  if (options->num_arguments > 0 || !options->input) {
    fprintf(stderr, "tessera append: name one .safetensors file that holds k_new, v_new, k_cache and v_cache\n");
    return TOOL_USAGE;
  }
  tsr_status status = build(&s, &err);
  if (status == TSR_OK)
    status = engine_open(&s.engine, options, NULL, NULL, &err);
  if (status == TSR_OK)
    status = compute(&s, &err);
  if (status == TSR_OK && options->check)
    status = verify(&s, &err);
  if (status == TSR_OK && s.passed)
    status = save(&s, &err);
  const int code = status != TSR_OK ? tool_fail(options, &err) : report(&s, s.passed ? TOOL_OK : TOOL_CHECK_FAILED);
  engine_close(&s.engine);
  for (int32_t i = 0; i < APPEND_COUNT; i++) {
    tensor_free(&s.tensors[i]);
    tensor_free(&s.twins[i]);
  }
  return code;
}

const tool_command command_append = {
    "append",
    "writes new keys and values into a K/V cache: paged, rotary, quantising",
    "FILE.safetensors [options] [-o FILE]",
    "The file holds k_new, v_new, k_cache and v_cache, and as needed cu_seqlens_new, seqlens_k (lengths before), "
    "block_table,\n"
    "k_scale and v_scale, cos and sin, positions, and q, which is turned too. Written out are the caches, the scales "
    "that\n"
    "were made and q_out.\n",
    "  tessera append step.safetensors --check -o after.safetensors\n"
    "  tessera append step.safetensors --kv-dtype u4 --interleaved --rotary-dim 64 -o after.safetensors\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_APPEND,
    append};
