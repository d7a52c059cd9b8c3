/* SPDX-License-Identifier: Apache-2.0 */
/* One statement a node, in evaluation order, so that depth costs the compiler nothing. Both branches of ?: are
 * computed: values are pure, and what would trap is defined by common/device/expr.h. */
#include "common/expr_emit.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/status.h"

typedef struct writer {
  char *text; /* NULL: only count */
  size_t room;
  size_t bytes;
} writer;

static void put(writer *w, const char *fmt, ...) TSR__PRINTF(2, 3);
static void put(writer *w, const char *fmt, ...) {
  va_list ap;
  int n;
  va_start(ap, fmt);
  n = vsnprintf(w->text != NULL ? w->text + w->bytes : NULL, w->text != NULL ? w->room - w->bytes : 0, fmt, ap);
  va_end(ap);
  w->bytes += (size_t)n;
}

/* How an operation of one or two operands is written; %1 and %2 stand for them. */
static const char *form_f32(int32_t op) {
  switch (op) {
  case TSR_EXPR_OP_NEG: return "-%1";
  case TSR_EXPR_OP_ADD: return "tsr_f32_add(%1, %2)";
  case TSR_EXPR_OP_SUB: return "tsr_f32_sub(%1, %2)";
  case TSR_EXPR_OP_MUL: return "tsr_f32_mul(%1, %2)";
  case TSR_EXPR_OP_DIV: return "tsr_f32_div(%1, %2)";
  case TSR_EXPR_OP_MIN: return "tsr_expr_min(%1, %2)";
  case TSR_EXPR_OP_MAX: return "tsr_expr_max(%1, %2)";
  case TSR_EXPR_OP_EXP: return "tsr_exp(%1)";
  case TSR_EXPR_OP_EXP2: return "tsr_exp2(%1)";
  case TSR_EXPR_OP_LOG: return "tsr_log(%1)";
  case TSR_EXPR_OP_LOG2: return "tsr_log2(%1)";
  case TSR_EXPR_OP_SQRT: return "tsr_sqrt(%1)";
  case TSR_EXPR_OP_TANH: return "tsr_tanh(%1)";
  case TSR_EXPR_OP_SIN: return "tsr_sin(%1)";
  case TSR_EXPR_OP_COS: return "tsr_cos(%1)";
  case TSR_EXPR_OP_FLOOR: return "tsr_floor(%1)";
  case TSR_EXPR_OP_ABS: return "tsr_abs(%1)";
  case TSR_EXPR_OP_TO_I64: return "tsr_expr_int(%1)";
  default: return "tsr_pow(%1, %2)";
  }
}

static const char *form_i64(int32_t op) {
  switch (op) {
  case TSR_EXPR_OP_NEG: return "tsr_expr_sub(0, %1)";
  case TSR_EXPR_OP_ADD: return "tsr_expr_add(%1, %2)";
  case TSR_EXPR_OP_SUB: return "tsr_expr_sub(%1, %2)";
  case TSR_EXPR_OP_MUL: return "tsr_expr_mul(%1, %2)";
  case TSR_EXPR_OP_DIV: return "tsr_expr_div(%1, %2)";
  case TSR_EXPR_OP_MOD: return "tsr_expr_mod(%1, %2)";
  case TSR_EXPR_OP_MIN: return "%2 < %1 ? %2 : %1";
  case TSR_EXPR_OP_MAX: return "%2 > %1 ? %2 : %1";
  case TSR_EXPR_OP_ABS: return "%1 < 0 ? tsr_expr_sub(0, %1) : %1";
  default: return "(float)%1"; /* TO_F32 */
  }
}

/* Written the same for either type. */
static const char *form_any(int32_t op) {
  switch (op) {
  case TSR_EXPR_OP_NOT: return "%1 == 0";
  case TSR_EXPR_OP_LT: return "%1 < %2";
  case TSR_EXPR_OP_LE: return "%1 <= %2";
  case TSR_EXPR_OP_GT: return "%1 > %2";
  case TSR_EXPR_OP_GE: return "%1 >= %2";
  case TSR_EXPR_OP_EQ: return "%1 == %2";
  case TSR_EXPR_OP_NE: return "%1 != %2";
  case TSR_EXPR_OP_AND: return "%1 != 0 && %2 != 0";
  case TSR_EXPR_OP_OR: return "%1 != 0 || %2 != 0";
  case TSR_EXPR_OP_COND: return "%1 != 0 ? %2 : %3";
  default: return NULL;
  }
}

static void put_form(writer *w, const char *form, const tsr_expr_node *node) {
  for (const char *c = form; *c != '\0'; c++) {
    if (*c == '%') {
      c++;
      put(w, "v%d", (int)node->arg[*c - '1']);
    } else {
      put(w, "%c", *c);
    }
  }
}

static void put_const(writer *w, const tsr_expr_node *node) {
  uint32_t bits;
  if (node->type == TSR_EXPR_F32) {
    memcpy(&bits, &node->value.f, sizeof(bits));
    put(w, "tsr_as_f32(0x%08" PRIx32 "u)", bits);
  } else {
    put(w, "(tsr_i64)0x%" PRIx64, (uint64_t)node->value.i);
  }
}

static void put_aux(writer *w, const tsr_expr_node *node) {
  put(w, "tsr_expr_aux_%s(x, p, %d, %d", node->type == TSR_EXPR_F32 ? "f32" : "i32", (int)node->index,
      (int)node->n_args);
  for (int a = 0; a < TSR_EXPR_MAX_AUX_RANK; a++) {
    if (a < node->n_args) {
      put(w, ", v%d", (int)node->arg[a]);
    } else {
      put(w, ", 0");
    }
  }
  put(w, ")");
}

static void put_value(writer *w, const tsr_expr *expr, const tsr_expr_node *node) {
  static const char *const vars[TSR_EXPR_VAR_COUNT] = {"b", "h", "hkv", "i", "j", "q_len", "kv_len", "off"};
  const char *form;
  switch (node->op) {
  case TSR_EXPR_OP_CONST: put_const(w, node); break;
  case TSR_EXPR_OP_VAR: put(w, "%s", vars[node->index]); break;
  case TSR_EXPR_OP_SCORE: put(w, "score"); break;
  case TSR_EXPR_OP_SCALAR: put(w, "x->scalar[%d]", (int)node->index); break;
  case TSR_EXPR_OP_AUX: put_aux(w, node); break;
  default:
    form = form_any(node->op);
    if (form == NULL) {
      form = expr->node[node->arg[0]].type == TSR_EXPR_F32 ? form_f32(node->op) : form_i64(node->op);
    }
    put_form(w, form, node);
    break;
  }
}

static void put_function(writer *w, const tsr_expr *expr) {
  const int mask = expr->kind == TSR_EXPR_KIND_MASK;
  const int last = (int)expr->n_nodes - 1;
  put(w,
      "TSR_FN %s(const tsr_expr_args *x, const tsr_expr_ptrs *p, %stsr_i64 b, tsr_i32 h, tsr_i32 hkv, tsr_i64 i, "
      "tsr_i64 j, tsr_i64 q_len, tsr_i64 kv_len, tsr_i64 off) {\n",
      mask                                ? "int tsr_expr_mask"
      : expr->kind == TSR_EXPR_KIND_SCORE ? "float tsr_expr_score"
                                          : "float tsr_expr_grad",
      mask ? "" : "float score, ");
  /* CUDA's own compiler knows neither; tsr_f32_add and its kin are intrinsics there. */
  put(w, "#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)\n#pragma OPENCL FP_CONTRACT OFF\n"
         "#elif defined(__clang__)\n#pragma clang fp contract(off)\n#endif\n");
  for (int k = 0; k <= last; k++) {
    put(w, "  const %s v%d = ", expr->node[k].type == TSR_EXPR_F32 ? "float" : "tsr_i64", k);
    put_value(w, expr, &expr->node[k]);
    put(w, ";\n");
  }
  put(w, "  (void)x, (void)p, %s(void)b, (void)h, (void)hkv, (void)i, (void)j, (void)q_len, (void)kv_len, (void)off;\n",
      mask ? "" : "(void)score, ");
  put(w, mask ? "  return v%d != 0;\n}\n" : "  return v%d;\n}\n", last);
}

tsr_status tsr__expr_emit(const tsr__alloc *alloc, const tsr_expr *expr, char **out, tsr_error *err) {
  writer w = {NULL, 0, 0};
  *out = NULL;
  put_function(&w, expr);
  w.room = w.bytes + 1;
  w.text = tsr__alloc_zero(alloc, w.room);
  if (w.text == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for %zu bytes of an expression's text", w.room);
  }
  w.bytes = 0;
  put_function(&w, expr);
  *out = w.text;
  return TSR_OK;
}
