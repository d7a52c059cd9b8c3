/* SPDX-License-Identifier: Apache-2.0 */
/* The shape grids of the peers. The shapes are the conformance suite's (tests/conformance/engine/grids.c), and so is
 * running them. Quick: for each grid and direction the cheapest cases that show every head dimension, every pair of
 * lengths, batch, page size and group at least once, as far as the oracle can afford them; the suite's own quick run
 * takes others at random.
 * --full: every case. The rotary grid is in cache.c. */
#include "kit.h"

#include "tests/conformance/engine/runner.h"

/* ---- Choosing -------------------------------------------------------------------------------- */

/* Multiply-adds of the oracle that a quick case may take, and all of a grid together. */
static const double quick_case = 2e8, quick_grid = 2.5e9;

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
  if (strncmp(c->name, l->grid, length) != 0 || c->name[length] != '-' ||
      strspn(c->name + length + 1, "0123456789") != strlen(c->name + length + 1)) {
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
  const int64_t values[SHOWN] = {c->seqlen_q << 24 | c->seqlen_k, c->head_dim << 16 | c->head_dim_v, c->batch,
                                 c->page_size, c->q_heads / c->kv_heads};
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
  const tsr_conformance_options options = {.num_threads = 2,
                                           .random_cases = -1,
                                           .device = getenv("TESSERA_TEST_DEVICE"),
                                           .module = getenv("TESSERA_TEST_MODULE"),
                                           .cache_dir = getenv("TESSERA_TEST_CACHE"),
                                           .copies = getenv("TESSERA_TEST_COPIES") != NULL};
  list l = {NULL, 0, 0, grid};
  conf_runner *r = calloc(1, sizeof(*r));
  int64_t chosen, computing = 0;
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
    conf_case_draw(&l.e[n].c, gy_seed());
    conf_run_case(r, &l.e[n].c);
  }
  print_message("%s: %lld of %lld cases, %lld runs\n", grid, (long long)chosen, (long long)l.n, (long long)result.runs);
  if (result.failed > 0) {
    gy_fail("%lld runs failed, the first: %s: %s; case: %s", (long long)result.failed, result.failures[0].where,
            result.failures[0].what, result.failures[0].line);
  }
  for (int n = 0; n < r->num_targets; n++) {
    computing += r->targets[n].computes;
  }
  if (chosen == 0 || computing == 0 || result.passed < chosen * computing) {
    gy_fail("%lld runs passed of %lld cases", (long long)result.passed, (long long)chosen);
  }
  conf_targets_close(r);
  free(r);
  free(l.e);
}

#define GRID(function, name)           \
  static void function(void **state) { \
    (void)state;                       \
    run_grid(name);                    \
  }
GRID(grid_flash_attention, "flash-attention")
GRID(grid_flash_attention_decode, "flash-attention-decode")
GRID(grid_flashinfer, "flashinfer")
GRID(grid_flashinfer_mla, "flashinfer-mla")
GRID(grid_ggml, "ggml")
GRID(grid_pytorch, "pytorch")

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      GY_TEST(grid_flash_attention),
      GY_TEST(grid_flash_attention_decode),
      GY_TEST(grid_flashinfer),
      GY_TEST(grid_flashinfer_mla),
      GY_TEST(grid_ggml),
      GY_TEST(grid_pytorch),
  };
  return gy_main(argc, argv, tests, sizeof(tests) / sizeof(tests[0]));
}
