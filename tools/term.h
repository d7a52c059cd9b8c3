/* SPDX-License-Identifier: Apache-2.0 */
/* The terminal: colours on stdout, a progress bar on stderr, and Ctrl-C.
 *
 * Colour is used when stdout is a terminal, NO_COLOR is unset or empty and TERM is not "dumb" (or as
 * --color says). The bar is drawn only when stderr is a terminal. Characters beyond ASCII are used when the
 * locale's encoding is UTF-8. */
#ifndef TESSERA_TOOL_TERM_H
#define TESSERA_TOOL_TERM_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

#include "text.h"

enum { TERM_COLOR_AUTO = 0, TERM_COLOR_ALWAYS = 1, TERM_COLOR_NEVER = 2 };

typedef struct tool_term {
  int32_t color; /* stdout may carry escape sequences */
  int32_t utf8;
  int32_t tty;     /* stdout is a terminal: tables may be redrawn */
  int32_t bar;     /* stderr is a terminal: progress is shown */
  int32_t columns; /* width of the terminal, 80 if unknown */
} tool_term;

/* Sets the locale's character type as a side effect. Call once, early. */
void term_init(tool_term *term, int32_t color_mode);

typedef enum {
  STYLE_RESET,
  STYLE_BOLD,
  STYLE_DIM,
  STYLE_RED,
  STYLE_GREEN,
  STYLE_YELLOW,
  STYLE_BLUE,
  STYLE_CYAN
} term_style_kind;
/* The escape sequence, "" without colour. Static storage. */
const char *term_style(const tool_term *term, term_style_kind style);

/* A heading line: bold, then dim remark (NULL: none). */
void term_heading(const tool_term *term, const char *title, const char *remark);

/* ---- Progress and interruption --------------------------------------------------------------- */

/* From now on Ctrl-C (and SIGTERM) only sets a flag; a second one ends the process. */
void term_catch_interrupts(void);
/* 1 once interrupted. Thread-safety: any thread. */
int term_interrupted(void);

/* One bar at a time. label NULL: silent. Updates come from many threads; one of them draws, at most ten times
 * a second. */
typedef struct tool_progress {
  const tool_term *term;
  const char *label;
  double start; /* seconds */
  double delay; /* nothing is shown before, so that short work leaves no trace */
  _Atomic int64_t next_draw_ms;
  atomic_flag drawing;
  atomic_int visible;
} tool_progress;

void progress_begin(tool_progress *progress, const tool_term *term, const char *label);
/* Returns 1 if the work should stop. Thread-safety: any thread. */
int progress_update(tool_progress *progress, int64_t done, int64_t total);
/* Removes the bar. */
void progress_end(tool_progress *progress);

/* Seconds of a monotonic clock. */
double term_seconds(void);

/* ---- Numbers for people ---------------------------------------------------------------------- */

/* "1.24 ms", "512 MiB", "131,072", "438 GFLOP/s", into a caller's array; each returns it. */
typedef char term_number[40];
const char *format_seconds(term_number out, double seconds);
const char *format_bytes(term_number out, double bytes);
const char *format_count(term_number out, double count); /* thousands apart; a power of ten above 10^15 */
const char *format_flops(term_number out, double flops_per_second);

#endif
