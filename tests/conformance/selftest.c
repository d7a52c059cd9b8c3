/* SPDX-License-Identifier: Apache-2.0 */
/* Proves that the conformance suite can fail: a run is tampered with in many ways, and each has to be reported;
 * untouched, the same cases pass. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "conformance.h"
#include "engine/rule.h"

typedef struct crime {
  const char *what;     /* what is done */
  const char *line;     /* to which case */
  const char *reported; /* part of what the suite has to say */
  void (*before)(const tsr_attention_desc *desc, tsr_run_args *args);
  void (*after)(const tsr_attention_desc *desc, tsr_run_args *args);
} crime;

typedef struct court {
  const crime *crime;
  int lines;
} court;

static unsigned char *bytes_of(const tsr_buffer *b) {
  return (unsigned char *)b->ptr + b->offset_bytes;
}

/* ---- Crimes ---------------------------------------------------------------------------------------------- */

static void nudge_f32(unsigned char *at, float by) {
  float x;
  memcpy(&x, at, sizeof(x));
  x += by;
  memcpy(at, &x, sizeof(x));
}

static void change_one_value(const tsr_attention_desc *desc, tsr_run_args *args) {
  /* row 2, head 1, channel 5 of sequence 1, by a thousandth */
  const int64_t *s = desc->o.stride;
  nudge_f32(bytes_of(&args->o) + 4 * (s[0] + 2 * s[1] + s[2] + 5 * s[3]), 1e-3f);
}

static void change_f16_value(const tsr_attention_desc *desc, tsr_run_args *args) {
  unsigned char *at = bytes_of(&args->o) + 2 * desc->o.stride[1];
  uint16_t bits;
  memcpy(&bits, at, sizeof(bits));
  bits ^= 0x40; /* 64 units in the last place */
  memcpy(at, &bits, sizeof(bits));
}

static void change_lse(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  nudge_f32(bytes_of(&args->lse), 1e-4f);
}

static void change_all_a_little(const tsr_attention_desc *desc, tsr_run_args *args) {
  /* each by less than the largest error allowed, but all of them */
  const int64_t n = desc->o.shape[0] * desc->o.shape[1] * desc->o.shape[2] * desc->o.shape[3];
  for (int64_t i = 0; i < n; i++) {
    nudge_f32(bytes_of(&args->o) + 4 * i, 4e-7f);
  }
}

static void write_before(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  bytes_of(&args->o)[-1] ^= 1;
}

static void write_behind(const tsr_attention_desc *desc, tsr_run_args *args) {
  const int64_t n = desc->o.shape[0] * desc->o.shape[1] * desc->o.shape[2] * desc->o.shape[3];
  bytes_of(&args->o)[4 * n] = 0;
}

static void write_between_rows(const tsr_attention_desc *desc, tsr_run_args *args) {
  const int64_t *s = desc->o.stride, *n = desc->o.shape;
  bytes_of(&args->o)[4 * (s[2] * n[2] - 1)] ^= 1; /* the padding after the last head's channels */
}

static void write_unused_row(const tsr_attention_desc *desc, tsr_run_args *args) {
  /* the last row of sequence 1, which uses 3 of 9 */
  const int64_t *s = desc->o.stride;
  const float zero = 0.0f;
  memcpy(bytes_of(&args->o) + 4 * (s[0] + 8 * s[1]), &zero, sizeof(zero));
}

static void write_input(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  nudge_f32(bytes_of(&args->k), 1.0f);
}

static void leave_one_out(const tsr_attention_desc *desc, tsr_run_args *args) {
  const float nan = (float)NAN;
  memcpy(bytes_of(&args->o) + 4 * (desc->o.stride[1] + 3 * desc->o.stride[3]), &nan, sizeof(nan));
}

static void nan_for_zero(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc; /* row 0 sees nothing: 1e-30 is not 0 */
  const float tiny = 1e-30f;
  memcpy(bytes_of(&args->o), &tiny, sizeof(tiny));
}

static void write_past_workspace(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  bytes_of(&args->workspace)[args->workspace_bytes] ^= 1;
}

static void other_scale(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  args->scale *= 1.001f;
}

static float wrong_slopes[4];
static void other_slope(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  memcpy(wrong_slopes, bytes_of(&args->alibi_slopes), sizeof(wrong_slopes));
  wrong_slopes[3] *= 1.01f; /* one head */
  args->alibi_slopes = tsr_buffer_in(wrong_slopes);
}

static unsigned char wrong_mask[4096];
static void other_mask(const tsr_attention_desc *desc, tsr_run_args *args) {
  /* one pair of one head the other way round */
  const int64_t n = desc->mask.shape[0] * desc->mask.shape[1] * desc->mask.shape[2] * (desc->mask.shape[3] + 2);
  memcpy(wrong_mask, bytes_of(&args->mask), (size_t)n);
  unsigned char *pair = &wrong_mask[desc->mask.stride[2] + 2 * desc->mask.stride[3]];
  *pair = *pair == 0;
  args->mask = tsr_buffer_in(wrong_mask);
}

static void other_seed(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  args->offset++;
}

static void change_gradient(const tsr_attention_desc *desc, tsr_run_args *args) {
  nudge_f32(bytes_of(&args->dk) + 4 * (5 * desc->dk.stride[1]), 1e-3f);
}

static void flip_dropout_bit(const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)desc;
  bytes_of(&args->dropout_mask)[3] ^= 1;
}

#define SMALL "b=2 hq=4 hkv=2 sq=9 sk=14 d=16 dv=16 seed=11"
static const crime crimes[] = {
    {"one value changed by 1e-3", "fwd " SMALL, "max error", NULL, change_one_value},
    {"one f16 value changed", "fwd f16 " SMALL, "max error", NULL, change_f16_value},
    {"an LSE changed by 1e-4", "fwd " SMALL, "lse error", NULL, change_lse},
    {"all values changed by 4e-7", "fwd " SMALL, "error", NULL, change_all_a_little},
    {"a value never written", "fwd " SMALL, "must be finite", NULL, leave_one_out},
    {"the byte before the output written", "fwd " SMALL, "outside the tensor", NULL, write_before},
    {"the byte behind the output written", "fwd " SMALL, "outside the tensor", NULL, write_behind},
    {"padding between rows written", "fwd layout_padded " SMALL, "between the elements", NULL, write_between_rows},
    {"an unused row written", "fwd seqlens_q q_lens=9:3 kv_lens=14 " SMALL, "outside the used lengths", NULL,
     write_unused_row},
    {"an input written", "fwd " SMALL, "an input", NULL, write_input},
    {"an empty row not exactly 0", "fwd causal b=1 hq=1 hkv=1 sq=9 sk=4 d=16 dv=16 seed=11", "exactly 0", NULL,
     nan_for_zero},
    {"a byte past the workspace written", "fwd splits=3 b=1 hq=2 hkv=1 sq=2 sk=900 d=16 dv=16 seed=11", "workspace",
     NULL, write_past_workspace},
    {"another scale", "fwd scale=0.25 " SMALL, "error", other_scale, NULL},
    {"another slope of one head", "fwd alibi " SMALL, "h=3", other_slope, NULL},
    {"one pair of a mask", "fwd mask_u8 " SMALL, "error", other_mask, NULL},
    {"another dropout stream", "fwd dropout drop=0.3 " SMALL, "error", other_seed, NULL},
    {"one bit of the dropout mask", "fwd dropout dropout_mask drop=0.3 " SMALL, "dropout_mask", NULL, flip_dropout_bit},
    {"another dropout stream in backward", "bwd dropout drop=0.3 " SMALL, "error", other_seed, NULL},
    {"one value of a gradient", "bwd " SMALL, "dk[", NULL, change_gradient},
};

/* ---- Trials ---------------------------------------------------------------------------------------------- */

static void tamper(void *user, int32_t when, const tsr_attention_desc *desc, tsr_run_args *args) {
  const crime *c = ((court *)user)->crime;
  void (*act)(const tsr_attention_desc *, tsr_run_args *) = when == TSR_CONFORMANCE_BEFORE_RUN ? c->before : c->after;
  if (act != NULL) {
    act(desc, args);
  }
}

static void swallow(void *user, const char *text) {
  (void)text;
  ((court *)user)->lines++;
}

/* Runs the case on the CPU, in place or on copies; 1 if the suite says what is expected. */
static int try_case(const crime *c, int copies, int with_crime) {
  static tsr_conformance_result result;
  tsr_conformance_options options = {0};
  court court = {c, 0};
  int status;
  options.case_line = c->line;
  options.user = &court;
  options.line = swallow;
  options.tamper = with_crime ? tamper : NULL;
  options.device = "cpu";
  options.copies = copies;
  status = tsr_conformance_run(&options, &result);
  if (!with_crime) {
    if (status != 0) {
      printf("not ok: untouched, \"%s\" fails: %s\n", c->line, result.failures[0].what);
    }
    return status == 0;
  }
  if (status != 1 || result.passed != 0 || result.failed == 0 || court.lines == 0 ||
      strstr(result.failures[0].what, c->reported) == NULL || strstr(result.failures[0].line, "seed=11") == NULL) {
    printf("not ok: %s (%s): status %d, %lld passed, %lld failed, \"%s\" without \"%s\"\n", c->what, c->line, status,
           (long long)result.passed, (long long)result.failed, result.failures[0].what, c->reported);
    return 0;
  }
  printf("ok: %s: %s\n", c->what, result.failures[0].what);
  return 1;
}

/* What cannot run must not look as if it had passed. */
static int try_nothing(void) {
  static tsr_conformance_result result;
  tsr_conformance_options options = {0};
  court court = {NULL, 0};
  int ok = 1;
  options.user = &court;
  options.line = swallow;
  options.case_line = "fwd b=1";
  options.variant = "no such variant";
  ok = tsr_conformance_run(&options, &result) == 1 && result.passed == 0;
  options.variant = NULL;
  options.device = "null";
  ok = ok && tsr_conformance_run(&options, &result) == 1 && result.passed == 0;
  options.device = NULL;
  options.case_line = "fwd b=1 no_such_item";
  ok = ok && tsr_conformance_run(&options, &result) == 2 && result.failures[0].what[0] != '\0';
  options.case_line = "bwd kv_csr b=1 hq=1 hkv=1 sq=4 sk=9 d=8 dv=8"; /* forward only */
  ok = ok && tsr_conformance_run(&options, &result) == 1 && result.passed == 0;
  options.case_line = "fwd b=1"; /* a filter that chooses nothing */
  options.filter = "zzzz";
  ok = ok && tsr_conformance_run(&options, &result) == 2 && strstr(result.failures[0].what, "zzzz") != NULL;
  options.filter = "fwd";
  ok = ok && tsr_conformance_run(&options, &result) == 0 && result.cases == 1;
  printf("%s: what cannot run does not pass\n", ok ? "ok" : "not ok");
  return ok;
}

/* ---- The rule ---------------------------------------------------------------------------------------------- */

/* Two values of reference 1 and -0.5, the first off by `error` and the yardstick's by `plain`. */
static conf_rule_result judge(tsr_dtype dtype, double factor, int is_lse, double error, double plain) {
  conf_rule rule = conf_rule_begin(dtype, factor, is_lse);
  conf_rule_add(&rule, 7, 1.0 + error, 1.0, 1.0 - plain);
  conf_rule_add(&rule, 8, -0.5, -0.5, -0.5);
  return conf_rule_end(&rule);
}

static int allows(tsr_dtype dtype, double factor, int is_lse, double allowed, double plain) {
  return judge(dtype, factor, is_lse, allowed * 0.999, plain).max_share <= 1.0 &&
         judge(dtype, factor, is_lse, allowed * 1.001, plain).max_share > 1.0;
}

/* NULL if the value is fine whatever the tolerance. */
static const char *alone(tsr_dtype dtype, int is_lse, double got, double ref) {
  conf_rule rule = conf_rule_begin(dtype, 2.0, is_lse);
  return conf_rule_add(&rule, 0, got, ref, ref);
}

/* What the rule allows, by numbers worked out by hand. */
static int try_rule(void) {
  const double inf = (double)INFINITY, nan = (double)NAN;
  const conf_rule_result rms = judge(TSR_F32, 2.0, 0, 1e-6, 1e-6);
  int ok = allows(TSR_F32, 2.0, 0, 0x1p-21, 0.0) && allows(TSR_F16, 2.0, 0, 0x1p-11 + 2e-3, 1e-3) &&
           allows(TSR_BF16, 3.0, 0, 0x1p-8 + 3e-3, 1e-3) && allows(TSR_F32, 2.0, 1, 0x1p-21 + 2e-6, 1e-6);
  ok = ok && fabs(rms.rms_error - 1e-6 / sqrt(2.0)) < 1e-12 &&
       fabs(rms.rms_allowed - (2e-6 / sqrt(2.0) + 0x1p-22 * sqrt(1.25 / 2.0))) < 1e-12;
  ok = ok && alone(TSR_F32, 0, nan, inf) == NULL && alone(TSR_F32, 0, 1.0, inf) != NULL && alone(TSR_F32, 0, nan, 1.0);
  ok = ok && alone(TSR_F32, 1, -inf, -inf) == NULL && alone(TSR_F32, 1, nan, -inf) != NULL &&
       alone(TSR_F32, 1, inf, nan) != NULL;
  ok = ok && alone(TSR_F16, 0, inf, 7e4) == NULL && alone(TSR_F16, 0, inf, 6e4) != NULL &&
       alone(TSR_F32, 0, inf, 7e4) != NULL;
  printf("%s: the rule\n", ok ? "ok" : "not ok");
  return ok;
}

/* ---- Ending early ------------------------------------------------------------------------------------------ */

static int stop_now;

static int32_t should_stop(void *user) {
  (void)user;
  return stop_now;
}

static void stop_at_first_run(void *user, int32_t when, const tsr_attention_desc *desc, tsr_run_args *args) {
  (void)user;
  (void)when;
  (void)desc;
  (void)args;
  stop_now = 1;
}

static int try_ending(void) {
  static tsr_conformance_result result;
  tsr_conformance_options options = {0};
  court court = {NULL, 0};
  int ok;
  options.user = &court;
  options.line = swallow;
  options.total_seconds = 1e-9; /* over before anything begins: cases, appends and properties */
  ok = tsr_conformance_run(&options, &result) == 1 && result.ended == TSR_CONFORMANCE_ENDED_TIME && result.cases == 0 &&
       result.runs == 0 && result.skipped > 1000;
  options.total_seconds = 0;
  options.should_stop = should_stop;
  options.tamper = stop_at_first_run; /* which is broken off, and counts for nothing */
  ok = ok && tsr_conformance_run(&options, &result) == 1 && result.ended == TSR_CONFORMANCE_ENDED_STOPPED &&
       result.cases == 1 && result.runs == 0 && result.failed == 0 && court.lines == 0 && result.skipped > 1000;
  printf("%s: the suite ends when told to\n", ok ? "ok" : "not ok");
  return ok;
}

int main(void) {
  int failed = !try_nothing() + !try_rule() + !try_ending();
  for (size_t n = 0; n < sizeof(crimes) / sizeof(crimes[0]); n++) {
    for (int copies = 0; copies < 2; copies++) {
      failed += !try_case(&crimes[n], copies, 0);
      failed += !try_case(&crimes[n], copies, 1);
    }
  }
  printf("%d failed\n", failed);
  return failed != 0;
}
