/* SPDX-License-Identifier: Apache-2.0 */
/* Backward (FlashAttention-2's: P is made again from Q, K and LSE). Phases:
 *   delta      delta_i = sum(dO_i O_i) - dLSE_i, once a row
 *   backward   dK, dV and dQ in one pass, 5 products: an item is a kv head with its whole group, keys outermost, dQ
 *              summed in the item's scratch. Where kv heads fill the threads; else
 *   dkdv, dq   two kernels, 7 products: items are blocks of keys, and of rows
 *   dbias      items are pieces of the bias's gradient, each summed over the axes that the bias repeats
 *   dsink      an item a head
 * No sum is shared between items and each runs in the order of its index, rows in ascending order within heads in
 * ascending order, so that neither the number of threads nor the choice between one pass and two changes a bit. */
#include <stdio.h>

/* Of the forward pass's stages only some are used. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "backends/cpu/kernels/generic/grad_pairs.h"
#include "backends/cpu/kernels/generic/grad_rows.h"

enum {
  DQ_BLOCKS = 4, /* query blocks of an item of dq, which share the loading of keys */
};

static int64_t ceil_div(int64_t n, int64_t d) {
  return (n + d - 1) / d;
}

static int wants(const tsr__problem *p, int slot) {
  return tsr__problem_has(p, slot);
}

/* ---- Delta ----------------------------------------------------------------------------------- */

/* sum(dO O) of TILE_Q rows in lanes, channels in the order in which grad_dot sums dP: where one key has all the weight,
 * O is its V and dP - delta exactly 0. Rows of zeros, as empty rows have, give 0 whatever dO holds. */
static void sum_channels(const float *doutt, const float *ot, int channels, float *sum) {
  for (int v = 0; v < TILE_Q; v += VL) {
    vf total = vf_all(0.0f);
    vi nonzero = vi_all(0);
    for (int c = 0; c < channels;) {
      const int end = channels - c < SUM_RUN ? channels : c + SUM_RUN;
      vf run = vf_all(0.0f);
      for (; c < end; c++) {
        const vf o = vf_load(ot + c * TILE_Q + v);
        nonzero |= o != vf_all(0.0f);
        run += o * vf_load(doutt + c * TILE_Q + v);
      }
      total += run;
    }
    vf_store(sum + v, vf_select(nonzero, total, vf_all(0.0f)));
  }
}

static void delta_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__problem *p = &run->problem->attn;
  const tsr_attn_args *a = &run->bound->args;
  const int64_t blocks = ceil_div(p->seqlen_q, TILE_Q), ld = grad_padded(p->head_dim_v), block = TILE_Q * ld;
  const int64_t b = item / (blocks * p->heads_q), h = item / blocks % p->heads_q, i0 = item % blocks * TILE_Q;
  float *x = scratch, *doutt = x + block, *ot = doutt + block, *delta, sum[TILE_Q];
  tsr_seq seq;
  int rows;
  (void)counts;
  if (b >= a->batch) {
    return;
  }
  seq = tsr_seq_load(a, &run->bound->ptrs, b);
  rows = (int)tsr_min_i64(TILE_Q, seq.q_len - i0);
  if (rows <= 0) {
    return;
  }
  grad_zero(x, block);
  grad_load_rows(run->bound->ptr[TSR_SLOT_dout], p->desc.dout.dtype, &a->u.bwd.dout, seq.q_b, seq.q_row0 + i0, h, rows,
                 p->head_dim_v, ld, x);
  grad_transpose(x, ld, TILE_Q, ld, doutt, TILE_Q);
  grad_load_rows(run->bound->ptr[TSR_SLOT_o], p->desc.o.dtype, &a->o, seq.q_b, seq.q_row0 + i0, h, rows, p->head_dim_v,
                 ld, x);
  grad_transpose(x, ld, TILE_Q, ld, ot, TILE_Q);
  sum_channels(doutt, ot, p->head_dim_v, sum);
  delta = grad_delta_at(run, &seq, (int32_t)h) + i0;
  for (int i = 0; i < rows; i++) {
    delta[i] = sum[i];
  }
  if (wants(p, TSR_SLOT_dlse)) {
    const tsr_t3 *t = &a->u.bwd.dlse;
    const float *dlse = (const float *)run->bound->ptr[TSR_SLOT_dlse] + seq.q_b * t->stride[0] + h * t->stride[1] +
                        (seq.q_row0 + i0) * t->stride[2];
    for (int i = 0; i < rows; i++) {
      delta[i] -= dlse[i * t->stride[2]];
    }
  }
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

static int class_of(grad *g, int64_t i0, int64_t j0, int count) {
  tsr__tile_box box;
  int tile_class;
  box.i0 = i0;
  box.i1 = tsr_min_i64(i0 + TILE_Q, g->f.seq.q_len);
  box.j0 = j0;
  box.j1 = tsr_min_i64(j0 + g->tile_k, g->f.seq.kv_len);
  box.h0 = grad_head(g);
  box.h1 = box.h0 + 1;
  tile_class = tsr__tile_class(g->f.p, g->f.bound, &g->f.seq, &box);
  if (count) {
    g->counts->full += tile_class == TSR_TILE_FULL;
    g->counts->partial += tile_class == TSR_TILE_PARTIAL;
    g->counts->skipped += tile_class == TSR_TILE_SKIP;
  }
  return tile_class;
}

static void store_keys(grad *g) {
  const tsr_attention_desc *d = &g->f.p->desc;
  const int64_t row = g->f.seq.k_row0 + g->f.j0;
  if (wants(g->f.p, TSR_SLOT_dk)) {
    grad_store_rows(g->dk, g->ld, g->keys, g->f.head_dim, g->f.a->scale, g->f.bound->ptr[TSR_SLOT_dk], d->dk.dtype,
                    &g->f.a->u.bwd.dk, g->f.seq.k_b, row, g->f.kv_head);
  }
  if (wants(g->f.p, TSR_SLOT_dv)) {
    grad_store_rows(g->dval, g->ldv, g->keys, g->f.head_dim_v, 1.0f, g->f.bound->ptr[TSR_SLOT_dv], d->dv.dtype,
                    &g->f.a->u.bwd.dv, g->f.seq.k_b, row, g->f.kv_head);
  }
}

/* Writes dQ of rows i0.. of the head at hand from its transposed sum; uses g->q. */
static void store_rows(grad *g, int64_t i0, const float *dqt) {
  const int rows = (int)tsr_min_i64(TILE_Q, g->f.seq.q_len - i0);
  grad_transpose(dqt, TILE_Q, g->ld, TILE_Q, g->q, g->ld);
  grad_store_rows(g->q, g->ld, rows, g->f.head_dim, g->f.a->scale, g->f.bound->ptr[TSR_SLOT_dq], g->f.p->desc.dq.dtype,
                  &g->f.a->u.bwd.dq, g->f.seq.q_b, g->f.seq.q_row0 + i0, grad_head(g));
}

/* Keys from j0 on of kv head hkv against all rows of its group. dqt: sums of dQ, a block a query block and head; NULL:
 * not wanted. Nonzero: cancelled. */
static int sweep_rows(grad *g, int64_t j0, int32_t hkv, float *dqt) {
  const int64_t block = TILE_Q * g->ld;
  const int32_t first = hkv * g->f.a->group;
  const int want_dk = wants(g->f.p, TSR_SLOT_dk), want_dv = wants(g->f.p, TSR_SLOT_dv);
  int64_t keys;
  grad_set_head(g, first);
  grad_set_keys(g, j0);
  keys = ceil_div(g->keys, GRAD_KEYS) * GRAD_KEYS;
  grad_zero(g->dk, keys * g->ld);
  grad_zero(g->dval, keys * g->ldv);
  for (int32_t h = first; h < first + g->f.a->group; h++) {
    grad_set_head(g, h);
    for (int64_t i0 = 0; i0 < g->f.seq.q_len; i0 += TILE_Q) {
      const int tile_class = class_of(g, i0, j0, 1);
      if (tile_class != TSR_TILE_SKIP) {
        grad_set_rows(g, i0);
        grad_make_pairs(g, tile_class);
        grad_add_keys(g, want_dk, want_dv);
        if (dqt != NULL) {
          grad_add_rows(g, dqt + i0 / TILE_Q * block);
        }
        if (tsr__cpu_poll(g->f.run)) {
          return 1;
        }
      }
    }
    dqt = dqt != NULL ? dqt + ceil_div(g->f.seq.q_len, TILE_Q) * block : NULL;
  }
  store_keys(g);
  return 0;
}

static void dkdv_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__problem *p = &run->problem->attn;
  const int64_t blocks = ceil_div(p->seqlen_k, run->build->tile_k), b = item / (blocks * p->heads_kv);
  const int64_t j0 = item % blocks * run->build->tile_k;
  grad g;
  if (b >= run->bound->args.batch) {
    return;
  }
  grad_begin(&g, run, scratch, b, counts);
  if (j0 < g.f.seq.kv_len) {
    sweep_rows(&g, j0, (int32_t)(item / blocks % p->heads_kv), NULL);
  }
}

static void backward_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__problem *p = &run->problem->attn;
  const int64_t b = item / p->heads_kv;
  const int32_t hkv = (int32_t)(item % p->heads_kv);
  int64_t blocks;
  grad g;
  if (b >= run->bound->args.batch) {
    return;
  }
  grad_begin(&g, run, scratch, b, counts);
  blocks = ceil_div(g.f.seq.q_len, TILE_Q);
  grad_zero(g.sum, p->group * blocks * TILE_Q * g.ld);
  for (int64_t j0 = 0; j0 < g.f.seq.kv_len; j0 += g.tile_k) {
    if (sweep_rows(&g, j0, hkv, g.sum)) {
      return;
    }
  }
  for (int32_t n = 0; n < p->group; n++) {
    grad_set_head(&g, hkv * p->group + n);
    for (int64_t i = 0; i < blocks; i++) {
      store_rows(&g, i * TILE_Q, g.sum + (n * blocks + i) * TILE_Q * g.ld);
    }
  }
}

static void dq_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__problem *p = &run->problem->attn;
  const int64_t blocks = ceil_div(p->seqlen_q, DQ_BLOCKS * TILE_Q), b = item / (blocks * p->heads_q);
  const int64_t first = (blocks - 1 - item % blocks) * (DQ_BLOCKS * TILE_Q); /* causal: the longest first */
  const int count = !wants(p, TSR_SLOT_dk) && !wants(p, TSR_SLOT_dv);        /* else dkdv does */
  grad g;
  if (b >= run->bound->args.batch) {
    return;
  }
  grad_begin(&g, run, scratch, b, counts);
  grad_set_head(&g, (int32_t)(item / blocks % p->heads_q));
  grad_zero(g.sum, tsr_min_i64(DQ_BLOCKS, ceil_div(p->seqlen_q, TILE_Q)) * TILE_Q * g.ld);
  for (int64_t j0 = 0; j0 < g.f.seq.kv_len && first < g.f.seq.q_len; j0 += g.tile_k) {
    int loaded = 0;
    for (int n = 0; n < DQ_BLOCKS && first + n * TILE_Q < g.f.seq.q_len; n++) {
      const int64_t i0 = first + n * TILE_Q;
      const int tile_class = class_of(&g, i0, j0, count);
      if (tile_class == TSR_TILE_SKIP) {
        continue;
      }
      if (!loaded) {
        grad_set_keys(&g, j0);
        loaded = 1;
      }
      grad_set_rows(&g, i0);
      grad_make_pairs(&g, tile_class);
      grad_add_rows(&g, g.sum + n * TILE_Q * g.ld);
      if (tsr__cpu_poll(run)) {
        return;
      }
    }
  }
  for (int n = 0; n < DQ_BLOCKS && first + n * TILE_Q < g.f.seq.q_len; n++) {
    store_rows(&g, first + n * TILE_Q, g.sum + n * TILE_Q * g.ld);
  }
}

/* ---- Gradient of the bias -------------------------------------------------------------------- */

/* A piece of the gradient: where it lies and which axes are summed. */
typedef struct bias_item {
  int64_t b, h, i0, j0; /* of the piece; a summed axis: 0 */
  int sum_b, sum_h, sum_i, sum_j;
} bias_item;

static int64_t bias_columns(const tsr__problem *p) {
  return p->desc.bias.shape[3] == 1 ? 1 : ceil_div(p->desc.bias.shape[3], grad_tile_k(p));
}

static int64_t bias_rows(const tsr__problem *p) {
  return p->desc.bias.shape[2] == 1 ? 1 : ceil_div(p->desc.bias.shape[2], TILE_Q);
}

static bias_item bias_item_at(const tsr__problem *p, int64_t item) {
  const int64_t *shape = p->desc.bias.shape, columns = bias_columns(p), rows = bias_rows(p);
  bias_item x;
  x.j0 = item % columns * grad_tile_k(p);
  x.i0 = item / columns % rows * TILE_Q;
  x.h = item / (columns * rows) % shape[1];
  x.b = item / (columns * rows * shape[1]);
  x.sum_b = shape[0] == 1;
  x.sum_h = shape[1] == 1;
  x.sum_i = shape[2] == 1;
  x.sum_j = shape[3] == 1;
  return x;
}

/* Adds the tile at hand to sum[tile_k, or 1][TILE_Q]: in double, as a bias of few elements may sum millions of pairs.
 */
static void bias_add_tile(const grad *g, int sum_j, double *sum) {
  for (int k = g->k_lo; k < g->k_hi && k < g->keys; k++) {
    double *out = sum + (sum_j ? 0 : k * TILE_Q);
    for (int i = 0; i < g->f.rows; i++) {
      out[i] += (double)g->ds[k * TILE_Q + i];
    }
  }
}

/* All that one head of one sequence adds. Nonzero: cancelled. */
static int bias_add_head(grad *g, const bias_item *x, double *sum) {
  const int64_t j_end = x->sum_j ? g->f.seq.kv_len : tsr_min_i64(x->j0 + g->tile_k, g->f.seq.kv_len);
  const int64_t i_end = x->sum_i ? g->f.seq.q_len : tsr_min_i64(x->i0 + TILE_Q, g->f.seq.q_len);
  for (int64_t j0 = x->j0; j0 < j_end; j0 += g->tile_k) {
    int loaded = 0;
    for (int64_t i0 = x->i0; i0 < i_end; i0 += TILE_Q) {
      const int tile_class = class_of(g, i0, j0, 0);
      if (tile_class == TSR_TILE_SKIP) {
        continue;
      }
      if (!loaded) {
        grad_set_keys(g, j0);
        loaded = 1;
      }
      grad_set_rows(g, i0);
      grad_make_pairs(g, tile_class);
      bias_add_tile(g, x->sum_j, sum);
      if (tsr__cpu_poll(g->f.run)) {
        return 1;
      }
    }
  }
  return 0;
}

/* Writes rows that a sequence uses, all columns; `rows` of them. */
static void bias_store(const grad *g, const bias_item *x, int64_t rows, const double *sum) {
  const tsr_t4 *t = &g->f.a->u.bwd.dbias;
  const int64_t columns = x->sum_j ? 1 : tsr_min_i64(g->tile_k, g->f.p->desc.bias.shape[3] - x->j0);
  const int64_t at = x->b * t->stride[0] + x->h * t->stride[1] + x->i0 * t->stride[2] + x->j0 * t->stride[3];
  const int64_t count = x->sum_i ? 1 : tsr_min_i64(TILE_Q, rows - x->i0);
  for (int64_t i = 0; i < count; i++) {
    for (int64_t k = 0; k < columns; k++) {
      double value = sum[k * TILE_Q + i];
      for (int n = 1; x->sum_i && n < TILE_Q; n++) {
        value += sum[k * TILE_Q + n];
      }
      f32_store_as(g->f.p->desc.dbias.dtype, g->f.bound->ptr[TSR_SLOT_dbias], at + i * t->stride[2] + k * t->stride[3],
                   (float)value);
    }
  }
}

static void dbias_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__problem *p = &run->problem->attn;
  const bias_item x = bias_item_at(p, item);
  const int64_t b_end = x.sum_b ? run->bound->args.batch : x.b + 1;
  int64_t rows = 0;
  double *sum;
  grad g;
  if (!x.sum_b && x.b >= run->bound->args.batch) {
    return;
  }
  grad_begin(&g, run, scratch, x.b, counts);
  g.for_bias = 1;
  sum = (double *)(void *)g.sum;
  grad_zero(g.sum, 2 * (int64_t)g.tile_k * TILE_Q);
  for (int64_t b = x.b; b < b_end; b++) {
    g.f.seq = tsr_seq_load(g.f.a, &g.f.bound->ptrs, b);
    rows = tsr_max_i64(rows, g.f.seq.q_len);
    for (int64_t h = x.h; h < (x.sum_h ? p->heads_q : x.h + 1); h++) {
      grad_set_head(&g, (int32_t)h);
      if (bias_add_head(&g, &x, sum)) {
        return;
      }
    }
  }
  bias_store(&g, &x, rows, sum);
}

/* ---- Gradient of the sink -------------------------------------------------------------------- */

static void dsink_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr_attn_args *a = &run->bound->args;
  const float z = ((const float *)run->bound->ptr[TSR_SLOT_sink])[item * a->sink.stride];
  const float *lse = run->bound->ptr[TSR_SLOT_lse];
  double sum = 0.0;
  (void)scratch;
  (void)counts;
  for (int64_t b = 0; b < a->batch && z != -INFINITY; b++) {
    const tsr_seq seq = tsr_seq_load(a, &run->bound->ptrs, b);
    const float *delta = grad_delta_at(run, &seq, (int32_t)item);
    const float *row = lse + seq.q_b * a->lse.stride[0] + item * a->lse.stride[1] + seq.q_row0 * a->lse.stride[2];
    for (int64_t i = 0; i < seq.q_len; i++) {
      const float x = row[i * a->lse.stride[2]];
      if (x != -INFINITY) {
        sum -= (double)expf(z - x) * (double)delta[i];
      }
    }
  }
  ((float *)run->bound->ptr[TSR_SLOT_dsink])[item * a->u.bwd.dsink.stride] = (float)sum;
}

/* ---- The row --------------------------------------------------------------------------------- */

static int refuse(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *op, char *reason,
                  size_t reason_bytes) {
  const tsr__problem *p = &op->attn;
  const tsr_dtype t = p->desc.q.dtype;
  (void)v;
  (void)dev;
  if (p->features & (TSR_A_PAGED_TABLE | TSR_A_PAGED_CSR)) {
    snprintf(reason, reason_bytes, "forward only: K and V are paged");
  } else if (p->features & TSR_A_QUANT) {
    snprintf(reason, reason_bytes, "forward only: K and V are quantised");
  } else if (t != TSR_F32 && t != TSR_F16 && t != TSR_BF16) {
    snprintf(reason, reason_bytes, "forward only: inputs are %s", tsr_dtype_name(t));
  } else {
    return 0;
  }
  return 1;
}

/* One pass where kv heads keep at least three quarters of the threads busy: two kernels cost 7/5 of its products. */
static int is_one_pass(const tsr__problem *p, int32_t threads) {
  return 4 * p->batch * p->heads_kv >= 3 * (int64_t)threads;
}

/* Scratch of an item that keeps `blocks` query blocks of dQ. */
static int64_t local_bytes(const tsr__problem *p, int64_t blocks) {
  grad g;
  grad_shape(&g, p);
  return grad_carve(&g, NULL, blocks * TILE_Q * g.ld);
}

static int64_t local_bytes_bias(const tsr__problem *p) {
  grad g;
  grad_shape(&g, p);
  return grad_carve(&g, NULL, 2 * (int64_t)g.tile_k * TILE_Q);
}

static void add_launch(tsr__plan_build *build, const char *name, const tsr_cpu_phase *phase, int64_t items,
                       int64_t bytes) {
  tsr__launch *launch = &build->launches[build->num_launches++];
  launch->name = name;
  launch->kernel = phase;
  launch->items = items;
  launch->local_bytes = bytes;
}

static void add_main(const tsr__problem *p, int32_t threads, tsr__plan_build *build) {
  static const tsr_cpu_phase one_pass = {backward_item}, keys = {dkdv_item}, rows = {dq_item};
  const int dkdv = wants(p, TSR_SLOT_dk) || wants(p, TSR_SLOT_dv), dq = wants(p, TSR_SLOT_dq);
  if (dkdv && dq && is_one_pass(p, threads)) {
    add_launch(build, "backward", &one_pass, p->batch * p->heads_kv,
               local_bytes(p, p->group * ceil_div(p->seqlen_q, TILE_Q)));
    return;
  }
  if (dkdv) {
    add_launch(build, "dkdv", &keys, p->batch * p->heads_kv * ceil_div(p->seqlen_k, build->tile_k), local_bytes(p, 0));
  }
  if (dq) {
    const int64_t blocks = ceil_div(p->seqlen_q, TILE_Q);
    add_launch(build, "dq", &rows, p->batch * p->heads_q * ceil_div(p->seqlen_q, DQ_BLOCKS * TILE_Q),
               local_bytes(p, blocks < DQ_BLOCKS ? blocks : DQ_BLOCKS));
  }
}

static tsr_status build_backward(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *op,
                                 tsr__plan_build *build, tsr_error *err) {
  static const tsr_cpu_phase delta = {delta_item}, dbias = {dbias_item}, dsink = {dsink_item};
  const tsr__problem *p = &op->attn;
  (void)v;
  (void)err;
  build->tile_q = TILE_Q;
  build->tile_k = grad_tile_k(p);
  build->schedule.tile_q = build->tile_q; /* rows of one head a tile, no splits */
  build->schedule.tile_k = build->tile_k;
  build->schedule.pack = 1;
  build->schedule.heads = p->heads_q;
  build->schedule.num_splits = 1;
  build->own[GRAD_OWN_DELTA] = 0;
  add_launch(build, "delta", &delta, p->batch * p->heads_q * ceil_div(p->seqlen_q, TILE_Q),
             3 * TILE_Q * grad_padded(p->head_dim_v) * (int64_t)sizeof(float));
  add_main(p, dev->num_threads, build);
  if (wants(p, TSR_SLOT_dbias)) {
    const int64_t *shape = p->desc.bias.shape;
    add_launch(build, "dbias", &dbias, shape[0] * shape[1] * bias_rows(p) * bias_columns(p), local_bytes_bias(p));
  }
  if (wants(p, TSR_SLOT_dsink)) {
    add_launch(build, "dsink", &dsink, p->heads_q, 0);
  }
  tsr__cpu_place_scratch(dev, build, tsr_cpu_round(grad_delta_bytes(p)));
  return TSR_OK;
}

const tsr__variant TSR_CPU_NAME(backward) = {
    .name = "generic",
    .op_mask = 1 << TSR_OP_BACKWARD,
    .tile_q = TILE_Q,
    .tile_k = TILE_K,
    .refuse = refuse,
    .build = build_backward,
};
