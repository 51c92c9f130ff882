/* berth apply: brings an agent's changes into a folder of the user. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/remove.h"
#include "frontend/workspace.h"

static json_t *bt_apply_list(const struct bt_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, bt_output_json_text(list->items[i]));
    return array;
}

static void bt_apply_print_list(struct bt_output *output, enum bt_color color, const char *word,
                                const struct bt_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        /* A name of the agent's must not look like a line of its own. */
        bt_auto_free char *text = bt_string_copy(list->items[i]);
        for (char *at = text; (at = strchr(at, '\n')) != NULL;)
            *at = '?';
        bt_output_print_color(output, color, "%-9s %s\n", word, text);
    }
}

static void bt_apply_print(struct bt_output *output, const struct bt_workspace_applied *applied)
{
    bt_apply_print_list(output, BT_COLOR_GREEN, "written", &applied->written);
    bt_apply_print_list(output, BT_COLOR_GREEN, "removed", &applied->removed);
    bt_apply_print_list(output, BT_COLOR_YELLOW, "look at", &applied->warnings);
    bt_apply_print_list(output, BT_COLOR_RED, "refused", &applied->refused);
    bt_apply_print_list(output, BT_COLOR_RED, "conflict", &applied->conflicts);
}

/* The state folder that is meant: the agent's own, or a clone's. With several patches one must be named. */
static int bt_apply_choose(struct bt_context *context, const struct bt_agent *agent, char ret_folder[768],
                           bool *ret_is_clone, struct bt_error *error)
{
    const char *wanted = bt_option_value(&context->arguments, "clone", NULL);
    bt_auto_list folders = {0};
    bt_auto_list clones = {0};
    size_t found = 0;

    bt_remove_work_folders(agent, &folders, &clones);
    for (size_t i = 0; i < folders.count; i++) {
        if ((wanted && strcmp(wanted, clones.items[i]) != 0) || !bt_workspace_has_patch(folders.items[i]))
            continue;
        snprintf(ret_folder, 768, "%s", folders.items[i]);
        *ret_is_clone = *clones.items[i] != '\0';
        found++;
    }
    if (found == 0)
        return bt_fail(error, BT_EXIT_ERROR, ENOENT, "berth diff shows what there is",
                       "%s has made no changes%s%s", agent->name, wanted ? " in the clone " : "",
                       wanted ? wanted : "");
    if (found > 1)
        return bt_fail(error, BT_EXIT_USAGE, ENOTUNIQ, "name one with --clone",
                       "%s has changes in %zu places", agent->name, found);
    return 0;
}

static int bt_apply_target(struct bt_context *context, const struct bt_agent *agent, bool is_clone,
                           const char **ret_target, struct bt_error *error)
{
    *ret_target =
        bt_option_value(&context->arguments, "to", !is_clone && *agent->workspace ? agent->workspace : NULL);
    if (!*ret_target)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give --to DIR, a checkout of that repository",
                       "%s worked on a clone, which has no folder here", agent->name);
    return 0;
}

static void bt_apply_report(struct bt_context *context, const struct bt_agent *agent, const char *target,
                            const struct bt_workspace_applied *applied)
{
    bt_apply_print(&context->output, applied);
    bt_output_document(
        &context->output,
        json_pack("{s:s, s:o, s:b, s:o, s:o, s:o, s:o, s:o}", "name", agent->name, "folder",
                  bt_output_json_text(target), "dry_run", bt_option_is_set(&context->arguments, "dry-run"),
                  "written", bt_apply_list(&applied->written), "removed", bt_apply_list(&applied->removed),
                  "refused", bt_apply_list(&applied->refused), "warnings", bt_apply_list(&applied->warnings),
                  "conflicts", bt_apply_list(&applied->conflicts)));
}

/* Files that tools of the user run by themselves (hooks, build and editor settings) want a look before they
 * arrive. */
static int bt_apply_confirm(struct bt_context *context, const char *folder, const char *target,
                            const struct bt_workspace_apply_options *options, struct bt_error *error)
{
    struct bt_workspace_apply_options rehearsal = *options;
    struct bt_workspace_applied applied = {0};
    int r;

    if (bt_option_is_set(&context->arguments, "yes"))
        return 0;
    rehearsal.is_dry_run = true;
    r = bt_workspace_apply(folder, target, &rehearsal, &applied, error);
    if (r == 0 && applied.warnings.count > 0) {
        for (size_t i = 0; i < applied.warnings.count; i++)
            bt_output_note(&context->output, "look at %s", applied.warnings.items[i]);
        r = bt_command_confirm(context, false,
                               "some of these files may be run by your own tools; apply them?", error);
    } else if (r < 0) {
        bt_apply_print(&context->output, &applied);
    }
    bt_workspace_applied_free(&applied);
    return r;
}

static int bt_apply_patch(struct bt_context *context, const struct bt_agent *agent, const char *folder,
                          const char *target, struct bt_error *error)
{
    struct bt_workspace_apply_options options = {
        .is_dry_run = bt_option_is_set(&context->arguments, "dry-run"),
        .is_skipping_refused = bt_option_is_set(&context->arguments, "skip-refused"),
        .has_conflict_markers = bt_option_is_set(&context->arguments, "markers"),
    };
    struct bt_workspace_applied applied = {0};
    int r = options.is_dry_run ? 0 : bt_apply_confirm(context, folder, target, &options, error);

    if (r == 0)
        r = bt_workspace_apply(folder, target, &options, &applied, error);
    if (r == 0 && !options.is_dry_run) {
        /* What was skipped is not home yet: such a patch keeps counting as work. */
        if (applied.refused.count == 0)
            r = bt_remove_mark_applied(folder, error);
        if (r == 0)
            r = bt_audit_write(&context->paths, "apply", agent->environment, agent->name,
                               json_pack("{s:I, s:I, s:I}", "written", (json_int_t)applied.written.count,
                                         "removed", (json_int_t)applied.removed.count, "conflicts",
                                         (json_int_t)applied.conflicts.count),
                               error);
    }
    if (r == 0)
        bt_apply_report(context, agent, target, &applied);
    else
        bt_apply_print(&context->output, &applied);
    if (r == 0 && applied.conflicts.count > 0)
        context->exit_status = BT_EXIT_ERROR;
    bt_workspace_applied_free(&applied);
    return r;
}

static int bt_apply_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_error trouble = {0};
    struct bt_agent agent = {0};
    const char *target = NULL;
    char folder[768];
    bool is_clone = false;
    int r = bt_command_agent(context, &agent, error);

    if (r < 0)
        return r;
    if (agent.status == BT_AGENT_RUNNING && bt_agent_is_live(&agent) &&
        bt_agent_collect(&context->paths, &agent, &trouble) < 0)
        bt_output_note(&context->output, "note: using what was collected last: %s", trouble.message);
    r = bt_apply_choose(context, &agent, folder, &is_clone, error);
    if (r == 0)
        r = bt_apply_target(context, &agent, is_clone, &target, error);
    return r < 0 ? r : bt_apply_patch(context, &agent, folder, target, error);
}

static const struct bt_option bt_apply_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "to", .value_name = "DIR", .help = "another folder than the one it was copied from"},
    {.name = "clone", .value_name = "CLONE", .help = "that of one cloned repository"},
    {.name = "yes", .letter = 'y', .help = "also files that your own tools may run, without a question"},
    {.name = "dry-run", .help = "say what would happen"},
    {.name = "skip-refused", .help = "apply the rest when some paths are refused"},
    {.name = "markers", .help = "write conflicts into the files instead of changing nothing"},
};

const struct bt_command bt_command_apply = {
    .name = "apply",
    .operands = "[N]",
    .summary = "Bring an agent's changes into your folder",
    .details =
        "A three-way merge with the folder as it is now: all or nothing. Refused: paths that leave the "
        "folder, lead\n"
        "through a symbolic link or into .git, symbolic links, submodules. Nothing of the repository is run.",
    .options = bt_apply_options,
    .option_count = BT_ARRAY_LENGTH(bt_apply_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_apply_run,
};
