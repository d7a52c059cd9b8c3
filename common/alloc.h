/* SPDX-License-Identifier: Apache-2.0 */
/* The embedder's host allocator, or malloc. */
#ifndef TSR_COMMON_ALLOC_H
#define TSR_COMMON_ALLOC_H

#include <stddef.h>

typedef struct tsr__alloc {
  void *(*alloc)(void *user, size_t bytes);
  void (*free)(void *user, void *ptr);
  void *user;
} tsr__alloc;

/* Zeroed memory aligned to 64 bytes, or NULL; bytes 0 gives memory too. a NULL or a->alloc NULL: the C library's. */
void *tsr__alloc_zero(const tsr__alloc *a, size_t bytes);
/* ptr NULL is accepted. */
void tsr__alloc_free(const tsr__alloc *a, void *ptr);

#endif
