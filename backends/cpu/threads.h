/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: OpenMP, the caller's parallel_for, or none; cancellation and progress. The only file that knows OpenMP. */
#ifndef TSR_CPU_THREADS_H
#define TSR_CPU_THREADS_H

#include "backends/cpu/kernels.h"

/* Threads that runs on a device opened now may use: what the host asks for, else what OpenMP would use here. At
 * least 1. */
int32_t tsr__cpu_threads(const tsr__host *host);

/* Runs the launches of run->build one after the other, each item once, and sums the tiles seen into *counts. Errors:
 * TSR_CANCELLED, TSR_FORKED. Thread-safety: any thread, distinct workspaces. */
tsr_status tsr__cpu_phases(const tsr__device *dev, tsr_cpu_run *run, tsr_cpu_counts *counts, tsr_error *err);

#endif
