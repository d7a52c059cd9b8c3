/* SPDX-License-Identifier: Apache-2.0 */
/* What the validating files share: messages, and the rules that many fields obey. Every message reads
 * "<field> <what it is, what it must be>", and err->field is that field.
 *   validate_layout.c  any layout; imported and exported structs; messages
 *   validate_main.c    flags, sizes, arrangement, dtypes, q k v o lse max_s, lengths and page tables
 *   validate_mask.c    masks, biases, quantisation, dropout
 *   validate_grad.c    backward
 *   problem.c          order of the above, expressions, what follows for later stages
 *   bind.c             a run's arguments; bind_tables.c lengths, tables and indices by value
 *   cache_ops.c        append and merge: descriptions; cache_bind.c their runs */
#ifndef TSR_COMMON_VALIDATE_H
#define TSR_COMMON_VALIDATE_H

#include "common/bind.h"

/* ---- Messages -------------------------------------------------------------------------------- */

typedef struct tsr__field {
  char name[96];
} tsr__field;

tsr__field tsr__field_part(const char *name, const char *part);           /* "k.dtype" */
tsr__field tsr__field_axis(const char *name, const char *part, int axis); /* "k.shape[2]" */
tsr__field tsr__field_entry(const char *name, int64_t i0);                /* "cu_seqlens_q[3]" */
tsr__field tsr__field_entry2(const char *name, int64_t i0, int64_t i1);   /* "block_table[3,7]" */
tsr__field tsr__field_entry3(const char *name, int64_t i0, int64_t i1, int64_t i2);

/* TSR_INVALID with the text "<field> <fmt...>". */
tsr_status tsr__invalid(tsr_error *err, const char *field, const char *fmt, ...) TSR__PRINTF(3, 4);

/* ---- Layouts --------------------------------------------------------------------------------- */

#define TSR__DTYPE_BIT(dtype) (1u << (dtype))
#define TSR__FLOATS (TSR__DTYPE_BIT(TSR_F32) | TSR__DTYPE_BIT(TSR_F16) | TSR__DTYPE_BIT(TSR_BF16))
#define TSR__FP8 (TSR__DTYPE_BIT(TSR_F8E4M3) | TSR__DTYPE_BIT(TSR_F8E5M2))
#define TSR__INDEX (TSR__DTYPE_BIT(TSR_I32) | TSR__DTYPE_BIT(TSR_I64))

/* The dtype is one of a set of TSR__DTYPE_BIT; a FNUZ type is TSR_UNSUPPORTED. The layout is present. */
tsr_status tsr__check_dtype(const tsr_layout *layout, const char *name, uint32_t allowed, tsr_error *err);

/* What an extent must be: n, or with `one` also 1. `what` says it in words or by a field's name; NULL: anything. */
typedef struct tsr__extent {
  int64_t n;
  const char *what;
  int one;
} tsr__extent;
tsr_status tsr__check_shape(const tsr_layout *layout, const char *name, const tsr__extent want[4], tsr_error *err);
/* All four extents as those of another field. */
tsr_status tsr__check_same_shape(const tsr_layout *layout, const char *name, const tsr_layout *other,
                                 const char *other_name, tsr_error *err);

/* dtype NONE: the rest is zero too, else somebody forgot the dtype. */
tsr_status tsr__check_absent(const tsr_layout *layout, const char *name, tsr_error *err);
/* The layout with strides 0 on axes of extent 1 and in empty tensors, and align_bytes at least the element size. */
tsr_layout tsr__layout_resolve(const tsr_layout *layout);
/* No element at all. */
static inline int tsr__layout_is_empty(const tsr_layout *l) {
  return l->shape[0] == 0 || l->shape[1] == 0 || l->shape[2] == 0 || l->shape[3] == 0;
}
/* Bytes an element starts on: 1 for U4 and BIT. */
int64_t tsr__element_bytes(tsr_dtype dtype);

/* ---- Parts of tsr__problem_init, in this order ------------------------------------------------- */

/* Flags, op, and for every tensor of the description layout rules and presence by op. Fills p->present. */
tsr_status tsr__validate_layouts(tsr__problem *p, tsr_error *err);
/* Sizes, arrangement, dtypes. need_outputs 0: outputs may be absent (the oracle). Fills sizes and len_dtype. */
tsr_status tsr__validate_main(tsr__problem *p, int need_outputs, tsr_error *err);
tsr_status tsr__validate_masks(tsr__problem *p, tsr_error *err);
tsr_status tsr__validate_quant(tsr__problem *p, tsr_error *err); /* fills k_group, v_group */
tsr_status tsr__validate_backward(tsr__problem *p, int need_outputs, tsr_error *err);
/* Axes of an aux tensor: up to the last whose extent is not 1, at least 1. */
int32_t tsr__aux_rank(const tsr_layout *layout);

/* tsr__problem_init for callers that bring their own outputs: none needs a layout; backward needs neither o nor lse
 * (both or none). */
tsr_status tsr__problem_init_inputs(const tsr__alloc *alloc, const tsr_attention_desc *desc, tsr__problem *p,
                                    tsr_error *err);

/* ---- Runs ------------------------------------------------------------------------------------ */

/* A buffer of a present tensor: offset, NULL only if the tensor has no element, aligned to align_bytes. */
tsr_status tsr__check_buffer(const tsr_buffer *b, const char *name, const tsr_layout *layout, int host, tsr_error *err);
/* A buffer whose layout is absent. */
tsr_status tsr__check_no_buffer(const tsr_buffer *b, const char *name, tsr_error *err);
tsr_status tsr__check_workspace(const tsr_buffer *workspace, int64_t have_bytes, int host, int64_t bytes, int64_t align,
                                tsr_error *err);
/* Queue and events are the device's business: all 0 on host memory. */
tsr_status tsr__check_queue(const void *queue, const void *const *wait_events, int64_t num_wait_events,
                            void *const *event, int host, tsr_error *err);

/* Element `index` of an i32 or i64 tensor. */
static inline int64_t tsr__index_at(const void *data, tsr_dtype dtype, int64_t index) {
  return dtype == TSR_I64 ? ((const int64_t *)data)[index] : ((const int32_t *)data)[index];
}

/* Extents that a run of this batch and these totals uses of a tensor. */
tsr_layout tsr__run_layout(const tsr__problem *p, const tsr_attn_args *args, int slot);

/* Lengths the host can read: the tensors on host memory, else the caller's host copies, whose dtype and stride are the
 * tensor's. NULL: absent. */
typedef struct tsr__tables {
  const void *cu_q, *cu_k, *len_q, *len_k;
} tsr__tables;
tsr_status tsr__check_lengths(const tsr__problem *p, const tsr_attn_args *args, const tsr__tables *tables,
                              tsr_error *err);
/* Starts at 0, never decreases, ends at most at total. */
tsr_status tsr__check_cu_seqlens(const void *cu, const tsr_layout *layout, const char *name, int64_t batch,
                                 int64_t total, tsr_error *err);
/* CSR lengths and the indices that masks are made of, on host memory; lengths are valid. */
tsr_status tsr__check_tables(const tsr__problem *p, const tsr__bound *bound, tsr_error *err);
/* Ids of the pages that hold keys of the run, on host memory; lengths and tables are valid. */
tsr_status tsr__check_pages(const tsr__problem *p, const tsr__bound *bound, tsr_error *err);
/* No output shares a byte with another tensor or the workspace, nor the workspace with an input. */
tsr_status tsr__check_overlap(const tsr__problem *p, const tsr__bound *bound, const tsr_buffer *workspace,
                              int64_t workspace_bytes, tsr_error *err);

/* 1 if the two tensors share a byte; 0 if not, or if that is too costly to find out. Interleaved tensors (q, k and v of
 * one buffer) do not overlap. */
int tsr__layouts_overlap(const tsr_layout *a, const void *a_data, const tsr_layout *b, const void *b_data);

#endif
