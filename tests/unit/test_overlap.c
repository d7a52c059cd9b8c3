/* SPDX-License-Identifier: Apache-2.0 */
/* Overlap of outputs with other tensors: exact for strided ones, only looked for when asked, only in what a run uses.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "bind_fixture.h"
#include "random.h"

/* Every byte of a layout, marked in a map. */
static void mark(const tsr_layout *l, int64_t base, uint8_t *map) {
  const int64_t size = tsr__element_bytes(l->dtype);
  for (int64_t n = 0; n < l->shape[0] * l->shape[1] * l->shape[2] * l->shape[3]; n++) {
    int64_t at = base, rest = n;
    for (int a = 3; a >= 0; a--) {
      at += rest % l->shape[a] * l->stride[a] * size;
      rest /= l->shape[a];
    }
    memset(map + at, 1, (size_t)size);
  }
}

static void overlap_is_exact(void **state) {
  static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_I8};
  static uint8_t memory[65536], maps[2][65536];
  int found[2] = {0, 0};
  (void)state;
  for (int round = 0; round < 20000; round++) {
    tsr_layout l[2];
    int64_t base[2];
    int expected = 0;
    for (int n = 0; n < 2; n++) {
      const int64_t gap = 1 + random_below(3);
      l[n] = tsr_layout_dense(dtypes[random_below(3)], 1 + random_below(3), 1 + random_below(3), 1 + random_below(3),
                              1 + random_below(4));
      for (int a = 0; a < 4; a++) {
        l[n].stride[a] = random_below(4) == 0 ? random_below(40) : l[n].stride[a] * gap;
      }
      base[n] = random_below(200) * 4;
      memset(maps[n], 0, sizeof(maps[n]));
      mark(&l[n], base[n], maps[n]);
    }
    for (int i = 0; i < 4096; i++) {
      expected |= maps[0][i] & maps[1][i];
    }
    found[expected]++;
    assert_int_equal(tsr__layouts_overlap(&l[0], memory + base[0], &l[1], memory + base[1]), expected);
  }
  assert_true(found[0] > 1000 && found[1] > 1000);
}

static void overlapping_outputs_are_refused(void **state) {
  fixture f;
  (void)state;
  setup(&f, BASE_DENSE);
  f.args.o.ptr = f.args.q.ptr; /* in place: not for attention */
  expect_invalid(&f, "o");
  assert_int_equal(tsr__bind(&f.p, &f.args, 1, 0, 0, 1, &f.bound, &f.err), TSR_OK); /* validate off */
  teardown(&f);
  setup(&f, BASE_DENSE);
  f.args.lse.ptr = (char *)f.args.o.ptr + BASE_B * BASE_SQ * BASE_HQ * BASE_DV * 4 - 4;
  expect_invalid(&f, "o");
  f.args.lse.ptr = f.memory.data[TSR_SLOT_lse];
  expect_ok(&f);
  teardown(&f);
}

/* A workspace that will not do is said to be so, whatever it overlaps. */
static void the_workspace_is_checked_first(void **state) {
  fixture f;
  (void)state;
  setup(&f, BASE_DENSE);
  f.args.workspace.ptr = f.args.o.ptr;
  f.args.workspace_bytes = 4;
  assert_int_equal(tsr__bind(&f.p, &f.args, 1, 1, 8, 4, &f.bound, &f.err), TSR_OUT_OF_WORKSPACE);
  assert_string_equal(f.err.field, "workspace");
  f.args.o.ptr = f.args.q.ptr;
  f.args.workspace.ptr = NULL;
  f.args.workspace_bytes = 0;
  assert_int_equal(tsr__bind(&f.p, &f.args, 1, 1, 8, 4, &f.bound, &f.err), TSR_OUT_OF_WORKSPACE);
  f.args.workspace.ptr = f.args.q.ptr;
  f.args.workspace_bytes = 8;
  assert_int_equal(tsr__bind(&f.p, &f.args, 1, 1, 8, 4, &f.bound, &f.err), TSR_INVALID);
  teardown(&f);
}

/* dq, dk, dv interleaved in one buffer of [B, S, 3, H, D]. */
static void interleaved_outputs_are_accepted(void **state) {
  enum { ROW = 3 * BASE_HQ * BASE_D };
  static float all[BASE_B * BASE_SQ * ROW];
  tsr_attention_desc d = base_desc(BASE_BACKWARD);
  tsr_layout *const grads[3] = {&d.dq, &d.dk, &d.dv};
  fixture f;
  (void)state;
  d.k = d.v = d.q;
  d.o = d.dout = d.q;
  d.bias.shape[3] = d.dbias.shape[3] = BASE_SQ;
  for (int i = 0; i < 3; i++) {
    *grads[i] = d.q;
    grads[i]->stride[1] = ROW;
    grads[i]->stride[0] = BASE_SQ * ROW;
  }
  setup_desc(&f, BASE_BACKWARD, &d);
  for (int shift = 0; shift < 2; shift++) {
    f.args.dq.ptr = all;
    f.args.dk.ptr = all + BASE_HQ * BASE_D - shift;
    f.args.dv.ptr = all + 2 * BASE_HQ * BASE_D;
    if (shift) {
      expect_invalid(&f, "dq");
    } else {
      expect_ok(&f);
    }
  }
  teardown(&f);
}

/* Memory beyond this run's batch and totals is not the run's. */
static void a_smaller_run_overlaps_less(void **state) {
  static float all[1024];
  fixture f;
  (void)state;
  setup(&f, BASE_PACKED);
  base_put(&f.args, &f.p, TSR_SLOT_cu_seqlens_q, 1, 2);
  base_put(&f.args, &f.p, TSR_SLOT_cu_seqlens_q, 2, 4);
  f.args.q.ptr = all;
  f.args.o.ptr = all + 4 * BASE_HQ * BASE_D;
  expect_invalid(&f, "o");
  f.args.total_q = 4;
  expect_ok(&f);
  teardown(&f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(overlap_is_exact),
      cmocka_unit_test(overlapping_outputs_are_refused),
      cmocka_unit_test(the_workspace_is_checked_first),
      cmocka_unit_test(interleaved_outputs_are_accepted),
      cmocka_unit_test(a_smaller_run_overlaps_less),
  };
  random_seed();
  return cmocka_run_group_tests_name("overlap", tests, NULL, NULL);
}
