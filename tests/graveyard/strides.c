/* SPDX-License-Identifier: Apache-2.0 */
/* Strides, alignment, sizes that fit no tile: lines 26 to 28 and 35. */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};

/* ---- 26 -------------------------------------------------------------------------------------- */

/* The same shape with the axes in a given memory order (outermost first) and `pad` elements after each innermost run.
 */
static tsr_layout ordered(const tsr_layout *l, const int order[4], int64_t pad) {
  tsr_layout out = *l;
  int64_t run = 1;
  for (int n = 3; n >= 0; n--) {
    out.stride[order[n]] = run;
    run = run * out.shape[order[n]] + (n == 3 ? pad : 0);
  }
  return out;
}

static void random_order(conf_rng *rng, int order[4]) {
  for (int n = 0; n < 4; n++) {
    const int at = (int)conf_range(rng, 0, n);
    order[n] = order[at];
    order[at] = n;
  }
}

/* Gives every tensor of a problem an order of its own. */
static gy_problem *reordered(gy_dims dims, int which) {
  static const int transposed[4] = {0, 2, 3, 1}, heads_first[4] = {0, 2, 1, 3}, heads_last[4] = {0, 1, 3, 2};
  gy_problem *dense = gy_dense(dims), *p = gy_new();
  p->desc.op = dims.op;
#define REORDER(name, give)                                                      \
  do {                                                                           \
    int order[4];                                                                \
    random_order(&p->rng, order);                                                \
    memcpy(order,                                                                \
           which == 0   ? transposed                                             \
           : which == 1 ? heads_first                                            \
           : which == 2 ? heads_last                                             \
                        : order,                                                 \
           sizeof(order));                                                       \
    give(p, name, ordered(&dense->desc.name, order, conf_range(&p->rng, 0, 3))); \
  } while (0)
  REORDER(q, GY_IN);
  REORDER(k, GY_IN);
  REORDER(v, GY_IN);
  if (dims.op == TSR_FORWARD) {
    REORDER(o, GY_OUT);
    REORDER(lse, GY_OUT);
  } else {
    REORDER(o, GY_IN);
    REORDER(lse, GY_IN);
    REORDER(dout, GY_IN);
    REORDER(dq, GY_OUT);
    REORDER(dk, GY_OUT);
    REORDER(dv, GY_OUT);
  }
#undef REORDER
  gy_free(dense);
  return p;
}

static void g26_layouts_that_differ(void **state) {
  (void)state;
  for (int n = 0; n < 40; n++) {
    gy_problem *p = reordered(
        (gy_dims){n % 2, floats[n / 2 % 3], 2, 37, 70, 4, 2, n % 4 < 2 ? 64 : 37, n % 3 ? 64 : 24}, n / 2 % 5);
    gy_say("case %d, op %d", n, n % 2);
    p->desc.flags |= n % 3 == 0 ? TSR_CAUSAL : 0;
    gy_check_free(p);
  }
}

/* Rows without padding whose length is odd: no row but the first is aligned. */
static void g26_rows_without_padding(void **state) {
  static const int64_t dims[] = {37, 59, 1, 3, 111, 203};
  (void)state;
  for (int n = 0; n < 24; n++) {
    gy_problem *p = gy_dense((gy_dims){n / 12, floats[n % 3], 2, 33, 45, 3, 3, dims[n / 2 % 6], dims[(n + 1) / 2 % 6]});
    gy_say("D %lld, op %d", (long long)dims[n / 2 % 6], n / 12);
    gy_check_free(p);
  }
}

/* A view that begins at the second element of rows that are longer: what is beside it holds a NaN. */
static void offset_view(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, int output) {
  tsr_layout l = *field;
  const int64_t size = tsr_dtype_bits(l.dtype) / 8;
  l.stride[2] = l.shape[3] + 5;
  l.stride[1] = l.stride[2] * l.shape[2];
  l.stride[0] = l.stride[1] * l.shape[1];
  if (output) {
    gy_out(p, field, buffer, l);
    buffer->ptr = (char *)buffer->ptr + size;
    return;
  }
  *field = l;
  *buffer = tsr_buffer_out(gy_memory_new(p, gy_span_bytes(&l) + size));
  buffer->offset_bytes = size;
  gy_randomise(p, field, buffer, 1.0);
}

static void g26_view_at_an_offset(void **state) {
  (void)state;
  for (int n = 0; n < 12; n++) {
    gy_dims dims = {n % 2, floats[n / 2 % 3], 2, 37, 70, 4, 2, n < 6 ? 64 : 32, 64};
    gy_problem *dense = gy_dense(dims), *p = gy_new();
    gy_say("D %lld, op %d", (long long)dims.d, n % 2);
    p->desc = dense->desc;
    offset_view(p, &p->desc.q, &p->args.q, 0);
    offset_view(p, &p->desc.k, &p->args.k, 0);
    offset_view(p, &p->desc.v, &p->args.v, 0);
    offset_view(p, &p->desc.o, &p->args.o, dims.op == TSR_FORWARD);
    if (dims.op == TSR_FORWARD) {
      GY_OUT(p, lse, dense->desc.lse);
    } else {
      GY_IN(p, lse, dense->desc.lse);
      offset_view(p, &p->desc.dout, &p->args.dout, 0);
      offset_view(p, &p->desc.dq, &p->args.dq, 1);
      offset_view(p, &p->desc.dk, &p->args.dk, 1);
      offset_view(p, &p->desc.dv, &p->args.dv, 1);
    }
    gy_free(dense);
    gy_check_free(p);
  }
}

/* Broadcast inputs: one head, one sequence, one key repeated by stride 0. */
static void g26_strides_of_zero(void **state) {
  (void)state;
  for (int n = 0; n < 18; n++) {
    const int axis = n % 3;
    gy_problem *p = gy_dense((gy_dims){n / 9, floats[n / 3 % 3], 3, 20, 70, 4, 4, 32, 32});
    gy_say("axis %d, op %d", axis, n / 9);
    p->desc.k.stride[axis] = 0;
    p->desc.v.stride[(axis + 1) % 3] = 0;
    p->desc.q.stride[axis] = n % 2 ? 0 : p->desc.q.stride[axis];
    gy_check_free(p);
  }
}

/* ---- 27 -------------------------------------------------------------------------------------- */

enum { MAX_TILES = 64 };
typedef struct tiles {
  int64_t size[MAX_TILES];
  int n;
} tiles;

static void add_tile(tiles *t, int64_t size) {
  for (int n = 0; n < t->n; n++) {
    if (t->size[n] == size) {
      return;
    }
  }
  if (t->n < MAX_TILES) {
    t->size[t->n++] = size;
  }
}

static void find_tiles(gy_problem *p, gy_run *run, void *user) {
  tiles *t = user;
  (void)p;
  add_tile(t, run->info.tile_q);
  add_tile(t, run->info.tile_k);
}

/* Lengths just below, at and above the tiles of all variants, nothing masked: padding must not enter the denominator,
 * and no row may be written past the end. */
static void g27_lengths_around_the_tiles(void **state) {
  (void)state;
  for (int n = 0; n < 6; n++) {
    const int op = n / 3;
    gy_problem *p = gy_dense((gy_dims){op, floats[n % 3], 1, 1000, 1000, 2, 1, 128, 128});
    tiles t = {{0}, 0};
    p->forward_done = 1; /* only planned */
    gy_each(p, find_tiles, &t);
    gy_free(p);
    for (int m = 0; m < t.n; m++) {
      for (int64_t k = 1; k <= 2; k++) {
        for (int64_t off = -1; off <= 1; off++) {
          const int64_t sk = k * t.size[m] + off, sq = k == 1 ? sk : t.size[m] - off;
          if (sk < 1 || sq < 1 || sk > 600 || sq > 600) {
            continue;
          }
          gy_say("Sq %lld, Sk %lld, op %d, %s", (long long)sq, (long long)sk, op, tsr_dtype_name(floats[n % 3]));
          gy_check_free(gy_dense((gy_dims){op, floats[n % 3], 1, sq, sk, 2, 1, 128, 128}));
        }
      }
    }
  }
}

/* ---- 28 -------------------------------------------------------------------------------------- */

static void g28_small_and_large_head_dims(void **state) {
  static const struct {
    int64_t d, dv;
  } dims[] = {{8, 8},     {16, 16},   {8, 16},    {1, 1},   {2, 5},  {576, 512},
              {512, 512}, {320, 256}, {576, 576}, {1, 576}, {576, 1}};
  (void)state;
  for (size_t n = 0; n < 2 * sizeof(dims) / sizeof(dims[0]); n++) {
    const int64_t d = dims[n / 2].d, dv = dims[n / 2].dv;
    const int64_t sq = d > 100 || dv > 100 ? 40 : 260, sk = d > 100 || dv > 100 ? 90 : 300;
    gy_problem *p = gy_dense((gy_dims){(int)n % 2, floats[n / 2 % 3], 1, sq, sk, 2, 1, d, dv});
    gy_say("(%lld,%lld), %lld x %lld, op %d", (long long)d, (long long)dv, (long long)sq, (long long)sk, (int)n % 2);
    gy_check_free(p);
  }
  for (int n = 0; n < 6; n++) { /* beyond what is described: said so, never tried */
    gy_problem *p =
        gy_dense((gy_dims){n % 2, floats[n % 3], 1, 4, 4, 1, 1, n / 2 == 1 ? 64 : 577, n / 2 == 2 ? 64 : 577});
    gy_say("577, op %d", n % 2);
    p->forward_done = 1;
    gy_refused(p, TSR_UNSUPPORTED, n / 2 == 1 ? "v.shape[3]" : "q.shape[3]");
    gy_free(p);
  }
}

/* ---- 35 -------------------------------------------------------------------------------------- */

static void g35_backward_of_any_length(void **state) {
  static const struct {
    int64_t sq, sk;
  } sizes[] = {{63, 65},   {65, 63},  {97, 97},  {127, 129}, {129, 127},
               {200, 200}, {17, 191}, {191, 17}, {255, 33},  {66, 257}};
  (void)state;
  for (int n = 0; n < 30; n++) {
    gy_problem *p =
        gy_dense((gy_dims){TSR_BACKWARD, floats[n % 3], 1, sizes[n / 3].sq, sizes[n / 3].sk, 2, n % 2 ? 1 : 2, 64, 64});
    gy_say("%lld x %lld, %s", (long long)sizes[n / 3].sq, (long long)sizes[n / 3].sk, tsr_dtype_name(floats[n % 3]));
    p->desc.flags |= n % 4 == 0 ? TSR_CAUSAL : n % 4 == 1 ? TSR_CAUSAL | TSR_TOP_LEFT : 0;
    gy_check_free(p);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g26_layouts_that_differ),      GY_TEST(g26_rows_without_padding),
      GY_TEST(g26_view_at_an_offset),        GY_TEST(g26_strides_of_zero),
      GY_TEST(g27_lengths_around_the_tiles), GY_TEST(g28_small_and_large_head_dims),
      GY_TEST(g35_backward_of_any_length),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
