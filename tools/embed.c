/* SPDX-License-Identifier: Apache-2.0 */
/* Runs while Tessera is built: files become byte arrays of a C source.
 *
 *   embed texts OUT.c FOLDER NAME...
 *
 * writes the table of common/kernel_text.h: NAME and the contents of FOLDER/NAME, ended by a zero byte.
 *
 *   embed images OUT.c [SOURCE TARGET FILE]...
 *
 * writes the table of common/image.h: the contents of FILE, likewise. The same input gives the same output, wherever it
 * lies. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fputs("embed: ", stderr);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  exit(1);
}

/* The contents of a file, which the caller frees. */
static unsigned char *read_file(const char *path, size_t *bytes) {
  size_t room = 1 << 16, n = 0, got;
  unsigned char *data = malloc(room);
  FILE *in = fopen(path, "rb");
  if (in == NULL) {
    die("%s cannot be read", path);
  }
  while (data != NULL && (got = fread(data + n, 1, room - n, in)) > 0) {
    n += got;
    if (n == room) {
      unsigned char *grown = realloc(data, room * 2);
      room *= 2;
      data = grown;
    }
  }
  if (data == NULL) {
    die("no memory for %s", path);
  }
  if (ferror(in)) {
    die("%s: read error", path);
  }
  fclose(in);
  *bytes = n;
  return data;
}

/* `static const unsigned char NAME[] = {...};` with a zero byte at the end. */
static void write_array(FILE *out, const char *prefix, int index, const unsigned char *data, size_t bytes) {
  fprintf(out, "static const unsigned char %s%d[] = {", prefix, index);
  for (size_t i = 0; i < bytes; i++) {
    fprintf(out, "%s%u,", i % 32 == 0 ? "\n" : "", data[i]);
  }
  fputs("0};\n", out);
}

static void embed_texts(FILE *out, const char *folder, char **names, int n) {
  size_t *bytes = calloc((size_t)n + 1, sizeof(*bytes));
  char path[4096];
  if (bytes == NULL) {
    die("no memory");
  }
  fputs("/* Made by tools/embed.c. */\n#include \"common/kernel_text.h\"\n\n", out);
  for (int i = 0; i < n; i++) {
    unsigned char *data;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, names[i]) >= sizeof(path)) {
      die("a path is too long");
    }
    data = read_file(path, &bytes[i]);
    if (memchr(data, 0, bytes[i]) != NULL) {
      die("%s holds a zero byte", path);
    }
    write_array(out, "text", i, data, bytes[i]);
    free(data);
  }
  fputs("\nconst tsr__kernel_text tsr__kernel_texts[] = {\n", out);
  for (int i = 0; i < n; i++) {
    fprintf(out, "  {\"%s\", (const char *)text%d, %zu},\n", names[i], i, bytes[i]);
  }
  fputs("  {0, 0, 0}\n};\n", out);
  free(bytes);
}

static void embed_images(FILE *out, char **rows, int n) {
  size_t *bytes = calloc((size_t)n + 1, sizeof(*bytes));
  if (bytes == NULL) {
    die("no memory");
  }
  fputs("/* Made by tools/embed.c. */\n#include \"common/image.h\"\n\n", out);
  for (int i = 0; i < n; i++) {
    unsigned char *data = read_file(rows[3 * i + 2], &bytes[i]);
    write_array(out, "image", i, data, bytes[i]);
    free(data);
  }
  fputs("\nconst tsr__embedded_image tsr__embedded_images[] = {\n", out);
  for (int i = 0; i < n; i++) {
    fprintf(out, "  {\"%s\", \"%s\", image%d, %zu},\n", rows[3 * i], rows[3 * i + 1], i, bytes[i]);
  }
  fputs("  {0, 0, 0, 0}\n};\n", out);
  free(bytes);
}

int main(int argc, char **argv) {
  const int texts = argc >= 4 && strcmp(argv[1], "texts") == 0;
  FILE *out;
  if (!texts && !(argc >= 3 && strcmp(argv[1], "images") == 0 && argc % 3 == 0)) {
    die("usage: embed texts OUT.c FOLDER NAME... or embed images OUT.c [SOURCE TARGET FILE]...");
  }
  out = fopen(argv[2], "w");
  if (out == NULL) {
    die("%s cannot be written", argv[2]);
  }
  if (texts) {
    embed_texts(out, argv[3], argv + 4, argc - 4);
  } else {
    embed_images(out, argv + 3, argc / 3 - 1);
  }
  if (fflush(out) != 0 || ferror(out) || fclose(out) != 0) {
    die("%s: write error", argv[2]);
  }
  return 0;
}
