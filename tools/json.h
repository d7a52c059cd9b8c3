/* SPDX-License-Identifier: Apache-2.0 */
/* A strict JSON reader (RFC 8259) and a writer, small enough to need no library.
 *
 * The reader takes UTF-8 of known length and makes a tree. It refuses what the grammar refuses, and also
 * invalid UTF-8, lone surrogates, NUL characters in strings and nesting deeper than JSON_MAX_DEPTH. Its
 * memory is a fixed multiple of the length of the text. Repeated member names are kept in order; whoever
 * reads an object decides about them.
 * Thread-safety: one thread per document or writer. */
#ifndef TESSERA_TOOL_JSON_H
#define TESSERA_TOOL_JSON_H

#include <stdint.h>

#include "text.h"

enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };
enum { JSON_MAX_DEPTH = 64 };

typedef struct json_value json_value;
struct json_value {
  int32_t kind;
  const char *key;          /* the member's name inside an object, else NULL */
  const char *text;         /* JSON_STRING: contents; JSON_NUMBER: as written; else NULL */
  json_value *first, *next; /* elements or members in order; the next one beside this value */
  int64_t count;            /* elements or members */
};

/* Owns the tree; zero it before json_parse. */
typedef struct json_document {
  json_value *root;
  struct json_block *blocks;
  char *strings;
} json_document;

/* Parses `length` bytes. Returns 1 and the tree, or 0 and a reason with its byte offset in `why`. The
 * document is freed by the caller in both cases. */
int json_parse(json_document *doc, const char *text, size_t length, char why[160]);
void json_free(json_document *doc);

/* The first member of that name, or NULL (also when `object` is NULL or no object). */
const json_value *json_get(const json_value *object, const char *key);
/* 1 and the number, if value is an integer without fraction or exponent that fits. */
int json_int64(const json_value *value, int64_t *out);
/* 1 and the number, if value is a number. */
int json_double(const json_value *value, double *out);

/* ---- Writing --------------------------------------------------------------------------------- */

/* Writes an indented document into `out`. key is the member's name, NULL inside an array or at the top. */
typedef struct json_writer {
  tool_text *out;
  int32_t depth;
  int32_t filled; /* the open object or array already has an entry */
} json_writer;

void json_open(json_writer *w, const char *key, char bracket);            /* '{' or '[' */
void json_close(json_writer *w, char bracket);                            /* '}' or ']' */
void json_put_string(json_writer *w, const char *key, const char *value); /* NULL: null */
void json_put_int(json_writer *w, const char *key, int64_t value);
void json_put_double(json_writer *w, const char *key, double value); /* not finite: null */
void json_put_bool(json_writer *w, const char *key, int value);

#endif
