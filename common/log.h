/* SPDX-License-Identifier: Apache-2.0 */
/* Messages to the embedder's hook; silent without one. */
#ifndef TSR_COMMON_LOG_H
#define TSR_COMMON_LOG_H

#include "common/backend.h"

void tsr__log(const tsr__host *host, int32_t level, const char *fmt, ...) TSR__PRINTF(3, 4);
/* The hook behind TESSERA_LOG: one line on stderr. */
void tsr__log_stderr(void *user, int32_t level, const char *text);

#endif
