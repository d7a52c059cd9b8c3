/* SPDX-License-Identifier: Apache-2.0 */
/* Measuring one problem, with or without materialised attention beside; used by `bench` and `demo`. */
#ifndef TESSERA_TOOL_BENCH_H
#define TESSERA_TOOL_BENCH_H

#include "measure.h"
#include "report.h"

typedef struct bench_case {
  tsr_dtype dtype;
  int64_t head_dim, seqlen;
  int32_t causal;
  int32_t beside_standard;
  int32_t repeats; /* least */
  double min_seconds;
} bench_case;

typedef struct bench_point {
  bench_case of;
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k;
  char variant[48];
  measure_time time;
  double flops;
  double bytes; /* read and written, by the IO model */
  int64_t workspace_bytes;
  int64_t
      peak_bytes; /* resident memory beyond inputs and outputs; -1: not known, or a device's: the workspace is all */

  int32_t has_standard; /* 0: not asked for, or its scores do not fit */
  measure_time standard;
  int64_t standard_scratch_bytes; /* what it needs, run or not */
  int64_t standard_peak_bytes;
  double difference; /* largest |o - standard's o| */
} bench_point;

/* Random input of the options' sizes with the case's own. */
tsr_status bench_measure(tool_engine *engine, const tool_options *options, const bench_case *of, bench_point *point,
                         tsr_error *err);

/* A table's heading and rows. columns: with those about standard attention or without. */
void bench_print_heading(const tool_term *term, int standard);
void bench_print_point(const tool_term *term, const bench_point *point, int standard);

void bench_json(json_writer *w, const bench_point *point);

/* A chart of points over the sequence length: time and memory beside standard's, or else the rate. */
void bench_chart(tool_text *out, const bench_point *points, int32_t count, int standard, const char *machine);

#endif
