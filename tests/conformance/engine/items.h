/* SPDX-License-Identifier: Apache-2.0 */
/* The words a case is described in: everything that a problem can have besides its sizes. One list; the covering array,
 * the random cases, the text of a case and the builder all read it. */
#ifndef TSR_TESTS_CONFORMANCE_ITEMS_H
#define TSR_TESTS_CONFORMANCE_ITEMS_H

#include <stdint.h>

/* Flags. */
enum {
  CONF_DEFAULT = 1,       /* what a case of that slot has when it names nothing else */
  CONF_FORWARD_ONLY = 2,  /* a problem with it has no backward */
  CONF_FORWARD_PART = 4,  /* an output or option of forward; no meaning in backward */
  CONF_BACKWARD_PART = 8, /* an input or output of backward; no meaning in forward */
  CONF_MASKS = 16,        /* hides pairs */
  CONF_SIZES = 32         /* only steers the choice of sizes */
};

/* X(name, slot, flags, needs, excludes). Items of one slot exclude each other. needs: groups separated by ';', of each
 * at least one of the names separated by '|'. excludes: names separated by '|'. */
#define CONF_ITEMS(X)                                                                                               \
  X(q_dense, "q", CONF_DEFAULT, "", "")                                                                             \
  X(q_packed, "q", 0, "", "")                                                                                       \
  X(kv_dense, "kv", CONF_DEFAULT, "", "")                                                                           \
  X(kv_packed, "kv", 0, "", "")                                                                                     \
  X(kv_table, "kv", CONF_FORWARD_ONLY, "seqlens_k", "")                                                             \
  X(kv_csr, "kv", CONF_FORWARD_ONLY, "", "")                                                                        \
  X(mha, "heads", CONF_DEFAULT | CONF_SIZES, "", "")                                                                \
  X(gqa, "heads", CONF_SIZES, "", "")                                                                               \
  X(mqa, "heads", CONF_SIZES, "", "")                                                                               \
  X(group_odd, "heads", CONF_SIZES, "", "")                                                                         \
  X(dv_equal, "dims", CONF_DEFAULT | CONF_SIZES, "", "")                                                            \
  X(dv_less, "dims", CONF_SIZES, "", "")                                                                            \
  X(dv_more, "dims", CONF_SIZES, "", "v_in_k")                                                                      \
  X(long_q, "", CONF_SIZES, "", "")                                                                                 \
  X(f32, "dtype", CONF_DEFAULT, "", "")                                                                             \
  X(f16, "dtype", 0, "", "")                                                                                        \
  X(bf16, "dtype", 0, "", "")                                                                                       \
  X(f8e4m3, "dtype", CONF_FORWARD_ONLY, "", "")                                                                     \
  X(f8e5m2, "dtype", CONF_FORWARD_ONLY, "", "")                                                                     \
  X(o_f32, "", 0, "f16|bf16|f8e4m3|f8e5m2", "")                                                                     \
  X(kv_i8, "quant", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full",                \
    "f8e4m3|f8e5m2|data_nan")                                                                                       \
  X(kv_u4, "quant", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full",                \
    "f8e4m3|f8e5m2|data_nan")                                                                                       \
  X(kv_f8e4m3, "quant", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full",            \
    "f8e4m3|f8e5m2")                                                                                                \
  X(kv_f8e5m2, "quant", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full",            \
    "f8e4m3|f8e5m2")                                                                                                \
  X(scale_tensor, "scale", CONF_FORWARD_ONLY, "kv_i8|kv_u4|kv_f8e4m3|kv_f8e5m2|f8e4m3|f8e5m2", "data_large")        \
  X(scale_head, "scale", CONF_FORWARD_ONLY, "kv_i8|kv_u4|kv_f8e4m3|kv_f8e5m2|f8e4m3|f8e5m2", "data_large")          \
  X(scale_token, "scale", CONF_FORWARD_ONLY, "kv_i8|kv_u4|kv_f8e4m3|kv_f8e5m2|f8e4m3|f8e5m2", "data_large")         \
  X(scale_group, "scale", CONF_FORWARD_ONLY, "kv_i8|kv_u4|kv_f8e4m3|kv_f8e5m2|f8e4m3|f8e5m2", "data_large")         \
  X(scale_full, "scale", CONF_FORWARD_ONLY, "kv_i8|kv_u4|kv_f8e4m3|kv_f8e5m2|f8e4m3|f8e5m2", "data_large")          \
  X(scale_f16, "scale_dtype", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full", "")  \
  X(scale_bf16, "scale_dtype", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full", "") \
  X(zeros, "", CONF_FORWARD_ONLY, "scale_tensor|scale_head|scale_token|scale_group|scale_full", "")                 \
  X(q_descale, "", CONF_FORWARD_ONLY, "f8e4m3|f8e5m2", "data_large")                                                \
  X(v_in_k, "", 0, "mqa", "layout_interleaved|data_big_v")                                                          \
  X(layout_bshd, "layout", CONF_DEFAULT, "", "")                                                                    \
  X(layout_bhsd, "layout", 0, "", "")                                                                               \
  X(layout_padded, "layout", 0, "", "")                                                                             \
  X(layout_aligned, "layout", 0, "", "")                                                                            \
  X(layout_interleaved, "layout", 0, "", "")                                                                        \
  X(layout_broadcast, "layout", 0, "", "kv_packed|kv_table|kv_csr")                                                 \
  X(seqlens_q, "", 0, "", "")                                                                                       \
  X(seqlens_k, "", 0, "", "")                                                                                       \
  X(lens_shared, "", 0, "seqlens_q|seqlens_k", "zero_q|zero_kv")                                                    \
  X(zero_q, "", 0, "seqlens_q|q_packed", "")                                                                        \
  X(zero_kv, "", 0, "seqlens_k|kv_packed|kv_csr", "")                                                               \
  X(index_i64, "", 0, "seqlens_k|seqlens_q|q_packed|kv_packed|prefix", "")                                          \
  X(smaller_run, "", 0, "", "")                                                                                     \
  X(causal, "", CONF_MASKS, "", "")                                                                                 \
  X(top_left, "", 0, "", "")                                                                                        \
  X(window, "window", CONF_MASKS, "", "")                                                                           \
  X(window_open, "window", CONF_MASKS, "", "")                                                                      \
  X(sink_tokens, "", 0, "window|window_open", "")                                                                   \
  X(chunk, "", CONF_MASKS, "", "")                                                                                  \
  X(prefix, "", 0, "causal", "")                                                                                    \
  X(mask_u8, "mask", CONF_MASKS, "", "")                                                                            \
  X(mask_bit, "mask", CONF_MASKS, "", "")                                                                           \
  X(mask_rows, "mask", CONF_MASKS, "q_packed|kv_packed", "mask_b1|mask_q1")                                         \
  X(mask_b1, "", 0, "mask_u8|mask_bit", "")                                                                         \
  X(mask_h1, "", 0, "mask_u8|mask_bit|mask_rows", "")                                                               \
  X(mask_q1, "", 0, "mask_u8|mask_bit", "")                                                                         \
  X(mask_k1, "", 0, "mask_u8", "")                                                                                  \
  X(empty_rows, "", CONF_MASKS, "mask_u8|mask_bit|mask_rows", "mask_q1")                                            \
  X(segments, "", CONF_MASKS, "", "")                                                                               \
  X(fm_c1, "flashmask", CONF_MASKS, "causal", "")                                                                   \
  X(fm_c2, "flashmask", CONF_MASKS, "causal", "")                                                                   \
  X(fm_n2, "flashmask", CONF_MASKS, "", "causal")                                                                   \
  X(fm_n4, "flashmask", CONF_MASKS, "", "causal")                                                                   \
  X(fm_hkv, "fm_heads", 0, "fm_c1|fm_c2|fm_n2|fm_n4", "")                                                           \
  X(fm_hq, "fm_heads", 0, "fm_c1|fm_c2|fm_n2|fm_n4", "")                                                            \
  X(blocks, "blocks", CONF_MASKS, "", "")                                                                           \
  X(blocks_shared, "blocks", CONF_MASKS, "", "")                                                                    \
  X(mexpr_int, "mexpr", CONF_MASKS, "", "")                                                                         \
  X(mexpr_scalar, "mexpr", CONF_MASKS, "", "")                                                                      \
  X(mexpr_aux, "mexpr", CONF_MASKS, "", "")                                                                         \
  X(mexpr_cond, "mexpr", CONF_MASKS, "", "")                                                                        \
  X(nan_masked, "", 0, "", "data_large|data_constant")                                                              \
  X(softcap, "", 0, "", "")                                                                                         \
  X(scale, "", 0, "", "data_large")                                                                                 \
  X(alibi, "alibi", 0, "", "data_large|data_constant")                                                              \
  X(alibi_b, "alibi", 0, "", "data_large|data_constant")                                                            \
  X(bias_f32, "bias", 0, "", "data_large|data_constant")                                                            \
  X(bias_f16, "bias", 0, "", "data_large|data_constant")                                                            \
  X(bias_bf16, "bias", 0, "", "data_large|data_constant")                                                           \
  X(bias_inf, "", CONF_MASKS, "bias_f32|bias_f16|bias_bf16", "")                                                    \
  X(bias_lowest, "", 0, "bias_f32|bias_f16|bias_bf16", "score_cond|score_aux|score_scalar|data_large|bias_q1")      \
  X(bias_b1, "", 0, "bias_f32|bias_f16|bias_bf16", "")                                                              \
  X(bias_h1, "", 0, "bias_f32|bias_f16|bias_bf16", "")                                                              \
  X(bias_q1, "", 0, "bias_f32|bias_f16|bias_bf16", "")                                                              \
  X(bias_k1, "", 0, "bias_f32|bias_f16|bias_bf16", "")                                                              \
  X(sink, "", 0, "", "")                                                                                            \
  X(sink_inf, "", 0, "sink", "")                                                                                    \
  X(score_simple, "score", 0, "", "data_large|data_constant")                                                       \
  X(score_scalar, "score", 0, "", "data_large|data_constant")                                                       \
  X(score_aux, "score", 0, "", "data_large|data_constant")                                                          \
  X(score_cond, "score", 0, "", "data_large|data_constant|data_nan")                                                \
  X(dropout, "", 0, "", "data_nan|data_big_v")                                                                      \
  X(rng_state, "", 0, "dropout", "")                                                                                \
  X(dropout_mask, "", CONF_FORWARD_PART, "dropout", "")                                                             \
  X(no_lse, "", CONF_FORWARD_PART, "", "")                                                                          \
  X(max_s, "", CONF_FORWARD_PART, "", "")                                                                           \
  X(splits, "", CONF_FORWARD_PART, "", "batch_invariant")                                                           \
  X(deterministic, "", 0, "", "")                                                                                   \
  X(batch_invariant, "", 0, "", "dropout")                                                                          \
  X(dlse, "", CONF_BACKWARD_PART, "", "")                                                                           \
  X(dbias, "", CONF_BACKWARD_PART, "bias_f32|bias_f16|bias_bf16", "bias_k1")                                        \
  X(dsink, "", CONF_BACKWARD_PART, "sink", "")                                                                      \
  X(grads_f32, "", CONF_BACKWARD_PART, "f16|bf16", "")                                                              \
  X(grads_some, "", CONF_BACKWARD_PART, "", "")                                                                     \
  X(data_normal, "data", CONF_DEFAULT, "", "")                                                                      \
  X(data_large, "data", 0, "", "")                                                                                  \
  X(data_constant, "data", 0, "", "")                                                                               \
  X(data_big_v, "data", 0, "", "")                                                                                  \
  X(data_nan, "data", 0, "", "")

enum {
#define CONF_ENUM(name, slot, flags, needs, excludes) CONF_##name,
  CONF_ITEMS(CONF_ENUM)
#undef CONF_ENUM
      CONF_ITEM_COUNT
};

/* A set of items. */
typedef struct conf_set {
  uint64_t w[2];
} conf_set;

static inline int conf_has(const conf_set *s, int item) {
  return (int)(s->w[item >> 6] >> (item & 63) & 1);
}
static inline void conf_add(conf_set *s, int item) {
  s->w[item >> 6] |= UINT64_C(1) << (item & 63);
}
static inline void conf_remove(conf_set *s, int item) {
  s->w[item >> 6] &= ~(UINT64_C(1) << (item & 63));
}
static inline int conf_meet(const conf_set *a, const conf_set *b) {
  return ((a->w[0] & b->w[0]) | (a->w[1] & b->w[1])) != 0;
}
static inline int conf_count(const conf_set *s) {
  return __builtin_popcountll(s->w[0]) + __builtin_popcountll(s->w[1]);
}

typedef struct conf_item {
  const char *name, *slot;
  uint32_t flags;
  const char *needs, *excludes;
} conf_item;

extern const conf_item conf_items[]; /* CONF_ITEM_COUNT */

/* The rules above, as sets. */
enum { CONF_MAX_NEEDS = 2 };
typedef struct conf_rules {
  conf_set excludes[CONF_ITEM_COUNT];              /* both ways, slots included */
  conf_set needs[CONF_ITEM_COUNT][CONF_MAX_NEEDS]; /* empty: no such group */
} conf_rules;

void conf_rules_init(conf_rules *rules);
/* Index of a name, -1: none. */
int conf_item_find(const char *name, int length);
/* True if no two items exclude each other. */
int conf_set_consistent(const conf_rules *rules, const conf_set *set);
/* Adds what is needed, choosing from `universe` with `pick` (alternative number pick % alternatives that fit), until
 * every need is met. Returns 0 if that cannot be done; *set is then undefined. */
int conf_set_close(const conf_rules *rules, const conf_set *universe, uint64_t pick, conf_set *set);
/* Adds the defaults of the slots that the set leaves open. */
void conf_set_complete(conf_set *set);
/* Items that have all `want` flags and none of `avoid`. */
conf_set conf_set_of_flags(uint32_t want, uint32_t avoid);

#endif
