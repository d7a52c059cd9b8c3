/* SPDX-License-Identifier: Apache-2.0 */
/* What CUDA, HIP and OpenCL back ends share: the portable variants ("simt"), their kernels' keys and sources, a table
 * of loaded kernels for each device, and the packing of a run's arguments. A back end supplies a driver: compile, load,
 * enqueue. Only back ends with a driver include this; it includes backend.h. */
#ifndef TSR_COMMON_GPU_H
#define TSR_COMMON_GPU_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/backend.h"
#include "common/device/gpu_args.h"

enum { TSR__GPU_MAX_PARAMS = 64 };

/* One kernel parameter. Pointers: data is the device pointer, cl_mem or SVM pointer itself (NULL: absent). */
typedef struct tsr__gpu_param {
  const void *data;
  int32_t bytes; /* by value: bytes at data; 0: a pointer */
} tsr__gpu_param;

/* One kernel start on a 1-D grid. */
typedef struct tsr__gpu_call {
  void *function; /* what load returned */
  int64_t groups; /* 1..2^31-1 */
  int32_t threads;
  int32_t num_params;
  const tsr__gpu_param *params;
} tsr__gpu_call;

/* Where and when: the caller's queue, events to wait for, an event out (NULL: not wanted). */
typedef struct tsr__gpu_queue {
  void *queue;
  const void *const *wait_events;
  int64_t num_wait_events;
  void **event;
  int32_t memory; /* TSR_MEMORY_*: what the pointers are */
} tsr__gpu_queue;

/* Text to compile: `name` for messages, lines of defines, then pieces that are read one after another. */
typedef struct tsr__gpu_source {
  const char *name;          /* the kernel's entry */
  const char *defines;       /* "#define ...\n" */
  const char *emitted;       /* functions of the caller's expressions; "" : none */
  const char *const *pieces; /* NULL-ended */
} tsr__gpu_source;

/* What a back end can do. All functions may be called from any thread. */
typedef struct tsr__gpu_driver {
  const char *language; /* "cuda", "hip", "opencl": part of image keys */
  /* Compiles for the device into an image (tsr__alloc_zero memory of host->alloc; the caller frees). Errors:
   * TSR_UNSUPPORTED (no compiler here: the text says which was looked for), TSR_DEVICE_ERROR with the first line of the
   * compiler's log (the whole log goes to the log hook). NULL: the device has no compiler. */
  tsr_status (*compile)(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                        tsr_error *err);
  /* Loads an image and finds its entry. Errors: TSR_INVALID (not an image for this device: a stale or corrupt cache
   * file; the caller compiles again), TSR_OUT_OF_MEMORY, TSR_DEVICE_ERROR. */
  tsr_status (*load)(const tsr__device *dev, const void *image, size_t bytes, const char *entry, int32_t threads,
                     void **function, tsr_error *err);
  void (*unload)(const tsr__device *dev, void *function);
  /* Enqueues the calls, each after the one before. Allocates nothing, waits for nothing. */
  tsr_status (*enqueue)(const tsr__device *dev, const tsr__gpu_queue *queue, const tsr__gpu_call *calls, int32_t n,
                        tsr_error *err);
} tsr__gpu_driver;

/* A kernel of the portable family. */
enum {
  TSR__KERNEL_FORWARD,
  TSR__KERNEL_PREPARE,
  TSR__KERNEL_SPLIT_MERGE,
  TSR__KERNEL_MAX_S,
  TSR__KERNEL_DROPOUT_MASK,
  TSR__KERNEL_DELTA,
  TSR__KERNEL_DKDV,
  TSR__KERNEL_DQ,
  TSR__KERNEL_DBIAS,
  TSR__KERNEL_DSINK,
  TSR__KERNEL_APPEND,
  TSR__KERNEL_MERGE,
  TSR__KERNEL_COUNT
};

/* All that a kernel's text depends on; 0 where a kernel does not care, so that it is compiled once. Compared as bytes.
 */
typedef struct tsr__kernel_key {
  uint8_t kernel; /* TSR__KERNEL_* */
  uint8_t type;   /* of q */
  uint8_t k_type, v_type;
  uint8_t do_type; /* of dout */
  uint8_t rich;    /* 1: with TSR_RICH_FLAGS */
  uint8_t vector;  /* 1: rows of q, k, v (dout) are contiguous and promised to be aligned to 16 bytes */
  uint8_t spare;   /* 0 */
  uint16_t dim;    /* class of the head dimension, see tsr__gpu_dim_class; 0 */
  uint16_t dim_v;
  uint16_t tile_q, tile_k, threads;
  uint16_t reserved;
  uint64_t score_hash, grad_hash, mask_hash; /* tsr__expr_hash; 0: none */
} tsr__kernel_key;

/* A kernel of one device, loaded when a plan first needs it and kept until the device closes. */
typedef struct tsr__gpu_kernel {
  struct tsr__gpu_kernel *next;
  tsr__kernel_key key;
  tsr_expr *score, *grad, *mask; /* copies: a match of hashes is settled by tsr__expr_equal */
  void *function;
} tsr__gpu_kernel;

/* The device's state that is common to drivers; tsr__device.state points to it. */
typedef struct tsr__gpu_device {
  const tsr__gpu_driver *driver;
  void *native;      /* the back end's own */
  char arch[64];     /* "sm_90", "gfx942:xnack-", or the OpenCL device's name: images fit this alone */
  char compiler[96]; /* what compiles here and its version; part of image keys */
  /* What it is told on every compilation; part of image keys. The driver sets it after tsr__gpu_device_open; it lives
   * as long as the device. NULL: nothing. */
  const char *options;
  int32_t max_threads;
  pthread_mutex_t lock; /* of the list, and: one compilation at a time */
  tsr__gpu_kernel *kernels;
} tsr__gpu_device;

/* Fills dev->state and dev->variants; driver and native live as long as the device. arch and compiler are copied.
 * Errors: TSR_OUT_OF_MEMORY. */
tsr_status tsr__gpu_device_open(const tsr__host *host, const tsr__gpu_driver *driver, void *native, const char *arch,
                                const char *compiler, tsr__device *dev, tsr_error *err);
/* Unloads kernels and frees the state; native is the back end's to free, after. */
void tsr__gpu_device_close(tsr__device *dev);
static inline tsr__gpu_device *tsr__gpu_of(const tsr__device *dev) {
  return (tsr__gpu_device *)dev->state;
}

/* The process that called a runtime first, which does not survive fork(): a property of the process, so one such
 * variable in each back end, 0 to begin with. Entering marks the process, and comes before the runtime's first call.
 * Errors: TSR_FORKED in a child of the process that is marked; `runtime` is its name in the text. */
tsr_status tsr__gpu_enter(atomic_int *user_process, const char *runtime, tsr_error *err);
int tsr__gpu_forked(atomic_int *user_process);

/* Entries of tsr__backend. */
tsr_status tsr__gpu_prepare(const tsr__device *dev, const tsr__op_problem *p, tsr__plan_build *build, tsr_error *err);
tsr_status tsr__gpu_run_attention(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                                  const tsr__bound *bound, const tsr_run_args *args, tsr_error *err);
tsr_status tsr__gpu_run_append(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                               const tsr_append_args *args, tsr_error *err);
tsr_status tsr__gpu_run_merge(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                              const tsr_merge_args *args, tsr_error *err);

#endif
