/* SPDX-License-Identifier: Apache-2.0 */
/* A context and a device as the options ask for them, and runs on it with progress and interruption. */
#ifndef TESSERA_TOOL_ENGINE_H
#define TESSERA_TOOL_ENGINE_H

#include "options.h"
#include "tests/conformance/engine/mirror.h"

typedef struct tool_engine {
  tsr_context *context;
  tsr_device *device;
  tsr_device_info info; /* strings live as long as the device */
  tool_progress progress;
  int32_t quiet;
} tool_engine;

/* Opens. device and isa override the options' where not NULL; device "" opens the context only. The engine must
 * not move while it is open: hooks point to it. On failure it is closed. */
tsr_status engine_open(tool_engine *engine, const tool_options *options, const char *device, const char *isa,
                       tsr_error *err);
void engine_close(tool_engine *engine);

enum { ENGINE_PATH_BYTES = 4096 };
/* The directory of compiled kernels: the option's, TESSERA_CACHE_DIR, or the user's cache directory by the XDG rules
 * (XDG_CACHE_HOME, else ~/.cache). NULL or "": none. path is its storage. */
const char *engine_cache_dir(const tool_options *options, char path[ENGINE_PATH_BYTES]);

/* What a run was and did. Strings are copies. */
typedef struct engine_report {
  char variant[48];
  tsr_plan_info plan; /* its strings are gone: NULL */
  tsr_run_stats stats;
  double plan_seconds, seconds;
} engine_report;

/* Plans, allocates the workspace, runs once, waits, releases both. Tensors are host memory; a device with memory of its
 * own works on copies. label: of the progress bar, NULL for none. */
tsr_status engine_run(tool_engine *engine, const tsr_attention_desc *desc, const tsr_run_args *args, const char *label,
                      engine_report *report, tsr_error *err);

/* A plan with its own workspace, for repeated runs, and on a device copies of all tensors. */
typedef struct engine_plan {
  tool_engine *engine;
  tsr_plan *plan;
  void *workspace;
  tsr_run_args args;
  conf_mirror copies; /* empty where the tensors themselves serve */
} engine_plan;
tsr_status engine_prepare(tool_engine *engine, const tsr_attention_desc *desc, const tsr_run_args *args,
                          engine_plan *plan, tsr_error *err);
/* Runs `times` times, one after another, and waits for the last. */
tsr_status engine_repeat(engine_plan *plan, int32_t times, tsr_error *err);
/* Brings the outputs back to the tensors. */
tsr_status engine_fetch(engine_plan *plan, tsr_error *err);
void engine_release(engine_plan *plan);

/* Append and merge, as engine_run. blocks: all memory that the arguments point to. */
typedef struct engine_block {
  const void *data;
  int64_t bytes;
  int32_t is_output;
} engine_block;
tsr_status engine_append(tool_engine *engine, const tsr_append_desc *desc, const tsr_append_args *args,
                         const engine_block *blocks, int32_t num_blocks, engine_report *report, tsr_error *err);
tsr_status engine_merge(tool_engine *engine, const tsr_merge_desc *desc, const tsr_merge_args *args,
                        const engine_block *blocks, int32_t num_blocks, engine_report *report, tsr_error *err);

/* Memory of exactly this many bytes from the system, page-aligned; NULL on failure. Given back at once when freed, so
 * that measured peaks do not depend on what an allocator kept. */
void *engine_pages(int64_t bytes);
void engine_pages_free(void *pages, int64_t bytes);

#endif
