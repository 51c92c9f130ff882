/* berth peek: what an agent's terminal shows, without entering it. */
#include <string.h>

#include "frontend/agent.h"
#include "frontend/command.h"

static int bt_peek_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_agent agent;
    bt_auto_buffer text = {0};
    uint64_t lines = 0;
    int r = bt_option_number(&context->arguments, "lines", 0, 1, BT_PEEK_LINES_MAX, &lines, error);

    if (r == 0)
        r = bt_command_agent(context, &agent, error);
    if (r == 0)
        r = bt_agent_peek(&context->paths, &agent, (unsigned)lines, &text, error);
    if (r < 0)
        return r;
    if (text.length > 0) {
        /* Of an agent: a NUL ends it, and nothing of it is a control sequence for this terminal. */
        bt_output_clean(text.data);
        bt_output_print(&context->output, "%s\n", text.data);
    }
    bt_output_document(&context->output, json_pack("{s:s, s:o}", "name", agent.name, "text",
                                                   bt_output_json_text(text.length > 0 ? text.data : "")));
    return 0;
}

static const struct bt_option bt_peek_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "lines",
     .letter = 'n',
     .value_name = "COUNT",
     .help = "the last lines, not only the screen (2000 at most)"},
};

const struct bt_command bt_command_peek = {
    .name = "peek",
    .operands = "[N]",
    .summary = "Show what a running agent's terminal shows",
    .details = "Control characters of the agent are replaced. An agent that runs a command has no terminal: "
               "berth logs.",
    .options = bt_peek_options,
    .option_count = BT_ARRAY_LENGTH(bt_peek_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_peek_run,
};
