/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in files: NumPy's .npy (format versions 1 to 3) and .safetensors.
 *
 * The parsers take bytes in memory and trust none of them: lengths, shapes and offsets are checked against the
 * length of the file before anything is allocated, so memory is bounded by the file's own size. Errors are
 * TSR_INVALID with a sentence that says what is wrong (the loaders put the file's name before it).
 * Thread-safety: one thread per object. */
#ifndef TESSERA_TOOL_TENSOR_IO_H
#define TESSERA_TOOL_TENSOR_IO_H

#include "file.h"
#include "json.h"

enum { TENSOR_MAX_RANK = 8, NPY_MAX_HEADER = 65535 + 12, SAFETENSORS_MAX_HEADER = 16 << 20 };

/* A tensor as its file describes it. */
typedef struct tensor_entry {
  const char *name; /* safetensors: lives as long as the header; npy: "" */
  char type[24];    /* element type as the file spells it, cut if longer */
  tsr_dtype dtype;  /* TSR_DTYPE_NONE: a type that is not read here */
  int32_t rank;
  int32_t fortran; /* npy: first axis fastest */
  int64_t shape[TENSOR_MAX_RANK];
  int64_t offset, bytes; /* the data: where in the file (safetensors: after the header) and how much */
} tensor_entry;

/* A tensor in memory. */
typedef struct tool_tensor {
  tsr_dtype dtype;
  int32_t rank;
  int64_t shape[TENSOR_MAX_RANK];
  int64_t stride[TENSOR_MAX_RANK]; /* in elements */
  int64_t count, bytes;
  void *data; /* owned, 64-byte aligned; never NULL in a tensor that was made */
} tool_tensor;

/* ---- npy ------------------------------------------------------------------------------------- */

/* head: the first head_bytes = min(file_bytes, NPY_MAX_HEADER) bytes of a file of file_bytes. */
tsr_status npy_parse(const void *head, int64_t head_bytes, int64_t file_bytes, tensor_entry *entry, tsr_error *err);
/* Appends a contiguous tensor. TSR_UNSUPPORTED for element types that NumPy has not. */
tsr_status npy_write(tool_output *output, int32_t index, const tool_tensor *tensor, tsr_error *err);

/* ---- safetensors ----------------------------------------------------------------------------- */

typedef struct safetensors {
  json_document doc;
  tensor_entry *entries;
  int64_t count;
  const json_value *metadata; /* an object of strings, or NULL */
  int64_t data_offset;        /* of the data in the file */
} safetensors;

/* Length of the header from the first 8 bytes; checks it against file_bytes. head_bytes: bytes given. */
tsr_status safetensors_header_bytes(const void *head, int64_t head_bytes, int64_t file_bytes, int64_t *header_bytes,
                                    tsr_error *err);
/* Parses the header's JSON (what follows the first 8 bytes). Freed by the caller in both cases. */
tsr_status safetensors_parse(const char *header, int64_t header_bytes, int64_t file_bytes, safetensors *st,
                             tsr_error *err);
/* Reads and parses the header of an open file. */
tsr_status safetensors_open(const tool_file *file, safetensors *st, tsr_error *err);
void safetensors_free(safetensors *st);
const tensor_entry *safetensors_find(const safetensors *st, const char *name);
/* The string of a metadata key, or NULL. */
const char *safetensors_metadata(const safetensors *st, const char *key);
/* Writes a whole file: contiguous tensors and metadata (pairs of key and value, ended by NULL). */
tsr_status safetensors_write(tool_output *output, int32_t index, const char *const *names,
                             const tool_tensor *const *tensors, int64_t count, const char *const *metadata,
                             tsr_error *err);

/* ---- tensors --------------------------------------------------------------------------------- */

/* Fills shape and contiguous strides, without memory. */
tsr_status tensor_describe(tool_tensor *tensor, tsr_dtype dtype, int32_t rank, const int64_t *shape, tsr_error *err);
/* The same with memory that is not set, which costs nothing until it is touched. */
tsr_status tensor_reserve(tool_tensor *tensor, tsr_dtype dtype, int32_t rank, const int64_t *shape, tsr_error *err);
/* The same with zeroed memory. */
tsr_status tensor_create(tool_tensor *tensor, tsr_dtype dtype, int32_t rank, const int64_t *shape, tsr_error *err);
void tensor_free(tool_tensor *tensor);

/* Loads the data of an entry. `base` is added to its offset. */
tsr_status tensor_read(const tool_file *file, const tensor_entry *entry, int64_t base, tool_tensor *tensor,
                       tsr_error *err);
/* Loads by name: "x.npy", "x.safetensors" (tensor `name`) or "x.safetensors:other". Where literal_dtype is
 * not TSR_DTYPE_NONE, numbers separated by commas are taken too, as a vector of that type. */
tsr_status tensor_load(const char *spec, const char *name, tsr_dtype literal_dtype, tool_tensor *tensor,
                       tsr_error *err);
/* Changes the element type by value (f32, f16, bf16, fp8, i8, i32, i64); an integer that does not fit is
 * TSR_INVALID. `name` is for the error. */
tsr_status tensor_convert(tool_tensor *tensor, tsr_dtype dtype, const char *name, tsr_error *err);

/* Takes the same bytes as codes of another type of 8 bits, or as u4 (two channels a byte, low nibble first) and back.
 */
tsr_status tensor_reinterpret(tool_tensor *tensor, tsr_dtype dtype, const char *name, tsr_error *err);

/* 1 if a path ends in `suffix`. */
int path_has_suffix(const char *path, const char *suffix);

#endif
