/* SPDX-License-Identifier: Apache-2.0 */
/* Every rule of a description once: a valid base, what breaks it, and the answer. Included by test_problem.c alone. */

enum { RULE_PATCHES = 4 };

/* A member of the description and its new value; or, with a dtype, a whole contiguous layout. bytes 0: none. */
typedef struct rule_patch {
  size_t at;
  size_t bytes;
  int64_t value;
  tsr_dtype dtype;
  int64_t shape[4];
} rule_patch;

typedef struct rule {
  base_kind base;
  rule_patch patch[RULE_PATCHES];
  tsr_status status;
  const char *field;
} rule;

#define N32(member, value)                               \
  {                                                      \
    offsetof(tsr_attention_desc, member), 4, value, 0, { \
      0, 0, 0, 0                                         \
    }                                                    \
  }
#define N64(member, value)                               \
  {                                                      \
    offsetof(tsr_attention_desc, member), 8, value, 0, { \
      0, 0, 0, 0                                         \
    }                                                    \
  }
#define LAYOUT(member, dtype, ...)                                        \
  {                                                                       \
    offsetof(tsr_attention_desc, member), sizeof(tsr_layout), 0, dtype, { \
      __VA_ARGS__                                                         \
    }                                                                     \
  }
#define ABSENT(member)                                                             \
  {                                                                                \
    offsetof(tsr_attention_desc, member), sizeof(tsr_layout), 0, TSR_DTYPE_NONE, { \
      0, 0, 0, 0                                                                   \
    }                                                                              \
  }
#define FLAGS(value) N64(flags, (int64_t)(value))

static void rule_apply(tsr_attention_desc *d, const rule_patch *patch) {
  char *at = (char *)d + patch->at;
  if (patch->bytes == sizeof(tsr_layout)) {
    const int64_t *s = patch->shape;
    tsr_layout l = tsr_layout_dense(patch->dtype, s[0], s[1], s[2], s[3]);
    if (patch->dtype == TSR_DTYPE_NONE) {
      memset(&l, 0, sizeof(l));
    }
    memcpy(at, &l, sizeof(l));
  } else if (patch->bytes == 4) {
    const int32_t v = (int32_t)patch->value;
    memcpy(at, &v, 4);
  } else {
    memcpy(at, &patch->value, 8);
  }
}

static const rule rules[] = {
    /* switches */
    {BASE_DENSE, {N32(op, 2)}, TSR_INVALID, "op"},
    {BASE_DENSE, {N32(op, -1)}, TSR_INVALID, "op"},
    {BASE_DENSE, {N32(memory, 5)}, TSR_INVALID, "memory"},
    {BASE_DENSE, {N32(memory, -1)}, TSR_INVALID, "memory"},
    {BASE_DENSE, {FLAGS(0x400)}, TSR_INVALID, "flags"},
    {BASE_DENSE, {FLAGS(UINT64_C(1) << 63)}, TSR_INVALID, "flags"},
    {BASE_DENSE, {FLAGS(TSR_BATCH_INVARIANT | TSR_DROPOUT)}, TSR_INVALID, "flags"},
    {BASE_DENSE, {FLAGS(TSR_BATCH_INVARIANT), N32(num_splits, 2)}, TSR_INVALID, "num_splits"},
    {BASE_DENSE, {N32(num_splits, -1)}, TSR_INVALID, "num_splits"},
    {BASE_DENSE, {N32(num_splits, TSR_MAX_SPLITS + 1)}, TSR_INVALID, "num_splits"},
    {BASE_BACKWARD, {N32(num_splits, 2)}, TSR_INVALID, "num_splits"},
    {BASE_DENSE, {N32(num_aux, 9)}, TSR_INVALID, "num_aux"},
    {BASE_DENSE, {N32(num_aux, -1)}, TSR_INVALID, "num_aux"},

    /* presence by operation */
    {BASE_DENSE, {ABSENT(q)}, TSR_INVALID, "q"},
    {BASE_DENSE, {ABSENT(k)}, TSR_INVALID, "k"},
    {BASE_DENSE, {ABSENT(v)}, TSR_INVALID, "v"},
    {BASE_DENSE, {ABSENT(o)}, TSR_INVALID, "o"},
    {BASE_DENSE, {LAYOUT(dout, TSR_F32, 2, 5, 4, 6)}, TSR_INVALID, "dout"},
    {BASE_DENSE, {LAYOUT(dlse, TSR_F32, 2, 4, 5, 1)}, TSR_INVALID, "dlse"},
    {BASE_DENSE, {LAYOUT(dq, TSR_F32, 2, 5, 4, 8)}, TSR_INVALID, "dq"},
    {BASE_DENSE, {LAYOUT(dk, TSR_F32, 2, 7, 2, 8)}, TSR_INVALID, "dk"},
    {BASE_DENSE, {LAYOUT(dv, TSR_F32, 2, 7, 2, 6)}, TSR_INVALID, "dv"},
    {BASE_DENSE, {LAYOUT(dbias, TSR_F32, 2, 4, 5, 7)}, TSR_INVALID, "dbias"},
    {BASE_DENSE, {LAYOUT(dsink, TSR_F32, 4, 1, 1, 1)}, TSR_INVALID, "dsink"},
    {BASE_BACKWARD, {LAYOUT(max_s, TSR_F32, 4, 1, 1, 1)}, TSR_INVALID, "max_s"},
    {BASE_BACKWARD, {FLAGS(TSR_DROPOUT), LAYOUT(dropout_mask, TSR_U8, 2, 4, 5, 7)}, TSR_INVALID, "dropout_mask"},
    {BASE_BACKWARD, {ABSENT(dout)}, TSR_INVALID, "dout"},
    {BASE_BACKWARD, {ABSENT(o)}, TSR_INVALID, "o"},
    {BASE_BACKWARD, {ABSENT(lse)}, TSR_INVALID, "lse"},

    /* dtypes */
    {BASE_DENSE, {N32(q.dtype, TSR_I32)}, TSR_INVALID, "q.dtype"},
    {BASE_DENSE, {N32(q.dtype, TSR_I8)}, TSR_INVALID, "q.dtype"},
    {BASE_DENSE, {N32(q.dtype, TSR_F8E4M3FNUZ)}, TSR_UNSUPPORTED, "q.dtype"},
    {BASE_DENSE, {N32(k.dtype, TSR_F8E5M2FNUZ)}, TSR_UNSUPPORTED, "k.dtype"},
    {BASE_DENSE, {N32(k.dtype, TSR_F16)}, TSR_INVALID, "k.dtype"},
    {BASE_DENSE, {N32(k.dtype, TSR_U8)}, TSR_INVALID, "k.dtype"},
    {BASE_DENSE, {N32(v.dtype, TSR_BF16)}, TSR_INVALID, "v.dtype"},
    {BASE_DENSE, {N32(v.dtype, TSR_I8)}, TSR_INVALID, "v.dtype"},
    {BASE_DENSE, {N32(k.dtype, TSR_I8)}, TSR_INVALID, "v.dtype"},
    {BASE_DENSE, {N32(o.dtype, TSR_F16)}, TSR_INVALID, "o.dtype"},
    {BASE_QUANT, {N32(o.dtype, TSR_BF16)}, TSR_INVALID, "o.dtype"},
    {BASE_FP8, {N32(o.dtype, TSR_F8E4M3)}, TSR_INVALID, "o.dtype"},
    {BASE_FP8, {N32(k.dtype, TSR_F8E5M2)}, TSR_INVALID, "k.dtype"},
    {BASE_FP8, {N32(v.dtype, TSR_F8E5M2)}, TSR_INVALID, "v.dtype"},
    {BASE_MLA, {N32(v.dtype, TSR_F8E4M3)}, TSR_INVALID, "v.dtype"},
    {BASE_DENSE, {N32(lse.dtype, TSR_F16)}, TSR_INVALID, "lse.dtype"},
    {BASE_DENSE, {N32(max_s.dtype, TSR_BF16)}, TSR_INVALID, "max_s.dtype"},

    /* heads and channels */
    {BASE_DENSE, {N64(q.shape[2], 0)}, TSR_INVALID, "q.shape[2]"},
    {BASE_DENSE, {N64(k.shape[2], 0)}, TSR_INVALID, "k.shape[2]"},
    {BASE_DENSE, {N64(k.shape[2], 3)}, TSR_INVALID, "k.shape[2]"},
    {BASE_DENSE, {N64(k.shape[2], 8)}, TSR_INVALID, "k.shape[2]"},
    {BASE_DENSE, {N64(v.shape[2], 1)}, TSR_INVALID, "v.shape[2]"},
    {BASE_MLA, {N64(k.shape[2], 2), N64(v.shape[2], 2)}, TSR_INVALID, "k.shape[2]"},
    {BASE_MLA, {N64(v.shape[3], 10)}, TSR_INVALID, "v.shape[3]"},
    {BASE_DENSE, {N64(q.shape[3], 0)}, TSR_INVALID, "q.shape[3]"},
    {BASE_DENSE, {N64(k.shape[3], 6)}, TSR_INVALID, "k.shape[3]"},
    {BASE_DENSE, {N64(v.shape[3], 0)}, TSR_INVALID, "v.shape[3]"},
    {BASE_DENSE, {LAYOUT(q, TSR_F32, 2, 5, 4, 577), LAYOUT(k, TSR_F32, 2, 7, 2, 577)}, TSR_UNSUPPORTED, "q.shape[3]"},
    {BASE_DENSE, {LAYOUT(v, TSR_F32, 2, 7, 2, 577)}, TSR_UNSUPPORTED, "v.shape[3]"},

    /* batch and lengths */
    {BASE_DENSE, {N64(batch, -1)}, TSR_INVALID, "batch"},
    {BASE_DENSE, {N64(batch, 3)}, TSR_INVALID, "batch"},
    {BASE_PACKED, {N64(batch, 3)}, TSR_INVALID, "cu_seqlens_q.shape[0]"},
    {BASE_PACKED, {N64(cu_seqlens_q.shape[0], 0), N64(batch, 0)}, TSR_INVALID, "cu_seqlens_q.shape[0]"},
    {BASE_PACKED, {N64(batch, INT64_MAX)}, TSR_INVALID, "batch"},
    {BASE_PACKED, {N64(cu_seqlens_k.shape[0], 2)}, TSR_INVALID, "cu_seqlens_k.shape[0]"},
    {BASE_PACKED, {N64(cu_seqlens_q.shape[1], 2)}, TSR_INVALID, "cu_seqlens_q.shape[1]"},
    {BASE_PACKED, {N32(cu_seqlens_q.dtype, TSR_F32)}, TSR_INVALID, "cu_seqlens_q.dtype"},
    {BASE_PACKED, {N32(cu_seqlens_k.dtype, TSR_I64)}, TSR_INVALID, "cu_seqlens_k.dtype"},
    {BASE_USED, {N32(seqlens_q.dtype, TSR_I32)}, TSR_INVALID, "seqlens_q.dtype"},
    {BASE_USED, {N64(seqlens_k.shape[0], 3)}, TSR_INVALID, "seqlens_k.shape[0]"},
    {BASE_PACKED, {N64(q.shape[0], 2)}, TSR_INVALID, "q.shape[0]"},
    {BASE_PACKED, {N64(k.shape[0], 2)}, TSR_INVALID, "k.shape[0]"},
    {BASE_DENSE, {N64(k.shape[0], 1)}, TSR_INVALID, "k.shape[0]"},
    {BASE_DENSE, {N64(v.shape[0], 1)}, TSR_INVALID, "v.shape[0]"},
    {BASE_DENSE, {N64(v.shape[1], 6)}, TSR_INVALID, "v.shape[1]"},
    {BASE_DENSE, {N64(max_seqlen_q, -1)}, TSR_INVALID, "max_seqlen_q"},
    {BASE_DENSE, {N64(max_seqlen_q, 6)}, TSR_INVALID, "max_seqlen_q"},
    {BASE_DENSE, {N64(max_seqlen_q, 4)}, TSR_INVALID, "max_seqlen_q"},
    {BASE_DENSE, {N64(max_seqlen_k, 6)}, TSR_INVALID, "max_seqlen_k"},
    {BASE_PACKED, {N64(max_seqlen_k, INT64_C(1) << 31)}, TSR_INVALID, "max_seqlen_k"},
    {BASE_DENSE,
     {LAYOUT(k, TSR_F32, 2, INT64_C(1) << 31, 2, 8), LAYOUT(v, TSR_F32, 2, INT64_C(1) << 31, 2, 6)},
     TSR_INVALID,
     "k.shape[1]"},
    {BASE_DENSE,
     {LAYOUT(q, TSR_F32, 2, INT64_C(1) << 31, 4, 8), LAYOUT(o, TSR_F32, 2, INT64_C(1) << 31, 4, 6)},
     TSR_INVALID,
     "q.shape[1]"},
    {BASE_PACKED, {N64(max_seqlen_q, INT32_MAX), N64(max_seqlen_k, INT32_MAX)}, TSR_INVALID, "batch"},
    {BASE_PACKED,
     {LAYOUT(cu_seqlens_q, TSR_I32, INT64_C(1) << 50, 1, 1, 1),
      LAYOUT(cu_seqlens_k, TSR_I32, INT64_C(1) << 50, 1, 1, 1), N64(batch, 0)},
     TSR_INVALID,
     "batch"},

    /* results */
    {BASE_DENSE, {N64(o.shape[0], 1)}, TSR_INVALID, "o.shape[0]"},
    {BASE_DENSE, {N64(o.shape[1], 4)}, TSR_INVALID, "o.shape[1]"},
    {BASE_DENSE, {N64(o.shape[2], 2)}, TSR_INVALID, "o.shape[2]"},
    {BASE_DENSE, {N64(o.shape[3], 5)}, TSR_INVALID, "o.shape[3]"},
    {BASE_DENSE, {N64(o.stride[2], 0)}, TSR_INVALID, "o.stride[2]"},
    {BASE_DENSE, {N64(o.stride[1], 23)}, TSR_INVALID, "o.stride[1]"},
    {BASE_DENSE, {LAYOUT(lse, TSR_F32, 2, 5, 4, 1)}, TSR_INVALID, "lse.shape[1]"},
    {BASE_PACKED, {LAYOUT(lse, TSR_F32, 2, 4, 5, 1)}, TSR_INVALID, "lse.shape[0]"},
    {BASE_DENSE, {N64(lse.stride[0], 0)}, TSR_INVALID, "lse.stride[0]"},
    {BASE_DENSE, {N64(max_s.shape[0], 3)}, TSR_INVALID, "max_s.shape[0]"},

    /* paged */
    {BASE_TABLE, {LAYOUT(kv_indptr, TSR_I32, 3, 1, 1, 1)}, TSR_INVALID, "kv_indptr"},
    {BASE_TABLE, {LAYOUT(cu_seqlens_k, TSR_I32, 3, 1, 1, 1)}, TSR_INVALID, "cu_seqlens_k"},
    {BASE_TABLE, {ABSENT(seqlens_k)}, TSR_INVALID, "seqlens_k"},
    {BASE_TABLE, {N32(block_table.dtype, TSR_I64)}, TSR_INVALID, "block_table.dtype"},
    {BASE_TABLE, {N64(block_table.shape[0], 1)}, TSR_INVALID, "block_table.shape[0]"},
    {BASE_TABLE, {N64(block_table.shape[2], 2)}, TSR_INVALID, "block_table.shape[2]"},
    {BASE_TABLE, {N64(max_seqlen_k, 10)}, TSR_INVALID, "max_seqlen_k"},
    {BASE_TABLE, {N64(v.shape[0], 7)}, TSR_INVALID, "v.shape[0]"},
    {BASE_TABLE, {N64(k.shape[1], 0), N64(v.shape[1], 0)}, TSR_INVALID, "k.shape[1]"},
    {BASE_CSR, {ABSENT(kv_indices)}, TSR_INVALID, "kv_indices"},
    {BASE_CSR, {ABSENT(last_page_len)}, TSR_INVALID, "last_page_len"},
    {BASE_CSR, {ABSENT(kv_indptr)}, TSR_INVALID, "kv_indices"},
    {BASE_CSR, {N64(kv_indptr.shape[0], 2)}, TSR_INVALID, "kv_indptr.shape[0]"},
    {BASE_CSR, {N64(last_page_len.shape[0], 3)}, TSR_INVALID, "last_page_len.shape[0]"},
    {BASE_CSR, {N32(last_page_len.dtype, TSR_I64)}, TSR_INVALID, "last_page_len.dtype"},
    {BASE_CSR, {N64(max_seqlen_k, 19)}, TSR_INVALID, "max_seqlen_k"},
    {BASE_DENSE, {LAYOUT(kv_indices, TSR_I32, 3, 1, 1, 1)}, TSR_INVALID, "kv_indices"},

    /* numbers of masks */
    {BASE_DENSE, {N64(window_left, 1)}, TSR_INVALID, "window_left"},
    {BASE_DENSE, {N64(window_right, -1)}, TSR_INVALID, "window_right"},
    {BASE_DENSE, {N64(sink_tokens, 1)}, TSR_INVALID, "sink_tokens"},
    {BASE_DENSE, {N64(chunk, 1)}, TSR_INVALID, "chunk"},
    {BASE_MASKS, {N64(window_left, -2)}, TSR_INVALID, "window_left"},
    {BASE_MASKS, {N64(window_right, INT64_MAX)}, TSR_INVALID, "window_right"},
    {BASE_MASKS, {N64(sink_tokens, -1)}, TSR_INVALID, "sink_tokens"},
    {BASE_MASKS, {N64(chunk, 0)}, TSR_INVALID, "chunk"},
    {BASE_MASKS, {N64(chunk, INT64_C(1) << 31)}, TSR_INVALID, "chunk"},
    {BASE_MASKS, {N32(block_rows, 0)}, TSR_INVALID, "block_rows"},
    {BASE_MASKS, {N32(block_cols, -3)}, TSR_INVALID, "block_cols"},
    {BASE_DENSE, {N32(block_rows, 4)}, TSR_INVALID, "block_rows"},
    {BASE_DENSE, {N32(block_cols, 4)}, TSR_INVALID, "block_cols"},

    /* masks */
    {BASE_DENSE, {LAYOUT(prefix, TSR_I32, 2, 1, 1, 1)}, TSR_INVALID, "prefix"},
    {BASE_MASKS, {N32(prefix.dtype, TSR_I32)}, TSR_INVALID, "prefix.dtype"},
    {BASE_MASKS, {N64(prefix.shape[0], 1)}, TSR_INVALID, "prefix.shape[0]"},
    {BASE_MASKS, {N32(mask.dtype, TSR_I32)}, TSR_INVALID, "mask.dtype"},
    {BASE_MASKS, {N64(mask.shape[0], 3)}, TSR_INVALID, "mask.shape[0]"},
    {BASE_MASKS, {N64(mask.shape[1], 2)}, TSR_INVALID, "mask.shape[1]"},
    {BASE_MASKS, {N64(mask.shape[2], 4)}, TSR_INVALID, "mask.shape[2]"},
    {BASE_MASKS, {N64(mask.shape[3], 6)}, TSR_INVALID, "mask.shape[3]"},
    {BASE_DENSE, {LAYOUT(mask, TSR_BIT, 1, 1, 5, 1)}, TSR_INVALID, "mask.shape[3]"},
    {BASE_DENSE, {LAYOUT(mask, TSR_BIT, 1, 1, 5, 7), N64(mask.stride[3], 0)}, TSR_INVALID, "mask.stride[3]"},
    {BASE_BITROWS, {N64(mask.shape[1], 3)}, TSR_INVALID, "mask.shape[1]"},
    {BASE_BITROWS, {N32(mask.dtype, TSR_U8)}, TSR_INVALID, "mask_offsets"},
    {BASE_BITROWS, {ABSENT(mask)}, TSR_INVALID, "mask_offsets"},
    {BASE_BITROWS, {ABSENT(mask_row_strides)}, TSR_INVALID, "mask_row_strides"},
    {BASE_BITROWS, {N32(mask_offsets.dtype, TSR_I32)}, TSR_INVALID, "mask_offsets.dtype"},
    {BASE_BITROWS, {N64(mask_offsets.shape[0], 1)}, TSR_INVALID, "mask_offsets.shape[0]"},
    {BASE_BITROWS, {N64(mask_row_strides.shape[0], 1)}, TSR_INVALID, "mask_row_strides.shape[0]"},
    {BASE_DENSE,
     {LAYOUT(mask, TSR_BIT, 1, 1, 5, 7), LAYOUT(mask_row_strides, TSR_I64, 2, 1, 1, 1)},
     TSR_INVALID,
     "mask_offsets"},
    {BASE_MASKS, {ABSENT(segments_k)}, TSR_INVALID, "segments_k"},
    {BASE_MASKS, {ABSENT(segments_q)}, TSR_INVALID, "segments_q"},
    {BASE_MASKS, {N64(segments_q.shape[1], 7)}, TSR_INVALID, "segments_q.shape[1]"},
    {BASE_MASKS, {N64(segments_k.shape[0], 1)}, TSR_INVALID, "segments_k.shape[0]"},
    {BASE_MASKS, {N32(segments_k.dtype, TSR_I64)}, TSR_INVALID, "segments_k.dtype"},
    {BASE_PACKED,
     {LAYOUT(segments_q, TSR_I32, 2, 5, 1, 1), LAYOUT(segments_k, TSR_I32, 1, 12, 1, 1)},
     TSR_INVALID,
     "segments_q.shape[0]"},
    {BASE_MASKS, {N64(flashmask.shape[0], 1)}, TSR_INVALID, "flashmask.shape[0]"},
    {BASE_MASKS, {N64(flashmask.shape[1], 3)}, TSR_INVALID, "flashmask.shape[1]"},
    {BASE_MASKS, {N64(flashmask.shape[2], 5)}, TSR_INVALID, "flashmask.shape[2]"},
    {BASE_MASKS, {N64(flashmask.shape[3], 4)}, TSR_INVALID, "flashmask.shape[3]"},
    {BASE_MASKS, {N32(flashmask.dtype, TSR_I64)}, TSR_INVALID, "flashmask.dtype"},
    {BASE_DENSE, {LAYOUT(flashmask, TSR_I32, 2, 1, 7, 1)}, TSR_INVALID, "flashmask.shape[3]"},
    {BASE_DENSE, {LAYOUT(flashmask, TSR_I32, 2, 1, 7, 3)}, TSR_INVALID, "flashmask.shape[3]"},
    {BASE_MASKS, {ABSENT(block_indices)}, TSR_INVALID, "block_indices"},
    {BASE_MASKS, {ABSENT(block_indptr), N32(block_rows, 0), N32(block_cols, 0)}, TSR_INVALID, "block_indptr"},
    {BASE_MASKS, {N64(block_indptr.shape[2], 3)}, TSR_INVALID, "block_indptr.shape[2]"},
    {BASE_MASKS, {N64(block_indptr.shape[1], 2)}, TSR_INVALID, "block_indptr.shape[1]"},
    {BASE_MASKS, {N64(block_indices.shape[0], 3)}, TSR_INVALID, "block_indices.shape[0]"},
    {BASE_MASKS, {N32(block_indices.dtype, TSR_I64)}, TSR_INVALID, "block_indices.dtype"},

    /* terms */
    {BASE_MASKS, {N32(bias.dtype, TSR_I8)}, TSR_INVALID, "bias.dtype"},
    {BASE_MASKS, {N64(bias.shape[1], 2)}, TSR_INVALID, "bias.shape[1]"},
    {BASE_MASKS, {N64(bias.shape[3], 8)}, TSR_INVALID, "bias.shape[3]"},
    {BASE_MASKS, {N32(alibi_slopes.dtype, TSR_F16)}, TSR_INVALID, "alibi_slopes.dtype"},
    {BASE_MASKS, {N64(alibi_slopes.shape[1], 2)}, TSR_INVALID, "alibi_slopes.shape[1]"},
    {BASE_MASKS, {N64(alibi_slopes.shape[0], 3)}, TSR_INVALID, "alibi_slopes.shape[0]"},
    {BASE_MASKS, {N64(sink.shape[0], 1)}, TSR_INVALID, "sink.shape[0]"},
    {BASE_MASKS, {N32(sink.dtype, TSR_F16)}, TSR_INVALID, "sink.dtype"},
    {BASE_DENSE, {LAYOUT(rng_state, TSR_I64, 2, 1, 1, 1)}, TSR_INVALID, "rng_state"},
    {BASE_DENSE, {LAYOUT(dropout_mask, TSR_U8, 2, 4, 5, 7)}, TSR_INVALID, "dropout_mask"},
    {BASE_MASKS, {N64(rng_state.shape[0], 1)}, TSR_INVALID, "rng_state.shape[0]"},
    {BASE_MASKS, {N32(rng_state.dtype, TSR_I32)}, TSR_INVALID, "rng_state.dtype"},
    {BASE_MASKS, {N64(dropout_mask.shape[1], 1)}, TSR_INVALID, "dropout_mask.shape[1]"},
    {BASE_MASKS, {N64(dropout_mask.stride[0], 0)}, TSR_INVALID, "dropout_mask.stride[0]"},

    /* quantised */
    {BASE_QUANT, {ABSENT(v_scale)}, TSR_INVALID, "v_scale"},
    {BASE_QUANT, {ABSENT(k_scale)}, TSR_INVALID, "k_scale"},
    {BASE_FP8, {ABSENT(k_scale), LAYOUT(k_zero, TSR_F32, 1, 1, 1, 1)}, TSR_INVALID, "k_scale"},
    {BASE_QUANT, {N32(k_scale.dtype, TSR_I8)}, TSR_INVALID, "k_scale.dtype"},
    {BASE_QUANT, {N64(k_scale.shape[0], 2)}, TSR_INVALID, "k_scale.shape[0]"},
    {BASE_QUANT, {N64(k_scale.shape[1], 2)}, TSR_INVALID, "k_scale.shape[1]"},
    {BASE_QUANT, {N64(k_scale.shape[2], 4)}, TSR_INVALID, "k_scale.shape[2]"},
    {BASE_QUANT, {N64(k_scale.shape[3], 3)}, TSR_INVALID, "k_scale.shape[3]"},
    {BASE_QUANT, {N64(k_scale.shape[3], 0)}, TSR_INVALID, "k_scale.shape[3]"},
    {BASE_QUANT, {N64(k_scale.shape[3], 2)}, TSR_INVALID, "k_zero.shape[3]"},
    {BASE_QUANT, {N64(v.shape[3], 5), N64(o.shape[3], 5)}, TSR_INVALID, "v.shape[3]"},
    {BASE_QUANT, {N64(v.stride[1], 13)}, TSR_INVALID, "v.stride[1]"},
    {BASE_DENSE, {LAYOUT(k_scale, TSR_F32, 1, 1, 1, 1)}, TSR_INVALID, "k_scale"},
    {BASE_DENSE, {LAYOUT(v_zero, TSR_F32, 1, 1, 1, 1)}, TSR_INVALID, "v_zero"},
    {BASE_MLA, {LAYOUT(v_scale, TSR_F32, 1, 1, 1, 1)}, TSR_INVALID, "v_scale"},
    {BASE_MLA, {LAYOUT(v_zero, TSR_F32, 1, 1, 1, 1)}, TSR_INVALID, "v_zero"},
    {BASE_DENSE, {LAYOUT(q_descale, TSR_F32, 1, 1, 1, 1)}, TSR_INVALID, "q_descale"},
    {BASE_FP8, {N32(q_descale.dtype, TSR_F16)}, TSR_INVALID, "q_descale.dtype"},
    {BASE_FP8, {N64(q_descale.shape[1], 4)}, TSR_INVALID, "q_descale.shape[1]"},

    /* expressions */
    {BASE_EXPR, {N64(num_scalars, -1)}, TSR_INVALID, "num_scalars"},
    {BASE_EXPR, {N64(num_scalars, 17)}, TSR_INVALID, "num_scalars"},
    {BASE_EXPR, {N64(scalar_names, 0)}, TSR_INVALID, "scalar_names"},
    {BASE_DENSE, {N64(num_scalars, 1)}, TSR_INVALID, "scalar_names"},
    {BASE_EXPR, {N64(score_expr, 0), N64(mask_expr, 0)}, TSR_INVALID, "num_scalars"},
    {BASE_EXPR, {N64(score_expr, 0), N64(mask_expr, 0), N64(num_scalars, 0)}, TSR_INVALID, "num_aux"},
    {BASE_EXPR, {N32(num_aux, 1)}, TSR_INVALID, "aux[1]"},
    {BASE_EXPR, {N32(num_aux, 3)}, TSR_INVALID, "aux[2]"},
    {BASE_EXPR, {N32(aux[0].dtype, TSR_F16)}, TSR_INVALID, "aux[0].dtype"},
    {BASE_EXPR, {N64(num_scalars, 1)}, TSR_INVALID, "mask_expr"},

    /* backward */
    {BASE_BACKWARD, {N32(dout.dtype, TSR_F16)}, TSR_INVALID, "dout.dtype"},
    {BASE_BACKWARD, {N64(dout.shape[3], 5)}, TSR_INVALID, "dout.shape[3]"},
    {BASE_BACKWARD, {N32(dlse.dtype, TSR_F16)}, TSR_INVALID, "dlse.dtype"},
    {BASE_BACKWARD, {N64(dlse.shape[1], 2)}, TSR_INVALID, "dlse.shape[1]"},
    {BASE_BACKWARD, {N32(dq.dtype, TSR_F16)}, TSR_INVALID, "dq.dtype"},
    {BASE_BACKWARD, {N64(dq.shape[1], 4)}, TSR_INVALID, "dq.shape[1]"},
    {BASE_BACKWARD, {N64(dk.shape[2], 4)}, TSR_INVALID, "dk.stride[1]"},
    {BASE_BACKWARD, {LAYOUT(dk, TSR_F32, 2, 7, 4, 8)}, TSR_INVALID, "dk.shape[2]"},
    {BASE_BACKWARD, {N64(dv.stride[1], 0)}, TSR_INVALID, "dv.stride[1]"},
    {BASE_BACKWARD, {N32(dbias.dtype, TSR_BF16)}, TSR_INVALID, "dbias.dtype"},
    {BASE_BACKWARD, {N64(dbias.shape[1], 1)}, TSR_INVALID, "dbias.shape[1]"},
    {BASE_BACKWARD, {ABSENT(bias)}, TSR_INVALID, "dbias"},
    {BASE_BACKWARD, {ABSENT(sink)}, TSR_INVALID, "dsink"},
    {BASE_BACKWARD, {LAYOUT(dsink, TSR_F32, 3, 1, 1, 1)}, TSR_INVALID, "dsink.shape[0]"},
    {BASE_BACKWARD,
     {N32(k.dtype, TSR_I8), N32(v.dtype, TSR_I8), LAYOUT(k_scale, TSR_F32, 1, 1, 1, 1),
      LAYOUT(v_scale, TSR_F32, 1, 1, 1, 1)},
     TSR_UNSUPPORTED,
     "k.dtype"},
    {BASE_BACKWARD,
     {N32(q.dtype, TSR_F8E4M3), N32(k.dtype, TSR_F8E4M3), N32(v.dtype, TSR_F8E4M3)},
     TSR_UNSUPPORTED,
     "q.dtype"},
    {BASE_BACKWARD,
     {LAYOUT(block_table, TSR_I32, 2, 4, 1, 1), LAYOUT(seqlens_k, TSR_I32, 2, 1, 1, 1), N64(max_seqlen_k, 7)},
     TSR_UNSUPPORTED,
     "block_table"},
    {BASE_BACKWARD,
     {LAYOUT(kv_indptr, TSR_I32, 3, 1, 1, 1), LAYOUT(kv_indices, TSR_I32, 9, 1, 1, 1),
      LAYOUT(last_page_len, TSR_I32, 2, 1, 1, 1), N64(max_seqlen_k, 7)},
     TSR_UNSUPPORTED,
     "kv_indptr"},
};
