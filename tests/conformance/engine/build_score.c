/* SPDX-License-Identifier: Apache-2.0 */
/* What is added to the scores: scale and cap, bias, ALiBi, sink, expressions; and dropout. */
#include "build.h"

static int has(const conf_problem *p, int item) {
  return conf_has(&p->c.items, item);
}

/* ---- Numbers of a run -------------------------------------------------------------------------- */

static void set_numbers(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "numbers");
  const double scale = conf_uniform(&r, 0.6, 1.4) / sqrt((double)p->c.head_dim), cap = conf_uniform(&r, 1.0, 6.0),
               drop = conf_uniform(&r, 0.05, 0.6);
  const double extreme = conf_unit(&r);
  if (p->c.scale >= 0) {
    p->args.scale = (float)p->c.scale;
  } else if (has(p, CONF_scale)) {
    p->args.scale = (float)scale;
  } else if (has(p, CONF_data_large)) {
    p->args.scale = 256.0f; /* a power of two: logits stay exact */
  }
  if (has(p, CONF_softcap)) {
    p->desc.flags |= TSR_SOFTCAP;
    p->args.softcap = (float)(p->c.softcap >= 0 ? p->c.softcap : cap);
  }
  if (has(p, CONF_dropout)) {
    p->desc.flags |= TSR_DROPOUT;
    p->args.dropout_p = (float)(p->c.dropout_p >= 0 ? p->c.dropout_p
                                : extreme < 0.05    ? 0.0
                                : extreme > 0.95    ? 1.0
                                                    : drop);
    if (!has(p, CONF_rng_state)) {
      p->args.seed = conf_next(&r);
      p->args.offset = conf_next(&r);
    }
  }
}

static int make_rng_state(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "rng_state");
  if (!conf_make_vector(p, CONF_T_rng_state, 0, TSR_I64, 2, 1)) {
    return 0;
  }
  for (int n = 0; n < 2; n++) {
    conf_put(&p->t[CONF_T_rng_state], n, 0, 0, 0, (double)(int64_t)(conf_next(&r) >> 12) * (n == 0 ? -1.0 : 1.0));
  }
  return 1;
}

/* ---- Bias ---------------------------------------------------------------------------------------- */

static double lowest(tsr_dtype dtype) {
  return dtype == TSR_F16 ? -65504.0 : dtype == TSR_BF16 ? -0x1.fep127 : -0x1.fffffep127;
}

/* Does any sequence use row i, key j of an element whose axes of extent 1 stand for all? */
static int used(const conf_problem *p, const conf_tensor *t, int64_t b, int64_t i, int64_t j) {
  for (int64_t x = 0; x < p->c.batch; x++) {
    if ((t->layout.shape[0] == 1 || x == b) && (t->layout.shape[2] == 1 || i < p->len_q[x]) &&
        (t->layout.shape[3] == 1 || j < p->len_k[x])) {
      return 1;
    }
  }
  return 0;
}

static int make_bias(conf_problem *p, tsr_dtype dtype) {
  conf_rng r = conf_rng_for(p->c.seed, "bias");
  const int64_t n0 = has(p, CONF_bias_b1) ? 1 : p->batch_plan, n1 = has(p, CONF_bias_h1) ? 1 : p->c.q_heads;
  const int64_t n2 = has(p, CONF_bias_q1) ? 1 : p->c.seqlen_q, n3 = has(p, CONF_bias_k1) ? 1 : p->c.seqlen_k;
  const int64_t low_row = conf_range(&r, 0, n2 - 1);
  /* -65504 is small enough for f32 to keep a few digits of what is added to it: several keys of that bias would differ
   * by rounding alone. So one of them is left in a row, which tells a value from a mask. */
  const int64_t low_key = dtype == TSR_F16 && n3 > 1 ? conf_range(&r, 0, n3 - 1) : -1;
  conf_tensor *t = &p->t[CONF_T_bias];
  if (!conf_make_local(p, CONF_T_bias, dtype, n0, n1, n2, n3)) {
    return 0;
  }
  for (int64_t b = 0; b < n0; b++) {
    for (int64_t i = 0; i < n2; i++) {
      for (int64_t j = 0; j < n3; j++) {
        if (!used(p, t, b, i, j)) {
          continue;
        }
        for (int64_t h = 0; h < n1; h++) {
          double x = conf_normal(&r);
          x = has(p, CONF_bias_lowest) && i == low_row ? lowest(dtype) : x;
          x = has(p, CONF_bias_inf) && conf_chance(&r, 0.2) ? -(double)INFINITY : x;
          x = has(p, CONF_bias_lowest) && i == low_row && low_key >= 0 && j != low_key ? -(double)INFINITY : x;
          conf_put(t, b, h, i, j, x);
        }
      }
    }
  }
  return 1;
}

static int make_alibi(conf_problem *p, int64_t n0) {
  conf_rng r = conf_rng_for(p->c.seed, "alibi");
  if (!conf_make_vector(p, CONF_T_alibi_slopes, 0, TSR_F32, n0, p->c.q_heads)) {
    return 0;
  }
  for (int64_t b = 0; b < (n0 == 1 ? 1 : p->c.batch); b++) {
    for (int64_t h = 0; h < p->c.q_heads; h++) {
      conf_put(&p->t[CONF_T_alibi_slopes], b, h, 0, 0, conf_uniform(&r, 0.01, 0.2));
    }
  }
  return 1;
}

static int make_sink(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "sink");
  const int64_t none = conf_range(&r, 0, p->c.q_heads - 1);
  if (!conf_make_vector(p, CONF_T_sink, 0, TSR_F32, p->c.q_heads, 1)) {
    return 0;
  }
  for (int64_t h = 0; h < p->c.q_heads; h++) {
    const double z = 1.5 * conf_normal(&r);
    conf_put(&p->t[CONF_T_sink], h, 0, 0, 0, has(p, CONF_sink_inf) && h == none ? -(double)INFINITY : z);
  }
  return 1;
}

/* ---- Expressions --------------------------------------------------------------------------------- */

static const char *const score_simple[] = {"score + 0.5 * (j <= i + off)", "score - 0.05 * float(abs(i + off - j))",
                                           "3.0 * tanh(score / 3.0)"};
static const char *const score_scalar[] = {"score * gain + shift * float(h)", "gain * score + shift",
                                           "score - shift * float(b + 1)"};
static const char *const score_aux[] = {"score + aux0[h, j]", "score + aux0[h, j - 3]",
                                        "score * (1.0 + 0.1 * aux0[hkv, i])"};
static const char *const score_cond[] = {"(h + b) % 2 == 0 ? score * score * 0.25 : score",
                                         "j % 3 == 1 ? 0.5 * score : score + 0.25", "log(1.0 + exp(score))"};
static const char *const mexpr_int[] = {"(i - j) % 4 != 2", "j % 3 != 1 || j <= i + off", "i / 8 >= j / 8 - 2"};
static const char *const mexpr_scalar[] = {"float(j % 11) >= cut", "float(i + j) >= cut || h == 0",
                                           "float((i * 7 + j * 5 + hkv * 3) % 13) >= cut"};
static const char *const mexpr_aux[] = {"aux1[b, j] == aux1[b, i]", "aux1[b, j] >= aux1[b, i] || !(j % 2)",
                                        "aux1[b, j + 1] < 3"};
static const char *const mexpr_cond[] = {"b % 2 == 0 || j - 2 * i < 3 ? j % 5 < 4 : i % 2 == j % 2",
                                         "min(i, j) % 4 != 3", "j < kv_len - 1 && i < q_len || i == 0"};

static int make_aux(conf_problem *p, int id, tsr_dtype dtype, int64_t n0, int64_t n1) {
  conf_rng r = conf_rng_for(p->c.seed, id == CONF_T_aux0 ? "aux0" : "aux1");
  if (!conf_make_local(p, id, dtype, n0, n1, 1, 1)) {
    return 0;
  }
  for (int64_t x = 0; x < n0; x++) {
    for (int64_t y = 0; y < n1; y++) {
      conf_put(&p->t[id], x, y, 0, 0, dtype == TSR_F32 ? conf_normal(&r) : (double)conf_range(&r, 0, 3));
    }
  }
  return 1;
}

static int make_expressions(conf_problem *p) {
  static const struct {
    int item, is_mask;
    const char *const *texts;
  } kinds[] = {{CONF_score_simple, 0, score_simple}, {CONF_score_scalar, 0, score_scalar},
               {CONF_score_aux, 0, score_aux},       {CONF_score_cond, 0, score_cond},
               {CONF_mexpr_int, 1, mexpr_int},       {CONF_mexpr_scalar, 1, mexpr_scalar},
               {CONF_mexpr_aux, 1, mexpr_aux},       {CONF_mexpr_cond, 1, mexpr_cond}};
  static const char *const names[] = {"gain", "shift", "cut"};
  const int64_t longest = p->c.seqlen_q > p->c.seqlen_k ? p->c.seqlen_q : p->c.seqlen_k;
  const int with_aux = has(p, CONF_score_aux) || has(p, CONF_mexpr_aux);
  conf_rng r = conf_rng_for(p->c.seed, "expressions");
  int any = 0;
  for (size_t n = 0; n < sizeof(kinds) / sizeof(kinds[0]); n++) {
    const char *text = kinds[n].texts[conf_range(&r, 0, 2)];
    if (has(p, kinds[n].item)) {
      *(kinds[n].is_mask ? &p->desc.mask_expr : &p->desc.score_expr) = text;
      any = 1;
    }
  }
  if (any) { /* scalars may be there unused */
    for (int n = 0; n < 3; n++) {
      p->scalar_names[n] = names[n];
    }
    p->desc.scalar_names = p->scalar_names;
    p->desc.num_scalars = 3;
    p->args.scalars[0] = (float)conf_uniform(&r, 0.5, 1.5);
    p->args.scalars[1] = (float)conf_uniform(&r, 0.01, 0.3);
    p->args.scalars[2] = (float)conf_range(&r, 1, 4);
  }
  if (!with_aux) {
    return 1;
  }
  p->desc.num_aux = 2; /* aux1 goes with aux0 */
  return make_aux(p, CONF_T_aux0, TSR_F32, p->c.q_heads, longest > 1 ? longest : 2) &&
         make_aux(p, CONF_T_aux1, TSR_I32, p->batch_plan, longest > 1 ? longest : 2);
}

int conf_build_score(conf_problem *p) {
  const tsr_dtype bias = has(p, CONF_bias_f32)    ? TSR_F32
                         : has(p, CONF_bias_f16)  ? TSR_F16
                         : has(p, CONF_bias_bf16) ? TSR_BF16
                                                  : TSR_DTYPE_NONE;
  set_numbers(p);
  if (has(p, CONF_rng_state) && !make_rng_state(p)) {
    return 0;
  }
  if (bias != TSR_DTYPE_NONE && !make_bias(p, bias)) {
    return 0;
  }
  if (has(p, CONF_alibi) && !make_alibi(p, 1)) {
    return 0;
  }
  if (has(p, CONF_alibi_b) && !make_alibi(p, p->batch_plan)) {
    return 0;
  }
  if (has(p, CONF_sink) && !make_sink(p)) {
    return 0;
  }
  return make_expressions(p);
}
