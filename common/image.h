/* SPDX-License-Identifier: Apache-2.0 */
/* Images of kernels: where a kernel's machine code or PTX comes from. Loaded kernels are kept by common/gpu.c; below
 * that there are three tiers, asked in this order: images embedded in the library, the embedder's cache (callbacks or a
 * directory), and compilation, which fills the cache. tsr_context_params.compile bends the order.
 *
 * An image is found by its key: a text of everything that it depends on. Embedded images name the sources they were
 * made of, so that none is used with a library whose kernels differ. */
#ifndef TSR_COMMON_IMAGE_H
#define TSR_COMMON_IMAGE_H

#include "common/gpu.h"

/* Tiers, and bits of `skip`. */
enum { TSR__IMAGE_EMBEDDED = 1, TSR__IMAGE_CACHED = 2, TSR__IMAGE_COMPILED = 4 };

typedef struct tsr__image {
  const void *data; /* a zero byte stands after the last one; aligned to 64 bytes unless embedded */
  size_t bytes;
  int32_t tier; /* TSR__IMAGE_*: where it came from */
  void *owned;  /* what tsr__image_free gives back; NULL: static storage */
} tsr__image;

/* The image of `source` for a device of tsr__gpu_device_open. If the driver then answers TSR_INVALID to it (a file that
 * no longer fits), the caller frees it and asks again with its tier added to `skip`; a cached image is replaced by the
 * compiled one. Takes seconds when it compiles; at most one caller a device at a time. Errors: TSR_UNSUPPORTED (image
 * absent and compile = never, or no compiler; the text has the key's name), TSR_OUT_OF_MEMORY, those of
 * tsr__gpu_driver.compile. A cache that cannot be read or written is never an error: the log has a warning. *image is
 * all zero after an error. */
tsr_status tsr__image_get(const tsr__device *dev, const tsr__gpu_source *source, int32_t skip, tsr__image *image,
                          tsr_error *err);
/* An image of zeros is accepted. */
void tsr__image_free(const tsr__host *host, tsr__image *image);

/* ---- Embedded images, made by tools/embed.c ----------------------------------------------------- */

typedef struct tsr__embedded_image {
  const char *source; /* name of the sources' key: 32 hexadecimal digits */
  /* Devices that it fits: an arch as tsr__gpu_device.arch has it up to a ':', or with a '+' after a number, which means
   * that and greater numbers: "sm_90", "sm_75+", "gfx942". */
  const char *target;
  const void *data; /* a zero byte stands after the last one */
  size_t bytes;
} tsr__embedded_image;

/* Ended by a row whose source is NULL. */
extern const tsr__embedded_image tsr__embedded_images[];

/* How well a target fits an arch: 0 not at all; "sm_75+" less than "sm_80+", and that less than the arch itself. */
int32_t tsr__image_fit(const char *target, const char *arch);

#endif
