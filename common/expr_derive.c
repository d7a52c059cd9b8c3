/* SPDX-License-Identifier: Apache-2.0 */
/* The derivative by `score`, formed forwards: nodes stand before their users, so one pass gives the
 * derivative of each from those of its operands. Shared nodes keep it linear in the size of the tree. */
#include <math.h>

#include "common/expr_tree.h"
#include "common/status.h"

/* A derivative that is zero whatever the values, so that factors and terms vanish with it. */
#define ZERO (-2)

typedef struct deriver {
  tsr_expr_builder b;
  const tsr_expr *expr;
  int32_t *value; /* by node of expr: the same node in b */
  int32_t *slope; /* by node of expr: its derivative in b, or ZERO; -1 without memory */
} deriver;

/* ---- Arithmetic that drops ZERO and factors of one --------------------------------------------- */

static int32_t number(deriver *d, float f) {
  return tsr__expr_add_f32(&d->b, f);
}

static const tsr_expr_node *node_of(const deriver *d, int32_t x) {
  return &d->b.entry[x].node;
}

static int is_const(const deriver *d, int32_t x, float f) {
  return x >= 0 && node_of(d, x)->op == TSR_EXPR_OP_CONST && node_of(d, x)->value.f == f;
}

static int32_t binary(deriver *d, int32_t op, int32_t x, int32_t y) {
  return tsr__expr_add_binary(&d->b, op, TSR_EXPR_F32, x, y);
}

static int32_t negative(deriver *d, int32_t x) {
  if (x < 0) {
    return x;
  }
  return node_of(d, x)->op == TSR_EXPR_OP_NEG ? node_of(d, x)->arg[0]
                                              : tsr__expr_add_unary(&d->b, TSR_EXPR_OP_NEG, TSR_EXPR_F32, x);
}

static int32_t product(deriver *d, int32_t x, int32_t y) {
  if (x == ZERO || y == ZERO) {
    return ZERO;
  }
  if (is_const(d, x, 1)) {
    return y;
  }
  return is_const(d, y, 1) ? x : binary(d, TSR_EXPR_OP_MUL, x, y);
}

static int32_t quotient(deriver *d, int32_t x, int32_t y) {
  return x == ZERO || is_const(d, y, 1) ? x : binary(d, TSR_EXPR_OP_DIV, x, y);
}

static int32_t sum(deriver *d, int32_t x, int32_t y) {
  if (x == ZERO || y == ZERO) {
    return x == ZERO ? y : x;
  }
  return binary(d, TSR_EXPR_OP_ADD, x, y);
}

static int32_t difference(deriver *d, int32_t x, int32_t y) {
  if (x == ZERO || y == ZERO) {
    return x == ZERO ? negative(d, y) : x;
  }
  return x == y ? ZERO : binary(d, TSR_EXPR_OP_SUB, x, y);
}

static int32_t call(deriver *d, int32_t op, int32_t x) {
  return tsr__expr_add_unary(&d->b, op, TSR_EXPR_F32, x);
}

static int32_t compare(deriver *d, int32_t op, int32_t x, int32_t y) {
  return tsr__expr_add_binary(&d->b, op, TSR_EXPR_I64, x, y);
}

/* ZERO where both branches are. */
static int32_t choose(deriver *d, int32_t condition, int32_t x, int32_t y) {
  if (x == y) {
    return x; /* ZERO, or the same node */
  }
  const int32_t arg[3] = {condition, x == ZERO ? number(d, 0) : x, y == ZERO ? number(d, 0) : y};
  return tsr__expr_add(&d->b, TSR_EXPR_OP_COND, TSR_EXPR_F32, 0, 3, arg);
}

/* ---- Rules ------------------------------------------------------------------------------------- */

/* d pow(x, y) = y pow(x, y - 1) dx + pow(x, y) log(x) dy. The guards are the limits: pow(x, 0) is 1
 * everywhere, and pow(0, y) is 0 for all y > 0. Below x = 0 only whole y have a value, so dy has no meaning (NaN). */
static int32_t slope_pow(deriver *d, int32_t self, int32_t x, int32_t y, int32_t dx, int32_t dy) {
  int32_t by_x = ZERO, by_y = ZERO;
  if (dx != ZERO && node_of(d, y)->op == TSR_EXPR_OP_CONST) {
    const float power = node_of(d, y)->value.f;
    const int32_t rest = power == 2 ? x : binary(d, TSR_EXPR_OP_POW, x, number(d, power - 1));
    by_x = power == 0 ? ZERO : power == 1 ? dx : product(d, product(d, y, rest), dx);
  } else if (dx != ZERO) {
    const int32_t less = binary(d, TSR_EXPR_OP_SUB, y, number(d, 1));
    const int32_t slope = product(d, y, binary(d, TSR_EXPR_OP_POW, x, less));
    const int32_t zero = compare(d, TSR_EXPR_OP_EQ, y, number(d, 0));
    by_x = product(d, choose(d, zero, ZERO, slope), dx);
  }
  if (dy != ZERO) {
    const int32_t slope = product(d, self, call(d, TSR_EXPR_OP_LOG, x));
    const int32_t at_zero = compare(d, TSR_EXPR_OP_EQ, x, number(d, 0));
    const int32_t positive = compare(d, TSR_EXPR_OP_GE, y, number(d, 0));
    const int32_t flat = tsr__expr_add_binary(&d->b, TSR_EXPR_OP_AND, TSR_EXPR_I64, at_zero, positive);
    by_y = product(d, choose(d, flat, ZERO, slope), dy);
  }
  return sum(d, by_x, by_y);
}

/* Slope of a function of one argument at x, its value being self. */
static int32_t slope_function(deriver *d, int32_t op, int32_t self, int32_t x) {
  switch (op) {
  case TSR_EXPR_OP_EXP: return self;
  case TSR_EXPR_OP_EXP2: return product(d, self, number(d, 0.693147181f));
  case TSR_EXPR_OP_LOG: return quotient(d, number(d, 1), x);
  case TSR_EXPR_OP_LOG2: return quotient(d, number(d, 1.44269504f), x);
  case TSR_EXPR_OP_SQRT: return quotient(d, number(d, 0.5f), self);
  case TSR_EXPR_OP_TANH: return difference(d, number(d, 1), product(d, self, self));
  case TSR_EXPR_OP_SIN: return call(d, TSR_EXPR_OP_COS, x);
  case TSR_EXPR_OP_COS: return negative(d, call(d, TSR_EXPR_OP_SIN, x));
  default: { /* ABS: -1, 0, 1 */
    const int32_t above = compare(d, TSR_EXPR_OP_GT, x, number(d, 0));
    const int32_t below = compare(d, TSR_EXPR_OP_LT, x, number(d, 0));
    return tsr__expr_add_to_f32(&d->b, tsr__expr_add_binary(&d->b, TSR_EXPR_OP_SUB, TSR_EXPR_I64, above, below));
  }
  }
}

/* Derivative of an F32 node with operands; self is the node, x, y, z its operands, dx, dy, dz theirs. */
static int32_t slope_of(deriver *d, const tsr_expr_node *node, int32_t self) {
  const int32_t x = d->value[node->arg[0]], dx = d->slope[node->arg[0]];
  const int32_t y = d->value[node->arg[1]], dy = d->slope[node->arg[1]];
  switch (node->op) {
  case TSR_EXPR_OP_NEG: return negative(d, dx);
  case TSR_EXPR_OP_ADD: return sum(d, dx, dy);
  case TSR_EXPR_OP_SUB: return difference(d, dx, dy);
  case TSR_EXPR_OP_MUL: return sum(d, product(d, dx, y), product(d, x, dy));
  case TSR_EXPR_OP_DIV: return quotient(d, difference(d, dx, product(d, self, dy)), y);
  case TSR_EXPR_OP_POW: return dx == ZERO && dy == ZERO ? ZERO : slope_pow(d, self, x, y, dx, dy);
  case TSR_EXPR_OP_MIN: /* the first operand at ties, as in the value */
    return choose(d, compare(d, TSR_EXPR_OP_LT, y, x), dy, dx);
  case TSR_EXPR_OP_MAX: return choose(d, compare(d, TSR_EXPR_OP_GT, y, x), dy, dx);
  case TSR_EXPR_OP_COND: return choose(d, x, dy, d->slope[node->arg[2]]);
  default: return dx == ZERO ? ZERO : product(d, slope_function(d, node->op, self, x), dx);
  }
}

static int32_t slope_of_node(deriver *d, const tsr_expr_node *node, int32_t self) {
  switch (node->op) {
  case TSR_EXPR_OP_SCORE: return number(d, 1);
  case TSR_EXPR_OP_CONST:
  case TSR_EXPR_OP_VAR:
  case TSR_EXPR_OP_SCALAR:
  case TSR_EXPR_OP_AUX:
  case TSR_EXPR_OP_TO_F32:
  case TSR_EXPR_OP_FLOOR: return ZERO;
  default: return node->type == TSR_EXPR_I64 ? ZERO : slope_of(d, node, self);
  }
}

/* The same node in the builder. */
static int32_t copy_node(deriver *d, const tsr_expr_node *node) {
  int32_t arg[4] = {0};
  for (int k = 0; k < node->n_args; ++k) {
    arg[k] = d->value[node->arg[k]];
  }
  if (node->op == TSR_EXPR_OP_CONST) {
    return node->type == TSR_EXPR_F32 ? tsr__expr_add_f32(&d->b, node->value.f)
                                      : tsr__expr_add_i64(&d->b, node->value.i);
  }
  return tsr__expr_add(&d->b, node->op, node->type, node->index, node->n_args, arg);
}

static tsr_status derive(deriver *d, const char *field, tsr_expr **out, tsr_error *err) {
  const tsr_expr *expr = d->expr;
  int32_t root = -1;
  for (int32_t k = 0; d->value != NULL && d->slope != NULL && k < expr->n_nodes; ++k) {
    d->value[k] = copy_node(d, &expr->node[k]);
    root = d->value[k] < 0 ? -1 : slope_of_node(d, &expr->node[k], d->value[k]);
    if (root == -1) {
      break;
    }
    d->slope[k] = root;
  }
  root = root == ZERO ? number(d, 0) : root;
  if (root >= 0) {
    const tsr_expr_entry *e = &d->b.entry[root];
    if (e->size > TSR_EXPR_MAX_DERIVATIVE_NODES || e->depth > TSR_EXPR_MAX_DERIVATIVE_DEPTH) {
      return tsr__fail(err, TSR_UNSUPPORTED, field,
                       "the derivative by score has %d nodes, %d levels deep; %d and %d are supported", (int)e->size,
                       (int)e->depth, TSR_EXPR_MAX_DERIVATIVE_NODES, TSR_EXPR_MAX_DERIVATIVE_DEPTH);
    }
    if (tsr__expr_finish(&d->b, root, expr, TSR_EXPR_KIND_DERIVATIVE, out) == TSR_OK) {
      return tsr__ok(err);
    }
  }
  return tsr__fail(err, TSR_OUT_OF_MEMORY, field, "no memory for the derivative");
}

tsr_status tsr__expr_derive(const tsr__alloc *alloc, const tsr_expr *expr, const char *field, tsr_expr **out,
                            tsr_error *err) {
  deriver d = {.expr = expr};
  *out = NULL;
  if (expr->kind != TSR_EXPR_KIND_SCORE) {
    return tsr__fail(err, TSR_INVALID, field, "only a score expression has a derivative");
  }
  tsr__expr_builder_init(&d.b, alloc);
  d.value = tsr__alloc_zero(alloc, (size_t)expr->n_nodes * sizeof(*d.value));
  d.slope = tsr__alloc_zero(alloc, (size_t)expr->n_nodes * sizeof(*d.slope));
  const tsr_status status = derive(&d, field, out, err);
  tsr__alloc_free(alloc, d.slope);
  tsr__alloc_free(alloc, d.value);
  tsr__expr_builder_free(&d.b);
  return status;
}
