/* SPDX-License-Identifier: Apache-2.0 */
/* The tile classifier and the iterator against the predicate, exhaustively on small problems: SKIP and FULL must be
 * true of every pair, and no tile with an allowed pair may be stepped over. */
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/tiles.h"
#include "random.h"

enum { B = 2, HQ = 4, HKV = 2, MAX_S = 14 };

typedef struct fixture {
  tsr_attention_desc desc;
  tsr_run_args args;
  float data[B * MAX_S * HQ * 8];
  int32_t len_q[B], len_k[B], prefix[B], seg_q[B * MAX_S], seg_k[B * MAX_S], flash[B * HQ * MAX_S * 4];
  int32_t indptr[MAX_S + 2], indices[MAX_S * MAX_S];
  uint8_t mask[B * HQ * MAX_S * MAX_S];
  const char *scalars[1];
} fixture;

static void add_masks(fixture *f, int64_t sq, int64_t sk) {
  tsr_attention_desc *d = &f->desc;
  tsr_run_args *a = &f->args;
  const int causal = random_int(0, 1) == 1;
  d->flags |= causal ? TSR_CAUSAL : 0;
  d->flags |= random_int(0, 3) == 0 ? TSR_TOP_LEFT : 0;
  if (random_int(0, 2) == 0) {
    d->flags |= TSR_WINDOW;
    d->window_left = random_int(-1, 6);
    d->window_right = random_int(-1, 6);
    d->sink_tokens = random_int(0, 1) * random_int(0, 5);
  }
  if (random_int(0, 3) == 0) {
    d->flags |= TSR_CHUNK;
    d->chunk = random_int(1, 7);
  }
  if (causal && random_int(0, 2) == 0) {
    d->prefix = tsr_layout_dense(TSR_I32, B, 1, 1, 1);
    a->prefix = tsr_buffer_in(f->prefix);
  }
  if (random_int(0, 3) == 0) {
    const int bits = random_int(0, 1) == 1;
    d->mask = tsr_layout_dense(bits ? TSR_BIT : TSR_U8, B, HQ, sq, sk);
    if (bits) {
      d->mask.stride[3] = 1;
      d->mask.stride[2] = (sk + 7) / 8;
      d->mask.stride[1] = d->mask.stride[2] * sq;
      d->mask.stride[0] = d->mask.stride[1] * HQ;
    }
    a->mask = tsr_buffer_in(f->mask);
    for (size_t i = 0; i < sizeof(f->mask); i++) { /* long runs, so that whole tiles are set or clear */
      f->mask[i] = (uint8_t)(i % 23 == 0            ? random_int(0, 255)
                             : i == 0               ? 0
                             : random_int(0, 9) < 9 ? f->mask[i - 1]
                                                    : 255 - f->mask[i - 1]);
    }
  }
  if (random_int(0, 3) == 0) {
    d->segments_q = tsr_layout_dense(TSR_I32, B, sq, 1, 1);
    d->segments_k = tsr_layout_dense(TSR_I32, B, sk, 1, 1);
    a->segments_q = tsr_buffer_in(f->seg_q);
    a->segments_k = tsr_buffer_in(f->seg_k);
    for (int64_t i = 0; i < B * MAX_S; i++) {
      f->seg_q[i] = (int32_t)(i / 5 + random_int(-1, 0));
      f->seg_k[i] = (int32_t)(i / 4 + random_int(-1, 0));
    }
  }
  if (random_int(0, 3) == 0) {
    const int64_t n = causal ? random_int(1, 2) : random_int(1, 2) * 2;
    const int64_t heads = random_int(0, 2) == 0 ? 1 : random_int(0, 1) ? HKV : HQ;
    d->flashmask = tsr_layout_dense(TSR_I32, B, heads, sk, n);
    a->flashmask = tsr_buffer_in(f->flash);
    for (size_t i = 0; i < sizeof(f->flash) / sizeof(f->flash[0]); i++) {
      f->flash[i] = (int32_t)random_int(-2, sq + 2);
    }
  }
  if (random_int(0, 3) == 0) {
    const int64_t rows = random_int(1, 5), cols = random_int(1, 5);
    const int64_t n_rows = (sq + rows - 1) / rows, n_cols = (sk + cols - 1) / cols;
    int32_t n = 0;
    d->block_rows = (int32_t)rows;
    d->block_cols = (int32_t)cols;
    for (int64_t r = 0; r < n_rows; r++) {
      f->indptr[r] = n;
      for (int64_t c = 0; c < n_cols; c++) {
        if (random_int(0, 2) != 0) {
          f->indices[n++] = (int32_t)c;
        }
      }
    }
    f->indptr[n_rows] = n;
    d->block_indptr = tsr_layout_dense(TSR_I32, 1, 1, n_rows + 1, 1);
    d->block_indices = tsr_layout_dense(TSR_I32, 1, 1, n > 0 ? n : 1, 1);
    a->block_indptr = tsr_buffer_in(f->indptr);
    a->block_indices = tsr_buffer_in(f->indices);
  }
  if (random_int(0, 5) == 0) {
    static const char *const texts[] = {"i / 3 == j / 3", "j % 4 != 1", "h == 1 || j < 5", "i + off >= j + w"};
    d->mask_expr = texts[random_int(0, 3)];
    f->scalars[0] = "w";
    d->scalar_names = f->scalars;
    d->num_scalars = 1;
    a->scalars[0] = (float)random_int(-3, 3);
  }
}

static void make(fixture *f) {
  const int64_t sq = random_int(1, MAX_S), sk = random_int(1, MAX_S);
  tsr_attention_desc *d = &f->desc;
  memset(f, 0, sizeof(*f));
  *d = tsr_attention_desc_init();
  f->args = tsr_run_args_init();
  d->q = d->o = tsr_layout_dense(TSR_F32, B, sq, HQ, 8);
  d->k = d->v = tsr_layout_dense(TSR_F32, B, sk, HKV, 8);
  f->args.q = f->args.k = f->args.v = tsr_buffer_in(f->data);
  f->args.o = tsr_buffer_out(f->data);
  if (random_int(0, 1)) {
    d->seqlens_q = d->seqlens_k = tsr_layout_dense(TSR_I32, B, 1, 1, 1);
    f->args.seqlens_q = tsr_buffer_in(f->len_q);
    f->args.seqlens_k = tsr_buffer_in(f->len_k);
  }
  for (int b = 0; b < B; b++) {
    f->len_q[b] = (int32_t)random_int(0, sq);
    f->len_k[b] = (int32_t)random_int(0, sk);
    f->prefix[b] = (int32_t)random_int(0, sk);
  }
  add_masks(f, sq, sk);
}

static int allowed(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *s, int h, int64_t i, int64_t j) {
  uint8_t expr = 1;
  if (p->mask_expr != NULL) {
    tsr_expr_lanes lanes = {0};
    lanes.uniform[TSR_EXPR_VAR_B] = s->b;
    lanes.uniform[TSR_EXPR_VAR_H] = h;
    lanes.uniform[TSR_EXPR_VAR_HKV] = h / p->group;
    lanes.uniform[TSR_EXPR_VAR_I] = i;
    lanes.uniform[TSR_EXPR_VAR_J] = j;
    lanes.uniform[TSR_EXPR_VAR_Q_LEN] = s->q_len;
    lanes.uniform[TSR_EXPR_VAR_KV_LEN] = s->kv_len;
    lanes.uniform[TSR_EXPR_VAR_OFF] = s->off;
    tsr__expr_eval_mask(p->mask_expr, &bound->env, &lanes, 1, &expr);
  }
  return expr && tsr_mask_allow(&bound->args, &bound->ptrs, s, h, i, j);
}

/* Counts allowed pairs of a box and checks its class. */
static int64_t check_box(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *s, const tsr__tile_box *box) {
  const int c = tsr__tile_class(p, bound, s, box);
  int64_t n = 0;
  for (int h = box->h0; h < box->h1; h++) {
    for (int64_t i = box->i0; i < box->i1; i++) {
      for (int64_t j = box->j0; j < box->j1; j++) {
        n += allowed(p, bound, s, h, i, j);
      }
    }
  }
  if (c == TSR_TILE_SKIP) {
    assert_int_equal(n, 0);
  }
  if (c == TSR_TILE_FULL) {
    assert_int_equal(n, (box->h1 - box->h0) * (box->i1 - box->i0) * (box->j1 - box->j0));
  }
  return n;
}

static void check_iterator(const tsr__problem *p, const tsr__bound *bound, const tsr_seq *s, const tsr__tile_box *rows,
                           int64_t tile_k) {
  int64_t seen = 0, tiles = 0, all = 0, last = -1;
  tsr__kv_iter it = tsr__kv_first(p, bound, s, rows->h0, rows->h1, rows->i0, rows->i1, 0, s->kv_len, tile_k);
  while (tsr__kv_next(&it)) {
    const tsr__tile_box box = {rows->i0, rows->i1, it.j0, it.j1, rows->h0, rows->h1};
    assert_true(it.j0 > last && it.j0 % tile_k == 0 && it.j1 <= s->kv_len);
    last = it.j0;
    seen += check_box(p, bound, s, &box);
    tiles++;
  }
  for (int64_t j = 0; j < s->kv_len; j += tile_k) {
    const tsr__tile_box box = {rows->i0, rows->i1, j, tsr_min_i64(j + tile_k, s->kv_len), rows->h0, rows->h1};
    all += check_box(p, bound, s, &box);
  }
  assert_int_equal(seen, all);
  assert_int_equal(tiles + it.skipped, rows->i0 < rows->i1 ? (s->kv_len + tile_k - 1) / tile_k : 0);
}

static void classes_agree_with_the_predicate(void **state) {
  fixture *f = malloc(sizeof(*f));
  tsr_error err;
  (void)state;
  for (int round = 0; round < 4000; round++) {
    tsr__problem p;
    tsr__bound bound;
    const int64_t tile_q = random_int(1, 6), tile_k = random_int(1, 6);
    make(f);
    if (tsr__problem_init(NULL, &f->desc, &p, &err) != TSR_OK) {
      fail_msg("%s: %s", err.field, err.text);
    }
    if (tsr__bind(&p, &f->args, 1, 0, 0, 1, &bound, &err) != TSR_OK) {
      fail_msg("%s: %s", err.field, err.text);
    }
    for (int b = 0; b < B; b++) {
      const tsr_seq s = tsr_seq_load(&bound.args, &bound.ptrs, b);
      for (int64_t i = 0; i < s.q_len; i += tile_q) {
        const int h = (int)random_int(0, 1) * 2;
        const tsr__tile_box rows = {i, tsr_min_i64(i + tile_q, s.q_len), 0, 0, h, h + (int)random_int(1, 2)};
        check_iterator(&p, &bound, &s, &rows, tile_k);
      }
    }
    tsr__problem_free(&p);
  }
  free(f);
}

static void counts_agree_with_the_iterator(void **state) {
  fixture *f = malloc(sizeof(*f));
  tsr_error err;
  (void)state;
  for (int round = 0; round < 2000; round++) {
    const int64_t tile_q = random_int(1, 5), tile_k = random_int(1, 5);
    int64_t total, visited, walked = 0;
    tsr__problem p;
    tsr__bound bound;
    tsr_seq s;
    make(f);
    f->desc.seqlens_q = f->desc.seqlens_k = f->desc.prefix = f->desc.mask = f->desc.flashmask = (tsr_layout){0};
    f->desc.segments_q = f->desc.segments_k = f->desc.block_indptr = f->desc.block_indices = (tsr_layout){0};
    f->desc.block_rows = f->desc.block_cols = 0;
    f->desc.mask_expr = NULL;
    f->desc.num_scalars = 0;
    f->desc.scalar_names = NULL;
    f->args.scalars[0] = 0.0f;
    f->args.seqlens_q = f->args.seqlens_k = f->args.prefix = f->args.mask = f->args.flashmask = (tsr_buffer){0};
    f->args.segments_q = f->args.segments_k = f->args.block_indptr = f->args.block_indices = (tsr_buffer){0};
    if (tsr__problem_init(NULL, &f->desc, &p, &err) != TSR_OK ||
        tsr__bind(&p, &f->args, 1, 0, 0, 1, &bound, &err) != TSR_OK) {
      fail_msg("%s: %s", err.field, err.text);
    }
    tsr__tiles_count(&p, tile_q, tile_k, &total, &visited);
    s = tsr_seq_load(&bound.args, &bound.ptrs, 0);
    for (int64_t i = 0; i < s.q_len; i += tile_q) {
      tsr__kv_iter it = tsr__kv_first(&p, &bound, &s, 0, 1, i, tsr_min_i64(i + tile_q, s.q_len), 0, s.kv_len, tile_k);
      while (tsr__kv_next(&it)) {
        walked++;
      }
    }
    assert_true(visited >= walked * B * HQ && visited <= total); /* the count looks at one rule at a time */
    if (!(f->desc.flags & TSR_CHUNK) && (!(f->desc.flags & TSR_WINDOW) || f->desc.sink_tokens == 0) &&
        !((f->desc.flags & TSR_CAUSAL) && (f->desc.flags & TSR_WINDOW))) {
      assert_int_equal(visited, walked * B * HQ);
    }
    tsr__problem_free(&p);
  }
  free(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(classes_agree_with_the_predicate),
      cmocka_unit_test(counts_agree_with_the_iterator),
  };
  random_seed();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
