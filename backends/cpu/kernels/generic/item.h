/* SPDX-License-Identifier: Apache-2.0 */
/* One item of the forward pass: a block of query rows in lanes against the keys of one split. Everything the stages of
 * a tile share. */
#ifndef TSR_CPU_ITEM_H
#define TSR_CPU_ITEM_H

#include "backends/cpu/kernels/generic/generic.h"
#include "backends/cpu/kernels/generic/shape.h"
#include "backends/cpu/kernels/generic/vmath.h"

enum { TILE_WORDS = TILE_K / 32 };

/* What a score is, for one sequence and kv head. */
typedef struct score_units {
  int raw;     /* scores stay dot products and log2 has the scale in it; else they are in natural units */
  float scale; /* natural units per dot product, fp8 descale included */
  float log2;  /* log2 units per score, applied after the maximum is subtracted */
} score_units;

static inline score_units units_of(const tsr_cpu_run *run, tsr_i64 b, tsr_i32 kv_head) {
  const tsr_attn_args *a = &run->bound->args;
  const float *descale = (const float *)run->bound->ptr[TSR_SLOT_q_descale];
  const tsr_u32 modifies = TSR_A_SOFTCAP | TSR_A_ALIBI | TSR_A_BIAS | TSR_A_SCORE_EXPR;
  score_units u;
  u.scale = a->scale;
  if (descale != NULL) {
    u.scale *= descale[b * a->u.fwd.q_descale.stride[0] + kv_head * a->u.fwd.q_descale.stride[1]];
  }
  /* The scale can wait if nothing comes between and it is positive and, times log2(e), an ordinary number. */
  u.raw = !(a->flags & modifies) && u.scale > 1e-30f && u.scale < 1e30f;
  u.log2 = u.raw ? u.scale * TSR_LOG2E : TSR_LOG2E;
  return u;
}

/* Natural units per score. */
static inline float natural_unit(score_units u) {
  return u.raw ? u.scale : 1.0f;
}

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
  score_units units;

  /* lanes */
  int64_t i[TILE_Q];   /* query row */
  int64_t h[TILE_Q];   /* query head */
  float m[TILE_Q];     /* running maximum, in units of the scores */
  float l[TILE_Q];     /* sum of probabilities relative to m */
  float alpha[TILE_Q]; /* what the current tile multiplies earlier sums by */
  float tile_max[TILE_Q];
  int32_t nan[TILE_Q];  /* all ones: a score of the row is NaN (looked for only where max_s cannot tell otherwise) */
  float shrink[TILE_Q]; /* what O^T has been multiplied by: 1, less in rows redone for overflow */

  /* the current tile */
  tsr_i64 j0;
  int masked;                                 /* bits[] count */
  uint32_t bits[TILE_WORDS][TILE_Q];          /* bit k of word w: key j0 + 32 w + k allowed */
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
