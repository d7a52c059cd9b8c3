/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cuda/state.h"

tsr_status tsr__cuda_status(unsigned int error) {
  switch (error) {
  case TSR__CUDA_SUCCESS: return TSR_OK;
  case TSR__CUDA_ERROR_OUT_OF_MEMORY: return TSR_OUT_OF_MEMORY;
  case TSR__CUDA_ERROR_INVALID_VALUE:
  case TSR__CUDA_ERROR_INVALID_CONTEXT:
  case TSR__CUDA_ERROR_INVALID_HANDLE:
  case TSR__CUDA_ERROR_CONTEXT_IS_DESTROYED: return TSR_INVALID;
  /* After these the context serves nobody any more. */
  case TSR__CUDA_ERROR_DEVICE_UNAVAILABLE:
  case TSR__CUDA_ERROR_ECC_UNCORRECTABLE:
  case TSR__CUDA_ERROR_NVLINK_UNCORRECTABLE:
  case TSR__CUDA_ERROR_ILLEGAL_ADDRESS:
  case TSR__CUDA_ERROR_LAUNCH_TIMEOUT:
  case TSR__CUDA_ERROR_ASSERT:
  case TSR__CUDA_ERROR_HARDWARE_STACK_ERROR:
  case TSR__CUDA_ERROR_ILLEGAL_INSTRUCTION:
  case TSR__CUDA_ERROR_MISALIGNED_ADDRESS:
  case TSR__CUDA_ERROR_INVALID_ADDRESS_SPACE:
  case TSR__CUDA_ERROR_INVALID_PC:
  case TSR__CUDA_ERROR_LAUNCH_FAILED:
  case TSR__CUDA_ERROR_MPS_CLIENT_TERMINATED:
  case TSR__CUDA_ERROR_UNKNOWN: return TSR_DEVICE_LOST;
  default: return TSR_DEVICE_ERROR;
  }
}

tsr_status tsr__cuda_fail(tsr_error *err, unsigned int error, const char *field, const char *what) {
  char buffer[32];
  const tsr_status st = tsr__cuda_status(error);
  tsr__fail(err, st, field, "%s: %s%s", what, tsr__cu_error_name(error, buffer, sizeof(buffer)),
            st == TSR_DEVICE_LOST ? "; what was enqueued before has failed, and this process must leave the device"
                                  : "");
  if (err != NULL) {
    err->native_code = (int32_t)error;
  }
  return st;
}
