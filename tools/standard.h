/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as it is usually written down, to compare with: all scores in memory, softmax over them, then their
 * product with V. f32. Not a straw man: blocked matrix products and a vectorised exponential in the machine's own
 * instruction set, softmax in place, the same threads. A causal mask saves the softmax its upper half, not the
 * products, which is what frameworks do. */
#ifndef TESSERA_TOOL_STANDARD_H
#define TESSERA_TOOL_STANDARD_H

#include <stdint.h>

/* Tensors are contiguous [B,S,H,D]; D is at most 576. */
typedef struct standard_problem {
  const float *q, *k, *v;
  float *o;
  int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v;
  int32_t causal; /* bottom-right */
  float scale;
  int32_t threads;
} standard_problem;

/* Bytes of scratch: the scores [B,H,Sq,Sk] and copies of K and V in the order the products want. */
int64_t standard_scratch_bytes(const standard_problem *problem);

/* isa: an instruction set level as tsr_device_info.isa names it; unknown ones take the lowest. scratch is aligned to 64
 * bytes. */
void standard_attention(const standard_problem *problem, const char *isa, float *scratch);

#endif
