/* berth spawn: starts an agent from its manifest. */
#include "frontend/start.h"

static int bt_spawn_command_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_arguments *arguments = &context->arguments;
    struct bt_start start = {
        .manifest = arguments->operands.items[0],
        .workspace = bt_option_value(arguments, "workspace", NULL),
        .prompt = bt_option_value(arguments, "prompt", NULL),
        .repositories = *bt_option_values(arguments, "repo"), /* borrowed: not freed here */
        .command = arguments->has_rest ? (const char *const *)arguments->rest.items : NULL,
    };

    return bt_start_run(context, &start, error);
}

static const struct bt_option bt_spawn_options[] = {
    BT_START_OPTIONS,
    {.name = "repo",
     .letter = 'r',
     .value_name = "URL",
     .may_repeat = true,
     .help = "cloned in the guest, over https"},
    {.name = "workspace",
     .letter = 'w',
     .value_name = "DIR",
     .help = "copied in; its changes come back as a patch"},
    {.name = "prompt", .letter = 'p', .value_name = "TEXT", .help = "instead of the manifest's"},
};

const struct bt_command bt_command_spawn = {
    .name = "spawn",
    .operands = "<agent> [-- command...]",
    .summary = "Start an agent in a virtual machine of its own",
    .details =
        "<agent> is a manifest: agents/<name>.md in the configuration folder, or in the project's .berth, or "
        "the\n"
        "built-in 'shell', which may reach nothing. --dry-run shows what it would be allowed, and by whom.\n"
        "Exit status 3: the agent ran and failed.",
    .options = bt_spawn_options,
    .option_count = BT_ARRAY_LENGTH(bt_spawn_options),
    .minimum = 1,
    .maximum = 1,
    .may_have_rest = true,
    .needs = BT_COMMAND_CONFIG,
    .run = bt_spawn_command_run,
};
