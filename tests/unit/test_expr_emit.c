/* SPDX-License-Identifier: Apache-2.0 */
/* Emitted expressions: compiled by the C compiler of this build against the embedded texts of common/device, they give
 * what the evaluator gives, bit for bit (functions are the C library's on both sides). */
#include "tests/unit/expr_random.h"

#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include "common/device/dialect.h"
#include "common/device/args.h"
#include "common/device/gpu_args.h"
#include "common/device/expr.h"
#include "common/expr_emit.h"
#include "common/kernel_text.h"

#define EXPRS 250

typedef float score_fn(const tsr_expr_args *x, const tsr_expr_ptrs *p, float score, tsr_i64 b, tsr_i32 h, tsr_i32 hkv,
                       tsr_i64 i, tsr_i64 j, tsr_i64 q_len, tsr_i64 kv_len, tsr_i64 off);
typedef int mask_fn(const tsr_expr_args *x, const tsr_expr_ptrs *p, tsr_i64 b, tsr_i32 h, tsr_i32 hkv, tsr_i64 i,
                    tsr_i64 j, tsr_i64 q_len, tsr_i64 kv_len, tsr_i64 off);
typedef union table {
  void *ptr;
  score_fn *const *score;
  mask_fn *const *mask;
} table;

static random_expr g;
static tsr_expr *exprs[EXPRS], *masks[EXPRS];

static const char *function_name(const tsr_expr *expr) {
  return expr->kind == TSR_EXPR_KIND_SCORE  ? "tsr_expr_score"
         : expr->kind == TSR_EXPR_KIND_MASK ? "tsr_expr_mask"
                                            : "tsr_expr_grad";
}

/* Every second score expression is replaced by its derivative. */
static void make_exprs(void) {
  for (int n = 0; n < EXPRS; n++) {
    g.with_functions = 1;
    g.with_extremes = n % 3 != 0;
    random_names_values(&g);
    g.with_score = 1;
    (void)random_text(&g, 1 + pick(&g, 40));
    exprs[n] = parse_random(&g, g.text, TSR_EXPR_KIND_SCORE);
    if (n % 2) {
      tsr_expr *slope;
      if (tsr__expr_derive(NULL, exprs[n], "expr", &slope, NULL) == TSR_OK) {
        tsr__expr_destroy(NULL, exprs[n]);
        exprs[n] = slope;
      }
    }
    g.with_score = 0;
    (void)random_text(&g, 1 + pick(&g, 40));
    masks[n] = parse_random(&g, g.text, TSR_EXPR_KIND_MASK);
  }
}

static void write_functions(FILE *out, tsr_expr *const *list, const char *type, const char *tables) {
  for (int n = 0; n < EXPRS; n++) {
    char *text;
    assert_int_equal(tsr__expr_emit(NULL, list[n], &text, NULL), TSR_OK);
    fprintf(out, "#define %s %s%d\n%s#undef %s\n", function_name(list[n]), tables, n, text, function_name(list[n]));
    tsr__alloc_free(NULL, text);
  }
  fprintf(out,
          "typedef %s %s_fn();\n" /* the caller knows the parameters */
          "%s_fn *const %s[] = {",
          type, tables, tables, tables);
  for (int n = 0; n < EXPRS; n++) {
    fprintf(out, "(%s_fn *)%s%d,\n", tables, tables, n);
  }
  fputs("};\n", out);
}

/* `first` stands before everything. */
static void *compile(const char *options, const char *first) {
  static const char *const pieces[] = {"dialect.h", "args.h", "gpu_args.h", "expr.h"};
  const char *base = getenv("TMPDIR");
  char folder[512], source[600], object[600], command[2048];
  void *module;
  FILE *out;
  snprintf(folder, sizeof(folder), "%s/tessera-emit-XXXXXX", base != NULL ? base : "/tmp");
  assert_non_null(mkdtemp(folder));
  snprintf(source, sizeof(source), "%s/e.c", folder);
  snprintf(object, sizeof(object), "%s/e.so", folder);
  out = fopen(source, "w");
  assert_non_null(out);
  fprintf(out, "#include <math.h>\n%s\n", first);
  for (size_t n = 0; n < sizeof(pieces) / sizeof(pieces[0]); n++) {
    assert_non_null(tsr__kernel_text_find(pieces[n]));
    fputs(tsr__kernel_text_find(pieces[n]), out);
  }
  write_functions(out, exprs, "float", "scores");
  write_functions(out, masks, "int", "masks");
  assert_int_equal(fclose(out), 0);
  /* No built-in functions: a compiler folds those of constants by rules of its own. */
  snprintf(command, sizeof(command),
           "%s -std=c99 -Wall -Wextra -Werror -Wno-unused-function "
           "-Wno-tautological-compare -O1 -fno-builtin -fPIC -shared %s -o %s %s -lm",
           TSR_TEST_CC, options, object, source);
  if (system(command) != 0) {
    fail_msg("%s", command);
  }
  module = dlopen(object, RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) {
    fail_msg("%s", dlerror());
  }
  unlink(source);
  unlink(object);
  rmdir(folder);
  return module;
}

/* The names' values as kernels are told them; what a tensor's rank leaves out is noise. */
static void bind(tsr_expr_args *x, tsr_expr_ptrs *p) {
  memset(x, 0x5a, sizeof(*x));
  memset(p, 0, sizeof(*p));
  memcpy(x->scalar, g.env.scalar, sizeof(g.env.scalar));
  for (int t = 0; t < 4; t++) {
    const tsr_expr_aux *aux = &g.env.aux[t];
    x->aux[t].offset_bytes = 4 * pick(&g, 100);
    p->aux[t] = (const char *)aux->data - x->aux[t].offset_bytes;
    for (int a = 0; a < aux->rank; a++) {
      x->aux[t].shape[a] = (tsr_i32)aux->shape[a];
      x->aux[t].stride[a] = aux->stride[a];
    }
  }
}

static void compare(int n, const table *scores, const table *allows) {
  const tsr_expr_lanes lanes = random_lanes(&g);
  float want[LANES], out;
  uint8_t allow[LANES];
  tsr_expr_args x;
  tsr_expr_ptrs p;
  bind(&x, &p);
  tsr__expr_eval(exprs[n], &g.env, &lanes, LANES, want);
  tsr__expr_eval_mask(masks[n], &g.env, &lanes, LANES, allow);
  for (int k = 0; k < LANES; k++) {
    const tsr_i64 b = g.var[0][k], i = g.var[3][k], j = g.var[4][k], q = g.var[5][k], kv = g.var[6][k],
                  off = g.var[7][k];
    const tsr_i32 h = (tsr_i32)g.var[1][k], hkv = (tsr_i32)g.var[2][k];
    out = scores->score[n](&x, &p, g.score[k], b, h, hkv, i, j, q, kv, off);
    if (memcmp(&out, &want[k], sizeof(out)) != 0 && !(isnan(out) && isnan(want[k]))) {
      char *text;
      assert_int_equal(tsr__expr_emit(NULL, exprs[n], &text, NULL), TSR_OK);
      fail_msg("%a, not %a from\n%s", (double)out, (double)want[k], text);
    }
    if (allows->mask[n](&x, &p, b, h, hkv, i, j, q, kv, off) != allow[k]) {
      char *text;
      assert_int_equal(tsr__expr_emit(NULL, masks[n], &text, NULL), TSR_OK);
      fail_msg("not %d from\n%s", (int)allow[k], text);
    }
  }
}

static void expect_values(const char *options, const char *first) {
  table scores, allows;
  void *module = compile(options, first);
  scores.ptr = dlsym(module, "scores");
  allows.ptr = dlsym(module, "masks");
  assert_non_null(scores.ptr);
  assert_non_null(allows.ptr);
  for (int n = 0; n < EXPRS; n++) {
    for (int round = 0; round < 20; round++) {
      g.with_extremes = round % 2;
      random_names_values(&g);
      for (int k = 0; k < LANES; k++) { /* heads are 32-bit in kernels */
        g.var[TSR_EXPR_VAR_H][k] = (int32_t)g.var[TSR_EXPR_VAR_H][k];
        g.var[TSR_EXPR_VAR_HKV][k] = (int32_t)g.var[TSR_EXPR_VAR_HKV][k];
      }
      compare(n, &scores, &allows);
    }
  }
  dlclose(module);
}

static void test_values(void **state) {
  (void)state;
  expect_values("-ffp-contract=off", "");
}

/* Where the compiler may fuse, the emitted functions say that it must not. */
static void test_never_fused(void **state) {
  (void)state;
#if defined(TSR_TEST_FUSES) && defined(__x86_64__)
  if (!__builtin_cpu_supports("fma")) {
    skip();
  }
  expect_values("-ffp-contract=on -mfma", "#pragma clang fp contract(fast)");
#else
  skip();
#endif
}

static void test_text(void **state) {
  static const char *const texts[] = {"score * strange_name + 1.5", "score + strange_name * 1.5"};
  static const char *const scalars[] = {"strange_name"}, *const others[] = {"other"};
  tsr_expr *expr;
  char *first, *second;
  (void)state;
  for (int n = 0; n < 2; n++) {
    assert_int_equal(
        tsr__expr_parse(NULL, texts[n], TSR_EXPR_KIND_SCORE, scalars, 1, NULL, 0, "score_expr", &expr, NULL), TSR_OK);
    assert_int_equal(tsr__expr_emit(NULL, expr, n == 0 ? &first : &second, NULL), TSR_OK);
    tsr__expr_destroy(NULL, expr);
  }
  assert_null(strstr(first, "strange"));
  assert_non_null(strstr(first, "tsr_as_f32(0x3fc00000u)"));
  assert_string_not_equal(first, second);
  tsr__alloc_free(NULL, second);
  /* Equal trees, equal texts: images are shared. */
  assert_int_equal(
      tsr__expr_parse(NULL, "(score)*other+15e-1", TSR_EXPR_KIND_SCORE, others, 1, NULL, 0, "score_expr", &expr, NULL),
      TSR_OK);
  assert_int_equal(tsr__expr_emit(NULL, expr, &second, NULL), TSR_OK);
  tsr__expr_destroy(NULL, expr);
  assert_string_equal(first, second);
  tsr__alloc_free(NULL, first);
  tsr__alloc_free(NULL, second);
}

static void *no_memory(void *user, size_t bytes) {
  (void)user;
  (void)bytes;
  return NULL;
}

static void no_free(void *user, void *ptr) {
  (void)user;
  (void)ptr;
}

static void test_no_memory(void **state) {
  const tsr__alloc none = {no_memory, no_free, NULL};
  tsr_error err;
  char *text = (char *)&err;
  (void)state;
  assert_int_equal(tsr__expr_emit(&none, masks[0], &text, &err), TSR_OUT_OF_MEMORY);
  assert_null(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values),
      cmocka_unit_test(test_never_fused),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_no_memory),
  };
  int failed;
  g.rng.state = random_seed();
  make_exprs();
  failed = cmocka_run_group_tests(tests, NULL, NULL);
  for (int n = 0; n < EXPRS; n++) {
    tsr__expr_destroy(NULL, exprs[n]);
    tsr__expr_destroy(NULL, masks[n]);
  }
  return failed;
}
