/* berth why: whether a host is allowed, by which rule, by whose leave. Sends nothing to that host.
 *
 * For a running agent the orchestrator's copy of its policy is asked, which is what the gateway goes by;
 * otherwise a plan is made from the manifests as they are now.
 */
#include <errno.h>
#include <string.h>

#include "frontend/command.h"
#include "frontend/manifest.h"
#include "frontend/start.h"
#include "policy/rules/rules.h"

struct bt_why_target {
    char host[BT_HOST_NAME_SIZE + 8]; /* as typed, without scheme, port and path */
    uint16_t port;
    bool is_http;       /* written as http:// */
    const char *method; /* NULL: whether it may be spoken to at all */
    const char *path;
};

/* HOST, HOST:PORT or a whole address of the web. */
static int bt_why_parse(const char *text, struct bt_why_target *ret_target, struct bt_error *error)
{
    bool is_http = strncmp(text, "http://", 7) == 0;
    const char *start = is_http ? text + 7 : strncmp(text, "https://", 8) == 0 ? text + 8 : text;
    size_t length = strcspn(start, "/?#");
    const char *colon = memchr(start, ':', length);
    uint64_t port = is_http ? 80 : 443;

    if (memchr(start, '@', length))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give HOST or HOST:PORT",
                       "a user name is no part of a host");
    if (colon && bt_number_parse(colon + 1, (size_t)(start + length - colon) - 1, 1, 65535, &port) < 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give HOST or HOST:PORT",
                       "what follows the colon in '%.100s' is not a port", text);
    if (colon)
        length = (size_t)(colon - start);
    if (length == 0 || length >= sizeof(ret_target->host))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give HOST or HOST:PORT", "'%.100s' has no valid host",
                       text);
    memcpy(ret_target->host, start, length);
    ret_target->host[length] = '\0';
    ret_target->port = (uint16_t)port;
    ret_target->is_http = is_http;
    start += strcspn(start, "/");
    ret_target->path = *start == '/' && start[1] ? start : NULL;
    return 0;
}

/* A request instead of a connection, when the address or an option says which. */
static int bt_why_request(const struct bt_arguments *arguments, struct bt_why_target *target,
                          struct bt_error *error)
{
    target->path = bt_option_value(arguments, "path", target->path);
    target->method = bt_option_value(arguments, "method", target->path ? "GET" : NULL);
    if (target->path && target->path[0] != '/')
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "write it as it follows the host: /v1/messages",
                       "'%.100s' is not a path", target->path);
    if (target->method && !target->path)
        target->path = "/";
    return 0;
}

static void bt_why_decide(const struct bt_policy *policy, const struct bt_why_target *target,
                          struct bt_verdict *ret_verdict)
{
    struct bt_policy_request request = {
        .host = target->host, .port = target->port, .is_tls = !target->is_http};

    bt_policy_decide_connection(policy, target->host, target->port, ret_verdict);
    /* What is passed through unread is decided by its name alone. */
    if (!target->method || !ret_verdict->is_allowed || (request.is_tls && !ret_verdict->is_intercepted))
        return;
    request.method = (struct bt_http_slice){target->method, strlen(target->method)};
    request.path = (struct bt_http_slice){target->path, strlen(target->path)};
    bt_policy_decide(policy, &request, ret_verdict);
}

/* The policy of a running agent, as the orchestrator has it. */
static int bt_why_registered(struct bt_context *context, const struct bt_agent *agent, json_t **ret_policy,
                             struct bt_error *error)
{
    json_t *document = NULL;
    int r = bt_command_ask_orchestrator(context, agent->environment, "/v1/agents", &document, error);

    if (r < 0)
        return r;
    const json_t *agents = json_object_get(document, "agents");
    for (size_t i = 0; i < json_array_size(agents) && !*ret_policy; i++) {
        const json_t *entry = json_array_get(agents, i);
        if (json_integer_value(json_object_get(entry, "slot")) == agent->slot &&
            json_integer_value(json_object_get(entry, "generation")) == (json_int_t)agent->generation)
            *ret_policy = json_incref(json_object_get(entry, "policy"));
    }
    json_decref(document);
    return *ret_policy ? 0
                       : bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOENT, "try again in a moment",
                                 "the orchestrator does not know the agent %s", agent->name);
}

static int bt_why_planned(struct bt_context *context, const char *manifest, json_t **ret_policy,
                          struct bt_error *error)
{
    const char *text = bt_option_value(&context->arguments, "bottles", NULL);
    bt_auto_list bottles = {0};
    bt_auto_plan plan = {0};
    struct bt_plan_request request = {
        .paths = &context->paths,
        .agent = manifest,
        .project_folder = bt_option_value(&context->arguments, "workspace", bt_start_own_folder()),
    };
    int r = text ? bt_start_split(text, "bottles", &bottles, error) : 0;

    if (r == 0 && text) {
        request.bottles = (const char *const *)bottles.items;
        request.bottle_count = bottles.count;
    }
    if (r == 0)
        r = bt_plan_make(&request, &plan, error);
    if (r < 0)
        return r;
    for (size_t i = 0; i < plan.notes.count; i++)
        bt_output_note(&context->output, "note: %s", plan.notes.items[i]);
    *ret_policy = json_incref(plan.policy);
    return 0;
}

/* Whose policy: --agent's as it runs, or as its manifest now says; --manifest's; else the built-in agent's.
 */
static int bt_why_policy(struct bt_context *context, json_t **ret_policy, struct bt_error *error)
{
    const char *name = bt_option_value(&context->arguments, "agent", NULL);
    const char *manifest = bt_option_value(&context->arguments, "manifest", BT_AGENT_SHELL);
    struct bt_state *state = NULL;
    struct bt_agent agent = {0};
    int r;

    if (!name && !bt_option_is_set(&context->arguments, "manifest"))
        bt_output_note(&context->output,
                       "note: asked for the built-in agent %s; --manifest or --agent names another",
                       manifest);
    if (!name)
        return bt_why_planned(context, manifest, ret_policy, error);
    if (bt_option_is_set(&context->arguments, "manifest") || bt_option_is_set(&context->arguments, "bottles"))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "--agent has its policy; give it alone");
    r = bt_state_open(&context->paths, &state, error);
    if (r == 0)
        r = bt_state_find(state, context->environment, name, &agent, error);
    bt_state_close(state);
    if (r < 0)
        return r;
    if (agent.status == BT_AGENT_RUNNING && bt_agent_is_live(&agent))
        return bt_why_registered(context, &agent, ret_policy, error);
    bt_output_note(&context->output, "note: %s does not run; this is what its manifest would be granted now",
                   agent.name);
    return bt_why_planned(context, agent.manifest, ret_policy, error);
}

/* Of a connection that is opened it is the requests in it that are decided. */
static bool bt_why_is_open(const struct bt_why_target *target, const struct bt_verdict *verdict)
{
    return verdict->is_allowed && !target->method && (verdict->is_intercepted || target->is_http);
}

static void bt_why_print(struct bt_output *output, const struct bt_why_target *target,
                         const struct bt_verdict *verdict)
{
    if (target->method)
        bt_output_print(output, "%s %s at ", target->method, target->path);
    bt_output_print(output, "%s:%u is ", target->host, target->port);
    bt_output_print_color(output, verdict->is_allowed ? BT_COLOR_GREEN : BT_COLOR_RED, "%s\n",
                          verdict->is_allowed ? "allowed" : "refused");
    bt_output_print(output, "  rule        %s\n  reason      %s\n", verdict->rule, verdict->reason);
    if (*verdict->granted_by)
        bt_output_print(output, "  granted by  %s\n", verdict->granted_by);
    if (verdict->is_allowed && !target->is_http)
        bt_output_print(output, "  TLS         %s\n",
                        verdict->is_intercepted ? "opened by the gateway" : "passed through unread");
    if (verdict->is_allowed && verdict->auth != BT_AUTH_NONE)
        bt_output_print(output, "  credential  %s, in %s\n", verdict->credential, verdict->auth_header);
    if (verdict->is_allowed && verdict->may_be_private)
        bt_output_print(output, "  private     the name may lead to a private address\n");
    if (bt_why_is_open(target, verdict))
        bt_output_print(output, "  requests    are decided one by one: --method and --path ask about one\n");
    if (*verdict->hint)
        bt_output_print(output, "  what to do  %s\n", verdict->hint);
}

static json_t *bt_why_document(const struct bt_why_target *target, const struct bt_verdict *verdict)
{
    const char *tls = !verdict->is_allowed || target->is_http ? NULL
                      : verdict->is_intercepted               ? "intercept"
                                                              : "pass";
    json_t *document =
        json_pack("{s:s, s:i, s:b, s:s, s:s, s:o, s:o, s:b}", "host", target->host, "port", (int)target->port,
                  "allowed", verdict->is_allowed, "rule", verdict->rule, "reason", verdict->reason, "hint",
                  bt_output_json_text(*verdict->hint ? verdict->hint : NULL), "granted_by",
                  bt_output_json_text(*verdict->granted_by ? verdict->granted_by : NULL), "private",
                  verdict->is_allowed && verdict->may_be_private);
    json_object_set_new(document, "method", bt_output_json_text(target->method));
    json_object_set_new(document, "path", bt_output_json_text(target->method ? target->path : NULL));
    json_object_set_new(document, "tls", bt_output_json_text(tls));
    json_object_set_new(document, "credential",
                        bt_output_json_text(verdict->auth != BT_AUTH_NONE ? verdict->credential : NULL));
    return document;
}

static int bt_why_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_verdict verdict = {0};
    struct bt_policy *policy = NULL;
    struct bt_why_target target;
    json_t *document = NULL;
    int r = bt_why_parse(context->arguments.operands.items[0], &target, error);

    if (r == 0)
        r = bt_why_request(&context->arguments, &target, error);
    if (r == 0)
        r = bt_why_policy(context, &document, error);
    if (r == 0)
        r = bt_policy_parse(document, &policy, error);
    json_decref(document);
    if (r < 0)
        return r;
    bt_why_decide(policy, &target, &verdict);
    bt_policy_free(policy);
    bt_why_print(&context->output, &target, &verdict);
    bt_output_document(&context->output, bt_why_document(&target, &verdict));
    return 0;
}

static const struct bt_option bt_why_options[] = {
    {.name = "agent", .letter = 'a', .value_name = "N", .help = "by the policy of this agent"},
    {.name = "manifest",
     .letter = 'm',
     .value_name = "MANIFEST",
     .help = "by what this agent manifest would be granted"},
    {.name = "bottles", .value_name = "A,B", .help = "by these bottles instead of the manifest's own"},
    {.name = "method", .value_name = "METHOD", .help = "about a request with this method (GET)"},
    {.name = "path", .value_name = "PATH", .help = "about a request for this path"},
    {.name = "workspace",
     .letter = 'w',
     .value_name = "DIR",
     .help = "whose .berth counts (the folder you are in)"},
};

const struct bt_command bt_command_why = {
    .name = "why",
    .operands = "HOST[:PORT]",
    .summary = "Say whether a host is allowed, by which rule and by whose leave",
    .details =
        "Nothing is sent to that host. Without a port: 443. A whole address asks about that request. The "
        "answer for\n"
        "a running agent is the gateway's own.",
    .options = bt_why_options,
    .option_count = BT_ARRAY_LENGTH(bt_why_options),
    .minimum = 1,
    .maximum = 1,
    .needs = BT_COMMAND_CONFIG,
    .run = bt_why_run,
};
