/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/pairwise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CASES = 4096, MAX_EXTENT = 1 << 20, MAX_STRIDE = 1 << 24 };
enum { ROLE_INPUT, ROLE_BACKWARD_INPUT, ROLE_FORWARD_OUTPUT, ROLE_GRADIENT, ROLE_RESULT, ROLES };

/* Allocations are chained, so that a file closes in one walk. The bytes come last: reading past them is an overflow. */
typedef struct block {
  struct block *next;
  max_align_t bytes[];
} block;

struct tsr_test_pairwise {
  tsr_test_case *cases;
  int32_t count;
  block *blocks;
};

/* ---- Reading bytes --------------------------------------------------------------------------- */

typedef struct reader {
  const uint8_t *at, *end;
  tsr_test_pairwise *file;
  const char *why; /* NULL: no error so far; after one all reads give 0 */
} reader;

static void fail(reader *r, const char *why) {
  if (!r->why) {
    r->why = why;
  }
  r->at = r->end;
}

static void *new_block(reader *r, size_t bytes) {
  block *b = malloc(sizeof(block) + bytes);
  if (!b) {
    fail(r, "out of memory");
    return NULL;
  }
  b->next = r->file->blocks;
  r->file->blocks = b;
  return b->bytes;
}

static const uint8_t *take(reader *r, size_t bytes) {
  if ((size_t)(r->end - r->at) < bytes) {
    fail(r, "the file ends inside a record");
    return NULL;
  }
  const uint8_t *at = r->at;
  r->at += bytes;
  return at;
}

static uint64_t read_uint(reader *r, size_t bytes) {
  const uint8_t *at = take(r, bytes);
  uint64_t value = 0;
  for (size_t i = 0; at && i < bytes; i++) {
    value |= (uint64_t)at[i] << (8 * i);
  }
  return value;
}

static int32_t read_i32(reader *r) {
  const uint32_t bits = (uint32_t)read_uint(r, 4);
  int32_t value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static float read_f32(reader *r) {
  const uint32_t bits = (uint32_t)read_uint(r, 4);
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static double read_f64(reader *r) {
  const uint64_t bits = read_uint(r, 8);
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

/* A copy of the next bytes; NULL when there are none. */
static void *read_copy(reader *r, size_t bytes, int terminated) {
  const uint8_t *at = take(r, bytes);
  if (!at || (bytes == 0 && !terminated)) {
    return NULL;
  }
  char *copy = new_block(r, bytes + (terminated ? 1 : 0));
  if (copy) {
    memcpy(copy, at, bytes);
    if (terminated) {
      copy[bytes] = '\0';
    }
  }
  return copy;
}

/* Never NULL. */
static const char *read_text(reader *r) {
  const size_t bytes = (size_t)read_uint(r, 2);
  const char *text = read_copy(r, bytes, 1);
  return text ? text : "";
}

/* ---- Fields and tensors by name -------------------------------------------------------------- */

typedef struct tensor_field {
  const char *name;
  size_t layout, buffer; /* offsets in tsr_attention_desc and tsr_run_args */
} tensor_field;

#define TENSOR(name) \
  { #name, offsetof(tsr_attention_desc, name), offsetof(tsr_run_args, name) }
#define AUX(n)                                                              \
  {                                                                         \
    "aux" #n, offsetof(tsr_attention_desc, aux) + (n) * sizeof(tsr_layout), \
        offsetof(tsr_run_args, aux) + (n) * sizeof(tsr_buffer)              \
  }
static const tensor_field tensor_fields[] = {
    TENSOR(q),
    TENSOR(k),
    TENSOR(v),
    TENSOR(o),
    TENSOR(lse),
    TENSOR(max_s),
    TENSOR(cu_seqlens_q),
    TENSOR(cu_seqlens_k),
    TENSOR(seqlens_q),
    TENSOR(seqlens_k),
    TENSOR(block_table),
    TENSOR(kv_indptr),
    TENSOR(kv_indices),
    TENSOR(last_page_len),
    TENSOR(prefix),
    TENSOR(mask),
    TENSOR(mask_offsets),
    TENSOR(mask_row_strides),
    TENSOR(segments_q),
    TENSOR(segments_k),
    TENSOR(flashmask),
    TENSOR(block_indptr),
    TENSOR(block_indices),
    TENSOR(bias),
    TENSOR(alibi_slopes),
    TENSOR(sink),
    TENSOR(k_scale),
    TENSOR(k_zero),
    TENSOR(v_scale),
    TENSOR(v_zero),
    TENSOR(q_descale),
    TENSOR(rng_state),
    TENSOR(dropout_mask),
    AUX(0),
    AUX(1),
    AUX(2),
    AUX(3),
    AUX(4),
    AUX(5),
    AUX(6),
    AUX(7),
    TENSOR(dout),
    TENSOR(dlse),
    TENSOR(dq),
    TENSOR(dk),
    TENSOR(dv),
    TENSOR(dbias),
    TENSOR(dsink),
};

/* Bytes from a tensor's first element to past its last. */
static int64_t layout_span(const tsr_layout *l) {
  int64_t last = 0;
  for (int a = 0; a < 4; a++) {
    if (l->shape[a] == 0) {
      return 0;
    }
    last += (l->shape[a] - 1) * l->stride[a];
  }
  if (l->dtype == TSR_BIT) {
    return last - (l->shape[3] - 1) * l->stride[3] + (l->shape[3] + 7) / 8;
  }
  return ((last + 1) * tsr_dtype_bits(l->dtype) + 7) / 8;
}

static void read_layout(reader *r, tsr_layout *l) {
  memset(l, 0, sizeof(*l));
  l->dtype = (tsr_dtype)read_uint(r, 1);
  for (int a = 0; a < 4; a++) {
    l->shape[a] = read_i32(r);
  }
  for (int a = 0; a < 4; a++) {
    l->stride[a] = read_i32(r);
  }
  for (int a = 0; a < 4; a++) {
    if (l->shape[a] < 0 || l->shape[a] > MAX_EXTENT || l->stride[a] < 0 || l->stride[a] > MAX_STRIDE) {
      fail(r, "an extent or stride is out of range");
    }
  }
  if (tsr_dtype_bits(l->dtype) == 0) {
    fail(r, "unknown element type");
  }
}

static void read_tensor(reader *r, tsr_test_case *c) {
  const char *key = read_text(r);
  const uint64_t role = read_uint(r, 1);
  tsr_layout layout;
  read_layout(r, &layout);
  const int32_t offset = read_i32(r);
  const uint32_t bytes = (uint32_t)read_uint(r, 4);
  void *data = read_copy(r, bytes, 0);
  const tensor_field *f = NULL;
  for (size_t i = 0; i < sizeof(tensor_fields) / sizeof(tensor_fields[0]); i++) {
    if (strcmp(tensor_fields[i].name, key) == 0) {
      f = &tensor_fields[i];
    }
  }
  if (!f || role >= ROLES) {
    fail(r, "unknown tensor or role");
  } else if (offset < 0 || (data && (int64_t)bytes - offset < layout_span(&layout))) {
    fail(r, "a tensor has too few bytes");
  }
  if (r->why) {
    return;
  }
  const tsr_buffer buffer = {data, data ? offset : 0};
  if (role == ROLE_INPUT || role == ROLE_FORWARD_OUTPUT || role == ROLE_RESULT) {
    memcpy((char *)&c->forward + f->layout, &layout, sizeof(layout));
    memcpy((char *)&c->forward_args + f->buffer, &buffer, sizeof(buffer));
  }
  if (role != ROLE_FORWARD_OUTPUT) {
    memcpy((char *)&c->backward + f->layout, &layout, sizeof(layout));
    memcpy((char *)&c->backward_args + f->buffer, &buffer, sizeof(buffer));
  }
}

static void read_integer(reader *r, const char *key, tsr_attention_desc *d, tsr_run_args *a) {
  const uint64_t value = read_uint(r, 8);
  const struct {
    const char *name;
    void *at;
    size_t bytes;
  } fields[] = {
      {"flags", &d->flags, 8},
      {"batch", &d->batch, 8},
      {"max_seqlen_q", &d->max_seqlen_q, 8},
      {"max_seqlen_k", &d->max_seqlen_k, 8},
      {"num_aux", &d->num_aux, 4},
      {"window_left", &d->window_left, 8},
      {"window_right", &d->window_right, 8},
      {"sink_tokens", &d->sink_tokens, 8},
      {"chunk", &d->chunk, 8},
      {"block_rows", &d->block_rows, 4},
      {"block_cols", &d->block_cols, 4},
      {"seed", &a->seed, 8},
      {"offset", &a->offset, 8},
  };
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
    if (strcmp(fields[i].name, key) == 0) {
      const uint32_t low = (uint32_t)value;
      memcpy(fields[i].at, fields[i].bytes == 8 ? (const void *)&value : (const void *)&low, fields[i].bytes);
      return;
    }
  }
  fail(r, "unknown integer field");
}

static void read_float(reader *r, const char *key, tsr_run_args *a) {
  const float value = read_f32(r);
  if (strcmp(key, "scale") == 0) {
    a->scale = value;
  } else if (strcmp(key, "softcap") == 0) {
    a->softcap = value;
  } else if (strcmp(key, "dropout_p") == 0) {
    a->dropout_p = value;
  } else {
    fail(r, "unknown float field");
  }
}

static void read_scalar(reader *r, const char **names, tsr_attention_desc *d, tsr_run_args *a) {
  const char *name = read_text(r);
  const float value = read_f32(r);
  if (d->num_scalars >= TSR_EXPR_MAX_SCALARS) {
    fail(r, "too many scalars");
    return;
  }
  names[d->num_scalars] = name;
  a->scalars[d->num_scalars] = value;
  d->num_scalars++;
  d->scalar_names = names;
}

/* Fields belong to both directions. */
static void read_fields(reader *r, tsr_test_case *c) {
  const char **names = new_block(r, TSR_EXPR_MAX_SCALARS * sizeof(*names));
  for (uint64_t n = read_uint(r, 2); n > 0 && !r->why; n--) {
    const char *key = read_text(r);
    switch (read_uint(r, 1)) {
    case 'i': read_integer(r, key, &c->forward, &c->forward_args); break;
    case 'f': read_float(r, key, &c->forward_args); break;
    case 's': read_scalar(r, names, &c->forward, &c->forward_args); break;
    case 't':
      if (strcmp(key, "score_expr") == 0) {
        c->forward.score_expr = read_text(r);
      } else if (strcmp(key, "mask_expr") == 0) {
        c->forward.mask_expr = read_text(r);
      } else {
        fail(r, "unknown text field");
      }
      break;
    default: fail(r, "unknown kind of field");
    }
  }
  c->backward = c->forward;
  c->backward.op = TSR_BACKWARD;
  c->backward_args = c->forward_args;
}

/* ---- Expected values ------------------------------------------------------------------------- */

static void read_expected(reader *r, tsr_test_case *c) {
  tsr_test_expected *e = &c->expected;
  const struct {
    const char *name;
    const double **at;
    const tsr_layout *layout;
  } fields[] = {
      {"o", &e->o, &c->forward.o},
      {"lse", &e->lse, &c->forward.lse},
      {"max_s", &e->max_s, &c->forward.max_s},
      {"dropout_mask", NULL, &c->forward.dropout_mask},
      {"dq", &e->dq, &c->backward.dq},
      {"dk", &e->dk, &c->backward.dk},
      {"dv", &e->dv, &c->backward.dv},
      {"dbias", &e->dbias, &c->backward.dbias},
      {"dsink", &e->dsink, &c->backward.dsink},
  };
  const char *key = read_text(r);
  const uint64_t kind = read_uint(r, 1);
  int64_t shape[4];
  for (int a = 0; a < 4; a++) {
    shape[a] = read_i32(r);
  }
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) && !r->why; i++) {
    if (strcmp(fields[i].name, key) == 0) {
      if (memcmp(shape, fields[i].layout->shape, sizeof(shape)) != 0 || kind != (fields[i].at ? 'd' : 'b')) {
        fail(r, "expected values have another shape or kind than their layout");
        return;
      }
      const int64_t count = tsr_test_layout_count(fields[i].layout);
      if (fields[i].at) {
        *fields[i].at = read_copy(r, (size_t)count * sizeof(double), 0);
      } else {
        e->dropout_mask = read_copy(r, (size_t)count, 0);
      }
      return;
    }
  }
  fail(r, "expected values of an unknown tensor");
}

static void read_case(reader *r, tsr_test_case *c) {
  c->forward = tsr_attention_desc_init();
  c->forward_args = tsr_run_args_init();
  c->name = read_text(r);
  c->features = read_text(r);
  c->tolerance = read_f64(r);
  c->tolerance_reason = read_text(r);
  c->has_backward = (int)read_uint(r, 1);
  read_fields(r, c);
  for (uint64_t n = read_uint(r, 2); n > 0 && !r->why; n--) {
    read_tensor(r, c);
  }
  for (uint64_t n = read_uint(r, 2); n > 0 && !r->why; n--) {
    read_expected(r, c);
  }
  if (r->at != r->end) {
    fail(r, "bytes are left over in a record");
  }
  if (!c->has_backward) {
    memset(&c->backward, 0, sizeof(c->backward));
    memset(&c->backward_args, 0, sizeof(c->backward_args));
  }
  if (!c->expected.o || !c->expected.lse ||
      (c->has_backward && !(c->expected.dq && c->expected.dk && c->expected.dv))) {
    fail(r, "a case lacks expected values");
  }
}

/* ---- The file -------------------------------------------------------------------------------- */

static void read_file(reader *r) {
  const uint8_t *magic = take(r, 8);
  if (!magic || memcmp(magic, "TSRPAIR1", 8) != 0 || read_uint(r, 4) != 1) {
    fail(r, "not a pairwise file of version 1");
    return;
  }
  const uint64_t count = read_uint(r, 4);
  if (count == 0 || count > MAX_CASES) {
    fail(r, "no cases, or too many");
    return;
  }
  r->file->cases = calloc((size_t)count, sizeof(tsr_test_case));
  if (!r->file->cases) {
    fail(r, "out of memory");
  }
  for (uint64_t i = 0; i < count && !r->why; i++) {
    const size_t bytes = (size_t)read_uint(r, 4);
    const uint8_t *at = take(r, bytes);
    if (at) {
      reader record = {at, at + bytes, r->file, NULL};
      read_case(&record, &r->file->cases[i]);
      if (record.why) {
        fail(r, record.why);
      }
      r->file->count++;
    }
  }
  if (r->at != r->end) {
    fail(r, "bytes are left over after the last case");
  }
}

int tsr_test_pairwise_parse(const void *bytes, size_t size, tsr_test_pairwise **file, char *why, size_t why_bytes) {
  *file = calloc(1, sizeof(**file));
  if (!*file) {
    snprintf(why, why_bytes, "out of memory");
    return -1;
  }
  const uint8_t *start = bytes;
  reader r = {start, start + size, *file, NULL};
  read_file(&r);
  if (r.why) {
    snprintf(why, why_bytes, "%s (case %d)", r.why, (int)(*file)->count);
    tsr_test_pairwise_close(*file);
    *file = NULL;
    return -1;
  }
  return 0;
}

int tsr_test_pairwise_open(const char *path, tsr_test_pairwise **file, char *why, size_t why_bytes) {
  *file = NULL;
  FILE *f = fopen(path, "rb");
  if (!f) {
    snprintf(why, why_bytes, "cannot open %s", path);
    return -1;
  }
  long size = -1;
  if (fseek(f, 0, SEEK_END) == 0) {
    size = ftell(f);
  }
  void *bytes = size > 0 ? malloc((size_t)size) : NULL;
  int status = -1;
  if (bytes && fseek(f, 0, SEEK_SET) == 0 && fread(bytes, 1, (size_t)size, f) == (size_t)size) {
    status = tsr_test_pairwise_parse(bytes, (size_t)size, file, why, why_bytes);
  } else {
    snprintf(why, why_bytes, "cannot read %s", path);
  }
  free(bytes);
  fclose(f);
  return status;
}

int32_t tsr_test_pairwise_count(const tsr_test_pairwise *file) {
  return file->count;
}

const tsr_test_case *tsr_test_pairwise_case(const tsr_test_pairwise *file, int32_t index) {
  return &file->cases[index];
}

int tsr_test_case_has(const tsr_test_case *c, const char *feature) {
  const size_t n = strlen(feature);
  for (const char *at = c->features; (at = strstr(at, feature)) != NULL; at += n) {
    if ((at == c->features || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) {
      return 1;
    }
  }
  return 0;
}

void tsr_test_pairwise_close(tsr_test_pairwise *file) {
  if (!file) {
    return;
  }
  for (block *b = file->blocks; b;) {
    block *next = b->next;
    free(b);
    b = next;
  }
  free(file->cases);
  free(file);
}

int64_t tsr_test_layout_count(const tsr_layout *layout) {
  return layout->shape[0] * layout->shape[1] * layout->shape[2] * layout->shape[3];
}
