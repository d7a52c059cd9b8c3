/* SPDX-License-Identifier: Apache-2.0 */
/* Expressions as functions in the dialect of common/device, written from the node array alone: nothing of the caller's
 * text appears. */
#ifndef TSR_COMMON_EXPR_EMIT_H
#define TSR_COMMON_EXPR_EMIT_H

#include "common/expr.h"

/* The text of one function, which reads after common/device/expr.h:
 *   SCORE       float tsr_expr_score(x, p, score, b, h, hkv, i, j, q_len, kv_len, off)
 *   DERIVATIVE  float tsr_expr_grad(x, p, score, b, h, hkv, i, j, q_len, kv_len, off)
 *   MASK        int tsr_expr_mask(x, p, b, h, hkv, i, j, q_len, kv_len, off): 1 allowed, 0 not
 * with const tsr_expr_args *x, const tsr_expr_ptrs *p, float score, tsr_i32 h and hkv, all others tsr_i64. Equal
 * expressions (tsr__expr_equal) give equal texts. Values are those of tsr__expr_eval: bit for bit but for functions of
 * the C library, and for f32 division and subnormals where the device's are not IEEE. The caller frees *out with
 * tsr__alloc_free; it is NULL after an error. Errors: TSR_OUT_OF_MEMORY. Thread-safety: any thread. */
tsr_status tsr__expr_emit(const tsr__alloc *alloc, const tsr_expr *expr, char **out, tsr_error *err);

#endif
