/* Command lines by table.
 *
 * Called by main for every command. Must not know any command.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontend/options.h"

void bt_arguments_free(struct bt_arguments *arguments)
{
    for (size_t i = 0; i < BT_OPTIONS_MAX; i++)
        bt_list_free(&arguments->values[i]);
    bt_list_free(&arguments->operands);
    bt_list_free(&arguments->rest);
    *arguments = (struct bt_arguments){0};
}

static int bt_option_unknown(const struct bt_arguments *arguments, const char *text, size_t length,
                             struct bt_error *error)
{
    const char *names[BT_OPTIONS_MAX], *nearest;
    bt_auto_free char *name = bt_string_copy_length(text, length);
    char hint[128] = "";

    for (size_t i = 0; i < arguments->option_count; i++)
        names[i] = arguments->options[i].name;
    nearest = name[0] == '-' && name[1] == '-' ? bt_nearest(name + 2, names, arguments->option_count) : NULL;
    if (nearest)
        snprintf(hint, sizeof(hint), "did you mean --%s?", nearest);
    else if (arguments->operands.count > 0)
        snprintf(hint, sizeof(hint),
                 "--help shows what there is; the words of another command come after --");
    return bt_fail(error, BT_EXIT_USAGE, EINVAL, *hint ? hint : "--help shows what there is",
                   "unknown option '%.64s'", name);
}

static int bt_option_add(struct bt_arguments *arguments, size_t index, const char *value,
                         struct bt_error *error)
{
    const struct bt_option *option = &arguments->options[index];

    if (arguments->seen[index] && option->value_name && !option->may_repeat)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give it once", "--%s was given twice", option->name);
    arguments->seen[index]++;
    if (value)
        bt_list_add(&arguments->values[index], value);
    return 0;
}

/* A word that begins with '-'. *position moves on when the next word is its value. */
static int bt_option_parse(struct bt_arguments *parsed, const char *const *arguments, size_t count,
                           size_t *position, struct bt_error *error)
{
    const char *word = arguments[*position];
    bool is_long = word[1] == '-';
    const char *equals = is_long ? strchr(word, '=') : NULL;
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const char *value = equals ? equals + 1 : NULL;

    for (size_t i = 0; i < parsed->option_count; i++) {
        const struct bt_option *option = &parsed->options[i];
        bool matches =
            is_long ? strlen(option->name) == length - 2 && strncmp(option->name, word + 2, length - 2) == 0
                    : option->letter && word[1] == option->letter && length == 2;
        if (!matches)
            continue;
        if (!option->value_name && value)
            return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "--%s takes no value", option->name);
        if (option->value_name && !value) {
            if (*position + 1 >= count)
                return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "--%s needs a value: %s", option->name,
                               option->value_name);
            value = arguments[++*position];
        }
        return bt_option_add(parsed, i, value, error);
    }
    return bt_option_unknown(parsed, word, length, error);
}

int bt_options_parse(const struct bt_option *options, size_t option_count, const char *const *arguments,
                     size_t count, struct bt_arguments *ret_arguments, struct bt_error *error)
{
    struct bt_arguments parsed = {.options = options, .option_count = option_count};
    int r = 0;

    assert(option_count <= BT_OPTIONS_MAX);
    for (size_t i = 0; i < count && r == 0; i++) {
        if (parsed.has_rest)
            bt_list_add(&parsed.rest, arguments[i]);
        else if (strcmp(arguments[i], "--") == 0)
            parsed.has_rest = true;
        else if (arguments[i][0] == '-' && arguments[i][1] != '\0')
            r = bt_option_parse(&parsed, arguments, count, &i, error);
        else
            bt_list_add(&parsed.operands, arguments[i]);
    }
    if (r < 0) {
        bt_arguments_free(&parsed);
        return r;
    }
    *ret_arguments = parsed;
    return 0;
}

static size_t bt_option_index(const struct bt_arguments *arguments, const char *name)
{
    for (size_t i = 0; i < arguments->option_count; i++) {
        if (strcmp(arguments->options[i].name, name) == 0)
            return i;
    }
    fprintf(stderr, "berth: no option --%s in the table of this command\n", name);
    abort();
}

bool bt_option_is_set(const struct bt_arguments *arguments, const char *name)
{
    return arguments->seen[bt_option_index(arguments, name)] > 0;
}

const struct bt_list *bt_option_values(const struct bt_arguments *arguments, const char *name)
{
    return &arguments->values[bt_option_index(arguments, name)];
}

const char *bt_option_value(const struct bt_arguments *arguments, const char *name, const char *fallback)
{
    const struct bt_list *values = bt_option_values(arguments, name);

    return values->count ? values->items[values->count - 1] : fallback;
}

int bt_option_number(const struct bt_arguments *arguments, const char *name, uint64_t fallback,
                     uint64_t minimum, uint64_t maximum, uint64_t *ret_value, struct bt_error *error)
{
    const char *text = bt_option_value(arguments, name, NULL);
    uint64_t value = fallback;

    if (text && bt_number_parse(text, strlen(text), minimum, maximum, &value) < 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL,
                       "--%s must be a whole number from %llu to %llu, not '%.40s'", name,
                       (unsigned long long)minimum, (unsigned long long)maximum, text);
    *ret_value = value;
    return 0;
}

void bt_options_help(FILE *stream, const struct bt_option *options, size_t option_count)
{
    int width = 0;

    for (size_t i = 0; i < option_count; i++) {
        size_t value = options[i].value_name ? strlen(options[i].value_name) + 1 : 0;
        int needed = (int)(strlen("-x, --") + strlen(options[i].name) + value);
        width = needed > width ? needed : width;
    }
    for (size_t i = 0; i < option_count; i++) {
        const struct bt_option *option = &options[i];
        char letter[8] = "    ", left[80];
        if (option->letter)
            snprintf(letter, sizeof(letter), "-%c, ", option->letter);
        snprintf(left, sizeof(left), "%s--%s%s%s", letter, option->name, option->value_name ? " " : "",
                 option->value_name ? option->value_name : "");
        fprintf(stream, "  %-*s  %s%s\n", width, left, option->help,
                option->may_repeat ? " (may be repeated)" : "");
    }
}
