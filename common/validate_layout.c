/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/validate.h"

/* ---- Messages -------------------------------------------------------------------------------- */

tsr__field tsr__field_part(const char *name, const char *part) {
  tsr__field f;
  snprintf(f.name, sizeof(f.name), "%s.%s", name, part);
  return f;
}

tsr__field tsr__field_axis(const char *name, const char *part, int axis) {
  tsr__field f;
  snprintf(f.name, sizeof(f.name), "%s.%s[%d]", name, part, axis);
  return f;
}

tsr__field tsr__field_entry(const char *name, int64_t i0) {
  tsr__field f;
  snprintf(f.name, sizeof(f.name), "%s[%lld]", name, (long long)i0);
  return f;
}

tsr__field tsr__field_entry2(const char *name, int64_t i0, int64_t i1) {
  tsr__field f;
  snprintf(f.name, sizeof(f.name), "%s[%lld,%lld]", name, (long long)i0, (long long)i1);
  return f;
}

tsr__field tsr__field_entry3(const char *name, int64_t i0, int64_t i1, int64_t i2) {
  tsr__field f;
  snprintf(f.name, sizeof(f.name), "%s[%lld,%lld,%lld]", name, (long long)i0, (long long)i1, (long long)i2);
  return f;
}

tsr_status tsr__invalid(tsr_error *err, const char *field, const char *fmt, ...) {
  char text[sizeof(((tsr_error *)0)->text)];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  return tsr__fail(err, TSR_INVALID, field, "%s %s", field, text);
}

/* ---- Structs --------------------------------------------------------------------------------- */

int tsr__struct_size_ok(size_t size, size_t own) {
  return size >= own && size <= 65536; /* none of ours will be larger: an uninitialised size */
}

tsr_status tsr__struct_import(void *dst, size_t dst_size, size_t earlier_size, const void *src, const char *what,
                              tsr_error *err) {
  size_t size;
  if (src == NULL) {
    return tsr__invalid(err, what, "is NULL");
  }
  memcpy(&size, src, sizeof(size));
  if (!tsr__struct_size_ok(size, dst_size) && (earlier_size == 0 || size != earlier_size)) {
    return tsr__fail(err, TSR_INVALID, "size", "%s.size is %zu, must be sizeof(%s), here %zu", what, size, what,
                     dst_size);
  }
  for (size_t i = dst_size; i < size; i++) {
    if (((const unsigned char *)src)[i] != 0) {
      return tsr__fail(err, TSR_INVALID, "size", "%s.size is %zu and byte %zu is set: not known to this version", what,
                       size, i);
    }
  }
  memset(dst, 0, dst_size);
  memcpy(dst, src, size < dst_size ? size : dst_size);
  memcpy(dst, &dst_size, sizeof(dst_size));
  return TSR_OK;
}

tsr_status tsr__struct_export(void *to, size_t to_size, const void *from, size_t from_size, tsr_error *err) {
  if (!tsr__struct_size_ok(to_size, from_size)) {
    return tsr__fail(err, TSR_INVALID, "info.size", "info.size is %zu, must be sizeof the struct, here %zu", to_size,
                     from_size);
  }
  memcpy((char *)to + sizeof(size_t), (const char *)from + sizeof(size_t), from_size - sizeof(size_t));
  memset((char *)to + from_size, 0, to_size - from_size);
  return tsr__ok(err);
}

/* ---- One layout ------------------------------------------------------------------------------ */

int64_t tsr__element_bytes(tsr_dtype dtype) {
  const int32_t bits = tsr_dtype_bits(dtype);
  return bits < 8 ? 1 : bits / 8;
}

/* Bytes from the first to past the last element; 0 if that overflows. */
static int span_of(const tsr_layout *l, int64_t *bytes) {
  const int axes = l->dtype == TSR_BIT ? 3 : 4; /* bits: the last axis lies within bytes */
  int64_t last = 0;
  *bytes = 0;
  if (tsr__layout_is_empty(l)) {
    return 1;
  }
  for (int a = 0; a < axes; a++) {
    int64_t reach;
    if (l->shape[a] > 1 &&
        (__builtin_mul_overflow(l->shape[a] - 1, l->stride[a], &reach) || __builtin_add_overflow(last, reach, &last))) {
      return 0;
    }
  }
  if (l->dtype == TSR_BIT) {
    return !__builtin_add_overflow(last, (l->shape[3] - 1) / 8 + 1, bytes);
  }
  if (__builtin_add_overflow(last, 1, &last)) {
    return 0;
  }
  if (l->dtype == TSR_U4) {
    *bytes = last / 2 + last % 2;
    return 1;
  }
  return !__builtin_mul_overflow(last, tsr__element_bytes(l->dtype), bytes);
}

int64_t tsr__layout_span_bytes(const tsr_layout *layout) {
  int64_t bytes;
  span_of(layout, &bytes);
  return bytes;
}

/* Elements that share bytes with others lie so that rows begin on bytes. */
static tsr_status check_sub_byte(const tsr_layout *l, const char *field, tsr_error *err) {
  if (l->dtype == TSR_U4 && l->shape[3] % 2 != 0) {
    const tsr__field f = tsr__field_axis(field, "shape", 3);
    return tsr__invalid(err, f.name, "is %lld, must be even for u4", (long long)l->shape[3]);
  }
  if ((l->dtype == TSR_U4 || l->dtype == TSR_BIT) && l->shape[3] > 1 && l->stride[3] != 1) {
    const tsr__field f = tsr__field_axis(field, "stride", 3);
    return tsr__invalid(err, f.name, "is %lld, must be 1 for %s", (long long)l->stride[3], tsr_dtype_name(l->dtype));
  }
  for (int a = 0; l->dtype == TSR_U4 && a < 3; a++) {
    if (l->shape[a] > 1 && l->stride[a] % 2 != 0) {
      const tsr__field f = tsr__field_axis(field, "stride", a);
      return tsr__invalid(err, f.name, "is %lld nibbles, must be even", (long long)l->stride[a]);
    }
  }
  return TSR_OK;
}

/* Rows along the last axis begin where align_bytes promises, as far as the strides decide it. */
static tsr_status check_align(const tsr_layout *l, const char *field, tsr_error *err) {
  const int64_t align = l->align_bytes;
  if (align != 0 && (align < 0 || align > 4096 || (align & (align - 1)) != 0)) {
    const tsr__field f = tsr__field_part(field, "align_bytes");
    return tsr__invalid(err, f.name, "is %lld, must be 0 or a power of two up to 4096", (long long)align);
  }
  for (int a = 0; align > tsr__element_bytes(l->dtype) && l->shape[3] > 1 && a < 3; a++) {
    int64_t bytes = 0;
    if (l->shape[a] > 1) { /* else the stride may be anything */
      bytes = l->dtype == TSR_U4 ? l->stride[a] / 2 : l->stride[a] * tsr__element_bytes(l->dtype);
    }
    if (bytes % align != 0) {
      const tsr__field f = tsr__field_part(field, "align_bytes");
      return tsr__invalid(err, f.name, "is %lld, which stride[%d] = %lld (%lld bytes) does not keep", (long long)align,
                          a, (long long)l->stride[a], (long long)bytes);
    }
  }
  return TSR_OK;
}

/* Axes longer than 1 from the smallest stride up: each must step over all that lies below it. */
static tsr_status check_output(const tsr_layout *l, const char *field, tsr_error *err) {
  int64_t extent = l->dtype == TSR_BIT ? 0 : 1; /* elements the axes so far span */
  int done[4] = {0, 0, 0, 0};
  if (tsr__layout_is_empty(l)) {
    return TSR_OK;
  }
  for (;;) {
    int next = -1;
    for (int a = 0; a < 4; a++) {
      if (!done[a] && l->shape[a] > 1 && (next < 0 || l->stride[a] < l->stride[next])) {
        next = a;
      }
    }
    if (next < 0) {
      return TSR_OK;
    }
    if (l->stride[next] < extent) {
      const tsr__field f = tsr__field_axis(field, "stride", next);
      return tsr__invalid(err, f.name, "is %lld, must be at least %lld: an output may not name an element twice",
                          (long long)l->stride[next], (long long)extent);
    }
    extent += (l->shape[next] - 1) * l->stride[next];
    done[next] = 1;
  }
}

tsr_status tsr__layout_check(const tsr_layout *layout, const char *field, int is_output, tsr_error *err) {
  int64_t bytes;
  tsr_status st;
  if (tsr_dtype_bits(layout->dtype) == 0) {
    const tsr__field f = tsr__field_part(field, "dtype");
    return tsr__invalid(err, f.name, "is %d, must be an element type", (int)layout->dtype);
  }
  if (layout->reserved[0] != 0 || layout->reserved[1] != 0) {
    const tsr__field f = tsr__field_part(field, "reserved");
    return tsr__invalid(err, f.name, "is set, must be 0");
  }
  for (int a = 0; a < 4; a++) {
    if (layout->shape[a] < 0) {
      const tsr__field f = tsr__field_axis(field, "shape", a);
      return tsr__invalid(err, f.name, "is %lld, must be at least 0", (long long)layout->shape[a]);
    }
    if (layout->shape[a] > 1 && layout->stride[a] < 0) {
      const tsr__field f = tsr__field_axis(field, "stride", a);
      return tsr__invalid(err, f.name, "is %lld, must be at least 0", (long long)layout->stride[a]);
    }
  }
  st = check_sub_byte(layout, field, err);
  if (st != TSR_OK) {
    return st;
  }
  if (!span_of(layout, &bytes)) {
    const tsr__field f = tsr__field_part(field, "stride");
    return tsr__invalid(err, f.name, "reaches beyond 2^63 bytes");
  }
  st = tsr__layout_is_empty(layout) ? TSR_OK : check_align(layout, field, err);
  return st == TSR_OK && is_output ? check_output(layout, field, err) : st;
}

tsr_status tsr__check_absent(const tsr_layout *layout, const char *name, tsr_error *err) {
  static const tsr_layout none;
  if (memcmp(layout, &none, sizeof(none)) != 0) {
    const tsr__field f = tsr__field_part(name, "dtype");
    return tsr__invalid(err, f.name, "is none, but other members of %s are set", name);
  }
  return TSR_OK;
}

tsr_layout tsr__layout_resolve(const tsr_layout *layout) {
  tsr_layout l = *layout;
  const int32_t element = (int32_t)tsr__element_bytes(l.dtype);
  for (int a = 0; a < 4; a++) {
    if (l.shape[a] == 1 || tsr__layout_is_empty(&l)) { /* nothing is ever addressed by it */
      l.stride[a] = 0;
    }
  }
  if (l.align_bytes < element) {
    l.align_bytes = element;
  }
  return l;
}

/* ---- Rules for fields ------------------------------------------------------------------------ */

tsr_status tsr__check_dtype(const tsr_layout *layout, const char *name, uint32_t allowed, tsr_error *err) {
  const tsr__field f = tsr__field_part(name, "dtype");
  char list[128];
  size_t at = 0;
  if ((allowed & TSR__DTYPE_BIT(layout->dtype)) != 0) {
    return TSR_OK;
  }
  if (layout->dtype == TSR_F8E4M3FNUZ || layout->dtype == TSR_F8E5M2FNUZ) {
    return tsr__fail(err, TSR_UNSUPPORTED, f.name, "%s is %s, which is not supported", f.name,
                     tsr_dtype_name(layout->dtype));
  }
  list[0] = 0;
  for (tsr_dtype t = TSR_F32; t <= TSR_I64; t++) {
    if ((allowed & TSR__DTYPE_BIT(t)) != 0) {
      const char *comma = at == 0 ? "" : (allowed >> t) == 1 ? " or " : ", ";
      at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", comma, tsr_dtype_name(t));
    }
  }
  return tsr__invalid(err, f.name, "is %s, must be %s", tsr_dtype_name(layout->dtype), list);
}

tsr_status tsr__check_shape(const tsr_layout *layout, const char *name, const tsr__extent want[4], tsr_error *err) {
  for (int a = 0; a < 4; a++) {
    const int64_t n = layout->shape[a];
    const tsr__field f = tsr__field_axis(name, "shape", a);
    if (want[a].what == NULL || n == want[a].n || (n == 1 && want[a].one)) {
      continue;
    }
    if (want[a].what[0] == 0) {
      return tsr__invalid(err, f.name, "is %lld, must be %lld", (long long)n, (long long)want[a].n);
    }
    return tsr__invalid(err, f.name, "is %lld, must be %s = %lld%s", (long long)n, want[a].what, (long long)want[a].n,
                        want[a].one ? " or 1" : "");
  }
  return TSR_OK;
}

tsr_status tsr__check_same_shape(const tsr_layout *layout, const char *name, const tsr_layout *other,
                                 const char *other_name, tsr_error *err) {
  for (int a = 0; a < 4; a++) {
    if (layout->shape[a] != other->shape[a]) {
      const tsr__field f = tsr__field_axis(name, "shape", a);
      return tsr__invalid(err, f.name, "is %lld, must be %s.shape[%d] = %lld", (long long)layout->shape[a], other_name,
                          a, (long long)other->shape[a]);
    }
  }
  return TSR_OK;
}
