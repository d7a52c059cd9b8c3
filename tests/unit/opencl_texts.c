/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the texts of the portable kernels as OpenCL C, one file each, for compilers that run without a device
 * (ci/ocloc):
 *
 *   opencl_texts FOLDER [all]
 *
 * Each kernel, plain and with every feature; with "all" also for every element type and class of the head dimension. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/expr_emit.h"
#include "common/gpu_int.h"
#include "common/image.h"
#include "tessera/tessera.h"

static const char *folder;
static int num_written;

static void die(const char *what, const char *why) {
  fprintf(stderr, "opencl_texts: %s: %s\n", what, why);
  exit(1);
}

/* ---- A device that writes down what it is asked to compile ------------------------------------- */

static tsr_status write_text(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                             tsr_error *err) {
  char path[1024];
  FILE *out;
  (void)err;
  snprintf(path, sizeof(path), "%s/%03d_%s.cl", folder, num_written++, source->name);
  out = fopen(path, "w");
  if (out == NULL) {
    die(path, "cannot be written");
  }
  fputs(source->defines, out);
  for (const char *const *p = source->pieces; *p != NULL; p++) {
    fprintf(out, "%s\n", *p);
  }
  if (ferror(out) || fclose(out) != 0) {
    die(path, "write error");
  }
  *bytes = 1;
  *image = tsr__alloc_zero(&dev->host->alloc, 1);
  return *image != NULL ? TSR_OK : TSR_OUT_OF_MEMORY;
}

static tsr_status load_nothing(const tsr__device *dev, const void *image, size_t bytes, const char *entry,
                               int32_t threads, void **function, tsr_error *err) {
  static int nothing;
  (void)dev;
  (void)image;
  (void)bytes;
  (void)entry;
  (void)threads;
  (void)err;
  *function = &nothing;
  return TSR_OK;
}

static void unload_nothing(const tsr__device *dev, void *function) {
  (void)dev;
  (void)function;
}

static int32_t count(const tsr__host *host, char *why_not, size_t bytes) {
  (void)host;
  (void)why_not;
  (void)bytes;
  return 1;
}

static tsr_status open_device(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  static const tsr__gpu_driver driver = {
      .language = "opencl", .compile = write_text, .load = load_nothing, .unload = unload_nothing};
  const tsr_status st = tsr__gpu_device_open(host, &driver, NULL, "text", "text", dev, err);
  (void)index;
  dev->num_threads = 64;
  dev->local_bytes = 48 * 1024;
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE;
  return st;
}

static const tsr__backend writer = {
    .abi = TSR__BACKEND_ABI,
    .name = "writer",
    .computes = 1,
    .count = count,
    .open = open_device,
    .close = tsr__gpu_device_close,
    .prepare = tsr__gpu_prepare,
};

const tsr__backend *const tsr__backends[] = {&writer, NULL};
const tsr__embedded_image tsr__embedded_images[] = {{NULL, NULL, NULL, 0}};

/* ---- Problems ---------------------------------------------------------------------------------- */

enum { B = 2, H = 4, SQ = 128, SK = 256 };

static void plan(tsr_device *device, const tsr_attention_desc *d, const char *what) {
  tsr_plan *p = NULL;
  tsr_error err;
  if (tsr_plan_attention(device, d, &p, &err) != TSR_OK) {
    die(what, err.text);
  }
  tsr_plan_destroy(p);
}

static tsr_attention_desc plain(tsr_dtype type, int64_t dim, int64_t dim_v, int64_t rows, int32_t align) {
  tsr_attention_desc d = tsr_attention_desc_init();
  d.q = tsr_layout_dense(type, B, rows, H, dim);
  d.k = tsr_layout_dense(type, B, SK, H, dim);
  d.v = tsr_layout_dense(type, B, SK, H, dim_v);
  d.o = tsr_layout_dense(type == TSR_F8E4M3 ? TSR_F16 : type, B, rows, H, dim_v);
  d.lse = tsr_layout_dense(TSR_F32, B, H, rows, 1);
  d.q.align_bytes = d.k.align_bytes = d.v.align_bytes = align;
  return d;
}

static void make_backward(tsr_attention_desc *d) {
  d->op = TSR_BACKWARD;
  d->dout = d->o;
  d->dq = d->q;
  d->dk = d->k;
  d->dv = d->v;
}

/* Everything that has code of its own, at once. */
static void add_features(tsr_attention_desc *d, int64_t rows) {
  d->flags |= TSR_CAUSAL | TSR_WINDOW | TSR_SOFTCAP | TSR_DROPOUT;
  d->window_left = 100;
  d->mask = tsr_layout_dense(TSR_U8, B, H, rows, SK);
  d->bias = tsr_layout_dense(TSR_F16, B, H, rows, SK);
  d->alibi_slopes = tsr_layout_dense(TSR_F32, 1, H, 1, 1);
  d->sink = tsr_layout_dense(TSR_F32, H, 1, 1, 1);
  d->segments_q = tsr_layout_dense(TSR_I32, B, rows, 1, 1);
  d->segments_k = tsr_layout_dense(TSR_I32, B, SK, 1, 1);
  d->seqlens_q = d->seqlens_k = tsr_layout_dense(TSR_I32, B, 1, 1, 1);
  if (d->op == TSR_BACKWARD) {
    d->dbias = d->bias;
    d->dsink = d->sink;
    d->dlse = d->lse;
  } else {
    d->max_s = tsr_layout_dense(TSR_F32, H, 1, 1, 1);
    d->dropout_mask = tsr_layout_dense(TSR_U8, B, H, rows, SK);
  }
}

static void add_expressions(tsr_attention_desc *d) {
  d->score_expr = "score * 0.5 + tanh(score) + aux0[h]";
  d->mask_expr = "i >= j || j < 3";
  d->num_aux = 1;
  d->aux[0] = tsr_layout_dense(TSR_F32, H, 1, 1, 1);
}

static void plan_kinds(tsr_device *device, tsr_dtype type, int64_t dim, int64_t dim_v, int32_t align) {
  tsr_attention_desc d = plain(type, dim, dim_v, SQ, align);
  plan(device, &d, "forward");
  add_features(&d, SQ);
  plan(device, &d, "forward with features");
  d = plain(type, dim, dim_v, 1, align);
  d.num_splits = 2;
  plan(device, &d, "decoding");
  if (type <= TSR_BF16) {
    d = plain(type, dim, dim_v, SQ, align);
    make_backward(&d);
    plan(device, &d, "backward");
    add_features(&d, SQ);
    plan(device, &d, "backward with features");
  }
}

static void plan_expressions(tsr_device *device) {
  tsr_attention_desc d = plain(TSR_F32, 64, 64, SQ, 0);
  add_expressions(&d);
  plan(device, &d, "forward with expressions");
  make_backward(&d);
  plan(device, &d, "backward with expressions");
}

static void plan_quantised(tsr_device *device, tsr_dtype kv) {
  tsr_attention_desc d = plain(TSR_F16, 128, 128, SQ, 16);
  d.k = tsr_layout_dense(kv, B, SK, H, 128);
  d.v = d.k;
  d.k_scale = d.v_scale = tsr_layout_dense(TSR_F32, 1, SK, H, 1);
  plan(device, &d, "quantised keys and values");
}

static void plan_others(tsr_device *device) {
  tsr_append_desc a = tsr_append_desc_init();
  tsr_merge_desc m = tsr_merge_desc_init();
  tsr_plan *p = NULL;
  tsr_error err;
  a.k_new = a.v_new = tsr_layout_dense(TSR_F16, 1, 1, 8, 128);
  a.k_cache = a.v_cache = tsr_layout_dense(TSR_F16, 1, 1024, 8, 128);
  if (tsr_plan_append(device, &a, &p, &err) != TSR_OK) {
    die("append", err.text);
  }
  tsr_plan_destroy(p);
  m.num_partials = 2;
  m.o = tsr_layout_dense(TSR_F16, 1, 1, 8, 128);
  m.partial_o = tsr_layout_dense(TSR_F32, 1, 1, 8, 128);
  m.partial_lse = tsr_layout_dense(TSR_F32, 1, 8, 1, 1);
  if (tsr_plan_merge(device, &m, &p, &err) != TSR_OK) {
    die("merge", err.text);
  }
  tsr_plan_destroy(p);
}

int main(int argc, char **argv) {
  static const tsr_dtype types[] = {TSR_F32, TSR_F16, TSR_BF16, TSR_F8E4M3};
  static const int64_t dims[] = {32, 64, 128, 256, 576};
  static const tsr_dtype quantised[] = {TSR_I8, TSR_U4, TSR_F8E5M2};
  const int all = argc == 3 && strcmp(argv[2], "all") == 0;
  tsr_context_params params = tsr_context_params_init();
  tsr_context *context = NULL;
  tsr_device *device = NULL;
  tsr_error err;
  if (argc < 2 || argc > 3 || (argc == 3 && !all)) {
    die("usage", "opencl_texts FOLDER [all]");
  }
  folder = argv[1];
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  if (tsr_context_create(&params, &context, &err) != TSR_OK ||
      tsr_device_open(context, "writer", &device, &err) != TSR_OK) {
    die("device", err.text);
  }
  plan_kinds(device, TSR_F16, 128, 128, 16);
  plan_quantised(device, TSR_U4);
  plan_expressions(device);
  plan_others(device);
  for (int t = 0; all && t < 4; t++) {
    for (int n = 0; n < 5; n++) {
      plan_kinds(device, types[t], dims[n], dims[n] == 576 ? 512 : dims[n], n % 2 ? 0 : 16);
    }
  }
  for (int t = 0; all && t < 3; t++) {
    plan_quantised(device, quantised[t]);
  }
  tsr_device_close(device);
  tsr_context_destroy(context);
  printf("%d kernels\n", num_written);
  return 0;
}
