/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/mocks/mock_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/cu.h"

#define EXPORT __attribute__((visibility("default")))

/* Prototypes of everything exported, checked against the back end's own. */
#define X(name, suffix, params) EXPORT unsigned int cu##name##suffix params;
TSR__CU_FUNCTIONS(X)
TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X

static mock_cuda mock;
static char primaries[MOCK_DEVICES], others[MOCK_DEVICES];
static char functions[4], modules[4];
static __thread void *stack[MOCK_DEPTH];
static __thread int depth;
static __thread unsigned int capture_mode;

EXPORT mock_cuda *mock_cuda_state(void) {
  return &mock;
}

EXPORT void mock_cuda_reset(void) {
  memset(&mock, 0, sizeof(mock));
  mock.devices = 1;
  mock.version = 12040;
  mock.max_threads = 1024;
  for (int i = 0; i < MOCK_DEVICES; i++) {
    mock.arch[i] = 90;
  }
  depth = 0;
  capture_mode = 0;
}

EXPORT void *mock_cuda_current(void) {
  return depth > 0 ? stack[depth - 1] : NULL;
}

EXPORT int mock_cuda_depth(void) {
  return depth;
}

EXPORT void *mock_cuda_primary(int device) {
  return &primaries[device];
}

EXPORT void *mock_cuda_context(int device) {
  return &others[device];
}

static int device_of(const void *context) {
  for (int i = 0; i < MOCK_DEVICES; i++) {
    if (context == &primaries[i] || context == &others[i]) {
      return i;
    }
  }
  return -1;
}

/* Records a call; what it is to answer. */
static unsigned int enter(const char *name) {
  if (mock.num_calls < MOCK_CALLS) {
    mock_call *c = &mock.calls[mock.num_calls++];
    c->name = name;
    c->current = mock_cuda_current();
    c->capture_mode = capture_mode;
  }
  return mock.fail != NULL && strcmp(mock.fail, name) == 0 ? mock.fail_with : TSR__CUDA_SUCCESS;
}

#define ENTER(name)                        \
  const unsigned int answer = enter(name); \
  if (answer != TSR__CUDA_SUCCESS) {       \
    return answer;                         \
  }
/* What needs a current context. */
#define ENTER_CONTEXT(name)                 \
  ENTER(name)                               \
  if (device_of(mock_cuda_current()) < 0) { \
    return TSR__CUDA_ERROR_INVALID_CONTEXT; \
  }

unsigned int cuInit(unsigned int flags) {
  (void)flags;
  ENTER("Init")
  return mock.init_result;
}

unsigned int cuDriverGetVersion(int *version) {
  ENTER("DriverGetVersion")
  *version = mock.version;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuGetErrorName(unsigned int error, const char **text) {
  (void)error;
  ENTER("GetErrorName")
  *text = "mock";
  return TSR__CUDA_SUCCESS;
}

unsigned int cuGetErrorString(unsigned int error, const char **text) {
  return cuGetErrorName(error, text);
}

unsigned int cuDeviceGetCount(int *n) {
  ENTER("DeviceGetCount")
  *n = mock.devices;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuDeviceGet(int *device, int ordinal) {
  ENTER("DeviceGet")
  *device = ordinal;
  return ordinal < mock.devices ? TSR__CUDA_SUCCESS : TSR__CUDA_ERROR_INVALID_DEVICE;
}

unsigned int cuDeviceGetName(char *name, int bytes, int device) {
  ENTER("DeviceGetName")
  snprintf(name, (size_t)bytes, "Mock %d", device);
  return TSR__CUDA_SUCCESS;
}

unsigned int cuDeviceGetUuid_v2(struct CUuuid_st *uuid, int device) {
  ENTER("DeviceGetUuid")
  for (int i = 0; i < 16; i++) {
    ((unsigned char *)uuid)[i] = (unsigned char)(i * 17 + (i == 15 ? device : 0));
  }
  return TSR__CUDA_SUCCESS;
}

unsigned int cuDeviceGetAttribute(int *value, unsigned int what, int device) {
  ENTER("DeviceGetAttribute")
  switch (what) {
  case TSR__CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
  case TSR__CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 49152; break;
  case TSR__CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
  case TSR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = mock.arch[device] / 10; break;
  case TSR__CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = mock.arch[device] % 10; break;
  case TSR__CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: *value = mock.pageable; break;
  default: return TSR__CUDA_ERROR_INVALID_VALUE;
  }
  return TSR__CUDA_SUCCESS;
}

unsigned int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  (void)device;
  ENTER("DeviceTotalMem")
  *bytes = (size_t)140 << 30;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuDevicePrimaryCtxRetain(tsr__cu_context *context, int device) {
  ENTER("DevicePrimaryCtxRetain")
  mock.retained[device]++;
  *context = mock_cuda_primary(device);
  return TSR__CUDA_SUCCESS;
}

unsigned int cuDevicePrimaryCtxRelease_v2(int device) {
  ENTER("DevicePrimaryCtxRelease")
  mock.retained[device]--;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuCtxPushCurrent_v2(tsr__cu_context context) {
  ENTER("CtxPushCurrent")
  if (depth == MOCK_DEPTH || device_of(context) < 0) {
    return TSR__CUDA_ERROR_INVALID_CONTEXT;
  }
  stack[depth++] = context;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuCtxPopCurrent_v2(tsr__cu_context *context) {
  ENTER("CtxPopCurrent")
  if (depth == 0) {
    return TSR__CUDA_ERROR_INVALID_CONTEXT;
  }
  *context = stack[--depth];
  return TSR__CUDA_SUCCESS;
}

unsigned int cuCtxGetDevice(int *device) {
  ENTER_CONTEXT("CtxGetDevice")
  *device = device_of(mock_cuda_current());
  return TSR__CUDA_SUCCESS;
}

unsigned int cuThreadExchangeStreamCaptureMode(unsigned int *mode) {
  const unsigned int before = capture_mode;
  ENTER("ThreadExchangeStreamCaptureMode")
  capture_mode = *mode;
  *mode = before;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuModuleLoadDataEx(tsr__cu_module *module, const void *image, unsigned int n, unsigned int *options,
                                void **values) {
  const unsigned int asked = enter("ModuleLoadDataEx");
  for (unsigned int i = 0; i < n; i++) {
    if (options[i] == TSR__CU_JIT_ERROR_LOG_BUFFER && asked != TSR__CUDA_SUCCESS) {
      strcpy((char *)values[i], "ptxas fatal: mock");
    }
  }
  memcpy(mock.image, image, 16);
  if (asked != TSR__CUDA_SUCCESS) {
    return asked;
  }
  *module = (tsr__cu_module)(void *)&modules[mock.modules++ % 4];
  return TSR__CUDA_SUCCESS;
}

unsigned int cuModuleUnload(tsr__cu_module module) {
  (void)module;
  ENTER_CONTEXT("ModuleUnload")
  mock.modules--;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuModuleGetFunction(tsr__cu_function *f, tsr__cu_module module, const char *name) {
  (void)module;
  ENTER_CONTEXT("ModuleGetFunction")
  *f = (tsr__cu_function)(void *)&functions[0];
  return strncmp(name, "tsr_", 4) == 0 ? TSR__CUDA_SUCCESS : TSR__CUDA_ERROR_NOT_FOUND;
}

unsigned int cuFuncLoad(tsr__cu_function f) {
  (void)f;
  ENTER_CONTEXT("FuncLoad")
  return TSR__CUDA_SUCCESS;
}

unsigned int cuFuncGetAttribute(int *value, unsigned int what, tsr__cu_function f) {
  (void)f;
  ENTER("FuncGetAttribute")
  *value = what == TSR__CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? mock.max_threads : 7;
  return TSR__CUDA_SUCCESS;
}

unsigned int cuLaunchKernel(tsr__cu_function f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                            unsigned int by, unsigned int bz, unsigned int shared, tsr__cu_stream stream, void **params,
                            void **extra) {
  mock_launch *l = &mock.launches[mock.num_launches];
  ENTER_CONTEXT("LaunchKernel")
  if (gy != 1 || gz != 1 || by != 1 || bz != 1 || extra != NULL || mock.num_launches == 16) {
    return TSR__CUDA_ERROR_INVALID_VALUE;
  }
  mock.num_launches++;
  l->function = f;
  l->stream = stream;
  l->current = mock_cuda_current();
  l->groups = gx;
  l->threads = bx;
  l->shared = shared;
  for (int i = 0; i < MOCK_PARAMS && mock.param_bytes[i] > 0; i++) {
    memcpy(&l->param[i], params[i], mock.param_bytes[i] < 8 ? (size_t)mock.param_bytes[i] : 8);
  }
  return TSR__CUDA_SUCCESS;
}

unsigned int cuMemAlloc_v2(tsr__cu_ptr *ptr, size_t bytes) {
  ENTER_CONTEXT("MemAlloc")
  mock.allocations++;
  *ptr = (tsr__cu_ptr)(uintptr_t)calloc(1, bytes);
  return TSR__CUDA_SUCCESS;
}

unsigned int cuMemFree_v2(tsr__cu_ptr ptr) {
  ENTER_CONTEXT("MemFree")
  mock.allocations--;
  free((void *)(uintptr_t)ptr);
  return TSR__CUDA_SUCCESS;
}

unsigned int cuMemcpyHtoD_v2(tsr__cu_ptr to, const void *from, size_t bytes) {
  ENTER_CONTEXT("MemcpyHtoD")
  memcpy((void *)(uintptr_t)to, from, bytes);
  return TSR__CUDA_SUCCESS;
}

unsigned int cuMemcpyDtoH_v2(void *to, tsr__cu_ptr from, size_t bytes) {
  ENTER_CONTEXT("MemcpyDtoH")
  memcpy(to, (const void *)(uintptr_t)from, bytes);
  return TSR__CUDA_SUCCESS;
}

unsigned int cuStreamSynchronize(tsr__cu_stream stream) {
  (void)stream;
  ENTER_CONTEXT("StreamSynchronize")
  return TSR__CUDA_SUCCESS;
}

unsigned int cuPointerGetAttribute(void *value, unsigned int what, tsr__cu_ptr ptr) {
  const int other = mock.other_device_ptr != NULL && ptr == (tsr__cu_ptr)(uintptr_t)mock.other_device_ptr;
  ENTER("PointerGetAttribute")
  if (mock.host_ptr != NULL && ptr == (tsr__cu_ptr)(uintptr_t)mock.host_ptr) {
    return TSR__CUDA_ERROR_INVALID_VALUE;
  }
  switch (what) {
  case TSR__CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = other; break;
  case TSR__CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned int *)value = 0; break;
  case TSR__CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned int *)value = 2; break;
  default: return TSR__CUDA_ERROR_INVALID_VALUE;
  }
  return TSR__CUDA_SUCCESS;
}
