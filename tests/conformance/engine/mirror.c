/* SPDX-License-Identifier: Apache-2.0 */
#include "mirror.h"

#include "case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096, PIECE_BYTES = 1 << 22 };

static tsr_status fail(tsr_error *err, tsr_status status, const char *text, long long number) {
  memset(err, 0, sizeof(*err));
  err->status = status;
  snprintf(err->text, sizeof(err->text), text, number);
  return status;
}

void conf_mirror_open(conf_mirror *m, tsr_device *device) {
  memset(m, 0, sizeof(*m));
  m->device = device;
}

void conf_mirror_close(conf_mirror *m) {
  for (int64_t n = 0; n < m->num_blocks; n++) {
    tsr_memory_free(m->device, m->block[n].memory);
  }
  free(m->block);
  memset(m, 0, sizeof(*m));
}

tsr_status conf_mirror_add(conf_mirror *m, const void *host, int64_t bytes, int kind, tsr_error *err) {
  conf_mirror_block b = {(unsigned char *)tsr_buffer_in(host).ptr, bytes, NULL, kind};
  tsr_status st;
  if (m->num_blocks == m->room) {
    const int64_t room = 2 * m->room + 64;
    conf_mirror_block *more = realloc(m->block, (size_t)room * sizeof(*more));
    if (more == NULL) {
      return fail(err, TSR_OUT_OF_MEMORY, "no memory for a list of %lld blocks", (long long)room);
    }
    m->block = more;
    m->room = room;
  }
  st = tsr_memory_alloc(m->device, bytes, &b.memory, err);
  if (st == TSR_OK) {
    m->block[m->num_blocks++] = b;
  }
  return st;
}

tsr_status conf_mirror_write(const conf_mirror *m, tsr_error *err) {
  tsr_status st = TSR_OK;
  for (int64_t n = 0; n < m->num_blocks && st == TSR_OK; n++) {
    const tsr_buffer to = tsr_buffer_out(m->block[n].memory);
    st = tsr_memory_write(m->device, &to, m->block[n].host, m->block[n].bytes, err);
  }
  return st;
}

/* A piece that was read, into its place: only pages that differ, since host memory may be sparse, or read-only. */
static tsr_status put_piece(const conf_mirror_block *b, int64_t at, const unsigned char *piece, int64_t bytes,
                            tsr_error *err) {
  for (int64_t n = 0; n < bytes; n += PAGE_BYTES) {
    const size_t size = (size_t)(bytes - n < PAGE_BYTES ? bytes - n : PAGE_BYTES);
    if (memcmp(b->host + at + n, piece + n, size) != 0) {
      if (b->kind == CONF_MIRROR_INPUT) {
        while (b->host[at + n] == piece[n]) {
          n++;
        }
        return fail(err, TSR_DEVICE_ERROR, "memory that is only read was written: byte %lld of its block",
                    (long long)(at + n));
      }
      memcpy(b->host + at + n, piece + n, size);
    }
  }
  return TSR_OK;
}

tsr_status conf_mirror_read(const conf_mirror *m, tsr_error *err) {
  unsigned char *piece = malloc(PIECE_BYTES);
  tsr_status st = piece != NULL ? TSR_OK : fail(err, TSR_OUT_OF_MEMORY, "no memory for %lld bytes", PIECE_BYTES);
  for (int64_t n = 0; n < m->num_blocks && st == TSR_OK; n++) {
    const conf_mirror_block *b = &m->block[n];
    for (int64_t at = 0; b->kind != CONF_MIRROR_LEFT && at < b->bytes && st == TSR_OK; at += PIECE_BYTES) {
      const int64_t bytes = b->bytes - at < PIECE_BYTES ? b->bytes - at : PIECE_BYTES;
      const tsr_buffer from = {b->memory, at};
      st = tsr_memory_read(m->device, piece, &from, bytes, err);
      st = st == TSR_OK ? put_piece(b, at, piece, bytes, err) : st;
    }
  }
  free(piece);
  return st;
}

/* The block of a buffer's first element. A tensor without elements may point behind the last byte of one. */
static const conf_mirror_block *block_of(const conf_mirror *m, const tsr_buffer *buffer) {
  const unsigned char *at = (const unsigned char *)buffer->ptr + buffer->offset_bytes;
  const conf_mirror_block *ends = NULL;
  for (int64_t n = 0; n < m->num_blocks; n++) {
    const conf_mirror_block *b = &m->block[n];
    if (at >= b->host && at < b->host + b->bytes) {
      return b;
    }
    ends = at == b->host + b->bytes ? b : ends;
  }
  return ends;
}

static tsr_status add_tensor(conf_mirror *m, const tsr_layout *layout, const tsr_buffer *b, int kind, tsr_error *err) {
  if (layout->dtype == TSR_DTYPE_NONE || b->ptr == NULL || block_of(m, b) != NULL) {
    return TSR_OK;
  }
  return conf_mirror_add(m, (const unsigned char *)b->ptr + b->offset_bytes, conf_span_bytes(layout), kind, err);
}

/* Which tensors a run writes. */
static int is_output(const tsr_attention_desc *desc, int id) {
  switch (id) {
  case CONF_T_o:
  case CONF_T_lse: return desc->op == TSR_FORWARD;
  case CONF_T_max_s:
  case CONF_T_dropout_mask:
  case CONF_T_dq:
  case CONF_T_dk:
  case CONF_T_dv:
  case CONF_T_dbias:
  case CONF_T_dsink: return 1;
  default: return 0;
  }
}

tsr_status conf_mirror_add_tensors(conf_mirror *m, const tsr_attention_desc *desc, const tsr_run_args *args, int inputs,
                                   tsr_error *err) {
  tsr_run_args copy = *args;
  tsr_status st = TSR_OK;
  for (int id = 0; id < CONF_T_aux0 && st == TSR_OK; id++) {
    if (id != CONF_T_v || (desc->flags & TSR_V_IN_K) == 0) {
      st = add_tensor(m, conf_field_layout(desc, id), conf_field_buffer(&copy, id),
                      is_output(desc, id) ? CONF_MIRROR_OUTPUT : inputs, err);
    }
  }
  for (int n = 0; n < desc->num_aux && st == TSR_OK; n++) {
    st = add_tensor(m, &desc->aux[n], &args->aux[n], inputs, err);
  }
  return st;
}

void conf_mirror_map(const conf_mirror *m, tsr_buffer *buffers, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    const conf_mirror_block *b = buffers[i].ptr != NULL ? block_of(m, &buffers[i]) : NULL;
    if (b != NULL) {
      buffers[i].offset_bytes += (unsigned char *)buffers[i].ptr - b->host;
      buffers[i].ptr = b->memory;
    }
  }
}

/* The buffers of an argument struct stand one after another, the workspace last. */
#define MAP(m, args, first) \
  conf_mirror_map((m), &(args)->first, (tsr_buffer *)&(args)->workspace - (tsr_buffer *)&(args)->first + 1)

void conf_mirror_map_run(const conf_mirror *m, tsr_run_args *args) {
  MAP(m, args, q);
}

void conf_mirror_map_append(const conf_mirror *m, tsr_append_args *args) {
  MAP(m, args, k_new);
}

void conf_mirror_map_merge(const conf_mirror *m, tsr_merge_args *args) {
  MAP(m, args, o);
}
