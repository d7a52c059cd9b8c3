/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* AddressSanitizer knows ucontext. */
#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__)
#define EMU_UCONTEXT 1
#endif
#if defined(EMU_UCONTEXT)
#include <ucontext.h>
#endif

enum { STACK_BYTES = 256 << 10, GUARD_BYTES = 4 << 10 };

/* What a thread waits for. */
enum { RUNS, AT_BARRIER, AT_SHUFFLE, AT_MATRIX, RETURNED };

typedef struct fiber {
#if defined(EMU_UCONTEXT)
  ucontext_t context;
#else
  void *sp;
#endif
  char *stack;
  int state, line;
  /* Operands of a wave operation. */
  uint32_t value;
  int source, kind;
  const void *a, *b;
  const float *c;
  float *d;
} fiber;

static struct emu {
  fiber fibers[TSR_EMU_MAX_THREADS];
  int with_stack; /* fibers that have one, kept from run to run */
  int threads, wave, current;
  int64_t group, groups, poisoned; /* poisoned: the group whose arena is */
  tsr_emu_kernel *kernel;
  const void *arg;
#if defined(EMU_UCONTEXT)
  ucontext_t scheduler;
#else
  void *scheduler;
#endif
} emu;

/* ---- Fibers ---------------------------------------------------------------------------------- */

static void fiber_main(void);

#if defined(EMU_UCONTEXT)

static void to_fiber(fiber *f) {
  swapcontext(&emu.scheduler, &f->context);
}

static void to_scheduler(fiber *f) {
  swapcontext(&f->context, &emu.scheduler);
}

static void fiber_start(fiber *f) {
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = f->stack + GUARD_BYTES;
  f->context.uc_stack.ss_size = STACK_BYTES - GUARD_BYTES;
  f->context.uc_link = NULL;
  makecontext(&f->context, fiber_main, 0);
}

#else

/* Saves what a call must keep on the stack, leaves the stack pointer in *save and goes on from `load`. */
void tsr_emu_switch(void **save, void *load);
__asm__(".text\n"
        ".p2align 4\n"
        ".globl tsr_emu_switch\n"
        ".hidden tsr_emu_switch\n"
        ".type tsr_emu_switch, @function\n"
        "tsr_emu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size tsr_emu_switch, .-tsr_emu_switch\n");

static void to_fiber(fiber *f) {
  tsr_emu_switch(&emu.scheduler, f->sp);
}

static void to_scheduler(fiber *f) {
  tsr_emu_switch(&f->sp, emu.scheduler);
}

/* The stack as if fiber_main had just been called from nowhere. */
static void fiber_start(fiber *f) {
  void **top = (void **)(void *)(f->stack + STACK_BYTES);
  memset(top - 8, 0, 8 * sizeof(void *));
  memcpy(top - 2, &(void (*)(void)){fiber_main}, sizeof(void *));
  f->sp = top - 8;
}

#endif

static void fiber_main(void) {
  fiber *f = &emu.fibers[emu.current];
  emu.kernel(emu.arg);
  f->state = RETURNED;
  to_scheduler(f);
  abort(); /* not resumed */
}

static void make_stacks(int threads) {
  for (; emu.with_stack < threads; emu.with_stack++) {
    char *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, GUARD_BYTES, PROT_NONE) != 0) {
      perror("emulator: stack of a fiber");
      abort();
    }
    emu.fibers[emu.with_stack].stack = stack;
  }
}

/* ---- A work group ---------------------------------------------------------------------------- */

static void wait_at(int state, int line) {
  fiber *f = &emu.fibers[emu.current];
  f->state = state;
  f->line = line;
  to_scheduler(f);
}

static const char *state_text(const fiber *f, char *text, size_t bytes) {
  static const char *const what[] = {"runs", "waits at the barrier of line", "waits in the shuffle of line",
                                     "waits in the matrix product of line", "has returned"};
  if (f->state == RETURNED) {
    return what[RETURNED];
  }
  snprintf(text, bytes, "%s %d", what[f->state], f->line);
  return text;
}

/* Two threads that show why nobody can go on. */
static void report(const char *what, int x, int y) {
  char a[64], b[64];
  fprintf(stderr, "emulator: %s in group %lld: thread %d %s, thread %d %s\n", what, (long long)emu.group, x,
          state_text(&emu.fibers[x], a, sizeof(a)), y, state_text(&emu.fibers[y], b, sizeof(b)));
  abort();
}

static int is_coprime(int a, int b) {
  while (b != 0) {
    const int rest = a % b;
    a = b;
    b = rest;
  }
  return a == 1;
}

/* Lets every thread that can run go on until it waits, in an order of the round's own. */
static void run_round(uint64_t round) {
  const uint64_t mixed = (round + 1) * UINT64_C(0x9e3779b97f4a7c15);
  const int first = (int)((mixed >> 40) % (uint64_t)emu.threads);
  int step = (int)((mixed >> 20) % (uint64_t)emu.threads) | 1;
  while (!is_coprime(step, emu.threads)) {
    step++;
  }
  for (int n = 0; n < emu.threads; n++) {
    emu.current = (int)((first + (int64_t)n * step) % emu.threads);
    if (emu.fibers[emu.current].state == RUNS) {
      to_fiber(&emu.fibers[emu.current]);
    }
  }
}

/* All threads at one barrier: they go on. Returns whether they did. */
static int release_barrier(void) {
  for (int t = 0; t < emu.threads; t++) {
    if (emu.fibers[t].state != AT_BARRIER) {
      return 0;
    }
    if (emu.fibers[t].line != emu.fibers[0].line) {
      report("divergence", 0, t);
    }
  }
  for (int t = 0; t < emu.threads; t++) {
    emu.fibers[t].state = RUNS;
  }
  return 1;
}

static void do_wave(fiber *f, int lanes) {
  if (f->state == AT_SHUFFLE) {
    uint32_t value[TSR_EMU_MAX_THREADS];
    for (int l = 0; l < lanes; l++) {
      value[l] = f[l].source >= 0 && f[l].source < lanes ? f[f[l].source].value : (uint32_t)TSR_EMU_POISON;
    }
    for (int l = 0; l < lanes; l++) {
      f[l].value = value[l];
    }
  } else {
    const void *a[64], *b[64];
    const float *c[64];
    float *d[64];
    for (int l = 0; l < lanes; l++) {
      a[l] = f[l].a;
      b[l] = f[l].b;
      c[l] = f[l].c;
      d[l] = f[l].d;
    }
    tsr_emu_multiply(f->kind, a, b, c, d);
  }
}

/* Waves that have come together in one operation. Returns how many. */
static int release_waves(void) {
  int released = 0;
  for (int w = 0; w < emu.threads; w += emu.wave) {
    fiber *f = &emu.fibers[w];
    int same = f->state == AT_SHUFFLE || f->state == AT_MATRIX;
    for (int l = 1; l < emu.wave && same; l++) {
      same = f[l].state == f->state;
      if (same && f[l].line != f->line) {
        report("divergence", w, w + l);
      }
    }
    if (!same) {
      continue;
    }
    do_wave(f, emu.wave);
    for (int l = 0; l < emu.wave; l++) {
      f[l].state = RUNS;
    }
    released++;
  }
  return released;
}

/* Nobody can go on: all have returned, or it is an error. */
static void finish_group(void) {
  for (int t = 1; t < emu.threads; t++) {
    const fiber *f = &emu.fibers[t];
    if (f->state != emu.fibers[0].state || f->line != emu.fibers[0].line) {
      report("deadlock", 0, t);
    }
  }
}

static void run_group(void) {
  static uint64_t round; /* goes on from group to group: their orders differ */
  for (int t = 0; t < emu.threads; t++) {
    emu.fibers[t].state = RUNS;
    emu.fibers[t].line = 0;
    fiber_start(&emu.fibers[t]);
  }
  for (;;) {
    int returned = 0;
    run_round(round++);
    for (int t = 0; t < emu.threads; t++) {
      returned += emu.fibers[t].state == RETURNED;
      emu.fibers[t].line = emu.fibers[t].state == RETURNED ? 0 : emu.fibers[t].line;
    }
    if (returned == emu.threads) {
      return;
    }
    if (!release_barrier() && release_waves() == 0) {
      finish_group();
      report("deadlock", 0, emu.threads - 1);
    }
  }
}

void tsr_emu_run(tsr_emu_kernel *kernel, const void *arg, int64_t groups, int threads, int wave) {
  if (threads < 1 || threads > TSR_EMU_MAX_THREADS || wave < 1 || wave > 64) {
    fprintf(stderr, "emulator: %d threads in waves of %d\n", threads, wave);
    abort();
  }
  make_stacks(threads);
  emu.threads = threads;
  emu.wave = threads % wave == 0 ? wave : threads;
  emu.groups = groups;
  emu.kernel = kernel;
  emu.arg = arg;
  for (emu.group = 0; emu.group < groups; emu.group++) {
    emu.poisoned = -1;
    run_group();
  }
}

/* ---- What kernels call ------------------------------------------------------------------------ */

void tsr_emu_barrier(int line) {
  wait_at(AT_BARRIER, line);
}

int tsr_emu_thread(void) {
  return emu.current;
}

long long tsr_emu_group(void) {
  return emu.group;
}

long long tsr_emu_groups(void) {
  return emu.groups;
}

void tsr_emu_arena(unsigned char *arena, int bytes) {
  const uint32_t poison = TSR_EMU_POISON;
  if (emu.poisoned == emu.group) {
    return;
  }
  emu.poisoned = emu.group;
  for (int n = 0; n + 4 <= bytes; n += 4) {
    memcpy(arena + n, &poison, 4);
  }
}

uint32_t tsr_emu_shuffle(uint32_t value, int source, int line) {
  fiber *f = &emu.fibers[emu.current];
  f->value = value;
  f->source = source;
  wait_at(AT_SHUFFLE, line);
  return f->value;
}

void tsr_emu_matrix(int kind, const void *a, const void *b, const float *c, float *d, int line) {
  fiber *f = &emu.fibers[emu.current];
  if (tsr_emu_matrix_shape(kind).wave != emu.wave) {
    fprintf(stderr, "emulator: matrix product of line %d wants waves of %d lanes\n", line,
            tsr_emu_matrix_shape(kind).wave);
    abort();
  }
  f->kind = kind;
  f->a = a;
  f->b = b;
  f->c = c;
  f->d = d;
  wait_at(AT_MATRIX, line);
}

const tsr_emu_ops tsr_emu_table = {tsr_emu_barrier, tsr_emu_thread, tsr_emu_group, tsr_emu_groups, tsr_emu_arena};
