/* SPDX-License-Identifier: Apache-2.0 */
/* A run after validation: kernel arguments and pointers. */
#ifndef TSR_COMMON_BIND_H
#define TSR_COMMON_BIND_H

#include "common/problem.h"

typedef struct tsr__bound {
  tsr_attn_args args;
  tsr_attn_ptrs ptrs;        /* host memory only */
  void *ptr[TSR_SLOT_COUNT]; /* byte offsets applied for host memory; NULL: absent */
  void *workspace;
  tsr_expr_env env;     /* scalars and aux tensors; host memory only */
  tsr_run_stats *stats; /* the caller's, or NULL */
} tsr__bound;

/* Host memory: a buffer's address with its offset, NULL for NULL. */
static inline void *tsr__buffer_address(const tsr_buffer *b) {
  return b->ptr == NULL ? NULL : (unsigned char *)b->ptr + b->offset_bytes;
}

/* Fills strides and features of `args` that follow from the problem alone; lengths and scalars are for the maxima,
 * scale is 1/sqrt(D). Used for tile counts at plan time, and as the first half of tsr__bind. */
void tsr__bind_layout(const tsr__problem *p, tsr_attn_args *args);

/* Checks a run's arguments and fills *bound. host: tensors are host memory, so lengths, tables and indices are checked
 * by value, and pointers with offsets applied. workspace_bytes / align: what the plan needs. `validate`: also overlap
 * of outputs and promised alignment. Nothing is written but *bound. */
tsr_status tsr__bind(const tsr__problem *p, const tsr_run_args *args, int host, int validate, int64_t workspace_bytes,
                     int64_t workspace_align, tsr__bound *bound, tsr_error *err);

/* What tsr__tile_class needs and no more, on host memory: sizes, scalars, lengths, mask tensors, and with a mask
 * expression the aux tensors. Nothing else of args is looked at. */
tsr_status tsr__bind_tiles(const tsr__problem *p, const tsr_run_args *args, tsr__bound *bound, tsr_error *err);

#endif
