/* SPDX-License-Identifier: Apache-2.0 */
#include "standard.h"

#include <string.h>

#include "standard_kernel.h"

static int64_t score_count(const standard_problem *p) {
  return p->batch * p->heads * p->seqlen_q * standard_row(p->seqlen_k);
}

static int64_t k_count(const standard_problem *p) {
  return p->batch * p->heads_kv * standard_panels(p->seqlen_k) * p->head_dim * STANDARD_PANEL;
}

static int64_t v_count(const standard_problem *p) {
  return p->batch * p->heads_kv * standard_panels(p->head_dim_v) * p->seqlen_k * STANDARD_PANEL;
}

int64_t standard_scratch_bytes(const standard_problem *p) {
  return 4 * (score_count(p) + k_count(p) + v_count(p));
}

void standard_attention(const standard_problem *problem, const char *isa, float *scratch) {
  const standard_scratch s = {scratch, scratch + score_count(problem),
                              scratch + score_count(problem) + k_count(problem)};
#if defined(__x86_64__)
  if (strcmp(isa, "v4") == 0) {
    standard_run_v4(problem, &s);
    return;
  }
  if (strcmp(isa, "v3") == 0) {
    standard_run_v3(problem, &s);
    return;
  }
#endif
  (void)isa;
  standard_run_base(problem, &s);
}
