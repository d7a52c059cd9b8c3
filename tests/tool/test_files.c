/* SPDX-License-Identifier: Apache-2.0 */
/* Files: damaged ones are refused in words, output appears whole or not at all, layouts mean the same. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tool_test.h"

#define FILES "--q q.npy --k k.npy --v v.npy"

static void make_inputs(void) {
  make_random("q.npy", TSR_F32, 3, 6, 2, 8);
  make_random("k.npy", TSR_F32, 3, 7, 2, 8);
  make_random("v.npy", TSR_F32, 3, 7, 2, 8);
}

/* Exit code 3, one line on stderr that names the file, nothing on stdout, no output. */
static void assert_refused(const char *file, const char *options) {
  tool_result r = expect_code(3, "run %s -o out.npy", options);
  if (!strstr(r.err, file) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
    fail_msg("run %s: '%s' is not one line that names %s", options, r.err, file);
  assert_string_equal(r.out, "");
  assert_false(file_exists("out.npy"));
  free_result(&r);
}

static void test_truncated_npy(void **state) {
  size_t size;
  (void)state;
  make_inputs();
  char *bytes = read_file("q.npy", &size);
  for (size_t length = 0; length < size; length += length < 140 || length + 8 > size ? 1 : 37) {
    write_file("cut.npy", bytes, length);
    assert_refused("cut.npy", "--q cut.npy --k k.npy --v v.npy");
  }
  write_file("cut.npy", bytes, size);
  expect_exit(0, "run --q cut.npy --k k.npy --v v.npy");
  free(bytes);
}

static void test_truncated_safetensors(void **state) {
  const char *const names[] = {"q", "k", "v"};
  const int64_t shape[3] = {4, 1, 4};
  tool_tensor t[3], *list[3] = {&t[0], &t[1], &t[2]};
  tsr_error err;
  size_t size;
  (void)state;
  for (int i = 0; i < 3; i++) {
    assert_int_equal(tensor_create(&t[i], TSR_F16, 3, shape, &err), TSR_OK);
    fill_random(&t[i]);
  }
  make_safetensors("all.safetensors", names, list, 3, NULL);
  for (int i = 0; i < 3; i++)
    tensor_free(&t[i]);
  char *bytes = read_file("all.safetensors", &size);
  for (size_t length = 0; length < size; length++) {
    write_file("cut.safetensors", bytes, length);
    assert_refused("cut.safetensors", "cut.safetensors");
  }
  write_file("cut.safetensors", bytes, size);
  expect_exit(0, "run cut.safetensors --check");
  /* a header that announces 2^63 bytes, and one that announces 16 MiB in a small file */
  memset(bytes, 0xFF, 7);
  bytes[7] = 0x7F;
  write_file("cut.safetensors", bytes, size);
  assert_refused("cut.safetensors", "-i cut.safetensors");
  memset(bytes, 0, 8);
  bytes[2] = (char)0xFF;
  write_file("cut.safetensors", bytes, size);
  assert_refused("cut.safetensors", "-i cut.safetensors");
  free(bytes);
}

/* A header that promises terabytes must not make us allocate them. */
static void test_huge_promises(void **state) {
  static const char header[] =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000, 1000), }            \n";
  char bytes[256];
  (void)state;
  make_inputs();
  memcpy(bytes, "\x93NUMPY\x01", 7);
  bytes[7] = 0;
  bytes[8] = (char)(sizeof(header) - 1);
  bytes[9] = 0;
  memcpy(bytes + 10, header, sizeof(header) - 1);
  write_file("huge.npy", bytes, sizeof(header) + 9);
  assert_refused("huge.npy", "--q huge.npy --k k.npy --v v.npy");
}

static void test_bad_values(void **state) {
  static const char *const options[] = {"--prefix 5 --window 1",
                                        "--cu-seqlens-q 0,6 --cu-seqlens-k 0,9,3",
                                        "--cu-seqlens-q 3,2,6",
                                        "--seqlens-k 99",
                                        "--mask q.npy",
                                        "--bias 1,2,3",
                                        "--segments-q q.npy",
                                        "--mask-expr 'j <='",
                                        "--score-expr 'nonsense'",
                                        "--scalar x",
                                        "--scalar a=1 --scalar a=2 --mask-expr a",
                                        "--sink 1,2,3,4,5",
                                        "--heads 2",
                                        "--dropout 1.5",
                                        "--softcap -1",
                                        "--block 0,1",
                                        "--window a",
                                        "--k-scale q.npy",
                                        "--expect self",
                                        "--dtype i8",
                                        "--kv-dtype nothing",
                                        "--expect absent.npy",
                                        "--out-dtype u4",
                                        "--use-metadata",
                                        "--aux absent.npy"};
  (void)state;
  make_inputs();
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
    tool_result r = expect_code(3, "run " FILES " %s -o out.npy --json", options[i]);
    json_document doc = parse_output(&r);
    assert_string_equal(at_path(&doc, "error.status")->text, "invalid");
    assert_true(strlen(at_path(&doc, "error.text")->text) > 10);
    assert_false(file_exists("out.npy"));
    json_free(&doc);
    free_result(&r);
  }
  expect_exit(3, "run --q q.npy --k k.npy");
  expect_exit(3, "run " FILES " -o out.txt");
  expect_exit(3, "run " FILES " --save-dq out.npy");
  expect_exit(3, "run " FILES " --backward -o out.npy");
  expect_exit(3, "run " FILES " --save-lse one.npy --save-o one.npy");
  assert_false(file_exists("one.npy"));
}

static void test_output_whole_or_not(void **state) {
  struct stat st;
  (void)state;
  make_inputs();
  write_file("keep.npy", "precious", 8);
  expect_exit(3, "run " FILES " --window x -o keep.npy");
  expect_exit(1, "run " FILES " --expect q.npy -o keep.npy");
  size_t size;
  char *bytes = read_file("keep.npy", &size);
  assert_int_equal(size, 8);
  assert_memory_equal(bytes, "precious", 8);
  free(bytes);
  expect_exit(5, "run " FILES " -o absent/out.npy --save-lse lse.npy");
  assert_false(file_exists("lse.npy"));
  assert_int_equal(mkdir("folder.npy", 0700), 0);
  expect_exit(3, "run " FILES " -o folder.npy --save-lse lse.npy");
  assert_false(file_exists("lse.npy"));
  assert_int_equal(symlink("target.npy", "link.npy"), 0);
  write_file("target.npy", "old", 3);
  expect_exit(0, "run " FILES " -o link.npy");
  assert_true(lstat("link.npy", &st) == 0 && S_ISLNK(st.st_mode));
  assert_true(stat("target.npy", &st) == 0 && st.st_size > 3);
  expect_exit(0, "run " FILES " -o keep.npy");
  assert_true(stat("keep.npy", &st) == 0 && st.st_size > 8);
}

/* Nothing is left beside the outputs. */
static void test_no_temporary_files(void **state) {
  (void)state;
  make_inputs();
  expect_exit(0, "run " FILES " -o t1.safetensors --save-lse t1.npy");
  expect_exit(3, "run " FILES " -o t2.npy --save-lse folder2/t2.npy --dtype zzz");
  assert_int_equal(system("ls | grep -E 't[12]\\.(npy|safetensors)\\..' >/dev/null"), 256);
}

/* ---- The same numbers in other arrangements -------------------------------------------------- */

static void load(const char *spec, tool_tensor *t) {
  tsr_error err;
  if (tensor_load(spec, "o", TSR_DTYPE_NONE, t, &err) != TSR_OK)
    fail_msg("%s", err.text);
}

/* [S,H,D] as [H,S,D], or in Fortran order. */
static void rearrange(const char *from, const char *to, int fortran) {
  tool_tensor t;
  load(from, &t);
  const int64_t s = t.shape[0], h = t.shape[1], d = t.shape[2];
  float *data = malloc((size_t)t.bytes);
  assert_non_null(data);
  for (int64_t i = 0; i < s; i++)
    for (int64_t j = 0; j < h; j++)
      for (int64_t c = 0; c < d; c++)
        data[fortran ? (c * h + j) * s + i : (j * s + i) * d + c] = ((float *)t.data)[(i * h + j) * d + c];
  char header[160], file[160 + 4096];
  const int text = snprintf(header, sizeof(header), "{'descr': '<f4', 'fortran_order': %s, 'shape': (%d, %d, %d), }\n",
                            fortran ? "True" : "False", (int)(fortran ? s : h), (int)(fortran ? h : s), (int)d);
  memcpy(file, "\x93NUMPY\x01", 7);
  file[7] = 0;
  file[8] = (char)text;
  file[9] = 0;
  memcpy(file + 10, header, (size_t)text);
  memcpy(file + 10 + text, data, (size_t)t.bytes);
  write_file(to, file, 10 + (size_t)text + (size_t)t.bytes);
  free(data);
  tensor_free(&t);
}

static void assert_same_tensor(const char *a, const char *b, int transposed) {
  tool_tensor x, y;
  load(a, &x);
  load(b, &y);
  assert_int_equal(x.count, y.count);
  const int64_t h = x.shape[1], d = x.shape[2], s = x.shape[0];
  for (int64_t i = 0; i < x.count; i++) {
    const int64_t row = i / d / h, head = i / d % h, c = i % d;
    const int64_t other = transposed ? (head * s + row) * d + c : i;
    if (((float *)x.data)[i] != ((float *)y.data)[other])
      fail_msg("%s and %s differ at %d", a, b, (int)i);
  }
  tensor_free(&x);
  tensor_free(&y);
}

static void test_arrangements(void **state) {
  (void)state;
  make_inputs();
  expect_exit(0, "run " FILES " --causal -o o.npy");
  for (int fortran = 0; fortran < 2; fortran++) {
    rearrange("q.npy", "q2.npy", fortran);
    rearrange("k.npy", "k2.npy", fortran);
    rearrange("v.npy", "v2.npy", fortran);
    expect_exit(0, "run --q q2.npy --k k2.npy --v v2.npy --causal -o o2.npy %s", fortran ? "" : "--layout bhsd");
    assert_same_tensor("o.npy", "o2.npy", !fortran);
  }
}

static void test_metadata(void **state) {
  const char *const names[] = {"q", "k", "v", "misspelt"};
  const char *const metadata[] = {"causal", "true", "scale", "0.5", NULL};
  const char *const nonsense[] = {"causal", "perhaps", NULL};
  tool_tensor t[4], *list[4] = {&t[0], &t[1], &t[2], &t[3]};
  const int64_t shape[3] = {9, 2, 8};
  tsr_error err;
  (void)state;
  for (int i = 0; i < 4; i++) {
    assert_int_equal(tensor_create(&t[i], TSR_F32, 3, shape, &err), TSR_OK);
    fill_random(&t[i]);
  }
  make_safetensors("m.safetensors", names, list, 4, metadata);
  make_safetensors("n.safetensors", names, list, 4, nonsense);
  expect_exit(0, "run m.safetensors --use-metadata -o o1.npy");
  expect_exit(0, "run m.safetensors --causal --scale 0.5 -o o2.npy");
  assert_same_tensor("o1.npy", "o2.npy", 0);
  expect_exit(1, "run m.safetensors --expect o1.npy");
  expect_exit(3, "run n.safetensors --use-metadata");
  tool_result r = expect_code(0, "run m.safetensors");
  assert_non_null(strstr(r.out, "misspelt"));
  free_result(&r);
  for (int i = 0; i < 4; i++)
    tensor_free(&t[i]);
}

static void test_conversion(void **state) {
  tool_tensor t;
  (void)state;
  make_inputs();
  expect_exit(0, "run " FILES " --dtype bf16 --check -o c.safetensors");
  load("c.safetensors", &t);
  assert_int_equal(t.dtype, TSR_BF16);
  tensor_free(&t);
  expect_exit(4, "run " FILES " --dtype bf16 -o c.npy"); /* NumPy has no bf16 */
  assert_false(file_exists("c.npy"));
  expect_exit(0, "run " FILES " --dtype f8e4m3 --check");
}

/* ---- Interruption ---------------------------------------------------------------------------- */

static void test_interrupt(void **state) {
  static char *const words[] = {TOOL_COMMAND, "run", "--seqlen", "200000", "--heads", "4", "-o", "late.npy", NULL};
  int status;
  (void)state;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    if (!freopen("late.txt", "w", stderr))
      _exit(127);
    execv(words[0], words);
    _exit(127);
  }
  sleep(2);
  assert_int_equal(kill(child, SIGINT), 0);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 130);
  assert_false(file_exists("late.npy"));
  char *text = read_file("late.txt", NULL);
  assert_non_null(strstr(text, "interrupted"));
  free(text);
}

static int setup(void **state) {
  (void)state;
  make_folder();
  return 0;
}

static int teardown(void **state) {
  (void)state;
  remove_folder();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_truncated_npy),       cmocka_unit_test(test_truncated_safetensors),
      cmocka_unit_test(test_huge_promises),       cmocka_unit_test(test_bad_values),
      cmocka_unit_test(test_output_whole_or_not), cmocka_unit_test(test_no_temporary_files),
      cmocka_unit_test(test_arrangements),        cmocka_unit_test(test_metadata),
      cmocka_unit_test(test_conversion),          cmocka_unit_test(test_interrupt)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
