/* SPDX-License-Identifier: Apache-2.0 */
/* Promises between plans: batch invariance and workspace bounds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runner.h"

/* ---- Batch invariance ------------------------------------------------------------------------------------ */

/* Copies rows [q_from, q_from + count) and the first `keys` keys of a sequence into sequence `to_b` of another problem.
 */
static void copy_sequence(const conf_problem *from, int64_t from_b, int64_t q_from, conf_problem *to, int64_t to_b) {
  for (int64_t i = 0; i < to->len_q[to_b]; i++) {
    int64_t a0, a1, b0, b1;
    conf_locate_q(from, from_b, q_from + i, &a0, &a1);
    conf_locate_q(to, to_b, i, &b0, &b1);
    for (int64_t h = 0; h < to->c.q_heads; h++) {
      for (int64_t c = 0; c < to->c.head_dim; c++) {
        conf_put(&to->t[CONF_T_q], b0, b1, h, c, conf_get(&from->t[CONF_T_q], a0, a1, h, c));
      }
    }
  }
  for (int64_t j = 0; j < to->len_k[to_b]; j++) {
    int64_t a0, a1, b0, b1;
    conf_locate_k(from, from_b, j, &a0, &a1);
    conf_locate_k(to, to_b, j, &b0, &b1);
    for (int64_t h = 0; h < to->c.kv_heads; h++) {
      for (int64_t c = 0; c < to->c.head_dim; c++) {
        conf_put(&to->t[CONF_T_k], b0, b1, h, c, conf_get(&from->t[CONF_T_k], a0, a1, h, c));
      }
      for (int64_t c = 0; c < to->c.head_dim_v; c++) {
        conf_put(&to->t[CONF_T_v], b0, b1, h, c, conf_get(&from->t[CONF_T_v], a0, a1, h, c));
      }
    }
  }
  conf_tensor_seal(&to->t[CONF_T_q]);
  conf_tensor_seal(&to->t[CONF_T_k]);
  conf_tensor_seal(&to->t[CONF_T_v]);
}

static int same_bits(double a, double b) {
  uint64_t x, y;
  memcpy(&x, &a, sizeof(x));
  memcpy(&y, &b, sizeof(y));
  return x == y;
}

/* First row whose o or lse has other bits, -1: none. Values are compared as bits: both are of one dtype. */
static int64_t first_difference(const conf_problem *a, int64_t a_b, int64_t a_from, const conf_problem *b,
                                int64_t b_b) {
  for (int64_t i = 0; i < b->len_q[b_b]; i++) {
    int64_t a0, a1, b0, b1;
    conf_locate_q(a, a_b, a_from + i, &a0, &a1);
    conf_locate_q(b, b_b, i, &b0, &b1);
    for (int64_t h = 0; h < b->c.q_heads; h++) {
      int same = same_bits(conf_get(&a->t[CONF_T_lse], a0, h, a1, 0), conf_get(&b->t[CONF_T_lse], b0, h, b1, 0));
      for (int64_t c = 0; same && c < b->c.head_dim_v; c++) {
        same = same_bits(conf_get(&a->t[CONF_T_o], a0, a1, h, c), conf_get(&b->t[CONF_T_o], b0, b1, h, c));
      }
      if (!same) {
        return i;
      }
    }
  }
  return -1;
}

/* The base: three sequences of 70 rows over 150, 41 and 90 keys. What is common to all is in `common`. */
#define BASE "fwd b=3 hq=6 hkv=2 sq=70 sk=150 q_lens=70:30:70 kv_lens=150:41:90 batch_invariant seqlens_q seqlens_k "
/* The others; each has sequence 0 of the base, whole or its last rows, at index 0. */
static const struct {
  const char *what, *line;
} others[] = {
    {"alone", "fwd b=1 hq=6 hkv=2 sq=70 sk=150 batch_invariant "},
    {"among longer sequences",
     "fwd b=3 hq=6 hkv=2 sq=300 sk=700 q_lens=70:300:11 kv_lens=150:700:65 batch_invariant seqlens_q seqlens_k "},
    {"packed",
     "fwd b=4 hq=6 hkv=2 sq=70 sk=150 q_lens=70:3:9:1 kv_lens=150:3:77:9 batch_invariant q_packed kv_packed "},
    {"in pages of 16",
     "fwd b=2 hq=6 hkv=2 sq=70 sk=150 q_lens=70:9 kv_lens=150:80 page=16 batch_invariant q_packed kv_table seqlens_k "},
    {"in pages of 5",
     "fwd b=2 hq=6 hkv=2 sq=70 sk=150 q_lens=70:9 kv_lens=150:80 page=5 batch_invariant q_packed kv_csr "},
    {"as a decoded row",
     "fwd b=2 hq=6 hkv=2 sq=9 sk=150 q_lens=1:9 kv_lens=150:80 batch_invariant q_packed kv_packed "},
    {"in a chunk of 23 rows",
     "fwd b=2 hq=6 hkv=2 sq=23 sk=150 q_lens=23:1 kv_lens=150:3 page=16 batch_invariant q_packed kv_table seqlens_k "},
    {"in a batch of 40", "fwd b=40 hq=6 hkv=2 sq=70 sk=150 q_lens=70:1:1:2:1:1:1:5 kv_lens=150:4:9:20:1:33:64:65 "
                         "batch_invariant q_packed kv_packed "},
};
static const char *const common[] = {"d=64 dv=64 causal", "d=40 dv=24 causal f16 softcap alibi sink", "d=64 dv=64 bf16",
                                     "d=32 dv=48 causal bf16 window left=60 right=0"};
enum { OTHERS = sizeof(others) / sizeof(others[0]), COMMON = sizeof(common) / sizeof(common[0]) };

static void check_other(conf_runner *r, conf_target *target, const char *variant, const conf_problem *base,
                        const char *line, const char *what, uint64_t seed) {
  if (target->lost || !conf_begin(r, "property: batch invariance", line)) {
    return;
  }
  conf_problem *p = conf_property_problem(r, target, line, seed);
  char why[480], ran[48];
  int64_t row;
  if (p == NULL) {
    return;
  }
  /* without causal, window or ALiBi a row does not know where it stands, so its last rows are as good */
  copy_sequence(base, 0, base->len_q[0] - p->len_q[0], p, 0);
  if (conf_run_once(r, target, variant, p, ran, why, sizeof(why)) != TSR_OK) {
    conf_fail(r, target, variant, line, "%s", why);
  } else {
    row = first_difference(base, 0, base->len_q[0] - p->len_q[0], p, 0);
    if (row >= 0) {
      conf_fail(r, target, variant, line, "batch_invariant, but row %lld of sequence 0 has other bits %s",
                (long long)row, what);
    } else {
      conf_pass(r, target, 0.0, line);
    }
  }
  conf_problem_free(p);
}

static void check_invariance(conf_runner *r, conf_target *target, const char *variant, uint64_t seed) {
  char line[400], why[480], ran[48];
  for (int c = 0; c < COMMON; c++) {
    conf_problem *base;
    snprintf(line, sizeof(line), "%s%s", BASE, common[c]);
    base = conf_property_problem(r, target, line, seed);
    if (base == NULL) {
      return;
    }
    const tsr_status st = conf_run_once(r, target, variant, base, ran, why, sizeof(why));
    if (st != TSR_OK && st != TSR_UNSUPPORTED) {
      conf_fail(r, target, variant, line, "%s", why);
    }
    for (int n = 0; st == TSR_OK && n < OTHERS; n++) {
      snprintf(line, sizeof(line), "%s%s", others[n].line, common[c]);
      check_other(r, target, variant, base, line, others[n].what, seed);
    }
    conf_problem_free(base);
  }
}

/* ---- Workspace bounds -------------------------------------------------------------------------------------- */

static const char *const bound_items[] = {"causal",
                                          "f16",
                                          "kv_table seqlens_k page=16",
                                          "q_packed kv_packed bf16",
                                          "splits=7",
                                          "batch_invariant",
                                          "deterministic",
                                          "kv_i8 scale_token",
                                          "bias_f32 bias_b1 bias_h1 bias_q1 dbias sink dsink"};

/* Bound and need of a case; 0 with a failure counted. *bound -1: no variant takes it. */
static int sizes_of(conf_runner *r, conf_target *target, const char *line, uint64_t seed, int64_t *need,
                    int64_t *bound) {
  conf_problem *p = conf_property_problem(r, target, line, seed);
  tsr_plan *plan = NULL;
  tsr_error err;
  tsr_status st;
  *bound = -1;
  if (p == NULL) {
    return 0;
  }
  const tsr_attention_desc desc = conf_desc_on(target, p);
  st = tsr_plan_attention(target->device, &desc, &plan, &err);
  if (st == TSR_OK) {
    st = tsr_plan_workspace(plan, need, NULL, &err);
  }
  if (st == TSR_OK) {
    st = tsr_workspace_bound(target->device, &desc, bound, NULL, &err);
  }
  tsr_plan_destroy(plan);
  conf_problem_free(p);
  if (st != TSR_OK && st != TSR_UNSUPPORTED) {
    conf_fail(r, target, "", line, "%s", err.text);
    return 0;
  }
  return 1;
}

/* Sizes grow in turn; the bound never falls, and covers what each smaller problem needs. */
static void check_bound(conf_runner *r, conf_target *target, int op, const char *items, uint64_t seed) {
  if (!conf_begin(r, "property: workspace bound", items)) {
    return;
  }
  static const int64_t sizes[][3] = {{1, 1, 1},     {1, 1, 40},    {2, 1, 40},     {2, 17, 40},
                                     {2, 17, 700},  {3, 17, 700},  {3, 64, 700},   {3, 65, 2049},
                                     {4, 65, 2050}, {9, 65, 2050}, {9, 130, 2050}, {20, 130, 2050}};
  int64_t last_bound = 0, largest_need = 0;
  char line[300];
  for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
    int64_t need = 0, bound = 0;
    const long long b = sizes[n][0], sq = sizes[n][1], sk = sizes[n][2]; /* lengths given: totals grow, too */
    snprintf(line, sizeof(line), "%s b=%lld hq=4 hkv=2 sq=%lld sk=%lld d=4 dv=4 q_lens=%lld kv_lens=%lld %s",
             op == TSR_BACKWARD ? "bwd" : "fwd", b, sq, sk, sq, sk, items);
    if (!sizes_of(r, target, line, seed, &need, &bound)) {
      return;
    }
    if (bound < 0) {
      return;
    }
    largest_need = need > largest_need ? need : largest_need;
    if (bound < last_bound || bound < largest_need) {
      conf_fail(r, target, "", line,
                "the workspace bound is %lld; a smaller problem has bound %lld, needs up to here are %lld",
                (long long)bound, (long long)last_bound, (long long)largest_need);
      return;
    }
    last_bound = bound;
  }
  conf_pass(r, target, 0.0, line);
}

void conf_invariance(conf_runner *r, uint64_t seed) {
  for (int t = 0; t < r->num_targets; t++) {
    conf_target *target = &r->targets[t];
    const char *variant;
    for (int32_t n = 0; target->computes && (variant = tsr_device_variant(target->device, TSR_OP_FORWARD, n)) != NULL;
         n++) {
      if (conf_wants_variant(r, variant) && !target->lost && !conf_over(r)) {
        check_invariance(r, target, variant, seed);
      }
    }
    for (size_t n = 0; target->computes && n < 2 * sizeof(bound_items) / sizeof(bound_items[0]); n++) {
      if (!target->lost) {
        check_bound(r, target, (int)(n % 2), bound_items[n / 2], seed);
      }
    }
  }
}
