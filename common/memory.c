/* SPDX-License-Identifier: Apache-2.0 */
#include "tessera/memory.h"

#include <string.h>

#include "common/objects.h"

static tsr_status required(const void *p, const char *field, tsr_error *err) {
  return p != NULL ? TSR_OK : tsr__fail(err, TSR_INVALID, field, "%s is NULL", field);
}

tsr_status tsr_memory_alloc(tsr_device *device, int64_t bytes, void **ptr, tsr_error *err) {
  tsr_status st = required(device, "device", err);
  st = st == TSR_OK ? required(ptr, "ptr", err) : st;
  if (st != TSR_OK) {
    return st;
  }
  *ptr = NULL;
  if (bytes < 0) {
    return tsr__fail(err, TSR_INVALID, "bytes", "bytes is %lld, must not be negative", (long long)bytes);
  }
  if (device->backend->memory_alloc != NULL) {
    st = device->backend->memory_alloc(&device->dev, bytes, ptr, err);
    return st == TSR_OK ? tsr__ok(err) : st;
  }
  *ptr = tsr__alloc_zero(&device->context->host.alloc, (size_t)bytes);
  return *ptr != NULL ? tsr__ok(err)
                      : tsr__fail(err, TSR_OUT_OF_MEMORY, "bytes", "no memory for %lld bytes", (long long)bytes);
}

void tsr_memory_free(tsr_device *device, void *ptr) {
  if (device == NULL || ptr == NULL) {
    return;
  }
  if (device->backend->memory_free != NULL) {
    device->backend->memory_free(&device->dev, ptr);
  } else {
    tsr__alloc_free(&device->context->host.alloc, ptr);
  }
}

static tsr_status check_copy(const tsr_device *device, const tsr_buffer *buffer, const char *buffer_field,
                             const void *host, const char *host_field, int64_t bytes, tsr_error *err) {
  tsr_status st = required(device, "device", err);
  st = st == TSR_OK ? required(buffer, buffer_field, err) : st;
  if (st == TSR_OK && bytes < 0) {
    st = tsr__fail(err, TSR_INVALID, "bytes", "bytes is %lld, must not be negative", (long long)bytes);
  }
  if (st == TSR_OK && bytes > 0) {
    st = required(host, host_field, err);
    st = st == TSR_OK ? required(buffer->ptr, buffer_field, err) : st;
  }
  if (st == TSR_OK && buffer->offset_bytes < 0) {
    st = tsr__fail(err, TSR_INVALID, buffer_field, "%s.offset_bytes is %lld, must not be negative", buffer_field,
                   (long long)buffer->offset_bytes);
  }
  return st;
}

tsr_status tsr_memory_write(tsr_device *device, const tsr_buffer *to, const void *from, int64_t bytes, tsr_error *err) {
  tsr_status st = check_copy(device, to, "to", from, "from", bytes, err);
  if (st == TSR_OK && bytes > 0) {
    if (device->backend->memory_write != NULL) {
      st = device->backend->memory_write(&device->dev, to->ptr, to->offset_bytes, from, bytes, err);
    } else {
      memcpy(tsr__buffer_address(to), from, (size_t)bytes);
    }
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_memory_read(tsr_device *device, void *to, const tsr_buffer *from, int64_t bytes, tsr_error *err) {
  tsr_status st = check_copy(device, from, "from", to, "to", bytes, err);
  if (st == TSR_OK && bytes > 0) {
    if (device->backend->memory_read != NULL) {
      st = device->backend->memory_read(&device->dev, to, from->ptr, from->offset_bytes, bytes, err);
    } else {
      memcpy(to, tsr__buffer_address(from), (size_t)bytes);
    }
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}

tsr_status tsr_device_wait(tsr_device *device, void *queue, tsr_error *err) {
  tsr_status st = required(device, "device", err);
  if (st == TSR_OK && device->backend->wait != NULL) {
    st = device->backend->wait(&device->dev, queue, err);
  }
  return st == TSR_OK ? tsr__ok(err) : st;
}
