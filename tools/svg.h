/* SPDX-License-Identifier: Apache-2.0 */
/* Drawings as SVG text: shapes into a growing buffer, and the two drawings of the command. */
#ifndef TESSERA_TOOL_SVG_H
#define TESSERA_TOOL_SVG_H

#include <stdint.h>

#include "text.h"

/* Colours of all drawings, from one place. */
#define SVG_INK "#1f2933"
#define SVG_FAINT "#7b8794"
#define SVG_GRID "#e4e7eb"
#define SVG_PAPER "#ffffff"
#define SVG_SKIP "#f0f2f5"
#define SVG_PARTIAL "#f7c948"
#define SVG_FULL "#2186eb"
#define SVG_ACCENT "#2186eb"
#define SVG_RIVAL "#e12d39"

void svg_begin(tool_text *out, double width, double height);
void svg_end(tool_text *out);
void svg_rect(tool_text *out, double x, double y, double width, double height, const char *fill, double opacity);
void svg_line(tool_text *out, double x1, double y1, double x2, double y2, const char *stroke, double width);
/* anchor: "start", "middle", "end". weight: "400", "600". The text is escaped. */
void svg_text(tool_text *out, double x, double y, double size, const char *anchor, const char *weight, const char *fill,
              const char *text);
/* The same turned a quarter to the left. */
void svg_text_up(tool_text *out, double x, double y, double size, const char *fill, const char *text);

/* ---- Chart ----------------------------------------------------------------------------------- */

enum { CHART_MAX_SERIES = 4, CHART_MAX_POINTS = 32 };
typedef struct chart_series {
  char name[48];
  const char *color;
  int32_t dashed, count;
  double x[CHART_MAX_POINTS], y[CHART_MAX_POINTS]; /* positive: both axes are logarithmic */
} chart_series;

typedef struct chart_panel {
  const char *title;
  const char *(*format)(char out[40], double value); /* of the y axis */
  double y_step;                                     /* ratio between labels: 10, or 1024 of bytes is drawn as 16 */
  int32_t num_series;
  chart_series series[CHART_MAX_SERIES];
} chart_panel;

/* Panels side by side over a common x axis label, with a title and a remark below. */
void chart_draw(tool_text *out, const char *title, const char *remark, const char *x_label, const chart_panel *panels,
                int32_t num_panels);

#endif
