/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of TSR_CPU_LANES f32 or 32-bit integers, in GNU C: arithmetic and comparisons are the language's; here is
 * what it lacks. Vectors may lie at any address that an element may. a * b + c is one rounding where the level has FMA
 * (these files are compiled with -ffp-contract=fast). */
#ifndef TSR_CPU_VEC_H
#define TSR_CPU_VEC_H

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define VL TSR_CPU_LANES

/* Before a short loop of constant length over vectors: they stay in registers only if it is unrolled whole. */
#if defined(__clang__)
#define TSR_CPU_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TSR_CPU_UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(4 * VL), aligned(4), may_alias));
typedef uint16_t vu16 __attribute__((vector_size(2 * VL), aligned(1), may_alias));
typedef uint8_t vu8 __attribute__((vector_size(VL), aligned(1), may_alias));
typedef int8_t vs8 __attribute__((vector_size(VL), aligned(1), may_alias));

#if TSR_CPU_LANES == 16
#define TSR_CPU_ALL(x) \
  { x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x }
#elif TSR_CPU_LANES == 8
#define TSR_CPU_ALL(x) \
  { x, x, x, x, x, x, x, x }
#else
#define TSR_CPU_ALL(x) \
  { x, x, x, x }
#endif

static inline vf vf_all(float x) {
  return (vf)TSR_CPU_ALL(x);
}
static inline vi vi_all(int32_t x) {
  return (vi)TSR_CPU_ALL(x);
}
static inline vu vu_all(uint32_t x) {
  return (vu)TSR_CPU_ALL(x);
}
static inline vf vf_load(const float *p) {
  return *(const vf *)p;
}
static inline void vf_store(float *p, vf x) {
  *(vf *)p = x;
}
static inline vi vi_load(const int32_t *p) {
  return *(const vi *)p;
}

/* mask ? a : b, lane by lane; mask is a comparison's result (all bits or none). */
static inline vf vf_select(vi mask, vf a, vf b) {
  return (vf)((mask & (vi)a) | (~mask & (vi)b));
}
static inline vi vi_select(vi mask, vi a, vi b) {
  return (mask & a) | (~mask & b);
}
static inline vf vf_abs(vf x) {
  return (vf)((vi)x & 0x7fffffff);
}

/* The larger; where either is NaN, b or NaN. So vf_max(limit, x) keeps a NaN in x. */
static inline vf vf_max(vf a, vf b) {
#if TSR_CPU_LANES == 16 && defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif TSR_CPU_LANES == 8 && defined(__AVX__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif TSR_CPU_LANES == 4 && defined(__SSE__)
  return (vf)_mm_max_ps((__m128)a, (__m128)b);
#elif TSR_CPU_LANES == 4 && defined(__aarch64__)
  return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
  return vf_select(a > b, a, b);
#endif
}

/* a * b + c in one rounding where the level has FMA, for values that depend on it: compilers need not fuse a product
 * that is used twice. */
static inline vf vf_fma(vf a, vf b, vf c) {
#if TSR_CPU_LANES == 16 && defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif TSR_CPU_LANES == 8 && defined(__FMA__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif TSR_CPU_LANES == 4 && defined(__aarch64__)
  return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

/* Bits of a lane mask: is any lane set? */
static inline int vi_any(vi mask) {
  int32_t any = 0;
  for (int l = 0; l < VL; l++) {
    any |= mask[l];
  }
  return any != 0;
}

/* ---- Transposition --------------------------------------------------------------------------- */

/* One step of a transposition: exchanges the off-diagonal blocks of two rows, blocks of `half` lanes. */
#if TSR_CPU_LANES == 16
#define TSR_CPU_SWAP(a, b, half)                                                                                    \
  do {                                                                                                              \
    const vf lo_ =                                                                                                  \
        (half) == 8   ? __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)       \
        : (half) == 4 ? __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)     \
        : (half) == 2 ? __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)     \
                      : __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30);   \
    const vf hi_ =                                                                                                  \
        (half) == 8   ? __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31) \
        : (half) == 4 ? __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)   \
        : (half) == 2 ? __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)   \
                      : __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);   \
    a = lo_;                                                                                                        \
    b = hi_;                                                                                                        \
  } while (0)
#elif TSR_CPU_LANES == 8
#define TSR_CPU_SWAP(a, b, half)                                                             \
  do {                                                                                       \
    const vf lo_ = (half) == 4   ? __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)   \
                   : (half) == 2 ? __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)   \
                                 : __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14); \
    const vf hi_ = (half) == 4   ? __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15) \
                   : (half) == 2 ? __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15) \
                                 : __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15); \
    a = lo_;                                                                                 \
    b = hi_;                                                                                 \
  } while (0)
#else
#define TSR_CPU_SWAP(a, b, half)                                                                             \
  do {                                                                                                       \
    const vf lo_ =                                                                                           \
        (half) == 2 ? __builtin_shufflevector(a, b, 0, 1, 4, 5) : __builtin_shufflevector(a, b, 0, 4, 2, 6); \
    const vf hi_ =                                                                                           \
        (half) == 2 ? __builtin_shufflevector(a, b, 2, 3, 6, 7) : __builtin_shufflevector(a, b, 1, 5, 3, 7); \
    a = lo_;                                                                                                 \
    b = hi_;                                                                                                 \
  } while (0)
#endif

/* Transposes VL vectors of VL lanes in place. */
static inline void vf_transpose(vf m[VL]) {
#if TSR_CPU_LANES == 16
  TSR_CPU_UNROLL
  for (int i = 0; i < 8; i++) {
    TSR_CPU_SWAP(m[i], m[i + 8], 8);
  }
#endif
#if TSR_CPU_LANES >= 8
  TSR_CPU_UNROLL
  for (int i = 0; i < VL; i++) {
    if ((i & 4) == 0) {
      TSR_CPU_SWAP(m[i], m[i + 4], 4);
    }
  }
#endif
  TSR_CPU_UNROLL
  for (int i = 0; i < VL; i++) {
    if ((i & 2) == 0) {
      TSR_CPU_SWAP(m[i], m[i + 2], 2);
    }
  }
  TSR_CPU_UNROLL
  for (int i = 0; i < VL; i++) {
    if ((i & 1) == 0) {
      TSR_CPU_SWAP(m[i], m[i + 1], 1);
    }
  }
}

#endif
