/* SPDX-License-Identifier: Apache-2.0 */
/* Types that every other header uses: status codes, errors, element types, layouts, buffers.
 *
 * Growth rule of the whole API: a struct that a caller fills starts with `size`, which the caller sets
 * to sizeof the struct (the initialisers do); it grows only at its end. A library that is older than
 * the caller accepts a larger size if the tail it does not know is all zero (in outputs it zeroes that
 * tail), up to 65536. A smaller size must be what the struct had before it grew, at a field where its
 * comment says so; all others are TSR_INVALID, so that no field is ever cut. Structs nested in others
 * (tsr_layout, tsr_buffer) and pure outputs without a size (tsr_error, tsr_verdict) are frozen.
 *
 * Thread-safety: every function of these headers may be called from any thread at any time, unless its comment says
 * otherwise; the objects and memory it is given must live until it returns. */
#ifndef TESSERA_BASE_H
#define TESSERA_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(TSR_STATIC)
#define TSR_API
#elif defined(__GNUC__)
#define TSR_API __attribute__((visibility("default")))
#else
#define TSR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TSR_VERSION_MAJOR 0
#define TSR_VERSION_MINOR 1
#define TSR_VERSION_PATCH 0

/* Version of the library in use, e.g. "0.1.0". Static storage. Thread-safety: any thread. */
TSR_API const char *tsr_version(void);

/* ---- Status ---------------------------------------------------------------------------------- */

/* Every fallible call returns one of these; 0 is success. */
typedef int32_t tsr_status;
enum {
  TSR_OK = 0,
  TSR_INVALID = 1,          /* the input breaks a rule of these headers */
  TSR_UNSUPPORTED = 2,      /* valid, but no variant here computes it; the text says why */
  TSR_OUT_OF_WORKSPACE = 3, /* workspace NULL, misaligned or too small; the text has the bytes needed */
  TSR_OUT_OF_MEMORY = 4,    /* a host or device allocation failed */
  TSR_BACKEND_MISSING = 5,  /* no such back end in this build, or its driver is not installed */
  TSR_DEVICE_ERROR = 6,     /* the driver refused; native_code has its error number */
  TSR_DEVICE_LOST = 7,      /* the device must be reset before it can be used again */
  TSR_CANCELLED = 8,        /* should_stop asked for it; outputs are undefined */
  TSR_FORKED = 9,           /* the runtime behind the call does not survive fork(); see context.h */
  TSR_IO = 10               /* a file or directory could not be read or written */
};

/* Name of a status ("invalid", "unsupported", ...); "unknown" for other values. Static storage. */
TSR_API const char *tsr_status_name(tsr_status status);

/* What went wrong, in words. Owned by the caller, filled on failure by every call that takes one
 * (NULL: not wanted), set to all zero on success. Needs no initialisation. Frozen. */
typedef struct tsr_error {
  tsr_status status;
  int32_t native_code; /* the driver's or system's own error number, 0 if none */
  char field[64];      /* the struct field or argument at fault, e.g. "k.shape[2]"; "" if none */
  char text[440];      /* one sentence: field, value, rule */
} tsr_error;

/* ---- Element types --------------------------------------------------------------------------- */

typedef int32_t tsr_dtype;
enum {
  TSR_DTYPE_NONE = 0, /* no tensor */
  TSR_F32 = 1,
  TSR_F16 = 2,
  TSR_BF16 = 3,
  TSR_F8E4M3 = 4, /* OCP E4M3FN: max 448, no infinity */
  TSR_F8E5M2 = 5, /* OCP E5M2 */
  TSR_I8 = 6,     /* two's complement; quantised K/V */
  TSR_U4 = 7,     /* unsigned, channel 2n in the low nibble; quantised K/V; strides count nibbles */
  TSR_U8 = 8,     /* boolean masks: nonzero may attend */
  TSR_BIT = 9,    /* bit masks: bit j of a row is byte j >> 3, bit j & 7; strides count BYTES */
  TSR_I32 = 10,
  TSR_I64 = 11,
  TSR_F8E4M3FNUZ = 12, /* named so that they can be refused: unsupported everywhere today */
  TSR_F8E5M2FNUZ = 13
};

/* Name of an element type ("f32", "f8e4m3", ...), "?" for other values. Static storage. */
TSR_API const char *tsr_dtype_name(tsr_dtype dtype);
/* Bits an element occupies; 0 for TSR_DTYPE_NONE and unknown values. */
TSR_API int32_t tsr_dtype_bits(tsr_dtype dtype);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Where the elements of a tensor are: four logical axes, whose meaning the field's comment gives
 * (for Q, K, V, O always b, s, h, d). Unused trailing axes have extent 1.
 *   shape   extents, >= 0. Axes that a comment shows as `B|1` may be 1, which broadcasts.
 *   stride  in elements (TSR_U4: nibbles, TSR_BIT: bytes), >= 0, for every axis, the last included, so
 *           that BSHD, BHSD and interleaved K/V are strides. 0 repeats an element; inputs only. A stride
 *           is never guessed: tsr_layout_dense fills them. On an axis of extent 1 it is ignored.
 *   align_bytes  what the caller promises for the first byte of every row (power of two, <= 4096);
 *           0: the element size. A broken promise is undefined behaviour on devices, and checked where
 *           the library can see the pointer.
 * dtype TSR_DTYPE_NONE (an all-zero layout) means that there is no such tensor. Frozen. */
typedef struct tsr_layout {
  tsr_dtype dtype;
  int32_t align_bytes;
  int64_t shape[4];
  int64_t stride[4];
  int64_t reserved[2]; /* 0 */
} tsr_layout;

/* A contiguous layout of four axes, the last one fastest. */
static inline tsr_layout tsr_layout_dense(tsr_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3) {
  tsr_layout l = {0, 0, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0}};
  l.dtype = dtype;
  l.shape[0] = n0;
  l.shape[1] = n1;
  l.shape[2] = n2;
  l.shape[3] = n3;
  l.stride[3] = 1;
  l.stride[2] = n3;
  /* unsigned: extents whose product overflows wrap, and are refused by whoever takes the layout */
  l.stride[1] = (int64_t)((uint64_t)n3 * (uint64_t)n2);
  l.stride[0] = (int64_t)((uint64_t)l.stride[1] * (uint64_t)n1);
  return l;
}

/* Logical [b,s,h,d] stored as [b,h,s,d] (PyTorch's order). */
static inline tsr_layout tsr_layout_bhsd(tsr_dtype dtype, int64_t b, int64_t h, int64_t s, int64_t d) {
  tsr_layout l = tsr_layout_dense(dtype, b, h, s, d);
  const int64_t head_stride = l.stride[1];
  l.shape[1] = s;
  l.shape[2] = h;
  l.stride[1] = l.stride[2];
  l.stride[2] = head_stride;
  return l;
}

/* Memory of a tensor at run: a host pointer, a device pointer, a cl_mem or an SVM pointer (what it is
 * follows from tsr_attention_desc.memory), plus a byte offset. All zero: no tensor. Frozen. */
typedef struct tsr_buffer {
  void *ptr;
  int64_t offset_bytes;
} tsr_buffer;

/* A buffer on memory that is only read; nothing is ever written through an input. */
static inline tsr_buffer tsr_buffer_in(const void *ptr) {
  union {
    const void *in;
    void *ptr;
  } u;
  tsr_buffer b;
  u.in = ptr;
  b.ptr = u.ptr;
  b.offset_bytes = 0;
  return b;
}

static inline tsr_buffer tsr_buffer_out(void *ptr) {
  tsr_buffer b;
  b.ptr = ptr;
  b.offset_bytes = 0;
  return b;
}

#ifdef __cplusplus
}
#endif
#endif
