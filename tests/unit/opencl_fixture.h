/* SPDX-License-Identifier: Apache-2.0 */
/* An OpenCL device for tests of its back end, and functions of OpenCL that the back end itself has no use for. */
#ifndef TSR_TEST_OPENCL_FIXTURE_H
#define TSR_TEST_OPENCL_FIXTURE_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backends/opencl/state.h"
#include "tessera/memory.h"
#include "tessera/opencl.h"

extern const tsr__backend tsr__backend_opencl;

enum { NO_DEVICE = 77 }; /* exit status of a test that cannot be run here */

/* X(return type, name without cl, parameters) */
#define EXTRA_FUNCTIONS(X)                                                                                 \
  X(tsr__cl_mem, CreateSubBuffer, (tsr__cl_mem, uint64_t, uint32_t, const void *, int32_t *))              \
  X(tsr__cl_event, CreateUserEvent, (tsr__cl_context, int32_t *))                                          \
  X(int32_t, SetUserEventStatus, (tsr__cl_event, int32_t))                                                 \
  X(int32_t, WaitForEvents, (uint32_t, const tsr__cl_event *))                                             \
  X(int32_t, GetEventInfo, (tsr__cl_event, uint32_t, size_t, void *, size_t *))                            \
  X(void *, SVMAlloc, (tsr__cl_context, uint64_t, size_t, uint32_t))                                       \
  X(void, SVMFree, (tsr__cl_context, void *))                                                              \
  X(int32_t, EnqueueSVMMap,                                                                                \
    (tsr__cl_queue, uint32_t, uint64_t, void *, size_t, uint32_t, const tsr__cl_event *, tsr__cl_event *)) \
  X(int32_t, EnqueueSVMUnmap, (tsr__cl_queue, void *, uint32_t, const tsr__cl_event *, tsr__cl_event *))

enum {
  BUFFER_CREATE_TYPE_REGION = 0x1220,
  EVENT_EXECUTION_STATUS = 0x11D3,
  STATUS_COMPLETE = 0,
  MAP_READ = 1,
  MAP_WRITE = 2,
  LOG_LINES = 64
};

typedef struct opencl_fixture {
  tsr_context *context;
  tsr_device *device;
  const tsr__device *dev;
  const tsr__gpu_driver *driver;
  const tsr__opencl *own;
  char log[LOG_LINES][512]; /* what the hook was told */
  int num_log;
#define X(type, name, params) type(*name) params;
  EXTRA_FUNCTIONS(X)
#undef X
} opencl_fixture;

static void fixture_log(void *user, int32_t level, const char *text) {
  opencl_fixture *f = user;
  if (level == TSR_LOG_ERROR && f->num_log < LOG_LINES) {
    snprintf(f->log[f->num_log++], sizeof(f->log[0]), "%s", text);
  }
}

static inline void fixture_extra(opencl_fixture *f) {
  union {
    void *data;
#define X(type, name, params) type(*name) params;
    EXTRA_FUNCTIONS(X)
#undef X
  } s;
  void *library = dlopen("libOpenCL.so.1", RTLD_NOW);
  assert_non_null(library);
#define X(type, name, params)          \
  s.data = dlsym(library, "cl" #name); \
  f->name = s.data != NULL ? s.name : NULL;
  EXTRA_FUNCTIONS(X)
#undef X
}

/* The first device, without the environment's wishes. 0: there is none, and the reason was printed. */
static inline int fixture_open(opencl_fixture *f, uint64_t flags) {
  tsr_context_params p = tsr_context_params_init();
  tsr_backend_info info = {.size = sizeof(info)};
  tsr_error err;
  memset(f, 0, sizeof(*f));
  p.flags = TSR_CONTEXT_IGNORE_ENV | flags;
  p.log = fixture_log;
  p.user = f;
  if (tsr_context_create(&p, &f->context, &err) != TSR_OK) {
    printf("no context: %s\n", err.text);
    exit(1);
  }
  for (int32_t i = 0; i < tsr_backend_count(f->context); i++) {
    if (tsr_backend_get(f->context, i, &info, NULL) == TSR_OK && strcmp(info.name, "opencl") == 0) {
      break;
    }
  }
  if (info.device_count == 0) {
    printf("skipped: %s\n", info.why_not);
    tsr_context_destroy(f->context);
    return 0;
  }
  if (tsr_device_open(f->context, "opencl:0", &f->device, &err) != TSR_OK) {
    printf("opencl:0 does not open: %s\n", err.text);
    exit(1);
  }
  f->dev = tsr__device_of(f->device, &tsr__backend_opencl);
  f->driver = tsr__gpu_of(f->dev)->driver;
  f->own = tsr__opencl_of(f->dev);
  fixture_extra(f);
  return 1;
}

static inline void fixture_close(opencl_fixture *f) {
  tsr_device_close(f->device);
  tsr_context_destroy(f->context);
}

#endif
