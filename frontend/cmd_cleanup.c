/* berth cleanup: removes what nothing needs any more: ended agents, old images, kept patches. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/infra.h"
#include "frontend/remove.h"

struct bt_cleanup {
    struct bt_context *context;
    struct bt_state *state; /* opened by those that need it: images can be cleaned up when the disk is full */
    json_t *removed;        /* what was, or with --dry-run would be, removed */
    json_t *kept;           /* patches that were put aside */
    const struct bt_backend *unreachable; /* keeps guests outside of folders, and cannot be asked now */
    bool is_dry_run;
};

static void bt_cleanup_say(struct bt_cleanup *cleanup, const char *what, const char *name)
{
    bt_output_print(&cleanup->context->output, "%s %s %s\n", cleanup->is_dry_run ? "would remove" : "removed",
                    what, name);
    json_array_append_new(cleanup->removed,
                          json_pack("{s:s, s:o}", "kind", what, "name", bt_output_json_text(name)));
}

/* ---- bots -------------------------------------------------------------------------------------------------
 */

static int bt_cleanup_agent(struct bt_cleanup *cleanup, const struct bt_agent *agent, struct bt_error *error)
{
    struct bt_context *context = cleanup->context;
    bt_auto_list kept = {0};
    int r = 0;

    if (bt_agent_is_live(agent))
        return 0;
    if (cleanup->unreachable && strcmp(agent->backend, cleanup->unreachable->name) == 0) {
        bt_output_note(&context->output, "note: agent %s stays until the backend %s can be asked about it",
                       agent->name, agent->backend);
        return 0;
    }
    if (!cleanup->is_dry_run) {
        r = bt_remove_keep_work(&context->paths, agent, &kept, error);
        if (r == 0)
            r = bt_remove_agent(&context->paths, cleanup->state, agent, error);
    }
    if (r < 0)
        return r;
    bt_cleanup_say(cleanup, "agent", agent->name);
    for (size_t i = 0; i < kept.count; i++) {
        bt_output_print(&context->output, "  its changes were never applied; they are kept in %s\n",
                        kept.items[i]);
        json_array_append_new(cleanup->kept, bt_output_json_text(kept.items[i]));
    }
    return 0;
}

static bool bt_cleanup_knows(const struct bt_agent *agents, size_t count, const char *folder)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(agents[i].folder, folder) == 0)
            return true;
    }
    return false;
}

/* Folders of agents that no row speaks of: a launch or a removal was cut short. The rows are read after the
 * folders, so that a launch that begins meanwhile is not taken for such a one; its row comes before its
 * folder. */
static int bt_cleanup_orphans(struct bt_cleanup *cleanup, struct bt_error *error)
{
    struct bt_context *context = cleanup->context;
    bt_auto_free char *path =
        bt_string_format("%s/env/%s/agents", context->paths.state, context->environment);
    bt_auto_free struct bt_agent *agents = NULL;
    bt_auto_list found = {0};
    DIR *folder = opendir(path);
    const struct dirent *entry;
    size_t count = 0;
    int r;

    while (folder && (entry = readdir(folder))) {
        if (entry->d_name[0] != '.')
            bt_list_add_format(&found, "%s/%s", path, entry->d_name);
    }
    if (folder)
        closedir(folder);
    r = bt_state_list(cleanup->state, context->environment, &agents, &count, error);
    for (size_t i = 0; i < found.count && r == 0; i++) {
        const char *name = found.items[i] + strlen(path) + 1;
        struct bt_agent orphan = {0};
        bt_auto_list kept = {0};
        /* A reserved row may not have its folder written down yet: its name speaks for it. */
        bool is_known = bt_cleanup_knows(agents, count, found.items[i]);
        for (size_t k = 0; k < count && !is_known; k++)
            is_known = strcmp(agents[k].name, name) == 0;
        if (is_known)
            continue;
        /* No row, no number: a made-up one keeps its patches from replacing another's. */
        bt_random_bytes(&orphan.id, sizeof(uint32_t));
        snprintf(orphan.name, sizeof(orphan.name), "%.31s", name);
        snprintf(orphan.environment, sizeof(orphan.environment), "%s", context->environment);
        snprintf(orphan.folder, sizeof(orphan.folder), "%s", found.items[i]);
        if (!cleanup->is_dry_run)
            r = bt_remove_keep_work(&context->paths, &orphan, &kept, error);
        for (size_t k = 0; k < kept.count; k++)
            json_array_append_new(cleanup->kept, bt_output_json_text(kept.items[k]));
        if (r == 0 && !cleanup->is_dry_run)
            r = bt_tree_remove(found.items[i], error);
        if (r == 0)
            bt_cleanup_say(cleanup, "folder", found.items[i]);
    }
    return r;
}

/* Rows of infra keepers that are gone; their folders are used again by the next pair. */
static int bt_cleanup_infra(struct bt_cleanup *cleanup, struct bt_error *error)
{
    bt_auto_free struct bt_infra *infra = NULL;
    size_t count = 0;
    int r = bt_state_infra_list(cleanup->state, cleanup->context->environment, &infra, &count, error);

    for (size_t i = 0; i < count && r == 0; i++) {
        if (bt_process_is_alive(&infra[i].keeper))
            continue;
        if (!cleanup->is_dry_run)
            r = bt_state_infra_delete(cleanup->state, infra[i].environment, infra[i].role, &infra[i].keeper,
                                      error);
        if (r == 0)
            bt_cleanup_say(cleanup, "record of the", infra[i].role);
    }
    return r;
}

/* Whether a guest that the runtime of a backend knows has an owner that lives, or (an agent that ended) a
 * row. */
static bool bt_cleanup_is_live(struct bt_cleanup *cleanup, const struct bt_guest_identity *identity)
{
    bt_auto_free struct bt_agent *agents = NULL;
    struct bt_infra infra;
    size_t count = 0;

    if (identity->role != BT_GUEST_AGENT)
        return bt_state_infra_get(cleanup->state, identity->environment, identity->name, &infra, NULL) == 0 &&
               bt_process_is_alive(&infra.keeper);
    if (bt_state_list(cleanup->state, identity->environment, &agents, &count, NULL) < 0)
        return true;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(agents[i].name, identity->name) == 0)
            return true;
    }
    return false;
}

struct bt_cleanup_outside {
    struct bt_cleanup *cleanup;
    const struct bt_backend *backend;
    struct bt_error *error;
    int result;
};

static void bt_cleanup_guest(void *context, const struct bt_guest_identity *identity)
{
    struct bt_cleanup_outside *outside = context;
    struct bt_cleanup *cleanup = outside->cleanup;

    if (outside->result < 0 || bt_cleanup_is_live(cleanup, identity))
        return;
    if (!cleanup->is_dry_run)
        outside->result =
            outside->backend->cleanup(identity, identity->role == BT_GUEST_AGENT, outside->error);
    if (outside->result == 0)
        bt_cleanup_say(cleanup, "container of", identity->name);
}

/* What killed keepers left in a container engine: asked of the engine itself. The agents' rows are gone by
 * now, but for those that live. */
static int bt_cleanup_containers(struct bt_cleanup *cleanup, struct bt_error *error)
{
    struct bt_context *context = cleanup->context;

    for (size_t i = 0; i < bt_backend_count; i++) {
        struct bt_cleanup_outside outside = {cleanup, bt_backends[i], error, 0};
        if (!bt_backends[i]->enumerate || bt_backends[i] == cleanup->unreachable)
            continue;
        int r = bt_backends[i]->enumerate(context->paths.state, context->environment, true, bt_cleanup_guest,
                                          &outside, error);
        if (r < 0 || outside.result < 0)
            return r < 0 ? r : outside.result;
    }
    return 0;
}

/* An engine that does not answer has to be cleaned up another time; the rest is now. That none is installed
 * is not worth a word. */
static void bt_cleanup_reach(struct bt_cleanup *cleanup)
{
    for (size_t i = 0; i < bt_backend_count; i++) {
        struct bt_error own = {0};
        int r = bt_backends[i]->enumerate ? bt_backends[i]->check(&own) : 0;
        if (r < 0)
            cleanup->unreachable = bt_backends[i];
        if (r < 0 && r != -ENOENT && r != -EACCES)
            bt_output_note(&cleanup->context->output, "note: nothing of the backend %s is cleaned up: %s",
                           bt_backends[i]->name, own.message);
    }
}

/* The pair, under its lock: one that is being started is recorded a moment after its guests are there. */
static int bt_cleanup_pair(struct bt_cleanup *cleanup, struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&cleanup->context->output);
    bt_auto_fd lock_fd = -1;
    int r = cleanup->is_dry_run ? 0
                                : bt_infra_lock(&cleanup->context->paths, cleanup->context->environment,
                                                &progress, &lock_fd, error);

    if (r == 0)
        r = bt_cleanup_infra(cleanup, error);
    return r < 0 ? r : bt_cleanup_containers(cleanup, error);
}

static int bt_cleanup_bots(struct bt_cleanup *cleanup, struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    size_t count = 0, live = 0;
    int r = bt_state_open(&cleanup->context->paths, &cleanup->state, error);

    bt_cleanup_reach(cleanup);
    if (r == 0)
        r = bt_state_list(cleanup->state, cleanup->context->environment, &agents, &count, error);
    for (size_t i = 0; i < count && r == 0; i++) {
        live += bt_agent_is_live(&agents[i]);
        r = bt_cleanup_agent(cleanup, &agents[i], error);
    }
    if (r == 0)
        r = bt_cleanup_orphans(cleanup, error);
    if (r == 0)
        r = bt_cleanup_pair(cleanup, error);
    if (r == 0 && live > 0)
        bt_output_note(&cleanup->context->output, "%zu agent%s still running: berth stop ends %s", live,
                       live == 1 ? " is" : "s are", live == 1 ? "it" : "them");
    return r;
}

/* ---- images -----------------------------------------------------------------------------------------------
 */

/* Digests that agents or infra pairs were started with. A state database that cannot be opened, on a full
 * disk say, is no obstacle: what a guest has open stays there until it ends. */
static void bt_cleanup_used_digests(struct bt_cleanup *cleanup, struct bt_list *ret_digests)
{
    bt_auto_free struct bt_agent *agents = NULL;
    bt_auto_free struct bt_infra *infra = NULL;
    struct bt_error error = {0};
    size_t agent_count = 0, infra_count = 0;
    int r = bt_state_open(&cleanup->context->paths, &cleanup->state, &error);

    if (r == 0)
        r = bt_state_list(cleanup->state, NULL, &agents, &agent_count, &error);
    if (r == 0)
        r = bt_state_infra_list(cleanup->state, NULL, &infra, &infra_count, &error);
    for (size_t i = 0; i < agent_count; i++)
        bt_list_add(ret_digests, agents[i].image);
    for (size_t i = 0; i < infra_count; i++)
        bt_list_add(ret_digests, infra[i].image);
    if (r < 0)
        bt_output_note(&cleanup->context->output, "note: %s", error.message);
}

static int bt_cleanup_image(struct bt_cleanup *cleanup, const struct bt_image *image, struct bt_error *error)
{
    const char *images = cleanup->context->paths.images;
    bt_auto_free char *folder = bt_string_copy(image->path);
    char *slash = strrchr(folder, '/');
    char label[160];
    int r = 0;

    /* An image is a folder of the cache, and path is a file in it. */
    if (!slash || strncmp(folder, images, strlen(images)) != 0 || slash <= folder + strlen(images))
        return 0;
    *slash = '\0';
    if (!cleanup->is_dry_run)
        r = bt_tree_remove(folder, error);
    snprintf(label, sizeof(label), "%s %.12s", image->name, image->digest);
    if (r == 0)
        bt_cleanup_say(cleanup, "image", label);
    return r;
}

/* What builds that were killed left in a container engine. */
static int bt_cleanup_builds(struct bt_cleanup *cleanup, struct bt_error *error)
{
    const struct bt_paths *paths = &cleanup->context->paths;
    struct bt_progress progress = bt_output_progress(&cleanup->context->output);
    int r = 0;

    for (size_t i = 0; i < bt_backend_count && r == 0; i++) {
        const struct bt_backend *backend = bt_backends[i];
        bt_auto_list found = {0};
        if (!backend->sweep_builds || backend == cleanup->unreachable)
            continue;
        r = backend->sweep_builds(paths, &progress, &found, error);
        if (r == 0 && found.count > 0 && !cleanup->is_dry_run)
            r = backend->sweep_builds(paths, &progress, NULL, error);
        for (size_t k = 0; k < found.count && r == 0; k++)
            bt_cleanup_say(cleanup, "a build's", found.items[k]);
    }
    return r;
}

/* Goes: what is neither the newest of its name (the list has that one first), nor what its recipe gives now,
 * nor in use. */
static int bt_cleanup_images(struct bt_cleanup *cleanup, struct bt_error *error)
{
    const struct bt_paths *paths = &cleanup->context->paths;
    bt_auto_free struct bt_image *images = NULL;
    bt_auto_list used = {0};
    size_t count = 0;
    int r = bt_image_list(paths, &images, &count, error);

    bt_cleanup_used_digests(cleanup, &used);
    for (size_t i = 0; i < count && r == 0; i++) {
        struct bt_image current;
        bool is_newest = i == 0 || strcmp(images[i].name, images[i - 1].name) != 0;
        if (is_newest || bt_list_has(&used, images[i].digest))
            continue;
        if (bt_image_get(paths, images[i].name, false, NULL, &current, NULL) < 0 ||
            strcmp(current.digest, images[i].digest) != 0)
            r = bt_cleanup_image(cleanup, &images[i], error);
    }
    bt_cleanup_reach(cleanup);
    return r < 0 ? r : bt_cleanup_builds(cleanup, error);
}

/* ---- workspaces -------------------------------------------------------------------------------------------
 */

static int bt_cleanup_workspaces(struct bt_cleanup *cleanup, struct bt_error *error)
{
    bt_auto_free char *path = bt_remove_kept_folder(&cleanup->context->paths);
    DIR *folder = opendir(path);
    const struct dirent *entry;
    bt_auto_list found = {0};
    int r = 0;

    if (!folder)
        return errno == ENOENT
                   ? 0
                   : bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot enter %s: %s", path, strerror(errno));
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] != '.')
            bt_list_add_format(&found, "%s/%s", path, entry->d_name);
    }
    closedir(folder);
    if (found.count > 0 && !cleanup->is_dry_run) {
        char question[128];
        snprintf(question, sizeof(question), "throw away %zu patches that were never applied?", found.count);
        r = bt_command_confirm(cleanup->context, bt_option_is_set(&cleanup->context->arguments, "yes"),
                               question, error);
    }
    for (size_t i = 0; i < found.count && r == 0; i++) {
        if (!cleanup->is_dry_run)
            r = bt_tree_remove(found.items[i], error);
        if (r == 0)
            bt_cleanup_say(cleanup, "patch", found.items[i]);
    }
    return r;
}

static int bt_cleanup_run(struct bt_context *context, struct bt_error *error)
{
    static const struct {
        const char *name;
        int (*run)(struct bt_cleanup *cleanup, struct bt_error *error);
    } kinds[] = {
        {"bots", bt_cleanup_bots}, {"images", bt_cleanup_images}, {"workspaces", bt_cleanup_workspaces}};
    const char *what = context->arguments.operands.items[0];
    struct bt_cleanup cleanup = {.context = context,
                                 .is_dry_run = bt_option_is_set(&context->arguments, "dry-run")};
    int (*run)(struct bt_cleanup *, struct bt_error *) = NULL;
    int r;

    for (size_t i = 0; i < BT_ARRAY_LENGTH(kinds); i++) {
        if (strcmp(kinds[i].name, what) == 0)
            run = kinds[i].run;
    }
    if (!run)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "berth cleanup bots, images or workspaces",
                       "'%.64s' is not something to clean up", what);
    cleanup.removed = json_array();
    cleanup.kept = json_array();
    r = run(&cleanup, error);
    bt_state_close(cleanup.state);
    if (r == 0 && !cleanup.is_dry_run && json_array_size(cleanup.removed) > 0)
        r = bt_audit_write(
            &context->paths, "cleanup", context->environment, NULL,
            json_pack("{s:s, s:I}", "what", what, "removed", (json_int_t)json_array_size(cleanup.removed)),
            error);
    if (r == 0 && json_array_size(cleanup.removed) == 0)
        bt_output_note(&context->output, "nothing to clean up");
    if (r == 0)
        bt_output_document(&context->output, json_pack("{s:b, s:O, s:O}", "dry_run", cleanup.is_dry_run,
                                                       "removed", cleanup.removed, "kept", cleanup.kept));
    json_decref(cleanup.removed);
    json_decref(cleanup.kept);
    return r;
}

static const struct bt_option bt_cleanup_options[] = {
    {.name = "yes", .letter = 'y', .help = "confirm what would be asked"},
    {.name = "dry-run", .help = "say what would be removed"},
};

const struct bt_command bt_command_cleanup = {
    .name = "cleanup",
    .operands = "bots | images | workspaces",
    .summary = "Remove what nothing needs any more",
    .details =
        "bots: agents that do not run, with their disks; changes that were never applied are kept as "
        "patches.\n"
        "images: older ones that no recipe gives and no agent was started with, and what builds that were "
        "cut short left in a container engine. workspaces: the kept patches.",
    .options = bt_cleanup_options,
    .option_count = BT_ARRAY_LENGTH(bt_cleanup_options),
    .minimum = 1,
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_cleanup_run,
};
