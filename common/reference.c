/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: attention evaluated by definition, a block of query rows of one head at a time. Rows of a block share
 * nothing but the decoding of K and V; scratch is O(Sk + D). */
#include "common/reference.h"

#include <math.h>
#include <string.h>

#include "common/dtype.h"

/* ---- Arithmetic ------------------------------------------------------------------------------ */

double tsr__ref_dot(const tsr__ref *r, const double *a, const double *b, int64_t n) {
  if (r->plain) {
    float sum = 0.0f;
    for (int64_t c = 0; c < n; c++) {
      const float product = (float)a[c] * (float)b[c];
      sum += product;
    }
    return (double)sum;
  }
  double sum[4] = {0.0, 0.0, 0.0, 0.0}; /* independent chains: the latency of one addition is what costs here */
  int64_t c = 0;
  for (; c + 4 <= n; c += 4) {
    for (int lane = 0; lane < 4; lane++) {
      sum[lane] += a[c + lane] * b[c + lane];
    }
  }
  for (; c < n; c++) {
    sum[0] += a[c] * b[c];
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

void tsr__ref_axpy(const tsr__ref *r, double a, const double *x, double *y, int64_t n) {
  if (r->plain) {
    for (int64_t c = 0; c < n; c++) {
      const float product = (float)a * (float)x[c];
      y[c] = (double)((float)y[c] + product);
    }
    return;
  }
  for (int64_t c = 0; c < n; c++) {
    y[c] += a * x[c];
  }
}

/* ---- Setting up ------------------------------------------------------------------------------ */

static void views_init(tsr__ref *r) {
  const tsr_attention_desc *d = r->desc;
  const tsr_run_args *a = r->args;
#define VIEW(name) r->name = tsr__ref_view_of(&d->name, a->name)
  VIEW(q);
  VIEW(o);
  VIEW(lse);
  VIEW(seqlens_q);
  VIEW(seqlens_k);
  VIEW(block_table);
  VIEW(kv_indptr);
  VIEW(kv_indices);
  VIEW(last_page_len);
  VIEW(prefix);
  VIEW(mask);
  VIEW(mask_offsets);
  VIEW(mask_row_strides);
  VIEW(segments_q);
  VIEW(segments_k);
  VIEW(flashmask);
  VIEW(block_indptr);
  VIEW(block_indices);
  VIEW(bias);
  VIEW(sink);
  VIEW(q_descale);
  VIEW(rng_state);
  VIEW(dout);
  VIEW(dlse);
#undef VIEW
  r->cu_q = tsr__ref_view_of(&d->cu_seqlens_q, a->cu_seqlens_q);
  r->cu_k = tsr__ref_view_of(&d->cu_seqlens_k, a->cu_seqlens_k);
  r->alibi = tsr__ref_view_of(&d->alibi_slopes, a->alibi_slopes);
  for (int n = 0; n < d->num_aux; n++) {
    r->aux[n] = tsr__ref_view_of(&d->aux[n], a->aux[n]);
  }
  r->k.codes = tsr__ref_view_of(&d->k, a->k);
  r->k.scale = tsr__ref_view_of(&d->k_scale, a->k_scale);
  r->k.zero = tsr__ref_view_of(&d->k_zero, a->k_zero);
  r->k.channels = r->d;
  tsr__ref_kv_init(&r->k);
  if ((d->flags & TSR_V_IN_K) != 0) {
    r->v = r->k; /* the first channels of k, k's scales included */
    return;
  }
  r->v.codes = tsr__ref_view_of(&d->v, a->v);
  r->v.scale = tsr__ref_view_of(&d->v_scale, a->v_scale);
  r->v.zero = tsr__ref_view_of(&d->v_zero, a->v_zero);
  r->v.channels = r->dv;
  tsr__ref_kv_init(&r->v);
}

static tsr_status setup(tsr__ref *r, tsr_error *err) {
  const tsr_attention_desc *d = r->desc;
  tsr_status status = TSR_OK;
  r->plain = r->out->mode == TSR_REFERENCE_PLAIN;
  r->s_dtype = tsr__dtype_is_fp8(d->q.dtype) ? TSR_F32 : d->q.dtype;
  r->batch = d->cu_seqlens_q.dtype != TSR_DTYPE_NONE ? d->cu_seqlens_q.shape[0] - 1 : d->q.shape[0];
  r->batch = r->args->batch != 0 ? r->args->batch : d->batch != 0 ? d->batch : r->batch;
  r->q_heads = d->q.shape[2];
  r->kv_heads = d->k.shape[2];
  r->group = r->kv_heads > 0 ? r->q_heads / r->kv_heads : 1;
  r->d = d->q.shape[3];
  r->dv = d->v.shape[3];
  r->scale = r->args->scale != 0.0f ? (double)r->args->scale : 1.0 / sqrt((double)r->d);
  r->scale = tsr__ref_f32(r, r->scale);
  r->softcap = (d->flags & TSR_SOFTCAP) != 0 ? (double)r->args->softcap : 0.0;
  r->keep_scale = 1.0;
  views_init(r);
  tsr__ref_dropout_init(r);
  if (d->score_expr != NULL) {
    status = tsr__ref_expr_create(r, d->score_expr, "score_expr", &r->score_expr, err);
  }
  if (status == TSR_OK && d->mask_expr != NULL) {
    status = tsr__ref_expr_create(r, d->mask_expr, "mask_expr", &r->mask_expr, err);
  }
  return status;
}

/* ---- Blocks of rows -------------------------------------------------------------------------- */

static double *new_doubles(const tsr__ref *r, int64_t n) {
  return (double *)tsr__alloc_zero(r->alloc, (size_t)n * sizeof(double));
}

tsr_status tsr__ref_block_init(const tsr__ref *r, int backward, tsr__ref_block *blk, tsr_error *err) {
  const int64_t channels = r->d > r->dv ? r->d : r->dv;
  int failed;
  memset(blk, 0, sizeof(*blk));
  blk->stride = 1;
  for (int64_t b = 0; b < r->batch; b++) {
    tsr__ref_seq seq;
    tsr__ref_seq_init(r, b, &seq);
    blk->stride = seq.kv_len > blk->stride ? seq.kv_len : blk->stride;
  }
  blk->q = new_doubles(r, TSR__REF_ROWS * r->d);
  blk->o = new_doubles(r, TSR__REF_ROWS * r->dv);
  blk->kv = new_doubles(r, channels);
  blk->s = new_doubles(r, TSR__REF_ROWS * blk->stride);
  blk->allowed = (uint8_t *)tsr__alloc_zero(r->alloc, (size_t)(TSR__REF_ROWS * blk->stride));
  blk->keep = (uint8_t *)tsr__alloc_zero(r->alloc, (size_t)(TSR__REF_ROWS * blk->stride));
  failed = blk->q == NULL || blk->o == NULL || blk->kv == NULL || blk->s == NULL || blk->allowed == NULL ||
           blk->keep == NULL;
  if (backward) {
    blk->slope_bias = new_doubles(r, TSR__REF_ROWS * blk->stride);
    blk->slope_dot = new_doubles(r, TSR__REF_ROWS * blk->stride);
    blk->dout = new_doubles(r, TSR__REF_ROWS * r->dv);
    blk->dq = new_doubles(r, TSR__REF_ROWS * r->d);
    blk->k_row = new_doubles(r, r->d);
    failed |=
        blk->slope_bias == NULL || blk->slope_dot == NULL || blk->dout == NULL || blk->dq == NULL || blk->k_row == NULL;
  }
  if (failed) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for the scratch of the reference, %lld keys",
                     (long long)blk->stride);
  }
  return TSR_OK;
}

void tsr__ref_block_free(const tsr__ref *r, tsr__ref_block *blk) {
  void *const all[] = {blk->q,          blk->o,         blk->kv,   blk->s,  blk->allowed, blk->keep,
                       blk->slope_bias, blk->slope_dot, blk->dout, blk->dq, blk->k_row};
  for (size_t n = 0; n < sizeof(all) / sizeof(all[0]); n++) {
    tsr__alloc_free(r->alloc, all[n]);
  }
}

tsr_status tsr__ref_each_block(tsr__ref *r, tsr__ref_block *blk, int64_t h, tsr__ref_block_fn fn, tsr_error *err) {
  const int64_t *rows = r->desc->op == TSR_FORWARD ? r->out->rows : NULL;
  const int64_t count = rows != NULL ? r->out->num_rows : blk->seq.q_len;
  blk->h = h;
  blk->kv_head = h / r->group;
  for (int64_t n = 0; n < count;) {
    tsr_status status;
    for (blk->num_rows = 0; n < count && blk->num_rows < TSR__REF_ROWS; n++) {
      const int64_t i = rows != NULL ? rows[n] : n;
      if (r->should_stop != NULL && r->should_stop(r->user, r->rows_done, r->rows_total) != 0) {
        return tsr__fail(err, TSR_CANCELLED, "", "stopped by should_stop");
      }
      r->rows_done++;
      if (i >= 0 && i < blk->seq.q_len) {
        blk->row[blk->num_rows++] = i;
      }
    }
    status = blk->num_rows > 0 ? fn(r, blk, err) : TSR_OK;
    if (status != TSR_OK) {
      return status;
    }
  }
  return TSR_OK;
}

/* Steps 1 to 3 of semantics for one allowed pair, from the dot product. */
static double score(const tsr__ref *r, const tsr__ref_block *blk, int64_t i, int64_t j, double dot, double *slope_bias,
                    double *slope_dot) {
  const tsr__ref_seq *seq = &blk->seq;
  double s = tsr__ref_f32(r, r->scale * dot);
  *slope_bias = *slope_dot = 1.0;
  if (r->plain) {
    const double rounded = tsr__ref_round(r, r->s_dtype, s);
    s = isinf(rounded) ? s : rounded; /* a logit beyond f16 would make the yardstick useless, not stricter */
  }
  if (r->softcap > 0.0) {
    const double t = tsr__ref_f32(r, tanh(tsr__ref_f32(r, s / r->softcap)));
    s = tsr__ref_f32(r, r->softcap * t);
    *slope_dot = tsr__ref_f32(r, 1.0 - tsr__ref_f32(r, t * t));
  }
  if (r->alibi.data != NULL) {
    const int64_t distance = i + seq->off - j;
    const double slope = tsr__ref_at(&r->alibi, seq->b, blk->h, 0, 0);
    const double term = slope * tsr__ref_f32(r, (double)(distance < 0 ? -distance : distance));
    s = tsr__ref_f32(r, s - tsr__ref_f32(r, term));
  }
  if (r->bias.data != NULL) {
    s = tsr__ref_f32(r, s + tsr__ref_at(&r->bias, seq->b, blk->h, i, j));
  }
  if (r->score_expr != NULL) {
    const tsr__ref_pair pair = {seq->b, blk->h, blk->kv_head, i, j, seq->q_len, seq->kv_len, seq->off};
    s = tsr__ref_expr_score(r->score_expr, &pair, s, slope_bias);
  }
  return s;
}

/* Largest of m and s, NaN once there is one. */
static double max_or_nan(double m, double s) {
  return isnan(m) || s <= m ? m : s;
}

static void load_q(const tsr__ref *r, tsr__ref_block *blk, int n) {
  double *q = blk->q + n * r->d;
  tsr__ref_row(&r->q, blk->seq.q_slot, blk->seq.q_first + blk->row[n], blk->h, r->d, q);
  if (r->q_descale.data != NULL) {
    const double descale = tsr__ref_at(&r->q_descale, blk->seq.b, blk->kv_head, 0, 0);
    for (int64_t c = 0; c < r->d; c++) {
      q[c] = tsr__ref_f32(r, q[c] * descale);
    }
  }
}

void tsr__ref_scores(const tsr__ref *r, tsr__ref_block *blk) {
  for (int n = 0; n < blk->num_rows; n++) {
    load_q(r, blk, n);
    tsr__ref_dropout_row(r, &blk->seq, blk->h, blk->row[n], blk->keep + n * blk->stride);
    blk->max[n] = -(double)INFINITY;
    blk->empty[n] = 1;
  }
  for (int64_t j = 0; j < blk->seq.kv_len; j++) {
    int decoded = 0;
    for (int n = 0; n < blk->num_rows; n++) {
      const int64_t at = n * blk->stride + j;
      double slope_bias, slope_dot;
      blk->allowed[at] = (uint8_t)tsr__ref_allowed(r, &blk->seq, blk->h, blk->row[n], j);
      if (!blk->allowed[at]) {
        continue;
      }
      if (!decoded) {
        tsr__ref_kv_row(r, &r->k, r->d, &blk->seq, blk->kv_head, j, blk->kv);
        decoded = 1;
      }
      blk->s[at] =
          score(r, blk, blk->row[n], j, tsr__ref_dot(r, blk->q + n * r->d, blk->kv, r->d), &slope_bias, &slope_dot);
      blk->max[n] = max_or_nan(blk->max[n], blk->s[at]);
      if (blk->slope_bias != NULL) {
        blk->slope_bias[at] = slope_bias;
        blk->slope_dot[at] = slope_dot;
      }
    }
  }
  for (int n = 0; n < blk->num_rows; n++) {
    blk->empty[n] = blk->max[n] == -(double)INFINITY;
  }
}

void tsr__ref_softmax(const tsr__ref *r, tsr__ref_block *blk) {
  const double sink = r->sink.data != NULL ? tsr__ref_at(&r->sink, blk->h, 0, 0, 0) : -(double)INFINITY;
  for (int n = 0; n < blk->num_rows; n++) {
    const uint8_t *allowed = blk->allowed + n * blk->stride;
    double *s = blk->s + n * blk->stride;
    const double m = max_or_nan(blk->max[n], sink);
    double sum = 0.0;
    if (blk->empty[n]) {
      blk->lse[n] = sink;
      continue;
    }
    for (int64_t j = 0; j < blk->seq.kv_len; j++) {
      if (allowed[j]) {
        s[j] = tsr__ref_f32(r, exp(tsr__ref_f32(r, s[j] - m)));
        sum = tsr__ref_f32(r, sum + s[j]);
      }
    }
    if (sink != -(double)INFINITY) {
      sum = tsr__ref_f32(r, sum + tsr__ref_f32(r, exp(tsr__ref_f32(r, sink - m))));
    }
    for (int64_t j = 0; j < blk->seq.kv_len; j++) {
      if (allowed[j]) {
        s[j] = tsr__ref_f32(r, s[j] / sum);
      }
    }
    blk->lse[n] = tsr__ref_f32(r, m + tsr__ref_f32(r, log(sum)));
  }
}

double tsr__ref_weight(const tsr__ref *r, double p) {
  if (r->plain && tsr__dtype_is_fp8(r->desc->q.dtype)) { /* before the dropout scale, which could pass 448 */
    return tsr__ref_f32(r, tsr__ref_round(r, TSR_F8E4M3, p * 256.0) / 256.0 * r->keep_scale);
  }
  return tsr__ref_round(r, r->s_dtype, tsr__ref_f32(r, p * r->keep_scale));
}

void tsr__ref_output(const tsr__ref *r, tsr__ref_block *blk) {
  const tsr_dtype dtype = r->desc->o.dtype != TSR_DTYPE_NONE ? r->desc->o.dtype : r->s_dtype;
  memset(blk->o, 0, (size_t)(blk->num_rows * r->dv) * sizeof(double));
  for (int64_t j = 0; j < blk->seq.kv_len; j++) {
    int decoded = 0;
    for (int n = 0; n < blk->num_rows; n++) {
      const int64_t at = n * blk->stride + j;
      if (blk->empty[n] || !blk->allowed[at] || !blk->keep[at]) {
        continue;
      }
      if (!decoded) {
        tsr__ref_kv_row(r, &r->v, r->dv, &blk->seq, blk->kv_head, j, blk->kv);
        decoded = 1;
      }
      tsr__ref_axpy(r, tsr__ref_weight(r, blk->s[at]), blk->kv, blk->o + n * r->dv, r->dv);
    }
  }
  for (int64_t c = 0; c < blk->num_rows * r->dv; c++) {
    blk->o[c] = tsr__ref_round(r, dtype, blk->o[c]);
  }
}

/* ---- Forward --------------------------------------------------------------------------------- */

static void store_dropout(const tsr__ref *r, const tsr__ref_block *blk, int n) {
  const tsr_attention_desc *d = r->desc;
  int64_t max_q = d->max_seqlen_q != 0 ? d->max_seqlen_q : d->q.shape[1];
  int64_t max_k = d->max_seqlen_k != 0 ? d->max_seqlen_k : d->k.shape[1];
  if (d->dropout_mask.dtype != TSR_DTYPE_NONE) {
    max_q = d->dropout_mask.shape[2];
    max_k = d->dropout_mask.shape[3];
  } else if (d->max_seqlen_k == 0 && d->block_table.dtype != TSR_DTYPE_NONE) {
    max_k = d->block_table.shape[1] * d->k.shape[1];
  } else if (d->max_seqlen_k == 0 && d->kv_indptr.dtype != TSR_DTYPE_NONE) {
    max_k = d->kv_indices.shape[0] * d->k.shape[1];
  }
  memcpy(r->out->dropout_mask + ((blk->seq.b * r->q_heads + blk->h) * max_q + blk->row[n]) * max_k,
         blk->keep + n * blk->stride, (size_t)blk->seq.kv_len);
}

static tsr_status forward_block(tsr__ref *r, tsr__ref_block *blk, tsr_error *err) {
  const tsr_reference_out *out = r->out;
  const int64_t seqlen = r->desc->q.shape[1]; /* rows of a slot: packed, T */
  (void)err;
  tsr__ref_scores(r, blk);
  tsr__ref_softmax(r, blk);
  if (out->o != NULL) {
    tsr__ref_output(r, blk);
  }
  for (int n = 0; n < blk->num_rows; n++) {
    const int64_t slot = blk->seq.q_slot, row = blk->seq.q_first + blk->row[n];
    if (out->o != NULL) {
      memcpy(out->o + ((slot * seqlen + row) * r->q_heads + blk->h) * r->dv, blk->o + n * r->dv,
             (size_t)r->dv * sizeof(double));
    }
    if (out->lse != NULL) {
      out->lse[(slot * r->q_heads + blk->h) * seqlen + row] = blk->lse[n];
    }
    if (out->max_s != NULL) {
      out->max_s[blk->h] = max_or_nan(out->max_s[blk->h], blk->max[n]);
    }
    if (out->dropout_mask != NULL) {
      store_dropout(r, blk, n);
    }
  }
  return TSR_OK;
}

static tsr_status forward(tsr__ref *r, tsr_error *err) {
  tsr__ref_block blk;
  tsr_status status = tsr__ref_block_init(r, 0, &blk, err);
  for (int64_t h = 0; r->out->max_s != NULL && h < r->q_heads; h++) {
    r->out->max_s[h] = -(double)INFINITY;
  }
  for (int64_t b = 0; status == TSR_OK && b < r->batch; b++) {
    tsr__ref_seq_init(r, b, &blk.seq);
    for (int64_t h = 0; status == TSR_OK && h < r->q_heads; h++) {
      status = tsr__ref_each_block(r, &blk, h, forward_block, err);
    }
  }
  tsr__ref_block_free(r, &blk);
  return status;
}

static void count_rows(tsr__ref *r, int passes) {
  for (int64_t b = 0; b < r->batch; b++) {
    tsr__ref_seq seq;
    tsr__ref_seq_init(r, b, &seq);
    r->rows_total +=
        passes * r->q_heads * (r->desc->op == TSR_FORWARD && r->out->rows != NULL ? r->out->num_rows : seq.q_len);
  }
}

tsr_status tsr__reference_attention(const tsr__alloc *alloc,
                                    int32_t (*should_stop)(void *user, int64_t done, int64_t total), void *user,
                                    const tsr_attention_desc *desc, const tsr_run_args *args,
                                    const tsr_reference_out *out, tsr_error *err) {
  const int backward = desc->op == TSR_BACKWARD;
  const int want_forward =
      !backward || out->o != NULL || out->lse != NULL || out->max_s != NULL || out->dropout_mask != NULL;
  tsr_status status;
  tsr__ref *r = (tsr__ref *)tsr__alloc_zero(alloc, sizeof(*r));
  if (r == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for the reference");
  }
  r->alloc = alloc;
  r->should_stop = should_stop;
  r->user = user;
  r->desc = desc;
  r->args = args;
  r->out = out;
  status = setup(r, err);
  if (status == TSR_OK) {
    count_rows(r, want_forward + backward);
  }
  if (status == TSR_OK && want_forward) {
    status = forward(r, err);
  }
  if (status == TSR_OK && backward) {
    status = tsr__ref_backward(r, err);
  }
  tsr__alloc_free(alloc, r->score_expr);
  tsr__alloc_free(alloc, r->mask_expr);
  tsr__alloc_free(alloc, r);
  return status == TSR_OK ? tsr__ok(err) : status;
}
