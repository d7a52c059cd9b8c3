/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of append and merge that TSR_CONTEXT_VALIDATE refuses: outputs that share bytes with another tensor or the
 * workspace, and new rows that go to the same row of a page. Without the flag nobody looks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "random.h"
#include "tessera/tessera.h"

enum { B = 2, S = 3, SMAX = 8, HQ = 4, HKV = 2, D = 8, ARENA = 1 << 20 };

typedef struct fixture {
  tsr_context *context;
  tsr_device *device;
  tsr_plan *plan;
  tsr_error err;
} fixture;

static void open_device(fixture *f, uint64_t flags, const char *name) {
  tsr_context_params p = tsr_context_params_init();
  memset(f, 0, sizeof(*f));
  p.flags = flags;
  p.num_threads = 1;
  assert_int_equal(tsr_context_create(&p, &f->context, NULL), TSR_OK);
  assert_int_equal(tsr_device_open(f->context, name, &f->device, NULL), TSR_OK);
}

static void close_device(fixture *f) {
  tsr_plan_destroy(f->plan);
  tsr_device_close(f->device);
  tsr_context_destroy(f->context);
}

static void expect(fixture *f, tsr_status st, tsr_status wanted, const char *field, const char *in_text) {
  if (st != wanted || strcmp(f->err.field, field) != 0 || strstr(f->err.text, in_text) == NULL) {
    fail_msg("expected %d, %s, ...%s...; got %d, %s, %s", wanted, field, in_text, st, f->err.field, f->err.text);
  }
}

/* ---- Append ---------------------------------------------------------------------------------- */

static unsigned char *arena;

/* Dense, quantised with dynamic scales, rotary with q: everything an append may write. */
static tsr_append_desc append_desc(void) {
  tsr_append_desc d = tsr_append_desc_init();
  d.k_new = d.v_new = tsr_layout_dense(TSR_F32, B, S, HKV, D);
  d.k_cache = d.v_cache = tsr_layout_dense(TSR_I8, B, SMAX, HKV, D);
  d.seqlens_k = tsr_layout_dense(TSR_I32, B, 1, 1, 1);
  d.k_scale = d.v_scale = tsr_layout_dense(TSR_F32, B, SMAX, HKV, 1);
  d.cos = d.sin = tsr_layout_dense(TSR_F32, 16, D / 2, 1, 1);
  d.positions = tsr_layout_dense(TSR_I32, B, S, 1, 1);
  d.q = d.q_out = tsr_layout_dense(TSR_F32, B, S, HQ, D);
  return d;
}

/* All of it side by side in the arena, which is zero. */
static tsr_append_args append_args(void) {
  tsr_append_args a = tsr_append_args_init();
  tsr_buffer *const all[] = {&a.k_new,   &a.v_new, &a.k_cache, &a.v_cache,   &a.seqlens_k, &a.k_scale,
                             &a.v_scale, &a.cos,   &a.sin,     &a.positions, &a.q,         &a.q_out};
  memset(arena, 0, ARENA);
  for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
    *all[i] = tsr_buffer_out(arena + i * 4096);
  }
  return a;
}

static void append_outputs_overlap_nothing(void **state) {
  static const char *const devices[] = {"cpu", "null"};
  const size_t outputs[] = {offsetof(tsr_append_args, k_cache), offsetof(tsr_append_args, v_cache),
                            offsetof(tsr_append_args, k_scale), offsetof(tsr_append_args, v_scale),
                            offsetof(tsr_append_args, q_out)};
  static const char *const names[] = {"k_cache", "v_cache", "k_scale", "v_scale", "q_out"};
  static const char *const inputs[] = {"k_new", "v_new", "seqlens_k", "cos", "sin", "positions"};
  const size_t offsets[] = {offsetof(tsr_append_args, k_new),     offsetof(tsr_append_args, v_new),
                            offsetof(tsr_append_args, seqlens_k), offsetof(tsr_append_args, cos),
                            offsetof(tsr_append_args, sin),       offsetof(tsr_append_args, positions)};
  (void)state;
  for (int dev = 0; dev < 2; dev++) {
    const tsr_append_desc d = append_desc();
    fixture f;
    open_device(&f, TSR_CONTEXT_VALIDATE, devices[dev]);
    assert_int_equal(tsr_plan_append(f.device, &d, &f.plan, NULL), TSR_OK);
    for (int w = 0; w < 5; w++) {
      for (int r = 0; r < 6; r++) {
        tsr_append_args a = append_args();
        tsr_buffer *out = (tsr_buffer *)(void *)((char *)&a + outputs[w]);
        const tsr_buffer *in = (const tsr_buffer *)(const void *)((const char *)&a + offsets[r]);
        assert_int_equal(tsr_run_append(f.plan, &a, &f.err), TSR_OK);
        a = append_args();
        out->ptr = in->ptr;
        expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, names[w], inputs[r]);
      }
      for (int r = w + 1; r < 5; r++) {
        tsr_append_args a = append_args();
        ((tsr_buffer *)(void *)((char *)&a + outputs[w]))->ptr = ((tsr_buffer *)(void *)((char *)&a + outputs[r]))->ptr;
        expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, names[w], names[r]);
      }
    }
    close_device(&f);
  }
}

/* k and v of one buffer [B, 2, Smax, ...] share nothing; q turned in place is allowed, shifted it is not; memory beyond
 * the run's batch is not the run's. */
static void append_overlap_is_exact(void **state) {
  tsr_append_desc d = append_desc();
  tsr_append_args a;
  fixture f;
  (void)state;
  d.k_cache.stride[0] = d.v_cache.stride[0] = 2 * SMAX * HKV * D;
  open_device(&f, TSR_CONTEXT_VALIDATE, "cpu");
  assert_int_equal(tsr_plan_append(f.device, &d, &f.plan, NULL), TSR_OK);
  a = append_args();
  a.v_cache = a.k_cache;
  a.v_cache.offset_bytes = SMAX * HKV * D;
  a.q_out = a.q;
  assert_int_equal(tsr_run_append(f.plan, &a, &f.err), TSR_OK);
  a.v_cache.offset_bytes -= 1;
  expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, "k_cache", "v_cache");
  a.v_cache.offset_bytes += 1;
  a.q_out.offset_bytes = 4;
  expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, "q_out", "overlaps q");
  a.q_out.offset_bytes = S * HQ * D * 4; /* over the second sequence of q */
  expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, "q_out", "overlaps q");
  a.batch = 1;
  assert_int_equal(tsr_run_append(f.plan, &a, &f.err), TSR_OK);
  close_device(&f);
  open_device(&f, 0, "null");
  assert_int_equal(tsr_plan_append(f.device, &d, &f.plan, NULL), TSR_OK);
  a.batch = 0;
  a.k_cache = a.v_cache = a.k_new; /* nobody looks */
  assert_int_equal(tsr_run_append(f.plan, &a, &f.err), TSR_OK);
  close_device(&f);
}

static void append_static_scales_may_be_shared(void **state) {
  tsr_append_desc d = append_desc();
  tsr_append_args a = append_args();
  fixture f;
  (void)state;
  d.flags = TSR_APPEND_STATIC_SCALES;
  open_device(&f, TSR_CONTEXT_VALIDATE, "null");
  assert_int_equal(tsr_plan_append(f.device, &d, &f.plan, NULL), TSR_OK);
  a.v_scale = a.k_scale; /* only read */
  assert_int_equal(tsr_run_append(f.plan, &a, &f.err), TSR_OK);
  a.k_cache = a.k_scale;
  expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, "k_cache", "k_scale");
  close_device(&f);
}

/* ---- Append: targets ------------------------------------------------------------------------- */

enum { PAGES = 7, TABLE = 4, MOST_B = 4 };

static tsr_append_desc paged_desc(int64_t batch, int64_t page_size, int64_t total) {
  tsr_append_desc d = tsr_append_desc_init();
  d.k_new = d.v_new = tsr_layout_dense(TSR_F32, 1, total, 1, 1);
  d.k_cache = d.v_cache = tsr_layout_dense(TSR_F32, PAGES, page_size, 1, 1);
  d.cu_seqlens_new = tsr_layout_dense(TSR_I64, batch + 1, 1, 1, 1);
  d.seqlens_k = tsr_layout_dense(TSR_I64, batch, 1, 1, 1);
  d.block_table = tsr_layout_dense(TSR_I32, batch, TABLE, 1, 1);
  return d;
}

/* Against a count of writes a row. */
static void no_row_is_a_target_twice(void **state) {
  static float new_rows[2][MOST_B * 16], caches[2][PAGES * 4];
  int found[2] = {0, 0};
  (void)state;
  for (int round = 0; round < 4000; round++) {
    const int64_t batch = 1 + random_below(MOST_B), page_size = 1 + random_below(4);
    int64_t cu[MOST_B + 1] = {0}, len[MOST_B];
    int32_t table[MOST_B * TABLE];
    int writes[PAGES * 4] = {0}, twice = 0;
    tsr_append_args a = tsr_append_args_init();
    tsr_append_desc d;
    fixture f;
    tsr_status st;
    for (int64_t b = 0; b < batch; b++) {
      len[b] = random_below((uint32_t)(TABLE * page_size + 1));
      cu[b + 1] = cu[b] + random_below((uint32_t)(TABLE * page_size - len[b] + 1)) / 2;
      for (int n = 0; n < TABLE; n++) {
        table[b * TABLE + n] = (int32_t)random_below(PAGES);
      }
      for (int64_t t = len[b]; t < len[b] + cu[b + 1] - cu[b]; t++) {
        twice |= writes[table[b * TABLE + t / page_size] * page_size + t % page_size]++;
      }
    }
    d = paged_desc(batch, page_size, cu[batch] > 0 ? cu[batch] : 1);
    open_device(&f, TSR_CONTEXT_VALIDATE, "null");
    assert_int_equal(tsr_plan_append(f.device, &d, &f.plan, NULL), TSR_OK);
    a.k_new = tsr_buffer_in(new_rows[0]);
    a.v_new = tsr_buffer_in(new_rows[1]);
    a.k_cache = tsr_buffer_out(caches[0]);
    a.v_cache = tsr_buffer_out(caches[1]);
    a.cu_seqlens_new = tsr_buffer_in(cu);
    a.seqlens_k = tsr_buffer_in(len);
    a.block_table = tsr_buffer_in(table);
    st = tsr_run_append(f.plan, &a, &f.err);
    if (st != (twice ? TSR_INVALID : TSR_OK) || (twice && strncmp(f.err.field, "block_table[", 12) != 0)) {
      fail_msg("twice %d, got %d, %s: %s", twice, st, f.err.field, f.err.text);
    }
    found[twice != 0]++;
    close_device(&f);
  }
  print_message("%d with a row written twice, %d without\n", found[1], found[0]);
  assert_true(found[0] > 200 && found[1] > 200);
}

/* Page ids that are the same modulo the size of any small table are still different pages. */
static void far_pages_are_different(void **state) {
  enum { MANY = 70000 };
  static float caches[2][MANY];
  const float rows[2] = {1.0f, 2.0f};
  const int32_t tables[2][2] = {{5, 5 + 65536}, {5, 5}};
  (void)state;
  for (int same = 0; same < 2; same++) {
    tsr_append_desc d = tsr_append_desc_init();
    tsr_append_args a = tsr_append_args_init();
    fixture f;
    d.k_new = d.v_new = tsr_layout_dense(TSR_F32, 2, 1, 1, 1);
    d.k_cache = d.v_cache = tsr_layout_dense(TSR_F32, MANY, 1, 1, 1);
    d.block_table = tsr_layout_dense(TSR_I32, 2, 1, 1, 1);
    open_device(&f, TSR_CONTEXT_VALIDATE, "cpu");
    assert_int_equal(tsr_plan_append(f.device, &d, &f.plan, NULL), TSR_OK);
    a.k_new = a.v_new = tsr_buffer_in(rows);
    a.k_cache = tsr_buffer_out(caches[0]);
    a.v_cache = tsr_buffer_out(caches[1]);
    a.block_table = tsr_buffer_in(tables[same]);
    if (same) {
      expect(&f, tsr_run_append(f.plan, &a, &f.err), TSR_INVALID, "block_table[1,0]", "block_table[0,0]");
    } else {
      assert_int_equal(tsr_run_append(f.plan, &a, &f.err), TSR_OK);
    }
    close_device(&f);
  }
}

/* ---- Merge ----------------------------------------------------------------------------------- */

enum { PARTIALS = 3 };

static void merge_outputs_overlap_nothing(void **state) {
  static float o[PARTIALS + 1][B * S * HQ * D], lse[PARTIALS + 1][B * HQ * S], sink[HQ];
  tsr_buffer partial_o[PARTIALS], partial_lse[PARTIALS];
  tsr_merge_desc d = tsr_merge_desc_init();
  tsr_merge_args good = tsr_merge_args_init(), a;
  (void)state;
  d.num_partials = PARTIALS;
  d.o = d.partial_o = tsr_layout_dense(TSR_F32, B, S, HQ, D);
  d.lse = d.partial_lse = tsr_layout_dense(TSR_F32, B, HQ, S, 1);
  d.sink = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
  for (int n = 0; n < PARTIALS; n++) {
    partial_o[n] = tsr_buffer_in(o[n]);
    partial_lse[n] = tsr_buffer_in(lse[n]);
  }
  good.partial_o = partial_o;
  good.partial_lse = partial_lse;
  good.o = tsr_buffer_out(o[PARTIALS]);
  good.lse = tsr_buffer_out(lse[PARTIALS]);
  good.sink = tsr_buffer_in(sink);
  for (int validate = 0; validate < 2; validate++) {
    const tsr_status bad = validate ? TSR_INVALID : TSR_OK;
    fixture f;
    open_device(&f, validate ? TSR_CONTEXT_VALIDATE : 0, validate ? "cpu" : "null");
    assert_int_equal(tsr_plan_merge(f.device, &d, &f.plan, NULL), TSR_OK);
    assert_int_equal(tsr_run_merge(f.plan, &good, &f.err), TSR_OK);
    for (int n = 0; n < PARTIALS; n++) { /* no merging in place, whichever partial it is */
      char text[32];
      a = good;
      a.o.ptr = o[n];
      snprintf(text, sizeof(text), "partial_o[%d]", n);
      expect(&f, tsr_run_merge(f.plan, &a, &f.err), bad, validate ? "o" : "", validate ? text : "");
      a = good;
      a.lse.ptr = lse[n];
      snprintf(text, sizeof(text), "partial_lse[%d]", n);
      expect(&f, tsr_run_merge(f.plan, &a, &f.err), bad, validate ? "lse" : "", validate ? text : "");
    }
    a = good;
    a.lse.ptr = o[PARTIALS] + B * S * HQ * D - 1; /* the last element of o */
    expect(&f, tsr_run_merge(f.plan, &a, &f.err), bad, validate ? "o" : "", validate ? "lse" : "");
    a = good;
    a.sink = a.lse;
    expect(&f, tsr_run_merge(f.plan, &a, &f.err), bad, validate ? "lse" : "", validate ? "sink" : "");
    a = good;
    partial_o[1] = partial_o[0]; /* inputs may be the same */
    assert_int_equal(tsr_run_merge(f.plan, &a, &f.err), TSR_OK);
    partial_o[1] = tsr_buffer_in(o[1]);
    close_device(&f);
  }
}

static int make_arena(void **state) {
  (void)state;
  arena = malloc(ARENA);
  return arena == NULL;
}

static int free_arena(void **state) {
  (void)state;
  free(arena);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(append_outputs_overlap_nothing),
      cmocka_unit_test(append_overlap_is_exact),
      cmocka_unit_test(append_static_scales_may_be_shared),
      cmocka_unit_test(no_row_is_a_target_twice),
      cmocka_unit_test(far_pages_are_different),
      cmocka_unit_test(merge_outputs_overlap_nothing),
  };
  random_seed();
  return cmocka_run_group_tests_name("cache_overlap", tests, make_arena, free_arena);
}
