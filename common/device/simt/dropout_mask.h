/* SPDX-License-Identifier: Apache-2.0 */
/* The mask that dropout applies, as bytes: 1 = kept. Items: batch x heads_q x ceil(seqlen_q / 16). */
#ifndef TSR_SIMT_DROPOUT_MASK_H
#define TSR_SIMT_DROPOUT_MASK_H

#define TSR_MASK_ROWS 16

/* Four keys of one row. */
TSR_FN void tsr_dropout_four(const tsr_env *e, const tsr_row_block *x, tsr_philox_key key, tsr_i64 i, tsr_i64 j) {
  const tsr_t4 *t = &e->l->u.dropout_mask;
  TSR_GLOBAL tsr_u8 *out = TSR_AT(tsr_u8, e->p->dropout_mask, t->offset_bytes) + x->seq.b * t->stride[0] +
                           x->h * t->stride[1] + i * t->stride[2];
  tsr_u32 word[4];
  tsr_i32 k;
  tsr_dropout_words(key, (tsr_u64)x->seq.b * (tsr_u64)e->a->heads_q + (tsr_u64)x->h, (tsr_u32)i, (tsr_u32)(j >> 2),
                    word);
  TSR_UNROLL
  for (k = 0; k < 4; k++) {
    if (j + k < x->seq.kv_len) {
      out[(j + k) * t->stride[3]] = (tsr_u8)((tsr_u64)word[k] >= e->a->dropout_threshold);
    }
  }
}

TSR_KERNEL(TSR_K_THREADS) tsr_dropout_mask(TSR_ATTN_PARAMS) {
  tsr_philox_key key;
  tsr_row_block x;
  tsr_i64 w, n;
  TSR_ROWS_BEGIN(e, p);
  key = tsr_run_key(&e);
  for (w = TSR_GROUP(); w < l.items; w += TSR_GROUPS()) {
    if (tsr_row_block_at(&e, w, TSR_MASK_ROWS, &x)) {
      const tsr_i64 fours = (x.seq.kv_len + 3) / 4;
      for (n = e.t; n < fours * (x.i1 - x.i0); n += TSR_K_THREADS) {
        tsr_dropout_four(&e, &x, key, x.i0 + n / fours, n % fours * 4);
      }
    }
  }
}

#endif
