/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's gradients. With w_j = p_j * dropout factor, o = sum_j w_j v_j and z a sink logit:
 *   dv_j = w_j dout;  dp_j = dropout factor * dot(dout, v_j);  delta = dot(dout, o) - dlse
 *   ds_j = p_j (dp_j - delta);  dz = -exp(z - lse) delta
 *   dbias_ij = ds_j * expr'(s);  dq = scale * sum_j dx_j k_j, dk_j = scale * dx_j q, dx_j = dbias_ij * (1 - tanh^2)
 * An empty row adds nothing, except that with a sink its lse is z: dz = dlse, which is what the formula gives. */
#include <math.h>
#include <string.h>

#include "common/reference.h"

static double round_to(const tsr__ref *r, const tsr_layout *out, tsr_dtype otherwise, double x) {
  return tsr__ref_round(r, out->dtype != TSR_DTYPE_NONE ? out->dtype : otherwise, x);
}

/* p, o and lse of a block: from the forward's results where given, else the oracle's own. */
static void probabilities(const tsr__ref *r, tsr__ref_block *blk) {
  if (r->o.data == NULL || r->lse.data == NULL) {
    tsr__ref_softmax(r, blk);
    tsr__ref_output(r, blk);
    return;
  }
  for (int n = 0; n < blk->num_rows; n++) {
    const int64_t row = blk->seq.q_first + blk->row[n];
    double *s = blk->s + n * blk->stride;
    blk->lse[n] = tsr__ref_at(&r->lse, blk->seq.q_slot, blk->h, row, 0);
    blk->empty[n] |= blk->lse[n] == -(double)INFINITY;
    if (blk->empty[n]) {
      continue;
    }
    tsr__ref_row(&r->o, blk->seq.q_slot, row, blk->h, r->dv, blk->o + n * r->dv);
    for (int64_t j = 0; j < blk->seq.kv_len; j++) {
      if (blk->allowed[n * blk->stride + j]) {
        s[j] = tsr__ref_f32(r, exp(tsr__ref_f32(r, s[j] - blk->lse[n])));
      }
    }
  }
}

/* delta of row n; loads dout. An empty row's o is 0, whatever dout holds. */
static double row_delta(const tsr__ref *r, tsr__ref_block *blk, int n) {
  const int64_t row = blk->seq.q_first + blk->row[n];
  double *dout = blk->dout + n * r->dv, delta = 0.0;
  if (!blk->empty[n]) {
    tsr__ref_row(&r->dout, blk->seq.q_slot, row, blk->h, r->dv, dout);
    delta = tsr__ref_dot(r, dout, blk->o + n * r->dv, r->dv);
  }
  if (r->dlse.data != NULL) {
    delta = tsr__ref_f32(r, delta - tsr__ref_at(&r->dlse, blk->seq.q_slot, blk->h, row, 0));
  }
  return delta;
}

static void add_dsink(const tsr__ref *r, const tsr__ref_block *blk, int n, double delta) {
  double *sum = &r->out->dsink[blk->h];
  double z;
  if (r->sink.data == NULL) {
    return;
  }
  z = tsr__ref_at(&r->sink, blk->h, 0, 0, 0);
  if (z != -(double)INFINITY && blk->lse[n] != -(double)INFINITY) {
    const double p = tsr__ref_f32(r, exp(tsr__ref_f32(r, z - blk->lse[n])));
    *sum = tsr__ref_f32(r, *sum - tsr__ref_f32(r, p * delta));
  }
}

static void add_dbias(const tsr__ref *r, const tsr__ref_block *blk, int n, int64_t j, double ds) {
  const int64_t *shape = r->desc->bias.shape;
  const int64_t b = shape[0] == 1 ? 0 : blk->seq.b, h = shape[1] == 1 ? 0 : blk->h;
  const int64_t i = shape[2] == 1 ? 0 : blk->row[n], col = shape[3] == 1 ? 0 : j;
  double *sum = &r->out->dbias[((b * shape[1] + h) * shape[2] + i) * shape[3] + col];
  *sum = tsr__ref_f32(r, *sum + ds);
}

/* Row of dk or dv that belongs to key j. Backward is never paged. */
static double *grad_row(const tsr__ref *r, double *grad, const tsr__ref_seq *seq, int64_t kv_head, int64_t j,
                        int64_t channels) {
  return grad + ((seq->k_slot * r->desc->k.shape[1] + seq->k_first + j) * r->kv_heads + kv_head) * channels;
}

/* What one pair adds to every gradient; blk->k_row and blk->kv hold rows j of k and v. */
static void pair_gradients(const tsr__ref *r, tsr__ref_block *blk, int n, int64_t j, double delta) {
  const tsr_reference_out *out = r->out;
  const int64_t at = n * blk->stride + j;
  const double *q = blk->q + n * r->d, *dout = blk->dout + n * r->dv;
  const double p = blk->s[at];
  double dp = 0.0, ds;
  if (blk->keep[at]) {
    dp = tsr__ref_f32(r, r->keep_scale * tsr__ref_dot(r, dout, blk->kv, r->dv));
    if (out->dv != NULL) {
      tsr__ref_axpy(r, tsr__ref_weight(r, p), dout, grad_row(r, out->dv, &blk->seq, blk->kv_head, j, r->dv), r->dv);
    }
  }
  ds = tsr__ref_f32(r, p * tsr__ref_f32(r, dp - delta));
  ds = tsr__ref_f32(r, ds * blk->slope_bias[at]);
  if (out->dbias != NULL) {
    add_dbias(r, blk, n, j, ds);
  }
  ds = tsr__ref_round(r, r->s_dtype, tsr__ref_f32(r, ds * blk->slope_dot[at]));
  if (out->dk != NULL) {
    tsr__ref_axpy(r, ds, q, grad_row(r, out->dk, &blk->seq, blk->kv_head, j, r->d), r->d);
  }
  tsr__ref_axpy(r, ds, blk->k_row, blk->dq + n * r->d, r->d);
}

static tsr_status backward_block(tsr__ref *r, tsr__ref_block *blk, tsr_error *err) {
  double delta[TSR__REF_ROWS];
  (void)err;
  tsr__ref_scores(r, blk);
  probabilities(r, blk);
  memset(blk->dq, 0, (size_t)(blk->num_rows * r->d) * sizeof(double));
  for (int n = 0; n < blk->num_rows; n++) {
    delta[n] = row_delta(r, blk, n);
    if (r->out->dsink != NULL) {
      add_dsink(r, blk, n, delta[n]);
    }
  }
  for (int64_t j = 0; j < blk->seq.kv_len; j++) {
    int decoded = 0;
    for (int n = 0; n < blk->num_rows; n++) {
      if (blk->empty[n] || !blk->allowed[n * blk->stride + j]) {
        continue;
      }
      if (!decoded) {
        tsr__ref_kv_row(r, &r->k, r->d, &blk->seq, blk->kv_head, j, blk->k_row);
        tsr__ref_kv_row(r, &r->v, r->dv, &blk->seq, blk->kv_head, j, blk->kv);
        decoded = 1;
      }
      pair_gradients(r, blk, n, j, delta[n]);
    }
  }
  for (int n = 0; r->out->dq != NULL && n < blk->num_rows; n++) {
    const int64_t row = blk->seq.q_slot * r->desc->q.shape[1] + blk->seq.q_first + blk->row[n];
    for (int64_t c = 0; c < r->d; c++) {
      r->out->dq[(row * r->q_heads + blk->h) * r->d + c] =
          round_to(r, &r->desc->dq, r->desc->q.dtype, tsr__ref_f32(r, r->scale * blk->dq[n * r->d + c]));
    }
  }
  return TSR_OK;
}

/* ---- Sums over rows: begun at 0, rounded at the end ------------------------------------------- */

/* Rows of bias that the run's sequences use; an axis of extent 1 is a sum, 0 if nothing adds to it. */
static void each_dbias(const tsr__ref *r, int finish) {
  const int64_t *shape = r->desc->bias.shape;
  int64_t longest = 0;
  if (r->out->dbias == NULL) {
    return;
  }
  for (int64_t b = 0; b < r->batch; b++) {
    tsr__ref_seq seq;
    tsr__ref_seq_init(r, b, &seq);
    longest = seq.q_len > longest ? seq.q_len : longest;
  }
  for (int64_t b = 0; b < (shape[0] == 1 ? 1 : r->batch); b++) {
    int64_t rows = longest;
    if (shape[0] != 1) {
      tsr__ref_seq seq;
      tsr__ref_seq_init(r, b, &seq);
      rows = seq.q_len;
    }
    rows = shape[2] == 1 ? 1 : rows;
    for (int64_t h = 0; h < shape[1]; h++) {
      double *row = r->out->dbias + (b * shape[1] + h) * shape[2] * shape[3];
      for (int64_t c = 0; c < rows * shape[3]; c++) {
        row[c] = finish ? round_to(r, &r->desc->dbias, r->desc->bias.dtype, row[c]) : 0.0;
      }
    }
  }
}

static void each_dkv(const tsr__ref *r, const tsr__ref_seq *seq, double *grad, int64_t channels, const tsr_layout *out,
                     double scale, int finish) {
  if (grad == NULL) {
    return;
  }
  for (int64_t j = 0; j < seq->kv_len; j++) {
    double *row = grad_row(r, grad, seq, 0, j, channels);
    for (int64_t c = 0; c < r->kv_heads * channels; c++) {
      row[c] = finish ? round_to(r, out, r->desc->k.dtype, tsr__ref_f32(r, scale * row[c])) : 0.0;
    }
  }
}

tsr_status tsr__ref_backward(tsr__ref *r, tsr_error *err) {
  const tsr_reference_out *out = r->out;
  tsr__ref_block blk;
  tsr_status status = tsr__ref_block_init(r, 1, &blk, err);
  if (status != TSR_OK) {
    tsr__ref_block_free(r, &blk);
    return status;
  }
  each_dbias(r, 0);
  for (int64_t h = 0; out->dsink != NULL && h < r->q_heads; h++) {
    out->dsink[h] = 0.0;
  }
  for (int64_t b = 0; status == TSR_OK && b < r->batch; b++) {
    tsr__ref_seq_init(r, b, &blk.seq);
    each_dkv(r, &blk.seq, out->dk, r->d, &r->desc->dk, 1.0, 0);
    each_dkv(r, &blk.seq, out->dv, r->dv, &r->desc->dv, 1.0, 0);
    for (int64_t h = 0; status == TSR_OK && h < r->q_heads; h++) {
      status = tsr__ref_each_block(r, &blk, h, backward_block, err);
    }
    each_dkv(r, &blk.seq, out->dk, r->d, &r->desc->dk, r->scale, 1);
    each_dkv(r, &blk.seq, out->dv, r->dv, &r->desc->dv, 1.0, 1);
  }
  each_dbias(r, 1);
  tsr__ref_block_free(r, &blk);
  return status;
}
