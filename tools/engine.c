/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int32_t should_stop(void *user, int64_t done, int64_t total) {
  tool_engine *engine = user;
  return progress_update(&engine->progress, done, total);
}

/* Of a variable, which XDG takes only where it is absolute. */
static int join_cache_path(char path[ENGINE_PATH_BYTES], const char *variable, const char *rest) {
  const char *value = getenv(variable);
  return value && value[0] == '/' && snprintf(path, ENGINE_PATH_BYTES, "%s%s", value, rest) < ENGINE_PATH_BYTES;
}

const char *engine_cache_dir(const tool_options *options, char path[ENGINE_PATH_BYTES]) {
  if (options->cache_dir)
    return strcmp(options->cache_dir, "none") == 0 ? "" : options->cache_dir;
  if (getenv("TESSERA_CACHE_DIR"))
    return getenv("TESSERA_CACHE_DIR");
  return join_cache_path(path, "XDG_CACHE_HOME", "/tessera") || join_cache_path(path, "HOME", "/.cache/tessera") ? path
                                                                                                                 : NULL;
}

tsr_status engine_open(tool_engine *engine, const tool_options *options, const char *device, const char *isa,
                       tsr_error *err) {
  tsr_context_params params = tsr_context_params_init();
  char path[ENGINE_PATH_BYTES];
  memset(engine, 0, sizeof(*engine));
  engine->quiet = options->quiet;
  params.num_threads = (int32_t)options->threads.value;
  params.should_stop = should_stop;
  params.user = engine;
  params.cpu_isa = isa ? isa : options->isa;
  params.cache_dir = engine_cache_dir(options, path);
  tsr_status status = tsr_context_create(&params, &engine->context, err);
  if (status == TSR_OK && options->module)
    status = tsr_backend_load(engine->context, options->module, err);
  if (status == TSR_OK && !(device && !*device)) {
    status = tsr_device_open(engine->context, device ? device : options->device, &engine->device, err);
    engine->info.size = sizeof(engine->info);
    if (status == TSR_OK)
      status = tsr_device_get(engine->device, &engine->info, err);
  }
  progress_begin(&engine->progress, &options->term, NULL);
  if (status != TSR_OK)
    engine_close(engine);
  return status;
}

void engine_close(tool_engine *engine) {
  tsr_device_close(engine->device);
  tsr_context_destroy(engine->context);
  engine->device = NULL;
  engine->context = NULL;
}

void *engine_pages(int64_t bytes) {
  void *pages = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

void engine_pages_free(void *pages, int64_t bytes) {
  if (pages)
    munmap(pages, (size_t)bytes);
}

/* A workspace: pages of the host, aligned better than any plan asks, or memory of the device. */
static tsr_status workspace_new(const tool_engine *engine, int64_t bytes, void **workspace, tsr_error *err) {
  *workspace = NULL;
  if (bytes == 0)
    return TSR_OK;
  if (!engine->info.host_memory)
    return tsr_memory_alloc(engine->device, bytes, workspace, err);
  *workspace = engine_pages(bytes);
  if (*workspace)
    return TSR_OK;
  tool_error(err, TSR_OUT_OF_MEMORY, "workspace", "no memory for a workspace of %lld bytes", (long long)bytes);
  return err->status;
}

static void workspace_free(const tool_engine *engine, void *workspace, int64_t bytes) {
  if (engine->info.host_memory)
    engine_pages_free(workspace, bytes);
  else
    tsr_memory_free(engine->device, workspace);
}

/* Do all rows of a tensor begin on 16 bytes, here and in its copy? */
static int rows_aligned(const tsr_layout *l, const tsr_buffer *b) {
  int64_t odd = (int64_t)(((uintptr_t)b->ptr + (uintptr_t)b->offset_bytes) & 15) * 8;
  for (int a = 0; a < 3; a++)
    odd |= l->shape[a] > 1 ? l->stride[a] * tsr_dtype_bits(l->dtype) % 128 : 0;
  return odd == 0;
}

/* Copies on a device begin where the driver aligns memory, so what is aligned here is aligned there: promising it lets
 * kernels load 16 bytes at once. */
static void promise_alignment(tsr_attention_desc *d, const tsr_run_args *args) {
  tsr_layout *const layout[] = {&d->q, &d->k, &d->v, &d->dout};
  const tsr_buffer *const buffer[] = {&args->q, &args->k, &args->v, &args->dout};
  int all = 1;
  for (int i = 0; i < 4; i++)
    all &= layout[i]->dtype == TSR_DTYPE_NONE || rows_aligned(layout[i], buffer[i]);
  for (int i = 0; i < 4 && all; i++) {
    if (layout[i]->dtype != TSR_DTYPE_NONE && layout[i]->align_bytes < 16)
      layout[i]->align_bytes = 16;
  }
}

tsr_status engine_prepare(tool_engine *engine, const tsr_attention_desc *desc, const tsr_run_args *args,
                          engine_plan *plan, tsr_error *err) {
  tsr_attention_desc there = *desc;
  int64_t bytes = 0;
  memset(plan, 0, sizeof(*plan));
  plan->engine = engine;
  plan->args = *args;
  there.memory = TSR_MEMORY_NATIVE;
  if (!engine->info.host_memory)
    promise_alignment(&there, args);
  tsr_status status = tsr_plan_attention(engine->device, &there, &plan->plan, err);
  if (status == TSR_OK && !engine->info.host_memory) {
    conf_mirror_open(&plan->copies, engine->device);
    status = conf_mirror_add_tensors(&plan->copies, desc, args, CONF_MIRROR_LEFT, err);
    if (status == TSR_OK)
      status = conf_mirror_write(&plan->copies, err);
    conf_mirror_map_run(&plan->copies, &plan->args);
  }
  if (status == TSR_OK)
    status = tsr_plan_workspace(plan->plan, &bytes, NULL, err);
  if (status == TSR_OK)
    status = workspace_new(engine, bytes, &plan->workspace, err);
  if (status == TSR_OK && bytes > 0) {
    plan->args.workspace = tsr_buffer_out(plan->workspace);
    plan->args.workspace_bytes = bytes;
  }
  if (status != TSR_OK)
    engine_release(plan);
  return status;
}

tsr_status engine_repeat(engine_plan *plan, int32_t times, tsr_error *err) {
  tsr_status status = TSR_OK;
  for (int32_t i = 0; i < times && status == TSR_OK; i++)
    status = tsr_run_attention(plan->plan, &plan->args, err);
  return status == TSR_OK ? tsr_device_wait(plan->engine->device, NULL, err) : status;
}

tsr_status engine_fetch(engine_plan *plan, tsr_error *err) {
  return plan->copies.num_blocks > 0 ? conf_mirror_read(&plan->copies, err) : TSR_OK;
}

void engine_release(engine_plan *plan) {
  conf_mirror_close(&plan->copies);
  workspace_free(plan->engine, plan->workspace, plan->args.workspace_bytes);
  tsr_plan_destroy(plan->plan);
  memset(plan, 0, sizeof(*plan));
}

tsr_status engine_run(tool_engine *engine, const tsr_attention_desc *desc, const tsr_run_args *args, const char *label,
                      engine_report *report, tsr_error *err) {
  engine_plan plan;
  tsr_plan_info info;
  memset(report, 0, sizeof(*report));
  report->stats = tsr_run_stats_init();
  double start = term_seconds();
  tsr_status status = engine_prepare(engine, desc, args, &plan, err);
  if (status != TSR_OK)
    return status;
  report->plan_seconds = term_seconds() - start;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  status = tsr_plan_get(plan.plan, &info, err);
  if (status == TSR_OK) {
    snprintf(report->variant, sizeof(report->variant), "%s", info.variant);
    report->plan = info;
    report->plan.variant = report->plan.backend = NULL;
    plan.args.stats = engine->info.host_memory ? &report->stats : NULL;
    progress_begin(&engine->progress, engine->progress.term, engine->quiet ? NULL : label);
    start = term_seconds();
    status = engine_repeat(&plan, 1, err);
    report->seconds = term_seconds() - start;
    progress_end(&engine->progress);
  }
  if (status == TSR_OK)
    status = engine_fetch(&plan, err);
  engine_release(&plan);
  return status;
}

/* ---- Append and merge -------------------------------------------------------------------------- */

/* One of the two. */
typedef struct cache_op {
  const tsr_append_desc *append;
  const tsr_append_args *append_args;
  const tsr_merge_desc *merge;
  const tsr_merge_args *merge_args;
} cache_op;

static tsr_status plan_cache(tool_engine *engine, const cache_op *op, tsr_plan **plan, tsr_error *err) {
  if (op->append) {
    tsr_append_desc desc = *op->append;
    desc.memory = TSR_MEMORY_NATIVE;
    return tsr_plan_append(engine->device, &desc, plan, err);
  }
  tsr_merge_desc desc = *op->merge;
  desc.memory = TSR_MEMORY_NATIVE;
  return tsr_plan_merge(engine->device, &desc, plan, err);
}

static tsr_status run_append(const cache_op *op, const tsr_plan *plan, const conf_mirror *m, void *workspace,
                             int64_t bytes, tsr_error *err) {
  tsr_append_args args = *op->append_args;
  conf_mirror_map_append(m, &args);
  args.workspace = tsr_buffer_out(workspace);
  args.workspace_bytes = bytes;
  return tsr_run_append(plan, &args, err);
}

static tsr_status run_merge(const cache_op *op, const tsr_plan *plan, const conf_mirror *m, void *workspace,
                            int64_t bytes, tsr_error *err) {
  tsr_merge_args args = *op->merge_args;
  const size_t n = (size_t)op->merge->num_partials;
  tsr_buffer *parts = malloc(2 * n * sizeof(*parts) + 1);
  if (!parts) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for %zu partials", n);
    return err->status;
  }
  memcpy(parts, args.partial_o, n * sizeof(*parts));
  memcpy(parts + n, args.partial_lse, n * sizeof(*parts));
  conf_mirror_map(m, parts, (int64_t)(2 * n));
  conf_mirror_map_merge(m, &args);
  args.partial_o = parts;
  args.partial_lse = parts + n;
  args.workspace = tsr_buffer_out(workspace);
  args.workspace_bytes = bytes;
  const tsr_status status = tsr_run_merge(plan, &args, err);
  free(parts);
  return status;
}

static tsr_status run_cache(tool_engine *engine, const cache_op *op, const engine_block *blocks, int32_t num_blocks,
                            engine_report *report, tsr_error *err) {
  tsr_plan *plan = NULL;
  void *workspace = NULL;
  int64_t bytes = 0;
  conf_mirror m;
  memset(report, 0, sizeof(*report));
  conf_mirror_open(&m, engine->device);
  tsr_status status = plan_cache(engine, op, &plan, err);
  report->plan.size = sizeof(report->plan);
  if (status == TSR_OK)
    status = tsr_plan_get(plan, &report->plan, err);
  if (status == TSR_OK) {
    snprintf(report->variant, sizeof(report->variant), "%s", report->plan.variant);
    report->plan.variant = report->plan.backend = NULL;
    status = tsr_plan_workspace(plan, &bytes, NULL, err);
  }
  for (int32_t i = 0; i < num_blocks && status == TSR_OK && !engine->info.host_memory; i++)
    status = conf_mirror_add(&m, blocks[i].data, blocks[i].bytes,
                             blocks[i].is_output ? CONF_MIRROR_OUTPUT : CONF_MIRROR_LEFT, err);
  if (status == TSR_OK)
    status = conf_mirror_write(&m, err);
  if (status == TSR_OK)
    status = workspace_new(engine, bytes, &workspace, err);
  const double start = term_seconds();
  if (status == TSR_OK)
    status =
        op->append ? run_append(op, plan, &m, workspace, bytes, err) : run_merge(op, plan, &m, workspace, bytes, err);
  if (status == TSR_OK)
    status = tsr_device_wait(engine->device, NULL, err);
  report->seconds = term_seconds() - start;
  if (status == TSR_OK && m.num_blocks > 0)
    status = conf_mirror_read(&m, err);
  conf_mirror_close(&m);
  workspace_free(engine, workspace, bytes);
  tsr_plan_destroy(plan);
  return status;
}

tsr_status engine_append(tool_engine *engine, const tsr_append_desc *desc, const tsr_append_args *args,
                         const engine_block *blocks, int32_t num_blocks, engine_report *report, tsr_error *err) {
  const cache_op op = {desc, args, NULL, NULL};
  return run_cache(engine, &op, blocks, num_blocks, report, err);
}

tsr_status engine_merge(tool_engine *engine, const tsr_merge_desc *desc, const tsr_merge_args *args,
                        const engine_block *blocks, int32_t num_blocks, engine_report *report, tsr_error *err) {
  const cache_op op = {NULL, NULL, desc, args};
  return run_cache(engine, &op, blocks, num_blocks, report, err);
}
