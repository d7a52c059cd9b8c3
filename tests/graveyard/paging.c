/* SPDX-License-Identifier: Apache-2.0 */
/* Paging: lines 16 to 18. */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};

/* ---- 16 -------------------------------------------------------------------------------------- */

/* The same problem without pages: keys gathered into [B, longest], lengths in seqlens_k. */
static gy_problem *gathered(const gy_problem *p, const int64_t *lens) {
  const int64_t b = p->desc.q.shape[0], hkv = p->desc.k.shape[2], longest = p->desc.max_seqlen_k;
  gy_problem *g = gy_new();
  g->desc.flags = p->desc.flags;
  GY_GIVE(g, q, p->desc.q, p->args.q.ptr);
  GY_GIVE(g, o, p->desc.o, p->args.o.ptr);
  GY_GIVE(g, lse, p->desc.lse, p->args.lse.ptr);
  GY_INTS(g, seqlens_k, TSR_I32, lens, b);
  GY_IN(g, k, tsr_layout_dense(p->desc.k.dtype, b, longest, hkv, p->desc.k.shape[3]));
  GY_IN(g, v, tsr_layout_dense(p->desc.v.dtype, b, longest, hkv, p->desc.v.shape[3]));
  for (int64_t n = 0; n < b; n++) {
    for (int64_t j = 0; j < lens[n]; j++) {
      const int64_t page = gy_page_of(p, n, j), row = j % p->desc.k.shape[1];
      for (int64_t e = 0; e < hkv * TSR_MAX_HEAD_DIM; e++) {
        const int64_t h = e / TSR_MAX_HEAD_DIM, c = e % TSR_MAX_HEAD_DIM;
        if (c < p->desc.k.shape[3]) {
          GY_PUT(g, k, n, j, h, c, GY_GET(p, k, page, row, h, c));
        }
        if (c < p->desc.v.shape[3]) {
          GY_PUT(g, v, n, j, h, c, GY_GET(p, v, page, row, h, c));
        }
      }
    }
  }
  return g;
}

/* Against the oracle of the gathered problem; pages shuffled by the kit. */
static void check_gathered(gy_problem *p, const int64_t *lens) {
  gy_problem *g = gathered(p, lens);
  p->oracle_desc = &g->desc;
  p->oracle_args = &g->args;
  gy_check(p);
  gy_free(p);
  gy_free(g);
}

static void g16_page_sizes(void **state) {
  static const struct {
    int64_t page, d, dv, hq, hkv;
  } shapes[] = {{1, 192, 128, 4, 2},  {16, 192, 128, 4, 4}, {64, 192, 128, 2, 1},  {256, 192, 128, 2, 2},
                {16, 256, 256, 2, 1}, {32, 256, 256, 4, 2}, {512, 128, 128, 2, 1}, {1024, 64, 64, 2, 2},
                {3, 128, 128, 2, 1},  {17, 40, 72, 4, 2},   {300, 576, 512, 4, 1}, {5, 80, 80, 10, 2}};
  static const int64_t lens[3] = {301, 64, 257};
  (void)state;
  for (int n = 0; n < 24; n++) {
    const int64_t sq = n < 12 ? 1 : 9;
    gy_dims dims = {TSR_FORWARD,      floats[n % 3],    3, sq, 0, shapes[n % 12].hq, shapes[n % 12].hkv,
                    shapes[n % 12].d, shapes[n % 12].dv};
    gy_problem *p = gy_paged(dims, (gy_pages){shapes[n % 12].page, TSR_DTYPE_NONE, n / 3 % 2}, lens);
    gy_say("page %lld, (%lld,%lld), Sq %lld", (long long)shapes[n % 12].page, (long long)dims.d, (long long)dims.dv,
           (long long)sq);
    p->desc.flags |= n % 2 ? TSR_CAUSAL : 0;
    check_gathered(p, lens);
  }
}

/* K and V of their own strides: pages of [Hkv, page, D], and K, V interleaved in one tensor. */
static void g16_page_layouts(void **state) {
  static const int64_t lens[2] = {100, 37};
  (void)state;
  for (int n = 0; n < 6; n++) {
    const tsr_dtype dtype = floats[n % 3];
    gy_dims dims = {TSR_FORWARD, dtype, 2, n < 3 ? 1 : 7, 0, 4, 2, 64, 64};
    gy_problem *p = gy_paged(dims, (gy_pages){16, TSR_DTYPE_NONE, 0}, lens);
    const int64_t pages = p->desc.k.shape[0];
    tsr_layout l = tsr_layout_dense(dtype, pages, 16, 2, 64);
    gy_say("case %d", n);
    if (n % 2) { /* [page, h, t, d] */
      l = tsr_layout_bhsd(dtype, pages, 2, 16, 64);
      GY_IN(p, k, l);
    } else { /* [page, t, k or v, h, d] */
      tsr_layout both = tsr_layout_dense(dtype, pages, 16, 4, 64);
      gy_in(p, &both, &p->args.k, both);
      l.stride[1] = both.stride[1];
      l.stride[0] = both.stride[0];
      p->desc.k = p->desc.v = l;
      p->args.v = p->args.k;
      p->args.v.offset_bytes = 2 * 64 * tsr_dtype_bits(dtype) / 8;
    }
    p->desc.flags |= TSR_CAUSAL;
    check_gathered(p, lens);
  }
}

/* With batch_invariant a row's bits do not depend on the size of the pages. */
static void g16_page_sizes_give_the_same_bits(void **state) {
  static const int64_t lens[2] = {130, 257}, sizes[] = {16, 1, 64, 256};
  gy_problem *p[4];
  int count;
  const gy_target *t = gy_targets(&count);
  (void)state;
  for (int n = 0; n < 4; n++) {
    gy_dims dims = {TSR_FORWARD, TSR_BF16, 2, 3, 0, 4, 2, 192, 128};
    p[n] = gy_paged(dims, (gy_pages){sizes[n], TSR_DTYPE_NONE, 0}, lens);
    p[n]->desc.flags |= TSR_CAUSAL | TSR_BATCH_INVARIANT;
    for (int64_t e = 0; n > 0 && e < 2 * 257 * 2 * 192; e++) { /* the numbers of the first */
      const int64_t b = e / (257 * 384), j = e / 384 % 257, h = e / 192 % 2, c = e % 192;
      if (j < lens[b]) {
        const int64_t from = gy_page_of(p[0], b, j), to = gy_page_of(p[n], b, j);
        GY_PUT(p[n], k, to, j % sizes[n], h, c, GY_GET(p[0], k, from, j % sizes[0], h, c));
        if (c < 128) {
          GY_PUT(p[n], v, to, j % sizes[n], h, c, GY_GET(p[0], v, from, j % sizes[0], h, c));
        }
      }
    }
    for (int64_t e = 0; n > 0 && e < 2 * 3 * 4 * 192; e++) {
      GY_PUT(p[n], q, e / 2304, e / 768 % 3, e / 192 % 4, e % 192,
             GY_GET(p[0], q, e / 2304, e / 768 % 3, e / 192 % 4, e % 192));
    }
  }
  for (int d = 0; d < count; d++) {
    const char *variant;
    for (int32_t v = 0; (variant = tsr_device_variant(t[d].device, TSR_OP_FORWARD, v)) != NULL; v++) {
      unsigned char *first = NULL;
      for (int n = 0; n < 4; n++) {
        gy_run run;
        size_t bytes;
        unsigned char *bits;
        gy_say("page %lld", (long long)sizes[n]);
        if (!gy_plan(p[n], &t[d], variant, &run)) {
          continue;
        }
        gy_go(p[n], &run);
        bits = gy_snapshot(p[n], &bytes);
        if (first != NULL && memcmp(first, bits, bytes) != 0) {
          gy_fail("other bits than with pages of %lld", (long long)sizes[0]);
        }
        gy_compare(p[n], &run);
        gy_unplan(&run);
        if (first == NULL) {
          first = bits;
        } else {
          free(bits);
        }
      }
      free(first);
    }
  }
  for (int n = 0; n < 4; n++) {
    gy_free(p[n]);
  }
}

/* ---- 17 -------------------------------------------------------------------------------------- */

static void g17_later_requests_of_a_long_decode(void **state) {
  static const int64_t lens[3] = {700, 26011, 33};
  (void)state;
  for (int n = 0; n < (gy_full() ? 3 : 1); n++) {
    const tsr_dtype dtype = floats[(n + 2) % 3];
    gy_problem *p =
        gy_paged((gy_dims){TSR_FORWARD, dtype, 3, 5, 0, 8, 1, 512, 512}, (gy_pages){16, TSR_DTYPE_NONE, 0}, lens);
    gy_say("D 512, 26011 keys, %s", tsr_dtype_name(dtype));
    p->desc.flags |= TSR_CAUSAL;
    gy_check_free(p);
  }
}

/* Several rows in decode are causal among themselves iff asked for. */
static void g17_rows_of_a_decode_see_their_past(void **state) {
  static const int64_t lens[4] = {64, 7, 129, 260};
  (void)state;
  for (int n = 0; n < 24; n++) {
    const int64_t sq = 2 + n % 6;
    gy_problem *p = gy_paged((gy_dims){TSR_FORWARD, floats[n % 3], 4, sq, 0, 8, n % 2 ? 1 : 8, 64, 64},
                             (gy_pages){16, TSR_DTYPE_NONE, n % 2}, lens);
    gy_say("Sq %lld, flags %d, splits %d", (long long)sq, n / 6, n % 4);
    p->desc.flags |= n / 6 == 0   ? 0
                     : n / 6 == 1 ? TSR_CAUSAL
                     : n / 6 == 2 ? TSR_CAUSAL | TSR_WINDOW
                                  : TSR_CAUSAL | TSR_TOP_LEFT;
    p->desc.window_left = n / 6 == 2 ? 30 : 0;
    p->desc.num_splits = n % 4;
    gy_check_free(p);
  }
}

/* ---- 18 -------------------------------------------------------------------------------------- */

/* Pages far apart: only those that the table names take memory. */
static int far_pages(tsr_dtype dtype, int64_t pages, int64_t page_stride, const int64_t *ids, int64_t n) {
  const int64_t len = n * 16 - 5;
  gy_problem *p = gy_new();
  tsr_layout l = tsr_layout_dense(dtype, pages, 16, 2, 64);
  void *k, *v;
  l.stride[0] = page_stride;
  k = gy_sparse(p, gy_span_bytes(&l));
  v = gy_sparse(p, gy_span_bytes(&l));
  if (k == NULL || v == NULL) {
    gy_free(p);
    return 0;
  }
  GY_IN(p, q, tsr_layout_dense(dtype == TSR_F8E4M3 ? TSR_BF16 : dtype, 1, 3, 4, 64));
  GY_OUT(p, o, p->desc.q);
  GY_OUT(p, lse, tsr_layout_dense(TSR_F32, 1, 4, 3, 1));
  GY_GIVE(p, k, l, k);
  GY_GIVE(p, v, l, v);
  GY_IN(p, block_table, tsr_layout_dense(TSR_I32, 1, n, 1, 1));
  GY_INTS(p, seqlens_k, TSR_I64, &len, 1);
  p->desc.flags |= TSR_CAUSAL;
  for (int64_t m = 0; m < n; m++) {
    GY_PUT(p, block_table, 0, m, 0, 0, (double)ids[m]);
    for (int64_t e = 0; e < 16 * 2 * 64; e++) {
      GY_PUT(p, k, ids[m], e / 128, e / 64 % 2, e % 64, conf_normal(&p->rng));
      GY_PUT(p, v, ids[m], e / 128, e / 64 % 2, e % 64, conf_normal(&p->rng));
    }
  }
  gy_check_free(p);
  return 1;
}

static void g18_far_pages(void **state) {
  static const int64_t million[] = {999999, 0, 524288, 999998, 262143, 262144}, dozen[] = {11, 0, 1, 10};
  static const tsr_dtype dtypes[] = {TSR_F8E4M3, TSR_F16, TSR_BF16, TSR_F32};
  int done = 0;
  (void)state;
  for (int n = 0; n < 4; n++) {
    gy_say("a million pages, %s", tsr_dtype_name(dtypes[n]));
    done += far_pages(dtypes[n], 1000000, 16 * 2 * 64 + 16 * (n % 2), million, 6); /* index x stride above 2^31 */
    gy_say("pages 2^31 apart, %s", tsr_dtype_name(dtypes[n]));
    done += far_pages(dtypes[n], 12, INT64_C(0x80000000) + 192, dozen, 4);
  }
  if (done == 0) {
    print_message("no address space for sparse memory\n");
    skip();
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g16_page_sizes),
      GY_TEST(g16_page_layouts),
      GY_TEST(g16_page_sizes_give_the_same_bits),
      GY_TEST(g17_later_requests_of_a_long_decode),
      GY_TEST(g17_rows_of_a_decode_see_their_past),
      GY_TEST(g18_far_pages),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
