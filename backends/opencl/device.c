/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing devices. */
#include <stdio.h>
#include <string.h>

#include "backends/opencl/state.h"

static atomic_int user_process; /* see tsr__gpu_enter */

int tsr__opencl_forked(void) {
  return tsr__gpu_forked(&user_process);
}

tsr_status tsr__opencl_enter(tsr_error *err) {
  return tsr__gpu_enter(&user_process, "OpenCL", err);
}

static uint64_t number(const tsr__cl *cl, tsr__cl_device device, uint32_t what, size_t bytes) {
  union {
    uint32_t u32;
    uint64_t u64;
    size_t size;
  } v = {0};
  if (cl->GetDeviceInfo(device, what, bytes, &v, NULL) != TSR__CL_SUCCESS) {
    return 0;
  }
  return bytes == sizeof(v.u32) ? v.u32 : bytes == sizeof(v.u64) ? v.u64 : v.size;
}

static uint32_t number32(const tsr__cl *cl, tsr__cl_device device, uint32_t what) {
  return (uint32_t)number(cl, device, what, sizeof(uint32_t));
}

/* The version in "OpenCL 1.2 whatever", as 102; 0 if there is none. */
static int32_t version_of(const char *text) {
  int major = 0, minor = 0;
  return sscanf(text, "OpenCL %d.%d", &major, &minor) == 2 ? major * 100 + minor : 0;
}

/* What the kernels and this back end rely on. */
static tsr_status check_device(const tsr__cl *cl, tsr__cl_device device, const char *name, tsr_error *err) {
  char version[64], profile[32];
  tsr__opencl_device_text(cl, device, TSR__CL_DEVICE_VERSION, version, sizeof(version));
  tsr__opencl_device_text(cl, device, TSR__CL_DEVICE_PROFILE, profile, sizeof(profile));
  if (version_of(version) < 102) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s is a device of \"%s\"; OpenCL 1.2 is needed", name, version);
  }
  if (strcmp(profile, "FULL_PROFILE") != 0) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s has the embedded profile; the full one is needed", name);
  }
  if (!number32(cl, device, TSR__CL_DEVICE_ENDIAN_LITTLE)) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s is big-endian", name);
  }
  if (!(number(cl, device, TSR__CL_DEVICE_SINGLE_FP_CONFIG, sizeof(uint64_t)) & TSR__CL_FP_INF_NAN)) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s has floats without infinities and NaNs", name);
  }
  if (!number32(cl, device, TSR__CL_DEVICE_AVAILABLE)) {
    return tsr__fail(err, TSR_DEVICE_LOST, "", "%s is there, but its driver says that it is not available", name);
  }
  return TSR_OK;
}

/* Work items a group may have. */
static int32_t max_threads(const tsr__cl *cl, tsr__cl_device device) {
  size_t sizes[16] = {0};
  size_t n = (size_t)number(cl, device, TSR__CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t));
  if (cl->GetDeviceInfo(device, TSR__CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof(sizes), sizes, NULL) == TSR__CL_SUCCESS &&
      sizes[0] < n) {
    n = sizes[0];
  }
  return n < INT32_MAX ? (int32_t)n : INT32_MAX;
}

/* Options of builds; static storage. Never one that lets the compiler reassociate or assume finite numbers. PoCL turns
 * a work group into loops of one CPU function and spends minutes on optimising what is unrolled for a GPU's registers;
 * unoptimised, a kernel is there in a second, and whoever wants a fast CPU has the cpu back end. */
static const char *build_options(const tsr__cl *cl, tsr__cl_device device, const char *platform) {
  const uint64_t floats = number(cl, device, TSR__CL_DEVICE_SINGLE_FP_CONFIG, sizeof(uint64_t));
  const int exact = (floats & TSR__CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  if (number(cl, device, TSR__CL_DEVICE_TYPE, sizeof(uint64_t)) & TSR__CL_DEVICE_TYPE_CPU &&
      strcmp(platform, "Portable Computing Language") == 0) {
    return exact ? "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt -cl-opt-disable"
                 : "-cl-std=CL1.2 -cl-opt-disable";
  }
  return exact ? "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt" : "-cl-std=CL1.2";
}

/* Fills what tsr_device_get shows, and the state. */
static tsr_status describe(const tsr__host *host, tsr__opencl *d, tsr__device *dev, tsr_error *err) {
  const tsr__cl *cl = &d->cl;
  char name[96], driver[48], platform[80], version[96], device_version[48], arch[64], compiler[96];
  tsr_status st;
  tsr__opencl_device_text(cl, d->device, TSR__CL_DEVICE_NAME, name, sizeof(name));
  tsr__opencl_device_text(cl, d->device, TSR__CL_DRIVER_VERSION, driver, sizeof(driver));
  tsr__opencl_device_text(cl, d->device, TSR__CL_DEVICE_VERSION, device_version, sizeof(device_version));
  tsr__opencl_platform_text(cl, d->platform, TSR__CL_PLATFORM_NAME, platform, sizeof(platform));
  tsr__opencl_platform_text(cl, d->platform, TSR__CL_PLATFORM_VERSION, version, sizeof(version));
  d->has_compiler = number32(cl, d->device, TSR__CL_DEVICE_COMPILER_AVAILABLE) != 0;
  d->options = build_options(cl, d->device, platform);
  snprintf(arch, sizeof(arch), "%.40s %.22s", name, driver);
  snprintf(compiler, sizeof(compiler), "%.60s %.34s", version, driver);
  st = tsr__gpu_device_open(host, &tsr__opencl_driver, d, arch, compiler, dev, err);
  if (st != TSR_OK) {
    return st;
  }
  tsr__gpu_of(dev)->options = d->options;
  tsr__gpu_of(dev)->max_threads = max_threads(cl, d->device);
  tsr__gpu_of(dev)->options = d->options;
  dev->host = host;
  dev->computes = 1;
  dev->host_memory = 0;
  dev->num_threads = (int32_t)number32(cl, d->device, TSR__CL_DEVICE_MAX_COMPUTE_UNITS);
  dev->local_bytes = (int64_t)number(cl, d->device, TSR__CL_DEVICE_LOCAL_MEM_SIZE, sizeof(uint64_t));
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE | 1 << TSR_MEMORY_CL_MEM;
  if (version_of(device_version) >= 200 && cl->SetKernelArgSVMPointer != NULL &&
      number(cl, d->device, TSR__CL_DEVICE_SVM_CAPABILITIES, sizeof(uint64_t)) &
          TSR__CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) {
    dev->memory_kinds |= 1 << TSR_MEMORY_SVM;
  }
  snprintf(dev->description, sizeof(dev->description), "%.80s, %d compute units, %.10s (%.40s, driver %.24s)", name,
           dev->num_threads, device_version, platform, driver);
  return TSR_OK;
}

static void release(tsr__opencl *d) {
  if (d->queue != NULL) {
    d->cl.ReleaseCommandQueue(d->queue);
  }
  if (d->context != NULL) {
    d->cl.ReleaseContext(d->context);
  }
  if (d->device != NULL) {
    d->cl.ReleaseDevice(d->device); /* nothing for a whole device */
  }
}

/* A state with the library's functions. */
static tsr_status make_state(const tsr__host *host, tsr__opencl **d, tsr_error *err) {
  char why_not[160];
  tsr_status st = tsr__opencl_enter(err);
  if (st != TSR_OK) {
    return st;
  }
  *d = tsr__alloc_zero(&host->alloc, sizeof(**d));
  if (*d == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a device of %zu bytes", sizeof(**d));
  }
  if (!tsr__cl_open(&(*d)->cl, host->opencl_path, why_not, sizeof(why_not))) {
    tsr__alloc_free(&host->alloc, *d);
    return tsr__fail(err, TSR_BACKEND_MISSING, "name", "opencl: %s", why_not);
  }
  return TSR_OK;
}

static tsr_status own_queue(tsr__opencl *d, tsr_error *err) {
  int32_t error = TSR__CL_SUCCESS;
  d->queue = d->cl.CreateCommandQueue(d->context, d->device, 0, &error);
  d->own_queue = 1;
  return d->queue != NULL ? TSR_OK : tsr__opencl_fail(err, error, "", "clCreateCommandQueue");
}

static tsr_status open_listed(const tsr__host *host, tsr__opencl *d, int32_t index, tsr__device *dev, tsr_error *err) {
  tsr__opencl_list list;
  intptr_t properties[3] = {TSR__CL_CONTEXT_PLATFORM, 0, 0};
  char why_not[192] = "";
  int32_t error = TSR__CL_SUCCESS;
  tsr_status st;
  tsr__opencl_list_devices(&d->cl, &list, why_not, sizeof(why_not));
  if (index < 0 || index >= list.n) {
    return tsr__fail(err, TSR_BACKEND_MISSING, "name", "opencl:%d is not there any more%s%s", index,
                     why_not[0] != '\0' ? ": " : "", why_not);
  }
  snprintf(dev->name, sizeof(dev->name), "opencl:%d", index);
  d->platform = list.at[index].platform;
  d->device = list.at[index].device;
  d->cl.RetainDevice(d->device);
  st = check_device(&d->cl, d->device, dev->name, err);
  if (st != TSR_OK) {
    return st;
  }
  properties[1] = (intptr_t)d->platform;
  d->context = d->cl.CreateContext(properties, 1, &d->device, NULL, NULL, &error);
  if (d->context == NULL) {
    return tsr__opencl_fail(err, error, "", "clCreateContext");
  }
  st = own_queue(d, err);
  return st == TSR_OK ? describe(host, d, dev, err) : st;
}

tsr_status tsr__opencl_open(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  tsr__opencl *d = NULL;
  tsr_status st = make_state(host, &d, err);
  if (st != TSR_OK) {
    return st;
  }
  st = open_listed(host, d, index, dev, err);
  if (st != TSR_OK) {
    release(d);
    tsr__alloc_free(&host->alloc, d);
  }
  return st;
}

/* ---- On handles of the caller's --------------------------------------------------------------- */

static tsr_status check_context(const tsr__cl *cl, const tsr__opencl_given *g, tsr_error *err) {
  tsr__cl_device devices[TSR__OPENCL_MAX_DEVICES];
  size_t bytes = 0;
  const int32_t error = cl->GetContextInfo(g->context, TSR__CL_CONTEXT_DEVICES, sizeof(devices), devices, &bytes);
  if (error != TSR__CL_SUCCESS) {
    return tsr__opencl_fail(err, error, "context", "clGetContextInfo");
  }
  for (size_t i = 0; i < bytes / sizeof(devices[0]); i++) {
    if (devices[i] == g->device) {
      return TSR_OK;
    }
  }
  return tsr__fail(err, TSR_INVALID, "device", "device is not one of the context's");
}

static tsr_status check_queue(const tsr__cl *cl, const tsr__opencl_given *g, int32_t *out_of_order, tsr_error *err) {
  tsr__cl_context context = NULL;
  tsr__cl_device device = NULL;
  uint64_t properties = 0;
  int32_t error = cl->GetCommandQueueInfo(g->queue, TSR__CL_QUEUE_CONTEXT, sizeof(context), &context, NULL);
  error = error != 0 ? error : cl->GetCommandQueueInfo(g->queue, TSR__CL_QUEUE_DEVICE, sizeof(device), &device, NULL);
  error = error != 0
              ? error
              : cl->GetCommandQueueInfo(g->queue, TSR__CL_QUEUE_PROPERTIES, sizeof(properties), &properties, NULL);
  if (error != TSR__CL_SUCCESS) {
    return tsr__opencl_fail(err, error, "queue", "clGetCommandQueueInfo");
  }
  if (context != g->context || device != g->device) {
    return tsr__fail(err, TSR_INVALID, "queue", "queue is of another %s", context != g->context ? "context" : "device");
  }
  *out_of_order = (properties & TSR__CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0;
  return TSR_OK;
}

/* "opencl:1" if the device is one that has a number. */
static void name_given(const tsr__opencl *d, tsr__device *dev) {
  tsr__opencl_list list;
  char why_not[192];
  tsr__opencl_list_devices(&d->cl, &list, why_not, sizeof(why_not));
  snprintf(dev->name, sizeof(dev->name), "opencl:given");
  for (int32_t i = 0; i < list.n; i++) {
    if (list.at[i].device == d->device) {
      snprintf(dev->name, sizeof(dev->name), "opencl:%d", i);
    }
  }
}

static tsr_status adopt(const tsr__host *host, tsr__opencl *d, const tsr__opencl_given *g, tsr__device *dev,
                        tsr_error *err) {
  tsr_status st = check_context(&d->cl, g, err);
  if (st == TSR_OK && g->queue != NULL) {
    st = check_queue(&d->cl, g, &d->out_of_order, err);
  }
  if (st != TSR_OK) {
    return st;
  }
  d->device = g->device;
  d->context = g->context;
  d->cl.RetainDevice(d->device);
  d->cl.RetainContext(d->context);
  d->cl.GetDeviceInfo(d->device, TSR__CL_DEVICE_PLATFORM, sizeof(d->platform), &d->platform, NULL);
  name_given(d, dev);
  st = check_device(&d->cl, d->device, dev->name, err);
  if (st == TSR_OK && g->queue != NULL) {
    d->queue = g->queue;
    d->cl.RetainCommandQueue(d->queue);
  } else if (st == TSR_OK) {
    st = own_queue(d, err);
  }
  return st == TSR_OK ? describe(host, d, dev, err) : st;
}

tsr_status tsr__opencl_adopt(const tsr__host *host, const void *given, tsr__device *dev, tsr_error *err) {
  tsr__opencl *d = NULL;
  tsr_status st = make_state(host, &d, err);
  if (st != TSR_OK) {
    return st;
  }
  st = adopt(host, d, given, dev, err);
  if (st != TSR_OK) {
    release(d);
    tsr__alloc_free(&host->alloc, d);
  }
  return st;
}

void tsr__opencl_close(tsr__device *dev) {
  const tsr__alloc alloc = dev->host->alloc;
  tsr__opencl *d = tsr__opencl_of(dev);
  tsr__gpu_device_close(dev);
  if (!tsr__opencl_forked()) {
    release(d);
  }
  tsr__alloc_free(&alloc, d);
}
