/* SPDX-License-Identifier: Apache-2.0 */
/* The support table: each feature as a small description, asked of every device's variants. Nothing in it is written
 * by hand but the features' names and descriptions. */
#ifndef TESSERA_TOOL_SUPPORT_H
#define TESSERA_TOOL_SUPPORT_H

#include "tool.h"

/* Name of feature `index`, NULL past the end. */
const char *support_feature_name(int32_t index);

/* The description of a feature: forward, or backward. Pointers in it live as long as the program. Returns 0 where the
 * feature means nothing there (an output of forward alone). */
int support_feature_desc(int32_t index, int32_t op, tsr_attention_desc *desc);

#endif
