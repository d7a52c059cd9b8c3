/* SPDX-License-Identifier: Apache-2.0 */
/* The portable family "simt": what it refuses, which kernels a plan needs, and how large their work is. */
#include <stdio.h>
#include <string.h>

#include "common/gpu_int.h"

#include "common/device/gpu_cache_args.h"

enum {
  TILE_K = 64,
  FEW_ROWS = 16, /* tile rows of problems with few queries (decode) */
  FULL_LOCAL_BYTES = 40 * 1024
};

static int64_t ceil_div(int64_t n, int64_t d) {
  return (n + d - 1) / d;
}

static int64_t align_up(int64_t n) {
  return ceil_div(n, TSR__WORKSPACE_ALIGN) * TSR__WORKSPACE_ALIGN;
}

/* The class of a head dimension: kernels are compiled for these. */
static uint16_t dim_class(int32_t dim) {
  static const uint16_t classes[] = {32, 64, 128, 256};
  for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
    if (dim <= classes[i]) {
      return classes[i];
    }
  }
  return 576;
}

/* ---- Keys ------------------------------------------------------------------------------------------ */

/* Rows that are contiguous, whole in eights, and promised to begin on 16 bytes. */
static int is_vector(const tsr_layout *l) {
  const int64_t row_bytes = 8 * tsr_dtype_bits(l->dtype) / 8; /* of eight channels */
  return l->dtype == TSR_DTYPE_NONE || ((l->stride[3] == 1 || l->shape[3] == 1) && l->shape[3] % 8 == 0 &&
                                        l->align_bytes >= (row_bytes < 16 ? row_bytes : 16));
}

static tsr__kernel_key attention_key(const tsr__problem *p, uint8_t kernel, int tile) {
  const tsr_attention_desc *d = &p->desc;
  tsr__kernel_key key;
  memset(&key, 0, sizeof(key));
  key.kernel = kernel;
  key.rich = (p->features & TSR_RICH_FLAGS) != 0;
  key.threads = 128;
  key.tile_q = 64;
  key.tile_k = TILE_K;
  if (tile) {
    const int vector = is_vector(&d->q) && is_vector(&d->k) && is_vector(&d->v) && is_vector(&d->dout);
    key.type = (uint8_t)d->q.dtype;
    key.k_type = (uint8_t)d->k.dtype;
    key.v_type = (uint8_t)((d->flags & TSR_V_IN_K) != 0 ? d->k.dtype : d->v.dtype);
    key.vector = (uint8_t)vector;
    key.score_hash = p->score_expr != NULL ? tsr__expr_hash(p->score_expr) : 0;
    key.mask_hash = p->mask_expr != NULL ? tsr__expr_hash(p->mask_expr) : 0;
  }
  return key;
}

static void add_kernel(tsr__plan_build *build, const char *name, const tsr__kernel_key *key, int64_t items) {
  tsr__launch *l = &build->launches[build->num_launches++];
  memset(l, 0, sizeof(*l));
  l->name = name;
  l->items = items;
  memcpy(l->key, key, sizeof(*key));
}

/* ---- Forward --------------------------------------------------------------------------------------- */

/* Rows of a tile and threads of a group: O's share of a thread fits its registers, the arena the device's local memory,
 * and a few rows (decode) do not carry many idle ones. */
static void forward_geometry(const tsr__device *dev, const tsr__problem *p, tsr__kernel_key *key) {
  const int64_t rows = p->seqlen_q * p->group;
  key->dim_v = dim_class(p->head_dim_v);
  key->threads = key->dim_v > 128 ? 256 : 128;
  key->tile_q = key->dim_v > 256 || dev->local_bytes < FULL_LOCAL_BYTES ? 32 : 64;
  if (rows <= FEW_ROWS && !(p->desc.flags & TSR_BATCH_INVARIANT)) {
    key->tile_q = FEW_ROWS;
    key->threads = 128;
  }
}

static int has_lengths(const tsr__problem *p) {
  return (p->features & (TSR_A_Q_PACKED | TSR_A_SEQLENS_Q)) != 0;
}

static void build_forward(const tsr__device *dev, const tsr__problem *p, tsr__plan_build *build) {
  tsr__kernel_key key = attention_key(p, TSR__KERNEL_FORWARD, 1), small = attention_key(p, TSR__KERNEL_SPLIT_MERGE, 0);
  const tsr__schedule *s = &build->schedule;
  const int64_t heads = p->batch * p->heads_q;
  int64_t used = 0;
  forward_geometry(dev, p, &key);
  build->tile_q = key.tile_q;
  build->tile_k = key.tile_k;
  build->schedule = tsr__schedule_init(p, key.tile_q, key.tile_k, dev->num_threads);
  if (s->num_splits > 1) {
    const int64_t slots = p->batch * p->seqlen_q;
    const int64_t rows = (p->features & TSR_A_Q_PACKED) ? tsr_min_i64(slots, p->total_q) : slots;
    build->partial_o = used;
    used += align_up(s->num_splits * rows * p->heads_q * p->head_dim_v * 4);
    build->partial_lse = used;
    used += align_up(s->num_splits * rows * p->heads_q * 2 * 4);
  }
  if (tsr__problem_has(p, TSR_SLOT_max_s)) {
    build->own[TSR__GPU_OWN_ITEM_MAX] = used;
    used += align_up(s->items * s->pack * 4);
  }
  if (has_lengths(p) && s->items > 0) { /* items that exist, counted on the device */
    build->own[TSR__GPU_OWN_LIST] = used;
    used += align_up((p->batch + 1) * 8);
    small.kernel = TSR__KERNEL_PREPARE;
    add_kernel(build, "prepare", &small, 1);
  }
  add_kernel(build, "forward", &key, s->items);
  if (s->num_splits > 1) {
    small.kernel = TSR__KERNEL_SPLIT_MERGE;
    add_kernel(build, "merge", &small, heads * ceil_div(p->seqlen_q, 4)); /* a team of 32 threads a row */
  }
  if (tsr__problem_has(p, TSR_SLOT_max_s)) {
    small.kernel = TSR__KERNEL_MAX_S;
    add_kernel(build, "max_s", &small, p->heads_q);
  }
  if (tsr__problem_has(p, TSR_SLOT_dropout_mask)) {
    small.kernel = TSR__KERNEL_DROPOUT_MASK;
    add_kernel(build, "dropout_mask", &small, heads * ceil_div(p->seqlen_q, 16));
  }
  build->workspace_bytes = used;
}

/* ---- Backward -------------------------------------------------------------------------------------- */

/* As many as keep a kernel's sums in registers. */
static uint16_t backward_threads(const tsr__kernel_key *key) {
  return key->kernel == TSR__KERNEL_DKDV || (key->kernel == TSR__KERNEL_DQ && key->dim > 64) ? 256 : 128;
}

static tsr__kernel_key backward_key(const tsr__device *dev, const tsr__problem *p, uint8_t kernel) {
  tsr__kernel_key key = attention_key(p, kernel, 1);
  key.do_type = (uint8_t)p->desc.dout.dtype;
  key.grad_hash = p->score_grad != NULL ? tsr__expr_hash(p->score_grad) : 0;
  key.dim = dim_class(p->head_dim);
  key.dim_v = dim_class(p->head_dim_v);
  key.threads = backward_threads(&key);
  key.dim = kernel == TSR__KERNEL_DBIAS ? 0 : key.dim;
  key.dim_v = kernel == TSR__KERNEL_DKDV ? key.dim_v : 0;
  key.tile_q = dev->local_bytes < FULL_LOCAL_BYTES ? 32 : 64;
  return key;
}

static int64_t tiles_of(int64_t extent, int64_t tile) {
  return extent == 1 ? 1 : ceil_div(extent, tile);
}

static void build_backward(const tsr__device *dev, const tsr__problem *p, tsr__plan_build *build) {
  tsr__kernel_key small = attention_key(p, TSR__KERNEL_DELTA, 0);
  const tsr__kernel_key dkdv = backward_key(dev, p, TSR__KERNEL_DKDV), dq = backward_key(dev, p, TSR__KERNEL_DQ);
  const tsr__kernel_key dbias = backward_key(dev, p, TSR__KERNEL_DBIAS);
  const int64_t rows = (p->features & TSR_A_Q_PACKED) ? p->total_q : p->batch * p->seqlen_q;
  const int64_t heads = p->batch * p->heads_q;
  build->tile_q = dq.tile_q;
  build->tile_k = dq.tile_k;
  build->schedule.tile_q = dq.tile_q; /* rows of one head a tile, no splits */
  build->schedule.tile_k = dq.tile_k;
  build->schedule.pack = 1;
  build->schedule.heads = p->heads_q;
  build->schedule.num_splits = 1;
  build->own[TSR__GPU_OWN_DELTA] = 0;
  build->workspace_bytes = align_up(rows * p->heads_q * 4);
  add_kernel(build, "delta", &small, heads * ceil_div(p->seqlen_q, 64));
  if (tsr__problem_has(p, TSR_SLOT_dk) || tsr__problem_has(p, TSR_SLOT_dv)) {
    add_kernel(build, "dkdv", &dkdv, p->batch * p->heads_kv * ceil_div(p->seqlen_k, dkdv.tile_k));
  }
  if (tsr__problem_has(p, TSR_SLOT_dq)) {
    add_kernel(build, "dq", &dq, heads * ceil_div(p->seqlen_q, dq.tile_q));
  }
  if (tsr__problem_has(p, TSR_SLOT_dbias)) {
    const int64_t *shape = p->desc.bias.shape;
    add_kernel(build, "dbias", &dbias,
               shape[0] * shape[1] * tiles_of(shape[2], dbias.tile_q) * tiles_of(shape[3], dbias.tile_k));
  }
  if (tsr__problem_has(p, TSR_SLOT_dsink)) {
    small.kernel = TSR__KERNEL_DSINK;
    add_kernel(build, "dsink", &small, p->heads_q);
  }
}

static int refuse_backward(const tsr__problem *p, char *reason, size_t bytes) {
  const tsr_dtype t = p->desc.q.dtype;
  if (p->features & (TSR_A_PAGED_TABLE | TSR_A_PAGED_CSR)) {
    snprintf(reason, bytes, "forward only: K and V are paged");
  } else if (p->features & TSR_A_QUANT) {
    snprintf(reason, bytes, "forward only: K and V are quantised");
  } else if (t != TSR_F32 && t != TSR_F16 && t != TSR_BF16) {
    snprintf(reason, bytes, "forward only: inputs are %s", tsr_dtype_name(t));
  } else {
    return 0;
  }
  return 1;
}

/* ---- Append and merge ------------------------------------------------------------------------------ */

static void build_append(const tsr__append_problem *p, tsr__plan_build *build) {
  const int64_t tokens = p->desc.cu_seqlens_new.dtype != TSR_DTYPE_NONE ? p->total_new : p->batch * p->seqlen_new;
  const int64_t rows = 2 * (int64_t)p->heads_kv + (p->desc.q.dtype != TSR_DTYPE_NONE ? p->heads_q : 0);
  tsr__kernel_key key;
  memset(&key, 0, sizeof(key));
  key.kernel = TSR__KERNEL_APPEND;
  key.threads = 64;
  add_kernel(build, "append", &key, tokens * rows); /* a group a row */
}

static void build_merge(const tsr__merge_problem *p, tsr__plan_build *build) {
  const int64_t *shape = p->desc.o.shape, rows = shape[0] * shape[1] * shape[2];
  tsr__kernel_key key;
  memset(&key, 0, sizeof(key));
  key.kernel = TSR__KERNEL_MERGE;
  key.threads = 128;
  build->workspace_bytes = align_up(TSR_MERGE_WORKSPACE(p->desc.num_partials, rows, shape[3]));
  add_kernel(build, "merge", &key, ceil_div(rows, 4)); /* a team of 32 threads a row */
}

/* ---- The row --------------------------------------------------------------------------------------- */

/* Kernels are told extents of aux tensors as 32-bit numbers. */
static int refuse_aux(const tsr__problem *p, char *reason, size_t bytes) {
  for (int i = 0; i < p->desc.num_aux; i++) {
    for (int a = 0; a < 4; a++) {
      if (p->desc.aux[i].shape[a] > INT32_MAX) {
        snprintf(reason, bytes, "aux[%d] has an extent beyond 2^31 - 1", i);
        return 1;
      }
    }
  }
  return 0;
}

static int refuse(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *p, char *reason, size_t bytes) {
  (void)v;
  if (p->op == TSR_OP_BACKWARD && refuse_backward(&p->attn, reason, bytes)) {
    return 1;
  }
  if ((p->op == TSR_OP_FORWARD || p->op == TSR_OP_BACKWARD) && refuse_aux(&p->attn, reason, bytes)) {
    return 1;
  }
  if (dev->local_bytes < 31 * 1024) {
    snprintf(reason, bytes, "needs 31 KiB of local memory, the device has %lld bytes", (long long)dev->local_bytes);
    return 1;
  }
  if (tsr__gpu_of(dev)->max_threads < 256) {
    snprintf(reason, bytes, "needs work groups of 256, the device has %d", tsr__gpu_of(dev)->max_threads);
    return 1;
  }
  return 0;
}

static tsr_status build_plan(const tsr__variant *v, const tsr__device *dev, const tsr__op_problem *p,
                             tsr__plan_build *build, tsr_error *err) {
  (void)v;
  (void)err;
  for (int i = 0; i < 8; i++) {
    build->own[i] = -1;
  }
  build->workspace_align = 256;
  switch (p->op) {
  case TSR_OP_FORWARD: build_forward(dev, &p->attn, build); return TSR_OK;
  case TSR_OP_BACKWARD: build_backward(dev, &p->attn, build); return TSR_OK;
  case TSR_OP_APPEND: build_append(&p->append, build); return TSR_OK;
  default: build_merge(&p->merge, build); return TSR_OK;
  }
}

static const tsr__variant simt = {
    .name = "simt",
    .op_mask = 1 << TSR_OP_FORWARD | 1 << TSR_OP_BACKWARD | 1 << TSR_OP_APPEND | 1 << TSR_OP_MERGE,
    .tile_q = 64,
    .tile_k = TILE_K,
    .refuse = refuse,
    .build = build_plan,
};

const tsr__variant *const tsr__gpu_variants[] = {&simt};
const int32_t tsr__gpu_num_variants = 1;
