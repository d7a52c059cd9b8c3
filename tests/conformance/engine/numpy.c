/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of tests/data/pairwise.bin, whose expected results an independent NumPy script made: every feature and
 * every pair of features once more, against results that no code of this project computed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../pairwise.h"
#include "build.h"
#include "runner.h"

/* An output, what is expected of it and the plain mode's results. */
typedef struct output {
  int id;
  double factor;
  const double *want;    /* NULL: not part of the case */
  double *plain, *exact; /* exact: backward only, see evaluate */
  int64_t heads_axis;    /* axis of the heads; -1: one group */
  int64_t rows_axis;     /* axis of the rows that sequences divide; -1: none */
  int by_key;
} output;

typedef struct numpy_case {
  const tsr_test_case *c;
  int op;
  conf_problem p; /* desc, args and the tensors that are made here */
  output outputs[5];
  int num_outputs;
} numpy_case;

static int untouched(const double *x) {
  uint64_t bits;
  memcpy(&bits, x, sizeof(bits));
  return bits == TSR_TEST_UNTOUCHED_BITS;
}

/* ---- Setting up -------------------------------------------------------------------------------------- */

static void index_of(const tsr_layout *l, int64_t n, int64_t i[4]) {
  for (int a = 3; a >= 0; a--) {
    i[a] = n % l->shape[a];
    n /= l->shape[a];
  }
}

static int add_output(numpy_case *x, int id, const tsr_layout *layout, const double *want, double factor,
                      int64_t heads_axis, int64_t rows_axis, int by_key) {
  output *o = &x->outputs[x->num_outputs];
  const int64_t n = tsr_test_layout_count(layout);
  if (layout->dtype == TSR_DTYPE_NONE || want == NULL) {
    return 1;
  }
  *o = (output){id, factor, want, NULL, NULL, heads_axis, rows_axis, by_key};
  x->num_outputs++;
  o->plain = malloc((size_t)(n + 1) * sizeof(double));
  o->exact = x->op == TSR_BACKWARD ? malloc((size_t)(n + 1) * sizeof(double)) : NULL;
  if (o->plain == NULL || (x->op == TSR_BACKWARD && o->exact == NULL) || !conf_tensor_make(&x->p, id, 1, layout, 0)) {
    return 0;
  }
  for (int64_t k = 0; k < n; k++) {
    int64_t i[4];
    index_of(layout, k, i);
    if (!untouched(&want[k])) {
      conf_own(&x->p.t[id], i[0], i[1], i[2], i[3]);
    }
  }
  return 1;
}

/* o and lse as inputs of backward, from the expected results. */
static int add_result(numpy_case *x, int id, const tsr_layout *layout, const double *value) {
  if (!conf_tensor_make(&x->p, id, 0, layout, 0)) {
    return 0;
  }
  for (int64_t k = 0; k < tsr_test_layout_count(layout); k++) {
    int64_t i[4];
    index_of(layout, k, i);
    if (!untouched(&value[k])) {
      conf_put(&x->p.t[id], i[0], i[1], i[2], i[3], value[k]);
    }
  }
  conf_tensor_seal(&x->p.t[id]);
  return 1;
}

static int add_dropout_mask(numpy_case *x, const tsr_layout *layout, const uint8_t *want) {
  const int64_t n = tsr_test_layout_count(layout);
  if (layout->dtype == TSR_DTYPE_NONE) {
    return 1;
  }
  if (!conf_tensor_make(&x->p, CONF_T_dropout_mask, 1, layout, 0)) {
    return 0;
  }
  for (int64_t k = 0; k < n; k++) {
    int64_t i[4];
    index_of(layout, k, i);
    if (want[k] != TSR_TEST_UNTOUCHED_BYTE) {
      conf_own(&x->p.t[CONF_T_dropout_mask], i[0], i[1], i[2], i[3]);
    }
  }
  return 1;
}

static int set_up(numpy_case *x, const tsr_test_case *c, int op) {
  const tsr_attention_desc *d = op == TSR_BACKWARD ? &c->backward : &c->forward;
  const tsr_test_expected *e = &c->expected;
  memset(x, 0, sizeof(*x));
  x->c = c;
  x->op = op;
  x->p.c = conf_case_init();
  x->p.c.op = op;
  x->p.c.seed = conf_rng_for((uint64_t)op, c->name).state; /* what it chooses: the workspace's contents and the like */
  x->p.desc = *d;
  x->p.args = op == TSR_BACKWARD ? c->backward_args : c->forward_args;
  if (op == TSR_FORWARD) {
    return add_output(x, CONF_T_o, &d->o, e->o, 2.0, 2, 1, 0) &&
           add_output(x, CONF_T_lse, &d->lse, e->lse, 2.0, 1, 2, 0) &&
           add_output(x, CONF_T_max_s, &d->max_s, e->max_s, 2.0, -1, -1, 0) &&
           add_dropout_mask(x, &d->dropout_mask, e->dropout_mask);
  }
  return add_result(x, CONF_T_o, &d->o, e->o) && add_result(x, CONF_T_lse, &d->lse, e->lse) &&
         add_output(x, CONF_T_dq, &d->dq, e->dq, 3.0, 2, 1, 0) &&
         add_output(x, CONF_T_dk, &d->dk, e->dk, 3.0, 2, 1, 1) &&
         add_output(x, CONF_T_dv, &d->dv, e->dv, 3.0, 2, 1, 1) &&
         add_output(x, CONF_T_dbias, &d->dbias, e->dbias, 3.0, 1, -1, 0) &&
         add_output(x, CONF_T_dsink, &d->dsink, e->dsink, 3.0, -1, -1, 0);
}

static void tear_down(numpy_case *x) {
  for (int n = 0; n < x->num_outputs; n++) {
    free(x->outputs[n].plain);
    free(x->outputs[n].exact);
  }
  for (int id = 0; id < CONF_T_COUNT; id++) {
    free(x->p.t[id].raw);
    free(x->p.t[id].owned);
  }
}

static tsr_status evaluate_mode(numpy_case *x, int mode, tsr_error *err) {
  tsr_reference_out out = tsr_reference_out_init();
  out.mode = mode;
  for (int n = 0; n < x->num_outputs; n++) {
    double *to = mode == TSR_REFERENCE_PLAIN ? x->outputs[n].plain : x->outputs[n].exact;
    switch (x->outputs[n].id) {
    case CONF_T_o: out.o = to; break;
    case CONF_T_lse: out.lse = to; break;
    case CONF_T_max_s: out.max_s = to; break;
    case CONF_T_dq: out.dq = to; break;
    case CONF_T_dk: out.dk = to; break;
    case CONF_T_dv: out.dv = to; break;
    case CONF_T_dbias: out.dbias = to; break;
    default: out.dsink = to; break;
    }
  }
  return tsr_reference_attention(NULL, &x->p.desc, &x->p.args, &out, err);
}

/* The yardstick. And in backward the reference, too: NumPy's gradients follow from its own o and lse, a run's from o
 * and lse as rounded to their types, which makes visible differences where gradients cancel. (That the oracle agrees
 * with NumPy on NumPy's terms is a unit test.) What has to be untouched or exactly zero is NumPy's word in any case. */
static tsr_status evaluate(numpy_case *x, tsr_error *err) {
  const tsr_status st = evaluate_mode(x, TSR_REFERENCE_PLAIN, err);
  return st == TSR_OK && x->op == TSR_BACKWARD ? evaluate_mode(x, TSR_REFERENCE_F64, err) : st;
}

/* ---- Comparing --------------------------------------------------------------------------------------- */

/* Sequence that a row of a packed tensor belongs to; else axis 0 tells. */
static int64_t group_of(const numpy_case *x, const output *o, const int64_t i[4]) {
  const tsr_layout *cu = o->by_key ? &x->p.desc.cu_seqlens_k : &x->p.desc.cu_seqlens_q;
  const tsr_buffer *b = o->by_key ? &x->p.args.cu_seqlens_k : &x->p.args.cu_seqlens_q;
  int64_t s = 0;
  if (o->heads_axis < 0) {
    return 0;
  }
  if (cu->dtype == TSR_DTYPE_NONE || o->rows_axis < 0) {
    return i[0];
  }
  while (s + 2 < cu->shape[0] &&
         (double)i[o->rows_axis] >=
             tsr_decode(cu->dtype, (const char *)b->ptr + b->offset_bytes, (s + 1) * cu->stride[0])) {
    s++;
  }
  return s;
}

/* A bias of one key for all: its gradient is a sum of ds over the keys of each row, which is 0 but for rounding, unless
 * dlse makes it something. Where all that is left is rounding, a rule relative to the result says nothing. */
static int is_rounding(const numpy_case *x, const output *o) {
  return o->id == CONF_T_dbias && x->p.desc.bias.shape[3] == 1 && x->p.desc.dlse.dtype == TSR_DTYPE_NONE;
}

static void compare_group(const numpy_case *x, const output *o, int64_t group, int64_t head, conf_score *score) {
  const conf_tensor *t = &x->p.t[o->id];
  char where[64];
  conf_group g;
  snprintf(where, sizeof(where), "b=%lld h=%lld", (long long)group, (long long)head);
  conf_group_begin(&g, score, t, o->factor, o->id == CONF_T_lse || o->id == CONF_T_max_s, where);
  for (int64_t k = 0; k < tsr_test_layout_count(&t->layout); k++) {
    int64_t i[4];
    index_of(&t->layout, k, i);
    if (is_rounding(x, o) || untouched(&o->want[k]) || group_of(x, o, i) != group ||
        (o->heads_axis >= 0 && i[o->heads_axis] != head)) {
      continue;
    }
    const double got = conf_get(t, i[0], i[1], i[2], i[3]), want = o->want[k];
    const int64_t row = o->rows_axis >= 0 ? i[o->rows_axis] : i[0];
    conf_group_add(&g, row, i[3], got, o->exact != NULL ? o->exact[k] : want, o->plain[k]);
    if (want == 0.0 && signbit(want) && got != 0.0) {
      conf_group_wrong(&g, row, i[3], got, 0.0, "must be exactly 0, as nothing contributes");
    }
  }
  conf_group_end(&g);
}

static void compare(const numpy_case *x, conf_score *score) {
  char text[300];
  memset(score, 0, sizeof(*score));
  score->ok = 1;
  for (int n = 0; n < x->num_outputs; n++) {
    const output *o = &x->outputs[n];
    const tsr_layout *l = &x->p.t[o->id].layout;
    const int64_t sequences = x->p.desc.cu_seqlens_q.dtype != TSR_DTYPE_NONE   ? x->p.desc.cu_seqlens_q.shape[0] - 1
                              : x->p.desc.cu_seqlens_k.dtype != TSR_DTYPE_NONE ? x->p.desc.cu_seqlens_k.shape[0] - 1
                                                                               : l->shape[0];
    const int64_t groups = o->heads_axis < 0 ? 1 : l->shape[0] > sequences ? l->shape[0] : sequences;
    for (int64_t group = 0; group < groups; group++) {
      for (int64_t head = 0; head < (o->heads_axis < 0 ? 1 : l->shape[o->heads_axis]); head++) {
        compare_group(x, o, group, head, score);
      }
    }
  }
  const conf_tensor *m = &x->p.t[CONF_T_dropout_mask];
  for (int64_t k = 0; m->raw != NULL && k < tsr_test_layout_count(&m->layout); k++) {
    int64_t i[4];
    index_of(&m->layout, k, i);
    if (m->data[conf_index(m, i[0], i[1], i[2], i[3])] != x->c->expected.dropout_mask[k]) {
      conf_score_fail(score, (double)INFINITY, "dropout_mask has another bit than NumPy's");
      break;
    }
  }
  if (conf_problem_intact(&x->p, text, sizeof(text)) != NULL) {
    conf_score_fail(score, (double)INFINITY, text);
  }
}

/* ---- Running ----------------------------------------------------------------------------------------- */

static void run_on(conf_runner *r, conf_target *target, numpy_case *x, const char *line) {
  const int32_t op = x->op == TSR_BACKWARD ? TSR_OP_BACKWARD : TSR_OP_FORWARD;
  const char *variant;
  int ran_any = 0;
  for (int32_t n = 0; (variant = tsr_device_variant(target->device, op, n)) != NULL; n++) {
    char why[480], ran[48];
    conf_score score;
    tsr_status st;
    if (!conf_wants_variant(r, variant)) {
      ran_any = 1;
      continue;
    }
    st = conf_run_once(r, target, variant, &x->p, ran, why, sizeof(why));
    if (st == TSR_UNSUPPORTED) {
      r->result->refused++;
      target->stats->refused++;
      continue;
    }
    ran_any = 1;
    if (st != TSR_OK) {
      conf_fail(r, target, variant, line, "%s", why);
      continue;
    }
    compare(x, &score);
    if (score.ok) {
      conf_pass(r, target, score.worst, line);
    } else {
      conf_fail(r, target, variant, line, "%s", score.text);
    }
  }
  if (!ran_any) {
    conf_fail(r, target, "", line, "no variant takes it");
  }
}

static void run_case(conf_runner *r, const tsr_test_case *c, int op) {
  numpy_case x;
  char line[640];
  tsr_error err;
  memset(&err, 0, sizeof(err));
  snprintf(line, sizeof(line), "numpy %s %s: %.500s", op == TSR_BACKWARD ? "bwd" : "fwd", c->name, c->features);
  if (!conf_begin(r, "numpy", line)) {
    return;
  }
  if (!set_up(&x, c, op)) {
    conf_fail(r, NULL, "", line, "no memory");
  } else if (evaluate(&x, &err) != TSR_OK) {
    conf_fail(r, NULL, "", line, "the oracle: %s", err.text);
  } else {
    for (int n = 0; n < r->num_targets; n++) {
      if (r->targets[n].computes && !r->targets[n].lost) {
        run_on(r, &r->targets[n], &x, line);
      }
    }
  }
  tear_down(&x);
}

void conf_numpy_cases(conf_runner *r, const char *path) {
  tsr_test_pairwise *file = NULL;
  char why[200];
  if (tsr_test_pairwise_open(path, &file, why, sizeof(why)) != 0) {
    conf_fail(r, NULL, "", path, "%s", why);
    return;
  }
  for (int32_t n = 0; n < tsr_test_pairwise_count(file); n++) {
    const tsr_test_case *c = tsr_test_pairwise_case(file, n);
    run_case(r, c, TSR_FORWARD);
    if (c->has_backward) {
      run_case(r, c, TSR_BACKWARD);
    }
  }
  tsr_test_pairwise_close(file);
}
