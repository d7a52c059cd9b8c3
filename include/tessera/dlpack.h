/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of other frameworks without a copy, by the DLPack protocol (version 1.x and the unversioned one). Header
 * only: nothing here is in the library. The tsr_dl_ structs have the protocol's memory layout, so a pointer to a
 * framework's DLTensor is cast.
 *
 *   static const int8_t bhsd[4] = {0, 2, 1, 3};  // logical b, s, h, d are the tensor's dimensions 0, 2, 1, 3
 *   status = tsr_dlpack_import(&managed->dl_tensor, bhsd, &desc.q, &args.q, &why);
 *
 * Ownership stays where it was: keep the managed tensor until the run that uses it has finished, then call its deleter.
 * Thread-safety: any thread. */
#ifndef TESSERA_DLPACK_H
#define TESSERA_DLPACK_H

#include <string.h>

#include "tessera/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device types of the protocol. */
enum {
  TSR_DL_CPU = 1,
  TSR_DL_CUDA = 2,
  TSR_DL_CUDA_HOST = 3,
  TSR_DL_OPENCL = 4,
  TSR_DL_VULKAN = 7,
  TSR_DL_METAL = 8,
  TSR_DL_VPI = 9,
  TSR_DL_ROCM = 10,
  TSR_DL_ROCM_HOST = 11,
  TSR_DL_EXT_DEV = 12,
  TSR_DL_CUDA_MANAGED = 13,
  TSR_DL_ONE_API = 14,
  TSR_DL_WEB_GPU = 15,
  TSR_DL_HEXAGON = 16,
  TSR_DL_MAIA = 17
};

typedef struct tsr_dl_device {
  int32_t device_type; /* TSR_DL_* */
  int32_t device_id;
} tsr_dl_device;

typedef struct tsr_dl_data_type {
  uint8_t code; /* 0 int, 1 uint, 2 float, 4 bfloat, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2, ... */
  uint8_t bits;
  uint16_t lanes;
} tsr_dl_data_type;

typedef struct tsr_dl_tensor {
  void *data; /* host pointer, device pointer or cl_mem */
  tsr_dl_device device;
  int32_t ndim;
  tsr_dl_data_type dtype;
  int64_t *shape;
  int64_t *strides; /* elements; NULL: contiguous */
  uint64_t byte_offset;
} tsr_dl_tensor;

/* The unversioned capsule, "dltensor". */
typedef struct tsr_dl_managed {
  tsr_dl_tensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct tsr_dl_managed *self);
} tsr_dl_managed;

/* The versioned capsule, "dltensor_versioned". */
typedef struct tsr_dl_managed_versioned {
  uint32_t version_major, version_minor;
  void *manager_ctx;
  void (*deleter)(struct tsr_dl_managed_versioned *self);
  uint64_t flags; /* bit 0: read only */
  tsr_dl_tensor dl_tensor;
} tsr_dl_managed_versioned;

/* Element types, both ways. TSR_DTYPE_NONE / bits 0: there is no such type on the other side. */
static inline tsr_dtype tsr_dlpack_dtype(tsr_dl_data_type t) {
  if (t.lanes != 1) {
    return TSR_DTYPE_NONE;
  }
  switch (t.code << 8 | t.bits) {
  case 0 << 8 | 8: return TSR_I8;
  case 0 << 8 | 32: return TSR_I32;
  case 0 << 8 | 64: return TSR_I64;
  case 1 << 8 | 4: return TSR_U4;
  case 1 << 8 | 8: return TSR_U8;
  case 2 << 8 | 16: return TSR_F16;
  case 2 << 8 | 32: return TSR_F32;
  case 4 << 8 | 16: return TSR_BF16;
  case 6 << 8 | 8: return TSR_U8; /* bool */
  case 10 << 8 | 8: return TSR_F8E4M3;
  case 11 << 8 | 8: return TSR_F8E4M3FNUZ;
  case 12 << 8 | 8: return TSR_F8E5M2;
  case 13 << 8 | 8: return TSR_F8E5M2FNUZ;
  default: return TSR_DTYPE_NONE;
  }
}

static inline tsr_dl_data_type tsr_dlpack_data_type(tsr_dtype dtype) {
  tsr_dl_data_type t = {0, 0, 1};
  switch (dtype) {
  case TSR_F32: t.code = 2, t.bits = 32; break;
  case TSR_F16: t.code = 2, t.bits = 16; break;
  case TSR_BF16: t.code = 4, t.bits = 16; break;
  case TSR_F8E4M3: t.code = 10, t.bits = 8; break;
  case TSR_F8E5M2: t.code = 12, t.bits = 8; break;
  case TSR_F8E4M3FNUZ: t.code = 11, t.bits = 8; break;
  case TSR_F8E5M2FNUZ: t.code = 13, t.bits = 8; break;
  case TSR_I8: t.code = 0, t.bits = 8; break;
  case TSR_U4: t.code = 1, t.bits = 4; break;
  case TSR_U8: t.code = 1, t.bits = 8; break;
  case TSR_I32: t.code = 0, t.bits = 32; break;
  case TSR_I64: t.code = 0, t.bits = 64; break;
  default: break;
  }
  return t;
}

/* What tsr_attention_desc.memory is for tensors of a device type; -1: memory that no back end computes on. */
static inline int32_t tsr_dlpack_memory(int32_t device_type) {
  switch (device_type) {
  case TSR_DL_CPU:
  case TSR_DL_CUDA_HOST:
  case TSR_DL_ROCM_HOST: return TSR_MEMORY_HOST;
  case TSR_DL_CUDA:
  case TSR_DL_CUDA_MANAGED:
  case TSR_DL_ROCM: return TSR_MEMORY_DEVICE;
  case TSR_DL_OPENCL: return TSR_MEMORY_CL_MEM;
  default: return -1;
  }
}

/* Name of the back end for a device type, as tsr_device_open takes it with ":" and the device id; NULL: none. */
static inline const char *tsr_dlpack_backend(int32_t device_type) {
  switch (device_type) {
  case TSR_DL_CPU:
  case TSR_DL_CUDA_HOST:
  case TSR_DL_ROCM_HOST: return "cpu";
  case TSR_DL_CUDA:
  case TSR_DL_CUDA_MANAGED: return "cuda";
  case TSR_DL_ROCM: return "hip";
  case TSR_DL_OPENCL: return "opencl";
  default: return NULL;
  }
}

/* Stride of dimension `dim` in elements; -1: beyond 2^63 - 1. */
static inline int64_t tsr_dlpack_stride(const tsr_dl_tensor *t, int32_t dim) {
  int64_t stride = 1;
  if (t->strides != NULL) {
    return t->strides[dim];
  }
  for (int32_t d = t->ndim - 1; d > dim; d--) {
    const int64_t n = t->shape[d] > 0 ? t->shape[d] : 1;
    if (stride > INT64_MAX / n) {
      return -1;
    }
    stride *= n;
  }
  return stride;
}

/* Layout and buffer of a tensor. axis[k] is the tensor's dimension that serves as logical axis k, -1 an axis of extent
 * 1; every dimension must be used once. *why (optional) gets a sentence on failure. Errors: TSR_INVALID (axes, negative
 * stride or extent, a shape whose strides would overflow), TSR_UNSUPPORTED (element type). */
static inline tsr_status tsr_dlpack_import(const tsr_dl_tensor *t, const int8_t axis[4], tsr_layout *layout,
                                           tsr_buffer *buffer, const char **why) {
  const char *unused;
  int32_t used = 0;
  tsr_layout l;
  memset(&l, 0, sizeof(l));
  why = why != NULL ? why : &unused;
  *why = "a required pointer is NULL";
  if (t == NULL || axis == NULL || layout == NULL || buffer == NULL || (t->ndim > 0 && t->shape == NULL)) {
    return TSR_INVALID;
  }
  if (t->ndim < 0 || t->ndim > 4) {
    *why = "the tensor has more than four dimensions";
    return TSR_INVALID;
  }
  l.dtype = tsr_dlpack_dtype(t->dtype);
  if (l.dtype == TSR_DTYPE_NONE) {
    *why = "the tensor's element type has no equivalent";
    return TSR_UNSUPPORTED;
  }
  for (int k = 0; k < 4; k++) {
    l.shape[k] = 1;
    l.stride[k] = 1;
    if (axis[k] < 0) {
      continue;
    }
    if (axis[k] >= t->ndim || (used >> axis[k] & 1)) {
      *why = "an axis names a dimension that the tensor lacks, or one twice";
      return TSR_INVALID;
    }
    used |= 1 << axis[k];
    l.shape[k] = t->shape[axis[k]];
    l.stride[k] = tsr_dlpack_stride(t, axis[k]);
    if (l.shape[k] < 0 || l.stride[k] < 0) {
      *why = "an extent or a stride is negative or too large";
      return TSR_INVALID;
    }
  }
  if (used != (1 << t->ndim) - 1) {
    *why = "the axes do not use every dimension of the tensor";
    return TSR_INVALID;
  }
  if (t->byte_offset > (uint64_t)INT64_MAX) {
    *why = "the byte offset is beyond 2^63";
    return TSR_INVALID;
  }
  *layout = l;
  buffer->ptr = t->data;
  buffer->offset_bytes = (int64_t)t->byte_offset;
  *why = "";
  return TSR_OK;
}

/* The other way: a tensor view of a layout's memory. shape and strides are the caller's arrays of 4; dimensions are the
 * logical axes in the order of axis[] (as above: axis[k] is the dimension that logical axis k becomes, -1 drops an axis
 * of extent 1). The view owns nothing. Errors: TSR_INVALID (axes, a negative offset), TSR_UNSUPPORTED (bit masks have
 * no equivalent). */
static inline tsr_status tsr_dlpack_export(const tsr_layout *layout, tsr_buffer buffer, const int8_t axis[4],
                                           tsr_dl_device device, int64_t shape[4], int64_t strides[4],
                                           tsr_dl_tensor *out) {
  int32_t ndim = 0, used = 0;
  if (layout == NULL || axis == NULL || shape == NULL || strides == NULL || out == NULL || buffer.offset_bytes < 0) {
    return TSR_INVALID;
  }
  for (int k = 0; k < 4; k++) {
    if (axis[k] < 0) {
      if (layout->shape[k] != 1) {
        return TSR_INVALID;
      }
      continue;
    }
    if (axis[k] > 3 || (used >> axis[k] & 1)) {
      return TSR_INVALID;
    }
    used |= 1 << axis[k];
    shape[axis[k]] = layout->shape[k];
    strides[axis[k]] = layout->stride[k];
    ndim++;
  }
  if (used != (1 << ndim) - 1) {
    return TSR_INVALID;
  }
  memset(out, 0, sizeof(*out));
  out->dtype = tsr_dlpack_data_type(layout->dtype);
  if (out->dtype.bits == 0) {
    return TSR_UNSUPPORTED;
  }
  out->data = buffer.ptr;
  out->byte_offset = (uint64_t)buffer.offset_bytes;
  out->device = device;
  out->ndim = ndim;
  out->shape = shape;
  out->strides = strides;
  return TSR_OK;
}

#ifdef __cplusplus
}
#endif
#endif
