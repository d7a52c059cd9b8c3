/* SPDX-License-Identifier: Apache-2.0 */
/* What Tessera uses of the CUDA driver API, declared here so that no vendor header is needed. Enums are unsigned int,
 * which compilers use for the vendor's; CUdevice is int, CUdeviceptr unsigned long long. Handles point to the structs
 * of cuda.h, so that both headers can be read together: a test compares them. */
#ifndef TSR_CUDA_CU_H
#define TSR_CUDA_CU_H

#include <stddef.h>
#include <stdint.h>

typedef struct CUctx_st *tsr__cu_context;
typedef struct CUmod_st *tsr__cu_module;
typedef struct CUfunc_st *tsr__cu_function;
typedef struct CUstream_st *tsr__cu_stream;
typedef unsigned long long tsr__cu_ptr;
struct CUuuid_st; /* 16 bytes */

/* X(name without CUDA_, value) */
#define TSR__CU_ERRORS(X)                   \
  X(SUCCESS, 0)                             \
  X(ERROR_INVALID_VALUE, 1)                 \
  X(ERROR_OUT_OF_MEMORY, 2)                 \
  X(ERROR_NOT_INITIALIZED, 3)               \
  X(ERROR_DEINITIALIZED, 4)                 \
  X(ERROR_DEVICE_UNAVAILABLE, 46)           \
  X(ERROR_NO_DEVICE, 100)                   \
  X(ERROR_INVALID_DEVICE, 101)              \
  X(ERROR_INVALID_IMAGE, 200)               \
  X(ERROR_INVALID_CONTEXT, 201)             \
  X(ERROR_NO_BINARY_FOR_GPU, 209)           \
  X(ERROR_ECC_UNCORRECTABLE, 214)           \
  X(ERROR_INVALID_PTX, 218)                 \
  X(ERROR_NVLINK_UNCORRECTABLE, 220)        \
  X(ERROR_JIT_COMPILER_NOT_FOUND, 221)      \
  X(ERROR_UNSUPPORTED_PTX_VERSION, 222)     \
  X(ERROR_JIT_COMPILATION_DISABLED, 223)    \
  X(ERROR_INVALID_SOURCE, 300)              \
  X(ERROR_INVALID_HANDLE, 400)              \
  X(ERROR_NOT_FOUND, 500)                   \
  X(ERROR_ILLEGAL_ADDRESS, 700)             \
  X(ERROR_LAUNCH_OUT_OF_RESOURCES, 701)     \
  X(ERROR_LAUNCH_TIMEOUT, 702)              \
  X(ERROR_CONTEXT_IS_DESTROYED, 709)        \
  X(ERROR_ASSERT, 710)                      \
  X(ERROR_HARDWARE_STACK_ERROR, 714)        \
  X(ERROR_ILLEGAL_INSTRUCTION, 715)         \
  X(ERROR_MISALIGNED_ADDRESS, 716)          \
  X(ERROR_INVALID_ADDRESS_SPACE, 717)       \
  X(ERROR_INVALID_PC, 718)                  \
  X(ERROR_LAUNCH_FAILED, 719)               \
  X(ERROR_SYSTEM_NOT_READY, 802)            \
  X(ERROR_SYSTEM_DRIVER_MISMATCH, 803)      \
  X(ERROR_MPS_CLIENT_TERMINATED, 810)       \
  X(ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)  \
  X(ERROR_STREAM_CAPTURE_INVALIDATED, 901)  \
  X(ERROR_STREAM_CAPTURE_IMPLICIT, 906)     \
  X(ERROR_STREAM_CAPTURE_WRONG_THREAD, 908) \
  X(ERROR_UNKNOWN, 999)

/* X(name without CU_, value) */
#define TSR__CU_CONSTANTS(X)                         \
  X(DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1)       \
  X(DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 8) \
  X(DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)       \
  X(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)   \
  X(DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)   \
  X(DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 88)     \
  X(POINTER_ATTRIBUTE_IS_MANAGED, 8)                 \
  X(POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                \
  X(POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)             \
  X(MEMORYTYPE_HOST, 1)                              \
  X(FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0)         \
  X(FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, 1)             \
  X(FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, 3)              \
  X(FUNC_ATTRIBUTE_NUM_REGS, 4)                      \
  X(JIT_ERROR_LOG_BUFFER, 5)                         \
  X(JIT_ERROR_LOG_BUFFER_SIZE_BYTES, 6)              \
  X(STREAM_CAPTURE_MODE_RELAXED, 2)

enum {
#define X(name, value) TSR__CUDA_##name = value,
  TSR__CU_ERRORS(X)
#undef X
#define X(name, value) TSR__CU_##name = value,
      TSR__CU_CONSTANTS(X)
#undef X
};

/* X(name without cu, what the symbol has besides, parameters); all return a CUresult. */
#define TSR__CU_FUNCTIONS(X)                                                                               \
  X(Init, , (unsigned int))                                                                                \
  X(DriverGetVersion, , (int *))                                                                           \
  X(GetErrorName, , (unsigned int, const char **))                                                         \
  X(GetErrorString, , (unsigned int, const char **))                                                       \
  X(DeviceGetCount, , (int *))                                                                             \
  X(DeviceGet, , (int *, int))                                                                             \
  X(DeviceGetName, , (char *, int, int))                                                                   \
  X(DeviceGetUuid, _v2, (struct CUuuid_st *, int))                                                         \
  X(DeviceGetAttribute, , (int *, unsigned int, int))                                                      \
  X(DeviceTotalMem, _v2, (size_t *, int))                                                                  \
  X(DevicePrimaryCtxRetain, , (tsr__cu_context *, int))                                                    \
  X(DevicePrimaryCtxRelease, _v2, (int))                                                                   \
  X(CtxPushCurrent, _v2, (tsr__cu_context))                                                                \
  X(CtxPopCurrent, _v2, (tsr__cu_context *))                                                               \
  X(CtxGetDevice, , (int *))                                                                               \
  X(ThreadExchangeStreamCaptureMode, , (unsigned int *))                                                   \
  X(ModuleLoadDataEx, , (tsr__cu_module *, const void *, unsigned int, unsigned int *, void **))           \
  X(ModuleUnload, , (tsr__cu_module))                                                                      \
  X(ModuleGetFunction, , (tsr__cu_function *, tsr__cu_module, const char *))                               \
  X(FuncGetAttribute, , (int *, unsigned int, tsr__cu_function))                                           \
  X(LaunchKernel, ,                                                                                        \
    (tsr__cu_function, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, \
     unsigned int, tsr__cu_stream, void **, void **))                                                      \
  X(MemAlloc, _v2, (tsr__cu_ptr *, size_t))                                                                \
  X(MemFree, _v2, (tsr__cu_ptr))                                                                           \
  X(MemcpyHtoD, _v2, (tsr__cu_ptr, const void *, size_t))                                                  \
  X(MemcpyDtoH, _v2, (void *, tsr__cu_ptr, size_t))                                                        \
  X(StreamSynchronize, , (tsr__cu_stream))                                                                 \
  X(PointerGetAttribute, , (void *, unsigned int, tsr__cu_ptr))

/* Absent from older drivers. */
#define TSR__CU_OPTIONAL_FUNCTIONS(X) X(FuncLoad, , (tsr__cu_function))

enum { TSR__CU_VERSION_NEEDED = 11040 }; /* of the driver, as cuDriverGetVersion has it */

/* The functions, found at run time or linked: cu.MemAlloc(...) is cuMemAlloc(...). */
typedef struct tsr__cu {
#define X(name, suffix, params) unsigned int(*name) params;
  TSR__CU_FUNCTIONS(X)
  TSR__CU_OPTIONAL_FUNCTIONS(X)
#undef X
  int version; /* of the driver: 13000 */
} tsr__cu;

/* Fills *cu and initialises the driver; the library stays in the process from then on. Nonzero on success, else a
 * reason of one line. */
int tsr__cu_open(tsr__cu *cu, char *why_not, size_t why_not_bytes);

/* "CUDA_ERROR_INVALID_VALUE" for 1, "CUDA error 9999" for what is not listed above; buffer may be used. */
const char *tsr__cu_error_name(unsigned int error, char *buffer, size_t buffer_bytes);

#endif
