/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of more partials than one launch folds, and than one start has room for on the stack, on the emulator. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/tessera.h"

enum { HEADS = 3, ROWS = 2, CHANNELS = 40, LSES = HEADS * ROWS, ELEMENTS = LSES * CHANNELS };

typedef struct fixture {
  tsr_context *context;
  tsr_device *device;
} fixture;

/* Partials as the host has them, and their copies on the device. */
typedef struct partials {
  int64_t n;
  float *o, *lse; /* [n][ROWS][HEADS][CHANNELS], [n][HEADS][ROWS] */
  void *device_o, *device_lse;
  tsr_buffer *host_lists[2], *device_lists[2];
} partials;

static int setup(void **state) {
  static fixture f;
  tsr_context_params params = tsr_context_params_init();
  tsr_error err;
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  *state = &f;
  assert_int_equal(tsr_context_create(&params, &f.context, &err), TSR_OK);
  assert_int_equal(tsr_backend_load(f.context, TSR_EMU_MODULE, &err), TSR_OK);
  assert_int_equal(tsr_device_open(f.context, "emulator:0", &f.device, &err), TSR_OK);
  return 0;
}

static int teardown(void **state) {
  fixture *f = *state;
  tsr_device_close(f->device);
  tsr_context_destroy(f->context);
  return 0;
}

static float *make(int64_t count, uint32_t seed, float low, float high) {
  float *x = malloc((size_t)count * sizeof(float));
  assert_non_null(x);
  for (int64_t i = 0; i < count; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = low + (high - low) * (float)(seed >> 8) / 16777216.0f;
  }
  return x;
}

static void *upload(tsr_device *device, const void *data, int64_t bytes) {
  void *ptr = NULL;
  tsr_buffer to = {0};
  tsr_error err;
  assert_int_equal(tsr_memory_alloc(device, bytes, &ptr, &err), TSR_OK);
  to.ptr = ptr;
  assert_int_equal(tsr_memory_write(device, &to, data, bytes, &err), TSR_OK);
  return ptr;
}

static tsr_buffer *list(void *base, int64_t n, int64_t step_bytes) {
  tsr_buffer *b = calloc((size_t)n, sizeof(*b));
  assert_non_null(b);
  for (int64_t i = 0; i < n; i++) {
    b[i].ptr = base;
    b[i].offset_bytes = i * step_bytes;
  }
  return b;
}

/* every: partial i is empty in row r unless (i + r) % every == 0. */
static partials make_partials(tsr_device *device, int64_t n, int64_t every) {
  partials p;
  p.n = n;
  p.o = make(n * ELEMENTS, (uint32_t)n, -2.0f, 2.0f);
  p.lse = make(n * LSES, (uint32_t)n + 1, -6.0f, 6.0f);
  for (int64_t i = 0; i < n * LSES; i++) {
    if ((i / LSES + i % LSES) % every != 0) {
      p.lse[i] = -INFINITY;
    }
  }
  p.device_o = upload(device, p.o, n * ELEMENTS * 4);
  p.device_lse = upload(device, p.lse, n * LSES * 4);
  p.host_lists[0] = list(p.o, n, ELEMENTS * 4);
  p.host_lists[1] = list(p.lse, n, LSES * 4);
  p.device_lists[0] = list(p.device_o, n, ELEMENTS * 4);
  p.device_lists[1] = list(p.device_lse, n, LSES * 4);
  return p;
}

static void free_partials(tsr_device *device, partials *p) {
  tsr_memory_free(device, p->device_o);
  tsr_memory_free(device, p->device_lse);
  free(p->o);
  free(p->lse);
  for (int i = 0; i < 2; i++) {
    free(p->host_lists[i]);
    free(p->device_lists[i]);
  }
}

static tsr_merge_desc describe(int64_t n) {
  tsr_merge_desc d = tsr_merge_desc_init();
  const tsr_layout o = {
      .dtype = TSR_F32, .shape = {1, ROWS, HEADS, CHANNELS}, .stride = {ELEMENTS, HEADS * CHANNELS, CHANNELS, 1}};
  const tsr_layout lse = {.dtype = TSR_F32, .shape = {1, HEADS, ROWS, 1}, .stride = {LSES, ROWS, 1, 1}};
  d.num_partials = n;
  d.partial_o = d.o = o;
  d.partial_lse = d.lse = lse;
  return d;
}

static void run(const fixture *f, const tsr_merge_desc *d, const partials *p, float *o, float *lse) {
  tsr_merge_args a = tsr_merge_args_init();
  tsr_plan_info info;
  tsr_plan *plan = NULL;
  tsr_error err;
  const float poison = NAN;
  a.partial_o = p->device_lists[0];
  a.partial_lse = p->device_lists[1];
  for (int i = 0; i < ELEMENTS; i++) {
    o[i] = poison;
  }
  a.o.ptr = upload(f->device, o, ELEMENTS * 4);
  a.lse.ptr = upload(f->device, o, LSES * 4);
  assert_int_equal(tsr_plan_merge(f->device, d, &plan, &err), TSR_OK);
  info.size = sizeof(info);
  assert_int_equal(tsr_plan_get(plan, &info, &err), TSR_OK);
  assert_int_equal(info.workspace_bytes > 0, p->n > 8);
  if (info.workspace_bytes > 0) {
    assert_int_equal(tsr_memory_alloc(f->device, info.workspace_bytes, &a.workspace.ptr, &err), TSR_OK);
    a.workspace_bytes = info.workspace_bytes;
  }
  assert_int_equal(tsr_run_merge(plan, &a, &err), TSR_OK);
  assert_int_equal(tsr_memory_read(f->device, o, &a.o, ELEMENTS * 4, &err), TSR_OK);
  assert_int_equal(tsr_memory_read(f->device, lse, &a.lse, LSES * 4, &err), TSR_OK);
  tsr_plan_destroy(plan);
  tsr_memory_free(f->device, a.o.ptr);
  tsr_memory_free(f->device, a.lse.ptr);
  tsr_memory_free(f->device, a.workspace.ptr);
}

/* Against the oracle, in f64. */
static void test_many(void **state) {
  static const int64_t counts[] = {8, 9, 128, 129, 300, TSR_MAX_PARTIALS};
  const fixture *f = *state;
  for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
    partials p = make_partials(f->device, counts[i], 3);
    const tsr_merge_desc d = describe(p.n);
    tsr_merge_args a = tsr_merge_args_init();
    float o[ELEMENTS], lse[LSES];
    double want_o[ELEMENTS], want_lse[LSES];
    tsr_error err;
    run(f, &d, &p, o, lse);
    a.partial_o = p.host_lists[0];
    a.partial_lse = p.host_lists[1];
    a.o.ptr = o;
    a.lse.ptr = lse;
    assert_int_equal(tsr_reference_merge(&d, &a, want_o, want_lse, &err), TSR_OK);
    for (int n = 0; n < ELEMENTS; n++) {
      assert_true(fabs((double)o[n] - want_o[n]) < 1e-5);
    }
    for (int n = 0; n < LSES; n++) {
      assert_true(fabs((double)lse[n] - want_lse[n]) < 1e-5);
    }
    free_partials(f->device, &p);
  }
}

/* One partial that is not empty comes back bit for bit, whichever launch it is in; of none comes the empty row. */
static void test_single(void **state) {
  static const int64_t places[] = {0, 7, 8, 15, 100, 199};
  const fixture *f = *state;
  for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
    partials p = make_partials(f->device, 200, 1000000);
    const tsr_merge_desc d = describe(p.n);
    float o[ELEMENTS], lse[LSES];
    tsr_buffer at = {0};
    tsr_error err;
    for (int64_t n = 0; n < p.n * LSES; n++) {
      p.lse[n] = n / LSES == places[i] && n % LSES != 4 ? 0.3f * (float)(n % LSES) : -INFINITY;
    }
    at.ptr = p.device_lse;
    assert_int_equal(tsr_memory_write(f->device, &at, p.lse, p.n * LSES * 4, &err), TSR_OK);
    run(f, &d, &p, o, lse);
    for (int n = 0; n < LSES; n++) {
      const int h = n / ROWS, s = n % ROWS;
      const float *got = o + (s * HEADS + h) * CHANNELS;
      const float *from = p.o + places[i] * ELEMENTS + (s * HEADS + h) * CHANNELS;
      assert_true(n == 4 ? lse[n] == -INFINITY : fabsf(lse[n] - 0.3f * (float)n) < 1e-6f);
      for (int c = 0; c < CHANNELS; c++) {
        assert_true(n == 4 ? got[c] == 0.0f : memcmp(got + c, from + c, 4) == 0);
      }
    }
    free_partials(f->device, &p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_many), cmocka_unit_test(test_single)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
