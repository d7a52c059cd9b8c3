/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by cache_ops.c and cache_bind.c. */
#ifndef TSR_COMMON_VALIDATE_CACHE_H
#define TSR_COMMON_VALIDATE_CACHE_H

#include "common/cache_ops.h"
#include "common/validate.h"

/* What a run of fewer sequences or tokens than the plan's uses of a tensor. */
enum {
  TSR__APPEND_ALL,
  TSR__APPEND_TOKENS, /* dense: the first `batch` of axis 0; packed: the first total_new of axis 1 */
  TSR__APPEND_BATCH,  /* the first `batch` of axis 0 */
  TSR__APPEND_STARTS, /* one more than that */
  TSR__APPEND_CACHE   /* dense: the first `batch` of axis 0; paged: any page */
};

/* Every tensor of an append: where it is in the description and in the arguments. */
typedef struct tsr__append_slot {
  const char *name;
  size_t desc_offset, args_offset;
  int writes; /* 2: only with dynamic scales */
  int uses;   /* TSR__APPEND_* */
} tsr__append_slot;

enum { TSR__APPEND_SLOTS = 14 };
extern const tsr__append_slot tsr__append_slots[TSR__APPEND_SLOTS];

#endif
