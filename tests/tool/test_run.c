/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera run --check` over every option of the description, and comparisons that must fail. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool_test.h"

/* Runs with --check and asserts that it passed and that the named tensors were compared. */
static void check(const char *options, const char *tensors) {
  tool_result r = expect_code(0, "run %s --check --json --quiet --random-seed %llu", options,
                              (unsigned long long)(test_random() >> 2));
  json_document doc = parse_output(&r);
  const json_value *checks = json_get(doc.root, "checks");
  char found[256] = "";
  assert_non_null(checks);
  for (const json_value *v = checks->first; v; v = v->next) {
    int64_t values;
    assert_int_equal(json_get(v, "passed")->kind, JSON_TRUE);
    assert_true(json_int64(json_get(v, "values"), &values) && values > 0);
    snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s%s", found[0] ? " " : "",
             json_get(v, "tensor")->text);
  }
  if (strcmp(found, tensors) != 0)
    fail_msg("run %s: checked '%s', expected '%s'", options, found, tensors);
  json_free(&doc);
  free_result(&r);
}

static void test_options_without_files(void **state) {
  static const char *const options[] = {"--seqlen 100 --causal --heads 3",
                                        "--seqlen-q 37 --seqlen-k 90 --causal --top-left --heads 2",
                                        "--seqlen-q 90 --seqlen-k 37 --causal --heads 2",
                                        "--seqlen 90 --window 8,3 --sink-tokens 2 --heads 2",
                                        "--seqlen 90 --window 8 --heads 2",
                                        "--seqlen 90 --window -1,4 --heads 2",
                                        "--seqlen 90 --chunk 16 --dtype bf16 --heads 6 --heads-kv 2",
                                        "--seqlen 50 --causal --prefix 10,20 --batch 2 --heads 2",
                                        "--seqlen 50 --softcap 3 --dtype f16 --heads 2",
                                        "--seqlen 64 --alibi-slopes auto --heads 4",
                                        "--seqlen 64 --alibi-slopes 0.5,0.25 --heads 2",
                                        "--seqlen 64 --sink 0.1,-2 --heads 2 --causal",
                                        "--seqlen 64 --dropout 0.3 --seed 7 --offset -9 --heads 2",
                                        "--seqlen 64 --dropout 1 --heads 2",
                                        "--seqlen 64 --dropout 0.5 --rng-state 123456789012345,7 --heads 2",
                                        "--cu-seqlens-q 0,10,40 --cu-seqlens-k 0,30,70 --causal --heads 2",
                                        "--cu-seqlens-q 0,10,10,40 --cu-seqlens-k 0,0,30,70 --heads 2 --layout bhsd",
                                        "--seqlen 64 --batch 3 --seqlens-k 3,0,64 --seqlens-q 60,2,1 --heads 2",
                                        "--seqlen 64 --kv-dtype i8 --dtype bf16 --heads 2",
                                        "--seqlen 64 --kv-dtype u4 --dtype f32 --heads 2",
                                        "--seqlen 64 --kv-dtype f8e4m3 --dtype f16 --heads 2",
                                        "--seqlen 64 --kv-dtype i8 --k-scale 0.02 --v-scale 0.01 --k-zero 3 --heads 2",
                                        "--seqlen 64 --dtype f8e4m3 --heads 2 --q-descale 0.5",
                                        "--seqlen 64 --dtype f8e5m2 --out-dtype bf16 --heads 2",
                                        "--seqlen 64 --dtype bf16 --out-dtype f32 --heads 2",
                                        "--seqlen 64 --head-dim 96 --head-dim-v 64 --v-in-k --heads 4",
                                        "--seqlen 40 --head-dim 72 --head-dim-v 40 --heads 2",
                                        ("--seqlen 64 --score-expr 'score + slope * (j - i)' --scalar slope=0.1 "
                                         "--mask-expr 'j <= i + reach' --scalar reach=3 --heads 2"),
                                        "--seqlen 64 --score-expr 'score + aux0[h, j]' --aux 'aux.npy' --heads 2",
                                        "--seqlen-q 1 --seqlen-k 700 --heads 8 --heads-kv 1 --splits 3",
                                        "--seqlen 80 --deterministic --threads 1 --heads 2",
                                        "--seqlen 80 --fast --heads 2",
                                        "--seqlen 30 --batch-invariant --layout bhsd --heads 2",
                                        "--seqlen 100 --scale 0.3 --heads 2",
                                        "--seqlen 100 --isa x86-64 --heads 2 --causal --device cpu:0",
                                        "--seqlen 16 --heads 71 --heads-kv 1"};
  (void)state;
  make_random("aux.npy", TSR_F32, 2, 2, 64);
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
    check(options[i], "o lse");
}

static void test_backward(void **state) {
  (void)state;
  check("--seqlen 64 --backward --causal --heads 4 --heads-kv 2", "dq dk dv");
  check("--seqlen 64 --backward --sink 0.5,1 --heads 2 --dtype bf16", "dq dk dv dsink");
  check("--seqlen 50 --backward --dropout 0.25 --seed 3 --softcap 4 --heads 2", "dq dk dv");
  check("--cu-seqlens-q 0,10,40 --cu-seqlens-k 0,30,70 --causal --backward --heads 2 --grad-dtype f32 --dtype f16",
        "dq dk dv");
  make_random("bias.npy", TSR_F32, 3, 2, 33, 44);
  check("--seqlen-q 33 --seqlen-k 44 --backward --bias bias.npy --heads 2 --window 9,9", "dq dk dv dbias");
  make_random("dlse.npy", TSR_F32, 3, 1, 2, 33);
  check("--seqlen 33 --backward --dlse dlse.npy --heads 2", "dq dk dv");
}

static void test_optional_outputs(void **state) {
  (void)state;
  check("--seqlen 64 --dropout 0.3 --heads 2 --save-dropout-mask kept.npy --save-max-s max.npy",
        "o lse max_s dropout_mask");
  assert_true(file_exists("kept.npy") && file_exists("max.npy"));
  tool_result r = expect_code(0, "run --seqlen 300 --rows 10 --check --json --heads 2 --causal");
  json_document doc = parse_output(&r);
  int64_t rows, values;
  assert_true(json_int64(at_path(&doc, "checked_rows"), &rows) && rows == 10);
  assert_true(json_int64(at_path(&doc, "checks.0.values"), &values) && values == 10 * 2 * 64);
  json_free(&doc);
  free_result(&r);
}

static void test_mask_files(void **state) {
  int64_t bits[4 * 40 * 5], flash[40 * 2], ids[40], blocks[7] = {0, 1, 3, 4, 6, 8, 9};
  const int64_t columns[9] = {0, 0, 2, 1, 0, 3, 2, 4, 4};
  (void)state;
  for (int i = 0; i < 4 * 40 * 5; i++)
    bits[i] = (int64_t)(test_random() & 255);
  make_integers("bits.npy", TSR_U8, bits, 4, 1, 4, 40, 5);
  check("--seqlen 40 --heads 4 --mask bits.npy --mask-bits", "o lse");
  for (int i = 0; i < 4 * 40 * 5; i++)
    bits[i] &= 1;
  make_integers("mask.npy", TSR_U8, bits, 2, 20, 40);
  check("--seqlen-q 20 --seqlen-k 40 --heads 2 --mask mask.npy --causal", "o lse");
  for (int j = 0; j < 40; j++) {
    flash[2 * j] = (int64_t)(test_random() % 40);
    flash[2 * j + 1] = flash[2 * j] + (int64_t)(test_random() % 20);
    ids[j] = j / 11;
  }
  make_integers("flash.npy", TSR_I32, flash, 4, 1, 1, 40, 2);
  check("--seqlen 40 --heads 2 --flashmask flash.npy --causal", "o lse");
  make_integers("ids.npy", TSR_I64, ids, 1, 40); /* NumPy's own integers are narrowed */
  check("--seqlen 40 --heads 2 --segments-q ids.npy --segments-k ids.npy", "o lse");
  make_integers("indptr.npy", TSR_I32, blocks, 1, 7);
  make_integers("columns.npy", TSR_I32, columns, 1, 9);
  check("--seqlen 40 --heads 2 --block-indptr indptr.npy --block-indices columns.npy --block 7,8", "o lse");
  make_random("bias16.npy", TSR_F16, 4, 1, 1, 40, 40);
  check("--seqlen 40 --heads 2 --dtype f16 --bias bias16.npy", "o lse");
}

static void test_paged_files(void **state) {
  const int64_t table[6] = {4, 0, 3, 1, 2, 5}, indptr[3] = {0, 2, 5}, indices[5] = {3, 1, 0, 5, 2};
  (void)state;
  make_random("pk.npy", TSR_F32, 4, 6, 16, 2, 32);
  make_random("pv.npy", TSR_F32, 4, 6, 16, 2, 24);
  make_random("pq.npy", TSR_F32, 4, 2, 5, 4, 32);
  make_integers("table.npy", TSR_I32, table, 2, 2, 3);
  check("--q pq.npy --k pk.npy --v pv.npy --block-table table.npy --seqlens-k 17,40 --causal", "o lse");
  make_integers("pages.npy", TSR_I32, indices, 1, 5);
  make_integers("starts.npy", TSR_I32, indptr, 1, 3);
  check("--q pq.npy --k pk.npy --v pv.npy --kv-indptr starts.npy --kv-indices pages.npy --last-page-len 4,16", "o lse");
}

/* ---- Comparisons that must fail -------------------------------------------------------------- */

static void make_inputs(void) {
  make_random("q.npy", TSR_F32, 4, 1, 40, 2, 32);
  make_random("k.npy", TSR_F32, 4, 1, 50, 2, 32);
  make_random("v.npy", TSR_F32, 4, 1, 50, 2, 32);
}
#define FILES "--q q.npy --k k.npy --v v.npy --causal"

static void test_one_wrong_value_in_o(void **state) {
  (void)state;
  make_inputs();
  expect_exit(0, "run " FILES " --check -o o.npy");
  expect_exit(0, "run " FILES " --check --given o.npy");
  expect_exit(0, "run " FILES " --expect o.npy");
  for (int i = 0; i < 4; i++) {
    const int64_t element = (int64_t)(test_random() % (40 * 2 * 32));
    const double delta = i % 2 ? 1e-3 : -2e-4;
    corrupt_npy("o.npy", element, delta);
    tool_result r = expect_code(1, "run " FILES " --check --given o.npy --json");
    json_document doc = parse_output(&r);
    int64_t head, code;
    assert_int_equal(at_path(&doc, "checks.0.passed")->kind, JSON_FALSE);
    assert_true(json_int64(at_path(&doc, "checks.0.worst_head"), &head) && head == element / 32 % 2);
    assert_true(json_int64(at_path(&doc, "exit_code"), &code) && code == 1);
    json_free(&doc);
    free_result(&r);
    expect_exit(1, "run " FILES " --expect o.npy");
    expect_exit(0, "run " FILES " --expect o.npy --tolerance 2e-3");
    corrupt_npy("o.npy", element, -delta);
  }
  expect_exit(0, "run " FILES " --check --given o.npy");
}

/* NaN in an output is a wrong value, though every comparison with it is false. */
static void test_not_a_number(void **state) {
  (void)state;
  make_inputs();
  expect_exit(0, "run " FILES " -o o.npy");
  corrupt_npy("o.npy", 77, 0.0 / 0.0);
  expect_exit(1, "run " FILES " --check --given o.npy");
  expect_exit(1, "run " FILES " --expect o.npy");
}

static void corrupt_tensor(const char *file, const char *name, int64_t element, double delta) {
  const char *const all[] = {"o", "lse", "dq", "dk", "dv"};
  const char *names[5];
  tool_tensor tensors[5], *list[5];
  tsr_error err;
  int64_t count = 0;
  for (int i = 0; i < 5; i++) {
    if (tensor_load(file, all[i], TSR_DTYPE_NONE, &tensors[count], &err) != TSR_OK)
      continue;
    if (strcmp(all[i], name) == 0)
      tsr_encode(tensors[count].dtype, tensors[count].data, element,
                 tsr_decode(tensors[count].dtype, tensors[count].data, element) + delta);
    names[count] = all[i];
    list[count] = &tensors[count];
    count++;
  }
  make_safetensors("bad.safetensors", names, list, count, NULL);
  for (int64_t i = 0; i < count; i++)
    tensor_free(&tensors[i]);
}

static void test_one_wrong_value_elsewhere(void **state) {
  static const char *const gradients[] = {"dq", "dk", "dv"};
  (void)state;
  make_inputs();
  make_random("do.npy", TSR_F32, 4, 1, 40, 2, 32);
  expect_exit(0, "run " FILES " -o good.safetensors");
  corrupt_tensor("good.safetensors", "lse", 13, 1e-4);
  expect_exit(1, "run " FILES " --check --given bad.safetensors");
  corrupt_tensor("good.safetensors", "none", 0, 0);
  expect_exit(0, "run " FILES " --check --given bad.safetensors");
  expect_exit(0, "run " FILES " --dout do.npy --backward -o grads.safetensors --check");
  expect_exit(0, "run " FILES " --dout do.npy --backward --given grads.safetensors --check");
  for (int i = 0; i < 3; i++) {
    corrupt_tensor("grads.safetensors", gradients[i], 5, 2e-3);
    tool_result r = expect_code(1, "run " FILES " --dout do.npy --backward --given bad.safetensors --check --json");
    json_document doc = parse_output(&r);
    char path[32];
    for (int j = 0; j < 3; j++) {
      snprintf(path, sizeof(path), "checks.%d.passed", j);
      assert_int_equal(at_path(&doc, path)->kind, i == j ? JSON_FALSE : JSON_TRUE);
    }
    json_free(&doc);
    free_result(&r);
  }
}

/* A failed check saves nothing. */
static void test_nothing_saved_when_wrong(void **state) {
  (void)state;
  make_inputs();
  make_random("other.npy", TSR_F32, 4, 1, 40, 2, 32);
  expect_exit(1, "run " FILES " --expect other.npy -o unwanted.npy --save-lse unwanted2.npy");
  assert_false(file_exists("unwanted.npy") || file_exists("unwanted2.npy"));
}

/* The recordings of real models, against their own output and the oracle. */
static void test_recordings(void **state) {
  static const char *const names[] = {"minilm_layer02", "smollm2_layer02", "smollm2_layer18"};
  (void)state;
  for (int i = 0; i < 3; i++)
    expect_exit(
        0, "run " TSR_TEST_DATA "/%s.safetensors --use-metadata --check --expect self --out-dtype f32 --tolerance 2e-5",
        names[i]);
  expect_exit(0, "run --q " TSR_TEST_DATA "/minilm_layer02_npy/q.npy --k " TSR_TEST_DATA
                 "/minilm_layer02_npy/k.npy --v " TSR_TEST_DATA "/minilm_layer02_npy/v.npy --expect " TSR_TEST_DATA
                 "/minilm_layer02_npy/o.npy --out-dtype f32 --tolerance 2e-5");
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_options_without_files),
                                     cmocka_unit_test(test_backward),
                                     cmocka_unit_test(test_optional_outputs),
                                     cmocka_unit_test(test_mask_files),
                                     cmocka_unit_test(test_paged_files),
                                     cmocka_unit_test(test_one_wrong_value_in_o),
                                     cmocka_unit_test(test_not_a_number),
                                     cmocka_unit_test(test_one_wrong_value_elsewhere),
                                     cmocka_unit_test(test_nothing_saved_when_wrong),
                                     cmocka_unit_test(test_recordings)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
