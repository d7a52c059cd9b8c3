/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, forward and backward: the description a plan is made from, and the arguments of a run.
 *
 * For query row i and key j of one sequence (positions are local to it), query head h, kv head h / (Hq / Hkv):
 *   s = scale * dot(q_i, k_j);  s = cap * tanh(s / cap) with TSR_SOFTCAP
 *   s += -slope * |i + off - j| (ALiBi);  s += bias;  s = score_expr(s)
 *   p = softmax over allowed j of s; a sink logit adds exp(sink) to the denominator only
 *   p = dropout(p);  o_i = sum_j p_ij v_j;  lse_i = log sum_j exp(s_ij), natural, with the sink
 * A pair is allowed iff
 *   j < kv_len and (not causal or j <= i + off or j < prefix)
 *   and (no window or (i + off - window_left <= j <= i + off + window_right) or j < sink_tokens)
 *   and (no chunk or floor((i + off) / chunk) == floor(j / chunk))
 *   and mask and segments and flashmask and blocks and mask_expr and bias != -inf
 * where off = kv_len - q_len, or 0 with TSR_TOP_LEFT. A disallowed pair has probability exactly 0 and its elements
 * reach nothing, NaN included. A row without allowed keys: o = 0, lse = -inf (with a sink: lse = sink), dq = 0, and
 * nothing in dk, dv, dbias; its dlse still reaches dsink.
 * A NaN in q or an allowed k makes that whole row NaN; a non-finite v in an allowed pair makes that channel
 * non-finite, unless the pair's p is 0. A mask that is absent means "no mask", never "causal".
 * p is 0 where it underflows or s is -inf, and products and scores are f32: one beyond its range is infinite, though
 * its value is not. A row whose allowed pairs all have s = -inf is a row without allowed keys, sink or not: o = 0
 * whatever v holds, and no gradient where v and dout are finite. In other rows a non-finite v whose pair has p = 0 or
 * is lost to dropout may reach o, or may not; likewise a non-finite v or dout the gradients.
 *
 * Three arrangements of sequences:
 *   dense   q [B,Sq,Hq,D], k [B,Sk,Hkv,D], v [B,Sk,Hkv,Dv], o [B,Sq,Hq,Dv], lse [B,Hq,Sq,1].
 *   packed  cu_seqlens_q present: q [1,T,Hq,D], o [1,T,Hq,Dv], lse [1,Hq,T,1], sequence b at rows
 *           [cu[b], cu[b+1]). cu_seqlens_k present: k [1,Tk,Hkv,D], v likewise. One side may be packed alone.
 *   paged   block_table or kv_indptr present: k [pages,page_size,Hkv,D], v [pages,page_size,Hkv,Dv];
 *           key j of sequence b is row j % page_size of page table[b][j / page_size].
 * seqlens_q / seqlens_k, where given, are the lengths used (at most what the slot holds); else the slot's length is.
 * Rows outside the used lengths are never written, and their values never matter.
 *
 * Sources: FlashAttention (arXiv 2205.14135) and FlashAttention-2 (2307.08691) for the tiling and
 * recomputation, PagedAttention (2309.06180), FlashMask (2410.01359), Flash-Decoding for split KV. */
#ifndef TESSERA_ATTENTION_H
#define TESSERA_ATTENTION_H

#include "tessera/context.h"
#include "tessera/expression.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TSR_FORWARD = 0, TSR_BACKWARD = 1 };

enum {
  TSR_MEMORY_NATIVE = 0, /* what the device computes on: host (cpu), device pointers (cuda, hip), cl_mem (opencl) */
  TSR_MEMORY_HOST = 1,
  TSR_MEMORY_DEVICE = 2,
  TSR_MEMORY_CL_MEM = 3,
  TSR_MEMORY_SVM = 4
};

/* tsr_attention_desc.flags. A field whose flag is off must be 0. */
#define TSR_CAUSAL UINT64_C(0x1)
#define TSR_TOP_LEFT UINT64_C(0x2) /* off = 0 (PyTorch's is_causal); default: bottom-right */
#define TSR_WINDOW UINT64_C(0x4)   /* window_left, window_right, sink_tokens */
#define TSR_CHUNK UINT64_C(0x8)    /* chunk */
#define TSR_SOFTCAP UINT64_C(0x10) /* tsr_run_args.softcap */
#define TSR_DROPOUT UINT64_C(0x20) /* tsr_run_args.dropout_p, seed, offset (or rng_state) */
#define TSR_V_IN_K                                                                                      \
  UINT64_C(0x40)                /* MLA: v is the first v.shape[3] channels of k, v's pointer is         \
                                   ignored, as are its strides; Hkv == 1, Dv <= D, v dtype == k dtype;  \
                                   k's scales serve v. Backward: dk and dv are the gradients of the two \
                                   uses, which the caller adds */
#define TSR_FAST UINT64_C(0x80) /* allow TF32-like products and other departures from IEEE f32 */
#define TSR_DETERMINISTIC                                                                      \
  UINT64_C(0x100) /* same call, device model, build and driver: same bits, whatever the thread \
                    count, workspace contents and concurrent work, gradients included */
#define TSR_BATCH_INVARIANT                                                                 \
  UINT64_C(0x200) /* a row's bits depend on its own sequence only: variant, tiles and split \
                  size follow from D, Dv, dtypes, heads, features and device. Not with      \
                  TSR_DROPOUT. num_splits must be 0 */

enum {
  TSR_MAX_HEAD_DIM = 576, /* above: TSR_UNSUPPORTED */
  TSR_MAX_SPLITS = 256
};

/* Everything that decides which code runs and how memory is laid out. Start from tsr_attention_desc_init().
 * `index type` below is TSR_I32 or TSR_I64, one for all lengths of a plan. Strings and arrays that the description
 * points to are copied by tsr_plan_attention. */
typedef struct tsr_attention_desc {
  size_t size;    /* sizeof(tsr_attention_desc) */
  int32_t op;     /* TSR_FORWARD, TSR_BACKWARD */
  int32_t memory; /* TSR_MEMORY_* of every tensor and the workspace */
  uint64_t flags; /* TSR_CAUSAL ... */

  /* Sizes. A plan serves any run whose batch and totals are at most these. Below, Sq and Sk are the longest sequences
   * after defaults, each below 2^31; B * Hq * Sq * max(D, Dv) is at most 2^52, B * Hkv * Sk * max(D, Dv) 2^59, B * Hq *
   * Sq * Sk 2^62. */
  int64_t batch;        /* B; 0: q.shape[0], packed: cu_seqlens_q.shape[0] - 1 */
  int64_t max_seqlen_q; /* longest query sequence; 0: q.shape[1]. Dense: less than that only with seqlens_q */
  int64_t max_seqlen_k; /* longest kv sequence; 0: k.shape[1], paged: pages a row of the table * page_size (CSR: all
                           pages listed). Dense: less only with seqlens_k; paged: at most that */

  const char *variant; /* force a kernel variant by name; NULL: the context's, else the first that accepts */
  int32_t num_splits;  /* split KV: 0 = chosen by the library, else 1..TSR_MAX_SPLITS, honoured exactly (trailing
                          splits may be empty). Backward: 0 */
  int32_t num_aux;     /* aux tensors of the expressions, 0..TSR_EXPR_MAX_AUX; 0 without an expression */

  /* Main tensors; axes b, s, h, d as above. q, k, v share one of f32, f16, bf16, f8e4m3, f8e5m2, unless k and v are
   * quantised (k and v each one of f8e4m3, f8e5m2, i8, u4, q f32, f16 or bf16). o: q's dtype or f32; fp8 q: f16, bf16
   * or f32. Forward needs q, k, v, o; backward q, k, v, o, lse, dout. */
  tsr_layout q, k, v, o;
  tsr_layout lse;   /* f32 [B,Hq,Sq,1], packed [1,Hq,T,1]; output, optional forward, input of backward */
  tsr_layout max_s; /* f32 [Hq,1,1,1]; optional output: largest s over allowed pairs before softmax (no sink);
                       -inf when there are none, NaN when one of them is NaN, also beside +inf */

  /* Lengths, index type. */
  tsr_layout cu_seqlens_q, cu_seqlens_k; /* [B+1,1,1,1]: starts at 0, never decreases, ends at most at T */
  tsr_layout seqlens_q, seqlens_k;       /* [B,1,1,1], stride 0 allowed: one length for all */

  /* Paged K/V: either a table, or CSR. int32. */
  tsr_layout block_table;   /* [B,max_pages,1,1]; needs seqlens_k; entries past the length are never read */
  tsr_layout kv_indptr;     /* [B+1,1,1,1]: never decreases, lies within 0..n; needs the two below */
  tsr_layout kv_indices;    /* [n,1,1,1] */
  tsr_layout last_page_len; /* [B,1,1,1], 1..page_size; ignored for a sequence without pages */

  /* Masks and biases; local (i, j) also in packed and paged batches. Numbers below 2^31. */
  int64_t window_left, window_right; /* TSR_WINDOW: extents, 0 = own key only, -1 = unlimited */
  int64_t sink_tokens;               /* TSR_WINDOW: the first keys stay visible to every row; >= 0 */
  int64_t chunk;                     /* TSR_CHUNK: >= 1 */
  tsr_layout prefix;           /* index type [B,1,1,1]; needs TSR_CAUSAL: the first keys are visible to all rows */
  tsr_layout mask;             /* TSR_U8 [B|1,Hq|1,Sq|1,Sk|1], TSR_BIT [B|1,Hq|1,Sq|1,Sk], last stride 1 */
  tsr_layout mask_offsets;     /* TSR_BIT masks of packed batches: i64 [B,1,1,1], byte offset of a sequence's
                                  first row (replaces axis b); comes with mask_row_strides. mask is then
                                  [any,Hq|1,any,any]: but for the heads it states only how many bytes there are */
  tsr_layout mask_row_strides; /* i64 [B,1,1,1], bytes between its rows (replaces axis s) */
  tsr_layout segments_q, segments_k; /* i32 [B,Sq|Sk,1,1], packed [1,T,1,1]; allowed iff equal and >= 0; both or none */
  tsr_layout flashmask;              /* i32 [B,1|Hkv|Hq,Sk,n]; causal n = 1, 2; else n = 2, 4. Per key, local rows:
                                        causal n=1 masks i >= c0; n=2 c0 <= i < c1; not causal n=2 masks i >= c0 or
                                        i < c1; n=4 [c0,c1) and [c2,c3) */
  int32_t block_rows, block_cols;    /* block-sparse block (R, C), >= 1; 0 without block_indptr */
  tsr_layout block_indptr;           /* i32 [B|1,Hq|1,ceil(Sq/R)+1,1]: never decreases, lies within 0..n */
  tsr_layout block_indices;          /* i32 [B|1,Hq|1,n,1]; ascending, unique in a row, below ceil(Sk/C) */
  tsr_layout bias;         /* f32, f16, bf16 [B|1,Hq|1,Sq|1,Sk|1]; exactly -inf masks, any finite value does not */
  tsr_layout alibi_slopes; /* f32 [1|B,Hq,1,1]; positive = penalty */
  tsr_layout sink;         /* f32 [Hq,1,1,1]; natural units; -inf = none */

  /* Quantised K/V: x = scale * (code - zero). f32, f16, bf16 [B|1,Sk|1,Hkv|1,G|1], packed [1,Tk|1,Hkv|1,G|1],
   * paged [pages|1,page_size|1,Hkv|1,G|1]; G groups of D / G consecutive channels (scale and zero: the
   * same G, or 1). Scale absent: 1, f8 only. zero absent: 0, u4: 8; it needs a scale. */
  tsr_layout k_scale, k_zero, v_scale, v_zero;
  tsr_layout q_descale; /* fp8 q: f32 [B|1,Hkv|1,1,1] */

  tsr_layout rng_state; /* TSR_DROPOUT: i64 [2,1,1,1] = {seed, offset} in memory instead of in the arguments */
  tsr_layout
      dropout_mask; /* u8 [B,Hq,Sq,Sk]; optional output of forward: 1 = kept, for every pair below q_len x kv_len */

  /* Expressions (expression.h), NULL: none. Scalars are named here and given at run; without an expression there are
   * none. */
  const char *score_expr, *mask_expr;
  const char *const *scalar_names;
  int64_t num_scalars;              /* 0..TSR_EXPR_MAX_SCALARS */
  tsr_layout aux[TSR_EXPR_MAX_AUX]; /* f32 or i32; rank = axes up to the last whose extent is not 1 (at least 1) */

  /* Backward (f32, f16, bf16; dense or packed). delta = sum(dout * o) - dlse; o and lse are the final ones. */
  tsr_layout dout; /* as o */
  tsr_layout dlse; /* as lse, optional */
  /* with TSR_V_IN_K dk is the part through the scores only and dv has v's shape: the caller adds them */
  tsr_layout dq, dk, dv; /* as q, k, v; their dtype or f32; each optional, at least one output is required */
  tsr_layout dbias; /* f32 or bias's dtype, bias's shape: summed over axes of extent 1; rows below q_len are written
                       over all their columns (0 at and past kv_len), an empty sum is 0; optional */
  tsr_layout dsink; /* f32 [Hq,1,1,1], summed over b and i; optional */
} tsr_attention_desc;

static inline tsr_attention_desc tsr_attention_desc_init(void) {
  tsr_attention_desc d;
  memset(&d, 0, sizeof(d));
  d.size = sizeof(d);
  return d;
}

/* What a CPU run saw, in tiles of the plan (query tile x key tile x head). */
typedef struct tsr_run_stats {
  size_t size;
  int64_t tiles_full;    /* computed without looking at a mask */
  int64_t tiles_partial; /* computed with a mask decision for each element */
  int64_t tiles_skipped; /* never computed, neither loaded */
} tsr_run_stats;

static inline tsr_run_stats tsr_run_stats_init(void) {
  tsr_run_stats s;
  memset(&s, 0, sizeof(s));
  s.size = sizeof(s);
  return s;
}

/* What changes from run to run and changes no code. A buffer is needed iff its layout is in the description (NULL will
 * do for a tensor without elements); a field whose flag is off must be 0. Host memory: pointers keep align_bytes, and
 * lengths, tables and indices are checked as far as the run uses them. No output shares a byte with another tensor or
 * the workspace: else what is written is undefined. With TSR_CONTEXT_VALIDATE host memory that breaks this is
 * TSR_INVALID. */
typedef struct tsr_run_args {
  size_t size; /* sizeof(tsr_run_args) */

  int64_t batch;            /* 0: the plan's; else at most that */
  int64_t total_q, total_k; /* packed: tokens T in use; 0: the plan's; else at most that */

  float scale;     /* finite; 0: 1 / sqrt(D) */
  float softcap;   /* TSR_SOFTCAP: > 0 and finite */
  float dropout_p; /* TSR_DROPOUT: 0..1 */
  uint32_t reserved;
  uint64_t seed, offset;               /* TSR_DROPOUT without rng_state; the library never advances the offset */
  float scalars[TSR_EXPR_MAX_SCALARS]; /* in the order of scalar_names */

  tsr_buffer q, k, v, o, lse, max_s;
  tsr_buffer cu_seqlens_q, cu_seqlens_k, seqlens_q, seqlens_k;
  tsr_buffer block_table, kv_indptr, kv_indices, last_page_len;
  tsr_buffer prefix, mask, mask_offsets, mask_row_strides, segments_q, segments_k, flashmask;
  tsr_buffer block_indptr, block_indices, bias, alibi_slopes, sink;
  tsr_buffer k_scale, k_zero, v_scale, v_zero, q_descale;
  tsr_buffer rng_state, dropout_mask;
  tsr_buffer aux[TSR_EXPR_MAX_AUX];
  tsr_buffer dout, dlse, dq, dk, dv, dbias, dsink;

  tsr_buffer workspace;    /* at least tsr_plan_workspace bytes, aligned so; contents need no initialisation; not
                              shared by runs that overlap in time */
  int64_t workspace_bytes; /* what the caller has there */

  /* Devices: optional host copies of lengths (dtype and stride of their layouts), checked before anything is enqueued.
   * Host memory: must be NULL. */
  const void *host_cu_seqlens_q, *host_cu_seqlens_k, *host_seqlens_q, *host_seqlens_k;

  /* Devices: the queue to enqueue on (cudaStream_t, hipStream_t, cl_command_queue; 0 = the legacy default
   * stream), events to wait for and an event out (cl_event). CPU: all 0. */
  void *queue;
  const void *const *wait_events;
  int64_t num_wait_events;
  void **event;

  tsr_run_stats *stats; /* optional (its size set by the caller), CPU: filled when the run returns; else zeroed */
} tsr_run_args;

static inline tsr_run_args tsr_run_args_init(void) {
  tsr_run_args a;
  memset(&a, 0, sizeof(a));
  a.size = sizeof(a);
  return a;
}

#ifdef __cplusplus
}
#endif
#endif
