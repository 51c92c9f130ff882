/* berth up: the infra pair of an environment, started or adopted. */
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/infra.h"

static json_t *bt_up_member(const struct bt_infra *member)
{
    char address[BT_IPV4_TEXT_SIZE];

    bt_ipv4_format(member->address, address);
    return json_pack("{s:i, s:s, s:i}", "slot", member->slot, "address", address, "keeper_pid",
                     (int)member->keeper.pid);
}

static int bt_up_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&context->output);
    struct bt_infra_pair pair = {0};
    int r =
        bt_infra_up(&context->paths, &context->config, context->environment, NULL, &progress, &pair, error);

    if (r == 0)
        r = bt_audit_write(&context->paths, "up", context->environment, NULL, NULL, error);
    if (r < 0)
        return r;
    bt_output_print(&context->output,
                    "the infra pair of %s is up: orchestrator on slot %d, gateway on slot %d\n",
                    context->environment, pair.orchestrator.slot, pair.gateway.slot);
    bt_output_document(&context->output,
                       json_pack("{s:s, s:o, s:o}", "environment", context->environment, "orchestrator",
                                 bt_up_member(&pair.orchestrator), "gateway", bt_up_member(&pair.gateway)));
    return 0;
}

const struct bt_command bt_command_up = {
    .name = "up",
    .operands = "",
    .summary = "Start the orchestrator and the gateway, or adopt the ones that run",
    .details = "The first spawn does this by itself.",
    .needs = BT_COMMAND_CONFIG,
    .run = bt_up_run,
};
