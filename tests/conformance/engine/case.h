/* SPDX-License-Identifier: Apache-2.0 */
/* A case: one description of an attention problem, shared by tests and benchmarks. It is a line of text, too, which is
 * what a failure prints and what runs it again: bwd b=2 hq=6 hkv=2 sq=17 sk=33 d=64 dv=64 seed=7 q_packed causal f16
 * bias_inf ... */
#ifndef TSR_TESTS_CONFORMANCE_CASE_H
#define TSR_TESTS_CONFORMANCE_CASE_H

#include "items.h"
#include "rng.h"
#include "tessera/tessera.h"

enum {
  CONF_MAX_LENS = 8,
  CONF_DRAWN = -2 /* a number that the seed decides */
};

enum { CONF_UNDRAWN_NOTHING = 0, CONF_UNDRAWN_SEED = 1, CONF_UNDRAWN_SIZES = 2 /* and the seed */ };

typedef struct conf_case {
  int32_t op;         /* TSR_FORWARD, TSR_BACKWARD */
  int32_t num_splits; /* with CONF_splits; 0: drawn */
  int64_t batch, q_heads, kv_heads;
  int64_t seqlen_q, seqlen_k; /* longest */
  int64_t head_dim, head_dim_v;
  int64_t page_size; /* of paged cases; 0: drawn */
  uint64_t seed;
  /* Lengths of the sequences, repeated to the batch; 0 of them: drawn where an item makes them vary, else the longest.
   * Packed and CSR: lengths of the slots; other arrangements: need CONF_seqlens_*. */
  int32_t num_lens;
  int64_t q_lens[CONF_MAX_LENS], kv_lens[CONF_MAX_LENS];
  int64_t window_left, window_right, chunk; /* CONF_DRAWN unless given */
  double scale, softcap, dropout_p;         /* < 0: drawn */
  conf_set items;
  /* Not part of what it is: where it comes from, e.g. "pairs-12", and what conf_case_draw has still to choose. */
  char name[64];
  int32_t undrawn; /* CONF_UNDRAWN_* */
  double max_work; /* of CONF_UNDRAWN_SIZES */
} conf_case;

conf_case conf_case_init(void);
/* True if the case has the item and its direction knows it. */
int conf_case_has(const conf_case *c, int item);
/* Chooses sizes that suit the items: tiny ones, sometimes spanning several tiles. */
void conf_case_draw_sizes(conf_case *c, conf_rng *r);
/* Multiply-adds of the oracle, about. */
double conf_case_work(const conf_case *c);

/* The line; returns its length (as snprintf). */
int conf_case_print(const conf_case *c, char *text, size_t bytes);
/* Reads a line; 0, or -1 with the reason in why. Items need not be complete: defaults are added. */
int conf_case_parse(const char *text, conf_case *c, char *why, size_t why_bytes);

/* ---- The tensors of a case -------------------------------------------------------------------- */

/* Names as in tsr_attention_desc and tsr_run_args. */
// clang-format off
#define CONF_TENSORS(X) \
  X(q) X(k) X(v) X(o) X(lse) X(max_s) X(cu_seqlens_q) \
  X(cu_seqlens_k) X(seqlens_q) X(seqlens_k) X(block_table) X(kv_indptr) X(kv_indices) \
  X(last_page_len) X(prefix) X(mask) X(mask_offsets) X(mask_row_strides) X(segments_q) \
  X(segments_k) X(flashmask) X(block_indptr) X(block_indices) X(bias) X(alibi_slopes) \
  X(sink) X(k_scale) X(k_zero) X(v_scale) X(v_zero) X(q_descale) \
  X(rng_state) X(dropout_mask) X(dout) X(dlse) X(dq) X(dk) \
  X(dv) X(dbias) X(dsink)
// clang-format on

enum {
#define CONF_TENSOR_ENUM(name) CONF_T_##name,
  CONF_TENSORS(CONF_TENSOR_ENUM)
#undef CONF_TENSOR_ENUM
      CONF_T_aux0,
  CONF_T_aux1,
  CONF_T_COUNT
};

/* Memory of a tensor between guard bands. Everything that is no element, and every element that is not used, holds a
 * pattern that is a NaN in any float type. */
typedef struct conf_tensor {
  const char *name;
  tsr_layout layout;  /* dtype NONE: no such tensor */
  unsigned char *raw; /* NULL: shares the memory of another one */
  int64_t raw_bytes;
  unsigned char *data; /* element 0 */
  int output;
  unsigned char *owned; /* outputs: a flag a byte of raw, 1 = of an element that a run has to write */
  uint64_t hash;        /* inputs: of raw, when the case was built */
} conf_tensor;

typedef struct conf_problem {
  conf_case c;
  tsr_attention_desc desc; /* complete but for `variant` */
  tsr_run_args args;       /* complete but for the workspace */
  conf_tensor t[CONF_T_COUNT];
  int64_t batch_plan;         /* of the description; c.batch are run */
  int64_t *slot_q, *slot_k;   /* lengths of the slots, [batch] */
  int64_t *len_q, *len_k;     /* used lengths, [batch] */
  int64_t *first_q, *first_k; /* packed: first row of a sequence, else 0 */
  int64_t *pages;             /* paged: [batch][pages_per_seq] page of a sequence's keys */
  int64_t pages_per_seq;
  int64_t num_pages;
  tsr_dtype dtype, k_dtype, v_dtype, o_dtype, index_dtype;
  int paged;
  const char *scalar_names[3];
} conf_problem;

/* Allocates and fills everything. NULL: no memory. */
conf_problem *conf_problem_build(const conf_case *c);
void conf_problem_free(conf_problem *p);

/* A tensor's place in the description and in the arguments, by its number; bytes from its first element to its last. */
const tsr_layout *conf_field_layout(const tsr_attention_desc *desc, int id);
tsr_buffer *conf_field_buffer(tsr_run_args *args, int id);
int64_t conf_span_bytes(const tsr_layout *l);

/* The output patterns anew; o and lse of backward are inputs and stay. */
void conf_problem_poison(conf_problem *p);
/* NULL, or which byte was touched that must not be: guards and unused elements of outputs, anything of inputs. */
const char *conf_problem_intact(const conf_problem *p, char *text, size_t bytes);

/* Elements of tensors. */
int64_t conf_index(const conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
double conf_get(const conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
void conf_put(conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double value);
/* Marks an element of an output as one that has to be written. */
void conf_own(conf_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
/* Recomputes the hash of an input after a change on purpose. */
void conf_tensor_seal(conf_tensor *t);

/* Row i of q and its like, key j of k and its like, on the first two axes. */
void conf_locate_q(const conf_problem *p, int64_t b, int64_t i, int64_t *i0, int64_t *i1);
void conf_locate_k(const conf_problem *p, int64_t b, int64_t j, int64_t *i0, int64_t *i1);

/* May row i of head h see key j? A third reading of the masks, for poison and exact zeros; a pair that only a mask
 * expression hides counts as visible. */
int conf_visible(const conf_problem *p, int64_t b, int64_t h, int64_t i, int64_t j);

#endif
