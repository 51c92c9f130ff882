/* Joins the base initrd and a guest's own archive in a memfd, since the second holds secrets. Called by the
 * drivers. Must not write to a file system. See initrd.h.
 */
#include "vm/initrd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file.h"

/* Archives that follow each other start at a multiple of four bytes (kernel: buffer-format.rst). */
static int copy_base(int base_fd, int initrd_fd)
{
    static const char zeros[4];
    struct stat status;
    if (fstat(base_fd, &status) < 0)
        return -errno;
    for (off_t left = status.st_size; left > 0;) {
        ssize_t count = sendfile(initrd_fd, base_fd, NULL, (size_t)left);
        if (count < 0)
            return -errno;
        if (count == 0)
            return -EIO;
        left -= count;
    }
    size_t rest = (size_t)status.st_size % 4;
    return rest == 0 ? 0 : bt_write_all(initrd_fd, zeros, 4 - rest);
}

int bt_initrd_make(const char *base_path, const void *extra, size_t extra_length, int *ret_initrd_fd,
                   struct bt_error *error)
{
    bt_auto_fd base_fd = open(base_path, O_RDONLY | O_CLOEXEC);
    if (base_fd < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, errno, "run: berth image build kernel",
                       "cannot open the initrd %s: %s", base_path, strerror(errno));
    bt_auto_fd initrd_fd = memfd_create("initrd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int result = initrd_fd < 0 ? -errno : copy_base(base_fd, initrd_fd);
    if (result == 0)
        result = bt_write_all(initrd_fd, extra, extra_length);
    if (result == 0 &&
        fcntl(initrd_fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
        result = -errno;
    if (result < 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, -result, NULL,
                       "cannot put the initrd of the machine together: %s", strerror(-result));
    *ret_initrd_fd = bt_fd_take(&initrd_fd);
    return 0;
}
