/* SPDX-License-Identifier: Apache-2.0 */
/* Work groups: what CUDA, HIP, OpenCL and the emulator call differently. Kernels use these names alone; barriers stand
 * in flow that is the same for a whole group, and no kernel returns before one. */
#ifndef TSR_DEVICE_GPU_H
#define TSR_DEVICE_GPU_H

#define TSR_UNROLL _Pragma("unroll")
#define TSR_LOOP _Pragma("unroll 1") /* a body too large to repeat */
#define TSR_RESTRICT restrict
/* Keeps a copy of a kernel's argument in private memory, where its address is taken at run time. See append.h. */
#define TSR_KEEP_PRIVATE(ptr)

/* TSR_KERNEL begins a kernel's head; TSR_KERNEL_ALONE that of one which would sooner have registers than a second group
 * next to it. */
#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
#define TSR_KERNEL(threads) __kernel __attribute__((reqd_work_group_size(threads, 1, 1))) void
#define TSR_KERNEL_ALONE(threads) TSR_KERNEL(threads)
#define TSR_ARENA(name, bytes) __local tsr_u8 name[bytes] __attribute__((aligned(16)))
#define TSR_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define TSR_BARRIER_GLOBAL() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define TSR_THREAD() ((tsr_i32)get_local_id(0))
#define TSR_GROUP() ((tsr_i64)get_group_id(0))
#define TSR_GROUPS() ((tsr_i64)get_num_groups(0))

#elif defined(__CUDACC__) || defined(__HIP__)
#undef TSR_RESTRICT
#define TSR_RESTRICT __restrict__
#if defined(__CUDACC__)
#undef TSR_KEEP_PRIVATE
#define TSR_KEEP_PRIVATE(ptr) asm volatile("" : : "l"(ptr) : "memory")
#endif
typedef struct __attribute__((aligned(16))) tsr_f4 {
  float x, y, z, w;
} tsr_f4;
#define TSR_KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)
#if defined(__clang__) /* gives what there is */
#define TSR_KERNEL_ALONE(threads) TSR_KERNEL(threads)
#else
#define TSR_KERNEL_ALONE(threads) extern "C" __global__ void __launch_bounds__(threads, 1)
#endif
#define TSR_ARENA(name, bytes) __shared__ __attribute__((aligned(16))) tsr_u8 name[bytes]
#define TSR_BARRIER() __syncthreads()
#define TSR_BARRIER_GLOBAL() (__threadfence_block(), __syncthreads())
#define TSR_THREAD() ((tsr_i32)threadIdx.x)
#define TSR_GROUP() ((tsr_i64)blockIdx.x)
#define TSR_GROUPS() ((tsr_i64)gridDim.x)

#else /* the emulator of tests/emulator: C, one fiber a thread */
typedef struct tsr_f4 {
  float x, y, z, w;
} __attribute__((aligned(16))) tsr_f4;
void tsr_emu_barrier(int line);
tsr_i32 tsr_emu_thread(void);
tsr_i64 tsr_emu_group(void);
tsr_i64 tsr_emu_groups(void);
void tsr_emu_arena(tsr_u8 *arena, int bytes);
#undef TSR_UNROLL
#undef TSR_LOOP
#define TSR_UNROLL
#define TSR_LOOP
#define TSR_KERNEL(threads) void
#define TSR_KERNEL_ALONE(threads) void
#define TSR_ARENA(name, bytes)                            \
  static tsr_u8 name[bytes] __attribute__((aligned(16))); \
  tsr_emu_arena(name, bytes)
#define TSR_BARRIER() tsr_emu_barrier(__LINE__)
#define TSR_BARRIER_GLOBAL() tsr_emu_barrier(__LINE__)
#define TSR_THREAD() tsr_emu_thread()
#define TSR_GROUP() tsr_emu_group()
#define TSR_GROUPS() tsr_emu_groups()
#endif

#endif
