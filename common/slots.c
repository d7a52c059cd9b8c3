/* SPDX-License-Identifier: Apache-2.0 */
#include "common/slots.h"

#include <stddef.h>

#define TSR__AUX(n)                                            \
  {"aux[" #n "]",                                              \
   offsetof(tsr_attention_desc, aux) + n * sizeof(tsr_layout), \
   offsetof(tsr_run_args, aux) + n * sizeof(tsr_buffer),       \
   {0, 0},                                                     \
   {1, 1}},

const tsr__slot tsr__slots[] = {
#define TSR__X(name, wf, wb, rf, rb) \
  {#name, offsetof(tsr_attention_desc, name), offsetof(tsr_run_args, name), {wf, wb}, {rf, rb}},
    TSR__SLOTS(TSR__X)
#undef TSR__X
        TSR__AUX(0) TSR__AUX(1) TSR__AUX(2) TSR__AUX(3) TSR__AUX(4) TSR__AUX(5) TSR__AUX(6) TSR__AUX(7)};
