/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a device for callers who have none of their own: buffers, and copies that wait. */
#include "backends/opencl/state.h"

tsr_status tsr__opencl_memory_alloc(const tsr__device *dev, int64_t bytes, void **ptr, tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  int32_t error = TSR__CL_SUCCESS;
  const tsr_status st = tsr__opencl_enter(err);
  if (st != TSR_OK) {
    return st;
  }
  *ptr = d->cl.CreateBuffer(d->context, TSR__CL_MEM_READ_WRITE, bytes > 0 ? (size_t)bytes : 1, NULL, &error);
  if (*ptr == NULL || error != TSR__CL_SUCCESS) {
    *ptr = NULL;
    /* of a buffer there is but one thing that can be short */
    error =
        error == TSR__CL_OUT_OF_RESOURCES || error == TSR__CL_SUCCESS ? TSR__CL_MEM_OBJECT_ALLOCATION_FAILURE : error;
    return tsr__opencl_fail(err, error, "bytes", "clCreateBuffer");
  }
  return TSR_OK;
}

void tsr__opencl_memory_free(const tsr__device *dev, void *ptr) {
  if (!tsr__opencl_forked()) {
    tsr__opencl_of(dev)->cl.ReleaseMemObject((tsr__cl_mem)ptr);
  }
}

/* Copies are to see what was enqueued before; an out-of-order queue does not promise that by itself. */
static tsr_status ready(const tsr__opencl *d, tsr_error *err) {
  const tsr_status st = tsr__opencl_enter(err);
  int32_t error;
  if (st != TSR_OK || !d->out_of_order) {
    return st;
  }
  error = d->cl.Finish(d->queue);
  return error == TSR__CL_SUCCESS ? TSR_OK : tsr__opencl_queue_fail(d, err, error, "clFinish");
}

/* The device's own queue takes no wait list here, so what is invalid is the buffer. */
static tsr_status copy_fail(const tsr__opencl *d, int32_t error, const char *field, const char *what, tsr_error *err) {
  if (error == TSR__CL_INVALID_VALUE) {
    return tsr__fail(err, TSR_INVALID, field, "%s: offset and bytes reach beyond the buffer", what);
  }
  if (error == TSR__CL_INVALID_MEM_OBJECT || error == TSR__CL_INVALID_CONTEXT) {
    return tsr__opencl_fail(err, error, field, what);
  }
  return tsr__opencl_queue_fail(d, err, error, what);
}

tsr_status tsr__opencl_memory_write(const tsr__device *dev, void *to, int64_t offset, const void *from, int64_t bytes,
                                    tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  tsr_status st = ready(d, err);
  if (st == TSR_OK) {
    const int32_t error =
        d->cl.EnqueueWriteBuffer(d->queue, (tsr__cl_mem)to, 1, (size_t)offset, (size_t)bytes, from, 0, NULL, NULL);
    st = error == TSR__CL_SUCCESS ? TSR_OK : copy_fail(d, error, "to", "clEnqueueWriteBuffer", err);
  }
  return st;
}

tsr_status tsr__opencl_memory_read(const tsr__device *dev, void *to, const void *from, int64_t offset, int64_t bytes,
                                   tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  union {
    const void *in;
    void *ptr;
  } handle;
  tsr_status st = ready(d, err);
  handle.in = from;
  if (st == TSR_OK) {
    const int32_t error =
        d->cl.EnqueueReadBuffer(d->queue, (tsr__cl_mem)handle.ptr, 1, (size_t)offset, (size_t)bytes, to, 0, NULL, NULL);
    st = error == TSR__CL_SUCCESS ? TSR_OK : copy_fail(d, error, "from", "clEnqueueReadBuffer", err);
  }
  return st;
}

tsr_status tsr__opencl_wait(const tsr__device *dev, void *queue, tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  tsr_status st = tsr__opencl_enter(err);
  if (st == TSR_OK) {
    const int32_t error = d->cl.Finish(queue != NULL ? (tsr__cl_queue)queue : d->queue);
    st = error == TSR__CL_SUCCESS ? TSR_OK : tsr__opencl_queue_fail(d, err, error, "clFinish");
  }
  return st;
}
