/* SPDX-License-Identifier: Apache-2.0 */
/* Can a case's results be told from rounding? The tolerance rule measures a kernel by the plain mode's error, which in
 * f32 is rounding, too: one random number bounds another, and where few values make up a (b, h), or gradients are
 * differences of near equals (a row that sees few keys), the plain mode may be lucky. Measured by changing the operands
 * in their last place a few times over: what that does to the exact results is what rounding does to anybody's, and has
 * to stay well within what the rule allows. 16-bit operands need none of this: the plain mode's rounding of S and P is
 * far above any kernel's. (dbias over one key for all is never asked for: a sum of ds over keys is 0 by nature.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "truth.h"

enum { SHAKES = 3 };

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
static double share(const extent *e, double factor) {
  const double n = (double)(e->n > 0 ? e->n : 1), u = 0x1p-21;
  return fmax(over(e->noise, factor * e->plain + u * e->ref),
              over(sqrt(e->noise_sq / n), factor * sqrt(e->plain_sq / n) + u * sqrt(e->ref_sq / n) / 2));
}

static double rows_share(const conf_problem *p, int id, double factor, const double *exact, const double *plain,
                         const double *shaken, int by_key) {
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
      worst = fmax(worst, share(&e, factor));
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
    worst = fmax(worst, share(&e, 3.0));
  }
  return worst;
}

static double results_share(const conf_problem *p, const conf_truth *truth, const conf_results *z) {
  const conf_results *x = &truth->exact, *y = &truth->plain;
  extent sink = nothing;
  double worst;
  if (p->c.op == TSR_FORWARD) {
    return rows_share(p, CONF_T_o, 2.0, x->o, y->o, z->o, 0);
  }
  for (int64_t h = 0; x->dsink != NULL && h < p->c.q_heads; h++) {
    widen(&sink, x->dsink[h], y->dsink[h], z->dsink[h]);
  }
  worst = fmax(share(&sink, 3.0), dbias_share(p, x->dbias, y->dbias, z->dbias));
  worst = fmax(worst, rows_share(p, CONF_T_dq, 3.0, x->dq, y->dq, z->dq, 0));
  worst = fmax(worst, rows_share(p, CONF_T_dk, 3.0, x->dk, y->dk, z->dk, 1));
  return fmax(worst, rows_share(p, CONF_T_dv, 3.0, x->dv, y->dv, z->dv, 1));
}

/* Each element of a q-like tensor one unit in the last place up or down from `from`. */
static void shake(conf_problem *p, int id, const unsigned char *from, conf_rng *r) {
  conf_tensor *t = &p->t[id];
  memcpy(t->raw, from, (size_t)t->raw_bytes);
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < p->c.q_heads; h++) {
        for (int64_t c = 0; c < t->layout.shape[3]; c++) {
          const double x = conf_get(t, i0, i1, h, c);
          conf_put(t, i0, i1, h, c, x * (1.0 + (conf_chance(r, 0.5) ? 0x1p-23 : -0x1p-23)));
        }
      }
    }
  }
}

static unsigned char *copy_of(const conf_tensor *t) {
  unsigned char *copy = malloc((size_t)t->raw_bytes);
  if (copy != NULL) {
    memcpy(copy, t->raw, (size_t)t->raw_bytes);
  }
  return copy;
}

/* The largest share over a few shakes of q, and in backward of o. */
static double shaken_share(conf_problem *p, const conf_truth *truth) {
  conf_rng r = conf_rng_for(p->c.seed, "shake");
  unsigned char *q = copy_of(&p->t[CONF_T_q]), *o = copy_of(&p->t[CONF_T_o]);
  double worst = 0.0;
  for (int n = 0; q != NULL && o != NULL && n < SHAKES; n++) {
    conf_results shaken;
    shake(p, CONF_T_q, q, &r);
    if (p->c.op == TSR_BACKWARD) {
      shake(p, CONF_T_o, o, &r);
    }
    if (conf_results_make(NULL, p, &shaken) == TSR_OK) {
      worst = fmax(worst, results_share(p, truth, &shaken));
      conf_results_free(&shaken);
    }
  }
  free(q);
  free(o);
  return worst;
}

double conf_case_rounding(const conf_case *c) {
  conf_problem *p = conf_problem_build(c);
  conf_truth truth;
  double worst = 0.0;
  if (p != NULL && p->dtype == TSR_F32 && conf_truth_make(NULL, p, 0, &truth, NULL) == TSR_OK) {
    worst = shaken_share(p, &truth);
    conf_truth_free(&truth);
  }
  conf_problem_free(p);
  return worst;
}
