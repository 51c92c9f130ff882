/* Copies into a guest: a tree, a file, or a chosen list of files.
 *
 * Called by the launcher (workspace) and by `berth cp`. What is read lies below one opened folder and is
 * never reached through a symbolic link; what is written is written by the guest's user.
 */
#include "vm/guest_link_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <string.h>
#include <sys/stat.h>

int bt_copy_guest_path(const char *guest_path, char **ret_relative, struct bt_error *error)
{
    const char *start = guest_path + strspn(guest_path, "/");
    size_t length = strlen(start);
    while (length > 0 && start[length - 1] == '/')
        length--;
    for (const char *part = start; part < start + length;
         part += strcspn(part, "/"), part += strspn(part, "/")) {
        size_t part_length = strcspn(part, "/");
        if (part_length == 2 && memcmp(part, "..", 2) == 0)
            length = SIZE_MAX;
        if (length == SIZE_MAX)
            break;
    }
    if (guest_path[0] != '/' || length == SIZE_MAX)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give an absolute path without ..",
                       "\"%s\" is not a path in a guest that can be copied to or from", guest_path);
    *ret_relative = bt_string_copy_length(start, length);
    return 0;
}

static int folder_open(const char *path, struct bt_error *error)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd
                   : bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot open %s: %s", path, strerror(errno));
}

/* Adds what fts(3) reports. Returns 0 or a negative errno. */
static int add_found(struct bt_guest_tar_stream *stream, const FTSENT *found, size_t root_length)
{
    char text[BT_COPY_NAME_SIZE];
    const char *name = found->fts_path + root_length;
    name += strspn(name, "/");
    if (found->fts_info == FTS_DP)
        return 0;
    if (found->fts_info == FTS_DNR || found->fts_info == FTS_ERR || found->fts_info == FTS_NS)
        return bt_fail(stream->error, BT_EXIT_ERROR, found->fts_errno, "make it readable, or leave it out",
                       "cannot read %s: %s", bt_copy_printable(found->fts_path, text),
                       strerror(found->fts_errno));
    return bt_guest_tar_add(stream, *name ? name : ".", name);
}

static int add_tree(struct bt_guest_tar_stream *stream, const char *host_path)
{
    bt_auto_free char *root = bt_string_copy(host_path);
    char *const roots[] = {root, NULL};
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR | FTS_COMFOLLOW, NULL);
    if (!tree)
        return bt_fail(stream->error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", host_path,
                       strerror(errno));
    int result = 0;
    errno = 0;
    for (FTSENT *found; result == 0 && (found = fts_read(tree)); errno = 0) {
        result = add_found(stream, found, strlen(root));
        if (result == -ENOENT && found->fts_level > 0)
            result = 0; /* it went away while the folder was read */
    }
    if (result == 0 && errno != 0)
        result = bt_fail(stream->error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", host_path,
                         strerror(errno));
    (void)fts_close(tree);
    return result;
}

int bt_guest_copy_in(struct bt_guest_link *link, const char *host_path, const char *guest_path, uint32_t uid,
                     uint32_t gid, struct bt_error *error)
{
    bt_auto_free char *prefix = NULL;
    struct stat about;
    int result = bt_copy_guest_path(guest_path, &prefix, error);
    if (result < 0)
        return result;
    if (stat(host_path, &about) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", host_path, strerror(errno));
    bool is_folder = S_ISDIR(about.st_mode);
    const char *slash = strrchr(host_path, '/');
    const char *name = is_folder || !slash ? host_path : slash + 1;
    bt_auto_free char *parent = is_folder ? bt_string_copy(host_path)
                                : slash   ? bt_string_copy_length(host_path, (size_t)(slash - host_path) + 1)
                                          : bt_string_copy(".");
    bt_auto_fd root_fd = folder_open(parent, error);
    if (root_fd < 0)
        return root_fd;
    struct bt_guest_tar_stream stream = {.root_fd = root_fd, .prefix = prefix, .uid = uid, .gid = gid};
    result = bt_guest_tar_open(link, &stream, error);
    if (result == 0)
        result = is_folder ? add_tree(&stream, host_path) : bt_guest_tar_add(&stream, name, "");
    return bt_guest_tar_close(&stream, result);
}

int bt_guest_copy_list_in(struct bt_guest_link *link, const char *host_folder, const char *names,
                          size_t names_length, const char *guest_folder, uint32_t uid, uint32_t gid,
                          void (*on_progress)(void *context, uint64_t bytes), void *context,
                          struct bt_error *error)
{
    bt_auto_free char *prefix = NULL;
    int result = bt_copy_guest_path(guest_folder, &prefix, error);
    if (result < 0)
        return result;
    if (names_length > 0 && names[names_length - 1] != '\0')
        return bt_fail(error, BT_EXIT_ERROR, EINVAL, NULL,
                       "a list of files to copy does not end with a zero byte");
    bt_auto_fd root_fd = folder_open(host_folder, error);
    if (root_fd < 0)
        return root_fd;
    struct bt_guest_tar_stream stream = {.root_fd = root_fd,
                                         .prefix = prefix,
                                         .uid = uid,
                                         .gid = gid,
                                         .on_progress = on_progress,
                                         .context = context};
    result = bt_guest_tar_open(link, &stream, error);
    for (size_t at = 0; result == 0 && at < names_length; at += strlen(names + at) + 1) {
        result = bt_guest_tar_add(&stream, names + at, names + at);
        if (result == -ENOENT)
            result = 0; /* listed by git, deleted in the folder */
    }
    return bt_guest_tar_close(&stream, result);
}
