/* SPDX-License-Identifier: Apache-2.0 */
/* A run's arguments as kernel parameters, in the order of common/device/gpu_args.h. */
#include <string.h>

#include "common/gpu_int.h"

enum { MAX_GROUPS = 0x7fffffff };

/* Everything that the calls of one attention run point to. */
typedef struct attention_call {
  tsr_launch_args launch[TSR__MAX_LAUNCHES];
  tsr_expr_args expr;
  tsr__gpu_param params[TSR__MAX_LAUNCHES][TSR__GPU_MAX_PARAMS];
  tsr__gpu_call calls[TSR__MAX_LAUNCHES];
} attention_call;

#define SLOT_OF(type, name) TSR_SLOT_##name,
static const int16_t base_slots[] = {TSR_PARAMS_BASE(SLOT_OF)};
static const int16_t forward_slots[] = {TSR_PARAMS_FORWARD(SLOT_OF)};
static const int16_t backward_slots[] = {TSR_PARAMS_BACKWARD(SLOT_OF)};
static const int16_t rich_slots[] = {TSR_PARAMS_RICH(SLOT_OF)};

typedef struct param_list {
  tsr__gpu_param *at;
  int32_t n;
} param_list;

static void push_pointer(param_list *l, const void *ptr) {
  l->at[l->n].data = ptr;
  l->at[l->n++].bytes = 0;
}

static void push_value(param_list *l, const void *data, size_t bytes) {
  l->at[l->n].data = data;
  l->at[l->n++].bytes = (int32_t)bytes;
}

static void push_slots(param_list *l, const int16_t *slots, size_t n, const tsr__bound *bound) {
  for (size_t i = 0; i < n; i++) {
    push_pointer(l, slots[i] == TSR__GPU_SLOT_WORKSPACE ? bound->workspace : bound->ptr[slots[i]]);
  }
}

#define PUSH(list, slots, bound) push_slots(list, slots, sizeof(slots) / sizeof((slots)[0]), bound)

static void fill_launch(const tsr__problem *p, const tsr__plan_build *build, const tsr_run_args *args,
                        tsr_launch_args *l) {
  const tsr_attention_desc *d = &p->desc;
  const tsr__schedule *s = &build->schedule;
  const int64_t slots = p->batch * p->seqlen_q;
  memset(l, 0, sizeof(*l));
  l->q_blocks = s->q_blocks;
  l->split_keys = s->split_keys;
  l->workspace = args->workspace.offset_bytes;
  l->partial_o = build->partial_o;
  l->partial_ml = build->partial_lse;
  l->by_row = (p->features & TSR_A_Q_PACKED) != 0 && p->total_q <= slots;
  l->partial_rows = l->by_row ? p->total_q : slots;
  l->item_max = build->own[TSR__GPU_OWN_ITEM_MAX];
  l->delta = build->own[TSR__GPU_OWN_DELTA];
  l->list = build->own[TSR__GPU_OWN_LIST];
  l->rng_state = args->rng_state.offset_bytes;
  l->rng_stride = d->rng_state.stride[0];
  if (d->op == TSR_BACKWARD) {
    memcpy(l->u.dbias_shape, d->dbias.shape, sizeof(l->u.dbias_shape));
  } else {
    l->u.dropout_mask.offset_bytes = args->dropout_mask.offset_bytes;
    memcpy(l->u.dropout_mask.stride, d->dropout_mask.stride, sizeof(l->u.dropout_mask.stride));
  }
  l->tile_q = s->tile_q;
  l->pack = s->pack;
  l->heads = s->heads;
  l->num_splits = s->num_splits;
  l->type[TSR_TYPE_O] = (tsr_u8)d->o.dtype;
  l->type[TSR_TYPE_BIAS] = (tsr_u8)d->bias.dtype;
  l->type[TSR_TYPE_K_SCALE] = (tsr_u8)d->k_scale.dtype;
  l->type[TSR_TYPE_K_ZERO] = (tsr_u8)d->k_zero.dtype;
  l->type[TSR_TYPE_V_SCALE] = (tsr_u8)d->v_scale.dtype;
  l->type[TSR_TYPE_V_ZERO] = (tsr_u8)d->v_zero.dtype;
  l->type[TSR_TYPE_DOUT] = (tsr_u8)d->dout.dtype;
  l->type[TSR_TYPE_DQ] = (tsr_u8)d->dq.dtype;
  l->type[TSR_TYPE_DK] = (tsr_u8)d->dk.dtype;
  l->type[TSR_TYPE_DV] = (tsr_u8)d->dv.dtype;
  l->type[TSR_TYPE_DBIAS] = (tsr_u8)d->dbias.dtype;
}

static void fill_expr(const tsr__problem *p, const tsr__bound *bound, const tsr_run_args *args, tsr_expr_args *x) {
  memset(x, 0, sizeof(*x));
  for (int i = 0; i < p->desc.num_aux; i++) {
    x->aux[i].offset_bytes = args->aux[i].offset_bytes;
    for (int a = 0; a < 4; a++) {
      x->aux[i].shape[a] = (tsr_i32)p->desc.aux[i].shape[a]; /* fits: refuse in gpu_variant.c */
    }
    memcpy(x->aux[i].stride, p->desc.aux[i].stride, sizeof(x->aux[i].stride));
  }
  memcpy(x->scalar, bound->env.scalar, sizeof(x->scalar));
}

static void fill_call(const tsr__problem *p, const tsr__launch *launch, const tsr__bound *bound, attention_call *c,
                      int32_t i) {
  const tsr__gpu_kernel *kernel = (const tsr__gpu_kernel *)launch->kernel;
  const tsr__kernel_key *key = &kernel->key;
  param_list l = {c->params[i], 0};
  PUSH(&l, base_slots, bound);
  if (p->desc.op == TSR_BACKWARD) {
    PUSH(&l, backward_slots, bound);
  } else {
    PUSH(&l, forward_slots, bound);
  }
  if (key->rich) {
    PUSH(&l, rich_slots, bound);
  }
  if (key->score_hash != 0 || key->grad_hash != 0 || key->mask_hash != 0) {
    for (int a = 0; a < TSR_ARGS_AUX; a++) {
      push_pointer(&l, bound->ptr[TSR_SLOT_aux0 + a]);
    }
  }
  push_value(&l, &bound->args, sizeof(bound->args));
  push_value(&l, &c->launch[i], sizeof(c->launch[i]));
  if (key->score_hash != 0 || key->grad_hash != 0 || key->mask_hash != 0) {
    push_value(&l, &c->expr, sizeof(c->expr));
  }
  c->calls[i].function = kernel->function;
  c->calls[i].groups = launch->items < MAX_GROUPS ? launch->items : MAX_GROUPS;
  c->calls[i].threads = key->threads;
  c->calls[i].num_params = l.n;
  c->calls[i].params = l.at;
}

tsr_status tsr__gpu_run_attention(const tsr__device *dev, const tsr__op_problem *p, const tsr__plan_build *build,
                                  const tsr__bound *bound, const tsr_run_args *args, tsr_error *err) {
  const tsr__gpu_queue queue = {args->queue, args->wait_events, args->num_wait_events, args->event,
                                p->attn.desc.memory};
  attention_call c;
  int32_t n = 0;
  fill_launch(&p->attn, build, args, &c.launch[0]);
  fill_expr(&p->attn, bound, args, &c.expr);
  for (int32_t i = 0; i < build->num_launches; i++) {
    if (build->launches[i].items > 0) {
      if (n > 0) {
        c.launch[n] = c.launch[0];
      }
      c.launch[n].items = build->launches[i].items;
      fill_call(&p->attn, &build->launches[i], bound, &c, n);
      n++;
    }
  }
  return tsr__gpu_of(dev)->driver->enqueue(dev, &queue, c.calls, n, err);
}
