/* SPDX-License-Identifier: Apache-2.0 */
/* Opening and closing devices; the current context of the calling thread. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/state.h"

static atomic_int user_process; /* see tsr__gpu_enter */

int tsr__cuda_forked(void) {
  return tsr__gpu_forked(&user_process);
}

tsr_status tsr__cuda_enter(tsr_error *err) {
  return tsr__gpu_enter(&user_process, "CUDA", err);
}

tsr_status tsr__cuda_push(const tsr__cuda *d, tsr_error *err) {
  const tsr_status st = tsr__cuda_enter(err);
  unsigned int error;
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.CtxPushCurrent(d->context);
  return error == TSR__CUDA_SUCCESS ? TSR_OK : tsr__cuda_fail(err, error, "", "cuCtxPushCurrent");
}

void tsr__cuda_pop(const tsr__cuda *d) {
  tsr__cu_context context;
  d->cu.CtxPopCurrent(&context);
}

static int attribute(const tsr__cu *cu, int device, unsigned int what) {
  int value = 0;
  return cu->DeviceGetAttribute(&value, what, device) == TSR__CUDA_SUCCESS ? value : 0;
}

void tsr__cuda_uuid(const tsr__cu *cu, int device, char out[TSR__CUDA_UUID_BYTES]) {
  unsigned char bytes[16];
  size_t at;
  out[0] = '\0';
  if (cu->DeviceGetUuid((struct CUuuid_st *)(void *)bytes, device) != TSR__CUDA_SUCCESS) {
    return;
  }
  at = (size_t)snprintf(out, TSR__CUDA_UUID_BYTES, "GPU");
  for (int i = 0; i < 16; i++) {
    const int dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    at += (size_t)snprintf(out + at, TSR__CUDA_UUID_BYTES - at, "%s%02x", dash ? "-" : "", bytes[i]);
  }
}

#define OPTION_TEXT(option) option " "

/* Fills what tsr_device_get shows, and the state of d->device. */
static tsr_status describe(const tsr__host *host, tsr__cuda *d, tsr__device *dev, tsr_error *err) {
  char name[96] = "", arch[64], compiler[96];
  size_t bytes = 0;
  const tsr__cu *cu = &d->cu;
  const int processors = attribute(cu, d->device, TSR__CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  tsr_status st;
  d->arch = attribute(cu, d->device, TSR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
            attribute(cu, d->device, TSR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  d->any_pointer = attribute(cu, d->device, TSR__CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
  cu->DeviceGetName(name, (int)sizeof(name), d->device);
  name[sizeof(name) - 1] = '\0';
  cu->DeviceTotalMem(&bytes, d->device);
  tsr__nvrtc_open(&d->nvrtc, host->nvrtc_path, cu->version, d->no_nvrtc, sizeof(d->no_nvrtc));
  snprintf(arch, sizeof(arch), "sm_%d", d->arch);
  if (d->nvrtc.found) {
    snprintf(compiler, sizeof(compiler), "nvrtc %d.%d, driver %d", d->nvrtc.major, d->nvrtc.minor, cu->version);
  } else {
    snprintf(compiler, sizeof(compiler), "none, driver %d", cu->version);
  }
  st = tsr__gpu_device_open(host, &tsr__cuda_driver, d, arch, compiler, dev, err);
  if (st != TSR_OK) {
    return st;
  }
  tsr__gpu_of(dev)->options = TSR__CUDA_OPTIONS(OPTION_TEXT);
  tsr__gpu_of(dev)->max_threads = attribute(cu, d->device, TSR__CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  dev->num_threads = processors;
  dev->local_bytes = attribute(cu, d->device, TSR__CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE | 1 << TSR_MEMORY_DEVICE;
  snprintf(dev->name, sizeof(dev->name), "cuda:%d", d->device);
  snprintf(dev->isa, sizeof(dev->isa), "sm_%d", d->arch);
  snprintf(dev->description, sizeof(dev->description), "%.80s, sm_%d, %d multiprocessors, %.1f GiB (CUDA %d.%d, ", name,
           d->arch, processors, (double)bytes / (1024.0 * 1024.0 * 1024.0), cu->version / 1000,
           cu->version % 1000 / 10);
  bytes = strlen(dev->description);
  if (d->nvrtc.found) {
    snprintf(dev->description + bytes, sizeof(dev->description) - bytes, "NVRTC %d.%d)", d->nvrtc.major,
             d->nvrtc.minor);
  } else {
    snprintf(dev->description + bytes, sizeof(dev->description) - bytes, "no NVRTC)");
  }
  return TSR_OK;
}

/* "GPU-..." as nvidia-smi prints it; the start of one is enough if it fits one device alone. */
static tsr_status find_uuid(const tsr__cu *cu, const char *wanted, int *device, tsr_error *err) {
  char uuid[TSR__CUDA_UUID_BYTES];
  int n = 0, fits = 0;
  unsigned int error = cu->DeviceGetCount(&n);
  if (error != TSR__CUDA_SUCCESS) {
    return tsr__cuda_fail(err, error, "uuid", "cuDeviceGetCount");
  }
  for (int i = 0; i < n; i++) {
    int candidate = 0;
    error = cu->DeviceGet(&candidate, i);
    if (error != TSR__CUDA_SUCCESS) {
      return tsr__cuda_fail(err, error, "uuid", "cuDeviceGet");
    }
    tsr__cuda_uuid(cu, candidate, uuid);
    if (strlen(wanted) > 4 && strncmp(uuid, wanted, strlen(wanted)) == 0) {
      *device = candidate;
      fits++;
    }
  }
  return fits == 1 ? TSR_OK
                   : tsr__fail(err, TSR_INVALID, "uuid", "\"%.48s\" fits %d of the %d devices here", wanted, fits, n);
}

static tsr_status find_number(const tsr__cu *cu, int32_t index, int *device, tsr_error *err) {
  int n = 0;
  unsigned int error = cu->DeviceGetCount(&n);
  if (error == TSR__CUDA_SUCCESS && (index < 0 || index >= n)) {
    return tsr__fail(err, TSR_INVALID, "device", "device is %d, there are %d devices here", index, n);
  }
  if (error == TSR__CUDA_SUCCESS) {
    error = cu->DeviceGet(device, index);
  }
  return error == TSR__CUDA_SUCCESS ? TSR_OK : tsr__cuda_fail(err, error, "device", "cuDeviceGet");
}

/* The device of a context of the caller's. */
static tsr_status find_context(tsr__cuda *d, tsr_error *err) {
  unsigned int error;
  const tsr_status st = tsr__cuda_push(d, err);
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.CtxGetDevice(&d->device);
  tsr__cuda_pop(d);
  return error == TSR__CUDA_SUCCESS ? TSR_OK : tsr__cuda_fail(err, error, "context", "cuCtxGetDevice");
}

static tsr_status find_device(tsr__cuda *d, const tsr__cuda_given *given, tsr_error *err) {
  unsigned int error;
  tsr_status st;
  if (given->context != NULL) {
    d->context = given->context;
    return find_context(d, err);
  }
  st = given->uuid != NULL ? find_uuid(&d->cu, given->uuid, &d->device, err)
                           : find_number(&d->cu, given->device, &d->device, err);
  if (st != TSR_OK) {
    return st;
  }
  error = d->cu.DevicePrimaryCtxRetain(&d->context, d->device);
  if (error != TSR__CUDA_SUCCESS) {
    return tsr__cuda_fail(err, error, "", "cuDevicePrimaryCtxRetain");
  }
  d->retained = 1;
  return TSR_OK;
}

tsr_status tsr__cuda_adopt(const tsr__host *host, const void *given, tsr__device *dev, tsr_error *err) {
  char why_not[192];
  tsr__cuda *d;
  tsr_status st = tsr__cuda_enter(err);
  if (st != TSR_OK) {
    return st;
  }
  d = tsr__alloc_zero(&host->alloc, sizeof(*d));
  if (d == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a device of %zu bytes", sizeof(*d));
  }
  if (!tsr__cu_open(&d->cu, why_not, sizeof(why_not))) {
    st = tsr__fail(err, TSR_BACKEND_MISSING, "name", "cuda: %s", why_not);
  }
  if (st == TSR_OK) {
    st = find_device(d, (const tsr__cuda_given *)given, err);
  }
  if (st == TSR_OK) {
    st = describe(host, d, dev, err);
  }
  if (st != TSR_OK) {
    if (d->retained) {
      d->cu.DevicePrimaryCtxRelease(d->device);
    }
    tsr__alloc_free(&host->alloc, d);
  }
  return st;
}

tsr_status tsr__cuda_open(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  tsr__cuda_given given = {NULL, NULL, 0};
  given.device = index;
  return tsr__cuda_adopt(host, &given, dev, err);
}

void tsr__cuda_close(tsr__device *dev) {
  tsr__cuda *d = tsr__cuda_of(dev);
  const tsr__host *host = dev->host;
  tsr__gpu_device_close(dev);
  if (d->retained && !tsr__cuda_forked()) {
    d->cu.DevicePrimaryCtxRelease(d->device);
  }
  tsr__alloc_free(&host->alloc, d);
}
