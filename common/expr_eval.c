/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation of up to 64 lanes, node by node: the dispatch is paid once a node, and each operation is a loop
 * that compilers turn into vector code. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/expr.h"
#include "common/expr_int.h"

typedef union slot {
  int64_t i[TSR_EXPR_MAX_LANES];
  float f[TSR_EXPR_MAX_LANES];
} slot;

/* ---- Operations. d is never one of the operands (tsr_expr_node.slot), but x may be y. ------------- */

static void eval_arithmetic_f32(int32_t op, float *restrict d, const float *x, const float *y, int n) {
  switch (op) {
  case TSR_EXPR_OP_ADD:
    for (int k = 0; k < n; ++k) {
      d[k] = x[k] + y[k];
    }
    break;
  case TSR_EXPR_OP_SUB:
    for (int k = 0; k < n; ++k) {
      d[k] = x[k] - y[k];
    }
    break;
  case TSR_EXPR_OP_MUL:
    for (int k = 0; k < n; ++k) {
      d[k] = x[k] * y[k];
    }
    break;
  case TSR_EXPR_OP_DIV:
    for (int k = 0; k < n; ++k) {
      d[k] = x[k] / y[k];
    }
    break;
  case TSR_EXPR_OP_MIN:
    for (int k = 0; k < n; ++k) {
      d[k] = y[k] < x[k] || y[k] != y[k] ? y[k] : x[k];
    }
    break;
  case TSR_EXPR_OP_MAX:
    for (int k = 0; k < n; ++k) {
      d[k] = y[k] > x[k] || y[k] != y[k] ? y[k] : x[k];
    }
    break;
  default: /* POW */
    for (int k = 0; k < n; ++k) {
      d[k] = powf(x[k], y[k]);
    }
    break;
  }
}

static void eval_arithmetic_i64(int32_t op, int64_t *restrict d, const int64_t *x, const int64_t *y, int n) {
  switch (op) {
  case TSR_EXPR_OP_ADD:
    for (int k = 0; k < n; ++k) {
      d[k] = (int64_t)((uint64_t)x[k] + (uint64_t)y[k]);
    }
    break;
  case TSR_EXPR_OP_SUB:
    for (int k = 0; k < n; ++k) {
      d[k] = (int64_t)((uint64_t)x[k] - (uint64_t)y[k]);
    }
    break;
  case TSR_EXPR_OP_MUL:
    for (int k = 0; k < n; ++k) {
      d[k] = (int64_t)((uint64_t)x[k] * (uint64_t)y[k]);
    }
    break;
  case TSR_EXPR_OP_DIV:
    for (int k = 0; k < n; ++k) {
      d[k] = tsr__expr_int_div(x[k], y[k]);
    }
    break;
  case TSR_EXPR_OP_MOD:
    for (int k = 0; k < n; ++k) {
      d[k] = tsr__expr_int_mod(x[k], y[k]);
    }
    break;
  case TSR_EXPR_OP_MIN:
    for (int k = 0; k < n; ++k) {
      d[k] = y[k] < x[k] ? y[k] : x[k];
    }
    break;
  default: /* MAX */
    for (int k = 0; k < n; ++k) {
      d[k] = y[k] > x[k] ? y[k] : x[k];
    }
    break;
  }
}

/* The body of a comparison, for either type. */
#define COMPARE(op, sign)         \
  case op:                        \
    for (int k = 0; k < n; ++k) { \
      d[k] = x[k] sign y[k];      \
    }                             \
    break;
#define COMPARE_ALL           \
  COMPARE(TSR_EXPR_OP_LT, <)  \
  COMPARE(TSR_EXPR_OP_LE, <=) \
  COMPARE(TSR_EXPR_OP_GT, >)  \
  COMPARE(TSR_EXPR_OP_GE, >=) \
  COMPARE(TSR_EXPR_OP_EQ, ==) \
  COMPARE(TSR_EXPR_OP_NE, !=)

static void eval_compare_f32(int32_t op, int64_t *restrict d, const float *x, const float *y, int n) {
  switch (op) { COMPARE_ALL }
}

static void eval_compare_i64(int32_t op, int64_t *restrict d, const int64_t *x, const int64_t *y, int n) {
  switch (op) { COMPARE_ALL }
}

/* d[k] = 1 where x is not zero, else 0. */
static void eval_truth(int32_t type, int64_t *restrict d, const slot *x, int n) {
  if (type == TSR_EXPR_F32) {
    for (int k = 0; k < n; ++k) {
      d[k] = x->f[k] != 0;
    }
  } else {
    for (int k = 0; k < n; ++k) {
      d[k] = x->i[k] != 0;
    }
  }
}

/* A function of the C library on every lane. */
static void eval_call(float (*f)(float), float *restrict d, const float *x, int n) {
  for (int k = 0; k < n; ++k) {
    d[k] = f(x[k]);
  }
}

static void eval_unary_f32(int32_t op, float *restrict d, const float *x, int n) {
  switch (op) {
  case TSR_EXPR_OP_NEG:
    for (int k = 0; k < n; ++k) {
      d[k] = -x[k];
    }
    break;
  case TSR_EXPR_OP_ABS:
    for (int k = 0; k < n; ++k) {
      d[k] = fabsf(x[k]);
    }
    break;
  case TSR_EXPR_OP_FLOOR: eval_call(floorf, d, x, n); break;
  case TSR_EXPR_OP_EXP: eval_call(expf, d, x, n); break;
  case TSR_EXPR_OP_EXP2: eval_call(exp2f, d, x, n); break;
  case TSR_EXPR_OP_LOG: eval_call(logf, d, x, n); break;
  case TSR_EXPR_OP_LOG2: eval_call(log2f, d, x, n); break;
  case TSR_EXPR_OP_SQRT: eval_call(sqrtf, d, x, n); break;
  case TSR_EXPR_OP_TANH: eval_call(tanhf, d, x, n); break;
  case TSR_EXPR_OP_SIN: eval_call(sinf, d, x, n); break;
  default: /* COS */ eval_call(cosf, d, x, n); break;
  }
}

static void eval_unary_i64(int32_t op, int64_t *restrict d, const int64_t *x, int n) {
  const int always = op == TSR_EXPR_OP_NEG; /* else ABS */
  for (int k = 0; k < n; ++k) {
    d[k] = always || x[k] < 0 ? tsr__expr_int_neg(x[k]) : x[k];
  }
}

static void eval_convert(int32_t op, slot *restrict d, const slot *x, int n) {
  if (op == TSR_EXPR_OP_TO_F32) {
    for (int k = 0; k < n; ++k) {
      d->f[k] = (float)x->i[k];
    }
  } else {
    for (int k = 0; k < n; ++k) {
      d->i[k] = tsr__expr_int_from_f32(x->f[k]);
    }
  }
}

static void eval_cond(const int64_t *condition, int32_t type, slot *restrict d, const slot *x, const slot *y, int n) {
  if (type == TSR_EXPR_F32) {
    for (int k = 0; k < n; ++k) {
      d->f[k] = condition[k] ? x->f[k] : y->f[k];
    }
  } else {
    for (int k = 0; k < n; ++k) {
      d->i[k] = condition[k] ? x->i[k] : y->i[k];
    }
  }
}

/* ---- Leaves -------------------------------------------------------------------------------------- */

static void eval_aux(const tsr_expr_node *node, const tsr_expr_aux *aux, const slot *slots, const tsr_expr *expr,
                     slot *restrict d, int n) {
  const slot *index[TSR_EXPR_MAX_AUX_RANK] = {NULL};
  for (int a = 0; a < node->n_args; ++a) {
    index[a] = &slots[expr->node[node->arg[a]].slot];
  }
  for (int k = 0; k < n; ++k) {
    int64_t offset = 0;
    int inside = 1;
    for (int a = 0; a < node->n_args && inside; ++a) {
      const int64_t at = index[a]->i[k];
      inside = at >= 0 && at < aux->shape[a];
      offset += inside ? at * aux->stride[a] : 0;
    }
    if (node->type == TSR_EXPR_F32) {
      d->f[k] = inside ? ((const float *)aux->data)[offset] : 0;
    } else {
      d->i[k] = inside ? ((const int32_t *)aux->data)[offset] : 0;
    }
  }
}

static void fill_f32(float *d, float value, int n) {
  for (int k = 0; k < n; ++k) {
    d[k] = value;
  }
}

static void fill_i64(int64_t *d, int64_t value, int n) {
  for (int k = 0; k < n; ++k) {
    d[k] = value;
  }
}

static void eval_leaf(const tsr_expr_node *node, const tsr_expr_env *env, const tsr_expr_lanes *lanes, slot *d, int n) {
  switch (node->op) {
  case TSR_EXPR_OP_CONST:
    if (node->type == TSR_EXPR_F32) {
      fill_f32(d->f, node->value.f, n);
    } else {
      fill_i64(d->i, node->value.i, n);
    }
    break;
  case TSR_EXPR_OP_VAR:
    if (lanes->lane[node->index] != NULL) {
      memcpy(d->i, lanes->lane[node->index], (size_t)n * sizeof(d->i[0]));
    } else {
      fill_i64(d->i, lanes->uniform[node->index], n);
    }
    break;
  case TSR_EXPR_OP_SCORE: memcpy(d->f, lanes->score, (size_t)n * sizeof(d->f[0])); break;
  default: /* SCALAR */ fill_f32(d->f, env->scalar[node->index], n); break;
  }
}

/* ---- The walk ------------------------------------------------------------------------------------ */

/* Operands x, y, z of types tx, ty. */
static void eval_operation(const tsr_expr_node *node, int32_t tx, int32_t ty, slot *restrict d, const slot *x,
                           const slot *y, const slot *z, int n) {
  int64_t truth[TSR_EXPR_MAX_LANES];
  switch (node->op) {
  case TSR_EXPR_OP_NOT:
    eval_truth(tx, d->i, x, n);
    for (int k = 0; k < n; ++k) {
      d->i[k] ^= 1;
    }
    break;
  case TSR_EXPR_OP_AND:
    eval_truth(tx, d->i, x, n);
    eval_truth(ty, truth, y, n);
    for (int k = 0; k < n; ++k) {
      d->i[k] &= truth[k];
    }
    break;
  case TSR_EXPR_OP_OR:
    eval_truth(tx, d->i, x, n);
    eval_truth(ty, truth, y, n);
    for (int k = 0; k < n; ++k) {
      d->i[k] |= truth[k];
    }
    break;
  case TSR_EXPR_OP_COND:
    eval_truth(tx, truth, x, n);
    eval_cond(truth, node->type, d, y, z, n);
    break;
  case TSR_EXPR_OP_TO_F32:
  case TSR_EXPR_OP_TO_I64: eval_convert(node->op, d, x, n); break;
  default:
    if (node->op >= TSR_EXPR_OP_LT && node->op <= TSR_EXPR_OP_NE) {
      if (tx == TSR_EXPR_F32) {
        eval_compare_f32(node->op, d->i, x->f, y->f, n);
      } else {
        eval_compare_i64(node->op, d->i, x->i, y->i, n);
      }
    } else if (node->n_args == 2 && tx == TSR_EXPR_F32) {
      eval_arithmetic_f32(node->op, d->f, x->f, y->f, n);
    } else if (node->n_args == 2) {
      eval_arithmetic_i64(node->op, d->i, x->i, y->i, n);
    } else if (tx == TSR_EXPR_F32) {
      eval_unary_f32(node->op, d->f, x->f, n);
    } else {
      eval_unary_i64(node->op, d->i, x->i, n);
    }
    break;
  }
}

/* Fills slots and returns the one of the result. */
static const slot *evaluate(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_lanes *lanes, int n,
                            slot *slots) {
  assert(n >= 0 && n <= TSR_EXPR_MAX_LANES);
  for (int32_t k = 0; k < expr->n_nodes; ++k) {
    const tsr_expr_node *node = &expr->node[k];
    slot *d = &slots[node->slot];
    if (node->op == TSR_EXPR_OP_AUX) {
      eval_aux(node, &env->aux[node->index], slots, expr, d, n);
    } else if (node->n_args == 0) {
      eval_leaf(node, env, lanes, d, n);
    } else {
      const tsr_expr_node *x = &expr->node[node->arg[0]];
      const tsr_expr_node *y = &expr->node[node->arg[node->n_args > 1 ? 1 : 0]];
      const tsr_expr_node *z = &expr->node[node->arg[node->n_args > 2 ? 2 : 0]];
      eval_operation(node, x->type, y->type, d, &slots[x->slot], &slots[y->slot], &slots[z->slot], n);
    }
  }
  return &slots[expr->node[expr->n_nodes - 1].slot];
}

void tsr__expr_eval(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_lanes *lanes, int n, float *out) {
  slot slots[TSR_EXPR_MAX_SLOTS];
  const slot *result = evaluate(expr, env, lanes, n, slots);
  memcpy(out, result->f, (size_t)n * sizeof(out[0]));
}

void tsr__expr_eval_mask(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_lanes *lanes, int n,
                         uint8_t *allow) {
  slot slots[TSR_EXPR_MAX_SLOTS];
  const slot *result = evaluate(expr, env, lanes, n, slots);
  if (expr->node[expr->n_nodes - 1].type == TSR_EXPR_F32) {
    for (int k = 0; k < n; ++k) {
      allow[k] = result->f[k] != 0;
    }
  } else {
    for (int k = 0; k < n; ++k) {
      allow[k] = result->i[k] != 0;
    }
  }
}
