/* The host's half of vm/run_protocol.h: a command as one request on standard input.
 *
 * Called by guest_link_session.c. The result holds whatever secrets the environment holds.
 */
#include "vm/guest_link_internal.h"

#include <errno.h>
#include <string.h>

#include "vm/run_protocol.h"

static void add_number(struct bt_buffer *request, uint32_t value, int *result)
{
    uint8_t bytes[4];
    bt_store_u32(bytes, value);
    if (*result == 0)
        *result = bt_buffer_add(request, bytes, sizeof(bytes));
}

static void add_text(struct bt_buffer *request, const char *text, int *result)
{
    if (*result == 0)
        *result = bt_buffer_add(request, text, strlen(text) + 1);
}

/* Counts a list and the bytes of its strings. */
static size_t list_measure(const char *const *list, size_t *bytes)
{
    size_t count = 0;
    for (; list && list[count]; count++)
        *bytes += strlen(list[count]) + 1;
    return count;
}

int bt_run_request_encode(const struct bt_guest_command *command, struct bt_buffer *ret_request,
                          struct bt_error *error)
{
    const char *folder = command->folder ? command->folder : "/";
    size_t bytes = 16 + strlen(folder) + 1;
    size_t arguments = list_measure(command->arguments, &bytes);
    size_t variables = list_measure(command->environment, &bytes);
    if (arguments == 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "name a program", "an empty command cannot be run");
    if (bytes > BT_RUN_LENGTH_MAX)
        return bt_fail(error, BT_EXIT_ERROR, E2BIG, "hand large data over as a file or on standard input",
                       "the command with its arguments and environment takes %zu bytes, more than %u", bytes,
                       BT_RUN_LENGTH_MAX);

    struct bt_buffer request = {.limit = bytes + 8};
    int result = 0;
    add_number(&request, BT_RUN_MAGIC, &result);
    add_number(&request, (uint32_t)bytes, &result);
    add_number(&request, command->uid, &result);
    add_number(&request, command->gid, &result);
    add_number(&request, (uint32_t)arguments, &result);
    add_number(&request, (uint32_t)variables, &result);
    add_text(&request, folder, &result);
    for (size_t i = 0; i < arguments; i++)
        add_text(&request, command->arguments[i], &result);
    for (size_t i = 0; i < variables; i++)
        add_text(&request, command->environment[i], &result);
    if (result < 0) {
        bt_buffer_wipe(&request);
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot encode a command");
    }
    *ret_request = request;
    return 0;
}
