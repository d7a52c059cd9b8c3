/* SPDX-License-Identifier: Apache-2.0 */
/* Every public function with bad input: each pointer NULL, hostile numbers, plans of the wrong kind. A status, a field,
 * a sentence, nothing written. What a description or a run may hold has its own tests (test_problem.c, test_bind.c,
 * test_cache_ops.c), as have sizes of structs (test_structs.c), contexts and devices (test_context.c), tiles
 * (test_plan_tiles.c) and DLPack (test_dlpack.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/cpu.h"
#include "tessera/memory.h"
#include "tessera/tessera.h"

enum { ATTENTION, BACKWARD, APPEND, MERGE, PLANS };

static tsr_context *context;
static tsr_device *device;
static tsr_plan *plans[PLANS];
static tsr_attention_desc attention_desc, backward_desc;
static tsr_append_desc append_desc;
static tsr_merge_desc merge_desc;
static tsr_run_args run_args;
static tsr_append_args append_args;
static tsr_merge_args merge_args;
static float in[4096], out[3][4096];
static tsr_buffer partial_o, partial_lse;
static tsr_error err;

/* The call fails so, tells the field, and tells the same without an error to fill. */
#define REFUSED(call_with, status_, field_)                                   \
  do {                                                                        \
    tsr_error *e = &err;                                                      \
    memset(&err, 0x5a, sizeof(err));                                          \
    assert_int_equal(call_with, status_);                                     \
    assert_int_equal(err.status, status_);                                    \
    assert_string_equal(err.field, field_);                                   \
    assert_true(strlen(err.text) > 8 && err.text[sizeof(err.text) - 1] == 0); \
    e = NULL;                                                                 \
    assert_int_equal(call_with, status_);                                     \
  } while (0)
#define INVALID(call_with, field_) REFUSED(call_with, TSR_INVALID, field_)

/* ---- Words ----------------------------------------------------------------------------------- */

static void names(void **state) {
  static const int32_t strange[] = {-1, 11, 14, 127, 128, 1000, INT32_MAX, INT32_MIN};
  char version[32];
  (void)state;
  snprintf(version, sizeof(version), "%d.%d.%d", TSR_VERSION_MAJOR, TSR_VERSION_MINOR, TSR_VERSION_PATCH);
  assert_string_equal(tsr_version(), version);
  for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++) {
    if (strange[i] < 0 || strange[i] > TSR_IO) {
      assert_string_equal(tsr_status_name(strange[i]), "unknown");
    }
    if (strange[i] < 0 || strange[i] > TSR_F8E5M2FNUZ) {
      assert_string_equal(tsr_dtype_name(strange[i]), "?");
      assert_int_equal(tsr_dtype_bits(strange[i]), 0);
    }
  }
  for (int32_t s = TSR_OK; s <= TSR_IO; s++) {
    assert_string_not_equal(tsr_status_name(s), "unknown");
  }
  assert_non_null(strstr(tsr_cpu_levels(), strstr(tsr_cpu_levels(), "base") != NULL ? "base" : "x86-64"));
}

static void elements(void **state) {
  unsigned char bytes[16];
  (void)state;
  for (tsr_dtype t = -2; t < 40; t++) {
    const int numbers = (t >= TSR_F32 && t <= TSR_U8) || t == TSR_I32 || t == TSR_I64;
    assert_true(tsr_decode(t, NULL, 0) == 0.0);
    tsr_encode(t, NULL, 0, 1.0);
    memset(bytes, 0x33, sizeof(bytes));
    tsr_encode(t, bytes, 0, 0.0);
    assert_int_equal(bytes[0], !numbers ? 0x33 : t == TSR_U4 ? 0x30 : 0);
    assert_int_equal(bytes[8], 0x33);
    memset(bytes, 0x33, sizeof(bytes));
    assert_int_equal(tsr_decode(t, bytes, 0) != 0.0, numbers);
  }
}

/* ---- Plans ----------------------------------------------------------------------------------- */

static void plan_pointers(void **state) {
  tsr_plan *p = plans[0];
  (void)state;
  INVALID(tsr_plan_attention(NULL, &attention_desc, &p, e), "device");
  assert_null(p);
  p = plans[0];
  INVALID(tsr_plan_attention(device, NULL, &p, e), "desc");
  assert_null(p);
  INVALID(tsr_plan_attention(device, &attention_desc, NULL, e), "plan");
  p = plans[0];
  INVALID(tsr_plan_append(NULL, &append_desc, &p, e), "device");
  assert_null(p);
  INVALID(tsr_plan_append(device, NULL, &p, e), "desc");
  INVALID(tsr_plan_append(device, &append_desc, NULL, e), "plan");
  p = plans[0];
  INVALID(tsr_plan_merge(NULL, &merge_desc, &p, e), "device");
  assert_null(p);
  INVALID(tsr_plan_merge(device, NULL, &p, e), "desc");
  INVALID(tsr_plan_merge(device, &merge_desc, NULL, e), "plan");
  tsr_plan_destroy(NULL);
}

/* One of each kind of hostile description through the public door. */
static void plan_descriptions(void **state) {
  const int64_t far = INT64_C(1) << 62;
  tsr_attention_desc d = attention_desc;
  tsr_append_desc a = append_desc;
  tsr_merge_desc m = merge_desc;
  tsr_plan *p = plans[0];
  (void)state;
#define EACH(change, status_, field_)                                               \
  do {                                                                              \
    d = attention_desc;                                                             \
    change;                                                                         \
    p = plans[0];                                                                   \
    REFUSED(tsr_plan_attention(device, &d, &p, e), status_, field_);                \
    assert_null(p);                                                                 \
    {                                                                               \
      int64_t bytes = 7, align = 7;                                                 \
      int32_t count = 0;                                                            \
      const int unsupported = status_ == TSR_UNSUPPORTED;                           \
      REFUSED(tsr_workspace_bound(device, &d, &bytes, &align, e), status_, field_); \
      if (!unsupported) {                                                           \
        INVALID(tsr_attention_verdicts(device, &d, NULL, &count, e), field_);       \
      }                                                                             \
    }                                                                               \
  } while (0)
  EACH(d.q.dtype = 99, TSR_INVALID, "q.dtype");
  EACH(d.k.dtype = -5, TSR_INVALID, "k.dtype");
  EACH(d.k.stride[1] = -4, TSR_INVALID, "k.stride[1]");
  EACH(d.q.stride[1] = far, TSR_INVALID, "q.stride");
  EACH(d.o.stride[1] = 0, TSR_INVALID, "o.stride[1]");
  EACH(d.q.shape[1] = -1, TSR_INVALID, "q.shape[1]");
  EACH(d.v.shape[2] = 2, TSR_INVALID, "v.shape[2]");
  EACH(d.k = d.v = tsr_layout_dense(TSR_F32, 1, 2, 3, 4), TSR_INVALID, "k.shape[2]");
  EACH(d.q = d.o = tsr_layout_dense(TSR_F32, 1, far, 1, 4); d.q.stride[1] = 0, TSR_INVALID, "o.stride");
  EACH(d.q.reserved[1] = 1, TSR_INVALID, "q.reserved");
  EACH(d.q.align_bytes = 3, TSR_INVALID, "q.align_bytes");
  EACH(d.op = 7, TSR_INVALID, "op");
  EACH(d.memory = 7, TSR_INVALID, "memory");
  EACH(d.flags = UINT64_MAX, TSR_INVALID, "flags");
  EACH(d.batch = INT64_MIN, TSR_INVALID, "batch");
  EACH(d.mask_expr = "(((", TSR_INVALID, "mask_expr");
  EACH(d.memory = TSR_MEMORY_CL_MEM, TSR_UNSUPPORTED, "memory");
#undef EACH
  d = attention_desc;
  d.variant = "no such variant"; /* verdicts do not look at it */
  INVALID(tsr_plan_attention(device, &d, &p, e), "variant");
  a.k_new.stride[0] = INT64_MIN;
  a.k_new.shape[0] = 2;
  INVALID(tsr_plan_append(device, &a, &p, e), "k_new.stride[0]");
  assert_null(p);
  a = append_desc;
  a.memory = TSR_MEMORY_DEVICE;
  REFUSED(tsr_plan_append(device, &a, &p, e), TSR_UNSUPPORTED, "memory");
  a = append_desc;
  a.variant = "?";
  INVALID(tsr_plan_append(device, &a, &p, e), "variant");
  m.o.dtype = TSR_I64;
  INVALID(tsr_plan_merge(device, &m, &p, e), "o.dtype");
  m = merge_desc;
  m.partial_o.shape[1] = INT64_MAX;
  INVALID(tsr_plan_merge(device, &m, &p, e), "partial_o.stride");
  m = merge_desc;
  m.memory = TSR_MEMORY_SVM;
  REFUSED(tsr_plan_merge(device, &m, &p, e), TSR_UNSUPPORTED, "memory");
}

static void plan_questions(void **state) {
  tsr_plan_info info = {.size = sizeof(info)};
  tsr_verdict verdicts[2];
  int64_t bytes = -1, align = -1;
  int32_t count = 1, all;
  (void)state;
  INVALID(tsr_plan_workspace(NULL, &bytes, &align, e), "plan");
  INVALID(tsr_plan_workspace(plans[0], NULL, &align, e), "bytes");
  assert_int_equal(bytes, -1);
  assert_int_equal(tsr_plan_workspace(plans[0], &bytes, NULL, NULL), TSR_OK);
  INVALID(tsr_workspace_bound(NULL, &attention_desc, &bytes, &align, e), "device");
  INVALID(tsr_workspace_bound(device, NULL, &bytes, &align, e), "desc");
  INVALID(tsr_workspace_bound(device, &attention_desc, NULL, &align, e), "bytes");
  assert_int_equal(tsr_workspace_bound(device, &attention_desc, &bytes, NULL, NULL), TSR_OK);
  INVALID(tsr_plan_get(NULL, &info, e), "plan");
  INVALID(tsr_plan_get(plans[0], NULL, e), "info");
  for (int p = 0; p < PLANS; p++) {
    assert_int_equal(tsr_plan_get(plans[p], &info, NULL), TSR_OK);
    assert_non_null(tsr_plan_launch(plans[p], info.num_launches - 1));
    assert_null(tsr_plan_launch(plans[p], info.num_launches));
    assert_null(tsr_plan_launch(plans[p], -1));
    assert_null(tsr_plan_launch(plans[p], INT32_MAX));
    assert_null(tsr_plan_launch(plans[p], INT32_MIN));
  }
  assert_null(tsr_plan_launch(NULL, 0));
  for (int32_t op = -2; op < 8; op++) {
    assert_true((tsr_device_variant(device, op, 0) != NULL) == (op >= TSR_OP_FORWARD && op <= TSR_OP_MERGE));
    assert_null(tsr_device_variant(device, op, -1));
    assert_null(tsr_device_variant(device, op, INT32_MAX));
  }
  INVALID(tsr_attention_verdicts(NULL, &attention_desc, verdicts, &count, e), "device");
  INVALID(tsr_attention_verdicts(device, NULL, verdicts, &count, e), "desc");
  INVALID(tsr_attention_verdicts(device, &attention_desc, verdicts, NULL, e), "count");
  assert_int_equal(count, 1);
  count = -1;
  INVALID(tsr_attention_verdicts(device, &attention_desc, verdicts, &count, e), "count");
  all = 0;
  assert_int_equal(tsr_attention_verdicts(device, &attention_desc, NULL, &all, NULL), TSR_OK);
  assert_true(all >= 1);
  memset(verdicts, 0x77, sizeof(verdicts));
  count = 0; /* no room: only counted */
  assert_int_equal(tsr_attention_verdicts(device, &attention_desc, verdicts, &count, &err), TSR_OK);
  assert_int_equal(count, all);
  assert_int_equal(((unsigned char *)verdicts)[0], 0x77);
  count = 1; /* one is filled, no more */
  assert_int_equal(tsr_attention_verdicts(device, &attention_desc, verdicts, &count, &err), TSR_OK);
  assert_int_equal(count, all);
  assert_int_equal(verdicts[0].accepted, 1);
  assert_int_equal(verdicts[0].chosen, 1);
  assert_int_equal(((unsigned char *)&verdicts[1])[0], 0x77);
}

/* Memory that the device does not compute on is a reason like any other: what verdicts say, a plan does. */
static void verdicts_know_memory(void **state) {
  tsr_attention_desc d = attention_desc;
  tsr_verdict v;
  int32_t count = 1;
  tsr_plan *p = NULL;
  (void)state;
  d.memory = TSR_MEMORY_DEVICE;
  assert_int_equal(tsr_attention_verdicts(device, &d, &v, &count, &err), TSR_OK);
  assert_int_equal(v.accepted, 0);
  assert_int_equal(v.chosen, 0);
  assert_non_null(strstr(v.reason, "memory"));
  assert_int_equal(tsr_plan_attention(device, &d, &p, &err), TSR_UNSUPPORTED);
  assert_non_null(strstr(err.text, v.reason));
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static void run_pointers(void **state) {
  (void)state;
  INVALID(tsr_run_attention(NULL, &run_args, e), "plan");
  INVALID(tsr_run_attention(plans[ATTENTION], NULL, e), "args");
  INVALID(tsr_run_append(NULL, &append_args, e), "plan");
  INVALID(tsr_run_append(plans[APPEND], NULL, e), "args");
  INVALID(tsr_run_merge(NULL, &merge_args, e), "plan");
  INVALID(tsr_run_merge(plans[MERGE], NULL, e), "args");
  for (int p = 0; p < PLANS; p++) { /* a plan of another operation */
    int64_t rows, cols;
    if (p != ATTENTION && p != BACKWARD) {
      INVALID(tsr_run_attention(plans[p], &run_args, e), "plan");
      INVALID(tsr_plan_tiles(plans[p], &run_args, 0, 0, NULL, 0, &rows, &cols, e), "plan");
    }
    if (p != APPEND) {
      INVALID(tsr_run_append(plans[p], &append_args, e), "plan");
    }
    if (p != MERGE) {
      INVALID(tsr_run_merge(plans[p], &merge_args, e), "plan");
    }
  }
  assert_int_equal(tsr_run_attention(plans[ATTENTION], &run_args, &err), TSR_OK); /* and all was well otherwise */
  assert_int_equal(tsr_run_append(plans[APPEND], &append_args, &err), TSR_OK);
  assert_int_equal(tsr_run_merge(plans[MERGE], &merge_args, &err), TSR_OK);
}

/* Offsets that would take a pointer round the address space, and below it. */
static void run_offsets(void **state) {
  static const int64_t offsets[] = {INT64_MAX, INT64_MAX - 3, INT64_MIN, -4};
  (void)state;
  for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
    tsr_run_args a = run_args;
    tsr_append_args ap = append_args;
    tsr_merge_args m = merge_args;
    tsr_buffer part = partial_o;
    const int wraps = offsets[i] < 0 || (uintptr_t)in > UINTPTR_MAX - (uintptr_t)INT64_MAX;
    a.q.ptr = wraps ? a.q.ptr : (void *)(UINTPTR_MAX - 4095);
    a.q.offset_bytes = offsets[i];
    INVALID(tsr_run_attention(plans[ATTENTION], &a, e), "q.offset_bytes");
    a = run_args;
    a.workspace.ptr = (void *)(UINTPTR_MAX - 4095);
    a.workspace.offset_bytes = offsets[i];
    INVALID(tsr_run_attention(plans[ATTENTION], &a, e), "workspace.offset_bytes");
    ap.k_cache.ptr = (void *)(UINTPTR_MAX - 4095);
    ap.k_cache.offset_bytes = offsets[i];
    INVALID(tsr_run_append(plans[APPEND], &ap, e), "k_cache.offset_bytes");
    part.ptr = (void *)(UINTPTR_MAX - 4095);
    part.offset_bytes = offsets[i];
    m.partial_o = &part;
    INVALID(tsr_run_merge(plans[MERGE], &m, e), "partial_o[0].offset_bytes");
  }
  {
    tsr_run_args a = run_args; /* the start fits, the end does not */
    a.q.ptr = (void *)(UINTPTR_MAX - 3);
    INVALID(tsr_run_attention(plans[ATTENTION], &a, e), "q.offset_bytes");
  }
}

static void run_numbers(void **state) {
  tsr_run_args a;
  float before[8];
  (void)state;
  memset(out, 0x21, sizeof(out));
  memcpy(before, out[0], sizeof(before));
#define EACH(change, field_)                                     \
  do {                                                           \
    a = run_args;                                                \
    change;                                                      \
    INVALID(tsr_run_attention(plans[ATTENTION], &a, e), field_); \
    assert_memory_equal(before, out[0], sizeof(before));         \
  } while (0)
  EACH(a.batch = 2, "batch");
  EACH(a.batch = -1, "batch");
  EACH(a.total_q = 1, "total_q");
  EACH(a.scale = NAN, "scale");
  EACH(a.softcap = 1.0f, "softcap");
  EACH(a.dropout_p = 0.5f, "dropout_p");
  EACH(a.seed = 1, "seed");
  EACH(a.scalars[0] = 1.0f, "scalars");
  EACH(a.q.ptr = NULL, "q");
  EACH(a.q.offset_bytes = 2, "q");
  EACH(a.bias = tsr_buffer_in(in), "bias");
  EACH(a.workspace_bytes = -1, "workspace_bytes");
  EACH(a.workspace.offset_bytes = -1, "workspace.offset_bytes");
  EACH(a.queue = in, "queue");
  EACH(a.num_wait_events = 1, "num_wait_events");
  EACH(a.host_seqlens_q = in, "host_seqlens_q");
#undef EACH
}

/* ---- Memory of a device ---------------------------------------------------------------------- */

static void memory(void **state) {
  char host[16] = "as it was";
  void *ptr = host;
  tsr_buffer b = tsr_buffer_out(host);
  const tsr_buffer none = {NULL, 0};
  (void)state;
  INVALID(tsr_memory_alloc(NULL, 8, &ptr, e), "device");
  INVALID(tsr_memory_alloc(device, 8, NULL, e), "ptr");
  INVALID(tsr_memory_alloc(device, -1, &ptr, e), "bytes");
  assert_null(ptr);
  REFUSED(tsr_memory_alloc(device, INT64_MAX, &ptr, e), TSR_OUT_OF_MEMORY, "bytes");
  assert_null(ptr);
  assert_int_equal(tsr_memory_alloc(device, 0, &ptr, NULL), TSR_OK);
  assert_non_null(ptr);
  tsr_memory_free(NULL, ptr);
  tsr_memory_free(device, NULL);
  tsr_memory_free(device, ptr);
  INVALID(tsr_memory_write(NULL, &b, host, 1, e), "device");
  INVALID(tsr_memory_write(device, NULL, host, 1, e), "to");
  INVALID(tsr_memory_write(device, &none, host, 1, e), "to");
  INVALID(tsr_memory_write(device, &b, NULL, 1, e), "from");
  INVALID(tsr_memory_write(device, &b, host, INT64_MIN, e), "bytes");
  INVALID(tsr_memory_read(NULL, host, &b, 1, e), "device");
  INVALID(tsr_memory_read(device, NULL, &b, 1, e), "to");
  INVALID(tsr_memory_read(device, host, NULL, 1, e), "from");
  INVALID(tsr_memory_read(device, host, &none, 1, e), "from");
  INVALID(tsr_memory_read(device, host, &b, -1, e), "bytes");
  b.offset_bytes = -1;
  INVALID(tsr_memory_write(device, &b, host, 1, e), "to");
  INVALID(tsr_memory_read(device, host, &b, 1, e), "from");
  INVALID(tsr_device_wait(NULL, NULL, e), "device");
  assert_int_equal(tsr_device_wait(device, NULL, NULL), TSR_OK);
  assert_string_equal(host, "as it was");
}

/* ---- All at once ----------------------------------------------------------------------------- */

static void once(void **state) {
  tsr_run_args good = run_args, a;
  static char memory[4096];
  (void)state;
  good.workspace = (tsr_buffer){0};
  good.workspace_bytes = 0;
  INVALID(tsr_attention_once(NULL, &attention_desc, &good, e), "context");
  INVALID(tsr_attention_once(context, NULL, &good, e), "desc");
  INVALID(tsr_attention_once(context, &attention_desc, NULL, e), "args");
  a = good;
  a.workspace.ptr = memory;
  INVALID(tsr_attention_once(context, &attention_desc, &a, e), "workspace");
  a = good;
  a.workspace.offset_bytes = 64; /* would move the workspace that it brings */
  INVALID(tsr_attention_once(context, &attention_desc, &a, e), "workspace");
  a = good;
  a.workspace_bytes = 1;
  INVALID(tsr_attention_once(context, &attention_desc, &a, e), "workspace");
  a = good;
  a.q.ptr = NULL;
  INVALID(tsr_attention_once(context, &attention_desc, &a, e), "q");
  assert_int_equal(tsr_attention_once(context, &attention_desc, &good, &err), TSR_OK);
  assert_int_equal(err.status, TSR_OK);
  assert_string_equal(err.text, "");
}

/* ---- The oracle ------------------------------------------------------------------------------ */

static void reference(void **state) {
  static const int64_t rows[] = {0, 2};
  tsr_reference_out r = tsr_reference_out_init();
  tsr_run_args a = run_args;
  tsr_append_args ap = append_args;
  tsr_merge_args m = merge_args;
  double o[8];
  (void)state;
  INVALID(tsr_reference_attention(context, NULL, &run_args, &r, e), "desc");
  INVALID(tsr_reference_attention(NULL, &attention_desc, NULL, &r, e), "args");
  INVALID(tsr_reference_attention(NULL, &attention_desc, &run_args, NULL, e), "out");
  r.mode = 2;
  INVALID(tsr_reference_attention(NULL, &attention_desc, &run_args, &r, e), "mode");
  r = tsr_reference_out_init();
  r.reserved = 1;
  INVALID(tsr_reference_attention(NULL, &attention_desc, &run_args, &r, e), "reserved");
  r = tsr_reference_out_init();
  r.num_rows = 1;
  INVALID(tsr_reference_attention(NULL, &attention_desc, &run_args, &r, e), "num_rows");
  r.rows = rows;
  r.num_rows = -1;
  INVALID(tsr_reference_attention(NULL, &attention_desc, &run_args, &r, e), "num_rows");
  r.num_rows = 2; /* row 2 of 2 */
  INVALID(tsr_reference_attention(NULL, &attention_desc, &run_args, &r, e), "rows");
  r.num_rows = 1;
  assert_int_equal(tsr_reference_attention(NULL, &attention_desc, &run_args, &r, NULL), TSR_OK);
  a.k.ptr = NULL;
  INVALID(tsr_reference_attention(NULL, &attention_desc, &a, &r, e), "k");
  INVALID(tsr_reference_append(NULL, &append_args, e), "desc");
  INVALID(tsr_reference_append(&append_desc, NULL, e), "args");
  ap.v_cache.ptr = NULL;
  INVALID(tsr_reference_append(&append_desc, &ap, e), "v_cache");
  INVALID(tsr_reference_merge(NULL, &merge_args, o, NULL, e), "desc");
  INVALID(tsr_reference_merge(&merge_desc, NULL, o, NULL, e), "args");
  m.partial_o = NULL;
  INVALID(tsr_reference_merge(&merge_desc, &m, o, NULL, e), "partial_o");
  assert_int_equal(tsr_reference_merge(&merge_desc, &merge_args, NULL, NULL, NULL), TSR_OK);
}

/* ---- What is accepted ------------------------------------------------------------------------ */

static void describe(void) {
  attention_desc = tsr_attention_desc_init();
  attention_desc.q = attention_desc.k = attention_desc.v = attention_desc.o = tsr_layout_dense(TSR_F32, 1, 2, 1, 4);
  backward_desc = attention_desc;
  backward_desc.op = TSR_BACKWARD;
  backward_desc.lse = tsr_layout_dense(TSR_F32, 1, 1, 2, 1);
  backward_desc.dout = backward_desc.dq = attention_desc.q;
  run_args = tsr_run_args_init();
  run_args.q = run_args.k = run_args.v = tsr_buffer_in(in);
  run_args.o = tsr_buffer_out(out[0]);
  append_desc = tsr_append_desc_init();
  append_desc.k_new = append_desc.v_new = tsr_layout_dense(TSR_F32, 1, 2, 1, 4);
  append_desc.k_cache = append_desc.v_cache = tsr_layout_dense(TSR_F32, 1, 8, 1, 4);
  append_args = tsr_append_args_init();
  append_args.k_new = append_args.v_new = tsr_buffer_in(in);
  append_args.k_cache = tsr_buffer_out(out[1]);
  append_args.v_cache = tsr_buffer_out(out[2]);
  merge_desc = tsr_merge_desc_init();
  merge_desc.num_partials = 1;
  merge_desc.o = merge_desc.partial_o = tsr_layout_dense(TSR_F32, 1, 2, 1, 4);
  merge_desc.partial_lse = tsr_layout_dense(TSR_F32, 1, 1, 2, 1);
  partial_o = partial_lse = tsr_buffer_in(in);
  merge_args = tsr_merge_args_init();
  merge_args.partial_o = &partial_o;
  merge_args.partial_lse = &partial_lse;
  merge_args.o = tsr_buffer_out(out[2]);
}

static void *scratch;

static int setup(void **state) {
  tsr_context_params p = tsr_context_params_init();
  int64_t bytes = 0, align = 1;
  (void)state;
  p.num_threads = 1;
  describe();
  if (tsr_context_create(&p, &context, NULL) != TSR_OK || tsr_device_open(context, "cpu", &device, NULL) != TSR_OK ||
      tsr_plan_attention(device, &attention_desc, &plans[ATTENTION], NULL) != TSR_OK ||
      tsr_plan_attention(device, &backward_desc, &plans[BACKWARD], NULL) != TSR_OK ||
      tsr_plan_append(device, &append_desc, &plans[APPEND], NULL) != TSR_OK ||
      tsr_plan_merge(device, &merge_desc, &plans[MERGE], NULL) != TSR_OK) {
    return 1;
  }
  for (int n = 0; n < PLANS; n++) {
    int64_t b, al;
    if (tsr_plan_workspace(plans[n], &b, &al, NULL) != TSR_OK) {
      return 1;
    }
    bytes = b > bytes ? b : bytes;
    align = al > align ? al : align;
  }
  if (posix_memalign(&scratch, (size_t)align, (size_t)bytes + 64) != 0) {
    return 1;
  }
  run_args.workspace = append_args.workspace = merge_args.workspace = tsr_buffer_out(scratch);
  run_args.workspace_bytes = append_args.workspace_bytes = merge_args.workspace_bytes = bytes;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  for (int n = 0; n < PLANS; n++) {
    tsr_plan_destroy(plans[n]);
  }
  tsr_device_close(device);
  tsr_context_destroy(context);
  free(scratch);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names),          cmocka_unit_test(elements),
      cmocka_unit_test(plan_pointers),  cmocka_unit_test(plan_descriptions),
      cmocka_unit_test(plan_questions), cmocka_unit_test(verdicts_know_memory),
      cmocka_unit_test(run_pointers),   cmocka_unit_test(run_offsets),
      cmocka_unit_test(run_numbers),    cmocka_unit_test(memory),
      cmocka_unit_test(once),           cmocka_unit_test(reference),
  };
  return cmocka_run_group_tests_name("api_inputs", tests, setup, teardown);
}
