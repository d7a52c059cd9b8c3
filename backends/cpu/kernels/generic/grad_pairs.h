/* SPDX-License-Identifier: Apache-2.0 */
/* From dot products to P and dS, a group of GRAD_KEYS keys at a time, query rows in lanes:
 *   p = exp(s - lse), dP' = dP or its dropped and scaled form, dS = p (dP' - delta) d(score) / d(scaled dot product)
 * On entry f.s has Q K^T and g->ds has dO V^T; on return they have P (dropped and scaled: what dV sums) and dS. */
#ifndef TSR_CPU_GENERIC_GRAD_PAIRS_H
#define TSR_CPU_GENERIC_GRAD_PAIRS_H

#include "backends/cpu/kernels/generic/grad_state.h"

#include "backends/cpu/kernels/generic/dropout.h"
#include "backends/cpu/kernels/generic/mask.h"
#include "backends/cpu/kernels/generic/modify.h"
#include "backends/cpu/kernels/generic/vmath.h"

/* exp(x) for x that is at most a rounding error above 0. */
static inline vf grad_exp(vf x) {
  return vf_exp2_scaled(x, vf_all(TSR_LOG2E), vf_all(-127.0f / TSR_LOG2E));
}

/* ---- Scores and what multiplies their gradient ------------------------------------------------ */

static void grad_slope_softcap(const grad *g, int k_lo, int k_hi) {
  const float cap = g->f.a->softcap;
  for (int k = k_lo; k < k_hi; k++) {
    for (int v = 0; v < item_lanes(&g->f); v += VL) {
      const vf t = vf_load(g->f.s + k * TILE_Q + v) / cap;
      vf_store(g->gain + k * TILE_Q + v, 1.0f - t * t);
    }
  }
}

static void grad_slope_expression(const grad *g, int k_lo, int k_hi) {
  float slope[TILE_Q];
  for (int k = k_lo; k < k_hi; k++) {
    tsr_expr_lanes x = expression_lanes(&g->f, k);
    x.score = g->f.s + k * TILE_Q;
    tsr__expr_eval(g->f.p->score_grad, &g->f.bound->env, &x, item_lanes(&g->f), slope);
    for (int v = 0; v < item_lanes(&g->f); v += VL) {
      float *gain = g->gain + k * TILE_Q + v;
      vf_store(gain, vf_load(gain) * vf_load(slope + v));
    }
  }
}

/* Dot products of keys [k_lo, k_hi) to scores, as modify_tile does, with their slopes in g->gain. */
static void grad_modify(grad *g, int k_lo, int k_hi) {
  const uint32_t flags = g->f.a->flags;
  modify_scale(&g->f, k_lo, k_hi);
  if ((flags & TSR_A_SOFTCAP) && !g->for_bias) {
    grad_slope_softcap(g, k_lo, k_hi);
  } else {
    for (int n = k_lo * TILE_Q; n < k_hi * TILE_Q; n += VL) {
      vf_store(g->gain + n, vf_all(1.0f));
    }
  }
  if (flags & TSR_A_ALIBI) {
    modify_alibi(&g->f, k_lo, k_hi);
  }
  if (flags & TSR_A_BIAS) {
    modify_bias(&g->f, k_lo, k_hi);
  }
  if (g->f.p->score_expr != NULL) {
    grad_slope_expression(g, k_lo, k_hi);
    modify_expression(&g->f, k_lo, k_hi);
  }
}

/* ---- P and dS --------------------------------------------------------------------------------- */

/* No masks, nothing but a scale. */
static void grad_pairs_plain(const grad *g, int k) {
  const vf scale = vf_all(g->f.a->scale);
  for (int v = 0; v < item_lanes(&g->f); v += VL) {
    const vf neg_lse = vf_load(g->neg_lse + v), delta = vf_load(g->delta + v);
    float *p = g->f.s + k * TILE_Q + v, *ds = g->ds + k * TILE_Q + v;
    for (int n = 0; n < GRAD_KEYS; n++, p += TILE_Q, ds += TILE_Q) {
      const vf x = grad_exp(vf_load(p) * scale + neg_lse);
      vf_store(p, x);
      vf_store(ds, x * (vf_load(ds) - delta));
    }
  }
}

/* S to P. */
static void grad_probabilities(const grad *g, int k) {
  const vf scale = vf_all(g->modifies ? 1.0f : g->f.a->scale), zero = vf_all(0.0f);
  for (int n = k; n < k + GRAD_KEYS; n++) {
    for (int v = 0; v < item_lanes(&g->f); v += VL) {
      float *p = g->f.s + n * TILE_Q + v;
      const vf x = grad_exp(vf_load(p) * scale + vf_load(g->neg_lse + v));
      vf_store(p, g->f.masked ? vf_select(mask_lanes(&g->f, n, v), x, zero) : x);
    }
  }
}

/* dP to dS before the slope. */
static void grad_differences(const grad *g, int k) {
  for (int n = k; n < k + GRAD_KEYS; n++) {
    for (int v = 0; v < item_lanes(&g->f); v += VL) {
      float *ds = g->ds + n * TILE_Q + v;
      vf_store(ds, vf_load(g->f.s + n * TILE_Q + v) * (vf_load(ds) - vf_load(g->delta + v)));
    }
  }
}

/* The same with dropout; P becomes what dV sums. */
static void grad_differences_dropout(const grad *g, int k) {
  const vf scale = vf_all(g->f.a->dropout_scale), zero = vf_all(0.0f);
  for (int v = 0; v < item_lanes(&g->f); v += VL) {
    const philox_lanes x = philox_of_lanes(g->f.i + v, g->f.h + v, g->f.seq.b, g->f.a->heads_q);
    for (int n = k; n < k + GRAD_KEYS; n++) {
      float *p = g->f.s + n * TILE_Q + v, *ds = g->ds + n * TILE_Q + v;
      const vf weight = vf_load(p);
      vf dp = vf_load(ds) * scale;
      vu words[4];
      vi lost;
      if ((n & 3) == 0) {
        philox_words(&x, g->f.run->dropout_key, (uint32_t)((g->f.j0 + n) >> 2), words);
      }
      lost = dropped(words[n & 3], g->f.a->dropout_threshold);
      dp = vf_select(lost, zero, dp);
      vf_store(p, vf_select(lost, zero, weight * scale));
      vf_store(ds, weight * (dp - vf_load(g->delta + v)));
    }
  }
}

/* Slopes, and 0 for masked pairs whatever came out for them. */
static void grad_finish_pairs(const grad *g, int k) {
  for (int n = k; n < k + GRAD_KEYS; n++) {
    for (int v = 0; v < item_lanes(&g->f); v += VL) {
      float *ds = g->ds + n * TILE_Q + v;
      vf x = vf_load(ds);
      if (g->modifies) {
        x *= vf_load(g->gain + n * TILE_Q + v);
      }
      vf_store(ds, g->f.masked ? vf_select(mask_lanes(&g->f, n, v), x, vf_all(0.0f)) : x);
    }
  }
}

static void grad_pairs_general(const grad *g, int k) {
  grad_probabilities(g, k);
  if (g->f.a->flags & TSR_A_DROPOUT) {
    grad_differences_dropout(g, k);
  } else {
    grad_differences(g, k);
  }
  grad_finish_pairs(g, k);
}

/* ---- The tile --------------------------------------------------------------------------------- */

/* Sets f.masked, f.bits and [k_lo, k_hi). */
static void grad_set_mask(grad *g, int tile_class) {
  int first = 0, last = g->keys;
  g->f.masked = tile_class != TSR_TILE_FULL;
  if (g->f.masked) {
    mask_tile(&g->f, g->keys, &first, &last);
  } else if (g->f.a->flags & TSR_A_BIAS) {
    mask_none(&g->f);
    g->f.masked = 1;
  }
  g->k_lo = first / GRAD_KEYS * GRAD_KEYS;
  g->k_hi = (last + GRAD_KEYS - 1) / GRAD_KEYS * GRAD_KEYS;
}

/* P and dS of the tile at hand, keys [k_lo, k_hi). */
static void grad_make_pairs(grad *g, int tile_class) {
  const int64_t slice = (int64_t)g->tile_k * GRAD_SLICE;
  int general;
  grad_set_mask(g, tile_class);
  general = g->f.masked || g->modifies || (g->f.a->flags & TSR_A_DROPOUT);
  for (int k = g->k_lo; k < g->k_hi; k += GRAD_BLOCK) {
    const int n = g->k_hi - k < GRAD_BLOCK ? g->k_hi - k : GRAD_BLOCK;
    grad_dot(g->k + k * GRAD_SLICE, slice, g->f.head_dim, g->qt, g->f.s + k * TILE_Q, n, g->f.rows);
    grad_dot(g->v + k * GRAD_SLICE, slice, g->f.head_dim_v, g->doutt, g->ds + k * TILE_Q, n, g->f.rows);
    if (g->modifies) {
      grad_modify(g, k, k + n < g->keys ? k + n : g->keys);
    }
    for (int i = k; i < k + n; i += GRAD_KEYS) {
      if (general) {
        grad_pairs_general(g, i);
      } else {
        grad_pairs_plain(g, i);
      }
    }
  }
}

/* ---- Sums of the tile -------------------------------------------------------------------------- */

/* In a partial tile 0 * NaN would reach rows that mask the pair: where an operand is not finite, masked pairs are
 * stepped over. */
static int grad_is_careful(const grad *g) {
  return g->f.masked && !(g->kv_finite && g->q_finite);
}

static void grad_sum_careful(const grad *g, const float *pairs, const float *x, float *out, int64_t ld) {
  for (int k = g->k_lo; k < g->k_hi; k++) {
    for (int i = 0; i < g->f.rows; i++) {
      const vf weight = vf_all(pairs[k * TILE_Q + i]);
      if (!(g->f.bits[k / 32][i] >> (k & 31) & 1)) {
        continue;
      }
      for (int64_t c = 0; c < ld; c += VL) {
        vf_store(out + k * ld + c, vf_load(out + k * ld + c) + weight * vf_load(x + i * ld + c));
      }
    }
  }
}

static void grad_dq_careful(const grad *g, int k_hi, float *out) {
  for (int c = 0; c < g->f.head_dim; c++) {
    const float *key = g->k + (int64_t)(c / GRAD_SLICE) * g->tile_k * GRAD_SLICE + c % GRAD_SLICE;
    for (int v = 0; v < item_lanes(&g->f); v += VL) {
      vf acc = vf_load(out + c * TILE_Q + v);
      for (int k = g->k_lo; k < k_hi; k++) {
        const vf sum = vf_load(g->ds + k * TILE_Q + v) * vf_all(key[k * GRAD_SLICE]) + acc;
        acc = vf_select(mask_lanes(&g->f, k, v), sum, acc);
      }
      vf_store(out + c * TILE_Q + v, acc);
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
    grad_sum_careful(g, g->f.s, g->dout, g->dval, g->ldv);
  } else if (want_dv) {
    grad_sum(g->f.s + g->k_lo * TILE_Q, g->dout, g->f.rows, g->dval + g->k_lo * g->ldv, n, g->ldv);
  }
  if (want_dk && careful) {
    grad_sum_careful(g, g->ds, g->q, g->dk, g->ld);
  } else if (want_dk) {
    grad_sum(g->ds + g->k_lo * TILE_Q, g->q, g->f.rows, g->dk + g->k_lo * g->ld, n, g->ld);
  }
}

/* dQ^T += K^T dS^T. Keys past the last are zeros whose dS is whatever it is: not summed. */
static void grad_add_rows(const grad *g, float *dqt) {
  const int last = g->k_hi < g->keys ? g->k_hi : g->keys;
  if (g->k_lo >= last) {
    return;
  }
  if (grad_is_careful(g)) {
    grad_dq_careful(g, last, dqt);
  } else {
    grad_dq(g->k + g->k_lo * GRAD_SLICE, (int64_t)g->tile_k * GRAD_SLICE, g->f.head_dim, g->ds + g->k_lo * TILE_Q,
            last - g->k_lo, dqt, g->f.rows);
  }
}

#endif
