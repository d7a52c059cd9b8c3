/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a kernel: defines and pieces. */
#include <stdio.h>
#include <string.h>

#include "common/gpu_int.h"
#include "common/kernel_text.h"
#include "common/status.h"

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

/* Lines of a buffer that never overflows: what does not fit would be cut, and the compiler would say so. */
typedef struct lines {
  char *text;
  size_t used;
} lines;

static void define(lines *l, const char *name, uint32_t value) {
  if (l->used < TSR__GPU_DEFINES_BYTES) {
    const int n =
        snprintf(l->text + l->used, TSR__GPU_DEFINES_BYTES - l->used, "#define %s %uu\n", name, (unsigned)value);
    l->used += n > 0 ? (size_t)n : 0;
  }
}

static void define_number(lines *l, const char *name, int32_t value) {
  if (value != 0 && l->used < TSR__GPU_DEFINES_BYTES) {
    const int n = snprintf(l->text + l->used, TSR__GPU_DEFINES_BYTES - l->used, "#define %s %d\n", name, (int)value);
    l->used += n > 0 ? (size_t)n : 0;
  }
}

static int has_expressions(const tsr__kernel_key *key) {
  return key->score_hash != 0 || key->grad_hash != 0 || key->mask_hash != 0;
}

static void make_defines(const tsr__kernel_key *key, lines *l) {
  define(l, "TSR_K_FLAGS", key->rich ? 0xffffffffu : ~(uint32_t)TSR_RICH_FLAGS);
  define_number(l, "TSR_K_RICH", key->rich);
  define_number(l, "TSR_K_BACKWARD", files[key->kernel].backward);
  define_number(l, "TSR_K_EXPR", has_expressions(key));
  define_number(l, "TSR_K_EXPR_SCORE", key->score_hash != 0);
  define_number(l, "TSR_K_EXPR_GRAD", key->grad_hash != 0);
  define_number(l, "TSR_K_EXPR_MASK", key->mask_hash != 0);
  define_number(l, "TSR_K_TYPE", key->type);
  define_number(l, "TSR_K_K_TYPE", key->k_type);
  define_number(l, "TSR_K_V_TYPE", key->v_type);
  define_number(l, "TSR_K_DO_TYPE", key->do_type);
  define_number(l, "TSR_K_VECTOR", key->vector);
  define_number(l, "TSR_K_DIM", key->dim);
  define_number(l, "TSR_K_DIM_V", key->dim_v);
  define_number(l, "TSR_K_TILE_Q", key->tile_q);
  define_number(l, "TSR_K_TILE_K", key->tile_k);
  define_number(l, "TSR_K_THREADS", key->threads);
}

/* The pieces of a kernel's text, NULL-ended. TSR_UNSUPPORTED where this build has no such text. */
static tsr_status make_pieces(const tsr__kernel_key *key, const char *emitted, const char *pieces[TSR__GPU_MAX_PIECES],
                              tsr_error *err) {
  static const char *const base[] = {"dialect.h", "gpu.h",  "args.h",  "gpu_args.h", "seq.h",         "philox.h",
                                     "softmax.h", "mask.h", "tiles.h", "numeric.h",  "simt/element.h"};
  const kernel_file *file = &files[key->kernel];
  int n = 0;
  for (size_t i = 0; i < sizeof(base) / sizeof(base[0]); i++) {
    pieces[n++] = tsr__kernel_text_find(base[i]);
  }
  if (has_expressions(key)) {
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

tsr_status tsr__gpu_text_make(const tsr__kernel_key *key, const char *emitted, tsr__gpu_text *text, tsr_error *err) {
  lines defines = {text->defines, 0};
  text->defines[0] = '\0';
  make_defines(key, &defines);
  text->source.name = files[key->kernel].entry;
  text->source.defines = text->defines;
  text->source.emitted = emitted;
  text->source.pieces = text->pieces;
  return make_pieces(key, emitted, text->pieces, err);
}
