/* SPDX-License-Identifier: Apache-2.0 */
/* Numerics: lines 29 to 33. */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};
static const double infinity = (double)INFINITY;

/* ---- 29 -------------------------------------------------------------------------------------- */

/* A few channels carry most of q and k, as in large models: logits of some hundreds around a mean of thousands. */
static void g29_logits_of_large_models(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    const int op = n / 6;
    gy_problem *p = gy_dense((gy_dims){op, floats[n % 3], 1, 40, 90, 4, 2, 128, 128});
    gy_say("%s, op %d", tsr_dtype_name(floats[n % 3]), op);
    gy_randomise(p, &p->desc.q, &p->args.q, 4.0);
    gy_randomise(p, &p->desc.k, &p->args.k, 4.0);
    for (int64_t e = 0; e < 90 * 4; e++) {
      const int64_t h = e % 4, row = e / 4;
      if (row < 40) {
        GY_PUT(p, q, 0, row, h, 5, 60.0 + conf_normal(&p->rng));
        GY_PUT(p, q, 0, row, h, 77, -35.0 + conf_normal(&p->rng));
      }
      if (h < 2) {
        GY_PUT(p, k, 0, row, h, 5, (n % 2 ? -1 : 1) * 50.0 + conf_normal(&p->rng));
        GY_PUT(p, k, 0, row, h, 77, -25.0 + conf_normal(&p->rng));
      }
    }
    gy_check_free(p);
  }
}

/* Scaled logits far beyond f16 and even: key h + 3 i of row i wins alone, so the result is its v, bit for bit. */
static void winner_takes_all(gy_problem *p, gy_run *run, void *user) {
  (void)run;
  (void)user;
  for (int64_t e = 0; e < p->desc.o.shape[1] * p->desc.o.shape[2] * p->desc.o.shape[3]; e++) {
    const int64_t c = e % p->desc.o.shape[3], h = e / p->desc.o.shape[3] % p->desc.o.shape[2];
    const int64_t i = e / (p->desc.o.shape[3] * p->desc.o.shape[2]);
    if (GY_GET(p, o, 0, i, h, c) != GY_GET(p, v, 0, h + 3 * i, h, c)) {
      gy_fail("o[0,%lld,%lld,%lld] is %.9g, must be v of key %lld", (long long)i, (long long)h, (long long)c,
              GY_GET(p, o, 0, i, h, c), (long long)(h + 3 * i));
    }
  }
}

static void g29_one_key_wins(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, floats[n % 3], 1, 40, 130, 4, 4, 128, 128});
    gy_say("%s, case %d", tsr_dtype_name(floats[n % 3]), n / 3);
    GY_FILL(p, q, 240.0);
    GY_FILL(p, k, n / 6 ? -240.0 : 200.0); /* all logits about -6.5e5 or 5.4e5 */
    for (int64_t e = 0; e < 40 * 4 * 128; e++) {
      const int64_t i = e / 512, h = e / 128 % 4, c = e % 128;
      GY_PUT(p, q, 0, i, h, c, c == i % 128 ? 240.0 : 0.0);
      GY_PUT(p, k, 0, h + 3 * i, h, i, n / 6 ? -100.0 : 240.0); /* the row's own channel */
    }
    p->args.scale = n / 3 % 2 ? 10.0f : 0.0f;
    gy_check_also(p, winner_takes_all, NULL);
    gy_free(p);
  }
}

/* Values near the end of f16 average to values near the end of f16. */
static void g29_large_values(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, floats[n % 3], 1, 30, n < 3 ? 500 : 3, 2, 1, 64, 64});
    gy_say("%s, %d keys", tsr_dtype_name(floats[n % 3]), n < 3 ? 500 : 3);
    for (int64_t e = 0; e < p->desc.v.shape[1] * 64; e++) {
      GY_PUT(p, v, 0, e / 64, 0, e % 64, (e % 2 ? -1 : 1) * conf_uniform(&p->rng, 30000, 65000));
    }
    gy_check_free(p);
  }
}

/* ---- 30 -------------------------------------------------------------------------------------- */

static const tsr_dtype fp8[] = {TSR_F8E4M3, TSR_F8E5M2};

/* Logits that rise from key to key: a maximum that lags behind lets exp(s - max) grow beyond 448. */
static void g30_rising_logits(void **state) {
  static const double slopes[] = {0.02, 0.1, 0.7, 3.0};
  (void)state;
  for (int n = 0; n < 24; n++) {
    const tsr_dtype dtype = n < 16 ? fp8[n % 2] : floats[n % 3];
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, dtype, 1, 48, 300, 2, 1, 64, 64});
    gy_say("%s, slope %g", tsr_dtype_name(dtype), slopes[n / 2 % 4]);
    GY_IN(p, bias, tsr_layout_dense(TSR_F32, 1, 1, 48, 300));
    for (int64_t e = 0; e < 48 * 300; e++) { /* rising; falling; rising in steps of a tile */
      const int64_t i = e / 300, j = e % 300;
      GY_PUT(p, bias, 0, 0, i, j, slopes[n / 2 % 4] * (double)(i % 3 == 0 ? j : i % 3 == 1 ? -j : j / 32 * 32));
    }
    if (n >= 8 && n < 16) {
      GY_IN(p, q_descale, tsr_layout_dense(TSR_F32, 1, 1, 1, 1));
      GY_FILL(p, q_descale, 0.37);
      GY_IN(p, k_scale, tsr_layout_dense(TSR_F32, 1, 1, 1, 1));
      GY_FILL(p, k_scale, 1.9);
      GY_IN(p, v_scale, tsr_layout_dense(TSR_F32, 1, 300, 1, 1));
      for (int64_t j = 0; j < 300; j++) {
        GY_PUT(p, v_scale, 0, j, 0, 0, conf_uniform(&p->rng, 1.0, 300.0));
      }
    }
    gy_check_free(p);
  }
}

/* The first row of a causal block sees one key, the second two: the diagonal is there. */
static void diagonal(gy_problem *p, gy_run *run, void *user) {
  (void)run;
  (void)user;
  for (int64_t c = 0; c < p->desc.o.shape[3]; c++) {
    for (int64_t h = 0; h < p->desc.o.shape[2]; h++) {
      const double want = GY_GET(p, v, 0, 0, h, c), got = GY_GET(p, o, 0, 0, h, c);
      if (got != want) {
        gy_fail("o[0,0,%lld,%lld] is %.9g, must be the first v, %.9g", (long long)h, (long long)c, got, want);
      }
    }
  }
}

static void g30_diagonal_of_fp8(void **state) {
  static const int64_t dims[] = {256, 64, 128, 40};
  (void)state;
  for (int n = 0; n < 16; n++) {
    const int64_t s = n < 8 ? 130 : 257;
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, fp8[n % 2], 1, s, s, 2, 2, dims[n / 2 % 4], dims[n / 2 % 4]});
    gy_say("%s, D %lld, S %lld", tsr_dtype_name(fp8[n % 2]), (long long)dims[n / 2 % 4], (long long)s);
    p->desc.flags |= TSR_CAUSAL;
    for (int64_t e = 0; e < s * 2; e++) { /* row i and key i agree, others hardly */
      GY_PUT(p, q, 0, e / 2, e % 2, e / 2 % p->desc.q.shape[3], 16.0);
      GY_PUT(p, k, 0, e / 2, e % 2, e / 2 % p->desc.q.shape[3], 16.0);
    }
    gy_check_also(p, diagonal, NULL);
    gy_free(p);
  }
}

/* ---- 31 -------------------------------------------------------------------------------------- */

static void g31_soft_cap(void **state) {
  static const float caps[] = {50.0f, 30.0f, 1.0f, 20.0f};
  static const double sigmas[] = {1.0, 3.0, 30.0};
  (void)state;
  for (int n = 0; n < 48; n++) {
    const int op = n % 2, extras = n / 24;
    gy_problem *p = gy_dense((gy_dims){op, floats[n / 2 % 3], 1, 33, 75, 4, 2, 64, 64});
    gy_say("cap %g, sigma %g, op %d, %s%s", (double)caps[n / 6 % 4], sigmas[n % 3], op,
           tsr_dtype_name(floats[n / 2 % 3]), extras ? ", bias and ALiBi after it" : "");
    p->desc.flags |= TSR_SOFTCAP | (n % 4 == 0 ? TSR_CAUSAL : 0);
    p->args.softcap = caps[n / 6 % 4];
    gy_randomise(p, &p->desc.q, &p->args.q, sigmas[n % 3]);
    gy_randomise(p, &p->desc.k, &p->args.k, sigmas[n % 3]);
    if (extras) { /* beyond the cap, alike for a row: only a cap before it leaves the differences */
      GY_IN(p, alibi_slopes, tsr_layout_dense(TSR_F32, 1, 4, 1, 1));
      gy_randomise(p, &p->desc.alibi_slopes, &p->args.alibi_slopes, 0.05);
      GY_IN(p, bias, tsr_layout_dense(TSR_F32, 1, 4, 33, 75));
      for (int64_t e = 0; e < 4 * 33 * 75; e++) {
        const double shift = (e / 75 % 2 ? 2.0 : -3.0) * (double)caps[n / 6 % 4];
        GY_PUT(p, bias, 0, e / 2475, e / 75 % 33, e % 75, shift + conf_normal(&p->rng));
      }
      for (int64_t e = 0; e < 4 * 33; e++) {
        GY_PUT(p, bias, 0, e / 33, e % 33, e % 40, -infinity);
      }
      p->desc.score_expr = n % 3 ? "score * 0.5" : NULL;
      if (op == TSR_BACKWARD) {
        GY_OUT(p, dbias, p->desc.bias);
      }
    }
    gy_check_free(p);
  }
}

/* Raw logits of 1e3 to 1e6, all of them at the cap: a uniform mean, and no gradient through the cap. */
static void g31_raw_logits_far_beyond_the_cap(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    const int op = n % 2;
    const double x = n / 6 ? 240.0 : 12.0;
    gy_problem *p = gy_dense((gy_dims){op, floats[n / 2 % 3], 1, 33, 75, 2, 1, 128, 128});
    gy_say("raw %g, op %d, %s", x * x * 128, op, tsr_dtype_name(floats[n / 2 % 3]));
    p->desc.flags |= TSR_SOFTCAP;
    p->args.softcap = 30.0f;
    GY_FILL(p, q, x);
    for (int64_t e = 0; e < 75 * 128; e++) {
      GY_PUT(p, k, 0, e / 128, 0, e % 128, e / 128 % 2 ? x : -x);
    }
    gy_check_free(p);
  }
}

/* ---- 32 -------------------------------------------------------------------------------------- */

/* dsink by its definition, from the run's own inputs. */
static void dsink_formula(gy_problem *p, gy_run *run, void *user) {
  (void)run;
  (void)user;
  for (int64_t h = 0; h < p->desc.q.shape[2]; h++) {
    const double z = GY_GET(p, sink, h, 0, 0, 0);
    double want = 0.0, size = 0.0;
    for (int64_t i = 0; i < p->desc.q.shape[1]; i++) {
      const double lse = GY_GET(p, lse, 0, h, i, 0);
      double delta = 0.0;
      for (int64_t c = 0; c < p->desc.o.shape[3]; c++) {
        delta += GY_GET(p, o, 0, i, h, c) * GY_GET(p, dout, 0, i, h, c);
      }
      want -= z == -infinity ? 0.0 : exp(z - lse) * delta;
      size += z == -infinity ? 0.0 : fabs(exp(z - lse) * delta);
    }
    if (!(fabs(GY_GET(p, dsink, h, 0, 0, 0) - want) <= 1e-5 * size)) {
      gy_fail("dsink[%lld] is %.9g, by its definition %.9g", (long long)h, GY_GET(p, dsink, h, 0, 0, 0), want);
    }
  }
}

static void add_sinks(gy_problem *p, int n) {
  GY_IN(p, sink, tsr_layout_dense(TSR_F32, p->desc.q.shape[2], 1, 1, 1));
  if (n % 3 == 2) {
    GY_PUT(p, sink, 1, 0, 0, 0, -infinity);
    GY_PUT(p, sink, 2, 0, 0, 0, 20.0); /* takes nearly all */
  }
}

static void g32_sinks(void **state) {
  static const int64_t q_lens[4] = {5, 5, 30, 1}, kv_lens[4] = {2, 0, 70, 300};
  static const int64_t more_q[3] = {25, 5, 60}, more_kv[3] = {22, 0, 40};
  (void)state;
  for (int n = 0; n < 12; n++) { /* Sq 5, Sk 2: rows without a key have the sink */
    gy_problem *p =
        gy_packed((gy_dims){TSR_FORWARD, floats[n % 3], 4, 0, 0, 4, n % 2 ? 2 : 4, 64, 64}, q_lens, kv_lens, 0);
    gy_say("forward, case %d", n);
    p->desc.flags |= n < 6 ? TSR_CAUSAL : 0;
    p->desc.num_splits = n % 4 == 3 ? 3 : 0;
    add_sinks(p, n);
    gy_check_free(p);
  }
  for (int n = 0; n < 24; n++) {
    gy_problem *p = gy_packed((gy_dims){TSR_BACKWARD, floats[n % 3], 3, 0, 0, 4, n % 2 ? 2 : 4, 64, 64},
                              n < 12 ? q_lens : more_q, n < 12 ? kv_lens : more_kv, 0);
    gy_say("backward, case %d", n);
    p->desc.flags |= n % 12 < 6 ? TSR_CAUSAL : 0;
    add_sinks(p, n / 3);
    GY_OUT(p, dsink, p->desc.sink);
    GY_ADD(p, v, 1.0); /* so that the terms of dsink do not cancel */
    GY_ADD(p, dout, 1.0);
    if (n < 12) {
      GY_DROP(p, dq);
      GY_DROP(p, dk);
    }
    gy_check_also(p, dsink_formula, NULL);
    gy_free(p);
  }
}

/* ---- 33 -------------------------------------------------------------------------------------- */

enum { DROP = 64 }; /* rows, keys and channels: v and dout are identity matrices */

static void identity(gy_problem *p, const tsr_layout *l, const tsr_buffer *b) {
  (void)p;
  gy_fill(l, b, 0.0);
  for (int64_t e = 0; e < DROP * l->shape[2] * l->shape[0]; e++) {
    const int64_t i = e % DROP, h = e / DROP % l->shape[2];
    gy_put(l, b, e / DROP / l->shape[2], i, h, i, 1.0);
  }
}

/* kept[b][h][i][j] as forward shows it in o; backward in dv, with one head a kv head. */
static void read_kept(const gy_problem *p, uint8_t *kept) {
  const int backward = p->desc.op == TSR_BACKWARD;
  for (int64_t e = 0; e < 2 * 3 * DROP * DROP; e++) {
    const int64_t b = e / (3 * DROP * DROP), h = e / (DROP * DROP) % 3, i = e / DROP % DROP, j = e % DROP;
    kept[e] = backward ? GY_GET(p, dv, b, j, h, i) != 0.0 : GY_GET(p, o, b, i, h, j) != 0.0;
  }
}

typedef struct drop {
  gy_problem *backward;
  uint8_t kept[2 * 3 * DROP * DROP], again[2 * 3 * DROP * DROP];
} drop;

static void same_mask(gy_problem *p, gy_run *run, void *user) {
  drop *d = user;
  int64_t kept = 0, changed = 0;
  gy_run backward;
  const gy_target *const target = run->target;
  gy_go(p, run);
  read_kept(p, d->kept);
  for (int64_t e = 0; e < 2 * 3 * DROP * DROP; e++) {
    const int64_t b = e / (3 * DROP * DROP), h = e / (DROP * DROP) % 3, i = e / DROP % DROP, j = e % DROP;
    if (d->kept[e] != GY_GET(p, dropout_mask, b, h, i, j)) {
      gy_fail("pair [%lld,%lld,%lld,%lld] is %d in o, not so in dropout_mask", (long long)b, (long long)h, (long long)i,
              (long long)j, d->kept[e]);
    }
    kept += d->kept[e];
  }
  gy_compare(p, run);
  if (fabs((double)kept / (2 * 3 * DROP * DROP) - 0.52) > 0.02) { /* 6 standard deviations */
    gy_fail("%lld of %d pairs are kept, p is 0.48", (long long)kept, 2 * 3 * DROP * DROP);
  }
  for (int32_t v = 0; tsr_device_variant(target->device, TSR_OP_BACKWARD, v) != NULL; v++) {
    if (!gy_plan(d->backward, target, tsr_device_variant(target->device, TSR_OP_BACKWARD, v), &backward)) {
      continue;
    }
    gy_go(d->backward, &backward);
    read_kept(d->backward, d->again);
    if (memcmp(d->kept, d->again, sizeof(d->kept)) != 0) {
      gy_fail("backward draws another mask than forward");
    }
    gy_compare(d->backward, &backward);
    gy_unplan(&backward);
  }
  p->args.offset++; /* the next call */
  gy_go(p, run);
  p->args.offset--;
  read_kept(p, d->again);
  for (int64_t e = 0; e < 2 * 3 * DROP * DROP; e++) {
    changed += d->kept[e] != d->again[e];
  }
  if (changed < 2 * 3 * DROP * DROP / 3) { /* expected: half of them */
    gy_fail("the next offset changes %lld pairs", (long long)changed);
  }
}

static void add_dropout(gy_problem *p, int n) {
  p->desc.flags |= TSR_DROPOUT;
  p->args.dropout_p = 0.48f;
  p->args.seed = UINT64_C(0x123456789abcdef) + (uint64_t)n;
  p->args.offset = n % 2 ? UINT64_C(0xffffffff) : 7;
}

static void g33_dropout(void **state) {
  (void)state;
  for (int n = 0; n < 3; n++) {
    gy_dims dims = {TSR_FORWARD, floats[n % 3], 2, DROP, DROP, 3, 3, 16, DROP};
    gy_problem *p = gy_dense(dims);
    drop *d = calloc(1, sizeof(*d));
    assert_non_null(d);
    gy_say("%s", tsr_dtype_name(floats[n % 3]));
    dims.op = TSR_BACKWARD;
    d->backward = gy_dense(dims);
    add_dropout(p, n);
    add_dropout(d->backward, n);
    identity(p, &p->desc.v, &p->args.v);
    identity(d->backward, &d->backward->desc.dout, &d->backward->args.dout);
    GY_OUT(p, dropout_mask, tsr_layout_dense(TSR_U8, 2, 3, DROP, DROP));
    p->desc.num_splits = n;
    gy_each(p, same_mask, d);
    gy_free(p);
    gy_free(d->backward);
    free(d);
  }
  for (int n = 0; n < 12; n++) { /* packed, GQA, causal, every p; seed and offset from memory */
    static const float ps[] = {0.48f, 0.0f, 1.0f, 0.9f};
    static const int64_t q_lens[3] = {40, 20, 61}, kv_lens[3] = {70, 20, 61};
    gy_problem *p = gy_packed((gy_dims){n % 2, floats[n % 3], 3, 0, 0, 4, 2, 32, 32}, q_lens, kv_lens, 0);
    gy_say("packed, p %g, op %d", (double)ps[n / 3], n % 2);
    p->desc.flags |= n % 4 < 2 ? TSR_CAUSAL : 0;
    add_dropout(p, n);
    p->args.dropout_p = ps[n / 3];
    if (n % 4 == 1) {
      const int64_t rng_state[2] = {INT64_C(99), INT64_C(1) << 40};
      p->args.seed = p->args.offset = 0;
      GY_INTS(p, rng_state, TSR_I64, rng_state, 2);
    }
    gy_check_free(p);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g29_logits_of_large_models),
      GY_TEST(g29_one_key_wins),
      GY_TEST(g29_large_values),
      GY_TEST(g30_rising_logits),
      GY_TEST(g30_diagonal_of_fp8),
      GY_TEST(g31_soft_cap),
      GY_TEST(g31_raw_logits_far_beyond_the_cap),
      GY_TEST(g32_sinks),
      GY_TEST(g33_dropout),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
