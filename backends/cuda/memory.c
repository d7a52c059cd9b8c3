/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device for callers who have none of their own, and copies that wait. */
#include "backends/cuda/state.h"

tsr_status tsr__cuda_memory_alloc(const tsr__device *dev, int64_t bytes, void **ptr, tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  tsr__cu_ptr p = 0;
  unsigned int error;
  const tsr_status st = tsr__cuda_push(d, err);
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.MemAlloc(&p, bytes > 0 ? (size_t)bytes : 1);
  tsr__cuda_pop(d);
  if (error != TSR__CUDA_SUCCESS) {
    return tsr__cuda_fail(err, error, "bytes", "cuMemAlloc");
  }
  *ptr = (void *)(uintptr_t)p;
  return TSR_OK;
}

void tsr__cuda_memory_free(const tsr__device *dev, void *ptr) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  if (tsr__cuda_push(d, NULL) == TSR_OK) {
    d->cu.MemFree(tsr__cuda_ptr(ptr));
    tsr__cuda_pop(d);
  }
}

tsr_status tsr__cuda_memory_write(const tsr__device *dev, void *to, int64_t offset, const void *from, int64_t bytes,
                                  tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  unsigned int error;
  const tsr_status st = tsr__cuda_push(d, err);
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.MemcpyHtoD(tsr__cuda_ptr(to) + (tsr__cu_ptr)offset, from, (size_t)bytes);
  if (error == TSR__CUDA_SUCCESS) { /* a small copy may return before it arrived */
    error = d->cu.StreamSynchronize(NULL);
  }
  tsr__cuda_pop(d);
  return error == TSR__CUDA_SUCCESS ? TSR_OK : tsr__cuda_fail(err, error, "to", "cuMemcpyHtoD");
}

tsr_status tsr__cuda_memory_read(const tsr__device *dev, void *to, const void *from, int64_t offset, int64_t bytes,
                                 tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  unsigned int error;
  const tsr_status st = tsr__cuda_push(d, err);
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.MemcpyDtoH(to, tsr__cuda_ptr(from) + (tsr__cu_ptr)offset, (size_t)bytes);
  tsr__cuda_pop(d);
  return error == TSR__CUDA_SUCCESS ? TSR_OK : tsr__cuda_fail(err, error, "from", "cuMemcpyDtoH");
}

tsr_status tsr__cuda_wait(const tsr__device *dev, void *queue, tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  unsigned int error;
  const tsr_status st = tsr__cuda_push(d, err);
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.StreamSynchronize((tsr__cu_stream)queue);
  tsr__cuda_pop(d);
  return error == TSR__CUDA_SUCCESS ? TSR_OK : tsr__cuda_fail(err, error, "queue", "cuStreamSynchronize");
}
