/* Command lines by table: options in any order among the operands, "--name value" or "--name=value", "--"
 * before the words that belong to another command. Unknown options name the nearest known one.
 */
#ifndef BERTH_FRONTEND_OPTIONS_H
#define BERTH_FRONTEND_OPTIONS_H

#include <stdio.h>

#include "lib/error.h"
#include "lib/memory.h"

struct bt_option {
    const char *name;       /* without the dashes */
    char letter;            /* 0 = no short form */
    const char *value_name; /* NULL = a flag */
    bool may_repeat;
    const char *help; /* one line */
};

#define BT_OPTIONS_MAX 24

struct bt_arguments {
    const struct bt_option *options; /* borrowed: the command's own */
    size_t option_count;
    unsigned seen[BT_OPTIONS_MAX];         /* how often */
    struct bt_list values[BT_OPTIONS_MAX]; /* of options with a value */
    struct bt_list operands;
    bool has_rest;       /* there was a "--" */
    struct bt_list rest; /* what came after it */
};

/* Parses arguments[0..count) (without program and command). BT_EXIT_USAGE on a wrong one. */
int bt_options_parse(const struct bt_option *options, size_t option_count, const char *const *arguments,
                     size_t count, struct bt_arguments *ret_arguments, struct bt_error *error);
void bt_arguments_free(struct bt_arguments *arguments);

/* By long name, which must be in the table (a programmer's error otherwise). */
bool bt_option_is_set(const struct bt_arguments *arguments, const char *name);
/* The last value, or fallback. Borrows. */
const char *bt_option_value(const struct bt_arguments *arguments, const char *name, const char *fallback);
const struct bt_list *bt_option_values(const struct bt_arguments *arguments, const char *name);
/* A number option within bounds, or fallback when it is not given; BT_EXIT_USAGE otherwise. */
int bt_option_number(const struct bt_arguments *arguments, const char *name, uint64_t fallback,
                     uint64_t minimum, uint64_t maximum, uint64_t *ret_value, struct bt_error *error);

/* The lines "  -x, --name VALUE   help" of a table. */
void bt_options_help(FILE *stream, const struct bt_option *options, size_t option_count);

#endif
