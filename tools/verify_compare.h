/* SPDX-License-Identifier: Apache-2.0 */
/* The comparison of one tensor, group by group. Used by verify.c alone. */
#ifndef TESSERA_TOOL_VERIFY_COMPARE_H
#define TESSERA_TOOL_VERIFY_COMPARE_H

#include "tests/conformance/engine/rule.h"
#include "verify.h"

/* What a group is. */
enum {
  GROUP_BSHD, /* axes b, s, h, d: one per (sequence, head) */
  GROUP_BHS,  /* axes b, h, s, 1 */
  GROUP_BHSS, /* axes b, h, q, k */
  GROUP_ALL   /* the whole tensor */
};

typedef struct compare_input {
  const char *name;
  const tsr_layout *layout;
  const void *data;
  const double *reference; /* contiguous in the layout's axes; elements of all one bits were not evaluated */
  const double *plain;     /* the same, or NULL */
  int32_t grouping;
  const int64_t *sequence_of_row; /* packed rows: their sequence, -1 for none; NULL: the first axis */
  int64_t num_sequences, num_heads;
  double plain_factor; /* 2, gradients 3 */
  int32_t lse;         /* the rule of the LSE instead */
  /* Without plain: an error is allowed up to the tolerance, or, where that is 0, up to roundoff max|reference|. */
  double tolerance, roundoff;
} compare_input;

/* Fills *result. Errors: TSR_OUT_OF_MEMORY. */
tsr_status compare_tensor(const compare_input *input, verify_result *result, tsr_error *err);

/* Marks an array as not evaluated. */
void compare_poison(double *values, int64_t count);

#endif
