/* SPDX-License-Identifier: Apache-2.0 */
/* What the graveyard tests share: problems made by hand in fenced memory, runs on every device, level and variant, and
 * the comparison of all values with the oracle under the tolerance rule. Everything goes through the public API.
 *
 * Memory: every input ends at (or, with `front`, begins at) a page that may not be touched, and is read-only during
 * runs. Outputs lie between guard bytes; all their bytes hold 0xff (a NaN in any float type) before a run, and those
 * that a run must not write have to hold it afterwards. So does the workspace before a run. On a device with memory of
 * its own all of it is copied there, fences apart, and back again: inputs must come back as they were.
 * Environment: TESSERA_TEST_SEED, TESSERA_TEST_LIMIT (seconds a test may take), TESSERA_TEST_DEVICE (only devices whose
 * name begins so), TESSERA_TEST_MODULE (a back end to load), TESSERA_TEST_COPIES=1 (the CPU is treated like a device),
 * TESSERA_TEST_DEVICE_GIB (problems that are larger are left out on devices; 4), TESSERA_TEST_CACHE (directory of
 * compiled kernels). Time: every test has a limit, kept by should_stop and by alarm(). */
#ifndef TSR_TESTS_GRAVEYARD_KIT_H
#define TSR_TESTS_GRAVEYARD_KIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "tessera/cpu.h"
#include "tessera/tessera.h"
#include "tests/conformance/engine/rng.h"

/* ---- Problems -------------------------------------------------------------------------------- */

enum { GY_MAX_MEMORY = 64, GY_MAX_OUTPUTS = 10 };

typedef struct gy_memory {
  unsigned char *map; /* whole mapping, fences included */
  size_t map_bytes;
  unsigned char *body; /* what may be touched */
  size_t body_bytes;
} gy_memory;

typedef struct gy_output {
  int which; /* index into the kit's list of outputs */
  unsigned char *raw;
  int64_t raw_bytes;
  double *exact, *plain; /* the oracle's, in the order of the layout's shape */
  uint8_t *kept;         /* dropout_mask: the oracle's */
} gy_output;

typedef struct gy_problem {
  struct gy_problem *next; /* of all that there are, the kit's */
  tsr_attention_desc desc; /* complete but for `variant` */
  tsr_run_args args;       /* complete but for the workspace */
  /* The same results, described in a way that the oracle can afford; NULL: desc and args. Shapes of its outputs differ
   * at most in how they are grouped into batch and sequence. */
  const tsr_attention_desc *oracle_desc;
  const tsr_run_args *oracle_args;
  int front;        /* inputs made from here on begin at a fence */
  int own_outputs;  /* outputs lie in memory made with gy_sparse, which stays writable; the test looks at them itself */
  int exact_zero;   /* where the oracle gives 0, in both modes, the result is exactly 0 */
  int may_refuse;   /* no device need support it; where none does, nothing is compared */
  int only_devices; /* with memory of their own: what the host would refuse, they clamp */
  int forward_done, evaluated; /* the kit's: o and lse of backward; exact and plain */
  conf_rng rng;
  gy_memory memory[GY_MAX_MEMORY];
  int num_memory;
  gy_output out[GY_MAX_OUTPUTS];
  int num_out;
} gy_problem;

typedef struct gy_dims {
  int32_t op; /* TSR_FORWARD, TSR_BACKWARD */
  tsr_dtype dtype;
  int64_t b, sq, sk, hq, hkv, d, dv;
} gy_dims;

/* A problem without tensors. */
gy_problem *gy_new(void);
void gy_free(gy_problem *p);

/* Dense q, k, v, o, lse and, backward, dout, dq, dk, dv: random, contiguous. */
gy_problem *gy_dense(gy_dims dims);
/* Packed on the sides whose lengths are given (NULL: dense with dims' length); cu_seqlens int32, `slack` rows beyond
 * them. */
gy_problem *gy_packed(gy_dims dims, const int64_t *q_lens, const int64_t *kv_lens, int64_t slack);

/* Paged K/V of a forward problem: kv_lens[dims.b], shuffled pages, random codes; csr instead of a table. The table has
 * exactly the columns of the longest sequence; what lies beyond a sequence's last key holds a NaN, and so does one page
 * more. */
typedef struct gy_pages {
  int64_t page_size;
  tsr_dtype dtype; /* of k and v; 0: dims.dtype */
  int csr;
} gy_pages;
gy_problem *gy_paged(gy_dims dims, gy_pages pages, const int64_t *kv_lens);
/* Page of key j of sequence b of such a problem. */
int64_t gy_page_of(const gy_problem *p, int64_t b, int64_t j);

/* Fenced memory of `bytes`, all 0xff; released with the problem. */
void *gy_memory_new(gy_problem *p, int64_t bytes);
/* Zeroed address space that takes no memory until it is written; NULL where the system gives none. Fenced at its end.
 */
void *gy_sparse(gy_problem *p, int64_t bytes);

/* Bytes from element 0 to the end of the last. */
int64_t gy_span_bytes(const tsr_layout *l);

/* Gives the field `name` a layout and memory. IN: random numbers (floats: normal; codes: any; integers: 0). GIVE: the
 * caller's memory. OUT: an output between guards. */
#define GY_IN(p, name, layout) gy_in((p), &(p)->desc.name, &(p)->args.name, (layout))
#define GY_OUT(p, name, layout) gy_out((p), &(p)->desc.name, &(p)->args.name, (layout))
#define GY_GIVE(p, name, as, memory) ((p)->desc.name = (as), (p)->args.name = tsr_buffer_in(memory))
void gy_in(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, tsr_layout layout);
void gy_out(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, tsr_layout layout);
/* Takes an output away again. Gradients of q and k over one or two keys are differences that cancel: what is left of
 * them is rounding, and no yardstick. */
#define GY_DROP(p, name) gy_drop((p), &(p)->desc.name, &(p)->args.name)
void gy_drop(gy_problem *p, tsr_layout *field, tsr_buffer *buffer);

/* Elements. */
#define GY_PUT(p, name, i0, i1, i2, i3, x) gy_put(&(p)->desc.name, &(p)->args.name, (i0), (i1), (i2), (i3), (x))
#define GY_GET(p, name, i0, i1, i2, i3) gy_get(&(p)->desc.name, &(p)->args.name, (i0), (i1), (i2), (i3))
#define GY_FILL(p, name, x) gy_fill(&(p)->desc.name, &(p)->args.name, (x))
void gy_put(const tsr_layout *l, const tsr_buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double x);
double gy_get(const tsr_layout *l, const tsr_buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
void gy_fill(const tsr_layout *l, const tsr_buffer *b, double x);
/* Adds to every element. */
#define GY_ADD(p, name, x) gy_add(&(p)->desc.name, &(p)->args.name, (x))
void gy_add(const tsr_layout *l, const tsr_buffer *b, double x);
/* Normal numbers times sigma (codes: any). */
void gy_randomise(gy_problem *p, const tsr_layout *l, const tsr_buffer *b, double sigma);
/* A vector of integers from a list. */
#define GY_INTS(p, name, dtype, list, n) gy_ints((p), &(p)->desc.name, &(p)->args.name, (dtype), (list), (n))
void gy_ints(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, tsr_dtype dtype, const int64_t *list, int64_t n);

/* ---- Runs ------------------------------------------------------------------------------------ */

/* A device at one of its levels. */
typedef struct gy_target {
  tsr_context *context;
  tsr_device *device;
  char name[64]; /* "cpu:0 v3" */
  int host_memory;
  int mirrored; /* runs go through copies on the device */
} gy_target;

/* All that compute; opened once. */
const gy_target *gy_targets(int *count);

/* A plan with the variant forced, and its workspace. */
typedef struct gy_run {
  const gy_target *target;
  const char *variant;
  tsr_plan *plan;
  tsr_plan_info info;
  unsigned char *workspace; /* guard bytes follow it */
  int left_out;             /* not refused, but larger than what tests use of a device */
} gy_run;

/* Plans `p` on a target with a variant; 0: refused, with a reason (anything else fails the test). */
int gy_plan(gy_problem *p, const gy_target *target, const char *variant, gy_run *run);
void gy_unplan(gy_run *run);
/* Backward: fills o and lse of the problem from the oracle, once; gy_plan does so too. */
void gy_forward_results(gy_problem *p);
/* Runs a plan on the memory of p (NULL: of all problems that there are) and a workspace of so many bytes, guards
 * included: in place, or on copies on the device, waited for and read back. */
tsr_status gy_run_plan(const gy_target *target, const tsr_plan *plan, const gy_problem *p, const tsr_run_args *args,
                       const void *workspace, int64_t workspace_bytes, tsr_error *err);
/* Outputs hold 0xff. */
void gy_poison(const gy_problem *p);
/* Poisons outputs and workspace and runs, where only success will do. */
void gy_go(gy_problem *p, gy_run *run);
/* What the run must not have written, all of the outputs included if it failed. */
void gy_untouched(const gy_problem *p, const gy_run *run);
/* All outputs of the last run against the oracle, then what must not be written; leaves outputs poisoned. */
void gy_compare(gy_problem *p, const gy_run *run);

typedef void (*gy_fn)(gy_problem *p, gy_run *run, void *user);
/* fn for every target and variant that accepts; at least one of each target must, unless may_refuse. Returns how many
 * did. */
int gy_each(gy_problem *p, gy_fn fn, void *user);

/* Runs and compares everywhere; `also` (NULL: nothing) sees the results before. */
void gy_check_also(gy_problem *p, gy_fn also, void *user);
void gy_check(gy_problem *p);
/* The same, then frees it. */
void gy_check_free(gy_problem *p);

/* Plan or run answers so on every target, naming a field that begins with `field`; nothing is written. */
void gy_refused(gy_problem *p, tsr_status status, const char *field);
/* The same where tensors are host memory; devices are not asked. */
void gy_refused_on_host(gy_problem *p, tsr_status status, const char *field);
/* The same for what is wrong with a table's numbers, on targets that can see them. Devices are given host copies of
 * lengths; without any they clamp, which is compared with `clamped`: the same problem but for these numbers. */
void gy_refused_numbers(gy_problem *p, const char *field, const tsr_attention_desc *clamped_desc,
                        const tsr_run_args *clamped);

/* A merge or an append on every target and variant, of which each target must have one; the hooks come before and after
 * each run. */
typedef void (*gy_hook)(void *user);
void gy_each_merge(tsr_merge_desc *desc, tsr_merge_args *args, gy_hook before, gy_hook after, void *user);
void gy_each_append(tsr_append_desc *desc, tsr_append_args *args, gy_hook before, gy_hook after, void *user);

/* Bytes of all outputs, guards and gaps included: for bitwise comparisons. Freed by the caller. */
unsigned char *gy_snapshot(const gy_problem *p, size_t *bytes);

/* ---- Tests ----------------------------------------------------------------------------------- */

/* True with --full: the slow shapes too. */
int gy_full(void);
/* Of the test that runs. */
uint64_t gy_seed(void);
/* What is being run, for messages; %s of the case. */
void gy_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails the test with the case, the seed and the message. */
#define gy_fail(...) gy_fail_at(__FILE__, __LINE__, __VA_ARGS__)
void gy_fail_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4), noreturn));

int gy_setup(void **state); /* of each test: name, seed, time limit */
int gy_teardown(void **state);
/* main of a file of tests: runs them, each with its limit. argv: --full, or names of tests. */
#define GY_TEST(f) \
  { #f, f, gy_setup, gy_teardown, #f }
int gy_main(int argc, char **argv, const struct CMUnitTest *tests, size_t count);

#endif
