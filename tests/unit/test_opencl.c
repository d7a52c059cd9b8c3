/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenCL back end as its users see it: which devices there are, what is said when there are none, devices on the
 * caller's handles, runs on the caller's queue, fork. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "opencl_fixture.h"
#include "random.h"
#include "tessera/plan.h"

static opencl_fixture fixture;

/* ---- Without a driver ------------------------------------------------------------------------- */

/* Runs `body` in a child, which must not have used OpenCL before; 0 if it was content. */
static int in_child(int (*body)(void)) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    _exit(body());
  }
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static int why_not_is(const char *path, const char *part) {
  tsr_context_params p = tsr_context_params_init();
  tsr_backend_info info = {.size = sizeof(info)};
  tsr_context *c = NULL;
  tsr_device *d = NULL;
  tsr_error err;
  int ok = 0;
  p.flags = TSR_CONTEXT_IGNORE_ENV;
  p.opencl_path = path;
  if (tsr_context_create(&p, &c, NULL) != TSR_OK) {
    return 1;
  }
  for (int32_t i = 0; i < tsr_backend_count(c); i++) {
    if (tsr_backend_get(c, i, &info, NULL) == TSR_OK && strcmp(info.name, "opencl") == 0) {
      ok = info.device_count == 0 && strstr(info.why_not, part) != NULL && strchr(info.why_not, '\n') == NULL;
    }
  }
  ok = ok && tsr_device_open(c, "opencl", &d, &err) == TSR_BACKEND_MISSING && strstr(err.text, part) != NULL;
  ok = ok && tsr_device_open(c, "cpu", &d, NULL) == TSR_OK; /* nothing else is the worse for it */
  tsr_device_close(d);
  tsr_context_destroy(c);
  return !ok;
}

#if !defined(TSR_CL_LINK)
static int no_library(void) {
  return why_not_is("/nowhere/libOpenCL.so.1", "/nowhere/libOpenCL.so.1 was not found");
}

static int not_opencl(void) {
  return why_not_is("libm.so.6", "libm.so.6 has no clGet");
}
#endif

static int no_driver(void) {
  setenv("OCL_ICD_VENDORS", "/nowhere", 1);
  setenv("OPENCL_VENDOR_PATH", "/nowhere", 1);
  return why_not_is("", "no driver is");
}

static void missing(void **state) {
  (void)state;
#if !defined(TSR_CL_LINK) /* a linked library is not opened */
  assert_int_equal(in_child(no_library), 0);
  assert_int_equal(in_child(not_opencl), 0);
#endif
  assert_int_equal(in_child(no_driver), 0);
}

/* ---- Devices ---------------------------------------------------------------------------------- */

static void describes_itself(void **state) {
  tsr_device_info info = {.size = sizeof(info)};
  tsr_opencl_handles h = {.size = sizeof(h)};
  tsr_device *cpu = NULL;
  char text[256] = "";
  (void)state;
  assert_int_equal(tsr_device_get(fixture.device, &info, NULL), TSR_OK);
  assert_string_equal(info.name, "opencl:0");
  assert_string_equal(info.backend, "opencl");
  assert_true(info.computes && !info.host_memory && info.num_threads >= 1 && info.local_bytes >= 16384);
  assert_true(info.memory_kinds & 1 << TSR_MEMORY_CL_MEM);
  assert_false(info.memory_kinds & 1 << TSR_MEMORY_HOST);
  assert_int_equal(tsr_opencl_device_get(fixture.device, &h, NULL), TSR_OK);
  fixture.own->cl.GetDeviceInfo(h.device, TSR__CL_DRIVER_VERSION, sizeof(text), text, NULL);
  assert_non_null(strstr(info.description, text));
  assert_true(h.context != NULL && h.queue != NULL && h.platform != NULL);
  assert_int_equal(tsr_device_open(fixture.context, "cpu", &cpu, NULL), TSR_OK);
  assert_int_equal(tsr_opencl_device_get(cpu, &h, NULL), TSR_INVALID);
  assert_int_equal(tsr_opencl_device_get(NULL, &h, NULL), TSR_INVALID);
  assert_int_equal(tsr_opencl_device_get(fixture.device, NULL, NULL), TSR_INVALID);
  tsr_device_close(cpu);
  assert_int_equal(tsr_device_open(fixture.context, "opencl:63", &cpu, NULL), TSR_INVALID);
}

static void statuses(void **state) {
  tsr_error err;
  (void)state;
  assert_int_equal(tsr__opencl_status(TSR__CL_SUCCESS), TSR_OK);
  assert_int_equal(tsr__opencl_status(TSR__CL_MEM_OBJECT_ALLOCATION_FAILURE), TSR_OUT_OF_MEMORY);
  assert_int_equal(tsr__opencl_status(TSR__CL_OUT_OF_HOST_MEMORY), TSR_OUT_OF_MEMORY);
  assert_int_equal(tsr__opencl_status(TSR__CL_OUT_OF_RESOURCES), TSR_DEVICE_ERROR);
  assert_int_equal(tsr__opencl_status(TSR__CL_DEVICE_NOT_AVAILABLE), TSR_DEVICE_LOST);
  assert_int_equal(tsr__opencl_status(TSR__CL_INVALID_MEM_OBJECT), TSR_INVALID);
  assert_int_equal(tsr__opencl_status(-9999), TSR_DEVICE_ERROR);
  assert_int_equal(tsr__opencl_fail(&err, TSR__CL_OUT_OF_RESOURCES, "", "clFinish"), TSR_DEVICE_ERROR);
  assert_string_equal(err.text, "clFinish: CL_OUT_OF_RESOURCES");
  assert_int_equal(err.native_code, TSR__CL_OUT_OF_RESOURCES);
  assert_int_equal(tsr__opencl_fail(&err, -9999, "", "clFinish"), TSR_DEVICE_ERROR);
  assert_non_null(strstr(err.text, "-9999"));
}

/* ---- On the caller's handles ------------------------------------------------------------------ */

/* What a program that uses OpenCL has. */
struct owner {
  tsr__cl_context context;
  tsr__cl_queue queue;
};

static struct owner make_owner(uint64_t properties) {
  struct owner o;
  int32_t error = 0;
  tsr__cl_device device = fixture.own->device;
  o.context = fixture.own->cl.CreateContext(NULL, 1, &device, NULL, NULL, &error);
  assert_int_equal(error, TSR__CL_SUCCESS);
  o.queue = fixture.own->cl.CreateCommandQueue(o.context, device, properties, &error);
  assert_int_equal(error, TSR__CL_SUCCESS);
  return o;
}

static void free_owner(struct owner *o) {
  fixture.own->cl.ReleaseCommandQueue(o->queue);
  fixture.own->cl.ReleaseContext(o->context);
}

static void bad_handles(void **state) {
  struct owner a = make_owner(0), b = make_owner(0);
  tsr_opencl_params p = tsr_opencl_params_init();
  tsr_device *d = NULL;
  tsr_error err;
  (void)state;
  assert_int_equal(tsr_opencl_device_open(NULL, &p, &d, NULL), TSR_INVALID);
  assert_int_equal(tsr_opencl_device_open(fixture.context, NULL, &d, NULL), TSR_INVALID);
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, NULL, NULL), TSR_INVALID);
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, &d, &err), TSR_INVALID);
  assert_string_equal(err.field, "context");
  p.context = a.context;
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, &d, &err), TSR_INVALID);
  assert_string_equal(err.field, "device");
  p.device = &p; /* only compared */
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, &d, &err), TSR_INVALID);
  assert_string_equal(err.field, "device");
  p.device = fixture.own->device;
  p.queue = b.queue;
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, &d, &err), TSR_INVALID);
  assert_string_equal(err.field, "queue");
  assert_null(d);
  p.size = 1;
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, &d, &err), TSR_INVALID);
  free_owner(&a);
  free_owner(&b);
}

enum { S = 33, H = 2, D = 16, N = S * H * D };

static tsr_attention_desc small_desc(void) {
  tsr_attention_desc a = tsr_attention_desc_init();
  a.q = a.k = a.v = a.o = tsr_layout_dense(TSR_F32, 1, S, H, D);
  a.flags = TSR_CAUSAL;
  return a;
}

/* Largest difference of causal attention from a plain double loop. */
static double difference(const float *q, const float *k, const float *v, const float *o, float scale) {
  double worst = 0;
  for (int h = 0; h < H; h++) {
    for (int i = 0; i < S; i++) {
      double p[S], sum = 0, max = -INFINITY;
      for (int j = 0; j <= i; j++) {
        p[j] = 0;
        for (int e = 0; e < D; e++) {
          p[j] += (double)q[(i * H + h) * D + e] * k[(j * H + h) * D + e] * scale;
        }
        max = p[j] > max ? p[j] : max;
      }
      for (int j = 0; j <= i; j++) {
        p[j] = exp(p[j] - max);
        sum += p[j];
      }
      for (int e = 0; e < D; e++) {
        double x = 0, delta;
        for (int j = 0; j <= i; j++) {
          x += p[j] * v[(j * H + h) * D + e];
        }
        delta = fabs(x / sum - o[(i * H + h) * D + e]);
        worst = delta <= worst ? worst : delta; /* a NaN is the worst */
      }
    }
  }
  return worst;
}

/* An OpenCL program with its own context, buffers and queue runs attention between its own commands, and the device is
 * gone before they are done. */
static void program_with_its_own_queue(uint64_t properties) {
  struct owner o = make_owner(properties);
  const tsr__cl *cl = &fixture.own->cl;
  const tsr_attention_desc desc = small_desc();
  tsr_opencl_params p = tsr_opencl_params_init();
  tsr_run_args args = tsr_run_args_init();
  tsr_opencl_handles handles = {.size = sizeof(handles)};
  tsr_plan_info info = {.size = sizeof(info)};
  tsr_device *device = NULL;
  tsr_plan *plan = NULL;
  tsr_error err;
  tsr__cl_event written[4], gate = fixture.CreateUserEvent(o.context, NULL), done = NULL;
  const void *wait[4];
  tsr__cl_mem mem[4];
  float host[4][N];
  int32_t error = 0;
  p.context = o.context;
  p.device = fixture.own->device;
  p.queue = o.queue;
  assert_int_equal(tsr_opencl_device_open(fixture.context, &p, &device, NULL), TSR_OK);
  assert_int_equal(tsr_opencl_device_get(device, &handles, NULL), TSR_OK);
  assert_true(handles.context == o.context && handles.queue == o.queue && handles.device == p.device);
  if (tsr_plan_attention(device, &desc, &plan, &err) != TSR_OK) {
    fail_msg("no plan: %s", err.text);
  }
  assert_int_equal(tsr_plan_get(plan, &info, NULL), TSR_OK);
  assert_int_equal(info.workspace_bytes, 0);
  for (int t = 0; t < 4; t++) {
    for (int i = 0; i < N; i++) {
      host[t][i] = t < 3 ? random_value() : NAN;
    }
    mem[t] = cl->CreateBuffer(o.context, TSR__CL_MEM_READ_WRITE, sizeof(host[t]) + 256, NULL, &error);
    error = cl->EnqueueWriteBuffer(o.queue, mem[t], 0, 256, sizeof(host[t]), host[t], t == 0, t == 0 ? &gate : NULL,
                                   &written[t]);
    assert_int_equal(error, TSR__CL_SUCCESS);
    wait[t] = written[t];
  }
  args.q = tsr_buffer_out(mem[0]);
  args.k = tsr_buffer_out(mem[1]);
  args.v = tsr_buffer_out(mem[2]);
  args.o = tsr_buffer_out(mem[3]);
  args.q.offset_bytes = args.k.offset_bytes = args.v.offset_bytes = args.o.offset_bytes = 256;
  args.scale = 0.25f;
  args.queue = o.queue;
  args.wait_events = wait;
  args.num_wait_events = 4;
  args.event = (void **)&done;
  assert_int_equal(tsr_run_attention(plan, &args, &err), TSR_OK);
  assert_non_null(done);
  tsr_plan_destroy(plan);
  tsr_device_close(device);
  fixture.SetUserEventStatus(gate, STATUS_COMPLETE);
  error = cl->EnqueueReadBuffer(o.queue, mem[3], 1, 256, sizeof(host[3]), host[3], 1, &done, NULL);
  assert_int_equal(error, TSR__CL_SUCCESS);
  assert_true(difference(host[0], host[1], host[2], host[3], args.scale) < 1e-5);
  for (int t = 0; t < 4; t++) {
    cl->ReleaseEvent(written[t]);
    cl->ReleaseMemObject(mem[t]);
  }
  cl->ReleaseEvent(done);
  cl->ReleaseEvent(gate);
  free_owner(&o);
}

static void in_order_program(void **state) {
  (void)state;
  program_with_its_own_queue(0);
}

static void out_of_order_program(void **state) {
  (void)state;
  program_with_its_own_queue(TSR__CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
}

/* ---- Fork ------------------------------------------------------------------------------------- */

static int child_is_told(void) {
  void *ptr = NULL;
  tsr_device *d = NULL;
  tsr_error err;
  tsr_opencl_params p = tsr_opencl_params_init();
  int bad = tsr_memory_alloc(fixture.device, 64, &ptr, &err) != TSR_FORKED || strstr(err.text, "fork()") == NULL;
  bad |= tsr_device_wait(fixture.device, NULL, NULL) != TSR_FORKED;
  bad |= tsr_device_open(fixture.context, "opencl:0", &d, NULL) != TSR_FORKED;
  p.context = fixture.own->context;
  p.device = fixture.own->device;
  bad |= tsr_opencl_device_open(fixture.context, &p, &d, NULL) != TSR_FORKED;
  bad |= why_not_is("", "fork()");
  fixture_close(&fixture); /* calls no driver */
  return bad;
}

static void forked(void **state) {
  void *ptr = NULL;
  (void)state;
  assert_int_equal(in_child(child_is_told), 0);
  assert_int_equal(tsr_memory_alloc(fixture.device, 64, &ptr, NULL), TSR_OK); /* the parent goes on */
  tsr_memory_free(fixture.device, ptr);
}

int main(void) {
  const struct CMUnitTest before[] = {cmocka_unit_test(missing)};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(describes_itself),     cmocka_unit_test(statuses),
      cmocka_unit_test(bad_handles),          cmocka_unit_test(in_order_program),
      cmocka_unit_test(out_of_order_program), cmocka_unit_test(forked),
  };
  int failed = cmocka_run_group_tests_name("without a driver", before, NULL, NULL);
  random_seed();
  if (failed != 0 || !fixture_open(&fixture, 0)) {
    return failed != 0 ? failed : NO_DEVICE;
  }
  failed = cmocka_run_group_tests(tests, NULL, NULL);
  fixture_close(&fixture);
  return failed;
}
