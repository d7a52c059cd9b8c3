/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: validate, choose, build; and what can be asked of one. */
#include "tessera/plan.h"

#include <string.h>

#include "common/objects.h"

static void problem_free(tsr__op_problem *p) {
  if (p->op == TSR_OP_FORWARD || p->op == TSR_OP_BACKWARD) {
    tsr__problem_free(&p->attn);
  }
}

/* Chooses and builds for plan->problem, which is valid. */
static tsr_status plan_build(tsr_plan *plan, const char *forced, int32_t memory, tsr_error *err) {
  const tsr__device *dev = &plan->device->dev;
  tsr_status st;
  char reason[200];
  if (tsr__memory_refused(plan->device, memory, reason, sizeof(reason))) {
    return tsr__fail(err, TSR_UNSUPPORTED, "memory", "%s", reason);
  }
  st = tsr__variant_select(plan->device, &plan->problem, forced, &plan->variant, err);
  if (st != TSR_OK) {
    return st;
  }
  plan->build.tile_q = plan->variant->tile_q;
  plan->build.tile_k = plan->variant->tile_k;
  plan->build.workspace_align = TSR__WORKSPACE_ALIGN;
  plan->build.partial_o = plan->build.partial_lse = plan->build.scratch = -1;
  if (plan->problem.op == TSR_OP_FORWARD || plan->problem.op == TSR_OP_BACKWARD) {
    plan->build.schedule =
        tsr__schedule_init(&plan->problem.attn, plan->build.tile_q, plan->build.tile_k, dev->num_threads);
  }
  return plan->variant->build(plan->variant, dev, &plan->problem, &plan->build, err);
}

/* An empty plan that holds a reference on its device; NULL with err filled. */
static tsr_plan *plan_new(tsr_device *device, const void *desc, tsr_plan **out, tsr_status *st, tsr_error *err) {
  tsr_plan *plan = NULL;
  if (out != NULL) {
    *out = NULL;
  }
  if (device == NULL || desc == NULL || out == NULL) {
    *st = tsr__fail(err, TSR_INVALID,
                    device == NULL ? "device"
                    : desc == NULL ? "desc"
                                   : "plan",
                    "a required pointer is NULL");
    return NULL;
  }
  plan = tsr__alloc_zero(&device->context->host.alloc, sizeof(*plan));
  if (plan == NULL) {
    *st = tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a plan of %zu bytes", sizeof(*plan));
    return NULL;
  }
  atomic_init(&plan->refs, 1);
  plan->device = device;
  tsr__device_ref(device);
  return plan;
}

/* Readies the kernels and hands the plan out, or frees it (a problem that failed is empty). */
static tsr_status plan_finish(tsr_plan *plan, tsr_status st, tsr_plan **out, tsr_error *err) {
  const tsr__backend *backend = plan->device->backend;
  if (st == TSR_OK && backend->prepare != NULL) {
    st = backend->prepare(&plan->device->dev, &plan->problem, &plan->build, err);
  }
  if (st == TSR_OK) {
    *out = plan;
    return tsr__ok(err);
  }
  tsr_plan_destroy(plan);
  return st;
}

tsr_status tsr_plan_attention(tsr_device *device, const tsr_attention_desc *desc, tsr_plan **plan, tsr_error *err) {
  tsr_status st = TSR_OK;
  tsr_plan *p = plan_new(device, desc, plan, &st, err);
  if (p == NULL) {
    return st;
  }
  st = tsr__problem_init(&device->context->host.alloc, desc, &p->problem.attn, err);
  if (st == TSR_OK) {
    p->problem.op = p->problem.attn.desc.op == TSR_BACKWARD ? TSR_OP_BACKWARD : TSR_OP_FORWARD;
    st = plan_build(p, desc->variant, desc->memory, err);
  }
  return plan_finish(p, st, plan, err);
}

tsr_status tsr_plan_append(tsr_device *device, const tsr_append_desc *desc, tsr_plan **plan, tsr_error *err) {
  tsr_status st = TSR_OK;
  tsr_plan *p = plan_new(device, desc, plan, &st, err);
  if (p == NULL) {
    return st;
  }
  p->problem.op = TSR_OP_APPEND;
  st = tsr__append_init(desc, &p->problem.append, err);
  if (st == TSR_OK) {
    st = plan_build(p, desc->variant, desc->memory, err);
  }
  return plan_finish(p, st, plan, err);
}

tsr_status tsr_plan_merge(tsr_device *device, const tsr_merge_desc *desc, tsr_plan **plan, tsr_error *err) {
  tsr_status st = TSR_OK;
  tsr_plan *p = plan_new(device, desc, plan, &st, err);
  if (p == NULL) {
    return st;
  }
  p->problem.op = TSR_OP_MERGE;
  st = tsr__merge_init(desc, &p->problem.merge, err);
  if (st == TSR_OK) {
    st = plan_build(p, desc->variant, desc->memory, err);
  }
  return plan_finish(p, st, plan, err);
}

void tsr_plan_destroy(tsr_plan *plan) {
  tsr_device *device;
  if (plan == NULL || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) {
    return;
  }
  device = plan->device;
  problem_free(&plan->problem);
  tsr__alloc_free(&device->context->host.alloc, plan);
  tsr_device_close(device);
}

tsr_status tsr_plan_workspace(const tsr_plan *plan, int64_t *bytes, int64_t *align_bytes, tsr_error *err) {
  if (plan == NULL || bytes == NULL) {
    return tsr__fail(err, TSR_INVALID, plan == NULL ? "plan" : "bytes", "a required pointer is NULL");
  }
  *bytes = plan->build.workspace_bytes;
  if (align_bytes != NULL) {
    *align_bytes = plan->build.workspace_align;
  }
  return tsr__ok(err);
}

/* Raises *bytes to what the plan's problem needs with these many query rows and splits. */
static tsr_status raise_bytes(const tsr_plan *plan, int64_t seqlen_q, int32_t num_splits, int64_t *bytes,
                              tsr_error *err) {
  tsr_plan other = *plan;
  tsr_status st;
  other.problem.attn.seqlen_q = seqlen_q;
  other.problem.attn.desc.num_splits = num_splits;
  memset(&other.build, 0, sizeof(other.build));
  st = plan_build(&other, plan->variant->name, plan->problem.attn.desc.memory, err);
  *bytes = tsr_max_i64(*bytes, other.build.workspace_bytes);
  return st;
}

tsr_status tsr_workspace_bound(tsr_device *device, const tsr_attention_desc *desc, int64_t *bytes, int64_t *align_bytes,
                               tsr_error *err) {
  tsr_plan *plan = NULL;
  const tsr__problem *p;
  tsr_status st;
  int32_t splits;
  if (bytes == NULL) {
    return tsr__fail(err, TSR_INVALID, "bytes", "bytes is NULL");
  }
  st = tsr_plan_attention(device, desc, &plan, err);
  if (plan == NULL) {
    return st;
  }
  /* Smaller problems may need more: those with fewer rows than a tile pack heads into it, and those with few items
   * split their keys. So: both ways of packing without splits, and room for all splits that are ever chosen. */
  p = &plan->problem.attn;
  splits = p->desc.num_splits != 0 ? p->desc.num_splits : 1;
  *bytes = 0;
  st = raise_bytes(plan, p->seqlen_q, splits, bytes, err);
  if (st == TSR_OK) {
    st = raise_bytes(plan, tsr_min_i64(p->seqlen_q, plan->variant->tile_q - 1), splits, bytes, err);
  }
  if (p->desc.num_splits == 0) {
    *bytes += tsr__schedule_split_rows(p, plan->variant->tile_q, device->dev.num_threads) *
                  (p->head_dim_v + TSR__PARTIAL_WORDS) * (int64_t)sizeof(float) +
              4 * TSR__WORKSPACE_ALIGN;
  }
  if (align_bytes != NULL) {
    *align_bytes = plan->build.workspace_align;
  }
  tsr_plan_destroy(plan);
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_plan_get(const tsr_plan *plan, tsr_plan_info *info, tsr_error *err) {
  tsr_plan_info out;
  if (plan == NULL || info == NULL) {
    return tsr__fail(err, TSR_INVALID, plan == NULL ? "plan" : "info", "a required pointer is NULL");
  }
  memset(&out, 0, sizeof(out));
  out.variant = plan->variant->name;
  out.backend = plan->device->backend->name;
  out.op = plan->problem.op;
  out.num_launches = plan->build.num_launches;
  out.tile_q = plan->build.tile_q;
  out.tile_k = plan->build.tile_k;
  out.workspace_bytes = plan->build.workspace_bytes;
  out.workspace_align = plan->build.workspace_align;
  out.num_splits = out.gqa_packed = 1;
  if (out.op == TSR_OP_FORWARD || out.op == TSR_OP_BACKWARD) {
    out.num_splits = plan->build.schedule.num_splits;
    out.gqa_packed = plan->build.schedule.pack;
    tsr__cost(&plan->problem.attn, &plan->build, &out);
  }
  return tsr__struct_export(info, info->size, &out, sizeof(out), err);
}

const char *tsr_plan_launch(const tsr_plan *plan, int32_t index) {
  return plan == NULL || index < 0 || index >= plan->build.num_launches ? NULL : plan->build.launches[index].name;
}
