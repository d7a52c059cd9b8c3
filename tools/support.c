/* SPDX-License-Identifier: Apache-2.0 */
#include "support.h"

enum { B = 2, HQ = 4, HKV = 2, SQ = 64, SK = 96, D = 64, PAGES = 16, PAGE = 16 };

static tsr_layout vector(tsr_dtype dtype, int64_t n) {
  return tsr_layout_dense(dtype, n, 1, 1, 1);
}

static void set_types(tsr_attention_desc *d, tsr_dtype q, tsr_dtype kv, tsr_dtype o) {
  d->q = tsr_layout_dense(q, B, SQ, HQ, D);
  d->k = d->v = tsr_layout_dense(kv, B, SK, HKV, D);
  d->o = tsr_layout_dense(o, B, SQ, HQ, D);
}

static void set_head_dims(tsr_attention_desc *d, int64_t dim, int64_t dim_v) {
  d->q = tsr_layout_dense(TSR_F32, B, SQ, HQ, dim);
  d->k = tsr_layout_dense(TSR_F32, B, SK, HKV, dim);
  d->v = tsr_layout_dense(TSR_F32, B, SK, HKV, dim_v);
  d->o = tsr_layout_dense(TSR_F32, B, SQ, HQ, dim_v);
}

static void set_quantised(tsr_attention_desc *d, tsr_dtype kv) {
  set_types(d, TSR_BF16, kv, TSR_BF16);
  d->k_scale = d->v_scale = tsr_layout_dense(TSR_F32, B, SK, HKV, 1);
}

static void f32(tsr_attention_desc *d) { set_types(d, TSR_F32, TSR_F32, TSR_F32); }
static void f16(tsr_attention_desc *d) { set_types(d, TSR_F16, TSR_F16, TSR_F16); }
static void bf16(tsr_attention_desc *d) { set_types(d, TSR_BF16, TSR_BF16, TSR_BF16); }
static void f8e4m3(tsr_attention_desc *d) { set_types(d, TSR_F8E4M3, TSR_F8E4M3, TSR_BF16); }
static void f8e5m2(tsr_attention_desc *d) { set_types(d, TSR_F8E5M2, TSR_F8E5M2, TSR_BF16); }
static void kv_f8(tsr_attention_desc *d) { set_quantised(d, TSR_F8E4M3); }
static void kv_i8(tsr_attention_desc *d) { set_quantised(d, TSR_I8); }
static void kv_u4(tsr_attention_desc *d) { set_quantised(d, TSR_U4); }
static void kv_groups(tsr_attention_desc *d) {
  set_quantised(d, TSR_U4);
  d->k_scale = d->v_scale = d->k_zero = d->v_zero = tsr_layout_dense(TSR_F16, B, SK, HKV, 2);
}
static void odd_dims(tsr_attention_desc *d) { set_head_dims(d, 72, 40); }
static void large_dims(tsr_attention_desc *d) { set_head_dims(d, TSR_MAX_HEAD_DIM, 512); }
static void mla(tsr_attention_desc *d) {
  d->q = tsr_layout_dense(TSR_BF16, B, SQ, HQ, 576);
  d->k = d->v = tsr_layout_dense(TSR_BF16, B, SK, 1, 576);
  d->v.shape[3] = 512;
  d->o = tsr_layout_dense(TSR_BF16, B, SQ, HQ, 512);
  d->flags = TSR_V_IN_K;
}
static void bhsd(tsr_attention_desc *d) {
  d->q = d->o = tsr_layout_bhsd(TSR_F32, B, HQ, SQ, D);
  d->k = d->v = tsr_layout_bhsd(TSR_F32, B, HKV, SK, D);
}
static void packed(tsr_attention_desc *d) {
  d->q = d->o = tsr_layout_dense(TSR_F32, 1, 2 * SQ, HQ, D);
  d->k = d->v = tsr_layout_dense(TSR_F32, 1, 2 * SK, HKV, D);
  d->cu_seqlens_q = d->cu_seqlens_k = vector(TSR_I32, B + 1);
  d->batch = B;
  d->max_seqlen_q = SQ;
  d->max_seqlen_k = SK;
}
static void lengths(tsr_attention_desc *d) { d->seqlens_q = d->seqlens_k = vector(TSR_I64, B); }
static void paged(tsr_attention_desc *d) {
  d->k = d->v = tsr_layout_dense(TSR_F32, PAGES, PAGE, HKV, D);
  d->block_table = tsr_layout_dense(TSR_I32, B, SK / PAGE, 1, 1);
  d->seqlens_k = vector(TSR_I32, B);
}
static void paged_csr(tsr_attention_desc *d) {
  d->k = d->v = tsr_layout_dense(TSR_F32, PAGES, PAGE, HKV, D);
  d->kv_indptr = vector(TSR_I32, B + 1);
  d->kv_indices = vector(TSR_I32, PAGES);
  d->last_page_len = vector(TSR_I32, B);
  d->max_seqlen_k = SK;
}
static void causal(tsr_attention_desc *d) { d->flags = TSR_CAUSAL; }
static void top_left(tsr_attention_desc *d) { d->flags = TSR_CAUSAL | TSR_TOP_LEFT; }
static void window(tsr_attention_desc *d) {
  d->flags = TSR_WINDOW;
  d->window_left = 16;
}
static void sink_tokens(tsr_attention_desc *d) {
  window(d);
  d->sink_tokens = 4;
}
static void chunk(tsr_attention_desc *d) {
  d->flags = TSR_CHUNK;
  d->chunk = 32;
}
static void prefix(tsr_attention_desc *d) {
  d->flags = TSR_CAUSAL;
  d->prefix = vector(TSR_I32, B);
}
static void bool_mask(tsr_attention_desc *d) { d->mask = tsr_layout_dense(TSR_U8, B, 1, SQ, SK); }
static void bit_mask(tsr_attention_desc *d) {
  d->mask = tsr_layout_dense(TSR_U8, B, 1, SQ, SK / 8);
  d->mask.dtype = TSR_BIT;
  d->mask.shape[3] = SK;
}
static void segments(tsr_attention_desc *d) {
  d->segments_q = tsr_layout_dense(TSR_I32, B, SQ, 1, 1);
  d->segments_k = tsr_layout_dense(TSR_I32, B, SK, 1, 1);
}
static void flashmask(tsr_attention_desc *d) {
  d->flags = TSR_CAUSAL;
  d->flashmask = tsr_layout_dense(TSR_I32, B, 1, SK, 2);
}
static void blocks(tsr_attention_desc *d) {
  d->block_rows = d->block_cols = 32;
  d->block_indptr = tsr_layout_dense(TSR_I32, 1, 1, SQ / 32 + 1, 1);
  d->block_indices = tsr_layout_dense(TSR_I32, 1, 1, 6, 1);
}
static void mask_expr(tsr_attention_desc *d) { d->mask_expr = "j <= i || j % 16 == 0"; }
static void bias(tsr_attention_desc *d) { d->bias = tsr_layout_dense(TSR_F32, 1, HQ, SQ, SK); }
static void alibi(tsr_attention_desc *d) { d->alibi_slopes = tsr_layout_dense(TSR_F32, 1, HQ, 1, 1); }
static void softcap(tsr_attention_desc *d) { d->flags = TSR_SOFTCAP; }
static void score_expr(tsr_attention_desc *d) { d->score_expr = "score - 0.1 * abs(i - j)"; }
static void sink(tsr_attention_desc *d) { d->sink = vector(TSR_F32, HQ); }
static void dropout(tsr_attention_desc *d) { d->flags = TSR_DROPOUT; }
static void dropout_mask(tsr_attention_desc *d) {
  d->flags = TSR_DROPOUT;
  d->dropout_mask = tsr_layout_dense(TSR_U8, B, HQ, SQ, SK);
}
static void max_s(tsr_attention_desc *d) { d->max_s = vector(TSR_F32, HQ); }
static void splits(tsr_attention_desc *d) { d->num_splits = 4; }
static void deterministic(tsr_attention_desc *d) { d->flags = TSR_DETERMINISTIC; }
static void invariant(tsr_attention_desc *d) { d->flags = TSR_BATCH_INVARIANT; }

static const struct {
  const char *name;
  void (*apply)(tsr_attention_desc *desc);
  int32_t forward_only; /* an output or a choice that backward has not */
} features[] = {{"f32", f32, 0},
                {"f16", f16, 0},
                {"bf16", bf16, 0},
                {"fp8 e4m3", f8e4m3, 0},
                {"fp8 e5m2", f8e5m2, 0},
                {"fp8 K/V with scales", kv_f8, 0},
                {"int8 K/V with scales", kv_i8, 0},
                {"int4 K/V with scales", kv_u4, 0},
                {"int4 K/V, groups and zero points", kv_groups, 0},
                {"head dimensions 72 and 40", odd_dims, 0},
                {"head dimensions 576 and 512", large_dims, 0},
                {"MLA: V inside K", mla, 0},
                {"strided layouts (BHSD)", bhsd, 0},
                {"packed sequences", packed, 0},
                {"sequence lengths", lengths, 0},
                {"paged K/V, block table", paged, 0},
                {"paged K/V, CSR", paged_csr, 0},
                {"causal, bottom-right", causal, 0},
                {"causal, top-left", top_left, 0},
                {"sliding window", window, 0},
                {"window with sink tokens", sink_tokens, 0},
                {"chunks", chunk, 0},
                {"prefix", prefix, 0},
                {"boolean mask", bool_mask, 0},
                {"bit mask", bit_mask, 0},
                {"segments", segments, 0},
                {"FlashMask", flashmask, 0},
                {"block-sparse", blocks, 0},
                {"mask expression", mask_expr, 0},
                {"bias", bias, 0},
                {"ALiBi", alibi, 0},
                {"soft cap", softcap, 0},
                {"score expression", score_expr, 0},
                {"sink logits", sink, 0},
                {"dropout", dropout, 0},
                {"dropout mask out", dropout_mask, 1},
                {"largest score out", max_s, 1},
                {"split KV", splits, 1},
                {"deterministic", deterministic, 0},
                {"batch-invariant", invariant, 0}};
enum { NUM_FEATURES = sizeof(features) / sizeof(features[0]) };

const char *support_feature_name(int32_t index) {
  return index >= 0 && index < NUM_FEATURES ? features[index].name : NULL;
}

static void add_gradients(tsr_attention_desc *d) {
  d->op = TSR_BACKWARD;
  d->lse = tsr_layout_dense(TSR_F32, d->q.shape[0], HQ, d->q.shape[1], 1);
  d->dout = d->o;
  d->dq = tsr_layout_dense(TSR_F32, d->q.shape[0], d->q.shape[1], d->q.shape[2], d->q.shape[3]);
  if (d->bias.dtype != TSR_DTYPE_NONE)
    d->dbias = d->bias;
  if (d->sink.dtype != TSR_DTYPE_NONE)
    d->dsink = d->sink;
}

int support_feature_desc(int32_t index, int32_t op, tsr_attention_desc *desc) {
  *desc = tsr_attention_desc_init();
  f32(desc);
  features[index].apply(desc);
  if (op == TSR_FORWARD)
    return 1;
  if (features[index].forward_only)
    return 0;
  add_gradients(desc);
  return 1;
}
