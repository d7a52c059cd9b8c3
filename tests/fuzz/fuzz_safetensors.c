/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as a .safetensors file. The tensors of what is accepted must cover its data, each byte
 * once; what the header says must survive a look at every name, type and string of its metadata. */
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

static void check_entries(const safetensors *st, int64_t data_bytes) {
  int64_t covered = 0;
  for (int64_t i = 0; i < st->count; i++) {
    const tensor_entry *e = &st->entries[i];
    int64_t count = 1;
    REQUIRE(e->rank >= 0 && e->rank <= TENSOR_MAX_RANK);
    REQUIRE(e->offset >= 0 && e->bytes >= 0 && e->offset <= data_bytes - e->bytes);
    for (int32_t axis = 0; axis < e->rank; axis++) {
      REQUIRE(e->shape[axis] >= 0);
      count *= e->shape[axis];
    }
    if (e->dtype != TSR_DTYPE_NONE)
      REQUIRE(e->bytes == count * (tsr_dtype_bits(e->dtype) / 8));
    REQUIRE(strlen(e->type) < sizeof(e->type));
    REQUIRE(safetensors_find(st, e->name) == e);
    covered += e->bytes;
  }
  REQUIRE(covered == data_bytes);
  for (const json_value *v = st->metadata ? st->metadata->first : NULL; v; v = v->next)
    REQUIRE(v->kind == JSON_STRING && strlen(v->key) + strlen(v->text) < SAFETENSORS_MAX_HEADER);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  safetensors st;
  tsr_error err;
  int64_t header_bytes;
  const int64_t file_bytes = (int64_t)size;
  tsr_status status = safetensors_header_bytes(data, file_bytes < 8 ? file_bytes : 8, file_bytes, &header_bytes, &err);
  if (status != TSR_OK) {
    REQUIRE(status == TSR_INVALID && err.text[0] != '\0');
    return 0;
  }
  REQUIRE(header_bytes >= 0 && header_bytes <= file_bytes - 8);
  status = safetensors_parse((const char *)data + 8, header_bytes, file_bytes, &st, &err);
  if (status == TSR_OK)
    check_entries(&st, file_bytes - st.data_offset);
  else
    REQUIRE(status == TSR_INVALID && err.text[0] != '\0');
  safetensors_free(&st);
  return 0;
}
