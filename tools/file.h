/* SPDX-License-Identifier: Apache-2.0 */
/* Files: input read by position and never past its length, output that appears whole or not at all.
 *
 * Errors of reading are TSR_INVALID (the input is at fault), of writing TSR_IO; every text names the file.
 * Thread-safety: one thread per object. */
#ifndef TESSERA_TOOL_FILE_H
#define TESSERA_TOOL_FILE_H

#include "tool.h"

typedef struct tool_file {
  int fd; /* -1: closed */
  int64_t size;
  const char *path; /* the caller's */
} tool_file;

/* Opens a regular file for reading. */
tsr_status file_open(tool_file *file, const char *path, tsr_error *err);
/* Reads exactly count bytes at offset; a range outside the file is an error. */
tsr_status file_read(const tool_file *file, int64_t offset, void *bytes, int64_t count, tsr_error *err);
void file_close(tool_file *file);

/* Reads a whole text file of at most `limit` bytes; *bytes is malloc'ed and NUL-terminated. */
tsr_status file_read_text(const char *path, int64_t limit, char **bytes, int64_t *count, tsr_error *err);

/* A set of output files. Each is written beside its destination under another name; output_commit renames all
 * of them, output_abort removes them. */
enum { OUTPUT_MAX_FILES = 16 };
typedef struct tool_output {
  int32_t count;
  struct {
    char *path, *temporary;
    int fd;
  } files[OUTPUT_MAX_FILES];
} tool_output;

/* Starts a file; *index names it. An existing destination that is not a regular file is refused. */
tsr_status output_open(tool_output *output, const char *path, int32_t *index, tsr_error *err);
tsr_status output_write(tool_output *output, int32_t index, const void *bytes, int64_t count, tsr_error *err);
tsr_status output_commit(tool_output *output, tsr_error *err);
void output_abort(tool_output *output);

/* The simple case: one file, at once. */
tsr_status output_save(const char *path, const void *bytes, int64_t count, tsr_error *err);

#endif
