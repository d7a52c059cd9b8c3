/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's results of a problem and the comparison of all values with them, by the tolerance rule
 * (tests/conformance/engine/rule.h). */
#include "frame.h"
#include "tests/conformance/engine/rule.h"

/* ---- Outputs --------------------------------------------------------------------------------- */

typedef enum kind { KIND_QUERY, KIND_LSE, KIND_KEY, KIND_BIAS, KIND_MAX, KIND_SINK, KIND_KEPT } kind;

#define OUTPUT(name, kind, op)                                                         \
  {                                                                                    \
#name, kind, op, offsetof(tsr_attention_desc, name), offsetof(tsr_run_args, name), \
        offsetof(tsr_reference_out, name)                                              \
  }

static const struct {
  const char *name;
  kind kind;
  int op;
  size_t layout, buffer, oracle;
} outputs[] = {
    OUTPUT(o, KIND_QUERY, TSR_FORWARD),     OUTPUT(lse, KIND_LSE, TSR_FORWARD),
    OUTPUT(max_s, KIND_MAX, TSR_FORWARD),   OUTPUT(dropout_mask, KIND_KEPT, TSR_FORWARD),
    OUTPUT(dq, KIND_QUERY, TSR_BACKWARD),   OUTPUT(dk, KIND_KEY, TSR_BACKWARD),
    OUTPUT(dv, KIND_KEY, TSR_BACKWARD),     OUTPUT(dbias, KIND_BIAS, TSR_BACKWARD),
    OUTPUT(dsink, KIND_SINK, TSR_BACKWARD),
};

int gy_output_index(ptrdiff_t layout_offset) {
  for (int n = 0; n < (int)(sizeof(outputs) / sizeof(outputs[0])); n++) {
    if ((ptrdiff_t)outputs[n].layout == layout_offset) {
      return n;
    }
  }
  gy_fail("not an output");
}

static const tsr_layout *out_layout(const gy_problem *p, int n) {
  return (const tsr_layout *)(const void *)((const char *)&p->desc + outputs[p->out[n].which].layout);
}

static const tsr_buffer *out_buffer(const gy_problem *p, int n) {
  return (const tsr_buffer *)(const void *)((const char *)&p->args + outputs[p->out[n].which].buffer);
}

static const char *out_name(const gy_problem *p, int n) {
  return outputs[p->out[n].which].name;
}

void gy_poison(const gy_problem *p) {
  for (int n = 0; n < p->num_out; n++) {
    memset(p->out[n].raw, 0xff, (size_t)p->out[n].raw_bytes);
  }
}

void gy_untouched(const gy_problem *p, const gy_run *run) {
  (void)run;
  for (int n = 0; n < p->num_out; n++) {
    const unsigned char *raw = p->out[n].raw;
    const int64_t bytes = p->out[n].raw_bytes;
    if (bytes > 0 && (raw[0] != 0xff || memcmp(raw, raw + 1, (size_t)bytes - 1) != 0)) {
      const unsigned char *data = (unsigned char *)out_buffer(p, n)->ptr;
      int64_t at = 0;
      while (raw[at] == 0xff) {
        at++;
      }
      gy_fail("%s: byte %lld from element 0 was written, its %lld bytes of elements have gaps or end before",
              out_name(p, n), (long long)(raw + at - data), (long long)gy_span_bytes(out_layout(p, n)));
    }
  }
}

static int64_t elements(const tsr_layout *l) {
  return l->shape[0] * l->shape[1] * l->shape[2] * l->shape[3];
}

/* Calls fn for every element of a layout in the order of its shape; fn returns nothing, n counts. */
typedef struct place {
  int64_t n, i[4], at; /* at: element offset */
} place;

static int place_first(const tsr_layout *l, place *x) {
  memset(x, 0, sizeof(*x));
  return elements(l) > 0;
}

static int place_next(const tsr_layout *l, place *x) {
  x->n++;
  for (int a = 3; a >= 0; a--) {
    x->at += l->stride[a];
    if (++x->i[a] < l->shape[a]) {
      return 1;
    }
    x->at -= l->stride[a] * l->shape[a];
    x->i[a] = 0;
  }
  return 0;
}

static int64_t element_bytes(tsr_dtype dtype) {
  return tsr_dtype_bits(dtype) / 8;
}

unsigned char *gy_snapshot(const gy_problem *p, size_t *bytes) {
  unsigned char *all, *to;
  *bytes = 0;
  for (int n = 0; n < p->num_out; n++) {
    *bytes += (size_t)p->out[n].raw_bytes;
  }
  all = to = malloc(*bytes + 1);
  if (all == NULL) {
    gy_fail("no memory for a copy of the outputs");
  }
  for (int n = 0; n < p->num_out; n++) {
    memcpy(to, p->out[n].raw, (size_t)p->out[n].raw_bytes);
    to += p->out[n].raw_bytes;
  }
  return all;
}

/* ---- The oracle ------------------------------------------------------------------------------ */

static const uint64_t unwritten_bits = UINT64_C(0x7ff8dead5eed0001); /* a NaN that no arithmetic gives */

static double *unwritten(int64_t n) {
  double *x = malloc((size_t)n * sizeof(double) + 1);
  for (int64_t i = 0; x != NULL && i < n; i++) {
    memcpy(&x[i], &unwritten_bits, sizeof(double));
  }
  if (x == NULL) {
    gy_fail("no memory for the oracle");
  }
  return x;
}

static int is_unwritten(double x) {
  return memcmp(&x, &unwritten_bits, sizeof(x)) == 0;
}

static void evaluate(const tsr_attention_desc *desc, const tsr_run_args *args, const tsr_reference_out *out) {
  tsr_error err;
  const tsr_status st = tsr_reference_attention(NULL, desc, args, out, &err);
  if (st != TSR_OK) {
    gy_fail("oracle: %s, %s %s", tsr_status_name(st), err.field, err.text);
  }
}

static void evaluate_mode(gy_problem *p, int mode) {
  tsr_reference_out out = tsr_reference_out_init();
  out.mode = mode;
  for (int n = 0; n < p->num_out; n++) {
    gy_output *o = &p->out[n];
    const int64_t count = elements(out_layout(p, n));
    char *field = (char *)&out + outputs[o->which].oracle;
    if (outputs[o->which].kind == KIND_KEPT) {
      if (o->kept == NULL) {
        o->kept = malloc((size_t)count + 1);
      }
      memset(o->kept, 0xff, (size_t)count);
      *(uint8_t **)(void *)field = o->kept;
      continue;
    }
    *(mode == TSR_REFERENCE_F64 ? &o->exact : &o->plain) = *(double **)(void *)field = unwritten(count);
  }
  evaluate(p->oracle_desc != NULL ? p->oracle_desc : &p->desc, p->oracle_args != NULL ? p->oracle_args : &p->args,
           &out);
}

static void oracle(gy_problem *p) {
  if (p->num_out > 0 && !p->evaluated) {
    p->evaluated = 1;
    evaluate_mode(p, TSR_REFERENCE_F64);
    evaluate_mode(p, TSR_REFERENCE_PLAIN);
  }
}

/* Puts results in the order of the shape into a tensor. */
static void store(const tsr_layout *l, const tsr_buffer *b, const double *from) {
  place x;
  for (int more = place_first(l, &x); more; more = place_next(l, &x)) {
    if (!is_unwritten(from[x.n])) {
      gy_put(l, b, x.i[0], x.i[1], x.i[2], x.i[3], from[x.n]);
    }
  }
}

void gy_forward_results(gy_problem *p) {
  static const tsr_layout none;
  static const tsr_buffer nothing;
  tsr_attention_desc d = p->oracle_desc != NULL ? *p->oracle_desc : p->desc;
  tsr_run_args a = p->oracle_args != NULL ? *p->oracle_args : p->args;
  tsr_reference_out out = tsr_reference_out_init();
  if (p->desc.op != TSR_BACKWARD || p->forward_done) {
    return;
  }
  p->forward_done = 1;
  d.op = TSR_FORWARD;
  d.dout = d.dlse = d.dq = d.dk = d.dv = d.dbias = d.dsink = none;
  a.dout = a.dlse = a.dq = a.dk = a.dv = a.dbias = a.dsink = nothing;
  out.o = unwritten(elements(&p->desc.o));
  out.lse = unwritten(elements(&p->desc.lse));
  evaluate(&d, &a, &out);
  store(&p->desc.o, &p->args.o, out.o);
  store(&p->desc.lse, &p->args.lse, out.lse);
  free(out.o);
  free(out.lse);
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* Which sequence each packed row belongs to; NULL: not packed. */
static int64_t *sequences(const tsr_layout *cu, const tsr_buffer *b, int64_t rows) {
  int64_t *seq;
  if (cu->dtype == TSR_DTYPE_NONE) {
    return NULL;
  }
  seq = calloc((size_t)rows + 1, sizeof(*seq));
  for (int64_t n = 0; seq != NULL && n + 1 < cu->shape[0]; n++) {
    const int64_t end = (int64_t)gy_get(cu, b, n + 1, 0, 0, 0);
    for (int64_t row = (int64_t)gy_get(cu, b, n, 0, 0, 0); row < end; row++) {
      seq[row] = n;
    }
  }
  return seq;
}

static int64_t group_of(kind kind, const tsr_layout *l, const int64_t *seq, const int64_t i[4]) {
  switch (kind) {
  case KIND_QUERY:
  case KIND_KEY: return (seq != NULL ? seq[i[1]] : i[0]) * l->shape[2] + i[2];
  case KIND_LSE: return (seq != NULL ? seq[i[2]] : i[0]) * l->shape[1] + i[1];
  case KIND_BIAS: return i[0] * l->shape[1] + i[1];
  case KIND_MAX: return i[0];
  case KIND_SINK:
  case KIND_KEPT: break;
  }
  return 0;
}

typedef struct comparison {
  gy_problem *p;
  int n; /* output */
  kind kind;
  const tsr_layout *l;
  conf_rule *groups;
  int64_t *seq;
} comparison;

static void wrong(const comparison *c, const place *x, double got, double ref, const char *why) {
  gy_fail("%s[%lld,%lld,%lld,%lld] is %.9g, oracle %.9g: %s", out_name(c->p, c->n), (long long)x->i[0],
          (long long)x->i[1], (long long)x->i[2], (long long)x->i[3], got, ref, why);
}

/* An element whose reference is not finite may be as it was before the run, which is a NaN, too. */
static void compare_written(const comparison *c, const place *x, double got, double ref) {
  static const unsigned char poison[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  const int64_t size = element_bytes(c->l->dtype);
  const unsigned char *data = (unsigned char *)out_buffer(c->p, c->n)->ptr + x->at * size;
  if (memcmp(data, poison, (size_t)size) == 0) {
    wrong(c, x, got, ref, "not written");
  }
}

static void compare_element(const comparison *c, const place *x, double got, double ref, double plain) {
  const char *why = conf_rule_add(&c->groups[group_of(c->kind, c->l, c->seq, x->i)], x->n, got, ref, plain);
  if (why != NULL) {
    wrong(c, x, got, ref, why);
  }
  if (!isfinite(ref)) {
    compare_written(c, x, got, ref);
  }
  if (c->p->exact_zero && ref == 0.0 && plain == 0.0 && got != 0.0) {
    wrong(c, x, got, ref, "nothing contributes, so it is exactly 0");
  }
}

static double read_at(const tsr_layout *l, const unsigned char *data, int64_t at) {
  if (l->dtype == TSR_F32) {
    float f;
    memcpy(&f, data + 4 * at, sizeof(f));
    return (double)f;
  }
  return tsr_decode(l->dtype, data, at);
}

static void judge(const comparison *c, const conf_rule *rule) {
  const conf_rule_result r = conf_rule_end(rule);
  place x;
  if (rule->count == 0 || (r.max_share <= 1.0 && r.rms_share <= 1.0)) {
    return;
  }
  place_first(c->l, &x);
  while (x.n < rule->element) {
    place_next(c->l, &x);
  }
  gy_fail("%s: largest error %.4g at [%lld,%lld,%lld,%lld], allowed %.4g; rms %.4g, allowed %.4g (0: any); there %.9g, "
          "oracle %.9g, plain %.9g",
          out_name(c->p, c->n), r.max_error, (long long)x.i[0], (long long)x.i[1], (long long)x.i[2], (long long)x.i[3],
          r.max_allowed, r.rms_error, r.rms_allowed, rule->got, rule->want, c->p->out[c->n].plain[x.n]);
}

static void compare_values(const comparison *c, int64_t groups) {
  const unsigned char *data = out_buffer(c->p, c->n)->ptr;
  const gy_output *out = &c->p->out[c->n];
  place x;
  for (int more = place_first(c->l, &x); more; more = place_next(c->l, &x)) {
    if (c->kind == KIND_KEPT) {
      if (out->kept[x.n] != 0xff && data[x.at] != out->kept[x.n]) {
        wrong(c, &x, (double)data[x.at], (double)out->kept[x.n], "must be that");
      }
    } else if (!is_unwritten(out->exact[x.n])) {
      compare_element(c, &x, read_at(c->l, data, x.at), out->exact[x.n], out->plain[x.n]);
    }
  }
  for (int64_t g = 0; g < groups; g++) {
    judge(c, &c->groups[g]);
  }
}

/* Poisons what the run had to write. */
static void erase(const comparison *c) {
  unsigned char *data = out_buffer(c->p, c->n)->ptr;
  const gy_output *out = &c->p->out[c->n];
  const int64_t size = element_bytes(c->l->dtype);
  place x;
  for (int more = place_first(c->l, &x); more; more = place_next(c->l, &x)) {
    if (c->kind == KIND_KEPT ? out->kept[x.n] != 0xff : !is_unwritten(out->exact[x.n])) {
      memset(data + x.at * size, 0xff, (size_t)size);
    }
  }
}

void gy_compare(gy_problem *p, const gy_run *run) {
  oracle(p);
  for (int n = 0; n < p->num_out; n++) {
    const tsr_layout *l = out_layout(p, n);
    const kind k = outputs[p->out[n].which].kind;
    comparison c = {p, n, k, l, NULL, NULL};
    int64_t batch = p->desc.cu_seqlens_q.dtype != TSR_DTYPE_NONE ? p->desc.cu_seqlens_q.shape[0] : p->desc.q.shape[0];
    int64_t groups;
    if (k == KIND_KEY) {
      c.seq = sequences(&p->desc.cu_seqlens_k, &p->args.cu_seqlens_k, l->shape[1]);
    } else if (k == KIND_QUERY || k == KIND_LSE) {
      c.seq = sequences(&p->desc.cu_seqlens_q, &p->args.cu_seqlens_q, k == KIND_LSE ? l->shape[2] : l->shape[1]);
    }
    if (p->desc.cu_seqlens_k.dtype != TSR_DTYPE_NONE && p->desc.cu_seqlens_k.shape[0] > batch) {
      batch = p->desc.cu_seqlens_k.shape[0];
    }
    groups = (batch + 1) * p->desc.q.shape[2];
    c.groups = malloc((size_t)groups * sizeof(*c.groups));
    if (c.groups == NULL) {
      gy_fail("no memory to compare");
    }
    for (int64_t g = 0; g < groups; g++) {
      c.groups[g] = conf_rule_begin(l->dtype, p->desc.op == TSR_BACKWARD ? 3.0 : 2.0, k == KIND_LSE || k == KIND_MAX);
    }
    compare_values(&c, groups);
    erase(&c);
    free(c.groups);
    free(c.seq);
  }
  gy_untouched(p, run);
}
