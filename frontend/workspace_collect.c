/* Bringing the agent's changes home: which files changed, their bytes, a commit of them in base.git, the
 * patch.
 *
 * Called by the keeper at the end of an agent and by `berth diff`. The guest is asked three things (a list of
 * files, which of the new ones are ignored, a tar stream of the changed ones); each answer is data from a
 * machine that may lie: names must be among those asked for, sizes are bounded, nothing is unpacked on the
 * host. The patch is made here, by git on berth's own repository.
 */
#include "frontend/workspace_internal.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARCHIVE_SLACK_BYTES (64ULL * 1024 * 1024)
#define STAMPS_BYTES_MAX (256UL * 1024 * 1024)
#define UNREADABLE_NAMED_MAX 100U

/* A file that is not what it was. */
struct pick {
    const struct bt_workspace_stamp *stamp;
    bool is_new;   /* was not there before the agent ran */
    bool is_taken; /* has been recorded */
};

struct collection {
    const struct bt_workspace_guest *guest;
    const char *state_folder;
    struct bt_error *error;
    struct bt_workspace_stamps before, now;
    struct bt_workspace_clone clone; /* empty: the files were copied in */
    struct pick *picks;              /* by path */
    size_t pick_count;
    const char **removed; /* paths */
    size_t removed_count;
    struct bt_list nested;   /* folders with a .git of their own */
    const char **unreadable; /* folders, sorted */
    size_t unreadable_count;
    struct bt_list notes;
};

static bool is_below(const char *path, const char *folder)
{
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

/* Whether a file belongs to a repository inside the workspace, and not to what was copied in. */
static bool is_nested(const struct collection *collection, const char *path, bool is_new)
{
    for (size_t i = 0; i < collection->nested.count; i++) {
        if (!is_below(path, collection->nested.items[i]))
            continue;
        return collection->clone.is_clone ? bt_workspace_clone_find(&collection->clone, path) == NULL
                                          : is_new;
    }
    return false;
}

static bool is_wanted(struct collection *collection, const struct bt_workspace_stamp *stamp, bool is_new)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    if (is_nested(collection, stamp->path, is_new))
        return false;
    const char *refusal = bt_workspace_path_refusal(stamp->path);
    if (refusal == NULL && stamp->type != 'f' && stamp->type != 'l')
        refusal = "it is neither a file nor a symbolic link";
    if (refusal != NULL)
        bt_list_add_format(&collection->notes, "%s is not in the patch: %s",
                           bt_workspace_printable(stamp->path, text), refusal);
    return refusal == NULL;
}

static void find_nested(struct collection *collection)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    for (size_t i = 0; i < collection->now.count; i++) {
        const struct bt_workspace_stamp *stamp = &collection->now.items[i];
        if (stamp->type != 'g' || stamp->path[0] == '\0' || bt_list_has(&collection->nested, stamp->path))
            continue;
        if (collection->nested.count == 1000) /* is_nested looks at each of them, for each file */
            break;
        bt_list_add(&collection->nested, stamp->path);
        bt_list_add_format(&collection->notes,
                           "%s is a git repository of its own: what is new in it is not in the patch",
                           bt_workspace_printable(stamp->path, text));
    }
}

static void find_unreadable(struct collection *collection)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    collection->unreadable = bt_new(collection->now.count + 1, sizeof *collection->unreadable);
    for (size_t i = 0; i < collection->now.count; i++) {
        const char *path = collection->now.items[i].path;
        if (collection->now.items[i].type != 'u')
            continue;
        collection->unreadable[collection->unreadable_count++] = path;
        if (collection->unreadable_count <= UNREADABLE_NAMED_MAX)
            bt_list_add_format(&collection->notes, "%s cannot be read: what is in it is taken for unchanged",
                               path[0] == '\0' ? "the workspace" : bt_workspace_printable(path, text));
    }
    if (collection->unreadable_count > UNREADABLE_NAMED_MAX)
        bt_list_add_format(&collection->notes, "%zu more folders cannot be read",
                           collection->unreadable_count - UNREADABLE_NAMED_MAX);
}

static int compare_path(const void *path, const void *item)
{
    return strcmp(path, *(const char *const *)item);
}

static bool is_unreadable(const struct collection *collection, const char *folder)
{
    return bsearch(folder, collection->unreadable, collection->unreadable_count,
                   sizeof *collection->unreadable, compare_path) != NULL;
}

/* Whether the file's absence from the list means that it is gone, and not that nobody could look. */
static bool is_gone(const struct collection *collection, const char *path)
{
    bt_auto_free char *folder = bt_string_copy(path);
    if (collection->unreadable_count == 0)
        return true;
    for (char *slash = folder + strlen(folder); slash != NULL; slash = strrchr(folder, '/')) {
        *slash = '\0';
        if (is_unreadable(collection, folder))
            return false;
    }
    return !is_unreadable(collection, "");
}

/* What is no file of either list. */
static bool is_mark(const struct bt_workspace_stamp *stamp)
{
    return stamp->type == 'g' || stamp->type == 'u';
}

/* Goes through both lists, which are sorted, side by side. */
static void compare(struct collection *collection)
{
    const struct bt_workspace_stamps *before = &collection->before, *now = &collection->now;
    collection->picks = bt_new(now->count + 1, sizeof *collection->picks);
    collection->removed = bt_new(before->count + 1, sizeof *collection->removed);
    for (size_t i = 0, j = 0; i < before->count || j < now->count;) {
        const struct bt_workspace_stamp *old = i < before->count ? &before->items[i] : NULL;
        const struct bt_workspace_stamp *new = j < now->count ? &now->items[j] : NULL;
        int order = old == NULL ? 1 : new == NULL ? -1 : strcmp(old->path, new->path);
        if (old != NULL && order <= 0 && is_mark(old)) {
            i++;
            continue;
        }
        if (new != NULL && order >= 0 && is_mark(new)) {
            j++;
            continue;
        }
        bool is_same = order == 0 && old->type == new->type &&strcmp(old->stamp, new->stamp) == 0 &&
                       old->size == new->size;
        bool is_picked = new != NULL &&order >= 0 && !is_same &&is_wanted(collection, new, order > 0);
        if (is_picked)
            collection->picks[collection->pick_count++] = (struct pick){.stamp = new, .is_new = order > 0};
        else if ((order < 0 && is_gone(collection, old->path)) || (order == 0 && !is_same))
            collection->removed[collection->removed_count++] = old->path;
        i += order <= 0;
        j += order >= 0;
    }
}

/* Takes out of the picks what is new and ignored. */
static int drop_ignored(struct collection *collection)
{
    static const char *const arguments[] = {"git", "check-ignore", "-z", "--stdin", "--no-index", NULL};
    bt_auto_free char *repository = bt_string_format("%s/ignore.git", collection->guest->store);
    bt_auto_buffer names = {.limit = BT_WORKSPACE_NAMES_BYTES_MAX};
    bt_auto_buffer ignored = {0};
    int status = 0, result = 0;
    for (size_t i = 0; i < collection->pick_count && result == 0; i++) {
        const char *path = collection->picks[i].stamp->path;
        if (collection->picks[i].is_new)
            result = bt_buffer_add(&names, path, strlen(path) + 1);
    }
    if (result < 0)
        return bt_fail(collection->error, BT_EXIT_ERROR, EFBIG, "delete what is not needed",
                       "the agent made too many files");
    if (names.length == 0)
        return 0;
    const struct bt_workspace_ask ask = {.arguments = arguments,
                                         .repository = repository,
                                         .input = names.data,
                                         .input_length = names.length,
                                         .limit = names.length};
    result = bt_workspace_ask(collection->guest, &ask, &ignored, &status, collection->error);
    if (result < 0)
        return result;
    if (status > 1)
        bt_list_add(&collection->notes,
                    "git in the guest could not tell which files are ignored: none is left out");
    size_t kept = 0, at = 0;
    for (size_t i = 0; i < collection->pick_count; i++) {
        const struct pick *pick = &collection->picks[i];
        /* The answer has the order of the question. */
        bool is_ignored = pick->is_new && status == 0 && at < ignored.length &&
                          strcmp(ignored.data + at, pick->stamp->path) == 0;
        if (is_ignored)
            at += strlen(ignored.data + at) + 1;
        else
            collection->picks[kept++] = *pick;
    }
    collection->pick_count = kept;
    return 0;
}

static int check_sizes(const struct collection *collection, uint64_t *ret_bytes)
{
    uint64_t bytes = 0;
    const struct bt_workspace_stamp *largest = NULL;
    for (size_t i = 0; i < collection->pick_count; i++) {
        const struct bt_workspace_stamp *stamp = collection->picks[i].stamp;
        bytes = stamp->size > UINT64_MAX - bytes ? UINT64_MAX : bytes + stamp->size;
        if (largest == NULL || stamp->size > largest->size)
            largest = stamp;
    }
    if (bytes > BT_WORKSPACE_PATCH_BYTES_MAX) {
        char text[BT_WORKSPACE_TEXT_SIZE];
        return bt_fail(collection->error, BT_EXIT_ERROR, EFBIG,
                       "let .gitignore name it, or copy large results with berth cp",
                       "the agent changed %llu MiB of files, more than %llu; the largest is %s with %llu MiB",
                       (unsigned long long)(bytes >> 20), BT_WORKSPACE_PATCH_BYTES_MAX >> 20,
                       bt_workspace_printable(largest->path, text),
                       (unsigned long long)(largest->size >> 20));
    }
    *ret_bytes = bytes;
    return 0;
}

/* The changed files as a tar stream into an unnamed file. */
static int fetch_archive(const struct collection *collection, uint64_t bytes, int archive_fd)
{
    const char *const arguments[] = {"tar",
                                     "--create",
                                     "--file=-",
                                     "--format=gnu",
                                     "--no-recursion",
                                     "--hard-dereference",
                                     "--null",
                                     "--verbatim-files-from",
                                     "--files-from=-",
                                     NULL};
    bt_auto_buffer names = {.limit = BT_WORKSPACE_NAMES_BYTES_MAX};
    struct bt_workspace_sink sink = {.fd = archive_fd,
                                     .room = bytes + ARCHIVE_SLACK_BYTES + 4096 * collection->pick_count};
    int result = 0, status = 0;
    for (size_t i = 0; i < collection->pick_count && result == 0; i++)
        result = bt_buffer_add(&names, collection->picks[i].stamp->path,
                               strlen(collection->picks[i].stamp->path) + 1);
    if (result < 0)
        return bt_fail(collection->error, BT_EXIT_ERROR, EFBIG, NULL, "the agent changed too many files");
    const struct bt_guest_command command = {.arguments = arguments,
                                             .environment = bt_workspace_guest_environment,
                                             .folder = collection->guest->folder,
                                             .uid = collection->guest->reader,
                                             .gid = collection->guest->reader,
                                             .input = names.data,
                                             .input_length = names.length,
                                             .input_fd = -1,
                                             .on_output = bt_workspace_sink_write,
                                             .context = &sink};
    result = collection->guest->run(collection->guest->context, &command, &status, collection->error);
    if (sink.result < 0)
        return bt_fail(collection->error, BT_EXIT_ERROR, -sink.result,
                       "make room on the disk, then try again", "cannot keep what the guest sends: %s",
                       strerror(-sink.result));
    if (result == 0 && status > 2)
        result = bt_fail(collection->error, BT_EXIT_ERROR, EIO, "the guest's image needs tar",
                         "cannot read the changed files in the guest: tar ended with status %d", status);
    return result;
}

static int compare_pick(const void *path, const void *pick)
{
    return strcmp(path, ((const struct pick *)pick)->stamp->path);
}

static int import_data(struct archive *archive, struct bt_workspace_import *import, uint64_t size)
{
    static char chunk[65536];
    while (size > 0) {
        la_ssize_t got = archive_read_data(archive, chunk, size < sizeof chunk ? (size_t)size : sizeof chunk);
        if (got <= 0)
            return -EBADMSG;
        bt_workspace_import_data(import, chunk, (size_t)got);
        size -= (uint64_t)got;
    }
    return ferror(import->stream) ? -EPIPE : 0;
}

/* One entry of the archive: something that was asked for, once, and of a kind that was. */
static int import_entry(struct collection *collection, struct archive *archive, struct archive_entry *entry,
                        struct bt_workspace_import *import, uint64_t *room)
{
    const char *path = archive_entry_pathname(entry);
    struct pick *pick = path == NULL ? NULL
                                     : bsearch(path, collection->picks, collection->pick_count,
                                               sizeof *collection->picks, compare_pick);
    if (pick == NULL || pick->is_taken)
        return -EBADMSG;
    const char *target = archive_entry_filetype(entry) == AE_IFLNK ? archive_entry_symlink(entry) : NULL;
    uint64_t size = target != NULL ? strlen(target) : (uint64_t)archive_entry_size(entry);
    if (size > *room || (target != NULL && size >= BT_WORKSPACE_PATH_MAX))
        return -EFBIG;
    *room -= size;
    if (target != NULL) {
        bt_workspace_import_file(import, BT_MODE_LINK, path, size);
        bt_workspace_import_data(import, target, size);
        pick->is_taken = true;
        return 0;
    }
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != NULL)
        return 0; /* became something else meanwhile: reported as not taken */
    bool is_executable = (archive_entry_perm(entry) & S_IXUSR) != 0;
    bt_workspace_import_file(import, is_executable ? BT_MODE_EXECUTABLE : BT_MODE_FILE, path, size);
    pick->is_taken = true;
    return import_data(archive, import, size);
}

static int import_archive(struct collection *collection, int archive_fd, struct bt_workspace_import *import)
{
    struct archive *archive = archive_read_new();
    struct archive_entry *entry = NULL;
    uint64_t room = BT_WORKSPACE_PATCH_BYTES_MAX + ARCHIVE_SLACK_BYTES;
    int result = 0, status;
    if (archive == NULL || archive_read_support_format_tar(archive) != ARCHIVE_OK ||
        lseek(archive_fd, 0, SEEK_SET) < 0 || archive_read_open_fd(archive, archive_fd, 65536) != ARCHIVE_OK)
        result = -EIO;
    while (result == 0 && (status = archive_read_next_header(archive, &entry)) != ARCHIVE_EOF)
        result = status == ARCHIVE_OK || status == ARCHIVE_WARN
                     ? import_entry(collection, archive, entry, import, &room)
                     : -EBADMSG;
    (void)archive_read_free(archive);
    if (result == 0 || result == -EPIPE)
        return result;
    return bt_fail(collection->error, BT_EXIT_ERROR, -result,
                   "try again; if it stays, look at the guest with berth exec",
                   "the guest sent files that were not asked for, or damaged ones");
}

static void note_missed(struct collection *collection)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    for (size_t i = 0; i < collection->pick_count; i++) {
        if (!collection->picks[i].is_taken)
            bt_list_add_format(
                &collection->notes,
                "%s is not in the patch: it cannot be read, or changed while it was being read",
                bt_workspace_printable(collection->picks[i].stamp->path, text));
    }
}

/* base (of a clone) and agent, as commits. Removals come first: a file may have become a folder. */
static int record(struct collection *collection, int archive_fd)
{
    struct bt_workspace_import import;
    int result = bt_workspace_import_start(collection->state_folder, 1, &import, collection->error);
    if (result < 0)
        return result;
    if (collection->clone.is_clone) {
        bt_workspace_import_commit(&import, BT_WORKSPACE_REF_BASE, NULL, true,
                                   "What the agent changed, as it was cloned");
        result = bt_workspace_clone_import(&collection->clone, &import, collection->error);
    }
    if (result == 0) {
        bt_workspace_import_commit(&import, BT_WORKSPACE_REF_AGENT, BT_WORKSPACE_REF_BASE, false,
                                   "What the agent changed");
        for (size_t i = 0; i < collection->removed_count; i++)
            bt_workspace_import_remove(&import, collection->removed[i]);
        if (collection->pick_count > 0)
            result = import_archive(collection, archive_fd, &import);
    }
    return bt_workspace_import_finish(&import, result, collection->error);
}

/* For a clone: the base of what changed, asked of the copy that the agent cannot write. */
static int fetch_clone_base(struct collection *collection)
{
    if (!collection->clone.is_clone)
        return 0;
    for (size_t i = 0; i < collection->removed_count; i++)
        bt_workspace_clone_want(&collection->clone, collection->removed[i]);
    for (size_t i = 0; i < collection->pick_count; i++)
        bt_workspace_clone_want(&collection->clone, collection->picks[i].stamp->path);
    return bt_workspace_clone_fetch(&collection->clone, collection->guest, collection->state_folder,
                                    collection->error);
}

static int load(struct collection *collection)
{
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_STAMPS, collection->state_folder);
    bt_auto_buffer before = {.limit = STAMPS_BYTES_MAX + 1};
    bt_auto_buffer now = {0};
    int result = bt_file_read(path, STAMPS_BYTES_MAX, &before, collection->error);
    if (result == 0)
        result = bt_workspace_stamps_parse(&before, &collection->before, collection->error);
    if (result == 0)
        result = bt_workspace_clone_load(collection->state_folder, &collection->clone, collection->error);
    if (result == 0)
        result = bt_workspace_stamps_ask(collection->guest, &now, collection->error);
    return result < 0 ? result : bt_workspace_stamps_parse(&now, &collection->now, collection->error);
}

static int run_collection(struct collection *collection, struct bt_workspace_summary *summary)
{
    uint64_t bytes = 0;
    int result = load(collection);
    if (result < 0)
        return result;
    find_nested(collection);
    find_unreadable(collection);
    compare(collection);
    result = drop_ignored(collection);
    if (result == 0)
        result = check_sizes(collection, &bytes);
    if (result == 0)
        result = fetch_clone_base(collection);
    bt_auto_fd archive_fd = open(collection->state_folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (result == 0 && archive_fd < 0)
        result = bt_fail(collection->error, BT_EXIT_ERROR, errno, NULL, "cannot make a file in %s: %s",
                         collection->state_folder, strerror(errno));
    if (result == 0 && collection->pick_count > 0)
        result = fetch_archive(collection, bytes, archive_fd);
    if (result == 0)
        result = record(collection, archive_fd);
    if (result == 0)
        result = bt_workspace_clone_check(&collection->clone, collection->state_folder, collection->error);
    if (result < 0)
        return result;
    note_missed(collection);
    return bt_workspace_patch_write(collection->state_folder, summary, collection->error);
}

int bt_workspace_collect(const struct bt_workspace_guest *guest, const char *state_folder,
                         struct bt_workspace_summary *ret_summary, struct bt_error *error)
{
    struct collection collection = {.guest = guest, .state_folder = state_folder, .error = error};
    struct bt_workspace_summary summary = {0};
    bt_auto_fd lock_fd = bt_workspace_lock(state_folder, error);
    int result = lock_fd < 0 ? lock_fd : run_collection(&collection, &summary);
    bt_workspace_stamps_free(&collection.before);
    bt_workspace_stamps_free(&collection.now);
    bt_workspace_clone_free(&collection.clone);
    bt_list_free(&collection.nested);
    free(collection.unreadable);
    free(collection.picks);
    free(collection.removed);
    if (result < 0) {
        bt_list_free(&collection.notes);
        return bt_error_prefix(error, "cannot collect the agent's changes");
    }
    summary.notes = collection.notes;
    *ret_summary = summary;
    return 0;
}

void bt_workspace_summary_free(struct bt_workspace_summary *summary)
{
    bt_list_free(&summary->notes);
}
