/* SPDX-License-Identifier: Apache-2.0 */
/* A description after validation: what every later stage may rely on. Made in one place (problem.c and the validate_*.c
 * files), never changed after. Back ends and kernels read this, never the caller's structs. */
#ifndef TSR_COMMON_PROBLEM_H
#define TSR_COMMON_PROBLEM_H

#include "common/alloc.h"
#include "common/expr.h"
#include "common/kernel.h"
#include "common/slots.h"
#include "common/status.h"
#include "tessera/tessera.h"

typedef struct tsr__problem {
  tsr_attention_desc desc; /* full size, strings NULL (see below), sizes filled in, strides of extent-1 axes 0,
                              align_bytes at least the element size */
  uint64_t present;        /* bit per slot that has a layout (aux included) */
  int64_t batch, seqlen_q, seqlen_k;       /* maxima */
  int64_t total_q, total_k;                /* packed tokens; dense: 0 */
  int64_t page_size, max_pages, num_pages; /* paged, else 0 */
  int32_t heads_q, heads_kv, group, head_dim, head_dim_v;
  uint32_t features;                             /* TSR_A_* without the value-dependent ones */
  tsr_dtype len_dtype;                           /* of lengths; TSR_I32 when there are none */
  int32_t k_group, v_group;                      /* channels that share a quantisation scale; 0: not quantised */
  tsr_expr *score_expr, *score_grad, *mask_expr; /* NULL: none; score_grad only for backward */
  const tsr__alloc *alloc;
} tsr__problem;

static inline int tsr__problem_has(const tsr__problem *p, int slot) {
  return (int)(p->present >> slot & 1);
}

/* Validates and resolves. alloc must outlive the problem. On failure nothing is left to free. */
tsr_status tsr__problem_init(const tsr__alloc *alloc, const tsr_attention_desc *desc, tsr__problem *p, tsr_error *err);
void tsr__problem_free(tsr__problem *p);

/* Is `size` what a caller's struct may say, where this version's is `own` bytes, and it never had fewer? */
int tsr__struct_size_ok(size_t size, size_t own);

/* Copies a caller's sized struct into `dst` of dst_size bytes, checking the growth rule (base.h): NULL, a size that no
 * version of the struct has, and an unknown non-zero tail are TSR_INVALID. `what` names the struct. earlier_size: what
 * the struct had before it grew, 0 if it never did; what such a caller does not know is 0. */
tsr_status tsr__struct_import(void *dst, size_t dst_size, size_t earlier_size, const void *src, const char *what,
                              tsr_error *err);

/* Copies `from` over a caller's sized output struct of to_size bytes, whose size field stays; what it has more is
 * zeroed. Errors: TSR_INVALID (to_size, by the growth rule). */
tsr_status tsr__struct_export(void *to, size_t to_size, const void *from, size_t from_size, tsr_error *err);

/* Rules that any layout obeys: known dtype, extents >= 0, strides >= 0, byte span without overflow, alignment. Outputs
 * also: no stride 0 on an axis longer than 1, no element twice. */
tsr_status tsr__layout_check(const tsr_layout *layout, const char *field, int is_output, tsr_error *err);
/* Bytes from the first to past the last element; 0 for an empty tensor. The layout is valid. */
int64_t tsr__layout_span_bytes(const tsr_layout *layout);

#endif
