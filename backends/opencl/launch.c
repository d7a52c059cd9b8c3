/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel starts on a queue. */
#include "backends/opencl/state.h"

/* The queue of one run. */
struct target {
  tsr__cl_queue queue;
  int32_t chained; /* the queue is out-of-order: each launch waits for the event of the one before */
  int32_t memory;  /* TSR_MEMORY_* */
};

static tsr_status find_queue(const tsr__opencl *d, const tsr__gpu_queue *q, struct target *t, tsr_error *err) {
  tsr__cl_context context = NULL;
  tsr__cl_device device = NULL;
  uint64_t properties = 0;
  int32_t error;
  t->memory = q->memory;
  if (q->queue == NULL || q->queue == (void *)d->queue) {
    t->queue = d->queue;
    t->chained = d->out_of_order;
    return TSR_OK;
  }
  t->queue = (tsr__cl_queue)q->queue;
  error = d->cl.GetCommandQueueInfo(t->queue, TSR__CL_QUEUE_CONTEXT, sizeof(context), &context, NULL);
  error = error != 0 ? error : d->cl.GetCommandQueueInfo(t->queue, TSR__CL_QUEUE_DEVICE, sizeof(device), &device, NULL);
  error = error != 0
              ? error
              : d->cl.GetCommandQueueInfo(t->queue, TSR__CL_QUEUE_PROPERTIES, sizeof(properties), &properties, NULL);
  if (error != TSR__CL_SUCCESS) {
    return tsr__opencl_fail(err, error, "queue", "clGetCommandQueueInfo");
  }
  if (context != d->context || device != d->device) {
    return tsr__fail(err, TSR_INVALID, "queue", "queue is of another %s than the plan's",
                     context != d->context ? "cl_context" : "device");
  }
  t->chained = (properties & TSR__CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
  return TSR_OK;
}

/* With the context's `validate`: what a handle is, before the driver finds out in its own words. */
static tsr_status check_buffer(const tsr__opencl *d, const void *handle, int32_t i, tsr_error *err) {
  union {
    const void *in;
    void *ptr;
  } u;
  tsr__cl_context context = NULL;
  int32_t error;
  u.in = handle;
  error = d->cl.GetMemObjectInfo((tsr__cl_mem)u.ptr, TSR__CL_MEM_CONTEXT, sizeof(context), &context, NULL);
  if (error == TSR__CL_SUCCESS && context == d->context) {
    return TSR_OK;
  }
  return tsr__fail(err, TSR_INVALID, "", "parameter %d of the kernel is %s", i,
                   error == TSR__CL_SUCCESS ? "a buffer of another cl_context" : "no cl_mem");
}

static tsr_status set_params(const tsr__device *dev, const tsr__gpu_call *call, int32_t memory, tsr__cl_kernel kernel,
                             tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  for (int32_t i = 0; i < call->num_params; i++) {
    const tsr__gpu_param *p = &call->params[i];
    int32_t error;
    if (p->bytes > 0) {
      error = d->cl.SetKernelArg(kernel, (uint32_t)i, (size_t)p->bytes, p->data);
    } else if (p->data != NULL && memory == TSR_MEMORY_SVM) {
      error = d->cl.SetKernelArgSVMPointer(kernel, (uint32_t)i, p->data);
    } else { /* a handle, or none: NULL is a null pointer in the kernel */
      const tsr_status st = dev->host->validate && p->data != NULL ? check_buffer(d, p->data, i, err) : TSR_OK;
      if (st != TSR_OK) {
        return st;
      }
      error = d->cl.SetKernelArg(kernel, (uint32_t)i, sizeof(p->data), &p->data);
    }
    if (error != TSR__CL_SUCCESS) {
      tsr_status st = tsr__opencl_fail(err, error, "", "clSetKernelArg");
      if (error == TSR__CL_INVALID_MEM_OBJECT || error == TSR__CL_INVALID_ARG_VALUE) {
        st = tsr__fail(err, TSR_INVALID, "", "parameter %d of the kernel is no buffer of this cl_context", i);
      }
      return st;
    }
  }
  return TSR_OK;
}

static tsr_status start(const tsr__device *dev, const tsr__gpu_call *call, const struct target *t, uint32_t num_wait,
                        const tsr__cl_event *wait, tsr__cl_event *event, tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  const size_t local = (size_t)call->threads, global = (size_t)call->groups * local;
  tsr__opencl_clone *clone = NULL;
  tsr_status st = tsr__opencl_clone_take(dev, call->function, &clone, err);
  if (st != TSR_OK) {
    return st;
  }
  st = set_params(dev, call, t->memory, clone->kernel, err);
  if (st == TSR_OK) { /* which reads the arguments: the clone is free again when it returns */
    const int32_t error =
        d->cl.EnqueueNDRangeKernel(t->queue, clone->kernel, 1, NULL, &global, &local, num_wait, wait, event);
    st = error == TSR__CL_SUCCESS ? TSR_OK : tsr__opencl_queue_fail(d, err, error, "clEnqueueNDRangeKernel");
  }
  tsr__opencl_clone_give(call->function, clone);
  return st;
}

/* The caller's list as the driver takes it: an array of handles is one of pointers. */
static const tsr__cl_event *wait_list(const tsr__gpu_queue *q) {
  return q->num_wait_events > 0 ? (const tsr__cl_event *)(const void *)q->wait_events : NULL;
}

static tsr_status nothing_to_start(const tsr__opencl *d, const tsr__gpu_queue *q, const struct target *t,
                                   tsr_error *err) {
  tsr__cl_event event = NULL;
  int32_t error = TSR__CL_SUCCESS;
  if (q->event != NULL || q->num_wait_events > 0) {
    error = d->cl.EnqueueMarkerWithWaitList(t->queue, (uint32_t)q->num_wait_events, wait_list(q),
                                            q->event != NULL ? &event : NULL);
  }
  if (error != TSR__CL_SUCCESS) {
    return tsr__opencl_queue_fail(d, err, error, "clEnqueueMarkerWithWaitList");
  }
  if (q->event != NULL) {
    *q->event = event;
  }
  return TSR_OK;
}

tsr_status tsr__opencl_enqueue(const tsr__device *dev, const tsr__gpu_queue *queue, const tsr__gpu_call *calls,
                               int32_t n, tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  struct target t = {NULL, 0, 0};
  tsr__cl_event before = NULL;
  tsr_status st = tsr__opencl_enter(err);
  if (st == TSR_OK) {
    st = find_queue(d, queue, &t, err);
  }
  if (st != TSR_OK || n == 0) {
    return st == TSR_OK ? nothing_to_start(d, queue, &t, err) : st;
  }
  for (int32_t i = 0; i < n && st == TSR_OK; i++) {
    const int first = i == 0, last = i == n - 1;
    const int wants_event = last ? queue->event != NULL : t.chained;
    const int waits_before = !first && t.chained;
    tsr__cl_event event = NULL;
    st = start(dev, &calls[i], &t,
               first          ? (uint32_t)queue->num_wait_events
               : waits_before ? 1u
                              : 0u,
               first          ? wait_list(queue)
               : waits_before ? &before
                              : NULL,
               wants_event ? &event : NULL, err);
    if (before != NULL) {
      d->cl.ReleaseEvent(before);
    }
    before = event;
  }
  if (st == TSR_OK && queue->event != NULL) {
    *queue->event = before;
  }
  if (d->own_queue && t.queue == d->queue) {
    d->cl.Flush(d->queue); /* nobody else would */
  }
  return st;
}
