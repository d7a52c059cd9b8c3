/* SPDX-License-Identifier: Apache-2.0 */
/* A back end of the tests, loaded as a module: the portable kernels as C. What compiles them is the C compiler of the
 * build (at run time, with traps for undefined behaviour), what loads them dlopen, what runs them the emulator. Device
 * memory ends at a page that cannot be touched. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/alloc.h"
#include "common/gpu.h"
#include "common/log.h"
#include "common/status.h"
#include "emu.h"

extern char **environ;

enum { WAVE = 32, MOST_GROUPS = 61, PAGE = 4096, PATH_BYTES = 256, LOG_BYTES = 4096 };

_Static_assert(sizeof(tsr_emu_param) == sizeof(tsr__gpu_param) &&
                   offsetof(tsr_emu_param, bytes) == offsetof(tsr__gpu_param, bytes),
               "parameters are handed through");

/* ---- Compilation ------------------------------------------------------------------------------- */

/* How a kernel's entry unpacks its parameters (entry.h). */
static const char *entry_lists(const char *name) {
  if (strcmp(name, "tsr_append") == 0) {
    return "#define TSR_EMU_LIST(X) TSR_PARAMS_APPEND(X)\n#define TSR_EMU_VALUES(V) V(tsr_append_kernel_args, a)\n"
           "#define TSR_EMU_ARGUMENTS *a\n";
  }
  if (strcmp(name, "tsr_merge") == 0) {
    return "#define TSR_EMU_LIST(X) TSR_PARAMS_MERGE(X)\n#define TSR_EMU_VALUES(V) V(tsr_merge_kernel_args, a)\n"
           "#define TSR_EMU_ARGUMENTS *a\n";
  }
  return "#define TSR_EMU_LIST(X) TSR_PARAMS(X)\n"
         "#if defined(TSR_K_EXPR)\n"
         "#define TSR_EMU_VALUES(V) V(tsr_attn_args, a_) V(tsr_launch_args, l_) V(tsr_expr_args, x_)\n"
         "#define TSR_EMU_ARGUMENTS *a_, *l_, *x_\n"
         "#else\n"
         "#define TSR_EMU_VALUES(V) V(tsr_attn_args, a_) V(tsr_launch_args, l_)\n"
         "#define TSR_EMU_ARGUMENTS *a_, *l_\n"
         "#endif\n";
}

static int write_text(const char *path, const tsr__gpu_source *source) {
  FILE *f = fopen(path, "w");
  if (f == NULL) {
    return -1;
  }
  fprintf(f, "#include <math.h>\n%s", source->defines);
  for (int i = 0; source->pieces[i] != NULL; i++) {
    fputs(source->pieces[i], f);
  }
  fprintf(f, "\n#define TSR_EMU_KERNEL %s\n%s#include \"%s\"\n", source->name, entry_lists(source->name),
          TSR_EMU_ENTRY_FILE);
  return fclose(f);
}

/* Runs the compiler; its messages go to `log`. 0: it made `out`. */
static int run_compiler(const char *in, const char *out, const char *log) {
  /* fmaf as an instruction, where there is one */
  const char *level = __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2") ? "-march=x86-64-v3" : "-O2";
  char *const arguments[] = {(char *)(uintptr_t)TSR_EMU_CC,
                             (char *)(uintptr_t) "-shared",
                             (char *)(uintptr_t) "-fPIC",
                             (char *)(uintptr_t) "-std=gnu11",
                             (char *)(uintptr_t) "-O2",
                             (char *)(uintptr_t) "-w",
                             (char *)(uintptr_t) "-fvisibility=hidden",
                             (char *)(uintptr_t) "-fno-strict-aliasing",
                             (char *)(uintptr_t) "-ffp-contract=off",
                             (char *)(uintptr_t) "-fno-math-errno",
                             (char *)(uintptr_t)level,
                             (char *)(uintptr_t) "-fsanitize=alignment,bounds,shift,integer-divide-by-zero,null,"
                                                 "signed-integer-overflow",
                             (char *)(uintptr_t) "-fsanitize-undefined-trap-on-error",
                             (char *)(uintptr_t) "-o",
                             (char *)(uintptr_t)out,
                             (char *)(uintptr_t)in,
                             (char *)(uintptr_t) "-lm",
                             NULL};
  posix_spawn_file_actions_t actions;
  pid_t child;
  int status = -1;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (posix_spawnp(&child, TSR_EMU_CC, &actions, NULL, arguments, environ) == 0) {
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  posix_spawn_file_actions_destroy(&actions);
  return status;
}

/* A whole file, with a zero byte after it; NULL: it cannot be read. */
static char *read_file(const tsr__host *host, const char *path, size_t *bytes) {
  FILE *f = fopen(path, "rb");
  char *data = NULL;
  long size;
  if (f == NULL) {
    return NULL;
  }
  if (fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
    data = tsr__alloc_zero(&host->alloc, (size_t)size + 1);
    *bytes = data != NULL ? fread(data, 1, (size_t)size, f) : 0;
  }
  fclose(f);
  return data;
}

static tsr_status compile(const tsr__device *dev, const tsr__gpu_source *source, void **image, size_t *bytes,
                          tsr_error *err) {
  char folder[] = "/tmp/tessera-emulator-XXXXXX", in[PATH_BYTES], out[PATH_BYTES], log[PATH_BYTES];
  tsr_status st = TSR_OK;
  if (mkdtemp(folder) == NULL) {
    return tsr__fail(err, TSR_IO, "", "no folder for a kernel of the emulator: %s", strerror(errno));
  }
  snprintf(in, sizeof(in), "%s/k.c", folder);
  snprintf(out, sizeof(out), "%s/k.so", folder);
  snprintf(log, sizeof(log), "%s/log", folder);
  if (write_text(in, source) != 0 || run_compiler(in, out, log) != 0) {
    size_t n = 0;
    char *text = read_file(dev->host, log, &n);
    tsr__log(dev->host, TSR_LOG_ERROR, "%s: %s", source->name, text != NULL ? text : "no log");
    st = tsr__fail(err, TSR_DEVICE_ERROR, "", "%s does not compile: %.300s", source->name, text != NULL ? text : "");
    tsr__alloc_free(&dev->host->alloc, text);
  } else {
    *image = read_file(dev->host, out, bytes);
    st = *image != NULL ? TSR_OK : tsr__fail(err, TSR_IO, "", "the library of %s cannot be read", source->name);
  }
  if (getenv("TSR_EMU_KEEP") == NULL) { /* sources stay, for who looks for an error */
    unlink(in);
    unlink(out);
    unlink(log);
    rmdir(folder);
  }
  return st;
}

/* ---- Kernels ----------------------------------------------------------------------------------- */

typedef struct function {
  void *library;
  tsr_emu_kernel *entry;
} function;

static void *open_library(const void *image, size_t bytes) {
  char path[] = "/tmp/tessera-emulator-XXXXXX";
  void *library = NULL;
  const int file = mkstemp(path);
  if (file < 0) {
    return NULL;
  }
  if (write(file, image, bytes) == (ssize_t)bytes) {
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  close(file);
  unlink(path);
  return library;
}

static tsr_status load(const tsr__device *dev, const void *image, size_t bytes, const char *entry, int32_t threads,
                       void **out, tsr_error *err) {
  union {
    void *ptr;
    void (*bind)(const tsr_emu_ops *);
    tsr_emu_kernel *run;
  } symbol;
  function *f = tsr__alloc_zero(&dev->host->alloc, sizeof(*f));
  (void)threads;
  if (f == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for a kernel");
  }
  f->library = open_library(image, bytes);
  if (f->library == NULL) {
    tsr__alloc_free(&dev->host->alloc, f);
    return tsr__fail(err, TSR_INVALID, "", "the library of %s does not load", entry);
  }
  symbol.ptr = dlsym(f->library, "tsr_emu_bind");
  symbol.bind(&tsr_emu_table);
  symbol.ptr = dlsym(f->library, "tsr_emu_entry");
  f->entry = symbol.run;
  *out = f;
  return TSR_OK;
}

static void unload(const tsr__device *dev, void *f) {
  dlclose(((function *)f)->library);
  tsr__alloc_free(&dev->host->alloc, f);
}

static tsr_status enqueue(const tsr__device *dev, const tsr__gpu_queue *queue, const tsr__gpu_call *calls, int32_t n,
                          tsr_error *err) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the emulator */
  (void)dev;
  (void)err;
  pthread_mutex_lock(&lock);
  for (int32_t i = 0; i < n; i++) {
    const tsr_emu_call call = {(const tsr_emu_param *)(const void *)calls[i].params, calls[i].num_params};
    const function *f = calls[i].function;
    tsr_emu_run(f->entry, &call, calls[i].groups < MOST_GROUPS ? calls[i].groups : MOST_GROUPS, calls[i].threads, WAVE);
  }
  pthread_mutex_unlock(&lock);
  if (queue->event != NULL) {
    *queue->event = NULL;
  }
  return TSR_OK;
}

static const tsr__gpu_driver driver = {"emulator", compile, load, unload, enqueue};

/* ---- The device -------------------------------------------------------------------------------- */

static int32_t count(const tsr__host *host, char *why_not, size_t bytes) {
  (void)host;
  (void)why_not;
  (void)bytes;
  return 1;
}

static tsr_status open_device(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  snprintf(dev->name, sizeof(dev->name), "emulator:%d", index);
  snprintf(dev->description, sizeof(dev->description), "portable kernels as C, a fiber a thread");
  dev->num_threads = 16;
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE;
  dev->local_bytes = 48 << 10;
  return tsr__gpu_device_open(host, &driver, NULL, "fibers", TSR_EMU_CC_VERSION, dev, err);
}

/* ---- Memory ------------------------------------------------------------------------------------ */

/* In the page before the memory. */
typedef struct block {
  void *base;
  size_t bytes;
} block;

static block *block_of(const void *ptr) {
  return (block *)(void *)((uintptr_t)ptr / PAGE * PAGE - PAGE);
}

/* What lies before the pointer can be read, what lies after the last byte (up to 255 bytes of rounding) cannot. */
static tsr_status memory_alloc(const tsr__device *dev, int64_t bytes, void **ptr, tsr_error *err) {
  const size_t used = ((size_t)bytes + 255) / 256 * 256, pages = (used + PAGE - 1) / PAGE * PAGE;
  const size_t all = pages + 2 * PAGE;
  char *base = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)dev;
  if (base == MAP_FAILED || mprotect(base + PAGE + pages, PAGE, PROT_NONE) != 0) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no %lld bytes for the emulator", (long long)bytes);
  }
  *ptr = base + PAGE + (pages - used);
  block_of(*ptr)->base = base;
  block_of(*ptr)->bytes = all;
  return TSR_OK;
}

static void memory_free(const tsr__device *dev, void *ptr) {
  (void)dev;
  if (ptr != NULL) {
    munmap(block_of(ptr)->base, block_of(ptr)->bytes);
  }
}

static tsr_status memory_write(const tsr__device *dev, void *to, int64_t offset, const void *from, int64_t bytes,
                               tsr_error *err) {
  (void)dev;
  (void)err;
  memcpy((char *)to + offset, from, (size_t)bytes);
  return TSR_OK;
}

static tsr_status memory_read(const tsr__device *dev, void *to, const void *from, int64_t offset, int64_t bytes,
                              tsr_error *err) {
  (void)dev;
  (void)err;
  memcpy(to, (const char *)from + offset, (size_t)bytes);
  return TSR_OK;
}

static tsr_status wait_queue(const tsr__device *dev, void *queue, tsr_error *err) {
  (void)dev;
  (void)queue;
  (void)err;
  return TSR_OK;
}

static const tsr__backend backend = {
    .abi = TSR__BACKEND_ABI,
    .name = "emulator",
    .computes = 1,
    .count = count,
    .open = open_device,
    .close = tsr__gpu_device_close,
    .prepare = tsr__gpu_prepare,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .memory_write = memory_write,
    .memory_read = memory_read,
    .wait = wait_queue,
    .run_attention = tsr__gpu_run_attention,
    .run_append = tsr__gpu_run_append,
    .run_merge = tsr__gpu_run_merge,
};

TSR_API const tsr__backend *tsr__module_backend(void);
const tsr__backend *tsr__module_backend(void) {
  return &backend;
}
