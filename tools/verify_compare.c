/* SPDX-License-Identifier: Apache-2.0 */
#include "verify_compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct group {
  conf_rule rule;
  int64_t count, wrong;
} group;

void compare_poison(double *values, int64_t count) {
  memset(values, 0xFF, (size_t)count * sizeof(*values));
}

static int is_poison(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits == UINT64_MAX;
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
          const double got = tsr_decode(l->dtype, in->data, row + at[3] * l->stride[3]);
          g->count++;
          g->wrong += conf_rule_add(&g->rule, linear, got, in->reference[linear], plain) != NULL;
        }
      }
    }
  }
}

/* Judges a group; returns how far it goes towards its limits (above 1: failed). Without a yardstick the largest error
 * is judged alone, by what --expect allows. */
static double judge(const compare_input *in, const group *g, verify_result *r) {
  const conf_rule_result of = conf_rule_end(&g->rule);
  double share = fmax(of.max_share, of.rms_share);
  r->max_error = of.max_error;
  r->max_allowed = of.max_allowed;
  r->rms_error = of.rms_error;
  r->rms_allowed = of.rms_allowed;
  r->plain_max_error = of.max_plain;
  if (!in->plain) {
    r->max_allowed = in->tolerance > 0 ? in->tolerance : in->roundoff * g->rule.ref;
    r->rms_allowed = 0;
    share = of.max_error == 0 ? 0 : of.max_error / r->max_allowed;
  }
  return g->wrong > 0 ? INFINITY : share;
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
  for (int64_t i = 0; i < num_groups; i++)
    groups[i].rule = conf_rule_begin(in->layout->dtype, in->plain_factor, in->lse);
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
