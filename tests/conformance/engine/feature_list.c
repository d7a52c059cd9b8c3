/* SPDX-License-Identifier: Apache-2.0 */
#include "feature_list.h"

#include <stddef.h>

const conf_feature conf_features[] = {
    {"dense `[B,S,H,D]`, any strides", "layout_bshd|layout_bhsd|layout_padded|layout_interleaved|layout_broadcast",
     "layout_bshd|layout_bhsd|layout_padded|layout_interleaved|layout_broadcast"},
    {"packed sequences (`cu_seqlens`), on both sides or one", "q_packed kv_packed|q_packed|kv_packed",
     "q_packed kv_packed|q_packed|kv_packed"},
    {"used lengths (`seqlens`), empty sequences", "seqlens_q seqlens_k|seqlens_k zero_kv|seqlens_q zero_q",
     "seqlens_q seqlens_k|seqlens_k zero_kv|seqlens_q zero_q"},
    {"paged K/V: block table", "kv_table seqlens_k", "kv_table seqlens_k"},
    {"paged K/V: CSR", "kv_csr", "kv_csr"},
    {"f32", "f32", "f32"},
    {"f16, bf16", "f16|bf16", "f16|bf16"},
    {"fp8 Q, K and V (e4m3, e5m2)", "f8e4m3|f8e5m2|f8e4m3 scale_head q_descale", "f8e4m3"},
    {"int8 K/V, scales of a tensor, head, token or group of channels",
     "kv_i8 scale_tensor|kv_i8 scale_head|kv_i8 scale_token|kv_i8 scale_group|kv_i8 scale_full zeros",
     "kv_i8 scale_head"},
    {"int4 K/V, the same scales",
     "kv_u4 scale_tensor|kv_u4 scale_head|kv_u4 scale_token|kv_u4 scale_group|kv_u4 scale_full zeros",
     "kv_u4 scale_head"},
    {"fp8 K/V under f32, f16 or bf16 Q", "kv_f8e4m3 scale_head|kv_f8e5m2 scale_token f16|kv_f8e4m3 scale_group bf16",
     "kv_f8e4m3 scale_head"},
    {"grouped queries, any group", "hq=10 hkv=2|hq=7 hkv=1|b=1 hq=71 hkv=1 sq=12 sk=70 d=64 dv=64",
     "hq=10 hkv=2|hq=7 hkv=1|b=1 hq=71 hkv=1 sq=12 sk=70 d=64 dv=64"},
    {"head dimensions 1 to 576, D != Dv", "d=1 dv=1|d=576 dv=512|d=192 dv=128|d=21 dv=203",
     "d=1 dv=1|d=576 dv=512|d=192 dv=128|d=21 dv=203"},
    {"V inside K (MLA)", "v_in_k hkv=1 d=576 dv=512 bf16|v_in_k hkv=1 kv_table seqlens_k d=576 dv=512 bf16",
     "v_in_k hkv=1 d=24 dv=16"},
    {"causal, bottom-right or top-left", "causal|causal top_left", "causal|causal top_left"},
    {"sliding window, sink tokens", "window|window_open|window sink_tokens", "window|window_open|window sink_tokens"},
    {"chunks; prefix of a causal mask", "chunk|causal prefix", "chunk|causal prefix"},
    {"boolean and bit masks", "mask_u8|mask_bit|mask_rows q_packed", "mask_u8|mask_bit|mask_rows q_packed"},
    {"segment ids", "segments", "segments"},
    {"FlashMask", "fm_c1 causal|fm_c2 causal|fm_n2|fm_n4", "fm_c1 causal|fm_c2 causal|fm_n2|fm_n4"},
    {"block-sparse", "blocks|blocks_shared", "blocks|blocks_shared"},
    {"mask expressions", "mexpr_int|mexpr_scalar|mexpr_aux|mexpr_cond", "mexpr_int|mexpr_scalar|mexpr_aux|mexpr_cond"},
    {"soft cap", "softcap", "softcap"},
    {"ALiBi", "alibi|alibi_b", "alibi|alibi_b"},
    {"bias (f32, f16, bf16, broadcast)", "bias_f32|bias_f16|bias_bf16|bias_f32 bias_b1 bias_q1",
     "bias_f32|bias_f16|bias_bf16|bias_f32 bias_b1 bias_q1"},
    {"attention sinks", "sink", "sink"},
    {"score expressions", "score_simple|score_scalar|score_aux|score_cond",
     "score_simple|score_scalar|score_aux|score_cond"},
    {"dropout", "dropout|dropout rng_state|dropout dropout_mask", "dropout|dropout rng_state"},
    {"LSE, largest score", "max_s|no_lse", NULL},
    {"split KV, 1 to 256 splits", "splits=1|splits=5|splits=256", NULL},
    {"deterministic", "deterministic", "deterministic"},
    {"batch-invariant", "batch_invariant", "batch_invariant"},
    {"gradients of Q, K, V in f32", NULL, "grads_f32 f16|grads_f32 bf16"},
    {"gradients of bias and sink, gradient into LSE", NULL, "dbias bias_f32|dsink sink|dlse"},
};
const int conf_num_features = sizeof(conf_features) / sizeof(conf_features[0]);

const conf_cache_feature conf_cache_features[] = {
    {"append to a dense cache", CONF_CACHE_APPEND},
    {"append to pages", CONF_CACHE_APPEND_PAGED},
    {"append with rotary embedding", CONF_CACHE_APPEND_ROTARY},
    {"append that quantises (int8, int4, fp8)", CONF_CACHE_APPEND_QUANTISED},
    {"merge of partial results", CONF_CACHE_MERGE},
};
const int conf_num_cache_features = sizeof(conf_cache_features) / sizeof(conf_cache_features[0]);
