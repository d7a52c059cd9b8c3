/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the kit. */
#ifndef TSR_TESTS_GRAVEYARD_FRAME_H
#define TSR_TESTS_GRAVEYARD_FRAME_H

#include "kit.h"

/* The test that is running. */
typedef struct gy_frame {
  char test[64], what[192], where[96], refusal[440];
  uint64_t seed;
  int problems;             /* made so far: each has its own random numbers */
  double started, deadline; /* seconds */
  gy_problem *all;          /* problems that there are */
} gy_frame;
extern gy_frame gy_now;

/* The contexts' hook: true when the time is over. */
int32_t gy_should_stop(void *user, int64_t done, int64_t total);
/* Inputs may be written, or not. */
void gy_protect(const gy_problem *p, int writable);
/* Index of the output whose layout lies at that offset of the description. */
int gy_output_index(ptrdiff_t layout_offset);

#endif
