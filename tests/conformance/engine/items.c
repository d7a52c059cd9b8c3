/* SPDX-License-Identifier: Apache-2.0 */
#include "items.h"

#include <string.h>

const conf_item conf_items[] = {
#define CONF_ROW(name, slot, flags, needs, excludes) {#name, slot, flags, needs, excludes},
    CONF_ITEMS(CONF_ROW)
#undef CONF_ROW
};

int conf_item_find(const char *name, int length) {
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    if ((int)strlen(conf_items[n].name) == length && strncmp(conf_items[n].name, name, (size_t)length) == 0) {
      return n;
    }
  }
  return -1;
}

/* The items that a list of names separated by '|' means. */
static conf_set parse_names(const char *text, int length) {
  conf_set set = {{0, 0}};
  int at = 0;
  while (at < length) {
    int end = at, n;
    while (end < length && text[end] != '|') {
      end++;
    }
    n = conf_item_find(text + at, end - at);
    if (n >= 0) {
      conf_add(&set, n);
    }
    at = end + 1;
  }
  return set;
}

static int same_slot(int a, int b) {
  return conf_items[a].slot[0] != '\0' && strcmp(conf_items[a].slot, conf_items[b].slot) == 0;
}

void conf_rules_init(conf_rules *rules) {
  memset(rules, 0, sizeof(*rules));
  for (int a = 0; a < CONF_ITEM_COUNT; a++) {
    const char *needs = conf_items[a].needs;
    const conf_set apart = parse_names(conf_items[a].excludes, (int)strlen(conf_items[a].excludes));
    for (int group = 0; *needs != '\0' && group < CONF_MAX_NEEDS; group++) {
      const int length = (int)strcspn(needs, ";");
      rules->needs[a][group] = parse_names(needs, length);
      needs += length + (needs[length] == ';');
    }
    for (int b = 0; b < CONF_ITEM_COUNT; b++) {
      if (b != a && (conf_has(&apart, b) || same_slot(a, b))) {
        conf_add(&rules->excludes[a], b);
        conf_add(&rules->excludes[b], a);
      }
    }
  }
}

int conf_set_consistent(const conf_rules *rules, const conf_set *set) {
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    if (conf_has(set, n) && conf_meet(&rules->excludes[n], set)) {
      return 0;
    }
  }
  return 1;
}

/* Adds one of the group that the set bears, the pick-th of them. */
static int add_one_of(const conf_rules *rules, const conf_set *group, const conf_set *universe, uint64_t pick,
                      conf_set *set) {
  int fits[CONF_ITEM_COUNT], count = 0;
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    if (conf_has(group, n) && conf_has(universe, n) && !conf_meet(&rules->excludes[n], set)) {
      fits[count++] = n;
    }
  }
  if (count == 0) {
    return 0;
  }
  conf_add(set, fits[pick % (uint64_t)count]);
  return 1;
}

int conf_set_close(const conf_rules *rules, const conf_set *universe, uint64_t pick, conf_set *set) {
  int changed = 1;
  while (changed) {
    changed = 0;
    for (int n = 0; n < CONF_ITEM_COUNT; n++) {
      for (int g = 0; conf_has(set, n) && g < CONF_MAX_NEEDS; g++) {
        const conf_set *group = &rules->needs[n][g];
        if ((group->w[0] | group->w[1]) == 0 || conf_meet(group, set)) {
          continue;
        }
        if (!add_one_of(rules, group, universe, pick, set)) {
          return 0;
        }
        changed = 1;
      }
    }
  }
  return conf_set_consistent(rules, set);
}

void conf_set_complete(conf_set *set) {
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    int open = (conf_items[n].flags & CONF_DEFAULT) != 0;
    for (int m = 0; open && m < CONF_ITEM_COUNT; m++) {
      open = !(conf_has(set, m) && same_slot(n, m));
    }
    if (open) {
      conf_add(set, n);
    }
  }
}

conf_set conf_set_of_flags(uint32_t want, uint32_t avoid) {
  conf_set set = {{0, 0}};
  for (int n = 0; n < CONF_ITEM_COUNT; n++) {
    if ((conf_items[n].flags & want) == want && (conf_items[n].flags & avoid) == 0) {
      conf_add(&set, n);
    }
  }
  return set;
}
