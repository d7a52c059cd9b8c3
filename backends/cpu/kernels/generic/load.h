/* SPDX-License-Identifier: Apache-2.0 */
/* What a tile reads: Q transposed once an item; rows of K and V in place where they are f32 without gaps, else
 * converted and dequantised one tile at a time. */
#ifndef TSR_CPU_LOAD_H
#define TSR_CPU_LOAD_H

#include "backends/cpu/kernels/generic/convert.h"
#include "backends/cpu/kernels/generic/item.h"

/* Rows of q, one a lane, to [channel][lane]; `index` has each lane's first element. */
static void load_transposed(tsr_dtype t, const void *base, const tsr_i64 *index, tsr_i64 step, int channels, int lanes,
                            float *dst) {
  for (int v = 0; v < lanes; v += VL) {
    int c = 0;
    for (; step == 1 && c + VL <= channels; c += VL) {
      vf block[VL];
      for (int r = 0; r < VL; r++) {
        block[r] = vf_load_as(t, (const char *)base + (index[v + r] + c) * element_bytes(t));
      }
      vf_transpose(block);
      for (int r = 0; r < VL; r++) {
        vf_store(dst + (c + r) * TILE_Q + v, block[r]);
      }
    }
    for (; c < channels; c++) {
      for (int r = 0; r < VL; r++) {
        dst[c * TILE_Q + v + r] = f32_at(t, base, index[v + r] + c * step);
      }
    }
  }
}

static void load_queries(fwd_item *f) {
  const tsr_i64 *st = f->a->q.stride;
  tsr_i64 index[TILE_Q];
  for (int r = 0; r < item_lanes(f); r++) {
    index[r] = f->seq.q_b * st[0] + (f->seq.q_row0 + f->i[r]) * st[1] + f->h[r] * st[2];
  }
  load_transposed(f->p->desc.q.dtype, f->bound->ptr[TSR_SLOT_q], index, st[3], f->head_dim, item_lanes(f), f->qt);
}

/* ---- K and V ---------------------------------------------------------------------------------- */

/* One of K and V as its rows are to be read. */
typedef struct kv_source {
  tsr_dtype dtype, scale_dtype, zero_dtype; /* NONE: no such tensor */
  const void *base, *scale, *zero;
  const tsr_i64 *stride, *scale_stride, *zero_stride;
  int channels, group; /* channels that share a scale; 0: not quantised */
} kv_source;

static inline kv_source key_source(const fwd_item *f) {
  const tsr_attention_desc *d = &f->p->desc;
  const kv_source src = {d->k.dtype,
                         d->k_scale.dtype,
                         d->k_zero.dtype,
                         f->bound->ptr[TSR_SLOT_k],
                         f->bound->ptr[TSR_SLOT_k_scale],
                         f->bound->ptr[TSR_SLOT_k_zero],
                         f->a->k.stride,
                         f->a->u.fwd.k_scale.stride,
                         f->a->u.fwd.k_zero.stride,
                         f->head_dim,
                         f->p->k_group};
  return src;
}

static inline kv_source value_source(const fwd_item *f) {
  const tsr_attention_desc *d = &f->p->desc;
  const kv_source src = {d->v.dtype,
                         d->v_scale.dtype,
                         d->v_zero.dtype,
                         f->bound->ptr[TSR_SLOT_v],
                         f->bound->ptr[TSR_SLOT_v_scale],
                         f->bound->ptr[TSR_SLOT_v_zero],
                         f->a->v.stride,
                         f->a->u.fwd.v_scale.stride,
                         f->a->u.fwd.v_zero.stride,
                         f->head_dim_v,
                         f->p->v_group};
  return src;
}

/* Whether rows have to go through the tile buffer. step: distance of their elements. */
static inline int needs_tile(tsr_dtype t, tsr_i64 step, int channels, int group) {
  return t != TSR_F32 || group != 0 || (step != 1 && channels > 1);
}

/* x = scale (code - zero), in place. */
static void dequantise(const kv_source *src, tsr_kv_pos pos, tsr_i32 head, float *row) {
  const tsr_i64 *ss = src->scale_stride, *zs = src->zero_stride;
  const tsr_i64 scale_at = pos.b * ss[0] + pos.s * ss[1] + head * ss[2];
  const tsr_i64 zero_at = pos.b * zs[0] + pos.s * zs[1] + head * zs[2];
  for (int c0 = 0, g = 0; c0 < src->channels; c0 += src->group, g++) {
    const float scale = src->scale != NULL ? f32_at(src->scale_dtype, src->scale, scale_at + g * ss[3]) : 1.0f;
    const float zero = src->zero != NULL      ? f32_at(src->zero_dtype, src->zero, zero_at + g * zs[3])
                       : src->dtype == TSR_U4 ? 8.0f
                                              : 0.0f;
    for (int c = c0; c < c0 + src->group; c++) {
      row[c] = scale * (row[c] - zero);
    }
  }
}

/* Pointers to f32 rows of keys j0 + [first, last); slots up to `end` repeat the last of them. */
static void load_rows(fwd_item *f, const kv_source *src, int first, int last, int end, const float **rows) {
  const int in_place = !needs_tile(src->dtype, src->stride[3], src->channels, src->group);
  for (int j = first; j < last;) {
    tsr_kv_pos pos = tsr_kv_at(f->a, &f->bound->ptrs, &f->seq, f->j0 + j);
    const int run_end = pos.run < last - j ? j + (int)pos.run : last;
    tsr_i64 at = pos.b * src->stride[0] + pos.s * src->stride[1] + f->kv_head * src->stride[2];
    for (; j < run_end; j++, pos.s++, at += src->stride[1]) {
      if (in_place) {
        rows[j] = (const float *)src->base + at;
      } else {
        float *dst = f->tile + (tsr_i64)j * src->channels;
        row_to_f32(src->dtype, src->base, at, src->stride[3], src->channels, dst);
        if (src->group != 0) {
          dequantise(src, pos, f->kv_head, dst);
        }
        rows[j] = dst;
      }
    }
  }
  for (int j = last; j < end; j++) {
    rows[j] = rows[last - 1];
  }
}

static void load_keys(fwd_item *f, int first, int last, int end) {
  const kv_source src = key_source(f);
  load_rows(f, &src, first, last, end, f->keys);
}

/* After the scores: V may take the place of K in the tile buffer. */
static void load_values(fwd_item *f, int first, int last) {
  if (f->p->desc.flags & TSR_V_IN_K) {
    memcpy(f->values + first, f->keys + first, (size_t)(last - first) * sizeof(f->keys[0]));
  } else {
    const kv_source src = value_source(f);
    load_rows(f, &src, first, last, last, f->values);
  }
}

#endif
