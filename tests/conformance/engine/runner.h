/* SPDX-License-Identifier: Apache-2.0 */
/* Running cases on targets.
 *   devices.c     every device of a back end at each level
 *   target.c      which of them are opened
 *   place.c       where a run's memory is: the host's own, or a mirror of it on the device (mirror.c)
 *   run_case.c    one case on all of them
 *   cover.c       cases for every item and every pair of items
 *   grids.c       the shape grids of other libraries' tests
 *   properties.c  what takes more than one run: determinism, threads, forward then backward
 *   invariance.c  what compares plans: batch invariance, workspace bounds
 *   cache_ops.c   append and merge
 *   numpy.c       the cases of tests/data/pairwise.bin
 *   feature_list.c  the rows of the support table; support.c asks and checks them
 *   conformance.c the suites */
#ifndef TSR_TESTS_CONFORMANCE_RUNNER_H
#define TSR_TESTS_CONFORMANCE_RUNNER_H

#include "../conformance.h"
#include "mirror.h"
#include "truth.h"

enum { CONF_MAX_TARGETS = TSR_CONFORMANCE_MAX_DEVICES, CONF_MAX_CONTEXTS = 8 };

/* A device at a CPU level. */
typedef struct conf_target {
  tsr_context *context;
  tsr_device *device;
  char label[48]; /* "cpu:0 v3" */
  char name[32];  /* "cpu:0" */
  char backend[32];
  char level[16];
  int computes;
  int host_memory;      /* the device's tensors are host memory */
  int32_t memory_kinds; /* 1 << TSR_MEMORY_* */
  int mirrored;         /* runs go through copies on the device */
  int lost;             /* the device is gone, or hangs: nothing more runs on it */
  conf_set promised[2]; /* [op]: items that some variant takes by themselves */
  tsr_conformance_device *stats;
} conf_target;

typedef struct conf_runner {
  const tsr_conformance_options *options;
  tsr_conformance_result *result;
  conf_rules rules;
  tsr_context *contexts[CONF_MAX_CONTEXTS];
  char context_levels[CONF_MAX_CONTEXTS][16];
  int num_contexts;
  conf_target targets[CONF_MAX_TARGETS];
  int num_targets;
  double begun;    /* seconds */
  double deadline; /* of the run in progress; 0: none */
  int64_t total;   /* cases that are listed beforehand */
  int64_t chosen;  /* pieces of work that the filter lets through, of all parts */
} conf_runner;

double conf_now(void); /* seconds, monotonic */

/* Opens all targets that the options choose; 0, or -1 with result->failures[0] filled. */
int conf_targets_open(conf_runner *r);
void conf_targets_close(conf_runner *r);
/* Has the suite to end, as its time is over or somebody asks for it? Says why in result->ended. */
int conf_over(conf_runner *r);
/* A context like those of the targets: no environment, the watchdog, `threads` of them, at a level ("": highest). */
tsr_status conf_context_create(conf_runner *r, const char *level, int32_t threads, tsr_context **context,
                               tsr_error *err);

/* Memory for a run, exactly as large and aligned as asked for, between guard bands, poisoned. On a device a copy of the
 * whole is as well aligned, and no better. */
typedef struct conf_workspace {
  unsigned char *raw, *data;
  int64_t raw_bytes, bytes;
} conf_workspace;
int conf_workspace_make(conf_workspace *w, int64_t bytes, int64_t align, unsigned char poison);
int conf_workspace_intact(const conf_workspace *w);
void conf_workspace_free(conf_workspace *w);

/* The problem's description for a target: the explicit kind of memory may be its own only. */
tsr_attention_desc conf_desc_on(const conf_target *target, const conf_problem *p);
/* Runs a plan on the memory of the problem and of the workspace (bytes 0: none), which the args point to: in place, or
 * on a mirror of all of it, waited for and read back. A device that does not come back in time is lost; its memory is
 * then not freed. */
tsr_status conf_run_attention(conf_runner *r, conf_target *target, const tsr_plan *plan, const conf_problem *p,
                              const conf_workspace *w, const tsr_run_args *args, tsr_error *err);
/* The end of a run on a mirror that st is the status of: waits, reads back, closes. */
tsr_status conf_mirror_end(conf_runner *r, conf_target *target, conf_mirror *m, tsr_status st, tsr_error *err);
/* Waits for a device, at most as long as a case may take: TSR_CANCELLED. */
tsr_status conf_wait(conf_runner *r, conf_target *target, tsr_error *err);
double conf_case_seconds(const conf_runner *r);

/* Counts a failure, keeps its texts, prints it; nothing of it once should_stop said so. line: the case. */
void conf_fail(conf_runner *r, conf_target *target, const char *variant, const char *line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void conf_pass(conf_runner *r, conf_target *target, double worst, const char *line);
void conf_say(conf_runner *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* True if variants of that name are wanted. */
int conf_wants_variant(const conf_runner *r, const char *variant);

/* Asked before each piece of work, a single case or not, with what it is called and its line: 1 counts it as a case
 * that runs. 0: the filter does not choose it, another process does it, or time is over, which counts it as skipped. */
int conf_begin(conf_runner *r, const char *name, const char *line);
/* Does the next piece that the filter lets through belong to this process? */
int conf_next_is_mine(const conf_runner *r);
/* Runs a case wherever it can run; conf_run_begun: conf_begin was asked. */
void conf_run_case(conf_runner *r, const conf_case *c);
void conf_run_begun(conf_runner *r, const conf_case *c, const char *line);
/* One run of a problem's description with a variant forced ("": none) on a target: plan, workspace, run, workspace
 * intact. Outputs are poisoned before. TSR_OK: *ran is the variant the plan names. Any other status: why filled. */
tsr_status conf_run_once(conf_runner *r, conf_target *target, const char *variant, conf_problem *p, char ran[48],
                         char *why, size_t why_bytes);

typedef void conf_each(void *user, const conf_case *c);
/* Lists of cases, still to be drawn. */
/* Each item alone; then cases that cover every pair of items. op: of those cases. */
void conf_cover_items(const conf_rules *rules, int op, uint64_t seed, conf_each *each, void *user);
void conf_cover_pairs(const conf_rules *rules, int op, uint64_t seed, conf_each *each, void *user);
void conf_cover_random(const conf_rules *rules, uint64_t seed, int64_t count, double max_work, conf_each *each,
                       void *user);
/* Chooses what a listed case leaves open, from the suite's seed and the case's name: of a few draws the first, or best,
 * whose results can be told from rounding (condition.c). That takes longer than many a case, so it is done when the
 * case's turn comes. */
void conf_case_draw(conf_case *c, uint64_t seed);
/* Only its seed. */
void conf_case_draw_seed(conf_case *c, conf_rng *r);
/* part: 1 of so many cases, spread evenly. */
void conf_grids(uint64_t seed, int part, conf_each *each, void *user);

void conf_properties(conf_runner *r, uint64_t seed);
void conf_invariance(conf_runner *r, uint64_t seed);
/* A property's case line with this seed. NULL, with a failure counted, if it does not parse or there is no memory. */
conf_problem *conf_property_problem(conf_runner *r, conf_target *target, const char *line, uint64_t seed);
void conf_cache_ops(conf_runner *r, uint64_t seed);
/* Does the device plan a problem of that kind (feature_list.h)? 1, or 0 with the reason. */
int conf_cache_probe(const conf_target *target, int kind, uint64_t seed, char *reason, size_t bytes);
void conf_numpy_cases(conf_runner *r, const char *path);

/* Fills target->promised. */
void conf_support_probe(conf_runner *r, conf_target *target);
/* The case of each cell of the support table. NULL, or the cell's text that is no case. */
const char *conf_support_cases(conf_each *each, void *user);
/* Forces and runs such a case where the table says yes, and asserts the reason where it says no. */
void conf_support_check(conf_runner *r, const conf_case *c);

#endif
