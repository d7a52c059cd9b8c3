/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/cpu/isa.h"

#include <stdio.h>
#include <string.h>

#include "tessera/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>

/* Leaf `leaf`, subleaf 0; all zero beyond the processor's last leaf. */
static void read_cpuid(uint32_t leaf, uint32_t r[4]) {
  memset(r, 0, 4 * sizeof(*r));
  if (leaf <= (uint32_t)__get_cpuid_max(leaf & 0x80000000u, NULL)) {
    __cpuid_count(leaf, 0, r[0], r[1], r[2], r[3]);
  }
}

/* Register states that the operating system saves: bits 1-2 SSE and AVX, 5-7 AVX-512. */
static uint64_t read_xcr0(void) {
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return (uint64_t)hi << 32 | lo;
}

static int has_all(uint32_t reg, uint32_t bits) {
  return (reg & bits) == bits;
}

/* 1, 3 or 4: the highest x86-64 psABI level for which there is a build. */
static int machine_level(void) {
  uint32_t one[4], seven[4], ext[4];
  uint64_t state;
  read_cpuid(1, one);
  read_cpuid(7, seven);
  read_cpuid(0x80000001u, ext);
  /* level 2: SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF. Level 3 in ecx: FMA, MOVBE, OSXSAVE, AVX, F16C */
  if (!has_all(one[2], 1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23) || !has_all(ext[2], 1u << 0) ||
      !has_all(one[2], 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29)) {
    return 1;
  }
  state = read_xcr0();
  /* BMI1, AVX2, BMI2; LZCNT */
  if ((state & 0x6) != 0x6 || !has_all(seven[1], 1u << 3 | 1u << 5 | 1u << 8) || !has_all(ext[2], 1u << 5)) {
    return 1;
  }
  /* AVX512F, DQ, CD, BW, VL */
  if ((state & 0xe6) != 0xe6 || !has_all(seven[1], 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31)) {
    return 3;
  }
  return 4;
}

static const struct {
  int level;
  const tsr_cpu_family *family;
} families[] = {{1, &tsr__cpu_generic_base}, {3, &tsr__cpu_generic_v3}, {4, &tsr__cpu_generic_v4}};

const char *tsr_cpu_levels(void) {
  const int level = machine_level();
  return level == 4 ? "x86-64 v3 v4" : level == 3 ? "x86-64 v3" : "x86-64";
}

void tsr__cpu_brand(char *out, size_t bytes) {
  uint32_t r[12];
  char text[49];
  const char *p = text;
  size_t n;
  for (uint32_t i = 0; i < 3; i++) {
    read_cpuid(0x80000002u + i, r + 4 * (size_t)i);
  }
  memcpy(text, r, 48);
  text[48] = '\0';
  p += strspn(p, " ");
  n = strlen(p);
  while (n > 0 && p[n - 1] == ' ') {
    n--;
  }
  snprintf(out, bytes, "%.*s", n > 0 ? (int)n : 3, n > 0 ? p : "CPU");
}
#else

static int machine_level(void) {
  return 1;
}

static const struct {
  int level;
  const tsr_cpu_family *family;
} families[] = {{1, &tsr__cpu_generic_base}};

const char *tsr_cpu_levels(void) {
  return "base";
}

void tsr__cpu_brand(char *out, size_t bytes) {
  snprintf(out, bytes, "CPU");
}
#endif

enum { NUM_FAMILIES = sizeof(families) / sizeof(families[0]) };

tsr_status tsr__cpu_family(const char *name, const tsr_cpu_family **family, tsr_error *err) {
  const int machine = machine_level();
  *family = NULL;
  for (int i = 0; i < NUM_FAMILIES; i++) {
    const tsr_cpu_family *f = families[i].family;
    if (name == NULL || *name == '\0') {
      *family = families[i].level <= machine ? f : *family;
    } else if (strcmp(name, f->level) == 0) {
      if (families[i].level > machine) {
        return tsr__fail(err, TSR_UNSUPPORTED, "cpu_isa", "cpu_isa is %s, this machine offers only: %s", name,
                         tsr_cpu_levels());
      }
      *family = f;
    }
  }
  if (*family == NULL) {
    return tsr__fail(err, TSR_UNSUPPORTED, "cpu_isa", "cpu_isa \"%.16s\" is unknown, this machine offers: %s", name,
                     tsr_cpu_levels());
  }
  return TSR_OK;
}
