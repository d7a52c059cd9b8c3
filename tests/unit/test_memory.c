/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: a run at S = 65,536 touches inputs, outputs and the stated workspace and nothing else; the workspace holds at
 * most one K/V tile a thread, so it does not grow with S; the bound covers every smaller plan and never falls. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tessera/tessera.h"

static tsr_device *device;

/* Peak resident bytes of this process. */
static int64_t peak_bytes(void) {
  FILE *f = fopen("/proc/self/status", "r");
  char line[256];
  long long kib = -1;
  assert_non_null(f);
  while (fgets(line, sizeof(line), f) != NULL) {
    if (sscanf(line, "VmHWM: %lld kB", &kib) == 1) {
      break;
    }
  }
  fclose(f);
  assert_true(kib > 0);
  return kib * 1024;
}

static tsr_attention_desc describe(int64_t b, int64_t s, int64_t hq, int64_t hkv, int64_t d, int32_t op) {
  tsr_attention_desc desc = tsr_attention_desc_init();
  desc.op = op;
  desc.q = desc.o = tsr_layout_dense(TSR_BF16, b, s, hq, d);
  desc.k = desc.v = tsr_layout_dense(TSR_BF16, b, s, hkv, d);
  desc.lse = tsr_layout_dense(TSR_F32, b, hq, s, 1);
  if (op == TSR_BACKWARD) {
    desc.dout = desc.dq = desc.q;
    desc.dk = desc.dv = desc.k;
  }
  return desc;
}

static int64_t workspace(const tsr_attention_desc *desc) {
  tsr_plan *plan = NULL;
  tsr_error err;
  int64_t bytes = -1;
  if (tsr_plan_attention(device, desc, &plan, &err) != TSR_OK) {
    fail_msg("%s: %s", err.field, err.text);
  }
  assert_int_equal(tsr_plan_workspace(plan, &bytes, NULL, NULL), TSR_OK);
  tsr_plan_destroy(plan);
  return bytes;
}

static void *touched(size_t bytes) {
  void *p = NULL;
  assert_int_equal(posix_memalign(&p, 4096, bytes), 0);
  memset(p, 1, bytes);
  return p;
}

static void long_run(int32_t op) {
  enum { S = 65536, D = 16 };
  const size_t tensor = (size_t)S * D * 2;
  tsr_attention_desc desc = describe(1, S, 1, 1, D, op);
  tsr_run_args args = tsr_run_args_init();
  tsr_plan *plan = NULL;
  tsr_error err;
  int64_t bytes = 0, before, grown;
  tsr_buffer *all[] = {&args.q, &args.k, &args.v, &args.o, &args.dout, &args.dq, &args.dk, &args.dv};
  const int n = op == TSR_BACKWARD ? 8 : 4;
  desc.flags = TSR_WINDOW | TSR_CAUSAL;
  desc.window_left = 200;
  assert_int_equal(tsr_plan_attention(device, &desc, &plan, NULL), TSR_OK);
  assert_int_equal(tsr_plan_workspace(plan, &bytes, NULL, NULL), TSR_OK);
  for (int i = 0; i < n; i++) {
    *all[i] = tsr_buffer_out(touched(tensor));
  }
  args.lse = tsr_buffer_out(touched((size_t)S * 4));
  args.workspace = tsr_buffer_out(touched((size_t)bytes + 64));
  args.workspace_bytes = bytes;
  before = peak_bytes();
  if (tsr_run_attention(plan, &args, &err) != TSR_OK) {
    fail_msg("%s: %s", err.field, err.text);
  }
  grown = peak_bytes() - before;
  printf("op %d: workspace %lld bytes, resident peak grew by %lld\n", op, (long long)bytes, (long long)grown);
  assert_true(grown < 2 << 20); /* stacks and code of the threads; a K or V copy would be 2 MiB, S x S 8 GiB */
  for (int i = 0; i < n; i++) {
    free(all[i]->ptr);
  }
  free(args.lse.ptr);
  free(args.workspace.ptr);
  tsr_plan_destroy(plan);
}

static void long_forward(void **state) {
  (void)state;
  long_run(TSR_FORWARD);
}

static void long_backward(void **state) {
  (void)state;
  long_run(TSR_BACKWARD);
}

/* Scratch holds a tile of K and V, of Q, O and S; nothing that grows with the sequence. */
static void scratch_is_tiles(void **state) {
  tsr_device_info info = {.size = sizeof(info)};
  (void)state;
  assert_int_equal(tsr_device_get(device, &info, NULL), TSR_OK);
  for (int64_t d = 16; d <= 576; d += 80) {
    tsr_plan *plan = NULL;
    tsr_plan_info pi = {.size = sizeof(pi)};
    const tsr_attention_desc small = describe(2, 4096, 8, 8, d, TSR_FORWARD);
    const tsr_attention_desc large = describe(2, 65536, 8, 8, d, TSR_FORWARD);
    int64_t tile;
    assert_int_equal(tsr_plan_attention(device, &large, &plan, NULL), TSR_OK);
    assert_int_equal(tsr_plan_get(plan, &pi, NULL), TSR_OK);
    assert_int_equal(workspace(&small), workspace(&large));
    tile = 4 * (pi.tile_k * 2 * d + pi.tile_q * 3 * d + 2 * pi.tile_q * pi.tile_k + 64 * pi.tile_q);
    assert_true(pi.workspace_bytes <= info.num_threads * (tile + 16384));
    tsr_plan_destroy(plan);
  }
}

static void bound_is_monotonic(void **state) {
  static const int64_t lengths[] = {1, 5, 48, 49, 300, 1024, 4097, 70000}, batches[] = {1, 2, 3, 7, 64};
  (void)state;
  for (int op = TSR_FORWARD; op <= TSR_BACKWARD; op++) {
    for (size_t b = 0; b < 5; b++) {
      int64_t last = 0;
      for (size_t s = 0; s < 8; s++) {
        tsr_attention_desc d = describe(batches[b], lengths[s], 6, 2, 40, op);
        int64_t bound = 0, smaller = 0;
        assert_int_equal(tsr_workspace_bound(device, &d, &bound, NULL, NULL), TSR_OK);
        assert_true(bound >= last);
        assert_true(workspace(&d) <= bound);
        last = bound;
        if (b > 0) {
          d = describe(batches[b - 1], lengths[s], 6, 2, 40, op);
          assert_int_equal(tsr_workspace_bound(device, &d, &smaller, NULL, NULL), TSR_OK);
          assert_true(smaller <= bound);
        }
      }
    }
  }
  assert_int_equal(tsr_workspace_bound(device, NULL, &(int64_t){0}, NULL, NULL), TSR_INVALID);
}

/* What any smaller problem needs is within the bound: heads packed into tiles or not, keys split or not, the smallest
 * Dv. */
static void bound_covers_smaller(void **state) {
  static const int64_t lengths[] = {1, 3, 15, 16, 31, 32, 47, 48, 49, 63, 64, 200, 1000}, batches[] = {1, 2, 5, 16};
  enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };
  (void)state;
  for (int kind = 0; kind < 16; kind++) {
    const int64_t heads_kv = (kind & 1) != 0 ? 2 : 16, keys = (kind & 2) != 0 ? 3000 : 300;
    int64_t need[LENGTHS] = {0}; /* of any batch */
    for (int s = 0; s < LENGTHS; s++) {
      int64_t bound = 0;
      for (int b = 0; b < 4; b++) {
        tsr_attention_desc d = describe(batches[b], keys, 16, heads_kv, 8, TSR_FORWARD);
        d.q = tsr_layout_dense(TSR_BF16, batches[b], lengths[s], 16, 8);
        d.v = tsr_layout_dense(TSR_BF16, batches[b], keys, heads_kv, 1);
        d.o = tsr_layout_dense(TSR_BF16, batches[b], lengths[s], 16, 1);
        d.lse = tsr_layout_dense(TSR_F32, batches[b], 16, lengths[s], 1);
        d.flags = (kind & 4) != 0 ? TSR_DETERMINISTIC : 0;
        if ((kind & 8) != 0) {
          d.max_s = tsr_layout_dense(TSR_F32, 16, 1, 1, 1);
        }
        need[s] = workspace(&d) > need[s] ? workspace(&d) : need[s];
        assert_int_equal(tsr_workspace_bound(device, &d, &bound, NULL, NULL), TSR_OK);
      }
      for (int smaller = 0; smaller <= s; smaller++) {
        if (need[smaller] > bound) {
          fail_msg("kind %d, Sq %lld: %lld bytes, the bound of Sq %lld is %lld", kind, (long long)lengths[smaller],
                   (long long)need[smaller], (long long)lengths[s], (long long)bound);
        }
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(long_forward), cmocka_unit_test(long_backward),
                                     cmocka_unit_test(scratch_is_tiles), cmocka_unit_test(bound_is_monotonic),
                                     cmocka_unit_test(bound_covers_smaller)};
  tsr_context *context = NULL;
  int rc;
  if (tsr_context_create(NULL, &context, NULL) != TSR_OK || tsr_device_open(context, "cpu", &device, NULL) != TSR_OK) {
    return 1;
  }
  rc = cmocka_run_group_tests(tests, NULL, NULL);
  tsr_device_close(device);
  tsr_context_destroy(context);
  return rc;
}
