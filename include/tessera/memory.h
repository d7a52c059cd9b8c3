/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device, for callers who have no allocator of their own: tools, tests, small programs. Plain and
 * synchronous; nothing is pooled. Frameworks use their own memory and streams, and need none of this.
 *
 * A pointer is what tsr_buffer.ptr takes with TSR_MEMORY_NATIVE: host memory on the CPU, a device pointer on CUDA and
 * HIP, a cl_mem on OpenCL. Aligned to at least 64 bytes. */
#ifndef TESSERA_MEMORY_H
#define TESSERA_MEMORY_H

#include "tessera/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bytes >= 0 (0: a valid pointer to nothing). The device must outlive the memory. Errors: TSR_INVALID,
 * TSR_OUT_OF_MEMORY, TSR_DEVICE_ERROR. */
TSR_API tsr_status tsr_memory_alloc(tsr_device *device, int64_t bytes, void **ptr, tsr_error *err);
/* Memory of tsr_memory_alloc on the same device; NULL is accepted. Waits for work that may use it where the driver
 * does. */
TSR_API void tsr_memory_free(tsr_device *device, void *ptr);

/* Copies `bytes` from host memory to `to` (pointer and byte offset), or back; returns when done. Work on queues other
 * than the default one must have been waited for. Errors: TSR_INVALID, TSR_DEVICE_ERROR, TSR_DEVICE_LOST. */
TSR_API tsr_status tsr_memory_write(tsr_device *device, const tsr_buffer *to, const void *from, int64_t bytes,
                                    tsr_error *err);
TSR_API tsr_status tsr_memory_read(tsr_device *device, void *to, const tsr_buffer *from, int64_t bytes, tsr_error *err);

/* Waits until what was enqueued on a queue (as in tsr_run_args; NULL: the default one) is done. The CPU has nothing to
 * wait for. Errors: TSR_INVALID, TSR_DEVICE_ERROR (also of work enqueued before), TSR_DEVICE_LOST. */
TSR_API tsr_status tsr_device_wait(tsr_device *device, void *queue, tsr_error *err);

#ifdef __cplusplus
}
#endif
#endif
