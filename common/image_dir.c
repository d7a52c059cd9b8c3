/* SPDX-License-Identifier: Apache-2.0 */
/* A cache directory. Code that was loaded from it runs with the user's rights, so nothing is taken from a place where
 * others may write; files are found through the directory's descriptor, which was checked, and never by path. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/image_parts.h"

enum { PATH_ROOM = 4096 };

static const char *const unsafe_dir = "the directory is not the user's own, or others may write to it";
static const char *const unsafe_file = "not a regular file of the user's own, or others may write to it";

static int is_private(const struct stat *s) {
  return s->st_uid == geteuid() && (s->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* Descriptor of a directory that is safe to use, or -1: *why and errno. */
static int open_dir(const char *path, const char **why) {
  struct stat s;
  const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) {
    *why = "the directory cannot be opened";
    return -1;
  }
  if (fstat(dir, &s) != 0 || !is_private(&s)) {
    close(dir);
    errno = 0;
    *why = unsafe_dir;
    return -1;
  }
  return dir;
}

/* Reads exactly `bytes`; 1 if they were there. */
static int read_all(int file, unsigned char *to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = read(file, to, bytes);
    if (n <= 0) {
      if (n < 0 && errno == EINTR) {
        continue;
      }
      return 0;
    }
    to += n;
    bytes -= (size_t)n;
  }
  return 1;
}

static int write_all(int file, const unsigned char *from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(file, from, bytes);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      return 0;
    }
    from += n;
    bytes -= (size_t)n;
  }
  return 1;
}

static unsigned char *read_entry(const tsr__alloc *alloc, int file, size_t *bytes, const char **why) {
  struct stat s;
  unsigned char *entry;
  if (fstat(file, &s) != 0 || !S_ISREG(s.st_mode) || !is_private(&s)) {
    *why = unsafe_file;
    return NULL;
  }
  if (s.st_size < 0 || (uint64_t)s.st_size > TSR__ENTRY_MAX_BYTES) {
    *why = "too large";
    return NULL;
  }
  entry = tsr__alloc_zero(alloc, (size_t)s.st_size + 1);
  if (entry == NULL) {
    *why = "no memory to read it";
    return NULL;
  }
  if (!read_all(file, entry, (size_t)s.st_size)) {
    tsr__alloc_free(alloc, entry);
    *why = "cannot be read";
    return NULL;
  }
  *bytes = (size_t)s.st_size;
  return entry;
}

unsigned char *tsr__cache_dir_read(const tsr__alloc *alloc, const char *path, const char *name, size_t *bytes,
                                   const char **why) {
  unsigned char *entry = NULL;
  const int dir = open_dir(path, why);
  int file;
  if (dir < 0) {
    if (errno == ENOENT) { /* the first write makes it */
      *why = NULL;
    }
    return NULL;
  }
  *why = NULL;
  file = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); /* NONBLOCK: it may be a FIFO */
  if (file >= 0) {
    entry = read_entry(alloc, file, bytes, why);
    close(file);
  } else if (errno != ENOENT) {
    *why = errno == ELOOP ? unsafe_file : "cannot be opened";
  }
  close(dir);
  return entry;
}

/* Makes the directory and what is missing above it; 0 if it is not there afterwards. */
static int make_dirs(const char *path) {
  char part[PATH_ROOM];
  const size_t n = strlen(path);
  if (n == 0 || n >= sizeof(part)) {
    errno = ENAMETOOLONG;
    return 0;
  }
  memcpy(part, path, n + 1);
  for (size_t i = 1; i <= n; i++) {
    if (path[i] == '/' || path[i] == '\0') {
      part[i] = '\0';
      if (mkdir(part, 0700) != 0 && errno != EEXIST && path[i] == '\0') {
        return 0;
      }
      part[i] = path[i];
    }
  }
  return 1;
}

/* A file that no other thread or process writes to: where the stack is tells threads apart. */
static int open_temporary(int dir, char *name, size_t name_bytes) {
  struct timespec now = {0, 0};
  for (int attempt = 0; attempt < 8; attempt++) {
    int file;
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(name, name_bytes, "new-%ld-%" PRIxPTR "-%lx", (long)getpid(), (uintptr_t)&now, (unsigned long)now.tv_nsec);
    file = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file >= 0 || errno != EEXIST) {
      return file;
    }
  }
  return -1;
}

static const char *write_entry(int dir, const char *name, const unsigned char *entry, size_t bytes) {
  char temporary[80];
  const int file = open_temporary(dir, temporary, sizeof(temporary));
  int written, saved;
  if (file < 0) {
    return "no file can be made in it";
  }
  written = write_all(file, entry, bytes);
  saved = errno;
  if (close(file) != 0 && written) {
    written = 0;
    saved = errno;
  }
  if (written && renameat(dir, temporary, dir, name) == 0) {
    return NULL;
  }
  saved = written ? errno : saved;
  unlinkat(dir, temporary, 0);
  errno = saved;
  return written ? "a file in it cannot be renamed" : "a file in it cannot be written";
}

const char *tsr__cache_dir_write(const char *path, const char *name, const unsigned char *entry, size_t bytes) {
  const char *why = NULL;
  int dir, saved;
  if (!make_dirs(path)) {
    return "it cannot be made";
  }
  dir = open_dir(path, &why);
  if (dir < 0) {
    return why;
  }
  why = write_entry(dir, name, entry, bytes);
  saved = errno;
  close(dir);
  errno = saved;
  return why;
}
