/* SPDX-License-Identifier: Apache-2.0 */
/* The readers of JSON, .npy and .safetensors: what is right is read, what is wrong is refused in words. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool_test.h"

/* ---- JSON ------------------------------------------------------------------------------------ */

static int parses(const char *text) {
  json_document doc;
  char why[160];
  const int ok = json_parse(&doc, text, strlen(text), why);
  json_free(&doc);
  return ok;
}

static void test_json_grammar(void **state) {
  static const char *const good[] = {"0",
                                     "-0",
                                     "-1.5e+10",
                                     "1E5",
                                     "true",
                                     " null ",
                                     "\"\"",
                                     "[]",
                                     "{}",
                                     "[1,[2,{}]]",
                                     "{\"a\":1,\"a\":2}",
                                     "\"\\u00e9\\ud83d\\ude00\\n\"",
                                     "\"\xC3\xA9\xF0\x9F\x98\x80\"",
                                     "\t{ \"k\" : [ ] }\r\n"};
  static const char *const bad[] = {"",
                                    " ",
                                    "01",
                                    "1.",
                                    ".5",
                                    "+1",
                                    "1e",
                                    "-",
                                    "tru",
                                    "nul",
                                    "True",
                                    "'a'",
                                    "\"",
                                    "\"\\x\"",
                                    "\"\\u12\"",
                                    "\"\\ud800\"",
                                    "\"\\ude00\"",
                                    "\"\\ud800\\u0041\"",
                                    "\"\\u0000\"",
                                    "\"\x01\"",
                                    "\"\xFF\"",
                                    "\"\xC0\x80\"",
                                    "\"\xE0\x80\x80\"",
                                    "\"\xED\xA0\x80\"",
                                    "\"\xF5\x80\x80\x80\"",
                                    "\"\xC3\"",
                                    "[",
                                    "[1",
                                    "[1,]",
                                    "[,]",
                                    "[1 2]",
                                    "{",
                                    "{1:2}",
                                    "{\"a\"}",
                                    "{\"a\":}",
                                    "{\"a\":1,}",
                                    "{\"a\" 1}",
                                    "1 2",
                                    "[]]",
                                    "nan",
                                    "Infinity",
                                    "//"};
  (void)state;
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    if (!parses(good[i]))
      fail_msg("refused: %s", good[i]);
  }
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    if (parses(bad[i]))
      fail_msg("accepted: %s", bad[i]);
  }
}

static void test_json_depth(void **state) {
  char text[2 * JSON_MAX_DEPTH + 8];
  (void)state;
  for (int depth = JSON_MAX_DEPTH - 1; depth <= JSON_MAX_DEPTH + 1; depth++) {
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[2 * depth] = '\0';
    assert_int_equal(parses(text), depth <= JSON_MAX_DEPTH);
  }
}

static void test_json_values(void **state) {
  static const char text[] =
      "{\"s\": \"a\\\"\\u00e9\\ud83d\\ude00\", \"i\": -9223372036854775808, \"big\": 9223372036854775808,"
      " \"d\": 2.5e-3, \"list\": [1, true, null], \"o\": {\"x\": false}}";
  json_document doc;
  char why[160];
  int64_t integer;
  double number;
  (void)state;
  assert_true(json_parse(&doc, text, sizeof(text) - 1, why));
  assert_string_equal(at_path(&doc, "s")->text, "a\"\xC3\xA9\xF0\x9F\x98\x80");
  assert_true(json_int64(at_path(&doc, "i"), &integer));
  assert_true(integer == INT64_MIN);
  assert_false(json_int64(at_path(&doc, "big"), &integer));
  assert_false(json_int64(at_path(&doc, "d"), &integer));
  assert_true(json_double(at_path(&doc, "d"), &number));
  assert_true(number == 2.5e-3);
  assert_int_equal(at_path(&doc, "list")->count, 3);
  assert_int_equal(at_path(&doc, "list.1")->kind, JSON_TRUE);
  assert_int_equal(at_path(&doc, "o.x")->kind, JSON_FALSE);
  assert_null(json_get(doc.root, "absent"));
  json_free(&doc);
}

/* What the writer writes, the reader reads. */
static void test_json_round_trip(void **state) {
  tool_text text = {0};
  json_writer w = {&text, 0, 0};
  json_document doc;
  char why[160];
  int64_t integer;
  double number;
  (void)state;
  json_open(&w, NULL, '{');
  json_put_string(&w, "quote \" and \\", "line\nend\x01\x7F");
  json_put_string(&w, "bytes", "\xC3\xA9 \xFF\xC3 \xF0\x9F\x98\x80"); /* what is no UTF-8 is replaced */
  json_put_string(&w, "none", NULL);
  json_put_int(&w, "int", INT64_MIN);
  json_put_double(&w, "nan", NAN);
  json_put_double(&w, "pi", 3.25);
  json_open(&w, "empty", '[');
  json_close(&w, ']');
  json_close(&w, '}');
  assert_false(text.failed);
  if (!json_parse(&doc, text.data, text.len, why))
    fail_msg("%s\n%s", why, text.data);
  assert_string_equal(json_get(doc.root, "quote \" and \\")->text, "line\nend\x01\x7F");
  assert_string_equal(json_get(doc.root, "bytes")->text, "\xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD \xF0\x9F\x98\x80");
  assert_int_equal(json_get(doc.root, "none")->kind, JSON_NULL);
  assert_int_equal(json_get(doc.root, "nan")->kind, JSON_NULL);
  assert_true(json_int64(json_get(doc.root, "int"), &integer) && integer == INT64_MIN);
  assert_true(json_double(json_get(doc.root, "pi"), &number) && number == 3.25);
  json_free(&doc);
  text_free(&text);
}

/* Every prefix and every changed byte of a document: refused or read, never a crash; a prefix of an object is refused.
 */
static void test_json_damaged(void **state) {
  static const char text[] =
      "{\"__metadata__\":{\"a\":\"b\\u00e9\"},\"q\":{\"dtype\":\"F16\",\"shape\":[1,2],\"data_offsets\":[0,-4.5e1]}}";
  char copy[sizeof(text)], why[160];
  json_document doc;
  (void)state;
  for (size_t length = 0; length < sizeof(text) - 1; length++) {
    char *exact = malloc(length + 1); /* so that a sanitizer sees reads past the end */
    assert_non_null(exact);
    memcpy(exact, text, length);
    assert_false(json_parse(&doc, exact, length, why));
    json_free(&doc);
    free(exact);
  }
  for (size_t at = 0; at < sizeof(text) - 1; at++) {
    for (int value = 0; value < 256; value++) {
      memcpy(copy, text, sizeof(text));
      copy[at] = (char)value;
      json_parse(&doc, copy, sizeof(text) - 1, why);
      json_free(&doc);
    }
  }
}

/* ---- npy ------------------------------------------------------------------------------------- */

static size_t make_npy(char *out, int version, const char *header, size_t data_bytes) {
  const size_t length = strlen(header), start = version == 1 ? 10 : 12;
  memcpy(out, "\x93NUMPY", 6);
  out[6] = (char)version;
  out[7] = 0;
  for (size_t i = 8; i < start; i++)
    out[i] = (char)(length >> (8 * (i - 8)) & 255);
  memcpy(out + start, header, length);
  memset(out + start + length, 7, data_bytes);
  return start + length + data_bytes;
}

static tsr_status parse_npy(const char *header, size_t data_bytes, tensor_entry *entry, tsr_error *err) {
  char bytes[2048];
  const size_t size = make_npy(bytes, 1, header, data_bytes);
  return npy_parse(bytes, (int64_t)size, (int64_t)size, entry, err);
}

static void test_npy_good(void **state) {
  static const struct {
    const char *header;
    size_t bytes;
    int rank, fortran;
    tsr_dtype dtype;
    int64_t shape[3];
  } cases[] = {{"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }      \n", 24, 2, 0, TSR_F32, {2, 3, 0}},
               {"{'shape': (3,), 'fortran_order': True, 'descr': '<f2'}", 6, 1, 1, TSR_F16, {3, 0, 0}},
               {"{\"descr\":\"|i1\",\"fortran_order\":False,\"shape\":()}", 1, 0, 0, TSR_I8, {0, 0, 0}},
               {"{'descr': '|b1', 'fortran_order': False, 'shape': (2, 0, 5)}\n", 0, 3, 0, TSR_U8, {2, 0, 5}},
               {"{'descr': '<i8', 'fortran_order': False, 'shape': (2L,)}\n", 16, 1, 0, TSR_I64, {2, 0, 0}},
               {"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 9)}\n", 9, 3, 0, TSR_U8, {1, 1, 9}},
               {"{'descr': '<i4', 'fortran_order': False, 'shape': (4,)}\n", 16, 1, 0, TSR_I32, {4, 0, 0}}};
  (void)state;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    for (int version = 1; version <= 3; version++) {
      char bytes[512];
      tensor_entry entry;
      tsr_error err;
      const size_t size = make_npy(bytes, version, cases[i].header, cases[i].bytes);
      if (npy_parse(bytes, (int64_t)size, (int64_t)size, &entry, &err) != TSR_OK)
        fail_msg("%s: %s", cases[i].header, err.text);
      assert_int_equal(entry.rank, cases[i].rank);
      assert_int_equal(entry.dtype, cases[i].dtype);
      assert_int_equal(entry.fortran, cases[i].fortran);
      assert_int_equal(entry.bytes, cases[i].bytes);
      assert_int_equal(entry.offset + entry.bytes, size);
      for (int axis = 0; axis < entry.rank; axis++)
        assert_int_equal(entry.shape[axis], cases[i].shape[axis]);
    }
  }
}

static void test_npy_bad(void **state) {
  static const struct {
    const char *header;
    size_t bytes;
    const char *word; /* in the sentence */
  } cases[] = {
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", 23, "truncated"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}", 25, "too long"},
      {"{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", 16, "float32"},
      {"{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", 8, "big-endian"},
      {"{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", 16, "<c8"},
      {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8, "element type"},
      {"{'descr': '<f4', 'fortran_order': 1, 'shape': (2,)}", 8, "fortran_order"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2)}", 8, "shape"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8, "shape"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", 4, "shape"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9223372036854775807)}", 8, "overflows"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, "shape"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}", 8, "overflows"},
      {"{'descr': '<f4', 'fortran_order': False}", 8, "lacks"},
      {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "repeated"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", 8, "unknown"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8, "after"},
      {"['descr']", 8, "dictionary"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, "dictionary"},
      {"", 8, "dictionary"}};
  (void)state;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    tensor_entry entry;
    tsr_error err;
    assert_int_equal(parse_npy(cases[i].header, cases[i].bytes, &entry, &err), TSR_INVALID);
    if (!strstr(err.text, cases[i].word))
      fail_msg("%s: '%s' does not say '%s'", cases[i].header, err.text, cases[i].word);
  }
}

/* Whatever is accepted describes exactly the bytes that are there. */
static void assert_consistent(const tensor_entry *entry, int64_t size) {
  int64_t count = 1;
  for (int axis = 0; axis < entry->rank; axis++) {
    assert_true(entry->shape[axis] >= 0);
    count *= entry->shape[axis];
  }
  assert_true(entry->offset >= 0 && entry->bytes >= 0 && entry->offset + entry->bytes <= size);
  if (entry->dtype != TSR_DTYPE_NONE)
    assert_int_equal(entry->bytes, count * tsr_dtype_bits(entry->dtype) / 8);
}

static void test_npy_damaged(void **state) {
  char bytes[256];
  tensor_entry entry;
  tsr_error err;
  const size_t size = make_npy(bytes, 1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
  (void)state;
  for (size_t length = 0; length < size; length++) {
    char *exact = malloc(length + 1);
    assert_non_null(exact);
    memcpy(exact, bytes, length);
    assert_int_equal(npy_parse(exact, (int64_t)length, (int64_t)length, &entry, &err), TSR_INVALID);
    assert_true(err.text[0] != '\0');
    free(exact);
  }
  for (size_t at = 0; at < size - 24; at++) {
    for (int value = 0; value < 256; value++) {
      char copy[256];
      memcpy(copy, bytes, size);
      copy[at] = (char)value;
      if (npy_parse(copy, (int64_t)size, (int64_t)size, &entry, &err) == TSR_OK)
        assert_consistent(&entry, (int64_t)size);
    }
  }
}

/* ---- safetensors ----------------------------------------------------------------------------- */

static void parse_st(const char *header, int64_t data_bytes, safetensors *st, tsr_error *err) {
  const int64_t length = (int64_t)strlen(header);
  safetensors_parse(header, length, 8 + length + data_bytes, st, err);
}

static void test_safetensors_good(void **state) {
  static const char header[] =
      "{\"__metadata__\":{\"causal\":\"true\"},\"v\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[4,12]},"
      "\"q\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},\"e\":{\"dtype\":\"I64\",\"shape\":[0,3],\"data_"
      "offsets\":[4,4]},"
      "\"odd\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[12,14]}}  ";
  safetensors st;
  tsr_error err;
  (void)state;
  assert_int_equal(safetensors_parse(header, sizeof(header) - 1, sizeof(header) - 1 + 8 + 14, &st, &err), TSR_OK);
  assert_int_equal(st.count, 4);
  assert_string_equal(safetensors_metadata(&st, "causal"), "true");
  assert_null(safetensors_metadata(&st, "scale"));
  const tensor_entry *v = safetensors_find(&st, "v");
  assert_non_null(v);
  assert_int_equal(v->dtype, TSR_BF16);
  assert_int_equal(v->offset, 4);
  assert_int_equal(v->bytes, 8);
  assert_int_equal(safetensors_find(&st, "odd")->dtype, TSR_DTYPE_NONE);
  assert_null(safetensors_find(&st, "k"));
  safetensors_free(&st);
}

static void test_safetensors_bad(void **state) {
  static const struct {
    const char *header;
    int64_t bytes;
    const char *word;
  } cases[] = {{"", 0, "not JSON"},
               {"[]", 0, "not a JSON object"},
               {"{\"q\":1}", 0, "not an object"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, "not an object"},
               {"{\"q\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "dtype"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "sizes"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, "sizes"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "8 axes"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,4]}}", 4, "overflows"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "ascend"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "ascend"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, "beyond"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4, "fit its shape"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "starts at"},
               {"{\"q\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8, "take 4 bytes"},
               {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1]"
                ",\"data_offsets\":[0,4]}}",
                4, "starts at"},
               {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":[1]"
                ",\"data_offsets\":[4,8]}}",
                8, "two tensors"},
               {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__"},
               {"{\"__metadata__\":[]}", 0, "__metadata__"}};
  (void)state;
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    safetensors st;
    tsr_error err;
    memset(&err, 0, sizeof(err));
    parse_st(cases[i].header, cases[i].bytes, &st, &err);
    safetensors_free(&st);
    assert_int_equal(err.status, TSR_INVALID);
    if (!strstr(err.text, cases[i].word))
      fail_msg("%s: '%s' does not say '%s'", cases[i].header, err.text, cases[i].word);
  }
}

static void test_safetensors_header_length(void **state) {
  unsigned char head[8] = {2, 0, 0, 0, 0, 0, 0, 0};
  int64_t length;
  tsr_error err;
  (void)state;
  assert_int_equal(safetensors_header_bytes(head, 8, 10, &length, &err), TSR_OK);
  assert_int_equal(length, 2);
  assert_int_equal(safetensors_header_bytes(head, 8, 9, &length, &err), TSR_INVALID);
  for (int64_t size = 0; size < 8; size++)
    assert_int_equal(safetensors_header_bytes(head, size, size, &length, &err), TSR_INVALID);
  memset(head, 0xFF, 8);
  assert_int_equal(safetensors_header_bytes(head, 8, INT64_MAX, &length, &err), TSR_INVALID);
  head[7] = 0x7F;
  assert_int_equal(safetensors_header_bytes(head, 8, 100, &length, &err), TSR_INVALID);
}

static void test_safetensors_damaged(void **state) {
  static const char header[] = "{\"q\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,12]},\"k\":{\"dtype\":"
                               "\"U8\",\"shape\":[4],\"data_offsets\":[12,16]}}";
  const int64_t length = sizeof(header) - 1, size = 8 + length + 16;
  (void)state;
  for (int64_t at = 0; at < length; at++) {
    for (int value = 0; value < 256; value++) {
      char copy[sizeof(header)];
      safetensors st;
      tsr_error err;
      memcpy(copy, header, sizeof(header));
      copy[at] = (char)value;
      if (safetensors_parse(copy, length, size, &st, &err) == TSR_OK) {
        for (int64_t i = 0; i < st.count; i++)
          assert_consistent(&st.entries[i], size - st.data_offset);
      }
      safetensors_free(&st);
    }
  }
}

/* ---- Loading --------------------------------------------------------------------------------- */

static void test_round_trips(void **state) {
  static const tsr_dtype types[] = {TSR_F32, TSR_F16, TSR_I8, TSR_I32, TSR_I64, TSR_BF16, TSR_F8E4M3, TSR_F8E5M2};
  const char *const names[] = {"x"};
  (void)state;
  for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
    const int64_t shape[3] = {2, 3, 5};
    tool_tensor t, back, *list[1] = {&t};
    tsr_error err;
    assert_int_equal(tensor_create(&t, types[i], 3, shape, &err), TSR_OK);
    for (int64_t j = 0; j < t.bytes; j++)
      ((unsigned char *)t.data)[j] = (unsigned char)test_random();
    make_safetensors("x.safetensors", names, list, 1, NULL);
    assert_int_equal(tensor_load("x.safetensors:x", "q", TSR_DTYPE_NONE, &back, &err), TSR_OK);
    assert_int_equal(back.dtype, types[i]);
    assert_int_equal(back.rank, 3);
    assert_memory_equal(back.data, t.data, (size_t)t.bytes);
    tensor_free(&back);
    if (types[i] != TSR_BF16 && types[i] != TSR_F8E4M3 && types[i] != TSR_F8E5M2) {
      tool_output output = {0};
      int32_t index;
      assert_int_equal(output_open(&output, "x.npy", &index, &err), TSR_OK);
      assert_int_equal(npy_write(&output, index, &t, &err), TSR_OK);
      assert_int_equal(output_commit(&output, &err), TSR_OK);
      assert_int_equal(tensor_load("x.npy", "q", TSR_DTYPE_NONE, &back, &err), TSR_OK);
      assert_int_equal(back.dtype, types[i]);
      assert_memory_equal(back.data, t.data, (size_t)t.bytes);
      tensor_free(&back);
    }
    tensor_free(&t);
  }
}

static void test_load_refusals(void **state) {
  tool_tensor t;
  tsr_error err;
  (void)state;
  assert_int_equal(tensor_load("absent.npy", "q", TSR_DTYPE_NONE, &t, &err), TSR_INVALID);
  assert_non_null(strstr(err.text, "absent.npy"));
  assert_int_equal(tensor_load(".", "q", TSR_DTYPE_NONE, &t, &err), TSR_INVALID);
  assert_int_equal(tensor_load("1,2,x", "prefix", TSR_I32, &t, &err), TSR_INVALID);
  assert_int_equal(tensor_load("1.5", "prefix", TSR_I32, &t, &err), TSR_INVALID);
  assert_int_equal(tensor_load("99999999999", "prefix", TSR_I32, &t, &err), TSR_INVALID);
  assert_int_equal(tensor_load("", "prefix", TSR_I32, &t, &err), TSR_INVALID);
  assert_int_equal(tensor_load("1,-2,3", "prefix", TSR_I32, &t, &err), TSR_OK);
  assert_int_equal(((int32_t *)t.data)[1], -2);
  tensor_free(&t);
}

static int setup(void **state) {
  (void)state;
  make_folder();
  return 0;
}

static int teardown(void **state) {
  (void)state;
  remove_folder();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_json_grammar),
                                     cmocka_unit_test(test_json_depth),
                                     cmocka_unit_test(test_json_values),
                                     cmocka_unit_test(test_json_round_trip),
                                     cmocka_unit_test(test_json_damaged),
                                     cmocka_unit_test(test_npy_good),
                                     cmocka_unit_test(test_npy_bad),
                                     cmocka_unit_test(test_npy_damaged),
                                     cmocka_unit_test(test_safetensors_good),
                                     cmocka_unit_test(test_safetensors_bad),
                                     cmocka_unit_test(test_safetensors_header_length),
                                     cmocka_unit_test(test_safetensors_damaged),
                                     cmocka_unit_test(test_round_trips),
                                     cmocka_unit_test(test_load_refusals)};
  return cmocka_run_group_tests(tests, setup, teardown);
}
