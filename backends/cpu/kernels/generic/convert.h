/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of any type as f32 vectors, and back. Exact for subnormals, infinities and NaN, as common/device/numeric.h.
 */
#ifndef TSR_CPU_CONVERT_H
#define TSR_CPU_CONVERT_H

#include <string.h>

#include "backends/cpu/kernels/generic/generic.h"
#include "backends/cpu/kernels/generic/vec.h"

static inline vu widen_u16(const void *p) {
  return __builtin_convertvector(*(const vu16 *)p, vu);
}
static inline vu widen_u8(const void *p) {
  return __builtin_convertvector(*(const vu8 *)p, vu);
}

static inline vf vf_from_f16(vu h) {
  const vi sign = (vi)((h & 0x8000u) << 16), em = (vi)((h & 0x7fffu) << 13);
  const vf subnormal = (vf)(em + 0x38800000) - (vf)vi_all(0x38800000); /* 2^-14 (1 + man) - 2^-14, exact */
  vi r = em + vi_select(em >= 0x0f800000, vi_all(0x70000000), vi_all(0x38000000));
  r = vi_select(em < 0x00800000, (vi)subnormal, r);
  return (vf)(r | sign);
}

static inline vf vf_from_f8e4m3(vu b) {
  const vi sign = (vi)((b & 0x80u) << 24), em = (vi)((b & 0x7fu) << 20);
  const vf subnormal = (vf)(em + 0x3c800000) - (vf)vi_all(0x3c800000);
  vi r = vi_select(em == 0x07f00000, vi_all(0x7fc00000), em + 0x3c000000);
  r = vi_select(em < 0x00800000, (vi)subnormal, r);
  return (vf)(r | sign);
}

static inline vf load_f16(const void *p) {
#if TSR_CPU_LANES == 16 && defined(__AVX512F__)
  return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif TSR_CPU_LANES == 8 && defined(__F16C__)
  return (vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
  return vf_from_f16(widen_u16(p));
#endif
}

/* Bytes of an element; TSR_U4 has none of its own. */
static inline int element_bytes(tsr_dtype t) {
  return t == TSR_F32 || t == TSR_I32 ? 4 : t == TSR_F16 || t == TSR_BF16 ? 2 : 1;
}

/* VL consecutive elements from p on; every type but TSR_U4. */
static inline vf vf_load_as(tsr_dtype t, const void *p) {
  switch (t) {
  case TSR_F32: return vf_load((const float *)p);
  case TSR_F16: return load_f16(p);
  case TSR_BF16: return (vf)(widen_u16(p) << 16);
  case TSR_F8E4M3: return vf_from_f8e4m3(widen_u8(p));
  case TSR_F8E5M2: return vf_from_f16(widen_u8(p) << 8);
  default: return __builtin_convertvector(__builtin_convertvector(*(const vs8 *)p, vi), vf); /* TSR_I8 */
  }
}

/* One element, by index. */
static inline float f32_at(tsr_dtype t, const void *base, tsr_i64 index) {
  const uint8_t *bytes = (const uint8_t *)base;
  uint16_t half;
  switch (t) {
  case TSR_F32: return ((const float *)base)[index];
  case TSR_F16: memcpy(&half, bytes + 2 * index, 2); return tsr_f16_to_f32(half);
  case TSR_BF16: memcpy(&half, bytes + 2 * index, 2); return tsr_bf16_to_f32(half);
  case TSR_F8E4M3: return tsr_f8e4m3_to_f32(bytes[index]);
  case TSR_F8E5M2: return tsr_f8e5m2_to_f32(bytes[index]);
  case TSR_U4: return (float)(bytes[index >> 1] >> ((index & 1) * 4) & 0xf);
  default: return (float)(int8_t)bytes[index];
  }
}

/* n consecutive 4-bit codes as f32, from an even index on. */
static inline void row_from_u4(const uint8_t *p, int n, float *dst) {
  for (int c = 0; c + 1 < n; c += 2) {
    dst[c] = (float)(p[c >> 1] & 0xf);
    dst[c + 1] = (float)(p[c >> 1] >> 4);
  }
  if (n & 1) {
    dst[n - 1] = (float)(p[n >> 1] & 0xf);
  }
}

/* n elements, `step` apart, as f32. */
static void row_to_f32(tsr_dtype t, const void *base, tsr_i64 index, tsr_i64 step, int n, float *dst) {
  int c = 0;
  if (step == 1 && t == TSR_U4 && (index & 1) == 0) {
    row_from_u4((const uint8_t *)base + (index >> 1), n, dst);
    return;
  }
  if (step == 1 && t != TSR_U4) {
    const char *p = (const char *)base + index * element_bytes(t);
    for (; c + VL <= n; c += VL) {
      vf_store(dst + c, vf_load_as(t, p + c * element_bytes(t)));
    }
  }
  for (; c < n; c++) {
    dst[c] = f32_at(t, base, index + c * step);
  }
}

/* ---- f32 to 16 bits --------------------------------------------------------------------------- */

static inline vu16 narrow_u32(vu x) {
  return __builtin_convertvector(x, vu16);
}

static inline vu16 vf_to_bf16(vf f) {
  const vu u = (vu)f;
  const vi nan = (vi)(u & 0x7fffffffu) > 0x7f800000;
  const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return narrow_u32((vu)vi_select(nan, (vi)((u >> 16) | 0x40u), (vi)rounded));
}

static inline vu16 vf_to_f16(vf f) {
#if TSR_CPU_LANES == 16 && defined(__AVX512F__)
  vu16 r;
  const __m256i h = _mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  memcpy(&r, &h, sizeof(r));
  return r;
#elif TSR_CPU_LANES == 8 && defined(__F16C__)
  vu16 r;
  const __m128i h = _mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
  memcpy(&r, &h, sizeof(r));
  return r;
#else
  const vu u = (vu)f, sign = (u >> 16) & 0x8000u;
  const vi a = (vi)(u & 0x7fffffffu);
  const vi subnormal = (vi)((vf)a + 0.5f) - 0x3f000000; /* adding 1/2 leaves round(a 2^24) in the low bits */
  const vu normal = ((vu)a - 0x38000000u + 0xfffu + (((vu)a >> 13) & 1u)) >> 13;
  vi r = vi_select(a < 0x38800000, subnormal, (vi)normal);
  r = vi_select(a >= 0x477ff000, vi_all(0x7c00), r);
  r = vi_select(a > 0x7f800000, vi_all(0x7e00), r);
  return narrow_u32((vu)r | sign);
#endif
}

/* VL consecutive elements of an output type: f32, f16 or bf16. */
static inline void vf_store_as(tsr_dtype t, void *p, vf x) {
  switch (t) {
  case TSR_F16: *(vu16 *)p = vf_to_f16(x); break;
  case TSR_BF16: *(vu16 *)p = vf_to_bf16(x); break;
  default: vf_store((float *)p, x);
  }
}

static inline void f32_store_as(tsr_dtype t, void *base, tsr_i64 index, float x) {
  const uint16_t half = (uint16_t)(t == TSR_F16 ? tsr_f32_to_f16(x) : tsr_f32_to_bf16(x));
  if (t == TSR_F32) {
    ((float *)base)[index] = x;
  } else {
    memcpy((char *)base + 2 * index, &half, 2);
  }
}

#endif
