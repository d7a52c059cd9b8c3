/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over real words: q, k, v and o recorded from language models, and their tokens. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo.h"

enum { MAX_RECORDINGS = 16, MAX_TOKENS_BYTES = 1 << 20, TOP = 3, REPEATS = 9 };

/* Rows worth a look in the recordings that come with the project. */
typedef struct gaze {
  const char *file;
  int64_t head, row;
  const char *remark;
  int32_t whole_text; /* draw it, instead of a line */
} gaze;
static const gaze gazes[] = {
    {"smollm2_layer18.safetensors", 6, 388, "what followed last time? It looks just behind the earlier one", 1},
    {"smollm2_layer18.safetensors", 6, 502, "the same head: what comes after \"in the\"?", 0},
    {"smollm2_layer02.safetensors", 1, 220, "the token just before", 0},
    {"minilm_layer02.safetensors", 11, 153, "which bank? One word decides", 0},
    {"minilm_layer02.safetensors", 9, 187, "words of one kind", 0}};
enum { NUM_GAZES = sizeof(gazes) / sizeof(gazes[0]) };

typedef struct recording {
  char path[512];
  tool_options options;
  tool_problem problem;
  engine_report report;
  verify_report verified;
  char model[96], layer[16], tokens_file[512];
  json_document tokens;
  char *tokens_text;
} recording;

/* ---- Loading --------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

static int32_t list_recordings(const char *folder, char *names[MAX_RECORDINGS]) {
  DIR *dir = opendir(folder);
  int32_t count = 0;
  const struct dirent *entry;
  while (dir && count < MAX_RECORDINGS && (entry = readdir(dir)) != NULL) {
    if (path_has_suffix(entry->d_name, ".safetensors") && (names[count] = strdup(entry->d_name)) != NULL)
      count++;
  }
  if (dir)
    closedir(dir);
  qsort(names, (size_t)count, sizeof(names[0]), compare_names);
  return count;
}

static tsr_status read_labels(recording *r, const char *folder, tsr_error *err) {
  tool_file file;
  safetensors st;
  tsr_status status = file_open(&file, r->path, err);
  if (status != TSR_OK)
    return status;
  status = safetensors_open(&file, &st, err);
  if (status == TSR_OK) {
    const char *model = safetensors_metadata(&st, "model"), *layer = safetensors_metadata(&st, "layer");
    const char *tokens = safetensors_metadata(&st, "tokens");
    snprintf(r->model, sizeof(r->model), "%.*s", model ? (int)strcspn(model, " ") : 0, model ? model : "");
    snprintf(r->layer, sizeof(r->layer), "%s", layer ? layer : "?");
    if (tokens && !strchr(tokens, '/'))
      snprintf(r->tokens_file, sizeof(r->tokens_file), "%.250s/%.250s", folder, tokens);
    safetensors_free(&st);
  }
  file_close(&file);
  return status;
}

static tsr_status read_tokens(recording *r, tsr_error *err) {
  int64_t length;
  char why[160];
  if (!r->tokens_file[0])
    return TSR_OK;
  const tsr_status status = file_read_text(r->tokens_file, MAX_TOKENS_BYTES, &r->tokens_text, &length, err);
  if (status != TSR_OK)
    return status;
  if (!json_parse(&r->tokens, r->tokens_text, (size_t)length, why)) {
    tool_error(err, TSR_INVALID, "", "%s: not JSON: %s", r->tokens_file, why);
    return err->status;
  }
  if (r->tokens.root->kind != JSON_ARRAY || r->tokens.root->count != r->problem.max_seqlen_q) {
    tool_error(err, TSR_INVALID, "", "%s: not a list of %lld tokens", r->tokens_file,
               (long long)r->problem.max_seqlen_q);
    return err->status;
  }
  return TSR_OK;
}

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static tsr_status load_and_check(demo_state *demo, recording *r, tsr_error *err) {
  double seconds[REPEATS];
  r->options = demo_options(demo);
  r->options.input = r->path;
  r->options.use_metadata = 1;
  r->options.out_dtype = "f32";
  r->options.expect = "self";
  tsr_status status = read_labels(r, demo->data, err);
  if (status == TSR_OK)
    status = problem_build(&r->problem, &r->options, NULL, 0, err);
  if (status == TSR_OK)
    status = read_tokens(r, err);
  for (int i = 0; i < REPEATS && status == TSR_OK; i++) {
    status = engine_run(demo->engine, &r->problem.forward, &r->problem.forward_args, NULL, &r->report, err);
    seconds[i] = r->report.seconds;
  }
  if (status == TSR_OK) {
    qsort(seconds, REPEATS, sizeof(seconds[0]), compare_doubles);
    r->report.seconds = seconds[REPEATS / 2];
  }
  r->verified.passed = 1;
  if (status == TSR_OK)
    status = verify_problem(demo->engine, &r->problem, 0, verify_threads(demo->options), &r->verified, err);
  if (status == TSR_OK && r->problem.expected.dtype != TSR_DTYPE_NONE)
    status = verify_expected(&r->problem, &r->problem.expected, 0, &r->verified, err);
  demo->passed &= r->verified.passed;
  return status;
}

static void free_recording(recording *r) {
  problem_free(&r->problem);
  json_free(&r->tokens);
  free(r->tokens_text);
}

/* ---- Which words look at which --------------------------------------------------------------- */

/* Probabilities of row i in head h, from q, k and the LSE alone: p_ij = exp(scale q_i.k_j - lse_i). */
static double *probabilities(const recording *r, int64_t h, int64_t i) {
  const tool_problem *p = &r->problem;
  const tsr_layout *q = &p->forward.q, *k = &p->forward.k, *lse = &p->forward.lse;
  const int64_t length = p->max_seqlen_k, kv = h / (p->heads / p->kv_heads);
  const double scale = p->forward_args.scale != 0 ? p->forward_args.scale : 1 / sqrt((double)p->head_dim);
  double *weight = calloc((size_t)length + 1, sizeof(double));
  const double total = tsr_decode(TSR_F32, p->outputs[OUTPUT_lse].data, h * lse->stride[1] + i * lse->stride[2]);
  const int64_t visible = p->forward.flags & TSR_CAUSAL ? i + 1 + length - p->max_seqlen_q : length;
  for (int64_t j = 0; weight && j < visible; j++) {
    double dot = 0;
    for (int64_t d = 0; d < p->head_dim; d++)
      dot += tsr_decode(q->dtype, p->inputs[INPUT_q].data, i * q->stride[1] + h * q->stride[2] + d * q->stride[3]) *
             tsr_decode(k->dtype, p->inputs[INPUT_k].data, j * k->stride[1] + kv * k->stride[2] + d * k->stride[3]);
    weight[j] = exp(scale * dot - total);
  }
  return weight;
}

static const char *token_at(const recording *r, int64_t index) {
  const json_value *v = r->tokens.root->first;
  for (int64_t i = 0; v && i < index; i++)
    v = v->next;
  return v && v->kind == JSON_STRING ? v->text : "";
}

static void top_words(const double *weight, int64_t length, int64_t top[TOP]) {
  for (int n = 0; n < TOP; n++) {
    top[n] = -1;
    for (int64_t j = 0; j < length; j++) {
      int taken = 0;
      for (int m = 0; m < n; m++)
        taken |= top[m] == j;
      if (!taken && (top[n] < 0 || weight[j] > weight[top[n]]))
        top[n] = j;
    }
  }
}

/* Columns a token takes: UTF-8 continuation bytes take none. */
static int64_t width_of(const char *token) {
  int64_t width = 0;
  for (; *token; token++)
    width += (*token & 0xC0) != 0x80;
  return width;
}

/* A token without the blank that joins it to the word before. */
static const char *word_of(const char *token) {
  return *token == ' ' && token[1] ? token + 1 : *token == '\n' ? "\\n" : token;
}

/* A background that grows stronger with the weight; black letters on it. */
static const char *heat(double weight) {
  static const struct {
    double least;
    const char *code;
  } levels[] = {{0.40, "\x1b[1;38;5;16;48;5;202m"},
                {0.20, "\x1b[38;5;16;48;5;208m"},
                {0.10, "\x1b[38;5;16;48;5;214m"},
                {0.05, "\x1b[38;5;16;48;5;221m"},
                {0.02, "\x1b[38;5;16;48;5;229m"}};
  for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
    if (weight >= levels[i].least)
      return levels[i].code;
  }
  return "";
}

/* The text up to the row (or all of it, where the model looks both ways), every token on its heat. Without colour
 * a share follows in brackets. */
static void draw_text(const recording *r, const gaze *g, const double *weight) {
  const tool_term *t = &r->options.term;
  const int64_t last = r->problem.forward.flags & TSR_CAUSAL ? g->row : r->problem.max_seqlen_k - 1;
  const int64_t columns = t->columns < 96 ? t->columns - 8 : 88;
  int64_t column = 0;
  const json_value *v = r->tokens.root->first;
  printf("    ");
  for (int64_t j = 0; v && j <= last; j++, v = v->next) {
    const char *token = v->kind == JSON_STRING ? v->text : "";
    char share[16] = "";
    if (!t->color && weight[j] >= 0.02)
      snprintf(share, sizeof(share), "[%.0f%%]", 100 * weight[j]);
    const int64_t width = width_of(token) + (int64_t)strlen(share);
    if (*token == '\n' || (column > 0 && column + width > columns + (*token == ' ' ? 0 : 12))) {
      printf("\n    ");
      column = 0;
    }
    if (*token == '\n')
      continue;
    if (column == 0 && *token == ' ')
      token++;
    const char *style = !t->color ? "" : j == g->row ? "\x1b[1;38;5;231;48;5;26m" : heat(weight[j]);
    printf("%s%s%s%s", style, token, share, *style ? "\x1b[0m" : "");
    column += width;
  }
  printf("\n");
}

static void show_gaze(const recording *r, const gaze *g, json_writer *w, int print) {
  const tool_term *t = &r->options.term;
  int64_t top[TOP];
  if (g->head >= r->problem.heads || g->row >= r->problem.max_seqlen_q || !r->tokens.root)
    return;
  double *weight = probabilities(r, g->head, g->row);
  if (!weight)
    return;
  top_words(weight, r->problem.max_seqlen_k, top);
  json_open(w, NULL, '{');
  json_put_int(w, "head", g->head);
  json_put_int(w, "position", g->row);
  json_put_string(w, "word", token_at(r, g->row));
  json_open(w, "looks_at", '[');
  if (print) {
    printf("  head %lld at %s\"%s\"%s (token %lld)  %s%s%s\n    looks at", (long long)g->head,
           term_style(t, STYLE_BOLD), word_of(token_at(r, g->row)), term_style(t, STYLE_RESET), (long long)g->row,
           term_style(t, STYLE_DIM), g->remark, term_style(t, STYLE_RESET));
  }
  for (int n = 0; n < TOP && top[n] >= 0; n++) {
    json_open(w, NULL, '{');
    json_put_int(w, "position", top[n]);
    json_put_string(w, "word", token_at(r, top[n]));
    json_put_double(w, "share", weight[top[n]]);
    json_close(w, '}');
    if (print && (n == 0 || weight[top[n]] >= 0.05)) {
      printf("%s %s\"%s\"%s %s%.0f %%%s", n ? "," : "", term_style(t, STYLE_BOLD), word_of(token_at(r, top[n])),
             term_style(t, STYLE_RESET), term_style(t, STYLE_YELLOW), 100 * weight[top[n]], term_style(t, STYLE_RESET));
      if (top[n] > 0)
        printf(" %s(after \"%s\")%s", term_style(t, STYLE_DIM), word_of(token_at(r, top[n] - 1)),
               term_style(t, STYLE_RESET));
    }
  }
  json_close(w, ']');
  json_close(w, '}');
  if (print) {
    printf("\n");
    if (g->whole_text)
      draw_text(r, g, weight);
  }
  free(weight);
}

/* ---- The part -------------------------------------------------------------------------------- */

static void print_recording(const recording *r) {
  const tool_term *t = &r->options.term;
  term_number time;
  printf("%s layer %s: %lld tokens, %lld heads on %lld, D = %lld, %s, %s: %s%s%s\n", r->model, r->layer,
         (long long)r->problem.max_seqlen_q, (long long)r->problem.heads, (long long)r->problem.kv_heads,
         (long long)r->problem.head_dim, r->problem.forward.flags & TSR_CAUSAL ? "causal" : "both ways",
         tsr_dtype_name(r->problem.inputs[INPUT_q].dtype), term_style(t, STYLE_BOLD),
         format_seconds(time, r->report.seconds), term_style(t, STYLE_RESET));
  for (int32_t i = 0; i < r->verified.count; i++) {
    const verify_result *v = &r->verified.results[i];
    if (strcmp(v->name, "lse") == 0)
      continue;
    printf("  max error against %-22s %.2g of %.2g allowed  %s%s%s\n",
           strcmp(v->name, "o") == 0 ? "the float64 oracle" : "the model's own output", v->max_error, v->max_allowed,
           term_style(t, v->passed ? STYLE_GREEN : STYLE_RED), v->passed ? "ok" : "FAIL", term_style(t, STYLE_RESET));
  }
}

static tsr_status show_recording(demo_state *demo, const char *name, tsr_error *err) {
  recording r;
  memset(&r, 0, sizeof(r));
  snprintf(r.path, sizeof(r.path), "%.250s/%.250s", demo->data, name);
  const tsr_status status = load_and_check(demo, &r, err);
  if (status == TSR_OK) {
    json_writer *w = demo->w;
    json_open(w, NULL, '{');
    json_put_string(w, "file", name);
    json_put_string(w, "model", r.model);
    json_put_string(w, "layer", r.layer);
    json_put_string(w, "variant", r.report.variant);
    json_put_double(w, "seconds", r.report.seconds);
    verify_json(w, &r.verified);
    json_open(w, "words", '[');
    if (!demo->options->json)
      print_recording(&r);
    for (int i = 0; i < NUM_GAZES; i++) {
      if (strcmp(gazes[i].file, name) == 0)
        show_gaze(&r, &gazes[i], w, !demo->options->json);
    }
    json_close(w, ']');
    json_close(w, '}');
  }
  free_recording(&r);
  return status;
}

tsr_status demo_words(demo_state *demo, tsr_error *err) {
  char *names[MAX_RECORDINGS];
  const int32_t count = list_recordings(demo->data, names);
  tsr_status status = TSR_OK;
  if (count == 0) {
    tool_error(err, TSR_INVALID, "data", "%s: no .safetensors files there (--data DIR says where they are)",
               demo->data);
    return err->status;
  }
  json_open(demo->w, "words", '[');
  for (int32_t i = 0; i < count; i++) {
    if (status == TSR_OK)
      status = show_recording(demo, names[i], err);
    free(names[i]);
  }
  json_close(demo->w, ']');
  return status;
}
