/* SPDX-License-Identifier: Apache-2.0 */
#include "truth.h"

#include <stdlib.h>
#include <string.h>

static int64_t count(const tsr_layout *l) {
  return l->shape[0] * l->shape[1] * l->shape[2] * l->shape[3];
}

static double *room(const tsr_layout *l, int *failed) {
  const int64_t n = count(l);
  double *x;
  if (l->dtype == TSR_DTYPE_NONE) {
    return NULL;
  }
  x = malloc((size_t)(n > 0 ? n : 1) * sizeof(double));
  *failed |= x == NULL;
  return x;
}

void conf_results_free(conf_results *r) {
  double *const all[] = {r->o, r->lse, r->max_s, r->dq, r->dk, r->dv, r->dbias, r->dsink};
  for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++) {
    free(all[n]);
  }
  free(r->dropout_mask);
}

void conf_truth_free(conf_truth *truth) {
  conf_results_free(&truth->exact);
  conf_results_free(&truth->plain);
  free(truth->row_seen);
  free(truth->key_seen);
  memset(truth, 0, sizeof(*truth));
}

/* Room for what the case gives; lse always in forward, since its -inf tells empty rows. */
static int make_room(const conf_problem *p, conf_results *r) {
  const int backward = p->c.op == TSR_BACKWARD;
  const int64_t *n = p->t[CONF_T_q].layout.shape;
  const tsr_layout lse = tsr_layout_dense(TSR_F32, n[0], p->c.q_heads, n[1], 1);
  int failed = 0;
  memset(r, 0, sizeof(*r));
  if (!backward) {
    r->o = room(&p->t[CONF_T_o].layout, &failed);
    r->lse = room(&lse, &failed);
    r->max_s = room(&p->t[CONF_T_max_s].layout, &failed);
    if (p->t[CONF_T_dropout_mask].raw != NULL) {
      r->dropout_mask = malloc((size_t)(count(&p->t[CONF_T_dropout_mask].layout) + 1));
      failed |= r->dropout_mask == NULL;
    }
    return !failed;
  }
  r->dq = room(&p->t[CONF_T_dq].layout, &failed);
  r->dk = room(&p->t[CONF_T_dk].layout, &failed);
  r->dv = room(&p->t[CONF_T_dv].layout, &failed);
  r->dbias = room(&p->t[CONF_T_dbias].layout, &failed);
  r->dsink = room(&p->t[CONF_T_dsink].layout, &failed);
  return !failed;
}

static tsr_status evaluate(tsr_context *context, const tsr_attention_desc *desc, const tsr_run_args *args, int mode,
                           const conf_results *r, tsr_error *err) {
  tsr_reference_out out = tsr_reference_out_init();
  out.mode = mode;
  out.o = r->o;
  out.lse = r->lse;
  out.max_s = r->max_s;
  out.dropout_mask = r->dropout_mask;
  out.dq = r->dq;
  out.dk = r->dk;
  out.dv = r->dv;
  out.dbias = r->dbias;
  out.dsink = r->dsink;
  return tsr_reference_attention(context, desc, args, &out, err);
}

void conf_forward_of(const conf_problem *p, tsr_attention_desc *desc, tsr_run_args *args) {
  static const tsr_layout none;
  static const tsr_buffer nothing;
  *desc = p->desc;
  *args = p->args;
  desc->op = TSR_FORWARD;
  desc->dout = desc->dlse = desc->dq = desc->dk = desc->dv = desc->dbias = desc->dsink = none;
  args->dout = args->dlse = args->dq = args->dk = args->dv = args->dbias = args->dsink = nothing;
}

/* o and lse of a backward problem from the oracle. */
static tsr_status fill_forward(tsr_context *context, conf_problem *p, tsr_error *err) {
  tsr_attention_desc desc;
  tsr_run_args args;
  conf_results r;
  conf_tensor *o = &p->t[CONF_T_o], *lse = &p->t[CONF_T_lse];
  const int64_t rows = o->layout.shape[1];
  int failed = 0;
  tsr_status st;
  memset(&r, 0, sizeof(r));
  r.o = room(&o->layout, &failed);
  r.lse = room(&lse->layout, &failed);
  conf_forward_of(p, &desc, &args);
  st = failed ? TSR_OUT_OF_MEMORY : evaluate(context, &desc, &args, TSR_REFERENCE_F64, &r, err);
  for (int64_t b = 0; st == TSR_OK && b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < p->c.q_heads; h++) {
        const double *row = r.o + ((i0 * rows + i1) * p->c.q_heads + h) * p->c.head_dim_v;
        for (int64_t c = 0; c < p->c.head_dim_v; c++) {
          conf_put(o, i0, i1, h, c, row[c]);
        }
        conf_put(lse, i0, h, i1, 0, r.lse[(i0 * p->c.q_heads + h) * rows + i1]);
      }
    }
  }
  conf_tensor_seal(o);
  conf_tensor_seal(lse);
  conf_results_free(&r);
  return st;
}

static int find_seen(const conf_problem *p, conf_truth *truth) {
  const int64_t group = p->c.q_heads / p->c.kv_heads, nq = p->c.seqlen_q, nk = p->c.seqlen_k;
  truth->row_seen = calloc((size_t)(p->c.batch * p->c.q_heads * nq + 1), 1);
  truth->key_seen = calloc((size_t)(p->c.batch * p->c.kv_heads * nk + 1), 1);
  if (truth->row_seen == NULL || truth->key_seen == NULL) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < p->c.q_heads; h++) {
      uint8_t *row = truth->row_seen + (b * p->c.q_heads + h) * nq;
      uint8_t *key = truth->key_seen + (b * p->c.kv_heads + h / group) * nk;
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        for (int64_t j = 0; j < p->len_k[b]; j++) {
          if (!(row[i] && key[j]) && conf_visible(p, b, h, i, j)) {
            row[i] = key[j] = 1;
          }
        }
      }
    }
  }
  return 1;
}

tsr_status conf_results_make(tsr_context *context, conf_problem *p, double *dbias, conf_results *results) {
  tsr_status st = make_room(p, results) ? TSR_OK : TSR_OUT_OF_MEMORY;
  if (st == TSR_OK) {
    conf_results to = *results;
    to.dbias = dbias != NULL ? dbias : to.dbias;
    st = evaluate(context, &p->desc, &p->args, TSR_REFERENCE_F64, &to, NULL);
  }
  if (st != TSR_OK) {
    conf_results_free(results);
  }
  return st;
}

tsr_status conf_truth_make(tsr_context *context, conf_problem *p, int keep_forward, conf_truth *truth, tsr_error *err) {
  tsr_status st = TSR_OK;
  memset(truth, 0, sizeof(*truth));
  if (p->c.op == TSR_BACKWARD && !keep_forward) {
    st = fill_forward(context, p, err);
  }
  if (st == TSR_OK && (!make_room(p, &truth->exact) || !make_room(p, &truth->plain) ||
                       (p->c.op == TSR_BACKWARD && !find_seen(p, truth)))) {
    st = TSR_OUT_OF_MEMORY;
  }
  if (st == TSR_OK) {
    st = evaluate(context, &p->desc, &p->args, TSR_REFERENCE_F64, &truth->exact, err);
  }
  if (st == TSR_OK) {
    st = evaluate(context, &p->desc, &p->args, TSR_REFERENCE_PLAIN, &truth->plain, err);
  }
  if (st != TSR_OK) {
    conf_truth_free(truth);
  }
  return st;
}
