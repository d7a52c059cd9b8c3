/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions on random texts: values, canonical text, derivative against differences, tile classes, numbers. */
#include "tests/unit/expr_random.h"

#include <math.h>

static random_expr g;

static void expect_values(const tsr_expr *expr, const value *want) {
  const tsr_expr_lanes lanes = random_lanes(&g);
  float out[LANES];
  uint8_t allow[LANES];
  const value f32 = to_f32(*want);
  memset(out, 0x5a, sizeof(out));
  memset(allow, 0x5a, sizeof(allow));
  if (expr->kind == TSR_EXPR_KIND_MASK) {
    tsr__expr_eval_mask(expr, &g.env, &lanes, LANES, allow);
  } else {
    tsr__expr_eval(expr, &g.env, &lanes, LANES, out);
  }
  for (int k = 0; k < LANES; ++k) {
    if (expr->kind == TSR_EXPR_KIND_MASK
            ? allow[k] != is_true(want, k)
            : memcmp(&out[k], &f32.f[k], sizeof(out[k])) != 0 && !(isnan(out[k]) && isnan(f32.f[k]))) {
      fail_msg("'%s', lane %d: %a and %d, not %a and %d", g.text, k, (double)out[k], (int)allow[k], (double)f32.f[k],
               is_true(want, k));
    }
  }
}

/* Parsing the canonical text gives the same tree; returns 0 if that text is too long to be parsed. */
static void expect_round_trip(const tsr_expr *expr) {
  char *text;
  assert_int_equal(tsr__expr_print(NULL, expr, &text, NULL), TSR_OK);
  if (expr->kind == TSR_EXPR_KIND_DERIVATIVE || strlen(text) <= TSR_EXPR_MAX_BYTES) {
    tsr_expr *again = parse_random(&g, text, expr->kind);
    if (!tsr__expr_equal(expr, again) || tsr__expr_hash(expr) != tsr__expr_hash(again)) {
      fail_msg("'%s' and its canonical text '%s' differ", g.text, text);
    }
    tsr__expr_destroy(NULL, again);
  }
  tsr__alloc_free(NULL, text);
}

static void test_values(void **state) {
  (void)state;
  for (int n = 0; n < 10000; ++n) {
    const int32_t kind = n % 2 ? TSR_EXPR_KIND_MASK : TSR_EXPR_KIND_SCORE;
    g.with_score = kind == TSR_EXPR_KIND_SCORE;
    g.with_functions = 1;
    g.with_extremes = n % 3 != 0;
    random_names_values(&g);
    const value want = random_text(&g, 1 + pick(&g, 40));
    tsr_expr *expr = parse_random(&g, g.text, kind);
    expect_values(expr, &want);
    expect_round_trip(expr);
    tsr__expr_destroy(NULL, expr);
  }
}

/* ---- Derivative ---------------------------------------------------------------------------------------------- */

/* A node's value in float64. */
typedef struct real {
  double f;
  int64_t i;
} real;

static real real_leaf(const tsr_expr_node *node, double score) {
  real r = {0, 0};
  switch (node->op) {
  case TSR_EXPR_OP_CONST:
    if (node->type == TSR_EXPR_F32) {
      r.f = (double)node->value.f;
    } else {
      r.i = node->value.i;
    }
    break;
  case TSR_EXPR_OP_VAR: r.i = g.var[node->index][0]; break;
  case TSR_EXPR_OP_SCALAR: r.f = (double)g.env.scalar[node->index]; break;
  default: r.f = score; break;
  }
  return r;
}

static real real_aux(const tsr_expr_node *node, const real *at) {
  const tsr_expr_aux *aux = &g.env.aux[node->index];
  int64_t offset = 0;
  for (int a = 0; a < node->n_args; ++a) {
    const int64_t index = at[node->arg[a]].i;
    if (index < 0 || index >= aux->shape[a]) {
      return (real){0, 0};
    }
    offset += index * aux->stride[a];
  }
  return (real){(double)g.aux_f32[offset], g.aux_i32[offset]};
}

static double real_function(int32_t op, double x, double y) {
  switch (op) {
  case TSR_EXPR_OP_NEG: return -x;
  case TSR_EXPR_OP_ADD: return x + y;
  case TSR_EXPR_OP_SUB: return x - y;
  case TSR_EXPR_OP_MUL: return x * y;
  case TSR_EXPR_OP_DIV: return x / y;
  case TSR_EXPR_OP_EXP: return exp(x);
  case TSR_EXPR_OP_EXP2: return exp2(x);
  case TSR_EXPR_OP_LOG: return log(x);
  case TSR_EXPR_OP_LOG2: return log2(x);
  case TSR_EXPR_OP_SQRT: return sqrt(x);
  case TSR_EXPR_OP_TANH: return tanh(x);
  case TSR_EXPR_OP_SIN: return sin(x);
  case TSR_EXPR_OP_COS: return cos(x);
  case TSR_EXPR_OP_FLOOR: return floor(x);
  case TSR_EXPR_OP_ABS: return fabs(x);
  case TSR_EXPR_OP_POW: return pow(x, y);
  case TSR_EXPR_OP_MIN: return y < x ? y : x;
  default: return y > x ? y : x; /* MAX */
  }
}

/* An I64 node with operands; cx and cy say which are F32. */
static int64_t real_integer(const tsr_expr_node *node, int cx, int cy, real x, real y, real z) {
  const int tx = cx ? x.f != 0 : x.i != 0, ty = cy ? y.f != 0 : y.i != 0;
  const double big = 9.2e18;
  switch (node->op) {
  case TSR_EXPR_OP_NOT: return !tx;
  case TSR_EXPR_OP_AND: return tx && ty;
  case TSR_EXPR_OP_OR: return tx || ty;
  case TSR_EXPR_OP_LT: return cx ? x.f < y.f : x.i < y.i;
  case TSR_EXPR_OP_LE: return cx ? x.f <= y.f : x.i <= y.i;
  case TSR_EXPR_OP_GT: return cx ? x.f > y.f : x.i > y.i;
  case TSR_EXPR_OP_GE: return cx ? x.f >= y.f : x.i >= y.i;
  case TSR_EXPR_OP_EQ: return cx ? x.f == y.f : x.i == y.i;
  case TSR_EXPR_OP_NE: return cx ? x.f != y.f : x.i != y.i;
  case TSR_EXPR_OP_COND: return tx ? y.i : z.i;
  case TSR_EXPR_OP_TO_I64: return isnan(x.f) ? 0 : x.f > big ? INT64_MAX : x.f < -big ? INT64_MIN : (int64_t)x.f;
  case TSR_EXPR_OP_NEG: return (int64_t) - (uint64_t)x.i;
  case TSR_EXPR_OP_ABS: return x.i < 0 ? (int64_t) - (uint64_t)x.i : x.i;
  case TSR_EXPR_OP_ADD: return apply_i64('+', x.i, y.i);
  case TSR_EXPR_OP_SUB: return apply_i64('-', x.i, y.i);
  case TSR_EXPR_OP_MUL: return apply_i64('*', x.i, y.i);
  case TSR_EXPR_OP_DIV: return apply_i64('/', x.i, y.i);
  case TSR_EXPR_OP_MOD: return apply_i64('%', x.i, y.i);
  case TSR_EXPR_OP_MIN: return apply_i64('m', x.i, y.i);
  default: return apply_i64('M', x.i, y.i);
  }
}

/* Where the chain rule breaks down though the function has a value. */
static int has_no_slope(int32_t op, double x, double y, int constant_power) {
  return (op == TSR_EXPR_OP_SQRT && x == 0) ||
         (op == TSR_EXPR_OP_POW && ((x == 0 && y < 1) || (x < 0 && !constant_power)));
}

/* The tree in float64 at one score; NaN where it is not smooth. `branch` mixes every decision on the way, so that two
 * scores with the same one lie on the same piece. */
static double real_value(const tsr_expr *expr, double score, uint64_t *branch) {
  const int smooth = expr->kind == TSR_EXPR_KIND_SCORE;
  static real at[TSR_EXPR_MAX_DERIVATIVE_NODES];
  *branch = 0;
  for (int32_t k = 0; k < expr->n_nodes; ++k) {
    const tsr_expr_node *node = &expr->node[k];
    const int32_t xn = node->arg[0], yn = node->arg[1], zn = node->arg[2];
    const real x = at[xn], y = at[yn], z = at[zn];
    const int cx = expr->node[xn].type == TSR_EXPR_F32, cy = expr->node[yn].type == TSR_EXPR_F32;
    int64_t decision = 0;
    if (node->op == TSR_EXPR_OP_AUX) {
      at[k] = real_aux(node, at);
    } else if (node->n_args == 0) {
      at[k] = real_leaf(node, score);
    } else if (node->type == TSR_EXPR_I64) {
      decision = at[k].i = real_integer(node, cx, cy, x, y, z);
    } else if (node->op == TSR_EXPR_OP_COND) {
      decision = cx ? x.f != 0 : x.i != 0;
      at[k].f = decision ? y.f : z.f;
    } else if (node->op == TSR_EXPR_OP_TO_F32) {
      at[k].f = (double)x.i;
    } else {
      at[k].f = real_function(node->op, x.f, y.f);
      if (smooth && (has_no_slope(node->op, x.f, y.f, expr->node[yn].op == TSR_EXPR_OP_CONST))) {
        return NAN;
      }
      decision = node->op == TSR_EXPR_OP_FLOOR ? (int64_t)fmax(fmin(at[k].f, 1e15), -1e15)
                 : node->op == TSR_EXPR_OP_ABS ? (x.f > 0) - (x.f < 0)
                 : node->op == TSR_EXPR_OP_MIN || node->op == TSR_EXPR_OP_MAX || node->op == TSR_EXPR_OP_POW
                     ? (x.f > y.f) - (x.f < y.f) + 3 * (x.f == 0)
                     : 0;
    }
    if (smooth && node->type == TSR_EXPR_F32 && !(fabs(at[k].f) < 1e6)) {
      return NAN; /* a pole, or so large that the differences are lost in its last bits */
    }
    *branch = (*branch ^ (uint64_t)decision) * UINT64_C(0x9e3779b97f4a7c15) + 1;
  }
  return at[expr->n_nodes - 1].f;
}

/* 1 if the derivative was compared, 0 if the differences say nothing there (a kink, a pole, noise). */
static int compare_derivative(const tsr_expr *expr, const tsr_expr *slope, double score) {
  const double h = 1e-4;
  const double points[5] = {score - h, score - h / 2, score, score + h / 2, score + h};
  double f[5];
  uint64_t branch[5], unused;
  for (int k = 0; k < 5; ++k) {
    f[k] = real_value(expr, points[k], &branch[k]);
    if (branch[k] != branch[0] || !(fabs(f[k]) < 1e5)) {
      return 0;
    }
  }
  const double coarse = (f[4] - f[0]) / (2 * h), fine = (f[3] - f[1]) / h;
  const double want = (4 * fine - coarse) / 3, got = real_value(slope, score, &unused);
  const double unit = 1 + fabs(want);
  if (!(fabs(fine - coarse) < 1e-5 * unit)) {
    return 0;
  }
  /* Intermediate values may be large where the result is not: their cancellation is noise of the differences, which
   * a third step width shows. */
  const double wide =
      (real_value(expr, score + 2 * h, &branch[0]) - real_value(expr, score - 2 * h, &unused)) / (4 * h);
  if (branch[0] != branch[1] || unused != branch[1] || !(fabs(wide - coarse) < 1e-4 * unit)) {
    return 0;
  }
  if (!(fabs(got - want) <= 1e-4 * unit)) {
    char *text;
    assert_int_equal(tsr__expr_print(NULL, slope, &text, NULL), TSR_OK);
    fail_msg("'%s' at score %.17g: derivative '%s' is %.9g, differences give %.9g", g.text, score, text, got, want);
  }
  return want != 0;
}

static void test_derivative(void **state) {
  int compared = 0, n;
  (void)state;
  for (n = 0; n < 10000; ++n) {
    g.with_score = g.with_functions = 1;
    g.with_extremes = 0;
    random_names_values(&g);
    (void)random_text(&g, 1 + pick(&g, 25));
    tsr_expr *expr = parse_random(&g, g.text, TSR_EXPR_KIND_SCORE), *slope;
    tsr_error err;
    const tsr_status status = tsr__expr_derive(NULL, expr, "expr", &slope, &err);
    if (status != TSR_OK) {
      fail_msg("'%s': %s", g.text, err.text); /* 25 leaves are well below the limits */
    }
    expect_round_trip(slope);
    for (int k = 0; k < 4; ++k) {
      compared += compare_derivative(expr, slope, (double)random_f32(&g) * 1.5);
    }
    tsr__expr_destroy(NULL, slope);
    tsr__expr_destroy(NULL, expr);
  }
  print_message("%d derivatives other than 0 compared in %d expressions\n", compared, n);
  assert_true(compared > n / 2);
}

/* ---- Tiles --------------------------------------------------------------------------------------------------- */

/* Bits: 1 some pair is not allowed, 2 some pair is. */
static int enumerate(const tsr_expr *expr, const tsr_expr_range *range) {
  int64_t point[TSR_EXPR_VAR_COUNT], lane[TSR_EXPR_VAR_COUNT][64];
  tsr_expr_lanes lanes = {.score = NULL};
  int found = 0, n = 0, more = 1;
  uint8_t allow[64];
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    point[v] = range[v].lo;
    lanes.lane[v] = lane[v];
  }
  while (more) {
    for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
      lane[v][n] = point[v];
    }
    more = 0;
    for (int v = 0; v < TSR_EXPR_VAR_COUNT && !more; ++v) { /* the next point, if there is one */
      more = point[v] < range[v].hi;
      point[v] = more ? point[v] + 1 : range[v].lo;
    }
    if (++n == 64 || !more) {
      tsr__expr_eval_mask(expr, &g.env, &lanes, n, allow);
      for (int k = 0; k < n; ++k) {
        found |= allow[k] ? 2 : 1;
      }
      n = 0;
    }
  }
  return found;
}

static void random_box(tsr_expr_range *range) {
  static const int widths[TSR_EXPR_VAR_COUNT] = {1, 2, 2, 8, 8, 1, 2, 2};
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    const int64_t lo = random_i64(&g), wide = pick(&g, widths[v]);
    range[v].lo = lo > INT64_MAX - wide ? INT64_MAX - wide : lo;
    range[v].hi = range[v].lo + wide;
  }
}

/* Classifies and enumerates the text's boxes; counts those that are uniform, and known to be. */
static void check_tile(const char *text, const tsr_expr_range *range, int *uniform, int *known) {
  tsr_expr *expr = parse_random(&g, text, TSR_EXPR_KIND_MASK);
  const int32_t class = tsr__expr_classify(expr, &g.env, range);
  const int found = enumerate(expr, range);
  if ((class == TSR_TILE_SKIP && found != 1) || (class == TSR_TILE_FULL && found != 2)) {
    for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
      print_message("variable %d: %lld..%lld\n", v, (long long)range[v].lo, (long long)range[v].hi);
    }
    fail_msg("'%s': class %d, found %d", text, (int)class, found);
  }
  *uniform += found != 3;
  *known += class != TSR_TILE_PARTIAL;
  tsr__expr_destroy(NULL, expr);
}

/* A value that the text has somewhere in the box. */
static float value_inside(const tsr_expr_range *range) {
  tsr_expr *expr = parse_random(&g, g.text, TSR_EXPR_KIND_SCORE);
  tsr_expr_lanes lanes = {.score = NULL};
  float out;
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    lanes.uniform[v] = range[v].lo + pick(&g, (int)(range[v].hi - range[v].lo) + 1);
  }
  tsr__expr_eval(expr, &g.env, &lanes, 1, &out);
  tsr__expr_destroy(NULL, expr);
  return out;
}

static void test_tile_classes(void **state) {
  static const char *const relations[] = {"<", "<=", ">", ">=", "==", "!="};
  int uniform = 0, known = 0;
  (void)state;
  for (int n = 0; n < 10000; ++n) {
    tsr_expr_range range[TSR_EXPR_VAR_COUNT];
    char text[TSR_EXPR_MAX_BYTES + 64];
    g.with_score = 0;
    g.with_functions = n % 2;
    g.with_extremes = n % 3 == 0;
    random_names_values(&g);
    random_box(range);
    (void)random_text(&g, 1 + pick(&g, 20));
    check_tile(g.text, range, &uniform, &known);
    /* Against a value that it takes: an interval that misses the value shows. */
    const float f = value_inside(range);
    for (int r = 0; r < 6 && isfinite(f); ++r) {
      snprintf(text, sizeof(text), "(%s) %s %.9e", g.text, relations[r], (double)f);
      check_tile(text, range, &uniform, &known);
    }
  }
  print_message("%d of %d uniform boxes known to be\n", known, uniform);
  assert_true(known > uniform / 3);
}

/* ---- Numbers ------------------------------------------------------------------------------------------------- */

static void expect_number(const char *text) {
  const float want = strtof(text, NULL), got = tsr__expr_number_parse(text, strlen(text));
  if (memcmp(&want, &got, sizeof(got)) != 0) {
    fail_msg("'%s': %a, not %a", text, (double)got, (double)want);
  }
}

static void test_numbers(void **state) {
  (void)state;
  for (int n = 0; n < 20000; ++n) {
    const uint32_t bits = (uint32_t)conf_next(&g.rng) % 0x7f800000;
    char text[256], other[64];
    float f, back;
    memcpy(&f, &bits, sizeof(f));
    const int length = tsr__expr_number_print(f, text);
    assert_int_equal(length, strlen(text));
    back = strtof(text, NULL);
    assert_memory_equal(&back, &f, sizeof(f));
    expect_number(text);
    for (int p = 1; p < 9; ++p) { /* no text of fewer digits would do */
      snprintf(other, sizeof(other), "%.*e", p - 1, (double)f);
      if (strtof(other, NULL) == f) {
        int digits = 0, zeros = 0;
        for (const char *c = text; *c != '\0' && *c != 'e'; ++c) {
          zeros = *c == '.' ? zeros : *c == '0' ? zeros + 1 : 0;
          digits += *c != '.' && (digits > 0 || *c != '0');
        }
        assert_true(digits - zeros <= p || f == 0);
        break;
      }
    }
    /* The midpoint above f, exact, a hair below and a hair above. */
    const double mid = ((double)f + (double)nextafterf(f, INFINITY)) / 2;
    snprintf(text, sizeof(text), "%.*e", pick(&g, 120), mid);
    expect_number(text);
    snprintf(text, sizeof(text), "%.*f", pick(&g, 60), mid < 1e30 ? mid : 0.5);
    expect_number(text);
    if (strchr(text, '.') != NULL) {
      strcat(text, pick(&g, 2) ? "000000000000000000001" : "0000000000");
      expect_number(text);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_derivative),
      cmocka_unit_test(test_tile_classes),
      cmocka_unit_test(test_numbers),
  };
  g.rng.state = random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
