/* SPDX-License-Identifier: Apache-2.0 */
/* What is behind the opaque types. Each holds a reference on the one below it: plan, device, context. */
#ifndef TSR_COMMON_OBJECTS_H
#define TSR_COMMON_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/backend.h"
#include "common/env.h"

enum { TSR__MAX_BACKENDS = 16 };

struct tsr_context {
  atomic_int refs;
  tsr__host host;
  char device[32]; /* preferred, "" : none */
  char cpu_isa[16];
  char variant[48]; /* forced in every plan, "" : none */
  char cache_dir[TSR__ENV_PATH_BYTES];
  char nvrtc_path[TSR__ENV_PATH_BYTES];
  char hiprtc_path[TSR__ENV_PATH_BYTES];
  char opencl_path[TSR__ENV_PATH_BYTES];
  const tsr__backend *backends[TSR__MAX_BACKENDS];
  void *modules[TSR__MAX_BACKENDS];        /* dlopen handles; NULL for built-in ones */
  pthread_mutex_t count_lock;              /* of the two below, which are filled when first asked for */
  int32_t device_count[TSR__MAX_BACKENDS]; /* -1: not asked yet */
  char why_not[TSR__MAX_BACKENDS][192];
  int32_t num_backends;
};

struct tsr_device {
  atomic_int refs;
  tsr_context *context;
  const tsr__backend *backend;
  tsr__device dev;
};

struct tsr_plan {
  atomic_int refs;
  tsr_device *device;
  const tsr__variant *variant;
  tsr__op_problem problem;
  tsr__plan_build build;
};

void tsr__device_ref(tsr_device *device);

/* 1 with a reason of one line if the device does not compute on that memory (TSR_MEMORY_*), else 0. */
int tsr__memory_refused(const tsr_device *device, int32_t memory, char *reason, size_t reason_bytes);

/* Picks a variant: the forced name (NULL or "": none; then the context's), else the first that accepts. Errors:
 * TSR_INVALID (no variant of that name), TSR_UNSUPPORTED with the last reason. */
tsr_status tsr__variant_select(const tsr_device *device, const tsr__op_problem *problem, const char *forced,
                               const tsr__variant **variant, tsr_error *err);

/* Bytes and FLOPs of a plan by the IO model; see cost.c. */
void tsr__cost(const tsr__problem *p, const tsr__plan_build *build, tsr_plan_info *info);

#endif
