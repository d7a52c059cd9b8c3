/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator itself: what it lets through, what it must catch, and the matrix units' layouts against a plain
 * product. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/kernel.h"
#include "common/device/gpu.h"
#include "emu.h"

enum { THREADS = 96, GROUPS = 5 };

/* ---- What is right --------------------------------------------------------------------------- */

/* Each group reverses its own piece through local memory, twice. */
static void reverse(const void *arg) {
  float *x = *(float *const *)arg;
  TSR_ARENA(arena, THREADS * 4);
  float *local = (float *)(void *)arena;
  const tsr_i32 t = TSR_THREAD();
  float *own = x + TSR_GROUP() * THREADS;
  if (tsr_as_u32(local[t]) != TSR_EMU_POISON) {
    abort();
  }
  TSR_BARRIER();
  local[t] = own[t];
  TSR_BARRIER();
  own[t] = local[THREADS - 1 - t] + (float)TSR_GROUPS();
}

static void test_barriers(void **state) {
  float x[GROUPS * THREADS], *p = x;
  (void)state;
  for (int n = 0; n < GROUPS * THREADS; n++) {
    x[n] = (float)n;
  }
  tsr_emu_run(reverse, &p, GROUPS, THREADS, 32);
  for (int n = 0; n < GROUPS * THREADS; n++) {
    const int g = n / THREADS, t = n % THREADS;
    assert_float_equal(x[n], (float)(g * THREADS + THREADS - 1 - t + GROUPS), 0.0f);
  }
}

/* Sum over a wave by exchanges; a group's waves end in different places. */
static void wave_sum(const void *arg) {
  uint32_t *out = *(uint32_t *const *)arg;
  const int t = TSR_THREAD(), lane = t % 32;
  uint32_t sum = (uint32_t)t;
  for (int n = 1; n < (t / 32 == 1 ? 8 : 32); n *= 2) {
    sum += tsr_emu_shuffle(sum, lane ^ n, __LINE__);
  }
  TSR_BARRIER();
  out[t] = sum;
}

static void test_shuffles(void **state) {
  uint32_t out[THREADS], *p = out;
  (void)state;
  tsr_emu_run(wave_sum, &p, 1, THREADS, 32);
  for (int t = 0; t < THREADS; t++) {
    const int count = t / 32 == 1 ? 8 : 32, first = t / count * count;
    assert_int_equal(out[t], (uint32_t)(count * first + count * (count - 1) / 2));
  }
}

/* ---- What must be caught ---------------------------------------------------------------------- */

static void barrier_in_branch(const void *arg) {
  (void)arg;
  if (TSR_THREAD() < 60) {
    TSR_BARRIER();
  }
}

static void two_barriers(const void *arg) {
  (void)arg;
  if (TSR_THREAD() == 17) {
    TSR_BARRIER();
  } else {
    TSR_BARRIER();
  }
}

static void early_return(const void *arg) {
  (void)arg;
  if (TSR_THREAD() == THREADS - 1) {
    return;
  }
  TSR_BARRIER();
}

static void shuffle_in_branch(const void *arg) {
  (void)arg;
  if (TSR_THREAD() % 32 < 31) {
    tsr_emu_shuffle(1, 0, __LINE__);
  }
}

static void two_shuffles(const void *arg) {
  (void)arg;
  if (TSR_THREAD() & 1) {
    tsr_emu_shuffle(1, 0, __LINE__);
  } else {
    tsr_emu_shuffle(1, 0, __LINE__);
  }
}

static void shuffle_against_barrier(const void *arg) {
  (void)arg;
  if (TSR_THREAD() & 1) {
    tsr_emu_shuffle(1, 0, __LINE__);
  } else {
    TSR_BARRIER();
  }
}

static void endless_recursion(const void *arg) {
  volatile char block[4096];
  block[0] = (char)TSR_THREAD();
  if (TSR_GROUPS() > 0) {
    endless_recursion(arg);
  }
  block[1] = block[0];
}

/* A neighbour's word without a barrier: some order reads poison. */
static void missing_barrier(const void *arg) {
  TSR_ARENA(arena, THREADS * 4);
  uint32_t *local = (uint32_t *)(void *)arena;
  const int t = TSR_THREAD();
  (void)arg;
  local[t] = (uint32_t)t;
  if (local[(t + 1) % THREADS] == TSR_EMU_POISON) {
    fprintf(stderr, "read poison\n");
    abort();
  }
}

/* Runs a kernel that must end its process, and finds `text` in what it says. */
static void expect_death(tsr_emu_kernel *kernel, int signal_number, const char *text) {
  char said[512] = "";
  ssize_t n, have = 0;
  int ends[2], status = 0;
  pid_t child;
  assert_int_equal(pipe(ends), 0);
  fflush(NULL);
  child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], 2);
    signal(SIGABRT, SIG_DFL); /* cmocka's handlers go on with the next test */
    signal(SIGSEGV, SIG_DFL);
    tsr_emu_run(kernel, NULL, 4, THREADS, 32);
    _exit(0);
  }
  close(ends[1]);
  while ((n = read(ends[0], said + have, sizeof(said) - 1 - (size_t)have)) > 0) {
    have += n;
  }
  close(ends[0]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), signal_number);
  if (strstr(said, text) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", said, text);
  }
}

static void test_caught(void **state) {
  (void)state;
  expect_death(barrier_in_branch, SIGABRT, "deadlock in group 0");
  expect_death(two_barriers, SIGABRT, "divergence in group 0");
  expect_death(early_return, SIGABRT, "deadlock in group 0");
  expect_death(shuffle_in_branch, SIGABRT, "deadlock in group 0");
  expect_death(two_shuffles, SIGABRT, "divergence in group 0");
  expect_death(shuffle_against_barrier, SIGABRT, "deadlock in group 0");
  expect_death(missing_barrier, SIGABRT, "read poison");
#if !defined(__SANITIZE_ADDRESS__)
  expect_death(endless_recursion, SIGSEGV, "");
#endif
}

/* ---- Matrix units ----------------------------------------------------------------------------- */

static uint32_t random_state = 12345;

static int random_digit(void) {
  random_state = random_state * 1664525u + 1013904223u;
  return (int)(random_state >> 28) - 8;
}

typedef struct product {
  int kind;
  float a[32][32], b[32][32], c[32][32], d[32][32]; /* a by row, b by column */
} product;

static void put(int kind, void *to, int e, float x) {
  switch (kind) {
  case TSR_EMU_MFMA_32X32X2_F32: ((float *)to)[e] = x; break;
  case TSR_EMU_MFMA_32X32X8_F16:
  case TSR_EMU_MFMA_16X16X16_F16:
  case TSR_EMU_WMMA_GFX11_F16:
  case TSR_EMU_WMMA_GFX12_F16: ((uint16_t *)to)[e] = (uint16_t)tsr_f32_to_f16(x); break;
  case TSR_EMU_MFMA_32X32X16_F8:
  case TSR_EMU_MFMA_16X16X32_F8:
  case TSR_EMU_WMMA_GFX12_F8: ((uint8_t *)to)[e] = (uint8_t)tsr_f32_to_f8e4m3(x); break;
  default: ((uint16_t *)to)[e] = (uint16_t)tsr_f32_to_bf16(x);
  }
}

/* One wave multiplies, placing its elements as the instruction's documentation says. */
static void multiply(const void *arg) {
  product *p = (product *)(uintptr_t)arg;
  const int l = TSR_THREAD(), kind = p->kind;
  const int mfma32 = kind == TSR_EMU_MFMA_32X32X8_F16 || kind == TSR_EMU_MFMA_32X32X8_BF16 ||
                     kind == TSR_EMU_MFMA_32X32X4_BF16 || kind == TSR_EMU_MFMA_32X32X2_F32 ||
                     kind == TSR_EMU_MFMA_32X32X16_F8;
  const int gfx11 = kind == TSR_EMU_WMMA_GFX11_F16 || kind == TSR_EMU_WMMA_GFX11_BF16;
  const int gfx12 = kind == TSR_EMU_WMMA_GFX12_F16 || kind == TSR_EMU_WMMA_GFX12_BF16;
  float a[16], b[16], c[16], d[16]; /* room for the widest fragment */
  const tsr_emu_shape s = tsr_emu_matrix_shape(kind);
  for (int e = 0; e < s.ab; e++) {
    const int k = gfx11 ? e : gfx12 ? (e & 3) + (l & 16) / 4 + (e & 4) * 2 : (mfma32 ? l >> 5 : l >> 4) * s.ab + e;
    put(kind, a, e, p->a[mfma32 ? l & 31 : l & 15][k]);
    put(kind, b, e, p->b[mfma32 ? l & 31 : l & 15][k]);
  }
  for (int pass = 0; pass < 2; pass++) {
    for (int r = 0; r < s.cd; r++) {
      const int row = mfma32                     ? (r & 3) + 4 * (l >> 5) + 8 * (r >> 2)
                      : gfx11                    ? 2 * r + (l >> 4)
                      : s.wave == 32 /* gfx12 */ ? r + 8 * (l >> 4)
                                                 : r + 4 * (l >> 4);
      float *at = pass == 0 ? &p->c[row][l % s.n] : &p->d[row][l % s.n];
      if (pass == 0) {
        c[r] = *at;
      } else {
        *at = d[r];
      }
    }
    if (pass == 0) {
      tsr_emu_matrix(kind, a, b, c, d, __LINE__);
    }
  }
}

static void test_products(void **state) {
  (void)state;
  for (int kind = 0; kind < TSR_EMU_MATRIX_KINDS; kind++) {
    const tsr_emu_shape s = tsr_emu_matrix_shape(kind);
    product p;
    p.kind = kind;
    for (int i = 0; i < 32; i++) {
      for (int j = 0; j < 32; j++) {
        p.a[i][j] = (float)random_digit();
        p.b[i][j] = (float)random_digit();
        p.c[i][j] = (float)random_digit();
        p.d[i][j] = -1e30f;
      }
    }
    tsr_emu_run(multiply, &p, 1, s.wave, s.wave);
    for (int i = 0; i < s.m; i++) {
      for (int j = 0; j < s.n; j++) {
        float want = p.c[i][j];
        for (int k = 0; k < s.k; k++) {
          want += p.a[i][k] * p.b[j][k];
        }
        if (want != p.d[i][j]) {
          fail_msg("kind %d: element %d, %d is %g, must be %g", kind, i, j, (double)p.d[i][j], (double)want);
        }
      }
    }
  }
}

/* O^T = V^T P^T with P^T = K Q^T: D of a 32x32x8 (or 16x16x16) product is B of the next as it lies in the registers. */
typedef struct chain {
  float k[32][8], q[32][8], v[32][32], o[32][32]; /* k, q by row; v[key][channel]; o[channel][query] */
} chain;

static void multiply_chain(const void *arg) {
  chain *x = (chain *)(uintptr_t)arg;
  const int l = TSR_THREAD();
  uint16_t a[4], b[4];
  float p[16], o[16] = {0};
  for (int e = 0; e < 4; e++) {
    a[e] = (uint16_t)tsr_f32_to_f16(x->k[l % 32][4 * (l / 32) + e]);
    b[e] = (uint16_t)tsr_f32_to_f16(x->q[l % 32][4 * (l / 32) + e]);
  }
  tsr_emu_matrix(TSR_EMU_MFMA_32X32X8_F16, a, b, o, p, __LINE__);
  for (int block = 0; block < 4; block++) {
    for (int e = 0; e < 4; e++) {
      a[e] = (uint16_t)tsr_f32_to_f16(x->v[8 * block + 4 * (l / 32) + e][l % 32]);
      b[e] = (uint16_t)tsr_f32_to_f16(p[4 * block + e]);
    }
    tsr_emu_matrix(TSR_EMU_MFMA_32X32X8_F16, a, b, o, o, __LINE__);
  }
  for (int r = 0; r < 16; r++) {
    x->o[8 * (r / 4) + 4 * (l / 32) + r % 4][l % 32] = o[r];
  }
}

static void test_chain(void **state) {
  static chain x;
  (void)state;
  for (int i = 0; i < 32; i++) {
    for (int c = 0; c < 8; c++) {
      x.k[i][c] = (float)(random_digit() / 4);
      x.q[i][c] = (float)(random_digit() / 4);
    }
    for (int c = 0; c < 32; c++) {
      x.v[i][c] = (float)random_digit();
    }
  }
  tsr_emu_run(multiply_chain, &x, 1, 64, 64);
  for (int c = 0; c < 32; c++) {
    for (int i = 0; i < 32; i++) {
      float want = 0.0f;
      for (int j = 0; j < 32; j++) {
        float s = 0.0f;
        for (int d = 0; d < 8; d++) {
          s += x.k[j][d] * x.q[i][d];
        }
        want += s * x.v[j][c];
      }
      assert_float_equal(x.o[c][i], want, 0.0f);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_barriers), cmocka_unit_test(test_shuffles), cmocka_unit_test(test_caught),
      cmocka_unit_test(test_products), cmocka_unit_test(test_chain),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
