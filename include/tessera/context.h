/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts and devices.
 *
 * Objects are reference-counted inside: a device keeps its context alive, a plan its device. Destroying
 * an object gives up the caller's reference, never waits for work, and accepts NULL. */
#ifndef TESSERA_CONTEXT_H
#define TESSERA_CONTEXT_H

#include <string.h>

#include "tessera/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tsr_context tsr_context; /* opaque */
typedef struct tsr_device tsr_device;   /* opaque */

enum { TSR_LOG_ERROR = 0, TSR_LOG_WARNING = 1, TSR_LOG_INFO = 2, TSR_LOG_DEBUG = 3 };

/* Flags of a context. */
enum {
  TSR_CONTEXT_IGNORE_ENV = 1, /* read no environment variable */
  TSR_CONTEXT_VALIDATE = 2    /* check at each run what costs time: pointers, alignment promises, overlap,
                                 page ids, lengths on devices */
};

/* When kernels may be compiled while the program runs. */
enum {
  TSR_COMPILE_DEFAULT = 0, /* TESSERA_COMPILE (auto, never or always), or TSR_COMPILE_AUTO */
  TSR_COMPILE_AUTO = 1,    /* where no image is embedded or cached */
  TSR_COMPILE_NEVER = 2,   /* a plan whose kernels have no image is TSR_UNSUPPORTED; the error has the image's name */
  TSR_COMPILE_ALWAYS = 3   /* even where there is an image, which it replaces in the cache */
};

/* Everything the library may ask of its embedder. All fields but `size` may be 0.
 * Precedence everywhere: explicit field > environment variable > default. The environment is read once,
 * in tsr_context_create: TESSERA_LOG (0..3, logs to stderr if no log hook is set), TESSERA_THREADS,
 * TESSERA_DEVICE, TESSERA_CPU_ISA, TESSERA_VARIANT, TESSERA_COMPILE, TESSERA_CACHE_DIR, TESSERA_NVRTC, TESSERA_HIPRTC,
 * TESSERA_OPENCL (see the fields of those names). A variable that is empty, too long, or no
 * number in range or word of its list counts as unset. A text field of "" asks for nothing, whatever the environment
 * says. */
typedef struct tsr_context_params {
  size_t size;    /* sizeof(tsr_context_params) */
  uint64_t flags; /* TSR_CONTEXT_* */

  /* Host memory for the library's own objects (plans, tables; never tensors). Both or neither.
   * alloc returns memory aligned to 64 bytes, or NULL. Thread-safety: called from any thread. */
  void *(*alloc)(void *user, size_t bytes);
  void (*free)(void *user, void *ptr);

  /* Messages up to log_level; off when NULL. `text` has no newline. Thread-safety: any thread. */
  void (*log)(void *user, int32_t level, const char *text);
  int32_t log_level; /* TSR_LOG_*; 0: errors only */

  /* CPU threads: 0 = TESSERA_THREADS or what OpenMP would use here (1 inside a parallel region of the
   * caller's), 1 = never enter a parallel region, at most 4096. */
  int32_t num_threads;

  /* For callers who own their threads: run body(arg, i, worker) for every i in [0, n), return when all are
   * done. worker is in [0, num_threads), and no two concurrent calls share one. Replaces OpenMP when set
   * (num_threads must then be >= 1). */
  void (*parallel_for)(void *user, int64_t n, void (*body)(void *arg, int64_t i, int32_t worker), void *arg);

  /* Asked now and then during a CPU run (about once a millisecond a thread); nonzero ends it with
   * TSR_CANCELLED. Also called as progress: done of total work units. Thread-safety: any thread. */
  int32_t (*should_stop)(void *user, int64_t done, int64_t total);

  void *user; /* given to every hook */

  const char *device;  /* preferred device, e.g. "cpu" or "cpu:0"; NULL = TESSERA_DEVICE or the best */
  const char *cpu_isa; /* highest instruction set to use: "x86-64", "v3", "v4"; NULL = TESSERA_CPU_ISA or
                          what the machine has. One that it lacks is TSR_UNSUPPORTED
                          when the device is opened. */
  const char *variant; /* force a kernel variant by name in every plan that does not name one itself */

  /* Images: what kernels of devices are compiled to. They are embedded in the library, kept in a cache, or compiled
   * when a plan first needs them, which takes seconds. Without a cache nothing is kept beyond the device. */
  int32_t compile; /* TSR_COMPILE_*; the struct once ended here */
  int32_t reserved;
  /* Directory of images; NULL = TESSERA_CACHE_DIR or none, and the library never touches the disk. It is made (mode
   * 0700) when first written to, and may be shared by processes. Used only if it and the file belong to the user and
   * nobody else may write to them; what is unsafe, damaged or out of date is compiled again. A directory that cannot be
   * read or written costs a warning in the log. */
  const char *cache_dir;
  /* A cache of the embedder's own, instead of a directory (cache_dir must then be NULL, and TESSERA_CACHE_DIR is not
   * looked at); both or neither. `name` is 32 hexadecimal digits. Entries hold their full key and a checksum: a wrong
   * or damaged one is not used, but an entry is code, so keep them where only the user can write. cache_get returns the
   * entry's size, 0 if there is none, and copies it to data if `bytes` is at least that (data is NULL and bytes 0 in
   * the first call). cache_put keeps a copy; an entry of that name is replaced. Thread-safety: called from any thread.
   */
  int64_t (*cache_get)(void *user, const char *name, void *data, int64_t bytes);
  void (*cache_put)(void *user, const char *name, const void *data, int64_t bytes);

  /* Libraries to open instead of those of their usual names; NULL = TESSERA_NVRTC, TESSERA_HIPRTC, TESSERA_OPENCL or
   * the usual. */
  const char *nvrtc_path;
  const char *hiprtc_path;
  const char *opencl_path;
} tsr_context_params;

static inline tsr_context_params tsr_context_params_init(void) {
  tsr_context_params p;
  memset(&p, 0, sizeof(p));
  p.size = sizeof(p);
  return p;
}

/* Creates a context. params NULL = defaults. Errors: TSR_INVALID (a field),
 * TSR_OUT_OF_MEMORY. A back end whose driver is missing is no error: see tsr_backend_info.
 * Thread-safety: any thread; the context may then be used from all threads at once. */
TSR_API tsr_status tsr_context_create(const tsr_context_params *params, tsr_context **context, tsr_error *err);
/* Gives up the caller's reference; devices and plans keep the context alive. NULL is accepted. */
TSR_API void tsr_context_destroy(tsr_context *context);

/* ---- Back ends and devices ------------------------------------------------------------------- */

/* A back end of this build, present on this machine or not. */
typedef struct tsr_backend_info {
  size_t size;
  const char *name;     /* "cpu", "cuda", ...; lives as long as the context */
  const char *why_not;  /* NULL when usable, else one line saying what is missing */
  int32_t device_count; /* 0 when not usable */
  int32_t reserved;
} tsr_backend_info;

/* Number of back ends in this build, loaded modules included; 0 for NULL. */
TSR_API int32_t tsr_backend_count(const tsr_context *context);
/* Fills *info (its size set by the caller) for back end `index`. Errors: TSR_INVALID. */
TSR_API tsr_status tsr_backend_get(const tsr_context *context, int32_t index, tsr_backend_info *info, tsr_error *err);

/* Loads a back end module from an explicit path; no search path is ever used. The module must have been
 * built with exactly this library version. Errors: TSR_IO, TSR_INVALID (not a module, version), TSR_UNSUPPORTED
 * (name taken). The module stays loaded until the context is destroyed. Thread-safety: not while another thread
 * uses the context. */
TSR_API tsr_status tsr_backend_load(tsr_context *context, const char *path, tsr_error *err);

/* Opens a device by name: a back end's, alone (its first device) or with ":" and an ordinal in decimal without leading
 * zeros: "cpu", "cuda:0", "null". NULL: params.device / TESSERA_DEVICE, else the first device of the first usable back
 * end that computes ("null" never). Errors: TSR_INVALID (any other name, "" included; no such ordinal),
 * TSR_BACKEND_MISSING (with the reason), TSR_UNSUPPORTED (params.cpu_isa), TSR_OUT_OF_MEMORY, TSR_DEVICE_ERROR. */
TSR_API tsr_status tsr_device_open(tsr_context *context, const char *name, tsr_device **device, tsr_error *err);
/* Gives up the caller's reference; plans keep the device alive. NULL is accepted. */
TSR_API void tsr_device_close(tsr_device *device);

/* What a device is. Strings live as long as the device. */
typedef struct tsr_device_info {
  size_t size;
  const char *name;        /* as tsr_device_open takes it, "cpu:0" */
  const char *description; /* "AMD EPYC ..., 2 threads, v4" */
  const char *backend;
  const char *isa;      /* instruction set in use: "v4", "sm_90"; "" if there is no such thing */
  int32_t num_threads;  /* CPU: threads a run may use; devices: multiprocessors */
  int32_t computes;     /* 0: only records launches (null); its outputs stay untouched */
  int64_t local_bytes;  /* local (shared) memory of a work group; CPU: L2 bytes assumed per thread */
  int32_t host_memory;  /* 1: tensors are host memory; 0: the device's own, see memory.h; the struct once ended here */
  int32_t memory_kinds; /* what tsr_attention_desc.memory may be: bits 1 << TSR_MEMORY_* */
} tsr_device_info;
/* Fills *info (its size set by the caller). Errors: TSR_INVALID. */
TSR_API tsr_status tsr_device_get(const tsr_device *device, tsr_device_info *info, tsr_error *err);

#ifdef __cplusplus
}
#endif
#endif
