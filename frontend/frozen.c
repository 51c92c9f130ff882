/* The user's own images on disk. See frozen.h. Called by `berth freeze`, `berth image` and the planner.
 *
 * Must never leave half an image under a name: it is made beside, and renamed when it is whole.
 */
#include "frontend/frozen.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "images/images.h"

#define RECORD "frozen.json"
#define RECORD_MAX 4096U
#define NEW_FOLDER ".new"
#define LOCK ".lock"
#define FROZEN_MAX 1000U

static int take_text(const json_t *document, const char *key, char *ret_text, size_t size)
{
    const char *text = json_string_value(json_object_get(document, key));
    int length = text == NULL || *text == '\0' || strchr(text, '/') != NULL
                     ? -1
                     : snprintf(ret_text, size, "%s", text);
    return length < 0 || (size_t)length >= size ? -EBADMSG : 0;
}

int bt_frozen_parse(const char *text, size_t length, struct bt_frozen *frozen, struct bt_error *error)
{
    json_t *document = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    const json_t *seconds = json_object_get(document, "frozen_seconds");
    int result = json_is_integer(seconds) ? 0 : -EBADMSG;
    if (result == 0)
        result = take_text(document, "recipe", frozen->recipe, sizeof frozen->recipe);
    if (result == 0)
        result = take_text(document, "backend", frozen->backend, sizeof frozen->backend);
    if (result == 0)
        result = take_text(document, "agent", frozen->agent, sizeof frozen->agent);
    frozen->frozen_seconds = json_integer_value(seconds);
    json_decref(document);
    if (result == 0)
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, EBADMSG, "remove it with berth image rm, and freeze the agent again",
                   "%s/" RECORD " is damaged", frozen->folder);
}

static void locate(const struct bt_paths *paths, const char *name, struct bt_frozen *ret_frozen)
{
    *ret_frozen = (struct bt_frozen){0};
    (void)snprintf(ret_frozen->name, sizeof ret_frozen->name, "%s", name);
    (void)snprintf(ret_frozen->folder, sizeof ret_frozen->folder, "%s/frozen/%s", paths->state, name);
}

int bt_frozen_load(const struct bt_paths *paths, const char *name, struct bt_frozen *ret_frozen,
                   struct bt_error *error)
{
    struct bt_frozen frozen;
    bt_auto_buffer text = {0};
    if (!bt_name_is_valid(name))
        return -ENOENT;
    locate(paths, name, &frozen);
    bt_auto_free char *path = bt_string_format("%s/" RECORD, frozen.folder);
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return -ENOENT;
    int result = bt_file_read(path, RECORD_MAX, &text, error);
    if (result == 0)
        result = bt_frozen_parse(text.data == NULL ? "" : text.data, text.length, &frozen, error);
    if (result < 0)
        return result == -ENOENT ? -EIO : result;
    *ret_frozen = frozen;
    return 0;
}

bool bt_frozen_is_recipe(const char *name)
{
    char path[512];
    return bt_recipe_path(name, path, NULL) == 0 && access(path, F_OK) == 0;
}

/* What is in its folder, which has no other ones. */
static void measure(struct bt_frozen *frozen)
{
    DIR *folder = opendir(frozen->folder);
    const struct dirent *entry;
    struct stat status;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(status.st_mode))
            continue;
        frozen->size_bytes += (uint64_t)status.st_size;
        frozen->disk_bytes += (uint64_t)status.st_blocks * 512;
    }
    if (folder != NULL)
        (void)closedir(folder);
}

static int compare_names(const void *left, const void *right)
{
    const struct bt_frozen *a = left, *b = right;
    return strcmp(a->name, b->name);
}

int bt_frozen_list(const struct bt_paths *paths, struct bt_frozen **ret_frozen, size_t *ret_count,
                   struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/frozen", paths->state);
    bt_auto_free struct bt_frozen *list = bt_new(FROZEN_MAX, sizeof *list);
    size_t count = 0;
    const struct dirent *entry;
    DIR *folder = opendir(path);
    if (folder == NULL && errno != ENOENT)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read %s: %s", path, strerror(errno));
    while (folder != NULL && count < FROZEN_MAX && (entry = readdir(folder)) != NULL) {
        if (bt_frozen_load(paths, entry->d_name, &list[count], NULL) == 0)
            measure(&list[count++]);
    }
    if (folder != NULL)
        (void)closedir(folder);
    qsort(list, count, sizeof *list, compare_names);
    *ret_frozen = BT_TAKE(list);
    *ret_count = count;
    return 0;
}

int bt_frozen_remove(const struct bt_paths *paths, const char *name, struct bt_error *error)
{
    struct bt_frozen frozen;
    locate(paths, name, &frozen);
    if (!bt_name_is_valid(name) || access(frozen.folder, F_OK) < 0)
        return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, "berth image list shows yours",
                       "you have no frozen image '%.64s'", name);
    bt_auto_free char *record = bt_string_format("%s/" RECORD, frozen.folder);
    if (unlink(record) < 0 && errno != ENOENT) /* first: half an image is none */
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot remove %s: %s", record, strerror(errno));
    return bt_tree_remove(frozen.folder, error);
}

int bt_frozen_check_backend(const struct bt_paths *paths, const char *name, const char *backend,
                            struct bt_error *error)
{
    struct bt_frozen frozen;
    int result = bt_frozen_load(paths, name, &frozen, error);
    if (result == -ENOENT)
        return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, NULL, "the image %s was removed meanwhile", name);
    if (result < 0 || strcmp(frozen.backend, backend) == 0)
        return result;
    bt_auto_free char *hint = bt_string_format("use --backend %s, or another image", frozen.backend);
    return bt_fail(error, BT_EXIT_ERROR, EOPNOTSUPP, hint,
                   "the image %s was frozen on the backend %s, and this agent's is %s", name, frozen.backend,
                   backend);
}

/* ---- making one ---- */

static int check_name(const struct bt_frozen *frozen, bool is_replacing, struct bt_error *error)
{
    if (!bt_name_is_valid(frozen->name))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                       "'%.64s' cannot be the name of an image", frozen->name);
    if (bt_frozen_is_recipe(frozen->name))
        return bt_fail(error, BT_EXIT_USAGE, EEXIST, "give another name after the agent's",
                       "the image '%s' is berth's own", frozen->name);
    if (!is_replacing && access(frozen->folder, F_OK) == 0)
        return bt_fail(error, BT_EXIT_ERROR, EEXIST, "give another name after the agent's, or use --force",
                       "you have an image '%s' already", frozen->name);
    return 0;
}

static int lock(const char *folder, int *ret_lock_fd, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/" LOCK, folder);
    bt_auto_fd lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot make %s: %s", path, strerror(errno));
    if (flock(lock_fd, LOCK_EX | LOCK_NB) < 0)
        return bt_fail(error, BT_EXIT_ERROR, EBUSY, "try again when it has ended",
                       "another agent is being frozen");
    *ret_lock_fd = bt_fd_take(&lock_fd);
    return 0;
}

int bt_frozen_begin(const struct bt_paths *paths, struct bt_freezing *freezing, bool is_replacing,
                    struct bt_error *error)
{
    struct bt_frozen *frozen = &freezing->frozen;
    bt_auto_free char *above = bt_string_format("%s/frozen", paths->state);
    freezing->lock_fd = -1;
    (void)snprintf(frozen->folder, sizeof frozen->folder, "%s/%s", above, frozen->name);
    int result = check_name(frozen, is_replacing, error);
    if (result == 0)
        result = bt_folder_make(above, 0700, error);
    if (result == 0)
        result = lock(above, &freezing->lock_fd, error);
    if (result == 0) /* somebody else may have made it while this one waited */
        result = check_name(frozen, is_replacing, error);
    if (result < 0)
        return result;
    (void)snprintf(freezing->folder, sizeof freezing->folder, "%s/" NEW_FOLDER, above);
    result = bt_tree_remove(freezing->folder, error); /* of one that was killed */
    return result < 0 ? result : bt_folder_make(freezing->folder, 0700, error);
}

static int write_record(const struct bt_freezing *freezing, struct bt_error *error)
{
    const struct bt_frozen *frozen = &freezing->frozen;
    bt_auto_free char *path = bt_string_format("%s/" RECORD, freezing->folder);
    json_t *document = json_pack("{s:s, s:s, s:s, s:I}", "recipe", frozen->recipe, "backend", frozen->backend,
                                 "agent", frozen->agent, "frozen_seconds", (json_int_t)time(NULL));
    bt_auto_free char *text = document == NULL ? NULL : json_dumps(document, JSON_INDENT(1));
    json_decref(document);
    if (text == NULL)
        return bt_fail(error, BT_EXIT_ERROR, EBADMSG, NULL, "cannot write %s", path);
    return bt_file_write(path, text, strlen(text), 0600, error);
}

int bt_frozen_commit(struct bt_freezing *freezing, struct bt_error *error)
{
    const char *target = freezing->frozen.folder;
    int result = write_record(freezing, error);
    if (result < 0)
        return result;
    measure(&freezing->frozen);
    if (rename(freezing->folder, target) == 0)
        return 0;
    /* Exchanged in one step, so that there is never none; the old one goes with the discard. */
    if ((errno == EEXIST || errno == ENOTEMPTY) &&
        renameat2(AT_FDCWD, freezing->folder, AT_FDCWD, target, RENAME_EXCHANGE) == 0)
        return 0;
    return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot put the image in place at %s: %s", target,
                   strerror(errno));
}

void bt_frozen_discard(struct bt_freezing *freezing)
{
    struct bt_error ignored;
    if (freezing->lock_fd >= 0 && freezing->folder[0] != '\0')
        (void)bt_tree_remove(freezing->folder, &ignored);
    bt_fd_close(&freezing->lock_fd);
}
