/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenCL back end: its table, and the entry points of tessera/opencl.h. */
#include "tessera/opencl.h"

#include <stdio.h>

#include "backends/opencl/state.h"

extern const tsr__backend tsr__backend_opencl;

const tsr__gpu_driver tsr__opencl_driver = {
    .language = "opencl",
    .compile = tsr__opencl_compile,
    .load = tsr__opencl_load,
    .unload = tsr__opencl_unload,
    .enqueue = tsr__opencl_enqueue,
};

static int32_t count(const tsr__host *host, char *why_not, size_t bytes) {
  tsr__opencl_list list;
  tsr_error err;
  tsr__cl cl;
  if (!tsr__cl_open(&cl, host->opencl_path, why_not, bytes)) {
    return 0;
  }
  if (tsr__opencl_enter(&err) != TSR_OK) {
    snprintf(why_not, bytes, "%s", err.text);
    return 0;
  }
  tsr__opencl_list_devices(&cl, &list, why_not, bytes);
  return list.n;
}

tsr_status tsr_opencl_device_open(tsr_context *context, const tsr_opencl_params *params, tsr_device **device,
                                  tsr_error *err) {
  tsr_opencl_params p = tsr_opencl_params_init();
  tsr__opencl_given given;
  tsr_status st;
  if (context == NULL || params == NULL || device == NULL) {
    return tsr__fail(err, TSR_INVALID,
                     context == NULL  ? "context"
                     : params == NULL ? "params"
                                      : "device",
                     "a required pointer is NULL");
  }
  *device = NULL;
  st = tsr__struct_import(&p, sizeof(p), 0, params, "tsr_opencl_params", err);
  if (st != TSR_OK) {
    return st;
  }
  if (p.context == NULL || p.device == NULL) {
    return tsr__fail(err, TSR_INVALID, p.context == NULL ? "context" : "device", "a required handle is NULL");
  }
  given.context = (tsr__cl_context)p.context;
  given.device = (tsr__cl_device)p.device;
  given.queue = (tsr__cl_queue)p.queue;
  return tsr__device_adopt(context, &tsr__backend_opencl, tsr__opencl_adopt, &given, device, err);
}

tsr_status tsr_opencl_device_get(const tsr_device *device, tsr_opencl_handles *handles, tsr_error *err) {
  const tsr__device *dev = tsr__device_of(device, &tsr__backend_opencl);
  tsr_opencl_handles out = {0};
  if (dev == NULL || handles == NULL) {
    return tsr__fail(err, TSR_INVALID, dev == NULL ? "device" : "handles", "%s",
                     dev == NULL ? "device is none of OpenCL's" : "a required pointer is NULL");
  }
  out.platform = tsr__opencl_of(dev)->platform;
  out.context = tsr__opencl_of(dev)->context;
  out.device = tsr__opencl_of(dev)->device;
  out.queue = tsr__opencl_of(dev)->queue;
  return tsr__struct_export(handles, handles->size, &out, sizeof(out), err);
}

const tsr__backend tsr__backend_opencl = {
    .abi = TSR__BACKEND_ABI,
    .name = "opencl",
    .computes = 1,
    .count = count,
    .open = tsr__opencl_open,
    .close = tsr__opencl_close,
    .prepare = tsr__gpu_prepare,
    .memory_alloc = tsr__opencl_memory_alloc,
    .memory_free = tsr__opencl_memory_free,
    .memory_write = tsr__opencl_memory_write,
    .memory_read = tsr__opencl_memory_read,
    .wait = tsr__opencl_wait,
    .run_attention = tsr__gpu_run_attention,
    .run_append = tsr__gpu_run_append,
    .run_merge = tsr__gpu_run_merge,
};
