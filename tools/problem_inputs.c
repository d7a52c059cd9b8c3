/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_inputs.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct input_row {
  const char *name;
  int32_t axes, type;
  size_t layout_at, buffer_at;
} input_row;

#define X(field, axes, type, help) \
  {#field, axes, type, offsetof(tsr_attention_desc, field), offsetof(tsr_run_args, field)},
static const input_row inputs[] = {TOOL_INPUTS(X)};
#undef X

static const struct {
  const char *name;
  size_t layout_at, buffer_at;
} outputs[] = {
#define X(field, help) {#field, offsetof(tsr_attention_desc, field), offsetof(tsr_run_args, field)},
    TOOL_OUTPUTS(X)
#undef X
};

tsr_layout *problem_input_layout(tsr_attention_desc *desc, int32_t input) {
  return (tsr_layout *)(void *)((char *)desc + inputs[input].layout_at);
}

tsr_buffer *problem_input_buffer(tsr_run_args *args, int32_t input) {
  return (tsr_buffer *)(void *)((char *)args + inputs[input].buffer_at);
}

tsr_layout *problem_output_layout(tsr_attention_desc *desc, int32_t output) {
  return (tsr_layout *)(void *)((char *)desc + outputs[output].layout_at);
}

tsr_buffer *problem_output_buffer(tsr_run_args *args, int32_t output) {
  return (tsr_buffer *)(void *)((char *)args + outputs[output].buffer_at);
}

const char *problem_input_name(int32_t input) {
  return inputs[input].name;
}

const char *problem_output_name(int32_t output) {
  return outputs[output].name;
}

int32_t input_axes(int32_t input) {
  return inputs[input].axes;
}

/* ---- Element types --------------------------------------------------------------------------- */

static int is_float(tsr_dtype dtype) {
  return dtype == TSR_F32 || dtype == TSR_F16 || dtype == TSR_BF16 || dtype == TSR_F8E4M3 || dtype == TSR_F8E5M2;
}

static tsr_status refuse_type(const tool_tensor *t, const char *name, const char *wanted, tsr_error *err) {
  tool_error(err, TSR_INVALID, name, "%s: is %s, %s is taken", name, tsr_dtype_name(t->dtype), wanted);
  return err->status;
}

static tsr_status fix_main(tool_tensor *t, int32_t input, const input_types *types, tsr_error *err) {
  const int kv = input == INPUT_k || input == INPUT_v;
  const tsr_dtype wanted = kv && types->kv != TSR_DTYPE_NONE ? types->kv
                           : input == INPUT_dout             ? TSR_DTYPE_NONE
                                                             : types->main;
  const char *name = inputs[input].name;
  if (wanted == TSR_DTYPE_NONE || wanted == t->dtype)
    return TSR_OK;
  if (kv && t->dtype == TSR_U8)
    return tensor_reinterpret(t, wanted, name, err);
  if (kv && t->dtype == TSR_I8 && types->kv == TSR_DTYPE_NONE) /* quantised: --dtype is about q */
    return TSR_OK;
  if (!is_float(t->dtype) || !is_float(wanted)) {
    tool_error(err, TSR_INVALID, name, "%s: is %s, which does not convert to %s", name, tsr_dtype_name(t->dtype),
               tsr_dtype_name(wanted));
    return err->status;
  }
  return tensor_convert(t, wanted, name, err);
}

static tsr_status fix_type(tool_tensor *t, int32_t input, const input_types *types, tsr_error *err) {
  const char *name = inputs[input].name;
  switch (inputs[input].type) {
  case TYPE_MAIN: return fix_main(t, input, types, err);
  case TYPE_FLOAT:
    return t->dtype == TSR_F32 || t->dtype == TSR_F16 || t->dtype == TSR_BF16
               ? TSR_OK
               : refuse_type(t, name, "f32, f16 or bf16", err);
  case TYPE_F32: return is_float(t->dtype) ? tensor_convert(t, TSR_F32, name, err) : refuse_type(t, name, "f32", err);
  case TYPE_INDEX: return t->dtype == TSR_I32 || t->dtype == TSR_I64 ? TSR_OK : refuse_type(t, name, "i32 or i64", err);
  case TYPE_I32:
    return t->dtype == TSR_I32 || t->dtype == TSR_I64 ? tensor_convert(t, TSR_I32, name, err)
                                                      : refuse_type(t, name, "i32", err);
  case TYPE_I64:
    return t->dtype == TSR_I32 || t->dtype == TSR_I64 ? tensor_convert(t, TSR_I64, name, err)
                                                      : refuse_type(t, name, "i64", err);
  default: return t->dtype == TSR_U8 ? TSR_OK : refuse_type(t, name, "u8 or bool", err);
  }
}

/* One index type for all lengths of a plan. */
static tsr_status unify_index_types(tool_problem *p, tsr_error *err) {
  tsr_dtype widest = TSR_I32;
  for (int32_t i = 0; i < INPUT_COUNT; i++) {
    if (inputs[i].type == TYPE_INDEX && p->inputs[i].dtype == TSR_I64)
      widest = TSR_I64;
  }
  for (int32_t i = 0; i < INPUT_COUNT; i++) {
    if (inputs[i].type == TYPE_INDEX && p->inputs[i].dtype != TSR_DTYPE_NONE) {
      const tsr_status status = tensor_convert(&p->inputs[i], widest, inputs[i].name, err);
      if (status != TSR_OK)
        return status;
    }
  }
  return TSR_OK;
}

/* ---- Files ----------------------------------------------------------------------------------- */

static tsr_dtype literal_type(int32_t type) {
  switch (type) {
  case TYPE_INDEX:
  case TYPE_I32: return TSR_I32;
  case TYPE_I64: return TSR_I64;
  case TYPE_F32:
  case TYPE_FLOAT: return TSR_F32;
  default: return TSR_DTYPE_NONE;
  }
}

static tsr_status load_aux(tool_problem *p, const tool_options *options, const tool_file *file, const safetensors *st,
                           tsr_error *err) {
  tsr_status status = TSR_OK;
  if (options->aux.count > TSR_EXPR_MAX_AUX) {
    tool_error(err, TSR_INVALID, "aux", "--aux: given %d times, at most %d", options->aux.count, TSR_EXPR_MAX_AUX);
    return err->status;
  }
  for (int32_t i = 0; i < TSR_EXPR_MAX_AUX && status == TSR_OK; i++) {
    char name[8];
    snprintf(name, sizeof(name), "aux%d", i);
    const tensor_entry *entry = options->input && options->aux.count == 0 ? safetensors_find(st, name) : NULL;
    if (i < options->aux.count)
      status = tensor_load(options->aux.items[i], name, TSR_F32, &p->aux[i], err);
    else if (entry)
      status = tensor_read(file, entry, st->data_offset, &p->aux[i], err);
    else
      break;
    if (status != TSR_OK)
      break;
    tool_tensor *t = &p->aux[i];
    if (t->dtype == TSR_I64)
      status = tensor_convert(t, TSR_I32, name, err);
    else if (is_float(t->dtype))
      status = tensor_convert(t, TSR_F32, name, err);
    else if (t->dtype != TSR_I32)
      status = refuse_type(t, name, "f32 or i32", err);
  }
  return status;
}

static tsr_status read_metadata(const safetensors *st, const char *path, int32_t *causal, double *scale,
                                tsr_error *err) {
  const char *text = safetensors_metadata(st, "causal");
  if (text) {
    const int yes = strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "1") == 0;
    const int no = strcmp(text, "false") == 0 || strcmp(text, "False") == 0 || strcmp(text, "0") == 0;
    if (!yes && !no) {
      tool_error(err, TSR_INVALID, "causal", "%s: metadata causal is '%.40s', neither true nor false", path, text);
      return err->status;
    }
    *causal = yes;
  }
  text = safetensors_metadata(st, "scale");
  if (text) {
    char *end;
    *scale = strtod(text, &end);
    if (end == text || *end || !isfinite(*scale)) {
      tool_error(err, TSR_INVALID, "scale", "%s: metadata scale is '%.40s', not a number", path, text);
      return err->status;
    }
  }
  return TSR_OK;
}

/* Names in the input file that mean nothing here, so that a misspelt tensor is noticed. */
static void list_ignored(tool_problem *p, const safetensors *st) {
  tool_text text = {0};
  for (int64_t i = 0; i < st->count; i++) {
    const char *name = st->entries[i].name;
    int known =
        strcmp(name, "o") == 0 || (strncmp(name, "aux", 3) == 0 && name[3] >= '0' && name[3] <= '7' && !name[4]);
    for (int32_t j = 0; j < INPUT_COUNT && !known; j++)
      known = strcmp(name, inputs[j].name) == 0;
    if (!known)
      text_printf(&text, "%s%s", text.len ? " " : "", name);
  }
  p->ignored = text.data;
}

static tsr_status load_all(tool_problem *p, const tool_options *options, const tool_file *file, const safetensors *st,
                           const input_types *types, tsr_error *err) {
  tsr_status status = TSR_OK;
  for (int32_t i = 0; i < INPUT_COUNT && status == TSR_OK; i++) {
    const char *spec = options->inputs[i], *name = inputs[i].name;
    const tensor_entry *entry = options->input ? safetensors_find(st, name) : NULL;
    if ((i == INPUT_dout || i == INPUT_dlse) && !options->backward)
      entry = NULL;
    if (spec && i == INPUT_alibi_slopes && strcmp(spec, "auto") == 0)
      continue; /* made when the number of heads is known */
    if (spec)
      status = tensor_load(spec, name, literal_type(inputs[i].type), &p->inputs[i], err);
    else if (entry)
      status = tensor_read(file, entry, st->data_offset, &p->inputs[i], err);
    else
      continue;
    if (status == TSR_OK)
      status = fix_type(&p->inputs[i], i, types, err);
  }
  if (status == TSR_OK)
    status = unify_index_types(p, err);
  if (status == TSR_OK)
    status = load_aux(p, options, file, st, err);
  return status;
}

tsr_status inputs_load(tool_problem *p, const tool_options *options, const input_types *types, int32_t *causal,
                       double *scale, tsr_error *err) {
  tool_file file = {-1, 0, NULL};
  safetensors st;
  tsr_status status = TSR_OK;
  memset(&st, 0, sizeof(st));
  *causal = -1;
  *scale = 0;
  if (options->input) {
    status = file_open(&file, options->input, err);
    if (status == TSR_OK)
      status = safetensors_open(&file, &st, err);
    if (status == TSR_OK && options->use_metadata)
      status = read_metadata(&st, options->input, causal, scale, err);
  } else if (options->use_metadata) {
    tool_error(err, status = TSR_INVALID, "", "--use-metadata needs --input");
  }
  if (status == TSR_OK)
    status = load_all(p, options, &file, &st, types, err);
  if (status == TSR_OK && options->input) {
    const tensor_entry *o = safetensors_find(&st, "o");
    if (o && options->expect && strcmp(options->expect, "self") == 0)
      status = tensor_read(&file, o, st.data_offset, &p->expected, err);
    list_ignored(p, &st);
  }
  safetensors_free(&st);
  file_close(&file);
  return status;
}
