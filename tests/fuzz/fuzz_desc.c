/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions and runs from bytes: a valid base, changed at places and to values that the bytes name, with every
 * tensor in an allocation of exactly its span. Nothing may crash, and what is accepted may touch only what it
 * describes. */
#include "common/validate.h"
#include "../unit/problem_bases.h"

typedef struct input {
  const uint8_t *data;
  size_t left;
} input;

static uint64_t take(input *in, size_t bytes) {
  uint64_t v = 0;
  for (; bytes > 0 && in->left > 0; bytes--) {
    v = v << 8 | *in->data++;
    in->left--;
  }
  return v;
}

/* Mostly numbers that are near the rules' limits, else any. */
static int64_t take_value(input *in) {
  static const int64_t values[] = {0,
                                   1,
                                   2,
                                   3,
                                   4,
                                   5,
                                   6,
                                   7,
                                   8,
                                   9,
                                   12,
                                   16,
                                   64,
                                   576,
                                   577,
                                   4096,
                                   -1,
                                   INT32_MAX,
                                   INT32_MIN,
                                   INT64_C(1) << 31,
                                   INT64_C(1) << 40,
                                   INT64_MAX,
                                   INT64_MIN,
                                   INT64_MAX / 2};
  const size_t n = (size_t)take(in, 1);
  return n < 240 ? values[n % (sizeof(values) / sizeof(values[0]))] : (int64_t)take(in, 8);
}

/* 4 or 8 bytes in [first, end) of a struct. */
static void change(input *in, void *dst, size_t first, size_t end) {
  const size_t at = first + (size_t)take(in, 2) % ((end - first) / 4) * 4;
  const size_t bytes = at % 8 == 0 && at + 8 <= end && (take(in, 1) & 3) != 0 ? 8 : 4;
  const int64_t v = take_value(in);
  memcpy((char *)dst + at, &v, bytes);
}

static void change_desc(input *in, tsr_attention_desc *d) {
  const size_t first = offsetof(tsr_attention_desc, num_splits), strings = offsetof(tsr_attention_desc, score_expr);
  for (uint64_t n = take(in, 1) % 8; n > 0; n--) {
    switch (take(in, 1) % 8) {
    case 0: change(in, d, sizeof(size_t), offsetof(tsr_attention_desc, variant)); break;
    case 1: change(in, d, offsetof(tsr_attention_desc, num_scalars), sizeof(*d)); break;
    case 2: { /* a whole layout in another's place */
      const int from = (int)(take(in, 1) % TSR_SLOT_COUNT), to = (int)(take(in, 1) % TSR_SLOT_COUNT);
      const tsr_layout l = *tsr__slot_layout(d, from);
      memcpy((char *)d + tsr__slots[to].desc_offset, &l, sizeof(l));
      break;
    }
    default: change(in, d, first, strings); break;
    }
  }
  if (d->num_scalars > 2) {
    d->num_scalars = 2; /* as many as base_scalars has */
  }
}

static void change_values(input *in, const tsr__problem *p, tsr_run_args *a) {
  for (uint64_t n = take(in, 1) % 8; n > 0; n--) {
    const int s = (int)(take(in, 1) % TSR_SLOT_COUNT);
    const tsr_layout *l = tsr__slot_layout(&p->desc, s);
    if (tsr__problem_has(p, s) && (l->dtype == TSR_I32 || l->dtype == TSR_I64) && base_buffer(a, s)->ptr != NULL) {
      const int64_t count = tsr__layout_span_bytes(l) / tsr__element_bytes(l->dtype);
      const int64_t at = (int64_t)(take(in, 2) % (uint64_t)count);
      base_put(a, p, s, at, take_value(in));
    }
  }
  for (uint64_t n = take(in, 1) % 4; n > 0; n--) {
    change(in, a, sizeof(size_t), offsetof(tsr_run_args, q));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  input in = {data, size};
  const base_kind kind = (base_kind)(take(&in, 1) % BASE_COUNT);
  tsr_attention_desc d = base_desc(kind);
  tsr_run_args a = tsr_run_args_init();
  tsr__problem p;
  tsr__bound bound;
  base_memory memory;
  tsr_error err;
  change_desc(&in, &d);
  if (tsr__problem_init(NULL, &d, &p, &err) != TSR_OK) {
    if (err.status == TSR_OK || err.field[0] == 0 || err.text[0] == 0) {
      abort();
    }
    return 0;
  }
  if (p.batch <= 1024 && base_memory_init(&p, 1 << 16, &memory, &a)) {
    base_fill(kind, &p, &a);
    change_values(&in, &p, &a);
    if (tsr__bind(&p, &a, 1, 1, 0, 64, &bound, &err) == TSR_OK &&
        p.batch * p.heads_q * p.seqlen_q * p.seqlen_k < 1 << 16) {
      base_touch(&p, &bound);
    }
    base_memory_free(&memory);
  }
  tsr__problem_free(&p);
  return 0;
}
