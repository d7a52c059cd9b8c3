/* SPDX-License-Identifier: Apache-2.0 */
#include "svg.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FONT "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\""

void svg_begin(tool_text *out, double width, double height) {
  text_printf(out,
              "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\">\n",
              width, height, width, height);
  svg_rect(out, 0, 0, width, height, SVG_PAPER, 1);
}

void svg_end(tool_text *out) {
  text_puts(out, "</svg>\n");
}

void svg_rect(tool_text *out, double x, double y, double width, double height, const char *fill, double opacity) {
  text_printf(out, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"", x, y, width, height, fill);
  if (opacity < 1)
    text_printf(out, " opacity=\"%.2f\"", opacity);
  text_puts(out, "/>\n");
}

void svg_line(tool_text *out, double x1, double y1, double x2, double y2, const char *stroke, double width) {
  text_printf(out, "<line x1=\"%.2f\" y1=\"%.2f\" x2=\"%.2f\" y2=\"%.2f\" stroke=\"%s\" stroke-width=\"%.2f\"/>\n", x1,
              y1, x2, y2, stroke, width);
}

static void put_escaped(tool_text *out, const char *text) {
  for (; *text; text++) {
    const char *entity = *text == '<'   ? "&lt;"
                         : *text == '>' ? "&gt;"
                         : *text == '&' ? "&amp;"
                         : *text == '"' ? "&quot;"
                                        : NULL;
    if (entity)
      text_puts(out, entity);
    else if ((unsigned char)*text >= 0x20)
      text_append(out, text, 1);
  }
}

void svg_text(tool_text *out, double x, double y, double size, const char *anchor, const char *weight, const char *fill,
              const char *text) {
  text_printf(
      out, "<text x=\"%.2f\" y=\"%.2f\" " FONT " font-size=\"%.1f\" text-anchor=\"%s\" font-weight=\"%s\" fill=\"%s\">",
      x, y, size, anchor, weight, fill);
  put_escaped(out, text);
  text_puts(out, "</text>\n");
}

void svg_text_up(tool_text *out, double x, double y, double size, const char *fill, const char *text) {
  text_printf(out,
              "<text transform=\"translate(%.2f %.2f) rotate(-90)\" " FONT
              " font-size=\"%.1f\" text-anchor=\"middle\" fill=\"%s\">",
              x, y, size, fill);
  put_escaped(out, text);
  text_puts(out, "</text>\n");
}

/* A path through points with a dot on each. */
static void curve(tool_text *out, const double *x, const double *y, int32_t count, const char *stroke, int dashed) {
  text_puts(out, "<polyline fill=\"none\" stroke-linejoin=\"round\" points=\"");
  for (int32_t i = 0; i < count; i++)
    text_printf(out, "%s%.2f,%.2f", i ? " " : "", x[i], y[i]);
  text_printf(out, "\" stroke=\"%s\" stroke-width=\"2.5\"%s/>\n", stroke, dashed ? " stroke-dasharray=\"6 4\"" : "");
  for (int32_t i = 0; i < count; i++)
    text_printf(out, "<circle cx=\"%.2f\" cy=\"%.2f\" r=\"3.5\" fill=\"%s\"/>\n", x[i], y[i], stroke);
}

/* ---- Chart ----------------------------------------------------------------------------------- */

typedef struct range {
  double low, high;
} range;

static range range_of(const chart_panel *panel, int of_y) {
  range r = {INFINITY, 0};
  for (int32_t s = 0; s < panel->num_series; s++) {
    const double *values = of_y ? panel->series[s].y : panel->series[s].x;
    for (int32_t i = 0; i < panel->series[s].count; i++) {
      r.low = fmin(r.low, values[i]);
      r.high = fmax(r.high, values[i]);
    }
  }
  if (!(r.high > 0 && r.low > 0)) {
    r.low = 1;
    r.high = 10;
  }
  return r;
}

/* Whole steps around the data. */
static range widen(range r, double step) {
  r.low = pow(step, floor(log(r.low) / log(step) + 1e-9));
  r.high = pow(step, ceil(log(r.high) / log(step) - 1e-9));
  if (r.high <= r.low * 1.0001)
    r.high = r.low * step;
  return r;
}

static double place(double value, range r, double from, double to) {
  return from + (to - from) * (log(value) - log(r.low)) / (log(r.high) - log(r.low));
}

static void x_label_of(char out[40], double value) {
  if (value >= 1024 && fmod(value, 1024) == 0)
    snprintf(out, 40, "%.0fk", value / 1024);
  else
    snprintf(out, 40, "%.0f", value);
}

static void draw_panel(tool_text *out, const chart_panel *panel, const char *x_label, double left, double top,
                       double width, double height) {
  const double right = left + width, bottom = top + height;
  range rx = range_of(panel, 0);
  const range ry = widen(range_of(panel, 1), panel->y_step);
  char label[40];
  if (rx.high <= rx.low)
    rx.high = rx.low * 2;
  svg_text(out, left - 6, top - 16, 14, "start", "600", SVG_INK, panel->title);
  for (double y = ry.low; y <= ry.high * 1.0001; y *= panel->y_step) {
    const double at = place(y, ry, bottom, top);
    svg_line(out, left, at, right, at, SVG_GRID, 1);
    svg_text(out, left - 8, at + 4, 11, "end", "400", SVG_FAINT, panel->format(label, y));
  }
  const chart_series *longest = &panel->series[0];
  for (int32_t s = 1; s < panel->num_series; s++)
    longest = panel->series[s].count > longest->count ? &panel->series[s] : longest;
  for (int32_t i = 0; i < longest->count; i++) {
    const double at = place(longest->x[i], rx, left, right);
    svg_line(out, at, bottom, at, bottom + 5, SVG_FAINT, 1);
    x_label_of(label, longest->x[i]);
    svg_text(out, at, bottom + 19, 11, "middle", "400", SVG_FAINT, label);
  }
  svg_line(out, left, bottom, right, bottom, SVG_FAINT, 1);
  svg_text(out, (left + right) / 2, bottom + 38, 12, "middle", "400", SVG_FAINT, x_label);
  for (int32_t s = 0; s < panel->num_series; s++) {
    const chart_series *series = &panel->series[s];
    double x[CHART_MAX_POINTS], y[CHART_MAX_POINTS];
    for (int32_t i = 0; i < series->count; i++) {
      x[i] = place(series->x[i], rx, left, right);
      y[i] = place(series->y[i], ry, bottom, top);
    }
    curve(out, x, y, series->count, series->color, series->dashed);
  }
}

void chart_draw(tool_text *out, const char *title, const char *remark, const char *x_label, const chart_panel *panels,
                int32_t num_panels) {
  const double panel_width = 380, panel_height = 260, gap = 100, margin = 84, top = 132;
  const double width = margin + num_panels * panel_width + (num_panels - 1) * gap + 40;
  const double height = top + panel_height + 84;
  svg_begin(out, width, height);
  svg_text(out, 24, 36, 18, "start", "600", SVG_INK, title);
  double x = 24;
  for (int32_t s = 0; num_panels > 0 && s < panels[0].num_series; s++) { /* one legend for all panels */
    const chart_series *series = &panels[0].series[s];
    svg_line(out, x, 62, x + 24, 62, series->color, 3);
    svg_text(out, x + 32, 66, 13, "start", "400", SVG_INK, series->name);
    x += 56 + 7.2 * (double)strlen(series->name);
  }
  for (int32_t i = 0; i < num_panels; i++)
    draw_panel(out, &panels[i], x_label, margin + i * (panel_width + gap), top, panel_width, panel_height);
  svg_text(out, 24, height - 16, 11, "start", "400", SVG_FAINT, remark);
  svg_end(out);
}
