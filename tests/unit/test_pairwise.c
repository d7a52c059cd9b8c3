/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle against an independent NumPy script: every feature alone and every pair of features, forward and backward.
 * Usage: test_pairwise [pairwise.bin]; else $TSR_TEST_DATA/pairwise.bin, else the source tree's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/pairwise.h"

#ifndef TSR_TEST_DATA
#define TSR_TEST_DATA "tests/data"
#endif

static char path[4096];
static tsr_test_pairwise *file;
static double worst; /* error over the allowed one, of all comparisons */

static uint64_t bits_of(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static double *poisoned(const tsr_layout *layout) {
  const int64_t count = tsr_test_layout_count(layout);
  double *values = malloc((size_t)count * sizeof(double) + 1);
  const uint64_t poison = TSR_TEST_UNTOUCHED_BITS;
  assert_non_null(values);
  for (int64_t i = 0; i < count; i++) {
    memcpy(&values[i], &poison, sizeof(poison));
  }
  return values;
}

/* Frees got. All elements are checked; the first few bad ones are printed. */
static int compare(const tsr_test_case *c, const char *what, const tsr_layout *layout, double *got,
                   const double *want) {
  const int64_t count = tsr_test_layout_count(layout), *n = layout->shape;
  double largest = 0;
  int bad = 0;
  if (!want) {
    free(got);
    return 0;
  }
  for (int64_t i = 0; i < count; i++) {
    if (isfinite(want[i])) {
      largest = fmax(largest, fabs(want[i]));
    }
  }
  for (int64_t i = 0; i < count; i++) {
    const double limit = c->tolerance * fmax(largest, 0.1);
    int good;
    if (bits_of(want[i]) == TSR_TEST_UNTOUCHED_BITS) {
      good = bits_of(got[i]) == TSR_TEST_UNTOUCHED_BITS;
    } else if (isinf(want[i]) || (want[i] == 0 && signbit(want[i]))) {
      good = got[i] == want[i];
    } else {
      const double error = fabs(got[i] - want[i]);
      good = error <= limit;
      worst = good ? fmax(worst, error / limit) : worst;
    }
    if (!good && bad++ < 4) {
      print_error("%s: %s[%d,%d,%d,%d] is %.17g, expected %.17g\n", c->name, what, (int)(i / (n[1] * n[2] * n[3])),
                  (int)(i / (n[2] * n[3]) % n[1]), (int)(i / n[3] % n[2]), (int)(i % n[3]), got[i], want[i]);
    }
  }
  if (bad) {
    print_error("%s: %s: %d of %d elements are wrong; features: %s\n", c->name, what, bad, (int)count, c->features);
  }
  free(got);
  return bad;
}

static int compare_mask(const tsr_test_case *c, uint8_t *got) {
  const int64_t count = tsr_test_layout_count(&c->forward.dropout_mask);
  int bad = 0;
  for (int64_t i = 0; i < count; i++) {
    bad += got[i] != c->expected.dropout_mask[i];
  }
  if (bad) {
    print_error("%s: dropout_mask: %d of %d elements are wrong\n", c->name, bad, (int)count);
  }
  free(got);
  return bad;
}

static void run(const tsr_test_case *c, const tsr_attention_desc *desc, const tsr_run_args *args,
                const tsr_reference_out *out) {
  tsr_error err;
  const tsr_status status = tsr_reference_attention(NULL, desc, args, out, &err);
  if (status != TSR_OK) {
    print_error("%s: %s: %s: %s\nfeatures: %s\n", c->name, tsr_status_name(status), err.field, err.text, c->features);
  }
  assert_int_equal(status, TSR_OK);
}

static int check_forward(const tsr_test_case *c) {
  tsr_reference_out out = tsr_reference_out_init();
  const tsr_attention_desc *d = &c->forward;
  out.o = poisoned(&d->o);
  out.lse = poisoned(&d->lse);
  out.max_s = poisoned(&d->max_s);
  if (c->expected.dropout_mask) {
    const size_t count = (size_t)tsr_test_layout_count(&d->dropout_mask);
    out.dropout_mask = malloc(count);
    assert_non_null(out.dropout_mask);
    memset(out.dropout_mask, TSR_TEST_UNTOUCHED_BYTE, count);
  }
  run(c, d, &c->forward_args, &out);
  int bad = compare(c, "o", &d->o, out.o, c->expected.o);
  bad += compare(c, "lse", &d->lse, out.lse, c->expected.lse);
  bad += compare(c, "max_s", &d->max_s, out.max_s, c->expected.max_s);
  return out.dropout_mask ? bad + compare_mask(c, out.dropout_mask) : bad;
}

static int check_backward(const tsr_test_case *c) {
  tsr_reference_out out = tsr_reference_out_init();
  const tsr_attention_desc *d = &c->backward;
  const struct {
    const char *name;
    const tsr_layout *layout;
    double **got;
    const double *want;
  } results[] = {
      {"dq", &d->dq, &out.dq, c->expected.dq},
      {"dk", &d->dk, &out.dk, c->expected.dk},
      {"dv", &d->dv, &out.dv, c->expected.dv},
      {"dbias", &d->dbias, &out.dbias, c->expected.dbias},
      {"dsink", &d->dsink, &out.dsink, c->expected.dsink},
  };
  enum { RESULTS = sizeof(results) / sizeof(results[0]) };
  int bad = 0;
  for (int i = 0; i < RESULTS; i++) {
    *results[i].got = results[i].want ? poisoned(results[i].layout) : NULL;
  }
  run(c, d, &c->backward_args, &out);
  for (int i = 0; i < RESULTS; i++) {
    bad += compare(c, results[i].name, results[i].layout, *results[i].got, results[i].want);
  }
  return bad;
}

static void check_case(void **state) {
  const tsr_test_case *c = *state;
  int bad = check_forward(c);
  if (c->has_backward) {
    bad += check_backward(c);
  }
  assert_int_equal(bad, 0);
}

/* Cut anywhere, the file is refused; with a byte changed it may be read or not, but nothing goes wrong. */
static void damaged_files_are_refused(void **state) {
  (void)state;
  FILE *f = fopen(path, "rb");
  assert_non_null(f);
  assert_int_equal(fseek(f, 0, SEEK_END), 0);
  const long size = ftell(f);
  uint8_t *bytes = malloc((size_t)size);
  assert_non_null(bytes);
  rewind(f);
  assert_int_equal(fread(bytes, 1, (size_t)size, f), size);
  fclose(f);
  for (long cut = 0; cut < size; cut += cut < 20000 ? 101 : 9973) {
    tsr_test_pairwise *broken;
    char why[200] = "";
    uint8_t *part = malloc((size_t)cut + 1);
    assert_non_null(part);
    memcpy(part, bytes, (size_t)cut);
    assert_int_equal(tsr_test_pairwise_parse(part, (size_t)cut, &broken, why, sizeof(why)), -1);
    assert_null(broken);
    assert_int_not_equal(why[0], '\0');
    bytes[cut] ^= 0xff;
    if (tsr_test_pairwise_parse(bytes, (size_t)size, &broken, why, sizeof(why)) == 0) {
      tsr_test_pairwise_close(broken);
    }
    bytes[cut] ^= 0xff;
    free(part);
  }
  free(bytes);
}

int main(int argc, char **argv) {
  const char *folder = getenv("TSR_TEST_DATA");
  char why[200];
  if (argc > 1) {
    snprintf(path, sizeof(path), "%s", argv[1]);
  } else {
    snprintf(path, sizeof(path), "%s/pairwise.bin", folder ? folder : TSR_TEST_DATA);
  }
  if (tsr_test_pairwise_open(path, &file, why, sizeof(why)) != 0) {
    fprintf(stderr, "%s: %s\n", path, why);
    return 1;
  }
  const int32_t count = tsr_test_pairwise_count(file);
  struct CMUnitTest *tests = calloc((size_t)count + 1, sizeof(*tests));
  if (!tests) {
    return 1;
  }
  for (int32_t i = 0; i < count; i++) {
    union {
      const tsr_test_case *in;
      void *state;
    } u = {tsr_test_pairwise_case(file, i)};
    tests[i].name = u.in->name;
    tests[i].test_func = check_case;
    tests[i].initial_state = u.state;
  }
  tests[count].name = "damaged_files_are_refused";
  tests[count].test_func = damaged_files_are_refused;
  const int failed = _cmocka_run_group_tests("pairwise", tests, (size_t)count + 1, NULL, NULL);
  print_message("largest error: %.3g of what is allowed\n", worst);
  free(tests);
  tsr_test_pairwise_close(file);
  return failed;
}
