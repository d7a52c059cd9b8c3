/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/conformance/engine/rng.h"
#include "tool_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static char folder[128];
static conf_rng rng;

/* ---- Running --------------------------------------------------------------------------------- */

enum { MAX_WORDS = 96 };

/* Splits in place; '...' keeps blanks. */
static int split_words(char *line, char *words[MAX_WORDS]) {
  int count = 0;
  while (*line) {
    line += strspn(line, " ");
    if (!*line)
      break;
    assert_true(count + 1 < MAX_WORDS);
    const char end = *line == '\'' ? '\'' : ' ';
    line += end == '\'';
    words[count++] = line;
    line += strcspn(line, end == '\'' ? "'" : " ");
    if (*line)
      *line++ = '\0';
  }
  words[count] = NULL;
  return count;
}

char *read_file(const char *name, size_t *count) {
  FILE *file = fopen(name, "rb");
  assert_non_null(file);
  assert_int_equal(fseek(file, 0, SEEK_END), 0);
  const long size = ftell(file);
  rewind(file);
  char *bytes = malloc((size_t)size + 1);
  assert_non_null(bytes);
  assert_int_equal(fread(bytes, 1, (size_t)size, file), size);
  bytes[size] = '\0';
  fclose(file);
  if (count)
    *count = (size_t)size;
  return bytes;
}

static void redirect(int number, const char *name) {
  const int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || dup2(fd, number) < 0)
    _exit(127);
  close(fd);
}

static tool_result run_line(const char *line) {
  char copy[4096], *words[MAX_WORDS];
  int status;
  tool_result result = {0, NULL, NULL};
  assert_true(strlen(line) + sizeof(TOOL_COMMAND) < sizeof(copy));
  snprintf(copy, sizeof(copy), "%s %s", TOOL_COMMAND, line);
  split_words(copy, words);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    redirect(STDOUT_FILENO, "stdout.txt");
    redirect(STDERR_FILENO, "stderr.txt");
    execv(words[0], words);
    _exit(127);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_file("stdout.txt", NULL);
  result.err = read_file("stderr.txt", NULL);
  if (!WIFEXITED(status) || result.code == 127)
    fail_msg("tessera %s: ended with %d\n%s", line, result.code, result.err);
  return result;
}

static tool_result run_expecting(int code, const char *format, va_list args) {
  char line[4000];
  vsnprintf(line, sizeof(line), format, args);
  tool_result result = run_line(line);
  if (result.code != code)
    fail_msg("tessera %s: exit code %d, expected %d\n%s\n%s", line, result.code, code, result.out, result.err);
  return result;
}

tool_result expect_code(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const tool_result result = run_expecting(code, format, args);
  va_end(args);
  return result;
}

void expect_exit(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tool_result result = run_expecting(code, format, args);
  va_end(args);
  free_result(&result);
}

void free_result(tool_result *result) {
  free(result->out);
  free(result->err);
}

json_document parse_output(const tool_result *result) {
  json_document doc;
  char why[160];
  if (!json_parse(&doc, result->out, strlen(result->out), why))
    fail_msg("not JSON: %s\n%s", why, result->out);
  return doc;
}

const json_value *at_path(const json_document *doc, const char *path) {
  const json_value *value = doc->root;
  char part[64];
  for (const char *at = path; *at;) {
    const size_t length = strcspn(at, ".");
    snprintf(part, sizeof(part), "%.*s", (int)length, at);
    at += length + (at[length] == '.');
    if (value->kind == JSON_ARRAY) {
      const json_value *entry = value->first;
      for (long i = strtol(part, NULL, 10); entry && i > 0; i--)
        entry = entry->next;
      value = entry;
    } else {
      value = json_get(value, part);
    }
    if (!value)
      fail_msg("no %s (at %s) in the document", path, part);
  }
  return value;
}

/* ---- Files ----------------------------------------------------------------------------------- */

void make_folder(void) {
  const char *base = getenv("TMPDIR"), *seed = getenv("TESSERA_TEST_SEED");
  snprintf(folder, sizeof(folder), "%.80s/tessera-tool-XXXXXX", base ? base : P_tmpdir);
  assert_non_null(mkdtemp(folder));
  assert_int_equal(chdir(folder), 0);
  rng.state = seed ? strtoull(seed, NULL, 10) : (uint64_t)time(NULL) * 1000003 + (uint64_t)getpid();
  print_message("TESSERA_TEST_SEED=%llu\n", (unsigned long long)rng.state);
}

static void remove_all(const char *path) {
  DIR *dir = opendir(path);
  const struct dirent *entry;
  char name[512];
  struct stat st;
  while (dir && (entry = readdir(dir)) != NULL) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
      continue;
    snprintf(name, sizeof(name), "%.200s/%.250s", path, entry->d_name);
    if (lstat(name, &st) == 0 && S_ISDIR(st.st_mode))
      remove_all(name);
    else
      unlink(name);
  }
  if (dir)
    closedir(dir);
  rmdir(path);
}

void remove_folder(void) {
  assert_int_equal(chdir("/"), 0);
  remove_all(folder);
}

int file_exists(const char *name) {
  struct stat st;
  return lstat(name, &st) == 0;
}

void write_file(const char *name, const void *bytes, size_t count) {
  FILE *file = fopen(name, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, count, file), count);
  assert_int_equal(fclose(file), 0);
}

uint64_t test_random(void) {
  return conf_next(&rng);
}

void fill_random(tool_tensor *tensor) {
  for (int64_t i = 0; i < tensor->count; i++)
    tsr_encode(tensor->dtype, tensor->data, i, (double)(int64_t)test_random() / 9223372036854775808.0 * 1.7);
}

static void save_npy(const char *name, const tool_tensor *tensor) {
  tool_output output = {0};
  tsr_error err;
  int32_t index;
  assert_int_equal(output_open(&output, name, &index, &err), TSR_OK);
  assert_int_equal(npy_write(&output, index, tensor, &err), TSR_OK);
  assert_int_equal(output_commit(&output, &err), TSR_OK);
}

static void read_shape(int rank, va_list args, int64_t *shape) {
  for (int i = 0; i < rank; i++)
    shape[i] = va_arg(args, int);
}

void make_random(const char *name, tsr_dtype dtype, int rank, ...) {
  int64_t shape[TENSOR_MAX_RANK];
  tool_tensor tensor;
  tsr_error err;
  va_list args;
  va_start(args, rank);
  read_shape(rank, args, shape);
  va_end(args);
  assert_int_equal(tensor_create(&tensor, dtype, rank, shape, &err), TSR_OK);
  fill_random(&tensor);
  save_npy(name, &tensor);
  tensor_free(&tensor);
}

void make_integers(const char *name, tsr_dtype dtype, const int64_t *values, int rank, ...) {
  int64_t shape[TENSOR_MAX_RANK];
  tool_tensor tensor;
  tsr_error err;
  va_list args;
  va_start(args, rank);
  read_shape(rank, args, shape);
  va_end(args);
  assert_int_equal(tensor_create(&tensor, dtype, rank, shape, &err), TSR_OK);
  for (int64_t i = 0; i < tensor.count; i++) {
    if (dtype == TSR_U8)
      ((uint8_t *)tensor.data)[i] = (uint8_t)values[i];
    else
      tsr_encode(dtype, tensor.data, i, (double)values[i]);
  }
  save_npy(name, &tensor);
  tensor_free(&tensor);
}

void make_safetensors(const char *name, const char *const *names, tool_tensor *const *tensors, int64_t count,
                      const char *const *metadata) {
  tool_output output = {0};
  tsr_error err;
  int32_t index;
  assert_int_equal(output_open(&output, name, &index, &err), TSR_OK);
  assert_int_equal(safetensors_write(&output, index, names, (const tool_tensor *const *)tensors, count, metadata, &err),
                   TSR_OK);
  assert_int_equal(output_commit(&output, &err), TSR_OK);
}

void corrupt_npy(const char *name, int64_t element, double delta) {
  tool_tensor tensor;
  tsr_error err;
  assert_int_equal(tensor_load(name, "x", TSR_DTYPE_NONE, &tensor, &err), TSR_OK);
  tsr_encode(tensor.dtype, tensor.data, element, tsr_decode(tensor.dtype, tensor.data, element) + delta);
  save_npy(name, &tensor);
  tensor_free(&tensor);
}
