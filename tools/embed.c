/* SPDX-License-Identifier: Apache-2.0 */
/* Runs while Tessera is built: files become arrays of a C source.
 *
 *   embed texts OUT.c FOLDER NAME...
 *
 * writes the table of common/kernel_text.h: NAME and the contents of FOLDER/NAME, ended by a zero byte.
 *
 *   embed images OUT.c [MANIFEST]
 *
 * writes the table of common/image.h. A line of MANIFEST is "SOURCE TARGET FILE", see aot/aot.c; without one there are
 * no images. The same input gives the same output, wherever it lies. */
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

/* A byte inside a string literal. Three octal digits never run into what follows. */
static void write_byte(FILE *out, unsigned char byte) {
  if (byte == '\n') {
    fputs("\\n", out);
  } else if (byte == '"' || byte == '\\' || byte == '?') { /* ?: of trigraphs */
    fprintf(out, "\\%c", byte);
  } else if (byte >= 32 && byte < 127) {
    fputc(byte, out);
  } else {
    fprintf(out, "\\%03o", byte);
  }
}

/* `static const unsigned char PREFIX0[] = "...";`: literals, which compilers read many times faster than lists of
 * numbers, and which end in a zero byte. */
static void write_array(FILE *out, const char *prefix, int index, const unsigned char *data, size_t bytes) {
  fprintf(out, "static const unsigned char %s%d[] =\n\"", prefix, index);
  for (size_t i = 0; i < bytes; i++) {
    write_byte(out, data[i]);
    if (data[i] == '\n' || i % 128 == 127) {
      fputs("\"\n\"", out);
    }
  }
  fputs("\";\n", out);
}

static void write_head(FILE *out, const char *header) {
  fprintf(out, "/* Made by tools/embed.c. */\n#include \"%s\"\n\n", header);
  fputs("#if defined(__GNUC__)\n#pragma GCC diagnostic ignored \"-Woverlength-strings\"\n#endif\n\n", out);
}

static void embed_texts(FILE *out, const char *folder, char **names, int n) {
  size_t *bytes = calloc((size_t)n + 1, sizeof(*bytes));
  char path[4096];
  if (bytes == NULL) {
    die("no memory");
  }
  write_head(out, "common/kernel_text.h");
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

enum { MAX_IMAGES = 4096 };

typedef struct image_row {
  char source[80], target[80];
  size_t bytes;
} image_row;

/* Writes the image of a line and fills its row. */
static void embed_image(FILE *out, int index, const char *line, image_row *row) {
  char path[2048];
  unsigned char *data;
  if (sscanf(line, "%79s %79s %2047[^\n]", row->source, row->target, path) != 3) {
    die("this line is not understood: %s", line);
  }
  data = read_file(path, &row->bytes);
  write_array(out, "image", index, data, row->bytes);
  free(data);
}

static void embed_images(FILE *out, const char *manifest) {
  image_row *rows = calloc(MAX_IMAGES, sizeof(*rows));
  FILE *in = manifest != NULL ? fopen(manifest, "r") : NULL;
  char line[2400];
  int n = 0;
  if (rows == NULL || (manifest != NULL && in == NULL)) {
    die("%s cannot be read", manifest != NULL ? manifest : "nothing");
  }
  write_head(out, "common/image.h");
  while (in != NULL && fgets(line, sizeof(line), in) != NULL) {
    if (n == MAX_IMAGES) {
      die("more than %d images", MAX_IMAGES);
    }
    embed_image(out, n, line, &rows[n]);
    n++;
  }
  fputs("\nconst tsr__embedded_image tsr__embedded_images[] = {\n", out);
  for (int i = 0; i < n; i++) {
    fprintf(out, "  {\"%s\", \"%s\", image%d, %zu},\n", rows[i].source, rows[i].target, i, rows[i].bytes);
  }
  fputs("  {0, 0, 0, 0}\n};\n", out);
  if (in != NULL) {
    fclose(in);
  }
  free(rows);
}

int main(int argc, char **argv) {
  const int texts = argc >= 4 && strcmp(argv[1], "texts") == 0;
  FILE *out;
  if (!texts && !(argc >= 3 && argc <= 4 && strcmp(argv[1], "images") == 0)) {
    die("usage: embed texts OUT.c FOLDER NAME... or embed images OUT.c [MANIFEST]");
  }
  out = fopen(argv[2], "w");
  if (out == NULL) {
    die("%s cannot be written", argv[2]);
  }
  if (texts) {
    embed_texts(out, argv[3], argv + 4, argc - 4);
  } else {
    embed_images(out, argc == 4 ? argv[3] : NULL);
  }
  if (fflush(out) != 0 || ferror(out) || fclose(out) != 0) {
    die("%s: write error", argv[2]);
  }
  return 0;
}
