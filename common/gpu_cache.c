/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of append and merge as kernel parameters, in the order of common/device/gpu_cache_args.h. */
#include <stdio.h>
#include <string.h>

#include "common/gpu_int.h"

#include "common/device/gpu_cache_args.h"

enum { MAX_GROUPS = 0x7fffffff };

static tsr_t1 axes1(const tsr_layout *l, const tsr_buffer *b) {
  tsr_t1 t = {b->offset_bytes, l->stride[0]};
  return t;
}

static tsr_t2 axes2(const tsr_layout *l, const tsr_buffer *b) {
  tsr_t2 t = {b->offset_bytes, {l->stride[0], l->stride[1]}};
  return t;
}

static tsr_t3 axes3(const tsr_layout *l, int64_t offset_bytes) {
  tsr_t3 t = {offset_bytes, {l->stride[0], l->stride[1], l->stride[2]}};
  return t;
}

static tsr_t4 axes4(const tsr_layout *l, int64_t offset_bytes) {
  tsr_t4 t = {offset_bytes, {l->stride[0], l->stride[1], l->stride[2], l->stride[3]}};
  return t;
}

/* Of a tensor whose axes may have extent 1, which then repeat. */
static tsr_t4 axes4_repeated(const tsr_layout *l, const tsr_buffer *b) {
  tsr_t4 t = axes4(l, b->offset_bytes);
  for (int i = 0; i < 4; i++) {
    t.stride[i] = l->shape[i] == 1 ? 0 : t.stride[i];
  }
  return t;
}

static void set_pointer(tsr__gpu_param *p, const void *ptr) {
  p->data = ptr;
  p->bytes = 0;
}

static void set_value(tsr__gpu_param *p, const void *data, size_t bytes) {
  p->data = data;
  p->bytes = (int32_t)bytes;
}

static int has(const tsr_layout *l) {
  return l->dtype != TSR_DTYPE_NONE;
}

static tsr__gpu_call call_of(const tsr__launch *launch, const tsr__gpu_param *params, int32_t num_params) {
  const tsr__gpu_kernel *kernel = (const tsr__gpu_kernel *)launch->kernel;
  tsr__gpu_call c = {kernel->function, launch->items < MAX_GROUPS ? launch->items : MAX_GROUPS, kernel->key.threads,
                     num_params, params};
  return c;
}

/* ---- Append -------------------------------------------------------------------------------------- */

static tsr_append_side side_of(const tsr_layout *from, const tsr_buffer *source, const tsr_layout *to,
                               const tsr_buffer *target, int32_t heads, int32_t turned) {
  tsr_append_side s;
  memset(&s, 0, sizeof(s));
  if (!has(from)) {
    return s;
  }
  s.from = axes4(from, source->offset_bytes);
  s.to = axes4(to, target->offset_bytes);
  s.heads = heads;
  s.channels = (tsr_i32)from->shape[3];
  s.from_type = (tsr_u8)from->dtype;
  s.to_type = (tsr_u8)to->dtype;
  s.turned = (tsr_u8)turned;
  return s;
}

static void set_scale(tsr_append_side *s, const tsr_layout *scale, const tsr_buffer *data, int32_t group) {
  s->group = group;
  s->scale = axes4_repeated(scale, data);
  s->scale_type = (tsr_u8)scale->dtype;
}

static tsr_u32 append_flags(const tsr__append_problem *p) {
  const tsr_append_desc *d = &p->desc;
  return (has(&d->cu_seqlens_new) ? TSR_AP_PACKED : 0) | (has(&d->seqlens_k) ? TSR_AP_LENGTHS : 0) |
         (p->len_dtype == TSR_I64 ? TSR_AP_LEN64 : 0) | (has(&d->cos) ? TSR_AP_ROTARY : 0) |
         (has(&d->positions) ? TSR_AP_POSITIONS : 0) | ((d->flags & TSR_APPEND_INTERLEAVED) ? TSR_AP_PAIRS : 0) |
         ((d->flags & TSR_APPEND_STATIC_SCALES) ? TSR_AP_FIXED : 0) | (p->page_size != 0 ? TSR_AP_PAGED : 0);
}

static void fill_append(const tsr__append_problem *p, const tsr_append_args *a, tsr_append_kernel_args *k) {
  const tsr_append_desc *d = &p->desc;
  const int turns = has(&d->cos);
  memset(k, 0, sizeof(*k));
  k->k = side_of(&d->k_new, &a->k_new, &d->k_cache, &a->k_cache, p->heads_kv, turns);
  k->v = side_of(&d->v_new, &a->v_new, &d->v_cache, &a->v_cache, p->heads_kv, 0);
  k->q = side_of(&d->q, &a->q, &d->q_out, &a->q_out, p->heads_q, turns);
  set_scale(&k->k, &d->k_scale, &a->k_scale, p->k_group);
  set_scale(&k->v, &d->v_scale, &a->v_scale, p->v_group);
  k->cos = axes2(&d->cos, &a->cos);
  k->sin = axes2(&d->sin, &a->sin);
  k->positions = axes2(&d->positions, &a->positions);
  k->block_table = axes2(&d->block_table, &a->block_table);
  k->cu_seqlens_new = axes1(&d->cu_seqlens_new, &a->cu_seqlens_new);
  k->seqlens_k = axes1(&d->seqlens_k, &a->seqlens_k);
  k->batch = a->batch;
  k->tokens = has(&d->cu_seqlens_new) ? a->total_new : a->batch * p->seqlen_new;
  k->seqlen_new = p->seqlen_new;
  k->capacity = p->capacity;
  k->page_size = p->page_size;
  k->num_pages = d->k_cache.shape[0];
  k->num_positions = d->cos.shape[0];
  k->rotary_dim = d->rotary_dim;
  k->flags = append_flags(p);
}

tsr_status tsr__gpu_run_append(const tsr__device *dev, const tsr__op_problem *op, const tsr__plan_build *build,
                               const tsr_append_args *a, tsr_error *err) {
  const tsr__append_problem *p = &op->append;
  const tsr__gpu_queue queue = {a->queue, a->wait_events, a->num_wait_events, a->event, p->desc.memory};
#define POINTER_OF(type, name) a->name.ptr,
  const void *const pointers[] = {TSR_PARAMS_APPEND(POINTER_OF)};
  enum { POINTERS = sizeof(pointers) / sizeof(pointers[0]) };
  tsr_append_kernel_args args;
  tsr__gpu_param params[POINTERS + 1];
  tsr__gpu_call call;
  fill_append(p, a, &args);
  for (int i = 0; i < POINTERS; i++) {
    set_pointer(&params[i], pointers[i]);
  }
  set_value(&params[POINTERS], &args, sizeof(args));
  call = call_of(&build->launches[0], params, POINTERS + 1);
  return tsr__gpu_of(dev)->driver->enqueue(dev, &queue, &call, build->launches[0].items > 0 ? 1 : 0, err);
}

/* ---- Merge --------------------------------------------------------------------------------------- */

/* One launch of several. */
enum { MERGE_POINTERS = 2 * TSR_MERGE_FAN + 4, STACK_STEPS = 16 };
typedef struct merge_step {
  tsr_merge_kernel_args args;
  tsr__gpu_param params[MERGE_POINTERS + 1];
} merge_step;

static void fill_step(const tsr_merge_desc *d, const tsr_merge_args *a, int64_t first, merge_step *s) {
  tsr_merge_kernel_args *k = &s->args;
  memset(s, 0, sizeof(*s));
  k->partial_o = axes4(&d->partial_o, 0);
  k->o = axes4(&d->o, a->o.offset_bytes);
  k->partial_lse = axes3(&d->partial_lse, 0);
  k->lse = axes3(&d->lse, a->lse.offset_bytes);
  k->sink = axes1(&d->sink, &a->sink);
  k->workspace = a->workspace.offset_bytes;
  k->seqlen = d->o.shape[1];
  k->heads = (tsr_i32)d->o.shape[2];
  k->channels = (tsr_i32)d->o.shape[3];
  k->rows = d->o.shape[0] * d->o.shape[1] * d->o.shape[2];
  k->count = (tsr_i32)tsr_min_i64(TSR_MERGE_FAN, d->num_partials - first);
  k->step = (tsr_i32)(first / TSR_MERGE_FAN);
  k->last = first + k->count == d->num_partials;
  k->partial_type = (tsr_u8)d->partial_o.dtype;
  k->o_type = (tsr_u8)d->o.dtype;
  for (int i = 0; i < k->count; i++) {
    k->partial_o_bytes[i] = a->partial_o[first + i].offset_bytes;
    k->partial_lse_bytes[i] = a->partial_lse[first + i].offset_bytes;
    set_pointer(&s->params[i], a->partial_o[first + i].ptr);
    set_pointer(&s->params[TSR_MERGE_FAN + i], a->partial_lse[first + i].ptr);
  }
  set_pointer(&s->params[2 * TSR_MERGE_FAN], a->o.ptr);
  set_pointer(&s->params[2 * TSR_MERGE_FAN + 1], a->lse.ptr);
  set_pointer(&s->params[2 * TSR_MERGE_FAN + 2], a->sink.ptr);
  set_pointer(&s->params[2 * TSR_MERGE_FAN + 3], a->workspace.ptr);
  set_value(&s->params[MERGE_POINTERS], k, sizeof(*k));
}

static tsr_status run_steps(const tsr__device *dev, const tsr_merge_desc *d, const tsr__launch *launch,
                            const tsr_merge_args *a, merge_step *steps, tsr__gpu_call *calls, int32_t n,
                            tsr_error *err) {
  const tsr__gpu_queue queue = {a->queue, a->wait_events, a->num_wait_events, a->event, d->memory};
  for (int32_t i = 0; i < n; i++) {
    fill_step(d, a, (int64_t)i * TSR_MERGE_FAN, &steps[i]);
    calls[i] = call_of(launch, steps[i].params, MERGE_POINTERS + 1);
  }
  return tsr__gpu_of(dev)->driver->enqueue(dev, &queue, calls, n, err);
}

/* Hundreds of partials, a rare case, take more than a stack should be asked for: that alone uses the host's allocator.
 */
tsr_status tsr__gpu_run_merge(const tsr__device *dev, const tsr__op_problem *op, const tsr__plan_build *build,
                              const tsr_merge_args *a, tsr_error *err) {
  const tsr_merge_desc *d = &op->merge.desc;
  const tsr__launch *launch = &build->launches[0];
  const int32_t n =
      launch->items == 0 ? 0 : (int32_t)((d->num_partials + TSR_MERGE_FAN - 1) / TSR_MERGE_FAN); /* 0: no rows */
  merge_step few[STACK_STEPS];
  tsr__gpu_call few_calls[STACK_STEPS];
  merge_step *steps;
  tsr__gpu_call *calls;
  tsr_status st;
  if (n <= STACK_STEPS) {
    return run_steps(dev, d, launch, a, few, few_calls, n, err);
  }
  steps = tsr__alloc_zero(&dev->host->alloc, (size_t)n * sizeof(*steps));
  calls = tsr__alloc_zero(&dev->host->alloc, (size_t)n * sizeof(*calls));
  st = steps != NULL && calls != NULL
           ? run_steps(dev, d, launch, a, steps, calls, n, err)
           : tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for the launches of %lld partials",
                       (long long)d->num_partials);
  tsr__alloc_free(&dev->host->alloc, steps);
  tsr__alloc_free(&dev->host->alloc, calls);
  return st;
}
