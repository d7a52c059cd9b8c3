/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include <stdarg.h>
#include <stdio.h>

void tsr__log(const tsr__host *host, int32_t level, const char *fmt, ...) {
  char text[512];
  va_list ap;
  if (host->log == NULL || level > host->log_level) {
    return;
  }
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  for (char *c = text; *c != '\0'; c++) { /* a driver's own words may have lines */
    *c = *c == '\n' || *c == '\r' ? ' ' : *c;
  }
  host->log(host->user, level, text);
}

void tsr__log_stderr(void *user, int32_t level, const char *text) {
  static const char *const names[] = {"error", "warning", "info", "debug"};
  (void)user;
  fprintf(stderr, "tessera: %s: %s\n", names[level < 0 || level > 3 ? 3 : level], text);
}
