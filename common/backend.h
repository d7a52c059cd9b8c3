/* SPDX-License-Identifier: Apache-2.0 */
/* THE vtable: the only core header a back end includes (with those it includes in turn).
 *
 * A back end offers devices, each with ordered lists of variants (best first, the plain one last). The core validates,
 * asks variants in order, lets the chosen one build its launches, and hands runs to the back end with bound arguments.
 * Back ends may assume a valid problem and valid arguments. Everything a back end gets is const after plan; all
 * functions are called from any thread unless said otherwise. */
#ifndef TSR_COMMON_BACKEND_H
#define TSR_COMMON_BACKEND_H

#include "common/bind.h"
#include "common/cache_ops.h"
#include "common/schedule.h"
#include "common/tiles.h"

#define TSR__BACKEND_ABI TSR_VERSION_MAJOR * 10000 + TSR_VERSION_MINOR * 100 + TSR_VERSION_PATCH
#define TSR__MODULE_ENTRY "tsr__module_backend" /* const tsr__backend *tsr__module_backend(void) */

enum {
  TSR__MAX_LAUNCHES = 8,
  TSR__WORKSPACE_ALIGN = 64,
  TSR__PARTIAL_WORDS = 4 /* f32 a row of partial results may take besides its O; tsr_workspace_bound counts on it */
};

/* What the context gives back ends. */
typedef struct tsr__host {
  tsr__alloc alloc;
  void (*log)(void *user, int32_t level, const char *text);
  int32_t log_level;
  int32_t num_threads; /* 0: back end's default */
  void (*parallel_for)(void *user, int64_t n, void (*body)(void *arg, int64_t i, int32_t worker), void *arg);
  int32_t (*should_stop)(void *user, int64_t done, int64_t total);
  void *user;
  const char *cpu_isa; /* "" : none asked for */
  int32_t validate;
  int32_t compile;       /* TSR_COMPILE_AUTO, _NEVER, _ALWAYS: common/image.c acts on these three */
  const char *cache_dir; /* "" : none */
  int64_t (*cache_get)(void *user, const char *name, void *data, int64_t bytes);
  void (*cache_put)(void *user, const char *name, const void *data, int64_t bytes);
  const char *nvrtc_path, *hiprtc_path, *opencl_path; /* libraries to open; "" : the back end's fixed names */
} tsr__host;

/* A problem of any operation. */
typedef struct tsr__op_problem {
  int32_t op;        /* TSR_OP_* */
  tsr__problem attn; /* forward, backward */
  tsr__append_problem append;
  tsr__merge_problem merge;
} tsr__op_problem;

/* One step of a run. `null` records these, the CPU runs them one after the other, devices enqueue them. */
typedef struct tsr__launch {
  const char *name;    /* "forward", "merge", ... static storage */
  int64_t items;       /* work groups / parallel items */
  int64_t local_bytes; /* scratch of one item; from the workspace on the CPU, one piece a thread */
  const void *kernel;  /* the back end's own: a table entry; devices: what prepare found for `key` */
  int64_t key[8];      /* devices: which kernel is wanted (common/gpu.h), else 0 */
} tsr__launch;

/* What a variant decides when it builds a plan. It comes with the schedule, the row's tiles and the values below that
 * say so, all else 0. */
typedef struct tsr__plan_build {
  tsr__schedule schedule; /* attention only */
  tsr__launch launches[TSR__MAX_LAUNCHES];
  int32_t num_launches;
  int32_t tile_q, tile_k;
  int64_t workspace_bytes;
  int64_t workspace_align;        /* TSR__WORKSPACE_ALIGN unless the variant wants more */
  int64_t partial_o, partial_lse; /* byte offsets in the workspace; -1: none */
  int64_t scratch;                /* byte offset of the per-thread scratch; -1: none */
  int64_t own[8];                 /* the variant's own offsets and sizes */
} tsr__plan_build;

/* Appends a launch; at most TSR__MAX_LAUNCHES. */
static inline void tsr__add_launch(tsr__plan_build *build, const char *name, int64_t items, int64_t local_bytes,
                                   const void *kernel) {
  const tsr__launch launch = {name, items, local_bytes, kernel, {0}};
  build->launches[build->num_launches++] = launch;
}

struct tsr__device;

/* A row of a variant table. */
typedef struct tsr__variant {
  const char *name; /* unique on the device for the op, e.g. "generic" */
  int32_t op_mask;  /* 1 << TSR_OP_* */
  int32_t tile_q, tile_k;
  const void *data; /* the family's own */
  /* 0: accepts. Else writes a reason of one line and returns nonzero. NULL: accepts whatever is valid. */
  int (*refuse)(const struct tsr__variant *v, const struct tsr__device *dev, const tsr__op_problem *p, char *reason,
                size_t reason_bytes);
  /* Fills *build. */
  tsr_status (*build)(const struct tsr__variant *v, const struct tsr__device *dev, const tsr__op_problem *p,
                      tsr__plan_build *build, tsr_error *err);
} tsr__variant;

/* A device as a back end describes it. */
typedef struct tsr__device {
  const tsr__host *host;
  void *state;   /* the back end's own */
  char name[32]; /* "cpu:0" */
  char description[192];
  char isa[32];
  int32_t num_threads; /* resolved; see tsr_device_info */
  int32_t computes;
  int32_t host_memory;  /* 1: tensors are host memory */
  int32_t memory_kinds; /* 1 << TSR_MEMORY_*; NATIVE always */
  int64_t local_bytes;
  const tsr__variant *const *variants; /* best first */
  int32_t num_variants;
} tsr__device;

typedef struct tsr__backend {
  int32_t abi; /* TSR__BACKEND_ABI */
  const char *name;
  int32_t computes; /* 0: never picked by default */
  /* Number of devices; 0 with a one-line reason if the back end cannot be used here. Asked once a context, when
   * somebody wants to know. */
  int32_t (*count)(const tsr__host *host, char *why_not, size_t why_not_bytes);
  tsr_status (*open)(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err);
  void (*close)(tsr__device *dev);
  /* Readies the kernels of a plan that was built: finds, loads or compiles them, which may take seconds. NULL: there is
   * nothing to ready. */
  tsr_status (*prepare)(const tsr__device *dev, const tsr__op_problem *p, tsr__plan_build *build, tsr_error *err);
  /* Memory of the device for callers who have none of their own, and synchronous copies; NULL, all or none: host memory
   * serves. Offsets and sizes are in bytes; read and write wait for what was enqueued on the legacy default queue. */
  tsr_status (*memory_alloc)(const tsr__device *dev, int64_t bytes, void **ptr, tsr_error *err);
  void (*memory_free)(const tsr__device *dev, void *ptr);
  tsr_status (*memory_write)(const tsr__device *dev, void *to, int64_t offset, const void *from, int64_t bytes,
                             tsr_error *err);
  tsr_status (*memory_read)(const tsr__device *dev, void *to, const void *from, int64_t offset, int64_t bytes,
                            tsr_error *err);
  /* Waits until everything enqueued on a queue (0: the default one) is done. */
  tsr_status (*wait)(const tsr__device *dev, void *queue, tsr_error *err);
  /* Runs or enqueues the launches of a plan. */
  tsr_status (*run_attention)(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                              const tsr__bound *bound, const tsr_run_args *args, tsr_error *err);
  tsr_status (*run_append)(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                           const tsr_append_args *args, tsr_error *err);
  tsr_status (*run_merge)(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                          const tsr_merge_args *args, tsr_error *err);
} tsr__backend;

/* For a back end's own public entry points, e.g. a device given by native handles. `open` fills *dev as
 * tsr__backend.open does; `handles` is what it is handed. Errors: TSR_INVALID, TSR_OUT_OF_MEMORY, those of open. */
typedef tsr_status tsr__open_fn(const tsr__host *host, const void *handles, tsr__device *dev, tsr_error *err);
tsr_status tsr__device_adopt(tsr_context *context, const tsr__backend *backend, tsr__open_fn *open, const void *handles,
                             tsr_device **device, tsr_error *err);
/* What a back end knows of a device; NULL for NULL and for devices of other back ends. */
const tsr__device *tsr__device_of(const tsr_device *device, const tsr__backend *backend);

/* The back ends of this build, generated from backends/meson.build; NULL-terminated. */
extern const tsr__backend *const tsr__backends[];

#endif
