/* Recording the workspace on the host before a launch. See workspace.h and docs/workspace.md.
 *
 * Called by the launcher. Reads the user's folder, writes only into the agent's own.
 */
#include "frontend/workspace_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Above this the agent gets no .git: its objects would be sent on top of the files. */
#define REPOSITORY_BYTES_MAX (256ULL * 1024 * 1024)
/* Above this base.git is not compressed: the time would be felt, and such files are rarely text. */
#define COMPRESSED_BYTES_MAX (512ULL * 1024 * 1024)
#define ROOM_BYTES (64ULL * 1024 * 1024)

/* What a git that was killed leaves behind would stop the next one: its lock files, its unfinished packs,
 * and the mark of a pack that nothing refers to yet, which would be in the way of the same pack.
 * Whoever holds the lock of the state folder is the only one that runs git in it. */
static void remove_leftovers(const char *state_folder)
{
    static const char *const folders[] = {"", "refs/heads", "refs/berth", "refs/berth/before",
                                          "objects/pack"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(folders); i++) {
        bt_auto_free char *path =
            bt_string_format("%s/" BT_WORKSPACE_REPOSITORY "/%s", state_folder, folders[i]);
        DIR *folder = opendir(path);
        if (folder == NULL)
            continue;
        for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
            size_t length = strlen(entry->d_name);
            if (strncmp(entry->d_name, "tmp_", 4) == 0 ||
                strncmp(entry->d_name, "fast_import_crash_", 18) == 0 ||
                (length > 5 && (strcmp(entry->d_name + length - 5, ".lock") == 0 ||
                                strcmp(entry->d_name + length - 5, ".keep") == 0)))
                (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
        (void)closedir(folder);
    }
}

int bt_workspace_lock(const char *state_folder, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/workspace.lock", state_folder);
    bt_auto_fd fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot open %s: %s", path, strerror(errno));
    while (flock(fd, LOCK_EX) < 0) {
        if (errno != EINTR)
            return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot lock %s: %s", path, strerror(errno));
    }
    remove_leftovers(state_folder);
    return bt_fd_take(&fd);
}

struct recorder {
    int root_fd;
    const char *root;
    const struct bt_workspace_listing *listing;
    const struct bt_progress *progress;
    struct bt_error *error;
    uint64_t byte_count, file_count;
};

/* How much there is, so that progress, room and compression can be told beforehand. */
static int measure(struct recorder *recorder)
{
    const struct bt_buffer *names = &recorder->listing->names;
    for (size_t at = 0; at < names->length; at += strlen(names->data + at) + 1) {
        struct bt_workspace_found found;
        char text[BT_WORKSPACE_TEXT_SIZE];
        int result = bt_workspace_look(recorder->root_fd, names->data + at, &found);
        if (result < 0)
            return bt_fail(recorder->error, BT_EXIT_ERROR, -result, "make it readable, or leave it out",
                           "cannot read %s/%s: %s", recorder->root,
                           bt_workspace_printable(names->data + at, text), strerror(-result));
        if (found.mode == BT_MODE_FILE || found.mode == BT_MODE_EXECUTABLE)
            recorder->byte_count += (uint64_t)found.status.st_size;
    }
    return 0;
}

static int check_room(const struct recorder *recorder, const char *state_folder)
{
    struct statvfs room;
    if (statvfs(state_folder, &room) < 0)
        return bt_fail(recorder->error, BT_EXIT_ERROR, errno, NULL, "cannot use %s: %s", state_folder,
                       strerror(errno));
    uint64_t available = (uint64_t)room.f_bavail * room.f_frsize;
    if (available < recorder->byte_count + ROOM_BYTES)
        return bt_fail(recorder->error, BT_EXIT_ERROR, ENOSPC, "make room, or choose a smaller workspace",
                       "the workspace has %llu MiB and %s has room for %llu MiB",
                       (unsigned long long)(recorder->byte_count >> 20), state_folder,
                       (unsigned long long)(available >> 20));
    return 0;
}

static int record_files(struct recorder *recorder, struct bt_workspace_import *import)
{
    const struct bt_buffer *names = &recorder->listing->names;
    uint64_t done = 0;
    for (size_t at = 0; at < names->length; at += strlen(names->data + at) + 1) {
        const char *name = names->data + at;
        struct bt_workspace_found found;
        int result = bt_workspace_look(recorder->root_fd, name, &found);
        if (result < 0 || found.mode == 0)
            continue; /* gone since it was listed */
        result = bt_workspace_import_found(import, recorder->root_fd, name, &found, recorder->error);
        if (result < 0)
            return result;
        done += S_ISREG(found.status.st_mode) ? (uint64_t)found.status.st_size : 0;
        recorder->file_count++;
        if (recorder->progress != NULL && recorder->progress->report != NULL)
            recorder->progress->report(recorder->progress->context, "recording the workspace", done,
                                       recorder->byte_count);
    }
    return 0;
}

static int record_base(struct recorder *recorder, const char *state_folder)
{
    struct bt_workspace_import import;
    bt_auto_free char *repository = bt_string_format("%s/" BT_WORKSPACE_REPOSITORY, state_folder);
    int result = bt_workspace_repository_make(repository, false, "sha1", recorder->error);
    if (result == 0)
        result = bt_workspace_import_start(state_folder, recorder->byte_count > COMPRESSED_BYTES_MAX ? 0 : 1,
                                           &import, recorder->error);
    if (result < 0)
        return result;
    bt_workspace_import_commit(&import, BT_WORKSPACE_REF_BASE, NULL, true,
                               "The workspace as it was copied in");
    return bt_workspace_import_finish(&import, record_files(recorder, &import), recorder->error);
}

/* Puts the packs of base.git into guest.git, by hard links. */
static int link_packs(const char *state_folder, struct bt_error *error)
{
    bt_auto_free char *from = bt_string_format("%s/" BT_WORKSPACE_REPOSITORY "/objects/pack", state_folder);
    bt_auto_free char *to =
        bt_string_format("%s/" BT_WORKSPACE_GUEST_REPOSITORY "/objects/pack", state_folder);
    bt_auto_fd to_fd = open(to, O_PATH | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = opendir(from);
    if (to_fd < 0 || folder == NULL) {
        int code = errno;
        if (folder != NULL)
            (void)closedir(folder);
        return bt_fail(error, BT_EXIT_ERROR, code, NULL, "cannot open %s: %s", from, strerror(code));
    }
    int result = 0;
    for (struct dirent *entry; result == 0 && (entry = readdir(folder)) != NULL;) {
        if (entry->d_type == DT_REG && linkat(dirfd(folder), entry->d_name, to_fd, entry->d_name, 0) < 0)
            result = -errno;
    }
    (void)closedir(folder);
    return result < 0 ? bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot link the packs of %s: %s", from,
                                strerror(-result))
                      : 0;
}

/* The agent's .git, made here as a whole: the objects of base.git, its commit as main, an index, the ignore
 * rules. */
static int make_guest_repository(const char *state_folder, struct bt_error *error)
{
    char commit[BT_WORKSPACE_ID_SIZE];
    bt_auto_free char *folder = bt_string_format("%s/" BT_WORKSPACE_GUEST_REPOSITORY, state_folder);
    bt_auto_free char *rules = bt_string_format("%s/" BT_WORKSPACE_SKELETON "/info/exclude", state_folder);
    bt_auto_free char *guest_rules = bt_string_format("%s/info/exclude", folder);
    bt_auto_free char *head = bt_string_format("%s/refs/heads/main", folder);
    bt_auto_free char *index = bt_string_format("--index-output=%s/index", folder);
    const char *const arguments[] = {"read-tree", index, BT_WORKSPACE_REF_BASE, NULL};
    const struct bt_workspace_git git = {.state_folder = state_folder, .arguments = arguments};
    bt_auto_buffer output = {0};
    bt_auto_buffer text = {0};
    int result = bt_workspace_git_resolve(state_folder, BT_WORKSPACE_REF_BASE, commit, error);
    if (result == 0)
        result = bt_workspace_repository_make(folder, true, "sha1", error);
    if (result == 0)
        result = link_packs(state_folder, error);
    if (result == 0)
        result = bt_workspace_git_run(&git, &output, NULL, error);
    if (result == 0)
        result = bt_file_write(head, commit, strlen(commit), 0644, error);
    if (result == 0)
        result = bt_file_read(rules, 8UL * 1024 * 1024, &text, error);
    return result < 0 ? result : bt_file_write(guest_rules, text.data, text.length, 0644, error);
}

static int prepare(struct recorder *recorder, const char *state_folder, struct bt_workspace_base *base)
{
    int result = measure(recorder);
    if (result == 0)
        result = check_room(recorder, state_folder);
    if (result == 0)
        result = record_base(recorder, state_folder);
    if (result == 0)
        result = bt_workspace_git_resolve(state_folder, BT_WORKSPACE_REF_BASE "^{tree}", base->tree,
                                          recorder->error);
    base->has_repository = recorder->byte_count <= REPOSITORY_BYTES_MAX;
    if (result == 0 && base->has_repository)
        result = make_guest_repository(state_folder, recorder->error);
    return result;
}

static void remove_all(const char *state_folder)
{
    static const char *const names[] = {BT_WORKSPACE_REPOSITORY, BT_WORKSPACE_SKELETON,
                                        BT_WORKSPACE_GUEST_REPOSITORY, BT_WORKSPACE_STAMPS,
                                        BT_WORKSPACE_PATCH};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(names); i++) {
        bt_auto_free char *path = bt_string_format("%s/%s", state_folder, names[i]);
        (void)bt_tree_remove(path, NULL);
    }
}

int bt_workspace_prepare(const char *host_folder, const char *state_folder,
                         const struct bt_workspace_options *options, struct bt_workspace_base *ret_base,
                         struct bt_error *error)
{
    struct bt_workspace_listing listing;
    struct bt_workspace_base base = {0};
    bt_auto_fd root_fd = -1;
    int result = bt_workspace_list(host_folder, state_folder, options->is_ignored_included, &listing, error);
    if (result < 0) {
        remove_all(state_folder);
        return result;
    }
    root_fd = open(host_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct recorder recorder = {.root_fd = root_fd,
                                .root = host_folder,
                                .listing = &listing,
                                .progress = options->progress,
                                .error = error};
    result = root_fd < 0 ? bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot use %s as workspace: %s",
                                   host_folder, strerror(errno))
                         : prepare(&recorder, state_folder, &base);
    if (result < 0) {
        bt_workspace_listing_free(&listing);
        remove_all(state_folder);
        return result;
    }
    if (!base.has_repository)
        bt_list_add_format(&listing.notes,
                           "the workspace has more than %llu MiB: the agent gets no git repository",
                           REPOSITORY_BYTES_MAX >> 20);
    base.file_count = recorder.file_count;
    base.byte_count = recorder.byte_count;
    base.is_checkout = listing.is_checkout;
    base.names = listing.names;
    base.notes = listing.notes;
    *ret_base = base;
    return 0;
}

void bt_workspace_base_free(struct bt_workspace_base *base)
{
    bt_buffer_free(&base->names);
    bt_list_free(&base->notes);
}
