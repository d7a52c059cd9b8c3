/* SPDX-License-Identifier: Apache-2.0 */
/* One change to a description, as data: tables of rules are made of a valid base and what breaks it. */
#ifndef TSR_TEST_DESC_PATCH_H
#define TSR_TEST_DESC_PATCH_H

#include <string.h>

#include "tessera/base.h"

/* A member and its new value of 4 or 8 bytes; or, with the size of a layout, a contiguous layout (dtype NONE: absent).
 * bytes 0: nothing. */
typedef struct desc_patch {
  size_t at, bytes;
  int64_t value;
  tsr_dtype dtype;
  int64_t shape[4];
} desc_patch;

#define PATCH_32(type, member, value)      \
  {                                        \
    offsetof(type, member), 4, value, 0, { \
      0, 0, 0, 0                           \
    }                                      \
  }
#define PATCH_64(type, member, value)      \
  {                                        \
    offsetof(type, member), 8, value, 0, { \
      0, 0, 0, 0                           \
    }                                      \
  }
#define PATCH_LAYOUT(type, member, dtype, ...)              \
  {                                                         \
    offsetof(type, member), sizeof(tsr_layout), 0, dtype, { \
      __VA_ARGS__                                           \
    }                                                       \
  }
#define PATCH_ABSENT(type, member)                                   \
  {                                                                  \
    offsetof(type, member), sizeof(tsr_layout), 0, TSR_DTYPE_NONE, { \
      0, 0, 0, 0                                                     \
    }                                                                \
  }

static inline void desc_patch_apply(void *desc, const desc_patch *patch) {
  char *at = (char *)desc + patch->at;
  const int64_t *s = patch->shape;
  if (patch->bytes == sizeof(tsr_layout)) {
    tsr_layout l = tsr_layout_dense(patch->dtype, s[0], s[1], s[2], s[3]);
    if (patch->dtype == TSR_DTYPE_NONE) {
      memset(&l, 0, sizeof(l));
    }
    memcpy(at, &l, sizeof(l));
  } else if (patch->bytes == 4) {
    const int32_t v = (int32_t)patch->value;
    memcpy(at, &v, 4);
  } else if (patch->bytes == 8) {
    memcpy(at, &patch->value, 8);
  }
}

#endif
