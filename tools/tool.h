/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of the command shares: exit codes, errors and the table of subcommands. */
#ifndef TESSERA_TOOL_H
#define TESSERA_TOOL_H

#include <stdint.h>

#include "tessera/tessera.h"

/* Exit codes of the command; also printed by `tessera --help`. */
enum {
  TOOL_OK = 0,
  TOOL_CHECK_FAILED = 1, /* computed, but a comparison that was asked for failed */
  TOOL_USAGE = 2,        /* the command line */
  TOOL_INVALID = 3,      /* a file or a value is missing, corrupt or breaks a rule */
  TOOL_UNSUPPORTED = 4,  /* valid, but nothing here computes it */
  TOOL_FAILED = 5,       /* out of memory, a device, a file that cannot be written */
  TOOL_MISSING = 6,      /* no such back end in this build, or its driver or device is not here */
  TOOL_INTERRUPTED = 130 /* Ctrl-C */
};

struct tool_options;

/* One subcommand: its options are the rows of the option table whose groups it names. */
typedef struct tool_command {
  const char *name;
  const char *summary;  /* one line */
  const char *synopsis; /* what follows the name */
  const char *text;     /* paragraphs for --help */
  const char *examples;
  uint32_t groups;                          /* OPTION_GROUP_* */
  int (*run)(struct tool_options *options); /* returns an exit code */
} tool_command;

extern const tool_command command_info, command_run, command_explain, command_mask, command_bench, command_demo,
    command_check, command_append, command_merge;

/* Fills an error in the library's own form. field may be "". */
void tool_error(tsr_error *err, tsr_status status, const char *field, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

/* Exit code of a status. */
int tool_exit_code(tsr_status status);

/* Reports a failure: a sentence on stderr, and with --json a document on stdout. Returns the exit code. */
int tool_fail(const struct tool_options *options, const tsr_error *err);

#endif
