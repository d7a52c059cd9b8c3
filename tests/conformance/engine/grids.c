/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes that other libraries' own tests run: flash-attention, FlashInfer, ggml, PyTorch. Heads, and where the
 * oracle would take minutes the head dimension, are chosen so that a case stays below LARGEST multiply-adds; lengths,
 * batches, pages, groups and the remaining head dimensions are the grids'. */
#include <stdio.h>
#include <string.h>

#include "runner.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

static const double largest_work = 4e9, largest_quick_work = 2e7;

typedef struct grid {
  uint64_t seed;
  int part;
  int64_t number; /* of the case */
  conf_each *each;
  void *user;
} grid;

static conf_case shape(int op, int64_t sq, int64_t sk, int64_t d, int64_t dv) {
  conf_case c = conf_case_init();
  c.op = op;
  c.seqlen_q = sq;
  c.seqlen_k = sk;
  c.head_dim = d;
  c.head_dim_v = dv;
  return c;
}

/* Hands a case on, if it belongs to this part. */
static void emit(grid *g, conf_case *c, const char *name) {
  const int64_t number = g->number++;
  if (g->part > 1 && conf_case_work(c) > largest_quick_work) {
    return;
  }
  if (g->part > 1 && (uint64_t)number % (uint64_t)g->part != g->seed % (uint64_t)g->part) {
    return;
  }
  conf_set_complete(&c->items);
  snprintf(c->name, sizeof(c->name), "%s-%lld", name, (long long)number);
  c->undrawn = CONF_UNDRAWN_SEED;
  g->each(g->user, c);
}

/* f16, bf16, f32 in turn. */
static void add_dtype(conf_case *c, int64_t n) {
  static const int dtypes[] = {CONF_f16, CONF_bf16, CONF_f32};
  conf_add(&c->items, dtypes[n % 3]);
}

/* Query heads over kv heads in turn, as many as are not too much work. */
static void add_heads(conf_case *c, int64_t n) {
  static const int64_t heads[][2] = {{4, 2}, {6, 2}, {3, 1}, {2, 2}};
  c->q_heads = heads[n % 4][0];
  c->kv_heads = heads[n % 4][1];
  if (conf_case_work(c) > largest_work / 4) {
    c->q_heads = c->kv_heads = 1;
  }
}

/* ---- flash-attention ------------------------------------------------------------------------------- */

static void flash_attention(grid *g) {
  static const int64_t dims[] = {32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256};
  static const int64_t square[] = {97, 128, 200, 257, 384, 512, 768, 1024, 1025, 2048};
  static const int64_t pairs[][2] = {{113, 203}, {128, 217},   {113, 211},   {108, 256}, {256, 512},
                                     {512, 256}, {1024, 1023}, {1023, 1024}, {1, 239},   {3, 799},
                                     {127, 512}, {127, 513},   {1, 147}};
  int64_t n = 0;
  for (int d = 0; d < COUNT(dims); d++) {
    for (int s = 0; s < COUNT(square) + COUNT(pairs); s++) {
      const int64_t sq = s < COUNT(square) ? square[s] : pairs[s - COUNT(square)][0];
      const int64_t sk = s < COUNT(square) ? square[s] : pairs[s - COUNT(square)][1];
      for (int kind = 0; kind < 6; kind++, n++) { /* full, causal, window; forward and backward */
        conf_case c = shape(kind % 2 == 0 ? TSR_FORWARD : TSR_BACKWARD, sq, sk, dims[d], dims[d]);
        add_dtype(&c, n + d);
        add_heads(&c, n);
        if (kind / 2 == 1) {
          conf_add(&c.items, CONF_causal);
        } else if (kind / 2 == 2) {
          conf_add(&c.items, CONF_window);
        }
        if ((n / 6) % 2 == 1) { /* soft cap 0 and 50 */
          conf_add(&c.items, CONF_softcap);
          c.softcap = 50.0;
        }
        emit(g, &c, "flash-attention");
      }
    }
  }
}

static void flash_attention_decode(grid *g) {
  static const int64_t pairs[][2] = {{1, 128}, {1, 339}, {3, 1024}, {64, 800}, {16, 20000}, {1, 131072}};
  static const int64_t dims[] = {64, 128, 192, 256}, pages[] = {16, 64, 256};
  int64_t n = 0;
  for (int s = 0; s < COUNT(pairs); s++) {
    for (int d = 0; d < COUNT(dims); d++) {
      for (int kind = 0; kind < 4; kind++, n++) { /* dense, paged; causal; splits */
        conf_case c = shape(TSR_FORWARD, pairs[s][0], pairs[s][1], dims[d], dims[d]);
        c.batch = pairs[s][1] > 4096 ? 1 : 2;
        add_dtype(&c, n);
        add_heads(&c, n);
        conf_add(&c.items, CONF_seqlens_k);
        if (kind % 2 == 1) {
          conf_add(&c.items, CONF_kv_table);
          c.page_size = pages[n % 3];
        }
        if (kind / 2 == 1) {
          conf_add(&c.items, CONF_causal);
          conf_add(&c.items, CONF_splits);
        }
        emit(g, &c, "flash-attention-decode");
      }
    }
  }
}

/* ---- FlashInfer ------------------------------------------------------------------------------------ */

static void flashinfer(grid *g) {
  static const int64_t pages[] = {1, 5, 16}, batches[] = {12, 17, 128}, kv[] = {54, 97, 512, 2048},
                       qo[] = {1, 17, 37, 127};
  static const int64_t heads[][2] = {{4, 4}, {32, 4}, {32, 32}}, dims[] = {128, 64, 32, 16};
  int64_t n = 0;
  for (int p = 0; p < COUNT(pages); p++) {
    for (int b = 0; b < COUNT(batches); b++) {
      for (int k = 0; k < COUNT(kv); k++) {
        for (int q = 0; q < COUNT(qo); q++, n++) {
          for (int h = 0; h < COUNT(heads); h++) {
            conf_case c = shape(TSR_FORWARD, qo[q], kv[k], dims[0], dims[0]);
            c.batch = batches[b];
            c.page_size = pages[p];
            c.q_heads = heads[h][0];
            c.kv_heads = heads[h][1];
            for (int d = 1; d < COUNT(dims) && conf_case_work(&c) > largest_work / 4; d++) {
              c.head_dim = c.head_dim_v = dims[d];
            }
            if (h > 0 && conf_case_work(&c) > largest_work / 4) {
              continue; /* the 4/4 case has that shape */
            }
            conf_add(&c.items, n % 2 == 0 ? CONF_kv_csr : CONF_kv_table);
            conf_add(&c.items, n % 2 == 0 ? CONF_q_packed : CONF_seqlens_k);
            if (n % 3 != 0) {
              conf_add(&c.items, CONF_causal);
            }
            add_dtype(&c, n);
            emit(g, &c, "flashinfer");
          }
        }
      }
    }
  }
}

static void flashinfer_mla(grid *g) {
  static const int64_t kv[] = {0, 1, 3, 11, 17, 33, 79, 114, 514, 2743, 8736}, pages[] = {1, 16, 64};
  int64_t n = 0;
  for (int k = 0; k < COUNT(kv); k++) {
    for (int q = 1; q <= 2; q++) {
      for (int p = 0; p < COUNT(pages); p++, n++) {
        conf_case c = shape(TSR_FORWARD, q, kv[k], 576, 512);
        c.batch = 2;
        c.q_heads = 16;
        c.page_size = pages[p];
        conf_add(&c.items, CONF_v_in_k);
        conf_add(&c.items, CONF_kv_csr);
        conf_add(&c.items, CONF_causal);
        conf_add(&c.items, n % 2 == 0 ? CONF_bf16 : CONF_f16);
        emit(g, &c, "flashinfer-mla");
      }
    }
  }
}

/* ---- ggml ------------------------------------------------------------------------------------------ */

static void ggml(grid *g) {
  static const int64_t dims[][2] = {{40, 40},   {64, 64},   {72, 72},   {80, 80},   {96, 96},
                                    {112, 112}, {128, 128}, {192, 192}, {256, 256}, {320, 320},
                                    {512, 512}, {576, 576}, {192, 128}, {320, 256}, {576, 512}};
  static const int64_t groups[] = {1, 4, 8, 12, 16, 20, 32}, kv[] = {113, 512, 1024}, q[] = {1, 3, 32, 75};
  static const int layouts[] = {CONF_layout_padded, CONF_layout_interleaved, CONF_layout_bhsd, CONF_layout_bshd};
  int64_t n = 0;
  for (int d = 0; d < COUNT(dims); d++) {
    for (int h = 0; h < COUNT(groups); h++) {
      for (int k = 0; k < COUNT(kv); k++) {
        for (int s = 0; s < COUNT(q); s++, n++) {
          conf_case c = shape(TSR_FORWARD, q[s], kv[k], dims[d][0], dims[d][1]);
          c.q_heads = groups[h];
          conf_add(&c.items, layouts[(n + d) % 4]); /* K and V as views of larger buffers */
          add_dtype(&c, n + h);
          if (n % 2 == 0) {
            conf_add(&c.items, CONF_bias_f16); /* its mask tensor */
            conf_add(&c.items, CONF_bias_inf);
            conf_add(&c.items, CONF_bias_h1);
          }
          if (n % 5 == 0) {
            conf_add(&c.items, CONF_sink);
          }
          emit(g, &c, "ggml");
        }
      }
    }
  }
}

/* ---- PyTorch --------------------------------------------------------------------------------------- */

static void pytorch(grid *g) {
  static const int64_t q[] = {4, 8, 64, 143, 256, 512, 1024, 2048}, k[] = {4, 8, 64, 128, 256, 587, 1024, 2048};
  static const int64_t dims[] = {8, 16, 21, 32, 64, 72, 96, 128, 160, 192, 203, 256};
  int64_t n = 0;
  for (int a = 0; a < COUNT(q); a++) {
    for (int b = 0; b < COUNT(k); b++) {
      for (int d = 0; d < COUNT(dims); d++) {
        for (int op = 0; op < 2; op++, n++) {
          conf_case c = shape(op, q[a], k[b], dims[d], dims[d]);
          c.batch = 2;
          add_heads(&c, n);
          add_dtype(&c, n + d);
          conf_add(&c.items, CONF_layout_bhsd);
          if (n % 4 < 2) {
            conf_add(&c.items, CONF_causal);
            conf_add(&c.items, CONF_top_left);
          } else if (n % 8 < 4) {
            conf_add(&c.items, CONF_bias_f32);
          }
          if (n % 10 < 2) {
            conf_add(&c.items, CONF_dropout);
          }
          emit(g, &c, "pytorch");
        }
      }
    }
  }
}

void conf_grids(uint64_t seed, int part, conf_each *each, void *user) {
  grid g = {seed, part, 0, each, user};
  flash_attention(&g);
  flash_attention_decode(&g);
  flashinfer(&g);
  flashinfer_mla(&g);
  ggml(&g);
  pytorch(&g);
}
