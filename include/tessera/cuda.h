/* SPDX-License-Identifier: Apache-2.0 */
/* What is particular to the CUDA back end. No CUDA header is needed: handles are passed as void pointers.
 *
 * - Devices "cuda:0", "cuda:1", ... are those of the driver, in its order, as CUDA_VISIBLE_DEVICES leaves them. A
 * driver of CUDA 11.4 (470) or newer is needed, no toolkit.
 * - Memory: TSR_MEMORY_NATIVE and TSR_MEMORY_DEVICE, pointers that kernels of the device may use: of cuMemAlloc,
 *   cudaMalloc and the like, managed memory, registered host memory, memory of a peer that was made accessible.
 *   TSR_CONTEXT_VALIDATE refuses memory of other devices, that of peers as well.
 * - tsr_run_args.queue is a CUstream, which is a cudaStream_t, of the device and its context; NULL is the legacy
 * default stream, used as given. There are no wait lists and no events out: cuStreamWaitEvent and cuEventRecord do that
 * on the stream. A run may be captured into a CUDA graph, which may be launched while plan and device live.
 * - The current context of the calling thread is the same after a call as before, and does not matter: a stream's
 * device need not be current.
 * - A plan loads kernels from images in the library or the cache, or compiles them with NVRTC 11.2 or newer, a library
 *   which is opened with the device: the file or folder tsr_context_params.nvrtc_path (TESSERA_NVRTC); else
 *   libnvrtc.so.13, .12 or .11.2 where the loader finds it or in /usr/local/cuda/lib64, those that fit the driver
 * first. The wheel nvidia-cuda-nvrtc has one in its folder `lib`. Other libraries: libcuda.so.1. None is ever unloaded.
 * - A process that used CUDA cannot go on using it in a child made by fork(): such calls answer TSR_FORKED. */
#ifndef TESSERA_CUDA_H
#define TESSERA_CUDA_H

#include "tessera/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which device; at most one of the three is given, all 0 is device 0. */
typedef struct tsr_cuda_params {
  size_t size;
  void *context;    /* CUcontext of the caller's, in which kernels are loaded; it must outlive the device. NULL: the
                       primary context, which the CUDA runtime uses; retained until the device is closed */
  const char *uuid; /* "GPU-..." as nvidia-smi prints it, or a beginning of it that fits one device */
  int32_t device;   /* CUdevice, the N of "cuda:N" */
  int32_t reserved; /* 0 */
} tsr_cuda_params;

static inline tsr_cuda_params tsr_cuda_params_init(void) {
  tsr_cuda_params p;
  memset(&p, 0, sizeof(p));
  p.size = sizeof(p);
  return p;
}

/* Opens a device. Everything else is as with tsr_device_open. Errors: TSR_INVALID (a field; no such device),
 * TSR_BACKEND_MISSING (this build has no CUDA back end, or there is no driver), TSR_OUT_OF_MEMORY, TSR_DEVICE_ERROR,
 * TSR_FORKED. Thread-safety: any thread. */
TSR_API tsr_status tsr_cuda_device_open(tsr_context *context, const tsr_cuda_params *params, tsr_device **device,
                                        tsr_error *err);

/* The CUDA side of a device. */
typedef struct tsr_cuda_handles {
  size_t size;
  void *context;              /* CUcontext; lives as long as the device */
  int32_t device;             /* CUdevice */
  int32_t compute_capability; /* 90 for 9.0 */
  char uuid[48];              /* "GPU-..."; "" if the driver does not say */
} tsr_cuda_handles;

/* Fills *handles (its size set by the caller). Errors: TSR_INVALID (not a device of this back end),
 * TSR_BACKEND_MISSING. Thread-safety: any thread. */
TSR_API tsr_status tsr_cuda_device_get(const tsr_device *device, tsr_cuda_handles *handles, tsr_error *err);

#ifdef __cplusplus
}
#endif
#endif
