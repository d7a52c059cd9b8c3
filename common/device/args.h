/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel is told: one pointer-free struct (at most 1024 bytes, by value) and a list of pointers. */
#ifndef TSR_DEVICE_ARGS_H
#define TSR_DEVICE_ARGS_H

/* Strides in elements (bit masks: bytes), 0 on axes of extent 1, so that an index into a broadcast axis is harmless.
 * offset_bytes is added to the tensor's pointer (0 on the CPU, whose pointers include it). */
typedef struct tsr_t4 {
  tsr_i64 offset_bytes;
  tsr_i64 stride[4];
} tsr_t4;
typedef struct tsr_t3 {
  tsr_i64 offset_bytes;
  tsr_i64 stride[3];
} tsr_t3;
typedef struct tsr_t2 {
  tsr_i64 offset_bytes;
  tsr_i64 stride[2];
} tsr_t2;
typedef struct tsr_t1 {
  tsr_i64 offset_bytes;
  tsr_i64 stride;
} tsr_t1;

/* tsr_attn_args.flags: which terms of the definition are present. */
#define TSR_A_CAUSAL 0x1u
#define TSR_A_TOP_LEFT 0x2u
#define TSR_A_WINDOW 0x4u
#define TSR_A_CHUNK 0x8u
#define TSR_A_PREFIX 0x10u
#define TSR_A_MASK_U8 0x20u
#define TSR_A_MASK_BIT 0x40u
#define TSR_A_MASK_ROWS 0x80u /* bit mask with an offset and a row stride a sequence */
#define TSR_A_SEGMENTS 0x100u
#define TSR_A_FLASHMASK 0x200u
#define TSR_A_BLOCKS 0x400u
#define TSR_A_BIAS 0x800u
#define TSR_A_ALIBI 0x1000u
#define TSR_A_SINK 0x2000u
#define TSR_A_SOFTCAP 0x4000u
#define TSR_A_DROPOUT 0x8000u
#define TSR_A_SCORE_EXPR 0x10000u
#define TSR_A_MASK_EXPR 0x20000u
#define TSR_A_Q_PACKED 0x40000u
#define TSR_A_K_PACKED 0x80000u
#define TSR_A_PAGED_TABLE 0x100000u
#define TSR_A_PAGED_CSR 0x200000u
#define TSR_A_LEN64 0x400000u /* lengths are 64-bit */
#define TSR_A_SEQLENS_Q 0x800000u
#define TSR_A_SEQLENS_K 0x1000000u
#define TSR_A_RNG_STATE 0x2000000u
#define TSR_A_QUANT 0x4000000u

/* A kernel compiled for some features alone says which: the others are no code then. */
#if !defined(TSR_K_FLAGS)
#define TSR_K_FLAGS 0xffffffffu
#endif
#define TSR_FLAGS(a) ((a)->flags & TSR_K_FLAGS)

typedef struct tsr_attn_args {
  tsr_t4 q, k, v, o;
  tsr_t3 lse; /* b, h, s */
  tsr_t4 bias, mask;
  tsr_t4 flashmask; /* b, h, j, n */
  tsr_t2 segments_q, segments_k;
  tsr_t2 alibi;
  tsr_t1 sink, max_s;
  tsr_t3 block_indptr, block_indices;
  tsr_t1 cu_q, cu_k, len_q, len_k, prefix;
  tsr_t1 mask_offsets, mask_row_strides;
  union {
    struct {
      tsr_t4 k_scale, k_zero, v_scale, v_zero;
      tsr_t2 q_descale;
      tsr_t2 block_table;
      tsr_t1 kv_indptr, kv_indices, last_page_len;
    } fwd;
    struct {
      tsr_t4 dout, dq, dk, dv, dbias;
      tsr_t3 dlse;
      tsr_t1 dsink;
    } bwd;
  } u;
  tsr_i64 batch, seqlen_q, seqlen_k;                     /* of this run; dense slot lengths (maxima otherwise) */
  tsr_i64 total_q, total_k;                              /* packed tokens in use */
  tsr_i64 window_left, window_right, sink_tokens, chunk; /* window -1: unlimited */
  tsr_i64 page_size;
  tsr_u64 seed, offset;
  tsr_u64 dropout_threshold; /* dropped iff r < threshold, 0..2^32 */
  tsr_i32 heads_q, heads_kv, group, head_dim, head_dim_v;
  tsr_i32 block_rows, block_cols;
  tsr_i32 flash_head_div; /* head of the flashmask = h / this */
  tsr_i32 flash_n;
  tsr_i32 num_pages;        /* ids below this are pages */
  tsr_i32 max_pages;        /* entries of a row of the block table, or of kv_indices */
  tsr_i32 k_group, v_group; /* channels that share a scale */
  tsr_u32 flags;            /* TSR_A_* */
  float scale;              /* natural units, > 0 unless the caller gave another */
  float softcap;
  float dropout_scale; /* of kept pairs */
  tsr_i32 reserved;
} tsr_attn_args;

/* The tensors that masks and lengths read, as private pointers of one work group. */
typedef struct tsr_attn_ptrs {
  TSR_GLOBAL const void *cu_q, *cu_k, *len_q, *len_k, *prefix;
  TSR_GLOBAL const tsr_u8 *mask;
  TSR_GLOBAL const tsr_i64 *mask_offsets, *mask_row_strides;
  TSR_GLOBAL const tsr_i32 *segments_q, *segments_k, *flashmask, *block_indptr, *block_indices;
  TSR_GLOBAL const tsr_i32 *block_table, *kv_indptr, *kv_indices, *last_page_len;
} tsr_attn_ptrs;

/* One sequence of a run. Row i of q, o is (q_b, q_row0 + i) in axes b, s; row j of k, v likewise unless paged. */
typedef struct tsr_seq {
  tsr_i64 b;
  tsr_i64 q_len, kv_len, off, prefix;
  tsr_i64 q_b, q_row0, k_b, k_row0;
  tsr_i64 page0; /* CSR: first entry in kv_indices */
} tsr_seq;

/* A piece of work: rows [q0, q0 + q_rows) of one head (or of one kv head's group), keys of one split. */
typedef struct tsr_work {
  tsr_i64 b;
  tsr_i64 q0;           /* first row, local to the sequence */
  tsr_i64 kv_lo, kv_hi; /* keys of this split, [kv_lo, kv_hi) */
  tsr_i32 head;         /* query head; with packing: of the first of `pack` heads / pack */
  tsr_i32 q_rows;       /* rows of the tile; with packing: rows x group */
  tsr_i32 split;
  tsr_i32 reserved;
} tsr_work;

#endif
