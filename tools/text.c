/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int text_reserve(tool_text *text, size_t more) {
  if (text->failed || more > SIZE_MAX / 4 || text->len > SIZE_MAX / 4) {
    text->failed = 1;
    return 0;
  }
  const size_t needed = text->len + more + 1;
  if (needed <= text->capacity)
    return 1;
  size_t capacity = text->capacity ? text->capacity : 256;
  while (capacity < needed)
    capacity *= 2;
  char *data = realloc(text->data, capacity);
  if (!data) {
    text->failed = 1;
    return 0;
  }
  text->data = data;
  text->capacity = capacity;
  return 1;
}

void text_append(tool_text *text, const char *bytes, size_t count) {
  if (count == 0 || !text_reserve(text, count))
    return;
  memcpy(text->data + text->len, bytes, count);
  text->len += count;
  text->data[text->len] = '\0';
}

void text_puts(tool_text *text, const char *string) {
  text_append(text, string, strlen(string));
}

void text_printf(tool_text *text, const char *format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int count = vsnprintf(NULL, 0, format, args);
  va_end(args);
  if (count > 0 && text_reserve(text, (size_t)count)) {
    vsnprintf(text->data + text->len, (size_t)count + 1, format, again);
    text->len += (size_t)count;
  } else if (count < 0) {
    text->failed = 1;
  }
  va_end(again);
}

void text_free(tool_text *text) {
  free(text->data);
  memset(text, 0, sizeof(*text));
}
