/* SPDX-License-Identifier: Apache-2.0 */
/* From a case to a problem that can be run: the order of the parts, outputs, and poison for what no row sees. */
#include "build.h"

#include <stdlib.h>
#include <string.h>

static int has(const conf_problem *p, int item) {
  return conf_case_has(&p->c, item);
}

/* ---- dtypes -------------------------------------------------------------------------------------- */

static void choose_dtypes(conf_problem *p) {
  static const struct {
    int item;
    tsr_dtype dtype;
  } q[] = {{CONF_f32, TSR_F32},
           {CONF_f16, TSR_F16},
           {CONF_bf16, TSR_BF16},
           {CONF_f8e4m3, TSR_F8E4M3},
           {CONF_f8e5m2, TSR_F8E5M2}},
    kv[] = {{CONF_kv_i8, TSR_I8}, {CONF_kv_u4, TSR_U4}, {CONF_kv_f8e4m3, TSR_F8E4M3}, {CONF_kv_f8e5m2, TSR_F8E5M2}};
  conf_rng r = conf_rng_for(p->c.seed, "dtypes");
  const int other_v = conf_chance(&r, 0.2), fp8_out = conf_chance(&r, 0.5);
  p->dtype = TSR_F32;
  for (size_t n = 0; n < sizeof(q) / sizeof(q[0]); n++) {
    p->dtype = has(p, q[n].item) ? q[n].dtype : p->dtype;
  }
  p->k_dtype = p->v_dtype = p->dtype;
  for (size_t n = 0; n < sizeof(kv) / sizeof(kv[0]); n++) {
    if (has(p, kv[n].item)) {
      p->k_dtype = p->v_dtype = kv[n].dtype;
    }
  }
  /* v may be quantised in another way than k */
  if (p->k_dtype != p->dtype && other_v && !has(p, CONF_v_in_k)) {
    p->v_dtype = p->k_dtype == TSR_I8 ? TSR_F8E4M3 : TSR_I8;
  }
  p->o_dtype = p->dtype;
  if (p->dtype == TSR_F8E4M3 || p->dtype == TSR_F8E5M2) {
    p->o_dtype = fp8_out ? TSR_F16 : TSR_BF16;
  }
  if (has(p, CONF_o_f32)) {
    p->o_dtype = TSR_F32;
  }
  p->index_dtype = has(p, CONF_index_i64) ? TSR_I64 : TSR_I32;
}

/* ---- Outputs ------------------------------------------------------------------------------------- */

static void own_rows_q(conf_problem *p, int id) {
  conf_tensor *t = &p->t[id];
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < t->layout.shape[2]; h++) {
        for (int64_t c = 0; c < t->layout.shape[3]; c++) {
          conf_own(t, i0, i1, h, c);
        }
      }
    }
  }
}

static void own_rows_k(conf_problem *p, int id) {
  conf_tensor *t = &p->t[id];
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t j = 0; j < p->len_k[b]; j++) {
      int64_t i0, i1;
      conf_locate_k(p, b, j, &i0, &i1);
      for (int64_t h = 0; h < t->layout.shape[2]; h++) {
        for (int64_t c = 0; c < t->layout.shape[3]; c++) {
          conf_own(t, i0, i1, h, c);
        }
      }
    }
  }
}

static void own_vector(conf_problem *p, int id) {
  for (int64_t h = 0; h < p->c.q_heads; h++) {
    conf_own(&p->t[id], h, 0, 0, 0);
  }
}

static int make_lse(conf_problem *p, int output) {
  const int64_t *n = p->t[CONF_T_q].layout.shape;
  static const conf_order bhs = {{0, 1, 2, 3}}, bsh = {{0, 2, 1, 3}};
  const int64_t shape[4] = {n[0], p->c.q_heads, n[1], 1};
  const int odd = has(p, CONF_layout_padded);
  const tsr_layout l = conf_layout(TSR_F32, shape, odd ? bsh : bhs, 1, odd);
  if (!conf_tensor_make(p, CONF_T_lse, output, &l, odd)) {
    return 0;
  }
  for (int64_t b = 0; output && b < p->c.batch; b++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      int64_t i0, i1;
      conf_locate_q(p, b, i, &i0, &i1);
      for (int64_t h = 0; h < p->c.q_heads; h++) {
        conf_own(&p->t[CONF_T_lse], i0, h, i1, 0);
      }
    }
  }
  return 1;
}

static int make_dropout_mask(conf_problem *p) {
  const tsr_layout l = tsr_layout_dense(TSR_U8, p->batch_plan, p->c.q_heads, p->c.seqlen_q, p->c.seqlen_k);
  if (!conf_tensor_make(p, CONF_T_dropout_mask, 1, &l, 1)) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < p->c.q_heads; h++) {
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        for (int64_t j = 0; j < p->len_k[b]; j++) {
          conf_own(&p->t[CONF_T_dropout_mask], b, h, i, j);
        }
      }
    }
  }
  return 1;
}

static int make_forward_outputs(conf_problem *p) {
  const int64_t *n = p->t[CONF_T_q].layout.shape;
  if (!conf_make_main(p, CONF_T_o, 1, p->o_dtype, n[0], n[1], p->c.q_heads, p->c.head_dim_v)) {
    return 0;
  }
  own_rows_q(p, CONF_T_o);
  if (!has(p, CONF_no_lse) && !make_lse(p, 1)) {
    return 0;
  }
  if (has(p, CONF_max_s)) {
    if (!conf_make_vector(p, CONF_T_max_s, 1, TSR_F32, p->c.q_heads, 1)) {
      return 0;
    }
    own_vector(p, CONF_T_max_s);
  }
  return !has(p, CONF_dropout_mask) || make_dropout_mask(p);
}

/* All columns of the rows that some sequence uses; an axis of extent 1 is a sum and always there. */
static int make_dbias(conf_problem *p) {
  conf_tensor *t = &p->t[CONF_T_dbias];
  const tsr_layout *bias = &p->t[CONF_T_bias].layout;
  const tsr_layout l = tsr_layout_dense(has(p, CONF_grads_f32) ? TSR_F32 : bias->dtype, bias->shape[0], bias->shape[1],
                                        bias->shape[2], bias->shape[3]);
  if (!conf_tensor_make(p, CONF_T_dbias, 1, &l, 0)) {
    return 0;
  }
  for (int64_t b = 0; b < l.shape[0]; b++) {
    int64_t rows = 0;
    for (int64_t x = 0; x < p->c.batch; x++) {
      rows = (l.shape[0] == 1 || x == b) && p->len_q[x] > rows ? p->len_q[x] : rows;
    }
    rows = l.shape[2] == 1 && (l.shape[0] == 1 || b < p->c.batch) ? 1 : rows;
    for (int64_t h = 0; h < l.shape[1]; h++) {
      for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < l.shape[3]; j++) {
          conf_own(t, b, h, i, j);
        }
      }
    }
  }
  return 1;
}

static int make_gradients(conf_problem *p) {
  const int64_t *nq = p->t[CONF_T_q].layout.shape, *nk = p->t[CONF_T_k].layout.shape;
  const tsr_dtype dtype = has(p, CONF_grads_f32) ? TSR_F32 : p->dtype;
  conf_rng r = conf_rng_for(p->c.seed, "gradients");
  const int64_t wanted = has(p, CONF_grads_some) ? conf_range(&r, 1, 6) : 7;
  if ((wanted & 1) != 0) {
    if (!conf_make_main(p, CONF_T_dq, 1, dtype, nq[0], nq[1], p->c.q_heads, p->c.head_dim)) {
      return 0;
    }
    own_rows_q(p, CONF_T_dq);
  }
  if ((wanted & 2) != 0) {
    if (!conf_make_main(p, CONF_T_dk, 1, dtype, nk[0], nk[1], p->c.kv_heads, p->c.head_dim)) {
      return 0;
    }
    own_rows_k(p, CONF_T_dk);
  }
  if ((wanted & 4) != 0) {
    if (!conf_make_main(p, CONF_T_dv, 1, dtype, nk[0], nk[1], p->c.kv_heads, p->c.head_dim_v)) {
      return 0;
    }
    own_rows_k(p, CONF_T_dv);
  }
  if (has(p, CONF_dbias) && !make_dbias(p)) {
    return 0;
  }
  if (has(p, CONF_dsink)) {
    if (!conf_make_vector(p, CONF_T_dsink, 1, TSR_F32, p->c.q_heads, 1)) {
      return 0;
    }
    own_vector(p, CONF_T_dsink);
  }
  return 1;
}

static int build_outputs(conf_problem *p) {
  const int64_t *n = p->t[CONF_T_q].layout.shape;
  if (p->c.op == TSR_FORWARD) {
    return make_forward_outputs(p);
  }
  return conf_make_main(p, CONF_T_o, 0, p->o_dtype, n[0], n[1], p->c.q_heads, p->c.head_dim_v) && make_lse(p, 0) &&
         make_gradients(p);
}

/* ---- Poison for what no row sees ------------------------------------------------------------------- */

static int key_visible(const conf_problem *p, int64_t b, int64_t kv_head, int64_t j) {
  const int64_t group = p->c.q_heads / p->c.kv_heads;
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
    for (int64_t i = 0; i < p->len_q[b]; i++) {
      if (conf_visible(p, b, h, i, j)) {
        return 1;
      }
    }
  }
  return 0;
}

/* NaN in row j of k and v: visible to nobody, its values must reach nothing. Integer codes have no NaN. */
static void poison_keys(conf_problem *p) {
  static const int ids[] = {CONF_T_k, CONF_T_v};
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t h = 0; h < p->c.kv_heads; h++) {
      for (int64_t j = 0; j < p->len_k[b]; j++) {
        int64_t i0, i1;
        if (key_visible(p, b, h, j)) {
          continue;
        }
        conf_locate_k(p, b, j, &i0, &i1);
        for (int n = 0; n < (has(p, CONF_v_in_k) ? 1 : 2); n++) {
          conf_tensor *t = &p->t[ids[n]];
          for (int64_t c = 0; c < t->layout.shape[3] && t->layout.dtype != TSR_I8 && t->layout.dtype != TSR_U4; c++) {
            conf_put(t, i0, i1, h, c, (double)NAN);
          }
        }
      }
    }
  }
}

/* NaN in bias elements of pairs that are hidden otherwise than by the bias. */
static void poison_bias(conf_problem *p) {
  conf_tensor *t = &p->t[CONF_T_bias];
  const int64_t *n = t->layout.shape;
  for (int64_t b = 0; t->raw != NULL && n[0] != 1 && n[1] != 1 && n[2] != 1 && n[3] != 1 && b < p->c.batch; b++) {
    for (int64_t h = 0; h < n[1]; h++) {
      for (int64_t i = 0; i < p->len_q[b]; i++) {
        for (int64_t j = 0; j < p->len_k[b]; j++) {
          if (conf_get(t, b, h, i, j) != -(double)INFINITY && !conf_visible(p, b, h, i, j)) {
            conf_put(t, b, h, i, j, (double)NAN);
          }
        }
      }
    }
  }
}

/* With one batch row for all, a key is free only if all sequences agree; left alone. */
static void poison_unseen(conf_problem *p) {
  poison_bias(p);
  if (!has(p, CONF_layout_broadcast)) {
    poison_keys(p);
  }
}

/* ---- All ------------------------------------------------------------------------------------------- */

static void set_flags(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "flags");
  const int64_t drawn[] = {1, 2, 3, 5, 17, 128};
  p->desc.op = p->c.op;
  p->desc.memory = conf_chance(&r, 0.5) ? TSR_MEMORY_HOST : TSR_MEMORY_NATIVE;
  p->desc.flags |= has(p, CONF_v_in_k) ? TSR_V_IN_K : 0;
  p->desc.flags |= has(p, CONF_deterministic) ? TSR_DETERMINISTIC : 0;
  p->desc.flags |= has(p, CONF_batch_invariant) ? TSR_BATCH_INVARIANT : 0;
  if (has(p, CONF_splits)) {
    const int64_t n = drawn[conf_range(&r, 0, 5)];
    p->desc.num_splits = p->c.num_splits != 0 ? p->c.num_splits : (int32_t)n;
  }
  if (p->c.page_size == 0) {
    static const int64_t sizes[] = {1, 3, 5, 16, 32, 64};
    p->c.page_size = sizes[conf_range(&r, 0, 5)];
  }
}

conf_problem *conf_problem_build(const conf_case *c) {
  conf_problem *p = calloc(1, sizeof(*p));
  int ok;
  if (p == NULL) {
    return NULL;
  }
  p->c = *c;
  conf_set_complete(&p->c.items);
  p->desc = tsr_attention_desc_init();
  p->args = tsr_run_args_init();
  p->batch_plan = c->batch + has(p, CONF_smaller_run);
  p->paged = has(p, CONF_kv_table) || has(p, CONF_kv_csr);
  choose_dtypes(p);
  set_flags(p);
  ok = conf_build_lengths(p) && conf_build_arrangement(p) && conf_build_main(p) && conf_build_masks(p) &&
       conf_build_score(p) && build_outputs(p);
  if (!ok) {
    conf_problem_free(p);
    return NULL;
  }
  if (has(p, CONF_nan_masked)) {
    poison_unseen(p);
  }
  for (int id = 0; id < CONF_T_COUNT; id++) {
    conf_tensor_seal(&p->t[id]);
  }
  return p;
}

void conf_problem_free(conf_problem *p) {
  if (p == NULL) {
    return;
  }
  for (int id = 0; id < CONF_T_COUNT; id++) {
    free(p->t[id].raw);
    free(p->t[id].owned);
  }
  free(p->slot_q);
  free(p->pages);
  free(p);
}
