/* Files of stage 2, see trusted.h.
 *
 * Used for the configuration, the accounts, the audit log and the sockets' folders. It must not open
 * anything.
 */
#include "helper/trusted.h"

#include <errno.h>
#include <unistd.h>

bool bt_trusted_is_roots(const struct stat *status, mode_t type)
{
    return (status->st_mode & S_IFMT) == type && status->st_uid == 0 &&
           (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

int bt_trusted_read(int fd, char *ret_text, size_t size, size_t *ret_length)
{
    size_t length = 0;
    for (;;) {
        if (length == size)
            return -EFBIG;
        ssize_t got = read(fd, ret_text + length, size - length);
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        length += (size_t)got;
    }
    *ret_length = length;
    return 0;
}
