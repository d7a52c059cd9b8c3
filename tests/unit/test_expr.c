/* SPDX-License-Identifier: Apache-2.0 */
/* The expression language on chosen texts: grammar, columns, limits, operators, numbers. */
#include "tests/unit/expr_fixture.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>

/* ---- Grammar ------------------------------------------------------------------------------------- */

static void test_accepts(void **state) {
  static const char *const texts[] = {
      "0",
      " \t\r\n 1 ",
      "1.",
      ".5",
      "1e3",
      "1E+3",
      "2.5e-3",
      "007",
      "--i",
      "!-!i",
      "-(-2)",
      "i?j:h?b:off",
      "(i)",
      "keep*_w2",
      "aux0[i]<1.0",
      "inf",
      "min(i,max(j,h))",
      "i%j/h*b",
      "(i<j)==(h<b)",
      "float(i)",
      "int(keep)",
      "abs(-i)",
      "i&&j||!h",
      "(i?j:h)?(b):i",
      "q_len-kv_len",
      "floor(i)",
      "pow(i,.5)",
      "1e-99",
      "i<j?i<h:j<h",
      "9223372036854775807",
      "aux1[b,j]==3",
      "aux2[b,h,i,int(keep)]",
  };
  (void)state;
  for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); ++k) {
    tsr__expr_destroy(NULL, parsed(texts[k], TSR_EXPR_KIND_MASK));
  }
}

static const struct {
  const char *text;
  int column;
  const char *why; /* part of the text */
} malformed[] = {
    {"", 1, "the text ends"},
    {"   ", 4, "the text ends"},
    {"i +", 4, "the text ends"},
    {"(i", 3, "expected ')'"},
    {"i)", 2, "end of the text, found ')'"},
    {"i j", 3, "found 'j'"},
    {"i < j < h", 7, "do not chain"},
    {"i == j < h", 8, "do not chain"},
    {"i < j + 1 == h", 11, "do not chain"},
    {"i = j", 3, "'==' is"},
    {"i & j", 3, "'&&' is"},
    {"i | j", 3, "'||' is"},
    {"i ^ j", 3, "no meaning"},
    {"i ? j", 6, "expected ':'"},
    {"i ? : j", 5, "found ':'"},
    {"i : j", 3, "found ':'"},
    {"* i", 1, "found '*'"},
    {"+i", 1, "found '+'"},
    {"foo", 1, "unknown name 'foo'"},
    {"i + foo(1)", 5, "unknown name 'foo'"},
    {"i(1)", 2, "found '('"},
    {"exp", 4, "expected '('"},
    {"exp(", 5, "the text ends"},
    {"exp()", 5, "found ')'"},
    {"exp(1, 2)", 6, "exp takes 1"},
    {"min(i)", 6, "min takes 2"},
    {"min(i, j, h)", 9, "min takes 2"},
    {"score", 1, "cannot use score"},
    {"1 + score", 5, "cannot use score"},
    {"keep % 2", 6, "takes integers"},
    {"i % 2.0", 3, "takes integers"},
    {"aux0", 5, "expected '['"},
    {"aux0(1)", 5, "expected '['"},
    {"aux0[]", 6, "found ']'"},
    {"aux0[i, j]", 7, "has 1 axes"},
    {"aux1[i]", 7, "has 2 axes"},
    {"aux1[i, j", 10, "has 2 axes"},
    {"aux1[i, j, h]", 10, "has 2 axes"},
    {"aux0[1.0]", 6, "an index is an integer"},
    {"aux1[i, (keep)]", 9, "an index is an integer"},
    {"aux3[i]", 1, "no such aux tensor; 3"},
    {"1 + aux8[i]", 5, "no such aux tensor"},
    {"aux00[i]", 1, "no such aux tensor"},
    {"i[1]", 2, "found '['"},
    {"1x", 2, "'x' cannot follow"},
    {"0x10", 2, "'x' cannot follow"},
    {"1.0f", 4, "'f' cannot follow"},
    {"1.2.3", 4, "'.' cannot follow"},
    {"i + 1e", 6, "no digits"},
    {"1e+", 2, "no digits"},
    {"2.0E-x", 4, "no digits"},
    {".", 1, "no meaning"},
    {"9223372036854775808", 1, "above 2^63 - 1"},
    {"1 + 99999999999999999999999", 5, "above 2^63 - 1"},
    {"3.5e38", 1, "range of f32"},
    {"i + 1e999999999999", 5, "range of f32"},
    {"i + \x01", 5, "byte 0x01"},
    {"i\xc3\xa9", 2, "byte 0xc3"},
    {"\x7f", 1, "byte 0x7f"},
    {"i \x0b j", 3, "byte 0x0b"},
    {"i +\n\n $", 7, "'$' has no meaning"},
    {"\"i\"", 1, "no meaning"},
    {"i;", 2, "no meaning"},
};

static void test_rejects_with_column(void **state) {
  (void)state;
  for (size_t k = 0; k < sizeof(malformed) / sizeof(malformed[0]); ++k) {
    tsr_expr *expr = (tsr_expr *)&malformed; /* must be overwritten */
    tsr_error err;
    char column[32];
    memset(&err, 0x5a, sizeof(err));
    snprintf(column, sizeof(column), "column %d: ", malformed[k].column);
    const tsr_status status = parse(NULL, malformed[k].text, TSR_EXPR_KIND_MASK, &expr, &err);
    if (status != TSR_INVALID || strncmp(err.text, column, strlen(column)) != 0 ||
        strstr(err.text, malformed[k].why) == NULL) {
      fail_msg("'%s': status %d, '%s'; wanted '%s...%s'", malformed[k].text, (int)status, err.text, column,
               malformed[k].why);
    }
    assert_null(expr);
    assert_int_equal(err.status, TSR_INVALID);
    assert_string_equal(err.field, "mask_expr");
    assert_int_equal(parse(NULL, malformed[k].text, TSR_EXPR_KIND_MASK, &expr, NULL), TSR_INVALID);
  }
}

static void expect_column(const char *text, int column, const char *why) {
  tsr_expr *expr;
  tsr_error err;
  char start[32];
  snprintf(start, sizeof(start), "column %d: ", column);
  assert_int_equal(parse(NULL, text, TSR_EXPR_KIND_MASK, &expr, &err), TSR_INVALID);
  if (strncmp(err.text, start, strlen(start)) != 0 || strstr(err.text, why) == NULL) {
    fail_msg("'%.40s...': '%s'; wanted '%s...%s'", text, err.text, start, why);
  }
}

static void test_limits(void **state) {
  static const struct {
    const char *unit;
    int column; /* where the 65th level begins */
  } nesting[] = {{"(", 66}, {"-", 65}, {"!", 65}, {"exp(", 261}, {"aux0[", 326}, {"0?0:", 259}};
  (void)state;
  for (size_t k = 0; k < sizeof(nesting) / sizeof(nesting[0]); ++k) {
    expect_column(repeated(nesting[k].unit, 65, "i"), nesting[k].column, "deeper than 64");
  }
  char *text = repeated("(", 64, "i");
  for (int k = 0; k < 64; ++k) {
    strcat(text, ")");
  }
  tsr__expr_destroy(NULL, parsed(text, TSR_EXPR_KIND_MASK));
  tsr__expr_destroy(NULL, parsed(repeated("-", 64, "i"), TSR_EXPR_KIND_MASK));
  tsr__expr_destroy(NULL, parsed(repeated("0?0:", 64, "i"), TSR_EXPR_KIND_MASK));

  /* An implied conversion is a level, so that "score < i * (" goes down two. */
  for (int n = 32; n <= 33; ++n) {
    text = repeated("1.0<i*(", n, "2");
    for (int k = 0; k < n; ++k) {
      strcat(text, ")");
    }
    if (n == 32) {
      tsr__expr_destroy(NULL, parsed(text, TSR_EXPR_KIND_MASK));
    } else {
      expect_column(text, 4, "deeper than 64");
    }
  }

  /* 256 names and 255 signs are 511 nodes; with a '!' 512, with two 513. */
  tsr__expr_destroy(NULL, parsed(repeated("i+", 255, "i"), TSR_EXPR_KIND_MASK));
  tsr__expr_destroy(NULL, parsed(repeated("i+", 255, "!i"), TSR_EXPR_KIND_MASK));
  expect_column(repeated("i+", 255, "!!i"), 510, "more than 512 nodes");

  text = repeated(" ", TSR_EXPR_MAX_BYTES - 1, "i");
  tsr__expr_destroy(NULL, parsed(text, TSR_EXPR_KIND_MASK));
  tsr_expr *expr;
  tsr_error err;
  assert_int_equal(parse(NULL, repeated(" ", TSR_EXPR_MAX_BYTES, "i"), TSR_EXPR_KIND_MASK, &expr, &err), TSR_INVALID);
  assert_non_null(strstr(err.text, "longer than 4096"));
  assert_int_equal(parse(NULL, NULL, TSR_EXPR_KIND_MASK, &expr, &err), TSR_INVALID);
}

static void test_declarations(void **state) {
  static const char *const bad[] = {
      "",      "1a",  "a b",  "a-b",   "i",    "kv_len", "score", "exp",
      "float", "inf", "aux0", "aux12", "\xc3", "dup",    NULL,    "a_name_that_is_one_byte_too_long"};
  tsr_expr *expr;
  tsr_error err;
  (void)state;
  for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); ++k) {
    const char *const pair[2] = {"dup", bad[k]};
    assert_int_equal(tsr__expr_parse(NULL, "i", 0, pair, 2, NULL, 0, "f", &expr, &err), TSR_INVALID);
    assert_string_equal(err.field, "scalar_names[1]");
    assert_null(expr);
  }
  const char *const good[3] = {"aux", "auxx1", "a_name_of_exactly_31_bytes_12345"};
  assert_int_equal(strlen(good[2]), 32);
  const char *const fits[3] = {"aux", "auxx1", good[2] + 1};
  assert_int_equal(tsr__expr_parse(NULL, "aux+auxx1", 0, fits, 3, NULL, 0, "f", &expr, &err), TSR_OK);
  assert_int_equal(expr->scalars_used, 3);
  tsr__expr_destroy(NULL, expr);
  assert_int_equal(tsr__expr_parse(NULL, "i", 0, fits, 17, NULL, 0, "f", &expr, &err), TSR_INVALID);
  assert_int_equal(tsr__expr_parse(NULL, "i", 0, fits, -1, NULL, 0, "f", &expr, &err), TSR_INVALID);
  assert_int_equal(tsr__expr_parse(NULL, "i", 0, NULL, 1, NULL, 0, "f", &expr, &err), TSR_INVALID);
  assert_int_equal(tsr__expr_parse(NULL, "i", 0, NULL, 0, NULL, 1, "f", &expr, &err), TSR_INVALID);
  assert_int_equal(tsr__expr_parse(NULL, "i", 0, NULL, 0, aux_types, 9, "f", &expr, &err), TSR_INVALID);
  const tsr_expr_aux_type wrong[] = {{TSR_F16, 1}, {TSR_F32, 0}, {TSR_I32, 5}, {TSR_I64, 2}};
  for (size_t k = 0; k < 4; ++k) {
    assert_int_equal(tsr__expr_parse(NULL, "i", 0, NULL, 0, &wrong[k], 1, "f", &expr, &err), TSR_INVALID);
    assert_string_equal(err.field, "aux[0]");
  }
}

/* ---- Values -------------------------------------------------------------------------------------- */

/* The texts are C: the compiler says what they mean, and need not say how it would write them. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wparentheses"
static void test_precedence_is_c(void **state) {
  const int64_t i = where[TSR_EXPR_VAR_I], j = where[TSR_EXPR_VAR_J], h = where[TSR_EXPR_VAR_H];
  const int64_t b = where[TSR_EXPR_VAR_B], off = where[TSR_EXPR_VAR_OFF];
  const float score = 0.75f;
  (void)state;
#define SAME(e) assert_float_equal(value_at(#e, score), (float)(e), 0)
  SAME(i + j * h);
  SAME(i - j - h);
  SAME(i - (j - h));
  SAME(j * h / i);
  SAME(j / i * h);
  SAME(j % i * h % 4);
  SAME(-i * j);
  SAME(- -i - -j);
  SAME(!i + j);
  SAME(!(i + j));
  SAME(!!i * 3);
  SAME(i + j < h * 2);
  SAME(i < j && j < h || b);
  SAME(b || h < i && 0);
  SAME((i < j) == (h > b));
  SAME(i ? j : h + 1);
  SAME((i ? j : h) + 1);
  SAME(!b ? i : !h ? j : off);
  SAME(b ? h ? 1 : 2 : 3);
  SAME(i + j ? i && !j : 7);
  SAME(score * i - j);
  SAME(score + (j <= i + off) * 2);
  SAME((score < 1) * 4 + (score >= 0.75) * 2 + (score != score));
  SAME(-score * 2 + j % 2);
  SAME(0 ? 1 : score ? 2.5 : 3);
#undef SAME
}
#pragma GCC diagnostic pop

static void test_integers(void **state) {
  (void)state;
#define TRUE(e) assert_int_equal(allowed(e), 1)
  TRUE("-7 / 2 == -4 && 7 / -2 == -4 && -7 / -2 == 3 && 7 / 2 == 3");
  TRUE("-7 % 2 == 1 && 7 % -2 == -1 && -7 % -2 == -1 && 7 % 2 == 1");
  TRUE("-8 / 2 == -4 && -8 % 2 == 0 && 8 % -2 == 0");
  TRUE("i / 0 == 0 && i % 0 == 0 && 0 / 0 == 0 && -i % (i - i) == 0");
  TRUE("9223372036854775807 + 1 == -9223372036854775807 - 1");
  TRUE("-9223372036854775807 - 2 == 9223372036854775807");
  TRUE("9223372036854775807 * 3 == 9223372036854775805");
  TRUE("(-9223372036854775807 - 1) / -1 == -9223372036854775807 - 1");
  TRUE("(-9223372036854775807 - 1) % -1 == 0");
  TRUE("-(-9223372036854775807 - 1) == -9223372036854775807 - 1");
  TRUE("abs(-9223372036854775807 - 1) == -9223372036854775807 - 1");
  TRUE("(-9223372036854775807 - 1) / 2 == -4611686018427387904");
  TRUE("int(1e30) == 9223372036854775807 && int(-1e30) == -9223372036854775807 - 1");
  TRUE("int(inf) == 9223372036854775807 && int(-inf) == -9223372036854775807 - 1");
  TRUE("int(inf - inf) == 0 && int(-2.75) == -2 && int(2.75) == 2");
  TRUE("float(16777217) == 16777216.0 && float(16777219) == 16777220.0");
  TRUE("16777217 == 16777216.0"); /* the comparison is in f32 */
  TRUE("16777217 != 16777216");
  TRUE("min(i, j) == 5 && max(i, j) == 9 && floor(i) == 5 && floor(-2.5) == -3.0");
#undef TRUE
}

static void test_f32(void **state) {
  const float nan = NAN;
  (void)state;
  assert_int_equal(allowed("inf - inf"), 1); /* NaN is not zero */
  assert_int_equal(allowed("-0.0"), 0);
  assert_int_equal(allowed("1e-45"), 1);
  assert_int_equal(allowed("!(inf - inf)"), 0);
  assert_int_equal(allowed("(inf - inf) && 1"), 1);
  assert_int_equal(allowed("(inf - inf) ? 0 : 1"), 0);
  assert_float_equal(value_at("(score == score) + 2 * (score != score) + 4 * (score < 0 || score >= 0)", nan), 2, 0);
  assert_true(isnan(value_at("min(score, 1)", nan)) && isnan(value_at("min(1, score)", nan)));
  assert_true(isnan(value_at("max(score, -inf)", nan)) && isnan(value_at("max(-inf, score)", nan)));
  assert_true(signbit(value_at("min(0.0, -0.0)", 0)) == 0); /* the first at ties */
  assert_true(signbit(value_at("max(-0.0, 0.0)", 0)) != 0);
  assert_true(isinf(value_at("1.0 / 0", 0)) && isnan(value_at("sqrt(-1)", 0)));
  assert_float_equal(value_at("0.1 + 0.2", 0), 0.1f + 0.2f, 0);
  assert_float_equal(value_at("score * score - 1.0000002", 1.0000001f),
                     (float)((double)(1.0000001f * 1.0000001f)) - 1.0000002f, 0);
  assert_float_equal(value_at("exp(score)", 1.5f), expf(1.5f), 0);
  assert_float_equal(value_at("exp2(score) + log2(score)", 1.5f), exp2f(1.5f) + log2f(1.5f), 0);
  assert_float_equal(value_at("log(score) - sqrt(score)", 1.5f), logf(1.5f) - sqrtf(1.5f), 0);
  assert_float_equal(value_at("30 * tanh(score / 30)", 17.0f), 30 * tanhf(17.0f / 30), 0);
  assert_float_equal(value_at("sin(score) / cos(score)", 1.5f), sinf(1.5f) / cosf(1.5f), 0);
  assert_float_equal(value_at("pow(abs(score), keep)", -1.5f), powf(1.5f, 2.5f), 0);
  assert_float_equal(value_at("score + keep * _w2", 10), 7.5f, 0);
}

static void test_variables_and_aux(void **state) {
  (void)state;
  assert_float_equal(value_at("b + 10 * h + 100 * hkv", 0), 371, 0);
  assert_float_equal(value_at("i + 10 * j + 100 * q_len + 10000 * kv_len + 1000000 * off", 0), 8201295, 0);
  assert_float_equal(value_at("aux0[0] + 10 * aux0[2] + aux0[b]", 0), 39.5f, 0);
  assert_int_equal(allowed("aux0[3] == 0 && aux0[-1] == 0 && aux0[9223372036854775807] == 0"), 1);
  assert_int_equal(allowed("aux0[-9223372036854775807 - 1] == 0"), 1);
  assert_int_equal(allowed("aux1[1, 1] == 21 && aux1[0, 2] == 12 && aux1[1, 2] == -2147483648"), 1);
  assert_int_equal(allowed("aux1[2, 0] == 0 && aux1[0, 3] == 0 && aux1[-1, 4] == 0"), 1);
  assert_int_equal(allowed("aux1[1, 2] * 4 == -8589934592"), 1); /* int64 arithmetic */
  assert_int_equal(allowed("aux2[1, 0, 8, 0] == 7.0 && aux2[1, 1, 8, 0] == 0 && aux2[1, 0, 9, 0] == 0"), 1);

  /* Each lane its own point; what is not given by lane is uniform. */
  float score[64], out[64];
  int64_t i[64], j[64];
  tsr_expr *expr = parsed("score * 2 + aux0[j] + 100 * i + 1000 * h", TSR_EXPR_KIND_SCORE);
  const tsr_expr_env env = environment();
  tsr_expr_lanes lanes = {.score = score, .lane = {[TSR_EXPR_VAR_I] = i, [TSR_EXPR_VAR_J] = j}};
  lanes.uniform[TSR_EXPR_VAR_H] = 7;
  for (int n = 0; n <= 64; ++n) {
    for (int k = 0; k < 64; ++k) {
      score[k] = (float)k / 2;
      i[k] = 64 - k;
      j[k] = k % 5 - 1;
      out[k] = -1;
    }
    tsr__expr_eval(expr, &env, &lanes, n, n % 2 ? out : score);
    for (int k = 0; k < 64; ++k) {
      const float before = n % 2 ? -1 : (float)k / 2;
      const float a = j[k] >= 0 && j[k] < 3 ? aux0[j[k]] : 0;
      assert_float_equal((n % 2 ? out : score)[k], k < n ? (float)k + a + 100 * (float)i[k] + 7000 : before, 0);
    }
  }
  tsr__expr_destroy(NULL, expr);
}

/* ---- Numbers ------------------------------------------------------------------------------------- */

static float number(const char *text) {
  return tsr__expr_number_parse(text, strlen(text));
}

static void test_numbers(void **state) {
  static const char *const texts[] = {
      "0",
      "0.0",
      "1",
      "0.1",
      "0.30000001",
      "16777217",
      "16777219",
      "3.4028235e38",
      "3.4028235677973366e38",
      "3.4028235677973365e38",
      "1.17549435e-38",
      "1.1754943e-38",
      "1e-45",
      "0.7e-45",
      "0.71e-45",
      "7.006492321624085354618e-46",
      "7.0064923216240853546186479164495e-46",
      "7.00649232162408535461864791644958065640130970938257885878534141944895541342930300743319094181060791015625e-46",
      ("7.0064923216240853546186479164495806564013097093825788587853414194489554134293030074331909418106"
       "0791015625000000000000000000000000000000000000000000000000000000000000000000000000000000001e-46"),
      "1e39",
      "1e-400",
      "123456789012345678901234567890e-20",
      "0.000000000000000000000000000000000000000000000001e48",
      "8388608.5",
      "8388609.5",
      "8388609.50000000000000000000000000000000000000000000000000001",
  };
  (void)state;
  for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); ++k) {
    const float want = strtof(texts[k], NULL), got = number(texts[k]);
    if (memcmp(&want, &got, sizeof(got)) != 0) {
      fail_msg("'%s': %a, not %a", texts[k], (double)got, (double)want);
    }
  }
}

static void test_numbers_ignore_locale(void **state) {
  static const char *const locales[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR", "ru_RU.UTF-8", "nl_NL.UTF-8"};
  char text[TSR_EXPR_NUMBER_BYTES];
  int found = 0;
  (void)state;
  for (size_t k = 0; k < sizeof(locales) / sizeof(locales[0]) && !found; ++k) {
    found = setlocale(LC_NUMERIC, locales[k]) != NULL && localeconv()->decimal_point[0] == ',';
  }
  tsr__expr_number_print(0.15625f, text);
  const float back = number("0.15625");
  setlocale(LC_NUMERIC, "C");
  assert_string_equal(text, "0.15625");
  assert_float_equal(back, 0.15625f, 0);
  if (!found) {
    print_message("no locale with a decimal comma is installed; ran in the C locale\n");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_accepts),
      cmocka_unit_test(test_rejects_with_column),
      cmocka_unit_test(test_limits),
      cmocka_unit_test(test_declarations),
      cmocka_unit_test(test_precedence_is_c),
      cmocka_unit_test(test_integers),
      cmocka_unit_test(test_f32),
      cmocka_unit_test(test_variables_and_aux),
      cmocka_unit_test(test_numbers),
      cmocka_unit_test(test_numbers_ignore_locale),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
