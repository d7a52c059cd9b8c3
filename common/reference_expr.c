/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's own reading of expression.h: tokens are made once, then every evaluation walks the grammar over them.
 *
 * Precision. What does not depend on the score is exactly what the language says: each f32 operation rounded once, so
 * that "j * 0.1 < x" decides as it does on every back end. What depends on the score is float64 (plain mode: f32).
 * The derivative is carried along with the value (dual numbers), not formed from a tree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/reference.h"

typedef enum token_kind { T_END, T_INT, T_FLOAT, T_SCORE, T_VAR, T_AUX, T_FUNC, T_OP } token_kind;

typedef enum func {
  F_EXP,
  F_EXP2,
  F_LOG,
  F_LOG2,
  F_SQRT,
  F_TANH,
  F_SIN,
  F_COS,
  F_ABS,
  F_FLOOR,
  F_FLOAT,
  F_INT, /* up to here one argument, below two */
  F_MIN,
  F_MAX,
  F_POW
} func;

static const char *const func_names[] = {"exp", "exp2",  "log",   "log2", "sqrt", "tanh", "sin", "cos",
                                         "abs", "floor", "float", "int",  "min",  "max",  "pow"};

/* Fields of tsr__ref_pair, in its order. */
static const char *const var_names[] = {"b", "h", "hkv", "i", "j", "q_len", "kv_len", "off"};

/* Operators of two characters, and the letter that stands for them. */
static const char *const pairs = "<=L>=G==E!=N&&A||O";

typedef struct token {
  token_kind kind;
  int which; /* var, aux, func; T_OP: the character */
  int64_t i;
  double f;
} token;

struct tsr__ref_expr {
  const tsr__ref_view *aux;
  int plain;
  token tokens[]; /* ends with T_END */
};

typedef struct value {
  int is_float, by_score; /* by_score: depends on the score; floats only */
  int64_t i;
  double f, slope;
} value;

typedef struct parser {
  const tsr__ref_expr *expr;
  const token *at;
  const int64_t *vars;
  value score;
  int failed;
} parser;

/* ---- Values ---------------------------------------------------------------------------------- */

static value of_int(int64_t i) {
  const value v = {0, 0, i, 0.0, 0.0};
  return v;
}

static value of_float(const parser *p, double f, int by_score, double slope) {
  value v = {1, by_score, 0, f, slope};
  if (!by_score || p->expr->plain) {
    v.f = tsr__ref_to_f32(f);
    v.slope = tsr__ref_to_f32(slope);
  }
  return v;
}

static value to_float(value v) {
  if (!v.is_float) {
    volatile float f = (float)v.i; /* volatile: as tsr__ref_to_f32; the conversion must round once */
    v.is_float = 1;
    v.f = (double)f;
  }
  return v;
}

static int truth(value v) {
  return v.is_float ? v.f != 0.0 : v.i != 0;
}

/* A constant's slope is 0 however steep the function is. */
static double chain(double slope, double factor) {
  return slope == 0.0 ? 0.0 : slope * factor;
}

static int64_t wrap(uint64_t bits) {
  int64_t i;
  memcpy(&i, &bits, sizeof(i));
  return i;
}

static int64_t int_divide(int64_t x, int64_t y) {
  int64_t q;
  if (y == 0) {
    return 0;
  }
  if (y == -1) {
    return wrap(UINT64_C(0) - (uint64_t)x);
  }
  q = x / y;
  return x % y != 0 && (x < 0) != (y < 0) ? q - 1 : q;
}

static value int_op(int op, int64_t x, int64_t y) {
  const uint64_t a = (uint64_t)x, b = (uint64_t)y;
  switch (op) {
  case '+': return of_int(wrap(a + b));
  case '-': return of_int(wrap(a - b));
  case '*': return of_int(wrap(a * b));
  case '/': return of_int(int_divide(x, y));
  default: return of_int(y == 0 ? 0 : wrap(a - b * (uint64_t)int_divide(x, y)));
  }
}

static value float_op(const parser *p, int op, value x, value y) {
  const int by_score = x.by_score || y.by_score;
  double q;
  switch (op) {
  case '+': return of_float(p, x.f + y.f, by_score, x.slope + y.slope);
  case '-': return of_float(p, x.f - y.f, by_score, x.slope - y.slope);
  case '*': return of_float(p, x.f * y.f, by_score, chain(x.slope, y.f) + chain(y.slope, x.f));
  default: q = x.f / y.f; return of_float(p, q, by_score, chain(x.slope, 1.0 / y.f) - chain(y.slope, q / y.f));
  }
}

static value arithmetic(parser *p, int op, value x, value y) {
  if (!x.is_float && !y.is_float) {
    return int_op(op, x.i, y.i);
  }
  if (op == '%') {
    p->failed = 1;
  }
  return float_op(p, op, to_float(x), to_float(y));
}

static int compare(int op, value x, value y) {
  if (x.is_float || y.is_float) {
    const double a = to_float(x).f, b = to_float(y).f;
    switch (op) {
    case '<': return a < b;
    case 'L': return a <= b;
    case '>': return a > b;
    case 'G': return a >= b;
    case 'E': return a == b;
    default: return a != b;
    }
  }
  switch (op) {
  case '<': return x.i < y.i;
  case 'L': return x.i <= y.i;
  case '>': return x.i > y.i;
  case 'G': return x.i >= y.i;
  case 'E': return x.i == y.i;
  default: return x.i != y.i;
  }
}

/* ---- Functions ------------------------------------------------------------------------------- */

static int64_t truncate(double f) {
  if (isnan(f)) {
    return 0;
  }
  return f >= 0x1p63 ? INT64_MAX : f < -0x1p63 ? INT64_MIN : (int64_t)f;
}

static value absolute(const parser *p, value x) {
  if (!x.is_float) {
    return of_int(x.i < 0 ? wrap(UINT64_C(0) - (uint64_t)x.i) : x.i);
  }
  return of_float(p, fabs(x.f), x.by_score, x.f > 0.0 ? x.slope : x.f < 0.0 ? -x.slope : 0.0);
}

static value call1(const parser *p, func f, value x) {
  double y = 0.0, factor = 0.0;
  if (f == F_ABS) {
    return absolute(p, x);
  }
  if (f == F_INT) {
    return x.is_float ? of_int(truncate(x.f)) : x;
  }
  if (f == F_FLOOR && !x.is_float) {
    return x;
  }
  x = to_float(x);
  switch (f) {
  case F_EXP: y = factor = exp(x.f); break;
  case F_EXP2:
    y = exp2(x.f);
    factor = y * 0.69314718055994530942;
    break;
  case F_LOG:
    y = log(x.f);
    factor = 1.0 / x.f;
    break;
  case F_LOG2:
    y = log2(x.f);
    factor = 1.4426950408889634074 / x.f;
    break;
  case F_SQRT:
    y = sqrt(x.f);
    factor = 0.5 / y;
    break;
  case F_TANH:
    y = tanh(x.f);
    factor = 1.0 - y * y;
    break;
  case F_SIN:
    y = sin(x.f);
    factor = cos(x.f);
    break;
  case F_COS:
    y = cos(x.f);
    factor = -sin(x.f);
    break;
  case F_FLOOR: y = floor(x.f); break; /* slope 0 */
  default: return x;                   /* F_FLOAT */
  }
  return of_float(p, y, x.by_score, chain(x.slope, factor));
}

static value min_max(const parser *p, func f, value x, value y) {
  int first;
  if (!x.is_float && !y.is_float) {
    return (f == F_MIN ? x.i <= y.i : x.i >= y.i) ? x : y;
  }
  x = to_float(x);
  y = to_float(y);
  first = isnan(x.f) || (!isnan(y.f) && (f == F_MIN ? x.f <= y.f : x.f >= y.f));
  return of_float(p, first ? x.f : y.f, x.by_score || y.by_score, first ? x.slope : y.slope);
}

static value power(const parser *p, value x, value y) {
  const double f = pow(x.f, y.f);
  double slope = 0.0;
  if (y.f != 0.0) {
    slope += chain(x.slope, y.f * pow(x.f, y.f - 1.0));
  }
  if (!(x.f == 0.0 && y.f >= 0.0)) {
    slope += chain(y.slope, f * log(x.f));
  }
  return of_float(p, f, x.by_score || y.by_score, slope);
}

/* ---- Grammar --------------------------------------------------------------------------------- */

static value parse_expr(parser *p);

static int accept(parser *p, int op) {
  if (p->at->kind == T_OP && p->at->which == op) {
    p->at++;
    return 1;
  }
  return 0;
}

static void expect(parser *p, int op) {
  if (!accept(p, op)) {
    p->failed = 1;
  }
}

/* One of the operators in `ops`, or 0. */
static int accept_any(parser *p, const char *ops) {
  return p->at->kind == T_OP && strchr(ops, p->at->which) != NULL ? (p->at++)->which : 0;
}

static value parse_call(parser *p) {
  const func f = (func)(p->at++)->which;
  value x, y;
  expect(p, '(');
  x = parse_expr(p);
  if (f < F_MIN) {
    expect(p, ')');
    return call1(p, f, x);
  }
  expect(p, ',');
  y = parse_expr(p);
  expect(p, ')');
  return f == F_POW ? power(p, to_float(x), to_float(y)) : min_max(p, f, x, y);
}

static value parse_aux(parser *p) {
  const tsr__ref_view *aux = &p->expr->aux[(p->at++)->which];
  int64_t index[4] = {0, 0, 0, 0};
  int inside = aux->data != NULL, n = 0;
  expect(p, '[');
  do {
    const value v = parse_expr(p);
    if (v.is_float || n == 4) {
      p->failed = 1;
      return of_int(0);
    }
    inside = inside && v.i >= 0 && v.i < aux->shape[n];
    index[n++] = v.i;
  } while (accept(p, ','));
  expect(p, ']');
  if (aux->dtype == TSR_I32) {
    return of_int(inside ? tsr__ref_int(aux, index[0], index[1], index[2], index[3]) : 0);
  }
  return of_float(p, inside ? tsr__ref_at(aux, index[0], index[1], index[2], index[3]) : 0.0, 0, 0.0);
}

static value parse_primary(parser *p) {
  const token *t = p->at;
  value v;
  switch (t->kind) {
  case T_FUNC: return parse_call(p);
  case T_AUX: return parse_aux(p);
  case T_INT: p->at++; return of_int(t->i);
  case T_FLOAT: p->at++; return of_float(p, t->f, 0, 0.0);
  case T_SCORE: p->at++; return p->score;
  case T_VAR: p->at++; return of_int(p->vars[t->which]);
  default: break;
  }
  expect(p, '(');
  if (p->failed) {
    return of_int(0);
  }
  v = parse_expr(p);
  expect(p, ')');
  return v;
}

static value parse_unary(parser *p) {
  if (accept(p, '-')) {
    const value v = parse_unary(p);
    return v.is_float ? of_float(p, -v.f, v.by_score, -v.slope) : of_int(wrap(UINT64_C(0) - (uint64_t)v.i));
  }
  if (accept(p, '!')) {
    return of_int(!truth(parse_unary(p)));
  }
  return parse_primary(p);
}

static value parse_mul(parser *p) {
  value v = parse_unary(p);
  for (int op; (op = accept_any(p, "*/%")) != 0;) {
    v = arithmetic(p, op, v, parse_unary(p));
  }
  return v;
}

static value parse_add(parser *p) {
  value v = parse_mul(p);
  for (int op; (op = accept_any(p, "+-")) != 0;) {
    v = arithmetic(p, op, v, parse_mul(p));
  }
  return v;
}

static value parse_rel(parser *p) {
  const value v = parse_add(p);
  const int op = accept_any(p, "<L>GEN");
  return op == 0 ? v : of_int(compare(op, v, parse_add(p)));
}

static value parse_and(parser *p) {
  value v = parse_rel(p);
  while (accept(p, 'A')) {
    const value w = parse_rel(p);
    v = of_int(truth(v) && truth(w));
  }
  return v;
}

static value parse_or(parser *p) {
  value v = parse_and(p);
  while (accept(p, 'O')) {
    const value w = parse_and(p);
    v = of_int(truth(v) || truth(w));
  }
  return v;
}

static value parse_expr(parser *p) {
  const value c = parse_or(p);
  value x, y;
  if (p->failed || !accept(p, '?')) {
    return c;
  }
  x = parse_expr(p);
  expect(p, ':');
  y = parse_expr(p);
  if (x.is_float || y.is_float) {
    x = to_float(x);
    y = to_float(y);
  }
  return truth(c) ? x : y;
}

/* ---- Tokens ---------------------------------------------------------------------------------- */

static int is_digit(char c) {
  return c >= '0' && c <= '9';
}

static int is_name(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c);
}

static const char *lex_number(const char *s, token *t) {
  uint64_t digits = 0;
  int exp10 = 0, point = 0, is_float = 0;
  long double power = 1.0L;
  for (; is_digit(*s) || (*s == '.' && !point); s++) {
    if (*s == '.') {
      point = is_float = 1;
    } else if (digits < UINT64_MAX / 10 - 1) {
      digits = digits * 10 + (uint64_t)(*s - '0');
      exp10 -= point;
    } else {
      exp10 += !point; /* beyond the 19th digit: only its place counts */
    }
  }
  if (*s == 'e' || *s == 'E') {
    char *end;
    const long e = strtol(s + 1, &end, 10);
    s = end;
    is_float = 1;
    exp10 += e > 1000 ? 1000 : e < -1000 ? -1000 : (int)e;
  }
  t->kind = is_float ? T_FLOAT : T_INT;
  t->i = digits > (uint64_t)INT64_MAX ? INT64_MAX : (int64_t)digits;
  for (int n = exp10 < 0 ? -exp10 : exp10; n > 0; n--) {
    power *= 10.0L; /* exact up to 10^27, and then there is one rounding below */
  }
  if (digits != 0) {
    volatile float f = (float)(exp10 < 0 ? (long double)digits / power : (long double)digits * power);
    t->f = (double)f;
  }
  return s;
}

static int find(const char *name, size_t length, const char *const *names, int64_t count) {
  for (int64_t n = 0; n < count; n++) {
    if (strlen(names[n]) == length && memcmp(names[n], name, length) == 0) {
      return (int)n;
    }
  }
  return -1;
}

static const char *lex_name(const tsr__ref *r, const char *s, token *t) {
  static const char *const aux_names[] = {"aux0", "aux1", "aux2", "aux3", "aux4", "aux5", "aux6", "aux7"};
  const tsr_attention_desc *d = r->desc;
  size_t n = 0;
  while (is_name(s[n])) {
    n++;
  }
  if ((t->which = find(s, n, var_names, 8)) >= 0) {
    t->kind = T_VAR;
  } else if ((t->which = find(s, n, func_names, F_POW + 1)) >= 0) {
    t->kind = T_FUNC;
  } else if ((t->which = find(s, n, aux_names, d->num_aux)) >= 0) {
    t->kind = T_AUX;
  } else if ((t->which = find(s, n, d->scalar_names, d->num_scalars)) >= 0) {
    t->kind = T_FLOAT;
    t->f = (double)r->args->scalars[t->which];
  } else if (n == 3 && memcmp(s, "inf", 3) == 0) {
    t->kind = T_FLOAT;
    t->f = (double)INFINITY;
  } else if (n == 5 && memcmp(s, "score", 5) == 0) {
    t->kind = T_SCORE;
  } else {
    return NULL;
  }
  return s + n;
}

static const char *lex(const tsr__ref *r, const char *s, token *t) {
  if (is_digit(*s) || (*s == '.' && is_digit(s[1]))) {
    return lex_number(s, t);
  }
  if (is_name(*s)) {
    return lex_name(r, s, t);
  }
  t->kind = T_OP;
  for (const char *two = pairs; *two != '\0'; two += 3) {
    if (s[0] == two[0] && s[1] == two[1]) {
      t->which = two[2];
      return s + 2;
    }
  }
  t->which = *s;
  return strchr("<>+-*/%!?:()[],", *s) != NULL ? s + 1 : NULL;
}

static value evaluate(const tsr__ref_expr *expr, const tsr__ref_pair *pair, double score, int *failed) {
  const int64_t vars[8] = {pair->b, pair->h, pair->hkv, pair->i, pair->j, pair->q_len, pair->kv_len, pair->off};
  parser p = {expr, expr->tokens, vars, {1, 1, 0, score, 1.0}, 0};
  const value v = parse_expr(&p);
  *failed = p.failed || p.at->kind != T_END;
  return v;
}

tsr_status tsr__ref_expr_create(const tsr__ref *r, const char *text, const char *field, tsr__ref_expr **expr,
                                tsr_error *err) {
  static const tsr__ref_pair origin = {0, 0, 0, 0, 0, 0, 0, 0};
  tsr__ref_expr *e = (tsr__ref_expr *)tsr__alloc_zero(r->alloc, sizeof(*e) + (strlen(text) + 1) * sizeof(token));
  const char *s = text;
  token *t;
  int failed;
  if (e == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, field, "no memory for an expression of %lld bytes",
                     (long long)strlen(text));
  }
  *expr = e;
  e->aux = r->aux;
  e->plain = r->plain;
  for (t = e->tokens;; t++) {
    while (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r') {
      s++;
    }
    if (*s == '\0') {
      break;
    }
    s = lex(r, s, t);
    if (s == NULL) {
      return tsr__fail(err, TSR_INVALID, field, "the reference does not know token %lld of the expression",
                       (long long)(t - e->tokens + 1));
    }
  }
  t->kind = T_END; /* of the zeroed memory */
  (void)evaluate(e, &origin, 0.0, &failed);
  return failed ? tsr__fail(err, TSR_INVALID, field, "the reference cannot parse the expression") : TSR_OK;
}

double tsr__ref_expr_score(const tsr__ref_expr *expr, const tsr__ref_pair *pair, double score, double *slope) {
  int failed;
  const value v = to_float(evaluate(expr, pair, score, &failed));
  *slope = v.slope;
  return v.f;
}

int tsr__ref_expr_mask(const tsr__ref_expr *expr, const tsr__ref_pair *pair) {
  int failed;
  return truth(evaluate(expr, pair, 0.0, &failed));
}
