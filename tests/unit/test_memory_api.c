/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices through the public API, on every device that this machine has: sizes, offsets, errors, the
 * embedder's allocator; tsr_attention_once on such memory; and the mirror that the tests run devices with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "tessera/tessera.h"
#include "tests/conformance/engine/mirror.h"

/* ---- Devices --------------------------------------------------------------------------------- */

typedef void each_fn(tsr_context *context, tsr_device *device, const tsr_device_info *info);

/* Calls fn for every device that computes, in a context whose preferred device it is. */
static void each_device(each_fn *fn) {
  tsr_context *all = NULL;
  int called = 0;
  assert_int_equal(tsr_context_create(NULL, &all, NULL), TSR_OK);
  for (int32_t b = 0; b < tsr_backend_count(all); b++) {
    tsr_backend_info backend = {.size = sizeof(backend)};
    assert_int_equal(tsr_backend_get(all, b, &backend, NULL), TSR_OK);
    for (int32_t n = 0; n < backend.device_count; n++) {
      tsr_context_params params = tsr_context_params_init();
      tsr_context *context = NULL;
      tsr_device *device = NULL;
      tsr_device_info info = {.size = sizeof(info)};
      tsr_error err;
      char name[64];
      snprintf(name, sizeof(name), "%.48s:%d", backend.name, (int)n);
      params.device = name;
      assert_int_equal(tsr_context_create(&params, &context, NULL), TSR_OK);
      if (tsr_device_open(context, NULL, &device, &err) != TSR_OK) {
        fail_msg("%s: %s", name, err.text);
      }
      assert_int_equal(tsr_device_get(device, &info, NULL), TSR_OK);
      if (info.computes) {
        print_message("%s: %s\n", info.name, info.description);
        fn(context, device, &info);
        called++;
      }
      tsr_device_close(device);
      tsr_context_destroy(context);
    }
  }
  tsr_context_destroy(all);
  assert_true(called > 0);
}

static void *new_memory(tsr_device *device, int64_t bytes) {
  void *ptr = NULL;
  tsr_error err;
  if (tsr_memory_alloc(device, bytes, &ptr, &err) != TSR_OK) {
    fail_msg("%lld bytes: %s", (long long)bytes, err.text);
  }
  assert_non_null(ptr);
  return ptr;
}

static void write_at(tsr_device *device, void *ptr, int64_t offset, const void *from, int64_t bytes) {
  const tsr_buffer to = {ptr, offset};
  assert_int_equal(tsr_memory_write(device, &to, from, bytes, NULL), TSR_OK);
}

static void read_at(tsr_device *device, void *to, void *ptr, int64_t offset, int64_t bytes) {
  const tsr_buffer from = {ptr, offset};
  assert_int_equal(tsr_memory_read(device, to, &from, bytes, NULL), TSR_OK);
}

/* ---- Copies ---------------------------------------------------------------------------------- */

enum { SIZE = 300001 };

static void round_trip(tsr_context *context, tsr_device *device, const tsr_device_info *info) {
  static unsigned char sent[SIZE], got[SIZE], want[SIZE];
  static const struct {
    int64_t at, bytes;
  } parts[] = {{0, 1}, {SIZE - 1, 1}, {4097, 3}, {17, 100000}, {65536, 65536}, {SIZE, 0}};
  void *ptr = new_memory(device, SIZE), *other = new_memory(device, SIZE);
  (void)context;
  assert_ptr_not_equal(ptr, other);
  if (info->host_memory) {
    assert_int_equal((uintptr_t)ptr & 63, 0);
  }
  for (int n = 0; n < SIZE; n++) {
    want[n] = (unsigned char)(n * 31 >> 3);
    sent[n] = (unsigned char)~want[n];
  }
  write_at(device, ptr, 0, want, SIZE);
  memset(got, 0xa5, SIZE);
  write_at(device, other, 0, got, SIZE);
  for (size_t n = 0; n < sizeof(parts) / sizeof(parts[0]); n++) { /* a part, and nothing beside it */
    write_at(device, ptr, parts[n].at, sent + parts[n].at, parts[n].bytes);
    memcpy(want + parts[n].at, sent + parts[n].at, (size_t)parts[n].bytes);
    read_at(device, got, ptr, 0, SIZE);
    assert_memory_equal(got, want, SIZE);
    memset(got, 0, SIZE);
    read_at(device, got + parts[n].at, ptr, parts[n].at, parts[n].bytes);
    assert_memory_equal(got + parts[n].at, want + parts[n].at, (size_t)parts[n].bytes);
    assert_true(parts[n].at == 0 || got[parts[n].at - 1] == 0);
  }
  read_at(device, got, other, 0, SIZE);
  for (int n = 0; n < SIZE; n++) {
    assert_int_equal(got[n], 0xa5);
  }
  tsr_memory_free(device, ptr);
  tsr_memory_free(device, other);
}

static void nothing(tsr_context *context, tsr_device *device, const tsr_device_info *info) {
  void *ptr = new_memory(device, 0);
  const tsr_buffer buffer = {ptr, 0};
  (void)context;
  (void)info;
  assert_int_equal(tsr_memory_write(device, &buffer, NULL, 0, NULL), TSR_OK);
  assert_int_equal(tsr_memory_read(device, NULL, &buffer, 0, NULL), TSR_OK);
  tsr_memory_free(device, ptr);
  tsr_memory_free(device, NULL);
  assert_int_equal(tsr_device_wait(device, NULL, NULL), TSR_OK);
}

static void is_invalid(tsr_status st, const tsr_error *err, const char *field) {
  assert_int_equal(st, TSR_INVALID);
  assert_int_equal(err->status, TSR_INVALID);
  assert_string_equal(err->field, field);
  assert_true(strlen(err->text) > 5);
}

static void wrong_calls(tsr_context *context, tsr_device *device, const tsr_device_info *info) {
  unsigned char byte = 7;
  void *ptr = &byte;
  tsr_buffer buffer = {new_memory(device, 64), 0};
  const tsr_buffer before = {buffer.ptr, -1}, none = {NULL, 0};
  tsr_error err;
  tsr_status st;
  (void)context;
  (void)info;
  is_invalid(tsr_memory_alloc(NULL, 1, &ptr, &err), &err, "device");
  is_invalid(tsr_memory_alloc(device, 1, NULL, &err), &err, "ptr");
  is_invalid(tsr_memory_alloc(device, -1, &ptr, &err), &err, "bytes");
  assert_null(ptr);
  ptr = &byte;
  st = tsr_memory_alloc(device, INT64_C(1) << 60, &ptr, &err);
  assert_int_equal(st, TSR_OUT_OF_MEMORY);
  assert_int_equal(err.status, TSR_OUT_OF_MEMORY);
  assert_true(strlen(err.text) > 5);
  assert_null(ptr);
  is_invalid(tsr_memory_write(NULL, &buffer, &byte, 1, &err), &err, "device");
  is_invalid(tsr_memory_write(device, NULL, &byte, 1, &err), &err, "to");
  is_invalid(tsr_memory_write(device, &none, &byte, 1, &err), &err, "to");
  is_invalid(tsr_memory_write(device, &before, &byte, 1, &err), &err, "to");
  is_invalid(tsr_memory_write(device, &buffer, NULL, 1, &err), &err, "from");
  is_invalid(tsr_memory_write(device, &buffer, &byte, -1, &err), &err, "bytes");
  is_invalid(tsr_memory_read(NULL, &byte, &buffer, 1, &err), &err, "device");
  is_invalid(tsr_memory_read(device, &byte, NULL, 1, &err), &err, "from");
  is_invalid(tsr_memory_read(device, &byte, &none, 1, &err), &err, "from");
  is_invalid(tsr_memory_read(device, &byte, &before, 1, &err), &err, "from");
  is_invalid(tsr_memory_read(device, NULL, &buffer, 1, &err), &err, "to");
  is_invalid(tsr_memory_read(device, &byte, &buffer, -1, &err), &err, "bytes");
  is_invalid(tsr_device_wait(NULL, NULL, &err), &err, "device");
  assert_int_equal(byte, 7);
  assert_int_equal(tsr_memory_write(device, &buffer, &byte, 1, &err), TSR_OK);
  assert_int_equal(err.status, TSR_OK); /* all zero after success */
  tsr_memory_free(device, buffer.ptr);
  tsr_memory_free(NULL, &byte);
}

static void copies(void **state) {
  (void)state;
  each_device(round_trip);
  each_device(nothing);
}

static void errors(void **state) {
  (void)state;
  each_device(wrong_calls);
}

/* ---- The embedder's allocator ------------------------------------------------------------------ */

typedef struct counts {
  int made, freed;
  size_t largest;
} counts;

static void *count_alloc(void *user, size_t bytes) {
  counts *c = user;
  c->made++;
  c->largest = bytes > c->largest ? bytes : c->largest;
  return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void count_free(void *user, void *ptr) {
  ((counts *)user)->freed++;
  free(ptr);
}

static void hooks(void **state) {
  tsr_context_params params = tsr_context_params_init();
  tsr_context *context = NULL;
  tsr_device *device = NULL;
  counts c = {0, 0, 0};
  int before;
  (void)state;
  params.alloc = count_alloc;
  params.free = count_free;
  params.user = &c;
  assert_int_equal(tsr_context_create(&params, &context, NULL), TSR_OK);
  assert_int_equal(tsr_device_open(context, "cpu", &device, NULL), TSR_OK);
  before = c.made;
  void *ptr = new_memory(device, 1 << 20);
  assert_int_equal(c.made, before + 1);
  assert_true(c.largest >= 1 << 20);
  tsr_memory_free(device, ptr);
  tsr_device_close(device);
  tsr_context_destroy(context);
  assert_int_equal(c.made, c.freed);
}

/* ---- What a device says ------------------------------------------------------------------------ */

static void kinds_are_known(tsr_context *context, tsr_device *device, const tsr_device_info *info) {
  /* a caller who was compiled when the struct ended before */
  tsr_device_info old = {.size = offsetof(tsr_device_info, host_memory)};
  (void)context;
  assert_true(info->memory_kinds >> TSR_MEMORY_NATIVE & 1);
  assert_int_equal(info->memory_kinds >> TSR_MEMORY_HOST & 1, info->host_memory);
  old.host_memory = 77;
  assert_int_equal(tsr_device_get(device, &old, NULL), TSR_OK);
  assert_string_equal(old.name, info->name);
  assert_int_equal(old.host_memory, 77);
}

static void kinds(void **state) {
  (void)state;
  each_device(kinds_are_known);
}

/* ---- tsr_attention_once -------------------------------------------------------------------------- */

enum { ROWS = 40, KEYS = 300, DIM = 16, HEADS = 2, Q_SIZE = ROWS * HEADS * DIM, K_SIZE = KEYS * HEADS * DIM };

static tsr_attention_desc small_problem(void) {
  tsr_attention_desc d = tsr_attention_desc_init();
  d.q = d.o = tsr_layout_dense(TSR_F32, 1, ROWS, HEADS, DIM);
  d.k = d.v = tsr_layout_dense(TSR_F32, 1, KEYS, HEADS, DIM);
  d.flags = TSR_CAUSAL;
  d.num_splits = 3; /* partial results take a workspace */
  return d;
}

static void once_on(tsr_context *context, tsr_device *device, const tsr_device_info *info) {
  static float q[Q_SIZE], k[K_SIZE], v[K_SIZE], o[Q_SIZE];
  static double want[Q_SIZE];
  const tsr_attention_desc d = small_problem();
  tsr_run_args args = tsr_run_args_init();
  tsr_reference_out reference = tsr_reference_out_init();
  const struct {
    void *host;
    int64_t bytes;
    tsr_buffer *buffer;
  } tensors[] = {{q, sizeof(q), &args.q}, {k, sizeof(k), &args.k}, {v, sizeof(v), &args.v}, {o, sizeof(o), &args.o}};
  tsr_error err;
  (void)info;
  for (int n = 0; n < K_SIZE; n++) {
    q[n % Q_SIZE] = (float)sin(n * 0.7);
    k[n] = (float)sin(n * 1.3);
    v[n] = (float)cos(n * 0.9);
  }
  for (int n = 0; n < 4; n++) {
    *tensors[n].buffer = tsr_buffer_out(tensors[n].host);
  }
  reference.o = want;
  assert_int_equal(tsr_reference_attention(NULL, &d, &args, &reference, NULL), TSR_OK);
  memset(o, 0xff, sizeof(o));
  for (int n = 0; n < 4; n++) {
    *tensors[n].buffer = tsr_buffer_out(new_memory(device, tensors[n].bytes));
    assert_int_equal(tsr_memory_write(device, tensors[n].buffer, tensors[n].host, tensors[n].bytes, NULL), TSR_OK);
  }
  if (tsr_attention_once(context, &d, &args, &err) != TSR_OK) {
    fail_msg("%s %s", err.field, err.text);
  }
  assert_int_equal(tsr_memory_read(device, o, &args.o, sizeof(o), NULL), TSR_OK);
  for (int n = 0; n < Q_SIZE; n++) {
    assert_true(fabs((double)o[n] - want[n]) < 2e-6);
  }
  args.workspace = args.q;
  assert_int_equal(tsr_attention_once(context, &d, &args, &err), TSR_INVALID); /* it brings its own */
  assert_string_equal(err.field, "workspace");
  args.workspace = tsr_buffer_out(NULL);
  tsr_memory_free(device, args.k.ptr);
  args.k = tsr_buffer_out(NULL);
  assert_int_equal(tsr_attention_once(context, &d, &args, &err), TSR_INVALID);
  assert_string_equal(err.field, "k");
  tsr_memory_free(device, args.q.ptr);
  tsr_memory_free(device, args.v.ptr);
  tsr_memory_free(device, args.o.ptr);
}

static void once(void **state) {
  (void)state;
  each_device(once_on);
}

/* ---- The mirror ---------------------------------------------------------------------------------- */

/* Blocks come back as the device left them; an input that was written is reported; buffers find their block. */
static void mirror_of(tsr_context *context, tsr_device *device, const tsr_device_info *info) {
  enum { BYTES = 3 << 22 };
  static unsigned char input[9000], output[BYTES + 64], left[100], again[BYTES + 64];
  tsr_buffer buffers[4] = {{input + 10, 5}, {output + BYTES, 0}, {NULL, 0}, {again, 3}};
  const unsigned char other = 99;
  conf_mirror m;
  tsr_error err;
  (void)context;
  (void)info;
  memset(input, 1, sizeof(input));
  memset(output, 2, sizeof(output));
  memset(left, 3, sizeof(left));
  conf_mirror_open(&m, device);
  assert_int_equal(conf_mirror_add(&m, input, sizeof(input), CONF_MIRROR_INPUT, &err), TSR_OK);
  assert_int_equal(conf_mirror_add(&m, output, BYTES, CONF_MIRROR_OUTPUT, &err), TSR_OK);
  assert_int_equal(conf_mirror_add(&m, left, sizeof(left), CONF_MIRROR_LEFT, &err), TSR_OK);
  assert_int_equal(conf_mirror_write(&m, &err), TSR_OK);
  conf_mirror_map(&m, buffers, 4);
  assert_ptr_equal(buffers[0].ptr, m.block[0].memory);
  assert_int_equal(buffers[0].offset_bytes, 15);
  assert_ptr_equal(buffers[1].ptr, m.block[1].memory); /* behind its last byte */
  assert_int_equal(buffers[1].offset_bytes, BYTES);
  assert_null(buffers[2].ptr);
  assert_ptr_equal(buffers[3].ptr, again); /* of no block */
  write_at(device, m.block[1].memory, (2 << 22) + 12345, &other, 1);
  write_at(device, m.block[2].memory, 50, &other, 1);
  assert_int_equal(conf_mirror_read(&m, &err), TSR_OK);
  memset(again, 2, sizeof(again));
  again[(2 << 22) + 12345] = 99;
  assert_memory_equal(output, again, sizeof(output));
  assert_int_equal(left[50], 3);
  write_at(device, m.block[0].memory, 8999, &other, 1);
  assert_int_equal(conf_mirror_read(&m, &err), TSR_DEVICE_ERROR);
  assert_non_null(strstr(err.text, "8999"));
  assert_int_equal(input[8999], 1);
  conf_mirror_close(&m);
}

static void mirror(void **state) {
  (void)state;
  each_device(mirror_of);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies), cmocka_unit_test(errors), cmocka_unit_test(hooks),
      cmocka_unit_test(kinds),  cmocka_unit_test(once),   cmocka_unit_test(mirror),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
