/* SPDX-License-Identifier: Apache-2.0 */
/* The conformance suite: every case runs on every back end, device, CPU level and variant, and must agree with the
 * float64 oracle within the project's one tolerance rule. Outputs and workspace are poisoned and lie between guard
 * bands; each variant is forced, and the plan must say that it is the one that ran. A device that only records launches
 * is listed, never counted. "Unsupported" is never counted as passed, and a failure where each feature of the case is
 * supported by itself. For `tessera check`, for tests and for whoever ports Tessera to a device. */
#ifndef TSR_TESTS_CONFORMANCE_H
#define TSR_TESTS_CONFORMANCE_H

#include "tessera/tessera.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  TSR_CONFORMANCE_QUICK =
      0, /* each feature, each pair of features, some shapes of other libraries' tests: about a minute */
  TSR_CONFORMANCE_FULL = 1 /* all shapes of other libraries' tests besides, and more random cases: hours */
};

typedef struct tsr_conformance_progress {
  int64_t done, total;             /* cases */
  int64_t passed, failed, refused; /* runs */
  const char *case_line;           /* the case that comes next, NULL at the end */
} tsr_conformance_progress;

/* When the tamper hook is called. */
enum { TSR_CONFORMANCE_BEFORE_RUN = 0, TSR_CONFORMANCE_AFTER_RUN = 1 };

/* All zero: the defaults. */
typedef struct tsr_conformance_options {
  int32_t suite;
  int32_t verbose;        /* 1: a line for every case */
  int32_t num_threads;    /* of a CPU run; 0: the library's default */
  int32_t properties_off; /* 1: leave out the tests that are no single cases: determinism, threads, workspace */
  const char *device;     /* only devices whose name begins so, e.g. "cpu", "cuda:1"; NULL: all */
  const char *variant;    /* only this one; NULL: all */
  const char *cpu_isa;    /* only this level; NULL: all that the machine has */
  const char *filter;     /* only cases and properties whose name or line contains this; NULL: all */
  const char *case_line;  /* only this case, as a failure prints it; NULL: the suite */
  const char *module;     /* a back end to load, tsr_backend_load; NULL: none */
  const char *cache_dir;  /* where compiled kernels are kept; NULL: nowhere */
  const char *pairwise;   /* tests/data/pairwise.bin, whose cases run too; NULL: none */
  uint64_t seed;          /* 0: from the clock */
  int64_t random_cases;   /* 0: the suite's number; -1: none */
  double case_seconds;    /* time limit of a run, 0: 120 */
  double total_seconds;   /* begin no more cases after this; 0: no limit. Cases left out are counted as skipped */
  /* Nonzero: end now. Asked before every case, and during runs from any of their threads; must go on saying so. What it
   * breaks off is no failure. NULL: never. */
  int32_t (*should_stop)(void *user);
  void (*progress)(void *user, const tsr_conformance_progress *progress);
  void (*line)(void *user, const char *text); /* a failure, or with verbose a case; NULL: stdout */
  /* For the suite's own test: may change what a run reads or wrote. */
  void (*tamper)(void *user, int32_t when, const tsr_attention_desc *desc, tsr_run_args *args);
  void *user;
  int32_t copies;      /* 1: runs on the CPU go through tsr_memory_*, as they do on devices with memory of their own */
  int32_t part, parts; /* processes share the work: this is one of `parts`, 0..parts - 1; give all the same seed */
} tsr_conformance_options;

enum { TSR_CONFORMANCE_MAX_DEVICES = 32, TSR_CONFORMANCE_MAX_FAILURES = 64 };

typedef struct tsr_conformance_device {
  char name[48]; /* "cpu:0 v3": device and level */
  char description[192];
  int32_t computes; /* 0: records launches only; never run */
  int32_t reserved;
  int64_t runs, passed, failed, refused; /* runs = passed + failed; refused: the variant does not take the case */
  double worst;                          /* largest error over what is allowed */
} tsr_conformance_device;

typedef struct tsr_conformance_failure {
  char where[96]; /* device, level, variant */
  char what[480];
  char line[640]; /* the case: run it again with case_line */
} tsr_conformance_failure;

/* Why a suite ended. */
enum {
  TSR_CONFORMANCE_ENDED_COMPLETE = 0,
  TSR_CONFORMANCE_ENDED_TIME = 1,   /* total_seconds */
  TSR_CONFORMANCE_ENDED_STOPPED = 2 /* should_stop */
};

typedef struct tsr_conformance_result {
  uint64_t seed;
  int64_t cases, skipped; /* properties, appends and merges included; skipped: out of time */
  int64_t runs, passed, failed, refused;
  double worst; /* largest error over what is allowed, of all runs that passed */
  char worst_line[640];
  double seconds;
  int32_t ended; /* TSR_CONFORMANCE_ENDED_* */
  int32_t reserved;
  int32_t num_devices, num_failures; /* failures kept; `failed` counts all */
  tsr_conformance_device devices[TSR_CONFORMANCE_MAX_DEVICES];
  tsr_conformance_failure failures[TSR_CONFORMANCE_MAX_FAILURES];
} tsr_conformance_result;

/* Runs the suite. 0: all runs passed, and there were some, also if it ended early. 1: failures, or nothing ran. 2:
 * could not start or finish (text in failures[0].what), or the filter chooses nothing. Thread-safety: one at a time. */
int tsr_conformance_run(const tsr_conformance_options *options, tsr_conformance_result *result);

/* The commit that the suite was built from, or the version where there is no repository. */
const char *tsr_conformance_commit(void);

/* The support table of README.md, in Markdown, from the answers of this build's devices. Returns its length (as
 * snprintf), or -1 with the reason in text. */
int tsr_conformance_support_table(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
