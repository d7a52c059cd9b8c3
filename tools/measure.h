/* SPDX-License-Identifier: Apache-2.0 */
/* Time and memory of repeated work. */
#ifndef TESSERA_TOOL_MEASURE_H
#define TESSERA_TOOL_MEASURE_H

#include "tool.h"

typedef struct measure_time {
  int32_t repeats;
  double median, least, most; /* seconds */
} measure_time;

/* Calls work(arg) once to warm up, then at least `repeats` times and for at least min_seconds (at most 200 times).
 * Stops with TSR_CANCELLED when interrupted, and with work's own failure. */
tsr_status measure_repeat(tsr_status (*work)(void *arg, tsr_error *err), void *arg, int32_t repeats, double min_seconds,
                          measure_time *time, tsr_error *err);

/* Peak of this process's resident memory between the two calls, above what was resident at the first. The second
 * returns -1 where the system keeps no such account (Linux does). */
typedef struct measure_memory {
  int64_t start_bytes; /* -1: unknown */
} measure_memory;
void measure_memory_begin(measure_memory *memory);
int64_t measure_memory_end(const measure_memory *memory);

#endif
