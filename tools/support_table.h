/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESSERA_TOOL_SUPPORT_TABLE_H
#define TESSERA_TOOL_SUPPORT_TABLE_H

#include "json.h"
#include "tool.h"

/* Prints the support table in Markdown, or with w appends it as member "support". */
tsr_status support_show(tsr_context *context, json_writer *w, tsr_error *err);

#endif
