/* SPDX-License-Identifier: Apache-2.0 */
/* Can a case's results be told from rounding? The tolerance rule measures a kernel by the plain mode's error, which in
 * f32 is rounding, too: one random number bounds another, and where few values make up a (b, h), gradients are
 * differences of near equals (a row that sees few keys), or logits are far from 0, the plain mode may be lucky.
 * Measured by changing in their last place q, o and dO, and the logits where they are added up, a few times over: what
 * that does to the exact results is what rounding does to anybody's, and has to stay well within what the rule allows.
 * 16-bit operands need none of this: the plain mode's rounding of S and P is far above any kernel's. (dbias over one
 * key for all is never asked for: a sum of ds over keys is 0 by nature.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rng.h"
#include "truth.h"

enum { SHAKES = 3 };

/* A bias beyond this leaves nothing of what is added to it: the logits are equal, not rounded. */
static const double absorbing = 0x1p64;

/* The rule applied to exact results of a shaken problem. */
static double share(const conf_rule *rule) {
  const conf_rule_result r = conf_rule_end(rule);
  return fmax(r.max_share, r.rms_share);
}

static double rows_share(const conf_problem *p, int id, double factor, const double *exact, const double *plain,
                         const double *shaken, int by_key) {
  const int64_t *n = p->t[id].layout.shape;
  double worst = 0.0;
  for (int64_t b = 0; exact != NULL && b < p->c.batch; b++) {
    for (int64_t h = 0; h < n[2]; h++) {
      conf_rule rule = conf_rule_begin(p->t[id].layout.dtype, factor, 0);
      for (int64_t i = 0; i < (by_key ? p->len_k[b] : p->len_q[b]); i++) {
        int64_t i0, i1;
        by_key ? conf_locate_k(p, b, i, &i0, &i1) : conf_locate_q(p, b, i, &i0, &i1);
        for (int64_t c = 0; c < n[3]; c++) {
          const int64_t at = ((i0 * n[1] + i1) * n[2] + h) * n[3] + c;
          conf_rule_add(&rule, 0, shaken[at], exact[at], plain[at]);
        }
      }
      worst = fmax(worst, share(&rule));
    }
  }
  return worst;
}

static double dbias_share(const conf_problem *p, const double *exact, const double *plain, const double *shaken) {
  const conf_tensor *t = &p->t[CONF_T_dbias];
  const int64_t *n = t->layout.shape, pairs = n[2] * n[3];
  double worst = 0.0;
  for (int64_t bh = 0; exact != NULL && bh < n[0] * n[1]; bh++) {
    conf_rule rule = conf_rule_begin(t->layout.dtype, 3.0, 0);
    for (int64_t ij = 0; ij < pairs; ij++) {
      const int64_t at = conf_index(t, bh / n[1], bh % n[1], ij / n[3], ij % n[3]);
      if (t->owned[t->data - t->raw + at * (tsr_dtype_bits(t->layout.dtype) / 8)]) {
        conf_rule_add(&rule, 0, shaken[bh * pairs + ij], exact[bh * pairs + ij], plain[bh * pairs + ij]);
      }
    }
    worst = fmax(worst, share(&rule));
  }
  return worst;
}

static double results_share(const conf_problem *p, const conf_truth *truth, const conf_results *z) {
  const conf_results *x = &truth->exact, *y = &truth->plain;
  conf_rule sink = conf_rule_begin(TSR_F32, 3.0, 0);
  double worst;
  if (p->c.op == TSR_FORWARD) {
    return rows_share(p, CONF_T_o, 2.0, x->o, y->o, z->o, 0);
  }
  for (int64_t h = 0; x->dsink != NULL && h < p->c.q_heads; h++) {
    conf_rule_add(&sink, 0, z->dsink[h], x->dsink[h], y->dsink[h]);
  }
  worst = fmax(share(&sink), dbias_share(p, x->dbias, y->dbias, z->dbias));
  worst = fmax(worst, rows_share(p, CONF_T_dq, 3.0, x->dq, y->dq, z->dq, 0));
  worst = fmax(worst, rows_share(p, CONF_T_dk, 3.0, x->dk, y->dk, z->dk, 1));
  return fmax(worst, rows_share(p, CONF_T_dv, 3.0, x->dv, y->dv, z->dv, 1));
}

/* ---- Shaking ------------------------------------------------------------------------------------------- */

/* What is shaken: operands in place, logits through a bias of all pairs, which holds the case's own, too. */
typedef struct shaking {
  conf_problem *p;
  conf_rng r;
  unsigned char *q, *o, *dout; /* as they were; o, dout: backward */
  double *reach;               /* [batch][q_heads][seqlen_q]: magnitude at which a row's logits are rounded */
  float *dlse;                 /* as lse, contiguous; backward */
  float *bias;                 /* [batch_plan][q_heads][seqlen_q][seqlen_k] */
  double *dbias;               /* the same, of a case that has dbias */
} shaking;

static unsigned char *copy_of(const conf_tensor *t) {
  unsigned char *copy = malloc((size_t)t->raw_bytes + 1);
  if (copy != NULL && t->raw_bytes > 0) {
    memcpy(copy, t->raw, (size_t)t->raw_bytes);
  }
  return copy;
}

/* lse of the rows without the sink, which may hide that all of their logits are far below it. NULL: no memory. */
static double *lse_without_sink(const conf_problem *p, const double *lse_of_all) {
  static const tsr_layout none;
  static const tsr_buffer nothing;
  const int64_t *n = p->t[CONF_T_q].layout.shape;
  double *lse = malloc((size_t)(n[0] * n[1] * p->c.q_heads + 1) * sizeof(double));
  tsr_reference_out out = tsr_reference_out_init();
  tsr_attention_desc desc;
  tsr_run_args args;
  if (lse != NULL && p->t[CONF_T_sink].raw == NULL && lse_of_all != NULL) {
    memcpy(lse, lse_of_all, (size_t)(n[0] * n[1] * p->c.q_heads) * sizeof(double));
    return lse;
  }
  conf_forward_of(p, &desc, &args);
  desc.sink = none;
  args.sink = nothing;
  out.lse = lse;
  if (lse != NULL && tsr_reference_attention(NULL, &desc, &args, &out, NULL) != TSR_OK) {
    free(lse);
    return NULL;
  }
  return lse;
}

static int find_reach(shaking *x, const double *lse_of_all) {
  const conf_problem *p = x->p;
  const int64_t heads = p->c.q_heads, rows = p->t[CONF_T_q].layout.shape[1];
  double *lse = lse_without_sink(p, lse_of_all);
  x->reach = calloc((size_t)(p->c.batch * heads * p->c.seqlen_q + 1), sizeof(double));
  for (int64_t b = 0; x->reach != NULL && lse != NULL && b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < heads; h++) {
        const double own = lse[(i0 * heads + h) * rows + i1];
        const double sink = p->t[CONF_T_sink].raw != NULL ? conf_get(&p->t[CONF_T_sink], h, 0, 0, 0) : own;
        const double reach = fabs(own) + (isfinite(sink) ? fmax(0.0, sink - own) : 0.0);
        x->reach[(b * heads + h) * p->c.seqlen_q + i] = reach < absorbing ? reach : 0.0;
      }
    }
  }
  free(lse);
  return x->reach != NULL && lse != NULL;
}

/* Each element of a q-like tensor one unit in the last place up or down. */
static void shake_rows(shaking *x, int id, const unsigned char *from) {
  conf_problem *p = x->p;
  conf_tensor *t = &p->t[id];
  memcpy(t->raw, from, (size_t)t->raw_bytes);
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < p->c.q_heads; h++) {
        for (int64_t c = 0; c < t->layout.shape[3]; c++) {
          const double value = conf_get(t, i0, i1, h, c);
          conf_put(t, i0, i1, h, c, value * (1.0 + (conf_chance(&x->r, 0.5) ? 0x1p-23 : -0x1p-23)));
        }
      }
    }
  }
}

/* Each logit half a unit in the last place of what its row reaches, up or down. */
static void shake_logits(shaking *x) {
  const conf_problem *p = x->p;
  const conf_tensor *t = &p->t[CONF_T_bias];
  const int64_t heads = p->c.q_heads, nq = p->c.seqlen_q, nk = p->c.seqlen_k;
  const int64_t *n = t->layout.shape;
  memset(x->bias, 0, (size_t)(p->batch_plan * heads * nq * nk) * sizeof(float));
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        const double reach = x->reach[(b * heads + h) * nq + i];
        for (int64_t j = 0; j < p->len_k[b]; j++) {
          const double own =
              t->raw == NULL ? 0.0
                             : conf_get(t, n[0] == 1 ? 0 : b, n[1] == 1 ? 0 : h, n[2] == 1 ? 0 : i, n[3] == 1 ? 0 : j);
          x->bias[((b * heads + h) * nq + i) * nk + j] =
              (float)(own + (conf_chance(&x->r, 0.5) ? 0x1p-24 : -0x1p-24) * reach);
        }
      }
    }
  }
}

/* Each delta = sum(dO O) - dlse half a unit in the last place of what is summed, up or down. */
static void shake_deltas(shaking *x) {
  const conf_problem *p = x->p;
  const int64_t heads = p->c.q_heads, rows = p->t[CONF_T_lse].layout.shape[2];
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < heads; h++) {
        const double own = p->t[CONF_T_dlse].raw != NULL ? conf_get(&p->t[CONF_T_dlse], i0, h, i1, 0) : 0.0;
        double sum = fabs(own);
        for (int64_t c = 0; c < p->c.head_dim_v; c++) {
          sum += fabs(conf_get(&p->t[CONF_T_dout], i0, i1, h, c) * conf_get(&p->t[CONF_T_o], i0, i1, h, c));
        }
        x->dlse[(i0 * heads + h) * rows + i1] =
            (float)(own + (conf_chance(&x->r, 0.5) ? 0x1p-24 : -0x1p-24) * (isfinite(sum) ? sum : 0.0));
      }
    }
  }
}

/* The gradient of the shaken bias, summed to the shape of the case's own. */
static void fold_dbias(const shaking *x, double *dbias) {
  const conf_problem *p = x->p;
  const int64_t heads = p->c.q_heads, nq = p->c.seqlen_q, nk = p->c.seqlen_k, *n = p->t[CONF_T_dbias].layout.shape;
  memset(dbias, 0, (size_t)(n[0] * n[1] * n[2] * n[3]) * sizeof(double));
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < heads; h++) {
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        for (int64_t j = 0; j < p->len_k[b]; j++) {
          const int64_t to = (((n[0] == 1 ? 0 : b) * n[1] + (n[1] == 1 ? 0 : h)) * n[2] + (n[2] == 1 ? 0 : i)) * n[3] +
                             (n[3] == 1 ? 0 : j);
          dbias[to] += x->dbias[((b * heads + h) * nq + i) * nk + j];
        }
      }
    }
  }
}

/* The exact results of the shaken problem. */
static int evaluate_shaken(shaking *x, conf_results *shaken) {
  conf_problem *p = x->p;
  const tsr_attention_desc desc = p->desc;
  const tsr_run_args args = p->args;
  const tsr_layout full = tsr_layout_dense(TSR_F32, p->batch_plan, p->c.q_heads, p->c.seqlen_q, p->c.seqlen_k);
  double *dbias = NULL;
  p->desc.bias = full;
  p->args.bias = tsr_buffer_in(x->bias);
  if (p->c.op == TSR_BACKWARD) {
    const int64_t *n = p->t[CONF_T_lse].layout.shape;
    p->desc.dlse = tsr_layout_dense(TSR_F32, n[0], n[1], n[2], 1);
    p->args.dlse = tsr_buffer_in(x->dlse);
  }
  if (desc.dbias.dtype != TSR_DTYPE_NONE) {
    p->desc.dbias = full;
    dbias = x->dbias;
  }
  const tsr_status st = conf_results_make(NULL, p, dbias, shaken);
  p->desc = desc;
  p->args = args;
  if (st == TSR_OK && dbias != NULL) {
    fold_dbias(x, shaken->dbias);
  }
  return st == TSR_OK;
}

static int begin_shaking(shaking *x, conf_problem *p, const double *lse) {
  const size_t pairs = (size_t)(p->batch_plan * p->c.q_heads * p->c.seqlen_q * p->c.seqlen_k) + 1;
  memset(x, 0, sizeof(*x));
  x->p = p;
  x->r = conf_rng_for(p->c.seed, "shake");
  x->q = copy_of(&p->t[CONF_T_q]);
  x->o = copy_of(&p->t[CONF_T_o]);
  x->dout = copy_of(&p->t[CONF_T_dout]);
  x->bias = malloc(pairs * sizeof(*x->bias));
  x->dbias = malloc(pairs * sizeof(*x->dbias));
  x->dlse = calloc((size_t)(p->t[CONF_T_q].layout.shape[0] * p->t[CONF_T_q].layout.shape[1] * p->c.q_heads) + 1,
                   sizeof(*x->dlse));
  return x->dlse != NULL && x->q != NULL && x->o != NULL && x->dout != NULL && x->bias != NULL && x->dbias != NULL &&
         find_reach(x, lse);
}

static void end_shaking(shaking *x) {
  free(x->q);
  free(x->o);
  free(x->dout);
  free(x->bias);
  free(x->dbias);
  free(x->reach);
  free(x->dlse);
}

/* The largest share over a few shakes, or the first above `enough`. */
static double shaken_share(conf_problem *p, const conf_truth *truth, double enough) {
  shaking x;
  double worst = 0.0;
  const int ready = begin_shaking(&x, p, truth->exact.lse);
  for (int n = 0; ready && n < SHAKES && worst <= enough; n++) {
    conf_results shaken;
    shake_rows(&x, CONF_T_q, x.q);
    if (p->c.op == TSR_BACKWARD) {
      shake_rows(&x, CONF_T_o, x.o);
      shake_rows(&x, CONF_T_dout, x.dout);
      shake_deltas(&x);
    }
    shake_logits(&x);
    if (evaluate_shaken(&x, &shaken)) {
      worst = fmax(worst, results_share(p, truth, &shaken));
      conf_results_free(&shaken);
    }
  }
  end_shaking(&x);
  return worst;
}

/* Is rounding in f32 all that the yardstick has? dsink sums p that the plain mode keeps in f32 whatever the operands.
 */
static int is_tight(const conf_problem *p) {
  return p->dtype == TSR_F32 || p->desc.dsink.dtype != TSR_DTYPE_NONE;
}

double conf_case_rounding(const conf_case *c, double enough) {
  conf_problem *p = conf_problem_build(c);
  conf_truth truth;
  double worst = 0.0;
  if (p != NULL && is_tight(p) && conf_truth_make(NULL, p, 0, &truth, NULL) == TSR_OK) {
    worst = shaken_share(p, &truth, enough);
    conf_truth_free(&truth);
  }
  conf_problem_free(p);
  return worst;
}
