/* SPDX-License-Identifier: Apache-2.0 */
/* Instruction set levels: what the machine offers, what a context asks for, and that each level computes. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_case.h"
#include "tessera/cpu.h"

#if defined(__x86_64__)
static const char *const known[] = {"x86-64", "v3", "v4"};
#else
static const char *const known[] = {"base"};
#endif
enum { KNOWN = sizeof(known) / sizeof(known[0]) };

/* Is `word` one of the words of `text`? */
static int has_word(const char *text, const char *word) {
  const size_t n = strlen(word);
  for (const char *p = strstr(text, word); p != NULL; p = strstr(p + 1, word)) {
    if ((p == text || p[-1] == ' ' || p[-1] == '\t') && (p[n] == ' ' || p[n] == '\0' || p[n] == '\n')) {
      return 1;
    }
  }
  return 0;
}

/* The levels by what the system says of the processor, not by CPUID. */
static void levels_are_the_systems(void **state) {
  static const char *const v3[] = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"};
  static const char *const v4[] = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"};
  static char flags[1 << 16];
  FILE *f = fopen("/proc/cpuinfo", "r");
  int is_v3 = 1, is_v4 = 1;
  (void)state;
  while (f != NULL && fgets(flags, sizeof(flags), f) != NULL && strncmp(flags, "flags", 5) != 0) {
    flags[0] = '\0';
  }
  if (f != NULL) {
    fclose(f);
  }
  if (KNOWN == 1 || f == NULL || strncmp(flags, "flags", 5) != 0) {
    skip();
  }
  for (size_t i = 0; i < sizeof(v3) / sizeof(v3[0]); i++) {
    is_v3 &= has_word(flags, v3[i]);
  }
  for (size_t i = 0; i < sizeof(v4) / sizeof(v4[0]); i++) {
    is_v4 &= has_word(flags, v4[i]);
  }
  assert_true(has_word(tsr_cpu_levels(), "x86-64"));
  assert_int_equal(has_word(tsr_cpu_levels(), "v3"), is_v3);
  assert_int_equal(has_word(tsr_cpu_levels(), "v4"), is_v3 && is_v4);
}

static void expect_isa(const char *asked, const char *expected) {
  tsr_context_params p = tsr_context_params_init();
  tsr_device_info info = {.size = sizeof(info)};
  tsr_context *c = NULL;
  tsr_device *d = NULL;
  p.flags = TSR_CONTEXT_IGNORE_ENV;
  p.cpu_isa = asked;
  assert_int_equal(tsr_context_create(&p, &c, NULL), TSR_OK);
  assert_int_equal(tsr_device_open(c, "cpu", &d, NULL), TSR_OK);
  assert_int_equal(tsr_device_get(d, &info, NULL), TSR_OK);
  assert_string_equal(info.isa, expected);
  assert_non_null(strstr(info.description, expected));
  tsr_device_close(d);
  tsr_context_destroy(c);
}

static void highest_by_default(void **state) {
  const char *last = strrchr(tsr_cpu_levels(), ' ');
  (void)state;
  expect_isa(NULL, last != NULL ? last + 1 : tsr_cpu_levels());
}

/* Forced levels run what was forced, and agree; those that the machine lacks are refused, never run. */
static void every_level(void **state) {
  tsr_context_params p = tsr_context_params_init();
  cpu_case c;
  float *first = NULL;
  const size_t bytes = 37 * 4 * 40 * sizeof(float);
  (void)state;
  cpu_case_init(&c, 4, 2, 37, 150, 40);
  c.desc.flags = TSR_CAUSAL;
  for (int i = 0; i < KNOWN; i++) {
    tsr_error err;
    p.cpu_isa = known[i];
    if (!has_word(tsr_cpu_levels(), known[i])) {
      assert_int_equal(cpu_case_run(&c, &p, &err), TSR_UNSUPPORTED);
      assert_string_equal(err.field, "cpu_isa");
      assert_non_null(strstr(err.text, known[i]));
      continue;
    }
    expect_isa(known[i], known[i]);
    cpu_case_run_ok(&c, &p);
    if (first == NULL) {
      first = malloc(bytes);
      memcpy(first, c.o, bytes);
    }
    for (size_t n = 0; n < bytes / sizeof(float); n++) {
      assert_true(c.o[n] - first[n] < 1e-5f && first[n] - c.o[n] < 1e-5f);
    }
  }
  free(first);
  cpu_case_free(&c);
}

static void unknown_level(void **state) {
  static const char *const names[] = {"v2", "avx512", "V4", "v4 ", "x86"};
  (void)state;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    tsr_context_params p = tsr_context_params_init();
    cpu_case c;
    tsr_error err;
    p.cpu_isa = names[i];
    cpu_case_init(&c, 1, 1, 1, 1, 8);
    assert_int_equal(cpu_case_run(&c, &p, &err), TSR_UNSUPPORTED);
    assert_string_equal(err.field, "cpu_isa");
    assert_non_null(strstr(err.text, "unknown"));
    cpu_case_free(&c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(levels_are_the_systems), cmocka_unit_test(highest_by_default),
                                     cmocka_unit_test(every_level), cmocka_unit_test(unknown_level)};
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
