/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by gpu.c, gpu_source.c, gpu_variant.c and gpu_run.c. */
#ifndef TSR_COMMON_GPU_INT_H
#define TSR_COMMON_GPU_INT_H

#include <string.h>

#include "common/gpu.h"

/* Rows of the portable family. */
extern const tsr__variant *const tsr__gpu_variants[];
extern const int32_t tsr__gpu_num_variants;

/* A launch's key, which lives in tsr__launch.key. */
static inline tsr__kernel_key tsr__gpu_key(const tsr__launch *launch) {
  tsr__kernel_key key;
  memcpy(&key, launch->key, sizeof(key));
  return key;
}

enum { TSR__GPU_MAX_PIECES = 24, TSR__GPU_DEFINES_BYTES = 1024 };

/* A kernel's text; source points into it. */
typedef struct tsr__gpu_text {
  char defines[TSR__GPU_DEFINES_BYTES];
  const char *pieces[TSR__GPU_MAX_PIECES];
  tsr__gpu_source source;
} tsr__gpu_text;

/* The text of a key's kernel. `emitted` has the functions of its expressions ("" : none) and outlives *text. Errors:
 * TSR_UNSUPPORTED where this build has no such text. */
tsr_status tsr__gpu_text_make(const tsr__kernel_key *key, const char *emitted, tsr__gpu_text *text, tsr_error *err);

/* The kernel of a key on a device, compiled or loaded if it is not there yet. p has the expressions that the key's
 * hashes name. Errors: as tsr__gpu_driver's, TSR_OUT_OF_MEMORY. Thread-safety: any thread. */
tsr_status tsr__gpu_kernel_get(const tsr__device *dev, const tsr__kernel_key *key, const tsr__op_problem *p,
                               const tsr__gpu_kernel **kernel, tsr_error *err);

/* The workspace among the slots of common/device/gpu_args.h. */
enum { TSR__GPU_SLOT_WORKSPACE = -1, TSR_SLOT_workspace = TSR__GPU_SLOT_WORKSPACE };

/* Where gpu_variant.c leaves things in tsr__plan_build.own: byte offsets in the workspace, -1: none. */
enum { TSR__GPU_OWN_ITEM_MAX, TSR__GPU_OWN_DELTA, TSR__GPU_OWN_LIST, TSR__GPU_OWN_MERGE };

#endif
