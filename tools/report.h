/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptions that several subcommands print: the machine, the device, a problem. */
#ifndef TESSERA_TOOL_REPORT_H
#define TESSERA_TOOL_REPORT_H

#include "engine.h"
#include "problem.h"

/* "x, 2 processors, Linux 6.1 x86_64, gcc 12.2.0" into text. */
void report_machine(char text[256]);
void report_machine_json(json_writer *w);
void report_device_json(json_writer *w, const tsr_device_info *info);

/* One line a tensor: name, element type, shape, strides if they are not dense. */
void report_tensors(const tool_options *options, const tool_problem *problem);
void report_tensors_json(json_writer *w, const tool_problem *problem);

/* The features a description uses, as words separated by ", ": "causal, window 128,0". */
void report_features(const tool_problem *problem, char text[256]);

/* Prints a finished document, unless memory ran out: then TOOL_FAILED. */
int report_print_json(tool_text *document);

#endif
