/* SPDX-License-Identifier: Apache-2.0 */
/* 16- and 8-bit floats as bit types: exact conversions, subnormals and NaN included; never arithmetic on them. */
#ifndef TSR_DEVICE_NUMERIC_H
#define TSR_DEVICE_NUMERIC_H

/* To fewer bits: nearest, ties to even; a NaN becomes the type's quiet NaN with its sign. What is too large becomes
 * infinity in f16 and bf16, and the largest finite value in fp8. Bit for bit what common/dtype.c gives. */

#if defined(__CUDACC__)
TSR_FN float tsr_f16_to_f32(tsr_u32 h) { /* one instruction, exact */
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((tsr_u16)h));
  return f;
}
#elif defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
TSR_FN float tsr_f16_to_f32(tsr_u32 h) {
  const tsr_u16 bits = (tsr_u16)h;
  return vload_half(0, (const half *)&bits);
}
#else
TSR_FN float tsr_f16_to_f32(tsr_u32 h) {
  const tsr_u32 sign = (h & 0x8000u) << 16;
  const tsr_u32 em = (h & 0x7fffu) << 13;
  if (em >= 0x0f800000u) { /* inf, NaN */
    return tsr_as_f32(sign | (em + 0x70000000u));
  }
  if (em < 0x00800000u) { /* subnormal: 2^-14 * (1 + man) - 2^-14, exact */
    return tsr_as_f32(sign | tsr_as_u32(tsr_as_f32(em + 0x38800000u) - tsr_as_f32(0x38800000u)));
  }
  return tsr_as_f32(sign | (em + 0x38000000u));
}
#endif

TSR_FN tsr_u32 tsr_f32_to_f16(float f) {
  const tsr_u32 u = tsr_as_u32(f);
  const tsr_u32 sign = (u >> 16) & 0x8000u;
  const tsr_u32 a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {
    return sign | 0x7e00u;
  }
  if (a >= 0x477ff000u) { /* 65520 and above round to infinity */
    return sign | 0x7c00u;
  }
  if (a < 0x38800000u) { /* subnormal result: adding 1/2 leaves round(a 2^24) in the low bits */
    return sign | (tsr_as_u32(tsr_as_f32(a) + 0.5f) - 0x3f000000u);
  }
  return sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13);
}

TSR_FN float tsr_bf16_to_f32(tsr_u32 h) {
  return tsr_as_f32(h << 16);
}

TSR_FN tsr_u32 tsr_f32_to_bf16(float f) {
  const tsr_u32 u = tsr_as_u32(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    return ((u >> 16) & 0x8000u) | 0x7fc0u;
  }
  return (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
}

TSR_FN float tsr_f8e5m2_to_f32(tsr_u32 b) {
  return tsr_f16_to_f32(b << 8);
}

TSR_FN float tsr_f8e4m3_to_f32(tsr_u32 b) {
  const tsr_u32 sign = (b & 0x80u) << 24;
  const tsr_u32 em = (b & 0x7fu) << 20;
  if (em == 0x07f00000u) {
    return tsr_as_f32(sign | 0x7fc00000u);
  }
  if (em < 0x00800000u) { /* subnormal: 2^-6 (1 + man) - 2^-6 */
    return tsr_as_f32(sign | tsr_as_u32(tsr_as_f32(em + 0x3c800000u) - tsr_as_f32(0x3c800000u)));
  }
  return tsr_as_f32(sign | (em + 0x3c000000u));
}

TSR_FN tsr_u32 tsr_f32_to_f8e4m3(float f) {
  const tsr_u32 u = tsr_as_u32(f);
  const tsr_u32 sign = (u >> 24) & 0x80u;
  const tsr_u32 a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {
    return sign | 0x7fu;
  }
  if (a >= 0x43e00000u) { /* 448 and above saturate */
    return sign | 0x7eu;
  }
  if (a < 0x3c800000u) { /* below 2^-6: adding 2^14 leaves round(a 2^9) in the low bits */
    return sign | (tsr_as_u32(tsr_as_f32(a) + 16384.0f) - 0x46800000u);
  }
  return sign | ((a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20);
}

TSR_FN tsr_u32 tsr_f32_to_f8e5m2(float f) {
  const tsr_u32 u = tsr_as_u32(f);
  const tsr_u32 sign = (u >> 24) & 0x80u;
  const tsr_u32 a = u & 0x7fffffffu;
  if (a > 0x7f800000u) {
    return sign | 0x7eu;
  }
  if (a >= 0x47600000u) { /* 57344 and above saturate */
    return sign | 0x7bu;
  }
  if (a < 0x38800000u) { /* below 2^-14: adding 2^7 leaves round(a 2^16) in the low bits */
    return sign | (tsr_as_u32(tsr_as_f32(a) + 128.0f) - 0x43000000u);
  }
  return sign | ((a - 0x38000000u + 0xfffffu + ((a >> 21) & 1u)) >> 21);
}

#endif
