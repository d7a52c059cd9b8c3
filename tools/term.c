/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "term.h"

#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* Signal handlers can reach nothing else. */
static volatile sig_atomic_t interrupted;

void term_init(tool_term *term, int32_t color_mode) {
  const char *no_color = getenv("NO_COLOR"), *kind = getenv("TERM");
  struct winsize size;
  memset(term, 0, sizeof(*term));
  setlocale(LC_CTYPE, "");
  term->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  term->tty = isatty(STDOUT_FILENO);
  const int plain = (no_color && *no_color) || !kind || strcmp(kind, "dumb") == 0;
  term->color = color_mode == TERM_COLOR_ALWAYS || (color_mode == TERM_COLOR_AUTO && term->tty && !plain);
  term->bar = isatty(STDERR_FILENO) && kind && strcmp(kind, "dumb") != 0;
  term->columns = 80;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20)
    term->columns = size.ws_col;
}

const char *term_style(const tool_term *term, term_style_kind style) {
  static const char *const codes[] = {"\x1b[0m",  "\x1b[1m",  "\x1b[2m",  "\x1b[31m",
                                      "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[36m"};
  return term->color ? codes[style] : "";
}

void term_heading(const tool_term *term, const char *title, const char *remark) {
  printf("%s%s%s", term_style(term, STYLE_BOLD), title, term_style(term, STYLE_RESET));
  if (remark)
    printf("  %s%s%s", term_style(term, STYLE_DIM), remark, term_style(term, STYLE_RESET));
  printf("\n");
}

/* ---- Progress and interruption --------------------------------------------------------------- */

static void on_interrupt(int number) {
  (void)number;
  interrupted = 1;
}

void term_catch_interrupts(void) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_handler = on_interrupt;
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

int term_interrupted(void) {
  return interrupted != 0;
}

double term_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void progress_begin(tool_progress *progress, const tool_term *term, const char *label) {
  progress->term = term;
  progress->label = label;
  progress->start = term_seconds();
  progress->delay = 0.4;
  atomic_store(&progress->next_draw_ms, 0);
  atomic_flag_clear(&progress->drawing);
  atomic_store(&progress->visible, 0);
}

static void draw_bar(tool_progress *progress, double share, double elapsed) {
  const tool_term *term = progress->term;
  enum { CELLS = 32 };
  char bar[CELLS * 3 + 1];
  size_t used = 0;
  const double filled = share * CELLS;
  for (int i = 0; i < CELLS; i++) {
    const double cell = filled - i;
    if (!term->utf8) {
      bar[used++] = cell >= 0.5 ? '#' : '.';
      continue;
    }
    /* U+2588 is a full block, U+2589 .. U+258F seven to one eighths */
    const int eighths = cell >= 1 ? 8 : cell <= 0 ? 0 : (int)(cell * 8);
    memcpy(bar + used, eighths ? "\xE2\x96\x88" : "\xE2\x94\x80", 3);
    if (eighths > 0)
      bar[used + 2] = (char)(0x88 + (8 - eighths));
    used += 3;
  }
  bar[used] = '\0';
  term_number spent, left;
  fprintf(stderr, "\r\x1b[K%s %s %3.0f %%  %s", progress->label, bar, 100 * share, format_seconds(spent, elapsed));
  if (share > 0.02 && share < 1)
    fprintf(stderr, ", %s left", format_seconds(left, elapsed / share - elapsed));
  fflush(stderr);
  atomic_store(&progress->visible, 1);
}

int progress_update(tool_progress *progress, int64_t done, int64_t total) {
  if (interrupted)
    return 1;
  if (!progress->label || !progress->term || !progress->term->bar || total <= 0)
    return 0;
  const double elapsed = term_seconds() - progress->start;
  const int64_t now_ms = (int64_t)(elapsed * 1e3);
  if (elapsed < progress->delay || now_ms < atomic_load(&progress->next_draw_ms))
    return 0;
  if (atomic_flag_test_and_set(&progress->drawing))
    return 0;
  if (now_ms >= atomic_load(&progress->next_draw_ms)) {
    atomic_store(&progress->next_draw_ms, now_ms + 100);
    const double share = (double)done / (double)total;
    draw_bar(progress, share < 0 ? 0 : share > 1 ? 1 : share, elapsed);
  }
  atomic_flag_clear(&progress->drawing);
  return 0;
}

void progress_end(tool_progress *progress) {
  if (atomic_exchange(&progress->visible, 0)) {
    fprintf(stderr, "\r\x1b[K");
    fflush(stderr);
  }
  progress->label = NULL;
}

/* ---- Numbers for people ---------------------------------------------------------------------- */

static int decimals(double value) {
  return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

const char *format_seconds(term_number out, double seconds) {
  static const char *const units[] = {"s", "ms", "us", "ns"};
  int unit = 0;
  while (unit < 3 && fabs(seconds) < 0.9995) {
    seconds *= 1e3;
    unit++;
  }
  snprintf(out, sizeof(term_number), "%.*f %s", decimals(seconds), seconds, units[unit]);
  return out;
}

const char *format_bytes(term_number out, double bytes) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  int unit = 0;
  while (unit < 6 && bytes >= 1023.5) {
    bytes /= 1024;
    unit++;
  }
  snprintf(out, sizeof(term_number), "%.*f %s", unit == 0 || bytes == floor(bytes) ? 0 : decimals(bytes), bytes,
           units[unit]);
  return out;
}

const char *format_count(term_number out, double count) {
  char digits[40];
  if (!(fabs(count) < 1e15)) {
    snprintf(out, sizeof(term_number), "%.3g", count);
    return out;
  }
  const int length = snprintf(digits, sizeof(digits), "%.0f", count);
  size_t used = 0;
  for (int i = 0; i < length; i++) {
    out[used++] = digits[i];
    if (digits[i] != '-' && i + 1 < length && (length - i - 1) % 3 == 0)
      out[used++] = ',';
  }
  out[used] = '\0';
  return out;
}

const char *format_flops(term_number out, double flops) {
  static const char *const units[] = {"FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"};
  int unit = 0;
  while (unit < 5 && flops >= 999.5) {
    flops /= 1e3;
    unit++;
  }
  snprintf(out, sizeof(term_number), "%.*f %s", decimals(flops), flops, units[unit]);
  return out;
}
