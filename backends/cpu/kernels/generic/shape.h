/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of tiles and register blocks. A tile is TILE_Q queries (lanes) x TILE_K keys. */
#ifndef TSR_CPU_SHAPE_H
#define TSR_CPU_SHAPE_H

#define TILE_Q 48
#define TILE_K 128
#define RV 3        /* vectors of queries in a register block */
#define SK 4        /* keys or channels of a forward block: 12 accumulators, and with 32 registers as many sums */
#define SUM_RUN 16  /* channels that an accumulator of a score sums */
#define SUM_KEYS 32 /* keys that an accumulator of the output sums */
#if defined(__AVX512F__) || defined(__aarch64__)
#define RK 8 /* keys or channels of a block without second sums: 24 accumulators */
#else
#define RK 4
#endif

#endif
