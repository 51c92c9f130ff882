/* Looks up a name in /etc/passwd or /etc/group.
 *
 * Called by main before the privilege drop. It must not use the name service: that would load libraries and
 * ask daemons as root.
 */
#include "helper/accounts.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "helper/trusted.h"

#define FILE_SIZE_MAX 131072
#define FIELDS 4

struct field {
    const char *text;
    size_t length;
};

/* The first FIELDS fields of a line; those that are not there are empty. */
static void split(const char *line, size_t length, struct field ret_fields[FIELDS])
{
    size_t start = 0;
    for (unsigned i = 0; i < FIELDS; i++) {
        size_t end = start;
        while (end < length && line[end] != ':')
            end++;
        ret_fields[i] = (struct field){.text = line + start, .length = end - start};
        start = end < length ? end + 1 : length;
    }
}

static int parse_id(struct field field, uint32_t *ret_id)
{
    uint64_t number;
    int error = bt_number_parse(field.text, field.length, 0, UINT32_MAX - 1, &number);
    if (error == 0)
        *ret_id = (uint32_t)number;
    return error;
}

int bt_accounts_find(const char *text, size_t length, const char *name, uint32_t *ret_number,
                     uint32_t *ret_second)
{
    size_t name_length = strlen(name);
    size_t start = 0;
    while (start < length) {
        struct field fields[FIELDS];
        uint32_t number = 0, second = 0;
        size_t end = start;
        while (end < length && text[end] != '\n')
            end++;
        split(text + start, end - start, fields);
        start = end + 1;
        if (fields[0].length != name_length || memcmp(fields[0].text, name, name_length) != 0)
            continue;
        if (parse_id(fields[2], &number) < 0 || (ret_second && parse_id(fields[3], &second) < 0))
            return -EINVAL;
        *ret_number = number;
        if (ret_second)
            *ret_second = second;
        return 0;
    }
    return -ENOENT;
}

int bt_accounts_read(const char *path, const char *name, uint32_t *ret_number, uint32_t *ret_second)
{
    static char text[FILE_SIZE_MAX];
    size_t length = 0;
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return -errno;
    int error = bt_trusted_read(fd, text, sizeof(text), &length);
    return error < 0 ? error : bt_accounts_find(text, length, name, ret_number, ret_second);
}
