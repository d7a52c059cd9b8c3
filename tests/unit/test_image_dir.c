/* SPDX-License-Identifier: Apache-2.0 */
/* A cache directory: what is damaged, foreign or unsafe is not used and is made again; processes and threads share it.
 */
#include "tests/unit/image_fixture.h"

#include <pthread.h>
#include <sys/wait.h>

static char folder[512];

static int setup(void **state) {
  (void)state;
  folder_make(folder);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  folder_remove(folder);
  return 0;
}

/* The file of the device's source. */
static void file_of(fake *f, char path[1024]) {
  char name[TSR__IMAGE_NAME_BYTES];
  key_name(f, name);
  snprintf(path, 1024, "%.900s/%s", f->dir, name);
}

/* The file is not used, with a warning that has `why`, and a good one is made. */
static void expect_rebuilt(fake *f, const char *why) {
  const int compiles = f->compiles;
  f->warnings = 0;
  expect_image(f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(f->compiles, compiles + 1);
  assert_int_equal(f->warnings, 1);
  if (strstr(f->last_warning, why) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", f->last_warning, why);
  }
  expect_image(f, 0, TSR__IMAGE_CACHED);
  assert_int_equal(f->compiles, compiles + 1);
  assert_int_equal(f->warnings, 1);
}

static void test_kept(void **state) {
  fake f, other;
  struct stat s;
  char path[1024], deep[512];
  (void)state;
  fake_make(&f, folder);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  expect_image(&f, 0, TSR__IMAGE_CACHED);
  file_of(&f, path);
  assert_int_equal(stat(path, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0600);
  assert_int_equal(folder_count(folder), 1);
  fake_make(&other, folder); /* another context */
  other.host.compile = TSR_COMPILE_NEVER;
  expect_image(&other, 0, TSR__IMAGE_CACHED);
  strcpy(other.gpu.arch, "xx_91");
  other.host.compile = TSR_COMPILE_ALWAYS;
  expect_image(&other, 0, TSR__IMAGE_COMPILED);
  expect_image(&other, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(folder_count(folder), 2);
  /* A cached image that does not load is replaced: here by the same. */
  expect_image(&f, TSR__IMAGE_CACHED, TSR__IMAGE_COMPILED);
  expect_image(&f, 0, TSR__IMAGE_CACHED);
  assert_int_equal(f.warnings + other.warnings, 0);
  /* A directory that is not there yet, two levels of it. */
  snprintf(deep, sizeof(deep), "%.480s/new/one", folder);
  fake_make(&f, deep);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  expect_image(&f, 0, TSR__IMAGE_CACHED);
  assert_int_equal(f.warnings, 0);
  assert_int_equal(stat(deep, &s), 0);
  assert_int_equal(s.st_mode & 0777, 0700);
  folder_remove(deep);
}

/* Every byte of the header and many others: the magic, the lengths, the checksum, the key, what fills up to the image,
 * the image. */
static void test_damage(void **state) {
  static unsigned char entry[16384];
  fake f;
  char path[1024];
  size_t bytes;
  (void)state;
  fake_make(&f, folder);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  file_of(&f, path);
  bytes = file_read(path, entry, sizeof(entry));
  assert_true(bytes > IMAGE_TAIL && bytes < sizeof(entry));
  for (size_t at = 0; at < bytes; at += at < 64 ? 1 : (size_t)random_int(1, 50)) {
    const unsigned char good = entry[at];
    entry[at] ^= (unsigned char)(1 << random_below(8));
    file_write(path, entry, bytes);
    entry[at] = good;
    expect_rebuilt(&f, "is not used");
  }
  for (size_t n = 0; n < bytes; n += (size_t)random_int(1, n < 600 ? 15 : 100)) {
    file_write(path, entry, n);
    expect_rebuilt(&f, "truncated");
  }
  file_write(path, entry, bytes + 1);
  expect_rebuilt(&f, "longer than it says");
  file_write(path, entry, bytes); /* the file as it was is good */
  expect_image(&f, 0, TSR__IMAGE_CACHED);
}

static void test_foreign(void **state) {
  static unsigned char entry[16384];
  fake f;
  char path[1024];
  size_t bytes;
  (void)state;
  fake_make(&f, folder);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  file_of(&f, path);
  bytes = file_read(path, entry, sizeof(entry));
  strcpy(f.gpu.compiler, "fakecc 1.2 -O2"); /* a key of the same length */
  file_of(&f, path);
  file_write(path, entry, bytes);
  expect_rebuilt(&f, "of another key");
  memcpy(entry, "tsrimg0\n", 8);
  file_write(path, entry, bytes);
  expect_rebuilt(&f, "version");
  file_write(path, "", 0);
  expect_rebuilt(&f, "truncated");
}

/* Places where another user could have put code. */
static void test_unsafe(void **state) {
  fake f;
  char path[1024], aside[1200];
  (void)state;
  fake_make(&f, folder);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  file_of(&f, path);
  assert_int_equal(chmod(path, 0620), 0);
  expect_rebuilt(&f, "not a regular file");
  assert_int_equal(chmod(path, 0602), 0);
  expect_rebuilt(&f, "not a regular file");
  assert_int_equal(chmod(path, 0444), 0);
  expect_image(&f, 0, TSR__IMAGE_CACHED);
  snprintf(aside, sizeof(aside), "%s-aside", path);
  assert_int_equal(rename(path, aside), 0);
  assert_int_equal(symlink(aside, path), 0);
  expect_rebuilt(&f, "not a regular file");
  unlink(path);
  assert_int_equal(mkfifo(path, 0600), 0);
  expect_rebuilt(&f, "not a regular file");
  if (geteuid() == 0) {
    assert_int_equal(chown(path, 1, 1), 0);
    expect_rebuilt(&f, "not a regular file");
  }
  /* The directory: nothing is read from it, nor written to it. */
  for (int bit = 0; bit < 2; bit++) {
    assert_int_equal(chmod(folder, bit ? 0702 : 0720), 0);
    f.warnings = 0;
    expect_image(&f, 0, TSR__IMAGE_COMPILED);
    assert_int_equal(f.warnings, 2);
    assert_non_null(strstr(f.last_warning, "is not cached"));
    assert_non_null(strstr(f.last_warning, "others may write"));
  }
  assert_int_equal(chmod(folder, 0755), 0);
  expect_image(&f, 0, TSR__IMAGE_CACHED);
  if (geteuid() == 0) {
    assert_int_equal(chown(folder, 1, 1), 0);
    f.warnings = 0;
    expect_image(&f, 0, TSR__IMAGE_COMPILED);
    assert_int_equal(f.warnings, 2);
    assert_int_equal(chown(folder, 0, 0), 0);
  }
  assert_int_equal(chmod(folder, 0700), 0);
}

/* What cannot be written costs a warning and nothing else. */
static void test_unwritable(void **state) {
  fake f;
  char path[1024];
  (void)state;
  fake_make(&f, folder);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  file_of(&f, path);
  fake_make(&f, path); /* a file where a directory should be */
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(f.warnings, 2);
  assert_non_null(strstr(f.last_warning, "is not cached in"));
  snprintf(f.dir, sizeof(f.dir), "%.400s/x/y", path); /* and above one */
  f.warnings = 0;
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  assert_true(f.warnings > 0);
  /* A directory of that name in place of the file: it cannot be replaced. */
  fake_make(&f, folder);
  unlink(path);
  assert_int_equal(mkdir(path, 0700), 0);
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  assert_int_equal(f.warnings, 2);
  assert_int_equal(folder_count(folder), 1); /* no temporary file is left */
  rmdir(path);
}

/* A user who may read but not write; root may always write, so the test gives up its rights in a child. */
static int read_only_child(void) {
  fake f;
  char path[1024];
  fake_make(&f, folder);
  file_of(&f, path);
  if (geteuid() == 0 && (chown(folder, 65534, 65534) != 0 || setgid(65534) != 0 || setuid(65534) != 0)) {
    return 1;
  }
  if (chmod(folder, 0500) != 0) {
    return 2;
  }
  expect_image(&f, 0, TSR__IMAGE_COMPILED);
  return f.warnings == 1 && strstr(f.last_warning, "no file can be made in it") != NULL ? 0 : 3;
}

static void wait_for(pid_t child) {
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_read_only(void **state) {
  const pid_t child = fork();
  (void)state;
  assert_true(child >= 0);
  if (child == 0) {
    _exit(read_only_child());
  }
  wait_for(child);
  assert_int_equal(chown(folder, geteuid(), getegid()), 0);
  assert_int_equal(chmod(folder, 0700), 0);
}

/* Gets images of a few keys over and over, each time wanting the right one; removes and damages files in between.
 * Returns how many were wrong. */
static int race(unsigned seed, int rounds) {
  fake f;
  char path[1024], defines[64];
  int wrong = 0;
  fake_make(&f, folder);
  f.source.defines = defines;
  for (int n = 0; n < rounds; n++) {
    unsigned char want[8192];
    tsr__image image;
    tsr_error err;
    seed = seed * 1664525u + 1013904223u;
    snprintf(defines, sizeof(defines), "#define KEY %u\n", seed >> 16 & 3u);
    wrong += tsr__image_get(&f.dev, &f.source, 0, &image, &err) != TSR_OK || image.bytes != image_of(&f.source, want) ||
             memcmp(image.data, want, image.bytes) != 0;
    tsr__image_free(&f.host, &image);
    file_of(&f, path);
    if ((seed >> 20 & 7u) == 0) {
      unlink(path);
    } else if ((seed >> 20 & 7u) == 1) {
      const int file = open(path, O_WRONLY);
      if (file >= 0) {
        wrong += pwrite(file, "x", 1, seed >> 24) != 1;
        close(file);
      }
    }
  }
  return wrong;
}

typedef struct racer {
  unsigned seed;
  int wrong;
} racer;

static void *race_thread(void *arg) {
  racer *r = arg;
  r->wrong = race(r->seed, 150);
  return NULL;
}

static void test_race(void **state) {
  enum { PROCESSES = 3 };
  const unsigned first = (unsigned)random_bits();
  racer racers[2] = {{first + 100, 0}, {first + 200, 0}};
  pid_t child[PROCESSES];
  pthread_t thread[2];
  fake f;
  (void)state;
  for (unsigned p = 0; p < PROCESSES; p++) {
    child[p] = fork();
    assert_true(child[p] >= 0);
    if (child[p] == 0) {
      _exit(race(first + p, 150) != 0);
    }
  }
  for (int t = 0; t < 2; t++) {
    assert_int_equal(pthread_create(&thread[t], NULL, race_thread, &racers[t]), 0);
  }
  for (int t = 0; t < 2; t++) {
    pthread_join(thread[t], NULL);
    assert_int_equal(racers[t].wrong, 0);
  }
  for (int p = 0; p < PROCESSES; p++) {
    wait_for(child[p]);
  }
  assert_true(folder_count(folder) <= 4); /* no temporary file is left */
  fake_make(&f, folder);                  /* whatever the last one left is used or replaced */
  f.source.defines = "#define KEY 1\n";
  expect_image(&f, TSR__IMAGE_CACHED, TSR__IMAGE_COMPILED);
  expect_image(&f, 0, TSR__IMAGE_CACHED);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_kept, setup, teardown),
      cmocka_unit_test_setup_teardown(test_damage, setup, teardown),
      cmocka_unit_test_setup_teardown(test_foreign, setup, teardown),
      cmocka_unit_test_setup_teardown(test_unsafe, setup, teardown),
      cmocka_unit_test_setup_teardown(test_unwritable, setup, teardown),
      cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
      cmocka_unit_test_setup_teardown(test_race, setup, teardown),
  };
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
