/* SPDX-License-Identifier: Apache-2.0 */
/* Append and merge after validation. */
#ifndef TSR_COMMON_CACHE_OPS_H
#define TSR_COMMON_CACHE_OPS_H

#include "common/problem.h"

typedef struct tsr__append_problem {
  tsr_append_desc desc; /* full size, variant NULL, defaults filled in (batch, max_seqlen_new, rotary_dim) */
  int64_t batch, seqlen_new, total_new; /* total_new: packed tokens, else 0 */
  int64_t capacity;                     /* keys a sequence can hold: Smax, or max_pages * page_size */
  int64_t page_size;                    /* 0: dense */
  int32_t heads_q, heads_kv, head_dim, head_dim_v;
  int32_t k_group, v_group; /* channels a scale covers; 0: cache not quantised */
  tsr_dtype len_dtype;
} tsr__append_problem;

typedef struct tsr__merge_problem {
  tsr_merge_desc desc; /* full size, variant NULL */
} tsr__merge_problem;

tsr_status tsr__append_init(const tsr_append_desc *desc, tsr__append_problem *p, tsr_error *err);
tsr_status tsr__merge_init(const tsr_merge_desc *desc, tsr__merge_problem *p, tsr_error *err);

/* Checks arguments of a run and imports them at full size; on host memory lengths, capacity, tables and positions by
 * value. host, validate, workspace_bytes / align: as in tsr__bind; validate also finds two new rows that go to one. */
tsr_status tsr__append_bind(const tsr__append_problem *p, const tsr_append_args *args, int host, int validate,
                            int64_t workspace_bytes, int64_t workspace_align, tsr_append_args *out, tsr_error *err);
tsr_status tsr__merge_bind(const tsr__merge_problem *p, const tsr_merge_args *args, int host, int validate,
                           int64_t workspace_bytes, int64_t workspace_align, tsr_merge_args *out, tsr_error *err);

#endif
