/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this back end share. */
#ifndef TSR_OPENCL_STATE_H
#define TSR_OPENCL_STATE_H

#include "backends/opencl/cl.h"
#include "common/gpu.h"

/* The back end's own state of a device: tsr__gpu_device.native. */
typedef struct tsr__opencl {
  tsr__cl cl;
  tsr__cl_platform platform;
  tsr__cl_device device;
  tsr__cl_context context;
  tsr__cl_queue queue;  /* what NULL stands for */
  int32_t own_queue;    /* 1: made here, so that nobody else flushes it */
  int32_t out_of_order; /* of queue */
  int32_t has_compiler;
  const char *options; /* of builds; static storage */
} tsr__opencl;

static inline tsr__opencl *tsr__opencl_of(const tsr__device *dev) {
  return (tsr__opencl *)tsr__gpu_of(dev)->native;
}

/* ---- platforms.c: which devices there are, and what they say of themselves -------------------- */

enum { TSR__OPENCL_MAX_DEVICES = 64 };

typedef struct tsr__opencl_list {
  int32_t n;
  struct {
    tsr__cl_platform platform;
    tsr__cl_device device;
  } at[TSR__OPENCL_MAX_DEVICES];
} tsr__opencl_list;

/* Devices of all platforms in the order of their numbers; if there are none, why_not says why in one line. */
void tsr__opencl_list_devices(const tsr__cl *cl, tsr__opencl_list *list, char *why_not, size_t why_not_bytes);

/* A text the device (or its platform) has, without spaces around it, cut to fit; "" if it has none. */
void tsr__opencl_device_text(const tsr__cl *cl, tsr__cl_device device, uint32_t what, char *out, size_t bytes);
void tsr__opencl_platform_text(const tsr__cl *cl, tsr__cl_platform platform, uint32_t what, char *out, size_t bytes);

/* ---- device.c --------------------------------------------------------------------------------- */

/* TSR_FORKED in a child of a process that used OpenCL: drivers have threads, which fork() does not copy. Calling it
 * marks the process as one that does, so it comes before the first call of a driver. */
tsr_status tsr__opencl_enter(tsr_error *err);
/* Whether this is such a child. */
int tsr__opencl_forked(void);

/* Opens device `index` of the list. */
tsr_status tsr__opencl_open(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err);
/* Opens a device on handles; tsr__open_fn. */
typedef struct tsr__opencl_given {
  tsr__cl_context context;
  tsr__cl_device device;
  tsr__cl_queue queue; /* NULL: none */
} tsr__opencl_given;
tsr_status tsr__opencl_adopt(const tsr__host *host, const void *given, tsr__device *dev, tsr_error *err);
void tsr__opencl_close(tsr__device *dev);

/* ---- memory.c: entries of tsr__backend -------------------------------------------------------- */

tsr_status tsr__opencl_memory_alloc(const tsr__device *dev, int64_t bytes, void **ptr, tsr_error *err);
void tsr__opencl_memory_free(const tsr__device *dev, void *ptr);
tsr_status tsr__opencl_memory_write(const tsr__device *dev, void *to, int64_t offset, const void *from, int64_t bytes,
                                    tsr_error *err);
tsr_status tsr__opencl_memory_read(const tsr__device *dev, void *to, const void *from, int64_t offset, int64_t bytes,
                                   tsr_error *err);
tsr_status tsr__opencl_wait(const tsr__device *dev, void *queue, tsr_error *err);

/* ---- program.c: images and kernels ------------------------------------------------------------ */

tsr_status tsr__opencl_compile(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                               tsr_error *err);
tsr_status tsr__opencl_load(const tsr__device *dev, const void *image, size_t bytes, const char *entry, int32_t threads,
                            void **function, tsr_error *err);
void tsr__opencl_unload(const tsr__device *dev, void *function);

/* A cl_kernel holds arguments, so each launch takes one for itself and gives it back. There are as many as launches
 * were ever made at one time; taking one that is there neither allocates nor calls the driver. */
typedef struct tsr__opencl_clone {
  struct tsr__opencl_clone *next;
  tsr__cl_kernel kernel;
} tsr__opencl_clone;
tsr_status tsr__opencl_clone_take(const tsr__device *dev, void *function, tsr__opencl_clone **clone, tsr_error *err);
void tsr__opencl_clone_give(void *function, tsr__opencl_clone *clone);

/* ---- launch.c --------------------------------------------------------------------------------- */

tsr_status tsr__opencl_enqueue(const tsr__device *dev, const tsr__gpu_queue *queue, const tsr__gpu_call *calls,
                               int32_t n, tsr_error *err);

/* ---- error.c ---------------------------------------------------------------------------------- */

/* The status that an error of the driver stands for. */
tsr_status tsr__opencl_status(int32_t error);
/* Fills *err: "<what>: CL_...", native_code. */
tsr_status tsr__opencl_fail(tsr_error *err, int32_t error, const char *field, const char *what);
/* As tsr__opencl_fail, for an error of a queue: asks the device's own queue whether the device is lost. */
tsr_status tsr__opencl_queue_fail(const tsr__opencl *d, tsr_error *err, int32_t error, const char *what);

extern const tsr__gpu_driver tsr__opencl_driver;

#endif
