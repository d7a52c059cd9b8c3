/* SPDX-License-Identifier: Apache-2.0 */
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_VALUES = 256 };
struct json_block {
  struct json_block *next;
  int32_t used;
  json_value values[BLOCK_VALUES];
};

typedef struct parser {
  json_document *doc;
  const unsigned char *text, *end, *at;
  char *strings; /* next free byte of doc->strings */
  const char *why;
} parser;

static json_value *new_value(parser *p) {
  struct json_block *block = p->doc->blocks;
  if (!block || block->used == BLOCK_VALUES) {
    block = malloc(sizeof(*block));
    if (!block) {
      p->why = "out of memory";
      return NULL;
    }
    block->used = 0;
    block->next = p->doc->blocks;
    p->doc->blocks = block;
  }
  json_value *value = &block->values[block->used++];
  memset(value, 0, sizeof(*value));
  return value;
}

static int fail(parser *p, const char *why) {
  p->why = why;
  return 0;
}

static void skip_blanks(parser *p) {
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
    p->at++;
}

static int peek(const parser *p) {
  return p->at < p->end ? *p->at : -1;
}

/* Four hexadecimal digits; -1 if they are not. */
static int32_t parse_hex4(parser *p) {
  if (p->end - p->at < 4)
    return -1;
  int32_t code = 0;
  for (int i = 0; i < 4; i++) {
    const int c = *p->at++;
    int digit;
    if (c >= '0' && c <= '9')
      digit = c - '0';
    else if (c >= 'a' && c <= 'f')
      digit = c - 'a' + 10;
    else if (c >= 'A' && c <= 'F')
      digit = c - 'A' + 10;
    else
      return -1;
    code = code * 16 + digit;
  }
  return code;
}

static void put_utf8(parser *p, int32_t code) {
  if (code < 0x80) {
    *p->strings++ = (char)code;
  } else if (code < 0x800) {
    *p->strings++ = (char)(0xC0 | (code >> 6));
    *p->strings++ = (char)(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *p->strings++ = (char)(0xE0 | (code >> 12));
    *p->strings++ = (char)(0x80 | ((code >> 6) & 63));
    *p->strings++ = (char)(0x80 | (code & 63));
  } else {
    *p->strings++ = (char)(0xF0 | (code >> 18));
    *p->strings++ = (char)(0x80 | ((code >> 12) & 63));
    *p->strings++ = (char)(0x80 | ((code >> 6) & 63));
    *p->strings++ = (char)(0x80 | (code & 63));
  }
}

static int parse_escape(parser *p) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  const int c = peek(p);
  if (c < 0)
    return fail(p, "unfinished escape");
  p->at++;
  if (c != 'u') {
    const char *found = strchr(from, c);
    if (c == 0 || !found)
      return fail(p, "unknown escape");
    *p->strings++ = to[found - from];
    return 1;
  }
  int32_t code = parse_hex4(p);
  if (code >= 0xD800 && code < 0xDC00) {
    if (p->end - p->at < 2 || p->at[0] != '\\' || p->at[1] != 'u')
      return fail(p, "lone surrogate");
    p->at += 2;
    const int32_t low = parse_hex4(p);
    if (low < 0xDC00 || low > 0xDFFF)
      return fail(p, "lone surrogate");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xDC00 && code <= 0xDFFF) {
    return fail(p, "lone surrogate");
  }
  if (code < 0)
    return fail(p, "\\u needs four hexadecimal digits");
  if (code == 0)
    return fail(p, "NUL in a string");
  put_utf8(p, code);
  return 1;
}

/* Length of the well-formed UTF-8 sequence of more than one byte at `at`; 0: it is none. */
static int utf8_length(const unsigned char *at, const unsigned char *end) {
  const int lead = *at;
  const int length = lead >= 0xF0 && lead <= 0xF4  ? 4
                     : lead >= 0xE0 && lead < 0xF0 ? 3
                     : lead >= 0xC2 && lead < 0xE0 ? 2
                                                   : 0;
  if (length == 0 || end - at < length)
    return 0;
  int32_t code = lead & (0x7F >> length);
  for (int i = 1; i < length; i++) {
    if ((at[i] & 0xC0) != 0x80)
      return 0;
    code = (code << 6) | (at[i] & 63);
  }
  const int32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
  return code < least || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF) ? 0 : length;
}

static int copy_utf8(parser *p) {
  const int length = utf8_length(p->at, p->end);
  if (length == 0)
    return fail(p, "invalid UTF-8");
  memcpy(p->strings, p->at, (size_t)length);
  p->strings += length;
  p->at += length;
  return 1;
}

/* The decoded text never outgrows the raw one with its quotes, so doc->strings cannot overflow. */
static const char *parse_string(parser *p) {
  char *start = p->strings;
  p->at++;
  for (;;) {
    const int c = peek(p);
    int ok = 1;
    if (c < 0) {
      p->why = "unfinished string";
      return NULL;
    }
    if (c == '"')
      break;
    if (c < 0x20) {
      p->why = "control character in a string";
      return NULL;
    }
    if (c == '\\') {
      p->at++;
      ok = parse_escape(p);
    } else if (c < 0x80) {
      *p->strings++ = (char)c;
      p->at++;
    } else {
      ok = copy_utf8(p);
    }
    if (!ok)
      return NULL;
  }
  p->at++;
  *p->strings++ = '\0';
  return start;
}

static int parse_digits(parser *p) {
  if (peek(p) < '0' || peek(p) > '9')
    return fail(p, "a digit is missing");
  while (peek(p) >= '0' && peek(p) <= '9')
    p->at++;
  return 1;
}

static int parse_number(parser *p, json_value *value) {
  const unsigned char *start = p->at;
  if (peek(p) == '-')
    p->at++;
  if (peek(p) == '0')
    p->at++;
  else if (!parse_digits(p))
    return 0;
  if (peek(p) == '.') {
    p->at++;
    if (!parse_digits(p))
      return 0;
  }
  if (peek(p) == 'e' || peek(p) == 'E') {
    p->at++;
    if (peek(p) == '+' || peek(p) == '-')
      p->at++;
    if (!parse_digits(p))
      return 0;
  }
  const size_t length = (size_t)(p->at - start);
  value->kind = JSON_NUMBER;
  value->text = p->strings;
  memcpy(p->strings, start, length);
  p->strings[length] = '\0';
  p->strings += length + 1;
  return 1;
}

static int parse_word(parser *p, json_value *value, const char *word, int32_t kind) {
  const size_t length = strlen(word);
  if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
    return fail(p, "unknown word");
  p->at += length;
  value->kind = kind;
  return 1;
}

static json_value *parse_value(parser *p, int depth);

static int parse_member_name(parser *p, const char **key) {
  if (peek(p) != '"')
    return fail(p, "a member name in quotes is missing");
  *key = parse_string(p);
  if (!*key)
    return 0;
  skip_blanks(p);
  if (peek(p) != ':')
    return fail(p, "':' is missing");
  p->at++;
  return 1;
}

static int parse_entries(parser *p, json_value *value, int depth, char close) {
  json_value **link = &value->first;
  p->at++;
  skip_blanks(p);
  if (peek(p) == close) {
    p->at++;
    return 1;
  }
  for (;;) {
    const char *key = NULL;
    skip_blanks(p);
    if (close == '}' && !parse_member_name(p, &key))
      return 0;
    json_value *entry = parse_value(p, depth + 1);
    if (!entry)
      return 0;
    entry->key = key;
    *link = entry;
    link = &entry->next;
    value->count++;
    skip_blanks(p);
    const int c = peek(p);
    if (c != ',' && c != close)
      return fail(p, c < 0 ? "unexpected end" : "',' or a closing bracket is missing");
    p->at++;
    if (c == close)
      return 1;
  }
}

static json_value *parse_value(parser *p, int depth) {
  if (depth > JSON_MAX_DEPTH) {
    p->why = "nested too deeply";
    return NULL;
  }
  json_value *value = new_value(p);
  if (!value)
    return NULL;
  skip_blanks(p);
  int ok;
  switch (peek(p)) {
  case '{':
    value->kind = JSON_OBJECT;
    ok = parse_entries(p, value, depth, '}');
    break;
  case '[':
    value->kind = JSON_ARRAY;
    ok = parse_entries(p, value, depth, ']');
    break;
  case '"':
    value->kind = JSON_STRING;
    value->text = parse_string(p);
    ok = value->text != NULL;
    break;
  case 't': ok = parse_word(p, value, "true", JSON_TRUE); break;
  case 'f': ok = parse_word(p, value, "false", JSON_FALSE); break;
  case 'n': ok = parse_word(p, value, "null", JSON_NULL); break;
  case -1: ok = fail(p, "unexpected end"); break;
  default: ok = parse_number(p, value); break;
  }
  return ok ? value : NULL;
}

int json_parse(json_document *doc, const char *text, size_t length, char why[160]) {
  memset(doc, 0, sizeof(*doc));
  parser p = {doc, (const unsigned char *)text, NULL, (const unsigned char *)text, NULL, NULL};
  p.end = p.text + length;
  doc->strings = malloc(length + 2);
  if (!doc->strings) {
    snprintf(why, 160, "out of memory");
    return 0;
  }
  p.strings = doc->strings;
  json_value *root = parse_value(&p, 1);
  if (root) {
    skip_blanks(&p);
    if (p.at == p.end) {
      doc->root = root;
      return 1;
    }
    p.why = "text after the value";
  }
  snprintf(why, 160, "%s at byte %zu", p.why, (size_t)(p.at - p.text));
  return 0;
}

void json_free(json_document *doc) {
  while (doc->blocks) {
    struct json_block *block = doc->blocks;
    doc->blocks = block->next;
    free(block);
  }
  free(doc->strings);
  memset(doc, 0, sizeof(*doc));
}

const json_value *json_get(const json_value *object, const char *key) {
  if (!object || object->kind != JSON_OBJECT)
    return NULL;
  for (const json_value *v = object->first; v; v = v->next) {
    if (strcmp(v->key, key) == 0)
      return v;
  }
  return NULL;
}

int json_int64(const json_value *value, int64_t *out) {
  if (!value || value->kind != JSON_NUMBER || strpbrk(value->text, ".eE"))
    return 0;
  errno = 0;
  const long long number = strtoll(value->text, NULL, 10);
  if (errno == ERANGE)
    return 0;
  *out = number;
  return 1;
}

int json_double(const json_value *value, double *out) {
  if (!value || value->kind != JSON_NUMBER)
    return 0;
  *out = strtod(value->text, NULL);
  return 1;
}

/* ---- Writing --------------------------------------------------------------------------------- */

/* File names may hold any bytes: what is no UTF-8 becomes U+FFFD, so that the document stays one. */
static void quote(tool_text *out, const char *value) {
  const unsigned char *end = (const unsigned char *)value + strlen(value);
  text_puts(out, "\"");
  for (const unsigned char *c = (const unsigned char *)value; c < end;) {
    const int length = *c < 0x80 ? 1 : utf8_length(c, end);
    if (*c == '"' || *c == '\\')
      text_printf(out, "\\%c", *c);
    else if (*c < 0x20 || *c == 0x7F)
      text_printf(out, "\\u%04x", *c);
    else if (length == 0)
      text_puts(out, "\xEF\xBF\xBD");
    else
      text_append(out, (const char *)c, (size_t)length);
    c += length == 0 ? 1 : length;
  }
  text_puts(out, "\"");
}

static void start_entry(json_writer *w, const char *key) {
  if (w->filled)
    text_puts(w->out, ",");
  if (w->depth > 0)
    text_printf(w->out, "\n%*s", 2 * w->depth, "");
  if (key) {
    quote(w->out, key);
    text_puts(w->out, ": ");
  }
  w->filled = 1;
}

void json_open(json_writer *w, const char *key, char bracket) {
  start_entry(w, key);
  text_append(w->out, &bracket, 1);
  w->depth++;
  w->filled = 0;
}

void json_close(json_writer *w, char bracket) {
  w->depth--;
  if (w->filled)
    text_printf(w->out, "\n%*s", 2 * w->depth, "");
  text_append(w->out, &bracket, 1);
  w->filled = 1;
  if (w->depth == 0)
    text_puts(w->out, "\n");
}

void json_put_string(json_writer *w, const char *key, const char *value) {
  start_entry(w, key);
  if (value)
    quote(w->out, value);
  else
    text_puts(w->out, "null");
}

void json_put_int(json_writer *w, const char *key, int64_t value) {
  start_entry(w, key);
  text_printf(w->out, "%lld", (long long)value);
}

void json_put_double(json_writer *w, const char *key, double value) {
  char number[32];
  start_entry(w, key);
  snprintf(number, sizeof(number), "%.15g", value);
  if (isfinite(value) && strtod(number, NULL) != value)
    snprintf(number, sizeof(number), "%.17g", value);
  text_puts(w->out, isfinite(value) ? number : "null");
}

void json_put_bool(json_writer *w, const char *key, int value) {
  start_entry(w, key);
  text_puts(w->out, value ? "true" : "false");
}
