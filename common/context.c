/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, back ends and devices: life times, the registry, names. */
#include "tessera/context.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "common/env.h"
#include "common/log.h"
#include "common/objects.h"

static tsr_status check_params(const tsr_context_params *p, tsr_error *err) {
  if (p->flags & ~(uint64_t)(TSR_CONTEXT_IGNORE_ENV | TSR_CONTEXT_VALIDATE)) {
    return tsr__fail(err, TSR_INVALID, "flags", "flags has unknown bits: 0x%llx", (unsigned long long)p->flags);
  }
  if ((p->alloc == NULL) != (p->free == NULL)) {
    return tsr__fail(err, TSR_INVALID, "alloc", "alloc and free come together, or neither does");
  }
  if (p->log_level < 0 || p->log_level > TSR_LOG_DEBUG) {
    return tsr__fail(err, TSR_INVALID, "log_level", "log_level is %d, must be 0..3", p->log_level);
  }
  if (p->num_threads < 0 || p->num_threads > 4096) {
    return tsr__fail(err, TSR_INVALID, "num_threads", "num_threads is %d, must be 0..4096", p->num_threads);
  }
  if (p->parallel_for != NULL && p->num_threads < 1) {
    return tsr__fail(err, TSR_INVALID, "num_threads", "num_threads is 0, must be at least 1 with parallel_for");
  }
  if (p->compile < 0 || p->compile > TSR_COMPILE_ALWAYS) {
    return tsr__fail(err, TSR_INVALID, "compile", "compile is %d, must be 0..%d", p->compile, TSR_COMPILE_ALWAYS);
  }
  if (p->reserved != 0) {
    return tsr__fail(err, TSR_INVALID, "reserved", "reserved is %d, must be 0", p->reserved);
  }
  if ((p->cache_get == NULL) != (p->cache_put == NULL)) {
    return tsr__fail(err, TSR_INVALID, "cache_get", "cache_get and cache_put come together, or neither does");
  }
  if (p->cache_get != NULL && p->cache_dir != NULL) {
    return tsr__fail(err, TSR_INVALID, "cache_dir", "cache_dir must be NULL with cache_get");
  }
  return TSR_OK;
}

/* Explicit text over the environment's. */
static tsr_status take_text(char *out, size_t bytes, const char *given, const char *env, const char *field,
                            tsr_error *err) {
  const char *text = given != NULL ? given : env;
  if (strlen(text) >= bytes) {
    return tsr__fail(err, TSR_INVALID, field, "%s is longer than %zu characters", field, bytes - 1);
  }
  memcpy(out, text, strlen(text) + 1);
  return TSR_OK;
}

static tsr_status add_backend(tsr_context *c, const tsr__backend *backend, void *module, tsr_error *err) {
  const int32_t n = c->num_backends;
  if (n == TSR__MAX_BACKENDS) {
    return tsr__fail(err, TSR_UNSUPPORTED, "path", "at most %d back ends fit a context", TSR__MAX_BACKENDS);
  }
  for (int32_t i = 0; i < n; i++) {
    if (strcmp(c->backends[i]->name, backend->name) == 0) {
      return tsr__fail(err, TSR_UNSUPPORTED, "path", "a back end named %s is already there", backend->name);
    }
  }
  c->backends[n] = backend;
  c->modules[n] = module;
  c->device_count[n] = -1;
  c->num_backends = n + 1;
  return TSR_OK;
}

/* Devices of back end i, asked of it when somebody first wants to know: a driver may take a second to wake. */
static int32_t count_devices(const tsr_context *context, int32_t i) {
  tsr_context *c = (tsr_context *)context; /* the object itself is never const */
  const tsr__backend *backend = c->backends[i];
  int32_t n, first;
  pthread_mutex_lock(&c->count_lock);
  first = c->device_count[i] < 0;
  if (first) {
    c->device_count[i] = backend->count(&c->host, c->why_not[i], sizeof(c->why_not[i]));
  }
  n = c->device_count[i];
  pthread_mutex_unlock(&c->count_lock);
  if (first) { /* without the lock: the hook may ask us */
    tsr__log(&c->host, TSR_LOG_INFO, "back end %s: %d device%s%s%s", backend->name, n, n == 1 ? "" : "s",
             n == 0 ? ", " : "", n == 0 ? c->why_not[i] : "");
  }
  return n;
}

/* What images come from. */
static tsr_status fill_images(tsr_context *c, const tsr_context_params *p, const tsr__env *env, tsr_error *err) {
  tsr__host *h = &c->host;
  const struct {
    char *out;
    const char *given, *env, *field;
  } paths[] = {{c->cache_dir, p->cache_dir, p->cache_get == NULL ? env->cache_dir : "", "cache_dir"},
               {c->nvrtc_path, p->nvrtc_path, env->nvrtc_path, "nvrtc_path"},
               {c->hiprtc_path, p->hiprtc_path, env->hiprtc_path, "hiprtc_path"},
               {c->opencl_path, p->opencl_path, env->opencl_path, "opencl_path"}};
  tsr_status st = TSR_OK;
  for (size_t i = 0; st == TSR_OK && i < sizeof(paths) / sizeof(paths[0]); i++) {
    st = take_text(paths[i].out, TSR__ENV_PATH_BYTES, paths[i].given, paths[i].env, paths[i].field, err);
  }
  h->compile = p->compile != TSR_COMPILE_DEFAULT ? p->compile : env->compile;
  h->compile = h->compile != TSR_COMPILE_DEFAULT ? h->compile : TSR_COMPILE_AUTO;
  h->cache_dir = c->cache_dir;
  h->cache_get = p->cache_get;
  h->cache_put = p->cache_put;
  h->nvrtc_path = c->nvrtc_path;
  h->hiprtc_path = c->hiprtc_path;
  h->opencl_path = c->opencl_path;
  return st;
}

static tsr_status fill_context(tsr_context *c, const tsr_context_params *p, const tsr__env *env, tsr_error *err) {
  tsr_status st;
  tsr__host *h = &c->host;
  h->alloc.alloc = p->alloc;
  h->alloc.free = p->free;
  h->alloc.user = p->user;
  h->log = p->log;
  h->log_level = p->log_level;
  if (p->log == NULL && env->log_level >= 0) {
    h->log = tsr__log_stderr;
    h->log_level = env->log_level;
  }
  h->num_threads = p->num_threads != 0 ? p->num_threads : env->num_threads;
  h->parallel_for = p->parallel_for;
  h->should_stop = p->should_stop;
  h->user = p->user;
  h->validate = (p->flags & TSR_CONTEXT_VALIDATE) != 0;
  h->cpu_isa = c->cpu_isa;
  st = take_text(c->device, sizeof(c->device), p->device, env->device, "device", err);
  if (st == TSR_OK) {
    st = take_text(c->cpu_isa, sizeof(c->cpu_isa), p->cpu_isa, env->cpu_isa, "cpu_isa", err);
  }
  if (st == TSR_OK) {
    st = take_text(c->variant, sizeof(c->variant), p->variant, env->variant, "variant", err);
  }
  if (st == TSR_OK) {
    st = fill_images(c, p, env, err);
  }
  for (int i = 0; st == TSR_OK && tsr__backends[i] != NULL; i++) {
    st = add_backend(c, tsr__backends[i], NULL, err);
  }
  return st;
}

tsr_status tsr_context_create(const tsr_context_params *params, tsr_context **context, tsr_error *err) {
  const size_t before_images = offsetof(tsr_context_params, compile); /* where the struct once ended */
  tsr_context_params p = tsr_context_params_init();
  tsr__env env = tsr__env_none();
  tsr__alloc alloc;
  tsr_context *c;
  tsr_status st = TSR_OK;
  if (context == NULL) {
    return tsr__fail(err, TSR_INVALID, "context", "context is NULL");
  }
  *context = NULL;
  if (params != NULL) {
    st = tsr__struct_import(&p, sizeof(p), before_images, params, "tsr_context_params", err);
  }
  if (st == TSR_OK) {
    st = check_params(&p, err);
  }
  if (st != TSR_OK) {
    return st;
  }
  if (!(p.flags & TSR_CONTEXT_IGNORE_ENV)) {
    env = tsr__env_read();
  }
  alloc.alloc = p.alloc;
  alloc.free = p.free;
  alloc.user = p.user;
  c = tsr__alloc_zero(&alloc, sizeof(*c));
  if (c == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a context of %zu bytes", sizeof(*c));
  }
  atomic_init(&c->refs, 1);
  pthread_mutex_init(&c->count_lock, NULL);
  st = fill_context(c, &p, &env, err);
  if (st != TSR_OK) {
    pthread_mutex_destroy(&c->count_lock);
    tsr__alloc_free(&alloc, c);
    return st;
  }
  *context = c;
  return tsr__ok(err);
}

void tsr_context_destroy(tsr_context *context) {
  tsr__alloc alloc;
  if (context == NULL || atomic_fetch_sub_explicit(&context->refs, 1, memory_order_acq_rel) != 1) {
    return;
  }
  for (int32_t i = 0; i < context->num_backends; i++) {
    if (context->modules[i] != NULL) {
      dlclose(context->modules[i]);
    }
  }
  pthread_mutex_destroy(&context->count_lock);
  alloc = context->host.alloc;
  tsr__alloc_free(&alloc, context);
}

int32_t tsr_backend_count(const tsr_context *context) {
  return context == NULL ? 0 : context->num_backends;
}

tsr_status tsr_backend_get(const tsr_context *context, int32_t index, tsr_backend_info *info, tsr_error *err) {
  tsr_backend_info out = {0};
  if (context == NULL || info == NULL) {
    return tsr__fail(err, TSR_INVALID, context == NULL ? "context" : "info", "a required pointer is NULL");
  }
  if (index < 0 || index >= context->num_backends) {
    return tsr__fail(err, TSR_INVALID, "index", "index is %d, this context has %d back ends", index,
                     context->num_backends);
  }
  out.name = context->backends[index]->name;
  out.device_count = count_devices(context, index);
  out.why_not = out.device_count == 0 ? context->why_not[index] : NULL;
  return tsr__struct_export(info, info->size, &out, sizeof(out), err);
}

tsr_status tsr_backend_load(tsr_context *context, const char *path, tsr_error *err) {
  typedef const tsr__backend *entry_fn(void);
  union {
    void *ptr;
    entry_fn *fn;
  } entry;
  const tsr__backend *backend;
  void *module;
  tsr_status st;
  if (context == NULL || path == NULL) {
    return tsr__fail(err, TSR_INVALID, context == NULL ? "context" : "path", "a required pointer is NULL");
  }
  if (strchr(path, '/') == NULL) { /* dlopen would search for a bare name */
    return tsr__fail(err, TSR_INVALID, "path", "path \"%.200s\" has no directory; write ./ for the current one", path);
  }
  module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (module == NULL) {
    const char *why = dlerror();
    return tsr__fail(err, TSR_IO, "path", "%s", why != NULL ? why : "dlopen failed");
  }
  entry.ptr = dlsym(module, TSR__MODULE_ENTRY);
  backend = entry.ptr != NULL ? entry.fn() : NULL;
  if (backend == NULL || backend->abi != TSR__BACKEND_ABI) {
    st = backend == NULL ? tsr__fail(err, TSR_INVALID, "path", "%.300s is no back end module", path)
                         : tsr__fail(err, TSR_INVALID, "path",
                                     "%.300s was built for version %d of the back end interface, this library has %d",
                                     path, backend->abi, TSR__BACKEND_ABI);
    dlclose(module);
    return st;
  }
  st = add_backend(context, backend, module, err);
  if (st != TSR_OK) {
    dlclose(module);
    return st;
  }
  return tsr__ok(err);
}

/* ---- Devices --------------------------------------------------------------------------------- */

/* Splits "cpu:1" into a back end name and an ordinal, which has one way to be written. */
static int parse_device(const char *name, char *backend, size_t bytes, int32_t *ordinal) {
  const char *colon = strchr(name, ':');
  const size_t n = colon != NULL ? (size_t)(colon - name) : strlen(name);
  int64_t value = 0;
  if (n == 0 || n >= bytes) {
    return 0;
  }
  memcpy(backend, name, n);
  backend[n] = '\0';
  if (colon != NULL) {
    const char *c = colon + 1;
    if (*c == '\0' || strlen(c) > 6 || (*c == '0' && c[1] != '\0')) {
      return 0;
    }
    for (; *c != '\0'; c++) {
      if (*c < '0' || *c > '9') {
        return 0;
      }
      value = value * 10 + (*c - '0');
    }
  }
  *ordinal = (int32_t)value;
  return 1;
}

static tsr_status no_such_ordinal(const char *field, const char *backend, int32_t ordinal, int32_t count,
                                  tsr_error *err) {
  return count == 1
             ? tsr__fail(err, TSR_INVALID, field, "%s:%d: there is only one device, %s:0", backend, ordinal, backend)
             : tsr__fail(err, TSR_INVALID, field, "%s:%d: there are only %d devices, %s:0 to %s:%d", backend, ordinal,
                         count, backend, backend, count - 1);
}

static tsr_status find_device(const tsr_context *c, const char *asked, int32_t *backend, int32_t *ordinal,
                              tsr_error *err) {
  const char *name = asked != NULL ? asked : c->device;
  const char *field = asked != NULL ? "name" : "device"; /* the argument, else what the context was made with */
  char wanted[32];
  int32_t count;
  if (asked == NULL && *name == '\0') {
    for (int32_t i = 0; i < c->num_backends; i++) {
      if (c->backends[i]->computes && count_devices(c, i) > 0) {
        *backend = i;
        *ordinal = 0;
        return TSR_OK;
      }
    }
    return tsr__fail(err, TSR_BACKEND_MISSING, field, "no back end of this build has a device that computes");
  }
  if (!parse_device(name, wanted, sizeof(wanted), ordinal)) {
    return tsr__fail(err, TSR_INVALID, field, "\"%.64s\" is no device name; write e.g. cpu or cuda:0", name);
  }
  for (int32_t i = 0; i < c->num_backends; i++) {
    if (strcmp(c->backends[i]->name, wanted) != 0) {
      continue;
    }
    count = count_devices(c, i);
    if (count == 0) {
      return tsr__fail(err, TSR_BACKEND_MISSING, field, "%s: %s", wanted, c->why_not[i]);
    }
    if (*ordinal >= count) {
      return no_such_ordinal(field, wanted, *ordinal, count, err);
    }
    *backend = i;
    return TSR_OK;
  }
  return tsr__fail(err, TSR_BACKEND_MISSING, field, "this build has no back end \"%s\"", wanted);
}

/* What open_ordinal is handed. */
struct ordinal {
  const tsr__backend *backend;
  int32_t index;
};

static tsr_status open_ordinal(const tsr__host *host, const void *handles, tsr__device *dev, tsr_error *err) {
  const struct ordinal *o = handles;
  return o->backend->open(host, o->index, dev, err);
}

tsr_status tsr_device_open(tsr_context *context, const char *name, tsr_device **device, tsr_error *err) {
  struct ordinal which = {NULL, 0};
  int32_t backend = 0;
  tsr_status st;
  if (context == NULL || device == NULL) {
    return tsr__fail(err, TSR_INVALID, context == NULL ? "context" : "device", "a required pointer is NULL");
  }
  *device = NULL;
  st = find_device(context, name, &backend, &which.index, err);
  if (st != TSR_OK) {
    return st;
  }
  which.backend = context->backends[backend];
  return tsr__device_adopt(context, which.backend, open_ordinal, &which, device, err);
}

tsr_status tsr__device_adopt(tsr_context *context, const tsr__backend *backend, tsr__open_fn *open, const void *handles,
                             tsr_device **device, tsr_error *err) {
  tsr_device *d;
  tsr_status st;
  if (context == NULL || device == NULL) {
    return tsr__fail(err, TSR_INVALID, context == NULL ? "context" : "device", "a required pointer is NULL");
  }
  *device = NULL;
  d = tsr__alloc_zero(&context->host.alloc, sizeof(*d));
  if (d == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a device of %zu bytes", sizeof(*d));
  }
  atomic_init(&d->refs, 1);
  d->context = context;
  d->backend = backend;
  d->dev.host = &context->host;
  st = open(&context->host, handles, &d->dev, err);
  if (st != TSR_OK) {
    tsr__alloc_free(&context->host.alloc, d);
    return st;
  }
  atomic_fetch_add_explicit(&context->refs, 1, memory_order_relaxed);
  *device = d;
  return tsr__ok(err);
}

const tsr__device *tsr__device_of(const tsr_device *device, const tsr__backend *backend) {
  return device != NULL && device->backend == backend ? &device->dev : NULL;
}

void tsr__device_ref(tsr_device *device) {
  atomic_fetch_add_explicit(&device->refs, 1, memory_order_relaxed);
}

void tsr_device_close(tsr_device *device) {
  tsr_context *context;
  if (device == NULL || atomic_fetch_sub_explicit(&device->refs, 1, memory_order_acq_rel) != 1) {
    return;
  }
  context = device->context;
  device->backend->close(&device->dev);
  tsr__alloc_free(&context->host.alloc, device);
  tsr_context_destroy(context);
}

tsr_status tsr_device_get(const tsr_device *device, tsr_device_info *info, tsr_error *err) {
  const size_t before_memory = offsetof(tsr_device_info, host_memory); /* where the struct once ended */
  tsr_device_info out = {0};
  if (device == NULL || info == NULL) {
    return tsr__fail(err, TSR_INVALID, device == NULL ? "device" : "info", "a required pointer is NULL");
  }
  out.name = device->dev.name;
  out.description = device->dev.description;
  out.backend = device->backend->name;
  out.isa = device->dev.isa;
  out.num_threads = device->dev.num_threads;
  out.computes = device->dev.computes;
  out.local_bytes = device->dev.local_bytes;
  out.host_memory = device->dev.host_memory;
  out.memory_kinds = device->dev.memory_kinds;
  if (info->size == before_memory) {
    return tsr__struct_export(info, info->size, &out, before_memory, err);
  }
  return tsr__struct_export(info, info->size, &out, sizeof(out), err);
}
