/* SPDX-License-Identifier: Apache-2.0 */
/* What Tessera uses of the OpenCL 1.2 API (and of SVM, 2.0), declared here so that no vendor header is needed. Integer
 * types are spelled out: cl_int is int32_t, cl_uint and cl_bool uint32_t, cl_bitfield uint64_t. Handles point to the
 * structs of the vendors' cl.h, so that both headers can be read together. */
#ifndef TSR_OPENCL_CL_H
#define TSR_OPENCL_CL_H

#include <stddef.h>
#include <stdint.h>

typedef struct _cl_platform_id *tsr__cl_platform;
typedef struct _cl_device_id *tsr__cl_device;
typedef struct _cl_context *tsr__cl_context;
typedef struct _cl_command_queue *tsr__cl_queue;
typedef struct _cl_mem *tsr__cl_mem;
typedef struct _cl_program *tsr__cl_program;
typedef struct _cl_kernel *tsr__cl_kernel;
typedef struct _cl_event *tsr__cl_event;

/* X(name without CL_, value) */
#define TSR__CL_ERRORS(X)                           \
  X(SUCCESS, 0)                                     \
  X(DEVICE_NOT_FOUND, -1)                           \
  X(DEVICE_NOT_AVAILABLE, -2)                       \
  X(COMPILER_NOT_AVAILABLE, -3)                     \
  X(MEM_OBJECT_ALLOCATION_FAILURE, -4)              \
  X(OUT_OF_RESOURCES, -5)                           \
  X(OUT_OF_HOST_MEMORY, -6)                         \
  X(BUILD_PROGRAM_FAILURE, -11)                     \
  X(EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, -14) \
  X(INVALID_VALUE, -30)                             \
  X(INVALID_DEVICE, -33)                            \
  X(INVALID_CONTEXT, -34)                           \
  X(INVALID_QUEUE_PROPERTIES, -35)                  \
  X(INVALID_COMMAND_QUEUE, -36)                     \
  X(INVALID_MEM_OBJECT, -38)                        \
  X(INVALID_BINARY, -42)                            \
  X(INVALID_BUILD_OPTIONS, -43)                     \
  X(INVALID_PROGRAM, -44)                           \
  X(INVALID_PROGRAM_EXECUTABLE, -45)                \
  X(INVALID_KERNEL_NAME, -46)                       \
  X(INVALID_ARG_INDEX, -49)                         \
  X(INVALID_ARG_VALUE, -50)                         \
  X(INVALID_ARG_SIZE, -51)                          \
  X(INVALID_KERNEL_ARGS, -52)                       \
  X(INVALID_WORK_GROUP_SIZE, -54)                   \
  X(INVALID_EVENT_WAIT_LIST, -57)                   \
  X(INVALID_EVENT, -58)                             \
  X(INVALID_BUFFER_SIZE, -61)                       \
  X(PLATFORM_NOT_FOUND_KHR, -1001)
#define TSR__CL_CONSTANTS(X)                     \
  X(PLATFORM_VERSION, 0x0901)                    \
  X(PLATFORM_NAME, 0x0902)                       \
  X(CONTEXT_DEVICES, 0x1081)                     \
  X(CONTEXT_PLATFORM, 0x1084)                    \
  X(DEVICE_TYPE_CPU, 1 << 1)                     \
  X(DEVICE_TYPE, 0x1000)                         \
  X(DEVICE_MAX_COMPUTE_UNITS, 0x1002)            \
  X(DEVICE_MAX_WORK_GROUP_SIZE, 0x1004)          \
  X(DEVICE_MAX_WORK_ITEM_SIZES, 0x1005)          \
  X(DEVICE_SINGLE_FP_CONFIG, 0x101B)             \
  X(DEVICE_LOCAL_MEM_SIZE, 0x1023)               \
  X(DEVICE_ENDIAN_LITTLE, 0x1026)                \
  X(DEVICE_AVAILABLE, 0x1027)                    \
  X(DEVICE_COMPILER_AVAILABLE, 0x1028)           \
  X(DEVICE_NAME, 0x102B)                         \
  X(DRIVER_VERSION, 0x102D)                      \
  X(DEVICE_PROFILE, 0x102E)                      \
  X(DEVICE_VERSION, 0x102F)                      \
  X(DEVICE_PLATFORM, 0x1031)                     \
  X(DEVICE_SVM_CAPABILITIES, 0x1053)             \
  X(FP_INF_NAN, 1 << 1)                          \
  X(FP_FMA, 1 << 5)                              \
  X(FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, 1 << 7)    \
  X(DEVICE_SVM_COARSE_GRAIN_BUFFER, 1 << 0)      \
  X(QUEUE_CONTEXT, 0x1090)                       \
  X(QUEUE_DEVICE, 0x1091)                        \
  X(QUEUE_PROPERTIES, 0x1093)                    \
  X(QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, 1 << 0) \
  X(MEM_READ_WRITE, 1 << 0)                      \
  X(MEM_SIZE, 0x1102)                            \
  X(MEM_CONTEXT, 0x1106)                         \
  X(PROGRAM_DEVICES, 0x1163)                     \
  X(PROGRAM_BINARY_SIZES, 0x1165)                \
  X(PROGRAM_BINARIES, 0x1166)                    \
  X(PROGRAM_BUILD_LOG, 0x1183)                   \
  X(KERNEL_WORK_GROUP_SIZE, 0x11B0)              \
  X(KERNEL_LOCAL_MEM_SIZE, 0x11B2)               \
  X(KERNEL_PRIVATE_MEM_SIZE, 0x11B4)

enum {
#define X(name, value) TSR__CL_##name = value,
  TSR__CL_ERRORS(X) TSR__CL_CONSTANTS(X)
#undef X
};
#define TSR__CL_DEVICE_TYPE_ALL UINT64_C(0xFFFFFFFF)

/* X(return type, name without cl, parameters) */
#define TSR__CL_FUNCTIONS(X)                                                                                           \
  X(int32_t, GetPlatformIDs, (uint32_t, tsr__cl_platform *, uint32_t *))                                               \
  X(int32_t, GetPlatformInfo, (tsr__cl_platform, uint32_t, size_t, void *, size_t *))                                  \
  X(int32_t, GetDeviceIDs, (tsr__cl_platform, uint64_t, uint32_t, tsr__cl_device *, uint32_t *))                       \
  X(int32_t, GetDeviceInfo, (tsr__cl_device, uint32_t, size_t, void *, size_t *))                                      \
  X(int32_t, RetainDevice, (tsr__cl_device))                                                                           \
  X(int32_t, ReleaseDevice, (tsr__cl_device))                                                                          \
  X(tsr__cl_context, CreateContext,                                                                                    \
    (const intptr_t *, uint32_t, const tsr__cl_device *, void (*)(const char *, const void *, size_t, void *), void *, \
     int32_t *))                                                                                                       \
  X(int32_t, RetainContext, (tsr__cl_context))                                                                         \
  X(int32_t, ReleaseContext, (tsr__cl_context))                                                                        \
  X(int32_t, GetContextInfo, (tsr__cl_context, uint32_t, size_t, void *, size_t *))                                    \
  X(tsr__cl_queue, CreateCommandQueue, (tsr__cl_context, tsr__cl_device, uint64_t, int32_t *))                         \
  X(int32_t, RetainCommandQueue, (tsr__cl_queue))                                                                      \
  X(int32_t, ReleaseCommandQueue, (tsr__cl_queue))                                                                     \
  X(int32_t, GetCommandQueueInfo, (tsr__cl_queue, uint32_t, size_t, void *, size_t *))                                 \
  X(tsr__cl_mem, CreateBuffer, (tsr__cl_context, uint64_t, size_t, void *, int32_t *))                                 \
  X(int32_t, ReleaseMemObject, (tsr__cl_mem))                                                                          \
  X(int32_t, GetMemObjectInfo, (tsr__cl_mem, uint32_t, size_t, void *, size_t *))                                      \
  X(int32_t, EnqueueReadBuffer,                                                                                        \
    (tsr__cl_queue, tsr__cl_mem, uint32_t, size_t, size_t, void *, uint32_t, const tsr__cl_event *, tsr__cl_event *))  \
  X(int32_t, EnqueueWriteBuffer,                                                                                       \
    (tsr__cl_queue, tsr__cl_mem, uint32_t, size_t, size_t, const void *, uint32_t, const tsr__cl_event *,              \
     tsr__cl_event *))                                                                                                 \
  X(tsr__cl_program, CreateProgramWithSource, (tsr__cl_context, uint32_t, const char **, const size_t *, int32_t *))   \
  X(tsr__cl_program, CreateProgramWithBinary,                                                                          \
    (tsr__cl_context, uint32_t, const tsr__cl_device *, const size_t *, const unsigned char **, int32_t *, int32_t *)) \
  X(int32_t, BuildProgram,                                                                                             \
    (tsr__cl_program, uint32_t, const tsr__cl_device *, const char *, void (*)(tsr__cl_program, void *), void *))      \
  X(int32_t, GetProgramInfo, (tsr__cl_program, uint32_t, size_t, void *, size_t *))                                    \
  X(int32_t, GetProgramBuildInfo, (tsr__cl_program, tsr__cl_device, uint32_t, size_t, void *, size_t *))               \
  X(int32_t, ReleaseProgram, (tsr__cl_program))                                                                        \
  X(tsr__cl_kernel, CreateKernel, (tsr__cl_program, const char *, int32_t *))                                          \
  X(int32_t, ReleaseKernel, (tsr__cl_kernel))                                                                          \
  X(int32_t, SetKernelArg, (tsr__cl_kernel, uint32_t, size_t, const void *))                                           \
  X(int32_t, GetKernelWorkGroupInfo, (tsr__cl_kernel, tsr__cl_device, uint32_t, size_t, void *, size_t *))             \
  X(int32_t, EnqueueNDRangeKernel,                                                                                     \
    (tsr__cl_queue, tsr__cl_kernel, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t,                \
     const tsr__cl_event *, tsr__cl_event *))                                                                          \
  X(int32_t, EnqueueMarkerWithWaitList, (tsr__cl_queue, uint32_t, const tsr__cl_event *, tsr__cl_event *))             \
  X(int32_t, ReleaseEvent, (tsr__cl_event))                                                                            \
  X(int32_t, Flush, (tsr__cl_queue))                                                                                   \
  X(int32_t, Finish, (tsr__cl_queue))

/* Of OpenCL 2.0: absent from older libraries, and called only for devices that say they have SVM. */
#define TSR__CL_OPTIONAL_FUNCTIONS(X) X(int32_t, SetKernelArgSVMPointer, (tsr__cl_kernel, uint32_t, const void *))

/* The functions, found at run time or linked: cl.SetKernelArg(...) is clSetKernelArg(...). */
typedef struct tsr__cl {
  void *library; /* NULL: linked */
#define X(type, name, params) type(*name) params;
  TSR__CL_FUNCTIONS(X)
  TSR__CL_OPTIONAL_FUNCTIONS(X)
#undef X
} tsr__cl;

/* Fills *cl from the library at `path` ("" : libOpenCL.so.1 wherever the loader finds it), which stays in the process
 * from then on, since drivers do not survive being unloaded. Nonzero on success, else a reason of one line. */
int tsr__cl_open(tsr__cl *cl, const char *path, char *why_not, size_t why_not_bytes);

/* "CL_OUT_OF_RESOURCES" for -5, "error -9999" for what is not listed above; buffer may be used. */
const char *tsr__cl_error_name(int32_t error, char *buffer, size_t buffer_bytes);

#endif
