/* SPDX-License-Identifier: Apache-2.0 */
/* common/device as host C reads it, in the order in which the files build on each other. */
#ifndef TSR_COMMON_KERNEL_H
#define TSR_COMMON_KERNEL_H

#include <math.h>

#include "common/device/dialect.h"
#include "common/device/args.h"
#include "common/device/seq.h"
#include "common/device/philox.h"
#include "common/device/softmax.h"
#include "common/device/mask.h"
#include "common/device/tiles.h"
#include "common/device/numeric.h"

#endif
