/* SPDX-License-Identifier: Apache-2.0 */
/* Between standard.c and standard_kernel.c, which is compiled once per instruction set level. */
#ifndef TESSERA_TOOL_STANDARD_KERNEL_H
#define TESSERA_TOOL_STANDARD_KERNEL_H

#include "standard.h"

/* Columns of a packed panel: two vectors of the widest level. */
enum { STANDARD_PANEL = 32 };

static inline int64_t standard_panels(int64_t columns) {
  return (columns + STANDARD_PANEL - 1) / STANDARD_PANEL;
}

/* Floats from one row of scores to the next: rows a power of two apart would fall on the same cache lines. */
static inline int64_t standard_row(int64_t seqlen_k) {
  return (seqlen_k + 15) / 16 * 16 + 16;
}

typedef struct standard_scratch {
  float *scores;   /* [B,H,Sq,Sk], rows standard_row apart */
  float *k_panels; /* [B,Hkv][panels of keys][D][STANDARD_PANEL] */
  float *v_panels; /* [B,Hkv][panels of channels][Sk][STANDARD_PANEL] */
} standard_scratch;

typedef void standard_kernel(const standard_problem *problem, const standard_scratch *scratch);
standard_kernel standard_run_base;
#if defined(__x86_64__)
standard_kernel standard_run_v3, standard_run_v4;
#endif

#endif
