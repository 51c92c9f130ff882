/* berth resume: an agent that has ended works again, with the home and the workspace that it left.
 *
 * Must start nothing with less proof or other leave than a new agent: the policy is read again, and a project
 * whose .berth narrowed it must still be there.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "frontend/harness.h"
#include "frontend/origin.h"
#include "frontend/start.h"

static int bt_resume_check(const struct bt_agent *agent, struct bt_error *error)
{
    if (bt_agent_is_live(agent))
        return bt_fail(error, BT_EXIT_ERROR, EBUSY, "berth attach enters it, berth steer types into it",
                       "the agent %s is %s", agent->name, bt_agent_status_name(bt_agent_status_now(agent)));
    return 0;
}

/* A folder that is gone would take its limits with it. */
static int bt_resume_check_folder(const struct bt_agent *agent, const char *what, const char *folder,
                                  struct bt_error *error)
{
    struct stat status;

    if (!folder || !*folder || (stat(folder, &status) == 0 && S_ISDIR(status.st_mode)))
        return 0;
    return bt_fail(error, BT_EXIT_NO_TARGET, ENOENT,
                   "put it back, or take the changes with berth diff and remove the agent with berth rm",
                   "cannot resume %s: its %s %s is gone", agent->name, what, folder);
}

static void bt_resume_list(const json_t *array, struct bt_list *list)
{
    const json_t *text;
    size_t index;

    json_array_foreach(array, index, text)
    {
        if (json_is_string(text))
            bt_list_add(list, json_string_value(text));
    }
}

/* What it does: what is asked for, else, for a harness with a session, to go on; else what it did last. */
static void bt_resume_choose(const struct bt_context *context, struct bt_start *start, struct bt_list *words)
{
    const struct bt_arguments *arguments = &context->arguments;
    enum bt_harness harness = BT_HARNESS_SHELL;
    const char *prompt = json_string_value(json_object_get(start->origin, "prompt"));

    start->prompt = bt_option_value(arguments, "prompt", NULL);
    if (arguments->has_rest)
        start->command = (const char *const *)arguments->rest.items;
    if (start->prompt || start->command)
        return;
    bt_resume_list(json_object_get(start->origin, "command"), words);
    if (words->count > 0)
        start->command = (const char *const *)words->items;
    else if (bt_harness_find(start->resumed->harness, &harness) && !bt_harness_continue_prompt(harness))
        start->prompt = prompt;
}

static int bt_resume_start(struct bt_context *context, const struct bt_agent *agent, const json_t *origin,
                           struct bt_error *error)
{
    bt_auto_list words = {0};
    struct bt_start start = {
        .manifest = agent->manifest,
        .workspace = *agent->workspace ? agent->workspace : NULL,
        .backend = agent->backend,
        .name = agent->name,
        .project = json_string_value(json_object_get(origin, "project")),
        .image = json_string_value(json_object_get(origin, "image")),
        .resumed = agent,
        .origin = origin,
    };
    int r = bt_resume_check_folder(agent, "workspace", agent->workspace, error);

    if (r == 0)
        r = bt_resume_check_folder(agent, "project folder", start.project, error);
    if (r < 0)
        return r;
    bt_resume_list(json_object_get(origin, "bottles"), &start.bottles);
    bt_resume_list(json_object_get(origin, "repositories"), &start.repositories);
    bt_resume_choose(context, &start, &words);
    r = bt_start_go(context, &start, error);
    bt_list_free(&start.bottles);
    bt_list_free(&start.repositories);
    return r;
}

static int bt_resume_run(struct bt_context *context, struct bt_error *error)
{
    struct bt_agent agent;
    json_t *origin = NULL;
    int r = bt_command_agent(context, &agent, error);

    if (r == 0)
        r = bt_resume_check(&agent, error);
    if (r == 0)
        r = bt_origin_load(agent.folder, agent.name, &origin, error);
    if (r == 0)
        r = bt_resume_start(context, &agent, origin, error);
    json_decref(origin);
    return r;
}

static const struct bt_option bt_resume_options[] = {
    {.name = "latest", .letter = 'l', .help = "the newest agent"},
    {.name = "prompt", .letter = 'p', .value_name = "TEXT", .help = "what to do now"},
    {.name = "background", .letter = 'd', .help = "return once it works"},
    {.name = "yes", .letter = 'y', .help = "confirm what would be asked"},
    {.name = "build", .value_name = "DIGEST", .help = "agree to building the image of this digest"},
};

const struct bt_command bt_command_resume = {
    .name = "resume",
    .operands = "[N] [-- command...]",
    .summary = "Start an agent that has ended again, with what it kept",
    .details = "Its home and workspace are as it left them; its policy is read again, and its sandbox proved "
               "again. A\n"
               "harness goes on in its session; a command or script is run again, unless another is given.",
    .options = bt_resume_options,
    .option_count = BT_ARRAY_LENGTH(bt_resume_options),
    .maximum = 1,
    .may_have_rest = true,
    .needs = BT_COMMAND_CONFIG,
    .run = bt_resume_run,
};
