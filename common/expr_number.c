/* SPDX-License-Identifier: Apache-2.0 */
/* Decimal text and f32. strtof and printf follow the process's locale, which a library cannot know or set,
 * and strtof's rounding is left to the C library; both are needed exactly here, because texts are keys. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/expr.h"

/* Significant digits kept of a decimal number; a midpoint of two f32 has at most 113, so what is cut off can
 * only matter by being above zero. */
#define MAX_DIGITS 120

/* Numbers of at most MAX_DIGITS digits times 2^150, or 25 bits times 10^(MAX_DIGITS + 46), fit. */
#define LIMBS 20

typedef struct decimal {
  char digit[MAX_DIGITS]; /* values 0..9, the first is not 0 */
  int n;                  /* 0: the number is zero */
  int inexact;            /* nonzero digits were cut off */
  int64_t exponent;       /* value = digits as an integer * 10^exponent */
} decimal;

typedef struct big {
  uint32_t limb[LIMBS]; /* least significant first */
  int n;
} big;

static void big_mul_add(big *x, uint32_t factor, uint32_t term) {
  uint64_t carry = term;
  for (int k = 0; k < x->n; ++k) {
    carry += (uint64_t)x->limb[k] * factor;
    x->limb[k] = (uint32_t)carry;
    carry >>= 32;
  }
  if (carry != 0) {
    x->limb[x->n++] = (uint32_t)carry;
  }
}

static void big_scale(big *x, uint32_t base, int64_t exponent) {
  for (; exponent > 0; --exponent) {
    big_mul_add(x, base, 0);
  }
}

static int big_compare(const big *x, const big *y) {
  if (x->n != y->n) {
    return x->n < y->n ? -1 : 1;
  }
  for (int k = x->n - 1; k >= 0; --k) {
    if (x->limb[k] != y->limb[k]) {
      return x->limb[k] < y->limb[k] ? -1 : 1;
    }
  }
  return 0;
}

/* Exact sign of d - m * 2^q. */
static int decimal_compare(const decimal *d, uint32_t m, int q) {
  big x = {{0}, 0}, y = {{0}, 0};
  for (int k = 0; k < d->n; ++k) {
    big_mul_add(&x, 10, (uint32_t)d->digit[k]);
  }
  big_mul_add(&y, 0, m);
  big_scale(&x, 10, d->exponent);
  big_scale(&y, 10, -d->exponent);
  big_scale(&x, 2, -q);
  big_scale(&y, 2, q);
  const int sign = big_compare(&x, &y);
  return sign != 0 ? sign : d->inexact;
}

static decimal decimal_read(const char *text, size_t bytes) {
  decimal d = {{0}, 0, 0, 0};
  int point = 0;
  size_t k = 0;
  for (; k < bytes && text[k] != 'e' && text[k] != 'E'; ++k) {
    if (text[k] == '.') {
      point = 1;
      continue;
    }
    const char digit = (char)(text[k] - '0');
    d.exponent -= point;
    if (d.n == 0 && digit == 0) {
      continue;
    }
    if (d.n < MAX_DIGITS) {
      d.digit[d.n++] = digit;
    } else {
      d.inexact |= digit != 0;
      ++d.exponent;
    }
  }
  if (k < bytes) {
    const int negative = text[k + 1] == '-';
    int64_t exponent = 0;
    for (k += text[k + 1] == '-' || text[k + 1] == '+' ? 2 : 1; k < bytes; ++k) {
      exponent = exponent < 1000000 ? 10 * exponent + (text[k] - '0') : exponent;
    }
    d.exponent += negative ? -exponent : exponent;
  }
  while (d.n > 0 && !d.inexact && d.digit[d.n - 1] == 0) {
    --d.n;
    ++d.exponent;
  }
  return d;
}

/* Where a double product or quotient of exact operands is not halfway between two f32, rounding it to f32
 * rounds the number itself: true of nearly all numbers that people write. */
static int decimal_fast(const decimal *d, float *out) {
  double x = 0, power = 1;
  uint64_t bits;
  if (d->n > 15 || d->exponent > 22 || d->exponent < -22) {
    return 0;
  }
  for (int k = 0; k < d->n; ++k) {
    x = 10 * x + d->digit[k];
  }
  for (int64_t k = d->exponent < 0 ? -d->exponent : d->exponent; k > 0; --k) {
    power *= 10;
  }
  x = d->exponent < 0 ? x / power : x * power;
  memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x1fffffff) == 0x10000000) { /* at least 1e-22, so a normal f32 */
    return 0;
  }
  *out = (float)x;
  return 1;
}

static float float_from_bits(uint32_t bits) {
  float f;
  memcpy(&f, &bits, sizeof(f));
  return f;
}

float tsr__expr_number_parse(const char *text, size_t bytes) {
  const decimal d = decimal_read(text, bytes);
  float fast;
  if (d.n == 0 || d.n + d.exponent < -45) {
    return 0; /* below 1e-46; half of the smallest f32 is 0.7e-45 */
  }
  if (d.n + d.exponent > 39) {
    return INFINITY;
  }
  if (decimal_fast(&d, &fast)) {
    return fast;
  }
  /* The result's bits are the number of midpoints below the number; bisect. The midpoint above the f32 of
   * bits (exponent e, fraction m) is (2 m + 1) * 2^(e - 1), above the largest one it leads to infinity. */
  uint32_t low = 0, high = 0x7f800000;
  while (low < high) {
    const uint32_t mid = low + (high - low) / 2;
    const uint32_t field = mid >> 23;
    const uint32_t m = (mid & 0x7fffff) | (field != 0 ? 0x800000 : 0);
    const int q = (field != 0 ? (int)field : 1) - 150;
    const int sign = decimal_compare(&d, 2 * m + 1, q - 1);
    if (sign > 0 || (sign == 0 && (mid & 1) != 0)) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return float_from_bits(low);
}

/* digits * 10^(exponent - n + 1), i.e. d.ddd times 10^exponent, in the form that people expect. */
static int decimal_write(const char *digits, int n, int exponent, char *out) {
  int at = 0;
  if (exponent < -5 || exponent > 8) {
    out[at++] = digits[0];
    if (n > 1) {
      out[at++] = '.';
    }
    for (int k = 1; k < n; ++k) {
      out[at++] = digits[k];
    }
    return at + snprintf(out + at, TSR_EXPR_NUMBER_BYTES - (size_t)at, "e%d", exponent);
  }
  for (int k = exponent < 0 ? exponent : 0; k < n || k <= exponent + 1; ++k) {
    out[at++] = k >= 0 && k < n ? digits[k] : '0';
    if (k == exponent) {
      out[at++] = '.';
    }
  }
  out[at] = '\0';
  return at;
}

int tsr__expr_number_print(float f, char out[TSR_EXPR_NUMBER_BYTES]) {
  int length = 0;
  for (int n = 1; n <= 9; ++n) {
    char text[40], digits[9];
    int count = 0, k = 0;
    /* Only the digits and the exponent are taken; between them stands whatever the locale puts there. */
    snprintf(text, sizeof(text), "%.*e", n - 1, (double)f);
    for (; text[k] != 'e'; ++k) {
      if (text[k] >= '0' && text[k] <= '9') {
        digits[count++] = text[k];
      }
    }
    int exponent = 0;
    for (const char *p = text + k + 2; *p != '\0'; ++p) {
      exponent = 10 * exponent + (*p - '0');
    }
    length = decimal_write(digits, count, text[k + 1] == '-' ? -exponent : exponent, out);
    const float back = tsr__expr_number_parse(out, (size_t)length);
    if (memcmp(&back, &f, sizeof(f)) == 0) {
      break;
    }
  }
  return length;
}
