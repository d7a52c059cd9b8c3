/* SPDX-License-Identifier: Apache-2.0 */
/* Cases: sizes that suit their items, and their text. */
#include "case.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

conf_case conf_case_init(void) {
  conf_case c;
  memset(&c, 0, sizeof(c));
  c.batch = c.q_heads = c.kv_heads = 1;
  c.seqlen_q = c.seqlen_k = 16;
  c.head_dim = c.head_dim_v = 32;
  c.window_left = c.window_right = c.chunk = CONF_DRAWN;
  c.scale = c.softcap = c.dropout_p = -1.0;
  return c;
}

int conf_case_has(const conf_case *c, int item) {
  const uint32_t other = c->op == TSR_FORWARD ? CONF_BACKWARD_PART : CONF_FORWARD_PART;
  return conf_has(&c->items, item) && (conf_items[item].flags & other) == 0;
}

/* ---- Sizes --------------------------------------------------------------------------------------- */

static void draw_heads(conf_case *c, conf_rng *r) {
  static const int64_t odd[] = {3, 5, 7};
  int64_t group = 1;
  c->kv_heads = conf_range(r, 1, 2);
  if (conf_has(&c->items, CONF_gqa)) {
    c->kv_heads = 2;
    group = conf_range(r, 2, 4);
  } else if (conf_has(&c->items, CONF_mqa)) {
    c->kv_heads = 1;
    group = conf_range(r, 2, 4);
  } else if (conf_has(&c->items, CONF_group_odd)) {
    group = odd[conf_range(r, 0, 2)];
  }
  if (conf_has(&c->items, CONF_dsink) && c->kv_heads * group < 3 && !conf_has(&c->items, CONF_mqa)) {
    c->kv_heads = 3; /* a number a head: one alone may happen to be nearly 0 */
  }
  c->q_heads = c->kv_heads * group;
}

static void draw_dims(conf_case *c, conf_rng *r) {
  static const int64_t dims[] = {1, 3, 4, 8, 16, 21, 32, 40, 64, 80, 96};
  c->head_dim =
      dims[conf_range(r, c->op == TSR_BACKWARD ? 3 : 0, 10)]; /* a gradient of a channel or two may all cancel */
  if (conf_has(&c->items, CONF_kv_u4) || conf_has(&c->items, CONF_kv_i8)) {
    c->head_dim = (c->head_dim + 1) / 2 * 2;
  }
  c->head_dim_v = c->head_dim;
  if (conf_has(&c->items, CONF_dv_less)) {
    c->head_dim = c->head_dim < 4 ? 6 : c->head_dim;
    c->head_dim_v = (c->head_dim / 4 + 1) * 2;
  } else if (conf_has(&c->items, CONF_dv_more)) {
    c->head_dim_v = c->head_dim + 2 * conf_range(r, 1, 12);
  }
}

void conf_case_draw_sizes(conf_case *c, conf_rng *r) {
  const int medium = conf_chance(r, 0.35);
  const int zero = conf_has(&c->items, CONF_zero_q) || conf_has(&c->items, CONF_zero_kv);
  draw_heads(c, r);
  draw_dims(c, r);
  c->batch = conf_range(r, zero ? 2 : 1, 3);
  c->seqlen_k = medium ? conf_range(r, 65, 280) : conf_range(r, 1, 40);
  c->seqlen_q = medium ? conf_range(r, 20, 130) : conf_range(r, 1, 24);
  if (c->head_dim_v < 4) {
    c->seqlen_q += 16;
  }
  if (c->op == TSR_BACKWARD) {
    c->seqlen_k += 24;
    c->seqlen_q += 16;
  }
  if (conf_has(&c->items, CONF_long_q)) {
    c->seqlen_k = c->seqlen_k > 90 ? 90 : c->seqlen_k;
    c->seqlen_q = c->seqlen_k + conf_range(r, 1, 20);
  } else if (c->seqlen_q > c->seqlen_k && conf_chance(r, 0.5)) {
    c->seqlen_q = c->seqlen_k;
  }
}

double conf_case_work(const conf_case *c) {
  const double dims = (double)(c->head_dim + c->head_dim_v);
  return (double)c->batch * (double)c->q_heads * (double)c->seqlen_q * (double)c->seqlen_k * dims *
         (c->op == TSR_BACKWARD ? 3.0 : 1.0);
}

/* ---- Text ------------------------------------------------------------------------------------------ */

typedef struct writer {
  char *text;
  size_t bytes, at;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...) {
  va_list list;
  va_start(list, format);
  const int n =
      vsnprintf(w->at < w->bytes ? w->text + w->at : NULL, w->at < w->bytes ? w->bytes - w->at : 0, format, list);
  va_end(list);
  w->at += n > 0 ? (size_t)n : 0;
}

static void put_list(writer *w, const char *key, const int64_t *list, int count) {
  put(w, " %s=", key);
  for (int n = 0; n < count; n++) {
    put(w, "%s%lld", n == 0 ? "" : ":", (long long)list[n]);
  }
}

static const struct {
  const char *key;
  size_t offset;
  int64_t unless; /* not printed then */
} numbers[] = {{"b", offsetof(conf_case, batch), -9},
               {"hq", offsetof(conf_case, q_heads), -9},
               {"hkv", offsetof(conf_case, kv_heads), -9},
               {"sq", offsetof(conf_case, seqlen_q), -9},
               {"sk", offsetof(conf_case, seqlen_k), -9},
               {"d", offsetof(conf_case, head_dim), -9},
               {"dv", offsetof(conf_case, head_dim_v), -9},
               {"page", offsetof(conf_case, page_size), 0},
               {"left", offsetof(conf_case, window_left), CONF_DRAWN},
               {"right", offsetof(conf_case, window_right), CONF_DRAWN},
               {"chunk", offsetof(conf_case, chunk), CONF_DRAWN}};
static const struct {
  const char *key;
  size_t offset;
} reals[] = {{"scale", offsetof(conf_case, scale)},
             {"cap", offsetof(conf_case, softcap)},
             {"drop", offsetof(conf_case, dropout_p)}};
enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]), REALS = sizeof(reals) / sizeof(reals[0]) };

int conf_case_print(const conf_case *c, char *text, size_t bytes) {
  writer w = {text, bytes, 0};
  if (bytes > 0) {
    text[0] = '\0';
  }
  put(&w, "%s", c->op == TSR_BACKWARD ? "bwd" : "fwd");
  for (int n = 0; n < NUMBERS; n++) {
    int64_t value;
    memcpy(&value, (const char *)c + numbers[n].offset, sizeof(value));
    if (value != numbers[n].unless) {
      put(&w, " %s=%lld", numbers[n].key, (long long)value);
    }
  }
  for (int n = 0; n < REALS; n++) {
    double value;
    memcpy(&value, (const char *)c + reals[n].offset, sizeof(value));
    if (value >= 0) {
      put(&w, " %s=%.9g", reals[n].key, value);
    }
  }
  if (c->num_splits != 0) {
    put(&w, " splits=%d", (int)c->num_splits);
  }
  if (c->num_lens > 0) {
    put_list(&w, "q_lens", c->q_lens, c->num_lens);
    put_list(&w, "kv_lens", c->kv_lens, c->num_lens);
  }
  put(&w, " seed=%llu", (unsigned long long)c->seed);
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    if (conf_has(&c->items, n) && (conf_items[n].flags & CONF_DEFAULT) == 0) {
      put(&w, " %s", conf_items[n].name);
    }
  }
  return (int)w.at;
}

static int parse_list(const char *value, int64_t *list, int32_t *count) {
  *count = 0;
  for (char *end;; value = end + 1) {
    if (*count == CONF_MAX_LENS) {
      return 0;
    }
    list[(*count)++] = strtoll(value, &end, 10);
    if (end == value || (*end != ':' && *end != '\0')) {
      return 0;
    }
    if (*end == '\0') {
      return 1;
    }
  }
}

/* One word; 0: not understood. counts: of q_lens, kv_lens. */
static int parse_word(char *word, conf_case *c, int32_t counts[2]) {
  char *value = strchr(word, '='), *end = NULL;
  const int item = conf_item_find(word, (int)strlen(word));
  if (strcmp(word, "fwd") == 0 || strcmp(word, "bwd") == 0) {
    c->op = word[0] == 'b' ? TSR_BACKWARD : TSR_FORWARD;
    return 1;
  }
  if (item >= 0) {
    conf_add(&c->items, item);
    return 1;
  }
  if (value == NULL || value[1] == '\0') {
    return 0;
  }
  *value++ = '\0';
  for (int n = 0; n < NUMBERS; n++) {
    if (strcmp(word, numbers[n].key) == 0) {
      const int64_t x = strtoll(value, &end, 10);
      memcpy((char *)c + numbers[n].offset, &x, sizeof(x));
      return *end == '\0' && x >= -1 && x < INT64_C(1) << 40;
    }
  }
  for (int n = 0; n < REALS; n++) {
    if (strcmp(word, reals[n].key) == 0) {
      const double x = strtod(value, &end);
      memcpy((char *)c + reals[n].offset, &x, sizeof(x));
      return *end == '\0';
    }
  }
  if (strcmp(word, "seed") == 0) {
    c->seed = strtoull(value, &end, 10);
    return *end == '\0';
  }
  if (strcmp(word, "splits") == 0) {
    c->num_splits = (int32_t)strtol(value, &end, 10);
    conf_add(&c->items, CONF_splits);
    return *end == '\0';
  }
  if (strcmp(word, "q_lens") == 0) {
    return parse_list(value, c->q_lens, &counts[0]);
  }
  return strcmp(word, "kv_lens") == 0 && parse_list(value, c->kv_lens, &counts[1]);
}

int conf_case_parse(const char *text, conf_case *c, char *why, size_t why_bytes) {
  conf_rules rules;
  char word[256];
  int32_t counts[2] = {0, 0};
  *c = conf_case_init();
  while (*text != '\0') {
    const size_t blank = strspn(text, " \t\n"), length = strcspn(text + blank, " \t\n");
    text += blank;
    if (length == 0) {
      break;
    }
    if (length >= sizeof(word)) {
      snprintf(why, why_bytes, "a word is longer than %zu characters", sizeof(word) - 1);
      return -1;
    }
    memcpy(word, text, length);
    word[length] = '\0';
    text += length;
    if (!parse_word(word, c, counts)) {
      snprintf(why, why_bytes, "\"%.*s\" is no item or size of a case", (int)length, text - length);
      return -1;
    }
  }
  if ((counts[0] == 0) != (counts[1] == 0)) {
    snprintf(why, why_bytes, "q_lens and kv_lens come together");
    return -1;
  }
  c->num_lens = counts[0] > counts[1] ? counts[0] : counts[1];
  for (int32_t n = 0; n < c->num_lens; n++) { /* the shorter list is repeated */
    c->q_lens[n] = c->q_lens[n % counts[0]];
    c->kv_lens[n] = c->kv_lens[n % counts[1]];
  }
  conf_rules_init(&rules);
  if (!conf_set_consistent(&rules, &c->items)) {
    snprintf(why, why_bytes, "the case has items that exclude each other");
    return -1;
  }
  if (c->batch < 0 || c->q_heads < 1 || c->kv_heads < 1 || c->q_heads % c->kv_heads != 0 || c->seqlen_q < 0 ||
      c->seqlen_k < 0 || c->head_dim < 1 || c->head_dim_v < 1) {
    snprintf(why, why_bytes, "the sizes make no problem");
    return -1;
  }
  conf_set_complete(&c->items);
  return 0;
}
