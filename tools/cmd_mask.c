/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera mask`: what a mask leaves to compute, as text and as a drawing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mask_pairs.h"
#include "report.h"
#include "svg.h"

typedef struct tile_map {
  int64_t rows, cols; /* of tiles */
  uint8_t *classes;   /* [rows][cols] TSR_TILE_* */
  int64_t full, partial, skipped;
  int32_t tile_q, tile_k;
  char variant[48];
} tile_map;

typedef struct mask_view {
  const tool_options *options;
  tool_problem problem;
  tool_engine engine;
  int64_t b, h, seqlen_q, seqlen_k;
  tile_map tiles;
  mask_pairs pairs;
  char title[256];
} mask_view;

/* ---- Finding out ----------------------------------------------------------------------------- */

static int64_t used_length(const tool_problem *p, int32_t cu, int32_t lengths, int64_t b, int64_t dense) {
  const tool_tensor *used = &p->inputs[lengths], *starts = &p->inputs[cu];
  if (used->dtype != TSR_DTYPE_NONE && used->count > 0)
    return (int64_t)tsr_decode(used->dtype, used->data, used->count == 1 ? 0 : b * used->stride[0]);
  if (starts->dtype != TSR_DTYPE_NONE)
    return (int64_t)(tsr_decode(starts->dtype, starts->data, (b + 1) * starts->stride[0]) -
                     tsr_decode(starts->dtype, starts->data, b * starts->stride[0]));
  return dense;
}

static tsr_status find_tiles(mask_view *v, tsr_error *err) {
  tile_map *m = &v->tiles;
  tsr_plan *plan;
  tsr_plan_info info;
  tsr_status status = tsr_plan_attention(v->engine.device, &v->problem.forward, &plan, err);
  if (status != TSR_OK)
    return status;
  memset(&info, 0, sizeof(info));
  info.size = sizeof(info);
  status = tsr_plan_get(plan, &info, err);
  if (status == TSR_OK) {
    m->tile_q = info.tile_q;
    m->tile_k = info.tile_k;
    snprintf(m->variant, sizeof(m->variant), "%s", info.variant);
    status = tsr_plan_tiles(plan, &v->problem.forward_args, v->b, v->h, NULL, 0, &m->rows, &m->cols, err);
  }
  if (status == TSR_OK) {
    m->classes = malloc((size_t)(m->rows * m->cols) + 1);
    if (!m->classes)
      tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for %lld tiles", (long long)m->rows * m->cols);
  }
  if (status == TSR_OK)
    status = tsr_plan_tiles(plan, &v->problem.forward_args, v->b, v->h, m->classes, m->rows * m->cols, &m->rows,
                            &m->cols, err);
  for (int64_t i = 0; status == TSR_OK && i < m->rows * m->cols; i++) {
    m->full += m->classes[i] == TSR_TILE_FULL;
    m->partial += m->classes[i] == TSR_TILE_PARTIAL;
    m->skipped += m->classes[i] == TSR_TILE_SKIP;
  }
  tsr_plan_destroy(plan);
  return status;
}

/* Tiles [row0,row1) x [col0,col1) seen from afar. */
static uint8_t merged_class(const tile_map *m, int64_t row0, int64_t row1, int64_t col0, int64_t col1) {
  int full = 1, skip = 1;
  for (int64_t r = row0; r < row1; r++) {
    for (int64_t c = col0; c < col1; c++) {
      full &= m->classes[r * m->cols + c] == TSR_TILE_FULL;
      skip &= m->classes[r * m->cols + c] == TSR_TILE_SKIP;
    }
  }
  return skip ? TSR_TILE_SKIP : full ? TSR_TILE_FULL : TSR_TILE_PARTIAL;
}

static double saved_share(const tile_map *m) {
  const double all = (double)m->rows * (double)m->cols;
  return all > 0 ? (double)m->skipped / all : 0;
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* The tiles that character `index` of `count` stands for: those it covers, or the one it lies in. */
static void covered_tiles(int64_t index, int64_t count, int64_t tiles, int64_t range[2]) {
  range[0] = index * tiles / count;
  range[1] = (index + 1) * tiles / count;
  if (range[1] <= range[0])
    range[1] = range[0] + 1;
  if (tiles <= count) {
    range[0] = (2 * index + 1) * tiles / (2 * count);
    range[1] = range[0] + 1;
  }
}

/* To scale, a character being twice as high as wide. */
static void print_art(const mask_view *v) {
  static const char *const plain[] = {".", "+", "#"};
  static const char *const blocks[] = {"\xC2\xB7", "\xE2\x96\x92", "\xE2\x96\x88"};
  static const term_style_kind styles[] = {STYLE_DIM, STYLE_YELLOW, STYLE_BLUE};
  const tool_term *t = &v->options->term;
  const tile_map *m = &v->tiles;
  const double shape = (double)v->seqlen_q / (double)v->seqlen_k;
  int64_t cols = t->columns - 4 < 72 ? t->columns - 4 : 72;
  if (cols * shape / 2 > 40)
    cols = (int64_t)(80 / shape);
  cols = cols < 1 ? 1 : cols;
  int64_t rows = llround((double)cols * shape / 2);
  rows = rows < 1 ? 1 : rows > 40 ? 40 : rows;
  for (int64_t r = 0; r < rows; r++) {
    int64_t row[2], col[2];
    int last = -1;
    covered_tiles(r, rows, m->rows, row);
    printf("  ");
    for (int64_t c = 0; c < cols; c++) {
      covered_tiles(c, cols, m->cols, col);
      const uint8_t kind = merged_class(m, row[0], row[1], col[0], col[1]);
      if (kind != last)
        printf("%s%s", term_style(t, STYLE_RESET), term_style(t, styles[kind]));
      last = kind;
      fputs(t->utf8 ? blocks[kind] : plain[kind], stdout);
    }
    printf("%s\n", term_style(t, STYLE_RESET));
  }
}

static void print_view(const mask_view *v) {
  const tool_term *t = &v->options->term;
  const tile_map *m = &v->tiles;
  term_number a, b, c;
  term_heading(t, v->title, NULL);
  printf("  %lld queries (down) x %lld keys (across), tiles of %d x %d, variant %s\n\n", (long long)v->seqlen_q,
         (long long)v->seqlen_k, m->tile_q, m->tile_k, m->variant);
  print_art(v);
  printf("\n  tiles   %s%s full%s, %s%s partial%s, %s skipped: %s%.1f %% of the work saved%s\n",
         term_style(t, STYLE_BLUE), format_count(a, (double)m->full), term_style(t, STYLE_RESET),
         term_style(t, STYLE_YELLOW), format_count(b, (double)m->partial), term_style(t, STYLE_RESET),
         format_count(c, (double)m->skipped), term_style(t, STYLE_BOLD), 100 * saved_share(m),
         term_style(t, STYLE_RESET));
  if (v->pairs.known)
    printf("  pairs   %s%s of %s visible (%.1f %%)\n", v->pairs.exact ? "" : "about ",
           format_count(a, v->pairs.visible), format_count(b, v->pairs.all), 100 * v->pairs.visible / v->pairs.all);
  if (v->options->output)
    printf("  saved   %s\n", v->options->output);
}

static int print_json(const mask_view *v) {
  const tile_map *m = &v->tiles;
  tool_text out = {0};
  json_writer w = {&out, 0, 0};
  json_open(&w, NULL, '{');
  json_put_string(&w, "command", "mask");
  report_device_json(&w, &v->engine.info);
  json_put_string(&w, "mask", v->title);
  json_put_string(&w, "variant", m->variant);
  json_put_int(&w, "sequence", v->b);
  json_put_int(&w, "head", v->h);
  json_put_int(&w, "seqlen_q", v->seqlen_q);
  json_put_int(&w, "seqlen_k", v->seqlen_k);
  json_put_int(&w, "tile_q", m->tile_q);
  json_put_int(&w, "tile_k", m->tile_k);
  json_put_int(&w, "tile_rows", m->rows);
  json_put_int(&w, "tile_cols", m->cols);
  json_put_int(&w, "tiles_full", m->full);
  json_put_int(&w, "tiles_partial", m->partial);
  json_put_int(&w, "tiles_skipped", m->skipped);
  json_put_double(&w, "work_saved", saved_share(m));
  if (v->pairs.known) {
    json_put_double(&w, "pairs_visible", v->pairs.visible);
    json_put_double(&w, "pairs", v->pairs.all);
    json_put_bool(&w, "pairs_exact", v->pairs.exact);
  }
  json_put_string(&w, "saved", v->options->output);
  json_put_int(&w, "exit_code", TOOL_OK);
  json_close(&w, '}');
  return report_print_json(&out);
}

/* ---- Drawing --------------------------------------------------------------------------------- */

typedef struct frame {
  double left, top, width, height; /* of the matrix, in pixels */
} frame;

/* Cells say something only where they are finer than the tiles. */
static int shows_cells(const mask_view *v) {
  return v->pairs.known && v->pairs.rows >= v->tiles.rows && v->pairs.cols >= v->tiles.cols;
}

/* Runs of equal class become one rectangle each. */
static void draw_tiles(tool_text *out, const mask_view *v, const frame *f) {
  static const char *const fills[] = {SVG_SKIP, "#fdf3d0", SVG_FULL};
  const tile_map *m = &v->tiles;
  const int64_t rows = m->rows < 512 ? m->rows : 512, cols = m->cols < 512 ? m->cols : 512;
  const double unit_y = f->height / (double)v->seqlen_q, unit_x = f->width / (double)v->seqlen_k;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t row0 = r * m->rows / rows, row1 = (r + 1) * m->rows / rows;
    const double y0 = (double)row0 * m->tile_q * unit_y, y1 = fmin((double)row1 * m->tile_q * unit_y, f->height);
    int64_t start = 0;
    for (int64_t c = 0; c < cols; c++) {
      const uint8_t kind = merged_class(m, row0, row1, c * m->cols / cols, (c + 1) * m->cols / cols);
      const int last =
          c + 1 == cols || merged_class(m, row0, row1, (c + 1) * m->cols / cols, (c + 2) * m->cols / cols) != kind;
      if (!last)
        continue;
      const int64_t col0 = start * m->cols / cols, col1 = (c + 1) * m->cols / cols;
      const double x0 = (double)col0 * m->tile_k * unit_x, x1 = fmin((double)col1 * m->tile_k * unit_x, f->width);
      const char *fill = kind == TSR_TILE_PARTIAL && !shows_cells(v) ? SVG_PARTIAL : fills[kind];
      if (kind != TSR_TILE_SKIP)
        svg_rect(out, f->left + x0, f->top + y0, x1 - x0, y1 - y0, fill, 1);
      start = c + 1;
    }
  }
}

/* Visible pairs of partial tiles, as cells. */
static void draw_cells(tool_text *out, const mask_view *v, const frame *f) {
  const mask_pairs *p = &v->pairs;
  const tile_map *m = &v->tiles;
  const double cell_x = f->width / p->cols, cell_y = f->height / p->rows;
  for (int32_t r = 0; r < p->rows; r++) {
    const int64_t tile_row = (int64_t)((r + 0.5) * (double)v->seqlen_q / p->rows) / m->tile_q;
    int32_t start = 0;
    int last_level = 0;
    for (int32_t c = 0; c <= p->cols; c++) {
      int level = 0;
      if (c < p->cols) {
        const int64_t tile_col = (int64_t)((c + 0.5) * (double)v->seqlen_k / p->cols) / m->tile_k;
        if (m->classes[tile_row * m->cols + tile_col] == TSR_TILE_PARTIAL)
          level = (int)lround(4 * p->density[r * p->cols + c]);
      }
      if (level == last_level && c < p->cols)
        continue;
      if (last_level > 0)
        svg_rect(out, f->left + start * cell_x, f->top + r * cell_y, (c - start) * cell_x, cell_y, SVG_PARTIAL,
                 last_level / 4.0);
      last_level = level;
      start = c;
    }
  }
}

static void draw_grid(tool_text *out, const mask_view *v, const frame *f) {
  const tile_map *m = &v->tiles;
  const double step_x = m->tile_k * f->width / (double)v->seqlen_k,
               step_y = m->tile_q * f->height / (double)v->seqlen_q;
  for (int64_t c = 1; c < m->cols && step_x >= 5; c++)
    svg_line(out, f->left + (double)c * step_x, f->top, f->left + (double)c * step_x, f->top + f->height, SVG_PAPER,
             0.8);
  for (int64_t r = 1; r < m->rows && step_y >= 5; r++)
    svg_line(out, f->left, f->top + (double)r * step_y, f->left + f->width, f->top + (double)r * step_y, SVG_PAPER,
             0.8);
}

static void draw_legend(tool_text *out, const mask_view *v, double x, double y) {
  const tile_map *m = &v->tiles;
  const struct {
    const char *fill, *name;
    int64_t count;
  } rows[] = {{SVG_FULL, "full: no mask code", m->full},
              {SVG_PARTIAL, "partial: masked per pair", m->partial},
              {SVG_SKIP, "skipped: never loaded", m->skipped}};
  char text[120];
  term_number a, b;
  snprintf(text, sizeof(text), "%.1f %%", 100 * saved_share(m));
  svg_text(out, x, y + 24, 30, "start", "600", SVG_INK, text);
  svg_text(out, x, y + 44, 13, "start", "400", SVG_FAINT, "of the work saved");
  for (int i = 0; i < 3; i++) {
    const double top = y + 72 + 44 * i;
    svg_rect(out, x, top, 18, 18, rows[i].fill, 1);
    snprintf(text, sizeof(text), "%s tiles", format_count(a, (double)rows[i].count));
    svg_text(out, x + 28, top + 9, 13, "start", "600", SVG_INK, text);
    svg_text(out, x + 28, top + 25, 12, "start", "400", SVG_FAINT, rows[i].name);
  }
  snprintf(text, sizeof(text), "tiles of %d queries x %d keys", m->tile_q, m->tile_k);
  svg_text(out, x, y + 222, 12, "start", "400", SVG_FAINT, text);
  if (!v->pairs.known)
    return;
  snprintf(text, sizeof(text), "%s%s pairs visible", v->pairs.exact ? "" : "about ", format_count(a, v->pairs.visible));
  svg_text(out, x, y + 242, 12, "start", "400", SVG_FAINT, text);
  snprintf(text, sizeof(text), "of %s (%.1f %%)", format_count(b, v->pairs.all), 100 * v->pairs.visible / v->pairs.all);
  svg_text(out, x, y + 258, 12, "start", "400", SVG_FAINT, text);
}

static tsr_status draw(const mask_view *v, tsr_error *err) {
  tool_text out = {0};
  const double longest = (double)(v->seqlen_q > v->seqlen_k ? v->seqlen_q : v->seqlen_k), side = 560;
  frame f = {64, 84, fmax(side * (double)v->seqlen_k / longest, 24), fmax(side * (double)v->seqlen_q / longest, 24)};
  const double width = f.left + f.width + 236, height = fmax(f.top + f.height, f.top + 270) + 48;
  char text[64];
  svg_begin(&out, width, height);
  svg_text(&out, 24, 36, 17, "start", "600", SVG_INK, v->title);
  svg_rect(&out, f.left, f.top, f.width, f.height, SVG_SKIP, 1);
  text_puts(&out, "<g shape-rendering=\"crispEdges\">\n"); /* neighbours meet without a seam */
  draw_tiles(&out, v, &f);
  if (shows_cells(v))
    draw_cells(&out, v, &f);
  text_puts(&out, "</g>\n");
  draw_grid(&out, v, &f);
  snprintf(text, sizeof(text), "%lld keys", (long long)v->seqlen_k);
  svg_text(&out, f.left + f.width / 2, f.top - 12, 13, "middle", "400", SVG_FAINT, text);
  snprintf(text, sizeof(text), "%lld queries", (long long)v->seqlen_q);
  svg_text_up(&out, f.left - 14, f.top + f.height / 2, 13, SVG_FAINT, text);
  draw_legend(&out, v, f.left + f.width + 32, f.top);
  svg_end(&out);
  tsr_status status = TSR_OK;
  if (out.failed)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for the drawing");
  else
    status = output_save(v->options->output, out.data, (int64_t)out.len, err);
  text_free(&out);
  return status;
}

/* ---- The command ----------------------------------------------------------------------------- */

static tsr_status prepare(mask_view *v, tool_options *options, tsr_error *err) {
  if (!options->heads.given && !options->input && !options->inputs[INPUT_q])
    options->heads.given = options->heads.value = 1; /* one head is drawn */
  tsr_status status = problem_build(&v->problem, options, NULL, PROBLEM_UNSET, err);
  if (status != TSR_OK)
    return status;
  v->b = options->sequence.value;
  v->h = options->head.value;
  if (v->b >= v->problem.num_sequences || v->h >= v->problem.heads) {
    tool_error(err, TSR_INVALID, "", "--sequence %lld, --head %lld: there are %lld sequences and %lld heads",
               (long long)v->b, (long long)v->h, (long long)v->problem.num_sequences, (long long)v->problem.heads);
    return err->status;
  }
  v->seqlen_q = used_length(&v->problem, INPUT_cu_seqlens_q, INPUT_seqlens_q, v->b, v->problem.max_seqlen_q);
  v->seqlen_k = v->problem.inputs[INPUT_kv_indptr].dtype != TSR_DTYPE_NONE
                    ? mask_csr_length(&v->problem, v->b)
                    : used_length(&v->problem, INPUT_cu_seqlens_k, INPUT_seqlens_k, v->b, v->problem.max_seqlen_k);
  if (v->seqlen_q < 1 || v->seqlen_k < 1) {
    tool_error(err, TSR_INVALID, "", "sequence %lld has no pairs to draw", (long long)v->b);
    return err->status;
  }
  char features[256];
  report_features(&v->problem, features);
  snprintf(v->title, sizeof(v->title), "%s", features);
  return TSR_OK;
}

static int mask(tool_options *options) {
  mask_view v;
  tsr_error err;
  memset(&v, 0, sizeof(v));
  v.options = options;
  if (options->num_arguments > 1 || (options->num_arguments == 1 && options->mask_expr)) {
    fprintf(stderr, "tessera mask: one expression, please (quote it)\n");
    return TOOL_USAGE;
  }
  if (options->num_arguments == 1)
    options->mask_expr = options->arguments[0];
  tsr_status status = prepare(&v, options, &err);
  if (status == TSR_OK)
    status = engine_open(&v.engine, options, NULL, NULL, &err);
  if (status == TSR_OK)
    status = find_tiles(&v, &err);
  if (status == TSR_OK)
    status = mask_pairs_find(&v.engine, &v.problem, v.b, v.h, v.seqlen_q, v.seqlen_k, &v.pairs, &err);
  if (status == TSR_OK && options->output)
    status = draw(&v, &err);
  int code = TOOL_OK;
  if (status != TSR_OK)
    code = tool_fail(options, &err);
  else if (options->json)
    code = print_json(&v);
  else
    print_view(&v);
  mask_pairs_free(&v.pairs);
  free(v.tiles.classes);
  engine_close(&v.engine);
  problem_free(&v.problem);
  return code;
}

const tool_command command_mask = {
    "mask",
    "what a mask leaves to compute, tile by tile, as text and as an SVG drawing",
    "[EXPR] [options] [-o mask.svg]",
    "Classifies every tile of a mask as skipped, partial or full, as the kernels do, and draws it. EXPR is a mask\n"
    "expression of the query position i and the key position j (nonzero = may attend); any mask option may be used\n"
    "instead or besides.\n",
    "  tessera mask 'j <= i && i - j < 256' --seqlen 2048 -o mask.svg\n"
    "  tessera mask --causal --window 300,0 --sink-tokens 64 --seqlen 2048\n"
    "  tessera mask --causal --mask mask.npy --seqlen 512 --json\n"
    "  tessera mask '(i / 128 + j / 128) % 2 == 0' --seqlen 1024 -o chess.svg\n",
    OPTION_GROUP_GENERAL | OPTION_GROUP_DEVICE | OPTION_GROUP_SHAPE | OPTION_GROUP_ATTENTION | OPTION_GROUP_INPUT |
        OPTION_GROUP_SVG,
    mask};
