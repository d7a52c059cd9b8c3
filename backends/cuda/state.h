/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this back end share. */
#ifndef TSR_CUDA_STATE_H
#define TSR_CUDA_STATE_H

#include "backends/cuda/cu.h"
#include "backends/cuda/nvrtc.h"
#include "common/gpu.h"

/* What NVRTC is told besides the target: no flag that trades bits. Products and sums are fused where the text says fma,
 * and nowhere else. */
#define TSR__CUDA_OPTIONS(X) X("--std=c++11") X("--fmad=false") X("-default-device") X("-DTSR_WAVE=32")

/* The back end's own state of a device: tsr__gpu_device.native. */
typedef struct tsr__cuda {
  tsr__cu cu;
  tsr__nvrtc nvrtc;
  char no_nvrtc[440]; /* why nvrtc.found is 0 */
  int device;         /* CUdevice */
  int arch;           /* compute capability: 90 */
  int any_pointer;    /* 1: kernels may read all of the host's memory */
  tsr__cu_context context;
  int retained; /* 1: the primary context, of which a reference is held */
} tsr__cuda;

static inline tsr__cuda *tsr__cuda_of(const tsr__device *dev) {
  return (tsr__cuda *)tsr__gpu_of(dev)->native;
}

/* A device pointer as the driver takes it. */
static inline tsr__cu_ptr tsr__cuda_ptr(const void *ptr) {
  return (tsr__cu_ptr)(uintptr_t)ptr;
}

/* ---- device.c --------------------------------------------------------------------------------- */

/* TSR_FORKED in a child of a process that used CUDA, which does not survive fork(). Calling it marks the process as
 * one that does, so it comes before cuInit. */
tsr_status tsr__cuda_enter(tsr_error *err);
int tsr__cuda_forked(void);

/* The context of the device becomes the thread's current one, until tsr__cuda_pop. */
tsr_status tsr__cuda_push(const tsr__cuda *d, tsr_error *err);
void tsr__cuda_pop(const tsr__cuda *d);

/* Opens device `index` with its primary context. */
tsr_status tsr__cuda_open(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err);
/* Opens what the caller names; tsr__open_fn. */
typedef struct tsr__cuda_given {
  tsr__cu_context context; /* NULL: the primary one */
  const char *uuid;        /* NULL: the device by number */
  int32_t device;
} tsr__cuda_given;
tsr_status tsr__cuda_adopt(const tsr__host *host, const void *given, tsr__device *dev, tsr_error *err);
void tsr__cuda_close(tsr__device *dev);

/* "GPU-01234567-89ab-cdef-0123-456789abcdef"; "" if the driver does not say. */
enum { TSR__CUDA_UUID_BYTES = 41 };
void tsr__cuda_uuid(const tsr__cu *cu, int device, char out[TSR__CUDA_UUID_BYTES]);

/* ---- memory.c: entries of tsr__backend -------------------------------------------------------- */

tsr_status tsr__cuda_memory_alloc(const tsr__device *dev, int64_t bytes, void **ptr, tsr_error *err);
void tsr__cuda_memory_free(const tsr__device *dev, void *ptr);
tsr_status tsr__cuda_memory_write(const tsr__device *dev, void *to, int64_t offset, const void *from, int64_t bytes,
                                  tsr_error *err);
tsr_status tsr__cuda_memory_read(const tsr__device *dev, void *to, const void *from, int64_t offset, int64_t bytes,
                                 tsr_error *err);
tsr_status tsr__cuda_wait(const tsr__device *dev, void *queue, tsr_error *err);

/* ---- program.c: images and kernels ------------------------------------------------------------ */

tsr_status tsr__cuda_compile(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                             tsr_error *err);
tsr_status tsr__cuda_load(const tsr__device *dev, const void *image, size_t bytes, const char *entry, int32_t threads,
                          void **function, tsr_error *err);
void tsr__cuda_unload(const tsr__device *dev, void *function);

/* What load returns. */
typedef struct tsr__cuda_function {
  tsr__cu_module module;
  tsr__cu_function function;
} tsr__cuda_function;

/* ---- launch.c --------------------------------------------------------------------------------- */

tsr_status tsr__cuda_enqueue(const tsr__device *dev, const tsr__gpu_queue *queue, const tsr__gpu_call *calls, int32_t n,
                             tsr_error *err);

/* ---- error.c ---------------------------------------------------------------------------------- */

/* The status that an error of the driver stands for. */
tsr_status tsr__cuda_status(unsigned int error);
/* Fills *err: "<what>: CUDA_ERROR_...", native_code. */
tsr_status tsr__cuda_fail(tsr_error *err, unsigned int error, const char *field, const char *what);

extern const tsr__gpu_driver tsr__cuda_driver;

#endif
