/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

tsr_status file_open(tool_file *file, const char *path, tsr_error *err) {
  struct stat st;
  file->path = path;
  file->size = 0;
  file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (file->fd < 0) {
    tool_error(err, TSR_INVALID, "", "%s: %s", path, strerror(errno));
    return err->status;
  }
  if (fstat(file->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    tool_error(err, TSR_INVALID, "", "%s: not a regular file", path);
    file_close(file);
    return err->status;
  }
  file->size = st.st_size;
  return TSR_OK;
}

tsr_status file_read(const tool_file *file, int64_t offset, void *bytes, int64_t count, tsr_error *err) {
  if (offset < 0 || count < 0 || offset > file->size || count > file->size - offset) {
    tool_error(err, TSR_INVALID, "", "%s: truncated: bytes %lld to %lld are needed, it has %lld", file->path,
               (long long)offset, (long long)offset + count, (long long)file->size);
    return err->status;
  }
  char *to = bytes;
  while (count > 0) {
    const ssize_t got = pread(file->fd, to, count > (1 << 30) ? 1 << 30 : (size_t)count, offset);
    if (got < 0 && errno == EINTR)
      continue;
    if (got <= 0) {
      tool_error(err, TSR_INVALID, "", "%s: %s at byte %lld", file->path,
                 got < 0 ? strerror(errno) : "became shorter while it was read", (long long)offset);
      return err->status;
    }
    to += got;
    offset += got;
    count -= got;
  }
  return TSR_OK;
}

void file_close(tool_file *file) {
  if (file->fd >= 0)
    close(file->fd);
  file->fd = -1;
}

tsr_status file_read_text(const char *path, int64_t limit, char **bytes, int64_t *count, tsr_error *err) {
  tool_file file;
  *bytes = NULL;
  tsr_status status = file_open(&file, path, err);
  if (status != TSR_OK)
    return status;
  if (file.size > limit) {
    tool_error(err, TSR_INVALID, "", "%s: %lld bytes, at most %lld are read", path, (long long)file.size,
               (long long)limit);
    file_close(&file);
    return err->status;
  }
  char *data = malloc((size_t)file.size + 1);
  if (!data)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "%s: no memory for its contents", path);
  else
    status = file_read(&file, 0, data, file.size, err);
  if (status == TSR_OK) {
    data[file.size] = '\0';
    *bytes = data;
    *count = file.size;
  } else {
    free(data);
  }
  file_close(&file);
  return status;
}

/* ---- Output ---------------------------------------------------------------------------------- */

tsr_status output_open(tool_output *output, const char *path, int32_t *index, tsr_error *err) {
  if (output->count == OUTPUT_MAX_FILES) {
    tool_error(err, TSR_INVALID, "", "%s: more than %d output files", path, OUTPUT_MAX_FILES);
    return err->status;
  }
  struct stat st;
  char *target = NULL, *temporary = NULL;
  if (stat(path, &st) == 0) {
    if (!S_ISREG(st.st_mode)) {
      tool_error(err, TSR_INVALID, "", "%s: exists and is not a regular file", path);
      return err->status;
    }
    target = realpath(path, NULL); /* a link stays a link to the new contents */
  } else {
    target = strdup(path);
  }
  const size_t length = target ? strlen(target) + sizeof(".XXXXXX") : 0;
  if (target)
    temporary = malloc(length);
  if (!temporary) {
    free(target);
    tool_error(err, TSR_OUT_OF_MEMORY, "", "%s: no memory", path);
    return err->status;
  }
  snprintf(temporary, length, "%s.XXXXXX", target);
  const int fd = mkostemp(temporary, O_CLOEXEC);
  if (fd < 0) {
    tool_error(err, TSR_IO, "", "%s: cannot be written: %s", path, strerror(errno));
    free(target);
    free(temporary);
    return err->status;
  }
  const mode_t mask = umask(0);
  umask(mask);
  (void)fchmod(fd, 0666 & ~mask); /* mkostemp made it private */
  *index = output->count++;
  output->files[*index].path = target;
  output->files[*index].temporary = temporary;
  output->files[*index].fd = fd;
  return TSR_OK;
}

tsr_status output_write(tool_output *output, int32_t index, const void *bytes, int64_t count, tsr_error *err) {
  const char *from = bytes;
  while (count > 0) {
    const ssize_t put = write(output->files[index].fd, from, count > (1 << 30) ? 1 << 30 : (size_t)count);
    if (put < 0 && errno == EINTR)
      continue;
    if (put <= 0) {
      tool_error(err, TSR_IO, "", "%s: cannot be written: %s", output->files[index].path, strerror(errno));
      return err->status;
    }
    from += put;
    count -= put;
  }
  return TSR_OK;
}

static void output_release(tool_output *output) {
  for (int32_t i = 0; i < output->count; i++) {
    if (output->files[i].fd >= 0)
      close(output->files[i].fd);
    free(output->files[i].path);
    free(output->files[i].temporary);
  }
  output->count = 0;
}

tsr_status output_commit(tool_output *output, tsr_error *err) {
  for (int32_t i = 0; i < output->count; i++) {
    const int closed = close(output->files[i].fd);
    output->files[i].fd = -1;
    if (closed != 0) {
      tool_error(err, TSR_IO, "", "%s: cannot be written: %s", output->files[i].path, strerror(errno));
      output_abort(output);
      return err->status;
    }
  }
  for (int32_t i = 0; i < output->count; i++) {
    if (rename(output->files[i].temporary, output->files[i].path) != 0) {
      tool_error(err, TSR_IO, "", "%s: cannot be written: %s", output->files[i].path, strerror(errno));
      output_abort(output);
      return err->status;
    }
  }
  output_release(output);
  return TSR_OK;
}

void output_abort(tool_output *output) {
  for (int32_t i = 0; i < output->count; i++)
    unlink(output->files[i].temporary);
  output_release(output);
}

tsr_status output_save(const char *path, const void *bytes, int64_t count, tsr_error *err) {
  tool_output output = {0};
  int32_t index = 0;
  tsr_status status = output_open(&output, path, &index, err);
  if (status == TSR_OK)
    status = output_write(&output, index, bytes, count, err);
  if (status == TSR_OK)
    return output_commit(&output, err);
  output_abort(&output);
  return status;
}
