/* berth probe: proves again that an agent cannot get out. */
#include <string.h>

#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/command.h"

static const char *bt_probe_text(const json_t *check, const char *key)
{
    const char *text = json_string_value(json_object_get(check, key));

    return text ? text : "";
}

static void bt_probe_print(struct bt_output *output, const json_t *result)
{
    static const char *const titles[] = {"CHECK", "AS", "VERDICT", "OUTCOME", "EVIDENCE"};
    const json_t *checks = json_object_get(result, "checks");
    struct bt_table table;

    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *check = json_array_get(checks, i);
        const char *verdict = bt_probe_text(check, "verdict");
        bt_table_add(&table, BT_COLOR_NONE, "%s", bt_probe_text(check, "name"));
        bt_table_add(&table, BT_COLOR_NONE, "%s", bt_probe_text(check, "as"));
        bool is_good = strcmp(verdict, "blocked") == 0 || strcmp(verdict, "control-ok") == 0;
        bt_table_add(&table, is_good ? BT_COLOR_GREEN : BT_COLOR_RED, "%s", verdict);
        bt_table_add(&table, BT_COLOR_NONE, "%s", bt_probe_text(check, "outcome"));
        bt_table_add(&table, BT_COLOR_DIM, "%s", bt_probe_text(check, "detail"));
    }
    bt_table_print(output, &table);
}

static int bt_probe_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_agent agent;
    json_t *result = NULL;
    bool has_passed;
    int r = bt_command_agent(context, &agent, error);

    if (r < 0)
        return r;
    bt_output_progress(&context->output).report(&context->output, "probing the way out", 0, 0);
    r = bt_agent_probe(&context->paths, &agent, &result, error);
    if (r < 0)
        return r;
    has_passed = json_is_true(json_object_get(result, "passed"));
    r = bt_audit_write(&context->paths, "probe", agent.environment, agent.name,
                       json_pack("{s:b}", "passed", has_passed), error);
    bt_probe_print(&context->output, result);
    bt_output_print_color(&context->output, has_passed ? BT_COLOR_GREEN : BT_COLOR_RED, "%s\n",
                          has_passed ? "isolated: every check has its evidence"
                                     : "NOT isolated, or not proved");
    bt_output_document(&context->output, result);
    if (!has_passed)
        context->exit_status = BT_EXIT_INFRASTRUCTURE;
    return r;
}

static const struct bt_option bt_probe_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
};

const struct bt_command bt_command_probe = {
    .name = "probe",
    .operands = "[N]",
    .summary = "Prove again that a running agent cannot get out",
    .details =
        "Run at every launch too. Each check needs evidence; no evidence is a failure (exit status 2).",
    .options = bt_probe_options,
    .option_count = BT_ARRAY_LENGTH(bt_probe_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_probe_run,
};
