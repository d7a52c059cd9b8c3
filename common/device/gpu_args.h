/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels of devices are told besides tsr_attn_args, and the list of their pointers. Host and kernels read this
 * file, so that both agree on order and layout. */
#ifndef TSR_DEVICE_GPU_ARGS_H
#define TSR_DEVICE_GPU_ARGS_H

/* Element types as numbers: those of tsr_dtype. */
#define TSR_T_NONE 0
#define TSR_T_F32 1
#define TSR_T_F16 2
#define TSR_T_BF16 3
#define TSR_T_F8E4M3 4
#define TSR_T_F8E5M2 5
#define TSR_T_I8 6
#define TSR_T_U4 7

/* Indices of tsr_launch_args.type: tensors whose element type is looked at when the kernel runs. */
#define TSR_TYPE_O 0
#define TSR_TYPE_BIAS 1
#define TSR_TYPE_K_SCALE 2
#define TSR_TYPE_K_ZERO 3
#define TSR_TYPE_V_SCALE 4
#define TSR_TYPE_V_ZERO 5
#define TSR_TYPE_DOUT 6
#define TSR_TYPE_DQ 7
#define TSR_TYPE_DK 8
#define TSR_TYPE_DV 9
#define TSR_TYPE_DBIAS 10
#define TSR_TYPE_COUNT 12

/* The schedule (common/schedule.h has its meaning) and where pieces of the workspace lie. */
typedef struct tsr_launch_args {
  tsr_i64 items;      /* work of this launch */
  tsr_i64 q_blocks;   /* tiles of query rows of a head */
  tsr_i64 split_keys; /* keys of a split */
  tsr_i64 workspace;  /* byte offset of the workspace in its buffer; those below are relative to it */
  tsr_i64 partial_o;  /* f32 [split][partial_rows][Hq][Dv], normalised */
  tsr_i64 partial_ml; /* f32 [split][partial_rows][Hq][2]: maximum in units of the scores, sum */
  tsr_i64 partial_rows;
  tsr_i64 item_max; /* f32 [item][pack]: largest score an item saw */
  tsr_i64 delta;    /* f32 [slots][Hq][rows] */
  tsr_i64 list; /* i64 [batch + 1]: items before a sequence, made by "prepare"; -1: every sequence has the maxima's */
  tsr_i64 rng_state; /* byte offset in its buffer, and the stride of its two words */
  tsr_i64 rng_stride;
  union {
    tsr_t4 dropout_mask;    /* forward */
    tsr_i64 dbias_shape[4]; /* backward */
  } u;
  tsr_i32 pack;  /* query heads that share a tile */
  tsr_i32 heads; /* heads_q / pack */
  tsr_i32 num_splits;
  tsr_i32 tile_q; /* rows of a tile, packed heads included */
  tsr_i32 by_row; /* partial results lie by 1: rows of the packed q, 0: batch x seqlen_q */
  tsr_u8 type[TSR_TYPE_COUNT];
} tsr_launch_args;

#define TSR_ARGS_AUX 8
#define TSR_ARGS_SCALARS 16

/* What expressions read. Small: parameters and pointers of a kernel together stay within the 2048 bytes, its own
 * implicit ones included, that Intel's OpenCL takes. */
typedef struct tsr_expr_args {
  struct {
    tsr_i64 offset_bytes;
    tsr_i64 stride[4];
    tsr_i32 shape[4];
  } aux[TSR_ARGS_AUX];
  float scalar[TSR_ARGS_SCALARS];
} tsr_expr_args;

/* Pointers of attention kernels, in order: X(type, name of the slot). Forward: BASE, FORWARD, then RICH with
 * TSR_K_RICH, then AUX with TSR_K_EXPR. Backward: BASE, BACKWARD, RICH, AUX. Then, by value, tsr_attn_args,
 * tsr_launch_args, and tsr_expr_args with TSR_K_EXPR. Absent tensors are null pointers. */
#define TSR_PARAMS_BASE(X)    \
  X(const void, q)            \
  X(const void, k)            \
  X(const void, v)            \
  X(void, o)                  \
  X(float, lse)               \
  X(const void, cu_seqlens_q) \
  X(const void, cu_seqlens_k) \
  X(const void, seqlens_q)    \
  X(const void, seqlens_k)    \
  X(const void, prefix)       \
  X(const float, sink)        \
  X(const tsr_i64, rng_state) \
  X(void, workspace)
#define TSR_PARAMS_FORWARD(X)     \
  X(float, max_s)                 \
  X(const tsr_i32, block_table)   \
  X(const tsr_i32, kv_indptr)     \
  X(const tsr_i32, kv_indices)    \
  X(const tsr_i32, last_page_len) \
  X(const void, k_scale)          \
  X(const void, k_zero)           \
  X(const void, v_scale)          \
  X(const void, v_zero)           \
  X(const float, q_descale)       \
  X(tsr_u8, dropout_mask)
#define TSR_PARAMS_BACKWARD(X) \
  X(const void, dout)          \
  X(const float, dlse)         \
  X(void, dq)                  \
  X(void, dk)                  \
  X(void, dv)                  \
  X(void, dbias)               \
  X(float, dsink)
#define TSR_PARAMS_RICH(X)           \
  X(const tsr_u8, mask)              \
  X(const tsr_i64, mask_offsets)     \
  X(const tsr_i64, mask_row_strides) \
  X(const tsr_i32, segments_q)       \
  X(const tsr_i32, segments_k)       \
  X(const tsr_i32, flashmask)        \
  X(const tsr_i32, block_indptr)     \
  X(const tsr_i32, block_indices)    \
  X(const void, bias)                \
  X(const float, alibi_slopes)
#define TSR_PARAMS_AUX(X) \
  X(const void, aux0)     \
  X(const void, aux1)     \
  X(const void, aux2)     \
  X(const void, aux3)     \
  X(const void, aux4)     \
  X(const void, aux5)     \
  X(const void, aux6)     \
  X(const void, aux7)

/* Features that need the pointers of RICH, or cost a kernel registers: all else is in the plain kernel. */
#define TSR_RICH_FLAGS                                                                                               \
  (TSR_A_MASK_U8 | TSR_A_MASK_BIT | TSR_A_MASK_ROWS | TSR_A_SEGMENTS | TSR_A_FLASHMASK | TSR_A_BLOCKS | TSR_A_BIAS | \
   TSR_A_ALIBI | TSR_A_SOFTCAP | TSR_A_DROPOUT | TSR_A_SCORE_EXPR | TSR_A_MASK_EXPR)

#endif
