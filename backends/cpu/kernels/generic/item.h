/* SPDX-License-Identifier: Apache-2.0 */
/* One item of the forward pass: a block of query rows in lanes against the keys of one split. Everything the stages of a
 * tile share. */
#ifndef TSR_CPU_ITEM_H
#define TSR_CPU_ITEM_H

#include "backends/cpu/kernels/generic/generic.h"
#include "backends/cpu/kernels/generic/shape.h"
#include "backends/cpu/kernels/generic/vec.h"

enum { TILE_WORDS = TILE_K / 32 };

typedef struct fwd_item {
  const tsr_cpu_run *run;
  const tsr__problem *p;
  const tsr__bound *bound;
  const tsr_attn_args *a;
  tsr_seq seq;
  tsr_work work;
  tsr_i32 kv_head;
  int rows;    /* lanes in use */
  int vectors; /* vectors in use; their lanes past `rows` repeat the last row, so that every lane is a valid row */
  int head_dim, head_dim_v;
  int raw;     /* scores stay dot products and `unit` has the scale in it; else they are in natural units */
  float scale; /* natural units per dot product, fp8 descale included */
  float unit;  /* log2 units per score */

  /* lanes */
  int64_t i[TILE_Q];       /* query row */
  int64_t h[TILE_Q];       /* query head */
  float m[TILE_Q];         /* running maximum, in units of the scores */
  float l[TILE_Q];         /* sum of probabilities relative to m + raise */
  float alpha[TILE_Q];     /* what the current tile multiplies earlier sums by */
  float tile_max[TILE_Q];
  float raise[TILE_Q];     /* 0; in rows redone for overflow, what is added to the reference */

  /* the current tile */
  tsr_i64 j0;
  int masked; /* bits[] count */
  uint32_t bits[TILE_WORDS][TILE_Q]; /* bit k of word w: key j0 + 32 w + k allowed */
  const float *keys[TILE_K], *values[TILE_K]; /* rows, in place or in `tile` */

  /* scratch */
  float *qt;   /* [head_dim][TILE_Q] */
  float *s;    /* [TILE_K][TILE_Q]: scores, then probabilities */
  float *ot;   /* [head_dim_v][TILE_Q] */
  float *tile; /* [TILE_K][max(head_dim, head_dim_v)]: rows of K, then of V, that cannot be read in place */
} fwd_item;

/* Lanes of all vectors in use. */
static inline int item_lanes(const fwd_item *f) {
  return f->vectors * VL;
}

/* Do all lanes belong to one head? */
static inline int item_one_head(const fwd_item *f) {
  return f->run->build->schedule.pack == 1;
}

#endif
