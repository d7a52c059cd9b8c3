/* SPDX-License-Identifier: Apache-2.0 */
/* q, k, v, what backward reads, and the scales of quantised K/V. */
#include "build.h"

static int has(const conf_problem *p, int item) {
  return conf_has(&p->c.items, item);
}

/* ---- Values ------------------------------------------------------------------------------------ */

/* large: small integers, whose products and sums are exact in f32, so that logits of 1e5 (see scale in build.c) do not
 * drown the comparison in rounding errors of the products. */
static double draw(const conf_problem *p, conf_rng *r, int id) {
  const int is_qk = id == CONF_T_q || id == CONF_T_k;
  if (has(p, CONF_data_large) && is_qk) {
    return (double)conf_range(r, -8, 8);
  }
  if (has(p, CONF_data_constant) && is_qk) {
    return id == CONF_T_q ? 64.0 : -64.0;
  }
  if (has(p, CONF_data_big_v) && id == CONF_T_v) {
    return conf_uniform(r, -3e4, 3e4);
  }
  if (has(p, CONF_data_big_v) && id == CONF_T_dout) {
    return 1e-4 * conf_normal(r);
  }
  return conf_normal(r);
}

static double draw_code(const conf_problem *p, conf_rng *r, int id, tsr_dtype dtype) {
  switch (dtype) {
  case TSR_I8: return (double)conf_range(r, -127, 127);
  case TSR_U4: return (double)conf_range(r, 0, 15);
  default: return draw(p, r, id);
  }
}

static void fill_row(conf_problem *p, conf_rng *r, int id, int64_t i0, int64_t i1) {
  conf_tensor *t = &p->t[id];
  for (int64_t h = 0; h < t->layout.shape[2]; h++) {
    for (int64_t c = 0; c < t->layout.shape[3]; c++) {
      conf_put(t, i0, i1, h, c, draw_code(p, r, id, t->layout.dtype));
    }
  }
}

static void fill_q_like(conf_problem *p, int id) {
  conf_rng r = conf_rng_for(p->c.seed, p->t[id].name);
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      fill_row(p, &r, id, i0, i1);
    }
  }
}

static void fill_k_like(conf_problem *p, int id) {
  conf_rng r = conf_rng_for(p->c.seed, p->t[id].name);
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t j = 0; j < p->len_k[b]; j++) {
      int64_t i0, i1;
      conf_locate_k(p, b, j, &i0, &i1);
      fill_row(p, &r, id, i0, i1);
    }
  }
}

/* ---- K and V ------------------------------------------------------------------------------------- */

/* Extents of axes 0 and 1 of the two sides; a packed tensor has rows after the last sequence. */
static void extents(const conf_problem *p, int64_t nq[2], int64_t nk[2]) {
  conf_rng r = conf_rng_for(p->c.seed, "tail");
  const int64_t last = p->c.batch - 1, tail_q = conf_range(&r, 0, 3), tail_k = conf_range(&r, 0, 3);
  nq[0] = has(p, CONF_q_packed) ? 1 : p->batch_plan;
  nq[1] = has(p, CONF_q_packed) ? (last < 0 ? 0 : p->first_q[last] + p->slot_q[last]) + tail_q : p->c.seqlen_q;
  nk[0] = has(p, CONF_kv_packed) ? 1 : p->batch_plan;
  nk[1] = has(p, CONF_kv_packed) ? (last < 0 ? 0 : p->first_k[last] + p->slot_k[last]) + tail_k : p->c.seqlen_k;
  if (p->paged) {
    nk[0] = p->num_pages;
    nk[1] = p->c.page_size;
  }
}

/* K and V side by side in one tensor [n0, n1, 2, Hkv, max(D, Dv)]. */
static int make_interleaved(conf_problem *p, const int64_t nk[2]) {
  const int64_t wide = p->c.head_dim > p->c.head_dim_v ? p->c.head_dim : p->c.head_dim_v;
  const int64_t even = (wide + 1) / 2 * 2, heads = p->c.kv_heads;
  tsr_layout both = tsr_layout_dense(p->k_dtype, nk[0], nk[1], 2 * heads, even), one = both;
  if (!conf_tensor_make(p, CONF_T_k, 0, &both, 0)) {
    return 0;
  }
  one.shape[2] = heads;
  one.shape[3] = p->c.head_dim_v;
  conf_tensor_share(p, CONF_T_v, CONF_T_k, &one, heads * even);
  one.shape[3] = p->c.head_dim;
  p->t[CONF_T_k].layout = p->desc.k = one;
  return 1;
}

static int make_broadcast(conf_problem *p, int id, tsr_dtype dtype, int64_t n1, int64_t heads, int64_t channels) {
  conf_tensor *t = &p->t[id];
  tsr_layout l = tsr_layout_dense(dtype, 1, n1, heads, channels);
  l.shape[0] = p->batch_plan;
  l.stride[0] = 0;
  (void)t;
  return conf_tensor_make(p, id, 0, &l, 0);
}

static int make_kv(conf_problem *p, const int64_t nk[2]) {
  const int64_t heads = p->c.kv_heads, d = p->c.head_dim, dv = p->c.head_dim_v;
  if (has(p, CONF_layout_interleaved) && p->k_dtype == p->v_dtype) {
    return make_interleaved(p, nk);
  }
  if (has(p, CONF_layout_broadcast) && nk[0] == p->batch_plan) {
    return make_broadcast(p, CONF_T_k, p->k_dtype, nk[1], heads, d) &&
           make_broadcast(p, CONF_T_v, p->v_dtype, nk[1], heads, dv);
  }
  if (!conf_make_main(p, CONF_T_k, 0, p->k_dtype, nk[0], nk[1], heads, d)) {
    return 0;
  }
  if (has(p, CONF_v_in_k)) {
    tsr_layout l = p->t[CONF_T_k].layout;
    l.shape[3] = dv;
    conf_tensor_share(p, CONF_T_v, CONF_T_k, &l, 0);
    p->args.v.ptr = NULL;
    p->args.v.offset_bytes = 0;
    return 1;
  }
  return conf_make_main(p, CONF_T_v, 0, p->v_dtype, nk[0], nk[1], heads, dv);
}

/* ---- Scales ------------------------------------------------------------------------------------ */

/* Groups of channels: 2 where that divides, else one a channel. */
static int64_t groups_of(int64_t channels) {
  return channels % 4 == 0 ? 4 : channels % 2 == 0 ? 2 : channels;
}

static void scale_shape(const conf_problem *p, const conf_tensor *t, int64_t shape[4]) {
  const int whole = has(p, CONF_scale_full), by_batch = !p->paged && !has(p, CONF_kv_packed);
  shape[0] = whole || has(p, CONF_scale_token) || (has(p, CONF_scale_head) && by_batch) ? t->layout.shape[0] : 1;
  shape[1] = whole || has(p, CONF_scale_token) ? t->layout.shape[1] : 1;
  shape[2] = has(p, CONF_scale_tensor) ? 1 : t->layout.shape[2];
  shape[3] = whole || has(p, CONF_scale_group) ? groups_of(t->layout.shape[3]) : 1;
}

/* Fills the elements that used keys have; per_slot: axis 0 or 1 tells slots apart. */
static void fill_scale(conf_problem *p, int id, double centre, double spread) {
  conf_tensor *t = &p->t[id];
  conf_rng r = conf_rng_for(p->c.seed, t->name);
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t j = 0; j < p->len_k[b]; j++) {
      int64_t i0, i1;
      conf_locate_k(p, b, j, &i0, &i1);
      for (int64_t h = 0; h < t->layout.shape[2]; h++) {
        for (int64_t g = 0; g < t->layout.shape[3]; g++) {
          conf_put(t, i0, i1, h, g, conf_uniform(&r, centre - spread, centre + spread));
        }
      }
    }
  }
}

static int make_scales(conf_problem *p, int tensor, int scale, int zero) {
  static const int kinds[] = {CONF_scale_tensor, CONF_scale_head, CONF_scale_token, CONF_scale_group, CONF_scale_full};
  const tsr_dtype kv = p->t[tensor].layout.dtype;
  const tsr_dtype dtype = has(p, CONF_scale_f16) ? TSR_F16 : has(p, CONF_scale_bf16) ? TSR_BF16 : TSR_F32;
  const double unit = kv == TSR_I8 ? 1.0 / 80 : kv == TSR_U4 ? 1.0 / 5 : 1.0;
  const double middle = kv == TSR_U4 ? 8.0 : 0.0, wide = kv == TSR_I8 ? 20.0 : kv == TSR_U4 ? 3.0 : 0.5;
  int64_t s[4];
  int any = 0;
  for (size_t n = 0; n < sizeof(kinds) / sizeof(kinds[0]); n++) {
    any |= has(p, kinds[n]);
  }
  if (!any) {
    return 1;
  }
  scale_shape(p, &p->t[tensor], s);
  if (!conf_make_local(p, scale, dtype, s[0], s[1], s[2], s[3])) {
    return 0;
  }
  fill_scale(p, scale, unit, unit / 2);
  if (has(p, CONF_zeros)) {
    conf_rng r = conf_rng_for(p->c.seed, "zero shape");
    if (conf_chance(&r, 0.3)) { /* of its own granularity */
      s[0] = s[1] = s[3] = 1;
    }
    if (!conf_make_local(p, zero, dtype, s[0], s[1], s[2], s[3])) {
      return 0;
    }
    fill_scale(p, zero, middle, wide);
  }
  return 1;
}

static int make_q_descale(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "q_descale");
  const int64_t n0 = conf_chance(&r, 0.5) ? 1 : p->batch_plan, n1 = conf_chance(&r, 0.5) ? 1 : p->c.kv_heads;
  if (!conf_make_vector(p, CONF_T_q_descale, 0, TSR_F32, n0, n1)) {
    return 0;
  }
  for (int64_t b = 0; b < (n0 == 1 ? 1 : p->c.batch); b++) {
    for (int64_t h = 0; h < n1; h++) {
      conf_put(&p->t[CONF_T_q_descale], b, h, 0, 0, conf_uniform(&r, 0.5, 1.5));
    }
  }
  return 1;
}

/* ---- All --------------------------------------------------------------------------------------- */

/* NaN and infinities among used elements: their rows and channels must show them, others must not. */
static void strew_nan(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "strewn");
  for (int n = 0; n < 3 && p->c.batch > 0; n++) {
    const int64_t b = conf_range(&r, 0, p->c.batch - 1);
    int64_t i0, i1;
    if (p->len_q[b] > 0) {
      conf_locate_q(p, b, conf_range(&r, 0, p->len_q[b] - 1), &i0, &i1);
      conf_put(&p->t[CONF_T_q], i0, i1, conf_range(&r, 0, p->c.q_heads - 1), conf_range(&r, 0, p->c.head_dim - 1),
               (double)NAN);
    }
    if (p->len_k[b] > 0) {
      /* an infinity in k (v inside k) makes a logit -inf, which leaves open whether the pair counts */
      const int nan_only = p->v_dtype == TSR_F8E4M3 || has(p, CONF_v_in_k);
      const double v = n == 0 || nan_only ? (double)NAN : n == 1 ? (double)INFINITY : -(double)INFINITY;
      conf_locate_k(p, b, conf_range(&r, 0, p->len_k[b] - 1), &i0, &i1);
      conf_put(&p->t[CONF_T_v], i0, i1, conf_range(&r, 0, p->c.kv_heads - 1), conf_range(&r, 0, p->c.head_dim_v - 1),
               v);
    }
    if (n == 0 && p->len_k[b] > 0 && conf_chance(&r, 0.5)) {
      conf_locate_k(p, b, conf_range(&r, 0, p->len_k[b] - 1), &i0, &i1);
      conf_put(&p->t[CONF_T_k], i0, i1, conf_range(&r, 0, p->c.kv_heads - 1), conf_range(&r, 0, p->c.head_dim - 1),
               (double)NAN);
    }
  }
}

static int make_backward_inputs(conf_problem *p, const int64_t nq[2]) {
  const int backward = p->c.op == TSR_BACKWARD;
  if (!backward) {
    return 1;
  }
  if (!conf_make_main(p, CONF_T_dout, 0, p->o_dtype, nq[0], nq[1], p->c.q_heads, p->c.head_dim_v)) {
    return 0;
  }
  fill_q_like(p, CONF_T_dout);
  if (conf_case_has(&p->c, CONF_dlse)) {
    conf_rng r = conf_rng_for(p->c.seed, "dlse");
    if (!conf_make_local(p, CONF_T_dlse, TSR_F32, nq[0], p->c.q_heads, nq[1], 1)) {
      return 0;
    }
    for (int64_t b = 0; b < p->c.batch; b++) {
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        int64_t i0, i1;
        conf_locate_q(p, b, i, &i0, &i1);
        for (int64_t h = 0; h < p->c.q_heads; h++) {
          conf_put(&p->t[CONF_T_dlse], i0, h, i1, 0, conf_normal(&r));
        }
      }
    }
  }
  return 1;
}

int conf_build_main(conf_problem *p) {
  int64_t nq[2], nk[2];
  extents(p, nq, nk);
  if (!conf_make_main(p, CONF_T_q, 0, p->dtype, nq[0], nq[1], p->c.q_heads, p->c.head_dim) || !make_kv(p, nk)) {
    return 0;
  }
  fill_q_like(p, CONF_T_q);
  fill_k_like(p, CONF_T_k);
  if (!has(p, CONF_v_in_k)) {
    fill_k_like(p, CONF_T_v);
  }
  if (has(p, CONF_data_nan)) {
    strew_nan(p);
  }
  if (!make_scales(p, CONF_T_k, CONF_T_k_scale, CONF_T_k_zero) ||
      (!has(p, CONF_v_in_k) && !make_scales(p, CONF_T_v, CONF_T_v_scale, CONF_T_v_zero)) ||
      (has(p, CONF_q_descale) && !make_q_descale(p))) {
    return 0;
  }
  return make_backward_inputs(p, nq);
}
