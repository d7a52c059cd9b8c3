/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: cache entries. Any bytes are refused or hold the key; a good entry is accepted as it is and refused
 * once a byte differs or its length does. The first bytes choose, the rest is an entry, or key and image of one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/image_parts.h"

enum { HEADER = 6 };

#define REQUIRE(condition)                                    \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      abort();                                                \
    }                                                         \
  } while (0)

/* Checks a copy of exactly `bytes`, so that a sanitizer sees any read beside it. */
static int accepted(const tsr__image_key *key, const unsigned char *entry, size_t bytes, const void *image,
                    size_t image_bytes) {
  unsigned char *copy = malloc(bytes > 0 ? bytes : 1);
  const void *data = NULL;
  size_t data_bytes = 0;
  const char *why;
  REQUIRE(copy != NULL);
  memcpy(copy, entry, bytes);
  why = tsr__entry_check(key, copy, bytes, &data, &data_bytes);
  if (why == NULL && image != NULL) {
    REQUIRE(data_bytes == image_bytes && memcmp(data, image, image_bytes) == 0);
  }
  if (why == NULL) {
    REQUIRE((const unsigned char *)data >= copy && data_bytes <= bytes && data_bytes > 0);
  }
  free(copy);
  return why == NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const uint8_t *h = data;
  tsr__image_key key = {NULL, 0, ""};
  unsigned char *entry;
  size_t bytes, at, image_bytes;
  char text[512] = "";
  if (size < HEADER + 1) {
    return 0;
  }
  data += HEADER;
  size -= HEADER;
  key.text = text;
  key.bytes = h[0] % (size < sizeof(text) ? size : sizeof(text));
  memcpy(text, data, key.bytes);
  accepted(&key, data, size, NULL, 0);
  image_bytes = size - key.bytes;
  entry = tsr__entry_pack(NULL, &key, data + key.bytes, image_bytes, &bytes);
  REQUIRE(entry != NULL);
  REQUIRE(accepted(&key, entry, bytes, data + key.bytes, image_bytes));
  at = (size_t)(h[1] << 16 | h[2] << 8 | h[3]) % bytes;
  REQUIRE(!accepted(&key, entry, at, NULL, 0));
  entry[at] ^= (unsigned char)(1 << h[4] % 8);
  REQUIRE(!accepted(&key, entry, bytes, NULL, 0));
  entry[at] ^= (unsigned char)(1 << h[4] % 8);
  if (key.bytes > 0) {
    text[h[5] % key.bytes] ^= 1;
    REQUIRE(!accepted(&key, entry, bytes, NULL, 0));
  }
  tsr__alloc_free(NULL, entry);
  return 0;
}
