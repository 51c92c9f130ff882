/* Removing agents. See remove.h.
 *
 * Must not touch an agent whose keeper lives, and must not lose changes without having been told to.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "frontend/keeper.h"
#include "frontend/remove.h"
#include "frontend/workspace.h"

#define BT_CLONES_MAX 64U
#define BT_CLONE_PREFIX "clone-"

void bt_remove_work_folders(const struct bt_agent *agent, struct bt_list *ret_folders,
                            struct bt_list *ret_clones)
{
    DIR *folder = *agent->folder ? opendir(agent->folder) : NULL;
    const struct dirent *entry;

    if (!folder)
        return;
    bt_list_add(ret_folders, agent->folder);
    bt_list_add(ret_clones, "");
    while ((entry = readdir(folder)) && ret_folders->count < BT_CLONES_MAX) {
        if (strncmp(entry->d_name, BT_CLONE_PREFIX, strlen(BT_CLONE_PREFIX)) != 0)
            continue;
        bt_list_add_format(ret_folders, "%s/%s", agent->folder, entry->d_name);
        bt_list_add(ret_clones, entry->d_name + strlen(BT_CLONE_PREFIX));
    }
    closedir(folder);
}

static char *bt_remove_patch_path(const char *state_folder)
{
    return bt_string_format("%s/" BT_WORKSPACE_PATCH, state_folder);
}

/* The digest of the patch that was applied last; empty when there is none. */
static void bt_remove_applied(const char *state_folder, char ret_digest[BT_DIGEST_TEXT_SIZE])
{
    bt_auto_free char *path = bt_string_format("%s/applied", state_folder);
    bt_auto_buffer text = {0};

    ret_digest[0] = '\0';
    if (bt_file_read(path, BT_DIGEST_TEXT_SIZE, &text, NULL) == 0 && text.length == BT_DIGEST_TEXT_SIZE - 1)
        memcpy(ret_digest, text.data, BT_DIGEST_TEXT_SIZE);
}

int bt_remove_mark_applied(const char *state_folder, struct bt_error *error)
{
    bt_auto_free char *patch = bt_remove_patch_path(state_folder);
    bt_auto_free char *path = bt_string_format("%s/applied", state_folder);
    char digest[BT_DIGEST_TEXT_SIZE];
    int r = bt_digest_file(patch, digest, error);

    return r < 0 ? r : bt_file_write(path, digest, strlen(digest), 0600, error);
}

static bool bt_remove_is_unapplied(const char *state_folder)
{
    bt_auto_free char *patch = bt_remove_patch_path(state_folder);
    char applied[BT_DIGEST_TEXT_SIZE], now[BT_DIGEST_TEXT_SIZE];

    if (!bt_workspace_has_patch(state_folder))
        return false;
    bt_remove_applied(state_folder, applied);
    /* A patch that cannot be read is taken for work. */
    return bt_digest_file(patch, now, NULL) < 0 || strcmp(applied, now) != 0;
}

bool bt_remove_has_work(const struct bt_agent *agent)
{
    bt_auto_list folders = {0};
    bt_auto_list clones = {0};

    bt_remove_work_folders(agent, &folders, &clones);
    for (size_t i = 0; i < folders.count; i++) {
        if (bt_remove_is_unapplied(folders.items[i]))
            return true;
    }
    return false;
}

char *bt_remove_kept_folder(const struct bt_paths *paths)
{
    return bt_string_format("%s/kept", paths->state);
}

int bt_remove_keep_work(const struct bt_paths *paths, const struct bt_agent *agent, struct bt_list *ret_kept,
                        struct bt_error *error)
{
    bt_auto_free char *kept = bt_remove_kept_folder(paths);
    bt_auto_list folders = {0};
    bt_auto_list clones = {0};
    int r = 0;

    bt_remove_work_folders(agent, &folders, &clones);
    for (size_t i = 0; i < folders.count && r == 0; i++) {
        const char *clone = clones.items[i];
        if (!bt_remove_is_unapplied(folders.items[i]))
            continue;
        r = bt_folder_make(kept, 0700, error);
        bt_auto_free char *from = bt_remove_patch_path(folders.items[i]);
        bt_auto_free char *to = bt_string_format("%s/%s-%s-%lld%s%s.patch", kept, agent->environment,
                                                 agent->name, (long long)agent->id, *clone ? "-" : "", clone);
        /* Same file system, so a rename: whole, or not at all. */
        if (r == 0 && rename(from, to) < 0)
            r = bt_fail(error, BT_EXIT_ERROR, errno, "copy it by hand, then try again",
                        "cannot keep the changes in %s: %s", from, strerror(errno));
        if (r == 0)
            bt_list_add(ret_kept, to);
    }
    return r;
}

/* What the agent's backend keeps elsewhere: containers, networks, volumes. An agent without a backend never
 * got that far. */
static int bt_remove_outside(const struct bt_paths *paths, const struct bt_agent *agent,
                             struct bt_error *error)
{
    const struct bt_guest_identity identity = {paths->state, agent->environment, BT_GUEST_AGENT, agent->name};
    const struct bt_backend *backend;
    const char *why;

    if (*agent->backend == '\0' || bt_backend_select(agent->backend, &backend, &why, NULL) < 0)
        return 0;
    return backend->cleanup(&identity, true, error);
}

int bt_remove_agent(const struct bt_paths *paths, struct bt_state *state, const struct bt_agent *agent,
                    struct bt_error *error)
{
    int r = 0;

    if (bt_agent_is_live(agent))
        return bt_fail(error, BT_EXIT_ERROR, EBUSY, "stop it first, or use --force", "the agent %s is %s",
                       agent->name, bt_agent_status_name(bt_agent_status_now(agent)));
    bt_control_remove(paths, agent->id);
    r = bt_remove_outside(paths, agent, error);
    if (r == 0 && *agent->folder)
        r = bt_tree_remove(agent->folder, error);
    return r < 0 ? r : bt_state_delete(state, agent->id, error);
}
