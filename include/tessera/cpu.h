/* SPDX-License-Identifier: Apache-2.0 */
/* What is particular to the CPU back end.
 *
 * - Memory is the caller's host memory (TSR_MEMORY_HOST, the only kind accepted); tsr_run_args.queue and
 *   the wait list must be 0; a run returns when it is done.
 * - Instruction sets: the kernels are compiled for the levels "x86-64", "v3" and "v4" of the x86-64 psABI (on
 *   other processors: "base"), and the highest one that processor and operating system offer is taken, unless
 *   tsr_context_params.cpu_isa says less.
 * - fork(): OpenMP threads do not survive it. A child of a process in which a context ran with
 *   more than one thread gets TSR_FORKED from runs that would use OpenMP; contexts with num_threads = 1 or a
 *   parallel_for of their own work in the child as before.
 * - The floating-point environment of the caller is neither changed nor relied on, except that runs
 *   expect round-to-nearest. */
#ifndef TESSERA_CPU_H
#define TESSERA_CPU_H

#include "tessera/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instruction set levels this machine offers, lowest first, as text separated by spaces, e.g.
 * "x86-64 v3 v4". Static storage. Thread-safety: any thread. */
TSR_API const char *tsr_cpu_levels(void);

#ifdef __cplusplus
}
#endif
#endif
