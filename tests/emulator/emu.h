/* SPDX-License-Identifier: Apache-2.0 */
/* Runs kernels of common/device on the CPU: one fiber, with a stack of its own, for each thread of a work group, work
 * groups one after another. Threads of a group take turns between barriers, in an order that changes from barrier to
 * barrier, so that a missing one shows as poison or as a result that no order explains.
 *
 * Ends the process (abort) with one line on stderr when threads of a group wait at different barriers (divergence), or
 * when none can go on: a thread has returned while others wait, or a wave has not come together (deadlock).
 * Thread-safety: one run at a time; callers serialise. */
#ifndef TSR_EMU_H
#define TSR_EMU_H

#include <stdint.h>

enum {
  TSR_EMU_MAX_THREADS = 1024,
  TSR_EMU_POISON = 0x7fc0dead /* words of a fresh arena: NaN as f32, far out of bounds as an offset */
};

/* Called once for each thread. */
typedef void tsr_emu_kernel(const void *arg);

/* threads: 1..TSR_EMU_MAX_THREADS; wave: lanes of a wave, a divisor of threads if the kernel has wave operations. */
void tsr_emu_run(tsr_emu_kernel *kernel, const void *arg, int64_t groups, int threads, int wave);

/* ---- What kernels call (gpu.h declares the first few for itself) ---- */

void tsr_emu_barrier(int line);
int tsr_emu_thread(void);
long long tsr_emu_group(void);
long long tsr_emu_groups(void);
/* Local memory: poisons it once a group. */
void tsr_emu_arena(unsigned char *arena, int bytes);

/* `value` of lane `source` of the caller's wave; all lanes of the wave call it. */
uint32_t tsr_emu_shuffle(uint32_t value, int source, int line);

/* D = A B + C in f32, of a matrix unit, by its fragment layout. Elements as the unit has them: 16-bit patterns, fp8
 * patterns, or f32; the kind says how many a lane holds. */
enum {
  TSR_EMU_MFMA_32X32X8_F16,   /* gfx908, gfx90a, gfx942 */
  TSR_EMU_MFMA_32X32X8_BF16,  /* _1k: gfx90a, gfx942 */
  TSR_EMU_MFMA_16X16X16_F16,  /* */
  TSR_EMU_MFMA_16X16X16_BF16, /* _1k */
  TSR_EMU_MFMA_32X32X4_BF16,  /* gfx908 */
  TSR_EMU_MFMA_32X32X2_F32,   /* */
  TSR_EMU_MFMA_32X32X16_F8,   /* gfx942, e4m3 */
  TSR_EMU_MFMA_16X16X32_F8,   /* gfx942, e4m3 */
  TSR_EMU_WMMA_GFX11_F16,     /* 16x16x16, wave 32; lanes 16..31 of A and B repeat lanes 0..15 */
  TSR_EMU_WMMA_GFX11_BF16,    /* */
  TSR_EMU_WMMA_GFX12_F16,     /* 16x16x16, wave 32 */
  TSR_EMU_WMMA_GFX12_BF16,    /* */
  TSR_EMU_WMMA_GFX12_F8,      /* e4m3 */
  TSR_EMU_MATRIX_KINDS
};
void tsr_emu_matrix(int kind, const void *a, const void *b, const float *c, float *d, int line);

/* The unit's shape: rows m, columns n, inner k; lanes of a wave; elements of A and of B a lane, of C and D a lane. */
typedef struct tsr_emu_shape {
  int m, n, k, wave, ab, cd;
} tsr_emu_shape;
tsr_emu_shape tsr_emu_matrix_shape(int kind);

/* Parameters of a kernel, as a tsr__gpu_call has them: pointers themselves (bytes 0), or bytes at data. */
typedef struct tsr_emu_param {
  const void *data;
  int32_t bytes;
} tsr_emu_param;
typedef struct tsr_emu_call {
  const tsr_emu_param *params;
  int count;
} tsr_emu_call;

/* The functions above as a table, for kernels in a library of their own (entry.h). */
typedef struct tsr_emu_ops {
  void (*barrier)(int line);
  int (*thread)(void);
  long long (*group)(void);
  long long (*groups)(void);
  void (*arena)(unsigned char *arena, int bytes);
} tsr_emu_ops;
extern const tsr_emu_ops tsr_emu_table;

/* fragments.c: all lanes' operands of one wave. */
void tsr_emu_multiply(int kind, const void *const *a, const void *const *b, const float *const *c, float *const *d);

#endif
