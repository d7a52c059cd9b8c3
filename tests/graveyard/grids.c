/* SPDX-License-Identifier: Apache-2.0 */
/* The shape grids of the peers. The shapes are the conformance suite's (tests/conformance/engine/grids.c), and so is running
 * them. Quick: for each grid and direction the cheapest cases that show every head dimension, every pair of lengths, batch,
 * page size and group at least once, as far as the oracle can afford them; the suite's own quick run takes others at random.
 * --full: every case. The rotary grid is here. */
#include "kit.h"

#include "tests/conformance/engine/runner.h"

/* ---- Choosing -------------------------------------------------------------------------------- */

/* Multiply-adds of the oracle that a quick case may take, and all of a grid together. */
static const double quick_case = 3e8, quick_grid = 4e9;

typedef struct entry {
  conf_case c;
  double work;
} entry;

typedef struct list {
  entry *e;
  int64_t n, room;
  const char *grid;
} list;

/* Cases of a grid are named "grid-number". */
static void collect(void *user, const conf_case *c) {
  list *l = user;
  const size_t length = strlen(l->grid);
  if (strncmp(c->name, l->grid, length) != 0 || c->name[length] != '-' || strspn(c->name + length + 1, "0123456789") !=
                                                                             strlen(c->name + length + 1)) {
    return;
  }
  if (l->n == l->room) {
    l->room = l->room * 2 + 256;
    l->e = realloc(l->e, (size_t)l->room * sizeof(*l->e));
    if (l->e == NULL) {
      gy_fail("no memory for the list of cases");
    }
  }
  l->e[l->n].c = *c;
  l->e[l->n++].work = conf_case_work(c);
}

static int by_work(const void *a, const void *b) {
  const entry *x = a, *y = b;
  return x->work < y->work ? -1 : x->work > y->work;
}

/* What a case shows, as numbers: (direction, kind, value). */
enum { SHOWN = 5 };
static void shown_by(const conf_case *c, int64_t shown[SHOWN]) {
  const int64_t values[SHOWN] = {c->seqlen_q << 24 | c->seqlen_k, c->head_dim << 16 | c->head_dim_v, c->batch, c->page_size,
                                 c->q_heads / c->kv_heads};
  for (int n = 0; n < SHOWN; n++) {
    shown[n] = values[n] << 8 | n << 1 | c->op;
  }
}

/* Moves the cases to run to the front; returns how many. */
static int64_t choose(list *l) {
  int64_t *seen = calloc((size_t)l->n * SHOWN + 1, sizeof(*seen)), num_seen = 0, chosen = 0;
  double total = 0.0;
  if (seen == NULL) {
    gy_fail("no memory for the choice of cases");
  }
  qsort(l->e, (size_t)l->n, sizeof(*l->e), by_work);
  for (int64_t n = 0; n < l->n && l->e[n].work <= quick_case && total <= quick_grid; n++) {
    int64_t shown[SHOWN];
    int fresh = 0;
    shown_by(&l->e[n].c, shown);
    for (int m = 0; m < SHOWN; m++) {
      int64_t at = 0;
      while (at < num_seen && seen[at] != shown[m]) {
        at++;
      }
      if (at == num_seen) {
        seen[num_seen++] = shown[m];
        fresh = 1;
      }
    }
    if (fresh) {
      total += l->e[n].work;
      l->e[chosen++] = l->e[n];
    }
  }
  free(seen);
  return chosen;
}

/* ---- Running --------------------------------------------------------------------------------- */

static void run_grid(const char *grid) {
  static tsr_conformance_result result;
  const tsr_conformance_options options = {.num_threads = 2, .random_cases = -1};
  list l = {NULL, 0, 0, grid};
  conf_runner *r = calloc(1, sizeof(*r));
  int64_t chosen;
  assert_non_null(r);
  memset(&result, 0, sizeof(result));
  r->options = &options;
  r->result = &result;
  r->begun = conf_now();
  conf_rules_init(&r->rules);
  if (conf_targets_open(r) != 0) {
    gy_fail("%s", result.failures[0].what);
  }
  conf_grids(gy_seed(), 1, collect, &l);
  chosen = gy_full() ? l.n : choose(&l);
  for (int64_t n = 0; n < chosen; n++) {
    gy_say("%s", l.e[n].c.name);
    conf_run_case(r, &l.e[n].c);
  }
  print_message("%s: %lld of %lld cases, %lld runs\n", grid, (long long)chosen, (long long)l.n, (long long)result.runs);
  if (result.failed > 0) {
    gy_fail("%lld runs failed, the first: %s: %s; case: %s", (long long)result.failed, result.failures[0].where,
            result.failures[0].what, result.failures[0].line);
  }
  if (chosen == 0 || result.passed < chosen * r->num_contexts) {
    gy_fail("%lld runs passed of %lld cases", (long long)result.passed, (long long)chosen);
  }
  conf_targets_close(r);
  free(r);
  free(l.e);
}

#define GRID(function, name)            \
  static void function(void **state) { \
    (void)state;                        \
    run_grid(name);                     \
  }
GRID(grid_flash_attention, "flash-attention")
GRID(grid_flash_attention_decode, "flash-attention-decode")
GRID(grid_flashinfer, "flashinfer")
GRID(grid_flashinfer_mla, "flashinfer-mla")
GRID(grid_ggml, "ggml")
GRID(grid_pytorch, "pytorch")

/* ---- Rotary ---------------------------------------------------------------------------------- */

typedef struct rotary {
  tsr_append_desc desc;
  tsr_append_args args;
  gy_problem *memory; /* k and v: new rows; q */
  tsr_buffer twin_k, twin_v, twin_q; /* for the oracle */
  int64_t cache_bytes, q_bytes;
} rotary;

static rotary rotary_new(tsr_dtype dtype, int64_t d, int64_t dim, int interleaved) {
  static const int64_t lens[2] = {0, 37};
  rotary r = {tsr_append_desc_init(), tsr_append_args_init(), gy_new(), {0}, {0}, {0}, 0, 0};
  gy_problem *p = r.memory;
  r.desc.memory = TSR_MEMORY_HOST;
  r.desc.flags = interleaved ? TSR_APPEND_INTERLEAVED : 0;
  r.desc.rotary_dim = dim == d ? 0 : (int32_t)dim;
  gy_in(p, &r.desc.k_new, &r.args.k_new, tsr_layout_dense(dtype, 2, 20, 2, d));
  gy_in(p, &r.desc.v_new, &r.args.v_new, tsr_layout_dense(dtype, 2, 20, 2, d));
  gy_in(p, &r.desc.q, &r.args.q, tsr_layout_dense(dtype, 2, 20, 6, d));
  gy_ints(p, &r.desc.seqlens_k, &r.args.seqlens_k, TSR_I32, lens, 2);
  r.desc.q_out = r.desc.q;
  r.desc.k_cache = r.desc.v_cache = tsr_layout_dense(dtype, 2, 64, 2, d);
  if (dim > 0) {
    gy_in(p, &r.desc.cos, &r.args.cos, tsr_layout_dense(TSR_F32, 64, dim / 2, 1, 1));
    gy_in(p, &r.desc.sin, &r.args.sin, tsr_layout_dense(TSR_F32, 64, dim / 2, 1, 1));
  } else {
    r.desc.q = r.desc.q_out = (tsr_layout){0};
    r.args.q = (tsr_buffer){0};
    r.desc.flags = 0;
  }
  for (int64_t e = 0; e < 64 * (dim / 2); e++) {
    const double angle = (double)(e / (dim / 2)) * pow(10000.0, -2.0 * (double)(e % (dim / 2)) / (double)dim);
    gy_put(&r.desc.cos, &r.args.cos, e / (dim / 2), e % (dim / 2), 0, 0, cos(angle));
    gy_put(&r.desc.sin, &r.args.sin, e / (dim / 2), e % (dim / 2), 0, 0, sin(angle));
  }
  r.cache_bytes = gy_span_bytes(&r.desc.k_cache);
  r.q_bytes = gy_span_bytes(&r.desc.q);
  tsr_buffer *const outputs[] = {&r.args.k_cache, &r.args.v_cache, &r.args.q_out, &r.twin_k, &r.twin_v, &r.twin_q};
  for (int n = 0; n < 6; n++) {
    if (n % 3 < 2 || dim > 0) {
      *outputs[n] = tsr_buffer_out(gy_memory_new(p, n % 3 < 2 ? r.cache_bytes : r.q_bytes));
    }
  }
  return r;
}

static void poison(const tsr_buffer *b, int64_t bytes) {
  if (b->ptr != NULL) {
    memset(b->ptr, 0xff, (size_t)bytes);
  }
}

static void rotary_check(rotary *r) {
  tsr_append_args twin = r->args;
  tsr_error err;
  int count, accepted = 0;
  const gy_target *t = gy_targets(&count);
  twin.k_cache = r->twin_k;
  twin.v_cache = r->twin_v;
  twin.q_out = r->twin_q;
  if (tsr_reference_append(&r->desc, &twin, &err) != TSR_OK) {
    gy_fail("oracle: %s %s", err.field, err.text);
  }
  for (int d = 0; d < count; d++) {
    for (int32_t v = 0; (r->desc.variant = tsr_device_variant(t[d].device, TSR_OP_APPEND, v)) != NULL; v++, accepted++) {
      tsr_plan *plan = NULL;
      int64_t bytes, align;
      void *workspace;
      poison(&r->args.k_cache, r->cache_bytes);
      poison(&r->args.v_cache, r->cache_bytes);
      poison(&r->args.q_out, r->q_bytes);
      if (tsr_plan_append(t[d].device, &r->desc, &plan, &err) != TSR_OK ||
          tsr_plan_workspace(plan, &bytes, &align, &err) != TSR_OK) {
        gy_fail("%s plan: %s %s", t[d].name, err.field, err.text);
      }
      workspace = aligned_alloc(4096, (size_t)(bytes + 8191) / 4096 * 4096);
      r->args.workspace = tsr_buffer_out(bytes > 0 ? workspace : NULL);
      r->args.workspace_bytes = bytes;
      if (tsr_run_append(plan, &r->args, &err) != TSR_OK) {
        gy_fail("%s run: %s %s", t[d].name, err.field, err.text);
      }
      free(workspace);
      tsr_plan_destroy(plan);
      if (memcmp(r->args.k_cache.ptr, r->twin_k.ptr, (size_t)r->cache_bytes) != 0 ||
          memcmp(r->args.v_cache.ptr, r->twin_v.ptr, (size_t)r->cache_bytes) != 0 ||
          (r->q_bytes > 0 && memcmp(r->args.q_out.ptr, r->twin_q.ptr, (size_t)r->q_bytes) != 0)) {
        gy_fail("%s: other bytes than the oracle's", t[d].name);
      }
    }
  }
  if (accepted < count) {
    gy_fail("a device has no variant of append");
  }
}

static void grid_rotary(void **state) {
  static const int64_t dims[] = {32, 40, 64, 80, 128, 256};
  static const tsr_dtype floats[] = {TSR_F32, TSR_F16, TSR_BF16};
  (void)state;
  for (int n = 0; n < 6 * 6; n++) {
    const int64_t d = dims[n / 6], dim = n % 3 * d / 2;
    rotary r = rotary_new(floats[(n + n / 6) % 3], d, dim, n / 3 % 2);
    gy_say("D %lld, rotary %lld, %s", (long long)d, (long long)dim, n / 3 % 2 ? "interleaved" : "halves");
    rotary_check(&r);
    gy_free(r.memory);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(grid_flash_attention), GY_TEST(grid_flash_attention_decode), GY_TEST(grid_flashinfer), GY_TEST(grid_flashinfer_mla),
      GY_TEST(grid_ggml),            GY_TEST(grid_pytorch),                GY_TEST(grid_rotary),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
