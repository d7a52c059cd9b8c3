/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera info --support`: the table in Markdown, or as JSON with the answer of every variant. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "support_table.h"

enum { MAX_COLUMNS = 8, MAX_REASONS = 64, MAX_VERDICTS = 32 };

/* How well what a back end says is proved, on the rungs of the design: compiled, emulated, run on silicon. */
static const struct {
  const char *backend, *evidence;
} rungs[] = {{"cpu", "runs on silicon, against the oracle, in every test run"}};

static const char *evidence_of(const char *backend) {
  for (size_t i = 0; i < sizeof(rungs) / sizeof(rungs[0]); i++) {
    if (strcmp(rungs[i].backend, backend) == 0)
      return rungs[i].evidence;
  }
  return "none stated";
}

typedef struct table {
  tsr_device *devices[MAX_COLUMNS];
  tsr_device_info infos[MAX_COLUMNS];
  int32_t num_devices;
  char reasons[MAX_REASONS][200];
  int32_t num_reasons;
} table;

static int32_t reason_number(table *t, const char *reason) {
  for (int32_t i = 0; i < t->num_reasons; i++) {
    if (strcmp(t->reasons[i], reason) == 0)
      return i + 1;
  }
  if (t->num_reasons == MAX_REASONS)
    return MAX_REASONS;
  snprintf(t->reasons[t->num_reasons], sizeof(t->reasons[0]), "%s", reason);
  return ++t->num_reasons;
}

/* One device of every back end that computes. */
static tsr_status open_devices(table *t, tsr_context *context, tsr_error *err) {
  for (int32_t i = 0; i < tsr_backend_count(context) && t->num_devices < MAX_COLUMNS; i++) {
    tsr_backend_info backend;
    tsr_device *device;
    tsr_device_info info;
    memset(&backend, 0, sizeof(backend));
    memset(&info, 0, sizeof(info));
    backend.size = sizeof(backend);
    info.size = sizeof(info);
    tsr_status status = tsr_backend_get(context, i, &backend, err);
    if (status == TSR_OK && backend.why_not)
      continue;
    if (status == TSR_OK)
      status = tsr_device_open(context, backend.name, &device, err);
    if (status != TSR_OK)
      return status;
    status = tsr_device_get(device, &info, err);
    if (status == TSR_OK && info.computes) {
      t->devices[t->num_devices] = device;
      t->infos[t->num_devices++] = info;
    } else {
      tsr_device_close(device);
    }
    if (status != TSR_OK)
      return status;
  }
  return TSR_OK;
}

static tsr_status answers_of(const table *t, int32_t device, int32_t feature, int32_t op, tsr_verdict *verdicts,
                             int32_t *count, tsr_error *err) {
  tsr_attention_desc desc;
  *count = 0;
  if (!support_feature_desc(feature, op, &desc))
    return TSR_OK;
  *count = MAX_VERDICTS;
  const tsr_status status = tsr_attention_verdicts(t->devices[device], &desc, verdicts, count, err);
  if (status != TSR_UNSUPPORTED)
    return status;
  snprintf(verdicts[0].variant, sizeof(verdicts[0].variant), "any");
  snprintf(verdicts[0].reason, sizeof(verdicts[0].reason), "%.199s", err->text);
  verdicts[0].accepted = 0;
  *count = 1;
  return TSR_OK;
}

static tsr_status print_cell(table *t, int32_t device, int32_t feature, int32_t op, tsr_error *err) {
  tsr_verdict verdicts[MAX_VERDICTS];
  int32_t count, yes = 0;
  const tsr_status status = answers_of(t, device, feature, op, verdicts, &count, err);
  for (int32_t i = 0; status == TSR_OK && i < count; i++)
    yes |= verdicts[i].accepted;
  if (status != TSR_OK)
    return status;
  if (yes)
    printf(" yes |");
  else if (count == 0)
    printf(" - |");
  else
    printf(" no (%d) |", reason_number(t, verdicts[count - 1].reason));
  return TSR_OK;
}

static tsr_status print_table(table *t, tsr_error *err) {
  tsr_status status = TSR_OK;
  printf("| feature |");
  for (int32_t d = 0; d < t->num_devices; d++)
    printf(" %s forward | %s backward |", t->infos[d].backend, t->infos[d].backend);
  printf("\n|---|");
  for (int32_t d = 0; d < t->num_devices; d++)
    printf("---|---|");
  printf("\n");
  for (int32_t f = 0; support_feature_name(f) && status == TSR_OK; f++) {
    printf("| %s |", support_feature_name(f));
    for (int32_t d = 0; d < t->num_devices && status == TSR_OK; d++) {
      status = print_cell(t, d, f, TSR_FORWARD, err);
      if (status == TSR_OK)
        status = print_cell(t, d, f, TSR_BACKWARD, err);
    }
    printf("\n");
  }
  const int32_t ops[2] = {TSR_OP_APPEND, TSR_OP_MERGE};
  const char *const names[2] = {"append to a K/V cache, rotary, quantising", "merge of partial results"};
  for (int i = 0; i < 2; i++) {
    printf("| %s |", names[i]);
    for (int32_t d = 0; d < t->num_devices; d++)
      printf(" %s | - |", tsr_device_variant(t->devices[d], ops[i], 0) ? "yes" : "no");
    printf("\n");
  }
  printf("| *evidence* |");
  for (int32_t d = 0; d < t->num_devices; d++)
    printf(" %s | the same |", evidence_of(t->infos[d].backend));
  printf("\n");
  for (int32_t i = 0; i < t->num_reasons; i++)
    printf("%s(%d) %s%s", i == 0 ? "\n" : "", i + 1, t->reasons[i], i + 1 < t->num_reasons ? "; " : "\n");
  return status;
}

static tsr_status answers_json(const table *t, int32_t device, int32_t feature, int32_t op, json_writer *w,
                               tsr_error *err) {
  tsr_verdict verdicts[MAX_VERDICTS];
  int32_t count;
  const tsr_status status = answers_of(t, device, feature, op, verdicts, &count, err);
  json_open(w, op == TSR_FORWARD ? "forward" : "backward", '[');
  for (int32_t i = 0; status == TSR_OK && i < count; i++) {
    json_open(w, NULL, '{');
    json_put_string(w, "variant", verdicts[i].variant);
    json_put_bool(w, "accepted", verdicts[i].accepted);
    json_put_string(w, "reason", verdicts[i].reason);
    json_close(w, '}');
  }
  json_close(w, ']');
  return status;
}

static tsr_status write_json(const table *t, json_writer *w, tsr_error *err) {
  tsr_status status = TSR_OK;
  json_open(w, "support", '[');
  for (int32_t f = 0; support_feature_name(f) && status == TSR_OK; f++) {
    for (int32_t d = 0; d < t->num_devices && status == TSR_OK; d++) {
      json_open(w, NULL, '{');
      json_put_string(w, "feature", support_feature_name(f));
      json_put_string(w, "device", t->infos[d].name);
      json_put_string(w, "evidence", evidence_of(t->infos[d].backend));
      status = answers_json(t, d, f, TSR_FORWARD, w, err);
      if (status == TSR_OK)
        status = answers_json(t, d, f, TSR_BACKWARD, w, err);
      json_close(w, '}');
    }
  }
  json_close(w, ']');
  return status;
}

tsr_status support_show(tsr_context *context, json_writer *w, tsr_error *err) {
  table *t = calloc(1, sizeof(*t));
  if (!t) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for the table");
    return err->status;
  }
  tsr_status status = open_devices(t, context, err);
  if (status == TSR_OK)
    status = w ? write_json(t, w, err) : print_table(t, err);
  for (int32_t d = 0; d < t->num_devices; d++)
    tsr_device_close(t->devices[d]);
  free(t);
  return status;
}
