/* SPDX-License-Identifier: Apache-2.0 */
/* What is particular to the OpenCL back end. No OpenCL header is needed: handles are passed as void pointers.
 *
 * - Devices "opencl:0", "opencl:1", ... are those of all platforms, in an order that depends on neither the run nor
 *   the loader: GPUs and accelerators before CPUs, then by the platform's name, then as the platform lists them.
 *   OpenCL 1.2 is needed, and the full profile; half floats, doubles and subgroups are not.
 * - Memory: TSR_MEMORY_NATIVE and TSR_MEMORY_CL_MEM, buffers (cl_mem, sub-buffers too) of the device's cl_context;
 *   TSR_MEMORY_SVM on devices that have it: pointers into clSVMAlloc memory, offset_bytes as ever. Every tensor and
 *   the workspace of one plan are of the same kind.
 * - tsr_run_args.queue is a cl_command_queue of the device and its cl_context, in-order or out-of-order; NULL is the
 *   device's own in-order queue (or the one given to tsr_opencl_device_open). wait_events are cl_events which the
 *   first launch waits for, *event becomes a cl_event that is done when the run is, which the caller releases.
 *   A run does not flush the caller's queue. On an out-of-order queue the launches of one run follow each other, and
 *   nothing else is implied.
 * - The library is libOpenCL.so.1, opened when the back end is first looked at, and never unloaded.
 * - A process that used OpenCL cannot go on using it in a child made by fork(): such calls answer TSR_FORKED. */
#ifndef TESSERA_OPENCL_H
#define TESSERA_OPENCL_H

#include "tessera/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A device of the caller's. */
typedef struct tsr_opencl_params {
  size_t size;
  void *context; /* cl_context; retained until the device is closed */
  void *device;  /* cl_device_id of that context, a sub-device too; retained likewise */
  void *queue;   /* cl_command_queue of both that NULL stands for in runs, copies and waits, retained likewise;
                    NULL: an in-order queue of the library's own */
} tsr_opencl_params;

static inline tsr_opencl_params tsr_opencl_params_init(void) {
  tsr_opencl_params p;
  memset(&p, 0, sizeof(p));
  p.size = sizeof(p);
  return p;
}

/* Opens a device on the caller's OpenCL objects, which must come from the libOpenCL.so.1 of this process (or from a
 * driver that follows cl_khr_icd). Everything else is as with tsr_device_open, which makes a cl_context of its own.
 * Errors: TSR_INVALID (a field; the device or queue is not of the context), TSR_UNSUPPORTED (the device is older than
 * OpenCL 1.2), TSR_BACKEND_MISSING (this build has no OpenCL back end, or there is no libOpenCL), TSR_OUT_OF_MEMORY,
 * TSR_DEVICE_ERROR, TSR_FORKED. Thread-safety: any thread. */
TSR_API tsr_status tsr_opencl_device_open(tsr_context *context, const tsr_opencl_params *params, tsr_device **device,
                                          tsr_error *err);

/* The OpenCL objects of a device, for callers who make buffers and queues on them. They are the device's and live as
 * long as it does. */
typedef struct tsr_opencl_handles {
  size_t size;
  void *platform; /* cl_platform_id */
  void *context;  /* cl_context */
  void *device;   /* cl_device_id */
  void *queue;    /* cl_command_queue that NULL stands for */
} tsr_opencl_handles;

/* Fills *handles (its size set by the caller). Errors: TSR_INVALID (not a device of this back end),
 * TSR_BACKEND_MISSING. Thread-safety: any thread. */
TSR_API tsr_status tsr_opencl_device_get(const tsr_device *device, tsr_opencl_handles *handles, tsr_error *err);

#ifdef __cplusplus
}
#endif
#endif
