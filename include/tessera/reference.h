/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: attention in float64 by the definition, untiled, single-threaded and slow; to check results against.
 *
 * It shares no code with the kernels (masks, Philox, dequantisation, rotary and expressions are written a second time).
 */
#ifndef TESSERA_REFERENCE_H
#define TESSERA_REFERENCE_H

#include "tessera/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  TSR_REFERENCE_F64 = 0,  /* everything in float64 */
  TSR_REFERENCE_PLAIN = 1 /* what a straightforward implementation in the input dtype gives, the yardstick of the
                             tolerance rule: products accumulated in f32, S rounded to the input dtype, softmax in f32,
                             P rounded to the input dtype (fp8 q: to f8e4m3 after x256), PV in f32, output rounded;
                             quantised K/V dequantised in f32 first. Backward likewise. */
};

/* Where results go: float64, contiguous in the order of the layout's shape (o: [b][s][h][d], lse: [b][h][s], ...).
 * Rows outside the used lengths are left as they are. NULL: not wanted; no output needs a layout in the description. */
typedef struct tsr_reference_out {
  size_t size;
  int32_t mode;        /* TSR_REFERENCE_* */
  int32_t reserved;    /* 0 */
  const int64_t *rows; /* forward: evaluate only these query rows (local i), NULL: all */
  int64_t num_rows;
  double *o;     /* q.shape with Dv */
  double *lse;   /* [B,Hq,Sq], packed [Hq,T] */
  double *max_s; /* [Hq] */
  double *dq, *dk, *dv;
  double *dbias;         /* bias.shape */
  double *dsink;         /* [Hq] */
  uint8_t *dropout_mask; /* [B,Hq,max Sq,max Sk] */
} tsr_reference_out;

static inline tsr_reference_out tsr_reference_out_init(void) {
  tsr_reference_out r;
  memset(&r, 0, sizeof(r));
  r.size = sizeof(r);
  return r;
}

/* Evaluates a description on host memory. desc.op BACKWARD: gradients, from args.o and args.lse where their buffers are
 * given, else from the oracle's own. Output buffers in args are ignored. Errors: as tsr_plan_attention and
 * tsr_run_attention; TSR_CANCELLED. context NULL: default hooks. Thread-safety: any thread. */
TSR_API tsr_status tsr_reference_attention(tsr_context *context, const tsr_attention_desc *desc,
                                           const tsr_run_args *args, const tsr_reference_out *out, tsr_error *err);

/* merge: o [B,S,Hq,Dv], lse [B,Hq,S] (NULL: not wanted), float64, contiguous. args as of a run; nothing is written to
 * its buffers. Errors: as tsr_plan_merge and tsr_run_merge. */
TSR_API tsr_status tsr_reference_merge(const tsr_merge_desc *desc, const tsr_merge_args *args, double *o, double *lse,
                                       tsr_error *err);

/* append, onto args' own buffers: the exact bytes that the rules of cache.h give. Errors: as tsr_plan_append and
 * tsr_run_append. */
TSR_API tsr_status tsr_reference_append(const tsr_append_desc *desc, const tsr_append_args *args, tsr_error *err);

/* One element of a layout's memory as float64 (f32, f16, bf16, fp8, i8, u4, u8, i32, i64), at a linear element index;
 * and back, rounding to nearest even (fp8 and integers saturate; a NaN is 0 in integers). 0 / nothing for other dtypes
 * and where data is NULL. */
TSR_API double tsr_decode(tsr_dtype dtype, const void *data, int64_t index);
TSR_API void tsr_encode(tsr_dtype dtype, void *data, int64_t index, double value);

#ifdef __cplusplus
}
#endif
#endif
