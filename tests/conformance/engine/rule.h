/* SPDX-License-Identifier: Apache-2.0 */
/* The tolerance rule, of which there is one: for this suite, the graveyard and `tessera run --check`.
 *
 * For each (b, h), against float64: largest error <= f x plain's + u max|ref|, and root of the mean square <= f x
 * plain's
 * + u rms(ref) / 2, with f = 2 (gradients: 3) and u the roundoff of the output: 2^-8 bf16, 2^-11 f16, 8 x 2^-24 f32.
 * LSE and max_s: <= f x plain's largest + 2^-21 max(1, |lse|), for each element.
 * Where the true result does not fit the type, its largest value and the infinity beyond it are the same. Where it is
 * not finite, neither is the output; which of them is only asked of LSE and max_s. */
#ifndef TSR_TESTS_CONFORMANCE_RULE_H
#define TSR_TESTS_CONFORMANCE_RULE_H

#include <stdint.h>

#include "tessera/tessera.h"

/* Unit roundoff of an output's type. */
double conf_roundoff(tsr_dtype dtype);

/* The values of one (b, h), being compared. */
typedef struct conf_rule {
  tsr_dtype dtype;
  int is_lse;
  double factor;
  double plain, ref;                 /* largest */
  double error_sq, plain_sq, ref_sq; /* sums */
  int64_t count;
  /* Of the largest error; LSE: of the largest beyond the element's own share of the limit. */
  double error, excess, got, want;
  int64_t element;
} conf_rule;

conf_rule conf_rule_begin(tsr_dtype dtype, double factor, int is_lse);
/* One value; element: any number to tell it by. NULL, or what is wrong with it whatever the tolerance. */
const char *conf_rule_add(conf_rule *rule, int64_t element, double got, double ref, double plain);

typedef struct conf_rule_result {
  double max_error, max_allowed;
  double rms_error, rms_allowed; /* allowed: LSE 0, as it is not asked */
  double max_share, rms_share;   /* of what is allowed; above 1: too much */
  double max_plain, rms_plain;   /* the yardstick's */
} conf_rule_result;
/* All zero if there were no values. */
conf_rule_result conf_rule_end(const conf_rule *rule);

#endif
