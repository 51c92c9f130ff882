/* Parses the request of "berth-init run" (vm/run_protocol.h). Called by run_command.c, tests and a fuzzer.
 * Must not allocate or do input and output; the caller has read exactly the bytes that the header announces.
 */
#include "vm/init/run_request.h"

#include <errno.h>
#include <string.h>

#include "vm/run_protocol.h"

/* "length of what follows" counts everything behind the length field: four numbers, then the strings. */
#define FIXED_AFTER_LENGTH 16U

int bt_run_parse_header(const uint8_t header[BT_RUN_HEADER_LENGTH], struct bt_run_request *request,
                        size_t *ret_length)
{
    uint32_t length = bt_load_u32(header + 4);
    uint32_t argument_count = bt_load_u32(header + 16);
    uint32_t environment_count = bt_load_u32(header + 20);
    if (bt_load_u32(header) != BT_RUN_MAGIC || length < FIXED_AFTER_LENGTH || length > BT_RUN_LENGTH_MAX)
        return -EINVAL;
    if (argument_count == 0 || argument_count > BT_RUN_STRINGS_MAX ||
        environment_count > BT_RUN_STRINGS_MAX - argument_count)
        return -EINVAL;
    request->uid = bt_load_u32(header + 8);
    request->gid = bt_load_u32(header + 12);
    /* -1 means "leave as it is" to the system calls: never a user. */
    if (request->uid == UINT32_MAX || request->gid == UINT32_MAX)
        return -EINVAL;
    request->argument_count = argument_count;
    request->environment_count = environment_count;
    *ret_length = length - FIXED_AFTER_LENGTH;
    return 0;
}

/* The next NUL-terminated string, or NULL when none is complete. */
static char *next_string(char *body, size_t length, size_t *at)
{
    char *start = body + *at;
    const char *end = *at < length ? memchr(start, '\0', length - *at) : NULL;
    if (end == NULL)
        return NULL;
    *at += (size_t)(end - start) + 1;
    return start;
}

static bool is_variable(const char *text)
{
    const char *equals = strchr(text, '=');
    return equals != NULL && equals != text;
}

int bt_run_parse_body(char *body, size_t length, struct bt_run_request *request)
{
    size_t at = 0;
    size_t out = 0;
    request->folder = next_string(body, length, &at);
    if (request->folder == NULL || request->folder[0] != '/')
        return -EINVAL;
    for (uint32_t i = 0; i < request->argument_count; i++) {
        char *text = next_string(body, length, &at);
        if (text == NULL || (i == 0 && text[0] == '\0'))
            return -EINVAL;
        request->strings[out++] = text;
    }
    request->strings[out++] = NULL;
    for (uint32_t i = 0; i < request->environment_count; i++) {
        char *text = next_string(body, length, &at);
        if (text == NULL || !is_variable(text))
            return -EINVAL;
        request->strings[out++] = text;
    }
    request->strings[out] = NULL;
    return at == length ? 0 : -EINVAL;
}

const char *bt_run_variable(struct bt_run_request *request, const char *name)
{
    size_t name_length = strlen(name);
    for (char **item = bt_run_environment(request); *item != NULL; item++)
        if (strncmp(*item, name, name_length) == 0 && (*item)[name_length] == '=')
            return *item + name_length + 1;
    return NULL;
}
