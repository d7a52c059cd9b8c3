/* SPDX-License-Identifier: Apache-2.0 */
/* Where a problem can run. */
#ifndef TSR_TESTS_CONFORMANCE_DEVICES_H
#define TSR_TESTS_CONFORMANCE_DEVICES_H

#include "tessera/tessera.h"

/* device: "cpu:0"; level: of the CPU's instruction sets, NULL for other devices. Not 0 ends the walk. */
typedef int conf_each_device(void *user, const char *device, const char *level);

/* Every device of a back end, the CPU at each of its levels. Returns what the last call did. */
int conf_devices_of(const tsr_backend_info *backend, conf_each_device *each, void *user);

#endif
