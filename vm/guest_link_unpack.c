/* Unpacking what a guest sends. Everything in it is the agent's word: names are checked part by part, nothing
 * is written through a symbolic link or outside of the destination, modes lose their set-id bits, links may
 * only point into the copy, and there is a limit on the bytes.
 *
 * Called by guest_link_copy_out.c, and by a fuzzer.
 */
#include "vm/guest_link_copy.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PARTS_MAX 256
#define ENTRY_COST 1024 /* what an empty file counts for the limit */

static int name_fail(struct bt_guest_unpack *unpack, const char *name, int code, const char *why)
{
    char text[BT_COPY_NAME_SIZE];
    return bt_fail(unpack->error, BT_EXIT_ERROR, code, NULL, "cannot copy %s from the guest: %s",
                   bt_copy_printable(name, text), why);
}

static void note_skipped(struct bt_guest_unpack *unpack, const char *name)
{
    if (unpack->skipped++ == 0)
        (void)bt_copy_printable(name, unpack->first_skipped);
}

/* Splits a name in place into parts. Returns their number, or -EINVAL for one that could lead elsewhere. */
static int name_split(char *name, char *ret_parts[PARTS_MAX])
{
    int count = 0;
    if (name[0] == '/')
        return -EINVAL;
    for (char *rest = name, *part; (part = strsep(&rest, "/"));) {
        if (*part == '\0' || strcmp(part, ".") == 0)
            continue;
        if (strcmp(part, "..") == 0 || count == PARTS_MAX)
            return -EINVAL;
        ret_parts[count++] = part;
    }
    return count > 0 ? count : -EINVAL;
}

/* Opens (making it when missing) a folder by its name in another; a symbolic link is not a folder. */
static int folder_enter(int parent_fd, const char *name, mode_t mode)
{
    if (mkdirat(parent_fd, name, (mode & 0777) | 0700) < 0 && errno != EEXIST)
        return -errno;
    int fd = openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* Whether a link at this depth below the destination stays in it: leading ".." that the real folders above
 * cover, then names only. A ".." after a name could climb out of what another link points to. */
static bool is_link_inside(const char *target, int depth)
{
    bool is_climbing = true;
    if (target[0] == '/' || target[0] == '\0')
        return false;
    for (const char *part = target; *part; part += strspn(part, "/")) {
        size_t length = strcspn(part, "/");
        bool is_up = length == 2 && memcmp(part, "..", 2) == 0;
        bool is_same = length == 1 && part[0] == '.';
        if (is_up && (!is_climbing || --depth < 0))
            return false;
        if (!is_up && !is_same)
            is_climbing = false;
        part += length;
    }
    return true;
}

/* A sparse file's map may hold more than the size that the file is said to have, which is what was counted.
 */
static int write_blocks(struct archive *archive, int fd, la_int64_t size)
{
    const void *data;
    size_t length;
    la_int64_t offset;
    int code;
    while ((code = archive_read_data_block(archive, &data, &length, &offset)) == ARCHIVE_OK) {
        if (offset < 0 || offset > size || (uint64_t)length > (uint64_t)(size - offset))
            return -EFBIG;
        for (size_t done = 0; done < length;) {
            ssize_t count = pwrite(fd, (const char *)data + done, length - done, offset + (off_t)done);
            if (count < 0 && errno == EINTR)
                continue;
            if (count < 0)
                return -errno;
            done += (size_t)count;
        }
    }
    return code == ARCHIVE_EOF ? 0 : -EIO;
}

static int file_make(struct bt_guest_unpack *unpack, struct archive *archive, struct archive_entry *entry,
                     int folder_fd, const char *name)
{
    la_int64_t size = archive_entry_size(entry);
    if (size < 0 || (uint64_t)size > unpack->left)
        return -EFBIG;
    unpack->left -= (uint64_t)size;
    if (unlinkat(folder_fd, name, 0) < 0 && errno != ENOENT)
        return -errno;
    bt_auto_fd fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                           archive_entry_perm(entry) & 0777);
    if (fd < 0)
        return -errno;
    int result = write_blocks(archive, fd, size);
    if (result == 0 && ftruncate(fd, size) < 0)
        result = -errno;
    const struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = archive_entry_mtime(entry), .tv_nsec = archive_entry_mtime_nsec(entry)}};
    if (result == 0)
        (void)futimens(fd, times);
    return result;
}

static int link_make(struct bt_guest_unpack *unpack, struct archive_entry *entry, int folder_fd,
                     const char *name, int depth)
{
    const char *target = archive_entry_symlink(entry);
    if (!target || !is_link_inside(target, depth)) {
        note_skipped(unpack, archive_entry_pathname(entry));
        return 0;
    }
    if (unlinkat(folder_fd, name, 0) < 0 && errno != ENOENT)
        return -errno;
    return symlinkat(target, folder_fd, name) < 0 ? -errno : 0;
}

static int entry_place(struct bt_guest_unpack *unpack, struct archive *archive, struct archive_entry *entry,
                       int folder_fd, const char *name, int depth)
{
    mode_t type = archive_entry_filetype(entry);
    if (type == AE_IFDIR) {
        bt_auto_fd fd = folder_enter(folder_fd, name, archive_entry_perm(entry));
        return fd < 0 ? fd : 0;
    }
    if (type == AE_IFREG && !archive_entry_hardlink(entry))
        return file_make(unpack, archive, entry, folder_fd, name);
    if (type == AE_IFLNK)
        return link_make(unpack, entry, folder_fd, name, depth);
    note_skipped(unpack, archive_entry_pathname(entry));
    return 0;
}

static int entry_unpack(struct bt_guest_unpack *unpack, struct archive *archive, struct archive_entry *entry)
{
    const char *full = archive_entry_pathname(entry);
    if (!full)
        return name_fail(unpack, "a file", EINVAL, "its name is damaged");
    if (unpack->left < ENTRY_COST)
        return name_fail(unpack, full, EFBIG, "more files than allowed");
    unpack->left -= ENTRY_COST;
    bt_auto_free char *name = bt_string_copy(full);
    char *parts[PARTS_MAX];
    int count = name_split(name, parts);
    if (count < 0)
        return name_fail(unpack, full, EINVAL, "its name leads outside of the copy");
    /* The first part is what was asked for, under the name that it gets here. */
    if (unpack->is_top_seen != (count > 1))
        return name_fail(unpack, full, EINVAL, "it does not belong to what was asked for");
    unpack->is_top_seen = true;
    bt_auto_fd folder_fd = fcntl(unpack->parent_fd, F_DUPFD_CLOEXEC, 3);
    for (int i = 0; i < count - 1 && folder_fd >= 0; i++) {
        int next_fd = folder_enter(folder_fd, i == 0 ? unpack->base : parts[i], 0755);
        bt_fd_close(&folder_fd);
        folder_fd = next_fd;
    }
    int result = folder_fd < 0
                     ? folder_fd
                     : entry_place(unpack, archive, entry, folder_fd,
                                   count == 1 ? unpack->base : parts[count - 1], count > 1 ? count - 2 : 0);
    if (result == -EFBIG)
        return name_fail(unpack, full, EFBIG, "more bytes than allowed");
    if (result == -ENOTDIR || result == -ELOOP)
        return name_fail(unpack, full, -result, "something that is not a folder is in its way here");
    return result < 0 ? name_fail(unpack, full, -result, strerror(-result)) : 0;
}

int bt_guest_unpack(struct bt_guest_unpack *unpack, struct archive *archive)
{
    struct archive_entry *entry;
    int code, result = 0;
    while (result == 0 &&
           ((code = archive_read_next_header(archive, &entry)) == ARCHIVE_OK || code == ARCHIVE_WARN))
        result = entry_unpack(unpack, archive, entry);
    if (result == 0 && code != ARCHIVE_EOF)
        result = bt_fail(unpack->error, BT_EXIT_ERROR, EIO, NULL, "the guest sent a damaged archive: %s",
                         archive_error_string(archive));
    return result;
}
