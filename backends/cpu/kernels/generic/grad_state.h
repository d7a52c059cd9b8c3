/* SPDX-License-Identifier: Apache-2.0 */
/* What one worker of a backward run has at hand: the run, its scratch, and where it stands. */
#ifndef TSR_CPU_GENERIC_GRAD_STATE_H
#define TSR_CPU_GENERIC_GRAD_STATE_H

#include "backends/cpu/kernels/generic/grad_micro.h"
#include "backends/cpu/kernels/generic/item.h"

enum {
  /* Keys whose scores are made before the next: their P and dS stay in the first-level cache. */
  GRAD_BLOCK = 32,
  /* Channels are padded to whole vectors and to whole register blocks. */
  GRAD_PAD = VL > GRAD_KEYS ? VL : GRAD_KEYS,
};

/* Offsets into the plan's workspace, in tsr__plan_build.own. */
enum { GRAD_OWN_DELTA = 0 /* bytes: f32 [slots][Hq][rows], see grad_delta_at */ };

typedef struct grad {
  /* The tile as the forward pass knows it: rows [f.i[0], f.i[0] + f.rows) of one head, keys [f.j0, f.j0 + keys). f.s is
   * the tile of S, then P. Of its scratch and state only f.s is used. */
  fwd_item f;
  tsr_cpu_counts *counts;
  int64_t ld, ldv; /* channels, padded */
  int tile_k;
  int modifies; /* s needs more than a scale: soft cap, ALiBi, bias or expression */
  int for_bias; /* dS is wanted as the gradient of the bias: without the factor of the soft cap */

  /* Scratch; forms are grad_micro.h's. */
  float *k, *v;      /* sliced */
  float *dk, *dval;  /* [tile_k][ld], [tile_k][ldv] */
  float *q, *dout;   /* natural */
  float *qt, *doutt; /* transposed */
  float *ds;         /* pairs, as f.s */
  float *gain;       /* pairs: d(score) / d(scaled dot product), or / d(bias); only where modifies */
  float *sum;        /* what the phase sums besides: dQ, transposed, a block a query block; or dBias */

  int keys;
  int kv_finite, q_finite; /* no inf or NaN among the elements of K and V, of Q and dO */
  float neg_lse[TILE_Q];   /* -inf for a row without keys, and past the rows */
  float delta[TILE_Q];
  int k_lo, k_hi; /* multiples of GRAD_KEYS: the keys that hold all allowed pairs; see f.masked, f.bits */
} grad;

/* Keys of a tile: K, V and their gradients share the second-level cache. No sum depends on it. */
static inline int grad_tile_k(const tsr__problem *p) {
  const int channels = p->head_dim + p->head_dim_v;
  const int64_t most = channels <= 128 ? 384 : channels <= 512 ? 192 : 96;
  const int64_t used = (p->seqlen_k + GRAD_KEYS - 1) / GRAD_KEYS * GRAD_KEYS;
  return (int)tsr_max_i64(GRAD_KEYS, tsr_min_i64(most, used));
}

static inline int64_t grad_padded(int64_t n) {
  return (n + GRAD_PAD - 1) / GRAD_PAD * GRAD_PAD;
}

static inline int64_t grad_slices(int64_t channels) {
  return (channels + GRAD_SLICE - 1) / GRAD_SLICE;
}

/* Rows of a query slot in the delta workspace. */
static inline int64_t grad_delta_bytes(const tsr__problem *p) {
  const int64_t rows = (p->features & TSR_A_Q_PACKED) ? p->total_q : p->batch * p->seqlen_q;
  return rows * p->heads_q * (int64_t)sizeof(float);
}

/* delta of row 0 of head h; the next rows follow. */
static inline float *grad_delta_at(const tsr_cpu_run *run, const tsr_seq *seq, int32_t h) {
  const tsr__problem *p = &run->problem->attn;
  const int64_t rows = (p->features & TSR_A_Q_PACKED) ? p->total_q : p->seqlen_q;
  float *base = (float *)(void *)((char *)run->workspace + run->build->own[GRAD_OWN_DELTA]);
  return base + (seq->q_b * p->heads_q + h) * rows + seq->q_row0;
}

typedef struct grad_carver {
  char *at; /* NULL: only the size is wanted */
  int64_t bytes;
} grad_carver;

static inline void *grad_take(grad_carver *c, int64_t count) {
  void *p = c->at == NULL ? NULL : c->at + c->bytes;
  c->bytes += tsr_cpu_round(count * 4);
  return p;
}

/* Divides scratch (NULL: only counts) and returns its bytes. sum_floats: size of g->sum. */
static int64_t grad_carve(grad *g, void *scratch, int64_t sum_floats) {
  grad_carver c = {(char *)scratch, 0};
  const int64_t pairs = (int64_t)g->tile_k * TILE_Q;
  g->k = grad_take(&c, grad_slices(g->f.head_dim) * g->tile_k * GRAD_SLICE);
  g->v = grad_take(&c, grad_slices(g->f.head_dim_v) * g->tile_k * GRAD_SLICE);
  g->dk = grad_take(&c, g->tile_k * g->ld);
  g->dval = grad_take(&c, g->tile_k * g->ldv);
  g->q = grad_take(&c, TILE_Q * g->ld);
  g->qt = grad_take(&c, TILE_Q * g->ld);
  g->dout = grad_take(&c, TILE_Q * g->ldv);
  g->doutt = grad_take(&c, TILE_Q * g->ldv);
  g->f.s = grad_take(&c, pairs);
  g->ds = grad_take(&c, pairs);
  g->gain = grad_take(&c, g->modifies ? pairs : 0);
  g->sum = grad_take(&c, sum_floats);
  return c.bytes;
}

static void grad_shape(grad *g, const tsr__problem *p) {
  g->f.p = p;
  g->f.head_dim = p->head_dim;
  g->f.head_dim_v = p->head_dim_v;
  g->ld = grad_padded(p->head_dim);
  g->ldv = grad_padded(p->head_dim_v);
  g->tile_k = grad_tile_k(p);
  g->modifies = (p->features & (TSR_A_SOFTCAP | TSR_A_ALIBI | TSR_A_BIAS | TSR_A_SCORE_EXPR)) != 0;
}

static void grad_begin(grad *g, const tsr_cpu_run *run, void *scratch, int64_t b, tsr_cpu_counts *counts) {
  grad_shape(g, &run->problem->attn);
  g->f.run = run;
  g->f.bound = run->bound;
  g->f.a = &run->bound->args;
  g->f.units.raw = 0;
  g->f.units.scale = g->f.a->scale;
  g->f.units.log2 = TSR_LOG2E;
  g->f.seq = tsr_seq_load(g->f.a, &g->f.bound->ptrs, b);
  g->counts = counts;
  g->for_bias = 0;
  grad_carve(g, scratch, 0);
}

static inline void grad_set_head(grad *g, int32_t h) {
  g->f.h[0] = h;
  g->f.kv_head = h / g->f.a->group;
}

static inline int32_t grad_head(const grad *g) {
  return (int32_t)g->f.h[0];
}

#endif
