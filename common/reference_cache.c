/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's merge, in float64, and append, which is exact and so gives bytes. */
#include <math.h>
#include <string.h>

#include "common/dtype.h"
#include "common/reference.h"

/* ---- Merge ----------------------------------------------------------------------------------- */

/* Row [b][s][h] over all partials: returns lse, fills o unless it is NULL. */
static double merge_row(const tsr_merge_desc *desc, const tsr_merge_args *args, int64_t b, int64_t s, int64_t h,
                        double sink, double *o) {
  const int64_t dv = desc->o.shape[3];
  const double none = -(double)INFINITY;
  double max = sink, sum, lse;
  if (o != NULL) {
    memset(o, 0, (size_t)dv * sizeof(double));
  }
  for (int64_t n = 0; n < desc->num_partials; n++) {
    const tsr__ref_view part = tsr__ref_view_of(&desc->partial_lse, args->partial_lse[n]);
    const double l = tsr__ref_at(&part, b, h, s, 0);
    max = isnan(max) || l <= max ? max : l;
  }
  if (max == none) {
    return none;
  }
  sum = sink == none ? 0.0 : exp(sink - max);
  for (int64_t n = 0; n < desc->num_partials; n++) {
    const tsr__ref_view part = tsr__ref_view_of(&desc->partial_lse, args->partial_lse[n]);
    const double l = tsr__ref_at(&part, b, h, s, 0);
    sum += l == none ? 0.0 : exp(l - max);
  }
  lse = max + log(sum);
  for (int64_t n = 0; o != NULL && n < desc->num_partials; n++) {
    const tsr__ref_view part = tsr__ref_view_of(&desc->partial_o, args->partial_o[n]);
    const tsr__ref_view part_lse = tsr__ref_view_of(&desc->partial_lse, args->partial_lse[n]);
    const double l = tsr__ref_at(&part_lse, b, h, s, 0);
    for (int64_t c = 0; l != none && c < dv; c++) { /* the o of an empty partial is never read */
      o[c] += exp(l - max) / sum * tsr__ref_at(&part, b, s, h, c);
    }
  }
  return lse;
}

tsr_status tsr__reference_merge(const tsr_merge_desc *desc, const tsr_merge_args *args, double *o, double *lse,
                                tsr_error *err) {
  const tsr__ref_view sinks = tsr__ref_view_of(&desc->sink, args->sink);
  const int64_t seqlen = desc->o.shape[1], heads = desc->o.shape[2], dv = desc->o.shape[3];
  for (int64_t b = 0; b < desc->o.shape[0]; b++) {
    for (int64_t s = 0; s < seqlen; s++) {
      for (int64_t h = 0; h < heads; h++) {
        const double sink = sinks.data != NULL ? tsr__ref_at(&sinks, h, 0, 0, 0) : -(double)INFINITY;
        double *row = o != NULL ? o + ((b * seqlen + s) * heads + h) * dv : NULL;
        const double l = merge_row(desc, args, b, s, h, sink, row);
        if (lse != NULL) {
          lse[(b * heads + h) * seqlen + s] = l;
        }
      }
    }
  }
  return tsr__ok(err);
}

/* ---- Append ---------------------------------------------------------------------------------- */

typedef struct append {
  const tsr_append_desc *desc;
  tsr__ref_view k_new, v_new, cu, k_cache, v_cache, seqlens, table, k_scale, v_scale;
  tsr__ref_view cos, sin, positions, q, q_out;
  int64_t rotary_dim; /* 0: no rotary */
} append;

/* A token of k_new, v_new or q, and how it is turned. */
typedef struct source {
  const append *a;
  const tsr__ref_view *x;
  int64_t slot, row;
  int64_t angle; /* row of cos and sin; -1: not turned */
} source;

static double round_to(tsr_dtype dtype, double x) {
  return tsr__dtype_decode_bits(dtype, tsr__dtype_encode_bits(dtype, x));
}

/* Channel c after rotary, rounded once to the source's dtype. */
static double channel(const source *s, int64_t h, int64_t c) {
  const int64_t half = s->a->rotary_dim / 2;
  const int interleaved = (s->a->desc->flags & TSR_APPEND_INTERLEAVED) != 0;
  int64_t n, cx, cy;
  double x, y, cos, sin;
  if (s->angle < 0 || c >= 2 * half) {
    return tsr__ref_at(s->x, s->slot, s->row, h, c);
  }
  n = interleaved ? c / 2 : c % half;
  cx = interleaved ? 2 * n : n;
  cy = interleaved ? 2 * n + 1 : n + half;
  x = tsr__ref_at(s->x, s->slot, s->row, h, cx);
  y = tsr__ref_at(s->x, s->slot, s->row, h, cy);
  cos = tsr__ref_at(&s->a->cos, s->angle, n, 0, 0);
  sin = tsr__ref_at(&s->a->sin, s->angle, n, 0, 0);
  if (c == cx) {
    x = tsr__ref_to_f32(x * cos) - tsr__ref_to_f32(y * sin);
  } else {
    x = tsr__ref_to_f32(x * sin) + tsr__ref_to_f32(y * cos);
  }
  return round_to(s->x->dtype, tsr__ref_to_f32(x));
}

/* Every bit of a channel that rotary leaves alone is kept, those of a NaN too. */
static void copy_channel(const source *s, int64_t h, int64_t c, const tsr__ref_view *out, int64_t out_index) {
  const int64_t bytes = tsr_dtype_bits(out->dtype) / 8;
  if (out->dtype == s->x->dtype && (s->angle < 0 || c >= s->a->rotary_dim)) {
    memmove(out->data + out_index * bytes, s->x->data + tsr__ref_index(s->x, s->slot, s->row, h, c) * bytes,
            (size_t)bytes);
  } else {
    tsr_encode(out->dtype, out->data, out_index, channel(s, h, c));
  }
}

static double largest_code(tsr_dtype dtype) {
  return dtype == TSR_I8 ? 127.0 : dtype == TSR_U4 ? 7.0 : dtype == TSR_F8E4M3 ? 448.0 : 57344.0;
}

/* The scale of channels [first, first + n), computed and stored, or read. */
static double group_scale(const source *s, int64_t h, int64_t first, int64_t n, tsr_dtype code,
                          const tsr__ref_view *scale, int64_t index) {
  double amax = 0.0, x;
  if ((s->a->desc->flags & TSR_APPEND_STATIC_SCALES) != 0) {
    return tsr_decode(scale->dtype, scale->data, index);
  }
  for (int64_t c = first; c < first + n; c++) {
    x = fabs(channel(s, h, c));
    amax = x > amax ? x : amax;
  }
  x = round_to(scale->dtype, tsr__ref_to_f32(amax / largest_code(code)));
  x = x == 0.0 ? 1.0 : x;
  tsr_encode(scale->dtype, scale->data, index, x);
  return x;
}

/* Token s to row [i0, i1] of a cache. */
static void store_token(const source *s, const tsr__ref_view *cache, const tsr__ref_view *scale, int64_t i0,
                        int64_t i1) {
  const int64_t groups = scale->data != NULL ? scale->shape[3] : 1, n = cache->shape[3] / groups;
  for (int64_t h = 0; h < cache->shape[2]; h++) {
    for (int64_t g = 0; g < groups; g++) {
      double factor = 1.0;
      if (scale->data != NULL) {
        factor = group_scale(s, h, g * n, n, cache->dtype, scale, tsr__ref_index(scale, i0, i1, h, g));
      }
      for (int64_t c = g * n; c < (g + 1) * n; c++) {
        const int64_t index = tsr__ref_index(cache, i0, i1, h, c);
        if (scale->data == NULL) {
          copy_channel(s, h, c, cache, index);
        } else {
          const double x = tsr__ref_to_f32(channel(s, h, c) / factor);
          tsr_encode(cache->dtype, cache->data, index, cache->dtype == TSR_U4 ? nearbyint(x) + 8.0 : x);
        }
      }
    }
  }
}

/* q may be q_out: both channels of a pair are read before either is written. */
static void rotate_q(const append *a, source s) {
  const int64_t half = s.angle < 0 ? 0 : a->rotary_dim / 2;
  const int interleaved = (a->desc->flags & TSR_APPEND_INTERLEAVED) != 0;
  s.x = &a->q;
  for (int64_t h = 0; h < a->q.shape[2]; h++) {
    for (int64_t n = 0; n < half; n++) {
      const int64_t cx = interleaved ? 2 * n : n, cy = interleaved ? 2 * n + 1 : n + half;
      const double x = channel(&s, h, cx), y = channel(&s, h, cy);
      tsr_encode(a->q_out.dtype, a->q_out.data, tsr__ref_index(&a->q_out, s.slot, s.row, h, cx), x);
      tsr_encode(a->q_out.dtype, a->q_out.data, tsr__ref_index(&a->q_out, s.slot, s.row, h, cy), y);
    }
    for (int64_t c = 2 * half; c < a->q.shape[3]; c++) {
      copy_channel(&s, h, c, &a->q_out, tsr__ref_index(&a->q_out, s.slot, s.row, h, c));
    }
  }
}

static void append_token(const append *a, int64_t b, int64_t slot, int64_t row, int64_t position) {
  source s = {a, &a->k_new, slot, row, -1};
  const int64_t page_size = a->k_cache.shape[1];
  int64_t i0 = b, i1 = position;
  const int64_t capacity = a->table.data != NULL ? a->table.shape[1] * page_size : page_size;
  if (a->rotary_dim > 0) {
    s.angle = a->positions.data != NULL ? tsr__ref_int(&a->positions, slot, row, 0, 0) : position;
    if (s.angle < 0 || s.angle >= a->cos.shape[0]) {
      s.angle = -1;
    }
  }
  if (a->q.data != NULL && a->q_out.data != NULL) {
    rotate_q(a, s);
  }
  if (position >= capacity) {
    return;
  }
  if (a->table.data != NULL) {
    i0 = tsr__ref_int(&a->table, b, position / page_size, 0, 0);
    i1 = position % page_size;
  }
  store_token(&s, &a->k_cache, &a->k_scale, i0, i1);
  s.x = &a->v_new;
  s.angle = -1;
  store_token(&s, &a->v_cache, &a->v_scale, i0, i1);
}

tsr_status tsr__reference_append(const tsr_append_desc *desc, const tsr_append_args *args, tsr_error *err) {
  const int64_t all =
      desc->cu_seqlens_new.dtype != TSR_DTYPE_NONE ? desc->cu_seqlens_new.shape[0] - 1 : desc->k_new.shape[0];
  const int64_t batch = args->batch != 0 ? args->batch : desc->batch != 0 ? desc->batch : all;
  append a = {
      desc,
      tsr__ref_view_of(&desc->k_new, args->k_new),
      tsr__ref_view_of(&desc->v_new, args->v_new),
      tsr__ref_view_of(&desc->cu_seqlens_new, args->cu_seqlens_new),
      tsr__ref_view_of(&desc->k_cache, args->k_cache),
      tsr__ref_view_of(&desc->v_cache, args->v_cache),
      tsr__ref_view_of(&desc->seqlens_k, args->seqlens_k),
      tsr__ref_view_of(&desc->block_table, args->block_table),
      tsr__ref_view_of(&desc->k_scale, args->k_scale),
      tsr__ref_view_of(&desc->v_scale, args->v_scale),
      tsr__ref_view_of(&desc->cos, args->cos),
      tsr__ref_view_of(&desc->sin, args->sin),
      tsr__ref_view_of(&desc->positions, args->positions),
      tsr__ref_view_of(&desc->q, args->q),
      tsr__ref_view_of(&desc->q_out, args->q_out),
      0,
  };
  if (a.cos.data != NULL) {
    a.rotary_dim = desc->rotary_dim != 0 ? desc->rotary_dim : desc->k_new.shape[3];
  }
  for (int64_t b = 0; b < batch; b++) {
    const int64_t first = a.cu.data != NULL ? tsr__ref_int(&a.cu, b, 0, 0, 0) : 0;
    const int64_t count = a.cu.data != NULL ? tsr__ref_int(&a.cu, b + 1, 0, 0, 0) - first : desc->k_new.shape[1];
    const int64_t before = a.seqlens.data != NULL ? tsr__ref_int(&a.seqlens, b, 0, 0, 0) : 0;
    for (int64_t t = 0; t < count; t++) {
      append_token(&a, b, a.cu.data != NULL ? 0 : b, first + t, before + t);
    }
  }
  return tsr__ok(err);
}
