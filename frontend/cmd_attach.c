/* berth attach: a running agent's terminal. */
#include <errno.h>
#include <unistd.h>

#include "frontend/agent.h"
#include "frontend/command.h"

static int bt_attach_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_agent agent;
    bool is_detached = false;
    int r;

    if (context->output.is_json || !isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return bt_fail(error, BT_EXIT_USAGE, ENOTTY, "use berth exec N -- command instead",
                       "attach needs a terminal on standard input and output, and no --json");
    r = bt_command_agent(context, &agent, error);
    if (r < 0)
        return r;
    bt_output_note(&context->output, "ctrl-p ctrl-q leaves %s running", agent.name);
    r = bt_agent_attach(&context->paths, &agent, &is_detached, error);
    if (r == 0 && is_detached)
        bt_output_note(&context->output, "left %s running", agent.name);
    else if (r == 0)
        bt_output_note(&context->output, "the terminal of %s ended; berth diff %s shows what it changed",
                       agent.name, agent.name);
    return r;
}

static const struct bt_option bt_attach_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
};

const struct bt_command bt_command_attach = {
    .name = "attach",
    .operands = "[N]",
    .summary = "Enter a running agent's terminal",
    .details = "ctrl-p ctrl-q leaves it running.",
    .options = bt_attach_options,
    .option_count = BT_ARRAY_LENGTH(bt_attach_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_attach_run,
};
