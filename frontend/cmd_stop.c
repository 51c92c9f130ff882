/* berth stop: ends running agents; their changes are collected first. */
#include <errno.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/workspace.h"

static int bt_stop_one(struct bt_context *context, struct bt_state *state, struct bt_agent *agent,
                       json_t *stopped, struct bt_error *error)
{
    bool has_patch;
    int r;

    if (!bt_agent_is_live(agent))
        return bt_fail(error, BT_EXIT_NO_TARGET, ESRCH, "berth list shows what runs",
                       "the agent %s does not run: it is %s", agent->name,
                       bt_agent_status_name(bt_agent_status_now(agent)));
    bt_output_progress(&context->output).report(&context->output, "collecting changes and stopping", 0, 0);
    r = bt_agent_stop(agent, error);
    if (r == 0)
        r = bt_audit_write(&context->paths, "stop", agent->environment, agent->name, NULL, error);
    if (r == 0)
        r = bt_state_get(state, agent->id, agent, error);
    if (r < 0)
        return r;
    has_patch = bt_workspace_has_patch(agent->folder);
    bt_output_print(&context->output, "stopped %s%s\n", agent->name,
                    has_patch ? "; it made changes: berth diff shows them" : "");
    json_array_append_new(stopped, json_pack("{s:s, s:s, s:b}", "name", agent->name, "status",
                                             bt_agent_status_name(bt_agent_status_now(agent)), "has_patch",
                                             has_patch));
    return 0;
}

static int bt_stop_all(struct bt_context *context, struct bt_state *state, json_t *stopped,
                       struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    size_t count = 0;
    int r;

    if (context->arguments.operands.count > 0 || bt_option_is_set(&context->arguments, "latest"))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "give names or --all, not both");
    r = bt_state_list(state, context->environment, &agents, &count, error);
    for (size_t i = 0; i < count && r == 0; i++) {
        if (bt_agent_is_live(&agents[i]))
            r = bt_stop_one(context, state, &agents[i], stopped, error);
    }
    return r;
}

static int bt_stop_named(struct bt_context *context, struct bt_state *state, json_t *stopped,
                         struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    size_t count = 0;
    int r = bt_command_targets(context, state, &agents, &count, error);

    for (size_t i = 0; i < count && r == 0; i++)
        r = bt_stop_one(context, state, &agents[i], stopped, error);
    return r;
}

static int bt_stop_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_state *state = NULL;
    json_t *stopped = json_array();
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = bt_option_is_set(&context->arguments, "all") ? bt_stop_all(context, state, stopped, error)
                                                         : bt_stop_named(context, state, stopped, error);
    bt_state_close(state);
    if (r < 0) {
        json_decref(stopped);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:o}", "stopped", stopped));
    return 0;
}

static const struct bt_option bt_stop_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "all", .letter = 'a', .help = "every agent of the environment that runs"},
};

const struct bt_command bt_command_stop = {
    .name = "stop",
    .operands = "N...",
    .summary = "End agents; their changes are collected first",
    .options = bt_stop_options,
    .option_count = BT_ARRAY_LENGTH(bt_stop_options),
    .maximum = 64,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_stop_run,
};
