/* SPDX-License-Identifier: Apache-2.0 */
/* Driving the built command: run it, take its output apart, make its input files. */
#ifndef TESSERA_TEST_TOOL_H
#define TESSERA_TEST_TOOL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor_io.h"

typedef struct tool_result {
  int code; /* exit code; 128 + number of a signal that killed it */
  char *out, *err;
} tool_result;

/* Runs the command with a command line and asserts the exit code; prints both outputs when it differs. Words are
 * separated by blanks, and '...' keeps blanks. The folder of the test is the current one. The caller frees. */
tool_result expect_code(int code, const char *format, ...);
void free_result(tool_result *result);
/* The same for callers who look at nothing else. */
void expect_exit(int code, const char *format, ...);

/* Parses stdout as one JSON document; fails the test if it is not. The caller frees. */
json_document parse_output(const tool_result *result);
/* A member by path, "device.name", "checks.0.passed"; fails the test if it is not there. */
const json_value *at_path(const json_document *doc, const char *path);

/* Files in the folder of the test. Random values come from the printed seed. */
void make_folder(void);
void remove_folder(void);
int file_exists(const char *name);
void write_file(const char *name, const void *bytes, size_t count);
char *read_file(const char *name, size_t *count);
/* A tensor of random values, or of the given integers, as .npy. */
void make_random(const char *name, tsr_dtype dtype, int rank, ...);
void make_integers(const char *name, tsr_dtype dtype, const int64_t *values, int rank, ...);
/* A .safetensors file of random tensors: pairs of a name and a tensor made by tensor_create. */
void make_safetensors(const char *name, const char *const *names, tool_tensor *const *tensors, int64_t count,
                      const char *const *metadata);
void fill_random(tool_tensor *tensor);
uint64_t test_random(void);
/* Adds `delta` to one element of a tensor in a .npy file. */
void corrupt_npy(const char *name, int64_t element, double delta);

#endif
