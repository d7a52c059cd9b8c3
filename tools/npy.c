/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "tensor_io.h"

/* NumPy's names of the element types that mean something here; the byte order mark is apart. */
static const struct {
  const char *descr;
  tsr_dtype dtype;
} npy_types[] = {{"f4", TSR_F32}, {"f2", TSR_F16}, {"i1", TSR_I8}, {"u1", TSR_U8},
                 {"b1", TSR_U8},  {"i4", TSR_I32}, {"i8", TSR_I64}};

typedef struct cursor {
  const char *at, *end;
} cursor;

static void skip_blanks(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
    c->at++;
}

static int take(cursor *c, const char *word) {
  const size_t length = strlen(word);
  skip_blanks(c);
  if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0)
    return 0;
  c->at += length;
  return 1;
}

/* A Python string without escapes, cut to fit. */
static int take_string(cursor *c, char *out, size_t capacity) {
  size_t length = 0;
  skip_blanks(c);
  if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
    return 0;
  const char quote = *c->at++;
  for (; c->at < c->end && *c->at != quote; c->at++) {
    if ((unsigned char)*c->at < 0x20 || (unsigned char)*c->at > 0x7E || *c->at == '\\')
      return 0;
    if (length + 1 < capacity)
      out[length++] = *c->at;
  }
  if (c->at == c->end)
    return 0;
  c->at++;
  out[length] = '\0';
  return 1;
}

static int take_extent(cursor *c, int64_t *out) {
  int64_t value = 0;
  skip_blanks(c);
  const char *start = c->at;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
    const int digit = *c->at - '0';
    if (value > (INT64_MAX - digit) / 10)
      return 0;
    value = value * 10 + digit;
  }
  *out = value;
  if (c->at == start)
    return 0;
  if (c->at < c->end && *c->at == 'L') /* written by Python 2 */
    c->at++;
  return 1;
}

static int take_shape(cursor *c, tensor_entry *entry) {
  if (!take(c, "("))
    return 0;
  entry->rank = 0;
  while (!take(c, ")")) {
    if (entry->rank == TENSOR_MAX_RANK || !take_extent(c, &entry->shape[entry->rank]))
      return 0;
    entry->rank++;
    if (!take(c, ",")) {
      if (entry->rank == 1) /* (3) is a number, (3,) a tuple */
        return 0;
      return take(c, ")");
    }
  }
  return 1;
}

/* {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), } in any order, each once. */
static const char *parse_dictionary(cursor *c, tensor_entry *entry) {
  int seen_type = 0, seen_order = 0, seen_shape = 0;
  char key[16];
  if (!take(c, "{"))
    return "its header is not a dictionary";
  while (!take(c, "}")) {
    if (!take_string(c, key, sizeof(key)) || !take(c, ":"))
      return "its header is not a dictionary";
    if (strcmp(key, "descr") == 0 && !seen_type++) {
      if (!take_string(c, entry->type, sizeof(entry->type)))
        return "its element type is not a plain one";
    } else if (strcmp(key, "fortran_order") == 0 && !seen_order++) {
      entry->fortran = take(c, "True");
      if (!entry->fortran && !take(c, "False"))
        return "fortran_order is neither True nor False";
    } else if (strcmp(key, "shape") == 0 && !seen_shape++) {
      if (!take_shape(c, entry))
        return "its shape is not a tuple of at most 8 sizes";
    } else {
      return "its header has an unknown or repeated key";
    }
    if (!take(c, ",")) {
      if (!take(c, "}"))
        return "its header is not a dictionary";
      break;
    }
  }
  skip_blanks(c);
  if (c->at != c->end)
    return "its header has text after the dictionary";
  if (!seen_type || !seen_order || !seen_shape)
    return "its header lacks descr, fortran_order or shape";
  return NULL;
}

static const char *check_size(tensor_entry *entry, int64_t data_bytes) {
  int64_t count = 1;
  for (int32_t i = 0; i < entry->rank; i++) {
    if (entry->shape[i] != 0 && count > INT64_MAX / 16 / entry->shape[i])
      return "its shape overflows";
    count *= entry->shape[i];
  }
  entry->bytes = count * (tsr_dtype_bits(entry->dtype) / 8);
  return entry->bytes == data_bytes ? NULL : "";
}

static const char *find_type(tensor_entry *entry) {
  const char order = entry->type[0];
  if (order == '>')
    return "big-endian data is not read";
  for (size_t i = 0; i < sizeof(npy_types) / sizeof(npy_types[0]); i++) {
    if ((order == '<' || order == '|' || order == '=') && strcmp(entry->type + 1, npy_types[i].descr) == 0) {
      entry->dtype = npy_types[i].dtype;
      return NULL;
    }
  }
  if (strcmp(entry->type, "<f8") == 0)
    return "it holds float64; save it as float32 (x.astype('float32'))";
  return "";
}

tsr_status npy_parse(const void *head, int64_t head_bytes, int64_t file_bytes, tensor_entry *entry, tsr_error *err) {
  const unsigned char *b = head;
  memset(entry, 0, sizeof(*entry));
  entry->name = "";
  if (head_bytes < 10 || memcmp(b, "\x93NUMPY", 6) != 0) {
    tool_error(err, TSR_INVALID, "", "not a .npy file: it does not start with \\x93NUMPY and a version");
    return err->status;
  }
  const int wide = b[6] >= 2;
  if (b[6] < 1 || b[6] > 3 || (wide && head_bytes < 12)) {
    tool_error(err, TSR_INVALID, "", ".npy format version %d.%d is unknown or cut short", b[6], b[7]);
    return err->status;
  }
  const int64_t start = wide ? 12 : 10;
  int64_t length = b[8] | (int64_t)b[9] << 8;
  if (wide)
    length |= (int64_t)b[10] << 16 | (int64_t)b[11] << 24;
  if (length > head_bytes - start) {
    tool_error(err, TSR_INVALID, "", "truncated or corrupt: a header of %lld bytes is announced, %lld are there",
               (long long)length, (long long)(head_bytes - start));
    return err->status;
  }
  cursor c = {(const char *)b + start, (const char *)b + start + length};
  const char *why = parse_dictionary(&c, entry);
  if (!why) {
    why = find_type(entry);
    if (why && !*why) {
      tool_error(err, TSR_INVALID, "", "its element type '%s' is not one of f4 f2 i1 u1 b1 i4 i8", entry->type);
      return err->status;
    }
  }
  entry->offset = start + length;
  if (!why)
    why = check_size(entry, file_bytes - entry->offset);
  if (why && *why) {
    tool_error(err, TSR_INVALID, "", "%s", why);
    return err->status;
  }
  if (why) {
    tool_error(err, TSR_INVALID, "", "%s: its shape needs %lld bytes of data, %lld are there",
               entry->bytes > file_bytes - entry->offset ? "truncated" : "too long", (long long)entry->bytes,
               (long long)(file_bytes - entry->offset));
    return err->status;
  }
  return TSR_OK;
}

tsr_status npy_write(tool_output *output, int32_t index, const tool_tensor *tensor, tsr_error *err) {
  const char *descr = NULL;
  char header[512], shape[256];
  size_t used = 0;
  for (size_t i = 0; i < sizeof(npy_types) / sizeof(npy_types[0]) && !descr; i++) {
    if (npy_types[i].dtype == tensor->dtype)
      descr = npy_types[i].descr;
  }
  if (!descr) {
    tool_error(err, TSR_UNSUPPORTED, "", "%s: .npy has no element type %s; write .safetensors, or ask for another type",
               output->files[index].path, tsr_dtype_name(tensor->dtype));
    return err->status;
  }
  shape[0] = '\0';
  for (int32_t i = 0; i < tensor->rank; i++) {
    used += (size_t)snprintf(shape + used, sizeof(shape) - used, i + 1 < tensor->rank || i == 0 ? "%lld, " : "%lld",
                             (long long)tensor->shape[i]);
  }
  /* the data start at a multiple of 64 */
  const int text =
      snprintf(header + 10, sizeof(header) - 10, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s), }",
               descr[1] == '1' ? '|' : '<', descr, shape);
  const size_t total = ((size_t)text + 10 + 1 + 63) / 64 * 64;
  memset(header + 10 + text, ' ', total - 10 - (size_t)text);
  header[total - 1] = '\n';
  memcpy(header, "\x93NUMPY\x01", 7);
  header[7] = 0;
  header[8] = (char)((total - 10) & 255);
  header[9] = (char)((total - 10) >> 8);
  const tsr_status status = output_write(output, index, header, (int64_t)total, err);
  return status == TSR_OK ? output_write(output, index, tensor->data, tensor->bytes, err) : status;
}
