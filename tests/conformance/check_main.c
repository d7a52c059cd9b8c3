/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the conformance suite.
 * Usage: check_main [--full] [--seed N] [--random N] [--device D] [--variant V] [--isa L] [--filter TEXT] [--case LINE]
 *                   [--threads N] [--seconds S] [--max-work N] [--module FILE] [--cache DIR] [--pairwise FILE]
 *                   [--report FILE] [--part I/N] [--copies] [--no-properties] [--verbose] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"

static int usage(const char *word) {
  fprintf(stderr, "check_main: \"%s\" is not understood\n", word);
  return 2;
}

/* 1: the option takes a value. */
static int parse(tsr_conformance_options *o, const char *key, const char *value) {
  if (value == NULL) {
    return -1;
  }
  if (strcmp(key, "--seed") == 0) {
    o->seed = strtoull(value, NULL, 10);
  } else if (strcmp(key, "--random") == 0) {
    o->random_cases = strtoll(value, NULL, 10);
  } else if (strcmp(key, "--threads") == 0) {
    o->num_threads = (int32_t)strtol(value, NULL, 10);
  } else if (strcmp(key, "--seconds") == 0) {
    o->total_seconds = strtod(value, NULL);
  } else if (strcmp(key, "--device") == 0) {
    o->device = value;
  } else if (strcmp(key, "--variant") == 0) {
    o->variant = value;
  } else if (strcmp(key, "--isa") == 0) {
    o->cpu_isa = value;
  } else if (strcmp(key, "--filter") == 0) {
    o->filter = value;
  } else if (strcmp(key, "--case") == 0) {
    o->case_line = value;
  } else if (strcmp(key, "--module") == 0) {
    o->module = value;
  } else if (strcmp(key, "--cache") == 0) {
    o->cache_dir = value;
  } else if (strcmp(key, "--pairwise") == 0) {
    o->pairwise = value;
  } else if (strcmp(key, "--report") == 0) {
    o->report = value;
  } else if (strcmp(key, "--part") == 0) {
    if (sscanf(value, "%" SCNd32 "/%" SCNd32, &o->part, &o->parts) != 2 || o->part < 0 || o->part >= o->parts) {
      return -1;
    }
  } else {
    return -1;
  }
  return 1;
}

static void print_result(const tsr_conformance_result *r) {
  for (int n = 0; n < r->num_devices; n++) {
    const tsr_conformance_device *d = &r->devices[n];
    if (d->computes) {
      printf("%-16s %7lld runs, %lld failed, %lld refused, worst error %.3f of what is allowed   %s\n", d->name,
             (long long)d->runs, (long long)d->failed, (long long)d->refused, d->worst, d->description);
    } else {
      printf("%-16s records launches only: not run, not counted\n", d->name);
    }
  }
  printf("seed %llu: %lld cases, %lld skipped, %lld runs: %lld passed, %lld failed, %lld refused; %.1f s\n",
         (unsigned long long)r->seed, (long long)r->cases, (long long)r->skipped, (long long)r->runs,
         (long long)r->passed, (long long)r->failed, (long long)r->refused, r->seconds);
  printf("worst: %.3f, %s\n", r->worst, r->worst_line);
}

int main(int argc, char **argv) {
  static tsr_conformance_result result;
  tsr_conformance_options options = {0};
  int status;
  for (int n = 1; n < argc; n++) {
    if (strcmp(argv[n], "--full") == 0) {
      options.suite = TSR_CONFORMANCE_FULL;
    } else if (strcmp(argv[n], "--verbose") == 0) {
      options.verbose = 1;
    } else if (strcmp(argv[n], "--copies") == 0) {
      options.copies = 1;
    } else if (strcmp(argv[n], "--no-properties") == 0) {
      options.properties_off = 1;
    } else if (parse(&options, argv[n], n + 1 < argc ? argv[n + 1] : NULL) != 1) {
      return usage(argv[n]);
    } else {
      n++;
    }
  }
  status = tsr_conformance_run(&options, &result);
  if (status == 2) {
    fprintf(stderr, "check_main: %s\n", result.failures[0].what);
    return 2;
  }
  print_result(&result);
  return status;
}
