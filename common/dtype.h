/* SPDX-License-Identifier: Apache-2.0 */
/* Element types by value: exact decoding to float64 and correctly rounded encoding. Written by arithmetic on fields,
 * apart from the bit tricks of common/device/numeric.h that the kernels use, because the oracle stands on it. */
#ifndef TSR_COMMON_DTYPE_H
#define TSR_COMMON_DTYPE_H

#include "tessera/base.h"

/* True for f8e4m3 and f8e5m2. */
int tsr__dtype_is_fp8(tsr_dtype dtype);

/* Value of the element with that bit pattern (low bits). Covers every type but TSR_BIT. */
double tsr__dtype_decode_bits(tsr_dtype dtype, uint64_t bits);
/* Bit pattern of the nearest value, ties to even. f16, bf16, f32 overflow to infinity; f8 saturates to the largest
 * finite value, NaN stays NaN; integers round to nearest even and saturate, NaN gives 0. */
uint64_t tsr__dtype_encode_bits(tsr_dtype dtype, double value);

#endif
