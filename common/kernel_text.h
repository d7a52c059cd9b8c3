/* SPDX-License-Identifier: Apache-2.0 */
/* The files of common/device as text in the library, made by tools/embed.c from the list in common/meson.build. */
#ifndef TSR_COMMON_KERNEL_TEXT_H
#define TSR_COMMON_KERNEL_TEXT_H

#include <stddef.h>
#include <string.h>

typedef struct tsr__kernel_text {
  const char *name; /* path below common/device, e.g. "simt/forward.h" */
  const char *text; /* ended by a zero byte */
  size_t bytes;     /* without it */
} tsr__kernel_text;

/* Ended by a row whose name is NULL. */
extern const tsr__kernel_text tsr__kernel_texts[];

/* The text of a file; NULL if it is not in the list. */
static inline const char *tsr__kernel_text_find(const char *name) {
  for (const tsr__kernel_text *t = tsr__kernel_texts; t->name != NULL; t++) {
    if (strcmp(t->name, name) == 0) {
      return t->text;
    }
  }
  return NULL;
}

#endif
