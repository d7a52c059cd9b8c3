/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/opencl/cl.h"

#include <dlfcn.h>
#include <stdio.h>

#if defined(TSR_CL_LINK)

#define X(type, name, params) extern type cl##name params;
TSR__CL_FUNCTIONS(X)
#undef X
#define X(type, name, params) extern type cl##name params __attribute__((weak));
TSR__CL_OPTIONAL_FUNCTIONS(X)
#undef X

int tsr__cl_open(tsr__cl *cl, const char *path, char *why_not, size_t why_not_bytes) {
  (void)path; /* nothing is opened */
  (void)why_not;
  (void)why_not_bytes;
  cl->library = NULL;
#define X(type, name, params) cl->name = cl##name;
  TSR__CL_FUNCTIONS(X)
  TSR__CL_OPTIONAL_FUNCTIONS(X)
#undef X
  return 1;
}

#else

/* dlsym gives data pointers, which ISO C does not convert to functions. */
union symbol {
  void *data;
#define X(type, name, params) type(*name) params;
  TSR__CL_FUNCTIONS(X)
  TSR__CL_OPTIONAL_FUNCTIONS(X)
#undef X
};

static const char *find_all(tsr__cl *cl) {
  const char *missing = NULL;
  union symbol s;
#define X(type, name, params)                \
  s.data = dlsym(cl->library, "cl" #name);   \
  cl->name = s.data != NULL ? s.name : NULL; \
  missing = s.data == NULL && missing == NULL ? "cl" #name : missing;
  TSR__CL_FUNCTIONS(X)
#undef X
#define X(type, name, params)              \
  s.data = dlsym(cl->library, "cl" #name); \
  cl->name = s.data != NULL ? s.name : NULL;
  TSR__CL_OPTIONAL_FUNCTIONS(X)
#undef X
  return missing;
}

int tsr__cl_open(tsr__cl *cl, const char *path, char *why_not, size_t why_not_bytes) {
  static const char *const names[] = {"libOpenCL.so.1", "libOpenCL.so"};
  const int flags = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  const int given = *path != '\0';
  const char *missing;
  cl->library = given ? dlopen(path, flags) : NULL;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && cl->library == NULL && !given; i++) {
    cl->library = dlopen(names[i], flags);
  }
  if (cl->library == NULL) {
    snprintf(why_not, why_not_bytes, "no OpenCL here: %.120s was not found", given ? path : names[0]);
    return 0;
  }
  missing = find_all(cl);
  dlclose(cl->library); /* it stays: RTLD_NODELETE */
  if (missing != NULL) {
    snprintf(why_not, why_not_bytes, "%.100s has no %s; OpenCL 1.2 is needed", given ? path : names[0], missing);
    return 0;
  }
  return 1;
}

#endif

const char *tsr__cl_error_name(int32_t error, char *buffer, size_t buffer_bytes) {
  switch (error) {
#define X(name, value) \
  case value: return "CL_" #name;
    TSR__CL_ERRORS(X)
#undef X
  default: snprintf(buffer, buffer_bytes, "OpenCL error %d", (int)error); return buffer;
  }
}
