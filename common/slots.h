/* SPDX-License-Identifier: Apache-2.0 */
/* Every tensor of tsr_attention_desc / tsr_run_args once, in one list: field name (the same in both structs), and
 * whether it is written. Slots index presence masks and pointer lists; the aux tensors follow the list. */
#ifndef TSR_COMMON_SLOTS_H
#define TSR_COMMON_SLOTS_H

#include "tessera/attention.h"

/* X(name, written in forward, written in backward, read in forward, read in backward) */
#define TSR__SLOTS(X)             \
  X(q, 0, 0, 1, 1)                \
  X(k, 0, 0, 1, 1)                \
  X(v, 0, 0, 1, 1)                \
  X(o, 1, 0, 0, 1)                \
  X(lse, 1, 0, 0, 1)              \
  X(max_s, 1, 0, 0, 0)            \
  X(cu_seqlens_q, 0, 0, 1, 1)     \
  X(cu_seqlens_k, 0, 0, 1, 1)     \
  X(seqlens_q, 0, 0, 1, 1)        \
  X(seqlens_k, 0, 0, 1, 1)        \
  X(block_table, 0, 0, 1, 1)      \
  X(kv_indptr, 0, 0, 1, 1)        \
  X(kv_indices, 0, 0, 1, 1)       \
  X(last_page_len, 0, 0, 1, 1)    \
  X(prefix, 0, 0, 1, 1)           \
  X(mask, 0, 0, 1, 1)             \
  X(mask_offsets, 0, 0, 1, 1)     \
  X(mask_row_strides, 0, 0, 1, 1) \
  X(segments_q, 0, 0, 1, 1)       \
  X(segments_k, 0, 0, 1, 1)       \
  X(flashmask, 0, 0, 1, 1)        \
  X(block_indptr, 0, 0, 1, 1)     \
  X(block_indices, 0, 0, 1, 1)    \
  X(bias, 0, 0, 1, 1)             \
  X(alibi_slopes, 0, 0, 1, 1)     \
  X(sink, 0, 0, 1, 1)             \
  X(k_scale, 0, 0, 1, 1)          \
  X(k_zero, 0, 0, 1, 1)           \
  X(v_scale, 0, 0, 1, 1)          \
  X(v_zero, 0, 0, 1, 1)           \
  X(q_descale, 0, 0, 1, 1)        \
  X(rng_state, 0, 0, 1, 1)        \
  X(dropout_mask, 1, 0, 0, 0)     \
  X(dout, 0, 0, 0, 1)             \
  X(dlse, 0, 0, 0, 1)             \
  X(dq, 0, 1, 0, 0)               \
  X(dk, 0, 1, 0, 0)               \
  X(dv, 0, 1, 0, 0)               \
  X(dbias, 0, 1, 0, 0)            \
  X(dsink, 0, 1, 0, 0)

enum {
#define TSR__X(name, wf, wb, rf, rb) TSR_SLOT_##name,
  TSR__SLOTS(TSR__X)
#undef TSR__X
      TSR_SLOT_aux0,
  TSR_SLOT_COUNT = TSR_SLOT_aux0 + TSR_EXPR_MAX_AUX
};

typedef struct tsr__slot {
  const char *name;
  size_t desc_offset; /* of the tsr_layout in tsr_attention_desc */
  size_t args_offset; /* of the tsr_buffer in tsr_run_args */
  uint8_t writes[2];  /* by op */
  uint8_t reads[2];
} tsr__slot;

/* TSR_SLOT_COUNT entries. */
extern const tsr__slot tsr__slots[];

static inline const tsr_layout *tsr__slot_layout(const tsr_attention_desc *desc, int slot) {
  return (const tsr_layout *)(const void *)((const char *)desc + tsr__slots[slot].desc_offset);
}
static inline const tsr_buffer *tsr__slot_buffer(const tsr_run_args *args, int slot) {
  return (const tsr_buffer *)(const void *)((const char *)args + tsr__slots[slot].args_offset);
}

#endif
