/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver and an NVRTC without a device: they record what they are asked and answer as told. Libraries with the
 * vendor's sonames; a program that links them gives them to dlopen("libcuda.so.1") in the whole process. Device memory
 * is host memory, kernels do not run. */
#ifndef TSR_TESTS_MOCK_CUDA_H
#define TSR_TESTS_MOCK_CUDA_H

#include <stddef.h>
#include <stdint.h>

enum { MOCK_CALLS = 256, MOCK_PARAMS = 64, MOCK_DEPTH = 8, MOCK_DEVICES = 4 };

typedef struct mock_call {
  const char *name; /* without cu */
  void *current;    /* context at the time */
  unsigned int capture_mode;
} mock_call;

typedef struct mock_launch {
  void *function, *stream, *current;
  unsigned int groups, threads, shared;
  uint64_t param[MOCK_PARAMS]; /* the first bytes of each, as many as the test says */
} mock_launch;

typedef struct mock_cuda {
  /* Set by tests. */
  int devices, version, arch[MOCK_DEVICES], pageable;
  int max_threads;  /* of functions */
  const char *fail; /* this function answers fail_with */
  unsigned int fail_with;
  unsigned int init_result;
  int param_bytes[MOCK_PARAMS]; /* of the kernel that is started; 0: ends the list */
  void *other_device_ptr;       /* memory of device 1 */
  void *host_ptr;               /* memory the driver does not know */
  /* Recorded. */
  mock_call calls[MOCK_CALLS];
  int num_calls;
  mock_launch launches[16];
  int num_launches;
  int retained[MOCK_DEVICES], modules, allocations;
  unsigned char image[64]; /* the start of the last one loaded */
} mock_cuda;

mock_cuda *mock_cuda_state(void);
/* As after the process started, with one device of sm_90. Per-thread stacks of contexts are emptied for this thread. */
void mock_cuda_reset(void);
/* The context of the caller's thread, NULL: none; and the depth of its stack. */
void *mock_cuda_current(void);
int mock_cuda_depth(void);
/* Primary context of a device, and one that is not. */
void *mock_cuda_primary(int device);
void *mock_cuda_context(int device);

typedef struct mock_nvrtc {
  /* Set by tests. */
  int major, minor, archs[8], num_archs;
  unsigned int compile_result;
  const char *log;
  /* Recorded. */
  char source[4096], name[64], options[512]; /* options are separated by spaces */
  int programs, cubins, ptxs;
} mock_nvrtc;

mock_nvrtc *mock_nvrtc_state(void);
void mock_nvrtc_reset(void);
/* A whole cubin with no code, and its bytes. */
const unsigned char *mock_nvrtc_cubin(size_t *bytes);

#endif
