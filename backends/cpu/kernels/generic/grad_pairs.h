/* SPDX-License-Identifier: Apache-2.0 */
/* From dot products to P and dS, a group of GRAD_KEYS keys at a time, query rows in lanes:
 *   p = exp(s - lse), dP' = dP or its dropped and scaled form, dS = p (dP' - delta) d(score) / d(scaled dot product)
 * On entry g->pp has Q K^T and g->ds has dO V^T; on return they have P (dropped and scaled: what dV sums) and dS. */
#ifndef TSR_CPU_GENERIC_GRAD_PAIRS_H
#define TSR_CPU_GENERIC_GRAD_PAIRS_H

#include "backends/cpu/kernels/generic/convert.h"
#include "backends/cpu/kernels/generic/grad_mask.h"
#include "backends/cpu/kernels/generic/vmath.h"

/* exp(x) for x that is at most a rounding error above 0. */
static inline vf grad_exp(vf x) {
  return vf_exp2_scaled(x, vf_all(TSR_LOG2E), vf_all(-127.0f / TSR_LOG2E));
}

static inline int grad_vectors(const grad *g) {
  return (g->nq + VL - 1) / VL;
}

/* No masks, no features. */
static void grad_pairs_plain(const grad *g, int k) {
  const vf scale = vf_all(g->a->scale);
  const int vectors = grad_vectors(g);
  for (int v = 0; v < vectors; v++) {
    const vf neg_lse = vf_load(g->neg_lse + v * VL), delta = vf_load(g->delta + v * VL);
    float *p = g->pp + k * TILE_Q + v * VL, *ds = g->ds + k * TILE_Q + v * VL;
    for (int n = 0; n < GRAD_KEYS; n++, p += TILE_Q, ds += TILE_Q) {
      const vf x = grad_exp(vf_load(p) * scale + neg_lse);
      vf_store(p, x);
      vf_store(ds, x * (vf_load(ds) - delta));
    }
  }
}

/* ---- Scores with features: one key, all rows of the tile ------------------------------------- */

static void grad_softcap(const grad *g, float *s, float *gain) {
  const vf cap = vf_all(g->a->softcap), one = vf_all(1.0f);
  for (int v = 0; v < grad_vectors(g); v++) {
    const vf t = vf_tanh(vf_load(s + v * VL) / cap);
    vf_store(s + v * VL, cap * t);
    vf_store(gain + v * VL, one - t * t);
  }
}

static void grad_alibi(const grad *g, int64_t j, float *s) {
  const float *slopes = (const float *)g->r->ptr[TSR_SLOT_alibi_slopes];
  const float slope = slopes[g->seq.b * g->a->alibi.stride[0] + g->h * g->a->alibi.stride[1]];
  const int64_t first = g->i0 + g->seq.off - j;
  for (int i = 0; i < g->nq; i++) {
    const int64_t distance = first + i;
    s[i] -= slope * (float)(distance < 0 ? -distance : distance);
  }
}

/* Adds the bias; -inf masks. */
static void grad_bias(const grad *g, int64_t j, float *s, int32_t *allow) {
  const tsr_t4 *t = &g->a->bias;
  const tsr_dtype dtype = g->p->desc.bias.dtype;
  const int64_t at = g->seq.b * t->stride[0] + g->h * t->stride[1] + g->i0 * t->stride[2] + j * t->stride[3];
  float bias[TILE_Q];
  row_to_f32(dtype, g->r->ptr[TSR_SLOT_bias], at, t->stride[2], g->nq, bias);
  for (int i = 0; i < g->nq; i++) {
    s[i] += bias[i];
    allow[i] &= -(bias[i] != -INFINITY);
  }
}

static void grad_expression(const grad *g, int64_t j, float *s, float *gain) {
  const tsr_expr_env *env = &g->r->env;
  int64_t rows[TILE_Q];
  float slope[TSR_EXPR_MAX_LANES];
  tsr_expr_lanes lanes;
  grad_rows_of(g, rows);
  lanes = grad_expr_lanes(g, j, rows, s);
  tsr__expr_eval(g->p->score_grad, env, &lanes, g->nq, slope);
  tsr__expr_eval(g->p->score_expr, env, &lanes, g->nq, s);
  for (int i = 0; i < g->nq; i++) {
    gain[i] *= slope[i];
  }
}

/* s: dot products in, scores out, for key k of the tile. */
static void grad_features(const grad *g, int k, float *s, float *gain) {
  const uint32_t flags = g->a->flags;
  const int64_t j = g->j0 + k;
  const vf scale = vf_all(g->a->scale);
  for (int v = 0; v < grad_vectors(g); v++) {
    vf_store(s + v * VL, vf_load(s + v * VL) * scale);
    vf_store(gain + v * VL, vf_all(1.0f));
  }
  if (k >= g->nk) {
    return; /* nothing to read for it; masked */
  }
  if (flags & TSR_A_SOFTCAP) {
    grad_softcap(g, s, gain);
    if (g->for_bias) {
      for (int v = 0; v < grad_vectors(g); v++) {
        vf_store(gain + v * VL, vf_all(1.0f));
      }
    }
  }
  if (flags & TSR_A_ALIBI) {
    grad_alibi(g, j, s);
  }
  if (flags & TSR_A_BIAS) {
    grad_bias(g, j, s, g->allow + k * TILE_Q);
  }
  if (flags & TSR_A_SCORE_EXPR) {
    grad_expression(g, j, s, gain);
  }
}

/* ---- Dropout --------------------------------------------------------------------------------- */

/* -1 for pairs that stay, of keys j0 + k .. + 3. */
static void grad_kept(const grad *g, int k, int32_t kept[4][TILE_Q]) {
  const uint64_t threshold = g->a->dropout_threshold;
  const tsr_u64 bh = (tsr_u64)g->seq.b * (tsr_u64)g->a->heads_q + (tsr_u64)g->h;
  const tsr_u32 j4 = (tsr_u32)((g->j0 + k) >> 2);
  for (int i = 0; i < g->nq; i++) {
    tsr_u32 words[4];
    tsr_dropout_words(g->run->dropout_key, bh, (tsr_u32)(g->i0 + i), j4, words);
    for (int n = 0; n < 4; n++) {
      kept[n][i] = -(int32_t)(words[n] >= threshold);
    }
  }
}

/* dP and P of four keys from k on, dropped and scaled; dS from P before. */
static void grad_pairs_dropout(const grad *g, int k) {
  const vf scale = vf_all(g->a->dropout_scale), zero = vf_all(0.0f);
  int32_t kept[4][TILE_Q];
  grad_kept(g, k, kept);
  for (int n = 0; n < 4; n++) {
    float *p = g->pp + (k + n) * TILE_Q, *ds = g->ds + (k + n) * TILE_Q;
    for (int v = 0; v < grad_vectors(g); v++) {
      const vi keep = *(const vi *)(kept[n] + v * VL);
      const vf x = vf_load(p + v * VL);
      const vf dp = vf_select(keep, vf_load(ds + v * VL) * scale, zero);
      vf_store(p + v * VL, vf_select(keep, x * scale, zero));
      vf_store(ds + v * VL, x * (dp - vf_load(g->delta + v * VL)));
    }
  }
}

static void grad_pairs_general(const grad *g, int k) {
  const vf scale = vf_all(g->a->scale), zero = vf_all(0.0f);
  const int vectors = grad_vectors(g), dropout = (g->a->flags & TSR_A_DROPOUT) != 0;
  for (int n = 0; n < GRAD_KEYS; n++) {
    float *p = g->pp + (k + n) * TILE_Q, *ds = g->ds + (k + n) * TILE_Q, *gain = g->gain + n * TILE_Q;
    if (g->with_features) {
      grad_features(g, k + n, p, gain);
    }
    for (int v = 0; v < vectors; v++) {
      const vf s = vf_load(p + v * VL), neg_lse = vf_load(g->neg_lse + v * VL);
      vf x = grad_exp(g->with_features ? s + neg_lse : s * scale + neg_lse);
      if (g->masked) {
        x = vf_select(vi_load(g->allow + (k + n) * TILE_Q + v * VL), x, zero);
      }
      vf_store(p + v * VL, x);
      if (!dropout) {
        vf_store(ds + v * VL, x * (vf_load(ds + v * VL) - vf_load(g->delta + v * VL)));
      }
    }
  }
  if (dropout) {
    grad_pairs_dropout(g, k);
    grad_pairs_dropout(g, k + 4);
  }
  for (int n = 0; n < GRAD_KEYS; n++) {
    float *ds = g->ds + (k + n) * TILE_Q;
    for (int v = 0; v < vectors; v++) {
      vf x = vf_load(ds + v * VL);
      if (g->with_features) {
        x *= vf_load(g->gain + n * TILE_Q + v * VL);
      }
      if (g->masked) {
        x = vf_select(vi_load(g->allow + (k + n) * TILE_Q + v * VL), x, zero);
      }
      vf_store(ds + v * VL, x);
    }
  }
}

/* ---- The tile -------------------------------------------------------------------------------- */

/* P and dS of the tile at hand, keys [k_lo, k_hi). */
static void grad_make_pairs(grad *g, int tile_class) {
  const int64_t slice = (int64_t)g->tile_k * GRAD_SLICE;
  int general;
  g->masked = tile_class != TSR_TILE_FULL || (g->a->flags & TSR_A_BIAS);
  g->k_lo = 0;
  g->k_hi = (g->nk + GRAD_KEYS - 1) / GRAD_KEYS * GRAD_KEYS;
  if (g->masked) {
    grad_mask_tile(g, tile_class);
  }
  general = g->masked || g->with_features || (g->a->flags & TSR_A_DROPOUT);
  for (int k = g->k_lo; k < g->k_hi; k += GRAD_BLOCK) {
    const int n = g->k_hi - k < GRAD_BLOCK ? g->k_hi - k : GRAD_BLOCK;
    grad_dot(g->k + k * GRAD_SLICE, slice, g->d, g->qt, g->pp + k * TILE_Q, n, g->nq);
    grad_dot(g->v + k * GRAD_SLICE, slice, g->dv, g->doutt, g->ds + k * TILE_Q, n, g->nq);
    for (int i = 0; i < n; i += GRAD_KEYS) {
      if (general) {
        grad_pairs_general(g, k + i);
      } else {
        grad_pairs_plain(g, k + i);
      }
    }
  }
}

/* ---- Sums that step over masked pairs -------------------------------------------------------- */

/* In a partial tile 0 * NaN would reach rows that mask the pair; when an operand is not finite, these are used instead. */
static int grad_is_careful(const grad *g) {
  return g->masked && !(g->kv_finite && g->q_finite);
}

static void grad_sum_careful(const grad *g, const float *pairs, const float *x, float *out, int64_t ld) {
  for (int k = g->k_lo; k < g->k_hi; k++) {
    for (int i = 0; i < g->nq; i++) {
      if (g->allow[k * TILE_Q + i] == 0) {
        continue;
      }
      for (int64_t c = 0; c < ld; c += VL) {
        vf_store(out + k * ld + c, vf_load(out + k * ld + c) + vf_all(pairs[k * TILE_Q + i]) * vf_load(x + i * ld + c));
      }
    }
  }
}

static void grad_dq_careful(const grad *g, float *out) {
  for (int c = 0; c < g->d; c++) {
    const float *key = g->k + (int64_t)(c / GRAD_SLICE) * g->tile_k * GRAD_SLICE + c % GRAD_SLICE;
    for (int v = 0; v < grad_vectors(g); v++) {
      vf acc = vf_load(out + c * TILE_Q + v * VL);
      for (int k = g->k_lo; k < g->k_hi; k++) {
        const vf sum = vf_load(g->ds + k * TILE_Q + v * VL) * vf_all(key[k * GRAD_SLICE]) + acc;
        acc = vf_select(vi_load(g->allow + k * TILE_Q + v * VL), sum, acc);
      }
      vf_store(out + c * TILE_Q + v * VL, acc);
    }
  }
}

/* dV += P^T dO, dK += dS^T Q. */
static void grad_add_keys(const grad *g, int want_dk, int want_dv) {
  const int n = g->k_hi - g->k_lo, careful = grad_is_careful(g);
  if (n <= 0) {
    return;
  }
  if (want_dv && careful) {
    grad_sum_careful(g, g->pp, g->dout, g->dval, g->ldv);
  } else if (want_dv) {
    grad_sum(g->pp + g->k_lo * TILE_Q, g->dout, g->nq, g->dval + g->k_lo * g->ldv, n, g->ldv);
  }
  if (want_dk && careful) {
    grad_sum_careful(g, g->ds, g->q, g->dk, g->ld);
  } else if (want_dk) {
    grad_sum(g->ds + g->k_lo * TILE_Q, g->q, g->nq, g->dk + g->k_lo * g->ld, n, g->ld);
  }
}

/* dQ^T += K^T dS^T. */
static void grad_add_rows(const grad *g, float *dqt) {
  const int last = g->k_hi < g->nk ? g->k_hi : g->nk;
  if (g->k_lo >= g->k_hi) {
    return;
  }
  if (grad_is_careful(g)) {
    grad_dq_careful(g, dqt);
  } else {
    grad_dq(g->k + g->k_lo * GRAD_SLICE, (int64_t)g->tile_k * GRAD_SLICE, g->d, g->ds + g->k_lo * TILE_Q,
            last - g->k_lo, dqt, g->nq);
  }
}

#endif
