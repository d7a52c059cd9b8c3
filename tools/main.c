/* SPDX-License-Identifier: Apache-2.0 */
/* The command `tessera`: dispatch, help, errors. Each subcommand is in a file of its own, cmd_*.c. */
#include <stdio.h>
#include <string.h>

#include "json.h"
#include "options.h"

static const tool_command *const commands[] = {&command_demo,   &command_run,   &command_explain,
                                               &command_mask,   &command_check, &command_bench,
                                               &command_append, &command_merge, &command_info};
enum { NUM_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

int tool_fail(const tool_options *options, const tsr_error *err) {
  const int code = tool_exit_code(err->status);
  const char *text = err->status == TSR_CANCELLED ? "interrupted; nothing was written" : err->text;
  fprintf(stderr, "tessera %s: %s: %s\n", options->command->name, tsr_status_name(err->status), text);
  if (options->json) {
    tool_text out = {0};
    json_writer w = {&out, 0, 0};
    json_open(&w, NULL, '{');
    json_put_string(&w, "command", options->command->name);
    json_open(&w, "error", '{');
    json_put_string(&w, "status", tsr_status_name(err->status));
    json_put_string(&w, "field", err->field);
    json_put_string(&w, "text", text);
    json_put_int(&w, "native_code", err->native_code);
    json_close(&w, '}');
    json_put_int(&w, "exit_code", code);
    json_close(&w, '}');
    if (!out.failed)
      fputs(out.data, stdout);
    text_free(&out);
  }
  return code;
}

static void print_help(void) {
  printf("Usage: tessera COMMAND [OPTION]...\n\n"
         "Attention kernels for every device, from the command line (version %s).\n\nCommands:\n",
         tsr_version());
  for (int i = 0; i < NUM_COMMANDS; i++)
    printf("  %-9s %s\n", commands[i]->name, commands[i]->summary);
  printf("\n`tessera COMMAND --help` lists the options of one, with examples. All take --json.\n\n"
         "Exit codes: 0 fine; 1 a check or comparison failed; 2 wrong usage; 3 invalid input (a file or a value);\n"
         "  4 valid, but unsupported here; 5 any other failure; 6 the back end, its driver or device is missing;\n"
         "  130 interrupted.\n\n"
         "Examples:\n"
         "  tessera demo\n"
         "  tessera run --seqlen 2048 --heads 8 --causal --check\n"
         "  tessera run --q q.npy --k k.npy --v v.npy --causal -o o.npy\n"
         "  tessera mask 'j <= i && i - j < 256' --seqlen 2048 -o mask.svg\n");
}

int main(int argc, char **argv) {
  tool_options options;
  if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    print_help();
    return argc < 2 ? TOOL_USAGE : TOOL_OK;
  }
  if (strcmp(argv[1], "--version") == 0) {
    printf("tessera %s\n", tsr_version());
    return TOOL_OK;
  }
  const tool_command *command = NULL;
  for (int i = 0; i < NUM_COMMANDS; i++) {
    if (strcmp(argv[1], commands[i]->name) == 0)
      command = commands[i];
  }
  if (!command) {
    fprintf(stderr, "tessera: no command '%s' (`tessera --help` lists them)\n", argv[1]);
    return TOOL_USAGE;
  }
  int code = options_parse(&options, command, argc - 1, argv + 1);
  if (code != TOOL_OK)
    return code;
  options.program = argv[0];
  if (options.help) {
    options_help(command);
    return TOOL_OK;
  }
  const int32_t color = !options.color || strcmp(options.color, "auto") == 0 ? TERM_COLOR_AUTO
                        : strcmp(options.color, "always") == 0               ? TERM_COLOR_ALWAYS
                                                                             : TERM_COLOR_NEVER;
  term_init(&options.term, options.json ? TERM_COLOR_NEVER : color);
  term_catch_interrupts();
  code = command->run(&options);
  if (fflush(stdout) != 0 && code == TOOL_OK) {
    fprintf(stderr, "tessera: standard output cannot be written\n");
    code = TOOL_FAILED;
  }
  return code;
}
