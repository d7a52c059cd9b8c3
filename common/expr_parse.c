/* SPDX-License-Identifier: Apache-2.0 */
/* From text to tree: a lexer and a parser by recursive descent, whose recursion the limit on nesting bounds. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/expr_tree.h"
#include "common/status.h"

enum { TOKEN_END, TOKEN_I64, TOKEN_F32, TOKEN_NAME, TOKEN_SIGN };

typedef struct token {
  int32_t kind;
  size_t at; /* offset of its first byte */
  size_t bytes;
  int64_t i64;
  float f32;
} token;

typedef struct parser {
  tsr_expr_builder b;
  const char *text;
  token token;    /* the one to be looked at; a failure is not read past */
  tsr_expr *head; /* what was declared; no nodes */
  int32_t kind;
  int32_t depth;
  int32_t max_nodes, max_depth;
  const char *field;
  tsr_error *err;
  tsr_status status;
} parser;

/* Reports the first error; -1 so that callers can return it as "no node". */
static int32_t fail(parser *p, size_t at, const char *fmt, ...) TSR__PRINTF(3, 4);

static int32_t fail(parser *p, size_t at, const char *fmt, ...) {
  char why[160];
  va_list ap;
  if (p->status == TSR_OK) {
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    p->status = tsr__fail(p->err, TSR_INVALID, p->field, "column %zu: %s", at + 1, why);
  }
  return -1;
}

/* Passes a new node on if there was memory for it and its tree keeps the limits. */
static int32_t made(parser *p, size_t at, int32_t node) {
  if (node < 0) {
    if (p->status == TSR_OK) {
      p->status = tsr__fail(p->err, TSR_OUT_OF_MEMORY, p->field, "no memory for the expression");
    }
    return -1;
  }
  if (p->b.entry[node].size > p->max_nodes) {
    return fail(p, at, "the expression has more than %d nodes", (int)p->max_nodes);
  }
  if (p->b.entry[node].depth > p->max_depth) {
    return fail(p, at, "nested deeper than %d levels", (int)p->max_depth);
  }
  return node;
}

/* ---- Lexer ----------------------------------------------------------------------------------- */

/* The classes of ctype.h depend on the locale. */
static int is_digit(char c) {
  return c >= '0' && c <= '9';
}

static int is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static size_t name_bytes(const char *text) {
  size_t n = 0;
  while (is_letter(text[n]) || (n > 0 && is_digit(text[n]))) {
    ++n;
  }
  return n;
}

static int lex_number(parser *p, token *t) {
  const char *s = p->text + t->at;
  size_t n = 0;
  t->kind = TOKEN_I64;
  for (; is_digit(s[n]) || (s[n] == '.' && t->kind == TOKEN_I64); ++n) {
    t->kind = s[n] == '.' ? TOKEN_F32 : t->kind;
  }
  if (s[n] == 'e' || s[n] == 'E') {
    const size_t sign = s[n + 1] == '-' || s[n + 1] == '+';
    if (!is_digit(s[n + 1 + sign])) {
      return fail(p, t->at + n, "the exponent has no digits");
    }
    t->kind = TOKEN_F32;
    for (n += 1 + sign; is_digit(s[n]); ++n) {
    }
  }
  if (is_letter(s[n]) || s[n] == '.') {
    return fail(p, t->at + n, "'%c' cannot follow a number", s[n]);
  }
  t->bytes = n;
  if (t->kind == TOKEN_F32) {
    t->f32 = tsr__expr_number_parse(s, n);
    return isinf(t->f32) ? fail(p, t->at, "the number is outside the range of f32") : 0;
  }
  t->i64 = 0;
  for (size_t k = 0; k < n; ++k) {
    const int64_t digit = s[k] - '0';
    if (t->i64 > (INT64_MAX - digit) / 10) {
      return fail(p, t->at, "the integer is above 2^63 - 1");
    }
    t->i64 = 10 * t->i64 + digit;
  }
  return 0;
}

static int lex_sign(parser *p, token *t) {
  static const char *const two[] = {"||", "&&", "<=", ">=", "==", "!="};
  const char *s = p->text + t->at;
  for (size_t k = 0; k < sizeof(two) / sizeof(two[0]); ++k) {
    if (s[0] == two[k][0] && s[1] == two[k][1]) {
      t->bytes = 2;
      return 0;
    }
  }
  if (strchr("+-*/%<>!?:()[],", s[0]) != NULL) {
    t->bytes = 1;
    return 0;
  }
  if (s[0] == '=' || s[0] == '&' || s[0] == '|') {
    return fail(p, t->at, "'%c' is not an operator; '%c%c' is", s[0], s[0], s[0]);
  }
  if (s[0] > ' ' && s[0] < 0x7f) {
    return fail(p, t->at, "'%c' has no meaning here", s[0]);
  }
  return fail(p, t->at, "byte 0x%02x is not allowed", (unsigned)(unsigned char)s[0]);
}

/* Reads the next token into p->token. 0, or -1 after an error. */
static int next(parser *p) {
  token t = {.at = p->token.at + p->token.bytes};
  while (strchr(" \t\r\n", p->text[t.at]) != NULL && p->text[t.at] != '\0') {
    ++t.at;
  }
  const char c = p->text[t.at];
  int result = 0;
  if (c == '\0') {
    t.kind = TOKEN_END;
  } else if (is_digit(c) || (c == '.' && is_digit(p->text[t.at + 1]))) {
    result = lex_number(p, &t);
  } else if (is_letter(c)) {
    t.kind = TOKEN_NAME;
    t.bytes = name_bytes(p->text + t.at);
  } else {
    t.kind = TOKEN_SIGN;
    result = lex_sign(p, &t);
  }
  p->token = t;
  return result;
}

static int token_is(const parser *p, const char *sign) {
  const token *t = &p->token;
  return t->kind == TOKEN_SIGN && t->bytes == strlen(sign) && memcmp(p->text + t->at, sign, t->bytes) == 0;
}

/* "expected X, found Y" at the present token. */
static int32_t fail_expected(parser *p, const char *what) {
  const token *t = &p->token;
  if (t->kind == TOKEN_END) {
    return fail(p, t->at, "expected %s, but the text ends", what);
  }
  return fail(p, t->at, "expected %s, found '%.*s'", what, (int)(t->bytes < 40 ? t->bytes : 40), p->text + t->at);
}

/* Steps over `sign`, or fails. */
static int expect(parser *p, const char *sign, const char *what) {
  return token_is(p, sign) ? next(p) : fail_expected(p, what);
}

/* ---- Typed nodes ----------------------------------------------------------------------------- */

static int32_t node_type(const parser *p, int32_t node) {
  return p->b.entry[node].node.type;
}

static int32_t promote(parser *p, size_t at, int32_t node) {
  return made(p, at, tsr__expr_add_to_f32(&p->b, node));
}

/* Converts one of the two if the other is F32. Returns 0, or -1 after an error. */
static int unify(parser *p, size_t at, int32_t *x, int32_t *y) {
  if (node_type(p, *x) != node_type(p, *y)) {
    *x = promote(p, at, *x);
    *y = *x < 0 ? -1 : promote(p, at, *y);
  }
  return *x < 0 || *y < 0 ? -1 : 0;
}

static int32_t make_binary(parser *p, size_t at, int32_t op, int32_t x, int32_t y) {
  const int32_t bind = tsr__expr_op_table[op].bind;
  const int logic = bind == TSR_EXPR_BIND_OR || bind == TSR_EXPR_BIND_AND;
  if (!logic && unify(p, at, &x, &y) != 0) {
    return -1;
  }
  if (op == TSR_EXPR_OP_MOD && node_type(p, x) != TSR_EXPR_I64) {
    return fail(p, at, "'%%' takes integers; int() or floor() may help");
  }
  const int32_t type = logic || bind == TSR_EXPR_BIND_REL ? TSR_EXPR_I64 : node_type(p, x);
  return made(p, at, tsr__expr_add_binary(&p->b, op, type, x, y));
}

static int32_t make_call(parser *p, size_t at, int32_t op, int32_t x, int32_t y) {
  switch (op) {
  case TSR_EXPR_OP_MIN:
  case TSR_EXPR_OP_MAX: return make_binary(p, at, op, x, y);
  case TSR_EXPR_OP_TO_F32: return promote(p, at, x);
  case TSR_EXPR_OP_TO_I64:
  case TSR_EXPR_OP_FLOOR:
    if (node_type(p, x) == TSR_EXPR_I64) {
      return x;
    }
    break;
  case TSR_EXPR_OP_ABS: return made(p, at, tsr__expr_add_unary(&p->b, op, node_type(p, x), x));
  default: break;
  }
  x = promote(p, at, x);
  if (op == TSR_EXPR_OP_POW) {
    y = x < 0 ? -1 : promote(p, at, y);
    return y < 0 ? -1 : made(p, at, tsr__expr_add_binary(&p->b, op, TSR_EXPR_F32, x, y));
  }
  const int32_t type = op == TSR_EXPR_OP_TO_I64 ? TSR_EXPR_I64 : TSR_EXPR_F32;
  return x < 0 ? -1 : made(p, at, tsr__expr_add_unary(&p->b, op, type, x));
}

/* ---- Grammar. Each function returns a node, or -1 after an error. ------------------------------ */

static int32_t parse_expr(parser *p);

/* An expression one level down: inside parentheses, an argument, an index, a branch. */
static int32_t parse_inner(parser *p) {
  if (p->depth >= p->max_depth) {
    return fail(p, p->token.at, "nested deeper than %d levels", (int)p->max_depth);
  }
  ++p->depth;
  const int32_t node = parse_expr(p);
  --p->depth;
  return node;
}

static int32_t parse_call(parser *p, size_t at, int32_t op) {
  const char *name = tsr__expr_op_table[op].name;
  const int32_t n_args = tsr__expr_op_table[op].n_args;
  int32_t arg[2] = {-1, -1};
  for (int32_t n = 0;; ++n) {
    if (next(p) != 0 || (arg[n] = parse_inner(p)) < 0) { /* steps over '(' or ',' */
      return -1;
    }
    if (token_is(p, ")") && n + 1 == n_args) {
      break;
    }
    if (!token_is(p, ",") || n + 1 == n_args) {
      char what[64];
      snprintf(what, sizeof(what), n + 1 == n_args ? "')' (%s takes %d)" : "',' (%s takes %d arguments)", name,
               (int)n_args);
      return fail_expected(p, what);
    }
  }
  return next(p) != 0 ? -1 : make_call(p, at, op, arg[0], arg[1]);
}

/* The name has the form of an aux tensor's; index is what follows "aux", -1 if that is not one digit. */
static int32_t parse_aux(parser *p, size_t at, int32_t index) {
  if (index < 0 || index >= p->head->n_aux) {
    return fail(p, at, "no such aux tensor; %d are declared, from aux0", (int)p->head->n_aux);
  }
  const int32_t rank = p->head->aux[index].rank;
  const int32_t type = p->head->aux[index].dtype == TSR_F32 ? TSR_EXPR_F32 : TSR_EXPR_I64;
  int32_t arg[TSR_EXPR_MAX_AUX_RANK] = {0};
  char what[64];
  if (!token_is(p, "[")) {
    return fail_expected(p, "'[' after an aux tensor");
  }
  for (int32_t n = 0;; ++n) {
    if (next(p) != 0) { /* steps over '[' or ',' */
      return -1;
    }
    const size_t index_at = p->token.at;
    if ((arg[n] = parse_inner(p)) < 0) {
      return -1;
    }
    if (node_type(p, arg[n]) != TSR_EXPR_I64) {
      return fail(p, index_at, "an index is an integer; int() makes one");
    }
    if (token_is(p, "]") && n + 1 == rank) {
      break;
    }
    if (!token_is(p, ",") || n + 1 == rank) {
      snprintf(what, sizeof(what), "'%c' (aux%d has %d axes)", n + 1 == rank ? ']' : ',', (int)index, (int)rank);
      return fail_expected(p, what);
    }
  }
  return next(p) != 0 ? -1 : made(p, at, tsr__expr_add(&p->b, TSR_EXPR_OP_AUX, type, index, rank, arg));
}

static int name_is(const char *name, size_t bytes, const char *word) {
  return strlen(word) == bytes && memcmp(name, word, bytes) == 0;
}

/* TSR_EXPR_OP_x of a function's name, -1 if it is none. */
static int32_t find_function(const char *name, size_t bytes) {
  for (int32_t op = TSR_EXPR_OP_TO_F32; op < TSR_EXPR_OP_COUNT; ++op) {
    if (name_is(name, bytes, tsr__expr_op_table[op].name)) {
      return op;
    }
  }
  return -1;
}

static int32_t find_var(const char *name, size_t bytes) {
  for (int32_t v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    if (name_is(name, bytes, tsr__expr_var_name[v])) {
      return v;
    }
  }
  return -1;
}

/* "aux" and digits, reserved whatever the digits. */
static int is_aux_name(const char *name, size_t bytes) {
  size_t n = 3;
  if (bytes < 4 || memcmp(name, "aux", 3) != 0) {
    return 0;
  }
  while (n < bytes && is_digit(name[n])) {
    ++n;
  }
  return n == bytes;
}

static int32_t parse_name(parser *p) {
  const size_t at = p->token.at, bytes = p->token.bytes;
  const char *name = p->text + at;
  const int32_t op = find_function(name, bytes);
  const int32_t var = find_var(name, bytes);
  if (next(p) != 0) {
    return -1;
  }
  if (op >= 0) {
    return token_is(p, "(") ? parse_call(p, at, op) : fail_expected(p, "'(' after a function");
  }
  if (is_aux_name(name, bytes)) {
    return parse_aux(p, at, bytes == 4 ? name[3] - '0' : -1);
  }
  if (var >= 0) {
    return made(p, at, tsr__expr_add(&p->b, TSR_EXPR_OP_VAR, TSR_EXPR_I64, var, 0, NULL));
  }
  if (name_is(name, bytes, "inf")) {
    return made(p, at, tsr__expr_add_f32(&p->b, INFINITY));
  }
  if (name_is(name, bytes, "score")) {
    return p->kind == TSR_EXPR_KIND_MASK
               ? fail(p, at, "a mask expression cannot use score")
               : made(p, at, tsr__expr_add(&p->b, TSR_EXPR_OP_SCORE, TSR_EXPR_F32, 0, 0, NULL));
  }
  for (int32_t k = 0; k < p->head->n_scalars; ++k) {
    if (name_is(name, bytes, p->head->scalar_name[k])) {
      return made(p, at, tsr__expr_add(&p->b, TSR_EXPR_OP_SCALAR, TSR_EXPR_F32, k, 0, NULL));
    }
  }
  return fail(p, at, "unknown name '%.*s'", (int)(bytes < 40 ? bytes : 40), name);
}

static int32_t parse_primary(parser *p) {
  const token t = p->token;
  int32_t node;
  switch (t.kind) {
  case TOKEN_I64: return next(p) != 0 ? -1 : made(p, t.at, tsr__expr_add_i64(&p->b, t.i64));
  case TOKEN_F32: return next(p) != 0 ? -1 : made(p, t.at, tsr__expr_add_f32(&p->b, t.f32));
  case TOKEN_NAME: return parse_name(p);
  default: break;
  }
  if (!token_is(p, "(")) {
    return fail_expected(p, "a number, a name or '('");
  }
  if (next(p) != 0 || (node = parse_inner(p)) < 0) {
    return -1;
  }
  return expect(p, ")", "')'") != 0 ? -1 : node;
}

static int32_t parse_unary(parser *p) {
  const size_t at = p->token.at;
  const int negate = token_is(p, "-");
  if (!negate && !token_is(p, "!")) {
    return parse_primary(p);
  }
  if (p->depth >= p->max_depth) {
    return fail(p, at, "nested deeper than %d levels", (int)p->max_depth);
  }
  if (next(p) != 0) {
    return -1;
  }
  ++p->depth;
  const int32_t x = parse_unary(p);
  --p->depth;
  if (x < 0) {
    return -1;
  }
  return made(p, at,
              negate ? tsr__expr_add_unary(&p->b, TSR_EXPR_OP_NEG, node_type(p, x), x)
                     : tsr__expr_add_unary(&p->b, TSR_EXPR_OP_NOT, TSR_EXPR_I64, x));
}

/* The binary operator at the present token, -1 if it is none. */
static int32_t find_binary(const parser *p) {
  for (int32_t op = TSR_EXPR_OP_ADD; op <= TSR_EXPR_OP_OR; ++op) {
    if (token_is(p, tsr__expr_op_table[op].name)) {
      return op;
    }
  }
  return -1;
}

/* Operators that bind at least as tightly as `bind`, from left to right. */
static int32_t parse_binary(parser *p, int32_t bind) {
  int32_t x = parse_unary(p), op;
  int compared = 0;
  while (x >= 0 && (op = find_binary(p)) >= 0 && tsr__expr_op_table[op].bind >= bind) {
    const size_t at = p->token.at;
    const int32_t op_bind = tsr__expr_op_table[op].bind;
    if (op_bind == TSR_EXPR_BIND_REL && compared) {
      return fail(p, at, "comparisons do not chain; use '&&' or parentheses");
    }
    compared = op_bind == TSR_EXPR_BIND_REL;
    const int32_t y = next(p) != 0 ? -1 : parse_binary(p, op_bind + 1);
    x = y < 0 ? -1 : make_binary(p, at, op, x, y);
  }
  return x;
}

static int32_t parse_expr(parser *p) {
  int32_t arg[3];
  const int32_t condition = parse_binary(p, TSR_EXPR_BIND_OR);
  if (condition < 0 || !token_is(p, "?")) {
    return condition;
  }
  const size_t at = p->token.at;
  arg[0] = condition;
  if (next(p) != 0 || (arg[1] = parse_inner(p)) < 0 || expect(p, ":", "':'") != 0 || (arg[2] = parse_inner(p)) < 0 ||
      unify(p, at, &arg[1], &arg[2]) != 0) {
    return -1;
  }
  return made(p, at, tsr__expr_add(&p->b, TSR_EXPR_OP_COND, node_type(p, arg[1]), 0, 3, arg));
}

/* ---- Entry ----------------------------------------------------------------------------------- */

static tsr_status check_aux(tsr_expr *head, const tsr_expr_aux_type *aux, int n_aux, tsr_error *err) {
  if (n_aux < 0 || n_aux > TSR_EXPR_MAX_AUX || (n_aux > 0 && aux == NULL)) {
    return tsr__fail(err, TSR_INVALID, "num_aux", "%d aux tensors; 0 to %d can be declared", n_aux, TSR_EXPR_MAX_AUX);
  }
  for (int k = 0; k < n_aux; ++k) {
    char field[32];
    snprintf(field, sizeof(field), "aux[%d]", k);
    if (aux[k].dtype != TSR_F32 && aux[k].dtype != TSR_I32) {
      return tsr__fail(err, TSR_INVALID, field, "element type %d; an aux tensor is f32 or i32", (int)aux[k].dtype);
    }
    if (aux[k].rank < 1 || aux[k].rank > TSR_EXPR_MAX_AUX_RANK) {
      return tsr__fail(err, TSR_INVALID, field, "%d axes; an aux tensor has 1 to %d", (int)aux[k].rank,
                       TSR_EXPR_MAX_AUX_RANK);
    }
    head->aux[k] = aux[k];
  }
  head->n_aux = n_aux;
  return TSR_OK;
}

static const char *name_fault(const tsr_expr *head, const char *name) {
  if (name == NULL) {
    return "is NULL";
  }
  const size_t bytes = name_bytes(name);
  if (bytes == 0 || name[bytes] != '\0') {
    return "is not a letter or '_' followed by letters, digits and '_'";
  }
  if (bytes > TSR_EXPR_MAX_NAME) {
    return "is too long";
  }
  if (find_function(name, bytes) >= 0 || find_var(name, bytes) >= 0 || is_aux_name(name, bytes) ||
      name_is(name, bytes, "inf") || name_is(name, bytes, "score")) {
    return "is a word of the language";
  }
  for (int32_t k = 0; k < head->n_scalars; ++k) {
    if (name_is(name, bytes, head->scalar_name[k])) {
      return "is there twice";
    }
  }
  return NULL;
}

static tsr_status check_names(tsr_expr *head, const char *const *names, int n, tsr_error *err) {
  if (n < 0 || n > TSR_EXPR_MAX_SCALARS || (n > 0 && names == NULL)) {
    return tsr__fail(err, TSR_INVALID, "num_scalars", "%d scalars; 0 to %d can be named", n, TSR_EXPR_MAX_SCALARS);
  }
  for (int k = 0; k < n; ++k) {
    const char *fault = name_fault(head, names[k]);
    if (fault != NULL) {
      char field[32];
      snprintf(field, sizeof(field), "scalar_names[%d]", k);
      return tsr__fail(err, TSR_INVALID, field, "the scalar's name %s", fault);
    }
    memcpy(head->scalar_name[k], names[k], name_bytes(names[k]));
    ++head->n_scalars;
  }
  return TSR_OK;
}

static int32_t parse_text(parser *p) {
  int32_t root = next(p) != 0 ? -1 : parse_expr(p);
  if (root >= 0 && p->token.kind != TOKEN_END) {
    root = fail_expected(p, "an operator or the end of the text");
  }
  if (root >= 0 && p->kind != TSR_EXPR_KIND_MASK) {
    root = promote(p, 0, root);
  }
  return root;
}

tsr_status tsr__expr_parse(const tsr__alloc *alloc, const char *text, int32_t kind, const char *const *scalar_names,
                           int n_scalars, const tsr_expr_aux_type *aux, int n_aux, const char *field, tsr_expr **out,
                           tsr_error *err) {
  const int derivative = kind == TSR_EXPR_KIND_DERIVATIVE;
  tsr_expr head = {.kind = kind};
  parser p = {.text = text, .head = &head, .kind = kind, .field = field, .err = err};
  *out = NULL;
  if (text == NULL) {
    return tsr__fail(err, TSR_INVALID, field, "the expression is NULL");
  }
  if (!derivative && memchr(text, '\0', TSR_EXPR_MAX_BYTES + 1) == NULL) {
    return tsr__fail(err, TSR_INVALID, field, "the expression is longer than %d bytes", TSR_EXPR_MAX_BYTES);
  }
  tsr_status status = check_names(&head, scalar_names, n_scalars, err);
  if (status == TSR_OK) {
    status = check_aux(&head, aux, n_aux, err);
  }
  if (status != TSR_OK) {
    return status;
  }
  p.max_nodes = derivative ? TSR_EXPR_MAX_DERIVATIVE_NODES : TSR_EXPR_MAX_NODES;
  p.max_depth = derivative ? TSR_EXPR_MAX_DERIVATIVE_DEPTH : TSR_EXPR_MAX_DEPTH;
  tsr__expr_builder_init(&p.b, alloc);
  const int32_t root = parse_text(&p);
  if (root >= 0) {
    p.status = tsr__expr_finish(&p.b, root, &head, kind, out);
    p.status = p.status == TSR_OK ? tsr__ok(err) : tsr__fail(err, p.status, field, "no memory for the expression");
  }
  tsr__expr_builder_free(&p.b);
  return p.status;
}
