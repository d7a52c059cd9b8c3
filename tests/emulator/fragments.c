/* SPDX-License-Identifier: Apache-2.0 */
/* Fragment layouts of AMD's matrix units, as AMD's matrix instruction calculator prints them: which element of A, B and
 * D a lane holds where. */
#include <stdlib.h>

#include "common/kernel.h"
#include "emu.h"

enum { F32, F16, BF16, F8 };

typedef struct layout {
  tsr_emu_shape shape;
  int type;
} layout;

static const layout layouts[TSR_EMU_MATRIX_KINDS] = {
    [TSR_EMU_MFMA_32X32X8_F16] = {{32, 32, 8, 64, 4, 16}, F16},
    [TSR_EMU_MFMA_32X32X8_BF16] = {{32, 32, 8, 64, 4, 16}, BF16},
    [TSR_EMU_MFMA_16X16X16_F16] = {{16, 16, 16, 64, 4, 4}, F16},
    [TSR_EMU_MFMA_16X16X16_BF16] = {{16, 16, 16, 64, 4, 4}, BF16},
    [TSR_EMU_MFMA_32X32X4_BF16] = {{32, 32, 4, 64, 2, 16}, BF16},
    [TSR_EMU_MFMA_32X32X2_F32] = {{32, 32, 2, 64, 1, 16}, F32},
    [TSR_EMU_MFMA_32X32X16_F8] = {{32, 32, 16, 64, 8, 16}, F8},
    [TSR_EMU_MFMA_16X16X32_F8] = {{16, 16, 32, 64, 8, 4}, F8},
    [TSR_EMU_WMMA_GFX11_F16] = {{16, 16, 16, 32, 16, 8}, F16},
    [TSR_EMU_WMMA_GFX11_BF16] = {{16, 16, 16, 32, 16, 8}, BF16},
    [TSR_EMU_WMMA_GFX12_F16] = {{16, 16, 16, 32, 8, 8}, F16},
    [TSR_EMU_WMMA_GFX12_BF16] = {{16, 16, 16, 32, 8, 8}, BF16},
    [TSR_EMU_WMMA_GFX12_F8] = {{16, 16, 16, 32, 8, 8}, F8},
};

tsr_emu_shape tsr_emu_matrix_shape(int kind) {
  return layouts[kind].shape;
}

/* Inner index of element e of lane l, of A and of B; their row or column is l % m. */
static int inner_of(int kind, int l, int e) {
  const tsr_emu_shape s = layouts[kind].shape;
  switch (kind) {
  case TSR_EMU_WMMA_GFX11_F16:
  case TSR_EMU_WMMA_GFX11_BF16: return e;
  case TSR_EMU_WMMA_GFX12_F16:
  case TSR_EMU_WMMA_GFX12_BF16: return 8 * (e / 4) + 4 * (l / 16) + e % 4;
  default: return s.ab * (l / s.m) + e;
  }
}

/* Row of register r of D; its column is l % n. */
static int row_of(int kind, int l, int r) {
  switch (kind) {
  case TSR_EMU_WMMA_GFX11_F16:
  case TSR_EMU_WMMA_GFX11_BF16: return 2 * r + l / 16;
  case TSR_EMU_WMMA_GFX12_F16:
  case TSR_EMU_WMMA_GFX12_BF16:
  case TSR_EMU_WMMA_GFX12_F8: return 8 * (l / 16) + r;
  default: return layouts[kind].shape.m == 32 ? 8 * (r / 4) + 4 * (l / 32) + r % 4 : 4 * (l / 16) + r;
  }
}

static float element(int type, const void *p, int e) {
  switch (type) {
  case F32: return ((const float *)p)[e];
  case F16: return tsr_f16_to_f32(((const uint16_t *)p)[e]);
  case BF16: return tsr_bf16_to_f32(((const uint16_t *)p)[e]);
  default: return tsr_f8e4m3_to_f32(((const uint8_t *)p)[e]);
  }
}

void tsr_emu_multiply(int kind, const void *const *a, const void *const *b, const float *const *c, float *const *d) {
  const tsr_emu_shape s = layouts[kind].shape;
  const int type = layouts[kind].type;
  float x[32][32] = {{0}}, y[32][32] = {{0}}; /* A by row, B by column */
  float out[64][16];
  for (int l = 0; l < s.wave; l++) {
    for (int e = 0; e < s.ab; e++) {
      x[l % s.m][inner_of(kind, l, e)] = element(type, a[l], e);
      y[l % s.n][inner_of(kind, l, e)] = element(type, b[l], e);
    }
  }
  for (int l = 0; l < s.wave; l++) {
    for (int r = 0; r < s.cd; r++) {
      const int row = row_of(kind, l, r), column = l % s.n;
      out[l][r] = c[l][r];
      for (int k = 0; k < s.k; k++) {
        out[l][r] = fmaf(x[row][k], y[column][k], out[l][r]);
      }
    }
  }
  for (int l = 0; l < s.wave; l++) { /* d may be c */
    for (int r = 0; r < s.cd; r++) {
      d[l][r] = out[l][r];
    }
  }
}
