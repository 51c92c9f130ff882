/* What an agent does: its harness in a terminal of the guest, or its command: in a child of the keeper, or
 * driven by the launcher when it is in the foreground. See keeper_agent.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frontend/guest_environment.h"
#include "frontend/keeper_agent.h"

#define CONNECT_DEADLINE_MS 10000
#define OUTPUT_LOG_MAX (64LL * 1024 * 1024)
#define NO_SESSION 1 /* tmux's status for it */

static void environment_of(struct bt_keeper_agent *agent, const char *terminal,
                           struct bt_list *ret_environment)
{
    bt_guest_environment(agent->keeper->gateway_address, agent->secrets.token, agent->secrets.canary,
                         (const char *const *)agent->own_environment.items, terminal, ret_environment);
}

struct output_log {
    int fd;
    long long written;
};

/* A bounded log: an agent that writes without end must not fill the host's disk. */
static int write_log(void *context, bool is_stderr, const char *data, size_t length)
{
    struct output_log *log = context;
    (void)is_stderr;
    if (log->written >= OUTPUT_LOG_MAX)
        return 0;
    log->written += (long long)length;
    int result = bt_write_all(log->fd, data, length);
    if (log->written >= OUTPUT_LOG_MAX && result == 0)
        result = bt_write_all(log->fd, "\n[the rest is not kept]\n", 24);
    return result;
}

/* In the child: a connection of its own, the command, its exit status. */
static int run_command(struct bt_keeper_agent *agent, int log_fd)
{
    struct bt_error error = {0};
    struct bt_guest_link *link = NULL;
    bt_auto_list arguments = {0};
    bt_auto_list environment = {0};
    struct output_log log = {log_fd, 0};
    const struct bt_guest_access access = bt_keeper_access(agent);
    size_t index;
    const json_t *word;
    int status = 127;
    json_array_foreach(json_object_get(agent->keeper->request, "command"), index, word)
        bt_list_add(&arguments, json_string_value(word));
    environment_of(agent, NULL, &environment);
    struct bt_guest_command command = {
        .arguments = (const char *const *)arguments.items,
        .environment = (const char *const *)environment.items,
        .folder = BT_AGENT_WORKSPACE,
        .uid = BT_GUEST_AGENT_ID,
        .gid = BT_GUEST_AGENT_ID,
        .input_fd = -1,
        .on_output = write_log,
        .context = &log,
    };
    if (agent->keeper->backend->connect(&access, CONNECT_DEADLINE_MS, -1, &link, &error) < 0 ||
        bt_guest_run(link, &command, &status, &error) < 0)
        (void)dprintf(log_fd, "berth: %s\n", error.message);
    bt_guest_close(link);
    return status;
}

/* The child must hold neither the lease (a lease is its connection) nor the control socket. */
static int start_runner(struct bt_keeper_agent *agent, struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/output.log", agent->keeper->folder);
    bt_auto_fd log_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot create %s: %s", path, strerror(errno));
    pid_t keeper = getpid();
    pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != keeper)
            _exit(127);
        bt_fd_close(&agent->keeper->helper.fd);
        bt_fd_close(&agent->control_fd);
        bt_fd_close(&agent->keeper->progress_fd);
        _exit(run_command(agent, log_fd));
    }
    agent->runner_fd = child < 0 ? -1 : (int)syscall(SYS_pidfd_open, child, 0);
    if (agent->runner_fd < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot start the agent's command: %s",
                       strerror(errno));
    (void)fcntl(agent->runner_fd, F_SETFD, FD_CLOEXEC);
    agent->runner_pid = child;
    return 0;
}

static int run_as_agent(struct bt_keeper_agent *agent, const char *const *arguments, int *ret_status,
                        struct bt_error *error)
{
    bt_auto_list environment = {0};
    bt_auto_buffer output = {0};
    bt_auto_buffer errors = {0};
    environment_of(agent, "xterm-256color", &environment);
    struct bt_guest_command command = {
        .arguments = arguments,
        .environment = (const char *const *)environment.items,
        .folder = BT_AGENT_WORKSPACE,
        .uid = BT_GUEST_AGENT_ID,
        .gid = BT_GUEST_AGENT_ID,
        .input_fd = -1,
    };
    return bt_guest_run_collect(agent->link, &command, 65536, &output, &errors, ret_status, error);
}

/* What runs in it ends it: the harness, or without words the user's shell. */
static int start_terminal(struct bt_keeper_agent *agent, struct bt_error *error)
{
    static const char *const session[] = {"tmux", "new-session", "-d", "-s", "agent",
                                          "-x",   "200",         "-y", "50"};
    bt_auto_list words = {0};
    size_t index;
    const json_t *word;
    int status = 0;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(session); i++)
        bt_list_add(&words, session[i]);
    json_array_foreach(json_object_get(agent->keeper->request, "terminal"), index, word)
        bt_list_add(&words, json_string_value(word));
    int result = run_as_agent(agent, (const char *const *)words.items, &status, error);
    if (result == 0 && status != 0)
        result = bt_fail(error, BT_EXIT_ERROR, EIO, "the image must have tmux",
                         "the agent's terminal does not start (tmux ended with status %d)", status);
    return result;
}

int bt_keeper_command_start(struct bt_keeper_agent *agent, struct bt_error *error)
{
    bool has_command = json_is_array(json_object_get(agent->keeper->request, "command"));
    if (has_command && bt_keeper_flag(agent->keeper, "is_background"))
        return start_runner(agent, error);
    if (has_command)
        return bt_process_open(&agent->launcher, &agent->launcher_fd) == 0
                   ? 0
                   : bt_fail(error, BT_EXIT_ERROR, ECANCELED, NULL, "the launch was given up");
    return start_terminal(agent, error);
}

int bt_keeper_command_status(struct bt_keeper_agent *agent, int *ret_exit_status)
{
    static const char *const question[] = {"tmux", "has-session", "-t", "agent", NULL};
    struct bt_error error = {0};
    int status = 0;
    int result = run_as_agent(agent, question, &status, &error);
    if (result < 0) {
        (void)fprintf(stderr, "cannot ask whether the agent's terminal lives: %s\n", error.message);
        return 1; /* the guest's end, if it is one, is told by other means */
    }
    /* Another status is no answer: an agent that took all processes or memory lets nobody ask. */
    if (status != NO_SESSION)
        return 1;
    *ret_exit_status = 0;
    return 0;
}
