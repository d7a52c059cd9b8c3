/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "problem.h"

/* For each logical axis the file's axis it comes from, or -1 for an axis of extent 1. */
static int map_axes(int32_t axes, int32_t bhsd, int32_t rank, int32_t map[4]) {
  static const int32_t bshd4[4] = {0, 1, 2, 3}, bhsd4[4] = {0, 2, 1, 3};
  static const int32_t shd3[4] = {-1, 0, 1, 2}, hsd3[4] = {-1, 1, 0, 2}, sd2[4] = {-1, 0, -1, 1};
  const int32_t *fixed = NULL;
  int32_t least = 0, most = 4;
  switch (axes) {
  case AXES_BSHD:
    fixed = rank == 4 ? (bhsd ? bhsd4 : bshd4) : rank == 3 ? (bhsd ? hsd3 : shd3) : rank == 2 ? sd2 : NULL;
    if (!fixed)
      return 0;
    break;
  case AXES_SCALE:
    if (bhsd && rank >= 3)
      fixed = rank == 4 ? bhsd4 : hsd3;
    break;
  case AXES_BHS:
  case AXES_BLOCKS: most = 3; break;
  case AXES_VECTOR: most = 1; break;
  case AXES_ROWS:
  case AXES_TABLE:
    least = 1;
    most = 2;
    break;
  case AXES_AUX: least = 1; break;
  default: break;
  }
  if (rank < least || rank > most)
    return 0;
  if (fixed) {
    memcpy(map, fixed, 4 * sizeof(*map));
    return 1;
  }
  /* AUX and VECTOR are aligned left; the others right, to 4, 3 or 2 axes */
  const int32_t width = axes == AXES_BHS || axes == AXES_BLOCKS ? 3 : axes == AXES_ROWS || axes == AXES_TABLE ? 2 : 4;
  const int32_t first = axes == AXES_AUX || axes == AXES_VECTOR ? 0 : width - rank;
  for (int32_t i = 0; i < 4; i++)
    map[i] = i >= first && i < first + rank ? i - first : -1;
  return 1;
}

static const char *wanted_axes(int32_t axes) {
  switch (axes) {
  case AXES_BSHD: return "2, 3 or 4";
  case AXES_BHS:
  case AXES_BLOCKS: return "at most 3";
  case AXES_VECTOR: return "at most 1";
  case AXES_ROWS:
  case AXES_TABLE: return "1 or 2";
  case AXES_AUX: return "1 to 4";
  default: return "at most 4";
  }
}

tsr_status layout_of_tensor(const tool_tensor *tensor, int32_t axes, int32_t bhsd, const char *name, tsr_layout *layout,
                            tsr_error *err) {
  int32_t map[4];
  memset(layout, 0, sizeof(*layout));
  if (!map_axes(axes, bhsd, tensor->rank, map)) {
    tool_error(err, TSR_INVALID, name, "%s: has %d axes, %s are taken", name, tensor->rank, wanted_axes(axes));
    return err->status;
  }
  layout->dtype = tensor->dtype;
  for (int i = 0; i < 4; i++) {
    layout->shape[i] = map[i] < 0 ? 1 : tensor->shape[map[i]];
    layout->stride[i] = map[i] < 0 ? 0 : tensor->stride[map[i]];
  }
  return TSR_OK;
}

void layout_like(const tool_tensor *q, int64_t last, int32_t *rank, int64_t *shape) {
  *rank = q->rank;
  memcpy(shape, q->shape, sizeof(q->shape));
  shape[q->rank - 1] = last;
}
