/* SPDX-License-Identifier: Apache-2.0 */
/* The suites. */
#include "../conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conf_commit.h"
#include "runner.h"

enum { QUICK_RANDOM = 200, FULL_RANDOM = 4000, QUICK_GRID_PART = 60 };

/* Cases, made before the first runs: their number is the progress's total. */
typedef struct case_list {
  conf_case *cases;
  int64_t count, room;
  int failed;
} case_list;

static void add_case(void *user, const conf_case *c) {
  case_list *list = user;
  if (list->count == list->room) {
    const int64_t room = list->room * 2 + 64;
    conf_case *more = realloc(list->cases, (size_t)room * sizeof(*more));
    if (more == NULL) {
      list->failed = 1;
      return;
    }
    list->cases = more;
    list->room = room;
  }
  list->cases[list->count++] = *c;
}

/* The suite's cases beside those of the support table. */
static void each_case(const conf_runner *r, uint64_t seed, conf_each *each, void *user) {
  const int full = r->options->suite == TSR_CONFORMANCE_FULL;
  const int64_t random = r->options->random_cases > 0   ? r->options->random_cases
                         : r->options->random_cases < 0 ? 0
                         : full                         ? FULL_RANDOM
                                                        : QUICK_RANDOM;
  for (int op = 0; op < 2; op++) {
    conf_cover_items(&r->rules, op, seed, each, user);
    conf_cover_pairs(&r->rules, op, seed, each, user);
  }
  conf_grids(seed, full ? 1 : QUICK_GRID_PART, each, user);
  conf_cover_random(&r->rules, seed, random, full ? 4e7 : 6e6, each, user);
}

static void run_cases(conf_runner *r, uint64_t seed) {
  case_list list = {NULL, 0, 0, 0};
  const char *unread = conf_support_cases(add_case, &list);
  const int64_t of_table = list.count;
  each_case(r, seed, add_case, &list);
  if (unread != NULL) {
    conf_fail(r, NULL, "", unread, "a probe of the support table does not parse");
  }
  if (list.failed) {
    conf_fail(r, NULL, "", "the suite", "no memory for the list of cases");
  }
  r->total = list.count;
  for (int64_t n = 0; n < list.count; n++) {
    /* a filter may look for what is drawn */
    if (!conf_over(r) && (conf_next_is_mine(r) || r->options->filter != NULL)) {
      conf_case_draw(&list.cases[n], seed);
    }
    n < of_table ? conf_support_check(r, &list.cases[n]) : conf_run_case(r, &list.cases[n]);
  }
  free(list.cases);
}

static void run_suite(conf_runner *r, uint64_t seed) {
  run_cases(r, seed);
  if (r->options->pairwise != NULL) {
    conf_numpy_cases(r, r->options->pairwise);
  }
  conf_cache_ops(r, seed);
  if (!r->options->properties_off) {
    conf_properties(r, seed);
  }
}

static int run_line(conf_runner *r, const char *line) {
  conf_case c;
  char why[200];
  if (conf_case_parse(line, &c, why, sizeof(why)) != 0) {
    snprintf(r->result->failures[0].what, sizeof(r->result->failures[0].what), "%s", why);
    r->result->num_failures = 1;
    return -1;
  }
  snprintf(c.name, sizeof(c.name), "given");
  r->total = 1;
  conf_run_case(r, &c);
  return 0;
}

static uint64_t clock_seed(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  conf_rng r = {(uint64_t)t.tv_sec * UINT64_C(1000000007) ^ (uint64_t)t.tv_nsec};
  return (conf_next(&r) >> 33) + 1;
}

static int finish(const conf_runner *r) {
  tsr_conformance_result *result = r->result;
  result->seconds = conf_now() - r->begun;
  return result->failed > 0 || result->passed == 0;
}

const char *tsr_conformance_commit(void) {
  return CONF_COMMIT;
}

int tsr_conformance_run(const tsr_conformance_options *options, tsr_conformance_result *result) {
  static const tsr_conformance_options defaults;
  conf_runner *r = calloc(1, sizeof(*r));
  int status = 2;
  memset(result, 0, sizeof(*result));
  if (r == NULL) {
    snprintf(result->failures[0].what, sizeof(result->failures[0].what), "no memory");
    result->num_failures = 1;
    return 2;
  }
  r->options = options != NULL ? options : &defaults;
  r->result = result;
  r->begun = conf_now();
  result->seed = r->options->seed != 0 ? r->options->seed : clock_seed();
  conf_rules_init(&r->rules);
  if (conf_targets_open(r) == 0) {
    status = 0;
    if (r->options->case_line != NULL) {
      status = run_line(r, r->options->case_line) == 0 ? 0 : 2;
    } else {
      run_suite(r, result->seed);
    }
    if (status == 0 && r->chosen == 0 && r->options->filter != NULL) {
      snprintf(result->failures[0].what, sizeof(result->failures[0].what),
               "the filter \"%.200s\" chooses nothing: no case has it in its name or line", r->options->filter);
      result->num_failures = 1;
      status = 2;
    }
    status = status == 0 ? finish(r) : status;
  }
  conf_targets_close(r);
  free(r);
  return status;
}
