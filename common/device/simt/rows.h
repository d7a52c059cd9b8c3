/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that go over query rows without tiles of keys: their items are blocks of rows of one head, in closed form.
 * And sums of many terms. */
#ifndef TSR_SIMT_ROWS_H
#define TSR_SIMT_ROWS_H

/* What every such kernel begins with; e and p are its names for the two. */
#define TSR_ROWS_BEGIN(e, p) \
  tsr_params p;              \
  tsr_env e;                 \
  TSR_PARAMS(TSR_X_COPY)     \
  e.a = &a;                  \
  e.l = &l;                  \
  e.p = &p;                  \
  tsr_env_init(&e)

/* Rows [i0, i1) of query head h of a sequence. */
typedef struct tsr_row_block {
  tsr_seq seq;
  tsr_i64 i0, i1;
  tsr_i32 h;
} tsr_row_block;

/* Items: batch x heads_q x ceil(seqlen_q / size). 0: the item has no rows. */
TSR_FN int tsr_row_block_at(const tsr_env *e, tsr_i64 item, tsr_i32 size, tsr_row_block *x) {
  const tsr_i64 blocks = (e->a->seqlen_q + size - 1) / size;
  const tsr_i64 b = item / (blocks * e->a->heads_q);
  if (b >= e->a->batch) {
    return 0;
  }
  x->seq = tsr_seq_load(e->a, &e->masks, b);
  x->h = (tsr_i32)(item / blocks % e->a->heads_q);
  x->i0 = item % blocks * size;
  x->i1 = tsr_min_i64(x->i0 + size, x->seq.q_len);
  return x->i0 < x->i1;
}

/* A sum with the rounding errors of its additions (Knuth's TwoSum): the stand-in for f64, which a device may lack. */
typedef struct tsr_sum {
  float high, low;
} tsr_sum;

TSR_FN void tsr_sum_add(tsr_sum *s, float x) {
  const float sum = tsr_f32_add(s->high, x);
  const float part = tsr_f32_sub(sum, s->high);
  const float error = tsr_f32_add(tsr_f32_sub(s->high, tsr_f32_sub(sum, part)), tsr_f32_sub(x, part));
  s->high = sum;
  s->low = tsr_f32_add(s->low, error);
}

/* What is not finite has no error term. */
TSR_FN float tsr_sum_value(const tsr_sum *s) {
  const float both = s->high + s->low;
  return both == both ? both : s->high;
}

#endif
