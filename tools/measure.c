/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "measure.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "term.h"

enum { MAX_REPEATS = 200 };

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

tsr_status measure_repeat(tsr_status (*work)(void *arg, tsr_error *err), void *arg, int32_t repeats, double min_seconds,
                          measure_time *time, tsr_error *err) {
  double seconds[MAX_REPEATS], total = 0;
  int32_t count = 0;
  tsr_status status = work(arg, err);
  repeats = repeats > MAX_REPEATS ? MAX_REPEATS : repeats;
  while (status == TSR_OK && count < MAX_REPEATS && (count < repeats || total < min_seconds)) {
    if (term_interrupted()) {
      tool_error(err, TSR_CANCELLED, "", "interrupted");
      return err->status;
    }
    const double start = term_seconds();
    status = work(arg, err);
    seconds[count] = term_seconds() - start;
    total += seconds[count++];
  }
  if (status != TSR_OK)
    return status;
  qsort(seconds, (size_t)count, sizeof(seconds[0]), compare);
  time->repeats = count;
  time->least = seconds[0];
  time->most = seconds[count - 1];
  time->median = count % 2 ? seconds[count / 2] : (seconds[count / 2 - 1] + seconds[count / 2]) / 2;
  return TSR_OK;
}

/* A "name: N kB" line of /proc/self/status in bytes; -1 if there is none. */
static int64_t status_bytes(const char *name) {
  char line[256];
  int64_t bytes = -1;
  FILE *file = fopen("/proc/self/status", "re");
  while (file && bytes < 0 && fgets(line, sizeof(line), file)) {
    if (strncmp(line, name, strlen(name)) == 0)
      bytes = strtoll(line + strlen(name), NULL, 10) * 1024;
  }
  if (file)
    fclose(file);
  return bytes;
}

void measure_memory_begin(measure_memory *memory) {
  /* writing 5 sets the peak back to what is resident now (proc(5)) */
  const int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  const int reset = fd >= 0 && write(fd, "5", 1) == 1;
  if (fd >= 0)
    close(fd);
  memory->start_bytes = reset ? status_bytes("VmRSS:") : -1;
}

int64_t measure_memory_end(const measure_memory *memory) {
  const int64_t peak = memory->start_bytes < 0 ? -1 : status_bytes("VmHWM:");
  if (peak < 0)
    return -1;
  return peak > memory->start_bytes ? peak - memory->start_bytes : 0;
}
