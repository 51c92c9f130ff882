/* What several commands need: the agent that is meant, a question to the user.
 *
 * Called by cmd_*.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "frontend/command.h"
#include "frontend/infra.h"
#include "ipc/wire/pool.h"
#include "policy/client/orchestrator_client.h"

int bt_command_target(struct bt_context *context, struct bt_state *state, size_t index,
                      struct bt_agent *ret_agent, struct bt_error *error)
{
    bool is_latest = bt_option_is_set(&context->arguments, "latest");
    bool has_name = context->arguments.operands.count > index;

    if (is_latest && has_name)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, NULL, "give a name or --latest, not both");
    if (is_latest)
        return bt_state_find_latest(state, context->environment, ret_agent, error);
    if (!has_name)
        return bt_fail(error, BT_EXIT_USAGE, EINVAL, "give a name or a part of one, or --latest",
                       "no agent was named");
    return bt_state_find(state, context->environment, context->arguments.operands.items[index], ret_agent,
                         error);
}

int bt_command_agent(struct bt_context *context, struct bt_agent *ret_agent, struct bt_error *error)
{
    struct bt_state *state = NULL;
    int r = bt_state_open(&context->paths, &state, error);

    if (r == 0)
        r = bt_command_target(context, state, 0, ret_agent, error);
    bt_state_close(state);
    return r;
}

int bt_command_targets(struct bt_context *context, struct bt_state *state, struct bt_agent **ret_agents,
                       size_t *ret_count, struct bt_error *error)
{
    size_t named = context->arguments.operands.count, count = 0;
    bt_auto_free struct bt_agent *agents = bt_new(named ? named : 1, sizeof(*agents));

    for (size_t i = 0; i == 0 || i < named; i++) {
        bool is_known = false;
        int r = bt_command_target(context, state, i, &agents[count], error);
        if (r < 0)
            return r;
        for (size_t before = 0; before < count; before++)
            is_known |= agents[before].id == agents[count].id;
        count += !is_known;
    }
    *ret_agents = BT_TAKE(agents);
    *ret_count = count;
    return 0;
}

int bt_command_confirm(struct bt_context *context, bool is_assumed, const char *question,
                       struct bt_error *error)
{
    char answer[16] = "";

    if (is_assumed)
        return 0;
    bt_output_progress_end(&context->output);
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO))
        return bt_fail(error, BT_EXIT_ERROR, EPERM, "use --yes if you agree", "this must be confirmed: %s",
                       question);
    fprintf(stderr, "%s [y/N] ", question);
    fflush(stderr);
    if (!fgets(answer, sizeof(answer), stdin) || (answer[0] != 'y' && answer[0] != 'Y'))
        return bt_fail(error, BT_EXIT_ERROR, ECANCELED, NULL, "not confirmed, nothing was done");
    return 0;
}

int bt_command_divert_stdout(const struct bt_output *output)
{
    int saved;

    if (!output->is_json)
        return -1;
    fflush(stdout);
    saved = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10);
    if (saved >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        bt_fd_close(&saved);
    return saved;
}

void bt_command_restore_stdout(int *saved)
{
    if (*saved < 0)
        return;
    fflush(stdout);
    dup2(*saved, STDOUT_FILENO);
    bt_fd_close(saved);
}

int bt_command_ask_orchestrator(struct bt_context *context, const char *environment, const char *path,
                                json_t **ret_document, struct bt_error *error)
{
    char key[BT_DIGEST_TEXT_SIZE];
    struct bt_infra_pair pair = {0};
    int r = bt_infra_status(&context->paths, environment, &pair, error);

    if (r == 0 && pair.orchestrator.keeper.pid == 0)
        r = bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOTCONN, "berth up starts it",
                    "the orchestrator does not run");
    if (r == 0)
        r = bt_infra_host_key(&context->paths, key, error);
    if (r < 0)
        return r;
    struct bt_orchestrator orchestrator = {pair.orchestrator.address, BT_ORCHESTRATOR_PORT, key};
    r = bt_orchestrator_get(&orchestrator, path, ret_document, error);
    explicit_bzero(key, sizeof(key));
    return r;
}
