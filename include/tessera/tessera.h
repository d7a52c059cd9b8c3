/* SPDX-License-Identifier: Apache-2.0 */
/* Tessera: attention kernels for every device. This header includes the whole neutral API; handles of a particular
 * back end are in cpu.h. Reading order: base.h, context.h, attention.h, cache.h, plan.h, memory.h, reference.h. */
#ifndef TESSERA_TESSERA_H
#define TESSERA_TESSERA_H

#include "tessera/attention.h"
#include "tessera/base.h"
#include "tessera/cache.h"
#include "tessera/context.h"
#include "tessera/expression.h"
#include "tessera/memory.h"
#include "tessera/plan.h"
#include "tessera/reference.h"

#endif
