/* SPDX-License-Identifier: Apache-2.0 */
/* THE predicate: may row i of query head h see key j? Everything but the bias's -inf and the mask expression, which the
 * score stage of a kernel decides because it has to evaluate them anyway. And its shortcut for whole tiles: which keys
 * a block of rows can see at all by causal, window and chunk. */
#ifndef TSR_DEVICE_MASK_H
#define TSR_DEVICE_MASK_H

/* Position rules: causal with prefix, window with sink tokens, chunk. */
TSR_FN int tsr_mask_position(const tsr_attn_args *a, const tsr_seq *s, tsr_i64 i, tsr_i64 j) {
  const tsr_i64 pos = i + s->off;
  if ((TSR_FLAGS(a) & TSR_A_CAUSAL) && j > pos && j >= s->prefix) {
    return 0;
  }
  if ((TSR_FLAGS(a) & TSR_A_WINDOW) && j >= a->sink_tokens &&
      ((a->window_left >= 0 && j < pos - a->window_left) || (a->window_right >= 0 && j > pos + a->window_right))) {
    return 0;
  }
  if ((TSR_FLAGS(a) & TSR_A_CHUNK) && tsr_floor_div(pos, a->chunk) != tsr_floor_div(j, a->chunk)) {
    return 0;
  }
  return 1;
}

TSR_FN int tsr_mask_boolean(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i32 h, tsr_i64 i,
                            tsr_i64 j) {
  if (TSR_FLAGS(a) & TSR_A_MASK_U8) {
    return p->mask[s->b * a->mask.stride[0] + h * a->mask.stride[1] + i * a->mask.stride[2] + j * a->mask.stride[3]] !=
           0;
  }
  if (TSR_FLAGS(a) & TSR_A_MASK_BIT) {
    tsr_i64 at = h * a->mask.stride[1] + (j >> 3);
    at += (TSR_FLAGS(a) & TSR_A_MASK_ROWS) ? p->mask_offsets[s->b * a->mask_offsets.stride] +
                                                 i * p->mask_row_strides[s->b * a->mask_row_strides.stride]
                                           : s->b * a->mask.stride[0] + i * a->mask.stride[2];
    return (p->mask[at] >> (j & 7)) & 1;
  }
  return 1;
}

TSR_FN int tsr_mask_segments(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i64 i, tsr_i64 j) {
  const tsr_i32 sq = p->segments_q[s->q_b * a->segments_q.stride[0] + (s->q_row0 + i) * a->segments_q.stride[1]];
  const tsr_i32 sk = p->segments_k[s->k_b * a->segments_k.stride[0] + (s->k_row0 + j) * a->segments_k.stride[1]];
  return sq == sk && sq >= 0;
}

/* FlashMask, Wang et al. 2024: rows masked for a key, as up to two intervals. */
TSR_FN int tsr_mask_flash(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i32 h, tsr_i64 i,
                          tsr_i64 j) {
  TSR_GLOBAL const tsr_i32 *c = p->flashmask + s->b * a->flashmask.stride[0] +
                                (h / a->flash_head_div) * a->flashmask.stride[1] + j * a->flashmask.stride[2];
  const tsr_i64 n = a->flashmask.stride[3];
  if (TSR_FLAGS(a) & TSR_A_CAUSAL) {
    return a->flash_n == 1 ? i < c[0] : i < c[0] || i >= c[n];
  }
  if (a->flash_n == 2) {
    return i < c[0] && i >= c[n];
  }
  return (i < c[0] || i >= c[n]) && (i < c[2 * n] || i >= c[3 * n]);
}

/* First entry >= col of a row of the block-sparse index, and the row's end. */
TSR_FN tsr_i64 tsr_block_find(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i32 h, tsr_i64 row,
                              tsr_i64 col, tsr_i64 *end) {
  TSR_GLOBAL const tsr_i32 *ptr = p->block_indptr + s->b * a->block_indptr.stride[0] + h * a->block_indptr.stride[1];
  TSR_GLOBAL const tsr_i32 *idx = p->block_indices + s->b * a->block_indices.stride[0] + h * a->block_indices.stride[1];
  tsr_i64 lo = ptr[row * a->block_indptr.stride[2]], hi = ptr[(row + 1) * a->block_indptr.stride[2]];
  *end = hi;
  while (lo < hi) {
    const tsr_i64 mid = lo + (hi - lo) / 2;
    if (idx[mid * a->block_indices.stride[2]] < col) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

TSR_FN int tsr_mask_blocks(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i32 h, tsr_i64 i,
                           tsr_i64 j) {
  TSR_GLOBAL const tsr_i32 *idx = p->block_indices + s->b * a->block_indices.stride[0] + h * a->block_indices.stride[1];
  const tsr_i64 col = j / a->block_cols;
  tsr_i64 end;
  const tsr_i64 at = tsr_block_find(a, p, s, h, i / a->block_rows, col, &end);
  return at < end && idx[at * a->block_indices.stride[2]] == col;
}

TSR_FN int tsr_mask_allow(const tsr_attn_args *a, const tsr_attn_ptrs *p, const tsr_seq *s, tsr_i32 h, tsr_i64 i,
                          tsr_i64 j) {
  return j < s->kv_len && tsr_mask_position(a, s, i, j) && tsr_mask_boolean(a, p, s, h, i, j) &&
         (!(TSR_FLAGS(a) & TSR_A_SEGMENTS) || tsr_mask_segments(a, p, s, i, j)) &&
         (!(TSR_FLAGS(a) & TSR_A_FLASHMASK) || tsr_mask_flash(a, p, s, h, i, j)) &&
         (!(TSR_FLAGS(a) & TSR_A_BLOCKS) || tsr_mask_blocks(a, p, s, h, i, j));
}

#endif
