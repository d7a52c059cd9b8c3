/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of a run: what kernels are told, every rule with an input that breaks it, tables by value. Overlap is in
 * test_overlap.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "bind_fixture.h"
#include "random.h"

/* ---- Accepted -------------------------------------------------------------------------------- */

static void bases_are_accepted(void **state) {
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    fixture f;
    setup(&f, (base_kind)kind);
    expect_ok(&f);
    assert_int_equal(f.bound.args.flags, f.p.features);
    assert_int_equal(f.bound.args.batch, BASE_B);
    assert_float_equal(f.bound.args.scale, 1.0 / sqrt((double)BASE_D), 1e-7);
    for (int a = 0; a < 4; a++) {
      assert_int_equal(f.bound.args.q.stride[a], f.p.desc.q.stride[a]);
      assert_int_equal(f.bound.args.v.stride[a], f.p.desc.v.stride[a]);
    }
    assert_int_equal(f.bound.args.q.offset_bytes, 0);
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      const int in_k = kind == BASE_MLA && (s == TSR_SLOT_v || s == TSR_SLOT_v_scale);
      assert_ptr_equal(f.bound.ptr[s],
                       in_k ? f.memory.data[s == TSR_SLOT_v ? TSR_SLOT_k : TSR_SLOT_k_scale] : f.memory.data[s]);
    }
    base_touch(&f.p, &f.bound);
    teardown(&f);
  }
}

static void nothing_is_written(void **state) {
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    fixture f;
    base_memory before;
    setup(&f, (base_kind)kind);
    memset(&before, 0, sizeof(before));
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      const size_t bytes = (size_t)tsr__layout_span_bytes(tsr__slot_layout(&f.p.desc, s));
      if (f.memory.data[s] != NULL) {
        before.data[s] = malloc(bytes);
        memcpy(before.data[s], f.memory.data[s], bytes);
      }
    }
    expect_ok(&f);
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      if (f.memory.data[s] != NULL) {
        assert_memory_equal(before.data[s], f.memory.data[s], tsr__layout_span_bytes(tsr__slot_layout(&f.p.desc, s)));
      }
    }
    base_memory_free(&before);
    teardown(&f);
  }
}

static void layout_alone_is_for_the_maxima(void **state) {
  fixture f;
  tsr_attn_args a;
  (void)state;
  setup(&f, BASE_CSR);
  tsr__bind_layout(&f.p, &a);
  assert_int_equal(a.batch, BASE_B);
  assert_int_equal(a.seqlen_q, BASE_SQ);
  assert_int_equal(a.seqlen_k, BASE_SK);
  assert_int_equal(a.total_q, 9);
  assert_int_equal(a.page_size, BASE_PAGE);
  assert_int_equal(a.num_pages, 8);
  assert_int_equal(a.u.fwd.kv_indptr.stride, 1);
  assert_int_equal(a.window_left, -1);
  assert_int_equal(a.window_right, -1);
  teardown(&f);
  setup(&f, BASE_MASKS);
  tsr__bind_layout(&f.p, &a);
  assert_int_equal(a.window_left, 3);
  assert_int_equal(a.flash_head_div, BASE_HQ / BASE_HKV);
  assert_int_equal(a.flash_n, 2);
  assert_int_equal(a.block_indices.stride[1], 0);
  assert_int_equal(a.block_indptr.stride[1], 4);
  assert_int_equal(a.alibi.stride[0], 0);
  teardown(&f);
  setup(&f, BASE_BACKWARD);
  tsr__bind_layout(&f.p, &a);
  assert_int_equal(a.u.bwd.dv.stride[1], BASE_HKV * BASE_DV);
  assert_int_equal(a.u.bwd.dlse.stride[1], BASE_SQ);
  assert_int_equal(a.u.bwd.dsink.stride, 1);
  teardown(&f);
}

static void numbers(void **state) {
  static const struct {
    float p;
    uint64_t threshold;
    float factor;
  } rows[] = {{0.0f, 0, 1.0f},
              {0.25f, UINT64_C(1) << 30, (float)(1.0 / 0.75)},
              {0.1f, 429496736, (float)(1.0 / (1.0 - (double)0.1f))},
              {1.0f, UINT64_C(1) << 32, 0.0f}};
  fixture f;
  (void)state;
  setup(&f, BASE_MASKS);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    f.args.dropout_p = rows[i].p;
    expect_ok(&f);
    assert_int_equal(f.bound.args.dropout_threshold, rows[i].threshold);
    assert_true(f.bound.args.dropout_scale == rows[i].factor);
    assert_int_equal(f.bound.args.seed, 77); /* from rng_state */
    assert_int_equal(f.bound.args.offset, 5);
  }
  assert_true(f.bound.args.softcap == 30.0f);
  f.args.scale = -0.5f;
  expect_ok(&f);
  assert_true(f.bound.args.scale == -0.5f);
  teardown(&f);
  setup(&f, BASE_EXPR);
  expect_ok(&f);
  assert_true(f.bound.env.scalar[0] == 2.0f && f.bound.env.scalar[1] == 3.0f);
  assert_ptr_equal(f.bound.env.aux[0].data, f.memory.data[TSR_SLOT_aux0]);
  assert_int_equal(f.bound.env.aux[0].rank, 2);
  assert_int_equal(f.bound.env.aux[1].rank, 1);
  assert_int_equal(f.bound.env.aux[1].dtype, TSR_I32);
  assert_int_equal(f.bound.env.aux[0].stride[0], BASE_SQ);
  f.args.scalars[1] = NAN; /* the caller's business */
  expect_ok(&f);
  teardown(&f);
}

static void smaller_runs(void **state) {
  fixture f;
  (void)state;
  setup(&f, BASE_PACKED);
  f.args.batch = 1;
  f.args.total_q = 4;
  f.args.total_k = 6;
  base_put(&f.args, &f.p, TSR_SLOT_cu_seqlens_q, 2, -5); /* not of this run */
  expect_ok(&f);
  assert_int_equal(f.bound.args.batch, 1);
  assert_int_equal(f.bound.args.total_q, 4);
  assert_int_equal(f.bound.args.total_k, 6);
  f.args.total_q = 3;
  expect_invalid(&f, "cu_seqlens_q[1]");
  teardown(&f);
  setup(&f, BASE_TABLE);
  f.args.batch = 1;
  base_put(&f.args, &f.p, TSR_SLOT_seqlens_k, 1, 1000);
  expect_ok(&f);
  teardown(&f);
}

/* ---- Rules ----------------------------------------------------------------------------------- */

typedef struct patch {
  size_t at, bytes;
  int64_t value;
  double number;
} patch;

#define N64(member, value) \
  { offsetof(tsr_run_args, member), 8, (int64_t)(value), 0.0 }
#define N32(member, value) \
  { offsetof(tsr_run_args, member), 4, value, 0.0 }
#define F32(member, value) \
  { offsetof(tsr_run_args, member), 0, 0, value }

static void patch_apply(tsr_run_args *a, const patch *p) {
  char *at = (char *)a + p->at;
  const float number = (float)p->number;
  const int32_t narrow = (int32_t)p->value;
  if (p->bytes == 0) {
    memcpy(at, &number, 4);
  } else if (p->bytes == 4) {
    memcpy(at, &narrow, 4);
  } else {
    memcpy(at, &p->value, 8);
  }
}

static void arguments_are_checked(void **state) {
  static tsr_run_stats unsized;
  const struct {
    base_kind base;
    patch patch;
    const char *field;
  } rows[] = {
      {BASE_DENSE, N64(size, 8), "size"},
      {BASE_DENSE, N64(batch, -1), "batch"},
      {BASE_DENSE, N64(batch, 3), "batch"},
      {BASE_DENSE, N64(total_q, 1), "total_q"},
      {BASE_DENSE, N64(total_k, 1), "total_k"},
      {BASE_PACKED, N64(total_q, 10), "total_q"},
      {BASE_PACKED, N64(total_k, -1), "total_k"},
      {BASE_TABLE, N64(total_k, 1), "total_k"},
      {BASE_DENSE, F32(scale, NAN), "scale"},
      {BASE_DENSE, F32(scale, INFINITY), "scale"},
      {BASE_DENSE, F32(softcap, 1.0), "softcap"},
      {BASE_MASKS, F32(softcap, 0.0), "softcap"},
      {BASE_MASKS, F32(softcap, -1.0), "softcap"},
      {BASE_MASKS, F32(softcap, NAN), "softcap"},
      {BASE_MASKS, F32(softcap, INFINITY), "softcap"},
      {BASE_DENSE, F32(dropout_p, 0.1), "dropout_p"},
      {BASE_DENSE, F32(dropout_p, NAN), "dropout_p"},
      {BASE_MASKS, F32(dropout_p, -0.1), "dropout_p"},
      {BASE_MASKS, F32(dropout_p, 1.5), "dropout_p"},
      {BASE_MASKS, F32(dropout_p, NAN), "dropout_p"},
      {BASE_MASKS, N64(seed, 1), "seed"},
      {BASE_MASKS, N64(offset, 1), "offset"},
      {BASE_DENSE, N64(seed, 1), "seed"},
      {BASE_DENSE, N32(reserved, 1), "reserved"},
      {BASE_EXPR, F32(scalars[2], 1.0), "scalars"},
      {BASE_DENSE, F32(scalars[0], NAN), "scalars"},
      {BASE_DENSE, N64(q.offset_bytes, -4), "q.offset_bytes"},
      {BASE_DENSE, N64(workspace.offset_bytes, -1), "workspace.offset_bytes"},
      {BASE_DENSE, N64(workspace_bytes, -1), "workspace_bytes"},
      {BASE_DENSE, N64(queue, 1), "queue"},
      {BASE_DENSE, N64(wait_events, 1), "wait_events"},
      {BASE_DENSE, N64(num_wait_events, 1), "num_wait_events"},
      {BASE_DENSE, N64(event, 1), "event"},
      {BASE_PACKED, N64(host_cu_seqlens_q, 64), "host_cu_seqlens_q"},
      {BASE_PACKED, N64(host_cu_seqlens_k, 64), "host_cu_seqlens_k"},
      {BASE_USED, N64(host_seqlens_q, 64), "host_seqlens_q"},
      {BASE_USED, N64(host_seqlens_k, 64), "host_seqlens_k"},
      {BASE_DENSE, N64(stats, (intptr_t)&unsized), "stats"},
      {BASE_MLA, N64(v_scale, 64), "v_scale"},
      {BASE_MLA, N64(v_zero, 64), "v_zero"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    fixture f;
    setup(&f, rows[i].base);
    patch_apply(&f.args, &rows[i].patch);
    expect_invalid(&f, rows[i].field);
    teardown(&f);
  }
}

static void tables_are_checked(void **state) {
  static const struct {
    base_kind base;
    int slot, index;
    int64_t value;
    const char *field;
  } rows[] = {
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 0, 1, "cu_seqlens_q[0]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 0, -1, "cu_seqlens_q[0]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 1, 10, "cu_seqlens_q[1]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 1, -1, "cu_seqlens_q[1]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 2, 3, "cu_seqlens_q[2]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 2, 10, "cu_seqlens_q[2]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 1, 6, "cu_seqlens_q[1]"}, /* sequence 0 longer than max_seqlen_q */
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 1, 3, "cu_seqlens_q[2]"}, /* sequence 1 */
      {BASE_PACKED, TSR_SLOT_cu_seqlens_k, 2, 13, "cu_seqlens_k[2]"},
      {BASE_PACKED, TSR_SLOT_cu_seqlens_k, 1, 4, "cu_seqlens_k[2]"},
      {BASE_USED, TSR_SLOT_cu_seqlens_k, 2, INT64_MAX, "cu_seqlens_k[2]"},
      {BASE_USED, TSR_SLOT_cu_seqlens_k, 1, INT64_MIN, "cu_seqlens_k[1]"},
      {BASE_USED, TSR_SLOT_seqlens_q, 0, 5, "seqlens_q[0]"}, /* its slot has 4 */
      {BASE_USED, TSR_SLOT_seqlens_q, 1, -1, "seqlens_q[1]"},
      {BASE_USED, TSR_SLOT_seqlens_k, 1, 8, "seqlens_k[1]"},
      {BASE_USED, TSR_SLOT_seqlens_k, 1, INT64_MAX, "seqlens_k[1]"},
      {BASE_MASKS, TSR_SLOT_seqlens_q, 0, 6, "seqlens_q[0]"},
      {BASE_MASKS, TSR_SLOT_seqlens_k, 0, -3, "seqlens_k[0]"},
      {BASE_TABLE, TSR_SLOT_seqlens_k, 0, 8, "seqlens_k[0]"},
      {BASE_TABLE, TSR_SLOT_seqlens_k, 1, -1, "seqlens_k[1]"},
      {BASE_TABLE, TSR_SLOT_block_table, 0, 8, "block_table[0,0]"},
      {BASE_TABLE, TSR_SLOT_block_table, 5, -1, "block_table[1,2]"},
      {BASE_CSR, TSR_SLOT_kv_indptr, 0, -1, "kv_indptr[0]"},
      {BASE_CSR, TSR_SLOT_kv_indptr, 1, 6, "kv_indptr[1]"}, /* too many keys for max_seqlen_k */
      {BASE_CSR, TSR_SLOT_kv_indptr, 1, 7, "kv_indptr[1]"},
      {BASE_CSR, TSR_SLOT_kv_indptr, 2, 1, "kv_indptr[2]"},
      {BASE_CSR, TSR_SLOT_kv_indptr, 2, 7, "kv_indptr[2]"},
      {BASE_CSR, TSR_SLOT_last_page_len, 0, 0, "last_page_len[0]"},
      {BASE_CSR, TSR_SLOT_last_page_len, 1, 4, "last_page_len[1]"},
      {BASE_CSR, TSR_SLOT_last_page_len, 1, 2, "kv_indptr[2]"}, /* 8 keys */
      {BASE_CSR, TSR_SLOT_kv_indices, 4, 8, "kv_indices[4]"},
      {BASE_CSR, TSR_SLOT_kv_indices, 0, -1, "kv_indices[0]"},
      {BASE_MASKS, TSR_SLOT_prefix, 1, -1, "prefix[1]"},
      {BASE_BITROWS, TSR_SLOT_mask_offsets, 0, -1, "mask_offsets[0]"},
      {BASE_BITROWS, TSR_SLOT_mask_offsets, 1, 8, "mask_offsets[1]"},
      {BASE_BITROWS, TSR_SLOT_mask_offsets, 1, INT64_MAX, "mask_offsets[1]"},
      {BASE_BITROWS, TSR_SLOT_mask_row_strides, 1, 3, "mask_offsets[1]"},
      {BASE_BITROWS, TSR_SLOT_mask_row_strides, 0, -1, "mask_row_strides[0]"},
      {BASE_BITROWS, TSR_SLOT_mask_row_strides, 0, INT64_MAX, "mask_offsets[0]"},
      {BASE_MASKS, TSR_SLOT_block_indptr, 0, -1, "block_indptr[0,0,0]"},
      {BASE_MASKS, TSR_SLOT_block_indptr, 6, 1, "block_indptr[0,1,2]"},
      {BASE_MASKS, TSR_SLOT_block_indptr, 15, 9, "block_indptr[0,3,3]"},
      {BASE_MASKS, TSR_SLOT_block_indices, 0, -1, "block_indices[0,0,0]"},
      {BASE_MASKS, TSR_SLOT_block_indices, 1, 3, "block_indices[0,0,1]"},
      {BASE_MASKS, TSR_SLOT_block_indices, 1, 0, "block_indices[0,0,1]"},
      {BASE_MASKS, TSR_SLOT_block_indices, 4, 0, "block_indices[0,0,4]"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    fixture f;
    setup(&f, rows[i].base);
    base_put(&f.args, &f.p, rows[i].slot, rows[i].index, rows[i].value);
    expect_invalid(&f, rows[i].field);
    teardown(&f);
  }
}

/* Values at the edge of a rule, which are fine. */
static void edges_of_tables_are_accepted(void **state) {
  static const struct {
    base_kind base;
    int slot, index;
    int64_t value;
  } rows[] = {
      {BASE_PACKED, TSR_SLOT_cu_seqlens_q, 2, 4},  {BASE_USED, TSR_SLOT_seqlens_q, 0, 0},
      {BASE_USED, TSR_SLOT_seqlens_q, 0, 4},       {BASE_TABLE, TSR_SLOT_seqlens_k, 0, 0},
      {BASE_TABLE, TSR_SLOT_seqlens_k, 0, 6},      {BASE_TABLE, TSR_SLOT_block_table, 0, 7},
      {BASE_CSR, TSR_SLOT_kv_indptr, 1, 0},        {BASE_MASKS, TSR_SLOT_prefix, 0, INT64_MAX},
      {BASE_BITROWS, TSR_SLOT_mask_offsets, 1, 7}, {BASE_MASKS, TSR_SLOT_block_indptr, 7, 3},
  };
  fixture f;
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    setup(&f, rows[i].base);
    base_put(&f.args, &f.p, rows[i].slot, rows[i].index, rows[i].value);
    if (rows[i].base == BASE_CSR) { /* sequence 0 has no pages: its last_page_len does not count */
      base_put(&f.args, &f.p, TSR_SLOT_kv_indptr, 2, 3);
      base_put(&f.args, &f.p, TSR_SLOT_last_page_len, 0, -7);
    }
    expect_ok(&f);
    base_touch(&f.p, &f.bound);
    teardown(&f);
  }
  setup(&f, BASE_PACKED); /* everything empty */
  for (int b = 0; b <= BASE_B; b++) {
    base_put(&f.args, &f.p, TSR_SLOT_cu_seqlens_q, b, 0);
    base_put(&f.args, &f.p, TSR_SLOT_cu_seqlens_k, b, 0);
  }
  expect_ok(&f);
  teardown(&f);
}

/* A table that ends where the last used entry ends, lengths that cover it exactly; one more key is refused unread. */
static void a_table_is_read_no_further_than_used(void **state) {
  tsr_attention_desc d = base_desc(BASE_TABLE);
  fixture f;
  (void)state;
  d.max_seqlen_k = 0;
  d.seqlens_k.stride[0] = 0; /* one length for all */
  setup_desc(&f, BASE_DENSE, &d);
  for (int n = 0; n < 6; n++) {
    base_put(&f.args, &f.p, TSR_SLOT_block_table, n, 7 - n);
  }
  base_put(&f.args, &f.p, TSR_SLOT_seqlens_k, 0, 9);
  expect_ok(&f);
  base_touch(&f.p, &f.bound);
  base_put(&f.args, &f.p, TSR_SLOT_seqlens_k, 0, 10);
  expect_invalid(&f, "seqlens_k[0]");
  teardown(&f);
}

/* seqlens_k within what the pages of a CSR list hold. */
static void csr_with_lengths(void **state) {
  tsr_attention_desc d = base_desc(BASE_CSR);
  fixture f;
  (void)state;
  d.seqlens_k = base_vector(TSR_I32, BASE_B);
  setup_desc(&f, BASE_CSR, &d);
  expect_ok(&f); /* 4 of 5, 7 of 7 */
  base_touch(&f.p, &f.bound);
  base_put(&f.args, &f.p, TSR_SLOT_seqlens_k, 0, 6);
  expect_invalid(&f, "seqlens_k[0]");
  teardown(&f);
}

/* ---- Buffers --------------------------------------------------------------------------------- */

static void buffers_must_match_the_description(void **state) {
  static double somewhere[8];
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    fixture f;
    setup(&f, (base_kind)kind);
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      tsr_buffer *b = base_buffer(&f.args, s);
      const tsr_buffer good = *b;
      char field[64];
      if (kind == BASE_MLA && s == TSR_SLOT_v) {
        b->ptr = (void *)(uintptr_t)3; /* ignored */
        expect_ok(&f);
      } else if (f.memory.data[s] != NULL) {
        b->ptr = NULL;
        expect_invalid(&f, tsr__slots[s].name);
        b->ptr = good.ptr;
        if (tsr__slot_layout(&f.p.desc, s)->align_bytes > 1) {
          b->ptr = (char *)good.ptr + 1;
          expect_invalid(&f, tsr__slots[s].name);
          b->ptr = good.ptr;
        }
        b->offset_bytes = -8;
        snprintf(field, sizeof(field), "%s.offset_bytes", tsr__slots[s].name);
        expect_invalid(&f, field);
      } else {
        b->ptr = somewhere;
        expect_invalid(&f, tsr__slots[s].name);
        b->ptr = NULL;
        b->offset_bytes = 8;
        expect_invalid(&f, tsr__slots[s].name);
      }
      *b = good;
    }
    teardown(&f);
  }
}

static void offsets_are_applied(void **state) {
  fixture f;
  char *early;
  (void)state;
  setup(&f, BASE_DENSE);
  early = (char *)f.args.q.ptr - 64;
  f.args.q.ptr = early;
  f.args.q.offset_bytes = 64;
  expect_ok(&f);
  assert_ptr_equal(f.bound.ptr[TSR_SLOT_q], early + 64);
  assert_int_equal(f.bound.args.q.offset_bytes, 0);
  teardown(&f);
}

static void empty_tensors_need_no_memory(void **state) {
  tsr_attention_desc d = base_desc(BASE_DENSE);
  fixture f;
  (void)state;
  d.k.shape[1] = d.v.shape[1] = 0;
  setup_desc(&f, BASE_DENSE, &d);
  assert_null(f.args.k.ptr);
  expect_ok(&f);
  teardown(&f);
}

static void promised_alignment_is_kept(void **state) {
  tsr_attention_desc d = base_desc(BASE_DENSE);
  fixture f;
  (void)state;
  d.q.align_bytes = 32;
  setup_desc(&f, BASE_DENSE, &d);
  expect_ok(&f);
  f.args.q.ptr = (char *)f.args.q.ptr + 16;
  expect_invalid(&f, "q");
  teardown(&f);
}

static void workspace_is_checked(void **state) {
  static char memory[4096 + 256];
  char *aligned = memory + (256 - (uintptr_t)memory % 256);
  fixture f;
  (void)state;
  setup(&f, BASE_DENSE);
  for (int what = 0; what < 5; what++) {
    f.args.workspace.ptr = what == 0 ? NULL : aligned + (what == 2 ? 128 : 0);
    f.args.workspace.offset_bytes = what == 3 ? 64 : 0;
    f.args.workspace_bytes = what == 1 ? 999 : 1000;
    assert_int_equal(tsr__bind(&f.p, &f.args, 1, 0, 1000, 256, &f.bound, &f.err),
                     what == 4 ? TSR_OK : TSR_OUT_OF_WORKSPACE);
    if (what < 4) {
      assert_string_equal(f.err.field, "workspace");
      assert_non_null(strstr(f.err.text, "1000 bytes"));
      assert_non_null(strstr(f.err.text, "256"));
    }
  }
  assert_ptr_equal(f.bound.workspace, aligned);
  f.args.workspace.ptr = f.args.q.ptr; /* only with the validate flag: it takes time */
  assert_int_equal(tsr__bind(&f.p, &f.args, 1, 0, 64, 4, &f.bound, &f.err), TSR_OK);
  assert_int_equal(tsr__bind(&f.p, &f.args, 1, 1, 64, 4, &f.bound, &f.err), TSR_INVALID);
  assert_string_equal(f.err.field, "workspace");
  teardown(&f);
}

static void args_grow(void **state) {
  struct newer {
    tsr_run_args args;
    int64_t tail;
  } n;
  fixture f;
  (void)state;
  setup(&f, BASE_DENSE);
  memset(&n, 0, sizeof(n));
  n.args = f.args;
  n.args.size = sizeof(n);
  assert_int_equal(tsr__bind(&f.p, &n.args, 1, 0, 0, 1, &f.bound, &f.err), TSR_OK);
  n.tail = 1;
  assert_int_equal(tsr__bind(&f.p, &n.args, 1, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
  assert_string_equal(f.err.field, "size");
  assert_int_equal(tsr__bind(&f.p, NULL, 1, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
  assert_int_equal(tsr__bind(&f.p, NULL, 1, 0, 0, 1, &f.bound, NULL), TSR_INVALID);
  teardown(&f);
}

/* ---- Devices --------------------------------------------------------------------------------- */

/* No pointer is followed, but for host copies of lengths. */
static void device_memory_is_not_read(void **state) {
  const int32_t good[3] = {0, 4, 9}, bad[3] = {0, 9, 4};
  const void *event = &good;
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    fixture f;
    setup(&f, (base_kind)kind);
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      if (f.memory.data[s] != NULL) {
        base_buffer(&f.args, s)->ptr = (void *)(uintptr_t)0x40;
        base_buffer(&f.args, s)->offset_bytes = 16 * s;
      }
    }
    f.args.queue = (void *)(uintptr_t)8;
    f.args.num_wait_events = 1;
    assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
    assert_string_equal(f.err.field, "wait_events");
    f.args.num_wait_events = -1;
    assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
    assert_string_equal(f.err.field, "num_wait_events");
    f.args.num_wait_events = 1;
    f.args.wait_events = &event;
    assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_OK);
    assert_ptr_equal(f.bound.ptr[TSR_SLOT_q], (void *)(uintptr_t)0x40);
    assert_int_equal(f.bound.args.k.offset_bytes, 16 * TSR_SLOT_k);
    assert_int_equal(f.bound.args.v.offset_bytes, 16 * (kind == BASE_MLA ? TSR_SLOT_k : TSR_SLOT_v));
    f.args.host_cu_seqlens_q = good;
    if (kind == BASE_PACKED) {
      assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_OK);
      f.args.host_cu_seqlens_q = bad;
      assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
      assert_string_equal(f.err.field, "cu_seqlens_q[2]");
    } else if (!tsr__problem_has(&f.p, TSR_SLOT_cu_seqlens_q)) {
      assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
      assert_string_equal(f.err.field, "host_cu_seqlens_q");
    }
    f.args.host_cu_seqlens_q = NULL;
    f.args.q.offset_bytes = 1;
    if (f.p.desc.q.align_bytes > 1) {
      assert_int_equal(tsr__bind(&f.p, &f.args, 0, 0, 0, 1, &f.bound, &f.err), TSR_INVALID);
      assert_string_equal(f.err.field, "q.offset_bytes");
    }
    teardown(&f);
  }
}

/* ---- Hostile values ------------------------------------------------------------------------------ */

static void hostile_tables_never_crash(void **state) {
  static const int64_t values[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, -1, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
  static const int slots[] = {
      TSR_SLOT_cu_seqlens_q,  TSR_SLOT_cu_seqlens_k, TSR_SLOT_seqlens_q,        TSR_SLOT_seqlens_k,
      TSR_SLOT_block_table,   TSR_SLOT_kv_indptr,    TSR_SLOT_kv_indices,       TSR_SLOT_last_page_len,
      TSR_SLOT_prefix,        TSR_SLOT_mask_offsets, TSR_SLOT_mask_row_strides, TSR_SLOT_block_indptr,
      TSR_SLOT_block_indices, TSR_SLOT_flashmask,    TSR_SLOT_segments_q,       TSR_SLOT_segments_k};
  int accepted = 0;
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    fixture f;
    setup(&f, (base_kind)kind);
    for (int round = 0; round < 4000; round++) {
      base_fill((base_kind)kind, &f.p, &f.args);
      for (int n = 1 + random_below(3); n > 0; n--) {
        const int s = slots[(size_t)random_below(sizeof(slots) / sizeof(slots[0]))];
        if (tsr__problem_has(&f.p, s)) {
          const tsr_layout *l = tsr__slot_layout(&f.p.desc, s);
          const int64_t count = tsr__layout_span_bytes(l) / tsr__element_bytes(l->dtype);
          base_put(&f.args, &f.p, s, random_below(count),
                   values[(size_t)random_below(sizeof(values) / sizeof(values[0]))]);
        }
      }
      if (bind(&f) == TSR_OK) {
        accepted++;
        base_touch(&f.p, &f.bound);
      }
    }
    teardown(&f);
  }
  print_message("%d of %d accepted\n", accepted, 4000 * BASE_COUNT);
  assert_true(accepted > 4000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bases_are_accepted),
      cmocka_unit_test(nothing_is_written),
      cmocka_unit_test(layout_alone_is_for_the_maxima),
      cmocka_unit_test(numbers),
      cmocka_unit_test(smaller_runs),
      cmocka_unit_test(arguments_are_checked),
      cmocka_unit_test(tables_are_checked),
      cmocka_unit_test(edges_of_tables_are_accepted),
      cmocka_unit_test(a_table_is_read_no_further_than_used),
      cmocka_unit_test(csr_with_lengths),
      cmocka_unit_test(buffers_must_match_the_description),
      cmocka_unit_test(offsets_are_applied),
      cmocka_unit_test(empty_tensors_need_no_memory),
      cmocka_unit_test(promised_alignment_is_kept),
      cmocka_unit_test(workspace_is_checked),
      cmocka_unit_test(args_grow),
      cmocka_unit_test(device_memory_is_not_read),
      cmocka_unit_test(hostile_tables_never_crash),
  };
  random_seed();
  return cmocka_run_group_tests_name("bind", tests, NULL, NULL);
}
