/* SPDX-License-Identifier: Apache-2.0 */
/* What a CPU kernel family offers: one table of functions per instruction set level, filled by files that are compiled
 * with that level's flags and chosen once when the device is opened. */
#ifndef TSR_CPU_KERNELS_H
#define TSR_CPU_KERNELS_H

#include "common/backend.h"

struct tsr_cpu_progress;

/* One run, as kernels see it. Const but for the progress counters; shared by all threads. */
typedef struct tsr_cpu_run {
  const tsr__op_problem *problem;
  const tsr__plan_build *build;
  const tsr__bound *bound;       /* attention */
  const tsr_append_args *append; /* append: imported, full size */
  const tsr_merge_args *merge;   /* merge: imported, full size */
  tsr_philox_key dropout_key;    /* attention with dropout */
  void *workspace;
  struct tsr_cpu_progress *progress; /* see tsr__cpu_poll */
} tsr_cpu_run;

/* Tiles seen by one item; summed into tsr_run_stats. */
typedef struct tsr_cpu_counts {
  int64_t full, partial, skipped;
} tsr_cpu_counts;

/* Asks should_stop, about once a millisecond a worker; cheap enough to call for every tile. Nonzero: the run is
 * cancelled and the item should return at once (its outputs no longer matter). */
int tsr__cpu_poll(const tsr_cpu_run *run);

/* Computes item `item` of a phase with `scratch` (launch.local_bytes, 64-byte aligned, private to the worker, arbitrary
 * contents). */
typedef void tsr_cpu_item(const tsr_cpu_run *run, int64_t item, void *scratch, tsr_cpu_counts *counts);

/* A phase: what tsr__launch.kernel points to on the CPU. */
typedef struct tsr_cpu_phase {
  tsr_cpu_item *item;
} tsr_cpu_phase;

typedef struct tsr_cpu_family {
  const char *level;                   /* "x86-64", "v3", "v4"; "base" elsewhere */
  const tsr__variant *const *variants; /* best first: forward, backward, append, merge rows of the family */
  int32_t num_variants;
} tsr_cpu_family;

extern const tsr_cpu_family tsr__cpu_generic_base;
#if defined(__x86_64__)
extern const tsr_cpu_family tsr__cpu_generic_v3, tsr__cpu_generic_v4;
#endif

/* Helpers of every family's build functions. */

/* Places the scratch of all launches behind the `bytes` of workspace that the variant has used so far: sets scratch and
 * workspace_bytes. The launches' local_bytes must be set. */
void tsr__cpu_place_scratch(const tsr__device *dev, tsr__plan_build *build, int64_t bytes);

/* Bytes rounded up to the alignment of everything in a workspace. */
static inline int64_t tsr_cpu_round(int64_t bytes) {
  return (bytes + TSR__WORKSPACE_ALIGN - 1) & ~(int64_t)(TSR__WORKSPACE_ALIGN - 1);
}

#endif
