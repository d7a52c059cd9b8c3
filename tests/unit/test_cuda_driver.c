/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA back end's host code over the driver and the NVRTC of tests/mocks: current contexts, capture modes, errors,
 * parameters, options. No device is needed, and none would be used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/cuda/state.h"
#include "tessera/cuda.h"
#include "tessera/memory.h"
#include "tests/mocks/mock_cuda.h"

extern const tsr__backend tsr__backend_cuda;

static tsr_context *context;
static tsr_device *device;
static tsr_error err;
static mock_cuda *cuda;
static mock_nvrtc *nvrtc;
static char logged[2048];
static uint64_t context_flags;

static void collect(void *user, int32_t level, const char *text) {
  const size_t used = strlen(logged);
  (void)user;
  (void)level;
  snprintf(logged + used, sizeof(logged) - used, "%s\n", text);
}

static int start(void **state) {
  tsr_context_params p = tsr_context_params_init();
  (void)state;
  cuda = mock_cuda_state();
  nvrtc = mock_nvrtc_state();
  mock_cuda_reset();
  mock_nvrtc_reset();
  cuda->devices = 2;
  logged[0] = '\0';
  p.flags = TSR_CONTEXT_IGNORE_ENV | context_flags;
  p.log = collect;
  p.log_level = TSR_LOG_WARNING;
  device = NULL;
  return tsr_context_create(&p, &context, &err);
}

static int start_validating(void **state) {
  int rc;
  context_flags = TSR_CONTEXT_VALIDATE;
  rc = start(state);
  context_flags = 0;
  return rc;
}

/* Everything taken is given back, and the thread's context is what it was. */
static int end(void **state) {
  (void)state;
  tsr_device_close(device);
  tsr_context_destroy(context);
  assert_int_equal(mock_cuda_depth(), 0);
  assert_int_equal(cuda->retained[0] + cuda->retained[1], 0);
  assert_int_equal(cuda->modules, 0);
  assert_int_equal(cuda->allocations, 0);
  assert_int_equal(nvrtc->programs, 0);
  return 0;
}

static const tsr__device *open_device(const char *name) {
  assert_int_equal(tsr_device_open(context, name, &device, &err), TSR_OK);
  cuda->num_calls = 0;
  return tsr__device_of(device, &tsr__backend_cuda);
}

static int calls_of(const char *name) {
  int n = 0;
  for (int i = 0; i < cuda->num_calls; i++) {
    n += strcmp(cuda->calls[i].name, name) == 0;
  }
  return n;
}

static const mock_call *call_of(const char *name) {
  for (int i = 0; i < cuda->num_calls; i++) {
    if (strcmp(cuda->calls[i].name, name) == 0) {
      return &cuda->calls[i];
    }
  }
  fail_msg("cu%s was not called", name);
  return NULL;
}

static tsr_backend_info backend_info(void) {
  tsr_backend_info info = {0};
  info.size = sizeof(info);
  for (int32_t i = 0; i < tsr_backend_count(context); i++) {
    assert_int_equal(tsr_backend_get(context, i, &info, &err), TSR_OK);
    if (strcmp(info.name, "cuda") == 0) {
      return info;
    }
  }
  fail_msg("there is no back end cuda");
  return info;
}

/* ---- Devices ---------------------------------------------------------------------------------- */

static void devices_are_described(void **state) {
  tsr_device_info info = {0};
  tsr_cuda_handles handles = {0};
  (void)state;
  assert_int_equal(backend_info().device_count, 2);
  cuda->arch[1] = 86;
  open_device("cuda:1");
  info.size = sizeof(info);
  assert_int_equal(tsr_device_get(device, &info, &err), TSR_OK);
  assert_string_equal(info.name, "cuda:1");
  assert_string_equal(info.isa, "sm_86");
  assert_string_equal(info.description, "Mock 1, sm_86, 132 multiprocessors, 140.0 GiB (CUDA 12.4, NVRTC 12.4)");
  assert_int_equal(info.num_threads, 132);
  assert_int_equal(info.local_bytes, 49152);
  assert_int_equal(info.host_memory, 0);
  assert_int_equal(info.memory_kinds, 1 << TSR_MEMORY_NATIVE | 1 << TSR_MEMORY_DEVICE);
  handles.size = sizeof(handles);
  assert_int_equal(tsr_cuda_device_get(device, &handles, &err), TSR_OK);
  assert_ptr_equal(handles.context, mock_cuda_primary(1));
  assert_int_equal(handles.device, 1);
  assert_int_equal(handles.compute_capability, 86);
  assert_string_equal(handles.uuid, "GPU-00112233-4455-6677-8899-aabbccddee00");
  assert_int_equal(cuda->retained[1], 1);
}

static tsr_status open_params(void *given, const char *uuid, int32_t number) {
  tsr_cuda_params p = tsr_cuda_params_init();
  p.context = given;
  p.uuid = uuid;
  p.device = number;
  tsr_device_close(device);
  return tsr_cuda_device_open(context, &p, &device, &err);
}

static int32_t opened_number(void **of_context) {
  tsr_cuda_handles handles = {0};
  handles.size = sizeof(handles);
  assert_int_equal(tsr_cuda_device_get(device, &handles, &err), TSR_OK);
  *of_context = handles.context;
  return handles.device;
}

static void devices_by_handles(void **state) {
  void *own;
  (void)state;
  assert_int_equal(open_params(NULL, "GPU-00112233-4455-6677-8899-aabbccddee00", 0), TSR_OK);
  assert_int_equal(opened_number(&own), 1);
  assert_int_equal(open_params(NULL, "GPU-00112233", 0), TSR_INVALID); /* both */
  assert_string_equal(err.field, "uuid");
  assert_int_equal(open_params(NULL, "GPU-1", 0), TSR_INVALID);
  assert_int_equal(open_params(NULL, "", 0), TSR_INVALID);
  assert_int_equal(open_params(NULL, NULL, 1), TSR_OK);
  assert_int_equal(opened_number(&own), 1);
  assert_ptr_equal(own, mock_cuda_primary(1));
  assert_int_equal(open_params(NULL, NULL, 2), TSR_INVALID);
  assert_int_equal(open_params(NULL, NULL, -1), TSR_INVALID);
  assert_int_equal(open_params(mock_cuda_context(1), NULL, 1), TSR_INVALID);
  assert_int_equal(open_params(mock_cuda_context(1), NULL, 0), TSR_OK); /* not retained: it is the caller's */
  assert_int_equal(cuda->retained[1], 0);
  assert_int_equal(opened_number(&own), 1);
  assert_ptr_equal(own, mock_cuda_context(1));
  assert_int_equal(open_params(cuda, NULL, 0), TSR_INVALID); /* no context at all */
  assert_null(device);
  assert_int_equal(tsr_cuda_device_get(NULL, NULL, &err), TSR_INVALID);
}

static void missing_things_are_told(void **state) {
  (void)state;
  cuda->init_result = TSR__CUDA_ERROR_NO_DEVICE;
  assert_int_equal(tsr_device_open(context, "cuda:0", &device, &err), TSR_BACKEND_MISSING);
  assert_non_null(strstr(err.text, "CUDA_VISIBLE_DEVICES hides it (cuInit: CUDA_ERROR_NO_DEVICE)"));
  assert_non_null(strstr(backend_info().why_not, "no device is"));
}

static void old_drivers_are_refused(void **state) {
  (void)state;
  cuda->version = 11020;
  assert_string_equal(backend_info().why_not, "the NVIDIA driver is too old: it is one of CUDA 11.2, 11.4 is needed");
}

static void drivers_that_do_not_start(void **state) {
  (void)state;
  cuda->init_result = TSR__CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
  assert_string_equal(backend_info().why_not,
                      "the NVIDIA driver is here, but does not start (cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)");
}

/* ---- The thread's current context ------------------------------------------------------------- */

/* Everything a device does, with `current` as the caller's context. */
static void use_all(const tsr__device *dev, void *own) {
  static const char *const in_context[] = {"ModuleLoadDataEx", "ModuleGetFunction", "LaunchKernel",
                                           "MemAlloc",         "MemcpyHtoD",        "MemcpyDtoH",
                                           "MemFree",          "StreamSynchronize", "ModuleUnload"};
  const tsr__gpu_driver *driver = tsr__gpu_of(dev)->driver;
  const tsr__gpu_queue queue = {NULL, NULL, 0, NULL, TSR_MEMORY_NATIVE};
  tsr__gpu_call call = {NULL, 3, 64, 0, NULL};
  size_t bytes = 0;
  const unsigned char *image = mock_nvrtc_cubin(&bytes);
  void *ptr = NULL;
  int32_t word = 42, back = 0;
  tsr_buffer buffer;
  cuda->num_calls = 0;
  assert_int_equal(driver->load(dev, image, bytes, "tsr_forward", 64, &call.function, &err), TSR_OK);
  assert_int_equal(driver->enqueue(dev, &queue, &call, 1, &err), TSR_OK);
  driver->unload(dev, call.function);
  assert_int_equal(tsr_memory_alloc(device, 64, &ptr, &err), TSR_OK);
  buffer = tsr_buffer_out(ptr);
  buffer.offset_bytes = 8;
  assert_int_equal(tsr_memory_write(device, &buffer, &word, 4, &err), TSR_OK);
  assert_int_equal(((int32_t *)ptr)[2], 42);
  assert_int_equal(tsr_memory_read(device, &back, &buffer, 4, &err), TSR_OK);
  assert_int_equal(back, 42);
  tsr_memory_free(device, ptr);
  assert_int_equal(tsr_device_wait(device, NULL, &err), TSR_OK);
  for (size_t i = 0; i < sizeof(in_context) / sizeof(in_context[0]); i++) {
    assert_ptr_equal(call_of(in_context[i])->current, own);
  }
}

static void current_context_is_kept(void **state) {
  const tsr__device *dev = open_device("cuda:1");
  tsr__cu_context popped;
  (void)state;
  use_all(dev, mock_cuda_primary(1)); /* with none current */
  assert_null(mock_cuda_current());
  tsr__cuda_of(dev)->cu.CtxPushCurrent(mock_cuda_context(0)); /* with another device's */
  use_all(dev, mock_cuda_primary(1));
  assert_ptr_equal(mock_cuda_current(), mock_cuda_context(0));
  assert_int_equal(mock_cuda_depth(), 1);
  tsr__cuda_of(dev)->cu.CtxPopCurrent(&popped);
}

/* Also when what is done in between fails. */
static void current_context_is_kept_in_failure(void **state) {
  static const char *const functions[] = {"CtxPushCurrent",    "ModuleLoadDataEx", "ModuleGetFunction", "FuncLoad",
                                          "FuncGetAttribute",  "MemAlloc",         "MemcpyHtoD",        "MemcpyDtoH",
                                          "StreamSynchronize", "LaunchKernel"};
  const tsr__device *dev = open_device("cuda:0");
  const tsr__gpu_driver *driver = tsr__gpu_of(dev)->driver;
  const tsr__gpu_queue queue = {NULL, NULL, 0, NULL, TSR_MEMORY_NATIVE};
  tsr__cuda_function f = {NULL, NULL};
  const tsr__gpu_call call = {&f, 3, 64, 0, NULL};
  size_t bytes = 0;
  const unsigned char *image = mock_nvrtc_cubin(&bytes);
  char memory[8] = {0};
  tsr_buffer buffer = tsr_buffer_out(memory);
  (void)state;
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
    void *function = NULL, *ptr = NULL;
    int failures = 0;
    cuda->fail = functions[i];
    cuda->fail_with = TSR__CUDA_ERROR_INVALID_CONTEXT;
    failures += driver->load(dev, image, bytes, "tsr_forward", 64, &function, &err) != TSR_OK;
    if (function != NULL) {
      driver->unload(dev, function);
    }
    failures += driver->enqueue(dev, &queue, &call, 1, &err) != TSR_OK;
    failures += tsr_memory_alloc(device, 64, &ptr, &err) != TSR_OK;
    failures += tsr_memory_write(device, &buffer, "abc", 3, &err) != TSR_OK;
    failures += tsr_memory_read(device, memory, &buffer, 3, &err) != TSR_OK;
    failures += tsr_device_wait(device, NULL, &err) != TSR_OK;
    cuda->fail = NULL;
    tsr_memory_free(device, ptr);
    assert_true(failures > 0);
    assert_int_equal(mock_cuda_depth(), 0);
    assert_int_equal(cuda->modules, 0);
  }
}

/* ---- Images ----------------------------------------------------------------------------------- */

static void modules_load_in_relaxed_mode(void **state) {
  const tsr__device *dev = open_device("cuda:0");
  const tsr__gpu_driver *driver = tsr__gpu_of(dev)->driver;
  size_t bytes = 0;
  const unsigned char *image = mock_nvrtc_cubin(&bytes);
  void *function = NULL;
  unsigned int mode = 1; /* thread-local, say: a capture is going on */
  (void)state;
  tsr__cuda_of(dev)->cu.ThreadExchangeStreamCaptureMode(&mode);
  assert_int_equal(driver->load(dev, image, bytes, "tsr_forward", 64, &function, &err), TSR_OK);
  assert_int_equal(call_of("ModuleLoadDataEx")->capture_mode, TSR__CU_STREAM_CAPTURE_MODE_RELAXED);
  assert_int_equal(call_of("FuncLoad")->capture_mode, TSR__CU_STREAM_CAPTURE_MODE_RELAXED);
  driver->unload(dev, function);
  assert_int_equal(call_of("ModuleUnload")->capture_mode, TSR__CU_STREAM_CAPTURE_MODE_RELAXED);
  mode = 0;
  tsr__cuda_of(dev)->cu.ThreadExchangeStreamCaptureMode(&mode);
  assert_int_equal(mode, 1); /* as it was */
}

static void bad_images_are_invalid(void **state) {
  static const char *const ptx = ".version 8.0\n.target sm_90\n";
  static const unsigned int about_image[] = {TSR__CUDA_ERROR_INVALID_IMAGE, TSR__CUDA_ERROR_NO_BINARY_FOR_GPU,
                                             TSR__CUDA_ERROR_INVALID_PTX, TSR__CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                                             TSR__CUDA_ERROR_JIT_COMPILER_NOT_FOUND};
  const tsr__device *dev = open_device("cuda:0");
  const tsr__gpu_driver *driver = tsr__gpu_of(dev)->driver;
  size_t bytes = 0;
  const unsigned char *good = mock_nvrtc_cubin(&bytes);
  unsigned char image[128];
  void *function = NULL;
  (void)state;
  /* What the driver must not see, since it is told no length. */
  for (size_t n = 0; n < bytes; n++) {
    memset(image, 0, sizeof(image));
    memcpy(image, good, n);
    assert_int_equal(driver->load(dev, image, n, "tsr_forward", 64, &function, &err), TSR_INVALID);
  }
  memcpy(image, good, bytes);
  image[18] = 62; /* of another machine */
  assert_int_equal(driver->load(dev, image, bytes, "tsr_forward", 64, &function, &err), TSR_INVALID);
  memcpy(image, good, bytes);
  image[64 + 32] = 129; /* a section longer than the file */
  assert_int_equal(driver->load(dev, image, bytes, "tsr_forward", 64, &function, &err), TSR_INVALID);
  memcpy(image, good, bytes);
  memset(image + 40, 0xff, 8);
  assert_int_equal(driver->load(dev, image, bytes, "tsr_forward", 64, &function, &err), TSR_INVALID);
  assert_int_equal(driver->load(dev, "a text that is none", 19, "tsr_forward", 64, &function, &err), TSR_INVALID);
  assert_int_equal(calls_of("ModuleLoadDataEx"), 0);
  /* What the driver itself refuses; its log goes to the hook. */
  for (size_t i = 0; i < sizeof(about_image) / sizeof(about_image[0]); i++) {
    cuda->fail = "ModuleLoadDataEx";
    cuda->fail_with = about_image[i];
    assert_int_equal(driver->load(dev, ptx, strlen(ptx), "tsr_forward", 64, &function, &err), TSR_INVALID);
  }
  assert_non_null(strstr(logged, "tsr_forward: ptxas fatal: mock"));
  cuda->fail_with = TSR__CUDA_ERROR_OUT_OF_MEMORY;
  assert_int_equal(driver->load(dev, ptx, strlen(ptx), "tsr_forward", 64, &function, &err), TSR_OUT_OF_MEMORY);
  cuda->fail_with = TSR__CUDA_ERROR_ILLEGAL_ADDRESS; /* of a kernel that ran before */
  assert_int_equal(driver->load(dev, ptx, strlen(ptx), "tsr_forward", 64, &function, &err), TSR_DEVICE_LOST);
  cuda->fail = NULL;
  assert_int_equal(driver->load(dev, ptx, strlen(ptx), "other_entry", 64, &function, &err), TSR_INVALID);
  cuda->max_threads = 128;
  assert_int_equal(driver->load(dev, ptx, strlen(ptx), "tsr_forward", 256, &function, &err), TSR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "128 threads"));
  assert_null(function);
  assert_int_equal(driver->load(dev, ptx, strlen(ptx), "tsr_forward", 128, &function, &err), TSR_OK);
  driver->unload(dev, function);
}

static const char *const pieces[] = {"first\n", "second", "third\n", NULL};
static const tsr__gpu_source source = {"tsr_forward", "#define A 1\n", "second", pieces};

static void sources_are_compiled(void **state) {
  const tsr__device *dev = open_device("cuda:0");
  const tsr__gpu_driver *driver = tsr__gpu_of(dev)->driver;
  void *image = NULL, *function = NULL;
  size_t bytes = 0;
  (void)state;
  assert_int_equal(driver->compile(dev, &source, &image, &bytes, &err), TSR_OK);
  assert_string_equal(nvrtc->source, "#define A 1\nfirst\n\nsecond\nthird\n\n");
  assert_string_equal(nvrtc->name, "tsr_forward");
  assert_string_equal(nvrtc->options, "-arch=sm_90 --std=c++11 --fmad=false -default-device -DTSR_WAVE=32 ");
  assert_int_equal(nvrtc->cubins, 1);
  assert_int_equal(driver->load(dev, image, bytes, "tsr_forward", 64, &function, &err), TSR_OK);
  assert_memory_equal(cuda->image, "\177ELF", 4);
  driver->unload(dev, function);
  tsr__alloc_free(&dev->host->alloc, image);
}

/* A device newer than NVRTC gets PTX of the newest that it knows; an older one nothing. */
static void other_architectures(void **state) {
  const tsr__device *dev;
  void *image = NULL, *function = NULL;
  size_t bytes = 0;
  (void)state;
  cuda->arch[0] = 100;
  cuda->arch[1] = 70;
  dev = open_device("cuda:0");
  assert_int_equal(tsr__cuda_compile(dev, &source, &image, &bytes, &err), TSR_OK);
  assert_non_null(strstr(nvrtc->options, "-arch=compute_90 "));
  assert_int_equal(nvrtc->ptxs, 1);
  assert_int_equal(tsr__cuda_load(dev, image, bytes, "tsr_forward", 64, &function, &err), TSR_OK);
  assert_memory_equal(cuda->image, ".version", 8);
  tsr__cuda_unload(dev, function);
  tsr__alloc_free(&dev->host->alloc, image);
  tsr_device_close(device);
  dev = open_device("cuda:1");
  assert_int_equal(tsr__cuda_compile(dev, &source, &image, &bytes, &err), TSR_UNSUPPORTED);
  assert_non_null(strstr(err.text, "NVRTC 12.4 compiles for sm_75 and newer, cuda:1 is sm_70"));
}

static void compile_errors_are_told(void **state) {
  const tsr__device *dev = open_device("cuda:0");
  void *image = NULL;
  size_t bytes = 0;
  (void)state;
  nvrtc->compile_result = TSR__NVRTC_ERROR_COMPILATION;
  nvrtc->log = "tsr_forward(3): warning: x\ntsr_forward(7): error: identifier \"y\" is undefined\n\n1 error detected\n";
  assert_int_equal(tsr__cuda_compile(dev, &source, &image, &bytes, &err), TSR_DEVICE_ERROR);
  assert_string_equal(err.text,
                      "tsr_forward: NVRTC_ERROR_COMPILATION: tsr_forward(7): error: identifier \"y\" is undefined");
  assert_int_equal(err.native_code, TSR__NVRTC_ERROR_COMPILATION);
  assert_non_null(strstr(logged, "tsr_forward: tsr_forward(3): warning: x\n"));
  assert_non_null(strstr(logged, "1 error detected\n"));
  nvrtc->compile_result = TSR__NVRTC_ERROR_OUT_OF_MEMORY;
  assert_int_equal(tsr__cuda_compile(dev, &source, &image, &bytes, &err), TSR_OUT_OF_MEMORY);
  assert_null(image);
}

static void nvrtc_is_looked_for_where_told(void **state) {
  tsr_context_params p = tsr_context_params_init();
  tsr_context *own = NULL;
  const tsr__device *dev;
  void *image = NULL;
  size_t bytes = 0;
  (void)state;
  p.flags = TSR_CONTEXT_IGNORE_ENV;
  p.nvrtc_path = "/nowhere/at/all";
  assert_int_equal(tsr_context_create(&p, &own, &err), TSR_OK);
  assert_int_equal(tsr_device_open(own, "cuda:0", &device, &err), TSR_OK);
  dev = tsr__device_of(device, &tsr__backend_cuda);
  assert_non_null(strstr(dev->description, "no NVRTC"));
  assert_int_equal(tsr__cuda_compile(dev, &source, &image, &bytes, &err), TSR_UNSUPPORTED);
  assert_string_equal(err.text, "there is no NVRTC 11.2 or newer at /nowhere/at/all");
  tsr_context_destroy(own);
}

/* ---- Launches --------------------------------------------------------------------------------- */

static void parameters_arrive(void **state) {
  const tsr__device *dev = open_device("cuda:0");
  const uint64_t big[2] = {UINT64_C(0x1122334455667788), 2};
  const int32_t small = 77;
  int q, stream;
  const tsr__gpu_param params[] = {{&q, 0}, {NULL, 0}, {big, sizeof(big)}, {&small, sizeof(small)}};
  tsr__cuda_function f = {NULL, (tsr__cu_function)(void *)&q};
  const tsr__gpu_call calls[] = {{&f, 2147483647, 256, 4, params}, {&f, 1, 32, 1, params}};
  const tsr__gpu_queue queue = {&stream, NULL, 0, NULL, TSR_MEMORY_DEVICE};
  static const int bytes[] = {8, 8, 16, 4};
  (void)state;
  memcpy(cuda->param_bytes, bytes, sizeof(bytes));
  /* The second call has one parameter, the mock reads those of both alike. */
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, calls, 1, &err), TSR_OK);
  assert_int_equal(cuda->num_launches, 1);
  assert_int_equal(cuda->launches[0].groups, 2147483647);
  assert_int_equal(cuda->launches[0].threads, 256);
  assert_int_equal(cuda->launches[0].shared, 0);
  assert_ptr_equal(cuda->launches[0].function, &q);
  assert_ptr_equal(cuda->launches[0].stream, &stream);
  assert_int_equal(cuda->launches[0].param[0], (uint64_t)(uintptr_t)&q);
  assert_int_equal(cuda->launches[0].param[1], 0);
  assert_int_equal(cuda->launches[0].param[2], big[0]);
  assert_int_equal(cuda->launches[0].param[3], 77);
  cuda->param_bytes[1] = 0;
  cuda->num_calls = 0;
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, calls, 2, &err), TSR_OK);
  assert_int_equal(cuda->num_launches, 3);
  assert_int_equal(cuda->launches[2].threads, 32);
  /* Nothing but these, whatever the number of launches. */
  assert_int_equal(cuda->num_calls, 4);
  assert_int_equal(calls_of("CtxPushCurrent"), 1);
  assert_int_equal(calls_of("LaunchKernel"), 2);
  assert_int_equal(calls_of("CtxPopCurrent"), 1);
}

static void launch_errors(void **state) {
  static const struct {
    unsigned int error;
    tsr_status status;
  } table[] = {
      {TSR__CUDA_ERROR_INVALID_HANDLE, TSR_INVALID},
      {TSR__CUDA_ERROR_OUT_OF_MEMORY, TSR_OUT_OF_MEMORY},
      {TSR__CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, TSR_DEVICE_ERROR},
      {TSR__CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, TSR_DEVICE_ERROR},
      {TSR__CUDA_ERROR_LAUNCH_FAILED, TSR_DEVICE_LOST},
      {TSR__CUDA_ERROR_ILLEGAL_ADDRESS, TSR_DEVICE_LOST},
      {TSR__CUDA_ERROR_ECC_UNCORRECTABLE, TSR_DEVICE_LOST},
      {TSR__CUDA_ERROR_MISALIGNED_ADDRESS, TSR_DEVICE_LOST},
      {9999, TSR_DEVICE_ERROR},
  };
  const tsr__device *dev = open_device("cuda:0");
  tsr__cuda_function f = {NULL, NULL};
  const tsr__gpu_call calls[] = {{&f, 1, 32, 0, NULL}, {&f, 1, 32, 0, NULL}};
  tsr__gpu_queue queue = {NULL, NULL, 0, NULL, TSR_MEMORY_NATIVE};
  void *event = NULL;
  (void)state;
  cuda->fail = "LaunchKernel";
  for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
    cuda->fail_with = table[i].error;
    cuda->num_calls = 0;
    assert_int_equal(tsr__cuda_enqueue(dev, &queue, calls, 2, &err), table[i].status);
    assert_int_equal(err.status, table[i].status);
    assert_int_equal(err.native_code, table[i].error);
    assert_int_equal(calls_of("LaunchKernel"), 1); /* the second is not tried */
  }
  cuda->fail_with = TSR__CUDA_ERROR_INVALID_HANDLE;
  tsr__cuda_enqueue(dev, &queue, calls, 1, &err);
  assert_string_equal(err.field, "queue");
  cuda->fail = NULL;
  queue.event = &event;
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, calls, 1, &err), TSR_INVALID);
  assert_string_equal(err.field, "event");
  queue.event = NULL;
  queue.num_wait_events = 1;
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, calls, 1, &err), TSR_INVALID);
  assert_string_equal(err.field, "num_wait_events");
}

static void pointers_are_checked(void **state) {
  const tsr__device *dev = open_device("cuda:0");
  int good, foreign, host;
  const int32_t value = 1;
  tsr__gpu_param params[] = {{&good, 0}, {NULL, 0}, {&value, 4}, {&good, 0}};
  tsr__cuda_function f = {NULL, NULL};
  const tsr__gpu_call call = {&f, 1, 32, 4, params};
  const tsr__gpu_queue queue = {NULL, NULL, 0, NULL, TSR_MEMORY_NATIVE};
  (void)state;
  cuda->other_device_ptr = &foreign;
  cuda->host_ptr = &host;
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, &call, 1, &err), TSR_OK);
  params[3].data = &foreign;
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, &call, 1, &err), TSR_INVALID);
  assert_non_null(strstr(err.text, "is memory of cuda:1, the plan is one of cuda:0"));
  params[3].data = &host;
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, &call, 1, &err), TSR_INVALID);
  assert_non_null(strstr(err.text, "is no device memory"));
  assert_int_equal(cuda->num_launches, 1);
  tsr__cuda_of(dev)->any_pointer = 1; /* a device that reads all of the host's memory */
  assert_int_equal(tsr__cuda_enqueue(dev, &queue, &call, 1, &err), TSR_OK);
}

/* Sizes and errors of memory. */
static void memory_errors(void **state) {
  void *ptr = NULL;
  tsr_buffer buffer;
  (void)state;
  open_device("cuda:0");
  assert_int_equal(tsr_memory_alloc(device, 0, &ptr, &err), TSR_OK); /* a pointer, to nothing */
  assert_non_null(ptr);
  tsr_memory_free(device, ptr);
  cuda->fail = "MemAlloc";
  cuda->fail_with = TSR__CUDA_ERROR_OUT_OF_MEMORY;
  assert_int_equal(tsr_memory_alloc(device, 64, &ptr, &err), TSR_OUT_OF_MEMORY);
  assert_null(ptr);
  assert_int_equal(err.native_code, 2);
  buffer = tsr_buffer_out(&ptr);
  cuda->fail = "MemcpyHtoD";
  cuda->fail_with = TSR__CUDA_ERROR_INVALID_VALUE;
  assert_int_equal(tsr_memory_write(device, &buffer, "x", 1, &err), TSR_INVALID);
  cuda->fail = "StreamSynchronize";
  cuda->fail_with = TSR__CUDA_ERROR_LAUNCH_FAILED;
  assert_int_equal(tsr_device_wait(device, NULL, &err), TSR_DEVICE_LOST);
  cuda->fail = NULL;
}

/* ---- fork ------------------------------------------------------------------------------------- */

static int child(void) {
  tsr_context *own = NULL;
  tsr_device *second = NULL;
  void *ptr;
  int bad = 0;
  cuda->num_calls = 0;
  bad |= tsr_memory_alloc(device, 64, &ptr, &err) != TSR_FORKED;
  bad |= tsr_device_wait(device, NULL, &err) != TSR_FORKED;
  bad |= tsr_device_open(context, "cuda:0", &second, &err) != TSR_FORKED;
  bad |= tsr_context_create(NULL, &own, &err) != TSR_OK;
  bad |= tsr_device_open(own, "cuda:0", &second, &err) != TSR_BACKEND_MISSING;
  bad |= strstr(err.text, "fork") == NULL;
  tsr_context_destroy(own);
  tsr_device_close(device);
  tsr_context_destroy(context);
  return bad || cuda->num_calls != 0; /* the driver is not called at all */
}

static void children_are_refused(void **state) {
  int status = -1;
  pid_t pid;
  (void)state;
  open_device("cuda:0");
  pid = fork();
  if (pid == 0) {
    _exit(child());
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, start, end)
  const struct CMUnitTest tests[] = {
      TEST(devices_are_described),
      TEST(devices_by_handles),
      TEST(missing_things_are_told),
      TEST(old_drivers_are_refused),
      TEST(drivers_that_do_not_start),
      TEST(current_context_is_kept),
      TEST(current_context_is_kept_in_failure),
      TEST(modules_load_in_relaxed_mode),
      TEST(bad_images_are_invalid),
      TEST(sources_are_compiled),
      TEST(other_architectures),
      TEST(compile_errors_are_told),
      TEST(nvrtc_is_looked_for_where_told),
      TEST(parameters_arrive),
      TEST(launch_errors),
      cmocka_unit_test_setup_teardown(pointers_are_checked, start_validating, end),
      TEST(memory_errors),
      TEST(children_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
