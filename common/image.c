/* SPDX-License-Identifier: Apache-2.0 */
/* The tiers in their order. */
#include "common/image.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "common/image_parts.h"
#include "common/log.h"
#include "common/status.h"

/* ---- Embedded images ------------------------------------------------------------------------------ */

/* Digits at text as a number below a million; *end is behind them. */
static int32_t read_number(const char *text, const char **end) {
  int32_t value = 0;
  while (*text >= '0' && *text <= '9' && value < 100000) {
    value = value * 10 + (*text++ - '0');
  }
  *end = text;
  return value;
}

int32_t tsr__image_fit(const char *target, const char *arch) {
  const size_t n = strcspn(arch, ":"), target_bytes = strlen(target);
  size_t word = target_bytes;
  const char *target_end, *arch_end;
  int32_t least, have;
  if (target_bytes == n && memcmp(target, arch, n) == 0) {
    return INT32_MAX;
  }
  if (target_bytes == 0 || target[target_bytes - 1] != '+') {
    return 0;
  }
  word--;
  while (word > 0 && target[word - 1] >= '0' && target[word - 1] <= '9') {
    word--;
  }
  if (word == target_bytes - 1 || word >= n || memcmp(target, arch, word) != 0) {
    return 0;
  }
  least = read_number(target + word, &target_end);
  have = read_number(arch + word, &arch_end);
  return *target_end == '+' && arch_end == arch + n && have >= least ? 1 + least : 0;
}

static int get_embedded(const tsr__gpu_device *gpu, const tsr__gpu_source *source, tsr__image *image) {
  char name[TSR__IMAGE_NAME_BYTES];
  int32_t best = 0;
  if (tsr__embedded_images[0].source == NULL || source->emitted[0] != '\0') {
    return 0;
  }
  tsr__image_source_name(gpu->driver->language, source, name);
  for (const tsr__embedded_image *e = tsr__embedded_images; e->source != NULL; e++) {
    const int32_t fit = strcmp(e->source, name) == 0 ? tsr__image_fit(e->target, gpu->arch) : 0;
    if (fit > best) {
      best = fit;
      image->data = e->data;
      image->bytes = e->bytes;
      image->tier = TSR__IMAGE_EMBEDDED;
    }
  }
  return best > 0;
}

/* ---- The embedder's cache ------------------------------------------------------------------------- */

static int has_dir(const tsr__host *host) {
  return host->cache_dir != NULL && host->cache_dir[0] != '\0';
}

static unsigned char *ask_callback(const tsr__host *host, const char *name, size_t *bytes, const char **why) {
  const int64_t size = host->cache_get(host->user, name, NULL, 0);
  unsigned char *entry;
  *why = NULL;
  if (size <= 0) {
    return NULL;
  }
  entry = (uint64_t)size > TSR__ENTRY_MAX_BYTES ? NULL : tsr__alloc_zero(&host->alloc, (size_t)size + 1);
  if (entry == NULL) {
    *why = (uint64_t)size > TSR__ENTRY_MAX_BYTES ? "too large" : "no memory to read it";
    return NULL;
  }
  if (host->cache_get(host->user, name, entry, size) != size) {
    tsr__alloc_free(&host->alloc, entry);
    *why = "cache_get gave two sizes for it";
    return NULL;
  }
  *bytes = (size_t)size;
  return entry;
}

static int get_cached(const tsr__host *host, const tsr__image_key *key, tsr__image *image) {
  const char *why = NULL;
  unsigned char *entry = NULL;
  size_t bytes = 0;
  if (host->cache_get != NULL) {
    entry = ask_callback(host, key->name, &bytes, &why);
  } else if (has_dir(host)) {
    entry = tsr__cache_dir_read(&host->alloc, host->cache_dir, key->name, &bytes, &why);
  }
  if (entry != NULL) {
    why = tsr__entry_check(key, entry, bytes, &image->data, &image->bytes);
  }
  if (entry != NULL && why == NULL) {
    image->tier = TSR__IMAGE_CACHED;
    image->owned = entry;
    return 1;
  }
  tsr__alloc_free(&host->alloc, entry);
  if (why != NULL) {
    tsr__log(host, TSR_LOG_WARNING, "cached image %s is not used: %s", key->name, why);
  }
  return 0;
}

static void put_cached(const tsr__host *host, const tsr__image_key *key, const tsr__image *image) {
  unsigned char *entry;
  size_t bytes;
  if (host->cache_get == NULL && !has_dir(host)) {
    return;
  }
  entry = tsr__entry_pack(&host->alloc, key, image->data, image->bytes, &bytes);
  if (entry == NULL) {
    tsr__log(host, TSR_LOG_WARNING, "image %s is not cached: no memory, or too large", key->name);
    return;
  }
  if (host->cache_get != NULL) {
    host->cache_put(host->user, key->name, entry, (int64_t)bytes);
  } else {
    const char *why;
    errno = 0;
    why = tsr__cache_dir_write(host->cache_dir, key->name, entry, bytes);
    if (why != NULL) {
      tsr__log(host, TSR_LOG_WARNING, "image %s is not cached in %s: %s%s%s", key->name, host->cache_dir, why,
               errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
    }
  }
  tsr__alloc_free(&host->alloc, entry);
}

/* ---- Compilation ---------------------------------------------------------------------------------- */

static int64_t now_ms(void) {
  struct timespec t = {0, 0};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static tsr_status compile(const tsr__device *dev, const tsr__gpu_source *source, const tsr__image_key *key,
                          tsr__image *image, tsr_error *err) {
  const tsr__gpu_device *gpu = tsr__gpu_of(dev);
  const int64_t start = now_ms();
  tsr_status st;
  if (dev->host->compile == TSR_COMPILE_NEVER || gpu->driver->compile == NULL) {
    return tsr__fail(err, TSR_UNSUPPORTED, "", "image absent, key %s (%s for %s): neither embedded nor cached, and %s",
                     key->name, source->name, gpu->arch,
                     gpu->driver->compile == NULL ? "there is no compiler" : "compile is TSR_COMPILE_NEVER");
  }
  st = gpu->driver->compile(dev, source, &image->owned, &image->bytes, err);
  if (st != TSR_OK) {
    memset(image, 0, sizeof(*image));
    return st;
  }
  image->data = image->owned;
  image->tier = TSR__IMAGE_COMPILED;
  tsr__log(dev->host, TSR_LOG_INFO, "%s: image %s of %s: %zu bytes, compiled in %lld ms", dev->name, key->name,
           source->name, image->bytes, (long long)(now_ms() - start));
  put_cached(dev->host, key, image);
  return TSR_OK;
}

tsr_status tsr__image_get(const tsr__device *dev, const tsr__gpu_source *source, int32_t skip, tsr__image *image,
                          tsr_error *err) {
  const tsr__gpu_device *gpu = tsr__gpu_of(dev);
  tsr__image_key key;
  tsr_status st;
  memset(image, 0, sizeof(*image));
  if (dev->host->compile == TSR_COMPILE_ALWAYS) {
    skip |= TSR__IMAGE_EMBEDDED | TSR__IMAGE_CACHED;
  }
  if (!(skip & TSR__IMAGE_EMBEDDED) && get_embedded(gpu, source, image)) {
    tsr__log(dev->host, TSR_LOG_DEBUG, "%s: image of %s: embedded", dev->name, source->name);
    return TSR_OK;
  }
  st = tsr__image_key_make(dev, source, &key, err);
  if (st != TSR_OK) {
    return st;
  }
  if (!(skip & TSR__IMAGE_CACHED) && get_cached(dev->host, &key, image)) {
    tsr__log(dev->host, TSR_LOG_DEBUG, "%s: image %s of %s: cached", dev->name, key.name, source->name);
  } else {
    st = compile(dev, source, &key, image, err);
  }
  tsr__alloc_free(&dev->host->alloc, key.text);
  return st;
}

void tsr__image_free(const tsr__host *host, tsr__image *image) {
  tsr__alloc_free(&host->alloc, image->owned);
  memset(image, 0, sizeof(*image));
}
