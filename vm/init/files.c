/* Small files and folders in a guest. Called by the parts of berth-init; must not follow a link at the last
 * part of a path that an image brought along.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "vm/init/init.h"

int bt_init_read_file(const char *path, char *ret_text, size_t size, size_t *ret_length)
{
    bt_auto_fd file_fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file_fd < 0)
        return -errno;
    size_t length = 0;
    for (;;) {
        ssize_t count = read(file_fd, ret_text + length, size - length);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -errno;
        if (count == 0)
            break;
        length += (size_t)count;
        if (length == size)
            return -EFBIG;
    }
    ret_text[length] = '\0';
    *ret_length = length;
    return 0;
}

static int write_whole(int file_fd, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t count = write(file_fd, text, left);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return -errno;
        text += count;
        left -= (size_t)count;
    }
    return 0;
}

int bt_init_write_file(const char *path, const char *text, mode_t mode)
{
    if (unlink(path) < 0 && errno != ENOENT)
        return -errno;
    bt_auto_fd file_fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    return file_fd < 0 ? -errno : write_whole(file_fd, text);
}

int bt_init_set_kernel(const char *path, const char *value)
{
    bt_auto_fd file_fd = open(path, O_WRONLY | O_CLOEXEC);
    return file_fd < 0 ? -errno : write_whole(file_fd, value);
}

int bt_init_make_folder(const char *path, mode_t mode, unsigned uid, unsigned gid)
{
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        return -errno;
    bt_auto_fd folder_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder_fd < 0 || fchown(folder_fd, uid, gid) < 0 || fchmod(folder_fd, mode) < 0)
        return -errno;
    return 0;
}

static void give_entries(const char *folder, unsigned id, int levels)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return;
    for (struct dirent *entry = readdir(entries); entry != NULL; entry = readdir(entries)) {
        char path[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        int length = snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        if (length < 0 || (size_t)length >= sizeof(path) || lchown(path, id, id) < 0)
            bt_init_fatal("cannot give a file of %s to its user", folder);
        if (entry->d_type == DT_DIR && levels > 1)
            give_entries(path, id, levels - 1);
    }
    (void)closedir(entries);
}

void bt_init_give_folder(const char *folder, unsigned id)
{
    if (lchown(folder, id, id) < 0)
        return;
    give_entries(folder, id, 2);
}

int bt_init_copy_file(const char *from, const char *to, mode_t mode)
{
    bt_auto_fd from_fd = open(from, O_RDONLY | O_CLOEXEC);
    bt_auto_fd to_fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (from_fd < 0 || to_fd < 0)
        return -errno;
    for (;;) {
        ssize_t count = sendfile(to_fd, from_fd, NULL, 1U << 20);
        if (count < 0)
            return -errno;
        if (count == 0)
            return 0;
    }
}
