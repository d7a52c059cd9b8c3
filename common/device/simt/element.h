/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of tensors at the edge of a kernel: everything inside is f32. `type` is TSR_T_*; a literal folds, a run-time
 * value is one switch that is the same for a whole launch. */
#ifndef TSR_DEVICE_SIMT_ELEMENT_H
#define TSR_DEVICE_SIMT_ELEMENT_H

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
typedef uint4 tsr_u32x4;
typedef uint2 tsr_u32x2;
#else
typedef struct __attribute__((aligned(16))) tsr_u32x4 {
  tsr_u32 x, y, z, w;
} tsr_u32x4;
typedef struct __attribute__((aligned(8))) tsr_u32x2 {
  tsr_u32 x, y;
} tsr_u32x2;
#endif

/* One byte of fp8 or int8. */
TSR_FN float tsr_byte_to_f32(tsr_u32 b, int type) {
  return type == TSR_T_F8E4M3   ? tsr_f8e4m3_to_f32(b)
         : type == TSR_T_F8E5M2 ? tsr_f8e5m2_to_f32(b)
                                : (float)((tsr_i32)(b ^ 0x80u) - 128);
}

/* 16 bits of f16 or bf16. */
TSR_FN float tsr_word_to_f32(tsr_u32 h, int type) {
  return type == TSR_T_F16 ? tsr_f16_to_f32(h) : tsr_bf16_to_f32(h);
}

/* Element `index`. TSR_T_U4: codes, an even index in the low half of its byte. */
TSR_FN float tsr_load(TSR_GLOBAL const void *p, int type, tsr_i64 index) {
  if (type == TSR_T_F32) {
    return ((TSR_GLOBAL const float *)p)[index];
  }
  if (type == TSR_T_F16 || type == TSR_T_BF16) {
    return tsr_word_to_f32(((TSR_GLOBAL const tsr_u16 *)p)[index], type);
  }
  if (type == TSR_T_U4) {
    return (float)((((TSR_GLOBAL const tsr_u8 *)p)[index >> 1] >> ((tsr_u32)(index & 1) * 4u)) & 0xfu);
  }
  return tsr_byte_to_f32(((TSR_GLOBAL const tsr_u8 *)p)[index], type);
}

/* Writes element `index`, rounded once: f32, f16, bf16, fp8. */
TSR_FN void tsr_store(TSR_GLOBAL void *p, int type, tsr_i64 index, float x) {
  if (type == TSR_T_F32) {
    ((TSR_GLOBAL float *)p)[index] = x;
  } else if (type == TSR_T_F16 || type == TSR_T_BF16) {
    ((TSR_GLOBAL tsr_u16 *)p)[index] = (tsr_u16)(type == TSR_T_F16 ? tsr_f32_to_f16(x) : tsr_f32_to_bf16(x));
  } else {
    ((TSR_GLOBAL tsr_u8 *)p)[index] = (tsr_u8)(type == TSR_T_F8E4M3 ? tsr_f32_to_f8e4m3(x) : tsr_f32_to_f8e5m2(x));
  }
}

TSR_FN void tsr_pair_to_f32(tsr_u32 w, int type, float *lo, float *hi) {
  *lo = tsr_word_to_f32(w & 0xffffu, type);
  *hi = tsr_word_to_f32(w >> 16, type);
}

TSR_FN void tsr_quad_to_f32(tsr_u32 w, int type, float *out) {
  out[0] = tsr_byte_to_f32(w & 0xffu, type);
  out[1] = tsr_byte_to_f32((w >> 8) & 0xffu, type);
  out[2] = tsr_byte_to_f32((w >> 16) & 0xffu, type);
  out[3] = tsr_byte_to_f32(w >> 24, type);
}

/* Elements index .. index + 7, with the widest loads there are. The row begins on 16 bytes (f8, int8: 8; u4: 4 would
 * do), index is a multiple of 8 from there. */
TSR_FN void tsr_load8(TSR_GLOBAL const void *p, int type, tsr_i64 index, float out[8]) {
  if (type == TSR_T_F32) {
    TSR_GLOBAL const tsr_f4 *at = (TSR_GLOBAL const tsr_f4 *)((TSR_GLOBAL const float *)p + index);
    const tsr_f4 a = at[0], b = at[1];
    out[0] = a.x;
    out[1] = a.y;
    out[2] = a.z;
    out[3] = a.w;
    out[4] = b.x;
    out[5] = b.y;
    out[6] = b.z;
    out[7] = b.w;
  } else if (type == TSR_T_F16 || type == TSR_T_BF16) {
    const tsr_u32x4 a = *(TSR_GLOBAL const tsr_u32x4 *)((TSR_GLOBAL const tsr_u16 *)p + index);
    tsr_pair_to_f32(a.x, type, out + 0, out + 1);
    tsr_pair_to_f32(a.y, type, out + 2, out + 3);
    tsr_pair_to_f32(a.z, type, out + 4, out + 5);
    tsr_pair_to_f32(a.w, type, out + 6, out + 7);
  } else if (type == TSR_T_U4) {
    const tsr_u32 a = *(TSR_GLOBAL const tsr_u32 *)((TSR_GLOBAL const tsr_u8 *)p + (index >> 1));
    int n;
    TSR_UNROLL for (n = 0; n < 8; n++) {
      out[n] = (float)((a >> (4 * n)) & 0xfu);
    }
  } else {
    const tsr_u32x2 a = *(TSR_GLOBAL const tsr_u32x2 *)((TSR_GLOBAL const tsr_u8 *)p + index);
    tsr_quad_to_f32(a.x, type, out);
    tsr_quad_to_f32(a.y, type, out + 4);
  }
}

#endif
