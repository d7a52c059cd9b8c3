/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds attention: merging of partial results (line 3), and the rotary grid of the peers, which append
 * answers. */
#include "kit.h"

static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};
static const double infinity = (double)INFINITY;

/* ---- 3 --------------------------------------------------------------------------------------- */

enum { BATCH = 2, ROWS = 5, HEADS = 3, CHANNELS = 40, MAX_PARTIALS = 4 };

typedef struct merge_case {
  tsr_merge_desc desc;
  tsr_merge_args args;
  tsr_buffer o[MAX_PARTIALS], lse[MAX_PARTIALS];
  const unsigned *empty; /* bit r of empty[k]: partial k is empty in row r, and its O a NaN there */
  double exact_o[BATCH * ROWS * HEADS * CHANNELS], exact_lse[BATCH * HEADS * ROWS];
  gy_problem *memory; /* owner of all tensors; o and lse are its outputs */
} merge_case;

static void make_empty(merge_case *m, int k, int64_t row) {
  for (int64_t e = 0; e < BATCH * HEADS * CHANNELS; e++) {
    const int64_t b = e / (HEADS * CHANNELS), h = e / CHANNELS % HEADS;
    gy_put(&m->desc.partial_o, &m->o[k], b, row, h, e % CHANNELS, (double)NAN);
    gy_put(&m->desc.partial_lse, &m->lse[k], b, h, row, 0, -infinity);
  }
}

static void merge_init(merge_case *m, tsr_dtype partial, tsr_dtype dtype, int n, const unsigned *empty, int sink) {
  gy_problem *p = gy_new();
  memset(m, 0, sizeof(*m));
  m->memory = p;
  m->empty = empty;
  m->desc = tsr_merge_desc_init();
  m->args = tsr_merge_args_init();
  m->desc.memory = TSR_MEMORY_HOST;
  m->desc.num_partials = n;
  GY_OUT(p, o, tsr_layout_dense(dtype, BATCH, ROWS, HEADS, CHANNELS));
  GY_OUT(p, lse, tsr_layout_dense(TSR_F32, BATCH, HEADS, ROWS, 1));
  m->desc.o = p->desc.o;
  m->desc.lse = p->desc.lse;
  m->args.o = p->args.o;
  m->args.lse = p->args.lse;
  m->args.partial_o = m->o;
  m->args.partial_lse = m->lse;
  if (sink) {
    gy_in(p, &m->desc.sink, &m->args.sink, tsr_layout_dense(TSR_F32, HEADS, 1, 1, 1));
  }
  for (int k = 0; k < n; k++) {
    gy_in(p, &m->desc.partial_o, &m->o[k], tsr_layout_dense(partial, BATCH, ROWS, HEADS, CHANNELS));
    gy_in(p, &m->desc.partial_lse, &m->lse[k], m->desc.lse);
    for (int64_t row = 0; row < ROWS; row++) {
      if (empty[k] >> row & 1) {
        make_empty(m, k, row);
      }
    }
  }
}

/* How many partials have something in a row; *which: the last of them. */
static int present(const merge_case *m, int64_t row, int *which) {
  int n = 0;
  for (int k = 0; k < m->desc.num_partials; k++) {
    if (!(m->empty[k] >> row & 1)) {
      *which = k;
      n++;
    }
  }
  return n;
}

static void merge_before(void *user) {
  gy_poison(((merge_case *)user)->memory);
}

/* Rows with one partial or none: its bits, where the types are the same. Others: near the oracle. */
static void merge_after(void *user) {
  const merge_case *m = user;
  const double u = m->desc.o.dtype == TSR_BF16 ? 0x1p-8 : m->desc.o.dtype == TSR_F16 ? 0x1p-11 : 0x1p-21;
  for (int64_t e = 0; e < BATCH * ROWS * HEADS * CHANNELS; e++) {
    const int64_t b = e / (ROWS * HEADS * CHANNELS), row = e / (HEADS * CHANNELS) % ROWS, h = e / CHANNELS % HEADS,
                  c = e % CHANNELS;
    const double got = gy_get(&m->desc.o, &m->args.o, b, row, h, c),
                 lse = gy_get(&m->desc.lse, &m->args.lse, b, h, row, 0);
    int which = 0;
    const int n = present(m, row, &which);
    double want = m->exact_o[e], want_lse = m->exact_lse[(b * HEADS + h) * ROWS + row];
    double slack = u * fabs(want) + 0x1p-20, lse_slack = 0x1p-20 * fmax(1.0, fabs(want_lse));
    if (n <= 1 && m->desc.sink.dtype == TSR_DTYPE_NONE) {
      want = n == 0 ? 0.0 : gy_get(&m->desc.partial_o, &m->o[which], b, row, h, c);
      want_lse = n == 0 ? -infinity : gy_get(&m->desc.partial_lse, &m->lse[which], b, h, row, 0);
      slack = n == 0 || m->desc.o.dtype == m->desc.partial_o.dtype ? 0.0 : slack;
      lse_slack = 0.0;
    }
    if (!(fabs(got - want) <= slack) || !(lse == want_lse || fabs(lse - want_lse) <= lse_slack)) {
      gy_fail("[%lld,%lld,%lld,%lld], %d partials: o %.9g, must be %.9g; lse %.9g, must be %.9g", (long long)b,
              (long long)row, (long long)h, (long long)c, n, got, want, lse, want_lse);
    }
    gy_put(&m->desc.o, &m->args.o, b, row, h, c, 0.0);
  }
}

static void g03_merge_of_empty_states(void **state) {
  /* Rows: nothing at all; only the first; only the last; some; all. */
  static const unsigned three[3] = {0x5, 0xb, 0x3}, one[1] = {0x15}, all_but_one[4] = {0x1f, 0x1f, 0x10, 0x1f};
  static const unsigned *const lists[] = {three, one, all_but_one};
  static const int counts[] = {3, 1, 4};
  static merge_case m;
  (void)state;
  for (int n = 0; n < 36; n++) {
    const tsr_dtype dtype = floats[n % 3], partial = n / 3 % 2 ? TSR_F32 : dtype;
    const int list = n / 12, sink = n / 6 % 2;
    tsr_error err;
    gy_say("merge of %d, %s from %s, sink %d", counts[list], tsr_dtype_name(dtype), tsr_dtype_name(partial), sink);
    merge_init(&m, partial, dtype, counts[list], lists[list], sink);
    if (tsr_reference_merge(&m.desc, &m.args, m.exact_o, m.exact_lse, &err) != TSR_OK) {
      gy_fail("oracle: %s %s", err.field, err.text);
    }
    gy_each_merge(&m.desc, &m.args, merge_before, merge_after, &m);
    gy_free(m.memory);
  }
}

/* Empty chunks of split KV: more splits than keys; a sequence without keys; keys hidden from the front. */
static void g03_empty_chunks_of_split_kv(void **state) {
  static const int64_t lens[3] = {3, 0, 300};
  (void)state;
  for (int n = 0; n < 6; n++) {
    gy_problem *p =
        gy_paged((gy_dims){TSR_FORWARD, floats[n % 3], 3, 2, 0, 6, 2, 64, 64}, (gy_pages){16, TSR_DTYPE_NONE, 0}, lens);
    gy_say("case %d", n);
    p->desc.num_splits = n < 3 ? 8 : 64;
    p->desc.flags |= n % 2 ? TSR_CAUSAL | TSR_WINDOW : TSR_CAUSAL;
    p->desc.window_left = n % 2 ? 20 : 0;
    gy_check_free(p);
  }
}

/* ---- Rotary ---------------------------------------------------------------------------------- */

typedef struct rotary {
  tsr_append_desc desc;
  tsr_append_args args;
  tsr_append_args twin; /* the oracle's: outputs of its own */
  int64_t cache_bytes, q_bytes;
  gy_problem *memory;
} rotary;

/* Tables of cos and sin, and a q to be turned with k. */
static void add_rotary(rotary *r, tsr_dtype dtype, int64_t d, int64_t dim, int interleaved) {
  gy_problem *p = r->memory;
  r->desc.flags = interleaved ? TSR_APPEND_INTERLEAVED : 0;
  r->desc.rotary_dim = dim == d ? 0 : (int32_t)dim;
  gy_in(p, &r->desc.q, &r->args.q, tsr_layout_dense(dtype, 2, 20, 6, d));
  r->desc.q_out = r->desc.q;
  r->q_bytes = gy_span_bytes(&r->desc.q);
  r->args.q_out = tsr_buffer_out(gy_memory_new(p, r->q_bytes));
  gy_in(p, &r->desc.cos, &r->args.cos, tsr_layout_dense(TSR_F32, 64, dim / 2, 1, 1));
  gy_in(p, &r->desc.sin, &r->args.sin, tsr_layout_dense(TSR_F32, 64, dim / 2, 1, 1));
  for (int64_t e = 0; e < 64 * (dim / 2); e++) {
    const double angle = (double)(e / (dim / 2)) * pow(10000.0, -2.0 * (double)(e % (dim / 2)) / (double)dim);
    gy_put(&r->desc.cos, &r->args.cos, e / (dim / 2), e % (dim / 2), 0, 0, cos(angle));
    gy_put(&r->desc.sin, &r->args.sin, e / (dim / 2), e % (dim / 2), 0, 0, sin(angle));
  }
}

static void rotary_init(rotary *r, tsr_dtype dtype, int64_t d, int64_t dim, int interleaved) {
  static const int64_t lens[2] = {0, 37};
  gy_problem *p = gy_new();
  memset(r, 0, sizeof(*r));
  r->memory = p;
  r->desc = tsr_append_desc_init();
  r->args = tsr_append_args_init();
  r->desc.memory = TSR_MEMORY_HOST;
  gy_in(p, &r->desc.k_new, &r->args.k_new, tsr_layout_dense(dtype, 2, 20, 2, d));
  gy_in(p, &r->desc.v_new, &r->args.v_new, tsr_layout_dense(dtype, 2, 20, 2, d));
  gy_ints(p, &r->desc.seqlens_k, &r->args.seqlens_k, TSR_I32, lens, 2);
  r->desc.k_cache = r->desc.v_cache = tsr_layout_dense(dtype, 2, 64, 2, d);
  r->cache_bytes = gy_span_bytes(&r->desc.k_cache);
  r->args.k_cache = tsr_buffer_out(gy_memory_new(p, r->cache_bytes));
  r->args.v_cache = tsr_buffer_out(gy_memory_new(p, r->cache_bytes));
  if (dim > 0) {
    add_rotary(r, dtype, d, dim, interleaved);
  }
  r->twin = r->args;
  r->twin.k_cache = tsr_buffer_out(gy_memory_new(p, r->cache_bytes));
  r->twin.v_cache = tsr_buffer_out(gy_memory_new(p, r->cache_bytes));
  r->twin.q_out = tsr_buffer_out(dim > 0 ? gy_memory_new(p, r->q_bytes) : NULL);
}

static void rotary_before(void *user) {
  rotary *r = user;
  memset(r->args.k_cache.ptr, 0xff, (size_t)r->cache_bytes);
  memset(r->args.v_cache.ptr, 0xff, (size_t)r->cache_bytes);
  if (r->q_bytes > 0) {
    memset(r->args.q_out.ptr, 0xff, (size_t)r->q_bytes);
  }
}

static void rotary_after(void *user) {
  const rotary *r = user;
  if (memcmp(r->args.k_cache.ptr, r->twin.k_cache.ptr, (size_t)r->cache_bytes) != 0 ||
      memcmp(r->args.v_cache.ptr, r->twin.v_cache.ptr, (size_t)r->cache_bytes) != 0 ||
      (r->q_bytes > 0 && memcmp(r->args.q_out.ptr, r->twin.q_out.ptr, (size_t)r->q_bytes) != 0)) {
    gy_fail("other bytes than the oracle's");
  }
}

/* Fractions 0, 1/2 and 1 of D, interleaved or not. */
static void grid_rotary(void **state) {
  static const int64_t dims[] = {32, 40, 64, 80, 128, 256};
  static rotary r;
  (void)state;
  for (int n = 0; n < 6 * 6; n++) {
    const int64_t d = dims[n / 6], dim = n % 3 * d / 2;
    const int interleaved = n / 3 % 2;
    tsr_error err;
    gy_say("D %lld, rotary %lld, %s", (long long)d, (long long)dim, interleaved ? "interleaved" : "halves");
    rotary_init(&r, floats[(n + n / 6) % 3], d, dim, interleaved);
    if (tsr_reference_append(&r.desc, &r.twin, &err) != TSR_OK) {
      gy_fail("oracle: %s %s", err.field, err.text);
    }
    gy_each_append(&r.desc, &r.args, rotary_before, rotary_after, &r);
    gy_free(r.memory);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(g03_merge_of_empty_states),
      GY_TEST(g03_empty_chunks_of_split_kv),
      GY_TEST(grid_rotary),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
