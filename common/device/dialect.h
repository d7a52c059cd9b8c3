/* SPDX-License-Identifier: Apache-2.0 */
/* The dialect of common/device: the intersection of C99, C++11 and OpenCL C 1.2. Files in this folder include nothing
 * (a kernel text is the concatenation of those it needs, dialect.h first) and name the address space of every pointer.
 * Host C reads them through common/kernel.h. */
#ifndef TSR_DEVICE_DIALECT_H
#define TSR_DEVICE_DIALECT_H

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
#pragma OPENCL FP_CONTRACT OFF
typedef char tsr_i8;
typedef uchar tsr_u8;
typedef ushort tsr_u16;
typedef int tsr_i32;
typedef uint tsr_u32;
typedef long tsr_i64;
typedef ulong tsr_u64;
#define TSR_FN static inline
#define TSR_GLOBAL __global
#define TSR_LOCAL __local
#define TSR_CONSTANT __constant
#define TSR_INF ((float)HUGE_VALF)
#define tsr_as_f32(u) as_float(u)
#define tsr_as_u32(f) as_uint(f)
#define tsr_exp(x) exp(x)
#define tsr_log(x) log(x)
#define tsr_tanh(x) tanh(x)
#define tsr_mul_hi(a, b) mul_hi((tsr_u32)(a), (tsr_u32)(b))
#define tsr_fma(a, b, c) fma(a, b, c)
#define tsr_exp2(x) exp2(x)
#define tsr_rint(x) rint(x)
#define tsr_log2(x) log2(x)
#define tsr_sqrt(x) sqrt(x)
#define tsr_sin(x) sin(x)
#define tsr_cos(x) cos(x)
#define tsr_floor(x) floor(x)
#define tsr_abs(x) fabs(x)
#define tsr_pow(x, y) pow(x, y)
#define tsr_fmax(a, b) fmax(a, b)
typedef float4 tsr_f4;
#else
typedef signed char tsr_i8;
typedef unsigned char tsr_u8;
typedef unsigned short tsr_u16;
typedef int tsr_i32;
typedef unsigned int tsr_u32;
typedef long long tsr_i64;
typedef unsigned long long tsr_u64;
#if defined(__CUDACC__) || defined(__HIP__)
#define TSR_FN static __device__ __forceinline__
#define TSR_CONSTANT static __device__ const
#else
#define TSR_FN static inline
#define TSR_CONSTANT static const
#endif
#define TSR_GLOBAL
#define TSR_LOCAL
#define TSR_INF tsr_as_f32(0x7f800000u)
#define tsr_exp(x) expf(x)
#define tsr_log(x) logf(x)
#define tsr_tanh(x) tanhf(x)
#define tsr_mul_hi(a, b) ((tsr_u32)(((tsr_u64)(a) * (b)) >> 32))
#define tsr_fma(a, b, c) fmaf(a, b, c)
#define tsr_exp2(x) exp2f(x)
#define tsr_rint(x) rintf(x)
#define tsr_log2(x) log2f(x)
#define tsr_sqrt(x) sqrtf(x)
#define tsr_sin(x) sinf(x)
#define tsr_cos(x) cosf(x)
#define tsr_floor(x) floorf(x)
#define tsr_abs(x) fabsf(x)
#define tsr_pow(x, y) powf(x, y)
#define tsr_fmax(a, b) fmaxf(a, b)
TSR_FN float tsr_as_f32(tsr_u32 u) {
  union {
    tsr_u32 u;
    float f;
  } x;
  x.u = u;
  return x.f;
}
TSR_FN tsr_u32 tsr_as_u32(float f) {
  union {
    tsr_u32 u;
    float f;
  } x;
  x.f = f;
  return x.u;
}
#endif

/* Arithmetic that is rounded once each, never fused: where the compiler knows no pragma for that (else see
 * common/expr_emit.c), by its intrinsics. */
#if defined(__CUDACC__) && !defined(__clang__)
#define tsr_f32_add(x, y) __fadd_rn(x, y)
#define tsr_f32_sub(x, y) __fsub_rn(x, y)
#define tsr_f32_mul(x, y) __fmul_rn(x, y)
#define tsr_f32_div(x, y) __fdiv_rn(x, y)
#else
#define tsr_f32_add(x, y) ((x) + (y))
#define tsr_f32_sub(x, y) ((x) - (y))
#define tsr_f32_mul(x, y) ((x) * (y))
#define tsr_f32_div(x, y) ((x) / (y))
#endif

TSR_FN tsr_i64 tsr_min_i64(tsr_i64 a, tsr_i64 b) {
  return a < b ? a : b;
}
TSR_FN tsr_i64 tsr_max_i64(tsr_i64 a, tsr_i64 b) {
  return a > b ? a : b;
}
/* Floor division, d > 0: chunks of negative positions. */
TSR_FN tsr_i64 tsr_floor_div(tsr_i64 n, tsr_i64 d) {
  return n >= 0 ? n / d : -((d - 1 - n) / d);
}

#endif
