/* berth logs: what the work of an agent in the background printed, or (--network) what its gateway allowed
 * and refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "frontend/command.h"
#include "frontend/describe.h"

#define BT_LOGS_PAGE 1000
#define BT_LOGS_PAUSE_MS 1000

/* Which records are asked for. */
struct bt_logs_query {
    const char *environment;
    const struct bt_agent *agent; /* NULL: of all */
    bool is_blocked;              /* refusals only */
    json_int_t after;
};

/* Adds the records behind query->after to a list, and moves it on. */
static int bt_logs_fetch(struct bt_context *context, struct bt_logs_query *query, json_t *records,
                         struct bt_error *error)
{
    size_t count;

    do {
        bt_auto_free char *path =
            query->agent ? bt_string_format("/v1/decisions?after=%lld&limit=%d&slot=%d&generation=%u",
                                            (long long)query->after, BT_LOGS_PAGE, query->agent->slot,
                                            query->agent->generation)
                         : bt_string_format("/v1/decisions?after=%lld&limit=%d", (long long)query->after,
                                            BT_LOGS_PAGE);
        json_t *page = NULL, *record;
        size_t index;
        int r = bt_command_ask_orchestrator(context, query->environment, path, &page, error);
        if (r < 0)
            return r;
        count = json_array_size(json_object_get(page, "decisions"));
        json_array_foreach(json_object_get(page, "decisions"), index, record)
        {
            if (!query->is_blocked || json_is_false(json_object_get(record, "allowed")))
                json_array_append(records, record);
        }
        query->after = json_integer_value(json_object_get(page, "last"));
        json_decref(page);
    } while (count == BT_LOGS_PAGE);
    return 0;
}

static const char *bt_logs_text(const json_t *record, const char *key)
{
    const char *text = json_string_value(json_object_get(record, key));
    return text ? text : "";
}

static void bt_logs_print_record(struct bt_output *output, const json_t *record)
{
    char time_text[BT_OUTPUT_TEXT_SIZE];
    bool is_allowed = json_is_true(json_object_get(record, "allowed"));
    const char *method = bt_logs_text(record, "method"), *granted_by = bt_logs_text(record, "granted_by");
    json_int_t port = json_integer_value(json_object_get(record, "port"));

    bt_describe_time(json_integer_value(json_object_get(record, "time")) / 1000, time_text);
    bt_output_print_color(output, BT_COLOR_DIM, "%s  ", time_text);
    bt_output_print(output, "%-12s ", bt_logs_text(record, "agent"));
    bt_output_print_color(output, is_allowed ? BT_COLOR_GREEN : BT_COLOR_RED, "%s  ",
                          is_allowed ? "allowed" : "refused");
    bt_output_print(output, "%s%s%s %s", bt_logs_text(record, "kind"), *method ? " " : "", method,
                    bt_logs_text(record, "host"));
    if (port > 0)
        bt_output_print(output, ":%d", (int)port);
    bt_output_print(output, "%s  %s", bt_logs_text(record, "path"), bt_logs_text(record, "rule"));
    bt_output_print(output, "  %s%s\n", *granted_by ? "by " : "",
                    *granted_by ? granted_by : bt_logs_text(record, "reason"));
}

static void bt_logs_print(struct bt_output *output, const json_t *records, size_t from)
{
    for (size_t i = from; i < json_array_size(records); i++)
        bt_logs_print_record(output, json_array_get(records, i));
    (void)fflush(stdout);
}

static void bt_logs_pause(void)
{
    struct timespec pause = {BT_LOGS_PAUSE_MS / 1000, BT_LOGS_PAUSE_MS % 1000 * 1000000L};
    (void)nanosleep(&pause, NULL);
}

/* Until the agent has ended, or for ever. What came just before its end is fetched after it. */
static int bt_logs_follow(struct bt_context *context, struct bt_logs_query *query, struct bt_error *error)
{
    int r = 0;

    for (bool is_live = true; r == 0 && is_live;) {
        json_t *records = json_array();
        is_live = !query->agent || bt_agent_is_live(query->agent);
        bt_logs_pause();
        r = bt_logs_fetch(context, query, records, error);
        bt_logs_print(&context->output, records, 0);
        json_decref(records);
    }
    return r;
}

static int bt_logs_network(struct bt_context *context, const struct bt_agent *agent, uint64_t lines,
                           struct bt_error *error)
{
    bool is_following = bt_option_is_set(&context->arguments, "follow");
    struct bt_logs_query query = {.environment = agent ? agent->environment : context->environment,
                                  .agent = agent,
                                  .is_blocked = bt_option_is_set(&context->arguments, "blocked")};
    json_t *records = json_array();
    size_t from;
    int r;

    if (agent && agent->slot < 0)
        r = bt_fail(error, BT_EXIT_ERROR, ENOENT, NULL, "the agent %s never had a network", agent->name);
    else
        r = bt_logs_fetch(context, &query, records, error);
    if (r < 0) {
        json_decref(records);
        return r;
    }
    from = json_array_size(records) > lines ? json_array_size(records) - (size_t)lines : 0;
    if (json_array_size(records) == 0 && !is_following)
        bt_output_note(&context->output, "nothing was recorded");
    bt_logs_print(&context->output, records, from);
    for (size_t i = 0; i < from; i++)
        json_array_remove(records, 0);
    bt_output_document(&context->output, json_pack("{s:o}", "decisions", records));
    return is_following ? bt_logs_follow(context, &query, error) : 0;
}

/* The file grows while the agent works. */
static int bt_logs_output(struct bt_context *context, const struct bt_agent *agent, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/output.log", agent->folder);
    bool is_following = bt_option_is_set(&context->arguments, "follow");
    bt_auto_fd fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    char text[8192];

    if (fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno,
                       "only a command in the background has one: berth spawn --background AGENT -- COMMAND",
                       "%s has no log of its work", agent->name);
    for (bool is_live = true; is_live;) {
        ssize_t got;
        is_live = is_following && bt_agent_is_live(agent);
        while ((got = read(fd, text, sizeof(text) - 1)) > 0) {
            text[got] = '\0';
            for (ssize_t i = 0; i < got; i++)
                text[i] = (char)(text[i] == '\0' ? '?' : text[i]);
            bt_output_print(&context->output, "%s", text);
        }
        (void)fflush(stdout);
        if (is_live)
            bt_logs_pause();
    }
    return 0;
}

static int bt_logs_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_arguments *arguments = &context->arguments;
    bool is_network = bt_option_is_set(arguments, "network");
    bool has_agent = arguments->operands.count > 0 || bt_option_is_set(arguments, "latest");
    struct bt_agent agent = {0};
    uint64_t lines = 0;
    int r = bt_option_number(arguments, "lines", 100, 1, 10000, &lines, error);

    if (r == 0 && context->output.is_json && (!is_network || bt_option_is_set(arguments, "follow")))
        r = bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL,
                    "--json goes with --network, without --follow: a document has an end");
    if (r == 0 && !is_network && bt_option_is_set(arguments, "blocked"))
        r = bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "--blocked goes with --network");
    if (r == 0 && (has_agent || !is_network))
        r = bt_command_agent(context, &agent, error);
    if (r < 0)
        return r;
    return is_network ? bt_logs_network(context, has_agent ? &agent : NULL, lines, error)
                      : bt_logs_output(context, &agent, error);
}

static const struct bt_option bt_logs_options[] = {
    {.name = "network",
     .letter = 'n',
     .help = "what its gateway allowed and refused; without N, of all agents"},
    {.name = "blocked", .help = "with --network: refusals only"},
    {.name = "follow", .letter = 'f', .help = "go on until it ends"},
    {.name = "lines", .value_name = "COUNT", .help = "with --network: how many of the newest (100)"},
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
};

const struct bt_command bt_command_logs = {
    .name = "logs",
    .operands = "[N]",
    .summary = "Show what an agent in the background printed, or what its gateway decided",
    .details = "The rule of each record is explained in policy/POLICY.md; berth why asks about one host.",
    .options = bt_logs_options,
    .option_count = BT_ARRAY_LENGTH(bt_logs_options),
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_logs_run,
};
