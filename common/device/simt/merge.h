/* SPDX-License-Identifier: Apache-2.0 */
/* Merge: joins partial results by their LSE, left to right, up to TSR_MERGE_FAN of them a launch. A team of 32 threads
 * a row; items: ceil(rows / (TSR_K_THREADS / 32)). */
#ifndef TSR_SIMT_MERGE_H
#define TSR_SIMT_MERGE_H

#define TSR_TEAM 32
#define TSR_TEAMS (TSR_K_THREADS / TSR_TEAM)
#define TSR_EACH 18 /* channels of a thread: 576 / 32 */
#define TSR_AT(type, ptr, offset) ((TSR_GLOBAL type *)((TSR_GLOBAL tsr_u8 *)(ptr) + (offset)))
#define TSR_CAT(type, ptr, offset) ((TSR_GLOBAL const type *)((TSR_GLOBAL const tsr_u8 *)(ptr) + (offset)))

/* What the fold of a row has so far: m the largest LSE, l the sum of exp(LSE - m), o that of exp(LSE - m) O. Not a
 * chain of normalised pairs, whose LSE would be rounded at every step. */
typedef struct tsr_fold {
  float m; /* -inf: nothing yet */
  float l;
  tsr_i32 terms;               /* partials that were not empty, and the sink: 0, 1, or 2 for more */
  TSR_GLOBAL const void *only; /* the first that was not empty, if it is of this launch */
  float o[TSR_EACH];
} tsr_fold;

/* Where a row is. */
typedef struct tsr_merge_row {
  tsr_i64 row, from, lse_from, to, lse_to;
  tsr_i32 lane, head;
} tsr_merge_row;

/* Makes room for a term of this LSE; returns its weight. */
TSR_FN float tsr_fold_weight(tsr_fold *f, float lse) {
  float old;
  int n;
  if (lse <= f->m) {
    return tsr_exp(lse - f->m);
  }
  old = tsr_exp(f->m - lse); /* NaN if either is */
  f->m = lse;
  f->l *= old;
  TSR_UNROLL
  for (n = 0; n < TSR_EACH; n++) {
    f->o[n] *= old;
  }
  return old == old ? 1.0f : old;
}

/* Every bit of the one partial that is not empty. */
TSR_FN void tsr_merge_copy(const tsr_merge_kernel_args *a, const tsr_merge_row *r, TSR_GLOBAL const void *from,
                           TSR_GLOBAL void *to) {
  tsr_i32 c;
  for (c = r->lane; c < a->channels; c += TSR_TEAM) {
    const tsr_i64 i = r->to + c * a->o.stride[3], j = r->from + c * a->partial_o.stride[3];
    if (a->o_type == TSR_T_F32) {
      ((TSR_GLOBAL tsr_u32 *)to)[i] = ((TSR_GLOBAL const tsr_u32 *)from)[j];
    } else {
      ((TSR_GLOBAL tsr_u16 *)to)[i] = ((TSR_GLOBAL const tsr_u16 *)from)[j];
    }
  }
}

/* Folds one partial. */
TSR_FN void tsr_fold_partial(const tsr_merge_kernel_args *a, const tsr_merge_row *r, TSR_GLOBAL const void *o,
                             TSR_GLOBAL const void *lse_list, tsr_fold *f) {
  const float lse = ((TSR_GLOBAL const float *)lse_list)[r->lse_from];
  float weight;
  int first, k;
  if (lse == -TSR_INF) {
    return; /* empty: its O is not read */
  }
  first = f->terms == 0;
  weight = tsr_fold_weight(f, lse);
  f->l += weight;
  f->terms = first ? 1 : 2;
  f->only = first ? o : f->only;
  TSR_UNROLL
  for (k = 0; k < TSR_EACH; k++) {
    const tsr_i32 c = k * TSR_TEAM + r->lane;
    if (c < a->channels) {
      const float x = tsr_load(o, a->partial_type, r->from + c * a->partial_o.stride[3]);
      f->o[k] = first ? weight * x : tsr_fma(weight, x, f->o[k]);
    }
  }
}

/* The state of earlier launches, or of none: four words for even steps, four for odd ones (a team's threads all read
 * what one of them is to replace), then O. */
TSR_FN void tsr_fold_begin(const tsr_merge_kernel_args *a, const tsr_merge_row *r, TSR_GLOBAL const float *state,
                           tsr_fold *f) {
  TSR_GLOBAL const float *words = state + (a->step & 1) * 4;
  int k;
  f->only = 0;
  f->m = a->step == 0 ? -TSR_INF : words[0];
  f->l = a->step == 0 ? 0.0f : words[1];
  f->terms = a->step == 0 ? 0 : (tsr_i32)words[2];
  TSR_UNROLL
  for (k = 0; k < TSR_EACH; k++) {
    const tsr_i32 c = k * TSR_TEAM + r->lane;
    f->o[k] = a->step != 0 && c < a->channels ? state[8 + c] : 0.0f;
  }
}

TSR_FN void tsr_fold_keep(const tsr_merge_kernel_args *a, const tsr_merge_row *r, const tsr_fold *f,
                          TSR_GLOBAL float *state) {
  int k;
  if (r->lane == 0) {
    TSR_GLOBAL float *words = state + (~a->step & 1) * 4;
    words[0] = f->m;
    words[1] = f->l;
    words[2] = (float)f->terms;
  }
  TSR_UNROLL
  for (k = 0; k < TSR_EACH; k++) {
    const tsr_i32 c = k * TSR_TEAM + r->lane;
    if (c < a->channels) {
      state[8 + c] = f->o[k];
    }
  }
}

TSR_FN void tsr_fold_finish(const tsr_merge_kernel_args *a, const tsr_merge_row *r, const tsr_fold *f,
                            TSR_GLOBAL void *o, TSR_GLOBAL float *lse) {
  int k;
  if (f->terms != 1 || a->partial_type != a->o_type) {
    TSR_UNROLL
    for (k = 0; k < TSR_EACH; k++) {
      const tsr_i32 c = k * TSR_TEAM + r->lane;
      if (c < a->channels) {
        tsr_store(o, a->o_type, r->to + c * a->o.stride[3], f->m == -TSR_INF ? 0.0f : f->o[k] / f->l);
      }
    }
  }
  if (lse != 0 && r->lane == 0) {
    lse[r->lse_to] = f->m == -TSR_INF ? f->m : f->m + tsr_log(f->l);
  }
}

/* Partial n's tensor, by constant indices alone: `list`0 .. `list`7 and their byte offsets. */
#define TSR_PICK_ONE(list, bytes, k) TSR_CAT(void, list##k, bytes[k])
#define TSR_PICK(n, list, bytes)             \
  ((n) == 0   ? TSR_PICK_ONE(list, bytes, 0) \
   : (n) == 1 ? TSR_PICK_ONE(list, bytes, 1) \
   : (n) == 2 ? TSR_PICK_ONE(list, bytes, 2) \
   : (n) == 3 ? TSR_PICK_ONE(list, bytes, 3) \
   : (n) == 4 ? TSR_PICK_ONE(list, bytes, 4) \
   : (n) == 5 ? TSR_PICK_ONE(list, bytes, 5) \
   : (n) == 6 ? TSR_PICK_ONE(list, bytes, 6) \
              : TSR_PICK_ONE(list, bytes, 7))

TSR_KERNEL(TSR_K_THREADS) tsr_merge(TSR_PARAMS_MERGE(TSR_CACHE_PARAM) const tsr_merge_kernel_args a) {
  TSR_GLOBAL void *result = TSR_AT(void, o, a.o.offset_bytes);
  tsr_merge_row r;
  tsr_fold f;
  tsr_i64 w;
  tsr_i32 n;
  r.lane = TSR_THREAD() % TSR_TEAM;
  for (w = TSR_GROUP() * TSR_TEAMS + TSR_THREAD() / TSR_TEAM; w < a.rows; w += TSR_GROUPS() * TSR_TEAMS) {
    TSR_GLOBAL float *state = TSR_AT(float, workspace, a.workspace) + w * (8 + (tsr_i64)a.channels);
    const tsr_i64 b = w / ((tsr_i64)a.seqlen * a.heads), s = w / a.heads % a.seqlen;
    r.row = w;
    r.head = (tsr_i32)(w % a.heads);
    r.from = b * a.partial_o.stride[0] + s * a.partial_o.stride[1] + r.head * a.partial_o.stride[2];
    r.to = b * a.o.stride[0] + s * a.o.stride[1] + r.head * a.o.stride[2];
    r.lse_from = b * a.partial_lse.stride[0] + r.head * a.partial_lse.stride[1] + s * a.partial_lse.stride[2];
    r.lse_to = b * a.lse.stride[0] + r.head * a.lse.stride[1] + s * a.lse.stride[2];
    tsr_fold_begin(&a, &r, state, &f);
    TSR_LOOP
    for (n = 0; n < a.count; n++) {
      tsr_fold_partial(&a, &r, TSR_PICK(n, o, a.partial_o_bytes), TSR_PICK(n, lse, a.partial_lse_bytes), &f);
    }
    /* The first that is not empty stays in the result if it remains the only one. */
    if (f.only != 0 && f.terms == 1 && a.partial_type == a.o_type) {
      tsr_merge_copy(&a, &r, f.only, result);
    }
    if (!a.last) {
      tsr_fold_keep(&a, &r, &f, state);
    } else {
      if (sink != 0) { /* adds to the denominator alone */
        const float z = TSR_CAT(float, sink, a.sink.offset_bytes)[r.head * a.sink.stride];
        if (z != -TSR_INF) {
          f.l += tsr_fold_weight(&f, z);
          f.terms = 2;
        }
      }
      tsr_fold_finish(&a, &r, &f, result, lse != 0 ? TSR_AT(float, lse, a.lse.offset_bytes) : 0);
    }
  }
}

#endif
