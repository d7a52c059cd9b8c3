/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's public entry: validation as for a plan and a run, then the oracle itself on the caller's own structs. */
#include "common/objects.h"
#include "common/reference.h"
#include "common/validate.h"

/* Outputs are not the oracle's to write, so a caller need not have any: bind sees a stand-in that nothing dereferences.
 * In backward o and lse may be absent too. */
static void stand_in_outputs(const tsr__problem *p, tsr_run_args *args) {
  const int op = p->desc.op;
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    tsr_buffer *b = (tsr_buffer *)(void *)((char *)args + tsr__slots[s].args_offset);
    const int optional = op == TSR_BACKWARD && (s == TSR_SLOT_o || s == TSR_SLOT_lse);
    if (tsr__problem_has(p, s) && b->ptr == NULL && (tsr__slots[s].writes[op] || optional)) {
      b->ptr = (void *)(uintptr_t)4096;
    }
  }
}

static tsr_status check_given(const void *desc, const void *args, tsr_error *err) {
  return desc == NULL || args == NULL
             ? tsr__fail(err, TSR_INVALID, desc == NULL ? "desc" : "args", "a required pointer is NULL")
             : TSR_OK;
}

static tsr_status check_out(const tsr_reference_out *out, const tsr__problem *p, tsr_error *err) {
  if (out->mode != TSR_REFERENCE_F64 && out->mode != TSR_REFERENCE_PLAIN) {
    return tsr__fail(err, TSR_INVALID, "mode", "mode is %d, must be a TSR_REFERENCE_ value", out->mode);
  }
  if (out->reserved != 0) {
    return tsr__fail(err, TSR_INVALID, "reserved", "reserved is %d, must be 0", out->reserved);
  }
  if (out->num_rows < 0 || (out->num_rows > 0 && out->rows == NULL)) {
    return tsr__fail(err, TSR_INVALID, "num_rows", "num_rows is %lld, must be at least 0, and 0 where rows is NULL",
                     (long long)out->num_rows);
  }
  for (int64_t n = 0; n < out->num_rows; n++) {
    if (out->rows[n] < 0 || out->rows[n] >= p->seqlen_q) {
      return tsr__fail(err, TSR_INVALID, "rows", "rows[%lld] is %lld, must be 0..max_seqlen_q - 1, %lld", (long long)n,
                       (long long)out->rows[n], (long long)p->seqlen_q - 1);
    }
  }
  return TSR_OK;
}

tsr_status tsr_reference_attention(tsr_context *context, const tsr_attention_desc *desc, const tsr_run_args *args,
                                   const tsr_reference_out *out, tsr_error *err) {
  const tsr__host *host = context != NULL ? &context->host : NULL;
  const tsr__alloc *alloc = host != NULL ? &host->alloc : NULL;
  tsr_attention_desc full_desc = tsr_attention_desc_init();
  tsr_run_args full_args = tsr_run_args_init(), checked;
  tsr_reference_out full_out = tsr_reference_out_init();
  tsr__problem p;
  tsr__bound bound;
  tsr_status st = check_given(desc, args, err);
  if (st == TSR_OK && out == NULL) {
    st = tsr__fail(err, TSR_INVALID, "out", "a required pointer is NULL");
  }
  if (st == TSR_OK) {
    st = tsr__struct_import(&full_out, sizeof(full_out), 0, out, "tsr_reference_out", err);
  }
  if (st == TSR_OK) {
    st = tsr__struct_import(&full_args, sizeof(full_args), 0, args, "tsr_run_args", err);
  }
  if (st == TSR_OK) {
    st = tsr__problem_init_inputs(alloc, desc, &p, err);
  }
  if (st != TSR_OK) {
    return st;
  }
  st = check_out(&full_out, &p, err);
  full_args.workspace.ptr = NULL;
  full_args.workspace_bytes = 0;
  checked = full_args;
  stand_in_outputs(&p, &checked);
  if (st == TSR_OK) {
    st = tsr__bind(&p, &checked, 1, 0, 0, 1, &bound, err);
  }
  tsr__problem_free(&p);
  if (st == TSR_OK) {
    tsr__struct_import(&full_desc, sizeof(full_desc), 0, desc, "tsr_attention_desc", NULL);
    st = tsr__reference_attention(alloc, host != NULL ? host->should_stop : NULL, host != NULL ? host->user : NULL,
                                  &full_desc, &full_args, &full_out, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_reference_merge(const tsr_merge_desc *desc, const tsr_merge_args *args, double *o, double *lse,
                               tsr_error *err) {
  tsr__merge_problem p;
  tsr_merge_args full;
  tsr_status st = check_given(desc, args, err);
  if (st == TSR_OK) {
    st = tsr__merge_init(desc, &p, err);
  }
  if (st == TSR_OK) {
    st = tsr__merge_bind(&p, args, 1, 0, 0, 1, &full, err);
  }
  if (st == TSR_OK) {
    st = tsr__reference_merge(&p.desc, &full, o, lse, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_reference_append(const tsr_append_desc *desc, const tsr_append_args *args, tsr_error *err) {
  tsr__append_problem p;
  tsr_append_args full;
  tsr_status st = check_given(desc, args, err);
  if (st == TSR_OK) {
    st = tsr__append_init(desc, &p, err);
  }
  if (st == TSR_OK) {
    st = tsr__append_bind(&p, args, 1, 0, 0, 1, &full, err);
  }
  if (st == TSR_OK) {
    st = tsr__reference_append(&p.desc, &full, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}
