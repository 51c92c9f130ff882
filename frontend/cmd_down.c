/* berth down: stops the infra pair of an environment. */
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/infra.h"

static int bt_down_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&context->output);
    int r = bt_infra_down(&context->paths, context->environment,
                          bt_option_is_set(&context->arguments, "force"), &progress, error);

    if (r == 0)
        r = bt_audit_write(&context->paths, "down", context->environment, NULL, NULL, error);
    if (r < 0)
        return r;
    bt_output_print(&context->output, "the infra pair of %s is down\n", context->environment);
    bt_output_document(&context->output,
                       json_pack("{s:s, s:b}", "environment", context->environment, "is_down", 1));
    return 0;
}

static const struct bt_option bt_down_options[] = {
    {.name = "force", .letter = 'f', .help = "even while agents run; they lose their way out"},
};

const struct bt_command bt_command_down = {
    .name = "down",
    .operands = "",
    .summary = "Stop the orchestrator and the gateway",
    .options = bt_down_options,
    .option_count = BT_ARRAY_LENGTH(bt_down_options),
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_down_run,
};
