/* SPDX-License-Identifier: Apache-2.0 */
/* A base problem with memory and arguments, and what a run of it answers. Include cmocka.h before. */
#ifndef TSR_TEST_BIND_FIXTURE_H
#define TSR_TEST_BIND_FIXTURE_H

#include "common/validate.h"
#include "problem_bases.h"

typedef struct fixture {
  tsr_attention_desc desc;
  tsr__problem p;
  tsr_run_args args;
  base_memory memory;
  tsr__bound bound;
  tsr_error err;
} fixture;

static inline void setup_desc(fixture *f, base_kind kind, const tsr_attention_desc *d) {
  memset(f, 0, sizeof(*f));
  f->desc = *d;
  f->args = tsr_run_args_init();
  assert_int_equal(tsr__problem_init(NULL, &f->desc, &f->p, &f->err), TSR_OK);
  assert_true(base_memory_init(&f->p, 1 << 20, &f->memory, &f->args));
  base_fill(kind, &f->p, &f->args);
}

static inline void setup(fixture *f, base_kind kind) {
  const tsr_attention_desc d = base_desc(kind);
  setup_desc(f, kind, &d);
}

static inline void teardown(fixture *f) {
  base_memory_free(&f->memory);
  tsr__problem_free(&f->p);
}

static inline tsr_status bind(fixture *f) {
  memset(&f->bound, 0xa5, sizeof(f->bound));
  return tsr__bind(&f->p, &f->args, 1, 1, 0, 64, &f->bound, &f->err);
}

static inline void expect_ok(fixture *f) {
  const tsr_status st = bind(f);
  if (st != TSR_OK) {
    print_message("refused: %s: %s\n", f->err.field, f->err.text);
  }
  assert_int_equal(st, TSR_OK);
  assert_int_equal(f->err.status, TSR_OK);
}

static inline void expect_invalid(fixture *f, const char *field) {
  const tsr_status st = bind(f);
  if (st != TSR_INVALID || strcmp(f->err.field, field) != 0) {
    print_message("expected %s, got status %d, \"%s\": %s\n", field, (int)st, f->err.field, f->err.text);
  }
  assert_int_equal(st, TSR_INVALID);
  assert_int_equal(f->err.status, TSR_INVALID);
  assert_string_equal(f->err.field, field);
  assert_true(f->err.text[0] != 0);
}

#endif
