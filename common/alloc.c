/* SPDX-License-Identifier: Apache-2.0 */
#include "common/alloc.h"

#include <stdlib.h>
#include <string.h>

void *tsr__alloc_zero(const tsr__alloc *a, size_t bytes) {
  void *p;
  if (bytes > (size_t)-1 - 64) {
    return NULL;
  }
  bytes = (bytes + 64) & ~(size_t)63; /* aligned_alloc wants a multiple; never 0 */
  p = a != NULL && a->alloc != NULL ? a->alloc(a->user, bytes) : aligned_alloc(64, bytes);
  if (p != NULL) {
    memset(p, 0, bytes);
  }
  return p;
}

void tsr__alloc_free(const tsr__alloc *a, void *ptr) {
  if (ptr == NULL) {
    return;
  }
  if (a != NULL && a->free != NULL) {
    a->free(a->user, ptr);
  } else {
    free(ptr);
  }
}
