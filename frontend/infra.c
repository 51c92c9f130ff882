/* The infra pair: started or adopted under a lock. See infra.h. */
#include "frontend/infra.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backends/backend.h"
#include "frontend/config.h"
#include "frontend/keeper.h"
#include "frontend/resolvers.h"
#include "frontend/sweep.h"
#include "policy/client/orchestrator_client.h"

#define HEALTH_DEADLINE_MS 3000
#define GATEWAY_DEADLINE_MS 30000
#define STOP_DEADLINE_MS 10000
#define KEY_BYTES 32U
#define BACKEND_NAME_MAX 32U

static const char *const roles[] = {"orchestrator", "gateway"};

/* Everything that one `up` works with. */
struct up {
    const struct bt_paths *paths;
    const struct bt_config *config;
    const char *environment;
    const struct bt_backend *backend;
    const struct bt_progress *progress;
    int lock_fd;
    unsigned environment_number;
    struct bt_state *state;
    char host_key[BT_DIGEST_TEXT_SIZE];
    char gateway_secret[BT_DIGEST_TEXT_SIZE];
    struct bt_list resolvers;
    struct bt_infra_pair pair;
};

/* A new key, unless somebody else was first: the link is made only where nothing is yet. */
static int make_key(const char *path, struct bt_error *error)
{
    char key[BT_DIGEST_TEXT_SIZE];
    bt_auto_free char *own = bt_string_format("%s.%d", path, (int)getpid());
    bt_random_hex(key, KEY_BYTES);
    int result = bt_file_write(own, key, 2 * KEY_BYTES, 0600, error);
    explicit_bzero(key, sizeof key);
    if (result == 0 && link(own, path) < 0 && errno != EEXIST)
        result = bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot create %s: %s", path, strerror(errno));
    (void)unlink(own);
    return result;
}

/* Reads a file of 64 hex digits, making it when it is absent. */
static int key_file(const char *path, char ret_key[BT_DIGEST_TEXT_SIZE], struct bt_error *error)
{
    struct bt_buffer text = {0};
    int result = access(path, F_OK) < 0 && errno == ENOENT ? make_key(path, error) : 0;
    if (result == 0)
        result = bt_file_read(path, 2 * KEY_BYTES, &text, error);
    if (result == 0 &&
        (text.length != 2 * KEY_BYTES || strspn(text.data, "0123456789abcdef") != 2 * KEY_BYTES))
        result = bt_fail(error, BT_EXIT_ERROR, EBADMSG, "remove it after berth down; a new one is made",
                         "%s is damaged", path);
    if (result == 0)
        memcpy(ret_key, text.data, BT_DIGEST_TEXT_SIZE);
    bt_buffer_wipe(&text);
    return result;
}

int bt_infra_host_key(const struct bt_paths *paths, char ret_key[BT_DIGEST_TEXT_SIZE], struct bt_error *error)
{
    bt_auto_free char *path = bt_string_format("%s/host.key", paths->state);
    int result = bt_folder_make(paths->state, 0700, error);
    return result < 0 ? result : key_file(path, ret_key, error);
}

static void report(const struct bt_progress *progress, const char *step)
{
    if (progress != NULL && progress->report != NULL)
        progress->report(progress->context, step, 0, 0);
}

/* Keepers of a pair that is being started hold the lock too, also when the command that started them is gone:
 * whoever comes next adopts that pair instead of starting another beside it. */
int bt_infra_lock(const struct bt_paths *paths, const char *environment, const struct bt_progress *progress,
                  int *ret_fd, struct bt_error *error)
{
    bt_auto_free char *folder = bt_string_format("%s/env/%s", paths->state, environment);
    bt_auto_free char *path = bt_string_format("%s/infra.lock", folder);
    int result = bt_folder_make(folder, 0700, error);
    if (result < 0)
        return result;
    bt_auto_fd fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && (result = flock(fd, LOCK_EX | LOCK_NB)) < 0 && errno == EWOULDBLOCK) {
        report(progress, "waiting for the orchestrator and the gateway that are being started or stopped");
        while ((result = flock(fd, LOCK_EX)) < 0 && errno == EINTR)
            continue;
    }
    if (fd < 0 || result < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot lock %s: %s", path, strerror(errno));
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

static struct bt_infra *member(struct bt_infra_pair *pair, size_t index)
{
    return index == 0 ? &pair->orchestrator : &pair->gateway;
}

static int read_pair(struct bt_state *state, const char *environment, struct bt_infra_pair *ret_pair,
                     struct bt_error *error)
{
    struct bt_infra_pair pair = {0};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(roles); i++) {
        struct bt_infra *row = member(&pair, i);
        int result = bt_state_infra_get(state, environment, roles[i], row, error);
        if (result < 0 && result != -ENOENT)
            return result;
        if (result == -ENOENT || !bt_process_is_alive(&row->keeper))
            *row = (struct bt_infra){0};
    }
    *ret_pair = pair;
    return 0;
}

/* SIGTERM to the keeper, and SIGKILL when it does not end in time. */
static void stop_keeper(const struct bt_process *keeper)
{
    bt_auto_fd fd = -1;
    if (keeper->pid == 0 || bt_process_open(keeper, &fd) < 0)
        return;
    struct pollfd ended = {fd, POLLIN, 0};
    (void)syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0);
    if (poll(&ended, 1, STOP_DEADLINE_MS) == 0)
        (void)syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    (void)poll(&ended, 1, STOP_DEADLINE_MS);
}

static struct bt_orchestrator orchestrator_of(const struct up *up)
{
    return (struct bt_orchestrator){up->pair.orchestrator.address, BT_ORCHESTRATOR_PORT, up->host_key};
}

/* What is recorded as running but does not answer is ended, so that its slot is free for a new one. */
static void drop_unhealthy(struct up *up)
{
    struct bt_orchestrator orchestrator = orchestrator_of(up);
    if (up->pair.orchestrator.keeper.pid == 0 && !up->backend->is_pair_in_turn)
        return;
    if (up->pair.orchestrator.keeper.pid == 0 ||
        bt_orchestrator_wait(&orchestrator, HEALTH_DEADLINE_MS, -1, NULL) < 0) {
        stop_keeper(&up->pair.orchestrator.keeper);
        up->pair.orchestrator = (struct bt_infra){0};
        if (up->backend->is_pair_in_turn) { /* attached to the network of the one that is gone */
            stop_keeper(&up->pair.gateway.keeper);
            up->pair.gateway = (struct bt_infra){0};
        }
    } else if (up->pair.gateway.keeper.pid != 0 &&
               bt_orchestrator_wait_gateway(&orchestrator, HEALTH_DEADLINE_MS, -1, NULL) < 0) {
        stop_keeper(&up->pair.gateway.keeper);
        up->pair.gateway = (struct bt_infra){0};
    }
}

static json_t *list_to_json(const struct bt_list *list)
{
    json_t *array = json_array();
    for (size_t i = 0; i < list->count; i++)
        (void)json_array_append_new(array, json_string(list->items[i]));
    return array;
}

static int start_member(struct up *up, size_t index, struct bt_keeper_handle *ret_handle,
                        struct bt_error *error)
{
    bt_auto_free char *folder =
        bt_string_format("%s/env/%s/%s", up->paths->state, up->environment, roles[index]);
    int result = bt_folder_make(folder, 0700, error);
    if (result < 0)
        return result;
    json_t *request =
        json_pack("{s:s, s:s, s:s, s:I, s:i, s:s, s:s, s:s, s:s, s:o, s:o, s:s?, s:I, s:I}", "backend",
                  up->backend->name, "kind", roles[index], "environment", up->environment,
                  "orchestrator_address", (json_int_t)up->pair.orchestrator.address, "environment_number",
                  (int)up->environment_number, "folder", folder, "helper_socket", up->config->helper_socket,
                  "host_key", up->host_key, "gateway_secret", up->gateway_secret, "resolvers",
                  list_to_json(&up->resolvers), "trust", list_to_json(&up->config->trust), "parent_proxy",
                  up->config->parent_proxy, "idle_stop_seconds", (json_int_t)up->config->idle_stop_seconds,
                  "approval_seconds", (json_int_t)up->config->approval_seconds);
    result = bt_keeper_start(request, up->lock_fd, ret_handle, error);
    json_decref(request);
    return result;
}

static int follow_member(const struct up *up, size_t index, struct bt_keeper_handle *handle,
                         struct bt_error *error)
{
    json_t *facts = NULL;
    int result = bt_keeper_follow(handle, up->progress, NULL, &facts, error);
    json_decref(facts);
    return result < 0 ? bt_error_prefix(error, "the %s does not start", roles[index]) : 0;
}

/* The orchestrator, answering, before its gateway. */
static int start_in_turn(struct up *up, struct bt_error *error)
{
    struct bt_keeper_handle handle;
    int result = 0;
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(roles); i++) {
        if (member(&up->pair, i)->keeper.pid != 0)
            continue;
        result = start_member(up, i, &handle, error);
        if (result == 0)
            result = follow_member(up, i, &handle, error);
        if (result == 0)
            result = read_pair(up->state, up->environment, &up->pair, error);
    }
    return result;
}

/* Both boot at the same time: a gateway waits for its orchestrator by itself. */
static int start_missing(struct up *up, struct bt_error *error)
{
    struct bt_keeper_handle handles[BT_ARRAY_LENGTH(roles)];
    bool is_started[BT_ARRAY_LENGTH(roles)] = {false, false};
    int result = 0;
    for (size_t i = 0; result == 0 && i < BT_ARRAY_LENGTH(roles); i++) {
        if (member(&up->pair, i)->keeper.pid != 0)
            continue;
        result = start_member(up, i, &handles[i], error);
        is_started[i] = result == 0;
    }
    for (size_t i = 0; i < BT_ARRAY_LENGTH(roles); i++) {
        if (!is_started[i])
            continue;
        struct bt_error own = {0};
        int followed = follow_member(up, i, &handles[i], &own);
        if (followed < 0 && result == 0) {
            result = followed;
            *error = own;
        }
    }
    return result < 0 ? result : read_pair(up->state, up->environment, &up->pair, error);
}

/* Nobody is given a backend with a warning without having asked for it: a spawn asks, and says which. */
static int choose_backend(const struct up *up, const struct bt_backend **ret_backend, struct bt_error *error)
{
    const char *why;
    int result = bt_backend_select(up->config->backend, ret_backend, &why, error);
    if (result == 0 && up->config->backend == NULL && (*ret_backend)->warning != NULL)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EPERM,
                       "write it into config.yaml if you want that, or name it to berth spawn",
                       "only the backend %s can run here (%s), which has to be asked for: %s",
                       (*ret_backend)->name, why, (*ret_backend)->warning);
    return result;
}

/* $STATE/env/<environment>/backend: what the pair was last started on. */
static char *backend_path(const struct bt_paths *paths, const char *environment)
{
    return bt_string_format("%s/env/%s/backend", paths->state, environment);
}

/* *ret_backend stays as it is where none was started yet. */
static int read_backend(const char *path, const struct bt_backend **ret_backend, struct bt_error *error)
{
    bt_auto_buffer name = {0};
    const char *why;
    int result = access(path, F_OK) == 0 ? bt_file_read(path, BACKEND_NAME_MAX, &name, error) : 0;
    return result == 0 && name.length > 0 ? bt_backend_select(name.data, ret_backend, &why, error) : result;
}

/* A pair that lives decides. */
static int settle_backend(struct up *up, struct bt_error *error)
{
    bt_auto_free char *path = backend_path(up->paths, up->environment);
    bool is_live = up->pair.orchestrator.keeper.pid != 0 || up->pair.gateway.keeper.pid != 0;
    const struct bt_backend *own = NULL;
    int result = is_live ? read_backend(path, &own, error) : 0;
    bool is_decided = own != NULL;
    if (result == 0 && up->backend == NULL)
        result = own != NULL ? 0 : choose_backend(up, &own, error);
    if (result != 0)
        return result;
    if (up->backend == NULL)
        up->backend = own;
    if (up->backend == NULL)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ENOENT, "name one with --backend",
                       "no backend was chosen");
    if (is_decided && up->backend != own)
        return bt_fail(
            error, BT_EXIT_INFRASTRUCTURE, EBUSY,
            "use that backend, run berth down first, or take another environment (-E NAME)",
            "the infra pair of the environment %s runs on the backend %s, which %s agents cannot use",
            up->environment, own->name, up->backend->name);
    return is_live ? 0 : bt_file_write(path, up->backend->name, strlen(up->backend->name), 0600, error);
}

static int bring_up(struct up *up, struct bt_error *error)
{
    bt_auto_free char *secret_path =
        bt_string_format("%s/env/%s/gateway.secret", up->paths->state, up->environment);
    int result = bt_state_environment(up->state, up->environment, &up->environment_number, error);
    if (result == 0)
        result = bt_infra_host_key(up->paths, up->host_key, error);
    if (result == 0)
        result = key_file(secret_path, up->gateway_secret, error);
    if (result == 0)
        result = read_pair(up->state, up->environment, &up->pair, error);
    if (result == 0)
        result = settle_backend(up, error);
    if (result < 0)
        return result;
    drop_unhealthy(up);
    bt_sweep(up->paths, up->state, up->environment, up->backend);
    if (up->pair.orchestrator.keeper.pid != 0 && up->pair.gateway.keeper.pid != 0)
        return 0;
    result = bt_keeper_helper_answers(up->config->helper_socket, error);
    if (result == 0)
        result = bt_resolvers_find(&up->config->resolvers, &up->resolvers, error);
    if (result == 0)
        result = up->backend->provide(up->paths, "infra", up->progress, error);
    if (result < 0)
        return result;
    report(up->progress, "starting the orchestrator and the gateway");
    result = up->backend->is_pair_in_turn ? start_in_turn(up, error) : start_missing(up, error);
    struct bt_orchestrator orchestrator = orchestrator_of(up);
    if (result == 0)
        result = bt_orchestrator_wait_gateway(&orchestrator, GATEWAY_DEADLINE_MS, -1, error);
    return result;
}

int bt_infra_up(const struct bt_paths *paths, const struct bt_config *config, const char *environment,
                const struct bt_backend *backend, const struct bt_progress *progress,
                struct bt_infra_pair *ret_pair, struct bt_error *error)
{
    struct up up = {.paths = paths,
                    .config = config,
                    .environment = environment,
                    .backend = backend,
                    .progress = progress};
    bt_auto_fd lock_fd = -1;
    int result = bt_infra_lock(paths, environment, progress, &lock_fd, error);
    up.lock_fd = lock_fd;
    if (result == 0)
        result = bt_state_open(paths, &up.state, error);
    if (result == 0)
        result = bring_up(&up, error);
    if (result == 0)
        *ret_pair = up.pair;
    bt_list_free(&up.resolvers);
    bt_state_close(up.state);
    explicit_bzero(up.host_key, sizeof up.host_key);
    explicit_bzero(up.gateway_secret, sizeof up.gateway_secret);
    return result;
}

int bt_infra_status(const struct bt_paths *paths, const char *environment, struct bt_infra_pair *ret_pair,
                    struct bt_error *error)
{
    struct bt_state *state = NULL;
    int result = bt_state_open(paths, &state, error);
    if (result == 0)
        result = read_pair(state, environment, ret_pair, error);
    bt_state_close(state);
    return result;
}

static int refuse_live_agents(struct bt_state *state, const char *environment, struct bt_error *error)
{
    struct bt_agent *agents = NULL;
    size_t count = 0;
    size_t live = 0;
    int result = bt_state_list(state, environment, &agents, &count, error);
    for (size_t i = 0; result == 0 && i < count; i++)
        live += bt_agent_is_live(&agents[i]) ? 1 : 0;
    free(agents);
    if (result == 0 && live > 0)
        return bt_fail(error, BT_EXIT_INFRASTRUCTURE, EBUSY,
                       "stop them (berth list, berth stop), or use --force",
                       "%zu agent%s of the environment %s would lose the network", live, live == 1 ? "" : "s",
                       environment);
    return result;
}

/* A backend that cannot be told does not keep anything from ending. */
static void sweep_own(const struct bt_paths *paths, struct bt_state *state, const char *environment)
{
    bt_auto_free char *path = backend_path(paths, environment);
    const struct bt_backend *backend = NULL;
    struct bt_error error = {0};
    if (read_backend(path, &backend, &error) == 0 && backend != NULL)
        bt_sweep(paths, state, environment, backend);
}

int bt_infra_down(const struct bt_paths *paths, const char *environment, bool is_forced,
                  const struct bt_progress *progress, struct bt_error *error)
{
    struct bt_state *state = NULL;
    struct bt_infra_pair pair;
    bt_auto_fd lock_fd = -1;
    int result = bt_infra_lock(paths, environment, progress, &lock_fd, error);
    if (result == 0)
        result = bt_state_open(paths, &state, error);
    if (result == 0 && !is_forced)
        result = refuse_live_agents(state, environment, error);
    if (result == 0)
        result = read_pair(state, environment, &pair, error);
    if (result == 0) {
        stop_keeper(&pair.gateway.keeper);
        stop_keeper(&pair.orchestrator.keeper);
        sweep_own(paths, state, environment);
    }
    bt_state_close(state);
    return result;
}
