/* SPDX-License-Identifier: Apache-2.0 */
/* The growth rule of base.h for every struct with a size, through every function that takes one: this version's size is
 * right, a larger one if the unknown tail is zero (an output's tail is zeroed), one that the struct had before it grew,
 * and any other is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/tessera.h"

enum { LIMIT = 65536 };

static tsr_context *context;
static tsr_device *device;
static tsr_plan *attention, *append, *merge;
static tsr_attention_desc attention_desc;
static tsr_append_desc append_desc;
static tsr_merge_desc merge_desc;
static tsr_run_args run_args;
static tsr_append_args append_args;
static tsr_merge_args merge_args;
static float numbers[4096], outputs[3][4096];
static tsr_buffer partial_o, partial_lse;

/* ---- Calls ----------------------------------------------------------------------------------- */

static tsr_status create(void *s, tsr_error *err) {
  tsr_context *c = NULL;
  const tsr_status st = tsr_context_create(s, &c, err);
  tsr_context_destroy(c);
  return st;
}

static tsr_status backend_info(void *s, tsr_error *err) {
  return tsr_backend_get(context, 0, s, err);
}

static tsr_status device_info(void *s, tsr_error *err) {
  return tsr_device_get(device, s, err);
}

static tsr_status plan_info(void *s, tsr_error *err) {
  return tsr_plan_get(attention, s, err);
}

static tsr_status plan_attention(void *s, tsr_error *err) {
  tsr_plan *p = NULL;
  const tsr_status st = tsr_plan_attention(device, s, &p, err);
  tsr_plan_destroy(p);
  return st;
}

static tsr_status plan_append(void *s, tsr_error *err) {
  tsr_plan *p = NULL;
  const tsr_status st = tsr_plan_append(device, s, &p, err);
  tsr_plan_destroy(p);
  return st;
}

static tsr_status plan_merge(void *s, tsr_error *err) {
  tsr_plan *p = NULL;
  const tsr_status st = tsr_plan_merge(device, s, &p, err);
  tsr_plan_destroy(p);
  return st;
}

static tsr_status bound(void *s, tsr_error *err) {
  int64_t bytes;
  return tsr_workspace_bound(device, s, &bytes, NULL, err);
}

static tsr_status verdicts(void *s, tsr_error *err) {
  int32_t count = 0;
  return tsr_attention_verdicts(device, s, NULL, &count, err);
}

static tsr_status once_desc(void *s, tsr_error *err) {
  return tsr_attention_once(context, s, &run_args, err);
}

static tsr_status run_attention(void *s, tsr_error *err) {
  return tsr_run_attention(attention, s, err);
}

static tsr_status once_args(void *s, tsr_error *err) {
  return tsr_attention_once(context, &attention_desc, s, err);
}

static tsr_status tiles(void *s, tsr_error *err) {
  int64_t rows, cols;
  return tsr_plan_tiles(attention, s, 0, 0, NULL, 0, &rows, &cols, err);
}

static tsr_status run_append(void *s, tsr_error *err) {
  return tsr_run_append(append, s, err);
}

static tsr_status run_merge(void *s, tsr_error *err) {
  return tsr_run_merge(merge, s, err);
}

static tsr_status run_stats(void *s, tsr_error *err) {
  tsr_run_args a = run_args;
  a.stats = s;
  return tsr_run_attention(attention, &a, err);
}

static tsr_status reference_desc(void *s, tsr_error *err) {
  const tsr_reference_out out = tsr_reference_out_init();
  return tsr_reference_attention(NULL, s, &run_args, &out, err);
}

static tsr_status reference_args(void *s, tsr_error *err) {
  const tsr_reference_out out = tsr_reference_out_init();
  return tsr_reference_attention(NULL, &attention_desc, s, &out, err);
}

static tsr_status reference_out(void *s, tsr_error *err) {
  return tsr_reference_attention(NULL, &attention_desc, &run_args, s, err);
}

static tsr_status reference_append_desc(void *s, tsr_error *err) {
  return tsr_reference_append(s, &append_args, err);
}

static tsr_status reference_append_args(void *s, tsr_error *err) {
  return tsr_reference_append(&append_desc, s, err);
}

static tsr_status reference_merge_desc(void *s, tsr_error *err) {
  return tsr_reference_merge(s, &merge_args, NULL, NULL, err);
}

static tsr_status reference_merge_args(void *s, tsr_error *err) {
  return tsr_reference_merge(&merge_desc, s, NULL, NULL, err);
}

/* ---- The rule -------------------------------------------------------------------------------- */

static tsr_context_params no_params;
static const tsr_reference_out no_out;
static const tsr_backend_info no_backend;
static const tsr_device_info no_device;
static const tsr_plan_info no_plan;
static const tsr_run_stats no_stats;

typedef struct taker {
  const char *name;
  tsr_status (*call)(void *s, tsr_error *err);
  const void *good; /* an input that is accepted, but for its size */
  size_t size;
  const char *field; /* of the error */
  int output;
  size_t earlier; /* a size that it had before it grew; 0: never */
} taker;

static void sizes_of(const taker *t) {
  unsigned char *s = NULL;
  tsr_error err;
  tsr_status st;
  assert_int_equal(posix_memalign((void **)&s, 64, LIMIT + 64), 0);
  for (size_t size = 0; size <= t->size + 64; size++) {
    const int right = size >= t->size || (t->earlier != 0 && size == t->earlier);
    memset(s, 0, LIMIT + 64);
    memcpy(s, t->good, size < t->size ? size : t->size);
    memset(s + size, 0xee, 64); /* not the struct's */
    memcpy(s, &size, sizeof(size));
    if (t->output && size > sizeof(size)) {
      memset(s + sizeof(size), 0xdd, size - sizeof(size));
    }
    st = t->call(s, &err);
    if (st != (right ? TSR_OK : TSR_INVALID) || strcmp(err.field, right ? "" : t->field) != 0) {
      fail_msg("%s, size %zu of %zu: %d, %s, %s", t->name, size, t->size, st, err.field, err.text);
    }
    for (size_t i = 0; i < 64 && size >= sizeof(size); i++) {
      assert_int_equal(s[size + i], 0xee);
    }
    for (size_t i = sizeof(size); i < size && t->output; i++) { /* refused: as it was; else the tail is zero */
      assert_true(right ? i < t->size || s[i] == 0 : s[i] == 0xdd);
    }
    if (right && !t->output && size > t->size) {
      s[size - 1] = 1;
      assert_int_equal(t->call(s, &err), TSR_INVALID);
      assert_string_equal(err.field, "size");
    }
  }
  for (size_t size = LIMIT - 1; size <= LIMIT + 2; size++) {
    memset(s, 0, LIMIT + 64);
    memcpy(s, t->good, t->size);
    memcpy(s, &size, sizeof(size));
    assert_int_equal(t->call(s, &err), size <= LIMIT ? TSR_OK : TSR_INVALID);
  }
  for (size_t n = 1; n < 3; n++) { /* sizes nobody set */
    const size_t size = (size_t)-1 / n;
    memcpy(s, &size, sizeof(size));
    assert_int_equal(t->call(s, NULL), TSR_INVALID);
  }
  assert_int_equal(t->call(NULL, NULL),
                   t->good == (const void *)&no_params || t->call == run_stats ? TSR_OK : TSR_INVALID);
  free(s);
}

static void every_sized_struct(void **state) {
  const taker takers[] = {
      {"tsr_context_create", create, &no_params, sizeof(tsr_context_params), "size", 0,
       offsetof(tsr_context_params, compile)},
      {"tsr_backend_get", backend_info, &no_backend, sizeof(tsr_backend_info), "info.size", 1, 0},
      {"tsr_device_get", device_info, &no_device, sizeof(tsr_device_info), "info.size", 1,
       offsetof(tsr_device_info, host_memory)},
      {"tsr_plan_get", plan_info, &no_plan, sizeof(tsr_plan_info), "info.size", 1, 0},
      {"tsr_plan_attention", plan_attention, &attention_desc, sizeof(tsr_attention_desc), "size", 0, 0},
      {"tsr_workspace_bound", bound, &attention_desc, sizeof(tsr_attention_desc), "size", 0, 0},
      {"tsr_attention_verdicts", verdicts, &attention_desc, sizeof(tsr_attention_desc), "size", 0, 0},
      {"tsr_attention_once, desc", once_desc, &attention_desc, sizeof(tsr_attention_desc), "size", 0, 0},
      {"tsr_reference_attention, desc", reference_desc, &attention_desc, sizeof(tsr_attention_desc), "size", 0, 0},
      {"tsr_plan_append", plan_append, &append_desc, sizeof(tsr_append_desc), "size", 0, 0},
      {"tsr_reference_append, desc", reference_append_desc, &append_desc, sizeof(tsr_append_desc), "size", 0, 0},
      {"tsr_plan_merge", plan_merge, &merge_desc, sizeof(tsr_merge_desc), "size", 0, 0},
      {"tsr_reference_merge, desc", reference_merge_desc, &merge_desc, sizeof(tsr_merge_desc), "size", 0, 0},
      {"tsr_run_attention", run_attention, &run_args, sizeof(tsr_run_args), "size", 0, 0},
      {"tsr_attention_once, args", once_args, &run_args, sizeof(tsr_run_args), "size", 0, 0},
      {"tsr_plan_tiles", tiles, &run_args, sizeof(tsr_run_args), "size", 0, 0},
      {"tsr_reference_attention, args", reference_args, &run_args, sizeof(tsr_run_args), "size", 0, 0},
      {"tsr_run_append", run_append, &append_args, sizeof(tsr_append_args), "size", 0, 0},
      {"tsr_reference_append, args", reference_append_args, &append_args, sizeof(tsr_append_args), "size", 0, 0},
      {"tsr_run_merge", run_merge, &merge_args, sizeof(tsr_merge_args), "size", 0, 0},
      {"tsr_reference_merge, args", reference_merge_args, &merge_args, sizeof(tsr_merge_args), "size", 0, 0},
      {"tsr_reference_attention, out", reference_out, &no_out, sizeof(tsr_reference_out), "size", 0, 0},
      {"tsr_run_args.stats", run_stats, &no_stats, sizeof(tsr_run_stats), "stats", 1, 0},
  };
  (void)state;
  for (size_t i = 0; i < sizeof(takers) / sizeof(takers[0]); i++) {
    sizes_of(&takers[i]);
  }
}

/* ---- What is accepted ------------------------------------------------------------------------ */

static void describe(void) {
  attention_desc = tsr_attention_desc_init();
  attention_desc.q = attention_desc.k = attention_desc.v = attention_desc.o = tsr_layout_dense(TSR_F32, 1, 2, 1, 4);
  run_args = tsr_run_args_init();
  run_args.q = run_args.k = run_args.v = tsr_buffer_in(numbers);
  run_args.o = tsr_buffer_out(outputs[0]);
  append_desc = tsr_append_desc_init();
  append_desc.k_new = append_desc.v_new = tsr_layout_dense(TSR_F32, 1, 2, 1, 4);
  append_desc.k_cache = append_desc.v_cache = tsr_layout_dense(TSR_F32, 1, 8, 1, 4);
  append_args = tsr_append_args_init();
  append_args.k_new = append_args.v_new = tsr_buffer_in(numbers);
  append_args.k_cache = tsr_buffer_out(outputs[0]);
  append_args.v_cache = tsr_buffer_out(outputs[1]);
  merge_desc = tsr_merge_desc_init();
  merge_desc.num_partials = 1;
  merge_desc.o = merge_desc.partial_o = tsr_layout_dense(TSR_F32, 1, 2, 1, 4);
  merge_desc.partial_lse = tsr_layout_dense(TSR_F32, 1, 1, 2, 1);
  partial_o = partial_lse = tsr_buffer_in(numbers);
  merge_args = tsr_merge_args_init();
  merge_args.partial_o = &partial_o;
  merge_args.partial_lse = &partial_lse;
  merge_args.o = tsr_buffer_out(outputs[2]);
}

static int setup(void **state) {
  const tsr_context_params p = {.size = sizeof(p), .num_threads = 1};
  int64_t bytes = -1;
  (void)state;
  describe();
  no_params = p;
  if (tsr_context_create(&p, &context, NULL) != TSR_OK || tsr_device_open(context, "null", &device, NULL) != TSR_OK ||
      tsr_plan_attention(device, &attention_desc, &attention, NULL) != TSR_OK ||
      tsr_plan_append(device, &append_desc, &append, NULL) != TSR_OK ||
      tsr_plan_merge(device, &merge_desc, &merge, NULL) != TSR_OK ||
      tsr_plan_workspace(attention, &bytes, NULL, NULL) != TSR_OK) {
    return 1;
  }
  return bytes != 0; /* run_args brings none */
}

static int teardown(void **state) {
  (void)state;
  tsr_plan_destroy(attention);
  tsr_plan_destroy(append);
  tsr_plan_destroy(merge);
  tsr_device_close(device);
  tsr_context_destroy(context);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_sized_struct)};
  return cmocka_run_group_tests_name("structs", tests, setup, teardown);
}
