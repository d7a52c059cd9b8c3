/* SPDX-License-Identifier: Apache-2.0 */
/* Online softmax (Milakov and Gimelshein 2018; FlashAttention, section 3.1) for one row: m the running maximum, l the
 * sum of exp(s - m), both in natural units; o the sum of exp(s - m) v. */
#ifndef TSR_DEVICE_SOFTMAX_H
#define TSR_DEVICE_SOFTMAX_H

/* The reference to subtract: 0 for a row that has seen no allowed key, so that -inf - (-inf) never happens. */
TSR_FN float tsr_softmax_ref(float m) {
  return m == -TSR_INF ? 0.0f : m;
}

/* LSE of a finished row without a sink. */
TSR_FN float tsr_softmax_lse(float m, float l) {
  return m == -TSR_INF ? -TSR_INF : m + tsr_log(l);
}

/* Weights for joining two normalised partial results with natural LSEs a and b (either may be -inf; its o is then not
 * to be read). Returns the joint LSE; wa + wb = 1 unless both are empty, where both are 0. A NaN in either spreads. */
TSR_FN float tsr_softmax_join(float a, float b, float *wa, float *wb) {
  const float m = (a > b || a != a) ? a : b;
  float ea, eb;
  if (m == -TSR_INF) {
    *wa = 0.0f;
    *wb = 0.0f;
    return m;
  }
  if (b == -TSR_INF) {
    *wa = 1.0f;
    *wb = 0.0f;
    return a;
  }
  if (a == -TSR_INF) {
    *wa = 0.0f;
    *wb = 1.0f;
    return b;
  }
  if (m == TSR_INF) { /* IEEE: inf - inf; the row is NaN already or becomes so */
    *wa = m - m;
    *wb = m - m;
    return m;
  }
  ea = tsr_exp(a - m);
  eb = tsr_exp(b - m);
  *wa = ea / (ea + eb);
  *wb = eb / (ea + eb);
  return m + tsr_log(ea + eb);
}

#endif
