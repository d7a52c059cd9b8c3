/* SPDX-License-Identifier: Apache-2.0 */
/* Random expressions. The generator follows the grammar and computes the value of what it writes as it goes, from
 * the rules of expression.h and apart from the library, so that parser and evaluator are checked on every text. */
#ifndef TSR_TESTS_EXPR_RANDOM_H
#define TSR_TESTS_EXPR_RANDOM_H

#include "tests/unit/expr_fixture.h"
#include "tests/unit/random.h"

#include <math.h>

#define LANES 8

typedef struct value {
  int32_t type;
  int64_t i[LANES];
  float f[LANES];
} value;

typedef struct random_expr {
  conf_rng rng;
  /* What may be written. */
  int with_score;
  int with_functions; /* those of the C library, whose last bit is the library's choice */
  int with_extremes;  /* infinities, NaN, integers near the ends of int64, as scalars, numbers and variables */
  int leaves;         /* still to be written; below 1 only leaves are */
  /* What the names stand for. */
  float score[LANES];
  int64_t var[TSR_EXPR_VAR_COUNT][LANES];
  tsr_expr_env env;
  float aux_f32[12];
  int32_t aux_i32[12];
  /* The text so far. */
  size_t at;
  char text[TSR_EXPR_MAX_BYTES];
} random_expr;

static const char *const random_names[] = {"x0", "long_name_of_a_scalar"};
static const tsr_expr_aux_type random_aux[] = {{TSR_F32, 1}, {TSR_I32, 2}, {TSR_F32, 3}, {TSR_I32, 4}};

/* 0..n-1 */
static inline int pick(random_expr *g, int n) {
  return (int)(conf_next(&g->rng) % (uint64_t)n);
}

static inline float random_f32(random_expr *g) {
  const float usual = (float)((double)(conf_next(&g->rng) >> 40) * 0x1p-22 - 2.0); /* -2..2 */
  switch (g->with_extremes ? pick(g, 16) : pick(g, 3)) {
  case 0: return (float)(pick(g, 9) - 4);
  case 3: return usual * 1e30f;
  case 4: return usual * 1e-38f;
  case 5: return INFINITY;
  case 6: return -INFINITY;
  case 7: return NAN;
  case 8: return -0.0f;
  case 9: return 16777216.0f + (float)pick(g, 9);
  default: return usual;
  }
}

static inline int64_t random_i64(random_expr *g) {
  const int64_t small = pick(g, 13) - 4;
  switch (g->with_extremes ? pick(g, 16) : 0) {
  case 1: return INT64_MAX - pick(g, 3);
  case 2: return INT64_MIN + pick(g, 3);
  case 3: return ((int64_t)1 << pick(g, 63)) + small;
  case 4: return -((int64_t)1 << pick(g, 63)) + small;
  case 5: return (int64_t)conf_next(&g->rng);
  case 6: return 16777216 + small;
  default: return small;
  }
}

static inline void emit(random_expr *g, const char *text) {
  const size_t n = strlen(text);
  if (g->at + n + 64 > sizeof(g->text)) {
    fail_msg("the generator's text is too long");
  }
  memcpy(g->text + g->at, text, n + 1);
  g->at += n;
  if (pick(g, 8) == 0) {
    g->text[g->at++] = " \t\r\n"[pick(g, 4)];
    g->text[g->at] = '\0';
  }
}

/* Puts text in front of what was written from `at` on. */
static inline void emit_before(random_expr *g, size_t at, const char *text) {
  const size_t n = strlen(text);
  memmove(g->text + at + n, g->text + at, g->at - at + 1);
  memcpy(g->text + at, text, n);
  g->at += n;
}

/* ---- Values ------------------------------------------------------------------------------------------------- */

static inline value to_f32(value x) {
  for (int k = 0; k < LANES && x.type == TSR_EXPR_I64; ++k) {
    x.f[k] = (float)x.i[k];
  }
  x.type = TSR_EXPR_F32;
  return x;
}

static inline value to_i64(value x) {
  for (int k = 0; k < LANES && x.type == TSR_EXPR_F32; ++k) {
    x.i[k] = isnan(x.f[k])                      ? 0
             : x.f[k] >= 9223372036854775808.0f ? INT64_MAX
             : x.f[k] < -9223372036854775808.0f ? INT64_MIN
                                                : (int64_t)truncf(x.f[k]);
  }
  x.type = TSR_EXPR_I64;
  return x;
}

static inline int is_true(const value *x, int k) {
  return x->type == TSR_EXPR_F32 ? !(x->f[k] == 0) : x->i[k] != 0;
}

/* By the definition: the largest q with q * y <= x (y > 0), or the smallest q with q * y <= x ... in 128 bits. */
static inline int64_t quotient_floor(int64_t x, int64_t y) {
  __extension__ typedef __int128 i128;
  if (y == 0) {
    return 0;
  }
  i128 n = x, d = y;
  if (d < 0) {
    n = -n;
    d = -d;
  }
  return (int64_t)(uint64_t)(n >= 0 ? n / d : -((-n + d - 1) / d));
}

static inline int64_t apply_i64(char op, int64_t x, int64_t y) {
  const uint64_t a = (uint64_t)x, b = (uint64_t)y;
  switch (op) {
  case '+': return (int64_t)(a + b);
  case '-': return (int64_t)(a - b);
  case '*': return (int64_t)(a * b);
  case '/': return quotient_floor(x, y);
  case '%': return y == 0 ? 0 : (int64_t)(a - b * (uint64_t)quotient_floor(x, y));
  case 'm': return x <= y ? x : y;
  default: return x >= y ? x : y; /* M */
  }
}

static inline float apply_f32(char op, float x, float y) {
  switch (op) {
  case '+': return x + y;
  case '-': return x - y;
  case '*': return x * y;
  case '/': return x / y;
  case 'p': return powf(x, y);
  case 'm': return isnan(x) || isnan(y) ? NAN : x <= y ? x : y;
  default: return isnan(x) || isnan(y) ? NAN : x >= y ? x : y; /* M */
  }
}

static inline value apply(char op, value x, value y) {
  if (x.type == TSR_EXPR_F32 || y.type == TSR_EXPR_F32 || op == 'p') {
    x = to_f32(x);
    y = to_f32(y);
  }
  for (int k = 0; k < LANES; ++k) {
    if (x.type == TSR_EXPR_F32) {
      x.f[k] = apply_f32(op, x.f[k], y.f[k]);
    } else {
      x.i[k] = apply_i64(op, x.i[k], y.i[k]);
    }
  }
  return x;
}

static inline value relate(int op, value x, value y) {
  value r = {.type = TSR_EXPR_I64};
  if (x.type != y.type) {
    x = to_f32(x);
    y = to_f32(y);
  }
  for (int k = 0; k < LANES; ++k) {
    const int f = x.type == TSR_EXPR_F32;
    const int less = f ? x.f[k] < y.f[k] : x.i[k] < y.i[k];
    const int more = f ? x.f[k] > y.f[k] : x.i[k] > y.i[k];
    const int same = f ? x.f[k] == y.f[k] : x.i[k] == y.i[k];
    const int results[6] = {less, less || same, more, more || same, same, !same};
    r.i[k] = results[op];
  }
  return r;
}

/* ---- Grammar ------------------------------------------------------------------------------------------------- */

static value write_expr(random_expr *g);

static inline value write_number(random_expr *g) {
  value v = {.type = pick(g, 2)};
  char text[64];
  if (v.type == TSR_EXPR_F32) {
    float f = fabsf(random_f32(g));
    f = isfinite(f) ? f : 0.5f;
    snprintf(text, sizeof(text), pick(g, 2) ? "%.*e" : "%#.*g", 1 + pick(g, 9), (double)f);
    for (int k = 0; k < LANES; ++k) {
      v.f[k] = strtof(text, NULL);
    }
    if (isinf(v.f[0])) {
      return write_number(g);
    }
  } else {
    const int64_t i = random_i64(g) & INT64_MAX;
    snprintf(text, sizeof(text), "%lld", (long long)i);
    for (int k = 0; k < LANES; ++k) {
      v.i[k] = i;
    }
  }
  emit(g, text);
  return v;
}

static inline value write_leaf(random_expr *g) {
  value v = {.type = TSR_EXPR_F32};
  const int which = pick(g, 10);
  --g->leaves;
  if (g->with_score && which < 5) {
    emit(g, "score");
    memcpy(v.f, g->score, sizeof(v.f));
  } else if (which < 6) {
    const int s = pick(g, 2);
    emit(g, random_names[s]);
    for (int k = 0; k < LANES; ++k) {
      v.f[k] = g->env.scalar[s];
    }
  } else if (which < 8) {
    static const char *const vars[] = {"b", "h", "hkv", "i", "j", "q_len", "kv_len", "off"};
    const int s = pick(g, 8);
    emit(g, vars[s]);
    v.type = TSR_EXPR_I64;
    memcpy(v.i, g->var[s], sizeof(v.i));
  } else {
    v = write_number(g);
  }
  return v;
}

static inline value write_aux(random_expr *g) {
  const int t = pick(g, 4);
  const tsr_expr_aux *aux = &g->env.aux[t];
  value v = {.type = random_aux[t].dtype == TSR_F32 ? TSR_EXPR_F32 : TSR_EXPR_I64}, index[4];
  char name[8];
  snprintf(name, sizeof(name), "aux%d", t);
  emit(g, name);
  emit(g, "[");
  for (int a = 0; a < random_aux[t].rank; ++a) {
    const size_t at = g->at;
    emit(g, a > 0 ? "," : "");
    const size_t start = a > 0 ? at + 1 : at;
    index[a] = write_expr(g);
    if (index[a].type == TSR_EXPR_F32) {
      emit_before(g, start, "int(");
      emit(g, ")");
      index[a] = to_i64(index[a]);
    }
  }
  emit(g, "]");
  for (int k = 0; k < LANES; ++k) {
    int64_t offset = 0;
    int inside = 1;
    for (int a = 0; a < random_aux[t].rank; ++a) {
      inside = inside && index[a].i[k] >= 0 && index[a].i[k] < aux->shape[a];
      offset += inside ? index[a].i[k] * aux->stride[a] : 0;
    }
    v.f[k] = inside ? g->aux_f32[offset] : 0;
    v.i[k] = inside ? g->aux_i32[offset] : 0;
  }
  return v;
}

static inline float call_f32(int which, float x) {
  switch (which) {
  case 0: return expf(x);
  case 1: return exp2f(x);
  case 2: return logf(x);
  case 3: return log2f(x);
  case 4: return tanhf(x);
  case 5: return sinf(x);
  case 6: return cosf(x);
  default: return sqrtf(x);
  }
}

static inline value write_call(random_expr *g) {
  static const char *const names[] = {"exp", "exp2", "log", "log2",  "tanh",  "sin",
                                      "cos", "sqrt", "abs", "floor", "float", "int"};
  static const char *const pairs[] = {"min", "max", "pow"};
  if (pick(g, 3) == 0) {
    const int which = pick(g, g->with_functions ? 3 : 2);
    emit(g, pairs[which]);
    emit(g, "(");
    const value x = write_expr(g);
    emit(g, ",");
    const value y = write_expr(g);
    emit(g, ")");
    return apply("mMp"[which], x, y);
  }
  const int which = g->with_functions ? pick(g, 12) : 7 + pick(g, 5);
  emit(g, names[which]);
  emit(g, "(");
  value x = write_expr(g);
  emit(g, ")");
  if (which == 10) {
    return to_f32(x);
  }
  if (which == 11) {
    return to_i64(x);
  }
  if (which < 8) {
    x = to_f32(x);
  }
  for (int k = 0; k < LANES; ++k) {
    if (which == 8) {
      x.f[k] = fabsf(x.f[k]);
      x.i[k] = x.i[k] < 0 ? (int64_t) - (uint64_t)x.i[k] : x.i[k];
    } else {
      x.f[k] = which == 9 ? floorf(x.f[k]) : call_f32(which, x.f[k]);
    }
  }
  return x;
}

static inline value write_primary(random_expr *g) {
  const int which = g->leaves > 0 ? pick(g, 10) : 0;
  if (which < 5) {
    return write_leaf(g);
  }
  --g->leaves;
  if (which < 7) {
    return write_call(g);
  }
  if (which < 8) {
    return write_aux(g);
  }
  emit(g, "(");
  const value v = write_expr(g);
  emit(g, ")");
  return v;
}

static inline value write_unary(random_expr *g) {
  const int which = g->leaves > 0 ? pick(g, 12) : 2;
  if (which > 1) {
    return write_primary(g);
  }
  --g->leaves;
  emit(g, which ? "-" : "!");
  value x = write_unary(g), truth = {.type = TSR_EXPR_I64};
  for (int k = 0; k < LANES; ++k) {
    truth.i[k] = !is_true(&x, k);
    x.f[k] = -x.f[k];
    x.i[k] = (int64_t) - (uint64_t)x.i[k];
  }
  return which ? x : truth;
}

/* Levels: 0 ||, 1 &&, 2 comparisons, 3 + -, 4 * / %. */
static inline value write_binary(random_expr *g, int level) {
  static const char *const relations[] = {"<", "<=", ">", ">=", "==", "!="};
  static const int often[] = {12, 12, 6, 3, 3}; /* one in so many has another operand */
  if (level > 4) {
    return write_unary(g);
  }
  value x = write_binary(g, level + 1);
  for (int n = 0; g->leaves > 0 && pick(g, often[level]) == 0 && !(level == 2 && n > 0); ++n) {
    const size_t at = g->at;
    char op[2] = {level == 3 ? "+-"[pick(g, 2)] : "*/%"[pick(g, 3)], '\0'};
    const int relation = pick(g, 6);
    emit(g, level == 0 ? "||" : level == 1 ? "&&" : level == 2 ? relations[relation] : op);
    const value y = write_binary(g, level + 1);
    if (level == 2) {
      x = relate(relation, x, y);
    } else if (level < 2) {
      for (int k = 0; k < LANES; ++k) {
        x.i[k] = level == 0 ? is_true(&x, k) || is_true(&y, k) : is_true(&x, k) && is_true(&y, k);
      }
      x.type = TSR_EXPR_I64;
    } else {
      if (op[0] == '%' && (x.type == TSR_EXPR_F32 || y.type == TSR_EXPR_F32)) {
        op[0] = g->text[at] = '*'; /* only integers have '%' */
      }
      x = apply(op[0], x, y);
    }
  }
  return x;
}

static value write_expr(random_expr *g) {
  value c = write_binary(g, 0);
  if (g->leaves <= 0 || pick(g, 8) != 0) {
    return c;
  }
  emit(g, "?");
  value x = write_expr(g);
  emit(g, ":");
  value y = write_expr(g);
  if (x.type != y.type) {
    x = to_f32(x);
    y = to_f32(y);
  }
  for (int k = 0; k < LANES; ++k) {
    x.f[k] = is_true(&c, k) ? x.f[k] : y.f[k];
    x.i[k] = is_true(&c, k) ? x.i[k] : y.i[k];
  }
  return x;
}

/* New values for all names. */
static inline void random_names_values(random_expr *g) {
  for (int k = 0; k < LANES; ++k) {
    g->score[k] = random_f32(g);
    for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
      g->var[v][k] = random_i64(g);
    }
  }
  for (int s = 0; s < 2; ++s) {
    g->env.scalar[s] = random_f32(g);
  }
  for (int k = 0; k < 12; ++k) {
    g->aux_f32[k] = random_f32(g);
    g->aux_i32[k] = (int32_t)random_i64(g);
  }
  for (int t = 0; t < 4; ++t) {
    static const int64_t strides[4][4] = {{11, 0, 0, 0}, {4, 1, 0, 0}, {0, 6, 2, 0}, {1, 2, 4, 0}};
    static const int64_t shapes[4][4] = {{2, 0, 0, 0}, {3, 4, 0, 0}, {5, 2, 3, 0}, {2, 2, 2, 7}};
    tsr_expr_aux *aux = &g->env.aux[t];
    aux->data = random_aux[t].dtype == TSR_F32 ? (const void *)g->aux_f32 : (const void *)g->aux_i32;
    aux->dtype = random_aux[t].dtype;
    aux->rank = random_aux[t].rank;
    memcpy(aux->shape, shapes[t], sizeof(aux->shape));
    memcpy(aux->stride, strides[t], sizeof(aux->stride));
  }
}

/* A new text of about `leaves` leaves and its value. */
static inline value random_text(random_expr *g, int leaves) {
  g->leaves = leaves;
  g->at = 0;
  g->text[0] = '\0';
  return write_expr(g);
}

static inline tsr_expr *parse_random(const random_expr *g, const char *text, int32_t kind) {
  tsr_expr *expr;
  tsr_error err;
  if (tsr__expr_parse(NULL, text, kind, random_names, 2, random_aux, 4, "expr", &expr, &err) != TSR_OK) {
    fail_msg("'%s' (from '%s'): %s", text, g->text, err.text);
  }
  return expr;
}

static inline tsr_expr_lanes random_lanes(const random_expr *g) {
  tsr_expr_lanes lanes = {.score = g->score};
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    lanes.lane[v] = g->var[v];
  }
  return lanes;
}

#endif
