/* YAML into a tree with positions, through libyaml's event parser.
 *
 * Used by everything that reads configuration. Must not resolve anchors, tags or merges: what is written is
 * what is meant, and a small file cannot become a large tree.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "lib/memory.h"
#include "lib/yaml.h"

#define BT_YAML_BYTES_MAX (1024U * 1024U)
#define BT_YAML_DEPTH_MAX 32U
#define BT_YAML_NODES_MAX 20000U

/* The root is the first member: the file name lives as long as the tree, in the same allocation as the root.
 */
struct bt_yaml_document {
    struct bt_yaml root;
    char *file;
};

struct bt_yaml_reader {
    yaml_parser_t parser;
    const char *file;
    unsigned first_line;
    unsigned nodes;
    struct bt_error *error;
};

static int bt_yaml_read_node(struct bt_yaml_reader *reader, const yaml_event_t *event, unsigned depth,
                             struct bt_yaml *node);

int bt_yaml_fail(const struct bt_yaml *at, struct bt_error *error, const char *hint, const char *format, ...)
{
    va_list arguments;
    char text[768];

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return bt_fail(error, BT_EXIT_ERROR, EINVAL, hint, "%s:%u:%u: %s", at->file, at->line, at->column, text);
}

static void bt_yaml_clear(struct bt_yaml *node)
{
    for (size_t i = 0; i < node->count; i++) {
        if (node->keys) {
            bt_yaml_clear(node->keys[i]);
            free(node->keys[i]);
        }
        bt_yaml_clear(node->values[i]);
        free(node->values[i]);
    }
    free(node->keys);
    free(node->values);
    free(node->text);
}

struct bt_yaml *bt_yaml_free(struct bt_yaml *root)
{
    struct bt_yaml_document *document = (struct bt_yaml_document *)(void *)root;

    if (!document)
        return NULL;
    bt_yaml_clear(&document->root);
    free(document->file);
    free(document);
    return NULL;
}

static void bt_yaml_place(const struct bt_yaml_reader *reader, yaml_mark_t mark, struct bt_yaml *node)
{
    node->file = reader->file;
    node->line = reader->first_line + (unsigned)mark.line;
    node->column = (unsigned)mark.column + 1;
}

/* libyaml's own complaints: its marks count from 0, and errors of its reader have a byte offset instead. */
static int bt_yaml_parser_fail(struct bt_yaml_reader *reader, const char *text, size_t length)
{
    const yaml_parser_t *parser = &reader->parser;
    struct bt_yaml at = {.file = reader->file};

    if (parser->error == YAML_MEMORY_ERROR)
        return bt_fail(reader->error, BT_EXIT_ERROR, ENOMEM, NULL, "%s: out of memory", reader->file);
    if (parser->error == YAML_READER_ERROR) {
        at.line = reader->first_line;
        at.column = 1;
        for (size_t i = 0; i < length && i < parser->problem_offset; i++) {
            at.column = text[i] == '\n' ? 1 : at.column + 1;
            at.line += text[i] == '\n';
        }
    } else {
        bt_yaml_place(reader, parser->problem_mark, &at);
    }
    return bt_yaml_fail(&at, reader->error, NULL, "%s%s%s", parser->problem ? parser->problem : "not YAML",
                        parser->context ? " " : "", parser->context ? parser->context : "");
}

static int bt_yaml_refuse_alias(struct bt_yaml_reader *reader, const yaml_event_t *event)
{
    struct bt_yaml at;

    bt_yaml_place(reader, event->start_mark, &at);
    return bt_yaml_fail(&at, reader->error, "write the value out", "anchors and aliases are not used here");
}

static int bt_yaml_check_properties(const struct bt_yaml *node, const yaml_char_t *anchor,
                                    const yaml_char_t *tag, struct bt_error *error)
{
    if (anchor)
        return bt_yaml_fail(node, error, "write the value out", "anchors and aliases are not used here");
    if (tag)
        return bt_yaml_fail(node, error, "remove the tag", "tags are not used here");
    return 0;
}

static int bt_yaml_read_scalar(struct bt_yaml_reader *reader, const yaml_event_t *event, struct bt_yaml *node)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    int r;

    node->kind = BT_YAML_SCALAR;
    r = bt_yaml_check_properties(node, event->data.scalar.anchor, event->data.scalar.tag, reader->error);
    if (r < 0)
        return r;
    if (memchr(value, '\0', length))
        return bt_yaml_fail(node, reader->error, NULL, "a NUL byte is not allowed in a value");
    node->is_plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    node->text = bt_string_copy_length(value, length);
    return 0;
}

static void bt_yaml_grow(struct bt_yaml ***array, size_t count)
{
    /* Powers of two: grows when count is one (0 counts as one). */
    if (count & (count - 1))
        return;
    size_t capacity = count ? count * 2 : 1;
    struct bt_yaml **grown = bt_new(capacity, sizeof(*grown));
    if (count)
        memcpy(grown, *array, count * sizeof(*grown));
    free(*array);
    *array = grown;
}

static int bt_yaml_check_key(const struct bt_yaml *mapping, const struct bt_yaml *key, struct bt_error *error)
{
    const struct bt_yaml *first;

    if (key->kind != BT_YAML_SCALAR)
        return bt_yaml_fail(key, error, NULL, "a key must be a word");
    for (size_t i = 0; i < mapping->count; i++) {
        first = mapping->keys[i];
        if (strcmp(first->text, key->text) == 0)
            return bt_yaml_fail(key, error, "keep one of the two",
                                "key '%.100s' was given at line %u already", key->text, first->line);
    }
    return 0;
}

/* Adds an empty node to the parent and reads the event into it; the parent owns it from the start, so that
 * whatever was read is freed with the root. The key of a pair is added together with an empty value. */
static int bt_yaml_read_child(struct bt_yaml_reader *reader, const yaml_event_t *event, unsigned depth,
                              struct bt_yaml *parent, bool is_key)
{
    struct bt_yaml *child;

    if (is_key || parent->kind == BT_YAML_SEQUENCE) {
        struct bt_yaml *key = NULL;

        child = bt_new(1, sizeof(*child));
        if (is_key) {
            key = bt_new(1, sizeof(*key));
            int r = bt_yaml_read_node(reader, event, depth + 1, key);
            if (r == 0)
                r = bt_yaml_check_key(parent, key, reader->error);
            if (r < 0) {
                bt_yaml_clear(key);
                free(key);
                free(child);
                return r;
            }
            bt_yaml_grow(&parent->keys, parent->count);
            parent->keys[parent->count] = key;
        }
        bt_yaml_grow(&parent->values, parent->count);
        parent->values[parent->count++] = child;
        if (is_key)
            return 0;
    } else {
        child = parent->values[parent->count - 1];
    }
    return bt_yaml_read_node(reader, event, depth + 1, child);
}

static int bt_yaml_read_children(struct bt_yaml_reader *reader, unsigned depth, struct bt_yaml *parent)
{
    bool is_key = parent->kind == BT_YAML_MAPPING;
    yaml_event_t event;
    int r = 0;

    for (;;) {
        if (!yaml_parser_parse(&reader->parser, &event))
            return -EBADMSG;
        if (event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT)
            break;
        r = bt_yaml_read_child(reader, &event, depth, parent, is_key);
        yaml_event_delete(&event);
        if (r < 0)
            return r;
        if (parent->kind == BT_YAML_MAPPING)
            is_key = !is_key;
    }
    yaml_event_delete(&event);
    return 0;
}

static int bt_yaml_read_node(struct bt_yaml_reader *reader, const yaml_event_t *event, unsigned depth,
                             struct bt_yaml *node)
{
    const yaml_char_t *anchor, *tag;
    int r;

    bt_yaml_place(reader, event->start_mark, node);
    if (event->type == YAML_ALIAS_EVENT)
        return bt_yaml_refuse_alias(reader, event);
    if (++reader->nodes > BT_YAML_NODES_MAX)
        return bt_yaml_fail(node, reader->error, NULL, "more than %u values", BT_YAML_NODES_MAX);
    if (depth > BT_YAML_DEPTH_MAX)
        return bt_yaml_fail(node, reader->error, NULL, "nested deeper than %u levels", BT_YAML_DEPTH_MAX);
    if (event->type == YAML_SCALAR_EVENT)
        return bt_yaml_read_scalar(reader, event, node);
    if (event->type == YAML_SEQUENCE_START_EVENT) {
        node->kind = BT_YAML_SEQUENCE;
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else {
        node->kind = BT_YAML_MAPPING;
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    r = bt_yaml_check_properties(node, anchor, tag, reader->error);
    return r < 0 ? r : bt_yaml_read_children(reader, depth, node);
}

/* -EBADMSG: libyaml complained, and its parser knows why. */
static int bt_yaml_read_stream(struct bt_yaml_reader *reader, struct bt_yaml *root)
{
    bool has_document = false;
    yaml_event_t event;
    yaml_event_type_t type;
    int r = 0;

    do {
        if (!yaml_parser_parse(&reader->parser, &event))
            return -EBADMSG;
        type = event.type;
        if (type == YAML_DOCUMENT_START_EVENT && has_document) {
            struct bt_yaml at;
            bt_yaml_place(reader, event.start_mark, &at);
            r = bt_yaml_fail(&at, reader->error, NULL, "a second document begins here; only one is allowed");
        } else if (type == YAML_DOCUMENT_START_EVENT) {
            has_document = true;
        } else if (type == YAML_ALIAS_EVENT || type == YAML_SCALAR_EVENT ||
                   type == YAML_SEQUENCE_START_EVENT || type == YAML_MAPPING_START_EVENT) {
            r = bt_yaml_read_node(reader, &event, 1, root);
        }
        yaml_event_delete(&event);
    } while (r == 0 && type != YAML_STREAM_END_EVENT);
    return r;
}

static bool bt_yaml_is_null(const struct bt_yaml *node)
{
    return node->kind == BT_YAML_SCALAR && node->is_plain &&
           (!node->text || !*node->text || strcmp(node->text, "~") == 0 || strcmp(node->text, "null") == 0);
}

int bt_yaml_parse(const char *file, const char *text, size_t length, unsigned first_line,
                  struct bt_yaml **ret_root, struct bt_error *error)
{
    struct bt_yaml_reader reader = {.first_line = first_line, .error = error};
    struct bt_yaml_document *document;
    int r;

    if (length > BT_YAML_BYTES_MAX)
        return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "%s: larger than %u bytes", file,
                       BT_YAML_BYTES_MAX);
    if (!yaml_parser_initialize(&reader.parser))
        return bt_fail(error, BT_EXIT_ERROR, ENOMEM, NULL, "%s: out of memory", file);
    document = bt_new(1, sizeof(*document));
    document->file = bt_string_copy(file);
    reader.file = document->file;
    document->root =
        (struct bt_yaml){.kind = BT_YAML_MAPPING, .file = reader.file, .line = first_line, .column = 1};
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
    r = bt_yaml_read_stream(&reader, &document->root);
    if (r == -EBADMSG)
        r = bt_yaml_parser_fail(&reader, text, length);
    yaml_parser_delete(&reader.parser);
    if (r < 0) {
        bt_yaml_free(&document->root);
        return r;
    }
    /* "---" and comments alone are an empty document too. */
    if (bt_yaml_is_null(&document->root)) {
        free(document->root.text);
        document->root.text = NULL;
        document->root.kind = BT_YAML_MAPPING;
    }
    *ret_root = &document->root;
    return 0;
}

const struct bt_yaml *bt_yaml_get(const struct bt_yaml *mapping, const char *key)
{
    if (mapping->kind != BT_YAML_MAPPING)
        return NULL;
    for (size_t i = 0; i < mapping->count; i++) {
        if (strcmp(mapping->keys[i]->text, key) == 0)
            return mapping->values[i];
    }
    return NULL;
}

int bt_yaml_check_keys(const struct bt_yaml *mapping, const char *const *known, size_t count,
                       struct bt_error *error)
{
    if (mapping->kind != BT_YAML_MAPPING)
        return bt_yaml_fail(mapping, error, NULL, "must be a mapping of keys to values");
    for (size_t i = 0; i < mapping->count; i++) {
        const struct bt_yaml *key = mapping->keys[i];
        const char *nearest;
        char hint[256];
        size_t used = 0;
        bool is_known = false;

        for (size_t k = 0; k < count && !is_known; k++)
            is_known = strcmp(key->text, known[k]) == 0;
        if (is_known)
            continue;
        nearest = bt_nearest(key->text, known, count);
        if (nearest)
            return bt_yaml_fail(key, error, NULL, "unknown key '%.100s'; did you mean '%s'?", key->text,
                                nearest);
        for (size_t k = 0; k < count && used < sizeof(hint); k++)
            used += (size_t)snprintf(hint + used, sizeof(hint) - used, "%s%s",
                                     k ? ", " : "known keys: ", known[k]);
        return bt_yaml_fail(key, error, hint, "unknown key '%.100s'", key->text);
    }
    return 0;
}

/* The scalar of a key; *ret_value is left alone when the key is missing. */
static int bt_yaml_scalar(const struct bt_yaml *mapping, const char *key, const char *what,
                          const struct bt_yaml **ret_value, struct bt_error *error)
{
    const struct bt_yaml *value = bt_yaml_get(mapping, key);

    if (!value)
        return 0;
    if (value->kind != BT_YAML_SCALAR)
        return bt_yaml_fail(value, error, NULL, "'%s' must be %s", key, what);
    if (bt_yaml_is_null(value))
        return bt_yaml_fail(value, error, "give it a value, or remove the key",
                            "'%s' has no value; it must be %s", key, what);
    *ret_value = value;
    return 0;
}

int bt_yaml_string(const struct bt_yaml *mapping, const char *key, const char *fallback,
                   const char **ret_text, struct bt_error *error)
{
    const struct bt_yaml *value = NULL;
    int r = bt_yaml_scalar(mapping, key, "text", &value, error);

    if (r < 0)
        return r;
    *ret_text = value ? value->text : fallback;
    return 0;
}

int bt_yaml_bool(const struct bt_yaml *mapping, const char *key, bool fallback, bool *ret_value,
                 struct bt_error *error)
{
    const struct bt_yaml *value = NULL;
    int r = bt_yaml_scalar(mapping, key, "true or false", &value, error);

    if (r < 0)
        return r;
    if (!value) {
        *ret_value = fallback;
        return 0;
    }
    if (!value->is_plain || (strcmp(value->text, "true") != 0 && strcmp(value->text, "false") != 0))
        return bt_yaml_fail(value, error, NULL, "'%s' must be true or false, not '%.40s'", key, value->text);
    *ret_value = value->text[0] == 't';
    return 0;
}

int bt_yaml_number(const struct bt_yaml *mapping, const char *key, uint64_t fallback, uint64_t minimum,
                   uint64_t maximum, uint64_t *ret_value, struct bt_error *error)
{
    const struct bt_yaml *value = NULL;
    uint64_t number = fallback;
    int r = bt_yaml_scalar(mapping, key, "a whole number", &value, error);

    if (r < 0)
        return r;
    if (value && (!value->is_plain ||
                  bt_number_parse(value->text, strlen(value->text), minimum, maximum, &number) < 0))
        return bt_yaml_fail(value, error, NULL, "'%s' must be a whole number from %llu to %llu, not '%.40s'",
                            key, (unsigned long long)minimum, (unsigned long long)maximum, value->text);
    *ret_value = number;
    return 0;
}

static int bt_size_parse(const char *text, uint64_t *ret_bytes)
{
    static const char *const suffixes[] = {"", "K", "KiB", "M", "MiB", "G", "GiB"};
    size_t digits = strspn(text, "0123456789");
    uint64_t number, bytes;

    if (bt_number_parse(text, digits, 0, UINT64_MAX, &number) < 0)
        return -EINVAL;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(suffixes); i++) {
        if (strcmp(text + digits, suffixes[i]) != 0)
            continue;
        if (__builtin_mul_overflow(number, 1ULL << (10 * ((i + 1) / 2)), &bytes))
            return -ERANGE;
        *ret_bytes = bytes;
        return 0;
    }
    return -EINVAL;
}

/* "512M", "2G": the largest unit that divides. */
static void bt_size_format(uint64_t bytes, char ret_text[24])
{
    static const char units[] = {'G', 'M', 'K'};

    for (unsigned i = 0; i < 3; i++) {
        unsigned shift = 30 - 10 * i;
        if (bytes && bytes % (1ULL << shift) == 0) {
            snprintf(ret_text, 24, "%llu%c", (unsigned long long)(bytes >> shift), units[i]);
            return;
        }
    }
    snprintf(ret_text, 24, "%llu", (unsigned long long)bytes);
}

int bt_yaml_size(const struct bt_yaml *mapping, const char *key, uint64_t fallback, uint64_t minimum,
                 uint64_t maximum, uint64_t *ret_bytes, struct bt_error *error)
{
    const struct bt_yaml *value = NULL;
    uint64_t bytes = fallback;
    int r = bt_yaml_scalar(mapping, key, "a size such as 512M or 2G", &value, error);

    if (r < 0)
        return r;
    if (value && (bt_size_parse(value->text, &bytes) < 0 || bytes < minimum || bytes > maximum)) {
        char low[24], high[24];
        bt_size_format(minimum, low);
        bt_size_format(maximum, high);
        return bt_yaml_fail(value, error, NULL,
                            "'%s' must be a size from %s to %s (such as 512M or 2G), not '%.40s'", key, low,
                            high, value->text);
    }
    *ret_bytes = bytes;
    return 0;
}
