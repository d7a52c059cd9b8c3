/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of append and merge are told. Host and kernels read this file, so that both agree on order and
 * layout. Strides are in elements (tsr_t4: axes b or page, s, h, channel), 0 on axes of extent 1. */
#ifndef TSR_DEVICE_GPU_CACHE_ARGS_H
#define TSR_DEVICE_GPU_CACHE_ARGS_H

/* ---- Append ------------------------------------------------------------------------------------ */

/* tsr_append_kernel_args.flags */
#define TSR_AP_PACKED 0x1u     /* k_new is packed: cu_seqlens_new */
#define TSR_AP_LENGTHS 0x2u    /* seqlens_k is there, else sequences begin empty */
#define TSR_AP_LEN64 0x4u      /* lengths are 64-bit */
#define TSR_AP_ROTARY 0x8u     /* cos and sin are there */
#define TSR_AP_POSITIONS 0x10u /* positions is there */
#define TSR_AP_PAIRS 0x20u     /* rotary turns neighbouring channels (TSR_APPEND_INTERLEAVED) */
#define TSR_AP_FIXED 0x40u     /* scales are read (TSR_APPEND_STATIC_SCALES) */
#define TSR_AP_PAGED 0x80u     /* block_table */

/* One of K, V and Q on its way. type: TSR_T_*; scale_type only where group is not 0. */
typedef struct tsr_append_side {
  tsr_t4 from, to, scale;
  tsr_i32 heads; /* 0: there is none (q) */
  tsr_i32 channels;
  tsr_i32 group;                                 /* channels that a scale covers, 0: not quantised */
  tsr_u8 from_type, to_type, scale_type, turned; /* turned: 1: rotary applies */
} tsr_append_side;

typedef struct tsr_append_kernel_args {
  tsr_append_side k, v, q; /* q goes to q_out, at the place it came from */
  tsr_t2 cos, sin;         /* position, channel */
  tsr_t2 positions;        /* slot, row */
  tsr_t2 block_table;
  tsr_t1 cu_seqlens_new, seqlens_k;
  tsr_i64 batch;
  tsr_i64 tokens;        /* of this run: total_new where packed, else batch x seqlen_new */
  tsr_i64 seqlen_new;    /* rows of a slot where not packed */
  tsr_i64 capacity;      /* keys that a sequence can hold */
  tsr_i64 page_size;     /* with TSR_AP_PAGED */
  tsr_i64 num_pages;     /* ids below this are pages */
  tsr_i64 num_positions; /* rows of cos and sin */
  tsr_i32 rotary_dim;
  tsr_u32 flags; /* TSR_AP_* */
} tsr_append_kernel_args;

/* Then tsr_append_kernel_args by value. Absent tensors are null pointers. */
#define TSR_PARAMS_APPEND(X)    \
  X(const void, k_new)          \
  X(const void, v_new)          \
  X(void, k_cache)              \
  X(void, v_cache)              \
  X(void, k_scale)              \
  X(void, v_scale)              \
  X(const void, q)              \
  X(void, q_out)                \
  X(const float, cos)           \
  X(const float, sin)           \
  X(const void, cu_seqlens_new) \
  X(const void, seqlens_k)      \
  X(const tsr_i32, positions)   \
  X(const tsr_i32, block_table)

/* ---- Merge ------------------------------------------------------------------------------------- */

/* Partial results that one launch of tsr_merge folds; more take further launches over the same rows, with what was
 * folded so far in the workspace. */
#define TSR_MERGE_FAN 8

typedef struct tsr_merge_kernel_args {
  tsr_t4 partial_o, o;                    /* b, s, h, channel; offset_bytes of partial_o unused */
  tsr_t3 partial_lse, lse;                /* b, h, s; offset_bytes of partial_lse unused */
  tsr_i64 partial_o_bytes[TSR_MERGE_FAN]; /* byte offsets of the partials of this launch */
  tsr_i64 partial_lse_bytes[TSR_MERGE_FAN];
  tsr_t1 sink;
  tsr_i64 workspace; /* byte offset of the state: f32 [rows][8 + channels]; unused where one launch does all */
  tsr_i64 rows;      /* b x s x h */
  tsr_i64 seqlen;
  tsr_i32 heads, channels;
  tsr_i32 count; /* partials of this launch, 1..TSR_MERGE_FAN */
  tsr_i32 step;  /* of the launches over these rows, from 0 */
  tsr_i32 last;  /* 1: no launch comes after */
  tsr_u8 partial_type, o_type, reserved[2];
} tsr_merge_kernel_args;

/* Bytes of workspace that a merge of n partials takes. */
#define TSR_MERGE_WORKSPACE(n, rows, channels) \
  ((n) <= TSR_MERGE_FAN ? (tsr_i64)0 : (tsr_i64)(rows) * (8 + (tsr_i64)(channels)) * 4)

/* Then tsr_merge_kernel_args by value. o1.. and lse1.. of partials that a launch does not have are null pointers. */
#define TSR_PARAMS_MERGE(X) \
  X(const void, o0)         \
  X(const void, o1)         \
  X(const void, o2)         \
  X(const void, o3)         \
  X(const void, o4)         \
  X(const void, o5)         \
  X(const void, o6)         \
  X(const void, o7)         \
  X(const void, lse0)       \
  X(const void, lse1)       \
  X(const void, lse2)       \
  X(const void, lse3)       \
  X(const void, lse4)       \
  X(const void, lse5)       \
  X(const void, lse6)       \
  X(const void, lse7)       \
  X(void, o)                \
  X(void, lse)              \
  X(const void, sink)       \
  X(void, workspace)

#define TSR_CACHE_PARAM(type, name) TSR_GLOBAL type *name, /* q_out may be q */

#endif
