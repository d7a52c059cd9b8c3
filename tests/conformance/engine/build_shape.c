/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of the sequences, where they lie, page tables. */
#include <stdlib.h>
#include <string.h>

#include "build.h"

static int has(const conf_problem *p, int item) {
  return conf_has(&p->c.items, item);
}

/* ---- Lengths --------------------------------------------------------------------------------- */

/* Shortest length that is drawn; zero_q and zero_kv have empty ones. The tolerance rule is relative to the largest
 * value of a head, which must not be small by chance: in backward gradients of a sequence of a few rows or keys nearly
 * cancel, and where there is a channel or two, so does a row or two of the output. */
static int64_t least_length(const conf_problem *p, int64_t longest, int keys) {
  const int64_t least = p->c.op == TSR_BACKWARD || (!keys && p->c.head_dim_v < 4) ? 16 : 1;
  return least < longest ? least : longest;
}

/* Slots of one side. varies: the arrangement has slots of different lengths; one sequence has the longest. */
static void draw_slots(const conf_problem *p, conf_rng *r, int varies, int keys, int64_t longest, const int64_t *given,
                       int64_t *slot) {
  const int64_t which = conf_range(r, 0, p->c.batch - 1);
  for (int64_t b = 0; b < p->c.batch; b++) {
    slot[b] = !varies || b == which ? longest : conf_range(r, least_length(p, longest, keys), longest);
    if (varies && p->c.num_lens > 0) {
      slot[b] = given[b % p->c.num_lens];
    }
  }
}

/* Used lengths, given a length tensor. */
static void draw_used(const conf_problem *p, conf_rng *r, int slots_given, int keys, const int64_t *given,
                      const int64_t *slot, int64_t *len) {
  const int64_t full = conf_range(r, 0, p->c.batch - 1);
  int64_t least = slot[0];
  for (int64_t b = 0; b < p->c.batch; b++) {
    least = slot[b] < least ? slot[b] : least;
    len[b] = b == full ? slot[b] : conf_range(r, least_length(p, slot[b], keys), slot[b]);
    if (!slots_given && p->c.num_lens > 0) {
      len[b] = given[b % p->c.num_lens];
    }
  }
  for (int64_t b = 0; has(p, CONF_lens_shared) && b < p->c.batch; b++) {
    len[b] = least;
  }
}

/* One sequence becomes empty: its used length, where the case has such lengths, else its slot. */
static void draw_empty(const conf_problem *p, conf_rng *r, int by_used, int64_t *slot, int64_t *len) {
  const int64_t b = conf_range(r, 0, p->c.batch - 1);
  if (!by_used) {
    slot[b] = 0;
  }
  len[b] = 0;
}

int conf_build_lengths(conf_problem *p) {
  const size_t n = (size_t)(p->c.batch > 0 ? p->c.batch : 1);
  conf_rng rq = conf_rng_for(p->c.seed, "q lengths"), rk = conf_rng_for(p->c.seed, "kv lengths");
  const int q_varies = has(p, CONF_q_packed), k_varies = has(p, CONF_kv_packed) || has(p, CONF_kv_csr);
  p->slot_q = calloc(n * 6, sizeof(int64_t));
  if (p->slot_q == NULL) {
    return 0;
  }
  p->slot_k = p->slot_q + n;
  p->len_q = p->slot_q + 2 * n;
  p->len_k = p->slot_q + 3 * n;
  p->first_q = p->slot_q + 4 * n;
  p->first_k = p->slot_q + 5 * n;
  if (p->c.batch == 0) {
    return 1;
  }
  draw_slots(p, &rq, q_varies, 0, p->c.seqlen_q, p->c.q_lens, p->slot_q);
  draw_slots(p, &rk, k_varies, 1, p->c.seqlen_k, p->c.kv_lens, p->slot_k);
  memcpy(p->len_q, p->slot_q, n * sizeof(int64_t));
  memcpy(p->len_k, p->slot_k, n * sizeof(int64_t));
  if (has(p, CONF_seqlens_q)) {
    draw_used(p, &rq, q_varies, 0, p->c.q_lens, p->slot_q, p->len_q);
  }
  if (has(p, CONF_seqlens_k)) {
    draw_used(p, &rk, k_varies, 1, p->c.kv_lens, p->slot_k, p->len_k);
  }
  if (has(p, CONF_zero_q)) {
    draw_empty(p, &rq, has(p, CONF_seqlens_q), p->slot_q, p->len_q);
  }
  if (has(p, CONF_zero_kv)) {
    draw_empty(p, &rk, has(p, CONF_seqlens_k), p->slot_k, p->len_k);
  }
  for (int64_t b = 1; b < p->c.batch; b++) {
    p->first_q[b] = q_varies ? p->first_q[b - 1] + p->slot_q[b - 1] : 0;
    p->first_k[b] = has(p, CONF_kv_packed) ? p->first_k[b - 1] + p->slot_k[b - 1] : 0;
  }
  return 1;
}

void conf_locate_q(const conf_problem *p, int64_t b, int64_t i, int64_t *i0, int64_t *i1) {
  *i0 = has(p, CONF_q_packed) ? 0 : b;
  *i1 = p->first_q[b] + i;
}

void conf_locate_k(const conf_problem *p, int64_t b, int64_t j, int64_t *i0, int64_t *i1) {
  if (p->paged) {
    *i0 = p->pages[b * p->pages_per_seq + j / p->c.page_size];
    *i1 = j % p->c.page_size;
    return;
  }
  *i0 = has(p, CONF_kv_packed) ? 0 : b;
  *i1 = p->first_k[b] + j;
}

/* ---- Tensors of lengths ------------------------------------------------------------------------ */

static int make_cu(conf_problem *p, int id, const int64_t *slot) {
  int64_t sum = 0;
  if (!conf_make_vector(p, id, 0, p->index_dtype, p->batch_plan + 1, 1)) {
    return 0;
  }
  conf_put(&p->t[id], 0, 0, 0, 0, 0.0);
  for (int64_t b = 0; b < p->c.batch; b++) {
    sum += slot[b];
    conf_put(&p->t[id], b + 1, 0, 0, 0, (double)sum);
  }
  return 1;
}

static int make_lengths(conf_problem *p, int id, const int64_t *len) {
  if (has(p, CONF_lens_shared) && p->c.batch > 0) {
    tsr_layout l = tsr_layout_dense(p->index_dtype, 1, 1, 1, 1);
    l.shape[0] = p->batch_plan;
    l.stride[0] = 0;
    if (!conf_tensor_make(p, id, 0, &l, 0)) {
      return 0;
    }
    conf_put(&p->t[id], 0, 0, 0, 0, (double)len[0]);
    return 1;
  }
  if (!conf_make_vector(p, id, 0, p->index_dtype, p->batch_plan, 1)) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    conf_put(&p->t[id], b, 0, 0, 0, (double)len[b]);
  }
  return 1;
}

/* ---- Pages ------------------------------------------------------------------------------------- */

static int64_t pages_of(const conf_problem *p, int64_t keys) {
  return (keys + p->c.page_size - 1) / p->c.page_size;
}

/* A shuffled pool with some pages that nobody has. */
static int deal_pages(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "pages");
  int64_t total = 0, next = 0, *pool;
  p->pages_per_seq = pages_of(p, p->c.seqlen_k) > 0 ? pages_of(p, p->c.seqlen_k) : 1;
  for (int64_t b = 0; b < p->c.batch; b++) {
    total += pages_of(p, p->slot_k[b]);
  }
  p->num_pages = total + 3;
  pool = calloc((size_t)p->num_pages, sizeof(int64_t));
  p->pages = calloc((size_t)((p->c.batch > 0 ? p->c.batch : 1) * p->pages_per_seq), sizeof(int64_t));
  if (pool == NULL || p->pages == NULL) {
    free(pool);
    return 0;
  }
  for (int64_t n = 0; n < p->num_pages; n++) {
    const int64_t at = conf_range(&r, 0, n);
    pool[n] = pool[at];
    pool[at] = n;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t n = 0; n < pages_of(p, p->slot_k[b]); n++) {
      p->pages[b * p->pages_per_seq + n] = pool[next++];
    }
  }
  free(pool);
  return 1;
}

/* Rows wider than needed; entries past a length stay patterns. */
static int make_table(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "table");
  tsr_layout l = tsr_layout_dense(TSR_I32, p->batch_plan, p->pages_per_seq + conf_range(&r, 0, 2), 1, 1);
  l.stride[0] += conf_range(&r, 0, 3);
  if (!conf_tensor_make(p, CONF_T_block_table, 0, &l, 0)) {
    return 0;
  }
  for (int64_t b = 0; b < p->c.batch; b++) {
    for (int64_t n = 0; n < pages_of(p, p->len_k[b]); n++) {
      conf_put(&p->t[CONF_T_block_table], b, n, 0, 0, (double)p->pages[b * p->pages_per_seq + n]);
    }
  }
  return 1;
}

static int make_csr(conf_problem *p) {
  int64_t total = 0;
  if (!conf_make_vector(p, CONF_T_kv_indptr, 0, TSR_I32, p->batch_plan + 1, 1) ||
      !conf_make_vector(p, CONF_T_kv_indices, 0, TSR_I32, p->num_pages + p->pages_per_seq, 1) ||
      !conf_make_vector(p, CONF_T_last_page_len, 0, TSR_I32, p->batch_plan, 1)) {
    return 0;
  }
  conf_put(&p->t[CONF_T_kv_indptr], 0, 0, 0, 0, 0.0);
  for (int64_t b = 0; b < p->c.batch; b++) {
    const int64_t pages = pages_of(p, p->slot_k[b]);
    for (int64_t n = 0; n < pages; n++) {
      conf_put(&p->t[CONF_T_kv_indices], total++, 0, 0, 0, (double)p->pages[b * p->pages_per_seq + n]);
    }
    conf_put(&p->t[CONF_T_kv_indptr], b + 1, 0, 0, 0, (double)total);
    if (pages > 0) { /* else ignored: stays a pattern */
      conf_put(&p->t[CONF_T_last_page_len], b, 0, 0, 0, (double)(p->slot_k[b] - (pages - 1) * p->c.page_size));
    }
  }
  return 1;
}

/* ---- All of it --------------------------------------------------------------------------------- */

/* Tensors with local (i, j) axes need the longest lengths told. */
static int has_local(const conf_problem *p) {
  static const int items[] = {CONF_mask_u8,   CONF_mask_bit,      CONF_mask_rows,    CONF_bias_f32, CONF_bias_f16,
                              CONF_bias_bf16, CONF_fm_c1,         CONF_fm_c2,        CONF_fm_n2,    CONF_fm_n4,
                              CONF_blocks,    CONF_blocks_shared, CONF_dropout_mask, CONF_segments};
  for (size_t n = 0; n < sizeof(items) / sizeof(items[0]); n++) {
    if (has(p, items[n])) {
      return 1;
    }
  }
  return 0;
}

int conf_build_arrangement(conf_problem *p) {
  conf_rng r = conf_rng_for(p->c.seed, "arrangement");
  const int64_t last = p->c.batch - 1;
  int ok = 1;
  if (has(p, CONF_q_packed)) {
    p->desc.max_seqlen_q = has_local(p) || conf_chance(&r, 0.5) ? p->c.seqlen_q : 0;
    p->desc.batch = p->batch_plan;
    p->args.total_q = last < 0 ? 0 : p->first_q[last] + p->slot_q[last];
    ok = make_cu(p, CONF_T_cu_seqlens_q, p->slot_q);
  } else if (conf_chance(&r, 0.3)) {
    p->desc.batch = p->batch_plan;
    p->desc.max_seqlen_q = p->c.seqlen_q;
  }
  if (has(p, CONF_kv_packed)) {
    p->desc.max_seqlen_k = has_local(p) || conf_chance(&r, 0.5) ? p->c.seqlen_k : 0;
    p->args.total_k = last < 0 ? 0 : p->first_k[last] + p->slot_k[last];
    ok = ok && make_cu(p, CONF_T_cu_seqlens_k, p->slot_k);
  }
  if (ok && has(p, CONF_seqlens_q)) {
    ok = make_lengths(p, CONF_T_seqlens_q, p->len_q);
  }
  if (ok && has(p, CONF_seqlens_k)) {
    ok = make_lengths(p, CONF_T_seqlens_k, p->len_k);
  }
  if (ok && p->paged) {
    p->desc.max_seqlen_k = p->c.seqlen_k;
    ok = deal_pages(p) && (has(p, CONF_kv_table) ? make_table(p) : make_csr(p));
  }
  if (has(p, CONF_smaller_run)) {
    p->args.batch = p->c.batch;
  } else if (conf_chance(&r, 0.5)) {
    p->args.total_q = p->args.total_k = 0; /* the plan's: the tail rows are then tokens that no sequence has */
  }
  return ok;
}
