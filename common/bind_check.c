/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers of a run: presence, alignment, workspace, overlap. */
#include <string.h>

#include "common/validate.h"

/* ---- One buffer ------------------------------------------------------------------------------ */

/* Is [ptr + offset, ptr + offset + bytes) outside what a pointer can name? */
static int wraps(const tsr_buffer *b, int64_t bytes) {
  const uintptr_t room = UINTPTR_MAX - (uintptr_t)b->ptr;
  return (uint64_t)b->offset_bytes > room || (uint64_t)bytes > room - (uintptr_t)b->offset_bytes;
}

tsr_status tsr__check_buffer(const tsr_buffer *b, const char *name, const tsr_layout *layout, int host,
                             tsr_error *err) {
  if (b->offset_bytes < 0) {
    const tsr__field f = tsr__field_part(name, "offset_bytes");
    return tsr__invalid(err, f.name, "is %lld, must be at least 0", (long long)b->offset_bytes);
  }
  if (b->ptr == NULL) {
    return b->offset_bytes == 0 && tsr__layout_is_empty(layout)
               ? TSR_OK
               : tsr__invalid(err, name, "is NULL, must be given: the plan's description has it");
  }
  if (host && wraps(b, tsr__layout_span_bytes(layout))) {
    const tsr__field f = tsr__field_part(name, "offset_bytes");
    return tsr__invalid(err, f.name, "is %lld, must leave the tensor within the address space",
                        (long long)b->offset_bytes);
  }
  if (host && ((uintptr_t)tsr__buffer_address(b) & (uintptr_t)(layout->align_bytes - 1)) != 0) {
    return tsr__invalid(err, name, "is at %p, must be aligned to %d bytes", tsr__buffer_address(b),
                        (int)layout->align_bytes);
  }
  if (b->offset_bytes % tsr__element_bytes(layout->dtype) != 0) {
    const tsr__field f = tsr__field_part(name, "offset_bytes");
    return tsr__invalid(err, f.name, "is %lld, must be a multiple of the element's %lld bytes",
                        (long long)b->offset_bytes, (long long)tsr__element_bytes(layout->dtype));
  }
  return TSR_OK;
}

tsr_status tsr__check_no_buffer(const tsr_buffer *b, const char *name, tsr_error *err) {
  if (b->ptr != NULL || b->offset_bytes != 0) {
    return tsr__invalid(err, name, "is given, must be absent: the plan's description does not have it");
  }
  return TSR_OK;
}

tsr_status tsr__check_workspace(const tsr_buffer *workspace, int64_t have_bytes, int host, int64_t bytes, int64_t align,
                                tsr_error *err) {
  const char *trouble = NULL;
  if (workspace->offset_bytes < 0) {
    return tsr__invalid(err, "workspace.offset_bytes", "is %lld, must be at least 0",
                        (long long)workspace->offset_bytes);
  }
  if (have_bytes < 0) {
    return tsr__invalid(err, "workspace_bytes", "is %lld, must be at least 0", (long long)have_bytes);
  }
  if (host && workspace->ptr != NULL && wraps(workspace, bytes)) {
    return tsr__invalid(err, "workspace.offset_bytes", "is %lld, must leave the workspace within the address space",
                        (long long)workspace->offset_bytes);
  }
  if (bytes == 0) {
    return TSR_OK;
  }
  if (workspace->ptr == NULL) {
    trouble = "is NULL";
  } else if (have_bytes < bytes) {
    trouble = "is too small";
  } else if (align > 1 && (host ? (uintptr_t)tsr__buffer_address(workspace) % (uintptr_t)align
                                : (uintptr_t)workspace->offset_bytes % (uintptr_t)align) != 0) {
    trouble = "is misaligned";
  }
  if (trouble != NULL) {
    return tsr__fail(err, TSR_OUT_OF_WORKSPACE, "workspace",
                     "workspace %s: %lld bytes given, %lld bytes aligned to %lld needed", trouble,
                     (long long)have_bytes, (long long)bytes, (long long)(align > 0 ? align : 1));
  }
  return TSR_OK;
}

tsr_status tsr__check_queue(const void *queue, const void *const *wait_events, int64_t num_wait_events,
                            void *const *event, int host, tsr_error *err) {
  if (host) {
    const char *field = queue != NULL          ? "queue"
                        : wait_events != NULL  ? "wait_events"
                        : num_wait_events != 0 ? "num_wait_events"
                        : event != NULL        ? "event"
                                               : NULL;
    return field == NULL ? TSR_OK : tsr__invalid(err, field, "is set, must be 0 on host memory");
  }
  if (num_wait_events < 0 || num_wait_events > INT32_MAX) {
    return tsr__invalid(err, "num_wait_events", "is %lld, must be 0..2^31 - 1", (long long)num_wait_events);
  }
  if (num_wait_events > 0 && wait_events == NULL) {
    return tsr__invalid(err, "wait_events", "is NULL, must have num_wait_events = %lld events",
                        (long long)num_wait_events);
  }
  return TSR_OK;
}

/* ---- What a run uses ------------------------------------------------------------------------- */

static void shrink(int64_t *extent, int64_t n) {
  if (n < *extent) {
    *extent = n;
  }
}

tsr_layout tsr__run_layout(const tsr__problem *p, const tsr_attn_args *args, int slot) {
  tsr_layout l = *tsr__slot_layout(&p->desc, slot);
  const int paged = (p->features & (TSR_A_PAGED_TABLE | TSR_A_PAGED_CSR)) != 0;
  switch (slot) {
  case TSR_SLOT_q:
  case TSR_SLOT_o:
  case TSR_SLOT_dout:
  case TSR_SLOT_dq:
  case TSR_SLOT_segments_q:
    shrink(&l.shape[(p->features & TSR_A_Q_PACKED) != 0 ? 1 : 0],
           (p->features & TSR_A_Q_PACKED) != 0 ? args->total_q : args->batch);
    break;
  case TSR_SLOT_lse:
  case TSR_SLOT_dlse:
    shrink(&l.shape[(p->features & TSR_A_Q_PACKED) != 0 ? 2 : 0],
           (p->features & TSR_A_Q_PACKED) != 0 ? args->total_q : args->batch);
    break;
  case TSR_SLOT_k:
  case TSR_SLOT_v:
  case TSR_SLOT_dk:
  case TSR_SLOT_dv:
  case TSR_SLOT_segments_k:
  case TSR_SLOT_k_scale:
  case TSR_SLOT_k_zero:
  case TSR_SLOT_v_scale:
  case TSR_SLOT_v_zero:
    if ((p->features & TSR_A_K_PACKED) != 0) {
      shrink(&l.shape[1], args->total_k);
    } else if (!paged || slot == TSR_SLOT_segments_k) {
      shrink(&l.shape[0], args->batch);
    }
    break;
  case TSR_SLOT_cu_seqlens_q:
  case TSR_SLOT_cu_seqlens_k:
  case TSR_SLOT_kv_indptr: shrink(&l.shape[0], args->batch + 1); break;
  case TSR_SLOT_mask:
    if ((p->features & TSR_A_MASK_ROWS) == 0) {
      shrink(&l.shape[0], args->batch);
    }
    break;
  case TSR_SLOT_seqlens_q:
  case TSR_SLOT_seqlens_k:
  case TSR_SLOT_block_table:
  case TSR_SLOT_last_page_len:
  case TSR_SLOT_prefix:
  case TSR_SLOT_mask_offsets:
  case TSR_SLOT_mask_row_strides:
  case TSR_SLOT_flashmask:
  case TSR_SLOT_block_indptr:
  case TSR_SLOT_block_indices:
  case TSR_SLOT_bias:
  case TSR_SLOT_dbias:
  case TSR_SLOT_alibi_slopes:
  case TSR_SLOT_q_descale:
  case TSR_SLOT_dropout_mask: shrink(&l.shape[0], args->batch); break;
  default: break;
  }
  return l;
}

/* ---- Overlap --------------------------------------------------------------------------------- */

/* A tensor as runs of `run` contiguous bytes at sums of multiples of strides. */
typedef struct runs {
  int64_t run;
  int axes;
  int64_t count[4], stride_bytes[4]; /* count > 1 */
} runs;

static runs runs_of(const tsr_layout *l) {
  const int32_t bits = tsr_dtype_bits(l->dtype);
  runs r;
  int folded = 1;
  r.run = bits == 1   ? (l->shape[3] + 7) / 8 /* sub-byte rows are contiguous */
          : bits == 4 ? (l->shape[3] + 1) / 2
                      : bits / 8;
  r.axes = 0;
  for (int a = 0; a < (bits < 8 ? 3 : 4); a++) {
    if (l->shape[a] > 1 && l->stride[a] > 0) {
      r.count[r.axes] = l->shape[a];
      r.stride_bytes[r.axes] = l->dtype == TSR_U4 ? l->stride[a] / 2 : l->stride[a] * tsr__element_bytes(l->dtype);
      r.axes++;
    }
  }
  while (folded) { /* an axis that continues the run is part of it */
    folded = 0;
    for (int a = 0; a < r.axes && !folded; a++) {
      if (r.stride_bytes[a] == r.run) {
        r.run *= r.count[a];
        r.axes--;
        r.count[a] = r.count[r.axes];
        r.stride_bytes[a] = r.stride_bytes[r.axes];
        folded = 1;
      }
    }
  }
  return r;
}

/* sum of t[m] * stride[m], t[m] in [lo[m], hi[m]]; strides descend. */
typedef struct offsets {
  int terms;
  int64_t stride[8], lo[8], hi[8];
  int budget; /* steps until the search gives up */
} offsets;

static void add_axis(offsets *o, int64_t stride, int64_t lo, int64_t hi) {
  int at = 0;
  while (at < o->terms && o->stride[at] > stride) {
    at++;
  }
  if (at == o->terms || o->stride[at] != stride) {
    for (int m = o->terms++; m > at; m--) {
      o->stride[m] = o->stride[m - 1];
      o->lo[m] = o->lo[m - 1];
      o->hi[m] = o->hi[m - 1];
    }
    o->stride[at] = stride;
    o->lo[at] = 0;
    o->hi[at] = 0;
  }
  o->lo[at] += lo;
  o->hi[at] += hi;
}

/* 1 if the terms from `from` on can sum to a value in [low, high]. */
static int can_reach(offsets *o, int from, int64_t low, int64_t high) {
  int64_t rest_low = 0, rest_high = 0, first, last;
  if (from == o->terms) {
    return low <= 0 && high >= 0;
  }
  if (o->budget-- <= 0) {
    return 0;
  }
  for (int m = from + 1; m < o->terms; m++) {
    rest_low += o->lo[m] * o->stride[m];
    rest_high += o->hi[m] * o->stride[m];
  }
  first = -tsr_floor_div(-(low - rest_high), o->stride[from]); /* ceil */
  last = tsr_floor_div(high - rest_low, o->stride[from]);
  first = first > o->lo[from] ? first : o->lo[from];
  last = last < o->hi[from] ? last : o->hi[from];
  for (int64_t t = first; t <= last && o->budget > 0; t++) {
    if (can_reach(o, from + 1, low - t * o->stride[from], high - t * o->stride[from])) {
      return 1;
    }
  }
  return 0;
}

int tsr__layouts_overlap(const tsr_layout *a, const void *a_data, const tsr_layout *b, const void *b_data) {
  const int64_t a_span = tsr__layout_span_bytes(a), b_span = tsr__layout_span_bytes(b);
  const int64_t most = INT64_C(1) << 60; /* more is no memory, and would overflow below */
  const uintptr_t a0 = (uintptr_t)a_data, b0 = (uintptr_t)b_data;
  offsets o;
  runs ra, rb;
  int64_t delta;
  if (a_span == 0 || b_span == 0 || a_span > most || b_span > most ||
      (a0 <= b0 ? b0 - a0 >= (uintptr_t)a_span : a0 - b0 >= (uintptr_t)b_span)) {
    return 0;
  }
  ra = runs_of(a);
  rb = runs_of(b);
  delta = a0 <= b0 ? (int64_t)(b0 - a0) : -(int64_t)(a0 - b0);
  memset(&o, 0, sizeof(o));
  o.budget = 4096;
  for (int m = 0; m < ra.axes; m++) {
    add_axis(&o, ra.stride_bytes[m], 0, ra.count[m] - 1);
  }
  for (int m = 0; m < rb.axes; m++) {
    add_axis(&o, rb.stride_bytes[m], -(rb.count[m] - 1), 0);
  }
  return can_reach(&o, 0, delta - ra.run + 1, delta + rb.run - 1);
}

tsr_status tsr__check_overlap(const tsr__problem *p, const tsr__bound *bound, const tsr_buffer *workspace,
                              int64_t workspace_bytes, tsr_error *err) {
  const tsr_layout scratch = tsr_layout_dense(TSR_U8, 1, 1, 1, workspace_bytes);
  for (int w = 0; w < TSR_SLOT_COUNT; w++) {
    if (!tsr__problem_has(p, w) || bound->ptr[w] == NULL) {
      continue;
    }
    const tsr_layout out = tsr__run_layout(p, &bound->args, w);
    if (workspace->ptr != NULL && tsr__layouts_overlap(&out, bound->ptr[w], &scratch, tsr__buffer_address(workspace))) {
      return tsr__invalid(err, "workspace", "overlaps %s", tsr__slots[w].name);
    }
    for (int r = 0; tsr__slots[w].writes[p->desc.op] && r < TSR_SLOT_COUNT; r++) {
      const int twice = r <= w && tsr__slots[r].writes[p->desc.op]; /* a pair of outputs is seen once */
      if (twice || !tsr__problem_has(p, r) || bound->ptr[r] == NULL) {
        continue;
      }
      const tsr_layout in = tsr__run_layout(p, &bound->args, r);
      if (tsr__layouts_overlap(&out, bound->ptr[w], &in, bound->ptr[r])) {
        return tsr__invalid(err, tsr__slots[w].name, "overlaps %s", tsr__slots[r].name);
      }
    }
  }
  return TSR_OK;
}
