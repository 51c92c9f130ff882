/* Applying the patch: base, the agent's files and the user's files as they are now, merged by git in base.git
 * (git merge-tree(1)), then written by berth itself.
 *
 * Called by `berth apply`. Only the files that the patch names take part, so nothing else of the user's
 * folder is read, and git never sees that folder. Everything is checked before anything is written.
 */
#include "frontend/workspace_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Their last parts name the sides in conflict markers. */
#define REF_BASE "refs/heads/base"
#define REF_YOURS "refs/heads/yours"
#define REF_AGENT "refs/heads/agent"

struct applying {
    const char *state_folder;
    const char *target_folder;
    int target_fd;
    const struct bt_workspace_apply_options *options;
    struct bt_workspace_applied *result;
    struct bt_error *error;
    struct bt_workspace_changes changes;
    struct bt_workspace_found
        *found; /* for each change: what is at its path; mode 0 and not there when refused */
    bool *is_refused;
};

static void refuse(struct applying *applying, size_t index, const char *reason)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    applying->is_refused[index] = true;
    bt_list_add_format(&applying->result->refused, "%s: %s",
                       bt_workspace_printable(applying->changes.items[index].path, text), reason);
}

/* Whether the patch itself takes away a file or link that a path needs as a folder. */
static bool is_way_cleared(const struct applying *applying, const char *path)
{
    for (const char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        bt_auto_free char *above = bt_string_copy_length(path, (size_t)(slash - path));
        const struct bt_workspace_change *change = bt_workspace_changes_find(&applying->changes, above);
        if (change != NULL)
            return change->new_mode == 0;
    }
    return false;
}

/* Looks at one change: its name, its kind, and what the user has in its place. */
static int examine(struct applying *applying, size_t index)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    const struct bt_workspace_change *change = &applying->changes.items[index];
    const char *reason = bt_workspace_path_refusal(change->path);
    if (reason == NULL && change->new_mode == BT_MODE_LINK)
        reason = "it is a symbolic link";
    if (reason == NULL && change->new_mode == BT_MODE_GITLINK)
        reason = "it is a submodule";
    if (reason == NULL && change->new_mode != 0 && change->new_mode != BT_MODE_FILE &&
        change->new_mode != BT_MODE_EXECUTABLE)
        reason = "it is not a file";
    int result =
        reason != NULL ? 0 : bt_workspace_look(applying->target_fd, change->path, &applying->found[index]);
    bool is_blocked = (result == -ELOOP || result == -ENOTDIR) && !is_way_cleared(applying, change->path);
    if (is_blocked && result == -ELOOP)
        reason = "it would be reached through a symbolic link";
    else if (is_blocked && change->new_mode != 0)
        reason = "a file of yours is where it needs a folder";
    else if (result < 0 && result != -ENOTDIR && result != -ELOOP)
        return bt_fail(applying->error, BT_EXIT_ERROR, -result, "make it readable",
                       "cannot look at %s/%s: %s", applying->target_folder,
                       bt_workspace_printable(change->path, text), strerror(-result));
    if (reason != NULL) {
        applying->found[index] = (struct bt_workspace_found){0};
        refuse(applying, index, reason);
        return 0;
    }
    const char *warning = bt_workspace_path_warning(change->path, change->old_mode, change->new_mode);
    if (warning != NULL)
        bt_list_add_format(&applying->result->warnings, "%s: %s", bt_workspace_printable(change->path, text),
                           warning);
    return 0;
}

static int examine_all(struct applying *applying)
{
    char text[640];
    for (size_t i = 0; i < applying->changes.count; i++) {
        int result = examine(applying, i);
        if (result < 0)
            return result;
    }
    if (applying->result->refused.count == 0 || applying->options->is_skipping_refused)
        return 0;
    bt_workspace_list_text(&applying->result->refused, text, sizeof text);
    return bt_fail(applying->error, BT_EXIT_ERROR, EPERM,
                   "look at them with berth diff; the rest can be applied without them (--skip-refused)",
                   "the patch is refused, nothing was changed: %s", text);
}

/* One side of the merge: of every change its old or its new file. */
static void import_side(const struct applying *applying, struct bt_workspace_import *import,
                        const char *reference, bool is_new)
{
    bt_workspace_import_commit(import, reference, is_new ? REF_BASE : NULL, true, reference);
    for (size_t i = 0; i < applying->changes.count; i++) {
        const struct bt_workspace_change *change = &applying->changes.items[i];
        unsigned mode = is_new ? change->new_mode : change->old_mode;
        if (mode != 0 && !applying->is_refused[i])
            bt_workspace_import_object(import, mode, is_new ? change->new_id : change->old_id, change->path);
    }
}

static int import_sides(struct applying *applying)
{
    struct bt_workspace_import import;
    int result = bt_workspace_import_start(applying->state_folder, 1, &import, applying->error);
    if (result < 0)
        return result;
    import_side(applying, &import, REF_BASE, false);
    import_side(applying, &import, REF_AGENT, true);
    bt_workspace_import_commit(&import, REF_YOURS, REF_BASE, true, REF_YOURS);
    for (size_t i = 0; i < applying->changes.count && result == 0; i++) {
        if (!applying->is_refused[i] && applying->found[i].mode != 0)
            result = bt_workspace_import_found(&import, applying->target_fd, applying->changes.items[i].path,
                                               &applying->found[i], applying->error);
    }
    return bt_workspace_import_finish(&import, result, applying->error);
}

/* Merges. *ret_tree: the result; conflicts go to the lists. `git merge-tree -z --name-only`: tree NUL, then a
 * name and NUL for each conflict, until an empty one; messages follow. */
static int merge(struct applying *applying, char ret_tree[BT_WORKSPACE_ID_SIZE])
{
    static const char *const arguments[] = {"merge-tree",    "--write-tree", "-z",    "--name-only",
                                            "--no-messages", "yours",        "agent", NULL};
    const struct bt_workspace_git git = {.state_folder = applying->state_folder, .arguments = arguments};
    bt_auto_buffer output = {0};
    int status = 0;
    int result = bt_workspace_git_run(&git, &output, &status, applying->error);
    if (result < 0)
        return result;
    const char *tree = output.data == NULL ? "" : output.data;
    size_t length = strlen(tree);
    if (status > 1 || !bt_workspace_id_is_valid(tree, length))
        return bt_fail(applying->error, BT_EXIT_ERROR, EIO, "berth needs git 2.38 or later",
                       "git merge-tree ended with status %d", status);
    memcpy(ret_tree, tree, length + 1);
    for (size_t at = length + 1; at < output.length && tree[at] != '\0'; at += strlen(tree + at) + 1)
        bt_list_add(&applying->result->conflicts, tree + at);
    return 0;
}

static int check_conflicts(struct applying *applying)
{
    char text[640];
    if (applying->result->conflicts.count == 0 || applying->options->has_conflict_markers)
        return 0;
    bt_workspace_list_text(&applying->result->conflicts, text, sizeof text);
    return bt_fail(
        applying->error, BT_EXIT_ERROR, EEXIST,
        "apply with conflict markers (--markers) and edit the files, or put your own changes aside first",
        "you and the agent changed the same places, nothing was changed: %s", text);
}

/* What was found at the path of a write: the merge may only have touched what was read. */
static const struct bt_workspace_found *find_found(const struct applying *applying, const char *path)
{
    const struct bt_workspace_change *change = bt_workspace_changes_find(&applying->changes, path);
    size_t index = change == NULL ? 0 : (size_t)(change - applying->changes.items);
    return change == NULL || applying->is_refused[index] ? NULL : &applying->found[index];
}

/* From the difference between the user's files and the result to what is to be written. */
static int plan_writes(struct applying *applying, const struct bt_workspace_changes *wanted,
                       struct bt_workspace_write *writes)
{
    char text[BT_WORKSPACE_TEXT_SIZE];
    for (size_t i = 0; i < wanted->count; i++) {
        struct bt_workspace_change *change = &wanted->items[i];
        const struct bt_workspace_found *found = find_found(applying, change->path);
        /* With a conflict between a file and a folder git invents a name ("path~yours"): new, so nothing is
         * there. */
        struct bt_workspace_found nothing = {0};
        int result = found != NULL ? 0 : bt_workspace_look(applying->target_fd, change->path, &nothing);
        if (result < 0 || nothing.is_there || bt_workspace_path_refusal(change->path) != NULL ||
            (change->new_mode != 0 && change->new_mode != BT_MODE_FILE &&
             change->new_mode != BT_MODE_EXECUTABLE))
            return bt_fail(applying->error, BT_EXIT_ERROR, EEXIST, "move it away, then apply again",
                           "nothing was changed: %s is in the way",
                           bt_workspace_printable(change->path, text));
        writes[i] = (struct bt_workspace_write){.change = change, .found = found != NULL ? *found : nothing};
        bt_list_add(change->new_mode == 0 ? &applying->result->removed : &applying->result->written,
                    change->path);
    }
    return 0;
}

/* The user's files as they were stay reachable in base.git. */
static int keep_before(struct applying *applying)
{
    bt_auto_free char *reference = bt_string_format("refs/berth/before/%lld", (long long)time(NULL));
    const char *const arguments[] = {"update-ref", reference, REF_YOURS, NULL};
    const struct bt_workspace_git git = {.state_folder = applying->state_folder, .arguments = arguments};
    bt_auto_buffer output = {0};
    return bt_workspace_git_run(&git, &output, NULL, applying->error);
}

static int write_result(struct applying *applying, const char *tree)
{
    struct bt_workspace_changes wanted;
    int result = bt_workspace_git_changes(applying->state_folder, REF_YOURS, tree, &wanted, applying->error);
    if (result < 0)
        return result;
    struct bt_workspace_write *writes = bt_new(wanted.count + 1, sizeof *writes);
    result = plan_writes(applying, &wanted, writes);
    if (result == 0 && wanted.count > 0 && !applying->options->is_dry_run) {
        result = keep_before(applying);
        if (result == 0)
            result = bt_workspace_write_all(applying->state_folder, applying->target_folder, writes,
                                            wanted.count, applying->error);
    }
    free(writes);
    bt_workspace_changes_free(&wanted);
    return result;
}

static int apply(struct applying *applying)
{
    char tree[BT_WORKSPACE_ID_SIZE];
    if (!bt_workspace_has_patch(applying->state_folder))
        return bt_fail(
            applying->error, BT_EXIT_ERROR, ENOENT, NULL,
            "there is nothing to apply: the agent changed nothing, or its changes were not collected");
    int result = bt_workspace_changes(applying->state_folder, &applying->changes, applying->error);
    if (result < 0)
        return result;
    applying->found = bt_new(applying->changes.count + 1, sizeof *applying->found);
    applying->is_refused = bt_new(applying->changes.count + 1, sizeof *applying->is_refused);
    result = examine_all(applying);
    if (result == 0)
        result = import_sides(applying);
    if (result == 0)
        result = merge(applying, tree);
    if (result == 0)
        result = check_conflicts(applying);
    return result < 0 ? result : write_result(applying, tree);
}

int bt_workspace_apply(const char *state_folder, const char *target_folder,
                       const struct bt_workspace_apply_options *options, struct bt_workspace_applied *result,
                       struct bt_error *error)
{
    bt_auto_fd lock_fd = bt_workspace_lock(state_folder, error);
    if (lock_fd < 0)
        return lock_fd;
    bt_auto_fd target_fd = open(target_folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (target_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, "give an existing folder", "cannot apply to %s: %s",
                       target_folder, strerror(errno));
    struct applying applying = {.state_folder = state_folder,
                                .target_folder = target_folder,
                                .target_fd = target_fd,
                                .options = options,
                                .result = result,
                                .error = error};
    int status = apply(&applying);
    bt_workspace_changes_free(&applying.changes);
    free(applying.found);
    free(applying.is_refused);
    return status;
}

void bt_workspace_applied_free(struct bt_workspace_applied *result)
{
    bt_list_free(&result->written);
    bt_list_free(&result->removed);
    bt_list_free(&result->refused);
    bt_list_free(&result->warnings);
    bt_list_free(&result->conflicts);
}
