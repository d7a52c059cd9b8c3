/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions of attention: what is accepted and what it becomes, every rule with an input that breaks it, growth of
 * structs, hostile input, failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/validate.h"
#include "problem_bases.h"
#include "random.h"

/* ---- Accepted -------------------------------------------------------------------------------- */

static void accept(const tsr_attention_desc *d, tsr__problem *p) {
  tsr_error err;
  const tsr_status st = tsr__problem_init(NULL, d, p, &err);
  if (st != TSR_OK) {
    print_message("refused: %s: %s\n", err.field, err.text);
  }
  assert_int_equal(st, TSR_OK);
  assert_int_equal(err.status, TSR_OK);
  assert_int_equal(err.text[0], 0);
}

static void bases_are_accepted(void **state) {
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    const tsr_attention_desc d = base_desc((base_kind)kind);
    tsr__problem p;
    accept(&d, &p);
    assert_int_equal(p.batch, BASE_B);
    assert_int_equal(p.desc.batch, BASE_B);
    assert_int_equal(p.seqlen_q, BASE_SQ);
    assert_int_equal(p.desc.max_seqlen_q, BASE_SQ);
    assert_int_equal(p.seqlen_k, BASE_SK);
    assert_int_equal(p.desc.max_seqlen_k, BASE_SK);
    assert_int_equal(p.heads_q, BASE_HQ);
    assert_int_equal(p.group * p.heads_kv, BASE_HQ);
    assert_int_equal(p.head_dim, BASE_D);
    assert_int_equal(p.head_dim_v, BASE_DV);
    assert_null(p.desc.score_expr);
    assert_null(p.desc.scalar_names);
    tsr__problem_free(&p);
  }
}

static void features_follow(void **state) {
  static const struct {
    base_kind kind;
    uint32_t features;
  } rows[] = {
      {BASE_DENSE, 0},
      {BASE_PACKED, TSR_A_Q_PACKED | TSR_A_K_PACKED},
      {BASE_USED, TSR_A_Q_PACKED | TSR_A_K_PACKED | TSR_A_SEQLENS_Q | TSR_A_SEQLENS_K | TSR_A_LEN64},
      {BASE_TABLE, TSR_A_PAGED_TABLE | TSR_A_SEQLENS_K},
      {BASE_CSR, TSR_A_Q_PACKED | TSR_A_PAGED_CSR},
      {BASE_MASKS, TSR_A_CAUSAL | TSR_A_WINDOW | TSR_A_CHUNK | TSR_A_PREFIX | TSR_A_MASK_U8 | TSR_A_SEGMENTS |
                       TSR_A_FLASHMASK | TSR_A_BLOCKS | TSR_A_BIAS | TSR_A_ALIBI | TSR_A_SINK | TSR_A_SOFTCAP |
                       TSR_A_DROPOUT | TSR_A_RNG_STATE | TSR_A_SEQLENS_Q | TSR_A_SEQLENS_K | TSR_A_LEN64},
      {BASE_BITROWS, TSR_A_Q_PACKED | TSR_A_K_PACKED | TSR_A_MASK_BIT | TSR_A_MASK_ROWS},
      {BASE_QUANT, TSR_A_PAGED_TABLE | TSR_A_SEQLENS_K | TSR_A_QUANT},
      {BASE_FP8, TSR_A_QUANT},
      {BASE_MLA, TSR_A_QUANT},
      {BASE_BACKWARD, TSR_A_BIAS | TSR_A_SINK},
      {BASE_EXPR, TSR_A_SCORE_EXPR | TSR_A_MASK_EXPR},
  };
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const tsr_attention_desc d = base_desc(rows[i].kind);
    tsr__problem p;
    accept(&d, &p);
    assert_int_equal(p.features, rows[i].features);
    assert_int_equal(p.len_dtype, (rows[i].features & TSR_A_LEN64) != 0 ? TSR_I64 : TSR_I32);
    tsr__problem_free(&p);
  }
}

static void pages_and_totals(void **state) {
  tsr_attention_desc d = base_desc(BASE_TABLE);
  tsr__problem p;
  (void)state;
  d.max_seqlen_k = 0;
  accept(&d, &p);
  assert_int_equal(p.page_size, BASE_PAGE);
  assert_int_equal(p.max_pages, 3);
  assert_int_equal(p.num_pages, 8);
  assert_int_equal(p.seqlen_k, 9);
  assert_int_equal(p.total_k, 0);
  d.block_table.shape[1] = d.block_table.stride[0] = 1 << 30;
  accept(&d, &p);
  assert_int_equal(p.seqlen_k, INT32_MAX); /* more pages than one sequence can use */
  d = base_desc(BASE_CSR);
  d.max_seqlen_k = 0;
  d.batch = 0;
  d.max_seqlen_q = 0;
  accept(&d, &p);
  assert_int_equal(p.batch, BASE_B);
  assert_int_equal(p.seqlen_k, 18);
  assert_int_equal(p.seqlen_q, 9);
  assert_int_equal(p.total_q, 9);
  assert_int_equal(p.max_pages, 6);
  d = base_desc(BASE_PACKED);
  d.max_seqlen_q = 100; /* longer than this plan's tokens */
  accept(&d, &p);
  assert_int_equal(p.seqlen_q, 100);
  assert_int_equal(p.total_k, 12);
}

static void groups_of_channels(void **state) {
  tsr_attention_desc d = base_desc(BASE_QUANT);
  tsr__problem p;
  (void)state;
  accept(&d, &p);
  assert_int_equal(p.k_group, BASE_D / 4); /* scale of 1 group, zero of 4 */
  assert_int_equal(p.v_group, BASE_DV / 3);
  d = base_desc(BASE_MLA);
  d.v.stride[1] = -77; /* v's strides are ignored */
  accept(&d, &p);
  assert_int_equal(p.k_group, 4);
  assert_int_equal(p.v_group, 4);
  assert_true(tsr__problem_has(&p, TSR_SLOT_v_scale));
  assert_false(tsr__problem_has(&p, TSR_SLOT_v_zero));
  assert_memory_equal(&p.desc.v_scale, &p.desc.k_scale, sizeof(tsr_layout));
  assert_memory_equal(p.desc.v.stride, p.desc.k.stride, sizeof(p.desc.v.stride));
  d = base_desc(BASE_FP8);
  memset(&d.v_scale, 0, sizeof(d.v_scale)); /* fp8 without a scale is the value itself */
  accept(&d, &p);
  assert_int_equal(p.k_group, BASE_D);
  assert_int_equal(p.v_group, 0);
}

static void layouts_are_resolved(void **state) {
  tsr_attention_desc d = base_desc(BASE_DENSE);
  tsr__problem p;
  (void)state;
  d.lse.stride[3] = -12345; /* ignored: the axis has one element */
  d.k.align_bytes = 1;
  d.q.align_bytes = 16;
  accept(&d, &p);
  assert_int_equal(p.desc.lse.stride[3], 0);
  assert_int_equal(p.desc.k.align_bytes, 4);
  assert_int_equal(p.desc.v.align_bytes, 4);
  assert_int_equal(p.desc.q.align_bytes, 16);
  assert_int_equal(p.desc.q.stride[1], BASE_HQ * BASE_D);
}

static void expressions_are_made(void **state) {
  tsr_attention_desc d = base_desc(BASE_EXPR);
  tsr__problem p;
  (void)state;
  accept(&d, &p);
  assert_non_null(p.score_expr);
  assert_non_null(p.mask_expr);
  assert_null(p.score_grad);
  tsr__problem_free(&p);
  base_backward(&d);
  accept(&d, &p);
  assert_non_null(p.score_grad);
  tsr__problem_free(&p);
  assert_null(p.score_expr);
  d.aux[0] = tsr_layout_dense(TSR_F32, 3, 1, 1, 1); /* rank 1, but the text has two indices */
  tsr_error err;
  assert_int_equal(tsr__problem_init(NULL, &d, &p, &err), TSR_INVALID);
  assert_string_equal(err.field, "score_expr");
}

/* Shapes that look odd and are valid. */
static void odd_shapes_are_accepted(void **state) {
  tsr__problem p;
  tsr_attention_desc d = base_desc(BASE_DENSE);
  (void)state;
  memset(&d.lse, 0, sizeof(d.lse));
  memset(&d.max_s, 0, sizeof(d.max_s));
  accept(&d, &p);
  d.k.shape[1] = d.v.shape[1] = 0; /* Sk = 0 */
  accept(&d, &p);
  d.q.shape[0] = d.k.shape[0] = d.v.shape[0] = d.o.shape[0] = 0; /* B = 0 */
  accept(&d, &p);
  assert_int_equal(p.batch, 0);
  d = base_desc(BASE_DENSE);
  d.k.stride[0] = d.k.stride[2] = d.q.stride[3] = 0; /* broadcast inputs */
  accept(&d, &p);
  d = base_desc(BASE_DENSE); /* many heads, many sequences, one row each */
  d.q = tsr_layout_dense(TSR_BF16, 70000, 1, 65536, 64);
  d.k = d.v = tsr_layout_dense(TSR_BF16, 70000, 1, 65536, 64);
  d.o = d.q;
  memset(&d.lse, 0, sizeof(d.lse));
  memset(&d.max_s, 0, sizeof(d.max_s));
  accept(&d, &p);
  d.q = d.o = tsr_layout_dense(TSR_F16, 1, INT64_C(1) << 22, 71, 64);
  d.k = d.v = tsr_layout_dense(TSR_F16, 1, INT64_C(1) << 22, 1, 64);
  accept(&d, &p);
  assert_int_equal(p.group, 71);
  d = base_desc(BASE_TABLE); /* a page stride above 2^31 bytes, ids near 2^20 */
  d.k.shape[0] = d.v.shape[0] = 1 << 20;
  d.k.stride[0] = INT64_C(1) << 31;
  d.seqlens_k.stride[0] = 0; /* one length for all */
  accept(&d, &p);
  d = base_desc(BASE_PACKED); /* no sequences at all */
  d.cu_seqlens_q.shape[0] = d.cu_seqlens_k.shape[0] = 1;
  d.batch = 0;
  d.q.shape[1] = d.o.shape[1] = d.lse.shape[2] = d.k.shape[1] = d.v.shape[1] = 0;
  accept(&d, &p);
  assert_int_equal(p.batch, 0);
  d = base_desc(BASE_DENSE); /* q, k, v of one interleaved buffer */
  d.k.shape[2] = d.v.shape[2] = BASE_HQ;
  d.v.shape[3] = d.o.shape[3] = BASE_D;
  d.o.stride[2] = BASE_D;
  d.o.stride[1] = BASE_HQ * BASE_D;
  d.o.stride[0] = BASE_SQ * BASE_HQ * BASE_D;
  d.q.stride[2] = d.k.stride[2] = d.v.stride[2] = 3 * BASE_D;
  accept(&d, &p);
  d = base_desc(BASE_DENSE);
  d.o = tsr_layout_bhsd(TSR_F32, BASE_B, BASE_HQ, BASE_SQ, BASE_DV);
  accept(&d, &p);
}

static void oracle_needs_no_outputs(void **state) {
  tsr_attention_desc d = base_desc(BASE_DENSE);
  tsr__problem p;
  tsr_error err;
  (void)state;
  memset(&d.o, 0, sizeof(d.o));
  assert_int_equal(tsr__problem_init(NULL, &d, &p, &err), TSR_INVALID);
  assert_string_equal(err.field, "o");
  assert_int_equal(tsr__problem_init_inputs(NULL, &d, &p, &err), TSR_OK);
  d = base_desc(BASE_BACKWARD);
  memset(&d.dq, 0, sizeof(d.dq));
  memset(&d.dk, 0, sizeof(d.dk));
  memset(&d.dv, 0, sizeof(d.dv));
  memset(&d.dbias, 0, sizeof(d.dbias));
  memset(&d.dsink, 0, sizeof(d.dsink));
  assert_int_equal(tsr__problem_init(NULL, &d, &p, &err), TSR_INVALID);
  assert_int_equal(tsr__problem_init_inputs(NULL, &d, &p, &err), TSR_OK);
  memset(&d.lse, 0, sizeof(d.lse));
  assert_int_equal(tsr__problem_init_inputs(NULL, &d, &p, &err), TSR_INVALID);
  assert_string_equal(err.field, "lse");
  memset(&d.o, 0, sizeof(d.o));
  assert_int_equal(tsr__problem_init_inputs(NULL, &d, &p, &err), TSR_OK);
}

/* ---- Rules: see problem_rules.h ------------------------------------------------------------------ */

#include "problem_rules.h"

static void rules_are_enforced(void **state) {
  int failed = 0;
  (void)state;
  for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
    tsr_attention_desc d = base_desc(rules[i].base);
    tsr__problem p;
    tsr_error err;
    tsr_status st;
    for (int n = 0; n < RULE_PATCHES; n++) {
      desc_patch_apply(&d, &rules[i].patch[n]);
    }
    memset(&p, 0xa5, sizeof(p));
    st = tsr__problem_init(NULL, &d, &p, &err);
    if (st == TSR_OK) {
      tsr__problem_free(&p);
    }
    if (st != rules[i].status || err.status != st || strcmp(err.field, rules[i].field) != 0 || err.text[0] == 0) {
      print_message("rule %zu, for %s: status %d, field \"%s\", text \"%s\"\n", i, rules[i].field, (int)st, err.field,
                    err.text);
      failed++;
    }
  }
  assert_int_equal(failed, 0);
}

/* Every layout of every base must refuse each of these, whatever the tensor is for. */
static void layouts_are_checked(void **state) {
  (void)state;
  for (int kind = 0; kind < BASE_COUNT; kind++) {
    tsr__problem good;
    const tsr_attention_desc d = base_desc((base_kind)kind);
    accept(&d, &good);
    for (int s = 0; s < TSR_SLOT_COUNT; s++) {
      const int in_k = kind == BASE_MLA && (s == TSR_SLOT_v || s == TSR_SLOT_v_scale);
      if (!tsr__problem_has(&good, s) || in_k) {
        continue;
      }
      for (int what = 0; what < 8; what++) {
        tsr_attention_desc bad = d;
        tsr_layout *l = (tsr_layout *)(void *)((char *)&bad + tsr__slots[s].desc_offset);
        tsr_error err;
        tsr__problem p;
        char field[64];
        switch (what) {
        case 0: l->dtype = 77; break;
        case 1: l->reserved[1] = 1; break;
        case 2: l->shape[0] = -1; break;
        case 3: l->align_bytes = 3; break;
        case 4: l->align_bytes = 8192; break;
        case 5: l->dtype = TSR_DTYPE_NONE; break; /* forgotten: the rest is still there */
        case 6: l->align_bytes = INT32_MIN; break;
        default:
          l->shape[0] = 5;
          l->stride[0] = INT64_MAX / 4 * 2;
          break;
        }
        static const char *const part[] = {"dtype",       "reserved", "shape[0]",    "align_bytes",
                                           "align_bytes", "dtype",    "align_bytes", "stride"};
        snprintf(field, sizeof(field), "%s.%s", tsr__slots[s].name, part[what]);
        assert_int_equal(tsr__problem_init(NULL, &bad, &p, &err), TSR_INVALID);
        assert_string_equal(err.field, field);
      }
    }
    tsr__problem_free(&good);
  }
}

/* A negative stride counts wherever the axis has more than one element. */
static void strides_are_checked(void **state) {
  (void)state;
  for (int a = 0; a < 4; a++) {
    tsr_layout l = tsr_layout_dense(TSR_F32, 2, 3, 4, 5);
    tsr_error err;
    char field[32];
    l.stride[a] = -1;
    snprintf(field, sizeof(field), "x.stride[%d]", a);
    assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_INVALID);
    assert_string_equal(err.field, field);
    l.shape[a] = 1;
    assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_OK);
  }
}

/* ---- Layouts: outputs and spans ------------------------------------------------------------------ */

/* Against a count of every element's bytes. */
static void spans_and_outputs(void **state) {
  static const tsr_dtype dtypes[] = {TSR_F32, TSR_BF16, TSR_I8, TSR_I64, TSR_U4, TSR_BIT};
  int accepted = 0, refused = 0;
  (void)state;
  for (int round = 0; round < 20000; round++) {
    tsr_layout l = tsr_layout_dense(dtypes[random_below(6)], 0, 0, 0, 0);
    uint8_t count[4096];
    int64_t last = 0, twice = 0, sub = l.dtype == TSR_U4 ? 2 : 1;
    tsr_error err;
    memset(count, 0, sizeof(count));
    for (int a = 0; a < 4; a++) {
      l.shape[a] = 1 + random_below(4);
      l.stride[a] = random_below(3) == 0 ? random_below(30) : (int64_t[]){24, 6, 2, 1}[a] * (1 + random_below(2));
    }
    if (tsr_dtype_bits(l.dtype) < 8) {
      l.shape[3] *= 2;
      l.stride[3] = 1;
    }
    for (int a = 0; l.dtype == TSR_U4 && a < 3; a++) {
      l.stride[a] *= 2;
    }
    for (int64_t n = 0; n < l.shape[0] * l.shape[1] * l.shape[2] * l.shape[3]; n++) {
      const int64_t d = n % l.shape[3], c = n / l.shape[3] % l.shape[2];
      const int64_t b = n / l.shape[3] / l.shape[2] % l.shape[1], a = n / l.shape[3] / l.shape[2] / l.shape[1];
      const int64_t row = a * l.stride[0] + b * l.stride[1] + c * l.stride[2];
      const int64_t at = l.dtype == TSR_BIT ? (row + d / 8) * 8 + d % 8 : row + d * l.stride[3];
      twice += count[at]++ > 0;
      last = at > last ? at : last;
    }
    sub = l.dtype == TSR_BIT ? 8 : sub;
    assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_OK);
    assert_int_equal(tsr__layout_span_bytes(&l), (last / sub + 1) * tsr__element_bytes(l.dtype));
    if (l.dtype != TSR_BIT && tsr__layout_check(&l, "x", 1, &err) == TSR_OK) {
      assert_int_equal(twice, 0);
      accepted++;
    } else {
      refused++; /* the rule is stricter than "no element twice": nested strides only */
    }
  }
  assert_true(accepted > 500 && refused > 500);
  tsr_layout l = tsr_layout_dense(TSR_F32, 2, 0, INT64_MAX, INT64_MAX);
  l.stride[0] = l.stride[1] = l.stride[2] = INT64_MAX;
  assert_int_equal(tsr__layout_span_bytes(&l), 0); /* empty, whatever the rest */
}

static void sub_byte_rules(void **state) {
  tsr_layout l = tsr_layout_dense(TSR_U4, 2, 3, 2, 8);
  tsr_error err;
  (void)state;
  assert_int_equal(tsr__layout_check(&l, "x", 1, &err), TSR_OK);
  assert_int_equal(tsr__layout_span_bytes(&l), 48);
  l.shape[3] = 7;
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_INVALID);
  assert_string_equal(err.field, "x.shape[3]");
  l = tsr_layout_dense(TSR_U4, 2, 3, 2, 8);
  l.stride[3] = 2;
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_INVALID);
  assert_string_equal(err.field, "x.stride[3]");
  l = tsr_layout_dense(TSR_U4, 2, 3, 2, 8);
  l.stride[1] = 17;
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_INVALID);
  assert_string_equal(err.field, "x.stride[1]");
  l = tsr_layout_dense(TSR_BIT, 1, 1, 3, 20);
  l.stride[3] = 0;
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_INVALID);
  assert_string_equal(err.field, "x.stride[3]");
  l.stride[3] = 1;
  l.stride[2] = 3;
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_OK);
  assert_int_equal(tsr__layout_span_bytes(&l), 9);
}

static void align_promises(void **state) {
  tsr_layout l = tsr_layout_dense(TSR_F16, 2, 3, 2, 24);
  tsr_error err;
  (void)state;
  l.align_bytes = 16;
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_OK);
  l.align_bytes = 32; /* rows are 48 bytes apart */
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_INVALID);
  assert_string_equal(err.field, "x.align_bytes");
  l.stride[2] = 32;
  l.stride[1] = 64;
  l.shape[0] = 1;
  l.stride[0] = INT64_MAX; /* ignored */
  assert_int_equal(tsr__layout_check(&l, "x", 0, &err), TSR_OK);
}

/* ---- Structs --------------------------------------------------------------------------------- */

static void structs_grow(void **state) {
  struct newer {
    tsr_attention_desc desc;
    uint8_t tail[24];
  } n;
  tsr__problem p;
  tsr_error err;
  tsr_attention_desc d;
  (void)state;
  memset(&n, 0, sizeof(n));
  n.desc = base_desc(BASE_DENSE);
  n.desc.size = sizeof(n);
  assert_int_equal(tsr__problem_init(NULL, &n.desc, &p, &err), TSR_OK);
  assert_int_equal(p.desc.size, sizeof(tsr_attention_desc));
  for (size_t i = 0; i < sizeof(n.tail); i++) { /* something this version does not know */
    n.tail[i] = 1;
    assert_int_equal(tsr__problem_init(NULL, &n.desc, &p, &err), TSR_INVALID);
    assert_string_equal(err.field, "size");
    n.tail[i] = 0;
  }
  d = base_desc(BASE_DENSE);
  d.size = 0;
  assert_int_equal(tsr__problem_init(NULL, &d, &p, &err), TSR_INVALID);
  assert_string_equal(err.field, "size");
  d.size = sizeof(d) - 1;
  assert_int_equal(tsr__problem_init(NULL, &d, &p, &err), TSR_INVALID);
  d.size = (size_t)-1;
  assert_int_equal(tsr__problem_init(NULL, &d, &p, &err), TSR_INVALID);
  assert_int_equal(tsr__problem_init(NULL, NULL, &p, &err), TSR_INVALID);
  assert_int_equal(tsr__problem_init(NULL, NULL, &p, NULL), TSR_INVALID);
}

/* ---- Hostile input and failing allocations ------------------------------------------------------ */

static void hostile_descriptions_never_crash(void **state) {
  static const int64_t values[] = {0,
                                   1,
                                   -1,
                                   2,
                                   3,
                                   5,
                                   7,
                                   8,
                                   9,
                                   64,
                                   576,
                                   577,
                                   4096,
                                   65537,
                                   INT32_MAX,
                                   INT32_MIN,
                                   (int64_t)INT32_MAX + 1,
                                   INT64_C(1) << 40,
                                   INT64_MAX / 2,
                                   INT64_MAX,
                                   INT64_MIN};
  /* the pointers of the description must be what they say, so these bytes stay */
  const size_t pointers = offsetof(tsr_attention_desc, score_expr), after = offsetof(tsr_attention_desc, num_scalars);
  int accepted = 0;
  (void)state;
  for (int round = 0; round < 200000; round++) {
    tsr_attention_desc d = base_desc((base_kind)(random_below(BASE_COUNT)));
    tsr__problem p;
    tsr_error err;
    tsr_status st;
    for (int n = 1 + random_below(4); n > 0; n--) {
      const size_t at = sizeof(size_t) + (size_t)random_below((sizeof(d) - sizeof(size_t)) / 4) * 4;
      const int64_t v = values[(size_t)random_below(sizeof(values) / sizeof(values[0]))];
      const size_t bytes = at % 8 == 0 && at + 8 <= sizeof(d) && random_below(4) != 0 ? 8 : 4;
      const int in_variant = at + bytes > offsetof(tsr_attention_desc, variant) &&
                             at < offsetof(tsr_attention_desc, variant) + sizeof(char *);
      if (at + bytes <= sizeof(d) && !in_variant && (at + bytes <= pointers || at >= after)) {
        memcpy((char *)&d + at, &v, bytes);
      }
    }
    if (d.num_scalars > 2 && d.scalar_names != NULL) {
      d.num_scalars = 2;
    }
    st = tsr__problem_init(NULL, &d, &p, &err);
    assert_true(st == TSR_OK || st == TSR_INVALID || st == TSR_UNSUPPORTED);
    assert_int_equal(st, err.status);
    assert_true((st == TSR_OK) == (err.text[0] == 0));
    if (st == TSR_OK) {
      accepted++;
      tsr__problem_free(&p);
    }
  }
  print_message("%d of 200000 accepted\n", accepted);
  assert_true(accepted > 1000);
}

typedef struct counting {
  int left, live;
} counting;

static void *counting_alloc(void *user, size_t bytes) {
  counting *c = (counting *)user;
  void *ptr;
  if (c->left-- <= 0) {
    return NULL;
  }
  ptr = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
  c->live += ptr != NULL;
  return ptr;
}

static void counting_free(void *user, void *ptr) {
  ((counting *)user)->live--;
  free(ptr);
}

static void every_allocation_may_fail(void **state) {
  tsr_attention_desc d = base_desc(BASE_EXPR);
  int n;
  (void)state;
  base_backward(&d);
  for (n = 0; n < 1000; n++) {
    counting c = {n, 0};
    const tsr__alloc alloc = {counting_alloc, counting_free, &c};
    tsr__problem p;
    tsr_error err;
    const tsr_status st = tsr__problem_init(&alloc, &d, &p, &err);
    if (st == TSR_OK) {
      assert_true(c.live > 0);
      tsr__problem_free(&p);
      assert_int_equal(c.live, 0);
      break;
    }
    assert_int_equal(st, TSR_OUT_OF_MEMORY);
    assert_int_equal(c.live, 0);
  }
  assert_true(n >= 3 && n < 1000); /* two trees and a derivative at least */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bases_are_accepted),
      cmocka_unit_test(features_follow),
      cmocka_unit_test(pages_and_totals),
      cmocka_unit_test(groups_of_channels),
      cmocka_unit_test(layouts_are_resolved),
      cmocka_unit_test(expressions_are_made),
      cmocka_unit_test(odd_shapes_are_accepted),
      cmocka_unit_test(oracle_needs_no_outputs),
      cmocka_unit_test(rules_are_enforced),
      cmocka_unit_test(layouts_are_checked),
      cmocka_unit_test(strides_are_checked),
      cmocka_unit_test(spans_and_outputs),
      cmocka_unit_test(sub_byte_rules),
      cmocka_unit_test(align_promises),
      cmocka_unit_test(structs_grow),
      cmocka_unit_test(hostile_descriptions_never_crash),
      cmocka_unit_test(every_allocation_may_fail),
  };
  random_seed();
  return cmocka_run_group_tests_name("problem", tests, NULL, NULL);
}
