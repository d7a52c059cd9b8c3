/* SPDX-License-Identifier: Apache-2.0 */
/* Which variant runs: the device's rows in order, best first, each asked for its refusal. */
#include <stdio.h>
#include <string.h>

#include "common/objects.h"

static int handles(const tsr__variant *v, int32_t op) {
  return v->op_mask >> op & 1;
}

int tsr__memory_refused(const tsr_device *device, int32_t memory, char *reason, size_t reason_bytes) {
  if (memory == TSR_MEMORY_NATIVE || (device->dev.memory_kinds >> memory & 1)) {
    return 0;
  }
  snprintf(reason, reason_bytes, "%s does not compute on memory of kind %d", device->dev.name, (int)memory);
  return 1;
}

static int refused(const tsr_device *device, const tsr__variant *v, const tsr__op_problem *p, char *reason,
                   size_t bytes) {
  reason[0] = '\0';
  return v->refuse != NULL && v->refuse(v, &device->dev, p, reason, bytes);
}

static const char *forced_name(const tsr_device *device, const char *forced) {
  return forced != NULL && *forced != '\0' ? forced : device->context->variant;
}

tsr_status tsr__variant_select(const tsr_device *device, const tsr__op_problem *problem, const char *forced,
                               const tsr__variant **variant, tsr_error *err) {
  const char *name = forced_name(device, forced);
  char reason[200] = "the device has no variant for this operation";
  int seen = 0;
  for (int32_t i = 0; i < device->dev.num_variants; i++) {
    const tsr__variant *v = device->dev.variants[i];
    if (!handles(v, problem->op) || (*name != '\0' && strcmp(name, v->name) != 0)) {
      continue;
    }
    seen = 1;
    if (!refused(device, v, problem, reason, sizeof(reason))) {
      *variant = v;
      return TSR_OK;
    }
  }
  if (*name != '\0' && !seen) {
    return tsr__fail(err, TSR_INVALID, "variant", "%s has no variant \"%.48s\" for this operation", device->dev.name,
                     name);
  }
  return tsr__fail(err, TSR_UNSUPPORTED, "", "%s: %s", device->dev.name, reason);
}

const char *tsr_device_variant(const tsr_device *device, int32_t op, int32_t index) {
  if (device == NULL || op < 0 || op > TSR_OP_MERGE || index < 0) {
    return NULL;
  }
  for (int32_t i = 0; i < device->dev.num_variants; i++) {
    if (handles(device->dev.variants[i], op) && index-- == 0) {
      return device->dev.variants[i]->name;
    }
  }
  return NULL;
}

tsr_status tsr_attention_verdicts(tsr_device *device, const tsr_attention_desc *desc, tsr_verdict *verdicts,
                                  int32_t *count, tsr_error *err) {
  tsr__op_problem p;
  const tsr__variant *chosen = NULL;
  char wrong_memory[200] = "";
  int32_t n = 0;
  tsr_status st;
  if (device == NULL || desc == NULL || count == NULL) {
    return tsr__fail(err, TSR_INVALID,
                     device == NULL ? "device"
                     : desc == NULL ? "desc"
                                    : "count",
                     "a required pointer is NULL");
  }
  if (*count < 0) {
    return tsr__fail(err, TSR_INVALID, "count", "count is %d, must be at least 0", (int)*count);
  }
  memset(&p, 0, sizeof(p));
  st = tsr__problem_init(&device->context->host.alloc, desc, &p.attn, err);
  if (st != TSR_OK) {
    return st;
  }
  p.op = p.attn.desc.op;
  if (tsr__memory_refused(device, p.attn.desc.memory, wrong_memory, sizeof(wrong_memory)) ||
      tsr__variant_select(device, &p, desc->variant, &chosen, NULL) != TSR_OK) {
    chosen = NULL;
  }
  for (int32_t i = 0; i < device->dev.num_variants; i++) {
    const tsr__variant *v = device->dev.variants[i];
    if (!handles(v, p.op)) {
      continue;
    }
    if (verdicts != NULL && n < *count) {
      tsr_verdict *out = &verdicts[n];
      memset(out, 0, sizeof(*out));
      snprintf(out->variant, sizeof(out->variant), "%s", v->name);
      memcpy(out->reason, wrong_memory, sizeof(out->reason));
      out->accepted = *wrong_memory == '\0' && !refused(device, v, &p, out->reason, sizeof(out->reason));
      out->chosen = v == chosen;
    }
    n++;
  }
  *count = n;
  tsr__problem_free(&p.attn);
  return tsr__ok(err);
}
