/* SPDX-License-Identifier: Apache-2.0 */
/* Merge: joins partial results by their LSE, left to right. An item is one query row with all its heads. */
#include <string.h>

#include "backends/cpu/kernels/generic/convert.h"

static void *address(const tsr_buffer *b) {
  return (char *)b->ptr + b->offset_bytes;
}

static int64_t index_of(const tsr_layout *l, int64_t i0, int64_t i1, int64_t i2) {
  return i0 * l->stride[0] + i1 * l->stride[1] + i2 * l->stride[2];
}

/* What the fold of a row has so far: m the largest LSE, l the sum of exp(LSE - m), o that of exp(LSE - m) O. Not a
 * chain of normalised pairs, whose LSE would be rounded at every step. */
typedef struct fold {
  float m; /* -inf: nothing yet */
  float l;
  int64_t only; /* the one partial that is not empty; -1: none or several */
  float o[TSR_MAX_HEAD_DIM];
} fold;

/* Makes room for a term of this LSE; returns its weight. */
static float fold_weight(fold *f, float lse, int channels) {
  float old;
  if (lse <= f->m) {
    return expf(lse - f->m);
  }
  old = expf(f->m - lse); /* NaN if either is */
  f->m = lse;
  f->l *= old;
  for (int c = 0; c < channels; c++) {
    f->o[c] *= old;
  }
  return old == old ? 1.0f : old;
}

static void fold_partial(const tsr_merge_desc *d, const tsr_merge_args *a, int64_t n, int64_t at, float lse, fold *f) {
  const int channels = (int)d->o.shape[3], first = f->m == -INFINITY;
  float x[TSR_MAX_HEAD_DIM], weight;
  if (lse == -INFINITY) {
    return; /* empty: its O is not read */
  }
  row_to_f32(d->partial_o.dtype, address(&a->partial_o[n]), at, d->partial_o.stride[3], channels, x);
  weight = fold_weight(f, lse, channels);
  f->l += weight;
  for (int c = 0; c < channels; c++) {
    f->o[c] = first ? weight * x[c] : f->o[c] + weight * x[c];
  }
  f->only = first ? n : -1;
}

/* The sink adds to the denominator alone. */
static void fold_sink(const tsr_merge_desc *d, float sink, fold *f) {
  if (sink != -INFINITY) {
    f->l += fold_weight(f, sink, (int)d->o.shape[3]);
    f->only = -1;
  }
}

/* Rows of the output's own dtype that nothing joined: every bit. */
static void copy_row(const tsr_merge_desc *d, const tsr_merge_args *a, int64_t n, int64_t from, int64_t to) {
  const int bytes = element_bytes(d->o.dtype);
  const char *source = address(&a->partial_o[n]);
  char *target = address(&a->o);
  for (int64_t c = 0; c < d->o.shape[3]; c++) {
    memmove(target + (to + c * d->o.stride[3]) * bytes, source + (from + c * d->partial_o.stride[3]) * bytes,
            (size_t)bytes);
  }
}

static void merge_row(const tsr_merge_desc *d, const tsr_merge_args *a, int64_t b, int64_t s, int64_t h) {
  const int64_t from = index_of(&d->partial_o, b, s, h), to = index_of(&d->o, b, s, h);
  const int64_t lse_at = index_of(&d->partial_lse, b, h, s);
  fold f;
  f.m = -INFINITY;
  f.l = 0.0f;
  f.only = -1;
  memset(f.o, 0, sizeof(f.o));
  for (int64_t n = 0; n < d->num_partials; n++) {
    fold_partial(d, a, n, from, ((const float *)address(&a->partial_lse[n]))[lse_at], &f);
  }
  if (d->sink.dtype != TSR_DTYPE_NONE) {
    fold_sink(d, ((const float *)address(&a->sink))[h * d->sink.stride[0]], &f);
  }
  if (f.only >= 0 && d->partial_o.dtype == d->o.dtype) {
    copy_row(d, a, f.only, from, to);
  } else {
    for (int64_t c = 0; c < d->o.shape[3]; c++) {
      const float x = f.m == -INFINITY ? 0.0f : f.o[c] / f.l;
      f32_store_as(d->o.dtype, address(&a->o), to + c * d->o.stride[3], x);
    }
  }
  if (d->lse.dtype != TSR_DTYPE_NONE) {
    ((float *)address(&a->lse))[index_of(&d->lse, b, h, s)] = f.m == -INFINITY ? f.m : f.m + logf(f.l);
  }
}

static void merge_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr_merge_desc *d = &run->problem->merge.desc;
  (void)scratch;
  (void)counts;
  for (int64_t h = 0; h < d->o.shape[2]; h++) {
    merge_row(d, run->merge, item / d->o.shape[1], item % d->o.shape[1], h);
  }
}

static int refuse(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *op, char *reason,
                  size_t reason_bytes) {
  (void)v;
  (void)dev;
  (void)op;
  (void)reason;
  (void)reason_bytes;
  return 0;
}

static tsr_status build_merge(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *op,
                              tsr__plan_build *build, tsr_error *err) {
  static const tsr_cpu_phase phase = {merge_item};
  const tsr_layout *o = &op->merge.desc.o;
  (void)v;
  (void)err;
  build->num_launches = 1;
  build->launches[0].name = "merge";
  build->launches[0].kernel = &phase;
  build->launches[0].items = o->shape[0] * o->shape[1];
  tsr__cpu_place_scratch(dev, build, 0);
  return TSR_OK;
}

const tsr__variant TSR_CPU_NAME(merge) = {
    .name = "generic",
    .op_mask = 1 << TSR_OP_MERGE,
    .refuse = refuse,
    .build = build_merge,
};
