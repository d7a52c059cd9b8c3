/* SPDX-License-Identifier: Apache-2.0 */
/* Poison and bounds: lines 12 to 15. Every input of the kit already lies against a page that may not be touched; here
 * both ends are tried, and what lies inside the tensors but outside the lengths is poisoned. */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};
static const tsr_dtype codes[] = {TSR_F8E4M3, TSR_F8E5M2, TSR_I8, TSR_U4};

/* A scale a token and head for k and v, a NaN wherever there is no key of a sequence. */
static void add_token_scales(gy_problem *p, const int64_t *lens) {
  const tsr_layout scale = tsr_layout_dense(TSR_F32, p->desc.k.shape[0], p->desc.k.shape[1], p->desc.k.shape[2], 1);
  GY_IN(p, k_scale, scale);
  GY_IN(p, v_scale, scale);
  GY_FILL(p, k_scale, (double)NAN);
  GY_FILL(p, v_scale, (double)NAN);
  for (int64_t b = 0; b < p->desc.q.shape[0]; b++) {
    for (int64_t j = 0; j < lens[b]; j++) {
      const int paged = p->desc.block_table.dtype != TSR_DTYPE_NONE || p->desc.kv_indptr.dtype != TSR_DTYPE_NONE;
      const int64_t slot = paged ? gy_page_of(p, b, j) : b, row = paged ? j % p->desc.k.shape[1] : j;
      for (int64_t h = 0; h < p->desc.k.shape[2]; h++) {
        GY_PUT(p, k_scale, slot, row, h, 0, conf_uniform(&p->rng, 0.005, 0.02));
        GY_PUT(p, v_scale, slot, row, h, 0, conf_uniform(&p->rng, 0.005, 0.02));
      }
    }
  }
}

/* ---- 12 -------------------------------------------------------------------------------------- */

static const int64_t tail_lens[4] = {17, 33, 75, 197};

static void g12_tail_of_the_last_page(void **state) {
  (void)state;
  for (int n = 0; n < 28; n++) {
    const int64_t page = n % 2 ? 16 : 32;
    const tsr_dtype q = floats[n / 2 % 3];
    const tsr_dtype kv = n < 12 ? q : codes[n / 2 % 4];
    gy_problem *p = gy_paged((gy_dims){TSR_FORWARD, q, 4, n % 3 ? 1 : 5, 0, 8, 2, 64, 64},
                             (gy_pages){page, kv, n / 4 % 2}, tail_lens);
    gy_say("page %lld, q %s, kv %s", (long long)page, tsr_dtype_name(q), tsr_dtype_name(kv));
    if (kv != q) {
      add_token_scales(p, tail_lens);
    }
    p->desc.flags |= n % 5 == 0 ? TSR_CAUSAL : 0;
    gy_check_free(p);
  }
}

/* The same without pages, and backward: rows beyond a length hold a NaN, those of dout, q, o and lse too. */
static void g12_tail_of_padded_keys(void **state) {
  static const int64_t q_lens[4] = {17, 21, 40, 33};
  (void)state;
  for (int n = 0; n < 14; n++) {
    const int backward = n >= 8;
    const tsr_dtype q = floats[n % 3], kv = n >= 4 && n < 8 ? codes[n % 4] : q;
    const int64_t hkv = n % 2 ? 2 : 4;
    gy_problem *p = gy_dense((gy_dims){backward ? TSR_BACKWARD : TSR_FORWARD, q, 4, 44, 200, 4, hkv, 40, 48});
    gy_say("%s, q %s, kv %s", backward ? "backward" : "forward", tsr_dtype_name(q), tsr_dtype_name(kv));
    if (kv != q) {
      GY_IN(p, k, tsr_layout_dense(kv, 4, 200, hkv, 40));
      GY_IN(p, v, tsr_layout_dense(kv, 4, 200, hkv, 48));
      add_token_scales(p, tail_lens);
    }
    GY_INTS(p, seqlens_q, TSR_I32, q_lens, 4);
    GY_INTS(p, seqlens_k, TSR_I32, tail_lens, 4);
    for (int64_t b = 0; b < 4; b++) {
      for (int64_t e = 0; e < 200 * hkv * 40 && kv == q; e++) {
        const int64_t j = e / (hkv * 40), h = e / 40 % hkv, c = e % 40;
        if (j >= tail_lens[b]) {
          GY_PUT(p, k, b, j, h, c, (double)NAN);
          GY_PUT(p, v, b, j, h, c, (double)NAN);
        }
      }
      for (int64_t e = 0; e < 44 * 4 * 40; e++) {
        const int64_t i = e / 160, h = e / 40 % 4, c = e % 40;
        if (i >= q_lens[b]) {
          GY_PUT(p, q, b, i, h, c, (double)NAN);
          if (backward) {
            GY_PUT(p, dout, b, i, h, c, (double)NAN);
            GY_PUT(p, o, b, i, h, c, (double)NAN);
            GY_PUT(p, lse, b, h, i, 0, (double)NAN);
          }
        }
      }
    }
    p->desc.flags |= n % 2 ? TSR_CAUSAL : 0;
    gy_check_free(p);
  }
}

enum { HIDE_MASK, HIDE_BITS, HIDE_BIAS, HIDE_SEGMENTS, HIDE_FLASH, HIDE_BLOCKS, HIDE_EXPRESSION, HIDE_WAYS };

/* Is key j hidden from all rows? Keys in the middle of tiles, and a run longer than a tile. */
static int is_hidden(int way, int64_t j) {
  return way == HIDE_BLOCKS ? j / 4 % 3 == 1 : j % 7 == 3 || (j >= 80 && j < 190);
}

static void hide_keys(gy_problem *p, int way) {
  const int64_t sq = p->desc.q.shape[1], sk = p->desc.k.shape[1];
  int64_t blocks = 0;
  if (way == HIDE_MASK) {
    GY_IN(p, mask, tsr_layout_dense(TSR_U8, 1, 1, 1, sk));
  } else if (way == HIDE_BITS) {
    GY_IN(p, mask, tsr_layout_dense(TSR_BIT, 1, 1, 1, sk));
  } else if (way == HIDE_BIAS) {
    GY_IN(p, bias, tsr_layout_dense(p->desc.q.dtype, 1, 1, sq, sk));
  } else if (way == HIDE_SEGMENTS) {
    GY_IN(p, segments_q, tsr_layout_dense(TSR_I32, 1, sq, 1, 1));
    GY_IN(p, segments_k, tsr_layout_dense(TSR_I32, 1, sk, 1, 1));
  } else if (way == HIDE_FLASH) {
    GY_IN(p, flashmask, tsr_layout_dense(TSR_I32, 1, 1, sk, 1));
  } else if (way == HIDE_BLOCKS) {
    p->desc.block_rows = (int32_t)sq;
    p->desc.block_cols = 4;
    GY_IN(p, block_indptr, tsr_layout_dense(TSR_I32, 1, 1, 2, 1));
    GY_IN(p, block_indices, tsr_layout_dense(TSR_I32, 1, 1, sk / 4, 1));
  } else {
    p->desc.mask_expr = "!(j % 7 == 3 || (j >= 80 && j < 190))";
  }
  for (int64_t j = 0; j < sk; j++) {
    const int hidden = is_hidden(way, j);
    if (way == HIDE_MASK || way == HIDE_BITS) {
      GY_PUT(p, mask, 0, 0, 0, j, !hidden);
    } else if (way == HIDE_SEGMENTS) {
      GY_PUT(p, segments_k, 0, j, 0, 0, hidden ? -1 : 0);
    } else if (way == HIDE_FLASH) {
      GY_PUT(p, flashmask, 0, 0, j, 0, hidden ? 0 : (double)sq);
    } else if (way == HIDE_BLOCKS && j % 4 == 0 && !hidden) {
      GY_PUT(p, block_indices, 0, 0, blocks++, 0, (double)(j / 4));
    }
    for (int64_t i = 0; way == HIDE_BIAS && hidden && i < sq; i++) {
      GY_PUT(p, bias, 0, 0, i, j, -(double)INFINITY);
    }
  }
  if (way == HIDE_BLOCKS) {
    GY_PUT(p, block_indptr, 0, 0, 1, 0, (double)blocks);
  }
}

/* Keys that every mask hides from all rows hold what is not finite; a value that only the last rows see reaches only
 * them. */
static void g12_hidden_keys(void **state) {
  static const double bad[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
  (void)state;
  for (int n = 0; n < 4 * HIDE_WAYS; n++) {
    const int way = n % HIDE_WAYS, op = n / HIDE_WAYS % 2;
    gy_problem *p = gy_dense((gy_dims){op, floats[n % 3], 1, 33, 200, 2, 1, 40, 48});
    gy_say("way %d, op %d, %s", way, op, tsr_dtype_name(floats[n % 3]));
    p->desc.flags |= n < 2 * HIDE_WAYS || way == HIDE_FLASH ? TSR_CAUSAL : 0;
    hide_keys(p, way);
    for (int64_t j = 0; j < 200; j++) {
      for (int64_t c = 0; is_hidden(way, j) && c < 48; c++) {
        GY_PUT(p, k, 0, j, 0, c % 40, bad[(j + n) % 3]);
        GY_PUT(p, v, 0, j, 0, c, bad[(j + n + c) % 3]);
      }
    }
    if (op == TSR_FORWARD && (p->desc.flags & TSR_CAUSAL) && !is_hidden(way, 199)) {
      GY_PUT(p, v, 0, 199, 0, 5, bad[n % 3]);
      GY_PUT(p, k, 0, 198, 0, 7, is_hidden(way, 198) ? bad[0] : 1.0);
    }
    gy_check_free(p);
  }
}

/* ---- 13 -------------------------------------------------------------------------------------- */

/* Seqlens_k as a device sees them: clamped. */
static tsr_run_args with_lengths(gy_problem *p, const int64_t *lens, int64_t n) {
  tsr_layout layout;
  tsr_run_args args = p->args;
  gy_ints(p, &layout, &args.seqlens_k, p->desc.seqlens_k.dtype, lens, n);
  return args;
}

/* A page id out of range masks its keys: [from[b], 64) of sequence b here. */
static tsr_attention_desc with_hidden_keys(gy_problem *p, const int64_t *from, tsr_run_args *args) {
  tsr_attention_desc desc = p->desc;
  gy_in(p, &desc.mask, &args->mask, tsr_layout_dense(TSR_U8, 2, 1, 1, 64));
  for (int64_t e = 0; e < 2 * 64; e++) {
    gy_put(&desc.mask, &args->mask, e / 64, 0, 0, e % 64, e % 64 < from[e / 64]);
  }
  return desc;
}

static void g13_lengths_beyond_the_table(void **state) {
  static const int64_t full[2] = {64, 33}, none[2] = {0, 33}, hidden[2] = {48, 32};
  (void)state;
  for (int n = 0; n < 4; n++) { /* exactly what the table covers, then one more */
    gy_problem *p =
        gy_paged((gy_dims){TSR_FORWARD, floats[n % 3], 2, 3, 0, 4, 2, 32, 32}, (gy_pages){16, TSR_DTYPE_NONE, 0}, full);
    tsr_attention_desc desc;
    tsr_run_args args;
    tsr_layout unused;
    gy_say("a table of 4 columns of 16");
    gy_check(p);
    args = with_lengths(p, n == 3 ? none : full, 2);
    GY_PUT(p, seqlens_k, 0, 0, 0, 0, n == 0 ? 65 : n == 1 ? 80 : n == 2 ? 1e9 : -1);
    gy_refused_numbers(p, "seqlens_k", &p->desc, &args);
    GY_PUT(p, seqlens_k, 0, 0, 0, 0, 64);
    args = p->args;
    gy_in(p, &unused, &args.block_table, p->desc.block_table); /* the numbers that are right */
    memcpy(args.block_table.ptr, p->args.block_table.ptr, (size_t)gy_span_bytes(&unused));
    desc = with_hidden_keys(p, hidden, &args);
    GY_PUT(p, block_table, 1, 2, 0, 0, n % 2 ? -1 : 8); /* 8 pages: 0 .. 7 */
    GY_PUT(p, block_table, 0, 3, 0, 0, n % 2 ? -5 : 1 << 30);
    gy_refused_numbers(p, "block_table", &desc, &args);
    gy_free(p);
  }
  for (int n = 0; n < 3; n++) { /* CSR: the lists end where they say */
    gy_problem *p =
        gy_paged((gy_dims){TSR_FORWARD, floats[n], 2, 3, 0, 4, 2, 32, 32}, (gy_pages){16, TSR_DTYPE_NONE, 1}, full);
    tsr_attention_desc desc = p->desc;
    tsr_run_args args = p->args;
    const int64_t starts[3] = {0, 4, 7}, last[2] = {16, 16}, from[2] = {64, 32};
    tsr_layout unused;
    gy_say("CSR, wrong list %d", n);
    gy_check(p);
    if (n == 0) {
      gy_ints(p, &unused, &args.kv_indptr, TSR_I32, starts, 3);
      GY_PUT(p, kv_indptr, 2, 0, 0, 0, 8);
    } else if (n == 1) {
      gy_ints(p, &unused, &args.last_page_len, TSR_I32, last, 2);
      GY_PUT(p, last_page_len, 1, 0, 0, 0, 17);
    } else {
      gy_in(p, &unused, &args.kv_indices, p->desc.kv_indices);
      memcpy(args.kv_indices.ptr, p->args.kv_indices.ptr, (size_t)gy_span_bytes(&unused));
      desc = with_hidden_keys(p, from, &args);
      GY_PUT(p, kv_indices, 6, 0, 0, 0, 8);
    }
    gy_refused_numbers(p, n == 0 ? "kv_indptr" : n == 1 ? "last_page_len" : "kv_indices", &desc, &args);
    gy_free(p);
  }
  for (int n = 0; n < 2; n++) { /* the same kind without pages */
    static const int64_t all[2] = {30, 30};
    gy_problem *p = gy_dense((gy_dims){n, TSR_F32, 2, 20, 30, 2, 2, 32, 32});
    tsr_run_args args;
    gy_say("dense, op %d", n);
    GY_IN(p, seqlens_k, tsr_layout_dense(TSR_I64, 2, 1, 1, 1));
    GY_FILL(p, seqlens_k, 30);
    gy_check(p);
    args = with_lengths(p, all, 2);
    GY_PUT(p, seqlens_k, 1, 0, 0, 0, 31);
    gy_refused_numbers(p, "seqlens_k", &p->desc, &args);
    gy_free(p);
  }
}

/* Fences at the other end too: tables, K and V of every code, scales, masks, biases, aux tensors, at the start and at
 * the end of their mapping. */
static void add_everything(gy_problem *p, int n, const int64_t *kv_lens) {
  const int64_t b = p->desc.q.shape[0], sq = p->desc.q.shape[1], hq = p->desc.q.shape[2], sk = kv_lens[0];
  p->front = n % 2;
  GY_IN(p, sink, tsr_layout_dense(TSR_F32, hq, 1, 1, 1));
  GY_IN(p, alibi_slopes, tsr_layout_dense(TSR_F32, n % 4 < 2 ? b : 1, hq, 1, 1));
  gy_randomise(p, &p->desc.alibi_slopes, &p->args.alibi_slopes, 0.05);
  GY_IN(p, bias, tsr_layout_dense(floats[n % 3], n % 4 < 2 ? b : 1, n % 3 ? hq : 1, sq, sk));
  GY_IN(p, mask, tsr_layout_dense(n % 3 ? TSR_U8 : TSR_BIT, b, hq, sq, sk));
  if (n % 3 == 0) {
    const int64_t row = (sk + 7) / 8;
    p->desc.mask.stride[2] = row;
    p->desc.mask.stride[1] = row * sq;
    p->desc.mask.stride[0] = row * sq * hq;
    GY_FILL(p, mask, 1);
    for (int64_t i = 0; i < sq; i++) {
      GY_PUT(p, mask, 0, 0, i, i % sk, 0);
    }
  }
  GY_IN(p, flashmask, tsr_layout_dense(TSR_I32, b, 1, sk, 1));
  GY_FILL(p, flashmask, (double)sq);
  GY_PUT(p, flashmask, 0, 0, 0, 0, 2);
  p->desc.flags |= TSR_CAUSAL;
  GY_IN(p, aux[0], tsr_layout_dense(TSR_F32, sq, sk, 1, 1));
  p->desc.num_aux = 1;
  p->desc.score_expr = "score + aux0[i, j]";
}

static void g13_memory_ends_where_it_ends(void **state) {
  static const int64_t lens[3] = {67, 16, 1}, q_lens[3] = {19, 13, 28}, kv_lens[3] = {67, 33, 20};
  (void)state;
  for (int n = 0; n < 12; n++) { /* paged and quantised */
    const tsr_dtype q = floats[n % 3], kv = n < 4 ? q : codes[n % 4];
    gy_problem *p =
        gy_paged((gy_dims){TSR_FORWARD, q, 3, 19, 0, 6, 2, n % 2 ? 64 : 36, 36}, (gy_pages){16, kv, n / 2 % 2}, lens);
    gy_say("paged, kv %s, case %d", tsr_dtype_name(kv), n);
    if (kv != q) {
      add_token_scales(p, lens);
    }
    add_everything(p, n, lens);
    gy_check_free(p);
  }
  for (int n = 0; n < 12; n++) { /* dense and packed, both directions */
    gy_dims dims = {n % 2, floats[n % 3], 3, 19, 67, 6, 2, n % 4 < 2 ? 64 : 37, 37};
    gy_problem *p = n < 6 ? gy_dense(dims) : gy_packed(dims, q_lens, kv_lens, 0);
    gy_say("%s, op %d, case %d", n < 6 ? "dense" : "packed", n % 2, n);
    if (n < 6) {
      add_everything(p, n, lens);
    } else {
      p->desc.flags |= TSR_CAUSAL;
    }
    gy_check_free(p);
  }
}

/* ---- 14 -------------------------------------------------------------------------------------- */

static void g14_one_length_for_all(void **state) {
  static const int64_t lens[3] = {75, 75, 75};
  (void)state;
  for (int n = 0; n < 6; n++) {
    gy_problem *p = gy_paged((gy_dims){TSR_FORWARD, floats[n % 3], 3, n < 3 ? 1 : 6, 0, 4, 2, 64, 64},
                             (gy_pages){16, TSR_DTYPE_NONE, 0}, lens);
    gy_say("case %d", n);
    GY_IN(p, seqlens_k, tsr_layout_dense(n % 2 ? TSR_I64 : TSR_I32, 1, 1, 1, 1)); /* 4 or 8 bytes against a fence */
    GY_FILL(p, seqlens_k, 75);
    p->desc.seqlens_k.shape[0] = 3;
    p->desc.seqlens_k.stride[0] = 0;
    gy_check_free(p);
  }
  for (int op = 0; op < 2; op++) {
    gy_problem *p = gy_dense((gy_dims){op, TSR_F32, 3, 40, 100, 4, 2, 32, 32});
    gy_say("dense, op %d", op);
    GY_IN(p, seqlens_k, tsr_layout_dense(TSR_I32, 1, 1, 1, 1));
    GY_FILL(p, seqlens_k, 75);
    p->desc.seqlens_k.shape[0] = 3;
    p->desc.seqlens_k.stride[0] = 0;
    gy_check_free(p);
  }
}

/* ---- 15 -------------------------------------------------------------------------------------- */

/* Groups that fill no power of two, chunks that end inside a tile: per-head and per-key inputs end at a fence. */
static void g15_lanes_past_the_chunk(void **state) {
  static const int64_t groups[] = {5, 7, 3, 1, 71, 6};
  (void)state;
  for (int n = 0; n < 24; n++) {
    const int64_t group = groups[n % 6], hkv = n % 2 ? 2 : 1, sk = n % 4 < 2 ? 77 : 130, sq = n % 3 ? 1 : 3;
    const int64_t lens[2] = {sk, sk - 20};
    gy_dims dims = {TSR_FORWARD, floats[n % 3], 2, sq, sk, group * hkv, hkv, 64, 64};
    gy_problem *p;
    gy_say("group %lld of %lld, Sk %lld, case %d", (long long)group, (long long)hkv, (long long)sk, n);
    p = n % 3 == 1 ? gy_paged(dims, (gy_pages){16, TSR_DTYPE_NONE, 0}, lens) : gy_dense(dims);
    p->front = n / 12;
    p->desc.num_splits = n % 5;
    GY_IN(p, sink, tsr_layout_dense(TSR_F32, group * hkv, 1, 1, 1));
    GY_IN(p, alibi_slopes, tsr_layout_dense(TSR_F32, 1, group * hkv, 1, 1));
    gy_randomise(p, &p->desc.alibi_slopes, &p->args.alibi_slopes, 0.05);
    GY_IN(p, bias, tsr_layout_dense(floats[n % 3], n % 2 ? 2 : 1, group * hkv, n % 4 ? sq : 1, sk));
    GY_IN(p, mask, tsr_layout_dense(TSR_U8, 1, n % 2 ? group * hkv : 1, 1, sk));
    GY_IN(p, segments_q, tsr_layout_dense(TSR_I32, 2, sq, 1, 1));
    GY_IN(p, segments_k, tsr_layout_dense(TSR_I32, 2, sk, 1, 1));
    GY_OUT(p, max_s, tsr_layout_dense(TSR_F32, group * hkv, 1, 1, 1));
    gy_check_free(p);
  }
  for (int n = 0; n < 6; n++) {
    const int64_t heads = groups[n] * 2;
    gy_problem *p = gy_dense((gy_dims){TSR_BACKWARD, floats[n % 3], 1, 33, 45, heads, 2, 32, 32});
    gy_say("backward, group %lld", (long long)groups[n]);
    p->front = n % 2;
    GY_IN(p, sink, tsr_layout_dense(TSR_F32, heads, 1, 1, 1));
    GY_IN(p, bias, tsr_layout_dense(floats[n % 3], 1, heads, 1, 45));
    GY_OUT(p, dbias, p->desc.bias);
    GY_OUT(p, dsink, p->desc.sink);
    GY_ADD(p, v, 1.0); /* so that the terms of dsink do not cancel */
    GY_ADD(p, dout, 1.0);
    gy_check_free(p);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g12_tail_of_the_last_page),    GY_TEST(g12_tail_of_padded_keys),       GY_TEST(g12_hidden_keys),
      GY_TEST(g13_lengths_beyond_the_table), GY_TEST(g13_memory_ends_where_it_ends), GY_TEST(g14_one_length_for_all),
      GY_TEST(g15_lanes_past_the_chunk),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
