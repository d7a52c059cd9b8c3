/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, problems, and the frame of a test. */
#include "kit.h"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "frame.h"

enum { GUARD_BYTES = 1024 };

gy_frame gy_now;

/* ---- Frame of a test ------------------------------------------------------------------------- */

static int full;

int gy_full(void) {
  return full;
}

uint64_t gy_seed(void) {
  return gy_now.seed;
}

void gy_say(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(gy_now.what, sizeof(gy_now.what), format, args);
  va_end(args);
}

void gy_fail_at(const char *file, int line, const char *format, ...) {
  char text[1024];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  print_error("%s %s(%s) seed %llu: %s\n", gy_now.test, gy_now.what, gy_now.where, (unsigned long long)gy_now.seed,
              text);
  _fail(file, line);
  abort(); /* _fail does not come back */
}

/* A fault or the end of the time: which test, then the end of the program. */
static void on_signal(int signal) {
  const char *const parts[] = {
      signal == SIGALRM ? "\ntime limit: " : "\nfault: ", gy_now.test, " ", gy_now.what, "(", gy_now.where, ")\n"};
  for (size_t n = 0; n < sizeof(parts) / sizeof(parts[0]); n++) {
    if (write(STDERR_FILENO, parts[n], strlen(parts[n])) < 0) {
      break;
    }
  }
  _exit(signal == SIGALRM ? 124 : 139);
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int32_t gy_should_stop(void *user, int64_t done, int64_t total) {
  (void)user;
  (void)done;
  (void)total;
  return seconds() > gy_now.deadline;
}

int gy_setup(void **state) {
  const char *const text = getenv("TESSERA_TEST_SEED");
  const char *const slow = getenv("TESSERA_TEST_LIMIT"); /* seconds a test may take */
  const unsigned limit = slow != NULL ? (unsigned)strtoul(slow, NULL, 0) : gy_full() ? 1800 : 300;
  snprintf(gy_now.test, sizeof(gy_now.test), "%s", (const char *)*state);
  gy_now.what[0] = '\0';
  snprintf(gy_now.where, sizeof(gy_now.where), "no device yet");
  gy_now.seed = text != NULL ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
  gy_now.problems = 0;
  gy_now.all = NULL; /* those of a test that failed stay behind */
  gy_now.started = seconds();
  gy_now.deadline = gy_now.started + limit;
  alarm(limit + 10); /* should_stop comes first */
  print_message("seed %llu (TESSERA_TEST_SEED)\n", (unsigned long long)gy_now.seed);
  return 0;
}

int gy_teardown(void **state) {
  (void)state;
  alarm(0);
  print_message("%s: %.1f s\n", gy_now.test, seconds() - gy_now.started);
  return 0;
}

int gy_main(int argc, char **argv, const struct CMUnitTest *tests, size_t count) {
  for (int n = 1; n < argc; n++) {
    if (strcmp(argv[n], "--full") == 0) {
      full = 1;
    } else {
      cmocka_set_test_filter(argv[n]);
    }
  }
  signal(SIGALRM, on_signal);
  return _cmocka_run_group_tests(argv[0], tests, count, NULL, NULL);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static size_t page_bytes(void) {
  return (size_t)sysconf(_SC_PAGESIZE);
}

/* A mapping of whole pages between two fences. flags: of mmap, besides private and anonymous. */
static gy_memory *map_new(gy_problem *p, int64_t bytes, int flags) {
  const size_t page = page_bytes(), body = ((size_t)bytes + page - 1) / page * page;
  gy_memory *m = &p->memory[p->num_memory];
  if (p->num_memory == GY_MAX_MEMORY) {
    gy_fail("too many tensors");
  }
  m->map_bytes = body + 2 * page;
  m->map = mmap(NULL, m->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (m->map == MAP_FAILED || (body > 0 && mprotect(m->map + page, body, PROT_READ | PROT_WRITE) != 0)) {
    return NULL;
  }
  m->body = m->map + page;
  m->body_bytes = body;
  p->num_memory++;
  return m;
}

void *gy_memory_new(gy_problem *p, int64_t bytes) {
  gy_memory *m = map_new(p, bytes, 0);
  if (m == NULL) {
    gy_fail("no memory for %lld bytes", (long long)bytes);
  }
  memset(m->body, 0xff, m->body_bytes);
  return p->front ? m->body : m->body + (m->body_bytes - (size_t)bytes);
}

void *gy_sparse(gy_problem *p, int64_t bytes) {
  gy_memory *m = map_new(p, bytes, MAP_NORESERVE);
#ifdef MADV_NOHUGEPAGE
  if (m != NULL) { /* one byte written is one small page taken */
    (void)madvise(m->map, m->map_bytes, MADV_NOHUGEPAGE);
  }
#endif
  return m == NULL ? NULL : m->body + (m->body_bytes - (size_t)bytes);
}

void gy_protect(const gy_problem *p, int writable) {
  for (int n = 0; n < p->num_memory && !p->own_outputs; n++) {
    const gy_memory *m = &p->memory[n];
    if (m->body_bytes > 0 && mprotect(m->body, m->body_bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ) != 0) {
      gy_fail("mprotect failed");
    }
  }
}

gy_problem *gy_new(void) {
  char name[128];
  gy_problem *p = calloc(1, sizeof(*p));
  if (p == NULL) {
    gy_fail("no memory for a problem");
  }
#ifndef __SANITIZE_ADDRESS__ /* cmocka's own handlers, set when a test begins, do not say which case it was */
  signal(SIGSEGV, on_signal);
  signal(SIGBUS, on_signal);
#endif
  p->desc = tsr_attention_desc_init();
  p->desc.memory = TSR_MEMORY_HOST;
  p->args = tsr_run_args_init();
  p->next = gy_now.all;
  gy_now.all = p;
  snprintf(name, sizeof(name), "%s %d", gy_now.test, gy_now.problems++);
  p->rng = conf_rng_for(gy_now.seed, name);
  return p;
}

void gy_free(gy_problem *p) {
  gy_problem **at = &gy_now.all;
  while (*at != NULL && *at != p) {
    at = &(*at)->next;
  }
  if (*at == p) {
    *at = p->next;
  }
  for (int n = 0; n < p->num_memory; n++) {
    munmap(p->memory[n].map, p->memory[n].map_bytes);
  }
  for (int n = 0; n < p->num_out; n++) {
    free(p->out[n].raw);
    free(p->out[n].exact);
    free(p->out[n].plain);
    free(p->out[n].kept);
  }
  free(p);
}

/* ---- Tensors --------------------------------------------------------------------------------- */

int64_t gy_span_bytes(const tsr_layout *l) {
  int64_t last = 0;
  for (int a = 0; a < 4; a++) {
    if (l->shape[a] == 0) {
      return 0;
    }
    if (a < 3 || l->dtype != TSR_BIT) {
      last += l->shape[a] == 1 ? 0 : (l->shape[a] - 1) * l->stride[a];
    }
  }
  if (l->dtype == TSR_BIT) {
    return last + (l->shape[3] - 1) / 8 + 1;
  }
  return l->dtype == TSR_U4 ? last / 2 + 1 : (last + 1) * (tsr_dtype_bits(l->dtype) / 8);
}

static unsigned char *address(const tsr_buffer *b) {
  return (unsigned char *)b->ptr + b->offset_bytes;
}

static int64_t element(const tsr_layout *l, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  return (l->shape[0] == 1 ? 0 : i0 * l->stride[0]) + (l->shape[1] == 1 ? 0 : i1 * l->stride[1]) +
         (l->shape[2] == 1 ? 0 : i2 * l->stride[2]) + (l->shape[3] == 1 || l->dtype == TSR_BIT ? 0 : i3 * l->stride[3]);
}

void gy_put(const tsr_layout *l, const tsr_buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double x) {
  const int64_t at = element(l, i0, i1, i2, i3);
  unsigned char *data = address(b);
  if (l->dtype == TSR_F32) {
    const float f = (float)x;
    memcpy(data + 4 * at, &f, sizeof(f));
  } else if (l->dtype == TSR_BIT) {
    unsigned char *byte = data + at + i3 / 8;
    *byte = (unsigned char)(x != 0 ? *byte | 1 << (i3 & 7) : *byte & ~(1 << (i3 & 7)));
  } else {
    tsr_encode(l->dtype, data, at, x);
  }
}

double gy_get(const tsr_layout *l, const tsr_buffer *b, int64_t i0, int64_t i1, int64_t i2, int64_t i3) {
  const int64_t at = element(l, i0, i1, i2, i3);
  const unsigned char *data = address(b);
  if (l->dtype == TSR_F32) {
    float f;
    memcpy(&f, data + 4 * at, sizeof(f));
    return (double)f;
  }
  return l->dtype == TSR_BIT ? (double)(data[at + i3 / 8] >> (i3 & 7) & 1) : tsr_decode(l->dtype, data, at);
}

/* Every element: normal numbers times sigma, or with rng NULL the number itself. Codes and booleans: any. */
static void write_all(const tsr_layout *l, const tsr_buffer *b, conf_rng *rng, double x) {
  for (int64_t i0 = 0; i0 < l->shape[0]; i0++) {
    for (int64_t i1 = 0; i1 < l->shape[1]; i1++) {
      for (int64_t i2 = 0; i2 < l->shape[2]; i2++) {
        for (int64_t i3 = 0; i3 < l->shape[3]; i3++) {
          double value = x;
          if (rng != NULL) {
            value = l->dtype == TSR_I8                           ? (double)conf_range(rng, -127, 127)
                    : l->dtype == TSR_U4                         ? (double)conf_range(rng, 0, 15)
                    : l->dtype == TSR_U8 || l->dtype == TSR_BIT  ? (double)conf_range(rng, 0, 1)
                    : l->dtype == TSR_I32 || l->dtype == TSR_I64 ? 0.0
                                                                 : x * conf_normal(rng);
          }
          gy_put(l, b, i0, i1, i2, i3, value);
        }
      }
    }
  }
}

void gy_fill(const tsr_layout *l, const tsr_buffer *b, double x) {
  write_all(l, b, NULL, x);
}

void gy_add(const tsr_layout *l, const tsr_buffer *b, double x) {
  for (int64_t e = 0; e < l->shape[0] * l->shape[1] * l->shape[2] * l->shape[3]; e++) {
    const int64_t i3 = e % l->shape[3], i2 = e / l->shape[3] % l->shape[2];
    const int64_t row = e / (l->shape[3] * l->shape[2]), i1 = row % l->shape[1], i0 = row / l->shape[1];
    gy_put(l, b, i0, i1, i2, i3, gy_get(l, b, i0, i1, i2, i3) + x);
  }
}

void gy_randomise(gy_problem *p, const tsr_layout *l, const tsr_buffer *b, double sigma) {
  write_all(l, b, &p->rng, sigma);
}

void gy_in(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, tsr_layout layout) {
  *field = layout;
  *buffer = tsr_buffer_out(gy_memory_new(p, gy_span_bytes(&layout)));
  write_all(field, buffer, &p->rng, 1.0);
}

void gy_out(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, tsr_layout layout) {
  gy_output *out = &p->out[p->num_out++];
  *field = layout;
  out->which = gy_output_index((const char *)field - (const char *)&p->desc);
  out->raw_bytes = gy_span_bytes(&layout) + 2 * GUARD_BYTES;
  out->raw = malloc((size_t)out->raw_bytes);
  if (out->raw == NULL) {
    gy_fail("no memory for an output");
  }
  *buffer = tsr_buffer_out(out->raw + GUARD_BYTES);
}

void gy_drop(gy_problem *p, tsr_layout *field, tsr_buffer *buffer) {
  const int which = gy_output_index((const char *)field - (const char *)&p->desc);
  int kept = 0;
  for (int n = 0; n < p->num_out; n++) {
    if (p->out[n].which == which) {
      free(p->out[n].raw);
    } else {
      p->out[kept++] = p->out[n];
    }
  }
  p->num_out = kept;
  *field = (tsr_layout){0};
  *buffer = (tsr_buffer){0};
}

void gy_ints(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, tsr_dtype dtype, const int64_t *list, int64_t n) {
  gy_in(p, field, buffer, tsr_layout_dense(dtype, n, 1, 1, 1));
  for (int64_t i = 0; i < n; i++) {
    gy_put(field, buffer, i, 0, 0, 0, (double)list[i]);
  }
}

/* ---- Usual problems -------------------------------------------------------------------------- */

static tsr_dtype out_dtype(tsr_dtype dtype) {
  return dtype == TSR_F8E4M3 || dtype == TSR_F8E5M2 ? TSR_BF16 : dtype;
}

/* All but k and v, for a batch axis of nb slots of rows rows. */
static void add_query_side(gy_problem *p, const gy_dims *m, int64_t nb, int64_t rows) {
  const tsr_layout o = tsr_layout_dense(out_dtype(m->dtype), nb, rows, m->hq, m->dv);
  const tsr_layout lse = tsr_layout_dense(TSR_F32, nb, m->hq, rows, 1);
  p->desc.op = m->op;
  GY_IN(p, q, tsr_layout_dense(m->dtype, nb, rows, m->hq, m->d));
  if (m->op == TSR_FORWARD) {
    GY_OUT(p, o, o);
    GY_OUT(p, lse, lse);
    return;
  }
  GY_IN(p, o, o);
  GY_IN(p, lse, lse);
  GY_IN(p, dout, o);
  GY_OUT(p, dq, p->desc.q);
}

static void add_key_side(gy_problem *p, const gy_dims *m, int64_t nb, int64_t rows) {
  GY_IN(p, k, tsr_layout_dense(m->dtype, nb, rows, m->hkv, m->d));
  GY_IN(p, v, tsr_layout_dense(m->dtype, nb, rows, m->hkv, m->dv));
  if (m->op == TSR_BACKWARD) {
    GY_OUT(p, dk, p->desc.k);
    GY_OUT(p, dv, p->desc.v);
  }
}

gy_problem *gy_dense(gy_dims dims) {
  gy_problem *p = gy_new();
  add_query_side(p, &dims, dims.b, dims.sq);
  add_key_side(p, &dims, dims.b, dims.sk);
  return p;
}

/* cu_seqlens of n lengths; returns the longest. */
static int64_t add_starts(gy_problem *p, tsr_layout *field, tsr_buffer *buffer, const int64_t *lens, int64_t n,
                          int64_t *total) {
  int64_t longest = 0;
  *total = 0;
  gy_in(p, field, buffer, tsr_layout_dense(TSR_I32, n + 1, 1, 1, 1));
  for (int64_t b = 0; b < n; b++) {
    *total += lens[b];
    longest = lens[b] > longest ? lens[b] : longest;
    gy_put(field, buffer, b + 1, 0, 0, 0, (double)*total);
  }
  return longest;
}

gy_problem *gy_packed(gy_dims dims, const int64_t *q_lens, const int64_t *kv_lens, int64_t slack) {
  gy_problem *p = gy_new();
  int64_t total;
  if (q_lens != NULL) {
    p->desc.max_seqlen_q = add_starts(p, &p->desc.cu_seqlens_q, &p->args.cu_seqlens_q, q_lens, dims.b, &total);
    add_query_side(p, &dims, 1, total + slack);
  } else {
    add_query_side(p, &dims, dims.b, dims.sq);
  }
  if (kv_lens != NULL) {
    p->desc.max_seqlen_k = add_starts(p, &p->desc.cu_seqlens_k, &p->args.cu_seqlens_k, kv_lens, dims.b, &total);
    add_key_side(p, &dims, 1, total + slack);
  } else {
    add_key_side(p, &dims, dims.b, dims.sk);
  }
  return p;
}

/* A permutation of 0 .. n-1. */
static int64_t *shuffled(gy_problem *p, int64_t n) {
  int64_t *order = calloc((size_t)n + 1, sizeof(*order));
  for (int64_t i = 0; order != NULL && i < n; i++) {
    const int64_t at = conf_range(&p->rng, 0, i);
    order[i] = order[at];
    order[at] = i;
  }
  return order;
}

static void poison_rows(const tsr_layout *l, const tsr_buffer *b, int64_t page, int64_t from) {
  for (int64_t t = from; t < l->shape[1]; t++) {
    for (int64_t h = 0; h < l->shape[2]; h++) {
      for (int64_t c = 0; c < l->shape[3]; c++) {
        gy_put(l, b, page, t, h, c, (double)NAN); /* i8, u4: some code */
      }
    }
  }
}

static void add_table(gy_problem *p, const gy_dims *m, gy_pages pages, const int64_t *kv_lens, const int64_t *order) {
  const int64_t columns = (p->desc.max_seqlen_k + pages.page_size - 1) / pages.page_size;
  int64_t next = 0;
  GY_INTS(p, seqlens_k, TSR_I32, kv_lens, m->b);
  GY_IN(p, block_table, tsr_layout_dense(TSR_I32, m->b, columns, 1, 1));
  GY_FILL(p, block_table, -1); /* never read beyond a length */
  for (int64_t b = 0; b < m->b; b++) {
    for (int64_t n = 0; n * pages.page_size < kv_lens[b]; n++) {
      GY_PUT(p, block_table, b, n, 0, 0, (double)order[next++]);
    }
  }
}

static void add_csr(gy_problem *p, const gy_dims *m, gy_pages pages, const int64_t *kv_lens, const int64_t *order,
                    int64_t used) {
  int64_t next = 0;
  GY_IN(p, kv_indptr, tsr_layout_dense(TSR_I32, m->b + 1, 1, 1, 1));
  GY_INTS(p, kv_indices, TSR_I32, order, used);
  GY_IN(p, last_page_len, tsr_layout_dense(TSR_I32, m->b, 1, 1, 1));
  for (int64_t b = 0; b < m->b; b++) {
    next += (kv_lens[b] + pages.page_size - 1) / pages.page_size;
    GY_PUT(p, kv_indptr, b + 1, 0, 0, 0, (double)next);
    GY_PUT(p, last_page_len, b, 0, 0, 0, kv_lens[b] == 0 ? 12345.0 : (double)((kv_lens[b] - 1) % pages.page_size + 1));
  }
}

gy_problem *gy_paged(gy_dims dims, gy_pages pages, const int64_t *kv_lens) {
  gy_problem *p = gy_new();
  gy_dims codes = dims;
  int64_t used = 0, *order;
  for (int64_t b = 0; b < dims.b; b++) {
    used += (kv_lens[b] + pages.page_size - 1) / pages.page_size;
    p->desc.max_seqlen_k = kv_lens[b] > p->desc.max_seqlen_k ? kv_lens[b] : p->desc.max_seqlen_k;
  }
  order = shuffled(p, used + 1);
  if (order == NULL) {
    gy_fail("no memory for a page table");
  }
  codes.dtype = pages.dtype != TSR_DTYPE_NONE ? pages.dtype : dims.dtype;
  add_query_side(p, &dims, dims.b, dims.sq);
  add_key_side(p, &codes, used + 1, pages.page_size);
  pages.csr ? add_csr(p, &dims, pages, kv_lens, order, used) : add_table(p, &dims, pages, kv_lens, order);
  for (int64_t b = 0; b < dims.b; b++) {
    const int64_t tail = kv_lens[b] % pages.page_size;
    if (tail != 0) {
      const int64_t page = gy_page_of(p, b, kv_lens[b] - 1);
      poison_rows(&p->desc.k, &p->args.k, page, tail);
      poison_rows(&p->desc.v, &p->args.v, page, tail);
    }
  }
  poison_rows(&p->desc.k, &p->args.k, order[used], 0);
  poison_rows(&p->desc.v, &p->args.v, order[used], 0);
  free(order);
  return p;
}

int64_t gy_page_of(const gy_problem *p, int64_t b, int64_t j) {
  const int64_t n = j / p->desc.k.shape[1];
  if (p->desc.block_table.dtype != TSR_DTYPE_NONE) {
    return (int64_t)GY_GET(p, block_table, b, n, 0, 0);
  }
  return (int64_t)GY_GET(p, kv_indices, (int64_t)GY_GET(p, kv_indptr, b, 0, 0, 0) + n, 0, 0, 0);
}
