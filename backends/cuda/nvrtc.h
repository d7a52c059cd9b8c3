/* SPDX-License-Identifier: Apache-2.0 */
/* What Tessera uses of NVRTC, declared here as in cu.h, and where it is looked for. */
#ifndef TSR_CUDA_NVRTC_H
#define TSR_CUDA_NVRTC_H

#include <stddef.h>
#include <stdint.h>

typedef struct _nvrtcProgram *tsr__nvrtc_program;

/* X(name without NVRTC_, value) */
#define TSR__NVRTC_ERRORS(X)            \
  X(SUCCESS, 0)                         \
  X(ERROR_OUT_OF_MEMORY, 1)             \
  X(ERROR_PROGRAM_CREATION_FAILURE, 2)  \
  X(ERROR_INVALID_INPUT, 3)             \
  X(ERROR_INVALID_PROGRAM, 4)           \
  X(ERROR_INVALID_OPTION, 5)            \
  X(ERROR_COMPILATION, 6)               \
  X(ERROR_BUILTIN_OPERATION_FAILURE, 7) \
  X(ERROR_INTERNAL_ERROR, 11)

enum {
#define X(name, value) TSR__NVRTC_##name = value,
  TSR__NVRTC_ERRORS(X)
#undef X
};

/* X(name without nvrtc, parameters); all return an nvrtcResult. NVRTC 11.2 has them all. */
#define TSR__NVRTC_FUNCTIONS(X)                                                                                       \
  X(Version, (int *, int *))                                                                                          \
  X(GetNumSupportedArchs, (int *))                                                                                    \
  X(GetSupportedArchs, (int *))                                                                                       \
  X(CreateProgram, (tsr__nvrtc_program *, const char *, const char *, int, const char *const *, const char *const *)) \
  X(DestroyProgram, (tsr__nvrtc_program *))                                                                           \
  X(CompileProgram, (tsr__nvrtc_program, int, const char *const *))                                                   \
  X(GetProgramLogSize, (tsr__nvrtc_program, size_t *))                                                                \
  X(GetProgramLog, (tsr__nvrtc_program, char *))                                                                      \
  X(GetPTXSize, (tsr__nvrtc_program, size_t *))                                                                       \
  X(GetPTX, (tsr__nvrtc_program, char *))                                                                             \
  X(GetCUBINSize, (tsr__nvrtc_program, size_t *))                                                                     \
  X(GetCUBIN, (tsr__nvrtc_program, char *))

enum { TSR__NVRTC_MAX_ARCHS = 64 };

/* The functions: nvrtc.Version(...) is nvrtcVersion(...). */
typedef struct tsr__nvrtc {
  int found; /* 0: there is none; the functions are NULL */
#define X(name, params) unsigned int(*name) params;
  TSR__NVRTC_FUNCTIONS(X)
#undef X
  int major, minor;
  int32_t num_archs;
  int archs[TSR__NVRTC_MAX_ARCHS]; /* 75, 80, ..., ascending */
} tsr__nvrtc;

/* Looks for NVRTC: the file or folder `path`, if one is given ("": none), and nowhere else then; else by the loader's
 * own search, and in the usual folders, versions that the driver (13000) can load the output of first. The library
 * stays in the process. Nonzero if found, else a reason of one line that names the places. */
int tsr__nvrtc_open(tsr__nvrtc *nvrtc, const char *path, int driver_version, char *why_not, size_t why_not_bytes);

/* What to compile for a device of compute capability `arch` (90): a value of -arch, into out; *is_ptx: text that the
 * driver compiles further. 0: this NVRTC cannot make anything that runs there. */
int tsr__nvrtc_target(const tsr__nvrtc *nvrtc, int arch, char *out, size_t out_bytes, int *is_ptx);

const char *tsr__nvrtc_error_name(unsigned int error);

#endif
