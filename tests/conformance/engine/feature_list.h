/* SPDX-License-Identifier: Apache-2.0 */
/* The features of the support table: what a row is called, and the cases that prove it. A new feature gets its row here
 * and its items in items.h; the table, the suite and the README follow. */
#ifndef TSR_TESTS_CONFORMANCE_FEATURES_H
#define TSR_TESTS_CONFORMANCE_FEATURES_H

/* Probes of a row are separated by '|', words as in a case's line; the row is a yes if all are. NULL: does not apply.
 */
typedef struct conf_feature {
  const char *label, *forward, *backward;
} conf_feature;

extern const conf_feature conf_features[];
extern const int conf_num_features;

/* Of append and merge: which kind conf_cache_probe (runner.h) is to draw. */
typedef struct conf_cache_feature {
  const char *label;
  int kind; /* CONF_CACHE_* */
} conf_cache_feature;

enum {
  CONF_CACHE_APPEND = 0,
  CONF_CACHE_APPEND_PAGED = 1,
  CONF_CACHE_APPEND_ROTARY = 2,
  CONF_CACHE_APPEND_QUANTISED = 3,
  CONF_CACHE_MERGE = 4
};

extern const conf_cache_feature conf_cache_features[];
extern const int conf_num_cache_features;

#endif
