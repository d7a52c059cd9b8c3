/* SPDX-License-Identifier: Apache-2.0 */
#include "verify_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct group {
  int64_t count, wrong;
  double max_reference, sum_reference;
  double max_error, sum_error; /* of what is checked; squares in the sums */
  double max_plain, sum_plain;
  double lse_excess; /* LSE: largest error - 2^-21 max(1, |lse|) */
} group;

void compare_poison(double *values, int64_t count) {
  memset(values, 0xFF, (size_t)count * sizeof(*values));
}

static int is_poison(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits == UINT64_MAX;
}

/* The reference as the output's type would hold it, where that is infinite. */
static int overflows(tsr_dtype dtype, double value) {
  unsigned char bytes[8];
  if (dtype != TSR_F16)
    return 0;
  tsr_encode(dtype, bytes, 0, value);
  return isinf(tsr_decode(dtype, bytes, 0));
}

static void add_element(const compare_input *in, group *g, double got, double want, double plain) {
  g->count++;
  if (!isfinite(want)) {
    const int same = in->lse && isinf(want) ? got == want : !isfinite(got);
    g->wrong += !same;
    return;
  }
  if (!isfinite(got)) {
    g->wrong += !(isinf(got) && overflows(in->layout->dtype, want) && (got > 0) == (want > 0));
    return;
  }
  const double error = fabs(got - want), size = fabs(want), plain_error = fabs(plain - want);
  g->max_reference = fmax(g->max_reference, size);
  g->sum_reference += want * want;
  g->max_error = fmax(g->max_error, error);
  g->sum_error += error * error;
  g->lse_excess = fmax(g->lse_excess, error - ldexp(fmax(1, size), -21));
  if (isfinite(plain_error)) {
    g->max_plain = fmax(g->max_plain, plain_error);
    g->sum_plain += plain_error * plain_error;
  }
}

static group *find_group(const compare_input *in, group *groups, const int64_t at[4]) {
  int64_t sequence = at[0], head = 0;
  if (in->grouping == GROUP_ALL)
    return groups;
  if (in->grouping == GROUP_BSHD) {
    head = at[2];
    sequence = in->sequence_of_row ? in->sequence_of_row[at[1]] : at[0];
  } else {
    head = at[1];
    if (in->grouping == GROUP_BHS && in->sequence_of_row)
      sequence = in->sequence_of_row[at[2]];
  }
  return sequence < 0 ? NULL : &groups[sequence * in->num_heads + head];
}

static void add_all(const compare_input *in, group *groups) {
  const tsr_layout *l = in->layout;
  int64_t at[4], linear = 0;
  for (at[0] = 0; at[0] < l->shape[0]; at[0]++) {
    for (at[1] = 0; at[1] < l->shape[1]; at[1]++) {
      for (at[2] = 0; at[2] < l->shape[2]; at[2]++) {
        group *g = find_group(in, groups, at);
        const int64_t row = at[0] * l->stride[0] + at[1] * l->stride[1] + at[2] * l->stride[2];
        for (at[3] = 0; at[3] < l->shape[3]; at[3]++, linear++) {
          if (!g || is_poison(in->reference[linear]))
            continue;
          const double plain = in->plain ? in->plain[linear] : in->reference[linear];
          add_element(in, g, tsr_decode(l->dtype, in->data, row + at[3] * l->stride[3]), in->reference[linear], plain);
        }
      }
    }
  }
}

/* Judges a group; returns how far it goes towards its limits (above 1: failed). */
static double judge(const compare_input *in, const group *g, verify_result *r) {
  const double n = (double)g->count;
  r->max_error = g->max_error;
  r->rms_error = sqrt(g->sum_error / n);
  r->plain_max_error = g->max_plain;
  r->rms_allowed = 0;
  if (in->tolerance > 0) {
    r->max_allowed = in->tolerance;
  } else if (in->lse) {
    r->max_allowed = in->plain_factor * g->max_plain + ldexp(fmax(1, g->max_reference), -21);
  } else {
    r->max_allowed = in->plain_factor * g->max_plain + in->roundoff * g->max_reference;
    if (in->plain)
      r->rms_allowed = in->plain_factor * sqrt(g->sum_plain / n) + in->roundoff * sqrt(g->sum_reference / n) / 2;
  }
  if (g->wrong > 0)
    return INFINITY;
  if (in->lse && g->lse_excess > in->plain_factor * g->max_plain)
    return 2 + g->lse_excess;
  double share = g->max_error == 0 ? 0 : g->max_error / r->max_allowed;
  if (r->rms_allowed > 0)
    share = fmax(share, r->rms_error / r->rms_allowed);
  return share;
}

tsr_status compare_tensor(const compare_input *in, verify_result *result, tsr_error *err) {
  const int64_t num_groups = in->grouping == GROUP_ALL ? 1 : in->num_sequences * in->num_heads;
  group *groups = calloc((size_t)num_groups + 1, sizeof(*groups));
  double worst = -1;
  memset(result, 0, sizeof(*result));
  snprintf(result->name, sizeof(result->name), "%s", in->name);
  if (!groups) {
    tool_error(err, TSR_OUT_OF_MEMORY, in->name, "no memory to compare %s", in->name);
    return err->status;
  }
  add_all(in, groups);
  result->passed = 1;
  for (int64_t i = 0; i < num_groups; i++) {
    verify_result r = *result;
    result->elements += groups[i].count;
    result->wrong_nonfinite += groups[i].wrong;
    if (groups[i].count == 0)
      continue;
    const double share = judge(in, &groups[i], &r);
    if (!(share <= 1))
      result->passed = 0;
    if (share > worst) {
      worst = share;
      result->sequence = in->grouping == GROUP_ALL ? 0 : i / in->num_heads;
      result->head = in->grouping == GROUP_ALL ? 0 : i % in->num_heads;
      result->max_error = r.max_error;
      result->max_allowed = r.max_allowed;
      result->rms_error = r.rms_error;
      result->rms_allowed = r.rms_allowed;
      result->plain_max_error = r.plain_max_error;
    }
  }
  free(groups);
  return TSR_OK;
}
