/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a description, as the command names them: one row each.
 *
 * The name is the field of tsr_attention_desc and tsr_run_args, the tensor's name in a .safetensors file, and
 * with '-' for '_' the option that gives it a file. */
#ifndef TESSERA_TOOL_FIELDS_H
#define TESSERA_TOOL_FIELDS_H

/* How a file's axes become the four of tsr_layout. */
enum {
  AXES_BSHD,   /* [B,S,H,D], [S,H,D], [S,D]; with --layout bhsd [B,H,S,D], [H,S,D] */
  AXES_BHS,    /* [B,H,S], [H,S], [S], and 1 */
  AXES_VECTOR, /* [n] */
  AXES_ROWS,   /* [B,n], [n] = [1,n] */
  AXES_TABLE,  /* [B,n], [n] = one row */
  AXES_BROAD,  /* aligned right to four axes, as NumPy broadcasts */
  AXES_SCALE,  /* [G], [H,G], [S,H,G], [B,S,H,G]; with --layout bhsd [H,S,G], [B,H,S,G] */
  AXES_BLOCKS, /* aligned right to three axes, and 1 */
  AXES_AUX     /* aligned left: every axis is an index of the expression */
};

/* Which element types a file may have, and what they become. */
enum {
  TYPE_MAIN,  /* q, k, v, dout: as in the file, or --dtype */
  TYPE_STATE, /* o: as in the file */
  TYPE_FLOAT, /* f32, f16, bf16 as in the file */
  TYPE_F32,   /* f16 and bf16 are widened */
  TYPE_INDEX, /* i32, or i64 if any tensor of this class is i64 */
  TYPE_I32,   /* i64 is narrowed if it fits */
  TYPE_I64,
  TYPE_MASK, /* u8, bool; bits with --mask-bits */
  TYPE_AUX   /* f32, i32 */
};

/* X(field, axes, type, help) */
#define TOOL_INPUTS(X)                                                                              \
  X(q, AXES_BSHD, TYPE_MAIN, "queries [B,S,H,D], [S,H,D] or [S,D]")                                 \
  X(k, AXES_BSHD, TYPE_MAIN, "keys; paged: [pages,page_size,H,D]")                                  \
  X(v, AXES_BSHD, TYPE_MAIN, "values")                                                              \
  X(cu_seqlens_q, AXES_VECTOR, TYPE_INDEX, "packed queries: start of each sequence, and the end")   \
  X(cu_seqlens_k, AXES_VECTOR, TYPE_INDEX, "packed keys: the same")                                 \
  X(seqlens_q, AXES_VECTOR, TYPE_INDEX, "used query lengths [B]")                                   \
  X(seqlens_k, AXES_VECTOR, TYPE_INDEX, "used key lengths [B]")                                     \
  X(block_table, AXES_TABLE, TYPE_I32, "pages of each sequence [B,max_pages]")                      \
  X(kv_indptr, AXES_VECTOR, TYPE_I32, "pages as CSR: start of each sequence in kv-indices [B+1]")   \
  X(kv_indices, AXES_VECTOR, TYPE_I32, "pages as CSR: page ids")                                    \
  X(last_page_len, AXES_VECTOR, TYPE_I32, "pages as CSR: keys in the last page [B]")                \
  X(prefix, AXES_VECTOR, TYPE_INDEX, "with --causal: keys every row may see [B]")                   \
  X(mask, AXES_BROAD, TYPE_MASK, "nonzero = may attend, [Sq,Sk] .. [B,H,Sq,Sk]")                    \
  X(mask_offsets, AXES_VECTOR, TYPE_I64, "bit masks of packed batches: byte offset of each [B]")    \
  X(mask_row_strides, AXES_VECTOR, TYPE_I64, "bit masks of packed batches: bytes between rows [B]") \
  X(segments_q, AXES_ROWS, TYPE_I32, "segment ids of queries [B,S], packed [T]; -1 = padding")      \
  X(segments_k, AXES_ROWS, TYPE_I32, "segment ids of keys")                                         \
  X(flashmask, AXES_BROAD, TYPE_I32, "column-wise mask [B,1|H,Sk,n]")                               \
  X(block_indptr, AXES_BLOCKS, TYPE_I32, "block-sparse rows [B|1,H|1,rows+1]; with --block R,C")    \
  X(block_indices, AXES_BLOCKS, TYPE_I32, "block-sparse columns")                                   \
  X(bias, AXES_BROAD, TYPE_FLOAT, "added to scores, [Sq,Sk] .. [B,H,Sq,Sk]; -inf masks")            \
  X(alibi_slopes, AXES_ROWS, TYPE_F32, "ALiBi slopes [H] or [B,H]; 'auto' = 2^(-8 h / H)")          \
  X(sink, AXES_VECTOR, TYPE_F32, "sink logit of each query head [H]")                               \
  X(k_scale, AXES_SCALE, TYPE_FLOAT, "scales of quantised keys [G], [H,G], .. [B|1,S|1,H|1,G|1]")   \
  X(k_zero, AXES_SCALE, TYPE_FLOAT, "their zero points")                                            \
  X(v_scale, AXES_SCALE, TYPE_FLOAT, "scales of quantised values")                                  \
  X(v_zero, AXES_SCALE, TYPE_FLOAT, "their zero points")                                            \
  X(q_descale, AXES_ROWS, TYPE_F32, "descale of fp8 queries [B|1,H|1]")                             \
  X(rng_state, AXES_VECTOR, TYPE_I64, "dropout seed and offset in memory [2]")                      \
  X(dout, AXES_BSHD, TYPE_MAIN, "--backward: gradient of the output")                               \
  X(dlse, AXES_BHS, TYPE_F32, "--backward: gradient of the LSE [B,H,S]")

/* X(field, help) */
#define TOOL_OUTPUTS(X)                                \
  X(o, "output")                                       \
  X(lse, "log-sum-exp [B,H,S]")                        \
  X(max_s, "largest score of each head")               \
  X(dropout_mask, "which pairs were kept [B,H,Sq,Sk]") \
  X(dq, "gradient of q")                               \
  X(dk, "gradient of k")                               \
  X(dv, "gradient of v")                               \
  X(dbias, "gradient of the bias")                     \
  X(dsink, "gradient of the sinks")

#define X(field, axes, type, help) INPUT_##field,
enum { TOOL_INPUTS(X) INPUT_COUNT };
#undef X
#define X(field, help) OUTPUT_##field,
enum { TOOL_OUTPUTS(X) OUTPUT_COUNT };
#undef X

#endif
