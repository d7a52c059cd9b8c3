/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA back end: its table, and the entry points of tessera/cuda.h. */
#include "tessera/cuda.h"

#include <stdio.h>

#include "backends/cuda/state.h"

extern const tsr__backend tsr__backend_cuda;

const tsr__gpu_driver tsr__cuda_driver = {
    .language = "cuda",
    .compile = tsr__cuda_compile,
    .load = tsr__cuda_load,
    .unload = tsr__cuda_unload,
    .enqueue = tsr__cuda_enqueue,
};

static int32_t count(const tsr__host *host, char *why_not, size_t bytes) {
  char buffer[32];
  tsr_error err;
  tsr__cu cu;
  unsigned int error;
  int n = 0;
  (void)host;
  if (tsr__cuda_enter(&err) != TSR_OK) {
    snprintf(why_not, bytes, "%s", err.text);
    return 0;
  }
  if (!tsr__cu_open(&cu, why_not, bytes)) {
    return 0;
  }
  error = cu.DeviceGetCount(&n);
  if (error != TSR__CUDA_SUCCESS || n < 1) {
    snprintf(why_not, bytes, "the NVIDIA driver is here, but no device is%s%s",
             error != TSR__CUDA_SUCCESS ? ": " : "; CUDA_VISIBLE_DEVICES may hide it",
             error != TSR__CUDA_SUCCESS ? tsr__cu_error_name(error, buffer, sizeof(buffer)) : "");
    return 0;
  }
  return n;
}

tsr_status tsr_cuda_device_open(tsr_context *context, const tsr_cuda_params *params, tsr_device **device,
                                tsr_error *err) {
  tsr_cuda_params p = tsr_cuda_params_init();
  tsr__cuda_given given;
  tsr_status st;
  if (context == NULL || params == NULL || device == NULL) {
    return tsr__fail(err, TSR_INVALID,
                     context == NULL  ? "context"
                     : params == NULL ? "params"
                                      : "device",
                     "a required pointer is NULL");
  }
  *device = NULL;
  st = tsr__struct_import(&p, sizeof(p), 0, params, "tsr_cuda_params", err);
  if (st != TSR_OK) {
    return st;
  }
  if ((p.context != NULL) + (p.uuid != NULL) + (p.device != 0) > 1 || p.reserved != 0) {
    return tsr__fail(err, TSR_INVALID, p.reserved != 0 ? "reserved" : "device",
                     p.reserved != 0 ? "reserved must be 0" : "context, uuid and device: only one may be given");
  }
  given.context = (tsr__cu_context)p.context;
  given.uuid = p.uuid;
  given.device = p.device;
  return tsr__device_adopt(context, &tsr__backend_cuda, tsr__cuda_adopt, &given, device, err);
}

tsr_status tsr_cuda_device_get(const tsr_device *device, tsr_cuda_handles *handles, tsr_error *err) {
  const tsr__device *dev = tsr__device_of(device, &tsr__backend_cuda);
  tsr_cuda_handles out = {0};
  if (dev == NULL || handles == NULL) {
    return tsr__fail(err, TSR_INVALID, dev == NULL ? "device" : "handles", "%s",
                     dev == NULL ? "device is none of CUDA's" : "a required pointer is NULL");
  }
  out.context = tsr__cuda_of(dev)->context;
  out.device = tsr__cuda_of(dev)->device;
  out.compute_capability = tsr__cuda_of(dev)->arch;
  tsr__cuda_uuid(&tsr__cuda_of(dev)->cu, out.device, out.uuid);
  return tsr__struct_export(handles, handles->size, &out, sizeof(out), err);
}

const tsr__backend tsr__backend_cuda = {
    .abi = TSR__BACKEND_ABI,
    .name = "cuda",
    .computes = 1,
    .count = count,
    .open = tsr__cuda_open,
    .close = tsr__cuda_close,
    .prepare = tsr__gpu_prepare,
    .memory_alloc = tsr__cuda_memory_alloc,
    .memory_free = tsr__cuda_memory_free,
    .memory_write = tsr__cuda_memory_write,
    .memory_read = tsr__cuda_memory_read,
    .wait = tsr__cuda_wait,
    .run_attention = tsr__gpu_run_attention,
    .run_append = tsr__gpu_run_append,
    .run_merge = tsr__gpu_run_merge,
};
