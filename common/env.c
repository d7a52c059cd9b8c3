/* SPDX-License-Identifier: Apache-2.0 */
#include "common/env.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/context.h" /* TSR_COMPILE_* */

static int32_t read_int(const char *name, int32_t lo, int32_t hi, int32_t unset) {
  const char *text = getenv(name);
  char *end;
  long value;
  if (text == NULL || *text == '\0') {
    return unset;
  }
  errno = 0;
  value = strtol(text, &end, 10);
  return errno != 0 || *end != '\0' || value < lo || value > hi ? unset : (int32_t)value;
}

static void read_text(const char *name, char *out, size_t bytes) {
  const char *text = getenv(name);
  if (text != NULL && strlen(text) < bytes) {
    memcpy(out, text, strlen(text) + 1);
  }
}

/* One of TSR_COMPILE_*. */
static int32_t read_compile(const char *name) {
  static const char *const words[] = {"", "auto", "never", "always"};
  const char *text = getenv(name);
  for (int32_t i = TSR_COMPILE_AUTO; text != NULL && i <= TSR_COMPILE_ALWAYS; i++) {
    if (strcmp(text, words[i]) == 0) {
      return i;
    }
  }
  return TSR_COMPILE_DEFAULT;
}

tsr__env tsr__env_none(void) {
  tsr__env e;
  memset(&e, 0, sizeof(e));
  e.log_level = -1;
  return e;
}

tsr__env tsr__env_read(void) {
  tsr__env e = tsr__env_none();
  e.log_level = read_int("TESSERA_LOG", 0, 3, -1);
  e.num_threads = read_int("TESSERA_THREADS", 1, 4096, 0);
  read_text("TESSERA_DEVICE", e.device, sizeof(e.device));
  read_text("TESSERA_CPU_ISA", e.cpu_isa, sizeof(e.cpu_isa));
  read_text("TESSERA_VARIANT", e.variant, sizeof(e.variant));
  e.compile = read_compile("TESSERA_COMPILE");
  read_text("TESSERA_CACHE_DIR", e.cache_dir, sizeof(e.cache_dir));
  read_text("TESSERA_NVRTC", e.nvrtc_path, sizeof(e.nvrtc_path));
  read_text("TESSERA_HIPRTC", e.hiprtc_path, sizeof(e.hiprtc_path));
  read_text("TESSERA_OPENCL", e.opencl_path, sizeof(e.opencl_path));
  return e;
}
