/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "backends/opencl/state.h"

enum { MAX_PLATFORMS = 16, NAME_BYTES = 96 };

struct entry {
  int32_t is_cpu;
  char platform_name[NAME_BYTES];
  tsr__cl_platform platform;
  tsr__cl_device device;
};

/* Cuts spaces at both ends and makes one line of what drivers say. */
static void tidy(char *out, size_t bytes, const char *text, size_t n) {
  size_t used = 0;
  while (n > 0 && (text[n - 1] == '\0' || (unsigned char)text[n - 1] <= ' ')) {
    n--;
  }
  for (size_t i = 0; i < n && text[i] != '\0' && used + 1 < bytes; i++) {
    const int space = (unsigned char)text[i] <= ' ';
    if (!space || (used > 0 && out[used - 1] != ' ')) {
      out[used++] = (char)(space ? ' ' : text[i]);
    }
  }
  out[used] = '\0';
}

void tsr__opencl_device_text(const tsr__cl *cl, tsr__cl_device device, uint32_t what, char *out, size_t bytes) {
  char text[512];
  size_t n = 0;
  *out = '\0';
  if (cl->GetDeviceInfo(device, what, sizeof(text), text, &n) == TSR__CL_SUCCESS) {
    tidy(out, bytes, text, n < sizeof(text) ? n : sizeof(text));
  }
}

void tsr__opencl_platform_text(const tsr__cl *cl, tsr__cl_platform platform, uint32_t what, char *out, size_t bytes) {
  char text[512];
  size_t n = 0;
  *out = '\0';
  if (cl->GetPlatformInfo(platform, what, sizeof(text), text, &n) == TSR__CL_SUCCESS) {
    tidy(out, bytes, text, n < sizeof(text) ? n : sizeof(text));
  }
}

/* Devices of one platform, behind those of entries[0..n). */
static int32_t add_platform(const tsr__cl *cl, tsr__cl_platform platform, struct entry *entries, int32_t n) {
  tsr__cl_device devices[TSR__OPENCL_MAX_DEVICES];
  uint32_t found = 0;
  if (cl->GetDeviceIDs(platform, TSR__CL_DEVICE_TYPE_ALL, TSR__OPENCL_MAX_DEVICES, devices, &found) !=
      TSR__CL_SUCCESS) {
    return n; /* a driver without a device of its own says CL_DEVICE_NOT_FOUND */
  }
  for (uint32_t i = 0; i < found && i < TSR__OPENCL_MAX_DEVICES && n < TSR__OPENCL_MAX_DEVICES; i++, n++) {
    uint64_t type = 0;
    cl->GetDeviceInfo(devices[i], TSR__CL_DEVICE_TYPE, sizeof(type), &type, NULL);
    entries[n].is_cpu = (type & TSR__CL_DEVICE_TYPE_CPU) != 0;
    entries[n].platform = platform;
    entries[n].device = devices[i];
    tsr__opencl_platform_text(cl, platform, TSR__CL_PLATFORM_NAME, entries[n].platform_name, NAME_BYTES);
  }
  return n;
}

static int comes_before(const struct entry *a, const struct entry *b) {
  return a->is_cpu != b->is_cpu ? a->is_cpu < b->is_cpu : strcmp(a->platform_name, b->platform_name) < 0;
}

void tsr__opencl_list_devices(const tsr__cl *cl, tsr__opencl_list *list, char *why_not, size_t why_not_bytes) {
  tsr__cl_platform platforms[MAX_PLATFORMS];
  struct entry entries[TSR__OPENCL_MAX_DEVICES];
  uint32_t num_platforms = 0;
  int32_t n = 0;
  const int32_t error = cl->GetPlatformIDs(MAX_PLATFORMS, platforms, &num_platforms);
  list->n = 0;
  if (error != TSR__CL_SUCCESS || num_platforms == 0) {
    char buffer[32];
    const int none = error == TSR__CL_SUCCESS || error == TSR__CL_PLATFORM_NOT_FOUND_KHR;
    snprintf(why_not, why_not_bytes, "libOpenCL is here, but no driver is%s%s", none ? "" : ": ",
             none ? "" : tsr__cl_error_name(error, buffer, sizeof(buffer)));
    return;
  }
  num_platforms = num_platforms < MAX_PLATFORMS ? num_platforms : MAX_PLATFORMS;
  for (uint32_t i = 0; i < num_platforms; i++) {
    n = add_platform(cl, platforms[i], entries, n);
  }
  if (n == 0) {
    char name[NAME_BYTES];
    tsr__opencl_platform_text(cl, platforms[0], TSR__CL_PLATFORM_NAME, name, sizeof(name));
    snprintf(why_not, why_not_bytes, "OpenCL drivers are here (%s%s), but no device is", name,
             num_platforms > 1 ? ", ..." : "");
    return;
  }
  for (int32_t i = 1; i < n; i++) { /* a stable sort of few */
    const struct entry e = entries[i];
    int32_t k = i;
    for (; k > 0 && comes_before(&e, &entries[k - 1]); k--) {
      entries[k] = entries[k - 1];
    }
    entries[k] = e;
  }
  for (int32_t i = 0; i < n; i++) {
    list->at[i].platform = entries[i].platform;
    list->at[i].device = entries[i].device;
  }
  list->n = n;
}
