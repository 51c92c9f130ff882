/* The life of an agent, from its lease to its exit work. See keeper.h and keeper_agent.h. */
#include "frontend/keeper_agent.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "frontend/config.h"
#include "frontend/credentials.h"
#include "frontend/guest_environment.h"
#include "frontend/origin.h"
#include "vm/trust_stores.h"

#define CONNECT_DEADLINE_MS 120000
#define TOKEN_BYTES 32U
#define PROGRAM_MAX (64UL * 1024 * 1024)
#define STOP_GRACE_MS 3000
#define WATCH_MS 3000
#define PAIR_DEADLINE_MS 20000.0

enum { WATCH_ORCHESTRATOR, WATCH_GATEWAY, WATCH_RUNNER, WATCH_LAUNCHER };

/* ---- start ---- */

static int save_row(struct bt_keeper_agent *agent, struct bt_error *error)
{
    return bt_state_update(agent->keeper->state, &agent->row, error);
}

static char *random_text(void)
{
    char *text = bt_new(2 * TOKEN_BYTES + 1, 1);
    bt_random_hex(text, TOKEN_BYTES);
    return text;
}

static int make_secrets(struct bt_keeper_agent *agent, struct bt_guest_keys *keys, struct bt_error *error)
{
    int result = bt_guest_keys_make(keys, error);
    if (result < 0)
        return result;
    agent->secrets.private_key = bt_string_copy(keys->private_key);
    agent->secrets.host_public_key = bt_string_copy(keys->host_public_key);
    agent->secrets.token = random_text();
    agent->secrets.credential_key = random_text();
    agent->secrets.canary = random_text();
    return bt_agent_secrets_save(agent->keeper->folder, &agent->secrets, error);
}

/* The gateway may go while an agent starts: it died, or had to, with what a killed keeper left on an engine.
 */
static int launch(struct bt_keeper_agent *agent, const struct bt_guest_plan *plan, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    const struct timespec pause = {.tv_nsec = 250000000};
    double deadline_ms = bt_keeper_now_ms() + PAIR_DEADLINE_MS;
    int result = keeper->backend->launch(plan, &keeper->guest, error);
    while (result == -ENOTCONN && bt_keeper_now_ms() < deadline_ms) {
        (void)nanosleep(&pause, NULL); /* its own keeper has something to do first */
        *error = (struct bt_error){0};
        result = bt_keeper_pair_renew(agent, error);
        if (result == 0)
            result = keeper->backend->launch(plan, &keeper->guest, error);
    }
    return result;
}

static int boot(struct bt_keeper_agent *agent, const struct bt_guest_keys *keys,
                const struct bt_buffer *trust, int tap_fd, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    struct bt_image root;
    char probe_path[512];
    bt_auto_buffer probe = {0}, java_trust = {0};
    int result = bt_program_path("berth-probe", probe_path, error);
    if (result == 0)
        result = bt_file_read(probe_path, PROGRAM_MAX, &probe, error);
    if (result == 0)
        result =
            bt_guest_trust_jks(trust->data == NULL ? "" : trust->data, trust->length, &java_trust, error);
    if (result < 0)
        return result;
    struct bt_guest_file files[] = {
        {"bin/berth-probe", probe.data, probe.length, 0755},
        {"authorized_keys", keys->public_key, strlen(keys->public_key), 0400},
        {"dropbear_ed25519_host_key", keys->host_key.data, keys->host_key.length, 0400},
        {BT_GUEST_TRUST_PEM, trust->data == NULL ? "" : trust->data, trust->length, 0444},
        {BT_GUEST_TRUST_JKS, java_trust.data, java_trust.length, 0444},
    };
    result = bt_image_get(&keeper->paths, bt_keeper_text(keeper, "image"), false, NULL, &root, error);
    if (result < 0)
        return result;
    struct bt_guest_plan plan = {
        .role = BT_GUEST_AGENT,
        .identity = bt_keeper_identity(keeper, agent->row.name),
        .paths = &keeper->paths,
        .host_name = agent->row.name,
        .folder = keeper->folder,
        .root = &root,
        .memory_bytes = (uint64_t)bt_keeper_number(keeper, "memory_bytes"),
        .disk_bytes = (uint64_t)bt_keeper_number(keeper, "disk_bytes"),
        .cpus = (unsigned)bt_keeper_number(keeper, "cpus"),
        .is_gvisor = json_is_true(json_object_get(keeper->request, "is_gvisor")),
        .is_resumed = agent->is_resumed,
        .home_folder = bt_keeper_text(keeper, "home_folder"),
        .lease = &keeper->lease,
        .tap_fd = tap_fd,
        .files = files,
        .file_count = BT_ARRAY_LENGTH(files),
        .console_fd = keeper->console.write_fd,
    };
    memcpy(agent->row.image, root.digest, sizeof agent->row.image);
    double started = bt_keeper_now_ms();
    result = keeper->backend->prepare(&plan, error);
    bt_keeper_step(keeper, "disks", started);
    started = bt_keeper_now_ms();
    if (result == 0)
        result = launch(agent, &plan, error);
    bt_keeper_step(keeper, "machine", started);
    bt_fd_close(&keeper->console.write_fd);
    return result;
}

/* Lease, registration, machine: after this the guest boots. */
static int start_guest(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    struct bt_guest_keys keys = {0};
    bt_auto_buffer trust = {0};
    bt_auto_fd tap_fd = -1;
    double started = bt_keeper_now_ms();
    int result = make_secrets(agent, &keys, error);
    if (result == 0)
        result = bt_keeper_trust(keeper, true, &trust, error);
    bt_keeper_step(keeper, "keys", started);
    started = bt_keeper_now_ms();
    if (result == 0)
        result = bt_keeper_lease(keeper, &tap_fd, error);
    bt_keeper_step(keeper, "lease", started);
    started = bt_keeper_now_ms();
    if (result == 0)
        result = bt_keeper_pair_join(agent, error);
    bt_keeper_step(keeper, "register", started);
    if (result == 0)
        result = bt_keeper_console_open(keeper, error);
    if (result == 0)
        result = boot(agent, &keys, &trust, tap_fd, error);
    bt_guest_keys_free(&keys);
    agent->row.slot = result == 0 ? (int)keeper->lease.slot : -1;
    agent->row.generation = keeper->lease.generation;
    return result < 0 ? result : save_row(agent, error);
}

struct bt_guest_access bt_keeper_access(const struct bt_keeper_agent *agent)
{
    return (struct bt_guest_access){bt_keeper_identity(agent->keeper, agent->row.name),
                                    agent->keeper->lease.guest_address, agent->secrets.private_key,
                                    agent->secrets.host_public_key};
}

static int connect_guest(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    const struct bt_guest_access access = bt_keeper_access(agent);
    int result = keeper->backend->connect(&access, CONNECT_DEADLINE_MS,
                                          keeper->backend->end_fd(keeper->guest), &agent->link, error);
    return result == -ECANCELED ? bt_keeper_guest_ended(keeper, "starting", error) : result;
}

/* One timed step of the launch. */
static int timed(struct bt_keeper_agent *agent, const char *name,
                 int (*step)(struct bt_keeper_agent *, struct bt_error *), struct bt_error *error)
{
    double started = bt_keeper_now_ms();
    int result = step(agent, error);
    if (result == 0)
        bt_keeper_step(agent->keeper, name, started);
    if (result == 0 && agent->keeper->is_abandoned)
        result = bt_fail(error, BT_EXIT_ERROR, ECANCELED, NULL, "the launch was given up");
    return result;
}

static int prove_isolation(struct bt_keeper_agent *agent, struct bt_error *error)
{
    int result = bt_keeper_probe(agent, false, error);
    if (result < 0)
        (void)bt_error_prefix(error, "the sandbox is not proved to be closed, so the agent was not started");
    return result;
}

static int start(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    bt_keeper_note(keeper, "starting its guest", 0, 0);
    int result = start_guest(agent, error);
    if (result == 0 && !agent->is_resumed)
        result = timed(agent, "workspace-base", bt_keeper_workspace_prepare, error);
    if (result == 0)
        result = timed(agent, "boot", connect_guest, error);
    if (result == 0 && !agent->is_resumed)
        result = timed(agent, "workspace", bt_keeper_workspace_fill, error);
    if (result == 0 && bt_keeper_number(keeper, "probe_repeat") != BT_PROBE_OFF)
        bt_keeper_note(keeper, "trying every way out", 0, 0);
    if (result == 0)
        result = timed(agent, "probe", prove_isolation, error);
    if (result == 0)
        result = bt_control_listen(&keeper->paths, agent->row.id, &agent->control_fd, error);
    if (result == 0)
        result = bt_origin_save(keeper->folder, json_object_get(keeper->request, "origin"), error);
    if (result == 0)
        result = timed(agent, "command", bt_keeper_command_start, error);
    agent->row.status = BT_AGENT_RUNNING;
    if (result == 0)
        result = save_row(agent, error);
    /* A change tells agents that run; one that came earlier is found now. */
    return result < 0 ? result : bt_keeper_pair_catch_up(agent, error);
}

/* ---- answers to commands ---- */

static json_t *facts(const struct bt_keeper_agent *agent)
{
    const struct bt_keeper *keeper = agent->keeper;
    char address[BT_IPV4_TEXT_SIZE];
    char gateway_address[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(keeper->lease.guest_address, address);
    bt_ipv4_format(keeper->gateway_address, gateway_address);
    return json_pack("{s:s, s:s, s:O, s:s, s:i, s:i, s:s, s:O?, s:O}", "address", address, "gateway_address",
                     gateway_address, "environment", json_object_get(keeper->request, "own_environment"),
                     "interface", keeper->lease.interface_name, "vmm_pid",
                     (int)keeper->backend->process(keeper->guest), "slot", (int)keeper->lease.slot, "jail",
                     keeper->backend->jail(keeper->guest), "probe", agent->probe, "steps", keeper->steps);
}

/* {"credential": name}: that changed, so what is registered is brought up to date. */
static json_t *refresh(struct bt_keeper_agent *agent, const json_t *request, struct bt_error *error)
{
    const char *credential = json_string_value(json_object_get(request, "credential"));
    bool is_concerned = credential != NULL && bt_credential_is_used(agent->policy, credential);
    if (is_concerned && bt_keeper_pair_refresh(agent, error) < 0)
        return NULL;
    return json_pack("{s:b}", "is_concerned", is_concerned);
}

/* Answers one client. Returns true when the agent is to end ("finish"). */
static bool answer(struct bt_keeper_agent *agent, int client_fd)
{
    struct bt_error error = {0};
    json_t *request = NULL;
    bool is_finish = false;
    int result = bt_control_read(client_fd, &request);
    const char *verb = result < 0 ? "" : json_string_value(json_object_get(request, "verb"));
    json_t *reply = NULL;
    if (verb == NULL)
        verb = "";
    if (strcmp(verb, "facts") == 0) {
        reply = facts(agent);
    } else if (strcmp(verb, "probe") == 0) {
        /* A leak is the answer here, not a failure to answer. */
        (void)bt_keeper_probe(agent, true, &error);
        reply = agent->probe == NULL ? NULL : json_pack("{s:O}", "probe", agent->probe);
    } else if (strcmp(verb, "refresh") == 0) {
        reply = refresh(agent, request, &error);
    } else if (strcmp(verb, "collect") == 0) {
        result = bt_keeper_workspace_collect(agent, &error);
        reply = result < 0 ? NULL : json_pack("{s:b}", "has_patch", agent->has_patch);
    } else if (strcmp(verb, "finish") == 0) {
        agent->row.exit_status = (int)json_integer_value(json_object_get(request, "exit_status"));
        agent->finish_fd = client_fd; /* answered when the exit work is done */
        is_finish = true;
    } else {
        (void)bt_fail(&error, BT_EXIT_ERROR, EBADMSG, NULL, "the keeper does not know this request");
    }
    if (!is_finish) {
        bt_control_answer(client_fd,
                          reply != NULL ? reply : json_pack("{s:o}", "error", bt_control_pack_error(&error)));
        bt_fd_close(&client_fd);
    }
    json_decref(request);
    return is_finish;
}

/* ---- work ---- */

struct ending {
    enum bt_agent_status status;
    int exit_status;
    char detail[512];
};

static void runner_ended(struct bt_keeper_agent *agent, struct ending *ending)
{
    int status = 0;
    (void)waitpid(agent->runner_pid, &status, 0);
    agent->runner_pid = 0;
    bt_fd_close(&agent->runner_fd);
    ending->status = BT_AGENT_EXITED;
    ending->exit_status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Handles an event of the extra descriptors. Returns true when the agent is to end. */
static bool watched(struct bt_keeper_agent *agent, int index, struct ending *ending)
{
    struct bt_error error = {0};
    if (index == WATCH_RUNNER) {
        runner_ended(agent, ending);
        return true;
    }
    if (index == WATCH_LAUNCHER) {
        ending->status = BT_AGENT_STOPPED;
        (void)snprintf(ending->detail, sizeof ending->detail,
                       "the berth spawn that ran its command was ended, and the command with it");
        return true;
    }
    /* Without a pair the agent reaches nothing, which is safe; so a failure is tried again at the next tick.
     */
    if (bt_keeper_pair_renew(agent, &error) < 0) {
        (void)fprintf(stderr, "the infra pair is gone: %s\n", error.message);
        bt_fd_close(&agent->pair_fds[WATCH_ORCHESTRATOR]);
        bt_fd_close(&agent->pair_fds[WATCH_GATEWAY]);
    }
    return false;
}

static bool tick(struct bt_keeper_agent *agent, struct ending *ending)
{
    int status = 0;
    if (agent->pair_fds[WATCH_ORCHESTRATOR] < 0 || agent->pair_fds[WATCH_GATEWAY] < 0)
        (void)watched(agent, WATCH_GATEWAY, ending);
    if (json_is_array(json_object_get(agent->keeper->request, "command")))
        return false;
    if (bt_keeper_command_status(agent, &status) > 0)
        return false;
    ending->status = BT_AGENT_EXITED;
    ending->exit_status = status;
    return true;
}

static struct ending serve(struct bt_keeper_agent *agent)
{
    struct ending ending = {.exit_status = -1};
    for (;;) {
        struct bt_keeper_watch watch = {
            .control_fd = agent->control_fd,
            .extra_fds = {agent->pair_fds[WATCH_ORCHESTRATOR], agent->pair_fds[WATCH_GATEWAY],
                          agent->runner_fd, agent->launcher_fd},
            .timer_ms = WATCH_MS,
        };
        struct bt_error error = {0};
        int client_fd = -1;
        int index = 0;
        bool is_over = false;
        switch (bt_keeper_wait(agent->keeper, &watch, &client_fd, &index, &error)) {
        case BT_KEEPER_GUEST_ENDED:
            (void)bt_keeper_guest_ended(agent->keeper, "working", &error);
            ending.status = BT_AGENT_FAILED;
            is_over = true;
            break;
        case BT_KEEPER_LEASE_LOST:
            ending.status = BT_AGENT_FAILED;
            is_over = true;
            break;
        case BT_KEEPER_SIGNALLED:
            ending.status = BT_AGENT_STOPPED;
            is_over = true;
            break;
        case BT_KEEPER_CONTROL:
            is_over = answer(agent, client_fd);
            ending.status = BT_AGENT_EXITED;
            ending.exit_status = agent->row.exit_status;
            break;
        case BT_KEEPER_WATCHED:
            is_over = watched(agent, index, &ending);
            break;
        case BT_KEEPER_TIMER:
            is_over = tick(agent, &ending);
            break;
        }
        if (is_over) {
            if (error.message[0] != '\0')
                (void)snprintf(ending.detail, sizeof ending.detail, "%.511s", error.message);
            return ending;
        }
    }
}

/* ---- end ---- */

/* Whatever is still running for the agent is ended, and its changes are brought out while the guest still
 * lives. */
static void finish(struct bt_keeper_agent *agent, struct ending *ending)
{
    struct bt_keeper *keeper = agent->keeper;
    struct bt_error error = {0};
    if (agent->runner_pid > 0) {
        (void)kill(agent->runner_pid, SIGKILL);
        (void)waitpid(agent->runner_pid, NULL, 0);
    }
    if (ending->status != BT_AGENT_FAILED && bt_keeper_workspace_collect(agent, &error) < 0)
        (void)snprintf(ending->detail, sizeof ending->detail,
                       "the changes could not be brought out (they are on workspace.ext4 in %.160s): %.240s",
                       keeper->folder, error.message);
    bt_keeper_teardown(keeper, STOP_GRACE_MS);
    bt_keeper_pair_leave(agent);
    bt_control_remove(&keeper->paths, agent->row.id);
    if (bt_state_set_status(keeper->state, agent->row.id, ending->status, ending->exit_status, ending->detail,
                            &error) < 0)
        (void)fprintf(stderr, "%s\n", error.message);
    if (agent->finish_fd >= 0)
        bt_control_answer(agent->finish_fd,
                          json_pack("{s:b, s:s}", "has_patch", agent->has_patch, "detail", ending->detail));
}

/* A launch that failed leaves nothing but what is needed to find out why; of a resume that failed the starter
 * writes down why, and all is kept. */
static void undo(struct bt_keeper_agent *agent)
{
    struct bt_keeper *keeper = agent->keeper;
    bt_auto_free char *console = bt_string_format("%s/console.log", keeper->folder);
    bt_auto_free char *kept = bt_string_format("%s/failed-launch.log", keeper->paths.state);
    struct bt_error error = {0};
    bt_keeper_teardown(keeper, 0);
    bt_keeper_pair_leave(agent);
    bt_control_remove(&keeper->paths, agent->row.id);
    if (agent->is_resumed)
        return;
    const struct bt_guest_identity identity = bt_keeper_identity(keeper, agent->row.name);
    if (agent->row.name[0] != '\0' && keeper->backend->cleanup(&identity, true, &error) < 0)
        (void)fprintf(stderr, "%s\n", error.message);
    if (rename(console, kept) < 0 && errno != ENOENT)
        (void)fprintf(stderr, "cannot keep the console log: %s\n", strerror(errno));
    if (bt_tree_remove(keeper->folder, &error) < 0 ||
        bt_state_delete(keeper->state, agent->row.id, &error) < 0)
        (void)fprintf(stderr, "%s\n", error.message);
}

static void release(struct bt_keeper_agent *agent)
{
    agent->link = bt_guest_close(agent->link);
    bt_agent_secrets_free(&agent->secrets);
    bt_list_free(&agent->own_environment);
    explicit_bzero(agent->host_key, sizeof agent->host_key);
    json_decref(agent->probe);
    json_decref(agent->policy);
    bt_workspace_base_free(&agent->base);
    bt_fd_close(&agent->control_fd);
    bt_fd_close(&agent->finish_fd);
    bt_fd_close(&agent->runner_fd);
    bt_fd_close(&agent->launcher_fd);
}

static int begin(struct bt_keeper_agent *agent, struct bt_error *error)
{
    struct bt_keeper *keeper = agent->keeper;
    size_t index;
    const json_t *variable;
    agent->is_resumed = bt_keeper_flag(keeper, "is_resumed");
    json_array_foreach(json_object_get(keeper->request, "own_environment"), index, variable)
        bt_list_add(&agent->own_environment, json_string_value(variable));
    int result = bt_state_get(keeper->state, bt_keeper_number(keeper, "agent_id"), &agent->row, error);
    agent->policy = json_incref(json_object_get(keeper->request, "policy"));
    agent->launcher = agent->row.keeper; /* it reserved the name */
    if (result == 0 && bt_process_identify(getpid(), &agent->row.keeper) < 0)
        result = bt_fail(error, BT_EXIT_ERROR, ESRCH, NULL, "cannot identify the keeper's own process");
    if (result == 0)
        result = save_row(agent, error);
    if (result == 0)
        result = bt_infra_host_key(&keeper->paths, agent->host_key, error);
    return result < 0 ? result : start(agent, error);
}

int bt_keeper_agent_run(struct bt_keeper *keeper, struct bt_error *error)
{
    struct bt_keeper_agent agent = {.keeper = keeper,
                                    .pair_fds = {-1, -1},
                                    .launcher_fd = -1,
                                    .runner_fd = -1,
                                    .control_fd = -1,
                                    .finish_fd = -1};
    int result = begin(&agent, error);
    if (result < 0) {
        undo(&agent);
    } else {
        bt_keeper_ready(keeper, facts(&agent));
        struct ending ending = serve(&agent);
        finish(&agent, &ending);
    }
    release(&agent);
    return result;
}
