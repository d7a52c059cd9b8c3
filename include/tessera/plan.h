/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: validate and choose once, run many times.
 *
 * A plan is immutable, belongs to one device, and may run from many threads at once (with distinct workspaces).
 * Everything costly (validation, choice, compilation, first-use costs of a driver) happens when it is made; a run
 * enqueues a number of launches that depends on the plan alone, allocates nothing and does not synchronise (the CPU
 * back end computes and returns when done). */
#ifndef TESSERA_PLAN_H
#define TESSERA_PLAN_H

#include "tessera/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_plan tsr_plan; /* opaque */

/* Makes a plan. Errors: TSR_INVALID (the field breaks a rule), TSR_UNSUPPORTED (valid, but every variant refused: the
 * text has the last variant's reason, tsr_attention_verdicts has all), TSR_OUT_OF_MEMORY, TSR_DEVICE_ERROR.
 * On failure *plan is NULL. Thread-safety: any thread. */
TSR_API tsr_status tsr_plan_attention(tsr_device *device, const tsr_attention_desc *desc, tsr_plan **plan,
                                      tsr_error *err);
TSR_API tsr_status tsr_plan_append(tsr_device *device, const tsr_append_desc *desc, tsr_plan **plan, tsr_error *err);
TSR_API tsr_status tsr_plan_merge(tsr_device *device, const tsr_merge_desc *desc, tsr_plan **plan, tsr_error *err);
/* Gives up the caller's reference; enqueued work and captured graphs stay valid. NULL is accepted. */
TSR_API void tsr_plan_destroy(tsr_plan *plan);

/* Bytes and alignment (a power of two; align_bytes NULL: not wanted) of the workspace that a run needs; 0 bytes: none.
 * Errors: TSR_INVALID. */
TSR_API tsr_status tsr_plan_workspace(const tsr_plan *plan, int64_t *bytes, int64_t *align_bytes, tsr_error *err);
/* An upper bound that never falls when batch, seqlens or totals of the description grow: allocate once for the maxima,
 * plan smaller problems later. Errors: as tsr_plan_attention. */
TSR_API tsr_status tsr_workspace_bound(tsr_device *device, const tsr_attention_desc *desc, int64_t *bytes,
                                       int64_t *align_bytes, tsr_error *err);

/* Runs. Errors: TSR_INVALID (a buffer missing or not wanted, a length or a scalar out of its rule),
 * TSR_OUT_OF_WORKSPACE (text: bytes needed), TSR_CANCELLED, TSR_FORKED, TSR_DEVICE_ERROR, TSR_DEVICE_LOST. TSR_INVALID
 * and TSR_OUT_OF_WORKSPACE write nothing. Thread-safety: any thread, distinct workspaces. */
TSR_API tsr_status tsr_run_attention(const tsr_plan *plan, const tsr_run_args *args, tsr_error *err);
TSR_API tsr_status tsr_run_append(const tsr_plan *plan, const tsr_append_args *args, tsr_error *err);
TSR_API tsr_status tsr_run_merge(const tsr_plan *plan, const tsr_merge_args *args, tsr_error *err);

/* Plans on the context's preferred device, allocates the workspace (with the context's hooks, or on the device), runs,
 * waits for args.queue: the simple case. The tensors are where the device computes, as for any plan (memory.h copies
 * them there). args.workspace and .workspace_bytes must be 0. Errors: as tsr_device_open, tsr_plan_attention,
 * tsr_memory_alloc, tsr_run_attention and tsr_device_wait. */
TSR_API tsr_status tsr_attention_once(tsr_context *context, const tsr_attention_desc *desc, const tsr_run_args *args,
                                      tsr_error *err);

/* ---- Introspection --------------------------------------------------------------------------- */

/* One variant's answer to a description. */
typedef struct tsr_verdict {
  char variant[48];
  int32_t accepted; /* 1: could run it */
  int32_t chosen;   /* 1: a plan would take this one */
  char reason[200]; /* why not; "" when accepted */
} tsr_verdict;

/* Answers of all variants of the device, best first, into verdicts[0 .. *count). *count holds the capacity before and
 * the number of variants after, which may be more; verdicts may be NULL to ask for the number. A forced variant name is
 * not considered, only reported as chosen. Errors: TSR_INVALID (a description that is so itself; count below 0),
 * TSR_OUT_OF_MEMORY. */
TSR_API tsr_status tsr_attention_verdicts(tsr_device *device, const tsr_attention_desc *desc, tsr_verdict *verdicts,
                                          int32_t *count, tsr_error *err);

enum { TSR_OP_FORWARD = 0, TSR_OP_BACKWARD = 1, TSR_OP_APPEND = 2, TSR_OP_MERGE = 3 };

/* Name of variant `index` of a device for an operation (TSR_OP_*), best first; NULL past the end and for an unknown
 * operation. Lives as long as the device. */
TSR_API const char *tsr_device_variant(const tsr_device *device, int32_t op, int32_t index);

/* A plan in numbers. Counts of tiles, FLOPs and bytes are for the plan's maxima and for the masks known from the
 * description alone (causal, window, chunk); FLOPs count 2 a multiply-add of the matrix products. */
typedef struct tsr_plan_info {
  size_t size;
  const char *variant; /* lives as long as the plan */
  const char *backend;
  int32_t op; /* TSR_OP_* */
  int32_t num_launches;
  int32_t tile_q, tile_k; /* query rows x keys of a tile */
  int32_t num_splits;
  int32_t gqa_packed; /* query heads that share a tile; 1: none */
  int64_t workspace_bytes, workspace_align;
  int64_t tiles_total, tiles_visited; /* over batch and query heads */
  double flops;
  double bytes_read, bytes_written; /* between the tiles' memory and main memory, by the IO model of FlashAttention
                                       on a Napkin (no cache reuse across tiles is assumed beyond the model's) */
  double bytes_minimum;             /* every input read once, every output written once */
} tsr_plan_info;
/* Fills *info (its size set by the caller; counts and costs are 0 for append and merge). Errors: TSR_INVALID. */
TSR_API tsr_status tsr_plan_get(const tsr_plan *plan, tsr_plan_info *info, tsr_error *err);

/* Name of launch `index` of a plan ("forward", "merge", ...), NULL past the end. Lives as long as the plan. */
TSR_API const char *tsr_plan_launch(const tsr_plan *plan, int32_t index);

/* Classes of a tile of query rows x keys. */
enum {
  TSR_TILE_SKIP = 0,    /* no pair is allowed */
  TSR_TILE_PARTIAL = 1, /* unknown, or some are */
  TSR_TILE_FULL = 2     /* every pair is allowed (but for those that a bias of -inf masks) */
};

/* Tile classes of a plan for sequence b and query head h: writes one byte per tile, rows of query tiles, and the
 * extents to *rows and *cols (classes NULL: extents only). Of args the sizes, scalars, lengths, mask tensors and, with
 * a mask expression, aux tensors are checked and read: host memory, whatever the device (copies, where it computes on
 * memory of its own). Everything else may be as it is in a run, or NULL. capacity in bytes of classes; where it is too
 * small, the extents are written all the same. Errors: TSR_INVALID (args, b, h, capacity; the plan is of another
 * operation). */
TSR_API tsr_status tsr_plan_tiles(const tsr_plan *plan, const tsr_run_args *args, int64_t b, int64_t h,
                                  uint8_t *classes, int64_t capacity, int64_t *rows, int64_t *cols, tsr_error *err);

#ifdef __cplusplus
}
#endif
#endif
