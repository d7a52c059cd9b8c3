/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: bind the arguments, hand them to the back end. */
#include <string.h>

#include "common/objects.h"
#include "tessera/memory.h"

static int is_op(const tsr_plan *plan, int attention, int32_t op) {
  return attention ? plan->problem.op == TSR_OP_FORWARD || plan->problem.op == TSR_OP_BACKWARD : plan->problem.op == op;
}

static tsr_status check_plan(const tsr_plan *plan, const void *args, int attention, int32_t op, tsr_error *err) {
  if (plan == NULL || args == NULL) {
    return tsr__fail(err, TSR_INVALID, plan == NULL ? "plan" : "args", "a required pointer is NULL");
  }
  if (!is_op(plan, attention, op)) {
    return tsr__fail(err, TSR_INVALID, "plan", "the plan was made for another operation");
  }
  return TSR_OK;
}

static tsr_status bind(const tsr_plan *plan, const tsr_run_args *args, tsr__bound *bound, tsr_error *err) {
  const tsr__device *dev = &plan->device->dev;
  return tsr__bind(&plan->problem.attn, args, dev->host_memory, dev->host->validate, plan->build.workspace_bytes,
                   plan->build.workspace_align, bound, err);
}

static void clear_stats(tsr_run_stats *stats) {
  if (stats != NULL) {
    memset((char *)stats + sizeof(size_t), 0, stats->size - sizeof(size_t));
  }
}

tsr_status tsr_run_attention(const tsr_plan *plan, const tsr_run_args *args, tsr_error *err) {
  tsr__bound bound;
  tsr_status st = check_plan(plan, args, 1, 0, err);
  if (st == TSR_OK) {
    st = bind(plan, args, &bound, err);
  }
  if (st == TSR_OK) {
    clear_stats(bound.stats);
    st = plan->device->backend->run_attention(&plan->device->dev, &plan->problem, &plan->build, &bound, args, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_run_append(const tsr_plan *plan, const tsr_append_args *args, tsr_error *err) {
  tsr_append_args full;
  tsr_status st = check_plan(plan, args, 0, TSR_OP_APPEND, err);
  if (st == TSR_OK) {
    st = tsr__append_bind(&plan->problem.append, args, plan->device->dev.host_memory, plan->device->dev.host->validate,
                          plan->build.workspace_bytes, plan->build.workspace_align, &full, err);
  }
  if (st == TSR_OK) {
    st = plan->device->backend->run_append(&plan->device->dev, &plan->problem, &plan->build, &full, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_run_merge(const tsr_plan *plan, const tsr_merge_args *args, tsr_error *err) {
  tsr_merge_args full;
  tsr_status st = check_plan(plan, args, 0, TSR_OP_MERGE, err);
  if (st == TSR_OK) {
    st = tsr__merge_bind(&plan->problem.merge, args, plan->device->dev.host_memory, plan->device->dev.host->validate,
                         plan->build.workspace_bytes, plan->build.workspace_align, &full, err);
  }
  if (st == TSR_OK) {
    st = plan->device->backend->run_merge(&plan->device->dev, &plan->problem, &plan->build, &full, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

/* A workspace of host memory, aligned by hand. */
static tsr_status run_on_host(tsr_context *context, const tsr_plan *plan, tsr_run_args *args, tsr_error *err) {
  const int64_t bytes = plan->build.workspace_bytes, align = plan->build.workspace_align;
  void *memory = NULL;
  tsr_status st;
  if (bytes > 0) {
    memory = tsr__alloc_zero(&context->host.alloc, (size_t)(bytes + align));
    if (memory == NULL) {
      return tsr__fail(err, TSR_OUT_OF_MEMORY, "workspace", "no memory for a workspace of %lld bytes",
                       (long long)bytes);
    }
    args->workspace.ptr = (void *)(((uintptr_t)memory + (uintptr_t)align - 1) & ~((uintptr_t)align - 1));
    args->workspace_bytes = bytes;
  }
  st = tsr_run_attention(plan, args, err);
  tsr__alloc_free(&context->host.alloc, memory);
  return st;
}

/* A workspace of the device's memory, which has to outlive what was enqueued. */
static tsr_status run_on_device(tsr_device *device, const tsr_plan *plan, tsr_run_args *args, tsr_error *err) {
  const int64_t bytes = plan->build.workspace_bytes;
  void *memory = NULL;
  tsr_status st = bytes > 0 ? tsr_memory_alloc(device, bytes, &memory, err) : TSR_OK;
  if (st == TSR_OK) {
    args->workspace.ptr = memory;
    args->workspace_bytes = bytes;
    st = tsr_run_attention(plan, args, err);
  }
  if (st == TSR_OK) {
    st = tsr_device_wait(device, args->queue, err);
  }
  tsr_memory_free(device, memory);
  return st;
}

tsr_status tsr_attention_once(tsr_context *context, const tsr_attention_desc *desc, const tsr_run_args *args,
                              tsr_error *err) {
  tsr_device *device = NULL;
  tsr_plan *plan = NULL;
  tsr_run_args full = tsr_run_args_init();
  tsr_status st;
  if (context == NULL || desc == NULL || args == NULL) {
    return tsr__fail(err, TSR_INVALID,
                     context == NULL ? "context"
                     : desc == NULL  ? "desc"
                                     : "args",
                     "a required pointer is NULL");
  }
  st = tsr__struct_import(&full, sizeof(full), 0, args, "tsr_run_args", err);
  if (st == TSR_OK && (full.workspace.ptr != NULL || full.workspace.offset_bytes != 0 || full.workspace_bytes != 0)) {
    st = tsr__fail(err, TSR_INVALID, "workspace", "workspace must be 0: tsr_attention_once brings its own");
  }
  if (st == TSR_OK) {
    full.size = sizeof(full);
    st = tsr_device_open(context, NULL, &device, err);
  }
  if (st == TSR_OK) {
    st = tsr_plan_attention(device, desc, &plan, err);
  }
  if (st == TSR_OK) {
    st = device->dev.host_memory ? run_on_host(context, plan, &full, err) : run_on_device(device, plan, &full, err);
  }
  tsr_plan_destroy(plan);
  tsr_device_close(device);
  return st;
}

static tsr_status check_head(const tsr_plan *plan, const tsr__bound *bound, int64_t b, int64_t h, tsr_error *err) {
  if (b < 0 || b >= bound->args.batch) {
    return tsr__fail(err, TSR_INVALID, "b", "b is %lld, must be below the run's batch %lld", (long long)b,
                     (long long)bound->args.batch);
  }
  if (h < 0 || h >= plan->problem.attn.heads_q) {
    return tsr__fail(err, TSR_INVALID, "h", "h is %lld, must be below %d", (long long)h, plan->problem.attn.heads_q);
  }
  return TSR_OK;
}

tsr_status tsr_plan_tiles(const tsr_plan *plan, const tsr_run_args *args, int64_t b, int64_t h, uint8_t *classes,
                          int64_t capacity, int64_t *rows, int64_t *cols, tsr_error *err) {
  tsr__bound bound;
  tsr_seq seq;
  int64_t tile_q, tile_k;
  tsr_status st = check_plan(plan, args, 1, 0, err);
  if (st == TSR_OK && (rows == NULL || cols == NULL)) {
    st = tsr__fail(err, TSR_INVALID, rows == NULL ? "rows" : "cols", "a required pointer is NULL");
  }
  if (st == TSR_OK) { /* host memory, whatever the device */
    st = tsr__bind_tiles(&plan->problem.attn, args, &bound, err);
  }
  if (st == TSR_OK) {
    st = check_head(plan, &bound, b, h, err);
  }
  if (st != TSR_OK) {
    return st;
  }
  tile_q = plan->build.tile_q;
  tile_k = plan->build.tile_k;
  seq = tsr_seq_load(&bound.args, &bound.ptrs, b);
  *rows = (seq.q_len + tile_q - 1) / tile_q;
  *cols = (seq.kv_len + tile_k - 1) / tile_k;
  if (classes == NULL) {
    return tsr__ok(err);
  }
  if (*cols != 0 && capacity / *cols < *rows) {
    return tsr__fail(err, TSR_INVALID, "capacity", "capacity is %lld, the tiles need %lld x %lld bytes",
                     (long long)capacity, (long long)*rows, (long long)*cols);
  }
  for (int64_t r = 0; r < *rows; r++) {
    for (int64_t c = 0; c < *cols; c++) {
      const tsr__tile_box box = {r * tile_q, tsr_min_i64((r + 1) * tile_q, seq.q_len),
                                 c * tile_k, tsr_min_i64((c + 1) * tile_k, seq.kv_len),
                                 (tsr_i32)h, (tsr_i32)h + 1};
      classes[r * *cols + c] = (uint8_t)tsr__tile_class(&plan->problem.attn, &bound, &seq, &box);
    }
  }
  return tsr__ok(err);
}
