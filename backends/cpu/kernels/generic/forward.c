/* SPDX-License-Identifier: Apache-2.0 */
/* Forward attention (FlashAttention-2, arXiv 2307.08691, with queries in lanes): the item and the variant's row. The
 * stages of a tile are in the headers named after them. */
#include "backends/cpu/kernels/generic/dropout.h"
#include "backends/cpu/kernels/generic/extras.h"
#include "backends/cpu/kernels/generic/load.h"
#include "backends/cpu/kernels/generic/mask.h"
#include "backends/cpu/kernels/generic/modify.h"
#include "backends/cpu/kernels/generic/pv.h"
#include "backends/cpu/kernels/generic/scores.h"
#include "backends/cpu/kernels/generic/softmax.h"
#include "backends/cpu/kernels/generic/store.h"

/* How a pass over the keys treats what is not finite. */
enum {
  PASS_PLAIN = 0,  /* multiplies a masked pair's probability 0 by whatever the value is */
  PASS_SCRUB = 1,  /* does not */
  PASS_SHRINK = 2, /* does not, and multiplies probabilities by shrink[] */
  PASS_SEEK = 3    /* only looks for scores that are NaN */
};

/* ---- Scratch ---------------------------------------------------------------------------------- */

static int in_tile(const tsr_layout *l, int channels, int group) {
  return needs_tile(l->dtype, l->stride[3], channels, group);
}

/* Bytes of the pieces, in the order of fwd_item: qt, s, ot, tile. */
static void scratch_sizes(const tsr__problem *p, int64_t bytes[4]) {
  const int k_tile = in_tile(&p->desc.k, p->head_dim, p->k_group);
  const int v_tile = in_tile(&p->desc.v, p->head_dim_v, p->v_group) && !(p->desc.flags & TSR_V_IN_K);
  const int64_t row = tsr_max_i64(k_tile ? p->head_dim : 0, v_tile ? p->head_dim_v : 0);
  bytes[0] = tsr_cpu_round((int64_t)p->head_dim * TILE_Q * 4);
  bytes[1] = tsr_cpu_round((int64_t)TILE_K * TILE_Q * 4);
  bytes[2] = tsr_cpu_round((int64_t)p->head_dim_v * TILE_Q * 4);
  bytes[3] = tsr_cpu_round(row * TILE_K * 4);
}

static void take_scratch(fwd_item *f, void *scratch) {
  float **const piece[4] = {&f->qt, &f->s, &f->ot, &f->tile};
  int64_t bytes[4];
  char *at = (char *)scratch;
  scratch_sizes(f->p, bytes);
  for (int i = 0; i < 4; i++) {
    *piece[i] = (float *)(void *)at;
    at += bytes[i];
  }
}

/* ---- An item ----------------------------------------------------------------------------------- */

/* Fills everything but the state of a pass. 0: the item has no rows. */
static int item_begin(fwd_item *f, const tsr_cpu_run *run, int64_t item, void *scratch) {
  const tsr__schedule *sched = &run->build->schedule;
  const tsr_i64 b = tsr__schedule_batch(sched, item);
  f->run = run;
  f->p = &run->problem->attn;
  f->bound = run->bound;
  f->a = &run->bound->args;
  if (b >= f->a->batch) {
    return 0;
  }
  f->seq = tsr_seq_load(f->a, &f->bound->ptrs, b);
  f->work = tsr__schedule_item(sched, &f->seq, item);
  f->rows = f->work.q_rows;
  if (f->rows == 0) {
    return 0;
  }
  f->vectors = (f->rows + VL - 1) / VL;
  f->head_dim = f->p->head_dim;
  f->head_dim_v = f->p->head_dim_v;
  f->kv_head = f->work.head * sched->pack / f->p->group;
  for (int r = 0; r < item_lanes(f); r++) {
    const int row = r < f->rows ? r : f->rows - 1;
    f->i[r] = f->work.q0 + row / sched->pack;
    f->h[r] = (int64_t)f->work.head * sched->pack + row % sched->pack;
    f->shrink[r] = 1.0f;
  }
  f->units = units_of(run, b, f->kv_head);
  take_scratch(f, scratch);
  return 1;
}

static void pass_begin(fwd_item *f) {
  for (int r = 0; r < item_lanes(f); r++) {
    f->m[r] = -INFINITY;
    f->l[r] = 0.0f;
  }
  memset(f->ot, 0, (size_t)f->head_dim_v * TILE_Q * sizeof(float));
}

static void shrink_tile(fwd_item *f, int first, int last) {
  for (int j = first; j < last; j++) {
    for (int v = 0; v < item_lanes(f); v += VL) {
      float *at = f->s + j * TILE_Q + v;
      vf_store(at, vf_load(at) * vf_load(f->shrink + v));
    }
  }
}

static void seek_tile(fwd_item *f, int first, int last) {
  for (int v = 0; v < item_lanes(f); v += VL) {
    vi nan = vi_load(f->nan + v);
    for (int j = first; j < last; j++) {
      const vf s = vf_load(f->s + j * TILE_Q + v);
      nan |= s != s;
    }
    *(vi *)(f->nan + v) = nan;
  }
}

static void tile_step(fwd_item *f, const tsr__kv_iter *it, int pass) {
  const int n = (int)(it->j1 - it->j0);
  int first = 0, last = n;
  f->j0 = it->j0;
  f->masked = it->tile_class != TSR_TILE_FULL;
  if (f->masked) {
    mask_tile(f, n, &first, &last);
    if (first >= last) {
      return;
    }
  } else if ((f->a->flags & TSR_A_BIAS) || pass != PASS_PLAIN) {
    mask_none(f);
  }
  const int begin = first / SK * SK, end = (last + SK - 1) / SK * SK;
  load_keys(f, begin, last, end);
  for (int r = 0; r < item_lanes(f); r++) {
    f->tile_max[r] = -INFINITY;
  }
  scores_tile(f->keys, f->qt, f->head_dim, begin, end, f->vectors, f->s, f->tile_max);
  if (!f->units.raw) {
    modify_tile(f, first, last);
  }
  if (!f->units.raw || f->masked) {
    mask_apply(f, first, last);
  }
  if (pass == PASS_SEEK) {
    seek_tile(f, first, last);
    return;
  }
  softmax_tile(f, first, last);
  if (f->a->flags & TSR_A_DROPOUT) {
    dropout_tile(f, first, last);
  }
  if (pass == PASS_SHRINK) {
    shrink_tile(f, first, last);
  }
  load_values(f, first, last);
  pv_tile(f, first, last, pass != PASS_PLAIN);
}

/* All keys once. counts may be NULL. 0: cancelled. */
static int pass_over_keys(fwd_item *f, int pass, tsr_cpu_counts *counts) {
  const int pack = f->run->build->schedule.pack;
  const tsr_i32 h0 = f->work.head * pack;
  tsr__kv_iter it = tsr__kv_first(f->p, f->bound, &f->seq, h0, h0 + pack, f->work.q0, f->i[f->rows - 1] + 1,
                                  f->work.kv_lo, f->work.kv_hi, TILE_K);
  if (pass != PASS_SEEK) {
    pass_begin(f);
  }
  while (tsr__kv_next(&it)) {
    if (tsr__cpu_poll(f->run)) {
      return 0;
    }
    if (counts != NULL) {
      counts->full += it.tile_class == TSR_TILE_FULL;
      counts->partial += it.tile_class != TSR_TILE_FULL;
    }
    tile_step(f, &it, pass);
  }
  if (counts != NULL) {
    counts->skipped += it.skipped;
  }
  return 1;
}

/* Lanes whose sum is a number while an element of their row is not: all ones in bad[lane]. */
static int find_bad_rows(const fwd_item *f, int32_t *bad) {
  vi any = vi_all(0);
  for (int v = 0; v < item_lanes(f); v += VL) {
    const vf l = vf_load(f->l + v);
    vf sum = vf_all(0.0f);
    for (int c = 0; c < f->head_dim_v; c++) {
      sum += vf_load(f->ot + c * TILE_Q + v) * 0.0f;
    }
    *(vi *)(bad + v) = (sum != sum) & (l == l);
    any |= vi_load(bad + v);
  }
  return vi_any(any);
}

/* The NaN rule: a masked value that is not finite may have reached rows that must not see it (0 * NaN), and a row of
 * huge values may have overflowed before it was divided by its sum. Both show as values that are not finite, are rare,
 * and are redone: first without the products, then with smaller probabilities. Other rows come out bit for bit as
 * before. */
static int repair(fwd_item *f) {
  int32_t bad[TILE_Q];
  if (!find_bad_rows(f, bad)) {
    return 1;
  }
  if (!pass_over_keys(f, PASS_SCRUB, NULL)) {
    return 0;
  }
  if (!find_bad_rows(f, bad)) {
    return 1;
  }
  for (int r = 0; r < item_lanes(f); r++) {
    f->shrink[r] = bad[r] ? 0x1p-32f : 1.0f; /* more keys than that there are not */
  }
  return pass_over_keys(f, PASS_SHRINK, NULL);
}

/* For max_s: a row with a score of +inf has a sum of NaN whether there is a NaN among its scores or not, and then only
 * the scores can tell. 0: cancelled. */
static int seek_nan(fwd_item *f) {
  int needed = 0;
  for (int r = 0; r < item_lanes(f); r++) {
    f->nan[r] = 0;
    needed |= f->m[r] == INFINITY && f->l[r] != f->l[r];
  }
  return !needed || pass_over_keys(f, PASS_SEEK, NULL);
}

static void forward_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const int want_max = tsr__problem_has(&run->problem->attn, TSR_SLOT_max_s);
  fwd_item f;
  for (int n = 0; want_max && n < run->build->schedule.pack; n++) {
    item_max(run, item)[n] = -INFINITY;
  }
  if (!item_begin(&f, run, item, scratch)) {
    return;
  }
  load_queries(&f);
  if (!pass_over_keys(&f, PASS_PLAIN, counts) || !repair(&f)) {
    return; /* cancelled */
  }
  if (want_max) {
    if (!seek_nan(&f)) {
      return; /* cancelled */
    }
    store_max(&f, item);
  }
  if (run->build->schedule.num_splits > 1) {
    store_partial(&f);
  } else {
    store_result(&f);
  }
}

/* ---- The variant ------------------------------------------------------------------------------- */

static int refuse(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *p, char *reason, size_t bytes) {
  (void)v;
  (void)dev;
  (void)p;
  (void)reason;
  (void)bytes;
  return 0; /* the plain variant computes everything that is valid */
}

static void add_launch(tsr__plan_build *build, const char *name, int64_t items, int64_t local_bytes,
                       const tsr_cpu_phase *phase) {
  tsr__launch *l = &build->launches[build->num_launches++];
  l->name = name;
  l->items = items;
  l->local_bytes = local_bytes;
  l->kernel = phase;
}

static tsr_status build(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *problem,
                        tsr__plan_build *build, tsr_error *err) {
  static const tsr_cpu_phase forward = {forward_item}, merge = {merge_item}, max = {max_item}, mask = {dropout_item};
  const tsr__problem *p = &problem->attn;
  const tsr__schedule *s = &build->schedule;
  const int64_t blocks = p->batch * p->heads_q * ((p->seqlen_q + ROW_BLOCK - 1) / ROW_BLOCK);
  int64_t bytes[4], used = 0;
  (void)v;
  (void)err;
  if (s->num_splits > 1) {
    const int64_t rows = s->num_splits * partial_rows(p) * p->heads_q;
    build->partial_o = used;
    used += tsr_cpu_round(rows * p->head_dim_v * 4);
    build->partial_lse = used;
    used += tsr_cpu_round(rows * 2 * 4);
  }
  if (tsr__problem_has(p, TSR_SLOT_max_s)) {
    build->own[0] = used;
    used += tsr_cpu_round(s->items * s->pack * 4);
  }
  scratch_sizes(p, bytes);
  add_launch(build, "forward", s->items, bytes[0] + bytes[1] + bytes[2] + bytes[3], &forward);
  if (s->num_splits > 1) {
    add_launch(build, "merge", blocks, 0, &merge);
  }
  if (tsr__problem_has(p, TSR_SLOT_max_s)) {
    add_launch(build, "max_s", 1, 0, &max);
  }
  if (tsr__problem_has(p, TSR_SLOT_dropout_mask)) {
    add_launch(build, "dropout_mask", blocks, 0, &mask);
  }
  tsr__cpu_place_scratch(dev, build, used);
  return TSR_OK;
}

const tsr__variant TSR_CPU_NAME(forward) = {.name = "generic",
                                            .op_mask = 1 << TSR_OP_FORWARD,
                                            .tile_q = TILE_Q,
                                            .tile_k = TILE_K,
                                            .refuse = refuse,
                                            .build = build};
