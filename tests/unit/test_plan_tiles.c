/* SPDX-License-Identifier: Apache-2.0 */
/* tsr_plan_tiles: reads lengths, mask tensors and what a mask expression reads, and nothing else of a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "problem_bases.h"

enum { CAPACITY = 4096 };

typedef struct fixture {
  tsr_context *context;
  tsr_device *device;
  tsr_plan *plan;
  tsr__problem p; /* the plan's own is hidden */
  tsr_run_args args;
  base_memory memory;
  uint8_t classes[CAPACITY];
  int64_t rows, cols;
  tsr_error err;
} fixture;

static void setup(fixture *f, base_kind kind, const char *device) {
  const tsr_attention_desc d = base_desc(kind);
  memset(f, 0, sizeof(*f));
  f->args = tsr_run_args_init();
  assert_int_equal(tsr_context_create(NULL, &f->context, NULL), TSR_OK);
  assert_int_equal(tsr_device_open(f->context, device, &f->device, NULL), TSR_OK);
  assert_int_equal(tsr_plan_attention(f->device, &d, &f->plan, NULL), TSR_OK);
  assert_int_equal(tsr__problem_init(NULL, &d, &f->p, NULL), TSR_OK);
  assert_true(base_memory_init(&f->p, 1 << 20, &f->memory, &f->args));
  base_fill(kind, &f->p, &f->args);
  if (tsr__problem_has(&f->p, TSR_SLOT_mask)) {
    memset(f->memory.data[TSR_SLOT_mask], 0x5a, (size_t)tsr__layout_span_bytes(&f->p.desc.mask));
  }
}

static void teardown(fixture *f) {
  base_memory_free(&f->memory);
  tsr__problem_free(&f->p);
  tsr_plan_destroy(f->plan);
  tsr_device_close(f->device);
  tsr_context_destroy(f->context);
}

static tsr_status tiles(fixture *f, int64_t b, int64_t h) {
  memset(f->classes, 0xee, sizeof(f->classes));
  return tsr_plan_tiles(f->plan, &f->args, b, h, f->classes, CAPACITY, &f->rows, &f->cols, &f->err);
}

static void refused(fixture *f, const char *field) {
  const tsr_status st = tiles(f, 0, 0);
  if (st != TSR_INVALID || strcmp(f->err.field, field) != 0) {
    print_message("expected %s, got %d, \"%s\": %s\n", field, (int)st, f->err.field, f->err.text);
  }
  assert_int_equal(st, TSR_INVALID);
  assert_string_equal(f->err.field, field);
  assert_int_equal(f->classes[0], 0xee);
}

/* Does the header say that tsr_plan_tiles reads this tensor? */
static int is_read(const tsr__problem *p, int slot) {
  static const int slots[] = {
      TSR_SLOT_cu_seqlens_q, TSR_SLOT_cu_seqlens_k,  TSR_SLOT_seqlens_q,        TSR_SLOT_seqlens_k,
      TSR_SLOT_kv_indptr,    TSR_SLOT_last_page_len, TSR_SLOT_prefix,           TSR_SLOT_mask,
      TSR_SLOT_mask_offsets, TSR_SLOT_segments_q,    TSR_SLOT_mask_row_strides, TSR_SLOT_segments_k,
      TSR_SLOT_flashmask,    TSR_SLOT_block_indptr,  TSR_SLOT_block_indices};
  for (size_t i = 0; i < sizeof(slots) / sizeof(slots[0]); i++) {
    if (slots[i] == slot) {
      return 1;
    }
  }
  return slot >= TSR_SLOT_aux0 && p->mask_expr != NULL;
}

static void the_rest_of_a_run_is_not_read(void **state) {
  static fixture f, full;
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    for (int b = 0; b < BASE_B; b++) {
      setup(&f, (base_kind)kind, "cpu");
      assert_int_equal(tiles(&f, b, 1), TSR_OK);
      assert_true(f.rows > 0 && f.cols > 0);
      full = f;
      f.args.scale = -1.0f / 0.0f;
      f.args.softcap = -1.0f;
      f.args.dropout_p = 7.0f;
      f.args.queue = &f;
      for (int garbage = 0; garbage < 2; garbage++) {
        for (int s = 0; s < TSR_SLOT_COUNT; s++) {
          if (!is_read(&f.p, s)) {
            base_buffer(&f.args, s)->ptr = garbage ? (void *)(uintptr_t)1 : NULL;
            base_buffer(&f.args, s)->offset_bytes = garbage ? -3 : 0;
          }
        }
        assert_int_equal(tiles(&f, b, 1), TSR_OK);
        assert_int_equal(f.rows, full.rows);
        assert_int_equal(f.cols, full.cols);
        assert_memory_equal(f.classes, full.classes, CAPACITY);
      }
      teardown(&f);
    }
  }
}

static void what_is_read_is_checked(void **state) {
  static fixture f;
  int seen = 0;
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    setup(&f, (base_kind)kind, "cpu");
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      if (tsr__problem_has(&f.p, s) && is_read(&f.p, s)) {
        tsr_buffer *b = base_buffer(&f.args, s);
        const tsr_buffer good = *b;
        b->ptr = NULL;
        refused(&f, tsr__slots[s].name);
        *b = good;
        b->offset_bytes = -8;
        assert_int_equal(tiles(&f, 0, 0), TSR_INVALID);
        *b = good;
        seen++;
      }
    }
    f.args.batch = BASE_B + 1;
    refused(&f, "batch");
    teardown(&f);
  }
  assert_true(seen > 25);
  setup(&f, BASE_PACKED, "cpu");
  base_put(&f.args, &f.p, TSR_SLOT_cu_seqlens_k, 1, 99);
  refused(&f, "cu_seqlens_k[1]");
  teardown(&f);
  setup(&f, BASE_CSR, "cpu");
  base_put(&f.args, &f.p, TSR_SLOT_kv_indptr, 1, -1);
  refused(&f, "kv_indptr[1]");
  teardown(&f);
  setup(&f, BASE_MASKS, "cpu");
  base_put(&f.args, &f.p, TSR_SLOT_block_indices, 1, 9);
  refused(&f, "block_indices[0,0,1]");
  teardown(&f);
  setup(&f, BASE_EXPR, "cpu");
  f.args.scalars[2] = 1.0f;
  refused(&f, "scalars");
  teardown(&f);
}

static void bad_arguments(void **state) {
  static fixture f;
  uint8_t *const c = f.classes;
  tsr_run_args small;
  (void)state;
  setup(&f, BASE_DENSE, "cpu");
#define REFUSED(call, name)                      \
  do {                                           \
    assert_int_equal(call, TSR_INVALID);         \
    assert_int_equal(f.err.status, TSR_INVALID); \
    assert_string_equal(f.err.field, name);      \
  } while (0)
  REFUSED(tsr_plan_tiles(NULL, &f.args, 0, 0, c, CAPACITY, &f.rows, &f.cols, &f.err), "plan");
  REFUSED(tsr_plan_tiles(f.plan, NULL, 0, 0, c, CAPACITY, &f.rows, &f.cols, &f.err), "args");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, 0, c, CAPACITY, NULL, &f.cols, &f.err), "rows");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, 0, c, CAPACITY, &f.rows, NULL, &f.err), "cols");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, -1, 0, c, CAPACITY, &f.rows, &f.cols, &f.err), "b");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, BASE_B, 0, c, CAPACITY, &f.rows, &f.cols, &f.err), "b");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, -1, c, CAPACITY, &f.rows, &f.cols, &f.err), "h");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, BASE_HQ, c, CAPACITY, &f.rows, &f.cols, &f.err), "h");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, INT64_MIN, c, CAPACITY, &f.rows, &f.cols, &f.err), "h");
  f.rows = f.cols = 0;
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, 0, c, 0, &f.rows, &f.cols, &f.err), "capacity");
  assert_true(f.rows > 0 && f.cols > 0); /* how many it would have been */
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, 0, c, INT64_MIN, &f.rows, &f.cols, &f.err), "capacity");
  REFUSED(tsr_plan_tiles(f.plan, &f.args, 0, 0, c, f.rows * f.cols - 1, &f.rows, &f.cols, &f.err), "capacity");
  small = f.args;
  small.size -= 8;
  REFUSED(tsr_plan_tiles(f.plan, &small, 0, 0, c, CAPACITY, &f.rows, &f.cols, &f.err), "size");
#undef REFUSED
  assert_int_equal(tsr_plan_tiles(f.plan, &f.args, 0, 0, c, f.rows * f.cols, &f.rows, &f.cols, NULL), TSR_OK);
  assert_int_equal(tsr_plan_tiles(f.plan, &f.args, 0, 0, NULL, 0, &f.rows, &f.cols, &f.err), TSR_OK);
  teardown(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_rest_of_a_run_is_not_read),
      cmocka_unit_test(what_is_read_is_checked),
      cmocka_unit_test(bad_arguments),
  };
  return cmocka_run_group_tests_name("plan_tiles", tests, NULL, NULL);
}
