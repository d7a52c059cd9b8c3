/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory and its copy on a device. Blocks of host memory are written to the device whole, guard bands included;
 * buffers that point into them are turned into the device's; after the run the blocks are read back, so that everything
 * can be checked where it is easy to look at. For devices whose memory is not the host's; works on the CPU, too. */
#ifndef TSR_TESTS_CONFORMANCE_MIRROR_H
#define TSR_TESTS_CONFORMANCE_MIRROR_H

#include "tessera/tessera.h"

/* What becomes of a block after the run. */
enum {
  CONF_MIRROR_INPUT = 0,  /* it must have come to no harm */
  CONF_MIRROR_OUTPUT = 1, /* it is read back */
  CONF_MIRROR_LEFT = 2    /* an input that nobody looks at again */
};

typedef struct conf_mirror_block {
  unsigned char *host;
  int64_t bytes;
  void *memory; /* on the device */
  int kind;     /* CONF_MIRROR_* */
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
tsr_status conf_mirror_add(conf_mirror *m, const void *host, int64_t bytes, int kind, tsr_error *err);
/* The tensors of a description that no block has yet, one block each; inputs of that kind. */
tsr_status conf_mirror_add_tensors(conf_mirror *m, const tsr_attention_desc *desc, const tsr_run_args *args, int inputs,
                                   tsr_error *err);
/* All blocks to the device. */
tsr_status conf_mirror_write(const conf_mirror *m, tsr_error *err);
/* Blocks back; host pages that are the same already are not written. TSR_DEVICE_ERROR, too, where an input was written.
 */
tsr_status conf_mirror_read(const conf_mirror *m, tsr_error *err);

/* Turns n buffers, those that point into a block, into the device's. */
void conf_mirror_map(const conf_mirror *m, tsr_buffer *buffers, int64_t n);
/* Whole argument structs, workspace included; partials of a merge are the caller's. */
void conf_mirror_map_run(const conf_mirror *m, tsr_run_args *args);
void conf_mirror_map_append(const conf_mirror *m, tsr_append_args *args);
void conf_mirror_map_merge(const conf_mirror *m, tsr_merge_args *args);

#endif
