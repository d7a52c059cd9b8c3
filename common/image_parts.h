/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by image.c, image_key.c, image_entry.c, image_dir.c and the tool that embeds images. */
#ifndef TSR_COMMON_IMAGE_PARTS_H
#define TSR_COMMON_IMAGE_PARTS_H

#include "common/image.h"

/* ---- Keys ---------------------------------------------------------------------------------------- */

enum { TSR__IMAGE_NAME_BYTES = 33 }; /* 32 hexadecimal digits and a zero */

/* Everything an image depends on, in words, and its name: 128 bits of the text. */
typedef struct tsr__image_key {
  char *text;
  size_t bytes; /* without the zero at its end */
  char name[TSR__IMAGE_NAME_BYTES];
} tsr__image_key;

/* The name of the sources alone, for embedded images: library version, language, kernel, defines, expressions, texts.
 */
void tsr__image_source_name(const char *language, const tsr__gpu_source *source, char name[TSR__IMAGE_NAME_BYTES]);
/* The caller gives back key->text with tsr__alloc_free. Errors: TSR_OUT_OF_MEMORY. */
tsr_status tsr__image_key_make(const tsr__device *dev, const tsr__gpu_source *source, tsr__image_key *key,
                               tsr_error *err);

/* 128 bits of data, as two words. Not against people who look for collisions: the whole key is compared as well. */
void tsr__image_hash(const void *data, size_t bytes, uint64_t hash[2]);

/* ---- Entries: what a cache holds for a key ------------------------------------------------------- */

/* Magic, lengths, checksum, the key's text, the image; numbers are little-endian. The image starts at a multiple of 64
 * bytes. Larger ones are not cached. */
#define TSR__ENTRY_MAX_BYTES ((size_t)1 << 30)

/* A new entry; gives it back with tsr__alloc_free. NULL: no memory, or too large. */
unsigned char *tsr__entry_pack(const tsr__alloc *alloc, const tsr__image_key *key, const void *data, size_t data_bytes,
                               size_t *bytes);
/* Finds the image in an entry. Returns NULL, or what is wrong with it: "truncated", "of another key", ... */
const char *tsr__entry_check(const tsr__image_key *key, const unsigned char *entry, size_t bytes, const void **data,
                             size_t *data_bytes);

/* ---- A directory of entries ---------------------------------------------------------------------- */

/* Reads the entry of a name into new memory, one zero byte after it. Returns NULL and *why what is wrong, or NULL if
 * there is just no such file. Nothing is read that another user could have written. */
unsigned char *tsr__cache_dir_read(const tsr__alloc *alloc, const char *path, const char *name, size_t *bytes,
                                   const char **why);
/* Writes an entry, visible to others whole or not at all. Makes the directory (mode 0700) and those above it. Returns
 * NULL, or what went wrong; the system's own number is in errno where it is not 0. */
const char *tsr__cache_dir_write(const char *path, const char *name, const unsigned char *entry, size_t bytes);

#endif
