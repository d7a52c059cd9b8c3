/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions as trees, on chosen texts: canonical text, keys, sharing, derivative, tile classes, memory. */
#include "tests/unit/expr_fixture.h"

#include <math.h>
#include <stdlib.h>

/* ---- Trees --------------------------------------------------------------------------------------- */

static char *printed(const tsr_expr *expr) {
  char *text;
  assert_int_equal(tsr__expr_print(NULL, expr, &text, NULL), TSR_OK);
  return text;
}

static const struct {
  const char *text, *canonical;
} canonical[] = {
    {"score", "score"},
    {"((i))", "float(i)"},
    {"i+j*2", "float(i + j * 2)"},
    {"(i+j)*2-(3-4)", "float((i + j) * 2 - (3 - 4))"},
    {"score*2+i", "score * 2.0 + float(i)"},
    {"-2-(-(-3))", "float(-2 - 3)"},
    {"-(2*i)", "float(-(2 * i))"},
    {"-score*-0.5", "-score * -0.5"},
    {"i?j:score", "i ? float(j) : score"},
    {"(i?1:2)?3.:(h?4:5)", "(i ? 1 : 2) ? 3.0 : float(h ? 4 : 5)"},
    {"(i<j)==(h<1)&&(i||j)", "float((i < j) == (h < 1) && (i || j))"},
    {"i&&(j&&h)", "float(i && (j && h))"},
    {"!(i<j)*!h", "float(!(i < j) * !h)"},
    {"1e10+1e-7+0.001+123456789.0", "1e10 + 1e-7 + 0.001 + 123456790.0"},
    {"1.5e9+.00001+1e-6+12345.75", "1.5e9 + 0.00001 + 1e-6 + 12345.75"},
    {"inf*-inf", "inf * -inf"},
    {"aux1[b,j-i]+keep*min(i,1.5)", "float(aux1[b, j - i]) + keep * min(float(i), 1.5)"},
    {"int(floor(abs(pow(score,2))))", "float(int(floor(abs(pow(score, 2.0)))))"},
    {"float(score)+int(2)", "score + 2.0"},
};

static void test_canonical_text(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof(canonical) / sizeof(canonical[0]); ++k) {
    tsr_expr *expr = parsed(canonical[k].text, TSR_EXPR_KIND_SCORE);
    char *text = printed(expr);
    assert_string_equal(text, canonical[k].canonical);
    tsr_expr *again = parsed(text, TSR_EXPR_KIND_SCORE);
    assert_true(tsr__expr_equal(expr, again));
    assert_int_equal(tsr__expr_hash(expr), tsr__expr_hash(again));
    tsr__alloc_free(NULL, text);
    tsr__expr_destroy(NULL, again);
    tsr__expr_destroy(NULL, expr);
  }
}

static void test_keys_differ(void **state) {
  static const char *const texts[] = {"i",    "j",    "i + 1", "1 + i",     "i - 1",     "i + 2",   "i + 1.0",
                                      "keep", "_w2",  "-i",    "!i",        "aux0[i]",   "aux0[j]", "aux1[i, j]",
                                      "0.0",  "-0.0", "0",     "i ? j : h", "i ? h : j", "i < j",   "i <= j"};
  const size_t n = sizeof(texts) / sizeof(texts[0]);
  (void)state;
  for (size_t x = 0; x < n; ++x) {
    for (size_t y = 0; y < n; ++y) {
      tsr_expr *a = parsed(texts[x], TSR_EXPR_KIND_MASK), *b = parsed(texts[y], TSR_EXPR_KIND_MASK);
      assert_int_equal(tsr__expr_equal(a, b), x == y);
      assert_int_equal(tsr__expr_hash(a) == tsr__expr_hash(b), x == y);
      tsr__expr_destroy(NULL, a);
      tsr__expr_destroy(NULL, b);
    }
  }
  tsr_expr *mask = parsed("0.5 * i", TSR_EXPR_KIND_MASK), *score = parsed("0.5 * i", TSR_EXPR_KIND_SCORE);
  assert_false(tsr__expr_equal(mask, score));
  tsr__expr_destroy(NULL, mask);
  tsr__expr_destroy(NULL, score);
}

static void test_sharing(void **state) {
  char text[4096] = "0.0", part[64];
  float want = 0;
  (void)state;
  tsr_expr *expr = parsed("tanh(score * i) + tanh(score * i)", TSR_EXPR_KIND_SCORE);
  assert_int_equal(expr->n_nodes, 6); /* score, i, float, *, tanh, + */
  assert_int_equal(expr->uses_score, 1);
  assert_int_equal(expr->vars_used, 1u << TSR_EXPR_VAR_I);
  tsr__expr_destroy(NULL, expr);

  /* 40 values used again after the last was made: more than there are slots, so they are made again. */
  for (int k = 1; k <= 40; ++k) {
    snprintf(part, sizeof(part), "+sin(score*%d)", k);
    strcat(text, part);
    want += sinf(0.25f * (float)k);
  }
  for (int k = 1; k <= 40; ++k) {
    snprintf(part, sizeof(part), "+exp(sin(score*%d))", k);
    strcat(text, part);
    want += expf(sinf(0.25f * (float)k));
  }
  expr = parsed(text, TSR_EXPR_KIND_SCORE);
  assert_true(expr->n_slots <= TSR_EXPR_MAX_SLOTS);
  assert_int_equal(expr->n_nodes, 1 + 40 * 4 + 40 + 40 * 5 + 40 - 0);
  tsr__expr_destroy(NULL, expr);
  assert_float_equal(value_at(text, 0.25f), want, 0);
}

/* ---- Derivative ---------------------------------------------------------------------------------- */

static const struct {
  const char *text, *derivative;
} derivatives[] = {
    {"1.5", "0.0"},
    {"score", "1.0"},
    {"-score", "-1.0"},
    {"score + i", "1.0"},
    {"keep - score", "-1.0"},
    {"score * keep", "keep"},
    {"score * score", "score + score"},
    {"score / keep", "1.0 / keep"},
    {"keep / score", "-(keep / score) / score"},
    {"30 * tanh(score / 30)", "30.0 * ((1.0 - tanh(score / 30.0) * tanh(score / 30.0)) * (1.0 / 30.0))"},
    {"j <= i ? score : -inf", "j <= i ? 1.0 : 0.0"},
    {"score < 0 ? 0.1 * score : score", "score < 0.0 ? 0.1 : 1.0"},
    {"score > 3", "0.0"},
    {"int(score) + floor(score) + aux0[int(score)]", "0.0"},
    {"exp(score)", "exp(score)"},
    {"exp2(score)", "exp2(score) * 0.6931472"},
    {"log(score)", "1.0 / score"},
    {"log2(score)", "1.442695 / score"},
    {"sqrt(score)", "0.5 / sqrt(score)"},
    {"sin(score) + cos(score)", "cos(score) + -sin(score)"},
    {"abs(score)", "float((score > 0.0) - (score < 0.0))"},
    {"min(score, 1)", "1.0 < score ? 0.0 : 1.0"},
    {"max(keep, score)", "score > keep ? 1.0 : 0.0"},
    {"pow(score, 2)", "2.0 * score"},
    {"pow(score, 1)", "1.0"},
    {"pow(score, 0)", "0.0"},
    {"pow(score, 3)", "3.0 * pow(score, 2.0)"},
    {"pow(keep, score)", "keep == 0.0 && score >= 0.0 ? 0.0 : pow(keep, score) * log(keep)"},
    {"pow(score, keep)", "keep == 0.0 ? 0.0 : keep * pow(score, keep - 1.0)"},
};

static void test_derivative_rules(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof(derivatives) / sizeof(derivatives[0]); ++k) {
    tsr_expr *expr = parsed(derivatives[k].text, TSR_EXPR_KIND_SCORE), *slope;
    assert_int_equal(tsr__expr_derive(NULL, expr, "score_expr", &slope, NULL), TSR_OK);
    assert_int_equal(slope->kind, TSR_EXPR_KIND_DERIVATIVE);
    char *text = printed(slope);
    assert_string_equal(text, derivatives[k].derivative);
    tsr__alloc_free(NULL, text);
    tsr__expr_destroy(NULL, slope);
    tsr__expr_destroy(NULL, expr);
  }
}

static void test_derivative_limits(void **state) {
  tsr_expr *expr = parsed("i", TSR_EXPR_KIND_MASK), *slope;
  tsr_error err;
  (void)state;
  assert_int_equal(tsr__expr_derive(NULL, expr, "mask_expr", &slope, &err), TSR_INVALID);
  assert_null(slope);
  tsr__expr_destroy(NULL, expr);

  /* d of a product of 200 factors has the order of 200^2 nodes as a tree. */
  expr = parsed(repeated("score*", 200, "score"), TSR_EXPR_KIND_SCORE);
  assert_int_equal(tsr__expr_derive(NULL, expr, "score_expr", &slope, &err), TSR_UNSUPPORTED);
  assert_null(slope);
  assert_string_equal(err.field, "score_expr");
  assert_non_null(strstr(err.text, "4096"));
  tsr__expr_destroy(NULL, expr);

  expr = parsed(repeated("score*", 50, "score"), TSR_EXPR_KIND_SCORE);
  assert_int_equal(tsr__expr_derive(NULL, expr, "score_expr", &slope, &err), TSR_OK);
  const tsr_expr_env env = environment();
  const float at = 1.0f;
  float out = -1;
  tsr__expr_eval(slope, &env, &(tsr_expr_lanes){.score = &at}, 1, &out);
  assert_float_equal(out, 51, 0);
  tsr__expr_destroy(NULL, slope);
  tsr__expr_destroy(NULL, expr);
}

/* ---- Tiles --------------------------------------------------------------------------------------- */

static int32_t class_of(const char *text, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  const tsr_expr_env env = environment();
  tsr_expr_range range[TSR_EXPR_VAR_COUNT];
  tsr_expr *expr = parsed(text, TSR_EXPR_KIND_MASK);
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    range[v] = (tsr_expr_range){where[v], where[v]};
  }
  range[TSR_EXPR_VAR_I] = (tsr_expr_range){i0, i1};
  range[TSR_EXPR_VAR_J] = (tsr_expr_range){j0, j1};
  const int32_t class = tsr__expr_classify(expr, &env, range);
  tsr__expr_destroy(NULL, expr);
  return class;
}

static void test_tile_classes(void **state) {
  const int64_t far = INT64_C(1) << 62;
  (void)state;
  assert_int_equal(class_of("j <= i", 64, 127, 0, 63), TSR_TILE_FULL);
  assert_int_equal(class_of("j <= i", 64, 127, 64, 127), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("j <= i", 64, 127, 128, 191), TSR_TILE_SKIP);
  assert_int_equal(class_of("i - 32 <= j && j <= i", 100, 110, 90, 99), TSR_TILE_FULL);
  assert_int_equal(class_of("i - 32 <= j && j <= i", 100, 110, 0, 66), TSR_TILE_SKIP);
  assert_int_equal(class_of("i - 32 <= j && j <= i", 100, 110, 0, 68), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("i / 64 == j / 64", 64, 127, 64, 127), TSR_TILE_FULL);
  assert_int_equal(class_of("i / 64 == j / 64", 64, 127, 0, 63), TSR_TILE_SKIP);
  assert_int_equal(class_of("i / 64 == j / 64", 60, 70, 64, 70), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("j % 64 < 16", 0, 63, 64, 79), TSR_TILE_FULL);
  assert_int_equal(class_of("j % 64 < 16", 0, 63, 80, 127), TSR_TILE_SKIP);
  assert_int_equal(class_of("abs(i - j) <= 10 || j < 4", 100, 110, 0, 3), TSR_TILE_FULL);
  assert_int_equal(class_of("abs(i - j) <= 10 || j < 4", 100, 110, 4, 89), TSR_TILE_SKIP);
  assert_int_equal(class_of("b ? j <= i : 1", 0, 3, 8, 9), TSR_TILE_SKIP);
  assert_int_equal(class_of("j < keep", 0, 3, 0, 2), TSR_TILE_FULL);
  assert_int_equal(class_of("j < keep", 0, 3, 3, 9), TSR_TILE_SKIP);
  assert_int_equal(class_of("exp(-0.1 * abs(i - j)) > 0.5", 0, 3, 0, 3), TSR_TILE_FULL);
  assert_int_equal(class_of("exp(-0.1 * abs(i - j)) > 0.5", 0, 3, 20, 30), TSR_TILE_SKIP);
  assert_int_equal(class_of("sqrt(float(i)) < 4.5", 0, 20, 0, 0), TSR_TILE_FULL);
  assert_int_equal(class_of("aux0[i] > 0", 0, 3, 0, 3), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("aux0[i] > 0 && j > i", 0, 3, 0, 0), TSR_TILE_SKIP);
  assert_int_equal(class_of("aux1[i, j] <= 2147483647", 0, 3, 0, 3), TSR_TILE_FULL);
  assert_int_equal(class_of("inf - inf", 0, 3, 0, 3), TSR_TILE_PARTIAL);
  /* What wraps is unknown. */
  assert_int_equal(class_of("i + j > 0", far, far + 1, far - 2, far - 2), TSR_TILE_FULL);
  assert_int_equal(class_of("i + j > 0", far, far + 1, far - 2, far), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("i * 4 > 0", 1, far, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("-i > 0", INT64_MIN, INT64_MIN + 1, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("abs(i) >= 0", INT64_MIN, 0, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("i / j < 0", INT64_MIN, INT64_MIN, -1, 1), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("i / j == 9223372036854775807", INT64_MIN, INT64_MIN + 5, -1, -1), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("abs(i) <= 3", -5, 3, 0, 0), TSR_TILE_PARTIAL);
  /* NaN in the middle of the box, or beside one number. */
  assert_int_equal(class_of("abs((i - 1) * inf) >= 0.0", 0, 2, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("floor(sqrt(float(i))) != 0.0", -1, 0, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("inf - i != inf", 0, 2, 0, 0), TSR_TILE_SKIP);
  assert_int_equal(class_of("int(max(5.0, sqrt(float(i)))) > 0", -1, 4, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("i * j > 0", 0, far, 0, 2), TSR_TILE_PARTIAL);
  /* Other back ends may divide and compute functions with another last bit. */
  assert_int_equal(class_of("float(i) / 3.0 == 0.33333334", 1, 1, 0, 0), TSR_TILE_PARTIAL);
  assert_int_equal(class_of("exp(float(i)) == 2.7182817", 1, 1, 0, 0), TSR_TILE_PARTIAL);
  /* pow falls and rises where its base changes sign. */
  assert_int_equal(class_of("pow(0.25 * i - 0.5, 2) > 0.1", 0, 4, 0, 0), TSR_TILE_PARTIAL);
  /* 2^24 and 2^24 + 1 are one f32. */
  assert_int_equal(class_of("float(i) < float(j)", 16777216, 16777216, 16777217, 16777217), TSR_TILE_SKIP);
}

/* ---- Memory -------------------------------------------------------------------------------------- */

typedef struct scarce {
  int left; /* allocations that succeed */
  int live;
} scarce;

static void *scarce_alloc(void *user, size_t bytes) {
  scarce *s = user;
  if (s->left-- <= 0) {
    return NULL;
  }
  ++s->live;
  return malloc(bytes);
}

static void scarce_free(void *user, void *ptr) {
  scarce *s = user;
  --s->live;
  free(ptr);
}

/* Everything with the n-th allocation failing. Returns 1 once nothing failed. */
static int run_with_scarce_memory(int n) {
  scarce s = {n, 0};
  const tsr__alloc alloc = {scarce_alloc, scarce_free, &s};
  tsr_expr *expr = NULL, *slope = NULL;
  char *text = NULL;
  tsr_error err;
  tsr_status status = parse(&alloc,
                            "pow(score, keep) * tanh(score / keep) * sin(score) * exp(score + i)"
                            " + min(score, i) * max(score, j) - abs(score * log(score))",
                            TSR_EXPR_KIND_SCORE, &expr, &err);
  if (status == TSR_OK) {
    status = tsr__expr_derive(&alloc, expr, "score_expr", &slope, &err);
  }
  if (status == TSR_OK) {
    status = tsr__expr_print(&alloc, slope, &text, &err);
  }
  if (status != TSR_OK) {
    assert_int_equal(status, TSR_OUT_OF_MEMORY);
    assert_int_equal(err.status, TSR_OUT_OF_MEMORY);
    assert_true(err.text[0] != '\0');
  }
  tsr__alloc_free(&alloc, text);
  tsr__expr_destroy(&alloc, slope);
  tsr__expr_destroy(&alloc, expr);
  assert_int_equal(s.live, 0);
  return status == TSR_OK;
}

static void test_every_allocation_fails(void **state) {
  int n = 0;
  (void)state;
  while (!run_with_scarce_memory(n)) {
    ++n;
  }
  assert_true(n > 12);
  tsr__expr_destroy(NULL, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_canonical_text),
      cmocka_unit_test(test_keys_differ),
      cmocka_unit_test(test_sharing),
      cmocka_unit_test(test_derivative_rules),
      cmocka_unit_test(test_derivative_limits),
      cmocka_unit_test(test_tile_classes),
      cmocka_unit_test(test_every_allocation_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
