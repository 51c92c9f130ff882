/* berth list: the user's agents, as they are now. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "frontend/approvals.h"
#include "frontend/command.h"
#include "frontend/describe.h"
#include "frontend/manifest.h"
#include "frontend/start.h"

static void bt_list_add_row(struct bt_table *table, const struct bt_agent *agent, bool has_environment,
                            int64_t now)
{
    enum bt_agent_status status = bt_agent_status_now(agent);
    char age[BT_OUTPUT_TEXT_SIZE], shown[BT_OUTPUT_TEXT_SIZE];

    bt_output_age(now - agent->created_seconds, age);
    if (status == BT_AGENT_EXITED && agent->exit_status >= 0)
        snprintf(shown, sizeof(shown), "exited (%d)", agent->exit_status);
    else
        snprintf(shown, sizeof(shown), "%s", bt_agent_status_name(status));
    bt_table_add(table, BT_COLOR_NONE, "%s", agent->name);
    if (has_environment)
        bt_table_add(table, BT_COLOR_NONE, "%s", agent->environment);
    bt_table_add(table, bt_describe_color(status), "%s", shown);
    bt_table_add(table, BT_COLOR_NONE, "%s", agent->manifest);
    bt_table_add(table, BT_COLOR_NONE, "%s", agent->backend);
    bt_table_add(table, BT_COLOR_NONE, "%s", age);
    bt_table_add(table, BT_COLOR_DIM, "%s", *agent->detail ? agent->detail : agent->workspace);
}

static void bt_list_print(struct bt_output *output, const struct bt_agent *agents, size_t count,
                          bool has_environment)
{
    static const char *const titles[] = {"NAME", "STATUS", "AGENT", "BACKEND", "AGE", "DETAIL"};
    static const char *const wide_titles[] = {"NAME",    "ENVIRONMENT", "STATUS", "AGENT",
                                              "BACKEND", "AGE",         "DETAIL"};
    int64_t now = (int64_t)time(NULL);
    struct bt_table table;
    size_t lost = 0;

    if (count == 0) {
        bt_output_note(output, "no agents; berth spawn shell starts one");
        return;
    }
    bt_table_init(&table, has_environment ? wide_titles : titles, has_environment ? 7 : 6);
    for (size_t i = 0; i < count; i++) {
        bt_list_add_row(&table, &agents[i], has_environment, now);
        lost += bt_agent_status_now(&agents[i]) == BT_AGENT_LOST;
    }
    bt_table_print(output, &table);
    if (lost > 0)
        bt_output_note(output, "lost: %s", bt_describe_advice(BT_AGENT_LOST));
}

/* For completion: one name a line. */
static int bt_list_names(struct bt_context *context, const struct bt_agent *agents, size_t count,
                         struct bt_error *error)
{
    const char *what = bt_option_value(&context->arguments, "names", "agents");
    bt_auto_list names = {0};
    int r = 0;

    if (strcmp(what, "manifests") == 0)
        r = bt_agent_names(&context->paths, bt_start_own_folder(), &names, error);
    else if (strcmp(what, "bottles") == 0)
        r = bt_bottle_names(&context->paths, &names, error);
    else
        for (size_t i = 0; i < count; i++)
            bt_list_add(&names, agents[i].name);
    for (size_t i = 0; i < names.count && r == 0; i++)
        bt_output_print(&context->output, "%s\n", names.items[i]);
    json_t *array = json_array();
    for (size_t i = 0; i < names.count; i++)
        json_array_append_new(array, json_string(names.items[i]));
    if (r == 0)
        bt_output_document(&context->output, json_pack("{s:O}", "names", array));
    json_decref(array);
    return r;
}

/* Of every environment in which an agent of the list lives: how many of their requests wait for an answer. */
static size_t bt_list_waiting(struct bt_context *context, const struct bt_agent *agents, size_t count)
{
    bt_auto_list asked = {0};
    size_t waiting = 0;

    for (size_t i = 0; i < count; i++) {
        bool is_asked = false;
        for (size_t k = 0; k < asked.count; k++)
            is_asked |= strcmp(asked.items[k], agents[i].environment) == 0;
        if (is_asked || !bt_agent_is_live(&agents[i]))
            continue;
        bt_list_add(&asked, agents[i].environment);
        json_t *numbers = bt_approvals_numbers(&context->paths, agents[i].environment);
        waiting += json_array_size(numbers);
        json_decref(numbers);
    }
    return waiting;
}

static int bt_list_run(struct bt_context *context, struct bt_error *error)
{
    bool is_all = bt_option_is_set(&context->arguments, "all-environments");
    bt_auto_free struct bt_agent *agents = NULL;
    struct bt_state *state = NULL;
    size_t count = 0, waiting;
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = bt_state_list(state, is_all ? NULL : context->environment, &agents, &count, error);
    bt_state_close(state);
    if (r < 0)
        return r;
    if (bt_option_is_set(&context->arguments, "names"))
        return bt_list_names(context, agents, count, error);
    waiting = bt_list_waiting(context, agents, count);
    if (context->output.is_json) {
        json_t *array = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(array, bt_describe_agent(&agents[i], NULL));
        bt_output_document(&context->output,
                           json_pack("{s:o, s:I}", "agents", array, "approvals", (json_int_t)waiting));
    } else {
        bt_list_print(&context->output, agents, count, is_all);
        if (waiting > 0)
            bt_output_note(&context->output, "%zu %s for you: berth approvals list", waiting,
                           waiting == 1 ? "request waits" : "requests wait");
    }
    return 0;
}

static const struct bt_option bt_list_options[] = {
    {.name = "all-environments", .letter = 'a', .help = "of every environment"},
    {.name = "names", .value_name = "WHAT", .help = "only names, one a line: agents, manifests or bottles"},
};

const struct bt_command bt_command_list = {
    .name = "list",
    .operands = "",
    .summary = "Show your agents, newest first",
    .details = "starting and running are asked from the kernel each time; lost means that the process that "
               "kept the\n"
               "agent is gone.",
    .options = bt_list_options,
    .option_count = BT_ARRAY_LENGTH(bt_list_options),
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_list_run,
};
