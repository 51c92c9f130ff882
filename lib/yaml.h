/* YAML read into a tree that remembers where each thing stood, so that every complaint has file:line:column.
 *
 * Reads one document through libyaml. Anchors, aliases, tags and duplicate keys are refused: configuration
 * here is data, and its size is bounded.
 */
#ifndef BERTH_LIB_YAML_H
#define BERTH_LIB_YAML_H

#include "lib/error.h"

enum bt_yaml_kind { BT_YAML_SCALAR, BT_YAML_SEQUENCE, BT_YAML_MAPPING };

struct bt_yaml {
    enum bt_yaml_kind kind;
    unsigned line, column;   /* from 1, in the file */
    const char *file;        /* borrowed from the document */
    char *text;              /* scalar: its text, no NUL inside */
    bool is_plain;           /* scalar: without quotes (so that null, true, 5 can be told from "5") */
    size_t count;            /* sequence: items; mapping: pairs */
    struct bt_yaml **keys;   /* mapping: scalar keys, distinct */
    struct bt_yaml **values; /* mapping and sequence */
};

/* Parses text[0..length) as one document. file names it in messages; first_line is the line that text starts
 * on (for front matter). An empty document gives an empty mapping. At most 1 MiB, 32 levels, 20 000 nodes.
 * The caller frees *ret_root with bt_yaml_free. */
int bt_yaml_parse(const char *file, const char *text, size_t length, unsigned first_line,
                  struct bt_yaml **ret_root, struct bt_error *error);
struct bt_yaml *bt_yaml_free(struct bt_yaml *root); /* returns NULL, accepts NULL */

/* The value of a key of a mapping, or NULL. */
const struct bt_yaml *bt_yaml_get(const struct bt_yaml *mapping, const char *key);

/* Fails with "file:line:column: ..." and BT_EXIT_ERROR. */
int bt_yaml_fail(const struct bt_yaml *at, struct bt_error *error, const char *hint, const char *format, ...)
    BT_PRINTF(4, 5);

/* Refuses keys that are not in known[0..count), naming the nearest known one; and anything but a mapping. */
int bt_yaml_check_keys(const struct bt_yaml *mapping, const char *const *known, size_t count,
                       struct bt_error *error);

/* Typed getters: the value must have that form, else a positioned error. A missing key gives the default. */
int bt_yaml_string(const struct bt_yaml *mapping, const char *key, const char *fallback,
                   const char **ret_text, struct bt_error *error);
int bt_yaml_bool(const struct bt_yaml *mapping, const char *key, bool fallback, bool *ret_value,
                 struct bt_error *error);
int bt_yaml_number(const struct bt_yaml *mapping, const char *key, uint64_t fallback, uint64_t minimum,
                   uint64_t maximum, uint64_t *ret_value, struct bt_error *error);
/* Bytes with a suffix K, M or G (powers of 1024; "2G", "512M", also KiB, MiB, GiB). */
int bt_yaml_size(const struct bt_yaml *mapping, const char *key, uint64_t fallback, uint64_t minimum,
                 uint64_t maximum, uint64_t *ret_bytes, struct bt_error *error);

#endif
