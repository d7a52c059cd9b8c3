/* SPDX-License-Identifier: Apache-2.0 */
/* Embedded images: found by their sources, for the devices they fit; the best one of several. This program brings a
 * table of its own instead of the library's. */
#include "tests/unit/image_fixture.h"

static char source[TSR__IMAGE_NAME_BYTES], other[TSR__IMAGE_NAME_BYTES];

const tsr__embedded_image tsr__embedded_images[] = {
    {other, "xx_90", "other kernel", 12},
    {source, "xx_75+", "ptx 75", 6},
    {source, "xx_80+", "ptx 80", 6},
    {source, "xx_90", "code 90", 7},
    {source, "xx_86", "code 86", 7},
    {source, "yy942", "code 942", 8},
    {NULL, NULL, NULL, 0},
};

static void make(fake *f, const char *arch) {
  fake_make(f, NULL);
  strcpy(f->gpu.arch, arch);
  f->host.compile = TSR_COMPILE_NEVER;
}

/* The image for an arch; NULL: none. */
static void expect_embedded(fake *f, const char *want) {
  tsr__image image;
  tsr_error err;
  const tsr_status st = tsr__image_get(&f->dev, &f->source, 0, &image, &err);
  if (want == NULL) {
    assert_int_equal(st, TSR_UNSUPPORTED);
    return;
  }
  if (st != TSR_OK) {
    fail_msg("%s: %s", f->gpu.arch, err.text);
  }
  assert_int_equal(image.tier, TSR__IMAGE_EMBEDDED);
  assert_int_equal(image.bytes, strlen(want));
  assert_string_equal(image.data, want);
  assert_null(image.owned);
  tsr__image_free(&f->host, &image);
}

static void test_best(void **state) {
  static const struct {
    const char *arch, *want;
  } rows[] = {{"xx_90", "code 90"},     {"xx_89", "ptx 80"},  {"xx_75", "ptx 75"},
              {"xx_74", NULL},          {"xx_120", "ptx 80"}, {"xx_86", "code 86"},
              {"yy942:a+", "code 942"}, {"yy941", NULL},      {"", NULL}};
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    fake f;
    make(&f, rows[i].arch);
    expect_embedded(&f, rows[i].want);
  }
}

/* Whatever the image does not come from, it is not used for. */
static void test_sources(void **state) {
  fake f;
  (void)state;
  make(&f, "xx_90");
  f.source.defines = "#define TSR_K_DIM 63\n";
  expect_embedded(&f, NULL);
  make(&f, "xx_90");
  f.pieces[1] = "int sekond;\n";
  expect_embedded(&f, NULL);
  make(&f, "xx_90");
  f.source.emitted = "float f;\n";
  expect_embedded(&f, NULL);
  make(&f, "xx_90");
  f.driver.language = "fage";
  expect_embedded(&f, NULL);
  make(&f, "xx_90");
  f.source.name = "tsr_backward";
  expect_embedded(&f, "other kernel");
}

static void test_passed_by(void **state) {
  fake f;
  (void)state;
  make(&f, "xx_90");
  f.host.compile = TSR_COMPILE_AUTO;
  expect_embedded(&f, "code 90");
  assert_int_equal(f.compiles, 0);
  expect_image(&f, TSR__IMAGE_EMBEDDED, TSR__IMAGE_COMPILED); /* it did not load */
  f.host.compile = TSR_COMPILE_ALWAYS;
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(f.compiles, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_best),
      cmocka_unit_test(test_sources),
      cmocka_unit_test(test_passed_by),
  };
  fake f;
  fake_make(&f, NULL);
  tsr__image_source_name(f.driver.language, &f.source, source);
  f.source.name = "tsr_backward";
  tsr__image_source_name(f.driver.language, &f.source, other);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
