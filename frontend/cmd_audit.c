/* berth audit: what berth was told to do, from the user's own trail. */
#include <stdlib.h>
#include <string.h>

#include "frontend/audit.h"
#include "frontend/command.h"

static void bt_audit_print(struct bt_output *output, json_t *lines)
{
    static const char *const titles[] = {"TIME", "ACT", "ENVIRONMENT", "AGENT", "MORE"};
    struct bt_table table;
    size_t index;
    json_t *line;

    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    json_array_foreach(lines, index, line)
    {
        json_t *more = json_deep_copy(line);
        const char *agent = json_string_value(json_object_get(line, "agent"));
        const char *environment = json_string_value(json_object_get(line, "environment"));
        const char *act = json_string_value(json_object_get(line, "act"));
        const char *time = json_string_value(json_object_get(line, "time"));
        char *text;
        json_object_del(more, "time");
        json_object_del(more, "act");
        json_object_del(more, "environment");
        json_object_del(more, "agent");
        text = json_object_size(more) ? json_dumps(more, JSON_COMPACT) : NULL;
        bt_table_add(&table, BT_COLOR_DIM, "%s", time ? time : "");
        bt_table_add(&table, BT_COLOR_NONE, "%s", act ? act : "");
        bt_table_add(&table, BT_COLOR_NONE, "%s", environment ? environment : "");
        bt_table_add(&table, BT_COLOR_NONE, "%s", agent ? agent : "");
        bt_table_add(&table, BT_COLOR_DIM, "%s", text ? text : "");
        free(text);
        json_decref(more);
    }
    bt_table_print(output, &table);
}

static int bt_audit_run(struct bt_context *context, struct bt_error *error)
{
    uint64_t lines = 0;
    size_t damaged = 0;
    json_t *trail = NULL;
    int r = bt_option_number(&context->arguments, "lines", 50, 1, 100000, &lines, error);

    if (r == 0)
        r = bt_audit_read(&context->paths, (size_t)lines, &trail, &damaged, error);
    if (r < 0)
        return r;
    if (json_array_size(trail) == 0)
        bt_output_note(&context->output, "the trail is empty");
    else
        bt_audit_print(&context->output, trail);
    if (damaged > 0)
        bt_output_note(&context->output, "%zu damaged lines were passed over", damaged);
    bt_output_document(&context->output,
                       json_pack("{s:o, s:I}", "lines", trail, "damaged", (json_int_t)damaged));
    return 0;
}

static const struct bt_option bt_audit_options[] = {
    {.name = "lines", .letter = 'n', .value_name = "COUNT", .help = "how many of the newest (50)"},
};

const struct bt_command bt_command_audit = {
    .name = "audit",
    .operands = "",
    .summary = "Show what berth was told to do",
    .details = "The trail is $XDG_STATE_HOME/berth/audit.jsonl: one JSON object a line, without prompts, "
               "commands or\n"
               "secrets. The helper has its own: berth-helper audit.",
    .options = bt_audit_options,
    .option_count = BT_ARRAY_LENGTH(bt_audit_options),
    .needs = BT_COMMAND_PLAIN,
    .run = bt_audit_run,
};
