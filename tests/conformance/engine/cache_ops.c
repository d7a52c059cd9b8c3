/* SPDX-License-Identifier: Apache-2.0 */
/* Append and merge on every target and variant. Append must give the oracle's bytes, in all of the memory around the
 * tensors; merge is held to the tolerance rule with a straightforward f32 merge as yardstick, and to its exact
 * promises. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feature_list.h"
#include "runner.h"

enum { BAND = 128, MAX_BUFFERS = 40 };

/* Memory with bands; `twin`, in the same allocation, has the same contents, for the oracle. */
typedef struct buffer {
  unsigned char *mine, *twin;
  int64_t bytes;
  tsr_layout layout;
} buffer;

typedef struct arena {
  buffer b[MAX_BUFFERS];
  int count, failed;
  conf_rng r;
} arena;

static void arena_free(arena *a) {
  for (int n = 0; n < a->count; n++) {
    free(a->b[n].mine);
  }
}

/* A tensor of a random order of axes and padding (exact: dense), filled with ones, i.e. NaN or -1. */
static buffer *new_buffer(arena *a, tsr_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3, int exact) {
  buffer *b = &a->b[a->count++];
  const int64_t pad = exact ? 0 : conf_range(&a->r, 0, 2) * (dtype == TSR_U4 ? 2 : 1);
  int64_t elements;
  b->layout = tsr_layout_dense(dtype, n0, n1, n2, n3);
  b->layout.stride[2] += pad;
  b->layout.stride[1] = b->layout.stride[2] * n2;
  b->layout.stride[0] = b->layout.stride[1] * n1;
  elements = n0 * b->layout.stride[0] + 1;
  b->bytes = (elements * tsr_dtype_bits(dtype) + 7) / 8 + 2 * BAND;
  b->mine = malloc((size_t)(2 * b->bytes));
  if (b->mine == NULL) {
    a->failed = 1;
    return b;
  }
  b->twin = b->mine + b->bytes;
  memset(b->mine, 0xff, (size_t)b->bytes);
  return b;
}

static int64_t at(const buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  return i0 * b->layout.stride[0] + i1 * b->layout.stride[1] + i2 * b->layout.stride[2] + i3 * b->layout.stride[3];
}
static void set(buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double x) {
  tsr_encode(b->layout.dtype, b->mine + BAND, at(b, i0, i1, i2, i3), x);
}
static double get(const buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  return tsr_decode(b->layout.dtype, b->mine + BAND, at(b, i0, i1, i2, i3));
}

/* Fills all elements; spread 0: leaves them. */
static void fill(arena *a, buffer *b, double spread) {
  const int64_t *n = b->layout.shape;
  for (int64_t i = 0; !a->failed && i < n[0] * n[1] * n[2] * n[3]; i++) {
    set(b, i / (n[3] * n[2] * n[1]), i / (n[3] * n[2]) % n[1], i / n[3] % n[2], i % n[3], spread * conf_normal(&a->r));
  }
}

static tsr_buffer mine(const buffer *b) {
  return tsr_buffer_out(b->mine + BAND);
}
static tsr_buffer twin(const buffer *b) {
  return tsr_buffer_out(b->twin + BAND);
}

/* All of `mine`, and the workspace, on a target. */
static tsr_status arena_mirror(const arena *a, const conf_workspace *w, conf_target *target, conf_mirror *m,
                               tsr_error *err) {
  tsr_status st = TSR_OK;
  conf_mirror_open(m, target->device);
  for (int n = 0; n < a->count && st == TSR_OK; n++) {
    st = conf_mirror_add(m, a->b[n].mine, a->b[n].bytes, CONF_MIRROR_OUTPUT, err);
  }
  if (st == TSR_OK && w->bytes > 0) {
    st = conf_mirror_add(m, w->raw, w->raw_bytes, CONF_MIRROR_OUTPUT, err);
  }
  return st == TSR_OK ? conf_mirror_write(m, err) : st;
}

/* ---- Append ------------------------------------------------------------------------------------------ */

typedef struct append {
  arena a;
  tsr_append_desc desc;
  tsr_append_args args, twin; /* of the device, of the oracle */
  char line[400];
} append;

static void enter(tsr_layout *layout, tsr_buffer *args, tsr_buffer *twin_args, const buffer *b) {
  *layout = b->layout;
  *args = mine(b);
  *twin_args = twin(b);
}
#define ENTER(p, field, b) enter(&(p)->desc.field, &(p)->args.field, &(p)->twin.field, b)

typedef struct append_sizes {
  int64_t batch, rows, heads, hq, d, dv, max_len, page, tokens;
  int packed, paged, quantised;
  int64_t rows_of[4], len_of[4];
} append_sizes;

static void draw_append(append *p, append_sizes *z) {
  conf_rng *r = &p->a.r;
  z->batch = conf_range(r, 1, 3);
  z->rows = conf_range(r, 1, 9);
  z->heads = conf_range(r, 1, 3);
  z->hq = z->heads * conf_range(r, 1, 3);
  z->d = 2 * conf_range(r, 2, 24);
  z->dv = conf_chance(r, 0.5) ? z->d : 2 * conf_range(r, 2, 24);
  z->max_len = z->rows + conf_range(r, 0, 40);
  z->packed = conf_chance(r, 0.4);
  z->paged = conf_chance(r, 0.5);
  z->page = z->paged ? conf_range(r, 1, 9) : 0;
  z->tokens = 0;
  for (int64_t b = 0; b < z->batch; b++) {
    z->rows_of[b] = z->packed ? conf_range(r, 0, z->rows) : z->rows;
    z->len_of[b] = conf_range(r, 0, z->max_len - z->rows);
    z->tokens += z->rows_of[b];
  }
}

static void make_new_rows(append *p, const append_sizes *z, tsr_dtype dtype, tsr_dtype index) {
  const int64_t n0 = z->packed ? 1 : z->batch, n1 = z->packed ? z->tokens + 1 : z->rows;
  buffer *k = new_buffer(&p->a, dtype, n0, n1, z->heads, z->d, 0),
         *v = new_buffer(&p->a, dtype, n0, n1, z->heads, z->dv, 0);
  fill(&p->a, k, 1.0);
  fill(&p->a, v, 1.0);
  ENTER(p, k_new, k);
  ENTER(p, v_new, v);
  if (z->packed) {
    buffer *cu = new_buffer(&p->a, index, z->batch + 1, 1, 1, 1, 1);
    int64_t sum = 0;
    for (int64_t b = 0; !p->a.failed && b <= z->batch; b++) {
      set(cu, b, 0, 0, 0, (double)sum);
      sum += b < z->batch ? z->rows_of[b] : 0;
    }
    ENTER(p, cu_seqlens_new, cu);
    p->desc.batch = z->batch;
    p->desc.max_seqlen_new = z->rows;
  }
}

static void make_cache(append *p, const append_sizes *z, tsr_dtype dtype) {
  const int64_t pages = z->paged ? (z->max_len + z->page - 1) / z->page : 0;
  const int64_t n0 = z->paged ? pages * z->batch + 2 : z->batch, n1 = z->paged ? z->page : z->max_len;
  ENTER(p, k_cache, new_buffer(&p->a, dtype, n0, n1, z->heads, z->d, 0));
  ENTER(p, v_cache, new_buffer(&p->a, dtype, n0, n1, z->heads, z->dv, 0));
  if (z->paged) {
    buffer *t = new_buffer(&p->a, TSR_I32, z->batch, pages, 1, 1, 1);
    const int64_t turn = conf_range(&p->a.r, 0, n0 - 1); /* ids are a rotation of a zigzag: no two alike */
    for (int64_t n = 0; !p->a.failed && n < z->batch * pages; n++) {
      set(t, n / pages, n % pages, 0, 0, (double)((n0 - 1 - n + turn) % n0));
    }
    ENTER(p, block_table, t);
  }
}

static void make_append_scales(append *p, const append_sizes *z, tsr_dtype cache) {
  static const tsr_dtype dtypes[] = {TSR_F32, TSR_F16, TSR_BF16};
  const tsr_dtype dtype = dtypes[conf_range(&p->a.r, 0, 2)];
  const int64_t *k = p->desc.k_cache.shape;
  const int is_static = conf_chance(&p->a.r, 0.3), shared = is_static && conf_chance(&p->a.r, 0.5);
  const int64_t groups = conf_chance(&p->a.r, 0.5) ? 1 : 2;
  const double unit = cache == TSR_I8 ? 0.03 : cache == TSR_U4 ? 0.3 : 0.1;
  for (int n = 0; n < 2; n++) {
    buffer *s = new_buffer(&p->a, dtype, shared ? 1 : k[0], shared ? 1 : k[1], z->heads, groups, 0);
    const int64_t *m = s->layout.shape;
    for (int64_t i = 0; is_static && !p->a.failed && i < m[0] * m[1] * m[2] * m[3]; i++) {
      set(s, i / (m[3] * m[2] * m[1]), i / (m[3] * m[2]) % m[1], i / m[3] % m[2], i % m[3],
          conf_uniform(&p->a.r, unit / 2, unit * 2));
    }
    if (n == 0) {
      ENTER(p, k_scale, s);
    } else {
      ENTER(p, v_scale, s);
    }
  }
  p->desc.flags |= is_static ? TSR_APPEND_STATIC_SCALES : 0;
}

static void make_rotary(append *p, const append_sizes *z, tsr_dtype dtype) {
  static const double fractions[] = {0.5, 1.0};
  const int64_t rotary = (int64_t)((double)z->d * fractions[conf_range(&p->a.r, 0, 1)]) / 2 * 2;
  buffer *c = new_buffer(&p->a, TSR_F32, z->max_len + 4, rotary / 2, 1, 1, 1);
  buffer *s = new_buffer(&p->a, TSR_F32, z->max_len + 4, rotary / 2, 1, 1, 1);
  for (int64_t n = 0; !p->a.failed && n < (z->max_len + 4) * (rotary / 2); n++) {
    const int64_t position = n / (rotary / 2), pair = n % (rotary / 2);
    const double angle = (double)position * pow(100.0, -2.0 * (double)pair / (double)rotary);
    set(c, position, pair, 0, 0, cos(angle));
    set(s, position, pair, 0, 0, sin(angle));
  }
  ENTER(p, cos, c);
  ENTER(p, sin, s);
  p->desc.rotary_dim = rotary == z->d ? 0 : (int32_t)rotary;
  p->desc.flags |= conf_chance(&p->a.r, 0.5) ? TSR_APPEND_INTERLEAVED : 0;
  if (conf_chance(&p->a.r, 0.4)) {
    buffer *pos = new_buffer(&p->a, TSR_I32, p->desc.k_new.shape[0], p->desc.k_new.shape[1], 1, 1, 1);
    for (int64_t n = 0; !p->a.failed && n < p->desc.k_new.shape[0] * p->desc.k_new.shape[1]; n++) {
      set(pos, n / p->desc.k_new.shape[1], n % p->desc.k_new.shape[1], 0, 0,
          (double)conf_range(&p->a.r, 0, z->max_len));
    }
    ENTER(p, positions, pos);
  }
  if (conf_chance(&p->a.r, 0.5)) {
    const int64_t *n = p->desc.k_new.shape;
    buffer *q = new_buffer(&p->a, dtype, n[0], n[1], z->hq, z->d, 0);
    fill(&p->a, q, 1.0);
    ENTER(p, q, q);
    ENTER(p, q_out, new_buffer(&p->a, dtype, n[0], n[1], z->hq, z->d, 0));
  }
}

/* Everything drawn from one seed; what it is stands in the line. kind: CONF_CACHE_*, which is then there; -1: drawn. */
static void build_append(append *p, int kind, uint64_t seed) {
  static const tsr_dtype news[] = {TSR_F32, TSR_F16, TSR_BF16}, caches[] = {TSR_F8E4M3, TSR_F8E5M2, TSR_I8, TSR_U4};
  append_sizes z;
  memset(p, 0, sizeof(*p));
  memset(&z, 0, sizeof(z));
  p->a.r = conf_rng_for(seed, "append");
  p->desc = tsr_append_desc_init();
  p->args = p->twin = tsr_append_args_init();
  draw_append(p, &z);
  if (kind == CONF_CACHE_APPEND || kind == CONF_CACHE_APPEND_PAGED) {
    z.paged = kind == CONF_CACHE_APPEND_PAGED;
    z.page = z.paged ? 5 : 0;
  }
  const tsr_dtype dtype = news[conf_range(&p->a.r, 0, 2)], index = conf_chance(&p->a.r, 0.5) ? TSR_I32 : TSR_I64;
  z.quantised = conf_chance(&p->a.r, 0.6) || kind == CONF_CACHE_APPEND_QUANTISED;
  const tsr_dtype cache = z.quantised ? caches[conf_range(&p->a.r, 0, 3)] : dtype;
  make_new_rows(p, &z, dtype, index);
  make_cache(p, &z, cache);
  if (z.quantised && (cache == TSR_I8 || cache == TSR_U4 || conf_chance(&p->a.r, 0.7))) {
    make_append_scales(p, &z, cache);
  }
  buffer *len = new_buffer(&p->a, index, z.batch, 1, 1, 1, 1);
  for (int64_t b = 0; !p->a.failed && b < z.batch; b++) {
    set(len, b, 0, 0, 0, (double)z.len_of[b]);
  }
  ENTER(p, seqlens_k, len);
  if (conf_chance(&p->a.r, 0.6) || kind == CONF_CACHE_APPEND_ROTARY) {
    make_rotary(p, &z, dtype);
  }
  for (int n = 0; !p->a.failed && n < p->a.count; n++) {
    memcpy(p->a.b[n].twin, p->a.b[n].mine, (size_t)p->a.b[n].bytes);
  }
  snprintf(p->line, sizeof(p->line), "append seed=%llu (b=%lld rows=%lld heads=%lld d=%lld dv=%lld %s to %s%s%s%s)",
           (unsigned long long)seed, (long long)z.batch, (long long)z.rows, (long long)z.heads, (long long)z.d,
           (long long)z.dv, tsr_dtype_name(dtype), tsr_dtype_name(cache), z.packed ? " packed" : "",
           z.paged ? " paged" : "", p->desc.cos.dtype != TSR_DTYPE_NONE ? " rotary" : "");
}

static tsr_status run_append(conf_runner *r, conf_target *target, const tsr_plan *plan, const append *p,
                             const conf_workspace *w, tsr_error *err) {
  tsr_append_args there = p->args;
  conf_mirror m;
  tsr_status st;
  if (!target->mirrored) {
    return tsr_run_append(plan, &p->args, err);
  }
  st = arena_mirror(&p->a, w, target, &m, err);
  if (st == TSR_OK) {
    conf_mirror_map_append(&m, &there);
    st = tsr_run_append(plan, &there, err);
  }
  return conf_mirror_end(r, target, &m, st, err);
}

static const char *plan_and_run_append(conf_runner *r, conf_target *target, append *p, const char *variant, char *why,
                                       size_t bytes) {
  tsr_plan *plan = NULL;
  tsr_plan_info info;
  int64_t need = 0, align = 0;
  conf_workspace w;
  tsr_error err;
  tsr_status st;
  memset(&w, 0, sizeof(w));
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  p->desc.variant = variant;
  st = tsr_plan_append(target->device, &p->desc, &plan, &err);
  if (st == TSR_OK) {
    st = tsr_plan_get(plan, &info, &err);
  }
  if (st == TSR_OK) {
    st = tsr_plan_workspace(plan, &need, &align, &err);
  }
  if (st == TSR_OK && strcmp(info.variant, variant) != 0) {
    snprintf(why, bytes, "this variant was forced, the plan has %s", info.variant);
  } else if (st == TSR_OK && conf_workspace_make(&w, need, align, 0xa5)) {
    p->args.workspace = need > 0 ? tsr_buffer_out(w.data) : p->args.workspace;
    p->args.workspace_bytes = need;
    st = run_append(r, target, plan, p, &w, &err);
    if (st == TSR_OK && !conf_workspace_intact(&w)) {
      snprintf(why, bytes, "bytes outside the workspace were written");
    }
  }
  if (st != TSR_OK) {
    snprintf(why, bytes, "%s: %s", tsr_status_name(st), err.text);
  }
  conf_workspace_free(&w);
  tsr_plan_destroy(plan);
  return why[0] != '\0' ? why : NULL;
}

static void check_append(conf_runner *r, conf_target *target, const char *variant, int kind, uint64_t seed) {
  append p;
  tsr_error err;
  char why[480] = "";
  build_append(&p, kind, seed);
  if (!conf_begin(r, "append", p.line)) {
    arena_free(&p.a);
    return;
  }
  memset(&err, 0, sizeof(err));
  if (p.a.failed || tsr_reference_append(&p.desc, &p.twin, &err) != TSR_OK) {
    conf_fail(r, NULL, "", p.line, "the oracle: %s", p.a.failed ? "no memory" : err.text);
  } else if (plan_and_run_append(r, target, &p, variant, why, sizeof(why)) != NULL) {
    conf_fail(r, target, variant, p.line, "%s", why);
  } else {
    for (int n = 0; n < p.a.count && why[0] == '\0'; n++) {
      for (int64_t i = 0; i < p.a.b[n].bytes && why[0] == '\0'; i++) {
        if (p.a.b[n].mine[i] != p.a.b[n].twin[i]) {
          snprintf(why, sizeof(why), "tensor %d (%s [%lld,%lld,%lld,%lld]): byte %lld is 0x%02x, must be 0x%02x", n,
                   tsr_dtype_name(p.a.b[n].layout.dtype), (long long)p.a.b[n].layout.shape[0],
                   (long long)p.a.b[n].layout.shape[1], (long long)p.a.b[n].layout.shape[2],
                   (long long)p.a.b[n].layout.shape[3], (long long)(i - BAND), p.a.b[n].mine[i], p.a.b[n].twin[i]);
        }
      }
    }
    if (why[0] != '\0') {
      conf_fail(r, target, variant, p.line, "%s", why);
    } else {
      conf_pass(r, target, 0.0, p.line);
    }
  }
  arena_free(&p.a);
}

/* ---- Merge ------------------------------------------------------------------------------------------- */

enum { MAX_PARTS = 6 };

typedef struct merge {
  arena a;
  tsr_merge_desc desc;
  tsr_merge_args args;
  tsr_buffer po[MAX_PARTS], pl[MAX_PARTS];
  buffer *o, *lse, *part_o[MAX_PARTS], *part_lse[MAX_PARTS], *sink;
  char line[300];
} merge;

static void build_merge(merge *p, uint64_t seed) {
  static const tsr_dtype dtypes[] = {TSR_F32, TSR_F16, TSR_BF16};
  memset(p, 0, sizeof(*p));
  conf_rng *r = &p->a.r;
  *r = conf_rng_for(seed, "merge");
  const int64_t b = conf_range(r, 1, 3), s = conf_range(r, 1, 9), h = conf_range(r, 1, 5), dv = conf_range(r, 1, 70);
  const tsr_dtype dtype = dtypes[conf_range(r, 0, 2)], part = conf_chance(r, 0.5) ? TSR_F32 : dtype;
  const int parts = (int)conf_range(r, 1, MAX_PARTS), with_sink = conf_chance(r, 0.3);
  const int pad_state = (int)conf_next(r);
  p->desc = tsr_merge_desc_init();
  p->args = tsr_merge_args_init();
  p->desc.num_partials = parts;
  for (int n = 0; n < parts; n++) { /* one layout for all */
    conf_rng keep = *r;
    r->state = (uint64_t)(unsigned)pad_state;
    p->part_o[n] = new_buffer(&p->a, part, b, s, h, dv, 0);
    p->part_lse[n] = new_buffer(&p->a, TSR_F32, b, h, s, 1, 1);
    *r = keep;
    for (int64_t x = 0; !p->a.failed && x < b * h * s; x++) {
      const int empty = conf_chance(r, 0.25);
      const int64_t xb = x / (h * s), xh = x / s % h, xs = x % s;
      set(p->part_lse[n], xb, xh, xs, 0, empty ? -(double)INFINITY : 3.0 * conf_normal(r));
      for (int64_t c = 0; !empty && c < dv; c++) { /* o of an empty one stays NaN */
        set(p->part_o[n], xb, xs, xh, c, conf_normal(r));
      }
    }
    p->po[n] = mine(p->part_o[n]);
    p->pl[n] = mine(p->part_lse[n]);
  }
  p->desc.partial_o = p->part_o[0]->layout;
  p->desc.partial_lse = p->part_lse[0]->layout;
  p->args.partial_o = p->po;
  p->args.partial_lse = p->pl;
  p->o = new_buffer(&p->a, dtype, b, s, h, dv, 0);
  p->lse = new_buffer(&p->a, TSR_F32, b, h, s, 1, 0);
  p->desc.o = p->o->layout;
  p->desc.lse = p->lse->layout;
  p->args.o = mine(p->o);
  p->args.lse = mine(p->lse);
  if (with_sink) {
    p->sink = new_buffer(&p->a, TSR_F32, h, 1, 1, 1, 1);
    fill(&p->a, p->sink, 1.5);
    p->desc.sink = p->sink->layout;
    p->args.sink = mine(p->sink);
  }
  snprintf(p->line, sizeof(p->line), "merge seed=%llu (b=%lld s=%lld h=%lld dv=%lld, %d of %s to %s%s)",
           (unsigned long long)seed, (long long)b, (long long)s, (long long)h, (long long)dv, parts,
           tsr_dtype_name(part), tsr_dtype_name(dtype), with_sink ? ", sink" : "");
}

/* The yardstick: a fold in f32, output rounded. Returns lse; *alone: the only non-empty partial, -1: none or several.
 */
static float plain_merge(const merge *p, int64_t b, int64_t s, int64_t h, float *o, int *alone) {
  const int64_t dv = p->desc.o.shape[3];
  float lse = -(float)INFINITY;
  int count = 0;
  *alone = -1;
  memset(o, 0, (size_t)dv * sizeof(float));
  for (int n = 0; n < p->desc.num_partials + (p->sink != NULL); n++) {
    const int is_sink = n == p->desc.num_partials;
    const float x = (float)(is_sink ? get(p->sink, h, 0, 0, 0) : get(p->part_lse[n], b, h, s, 0));
    const float m = lse > x ? lse : x;
    if (x == -(float)INFINITY) {
      continue;
    }
    const float wa = expf(lse - m), wb = expf(x - m);
    for (int64_t c = 0; c < dv; c++) {
      o[c] = (o[c] * wa + (is_sink ? 0.0f : wb * (float)get(p->part_o[n], b, s, h, c))) / (wa + wb);
    }
    lse = m + logf(wa + wb);
    count++;
    *alone = count == 1 && !is_sink ? n : -1;
  }
  return lse;
}

/* The rule for one (b, h) of the merge. */
static void judge_merge(const merge *p, int64_t b, int64_t h, const double *ref_o, const double *ref_lse, double *worst,
                        char *why, size_t bytes) {
  const int64_t rows = p->desc.o.shape[1], heads = p->desc.o.shape[2], dv = p->desc.o.shape[3];
  const tsr_dtype dtype = p->desc.o.dtype;
  conf_rule values = conf_rule_begin(dtype, 2.0, 0), logs = conf_rule_begin(TSR_F32, 2.0, 1);
  float o[TSR_MAX_HEAD_DIM];
  for (int64_t s = 0; s < rows && why[0] == '\0'; s++) {
    int alone;
    const float lse = plain_merge(p, b, s, h, o, &alone);
    const double want = ref_lse[(b * heads + h) * rows + s], got = get(p->lse, b, h, s, 0);
    const int exact = isinf(want) || alone >= 0; /* one partial, or none: its bits */
    if (exact ? got != (alone >= 0 ? get(p->part_lse[alone], b, h, s, 0) : want) : !isfinite(got)) {
      snprintf(why, bytes, "lse[%lld,%lld,%lld] is %g, oracle %g", (long long)b, (long long)h, (long long)s, got, want);
    } else if (!exact) {
      conf_rule_add(&logs, s, got, want, (double)lse);
    }
    for (int64_t c = 0; c < dv && why[0] == '\0'; c++) {
      const double x = get(p->o, b, s, h, c), r = ref_o[((b * rows + s) * heads + h) * dv + c];
      uint64_t scratch = 0;
      tsr_encode(dtype, &scratch, 0, (double)o[c]);
      if (!isfinite(x) || (isinf(want) && x != 0.0) ||
          (alone >= 0 && p->desc.partial_o.dtype == dtype && x != get(p->part_o[alone], b, s, h, c))) {
        snprintf(why, bytes, "o[%lld,%lld,%lld,%lld] is %.9g, oracle %.9g (exact where there is one partial or none)",
                 (long long)b, (long long)s, (long long)h, (long long)c, x, r);
      }
      conf_rule_add(&values, s, x, r, tsr_decode(dtype, &scratch, 0));
    }
  }
  const conf_rule_result of_o = conf_rule_end(&values), of_lse = conf_rule_end(&logs);
  if (why[0] == '\0' && (of_o.max_share > 1 || of_o.rms_share > 1 || of_lse.max_share > 1)) {
    snprintf(why, bytes, "b=%lld h=%lld: error %.4g, allowed %.4g; rms %.4g, allowed %.4g; lse %.4g, allowed %.4g",
             (long long)b, (long long)h, of_o.max_error, of_o.max_allowed, of_o.rms_error, of_o.rms_allowed,
             of_lse.max_error, of_lse.max_allowed);
  }
  *worst = fmax(*worst, fmax(of_o.max_share, of_o.rms_share));
}

static tsr_status merge_on(conf_runner *r, conf_target *target, const tsr_plan *plan, const merge *p,
                           const conf_workspace *w, tsr_error *err) {
  tsr_merge_args there = p->args;
  tsr_buffer o[MAX_PARTS], lse[MAX_PARTS];
  conf_mirror m;
  tsr_status st;
  if (!target->mirrored) {
    return tsr_run_merge(plan, &p->args, err);
  }
  st = arena_mirror(&p->a, w, target, &m, err);
  if (st == TSR_OK) {
    memcpy(o, p->po, sizeof(o));
    memcpy(lse, p->pl, sizeof(lse));
    conf_mirror_map(&m, o, p->desc.num_partials);
    conf_mirror_map(&m, lse, p->desc.num_partials);
    conf_mirror_map_merge(&m, &there);
    there.partial_o = o;
    there.partial_lse = lse;
    st = tsr_run_merge(plan, &there, err);
  }
  return conf_mirror_end(r, target, &m, st, err);
}

static int run_merge(conf_runner *r, conf_target *target, const tsr_plan *plan, merge *p, tsr_error *err) {
  int64_t need = 0, align = 0;
  conf_workspace w;
  tsr_status st = tsr_plan_workspace(plan, &need, &align, err);
  if (st != TSR_OK || !conf_workspace_make(&w, need, align, 0xff)) {
    return 0;
  }
  p->args.workspace = need > 0 ? tsr_buffer_out(w.data) : p->args.workspace;
  p->args.workspace_bytes = need;
  st = merge_on(r, target, plan, p, &w, err);
  conf_workspace_free(&w);
  return st == TSR_OK;
}

static void check_merge(conf_runner *r, conf_target *target, const char *variant, uint64_t seed) {
  merge p;
  tsr_plan *plan = NULL;
  tsr_plan_info info;
  tsr_error err;
  double worst = 0.0, *o = NULL, *lse = NULL;
  char why[480] = "";
  build_merge(&p, seed);
  if (!conf_begin(r, "merge", p.line)) {
    arena_free(&p.a);
    return;
  }
  const int64_t *n = p.desc.o.shape;
  memset(&info, 0, sizeof(info));
  memset(&err, 0, sizeof(err));
  info.size = sizeof(info);
  p.desc.variant = variant;
  o = malloc((size_t)(n[0] * n[1] * n[2] * n[3]) * sizeof(double));
  lse = malloc((size_t)(n[0] * n[1] * n[2]) * sizeof(double));
  if (p.a.failed || o == NULL || lse == NULL) {
    snprintf(why, sizeof(why), "no memory");
  } else if (tsr_reference_merge(&p.desc, &p.args, o, lse, &err) != TSR_OK ||
             tsr_plan_merge(target->device, &p.desc, &plan, &err) != TSR_OK ||
             tsr_plan_get(plan, &info, &err) != TSR_OK || !run_merge(r, target, plan, &p, &err)) {
    snprintf(why, sizeof(why), "%s: %s", tsr_status_name(err.status), err.text);
  } else if (strcmp(info.variant, variant) != 0) {
    snprintf(why, sizeof(why), "this variant was forced, the plan has %s", info.variant);
  }
  for (int64_t x = 0; why[0] == '\0' && x < n[0] * n[2]; x++) {
    judge_merge(&p, x / n[2], x % n[2], o, lse, &worst, why, sizeof(why));
  }
  if (why[0] != '\0') {
    conf_fail(r, target, variant, p.line, "%s", why);
  } else {
    conf_pass(r, target, worst, p.line);
  }
  tsr_plan_destroy(plan);
  free(o);
  free(lse);
  arena_free(&p.a);
}

/* ---- Probes ------------------------------------------------------------------------------------------ */

int conf_cache_probe(const conf_target *target, int kind, uint64_t seed, char *reason, size_t bytes) {
  tsr_plan *plan = NULL;
  tsr_error err;
  reason[0] = '\0';
  memset(&err, 0, sizeof(err));
  if (kind == CONF_CACHE_MERGE) {
    merge p;
    build_merge(&p, seed);
    tsr_plan_merge(target->device, &p.desc, &plan, &err);
    arena_free(&p.a);
  } else {
    append p;
    build_append(&p, kind, seed);
    tsr_plan_append(target->device, &p.desc, &plan, &err);
    arena_free(&p.a);
  }
  if (plan == NULL) {
    snprintf(reason, bytes, "%s", err.text);
  }
  tsr_plan_destroy(plan);
  return plan != NULL;
}

/* ---- All --------------------------------------------------------------------------------------------- */

static void each_variant(conf_runner *r, conf_target *target, int kind, uint64_t seed) {
  const int32_t op = kind == CONF_CACHE_MERGE ? TSR_OP_MERGE : TSR_OP_APPEND;
  const char *v;
  for (int32_t i = 0; (v = tsr_device_variant(target->device, op, i)) != NULL; i++) {
    if (!conf_wants_variant(r, v) || target->lost) {
      continue;
    }
    if (kind == CONF_CACHE_MERGE) {
      check_merge(r, target, v, seed);
    } else {
      check_append(r, target, v, kind, seed);
    }
  }
}

void conf_cache_ops(conf_runner *r, uint64_t seed) {
  const int64_t count = r->options->suite == TSR_CONFORMANCE_FULL ? 2000 : 60;
  conf_rng seeds = conf_rng_for(seed, "cache ops");
  for (int64_t n = 0; n < count; n++) {
    const uint64_t x = conf_next(&seeds) >> 16;
    for (int t = 0; t < r->num_targets; t++) {
      if (r->targets[t].computes) {
        each_variant(r, &r->targets[t], -1, x);
        each_variant(r, &r->targets[t], (int)(n % (CONF_CACHE_MERGE + 1)), x);
        each_variant(r, &r->targets[t], CONF_CACHE_MERGE, x);
      }
    }
  }
}
