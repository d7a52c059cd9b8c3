/* SPDX-License-Identifier: Apache-2.0 */
/* Empty rows, empty sequences, masks: lines 1 to 11 (3: cache.c). */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};
static const double infinity = (double)INFINITY;

/* ---- 1 --------------------------------------------------------------------------------------- */

static void is_v(gy_problem *p, gy_run *run, void *user) {
  const int64_t last = p->desc.q.shape[1] - 1, group = p->desc.q.shape[2] / p->desc.k.shape[2];
  (void)run;
  (void)user;
  for (int64_t h = 0; h < p->desc.q.shape[2]; h++) {
    for (int64_t c = 0; c < p->desc.v.shape[3]; c++) {
      const double got = GY_GET(p, o, 0, last, h, c), want = GY_GET(p, v, 0, 0, h / group, c);
      if (got != want) {
        gy_fail("o[0,%lld,%lld,%lld] is %.9g, must be v, %.9g", (long long)last, (long long)h, (long long)c, got, want);
      }
    }
  }
}

/* A real logit far below every sentinel that a library might use for "masked". */
static void g01_finite_sentinel(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, floats[n % 3], 1, 1, 1, 32, 8, 128, 128});
    gy_say("one key, %s", tsr_dtype_name(floats[n % 3]));
    p->desc.flags |= n < 3 ? TSR_CAUSAL : TSR_WINDOW;
    GY_FILL(p, q, 64.0);
    GY_FILL(p, k, -64.0);
    gy_check_also(p, is_v, NULL);
    gy_free(p);
  }
  for (int n = 0; n < 12; n++) { /* 64 keys, all logits between -1e4 and -2.45e5; some splits see only them */
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, floats[n % 3], 1, 3, 64, 32, 8, 128, 128});
    gy_say("64 keys, %s, case %d", tsr_dtype_name(floats[n % 3]), n);
    p->desc.flags |= n % 2 ? TSR_CAUSAL : 0;
    p->desc.num_splits = n < 6 ? 0 : 5;
    GY_FILL(p, q, 64.0);
    for (int64_t j = 0; j < 64; j++) {
      const double c = -13.9 - 324.0 * (double)j / 63.0;
      for (int64_t i = 0; i < 8 * 128; i++) {
        GY_PUT(p, k, 0, j, i / 128, i % 128, c);
      }
    }
    gy_check_free(p);
  }
  for (int n = 0; n < 3; n++) { /* every row but one keeps its only key, and its gradient */
    gy_problem *p = gy_dense((gy_dims){TSR_BACKWARD, floats[n], 1, 4, 9, 4, 2, 128, 128});
    gy_say("gradients, %s", tsr_dtype_name(floats[n]));
    p->desc.flags |= TSR_CAUSAL | TSR_TOP_LEFT;
    GY_FILL(p, q, 64.0);
    GY_FILL(p, k, -64.0);
    GY_DROP(p, dq); /* all keys are the same: it is 0, but for rounding */
    gy_check_free(p);
  }
}

/* ---- 2 --------------------------------------------------------------------------------------- */

static void g02_rows_before_the_first_key(void **state) {
  static const struct {
    int64_t sq, sk, page;
  } shapes[] = {{34, 1, 1}, {34, 1, 16}, {34, 5, 1}, {130, 2, 4}, {65, 64, 1}, {90, 20, 4}, {3, 0, 1}};
  (void)state;
  for (size_t n = 0; n < sizeof(shapes) / sizeof(shapes[0]); n++) {
    for (int with_sink = 0; with_sink < 2; with_sink++) {
      const tsr_dtype dtype = floats[n % 3];
      const int64_t len[1] = {shapes[n].sk};
      gy_dims dims = {TSR_FORWARD, dtype, 1, shapes[n].sq, shapes[n].sk, 32, 8, 128, 128};
      gy_problem *p = gy_paged(dims, (gy_pages){shapes[n].page, TSR_DTYPE_NONE, (int)n % 2}, len);
      gy_say("paged, Sq %lld Sk %lld page %lld sink %d", (long long)shapes[n].sq, (long long)shapes[n].sk,
             (long long)shapes[n].page, with_sink);
      p->desc.flags |= TSR_CAUSAL;
      p->exact_zero = 1;
      if (with_sink) {
        GY_IN(p, sink, tsr_layout_dense(TSR_F32, 32, 1, 1, 1));
      }
      gy_check_free(p);
      p = gy_dense(dims);
      gy_say("dense, Sq %lld Sk %lld sink %d", (long long)shapes[n].sq, (long long)shapes[n].sk, with_sink);
      p->desc.flags |= TSR_CAUSAL;
      p->exact_zero = 1;
      gy_check_also(p, shapes[n].sk == 1 ? is_v : NULL, NULL); /* the last row is v */
      gy_free(p);
    }
    gy_problem *p = gy_dense((gy_dims){TSR_BACKWARD, floats[n % 3], 1, shapes[n].sq, shapes[n].sk, 8, 2, 64, 64});
    gy_say("backward, Sq %lld Sk %lld", (long long)shapes[n].sq, (long long)shapes[n].sk);
    p->desc.flags |= TSR_CAUSAL;
    if (shapes[n].sk > 0 && shapes[n].sk < 10) {
      GY_DROP(p, dq);
      GY_DROP(p, dk);
    }
    gy_check_free(p);
  }
}

/* ---- 4 --------------------------------------------------------------------------------------- */

static void g04_lowest_finite_bias_is_no_mask(void **state) {
  static const double lowest[] = {-0x1.fffffep127, -65504.0, -0x1.fep127};
  (void)state;
  for (int n = 0; n < 18; n++) {
    const tsr_dtype dtype = floats[n % 3], bias = floats[n / 3 % 3];
    const int backward = n >= 9;
    gy_problem *p = gy_dense((gy_dims){backward ? TSR_BACKWARD : TSR_FORWARD, dtype, 2, 48, 75, 4, 2, 40, 40});
    const double low = lowest[n / 3 % 3];
    gy_say("%s, bias %s, %s", tsr_dtype_name(dtype), tsr_dtype_name(bias), backward ? "backward" : "forward");
    GY_IN(p, bias, tsr_layout_dense(bias, 2, 4, 48, 75));
    for (int64_t e = 0; e < 2 * 4 * 48 * 75; e++) {
      const int64_t b = e / (4 * 48 * 75), h = e / (48 * 75) % 4, i = e / 75 % 48, j = e % 75;
      const double rows[5] = {
          low,                      /* uniform */
          -infinity,                /* empty */
          j % 3 ? -infinity : low,  /* uniform over a third */
          j == 74 ? 0.0 : low,      /* one key wins */
          j < 64 ? -infinity : low, /* a whole tile of masks first */
      };
      if (i % 8 < 5) { /* other rows: any bias */
        GY_PUT(p, bias, b, h, i, j, rows[i % 8]);
      }
    }
    p->exact_zero = !backward;
    if (n % 2) {
      GY_IN(p, sink, tsr_layout_dense(TSR_F32, 4, 1, 1, 1));
    }
    if (backward) {
      GY_OUT(p, dbias, tsr_layout_dense(bias, 2, 4, 48, 75));
    }
    gy_check_free(p);
  }
}

/* ---- 5 --------------------------------------------------------------------------------------- */

/* Random 128 x 64 blocks hidden, the whole first tile, and rows that see nothing. */
static int hidden(const unsigned char *blocks, int64_t i, int64_t j) {
  return blocks[i / 128 * 32 + j / 64] || (i < 64 && j < 128) || (i >= 200 && i < 217) || i == 0;
}

static void g05_blocks_of_masks(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    const int backward = n >= 4;
    const int64_t sq = n < 2 ? 1024 : 400, sk = n < 2 ? 1024 : 520;
    gy_problem *p = gy_dense((gy_dims){backward ? TSR_BACKWARD : TSR_FORWARD, floats[n % 3], 1, sq, sk, 1, 1, 64, 64});
    unsigned char blocks[8 * 32];
    gy_say("case %d, %lld x %lld", n, (long long)sq, (long long)sk);
    for (size_t b = 0; b < sizeof(blocks); b++) {
      blocks[b] = (unsigned char)conf_chance(&p->rng, 0.5);
    }
    if (n % 3 == 0) {
      GY_IN(p, bias, tsr_layout_dense(floats[(n + 1) % 3], 1, 1, sq, sk));
    } else {
      GY_IN(p, mask, n % 3 == 1 ? tsr_layout_dense(TSR_U8, 1, 1, sq, sk) : tsr_layout_dense(TSR_BIT, 1, 1, sq, sk));
    }
    if (n % 3 == 2) {
      p->desc.mask.stride[2] = p->desc.mask.stride[1] = p->desc.mask.stride[0] = (sk + 7) / 8;
    }
    for (int64_t i = 0; i < sq; i++) {
      for (int64_t j = 0; j < sk; j++) {
        if (n % 3 != 0) {
          GY_PUT(p, mask, 0, 0, i, j, !hidden(blocks, i, j));
        } else if (hidden(blocks, i, j)) {
          GY_PUT(p, bias, 0, 0, i, j, -infinity);
        }
      }
    }
    p->exact_zero = !backward;
    gy_check_free(p);
  }
}

/* ---- 6 --------------------------------------------------------------------------------------- */

static void g06_no_mask_is_full_attention(void **state) {
  static const int64_t sizes[] = {1, 2, 16, 64, 127, 200};
  (void)state;
  for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
    for (int op = 0; op < (sizes[n] < 16 ? 1 : 2); op++) {
      gy_problem *p = gy_dense((gy_dims){op, floats[n % 3], 2, sizes[n], sizes[n], 4, 2, 48, 48});
      gy_say("S %lld op %d", (long long)sizes[n], op);
      gy_check_free(p);
    }
  }
  for (int which = 0; which < 2; which++) { /* a mask that was announced has to come */
    gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, TSR_F32, 1, 8, 8, 1, 1, 16, 16});
    gy_say("announced, not given");
    if (which) {
      GY_GIVE(p, mask, tsr_layout_dense(TSR_U8, 1, 1, 8, 8), NULL);
    } else {
      GY_GIVE(p, bias, tsr_layout_dense(TSR_F32, 1, 1, 8, 8), NULL);
    }
    gy_refused(p, TSR_INVALID, which ? "mask" : "bias");
    gy_free(p);
  }
}

/* ---- 7 --------------------------------------------------------------------------------------- */

static void g07_nothing_to_do(void **state) {
  static const struct {
    int64_t b, sq, sk;
  } dense[] = {{2, 5, 0}, {0, 5, 7}, {2, 0, 7}, {2, 0, 0}, {0, 0, 0}, {3, 200, 0}};
  static const int64_t zeros[3] = {0, 0, 0}, some[3] = {4, 0, 9};
  (void)state;
  for (int n = 0; n < 24; n++) {
    const int op = n % 2, with_sink = n / 2 % 2;
    gy_problem *p =
        gy_dense((gy_dims){op, floats[n % 3], dense[n / 4].b, dense[n / 4].sq, dense[n / 4].sk, 4, 2, 32, 24});
    gy_say("dense B %lld Sq %lld Sk %lld op %d sink %d", (long long)dense[n / 4].b, (long long)dense[n / 4].sq,
           (long long)dense[n / 4].sk, op, with_sink);
    p->exact_zero = 1;
    p->desc.flags |= n / 4 % 2 ? TSR_CAUSAL : 0;
    if (with_sink) {
      GY_IN(p, sink, tsr_layout_dense(TSR_F32, 4, 1, 1, 1));
      if (op == TSR_BACKWARD) {
        GY_OUT(p, dsink, p->desc.sink);
      }
    }
    gy_check_free(p);
  }
  for (int n = 0; n < 16; n++) {
    const int op = n % 2;
    gy_problem *p = gy_packed((gy_dims){op, floats[n % 3], 3, 0, 0, 4, 2, 32, 32}, n & 2 ? zeros : some,
                              n & 4 ? zeros : some, n & 8 ? 2 : 0);
    gy_say("packed, case %d", n);
    p->exact_zero = 1;
    gy_check_free(p);
  }
}

/* ---- 8 --------------------------------------------------------------------------------------- */

static void g08_gradients_of_keys_without_queries(void **state) {
  static const int64_t q_lens[4][4] = {{0, 5, 27, 0}, {70, 0, 0, 3}, {0, 0, 0, 40}, {9, 130, 0, 30}};
  static const int64_t kv_lens[4][4] = {{7, 0, 33, 130}, {70, 64, 1, 0}, {3, 65, 0, 29}, {0, 40, 129, 25}};
  (void)state;
  for (int n = 0; n < 12; n++) {
    gy_problem *p = gy_packed((gy_dims){TSR_BACKWARD, floats[n % 3], 4, 0, 0, 4, n % 2 ? 2 : 4, n < 6 ? 64 : 40, 64},
                              q_lens[n / 3], kv_lens[n / 3], 0);
    gy_say("packed, case %d", n);
    p->desc.flags |= n % 2 ? TSR_CAUSAL : 0;
    p->exact_zero = n % 2 == 0; /* causal rows with a single key give gradients that cancel */
    gy_check_free(p);
    p = gy_dense((gy_dims){TSR_BACKWARD, floats[n % 3], 4, 130, 130, 2, 2, 64, 64});
    gy_say("dense with lengths, case %d", n);
    GY_INTS(p, seqlens_q, n % 2 ? TSR_I64 : TSR_I32, q_lens[n / 3], 4);
    GY_INTS(p, seqlens_k, n % 2 ? TSR_I64 : TSR_I32, kv_lens[n / 3], 4);
    p->exact_zero = 1;
    gy_check_free(p);
  }
}

/* ---- 9 --------------------------------------------------------------------------------------- */

static void zero_dk(gy_problem *p, gy_run *run, void *user) {
  const int64_t keys = *(const int64_t *)user;
  (void)run;
  for (int64_t e = 0; e < keys * p->desc.k.shape[3]; e++) {
    const int64_t j = e / p->desc.k.shape[3], c = e % p->desc.k.shape[3];
    if (GY_GET(p, dk, 0, j, 0, c) != 0.0 || GY_GET(p, dv, 0, j, 0, c) != 0.0) {
      gy_fail("gradients of key %lld are not 0", (long long)j);
    }
  }
}

/* The reported lengths. The quick run bounds what a row sees: the launch, the offsets and the sequences without queries
 * are the same, and the oracle checks every value. */
static void g09_long_sequences_without_queries(void **state) {
  static const int64_t q_lens[4] = {0, 1208, 840, 0}, kv_lens[4] = {2538, 1742, 840, 3072};
  int64_t without = 2538;
  gy_problem *p = gy_packed((gy_dims){TSR_BACKWARD, TSR_BF16, 4, 0, 0, 4, 1, 256, 256}, q_lens, kv_lens, 0);
  (void)state;
  gy_say("as reported");
  if (!gy_full()) {
    p->desc.flags |= TSR_WINDOW;
    p->desc.window_left = 20;
    p->desc.window_right = 3;
  }
  gy_check_also(p, zero_dk, &without);
  gy_free(p);
}

/* ---- 10 -------------------------------------------------------------------------------------- */

static void g10_rows_beyond_the_last_sequence(void **state) {
  static const int64_t lens[3] = {500, 44, 400}, kv_lens[3] = {130, 200, 614};
  (void)state;
  for (int n = 0; n < 8; n++) {
    gy_problem *p = gy_packed((gy_dims){n % 2, floats[n % 3], 3, 0, 0, 2, 1, 32, 32}, lens, kv_lens, 2);
    gy_say("946 rows of which 944 are used, case %d", n);
    p->desc.flags |= TSR_WINDOW | (n & 2 ? TSR_CAUSAL : 0);
    p->desc.window_left = 50;
    p->args.total_q = n & 4 ? 944 : 0;
    p->args.total_k = n & 4 ? 944 : 0;
    gy_check_free(p);
  }
}

/* ---- 11 -------------------------------------------------------------------------------------- */

static void g11_request_without_pages(void **state) {
  static const int64_t lens[4][3] = {{0, 133, 0}, {133, 0, 1}, {0, 0, 0}, {17, 0, 0}};
  (void)state;
  for (int n = 0; n < 16; n++) {
    const int64_t batch = n % 4 == 0 ? 2 : 3;
    gy_problem *p = gy_paged((gy_dims){TSR_FORWARD, floats[n % 3], batch, n < 8 ? 1 : 4, 0, 8, 2, 64, 64},
                             (gy_pages){16, TSR_DTYPE_NONE, n / 4 % 2}, lens[n % 4]);
    gy_say("pages of 16, case %d", n); /* case 4: indptr is 0, 0, 9 */
    p->exact_zero = 1;
    gy_check_free(p);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g01_finite_sentinel),
      GY_TEST(g02_rows_before_the_first_key),
      GY_TEST(g04_lowest_finite_bias_is_no_mask),
      GY_TEST(g05_blocks_of_masks),
      GY_TEST(g06_no_mask_is_full_attention),
      GY_TEST(g07_nothing_to_do),
      GY_TEST(g08_gradients_of_keys_without_queries),
      GY_TEST(g09_long_sequences_without_queries),
      GY_TEST(g10_rows_beyond_the_last_sequence),
      GY_TEST(g11_request_without_pages),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
