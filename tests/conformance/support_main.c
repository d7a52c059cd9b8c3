/* SPDX-License-Identifier: Apache-2.0 */
/* The support table of README.md, between its markers. Usage:
 *   support_main                   prints the table that this build generates
 *   support_main --check README.md exit status 1 if the file has another one
 *   support_main --write README.md puts it there */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

static const char *const begin_mark = "<!-- support:begin -->\n", *const end_mark = "<!-- support:end -->";

static char *read_file(const char *path) {
  FILE *f = fopen(path, "rb");
  char *text = NULL;
  long size;
  if (f != NULL && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 &&
      (text = malloc((size_t)size + 1)) != NULL) {
    text[fread(text, 1, (size_t)size, f)] = '\0';
  }
  if (f != NULL) {
    fclose(f);
  }
  return text;
}

static int write_file(const char *path, const char *head, size_t head_bytes, const char *table, const char *tail) {
  FILE *f = fopen(path, "wb");
  if (f == NULL) {
    return -1;
  }
  fwrite(head, 1, head_bytes, f);
  fputs(table, f);
  fputs(tail, f);
  return (ferror(f) | fclose(f)) == 0 ? 0 : -1;
}

/* Shows the first line that differs. */
static void show_difference(const char *have, size_t have_bytes, const char *want) {
  size_t n = 0, line = 0;
  while (n < have_bytes && have[n] == want[n]) {
    n++;
    line = have[n - 1] == '\n' ? n : line;
  }
  printf("the file has:  %.*s\nit must have: %.*s\n", (int)strcspn(have + line, "\n"), have + line,
         (int)strcspn(want + line, "\n"), want + line);
}

int main(int argc, char **argv) {
  static char table[1 << 17];
  const int length = tsr_conformance_support_table(table, sizeof(table));
  if (length < 0 || (size_t)length >= sizeof(table)) {
    fprintf(stderr, "support_main: %s\n", length < 0 ? table : "the table is too long");
    return 2;
  }
  if (argc != 3) {
    fputs(table, stdout);
    return 0;
  }
  char *text = read_file(argv[2]);
  char *begin = text != NULL ? strstr(text, begin_mark) : NULL, *end = begin != NULL ? strstr(begin, end_mark) : NULL;
  int status = 0;
  if (end == NULL) {
    fprintf(stderr, "support_main: %s has no \"%.22s\" before \"%s\"\n", argv[2], begin_mark, end_mark);
    status = 2;
  } else if (strcmp(argv[1], "--write") == 0) {
    char *tail = malloc(strlen(end) + 1);
    begin += strlen(begin_mark);
    status = tail == NULL || write_file(argv[2], text, (size_t)(begin - text), table, strcpy(tail, end)) != 0 ? 2 : 0;
    free(tail);
  } else {
    begin += strlen(begin_mark);
    if ((size_t)(end - begin) != (size_t)length || memcmp(begin, table, (size_t)length) != 0) {
      printf("the support table of %s is not the one that this build generates; support_main --write puts it there\n",
             argv[2]);
      show_difference(begin, (size_t)(end - begin), table);
      status = 1;
    }
  }
  free(text);
  return status;
}
