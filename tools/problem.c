/* SPDX-License-Identifier: Apache-2.0 */
#include "problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "problem_inputs.h"

typedef struct builder {
  tool_problem *p;
  const tool_options *o;
  problem_sizes sizes;
  input_types types;
  int32_t flags;
  tsr_error *err;
} builder;

static int present(const tool_problem *p, int32_t input) {
  return p->inputs[input].dtype != TSR_DTYPE_NONE;
}

static int64_t index_at(const tool_tensor *t, int64_t i) {
  return t->dtype == TSR_I64 ? ((const int64_t *)t->data)[i * t->stride[0]]
                             : ((const int32_t *)t->data)[i * t->stride[0]];
}

/* ---- Sizes ----------------------------------------------------------------------------------- */

static tsr_status one_int(const builder *b, const char *text, const char *option, int64_t least, int64_t *out) {
  int32_t count = 1;
  return text && *out == 0 ? options_int_list(text, option, least, INT64_C(1) << 40, out, &count, b->err) : TSR_OK;
}

static tsr_status one_dtype(const builder *b, const char *text, const char *option, tsr_dtype *out) {
  int32_t count = 1;
  return text && *out == TSR_DTYPE_NONE ? options_dtype_list(text, option, out, &count, b->err) : TSR_OK;
}

static tsr_status take_sizes(builder *b, const problem_sizes *sizes) {
  const tool_options *o = b->o;
  if (sizes)
    b->sizes = *sizes;
  else
    b->sizes.causal = -1;
  tsr_status status = one_int(b, o->seqlen_q, "--seqlen-q", 0, &b->sizes.seqlen_q);
  if (status == TSR_OK)
    status = one_int(b, o->seqlen_k, "--seqlen-k", 0, &b->sizes.seqlen_k);
  if (status == TSR_OK && !o->seqlen_q)
    status = one_int(b, o->seqlen, "--seqlen", 0, &b->sizes.seqlen_q);
  if (status == TSR_OK && !o->seqlen_k)
    status = one_int(b, o->seqlen, "--seqlen", 0, &b->sizes.seqlen_k);
  if (status == TSR_OK)
    status = one_int(b, o->head_dim, "--head-dim", 1, &b->sizes.head_dim);
  b->types.main = b->sizes.dtype;
  if (status == TSR_OK)
    status = one_dtype(b, o->dtype, "--dtype", &b->types.main);
  if (status == TSR_OK)
    status = one_dtype(b, o->kv_dtype, "--kv-dtype", &b->types.kv);
  return status;
}

/* ---- Random tensors -------------------------------------------------------------------------- */

static tsr_status make_random(builder *b, tool_tensor *t, tsr_dtype dtype, int32_t rank, const int64_t *shape,
                              double factor) {
  if (b->flags & PROBLEM_NO_DATA)
    return tensor_describe(t, dtype, rank, shape, b->err);
  if (b->flags & PROBLEM_UNSET)
    return tensor_reserve(t, dtype, rank, shape, b->err);
  const tsr_status status = tensor_create(t, dtype, rank, shape, b->err);
  if (status == TSR_OK)
    random_fill(t, factor, random_next(&b->p->random_seed) ^ b->p->random_seed);
  return status;
}

/* [B,S,H,D] in the order of the files. */
static void order_shape(const tool_problem *p, int64_t batch, int64_t seqlen, int64_t heads, int64_t last,
                        int64_t shape[4]) {
  shape[0] = batch;
  shape[1] = p->bhsd ? heads : seqlen;
  shape[2] = p->bhsd ? seqlen : heads;
  shape[3] = last;
}

/* Random codes need a scale to mean something: one for the whole tensor. */
static tsr_status make_scale(builder *b, int32_t input, float value) {
  const int64_t shape[4] = {1, 1, 1, 1};
  if (present(b->p, input))
    return TSR_OK;
  const tsr_status status = tensor_create(&b->p->inputs[input], TSR_F32, 4, shape, b->err);
  if (status == TSR_OK)
    *(float *)b->p->inputs[input].data = value;
  return status;
}

static tsr_status random_main(builder *b) {
  tool_problem *p = b->p;
  const tool_options *o = b->o;
  const tsr_dtype dtype = b->types.main ? b->types.main : TSR_F32;
  const tsr_dtype kv = b->types.kv ? b->types.kv : dtype;
  const int codes = kv == TSR_I8 || kv == TSR_U4;
  const double factor = kv == TSR_I8 ? 32 : kv == TSR_U4 ? 2 : 1;
  const int64_t heads = o->heads.given ? o->heads.value : 8;
  const int64_t kv_heads = o->kv_heads.given ? o->kv_heads.value : o->v_in_k ? 1 : heads;
  const int64_t batch = o->batch.given ? o->batch.value : 1;
  const int64_t head_dim = b->sizes.head_dim ? b->sizes.head_dim : 64;
  const int64_t v_head_dim = o->v_head_dim.given   ? o->v_head_dim.value
                             : b->sizes.v_head_dim ? b->sizes.v_head_dim
                                                   : head_dim;
  const tool_tensor *cu_q = &p->inputs[INPUT_cu_seqlens_q], *cu_k = &p->inputs[INPUT_cu_seqlens_k];
  int64_t batch_q = batch, batch_k = batch,
          seqlen_q = o->seqlen || o->seqlen_q || b->sizes.seqlen_q ? b->sizes.seqlen_q : 1024;
  int64_t seqlen_k = o->seqlen || o->seqlen_k || b->sizes.seqlen_k ? b->sizes.seqlen_k : 1024, shape[4];
  if (cu_q->count > 0)
    batch_q = 1, seqlen_q = index_at(cu_q, cu_q->count - 1);
  if (cu_k->count > 0)
    batch_k = 1, seqlen_k = index_at(cu_k, cu_k->count - 1);
  p->random = 1;
  order_shape(p, batch_q, seqlen_q, heads, head_dim, shape);
  tsr_status status = make_random(b, &p->inputs[INPUT_q], dtype, 4, shape, 1);
  order_shape(p, batch_k, seqlen_k, kv_heads, head_dim, shape);
  if (status == TSR_OK)
    status = make_random(b, &p->inputs[INPUT_k], kv, 4, shape, factor);
  shape[3] = v_head_dim;
  if (status == TSR_OK && !o->v_in_k)
    status = make_random(b, &p->inputs[INPUT_v], kv, 4, shape, factor);
  if (status == TSR_OK && codes)
    status = make_scale(b, INPUT_k_scale, (float)(1 / factor));
  if (status == TSR_OK && codes && !o->v_in_k)
    status = make_scale(b, INPUT_v_scale, (float)(1 / factor));
  return status;
}

/* ---- Arrangement ----------------------------------------------------------------------------- */

/* Longest sequence by cu_seqlens; nonsense in it is left for the library to refuse. */
static int64_t longest_packed(const tool_tensor *cu) {
  int64_t longest = 0;
  for (int64_t i = 0; i + 1 < cu->count; i++) {
    const int64_t start = index_at(cu, i), end = index_at(cu, i + 1);
    if (start >= 0 && end > start && end - start > longest)
      longest = end - start;
  }
  return longest;
}

static int64_t longest_of(const tool_tensor *lengths) {
  int64_t longest = 0;
  for (int64_t i = 0; i < lengths->count; i++)
    longest = index_at(lengths, i) > longest ? index_at(lengths, i) : longest;
  return longest;
}

static int64_t longest_csr(const tool_tensor *indptr, int64_t page_size) {
  const int64_t pages = longest_packed(indptr);
  return pages > INT64_MAX / (page_size + 1) ? INT64_MAX : pages * page_size;
}

static void set_arrangement(builder *b) {
  tool_problem *p = b->p;
  tsr_attention_desc *d = &p->forward;
  const tool_tensor *in = p->inputs;
  p->paged = present(p, INPUT_block_table) || present(p, INPUT_kv_indptr);
  if (b->o->batch.given)
    d->batch = b->o->batch.value;
  else if (present(p, INPUT_cu_seqlens_q))
    d->batch = in[INPUT_cu_seqlens_q].count - 1;
  p->num_sequences = d->batch ? d->batch : d->q.shape[0];
  if (p->num_sequences < 0)
    p->num_sequences = 0;
  if (present(p, INPUT_cu_seqlens_q))
    d->max_seqlen_q = p->random || !b->o->seqlen_q ? longest_packed(&in[INPUT_cu_seqlens_q]) : b->sizes.seqlen_q;
  if (present(p, INPUT_cu_seqlens_k))
    d->max_seqlen_k = p->random || !b->o->seqlen_k ? longest_packed(&in[INPUT_cu_seqlens_k]) : b->sizes.seqlen_k;
  else if (p->paged && b->o->seqlen_k)
    d->max_seqlen_k = b->sizes.seqlen_k;
  else if (present(p, INPUT_kv_indptr))
    d->max_seqlen_k = longest_csr(&in[INPUT_kv_indptr], d->k.shape[1]);
  else if (p->paged && present(p, INPUT_seqlens_k))
    d->max_seqlen_k = longest_of(&in[INPUT_seqlens_k]);
  p->max_seqlen_q = d->max_seqlen_q ? d->max_seqlen_q : d->q.shape[1];
  p->max_seqlen_k = d->max_seqlen_k ? d->max_seqlen_k : d->k.shape[1];
  if (p->paged && d->max_seqlen_k == 0 && present(p, INPUT_block_table))
    p->max_seqlen_k = d->block_table.shape[1] * d->k.shape[1];
  p->heads = d->q.shape[2];
  p->kv_heads = d->k.shape[2];
  p->head_dim = d->q.shape[3];
}

static tsr_status bind_input(builder *b, int32_t i) {
  tool_problem *p = b->p;
  tool_tensor *t = &p->inputs[i];
  tsr_layout *layout = problem_input_layout(&p->forward, i);
  const tsr_status status = layout_of_tensor(t, input_axes(i), p->bhsd, problem_input_name(i), layout, b->err);
  if (status == TSR_OK)
    *problem_input_buffer(&p->forward_args, i) = tsr_buffer_in(t->data);
  return status;
}

/* A u8 file whose last axis counts bytes becomes a layout that counts bits. */
static tsr_status bind_mask_bits(builder *b) {
  tsr_layout *m = &b->p->forward.mask;
  const int64_t bytes = m->shape[3], bits = b->p->max_seqlen_k;
  m->dtype = TSR_BIT;
  if (present(b->p, INPUT_mask_offsets)) { /* rows lie where offsets and strides say */
    m->shape[2] = b->p->max_seqlen_q;
    m->shape[3] = bits;
    m->stride[3] = 1;
    return TSR_OK;
  }
  if (m->stride[3] > 1 || bytes != (bits + 7) / 8) {
    tool_error(b->err, TSR_INVALID, "mask", "mask: rows of %lld bytes, %lld keys need %lld, contiguous",
               (long long)bytes, (long long)bits, (long long)((bits + 7) / 8));
    return b->err->status;
  }
  m->shape[3] = bits;
  m->stride[3] = 1;
  return TSR_OK;
}

static tsr_status make_slopes(builder *b) {
  const int64_t heads = b->p->forward.q.shape[2];
  tool_tensor *t = &b->p->inputs[INPUT_alibi_slopes];
  const tsr_status status = tensor_create(t, TSR_F32, 1, &heads, b->err);
  for (int64_t h = 0; status == TSR_OK && h < heads; h++)
    ((float *)t->data)[h] = (float)exp2(-8.0 * (double)(h + 1) / (double)heads);
  return status == TSR_OK ? bind_input(b, INPUT_alibi_slopes) : status;
}

static tsr_status bind_inputs(builder *b) {
  tool_problem *p = b->p;
  tsr_status status = TSR_OK;
  for (int32_t i = 0; i < INPUT_COUNT && status == TSR_OK; i++) {
    if (present(p, i) && i != INPUT_dout && i != INPUT_dlse)
      status = bind_input(b, i);
  }
  if (status == TSR_OK && b->o->inputs[INPUT_alibi_slopes] && !present(p, INPUT_alibi_slopes))
    status = make_slopes(b);
  if (status != TSR_OK)
    return status;
  if (b->o->v_in_k) {
    p->forward.v = p->forward.k;
    p->forward.v.shape[3] = b->o->v_head_dim.given ? b->o->v_head_dim.value : p->forward.k.shape[3];
  }
  p->v_head_dim = p->forward.v.shape[3];
  set_arrangement(b);
  if (present(p, INPUT_mask) && b->o->mask_bits)
    status = bind_mask_bits(b);
  for (int32_t i = 0; i < TSR_EXPR_MAX_AUX && status == TSR_OK && p->aux[i].dtype != TSR_DTYPE_NONE; i++) {
    status = layout_of_tensor(&p->aux[i], AXES_AUX, 0, "aux", &p->forward.aux[i], b->err);
    p->forward_args.aux[i] = tsr_buffer_in(p->aux[i].data);
    p->forward.num_aux = i + 1;
  }
  return status;
}

/* ---- Flags and numbers ----------------------------------------------------------------------- */

static tsr_status set_pair(builder *b, const char *text, const char *option, int64_t least, int64_t out[2]) {
  int32_t count = 2;
  return options_int_list(text, option, least, INT64_MAX, out, &count, b->err);
}

static tsr_status set_scalars(builder *b) {
  tool_problem *p = b->p;
  const option_list *list = &b->o->scalars;
  size_t bytes = 1;
  for (int32_t i = 0; i < list->count; i++)
    bytes += strlen(list->items[i]) + 1;
  char *at = p->scalar_text = malloc(bytes);
  if (!at) {
    tool_error(b->err, TSR_OUT_OF_MEMORY, "", "no memory");
    return b->err->status;
  }
  for (int32_t i = 0; i < list->count; i++) {
    const char *item = list->items[i], *equals = strchr(item, '=');
    char *end = NULL;
    if (equals)
      p->forward_args.scalars[i] = strtof(equals + 1, &end);
    if (!equals || end == equals + 1 || *end) {
      tool_error(b->err, TSR_INVALID, "scalar", "--scalar: '%.80s' is not NAME=NUMBER", item);
      return b->err->status;
    }
    memcpy(at, item, (size_t)(equals - item));
    at[equals - item] = '\0';
    p->scalar_names[i] = at;
    at += equals - item + 1;
  }
  p->forward.num_scalars = list->count;
  p->forward.scalar_names = list->count ? p->scalar_names : NULL;
  return TSR_OK;
}

static tsr_status set_flags(builder *b, int32_t meta_causal, double meta_scale) {
  const tool_options *o = b->o;
  tsr_attention_desc *d = &b->p->forward;
  tsr_run_args *a = &b->p->forward_args;
  tsr_status status = TSR_OK;
  const int causal = b->sizes.causal >= 0 ? b->sizes.causal : o->causal || meta_causal == 1;
  d->flags |= (causal ? TSR_CAUSAL : 0) | (o->top_left ? TSR_TOP_LEFT : 0) | (o->v_in_k ? TSR_V_IN_K : 0) |
              (o->fast ? TSR_FAST : 0) | (o->deterministic ? TSR_DETERMINISTIC : 0) |
              (o->batch_invariant ? TSR_BATCH_INVARIANT : 0);
  if (o->window) {
    int64_t pair[2] = {0, 0};
    status = set_pair(b, o->window, "--window", -1, pair);
    d->flags |= TSR_WINDOW;
    d->window_left = pair[0];
    d->window_right = pair[1];
  }
  d->sink_tokens = o->sink_tokens.value;
  if (o->chunk.given) {
    d->flags |= TSR_CHUNK;
    d->chunk = o->chunk.value;
  }
  if (status == TSR_OK && o->block) {
    int64_t pair[2] = {0, 0};
    status = set_pair(b, o->block, "--block", 1, pair);
    d->block_rows = (int32_t)(pair[0] > INT32_MAX ? INT32_MAX : pair[0]);
    d->block_cols = pair[1] == 0 ? d->block_rows : (int32_t)(pair[1] > INT32_MAX ? INT32_MAX : pair[1]);
  }
  if (o->softcap.given) {
    d->flags |= TSR_SOFTCAP;
    a->softcap = (float)o->softcap.value;
  }
  if (o->dropout.given) {
    d->flags |= TSR_DROPOUT;
    a->dropout_p = (float)o->dropout.value;
    a->seed = (uint64_t)o->seed.value;
    a->offset = (uint64_t)o->offset.value;
  }
  a->scale = (float)(o->scale.given ? o->scale.value : meta_scale);
  d->score_expr = o->score_expr;
  d->mask_expr = o->mask_expr;
  d->variant = o->backward ? NULL : o->variant;
  d->num_splits = o->backward ? 0 : (int32_t)o->splits.value;
  return status == TSR_OK ? set_scalars(b) : status;
}

/* ---- Outputs --------------------------------------------------------------------------------- */

static tsr_status make_output(builder *b, tsr_attention_desc *d, tsr_run_args *a, int32_t output, tsr_dtype dtype,
                              int32_t axes, int32_t rank, const int64_t *shape) {
  tool_problem *p = b->p;
  tool_tensor *t = &p->outputs[output];
  tsr_status status = b->flags & PROBLEM_NO_DATA ? tensor_describe(t, dtype, rank, shape, b->err)
                      : b->flags & PROBLEM_UNSET ? tensor_reserve(t, dtype, rank, shape, b->err)
                                                 : tensor_create(t, dtype, rank, shape, b->err);
  if (status == TSR_OK)
    status = layout_of_tensor(t, axes, p->bhsd, problem_output_name(output), problem_output_layout(d, output), b->err);
  *problem_output_buffer(a, output) = tsr_buffer_out(t->data);
  return status;
}

static tsr_status make_forward_outputs(builder *b) {
  tool_problem *p = b->p;
  tsr_attention_desc *d = &p->forward;
  const tool_tensor *q = &p->inputs[INPUT_q];
  const int64_t lse_shape[3] = {d->q.shape[0], p->heads, d->q.shape[1]};
  const int64_t mask_shape[4] = {p->num_sequences, p->heads, p->max_seqlen_q, p->max_seqlen_k};
  int64_t shape[TENSOR_MAX_RANK];
  int32_t rank;
  tsr_dtype dtype = TSR_DTYPE_NONE;
  tsr_status status = one_dtype(b, b->o->out_dtype, "--out-dtype", &dtype);
  if (dtype == TSR_DTYPE_NONE)
    dtype = q->dtype == TSR_F8E4M3 || q->dtype == TSR_F8E5M2 ? TSR_F32 : q->dtype;
  layout_like(q, p->v_head_dim, &rank, shape);
  if (status == TSR_OK)
    status = make_output(b, d, &p->forward_args, OUTPUT_o, dtype, AXES_BSHD, rank, shape);
  if (status == TSR_OK)
    status = make_output(b, d, &p->forward_args, OUTPUT_lse, TSR_F32, AXES_BHS, q->rank == 4 ? 3 : 2,
                         lse_shape + (q->rank == 4 ? 0 : 1));
  if (status == TSR_OK && b->o->outputs[OUTPUT_max_s])
    status = make_output(b, d, &p->forward_args, OUTPUT_max_s, TSR_F32, AXES_VECTOR, 1, &p->heads);
  if (status == TSR_OK && b->o->outputs[OUTPUT_dropout_mask])
    status = make_output(b, d, &p->forward_args, OUTPUT_dropout_mask, TSR_U8, AXES_BROAD, 4, mask_shape);
  return status;
}

/* One gradient: the shape of its input, contiguous in the order of the file. */
static tsr_status make_gradient(builder *b, int32_t output, int32_t input, tsr_dtype forced) {
  const tool_tensor *t = &b->p->inputs[input];
  return make_output(b, &b->p->backward, &b->p->backward_args, output, forced ? forced : t->dtype, input_axes(input),
                     t->rank, t->shape);
}

static tsr_status make_backward(builder *b) {
  tool_problem *p = b->p;
  tool_tensor *dout = &p->inputs[INPUT_dout];
  const tool_tensor *o = &p->outputs[OUTPUT_o];
  tsr_dtype forced = TSR_DTYPE_NONE;
  tsr_status status = one_dtype(b, b->o->grad_dtype, "--grad-dtype", &forced);
  if (status == TSR_OK && !present(p, INPUT_dout))
    status = make_random(b, dout, o->dtype, o->rank, o->shape, 1);
  else if (status == TSR_OK)
    status = tensor_convert(dout, o->dtype, "dout", b->err);
  p->has_backward = 1;
  p->backward = p->forward;
  p->backward_args = p->forward_args;
  p->backward.op = TSR_BACKWARD;
  p->backward.variant = b->o->variant;
  p->backward.num_splits = (int32_t)b->o->splits.value;
  memset(&p->backward.max_s, 0, sizeof(tsr_layout));
  memset(&p->backward.dropout_mask, 0, sizeof(tsr_layout));
  memset(&p->backward_args.max_s, 0, sizeof(tsr_buffer));
  memset(&p->backward_args.dropout_mask, 0, sizeof(tsr_buffer));
  const int32_t extra[2] = {INPUT_dout, INPUT_dlse};
  for (int i = 0; i < 2 && status == TSR_OK; i++) {
    if (!present(p, extra[i]))
      continue;
    status = layout_of_tensor(&p->inputs[extra[i]], input_axes(extra[i]), p->bhsd, problem_input_name(extra[i]),
                              problem_input_layout(&p->backward, extra[i]), b->err);
    *problem_input_buffer(&p->backward_args, extra[i]) = tsr_buffer_in(p->inputs[extra[i]].data);
  }
  if (status == TSR_OK)
    status = make_gradient(b, OUTPUT_dq, INPUT_q, forced);
  if (status == TSR_OK)
    status = make_gradient(b, OUTPUT_dk, INPUT_k, forced);
  if (status == TSR_OK && present(p, INPUT_v))
    status = make_gradient(b, OUTPUT_dv, INPUT_v, forced);
  if (status == TSR_OK && present(p, INPUT_bias))
    status = make_gradient(b, OUTPUT_dbias, INPUT_bias, forced);
  if (status == TSR_OK && present(p, INPUT_sink))
    status = make_gradient(b, OUTPUT_dsink, INPUT_sink, TSR_F32);
  return status;
}

/* ---- All of it ------------------------------------------------------------------------------- */

static tsr_status need_main(builder *b) {
  tool_problem *p = b->p;
  const tool_options *o = b->o;
  const int have_q = present(p, INPUT_q), have_k = present(p, INPUT_k), have_v = present(p, INPUT_v) || o->v_in_k;
  if (!have_q && !have_k && !present(p, INPUT_v) && !o->input)
    return random_main(b);
  if (!have_q || !have_k || !have_v) {
    const char *name = !have_q ? "q" : !have_k ? "k" : "v";
    tool_error(b->err, TSR_INVALID, name, "%s is missing: q, k and v come from files, or all three are random", name);
    return b->err->status;
  }
  if (o->heads.given || o->kv_heads.given || o->head_dim || (o->v_head_dim.given && !o->v_in_k) || o->seqlen) {
    tool_error(b->err, TSR_INVALID, "",
               "the files give the sizes: --seqlen, --heads, --heads-kv, --head-dim and "
               "--head-dim-v are for random input");
    return b->err->status;
  }
  return TSR_OK;
}

tsr_status problem_build(tool_problem *problem, const tool_options *options, const problem_sizes *sizes, int32_t flags,
                         tsr_error *err) {
  builder b = {problem, options, {0, 0, 0, 0, 0, -1}, {0, 0}, flags, err};
  int32_t causal = -1;
  double scale = 0;
  memset(problem, 0, sizeof(*problem));
  problem->forward = tsr_attention_desc_init();
  problem->forward_args = tsr_run_args_init();
  problem->forward.memory = TSR_MEMORY_HOST;
  problem->bhsd = options->layout && strcmp(options->layout, "bhsd") == 0;
  problem->random_seed = options->random_seed.given
                             ? (uint64_t)options->random_seed.value
                             : ((uint64_t)time(NULL) << 20 ^ (uint64_t)getpid()) & UINT64_C(0xFFFFFFFFFFFF);
  const uint64_t seed = problem->random_seed;
  tsr_status status = take_sizes(&b, sizes);
  if (status == TSR_OK)
    status = inputs_load(problem, options, &b.types, &causal, &scale, err);
  if (status == TSR_OK)
    status = need_main(&b);
  if (status == TSR_OK)
    status = bind_inputs(&b);
  if (status == TSR_OK)
    status = set_flags(&b, causal, scale);
  if (status == TSR_OK)
    status = make_forward_outputs(&b);
  if (status == TSR_OK && options->backward)
    status = make_backward(&b);
  problem->random_seed = seed;
  if (status != TSR_OK)
    problem_free(problem);
  return status;
}

void problem_free(tool_problem *problem) {
  for (int32_t i = 0; i < INPUT_COUNT; i++)
    tensor_free(&problem->inputs[i]);
  for (int32_t i = 0; i < TSR_EXPR_MAX_AUX; i++)
    tensor_free(&problem->aux[i]);
  for (int32_t i = 0; i < OUTPUT_COUNT; i++)
    tensor_free(&problem->outputs[i]);
  tensor_free(&problem->expected);
  free(problem->scalar_text);
  free(problem->ignored);
  memset(problem, 0, sizeof(*problem));
}
