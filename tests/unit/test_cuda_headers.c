/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of the CUDA driver and NVRTC against those of the vendor's headers, which this test alone reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cuda.h>
#include <nvrtc.h>

#include "backends/cuda/cu.h"
#include "backends/cuda/nvrtc.h"

#define STRING(x) #x
#define EXPANDED(x) STRING(x)

static void same_values(void **state) {
  (void)state;
#define X(name, value) assert_int_equal(TSR__CUDA_##name, CUDA_##name);
  TSR__CU_ERRORS(X)
#undef X
#define X(name, value) assert_int_equal(TSR__CU_##name, CU_##name);
  TSR__CU_CONSTANTS(X)
#undef X
#define X(name, value) assert_int_equal(TSR__NVRTC_##name, NVRTC_##name);
  TSR__NVRTC_ERRORS(X)
#undef X
}

static void same_types(void **state) {
  (void)state;
  assert_int_equal(sizeof(CUresult), sizeof(unsigned int));
  assert_int_equal(sizeof(nvrtcResult), sizeof(unsigned int));
  assert_int_equal(sizeof(CUdevice), sizeof(int));
  assert_int_equal(sizeof(CUdeviceptr), sizeof(tsr__cu_ptr));
  assert_int_equal(sizeof(CUuuid), 16);
  assert_true(_Generic((CUcontext)0, tsr__cu_context : 1, default : 0));
  assert_true(_Generic((CUmodule)0, tsr__cu_module : 1, default : 0));
  assert_true(_Generic((CUfunction)0, tsr__cu_function : 1, default : 0));
  assert_true(_Generic((CUstream)0, tsr__cu_stream : 1, default : 0));
  assert_true(_Generic((nvrtcProgram)0, tsr__nvrtc_program : 1, default : 0));
}

/* An enum is compatible with the integer type it is made of, so that these are the types of C's own rules. Neither
 * function is called, nor its address taken: nothing need be linked. */
static void same_prototypes(void **state) {
  tsr__cu cu;
  tsr__nvrtc nvrtc;
  (void)state;
  (void)cu;
  (void)nvrtc;
#define X(name, suffix, params)                                             \
  if (!_Generic(&cu##name##suffix, __typeof__(cu.name) : 1, default : 0)) { \
    fail_msg("cu" #name #suffix " is declared otherwise in cuda.h");        \
  }                                                                         \
  assert_string_equal(EXPANDED(cu##name), "cu" #name #suffix); /* the version in use */
  TSR__CU_FUNCTIONS(X)
  TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X
#define X(name, params)                                                   \
  if (!_Generic(&nvrtc##name, __typeof__(nvrtc.name) : 1, default : 0)) { \
    fail_msg("nvrtc" #name " is declared otherwise in nvrtc.h");          \
  }
  TSR__NVRTC_FUNCTIONS(X)
#undef X
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_values),
      cmocka_unit_test(same_types),
      cmocka_unit_test(same_prototypes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
