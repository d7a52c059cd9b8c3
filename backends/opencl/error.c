/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/opencl/state.h"

tsr_status tsr__opencl_status(int32_t error) {
  switch (error) {
  case TSR__CL_SUCCESS: return TSR_OK;
  case TSR__CL_MEM_OBJECT_ALLOCATION_FAILURE:
  case TSR__CL_OUT_OF_HOST_MEMORY:
  case TSR__CL_INVALID_BUFFER_SIZE: return TSR_OUT_OF_MEMORY;
  case TSR__CL_COMPILER_NOT_AVAILABLE: return TSR_UNSUPPORTED;
  case TSR__CL_DEVICE_NOT_AVAILABLE: return TSR_DEVICE_LOST;
  case TSR__CL_INVALID_MEM_OBJECT:
  case TSR__CL_INVALID_COMMAND_QUEUE:
  case TSR__CL_INVALID_CONTEXT:
  case TSR__CL_INVALID_DEVICE:
  case TSR__CL_INVALID_EVENT:
  case TSR__CL_INVALID_EVENT_WAIT_LIST: return TSR_INVALID;
  default: return TSR_DEVICE_ERROR; /* CL_OUT_OF_RESOURCES too: drivers say so of any failure of a kernel */
  }
}

tsr_status tsr__opencl_fail(tsr_error *err, int32_t error, const char *field, const char *what) {
  char buffer[32];
  const tsr_status st = tsr__fail(err, tsr__opencl_status(error), field, "%s: %s", what,
                                  tsr__cl_error_name(error, buffer, sizeof(buffer)));
  if (err != NULL) {
    err->native_code = error;
  }
  return st;
}

tsr_status tsr__opencl_queue_fail(const tsr__opencl *d, tsr_error *err, int32_t error, const char *what) {
  tsr_status st = tsr__opencl_fail(err, error, "", what);
  /* A queue that was valid when the device was opened and is not any more belongs to a device that is lost: a kernel's
   * fault ends the whole cl_context. */
  if ((st == TSR_DEVICE_ERROR || error == TSR__CL_INVALID_COMMAND_QUEUE) && d->cl.Finish(d->queue) != TSR__CL_SUCCESS) {
    st = tsr__fail(err, TSR_DEVICE_LOST, "", "%s: the device does not answer any more; open it again", what);
    if (err != NULL) {
      err->native_code = error;
    }
  }
  return st;
}
