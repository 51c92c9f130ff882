/* Copies out of a guest: tar there, a careful unpacker here.
 *
 * Called by `berth cp` and the commands that bring work back. Everything that arrives is the agent's word:
 * names are checked part by part, nothing is written through a symbolic link or outside the destination,
 * modes lose their set-id bits, links may only point into the copy, and there is a limit on the bytes.
 */
#include "vm/guest_link_copy.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/file.h"

#define PARTS_MAX 256
#define ENTRY_COST 1024 /* what an empty file counts for the limit */

struct unpack {
    struct bt_session *session;
    struct bt_session_errors errors;
    struct bt_error *error;
    int parent_fd;    /* the folder that holds the destination */
    const char *base; /* the destination's name in it */
    bool is_top_seen;
    uint64_t left; /* bytes that may still come */
    unsigned skipped;
    char first_skipped[BT_COPY_NAME_SIZE];
};

/* libarchive asks for more: the chunk given last is done with, the next is waited for. */
static la_ssize_t read_block(struct archive *archive, void *context, const void **ret_data)
{
    struct unpack *unpack = context;
    struct bt_session *session = unpack->session;
    session->chunk_length = 0;
    while (session->chunk_length == 0 && !session->is_closed) {
        int result = bt_session_step(session, unpack->error);
        if (result == 0)
            result = bt_session_wait(session, NULL, 0, -1, unpack->error);
        if (result < 0) {
            archive_set_error(archive, -result, "connection");
            return -1;
        }
    }
    *ret_data = session->chunk;
    return (la_ssize_t)session->chunk_length;
}

static int name_fail(struct unpack *unpack, const char *name, int code, const char *why)
{
    char text[BT_COPY_NAME_SIZE];
    return bt_fail(unpack->error, BT_EXIT_ERROR, code, NULL, "cannot copy %s from the guest: %s",
                   bt_copy_printable(name, text), why);
}

static void note_skipped(struct unpack *unpack, const char *name)
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

static int write_blocks(struct unpack *unpack, struct archive *archive, int fd)
{
    const void *data;
    size_t length;
    la_int64_t offset;
    int code;
    while ((code = archive_read_data_block(archive, &data, &length, &offset)) == ARCHIVE_OK) {
        for (size_t done = 0; done < length;) {
            ssize_t count = pwrite(fd, (const char *)data + done, length - done, offset + (off_t)done);
            if (count < 0 && errno == EINTR)
                continue;
            if (count < 0)
                return -errno;
            done += (size_t)count;
        }
    }
    (void)unpack;
    return code == ARCHIVE_EOF ? 0 : -EIO;
}

static int file_make(struct unpack *unpack, struct archive *archive, struct archive_entry *entry,
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
    int result = write_blocks(unpack, archive, fd);
    if (result == 0 && ftruncate(fd, size) < 0)
        result = -errno;
    const struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = archive_entry_mtime(entry), .tv_nsec = archive_entry_mtime_nsec(entry)}};
    if (result == 0)
        (void)futimens(fd, times);
    return result;
}

static int link_make(struct unpack *unpack, struct archive_entry *entry, int folder_fd, const char *name,
                     int depth)
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

static int entry_place(struct unpack *unpack, struct archive *archive, struct archive_entry *entry,
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

static int entry_unpack(struct unpack *unpack, struct archive *archive, struct archive_entry *entry)
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
    if (result == -EIO && !unpack->session->link->is_usable)
        return result;
    return result < 0 ? name_fail(unpack, full, -result, strerror(-result)) : 0;
}

static int unpack_all(struct unpack *unpack)
{
    struct archive *archive = archive_read_new();
    struct archive_entry *entry;
    int code = ARCHIVE_FATAL, result = 0;
    if (archive && archive_read_support_format_tar(archive) == ARCHIVE_OK &&
        archive_read_support_format_empty(archive) == ARCHIVE_OK)
        code = archive_read_open(archive, unpack, NULL, read_block, NULL);
    if (code == ARCHIVE_OK) {
        while (result == 0 &&
               ((code = archive_read_next_header(archive, &entry)) == ARCHIVE_OK || code == ARCHIVE_WARN))
            result = entry_unpack(unpack, archive, entry);
        if (result == 0 && code != ARCHIVE_EOF)
            result = unpack->session->link->is_usable
                         ? bt_fail(unpack->error, BT_EXIT_ERROR, EIO, NULL,
                                   "the guest sent a damaged archive: %s", archive_error_string(archive))
                         : -EIO;
    } else {
        result = bt_fail(unpack->error, BT_EXIT_ERROR, EIO, NULL, "cannot read an archive from the guest");
    }
    (void)archive_read_free(archive);
    return result;
}

/* Takes what follows the archive (padding) without keeping it, then the exit status. */
static int tar_finish(struct unpack *unpack)
{
    int status = 0;
    unpack->session->is_pull = false;
    unpack->session->chunk_length = 0;
    int result = bt_session_finish(unpack->session, &status, unpack->error);
    /* 1: a file changed while tar read it; what came is whole as an archive. */
    if (result == 0 && status > 1)
        result = bt_session_fail(&unpack->errors, status, "packing", unpack->error);
    if (result == 0 && unpack->skipped > 0)
        result =
            bt_fail(unpack->error, BT_EXIT_ERROR, EXDEV, "copy what it points to by its own path",
                    "all but %u was copied: links that lead out of the copy, and devices, are left out (%s)",
                    unpack->skipped, unpack->first_skipped);
    return result;
}

/* Standard output after the archive's end is padding; only standard error is of interest. */
static int keep_stderr(void *context, bool is_stderr, const char *data, size_t length)
{
    return is_stderr ? bt_session_keep_errors(context, is_stderr, data, length) : 0;
}

static int copy_out(struct bt_guest_link *link, struct unpack *unpack, const char *guest_name)
{
    const char *slash = strrchr(guest_name, '/');
    bt_auto_free char *folder = bt_string_format("/%.*s", slash ? (int)(slash - guest_name) : 0, guest_name);
    const char *const arguments[] = {
        "tar", "-c", "-S",   "--format=gnu", "--hard-dereference",           "-f",
        "-",   "-C", folder, "--",           slash ? slash + 1 : guest_name, NULL};
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = bt_copy_environment,
                                             .folder = "/",
                                             .input_fd = -1,
                                             .on_output = keep_stderr,
                                             .context = &unpack->errors};
    int result = bt_session_start(link, &command, NULL, 0, 0, unpack->session, unpack->error);
    if (result < 0)
        return result;
    unpack->session->is_pull = true;
    unpack->session->may_end = true;
    result = unpack_all(unpack);
    if (result == 0)
        result = tar_finish(unpack);
    bt_session_close(unpack->session);
    return result;
}

int bt_guest_copy_out(struct bt_guest_link *link, const char *guest_path, const char *host_path,
                      uint64_t maximum_bytes, struct bt_error *error)
{
    bt_auto_free char *guest_name = NULL;
    int result = bt_copy_guest_path(guest_path, &guest_name, error);
    if (result < 0)
        return result;
    bt_auto_free char *path = bt_string_copy(host_path);
    for (size_t length = strlen(path); length > 1 && path[length - 1] == '/'; length--)
        path[length - 1] = '\0';
    char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    if (!*guest_name || !*base || strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "name a file or folder, and what it shall be called here", "cannot copy %s to %s",
                       guest_path, host_path);
    bt_auto_free char *parent =
        slash ? bt_string_copy_length(path, (size_t)(slash - path) + 1) : bt_string_copy(".");
    bt_auto_fd parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot open %s: %s", parent, strerror(errno));
    struct unpack *unpack = bt_new(1, sizeof(*unpack));
    unpack->session = bt_new(1, sizeof(*unpack->session));
    unpack->error = error;
    unpack->parent_fd = parent_fd;
    unpack->base = base;
    unpack->left = maximum_bytes;
    result = copy_out(link, unpack, guest_name);
    free(unpack->session);
    free(unpack);
    return result;
}
