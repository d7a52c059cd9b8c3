/* SPDX-License-Identifier: Apache-2.0 */
/* Where a run's memory is, and waiting for a device. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runner.h"

double conf_case_seconds(const conf_runner *r) {
  return r->options->case_seconds > 0 ? r->options->case_seconds : 120.0;
}

tsr_attention_desc conf_desc_on(const conf_target *target, const conf_problem *p) {
  tsr_attention_desc desc = p->desc;
  if (desc.memory == TSR_MEMORY_HOST && !target->host_memory) { /* CPU cases name their memory now and then */
    desc.memory = (target->memory_kinds >> TSR_MEMORY_DEVICE & 1) != 0   ? TSR_MEMORY_DEVICE
                  : (target->memory_kinds >> TSR_MEMORY_CL_MEM & 1) != 0 ? TSR_MEMORY_CL_MEM
                                                                         : TSR_MEMORY_NATIVE;
  }
  return desc;
}

/* ---- Waiting --------------------------------------------------------------------------------------- */

/* Of a thread that waits, since a driver's wait has no limit. It outlives its caller if the device hangs. */
typedef struct waiter {
  tsr_device *device;
  tsr_status status;
  tsr_error err;
  int done;
  pthread_mutex_t lock;
  pthread_cond_t changed;
} waiter;

static void *wait_for_device(void *arg) {
  waiter *w = arg;
  tsr_error err;
  const tsr_status st = tsr_device_wait(w->device, NULL, &err);
  pthread_mutex_lock(&w->lock);
  w->status = st;
  w->err = err;
  w->done = 1;
  pthread_cond_signal(&w->changed);
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static tsr_status give_up(conf_target *target, double seconds, tsr_error *err) {
  target->lost = 1;
  memset(err, 0, sizeof(*err));
  err->status = TSR_CANCELLED;
  snprintf(err->text, sizeof(err->text), "the device did not finish in %.0f s; nothing more is run on it", seconds);
  return TSR_CANCELLED;
}

tsr_status conf_wait(conf_runner *r, conf_target *target, tsr_error *err) {
  waiter *w = target->host_memory ? NULL : calloc(1, sizeof(*w));
  struct timespec end;
  pthread_t thread;
  tsr_status st;
  if (w == NULL) {
    return tsr_device_wait(target->device, NULL, err);
  }
  w->device = target->device;
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->changed, NULL);
  if (pthread_create(&thread, NULL, wait_for_device, w) != 0) {
    free(w);
    return tsr_device_wait(target->device, NULL, err);
  }
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += (time_t)conf_case_seconds(r) + 1;
  pthread_mutex_lock(&w->lock);
  while (!w->done && pthread_cond_timedwait(&w->changed, &w->lock, &end) != ETIMEDOUT) {
  }
  if (!w->done) {
    pthread_mutex_unlock(&w->lock);
    pthread_detach(thread);
    return give_up(target, conf_case_seconds(r), err);
  }
  pthread_mutex_unlock(&w->lock);
  pthread_join(thread, NULL);
  st = w->status;
  *err = w->err;
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
  return st;
}

/* ---- Runs ------------------------------------------------------------------------------------------ */

tsr_status conf_mirror_end(conf_runner *r, conf_target *target, conf_mirror *m, tsr_status st, tsr_error *err) {
  if (st == TSR_OK) {
    st = conf_wait(r, target, err);
  }
  if (st == TSR_OK) {
    st = conf_mirror_read(m, err);
  }
  if (st == TSR_DEVICE_LOST) {
    target->lost = 1;
  }
  if (!target->lost) {
    conf_mirror_close(m);
  }
  return st;
}

/* Host copies of lengths, in half of the cases: they are checked before anything is enqueued. */
static void add_host_copies(const conf_target *target, const conf_problem *p, const tsr_run_args *host,
                            tsr_run_args *args) {
  const struct {
    const tsr_layout *layout;
    const tsr_buffer *buffer;
    const void **copy;
  } lengths[] = {{&p->desc.cu_seqlens_q, &host->cu_seqlens_q, &args->host_cu_seqlens_q},
                 {&p->desc.cu_seqlens_k, &host->cu_seqlens_k, &args->host_cu_seqlens_k},
                 {&p->desc.seqlens_q, &host->seqlens_q, &args->host_seqlens_q},
                 {&p->desc.seqlens_k, &host->seqlens_k, &args->host_seqlens_k}};
  for (int n = 0; n < 4 && !target->host_memory && (p->c.seed & 4) != 0; n++) {
    if (lengths[n].layout->dtype != TSR_DTYPE_NONE) {
      *lengths[n].copy = (unsigned char *)lengths[n].buffer->ptr + lengths[n].buffer->offset_bytes;
    }
  }
}

/* Memory that the problem has made, with its guards; then inputs that the arguments have from elsewhere. */
static tsr_status fill_mirror(conf_mirror *m, const conf_problem *p, const conf_workspace *w, const tsr_run_args *args,
                              tsr_error *err) {
  tsr_status st = TSR_OK;
  for (int id = 0; id < CONF_T_COUNT && st == TSR_OK; id++) {
    if (p->t[id].raw != NULL) {
      st = conf_mirror_add(m, p->t[id].raw, p->t[id].raw_bytes, CONF_MIRROR_OUTPUT, err);
    }
  }
  if (st == TSR_OK && w->bytes > 0) {
    st = conf_mirror_add(m, w->raw, w->raw_bytes, CONF_MIRROR_OUTPUT, err);
  }
  st = st == TSR_OK ? conf_mirror_add_tensors(m, &p->desc, args, CONF_MIRROR_INPUT, err) : st;
  return st == TSR_OK ? conf_mirror_write(m, err) : st;
}

tsr_status conf_run_attention(conf_runner *r, conf_target *target, const tsr_plan *plan, const conf_problem *p,
                              const conf_workspace *w, const tsr_run_args *args, tsr_error *err) {
  tsr_run_args there = *args;
  conf_mirror m;
  tsr_status st;
  if (!target->mirrored) {
    return tsr_run_attention(plan, args, err);
  }
  conf_mirror_open(&m, target->device);
  st = fill_mirror(&m, p, w, args, err);
  if (st == TSR_OK) {
    conf_mirror_map_run(&m, &there);
    add_host_copies(target, p, args, &there);
    there.stats = target->host_memory ? args->stats : NULL; /* of the CPU only */
    st = tsr_run_attention(plan, &there, err);
  }
  return conf_mirror_end(r, target, &m, st, err);
}
