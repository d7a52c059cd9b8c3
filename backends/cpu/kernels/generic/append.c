/* SPDX-License-Identifier: Apache-2.0 */
/* Append to a KV cache: rotary, then quantisation. An item is one new token with all its heads. Every operation rounds
 * to f32 by itself, as the rules of cache.h say, although this file is compiled like its neighbours with contraction
 * on. */
#include <math.h>
#include <string.h>

#include "backends/cpu/kernels/generic/convert.h"

/* A token: row `row` of slot `slot` in k_new, v_new, q and positions; key `position` of sequence b. */
typedef struct token {
  int64_t b, slot, row, position;
  int64_t angle; /* row of cos and sin; -1: not turned */
} token;

static void *address(const tsr_buffer *b) {
  return (char *)b->ptr + b->offset_bytes;
}

static int has(const tsr_layout *l) {
  return l->dtype != TSR_DTYPE_NONE;
}

static int64_t index_of(const tsr_layout *l, int64_t i0, int64_t i1, int64_t i2) {
  return i0 * l->stride[0] + i1 * l->stride[1] + i2 * l->stride[2];
}

static int64_t length_at(const tsr_layout *l, const tsr_buffer *b, int64_t n) {
  const void *data = address(b);
  return l->dtype == TSR_I64 ? ((const int64_t *)data)[n * l->stride[0]] : ((const int32_t *)data)[n * l->stride[0]];
}

/* ---- Which token ------------------------------------------------------------------------------- */

/* The sequence that row `row` of a packed k_new belongs to; -1: none. */
static int64_t packed_sequence(const tsr_layout *cu, const tsr_buffer *data, int64_t batch, int64_t row) {
  int64_t lo = 0, hi = batch; /* the last b with cu[b] <= row */
  if (row >= length_at(cu, data, batch) || row < length_at(cu, data, 0)) {
    return -1;
  }
  while (hi - lo > 1) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (length_at(cu, data, mid) <= row) {
      lo = mid;
    } else {
      hi = mid;
    }
  }
  return lo;
}

/* 0: the item has no token. */
static int find_token(const tsr__append_problem *p, const tsr_append_args *a, int64_t item, token *t) {
  const tsr_append_desc *d = &p->desc;
  int64_t first = 0;
  if (has(&d->cu_seqlens_new)) {
    t->slot = 0;
    t->row = item;
    t->b = packed_sequence(&d->cu_seqlens_new, &a->cu_seqlens_new, a->batch, item);
    if (t->b < 0) {
      return 0;
    }
    first = length_at(&d->cu_seqlens_new, &a->cu_seqlens_new, t->b);
  } else {
    t->b = t->slot = item / p->seqlen_new;
    t->row = item % p->seqlen_new;
    if (t->b >= a->batch) {
      return 0;
    }
  }
  t->position = t->row - first + (has(&d->seqlens_k) ? length_at(&d->seqlens_k, &a->seqlens_k, t->b) : 0);
  t->angle = -1;
  if (has(&d->cos)) {
    const int32_t *positions = address(&a->positions);
    t->angle = has(&d->positions) ? positions[index_of(&d->positions, t->slot, t->row, 0)] : t->position;
    t->angle = t->angle >= 0 && t->angle < d->cos.shape[0] ? t->angle : -1;
  }
  return 1;
}

/* ---- Rotary ------------------------------------------------------------------------------------ */

static float round_as(tsr_dtype t, float x) {
  switch (t) {
  case TSR_F16: return tsr_f16_to_f32(tsr_f32_to_f16(x));
  case TSR_BF16: return tsr_bf16_to_f32(tsr_f32_to_bf16(x));
  default: return x;
  }
}

/* Turns the first rotary_dim channels of x; results are rounded to dtype t. */
static void rotate(const tsr_append_desc *d, const tsr_append_args *a, int64_t angle, tsr_dtype t, float *x) {
  enum { MOST = TSR_MAX_HEAD_DIM / 2 };
  const int half = d->rotary_dim / 2, interleaved = (d->flags & TSR_APPEND_INTERLEAVED) != 0;
  const int step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
  const float *cosine = (const float *)address(&a->cos) + angle * d->cos.stride[0];
  const float *sine = (const float *)address(&a->sin) + angle * d->sin.stride[0];
  float x_cos[MOST], x_sin[MOST], y_cos[MOST], y_sin[MOST];
  for (int n = 0; n < half; n++) {
    const float c = cosine[n * d->cos.stride[1]], s = sine[n * d->sin.stride[1]];
    x_cos[n] = x[n * step] * c;
    x_sin[n] = x[n * step] * s;
    y_cos[n] = x[n * step + other] * c;
    y_sin[n] = x[n * step + other] * s;
  }
  /* The products are in memory, so rounded: no sum below can take them in. */
  __asm__ volatile("" : : "r"(x_cos), "r"(x_sin), "r"(y_cos), "r"(y_sin) : "memory");
  for (int n = 0; n < half; n++) {
    x[n * step] = round_as(t, x_cos[n] - y_sin[n]);
    x[n * step + other] = round_as(t, x_sin[n] + y_cos[n]);
  }
}

/* ---- Rows -------------------------------------------------------------------------------------- */

/* One row of one head on its way. */
typedef struct row {
  const tsr_layout *from, *to;
  const char *source; /* the tensors' first elements */
  char *target;
  int64_t source_at, target_at; /* index of channel 0 */
  int turned;                   /* channels that x has new values for */
  float x[TSR_MAX_HEAD_DIM];
} row;

static void load(row *r) {
  row_to_f32(r->from->dtype, r->source, r->source_at, r->from->stride[3], (int)r->from->shape[3], r->x);
}

/* Copies channels from `first` on as they are, every bit of a NaN too. */
static void copy_channels(const row *r, int first) {
  const int bytes = element_bytes(r->from->dtype);
  for (int64_t c = first; c < r->from->shape[3]; c++) {
    memmove(r->target + (r->target_at + c * r->to->stride[3]) * bytes,
            r->source + (r->source_at + c * r->from->stride[3]) * bytes, (size_t)bytes);
  }
}

static void store_code(tsr_dtype t, char *base, int64_t index, float x) {
  switch (t) {
  case TSR_F8E4M3: ((uint8_t *)base)[index] = (uint8_t)tsr_f32_to_f8e4m3(x); break;
  case TSR_F8E5M2: ((uint8_t *)base)[index] = (uint8_t)tsr_f32_to_f8e5m2(x); break;
  default: ((int8_t *)base)[index] = (int8_t)(x != x ? 0.0f : rintf(fminf(fmaxf(x, -128.0f), 127.0f)));
  }
}

/* 4-bit code of x, zero point 8. */
static uint32_t code_u4(float x) {
  return x != x ? 0 : (uint32_t)(fminf(fmaxf(rintf(x), -8.0f), 7.0f) + 8.0f);
}

/* Stores to the cache without a scale. */
static void store_plain(row *r) {
  if (r->from->dtype != r->to->dtype) { /* to f8 itself */
    for (int64_t c = 0; c < r->to->shape[3]; c++) {
      store_code(r->to->dtype, r->target, r->target_at + c * r->to->stride[3], r->x[c]);
    }
    return;
  }
  for (int c = 0; c < r->turned; c++) {
    f32_store_as(r->to->dtype, r->target, r->target_at + c * r->to->stride[3], r->x[c]);
  }
  copy_channels(r, r->turned);
}

static float largest_code(tsr_dtype t) {
  return t == TSR_I8 ? 127.0f : t == TSR_U4 ? 7.0f : t == TSR_F8E4M3 ? 448.0f : 57344.0f;
}

/* The scale of n channels, as the scale tensor holds it: read, or computed and written. */
static float group_scale(const tsr_layout *l, char *base, int64_t index, int fixed, tsr_dtype code, const float *x,
                         int n) {
  float amax = 0.0f, scale;
  if (fixed) {
    return f32_at(l->dtype, base, index);
  }
  for (int c = 0; c < n; c++) {
    const float m = fabsf(x[c]);
    amax = m > amax ? m : amax;
  }
  scale = round_as(l->dtype, amax / largest_code(code));
  scale = scale == 0.0f ? 1.0f : scale;
  f32_store_as(l->dtype, base, index, scale);
  return scale;
}

static void store_quantised(row *r, const tsr_layout *l, char *scales, int64_t scale_at, int group, int fixed) {
  const tsr_dtype t = r->to->dtype;
  const int channels = (int)r->to->shape[3];
  for (int c0 = 0; c0 < channels; c0 += group, scale_at += l->stride[3]) {
    const float scale = group_scale(l, scales, scale_at, fixed, t, r->x + c0, group);
    for (int c = c0; c < c0 + group; c++) {
      r->x[c] /= scale;
    }
  }
  if (t != TSR_U4) {
    for (int64_t c = 0; c < channels; c++) {
      store_code(t, r->target, r->target_at + c * r->to->stride[3], r->x[c]);
    }
    return;
  }
  for (int c = 0; c + 1 < channels; c += 2) { /* strides are even: a byte belongs to one row */
    ((uint8_t *)r->target)[(r->target_at + c) >> 1] = (uint8_t)(code_u4(r->x[c]) | code_u4(r->x[c + 1]) << 4);
  }
}

/* ---- A token ----------------------------------------------------------------------------------- */

/* One of K and V. */
typedef struct side {
  const tsr_layout *from, *to, *scale;
  const tsr_buffer *source, *target, *scales;
  int group;
} side;

static void append_rows(const tsr__append_problem *p, const tsr_append_args *a, const token *t, const side *s,
                        int64_t angle, int64_t i0, int64_t i1) {
  row r = {.from = s->from, .to = s->to, .source = address(s->source), .target = address(s->target)};
  for (int64_t h = 0; h < p->heads_kv; h++) {
    r.source_at = index_of(s->from, t->slot, t->row, h);
    r.target_at = index_of(s->to, i0, i1, h);
    load(&r);
    r.turned = 0;
    if (angle >= 0) {
      rotate(&p->desc, a, angle, s->from->dtype, r.x);
      r.turned = p->desc.rotary_dim;
    }
    if (s->group != 0) {
      store_quantised(&r, s->scale, address(s->scales), index_of(s->scale, i0, i1, h), s->group,
                      (p->desc.flags & TSR_APPEND_STATIC_SCALES) != 0);
    } else {
      store_plain(&r);
    }
  }
}

/* q_out may be q: a row is read before it is written. */
static void turn_queries(const tsr__append_problem *p, const tsr_append_args *a, const token *t) {
  const tsr_append_desc *d = &p->desc;
  row r = {.from = &d->q, .to = &d->q_out, .source = address(&a->q), .target = address(&a->q_out)};
  for (int64_t h = 0; h < p->heads_q; h++) {
    r.source_at = index_of(&d->q, t->slot, t->row, h);
    r.target_at = index_of(&d->q_out, t->slot, t->row, h);
    load(&r);
    r.turned = 0;
    if (t->angle >= 0) {
      rotate(d, a, t->angle, d->q.dtype, r.x);
      r.turned = d->rotary_dim;
    }
    store_plain(&r);
  }
}

static void append_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts) {
  const tsr__append_problem *p = &run->problem->append;
  const tsr_append_desc *d = &p->desc;
  const tsr_append_args *a = run->append;
  const side k = {&d->k_new, &d->k_cache, &d->k_scale, &a->k_new, &a->k_cache, &a->k_scale, p->k_group};
  const side v = {&d->v_new, &d->v_cache, &d->v_scale, &a->v_new, &a->v_cache, &a->v_scale, p->v_group};
  token t;
  int64_t i0, i1;
  (void)scratch;
  (void)counts;
  if (!find_token(p, a, item, &t)) {
    return;
  }
  if (has(&d->q)) {
    turn_queries(p, a, &t);
  }
  if (t.position >= p->capacity) {
    return;
  }
  i0 = t.b;
  i1 = t.position;
  if (p->page_size != 0) {
    const int32_t *table = address(&a->block_table);
    i0 = table[index_of(&d->block_table, t.b, t.position / p->page_size, 0)];
    i1 = t.position % p->page_size;
  }
  append_rows(p, a, &t, &k, t.angle, i0, i1);
  append_rows(p, a, &t, &v, -1, i0, i1);
}

/* ---- The row ----------------------------------------------------------------------------------- */

static int refuse(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *op, char *reason,
                  size_t reason_bytes) {
  (void)v;
  (void)dev;
  (void)op;
  (void)reason;
  (void)reason_bytes;
  return 0;
}

static tsr_status build_append(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *op,
                               tsr__plan_build *build, tsr_error *err) {
  static const tsr_cpu_phase phase = {append_item};
  const tsr__append_problem *p = &op->append;
  (void)v;
  (void)err;
  build->num_launches = 1;
  build->launches[0].name = "append";
  build->launches[0].kernel = &phase;
  build->launches[0].items = has(&p->desc.cu_seqlens_new) ? p->total_new : p->batch * p->seqlen_new;
  tsr__cpu_place_scratch(dev, build, 0);
  return TSR_OK;
}

const tsr__variant TSR_CPU_NAME(append) = {
    .name = "generic",
    .op_mask = 1 << TSR_OP_APPEND,
    .refuse = refuse,
    .build = build_append,
};
