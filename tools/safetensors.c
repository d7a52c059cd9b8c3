/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor_io.h"

/* Element types of the format; those without a dtype are skipped over, not read. */
static const struct {
  const char *name;
  tsr_dtype dtype;
  int32_t bits;
} st_types[] = {{"F32", TSR_F32, 32},        {"F16", TSR_F16, 16},        {"BF16", TSR_BF16, 16},
                {"F8_E4M3", TSR_F8E4M3, 8},  {"F8_E5M2", TSR_F8E5M2, 8},  {"I8", TSR_I8, 8},
                {"U8", TSR_U8, 8},           {"BOOL", TSR_U8, 8},         {"I32", TSR_I32, 32},
                {"I64", TSR_I64, 64},        {"F64", TSR_DTYPE_NONE, 64}, {"I16", TSR_DTYPE_NONE, 16},
                {"U16", TSR_DTYPE_NONE, 16}, {"U32", TSR_DTYPE_NONE, 32}, {"U64", TSR_DTYPE_NONE, 64}};
enum { NUM_TYPES = sizeof(st_types) / sizeof(st_types[0]) };

tsr_status safetensors_header_bytes(const void *head, int64_t head_bytes, int64_t file_bytes, int64_t *header_bytes,
                                    tsr_error *err) {
  const unsigned char *b = head;
  uint64_t length = 0;
  *header_bytes = 0;
  if (head_bytes < 8 || file_bytes < 8) {
    tool_error(err, TSR_INVALID, "", "truncated: %lld bytes are too few for a .safetensors file",
               (long long)file_bytes);
    return err->status;
  }
  for (int i = 7; i >= 0; i--)
    length = length << 8 | b[i];
  if (length > (uint64_t)(file_bytes - 8)) {
    tool_error(err, TSR_INVALID, "", "truncated or corrupt: a header of %llu bytes is announced, %lld are there",
               (unsigned long long)length, (long long)(file_bytes - 8));
    return err->status;
  }
  if (length > SAFETENSORS_MAX_HEADER) {
    tool_error(err, TSR_INVALID, "", "a header of %llu bytes; at most %d are read", (unsigned long long)length,
               SAFETENSORS_MAX_HEADER);
    return err->status;
  }
  *header_bytes = (int64_t)length;
  return TSR_OK;
}

static const char *parse_shape(const json_value *value, tensor_entry *entry, int64_t *count) {
  if (!value || value->kind != JSON_ARRAY)
    return "no list \"shape\"";
  if (value->count > TENSOR_MAX_RANK)
    return "more than 8 axes";
  *count = 1;
  for (const json_value *v = value->first; v; v = v->next) {
    int64_t extent;
    if (!json_int64(v, &extent) || extent < 0)
      return "a shape that is not a list of sizes";
    if (extent != 0 && *count > INT64_MAX / 64 / extent)
      return "a shape that overflows";
    *count *= extent;
    entry->shape[entry->rank++] = extent;
  }
  return NULL;
}

/* One member of the header. NULL or what is wrong with it. */
static const char *parse_entry(const json_value *member, int64_t data_bytes, tensor_entry *entry) {
  const json_value *type = json_get(member, "dtype"), *offsets = json_get(member, "data_offsets");
  int64_t count, end;
  int32_t bits = 0;
  memset(entry, 0, sizeof(*entry));
  entry->name = member->key;
  if (member->kind != JSON_OBJECT || member->count != 3)
    return "not an object of dtype, shape and data_offsets";
  if (!type || type->kind != JSON_STRING)
    return "no string \"dtype\"";
  snprintf(entry->type, sizeof(entry->type), "%s", type->text);
  for (int i = 0; i < NUM_TYPES; i++) {
    if (strcmp(type->text, st_types[i].name) == 0) {
      entry->dtype = st_types[i].dtype;
      bits = st_types[i].bits;
    }
  }
  const char *why = parse_shape(json_get(member, "shape"), entry, &count);
  if (why)
    return why;
  if (!offsets || offsets->kind != JSON_ARRAY || offsets->count != 2 || !json_int64(offsets->first, &entry->offset) ||
      !json_int64(offsets->first->next, &end))
    return "no pair \"data_offsets\"";
  if (entry->offset < 0 || end < entry->offset)
    return "data_offsets that do not ascend";
  if (end > data_bytes)
    return "data beyond the end of the file (truncated?)";
  entry->bytes = end - entry->offset;
  if (bits && entry->bytes != count * (bits / 8))
    return "data_offsets that do not fit its shape";
  return NULL;
}

static int compare_offsets(const void *a, const void *b) {
  const tensor_entry *x = a, *y = b;
  if (x->offset != y->offset)
    return x->offset < y->offset ? -1 : 1;
  return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(((const tensor_entry *)a)->name, ((const tensor_entry *)b)->name);
}

/* The format wants every byte of the data to belong to exactly one tensor. */
static tsr_status check_cover(safetensors *st, int64_t data_bytes, tsr_error *err) {
  int64_t at = 0;
  if (st->count > 1)
    qsort(st->entries, (size_t)st->count, sizeof(tensor_entry), compare_offsets);
  for (int64_t i = 0; i < st->count; i++) {
    if (st->entries[i].offset != at) {
      tool_error(err, TSR_INVALID, "", "corrupt: tensor '%.80s' starts at byte %lld of the data, not at %lld",
                 st->entries[i].name, (long long)st->entries[i].offset, (long long)at);
      return err->status;
    }
    at += st->entries[i].bytes;
  }
  if (at != data_bytes) {
    tool_error(err, TSR_INVALID, "", "corrupt: its tensors take %lld bytes, %lld are there", (long long)at,
               (long long)data_bytes);
    return err->status;
  }
  if (st->count > 1)
    qsort(st->entries, (size_t)st->count, sizeof(tensor_entry), compare_names);
  for (int64_t i = 1; i < st->count; i++) {
    if (strcmp(st->entries[i - 1].name, st->entries[i].name) == 0) {
      tool_error(err, TSR_INVALID, "", "corrupt: two tensors named '%.80s'", st->entries[i].name);
      return err->status;
    }
  }
  return TSR_OK;
}

static int is_metadata(const json_value *value) {
  if (value->kind != JSON_OBJECT)
    return 0;
  for (const json_value *v = value->first; v; v = v->next) {
    if (v->kind != JSON_STRING)
      return 0;
  }
  return 1;
}

tsr_status safetensors_parse(const char *header, int64_t header_bytes, int64_t file_bytes, safetensors *st,
                             tsr_error *err) {
  char why[160];
  memset(st, 0, sizeof(*st));
  st->data_offset = 8 + header_bytes;
  const int64_t data_bytes = file_bytes - st->data_offset;
  if (!json_parse(&st->doc, header, (size_t)header_bytes, why)) {
    tool_error(err, TSR_INVALID, "", "its header is not JSON: %s", why);
    return err->status;
  }
  const json_value *root = st->doc.root;
  if (root->kind != JSON_OBJECT) {
    tool_error(err, TSR_INVALID, "", "its header is not a JSON object");
    return err->status;
  }
  st->entries = calloc((size_t)root->count + 1, sizeof(tensor_entry));
  if (!st->entries) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for its list of tensors");
    return err->status;
  }
  for (const json_value *v = root->first; v; v = v->next) {
    if (strcmp(v->key, "__metadata__") == 0) {
      if (st->metadata || !is_metadata(v)) {
        tool_error(err, TSR_INVALID, "", "its __metadata__ is not one object of strings");
        return err->status;
      }
      st->metadata = v;
      continue;
    }
    const char *wrong = parse_entry(v, data_bytes, &st->entries[st->count++]);
    if (wrong) {
      tool_error(err, TSR_INVALID, "", "tensor '%.80s' has %s", v->key, wrong);
      return err->status;
    }
  }
  return check_cover(st, data_bytes, err);
}

static tsr_status name_file(const tool_file *file, tsr_error *err) {
  char text[sizeof(err->text)];
  memcpy(text, err->text, sizeof(text));
  tool_error(err, err->status, err->field, "%s: %s", file->path, text);
  return err->status;
}

tsr_status safetensors_open(const tool_file *file, safetensors *st, tsr_error *err) {
  unsigned char head[8];
  int64_t header_bytes;
  memset(st, 0, sizeof(*st));
  const int64_t head_bytes = file->size < 8 ? file->size : 8;
  tsr_status status = file_read(file, 0, head, head_bytes, err);
  if (status != TSR_OK)
    return status;
  status = safetensors_header_bytes(head, head_bytes, file->size, &header_bytes, err);
  if (status != TSR_OK)
    return name_file(file, err);
  char *header = malloc((size_t)header_bytes + 1);
  if (!header) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "%s: no memory for its header", file->path);
    return err->status;
  }
  status = file_read(file, 8, header, header_bytes, err);
  if (status == TSR_OK) {
    status = safetensors_parse(header, header_bytes, file->size, st, err);
    if (status != TSR_OK)
      name_file(file, err);
  }
  free(header);
  if (status != TSR_OK)
    safetensors_free(st);
  return status;
}

void safetensors_free(safetensors *st) {
  json_free(&st->doc);
  free(st->entries);
  memset(st, 0, sizeof(*st));
}

const tensor_entry *safetensors_find(const safetensors *st, const char *name) {
  for (int64_t i = 0; i < st->count; i++) {
    if (strcmp(st->entries[i].name, name) == 0)
      return &st->entries[i];
  }
  return NULL;
}

const char *safetensors_metadata(const safetensors *st, const char *key) {
  const json_value *value = json_get(st->metadata, key);
  return value ? value->text : NULL;
}

static const char *type_name(tsr_dtype dtype) {
  for (int i = 0; i < NUM_TYPES; i++) {
    if (st_types[i].dtype == dtype && dtype != TSR_DTYPE_NONE)
      return st_types[i].name;
  }
  return NULL;
}

tsr_status safetensors_write(tool_output *output, int32_t index, const char *const *names,
                             const tool_tensor *const *tensors, int64_t count, const char *const *metadata,
                             tsr_error *err) {
  tool_text header = {0};
  json_writer w = {&header, 0, 0};
  int64_t at = 0;
  json_open(&w, NULL, '{');
  json_open(&w, "__metadata__", '{');
  for (; metadata && metadata[0]; metadata += 2)
    json_put_string(&w, metadata[0], metadata[1]);
  json_close(&w, '}');
  for (int64_t i = 0; i < count; i++) {
    const tool_tensor *t = tensors[i];
    if (!type_name(t->dtype)) {
      tool_error(err, TSR_UNSUPPORTED, "", "%s: .safetensors has no element type %s", output->files[index].path,
                 tsr_dtype_name(t->dtype));
      text_free(&header);
      return err->status;
    }
    json_open(&w, names[i], '{');
    json_put_string(&w, "dtype", type_name(t->dtype));
    json_open(&w, "shape", '[');
    for (int32_t axis = 0; axis < t->rank; axis++)
      json_put_int(&w, NULL, t->shape[axis]);
    json_close(&w, ']');
    json_open(&w, "data_offsets", '[');
    json_put_int(&w, NULL, at);
    json_put_int(&w, NULL, at + t->bytes);
    json_close(&w, ']');
    json_close(&w, '}');
    at += t->bytes;
  }
  json_close(&w, '}');
  while (header.len % 8 != 0 && !header.failed)
    text_puts(&header, " ");
  tsr_status status = TSR_OK;
  if (header.failed)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "%s: no memory for its header", output->files[index].path);
  unsigned char length[8];
  for (int i = 0; i < 8; i++)
    length[i] = (unsigned char)((uint64_t)header.len >> (8 * i));
  if (status == TSR_OK)
    status = output_write(output, index, length, 8, err);
  if (status == TSR_OK)
    status = output_write(output, index, header.data, (int64_t)header.len, err);
  for (int64_t i = 0; i < count && status == TSR_OK; i++)
    status = output_write(output, index, tensors[i]->data, tensors[i]->bytes, err);
  text_free(&header);
  return status;
}
