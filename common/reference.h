/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: entry points, and what its files share among themselves.
 *
 * reference*.c include only the public headers, alloc.h, status.h, dtype.h and this file, so that an error in the
 * kernels' masks, Philox, page look-up, dequantisation, rotary or expressions cannot hide here as well.
 *   reference.c           setting up, scores, softmax, output: forward
 *   reference_backward.c  gradients
 *   reference_kv.c        tensors, lengths, where row i and key j lie, dequantisation
 *   reference_mask.c      which pairs are allowed, dropout
 *   reference_expr.c      score and mask expressions
 *   reference_cache.c     merge, append */
#ifndef TSR_COMMON_REFERENCE_H
#define TSR_COMMON_REFERENCE_H

#include "common/alloc.h"
#include "common/status.h"
#include "tessera/reference.h"

/* ---- Entry points ---------------------------------------------------------------------------- */

/* These ASSUME a valid description and valid arguments on host memory (reference_api.c checks them).
 * should_stop may be NULL; it is asked once a query row. Errors: TSR_OUT_OF_MEMORY, TSR_CANCELLED, TSR_INVALID (an
 * expression that does not parse). Thread-safety: any thread. */
tsr_status tsr__reference_attention(const tsr__alloc *alloc,
                                    int32_t (*should_stop)(void *user, int64_t done, int64_t total), void *user,
                                    const tsr_attention_desc *desc, const tsr_run_args *args,
                                    const tsr_reference_out *out, tsr_error *err);
tsr_status tsr__reference_merge(const tsr_merge_desc *desc, const tsr_merge_args *args, double *o, double *lse,
                                tsr_error *err);
/* A scale that would be stored as 0 is stored as 1, as for amax 0. Values are divided by the stored scale in f32. */
tsr_status tsr__reference_append(const tsr_append_desc *desc, const tsr_append_args *args, tsr_error *err);

/* Philox4x32-10; here because a test checks it against known answers. */
void tsr__ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* ---- Tensors (reference_kv.c) ---------------------------------------------------------------- */

typedef struct tsr__ref_view {
  unsigned char *data; /* NULL: no such tensor, or one without elements */
  tsr_dtype dtype;
  int64_t shape[4];
  int64_t stride[4]; /* 0 on axes of extent 1 */
} tsr__ref_view;

tsr__ref_view tsr__ref_view_of(const tsr_layout *layout, tsr_buffer buffer);
/* Linear element index. */
int64_t tsr__ref_index(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
/* A float element. */
double tsr__ref_at(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
/* An i32, i64 or u8 element. */
int64_t tsr__ref_int(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t i3);

/* K or V with what it takes to dequantise it. */
typedef struct tsr__ref_kv {
  tsr__ref_view codes, scale, zero;
  int64_t channels;       /* of the logical tensor: groups divide these */
  double byte_value[256]; /* value of each code of an 8-bit type */
} tsr__ref_kv;

/* ---- The problem ----------------------------------------------------------------------------- */

typedef struct tsr__ref_expr tsr__ref_expr;

typedef struct tsr__ref {
  const tsr__alloc *alloc;
  int32_t (*should_stop)(void *user, int64_t done, int64_t total);
  void *user;
  int64_t rows_done, rows_total;
  const tsr_attention_desc *desc;
  const tsr_run_args *args;
  const tsr_reference_out *out;

  int plain;         /* TSR_REFERENCE_PLAIN */
  tsr_dtype s_dtype; /* plain: what S and dS are rounded to; fp8 q: f32, as nobody keeps logits in 8 bits */
  int64_t batch, q_heads, kv_heads, group, d, dv;
  double scale, softcap; /* softcap 0: none */
  uint64_t drop_below;   /* dropout: a pair is lost iff its word is below this; 0: no dropout */
  double keep_scale;
  uint32_t subkey[2];
  tsr__ref_expr *score_expr, *mask_expr; /* NULL: none */

  tsr__ref_view q, o, lse, cu_q, cu_k, seqlens_q, seqlens_k;
  tsr__ref_view block_table, kv_indptr, kv_indices, last_page_len;
  tsr__ref_view prefix, mask, mask_offsets, mask_row_strides, segments_q, segments_k, flashmask;
  tsr__ref_view block_indptr, block_indices, bias, alibi, sink, q_descale, rng_state;
  tsr__ref_view dout, dlse;
  tsr__ref_view aux[TSR_EXPR_MAX_AUX];
  tsr__ref_kv k, v;
} tsr__ref;

/* One sequence. */
typedef struct tsr__ref_seq {
  int64_t b, q_len, kv_len, off;
  int64_t q_slot, q_first; /* query row i is at [q_slot, q_first + i] of q and o */
  int64_t k_slot, k_first; /* key j, unless paged, likewise */
  int64_t prefix;
} tsr__ref_seq;

void tsr__ref_seq_init(const tsr__ref *r, int64_t b, tsr__ref_seq *seq);
/* Where key j lies on the first two axes of k and v. */
void tsr__ref_locate(const tsr__ref *r, const tsr__ref_seq *seq, int64_t j, int64_t *i0, int64_t *i1);
/* One row, decoded and dequantised. */
void tsr__ref_kv_init(tsr__ref_kv *x);
void tsr__ref_kv_row(const tsr__ref *r, const tsr__ref_kv *x, int64_t channels, const tsr__ref_seq *seq,
                     int64_t kv_head, int64_t j, double *row);
void tsr__ref_row(const tsr__ref_view *v, int64_t i0, int64_t i1, int64_t i2, int64_t channels, double *row);

/* x rounded to f32. Through memory, as gcc 12 at -O2 drops a plain (double)(float) cast where two of them are stored
 * side by side (its vectoriser joins them and then folds both conversions away). */
static inline double tsr__ref_to_f32(double x) {
  volatile float f = (float)x;
  return (double)f;
}
/* Plain: rounds to f32, or to a dtype; float64: returns x. */
static inline double tsr__ref_f32(const tsr__ref *r, double x) {
  return r->plain ? tsr__ref_to_f32(x) : x;
}
double tsr__ref_round(const tsr__ref *r, tsr_dtype dtype, double x);

/* ---- Masks (reference_mask.c) ---------------------------------------------------------------- */

int tsr__ref_allowed(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, int64_t j);
void tsr__ref_dropout_init(tsr__ref *r);
/* Sets keep[0..kv_len) to 1 or 0. */
void tsr__ref_dropout_row(const tsr__ref *r, const tsr__ref_seq *seq, int64_t h, int64_t i, uint8_t *keep);

/* ---- Expressions (reference_expr.c) ---------------------------------------------------------- */

typedef struct tsr__ref_pair {
  int64_t b, h, hkv, i, j, q_len, kv_len, off;
} tsr__ref_pair;

tsr_status tsr__ref_expr_create(const tsr__ref *r, const char *text, const char *field, tsr__ref_expr **expr,
                                tsr_error *err);
/* Value as f32 (see the file), and its derivative by score where slope is not NULL. */
double tsr__ref_expr_score(const tsr__ref_expr *expr, const tsr__ref_pair *pair, double score, double *slope);
int tsr__ref_expr_mask(const tsr__ref_expr *expr, const tsr__ref_pair *pair);

/* ---- A block of query rows of one head (reference.c) ----------------------------------------- */

enum { TSR__REF_ROWS = 8 }; /* rows that share the decoding of a key */

typedef struct tsr__ref_block {
  tsr__ref_seq seq;
  int64_t h, kv_head;
  int num_rows;
  int64_t row[TSR__REF_ROWS];     /* local i */
  int64_t stride;                 /* kv_len of the longest sequence */
  double *q;                      /* [ROWS][D] */
  double *o;                      /* [ROWS][Dv] */
  double *kv;                     /* one row of k or v */
  double *s;                      /* [ROWS][stride]: s, after the softmax p; unset where not allowed */
  uint8_t *allowed, *keep;        /* [ROWS][stride] */
  double *slope_bias, *slope_dot; /* backward, [ROWS][stride]: ds/dbias and ds/d(scale * dot); else NULL */
  double *dout, *dq;              /* backward: [ROWS][Dv], [ROWS][D]; else NULL */
  double *k_row;                  /* backward: [D] */
  double max[TSR__REF_ROWS];      /* largest allowed s; -inf: none */
  double lse[TSR__REF_ROWS];
  int empty[TSR__REF_ROWS]; /* no allowed key, or all of them at -inf */
} tsr__ref_block;

typedef tsr_status (*tsr__ref_block_fn)(tsr__ref *r, tsr__ref_block *blk, tsr_error *err);

tsr_status tsr__ref_block_init(const tsr__ref *r, int backward, tsr__ref_block *blk, tsr_error *err);
void tsr__ref_block_free(const tsr__ref *r, tsr__ref_block *blk);
/* Calls fn for all rows of head h of blk->seq, a block at a time. */
tsr_status tsr__ref_each_block(tsr__ref *r, tsr__ref_block *blk, int64_t h, tsr__ref_block_fn fn, tsr_error *err);
void tsr__ref_scores(const tsr__ref *r, tsr__ref_block *blk);
void tsr__ref_softmax(const tsr__ref *r, tsr__ref_block *blk);
void tsr__ref_output(const tsr__ref *r, tsr__ref_block *blk);
/* Weight of a kept pair: p with the dropout scale, rounded as the plain mode rounds P. */
double tsr__ref_weight(const tsr__ref *r, double p);
/* f64, or plain: f32. */
double tsr__ref_dot(const tsr__ref *r, const double *a, const double *b, int64_t n);
void tsr__ref_axpy(const tsr__ref *r, double a, const double *x, double *y, int64_t n);

tsr_status tsr__ref_backward(tsr__ref *r, tsr_error *err);

#endif
