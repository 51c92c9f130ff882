/* Allocation, strings, buffers and lists. See memory.h. */
#include "lib/memory.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_LIMIT_DEFAULT (64UL * 1024 * 1024)

static void *or_die(void *memory)
{
    if (memory == NULL) {
        (void)fputs("berth: out of memory\n", stderr);
        abort();
    }
    return memory;
}

void *bt_new(size_t count, size_t size)
{
    return or_die(calloc(count == 0 ? 1 : count, size));
}

char *bt_string_copy(const char *text)
{
    return or_die(strdup(text));
}

char *bt_string_copy_length(const char *text, size_t length)
{
    char *copy = bt_new(length + 1, 1);
    if (length > 0)
        memcpy(copy, text, length);
    return copy;
}

static char *format_arguments(const char *format, va_list arguments) BT_PRINTF(1, 0);
static char *format_arguments(const char *format, va_list arguments)
{
    char *text = NULL;
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    return or_die(text);
}

char *bt_string_format(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char *text = format_arguments(format, arguments);
    va_end(arguments);
    return text;
}

void bt_free_pointer(void *pointer_to_pointer)
{
    void *memory;
    memcpy(&memory, pointer_to_pointer, sizeof memory);
    free(memory);
}

int bt_buffer_add(struct bt_buffer *buffer, const void *data, size_t length)
{
    size_t limit = buffer->limit == 0 ? BUFFER_LIMIT_DEFAULT : buffer->limit;
    if (length > limit || buffer->length > limit - length)
        return -ENOSPC;
    if (buffer->length + length + 1 > buffer->capacity) {
        size_t capacity = buffer->capacity < 256 ? 256 : buffer->capacity * 2;
        if (capacity < buffer->length + length + 1)
            capacity = buffer->length + length + 1;
        buffer->data = or_die(realloc(buffer->data, capacity));
        buffer->capacity = capacity;
    }
    if (length > 0)
        memcpy(buffer->data + buffer->length, data, length);
    buffer->length += length;
    buffer->data[buffer->length] = '\0';
    return 0;
}

int bt_buffer_add_text(struct bt_buffer *buffer, const char *text)
{
    return bt_buffer_add(buffer, text, strlen(text));
}

int bt_buffer_add_format(struct bt_buffer *buffer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    bt_auto_free char *text = format_arguments(format, arguments);
    va_end(arguments);
    return bt_buffer_add_text(buffer, text);
}

void bt_buffer_free(struct bt_buffer *buffer)
{
    size_t limit = buffer->limit;
    free(buffer->data);
    *buffer = (struct bt_buffer){.limit = limit};
}

void bt_buffer_wipe(struct bt_buffer *buffer)
{
    if (buffer->data != NULL)
        explicit_bzero(buffer->data, buffer->capacity);
    bt_buffer_free(buffer);
}

static void list_add_owned(struct bt_list *list, char *text)
{
    if (list->count + 2 > list->capacity) {
        list->capacity = list->capacity < 8 ? 16 : list->capacity * 2;
        list->items = or_die(reallocarray(list->items, list->capacity, sizeof *list->items));
    }
    list->items[list->count++] = text;
    list->items[list->count] = NULL;
}

void bt_list_add(struct bt_list *list, const char *text)
{
    list_add_owned(list, bt_string_copy(text));
}

void bt_list_add_format(struct bt_list *list, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    list_add_owned(list, format_arguments(format, arguments));
    va_end(arguments);
}

bool bt_list_has(const struct bt_list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], text) == 0)
            return true;
    }
    return false;
}

void bt_list_free(struct bt_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (struct bt_list){0};
}

#define EDIT_LENGTH_MAX 64U

/* Strings above 64 characters: 64. */
static size_t edit_distance(const char *left, const char *right)
{
    size_t left_length = strlen(left);
    size_t right_length = strlen(right);
    if (left_length > EDIT_LENGTH_MAX || right_length > EDIT_LENGTH_MAX)
        return EDIT_LENGTH_MAX;
    size_t row[EDIT_LENGTH_MAX + 1];
    for (size_t j = 0; j <= right_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= left_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= right_length; j++) {
            size_t above = row[j];
            size_t best = diagonal + (left[i - 1] == right[j - 1] ? 0 : 1);
            if (above + 1 < best)
                best = above + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            diagonal = above;
        }
    }
    return row[right_length];
}

const char *bt_nearest(const char *text, const char *const *candidates, size_t count)
{
    size_t best = strlen(text) < 4 ? strlen(text) : 4;
    const char *nearest = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(text, candidates[i]);
        if (distance < best) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}
