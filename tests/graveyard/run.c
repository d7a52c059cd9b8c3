/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, levels, variants; plans and runs on them. */
#include "frame.h"
#include "tests/conformance/engine/devices.h"
#include "tests/conformance/engine/mirror.h"

#include <sys/mman.h>

enum { MAX_TARGETS = 32, GUARD_BYTES = 256 };

/* ---- Targets --------------------------------------------------------------------------------- */

static gy_target targets[MAX_TARGETS];
static int num_targets;

static tsr_status context_new(const tsr_context_params *params, tsr_context **context, tsr_error *err) {
  const char *module = getenv("TESSERA_TEST_MODULE");
  const tsr_status st = tsr_context_create(params, context, err);
  return st == TSR_OK && module != NULL ? tsr_backend_load(*context, module, err) : st;
}

static void add_target(const char *device, const char *level) {
  tsr_context_params params = tsr_context_params_init();
  tsr_device_info info = {0};
  tsr_error err;
  gy_target *t = &targets[num_targets];
  if (num_targets == MAX_TARGETS) {
    gy_fail("more than %d devices", MAX_TARGETS);
  }
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  params.should_stop = gy_should_stop;
  params.num_threads = 2;
  params.cpu_isa = level;
  params.cache_dir = getenv("TESSERA_TEST_CACHE");
  info.size = sizeof(info);
  if (context_new(&params, &t->context, &err) != TSR_OK ||
      tsr_device_open(t->context, device, &t->device, &err) != TSR_OK ||
      tsr_device_get(t->device, &info, &err) != TSR_OK) {
    gy_fail("%s: %s %s", device, err.field, err.text);
  }
  if (!info.computes || (getenv("TESSERA_TEST_DEVICE") != NULL &&
                         strncmp(device, getenv("TESSERA_TEST_DEVICE"), strlen(getenv("TESSERA_TEST_DEVICE"))) != 0)) {
    tsr_device_close(t->device);
    tsr_context_destroy(t->context);
    return;
  }
  t->host_memory = info.host_memory;
  t->mirrored = !info.host_memory || getenv("TESSERA_TEST_COPIES") != NULL;
  snprintf(t->name, sizeof(t->name), "%s%s%s", device, level != NULL ? " " : "", level != NULL ? level : "");
  num_targets++;
}

static int add_place(void *user, const char *device, const char *level) {
  (void)user;
  add_target(device, level);
  return 0;
}

static void close_targets(void) {
  for (int n = 0; n < num_targets; n++) {
    tsr_device_close(targets[n].device);
    tsr_context_destroy(targets[n].context);
  }
}

const gy_target *gy_targets(int *count) {
  tsr_context_params params = tsr_context_params_init();
  tsr_context *context = NULL;
  tsr_error err;
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  if (num_targets == 0) {
    if (context_new(&params, &context, &err) != TSR_OK) {
      gy_fail("%s: %s", err.field, err.text);
    }
    for (int32_t n = 0; n < tsr_backend_count(context); n++) {
      tsr_backend_info info = {0};
      info.size = sizeof(info);
      if (tsr_backend_get(context, n, &info, &err) != TSR_OK) {
        gy_fail("back end %d: %s", (int)n, err.text);
      }
      conf_devices_of(&info, add_place, NULL);
    }
    tsr_context_destroy(context);
    atexit(close_targets);
    if (num_targets == 0) {
      gy_fail("no device computes");
    }
  }
  *count = num_targets;
  return targets;
}

/* ---- Runs ------------------------------------------------------------------------------------ */

static tsr_status make_plan(gy_problem *p, const gy_target *target, const char *variant, tsr_plan **plan,
                            tsr_error *err) {
  tsr_attention_desc desc = p->desc;
  desc.variant = variant;
  desc.memory = target->host_memory ? desc.memory : TSR_MEMORY_NATIVE;
  return tsr_plan_attention(target->device, &desc, plan, err);
}

/* Beyond this a workspace is mapped, so that only what is written takes memory, and only its beginning is poisoned. */
static const int64_t large_bytes = INT64_C(1) << 30;

static int64_t mapped_bytes(int64_t bytes) {
  return (bytes + GUARD_BYTES + 4095) / 4096 * 4096;
}

static unsigned char *workspace_new(int64_t bytes, int64_t align) {
  const size_t a = align < 64 ? 64 : (size_t)align;
  void *w;
  if (bytes > large_bytes) {
    w = mmap(NULL, (size_t)mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
             0);
    w = w == MAP_FAILED ? NULL : w;
  } else {
    w = aligned_alloc(a, ((size_t)bytes + GUARD_BYTES + a - 1) / a * a);
  }
  if (w == NULL) {
    gy_fail("no memory for a workspace of %lld bytes", (long long)bytes);
  }
  return w;
}

static void check_guard(const unsigned char *workspace, int64_t bytes) {
  for (int64_t n = bytes; n < bytes + GUARD_BYTES; n++) {
    if (workspace[n] != 0xff) {
      gy_fail("byte %lld was written, the workspace has %lld", (long long)n, (long long)bytes);
    }
  }
}

/* ---- Copies on a device -------------------------------------------------------------------------- */

static tsr_status add_problem(conf_mirror *m, const gy_problem *p, int written, tsr_error *err) {
  tsr_status st = TSR_OK;
  for (int n = 0; n < p->num_memory && st == TSR_OK; n++) {
    st = conf_mirror_add(m, p->memory[n].body, (int64_t)p->memory[n].body_bytes,
                         written || p->own_outputs ? CONF_MIRROR_OUTPUT : CONF_MIRROR_INPUT, err);
  }
  for (int n = 0; n < p->num_out && st == TSR_OK; n++) {
    st = conf_mirror_add(m, p->out[n].raw, p->out[n].raw_bytes, CONF_MIRROR_OUTPUT, err);
  }
  return st;
}

/* The memory of p, or of all problems. */
static tsr_status mirror_open(conf_mirror *m, const gy_target *target, const gy_problem *p, const void *workspace,
                              int64_t workspace_bytes, tsr_error *err) {
  tsr_status st = TSR_OK;
  conf_mirror_open(m, target->device);
  for (const gy_problem *x = p != NULL ? p : gy_now.all; x != NULL && st == TSR_OK; x = p != NULL ? NULL : x->next) {
    st = add_problem(m, x, p == NULL, err);
  }
  st = st == TSR_OK ? conf_mirror_add(m, workspace, workspace_bytes, CONF_MIRROR_OUTPUT, err) : st;
  return st == TSR_OK ? conf_mirror_write(m, err) : st;
}

/* What a refused run left behind is looked at too. */
static tsr_status mirror_close(conf_mirror *m, tsr_status st, tsr_error *err) {
  tsr_error unread;
  st = st == TSR_OK ? tsr_device_wait(m->device, NULL, err) : st;
  if (st == TSR_OK) {
    st = conf_mirror_read(m, err);
  } else if ((st == TSR_INVALID || st == TSR_OUT_OF_WORKSPACE) && conf_mirror_read(m, &unread) != TSR_OK) {
    *err = unread;
    st = unread.status;
  }
  conf_mirror_close(m);
  return st;
}

tsr_status gy_run_plan(const gy_target *target, const tsr_plan *plan, const gy_problem *p, const tsr_run_args *args,
                       const void *workspace, int64_t workspace_bytes, tsr_error *err) {
  tsr_run_args there = *args;
  conf_mirror m;
  tsr_status st;
  if (!target->mirrored) {
    return tsr_run_attention(plan, args, err);
  }
  st = mirror_open(&m, target, p, workspace, workspace_bytes, err);
  if (st == TSR_OK) {
    conf_mirror_map_run(&m, &there);
    st = tsr_run_attention(plan, &there, err);
  }
  return mirror_close(&m, st, err);
}

/* Does a problem fit a device, as far as tests should use one? */
static int fits(const gy_problem *p, const gy_target *target, int64_t workspace_bytes) {
  const char *limit = getenv("TESSERA_TEST_DEVICE_GIB");
  const double most = 0x1p30 * (limit != NULL ? strtod(limit, NULL) : 4.0);
  double bytes = (double)workspace_bytes;
  for (int n = 0; n < p->num_memory; n++) {
    bytes += (double)p->memory[n].body_bytes;
  }
  if (target->mirrored && bytes > most) {
    print_message("%s: left out on %s, as its %.1f GiB are more than %.1f (TESSERA_TEST_DEVICE_GIB)\n", gy_now.what,
                  target->name, bytes / 0x1p30, most / 0x1p30);
    return 0;
  }
  return 1;
}

int gy_plan(gy_problem *p, const gy_target *target, const char *variant, gy_run *run) {
  tsr_error err;
  tsr_status st;
  int64_t bytes = 0, align = 0;
  memset(run, 0, sizeof(*run));
  run->target = target;
  run->variant = variant;
  snprintf(gy_now.where, sizeof(gy_now.where), "%s %s", target->name, variant);
  gy_forward_results(p);
  st = make_plan(p, target, variant, &run->plan, &err);
  if (st == TSR_UNSUPPORTED && err.text[0] != '\0') {
    snprintf(gy_now.refusal, sizeof(gy_now.refusal), "%s", err.text);
    return 0;
  }
  if (st != TSR_OK) {
    gy_fail("plan: %s, %s %s", tsr_status_name(st), err.field, err.text);
  }
  run->info.size = sizeof(run->info);
  if (tsr_plan_get(run->plan, &run->info, &err) != TSR_OK ||
      tsr_plan_workspace(run->plan, &bytes, &align, &err) != TSR_OK) {
    gy_fail("%s %s", err.field, err.text);
  }
  if (strcmp(run->info.variant, variant) != 0) {
    gy_fail("variant %s was forced, %s was planned", variant, run->info.variant);
  }
  if (!fits(p, target, bytes)) {
    tsr_plan_destroy(run->plan);
    run->plan = NULL;
    run->left_out = 1;
    return 0;
  }
  run->workspace = workspace_new(bytes, align);
  return 1;
}

void gy_unplan(gy_run *run) {
  if (run->info.workspace_bytes > large_bytes) {
    munmap(run->workspace, (size_t)mapped_bytes(run->info.workspace_bytes));
  } else {
    free(run->workspace);
  }
  tsr_plan_destroy(run->plan);
  memset(run, 0, sizeof(*run));
}

/* Poisons outputs and workspace and runs. */
static tsr_status try_run(gy_problem *p, gy_run *run, tsr_error *err) {
  const int64_t bytes = run->info.workspace_bytes;
  tsr_run_args args = p->args;
  tsr_status st;
  snprintf(gy_now.where, sizeof(gy_now.where), "%s %s", run->target->name, run->variant);
  memset(run->workspace, 0xff, (size_t)(bytes > large_bytes ? large_bytes / 64 : bytes));
  memset(run->workspace + bytes, 0xff, GUARD_BYTES);
  gy_poison(p);
  gy_protect(p, 0);
  args.workspace = tsr_buffer_out(bytes > 0 ? run->workspace : NULL);
  args.workspace_bytes = bytes;
  st = gy_run_plan(run->target, run->plan, p, &args, run->workspace, bytes + GUARD_BYTES, err);
  gy_protect(p, 1);
  check_guard(run->workspace, bytes);
  return st;
}

void gy_go(gy_problem *p, gy_run *run) {
  tsr_error err;
  const tsr_status st = try_run(p, run, &err);
  if (st != TSR_OK) {
    gy_fail("run: %s, %s %s", tsr_status_name(st), err.field, err.text);
  }
}

int gy_each(gy_problem *p, gy_fn fn, void *user) {
  const int32_t op = p->desc.op == TSR_BACKWARD ? TSR_OP_BACKWARD : TSR_OP_FORWARD;
  int count, accepted = 0;
  const gy_target *t = gy_targets(&count);
  for (int n = 0; n < count; n++) {
    const char *variant;
    int here = 0;
    for (int32_t v = 0; (variant = tsr_device_variant(t[n].device, op, v)) != NULL; v++) {
      gy_run run;
      if (p->only_devices && t[n].host_memory) {
        here++;
      } else if (gy_plan(p, &t[n], variant, &run)) {
        fn(p, &run, user);
        gy_unplan(&run);
        here++;
      } else {
        here += run.left_out;
      }
    }
    if (here == 0 && !p->may_refuse) {
      gy_fail("no variant accepts: %s", gy_now.refusal);
    }
    accepted += here;
  }
  return accepted;
}

/* ---- Checks ---------------------------------------------------------------------------------- */

typedef struct check {
  gy_fn also;
  void *user;
} check;

static void check_run(gy_problem *p, gy_run *run, void *user) {
  const check *c = user;
  gy_go(p, run);
  if (c->also != NULL) {
    c->also(p, run, c->user);
  }
  gy_compare(p, run);
}

void gy_check_also(gy_problem *p, gy_fn also, void *user) {
  check c = {also, user};
  gy_each(p, check_run, &c);
}

void gy_check(gy_problem *p) {
  gy_check_also(p, NULL, NULL);
}

void gy_check_free(gy_problem *p) {
  gy_check(p);
  gy_free(p);
}

static void refused(gy_problem *p, tsr_status status, const char *field, int host_only) {
  int count;
  const gy_target *t = gy_targets(&count);
  for (int n = 0; n < count; n++) {
    gy_run run;
    if (host_only && !t[n].host_memory) {
      continue;
    }
    tsr_error err;
    tsr_status st;
    const char *variant =
        tsr_device_variant(t[n].device, p->desc.op == TSR_BACKWARD ? TSR_OP_BACKWARD : TSR_OP_FORWARD, 0);
    memset(&run, 0, sizeof(run));
    snprintf(gy_now.where, sizeof(gy_now.where), "%s", t[n].name);
    gy_poison(p);
    st = make_plan(p, &t[n], variant, &run.plan, &err);
    if (st == TSR_OK) {
      tsr_plan_destroy(run.plan);
      if (!gy_plan(p, &t[n], variant, &run)) {
        gy_fail("planned once, refused then");
      }
      st = try_run(p, &run, &err);
      gy_unplan(&run);
    }
    if (st != status || strncmp(err.field, field, strlen(field)) != 0 || err.text[0] == '\0') {
      gy_fail("answer is %s, %s: \"%s\", expected %s, %s", tsr_status_name(st), st == TSR_OK ? "" : err.field,
              st == TSR_OK ? "" : err.text, tsr_status_name(status), field);
    }
    gy_untouched(p, NULL);
  }
}

void gy_refused(gy_problem *p, tsr_status status, const char *field) {
  refused(p, status, field, 0);
}

void gy_refused_on_host(gy_problem *p, tsr_status status, const char *field) {
  refused(p, status, field, 1);
}

static const void *address_of(const tsr_layout *l, const tsr_buffer *b) {
  return l->dtype != TSR_DTYPE_NONE ? (const char *)b->ptr + b->offset_bytes : NULL;
}

/* Devices that can see what is wrong with lengths, and then say so. */
static void refused_by_host_copies(gy_problem *p, const char *field) {
  const tsr_run_args args = p->args;
  int count;
  const gy_target *t = gy_targets(&count);
  p->args.host_cu_seqlens_q = address_of(&p->desc.cu_seqlens_q, &args.cu_seqlens_q);
  p->args.host_cu_seqlens_k = address_of(&p->desc.cu_seqlens_k, &args.cu_seqlens_k);
  p->args.host_seqlens_q = address_of(&p->desc.seqlens_q, &args.seqlens_q);
  p->args.host_seqlens_k = address_of(&p->desc.seqlens_k, &args.seqlens_k);
  for (int n = 0; n < count; n++) {
    const char *variant =
        tsr_device_variant(t[n].device, p->desc.op == TSR_BACKWARD ? TSR_OP_BACKWARD : TSR_OP_FORWARD, 0);
    gy_run run;
    tsr_error err;
    if (t[n].host_memory || !gy_plan(p, &t[n], variant, &run)) {
      continue;
    }
    const tsr_status st = try_run(p, &run, &err);
    if (st != TSR_INVALID || strncmp(err.field, field, strlen(field)) != 0) {
      gy_fail("answer is %s, %s, although a host copy shows %s", tsr_status_name(st), st == TSR_OK ? "" : err.field,
              field);
    }
    gy_unplan(&run);
  }
  p->args = args;
}

void gy_refused_numbers(gy_problem *p, const char *field, const tsr_attention_desc *clamped_desc,
                        const tsr_run_args *clamped) {
  refused(p, TSR_INVALID, field, 1);
  p->forward_done = 1;
  if (strncmp(field, "seqlens", 7) == 0 || strncmp(field, "cu_seqlens", 10) == 0) {
    refused_by_host_copies(p, field);
  }
  for (int n = 0; n < p->num_out; n++) { /* the oracle's of other numbers */
    free(p->out[n].exact);
    free(p->out[n].plain);
    p->out[n].exact = p->out[n].plain = NULL;
  }
  p->evaluated = 0;
  p->only_devices = 1;
  p->oracle_desc = clamped_desc;
  p->oracle_args = clamped;
  gy_check(p);
  p->only_devices = 0;
  p->oracle_desc = NULL;
  p->oracle_args = NULL;
}

/* ---- Merge and append ------------------------------------------------------------------------ */

/* One of the two, seen alike. */
typedef struct cache_op {
  int32_t op;
  tsr_merge_desc *merge;
  tsr_merge_args *merge_args;
  tsr_append_desc *append;
  tsr_append_args *append_args;
} cache_op;

/* In place, or on copies of all the memory that there is. */
static tsr_status run_cache_plan(const cache_op *x, const gy_target *t, const tsr_plan *plan, const void *workspace,
                                 int64_t workspace_bytes, tsr_error *err) {
  conf_mirror m;
  tsr_status st;
  if (!t->mirrored) {
    return x->merge != NULL ? tsr_run_merge(plan, x->merge_args, err) : tsr_run_append(plan, x->append_args, err);
  }
  st = mirror_open(&m, t, NULL, workspace, workspace_bytes, err);
  if (st == TSR_OK && x->merge != NULL) {
    tsr_buffer parts[2 * GY_MAX_MEMORY];
    tsr_merge_args there = *x->merge_args;
    const int64_t n = x->merge->num_partials;
    memcpy(parts, there.partial_o, (size_t)n * sizeof(*parts));
    memcpy(parts + n, there.partial_lse, (size_t)n * sizeof(*parts));
    conf_mirror_map(&m, parts, 2 * n);
    conf_mirror_map_merge(&m, &there);
    there.partial_o = parts;
    there.partial_lse = parts + n;
    st = tsr_run_merge(plan, &there, err);
  } else if (st == TSR_OK) {
    tsr_append_args there = *x->append_args;
    conf_mirror_map_append(&m, &there);
    st = tsr_run_append(plan, &there, err);
  }
  return mirror_close(&m, st, err);
}

static void run_cache_op(const cache_op *x, const gy_target *t, const char *variant) {
  tsr_plan *plan = NULL;
  tsr_error err;
  int64_t bytes = 0, align = 0;
  unsigned char *workspace;
  tsr_status st;
  snprintf(gy_now.where, sizeof(gy_now.where), "%s %s", t->name, variant);
  *(x->merge != NULL ? &x->merge->variant : &x->append->variant) = variant;
  *(x->merge != NULL ? &x->merge->memory : &x->append->memory) = t->host_memory ? TSR_MEMORY_HOST : TSR_MEMORY_NATIVE;
  st = x->merge != NULL ? tsr_plan_merge(t->device, x->merge, &plan, &err)
                        : tsr_plan_append(t->device, x->append, &plan, &err);
  if (st != TSR_OK || tsr_plan_workspace(plan, &bytes, &align, &err) != TSR_OK) {
    gy_fail("plan: %s, %s %s", tsr_status_name(st), err.field, err.text);
  }
  workspace = workspace_new(bytes, align);
  memset(workspace, 0xff, (size_t)bytes + GUARD_BYTES);
  *(x->merge != NULL ? &x->merge_args->workspace : &x->append_args->workspace) =
      tsr_buffer_out(bytes > 0 ? workspace : NULL);
  *(x->merge != NULL ? &x->merge_args->workspace_bytes : &x->append_args->workspace_bytes) = bytes;
  st = run_cache_plan(x, t, plan, workspace, bytes + GUARD_BYTES, &err);
  if (st != TSR_OK) {
    gy_fail("run: %s, %s %s", tsr_status_name(st), err.field, err.text);
  }
  check_guard(workspace, bytes);
  free(workspace);
  tsr_plan_destroy(plan);
}

static void each_cache_op(const cache_op *x, gy_hook before, gy_hook after, void *user) {
  int count;
  const gy_target *t = gy_targets(&count);
  for (int n = 0; n < count; n++) {
    const char *variant;
    int32_t v = 0;
    for (; (variant = tsr_device_variant(t[n].device, x->op, v)) != NULL; v++) {
      before(user);
      run_cache_op(x, &t[n], variant);
      after(user);
    }
    if (v == 0) {
      gy_fail("%s has no variant of %s", t[n].name, x->op == TSR_OP_MERGE ? "merge" : "append");
    }
  }
}

void gy_each_merge(tsr_merge_desc *desc, tsr_merge_args *args, gy_hook before, gy_hook after, void *user) {
  const cache_op x = {TSR_OP_MERGE, desc, args, NULL, NULL};
  each_cache_op(&x, before, after, user);
}

void gy_each_append(tsr_append_desc *desc, tsr_append_args *args, gy_hook before, gy_hook after, void *user) {
  const cache_op x = {TSR_OP_APPEND, NULL, NULL, desc, args};
  each_cache_op(&x, before, after, user);
}
