/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the builder share.
 *   build.c        dtypes, order of things, outputs, poison of what no row sees
 *   build_shape.c  lengths, arrangement, page tables
 *   build_main.c   q, k, v, gradients' inputs, scales
 *   build_mask.c   masks
 *   build_score.c  biases, ALiBi, sink, dropout, expressions
 *   tensor.c       memory of a tensor */
#ifndef TSR_TESTS_CONFORMANCE_BUILD_H
#define TSR_TESTS_CONFORMANCE_BUILD_H

#include "case.h"

/* Memory order of the axes, outermost first. */
typedef struct conf_order {
  int axis[4];
} conf_order;

/* Strides for a shape: last_stride between elements of the innermost axis, pad more elements after each of its runs. */
tsr_layout conf_layout(tsr_dtype dtype, const int64_t shape[4], conf_order order, int64_t last_stride, int64_t pad);

/* Allocates tensor `id`, fills it with its pattern and enters it into desc and args. `skew` elements (u4, bit: bytes)
 * of misalignment. 0: no memory. */
int conf_tensor_make(conf_problem *p, int id, int output, const tsr_layout *layout, int skew);
/* Tensor `id` in the memory of `owner`, element 0 at element `first` of owner's. */
void conf_tensor_share(conf_problem *p, int id, int owner, const tsr_layout *layout, int64_t first);

/* A tensor with strides as the case's layout item says, or in an order of axes that the seed picks (local tensors of
 * masks and biases). */
int conf_make_main(conf_problem *p, int id, int output, tsr_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                   int64_t n3);
int conf_make_local(conf_problem *p, int id, tsr_dtype dtype, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
/* A dense one. */
int conf_make_vector(conf_problem *p, int id, int output, tsr_dtype dtype, int64_t n0, int64_t n1);

/* Each returns 0 when there is no memory. */
int conf_build_lengths(conf_problem *p);
int conf_build_arrangement(conf_problem *p);
int conf_build_main(conf_problem *p);
int conf_build_masks(conf_problem *p);
int conf_build_score(conf_problem *p);

#endif
