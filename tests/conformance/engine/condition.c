/* SPDX-License-Identifier: Apache-2.0 */
/* Is a backward case one whose gradients can be told from rounding? Where a row sees few keys, or one key takes nearly
 * all probability, dq and dk are differences of near equals. What remains is rounding, of which the plain mode is one
 * sample and a kernel another, and the tolerance rule would compare two random numbers. So random cases and covering
 * arrays take problems where two things stay well below the rule's own roundoff term: the plain mode's error, and what
 * the exact gradients change by when o changes in its last place (the plain mode, which sums delta and dp in one
 * order, can cancel better than its operands deserve). 16-bit inputs need none of this: the plain mode's rounding of S
 * and P is far above any kernel's. dbias over one key for all is never asked for: a sum of ds over keys is 0 by nature.
 */
#include <math.h>

#include "rng.h"
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

static double gradients_ratio(const conf_problem *p, const conf_results *x, const conf_results *y) {
  extent sink = {0, 0};
  double worst;
  for (int64_t h = 0; x->dsink != NULL && h < p->c.q_heads; h++) {
    widen(&sink, x->dsink[h], y->dsink[h]);
  }
  worst = fmax(ratio(&sink), dbias_ratio(p, x->dbias, y->dbias));
  worst = fmax(worst, rows_ratio(p, CONF_T_dq, x->dq, y->dq, 0));
  worst = fmax(worst, rows_ratio(p, CONF_T_dk, x->dk, y->dk, 1));
  return fmax(worst, rows_ratio(p, CONF_T_dv, x->dv, y->dv, 1));
}

/* o, each element one unit in the last place up or down. */
static void shake_o(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "shake");
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < p->c.q_heads; h++) {
        for (int64_t c = 0; c < p->c.head_dim_v; c++) {
          const double x = conf_get(&p->t[CONF_T_o], i0, i1, h, c);
          conf_put(&p->t[CONF_T_o], i0, i1, h, c, x * (1.0 + (conf_chance(&r, 0.5) ? 0x1p-23 : -0x1p-23)));
        }
      }
    }
  }
}

double conf_case_rounding(const conf_case *c) {
  conf_problem *p = c->op == TSR_BACKWARD ? conf_problem_build(c) : NULL;
  conf_truth truth, shaken;
  double worst = 0.0;
  if (p != NULL && p->dtype == TSR_F32 && !conf_problem_settled(p)) {
    worst = HUGE_VAL;
  } else if (p != NULL && p->dtype == TSR_F32 && conf_truth_make(NULL, p, 0, &truth, NULL) == TSR_OK) {
    worst = gradients_ratio(p, &truth.exact, &truth.plain);
    shake_o(p);
    if (conf_truth_make(NULL, p, 1, &shaken, NULL) == TSR_OK) {
      worst = fmax(worst, gradients_ratio(p, &truth.exact, &shaken.exact));
      conf_truth_free(&shaken);
    }
    conf_truth_free(&truth);
  }
  conf_problem_free(p);
  return worst;
}
