/* SPDX-License-Identifier: Apache-2.0 */
#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "tessera/cpu.h"

static int each_level(const char *device, conf_each_device *each, void *user) {
  char level[16];
  int answer = 0;
  for (const char *at = tsr_cpu_levels(); answer == 0 && *at != '\0'; at += strcspn(at, " "), at += strspn(at, " ")) {
    snprintf(level, sizeof(level), "%.*s", (int)strcspn(at, " "), at);
    answer = each(user, device, level);
  }
  return answer;
}

int conf_devices_of(const tsr_backend_info *backend, conf_each_device *each, void *user) {
  int answer = 0;
  for (int32_t n = 0; answer == 0 && backend->why_not == NULL && n < backend->device_count; n++) {
    char device[80];
    snprintf(device, sizeof(device), "%.60s:%d", backend->name, (int)n);
    answer = strcmp(backend->name, "cpu") == 0 ? each_level(device, each, user) : each(user, device, NULL);
  }
  return answer;
}
