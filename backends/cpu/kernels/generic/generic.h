/* SPDX-License-Identifier: Apache-2.0 */
/* The family's text is compiled once per instruction set level; TSR_CPU_LEVEL is that level's suffix (base, v3, v4),
 * and TSR_CPU_LANES the f32 lanes of its vectors (4, 8, 16). */
#ifndef TSR_CPU_GENERIC_H
#define TSR_CPU_GENERIC_H

#include "backends/cpu/kernels.h"

/* External name of this level's x: TSR_CPU_NAME(forward) is tsr__cpu_forward_v4. */
#define TSR_CPU_PASTE2(x, level) tsr__cpu_##x##_##level
#define TSR_CPU_PASTE(x, level) TSR_CPU_PASTE2(x, level)
#define TSR_CPU_NAME(x) TSR_CPU_PASTE(x, TSR_CPU_LEVEL)

/* The family's rows, one file each. */
extern const tsr__variant TSR_CPU_NAME(forward), TSR_CPU_NAME(backward), TSR_CPU_NAME(append), TSR_CPU_NAME(merge);

#endif
