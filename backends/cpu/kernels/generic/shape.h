/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of tiles and register blocks. A tile is TILE_Q queries (lanes) x TILE_K keys; a register block RK keys or channels x
 * RV vectors: with 32 registers 24 accumulators, with 16 half of them. */
#ifndef TSR_CPU_SHAPE_H
#define TSR_CPU_SHAPE_H

#define TILE_Q 48
#ifndef TILE_K
#define TILE_K 128
#endif
#define RV 3
#if defined(__AVX512F__) || defined(__aarch64__)
#define RK 8
#else
#define RK 4
#endif

#endif
