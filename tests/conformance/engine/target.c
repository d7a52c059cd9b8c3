/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "devices.h"
#include "runner.h"
#include "tessera/cpu.h"

double conf_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Contexts -------------------------------------------------------------------------------------- */

static int stopped(const conf_runner *r) {
  return r->options->should_stop != NULL && r->options->should_stop(r->options->user) != 0;
}

int conf_over(conf_runner *r) {
  if (stopped(r)) {
    r->result->ended = TSR_CONFORMANCE_ENDED_STOPPED;
  } else if (r->options->total_seconds > 0 && conf_now() - r->begun > r->options->total_seconds) {
    r->result->ended = TSR_CONFORMANCE_ENDED_TIME;
  }
  return r->result->ended != TSR_CONFORMANCE_ENDED_COMPLETE;
}

/* The watchdog: a run or an oracle that goes on past its limit is ended, and fails as cancelled. */
static int32_t past_deadline(void *user, int64_t done, int64_t total) {
  const conf_runner *r = user;
  (void)done;
  (void)total;
  return (r->deadline != 0.0 && conf_now() > r->deadline) || stopped(r);
}

tsr_status conf_context_create(conf_runner *r, const char *level, int32_t threads, tsr_context **context,
                               tsr_error *err) {
  tsr_context_params params = tsr_context_params_init();
  tsr_status st;
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  params.num_threads = threads;
  params.should_stop = past_deadline;
  params.user = r;
  params.cpu_isa = level[0] != '\0' ? level : NULL;
  params.cache_dir = r->options->cache_dir;
  st = tsr_context_create(&params, context, err);
  if (st == TSR_OK && r->options->module != NULL) {
    st = tsr_backend_load(*context, r->options->module, err);
    if (st != TSR_OK) {
      tsr_context_destroy(*context);
      *context = NULL;
    }
  }
  return st;
}

/* ---- Devices --------------------------------------------------------------------------------------- */

static int fail_start(conf_runner *r, const char *what, const tsr_error *err) {
  tsr_conformance_failure *f = &r->result->failures[0];
  r->result->num_failures = 1;
  snprintf(f->what, sizeof(f->what), "%s%s%s", what, err != NULL ? ": " : "", err != NULL ? err->text : "");
  return -1;
}

static int has_prefix(const char *text, const char *prefix) {
  return prefix == NULL || strncmp(text, prefix, strlen(prefix)) == 0;
}

/* level: NULL for what is no CPU. */
static int add_device(conf_runner *r, tsr_context *context, const char *device, const char *level) {
  conf_target *t = &r->targets[r->num_targets];
  tsr_device_info info;
  tsr_error err;
  memset(t, 0, sizeof(*t));
  snprintf(t->name, sizeof(t->name), "%s", device);
  if (!has_prefix(t->name, r->options->device)) {
    return 0;
  }
  if (r->num_targets == CONF_MAX_TARGETS) {
    return fail_start(r, "there are more devices than this suite has room for; choose one", NULL);
  }
  if (tsr_device_open(context, t->name, &t->device, &err) != TSR_OK) {
    return fail_start(r, t->name, &err);
  }
  info.size = sizeof(info);
  if (tsr_device_get(t->device, &info, &err) != TSR_OK) {
    return fail_start(r, t->name, &err);
  }
  t->context = context;
  t->computes = info.computes;
  t->host_memory = info.host_memory;
  t->memory_kinds = info.memory_kinds;
  t->mirrored = !info.host_memory || r->options->copies;
  snprintf(t->backend, sizeof(t->backend), "%.*s", (int)strcspn(device, ":"), device);
  snprintf(t->level, sizeof(t->level), "%s", level != NULL ? level : "");
  snprintf(t->label, sizeof(t->label), "%s%s%s", device, level != NULL ? " " : "", level != NULL ? level : "");
  t->stats = &r->result->devices[r->num_targets];
  snprintf(t->stats->name, sizeof(t->stats->name), "%s", t->label);
  snprintf(t->stats->description, sizeof(t->stats->description), "%s", info.description);
  t->stats->computes = info.computes;
  r->num_targets++;
  r->result->num_devices = r->num_targets;
  return 0;
}

/* The context of a CPU level, made when it is first asked for; NULL: fail_start was called. */
static tsr_context *context_of(conf_runner *r, const char *level) {
  tsr_error err;
  int n = 0;
  while (n < r->num_contexts && strcmp(r->context_levels[n], level) != 0) {
    n++;
  }
  if (n == CONF_MAX_CONTEXTS) {
    fail_start(r, "there are more CPU levels than this suite has room for; choose one", NULL);
    return NULL;
  }
  if (n == r->num_contexts) {
    if (conf_context_create(r, level, r->options->num_threads, &r->contexts[n], &err) != TSR_OK) {
      fail_start(r, "no context", &err);
      return NULL;
    }
    snprintf(r->context_levels[n], sizeof(r->context_levels[n]), "%s", level);
    r->num_contexts++;
  }
  return r->contexts[n];
}

static int open_place(void *user, const char *device, const char *level) {
  conf_runner *r = user;
  tsr_context *context = r->contexts[0];
  if (level != NULL && r->options->cpu_isa != NULL && strcmp(level, r->options->cpu_isa) != 0) {
    return 0;
  }
  context = level != NULL ? context_of(r, level) : context;
  return context == NULL ? -1 : add_device(r, context, device, level);
}

int conf_targets_open(conf_runner *r) {
  const char *const levels = tsr_cpu_levels(), *const last = strrchr(levels, ' ');
  const char *const first = r->options->cpu_isa != NULL ? r->options->cpu_isa : last != NULL ? last + 1 : levels;
  if (context_of(r, first) == NULL) { /* other devices than the CPU are this one's */
    return -1;
  }
  for (int32_t b = 0; b < tsr_backend_count(r->contexts[0]); b++) {
    tsr_backend_info info;
    info.size = sizeof(info);
    if (tsr_backend_get(r->contexts[0], b, &info, NULL) != TSR_OK) {
      return fail_start(r, "a back end cannot be asked what it is", NULL);
    }
    if (conf_devices_of(&info, open_place, r) != 0) {
      return -1;
    }
  }
  for (int n = 0; n < r->num_targets; n++) {
    if (r->targets[n].computes) {
      conf_support_probe(r, &r->targets[n]);
    }
  }
  return 0;
}

void conf_targets_close(conf_runner *r) {
  for (int n = 0; n < r->num_targets; n++) {
    if (!r->targets[n].lost) {
      tsr_device_close(r->targets[n].device);
    }
  }
  for (int n = 0; n < r->num_contexts; n++) {
    tsr_context_destroy(r->contexts[n]);
  }
}

int conf_wants_variant(const conf_runner *r, const char *variant) {
  return r->options->variant == NULL || strcmp(r->options->variant, variant) == 0;
}

/* ---- Workspaces ------------------------------------------------------------------------------------ */

enum { WORKSPACE_GUARD = 256 };

int conf_workspace_make(conf_workspace *w, int64_t bytes, int64_t align, unsigned char poison) {
  int64_t before;
  memset(w, 0, sizeof(*w));
  align = align < 64 ? 64 : align;
  before = (WORKSPACE_GUARD / align | 1) * align; /* an odd multiple: no better aligned than promised */
  w->bytes = bytes;
  w->raw_bytes = (before + bytes + WORKSPACE_GUARD + 2 * align - 1) / (2 * align) * (2 * align);
  w->raw = aligned_alloc((size_t)(2 * align), (size_t)w->raw_bytes);
  if (w->raw == NULL) {
    return 0;
  }
  w->data = w->raw + before;
  memset(w->raw, 0x5c, (size_t)w->raw_bytes);
  memset(w->data, poison, (size_t)bytes);
  return 1;
}

int conf_workspace_intact(const conf_workspace *w) {
  for (const unsigned char *b = w->raw; b < w->data; b++) {
    if (*b != 0x5c) {
      return 0;
    }
  }
  for (const unsigned char *b = w->data + w->bytes; b < w->raw + w->raw_bytes; b++) {
    if (*b != 0x5c) {
      return 0;
    }
  }
  return 1;
}

void conf_workspace_free(conf_workspace *w) {
  free(w->raw);
  memset(w, 0, sizeof(*w));
}

/* ---- Results --------------------------------------------------------------------------------------- */

void conf_say(conf_runner *r, const char *format, ...) {
  char text[1400];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  if (r->options->line != NULL) {
    r->options->line(r->options->user, text);
  } else {
    printf("%s\n", text);
    fflush(stdout);
  }
}

void conf_fail(conf_runner *r, conf_target *target, const char *variant, const char *line, const char *format, ...) {
  tsr_conformance_result *result = r->result;
  tsr_conformance_failure f;
  va_list list;
  if (stopped(r)) {
    return;
  }
  va_start(list, format);
  vsnprintf(f.what, sizeof(f.what), format, list);
  va_end(list);
  snprintf(f.where, sizeof(f.where), "%s%s%s", target != NULL ? target->label : "the oracle",
           variant[0] != '\0' ? " " : "", variant);
  snprintf(f.line, sizeof(f.line), "%s", line);
  result->runs++;
  result->failed++;
  if (target != NULL) {
    target->stats->runs++;
    target->stats->failed++;
  }
  if (result->num_failures < TSR_CONFORMANCE_MAX_FAILURES) {
    result->failures[result->num_failures++] = f;
  }
  conf_say(r, "FAILED %s: %s\n       case: %s", f.where, f.what, f.line);
}

void conf_pass(conf_runner *r, conf_target *target, double worst, const char *line) {
  r->result->runs++;
  r->result->passed++;
  target->stats->runs++;
  target->stats->passed++;
  target->stats->worst = worst > target->stats->worst ? worst : target->stats->worst;
  if (worst > r->result->worst) {
    r->result->worst = worst;
    snprintf(r->result->worst_line, sizeof(r->result->worst_line), "%s", line);
  }
}
