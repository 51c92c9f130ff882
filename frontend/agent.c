/* Acting on an agent that runs. See agent.h. */
#include "frontend/agent.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frontend/guest_environment.h"
#include "frontend/keeper.h"

#define CONNECT_DEADLINE_MS 10000
#define STOP_DEADLINE_MS 120000
#define WORKSPACE "/workspace"
#define DETACH_KEYS "\x10\x11"
#define COPY_OUT_MAX (1ULL << 40)

static int refuse_dead(const struct bt_agent *agent, struct bt_error *error)
{
    if (agent->status == BT_AGENT_RUNNING && bt_agent_is_live(agent))
        return 0;
    return bt_fail(error, BT_EXIT_NO_TARGET, ESRCH, "berth list shows what runs",
                   "the agent %s does not run: it is %s", agent->name,
                   bt_agent_status_name(bt_agent_status_now(agent)));
}

/* What the keeper wrote down for the owner's commands when the guest was ready. */
struct access {
    struct bt_agent_secrets secrets;
    struct bt_list own_environment; /* of the bottle */
    struct bt_guest_access access;
    const struct bt_backend *backend;
    uint32_t gateway_address;
};

static void access_free(struct access *access)
{
    bt_agent_secrets_free(&access->secrets);
    bt_list_free(&access->own_environment);
}

static int access_load(const struct bt_paths *paths, const struct bt_agent *agent, struct access *ret_access,
                       struct bt_error *error)
{
    struct access access = {0};
    json_t *facts = NULL;
    int result = refuse_dead(agent, error);
    if (result == 0)
        result = bt_control_call(paths, agent->id, json_pack("{s:s}", "verb", "facts"), &facts, error);
    if (result < 0)
        return result;
    const char *address = json_string_value(json_object_get(facts, "address"));
    const char *gateway_address = json_string_value(json_object_get(facts, "gateway_address"));
    const char *why;
    json_t *variables = json_object_get(facts, "environment");
    size_t index;
    json_t *variable;
    json_array_foreach(variables, index, variable)
        bt_list_add(&access.own_environment, json_string_value(variable));
    if (address == NULL || gateway_address == NULL || bt_ipv4_parse(address, &access.access.address) < 0 ||
        bt_ipv4_parse(gateway_address, &access.gateway_address) < 0)
        result = bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBADMSG, NULL, "the keeper of %s gave no address",
                         agent->name);
    json_decref(facts);
    if (result == 0)
        result = bt_backend_select(agent->backend, &access.backend, &why, error);
    if (result == 0)
        result = bt_agent_secrets_load(agent->folder, &access.secrets, error);
    if (result < 0)
        access_free(&access);
    if (result < 0)
        return result;
    access.access.identity =
        (struct bt_guest_identity){paths->state, agent->environment, BT_GUEST_AGENT, agent->name};
    access.access.private_key = access.secrets.private_key;
    access.access.host_public_key = access.secrets.host_public_key;
    *ret_access = access;
    return 0;
}

static int connect_with(const struct access *access, struct bt_guest_link **ret_link, struct bt_error *error)
{
    return access->backend->connect(&access->access, CONNECT_DEADLINE_MS, -1, ret_link, error);
}

static int connect_agent(const struct bt_paths *paths, const struct bt_agent *agent,
                         struct bt_guest_link **ret_link, struct bt_error *error)
{
    struct access access;
    int result = access_load(paths, agent, &access, error);
    if (result < 0)
        return result;
    result = connect_with(&access, ret_link, error);
    access_free(&access);
    return result;
}

static int pass_output(void *context, bool is_stderr, const char *data, size_t length)
{
    (void)context;
    return bt_write_all(is_stderr ? 2 : 1, data, length);
}

/* detach_keys: NULL when the command would die with the terminal, so that leaving it makes no sense. */
static int run_as_agent(const struct bt_paths *paths, const struct bt_agent *agent,
                        const char *const *command, bool is_terminal, const char *detach_keys,
                        int *ret_status, bool *ret_is_detached, struct bt_error *error)
{
    struct access access;
    struct bt_guest_link *link = NULL;
    bt_auto_list environment = {0};
    int result = access_load(paths, agent, &access, error);
    if (result < 0)
        return result;
    const char *terminal = is_terminal ? getenv("TERM") : NULL;
    bt_guest_environment(access.gateway_address, access.secrets.token, access.secrets.canary,
                         (const char *const *)access.own_environment.items,
                         is_terminal && terminal == NULL ? "xterm" : terminal, &environment);
    struct bt_guest_command request = {
        .arguments = command,
        .environment = (const char *const *)environment.items,
        .folder = WORKSPACE,
        .uid = BT_GUEST_AGENT_ID,
        .gid = BT_GUEST_AGENT_ID,
        .input_fd = 0,
        .on_output = pass_output,
    };
    result = connect_with(&access, &link, error);
    if (result == 0 && is_terminal)
        result = bt_guest_terminal(link, &request, detach_keys, ret_status, ret_is_detached, error);
    else if (result == 0)
        result = bt_guest_run(link, &request, ret_status, error);
    bt_guest_close(link);
    access_free(&access);
    return result;
}

int bt_agent_ask(const struct bt_paths *paths, const struct bt_agent *agent,
                 const struct bt_guest_command *question, size_t limit, struct bt_buffer *ret_output,
                 int *ret_status, struct bt_error *error)
{
    struct access access;
    struct bt_guest_link *link = NULL;
    bt_auto_list environment = {0};
    bt_auto_buffer errors = {0};
    struct bt_guest_command command = *question;
    int result = access_load(paths, agent, &access, error);
    if (result < 0)
        return result;
    bt_guest_environment(access.gateway_address, NULL, NULL,
                         (const char *const *)access.own_environment.items, NULL, &environment);
    command.environment = (const char *const *)environment.items;
    command.folder = WORKSPACE;
    command.uid = command.gid = BT_GUEST_AGENT_ID;
    command.input_fd = -1;
    result = connect_with(&access, &link, error);
    if (result == 0)
        result = bt_guest_run_collect(link, &command, limit, ret_output, &errors, ret_status, error);
    bt_guest_close(link);
    access_free(&access);
    return result;
}

int bt_agent_exec(const struct bt_paths *paths, const struct bt_agent *agent, const char *const *command,
                  bool is_terminal, int *ret_status, struct bt_error *error)
{
    bool is_detached = false;
    int status = 0;
    int result = run_as_agent(paths, agent, command, is_terminal, NULL, &status, &is_detached, error);
    if (result == 0 && is_detached)
        result = bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "the terminal went away, and the command with it");
    if (result == 0)
        *ret_status = status;
    return result;
}

/* tmux's own keys (ctrl-b d) leave its session too; so does what ends its client only. */
static bool has_terminal(const struct bt_paths *paths, const struct bt_agent *agent)
{
    static const char *const question[] = {"sh", "-c", "tmux has-session -t agent 2>/dev/null", NULL};
    struct bt_error error = {0};
    bool is_detached = false;
    int status = 1;
    return run_as_agent(paths, agent, question, false, NULL, &status, &is_detached, &error) == 0 &&
           status == 0;
}

int bt_agent_attach(const struct bt_paths *paths, const struct bt_agent *agent, bool *ret_is_detached,
                    struct bt_error *error)
{
    /* A terminal that the guest's terminfo does not know, or that cannot even clear its screen, would be
     * refused by tmux: most are much like xterm. */
    static const char *const command[] = {"sh", "-c",
                                          "tput clear >/dev/null 2>&1 || TERM=xterm-256color; export TERM; "
                                          "exec tmux new-session -A -s agent",
                                          NULL};
    bool is_detached = false;
    int status = 0;
    int result = run_as_agent(paths, agent, command, true, DETACH_KEYS, &status, &is_detached, error);
    if (result == 0)
        *ret_is_detached = is_detached || has_terminal(paths, agent);
    return result;
}

static int call(const struct bt_paths *paths, const struct bt_agent *agent, const char *verb,
                json_t **ret_answer, struct bt_error *error)
{
    int result = refuse_dead(agent, error);
    return result < 0
               ? result
               : bt_control_call(paths, agent->id, json_pack("{s:s}", "verb", verb), ret_answer, error);
}

int bt_agent_await_end(const struct bt_agent *agent)
{
    bt_auto_fd keeper_fd = -1;
    if (bt_process_open(&agent->keeper, &keeper_fd) < 0)
        return 0;
    struct pollfd ended = {keeper_fd, POLLIN, 0};
    return poll(&ended, 1, STOP_DEADLINE_MS) > 0 ? 0 : -ETIMEDOUT;
}

int bt_agent_stop(const struct bt_agent *agent, struct bt_error *error)
{
    bt_auto_fd keeper_fd = -1;
    if (!bt_agent_is_live(agent) || bt_process_open(&agent->keeper, &keeper_fd) < 0)
        return refuse_dead(agent, error);
    struct pollfd ended = {keeper_fd, POLLIN, 0};
    if (syscall(SYS_pidfd_send_signal, keeper_fd, SIGTERM, NULL, 0) < 0 ||
        poll(&ended, 1, STOP_DEADLINE_MS) <= 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ETIMEDOUT, "see keeper.log in the agent's folder",
                       "the keeper of %s (process %d) does not end", agent->name, (int)agent->keeper.pid);
    return 0;
}

int bt_agent_probe(const struct bt_paths *paths, const struct bt_agent *agent, json_t **ret_result,
                   struct bt_error *error)
{
    json_t *answer = NULL;
    int result = call(paths, agent, "probe", &answer, error);
    if (result < 0)
        return result;
    *ret_result = json_incref(json_object_get(answer, "probe"));
    json_decref(answer);
    return 0;
}

int bt_agent_refresh(const struct bt_paths *paths, const struct bt_agent *agent, const char *credential,
                     bool *ret_is_concerned, struct bt_error *error)
{
    json_t *request = json_pack("{s:s, s:s}", "verb", "refresh", "credential", credential);
    json_t *answer = NULL;
    int result = bt_control_call(paths, agent->id, request, &answer, error);
    if (result < 0)
        return result;
    *ret_is_concerned = json_is_true(json_object_get(answer, "is_concerned"));
    json_decref(answer);
    return 0;
}

int bt_agent_collect(const struct bt_paths *paths, const struct bt_agent *agent, struct bt_error *error)
{
    json_t *answer = NULL;
    int result = call(paths, agent, "collect", &answer, error);
    json_decref(answer);
    return result;
}

static char *guest_path_of(const char *path)
{
    return path[0] == '/' ? bt_string_copy(path) : bt_string_format(WORKSPACE "/%s", path);
}

int bt_agent_copy_in(const struct bt_paths *paths, const struct bt_agent *agent, const char *host_path,
                     const char *guest_path, struct bt_error *error)
{
    struct bt_guest_link *link = NULL;
    bt_auto_free char *full_path = guest_path_of(guest_path);
    int result = connect_agent(paths, agent, &link, error);
    if (result == 0)
        result = bt_guest_copy_in(link, host_path, full_path, BT_GUEST_AGENT_ID, BT_GUEST_AGENT_ID, error);
    bt_guest_close(link);
    return result;
}

int bt_agent_copy_out(const struct bt_paths *paths, const struct bt_agent *agent, const char *guest_path,
                      const char *host_path, struct bt_error *error)
{
    struct bt_guest_link *link = NULL;
    bt_auto_free char *full_path = guest_path_of(guest_path);
    int result = connect_agent(paths, agent, &link, error);
    if (result == 0)
        result = bt_guest_copy_out(link, full_path, host_path, COPY_OUT_MAX, error);
    bt_guest_close(link);
    return result;
}
