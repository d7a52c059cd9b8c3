/* SPDX-License-Identifier: Apache-2.0 */
/* Devices with a driver: their state, and the table of kernels that plans share. */
#include "common/gpu.h"

#include <stdio.h>
#include <string.h>

#include "common/expr_emit.h"
#include "common/gpu_int.h"
#include "common/image.h"
#include "common/kernel_text.h"
#include "common/log.h"

/* ---- Texts --------------------------------------------------------------------------------------- */

/* What a kernel is called, where its text is, and what it is made of besides. */
typedef struct kernel_file {
  const char *entry;
  const char *file;
  uint8_t attention; /* 1: has the parameter list of attention */
  uint8_t backward;  /* 1: and that of backward */
  uint8_t tile;      /* 1: built on simt/tile.h */
} kernel_file;

static const kernel_file files[TSR__KERNEL_COUNT] = {
    [TSR__KERNEL_FORWARD] = {"tsr_forward", "simt/forward.h", 1, 0, 1},
    [TSR__KERNEL_PREPARE] = {"tsr_prepare", "simt/prepare.h", 1, 0, 1},
    [TSR__KERNEL_SPLIT_MERGE] = {"tsr_split_merge", "simt/split_merge.h", 1, 0, 1},
    [TSR__KERNEL_MAX_S] = {"tsr_max_s", "simt/max_s.h", 1, 0, 1},
    [TSR__KERNEL_DROPOUT_MASK] = {"tsr_dropout_mask", "simt/dropout_mask.h", 1, 0, 1},
    [TSR__KERNEL_DELTA] = {"tsr_delta", "simt/delta.h", 1, 1, 1},
    [TSR__KERNEL_DKDV] = {"tsr_dkdv", "simt/dkdv.h", 1, 1, 1},
    [TSR__KERNEL_DQ] = {"tsr_dq", "simt/dq.h", 1, 1, 1},
    [TSR__KERNEL_DBIAS] = {"tsr_dbias", "simt/dbias.h", 1, 1, 1},
    [TSR__KERNEL_DSINK] = {"tsr_dsink", "simt/dsink.h", 1, 1, 1},
    [TSR__KERNEL_APPEND] = {"tsr_append", "simt/append.h", 0, 0, 0},
    [TSR__KERNEL_MERGE] = {"tsr_merge", "simt/merge.h", 0, 0, 0},
};

enum { MAX_PIECES = 24, DEFINES_BYTES = 1024 };

/* Lines of a buffer that never overflows: what does not fit would be cut, and the compiler would say so. */
typedef struct lines {
  char text[DEFINES_BYTES];
  size_t used;
} lines;

static void define(lines *l, const char *name, uint32_t value) {
  if (l->used < sizeof(l->text)) {
    const int n = snprintf(l->text + l->used, sizeof(l->text) - l->used, "#define %s %uu\n", name, (unsigned)value);
    l->used += n > 0 ? (size_t)n : 0;
  }
}

static void define_number(lines *l, const char *name, int32_t value) {
  if (value != 0 && l->used < sizeof(l->text)) {
    const int n = snprintf(l->text + l->used, sizeof(l->text) - l->used, "#define %s %d\n", name, (int)value);
    l->used += n > 0 ? (size_t)n : 0;
  }
}

static void make_defines(const tsr__kernel_key *key, lines *l) {
  l->used = 0;
  l->text[0] = '\0';
  define(l, "TSR_K_FLAGS", key->rich ? 0xffffffffu : ~(uint32_t)TSR_RICH_FLAGS);
  define_number(l, "TSR_K_RICH", key->rich);
  define_number(l, "TSR_K_BACKWARD", files[key->kernel].backward);
  define_number(l, "TSR_K_EXPR", key->score_hash != 0 || key->grad_hash != 0 || key->mask_hash != 0);
  define_number(l, "TSR_K_EXPR_SCORE", key->score_hash != 0);
  define_number(l, "TSR_K_EXPR_GRAD", key->grad_hash != 0);
  define_number(l, "TSR_K_EXPR_MASK", key->mask_hash != 0);
  define_number(l, "TSR_K_TYPE", key->type);
  define_number(l, "TSR_K_K_TYPE", key->k_type);
  define_number(l, "TSR_K_V_TYPE", key->v_type);
  define_number(l, "TSR_K_DO_TYPE", key->do_type);
  define_number(l, "TSR_K_VECTOR", key->vector);
  define_number(l, "TSR_K_PART", key->part);
  define_number(l, "TSR_K_DIM", key->dim);
  define_number(l, "TSR_K_DIM_V", key->dim_v);
  define_number(l, "TSR_K_TILE_Q", key->tile_q);
  define_number(l, "TSR_K_TILE_K", key->tile_k);
  define_number(l, "TSR_K_THREADS", key->threads);
}

/* The pieces of a kernel's text, NULL-ended. TSR_UNSUPPORTED where this build has no such text. */
static tsr_status make_pieces(const tsr__kernel_key *key, int with_expr, const char *emitted,
                              const char *pieces[MAX_PIECES], tsr_error *err) {
  static const char *const base[] = {"dialect.h", "gpu.h",  "args.h",  "gpu_args.h", "seq.h",         "philox.h",
                                     "softmax.h", "mask.h", "tiles.h", "numeric.h",  "simt/element.h"};
  const kernel_file *file = &files[key->kernel];
  int n = 0;
  for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
    pieces[n++] = tsr__kernel_text_find(base[i]);
  }
  if (with_expr) {
    pieces[n++] = tsr__kernel_text_find("expr.h");
    pieces[n++] = emitted;
  }
  if (file->tile) {
    pieces[n++] = tsr__kernel_text_find("simt/tile.h");
    pieces[n++] = tsr__kernel_text_find("simt/rows.h");
  } else {
    pieces[n++] = tsr__kernel_text_find("gpu_cache_args.h");
  }
  if (key->kernel == TSR__KERNEL_DKDV || key->kernel == TSR__KERNEL_DQ || key->kernel == TSR__KERNEL_DBIAS) {
    pieces[n++] = tsr__kernel_text_find("simt/backward.h");
  }
  pieces[n++] = tsr__kernel_text_find(file->file);
  pieces[n] = NULL;
  for (int i = 0; i < n; i++) {
    if (pieces[i] == NULL) {
      return tsr__fail(err, TSR_UNSUPPORTED, "", "this build has no text of the kernel %s", file->entry);
    }
  }
  return TSR_OK;
}

/* ---- Expressions of a kernel ----------------------------------------------------------------------- */

static tsr_status emit_one(const tsr__alloc *alloc, const tsr_expr *e, uint64_t hash, char **out, tsr_error *err) {
  *out = NULL;
  return hash == 0 ? TSR_OK : tsr__expr_emit(alloc, e, out, err);
}

/* All functions that the key names, one text; *out NULL: none. */
static tsr_status emit_all(const tsr__alloc *alloc, const tsr__kernel_key *key, const tsr__problem *p, char **out,
                           tsr_error *err) {
  char *text[3] = {NULL, NULL, NULL};
  size_t bytes = 1;
  tsr_status st = emit_one(alloc, p->score_expr, key->score_hash, &text[0], err);
  *out = NULL;
  if (st == TSR_OK) {
    st = emit_one(alloc, p->score_grad, key->grad_hash, &text[1], err);
  }
  if (st == TSR_OK) {
    st = emit_one(alloc, p->mask_expr, key->mask_hash, &text[2], err);
  }
  for (int i = 0; i < 3; i++) {
    bytes += text[i] != NULL ? strlen(text[i]) : 0;
  }
  if (st == TSR_OK) {
    *out = tsr__alloc_zero(alloc, bytes);
    st = *out != NULL ? TSR_OK : tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a kernel's expressions");
  }
  for (int i = 0; i < 3; i++) {
    if (st == TSR_OK && text[i] != NULL) {
      memcpy(*out + strlen(*out), text[i], strlen(text[i]) + 1);
    }
    tsr__alloc_free(alloc, text[i]);
  }
  return st;
}

static int same_expression(const tsr_expr *a, const tsr_expr *b, uint64_t hash) {
  return hash == 0 || (a != NULL && b != NULL && tsr__expr_equal(a, b));
}

static tsr_status copy_expression(const tsr__alloc *alloc, const tsr_expr *e, uint64_t hash, tsr_expr **out,
                                  tsr_error *err) {
  size_t bytes;
  *out = NULL;
  if (hash == 0) {
    return TSR_OK;
  }
  bytes = sizeof(*e) + (size_t)e->n_nodes * sizeof(e->node[0]);
  *out = tsr__alloc_zero(alloc, bytes);
  if (*out == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for an expression");
  }
  memcpy(*out, e, bytes);
  return TSR_OK;
}

/* ---- The table ------------------------------------------------------------------------------------- */

static void kernel_free(const tsr__device *dev, tsr__gpu_kernel *k) {
  const tsr__alloc *alloc = &dev->host->alloc;
  if (k->function != NULL) {
    tsr__gpu_of(dev)->driver->unload(dev, k->function);
  }
  tsr__alloc_free(alloc, k->score);
  tsr__alloc_free(alloc, k->grad);
  tsr__alloc_free(alloc, k->mask);
  tsr__alloc_free(alloc, k);
}

static tsr__gpu_kernel *table_find(const tsr__gpu_device *gpu, const tsr__kernel_key *key, const tsr__problem *p) {
  for (tsr__gpu_kernel *k = gpu->kernels; k != NULL; k = k->next) {
    if (memcmp(&k->key, key, sizeof(*key)) == 0 && same_expression(k->score, p->score_expr, key->score_hash) &&
        same_expression(k->grad, p->score_grad, key->grad_hash) &&
        same_expression(k->mask, p->mask_expr, key->mask_hash)) {
      return k;
    }
  }
  return NULL;
}

/* An image that does not load (a cache file of another driver, say) gives way to the next tier's. */
static tsr_status load_source(const tsr__device *dev, const tsr__gpu_source *source, int32_t threads, void **function,
                              tsr_error *err) {
  int32_t skip = 0;
  for (;;) {
    tsr__image image;
    tsr_status st = tsr__image_get(dev, source, skip, &image, err);
    if (st != TSR_OK) {
      return st;
    }
    st = tsr__gpu_of(dev)->driver->load(dev, image.data, image.bytes, source->name, threads, function, err);
    skip |= image.tier;
    tsr__image_free(dev->host, &image);
    if (st != TSR_INVALID || (skip & TSR__IMAGE_COMPILED)) {
      return st == TSR_INVALID ? tsr__fail(err, TSR_DEVICE_ERROR, "", "%s: a compiled image of %s does not load",
                                           dev->name, source->name)
                               : st;
    }
    tsr__log(dev->host, TSR_LOG_WARNING, "%s: an image of %s did not load: %s", dev->name, source->name,
             err != NULL ? err->text : "");
  }
}

static tsr_status kernel_make(const tsr__device *dev, const tsr__kernel_key *key, const tsr__problem *p,
                              tsr__gpu_kernel *k, tsr_error *err) {
  const tsr__alloc *alloc = &dev->host->alloc;
  const int with_expr = key->score_hash != 0 || key->grad_hash != 0 || key->mask_hash != 0;
  const char *pieces[MAX_PIECES];
  tsr__gpu_source source = {files[key->kernel].entry, NULL, "", pieces};
  lines defines;
  char *emitted = NULL;
  tsr_status st = emit_all(alloc, key, p, &emitted, err);
  make_defines(key, &defines);
  source.defines = defines.text;
  if (st == TSR_OK) {
    source.emitted = emitted;
    st = make_pieces(key, with_expr, emitted, pieces, err);
  }
  if (st == TSR_OK) {
    st = load_source(dev, &source, key->threads, &k->function, err);
  }
  tsr__alloc_free(alloc, emitted);
  if (st == TSR_OK) {
    k->key = *key;
    st = copy_expression(alloc, p->score_expr, key->score_hash, &k->score, err);
  }
  if (st == TSR_OK) {
    st = copy_expression(alloc, p->score_grad, key->grad_hash, &k->grad, err);
  }
  return st == TSR_OK ? copy_expression(alloc, p->mask_expr, key->mask_hash, &k->mask, err) : st;
}

tsr_status tsr__gpu_kernel_get(const tsr__device *dev, const tsr__kernel_key *key, const tsr__op_problem *p,
                               const tsr__gpu_kernel **kernel, tsr_error *err) {
  tsr__gpu_device *gpu = tsr__gpu_of(dev);
  tsr__gpu_kernel *k;
  tsr_status st = TSR_OK;
  pthread_mutex_lock(&gpu->lock);
  k = table_find(gpu, key, &p->attn);
  if (k == NULL) {
    k = tsr__alloc_zero(&dev->host->alloc, sizeof(*k));
    st = k == NULL ? tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a kernel's entry")
                   : kernel_make(dev, key, &p->attn, k, err);
    if (st == TSR_OK) {
      k->next = gpu->kernels;
      gpu->kernels = k;
    } else if (k != NULL) {
      kernel_free(dev, k);
      k = NULL;
    }
  }
  pthread_mutex_unlock(&gpu->lock);
  *kernel = k;
  return st;
}

tsr_status tsr__gpu_prepare(const tsr__device *dev, const tsr__op_problem *p, tsr__plan_build *build, tsr_error *err) {
  for (int32_t i = 0; i < build->num_launches; i++) {
    const tsr__kernel_key key = tsr__gpu_key(&build->launches[i]);
    const tsr__gpu_kernel *kernel = NULL;
    const tsr_status st = tsr__gpu_kernel_get(dev, &key, p, &kernel, err);
    if (st != TSR_OK) {
      return st;
    }
    build->launches[i].kernel = kernel;
  }
  return TSR_OK;
}

/* ---- Devices --------------------------------------------------------------------------------------- */

tsr_status tsr__gpu_device_open(const tsr__host *host, const tsr__gpu_driver *driver, void *native, const char *arch,
                                const char *compiler, tsr__device *dev, tsr_error *err) {
  tsr__gpu_device *gpu = tsr__alloc_zero(&host->alloc, sizeof(*gpu));
  if (gpu == NULL || pthread_mutex_init(&gpu->lock, NULL) != 0) {
    tsr__alloc_free(&host->alloc, gpu);
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a device of %zu bytes", sizeof(*gpu));
  }
  gpu->driver = driver;
  gpu->native = native;
  gpu->max_threads = 1024;
  snprintf(gpu->arch, sizeof(gpu->arch), "%s", arch);
  snprintf(gpu->compiler, sizeof(gpu->compiler), "%s", compiler);
  dev->host = host;
  dev->state = gpu;
  dev->computes = 1;
  dev->host_memory = 0;
  dev->variants = tsr__gpu_variants;
  dev->num_variants = tsr__gpu_num_variants;
  return TSR_OK;
}

void tsr__gpu_device_close(tsr__device *dev) {
  tsr__gpu_device *gpu = tsr__gpu_of(dev);
  if (gpu == NULL) {
    return;
  }
  while (gpu->kernels != NULL) {
    tsr__gpu_kernel *k = gpu->kernels;
    gpu->kernels = k->next;
    kernel_free(dev, k);
  }
  pthread_mutex_destroy(&gpu->lock);
  tsr__alloc_free(&dev->host->alloc, gpu);
  dev->state = NULL;
}
