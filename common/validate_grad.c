/* SPDX-License-Identifier: Apache-2.0 */
/* Backward: what the gradients look like, and what has none. */
#include "common/validate.h"

/* A gradient: the tensor's shape, its dtype or f32. */
static tsr_status check_gradient(const tsr__problem *p, int grad, int tensor, tsr_error *err) {
  const tsr_layout *g = tsr__slot_layout(&p->desc, grad), *l = tsr__slot_layout(&p->desc, tensor);
  const char *name = tsr__slots[grad].name;
  tsr_status st;
  if (!tsr__problem_has(p, grad)) {
    return TSR_OK;
  }
  if (!tsr__problem_has(p, tensor)) {
    return tsr__invalid(err, name, "is given, needs %s", tsr__slots[tensor].name);
  }
  st = tsr__check_dtype(g, name, TSR__DTYPE_BIT(l->dtype) | TSR__DTYPE_BIT(TSR_F32), err);
  return st == TSR_OK ? tsr__check_same_shape(g, name, l, tsr__slots[tensor].name, err) : st;
}

/* dout and dlse are like o and lse, which the oracle's callers may leave out. */
static tsr_status check_inputs(const tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const tsr__extent b = {d->q.shape[0], "q.shape[0]", 0}, s = {d->q.shape[1], "q.shape[1]", 0};
  const tsr__extent hq = {p->heads_q, "q.shape[2]", 0}, dv = {p->head_dim_v, "v.shape[3]", 0}, one = {1, "", 0};
  const tsr__extent dout[4] = {b, s, hq, dv}, dlse[4] = {b, hq, s, one};
  const uint32_t o_types = TSR__DTYPE_BIT(tsr__problem_has(p, TSR_SLOT_o) ? d->o.dtype : d->q.dtype) |
                           (tsr__problem_has(p, TSR_SLOT_o) ? 0 : TSR__DTYPE_BIT(TSR_F32));
  tsr_status st = tsr__check_dtype(&d->dout, "dout", o_types, err);
  if (st == TSR_OK) {
    st = tsr__check_shape(&d->dout, "dout", dout, err);
  }
  if (st == TSR_OK && tsr__problem_has(p, TSR_SLOT_dlse)) {
    st = tsr__check_dtype(&d->dlse, "dlse", TSR__DTYPE_BIT(TSR_F32), err);
    st = st == TSR_OK ? tsr__check_shape(&d->dlse, "dlse", dlse, err) : st;
  }
  return st;
}

/* Valid, but without a gradient anywhere. */
static tsr_status check_supported(const tsr__problem *p, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  if (tsr__problem_has(p, TSR_SLOT_block_table) || tsr__problem_has(p, TSR_SLOT_kv_indptr)) {
    return tsr__fail(err, TSR_UNSUPPORTED, tsr__problem_has(p, TSR_SLOT_block_table) ? "block_table" : "kv_indptr",
                     "forward only: paged k and v have no backward");
  }
  if (d->k.dtype != d->q.dtype || (TSR__DTYPE_BIT(d->q.dtype) & TSR__FLOATS) == 0) {
    const char *field = (TSR__DTYPE_BIT(d->q.dtype) & TSR__FLOATS) == 0 ? "q.dtype" : "k.dtype";
    return tsr__fail(err, TSR_UNSUPPORTED, field, "forward only: %s is %s, backward needs f32, f16 or bf16", field,
                     tsr_dtype_name(field[0] == 'q' ? d->q.dtype : d->k.dtype));
  }
  return TSR_OK;
}

tsr_status tsr__validate_backward(tsr__problem *p, int need_outputs, tsr_error *err) {
  static const int pairs[][2] = {{TSR_SLOT_dq, TSR_SLOT_q},
                                 {TSR_SLOT_dk, TSR_SLOT_k},
                                 {TSR_SLOT_dv, TSR_SLOT_v},
                                 {TSR_SLOT_dbias, TSR_SLOT_bias},
                                 {TSR_SLOT_dsink, TSR_SLOT_sink}};
  int outputs = 0;
  tsr_status st;
  if (p->desc.op != TSR_BACKWARD) {
    return TSR_OK;
  }
  st = check_supported(p, err);
  if (st == TSR_OK) {
    st = check_inputs(p, err);
  }
  for (int i = 0; st == TSR_OK && i < 5; i++) {
    outputs += tsr__problem_has(p, pairs[i][0]);
    st = check_gradient(p, pairs[i][0], pairs[i][1], err);
  }
  if (st == TSR_OK && outputs == 0 && need_outputs) {
    return tsr__invalid(err, "dq", "is absent, as are dk, dv, dbias and dsink: at least one must be given");
  }
  return st;
}
