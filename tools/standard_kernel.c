/* SPDX-License-Identifier: Apache-2.0 */
/* Materialised attention in four passes. Compiled once per level: STANDARD_LEVEL is the suffix of the entry,
 * STANDARD_LANES the f32 lanes of a vector. */
#include "standard_kernel.h"

#include <math.h>
#include <string.h>

#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)

enum {
  LANES = STANDARD_LANES,
  VECTORS = LANES == 4                   ? 2
            : STANDARD_PANEL / LANES > 4 ? 4
                                         : STANDARD_PANEL / LANES, /* of one accumulator row */
  WIDTH = VECTORS * LANES,
  ROWS = LANES == 16  ? 12
         : LANES == 8 ? 3
                      : 4, /* accumulators fit the registers */
  BLOCK = 48,              /* query rows of a task */
  DEPTH = 256,             /* keys of P V at a time */
  MAX_HEAD_DIM = 576
};

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4)));

/* c[rows][WIDTH] (+)= alpha * a[rows][depth] b[depth][..], b with STANDARD_PANEL columns a row. */
static inline __attribute__((always_inline)) void product(int rows, const float *a, int64_t lda, const float *b,
                                                          int64_t depth, float *c, int64_t ldc, float alpha, int add) {
  vec sum[ROWS][VECTORS];
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < VECTORS; v++)
      sum[r][v] = (vec){0};
  for (int64_t d = 0; d < depth; d++) {
    const vec *row = (const vec *)(const void *)(b + d * STANDARD_PANEL);
    for (int r = 0; r < rows; r++) {
      const float x = a[r * lda + d];
      for (int v = 0; v < VECTORS; v++)
        sum[r][v] += x * row[v];
    }
  }
  for (int r = 0; r < rows; r++) {
    vec *out = (vec *)(void *)(c + r * ldc);
    for (int v = 0; v < VECTORS; v++)
      out[v] = add ? out[v] + alpha * sum[r][v] : alpha * sum[r][v];
  }
}

/* The same for any number of rows and `columns` <= STANDARD_PANEL of a panel. */
static void panel_product(int64_t rows, const float *a, int64_t lda, const float *b, int64_t depth, float *c,
                          int64_t ldc, int64_t columns, float alpha, int add) {
  float edge[ROWS * WIDTH];
  for (int64_t first = 0; first < columns; first += WIDTH) {
    const int64_t width = columns - first < WIDTH ? columns - first : WIDTH;
    int64_t step;
    for (int64_t r = 0; r < rows; r += step) {
      const int whole = rows - r >= ROWS;
      const float *left = a + r * lda;
      float *to = c + r * ldc + first;
      step = whole ? ROWS : 1;
      if (width == WIDTH) {
        if (whole)
          product(ROWS, left, lda, b + first, depth, to, ldc, alpha, add);
        else
          product(1, left, lda, b + first, depth, to, ldc, alpha, add);
        continue;
      }
      for (int64_t i = 0; i < step && add; i++)
        memcpy(edge + i * WIDTH, to + i * ldc, (size_t)width * sizeof(float));
      for (int64_t i = 0; i < step && add; i++)
        memset(edge + i * WIDTH + width, 0, (size_t)(WIDTH - width) * sizeof(float));
      if (whole)
        product(ROWS, left, lda, b + first, depth, edge, WIDTH, alpha, add);
      else
        product(1, left, lda, b + first, depth, edge, WIDTH, alpha, add);
      for (int64_t i = 0; i < step; i++)
        memcpy(to + i * ldc, edge + i * WIDTH, (size_t)width * sizeof(float));
    }
  }
}

/* e^x for x <= 0: 2^n times a polynomial of degree 6 in the rest, relative error about 2e-7. */
static inline vec exp_vector(vec x) {
  const vec floor_x = (vec){0} - 87.0f;
  x = (vec)(((ivec)x & (ivec)(x > floor_x)) | ((ivec)floor_x & ~(ivec)(x > floor_x)));
  const vec shift = (vec){0} + 12582912.0f; /* 1.5 x 2^23: adding it rounds to an integer */
  const vec n = (x * 1.44269504f + shift) - shift;
  const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  vec y = (vec){0} + 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * (r * r) + r + 1.0f;
  return (vec)((ivec)y + (__builtin_convertvector(n, ivec) << 23));
}

static void softmax_row(float *s, int64_t length, int64_t visible) {
  int64_t j;
  vec most = (vec){0} - INFINITY, total = (vec){0};
  float largest = -INFINITY, sum = 0;
  for (j = 0; j + LANES <= visible; j += LANES) {
    const vec x = *(const vec *)(const void *)(s + j);
    most = (vec)(((ivec)x & (ivec)(x > most)) | ((ivec)most & ~(ivec)(x > most)));
  }
  for (; j < visible; j++)
    largest = s[j] > largest ? s[j] : largest;
  for (int i = 0; i < LANES; i++)
    largest = most[i] > largest ? most[i] : largest;
  for (j = 0; j + LANES <= visible; j += LANES) {
    vec *x = (vec *)(void *)(s + j);
    *x = exp_vector(*x - largest);
    total += *x;
  }
  for (; j < visible; j++)
    sum += s[j] = expf(s[j] - largest);
  for (int i = 0; i < LANES; i++)
    sum += total[i];
  const float inverse = visible > 0 ? 1 / sum : 0;
  for (j = 0; j + LANES <= visible; j += LANES)
    *(vec *)(void *)(s + j) *= inverse;
  for (; j < visible; j++)
    s[j] *= inverse;
  for (; j < length; j++)
    s[j] = 0;
}

/* ---- The passes, one task at a time ---------------------------------------------------------- */

static void pack_head(const standard_problem *p, const standard_scratch *s, int64_t task) {
  const int64_t b = task / p->heads_kv, h = task % p->heads_kv;
  const int64_t key_panels = standard_panels(p->seqlen_k), v_panels = standard_panels(p->head_dim_v);
  for (int64_t j = 0; j < key_panels * STANDARD_PANEL; j++) {
    float *to =
        s->k_panels + ((task * key_panels + j / STANDARD_PANEL) * p->head_dim) * STANDARD_PANEL + j % STANDARD_PANEL;
    const float *from = p->k + ((b * p->seqlen_k + j) * p->heads_kv + h) * p->head_dim;
    for (int64_t d = 0; d < p->head_dim; d++)
      to[d * STANDARD_PANEL] = j < p->seqlen_k ? from[d] : 0;
  }
  for (int64_t panel = 0; panel < v_panels; panel++) {
    const int64_t left = p->head_dim_v - panel * STANDARD_PANEL, width = left < STANDARD_PANEL ? left : STANDARD_PANEL;
    for (int64_t j = 0; j < p->seqlen_k; j++) {
      float *to = s->v_panels + ((task * v_panels + panel) * p->seqlen_k + j) * STANDARD_PANEL;
      memset(to, 0, STANDARD_PANEL * sizeof(float));
      memcpy(to, p->v + ((b * p->seqlen_k + j) * p->heads_kv + h) * p->head_dim_v + panel * STANDARD_PANEL,
             (size_t)width * sizeof(float));
    }
  }
}

typedef struct row_block {
  int64_t b, h, kv, first, rows;
  float *scores; /* of the first row */
} row_block;

static int64_t blocks_of(const standard_problem *p) {
  return (p->seqlen_q + BLOCK - 1) / BLOCK;
}

static row_block find_block(const standard_problem *p, const standard_scratch *s, int64_t task) {
  const int64_t blocks = blocks_of(p), head = task / blocks;
  row_block r;
  r.b = head / p->heads;
  r.h = head % p->heads;
  r.kv = r.b * p->heads_kv + r.h / (p->heads / p->heads_kv);
  r.first = task % blocks * BLOCK;
  r.rows = p->seqlen_q - r.first < BLOCK ? p->seqlen_q - r.first : BLOCK;
  r.scores = s->scores + (head * p->seqlen_q + r.first) * standard_row(p->seqlen_k);
  return r;
}

static void score_block(const standard_problem *p, const standard_scratch *s, int64_t task) {
  const row_block r = find_block(p, s, task);
  const int64_t panels = standard_panels(p->seqlen_k);
  const float *from = p->q + ((r.b * p->seqlen_q + r.first) * p->heads + r.h) * p->head_dim;
  float q[BLOCK * MAX_HEAD_DIM];
  for (int64_t i = 0; i < r.rows; i++)
    memcpy(q + i * p->head_dim, from + i * p->heads * p->head_dim, (size_t)p->head_dim * sizeof(float));
  for (int64_t panel = 0; panel < panels; panel++) {
    const int64_t left = p->seqlen_k - panel * STANDARD_PANEL;
    panel_product(r.rows, q, p->head_dim, s->k_panels + (r.kv * panels + panel) * p->head_dim * STANDARD_PANEL,
                  p->head_dim, r.scores + panel * STANDARD_PANEL, standard_row(p->seqlen_k),
                  left < STANDARD_PANEL ? left : STANDARD_PANEL, p->scale, 0);
  }
}

static void softmax_block(const standard_problem *p, const standard_scratch *s, int64_t task) {
  const row_block r = find_block(p, s, task);
  for (int64_t i = 0; i < r.rows; i++) {
    int64_t visible = p->seqlen_k;
    if (p->causal) {
      visible = r.first + i + p->seqlen_k - p->seqlen_q + 1;
      visible = visible < 0 ? 0 : visible > p->seqlen_k ? p->seqlen_k : visible;
    }
    softmax_row(r.scores + i * standard_row(p->seqlen_k), p->seqlen_k, visible);
  }
}

static void output_block(const standard_problem *p, const standard_scratch *s, int64_t task) {
  const row_block r = find_block(p, s, task);
  const int64_t panels = standard_panels(p->head_dim_v), ldo = p->heads * p->head_dim_v;
  float *o = p->o + ((r.b * p->seqlen_q + r.first) * p->heads + r.h) * p->head_dim_v;
  for (int64_t first = 0; first < p->seqlen_k; first += DEPTH) {
    const int64_t depth = p->seqlen_k - first < DEPTH ? p->seqlen_k - first : DEPTH;
    for (int64_t panel = 0; panel < panels; panel++) {
      const int64_t left = p->head_dim_v - panel * STANDARD_PANEL;
      panel_product(r.rows, r.scores + first, standard_row(p->seqlen_k),
                    s->v_panels + ((r.kv * panels + panel) * p->seqlen_k + first) * STANDARD_PANEL, depth,
                    o + panel * STANDARD_PANEL, ldo, left < STANDARD_PANEL ? left : STANDARD_PANEL, 1, first > 0);
    }
  }
}

typedef void pass_task(const standard_problem *, const standard_scratch *, int64_t);

/* Shared out among the threads of the parallel region it is called in; ends in a barrier. */
static void run_pass(const standard_problem *p, const standard_scratch *s, int64_t tasks, pass_task *task) {
#ifdef _OPENMP
#pragma omp for schedule(dynamic)
#endif
  for (int64_t i = 0; i < tasks; i++)
    task(p, s, i);
}

void PASTE(standard_run_, STANDARD_LEVEL)(const standard_problem *p, const standard_scratch *s) {
  const int64_t tasks = p->batch * p->heads * blocks_of(p);
#ifdef _OPENMP
#pragma omp parallel num_threads(p->threads)
#endif
  {
    run_pass(p, s, p->batch * p->heads_kv, pack_head);
    run_pass(p, s, tasks, score_block);
    run_pass(p, s, tasks, softmax_block);
    run_pass(p, s, tasks, output_block);
  }
}
