/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenCL driver by itself: images, kernels on many threads, queues, events, buffers and SVM, on a kernel of the
 * test's own. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "opencl_fixture.h"
#include "random.h"

/* What the kernel is told by value; larger than the 1024 bytes that some devices name as their limit. */
struct step {
  int64_t offset_bytes, n;
  int32_t times, plus;
  int32_t filler[300];
};

/* x = x * times + plus on words of `data` from an offset on, by one group; of `extra` it says whether it is there. */
static const char *const step_text[] = {
    "typedef struct { long offset_bytes, n; int times, plus; int filler[300]; } step_args;\n",
    "__kernel __attribute__((reqd_work_group_size(THREADS, 1, 1)))\n"
    "void walk(__global void *data, __global const int *extra, __global int *present, step_args a) {\n"
    "  __local int sum[THREADS];\n"
    "  __global int *x = (__global int *)((__global char *)data + a.offset_bytes);\n"
    "  long i = get_global_id(0);\n"
    "  sum[get_local_id(0)] = a.filler[get_local_id(0) % 300];\n"
    "  barrier(CLK_LOCAL_MEM_FENCE);\n",
    "  for (; i < a.n; i += get_global_size(0)) x[i] = x[i] * a.times + a.plus + sum[(get_local_id(0) + 1) % "
    "THREADS];\n"
    "  if (get_global_id(0) == 0 && present) present[0] = extra ? 1 + extra[0] : 1;\n"
    "}\n",
    NULL};

static const tsr__gpu_source step_source = {"walk", "#define THREADS 64\n", "", step_text};

static opencl_fixture fixture;

static void *load_step(void) {
  tsr_error err;
  void *image = NULL, *function = NULL;
  size_t bytes = 0;
  assert_int_equal(fixture.driver->compile(fixture.dev, &step_source, &image, &bytes, &err), TSR_OK);
  assert_true(bytes > 0);
  assert_int_equal(fixture.driver->load(fixture.dev, image, bytes, "walk", 64, &function, &err), TSR_OK);
  tsr__alloc_free(&fixture.dev->host->alloc, image);
  return function;
}

/* A start of the kernel and what it is told. */
struct start {
  struct step step;
  tsr__gpu_param params[4];
  tsr__gpu_call call;
};

static void make_start(struct start *s, void *function, const void *data, const void *extra, const void *present,
                       int64_t n, int32_t times, int32_t plus) {
  memset(s, 0, sizeof(*s));
  s->step.n = n;
  s->step.times = times;
  s->step.plus = plus;
  s->params[0].data = data;
  s->params[1].data = extra;
  s->params[2].data = present;
  s->params[3].data = &s->step;
  s->params[3].bytes = sizeof(s->step);
  s->call.function = function;
  s->call.groups = 1;
  s->call.threads = 64;
  s->call.num_params = 4;
  s->call.params = s->params;
}

static void *make_buffer(int64_t words, int32_t value) {
  void *ptr = NULL;
  int32_t *host = malloc((size_t)words * 4);
  for (int64_t i = 0; i < words; i++) {
    host[i] = value;
  }
  assert_int_equal(tsr_memory_alloc(fixture.device, words * 4, &ptr, NULL), TSR_OK);
  const tsr_buffer b = tsr_buffer_out(ptr);
  assert_int_equal(tsr_memory_write(fixture.device, &b, host, words * 4, NULL), TSR_OK);
  free(host);
  return ptr;
}

static void read_words(void *buffer, int64_t offset_bytes, int32_t *out, int64_t words) {
  tsr_buffer b = tsr_buffer_out(buffer);
  b.offset_bytes = offset_bytes;
  assert_int_equal(tsr_memory_read(fixture.device, out, &b, words * 4, NULL), TSR_OK);
}

static tsr_status enqueue(const tsr__gpu_queue *queue, const tsr__gpu_call *calls, int32_t n, tsr_error *err) {
  return fixture.driver->enqueue(fixture.dev, queue, calls, n, err);
}

/* ---- Images ----------------------------------------------------------------------------------- */

static void runs_and_null_params(void **state) {
  void *function = load_step(), *data = make_buffer(1000, 5), *present = make_buffer(1, -1), *extra = make_buffer(1, 7);
  const tsr__gpu_queue queue = {0};
  struct start s;
  int32_t out[1000], there;
  (void)state;
  make_start(&s, function, data, NULL, present, 1000, 3, 2);
  for (int32_t i = 0; i < 300; i++) {
    s.step.filler[i] = 1000 * i;
  }
  assert_int_equal(enqueue(&queue, &s.call, 1, NULL), TSR_OK);
  read_words(data, 0, out, 1000);
  read_words(present, 0, &there, 1);
  for (int32_t i = 0; i < 1000; i++) {
    assert_int_equal(out[i], 5 * 3 + 2 + 1000 * ((i % 64 + 1) % 64));
  }
  assert_int_equal(there, 1); /* extra is absent */
  s.params[1].data = extra;   /* the same kernel object with other arguments */
  s.params[0].data = NULL;
  s.step.n = 0;
  assert_int_equal(enqueue(&queue, &s.call, 1, NULL), TSR_OK);
  read_words(present, 0, &there, 1);
  assert_int_equal(there, 8);
  s.params[1].data = NULL; /* and absent again */
  assert_int_equal(enqueue(&queue, &s.call, 1, NULL), TSR_OK);
  read_words(present, 0, &there, 1);
  assert_int_equal(there, 1);
  tsr_memory_free(fixture.device, data);
  tsr_memory_free(fixture.device, present);
  tsr_memory_free(fixture.device, extra);
  fixture.driver->unload(fixture.dev, function);
}

static void bad_images(void **state) {
  void *image = NULL, *function = NULL;
  size_t bytes = 0;
  tsr_error err;
  (void)state;
  assert_int_equal(fixture.driver->compile(fixture.dev, &step_source, &image, &bytes, &err), TSR_OK);
  assert_int_equal(fixture.driver->load(fixture.dev, image, bytes, "walk", 64, &function, &err), TSR_OK);
  fixture.driver->unload(fixture.dev, function);
  assert_int_equal(fixture.driver->load(fixture.dev, image, bytes, "stop", 64, &function, &err), TSR_INVALID);
  assert_non_null(strstr(err.text, "stop"));
  assert_int_equal(fixture.driver->load(fixture.dev, image, 0, "walk", 64, &function, &err), TSR_INVALID);
  assert_int_equal(fixture.driver->load(fixture.dev, "nothing at all", 14, "walk", 64, &function, &err), TSR_INVALID);
  assert_int_equal(err.status, TSR_INVALID);
  memset(image, 0xa5, bytes < 64 ? bytes : 64);
  assert_int_equal(fixture.driver->load(fixture.dev, image, bytes, "walk", 64, &function, &err), TSR_INVALID);
  tsr__alloc_free(&fixture.dev->host->alloc, image);
  const int32_t too_many = tsr__gpu_of(fixture.dev)->max_threads + 1;
  assert_int_equal(fixture.driver->compile(fixture.dev, &step_source, &image, &bytes, &err), TSR_OK);
  assert_int_equal(fixture.driver->load(fixture.dev, image, bytes, "walk", too_many, &function, &err), TSR_UNSUPPORTED);
  tsr__alloc_free(&fixture.dev->host->alloc, image);
}

static void bad_source(void **state) {
  static const char *const pieces[] = {"__kernel void f(__global int *x) {\n", "  x[0] = nowhere_declared;\n}\n", NULL};
  const tsr__gpu_source source = {"f", "#define A 1\n", "", pieces};
  void *image = NULL;
  size_t bytes = 0;
  tsr_error err;
  int seen = 0;
  (void)state;
  fixture.num_log = 0;
  assert_int_equal(fixture.driver->compile(fixture.dev, &source, &image, &bytes, &err), TSR_DEVICE_ERROR);
  assert_null(image);
  assert_int_equal(err.native_code, TSR__CL_BUILD_PROGRAM_FAILURE);
  assert_non_null(strstr(err.text, "nowhere_declared"));
  assert_null(strchr(err.text, '\n'));
  for (int i = 0; i < fixture.num_log; i++) {
    seen |= strstr(fixture.log[i], "nowhere_declared") != NULL;
    assert_null(strchr(fixture.log[i], '\n'));
  }
  assert_true(seen);
}

/* ---- Threads ---------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 60, WORDS = 300 };

struct worker {
  void *function, *data;
  int32_t times, plus;
  int bad;
};

static void *work(void *arg) {
  struct worker *w = arg;
  const tsr__gpu_queue queue = {0};
  for (int round = 0; round < ROUNDS; round++) {
    struct start s;
    make_start(&s, w->function, w->data, NULL, NULL, WORDS, w->times, w->plus + round);
    w->bad |= fixture.driver->enqueue(fixture.dev, &queue, &s.call, 1, NULL) != TSR_OK;
  }
  return NULL;
}

static void many_threads(void **state) {
  pthread_t threads[THREADS];
  struct worker workers[THREADS];
  void *function = load_step();
  (void)state;
  for (int i = 0; i < THREADS; i++) {
    const struct worker w = {function, make_buffer(WORDS, i), 3 + 2 * i, 17 * i, 0};
    workers[i] = w;
  }
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
  }
  for (int i = 0; i < THREADS; i++) {
    int32_t out[WORDS];
    uint32_t want = (uint32_t)i;
    for (int round = 0; round < ROUNDS; round++) {
      want = want * (uint32_t)workers[i].times + (uint32_t)(workers[i].plus + round);
    }
    assert_int_equal(workers[i].bad, 0);
    read_words(workers[i].data, 0, out, WORDS);
    for (int k = 0; k < WORDS; k++) {
      assert_int_equal(out[k], (int32_t)want);
    }
    tsr_memory_free(fixture.device, workers[i].data);
  }
  fixture.driver->unload(fixture.dev, function);
}

/* ---- Queues and events ------------------------------------------------------------------------ */

enum { CHAIN = 12 };

static uint32_t fill_chain(struct start *starts, tsr__gpu_call *calls, void *function, void *data, uint32_t value) {
  for (int i = 0; i < CHAIN; i++) {
    make_start(&starts[i], function, data, NULL, NULL, 4096, 3, i + 1);
    calls[i] = starts[i].call;
    value = value * 3u + (uint32_t)(i + 1);
  }
  return value;
}

static void chain_on(tsr__cl_queue handle) {
  void *function = load_step(), *data = make_buffer(4096, 2);
  struct start *starts = calloc(CHAIN, sizeof(*starts));
  tsr__gpu_call calls[CHAIN];
  const uint32_t want = fill_chain(starts, calls, function, data, 2);
  tsr__cl_event gate = fixture.CreateUserEvent(fixture.own->context, NULL), done = NULL;
  const void *wait[1] = {gate};
  tsr__gpu_queue queue = {0};
  int32_t out[4096], status = -1;
  queue.queue = handle;
  queue.wait_events = wait;
  queue.num_wait_events = 1;
  queue.event = (void **)&done;
  assert_non_null(gate);
  assert_int_equal(enqueue(&queue, calls, CHAIN, NULL), TSR_OK); /* returns though nothing may run yet */
  assert_non_null(done);
  fixture.own->cl.Flush(handle);
  fixture.GetEventInfo(done, EVENT_EXECUTION_STATUS, sizeof(status), &status, NULL);
  assert_true(status > STATUS_COMPLETE);
  fixture.SetUserEventStatus(gate, STATUS_COMPLETE);
  assert_int_equal(fixture.WaitForEvents(1, &done), TSR__CL_SUCCESS);
  fixture.GetEventInfo(done, EVENT_EXECUTION_STATUS, sizeof(status), &status, NULL);
  assert_int_equal(status, STATUS_COMPLETE);
  read_words(data, 0, out, 4096);
  for (int i = 0; i < 4096; i++) {
    assert_int_equal((uint32_t)out[i], want);
  }
  fixture.own->cl.ReleaseEvent(done);
  fixture.own->cl.ReleaseEvent(gate);
  tsr_memory_free(fixture.device, data);
  fixture.driver->unload(fixture.dev, function);
  free(starts);
}

static tsr__cl_queue make_queue(uint64_t properties) {
  int32_t error = 0;
  tsr__cl_queue queue =
      fixture.own->cl.CreateCommandQueue(fixture.own->context, fixture.own->device, properties, &error);
  assert_int_equal(error, TSR__CL_SUCCESS);
  return queue;
}

static void in_order_queue(void **state) {
  tsr__cl_queue queue = make_queue(0);
  (void)state;
  chain_on(queue);
  chain_on(fixture.own->queue);
  fixture.own->cl.ReleaseCommandQueue(queue);
}

static void out_of_order_queue(void **state) {
  tsr__cl_queue queue = make_queue(TSR__CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
  (void)state;
  for (int i = 0; i < 10; i++) {
    chain_on(queue);
  }
  fixture.own->cl.ReleaseCommandQueue(queue);
}

static void event_of_nothing(void **state) {
  tsr__cl_event done = NULL;
  tsr__gpu_queue queue = {0};
  (void)state;
  queue.event = (void **)&done;
  assert_int_equal(enqueue(&queue, NULL, 0, NULL), TSR_OK);
  assert_non_null(done);
  assert_int_equal(fixture.WaitForEvents(1, &done), TSR__CL_SUCCESS);
  fixture.own->cl.ReleaseEvent(done);
}

/* The device is closed while its work waits; the caller's own objects see the work through. */
static void closed_before_the_work_is_done(void **state) {
  int32_t error = 0;
  tsr__cl_device device = fixture.own->device;
  tsr__cl_context context = fixture.own->cl.CreateContext(NULL, 1, &device, NULL, NULL, &error);
  tsr__cl_queue handle = fixture.own->cl.CreateCommandQueue(context, device, 0, &error);
  tsr__cl_event gate = fixture.CreateUserEvent(context, NULL);
  const void *wait[1] = {gate};
  const tsr__gpu_queue queue = {.wait_events = wait, .num_wait_events = 1};
  opencl_fixture whole = fixture; /* the functions above work on the global one */
  tsr_opencl_params p = tsr_opencl_params_init();
  tsr__cl_mem kept;
  struct start s;
  int32_t out[64];
  (void)state;
  p.context = context;
  p.device = device;
  p.queue = handle;
  assert_int_equal(tsr_opencl_device_open(whole.context, &p, &fixture.device, NULL), TSR_OK);
  fixture.dev = tsr__device_of(fixture.device, &tsr__backend_opencl);
  void *function = load_step();
  kept = fixture.own->cl.CreateBuffer(context, TSR__CL_MEM_READ_WRITE, sizeof(out), NULL, &error);
  memset(out, 0, sizeof(out));
  fixture.own->cl.EnqueueWriteBuffer(handle, kept, 1, 0, sizeof(out), out, 0, NULL, NULL);
  make_start(&s, function, kept, NULL, NULL, 64, 1, 41);
  assert_int_equal(enqueue(&queue, &s.call, 1, NULL), TSR_OK);
  fixture.driver->unload(fixture.dev, function);
  tsr_device_close(fixture.device);
  fixture = whole;
  fixture.SetUserEventStatus(gate, STATUS_COMPLETE);
  error = fixture.own->cl.EnqueueReadBuffer(handle, kept, 1, 0, sizeof(out), out, 0, NULL, NULL);
  assert_int_equal(error, TSR__CL_SUCCESS);
  for (int i = 0; i < 64; i++) {
    assert_int_equal(out[i], 41);
  }
  fixture.own->cl.ReleaseEvent(gate);
  fixture.own->cl.ReleaseMemObject(kept);
  fixture.own->cl.ReleaseCommandQueue(handle);
  fixture.own->cl.ReleaseContext(context);
}

static void handles_of_another_context(void **state) {
  int32_t error = 0;
  tsr__cl_device device = fixture.own->device;
  tsr__cl_context other = fixture.own->cl.CreateContext(NULL, 1, &device, NULL, NULL, &error);
  tsr__cl_queue foreign = fixture.own->cl.CreateCommandQueue(other, device, 0, &error);
  tsr__cl_mem theirs = fixture.own->cl.CreateBuffer(other, TSR__CL_MEM_READ_WRITE, 4096, NULL, &error);
  void *function = load_step(), *data = make_buffer(64, 0);
  tsr__gpu_queue queue = {0};
  struct start s;
  tsr_error err;
  (void)state;
  make_start(&s, function, data, NULL, NULL, 64, 1, 1);
  queue.queue = foreign;
  assert_int_equal(enqueue(&queue, &s.call, 1, &err), TSR_INVALID);
  assert_string_equal(err.field, "queue");
  queue.queue = NULL;
  s.params[0].data = theirs; /* the fixture's context validates */
  assert_int_equal(enqueue(&queue, &s.call, 1, &err), TSR_INVALID);
  assert_non_null(strstr(err.text, "another cl_context"));
  fixture.own->cl.ReleaseMemObject(theirs);
  fixture.own->cl.ReleaseCommandQueue(foreign);
  fixture.own->cl.ReleaseContext(other);
  tsr_memory_free(fixture.device, data);
  fixture.driver->unload(fixture.dev, function);
}

/* ---- Memory ----------------------------------------------------------------------------------- */

static void sub_buffers_and_offsets(void **state) {
  void *function = load_step(), *data = make_buffer(4096, 1);
  const size_t region[2] = {4096, 8192}; /* origin, bytes */
  int32_t error = 0, out[4096];
  tsr__cl_mem sub =
      fixture.CreateSubBuffer((tsr__cl_mem)data, TSR__CL_MEM_READ_WRITE, BUFFER_CREATE_TYPE_REGION, region, &error);
  const tsr__gpu_queue queue = {0};
  struct start s;
  (void)state;
  assert_int_equal(error, TSR__CL_SUCCESS);
  make_start(&s, function, sub, NULL, NULL, 100, 1, 10);
  s.step.offset_bytes = 512;
  assert_int_equal(enqueue(&queue, &s.call, 1, NULL), TSR_OK);
  read_words(data, 0, out, 4096);
  for (int i = 0; i < 4096; i++) {
    assert_int_equal(out[i], i >= 1152 && i < 1252 ? 11 : 1);
  }
  fixture.own->cl.ReleaseMemObject(sub);
  tsr_memory_free(fixture.device, data);
  fixture.driver->unload(fixture.dev, function);
}

static void svm(void **state) {
  const tsr__gpu_queue queue = {.memory = TSR_MEMORY_SVM};
  void *function;
  int32_t *x;
  struct start s;
  (void)state;
  if (!(fixture.dev->memory_kinds & 1 << TSR_MEMORY_SVM) || fixture.SVMAlloc == NULL) {
    skip();
  }
  function = load_step();
  x = fixture.SVMAlloc(fixture.own->context, TSR__CL_MEM_READ_WRITE, 4096, 0);
  assert_non_null(x);
  assert_int_equal(fixture.EnqueueSVMMap(fixture.own->queue, 1, MAP_WRITE, x, 4096, 0, NULL, NULL), TSR__CL_SUCCESS);
  for (int i = 0; i < 1024; i++) {
    x[i] = i;
  }
  fixture.EnqueueSVMUnmap(fixture.own->queue, x, 0, NULL, NULL);
  make_start(&s, function, x + 64, NULL, NULL, 100, 2, 1); /* a pointer into the allocation, and an offset */
  s.step.offset_bytes = 64;
  assert_int_equal(enqueue(&queue, &s.call, 1, NULL), TSR_OK);
  assert_int_equal(fixture.EnqueueSVMMap(fixture.own->queue, 1, MAP_READ, x, 4096, 0, NULL, NULL), TSR__CL_SUCCESS);
  for (int i = 0; i < 1024; i++) {
    assert_int_equal(x[i], i >= 80 && i < 180 ? 2 * i + 1 : i);
  }
  fixture.EnqueueSVMUnmap(fixture.own->queue, x, 0, NULL, NULL);
  tsr_device_wait(fixture.device, NULL, NULL);
  fixture.SVMFree(fixture.own->context, x);
  fixture.driver->unload(fixture.dev, function);
}

static void copies(void **state) {
  uint8_t in[1000], out[1000];
  void *ptr = NULL;
  tsr_buffer b;
  tsr_error err;
  (void)state;
  for (size_t i = 0; i < sizeof(in); i++) {
    in[i] = (uint8_t)random_bits();
  }
  assert_int_equal(tsr_memory_alloc(fixture.device, 2000, &ptr, NULL), TSR_OK);
  b = tsr_buffer_out(ptr);
  b.offset_bytes = 777;
  assert_int_equal(tsr_memory_write(fixture.device, &b, in, sizeof(in), NULL), TSR_OK);
  assert_int_equal(tsr_memory_read(fixture.device, out, &b, sizeof(out), NULL), TSR_OK);
  assert_memory_equal(in, out, sizeof(in));
  assert_int_equal(tsr_memory_write(fixture.device, &b, in, 0, NULL), TSR_OK);
  b.offset_bytes = 1500;
  assert_int_equal(tsr_memory_read(fixture.device, out, &b, sizeof(out), &err), TSR_INVALID);
  assert_string_equal(err.field, "from");
  assert_int_equal(tsr_memory_write(fixture.device, &b, in, sizeof(in), &err), TSR_INVALID);
  assert_string_equal(err.field, "to");
  tsr_memory_free(fixture.device, ptr);
  assert_int_equal(tsr_memory_alloc(fixture.device, 0, &ptr, NULL), TSR_OK);
  assert_non_null(ptr);
  tsr_memory_free(fixture.device, ptr);
  assert_int_equal(tsr_memory_alloc(fixture.device, INT64_C(1) << 60, &ptr, &err), TSR_OUT_OF_MEMORY);
  assert_null(ptr);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(runs_and_null_params),
      cmocka_unit_test(bad_images),
      cmocka_unit_test(bad_source),
      cmocka_unit_test(many_threads),
      cmocka_unit_test(in_order_queue),
      cmocka_unit_test(out_of_order_queue),
      cmocka_unit_test(event_of_nothing),
      cmocka_unit_test(closed_before_the_work_is_done),
      cmocka_unit_test(handles_of_another_context),
      cmocka_unit_test(sub_buffers_and_offsets),
      cmocka_unit_test(svm),
      cmocka_unit_test(copies),
  };
  int failed;
  random_seed();
  if (!fixture_open(&fixture, TSR_CONTEXT_VALIDATE)) {
    return NO_DEVICE;
  }
  printf("%s\n", fixture.dev->description);
  failed = cmocka_run_group_tests(tests, NULL, NULL);
  fixture_close(&fixture);
  return failed;
}
