/* SPDX-License-Identifier: Apache-2.0 */
/* The entry points of tessera/cuda.h in a build without the back end, so that callers link all the same. */
#include "tessera/cuda.h"

#include "common/backend.h"

static tsr_status absent(tsr_error *err) {
  return tsr__fail(err, TSR_BACKEND_MISSING, "", "this build has no back end \"cuda\"");
}

tsr_status tsr_cuda_device_open(tsr_context *context, const tsr_cuda_params *params, tsr_device **device,
                                tsr_error *err) {
  (void)context;
  (void)params;
  if (device != NULL) {
    *device = NULL;
  }
  return absent(err);
}

tsr_status tsr_cuda_device_get(const tsr_device *device, tsr_cuda_handles *handles, tsr_error *err) {
  (void)device;
  (void)handles;
  return absent(err);
}
