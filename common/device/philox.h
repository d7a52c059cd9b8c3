/* SPDX-License-Identifier: Apache-2.0 */
/* Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the dropout rule. */
#ifndef TSR_DEVICE_PHILOX_H
#define TSR_DEVICE_PHILOX_H

TSR_FN void tsr_philox(tsr_u32 c[4], tsr_u32 k0, tsr_u32 k1) {
  int round;
  for (round = 0; round < 10; round++) {
    const tsr_u32 hi0 = tsr_mul_hi(0xD2511F53u, c[0]), lo0 = 0xD2511F53u * c[0];
    const tsr_u32 hi1 = tsr_mul_hi(0xCD9E8D57u, c[2]), lo1 = 0xCD9E8D57u * c[2];
    const tsr_u32 c1 = c[1], c3 = c[3];
    c[0] = hi1 ^ c1 ^ k0;
    c[1] = lo1;
    c[2] = hi0 ^ c3 ^ k1;
    c[3] = lo0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

typedef struct tsr_philox_key {
  tsr_u32 k0, k1;
} tsr_philox_key;

/* The key of a run, from its seed and offset. */
TSR_FN tsr_philox_key tsr_dropout_key(tsr_u64 seed, tsr_u64 offset) {
  tsr_philox_key key;
  tsr_u32 c[4];
  c[0] = (tsr_u32)offset;
  c[1] = (tsr_u32)(offset >> 32);
  c[2] = 0;
  c[3] = 0;
  tsr_philox(c, (tsr_u32)seed, (tsr_u32)(seed >> 32));
  key.k0 = c[0];
  key.k1 = c[1];
  return key;
}

/* Random words of keys 4 j4 .. 4 j4 + 3 for row i of b * Hq + h. */
TSR_FN void tsr_dropout_words(tsr_philox_key key, tsr_u64 bh, tsr_u32 i, tsr_u32 j4, tsr_u32 r[4]) {
  r[0] = j4;
  r[1] = i;
  r[2] = (tsr_u32)bh;
  r[3] = (tsr_u32)(bh >> 32);
  tsr_philox(r, key.k0, key.k1);
}

#endif
