/* SPDX-License-Identifier: Apache-2.0 */
/* The outputs of a run held against the oracle's, by the tolerance rule (rule.h). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "truth.h"

void conf_score_fail(conf_score *score, double ratio, const char *text) {
  if (score->ok) {
    snprintf(score->text, sizeof(score->text), "%s", text);
  }
  score->ok = 0;
  score->worst = ratio > score->worst ? ratio : score->worst;
}

void conf_group_begin(conf_group *g, conf_score *score, const conf_tensor *t, double factor, int is_lse,
                      const char *where) {
  memset(g, 0, sizeof(*g));
  g->score = score;
  g->t = t;
  g->where = where;
  g->rule = conf_rule_begin(t->layout.dtype, factor, is_lse);
}

void conf_group_wrong(conf_group *g, int64_t row, int64_t col, double got, double want, const char *why) {
  char text[300];
  snprintf(text, sizeof(text), "%s[%s row=%lld col=%lld] is %.9g, oracle %.9g: %s", g->t->name, g->where,
           (long long)row, (long long)col, got, want, why);
  conf_score_fail(g->score, (double)INFINITY, text);
}

void conf_group_add(conf_group *g, int64_t row, int64_t col, double got, double ref, double plain) {
  const int64_t element = g->elements++;
  const char *why = conf_rule_add(&g->rule, element, got, ref, plain);
  if (why != NULL) {
    conf_group_wrong(g, row, col, got, ref, why);
  }
  if (g->rule.element == element) {
    g->at_row = row;
    g->at_col = col;
  }
}

static void judge(conf_group *g, const char *what, double error, double allowed, double share, double plain) {
  char text[400];
  g->score->worst = fmax(g->score->worst, share);
  if (share <= 1.0) {
    return;
  }
  snprintf(text, sizeof(text),
           "%s[%s]: %s error %.4g, allowed %.4g (plain's %.4g); largest at row=%lld col=%lld: %.9g, oracle %.9g",
           g->t->name, g->where, what, error, allowed, plain, (long long)g->at_row, (long long)g->at_col, g->rule.got,
           g->rule.want);
  conf_score_fail(g->score, share, text);
}

void conf_group_end(conf_group *g) {
  const conf_rule_result r = conf_rule_end(&g->rule);
  judge(g, g->rule.is_lse ? "lse" : "max", r.max_error, r.max_allowed, r.max_share, r.max_plain);
  judge(g, "rms", r.rms_error, r.rms_allowed, r.rms_share, r.rms_plain);
}

/* ---- Tensors --------------------------------------------------------------------------------------- */

/* Is a row of the reference zero throughout? */
static int zero_row(const double *row, int64_t n) {
  for (int64_t c = 0; c < n; c++) {
    if (row[c] != 0.0) {
      return 0;
    }
  }
  return 1;
}

/* Nothing contributes to an element: exactly zero. */
static void want_zero(conf_group *g, int64_t row, int64_t n, const double *got) {
  for (int64_t c = 0; c < n; c++) {
    if (got[c] != 0.0) {
      conf_group_wrong(g, row, c, got[c], 0.0, "must be exactly 0, as nothing contributes");
      return;
    }
  }
}

/* A NaN in q or in an allowed k: the whole row. */
static void want_nan(conf_group *g, int64_t row, int64_t n, const double *got) {
  for (int64_t c = 0; c < n; c++) {
    if (!isnan(got[c])) {
      conf_group_wrong(g, row, c, got[c], (double)NAN, "must be NaN with its whole row");
      return;
    }
  }
}

typedef struct rows {
  const double *exact, *plain;
  int64_t heads, channels;
  int by_key;          /* dk, dv */
  const uint8_t *seen; /* [batch][heads][longest], NULL: not asked */
  const double *lse;   /* o only: exact, [slot][heads][rows] */
} rows;

/* o, dq, dk, dv: groups of all rows of a head of a sequence. */
static void compare_rows(const conf_problem *p, int id, const rows *x, double factor, conf_score *score) {
  const conf_tensor *t = &p->t[id];
  const int64_t longest = x->by_key ? p->c.seqlen_k : p->c.seqlen_q, slot_rows = t->layout.shape[1];
  double got[TSR_MAX_HEAD_DIM];
  for (int64_t b = 0; b < p->c.batch; b++) {
    const int64_t len = x->by_key ? p->len_k[b] : p->len_q[b];
    for (int64_t h = 0; h < x->heads; h++) {
      char where[64];
      conf_group g;
      snprintf(where, sizeof(where), "b=%lld h=%lld", (long long)b, (long long)h);
      conf_group_begin(&g, score, t, factor, 0, where);
      for (int64_t i = 0; i < len; i++) {
        int64_t i0, i1, at;
        x->by_key ? conf_locate_k(p, b, i, &i0, &i1) : conf_locate_q(p, b, i, &i0, &i1);
        at = ((i0 * slot_rows + i1) * x->heads + h) * x->channels;
        for (int64_t c = 0; c < x->channels; c++) {
          got[c] = conf_get(t, i0, i1, h, c);
          conf_group_add(&g, i, c, got[c], x->exact[at + c], x->plain[at + c]);
        }
        if (x->seen != NULL ? !x->seen[(b * x->heads + h) * longest + i]
                            : x->lse != NULL && zero_row(x->exact + at, x->channels)) {
          want_zero(&g, i, x->channels, got);
        }
        if (x->lse != NULL && isnan(x->lse[(i0 * x->heads + h) * slot_rows + i1])) {
          want_nan(&g, i, x->channels, got);
        }
      }
      conf_group_end(&g);
    }
  }
}

static void compare_lse(const conf_problem *p, const conf_truth *truth, conf_score *score) {
  const conf_tensor *t = &p->t[CONF_T_lse];
  const int64_t slot_rows = t->layout.shape[2];
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < p->c.q_heads; h++) {
      char where[64];
      conf_group g;
      snprintf(where, sizeof(where), "b=%lld h=%lld", (long long)b, (long long)h);
      conf_group_begin(&g, score, t, 2.0, 1, where);
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        int64_t i0, i1, at;
        conf_locate_q(p, b, i, &i0, &i1);
        at = (i0 * p->c.q_heads + h) * slot_rows + i1;
        conf_group_add(&g, i, 0, conf_get(t, i0, h, i1, 0), truth->exact.lse[at], truth->plain.lse[at]);
      }
      conf_group_end(&g);
    }
  }
}

/* max_s, dsink: one number a head, one group. */
static void compare_heads(const conf_problem *p, int id, const double *exact, const double *plain, double factor,
                          int is_lse, conf_score *score) {
  conf_group g;
  conf_group_begin(&g, score, &p->t[id], factor, is_lse, "all heads");
  for (int64_t h = 0; h < p->c.q_heads; h++) {
    conf_group_add(&g, h, 0, conf_get(&p->t[id], h, 0, 0, 0), exact[h], plain[h]);
  }
  conf_group_end(&g);
}

static void compare_dbias(const conf_problem *p, const conf_truth *truth, conf_score *score) {
  const conf_tensor *t = &p->t[CONF_T_dbias];
  const int64_t *n = t->layout.shape;
  const int whole = n[0] == p->batch_plan && n[1] == p->c.q_heads && n[2] == p->c.seqlen_q && n[3] == p->c.seqlen_k;
  for (int64_t b = 0; b < n[0]; b++) {
    for (int64_t h = 0; h < n[1]; h++) {
      char where[64];
      conf_group g;
      snprintf(where, sizeof(where), "b=%lld h=%lld", (long long)b, (long long)h);
      conf_group_begin(&g, score, t, 3.0, 0, where);
      for (int64_t i = 0; i < n[2]; i++) {
        for (int64_t j = 0; j < n[3]; j++) {
          const int64_t at = ((b * n[1] + h) * n[2] + i) * n[3] + j;
          const double got = conf_get(t, b, h, i, j);
          const unsigned char *byte = t->data + conf_index(t, b, h, i, j) * (tsr_dtype_bits(t->layout.dtype) / 8);
          if (!t->owned[byte - t->raw]) {
            continue;
          }
          conf_group_add(&g, i, j, got, truth->exact.dbias[at], truth->plain.dbias[at]);
          if (whole && (j >= p->len_k[b] || !conf_visible(p, b, h, i, j)) && got != 0.0) {
            conf_group_wrong(&g, i, j, got, 0.0, "must be exactly 0, as the pair is hidden");
          }
        }
      }
      conf_group_end(&g);
    }
  }
}

static void compare_dropout(const conf_problem *p, const conf_truth *truth, conf_score *score) {
  const conf_tensor *t = &p->t[CONF_T_dropout_mask];
  const int64_t *n = t->layout.shape;
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < n[1]; h++) {
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        for (int64_t j = 0; j < p->len_k[b]; j++) {
          const uint8_t want = truth->exact.dropout_mask[((b * n[1] + h) * n[2] + i) * n[3] + j];
          const uint8_t got = t->data[conf_index(t, b, h, i, j)];
          if (got != want) {
            char text[200];
            snprintf(text, sizeof(text), "dropout_mask[%lld,%lld,%lld,%lld] is %d, must be %d", (long long)b,
                     (long long)h, (long long)i, (long long)j, got, want);
            conf_score_fail(score, (double)INFINITY, text);
            return;
          }
        }
      }
    }
  }
}

/* ---- All ------------------------------------------------------------------------------------------- */

static void compare_forward(const conf_problem *p, const conf_truth *truth, conf_score *score) {
  const rows o = {truth->exact.o, truth->plain.o, p->c.q_heads, p->c.head_dim_v, 0, NULL, truth->exact.lse};
  compare_rows(p, CONF_T_o, &o, 2.0, score);
  if (p->t[CONF_T_lse].raw != NULL) {
    compare_lse(p, truth, score);
  }
  if (p->t[CONF_T_max_s].raw != NULL) {
    compare_heads(p, CONF_T_max_s, truth->exact.max_s, truth->plain.max_s, 2.0, 1, score);
  }
  if (p->t[CONF_T_dropout_mask].raw != NULL) {
    compare_dropout(p, truth, score);
  }
}

static void compare_backward(const conf_problem *p, const conf_truth *truth, conf_score *score) {
  const rows dq = {truth->exact.dq, truth->plain.dq, p->c.q_heads, p->c.head_dim, 0, truth->row_seen, NULL};
  const rows dk = {truth->exact.dk, truth->plain.dk, p->c.kv_heads, p->c.head_dim, 1, truth->key_seen, NULL};
  const rows dv = {truth->exact.dv, truth->plain.dv, p->c.kv_heads, p->c.head_dim_v, 1, truth->key_seen, NULL};
  if (dq.exact != NULL) {
    compare_rows(p, CONF_T_dq, &dq, 3.0, score);
  }
  if (dk.exact != NULL) {
    compare_rows(p, CONF_T_dk, &dk, 3.0, score);
  }
  if (dv.exact != NULL) {
    compare_rows(p, CONF_T_dv, &dv, 3.0, score);
  }
  if (truth->exact.dbias != NULL) {
    compare_dbias(p, truth, score);
  }
  if (truth->exact.dsink != NULL) {
    compare_heads(p, CONF_T_dsink, truth->exact.dsink, truth->plain.dsink, 3.0, 0, score);
  }
}

void conf_compare(const conf_problem *p, const conf_truth *truth, conf_score *score) {
  char text[300];
  memset(score, 0, sizeof(*score));
  score->ok = 1;
  if (p->c.op == TSR_FORWARD) {
    compare_forward(p, truth, score);
  } else {
    compare_backward(p, truth, score);
  }
  if (conf_problem_intact(p, text, sizeof(text)) != NULL) {
    conf_score_fail(score, (double)INFINITY, text);
  }
}
