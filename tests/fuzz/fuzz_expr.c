/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer target: any bytes as an expression. What parses must print to a text that parses to the same tree, have a
 * derivative or be refused one, evaluate without touching anything but its tensors, and have the class that its
 * points show. The first bytes choose kind and declarations, the rest is the text. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/expr.h"

enum { HEADER = 4, LANES = 64 };

static const char *const names[] = {"s", "scale", "_"};

#define REQUIRE(condition)                                    \
  do {                                                        \
    if (!(condition)) {                                       \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      abort();                                                \
    }                                                         \
  } while (0)

typedef struct world {
  tsr_expr_aux_type types[3];
  int n_aux;
  tsr_expr_env env;
} world;

/* Tensors of exactly the elements that they reach, so that a sanitizer sees any read beside them. */
static void make_world(world *w, const uint8_t *header) {
  memset(w, 0, sizeof(*w));
  w->n_aux = header[1] % 4;
  for (int k = 0; k < w->n_aux; ++k) {
    tsr_expr_aux *aux = &w->env.aux[k];
    int64_t count = 1;
    aux->dtype = w->types[k].dtype = header[2] >> k & 1 ? TSR_I32 : TSR_F32;
    aux->rank = w->types[k].rank = 1 + ((header[3] >> (2 * k)) & 3);
    for (int a = 0; a < aux->rank; ++a) {
      aux->shape[a] = (header[2] >> 4) % (a + 3);
      aux->stride[a] = count;
      count *= aux->shape[a];
    }
    uint32_t *data = malloc(count > 0 ? (size_t)count * sizeof(*data) : 1);
    REQUIRE(data != NULL);
    for (int64_t e = 0; e < count; ++e) {
      data[e] = (uint32_t)(e + header[3]) * UINT32_C(0x9e3779b1); /* NaN and infinities among them */
    }
    aux->data = data;
  }
  w->env.scalar[0] = 0.5f;
  w->env.scalar[1] = -1e30f;
  memcpy(&w->env.scalar[2], header, sizeof(float));
}

static tsr_status parse(const world *w, const char *text, int32_t kind, tsr_expr **expr, tsr_error *err) {
  return tsr__expr_parse(NULL, text, kind, names, 3, w->types, w->n_aux, "expr", expr, err);
}

static void check_print(const world *w, const tsr_expr *expr) {
  char *text;
  tsr_expr *again;
  REQUIRE(tsr__expr_print(NULL, expr, &text, NULL) == TSR_OK);
  if (expr->kind == TSR_EXPR_KIND_DERIVATIVE || strlen(text) <= TSR_EXPR_MAX_BYTES) {
    REQUIRE(parse(w, text, expr->kind, &again, NULL) == TSR_OK);
    REQUIRE(tsr__expr_equal(expr, again) && tsr__expr_hash(expr) == tsr__expr_hash(again));
    tsr__expr_destroy(NULL, again);
  }
  tsr__alloc_free(NULL, text);
}

static void check_order(const tsr_expr *expr) {
  REQUIRE(expr->n_nodes >= 1 && expr->n_slots >= 1 && expr->n_slots <= TSR_EXPR_MAX_SLOTS);
  for (int32_t k = 0; k < expr->n_nodes; ++k) {
    const tsr_expr_node *node = &expr->node[k];
    REQUIRE(node->slot >= 0 && node->slot < expr->n_slots);
    for (int a = 0; a < node->n_args; ++a) {
      REQUIRE(node->arg[a] >= 0 && node->arg[a] < k && expr->node[node->arg[a]].slot != node->slot);
    }
  }
}

static void check_values(const world *w, const tsr_expr *expr, const uint8_t *header) {
  static const int64_t bases[] = {0, -3, INT64_MAX - 3, INT64_MIN, 16777214, 2147483646};
  const int64_t base = bases[header[0] / 16 % 6];
  int64_t i[LANES], j[LANES];
  float score[LANES], out[LANES];
  uint8_t allow[LANES];
  tsr_expr_range range[TSR_EXPR_VAR_COUNT];
  tsr_expr_lanes lanes = {.score = score, .lane = {[TSR_EXPR_VAR_I] = i, [TSR_EXPR_VAR_J] = j}};
  for (int v = 0; v < TSR_EXPR_VAR_COUNT; ++v) {
    lanes.uniform[v] = v;
    range[v] = (tsr_expr_range){v, v};
  }
  range[TSR_EXPR_VAR_I] = (tsr_expr_range){base, base + 3};
  range[TSR_EXPR_VAR_J] = (tsr_expr_range){-8, 7};
  for (int k = 0; k < LANES; ++k) {
    i[k] = base + k / 16;
    j[k] = k % 16 - 8;
    score[k] = (float)(k - 20) * 0.37f;
  }
  if (expr->kind != TSR_EXPR_KIND_MASK) {
    tsr__expr_eval(expr, &w->env, &lanes, LANES, out);
    return;
  }
  int found = 0;
  lanes.score = NULL;
  tsr__expr_eval_mask(expr, &w->env, &lanes, LANES, allow);
  for (int k = 0; k < LANES; ++k) {
    REQUIRE(allow[k] <= 1);
    found |= 1 << allow[k];
  }
  const int32_t class = tsr__expr_classify(expr, &w->env, range);
  REQUIRE(class == TSR_TILE_PARTIAL || (class == TSR_TILE_SKIP && found == 1) ||
          (class == TSR_TILE_FULL && found == 2));
}

static void check_text(const world *w, const char *text, const uint8_t *header) {
  const int32_t kind = header[0] & 1 ? TSR_EXPR_KIND_MASK : TSR_EXPR_KIND_SCORE;
  tsr_expr *expr, *slope;
  tsr_error err;
  const tsr_status status = parse(w, text, kind, &expr, &err);
  if (status != TSR_OK) {
    REQUIRE(status == TSR_INVALID && expr == NULL && err.status == status && err.text[0] != '\0');
    return;
  }
  check_order(expr);
  check_print(w, expr);
  check_values(w, expr, header);
  if (kind == TSR_EXPR_KIND_SCORE) {
    const tsr_status derived = tsr__expr_derive(NULL, expr, "expr", &slope, &err);
    REQUIRE(derived == TSR_OK || derived == TSR_UNSUPPORTED);
    if (derived == TSR_OK) {
      check_order(slope);
      check_print(w, slope);
      check_values(w, slope, header);
      tsr__expr_destroy(NULL, slope);
    }
  }
  tsr__expr_destroy(NULL, expr);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  world w;
  if (size < HEADER) {
    return 0;
  }
  char *text = malloc(size - HEADER + 1);
  REQUIRE(text != NULL);
  memcpy(text, data + HEADER, size - HEADER);
  text[size - HEADER] = '\0';
  make_world(&w, data);
  check_text(&w, text, data);
  for (int k = 0; k < w.n_aux; ++k) {
    free((void *)(uintptr_t)w.env.aux[k].data);
  }
  free(text);
  return 0;
}
