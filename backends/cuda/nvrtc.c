/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cuda/nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* What a library that was found offers; 0 if that is not enough. */
static int ask(tsr__nvrtc *nvrtc) {
  int n = 0;
  if (nvrtc->Version(&nvrtc->major, &nvrtc->minor) != TSR__NVRTC_SUCCESS ||
      nvrtc->GetNumSupportedArchs(&n) != TSR__NVRTC_SUCCESS || n < 1 || n > TSR__NVRTC_MAX_ARCHS ||
      nvrtc->GetSupportedArchs(nvrtc->archs) != TSR__NVRTC_SUCCESS) {
    return 0;
  }
  nvrtc->num_archs = n;
  nvrtc->found = 1;
  return 1;
}

#if defined(TSR_CU_LINK)

#define X(name, params) extern unsigned int nvrtc##name params;
TSR__NVRTC_FUNCTIONS(X)
#undef X

int tsr__nvrtc_open(tsr__nvrtc *nvrtc, const char *path, int driver_version, char *why_not, size_t why_not_bytes) {
  (void)path;
  (void)driver_version;
  memset(nvrtc, 0, sizeof(*nvrtc));
#define X(name, params) nvrtc->name = nvrtc##name;
  TSR__NVRTC_FUNCTIONS(X)
#undef X
  if (!ask(nvrtc)) {
    snprintf(why_not, why_not_bytes, "the NVRTC this library is linked with does not answer");
    return 0;
  }
  return 1;
}

#else

union symbol {
  void *data;
#define X(name, params) unsigned int(*name) params;
  TSR__NVRTC_FUNCTIONS(X)
#undef X
};

/* Opens one library. */
static int try_name(tsr__nvrtc *nvrtc, const char *name) {
  union symbol s;
  int complete = 1;
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == NULL) {
    return 0;
  }
  memset(nvrtc, 0, sizeof(*nvrtc));
#define X(symbol_name, params)                                \
  s.data = dlsym(library, "nvrtc" #symbol_name);              \
  nvrtc->symbol_name = s.data != NULL ? s.symbol_name : NULL; \
  complete = complete && s.data != NULL;
  TSR__NVRTC_FUNCTIONS(X)
#undef X
  dlclose(library); /* it stays: RTLD_NODELETE */
  return complete && ask(nvrtc);
}

static const struct {
  int major;
  const char *name;
} names[] = {{13, "libnvrtc.so.13"}, {12, "libnvrtc.so.12"}, {11, "libnvrtc.so.11.2"}};
enum { NUM_NAMES = sizeof(names) / sizeof(names[0]) };

/* All names in a folder ("": as the loader searches), those of the driver's major version and older ones first: a
 * driver refuses what a newer compiler made. */
static int try_folder(tsr__nvrtc *nvrtc, const char *folder, int driver_major) {
  char path[1200];
  for (int newer = 0; newer <= 1; newer++) {
    for (int i = 0; i < NUM_NAMES; i++) {
      const int n = snprintf(path, sizeof(path), "%s%s%s", folder, *folder != '\0' ? "/" : "", names[i].name);
      if ((names[i].major > driver_major) == newer && n > 0 && (size_t)n < sizeof(path) && try_name(nvrtc, path)) {
        return 1;
      }
    }
  }
  return 0;
}

int tsr__nvrtc_open(tsr__nvrtc *nvrtc, const char *path, int driver_version, char *why_not, size_t why_not_bytes) {
  static const char *const folders[] = {"", "/usr/local/cuda/lib64", "/opt/cuda/lib64", "/usr/lib/cuda/lib64"};
  const int driver_major = driver_version / 1000;
  struct stat info;
  memset(nvrtc, 0, sizeof(*nvrtc));
  if (path != NULL && *path != '\0') {
    const int is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    /* dlopen would search for a bare name, which is no path */
    if (is_folder ? try_folder(nvrtc, path, driver_major) : strchr(path, '/') != NULL && try_name(nvrtc, path)) {
      return 1;
    }
    snprintf(why_not, why_not_bytes, "there is no NVRTC 11.2 or newer at %.300s", path);
    memset(nvrtc, 0, sizeof(*nvrtc));
    return 0;
  }
  for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
    if (try_folder(nvrtc, folders[i], driver_major)) {
      return 1;
    }
  }
  memset(nvrtc, 0, sizeof(*nvrtc));
  snprintf(why_not, why_not_bytes,
           "NVRTC was looked for as libnvrtc.so.13, .12, .11.2 where the loader searches and in /usr/local/cuda/lib64, "
           "/opt/cuda/lib64, /usr/lib/cuda/lib64; tell the context's nvrtc_path or TESSERA_NVRTC where it is");
  return 0;
}

#endif

int tsr__nvrtc_target(const tsr__nvrtc *nvrtc, int arch, char *out, size_t out_bytes, int *is_ptx) {
  int best = 0;
  for (int32_t i = 0; i < nvrtc->num_archs; i++) {
    best = nvrtc->archs[i] <= arch && nvrtc->archs[i] > best ? nvrtc->archs[i] : best;
  }
  if (best == 0) {
    return 0;
  }
  *is_ptx = best != arch;
  snprintf(out, out_bytes, "-arch=%s_%d", *is_ptx ? "compute" : "sm", best);
  return 1;
}

const char *tsr__nvrtc_error_name(unsigned int error) {
  switch (error) {
#define X(name, value) \
  case value: return "NVRTC_" #name;
    TSR__NVRTC_ERRORS(X)
#undef X
  default: return "an error of NVRTC";
  }
}
