/* SPDX-License-Identifier: Apache-2.0 */
/* Images: keys, tiers, callbacks, memory that runs out. The directory: test_image_dir.c. */
#include "tests/unit/image_fixture.h"

#include "common/env.h"
#include "common/objects.h"

/* ---- Keys ------------------------------------------------------------------------------------------ */

enum { CHANGES = 10 };

/* Change n of what a key depends on. */
static void change(fake *f, int n) {
  static const char *const with_more[] = {"int first;\n", "int second;\n", "int third;\n", NULL};
  switch (n) {
  case 0: f->source.name = "tsr_backward"; break;
  case 1: f->source.defines = "#define TSR_K_DIM 128\n"; break;
  case 2: f->source.defines = "#define TSR_K_DIM 64\n#define X\n"; break;
  case 3: f->source.emitted = "float f;\n"; break;
  case 4: f->source.pieces = with_more; break;
  case 5: f->pieces[1] = "int secomd;\n"; break;
  case 6: f->driver.language = "fage"; break;
  case 7: strcpy(f->gpu.arch, "xx_91"); break;
  case 8: f->gpu.options = "-O2"; break;
  default: strcpy(f->gpu.compiler, "fakecc 1.3 -O3"); break;
  }
}

static void test_keys(void **state) {
  char names[CHANGES + 1][TSR__IMAGE_NAME_BYTES], sources[CHANGES + 1][TSR__IMAGE_NAME_BYTES];
  fake f;
  (void)state;
  for (int n = 0; n <= CHANGES; n++) {
    fake_make(&f, NULL);
    if (n < CHANGES) {
      change(&f, n);
    }
    key_name(&f, names[n]);
    tsr__image_source_name(f.driver.language, &f.source, sources[n]);
    assert_int_equal(strlen(names[n]), 32);
    assert_int_equal(strspn(names[n], "0123456789abcdef"), 32);
    for (int k = 0; k < n; k++) {
      assert_string_not_equal(names[k], names[n]);
      /* Arch and compiler are no part of the sources. */
      assert_int_equal(strcmp(sources[k], sources[n]) == 0, k >= 7 && n >= 7);
    }
  }
  /* How texts are cut does not matter, and the key is the same whenever it is made. */
  fake_make(&f, NULL);
  f.pieces[0] = "int first;\nint sec";
  f.pieces[1] = "ond;";
  f.pieces[2] = "\n";
  key_name(&f, names[0]);
  assert_string_equal(names[0], names[CHANGES]);
}

static void test_hash(void **state) {
  enum { N = 300 };
  unsigned char data[N];
  static uint64_t seen[N * 9 + 1][2];
  int n = 0;
  (void)state;
  for (int i = 0; i < N; i++) {
    data[i] = (unsigned char)random_bits();
  }
  tsr__image_hash(data, N, seen[n++]);
  for (int i = 0; i < N; i++) {
    for (int bit = 0; bit < 8; bit++) {
      data[i] ^= (unsigned char)(1 << bit);
      tsr__image_hash(data, N, seen[n++]);
      data[i] ^= (unsigned char)(1 << bit);
    }
    tsr__image_hash(data, (size_t)i, seen[n++]);
  }
  for (int a = 0; a < n; a++) {
    for (int b = 0; b < a; b++) { /* each word by itself tells them apart */
      assert_true(seen[a][0] != seen[b][0] && seen[a][1] != seen[b][1]);
    }
  }
}

static void test_fit(void **state) {
  static const struct {
    const char *target, *arch;
    int32_t fit;
  } rows[] = {
      {"sm_90", "sm_90", INT32_MAX},
      {"sm_90", "sm_9", 0},
      {"sm_9", "sm_90", 0},
      {"sm_75+", "sm_75", 76},
      {"sm_75+", "sm_120", 76},
      {"sm_75+", "sm_74", 0},
      {"sm_75+", "sm_", 0},
      {"sm_75+", "gfx906", 0},
      {"sm_75+", "sm_90x", 0},
      {"sm_75+", "", 0},
      {"gfx942", "gfx942:sramecc+:xnack-", INT32_MAX},
      {"gfx942", "gfx942", INT32_MAX},
      {"gfx94", "gfx942:xnack-", 0},
      {"gfx90a", "gfx90a:xnack+", INT32_MAX},
      {"+", "sm_90", 0},
      {"sm_+", "sm_90", 0},
      {"", "", INT32_MAX},
      {"", "sm_90", 0},
  };
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const int32_t fit = tsr__image_fit(rows[i].target, rows[i].arch);
    if (fit != rows[i].fit) {
      fail_msg("%s for %s: %d, not %d", rows[i].target, rows[i].arch, fit, rows[i].fit);
    }
  }
  assert_true(tsr__image_fit("sm_80+", "sm_90") > tsr__image_fit("sm_75+", "sm_90"));
}

/* ---- Compilation ----------------------------------------------------------------------------------- */

static void expect_absent(fake *f, tsr_status status, const char *word) {
  char name[TSR__IMAGE_NAME_BYTES];
  tsr__image image;
  tsr_error err;
  memset(&image, 0x5a, sizeof(image));
  assert_int_equal(tsr__image_get(&f->dev, &f->source, 0, &image, &err), status);
  assert_int_equal(err.status, status);
  if (strstr(err.text, word) == NULL) {
    fail_msg("no \"%s\" in \"%s\"", word, err.text);
  }
  if (status == TSR_UNSUPPORTED) {
    key_name(f, name);
    assert_non_null(strstr(err.text, name));
    assert_non_null(strstr(err.text, "image absent, key "));
  }
  assert_null(image.data);
  assert_null(image.owned);
  tsr__image_free(&f->host, &image);
  assert_int_equal(tsr__image_get(&f->dev, &f->source, 0, &image, NULL), status);
}

static void test_compile(void **state) {
  fake f;
  (void)state;
  fake_make(&f, NULL);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  expect_image(&f, TSR__IMAGE_EMBEDDED | TSR__IMAGE_CACHED, TSR__IMAGE_COMPILED);
  assert_int_equal(f.compiles, 2);
  f.host.cache_dir = NULL;
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  f.refuse = TSR_DEVICE_ERROR;
  expect_absent(&f, TSR_DEVICE_ERROR, "the fake compiler refuses");
  f.host.compile = TSR_COMPILE_NEVER;
  f.compiles = 0;
  expect_absent(&f, TSR_UNSUPPORTED, "TSR_COMPILE_NEVER");
  f.host.compile = TSR_COMPILE_AUTO;
  f.driver.compile = NULL;
  expect_absent(&f, TSR_UNSUPPORTED, "no compiler");
  assert_int_equal(f.compiles, 0);
  assert_int_equal(f.warnings, 0);
}

/* ---- Callbacks ------------------------------------------------------------------------------------- */

/* One entry, whatever its name, and lies. */
typedef struct store {
  fake f; /* first: the hooks' user */
  unsigned char entry[16384];
  int64_t bytes;
  char name[TSR__IMAGE_NAME_BYTES];
  int gets, puts;
  int64_t first_size, second_size; /* answers instead of the truth; -1: the truth */
} store;

static int64_t store_get(void *user, const char *name, void *data, int64_t bytes) {
  store *s = user;
  const int64_t size = s->gets++ % 2 == 0 ? s->first_size : s->second_size;
  assert_int_equal(strlen(name), 32);
  assert_true((data == NULL) == (bytes == 0));
  if (data != NULL && s->bytes > 0) {
    memcpy(data, s->entry, (size_t)(bytes < s->bytes ? bytes : s->bytes));
  }
  return size >= 0 ? size : strcmp(name, s->name) == 0 ? s->bytes : 0;
}

static void store_put(void *user, const char *name, const void *data, int64_t bytes) {
  store *s = user;
  s->puts++;
  s->gets = 0;
  assert_true(bytes > 0 && (size_t)bytes <= sizeof(s->entry));
  memcpy(s->entry, data, (size_t)bytes);
  memcpy(s->name, name, sizeof(s->name));
  s->bytes = bytes;
}

static void store_make(store *s) {
  memset(s, 0, sizeof(*s));
  fake_make(&s->f, NULL);
  s->f.host.cache_get = store_get;
  s->f.host.cache_put = store_put;
  s->first_size = s->second_size = -1;
}

static void test_callbacks(void **state) {
  static store s;
  char name[TSR__IMAGE_NAME_BYTES];
  (void)state;
  store_make(&s);
  expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(s.puts, 1);
  key_name(&s.f, name);
  assert_string_equal(s.name, name);
  expect_image(&s.f, 0, TSR__IMAGE_CACHED);
  assert_int_equal(s.gets, 2);
  s.f.host.compile = TSR_COMPILE_NEVER;
  expect_image(&s.f, 0, TSR__IMAGE_CACHED);
  s.f.host.compile = TSR_COMPILE_ALWAYS; /* not asked, but told */
  s.gets = 0;
  expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(s.puts, 2);
  s.f.host.compile = TSR_COMPILE_AUTO;
  /* The cached image does not load: compiled anew, and replaced. */
  expect_image(&s.f, TSR__IMAGE_CACHED, TSR__IMAGE_COMPILED);
  assert_int_equal(s.puts, 3);
  assert_int_equal(s.gets, 0);
  assert_int_equal(s.f.warnings, 0);
  s.f.host.compile = TSR_COMPILE_NEVER;
  s.f.source.name = "other";
  expect_absent(&s.f, TSR_UNSUPPORTED, "other");
  assert_int_equal(s.f.compiles, 3);
}

/* Callbacks that lie about sizes, or hand out what is another kernel's. */
static void test_lies(void **state) {
  static const struct {
    int64_t first, second; /* relative to the truth if below 1000 */
    const char *why;
  } rows[] = {{-1, -1, "truncated"},
              {-4000, -4000, "truncated"},
              {1, 1, "corrupt"},
              {0, -1, "two sizes"},
              {0, 1, "two sizes"},
              {-5, 0, "two sizes"},
              {INT64_MAX, 0, "too large"},
              {INT64_C(1) << 40, 0, "too large"},
              {5000, 5000, "longer than it"}};
  static store s;
  char dirty[TSR__IMAGE_NAME_BYTES];
  (void)state;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    store_make(&s);
    expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
    s.first_size = rows[i].first < 1000 ? s.bytes + rows[i].first : rows[i].first;
    s.first_size = s.first_size < 1 ? 1 : s.first_size;
    s.second_size = rows[i].second < 1000 ? s.bytes + rows[i].second : rows[i].second;
    s.second_size = s.second_size < 1 ? 1 : s.second_size;
    expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
    assert_int_equal(s.f.warnings, 1);
    if (strstr(s.f.last_warning, rows[i].why) == NULL) {
      fail_msg("row %d: \"%s\" does not say \"%s\"", (int)i, s.f.last_warning, rows[i].why);
    }
    assert_int_equal(s.puts, 2);
  }
  /* No entry at all, by a size that makes no sense. */
  store_make(&s);
  s.first_size = 0;
  expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(s.f.warnings, 0);
  /* Another kernel's entry under this name. */
  store_make(&s);
  expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
  s.f.source.defines = "#define TSR_K_DIM 65\n";
  key_name(&s.f, dirty);
  memcpy(s.name, dirty, sizeof(s.name));
  expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(s.f.warnings, 1);
  assert_non_null(strstr(s.f.last_warning, "of another key"));
  expect_image(&s.f, 0, TSR__IMAGE_CACHED);
}

/* ---- Memory ---------------------------------------------------------------------------------------- */

static int allocations, fail_at, live;

static void *counting_alloc(void *user, size_t bytes) {
  void *ptr = NULL;
  (void)user;
  if (++allocations == fail_at || posix_memalign(&ptr, 64, bytes) != 0) {
    return NULL;
  }
  live++;
  return ptr;
}

static void counting_free(void *user, void *ptr) {
  (void)user;
  live -= ptr != NULL;
  free(ptr);
}

/* Whichever allocation fails: an image or out of memory, and nothing is lost. */
static void test_no_memory(void **state) {
  static store s;
  int failures = 0, images = 0;
  (void)state;
  for (int cached = 0; cached < 2; cached++) {
    for (fail_at = 1; fail_at < 8; fail_at++) {
      tsr__image image;
      tsr_error err;
      tsr_status st;
      store_make(&s);
      s.f.host.alloc.alloc = counting_alloc;
      s.f.host.alloc.free = counting_free;
      if (cached) {
        const int at = fail_at;
        fail_at = 0;
        expect_image(&s.f, 0, TSR__IMAGE_COMPILED);
        fail_at = at;
      }
      allocations = live = 0;
      st = tsr__image_get(&s.f.dev, &s.f.source, 0, &image, &err);
      assert_true(st == TSR_OK || st == TSR_OUT_OF_MEMORY);
      failures += st != TSR_OK;
      images += st == TSR_OK;
      assert_int_equal(live, st == TSR_OK);
      tsr__image_free(&s.f.host, &image);
      assert_int_equal(live, 0);
    }
  }
  fail_at = 0;
  assert_true(failures >= 3 && images >= 3);
}

/* ---- Contexts -------------------------------------------------------------------------------------- */

static void expect_refused(const tsr_context_params *p, const char *field) {
  tsr_context *c = NULL;
  tsr_error err;
  assert_int_equal(tsr_context_create(p, &c, &err), TSR_INVALID);
  assert_string_equal(err.field, field);
  assert_null(c);
}

static void expect_host(const tsr_context_params *p, int32_t compile, const char *dir, const char *nvrtc) {
  tsr_context *c = NULL;
  assert_int_equal(tsr_context_create(p, &c, NULL), TSR_OK);
  assert_int_equal(c->host.compile, compile);
  assert_string_equal(c->host.cache_dir, dir);
  assert_string_equal(c->host.nvrtc_path, nvrtc);
  assert_ptr_equal(c->host.cache_get, p->cache_get);
  assert_ptr_equal(c->host.cache_put, p->cache_put);
  tsr_context_destroy(c);
}

static void test_context(void **state) {
  tsr_context_params p = tsr_context_params_init();
  char huge[TSR__ENV_PATH_BYTES + 1];
  (void)state;
  memset(huge, 'd', sizeof(huge));
  huge[sizeof(huge) - 1] = '\0';
  p.compile = 4;
  expect_refused(&p, "compile");
  p.compile = -1;
  expect_refused(&p, "compile");
  p = tsr_context_params_init();
  p.reserved = 1;
  expect_refused(&p, "reserved");
  p = tsr_context_params_init();
  p.cache_dir = huge;
  expect_refused(&p, "cache_dir");
  p = tsr_context_params_init();
  p.opencl_path = huge;
  expect_refused(&p, "opencl_path");
  p = tsr_context_params_init();
  p.cache_put = store_put;
  expect_refused(&p, "cache_get");
  p.cache_get = store_get;
  p.cache_dir = "somewhere";
  expect_refused(&p, "cache_dir");
  p = tsr_context_params_init();
  expect_host(&p, TSR_COMPILE_AUTO, "", "");
  setenv("TESSERA_COMPILE", "never", 1);
  setenv("TESSERA_CACHE_DIR", "/from/the/environment", 1);
  setenv("TESSERA_NVRTC", "libother.so", 1);
  expect_host(&p, TSR_COMPILE_NEVER, "/from/the/environment", "libother.so");
  p.compile = TSR_COMPILE_ALWAYS;
  p.cache_dir = "given";
  p.nvrtc_path = "";
  expect_host(&p, TSR_COMPILE_ALWAYS, "given", "");
  p = tsr_context_params_init();
  p.cache_get = store_get;
  p.cache_put = store_put;
  expect_host(&p, TSR_COMPILE_NEVER, "", "libother.so");
  p = tsr_context_params_init();
  p.flags = TSR_CONTEXT_IGNORE_ENV;
  expect_host(&p, TSR_COMPILE_AUTO, "", "");
  setenv("TESSERA_COMPILE", "sometimes", 1);
  setenv("TESSERA_CACHE_DIR", huge, 1);
  p.flags = 0;
  expect_host(&p, TSR_COMPILE_AUTO, "", "libother.so");
  unsetenv("TESSERA_COMPILE");
  unsetenv("TESSERA_CACHE_DIR");
  unsetenv("TESSERA_NVRTC");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_keys),      cmocka_unit_test(test_hash),      cmocka_unit_test(test_fit),
      cmocka_unit_test(test_compile),   cmocka_unit_test(test_callbacks), cmocka_unit_test(test_lies),
      cmocka_unit_test(test_no_memory), cmocka_unit_test(test_context),
  };
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
