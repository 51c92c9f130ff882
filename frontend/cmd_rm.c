/* berth rm: removes agents that have ended, with their disks. */
#include <stdio.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"
#include "frontend/remove.h"

static int bt_rm_one(struct bt_context *context, struct bt_state *state, struct bt_agent *agent,
                     json_t *removed, struct bt_error *error)
{
    bool is_forced = bt_option_is_set(&context->arguments, "force");
    int r = 0;

    if (is_forced && bt_agent_is_live(agent)) {
        r = bt_agent_stop(agent, error);
        if (r == 0)
            r = bt_state_get(state, agent->id, agent, error);
    }
    if (r == 0 && !bt_agent_is_live(agent) && bt_remove_has_work(agent)) {
        char question[160];
        snprintf(question, sizeof(question), "throw away the changes of %s, which were never applied?",
                 agent->name);
        r = bt_command_confirm(context, is_forced || bt_option_is_set(&context->arguments, "yes"), question,
                               error);
    }
    if (r == 0)
        r = bt_remove_agent(&context->paths, state, agent, error);
    if (r == 0)
        r = bt_audit_write(&context->paths, "rm", agent->environment, agent->name,
                           json_pack("{s:b}", "force", is_forced), error);
    if (r < 0)
        return r;
    bt_output_print(&context->output, "removed %s\n", agent->name);
    json_array_append_new(removed, json_string(agent->name));
    return 0;
}

static int bt_rm_run(struct bt_context *context, struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    size_t count = 0;
    struct bt_state *state = NULL;
    json_t *removed = json_array();
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = bt_command_targets(context, state, &agents, &count, error);
    for (size_t i = 0; i < count && r == 0; i++)
        r = bt_rm_one(context, state, &agents[i], removed, error);
    bt_state_close(state);
    if (r < 0) {
        json_decref(removed);
        return r;
    }
    bt_output_document(&context->output, json_pack("{s:o}", "removed", removed));
    return 0;
}

static const struct bt_option bt_rm_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "yes", .letter = 'y', .help = "throw away changes that were never applied"},
    {.name = "force", .letter = 'f', .help = "stop it first if it runs; implies --yes"},
};

const struct bt_command bt_command_rm = {
    .name = "rm",
    .operands = "N...",
    .summary = "Remove agents that have ended, with their disks",
    .details = "Changes that were never applied are not thrown away without a question or --yes.",
    .options = bt_rm_options,
    .option_count = BT_ARRAY_LENGTH(bt_rm_options),
    .maximum = 64,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_rm_run,
};
