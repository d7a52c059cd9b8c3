/* SPDX-License-Identifier: Apache-2.0 */
/* The back end "cpu": one device, the machine's processors; the family of the highest instruction set level. */
#include <stdio.h>
#include <string.h>

#include "backends/cpu/isa.h"
#include "backends/cpu/threads.h"

enum { LOCAL_BYTES = 1 << 20 }; /* L2 that a thread is assumed to have */

static int32_t count_devices(const tsr__host *host, char *why_not, size_t bytes) {
  (void)host;
  (void)why_not;
  (void)bytes;
  return 1;
}

static tsr_status open_device(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  const tsr_cpu_family *family;
  char brand[64];
  const tsr_status st = tsr__cpu_family(host->cpu_isa, &family, err);
  if (st != TSR_OK) {
    return st;
  }
  tsr__cpu_brand(brand, sizeof(brand));
  dev->host = host;
  dev->state = NULL;
  dev->num_threads = tsr__cpu_threads(host);
  snprintf(dev->name, sizeof(dev->name), "cpu:%d", index);
  snprintf(dev->description, sizeof(dev->description), "%s, %d thread%s, %s", brand, dev->num_threads,
           dev->num_threads == 1 ? "" : "s", family->level);
  snprintf(dev->isa, sizeof(dev->isa), "%s", family->level);
  dev->computes = 1;
  dev->host_memory = 1;
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE | 1 << TSR_MEMORY_HOST;
  dev->local_bytes = LOCAL_BYTES;
  dev->variants = family->variants;
  dev->num_variants = family->num_variants;
  return TSR_OK;
}

static void close_device(tsr__device *dev) {
  (void)dev;
}

static tsr_status run_attention(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                                const tsr__bound *bound, const tsr_run_args *args, tsr_error *err) {
  tsr_cpu_run run;
  tsr_cpu_counts counts;
  tsr_status st;
  (void)args; /* bound has them all */
  memset(&run, 0, sizeof(run));
  run.problem = p;
  run.build = build;
  run.bound = bound;
  run.workspace = bound->workspace;
  run.dropout_key = tsr_dropout_key(bound->args.seed, bound->args.offset);
  st = tsr__cpu_phases(dev, &run, &counts, err);
  if (st == TSR_OK && bound->stats != NULL) {
    bound->stats->tiles_full = counts.full;
    bound->stats->tiles_partial = counts.partial;
    bound->stats->tiles_skipped = counts.skipped;
  }
  return st;
}

static tsr_status run_append(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                             const tsr_append_args *args, tsr_error *err) {
  tsr_cpu_run run;
  tsr_cpu_counts counts;
  memset(&run, 0, sizeof(run));
  run.problem = p;
  run.build = build;
  run.append = args;
  run.workspace = tsr__buffer_address(&args->workspace);
  return tsr__cpu_phases(dev, &run, &counts, err);
}

static tsr_status run_merge(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                            const tsr_merge_args *args, tsr_error *err) {
  tsr_cpu_run run;
  tsr_cpu_counts counts;
  memset(&run, 0, sizeof(run));
  run.problem = p;
  run.build = build;
  run.merge = args;
  run.workspace = tsr__buffer_address(&args->workspace);
  return tsr__cpu_phases(dev, &run, &counts, err);
}

extern const tsr__backend tsr__backend_cpu;
const tsr__backend tsr__backend_cpu = {
    .abi = TSR__BACKEND_ABI,
    .name = "cpu",
    .computes = 1,
    .count = count_devices,
    .open = open_device,
    .close = close_device,
    .run_attention = run_attention,
    .run_append = run_append,
    .run_merge = run_merge,
};
