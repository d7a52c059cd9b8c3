/* SPDX-License-Identifier: Apache-2.0 */
/* Append to a KV cache: rotary, then quantisation. An item is one row of K, V or Q of one new token, all its channels;
 * items: tokens x (heads of K + V + Q). Every operation rounds to f32 by itself, as the rules of cache.h say. */
#ifndef TSR_SIMT_APPEND_H
#define TSR_SIMT_APPEND_H

#if defined(__clang__) && !defined(__OPENCL_VERSION__) && !defined(__OPENCL_C_VERSION__)
#pragma clang fp contract(off)
#endif

#define TSR_CHANNELS_MOST 576
#define TSR_ARENA_BYTES (2 * TSR_CHANNELS_MOST * 4)
#define TSR_AT(type, ptr, offset) ((TSR_GLOBAL type *)((TSR_GLOBAL tsr_u8 *)(ptr) + (offset)))
#define TSR_CAT(type, ptr, offset) ((TSR_GLOBAL const type *)((TSR_GLOBAL const tsr_u8 *)(ptr) + (offset)))

/* Where a token is: row `row` of slot `slot` of k_new, v_new, q; key `position` of sequence b. */
typedef struct tsr_token {
  tsr_i64 b, slot, row, position;
  tsr_i64 angle; /* row of cos and sin; -1: not turned */
} tsr_token;

/* One row on its way. */
typedef struct tsr_append_row {
  tsr_append_side side;
  TSR_GLOBAL const void *source;
  TSR_GLOBAL void *target, *scales;
  tsr_i64 from, to, scale; /* elements of channel 0, of the first scale */
  TSR_LOCAL float *x;      /* [channels] */
  TSR_LOCAL float *unit;   /* scales of the row */
  tsr_i32 t, turned;
} tsr_append_row;

/* a / b, rounded once also where the language allows more. */
TSR_FN float tsr_divide(float a, float b) {
  const float q = tsr_f32_div(a, b);
#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
  const float better = q + tsr_fma(-q, b, a) / b;
  return better == better ? better : q;
#else
  return q;
#endif
}

/* x as an element of the type holds it. */
TSR_FN float tsr_round_as(int type, float x) {
  return type == TSR_T_F16    ? tsr_f16_to_f32(tsr_f32_to_f16(x))
         : type == TSR_T_BF16 ? tsr_bf16_to_f32(tsr_f32_to_bf16(x))
                              : x;
}

/* Every bit of an element. */
TSR_FN void tsr_copy_element(TSR_GLOBAL void *to, tsr_i64 i, TSR_GLOBAL const void *from, tsr_i64 j, int type) {
  if (type == TSR_T_F32) {
    ((TSR_GLOBAL tsr_u32 *)to)[i] = ((TSR_GLOBAL const tsr_u32 *)from)[j];
  } else if (type == TSR_T_F16 || type == TSR_T_BF16) {
    ((TSR_GLOBAL tsr_u16 *)to)[i] = ((TSR_GLOBAL const tsr_u16 *)from)[j];
  } else {
    ((TSR_GLOBAL tsr_u8 *)to)[i] = ((TSR_GLOBAL const tsr_u8 *)from)[j];
  }
}

/* ---- Which token ------------------------------------------------------------------------------- */

/* The sequence that row `row` of a packed k_new belongs to; -1: none. */
TSR_FN tsr_i64 tsr_packed_sequence(TSR_GLOBAL const void *cu, const tsr_append_kernel_args *a, tsr_u32 len,
                                   tsr_i64 row) {
  tsr_i64 lo = 0, hi = a->batch; /* the last b with cu[b] <= row */
  if (row >= tsr_len_at(cu, len, a->batch * a->cu_seqlens_new.stride) || row < tsr_len_at(cu, len, 0)) {
    return -1;
  }
  while (hi - lo > 1) {
    const tsr_i64 mid = lo + (hi - lo) / 2;
    if (tsr_len_at(cu, len, mid * a->cu_seqlens_new.stride) <= row) {
      lo = mid;
    } else {
      hi = mid;
    }
  }
  return lo;
}

/* 0: there is no such token. */
TSR_FN int tsr_find_token(const tsr_append_kernel_args *a, TSR_GLOBAL const void *cu, TSR_GLOBAL const void *lengths,
                          TSR_GLOBAL const tsr_i32 *positions, tsr_i64 index, tsr_token *t) {
  const tsr_u32 len = (a->flags & TSR_AP_LEN64) ? TSR_A_LEN64 : 0;
  tsr_i64 first = 0;
  if (a->flags & TSR_AP_PACKED) {
    t->slot = 0;
    t->row = index;
    t->b = tsr_packed_sequence(cu, a, len, index);
    if (t->b < 0) {
      return 0;
    }
    first = tsr_len_at(cu, len, t->b * a->cu_seqlens_new.stride);
  } else {
    t->b = index / a->seqlen_new;
    t->slot = t->b;
    t->row = index % a->seqlen_new;
    if (t->b >= a->batch) {
      return 0;
    }
  }
  t->position = t->row - first;
  if (a->flags & TSR_AP_LENGTHS) {
    t->position += tsr_len_at(lengths, len, t->b * a->seqlens_k.stride);
  }
  t->angle = -1;
  if (a->flags & TSR_AP_ROTARY) {
    t->angle = (a->flags & TSR_AP_POSITIONS)
                   ? positions[t->slot * a->positions.stride[0] + t->row * a->positions.stride[1]]
                   : t->position;
    t->angle = t->angle >= 0 && t->angle < a->num_positions ? t->angle : -1;
  }
  return 1;
}

/* Axes 0 and 1 of the token's place in the caches; 0: it has none (no room, no such page). */
TSR_FN int tsr_cache_place(const tsr_append_kernel_args *a, TSR_GLOBAL const tsr_i32 *table, const tsr_token *t,
                           tsr_i64 *i0, tsr_i64 *i1) {
  *i0 = t->b;
  *i1 = t->position;
  if (t->position < 0 || t->position >= a->capacity) {
    return 0;
  }
  if (a->flags & TSR_AP_PAGED) {
    const tsr_i64 page = t->position / a->page_size;
    *i0 = table[t->b * a->block_table.stride[0] + page * a->block_table.stride[1]];
    *i1 = t->position - page * a->page_size;
    return *i0 >= 0 && *i0 < a->num_pages;
  }
  return 1;
}

/* ---- Rows -------------------------------------------------------------------------------------- */

/* Turns the first rotary_dim channels; results are rounded to the row's type. */
TSR_FN void tsr_rotate(const tsr_append_kernel_args *a, const tsr_append_row *r, TSR_GLOBAL const float *cosine,
                       TSR_GLOBAL const float *sine) {
  const tsr_i32 half_dim = a->rotary_dim / 2;
  const tsr_i32 step = (a->flags & TSR_AP_PAIRS) ? 2 : 1, other = (a->flags & TSR_AP_PAIRS) ? 1 : half_dim;
  tsr_i32 n;
  for (n = r->t; n < half_dim; n += TSR_K_THREADS) {
    const float c = cosine[n * a->cos.stride[1]], s = sine[n * a->sin.stride[1]];
    const float x = r->x[n * step], y = r->x[n * step + other];
    const float x_cos = tsr_f32_mul(x, c), x_sin = tsr_f32_mul(x, s);
    const float y_cos = tsr_f32_mul(y, c), y_sin = tsr_f32_mul(y, s);
    r->x[n * step] = tsr_round_as(r->side.from_type, tsr_f32_sub(x_cos, y_sin));
    r->x[n * step + other] = tsr_round_as(r->side.from_type, tsr_f32_add(x_sin, y_cos));
  }
}

/* Stores without a scale: what was turned, or converted to fp8; the rest as it is, every bit of a NaN too. */
TSR_FN void tsr_append_plain(const tsr_append_row *r) {
  const tsr_append_side *s = &r->side;
  const tsr_i32 fresh = s->from_type != s->to_type ? s->channels : r->turned;
  tsr_i32 c;
  for (c = r->t; c < s->channels; c += TSR_K_THREADS) {
    const tsr_i64 to = r->to + c * s->to.stride[3];
    if (c < fresh) {
      tsr_store(r->target, s->to_type, to, r->x[c]);
    } else {
      tsr_copy_element(r->target, to, r->source, r->from + c * s->from.stride[3], s->to_type);
    }
  }
}

TSR_FN float tsr_largest_code(int type) {
  return type == TSR_T_I8 ? 127.0f : type == TSR_T_U4 ? 7.0f : type == TSR_T_F8E4M3 ? 448.0f : 57344.0f;
}

/* The scales of a row, as the scale tensor holds them: read, or computed and written. */
TSR_FN void tsr_append_scales(const tsr_append_row *r, int fixed) {
  const tsr_append_side *s = &r->side;
  tsr_i32 g, c;
  for (g = r->t; g < s->channels / s->group; g += TSR_K_THREADS) {
    const tsr_i64 at = r->scale + g * s->scale.stride[3];
    float most = 0.0f;
    if (fixed) {
      r->unit[g] = tsr_load(r->scales, s->scale_type, at);
    } else {
      for (c = g * s->group; c < (g + 1) * s->group; c++) {
        const float x = r->x[c] < 0.0f ? -r->x[c] : r->x[c];
        most = x > most ? x : most;
      }
      most = tsr_round_as(s->scale_type, tsr_divide(most, tsr_largest_code(s->to_type)));
      most = most == 0.0f ? 1.0f : most;
      tsr_store(r->scales, s->scale_type, at, most);
      r->unit[g] = most;
    }
  }
}

/* 4-bit code of x, zero point 8. */
TSR_FN tsr_u32 tsr_code_u4(float x) {
  const float n = tsr_rint(x);
  return x != x ? 0u : (tsr_u32)((n < -8.0f ? -8.0f : n > 7.0f ? 7.0f : n) + 8.0f);
}

TSR_FN tsr_i32 tsr_code_i8(float x) {
  return x != x ? 0 : (tsr_i32)tsr_rint(x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x);
}

TSR_FN void tsr_append_codes(const tsr_append_row *r) {
  const tsr_append_side *s = &r->side;
  tsr_i32 c;
  if (s->to_type == TSR_T_U4) { /* strides are even: a byte belongs to one row */
    for (c = 2 * r->t; c + 1 < s->channels; c += 2 * TSR_K_THREADS) {
      const tsr_u32 low = tsr_code_u4(tsr_divide(r->x[c], r->unit[c / s->group]));
      const tsr_u32 high = tsr_code_u4(tsr_divide(r->x[c + 1], r->unit[(c + 1) / s->group]));
      ((TSR_GLOBAL tsr_u8 *)r->target)[(r->to + c) >> 1] = (tsr_u8)(low | high << 4);
    }
    return;
  }
  for (c = r->t; c < s->channels; c += TSR_K_THREADS) {
    const float x = tsr_divide(r->x[c], r->unit[c / s->group]);
    const tsr_i64 to = r->to + c * s->to.stride[3];
    if (s->to_type == TSR_T_I8) {
      ((TSR_GLOBAL tsr_u8 *)r->target)[to] = (tsr_u8)tsr_code_i8(x);
    } else {
      tsr_store(r->target, s->to_type, to, x);
    }
  }
}

/* ---- An item ----------------------------------------------------------------------------------- */

#define TSR_X_MEMBER(type, name) TSR_GLOBAL type *name;
#define TSR_X_COPY(type, name) p.name = name;

typedef struct tsr_append_ptrs {
  TSR_PARAMS_APPEND(TSR_X_MEMBER)
} tsr_append_ptrs;

/* Whose row it is: h of K, V and Q, one after the other. 1: it goes to a cache. */
TSR_FN int tsr_append_side_of(const tsr_append_kernel_args *a, const tsr_append_ptrs *p, tsr_i32 *h,
                              tsr_append_row *r) {
  if (*h < a->k.heads) {
    r->side = a->k;
    r->source = TSR_CAT(void, p->k_new, a->k.from.offset_bytes);
    r->target = TSR_AT(void, p->k_cache, a->k.to.offset_bytes);
    r->scales = TSR_AT(void, p->k_scale, a->k.scale.offset_bytes);
  } else if (*h < a->k.heads + a->v.heads) {
    *h -= a->k.heads;
    r->side = a->v;
    r->source = TSR_CAT(void, p->v_new, a->v.from.offset_bytes);
    r->target = TSR_AT(void, p->v_cache, a->v.to.offset_bytes);
    r->scales = TSR_AT(void, p->v_scale, a->v.scale.offset_bytes);
  } else {
    *h -= a->k.heads + a->v.heads;
    r->side = a->q;
    r->source = TSR_CAT(void, p->q, a->q.from.offset_bytes);
    r->target = TSR_AT(void, p->q_out, a->q.to.offset_bytes);
    r->scales = 0;
    return 0;
  }
  return 1;
}

/* Finds an item's token and row; 0: there is none, or no place for it. */
TSR_FN int tsr_append_row_at(const tsr_append_kernel_args *a, const tsr_append_ptrs *p, tsr_i64 item, tsr_token *t,
                             tsr_append_row *r) {
  const tsr_i64 rows = (tsr_i64)a->k.heads + a->v.heads + a->q.heads;
  tsr_i32 h = (tsr_i32)(item % rows);
  tsr_i64 i0, i1;
  int cached;
  if (!tsr_find_token(a, TSR_CAT(void, p->cu_seqlens_new, a->cu_seqlens_new.offset_bytes),
                      TSR_CAT(void, p->seqlens_k, a->seqlens_k.offset_bytes),
                      TSR_CAT(tsr_i32, p->positions, a->positions.offset_bytes), item / rows, t)) {
    return 0;
  }
  cached = tsr_append_side_of(a, p, &h, r);
  i0 = t->slot;
  i1 = t->row;
  if (cached && !tsr_cache_place(a, TSR_CAT(tsr_i32, p->block_table, a->block_table.offset_bytes), t, &i0, &i1)) {
    return 0;
  }
  r->from = t->slot * r->side.from.stride[0] + t->row * r->side.from.stride[1] + h * r->side.from.stride[2];
  r->to = i0 * r->side.to.stride[0] + i1 * r->side.to.stride[1] + h * r->side.to.stride[2];
  r->scale = i0 * r->side.scale.stride[0] + i1 * r->side.scale.stride[1] + h * r->side.scale.stride[2];
  r->turned = 0;
  return 1;
}

/* Rows that lie where they go (q_out may be q) are read before they are written. */
TSR_FN void tsr_append_one(const tsr_append_kernel_args *a, const tsr_append_ptrs *p, const tsr_token *t,
                           tsr_append_row *r) {
  tsr_i32 c;
  for (c = r->t; c < r->side.channels; c += TSR_K_THREADS) {
    r->x[c] = tsr_load(r->source, r->side.from_type, r->from + c * r->side.from.stride[3]);
  }
  TSR_BARRIER();
  if (r->side.turned && t->angle >= 0) {
    tsr_rotate(a, r, TSR_CAT(float, p->cos, a->cos.offset_bytes) + t->angle * a->cos.stride[0],
               TSR_CAT(float, p->sin, a->sin.offset_bytes) + t->angle * a->sin.stride[0]);
    r->turned = a->rotary_dim;
    TSR_BARRIER();
  }
  if (r->side.group != 0) {
    tsr_append_scales(r, (a->flags & TSR_AP_FIXED) != 0);
    TSR_BARRIER();
    tsr_append_codes(r);
  } else {
    tsr_append_plain(r);
  }
  TSR_BARRIER();
}

TSR_KERNEL(TSR_K_THREADS) tsr_append(TSR_PARAMS_APPEND(TSR_CACHE_PARAM) const tsr_append_kernel_args a) {
  TSR_ARENA(arena, TSR_ARENA_BYTES);
  const tsr_i64 items = a.tokens * ((tsr_i64)a.k.heads + a.v.heads + a.q.heads);
  /* Which side of the arguments a row takes is known at run time alone, and NVRTC 13.0 reads wrong members where that
   * makes the address of a kernel parameter variable: so from a copy. */
  tsr_append_kernel_args args = a;
  tsr_append_ptrs p;
  tsr_append_row r;
  tsr_token token;
  tsr_i64 w;
  TSR_PARAMS_APPEND(TSR_X_COPY)
  r.x = (TSR_LOCAL float *)arena;
  r.unit = r.x + TSR_CHANNELS_MOST;
  r.t = TSR_THREAD();
  r.scales = 0;
  TSR_KEEP_PRIVATE(&args);
  for (w = TSR_GROUP(); w < items; w += TSR_GROUPS()) {
    if (tsr_append_row_at(&args, &p, w, &token, &r)) {
      tsr_append_one(&args, &p, &token, &r);
    }
  }
}

#endif
