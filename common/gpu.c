/* SPDX-License-Identifier: Apache-2.0 */
/* Devices with a driver: their state, and the table of kernels that plans share. */
#include "common/gpu.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/expr_emit.h"
#include "common/gpu_int.h"
#include "common/image.h"
#include "common/log.h"

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
  tsr__gpu_text text;
  char *emitted = NULL;
  tsr_status st = emit_all(alloc, key, p, &emitted, err);
  if (st == TSR_OK) {
    st = tsr__gpu_text_make(key, emitted, &text, err);
  }
  if (st == TSR_OK) {
    st = load_source(dev, &text.source, key->threads, &k->function, err);
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

/* ---- Processes ------------------------------------------------------------------------------------- */

int tsr__gpu_forked(atomic_int *user_process) {
  const int user = atomic_load_explicit(user_process, memory_order_relaxed);
  return user != 0 && user != (int)getpid();
}

tsr_status tsr__gpu_enter(atomic_int *user_process, const char *runtime, tsr_error *err) {
  const int self = (int)getpid();
  int user = 0;
  if (!atomic_compare_exchange_strong_explicit(user_process, &user, self, memory_order_relaxed, memory_order_relaxed) &&
      user != self) {
    return tsr__fail(err, TSR_FORKED, "",
                     "the parent process used %s, which does not survive fork(); fork before, or exec", runtime);
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
