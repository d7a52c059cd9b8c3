/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/image_parts.h"
#include "common/status.h"

#define FIRST_BASIS UINT64_C(0xcbf29ce484222325)
#define SECOND_BASIS UINT64_C(0x9ae16a3b2f90404f)

/* Two chains that share nothing but the input: FNV-1a, and a multiply-rotate one. */
static void hash_more(uint64_t hash[2], const void *data, size_t bytes) {
  const unsigned char *p = data;
  uint64_t a = hash[0], b = hash[1];
  for (size_t i = 0; i < bytes; i++) {
    a = (a ^ p[i]) * UINT64_C(0x100000001b3);
    b = (b + p[i] + 1) * UINT64_C(0x9e3779b97f4a7c15);
    b = b << 29 | b >> 35;
  }
  hash[0] = a;
  hash[1] = b;
}

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
  x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
  return x ^ x >> 33;
}

static void hash_start(uint64_t hash[2]) {
  hash[0] = FIRST_BASIS;
  hash[1] = SECOND_BASIS;
}

static void hash_end(uint64_t hash[2]) {
  const uint64_t a = mix(hash[0]), b = mix(hash[1]);
  hash[0] = a + b;
  hash[1] = mix(a ^ (b << 32 | b >> 32));
}

void tsr__image_hash(const void *data, size_t bytes, uint64_t hash[2]) {
  hash_start(hash);
  hash_more(hash, data, bytes);
  hash_end(hash);
}

static void hash_name(const uint64_t hash[2], char name[TSR__IMAGE_NAME_BYTES]) {
  snprintf(name, TSR__IMAGE_NAME_BYTES, "%016" PRIx64 "%016" PRIx64, hash[0], hash[1]);
}

/* Writes to text, or only counts if it is NULL. */
typedef struct writer {
  char *text;
  size_t bytes;
} writer;

/* A line "what value"; a value of several lines keeps them, and its length says where it ends. */
static void put_line(writer *w, const char *what, const char *value) {
  char head[64];
  const size_t n = strlen(value);
  const size_t head_bytes = (size_t)snprintf(head, sizeof(head), "%s %zu ", what, n);
  if (w->text != NULL) {
    memcpy(w->text + w->bytes, head, head_bytes);
    memcpy(w->text + w->bytes + head_bytes, value, n);
    w->text[w->bytes + head_bytes + n] = '\n';
  }
  w->bytes += head_bytes + n + 1;
}

/* The texts as they are read one after another, however they are cut. */
static void hash_texts(const tsr__gpu_source *source, char name[TSR__IMAGE_NAME_BYTES]) {
  uint64_t hash[2];
  hash_start(hash);
  for (const char *const *piece = source->pieces; *piece != NULL; piece++) {
    hash_more(hash, *piece, strlen(*piece));
  }
  hash_end(hash);
  hash_name(hash, name);
}

static void put_source(writer *w, const char *language, const tsr__gpu_source *source, const char *texts) {
  put_line(w, "tessera", tsr_version());
  put_line(w, "language", language);
  put_line(w, "kernel", source->name);
  put_line(w, "defines", source->defines);
  put_line(w, "emitted", source->emitted);
  put_line(w, "texts", texts);
}

void tsr__image_source_name(const char *language, const tsr__gpu_source *source, char name[TSR__IMAGE_NAME_BYTES]) {
  const char *const fields[] = {tsr_version(), language, source->name, source->defines, source->emitted};
  char texts[TSR__IMAGE_NAME_BYTES];
  uint64_t hash[2];
  hash_texts(source, texts);
  hash_start(hash);
  for (size_t f = 0; f < sizeof(fields) / sizeof(fields[0]); f++) {
    hash_more(hash, fields[f], strlen(fields[f]) + 1);
  }
  hash_more(hash, texts, sizeof(texts));
  hash_end(hash);
  hash_name(hash, name);
}

static void put_key(writer *w, const tsr__gpu_device *gpu, const tsr__gpu_source *source, const char *texts) {
  put_source(w, gpu->driver->language, source, texts);
  put_line(w, "arch", gpu->arch);
  put_line(w, "compiler", gpu->compiler);
  put_line(w, "options", gpu->options != NULL ? gpu->options : "");
}

tsr_status tsr__image_key_make(const tsr__device *dev, const tsr__gpu_source *source, tsr__image_key *key,
                               tsr_error *err) {
  const tsr__gpu_device *gpu = tsr__gpu_of(dev);
  char texts[TSR__IMAGE_NAME_BYTES];
  writer w = {NULL, 0};
  uint64_t hash[2];
  hash_texts(source, texts);
  put_key(&w, gpu, source, texts);
  key->bytes = w.bytes;
  key->text = tsr__alloc_zero(&dev->host->alloc, w.bytes + 1);
  if (key->text == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory for an image's key of %zu bytes", w.bytes);
  }
  w.text = key->text;
  w.bytes = 0;
  put_key(&w, gpu, source, texts);
  tsr__image_hash(key->text, key->bytes, hash);
  hash_name(hash, key->name);
  return TSR_OK;
}
