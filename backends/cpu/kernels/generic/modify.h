/* SPDX-License-Identifier: Apache-2.0 */
/* Steps 1 to 3 between the dot product and the mask: scale, soft cap, ALiBi, bias, the caller's expression. */
#ifndef TSR_CPU_MODIFY_H
#define TSR_CPU_MODIFY_H

#include "backends/cpu/kernels/generic/convert.h"
#include "backends/cpu/kernels/generic/mask.h"

static void modify_scale(fwd_item *f, int first, int last) {
  const int cap = (f->a->flags & TSR_A_SOFTCAP) != 0;
  const float softcap = f->a->softcap;
  for (int j = first; j < last; j++) {
    for (int v = 0; v < item_lanes(f); v += VL) {
      float *at = f->s + j * TILE_Q + v;
      vf s = vf_load(at) * f->units.scale;
      if (cap) {
        s = vf_tanh(s / softcap) * softcap;
      }
      vf_store(at, s);
    }
  }
}

/* |i + off - j| is exact in integers; a vector of 32 bits holds it unless the positions are astronomically far apart.
 */
static void modify_alibi(fwd_item *f, int first, int last) {
  const float *slopes = (const float *)f->bound->ptr[TSR_SLOT_alibi_slopes];
  int32_t ahead[TILE_Q]; /* of the tile's first key */
  float slope[TILE_Q];
  int far = 0;
  for (int r = 0; r < item_lanes(f); r++) {
    const tsr_i64 d = f->i[r] + f->seq.off - f->j0;
    far |= d > (1 << 30) || d < -(1 << 30);
    ahead[r] = (int32_t)d;
    slope[r] = slopes[f->seq.b * f->a->alibi.stride[0] + f->h[r] * f->a->alibi.stride[1]];
  }
  for (int j = first; j < last; j++) {
    float *at = f->s + j * TILE_Q;
    for (int v = 0; v < item_lanes(f) && !far; v += VL) {
      const vf d = vf_abs(__builtin_convertvector(vi_load(ahead + v) - j, vf));
      vf_store(at + v, vf_load(at + v) - vf_load(slope + v) * d);
    }
    for (int r = 0; r < item_lanes(f) && far; r++) {
      const tsr_i64 d = f->i[r] + f->seq.off - f->j0 - j;
      at[r] -= slope[r] * (float)(d < 0 ? -d : d);
    }
  }
}

/* Adds one vector of biases; exactly -inf masks the pair, whatever its score. */
static inline void add_bias(fwd_item *f, int j, int v, vf bias) {
  float *at = f->s + j * TILE_Q + v;
  const vi minus_inf = bias == vf_all(-INFINITY);
  vf_store(at, vf_load(at) + bias);
  keep_where(&f->bits[j / 32][v], j & 31, ~minus_inf);
}

/* VL keys from j on, lanes v .. v + VL - 1, of bias rows that are contiguous along the keys. */
static void bias_block(fwd_item *f, const tsr_i64 *row, int j, int v) {
  const tsr_dtype t = f->p->desc.bias.dtype;
  const char *base = (const char *)f->bound->ptr[TSR_SLOT_bias];
  vf block[VL];
  for (int r = 0; r < VL; r++) {
    block[r] = vf_load_as(t, base + (row[v + r] + f->j0 + j) * element_bytes(t));
  }
  vf_transpose(block);
  for (int r = 0; r < VL; r++) {
    add_bias(f, j + r, v, block[r]);
  }
}

static void modify_bias(fwd_item *f, int first, int last) {
  const tsr_dtype t = f->p->desc.bias.dtype;
  const void *base = f->bound->ptr[TSR_SLOT_bias];
  const tsr_i64 *st = f->a->bias.stride;
  const int one_row = st[2] == 0 && (st[1] == 0 || item_one_head(f));
  tsr_i64 row[TILE_Q];
  int j = first;
  for (int r = 0; r < item_lanes(f); r++) {
    row[r] = f->seq.b * st[0] + f->h[r] * st[1] + f->i[r] * st[2];
  }
  for (; !one_row && st[3] == 1 && j + VL <= last; j += VL) {
    for (int v = 0; v < item_lanes(f); v += VL) {
      bias_block(f, row, j, v);
    }
  }
  for (; j < last; j++) {
    float lane[TILE_Q];
    for (int r = 0; r < (one_row ? 1 : item_lanes(f)); r++) {
      lane[r] = f32_at(t, base, row[r] + (f->j0 + j) * st[3]);
    }
    for (int v = 0; v < item_lanes(f); v += VL) {
      add_bias(f, j, v, one_row ? vf_all(lane[0]) : vf_load(lane + v));
    }
  }
}

static void modify_expression(fwd_item *f, int first, int last) {
  for (int j = first; j < last; j++) {
    tsr_expr_lanes x = expression_lanes(f, j);
    x.score = f->s + j * TILE_Q;
    tsr__expr_eval(f->p->score_expr, &f->bound->env, &x, item_lanes(f), f->s + j * TILE_Q);
  }
}

/* Dot products of keys [first, last) to natural scores. May clear bits[] (bias). */
static void modify_tile(fwd_item *f, int first, int last) {
  modify_scale(f, first, last);
  if (f->a->flags & TSR_A_ALIBI) {
    modify_alibi(f, first, last);
  }
  if (f->a->flags & TSR_A_BIAS) {
    modify_bias(f, first, last);
  }
  if (f->p->score_expr != NULL) {
    modify_expression(f, first, last);
  }
}

#endif
