/* Starting an agent from a command. See launch.h. */
#include "frontend/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/backend.h"
#include "frontend/agent.h"
#include "frontend/audit.h"
#include "frontend/config.h"
#include "frontend/credentials.h"
#include "frontend/infra.h"
#include "frontend/keeper.h"
#include "frontend/manifest.h"
#include "frontend/workspace.h"

#define ARGUMENT_BYTES_MAX (128UL * 1024)

#define UNDO_ATTEMPTS 4 /* each waits for other writers itself */

struct launch {
    const struct bt_launch_request *request;
    const struct bt_backend *backend;
    struct bt_state *state;
    struct bt_agent row;
    unsigned environment_number;
    char *workspace; /* absolute, or NULL */
    json_t *command; /* array, or NULL: the harness's own terminal */
    json_t *steps;
};

/* ---- before anything is made ---- */

static int check_workspace(struct launch *launch, struct bt_error *error)
{
    const char *path = launch->request->workspace;
    struct stat status;
    if (path == NULL)
        return 0;
    launch->workspace = realpath(path, NULL);
    if (launch->workspace == NULL || stat(launch->workspace, &status) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot use the workspace %s: %s", path,
                       strerror(errno));
    if (!S_ISDIR(status.st_mode))
        return bt_fail(error, BT_EXIT_ERROR, ENOTDIR, "name a folder", "the workspace %s is not a folder",
                       path);
    if (access(launch->workspace, R_OK | X_OK) < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, "make it readable for yourself",
                       "cannot read the workspace %s: %s", path, strerror(errno));
    return 0;
}

/* The kernel takes no longer argument (execve(2), MAX_ARG_STRLEN), which would be found out after a boot. */
static int check_word(const char *word, const char *what, struct bt_error *error)
{
    return strlen(word) < ARGUMENT_BYTES_MAX
               ? 0
               : bt_fail(error, BT_EXIT_USAGE, E2BIG,
                         "put it into a file of the workspace and run that: ... -- sh ./file",
                         "%s is longer than %lu bytes, which no program can be given", what,
                         ARGUMENT_BYTES_MAX - 1);
}

static int choose_prompt(struct launch *launch, const char *prompt, struct bt_error *error)
{
    bt_auto_list words = {0};
    bt_harness_command(launch->request->plan->harness, prompt, launch->request->is_continued, &words);
    launch->command = json_array();
    for (size_t i = 0; i < words.count; i++) {
        if (json_array_append_new(launch->command, json_string(words.items[i])) < 0)
            return bt_fail(error, BT_EXIT_USAGE, EILSEQ, NULL, "the prompt is not UTF-8");
    }
    return check_word(prompt, "the prompt", error);
}

/* What the agent does: the given command, or its harness with the prompt (for the shell that is a script). */
static int choose_command(struct launch *launch, struct bt_error *error)
{
    const struct bt_launch_request *request = launch->request;
    const char *prompt = request->prompt;
    if (prompt == NULL && request->is_continued)
        prompt = bt_harness_continue_prompt(request->plan->harness);
    if (prompt == NULL)
        prompt = request->plan->prompt;
    if (request->command != NULL) {
        launch->command = json_array();
        for (size_t i = 0; request->command[i] != NULL; i++) {
            int result = check_word(request->command[i], "a word of the command", error);
            if (result < 0)
                return result;
            if (json_array_append_new(launch->command, json_string(request->command[i])) < 0)
                return bt_fail(error, BT_EXIT_USAGE, EILSEQ, NULL, "word %zu of the command is not UTF-8",
                               i + 1);
        }
        return 0;
    }
    if (prompt[0] != '\0')
        return choose_prompt(launch, prompt, error);
    if (!request->is_background && !request->is_terminal_allowed)
        return bt_fail(error, BT_EXIT_USAGE, ENOTTY, "give a command after --, a prompt, or --background",
                       "without a prompt %s needs a terminal, and there is none",
                       bt_harness_name(request->plan->harness));
    return 0;
}

/* Found out before a boot. The keeper reads them again by itself. */
static int check_credentials(const struct launch *launch, struct bt_error *error)
{
    json_t *credentials = NULL;
    int result =
        bt_credentials_collect(launch->request->paths, launch->request->plan->policy, &credentials, error);
    json_decref(credentials);
    return result;
}

/* The agent that is resumed becomes this process's, if it is still as it was found. */
static int take_again(struct launch *launch, struct bt_error *error)
{
    const struct bt_launch_request *request = launch->request;
    int result = bt_process_identify(getpid(), &launch->row.keeper);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot identify the own process");
    result = bt_state_environment(launch->state, request->environment, &launch->environment_number, error);
    return result < 0 ? result : bt_state_take_again(launch->state, request->resumed, &launch->row, error);
}

static int reserve(struct launch *launch, struct bt_error *error)
{
    const struct bt_launch_request *request = launch->request;
    struct bt_agent *row = &launch->row;
    *row = (struct bt_agent){.exit_status = -1, .slot = -1};
    (void)snprintf(row->name, sizeof row->name, "%s", request->name == NULL ? "" : request->name);
    (void)snprintf(row->environment, sizeof row->environment, "%s", request->environment);
    (void)snprintf(row->manifest, sizeof row->manifest, "%s", request->plan->agent);
    (void)snprintf(row->harness, sizeof row->harness, "%s", bt_harness_name(request->plan->harness));
    (void)snprintf(row->backend, sizeof row->backend, "%s", launch->backend->name);
    (void)snprintf(row->workspace, sizeof row->workspace, "%s",
                   launch->workspace == NULL ? "" : launch->workspace);
    int result = bt_process_identify(getpid(), &row->keeper);
    if (result < 0)
        return bt_fail(error, BT_EXIT_ERROR, -result, NULL, "cannot identify the own process");
    result = bt_state_environment(launch->state, request->environment, &launch->environment_number, error);
    return result < 0 ? result : bt_state_reserve(launch->state, row, error);
}

/* ---- what must be there first ---- */

static int get_images(struct launch *launch, struct bt_error *error)
{
    const struct bt_launch_request *request = launch->request;
    return launch->backend->provide(request->paths, request->plan->recipe, request->progress, error);
}

static int make_folder(struct launch *launch, struct bt_error *error)
{
    struct bt_agent *row = &launch->row;
    int length = snprintf(row->folder, sizeof row->folder, "%s/env/%s/agents/%s",
                          launch->request->paths->state, row->environment, row->name);
    if (length < 0 || length >= (int)sizeof row->folder)
        return bt_fail(error, BT_EXIT_ERROR, ENAMETOOLONG, "set BERTH_STATE_HOME to a shorter path",
                       "the path of the agent's folder is too long");
    int result = bt_tree_remove(row->folder, error); /* of an agent of this name that was lost */
    if (result == 0)
        result = bt_folder_make(row->folder, 0700, error);
    return result < 0 ? result : bt_state_update(launch->state, row, error);
}

static json_t *strings(const struct bt_list *list)
{
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        (void)json_array_append_new(array, json_string(list->items[i]));
    return array;
}

static json_t *repositories(const struct bt_launch_request *request)
{
    json_t *array = json_array();
    for (size_t i = 0; request->repositories != NULL && request->repositories[i] != NULL; i++)
        (void)json_array_append_new(array, json_string(request->repositories[i]));
    return array;
}

static json_t *keeper_request(const struct launch *launch)
{
    const struct bt_launch_request *request = launch->request;
    const struct bt_plan *plan = request->plan;
    json_t *document = json_pack(
        "{s:s, s:s, s:i, s:I, s:s, s:s, s:s, s:s, s:I, s:I, s:i, s:O}", "kind", "agent", "environment",
        launch->row.environment, "environment_number", (int)launch->environment_number, "agent_id",
        (json_int_t)launch->row.id, "folder", launch->row.folder, "backend", launch->backend->name,
        "helper_socket", request->config->helper_socket, "image", plan->recipe, "memory_bytes",
        (json_int_t)plan->resources.memory_bytes, "disk_bytes", (json_int_t)plan->resources.disk_bytes,
        "cpus", (int)plan->resources.cpus, "policy", plan->policy);
    bt_auto_list terminal = {0};
    bt_harness_terminal(plan->harness, &terminal);
    json_t *more = json_pack(
        "{s:b, s:s?, s:o, s:o, s:s?, s:b, s:o, s:O?, s:o, s:b, s:i, s:s?, s:b, s:O}", "is_gvisor",
        plan->is_gvisor, "home_folder", plan->home_folder, "own_environment", strings(&plan->environment),
        "trust", strings(&request->config->trust), "workspace", launch->workspace, "is_ignored_included",
        request->is_ignored_included, "repositories", repositories(request), "command", launch->command,
        "terminal", strings(&terminal), "is_background", request->is_background, "probe_repeat",
        (int)request->config->probe_repeat, "probe_public_address", request->config->probe_public_address,
        "is_resumed", request->resumed != NULL, "origin", request->origin);
    (void)json_object_update(document, more);
    json_decref(more);
    return document;
}

/* ---- the launch itself ---- */

static int run_keeper(struct launch *launch, json_t **ret_facts, struct bt_error *error)
{
    struct bt_keeper_handle handle;
    json_t *document = keeper_request(launch);
    if (document == NULL)
        return bt_fail(error, BT_EXIT_ERROR, EILSEQ, NULL, "a path or variable of this launch is not UTF-8");
    int result = bt_keeper_start(document, -1, &handle, error);
    json_decref(document);
    return result < 0 ? result
                      : bt_keeper_follow(&handle, launch->request->progress, launch->steps, ret_facts, error);
}

/* What a keeper that died made: nobody else will look for it as long as the name is free. */
static int undo_made(const struct launch *launch, struct bt_error *error)
{
    const struct bt_guest_identity identity = {launch->request->paths->state, launch->row.environment,
                                               BT_GUEST_AGENT, launch->row.name};
    struct bt_agent row;
    if (launch->row.folder[0] == '\0' ||
        bt_state_get(launch->state, launch->row.id, &row, error) == -ENOENT) /* the keeper did all of it */
        return 0;
    int result = launch->backend->cleanup(&identity, true, error);
    int removed = bt_tree_remove(launch->row.folder, result < 0 ? NULL : error);
    return result < 0 ? result : removed;
}

/* What the agent had, it keeps; only what ran is taken away, and why it does not run is written down. */
static void undo_resume(const struct launch *launch, const struct bt_error *why)
{
    const struct bt_guest_identity identity = {launch->request->paths->state, launch->row.environment,
                                               BT_GUEST_AGENT, launch->row.name};
    bt_auto_free char *detail = bt_string_format("it could not be resumed: %s", why->message);
    struct bt_error error = {0};
    if (launch->backend->cleanup(&identity, false, &error) < 0)
        (void)fprintf(stderr, "%s\n", error.message);
    if (bt_state_set_status(launch->state, launch->row.id, BT_AGENT_FAILED, -1, detail, &error) < 0)
        (void)fprintf(stderr, "%s\n", error.message);
}

/* The keeper undoes a launch that failed in its hands; this does the rest, and what a keeper could not do.
 * The row goes last: until then the name is this launch's. */
static void undo(struct launch *launch)
{
    struct bt_error error = {0};
    int attempt = 0, deleted;
    int result = undo_made(launch, &error);
    do { /* a row that stays would hold the name */
        deleted = bt_state_delete(launch->state, launch->row.id, result < 0 ? NULL : &error);
    } while (deleted == -EBUSY && ++attempt < UNDO_ATTEMPTS);
    if ((result < 0 || deleted < 0) && launch->request->progress != NULL &&
        launch->request->progress->report != NULL)
        launch->request->progress->report(launch->request->progress->context, error.message, 0, 0);
}

/* Everything up to a working agent. What it made is undone by the keeper, or by the caller when there is none
 * yet. */
static int bring_to_ready(struct launch *launch, json_t **ret_facts, struct bt_error *error)
{
    const struct bt_launch_request *request = launch->request;
    struct bt_infra_pair pair;
    double started = bt_keeper_now_ms();
    int result = launch->backend->check(error);
    /* Asked first: building images takes minutes, which are wasted without a helper. */
    if (result == 0)
        result = bt_keeper_helper_answers(request->config->helper_socket, error);
    if (result == 0)
        result = get_images(launch, error);
    if (result == 0)
        result = bt_infra_up(request->paths, request->config, request->environment, launch->backend,
                             request->progress, &pair, error);
    if (result == 0)
        (void)json_array_append_new(
            launch->steps, json_pack("{s:s, s:f}", "step", "infra", "ms", bt_keeper_now_ms() - started));
    if (result == 0 && request->resumed == NULL)
        result = make_folder(launch, error);
    if (result == 0)
        result = run_keeper(launch, ret_facts, error);
    if (result < 0 && request->resumed != NULL)
        undo_resume(launch, error);
    else if (result < 0)
        undo(launch);
    return result;
}

static int words_of(const json_t *command, struct bt_list *words)
{
    size_t index;
    const json_t *word;
    json_array_foreach(command, index, word) bt_list_add(words, json_string_value(word));
    return words->count > 0 ? 0 : -EINVAL;
}

/* Has the exit work done. The keeper may have seen the end of the terminal first: then what it did counts. */
static int finish(struct launch *launch, int status, struct bt_launch_outcome *outcome,
                  struct bt_error *error)
{
    struct bt_agent *row = &launch->row;
    const char *detail = NULL;
    json_t *answer = NULL;
    int result =
        bt_control_call(launch->request->paths, row->id,
                        json_pack("{s:s, s:i}", "verb", "finish", "exit_status", status), &answer, error);
    if (result == 0) {
        outcome->has_patch = json_is_true(json_object_get(answer, "has_patch"));
        detail = json_string_value(json_object_get(answer, "detail"));
    } else if (launch->command == NULL && bt_agent_await_end(row) == 0 &&
               bt_state_get(launch->state, row->id, row, error) == 0 && row->status == BT_AGENT_EXITED) {
        outcome->has_patch = bt_workspace_has_patch(row->folder);
        status = row->exit_status;
        detail = row->detail;
        result = 0;
    }
    outcome->has_ended = true;
    outcome->exit_status = status;
    if (result == 0 && detail != NULL && detail[0] != '\0')
        result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "%s", detail);
    json_decref(answer);
    return result;
}

/* Runs the agent's command from here. */
static int work_in_foreground(struct launch *launch, struct bt_launch_outcome *outcome,
                              struct bt_error *error)
{
    const struct bt_paths *paths = launch->request->paths;
    bt_auto_list words = {0};
    bool is_detached = false;
    const struct bt_progress *progress = launch->request->progress;
    int status = 0;
    double started = bt_keeper_now_ms();
    int result = bt_state_get(launch->state, launch->row.id, &launch->row, error);
    if (progress != NULL && progress->report != NULL)
        progress->report(progress->context, "", 0, 0);
    if (result == 0 && launch->command != NULL && words_of(launch->command, &words) == 0)
        result = bt_agent_exec(paths, &launch->row, (const char *const *)words.items,
                               launch->request->is_terminal_allowed, &status, error);
    else if (result == 0)
        result = bt_agent_attach(paths, &launch->row, &is_detached, error);
    if (result < 0 || is_detached)
        return result;
    outcome->first_command_ms = bt_keeper_now_ms() - started;
    return finish(launch, status, outcome, error);
}

static int launch_all(struct launch *launch, struct bt_launch_outcome *outcome, struct bt_error *error)
{
    const struct bt_launch_request *request = launch->request;
    const char *why;
    json_t *facts = NULL;
    const char *backend = request->backend != NULL ? request->backend : request->config->backend;
    int result = bt_backend_select(backend, &launch->backend, &why, error);
    if (result == 0)
        result = check_workspace(launch, error);
    if (result == 0)
        result = choose_command(launch, error);
    if (result == 0)
        result = check_credentials(launch, error);
    if (result == 0)
        result = bt_state_open(request->paths, &launch->state, error);
    if (result == 0)
        result = request->resumed != NULL ? take_again(launch, error) : reserve(launch, error);
    if (result < 0)
        return result;
    (void)snprintf(outcome->name, sizeof outcome->name, "%s", launch->row.name);
    result = bring_to_ready(launch, &facts, error);
    if (result < 0)
        return result;
    outcome->probe = json_incref(json_object_get(facts, "probe"));
    json_decref(facts);
    result = bt_audit_write(
        request->paths, request->resumed != NULL ? "resume" : "spawn", launch->row.environment,
        launch->row.name,
        json_pack("{s:s, s:s}", "manifest", launch->row.manifest, "backend", launch->row.backend), error);
    return result < 0 || request->is_background ? result : work_in_foreground(launch, outcome, error);
}

int bt_launch(const struct bt_launch_request *request, struct bt_launch_outcome *ret_outcome,
              struct bt_error *error)
{
    struct launch launch = {.request = request, .steps = json_array()};
    struct bt_launch_outcome outcome = {0};
    int result = launch_all(&launch, &outcome, error);
    bt_state_close(launch.state);
    json_decref(launch.command);
    free(launch.workspace);
    if (result < 0) {
        json_decref(launch.steps);
        json_decref(outcome.probe);
        return result;
    }
    outcome.steps = launch.steps;
    *ret_outcome = outcome;
    return 0;
}
