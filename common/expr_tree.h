/* SPDX-License-Identifier: Apache-2.0 */
/* How a tsr_expr is made: shared by the parser and the derivative, of no use to others. */
#ifndef TSR_COMMON_EXPR_TREE_H
#define TSR_COMMON_EXPR_TREE_H

#include "common/expr.h"

/* How tightly a node's canonical text binds; a child that binds looser than its place needs parentheses. */
enum {
  TSR_EXPR_BIND_COND = 0,
  TSR_EXPR_BIND_OR,
  TSR_EXPR_BIND_AND,
  TSR_EXPR_BIND_REL,
  TSR_EXPR_BIND_ADD,
  TSR_EXPR_BIND_MUL,
  TSR_EXPR_BIND_UNARY,
  TSR_EXPR_BIND_PRIMARY
};

/* One row for each TSR_EXPR_OP_x. */
typedef struct tsr_expr_op_info {
  const char *name; /* operator sign or function name; NULL for leaves */
  int32_t bind;     /* TSR_EXPR_BIND_x; PRIMARY for leaves and functions */
  int32_t n_args;   /* -1: any (AUX) */
} tsr_expr_op_info;

extern const tsr_expr_op_info tsr__expr_op_table[TSR_EXPR_OP_COUNT];

/* Names of the variables, by TSR_EXPR_VAR_x. */
extern const char *const tsr__expr_var_name[TSR_EXPR_VAR_COUNT];

/* Does child, as operand `place` of op, stand in parentheses in the canonical text? */
int tsr__expr_needs_parens(int32_t op, int place, const tsr_expr_node *child);

/* A node under construction, with what the limits and the evaluation order need to know of its tree. */
typedef struct tsr_expr_entry {
  tsr_expr_node node;
  int32_t size;  /* nodes of the tree, shared ones counted as often as they are used; saturates */
  int32_t depth; /* levels of nesting of the canonical text */
  int32_t need;  /* temporaries to evaluate it as a tree */
  int32_t next;  /* next entry of its bucket, -1: none */
} tsr_expr_entry;

#define TSR_EXPR_BUCKETS 64

/* Nodes by index; an equal node is never added twice. Index -1 stands for "no memory left" and is handed
 * through by every function below, so that callers test it once. */
typedef struct tsr_expr_builder {
  const tsr__alloc *alloc;
  tsr_expr_entry *entry;
  int32_t n;
  int32_t capacity;
  int32_t bucket[TSR_EXPR_BUCKETS];
} tsr_expr_builder;

void tsr__expr_builder_init(tsr_expr_builder *b, const tsr__alloc *alloc);
void tsr__expr_builder_free(tsr_expr_builder *b);

int32_t tsr__expr_add_i64(tsr_expr_builder *b, int64_t value);
int32_t tsr__expr_add_f32(tsr_expr_builder *b, float value);
/* n_args operands by index. The sign and the conversion to f32 of a constant are folded into it, so that a
 * tree has no NEG or TO_F32 of a constant and -2 is one node. */
int32_t tsr__expr_add(tsr_expr_builder *b, int32_t op, int32_t type, int32_t index, int32_t n_args, const int32_t *arg);
int32_t tsr__expr_add_unary(tsr_expr_builder *b, int32_t op, int32_t type, int32_t x);
int32_t tsr__expr_add_binary(tsr_expr_builder *b, int32_t op, int32_t type, int32_t x, int32_t y);
/* x as F32. */
int32_t tsr__expr_add_to_f32(tsr_expr_builder *b, int32_t x);

/* Makes the tree of `root` with everything but nodes and what follows from them copied from head; kind
 * overrides. The tree has at most TSR_EXPR_MAX_DERIVATIVE_NODES nodes (size). TSR_OUT_OF_MEMORY or TSR_OK. */
tsr_status tsr__expr_finish(tsr_expr_builder *b, int32_t root, const tsr_expr *head, int32_t kind, tsr_expr **out);

#endif
