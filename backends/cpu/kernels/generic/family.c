/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cpu/kernels/generic/generic.h"

#define QUOTE2(x) #x
#define QUOTE(x) QUOTE2(x)

static const tsr__variant *const rows[] = {
    &TSR_CPU_NAME(forward),
    &TSR_CPU_NAME(backward),
    &TSR_CPU_NAME(append),
    &TSR_CPU_NAME(merge),
};

const tsr_cpu_family TSR_CPU_NAME(generic) = {QUOTE(TSR_CPU_LEVEL_TEXT), rows, sizeof(rows) / sizeof(rows[0])};
