/* Files and folders. See file.h. */
#include "lib/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail_errno(struct bt_error *error, const char *doing, const char *path)
{
    int code = errno;
    const char *hint = NULL;
    if (code == ENOSPC || code == EDQUOT)
        hint = "free some disk space (berth cleanup images removes what is not in use) and try again";
    return bt_fail(error, BT_EXIT_ERROR, code, hint, "cannot %s %s: %s", doing, path, strerror(code));
}

int bt_file_read(const char *path, size_t maximum, struct bt_buffer *ret_data, struct bt_error *error)
{
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0)
        return fail_errno(error, "read", path);
    if (!S_ISREG(status.st_mode))
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL, "cannot read %s: not a regular file", path);
    bt_auto_buffer data = {.limit = maximum + 1};
    char chunk[16384];
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail_errno(error, "read", path);
        if (bt_buffer_add(&data, chunk, (size_t)got) < 0 || data.length > maximum)
            return bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "cannot read %s: larger than %zu bytes", path,
                           maximum);
        if (got == 0)
            break;
    }
    *ret_data = data;
    data = (struct bt_buffer){0};
    return 0;
}

int bt_write_all(int fd, const void *data, size_t length)
{
    const char *at = data;
    while (length > 0) {
        ssize_t written = write(fd, at, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -errno;
        at += written;
        length -= (size_t)written;
    }
    return 0;
}

int bt_file_write(const char *path, const void *data, size_t length, mode_t mode, struct bt_error *error)
{
    bt_auto_free char *temporary = bt_string_format("%s.XXXXXX", path);
    bt_auto_fd fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return fail_errno(error, "create", temporary);
    int result = bt_write_all(fd, data, length);
    if (result == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0 || rename(temporary, path) < 0))
        result = -errno;
    if (result < 0) {
        (void)unlink(temporary);
        errno = -result;
        return fail_errno(error, "write", path);
    }
    return 0;
}

int bt_folder_make(const char *path, mode_t mode, struct bt_error *error)
{
    bt_auto_free char *partial = bt_string_copy(path);
    for (char *slash = partial + 1; slash != NULL;) {
        slash = strchr(slash, '/');
        if (slash != NULL)
            *slash = '\0';
        if (mkdir(partial, mode) < 0 && errno != EEXIST)
            return bt_fail(
                error, BT_EXIT_ERROR, errno,
                errno == ENOSPC || errno == EDQUOT
                    ? NULL
                    : "make the folder above it writable for yourself, or set HOME, XDG_STATE_HOME, "
                      "XDG_DATA_HOME and XDG_CACHE_HOME to folders that are",
                "cannot create the folder %s: %s", partial, strerror(errno));
        if (slash != NULL)
            *slash++ = '/';
    }
    struct stat status;
    if (stat(path, &status) < 0)
        return fail_errno(error, "create the folder", path);
    if (!S_ISDIR(status.st_mode))
        return bt_fail(error, BT_EXIT_ERROR, ENOTDIR, NULL,
                       "cannot create the folder %s: a file is in its place", path);
    return 0;
}

int bt_folder_make_own(const char *path, struct bt_error *error)
{
    struct stat status;
    int result = bt_folder_make(path, 0700, error);
    if (result < 0)
        return result;
    if (stat(path, &status) < 0)
        return fail_errno(error, "look at", path);
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return bt_fail(error, BT_EXIT_ERROR, EPERM, "use a folder of your own",
                       "the folder %s belongs to another user (uid %u)", path, (unsigned)status.st_uid);
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return bt_fail(
            error, BT_EXIT_ERROR, EPERM, "take the right away: chmod go-w, after a look at what is in it",
            "other users may write in the folder %s (mode %04o)", path, (unsigned)status.st_mode & 07777);
    return 0;
}

#define TREE_DEPTH_MAX 256

/* Everything is done relative to open folders, so a tree that changes meanwhile cannot lead elsewhere. */
static int remove_at(int folder_fd, const char *name, int depth)
{
    if (unlinkat(folder_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -errno;
    bt_auto_fd fd = openat(folder_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (depth >= TREE_DEPTH_MAX)
        return -ELOOP;
    DIR *entries = fdopendir(dup(fd));
    if (entries == NULL)
        return -errno;
    int result = 0;
    (void)fchmod(fd, 0700);
    for (struct dirent *entry; result == 0 && (entry = readdir(entries)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = remove_at(fd, entry->d_name, depth + 1);
    }
    (void)closedir(entries);
    if (result == 0 && unlinkat(folder_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        result = -errno;
    return result;
}

int bt_tree_remove(const char *path, struct bt_error *error)
{
    int result = remove_at(AT_FDCWD, path, 0);
    if (result < 0) {
        errno = -result;
        return fail_errno(error, "remove", path);
    }
    return 0;
}
