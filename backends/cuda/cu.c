/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cuda/cu.h"

#include <dlfcn.h>
#include <stdio.h>

#if defined(TSR_CU_LINK)

#define X(name, suffix, params) extern unsigned int cu##name##suffix params;
TSR__CU_FUNCTIONS(X)
#undef X
#define X(name, suffix, params) extern unsigned int cu##name##suffix params __attribute__((weak));
TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X

static int find_all(tsr__cu *cu, char *why_not, size_t why_not_bytes) {
  (void)why_not;
  (void)why_not_bytes;
#define X(name, suffix, params) cu->name = cu##name##suffix;
  TSR__CU_FUNCTIONS(X)
  TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X
  return 1;
}

#else

/* dlsym gives data pointers, which ISO C does not convert to functions. */
union symbol {
  void *data;
#define X(name, suffix, params) unsigned int(*name) params;
  TSR__CU_FUNCTIONS(X)
  TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X
};

static int find_all(tsr__cu *cu, char *why_not, size_t why_not_bytes) {
  const char *missing = NULL;
  union symbol s;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    snprintf(why_not, why_not_bytes, "no NVIDIA driver here: libcuda.so.1 was not found");
    return 0;
  }
#define X(name, suffix, params)                \
  s.data = dlsym(library, "cu" #name #suffix); \
  cu->name = s.data != NULL ? s.name : NULL;   \
  missing = s.data == NULL ? "cu" #name #suffix : missing;
  TSR__CU_FUNCTIONS(X)
#undef X
#define X(name, suffix, params)                \
  s.data = dlsym(library, "cu" #name #suffix); \
  cu->name = s.data != NULL ? s.name : NULL;
  TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X
  dlclose(library); /* it stays: RTLD_NODELETE */
  if (missing != NULL) {
    snprintf(why_not, why_not_bytes, "the NVIDIA driver is too old: libcuda.so.1 has no %s; CUDA %d.%d is needed",
             missing, TSR__CU_VERSION_NEEDED / 1000, TSR__CU_VERSION_NEEDED % 1000 / 10);
    return 0;
  }
  return 1;
}

#endif

int tsr__cu_open(tsr__cu *cu, char *why_not, size_t why_not_bytes) {
  char buffer[32];
  unsigned int error;
  if (!find_all(cu, why_not, why_not_bytes)) {
    return 0;
  }
  error = cu->Init(0);
  if (error == TSR__CUDA_ERROR_NOT_INITIALIZED) { /* what cuInit answers after fork() */
    snprintf(why_not, why_not_bytes,
             "cuInit: CUDA_ERROR_NOT_INITIALIZED; a child made by fork() cannot use CUDA that its parent used");
    return 0;
  }
  if (error == TSR__CUDA_ERROR_NO_DEVICE) {
    snprintf(why_not, why_not_bytes,
             "the NVIDIA driver is here, but no device is, or CUDA_VISIBLE_DEVICES hides it "
             "(cuInit: CUDA_ERROR_NO_DEVICE)");
    return 0;
  }
  if (error != TSR__CUDA_SUCCESS) {
    snprintf(why_not, why_not_bytes, "the NVIDIA driver is here, but does not start (cuInit: %s)",
             tsr__cu_error_name(error, buffer, sizeof(buffer)));
    return 0;
  }
  cu->version = 0;
  error = cu->DriverGetVersion(&cu->version);
  if (error != TSR__CUDA_SUCCESS || cu->version < TSR__CU_VERSION_NEEDED) {
    snprintf(why_not, why_not_bytes, "the NVIDIA driver is too old: it is one of CUDA %d.%d, %d.%d is needed",
             cu->version / 1000, cu->version % 1000 / 10, TSR__CU_VERSION_NEEDED / 1000,
             TSR__CU_VERSION_NEEDED % 1000 / 10);
    return 0;
  }
  return 1;
}

const char *tsr__cu_error_name(unsigned int error, char *buffer, size_t buffer_bytes) {
  switch (error) {
#define X(name, value) \
  case value: return "CUDA_" #name;
    TSR__CU_ERRORS(X)
#undef X
  default: snprintf(buffer, buffer_bytes, "CUDA error %u", error); return buffer;
  }
}
