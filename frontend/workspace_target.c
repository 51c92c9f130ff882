/* A folder of the user, reached by descriptors only: nothing outside it, nothing through a symbolic link.
 *
 * Called by prepare (reading) and apply (reading and writing). openat2(2) with RESOLVE_BENEATH and
 * RESOLVE_NO_SYMLINKS makes the kernel refuse what a folder that changes meanwhile could be made to lead to.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int bt_workspace_open_below(int folder_fd, const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)(flags | O_CLOEXEC),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    for (int attempt = 0;; attempt++) {
        long fd = syscall(SYS_openat2, folder_fd, path, &how, sizeof how);
        if (fd >= 0)
            return (int)fd;
        /* EAGAIN: something was renamed during the walk. */
        if (errno != EINTR && (errno != EAGAIN || attempt > 100))
            return -errno;
    }
}

/* Goes one component down, creating it at need. */
static int step_down(int folder_fd, const char *part)
{
    int fd = bt_workspace_open_below(folder_fd, part, O_PATH | O_DIRECTORY);
    if (fd != -ENOENT)
        return fd;
    if (mkdirat(folder_fd, part, 0777) < 0 && errno != EEXIST)
        return -errno;
    return bt_workspace_open_below(folder_fd, part, O_PATH | O_DIRECTORY);
}

int bt_workspace_open_parent(int folder_fd, const char *path, bool may_create, const char **ret_name)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        int fd = fcntl(folder_fd, F_DUPFD_CLOEXEC, 3);
        *ret_name = path;
        return fd < 0 ? -errno : fd;
    }
    bt_auto_free char *parent = bt_string_copy_length(path, (size_t)(slash - path));
    int fd = bt_workspace_open_below(folder_fd, parent, O_PATH | O_DIRECTORY);
    if (fd == -ENOENT && may_create) {
        bt_auto_fd above_fd = -1;
        for (char *part = parent; part != NULL;) {
            char *end = strchr(part, '/');
            if (end != NULL)
                *end++ = '\0';
            int next_fd = step_down(above_fd >= 0 ? above_fd : folder_fd, part);
            if (next_fd < 0)
                return next_fd;
            bt_fd_close(&above_fd);
            above_fd = next_fd;
            part = end;
        }
        fd = bt_fd_take(&above_fd);
    }
    if (fd >= 0)
        *ret_name = slash + 1;
    return fd;
}

int bt_workspace_look(int folder_fd, const char *path, struct bt_workspace_found *ret_found)
{
    const char *name = NULL;
    struct bt_workspace_found found = {0};
    bt_auto_fd parent_fd = bt_workspace_open_parent(folder_fd, path, false, &name);
    if (parent_fd == -ENOENT) {
        *ret_found = found;
        return 0;
    }
    if (parent_fd < 0)
        return parent_fd;
    if (fstatat(parent_fd, name, &found.status, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            return -errno;
    } else {
        found.is_there = true;
        if (S_ISREG(found.status.st_mode))
            found.mode = (found.status.st_mode & S_IXUSR) != 0 ? BT_MODE_EXECUTABLE : BT_MODE_FILE;
        else if (S_ISLNK(found.status.st_mode))
            found.mode = BT_MODE_LINK;
    }
    *ret_found = found;
    return 0;
}

static int import_link(struct bt_workspace_import *import, int folder_fd, const char *path)
{
    char text[BT_WORKSPACE_PATH_MAX];
    const char *name = NULL;
    bt_auto_fd parent_fd = bt_workspace_open_parent(folder_fd, path, false, &name);
    if (parent_fd < 0)
        return parent_fd;
    ssize_t length = readlinkat(parent_fd, name, text, sizeof text);
    if (length < 0)
        return -errno;
    bt_workspace_import_file(import, BT_MODE_LINK, path, (uint64_t)length);
    bt_workspace_import_data(import, text, (size_t)length);
    return 0;
}

int bt_workspace_import_found(struct bt_workspace_import *import, int folder_fd, const char *path,
                              const struct bt_workspace_found *found, struct bt_error *error)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    int result;
    if (found->mode == BT_MODE_LINK) {
        result = import_link(import, folder_fd, path);
    } else {
        /* Not blocking: a pipe may have taken the place of the file. */
        bt_auto_fd fd = bt_workspace_open_below(folder_fd, path, O_RDONLY | O_NONBLOCK);
        struct stat status;
        result = fd < 0 ? fd : fstat(fd, &status) < 0 ? -errno : 0;
        if (result == 0 && !S_ISREG(status.st_mode))
            result = -EAGAIN;
        if (result == 0)
            result = bt_workspace_import_open_file(import, found->mode, path, fd, (uint64_t)status.st_size);
    }
    if (result == -EPIPE || result == 0)
        return result;
    if (result == -EAGAIN || result == -ENOENT)
        return bt_fail(error, BT_EXIT_ERROR, EAGAIN, "try again", "%s changed while it was being read",
                       bt_workspace_printable(path, text));
    return bt_fail(error, BT_EXIT_ERROR, -result, "make it readable, or leave it out", "cannot read %s: %s",
                   bt_workspace_printable(path, text), strerror(-result));
}
