/* SPDX-License-Identifier: Apache-2.0 */
/* The IO model of "FlashAttention on a Napkin" (Abbott and Zardini 2024, arXiv 2412.03317): a fused kernel moves,
 * between main memory and the memory of a tile, each query tile once and the key tiles it visits once per query tile;
 * everything else stays on chip. */
#include "common/objects.h"

static double bytes_of(const tsr_layout *l) {
  return (double)l->shape[0] * (double)l->shape[1] * (double)l->shape[2] * (double)l->shape[3] *
         tsr_dtype_bits(l->dtype) / 8.0;
}

/* Bytes of one key of one kv head: K and V (unless it is part of K). Scales are counted once, with the small tensors.
 */
static double key_bytes(const tsr__problem *p) {
  const double k = p->head_dim * tsr_dtype_bits(p->desc.k.dtype) / 8.0;
  const double v = p->head_dim_v * tsr_dtype_bits(p->desc.v.dtype) / 8.0;
  return (p->desc.flags & TSR_V_IN_K) ? k : k + v;
}

static double row_bytes(const tsr__problem *p) {
  return p->head_dim * tsr_dtype_bits(p->desc.q.dtype) / 8.0;
}

void tsr__cost(const tsr__problem *p, const tsr__plan_build *build, tsr_plan_info *info) {
  const int backward = p->desc.op == TSR_BACKWARD;
  const double rows = (double)p->batch * p->heads_q * (double)p->seqlen_q;
  const double out_row = p->head_dim_v * 4.0 + 4.0;
  double pairs, small = 0, out = 0;
  tsr__tiles_count(p, build->tile_q, build->tile_k, &info->tiles_total, &info->tiles_visited);
  pairs = (double)info->tiles_visited * build->tile_q * build->tile_k;
  pairs = pairs < rows * (double)p->seqlen_k ? pairs : rows * (double)p->seqlen_k;
  info->flops = 2.0 * pairs * (backward ? 3.0 * p->head_dim + 2.0 * p->head_dim_v : p->head_dim + p->head_dim_v);
  for (int s = 0; s < TSR_SLOT_COUNT; s++) {
    if (tsr__problem_has(p, s)) {
      const double b = bytes_of(tsr__slot_layout(&p->desc, s));
      small += tsr__slots[s].reads[backward] && s != TSR_SLOT_k && s != TSR_SLOT_v ? b : 0.0;
      out += tsr__slots[s].writes[backward] ? b : 0.0;
    }
  }
  info->bytes_minimum =
      small + out + bytes_of(&p->desc.k) + ((p->desc.flags & TSR_V_IN_K) ? 0.0 : bytes_of(&p->desc.v));
  /* Forward: Q and the small tensors once, K and V per visited tile, shared by packed heads. Backward visits tiles
   * twice (dK/dV with keys outer read Q and dO per tile). */
  info->bytes_read = small + (double)info->tiles_visited * build->tile_k * key_bytes(p) / build->schedule.pack;
  info->bytes_written = out;
  if (backward) {
    info->bytes_read += (double)info->tiles_visited * build->tile_q * 2.0 * row_bytes(p);
  }
  if (build->schedule.num_splits > 1) { /* partial results go out and come back */
    info->bytes_written += build->schedule.num_splits * rows * out_row;
    info->bytes_read += build->schedule.num_splits * rows * out_row;
  }
}
