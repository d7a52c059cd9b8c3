/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <math.h>
#include <string.h>

double conf_roundoff(tsr_dtype dtype) {
  return dtype == TSR_BF16 ? 0x1p-8 : dtype == TSR_F16 ? 0x1p-11 : 0x1p-21;
}

static double largest(tsr_dtype dtype) {
  return dtype == TSR_F16 ? 65504.0 : dtype == TSR_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

conf_rule conf_rule_begin(tsr_dtype dtype, double factor, int is_lse) {
  conf_rule rule;
  memset(&rule, 0, sizeof(rule));
  rule.dtype = dtype;
  rule.factor = factor;
  rule.is_lse = is_lse;
  return rule;
}

/* x, which stands where the true result is ref. */
static double saturate(tsr_dtype dtype, double x, double ref) {
  const double most = largest(dtype);
  if (isfinite(ref) && fabs(ref) > most * (1.0 - 2.0 * conf_roundoff(dtype)) && !isnan(x) && fabs(x) > most) {
    return copysign(most, x);
  }
  return x;
}

static double lse_slack(double ref) {
  return 0x1p-21 * fmax(1.0, fabs(ref));
}

const char *conf_rule_add(conf_rule *rule, int64_t element, double got, double ref, double plain) {
  const double seen = saturate(rule->dtype, got, ref), want = saturate(rule->dtype, ref, ref);
  const double e = fabs(seen - want), y = fabs(saturate(rule->dtype, plain, ref) - want);
  const double excess = rule->is_lse ? e - lse_slack(ref) : e;
  if (!isfinite(want)) {
    if (rule->is_lse && (isnan(want) ? !isnan(seen) : seen != want)) {
      return "must be that";
    }
    return isfinite(seen) ? "must not be finite" : NULL;
  }
  if (!isfinite(seen)) {
    return "must be finite";
  }
  if (!isfinite(y)) {
    return "the plain mode has no finite value here, so there is no yardstick";
  }
  if (rule->count == 0 || excess > rule->excess) {
    rule->excess = excess;
    rule->error = e;
    rule->got = got;
    rule->want = ref;
    rule->element = element;
  }
  rule->plain = fmax(rule->plain, y);
  rule->ref = fmax(rule->ref, fabs(want));
  rule->error_sq += e * e;
  rule->plain_sq += y * y;
  rule->ref_sq += want * want;
  rule->count++;
  return NULL;
}

static double share(double error, double allowed) {
  return error == 0.0 ? 0.0 : allowed > 0.0 ? error / allowed : (double)INFINITY;
}

conf_rule_result conf_rule_end(const conf_rule *rule) {
  const double n = (double)rule->count, u = conf_roundoff(rule->dtype), f = rule->factor;
  conf_rule_result r;
  memset(&r, 0, sizeof(r));
  if (rule->count == 0) {
    return r;
  }
  r.max_error = rule->error;
  r.max_plain = rule->plain;
  r.max_allowed = f * rule->plain + (rule->is_lse ? lse_slack(rule->want) : u * rule->ref);
  r.max_share = share(r.max_error, r.max_allowed);
  r.rms_error = sqrt(rule->error_sq / n);
  r.rms_plain = sqrt(rule->plain_sq / n);
  if (!rule->is_lse) {
    r.rms_allowed = f * r.rms_plain + u * sqrt(rule->ref_sq / n) / 2;
    r.rms_share = share(r.rms_error, r.rms_allowed);
  }
  return r;
}
