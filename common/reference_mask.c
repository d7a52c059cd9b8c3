/* SPDX-License-Identifier: Apache-2.0 */
/* Which pairs the oracle allows, and which of them dropout loses. */
#include <math.h>

#include "common/reference.h"

/* ---- Masks ----------------------------------------------------------------------------------- */

static int64_t floor_div(int64_t a, int64_t b) { /* b > 0 */
  return a >= 0 ? a / b : -((-a + b - 1) / b);
}

static int position_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t i, int64_t j) {
  const tsr_attention_desc *d = r->desc;
  const int64_t ahead = j - (i + seq->off); /* of the row's own key */
  if ((d->flags & TSR_CAUSAL) != 0 && ahead > 0 && j >= seq->prefix) {
    return 0;
  }
  if ((d->flags & TSR_WINDOW) != 0 && j >= d->sink_tokens) {
    if ((d->window_left >= 0 && -ahead > d->window_left) || (d->window_right >= 0 && ahead > d->window_right)) {
      return 0;
    }
  }
  if ((d->flags & TSR_CHUNK) != 0 && floor_div(i + seq->off, d->chunk) != floor_div(j, d->chunk)) {
    return 0;
  }
  return 1;
}

static int mask_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, int64_t j) {
  const tsr__ref_view *m = &r->mask;
  int64_t byte;
  if (m->data == NULL) {
    return 1;
  }
  if (m->dtype == TSR_U8) {
    return tsr__ref_int(m, seq->b, h, i, j) != 0;
  }
  byte = h * m->stride[1];
  if (r->mask_offsets.data != NULL) {
    byte += tsr__ref_int(&r->mask_offsets, seq->b, 0, 0, 0);
    byte += i * tsr__ref_int(&r->mask_row_strides, seq->b, 0, 0, 0);
  } else {
    byte += seq->b * m->stride[0] + i * m->stride[2];
  }
  if (m->shape[3] == 1) {
    j = 0;
  }
  return m->data[byte + (j >> 3)] >> (j & 7) & 1;
}

static int segments_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t i, int64_t j) {
  int64_t q_id, k_id;
  if (r->segments_q.data == NULL) {
    return 1;
  }
  q_id = tsr__ref_int(&r->segments_q, seq->q_slot, seq->q_first + i, 0, 0);
  k_id = tsr__ref_int(&r->segments_k, seq->k_slot, seq->k_first + j, 0, 0);
  return q_id >= 0 && q_id == k_id;
}

static int flashmask_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, int64_t j) {
  const tsr__ref_view *f = &r->flashmask;
  const int causal = (r->desc->flags & TSR_CAUSAL) != 0;
  int64_t c[4] = {0, 0, 0, 0}, head;
  if (f->data == NULL) {
    return 1;
  }
  head = f->shape[1] == r->q_heads ? h : f->shape[1] == 1 ? 0 : h / r->group;
  for (int n = 0; n < (int)f->shape[3]; n++) {
    c[n] = tsr__ref_int(f, seq->b, head, j, n);
  }
  if (f->shape[3] == 1) {
    return i < c[0];
  }
  if (f->shape[3] == 2) {
    return causal ? !(c[0] <= i && i < c[1]) : !(i >= c[0] || i < c[1]);
  }
  return !(c[0] <= i && i < c[1]) && !(c[2] <= i && i < c[3]);
}

static int blocks_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, int64_t j) {
  int64_t lo, hi;
  const int64_t row = r->block_indptr.data == NULL ? 0 : i / r->desc->block_rows;
  if (r->block_indptr.data == NULL) {
    return 1;
  }
  lo = tsr__ref_int(&r->block_indptr, seq->b, h, row, 0);
  hi = tsr__ref_int(&r->block_indptr, seq->b, h, row + 1, 0);
  while (lo < hi) { /* ascending and unique */
    const int64_t mid = lo + (hi - lo) / 2;
    const int64_t col = tsr__ref_int(&r->block_indices, seq->b, h, mid, 0);
    if (col == j / r->desc->block_cols) {
      return 1;
    }
    if (col < j / r->desc->block_cols) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return 0;
}

int tsr__ref_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, int64_t j) {
  if (j >= seq->kv_len || !position_allowed(r, seq, i, j) || !mask_allowed(r, seq, h, i, j) ||
      !segments_allowed(r, seq, i, j) || !flashmask_allowed(r, seq, h, i, j) || !blocks_allowed(r, seq, h, i, j)) {
    return 0;
  }
  if (r->bias.data != NULL && tsr__ref_at(&r->bias, seq->b, h, i, j) == -(double)INFINITY) {
    return 0;
  }
  if (r->mask_expr != NULL) {
    const tsr__ref_pair pair = {seq->b, h, h / r->group, i, j, seq->q_len, seq->kv_len, seq->off};
    return tsr__ref_expr_mask(r->mask_expr, &pair);
  }
  return 1;
}

/* ---- Dropout --------------------------------------------------------------------------------- */

void tsr__ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)UINT32_C(0xD2511F53) * c0, b = (uint64_t)UINT32_C(0xCD9E8D57) * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)a;
    k0 += UINT32_C(0x9E3779B9);
    k1 += UINT32_C(0xBB67AE85);
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

void tsr__ref_dropout_init(tsr__ref *r) {
  const double p = (double)r->args->dropout_p;
  uint64_t seed = r->args->seed, offset = r->args->offset;
  uint32_t counter[4] = {0, 0, 0, 0}, key[2], words[4];
  if ((r->desc->flags & TSR_DROPOUT) == 0) {
    return;
  }
  if (r->rng_state.data != NULL) {
    seed = (uint64_t)tsr__ref_int(&r->rng_state, 0, 0, 0, 0);
    offset = (uint64_t)tsr__ref_int(&r->rng_state, 1, 0, 0, 0);
  }
  counter[0] = (uint32_t)offset;
  counter[1] = (uint32_t)(offset >> 32);
  key[0] = (uint32_t)seed;
  key[1] = (uint32_t)(seed >> 32);
  tsr__ref_philox(counter, key, words);
  r->subkey[0] = words[0];
  r->subkey[1] = words[1];
  r->drop_below = (uint64_t)floor(p * 4294967296.0);
  r->keep_scale = p < 1.0 ? tsr__ref_to_f32(1.0 / (1.0 - p)) : 0.0; /* p = 1 keeps nothing */
}

void tsr__ref_dropout_row(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, uint8_t *keep) {
  const uint64_t stream = (uint64_t)seq->b * (uint64_t)r->q_heads + (uint64_t)h;
  uint32_t counter[4] = {0, (uint32_t)i, (uint32_t)stream, (uint32_t)(stream >> 32)}, words[4] = {0, 0, 0, 0};
  for (int64_t j = 0; j < seq->kv_len; j++) {
    if (r->drop_below == 0) {
      keep[j] = 1;
      continue;
    }
    if ((j & 3) == 0) {
      counter[0] = (uint32_t)(j >> 2);
      tsr__ref_philox(counter, r->subkey, words);
    }
    keep[j] = (uint64_t)words[j & 3] >= r->drop_below;
  }
}
