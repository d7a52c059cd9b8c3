/* SPDX-License-Identifier: Apache-2.0 */
/* Score and mask expressions (tessera/expression.h) as data: parse, differentiate, print, evaluate on the
 * CPU and classify a tile. Back ends that compile code emit it from the node array, never from text.
 *
 * Thread-safety: a tsr_expr never changes after it was made; everything here may be called from any
 * thread. */
#ifndef TSR_COMMON_EXPR_H
#define TSR_COMMON_EXPR_H

#include "common/alloc.h"
#include "tessera/expression.h"
#include "tessera/plan.h" /* TSR_TILE_* */

/* ---- The tree -------------------------------------------------------------------------------- */

enum {
  TSR_EXPR_KIND_SCORE = 0,
  TSR_EXPR_KIND_MASK = 1,
  TSR_EXPR_KIND_DERIVATIVE = 2 /* made by tsr__expr_derive; same language as SCORE, larger limits */
};

/* Limits of a derivative, as TSR_EXPR_MAX_NODES and TSR_EXPR_MAX_DEPTH are of a text. */
#define TSR_EXPR_MAX_DERIVATIVE_NODES 4096
#define TSR_EXPR_MAX_DERIVATIVE_DEPTH 192

enum { TSR_EXPR_I64 = 0, TSR_EXPR_F32 = 1 };

/* Operand types: ADD SUB MUL DIV MIN MAX, the comparisons and COND's branches have two operands of one
 * type; the result of an arithmetic node is of that type, of a comparison or of logic I64. */
enum {
  TSR_EXPR_OP_CONST = 0, /* value.i or value.f by type */
  TSR_EXPR_OP_VAR,       /* I64; index is a TSR_EXPR_VAR_x */
  TSR_EXPR_OP_SCORE,     /* F32 */
  TSR_EXPR_OP_SCALAR,    /* F32; index is the scalar's */
  TSR_EXPR_OP_AUX,       /* index is the tensor's; args are I64, one an axis; I64 reads i32, F32 reads f32 */
  TSR_EXPR_OP_NEG,
  TSR_EXPR_OP_NOT, /* any type to I64 */
  TSR_EXPR_OP_ADD,
  TSR_EXPR_OP_SUB,
  TSR_EXPR_OP_MUL,
  TSR_EXPR_OP_DIV, /* I64: floor, x / 0 = 0 */
  TSR_EXPR_OP_MOD, /* I64 only: sign of the divisor, x % 0 = 0 */
  TSR_EXPR_OP_LT,
  TSR_EXPR_OP_LE,
  TSR_EXPR_OP_GT,
  TSR_EXPR_OP_GE,
  TSR_EXPR_OP_EQ,
  TSR_EXPR_OP_NE,
  TSR_EXPR_OP_AND, /* operands of any types */
  TSR_EXPR_OP_OR,
  TSR_EXPR_OP_COND,   /* condition (any type), then, else */
  TSR_EXPR_OP_TO_F32, /* float() and implied conversions */
  TSR_EXPR_OP_TO_I64, /* int() */
  TSR_EXPR_OP_EXP,
  TSR_EXPR_OP_EXP2,
  TSR_EXPR_OP_LOG,
  TSR_EXPR_OP_LOG2,
  TSR_EXPR_OP_SQRT,
  TSR_EXPR_OP_TANH,
  TSR_EXPR_OP_SIN,
  TSR_EXPR_OP_COS,
  TSR_EXPR_OP_FLOOR, /* F32 only */
  TSR_EXPR_OP_ABS,
  TSR_EXPR_OP_POW,
  TSR_EXPR_OP_MIN,
  TSR_EXPR_OP_MAX,
  TSR_EXPR_OP_COUNT
};

/* The int64 variables, in the order of every array that is indexed by them. */
enum {
  TSR_EXPR_VAR_B = 0,
  TSR_EXPR_VAR_H,
  TSR_EXPR_VAR_HKV,
  TSR_EXPR_VAR_I,
  TSR_EXPR_VAR_J,
  TSR_EXPR_VAR_Q_LEN,
  TSR_EXPR_VAR_KV_LEN,
  TSR_EXPR_VAR_OFF,
  TSR_EXPR_VAR_COUNT
};

typedef struct tsr_expr_node {
  int32_t op;
  int32_t type;   /* of the result: TSR_EXPR_I64 or TSR_EXPR_F32 */
  int32_t index;  /* VAR, SCALAR, AUX; else 0 */
  int32_t n_args; /* 0..4 */
  int32_t arg[4]; /* indices of earlier nodes; unused ones 0 */
  int32_t slot;   /* temporary that holds the result; differs from those of the node's operands */
  int32_t reserved;
  union {
    int64_t i;
    float f; /* the other bytes are 0 */
  } value;   /* CONST; else 0 */
} tsr_expr_node;

/* Temporaries that evaluation may need at once; a node array that would need more is not made. */
#define TSR_EXPR_MAX_SLOTS 32

/* Element type and number of axes of a declared aux tensor. */
typedef struct tsr_expr_aux_type {
  tsr_dtype dtype; /* TSR_F32 or TSR_I32 */
  int32_t rank;    /* 1..TSR_EXPR_MAX_AUX_RANK */
} tsr_expr_aux_type;

/* One allocation. Nodes stand in evaluation order, operands before users, the result last. Equal
 * subtrees are one node, used more than once, so node[] is a graph with at most as many nodes as the tree
 * it stands for. */
typedef struct tsr_expr {
  int32_t kind;
  int32_t n_nodes;
  int32_t n_slots;       /* slots used, 1..TSR_EXPR_MAX_SLOTS */
  int32_t n_scalars;     /* declared */
  int32_t n_aux;         /* declared */
  uint32_t vars_used;    /* bit k: VAR k occurs */
  uint32_t scalars_used; /* bit k: scalar k occurs */
  uint32_t aux_used;     /* bit k: aux k occurs */
  int32_t uses_score;    /* 0 or 1 */
  int32_t reserved;
  tsr_expr_aux_type aux[TSR_EXPR_MAX_AUX];
  char scalar_name[TSR_EXPR_MAX_SCALARS][TSR_EXPR_MAX_NAME + 1];
  tsr_expr_node node[];
} tsr_expr;

/* Parses `text`. Errors: TSR_INVALID (text NULL or malformed, bad names, aux types or counts; `field` is
 * named in err and the text starts with "column N: " where a column is to blame), TSR_OUT_OF_MEMORY. *out
 * is NULL after an error. text, names and types are not kept. A score expression's result is F32. */
tsr_status tsr__expr_parse(const tsr__alloc *alloc, const char *text, int32_t kind, const char *const *scalar_names,
                           int n_scalars, const tsr_expr_aux_type *aux, int n_aux, const char *field, tsr_expr **out,
                           tsr_error *err);

/* d expr / d score of a score expression (kind SCORE): an F32 tree of kind DERIVATIVE. Errors: TSR_INVALID
 * (another kind), TSR_UNSUPPORTED (the derivative is over its limits), TSR_OUT_OF_MEMORY. *out is NULL
 * after an error. */
tsr_status tsr__expr_derive(const tsr__alloc *alloc, const tsr_expr *expr, const char *field, tsr_expr **out,
                            tsr_error *err);

/* NULL is accepted. */
void tsr__expr_destroy(const tsr__alloc *alloc, tsr_expr *expr);

/* 64 bits of the kind and the nodes, the same in every process and on every machine; scalars count by
 * index, not by name. For keys; settle a match with tsr__expr_equal. */
uint64_t tsr__expr_hash(const tsr_expr *expr);
/* 1 iff kind and nodes are the same, so that the same code would be emitted. */
int tsr__expr_equal(const tsr_expr *a, const tsr_expr *b);

/* The canonical text: explicit float(), single blanks, fewest parentheses. Parsing it with the same kind,
 * names and aux types gives an equal tree, unless it is longer than TSR_EXPR_MAX_BYTES (kind DERIVATIVE is
 * parsed without that limit). The caller frees *out with tsr__alloc_free. Errors: TSR_OUT_OF_MEMORY. */
tsr_status tsr__expr_print(const tsr__alloc *alloc, const tsr_expr *expr, char **out, tsr_error *err);

/* ---- Evaluation ------------------------------------------------------------------------------ */

/* What is given at run. A tensor's data may be NULL only if it has no element. Only those that
 * expr->scalars_used and expr->aux_used name are read. */
typedef struct tsr_expr_aux {
  const void *data;  /* element {0,0,0,0} */
  tsr_dtype dtype;   /* as declared */
  int32_t rank;      /* as declared */
  int64_t shape[4];  /* >= 0; axes below rank count */
  int64_t stride[4]; /* elements, >= 0 */
} tsr_expr_aux;

typedef struct tsr_expr_env {
  float scalar[TSR_EXPR_MAX_SCALARS];
  tsr_expr_aux aux[TSR_EXPR_MAX_AUX];
} tsr_expr_env;

/* Pairs to evaluate at once, at most. */
#define TSR_EXPR_MAX_LANES 64

/* Where the lanes are. lane[v] holds a value of variable v for each lane, or is NULL: uniform[v] for all.
 * Variables that the expression does not use need not be set. */
typedef struct tsr_expr_lanes {
  const float *score; /* a value for each lane; NULL where !expr->uses_score */
  const int64_t *lane[TSR_EXPR_VAR_COUNT];
  int64_t uniform[TSR_EXPR_VAR_COUNT];
} tsr_expr_lanes;

/* out[k] = value of a score expression or derivative for lanes 0..n-1; n in 0..TSR_EXPR_MAX_LANES. out
 * may be lanes->score. No allocation; at most 18 KiB of stack. */
void tsr__expr_eval(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_lanes *lanes, int n, float *out);

/* allow[k] = 1 iff the value is not zero, else 0. As above. */
void tsr__expr_eval_mask(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_lanes *lanes, int n,
                         uint8_t *allow);

/* ---- Classification of a tile ---------------------------------------------------------------- */

typedef struct tsr_expr_range {
  int64_t lo, hi; /* inclusive, lo <= hi */
} tsr_expr_range;

/* Class, TSR_TILE_*, of the box of all points whose variables lie in range[TSR_EXPR_VAR_COUNT]; variables that the
 * expression does not use need not be set. SKIP and FULL are proofs, by interval arithmetic: they hold for
 * every point of the box, whatever the aux tensors hold, and on every back end whose f32 + - * and
 * conversions are IEEE (no contraction), whose division is within 4 ulp and whose functions are within 32
 * ulp. For a mask expression; others answer PARTIAL. At most 2 KiB of stack. */
int32_t tsr__expr_classify(const tsr_expr *expr, const tsr_expr_env *env, const tsr_expr_range *range);

/* ---- Numbers, used by the parser and the printer ---------------------------------------------- */

/* The f32 nearest (ties to even) to the decimal number in text[0..bytes), which has the form digits with at
 * most one '.', at least one digit, and optionally e, a sign and digits. Infinity if it rounds to that.
 * Knows no locale. */
float tsr__expr_number_parse(const char *text, size_t bytes);

/* Shortest decimal text with a '.' or an exponent that parses to f (finite, sign bit clear); returns its
 * length. Knows no locale. */
#define TSR_EXPR_NUMBER_BYTES 24
int tsr__expr_number_print(float f, char out[TSR_EXPR_NUMBER_BYTES]);

#endif
