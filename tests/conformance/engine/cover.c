/* SPDX-License-Identifier: Apache-2.0 */
/* Cases from the list of items: each alone, every pair (a greedy covering array), random ones. */
#include <stdio.h>
#include <string.h>

#include "runner.h"

enum { MAX_ITEMS = 24, MAX_MASKS = 5, MAX_MASKS_BACKWARD = 3, TRIES = 16, SMALL_WORK = 6000000 };

/* Items that a case of an operation may have. */
static conf_set universe_of(int op) {
  return conf_set_of_flags(0, op == TSR_BACKWARD ? CONF_FORWARD_ONLY | CONF_FORWARD_PART : CONF_BACKWARD_PART);
}

/* Too much for a small problem to show anything. */
static int crowded(int op, const conf_set *s) {
  static const int bias[] = {CONF_bias_b1, CONF_bias_h1, CONF_bias_q1, CONF_bias_k1};
  static const int mask[] = {CONF_mask_b1, CONF_mask_h1, CONF_mask_q1, CONF_mask_k1};
  int masks = 0, broadcast_bias = 0, broadcast_mask = 0;
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    masks += conf_has(s, n) && (conf_items[n].flags & CONF_MASKS) != 0;
  }
  for (int n = 0; n < 4; n++) {
    broadcast_bias += conf_has(s, bias[n]);
    broadcast_mask += conf_has(s, mask[n]);
  }
  return conf_count(s) > MAX_ITEMS || masks > (op == TSR_BACKWARD ? MAX_MASKS_BACKWARD : MAX_MASKS) ||
         broadcast_bias > 2 || broadcast_mask > 2;
}

/* Data that the plain mode is no yardstick for. A bias of -65504 for all keys of a row: f32 rounds the logits to
 * multiples of 2^-8. Backward: logits of 1e5 make each row see one key, whose ds is a difference of equals; a constant
 * k makes dq a sum of ds, which is 0; a bias of -65504 leaves an LSE that rounding keeps from being the logit. Forward:
 * with a constant k, dequantised by scales that are no powers of two, the plain mode makes the same rounding error for
 * every key, and the softmax cancels it. */
static int comparable(int op, const conf_set *s) {
  static const int codes[] = {CONF_kv_i8, CONF_kv_u4, CONF_kv_f8e4m3, CONF_kv_f8e5m2, CONF_f8e4m3, CONF_f8e5m2};
  const int low = conf_has(s, CONF_bias_lowest) && conf_has(s, CONF_bias_f16);
  int quantised = 0;
  for (int n = 0; n < (int)(sizeof(codes) / sizeof(codes[0])); n++) {
    quantised |= conf_has(s, codes[n]);
  }
  return op == TSR_FORWARD ? !(low && conf_has(s, CONF_bias_k1)) && !(quantised && conf_has(s, CONF_data_constant))
                           : !low && !conf_has(s, CONF_data_large) && !conf_has(s, CONF_data_constant);
}

/* The set with one more item and what that needs, if there is such a set. */
static int widen(int op, const conf_rules *rules, const conf_set *universe, uint64_t pick, const conf_set *set,
                 int item, conf_set *wider) {
  *wider = *set;
  conf_add(wider, item);
  return conf_has(universe, item) && conf_set_consistent(rules, wider) &&
         conf_set_close(rules, universe, pick, wider) && comparable(op, wider);
}

static const double rounding_wanted = 0.4;

void conf_case_draw_seed(conf_case *c, conf_rng *r) {
  double least = HUGE_VAL;
  conf_case best = *c;
  for (int n = 0; n < TRIES && least > rounding_wanted; n++) {
    c->seed = conf_next(r) >> 16;
    const double rounding = conf_case_work(c) > SMALL_WORK * 10.0 ? 0.0 : conf_case_rounding(c, least);
    if (n == 0 || rounding < least) {
      least = rounding;
      best = *c;
    }
  }
  *c = best;
}

/* Halves lengths, batch and heads until the case is no more work than that. */
static void limit_work(conf_case *c, double max_work) {
  const int least = conf_has(&c->items, CONF_zero_q) || conf_has(&c->items, CONF_zero_kv) ? 2 : 1;
  while (conf_case_work(c) > max_work) {
    if (c->batch > least) {
      c->batch--;
    } else if (c->seqlen_q > 8 && !conf_has(&c->items, CONF_long_q)) {
      c->seqlen_q -= c->seqlen_q / 4;
    } else if (c->seqlen_k > 8) {
      c->seqlen_k -= c->seqlen_k / 4;
      c->seqlen_q -= c->seqlen_q / 4;
      if (conf_has(&c->items, CONF_long_q) && c->seqlen_q <= c->seqlen_k) {
        c->seqlen_q = c->seqlen_k + 1;
      }
    } else {
      return;
    }
  }
}

/* Sizes and seed. */
static void draw_all(conf_case *c, uint64_t seed) {
  conf_rng r = conf_rng_for(seed, c->name);
  conf_case best = *c;
  double least = HUGE_VAL;
  for (int n = 0; n < TRIES && least > rounding_wanted; n++) {
    c->seed = conf_next(&r) >> 16;
    conf_case_draw_sizes(c, &r);
    limit_work(c, c->max_work);
    const double rounding = conf_case_rounding(c, least);
    if (n == 0 || rounding < least) {
      least = rounding;
      best = *c;
    }
  }
  *c = best;
}

void conf_case_draw(conf_case *c, uint64_t seed) {
  if (c->undrawn == CONF_UNDRAWN_SIZES) {
    draw_all(c, seed);
  } else if (c->undrawn == CONF_UNDRAWN_SEED) {
    conf_rng r = conf_rng_for(seed, c->name);
    conf_case_draw_seed(c, &r);
  }
  c->undrawn = CONF_UNDRAWN_NOTHING;
}

/* A case of the items. */
static void emit(int op, const conf_set *items, double max_work, const char *name, conf_each *each, void *user) {
  conf_case c = conf_case_init();
  c.op = op;
  c.items = *items;
  c.undrawn = CONF_UNDRAWN_SIZES;
  c.max_work = max_work;
  conf_set_complete(&c.items);
  snprintf(c.name, sizeof(c.name), "%s", name);
  each(user, &c);
}

/* ---- Alone ----------------------------------------------------------------------------------------- */

void conf_cover_items(const conf_rules *rules, int op, uint64_t seed, conf_each *each, void *user) {
  const conf_set universe = universe_of(op);
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    conf_set set = {{0, 0}};
    char name[64];
    conf_rng r = conf_rng_for(seed, conf_items[n].name);
    snprintf(name, sizeof(name), "alone %s%s", conf_items[n].name, op == TSR_BACKWARD ? " backward" : "");
    if (widen(op, rules, &universe, conf_next(&r), &set, n, &set)) {
      emit(op, &set, SMALL_WORK, name, each, user);
    }
  }
}

/* ---- Pairs ----------------------------------------------------------------------------------------- */

typedef struct pairs {
  conf_set todo[CONF_ITEM_COUNT]; /* both ways */
  int left;
} pairs;

static int64_t new_pairs(const pairs *p, const conf_set *set) {
  int64_t n = 0;
  for (int a = 0; a < CONF_ITEM_COUNT; a++) {
    if (conf_has(set, a)) {
      n += __builtin_popcountll(p->todo[a].w[0] & set->w[0]) + __builtin_popcountll(p->todo[a].w[1] & set->w[1]);
    }
  }
  return n / 2;
}

static void strike(pairs *p, const conf_set *set) {
  p->left -= (int)new_pairs(p, set);
  for (int a = 0; a < CONF_ITEM_COUNT; a++) {
    if (conf_has(set, a)) {
      p->todo[a].w[0] &= ~set->w[0];
      p->todo[a].w[1] &= ~set->w[1];
    }
  }
}

static int widen_pair(int op, const conf_rules *rules, const conf_set *universe, conf_rng *r, int a, int b,
                      conf_set *set) {
  for (int n = 0; n < TRIES; n++) {
    const conf_set none = {{0, 0}};
    conf_set one = none;
    conf_add(&one, a);
    if (widen(op, rules, universe, conf_next(r), &one, b, set)) {
      return 1;
    }
  }
  return 0;
}

static void find_pairs(int op, const conf_rules *rules, const conf_set *universe, conf_rng *r, pairs *p) {
  memset(p, 0, sizeof(*p));
  for (int a = 0; a < CONF_ITEM_COUNT; a++) {
    for (int b = a + 1; b < CONF_ITEM_COUNT; b++) {
      conf_set set;
      if (conf_has(universe, a) && conf_has(universe, b) && widen_pair(op, rules, universe, r, a, b, &set)) {
        conf_add(&p->todo[a], b);
        conf_add(&p->todo[b], a);
        p->left++;
      }
    }
  }
}

/* The set, made wider as long as that covers more pairs. */
static void grow(int op, const conf_rules *rules, const conf_set *universe, const pairs *p, conf_rng *r,
                 conf_set *set) {
  for (;;) {
    conf_set best = *set, complete = *set;
    int64_t most;
    conf_set_complete(&complete);
    most = new_pairs(p, &complete);
    for (int n = 0; n < CONF_ITEM_COUNT; n++) {
      conf_set wider;
      if (conf_has(set, n) || !widen(op, rules, universe, conf_next(r), set, n, &wider) || crowded(op, &wider)) {
        continue;
      }
      complete = wider;
      conf_set_complete(&complete);
      const int64_t covered = new_pairs(p, &complete);
      if (covered > most) {
        most = covered;
        best = wider;
      }
    }
    if (memcmp(&best, set, sizeof(best)) == 0) {
      return;
    }
    *set = best;
  }
}

void conf_cover_pairs(const conf_rules *rules, int op, uint64_t seed, conf_each *each, void *user) {
  const conf_set universe = universe_of(op);
  conf_rng r = conf_rng_for(seed, op == TSR_BACKWARD ? "backward pairs" : "forward pairs");
  pairs p;
  int number = 0;
  find_pairs(op, rules, &universe, &r, &p);
  for (int a = 0; a < CONF_ITEM_COUNT && p.left > 0; a++) {
    for (int b = 0; b < CONF_ITEM_COUNT; b++) {
      conf_set set;
      char name[64];
      if (!conf_has(&p.todo[a], b) || !widen_pair(op, rules, &universe, &r, a, b, &set)) {
        continue;
      }
      grow(op, rules, &universe, &p, &r, &set);
      conf_set_complete(&set);
      strike(&p, &set);
      snprintf(name, sizeof(name), "pairs-%d%s", number++, op == TSR_BACKWARD ? " backward" : "");
      emit(op, &set, SMALL_WORK, name, each, user);
    }
  }
}

/* ---- Random ---------------------------------------------------------------------------------------- */

void conf_cover_random(const conf_rules *rules, uint64_t seed, int64_t count, double max_work, conf_each *each,
                       void *user) {
  for (int64_t n = 0; n < count; n++) {
    conf_set set = {{0, 0}};
    char name[64];
    conf_rng r;
    int op, wanted;
    snprintf(name, sizeof(name), "random-%lld", (long long)n);
    r = conf_rng_for(seed, name);
    op = conf_chance(&r, 0.4) ? TSR_BACKWARD : TSR_FORWARD;
    wanted = (int)conf_range(&r, 1, 12);
    for (int tries = 0; tries < 40 && conf_count(&set) < wanted; tries++) {
      const conf_set universe = universe_of(op);
      conf_set wider;
      if (widen(op, rules, &universe, conf_next(&r), &set, (int)conf_range(&r, 0, CONF_ITEM_COUNT - 1), &wider) &&
          !crowded(op, &wider)) {
        set = wider;
      }
    }
    emit(op, &set, max_work, name, each, user);
  }
}
