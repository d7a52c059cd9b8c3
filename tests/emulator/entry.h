/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a kernel's text where it becomes a library that the emulator loads: what gpu.h declares, and one entry
 * that unpacks the parameters. TSR_EMU_KERNEL is the kernel, TSR_EMU_LIST(X) its pointers, TSR_EMU_VALUES(V) the types
 * of what follows by value. */
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>

static const tsr_emu_ops *tsr_emu;

void tsr_emu_barrier(int line) {
  tsr_emu->barrier(line);
}
int tsr_emu_thread(void) {
  return tsr_emu->thread();
}
long long tsr_emu_group(void) {
  return tsr_emu->group();
}
long long tsr_emu_groups(void) {
  return tsr_emu->groups();
}
void tsr_emu_arena(unsigned char *arena, int bytes) {
  tsr_emu->arena(arena, bytes);
}

__attribute__((visibility("default"))) void tsr_emu_bind(const tsr_emu_ops *ops);
void tsr_emu_bind(const tsr_emu_ops *ops) {
  tsr_emu = ops;
}

/* Parameter n; bytes 0: a pointer. */
static const void *tsr_emu_parameter(const tsr_emu_call *call, int n, int bytes) {
  if (n >= call->count || call->params[n].bytes != bytes) {
    fprintf(stderr, "emulator: parameter %d of %d has %d bytes, the kernel takes %d\n", n, call->count,
            n < call->count ? call->params[n].bytes : -1, bytes);
    abort();
  }
  return call->params[n].data;
}

#define TSR_EMU_LOCAL(type, name) type *name = (type *)tsr_emu_parameter(call, n++, 0);
#define TSR_EMU_PASS(type, name) name,
#define TSR_EMU_LOCAL_VALUE(type, name) const type *name = (const type *)tsr_emu_parameter(call, n++, sizeof(type));

__attribute__((visibility("default"))) void tsr_emu_entry(const void *arg);
void tsr_emu_entry(const void *arg) {
  const tsr_emu_call *call = (const tsr_emu_call *)arg;
  int n = 0;
  TSR_EMU_LIST(TSR_EMU_LOCAL)
  TSR_EMU_VALUES(TSR_EMU_LOCAL_VALUE)
  if (n != call->count) {
    fprintf(stderr, "emulator: %d parameters, the kernel takes %d\n", call->count, n);
    abort();
  }
  TSR_EMU_KERNEL(TSR_EMU_LIST(TSR_EMU_PASS) TSR_EMU_ARGUMENTS);
}
