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

tsr_status engine_open(tool_engine *engine, const tool_options *options, const char *device, const char *isa,
                       tsr_error *err) {
  tsr_context_params params = tsr_context_params_init();
  memset(engine, 0, sizeof(*engine));
  engine->quiet = options->quiet;
  params.num_threads = (int32_t)options->threads.value;
  params.should_stop = should_stop;
  params.user = engine;
  params.cpu_isa = isa ? isa : options->isa;
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

tsr_status engine_prepare(tool_engine *engine, const tsr_attention_desc *desc, const tsr_run_args *args,
                          engine_plan *plan, tsr_error *err) {
  int64_t bytes, align;
  memset(plan, 0, sizeof(*plan));
  plan->args = *args;
  tsr_status status = tsr_plan_attention(engine->device, desc, &plan->plan, err);
  if (status == TSR_OK)
    status = tsr_plan_workspace(plan->plan, &bytes, &align, err);
  if (status == TSR_OK && bytes > 0) {
    plan->workspace = engine_pages(bytes); /* page alignment is more than any plan asks */
    if (!plan->workspace) {
      tool_error(err, status = TSR_OUT_OF_MEMORY, "workspace", "no memory for a workspace of %lld bytes",
                 (long long)bytes);
    } else {
      plan->args.workspace = tsr_buffer_out(plan->workspace);
      plan->args.workspace_bytes = bytes;
    }
  }
  if (status != TSR_OK)
    engine_release(plan);
  return status;
}

void engine_release(engine_plan *plan) {
  engine_pages_free(plan->workspace, plan->args.workspace_bytes);
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
    plan.args.stats = &report->stats;
    progress_begin(&engine->progress, engine->progress.term, engine->quiet ? NULL : label);
    start = term_seconds();
    status = tsr_run_attention(plan.plan, &plan.args, err);
    report->seconds = term_seconds() - start;
    progress_end(&engine->progress);
  }
  engine_release(&plan);
  return status;
}
