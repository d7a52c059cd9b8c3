/* SPDX-License-Identifier: Apache-2.0 */
/* Is a backward case one whose gradients can be told from rounding? Where a row sees few keys, or one key takes nearly
 * all probability, dq and dk are differences of near equals: what remains is rounding, of which the plain mode is one
 * sample and a kernel another, and the tolerance rule compares two random numbers. The random cases and the covering
 * arrays take such problems as have a plain error well below the rule's own roundoff term. (16-bit inputs: the plain
 * mode's rounding of S and P is far above any kernel's.)
 * dbias over one key for all is never asked for: a sum of ds over keys is 0 by nature. */
#include <math.h>

#include "truth.h"

typedef struct extent {
  double error, ref;
} extent;

static void widen(extent *e, double exact, double plain) {
  e->error = fmax(e->error, fabs(plain - exact));
  e->ref = fmax(e->ref, fabs(exact));
}

/* Error in units of the rule's roundoff term. */
static double ratio(const extent *e) {
  const double term = 0x1p-21 * e->ref;
  return !isfinite(e->ref) || e->error == 0.0 ? 0.0 : term > 0.0 ? e->error / term : (double)INFINITY;
}

static double rows_ratio(const conf_problem *p, int id, const double *exact, const double *plain, int by_key) {
  const int64_t *n = p->t[id].layout.shape;
  double worst = 0.0;
  for (int64_t b = 0; exact != NULL && b < p->c.batch; b++) {
    for (int64_t h = 0; h < n[2]; h++) {
      extent e = {0, 0};
      for (int64_t i = 0; i < (by_key ? p->len_k[b] : p->len_q[b]); i++) {
        int64_t i0, i1;
        by_key ? conf_locate_k(p, b, i, &i0, &i1) : conf_locate_q(p, b, i, &i0, &i1);
        for (int64_t c = 0; c < n[3]; c++) {
          const int64_t at = ((i0 * n[1] + i1) * n[2] + h) * n[3] + c;
          widen(&e, exact[at], plain[at]);
        }
      }
      worst = fmax(worst, ratio(&e));
    }
  }
  return worst;
}

static double dbias_ratio(const conf_problem *p, const double *exact, const double *plain) {
  const conf_tensor *t = &p->t[CONF_T_dbias];
  const int64_t *n = t->layout.shape;
  double worst = 0.0;
  for (int64_t bh = 0; exact != NULL && bh < n[0] * n[1]; bh++) {
    extent e = {0, 0};
    for (int64_t ij = 0; ij < n[2] * n[3]; ij++) {
      const int64_t at = conf_index(t, bh / n[1], bh % n[1], ij / n[3], ij % n[3]);
      if (t->owned[t->data - t->raw + at * (tsr_dtype_bits(t->layout.dtype) / 8)]) {
        widen(&e, exact[bh * n[2] * n[3] + ij], plain[bh * n[2] * n[3] + ij]);
      }
    }
    worst = fmax(worst, ratio(&e));
  }
  return worst;
}

double conf_truth_rounding(const conf_problem *p, const conf_truth *truth) {
  const conf_results *x = &truth->exact, *y = &truth->plain;
  extent sink = {0, 0};
  double worst;
  if (p->c.op == TSR_FORWARD || p->dtype != TSR_F32) {
    return 0.0;
  }
  for (int64_t h = 0; x->dsink != NULL && h < p->c.q_heads; h++) {
    widen(&sink, x->dsink[h], y->dsink[h]);
  }
  worst = fmax(ratio(&sink), dbias_ratio(p, x->dbias, y->dbias));
  worst = fmax(worst, rows_ratio(p, CONF_T_dq, x->dq, y->dq, 0));
  worst = fmax(worst, rows_ratio(p, CONF_T_dk, x->dk, y->dk, 1));
  return fmax(worst, rows_ratio(p, CONF_T_dv, x->dv, y->dv, 1));
}
