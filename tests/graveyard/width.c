/* SPDX-License-Identifier: Apache-2.0 */
/* Index width and launch limits: lines 23 to 25. Large extents with little memory: tiny head dimensions, rows that
 * overlap, address space that is never touched. */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};

static void no_address_space(void) {
  print_message("no address space for sparse memory\n");
  skip();
}

/* ---- 23 -------------------------------------------------------------------------------------- */

/* With so many small groups the numbers must be well conditioned: no sum here cancels. */
static void fill_positive(gy_problem *p) {
  const tsr_layout *const l[] = {&p->desc.q, &p->desc.k, &p->desc.v, &p->desc.dout};
  const tsr_buffer *const b[] = {&p->args.q, &p->args.k, &p->args.v, &p->args.dout};
  for (int n = 0; n < (p->desc.op == TSR_BACKWARD ? 4 : 3); n++) {
    for (int64_t e = 0; e < l[n]->shape[0] * l[n]->shape[1] * l[n]->shape[2] * l[n]->shape[3]; e++) {
      const int64_t c = e % l[n]->shape[3], h = e / l[n]->shape[3] % l[n]->shape[2];
      const int64_t row = e / (l[n]->shape[3] * l[n]->shape[2]), s = row % l[n]->shape[1];
      const double sign =
          p->desc.op == TSR_BACKWARD && (n == 1 || n == 2) && s == 1 ? -1.0 : 1.0; /* k1 = -k0, v1 = -v0 */
      const double x = sign < 0 ? -gy_get(l[n], b[n], row / l[n]->shape[1], 0, h, c)
                                : conf_uniform(&p->rng, 0.5, 1.5) * (n == 0 ? 0.1 : 1.0);
      gy_put(l[n], b[n], row / l[n]->shape[1], s, h, c, x);
    }
  }
}

static void g23_more_sequences_than_16_bits(void **state) {
  static const int64_t batches[] = {65536, 70000};
  (void)state;
  for (int n = 0; n < 4; n++) {
    gy_problem *p = gy_dense((gy_dims){n / 2, floats[n % 3], batches[n % 2], 1, 1 + n / 2, 2, 1, 4, 4});
    gy_say("batch %lld, op %d", (long long)batches[n % 2], n / 2);
    fill_positive(p);
    gy_check_free(p);
  }
}

static void g23_more_heads_than_16_bits(void **state) {
  static const int64_t kv_heads[] = {65536, 1, 8192};
  (void)state;
  for (int n = 0; n < 5; n++) {
    gy_problem *p =
        gy_dense((gy_dims){n / 3, floats[n % 3], 1, n < 3 ? 2 : 1, n < 3 ? 5 : 2, 65536, kv_heads[n % 3], 4, 4});
    gy_say("65536 heads on %lld, op %d", (long long)kv_heads[n % 3], n / 3);
    fill_positive(p);
    gy_check_free(p);
  }
}

static void largest_tile(gy_problem *p, gy_run *run, void *user) {
  int64_t *tile = user;
  (void)p;
  tile[0] = run->info.tile_q > tile[0] ? run->info.tile_q : tile[0];
  tile[1] = run->info.tile_k > tile[1] ? run->info.tile_k : tile[1];
}

static void g23_more_tiles_than_16_bits(void **state) {
  int64_t tile[2] = {1, 1};
  gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, TSR_F32, 1, 1000, 2, 1, 1, 1, 1});
  (void)state;
  gy_each(p, largest_tile, tile);
  gy_free(p);
  p = gy_dense((gy_dims){TSR_FORWARD, TSR_F32, 1, 70000 * tile[0], 2, 1, 1, 1, 1});
  gy_say("70000 query tiles of %lld", (long long)tile[0]);
  gy_check_free(p);
  p = gy_dense((gy_dims){TSR_FORWARD, TSR_F32, 1, 2, 70000 * tile[1], 1, 1, 1, 1});
  fill_positive(p); /* a mean of millions of numbers that is not 0 */
  gy_say("70000 key tiles of %lld", (long long)tile[1]);
  gy_check_free(p);
}

/* ---- 24 -------------------------------------------------------------------------------------- */

/* Row j of a tensor with stride 1 between rows is the numbers j .. j + D - 1: all rows differ, the memory is small. */
static tsr_layout overlapping(tsr_dtype dtype, int64_t rows, int64_t d) {
  tsr_layout l = tsr_layout_dense(dtype, 1, rows, 1, d);
  l.stride[1] = 1;
  return l;
}

static void g24_four_million_keys(void **state) {
  const int64_t keys = INT64_C(1) << 22;
  const int64_t rows = gy_full() ? 16 : 2;
  (void)state;
  gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, TSR_BF16, 1, rows, 1, 1, 1, 128, 128});
  const tsr_layout l = overlapping(TSR_BF16, keys, 128),
                   numbers = tsr_layout_dense(TSR_BF16, gy_span_bytes(&l) / 2, 1, 1, 1);
  tsr_layout unused;
  gy_say("2^22 keys, causal");
  gy_in(p, &unused, &p->args.k, numbers);
  gy_in(p, &unused, &p->args.v, numbers);
  p->desc.k = p->desc.v = l;
  p->desc.flags |= TSR_CAUSAL;
  gy_check_free(p);
}

/* Rows see 16 keys each around the diagonal of a square bias. The oracle sees the same as 258 sequences of 256 rows and
 * 271 keys, which are views of the same memory. */
enum { BAND = 15, CHUNK = 256, CHUNKS = 258, SQUARE = CHUNK * CHUNKS };

static tsr_layout chunks(tsr_dtype dtype, int64_t rows, int64_t d) {
  tsr_layout l = tsr_layout_dense(dtype, CHUNKS, rows, 1, d);
  l.stride[0] = CHUNK * d;
  return l;
}

static void square_bias(tsr_dtype dtype, int64_t row_stride) {
  const int64_t sq = SQUARE, sk = SQUARE + BAND;
  gy_problem *p = gy_dense((gy_dims){TSR_FORWARD, TSR_F32, 1, sq, sk, 1, 1, 8, 8});
  tsr_layout bias = tsr_layout_dense(dtype, 1, 1, sq, sk);
  tsr_attention_desc d;
  tsr_run_args a = p->args;
  bias.stride[2] = row_stride;
  if (row_stride == 0) {
    gy_in(p, &p->desc.bias, &p->args.bias, tsr_layout_dense(dtype, 1, 1, 1, sk));
    p->desc.bias = bias;
  } else {
    GY_GIVE(p, bias, bias, gy_sparse(p, gy_span_bytes(&bias)));
    if (p->args.bias.ptr == NULL) {
      gy_free(p);
      no_address_space();
    }
    for (int64_t i = 0; i < sq; i += i < sq - 70 ? 17 : 1) {
      for (int64_t j = i; j <= i + BAND; j++) {
        GY_PUT(p, bias, 0, 0, i, j, j % 5 == 2 ? -(double)INFINITY : conf_normal(&p->rng));
      }
    }
  }
  p->desc.flags |= TSR_WINDOW | TSR_CAUSAL;
  p->desc.window_left = BAND;
  d = p->desc;
  d.q = chunks(TSR_F32, CHUNK, 8);
  d.k = d.v = chunks(TSR_F32, CHUNK + BAND, 8);
  d.o = chunks(TSR_F32, CHUNK, 8);
  d.lse = tsr_layout_dense(TSR_F32, CHUNKS, 1, CHUNK, 1);
  d.bias.shape[0] = CHUNKS;
  d.bias.shape[2] = CHUNK;
  d.bias.shape[3] = CHUNK + BAND;
  d.bias.stride[0] = CHUNK * row_stride + CHUNK;
  a = p->args;
  p->oracle_desc = &d;
  p->oracle_args = &a;
  gy_check_free(p);
}

static void g24_square_bias(void **state) {
  (void)state;
  gy_say("rows of stride 0");
  square_bias(TSR_F32, 0);
  gy_say("rows of their own");
  square_bias(TSR_BF16, SQUARE + BAND);
  square_bias(TSR_F32, SQUARE + BAND + 1000);
}

/* ---- 25 -------------------------------------------------------------------------------------- */

/* Latent K of (576, 512) in pages that are rows of a much wider buffer. */
static void g25_latent_pages_of_a_wide_buffer(void **state) {
  static const int64_t ids[] = {47232, 0, 2991, 23616, 2990}, lens[2] = {5 * 64 - 9, 64};
  static const tsr_dtype dtypes[] = {TSR_F8E4M3, TSR_BF16, TSR_F16, TSR_F32};
  (void)state;
  for (int n = 0; n < 4; n++) {
    gy_problem *p = gy_new();
    const tsr_dtype q = n == 0 ? TSR_BF16 : dtypes[n];
    tsr_layout l = tsr_layout_dense(dtypes[n], 47233, 64, 1, 576);
    l.stride[0] = 1435968;
    l.stride[1] = 584;
    l.stride[2] = 584;
    gy_say("k %s", tsr_dtype_name(dtypes[n]));
    GY_IN(p, q, tsr_layout_dense(q, 2, 2, 16, 576));
    GY_OUT(p, o, tsr_layout_dense(q, 2, 2, 16, 512));
    GY_OUT(p, lse, tsr_layout_dense(TSR_F32, 2, 16, 2, 1));
    GY_INTS(p, seqlens_k, TSR_I32, lens, 2);
    GY_IN(p, block_table, tsr_layout_dense(TSR_I32, 2, 5, 1, 1));
    GY_GIVE(p, k, l, gy_sparse(p, gy_span_bytes(&l)));
    if (p->args.k.ptr == NULL) {
      gy_free(p);
      no_address_space();
    }
    p->desc.v = l;
    p->desc.v.shape[3] = 512;
    p->desc.flags |= TSR_CAUSAL | TSR_V_IN_K;
    for (int64_t m = 0; m < 5; m++) {
      GY_PUT(p, block_table, 0, m, 0, 0, (double)ids[m]);
      GY_PUT(p, block_table, 1, m, 0, 0, m == 0 ? (double)ids[2] : -1);
      for (int64_t e = 0; e < 64 * 576; e++) {
        GY_PUT(p, k, ids[m], e / 576, 0, e % 576, conf_normal(&p->rng) * 0.5);
      }
    }
    gy_check_free(p);
  }
}

/* One axis of q, k, v after the other with a stride beyond 32 bits; outputs stay small. */
static void g25_wide_strides_of_inputs(void **state) {
  const int64_t far = INT64_C(0x80000000) + 7;
  (void)state;
  for (int n = 0; n < 6; n++) {
    const int axis = n % 3, op = n / 3;
    gy_problem *p = gy_dense((gy_dims){op, floats[n % 3], 3, 20, 24, 2, 2, 24, 24});
    tsr_layout l[3] = {p->desc.q, p->desc.k, p->desc.v};
    tsr_buffer b[3];
    gy_say("axis %d, op %d", axis, op);
    for (int m = 0; m < 3; m++) {
      l[m].stride[axis] = far;
      b[m] = tsr_buffer_out(gy_sparse(p, gy_span_bytes(&l[m])));
      if (b[m].ptr == NULL) {
        gy_free(p);
        no_address_space();
      }
      gy_randomise(p, &l[m], &b[m], 1.0);
    }
    p->desc.q = l[0];
    p->desc.k = l[1];
    p->desc.v = l[2];
    p->args.q = b[0];
    p->args.k = b[1];
    p->args.v = b[2];
    gy_check_free(p);
  }
}

/* Packed tokens beyond 2^31, inputs and outputs alike: the same numbers as in a small batch, bit for bit. */
typedef struct far_batch {
  gy_problem *small;
  const int64_t *q_start, *k_start; /* in the far tensors */
  const int64_t *q_lens, *k_lens;
  int n;
} far_batch;

static void same_rows(const tsr_layout *l, const tsr_buffer *b, const tsr_layout *far, const tsr_buffer *far_b,
                      const int64_t *start, const int64_t *lens, int n) {
  int64_t row = 0;
  for (int s = 0; s < n; s++) {
    for (int64_t i = 0; i < lens[s]; i++, row++) {
      for (int64_t e = 0; e < l->shape[2] * l->shape[3]; e++) {
        const double x = gy_get(l, b, 0, row, e / l->shape[3], e % l->shape[3]);
        const double y = gy_get(far, far_b, 0, start[s] + i, e / l->shape[3], e % l->shape[3]);
        if (x != y) {
          gy_fail("sequence %d, row %lld, element %lld: %.9g, in a small batch %.9g", s, (long long)i, (long long)e, y,
                  x);
        }
      }
    }
  }
}

#define SAME_ROWS(p, x, name, start, lens)                                                                           \
  same_rows(&(x)->small->desc.name, &(x)->small->args.name, &(p)->desc.name, &(p)->args.name, (x)->start, (x)->lens, \
            (x)->n)

static void as_in_small(gy_problem *p, gy_run *run, void *user) {
  far_batch *x = user;
  gy_run small;
  if (!gy_plan(x->small, run->target, run->variant, &small)) {
    gy_fail("a small batch is refused, a large one not");
  }
  gy_go(x->small, &small);
  gy_go(p, run);
  if (p->desc.op == TSR_FORWARD) {
    SAME_ROWS(p, x, o, q_start, q_lens);
  } else {
    SAME_ROWS(p, x, dq, q_start, q_lens);
    SAME_ROWS(p, x, dk, k_start, k_lens);
    SAME_ROWS(p, x, dv, k_start, k_lens);
  }
  gy_compare(x->small, &small);
  gy_unplan(&small);
}

/* Sparse memory for `rows` rows, with the rows of a small tensor at start[]. */
static int give_far(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, const tsr_layout *l, const tsr_buffer *b,
                    int64_t rows, const int64_t *start, const int64_t *lens, int n) {
  int64_t row = 0;
  *field = tsr_layout_dense(l->dtype, 1, rows, l->shape[2], l->shape[3]);
  *buffer = tsr_buffer_out(gy_sparse(p, gy_span_bytes(field)));
  if (buffer->ptr == NULL) {
    return 0;
  }
  for (int s = 0; s < n; s++) {
    for (int64_t i = 0; i < lens[s]; i++, row++) {
      for (int64_t e = 0; b != NULL && e < l->shape[2] * l->shape[3]; e++) {
        const int64_t h = e / l->shape[3], c = e % l->shape[3];
        gy_put(field, buffer, 0, start[s] + i, h, c, gy_get(l, b, 0, row, h, c));
      }
    }
  }
  return 1;
}

#define GIVE_FAR(p, small, name, filled, start, lens)                                                               \
  give_far((p), &(p)->desc.name, &(p)->args.name, &(small)->desc.name, (filled) ? &(small)->args.name : NULL, rows, \
           start, lens, 3)

static void g25_tokens_beyond_32_bits(void **state) {
  static const int64_t q_lens[3] = {3, 40, 1}, k_lens[3] = {7, 70, 20};
  static const int64_t q_start[4] = {0, INT64_C(2500000000), INT64_C(4300000000), INT64_C(4300000100)};
  const int64_t rows = q_start[3];
  (void)state;
  for (int op = 0; op < 2; op++) {
    gy_problem *small = gy_packed((gy_dims){op, TSR_F16, 3, 0, 0, 2, 1, 8, 8}, q_lens, k_lens, 0), *p = gy_new();
    far_batch x = {small, q_start, q_start, q_lens, k_lens, 3};
    int given;
    gy_say("op %d", op);
    small->desc.flags |= TSR_BATCH_INVARIANT | TSR_CAUSAL;
    p->own_outputs = 1;
    p->desc.op = op;
    p->desc.flags = small->desc.flags;
    p->desc.max_seqlen_q = 40;
    p->desc.max_seqlen_k = 70;
    GY_INTS(p, cu_seqlens_q, TSR_I64, q_start, 4);
    GY_INTS(p, cu_seqlens_k, TSR_I64, q_start, 4);
    GY_INTS(p, seqlens_q, TSR_I64, q_lens, 3);
    GY_INTS(p, seqlens_k, TSR_I64, k_lens, 3);
    gy_forward_results(small);
    given = GIVE_FAR(p, small, q, 1, q_start, q_lens) && GIVE_FAR(p, small, k, 1, q_start, k_lens) &&
            GIVE_FAR(p, small, v, 1, q_start, k_lens) && GIVE_FAR(p, small, o, op == TSR_BACKWARD, q_start, q_lens);
    if (given && op == TSR_BACKWARD) {
      given = GIVE_FAR(p, small, dout, 1, q_start, q_lens) && GIVE_FAR(p, small, dq, 0, q_start, q_lens) &&
              GIVE_FAR(p, small, dk, 0, q_start, k_lens) && GIVE_FAR(p, small, dv, 0, q_start, k_lens);
      p->desc.lse = tsr_layout_dense(TSR_F32, 1, 2, rows, 1);
      p->args.lse = tsr_buffer_out(gy_sparse(p, gy_span_bytes(&p->desc.lse)));
      for (int64_t s = 0, row = 0; given && p->args.lse.ptr != NULL && s < 3; s++) {
        for (int64_t i = 0; i < q_lens[s]; i++, row++) {
          GY_PUT(p, lse, 0, 0, q_start[s] + i, 0, GY_GET(small, lse, 0, 0, row, 0));
          GY_PUT(p, lse, 0, 1, q_start[s] + i, 0, GY_GET(small, lse, 0, 1, row, 0));
        }
      }
      p->forward_done = 1;
    }
    if (!given || (op == TSR_BACKWARD && p->args.lse.ptr == NULL)) {
      gy_free(p);
      gy_free(small);
      no_address_space();
    }
    gy_each(p, as_in_small, &x);
    gy_free(p);
    gy_free(small);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g23_more_sequences_than_16_bits),
      GY_TEST(g23_more_heads_than_16_bits),
      GY_TEST(g23_more_tiles_than_16_bits),
      GY_TEST(g24_four_million_keys),
      GY_TEST(g24_square_bias),
      GY_TEST(g25_latent_pages_of_a_wide_buffer),
      GY_TEST(g25_wide_strides_of_inputs),
      GY_TEST(g25_tokens_beyond_32_bits),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
