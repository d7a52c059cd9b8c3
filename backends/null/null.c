/* SPDX-License-Identifier: Apache-2.0 */
/* A device that computes nothing: it builds plans like any other and, at run, logs each launch at TSR_LOG_DEBUG. It
 * shows the core's decisions without a device, and with TSR__AS_MODULE it is the example of a loadable back end. */
#include <stdio.h>
#include <string.h>

#include "common/backend.h"

static tsr_status build(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *p, tsr__plan_build *b,
                        tsr_error *err) {
  (void)v;
  (void)dev;
  (void)err;
  switch (p->op) {
  case TSR_OP_FORWARD:
    tsr__add_launch(b, "forward", b->schedule.items, 0, NULL);
    if (b->schedule.num_splits > 1) {
      tsr__add_launch(b, "merge", b->schedule.items / b->schedule.num_splits, 0, NULL);
    }
    break;
  case TSR_OP_BACKWARD:
    tsr__add_launch(b, "delta", p->attn.batch * p->attn.heads_q, 0, NULL);
    tsr__add_launch(b, "backward", b->schedule.items, 0, NULL);
    break;
  case TSR_OP_APPEND: tsr__add_launch(b, "append", p->append.batch * p->append.seqlen_new, 0, NULL); break;
  default: tsr__add_launch(b, "merge", p->merge.desc.o.shape[0] * p->merge.desc.o.shape[1], 0, NULL);
  }
  return TSR_OK;
}

static int32_t count(const tsr__host *host, char *why_not, size_t bytes) {
  (void)host;
  (void)why_not;
  (void)bytes;
  return 1;
}

static tsr_status open_device(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  static const tsr__variant record = {.name = "record", .op_mask = 0xf, .tile_q = 64, .tile_k = 64, .build = build};
  static const tsr__variant *const rows[] = {&record};
  (void)err;
  dev->host = host;
  snprintf(dev->name, sizeof(dev->name), "null:%d", index);
  snprintf(dev->description, sizeof(dev->description), "records launches, computes nothing");
  dev->num_threads = 1;
  dev->computes = 0;
  dev->host_memory = 1;
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE | 1 << TSR_MEMORY_HOST;
  dev->variants = rows;
  dev->num_variants = 1;
  return TSR_OK;
}

static void close_device(tsr__device *dev) {
  (void)dev;
}

static tsr_status record(const tsr__device *dev, const tsr__plan_build *b) {
  const tsr__host *host = dev->host;
  for (int32_t i = 0; i < b->num_launches && host->log != NULL && host->log_level >= TSR_LOG_DEBUG; i++) {
    char text[96];
    snprintf(text, sizeof(text), "%s: launch %s, %lld items", dev->name, b->launches[i].name,
             (long long)b->launches[i].items);
    host->log(host->user, TSR_LOG_DEBUG, text);
  }
  return TSR_OK;
}

static tsr_status run_attention(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *b,
                                const tsr__bound *bound, const tsr_run_args *args, tsr_error *err) {
  (void)p;
  (void)bound;
  (void)args;
  (void)err;
  return record(dev, b);
}

static tsr_status run_append(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *b,
                             const tsr_append_args *args, tsr_error *err) {
  (void)p;
  (void)args;
  (void)err;
  return record(dev, b);
}

static tsr_status run_merge(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *b,
                            const tsr_merge_args *args, tsr_error *err) {
  (void)p;
  (void)args;
  (void)err;
  return record(dev, b);
}

#if defined(TSR__AS_MODULE)
#define NULL_BACKEND module_backend
static
#else
#define NULL_BACKEND tsr__backend_null
extern const tsr__backend tsr__backend_null;
#endif
    const tsr__backend NULL_BACKEND = {
        .abi = TSR__BACKEND_ABI,
#if defined(TSR__AS_MODULE)
        .name = "nullmodule",
#else
    .name = "null",
#endif
        .computes = 0,
        .count = count,
        .open = open_device,
        .close = close_device,
        .run_attention = run_attention,
        .run_append = run_append,
        .run_merge = run_merge,
};

#if defined(TSR__AS_MODULE)
TSR_API const tsr__backend *tsr__module_backend(void);
const tsr__backend *tsr__module_backend(void) {
  return &module_backend;
}
#endif
