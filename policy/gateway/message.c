/* Kept messages. See message.h. */
#include "policy/gateway/message.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/held.h"

/* One allocation: the head of the message, its fields, then the text of all slices. */
struct bt_kept_message {
    size_t size;
    struct bt_message *message; /* only as long as its field_count says */
};

static struct bt_http_slice move(struct bt_http_slice slice, char **at)
{
    struct bt_http_slice moved = {*at, slice.length};
    if (slice.length > 0)
        memcpy(*at, slice.data, slice.length);
    *at += slice.length;
    return moved;
}

#define SLICES(message)                                                                                      \
    (&(message)->method), (&(message)->scheme), (&(message)->authority), (&(message)->path),                 \
        (&(message)->protocol), (&(message)->reason)

struct bt_kept_message *bt_message_keep(const struct bt_message *message)
{
    const struct bt_http_slice *const singles[] = {SLICES(message)};
    size_t fields_end =
        offsetof(struct bt_message, fields) + message->field_count * sizeof(message->fields[0]);
    size_t size = sizeof(struct bt_kept_message) + fields_end;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(singles); i++)
        size += singles[i]->length;
    for (size_t i = 0; i < message->field_count; i++)
        size += message->fields[i].name.length + message->fields[i].value.length;
    struct bt_kept_message *kept = bt_new(1, size);
    kept->size = size;
    bt_held_change(0, size);
    kept->message = (struct bt_message *)(kept + 1);
    memcpy(kept->message, message, fields_end);
    char *at = (char *)kept->message + fields_end;
    struct bt_http_slice *const targets[] = {SLICES(kept->message)};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(targets); i++)
        *targets[i] = move(*singles[i], &at);
    for (size_t i = 0; i < message->field_count; i++) {
        kept->message->fields[i].name = move(message->fields[i].name, &at);
        kept->message->fields[i].value = move(message->fields[i].value, &at);
    }
    return kept;
}

struct bt_kept_message *bt_kept_message_free(struct bt_kept_message *kept)
{
    if (kept == NULL)
        return NULL;
    bt_held_change(kept->size, 0);
    explicit_bzero(kept, kept->size);
    free(kept);
    return NULL;
}

size_t bt_kept_message_weight(const struct bt_kept_message *kept)
{
    return kept != NULL ? kept->size : 0;
}

void bt_kept_message_get(const struct bt_kept_message *kept, struct bt_message *ret_message)
{
    memcpy(ret_message, kept->message,
           offsetof(struct bt_message, fields) + kept->message->field_count * sizeof(ret_message->fields[0]));
}
