/* SPDX-License-Identifier: Apache-2.0 */
#include "common/expr_tree.h"

#include <math.h>
#include <string.h>

#include "common/expr_int.h"

const tsr_expr_op_info tsr__expr_op_table[TSR_EXPR_OP_COUNT] = {
    [TSR_EXPR_OP_CONST] = {NULL, TSR_EXPR_BIND_PRIMARY, 0},
    [TSR_EXPR_OP_VAR] = {NULL, TSR_EXPR_BIND_PRIMARY, 0},
    [TSR_EXPR_OP_SCORE] = {NULL, TSR_EXPR_BIND_PRIMARY, 0},
    [TSR_EXPR_OP_SCALAR] = {NULL, TSR_EXPR_BIND_PRIMARY, 0},
    [TSR_EXPR_OP_AUX] = {NULL, TSR_EXPR_BIND_PRIMARY, -1},
    [TSR_EXPR_OP_NEG] = {"-", TSR_EXPR_BIND_UNARY, 1},
    [TSR_EXPR_OP_NOT] = {"!", TSR_EXPR_BIND_UNARY, 1},
    [TSR_EXPR_OP_ADD] = {"+", TSR_EXPR_BIND_ADD, 2},
    [TSR_EXPR_OP_SUB] = {"-", TSR_EXPR_BIND_ADD, 2},
    [TSR_EXPR_OP_MUL] = {"*", TSR_EXPR_BIND_MUL, 2},
    [TSR_EXPR_OP_DIV] = {"/", TSR_EXPR_BIND_MUL, 2},
    [TSR_EXPR_OP_MOD] = {"%", TSR_EXPR_BIND_MUL, 2},
    [TSR_EXPR_OP_LT] = {"<", TSR_EXPR_BIND_REL, 2},
    [TSR_EXPR_OP_LE] = {"<=", TSR_EXPR_BIND_REL, 2},
    [TSR_EXPR_OP_GT] = {">", TSR_EXPR_BIND_REL, 2},
    [TSR_EXPR_OP_GE] = {">=", TSR_EXPR_BIND_REL, 2},
    [TSR_EXPR_OP_EQ] = {"==", TSR_EXPR_BIND_REL, 2},
    [TSR_EXPR_OP_NE] = {"!=", TSR_EXPR_BIND_REL, 2},
    [TSR_EXPR_OP_AND] = {"&&", TSR_EXPR_BIND_AND, 2},
    [TSR_EXPR_OP_OR] = {"||", TSR_EXPR_BIND_OR, 2},
    [TSR_EXPR_OP_COND] = {"?", TSR_EXPR_BIND_COND, 3},
    [TSR_EXPR_OP_TO_F32] = {"float", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_TO_I64] = {"int", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_EXP] = {"exp", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_EXP2] = {"exp2", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_LOG] = {"log", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_LOG2] = {"log2", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_SQRT] = {"sqrt", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_TANH] = {"tanh", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_SIN] = {"sin", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_COS] = {"cos", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_FLOOR] = {"floor", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_ABS] = {"abs", TSR_EXPR_BIND_PRIMARY, 1},
    [TSR_EXPR_OP_POW] = {"pow", TSR_EXPR_BIND_PRIMARY, 2},
    [TSR_EXPR_OP_MIN] = {"min", TSR_EXPR_BIND_PRIMARY, 2},
    [TSR_EXPR_OP_MAX] = {"max", TSR_EXPR_BIND_PRIMARY, 2},
};

const char *const tsr__expr_var_name[TSR_EXPR_VAR_COUNT] = {"b", "h", "hkv", "i", "j", "q_len", "kv_len", "off"};

static int is_negative_const(const tsr_expr_node *node) {
  return node->op == TSR_EXPR_OP_CONST &&
         (node->type == TSR_EXPR_F32 ? signbit(node->value.f) != 0 : node->value.i < 0);
}

int tsr__expr_needs_parens(int32_t op, int place, const tsr_expr_node *child) {
  const int32_t bind = tsr__expr_op_table[op].bind;
  const int32_t child_bind = is_negative_const(child) ? TSR_EXPR_BIND_UNARY : tsr__expr_op_table[child->op].bind;
  switch (bind) {
  case TSR_EXPR_BIND_PRIMARY: return 0; /* arguments are enclosed already */
  case TSR_EXPR_BIND_COND: return place == 0 && child_bind == TSR_EXPR_BIND_COND;
  case TSR_EXPR_BIND_UNARY: return child_bind < bind;
  case TSR_EXPR_BIND_REL: return child_bind <= bind;                   /* comparisons do not chain */
  default: return place == 0 ? child_bind < bind : child_bind <= bind; /* from left to right */
  }
}

/* Levels that the parser goes down from op to its operand `place`, without parentheses. */
static int32_t levels_down(int32_t op, int place) {
  const int32_t bind = tsr__expr_op_table[op].bind;
  return bind == TSR_EXPR_BIND_PRIMARY || bind == TSR_EXPR_BIND_UNARY || (bind == TSR_EXPR_BIND_COND && place > 0);
}

/* ---- Builder --------------------------------------------------------------------------------- */

void tsr__expr_builder_init(tsr_expr_builder *b, const tsr__alloc *alloc) {
  memset(b, 0, sizeof(*b));
  b->alloc = alloc;
  for (int k = 0; k < TSR_EXPR_BUCKETS; ++k) {
    b->bucket[k] = -1;
  }
}

void tsr__expr_builder_free(tsr_expr_builder *b) {
  tsr__alloc_free(b->alloc, b->entry);
  memset(b, 0, sizeof(*b));
}

static uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ (hash >> 32);
}

static uint64_t node_value_bits(const tsr_expr_node *node) {
  uint32_t bits;
  if (node->type == TSR_EXPR_I64) {
    return (uint64_t)node->value.i;
  }
  memcpy(&bits, &node->value.f, sizeof(bits));
  return bits;
}

static uint64_t node_hash(uint64_t hash, const tsr_expr_node *node) {
  hash = mix(hash, (uint64_t)node->op | (uint64_t)node->type << 8 | (uint64_t)node->n_args << 16 |
                       (uint64_t)node->index << 32);
  for (int k = 0; k < node->n_args; ++k) {
    hash = mix(hash, (uint64_t)node->arg[k]);
  }
  return node->op == TSR_EXPR_OP_CONST ? mix(hash, node_value_bits(node)) : hash;
}

/* Unused operands and the value of what is no constant are 0, so all of both can be compared. */
static int node_equal(const tsr_expr_node *x, const tsr_expr_node *y) {
  return x->op == y->op && x->type == y->type && x->index == y->index && x->n_args == y->n_args &&
         memcmp(x->arg, y->arg, sizeof(x->arg)) == 0 && node_value_bits(x) == node_value_bits(y);
}

static int builder_grow(tsr_expr_builder *b) {
  const int32_t capacity = b->capacity == 0 ? 32 : 2 * b->capacity;
  tsr_expr_entry *entry = tsr__alloc_zero(b->alloc, (size_t)capacity * sizeof(*entry));
  if (entry == NULL) {
    return 0;
  }
  if (b->n > 0) {
    memcpy(entry, b->entry, (size_t)b->n * sizeof(*entry));
  }
  tsr__alloc_free(b->alloc, b->entry);
  b->entry = entry;
  b->capacity = capacity;
  return 1;
}

/* Order in which operands are evaluated: the one that needs most temporaries first, which keeps the number
 * that a tree of n nodes needs near the logarithm of n. */
static void operand_order(const tsr_expr_entry *entry, const tsr_expr_node *node, int order[4]) {
  for (int k = 0; k < node->n_args; ++k) {
    int at = k;
    while (at > 0 && entry[node->arg[order[at - 1]]].need < entry[node->arg[k]].need) {
      order[at] = order[at - 1];
      --at;
    }
    order[at] = k;
  }
}

static void measure(const tsr_expr_builder *b, tsr_expr_entry *e) {
  const int32_t saturated = INT32_MAX / 8;
  int order[4];
  operand_order(b->entry, &e->node, order);
  e->size = 1;
  e->depth = is_negative_const(&e->node);
  e->need = e->node.n_args + 1; /* the result is apart from the operands */
  for (int k = 0; k < e->node.n_args; ++k) {
    const tsr_expr_entry *child = &b->entry[e->node.arg[k]];
    const int32_t need = b->entry[e->node.arg[order[k]]].need + k;
    const int32_t depth =
        child->depth + levels_down(e->node.op, k) + tsr__expr_needs_parens(e->node.op, k, &child->node);
    e->need = need > e->need ? need : e->need;
    e->depth = depth > e->depth ? depth : e->depth;
    e->size = e->size + child->size < saturated ? e->size + child->size : saturated;
  }
}

static int32_t builder_insert(tsr_expr_builder *b, const tsr_expr_node *node) {
  int32_t *bucket = &b->bucket[node_hash(0, node) % TSR_EXPR_BUCKETS];
  for (int32_t k = *bucket; k >= 0; k = b->entry[k].next) {
    if (node_equal(&b->entry[k].node, node)) {
      return k;
    }
  }
  if (b->n == b->capacity && !builder_grow(b)) {
    return -1;
  }
  tsr_expr_entry *e = &b->entry[b->n];
  e->node = *node;
  e->next = *bucket;
  measure(b, e);
  *bucket = b->n;
  return b->n++;
}

int32_t tsr__expr_add_i64(tsr_expr_builder *b, int64_t value) {
  tsr_expr_node node = {.op = TSR_EXPR_OP_CONST, .type = TSR_EXPR_I64};
  node.value.i = value;
  return builder_insert(b, &node);
}

int32_t tsr__expr_add_f32(tsr_expr_builder *b, float value) {
  tsr_expr_node node = {.op = TSR_EXPR_OP_CONST, .type = TSR_EXPR_F32};
  node.value.i = 0;
  node.value.f = value;
  return builder_insert(b, &node);
}

int32_t tsr__expr_add(tsr_expr_builder *b, int32_t op, int32_t type, int32_t index, int32_t n_args,
                      const int32_t *arg) {
  tsr_expr_node node = {.op = op, .type = type, .index = index, .n_args = n_args};
  for (int k = 0; k < n_args; ++k) {
    if (arg[k] < 0) {
      return -1;
    }
    node.arg[k] = arg[k];
  }
  if (op == TSR_EXPR_OP_NEG || op == TSR_EXPR_OP_TO_F32) {
    const tsr_expr_node *x = &b->entry[arg[0]].node;
    if (x->op == TSR_EXPR_OP_CONST && op == TSR_EXPR_OP_TO_F32) {
      return tsr__expr_add_f32(b, (float)x->value.i);
    }
    if (x->op == TSR_EXPR_OP_CONST) {
      return x->type == TSR_EXPR_F32 ? tsr__expr_add_f32(b, -x->value.f)
                                     : tsr__expr_add_i64(b, tsr__expr_int_neg(x->value.i));
    }
  }
  return builder_insert(b, &node);
}

int32_t tsr__expr_add_unary(tsr_expr_builder *b, int32_t op, int32_t type, int32_t x) {
  return tsr__expr_add(b, op, type, 0, 1, &x);
}

int32_t tsr__expr_add_binary(tsr_expr_builder *b, int32_t op, int32_t type, int32_t x, int32_t y) {
  const int32_t arg[2] = {x, y};
  return tsr__expr_add(b, op, type, 0, 2, arg);
}

int32_t tsr__expr_add_to_f32(tsr_expr_builder *b, int32_t x) {
  if (x < 0 || b->entry[x].node.type == TSR_EXPR_F32) {
    return x;
  }
  return tsr__expr_add_unary(b, TSR_EXPR_OP_TO_F32, TSR_EXPR_F32, x);
}

/* ---- Finishing ------------------------------------------------------------------------------- */

/* A node on the way from the root to the one that is being put in order. */
typedef struct tsr_expr_frame {
  int32_t node;
  int32_t done;   /* operands in place */
  int32_t arg[4]; /* their new indices */
} tsr_expr_frame;

/* Writes the nodes below root to out, operands first. `map` (b->n times -1): shared nodes are written once;
 * NULL: as often as they are used. frame has room for b->n. Returns their number. */
static int32_t put_in_order(const tsr_expr_builder *b, int32_t root, int32_t *map, tsr_expr_frame *frame,
                            tsr_expr_node *out) {
  int32_t n = 0, top = 0, result = -1; /* result: new index of the operand just finished */
  frame[0] = (tsr_expr_frame){.node = root};
  while (top >= 0) {
    tsr_expr_frame *f = &frame[top];
    const tsr_expr_node *node = &b->entry[f->node].node;
    int order[4];
    operand_order(b->entry, node, order);
    if (result >= 0) {
      f->arg[order[f->done++]] = result;
      result = -1;
    }
    if (f->done < node->n_args) {
      const int32_t child = node->arg[order[f->done]];
      if (map != NULL && map[child] >= 0) {
        result = map[child];
      } else {
        frame[++top] = (tsr_expr_frame){.node = child};
      }
      continue;
    }
    out[n] = *node;
    memcpy(out[n].arg, f->arg, sizeof(out[n].arg));
    if (map != NULL) {
      map[f->node] = n;
    }
    result = n++;
    --top;
  }
  return n;
}

/* Gives each node a slot that no value still to be read occupies. last has room for n. Returns the number
 * of slots, 0 if that would be above TSR_EXPR_MAX_SLOTS. */
static int32_t assign_slots(tsr_expr_node *node, int32_t n, int32_t *last) {
  uint64_t taken = 0;
  int32_t n_slots = 0;
  for (int32_t k = 0; k < n; ++k) {
    for (int a = 0; a < node[k].n_args; ++a) {
      last[node[k].arg[a]] = k;
    }
  }
  for (int32_t k = 0; k < n; ++k) {
    int32_t slot = 0;
    while (taken >> slot & 1) {
      ++slot;
    }
    if (slot >= TSR_EXPR_MAX_SLOTS) {
      return 0;
    }
    n_slots = slot + 1 > n_slots ? slot + 1 : n_slots;
    taken |= UINT64_C(1) << slot;
    node[k].slot = slot;
    for (int a = 0; a < node[k].n_args; ++a) {
      if (last[node[k].arg[a]] == k) {
        taken &= ~(UINT64_C(1) << node[node[k].arg[a]].slot);
      }
    }
  }
  return n_slots;
}

static tsr_expr *seal(const tsr__alloc *alloc, const tsr_expr *head, int32_t kind, const tsr_expr_node *node, int32_t n,
                      int32_t n_slots) {
  tsr_expr *expr = tsr__alloc_zero(alloc, offsetof(tsr_expr, node) + (size_t)n * sizeof(*node));
  if (expr == NULL) {
    return NULL;
  }
  memcpy(expr->aux, head->aux, sizeof(expr->aux));
  memcpy(expr->scalar_name, head->scalar_name, sizeof(expr->scalar_name));
  memcpy(expr->node, node, (size_t)n * sizeof(*node));
  expr->kind = kind;
  expr->n_nodes = n;
  expr->n_slots = n_slots;
  expr->n_scalars = head->n_scalars;
  expr->n_aux = head->n_aux;
  for (int32_t k = 0; k < n; ++k) {
    const uint32_t bit = UINT32_C(1) << node[k].index;
    expr->vars_used |= node[k].op == TSR_EXPR_OP_VAR ? bit : 0;
    expr->scalars_used |= node[k].op == TSR_EXPR_OP_SCALAR ? bit : 0;
    expr->aux_used |= node[k].op == TSR_EXPR_OP_AUX ? bit : 0;
    expr->uses_score |= node[k].op == TSR_EXPR_OP_SCORE;
  }
  return expr;
}

/* With shared nodes kept single or, where keeping their values takes too many slots, written out: a tree of
 * TSR_EXPR_MAX_DERIVATIVE_NODES nodes never needs more than 20. */
static tsr_status finish(tsr_expr_builder *b, int32_t root, int share, const tsr_expr *head, int32_t kind,
                         tsr_expr **out) {
  const size_t room = (size_t)(share ? b->n : b->entry[root].size);
  tsr_expr_node *node = tsr__alloc_zero(b->alloc, room * sizeof(*node));
  tsr_expr_frame *frame = tsr__alloc_zero(b->alloc, (size_t)b->n * sizeof(*frame));
  int32_t *map = tsr__alloc_zero(b->alloc, (size_t)b->n * sizeof(*map));
  int32_t *last = tsr__alloc_zero(b->alloc, room * sizeof(*last));
  tsr_status status = TSR_OUT_OF_MEMORY;
  if (node != NULL && frame != NULL && map != NULL && last != NULL) {
    for (int32_t k = 0; k < b->n; ++k) {
      map[k] = -1;
    }
    const int32_t n = put_in_order(b, root, share ? map : NULL, frame, node);
    const int32_t n_slots = assign_slots(node, n, last);
    status = TSR_OK;
    if (n_slots > 0) {
      *out = seal(b->alloc, head, kind, node, n, n_slots);
      status = *out != NULL ? TSR_OK : TSR_OUT_OF_MEMORY;
    }
  }
  tsr__alloc_free(b->alloc, last);
  tsr__alloc_free(b->alloc, map);
  tsr__alloc_free(b->alloc, frame);
  tsr__alloc_free(b->alloc, node);
  return status;
}

tsr_status tsr__expr_finish(tsr_expr_builder *b, int32_t root, const tsr_expr *head, int32_t kind, tsr_expr **out) {
  *out = NULL;
  tsr_status status = finish(b, root, 1, head, kind, out);
  if (status == TSR_OK && *out == NULL) {
    status = finish(b, root, 0, head, kind, out);
  }
  return status;
}

/* ---- Whole trees ----------------------------------------------------------------------------- */

void tsr__expr_destroy(const tsr__alloc *alloc, tsr_expr *expr) {
  tsr__alloc_free(alloc, expr);
}

uint64_t tsr__expr_hash(const tsr_expr *expr) {
  uint64_t hash = mix((uint64_t)expr->kind, (uint64_t)expr->n_nodes);
  for (int32_t k = 0; k < expr->n_nodes; ++k) {
    hash = node_hash(hash, &expr->node[k]);
  }
  return hash;
}

int tsr__expr_equal(const tsr_expr *a, const tsr_expr *b) {
  if (a->kind != b->kind || a->n_nodes != b->n_nodes) {
    return 0;
  }
  for (int32_t k = 0; k < a->n_nodes; ++k) {
    if (!node_equal(&a->node[k], &b->node[k])) {
      return 0;
    }
  }
  return 1;
}
