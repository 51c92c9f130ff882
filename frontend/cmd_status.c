/* berth status: one agent, or what all agents of an environment rest on: helper, orchestrator, gateway. */
#include <stdlib.h>
#include <string.h>

#include "frontend/command.h"
#include "frontend/describe.h"
#include "frontend/infra.h"
#include "frontend/workspace.h"
#include "ipc/client/helper_client.h"

static void bt_status_print_agent(struct bt_output *output, const struct bt_agent *agent, bool has_patch)
{
    enum bt_agent_status status = bt_agent_status_now(agent);
    const char *advice = bt_describe_advice(status);
    char created[BT_OUTPUT_TEXT_SIZE], ended[BT_OUTPUT_TEXT_SIZE];

    bt_describe_time(agent->created_seconds, created);
    bt_describe_time(agent->ended_seconds, ended);
    bt_output_print_color(output, BT_COLOR_BOLD, "%s", agent->name);
    bt_output_print(output, "  ");
    bt_output_print_color(output, bt_describe_color(status), "%s\n", bt_agent_status_name(status));
    bt_output_print(output, "  agent        %s (harness %s)\n", agent->manifest, agent->harness);
    bt_output_print(output, "  environment  %s\n", agent->environment);
    bt_output_print(output, "  backend      %s\n", agent->backend);
    if (status == BT_AGENT_STARTING || status == BT_AGENT_RUNNING)
        bt_output_print(output, "  slot         %d, generation %u, keeper %d\n", agent->slot,
                        agent->generation, (int)agent->keeper.pid);
    if (agent->exit_status >= 0)
        bt_output_print(output, "  exit status  %d\n", agent->exit_status);
    bt_output_print(output, "  created      %s\n", created);
    if (*ended)
        bt_output_print(output, "  ended        %s\n", ended);
    if (*agent->workspace)
        bt_output_print(output, "  workspace    %s\n", agent->workspace);
    bt_output_print(output, "  changes      %s\n",
                    has_patch                     ? "yes: berth diff shows them"
                    : status == BT_AGENT_RUNNING  ? "berth diff collects and shows them"
                    : status == BT_AGENT_STARTING ? "not begun"
                                                  : "none");
    if (*agent->detail)
        bt_output_print(output, "  detail       %s\n", agent->detail);
    if (advice)
        bt_output_print(output, "  what to do   %s\n", advice);
}

static json_t *bt_status_agent_json(const struct bt_agent *agent, const struct bt_pool *pool)
{
    json_t *document = bt_describe_agent(agent, pool);

    json_object_set_new(document, "has_patch",
                        json_boolean(*agent->folder && bt_workspace_has_patch(agent->folder)));
    return document;
}

/* The helper as it answers now. *ret_pool is filled, and true returned, when it does. */
static bool bt_status_helper(const struct bt_config *config, struct bt_pool *ret_pool, json_t **ret_document)
{
    json_t *socket = bt_output_json_text(config->helper_socket);
    struct bt_helper helper = {.fd = -1};
    struct bt_helper_status status = {0};
    int r = bt_helper_connect(config->helper_socket, &helper);

    if (r == 0) {
        *ret_pool = helper.pool;
        r = bt_helper_status(&helper, &status);
        bt_helper_close(&helper);
    }
    if (r < 0) {
        *ret_document =
            json_pack("{s:b, s:o, s:s}", "is_reachable", 0, "socket", socket, "reason", strerror(-r));
        return false;
    }
    *ret_document = json_pack("{s:b, s:o, s:b, s:i, s:i, s:i, s:i, s:i, s:i}", "is_reachable", 1, "socket",
                              socket, "is_healthy", status.is_healthy, "slots", (int)ret_pool->slots, "live",
                              (int)status.live, "reserved", (int)status.reserved, "dead", (int)status.dead,
                              "free", (int)status.free, "quota", (int)helper.quota);
    return true;
}

static int bt_status_agent(struct bt_context *context, struct bt_state *state, struct bt_error *error)
{
    struct bt_agent agent;
    struct bt_pool pool = {0};
    json_t *helper = NULL;
    int r = bt_command_target(context, state, 0, &agent, error);

    if (r < 0)
        return r;
    if (context->output.is_json) {
        bool has_pool = bt_status_helper(&context->config, &pool, &helper);
        bt_output_document(&context->output,
                           json_pack("{s:s, s:[o]}", "environment", context->environment, "agents",
                                     bt_status_agent_json(&agent, has_pool ? &pool : NULL)));
        json_decref(helper);
    } else {
        bt_status_print_agent(&context->output, &agent,
                              *agent.folder && bt_workspace_has_patch(agent.folder));
    }
    return 0;
}

static json_t *bt_status_member(const struct bt_infra *member)
{
    char address[BT_IPV4_TEXT_SIZE];

    if (member->keeper.pid == 0)
        return json_pack("{s:b, s:n, s:n, s:n, s:n}", "is_running", 0, "slot", "generation", "address",
                         "keeper_pid");
    bt_ipv4_format(member->address, address);
    return json_pack("{s:b, s:i, s:I, s:s, s:i}", "is_running", 1, "slot", member->slot, "generation",
                     (json_int_t)member->generation, "address", address, "keeper_pid",
                     (int)member->keeper.pid);
}

static void bt_status_print_member(struct bt_output *output, const char *name, const json_t *member)
{
    bool is_running = json_is_true(json_object_get(member, "is_running"));

    bt_output_print(output, "  %-13s", name);
    bt_output_print_color(output, is_running ? BT_COLOR_GREEN : BT_COLOR_DIM,
                          is_running ? "running" : "not running");
    if (is_running)
        bt_output_print(output, ", slot %d, %s, keeper %d",
                        (int)json_integer_value(json_object_get(member, "slot")),
                        json_string_value(json_object_get(member, "address")),
                        (int)json_integer_value(json_object_get(member, "keeper_pid")));
    bt_output_print(output, "\n");
}

static void bt_status_print(struct bt_output *output, const json_t *document)
{
    const json_t *helper = json_object_get(document, "helper");
    json_t *agents = json_object_get(document, "counts");
    const json_t *infra = json_object_get(document, "infra");
    bool is_reachable = json_is_true(json_object_get(helper, "is_reachable"));
    bool is_healthy = json_is_true(json_object_get(helper, "is_healthy"));
    const char *name;
    bool has_agents = false;
    json_t *number;

    bt_output_print(output, "environment %s\n  %-13s",
                    json_string_value(json_object_get(document, "environment")), "helper");
    if (!is_reachable)
        bt_output_print_color(output, BT_COLOR_RED, "not reachable: %s",
                              json_string_value(json_object_get(helper, "reason")));
    else
        bt_output_print_color(output, is_healthy ? BT_COLOR_GREEN : BT_COLOR_RED, "%s",
                              is_healthy ? "healthy" : "its rules in the kernel are not what they should be");
    if (is_reachable)
        bt_output_print(output, ", %d of %d slots free",
                        (int)json_integer_value(json_object_get(helper, "free")),
                        (int)json_integer_value(json_object_get(helper, "slots")));
    bt_output_print(output, "\n");
    bt_status_print_member(output, "orchestrator", json_object_get(infra, "orchestrator"));
    bt_status_print_member(output, "gateway", json_object_get(infra, "gateway"));
    bt_output_print(output, "  %-13s", "agents");
    json_object_foreach(agents, name, number)
    {
        if (json_integer_value(number) > 0)
            bt_output_print(output, "%s%d %s", has_agents ? ", " : "", (int)json_integer_value(number), name);
        has_agents |= json_integer_value(number) > 0;
    }
    bt_output_print(output, has_agents ? "\n" : "none\n");
}

static json_t *bt_status_counts(const struct bt_agent *agents, size_t count)
{
    size_t counts[BT_AGENT_STATUS_MAX] = {0};
    json_t *document = json_object();

    for (size_t i = 0; i < count; i++)
        counts[bt_agent_status_now(&agents[i])]++;
    for (unsigned i = 0; i < BT_AGENT_STATUS_MAX; i++)
        json_object_set_new(document, bt_agent_status_name((enum bt_agent_status)i),
                            json_integer((json_int_t)counts[i]));
    return document;
}

static int bt_status_environment(struct bt_context *context, struct bt_state *state, struct bt_error *error)
{
    bt_auto_free struct bt_agent *agents = NULL;
    struct bt_infra_pair pair = {0};
    struct bt_pool pool = {0};
    size_t count = 0;
    json_t *document, *helper = NULL, *array;
    bool has_pool;
    int r = bt_state_list(state, context->environment, &agents, &count, error);

    if (r == 0)
        r = bt_infra_status(&context->paths, context->environment, &pair, error);
    if (r < 0)
        return r;
    has_pool = bt_status_helper(&context->config, &pool, &helper);
    array = json_array();
    for (size_t i = 0; i < count; i++)
        json_array_append_new(array, bt_status_agent_json(&agents[i], has_pool ? &pool : NULL));
    document = json_pack("{s:s, s:o, s:{s:o, s:o}, s:o, s:o}", "environment", context->environment, "helper",
                         helper, "infra", "orchestrator", bt_status_member(&pair.orchestrator), "gateway",
                         bt_status_member(&pair.gateway), "counts", bt_status_counts(agents, count), "agents",
                         array);
    bt_status_print(&context->output, document);
    bt_output_document(&context->output, document);
    return 0;
}

static int bt_status_run(struct bt_context *context, struct bt_error *error)
{
    bool is_one = context->arguments.operands.count > 0 || bt_option_is_set(&context->arguments, "latest");
    struct bt_state *state = NULL;
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = is_one ? bt_status_agent(context, state, error) : bt_status_environment(context, state, error);
    bt_state_close(state);
    return r;
}

static const struct bt_option bt_status_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
};

const struct bt_command bt_command_status = {
    .name = "status",
    .operands = "[N]",
    .summary = "Show one agent, or the helper, the infra pair and the counts of agents",
    .options = bt_status_options,
    .option_count = BT_ARRAY_LENGTH(bt_status_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_status_run,
};
