/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's own reading of expressions: values, types, precision and slopes by hand. One pair, whose logit is the
 * expression's value: q = 1, k = score, v = 1, so that lse = max_s = value; backward with dout 0 and dlse 1 gives
 * dq = slope * score. */
#include "reference_case.h"

static attention_case c1;
static const float aux0[6] = {0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f}; /* [2][3] */
static const int32_t aux1[4] = {7, -8, 9, INT32_MIN};
static const char *const names[2] = {"gain", "x_1"};

static void init(const char *text, float score) {
  case_init(&c1, 1, 1, 1, 1, 1, 1, 1);
  c1.q[0] = 1.0f;
  c1.k[0] = score;
  c1.args.scale = 1.0f;
  c1.desc.score_expr = text;
  c1.desc.scalar_names = names;
  c1.desc.num_scalars = 2;
  c1.args.scalars[0] = 0.1f;
  c1.args.scalars[1] = -3.0f;
  c1.desc.num_aux = 2;
  c1.desc.aux[0] = tsr_layout_dense(TSR_F32, 2, 3, 1, 1);
  c1.args.aux[0] = tsr_buffer_in(aux0);
  c1.desc.aux[1] = tsr_layout_dense(TSR_I32, 4, 1, 1, 1);
  c1.args.aux[1] = tsr_buffer_in(aux1);
}

static double value(const char *text, float score) {
  init(text, score);
  case_run(&c1);
  return c1.max_s[0];
}

static double slope(const char *text, float score) {
  static const float zero = 0.0f, one = 1.0f;
  double dq = case_poison;
  tsr_error err;
  init(text, score);
  c1.out = tsr_reference_out_init();
  c1.out.dq = &dq;
  c1.desc.op = TSR_BACKWARD;
  CASE_GIVE(&c1, dout, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &zero);
  CASE_GIVE(&c1, dlse, tsr_layout_dense(TSR_F32, 1, 1, 1, 1), &one);
  if (tsr__reference_attention(NULL, NULL, NULL, &c1.desc, &c1.args, &c1.out, &err) != TSR_OK) {
    fail_msg("%s: %s", text, err.text);
  }
  return dq / (double)score;
}

static void test_values(void **state) {
  static const struct {
    const char *text;
    double want;
  } cases[] = {
      {"1 + 2 * 3 - 4", 3},
      {"(1 + 2) * 3", 9},
      {"10 - 4 - 3", 3},
      {"-2 * -3", 6},
      {"- - 5", 5},
      {"!0 + !7 + !0.0 + !0.5", 2},
      {"7 / 2", 3},
      {"-7 / 2", -4},
      {"7 / -2", -4},
      {"-7 / -2", 3},
      {"7 % 3", 1},
      {"-7 % 3", 2},
      {"7 % -3", -2},
      {"-7 % -3", -1},
      {"5 / 0 + 5 % 0", 0},
      {"7.0 / 2", 3.5},
      {"1 / 0.0", INFINITY},
      {"9223372036854775807 + 1 < 0", 1},
      {"(-9223372036854775807 - 1) / -1 < 0", 1},
      {"(-9223372036854775807 - 1) % -1", 0},
      {"3037000500 * 3037000500 < 0", 1},
      {"1 < 2", 1},
      {"2 <= 1", 0},
      {"2 > 1", 1},
      {"1 >= 2", 0},
      {"1 == 1.0", 1},
      {"1 != 1", 0},
      {"inf - inf == inf - inf", 0},
      {"inf - inf != inf - inf", 1},
      {"1 && 0 || 1", 1},
      {"1 || 0 && 0", 1},
      {"(inf - inf) && 1", 1},
      {"1 ? 2 : 3", 2},
      {"0 ? 2 : 3", 3},
      {"0 ? 1 : 0 ? 2 : 3", 3},
      {"1 ? 0 ? 4 : 5 : 6", 5},
      {"(1 ? 1 : 2.0) / 2", 0.5}, /* one branch is f32, so both are */
      {"1 + 1 == 2 && 3 < 4", 1},
      {"int(2.9) + int(-2.9)", 0},
      {"int(1e30) == 9223372036854775807", 1},
      {"int(-1e30) == -9223372036854775807 - 1", 1},
      {"int(inf - inf)", 0},
      {"float(7) / 2", 3.5},
      {"float(16777217) == 16777216.0", 1},
      {"16777217 == 16777216.0", 1},
      {"16777217 == 16777216", 0},
      {"abs(-3) + abs(-0.5)", 3.5},
      {"floor(-1.5)", -2},
      {"floor(7) / 2", 3},
      {"min(2, 3) / 2 + max(2, 3)", 4},
      {"min(2, 1.5) + max(2, 1.5)", 3.5},
      {"min(inf - inf, 1.0) == min(1.0, inf - inf)", 0},
      {"exp(0) + exp2(3) + log(1) + log2(8) + sqrt(9)", 15},
      {"tanh(0.0) + sin(0.0) + cos(0.0) + pow(2, 5)", 33},
      {".5 + 5e-1 + 1.E0 + 2e0", 4},
      {"0.1 == gain", 1},
      {"x_1 * x_1", 9},
      {"j + i + b + h + hkv + off + q_len + kv_len", 2},
      {"aux0[1, 2]", 5.5},
      {"aux0[0,1] * 2", 3},
      {"aux0[2, 0] + aux0[0, 3] + aux0[-1, 0] + aux0[0, -1]", 0},
      {"aux1[1] / 3", -3},
      {"aux1[3] - 1 < aux1[3]", 1},
      {"aux1[aux1[2] - 8]", -8},
      {"aux1[4] + aux1[9223372036854775807]", 0},
      {"score + 1", 3},
      {"score\t*\n score", 4},
  };
  (void)state;
  for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
    const double got = value(cases[n].text, 2.0f);
    if (got != cases[n].want) {
      fail_msg("%s is %g, expected %g", cases[n].text, got, cases[n].want);
    }
  }
}

/* Without the score every operation is f32's, once rounded; with it, float64's. */
static void test_precision(void **state) {
  const volatile float tenth = 0.1f, three = 3.0f;
  const volatile float product = tenth * three, sum = product + tenth;
  (void)state;
  assert_true(value("0.1 * 3 + 0.1", 2.0f) == (double)sum);
  assert_true(value("exp(0.1)", 2.0f) == (double)(float)exp((double)tenth));
  assert_true(value("0.1 * score", 3.0f) == (double)tenth * 3.0);
  assert_true(value("score / 3", 0.1f) == (double)tenth / 3.0);
  assert_true(value("16777216.0 + 1.0", 2.0f) == 16777216.0);
  assert_true(value("score + 1.0", 16777216.0f) == 16777217.0);
}

static void test_slopes(void **state) {
  const double s = 0.75, t = tanh(s);
  const struct {
    const char *text;
    double want;
  } cases[] = {
      {"score", 1},
      {"3.0", 0},
      {"-score * 2", -2},
      {"score * score + score", 2 * s + 1},
      {"1.0 / score", -1 / (s * s)},
      {"score / 4 - 2 * score", -1.75},
      {"score / (1.0 + score)", 1 / ((1 + s) * (1 + s))},
      {"exp(2 * score)", 2 * exp(2 * s)},
      {"exp2(score)", exp2(s) * log(2.0)},
      {"log(score)", 1 / s},
      {"log2(score)", 1 / (s * log(2.0))},
      {"sqrt(score)", 0.5 / sqrt(s)},
      {"tanh(score)", 1 - t * t},
      {"sin(score)", cos(s)},
      {"cos(score)", -sin(s)},
      {"pow(score, 3)", 3 * s * s},
      {"pow(2.0, score)", pow(2.0, s) * log(2.0)},
      {"pow(score, score)", pow(s, s) * (log(s) + 1)},
      {"pow(score, 0)", 0},
      {"pow(score - 0.75, 0)", 0},
      {"pow(score - 0.75, 2.0) + score", 1},
      {"abs(score) + abs(-2 * score)", 3},
      {"abs(score - 0.75)", 0},
      {"min(score, 0.75)", 1}, /* a tie: the first */
      {"min(0.75, score)", 0},
      {"max(score, 0.75)", 1},
      {"max(0.75, score)", 0},
      {"max(score, 2 * score)", 2},
      {"min(score, 2 * score)", 1},
      {"floor(score) + int(score) + (score > 0)", 0},
      {"score > 0.5 ? 3 * score : 5 * score", 3},
      {"score > 1.0 ? 3 * score : 5 * score", 5},
      {"sqrt(floor(score)) + score", 1}, /* a constant's slope is 0 however steep sqrt is at 0 */
      {"pow(floor(score), 0.5) + score", 1},
      {"30 * tanh(score / 30)", 1 - tanh(s / 30) * tanh(s / 30)},
  };
  (void)state;
  for (size_t n = 0; n < sizeof(cases) / sizeof(cases[0]); n++) {
    const double got = slope(cases[n].text, (float)s);
    if (!(fabs(got - cases[n].want) <= 1e-14 * (1 + fabs(cases[n].want)))) {
      fail_msg("slope of %s is %.17g, expected %.17g", cases[n].text, got, cases[n].want);
    }
  }
}

/* Variables as the pair has them, in a problem where they differ. */
static void test_variables(void **state) {
  (void)state;
  case_init(&c1, 2, 3, 4, 4, 2, 2, 1);
  c1.desc.score_expr = "q_len == 3 && kv_len == 4 && off == 1 && hkv == h / 2 ? "
                       "float(((b * 10 + h) * 10 + i) * 10 + j) : inf - inf";
  case_run(&c1);
  for (int64_t n = 0; n < c1.num_lse; n++) { /* lse [b][h][i]: four logits, one apart */
    const int64_t base = ((n / 12 * 10 + n / 3 % 4) * 10 + n % 3) * 10;
    case_near(c1.lse[n], (double)base + log(1 + exp(1.0) + exp(2.0) + exp(3.0)), 1e-14);
  }
}

/* A mask expression decides in f32 exactly, NaN allows, and a score of -inf does not mask. */
static void test_mask_and_minus_infinity(void **state) {
  (void)state;
  case_init(&c1, 1, 1, 4, 1, 1, 1, 1);
  c1.q[0] = 0.0f;
  c1.desc.mask_expr = "j == 1 ? 0.0 : j == 2 ? inf - inf : 0.1 * 3 == 0.3 || j > 2";
  case_run(&c1); /* in f32, 0.1 * 3 is 0.3, which in float64 it is not: keys 0, 2 and 3 */
  case_near(c1.lse[0], log(3.0), 1e-15);
  c1.desc.score_expr = "j != 2 ? -inf : score";
  case_run(&c1);
  case_near(c1.lse[0], 0.0, 1e-15);
  assert_true(c1.o[0] == (double)c1.v[2]);
}

static void test_malformed(void **state) {
  static const char *const texts[] = {
      "",       "1 +",   "(1",    "1)",      "1 2",          "aux0[1",  "aux2[0]", "unknown", "exp()", "exp(1,2)",
      "min(1)", "1 ? 2", "a = 1", "1.5 % 2", "aux0[0.5, 0]", "score 1", "1 $ 2",   "&& 1",    "exp 1", "aux0"};
  tsr_error err;
  (void)state;
  for (size_t n = 0; n < sizeof(texts) / sizeof(texts[0]); n++) {
    init(texts[n], 1.0f);
    if (tsr__reference_attention(NULL, NULL, NULL, &c1.desc, &c1.args, &c1.out, &err) != TSR_INVALID) {
      fail_msg("\"%s\" was taken", texts[n]);
    }
    assert_string_equal(err.field, "score_expr");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),    cmocka_unit_test(test_precision),
      cmocka_unit_test(test_slopes),    cmocka_unit_test(test_variables),
      cmocka_unit_test(test_malformed), cmocka_unit_test(test_mask_and_minus_infinity),
  };
  random_seed();
  return cmocka_run_group_tests_name("reference_expr", tests, NULL, NULL);
}
