/* Writing the result of a merge into the user's folder: all of it, or nothing.
 *
 * Called by apply. Every new file is first written whole into one folder inside the target (so on the same
 * file system); then each takes its place by a rename that swaps it with what was there. A failure swaps
 * back. What ends this program in between loses nothing: old files are in the staging folder or in base.git,
 * and applying again completes the work.
 */
#include "frontend/workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STAGING_PREFIX ".berth-apply-"

struct writer {
    const char *state_folder;
    const char *target_folder;
    int target_fd;
    int staging_fd;
    char staging[64]; /* its name in target_folder */
    struct bt_workspace_write *writes;
    size_t count;
    struct bt_error *error;
    /* Of the stream of contents. */
    size_t next;        /* the write that content is read for */
    uint64_t remaining; /* bytes of it; then one newline */
    bool is_in_content;
    char header[160];
    size_t header_length;
    int file_fd;
    int result;
};

static int fail_at(const struct writer *writer, int code, const char *path, const char *what)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    return bt_fail(writer->error, BT_EXIT_ERROR, code,
                   code == ENOSPC || code == EDQUOT ? "make room, then apply again" : NULL,
                   "cannot %s %s/%s, nothing was changed: %s", what, writer->target_folder,
                   bt_workspace_printable(path, text), strerror(code));
}

/* Leftovers of an application that was ended half way. */
static void remove_old_staging(const struct writer *writer)
{
    int copy_fd = openat(writer->target_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = copy_fd < 0 ? NULL : fdopendir(copy_fd);
    if (folder == NULL) {
        bt_fd_close(&copy_fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat status;
        if (strncmp(entry->d_name, STAGING_PREFIX, strlen(STAGING_PREFIX)) != 0 ||
            fstatat(writer->target_fd, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISDIR(status.st_mode) || status.st_uid != geteuid() || (status.st_mode & 0777) != 0700)
            continue;
        bt_auto_free char *path = bt_string_format("%s/%s", writer->target_folder, entry->d_name);
        (void)bt_tree_remove(path, NULL);
    }
    (void)closedir(folder);
}

static int make_staging(struct writer *writer)
{
    char random[17];
    remove_old_staging(writer);
    bt_random_hex(random, 8);
    (void)snprintf(writer->staging, sizeof writer->staging, STAGING_PREFIX "%s", random);
    if (mkdirat(writer->target_fd, writer->staging, 0700) < 0)
        return fail_at(writer, errno, writer->staging, "create");
    writer->staging_fd = bt_workspace_open_below(writer->target_fd, writer->staging, O_RDONLY | O_DIRECTORY);
    return writer->staging_fd < 0 ? fail_at(writer, -writer->staging_fd, writer->staging, "open") : 0;
}

/* The mode of a new file: the user's umask, or what the file had, with git's execute bit. */
static mode_t mode_for(const struct bt_workspace_write *write, mode_t mask)
{
    bool is_executable = write->change->new_mode == BT_MODE_EXECUTABLE;
    mode_t mode = S_ISREG(write->found.status.st_mode) && write->found.is_there
                      ? write->found.status.st_mode & 0666
                      : 0666 & ~mask;
    return is_executable ? mode | ((mode & 0444) >> 2) : mode;
}

static void staged_name(size_t index, char ret_name[32])
{
    (void)snprintf(ret_name, 32, "%zu", index);
}

static size_t next_with_content(const struct writer *writer, size_t from)
{
    while (from < writer->count && writer->writes[from].change->new_mode == 0)
        from++;
    return from;
}

/* "<id> blob <size>" of the write that is next: opens its file. */
static int begin_file(struct writer *writer)
{
    char name[32];
    if (writer->next >= writer->count)
        return -EBADMSG;
    const struct bt_workspace_write *write = &writer->writes[writer->next];
    size_t length = strlen(write->change->new_id);
    writer->header[writer->header_length] = '\0';
    if (strncmp(writer->header, write->change->new_id, length) != 0 ||
        strncmp(writer->header + length, " blob ", 6) != 0 ||
        bt_number_parse(writer->header + length + 6, strlen(writer->header + length + 6), 0, INT64_MAX,
                        &writer->remaining) < 0)
        return -EBADMSG;
    mode_t mask = umask(0);
    (void)umask(mask);
    staged_name(writer->next, name);
    writer->file_fd =
        openat(writer->staging_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (writer->file_fd < 0 || fchmod(writer->file_fd, mode_for(write, mask)) < 0)
        return -errno;
    writer->is_in_content = true;
    writer->header_length = 0;
    return 0;
}

/* Takes what it can from data; returns how much that was. */
static size_t take(struct writer *writer, const char *data, size_t length)
{
    if (!writer->is_in_content) {
        if (data[0] == '\n')
            writer->result = begin_file(writer);
        else if (writer->header_length + 1 < sizeof writer->header)
            writer->header[writer->header_length++] = data[0];
        else
            writer->result = -EBADMSG;
        return 1;
    }
    if (writer->remaining == 0) { /* the newline after the content */
        bt_fd_close(&writer->file_fd);
        writer->is_in_content = false;
        writer->next = next_with_content(writer, writer->next + 1);
        return 1;
    }
    size_t part = length < writer->remaining ? length : (size_t)writer->remaining;
    writer->result = bt_write_all(writer->file_fd, data, part);
    writer->remaining -= part;
    return part;
}

static void on_content(void *context, const char *data, size_t length)
{
    struct writer *writer = context;
    while (length > 0 && writer->result == 0) {
        size_t taken = take(writer, data, length);
        data += taken;
        length -= taken;
    }
}

/* Writes every new file into the staging folder. */
static int stage(struct writer *writer)
{
    static const char *const arguments[] = {"cat-file", "--batch", NULL};
    bt_auto_buffer ids = {.limit = BT_WORKSPACE_NAMES_BYTES_MAX};
    bt_auto_buffer output = {0};
    int result = 0;
    for (size_t i = 0; i < writer->count && result == 0; i++) {
        if (writer->writes[i].change->new_mode != 0)
            result = bt_buffer_add_format(&ids, "%s\n", writer->writes[i].change->new_id);
    }
    if (result < 0)
        return bt_fail(writer->error, BT_EXIT_ERROR, EFBIG, NULL, "the patch has too many files");
    if (ids.length == 0)
        return 0;
    writer->next = next_with_content(writer, 0);
    const struct bt_workspace_git git = {.state_folder = writer->state_folder,
                                         .arguments = arguments,
                                         .input = ids.data,
                                         .input_length = ids.length,
                                         .on_output = on_content,
                                         .context = writer};
    result = bt_workspace_git_run(&git, &output, NULL, writer->error);
    bt_fd_close(&writer->file_fd);
    if (result == 0 && writer->result == 0 && writer->next < writer->count)
        writer->result = -EBADMSG;
    return result == 0 && writer->result < 0 ? fail_at(writer, -writer->result, writer->staging, "write")
                                             : result;
}

static bool is_unchanged(const struct bt_workspace_found *then, const struct bt_workspace_found *now)
{
    const struct stat *a = &then->status, *b = &now->status;
    if (!then->is_there || !now->is_there)
        return then->is_there == now->is_there;
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_mode == b->st_mode &&
           (S_ISDIR(a->st_mode) ||
            (a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
             a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
             a->st_ctim.tv_nsec == b->st_ctim.tv_nsec));
}

/* Somebody (an editor) may have written since the files were read for the merge. */
static int check_unchanged(const struct writer *writer)
{
    for (size_t i = 0; i < writer->count; i++) {
        struct bt_workspace_found now;
        int result = bt_workspace_look(writer->target_fd, writer->writes[i].change->path, &now);
        if ((result == -ENOTDIR || result == -ELOOP) && !writer->writes[i].found.is_there)
            continue; /* a file or link that this patch turns into a folder; if not, the kernel refuses below
                       */
        if (result < 0 || !is_unchanged(&writer->writes[i].found, &now))
            return fail_at(writer, EAGAIN, writer->writes[i].change->path, "write (it was changed just now)");
    }
    return 0;
}

/* Removes the folders above path that became empty. */
static void prune(int target_fd, const char *path)
{
    bt_auto_free char *folder = bt_string_copy(path);
    for (char *slash; (slash = strrchr(folder, '/')) != NULL;) {
        const char *name = NULL;
        *slash = '\0';
        bt_auto_fd parent_fd = bt_workspace_open_parent(target_fd, folder, false, &name);
        if (parent_fd < 0 || unlinkat(parent_fd, name, AT_REMOVEDIR) < 0)
            return;
    }
}

/* Both are renameat2(2), with what a file system without its flags (EINVAL) allows instead. */
static int move(int from_fd, const char *from, int to_fd, const char *to)
{
    if (renameat2(from_fd, from, to_fd, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    if (faccessat(to_fd, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return -EEXIST;
    return renameat(from_fd, from, to_fd, to) < 0 ? -errno : 0;
}

static int swap(int staging_fd, const char *staged, int folder_fd, const char *name)
{
    if (renameat2(staging_fd, staged, folder_fd, name, RENAME_EXCHANGE) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    if (renameat(folder_fd, name, staging_fd, "swap") < 0)
        return -errno;
    if (renameat(staging_fd, staged, folder_fd, name) < 0) {
        int code = errno;
        (void)renameat(staging_fd, "swap", folder_fd, name);
        return -code;
    }
    return renameat(staging_fd, "swap", staging_fd, staged) < 0 ? -errno : 0;
}

/* Puts one file in its place; what was there goes to the staging folder under its name. */
static int place(struct writer *writer, size_t index)
{
    char staged[32];
    const char *name = NULL;
    const struct bt_workspace_write *write = &writer->writes[index];
    bool is_kept = write->change->new_mode != 0;
    staged_name(index, staged);
    bt_auto_fd parent_fd = bt_workspace_open_parent(writer->target_fd, write->change->path, is_kept, &name);
    if (parent_fd < 0)
        return parent_fd;
    if (!is_kept)
        return move(parent_fd, name, writer->staging_fd, staged);
    if (write->found.is_there && write->found.mode != 0)
        return swap(writer->staging_fd, staged, parent_fd, name);
    /* An empty folder of the user's may be where the file goes: only an empty one is removed. */
    if (write->found.is_there && unlinkat(parent_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return -errno;
    return move(writer->staging_fd, staged, parent_fd, name);
}

static void take_back(struct writer *writer, size_t index)
{
    char staged[32];
    const char *name = NULL;
    const struct bt_workspace_write *write = &writer->writes[index];
    staged_name(index, staged);
    bt_auto_fd parent_fd = bt_workspace_open_parent(writer->target_fd, write->change->path, true, &name);
    if (parent_fd < 0)
        return;
    if (write->change->new_mode == 0)
        (void)move(writer->staging_fd, staged, parent_fd, name);
    else if (write->found.is_there && write->found.mode != 0)
        (void)swap(writer->staging_fd, staged, parent_fd, name);
    else if (unlinkat(parent_fd, name, 0) == 0)
        prune(writer->target_fd, write->change->path);
}

/* Removals before the rest: a file may become a folder, and the other way round. */
static int place_all(struct writer *writer)
{
    size_t *order = bt_new(writer->count + 1, sizeof *order);
    size_t used = 0, done = 0;
    int result = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < writer->count; i++) {
            if ((writer->writes[i].change->new_mode != 0) == (pass == 1))
                order[used++] = i;
        }
    }
    for (; done < used && result == 0; done++) {
        result = place(writer, order[done]);
        if (result == 0 && writer->writes[order[done]].change->new_mode == 0)
            prune(writer->target_fd, writer->writes[order[done]].change->path);
    }
    if (result < 0) {
        size_t failed = order[--done];
        while (done > 0)
            take_back(writer, order[--done]);
        result = fail_at(writer, -result, writer->writes[failed].change->path, "write");
    }
    free(order);
    return result;
}

static void remove_staging(struct writer *writer)
{
    if (writer->staging_fd < 0)
        return;
    for (size_t i = 0; i < writer->count; i++) {
        char name[32];
        staged_name(i, name);
        (void)unlinkat(writer->staging_fd, name, 0);
    }
    (void)unlinkat(writer->target_fd, writer->staging, AT_REMOVEDIR);
    bt_fd_close(&writer->staging_fd);
}

int bt_workspace_write_all(const char *state_folder, const char *target_folder,
                           struct bt_workspace_write *writes, size_t count, struct bt_error *error)
{
    bt_auto_fd target_fd = open(target_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot open %s: %s", target_folder,
                       strerror(errno));
    struct writer writer = {.state_folder = state_folder,
                            .target_folder = target_folder,
                            .target_fd = target_fd,
                            .staging_fd = -1,
                            .writes = writes,
                            .count = count,
                            .error = error,
                            .file_fd = -1};
    int result = make_staging(&writer);
    if (result == 0)
        result = stage(&writer);
    if (result == 0)
        result = check_unchanged(&writer);
    if (result == 0)
        result = place_all(&writer);
    remove_staging(&writer);
    return result;
}
