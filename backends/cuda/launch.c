/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel starts on a stream. */
#include <stdio.h>

#include "backends/cuda/state.h"

/* With the context's `validate`: whose memory a pointer is, before a kernel faults on it. */
static tsr_status check_pointer(const tsr__device *dev, const void *ptr, int32_t index, tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  unsigned int managed = 0, type = 0;
  int device = -1;
  unsigned int error = d->cu.PointerGetAttribute(&device, TSR__CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, tsr__cuda_ptr(ptr));
  if (error == TSR__CUDA_ERROR_INVALID_VALUE) { /* nothing that the driver gave out */
    return d->any_pointer
               ? TSR_OK
               : tsr__fail(err, TSR_INVALID, "", "parameter %d of the kernel, %p, is no device memory", index, ptr);
  }
  if (error == TSR__CUDA_SUCCESS) {
    error = d->cu.PointerGetAttribute(&managed, TSR__CU_POINTER_ATTRIBUTE_IS_MANAGED, tsr__cuda_ptr(ptr));
  }
  if (error == TSR__CUDA_SUCCESS) {
    error = d->cu.PointerGetAttribute(&type, TSR__CU_POINTER_ATTRIBUTE_MEMORY_TYPE, tsr__cuda_ptr(ptr));
  }
  if (error != TSR__CUDA_SUCCESS) {
    return tsr__cuda_fail(err, error, "", "cuPointerGetAttribute");
  }
  if (device != d->device && !managed && type != TSR__CU_MEMORYTYPE_HOST) {
    return tsr__fail(err, TSR_INVALID, "",
                     "parameter %d of the kernel, %p, is memory of cuda:%d, the plan is one of %s", index, ptr, device,
                     dev->name);
  }
  return TSR_OK;
}

static tsr_status check_pointers(const tsr__device *dev, const tsr__gpu_call *calls, int32_t n, tsr_error *err) {
  for (int32_t i = 0; i < n; i++) {
    for (int32_t k = 0; k < calls[i].num_params; k++) {
      const tsr__gpu_param *p = &calls[i].params[k];
      const tsr_status st = p->bytes == 0 && p->data != NULL ? check_pointer(dev, p->data, k, err) : TSR_OK;
      if (st != TSR_OK) {
        return st;
      }
    }
  }
  return TSR_OK;
}

/* The driver reads parameters, and writes none. */
static void *address_of(const void *p) {
  union {
    const void *in;
    void *ptr;
  } u;
  u.in = p;
  return u.ptr;
}

static unsigned int start(const tsr__cuda *d, const tsr__gpu_call *call, tsr__cu_stream stream) {
  const tsr__cuda_function *f = (const tsr__cuda_function *)call->function;
  void *params[TSR__GPU_MAX_PARAMS];
  for (int32_t i = 0; i < call->num_params; i++) {
    const tsr__gpu_param *p = &call->params[i];
    params[i] = address_of(p->bytes > 0 ? p->data : (const void *)&p->data);
  }
  return d->cu.LaunchKernel(f->function, (unsigned int)call->groups, 1, 1, (unsigned int)call->threads, 1, 1, 0, stream,
                            params, NULL);
}

static tsr_status launch_fail(unsigned int error, tsr_error *err) {
  switch (error) {
  case TSR__CUDA_ERROR_INVALID_HANDLE: /* the kernel is ours, so it is the stream */
    tsr__fail(err, TSR_INVALID, "queue", "queue is no stream of the plan's device and its context");
    break;
  default: return tsr__cuda_fail(err, error, "", "cuLaunchKernel");
  }
  if (err != NULL) {
    err->native_code = (int32_t)error;
  }
  return TSR_INVALID;
}

tsr_status tsr__cuda_enqueue(const tsr__device *dev, const tsr__gpu_queue *queue, const tsr__gpu_call *calls, int32_t n,
                             tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  unsigned int error = TSR__CUDA_SUCCESS;
  tsr_status st;
  if (queue->num_wait_events != 0 || queue->event != NULL) {
    return tsr__fail(err, TSR_INVALID, queue->event != NULL ? "event" : "num_wait_events",
                     "wait lists and events are OpenCL's; on %s the stream orders work, see cuStreamWaitEvent",
                     dev->name);
  }
  st = tsr__cuda_push(d, err);
  if (st != TSR_OK) {
    return st;
  }
  if (dev->host->validate) {
    st = check_pointers(dev, calls, n, err);
  }
  for (int32_t i = 0; i < n && st == TSR_OK && error == TSR__CUDA_SUCCESS; i++) {
    error = start(d, &calls[i], (tsr__cu_stream)queue->queue);
  }
  tsr__cuda_pop(d);
  return error == TSR__CUDA_SUCCESS ? st : launch_fail(error, err);
}
