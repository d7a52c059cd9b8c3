/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tool.h"

void tool_error(tsr_error *err, tsr_status status, const char *field, const char *format, ...) {
  char text[sizeof(err->text)];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  memset(err, 0, sizeof(*err));
  err->status = status;
  snprintf(err->field, sizeof(err->field), "%s", field);
  memcpy(err->text, text, sizeof(text));
}

int tool_exit_code(tsr_status status) {
  switch (status) {
  case TSR_OK: return TOOL_OK;
  case TSR_INVALID: return TOOL_INVALID;
  case TSR_UNSUPPORTED: return TOOL_UNSUPPORTED;
  case TSR_BACKEND_MISSING: return TOOL_MISSING;
  case TSR_CANCELLED: return TOOL_INTERRUPTED;
  default: return TOOL_FAILED;
  }
}
