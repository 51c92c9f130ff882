/* berth approvals: requests of agents that wait for their owner's word (dlp: {outbound: supervise}). What is
 * shown comes from agents, but for the finds; what was found is never in it.
 */
#include <errno.h>
#include <string.h>

#include "frontend/approvals.h"
#include "frontend/audit.h"
#include "frontend/command.h"

static const char *bt_approvals_text(const json_t *document, const char *key)
{
    const char *text = json_string_value(json_object_get(document, key));
    return text ? text : "";
}

static json_int_t bt_approvals_number(const json_t *document, const char *key)
{
    return json_integer_value(json_object_get(document, key));
}

/* "a GitHub token and 2 more" */
static char *bt_approvals_summary(const json_t *approval)
{
    const json_t *finds = json_object_get(approval, "finds");
    const char *title = bt_approvals_text(json_array_get(finds, 0), "title");
    json_int_t more = (json_int_t)json_array_size(finds) - 1 + bt_approvals_number(approval, "more");

    return more > 0 ? bt_string_format("%s and %lld more", title, (long long)more) : bt_string_copy(title);
}

static int bt_approvals_run_list(struct bt_context *context, struct bt_error *error)
{
    static const char *const titles[] = {"NUMBER", "AGENT", "LEFT", "FOUND", "REQUEST"};
    struct bt_table table;
    json_t *approvals = NULL, *approval;
    size_t index;
    int r = bt_approvals_list(&context->paths, context->environment, &approvals, error);

    if (r < 0)
        return r;
    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    json_array_foreach(approvals, index, approval)
    {
        bt_auto_free char *summary = bt_approvals_summary(approval);
        char left[BT_OUTPUT_TEXT_SIZE];
        bt_output_age(bt_approvals_number(approval, "left_seconds"), left);
        bt_table_add(&table, BT_COLOR_BOLD, "%lld", (long long)bt_approvals_number(approval, "number"));
        bt_table_add(&table, BT_COLOR_NONE, "%s", bt_approvals_text(approval, "agent"));
        bt_table_add(&table, BT_COLOR_YELLOW, "%s", left);
        bt_table_add(&table, BT_COLOR_NONE, "%s", summary);
        bt_table_add(&table, BT_COLOR_DIM, "%s %s%s", bt_approvals_text(approval, "method"),
                     bt_approvals_text(approval, "host"), bt_approvals_text(approval, "path"));
    }
    if (json_array_size(approvals) == 0)
        bt_output_note(&context->output, "no request waits for you");
    bt_table_print(&context->output, &table);
    bt_output_document(&context->output, json_pack("{s:o}", "approvals", approvals));
    return 0;
}

static int bt_approvals_parse_number(const char *text, json_int_t *ret_number, struct bt_error *error)
{
    uint64_t number;

    if (bt_number_parse(text, strlen(text), 1, INT64_MAX, &number) < 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "berth approvals list shows the numbers",
                       "'%.60s' is not the number of a request", text);
    *ret_number = (json_int_t)number;
    return 0;
}

/* *ret_approval is owned. */
static int bt_approvals_find(struct bt_context *context, json_int_t number, json_t **ret_approval,
                             struct bt_error *error)
{
    json_t *approvals = NULL, *found = NULL, *approval;
    size_t index;
    int r = bt_approvals_list(&context->paths, context->environment, &approvals, error);

    if (r < 0)
        return r;
    json_array_foreach(approvals, index, approval)
    {
        if (bt_approvals_number(approval, "number") == number)
            found = json_incref(approval);
    }
    json_decref(approvals);
    *ret_approval = found;
    return found ? 0
                 : bt_fail(error, BT_EXIT_NO_TARGET, ENOENT, "berth approvals list shows those that do",
                           "no request %lld waits", (long long)number);
}

static void bt_approvals_print(struct bt_output *output, const json_t *approval)
{
    const json_t *finds = json_object_get(approval, "finds"), *find;
    char left[BT_OUTPUT_TEXT_SIZE];
    size_t index;

    bt_output_age(bt_approvals_number(approval, "left_seconds"), left);
    bt_output_print(output, "request %lld of ", (long long)bt_approvals_number(approval, "number"));
    bt_output_print_color(output, BT_COLOR_BOLD, "%s\n", bt_approvals_text(approval, "agent"));
    bt_output_print(output, "  to       %s, port %lld\n", bt_approvals_text(approval, "host"),
                    (long long)bt_approvals_number(approval, "port"));
    bt_output_print(output, "  what     %s %s\n", bt_approvals_text(approval, "method"),
                    *bt_approvals_text(approval, "path") ? bt_approvals_text(approval, "path")
                                                         : "(the path holds it, too)");
    json_array_foreach(finds, index, find)
    {
        bt_output_print(output, "  found    %s (%s) in its %s, up to byte %lld\n",
                        bt_approvals_text(find, "title"), bt_approvals_text(find, "rule"),
                        bt_approvals_text(approval, "place"), (long long)bt_approvals_number(find, "offset"));
        bt_output_print(output, "           %s  digest %.16s\n", bt_approvals_text(find, "excerpt"),
                        bt_approvals_text(find, "digest"));
    }
    if (bt_approvals_number(approval, "more") > 0)
        bt_output_print(output, "           and %lld more\n",
                        (long long)bt_approvals_number(approval, "more"));
    bt_output_print(output, "  left     %s, then it is refused\n", left);
}

static int bt_approvals_run_show(struct bt_context *context, json_int_t number, struct bt_error *error)
{
    json_t *approval = NULL;
    int r = bt_approvals_find(context, number, &approval, error);

    if (r < 0)
        return r;
    bt_approvals_print(&context->output, approval);
    bt_output_document(&context->output, approval);
    return 0;
}

/* The trail says what was allowed, not only that something was. */
static int bt_approvals_run_answer(struct bt_context *context, json_int_t number, bool is_allowed,
                                   struct bt_error *error)
{
    struct bt_approvals_answer answer = {is_allowed, bt_option_is_set(&context->arguments, "remember")};
    json_t *approval = NULL;
    int r = bt_approvals_find(context, number, &approval, error);

    if (r < 0)
        return r;
    bt_auto_free char *summary = bt_approvals_summary(approval);
    bt_auto_free char *agent = bt_string_copy(bt_approvals_text(approval, "agent"));
    r = bt_approvals_answer(&context->paths, context->environment, number, answer, error);
    if (r == 0)
        r = bt_audit_write(
            &context->paths, is_allowed ? "approval-allow" : "approval-deny", context->environment, agent,
            json_pack("{s:I, s:s, s:s, s:b}", "number", number, "host", bt_approvals_text(approval, "host"),
                      "found", summary, "remembered", answer.is_remembered),
            error);
    json_decref(approval);
    if (r < 0)
        return r;
    bt_output_print(&context->output, "request %lld of %s is %s%s\n", (long long)number, agent,
                    is_allowed ? "allowed" : "refused",
                    answer.is_remembered ? ", and the same to this host until the agent ends" : "");
    bt_output_document(&context->output,
                       json_pack("{s:I, s:s, s:s, s:b}", "number", number, "agent", agent, "answer",
                                 is_allowed ? "allow" : "deny", "remembered", answer.is_remembered));
    return 0;
}

static int bt_approvals_run(struct bt_context *context, struct bt_error *error)
{
    const struct bt_list *operands = &context->arguments.operands;
    const char *verb = operands->count > 0 ? operands->items[0] : "list";
    bool is_allow = strcmp(verb, "allow") == 0, is_deny = strcmp(verb, "deny") == 0;
    json_int_t number = 0;
    int r;

    if (bt_option_is_set(&context->arguments, "remember") && !is_allow)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "--remember goes with allow");
    if (strcmp(verb, "list") == 0 && operands->count <= 1)
        return bt_approvals_run_list(context, error);
    if (operands->count != 2 || (!is_allow && !is_deny && strcmp(verb, "show") != 0))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "berth approvals list, show NUMBER, allow NUMBER or deny NUMBER",
                       "this is not something to do with approvals");
    r = bt_approvals_parse_number(operands->items[1], &number, error);
    if (r < 0)
        return r;
    return is_allow || is_deny ? bt_approvals_run_answer(context, number, is_allow, error)
                               : bt_approvals_run_show(context, number, error);
}

static const struct bt_option bt_approvals_options[] = {
    {.name = "remember", .help = "with allow: the same value to the same host until the agent ends"},
};

const struct bt_command bt_command_approvals = {
    .name = "approvals",
    .operands = "[list] | show NUMBER | allow NUMBER | deny NUMBER",
    .summary = "Answer requests of agents that wait for your word",
    .details =
        "A route of a bottle asks for it: dlp: {outbound: supervise}. A request in which a token or a "
        "secret is\n"
        "found is held until you answer, and refused after five minutes. Allowing holds for that request "
        "alone.",
    .options = bt_approvals_options,
    .option_count = BT_ARRAY_LENGTH(bt_approvals_options),
    .maximum = 2,
    .needs = BT_COMMAND_CONFIG_OR_DEFAULTS,
    .run = bt_approvals_run,
};
