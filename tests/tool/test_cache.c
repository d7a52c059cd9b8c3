/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera merge` and `tessera append`. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool_test.h"

static void load(const char *spec, const char *name, tool_tensor *t) {
  tsr_error err;
  if (tensor_load(spec, name, TSR_DTYPE_NONE, t, &err) != TSR_OK)
    fail_msg("%s", err.text);
}

/* Rows [first, first + rows) of a [S,H,D] file, as a file of its own. */
static void slice(const char *from, const char *to, int64_t first, int64_t rows) {
  tool_tensor t, part;
  tool_output output = {0};
  tsr_error err;
  int32_t index;
  load(from, "x", &t);
  const int64_t shape[3] = {rows, t.shape[1], t.shape[2]}, row = t.shape[1] * t.shape[2];
  assert_int_equal(tensor_create(&part, TSR_F32, 3, shape, &err), TSR_OK);
  memcpy(part.data, (float *)t.data + first * row, (size_t)(rows * row) * sizeof(float));
  assert_int_equal(output_open(&output, to, &index, &err), TSR_OK);
  assert_int_equal(npy_write(&output, index, &part, &err), TSR_OK);
  assert_int_equal(output_commit(&output, &err), TSR_OK);
  tensor_free(&t);
  tensor_free(&part);
}

/* Attention over two parts of the keys, merged, is attention over all of them. */
static void test_merge(void **state) {
  tool_tensor whole, merged;
  (void)state;
  make_random("q.npy", TSR_F32, 3, 21, 2, 16);
  make_random("k.npy", TSR_F32, 3, 50, 2, 16);
  make_random("v.npy", TSR_F32, 3, 50, 2, 16);
  slice("k.npy", "k1.npy", 0, 13);
  slice("v.npy", "v1.npy", 0, 13);
  slice("k.npy", "k2.npy", 13, 37);
  slice("v.npy", "v2.npy", 13, 37);
  expect_exit(0, "run --q q.npy --k k1.npy --v v1.npy -o a.safetensors");
  expect_exit(0, "run --q q.npy --k k2.npy --v v2.npy -o b.safetensors");
  expect_exit(0, "run --q q.npy --k k.npy --v v.npy --sink 0.5,-1 -o whole.safetensors");
  expect_exit(0, "merge a.safetensors b.safetensors --sink 0.5,-1 --check -o merged.safetensors");
  for (int i = 0; i < 2; i++) {
    load("whole.safetensors", i ? "lse" : "o", &whole);
    load("merged.safetensors", i ? "lse" : "o", &merged);
    assert_int_equal(whole.count, merged.count);
    for (int64_t j = 0; j < whole.count; j++)
      assert_true(fabsf(((float *)whole.data)[j] - ((float *)merged.data)[j]) < 2e-6f);
    tensor_free(&whole);
    tensor_free(&merged);
  }
  tool_result r = expect_code(0, "merge a.safetensors --check --json");
  json_document doc = parse_output(&r);
  assert_int_equal(at_path(&doc, "checks.1.passed")->kind, JSON_TRUE);
  json_free(&doc);
  free_result(&r);
  expect_exit(2, "merge");
  expect_exit(3, "merge a.safetensors absent.safetensors");
  expect_exit(3, "merge a.safetensors q.npy");
  expect_exit(3, "merge a.safetensors b.safetensors --sink 1,2,3");
  expect_exit(3, "merge a.safetensors b.safetensors -o out.txt");
}

typedef struct step {
  const char *names[16];
  tool_tensor tensors[16];
  int64_t count;
} step;

static tool_tensor *add(step *s, const char *name, tsr_dtype dtype, int rank, int64_t n0, int64_t n1, int64_t n2,
                        int64_t n3) {
  const int64_t shape[4] = {n0, n1, n2, n3};
  tsr_error err;
  tool_tensor *t = &s->tensors[s->count];
  s->names[s->count++] = name;
  assert_int_equal(tensor_create(t, dtype, rank, shape, &err), TSR_OK);
  if (dtype == TSR_F32 || dtype == TSR_F16 || dtype == TSR_BF16)
    fill_random(t);
  return t;
}

static void save(step *s, const char *name) {
  tool_tensor *list[16];
  for (int64_t i = 0; i < s->count; i++)
    list[i] = &s->tensors[i];
  make_safetensors(name, s->names, list, s->count, NULL);
  for (int64_t i = 0; i < s->count; i++)
    tensor_free(&s->tensors[i]);
}

static void test_append(void **state) {
  static const int32_t lengths[2] = {3, 0}, table[6] = {4, 1, 5, 0, 2, 3};
  (void)state;
  step plain = {.count = 0};
  add(&plain, "k_new", TSR_F16, 4, 2, 5, 2, 8);
  add(&plain, "v_new", TSR_F16, 4, 2, 5, 2, 6);
  add(&plain, "k_cache", TSR_F16, 4, 2, 12, 2, 8);
  add(&plain, "v_cache", TSR_F16, 4, 2, 12, 2, 6);
  memcpy(add(&plain, "seqlens_k", TSR_I32, 1, 2, 0, 0, 0)->data, lengths, sizeof(lengths));
  save(&plain, "plain.safetensors");
  expect_exit(0, "append plain.safetensors --check -o after.safetensors");
  tool_tensor before, after, added;
  load("plain.safetensors", "k_new", &added);
  load("plain.safetensors", "k_cache", &before);
  load("after.safetensors", "k_cache", &after);
  for (int64_t b = 0; b < 2; b++) {
    for (int64_t r = 0; r < 12; r++) {
      const int64_t t = r - lengths[b];
      const uint16_t *want =
          t >= 0 && t < 5 ? (uint16_t *)added.data + (b * 5 + t) * 16 : (uint16_t *)before.data + (b * 12 + r) * 16;
      assert_memory_equal((uint16_t *)after.data + (b * 12 + r) * 16, want, 32);
    }
  }
  tensor_free(&before);
  tensor_free(&after);
  tensor_free(&added);

  step paged = {.count = 0}; /* packed, paged, rotary, int8 with dynamic scales, q turned too */
  static const int32_t starts[3] = {0, 4, 9};
  add(&paged, "k_new", TSR_BF16, 3, 9, 2, 8, 0);
  add(&paged, "v_new", TSR_BF16, 3, 9, 2, 8, 0);
  add(&paged, "q", TSR_BF16, 3, 9, 4, 8, 0);
  memcpy(add(&paged, "cu_seqlens_new", TSR_I32, 1, 3, 0, 0, 0)->data, starts, sizeof(starts));
  memcpy(add(&paged, "seqlens_k", TSR_I32, 1, 2, 0, 0, 0)->data, lengths, sizeof(lengths));
  memcpy(add(&paged, "block_table", TSR_I32, 2, 2, 3, 0, 0)->data, table, sizeof(table));
  add(&paged, "k_cache", TSR_I8, 4, 6, 4, 2, 8);
  add(&paged, "v_cache", TSR_I8, 4, 6, 4, 2, 8);
  add(&paged, "k_scale", TSR_F32, 4, 6, 4, 2, 1);
  add(&paged, "v_scale", TSR_F32, 4, 6, 4, 2, 2);
  add(&paged, "cos", TSR_F32, 2, 16, 3, 0, 0);
  add(&paged, "sin", TSR_F32, 2, 16, 3, 0, 0);
  save(&paged, "paged.safetensors");
  tool_result r =
      expect_code(0, "append paged.safetensors --rotary-dim 6 --interleaved --check --json -o after.safetensors");
  json_document doc = parse_output(&r);
  assert_int_equal(at_path(&doc, "checks")->count, 5);
  json_free(&doc);
  free_result(&r);

  step nibbles = {.count = 0};
  add(&nibbles, "k_new", TSR_F32, 3, 3, 1, 8, 0);
  add(&nibbles, "v_new", TSR_F32, 3, 3, 1, 8, 0);
  add(&nibbles, "k_cache", TSR_U8, 3, 5, 1, 4, 0);
  add(&nibbles, "v_cache", TSR_U8, 3, 5, 1, 4, 0);
  add(&nibbles, "k_scale", TSR_F32, 3, 5, 1, 1, 0);
  add(&nibbles, "v_scale", TSR_F32, 3, 5, 1, 1, 0);
  save(&nibbles, "nibbles.safetensors");
  expect_exit(0, "append nibbles.safetensors --kv-dtype u4 --check -o after.safetensors");
  load("after.safetensors", "k_cache", &after);
  assert_int_equal(after.dtype, TSR_U8);
  assert_int_equal(after.shape[2], 4);
  tensor_free(&after);

  expect_exit(2, "append");
  expect_exit(3, "append nibbles.safetensors");
  expect_exit(3, "append a.safetensors -o x.safetensors");
  expect_exit(3, "append plain.safetensors --rotary-dim 4");
  expect_exit(3, "append plain.safetensors -o x.npy");
  expect_exit(4, "append plain.safetensors --device null");
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_merge), cmocka_unit_test(test_append)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
