/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cuda/nvrtc.h"

#include <stdio.h>
#include <string.h>

#include "tests/mocks/mock_cuda.h"

#define EXPORT __attribute__((visibility("default")))

#define X(name, params) EXPORT unsigned int nvrtc##name params;
TSR__NVRTC_FUNCTIONS(X)
#undef X

static mock_nvrtc mock;
static char program;
static const char ptx[] = ".version 8.4\n.target sm_90\n.address_size 64\n";

/* An ELF header of a cubin, and one section header of no section. */
static unsigned char cubin[128] = {0x7f, 'E', 'L', 'F', 2, 1, 1, [18] = 190, [40] = 64, [52] = 64, [58] = 64, [60] = 1};

EXPORT mock_nvrtc *mock_nvrtc_state(void) {
  return &mock;
}

EXPORT void mock_nvrtc_reset(void) {
  static const int archs[] = {75, 80, 90};
  memset(&mock, 0, sizeof(mock));
  mock.major = 12;
  mock.minor = 4;
  memcpy(mock.archs, archs, sizeof(archs));
  mock.num_archs = 3;
  mock.log = "";
}

EXPORT const unsigned char *mock_nvrtc_cubin(size_t *bytes) {
  *bytes = sizeof(cubin);
  return cubin;
}

unsigned int nvrtcVersion(int *major, int *minor) {
  *major = mock.major;
  *minor = mock.minor;
  return mock.major > 0 ? TSR__NVRTC_SUCCESS : TSR__NVRTC_ERROR_INTERNAL_ERROR;
}

unsigned int nvrtcGetNumSupportedArchs(int *n) {
  *n = mock.num_archs;
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcGetSupportedArchs(int *archs) {
  memcpy(archs, mock.archs, (size_t)mock.num_archs * sizeof(int));
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcCreateProgram(tsr__nvrtc_program *p, const char *source, const char *name, int num_headers,
                                const char *const *headers, const char *const *names) {
  (void)headers;
  (void)names;
  if (num_headers != 0) {
    return TSR__NVRTC_ERROR_INVALID_INPUT;
  }
  snprintf(mock.source, sizeof(mock.source), "%s", source);
  snprintf(mock.name, sizeof(mock.name), "%s", name);
  mock.programs++;
  *p = (tsr__nvrtc_program)(void *)&program;
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcDestroyProgram(tsr__nvrtc_program *p) {
  mock.programs--;
  *p = NULL;
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcCompileProgram(tsr__nvrtc_program p, int n, const char *const *options) {
  size_t at = 0;
  (void)p;
  mock.options[0] = '\0';
  for (int i = 0; i < n; i++) {
    at += (size_t)snprintf(mock.options + at, sizeof(mock.options) - at, "%s ", options[i]);
  }
  return mock.compile_result;
}

unsigned int nvrtcGetProgramLogSize(tsr__nvrtc_program p, size_t *bytes) {
  (void)p;
  *bytes = strlen(mock.log) + 1;
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcGetProgramLog(tsr__nvrtc_program p, char *log) {
  (void)p;
  memcpy(log, mock.log, strlen(mock.log) + 1);
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcGetPTXSize(tsr__nvrtc_program p, size_t *bytes) {
  (void)p;
  *bytes = sizeof(ptx);
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcGetPTX(tsr__nvrtc_program p, char *out) {
  (void)p;
  mock.ptxs++;
  memcpy(out, ptx, sizeof(ptx));
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcGetCUBINSize(tsr__nvrtc_program p, size_t *bytes) {
  (void)p;
  *bytes = sizeof(cubin);
  return TSR__NVRTC_SUCCESS;
}

unsigned int nvrtcGetCUBIN(tsr__nvrtc_program p, char *out) {
  (void)p;
  mock.cubins++;
  memcpy(out, cubin, sizeof(cubin));
  return TSR__NVRTC_SUCCESS;
}
