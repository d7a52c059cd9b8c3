/* SPDX-License-Identifier: Apache-2.0 */
/* A result as JSON, to be sent. */
#include <math.h>
#include <stdio.h>

#include "../conformance.h"
#include "conf_commit.h"

static void put_string(FILE *f, const char *text) {
  fputc('"', f);
  for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
    if (*c == '"' || *c == '\\') {
      fprintf(f, "\\%c", *c);
    } else if (*c < 0x20) {
      fprintf(f, "\\u%04x", *c);
    } else {
      fputc(*c, f);
    }
  }
  fputc('"', f);
}

static void put_field(FILE *f, const char *key, const char *text) {
  fprintf(f, "\"%s\": ", key);
  put_string(f, text);
}

/* JSON has no infinity. */
static void put_ratio(FILE *f, const char *key, double x) {
  fprintf(f, isfinite(x) ? "\"%s\": %.6g" : "\"%s\": null", key, x);
}

static void put_device(FILE *f, const tsr_conformance_device *d) {
  fprintf(f, "    {");
  put_field(f, "name", d->name);
  fprintf(f, ", ");
  put_field(f, "description", d->description);
  fprintf(f, ", \"computes\": %s, \"runs\": %lld, \"passed\": %lld, \"failed\": %lld, \"refused\": %lld, ",
          d->computes ? "true" : "false", (long long)d->runs, (long long)d->passed, (long long)d->failed,
          (long long)d->refused);
  put_ratio(f, "worst", d->worst);
  fprintf(f, "}");
}

static void put_failure(FILE *f, const tsr_conformance_failure *x) {
  fprintf(f, "    {");
  put_field(f, "where", x->where);
  fprintf(f, ", ");
  put_field(f, "what", x->what);
  fprintf(f, ", ");
  put_field(f, "case", x->line);
  fprintf(f, "}");
}

int tsr_conformance_report(const tsr_conformance_result *r, const char *path) {
  FILE *f = fopen(path, "w");
  if (f == NULL) {
    return -1;
  }
  fprintf(f, "{\n  ");
  put_field(f, "version", tsr_version());
  fprintf(f, ",\n  ");
  put_field(f, "commit", CONF_COMMIT);
  fprintf(f, ",\n  \"seed\": %llu,\n  \"seconds\": %.3f,\n  \"cases\": %lld,\n  \"skipped\": %lld,\n",
          (unsigned long long)r->seed, r->seconds, (long long)r->cases, (long long)r->skipped);
  fprintf(f, "  \"runs\": %lld,\n  \"passed\": %lld,\n  \"failed\": %lld,\n  \"refused\": %lld,\n  ",
          (long long)r->runs, (long long)r->passed, (long long)r->failed, (long long)r->refused);
  put_ratio(f, "worst", r->worst);
  fprintf(f, ",\n  ");
  put_field(f, "worst_case", r->worst_line);
  fprintf(f, ",\n  \"devices\": [");
  for (int n = 0; n < r->num_devices; n++) {
    fprintf(f, n == 0 ? "\n" : ",\n");
    put_device(f, &r->devices[n]);
  }
  fprintf(f, "\n  ],\n  \"failures\": [");
  for (int n = 0; n < r->num_failures; n++) {
    fprintf(f, n == 0 ? "\n" : ",\n");
    put_failure(f, &r->failures[n]);
  }
  fprintf(f, "\n  ]\n}\n");
  return (ferror(f) | fclose(f)) == 0 ? 0 : -1;
}
