/* From options to a running agent. See start.h.
 *
 * Must launch nothing that the plan it showed does not describe.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/backend.h"
#include "frontend/build.h"
#include "frontend/describe.h"
#include "frontend/frozen.h"
#include "frontend/launch.h"
#include "frontend/manifest.h"
#include "frontend/start.h"
#include "policy/rules/rules.h"

#define BT_REPOSITORY_BYTES_MAX 1024U

const char *bt_start_own_folder(void)
{
    bt_auto_free char *path = realpath(".", NULL);

    return path && access(path, R_OK | X_OK) == 0 ? "." : NULL;
}

int bt_start_split(const char *text, const char *option, struct bt_list *ret_names, struct bt_error *error)
{
    for (;;) {
        size_t length = strcspn(text, ",");
        if (length == 0)
            return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                           "write names with commas between them, without blanks", "--%s holds an empty name",
                           option);
        bt_list_add_format(ret_names, "%.*s", (int)(length < 4096 ? length : 4096), text);
        if (text[length] == '\0')
            return 0;
        text += length + 1;
    }
}

/* ---- repositories -----------------------------------------------------------------------------------------
 */

int bt_start_check_repository(const char *url, struct bt_error *error)
{
    static const char scheme[] = "https://";
    char host[BT_HOST_NAME_SIZE + 8];
    size_t authority;
    uint16_t port;

    if (strlen(url) > BT_REPOSITORY_BYTES_MAX)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL,
                       "the address of a repository is longer than %u bytes", BT_REPOSITORY_BYTES_MAX);
    for (const char *at = url; *at; at++) {
        if (*at <= ' ' || *at >= 0x7f)
            return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL,
                           "the address of a repository has a blank or an odd byte");
    }
    if (strncmp(url, scheme, strlen(scheme)) != 0)
        return bt_fail(
            error, BT_EXIT_USAGE, EINVAL, "use its https:// address",
            "'%.100s' is not an https address; agents clone through the gateway, which speaks HTTPS", url);
    authority = strcspn(url + strlen(scheme), "/?#");
    /* Not repeated in the message: it may hold a password. */
    if (memchr(url + strlen(scheme), '@', authority))
        return bt_fail(
            error, BT_EXIT_USAGE, EINVAL,
            "leave the name and password out; private repositories need a route with auth, which this "
            "version does not have",
            "the address of a repository cannot hold a user name or password");
    if (bt_start_repository_host(url, host, sizeof(host), &port) < 0)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "'%.100s' has no valid host", url);
    return 0;
}

int bt_start_repository_host(const char *url, char *ret_host, size_t size, uint16_t *ret_port)
{
    const char *start = url + strlen("https://");
    size_t length = strcspn(start, "/?#");
    const char *colon = memchr(start, ':', length);
    uint64_t port = 443;

    if (colon && bt_number_parse(colon + 1, (size_t)(start + length - colon) - 1, 1, 65535, &port) < 0)
        return -EINVAL;
    if (colon)
        length = (size_t)(colon - start);
    if (length == 0 || length >= size)
        return -EINVAL;
    memcpy(ret_host, start, length);
    ret_host[length] = '\0';
    *ret_port = (uint16_t)port;
    return 0;
}

/* A clone that the policy refuses would fail after a boot; here it fails before. */
static int bt_start_check_reachable(const struct bt_plan *plan, const struct bt_list *repositories,
                                    struct bt_error *error)
{
    struct bt_policy *policy = NULL;
    int r = bt_policy_parse(plan->policy, &policy, error);

    for (size_t i = 0; i < repositories->count && r == 0; i++) {
        char host[BT_HOST_NAME_SIZE + 8];
        struct bt_verdict verdict = {0};
        uint16_t port = 0;
        r = bt_start_repository_host(repositories->items[i], host, sizeof(host), &port);
        if (r < 0)
            break;
        bt_policy_decide_connection(policy, host, port, &verdict);
        if (!verdict.is_allowed)
            r = bt_fail(error, BT_EXIT_ERROR, EACCES, *verdict.hint ? verdict.hint : NULL,
                        "cannot clone %s: %s:%u is not allowed for this agent (%s)", repositories->items[i],
                        host, port, verdict.reason);
    }
    bt_policy_free(policy);
    return r;
}

/* ---- showing a plan ---------------------------------------------------------------------------------------
 */

static void bt_start_print_routes(struct bt_output *output, const struct bt_plan *plan)
{
    static const char *const titles[] = {"ALLOWED HOST", "FOR", "GRANTED BY", "WRITTEN AT"};
    struct bt_table table;

    if (plan->route_count == 0)
        return;
    bt_table_init(&table, titles, BT_ARRAY_LENGTH(titles));
    for (size_t i = 0; i < plan->route_count; i++) {
        bt_table_add(&table, BT_COLOR_GREEN, "%s", plan->routes[i].host);
        bt_auto_free char *conditions = bt_describe_rules(plan->routes[i].rules);
        bt_table_add(&table, BT_COLOR_NONE, "%s", conditions);
        bt_table_add(&table, BT_COLOR_NONE, "%s", plan->routes[i].granted_by);
        bt_table_add(&table, BT_COLOR_DIM, "%s", plan->routes[i].source);
    }
    bt_table_print(output, &table);
}

static void bt_start_print_plan(struct bt_output *output, const struct bt_plan *plan)
{
    char memory[BT_OUTPUT_TEXT_SIZE], disk[BT_OUTPUT_TEXT_SIZE];

    bt_output_bytes(plan->resources.memory_bytes, memory);
    bt_output_bytes(plan->resources.disk_bytes, disk);
    bt_output_print(output, "agent      %s, harness %s (%s)\n", plan->agent, bt_harness_name(plan->harness),
                    plan->agent_source);
    bt_output_print(output, "bottles   ");
    for (size_t i = 0; i < plan->bottles.count; i++)
        bt_output_print(output, " %s", plan->bottles.items[i]);
    bt_output_print(output, "\nimage      %s\nresources  %s memory, %u cpu%s, %s disk\n", plan->image, memory,
                    plan->resources.cpus, plan->resources.cpus == 1 ? "" : "s", disk);
    if (plan->environment.count > 0) {
        bt_output_print(output, "variables ");
        for (size_t i = 0; i < plan->environment.count; i++)
            bt_output_print(output, " %.*s", (int)strcspn(plan->environment.items[i], "="),
                            plan->environment.items[i]);
        bt_output_print(output, "\n");
    }
    bt_start_print_routes(output, plan);
    for (size_t i = 0; i < plan->notes.count; i++)
        bt_output_print(output, "note: %s\n", plan->notes.items[i]);
}

static json_t *bt_start_words(const char *const *words)
{
    json_t *array = words ? json_array() : json_null();

    for (size_t i = 0; words && words[i]; i++)
        json_array_append_new(array, bt_output_json_text(words[i]));
    return array;
}

static int bt_start_dry_run(struct bt_context *context, const struct bt_start *start,
                            const struct bt_plan *plan, const char *backend)
{
    bt_start_print_plan(&context->output, plan);
    bt_output_print(&context->output, "nothing was started (--dry-run)\n");
    bt_output_document(
        &context->output,
        json_pack(
            "{s:b, s:s, s:o, s:o, s:o, s:o, s:o}", "dry_run", 1, "environment", context->environment,
            "backend", bt_output_json_text(backend), "workspace", bt_output_json_text(start->workspace),
            "repositories",
            bt_start_words(start->repositories.count ? (const char *const *)start->repositories.items : NULL),
            "command", bt_start_words(start->command), "plan", bt_plan_to_json(plan)));
    return 0;
}

/* ---- launching --------------------------------------------------------------------------------------------
 */

static int bt_start_plan(struct bt_context *context, const struct bt_start *start, struct bt_plan *ret_plan,
                         struct bt_error *error)
{
    const struct bt_plan_request request = {
        .paths = &context->paths,
        .agent = start->manifest,
        .project_folder = start->project,
        .bottles = start->bottles.count ? (const char *const *)start->bottles.items : NULL,
        .bottle_count = start->bottles.count,
        .image = start->image,
        .kept_recipe = json_string_value(json_object_get(start->origin, "recipe")),
    };

    return bt_plan_make(&request, ret_plan, error);
}

static int bt_start_confirm(struct bt_context *context, const struct bt_plan *plan, struct bt_error *error)
{
    bool is_assumed = bt_option_is_set(&context->arguments, "yes");
    char question[512];

    /* The user's own manifests are the user's word; a repository's are not. */
    if (!plan->is_project_agent)
        return 0;
    if (!is_assumed)
        bt_start_print_plan(&context->output, plan);
    snprintf(question, sizeof(question), "run the agent that %.300s describes, with bottle %s?",
             plan->agent_source,
             plan->bottles.count ? plan->bottles.items[plan->bottles.count - 1] : BT_BOTTLE_NONE);
    return bt_command_confirm(context, is_assumed, question, error);
}

/* Which backend, and what must be said about it. Nobody gets the weakest one without having asked for it or
 * agreed to it. */
static int bt_start_backend(struct bt_context *context, const struct bt_plan *plan, const char *asked,
                            const char **ret_backend, struct bt_error *error)
{
    const struct bt_resources *resources = &plan->resources;
    const struct bt_guest_limits limits = {
        .memory_bytes = resources->memory_bytes,
        .disk_bytes = resources->disk_bytes,
        .cpus = resources->cpus,
        .is_memory_asked = resources->is_memory_asked,
        .is_disk_asked = resources->is_disk_asked,
        .is_gvisor_asked = plan->is_gvisor,
        .is_cpus_asked = resources->is_cpus_asked,
    };
    const struct bt_backend *backend;
    const char *why;
    char question[512], hint[128];
    bt_auto_list notes = {0};
    int r = bt_backend_select(asked, &backend, &why, error);

    if (r == 0 && backend->vet)
        r = backend->vet(&limits, &notes, error);
    if (r < 0)
        return r;
    *ret_backend = backend->name;
    for (size_t i = 0; i < notes.count; i++)
        bt_output_note(&context->output, "note: %s", notes.items[i]);
    if (backend->warning)
        bt_output_note(&context->output, "warning: %s: %s", backend->name, backend->warning);
    if (asked || !backend->warning)
        return 0;
    snprintf(question, sizeof(question), "use the backend %s, since the better one cannot run here (%s)?",
             backend->name, why);
    snprintf(hint, sizeof(hint), "say --backend %s if you want that (--yes does not)", backend->name);
    /* --yes is about a project's agents: it cannot be meant for a boundary that nobody has been told of. */
    r = bt_command_confirm(context, false, question, error);
    if (r == -EPERM)
        return bt_fail(error, BT_EXIT_ERROR, EPERM, hint, "this must be confirmed: %s", question);
    return r;
}

static void bt_start_report(struct bt_context *context, const struct bt_launch_outcome *outcome)
{
    struct bt_output *output = &context->output;

    if (!outcome->has_ended)
        bt_output_note(output, "%s runs; berth attach %s shows it, berth stop %s ends it", outcome->name,
                       outcome->name, outcome->name);
    else
        bt_output_note(output, "%s ended with exit status %d%s", outcome->name, outcome->exit_status,
                       outcome->has_patch ? "" : ", without changes");
    if (outcome->has_patch)
        bt_output_note(output, "it made changes: berth diff %s shows them, berth apply %s brings them home",
                       outcome->name, outcome->name);
    bt_output_document(
        output, json_pack("{s:s, s:s, s:b, s:o, s:b, s:O?, s:O?, s:f}", "name", outcome->name, "environment",
                          context->environment, "has_ended", outcome->has_ended, "exit_status",
                          outcome->has_ended ? json_integer(outcome->exit_status) : json_null(), "has_patch",
                          outcome->has_patch, "steps", outcome->steps, "probe", outcome->probe,
                          "first_command_ms", outcome->first_command_ms));
}

static json_t *bt_start_texts(const struct bt_list *list)
{
    json_t *array = list->count ? json_array() : json_null();

    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(array, bt_output_json_text(list->items[i]));
    return array;
}

/* What the next `berth resume` goes by; see frontend/origin.h. */
static json_t *bt_start_origin(const struct bt_start *start, const struct bt_plan *plan)
{
    bool has_prompt = !start->command && (start->prompt || *plan->prompt);
    bool had_session = json_is_true(json_object_get(start->origin, "has_session"));
    bt_auto_free char *project = start->project ? realpath(start->project, NULL) : NULL;

    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:s, s:I, s:b}", "project", bt_output_json_text(project),
                     "bottles", bt_start_texts(&start->bottles), "repositories",
                     bt_start_texts(&start->repositories), "command", bt_start_words(start->command),
                     "prompt", bt_output_json_text(start->prompt), "image", bt_output_json_text(start->image),
                     "recipe", plan->recipe, "disk_bytes", (json_int_t)plan->resources.disk_bytes,
                     "has_session", had_session || has_prompt);
}

static int bt_start_launch(struct bt_context *context, const struct bt_start *start,
                           const struct bt_plan *plan, const char *backend, struct bt_error *error)
{
    struct bt_progress progress = bt_output_progress(&context->output);
    struct bt_launch_outcome outcome = {0};
    bt_auto_stdout saved = bt_command_divert_stdout(&context->output);
    json_t *origin = bt_start_origin(start, plan);
    struct bt_launch_request request = {
        .paths = &context->paths,
        .config = &context->config,
        .plan = plan,
        .environment = context->environment,
        .backend = backend,
        .name = start->name,
        .workspace = start->workspace,
        .is_ignored_included = start->is_ignored_included,
        .origin = origin,
        .resumed = start->resumed,
        .is_continued = json_is_true(json_object_get(start->origin, "has_session")),
        .repositories = start->repositories.count ? (const char *const *)start->repositories.items : NULL,
        .command = start->command,
        .prompt = start->prompt,
        .is_background = bt_option_is_set(&context->arguments, "background"),
        .is_terminal_allowed = !context->output.is_json && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO),
        .progress = &progress,
    };
    int r = bt_launch(&request, &outcome, error);

    json_decref(origin);
    bt_command_restore_stdout(&saved);
    if (r < 0)
        return r;
    bt_start_report(context, &outcome);
    if (outcome.has_ended && outcome.exit_status != 0)
        context->exit_status = BT_EXIT_AGENT_FAILED;
    json_decref(outcome.steps);
    json_decref(outcome.probe);
    return 0;
}

static int bt_start_check(const struct bt_start *start, struct bt_error *error)
{
    const char *name = start->name;
    int r = 0;

    if (name && !bt_name_is_valid(name))
        return bt_fail(error, BT_EXIT_USAGE, EINVAL,
                       "use 1 to 31 of a-z, 0-9 and '-', not beginning with '-'",
                       "'%.64s' cannot be the name of an agent", name);
    if (start->repositories.count > BT_REPOSITORIES_MAX)
        return bt_fail(error, BT_EXIT_USAGE, E2BIG, NULL, "more than %u repositories", BT_REPOSITORIES_MAX);
    for (size_t i = 0; i < start->repositories.count && r == 0; i++)
        r = bt_start_check_repository(start->repositories.items[i], error);
    if (r == 0 && start->command && start->prompt)
        r = bt_fail(error, BT_EXIT_USAGE, EINVAL,
                    "a command after -- is the whole work; a prompt goes to a harness",
                    "give a prompt or a command, not both");
    return r;
}

int bt_start_run(struct bt_context *context, struct bt_start *start, struct bt_error *error)
{
    const struct bt_arguments *arguments = &context->arguments;
    const char *from_environment = getenv("BERTH_BACKEND");
    const char *bottles = bt_option_value(arguments, "bottles", NULL);
    int r = bottles ? bt_start_split(bottles, "bottles", &start->bottles, error) : 0;

    start->backend = bt_option_value(arguments, "backend",
                                     from_environment && *from_environment ? from_environment : NULL);
    start->name = bt_option_value(arguments, "name", NULL);
    start->image = bt_option_value(arguments, "image", NULL);
    /* Without a workspace, the project is where the user stands. */
    start->project = start->workspace ? start->workspace : bt_start_own_folder();
    start->is_ignored_included = bt_option_is_set(arguments, "include-ignored");
    start->is_dry_run = bt_option_is_set(arguments, "dry-run");
    if (r == 0)
        r = bt_start_go(context, start, error);
    bt_list_free(&start->bottles);
    return r;
}

int bt_start_go(struct bt_context *context, const struct bt_start *start, struct bt_error *error)
{
    const char *backend = start->backend;
    bt_auto_plan plan = {0};
    int r = bt_start_check(start, error);

    if (r == 0)
        r = bt_start_plan(context, start, &plan, error);
    if (r == 0 && !start->resumed) /* nothing is cloned again */
        r = bt_start_check_reachable(&plan, &start->repositories, error);
    if (r < 0)
        return r;
    if (start->is_dry_run)
        return bt_start_dry_run(context, start, &plan, backend ? backend : context->config.backend);
    for (size_t i = 0; i < plan.notes.count; i++)
        bt_output_note(&context->output, "note: %s", plan.notes.items[i]);
    r = bt_start_confirm(context, &plan, error);
    if (r == 0)
        r = bt_start_backend(context, &plan, backend ? backend : context->config.backend, &backend, error);
    if (r == 0 && plan.home_folder)
        r = bt_frozen_check_backend(&context->paths, plan.image, backend, error);
    if (r == 0 && (plan.dockerfile || plan.overlay))
        r = bt_build_image(context, &plan, backend, error);
    return r < 0 ? r : bt_start_launch(context, start, &plan, backend, error);
}
