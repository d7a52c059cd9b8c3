/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle reads expressions with a parser of its own; on random mask expressions both must allow the same pairs. */
#include "tests/unit/expr_random.h"

#include "common/reference.h"

static random_expr g;

static tsr__ref_pair pair_at(int lane) {
  tsr__ref_pair p;
  p.b = g.var[TSR_EXPR_VAR_B][lane];
  p.h = g.var[TSR_EXPR_VAR_H][lane];
  p.hkv = g.var[TSR_EXPR_VAR_HKV][lane];
  p.i = g.var[TSR_EXPR_VAR_I][lane];
  p.j = g.var[TSR_EXPR_VAR_J][lane];
  p.q_len = g.var[TSR_EXPR_VAR_Q_LEN][lane];
  p.kv_len = g.var[TSR_EXPR_VAR_KV_LEN][lane];
  p.off = g.var[TSR_EXPR_VAR_OFF][lane];
  return p;
}

static void make_reference(tsr__ref *r, tsr_attention_desc *desc, tsr_run_args *args) {
  memset(r, 0, sizeof(*r));
  *desc = tsr_attention_desc_init();
  *args = tsr_run_args_init();
  desc->scalar_names = random_names;
  desc->num_scalars = 2;
  desc->num_aux = 4;
  memcpy(args->scalars, g.env.scalar, sizeof(args->scalars));
  r->desc = desc;
  r->args = args;
  for (int t = 0; t < 4; ++t) {
    const tsr_expr_aux *aux = &g.env.aux[t];
    r->aux[t].data = (unsigned char *)(uintptr_t)aux->data;
    r->aux[t].dtype = aux->dtype;
    for (int a = 0; a < 4; ++a) {
      r->aux[t].shape[a] = a < aux->rank ? aux->shape[a] : 1;
      r->aux[t].stride[a] = a < aux->rank ? aux->stride[a] : 0;
    }
  }
}

/* No function whose last bit the C library chooses: the oracle computes them in float64. */
static void test_same_pairs(void **state) {
  int allowed_pairs = 0, pairs = 0;
  (void)state;
  for (int n = 0; n < 20000; ++n) {
    tsr_attention_desc desc;
    tsr_run_args args;
    tsr__ref r;
    tsr__ref_expr *expected;
    uint8_t allow[LANES];
    tsr_error err;
    g.with_score = g.with_functions = 0;
    g.with_extremes = n % 2;
    random_names_values(&g);
    (void)random_text(&g, 1 + pick(&g, 30));
    make_reference(&r, &desc, &args);
    if (tsr__ref_expr_create(&r, g.text, "mask_expr", &expected, &err) != TSR_OK) {
      fail_msg("'%s': %s", g.text, err.text);
    }
    tsr_expr *expr = parse_random(&g, g.text, TSR_EXPR_KIND_MASK);
    const tsr_expr_lanes lanes = random_lanes(&g);
    tsr__expr_eval_mask(expr, &g.env, &lanes, LANES, allow);
    for (int k = 0; k < LANES; ++k, ++pairs) {
      const tsr__ref_pair pair = pair_at(k);
      if (allow[k] != tsr__ref_expr_mask(expected, &pair)) {
        fail_msg("'%s', lane %d: %d, the oracle says otherwise", g.text, k, (int)allow[k]);
      }
      allowed_pairs += allow[k];
    }
    tsr__expr_destroy(NULL, expr);
    tsr__alloc_free(NULL, expected);
  }
  assert_true(allowed_pairs > pairs / 10 && allowed_pairs < pairs - pairs / 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_pairs),
  };
  g.rng.state = random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
