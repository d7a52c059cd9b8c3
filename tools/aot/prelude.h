/* SPDX-License-Identifier: Apache-2.0 */
/* Read before a kernel's text by clang when it compiles ahead of time with no vendor's headers: the words of CUDA and
 * HIP that the dialect uses (common/device/{dialect,gpu}.h), from clang's own builtins. */
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ __inline__ __attribute__((always_inline))
#if defined(__HIP__)
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))
#else
#define __launch_bounds__(threads) __attribute__((launch_bounds(threads)))
#endif
#define TSR_PRELUDE_FN static __device__ __forceinline__

struct tsr_prelude_index {
  unsigned x;
  __device__ __forceinline__ tsr_prelude_index(unsigned i) : x(i) {
  }
};

TSR_PRELUDE_FN float fmaf(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
TSR_PRELUDE_FN float fmaxf(float a, float b) {
  return __builtin_fmaxf(a, b);
}
TSR_PRELUDE_FN float fminf(float a, float b) {
  return __builtin_fminf(a, b);
}
TSR_PRELUDE_FN float fabsf(float a) {
  return __builtin_fabsf(a);
}
TSR_PRELUDE_FN float floorf(float a) {
  return __builtin_floorf(a);
}

#if defined(__HIP__)

#define threadIdx tsr_prelude_index(__builtin_amdgcn_workitem_id_x())
#define blockIdx tsr_prelude_index(__builtin_amdgcn_workgroup_id_x())
#define gridDim tsr_prelude_index(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x())

TSR_PRELUDE_FN void __threadfence_block() {
  __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
}
TSR_PRELUDE_FN void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

/* Of the device library, which clang links. */
#define TSR_PRELUDE_OCML(name, ocml)                                \
  extern "C" __device__ __attribute__((const)) float ocml(float x); \
  TSR_PRELUDE_FN float name(float x) {                              \
    return ocml(x);                                                 \
  }
TSR_PRELUDE_OCML(expf, __ocml_exp_f32)
TSR_PRELUDE_OCML(exp2f, __ocml_exp2_f32)
TSR_PRELUDE_OCML(logf, __ocml_log_f32)
TSR_PRELUDE_OCML(log2f, __ocml_log2_f32)
TSR_PRELUDE_OCML(tanhf, __ocml_tanh_f32)
TSR_PRELUDE_OCML(rintf, __ocml_rint_f32)
TSR_PRELUDE_OCML(sqrtf, __ocml_sqrt_f32)
TSR_PRELUDE_OCML(sinf, __ocml_sin_f32)
TSR_PRELUDE_OCML(cosf, __ocml_cos_f32)
extern "C" __device__ __attribute__((const)) float __ocml_pow_f32(float x, float y);
TSR_PRELUDE_FN float powf(float x, float y) {
  return __ocml_pow_f32(x, y);
}

#else /* CUDA without libdevice */

#define __CUDACC__ 1
#define threadIdx tsr_prelude_index(__nvvm_read_ptx_sreg_tid_x())
#define blockIdx tsr_prelude_index(__nvvm_read_ptx_sreg_ctaid_x())
#define gridDim tsr_prelude_index(__nvvm_read_ptx_sreg_nctaid_x())

TSR_PRELUDE_FN void __threadfence_block() {
  __nvvm_membar_cta();
}

TSR_PRELUDE_FN float tsr_prelude_f32(int bits) {
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}
TSR_PRELUDE_FN int tsr_prelude_bits(float f) {
  int bits;
  __builtin_memcpy(&bits, &f, 4);
  return bits;
}

TSR_PRELUDE_FN float rintf(float x) {
  return __builtin_rintf(x);
}
TSR_PRELUDE_FN float sqrtf(float x) {
  return __nvvm_sqrt_rn_f(x);
}
TSR_PRELUDE_FN float exp2f(float x) {
  return __nvvm_ex2_approx_f(x); /* at most 2 ulp off, subnormals kept; exact for whole numbers */
}

/* x = n ln 2 + r; below 2^-126 the second power would round twice, which nothing here minds. */
TSR_PRELUDE_FN float expf(float x) {
  const float clamped = __builtin_fminf(__builtin_fmaxf(x, -104.0f), 89.0f);
  const float n = __builtin_rintf(clamped * 1.44269504f);
  const float r = __builtin_fmaf(n, -1.42860677e-6f, __builtin_fmaf(n, -0.693145752f, clamped));
  const float half = __builtin_floorf(n * 0.5f);
  const float y = __nvvm_ex2_approx_f(r * 1.44269504f) * __nvvm_ex2_approx_f(half) * __nvvm_ex2_approx_f(n - half);
  return x != x ? x : y;
}

/* x = 2^e m with m in [2/3, 4/3); log m = 2 artanh((m - 1) / (m + 1)). */
TSR_PRELUDE_FN float logf(float x) {
  const int tiny = x < 1.17549435e-38f;
  const float scaled = tiny ? x * 8388608.0f : x;
  const int bits = tsr_prelude_bits(scaled);
  const int e = (bits - 0x3f2aaaab) & (int)0xff800000;
  const float m = tsr_prelude_f32(bits - e);
  const float k = (float)(e >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = m - 1.0f, s = f / (m + 1.0f), z = s * s;
  float p = 0.153846154f;
  p = __builtin_fmaf(p, z, 0.181818182f);
  p = __builtin_fmaf(p, z, 0.222222222f);
  p = __builtin_fmaf(p, z, 0.285714286f);
  p = __builtin_fmaf(p, z, 0.4f);
  p = __builtin_fmaf(p, z, 0.666666667f);
  /* 2 s = f - s f, so that the leading term is exact */
  {
    const float correction = s * (__builtin_fmaf(p, z, 0.0f) - f);
    const float low = __builtin_fmaf(k, 1.42860677e-6f, correction);
    const float y = __builtin_fmaf(k, 0.693145752f, f + low);
    if (x == 0.0f) {
      return tsr_prelude_f32((int)0xff800000);
    }
    return !(x > 0.0f) ? tsr_prelude_f32(0x7fc00000) : x > 3.40282347e38f ? x : y;
  }
}
TSR_PRELUDE_FN float log2f(float x) {
  return logf(x) * 1.44269504f;
}
TSR_PRELUDE_FN float tanhf(float x) {
  const float a = __builtin_fabsf(x);
  float y;
  if (a < 0.55f) { /* x P(x^2) / Q(x^2), a continued fraction */
    const float z = x * x;
    const float top = __builtin_fmaf(__builtin_fmaf(z, 21.0f, 1260.0f), z, 10395.0f);
    const float low = __builtin_fmaf(__builtin_fmaf(z + 210.0f, z, 4725.0f), z, 10395.0f);
    return x * top / low;
  }
  y = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
  return __builtin_copysignf(y, x);
}

#endif
