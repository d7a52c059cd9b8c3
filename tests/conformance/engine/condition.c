/* SPDX-License-Identifier: Apache-2.0 */
/* Can a backward case's gradients be told from rounding? Where a row sees few keys, or one key takes nearly all
 * probability, dq and dk are differences of near equals; what remains is rounding, the kernel's as well as the plain
 * mode's, and the tolerance rule would compare two random numbers. Measured by changing o and q in their last place:
 * what that does to the exact gradients is what rounding does to anybody's, and has to stay well within what the rule
 * allows. 16-bit inputs need none of this: the plain mode's rounding of S and P is far above any kernel's. (dbias over
 * one key for all is never asked for: a sum of ds over keys is 0 by nature.) */
#include <math.h>
#include <string.h>

#include "rng.h"
#include "truth.h"

/* One (b, h): largest values and sums of squares. */
typedef struct extent {
  double noise, noise_sq, plain, plain_sq, ref, ref_sq;
  int64_t n;
} extent;

static const extent nothing;

static void widen(extent *e, double exact, double plain, double shaken) {
  if (!isfinite(exact) || !isfinite(plain) || !isfinite(shaken)) {
    return;
  }
  e->noise = fmax(e->noise, fabs(shaken - exact));
  e->noise_sq += (shaken - exact) * (shaken - exact);
  e->plain = fmax(e->plain, fabs(plain - exact));
  e->plain_sq += (plain - exact) * (plain - exact);
  e->ref = fmax(e->ref, fabs(exact));
  e->ref_sq += exact * exact;
  e->n++;
}

static double over(double noise, double allowed) {
  return noise == 0.0 ? 0.0 : allowed > 0.0 ? noise / allowed : HUGE_VAL;
}

/* Noise over what the rule allows. */
static double share(const extent *e) {
  const double n = (double)(e->n > 0 ? e->n : 1), u = 0x1p-21;
  return fmax(over(e->noise, 3.0 * e->plain + u * e->ref),
              over(sqrt(e->noise_sq / n), 3.0 * sqrt(e->plain_sq / n) + u * sqrt(e->ref_sq / n) / 2));
}

static double rows_share(const conf_problem *p, int id, const double *exact, const double *plain, const double *shaken,
                         int by_key) {
  const int64_t *n = p->t[id].layout.shape;
  double worst = 0.0;
  for (int64_t b = 0; exact != NULL && b < p->c.batch; b++) {
    for (int64_t h = 0; h < n[2]; h++) {
      extent e = nothing;
      for (int64_t i = 0; i < (by_key ? p->len_k[b] : p->len_q[b]); i++) {
        int64_t i0, i1;
        by_key ? conf_locate_k(p, b, i, &i0, &i1) : conf_locate_q(p, b, i, &i0, &i1);
        for (int64_t c = 0; c < n[3]; c++) {
          const int64_t at = ((i0 * n[1] + i1) * n[2] + h) * n[3] + c;
          widen(&e, exact[at], plain[at], shaken[at]);
        }
      }
      worst = fmax(worst, share(&e));
    }
  }
  return worst;
}

static double dbias_share(const conf_problem *p, const double *exact, const double *plain, const double *shaken) {
  const conf_tensor *t = &p->t[CONF_T_dbias];
  const int64_t *n = t->layout.shape, pairs = n[2] * n[3];
  double worst = 0.0;
  for (int64_t bh = 0; exact != NULL && bh < n[0] * n[1]; bh++) {
    extent e = nothing;
    for (int64_t ij = 0; ij < pairs; ij++) {
      const int64_t at = conf_index(t, bh / n[1], bh % n[1], ij / n[3], ij % n[3]);
      if (t->owned[t->data - t->raw + at * (tsr_dtype_bits(t->layout.dtype) / 8)]) {
        widen(&e, exact[bh * pairs + ij], plain[bh * pairs + ij], shaken[bh * pairs + ij]);
      }
    }
    worst = fmax(worst, share(&e));
  }
  return worst;
}

static double gradients_share(const conf_problem *p, const conf_truth *truth, const conf_results *z) {
  const conf_results *x = &truth->exact, *y = &truth->plain;
  extent sink = nothing;
  double worst;
  for (int64_t h = 0; x->dsink != NULL && h < p->c.q_heads; h++) {
    widen(&sink, x->dsink[h], y->dsink[h], z->dsink[h]);
  }
  worst = fmax(share(&sink), dbias_share(p, x->dbias, y->dbias, z->dbias));
  worst = fmax(worst, rows_share(p, CONF_T_dq, x->dq, y->dq, z->dq, 0));
  worst = fmax(worst, rows_share(p, CONF_T_dk, x->dk, y->dk, z->dk, 1));
  return fmax(worst, rows_share(p, CONF_T_dv, x->dv, y->dv, z->dv, 1));
}

/* Each element of a q-like tensor one unit in the last place up or down. */
static void shake(conf_problem *p, int id) {
  conf_tensor *t = &p->t[id];
  conf_rng r = conf_rng_for(p->c.seed, "shake");
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < p->c.q_heads; h++) {
        for (int64_t c = 0; c < t->layout.shape[3]; c++) {
          const double x = conf_get(t, i0, i1, h, c);
          conf_put(t, i0, i1, h, c, x * (1.0 + (conf_chance(&r, 0.5) ? 0x1p-23 : -0x1p-23)));
        }
      }
    }
  }
}

double conf_case_rounding(const conf_case *c) {
  conf_problem *p = c->op == TSR_BACKWARD ? conf_problem_build(c) : NULL;
  conf_truth truth, shaken;
  double worst = 0.0;
  if (p != NULL && p->dtype == TSR_F32 && conf_truth_make(NULL, p, 0, &truth, NULL) == TSR_OK) {
    shake(p, CONF_T_o);
    shake(p, CONF_T_q);
    if (conf_truth_make(NULL, p, 1, &shaken, NULL) == TSR_OK) {
      worst = gradients_share(p, &truth, &shaken.exact);
      conf_truth_free(&shaken);
    }
    conf_truth_free(&truth);
  }
  conf_problem_free(p);
  return worst;
}
