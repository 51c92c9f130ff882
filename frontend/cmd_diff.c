/* berth diff: what an agent changed, as a patch. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frontend/agent.h"
#include "frontend/command.h"
#include "frontend/remove.h"
#include "frontend/workspace.h"

static json_t *bt_diff_changes(const struct bt_workspace_changes *changes)
{
    json_t *array = json_array();

    for (size_t i = 0; i < changes->count; i++) {
        const struct bt_workspace_change *change = &changes->items[i];
        const char status[2] = {change->status, '\0'};
        json_array_append_new(array, json_pack("{s:s, s:o, s:i, s:i}", "status", status, "path",
                                               bt_output_json_text(change->path), "old_mode",
                                               (int)change->old_mode, "new_mode", (int)change->new_mode));
    }
    return array;
}

static int bt_diff_json(const char *folder, const char *clone, json_t *patches, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/" BT_WORKSPACE_PATCH, folder);
    struct bt_workspace_changes changes = {0};
    int r = bt_workspace_changes(folder, &changes, error);

    if (r < 0)
        return r;
    json_array_append_new(
        patches, json_pack("{s:o, s:o, s:o}", "clone", bt_output_json_text(*clone ? clone : NULL), "patch",
                           bt_output_json_text(path), "changes", bt_diff_changes(&changes)));
    bt_workspace_changes_free(&changes);
    return 0;
}

static int bt_diff_folder(struct bt_context *context, const char *folder, const char *clone, json_t *patches,
                          struct bt_error *error)
{
    struct bt_workspace_diff_options options = {
        .is_stat = bt_option_is_set(&context->arguments, "stat"),
        .is_terminal = isatty(STDOUT_FILENO),
        .has_color = context->output.has_color,
    };

    if (context->output.is_json)
        return bt_diff_json(folder, clone, patches, error);
    if (*clone)
        bt_output_note(&context->output, "clone %s:", clone);
    fflush(stdout);
    return bt_workspace_diff(folder, &options, STDOUT_FILENO, error);
}

static int bt_diff_all(struct bt_context *context, const struct bt_agent *agent, json_t *patches,
                       struct bt_error *error)
{
    const char *wanted = bt_option_value(&context->arguments, "clone", NULL);
    bt_auto_list folders = {0};
    bt_auto_list clones = {0};
    size_t shown = 0;
    int r = 0;

    bt_remove_work_folders(agent, &folders, &clones);
    for (size_t i = 0; i < folders.count && r == 0; i++) {
        if ((wanted && strcmp(wanted, clones.items[i]) != 0) || !bt_workspace_has_patch(folders.items[i]))
            continue;
        shown++;
        r = bt_diff_folder(context, folders.items[i], clones.items[i], patches, error);
    }
    if (r == 0 && shown == 0)
        bt_output_note(&context->output, "%s has made no changes", agent->name);
    return r;
}

static int bt_diff_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_error trouble = {0};
    struct bt_agent agent = {0};
    json_t *patches;
    int r = bt_command_agent(context, &agent, error);

    if (r < 0)
        return r;
    /* While it runs the patch is brought up to date; if that fails, the last one is better than none. */
    if (agent.status == BT_AGENT_RUNNING && bt_agent_is_live(&agent) &&
        bt_agent_collect(&context->paths, &agent, &trouble) < 0)
        bt_output_note(&context->output, "note: showing what was collected last: %s", trouble.message);
    patches = json_array();
    r = bt_diff_all(context, &agent, patches, error);
    if (r < 0) {
        json_decref(patches);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:s, s:o}", "name", agent.name, "patches", patches));
    return 0;
}

static const struct bt_option bt_diff_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "stat", .help = "names of files and counts of lines only"},
    {.name = "clone", .value_name = "CLONE", .help = "only that of one cloned repository"},
};

const struct bt_command bt_command_diff = {
    .name = "diff",
    .operands = "[N]",
    .summary = "Show what an agent changed, as a patch",
    .details = "Untracked and binary files are in it. Into a file or a pipe it goes byte for byte; on a "
               "terminal control\n"
               "characters are shown, not sent.",
    .options = bt_diff_options,
    .option_count = BT_ARRAY_LENGTH(bt_diff_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_diff_run,
};
