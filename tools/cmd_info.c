/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera info`: what this build has and what this machine offers. */
#include <stdio.h>
#include <string.h>

#include "report.h"
#include "tessera/cpu.h"
#include "tests/conformance/conformance.h"

static const char *const op_names[] = {"forward", "backward", "append", "merge"};
enum { NUM_OPS = 4 };

static void print_limits(void) {
  printf("%-13s head dimension up to %d, %d splits, %d expression scalars, %d aux tensors, %d partials in a merge\n",
         "limits", TSR_MAX_HEAD_DIM, TSR_MAX_SPLITS, TSR_EXPR_MAX_SCALARS, TSR_EXPR_MAX_AUX, TSR_MAX_PARTIALS);
}

static void limits_json(json_writer *w) {
  json_open(w, "limits", '{');
  json_put_int(w, "max_head_dim", TSR_MAX_HEAD_DIM);
  json_put_int(w, "max_splits", TSR_MAX_SPLITS);
  json_put_int(w, "max_expression_scalars", TSR_EXPR_MAX_SCALARS);
  json_put_int(w, "max_aux", TSR_EXPR_MAX_AUX);
  json_put_int(w, "max_expression_bytes", TSR_EXPR_MAX_BYTES);
  json_put_int(w, "max_partials", TSR_MAX_PARTIALS);
  json_close(w, '}');
}

static void print_variants(const tool_options *options, const tsr_device *device) {
  for (int32_t op = 0; op < NUM_OPS; op++) {
    printf("    %-9s", op_names[op]);
    const char *name = tsr_device_variant(device, op, 0);
    for (int32_t i = 0; name; name = tsr_device_variant(device, op, ++i))
      printf(" %s", name);
    if (!tsr_device_variant(device, op, 0))
      printf(" %snone%s", term_style(&options->term, STYLE_DIM), term_style(&options->term, STYLE_RESET));
    printf("\n");
  }
}

static void variants_json(json_writer *w, const tsr_device *device) {
  json_open(w, "variants", '{');
  for (int32_t op = 0; op < NUM_OPS; op++) {
    json_open(w, op_names[op], '[');
    const char *name = tsr_device_variant(device, op, 0);
    for (int32_t i = 0; name; name = tsr_device_variant(device, op, ++i))
      json_put_string(w, NULL, name);
    json_close(w, ']');
  }
  json_close(w, '}');
}

static tsr_status show_device(const tool_options *options, tsr_context *context, const char *name, json_writer *w,
                              tsr_error *err) {
  const tool_term *t = &options->term;
  tsr_device *device;
  tsr_device_info info;
  term_number bytes;
  tsr_status status = tsr_device_open(context, name, &device, err);
  if (status != TSR_OK)
    return status;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  status = tsr_device_get(device, &info, err);
  if (status == TSR_OK && w) {
    json_open(w, NULL, '{');
    report_device_json(w, &info);
    json_put_int(w, "local_bytes", info.local_bytes);
    variants_json(w, device);
    json_close(w, '}');
  } else if (status == TSR_OK) {
    printf("  %s%s%s  %s\n", term_style(t, STYLE_BOLD), info.name, term_style(t, STYLE_RESET), info.description);
    printf("    %-9s %s\n", "memory", info.host_memory ? "the host's" : "its own");
    if (info.local_bytes > 0)
      printf("    %-9s %s per %s\n", "local", format_bytes(bytes, (double)info.local_bytes),
             info.host_memory ? "thread" : "work group");
    print_variants(options, device);
  }
  tsr_device_close(device);
  return status;
}

static tsr_status show_backend(const tool_options *options, tsr_context *context, int32_t index, json_writer *w,
                               tsr_error *err) {
  const tool_term *t = &options->term;
  tsr_backend_info info;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  tsr_status status = tsr_backend_get(context, index, &info, err);
  if (status != TSR_OK)
    return status;
  if (w) {
    json_open(w, NULL, '{');
    json_put_string(w, "name", info.name);
    json_put_bool(w, "usable", info.why_not == NULL);
    json_put_string(w, "why_not", info.why_not);
    json_open(w, "devices", '[');
  } else {
    printf("%s%-13s%s %s%s%s%s\n", term_style(t, STYLE_BOLD), info.name, term_style(t, STYLE_RESET),
           term_style(t, info.why_not ? STYLE_YELLOW : STYLE_GREEN), info.why_not ? "missing: " : "usable",
           info.why_not ? info.why_not : "", term_style(t, STYLE_RESET));
  }
  for (int32_t i = 0; i < info.device_count && status == TSR_OK; i++) {
    char name[80];
    snprintf(name, sizeof(name), "%.60s:%d", info.name, i);
    status = show_device(options, context, name, w, err);
  }
  if (w) {
    json_close(w, ']');
    json_close(w, '}');
  }
  return status;
}

/* The table is the suite's own: it forces and runs every yes. */
static int print_support(const tool_options *options) {
  tsr_error err;
  static char text[1 << 16];
  const int length = tsr_conformance_support_table(text, sizeof(text));
  if (length < 0 || (size_t)length >= sizeof(text)) {
    tool_error(&err, TSR_DEVICE_ERROR, "", "the support table cannot be made: %.300s", text);
    return tool_fail(options, &err);
  }
  if (options->json) {
    tool_text out = {0};
    json_writer w = {&out, 0, 0};
    json_open(&w, NULL, '{');
    json_put_string(&w, "command", "info");
    json_put_string(&w, "support", text);
    json_put_int(&w, "exit_code", TOOL_OK);
    json_close(&w, '}');
    return report_print_json(&out);
  }
  fputs(text, stdout);
  return TOOL_OK;
}

/* Back ends that the project has but this build has not. */
static void show_absent(const tool_options *options, tsr_context *context, json_writer *w) {
  static const char *const names[] = {"cpu", "cuda", "hip", "opencl"};
  const tool_term *t = &options->term;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    tsr_device *device = NULL;
    tsr_error err;
    int built = 0;
    for (int32_t b = 0; b < tsr_backend_count(context); b++) {
      tsr_backend_info info;
      memset(&info, 0, sizeof(info));
      info.size = sizeof(info);
      built |= tsr_backend_get(context, b, &info, &err) == TSR_OK && strcmp(info.name, names[i]) == 0;
    }
    if (built)
      continue;
    if (tsr_device_open(context, names[i], &device, &err) == TSR_OK) {
      tsr_device_close(device);
      continue;
    }
    if (w) {
      json_open(w, NULL, '{');
      json_put_string(w, "name", names[i]);
      json_put_bool(w, "usable", 0);
      json_put_string(w, "why_not", err.text);
      json_open(w, "devices", '[');
      json_close(w, ']');
      json_close(w, '}');
    } else {
      printf("%s%-13s%s %smissing: %s%s\n", term_style(t, STYLE_BOLD), names[i], term_style(t, STYLE_RESET),
             term_style(t, STYLE_YELLOW), err.text, term_style(t, STYLE_RESET));
    }
  }
}

static int info(tool_options *options) {
  tool_engine engine;
  tool_text out = {0};
  json_writer writer = {&out, 0, 0}, *w = options->json ? &writer : NULL;
  tsr_error err;
  char machine[256];
  if (options->num_arguments > 0) {
    fprintf(stderr, "tessera info: '%s' is no option\n", options->arguments[0]);
    return TOOL_USAGE;
  }
  if (options->support)
    return print_support(options);
  tsr_status status = engine_open(&engine, options, "", NULL, &err);
  if (status != TSR_OK)
    return tool_fail(options, &err);
  if (w) {
    json_open(w, NULL, '{');
    json_put_string(w, "command", "info");
    report_machine_json(w);
    json_put_string(w, "cpu_levels", tsr_cpu_levels());
    limits_json(w);
    json_open(w, "backends", '[');
  } else {
    report_machine(machine);
    printf("%-13s %s\n%-13s %s\n%-13s %s\n", "tessera", tsr_version(), "machine", machine, "CPU levels",
           tsr_cpu_levels());
    print_limits();
    printf("\n");
  }
  for (int32_t i = 0; i < tsr_backend_count(engine.context) && status == TSR_OK; i++)
    status = show_backend(options, engine.context, i, w, &err);
  if (status == TSR_OK)
    show_absent(options, engine.context, w);
  if (w)
    json_close(w, ']');
  engine_close(&engine);
  if (status != TSR_OK) {
    text_free(&out);
    return tool_fail(options, &err);
  }
  if (!w)
    return TOOL_OK;
  json_put_int(w, "exit_code", TOOL_OK);
  json_close(w, '}');
  return report_print_json(&out);
}

const tool_command command_info = {
    "info",
    "back ends, devices, limits and kernel variants of this build and machine",
    "[options]",
    "Lists the back ends of this build, why one cannot be used, and the kernel variants of each device, best first.\n",
    "  tessera info\n"
    "  tessera info --json\n"
    "  tessera info --support\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_INFO,
    info};
