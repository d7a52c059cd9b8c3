/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cpu/threads.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#define POLL_NS INT64_C(1000000)

struct tsr_cpu_progress {
  const tsr__host *host;
  int64_t total;          /* items of all launches */
  int64_t poll_ns;        /* between two questions of any worker */
  atomic_llong done;      /* items finished */
  atomic_llong polled_ns; /* when should_stop was asked last */
  atomic_int stop;        /* its answer */
  atomic_llong full, partial, skipped;
};

/* One launch, shared by its workers. */
typedef struct phase {
  const tsr_cpu_run *run;
  tsr_cpu_item *item;
  char *scratch;
  int64_t scratch_stride;
  int64_t items;
  int64_t grain; /* items a worker takes at once */
  atomic_llong next;
} phase;

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void ask(struct tsr_cpu_progress *p) {
  const int64_t done = atomic_load_explicit(&p->done, memory_order_relaxed);
  if (p->host->should_stop(p->host->user, done, p->total) != 0) {
    atomic_store_explicit(&p->stop, 1, memory_order_relaxed);
  }
}

int tsr__cpu_poll(const tsr_cpu_run *run) {
  struct tsr_cpu_progress *p = run->progress;
  long long last;
  int64_t now;
  if (p->host->should_stop == NULL) {
    return 0;
  }
  now = now_ns();
  last = atomic_load_explicit(&p->polled_ns, memory_order_relaxed);
  if (now - last >= p->poll_ns &&
      atomic_compare_exchange_strong_explicit(&p->polled_ns, &last, now, memory_order_relaxed, memory_order_relaxed)) {
    ask(p);
  }
  return atomic_load_explicit(&p->stop, memory_order_relaxed);
}

static void run_item(const phase *ph, int64_t i, int32_t worker) {
  struct tsr_cpu_progress *p = ph->run->progress;
  tsr_cpu_counts c = {0, 0, 0};
  if (tsr__cpu_poll(ph->run)) {
    return;
  }
  ph->item(ph->run, i, ph->scratch + worker * ph->scratch_stride, &c);
  if (c.full != 0 || c.partial != 0 || c.skipped != 0) {
    atomic_fetch_add_explicit(&p->full, c.full, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->partial, c.partial, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->skipped, c.skipped, memory_order_relaxed);
  }
  if (p->host->should_stop != NULL) {
    atomic_fetch_add_explicit(&p->done, 1, memory_order_relaxed);
  }
}

static void run_body(void *arg, int64_t i, int32_t worker) {
  run_item((const phase *)arg, i, worker);
}

static void run_worker(phase *ph, int32_t worker) {
  for (;;) {
    const int64_t first = atomic_fetch_add_explicit(&ph->next, ph->grain, memory_order_relaxed);
    const int64_t end = first + ph->grain < ph->items ? first + ph->grain : ph->items;
    if (first >= ph->items) {
      return;
    }
    for (int64_t i = first; i < end; i++) {
      run_item(ph, i, worker);
    }
  }
}

#ifdef _OPENMP
/* The process in which an OpenMP region of ours ran; its threads do not survive fork(), and the next region in a child
 * would wait for them forever. A fact about the process's OpenMP runtime, which is as global as this. */
static atomic_int region_pid;

static int region_forbidden(void) {
  const int pid = (int)getpid();
  int seen = 0;
  return !atomic_compare_exchange_strong(&region_pid, &seen, pid) && seen != pid;
}

int32_t tsr__cpu_threads(const tsr__host *host) {
  const int n = host->num_threads > 0 ? host->num_threads : omp_in_parallel() ? 1 : omp_get_max_threads();
  return n < 1 ? 1 : n > 4096 ? 4096 : n;
}

static int32_t threads_now(const tsr__device *dev) {
  int n = dev->num_threads;
  if (omp_in_parallel()) {
    return 1;
  }
  if (dev->host->num_threads == 0 && omp_get_max_threads() < n) {
    n = omp_get_max_threads();
  }
  return n < 1 ? 1 : n;
}

static tsr_status run_threads(phase *ph, int32_t threads, tsr_error *err) {
  if (region_forbidden()) {
    return tsr__fail(err, TSR_FORKED, "",
                     "OpenMP threads of the parent process do not survive fork(); use num_threads = 1 or parallel_for");
  }
#pragma omp parallel num_threads(threads)
  run_worker(ph, omp_get_thread_num());
  return TSR_OK;
}
#else
int32_t tsr__cpu_threads(const tsr__host *host) {
  return host->parallel_for != NULL ? host->num_threads : 1;
}

static int32_t threads_now(const tsr__device *dev) {
  (void)dev;
  return 1;
}

static tsr_status run_threads(phase *ph, int32_t threads, tsr_error *err) {
  (void)threads;
  (void)err;
  run_worker(ph, 0);
  return TSR_OK;
}
#endif

static tsr_status run_phase(const tsr__device *dev, phase *ph, tsr_error *err) {
  const tsr__host *host = dev->host;
  int32_t threads;
  if (host->parallel_for != NULL) {
    host->parallel_for(host->user, ph->items, run_body, ph);
    return TSR_OK;
  }
  threads = threads_now(dev);
  threads = ph->items < threads ? (int32_t)ph->items : threads;
  /* One at a time, the longest first, until there are so many that taking them costs. */
  ph->grain = tsr_max_i64(1, ph->items / (threads * INT64_C(512)));
  if (threads > 1) {
    return run_threads(ph, threads, err);
  }
  run_worker(ph, 0);
  return TSR_OK;
}

static int64_t scratch_stride(const tsr__plan_build *build) {
  int64_t most = 0;
  for (int32_t i = 0; i < build->num_launches; i++) {
    most = tsr_max_i64(most, build->launches[i].local_bytes);
  }
  return tsr_cpu_round(most);
}

void tsr__cpu_place_scratch(const tsr__device *dev, tsr__plan_build *build, int64_t bytes) {
  build->scratch = tsr_cpu_round(bytes);
  build->workspace_bytes = build->scratch + scratch_stride(build) * dev->num_threads;
}

tsr_status tsr__cpu_phases(const tsr__device *dev, tsr_cpu_run *run, tsr_cpu_counts *counts, tsr_error *err) {
  const tsr__plan_build *build = run->build;
  struct tsr_cpu_progress progress = {.host = dev->host};
  tsr_status st = TSR_OK;
  run->progress = &progress;
  progress.poll_ns = POLL_NS / dev->num_threads;
  for (int32_t l = 0; l < build->num_launches; l++) {
    progress.total += build->launches[l].items;
  }
  if (dev->host->should_stop != NULL) {
    atomic_store(&progress.polled_ns, now_ns());
    ask(&progress);
  }
  for (int32_t l = 0; l < build->num_launches && st == TSR_OK && !atomic_load(&progress.stop); l++) {
    const tsr__launch *launch = &build->launches[l];
    phase ph = {.run = run, .item = ((const tsr_cpu_phase *)launch->kernel)->item, .items = launch->items, .grain = 1};
    ph.scratch = (char *)run->workspace + (build->scratch < 0 ? 0 : build->scratch);
    ph.scratch_stride = scratch_stride(build);
    st = launch->items > 0 ? run_phase(dev, &ph, err) : TSR_OK;
  }
  if (st == TSR_OK && dev->host->should_stop != NULL && !atomic_load(&progress.stop)) {
    ask(&progress); /* the last step of a progress bar */
  }
  counts->full = atomic_load(&progress.full);
  counts->partial = atomic_load(&progress.partial);
  counts->skipped = atomic_load(&progress.skipped);
  run->progress = NULL;
  if (st == TSR_OK && atomic_load(&progress.stop)) {
    st = tsr__fail(err, TSR_CANCELLED, "", "should_stop ended the run; the outputs are undefined");
  }
  return st;
}
