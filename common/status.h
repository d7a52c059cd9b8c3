/* SPDX-License-Identifier: Apache-2.0 */
/* The one place that fills tsr_error. */
#ifndef TSR_COMMON_STATUS_H
#define TSR_COMMON_STATUS_H

#include "tessera/base.h"

#if defined(__GNUC__)
#define TSR__PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TSR__PRINTF(f, a)
#endif

/* Fills *err (NULL: nothing) and returns `status`, so that callers write `return tsr__fail(...)`. field may be "". */
tsr_status tsr__fail(tsr_error *err, tsr_status status, const char *field, const char *fmt, ...) TSR__PRINTF(4, 5);

/* Clears *err (NULL: nothing) and returns TSR_OK. */
tsr_status tsr__ok(tsr_error *err);

#endif
