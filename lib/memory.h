/* Allocation, strings and growing buffers of the unprivileged programs.
 *
 * Running out of memory ends the process (these are short-lived or restartable); what an agent can make grow
 * has a limit and an error instead.
 */
#ifndef BERTH_LIB_MEMORY_H
#define BERTH_LIB_MEMORY_H

#include "ipc/base/base.h"

/* calloc that cannot fail. The caller owns the memory and frees it with free(). */
void *bt_new(size_t count, size_t size) __attribute__((malloc));
/* strdup and asprintf that cannot fail; the caller owns the string. */
char *bt_string_copy(const char *text);
char *bt_string_copy_length(const char *text, size_t length);
char *bt_string_format(const char *format, ...) BT_PRINTF(1, 2);

void bt_free_pointer(void *pointer_to_pointer); /* for bt_auto_free */
#define bt_auto_free BT_CLEANUP(bt_free_pointer)
/* Returns *pointer and leaves NULL behind. */
#define BT_TAKE(pointer)                                                                                     \
    ({                                                                                                       \
        __typeof__(pointer) bt_taken_ = (pointer);                                                           \
        (pointer) = NULL;                                                                                    \
        bt_taken_;                                                                                           \
    })

/* A growing byte buffer. data always has a NUL after length bytes once anything was added. */
struct bt_buffer {
    char *data;
    size_t length;
    size_t capacity;
    size_t limit; /* largest length allowed; 0 = 64 MiB */
};

/* Appends; returns 0 or -ENOSPC when the limit would be passed (then nothing is added). */
int bt_buffer_add(struct bt_buffer *buffer, const void *data, size_t length) BT_MUST_CHECK;
int bt_buffer_add_text(struct bt_buffer *buffer, const char *text) BT_MUST_CHECK;
int bt_buffer_add_format(struct bt_buffer *buffer, const char *format, ...) BT_PRINTF(2, 3) BT_MUST_CHECK;
void bt_buffer_free(struct bt_buffer *buffer); /* accepts an empty one; zeroes it */
/* Overwrites the bytes before freeing: for secrets. */
void bt_buffer_wipe(struct bt_buffer *buffer);
#define bt_auto_buffer BT_CLEANUP(bt_buffer_free) struct bt_buffer

/* A growing list of owned strings, always NULL-terminated (usable as argv or envp). Zero-initialise. */
struct bt_list {
    char **items;
    size_t count;
    size_t capacity;
};
void bt_list_add(struct bt_list *list, const char *text); /* copies */
void bt_list_add_format(struct bt_list *list, const char *format, ...) BT_PRINTF(2, 3);
bool bt_list_has(const struct bt_list *list, const char *text);
void bt_list_free(struct bt_list *list);
#define bt_auto_list BT_CLEANUP(bt_list_free) struct bt_list

/* For "did you mean": the candidate nearest to text within edit distance 3 (and less than the text's length),
 * or NULL. Borrows. */
const char *bt_nearest(const char *text, const char *const *candidates, size_t count);

#endif
