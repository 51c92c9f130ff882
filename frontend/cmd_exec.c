/* berth exec: a command in a running agent's guest, as the agent's user. */
#include <errno.h>
#include <unistd.h>

#include "frontend/agent.h"
#include "frontend/command.h"

static int bt_exec_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_arguments *arguments = &context->arguments;
    bool is_terminal = !context->output.is_json && !bt_option_is_set(arguments, "no-terminal") &&
                       isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    struct bt_agent agent;
    int status = 0;
    int r;

    if (!arguments->has_rest)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "usage: berth exec N -- command...",
                       "the command is missing; it comes after --");
    r = bt_command_agent(context, &agent, error);
    if (r < 0)
        return r;
    bt_auto_stdout saved = bt_command_divert_stdout(&context->output);
    r = bt_agent_exec(&context->paths, &agent, (const char *const *)arguments->rest.items, is_terminal,
                      &status, error);
    bt_command_restore_stdout(&saved);
    if (r < 0)
        return r;
    bt_output_document(&context->output, json_pack("{s:s, s:i}", "name", agent.name, "exit_status", status));
    context->exit_status = status;
    return 0;
}

static const struct bt_option bt_exec_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "no-terminal", .letter = 'T', .help = "no terminal for the command, even if there is one here"},
};

const struct bt_command bt_command_exec = {
    .name = "exec",
    .operands = "N -- command...",
    .summary = "Run a command in a running agent's guest",
    .details = "The exit status is the command's own. With --json its output goes to stderr.",
    .options = bt_exec_options,
    .option_count = BT_ARRAY_LENGTH(bt_exec_options),
    .maximum = 1,
    .may_have_rest = true,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_exec_run,
};
