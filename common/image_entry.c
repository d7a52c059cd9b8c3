/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "common/image_parts.h"

/* Byte offsets of the header's fields. */
enum { AT_MAGIC = 0, AT_KEY_BYTES = 8, AT_DATA_BYTES = 16, AT_CHECKSUM = 24, HEADER_BYTES = 64, ALIGN = 64 };

static const char magic[8] = {'t', 's', 'r', 'i', 'm', 'g', '1', '\n'};

static void put_u64(unsigned char *to, uint64_t value) {
  for (int i = 0; i < 8; i++) {
    to[i] = (unsigned char)(value >> (8 * i));
  }
}

static uint64_t get_u64(const unsigned char *from) {
  uint64_t value = 0;
  for (int i = 0; i < 8; i++) {
    value |= (uint64_t)from[i] << (8 * i);
  }
  return value;
}

static size_t data_offset(size_t key_bytes) {
  return (HEADER_BYTES + key_bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Of everything but the checksum itself, whose place counts as zeros. */
static void checksum(const unsigned char *entry, size_t bytes, uint64_t sum[2]) {
  unsigned char header[HEADER_BYTES];
  uint64_t parts[4];
  unsigned char text[sizeof(parts)];
  memcpy(header, entry, HEADER_BYTES);
  memset(header + AT_CHECKSUM, 0, 16);
  tsr__image_hash(header, HEADER_BYTES, parts);
  tsr__image_hash(entry + HEADER_BYTES, bytes - HEADER_BYTES, parts + 2);
  for (int i = 0; i < 4; i++) {
    put_u64(text + 8 * i, parts[i]);
  }
  tsr__image_hash(text, sizeof(text), sum);
}

unsigned char *tsr__entry_pack(const tsr__alloc *alloc, const tsr__image_key *key, const void *data, size_t data_bytes,
                               size_t *bytes) {
  const size_t at = data_offset(key->bytes);
  unsigned char *entry;
  uint64_t sum[2];
  if (data_bytes > TSR__ENTRY_MAX_BYTES || at > TSR__ENTRY_MAX_BYTES - data_bytes) {
    return NULL;
  }
  entry = tsr__alloc_zero(alloc, at + data_bytes);
  if (entry == NULL) {
    return NULL;
  }
  memcpy(entry + AT_MAGIC, magic, sizeof(magic));
  put_u64(entry + AT_KEY_BYTES, key->bytes);
  put_u64(entry + AT_DATA_BYTES, data_bytes);
  memcpy(entry + HEADER_BYTES, key->text, key->bytes);
  memcpy(entry + at, data, data_bytes);
  checksum(entry, at + data_bytes, sum);
  put_u64(entry + AT_CHECKSUM, sum[0]);
  put_u64(entry + AT_CHECKSUM + 8, sum[1]);
  *bytes = at + data_bytes;
  return entry;
}

const char *tsr__entry_check(const tsr__image_key *key, const unsigned char *entry, size_t bytes, const void **data,
                             size_t *data_bytes) {
  uint64_t key_bytes, image_bytes, sum[2];
  size_t at;
  if (bytes < HEADER_BYTES) {
    return "truncated";
  }
  if (memcmp(entry + AT_MAGIC, magic, sizeof(magic)) != 0) {
    return "no cache entry of this version of Tessera";
  }
  key_bytes = get_u64(entry + AT_KEY_BYTES);
  image_bytes = get_u64(entry + AT_DATA_BYTES);
  if (key_bytes > TSR__ENTRY_MAX_BYTES || image_bytes > TSR__ENTRY_MAX_BYTES) {
    return "corrupt: its lengths make no sense";
  }
  at = data_offset((size_t)key_bytes);
  if (bytes != at + (size_t)image_bytes) {
    return bytes < at + (size_t)image_bytes ? "truncated" : "corrupt: longer than it says";
  }
  checksum(entry, bytes, sum);
  if (sum[0] != get_u64(entry + AT_CHECKSUM) || sum[1] != get_u64(entry + AT_CHECKSUM + 8)) {
    return "corrupt: its checksum differs";
  }
  if (key_bytes != key->bytes || memcmp(entry + HEADER_BYTES, key->text, key->bytes) != 0) {
    return "of another key";
  }
  if (image_bytes == 0) {
    return "empty";
  }
  *data = entry + at;
  *data_bytes = (size_t)image_bytes;
  return NULL;
}
