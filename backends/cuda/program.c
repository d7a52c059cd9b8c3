/* SPDX-License-Identifier: Apache-2.0 */
/* Images and kernels: NVRTC makes cubins (or PTX, for devices newer than itself), the driver loads both. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/state.h"

/* ---- Compilation ------------------------------------------------------------------------------ */

/* Hands each line to the hook. */
static void log_lines(const tsr__host *host, int32_t level, const char *name, const char *text) {
  char line[512];
  while (host->log != NULL && host->log_level >= level && *text != '\0') {
    const size_t n = strcspn(text, "\r\n");
    if (n > 0) {
      snprintf(line, sizeof(line), "%.64s: %.*s", name, (int)(n < 400 ? n : 400), text);
      host->log(host->user, level, line);
    }
    text += n + strspn(text + n, "\r\n");
  }
}

/* The first line that has an error, else the first one. */
static void first_error(const char *log, char *out, size_t bytes) {
  const char *at = strstr(log, "error");
  size_t n;
  while (at != NULL && at > log && at[-1] != '\n') {
    at--;
  }
  at = at != NULL ? at : log;
  n = strcspn(at, "\r\n");
  snprintf(out, bytes, "%.*s", (int)(n < bytes - 1 ? n : bytes - 1), at);
}

/* Defines and pieces as one text; the caller frees it. */
static char *join(const tsr__host *host, const tsr__gpu_source *source) {
  size_t bytes = strlen(source->defines) + 1, at = strlen(source->defines);
  char *text;
  for (const char *const *p = source->pieces; *p != NULL; p++) {
    bytes += strlen(*p) + 1;
  }
  text = tsr__alloc_zero(&host->alloc, bytes);
  if (text == NULL) {
    return NULL;
  }
  memcpy(text, source->defines, at);
  for (const char *const *p = source->pieces; *p != NULL; p++) {
    memcpy(text + at, *p, strlen(*p));
    at += strlen(*p);
    text[at++] = '\n';
  }
  return text;
}

static tsr_status compile_fail(const tsr__device *dev, tsr__nvrtc_program program, const char *name, unsigned int error,
                               tsr_error *err) {
  const tsr__nvrtc *nvrtc = &tsr__cuda_of(dev)->nvrtc;
  char line[300] = "";
  size_t bytes = 0;
  char *log = NULL;
  tsr_status st;
  if (nvrtc->GetProgramLogSize(program, &bytes) == TSR__NVRTC_SUCCESS && bytes > 0) {
    log = tsr__alloc_zero(&dev->host->alloc, bytes + 1);
  }
  if (log != NULL && nvrtc->GetProgramLog(program, log) == TSR__NVRTC_SUCCESS) {
    log_lines(dev->host, TSR_LOG_ERROR, name, log);
    first_error(log, line, sizeof(line));
  }
  tsr__alloc_free(&dev->host->alloc, log);
  st = error == TSR__NVRTC_ERROR_OUT_OF_MEMORY ? TSR_OUT_OF_MEMORY : TSR_DEVICE_ERROR;
  tsr__fail(err, st, "", "%s: %s: %s", name, tsr__nvrtc_error_name(error), line);
  if (err != NULL) {
    err->native_code = (int32_t)error;
  }
  return st;
}

static tsr_status take_image(const tsr__device *dev, tsr__nvrtc_program program, const char *name, int is_ptx,
                             void **image, size_t *bytes, tsr_error *err) {
  const tsr__nvrtc *nvrtc = &tsr__cuda_of(dev)->nvrtc;
  size_t n = 0;
  unsigned int error = is_ptx ? nvrtc->GetPTXSize(program, &n) : nvrtc->GetCUBINSize(program, &n);
  char *data;
  if (error != TSR__NVRTC_SUCCESS || n == 0) {
    return compile_fail(dev, program, name, error, err);
  }
  data = tsr__alloc_zero(&dev->host->alloc, n + 1); /* see tsr__image: a zero after the last byte */
  if (data == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for an image of %zu bytes", n);
  }
  error = is_ptx ? nvrtc->GetPTX(program, data) : nvrtc->GetCUBIN(program, data);
  if (error != TSR__NVRTC_SUCCESS) {
    tsr__alloc_free(&dev->host->alloc, data);
    return compile_fail(dev, program, name, error, err);
  }
  *image = data;
  *bytes = is_ptx ? strlen(data) : n;
  return TSR_OK;
}

#define OPTION_ITEM(option) option,

tsr_status tsr__cuda_compile(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                             tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  const tsr__nvrtc *nvrtc = &d->nvrtc;
  char target[32];
  const char *const options[] = {target, TSR__CUDA_OPTIONS(OPTION_ITEM)};
  tsr__nvrtc_program program = NULL;
  unsigned int error;
  int is_ptx = 0;
  char *text;
  tsr_status st = tsr__cuda_enter(err);
  if (st != TSR_OK) {
    return st;
  }
  if (!nvrtc->found) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "%s", d->no_nvrtc);
  }
  if (!tsr__nvrtc_target(nvrtc, d->arch, target, sizeof(target), &is_ptx)) {
    return tsr__fail(err, TSR_UNSUPPORTED, "",
                     "NVRTC %d.%d compiles for sm_%d and newer, %s is sm_%d; an older NVRTC "
                     "does, see the context's nvrtc_path",
                     nvrtc->major, nvrtc->minor, nvrtc->archs[0], dev->name, d->arch);
  }
  text = join(dev->host, source);
  if (text == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for the text of %s", source->name);
  }
  error = nvrtc->CreateProgram(&program, text, source->name, 0, NULL, NULL);
  tsr__alloc_free(&dev->host->alloc, text);
  if (error != TSR__NVRTC_SUCCESS) {
    return tsr__fail(err, error == TSR__NVRTC_ERROR_OUT_OF_MEMORY ? TSR_OUT_OF_MEMORY : TSR_DEVICE_ERROR, "",
                     "nvrtcCreateProgram: %s", tsr__nvrtc_error_name(error));
  }
  error = nvrtc->CompileProgram(program, (int)(sizeof(options) / sizeof(options[0])), options);
  st = error == TSR__NVRTC_SUCCESS ? take_image(dev, program, source->name, is_ptx, image, bytes, err)
                                   : compile_fail(dev, program, source->name, error, err);
  nvrtc->DestroyProgram(&program);
  return st;
}

/* ---- Loading ---------------------------------------------------------------------------------- */

static uint64_t read_le(const unsigned char *p, int bytes) {
  uint64_t v = 0;
  for (int i = bytes - 1; i >= 0; i--) {
    v = v << 8 | p[i];
  }
  return v;
}

/* The driver is told no length, so that what an ELF header promises is checked here. */
static int elf_is_whole(const unsigned char *p, size_t bytes) {
  enum { HEADER = 64, SECTION = 64, MACHINE_CUDA = 190, NOBITS = 8 };
  uint64_t at, n;
  if (bytes < HEADER || p[4] != 2 || p[5] != 1 || read_le(p + 18, 2) != MACHINE_CUDA) {
    return 0;
  }
  at = read_le(p + 40, 8);
  n = read_le(p + 60, 2);
  if (read_le(p + 58, 2) != SECTION || at > bytes || n * SECTION > bytes - at) {
    return 0;
  }
  for (uint64_t i = 0; i < n; i++) {
    const unsigned char *s = p + at + i * SECTION;
    const uint64_t offset = read_le(s + 24, 8), size = read_le(s + 32, 8);
    if (read_le(s + 4, 4) != NOBITS && (offset > bytes || size > bytes - offset)) {
      return 0;
    }
  }
  return 1;
}

/* Whether the driver can be shown this: a whole cubin, or PTX (see tsr__image: a zero stands after it). */
static int image_is_sound(const unsigned char *p, size_t bytes) {
  if (bytes >= 4 && memcmp(p, "\177ELF", 4) == 0) {
    return elf_is_whole(p, bytes);
  }
  return bytes >= 16 && memchr(p, '\0', bytes) == NULL && p[bytes] == '\0' &&
         strstr((const char *)p, ".version") != NULL;
}

/* Modules may be loaded while some stream of the process captures a graph. */
static unsigned int relax(const tsr__cuda *d, unsigned int mode) {
  d->cu.ThreadExchangeStreamCaptureMode(&mode);
  return mode;
}

static int is_about_image(unsigned int error) {
  switch (error) {
  case TSR__CUDA_ERROR_INVALID_VALUE:
  case TSR__CUDA_ERROR_INVALID_IMAGE:
  case TSR__CUDA_ERROR_NO_BINARY_FOR_GPU:
  case TSR__CUDA_ERROR_INVALID_PTX:
  case TSR__CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
  case TSR__CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
  case TSR__CUDA_ERROR_JIT_COMPILATION_DISABLED:
  case TSR__CUDA_ERROR_INVALID_SOURCE:
  case TSR__CUDA_ERROR_NOT_FOUND: return 1;
  default: return 0;
  }
}

/* Loads the module and finds its entry, in the device's context. */
static unsigned int load_module(const tsr__device *dev, const void *image, const char *entry, tsr__cuda_function *f) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  char log[2048] = "";
  unsigned int options[] = {TSR__CU_JIT_ERROR_LOG_BUFFER, TSR__CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void *values[] = {log, (void *)(uintptr_t)sizeof(log)};
  unsigned int error = d->cu.ModuleLoadDataEx(&f->module, image, 2, options, values);
  if (error != TSR__CUDA_SUCCESS) {
    f->module = NULL;
    log[sizeof(log) - 1] = '\0';
    log_lines(dev->host, TSR_LOG_WARNING, entry, log);
    return error;
  }
  error = d->cu.ModuleGetFunction(&f->function, f->module, entry);
  if (error == TSR__CUDA_SUCCESS &&
      d->cu.FuncLoad != NULL) { /* else the first launch would do it, maybe in a capture */
    error = d->cu.FuncLoad(f->function);
  }
  return error;
}

/* Whether a block can have so many threads; asking loads the kernel, too. */
static tsr_status check_function(const tsr__device *dev, tsr__cu_function f, const char *entry, int32_t threads,
                                 tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  int most = 0, registers = 0, shared = 0, local = 0;
  const unsigned int error = d->cu.FuncGetAttribute(&most, TSR__CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f);
  char text[96];
  if (error != TSR__CUDA_SUCCESS) {
    return tsr__cuda_fail(err, error, "", "cuFuncGetAttribute");
  }
  d->cu.FuncGetAttribute(&registers, TSR__CU_FUNC_ATTRIBUTE_NUM_REGS, f);
  d->cu.FuncGetAttribute(&shared, TSR__CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f);
  d->cu.FuncGetAttribute(&local, TSR__CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, f);
  if (most < threads) {
    return tsr__fail(err, TSR_UNSUPPORTED, "",
                     "%s runs %s with at most %d threads a block (%d registers); %d are needed", dev->name, entry, most,
                     registers, threads);
  }
  snprintf(text, sizeof(text), "%d registers, %d bytes shared, %d local", registers, shared, local);
  log_lines(dev->host, TSR_LOG_DEBUG, entry, text);
  return TSR_OK;
}

static tsr_status load_pushed(const tsr__device *dev, const void *image, const char *entry, int32_t threads,
                              tsr__cuda_function *f, tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  const unsigned int mode = relax(d, TSR__CU_STREAM_CAPTURE_MODE_RELAXED);
  const unsigned int error = load_module(dev, image, entry, f);
  tsr_status st = TSR_OK;
  if (error == TSR__CUDA_SUCCESS) {
    st = check_function(dev, f->function, entry, threads, err);
  } else {
    st = tsr__cuda_fail(err, error, "", f->module == NULL ? "cuModuleLoadDataEx" : "cuModuleGetFunction");
    if (is_about_image(error)) {
      char buffer[32];
      st = tsr__fail(err, TSR_INVALID, "", "the image of %s is none for %s: %s", entry, dev->name,
                     tsr__cu_error_name(error, buffer, sizeof(buffer)));
    }
  }
  if (st != TSR_OK && f->module != NULL) {
    d->cu.ModuleUnload(f->module);
  }
  relax(d, mode);
  return st;
}

tsr_status tsr__cuda_load(const tsr__device *dev, const void *image, size_t bytes, const char *entry, int32_t threads,
                          void **function, tsr_error *err) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  tsr__cuda_function *f;
  tsr_status st;
  if (!image_is_sound(image, bytes)) {
    return tsr__fail(err, TSR_INVALID, "", "an image of %zu bytes for %s is neither a whole cubin nor PTX", bytes,
                     entry);
  }
  f = tsr__alloc_zero(&dev->host->alloc, sizeof(*f));
  if (f == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a kernel");
  }
  st = tsr__cuda_push(d, err);
  if (st == TSR_OK) {
    st = load_pushed(dev, image, entry, threads, f, err);
    tsr__cuda_pop(d);
  }
  if (st != TSR_OK) {
    tsr__alloc_free(&dev->host->alloc, f);
    return st;
  }
  *function = f;
  return TSR_OK;
}

void tsr__cuda_unload(const tsr__device *dev, void *function) {
  const tsr__cuda *d = tsr__cuda_of(dev);
  tsr__cuda_function *f = function;
  if (tsr__cuda_push(d, NULL) == TSR_OK) {
    const unsigned int mode = relax(d, TSR__CU_STREAM_CAPTURE_MODE_RELAXED);
    d->cu.ModuleUnload(f->module);
    relax(d, mode);
    tsr__cuda_pop(d);
  }
  tsr__alloc_free(&dev->host->alloc, f);
}
