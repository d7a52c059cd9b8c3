/* SPDX-License-Identifier: Apache-2.0 */
/* A growing text buffer. Running out of memory is remembered in `failed` and makes later calls do nothing,
 * so that a document is built without a test after every call and judged once at its end.
 * Thread-safety: one thread per buffer. */
#ifndef TESSERA_TOOL_TEXT_H
#define TESSERA_TOOL_TEXT_H

#include <stddef.h>

typedef struct tool_text {
  char *data; /* NUL-terminated when len > 0; NULL while empty */
  size_t len, capacity;
  int failed; /* 1: out of memory, the text is incomplete */
} tool_text;

void text_append(tool_text *text, const char *bytes, size_t count);
void text_puts(tool_text *text, const char *string);
void text_printf(tool_text *text, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;
void text_free(tool_text *text);

#endif
