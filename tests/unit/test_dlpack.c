/* SPDX-License-Identifier: Apache-2.0 */
/* The DLPack helper: in, out, and what it refuses. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>

#include <cmocka.h>

#include "tessera/dlpack.h"

static tsr_dl_tensor tensor(int32_t ndim, int64_t *shape, int64_t *strides) {
  tsr_dl_tensor t;
  memset(&t, 0, sizeof(t));
  t.data = (void *)0x1000;
  t.device.device_type = TSR_DL_CPU;
  t.ndim = ndim;
  t.dtype = tsr_dlpack_data_type(TSR_F32);
  t.shape = shape;
  t.strides = strides;
  t.byte_offset = 64;
  return t;
}

static void import_orders(void **state) {
  static const int8_t bshd[4] = {0, 1, 2, 3}, bhsd[4] = {0, 2, 1, 3}, thd[4] = {-1, 0, 1, 2};
  int64_t shape[4] = {2, 3, 5, 7}, strides[4] = {500, 100, 10, 2};
  tsr_dl_tensor t = tensor(4, shape, NULL);
  tsr_layout l;
  tsr_buffer b;
  (void)state;
  assert_int_equal(tsr_dlpack_import(&t, bshd, &l, &b, NULL), TSR_OK);
  assert_int_equal(l.dtype, TSR_F32);
  assert_int_equal(l.stride[0], 105);
  assert_int_equal(l.stride[1], 35);
  assert_int_equal(l.stride[2], 7);
  assert_int_equal(l.stride[3], 1);
  assert_ptr_equal(b.ptr, (void *)0x1000);
  assert_int_equal(b.offset_bytes, 64);
  t.strides = strides;
  assert_int_equal(tsr_dlpack_import(&t, bhsd, &l, &b, NULL), TSR_OK);
  assert_int_equal(l.shape[1], 5);
  assert_int_equal(l.stride[1], 10);
  assert_int_equal(l.shape[2], 3);
  assert_int_equal(l.stride[2], 100);
  t.ndim = 3;
  assert_int_equal(tsr_dlpack_import(&t, thd, &l, &b, NULL), TSR_OK);
  assert_int_equal(l.shape[0], 1);
  assert_int_equal(l.shape[1], 2);
  assert_int_equal(l.stride[1], 500);
}

static void round_trip(void **state) {
  static const int8_t bhsd[4] = {0, 2, 1, 3};
  static const tsr_dtype all[] = {TSR_F32, TSR_F16, TSR_BF16, TSR_F8E4M3, TSR_F8E5M2,     TSR_I8,
                                  TSR_U4,  TSR_U8,  TSR_I32,  TSR_I64,    TSR_F8E4M3FNUZ, TSR_F8E5M2FNUZ};
  (void)state;
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    const tsr_layout in = tsr_layout_bhsd(all[i], 2, 4, 9, 6);
    const tsr_dl_device device = {TSR_DL_CUDA, 1};
    int64_t shape[4], strides[4];
    tsr_dl_tensor t;
    tsr_layout out;
    tsr_buffer b;
    assert_int_equal(tsr_dlpack_export(&in, tsr_buffer_in(shape), bhsd, device, shape, strides, &t), TSR_OK);
    assert_int_equal(t.ndim, 4);
    assert_int_equal(t.shape[1], 4);
    assert_int_equal(t.shape[2], 9);
    assert_int_equal(t.dtype.bits, tsr_dtype_bits(all[i]));
    assert_int_equal(tsr_dlpack_import(&t, bhsd, &out, &b, NULL), TSR_OK);
    assert_memory_equal(&in, &out, sizeof(in));
  }
}

static void refused(const tsr_dl_tensor *t, const int8_t axis[4], tsr_status status) {
  tsr_layout l;
  tsr_buffer b;
  const char *why = NULL;
  assert_int_equal(tsr_dlpack_import(t, axis, &l, &b, &why), status);
  assert_true(why != NULL && *why != '\0');
}

static void refusals(void **state) {
  static const int8_t bshd[4] = {0, 1, 2, 3}, twice[4] = {0, 1, 1, 3}, far[4] = {0, 1, 2, 9}, few[4] = {0, 1, 2, -1};
  int64_t shape[4] = {2, 3, 5, 7}, strides[4] = {105, 35, 7, -1};
  tsr_dl_tensor t = tensor(4, shape, NULL);
  tsr_layout bits = tsr_layout_dense(TSR_BIT, 1, 1, 8, 8), l;
  const tsr_dl_device cpu = {TSR_DL_CPU, 0};
  tsr_buffer b;
  int64_t s[4], st[4];
  (void)state;
  refused(NULL, bshd, TSR_INVALID);
  refused(&t, NULL, TSR_INVALID);
  refused(&t, twice, TSR_INVALID);
  refused(&t, far, TSR_INVALID);
  refused(&t, few, TSR_INVALID);
  t.strides = strides;
  refused(&t, bshd, TSR_INVALID);
  t.strides = NULL;
  shape[1] = -3;
  refused(&t, bshd, TSR_INVALID);
  shape[1] = 3;
  t.dtype.bits = 64; /* float64 */
  refused(&t, bshd, TSR_UNSUPPORTED);
  t.dtype.bits = 32;
  t.dtype.lanes = 4;
  refused(&t, bshd, TSR_UNSUPPORTED);
  t.dtype.lanes = 1;
  t.byte_offset = UINT64_MAX;
  refused(&t, bshd, TSR_INVALID);
  t.byte_offset = 0;
  t.ndim = 5;
  refused(&t, bshd, TSR_INVALID);
  t.ndim = 4;
  shape[1] = shape[2] = shape[3] = INT64_C(1) << 31; /* the stride of dimension 0 would be 2^93 */
  refused(&t, bshd, TSR_INVALID);
  shape[1] = 1;
  shape[0] = 1; /* 2^62 is a stride like any other */
  assert_int_equal(tsr_dlpack_import(&t, bshd, &l, &b, NULL), TSR_OK);
  assert_true(l.stride[0] == INT64_C(1) << 62);
  shape[3] = INT64_MAX;
  refused(&t, bshd, TSR_INVALID);
  shape[3] = -1; /* counts as nothing in the strides of others, and is refused itself */
  refused(&t, bshd, TSR_INVALID);
  t.ndim = -1;
  refused(&t, bshd, TSR_INVALID);
  t.ndim = 4;
  t.shape = NULL;
  refused(&t, bshd, TSR_INVALID);
  l = tsr_layout_dense(TSR_F32, 1, 1, 8, 8);
  b = tsr_buffer_in(s);
  assert_int_equal(tsr_dlpack_export(NULL, b, bshd, cpu, s, st, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, NULL, cpu, s, st, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, bshd, cpu, NULL, st, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, bshd, cpu, s, NULL, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, bshd, cpu, s, st, NULL), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, twice, cpu, s, st, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, far, cpu, s, st, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&l, b, few, cpu, s, st, &t), TSR_INVALID); /* drops an axis of extent 8 */
  b.offset_bytes = -1;
  assert_int_equal(tsr_dlpack_export(&l, b, bshd, cpu, s, st, &t), TSR_INVALID);
  assert_int_equal(tsr_dlpack_export(&bits, tsr_buffer_in(s), bshd, (tsr_dl_device){TSR_DL_CPU, 0}, s, st, &t),
                   TSR_UNSUPPORTED);
}

static void devices(void **state) {
  (void)state;
  assert_int_equal(tsr_dlpack_memory(TSR_DL_CPU), TSR_MEMORY_HOST);
  assert_int_equal(tsr_dlpack_memory(TSR_DL_CUDA), TSR_MEMORY_DEVICE);
  assert_int_equal(tsr_dlpack_memory(TSR_DL_ROCM), TSR_MEMORY_DEVICE);
  assert_int_equal(tsr_dlpack_memory(TSR_DL_OPENCL), TSR_MEMORY_CL_MEM);
  assert_int_equal(tsr_dlpack_memory(TSR_DL_METAL), -1);
  assert_string_equal(tsr_dlpack_backend(TSR_DL_ROCM), "hip");
  assert_string_equal(tsr_dlpack_backend(TSR_DL_CUDA_MANAGED), "cuda");
  assert_null(tsr_dlpack_backend(TSR_DL_VULKAN));
  /* the protocol's memory layout */
  assert_int_equal(sizeof(tsr_dl_tensor), 48);
  assert_int_equal(offsetof(tsr_dl_tensor, shape), 24);
  assert_int_equal(offsetof(tsr_dl_managed, deleter), 56);
  assert_int_equal(offsetof(tsr_dl_managed_versioned, dl_tensor), 32);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(import_orders), cmocka_unit_test(round_trip),
                                     cmocka_unit_test(refusals), cmocka_unit_test(devices)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
