/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of tensors: guard bands, patterns, what a run may write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "build.h"

enum { GUARD_BYTES = 320 };

static const struct {
  const char *name;
  size_t layout, buffer;
} fields[] = {
#define FIELD(name) {#name, offsetof(tsr_attention_desc, name), offsetof(tsr_run_args, name)},
    CONF_TENSORS(FIELD)
#undef FIELD
        {"aux0", offsetof(tsr_attention_desc, aux), offsetof(tsr_run_args, aux)},
    {"aux1", offsetof(tsr_attention_desc, aux) + sizeof(tsr_layout), offsetof(tsr_run_args, aux) + sizeof(tsr_buffer)}};

const tsr_layout *conf_field_layout(const tsr_attention_desc *desc, int id) {
  return (const tsr_layout *)(const void *)((const char *)desc + fields[id].layout);
}

tsr_buffer *conf_field_buffer(tsr_run_args *args, int id) {
  return (tsr_buffer *)(void *)((char *)args + fields[id].buffer);
}

static int64_t element_bytes(tsr_dtype dtype) {
  const int32_t bits = tsr_dtype_bits(dtype);
  return bits < 8 ? 1 : bits / 8;
}

int64_t conf_span_bytes(const tsr_layout *l) {
  int64_t last = 0;
  for (int a = 0; a < 4; a++) {
    if (l->shape[a] == 0) {
      return 0;
    }
    if (a < 3 || l->dtype != TSR_BIT) {
      last += (l->shape[a] - 1) * (l->shape[a] == 1 ? 0 : l->stride[a]);
    }
  }
  if (l->dtype == TSR_BIT) {
    return last + (l->shape[3] - 1) / 8 + 1;
  }
  return l->dtype == TSR_U4 ? last / 2 + 1 : (last + 1) * element_bytes(l->dtype);
}

tsr_layout conf_layout(tsr_dtype dtype, const int64_t shape[4], conf_order order, int64_t last_stride, int64_t pad) {
  tsr_layout l = tsr_layout_dense(dtype, shape[0], shape[1], shape[2], shape[3]);
  int64_t run = last_stride;
  for (int n = 3; n >= 0; n--) {
    const int a = order.axis[n];
    l.stride[a] = run;
    run *= shape[a] > 0 ? shape[a] : 1;
    run += n == 3 ? pad : 0;
  }
  return l;
}

/* ---- Patterns -------------------------------------------------------------------------------- */

/* Byte of the pattern at a distance from element 0. Inputs: all ones. Outputs: a NaN of its own. */
static unsigned char pattern_byte(const conf_tensor *t, int64_t distance) {
  static const unsigned char f32[4] = {0xa5, 0xa5, 0xa5, 0x7f}, half[2] = {0xa5, 0x7e}, brain[2] = {0xa5, 0x7f};
  if (!t->output) {
    return 0xff;
  }
  switch (t->layout.dtype) {
  case TSR_F32: return f32[distance & 3];
  case TSR_F16: return half[distance & 1];
  case TSR_BF16: return brain[distance & 1];
  default: return 0xa5;
  }
}

static void tensor_pattern(conf_tensor *t) {
  const int64_t before = t->data - t->raw;
  if (!t->output) {
    memset(t->raw, 0xff, (size_t)t->raw_bytes);
    return;
  }
  for (int64_t n = 0; n < t->raw_bytes; n++) {
    t->raw[n] = pattern_byte(t, n - before);
  }
}

static uint64_t tensor_hash(const conf_tensor *t) {
  uint64_t h = UINT64_C(0xcbf29ce484222325);
  for (int64_t n = 0; n < t->raw_bytes; n += 8) { /* raw_bytes is a multiple of 64 */
    uint64_t w;
    memcpy(&w, t->raw + n, sizeof(w));
    h = (h ^ w) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
  }
  return h;
}

void conf_tensor_seal(conf_tensor *t) {
  if (t->raw != NULL && !t->output) {
    t->hash = tensor_hash(t);
  }
}

/* ---- Making ---------------------------------------------------------------------------------- */

static void enter(conf_problem *p, int id, unsigned char *start, int64_t offset) {
  conf_tensor *t = &p->t[id];
  tsr_layout *layout = (tsr_layout *)(void *)((char *)&p->desc + fields[id].layout);
  tsr_buffer *buffer = (tsr_buffer *)(void *)((char *)&p->args + fields[id].buffer);
  t->name = fields[id].name;
  *layout = t->layout;
  buffer->ptr = start;
  buffer->offset_bytes = offset;
}

int conf_tensor_make(conf_problem *p, int id, int output, const tsr_layout *layout, int skew) {
  conf_tensor *t = &p->t[id];
  const int64_t before = GUARD_BYTES + skew * element_bytes(layout->dtype);
  t->layout = *layout;
  t->output = output;
  t->raw_bytes = (before + conf_span_bytes(layout) + GUARD_BYTES + 63) / 64 * 64;
  t->raw = aligned_alloc(64, (size_t)t->raw_bytes);
  t->owned = output ? calloc((size_t)t->raw_bytes, 1) : NULL;
  if (t->raw == NULL || (output && t->owned == NULL)) {
    return 0;
  }
  t->data = t->raw + before;
  tensor_pattern(t);
  enter(p, id, t->raw + GUARD_BYTES, t->data - (t->raw + GUARD_BYTES));
  return 1;
}

void conf_tensor_share(conf_problem *p, int id, int owner, const tsr_layout *layout, int64_t first) {
  conf_tensor *t = &p->t[id];
  const conf_tensor *o = &p->t[owner];
  t->layout = *layout;
  t->data = o->data + (layout->dtype == TSR_U4 ? first / 2 : first * element_bytes(layout->dtype));
  enter(p, id, t->data, 0);
}

/* ---- Layouts of a case ------------------------------------------------------------------------- */

static int is_kv(int id) {
  return id == CONF_T_k || id == CONF_T_v || id == CONF_T_dk || id == CONF_T_dv;
}

int conf_make_main(conf_problem *p, int id, int output, tsr_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                   int64_t n3) {
  static const conf_order bshd = {{0, 1, 2, 3}}, bhsd = {{0, 2, 1, 3}};
  const int64_t shape[4] = {n0, n1, n2, n3};
  const int small = dtype == TSR_U4;
  tsr_layout l;
  conf_rng r = conf_rng_for(p->c.seed, fields[id].name);
  if (conf_has(&p->c.items, CONF_layout_bhsd)) { /* q and k may differ */
    conf_rng side = conf_rng_for(p->c.seed, is_kv(id) ? "kv order" : "q order");
    l = conf_layout(dtype, shape, is_kv(id) || conf_chance(&side, 0.5) ? bhsd : bshd, 1, 0);
    return conf_tensor_make(p, id, output, &l, 0);
  }
  if (conf_has(&p->c.items, CONF_layout_padded)) {
    const int64_t last = small || conf_chance(&r, 0.5) ? 1 : 2;
    l = conf_layout(dtype, shape, bshd, last, small ? 4 : 3);
    return conf_tensor_make(p, id, output, &l, 1);
  }
  if (conf_has(&p->c.items, CONF_layout_aligned)) {
    const int64_t per_64 = small ? 128 : 64 / element_bytes(dtype);
    l = conf_layout(dtype, shape, bshd, 1, (n3 + per_64 - 1) / per_64 * per_64 - n3);
    l.align_bytes = 64;
    return conf_tensor_make(p, id, output, &l, 0);
  }
  l = conf_layout(dtype, shape, bshd, 1, 0);
  return conf_tensor_make(p, id, output, &l, 0);
}

int conf_make_local(conf_problem *p, int id, tsr_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
  static const conf_order orders[] = {{{0, 1, 2, 3}}, {{1, 0, 3, 2}}, {{2, 0, 1, 3}}};
  const int64_t shape[4] = {n0, n1, n2, n3};
  conf_rng r = conf_rng_for(p->c.seed, fields[id].name);
  const tsr_layout l = conf_layout(dtype, shape, orders[conf_range(&r, 0, 2)], 1, conf_range(&r, 0, 2));
  return conf_tensor_make(p, id, 0, &l, (int)conf_range(&r, 0, 1));
}

int conf_make_vector(conf_problem *p, int id, int output, tsr_dtype dtype, int64_t n0, int64_t n1) {
  const tsr_layout l = tsr_layout_dense(dtype, n0, n1, 1, 1);
  return conf_tensor_make(p, id, output, &l, 0);
}

/* ---- Elements -------------------------------------------------------------------------------- */

int64_t conf_index(const conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const tsr_layout *l = &t->layout;
  return (l->shape[0] == 1 ? 0 : i0 * l->stride[0]) + (l->shape[1] == 1 ? 0 : i1 * l->stride[1]) +
         (l->shape[2] == 1 ? 0 : i2 * l->stride[2]) + (l->shape[3] == 1 ? 0 : i3 * l->stride[3]);
}

double conf_get(const conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const int64_t at = conf_index(t, i0, i1, i2, i3);
  if (t->layout.dtype == TSR_F32) {
    float f;
    memcpy(&f, t->data + at * 4, sizeof(f));
    return (double)f;
  }
  return tsr_decode(t->layout.dtype, t->data, at);
}

void conf_put(conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double value) {
  const int64_t at = conf_index(t, i0, i1, i2, i3);
  if (t->layout.dtype == TSR_F32) {
    const float f = (float)value;
    memcpy(t->data + at * 4, &f, sizeof(f));
    return;
  }
  tsr_encode(t->layout.dtype, t->data, at, value);
}

void conf_own(conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const int64_t bytes = element_bytes(t->layout.dtype);
  const int64_t at = t->data - t->raw + conf_index(t, i0, i1, i2, i3) * bytes;
  memset(t->owned + at, 1, (size_t)bytes);
}

/* ---- After a run ------------------------------------------------------------------------------- */

/* conf_problem_intact for one tensor. */
static const char *tensor_intact(const conf_tensor *t, char *text, size_t bytes) {
  const int64_t before = t->data - t->raw;
  if (!t->output) {
    if (tensor_hash(t) != t->hash) {
      snprintf(text, bytes, "%s, an input, was written", t->name);
      return text;
    }
    return NULL;
  }
  for (int64_t n = 0; n < t->raw_bytes; n++) {
    if (!t->owned[n] && t->raw[n] != pattern_byte(t, n - before)) {
      snprintf(text, bytes, "%s: byte %lld from element 0 is 0x%02x, must stay 0x%02x: it is %s", t->name,
               (long long)(n - before), t->raw[n], pattern_byte(t, n - before),
               n < before || n >= before + conf_span_bytes(&t->layout)
                   ? "outside the tensor"
                   : "between the elements or outside the used lengths");
      return text;
    }
  }
  return NULL;
}

const char *conf_problem_intact(const conf_problem *p, char *text, size_t bytes) {
  for (int id = 0; id < CONF_T_COUNT; id++) {
    if (p->t[id].raw != NULL && tensor_intact(&p->t[id], text, bytes) != NULL) {
      return text;
    }
  }
  return NULL;
}

void conf_problem_poison(conf_problem *p) {
  for (int id = 0; id < CONF_T_COUNT; id++) {
    if (p->t[id].raw != NULL && p->t[id].output) {
      tensor_pattern(&p->t[id]);
    }
  }
}
