/* SPDX-License-Identifier: Apache-2.0 */
/* A device with a driver that compiles by copying, for the tests of images. */
#ifndef TSR_TEST_IMAGE_FIXTURE_H
#define TSR_TEST_IMAGE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/image_parts.h"
#include "common/status.h"
#include "tessera/context.h"
#include "tests/unit/random.h"

typedef struct fake {
  tsr__gpu_driver driver;
  tsr__gpu_device gpu;
  tsr__host host;
  tsr__device dev;
  const char *pieces[8];
  tsr__gpu_source source;
  char dir[1024];
  int compiles;
  int warnings;
  char last_warning[600];
  tsr_status refuse; /* what compile answers, if not TSR_OK */
} fake;

/* What the driver makes of a source: its texts, and a tail that is long enough to be written in pieces. */
enum { IMAGE_TAIL = 3000 };

static inline size_t image_of(const tsr__gpu_source *source, unsigned char *to) {
  size_t n = 0;
  const size_t name = strlen(source->name), defines = strlen(source->defines);
  memcpy(to, source->name, name);
  memcpy(to + name, source->defines, defines);
  n = name + defines;
  for (const char *const *p = source->pieces; *p != NULL; p++) {
    memcpy(to + n, *p, strlen(*p));
    n += strlen(*p);
  }
  for (int i = 0; i < IMAGE_TAIL; i++) {
    to[n++] = (unsigned char)(i * 7 + (int)name);
  }
  return n;
}

static inline tsr_status fake_compile(const tsr__device *dev, const tsr__gpu_source *source, void **image,
                                      size_t *bytes, tsr_error *err) {
  fake *f = tsr__gpu_of(dev)->native;
  f->compiles++;
  if (f->refuse != TSR_OK) {
    *image = f; /* garbage: the caller must not use it */
    return tsr__fail(err, f->refuse, "", "the fake compiler refuses");
  }
  *image = tsr__alloc_zero(&dev->host->alloc, 8192);
  if (*image == NULL) {
    return tsr__fail(err, TSR_OUT_OF_MEMORY, "", "no memory");
  }
  *bytes = image_of(source, *image);
  return TSR_OK;
}

static inline void fake_log(void *user, int32_t level, const char *text) {
  fake *f = user;
  if (level == TSR_LOG_WARNING) {
    f->warnings++;
    snprintf(f->last_warning, sizeof(f->last_warning), "%s", text);
  }
}

/* dir NULL: no directory. */
static inline void fake_make(fake *f, const char *dir) {
  memset(f, 0, sizeof(*f));
  f->driver.language = "fake";
  f->driver.compile = fake_compile;
  f->gpu.driver = &f->driver;
  f->gpu.native = f;
  strcpy(f->gpu.arch, "xx_90");
  strcpy(f->gpu.compiler, "fakecc 1.2 -O3");
  f->host.log = fake_log;
  f->host.log_level = TSR_LOG_DEBUG;
  f->host.user = f;
  f->host.compile = TSR_COMPILE_AUTO;
  snprintf(f->dir, sizeof(f->dir), "%s", dir != NULL ? dir : "");
  f->host.cache_dir = f->dir;
  f->dev.host = &f->host;
  f->dev.state = &f->gpu;
  strcpy(f->dev.name, "fake:0");
  f->pieces[0] = "int first;\n";
  f->pieces[1] = "int second;\n";
  f->source.name = "tsr_forward";
  f->source.defines = "#define TSR_K_DIM 64\n";
  f->source.emitted = "";
  f->source.pieces = f->pieces;
}

/* Gets the image, which must come from `tier` and be what the driver makes. */
static inline void expect_image(fake *f, int32_t skip, int32_t tier) {
  unsigned char want[8192];
  const size_t bytes = image_of(&f->source, want);
  tsr__image image;
  tsr_error err;
  memset(&image, 0x5a, sizeof(image));
  if (tsr__image_get(&f->dev, &f->source, skip, &image, &err) != TSR_OK) {
    fail_msg("%s", err.text);
  }
  assert_int_equal(image.tier, tier);
  assert_int_equal(image.bytes, bytes);
  assert_memory_equal(image.data, want, bytes);
  assert_int_equal(((const unsigned char *)image.data)[bytes], 0);
  assert_int_equal((uintptr_t)image.data % 64, 0);
  tsr__image_free(&f->host, &image);
  assert_null(image.data);
}

static inline void key_name(fake *f, char name[TSR__IMAGE_NAME_BYTES]) {
  tsr__image_key key;
  assert_int_equal(tsr__image_key_make(&f->dev, &f->source, &key, NULL), TSR_OK);
  memcpy(name, key.name, sizeof(key.name));
  tsr__alloc_free(NULL, key.text);
}

/* A new directory below TMPDIR. */
static inline void folder_make(char path[512]) {
  const char *base = getenv("TMPDIR");
  snprintf(path, 512, "%s/tessera-image-XXXXXX", base != NULL ? base : "/tmp");
  assert_non_null(mkdtemp(path));
}

/* Files in a directory. */
static inline int folder_count(const char *path) {
  DIR *d = opendir(path);
  int n = 0;
  assert_non_null(d);
  for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    n += e->d_name[0] != '.';
  }
  closedir(d);
  return n;
}

/* Empties and removes a directory that has only files and empty directories in it. */
static inline void folder_remove(const char *path) {
  DIR *d = opendir(path);
  char file[1024];
  if (d == NULL) {
    return;
  }
  for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
    snprintf(file, sizeof(file), "%s/%s", path, e->d_name);
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(file) != 0) {
      rmdir(file);
    }
  }
  closedir(d);
  assert_int_equal(rmdir(path), 0);
}

static inline size_t file_read(const char *path, unsigned char *data, size_t room) {
  FILE *in = fopen(path, "rb");
  size_t n;
  assert_non_null(in);
  n = fread(data, 1, room, in);
  fclose(in);
  return n;
}

static inline void file_write(const char *path, const void *data, size_t bytes) {
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  assert_true(file >= 0);
  assert_int_equal(write(file, data, bytes), (ssize_t)bytes);
  close(file);
}

#endif
