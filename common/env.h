/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that reads the environment. */
#ifndef TSR_COMMON_ENV_H
#define TSR_COMMON_ENV_H

#include <stdint.h>

enum { TSR__ENV_PATH_BYTES = 1024 }; /* room of a path, its zero included */

/* Values of the TESSERA_* variables of context.h. Strings are empty when unset; num_threads 0, log_level -1. A value
 * that does not parse or fit counts as unset. */
typedef struct tsr__env {
  int32_t log_level;
  int32_t num_threads;
  char device[32];
  char cpu_isa[16];
  char variant[48];
  int32_t compile; /* TSR_COMPILE_*; TSR_COMPILE_DEFAULT when unset */
  char cache_dir[TSR__ENV_PATH_BYTES];
  char nvrtc_path[TSR__ENV_PATH_BYTES];
  char hiprtc_path[TSR__ENV_PATH_BYTES];
  char opencl_path[TSR__ENV_PATH_BYTES];
} tsr__env;

tsr__env tsr__env_read(void);
/* The same with nothing set. */
tsr__env tsr__env_none(void);

#endif
