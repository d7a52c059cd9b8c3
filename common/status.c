/* SPDX-License-Identifier: Apache-2.0 */
#include "common/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TSR__STR2(x) #x
#define TSR__STR(x) TSR__STR2(x)

const char *tsr_version(void) {
  return TSR__STR(TSR_VERSION_MAJOR) "." TSR__STR(TSR_VERSION_MINOR) "." TSR__STR(TSR_VERSION_PATCH);
}

const char *tsr_status_name(tsr_status status) {
  static const char *const names[] = {"ok",
                                      "invalid",
                                      "unsupported",
                                      "out of workspace",
                                      "out of memory",
                                      "backend missing",
                                      "device error",
                                      "device lost",
                                      "cancelled",
                                      "forked",
                                      "io"};
  if (status < 0 || (size_t)status >= sizeof(names) / sizeof(names[0])) {
    return "unknown";
  }
  return names[status];
}

tsr_status tsr__fail(tsr_error *err, tsr_status status, const char *field, const char *fmt, ...) {
  if (err != NULL) {
    va_list ap;
    memset(err, 0, sizeof(*err));
    err->status = status;
    snprintf(err->field, sizeof(err->field), "%s", field);
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
    va_end(ap);
  }
  return status;
}

tsr_status tsr__ok(tsr_error *err) {
  if (err != NULL) {
    memset(err, 0, sizeof(*err));
  }
  return TSR_OK;
}
