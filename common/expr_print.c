/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/expr_tree.h"
#include "common/status.h"

typedef struct writer {
  char *text; /* NULL: only count */
  size_t bytes;
} writer;

typedef struct frame {
  int32_t node;
  int32_t done;   /* operands written */
  int32_t parens; /* 1: stands in parentheses */
} frame;

static void put(writer *w, const char *text) {
  const size_t n = strlen(text);
  if (w->text != NULL) {
    memcpy(w->text + w->bytes, text, n);
  }
  w->bytes += n;
}

static void put_const(writer *w, const tsr_expr_node *node) {
  char text[TSR_EXPR_NUMBER_BYTES + 4];
  if (node->type == TSR_EXPR_I64) {
    snprintf(text, sizeof(text), "%lld", (long long)node->value.i);
    put(w, text);
    return;
  }
  if (signbit(node->value.f)) {
    put(w, "-");
  }
  if (isinf(node->value.f)) {
    put(w, "inf");
    return;
  }
  tsr__expr_number_print(fabsf(node->value.f), text);
  put(w, text);
}

static void put_leaf(writer *w, const tsr_expr *expr, const tsr_expr_node *node) {
  switch (node->op) {
  case TSR_EXPR_OP_CONST: put_const(w, node); break;
  case TSR_EXPR_OP_VAR: put(w, tsr__expr_var_name[node->index]); break;
  case TSR_EXPR_OP_SCALAR: put(w, expr->scalar_name[node->index]); break;
  default: put(w, "score"); break;
  }
}

/* What stands before operand `place`, or after the last one. */
static void put_around(writer *w, const tsr_expr_node *node, int32_t place) {
  const tsr_expr_op_info *op = &tsr__expr_op_table[node->op];
  const int first = place == 0, last = place == node->n_args;
  if (node->op == TSR_EXPR_OP_AUX) {
    const char name[] = {'a', 'u', 'x', (char)('0' + node->index), '[', '\0'};
    put(w, first ? name : last ? "]" : ", ");
  } else if (op->bind == TSR_EXPR_BIND_PRIMARY) {
    put(w, first ? op->name : last ? ")" : ", ");
    put(w, first ? "(" : "");
  } else if (op->bind == TSR_EXPR_BIND_UNARY) {
    put(w, first ? op->name : "");
  } else if (!first && !last) {
    put(w, " ");
    put(w, node->op == TSR_EXPR_OP_COND && place == 2 ? ":" : op->name);
    put(w, " ");
  }
}

/* Without recursion: a chain such as a + b + c + ... is as deep as it is long. */
static void write_tree(writer *w, const tsr_expr *expr, frame *frames) {
  int32_t top = 0;
  frames[0] = (frame){expr->n_nodes - 1, 0, 0};
  while (top >= 0) {
    frame *f = &frames[top];
    const tsr_expr_node *node = &expr->node[f->node];
    if (node->n_args == 0) {
      put_leaf(w, expr, node);
    } else {
      put_around(w, node, f->done);
    }
    if (f->done < node->n_args) {
      const int32_t child = node->arg[f->done];
      const int parens = tsr__expr_needs_parens(node->op, f->done, &expr->node[child]);
      put(w, parens ? "(" : "");
      ++f->done;
      frames[++top] = (frame){child, 0, parens};
    } else {
      put(w, f->parens ? ")" : "");
      --top;
    }
  }
}

tsr_status tsr__expr_print(const tsr__alloc *alloc, const tsr_expr *expr, char **out, tsr_error *err) {
  writer w = {NULL, 0};
  frame *frames = tsr__alloc_zero(alloc, (size_t)expr->n_nodes * sizeof(*frames));
  *out = NULL;
  if (frames != NULL) {
    write_tree(&w, expr, frames);
    *out = tsr__alloc_zero(alloc, w.bytes + 1);
  }
  if (*out != NULL) {
    w = (writer){*out, 0};
    write_tree(&w, expr, frames);
  }
  tsr__alloc_free(alloc, frames);
  return *out != NULL ? tsr__ok(err) : tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for the expression's text");
}
