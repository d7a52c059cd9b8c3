/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory and its copy on a device. Blocks of host memory are written to the device whole, guard bands included;
 * buffers that point into them are turned into the device's; after the run the blocks are read back, so that everything
 * can be checked where it is easy to look at. For devices whose memory is not the host's; works on the CPU, too. */
#ifndef TSR_TESTS_CONFORMANCE_MIRROR_H
#define TSR_TESTS_CONFORMANCE_MIRROR_H

#include "tessera/tessera.h"

typedef struct conf_mirror_block {
  unsigned char *host;
  int64_t bytes;
  void *memory; /* on the device */
  int written;  /* 1: read back as it is; 0: must come back as it was */
} conf_mirror_block;

typedef struct conf_mirror {
  tsr_device *device;
  conf_mirror_block *block;
  int64_t num_blocks, room;
} conf_mirror;

void conf_mirror_open(conf_mirror *m, tsr_device *device);
/* Gives the memory back. NULL blocks are fine. */
void conf_mirror_close(conf_mirror *m);

/* Memory on the device for a block of host memory, which is not copied yet. Blocks do not overlap. */
tsr_status conf_mirror_add(conf_mirror *m, const void *host, int64_t bytes, int written, tsr_error *err);
/* All blocks to the device. */
tsr_status conf_mirror_write(const conf_mirror *m, tsr_error *err);
/* All blocks back; host pages that are the same already are not written. TSR_DEVICE_ERROR, too, where one that is not
 * `written` came back otherwise. */
tsr_status conf_mirror_read(const conf_mirror *m, tsr_error *err);

/* Does an address belong to a block? */
int conf_mirror_has(const conf_mirror *m, const void *at);
/* Turns n buffers, those that point into a block, into the device's. */
void conf_mirror_map(const conf_mirror *m, tsr_buffer *buffers, int64_t n);
/* Whole argument structs, workspace included; partials of a merge are the caller's. */
void conf_mirror_map_run(const conf_mirror *m, tsr_run_args *args);
void conf_mirror_map_append(const conf_mirror *m, tsr_append_args *args);
void conf_mirror_map_merge(const conf_mirror *m, tsr_merge_args *args);

#endif
