/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's view of memory: elements, lengths, where a key lies, dequantisation. */
#include <math.h>
#include <string.h>

#include "common/dtype.h"
#include "common/reference.h"

tsr__ref_view tsr__ref_view_of(const tsr_layout *layout, tsr_buffer buffer) {
  tsr__ref_view v;
  memset(&v, 0, sizeof(v));
  if (layout->dtype == TSR_DTYPE_NONE || buffer.ptr == NULL) {
    return v;
  }
  v.data = (unsigned char *)buffer.ptr + buffer.offset_bytes;
  v.dtype = layout->dtype;
  for (int a = 0; a < 4; a++) {
    v.shape[a] = layout->shape[a];
    v.stride[a] = layout->shape[a] == 1 ? 0 : layout->stride[a];
  }
  return v;
}

int64_t tsr__ref_index(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  return i0 * v->stride[0] + i1 * v->stride[1] + i2 * v->stride[2] + i3 * v->stride[3];
}

static double bf16_value(const unsigned char *p) {
  uint16_t bits;
  uint32_t wide;
  float f;
  memcpy(&bits, p, sizeof(bits));
  wide = (uint32_t)bits << 16;
  memcpy(&f, &wide, sizeof(f));
  return (double)f;
}

static double f16_value(const unsigned char *p) {
  uint16_t bits;
  uint64_t wide;
  double x;
  memcpy(&bits, p, sizeof(bits));
  const uint64_t sign = (uint64_t)(bits >> 15) << 63, exp = bits >> 10 & 31, man = bits & 1023;
  if (exp == 0) {
    x = (double)man * 0x1p-24;
    return sign != 0 ? -x : x;
  }
  wide = sign | (exp == 31 ? UINT64_C(2047) : exp - 15 + 1023) << 52 | man << 42;
  memcpy(&x, &wide, sizeof(x));
  return x;
}

static double f32_value(const unsigned char *p) {
  float f;
  memcpy(&f, p, sizeof(f));
  return (double)f;
}

double tsr__ref_at(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const int64_t index = tsr__ref_index(v, i0, i1, i2, i3);
  switch (v->dtype) {
  case TSR_F32: return f32_value(v->data + index * 4);
  case TSR_F16: return f16_value(v->data + index * 2);
  case TSR_BF16: return bf16_value(v->data + index * 2);
  default: return tsr_decode(v->dtype, v->data, index);
  }
}

int64_t tsr__ref_int(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const int64_t index = tsr__ref_index(v, i0, i1, i2, i3);
  if (v->dtype == TSR_I64) {
    int64_t x;
    memcpy(&x, v->data + index * 8, sizeof(x));
    return x;
  }
  if (v->dtype == TSR_I32) {
    int32_t x;
    memcpy(&x, v->data + index * 4, sizeof(x));
    return x;
  }
  return v->data[index]; /* u8 */
}

/* n elements from a linear index on; byte_value may be NULL. */
static void decode_run(const tsr__ref_view *v, int64_t index, int64_t n, const double *byte_value, double *row) {
  const int64_t step = v->stride[3];
  const unsigned char *p = v->data;
  switch (v->dtype) {
  case TSR_F32:
    for (int64_t c = 0; c < n; c++) {
      row[c] = f32_value(p + (index + c * step) * 4);
    }
    break;
  case TSR_F16:
    for (int64_t c = 0; c < n; c++) {
      row[c] = f16_value(p + (index + c * step) * 2);
    }
    break;
  case TSR_BF16:
    for (int64_t c = 0; c < n; c++) {
      row[c] = bf16_value(p + (index + c * step) * 2);
    }
    break;
  default:
    for (int64_t c = 0; c < n; c++) {
      row[c] = byte_value != NULL && v->dtype != TSR_U4 ? byte_value[p[index + c * step]]
                                                        : tsr_decode(v->dtype, p, index + c * step);
    }
    break;
  }
}

void tsr__ref_row(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t channels, double *row) {
  decode_run(v, tsr__ref_index(v, i0, i1, i2, 0), channels, NULL, row);
}

/* ---- Lengths and places ---------------------------------------------------------------------- */

/* Used length, and the slot, of a side that is not paged. */
static int64_t side_length(const tsr__ref_view *cu, const tsr__ref_view *seqlens, int64_t dense_length, int64_t b,
                           int64_t *slot, int64_t *first) {
  int64_t length = dense_length;
  *slot = b;
  *first = 0;
  if (cu->data != NULL) {
    *slot = 0;
    *first = tsr__ref_int(cu, b, 0, 0, 0);
    length = tsr__ref_int(cu, b + 1, 0, 0, 0) - *first;
  }
  return seqlens->data != NULL ? tsr__ref_int(seqlens, b, 0, 0, 0) : length;
}

void tsr__ref_seq_init(const tsr__ref *r, int64_t b, tsr__ref_seq *seq) {
  seq->b = b;
  seq->q_len = side_length(&r->cu_q, &r->seqlens_q, r->desc->q.shape[1], b, &seq->q_slot, &seq->q_first);
  seq->kv_len = side_length(&r->cu_k, &r->seqlens_k, r->desc->k.shape[1], b, &seq->k_slot, &seq->k_first);
  if (r->kv_indptr.data != NULL && r->seqlens_k.data == NULL) {
    const int64_t pages = tsr__ref_int(&r->kv_indptr, b + 1, 0, 0, 0) - tsr__ref_int(&r->kv_indptr, b, 0, 0, 0);
    seq->kv_len = pages == 0 ? 0 : (pages - 1) * r->desc->k.shape[1] + tsr__ref_int(&r->last_page_len, b, 0, 0, 0);
  }
  seq->off = (r->desc->flags & TSR_TOP_LEFT) != 0 ? 0 : seq->kv_len - seq->q_len;
  seq->prefix = r->prefix.data != NULL ? tsr__ref_int(&r->prefix, b, 0, 0, 0) : 0;
}

void tsr__ref_locate(const tsr__ref *r, const tsr__ref_seq *seq, int64_t j, int64_t *i0, int64_t *i1) {
  const int64_t page_size = r->desc->k.shape[1];
  if (r->block_table.data != NULL) {
    *i0 = tsr__ref_int(&r->block_table, seq->b, j / page_size, 0, 0);
    *i1 = j % page_size;
  } else if (r->kv_indptr.data != NULL) {
    const int64_t first = tsr__ref_int(&r->kv_indptr, seq->b, 0, 0, 0);
    *i0 = tsr__ref_int(&r->kv_indices, first + j / page_size, 0, 0, 0);
    *i1 = j % page_size;
  } else {
    *i0 = seq->k_slot;
    *i1 = seq->k_first + j;
  }
}

/* ---- K and V --------------------------------------------------------------------------------- */

void tsr__ref_kv_init(tsr__ref_kv *x) {
  if (tsr_dtype_bits(x->codes.dtype) == 8) {
    for (int code = 0; code < 256; code++) {
      x->byte_value[code] = tsr__dtype_decode_bits(x->codes.dtype, (uint64_t)code);
    }
  }
}

/* x = scale * (code - zero) */
static void dequantise(const tsr__ref *r, const tsr__ref_kv *x, int64_t channels, int64_t i0, int64_t i1,
                       int64_t kv_head, double *row) {
  const double default_zero = x->codes.dtype == TSR_U4 ? 8.0 : 0.0;
  for (int64_t c = 0; c < channels; c++) {
    double scale = 1.0, zero = default_zero;
    if (x->scale.data != NULL) {
      scale = tsr__ref_at(&x->scale, i0, i1, kv_head, c / (x->channels / x->scale.shape[3]));
    }
    if (x->zero.data != NULL) {
      zero = tsr__ref_at(&x->zero, i0, i1, kv_head, c / (x->channels / x->zero.shape[3]));
    }
    row[c] = tsr__ref_f32(r, scale * tsr__ref_f32(r, row[c] - zero));
  }
}

void tsr__ref_kv_row(const tsr__ref *r, const tsr__ref_kv *x, int64_t channels, const tsr__ref_seq *seq,
                     int64_t kv_head, int64_t j, double *row) {
  int64_t i0, i1;
  tsr__ref_locate(r, seq, j, &i0, &i1);
  decode_run(&x->codes, tsr__ref_index(&x->codes, i0, i1, kv_head, 0), channels, x->byte_value, row);
  if (x->scale.data != NULL || x->zero.data != NULL || x->codes.dtype == TSR_U4) {
    dequantise(r, x, channels, i0, i1, kv_head, row);
  }
}

double tsr__ref_round(const tsr__ref *r, tsr_dtype dtype, double x) {
  if (!r->plain) {
    return x;
  }
  return dtype == TSR_F32 ? tsr__ref_to_f32(x) : tsr__dtype_decode_bits(dtype, tsr__dtype_encode_bits(dtype, x));
}
