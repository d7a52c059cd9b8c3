/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction set levels this machine offers, and the family compiled for one. */
#ifndef TSR_CPU_ISA_H
#define TSR_CPU_ISA_H

#include "backends/cpu/kernels.h"

/* The family of level `name`; "" or NULL: the highest level that processor and operating system offer. Errors:
 * TSR_UNSUPPORTED (a level that is unknown, or that the machine lacks). Thread-safety: any thread. */
tsr_status tsr__cpu_family(const char *name, const tsr_cpu_family **family, tsr_error *err);

/* The processor's own name for itself, or "CPU". */
void tsr__cpu_brand(char *out, size_t bytes);

#endif
