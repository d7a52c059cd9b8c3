/* SPDX-License-Identifier: Apache-2.0 */
/* Images that this build embeds are those that plans ask for: over a CUDA driver without a device (tests/mocks), which
 * takes down what it is given to load, and with compilation forbidden. TSR_TEST_AOT: the build embeds PTX for sm_75 and
 * later; without it nothing may be found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "common/image.h"
#include "tessera/cuda.h"
#include "tessera/tessera.h"
#include "tests/mocks/mock_cuda.h"

#if defined(TSR_TEST_AOT)
enum { EMBEDDED = 1 };
#else
enum { EMBEDDED = 0 };
#endif

static tsr_context *context;
static tsr_device *device;

static int start_arch(int arch) {
  tsr_context_params p = tsr_context_params_init();
  mock_cuda_reset();
  mock_nvrtc_reset();
  mock_cuda_state()->arch[0] = arch;
  p.flags = TSR_CONTEXT_IGNORE_ENV;
  p.compile = TSR_COMPILE_NEVER;
  assert_int_equal(tsr_context_create(&p, &context, NULL), TSR_OK);
  return tsr_device_open(context, "cuda", &device, NULL);
}

static int start(void **state) {
  (void)state;
  return start_arch(90);
}

static int start_old(void **state) {
  (void)state;
  return start_arch(70);
}

static int end(void **state) {
  (void)state;
  tsr_device_close(device);
  tsr_context_destroy(context);
  return mock_nvrtc_state()->cubins + mock_nvrtc_state()->ptxs; /* nothing was compiled */
}

/* A plan either has all its images, PTX, or says which is absent. */
static void expect(tsr_status st, tsr_plan *plan, const tsr_error *err, int embedded) {
  if (!embedded) {
    assert_int_equal(st, TSR_UNSUPPORTED);
    assert_non_null(strstr(err->text, "image absent, key "));
    return;
  }
  if (st != TSR_OK) {
    fail_msg("%s", err->text);
  }
  assert_memory_equal(mock_cuda_state()->image, ".version ", 9);
  tsr_plan_destroy(plan);
}

static tsr_attention_desc attention(tsr_dtype dtype, int64_t dim, int64_t rows) {
  tsr_attention_desc d = tsr_attention_desc_init();
  d.q = tsr_layout_dense(dtype, 2, rows, 16, dim);
  d.k = tsr_layout_dense(dtype, 2, 4096, 4, dim);
  d.q.align_bytes = d.k.align_bytes = 16;
  d.v = d.k;
  d.o = d.q;
  return d;
}

static void expect_attention(const tsr_attention_desc *d, int embedded) {
  tsr_plan *plan = NULL;
  tsr_error err;
  const tsr_status st = tsr_plan_attention(device, d, &plan, &err);
  expect(st, plan, &err, embedded);
}

static void test_attention(void **state) {
  static const tsr_dtype types[] = {TSR_F16, TSR_BF16};
  (void)state;
  for (int t = 0; t < 2; t++) {
    for (int64_t dim = 64; dim <= 128; dim *= 2) {
      for (int64_t rows = 1; rows <= 2048; rows *= 2048) {
        tsr_attention_desc d = attention(types[t], dim, rows);
        expect_attention(&d, EMBEDDED);
        d.flags = TSR_CAUSAL;
        d.seqlens_q = d.seqlens_k = tsr_layout_dense(TSR_I32, 2, 1, 1, 1);
        expect_attention(&d, EMBEDDED);
      }
    }
  }
}

static void test_cache(void **state) {
  tsr_append_desc append = tsr_append_desc_init();
  tsr_merge_desc merge = tsr_merge_desc_init();
  tsr_plan *plan = NULL;
  tsr_error err;
  tsr_status st;
  (void)state;
  append.k_new = append.v_new = tsr_layout_dense(TSR_BF16, 2, 3, 4, 64);
  append.k_cache = append.v_cache = tsr_layout_dense(TSR_BF16, 2, 512, 4, 64);
  st = tsr_plan_append(device, &append, &plan, &err);
  expect(st, plan, &err, EMBEDDED);
  merge.num_partials = 3;
  merge.o = tsr_layout_dense(TSR_BF16, 2, 5, 4, 64);
  merge.partial_o = tsr_layout_dense(TSR_F32, 2, 5, 4, 64);
  merge.partial_lse = tsr_layout_dense(TSR_F32, 2, 4, 5, 1);
  plan = NULL;
  st = tsr_plan_merge(device, &merge, &plan, &err);
  expect(st, plan, &err, EMBEDDED);
}

/* What is not in the list is absent, and so is everything for a device that the PTX is too new for. */
static void test_absent(void **state) {
  tsr_attention_desc d = attention(TSR_F16, 64, 2048);
  (void)state;
  d.flags = TSR_SOFTCAP;
  expect_attention(&d, 0);
}

static void test_old_device(void **state) {
  const tsr_attention_desc d = attention(TSR_F16, 64, 2048);
  (void)state;
  expect_attention(&d, 0);
}

static void test_size(void **state) {
  size_t bytes = 0;
  int n = 0;
  (void)state;
  for (const tsr__embedded_image *e = tsr__embedded_images; e->source != NULL; e++) {
    assert_int_equal(strlen(e->source), 32);
    assert_true(e->bytes > 0 && ((const char *)e->data)[e->bytes] == '\0');
    bytes += e->bytes;
    n++;
  }
  print_message("%d images, %zu bytes\n", n, bytes);
  assert_true(EMBEDDED ? n >= 10 : n == 0);
  assert_true(bytes < 5000000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_attention, start, end),
      cmocka_unit_test_setup_teardown(test_cache, start, end),
      cmocka_unit_test_setup_teardown(test_absent, start, end),
      cmocka_unit_test_setup_teardown(test_old_device, start_old, end),
      cmocka_unit_test(test_size),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
