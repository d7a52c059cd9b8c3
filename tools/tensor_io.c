/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_io.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int path_has_suffix(const char *path, const char *suffix) {
  const size_t n = strlen(path), m = strlen(suffix);
  return n > m && strcmp(path + n - m, suffix) == 0;
}

static int64_t byte_count(tsr_dtype dtype, int64_t count) {
  return (count * tsr_dtype_bits(dtype) + 7) / 8;
}

/* 64-byte aligned and never empty, so that a tensor without elements has an address too. */
static void *allocate(int64_t bytes) {
  return aligned_alloc(64, ((size_t)bytes + 64) / 64 * 64);
}

tsr_status tensor_describe(tool_tensor *tensor, tsr_dtype dtype, int32_t rank, const int64_t *shape, tsr_error *err) {
  memset(tensor, 0, sizeof(*tensor));
  tensor->dtype = dtype;
  tensor->rank = rank;
  tensor->count = 1;
  for (int32_t i = rank; i-- > 0;) {
    tensor->shape[i] = shape[i];
    tensor->stride[i] = tensor->count;
    if (shape[i] < 0 || (shape[i] > 0 && tensor->count > INT64_MAX / 128 / shape[i])) {
      tool_error(err, TSR_INVALID, "", "a tensor of these sizes overflows");
      return err->status;
    }
    tensor->count *= shape[i];
  }
  tensor->bytes = byte_count(dtype, tensor->count);
  return TSR_OK;
}

tsr_status tensor_reserve(tool_tensor *tensor, tsr_dtype dtype, int32_t rank, const int64_t *shape, tsr_error *err) {
  const tsr_status status = tensor_describe(tensor, dtype, rank, shape, err);
  if (status != TSR_OK)
    return status;
  tensor->data = allocate(tensor->bytes);
  if (!tensor->data) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for a tensor of %lld bytes", (long long)tensor->bytes);
    return err->status;
  }
  return TSR_OK;
}

tsr_status tensor_create(tool_tensor *tensor, tsr_dtype dtype, int32_t rank, const int64_t *shape, tsr_error *err) {
  const tsr_status status = tensor_reserve(tensor, dtype, rank, shape, err);
  if (status == TSR_OK)
    memset(tensor->data, 0, (size_t)tensor->bytes);
  return status;
}

void tensor_free(tool_tensor *tensor) {
  free(tensor->data);
  memset(tensor, 0, sizeof(*tensor));
}

tsr_status tensor_read(const tool_file *file, const tensor_entry *entry, int64_t base, tool_tensor *tensor,
                       tsr_error *err) {
  memset(tensor, 0, sizeof(*tensor));
  if (entry->dtype == TSR_DTYPE_NONE) {
    tool_error(err, TSR_INVALID, "", "%s: tensor '%.80s' has element type %s, which is not read here", file->path,
               entry->name, entry->type);
    return err->status;
  }
  tsr_status status = tensor_reserve(tensor, entry->dtype, entry->rank, entry->shape, err);
  if (status == TSR_OK)
    status = file_read(file, base + entry->offset, tensor->data, entry->bytes, err);
  if (status != TSR_OK) {
    tensor_free(tensor);
    return status;
  }
  if (entry->fortran) {
    int64_t stride = 1;
    for (int32_t i = 0; i < entry->rank; i++) {
      tensor->stride[i] = stride;
      stride *= entry->shape[i];
    }
  }
  return TSR_OK;
}

static tsr_status load_npy(const char *path, tool_tensor *tensor, tsr_error *err) {
  tool_file file;
  tensor_entry entry;
  tsr_status status = file_open(&file, path, err);
  if (status != TSR_OK)
    return status;
  const int64_t head_bytes = file.size < NPY_MAX_HEADER ? file.size : NPY_MAX_HEADER;
  char *head = malloc((size_t)head_bytes + 1);
  if (!head)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "%s: no memory for its header", path);
  else
    status = file_read(&file, 0, head, head_bytes, err);
  if (status == TSR_OK) {
    status = npy_parse(head, head_bytes, file.size, &entry, err);
    if (status == TSR_OK) {
      status = tensor_read(&file, &entry, 0, tensor, err);
    } else {
      char text[sizeof(err->text)];
      memcpy(text, err->text, sizeof(text));
      tool_error(err, status, "", "%s: %s", path, text);
    }
  }
  free(head);
  file_close(&file);
  return status;
}

static tsr_status load_safetensors(const char *path, const char *name, tool_tensor *tensor, tsr_error *err) {
  tool_file file;
  safetensors st;
  tsr_status status = file_open(&file, path, err);
  if (status != TSR_OK)
    return status;
  status = safetensors_open(&file, &st, err);
  if (status == TSR_OK) {
    const tensor_entry *entry = safetensors_find(&st, name);
    if (entry)
      status = tensor_read(&file, entry, st.data_offset, tensor, err);
    else
      tool_error(err, status = TSR_INVALID, name, "%s: no tensor named '%.80s'", path, name);
    safetensors_free(&st);
  }
  file_close(&file);
  return status;
}

static tsr_status parse_literal(const char *spec, const char *name, tsr_dtype dtype, tool_tensor *tensor,
                                tsr_error *err) {
  int64_t count = 1;
  for (const char *c = spec; *c; c++)
    count += *c == ',';
  tsr_status status = tensor_create(tensor, dtype, 1, &count, err);
  const char *at = spec;
  for (int64_t i = 0; i < count && status == TSR_OK; i++) {
    char *end;
    errno = 0;
    const double value = strtod(at, &end);
    const double limit = dtype == TSR_I32 ? 2147483647.0 : dtype == TSR_I64 ? 9007199254740992.0 : INFINITY;
    const int integer = dtype == TSR_I32 || dtype == TSR_I64;
    if (end == at || (*end != ',' && *end != '\0') || (integer && !(fabs(value) <= limit && value == floor(value)))) {
      tool_error(err, status = TSR_INVALID, name,
                 "%s: '%.100s' is neither a .npy or .safetensors file nor %s separated by commas", name, spec,
                 integer ? "integers" : "numbers");
      break;
    }
    tsr_encode(dtype, tensor->data, i, value);
    at = end + 1;
  }
  if (status != TSR_OK)
    tensor_free(tensor);
  return status;
}

tsr_status tensor_load(const char *spec, const char *name, tsr_dtype literal_dtype, tool_tensor *tensor,
                       tsr_error *err) {
  static const char extension[] = ".safetensors:";
  memset(tensor, 0, sizeof(*tensor));
  const char *colon = strstr(spec, extension);
  if (colon) {
    char *path = strdup(spec);
    if (!path) {
      tool_error(err, TSR_OUT_OF_MEMORY, name, "no memory");
      return err->status;
    }
    path[colon - spec + (ptrdiff_t)sizeof(extension) - 2] = '\0';
    const tsr_status status = load_safetensors(path, colon + sizeof(extension) - 1, tensor, err);
    free(path);
    return status;
  }
  if (path_has_suffix(spec, ".safetensors"))
    return load_safetensors(spec, name, tensor, err);
  if (path_has_suffix(spec, ".npy"))
    return load_npy(spec, tensor, err);
  if (literal_dtype != TSR_DTYPE_NONE)
    return parse_literal(spec, name, literal_dtype, tensor, err);
  tool_error(err, TSR_INVALID, name, "%s: '%.200s' is neither a .npy nor a .safetensors file", name, spec);
  return err->status;
}

tsr_status tensor_convert(tool_tensor *tensor, tsr_dtype dtype, const char *name, tsr_error *err) {
  if (tensor->dtype == dtype)
    return TSR_OK;
  const int64_t bytes = byte_count(dtype, tensor->count);
  void *data = allocate(bytes);
  if (!data) {
    tool_error(err, TSR_OUT_OF_MEMORY, name, "%s: no memory to convert it", name);
    return err->status;
  }
  const double limit = dtype == TSR_I32 ? 2147483647.0 : INFINITY;
  memset(data, 0, (size_t)bytes);
  for (int64_t i = 0; i < tensor->count; i++) {
    const double value = tsr_decode(tensor->dtype, tensor->data, i);
    if (fabs(value) > limit) {
      tool_error(err, TSR_INVALID, name, "%s: element %lld is %.0f, which does not fit %s", name, (long long)i, value,
                 tsr_dtype_name(dtype));
      free(data);
      return err->status;
    }
    tsr_encode(dtype, data, i, value);
  }
  free(tensor->data);
  tensor->data = data;
  tensor->dtype = dtype;
  tensor->bytes = bytes;
  return TSR_OK;
}

tsr_status tensor_reinterpret(tool_tensor *t, tsr_dtype dtype, const char *name, tsr_error *err) {
  const int32_t last = t->rank - 1;
  const int narrow = dtype == TSR_U4 && t->dtype != TSR_U4, widen = dtype != TSR_U4 && t->dtype == TSR_U4;
  if ((narrow || widen) && (t->rank == 0 || (t->stride[last] != 1 && t->shape[last] > 1))) {
    tool_error(err, TSR_INVALID, name, "%s: u4 needs its last axis contiguous", name);
    return err->status;
  }
  t->dtype = dtype;
  if (narrow) { /* two channels a byte */
    t->shape[last] *= 2;
    t->count *= 2;
  } else if (widen) {
    t->shape[last] /= 2;
    t->count /= 2;
  }
  for (int32_t i = 0; i < last; i++)
    t->stride[i] = narrow ? t->stride[i] * 2 : widen ? t->stride[i] / 2 : t->stride[i];
  return TSR_OK;
}
