/* SPDX-License-Identifier: Apache-2.0 */
/* What functions emitted from expressions call (common/expr_emit.h); their meaning is that of tessera/expression.h.
 * Reads after gpu_args.h, and before those functions. */
#ifndef TSR_DEVICE_EXPR_H
#define TSR_DEVICE_EXPR_H

/* Aux tensors as they were bound; tsr_expr_args has their byte offsets, shapes and strides. */
typedef struct tsr_expr_ptrs {
  TSR_GLOBAL const void *aux[TSR_ARGS_AUX];
} tsr_expr_ptrs;

/* + - * and negation modulo 2^64. */
TSR_FN tsr_i64 tsr_expr_add(tsr_i64 x, tsr_i64 y) {
  return (tsr_i64)((tsr_u64)x + (tsr_u64)y);
}
TSR_FN tsr_i64 tsr_expr_sub(tsr_i64 x, tsr_i64 y) {
  return (tsr_i64)((tsr_u64)x - (tsr_u64)y);
}
TSR_FN tsr_i64 tsr_expr_mul(tsr_i64 x, tsr_i64 y) {
  return (tsr_i64)((tsr_u64)x * (tsr_u64)y);
}

/* Rounds toward minus infinity; x / 0 = 0; the one quotient that does not fit wraps. */
TSR_FN tsr_i64 tsr_expr_div(tsr_i64 x, tsr_i64 y) {
  if (y == 0) {
    return 0;
  }
  if (y == -1) {
    return tsr_expr_sub(0, x);
  }
  return x / y - (tsr_i64)(x % y != 0 && (x < 0) != (y < 0));
}

/* The sign of y; x % 0 = 0. */
TSR_FN tsr_i64 tsr_expr_mod(tsr_i64 x, tsr_i64 y) {
  tsr_i64 rest;
  if (y == 0 || y == -1) {
    return 0;
  }
  rest = x % y;
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

/* Toward zero, saturating; NaN gives 0. */
TSR_FN tsr_i64 tsr_expr_int(float x) {
  if (x >= tsr_as_f32(0x5f000000u)) { /* 2^63 */
    return (tsr_i64)0x7fffffffffffffff;
  }
  if (x >= tsr_as_f32(0xdf000000u)) {
    return (tsr_i64)x;
  }
  return x != x ? 0 : (tsr_i64)0x8000000000000000;
}

/* x at ties, NaN if either is. */
TSR_FN float tsr_expr_min(float x, float y) {
  return y < x || y != y ? y : x;
}
TSR_FN float tsr_expr_max(float x, float y) {
  return y > x || y != y ? y : x;
}

/* Elements from the first one of tensor t, of `rank` axes; -1 outside. Strides are not negative. */
TSR_FN tsr_i64 tsr_expr_at(const tsr_expr_args *x, int t, int rank, tsr_i64 i0, tsr_i64 i1, tsr_i64 i2, tsr_i64 i3) {
  tsr_i64 at = 0;
  if (i0 < 0 || i0 >= x->aux[t].shape[0] || (rank > 1 && (i1 < 0 || i1 >= x->aux[t].shape[1])) ||
      (rank > 2 && (i2 < 0 || i2 >= x->aux[t].shape[2])) || (rank > 3 && (i3 < 0 || i3 >= x->aux[t].shape[3]))) {
    return -1;
  }
  at += i0 * x->aux[t].stride[0];
  at += rank > 1 ? i1 * x->aux[t].stride[1] : 0;
  at += rank > 2 ? i2 * x->aux[t].stride[2] : 0;
  at += rank > 3 ? i3 * x->aux[t].stride[3] : 0;
  return at;
}

/* An element; 0 outside. */
TSR_FN float tsr_expr_aux_f32(const tsr_expr_args *x, const tsr_expr_ptrs *p, int t, int rank, tsr_i64 i0, tsr_i64 i1,
                              tsr_i64 i2, tsr_i64 i3) {
  const tsr_i64 at = tsr_expr_at(x, t, rank, i0, i1, i2, i3);
  TSR_GLOBAL const tsr_u8 *base = (TSR_GLOBAL const tsr_u8 *)p->aux[t] + x->aux[t].offset_bytes;
  return at < 0 ? 0.0f : ((TSR_GLOBAL const float *)base)[at];
}
TSR_FN tsr_i64 tsr_expr_aux_i32(const tsr_expr_args *x, const tsr_expr_ptrs *p, int t, int rank, tsr_i64 i0, tsr_i64 i1,
                                tsr_i64 i2, tsr_i64 i3) {
  const tsr_i64 at = tsr_expr_at(x, t, rank, i0, i1, i2, i3);
  TSR_GLOBAL const tsr_u8 *base = (TSR_GLOBAL const tsr_u8 *)p->aux[t] + x->aux[t].offset_bytes;
  return at < 0 ? 0 : (tsr_i64)((TSR_GLOBAL const tsr_i32 *)base)[at];
}

#endif
