/* SPDX-License-Identifier: Apache-2.0 */
/* What causal, window and chunk say of whole tiles: the class of a tile, and which keys a block of rows can see. A
 * class is sound: SKIP means that no pair is allowed, FULL that every pair is; PARTIAL is always right. */
#ifndef TSR_DEVICE_TILES_H
#define TSR_DEVICE_TILES_H

/* The values of TSR_TILE_*. */
#define TSR_CLASS_SKIP 0
#define TSR_CLASS_PARTIAL 1
#define TSR_CLASS_FULL 2

/* Joins what two rules say of one tile: both must allow a pair. */
TSR_FN int tsr_class_both(int a, int b) {
  return a == TSR_CLASS_SKIP || b == TSR_CLASS_SKIP   ? TSR_CLASS_SKIP
         : a == TSR_CLASS_FULL && b == TSR_CLASS_FULL ? TSR_CLASS_FULL
                                                      : TSR_CLASS_PARTIAL;
}

TSR_FN int tsr_class_of(int any, int all) {
  return all ? TSR_CLASS_FULL : any ? TSR_CLASS_PARTIAL : TSR_CLASS_SKIP;
}

/* Rows [i0, i1) against keys [j0, j1), neither empty. */
TSR_FN int tsr_class_position(const tsr_attn_args *a, const tsr_seq *s, tsr_i64 i0, tsr_i64 i1, tsr_i64 j0,
                              tsr_i64 j1) {
  const tsr_i64 pos0 = i0 + s->off, pos1 = i1 - 1 + s->off;
  const tsr_i64 last = j1 - 1;
  int c = TSR_CLASS_FULL;
  if (TSR_FLAGS(a) & TSR_A_CAUSAL) {
    c = tsr_class_both(c,
                       tsr_class_of(j0 <= tsr_max_i64(pos1, s->prefix - 1), last <= tsr_max_i64(pos0, s->prefix - 1)));
  }
  if (TSR_FLAGS(a) & TSR_A_WINDOW) {
    const int has_sink = j0 < a->sink_tokens, all_sink = last < a->sink_tokens;
    const tsr_i64 first = tsr_max_i64(j0, a->sink_tokens); /* first key that the extents decide */
    const int outside =
        (a->window_left >= 0 && last < pos0 - a->window_left) || (a->window_right >= 0 && j0 > pos1 + a->window_right);
    const int inside = (a->window_left < 0 || first >= pos1 - a->window_left) &&
                       (a->window_right < 0 || last <= pos0 + a->window_right);
    c = tsr_class_both(c, tsr_class_of(has_sink || !outside, all_sink || inside));
  }
  if (TSR_FLAGS(a) & TSR_A_CHUNK) {
    const tsr_i64 q0 = tsr_floor_div(pos0, a->chunk), q1 = tsr_floor_div(pos1, a->chunk);
    const tsr_i64 k0 = tsr_floor_div(j0, a->chunk), k1 = tsr_floor_div(last, a->chunk);
    c = tsr_class_both(c, tsr_class_of(q0 <= k1 && k0 <= q1, q0 == q1 && k0 == k1 && q0 == k0));
  }
  return c;
}

/* Keys that rows at positions [pos0, pos1] can see: [0, sink) and [lo, hi), a superset. */
typedef struct tsr_span {
  tsr_i64 sink, lo, hi;
} tsr_span;

TSR_FN tsr_span tsr_span_visible(const tsr_attn_args *a, tsr_i64 prefix, tsr_i64 pos0, tsr_i64 pos1, tsr_i64 kv_len) {
  tsr_span v;
  v.sink = 0;
  v.lo = 0;
  v.hi = kv_len;
  if (TSR_FLAGS(a) & TSR_A_WINDOW) {
    v.sink = a->sink_tokens;
    if (a->window_left >= 0) {
      v.lo = tsr_max_i64(v.lo, pos0 - a->window_left);
    }
    if (a->window_right >= 0) {
      v.hi = tsr_min_i64(v.hi, pos1 + a->window_right + 1);
    }
  }
  v.hi = tsr_max_i64(v.hi, tsr_min_i64(v.sink, kv_len)); /* one upper end for both pieces */
  if (TSR_FLAGS(a) & TSR_A_CAUSAL) {
    v.hi = tsr_min_i64(v.hi, tsr_max_i64(pos1 + 1, prefix));
  }
  if (TSR_FLAGS(a) & TSR_A_CHUNK) {
    const tsr_i64 start = tsr_floor_div(pos0, a->chunk) * a->chunk;
    v.lo = tsr_max_i64(v.lo, start);
    v.sink = v.sink > start ? v.sink : 0; /* a sink before the chunk is invisible */
    v.hi = tsr_min_i64(v.hi, (tsr_floor_div(pos1, a->chunk) + 1) * a->chunk);
  }
  return v;
}

#endif
