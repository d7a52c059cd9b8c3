/* SPDX-License-Identifier: Apache-2.0 */
/* What a forward run visits and what it holds: tile counters against enumeration of all pairs, tiles that are skipped
 * are not even read, rows do not depend on who shares a tile with them, and the workspace is what it is said to be. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "cpu_case.h"

static tsr_context_params one_thread(void) {
  tsr_context_params p = tsr_context_params_init();
  p.num_threads = 1;
  return p;
}

/* ---- Counters ----------------------------------------------------------------------------------- */

typedef struct rules {
  uint64_t flags;
  int64_t left, right, sink_tokens, chunk;
} rules;

static int64_t floor_div(int64_t a, int64_t b) {
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static int allowed(const rules *r, int64_t i, int64_t j, int64_t off) {
  const int64_t pos = i + off;
  if ((r->flags & TSR_CAUSAL) && j > pos) {
    return 0;
  }
  if ((r->flags & TSR_WINDOW) && j >= r->sink_tokens &&
      ((r->left >= 0 && j < pos - r->left) || (r->right >= 0 && j > pos + r->right))) {
    return 0;
  }
  return !(r->flags & TSR_CHUNK) || floor_div(pos, r->chunk) == floor_div(j, r->chunk);
}

/* Tiles of one head with all, some and no pair allowed. */
static void enumerate(const rules *r, const cpu_case *c, tsr_run_stats *out) {
  const int64_t off = (r->flags & TSR_TOP_LEFT) ? 0 : c->seqlen_k - c->seqlen_q;
  for (int64_t i0 = 0; i0 < c->seqlen_q; i0 += c->info.tile_q) {
    for (int64_t j0 = 0; j0 < c->seqlen_k; j0 += c->info.tile_k) {
      int64_t pairs = 0, seen = 0;
      for (int64_t i = i0; i < i0 + c->info.tile_q && i < c->seqlen_q; i++) {
        for (int64_t j = j0; j < j0 + c->info.tile_k && j < c->seqlen_k; j++) {
          pairs++;
          seen += allowed(r, i, j, off);
        }
      }
      out->tiles_full += seen == pairs;
      out->tiles_partial += seen != 0 && seen != pairs;
      out->tiles_skipped += seen == 0;
    }
  }
}

static void check_counts(const rules *r, int64_t seqlen_q, int64_t seqlen_k) {
  const tsr_context_params p = one_thread();
  tsr_run_stats expected = {0};
  cpu_case c;
  cpu_case_init(&c, 2, 2, seqlen_q, seqlen_k, 8);
  c.desc.flags = r->flags;
  c.desc.window_left = r->left;
  c.desc.window_right = r->right;
  c.desc.sink_tokens = r->sink_tokens;
  c.desc.chunk = r->chunk;
  c.desc.num_splits = 1;
  cpu_case_run_ok(&c, &p);
  enumerate(r, &c, &expected);
  if (c.stats.tiles_full != 2 * expected.tiles_full || c.stats.tiles_skipped != 2 * expected.tiles_skipped ||
      c.stats.tiles_partial != 2 * expected.tiles_partial) {
    fail_msg("flags 0x%llx, %lld x %lld: full %lld of %lld, partial %lld of %lld, skipped %lld of %lld",
             (unsigned long long)r->flags, (long long)seqlen_q, (long long)seqlen_k, (long long)c.stats.tiles_full,
             (long long)(2 * expected.tiles_full), (long long)c.stats.tiles_partial,
             (long long)(2 * expected.tiles_partial), (long long)c.stats.tiles_skipped,
             (long long)(2 * expected.tiles_skipped));
  }
  cpu_case_free(&c);
}

static void counts_are_exact(void **state) {
  (void)state;
  for (int round = 0; round < 12; round++) {
    const rules all[] = {
        {0, 0, 0, 0, 0},
        {TSR_CAUSAL, 0, 0, 0, 0},
        {TSR_CAUSAL | TSR_TOP_LEFT, 0, 0, 0, 0},
        {TSR_WINDOW, random_int(-1, 300), random_int(-1, 300), 0, 0},
        {TSR_WINDOW | TSR_CAUSAL, random_int(0, 100), -1, random_int(0, 200), 0},
        {TSR_CHUNK, 0, 0, 0, random_int(1, 400)},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
      check_counts(&all[i], random_int(48, 500), random_int(1, 1500));
    }
  }
}

static void visited_share(uint64_t flags, int64_t left, double lo, double hi) {
  const tsr_context_params p = one_thread();
  cpu_case c;
  double visited, all;
  cpu_case_init(&c, 1, 1, 3072, 3072, 8);
  c.desc.flags = flags;
  c.desc.window_left = left;
  cpu_case_run_ok(&c, &p);
  visited = (double)(c.stats.tiles_full + c.stats.tiles_partial);
  all = visited + (double)c.stats.tiles_skipped;
  assert_true(visited >= lo * all && visited <= hi * all);
  cpu_case_free(&c);
}

static void causal_is_half_and_windows_are_linear(void **state) {
  (void)state;
  visited_share(0, 0, 1.0, 1.0);
  visited_share(TSR_CAUSAL, 0, 0.50, 0.54);
  visited_share(TSR_CAUSAL | TSR_WINDOW, 128, 0.0, 3.0 * 128 / 3072);
  visited_share(TSR_CAUSAL | TSR_WINDOW, 512, 0.0, 1.5 * (512 + 128) / 3072);
}

/* ---- Memory --------------------------------------------------------------------------------------- */

/* The keys that no row sees lie in pages that fault when read. */
static void skipped_keys_are_not_read(void **state) {
  const tsr_context_params p = one_thread();
  const int64_t keys = 8192, d = 64, row = d * (int64_t)sizeof(float);
  const size_t bytes = (size_t)(keys * row);
  char *k = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int64_t hidden = (keys - 1024) * row / sysconf(_SC_PAGESIZE) * sysconf(_SC_PAGESIZE);
  cpu_case c;
  (void)state;
  assert_true(k != MAP_FAILED);
  cpu_case_init(&c, 1, 1, 40, keys, d);
  memcpy(k, c.k, bytes);
  c.args.k = c.args.v = tsr_buffer_in(k);
  c.desc.flags = TSR_CAUSAL | TSR_WINDOW;
  c.desc.window_left = 700;
  c.desc.window_right = -1;
  assert_int_equal(mprotect(k, (size_t)hidden, PROT_NONE), 0);
  cpu_case_run_ok(&c, &p);
  assert_true(c.stats.tiles_skipped > 0);
  assert_int_equal(munmap(k, bytes), 0);
  cpu_case_free(&c);
}

static int64_t workspace_of(tsr_dtype dtype, int64_t seqlen, int64_t head_dim, int32_t threads, int32_t splits) {
  tsr_context_params p = tsr_context_params_init();
  tsr_attention_desc d = tsr_attention_desc_init();
  tsr_context *c = NULL;
  tsr_device *dev = NULL;
  tsr_plan *plan = NULL;
  int64_t bytes = -1;
  p.num_threads = threads;
  d.q = d.k = d.v = d.o = tsr_layout_dense(dtype, 1, seqlen, 2, head_dim);
  d.num_splits = splits;
  assert_int_equal(tsr_context_create(&p, &c, NULL), TSR_OK);
  assert_int_equal(tsr_device_open(c, "cpu", &dev, NULL), TSR_OK);
  assert_int_equal(tsr_plan_attention(dev, &d, &plan, NULL), TSR_OK);
  assert_int_equal(tsr_plan_workspace(plan, &bytes, NULL, NULL), TSR_OK);
  tsr_plan_destroy(plan);
  tsr_device_close(dev);
  tsr_context_destroy(c);
  return bytes;
}

/* Converted keys take one tile a thread, whatever the length; f32 keys take none. */
static void workspace_is_a_tile_a_thread(void **state) {
  const int64_t f32 = workspace_of(TSR_F32, 65536, 64, 1, 1), tile_k = 128;
  (void)state;
  assert_true(f32 <= 256 * 1024);
  assert_int_equal(workspace_of(TSR_F32, 100, 64, 1, 1), f32);
  assert_int_equal(workspace_of(TSR_F32, 65536, 64, 4, 1), 4 * f32);
  assert_int_equal(workspace_of(TSR_BF16, 65536, 64, 1, 1) - f32, tile_k * 64 * 4);
  assert_int_equal(workspace_of(TSR_BF16, 65536, 64, 4, 1), 4 * (f32 + tile_k * 64 * 4));
  /* partial results: O, maximum and sum of each row of each split */
  assert_int_equal(workspace_of(TSR_F32, 640, 64, 1, 3) - f32, 3 * 640 * 2 * (64 + 2) * 4);
}

/* ---- Batch invariance ------------------------------------------------------------------------------ */

/* Row `row` of the case alone, as the last of its keys: decode. */
static void decode_row(const cpu_case *c, int64_t row, int64_t rows, float *o) {
  const tsr_context_params p = one_thread();
  cpu_case one;
  const int64_t width = c->heads_q * c->head_dim;
  cpu_case_init(&one, c->heads_q, c->heads_kv, rows, row + 1, c->head_dim);
  one.desc.flags = c->desc.flags;
  one.args.q = tsr_buffer_in(c->q + (row + 1 - rows) * width);
  one.args.k = tsr_buffer_in(c->k);
  one.args.v = tsr_buffer_in(c->v);
  cpu_case_run_ok(&one, &p);
  memcpy(o, one.o + (rows - 1) * width, (size_t)width * sizeof(float));
  cpu_case_free(&one);
}

static void rows_are_the_same_in_prefill_and_decode(void **state) {
  static const int64_t heads[][2] = {{1, 1}, {4, 4}, {6, 2}, {16, 1}, {10, 2}};
  const tsr_context_params p = one_thread();
  (void)state;
  for (size_t h = 0; h < sizeof(heads) / sizeof(heads[0]); h++) {
    const int64_t d = random_int(1, 80), width = heads[h][0] * d, seqlen = random_int(200, 400);
    float *o = malloc((size_t)width * sizeof(float));
    cpu_case c;
    cpu_case_init(&c, heads[h][0], heads[h][1], seqlen, seqlen, d);
    c.desc.flags = TSR_CAUSAL | TSR_BATCH_INVARIANT;
    cpu_case_run_ok(&c, &p);
    for (int n = 0; n < 6; n++) {
      const int64_t row = random_int(0, seqlen - 1), rows = random_int(1, row + 1 < 70 ? row + 1 : 70);
      decode_row(&c, row, rows, o);
      if (memcmp(o, c.o + row * width, (size_t)width * sizeof(float)) != 0) {
        fail_msg("heads %lld/%lld D %lld: row %lld of %lld differs in a chunk of %lld", (long long)heads[h][0],
                 (long long)heads[h][1], (long long)d, (long long)row, (long long)seqlen, (long long)rows);
      }
    }
    free(o);
    cpu_case_free(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_are_exact),
      cmocka_unit_test(causal_is_half_and_windows_are_linear),
      cmocka_unit_test(skipped_keys_are_not_read),
      cmocka_unit_test(workspace_is_a_tile_a_thread),
      cmocka_unit_test(rows_are_the_same_in_prefill_and_decode),
  };
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
