/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds attention in serving: appending to a KV cache, and merging partial results. */
#ifndef TESSERA_CACHE_H
#define TESSERA_CACHE_H

#include "tessera/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Append ---------------------------------------------------------------------------------- */

enum {
  TSR_APPEND_INTERLEAVED = 1,  /* rotary pairs are channels (2n, 2n+1); default (n, n + R/2). Needs cos */
  TSR_APPEND_STATIC_SCALES = 2 /* k_scale / v_scale are read; default: computed here and written. Needs one of them */
};

/* Writes row t of sequence b at position kv_len_b + t of the cache, kv_len_b (seqlens_k) being the length before the
 * call, which the caller advances. Rotary first, if cos is present: x' = x cos - y sin, y' = x sin + y cos in f32 on
 * the first rotary_dim channels of k (and of q), then one rounding. Then quantisation, if the cache is quantised:
 * dynamic scale = amax / 127 (i8), amax / 7 (u4, zero 8), amax / 448 (f8e4m3), amax / 57344 (f8e5m2) over each group
 * of channels, amax 0 gives scale 1; codes round to nearest even and saturate. Rows past the capacity: TSR_INVALID
 * where lengths are host memory, dropped on devices. Nothing is written when the call fails.
 * What is written (k_cache, v_cache, dynamic scales, q_out) shares no byte with another tensor or the workspace, but
 * q_out may be q itself (same memory, same layout), and no two new rows go to the same row of a page: else what is
 * written is undefined. With TSR_CONTEXT_VALIDATE host memory that breaks this is TSR_INVALID. */
typedef struct tsr_append_desc {
  size_t size;
  int32_t memory;      /* TSR_MEMORY_* */
  uint32_t flags;      /* TSR_APPEND_* */
  const char *variant; /* as in tsr_attention_desc */

  int64_t batch;          /* 0: k_new.shape[0], packed: cu_seqlens_new.shape[0] - 1 */
  int64_t max_seqlen_new; /* 0: k_new.shape[1]; something else only when packed */

  tsr_layout k_new;          /* f32, f16, bf16 [B,S,Hkv,D], packed [1,T,Hkv,D] */
  tsr_layout v_new;          /* same dtype, [B,S,Hkv,Dv] */
  tsr_layout cu_seqlens_new; /* index type [B+1,1,1,1], packed only */
  tsr_layout k_cache;     /* [B,Smax,Hkv,D] or paged [pages,page_size,Hkv,D]; k_new's dtype, f8e4m3, f8e5m2, i8, u4 */
  tsr_layout v_cache;     /* likewise with Dv; quantised iff k_cache is */
  tsr_layout seqlens_k;   /* index type [B,1,1,1], lengths before the call; absent: 0 */
  tsr_layout block_table; /* i32 [B,max_pages,1,1]; present: paged */
  tsr_layout k_scale, v_scale; /* f32, f16, bf16, [B,Smax,Hkv,G] / [pages,page_size,Hkv,G]; axes may be 1 with
                                  static scales only. Required for i8 and u4; f8 without scales stores k itself */

  int32_t rotary_dim;   /* R, even, <= D; 0 = D when cos is present; must be 0 otherwise */
  int32_t reserved;     /* 0 */
  tsr_layout cos, sin;  /* f32 [max_pos, R/2,1,1]; both or none */
  tsr_layout positions; /* i32 [B,S,1,1], packed [1,T,1,1]; absent: kv_len_b + t. A position outside [0, max_pos) is
                           TSR_INVALID where it is host memory, and leaves that row unrotated on devices */
  tsr_layout q, q_out;  /* optional, with cos: q f32, f16, bf16 [B,S,Hq,D] (packed [1,T,Hq,D]) is rotated by the same
                           rule into q_out (same dtype; may be the same memory and layout) */
} tsr_append_desc;

/* A buffer is needed iff its layout is in the description. Workspace, queue and events: as in tsr_run_args. */
typedef struct tsr_append_args {
  size_t size;
  int64_t batch;     /* 0: the plan's; else at most that */
  int64_t total_new; /* packed tokens in use; 0: the plan's; else at most that */
  tsr_buffer k_new, v_new, cu_seqlens_new, k_cache, v_cache, seqlens_k, block_table, k_scale, v_scale;
  tsr_buffer cos, sin, positions, q, q_out;
  tsr_buffer workspace;
  int64_t workspace_bytes;
  void *queue;
  const void *const *wait_events;
  int64_t num_wait_events;
  void **event;
} tsr_append_args;

static inline tsr_append_desc tsr_append_desc_init(void) {
  tsr_append_desc d;
  memset(&d, 0, sizeof(d));
  d.size = sizeof(d);
  return d;
}

static inline tsr_append_args tsr_append_args_init(void) {
  tsr_append_args a;
  memset(&a, 0, sizeof(a));
  a.size = sizeof(a);
  return a;
}

/* ---- Merge ----------------------------------------------------------------------------------- */

enum { TSR_MAX_PARTIALS = 4096 };

/* Joins num_partials results over disjoint key sets, folding left to right: normalised O_k and natural LSE_k. The
 * sink is taken once, here (partials are computed without it). A partial row whose LSE is -inf is empty: its O is
 * never read. One non-empty partial is returned bitwise (same dtype); only empty ones: the empty row. o and lse share
 * no byte with each other, a partial, the sink or the workspace (there is no merging in place): else what is written is
 * undefined. With TSR_CONTEXT_VALIDATE host memory that breaks this is TSR_INVALID. */
typedef struct tsr_merge_desc {
  size_t size;
  int32_t memory;         /* TSR_MEMORY_* */
  int32_t reserved;       /* 0 */
  const char *variant;    /* as in tsr_attention_desc */
  int64_t num_partials;   /* 1..TSR_MAX_PARTIALS */
  tsr_layout partial_o;   /* o's dtype or f32 [B,S,Hq,Dv]; one layout for all */
  tsr_layout partial_lse; /* f32 [B,Hq,S,1] */
  tsr_layout o;           /* f32, f16, bf16 [B,S,Hq,Dv] */
  tsr_layout lse;         /* f32 [B,Hq,S,1], optional */
  tsr_layout sink;        /* f32 [Hq,1,1,1], optional */
} tsr_merge_desc;

/* A buffer is needed iff its layout is in the description. Workspace, queue and events: as in tsr_run_args. */
typedef struct tsr_merge_args {
  size_t size;
  const tsr_buffer *partial_o;   /* num_partials */
  const tsr_buffer *partial_lse; /* num_partials */
  tsr_buffer o, lse, sink;
  tsr_buffer workspace;
  int64_t workspace_bytes;
  void *queue;
  const void *const *wait_events;
  int64_t num_wait_events;
  void **event;
} tsr_merge_args;

static inline tsr_merge_desc tsr_merge_desc_init(void) {
  tsr_merge_desc d;
  memset(&d, 0, sizeof(d));
  d.size = sizeof(d);
  return d;
}

static inline tsr_merge_args tsr_merge_args_init(void) {
  tsr_merge_args a;
  memset(&a, 0, sizeof(a));
  a.size = sizeof(a);
  return a;
}

#ifdef __cplusplus
}
#endif
#endif
