/* compile OUTPUT FILE.yaml...: the detectors of these files as C source for the gateway (README.md here).
 *
 * Runs at build time only. Writes build/generated/detectors.c: for each direction a table of detectors and
 * the serialised Hyperscan database of their patterns.
 */
#include <errno.h>
#include <hs/hs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/file.h"
#include "lib/yaml.h"
#include "policy/gateway/detectors.h"

struct entry {
    const char *name, *title, *pattern, *span;
    const struct bt_yaml *anchors, *except;
};

struct direction {
    const char *name;
    unsigned flags;
    struct entry entries[BT_DETECTORS_MAX];
    size_t count;
};

static int check_list(const struct bt_yaml *list, size_t minimum, size_t maximum, size_t shortest,
                      const struct bt_yaml *at, const char *name, struct bt_error *error)
{
    size_t count = list == NULL ? 0 : list->count;
    if ((list != NULL && list->kind != BT_YAML_SEQUENCE) || count < minimum || count > maximum)
        return bt_yaml_fail(at, error, NULL, "%s must be a list of %zu to %zu texts", name, minimum, maximum);
    for (size_t i = 0; i < count; i++)
        if (list->values[i]->kind != BT_YAML_SCALAR || strlen(list->values[i]->text) < shortest)
            return bt_yaml_fail(list->values[i], error, NULL,
                                "an item of %s must be a text of at least %zu bytes", name, shortest);
    return 0;
}

/* Matches must be told as soon as they end: nobody tells the gateway that a stream ends before the last byte
 * is passed on. */
static int check_pattern(const struct bt_yaml *at, const char *pattern, unsigned flags,
                         struct bt_error *error)
{
    hs_compile_error_t *problem = NULL;
    hs_expr_info_t *information = NULL;
    if (hs_expression_info(pattern, flags, &information, &problem) != HS_SUCCESS) {
        int result = bt_yaml_fail(at, error, NULL, "pattern: %s", problem->message);
        (void)hs_free_compile_error(problem);
        return result;
    }
    bool is_late = information->matches_at_eod != 0 || information->unordered_matches != 0;
    bool is_empty = information->min_width < 4;
    free(information);
    if (is_late || is_empty)
        return bt_yaml_fail(at, error, NULL,
                            "pattern: must match at least 4 bytes and not need the end of the data");
    return 0;
}

static int take_detector(const struct bt_yaml *item, struct direction directions[2], struct bt_error *error)
{
    static const char *const known[] = {"name", "title",  "direction", "pattern",  "anchors",
                                        "span", "except", "notes",     "positive", "negative"};
    const char *direction_name = "", *notes = NULL;
    struct entry entry = {.anchors = bt_yaml_get(item, "anchors"), .except = bt_yaml_get(item, "except")};
    int result = bt_yaml_check_keys(item, known, BT_ARRAY_LENGTH(known), error);
    if (result == 0)
        result = bt_yaml_string(item, "name", NULL, &entry.name, error);
    if (result == 0)
        result = bt_yaml_string(item, "title", NULL, &entry.title, error);
    if (result == 0)
        result = bt_yaml_string(item, "pattern", NULL, &entry.pattern, error);
    if (result == 0)
        result = bt_yaml_string(item, "notes", NULL, &notes, error);
    if (result == 0)
        result = bt_yaml_string(item, "span", "none", &entry.span, error);
    if (result == 0)
        result = bt_yaml_string(item, "direction", "outbound", &direction_name, error);
    if (result < 0)
        return result;
    bool is_inbound = strcmp(direction_name, "inbound") == 0;
    struct direction *direction = &directions[is_inbound ? 1 : 0];
    if (entry.name == NULL || entry.title == NULL || entry.pattern == NULL || notes == NULL)
        return bt_yaml_fail(item, error, NULL, "name, title, pattern and notes are necessary");
    if (direction->count == BT_DETECTORS_MAX)
        return bt_yaml_fail(item, error, NULL, "more than %d detectors of a direction", BT_DETECTORS_MAX);
    result = check_list(entry.anchors, is_inbound ? 0 : 1, is_inbound ? 0 : BT_DETECTOR_ANCHORS_MAX - 1, 3,
                        item, "anchors", error);
    if (result == 0)
        result = check_list(entry.except, 0, BT_ARRAY_LENGTH(((struct bt_detector *)NULL)->except) - 1, 4,
                            item, "except", error);
    if (result == 0)
        result = check_pattern(item, entry.pattern, direction->flags, error);
    if (result == 0 && !is_inbound && strstr(entry.pattern, "\\s") != NULL)
        result = bt_yaml_fail(item, error, NULL, "\\s has bytes that no span has: [ \\t] or [ \\t\\r\\n]");
    if (result == 0)
        direction->entries[direction->count++] = entry;
    return result;
}

static int take_file(const char *path, struct direction directions[2], struct bt_error *error)
{
    bt_auto_buffer text = {0};
    struct bt_yaml *root = NULL; /* lives as long as the program: entries borrow from it */
    int result = bt_file_read(path, 1024 * 1024, &text, error);
    if (result == 0)
        result = bt_yaml_parse(path, text.data, text.length, 1, &root, error);
    if (result < 0)
        return result;
    const struct bt_yaml *list = bt_yaml_get(root, "detectors");
    if (list == NULL || list->kind != BT_YAML_SEQUENCE)
        return bt_yaml_fail(root, error, NULL, "a list `detectors` is necessary");
    for (size_t i = 0; i < list->count && result == 0; i++)
        result = take_detector(list->values[i], directions, error);
    return result;
}

static int compile(const struct direction *direction, char **ret_data, size_t *ret_length,
                   struct bt_error *error)
{
    const char *expressions[BT_DETECTORS_MAX];
    unsigned flags[BT_DETECTORS_MAX], ids[BT_DETECTORS_MAX];
    /* No feature of this machine's processor: the gateway runs on another one. */
    hs_platform_info_t platform = {.tune = HS_TUNE_FAMILY_GENERIC};
    hs_compile_error_t *problem = NULL;
    hs_database_t *database = NULL;
    for (unsigned i = 0; i < direction->count; i++) {
        expressions[i] = direction->entries[i].pattern;
        flags[i] = direction->flags;
        ids[i] = i;
    }
    if (hs_compile_multi(expressions, flags, ids, (unsigned)direction->count, HS_MODE_STREAM, &platform,
                         &database, &problem) != HS_SUCCESS) {
        int result = bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "%s detectors: %s", direction->name,
                             problem->message);
        (void)hs_free_compile_error(problem);
        return result;
    }
    hs_error_t result = hs_serialize_database(database, ret_data, ret_length);
    (void)hs_free_database(database);
    return result == HS_SUCCESS ? 0
                                : bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "cannot serialise a database");
}

static void write_text(FILE *output, const char *text)
{
    (void)fputc('"', output);
    for (const char *at = text; *at != '\0'; at++)
        (void)fprintf(output, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
    (void)fputc('"', output);
}

static void write_list(FILE *output, const char *name, const struct bt_yaml *list)
{
    if (list == NULL || list->count == 0)
        return;
    (void)fprintf(output, ", .%s = {", name);
    for (size_t i = 0; i < list->count; i++) {
        write_text(output, list->values[i]->text);
        (void)fputs(", ", output);
    }
    (void)fputc('}', output);
}

static const char *span_constant(const char *span)
{
    if (strcmp(span, "assignment") == 0)
        return "BT_SPAN_ASSIGNMENT";
    return strcmp(span, "pem") == 0 ? "BT_SPAN_PEM" : "BT_SPAN_TOKEN";
}

static void write_direction(FILE *output, const struct direction *direction, const char *data, size_t length)
{
    (void)fprintf(output, "\nstatic const struct bt_detector %s_detectors[] = {\n", direction->name);
    for (size_t i = 0; i < direction->count; i++) {
        const struct entry *entry = &direction->entries[i];
        (void)fputs("    {.name = ", output);
        write_text(output, entry->name);
        (void)fputs(", .title = ", output);
        write_text(output, entry->title);
        (void)fprintf(output, ", .span = %s", span_constant(entry->span));
        write_list(output, "anchors", entry->anchors);
        write_list(output, "except", entry->except);
        (void)fputs("},\n", output);
    }
    (void)fprintf(output, "};\n\nstatic const unsigned char %s_database[] = {", direction->name);
    for (size_t i = 0; i < length; i++)
        (void)fprintf(output, "%s%d,", i % 32 == 0 ? "\n    " : "", (unsigned char)data[i]);
    (void)fprintf(
        output,
        "\n};\n\nconst struct bt_detector_data bt_detector_data_%s = {%s_detectors, %zu, %s_database, "
        "sizeof(%s_database)};\n",
        direction->name, direction->name, direction->count, direction->name, direction->name);
}

static int write_source(const char *path, const struct direction directions[2], struct bt_error *error)
{
    FILE *output = fopen(path, "we");
    int result = 0;
    if (output == NULL)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot write %s: %s", path, strerror(errno));
    (void)fputs(
        "/* Written by policy/rules/detectors/compile.c. */\n#include \"policy/gateway/detectors.h\"\n",
        output);
    for (size_t i = 0; i < 2 && result == 0; i++) {
        char *data = NULL;
        size_t length = 0;
        result = compile(&directions[i], &data, &length, error);
        if (result == 0)
            write_direction(output, &directions[i], data, length);
        free(data);
    }
    if (fclose(output) != 0 && result == 0)
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot write %s: %s", path, strerror(errno));
    return result;
}

int main(int argument_count, char **arguments)
{
    struct direction directions[2] = {
        {.name = "outbound", .flags = 0},
        {.name = "inbound", .flags = HS_FLAG_CASELESS},
    };
    struct bt_error error = {0};
    int result = 0;
    if (argument_count < 3) {
        (void)fprintf(stderr, "usage: compile OUTPUT FILE.yaml...\n");
        return BT_EXIT_USAGE;
    }
    for (int i = 2; i < argument_count && result == 0; i++)
        result = take_file(arguments[i], directions, &error);
    if (result == 0)
        result = write_source(arguments[1], directions, &error);
    if (result < 0)
        (void)fprintf(stderr, "%s\n", error.message);
    return result < 0 ? BT_EXIT_ERROR : BT_EXIT_OK;
}
