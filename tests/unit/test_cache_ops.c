/* SPDX-License-Identifier: Apache-2.0 */
/* Append and merge: what is accepted, every rule with an input that breaks it, runs by value, hostile input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/validate_cache.h"
#include "desc_patch.h"
#include "random.h"

enum { B = 2, S = 3, SMAX = 8, HQ = 4, HKV = 2, D = 8, DV = 6, PAGE = 4, MAX_POS = 16 };

/* ---- Append: bases --------------------------------------------------------------------------- */

typedef enum append_kind {
  APPEND_DENSE,  /* rows copied */
  APPEND_PACKED, /* packed rows, paged cache */
  APPEND_ROTARY, /* rotary with q and positions */
  APPEND_QUANT,  /* dynamic scales: i8 and u4 */
  APPEND_STATIC, /* static scales, broadcast: fp8 */
  APPEND_COUNT
} append_kind;

static tsr_append_desc append_desc(append_kind kind) {
  tsr_append_desc d = tsr_append_desc_init();
  d.k_new = tsr_layout_dense(TSR_F16, B, S, HKV, D);
  d.v_new = tsr_layout_dense(TSR_F16, B, S, HKV, DV);
  d.k_cache = tsr_layout_dense(TSR_F16, B, SMAX, HKV, D);
  d.v_cache = tsr_layout_dense(TSR_F16, B, SMAX, HKV, DV);
  d.seqlens_k = tsr_layout_dense(TSR_I32, B, 1, 1, 1);
  switch (kind) {
  case APPEND_PACKED:
    d.k_new = tsr_layout_dense(TSR_F32, 1, 5, HKV, D);
    d.v_new = tsr_layout_dense(TSR_F32, 1, 5, HKV, DV);
    d.k_cache = tsr_layout_dense(TSR_F32, 7, PAGE, HKV, D);
    d.v_cache = tsr_layout_dense(TSR_F32, 7, PAGE, HKV, DV);
    d.cu_seqlens_new = tsr_layout_dense(TSR_I64, B + 1, 1, 1, 1);
    d.seqlens_k.dtype = TSR_I64;
    d.block_table = tsr_layout_dense(TSR_I32, B, 2, 1, 1);
    d.batch = B;
    d.max_seqlen_new = 4;
    break;
  case APPEND_ROTARY:
    d.flags = TSR_APPEND_INTERLEAVED;
    d.cos = d.sin = tsr_layout_dense(TSR_F32, MAX_POS, 3, 1, 1);
    d.rotary_dim = 6;
    d.positions = tsr_layout_dense(TSR_I32, B, S, 1, 1);
    d.q = d.q_out = tsr_layout_dense(TSR_BF16, B, S, HQ, D);
    break;
  case APPEND_QUANT:
    d.k_cache.dtype = TSR_I8;
    d.v_cache.dtype = TSR_U4;
    d.k_scale = tsr_layout_dense(TSR_F32, B, SMAX, HKV, 1);
    d.v_scale = tsr_layout_dense(TSR_F16, B, SMAX, HKV, 3);
    break;
  case APPEND_STATIC:
    d.flags = TSR_APPEND_STATIC_SCALES;
    d.k_cache.dtype = d.v_cache.dtype = TSR_F8E4M3;
    d.k_scale = tsr_layout_dense(TSR_F32, 1, 1, HKV, 1);
    d.cos = d.sin = tsr_layout_dense(TSR_F32, MAX_POS, D / 2, 1, 1);
    break;
  default: break;
  }
  return d;
}

static const tsr_layout *append_layout(const tsr_append_desc *d, int slot) {
  return (const tsr_layout *)(const void *)((const char *)d + tsr__append_slots[slot].desc_offset);
}

static tsr_buffer *append_buffer(tsr_append_args *a, int slot) {
  return (tsr_buffer *)(void *)((char *)a + tsr__append_slots[slot].args_offset);
}

static void append_accept(const tsr_append_desc *d, tsr__append_problem *p) {
  tsr_error err;
  const tsr_status st = tsr__append_init(d, p, &err);
  if (st != TSR_OK) {
    print_message("refused: %s: %s\n", err.field, err.text);
  }
  assert_int_equal(st, TSR_OK);
  assert_int_equal(err.status, TSR_OK);
}

static void append_bases_are_accepted(void **state) {
  static const struct {
    int64_t capacity, page_size, seqlen_new, total_new;
    int32_t k_group, v_group, heads_q, rotary_dim;
    tsr_dtype len_dtype;
  } rows[APPEND_COUNT] = {{SMAX, 0, S, 0, 0, 0, 0, 0, TSR_I32},
                          {2 * PAGE, PAGE, 4, 5, 0, 0, 0, 0, TSR_I64},
                          {SMAX, 0, S, 0, 0, 0, HQ, 6, TSR_I32},
                          {SMAX, 0, S, 0, D, 2, 0, 0, TSR_I32},
                          {SMAX, 0, S, 0, D, 0, 0, D, TSR_I32}};
  (void)state;
  for (int kind = 0; kind < APPEND_COUNT; kind++) {
    const tsr_append_desc d = append_desc((append_kind)kind);
    tsr__append_problem p;
    append_accept(&d, &p);
    assert_int_equal(p.batch, B);
    assert_int_equal(p.desc.batch, B);
    assert_int_equal(p.capacity, rows[kind].capacity);
    assert_int_equal(p.page_size, rows[kind].page_size);
    assert_int_equal(p.seqlen_new, rows[kind].seqlen_new);
    assert_int_equal(p.desc.max_seqlen_new, rows[kind].seqlen_new);
    assert_int_equal(p.total_new, rows[kind].total_new);
    assert_int_equal(p.k_group, rows[kind].k_group);
    assert_int_equal(p.v_group, rows[kind].v_group);
    assert_int_equal(p.heads_q, rows[kind].heads_q);
    assert_int_equal(p.desc.rotary_dim, rows[kind].rotary_dim);
    assert_int_equal(p.len_dtype, rows[kind].len_dtype);
    assert_int_equal(p.heads_kv, HKV);
    assert_int_equal(p.head_dim, D);
    assert_int_equal(p.head_dim_v, DV);
  }
}

static void append_defaults(void **state) {
  tsr_append_desc d = append_desc(APPEND_PACKED);
  tsr__append_problem p;
  (void)state;
  d.batch = d.max_seqlen_new = 0;
  append_accept(&d, &p);
  assert_int_equal(p.batch, B);
  assert_int_equal(p.seqlen_new, 5);
  d.k_new.shape[1] = d.v_new.shape[1] = INT64_C(1) << 32; /* more tokens than one sequence can have */
  d.block_table.shape[1] = INT64_C(1) << 40;
  d.block_table.stride[0] = d.block_table.stride[1] = 0;
  append_accept(&d, &p);
  assert_int_equal(p.seqlen_new, INT32_MAX);
  assert_int_equal(p.capacity, INT32_MAX);
  assert_int_equal(p.total_new, INT64_C(1) << 32);
  memset(&d.seqlens_k, 0, sizeof(d.seqlens_k)); /* absent: empty caches */
  append_accept(&d, &p);
}

/* ---- Rules of descriptions ----------------------------------------------------------------------- */

enum { PATCHES = 4 };

#define A32(member, value) PATCH_32(tsr_append_desc, member, value)
#define A64(member, value) PATCH_64(tsr_append_desc, member, value)
#define ALAYOUT(member, dtype, ...) PATCH_LAYOUT(tsr_append_desc, member, dtype, __VA_ARGS__)
#define AABSENT(member) PATCH_ABSENT(tsr_append_desc, member)

static const struct {
  append_kind base;
  desc_patch patch[PATCHES];
  tsr_status status;
  const char *field;
} append_rules[] = {
    {APPEND_DENSE, {A64(size, 7)}, TSR_INVALID, "size"},
    {APPEND_DENSE, {A32(memory, 9)}, TSR_INVALID, "memory"},
    {APPEND_DENSE, {A32(flags, 4)}, TSR_INVALID, "flags"},
    {APPEND_DENSE, {A32(flags, TSR_APPEND_INTERLEAVED)}, TSR_INVALID, "flags"},
    {APPEND_DENSE, {A32(flags, TSR_APPEND_STATIC_SCALES)}, TSR_INVALID, "flags"},
    {APPEND_DENSE, {A32(reserved, 1)}, TSR_INVALID, "reserved"},
    {APPEND_DENSE, {AABSENT(k_new)}, TSR_INVALID, "k_new"},
    {APPEND_DENSE, {AABSENT(v_new)}, TSR_INVALID, "v_new"},
    {APPEND_DENSE, {AABSENT(k_cache)}, TSR_INVALID, "k_cache"},
    {APPEND_DENSE, {AABSENT(v_cache)}, TSR_INVALID, "v_cache"},
    {APPEND_DENSE, {A32(k_new.dtype, 0)}, TSR_INVALID, "k_new.dtype"},
    {APPEND_DENSE, {A32(k_new.dtype, TSR_I8)}, TSR_INVALID, "k_new.dtype"},
    {APPEND_DENSE, {A32(v_new.dtype, TSR_F32)}, TSR_INVALID, "v_new.dtype"},
    {APPEND_DENSE, {A64(k_new.shape[2], 0)}, TSR_INVALID, "k_new.shape[2]"},
    {APPEND_DENSE, {A64(k_new.shape[3], 0)}, TSR_INVALID, "k_new.shape[3]"},
    {APPEND_DENSE, {A64(k_new.shape[3], 577)}, TSR_UNSUPPORTED, "k_new.shape[3]"},
    {APPEND_DENSE, {A64(v_new.shape[0], 1)}, TSR_INVALID, "v_new.shape[0]"},
    {APPEND_DENSE, {A64(v_new.shape[1], 2)}, TSR_INVALID, "v_new.shape[1]"},
    {APPEND_DENSE, {A64(v_new.shape[2], 1)}, TSR_INVALID, "v_new.shape[2]"},
    {APPEND_DENSE, {A64(v_new.shape[3], 577)}, TSR_UNSUPPORTED, "v_new.shape[3]"},
    {APPEND_DENSE, {A64(batch, 3)}, TSR_INVALID, "batch"},
    {APPEND_DENSE, {A64(batch, -1)}, TSR_INVALID, "batch"},
    {APPEND_DENSE, {A64(max_seqlen_new, 2)}, TSR_INVALID, "max_seqlen_new"},
    {APPEND_PACKED, {A64(max_seqlen_new, -1)}, TSR_INVALID, "max_seqlen_new"},
    {APPEND_PACKED, {A64(max_seqlen_new, INT64_C(1) << 31)}, TSR_INVALID, "max_seqlen_new"},
    {APPEND_PACKED, {A64(batch, 3)}, TSR_INVALID, "cu_seqlens_new.shape[0]"},
    {APPEND_PACKED, {A64(cu_seqlens_new.shape[0], 0)}, TSR_INVALID, "cu_seqlens_new.shape[0]"},
    {APPEND_PACKED, {A32(cu_seqlens_new.dtype, TSR_F32)}, TSR_INVALID, "cu_seqlens_new.dtype"},
    {APPEND_PACKED, {A32(seqlens_k.dtype, TSR_I32)}, TSR_INVALID, "seqlens_k.dtype"},
    {APPEND_DENSE, {A64(seqlens_k.shape[0], 3)}, TSR_INVALID, "seqlens_k.shape[0]"},
    {APPEND_PACKED,
     {ALAYOUT(k_new, TSR_F32, 2, 5, 2, 8), ALAYOUT(v_new, TSR_F32, 2, 5, 2, 6)},
     TSR_INVALID,
     "k_new.shape[0]"},
    {APPEND_DENSE, {A64(k_cache.shape[0], 1)}, TSR_INVALID, "k_cache.shape[0]"},
    {APPEND_DENSE, {A64(k_cache.shape[2], 1)}, TSR_INVALID, "k_cache.shape[2]"},
    {APPEND_DENSE, {A64(k_cache.shape[3], 7)}, TSR_INVALID, "k_cache.shape[3]"},
    {APPEND_DENSE, {A64(k_cache.stride[1], 0)}, TSR_INVALID, "k_cache.stride[1]"},
    {APPEND_DENSE, {A32(k_cache.dtype, TSR_F32)}, TSR_INVALID, "k_cache.dtype"},
    {APPEND_DENSE, {A32(k_cache.dtype, TSR_F8E5M2FNUZ)}, TSR_UNSUPPORTED, "k_cache.dtype"},
    {APPEND_DENSE, {A32(v_cache.dtype, TSR_I8)}, TSR_INVALID, "v_cache.dtype"},
    {APPEND_DENSE, {A64(v_cache.shape[1], 7)}, TSR_INVALID, "v_cache.shape[1]"},
    {APPEND_DENSE, {A64(v_cache.shape[3], 5)}, TSR_INVALID, "v_cache.shape[3]"},
    {APPEND_PACKED, {A32(block_table.dtype, TSR_I64)}, TSR_INVALID, "block_table.dtype"},
    {APPEND_PACKED, {A64(block_table.shape[0], 1)}, TSR_INVALID, "block_table.shape[0]"},
    {APPEND_PACKED,
     {ALAYOUT(k_cache, TSR_F32, 7, 0, 2, 8), ALAYOUT(v_cache, TSR_F32, 7, 0, 2, 6)},
     TSR_INVALID,
     "k_cache.shape[1]"},
    {APPEND_DENSE,
     {ALAYOUT(k_cache, TSR_F16, 2, INT64_C(1) << 31, 2, 8), ALAYOUT(v_cache, TSR_F16, 2, INT64_C(1) << 31, 2, 6)},
     TSR_INVALID,
     "k_cache.shape[1]"},
    {APPEND_PACKED,
     {ALAYOUT(cu_seqlens_new, TSR_I64, (INT64_C(1) << 58) + 1, 1, 1, 1),
      ALAYOUT(seqlens_k, TSR_I64, INT64_C(1) << 58, 1, 1, 1), ALAYOUT(block_table, TSR_I32, INT64_C(1) << 58, 2, 1, 1),
      A64(batch, 0)},
     TSR_INVALID,
     "batch"},
    {APPEND_QUANT, {AABSENT(k_scale)}, TSR_INVALID, "k_scale"},
    {APPEND_QUANT, {AABSENT(v_scale)}, TSR_INVALID, "v_scale"},
    {APPEND_DENSE, {ALAYOUT(k_scale, TSR_F32, 2, 8, 2, 1)}, TSR_INVALID, "k_scale"},
    {APPEND_QUANT, {ALAYOUT(k_scale, TSR_F32, 1, 8, 2, 1)}, TSR_INVALID, "k_scale.shape[0]"}, /* dynamic: one each */
    {APPEND_QUANT, {ALAYOUT(k_scale, TSR_F32, 2, 8, 2, 3)}, TSR_INVALID, "k_scale.shape[3]"},
    {APPEND_QUANT, {A64(v_scale.stride[0], 0)}, TSR_INVALID, "v_scale.stride[0]"},
    {APPEND_QUANT, {A32(v_scale.dtype, TSR_I32)}, TSR_INVALID, "v_scale.dtype"},
    {APPEND_STATIC, {A64(k_scale.shape[1], 7)}, TSR_INVALID, "k_scale.shape[1]"},
    {APPEND_ROTARY, {AABSENT(sin)}, TSR_INVALID, "sin"},
    {APPEND_ROTARY, {AABSENT(cos)}, TSR_INVALID, "cos"},
    {APPEND_ROTARY, {AABSENT(q_out)}, TSR_INVALID, "q_out"},
    {APPEND_DENSE, {A32(rotary_dim, 2)}, TSR_INVALID, "rotary_dim"},
    {APPEND_DENSE, {ALAYOUT(positions, TSR_I32, 2, 3, 1, 1)}, TSR_INVALID, "positions"},
    {APPEND_DENSE, {ALAYOUT(q, TSR_F16, 2, 3, 4, 8), ALAYOUT(q_out, TSR_F16, 2, 3, 4, 8)}, TSR_INVALID, "q"},
    {APPEND_ROTARY, {A32(rotary_dim, 5)}, TSR_INVALID, "rotary_dim"},
    {APPEND_STATIC,
     {ALAYOUT(k_new, TSR_F16, 2, 3, 2, 7), ALAYOUT(k_cache, TSR_F8E4M3, 2, 8, 2, 7)},
     TSR_INVALID,
     "rotary_dim"}, /* D is odd and R not given */
    {APPEND_ROTARY, {A32(rotary_dim, 10)}, TSR_INVALID, "rotary_dim"},
    {APPEND_ROTARY, {A32(rotary_dim, -2)}, TSR_INVALID, "rotary_dim"},
    {APPEND_ROTARY, {A32(rotary_dim, 8)}, TSR_INVALID, "cos.shape[1]"},
    {APPEND_ROTARY, {A64(sin.shape[0], 3)}, TSR_INVALID, "sin.shape[0]"},
    {APPEND_ROTARY, {A32(cos.dtype, TSR_F16)}, TSR_INVALID, "cos.dtype"},
    {APPEND_ROTARY, {A64(positions.shape[1], 2)}, TSR_INVALID, "positions.shape[1]"},
    {APPEND_ROTARY, {A32(positions.dtype, TSR_I64)}, TSR_INVALID, "positions.dtype"},
    {APPEND_ROTARY, {A64(q.shape[3], 6)}, TSR_INVALID, "q.shape[3]"},
    {APPEND_ROTARY, {A32(q.dtype, TSR_I8)}, TSR_INVALID, "q.dtype"},
    {APPEND_ROTARY, {A32(q_out.dtype, TSR_F16)}, TSR_INVALID, "q_out.dtype"},
    {APPEND_ROTARY, {A64(q_out.shape[0], 1)}, TSR_INVALID, "q_out.shape[0]"},
    {APPEND_ROTARY, {A64(q_out.stride[2], 0)}, TSR_INVALID, "q_out.stride[2]"},
};

static void append_rules_are_enforced(void **state) {
  int failed = 0;
  (void)state;
  for (size_t i = 0; i < sizeof(append_rules) / sizeof(append_rules[0]); i++) {
    tsr_append_desc d = append_desc(append_rules[i].base);
    tsr__append_problem p;
    tsr_error err;
    tsr_status st;
    for (int n = 0; n < PATCHES; n++) {
      desc_patch_apply(&d, &append_rules[i].patch[n]);
    }
    st = tsr__append_init(&d, &p, &err);
    if (st != append_rules[i].status || strcmp(err.field, append_rules[i].field) != 0 || err.text[0] == 0) {
      print_message("rule %zu, for %s: status %d, field \"%s\", text \"%s\"\n", i, append_rules[i].field, (int)st,
                    err.field, err.text);
      failed++;
    }
  }
  assert_int_equal(failed, 0);
}

/* ---- Append: runs ------------------------------------------------------------------------------ */

typedef struct run {
  tsr_append_desc desc;
  tsr__append_problem p;
  tsr_append_args args, out;
  void *data[TSR__APPEND_SLOTS];
  tsr_error err;
} run;

static void put(run *r, int slot, int64_t index, int64_t value) {
  if (append_layout(&r->p.desc, slot)->dtype == TSR_I64) {
    ((int64_t *)r->data[slot])[index] = value;
  } else {
    ((int32_t *)r->data[slot])[index] = (int32_t)value;
  }
}

static int slot_named(const char *name) {
  int s = 0;
  while (strcmp(tsr__append_slots[s].name, name) != 0) {
    s++;
  }
  return s;
}

static void run_setup(run *r, append_kind kind) {
  memset(r, 0, sizeof(*r));
  r->desc = append_desc(kind);
  r->args = tsr_append_args_init();
  append_accept(&r->desc, &r->p);
  for (int s = 0; s < TSR__APPEND_SLOTS; s++) {
    const tsr_layout *l = append_layout(&r->p.desc, s);
    if (l->dtype != TSR_DTYPE_NONE) {
      r->data[s] = calloc(1, (size_t)tsr__layout_span_bytes(l));
      append_buffer(&r->args, s)->ptr = r->data[s];
    }
  }
  put(r, slot_named("seqlens_k"), 0, 5);
  put(r, slot_named("seqlens_k"), 1, 2);
  if (kind == APPEND_PACKED) {
    put(r, slot_named("cu_seqlens_new"), 1, 1);
    put(r, slot_named("cu_seqlens_new"), 2, 5);
    for (int n = 0; n < 4; n++) {
      put(r, slot_named("block_table"), n, (int64_t[]){-3, 6, 0, 2}[n]); /* the full first page is not written */
    }
  }
}

static void run_teardown(run *r) {
  for (int s = 0; s < TSR__APPEND_SLOTS; s++) {
    free(r->data[s]);
  }
}

static tsr_status run_bind(run *r, int host) {
  return tsr__append_bind(&r->p, &r->args, host, 1, 0, 1, &r->out, &r->err);
}

static void run_refused(run *r, const char *field) {
  const tsr_status st = run_bind(r, 1);
  if (st != TSR_INVALID || strcmp(r->err.field, field) != 0) {
    print_message("expected %s, got %d, \"%s\": %s\n", field, (int)st, r->err.field, r->err.text);
  }
  assert_int_equal(st, TSR_INVALID);
  assert_string_equal(r->err.field, field);
}

static void append_runs_are_accepted(void **state) {
  (void)state;
  for (int kind = 0; kind < APPEND_COUNT; kind++) {
    run r;
    run_setup(&r, (append_kind)kind);
    assert_int_equal(run_bind(&r, 1), TSR_OK);
    assert_int_equal(r.out.size, sizeof(r.out));
    assert_int_equal(r.out.batch, B);
    assert_int_equal(r.out.total_new, kind == APPEND_PACKED ? 5 : 0);
    assert_ptr_equal(r.out.k_cache.ptr, r.args.k_cache.ptr);
    run_teardown(&r);
  }
}

static void append_values_are_checked(void **state) {
  static const struct {
    append_kind base;
    const char *tensor;
    int64_t index, value;
    const char *field;
  } rows[] = {
      {APPEND_DENSE, "seqlens_k", 0, 6, "seqlens_k[0]"}, /* 6 + 3 > 8 */
      {APPEND_DENSE, "seqlens_k", 1, -1, "seqlens_k[1]"},
      {APPEND_DENSE, "seqlens_k", 1, INT32_MAX, "seqlens_k[1]"},
      {APPEND_PACKED, "seqlens_k", 0, INT64_MAX, "seqlens_k[0]"},
      {APPEND_PACKED, "seqlens_k", 0, 8, "seqlens_k[0]"},
      {APPEND_PACKED, "cu_seqlens_new", 0, 1, "cu_seqlens_new[0]"},
      {APPEND_PACKED, "cu_seqlens_new", 1, 6, "cu_seqlens_new[1]"},
      {APPEND_PACKED, "cu_seqlens_new", 2, 0, "cu_seqlens_new[2]"},
      {APPEND_PACKED, "cu_seqlens_new", 1, 0, "cu_seqlens_new[2]"}, /* 5 > max_seqlen_new */
      {APPEND_PACKED, "block_table", 1, 7, "block_table[0,1]"},
      {APPEND_PACKED, "block_table", 2, -1, "block_table[1,0]"},
      {APPEND_ROTARY, "positions", 4, MAX_POS, "positions[1,1]"},
      {APPEND_ROTARY, "positions", 0, -1, "positions[0,0]"},
  };
  run r;
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    run_setup(&r, rows[i].base);
    put(&r, slot_named(rows[i].tensor), rows[i].index, rows[i].value);
    run_refused(&r, rows[i].field);
    run_teardown(&r);
  }
  run_setup(&r, APPEND_STATIC); /* positions by default: kv_len + t needs a row of cos */
  r.p.desc.cos.shape[0] = 7;
  run_refused(&r, "cos");
  r.p.desc.cos.shape[0] = 8;
  assert_int_equal(run_bind(&r, 1), TSR_OK);
  run_teardown(&r);
}

static void append_arguments_are_checked(void **state) {
  static const struct {
    append_kind base;
    size_t at;
    int64_t value;
    const char *field;
  } rows[] = {
      {APPEND_DENSE, offsetof(tsr_append_args, size), 8, "size"},
      {APPEND_DENSE, offsetof(tsr_append_args, batch), 3, "batch"},
      {APPEND_DENSE, offsetof(tsr_append_args, batch), -1, "batch"},
      {APPEND_DENSE, offsetof(tsr_append_args, total_new), 1, "total_new"},
      {APPEND_PACKED, offsetof(tsr_append_args, total_new), 6, "total_new"},
      {APPEND_PACKED, offsetof(tsr_append_args, total_new), 4, "cu_seqlens_new[2]"},
      {APPEND_DENSE, offsetof(tsr_append_args, queue), 1, "queue"},
      {APPEND_DENSE, offsetof(tsr_append_args, event), 1, "event"},
      {APPEND_DENSE, offsetof(tsr_append_args, workspace_bytes), -1, "workspace_bytes"},
      {APPEND_DENSE, offsetof(tsr_append_args, k_new.offset_bytes), -2, "k_new.offset_bytes"},
      {APPEND_DENSE, offsetof(tsr_append_args, k_new.offset_bytes), 1, "k_new"},
  };
  run r;
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    run_setup(&r, rows[i].base);
    memcpy((char *)&r.args + rows[i].at, &rows[i].value, 8);
    run_refused(&r, rows[i].field);
    run_teardown(&r);
  }
  for (int kind = 0; kind < APPEND_COUNT; kind++) {
    run_setup(&r, (append_kind)kind);
    for (int s = 0; s < TSR__APPEND_SLOTS; s++) {
      tsr_buffer *b = append_buffer(&r.args, s);
      const tsr_buffer good = *b;
      b->ptr = good.ptr == NULL ? &r : NULL;
      run_refused(&r, tsr__append_slots[s].name);
      *b = good;
    }
    run_teardown(&r);
  }
}

static void append_on_devices_reads_nothing(void **state) {
  (void)state;
  for (int kind = 0; kind < APPEND_COUNT; kind++) {
    run r;
    run_setup(&r, (append_kind)kind);
    for (int s = 0; s < TSR__APPEND_SLOTS; s++) {
      if (r.data[s] != NULL) {
        append_buffer(&r.args, s)->ptr = (void *)(uintptr_t)1;
      }
    }
    r.args.queue = &r;
    assert_int_equal(run_bind(&r, 0), TSR_OK);
    assert_int_equal(tsr__append_bind(&r.p, &r.args, 0, 1, 512, 64, &r.out, &r.err), TSR_OUT_OF_WORKSPACE);
    assert_non_null(strstr(r.err.text, "512 bytes"));
    run_teardown(&r);
  }
}

/* ---- Merge ----------------------------------------------------------------------------------- */

static tsr_merge_desc merge_desc(void) {
  tsr_merge_desc d = tsr_merge_desc_init();
  d.num_partials = 3;
  d.o = tsr_layout_dense(TSR_BF16, B, S, HQ, DV);
  d.partial_o = tsr_layout_dense(TSR_F32, B, S, HQ, DV);
  d.partial_lse = tsr_layout_dense(TSR_F32, B, HQ, S, 1);
  d.lse = d.partial_lse;
  d.sink = tsr_layout_dense(TSR_F32, HQ, 1, 1, 1);
  return d;
}

#define M32(member, value) PATCH_32(tsr_merge_desc, member, value)
#define M64(member, value) PATCH_64(tsr_merge_desc, member, value)
#define MABSENT(member) PATCH_ABSENT(tsr_merge_desc, member)

static void merge_rules_are_enforced(void **state) {
  static const struct {
    desc_patch patch;
    tsr_status status;
    const char *field;
  } rows[] = {
      {M64(size, 0), TSR_INVALID, "size"},
      {M32(memory, -1), TSR_INVALID, "memory"},
      {M32(reserved, 1), TSR_INVALID, "reserved"},
      {M64(num_partials, 0), TSR_INVALID, "num_partials"},
      {M64(num_partials, TSR_MAX_PARTIALS + 1), TSR_INVALID, "num_partials"},
      {MABSENT(o), TSR_INVALID, "o"},
      {MABSENT(partial_o), TSR_INVALID, "partial_o"},
      {MABSENT(partial_lse), TSR_INVALID, "partial_lse"},
      {M32(o.dtype, TSR_I8), TSR_INVALID, "o.dtype"},
      {M32(o.dtype, TSR_F8E4M3FNUZ), TSR_UNSUPPORTED, "o.dtype"},
      {M64(o.shape[3], 0), TSR_INVALID, "o.shape[3]"},
      {M64(o.shape[2], 0), TSR_INVALID, "o.shape[2]"},
      {M64(o.stride[1], 5), TSR_INVALID, "o.stride[1]"},
      {M32(partial_o.dtype, TSR_F16), TSR_INVALID, "partial_o.dtype"},
      {M64(partial_o.shape[1], 1), TSR_INVALID, "partial_o.shape[1]"},
      {M64(partial_o.stride[1], -1), TSR_INVALID, "partial_o.stride[1]"},
      {M32(partial_lse.dtype, TSR_F16), TSR_INVALID, "partial_lse.dtype"},
      {M64(partial_lse.shape[1], 2), TSR_INVALID, "partial_lse.shape[1]"},
      {M64(lse.shape[2], 2), TSR_INVALID, "lse.shape[2]"},
      {M64(lse.stride[1], 0), TSR_INVALID, "lse.stride[1]"},
      {M64(sink.shape[0], 1), TSR_INVALID, "sink.shape[0]"},
      {M32(sink.dtype, TSR_F16), TSR_INVALID, "sink.dtype"},
  };
  tsr_merge_desc d = merge_desc();
  tsr__merge_problem p;
  tsr_error err;
  (void)state;
  assert_int_equal(tsr__merge_init(&d, &p, &err), TSR_OK);
  assert_int_equal(p.desc.lse.stride[3], 0);
  assert_int_equal(p.desc.o.align_bytes, 2);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    d = merge_desc();
    desc_patch_apply(&d, &rows[i].patch);
    assert_int_equal(tsr__merge_init(&d, &p, &err), rows[i].status);
    assert_string_equal(err.field, rows[i].field);
    assert_true(err.text[0] != 0);
  }
  d = merge_desc();
  d.o = tsr_layout_dense(TSR_F32, 1, 1, 1, 577);
  assert_int_equal(tsr__merge_init(&d, &p, &err), TSR_UNSUPPORTED);
}

static void merge_runs_are_checked(void **state) {
  static float data[4][B * S * HQ * DV];
  tsr_buffer o[3], lse[3];
  const tsr_merge_desc d = merge_desc();
  tsr_merge_args a = tsr_merge_args_init(), out;
  tsr__merge_problem p;
  tsr_error err;
  (void)state;
  assert_int_equal(tsr__merge_init(&d, &p, &err), TSR_OK);
  for (int n = 0; n < 3; n++) {
    o[n] = tsr_buffer_in(data[n]);
    lse[n] = tsr_buffer_in(data[n]);
  }
  a.o = a.lse = a.sink = tsr_buffer_out(data[3]);
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "partial_o");
  a.partial_o = o;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "partial_lse");
  a.partial_lse = lse;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_OK);
  o[1].ptr = NULL;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "partial_o[1]");
  o[1] = o[0];
  lse[2].offset_bytes = 2;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "partial_lse[2]");
  lse[2].offset_bytes = 4;
  a.sink.ptr = NULL;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "sink");
  a.sink = a.o;
  a.lse.ptr = NULL;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "lse");
  a.lse = a.o;
  a.queue = data;
  assert_int_equal(tsr__merge_bind(&p, &a, 1, 0, 0, 64, &out, &err), TSR_INVALID);
  assert_string_equal(err.field, "queue");
  assert_int_equal(tsr__merge_bind(&p, &a, 0, 0, 0, 64, &out, &err), TSR_OK);
  assert_int_equal(tsr__merge_bind(&p, &a, 0, 0, 100, 64, &out, &err), TSR_OUT_OF_WORKSPACE);
  assert_int_equal(tsr__merge_bind(&p, NULL, 1, 0, 0, 64, &out, &err), TSR_INVALID);
}

/* ---- Hostile input ----------------------------------------------------------------------------- */

static void hostile_descriptions_never_crash(void **state) {
  static const int64_t values[] = {0, 1, -1, 2, 3, 4, 7, 8, 576, INT32_MAX, INT64_C(1) << 40, INT64_MAX, INT64_MIN};
  const size_t first = offsetof(tsr_append_desc, batch), first_merge = offsetof(tsr_merge_desc, num_partials);
  int accepted = 0;
  (void)state;
  for (int round = 0; round < 100000; round++) {
    tsr_append_desc a = append_desc((append_kind)(random_below(APPEND_COUNT)));
    tsr_merge_desc m = merge_desc();
    tsr__append_problem ap;
    tsr__merge_problem mp;
    tsr_error err;
    for (int n = 1 + random_below(3); n > 0; n--) {
      const int64_t v = values[(size_t)random_below(sizeof(values) / sizeof(values[0]))];
      const size_t bytes = random_below(3) == 0 ? 4 : 8;
      memcpy((char *)&a + first + (size_t)random_below((sizeof(a) - first) / 8) * 8, &v, bytes);
      memcpy((char *)&m + first_merge + (size_t)random_below((sizeof(m) - first_merge) / 8) * 8, &v, bytes);
    }
    accepted += tsr__append_init(&a, &ap, &err) == TSR_OK;
    assert_true((err.status == TSR_OK) == (err.text[0] == 0));
    accepted += tsr__merge_init(&m, &mp, &err) == TSR_OK;
    assert_true((err.status == TSR_OK) == (err.text[0] == 0));
  }
  print_message("%d of 200000 accepted\n", accepted);
  assert_true(accepted > 1000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(append_bases_are_accepted),       cmocka_unit_test(append_defaults),
      cmocka_unit_test(append_rules_are_enforced),       cmocka_unit_test(append_runs_are_accepted),
      cmocka_unit_test(append_values_are_checked),       cmocka_unit_test(append_arguments_are_checked),
      cmocka_unit_test(append_on_devices_reads_nothing), cmocka_unit_test(merge_rules_are_enforced),
      cmocka_unit_test(merge_runs_are_checked),          cmocka_unit_test(hostile_descriptions_never_crash),
  };
  random_seed();
  return cmocka_run_group_tests_name("cache_ops", tests, NULL, NULL);
}
