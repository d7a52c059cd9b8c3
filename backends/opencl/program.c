/* SPDX-License-Identifier: Apache-2.0 */
/* Images are the driver's program binaries. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backends/opencl/state.h"

enum { MAX_PIECES = 64, LOG_LINE_BYTES = 400 };

static void log_line(const tsr__host *host, int32_t level, const char *name, const char *line, size_t n) {
  char text[LOG_LINE_BYTES + 80];
  if (host->log != NULL && host->log_level >= level) {
    snprintf(text, sizeof(text), "opencl: %s: %.*s", name, (int)(n < LOG_LINE_BYTES ? n : LOG_LINE_BYTES), line);
    host->log(host->user, level, text);
  }
}

/* Whether a line of a build log says "error", in any case. */
static int says_error(const char *line, size_t n) {
  static const char word[] = "error";
  for (size_t i = 0; i + 5 <= n; i++) {
    size_t k = 0;
    while (k < 5 && (line[i + k] | 0x20) == word[k]) {
      k++;
    }
    if (k == 5) {
      return 1;
    }
  }
  return 0;
}

/* Sends the log to the hook line by line and copies its first error to `first`: the first line that says so, else the
 * first that is not empty. */
static void read_log(const tsr__host *host, int32_t level, const char *name, const char *log, char *first,
                     size_t first_bytes) {
  int found = 0;
  first[0] = '\0';
  while (*log != '\0') {
    const size_t n = strcspn(log, "\r\n");
    if (strspn(log, " \t") < n) {
      const int error = says_error(log, n);
      log_line(host, level, name, log, n);
      if (first[0] == '\0' || (error && !found)) {
        snprintf(first, first_bytes, "%.*s", (int)(n < first_bytes ? n : first_bytes - 1), log);
      }
      found |= error;
    }
    log += n;
    log += strspn(log, "\r\n");
  }
}

/* Reports the log of a build; `first` gets its first error. */
static void report_build(const tsr__device *dev, tsr__cl_program program, const char *name, int failed, char *first,
                         size_t first_bytes) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  const tsr__alloc *alloc = &dev->host->alloc;
  size_t bytes = 0;
  char *log;
  first[0] = '\0';
  if (d->cl.GetProgramBuildInfo(program, d->device, TSR__CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes) != TSR__CL_SUCCESS ||
      bytes < 2) {
    return;
  }
  log = tsr__alloc_zero(alloc, bytes + 1);
  if (log != NULL &&
      d->cl.GetProgramBuildInfo(program, d->device, TSR__CL_PROGRAM_BUILD_LOG, bytes, log, NULL) == TSR__CL_SUCCESS) {
    read_log(dev->host, failed ? TSR_LOG_ERROR : TSR_LOG_DEBUG, name, log, first, first_bytes);
  }
  tsr__alloc_free(alloc, log);
}

static tsr_status build_fail(const tsr__device *dev, tsr__cl_program program, const char *name, int32_t error,
                             tsr_error *err) {
  char first[300];
  if (error != TSR__CL_BUILD_PROGRAM_FAILURE) {
    return tsr__opencl_fail(err, error, "", "clBuildProgram");
  }
  report_build(dev, program, name, 1, first, sizeof(first));
  tsr__fail(err, TSR_DEVICE_ERROR, "", "%s does not compile: %s", name, first[0] != '\0' ? first : "no log");
  if (err != NULL) {
    err->native_code = error;
  }
  return TSR_DEVICE_ERROR;
}

/* The binary of our device among those of all devices of the program, which are the context's. */
static tsr_status get_binary(const tsr__device *dev, tsr__cl_program program, void **image, size_t *bytes,
                             tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  tsr__cl_device devices[TSR__OPENCL_MAX_DEVICES];
  unsigned char *binaries[TSR__OPENCL_MAX_DEVICES] = {NULL};
  size_t sizes[TSR__OPENCL_MAX_DEVICES] = {0};
  size_t listed = 0, n, i = 0;
  int32_t error = d->cl.GetProgramInfo(program, TSR__CL_PROGRAM_DEVICES, sizeof(devices), devices, &listed);
  n = listed / sizeof(devices[0]);
  if (error == TSR__CL_SUCCESS) {
    error = d->cl.GetProgramInfo(program, TSR__CL_PROGRAM_BINARY_SIZES, sizeof(sizes), sizes, NULL);
  }
  if (error != TSR__CL_SUCCESS) {
    return tsr__opencl_fail(err, error, "", "clGetProgramInfo");
  }
  while (i < n && devices[i] != d->device) {
    i++;
  }
  if (i == n || sizes[i] == 0) {
    return tsr__fail(err, TSR_DEVICE_ERROR, "", "the driver built a program, but has no binary of it");
  }
  binaries[i] = tsr__alloc_zero(&dev->host->alloc, sizes[i]);
  if (binaries[i] == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for an image of %zu bytes", sizes[i]);
  }
  error = d->cl.GetProgramInfo(program, TSR__CL_PROGRAM_BINARIES, n * sizeof(binaries[0]), binaries, NULL);
  if (error != TSR__CL_SUCCESS) {
    tsr__alloc_free(&dev->host->alloc, binaries[i]);
    return tsr__opencl_fail(err, error, "", "clGetProgramInfo");
  }
  *image = binaries[i];
  *bytes = sizes[i];
  return TSR_OK;
}

/* The text in the order in which it is read; 0 if there are too many pieces. */
static uint32_t gather(const tsr__gpu_source *source, const char **texts) {
  uint32_t n = 0;
  texts[n++] = source->defines;
  for (const char *const *p = source->pieces; *p != NULL; p++) {
    if (n == MAX_PIECES) {
      return 0;
    }
    texts[n++] = *p;
  }
  return n;
}

tsr_status tsr__opencl_compile(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                               tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  const char *texts[MAX_PIECES];
  const uint32_t n = gather(source, texts);
  char first[300];
  tsr__cl_program program;
  int32_t error = TSR__CL_SUCCESS;
  tsr_status st = tsr__opencl_enter(err);
  if (st != TSR_OK) {
    return st;
  }
  if (!d->has_compiler || n == 0) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s has %s", dev->name,
                     n == 0 ? "a limit of 64 pieces a source" : "a driver without a compiler");
  }
  program = d->cl.CreateProgramWithSource(d->context, n, texts, NULL, &error);
  if (program == NULL) {
    return tsr__opencl_fail(err, error, "", "clCreateProgramWithSource");
  }
  error = d->cl.BuildProgram(program, 1, &d->device, d->options, NULL, NULL);
  if (error != TSR__CL_SUCCESS) {
    st = build_fail(dev, program, source->name, error, err);
  } else {
    report_build(dev, program, source->name, 0, first, sizeof(first));
    st = get_binary(dev, program, image, bytes, err);
  }
  d->cl.ReleaseProgram(program);
  return st;
}

/* ---- Loaded kernels --------------------------------------------------------------------------- */

struct function {
  tsr__cl_program program;
  pthread_mutex_t lock; /* of free_clones */
  tsr__opencl_clone *free_clones;
  char entry[64];
};

static tsr_status new_clone(const tsr__device *dev, const struct function *f, tsr__opencl_clone **clone,
                            tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  tsr__opencl_clone *c = tsr__alloc_zero(&dev->host->alloc, sizeof(*c));
  int32_t error = TSR__CL_SUCCESS;
  if (c == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a kernel object");
  }
  c->kernel = d->cl.CreateKernel(f->program, f->entry, &error);
  if (c->kernel == NULL) {
    tsr__alloc_free(&dev->host->alloc, c);
    return tsr__opencl_fail(err, error, "", "clCreateKernel");
  }
  *clone = c;
  return TSR_OK;
}

tsr_status tsr__opencl_clone_take(const tsr__device *dev, void *function, tsr__opencl_clone **clone, tsr_error *err) {
  struct function *f = function;
  pthread_mutex_lock(&f->lock);
  *clone = f->free_clones;
  if (*clone != NULL) {
    f->free_clones = (*clone)->next;
  }
  pthread_mutex_unlock(&f->lock);
  return *clone != NULL ? TSR_OK : new_clone(dev, f, clone, err);
}

void tsr__opencl_clone_give(void *function, tsr__opencl_clone *clone) {
  struct function *f = function;
  pthread_mutex_lock(&f->lock);
  clone->next = f->free_clones;
  f->free_clones = clone;
  pthread_mutex_unlock(&f->lock);
}

/* Whether the kernel can be started with so many work items a group; the first clone is made on the way. */
static tsr_status check_function(const tsr__device *dev, struct function *f, int32_t threads, tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  tsr__opencl_clone *clone = NULL;
  size_t most = 0;
  uint64_t local_bytes = 0, private_bytes = 0;
  const tsr_status st = tsr__opencl_clone_take(dev, f, &clone, err);
  if (st != TSR_OK) {
    return st;
  }
  d->cl.GetKernelWorkGroupInfo(clone->kernel, d->device, TSR__CL_KERNEL_WORK_GROUP_SIZE, sizeof(most), &most, NULL);
  d->cl.GetKernelWorkGroupInfo(clone->kernel, d->device, TSR__CL_KERNEL_LOCAL_MEM_SIZE, sizeof(local_bytes),
                               &local_bytes, NULL);
  d->cl.GetKernelWorkGroupInfo(clone->kernel, d->device, TSR__CL_KERNEL_PRIVATE_MEM_SIZE, sizeof(private_bytes),
                               &private_bytes, NULL);
  tsr__opencl_clone_give(f, clone);
  if (most < (size_t)threads) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s runs %s with at most %zu work items a group; %d are needed",
                     dev->name, f->entry, most, threads);
  }
  if (dev->host->log != NULL && dev->host->log_level >= TSR_LOG_DEBUG) {
    char text[96];
    const int n = snprintf(text, sizeof(text), "%llu bytes local, %llu private, up to %zu work items",
                           (unsigned long long)local_bytes, (unsigned long long)private_bytes, most);
    log_line(dev->host, TSR_LOG_DEBUG, f->entry, text, (size_t)n);
  }
  return TSR_OK;
}

/* The program of a binary, built; NULL with an error of the driver. */
static tsr__cl_program build_binary(const tsr__opencl *d, const void *image, size_t bytes, int32_t *error) {
  const unsigned char *binary = image;
  int32_t status = TSR__CL_SUCCESS;
  tsr__cl_program program = d->cl.CreateProgramWithBinary(d->context, 1, &d->device, &bytes, &binary, &status, error);
  if (program == NULL) {
    return NULL;
  }
  *error = status != TSR__CL_SUCCESS ? status : d->cl.BuildProgram(program, 1, &d->device, d->options, NULL, NULL);
  if (*error != TSR__CL_SUCCESS) {
    d->cl.ReleaseProgram(program);
    return NULL;
  }
  return program;
}

tsr_status tsr__opencl_load(const tsr__device *dev, const void *image, size_t bytes, const char *entry, int32_t threads,
                            void **function, tsr_error *err) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  struct function *f;
  int32_t error = TSR__CL_SUCCESS;
  tsr_status st = tsr__opencl_enter(err);
  if (st != TSR_OK) {
    return st;
  }
  if (bytes == 0 || strlen(entry) >= sizeof(f->entry)) {
    return tsr__fail(err, TSR_INVALID, "", "an image of %zu bytes for \"%.80s\" is none", bytes, entry);
  }
  f = tsr__alloc_zero(&dev->host->alloc, sizeof(*f));
  if (f == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a kernel");
  }
  memcpy(f->entry, entry, strlen(entry) + 1);
  pthread_mutex_init(&f->lock, NULL);
  f->program = build_binary(d, image, bytes, &error);
  if (f->program == NULL) {
    const tsr_status own = tsr__opencl_status(error);
    st = tsr__opencl_fail(err, error, "", "clCreateProgramWithBinary");
    if (own != TSR_OUT_OF_MEMORY && own != TSR_DEVICE_LOST) {
      st = tsr__fail(err, TSR_INVALID, "", "the image is not one of %s", dev->name);
    }
  } else {
    st = check_function(dev, f, threads, err);
    if (st == TSR_DEVICE_ERROR) { /* the program is sound, but lacks the entry */
      st = tsr__fail(err, TSR_INVALID, "", "the image of %s has no kernel %s", dev->name, entry);
    }
  }
  if (st != TSR_OK) {
    tsr__opencl_unload(dev, f);
    return st;
  }
  *function = f;
  return TSR_OK;
}

void tsr__opencl_unload(const tsr__device *dev, void *function) {
  const tsr__opencl *d = tsr__opencl_of(dev);
  const int forked = tsr__opencl_forked();
  struct function *f = function;
  while (f->free_clones != NULL) {
    tsr__opencl_clone *clone = f->free_clones;
    f->free_clones = clone->next;
    if (!forked) {
      d->cl.ReleaseKernel(clone->kernel);
    }
    tsr__alloc_free(&dev->host->alloc, clone);
  }
  if (f->program != NULL && !forked) {
    d->cl.ReleaseProgram(f->program);
  }
  pthread_mutex_destroy(&f->lock);
  tsr__alloc_free(&dev->host->alloc, f);
}
