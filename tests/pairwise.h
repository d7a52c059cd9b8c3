/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of tests/data/pairwise.bin: small problems that cover every feature alone and every pair of features, with
 * results from an independent NumPy script (tests/data/pairwise.py, which documents the file). For any test that wants
 * the cases. */
#ifndef TSR_TESTS_PAIRWISE_H
#define TSR_TESTS_PAIRWISE_H

#include "tessera/tessera.h"

/* Bits of an expected float64 that lies outside the used lengths: the element is not written. Poison outputs with it.
 */
#define TSR_TEST_UNTOUCHED_BITS UINT64_C(0x7ff8a5a5a5a5a5a5)
#define TSR_TEST_UNTOUCHED_BYTE 0xA5 /* the same for dropout_mask */

/* What is expected, float64, contiguous in the order of the shape of the layout of that name in `forward` or
 * `backward`; NULL: not part of the case. -0.0: exactly zero (of either sign), since nothing contributes. */
typedef struct tsr_test_expected {
  const double *o, *lse, *max_s;              /* forward */
  const uint8_t *dropout_mask;                /* forward */
  const double *dq, *dk, *dv, *dbias, *dsink; /* backward */
} tsr_test_expected;

typedef struct tsr_test_case {
  const char *name;
  const char *features; /* names separated by blanks */
  double tolerance;     /* of the float64 oracle, relative to the largest value of a tensor */
  const char *tolerance_reason;
  int has_backward; /* else `backward` and its arguments are all zero */
  /* Descriptions (memory native, variant NULL) and arguments with the inputs in them; buffers of outputs, of o and lse
   * in backward, and the workspace are NULL. Input memory ends where the layout ends, so that overreads are seen by
   * ASan. */
  tsr_attention_desc forward, backward;
  tsr_run_args forward_args, backward_args;
  tsr_test_expected expected;
} tsr_test_case;

typedef struct tsr_test_pairwise tsr_test_pairwise; /* an open file; owns all that the cases point to */

/* Reads the file. 0, or -1 with the reason in why (why_bytes of it) and *file NULL. */
int tsr_test_pairwise_open(const char *path, tsr_test_pairwise **file, char *why, size_t why_bytes);
/* The same from memory, of which nothing is kept. */
int tsr_test_pairwise_parse(const void *bytes, size_t size, tsr_test_pairwise **file, char *why, size_t why_bytes);
int32_t tsr_test_pairwise_count(const tsr_test_pairwise *file);
/* 0 <= index < count. */
const tsr_test_case *tsr_test_pairwise_case(const tsr_test_pairwise *file, int32_t index);
/* True if the case has the feature of that name. */
int tsr_test_case_has(const tsr_test_case *c, const char *feature);
void tsr_test_pairwise_close(tsr_test_pairwise *file);

/* Elements of a layout: the product of its extents. */
int64_t tsr_test_layout_count(const tsr_layout *layout);

#endif
