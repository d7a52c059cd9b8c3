/* SPDX-License-Identifier: Apache-2.0 */
#include "mask_pairs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The same masks over equal scores: a description and arguments that borrow the problem's mask tensors. */
typedef struct probe {
  tsr_attention_desc desc;
  tsr_run_args args;
  float zero;
  float *values; /* v: one-hot over the columns of cells */
  float *bias;   /* 0 and -inf */
  void *lengths; /* of CSR pages */
} probe;

static void drop(probe *p, int32_t input) {
  memset(problem_input_layout(&p->desc, input), 0, sizeof(tsr_layout));
  memset(problem_input_buffer(&p->args, input), 0, sizeof(tsr_buffer));
}

/* A finite bias does not mask; -inf does. */
static tsr_status flatten_bias(probe *p, const tool_problem *problem, tsr_error *err) {
  const tool_tensor *bias = &problem->inputs[INPUT_bias];
  if (bias->dtype == TSR_DTYPE_NONE)
    return TSR_OK;
  p->bias = malloc(((size_t)bias->count + 1) * sizeof(float));
  if (!p->bias) {
    tool_error(err, TSR_OUT_OF_MEMORY, "bias", "no memory to look into the bias");
    return err->status;
  }
  for (int64_t i = 0; i < bias->count; i++)
    p->bias[i] = tsr_decode(bias->dtype, bias->data, i) == -INFINITY ? -INFINITY : 0.0f;
  p->desc.bias.dtype = TSR_F32;
  p->args.bias = tsr_buffer_in(p->bias);
  return TSR_OK;
}

static tsr_layout flat_layout(tsr_layout like, int64_t last) {
  like.dtype = TSR_F32;
  like.align_bytes = 0;
  like.shape[3] = last;
  memset(like.stride, 0, sizeof(like.stride));
  return like;
}

int64_t mask_csr_length(const tool_problem *problem, int64_t b) {
  const tool_tensor *starts = &problem->inputs[INPUT_kv_indptr], *last = &problem->inputs[INPUT_last_page_len];
  const int64_t pages = (int64_t)(tsr_decode(starts->dtype, starts->data, (b + 1) * starts->stride[0]) -
                                  tsr_decode(starts->dtype, starts->data, b * starts->stride[0]));
  if (pages < 1)
    return 0;
  return (pages - 1) * problem->forward.k.shape[1] + (int64_t)tsr_decode(last->dtype, last->data, b * last->stride[0]);
}

/* Lengths instead of the pages that give them. */
static tsr_status drop_csr(probe *p, const tool_problem *problem, tsr_error *err) {
  const int64_t count = problem->num_sequences;
  if (problem->inputs[INPUT_kv_indptr].dtype == TSR_DTYPE_NONE)
    return TSR_OK;
  drop(p, INPUT_kv_indptr);
  drop(p, INPUT_kv_indices);
  drop(p, INPUT_last_page_len);
  p->desc.seqlens_k = tsr_layout_dense(
      p->desc.cu_seqlens_q.dtype == TSR_I64 || p->desc.seqlens_q.dtype == TSR_I64 ? TSR_I64 : TSR_I32, count, 1, 1, 1);
  p->lengths = calloc((size_t)count + 1, sizeof(int64_t));
  if (!p->lengths) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory to look into the mask");
    return err->status;
  }
  for (int64_t b = 0; b < count; b++)
    tsr_encode(p->desc.seqlens_k.dtype, p->lengths, b, (double)mask_csr_length(problem, b));
  p->args.seqlens_k = tsr_buffer_in(p->lengths);
  return TSR_OK;
}

static tsr_status make_probe(probe *p, const tool_problem *problem, tsr_error *err) {
  static const int32_t gone[] = {INPUT_block_table, INPUT_k_scale, INPUT_k_zero,       INPUT_v_scale,  INPUT_v_zero,
                                 INPUT_q_descale,   INPUT_sink,    INPUT_alibi_slopes, INPUT_rng_state};
  memset(p, 0, sizeof(*p));
  p->desc = problem->forward;
  p->args = problem->forward_args;
  p->desc.flags &= ~(TSR_SOFTCAP | TSR_DROPOUT | TSR_V_IN_K | TSR_DETERMINISTIC | TSR_BATCH_INVARIANT);
  p->args.softcap = p->args.dropout_p = 0;
  p->args.seed = p->args.offset = 0;
  p->args.scale = 1;
  p->desc.score_expr = NULL;
  p->desc.variant = NULL;
  p->desc.num_splits = 0;
  for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
    drop(p, gone[i]);
  for (int32_t i = OUTPUT_o; i <= OUTPUT_dropout_mask; i++) {
    memset(problem_output_layout(&p->desc, i), 0, sizeof(tsr_layout));
    memset(problem_output_buffer(&p->args, i), 0, sizeof(tsr_buffer));
  }
  if (problem->paged) { /* the mask does not know pages */
    p->desc.k.shape[0] = problem->num_sequences;
    p->desc.k.shape[1] = problem->max_seqlen_k;
    p->desc.max_seqlen_k = problem->max_seqlen_k;
    const tsr_status status = drop_csr(p, problem, err);
    if (status != TSR_OK)
      return status;
  }
  p->desc.q = flat_layout(p->desc.q, 1);
  p->desc.k = flat_layout(p->desc.k, 1);
  p->args.q = tsr_buffer_in(&p->zero);
  p->args.k = tsr_buffer_in(&p->zero);
  if (p->desc.num_scalars > 0 && !p->desc.mask_expr) { /* they belonged to the score */
    p->desc.num_scalars = 0;
    p->desc.scalar_names = NULL;
  }
  return flatten_bias(p, problem, err);
}

/* v [row][column of cells] = 1 where local key j lies in that column; `first` is the row of key 0. */
static tsr_status set_values(probe *p, int64_t first, int64_t seqlen_k, int32_t cols, tsr_error *err) {
  const int64_t rows = p->desc.k.shape[1];
  free(p->values);
  p->values = calloc((size_t)(rows * cols) + 1, sizeof(float));
  if (!p->values) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory to look into the mask");
    return err->status;
  }
  for (int64_t j = 0; j < seqlen_k && first + j < rows; j++)
    p->values[(first + j) * cols + j * cols / seqlen_k] = 1;
  p->desc.v = flat_layout(p->desc.k, cols);
  p->desc.v.stride[1] = cols;
  p->desc.v.stride[3] = 1;
  p->args.v = tsr_buffer_in(p->values);
  return TSR_OK;
}

/* Row of the first query or key of sequence b in a packed tensor; 0 when dense. */
static int64_t first_row(const tool_tensor *cu, int64_t b) {
  return cu->dtype == TSR_DTYPE_NONE ? 0 : (int64_t)tsr_decode(cu->dtype, cu->data, b * cu->stride[0]);
}

static double visible_keys(double lse) {
  return lse == -INFINITY ? 0 : nearbyint(exp(lse));
}

/* Runs the probe for the given local rows. */
static tsr_status run_probe(tool_engine *engine, probe *p, const int64_t *rows, int64_t num_rows, double *o,
                            double *lse, tsr_error *err) {
  tsr_reference_out out = tsr_reference_out_init();
  out.rows = rows;
  out.num_rows = num_rows;
  out.o = o;
  out.lse = lse;
  return tsr_reference_attention(engine->context, &p->desc, &p->args, &out, err);
}

typedef struct probe_place {
  int64_t b, h, first_q, heads, seqlen_q; /* rows of o [b][s][h][d] and lse [b][h][s] */
  int64_t slot_b;                         /* b, or 0 in a packed tensor */
} probe_place;

static int64_t lse_at(const tsr_attention_desc *d, const probe_place *at, int64_t i) {
  return (at->slot_b * at->heads + at->h) * d->q.shape[1] + at->first_q + i;
}

static tsr_status find_cells(tool_engine *engine, probe *p, const probe_place *at, int64_t first_k, int64_t seqlen_k,
                             mask_pairs *pairs, tsr_error *err) {
  const tsr_attention_desc *d = &p->desc;
  const int64_t slots = d->q.shape[0] * d->q.shape[1] * at->heads;
  int64_t rows[MASK_MAX_CELLS];
  tsr_status status = set_values(p, first_k, seqlen_k, pairs->cols, err);
  if (status != TSR_OK)
    return status;
  double *o = malloc((size_t)(slots * pairs->cols + 1) * sizeof(double));
  double *lse = malloc((size_t)(slots + 1) * sizeof(double));
  pairs->density = calloc((size_t)(pairs->rows * pairs->cols) + 1, sizeof(float));
  for (int32_t r = 0; r < pairs->rows; r++)
    rows[r] = (int64_t)((r + 0.5) * (double)at->seqlen_q / pairs->rows);
  if (!o || !lse || !pairs->density)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory to look into the mask");
  if (status == TSR_OK)
    status = run_probe(engine, p, rows, pairs->rows, o, lse, err);
  for (int32_t r = 0; status == TSR_OK && r < pairs->rows; r++) {
    const double keys = visible_keys(lse[lse_at(d, at, rows[r])]);
    const int64_t o_row = ((at->slot_b * d->q.shape[1] + at->first_q + rows[r]) * at->heads + at->h) * pairs->cols;
    pairs->visible += keys * (double)at->seqlen_q / pairs->rows;
    for (int32_t c = 0; c < pairs->cols; c++) {
      const int64_t start = (c * seqlen_k + pairs->cols - 1) / pairs->cols;
      const int64_t end = ((c + 1) * seqlen_k + pairs->cols - 1) / pairs->cols;
      if (end > start)
        pairs->density[r * pairs->cols + c] = (float)(o[o_row + c] * keys / (double)(end - start));
    }
  }
  free(o);
  free(lse);
  return status;
}

static tsr_status count_pairs(tool_engine *engine, probe *p, const probe_place *at, mask_pairs *pairs, tsr_error *err) {
  const int64_t slots = p->desc.q.shape[0] * p->desc.q.shape[1] * at->heads;
  double *lse = malloc((size_t)(slots + 1) * sizeof(double));
  tsr_status status = TSR_OK;
  if (!lse)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory to count pairs");
  p->desc.v = flat_layout(p->desc.k, 1);
  p->args.v = tsr_buffer_in(&p->zero);
  if (status == TSR_OK)
    status = run_probe(engine, p, NULL, 0, NULL, lse, err);
  pairs->visible = 0;
  for (int64_t i = 0; status == TSR_OK && i < at->seqlen_q; i++)
    pairs->visible += visible_keys(lse[lse_at(&p->desc, at, i)]);
  free(lse);
  return status;
}

tsr_status mask_pairs_find(tool_engine *engine, const tool_problem *problem, int64_t b, int64_t h, int64_t seqlen_q,
                           int64_t seqlen_k, mask_pairs *pairs, tsr_error *err) {
  const double heads = (double)(problem->num_sequences * problem->heads);
  const tool_tensor *cu_q = &problem->inputs[INPUT_cu_seqlens_q], *cu_k = &problem->inputs[INPUT_cu_seqlens_k];
  const double budget = 6e8; /* multiply-adds of the oracle: under a second or so */
  probe p;
  memset(pairs, 0, sizeof(*pairs));
  if (seqlen_q <= 0 || seqlen_k <= 0)
    return TSR_OK;
  pairs->rows = seqlen_q < MASK_MAX_CELLS ? (int32_t)seqlen_q : MASK_MAX_CELLS;
  pairs->cols = seqlen_k < MASK_MAX_CELLS ? (int32_t)seqlen_k : MASK_MAX_CELLS;
  while (pairs->rows > 16 && pairs->cols > 16 && heads * pairs->rows * (double)seqlen_k * pairs->cols > budget) {
    pairs->rows = (pairs->rows + 1) / 2;
    pairs->cols = (pairs->cols + 1) / 2;
  }
  if (heads * pairs->rows * (double)seqlen_k * pairs->cols > budget)
    return TSR_OK;
  const probe_place at = {b, h, first_row(cu_q, b), problem->heads, seqlen_q, cu_q->dtype == TSR_DTYPE_NONE ? b : 0};
  tsr_status status = make_probe(&p, problem, err);
  if (status == TSR_OK)
    status = find_cells(engine, &p, &at, first_row(cu_k, b), seqlen_k, pairs, err);
  pairs->all = (double)seqlen_q * (double)seqlen_k;
  pairs->exact = pairs->rows == seqlen_q;
  if (status == TSR_OK && !pairs->exact && heads * pairs->all < 3e7) {
    status = count_pairs(engine, &p, &at, pairs, err);
    pairs->exact = 1;
  }
  pairs->known = status == TSR_OK;
  free(p.values);
  free(p.bias);
  free(p.lengths);
  if (status != TSR_OK)
    mask_pairs_free(pairs);
  return status;
}

void mask_pairs_free(mask_pairs *pairs) {
  free(pairs->density);
  memset(pairs, 0, sizeof(*pairs));
}
