/* SPDX-License-Identifier: Apache-2.0 */
/* Every subcommand: help, exit codes, JSON, and what it says about known problems. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tool_test.h"

static int64_t int_at(const json_document *doc, const char *path) {
  int64_t value;
  if (!json_int64(at_path(doc, path), &value))
    fail_msg("%s is no integer", path);
  return value;
}

static double double_at(const json_document *doc, const char *path) {
  double value;
  if (!json_double(at_path(doc, path), &value))
    fail_msg("%s is no number", path);
  return value;
}

/* ---- Help and usage -------------------------------------------------------------------------- */

static void test_help(void **state) {
  static const char *const commands[] = {"demo", "run", "explain", "mask", "check", "bench", "append", "merge", "info"};
  (void)state;
  tool_result r = expect_code(0, "--help");
  for (int i = 0; i < 9; i++) {
    assert_non_null(strstr(r.out, commands[i]));
    tool_result one = expect_code(0, "%s --help", commands[i]);
    assert_non_null(strstr(one.out, "Usage: tessera "));
    assert_non_null(strstr(one.out, "Examples:\n  tessera "));
    assert_non_null(strstr(one.out, "--json"));
    assert_string_equal(one.err, "");
    free_result(&one);
  }
  assert_non_null(strstr(r.out, "Exit codes"));
  free_result(&r);
  expect_exit(0, "run -h");
  r = expect_code(0, "--version");
  assert_non_null(strstr(r.out, tsr_version()));
  free_result(&r);
}

static void test_usage(void **state) {
  static const char *const wrong[] = {"",
                                      "nonsense",
                                      "run --nonsense",
                                      "run --batch",
                                      "run --batch x",
                                      "run --batch 0",
                                      "run --dropout much",
                                      "run --json=yes",
                                      "run surplus",
                                      "explain surplus",
                                      "info surplus",
                                      "bench surplus",
                                      "check surplus",
                                      "demo surplus",
                                      "mask 'j<i' 'i<j'",
                                      "mask 'j<i' --mask-expr 'j<i'",
                                      "run --layout hbsd",
                                      "run --color sometimes",
                                      "bench --vs nothing",
                                      "bench --masks none",
                                      "run --given o.npy",
                                      "run --seqlen 64 --rows 3",
                                      "run --seqlen 64 --rows 3 --check --backward",
                                      "run --threads 0",
                                      "run --splits 257",
                                      "run --s 3"};
  (void)state;
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
    tool_result r = expect_code(2, "%s", wrong[i]);
    assert_true(i == 0 || (r.err[0] != '\0' && r.out[0] == '\0'));
    free_result(&r);
  }
}

static void test_exit_codes(void **state) {
  (void)state;
  expect_exit(4, "run --head-dim 577 --seqlen 8");
  expect_exit(4, "explain --head-dim 577 --seqlen 8");
  expect_exit(6, "run --device warp --seqlen 8"); /* no such back end */
  expect_exit(4, "run --device null --seqlen 8 -o o.npy");
  expect_exit(4, "run --isa nonsense --seqlen 8");
  expect_exit(4, "run --kv-dtype i8 --backward --seqlen 8");
  expect_exit(4, "bench --device null");
  expect_exit(4, "bench --vs standard --softcap 3 --seqlen 64");
  expect_exit(3, "run --device nonsense: --seqlen 8");
  expect_exit(3, "run --variant nonsense --seqlen 8");
  expect_exit(3, "mask 'j <= ' --seqlen 64 -o bad.svg");
  expect_exit(3, "mask 'j <= i' --seqlen 64 --head 5");
  expect_exit(3, "demo --data absent");
  expect_exit(3, "bench --seqlen 64,x");
  expect_exit(3, "bench --seqlen-q 64");
  expect_exit(5, "mask 'j <= i' --seqlen 64 -o absent/mask.svg");
  assert_false(file_exists("bad.svg") || file_exists("o.npy"));
}

/* With --json a failure is a document too. */
static void test_errors_as_json(void **state) {
  (void)state;
  tool_result r = expect_code(4, "run --head-dim 577 --seqlen 8 --json");
  json_document doc = parse_output(&r);
  assert_string_equal(at_path(&doc, "command")->text, "run");
  assert_string_equal(at_path(&doc, "error.status")->text, "unsupported");
  assert_string_equal(at_path(&doc, "error.field")->text, "q.shape[3]");
  assert_int_equal(int_at(&doc, "exit_code"), 4);
  json_free(&doc);
  free_result(&r);
}

/* ---- info ------------------------------------------------------------------------------------ */

static void test_info(void **state) {
  (void)state;
  tool_result r = expect_code(0, "info --json");
  json_document doc = parse_output(&r);
  assert_string_equal(at_path(&doc, "machine.tessera")->text, tsr_version());
  assert_string_equal(at_path(&doc, "backends.0.name")->text, "cpu");
  assert_int_equal(at_path(&doc, "backends.0.usable")->kind, JSON_TRUE);
  assert_true(at_path(&doc, "backends.0.devices.0.variants.forward")->count >= 1);
  assert_true(at_path(&doc, "backends.0.devices.0.variants.backward")->count >= 1);
  assert_int_equal(int_at(&doc, "limits.max_head_dim"), TSR_MAX_HEAD_DIM);
  json_free(&doc);
  free_result(&r);
  r = expect_code(0, "info --support");
  assert_non_null(strstr(r.out, "| feature | cpu forward |"));
  tool_result as_json = expect_code(0, "info --support --json");
  doc = parse_output(&as_json);
  assert_string_equal(at_path(&doc, "support")->text, r.out);
  json_free(&doc);
  free_result(&as_json);
  free_result(&r);
}

/* ---- check ----------------------------------------------------------------------------------- */

/* One case of the suite on every device; the suite itself is tested elsewhere. */
static void test_check(void **state) {
  (void)state;
  tool_result r = expect_code(0, "check --case 'causal f32' --suite-seed 7 --json --report c.json");
  json_document doc = parse_output(&r);
  assert_int_equal(int_at(&doc, "seed"), 7);
  assert_int_equal(int_at(&doc, "failed"), 0);
  assert_true(int_at(&doc, "passed") >= 1);
  assert_true(at_path(&doc, "devices")->count >= 2);
  char *saved = read_file("c.json", NULL);
  assert_string_equal(saved, r.out);
  free(saved);
  json_free(&doc);
  free_result(&r);
  r = expect_code(0, "check --case 'causal f32' --device cpu");
  assert_non_null(strstr(r.out, "cpu:0"));
  free_result(&r);
  expect_exit(3, "check --case 'causal nonsense'");
  expect_exit(1, "check --case 'causal f32' --variant nonsense"); /* nothing ran, so nothing passed */
  expect_exit(2, "check --case 'causal f32' --part 3/3");
  expect_exit(0, "check --case 'causal f32' --part 0/3 --copies");
  expect_exit(1, "check --case 'causal f32' --part 1/3"); /* another part's */
  expect_exit(3, "check --filter zzzz --seconds 0.1");    /* of the whole suite, support table included */
  r = expect_code(0, "check --filter 'support f32' --device cpu --json");
  doc = parse_output(&r);
  assert_int_equal(int_at(&doc, "cases"), 2); /* forward, backward */
  json_free(&doc);
  free_result(&r);
}

/* Ctrl-C ends the suite with a report of what ran. */
static void test_interrupted_check(void **state) {
  (void)state;
  const pid_t child = fork();
  if (child == 0) {
    execl(TOOL_COMMAND, TOOL_COMMAND, "check", "--quiet", "--report", "stopped.json", (char *)NULL);
    _exit(127);
  }
  assert_true(child > 0);
  int status = 0;
  for (int sent = 0; waitpid(child, &status, WNOHANG) == 0; sent += 1) {
    const struct timespec pause = {0, 20000000};
    nanosleep(&pause, NULL);
    if (sent == 40) /* the first runs are done, and most are not */
      kill(child, SIGINT);
  }
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 130);
  tool_result r = {0, read_file("stopped.json", NULL), NULL};
  json_document doc = parse_output(&r);
  assert_int_equal(int_at(&doc, "failed"), 0);
  assert_true(int_at(&doc, "skipped") > 0);
  assert_true(int_at(&doc, "runs") == int_at(&doc, "passed"));
  json_free(&doc);
  free_result(&r);
}

/* ---- explain --------------------------------------------------------------------------------- */

static void test_explain(void **state) {
  (void)state;
  tool_result r = expect_code(0, "explain --seqlen 4096 --heads 4 --head-dim 128 --json");
  json_document full = parse_output(&r);
  free_result(&r);
  r = expect_code(0, "explain --seqlen 4096 --heads 4 --head-dim 128 --causal --json");
  json_document causal = parse_output(&r);
  free_result(&r);
  assert_true(double_at(&full, "plan.flops") == 4.0 * 4096 * 4096 * 128 * 4);
  assert_true(double_at(&full, "plan.bytes_minimum") == 4.0 * 4 * 4096 * 128 * 4 + 4.0 * 4 * 4096);
  assert_int_equal(int_at(&full, "plan.tiles_visited"), int_at(&full, "plan.tiles_total"));
  const double share = (double)int_at(&causal, "plan.tiles_visited") / (double)int_at(&causal, "plan.tiles_total");
  assert_true(share > 0.5 && share < 0.55);
  assert_true(double_at(&causal, "plan.bytes_read") < double_at(&full, "plan.bytes_read"));
  assert_string_equal(at_path(&full, "plan.launches.0")->text, "forward");
  assert_int_equal(at_path(&full, "variants.0.chosen")->kind, JSON_TRUE);
  json_free(&full);
  json_free(&causal);
  /* a size that no memory holds is only described */
  expect_exit(0, "explain --seqlen 16777216 --heads 64 --head-dim 128 --causal");
  expect_exit(0, "explain --seqlen 512 --backward");
  expect_exit(0, "explain --device null --seqlen 512");
  r = expect_code(4, "explain --seqlen 64 --kv-dtype i8 --backward --json");
  free_result(&r);
}

/* ---- mask ------------------------------------------------------------------------------------ */

static void test_mask(void **state) {
  (void)state;
  tool_result r = expect_code(0, "mask 'j <= i && i - j < 100' --seqlen 700 -o m.svg --json");
  json_document doc = parse_output(&r);
  const int64_t rows = int_at(&doc, "tile_rows"), cols = int_at(&doc, "tile_cols");
  const int64_t tile_q = int_at(&doc, "tile_q"), tile_k = int_at(&doc, "tile_k");
  int64_t full = 0, partial = 0, skipped = 0, visible = 0;
  for (int64_t tr = 0; tr < rows; tr++) {
    for (int64_t tc = 0; tc < cols; tc++) {
      int64_t pairs = 0, allowed = 0;
      for (int64_t i = tr * tile_q; i < (tr + 1) * tile_q && i < 700; i++)
        for (int64_t j = tc * tile_k; j < (tc + 1) * tile_k && j < 700; j++, pairs++)
          allowed += j <= i && i - j < 100;
      full += allowed == pairs;
      skipped += allowed == 0;
      partial += allowed > 0 && allowed < pairs;
      visible += allowed;
    }
  }
  /* a class may be cautious (partial where skipped or full would do), never bold */
  assert_true(int_at(&doc, "tiles_full") <= full && int_at(&doc, "tiles_skipped") <= skipped);
  assert_true(int_at(&doc, "tiles_partial") >= partial);
  assert_int_equal(int_at(&doc, "tiles_full") + int_at(&doc, "tiles_partial") + int_at(&doc, "tiles_skipped"),
                   rows * cols);
  assert_true(int_at(&doc, "tiles_skipped") * 10 > skipped * 9);
  assert_true(double_at(&doc, "pairs_visible") == (double)visible);
  assert_int_equal(at_path(&doc, "pairs_exact")->kind, JSON_TRUE);
  json_free(&doc);
  free_result(&r);
  char *svg = read_file("m.svg", NULL);
  assert_int_equal(strncmp(svg, "<svg ", 5), 0);
  assert_non_null(strstr(svg, "</svg>"));
  assert_non_null(strstr(svg, "j &lt;= i &amp;&amp; i - j &lt; 100"));
  free(svg);
  r = expect_code(0, "mask --causal --seqlen 300");
  assert_non_null(strstr(r.out, "45,150 of 90,000 visible"));
  free_result(&r);
}

static double visible_pairs(const char *options) {
  tool_result r = expect_code(0, "mask %s --json", options);
  json_document doc = parse_output(&r);
  const double visible = double_at(&doc, "pairs_visible");
  json_free(&doc);
  free_result(&r);
  return visible;
}

/* Counts that can be written down. */
static void test_mask_counts(void **state) {
  const int64_t table[2] = {1, 0};
  (void)state;
  assert_true(visible_pairs("--seqlen-q 10 --seqlen-k 30") == 300);
  assert_true(visible_pairs("--seqlen-q 10 --seqlen-k 30 --causal") == 10 * 20 + 55);
  assert_true(visible_pairs("--seqlen-q 10 --seqlen-k 30 --causal --top-left") == 55);
  assert_true(visible_pairs("--seqlen 64 --chunk 16") == 4 * 256);
  assert_true(visible_pairs("--seqlen 64 --window 0,0 --sink-tokens 1") == 64 + 63);
  assert_true(visible_pairs("--cu-seqlens-q 0,10,30 --cu-seqlens-k 0,40,45 --sequence 1") == 20 * 5);
  assert_true(visible_pairs("--batch 2 --seqlen 50 --seqlens-k 7,9 --sequence 1") == 50 * 9);
  make_integers("t.npy", TSR_I32, table, 2, 1, 2);
  make_random("pq.npy", TSR_F32, 4, 1, 20, 2, 16);
  make_random("pk.npy", TSR_F32, 4, 2, 16, 2, 16);
  assert_true(visible_pairs("--q pq.npy --k pk.npy --v pk.npy --block-table t.npy --seqlens-k 25 --causal") ==
              20 * 5 + 210);
  assert_true(visible_pairs("--q pq.npy --k pk.npy --v pk.npy --kv-indptr 0,2 --kv-indices 1,0 --last-page-len 9 "
                            "--causal") == 20 * 5 + 210);
  make_random("pq2.npy", TSR_F32, 4, 2, 20, 2, 16);
  assert_true(visible_pairs("--q pq2.npy --k pk.npy --v pk.npy --kv-indptr 0,1,2 --kv-indices 1,0 --last-page-len 9,3 "
                            "--sequence 1") == 20 * 3);
}

/* ---- bench and demo -------------------------------------------------------------------------- */

static void test_bench(void **state) {
  (void)state;
  tool_result r = expect_code(0, "bench --seqlen 64,128 --head-dim 32 --heads 2 --dtype f32,bf16 --repeats 2 "
                                 "--min-time 0 --json -o b.json --svg b.svg");
  json_document doc = parse_output(&r);
  assert_int_equal(at_path(&doc, "results")->count, 8);
  assert_true(double_at(&doc, "results.0.time.median_seconds") > 0);
  assert_true(double_at(&doc, "results.0.flops") == 4.0 * 64 * 64 * 32 * 2);
  size_t size;
  char *saved = read_file("b.json", &size);
  assert_string_equal(saved, r.out);
  free(saved);
  json_free(&doc);
  free_result(&r);
  saved = read_file("b.svg", NULL);
  assert_non_null(strstr(saved, "</svg>"));
  free(saved);
  r = expect_code(
      0, "bench --vs standard --seqlen 100,256 --head-dim 40 --heads 4 --heads-kv 2 --repeats 2 --min-time 0 --json");
  doc = parse_output(&r);
  for (int i = 0; i < 4; i++) {
    char path[64];
    snprintf(path, sizeof(path), "results.%d.standard.max_difference", i);
    assert_true(double_at(&doc, path) < 1e-5);
    snprintf(path, sizeof(path), "results.%d.standard.scratch_bytes", i);
    const double seqlen = i % 2 ? 256 : 100;
    assert_true(double_at(&doc, path) >= 4 * seqlen * seqlen * 4);
  }
  json_free(&doc);
  free_result(&r);
}

static void test_demo(void **state) {
  (void)state;
  tool_result r = expect_code(0, "demo --long-seqlen 2048 --json --data " TSR_TEST_DATA " --svg demo.svg");
  json_document doc = parse_output(&r);
  assert_int_equal(at_path(&doc, "passed")->kind, JSON_TRUE);
  assert_int_equal(at_path(&doc, "words")->count, 3);
  assert_true(double_at(&doc, "words.0.checks.2.max_error") < 2e-5);
  /* what capture.py --show finds in float64 */
  assert_string_equal(at_path(&doc, "words.0.words.0.looks_at.0.word")->text, " river");
  assert_string_equal(at_path(&doc, "words.2.words.1.looks_at.0.word")->text, " mouth");
  assert_int_equal(int_at(&doc, "long.seqlen"), 2048);
  assert_true(double_at(&doc, "long.visible_pairs") == 2048.0 * 2049 / 2);
  assert_true(at_path(&doc, "devices")->count >= 2);
  assert_int_equal(at_path(&doc, "bench")->count, 4);
  assert_true(file_exists("demo.svg"));
  json_free(&doc);
  free_result(&r);
}

/* Nothing that goes to a file has escape sequences, unless they were asked for. */
static void test_color(void **state) {
  (void)state;
  tool_result r = expect_code(0, "mask --causal --seqlen 200");
  assert_null(strchr(r.out, '\x1b'));
  assert_null(strchr(r.err, '\x1b'));
  free_result(&r);
  r = expect_code(0, "mask --causal --seqlen 200 --color always");
  assert_non_null(strchr(r.out, '\x1b'));
  free_result(&r);
  r = expect_code(0, "mask --causal --seqlen 200 --color always --json");
  assert_null(strchr(r.out, '\x1b'));
  free_result(&r);
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_help),
                                     cmocka_unit_test(test_usage),
                                     cmocka_unit_test(test_exit_codes),
                                     cmocka_unit_test(test_errors_as_json),
                                     cmocka_unit_test(test_info),
                                     cmocka_unit_test(test_check),
                                     cmocka_unit_test(test_interrupted_check),
                                     cmocka_unit_test(test_explain),
                                     cmocka_unit_test(test_mask),
                                     cmocka_unit_test(test_mask_counts),
                                     cmocka_unit_test(test_bench),
                                     cmocka_unit_test(test_demo),
                                     cmocka_unit_test(test_color)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
