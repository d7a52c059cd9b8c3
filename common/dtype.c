/* SPDX-License-Identifier: Apache-2.0 */
#include "common/dtype.h"

#include <math.h>
#include <string.h>

#include "tessera/reference.h"

typedef struct float_format {
  int exp_bits, man_bits;
  int has_inf;   /* all-ones exponent is inf / NaN, as in IEEE */
  int saturates; /* encoding beyond the range gives max_finite */
  double max_finite;
} float_format;

/* NULL for types that are not floats. */
static const float_format *format_of(tsr_dtype dtype) {
  static const float_format f32 = {8, 23, 1, 0, 3.4028234663852886e38};
  static const float_format f16 = {5, 10, 1, 0, 65504.0};
  static const float_format bf16 = {8, 7, 1, 0, 3.3895313892515355e38};
  static const float_format e4m3 = {4, 3, 0, 1, 448.0};
  static const float_format e5m2 = {5, 2, 1, 1, 57344.0};
  switch (dtype) {
  case TSR_F32: return &f32;
  case TSR_F16: return &f16;
  case TSR_BF16: return &bf16;
  case TSR_F8E4M3: return &e4m3;
  case TSR_F8E5M2: return &e5m2;
  default: return NULL;
  }
}

const char *tsr_dtype_name(tsr_dtype dtype) {
  static const char *const names[] = {"none", "f32", "f16", "bf16", "f8e4m3", "f8e5m2",     "i8",
                                      "u4",   "u8",  "bit", "i32",  "i64",    "f8e4m3fnuz", "f8e5m2fnuz"};
  if (dtype < 0 || (size_t)dtype >= sizeof(names) / sizeof(names[0])) {
    return "?";
  }
  return names[dtype];
}

int32_t tsr_dtype_bits(tsr_dtype dtype) {
  static const int8_t bits[] = {0, 32, 16, 16, 8, 8, 8, 4, 8, 1, 32, 64, 8, 8};
  if (dtype < 0 || (size_t)dtype >= sizeof(bits)) {
    return 0;
  }
  return bits[dtype];
}

int tsr__dtype_is_fp8(tsr_dtype dtype) {
  return dtype == TSR_F8E4M3 || dtype == TSR_F8E5M2;
}

static double decode_float(const float_format *f, uint64_t bits) {
  const int bias = (1 << (f->exp_bits - 1)) - 1;
  const uint64_t man = bits & ((UINT64_C(1) << f->man_bits) - 1);
  const int exp_ones = (1 << f->exp_bits) - 1;
  const int exp = (int)(bits >> f->man_bits) & exp_ones;
  const double sign = (bits >> (f->man_bits + f->exp_bits)) & 1 ? -1.0 : 1.0;
  if (exp == exp_ones) {
    if (f->has_inf) {
      return man != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    if (man == (UINT64_C(1) << f->man_bits) - 1) {
      return (double)NAN; /* e4m3: only the all-ones pattern */
    }
  }
  if (exp == 0) {
    return sign * ldexp((double)man, 1 - bias - f->man_bits);
  }
  return sign * ldexp((double)(man + (UINT64_C(1) << f->man_bits)), exp - bias - f->man_bits);
}

static uint64_t encode_float(const float_format *f, double value) {
  const int bias = (1 << (f->exp_bits - 1)) - 1;
  const uint64_t exp_ones = (UINT64_C(1) << f->exp_bits) - 1;
  const uint64_t sign = (uint64_t)(signbit(value) != 0) << (f->man_bits + f->exp_bits);
  const uint64_t inf = exp_ones << f->man_bits;
  double a = fabs(value), scaled;
  int exp;
  if (isnan(value)) {
    const uint64_t man_ones = (UINT64_C(1) << f->man_bits) - 1;
    return sign | inf | (f->has_inf ? UINT64_C(1) << (f->man_bits - 1) : man_ones);
  }
  if (a == 0.0) {
    return sign;
  }
  if (isinf(a)) {
    return f->saturates ? encode_float(f, copysign(f->max_finite, value)) : (sign | inf);
  }
  frexp(a, &exp); /* a = m 2^exp, m in [1/2, 1) */
  exp -= 1;
  if (exp < 1 - bias) {
    exp = 1 - bias; /* subnormal: fixed exponent */
  }
  scaled = nearbyint(ldexp(a, f->man_bits - exp)); /* integer significand, ties to even */
  a = ldexp(scaled, exp - f->man_bits);
  if (a > f->max_finite) {
    return f->saturates ? encode_float(f, copysign(f->max_finite, value)) : (sign | inf);
  }
  if (scaled >= ldexp(1.0, f->man_bits + 1)) {
    exp += 1;
    scaled = ldexp(scaled, -1);
  }
  if (scaled < ldexp(1.0, f->man_bits)) {
    return sign | (uint64_t)scaled;
  }
  return sign | (((uint64_t)(exp + bias) << f->man_bits) + ((uint64_t)scaled - (UINT64_C(1) << f->man_bits)));
}

double tsr__dtype_decode_bits(tsr_dtype dtype, uint64_t bits) {
  const float_format *f = format_of(dtype);
  if (f != NULL) {
    return decode_float(f, bits & ((UINT64_C(1) << (1 + f->exp_bits + f->man_bits)) - 1));
  }
  switch (dtype) {
  case TSR_I8: return (double)((int)(bits & 0xff) - ((bits & 0x80) != 0 ? 256 : 0));
  case TSR_U4: return (double)(bits & 0xf);
  case TSR_U8: return (double)(bits & 0xff);
  case TSR_I32: return (double)(int32_t)(uint32_t)bits;
  case TSR_I64: return (double)(int64_t)bits;
  default: return 0.0;
  }
}

static double clamp(double v, double lo, double hi) {
  return v < lo ? lo : v > hi ? hi : v;
}

uint64_t tsr__dtype_encode_bits(tsr_dtype dtype, double value) {
  const float_format *f = format_of(dtype);
  double r;
  if (f != NULL) {
    return encode_float(f, value);
  }
  r = isnan(value) ? 0.0 : nearbyint(value);
  switch (dtype) {
  case TSR_I8: return (uint64_t)(int64_t)clamp(r, -128.0, 127.0) & 0xff;
  case TSR_U4: return (uint64_t)clamp(r, 0.0, 15.0);
  case TSR_U8: return (uint64_t)clamp(r, 0.0, 255.0);
  case TSR_I32: return (uint64_t)(int64_t)clamp(r, -2147483648.0, 2147483647.0) & 0xffffffff;
  case TSR_I64:
    return r >= 9223372036854775807.0    ? (uint64_t)INT64_MAX
           : r <= -9223372036854775808.0 ? (uint64_t)INT64_MIN
                                         : (uint64_t)(int64_t)r;
  default: return 0;
  }
}

/* Types whose elements are numbers by themselves: a bit has no address, and FNUZ floats are refused everywhere. */
static int has_values(tsr_dtype dtype) {
  return tsr_dtype_bits(dtype) >= 4 && dtype != TSR_F8E4M3FNUZ && dtype != TSR_F8E5M2FNUZ;
}

double tsr_decode(tsr_dtype dtype, const void *data, int64_t index) {
  const unsigned char *bytes = (const unsigned char *)data;
  uint64_t bits = 0;
  int32_t n = tsr_dtype_bits(dtype);
  if (data == NULL || !has_values(dtype)) {
    return 0.0;
  }
  if (dtype == TSR_U4) {
    return (double)(bytes[index >> 1] >> ((index & 1) * 4) & 0xf);
  }
  for (int i = n / 8 - 1; i >= 0; i--) { /* little endian, any alignment */
    bits = bits << 8 | bytes[index * (n / 8) + i];
  }
  return tsr__dtype_decode_bits(dtype, bits);
}

void tsr_encode(tsr_dtype dtype, void *data, int64_t index, double value) {
  unsigned char *bytes = (unsigned char *)data;
  const int32_t n = tsr_dtype_bits(dtype);
  uint64_t bits = tsr__dtype_encode_bits(dtype, value);
  if (data == NULL || !has_values(dtype)) {
    return;
  }
  if (dtype == TSR_U4) {
    const int shift = (int)(index & 1) * 4;
    bytes[index >> 1] = (unsigned char)((bytes[index >> 1] & ~(0xf << shift)) | (int)bits << shift);
    return;
  }
  for (int i = 0; i < n / 8; i++, bits >>= 8) {
    bytes[index * (n / 8) + i] = (unsigned char)bits;
  }
}
