/* SPDX-License-Identifier: Apache-2.0 */
/* Our declarations of OpenCL against those of the vendors' headers, which this test alone reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define CL_TARGET_OPENCL_VERSION 200
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include "backends/opencl/cl.h"

static void same_values(void **state) {
  (void)state;
#define X(name, value) assert_int_equal(TSR__CL_##name, CL_##name);
  TSR__CL_ERRORS(X)
  TSR__CL_CONSTANTS(X)
#undef X
  assert_true(TSR__CL_DEVICE_TYPE_ALL == CL_DEVICE_TYPE_ALL);
}

/* Prototypes agree to the last type: cl_int is int32_t, cl_bool uint32_t, cl_bitfield uint64_t. */
static void same_functions(void **state) {
  (void)state;
#define X(type, name, params) assert_true(_Generic(&cl##name, type(*) params : 1, default : 0));
  TSR__CL_FUNCTIONS(X)
  TSR__CL_OPTIONAL_FUNCTIONS(X)
#undef X
}

static void same_types(void **state) {
  (void)state;
  assert_true(_Generic((cl_platform_id)0, tsr__cl_platform : 1, default : 0));
  assert_true(_Generic((cl_device_id)0, tsr__cl_device : 1, default : 0));
  assert_true(_Generic((cl_context)0, tsr__cl_context : 1, default : 0));
  assert_true(_Generic((cl_command_queue)0, tsr__cl_queue : 1, default : 0));
  assert_true(_Generic((cl_mem)0, tsr__cl_mem : 1, default : 0));
  assert_true(_Generic((cl_program)0, tsr__cl_program : 1, default : 0));
  assert_true(_Generic((cl_kernel)0, tsr__cl_kernel : 1, default : 0));
  assert_true(_Generic((cl_event)0, tsr__cl_event : 1, default : 0));
  assert_true(_Generic((cl_context_properties)0, intptr_t : 1, default : 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(same_values),
      cmocka_unit_test(same_functions),
      cmocka_unit_test(same_types),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
