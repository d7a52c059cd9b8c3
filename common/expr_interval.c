/* SPDX-License-Identifier: Apache-2.0 */
/* Interval evaluation of a mask expression over a box of pairs. Rounding to nearest is monotone, so an f32
 * + - * of the ends of two intervals bounds the same operation on anything between them; what is not exactly
 * rounded everywhere (division, functions) is widened. Whatever might wrap, or is not known, is everything. */
#include <math.h>
#include <string.h>

#include "common/expr.h"
#include "common/expr_int.h"

/* What a value can be. By the node's type one pair of ends counts. */
typedef struct interval {
  int64_t lo, hi;
  float flo, fhi; /* of the values that are numbers; never NaN */
  int32_t nan;    /* 1: NaN is possible as well */
} interval;

enum { CAN_BE_FALSE = 1, CAN_BE_TRUE = 2 };

/* What tsr__expr_classify promises to allow for, and one for computing the bound itself. */
#define DIVISION_ULPS 5
#define FUNCTION_ULPS 34

static interval span_i64(int64_t lo, int64_t hi) {
  return (interval){.lo = lo, .hi = hi};
}

static interval any_i64(void) {
  return span_i64(INT64_MIN, INT64_MAX);
}

static interval any_f32(void) {
  return (interval){.flo = -INFINITY, .fhi = INFINITY, .nan = 1};
}

static interval span_f32(float lo, float hi, int nan) {
  if (lo != lo || hi != hi) {
    return any_f32();
  }
  return (interval){.flo = lo, .fhi = hi, .nan = nan};
}

/* f moved by `ulps` representable values (infinities are the last ones). */
static float step(float f, int32_t ulps) {
  const int32_t infinity = 0x7f800000;
  int32_t bits;
  memcpy(&bits, &f, sizeof(bits));
  bits = bits < 0 ? INT32_MIN - bits : bits; /* now in the order of the values, both zeros 0 */
  bits += ulps;
  bits = bits > infinity ? infinity : bits < -infinity ? -infinity : bits;
  bits = bits < 0 ? INT32_MIN - bits : bits;
  memcpy(&f, &bits, sizeof(f));
  return f;
}

static interval widened(interval x, int32_t ulps) {
  return span_f32(step(x.flo, -ulps), step(x.fhi, ulps), x.nan);
}

static int has_zero(interval x) {
  return x.flo <= 0 && x.fhi >= 0;
}

static int has_infinity(interval x) {
  return isinf(x.flo) || isinf(x.fhi);
}

/* ---- Truth -------------------------------------------------------------------------------------- */

static int truth(interval x, int32_t type) {
  if (type == TSR_EXPR_F32) {
    return (has_zero(x) ? CAN_BE_FALSE : 0) | (x.flo != 0 || x.fhi != 0 || x.nan ? CAN_BE_TRUE : 0);
  }
  return (x.lo <= 0 && x.hi >= 0 ? CAN_BE_FALSE : 0) | (x.lo != 0 || x.hi != 0 ? CAN_BE_TRUE : 0);
}

static interval from_truth(int can_be) {
  return span_i64(!(can_be & CAN_BE_FALSE), (can_be & CAN_BE_TRUE) != 0);
}

static int negated(int can_be) {
  return (can_be & CAN_BE_FALSE ? CAN_BE_TRUE : 0) | (can_be & CAN_BE_TRUE ? CAN_BE_FALSE : 0);
}

/* Orders and equalities of two intervals from three questions about their ends. */
typedef struct ends {
  int below, not_above; /* some x < some y; some x <= some y */
  int above, not_below; /* some x > some y; some x >= some y */
  int same;             /* both are one value, the same one */
} ends;

static ends compare_ends(interval x, interval y, int32_t type) {
  ends e;
  if (type == TSR_EXPR_F32) {
    e.below = x.flo < y.fhi;
    e.not_above = x.flo <= y.fhi;
    e.above = x.fhi > y.flo;
    e.not_below = x.fhi >= y.flo;
    e.same = x.flo == x.fhi && y.flo == y.fhi && x.flo == y.flo;
  } else {
    e.below = x.lo < y.hi;
    e.not_above = x.lo <= y.hi;
    e.above = x.hi > y.lo;
    e.not_below = x.hi >= y.lo;
    e.same = x.lo == x.hi && y.lo == y.hi && x.lo == y.lo;
  }
  return e;
}

static interval compare(int32_t op, interval x, interval y, int32_t type) {
  const ends e = compare_ends(x, y, type);
  const int nan = type == TSR_EXPR_F32 && (x.nan || y.nan);
  const int equal = e.not_above && e.not_below;
  int can_be;
  switch (op) {
  case TSR_EXPR_OP_LT: can_be = (e.below ? CAN_BE_TRUE : 0) | (e.not_below ? CAN_BE_FALSE : 0); break;
  case TSR_EXPR_OP_LE: can_be = (e.not_above ? CAN_BE_TRUE : 0) | (e.above ? CAN_BE_FALSE : 0); break;
  case TSR_EXPR_OP_GT: can_be = (e.above ? CAN_BE_TRUE : 0) | (e.not_above ? CAN_BE_FALSE : 0); break;
  case TSR_EXPR_OP_GE: can_be = (e.not_below ? CAN_BE_TRUE : 0) | (e.below ? CAN_BE_FALSE : 0); break;
  case TSR_EXPR_OP_EQ: can_be = (equal ? CAN_BE_TRUE : 0) | (e.same ? 0 : CAN_BE_FALSE); break;
  default: /* NE, the one that NaN makes true */
    can_be = (equal ? CAN_BE_FALSE : 0) | (e.same ? 0 : CAN_BE_TRUE) | (nan ? CAN_BE_TRUE : 0);
    return from_truth(can_be);
  }
  return from_truth(can_be | (nan ? CAN_BE_FALSE : 0));
}

/* Both logic operators, given as `or`. */
static interval logic(int is_or, int x, int y) {
  const int decides = is_or ? CAN_BE_TRUE : CAN_BE_FALSE;
  const int other = CAN_BE_TRUE + CAN_BE_FALSE - decides;
  return from_truth(((x | y) & decides) | (x & y & other));
}

/* ---- Integers ------------------------------------------------------------------------------------ */

static interval hull_i64(interval x, interval y) {
  return span_i64(x.lo < y.lo ? x.lo : y.lo, x.hi > y.hi ? x.hi : y.hi);
}

static interval corners_i64(const int64_t c[4]) {
  return hull_i64(hull_i64(span_i64(c[0], c[0]), span_i64(c[1], c[1])),
                  hull_i64(span_i64(c[2], c[2]), span_i64(c[3], c[3])));
}

static interval mul_i64(interval x, interval y) {
  int64_t c[4];
  if (__builtin_mul_overflow(x.lo, y.lo, &c[0]) || __builtin_mul_overflow(x.lo, y.hi, &c[1]) ||
      __builtin_mul_overflow(x.hi, y.lo, &c[2]) || __builtin_mul_overflow(x.hi, y.hi, &c[3])) {
    return any_i64();
  }
  return corners_i64(c);
}

/* y is all below or all above 0, where the quotient is monotone in each operand. */
static interval div_one_sign(interval x, interval y) {
  if (x.lo == INT64_MIN && y.lo <= -1 && y.hi >= -1) {
    return any_i64();
  }
  const int64_t c[4] = {tsr__expr_int_div(x.lo, y.lo), tsr__expr_int_div(x.lo, y.hi), tsr__expr_int_div(x.hi, y.lo),
                        tsr__expr_int_div(x.hi, y.hi)};
  return corners_i64(c);
}

static interval div_i64(interval x, interval y) {
  interval below, above, zero = span_i64(0, 0);
  if (y.lo > 0 || y.hi < 0) {
    return div_one_sign(x, y);
  }
  below = y.lo < 0 ? div_one_sign(x, span_i64(y.lo, -1)) : zero;
  above = y.hi > 0 ? div_one_sign(x, span_i64(1, y.hi)) : zero;
  return hull_i64(zero, hull_i64(below, above));
}

static interval mod_i64(interval x, interval y) {
  if (y.lo == y.hi && y.lo != 0 && y.lo != -1 && tsr__expr_int_div(x.lo, y.lo) == tsr__expr_int_div(x.hi, y.lo)) {
    return span_i64(tsr__expr_int_mod(x.lo, y.lo), tsr__expr_int_mod(x.hi, y.lo)); /* one period */
  }
  if (y.lo > 0 && x.lo >= 0 && x.hi < y.lo) {
    return x;
  }
  return span_i64(y.lo < 0 ? y.lo + 1 : 0, y.hi > 0 ? y.hi - 1 : 0);
}

static interval arithmetic_i64(int32_t op, interval x, interval y) {
  interval r;
  switch (op) {
  case TSR_EXPR_OP_ADD:
    return __builtin_add_overflow(x.lo, y.lo, &r.lo) || __builtin_add_overflow(x.hi, y.hi, &r.hi)
               ? any_i64()
               : span_i64(r.lo, r.hi);
  case TSR_EXPR_OP_SUB:
    return __builtin_sub_overflow(x.lo, y.hi, &r.lo) || __builtin_sub_overflow(x.hi, y.lo, &r.hi)
               ? any_i64()
               : span_i64(r.lo, r.hi);
  case TSR_EXPR_OP_MUL: return mul_i64(x, y);
  case TSR_EXPR_OP_DIV: return div_i64(x, y);
  case TSR_EXPR_OP_MOD: return mod_i64(x, y);
  case TSR_EXPR_OP_MIN: return span_i64(x.lo < y.lo ? x.lo : y.lo, x.hi < y.hi ? x.hi : y.hi);
  default: /* MAX */ return span_i64(x.lo > y.lo ? x.lo : y.lo, x.hi > y.hi ? x.hi : y.hi);
  }
}

static interval unary_i64(int32_t op, interval x) {
  if (op == TSR_EXPR_OP_ABS && x.lo >= 0) {
    return x;
  }
  if (x.lo == INT64_MIN) {
    return any_i64(); /* its negation wraps */
  }
  if (op == TSR_EXPR_OP_ABS && x.hi > 0) {
    return span_i64(0, -x.lo > x.hi ? -x.lo : x.hi);
  }
  return span_i64(-x.hi, -x.lo);
}

/* ---- f32 ----------------------------------------------------------------------------------------- */

static interval add_f32(interval x, interval y) {
  const int nan =
      x.nan || y.nan || (x.flo == -INFINITY && y.fhi == INFINITY) || (x.fhi == INFINITY && y.flo == -INFINITY);
  return span_f32(x.flo + y.flo, x.fhi + y.fhi, nan);
}

static interval negative_f32(interval x) {
  return span_f32(-x.fhi, -x.flo, x.nan);
}

static interval corners_f32(const float c[4], int nan) {
  float lo = c[0], hi = c[0];
  for (int k = 0; k < 4; ++k) {
    if (c[k] != c[k]) {
      return any_f32();
    }
    lo = c[k] < lo ? c[k] : lo;
    hi = c[k] > hi ? c[k] : hi;
  }
  return span_f32(lo, hi, nan);
}

static interval mul_f32(interval x, interval y) {
  const int nan = x.nan || y.nan || (has_zero(x) && has_infinity(y)) || (has_infinity(x) && has_zero(y));
  const float c[4] = {x.flo * y.flo, x.flo * y.fhi, x.fhi * y.flo, x.fhi * y.fhi};
  return corners_f32(c, nan);
}

static interval div_f32(interval x, interval y) {
  if (has_zero(y) || (has_infinity(x) && has_infinity(y))) {
    return any_f32();
  }
  const float c[4] = {x.flo / y.flo, x.flo / y.fhi, x.fhi / y.flo, x.fhi / y.fhi};
  return widened(corners_f32(c, x.nan || y.nan), DIVISION_ULPS);
}

/* For x > 0 the exponent y log(x) is monotone in each operand. */
static interval pow_f32(interval x, interval y) {
  if (!(x.flo > 0)) {
    return any_f32();
  }
  const float c[4] = {(float)pow(x.flo, y.flo), (float)pow(x.flo, y.fhi), (float)pow(x.fhi, y.flo),
                      (float)pow(x.fhi, y.fhi)};
  interval r = widened(corners_f32(c, x.nan || y.nan), FUNCTION_ULPS);
  r.flo = r.flo < 0 ? 0 : r.flo;
  return r;
}

static interval arithmetic_f32(int32_t op, interval x, interval y) {
  const int nan = x.nan || y.nan;
  switch (op) {
  case TSR_EXPR_OP_ADD: return add_f32(x, y);
  case TSR_EXPR_OP_SUB: return add_f32(x, negative_f32(y));
  case TSR_EXPR_OP_MUL: return mul_f32(x, y);
  case TSR_EXPR_OP_DIV: return div_f32(x, y);
  case TSR_EXPR_OP_MIN: return span_f32(x.flo < y.flo ? x.flo : y.flo, x.fhi < y.fhi ? x.fhi : y.fhi, nan);
  case TSR_EXPR_OP_MAX: return span_f32(x.flo > y.flo ? x.flo : y.flo, x.fhi > y.fhi ? x.fhi : y.fhi, nan);
  default: /* POW */ return pow_f32(x, y);
  }
}

/* A function that never falls, exact in double at the ends. */
static interval rising(double (*f)(double), interval x) {
  return widened(span_f32((float)f(x.flo), (float)f(x.fhi), x.nan), FUNCTION_ULPS);
}

/* A rising function that is defined from 0 on. */
static interval rising_from_zero(double (*f)(double), interval x) {
  if (x.fhi < 0) {
    return any_f32();
  }
  return rising(f, span_f32(x.flo < 0 ? 0 : x.flo, x.fhi, x.nan || x.flo < 0));
}

static interval at_least_zero(interval x) {
  return span_f32(x.flo < 0 ? 0 : x.flo, x.fhi, x.nan);
}

static interval unary_f32(int32_t op, interval x) {
  switch (op) {
  case TSR_EXPR_OP_NEG: return negative_f32(x);
  case TSR_EXPR_OP_ABS:
    if (has_zero(x)) {
      return span_f32(0, -x.flo > x.fhi ? -x.flo : x.fhi, x.nan);
    }
    return x.flo > 0 ? x : negative_f32(x);
  case TSR_EXPR_OP_FLOOR: return span_f32(floorf(x.flo), floorf(x.fhi), x.nan);
  case TSR_EXPR_OP_EXP: return at_least_zero(rising(exp, x));
  case TSR_EXPR_OP_EXP2: return at_least_zero(rising(exp2, x));
  case TSR_EXPR_OP_LOG: return rising_from_zero(log, x);
  case TSR_EXPR_OP_LOG2: return rising_from_zero(log2, x);
  case TSR_EXPR_OP_SQRT: return at_least_zero(rising_from_zero(sqrt, x));
  case TSR_EXPR_OP_TANH: return rising(tanh, x);
  default: /* SIN, COS */ return widened(span_f32(-1, 1, x.nan || has_infinity(x)), FUNCTION_ULPS);
  }
}

/* ---- The walk ------------------------------------------------------------------------------------ */

static interval leaf(const tsr_expr_node *node, const tsr_expr_env *env, const tsr_expr_range *range) {
  switch (node->op) {
  case TSR_EXPR_OP_CONST:
    return node->type == TSR_EXPR_F32 ? span_f32(node->value.f, node->value.f, 0)
                                      : span_i64(node->value.i, node->value.i);
  case TSR_EXPR_OP_VAR: return span_i64(range[node->index].lo, range[node->index].hi);
  case TSR_EXPR_OP_SCALAR: return span_f32(env->scalar[node->index], env->scalar[node->index], 0);
  case TSR_EXPR_OP_AUX: return node->type == TSR_EXPR_F32 ? any_f32() : span_i64(INT32_MIN, INT32_MAX);
  default: /* SCORE */ return any_f32();
  }
}

static interval convert(int32_t op, interval x) {
  if (op == TSR_EXPR_OP_TO_F32) {
    return span_f32((float)x.lo, (float)x.hi, 0);
  }
  const interval r = span_i64(tsr__expr_int_from_f32(x.flo), tsr__expr_int_from_f32(x.fhi));
  return x.nan ? hull_i64(r, span_i64(0, 0)) : r;
}

static interval choose(int condition, int32_t type, interval x, interval y) {
  if (condition != (CAN_BE_TRUE | CAN_BE_FALSE)) {
    return condition == CAN_BE_TRUE ? x : y;
  }
  if (type == TSR_EXPR_F32) {
    return span_f32(x.flo < y.flo ? x.flo : y.flo, x.fhi > y.fhi ? x.fhi : y.fhi, x.nan || y.nan);
  }
  return hull_i64(x, y);
}

static interval operation(const tsr_expr_node *node, int32_t tx, int32_t ty, interval x, interval y, interval z) {
  switch (node->op) {
  case TSR_EXPR_OP_NOT: return from_truth(negated(truth(x, tx)));
  case TSR_EXPR_OP_AND: return logic(0, truth(x, tx), truth(y, ty));
  case TSR_EXPR_OP_OR: return logic(1, truth(x, tx), truth(y, ty));
  case TSR_EXPR_OP_COND: return choose(truth(x, tx), node->type, y, z);
  case TSR_EXPR_OP_TO_F32:
  case TSR_EXPR_OP_TO_I64: return convert(node->op, x);
  default: break;
  }
  if (node->op >= TSR_EXPR_OP_LT && node->op <= TSR_EXPR_OP_NE) {
    return compare(node->op, x, y, tx);
  }
  if (node->n_args == 2) {
    return tx == TSR_EXPR_F32 ? arithmetic_f32(node->op, x, y) : arithmetic_i64(node->op, x, y);
  }
  return tx == TSR_EXPR_F32 ? unary_f32(node->op, x) : unary_i64(node->op, x);
}

int32_t tsr__expr_classify(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_range *range) {
  interval slots[TSR_EXPR_MAX_SLOTS];
  const tsr_expr_node *node = NULL;
  if (expr->kind != TSR_EXPR_KIND_MASK) {
    return TSR_TILE_PARTIAL;
  }
  for (int32_t k = 0; k < expr->n_nodes; ++k) {
    node = &expr->node[k];
    if (node->n_args == 0 || node->op == TSR_EXPR_OP_AUX) {
      slots[node->slot] = leaf(node, env, range);
      continue;
    }
    const tsr_expr_node *x = &expr->node[node->arg[0]];
    const tsr_expr_node *y = &expr->node[node->arg[node->n_args > 1 ? 1 : 0]];
    const tsr_expr_node *z = &expr->node[node->arg[node->n_args > 2 ? 2 : 0]];
    slots[node->slot] = operation(node, x->type, y->type, slots[x->slot], slots[y->slot], slots[z->slot]);
  }
  const int can_be = truth(slots[node->slot], node->type);
  return can_be == CAN_BE_TRUE ? TSR_TILE_FULL : can_be == CAN_BE_FALSE ? TSR_TILE_SKIP : TSR_TILE_PARTIAL;
}
