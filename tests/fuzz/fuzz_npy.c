/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a .npy file. What is accepted must describe exactly the bytes that follow the header.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor_io.h"

#define REQUIRE(condition)                                    \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      abort();                                                \
    }                                                         \
  } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  tensor_entry entry;
  tsr_error err;
  const int64_t file_bytes = (int64_t)size;
  const int64_t head_bytes = file_bytes < NPY_MAX_HEADER ? file_bytes : NPY_MAX_HEADER;
  const tsr_status status = npy_parse(data, head_bytes, file_bytes, &entry, &err);
  if (status != TSR_OK) {
    REQUIRE(status == TSR_INVALID && err.status == status && err.text[0] != '\0');
    return 0;
  }
  int64_t count = 1;
  REQUIRE(entry.rank >= 0 && entry.rank <= TENSOR_MAX_RANK && entry.dtype != TSR_DTYPE_NONE);
  for (int32_t i = 0; i < entry.rank; i++) {
    REQUIRE(entry.shape[i] >= 0);
    count *= entry.shape[i];
  }
  REQUIRE(entry.offset >= 10 && entry.bytes >= 0 && entry.offset + entry.bytes == file_bytes);
  REQUIRE(entry.bytes == count * (tsr_dtype_bits(entry.dtype) / 8));
  return 0;
}
