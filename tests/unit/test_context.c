/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, devices, the registry, hooks, the environment, modules, life times, fork. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/env.h"
#include "tessera/cpu.h"
#include "tessera/tessera.h"

static tsr_context *make(const tsr_context_params *p) {
  tsr_context *c = NULL;
  tsr_error err;
  if (tsr_context_create(p, &c, &err) != TSR_OK) {
    fail_msg("%s: %s", err.field, err.text);
  }
  return c;
}

static void expect_bad(const tsr_context_params *p, tsr_status status, const char *field) {
  tsr_context *c = (tsr_context *)&p;
  tsr_error err;
  assert_int_equal(tsr_context_create(p, &c, &err), status);
  assert_null(c);
  assert_int_equal(err.status, status);
  assert_string_equal(err.field, field);
  assert_true(strlen(err.text) > 10);
  assert_int_equal(tsr_context_create(p, &c, NULL), status);
}

static void bad_params(void **state) {
  tsr_context_params p = tsr_context_params_init();
  char huge[100];
  (void)state;
  assert_int_equal(tsr_context_create(&p, NULL, NULL), TSR_INVALID);
  p.flags = 0x80;
  expect_bad(&p, TSR_INVALID, "flags");
  p = tsr_context_params_init();
  p.alloc = (void *(*)(void *, size_t))1;
  expect_bad(&p, TSR_INVALID, "alloc");
  p = tsr_context_params_init();
  p.num_threads = -1;
  expect_bad(&p, TSR_INVALID, "num_threads");
  p.num_threads = 4097;
  expect_bad(&p, TSR_INVALID, "num_threads");
  p = tsr_context_params_init();
  p.log_level = 9;
  expect_bad(&p, TSR_INVALID, "log_level");
  p = tsr_context_params_init();
  p.parallel_for = (void (*)(void *, int64_t, void (*)(void *, int64_t, int32_t), void *))1;
  expect_bad(&p, TSR_INVALID, "num_threads");
  p = tsr_context_params_init();
  memset(huge, 'x', sizeof(huge));
  huge[99] = '\0';
  p.device = huge;
  expect_bad(&p, TSR_INVALID, "device");
  p.device = NULL;
  p.cpu_isa = huge;
  expect_bad(&p, TSR_INVALID, "cpu_isa");
  p = tsr_context_params_init();
  p.size = 3;
  assert_int_equal(tsr_context_create(&p, &(tsr_context *){NULL}, NULL), TSR_INVALID);
}

/* A newer caller's larger struct is accepted iff what this library does not know is zero. */
static void struct_growth(void **state) {
  struct {
    tsr_context_params p;
    char tail[24];
  } newer;
  tsr_context *c = NULL;
  (void)state;
  memset(&newer, 0, sizeof(newer));
  newer.p.size = sizeof(newer);
  c = make(&newer.p);
  tsr_context_destroy(c);
  newer.tail[20] = 1;
  assert_int_equal(tsr_context_create(&newer.p, &c, NULL), TSR_INVALID);
}

static void registry(void **state) {
  tsr_context *c = make(NULL);
  tsr_backend_info info = {.size = sizeof(info)};
  int cpu = 0, null = 0;
  (void)state;
  assert_true(tsr_backend_count(c) >= 2);
  assert_int_equal(tsr_backend_count(NULL), 0);
  for (int32_t i = 0; i < tsr_backend_count(c); i++) {
    assert_int_equal(tsr_backend_get(c, i, &info, NULL), TSR_OK);
    assert_true((info.device_count > 0) == (info.why_not == NULL));
    cpu += strcmp(info.name, "cpu") == 0;
    null += strcmp(info.name, "null") == 0;
  }
  assert_int_equal(cpu, 1);
  assert_int_equal(null, 1);
  assert_int_equal(tsr_backend_get(c, -1, &info, NULL), TSR_INVALID);
  assert_int_equal(tsr_backend_get(c, tsr_backend_count(c), &info, NULL), TSR_INVALID);
  assert_int_equal(tsr_backend_get(c, 0, NULL, NULL), TSR_INVALID);
  assert_int_equal(tsr_backend_get(NULL, 0, &info, NULL), TSR_INVALID);
  info.size = 0;
  assert_int_equal(tsr_backend_get(c, 0, &info, NULL), TSR_INVALID);
  tsr_context_destroy(c);
}

static void open_bad(tsr_context *c, const char *name, tsr_status status) {
  tsr_device *d = (tsr_device *)c;
  tsr_context_params p = tsr_context_params_init();
  tsr_context *other;
  tsr_error err;
  assert_int_equal(tsr_device_open(c, name, &d, &err), status);
  assert_null(d);
  assert_string_equal(err.field, "name");
  assert_true(strlen(err.text) > 10);
  p.device = name; /* the same as a preference, where "" is none */
  if (*name == '\0' || strlen(name) > 31) {
    return;
  }
  other = make(&p);
  assert_int_equal(tsr_device_open(other, NULL, &d, &err), status);
  assert_string_equal(err.field, "device");
  tsr_context_destroy(other);
}

/* Texts that are "" ask for nothing, even where the environment asks for something. */
static void empty_texts(void **state) {
  tsr_context_params p = tsr_context_params_init();
  tsr_context *c;
  tsr_device *d = NULL;
  tsr_device_info info = {.size = sizeof(info)};
  (void)state;
  setenv("TESSERA_DEVICE", "null", 1);
  setenv("TESSERA_CPU_ISA", "v99", 1);
  p.device = p.cpu_isa = "";
  c = make(&p);
  assert_int_equal(tsr_device_open(c, NULL, &d, NULL), TSR_OK);
  assert_int_equal(tsr_device_get(d, &info, NULL), TSR_OK);
  assert_int_equal(info.computes, 1);
  tsr_device_close(d);
  tsr_context_destroy(c);
  setenv("TESSERA_DEVICE", "", 1); /* as if unset */
  unsetenv("TESSERA_CPU_ISA");
  c = make(NULL);
  assert_int_equal(tsr_device_open(c, NULL, &d, NULL), TSR_OK);
  tsr_device_close(d);
  tsr_context_destroy(c);
  unsetenv("TESSERA_DEVICE");
}

static void device_names(void **state) {
  tsr_context *c = make(NULL);
  tsr_device *d = NULL;
  tsr_device_info info = {.size = sizeof(info)};
  tsr_error err;
  (void)state;
  assert_int_equal(tsr_device_open(NULL, "cpu", &d, NULL), TSR_INVALID);
  assert_int_equal(tsr_device_open(c, "cpu", NULL, NULL), TSR_INVALID);
  open_bad(c, "warp:0", TSR_BACKEND_MISSING);
  open_bad(c, "cpu:7", TSR_INVALID);
  assert_int_equal(tsr_device_open(c, "cpu:7", &d, &err), TSR_INVALID);
  assert_string_equal(err.text, "cpu:7: there is only one device, cpu:0");
  open_bad(c, "", TSR_INVALID);
  open_bad(c, "cpu:00", TSR_INVALID);
  open_bad(c, "cpu:01", TSR_INVALID);
  open_bad(c, "cpu:0 ", TSR_INVALID);
  open_bad(c, " cpu", TSR_BACKEND_MISSING);
  open_bad(c, "cpu:0:0", TSR_INVALID);
  open_bad(c, "cpu:", TSR_INVALID);
  open_bad(c, "cpu:x", TSR_INVALID);
  open_bad(c, "cpu:-1", TSR_INVALID);
  open_bad(c, "cpu:99999999999999999999", TSR_INVALID);
  open_bad(c, ":", TSR_INVALID);
  open_bad(c, "a device name that is much longer than any could be", TSR_INVALID);
  assert_int_equal(tsr_device_open(c, "cpu:0", &d, NULL), TSR_OK);
  tsr_device_close(d);
  assert_int_equal(tsr_device_open(c, NULL, &d, NULL), TSR_OK);
  tsr_context_destroy(c); /* the device keeps it */
  assert_int_equal(tsr_device_get(d, &info, NULL), TSR_OK);
  assert_int_equal(info.computes, 1);
  assert_true(info.num_threads >= 1);
  assert_true(strlen(info.description) > 5);
  assert_non_null(tsr_device_variant(d, TSR_OP_FORWARD, 0));
  assert_null(tsr_device_variant(d, TSR_OP_FORWARD, 1000));
  assert_null(tsr_device_variant(d, 77, 0));
  assert_null(tsr_device_variant(NULL, 0, 0));
  assert_int_equal(tsr_device_get(NULL, &info, NULL), TSR_INVALID);
  assert_int_equal(tsr_device_get(d, NULL, NULL), TSR_INVALID);
  tsr_device_close(d);
  tsr_device_close(NULL);
  tsr_context_destroy(NULL);
}

static void environment(void **state) {
  tsr_context_params p = tsr_context_params_init();
  tsr_context *c;
  tsr_device *d = NULL;
  tsr_device_info info = {.size = sizeof(info)};
  (void)state;
  setenv("TESSERA_DEVICE", "null", 1);
  setenv("TESSERA_THREADS", "3", 1);
  c = make(NULL);
  assert_int_equal(tsr_device_open(c, NULL, &d, NULL), TSR_OK);
  assert_int_equal(tsr_device_get(d, &info, NULL), TSR_OK);
  assert_string_equal(info.backend, "null");
  tsr_device_close(d);
  tsr_context_destroy(c);
  p.device = "cpu"; /* a field wins over the environment */
  c = make(&p);
  assert_int_equal(tsr_device_open(c, NULL, &d, NULL), TSR_OK);
  assert_int_equal(tsr_device_get(d, &info, NULL), TSR_OK);
  assert_string_equal(info.backend, "cpu");
  assert_int_equal(info.num_threads, 3);
  tsr_device_close(d);
  tsr_context_destroy(c);
  p.device = NULL;
  p.flags = TSR_CONTEXT_IGNORE_ENV;
  c = make(&p);
  assert_int_equal(tsr_device_open(c, NULL, &d, NULL), TSR_OK);
  assert_int_equal(tsr_device_get(d, &info, NULL), TSR_OK);
  assert_string_equal(info.backend, "cpu");
  tsr_device_close(d);
  tsr_context_destroy(c);
  setenv("TESSERA_THREADS", "many", 1); /* nonsense counts as unset */
  assert_int_equal(tsr__env_read().num_threads, 0);
  setenv("TESSERA_THREADS", "0", 1);
  assert_int_equal(tsr__env_read().num_threads, 0);
  unsetenv("TESSERA_THREADS");
  unsetenv("TESSERA_DEVICE");
}

/* Counts, and fails at the n-th allocation. */
typedef struct heap {
  int calls, fail_at, live;
} heap;

static void *heap_alloc(void *user, size_t bytes) {
  heap *h = user;
  void *p = NULL;
  if (++h->calls == h->fail_at || posix_memalign(&p, 64, bytes) != 0) {
    return NULL;
  }
  h->live++;
  return p;
}

static void heap_free(void *user, void *p) {
  heap *h = user;
  h->live--;
  free(p);
}

static tsr_status whole_life(heap *h) {
  static const float in[2 * 3 * 8] = {1};
  float out[2 * 3 * 8];
  tsr_context_params p = tsr_context_params_init();
  tsr_context *c = NULL;
  tsr_attention_desc d = tsr_attention_desc_init();
  tsr_run_args a = tsr_run_args_init();
  const char *const names[] = {"w"};
  tsr_status st;
  p.alloc = heap_alloc;
  p.free = heap_free;
  p.user = h;
  p.num_threads = 1;
  st = tsr_context_create(&p, &c, NULL);
  if (st != TSR_OK) {
    return st;
  }
  d.q = d.k = d.v = d.o = tsr_layout_dense(TSR_F32, 1, 2, 3, 8);
  d.score_expr = "score * w + float(i - j)";
  d.mask_expr = "j <= i";
  d.scalar_names = names;
  d.num_scalars = 1;
  a.scalars[0] = 0.5f;
  a.q = a.k = a.v = tsr_buffer_in(in);
  a.o = tsr_buffer_out(out);
  st = tsr_attention_once(c, &d, &a, NULL);
  tsr_context_destroy(c);
  return st;
}

static void every_allocation_may_fail(void **state) {
  heap h = {0, 0, 0};
  int total;
  (void)state;
  assert_int_equal(whole_life(&h), TSR_OK);
  assert_int_equal(h.live, 0);
  total = h.calls;
  assert_true(total >= 5);
  for (int n = 1; n <= total; n++) {
    h = (heap){0, n, 0};
    assert_int_equal(whole_life(&h), TSR_OUT_OF_MEMORY);
    assert_int_equal(h.live, 0);
  }
}

static int lines;
static char last_line[256];

static void log_line(void *user, int32_t level, const char *text) {
  (void)user;
  (void)level;
  lines++;
  snprintf(last_line, sizeof(last_line), "%s", text);
  assert_null(strchr(text, '\n'));
}

/* A hook may ask the context that it hears from. */
static void log_asks(void *user, int32_t level, const char *text) {
  tsr_context *const *c = user;
  (void)level;
  (void)text;
  for (int32_t i = 0; *c != NULL && i < tsr_backend_count(*c); i++) {
    tsr_backend_info info;
    info.size = sizeof(info);
    assert_int_equal(tsr_backend_get(*c, i, &info, NULL), TSR_OK);
    lines += info.device_count > 0;
  }
}

static void log_hook_may_ask(void **state) {
  tsr_context_params p = tsr_context_params_init();
  tsr_context *c = NULL;
  tsr_backend_info info;
  (void)state;
  p.log = log_asks;
  p.log_level = TSR_LOG_DEBUG;
  p.user = &c;
  lines = 0;
  assert_int_equal(tsr_context_create(&p, &c, NULL), TSR_OK);
  info.size = sizeof(info);
  assert_int_equal(tsr_backend_get(c, 0, &info, NULL), TSR_OK);
  assert_true(lines > 0);
  tsr_context_destroy(c);
}

/* The null device records each launch, and a module of it loads from an explicit path. */
static void null_and_module(void **state) {
  static const char *const devices[] = {"null", "nullmodule"};
  tsr_context_params p = tsr_context_params_init();
  tsr_context *c;
  tsr_error err;
  (void)state;
  p.log = log_line;
  p.log_level = TSR_LOG_DEBUG;
  c = make(&p);
  assert_int_equal(tsr_backend_load(c, "nullmodule.so", &err), TSR_INVALID);
  assert_int_equal(tsr_backend_load(c, "./no/such/file.so", &err), TSR_IO);
  assert_int_equal(tsr_backend_load(c, NULL, &err), TSR_INVALID);
  assert_int_equal(tsr_backend_load(NULL, "./x.so", &err), TSR_INVALID);
  assert_int_equal(tsr_backend_load(c, TSR_NOT_A_MODULE, &err), TSR_INVALID);
  assert_int_equal(tsr_backend_load(c, TSR_NULL_MODULE, &err), TSR_OK);
  assert_int_equal(tsr_backend_load(c, TSR_NULL_MODULE, &err), TSR_UNSUPPORTED); /* the name is taken */
  for (int i = 0; i < 2; i++) {
    tsr_device *d = NULL;
    tsr_plan *plan = NULL;
    tsr_attention_desc desc = tsr_attention_desc_init();
    tsr_run_args a = tsr_run_args_init();
    float in[64] = {0}, out[64];
    memset(out, 0xee, sizeof(out));
    assert_int_equal(tsr_device_open(c, devices[i], &d, NULL), TSR_OK);
    desc.q = desc.k = desc.v = desc.o = tsr_layout_dense(TSR_F32, 1, 4, 2, 8);
    desc.num_splits = 2;
    assert_int_equal(tsr_plan_attention(d, &desc, &plan, &err), TSR_OK);
    assert_string_equal(tsr_plan_launch(plan, 0), "forward");
    assert_string_equal(tsr_plan_launch(plan, 1), "merge");
    assert_null(tsr_plan_launch(plan, 2));
    a.q = a.k = a.v = tsr_buffer_in(in);
    a.o = tsr_buffer_out(out);
    lines = 0;
    assert_int_equal(tsr_run_attention(plan, &a, &err), TSR_OK);
    assert_int_equal(lines, 2);
    assert_non_null(strstr(last_line, "launch merge, 2 items"));
    for (size_t k = 0; k < sizeof(out); k++) {
      assert_int_equal(((unsigned char *)out)[k], 0xee); /* it computes nothing */
    }
    tsr_plan_destroy(plan);
    tsr_device_close(d);
  }
  tsr_context_destroy(c);
}

static void levels(void **state) {
  tsr_context_params p = tsr_context_params_init();
  tsr_context *c;
  tsr_device *d = NULL;
  (void)state;
  assert_true(strlen(tsr_cpu_levels()) >= 4);
  p.cpu_isa = "v99";
  c = make(&p);
  assert_int_equal(tsr_device_open(c, "cpu", &d, NULL), TSR_UNSUPPORTED);
  tsr_context_destroy(c);
}

/* ---- fork ---------------------------------------------------------------------------------------- */

static tsr_status run_once(int32_t threads) {
  float in[4 * 64 * 8] = {0}, out[4 * 64 * 8];
  tsr_context_params p = tsr_context_params_init();
  tsr_attention_desc d = tsr_attention_desc_init();
  tsr_run_args a = tsr_run_args_init();
  tsr_context *c = NULL;
  tsr_status st;
  p.num_threads = threads;
  if (tsr_context_create(&p, &c, NULL) != TSR_OK) {
    return -1;
  }
  d.q = d.k = d.v = d.o = tsr_layout_dense(TSR_F32, 1, 64, 4, 8);
  a.q = a.k = a.v = tsr_buffer_in(in);
  a.o = tsr_buffer_out(out);
  st = tsr_attention_once(c, &d, &a, NULL);
  tsr_context_destroy(c);
  return st;
}

static void fork_after_a_run(void **state) {
  int status = 0;
  pid_t child;
  (void)state;
  assert_int_equal(run_once(2), TSR_OK);
  child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(20); /* a hang is a failure, not a wait */
    const tsr_status many = run_once(2), one = run_once(1);
    _exit(many == TSR_FORKED || many == TSR_OK ? (one == TSR_OK ? (many == TSR_FORKED ? 10 : 11) : 2) : 1);
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
#if defined(TSR_TEST_OPENMP)
  assert_int_equal(WEXITSTATUS(status), 10);
#else
  assert_int_equal(WEXITSTATUS(status), 11);
#endif
  assert_int_equal(run_once(2), TSR_OK); /* the parent is as before */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bad_params),       cmocka_unit_test(struct_growth),
      cmocka_unit_test(registry),         cmocka_unit_test(device_names),
      cmocka_unit_test(environment),      cmocka_unit_test(every_allocation_may_fail),
      cmocka_unit_test(null_and_module),  cmocka_unit_test(levels),
      cmocka_unit_test(fork_after_a_run), cmocka_unit_test(empty_texts),
      cmocka_unit_test(log_hook_may_ask),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
