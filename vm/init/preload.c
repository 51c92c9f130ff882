/* A kernel whose statx(2) does not know AT_NO_AUTOMOUNT, which ls and stat of coreutils 9.1 say with every
 * file, or whose poll(2) changes what it was asked (gVisor of 2022): there a library makes up for it, and the
 * loader loads that into every program, since /etc/ld.so.preload leads to the list that is written here
 * (backends/docker_image.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "vm/init/init.h"

extern const unsigned char bt_preload[]; /* vm/preload/, compiled; made by the Makefile */
extern const size_t bt_preload_length;

static bool is_statx_whole(void)
{
    struct statx found;
    return syscall(SYS_statx, AT_FDCWD, "/", AT_NO_AUTOMOUNT, STATX_TYPE, &found) == 0 || errno != EINVAL;
}

static bool is_poll_whole(void)
{
    struct pollfd nothing = {.fd = STDIN_FILENO};
    return poll(&nothing, 1, 0) < 0 || nothing.events == 0;
}

bool bt_init_is_kernel_whole(void)
{
    return is_statx_whole() && is_poll_whole();
}

static int write_library(const char *path)
{
    bt_auto_fd file_fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0755);
    if (file_fd < 0)
        return -errno;
    for (size_t done = 0; done < bt_preload_length;) {
        ssize_t count = write(file_fd, bt_preload + done, bt_preload_length - done);
        if (count < 0 && errno != EINTR)
            return -errno;
        done += count > 0 ? (size_t)count : 0;
    }
    return 0;
}

int bt_init_make_up_for_kernel(const char *library_path, const char *list_path)
{
    int result = write_library(library_path);
    return result < 0 ? result : bt_init_write_file(list_path, library_path, 0644);
}
