/* berth version. */
#include "frontend/command.h"

static int bt_version_run(struct bt_context *context, struct bt_error *error)
{
    (void)error;
    bt_output_print(&context->output, "berth %s\n", BT_VERSION);
    bt_output_document(&context->output, json_pack("{s:s}", "version", BT_VERSION));
    return 0;
}

const struct bt_command bt_command_version = {
    .name = "version",
    .operands = "",
    .summary = "Show the version",
    .needs = BT_COMMAND_PLAIN,
    .run = bt_version_run,
};
