/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of `tessera demo`. Each prints for people unless --json, and appends to a JSON document. */
#ifndef TESSERA_TOOL_DEMO_H
#define TESSERA_TOOL_DEMO_H

#include "report.h"
#include "verify.h"

typedef struct demo_state {
  const tool_options *options;
  tool_engine *engine;
  json_writer *w; /* always there; printed at the end with --json */
  const char *data;
  int32_t passed; /* all comparisons so far */
} demo_state;

/* 1. Recorded attention of real models, and what some words look at (demo_words.c). */
tsr_status demo_words(demo_state *demo, tsr_error *err);
/* 2. A long sequence (demo_parts.c). */
tsr_status demo_long(demo_state *demo, tsr_error *err);
/* 3. All devices, instruction set levels and variants. */
tsr_status demo_devices(demo_state *demo, tsr_error *err);
/* 4. Beside materialised attention; writes the chart. */
tsr_status demo_standard(demo_state *demo, const char *svg, tsr_error *err);

/* Options of a problem inside the demonstration: where and how from the command line, nothing else. */
tool_options demo_options(const demo_state *demo);

#endif
