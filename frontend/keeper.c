/* Entry of a keeper: reads its request, runs its kind, reports a failure to whoever started it. See keeper.h.
 */
#include "frontend/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "frontend/launch.h"

#define REQUEST_MAX (8UL * 1024 * 1024)

static int read_request(json_t **ret_request)
{
    struct bt_buffer text = {.limit = REQUEST_MAX};
    char chunk[8192];
    int result = 0;
    for (ssize_t got = 1; got != 0 && result == 0;) {
        got = read(BT_KEEPER_REQUEST_FD, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        result = got < 0 ? -errno : bt_buffer_add(&text, chunk, (size_t)got);
    }
    (void)close(BT_KEEPER_REQUEST_FD);
    json_t *request =
        result < 0 ? NULL : json_loadb(text.data == NULL ? "" : text.data, text.length, 0, NULL);
    explicit_bzero(chunk, sizeof chunk);
    bt_buffer_wipe(&text);
    if (!json_is_object(request)) {
        json_decref(request);
        return -EBADMSG;
    }
    *ret_request = request;
    return 0;
}

static void report_failure(struct bt_keeper *keeper, const struct bt_error *error)
{
    json_t *event = bt_control_pack_error(error); /* its members, and what kind of event it is */
    (void)json_object_set_new(event, "event", json_string("failed"));
    bt_auto_free char *text = event == NULL ? NULL : json_dumps(event, JSON_COMPACT);
    json_decref(event);
    (void)fprintf(stderr, "%s\n", error->message);
    if (keeper->progress_fd < 0 || text == NULL)
        return;
    size_t length = strlen(text);
    text[length] = '\n';
    if (bt_write_all(keeper->progress_fd, text, length + 1) < 0)
        (void)fprintf(stderr, "nobody is left to be told\n");
}

/* Its memory holds tokens and keys: no core file, and no other process of the user may look into it. */
static void harden(void)
{
    struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &none);
    (void)prctl(PR_SET_DUMPABLE, 0);
    (void)prctl(PR_SET_NAME, "berth-keeper");
}

static int run_kind(struct bt_keeper *keeper, struct bt_error *error)
{
    const char *kind = bt_keeper_text(keeper, "kind");
    const char *why;
    int result = bt_backend_select(bt_keeper_text(keeper, "backend"), &keeper->backend, &why, error);
    if (result == 0)
        result = bt_paths_load(&keeper->paths, error);
    if (result == 0)
        result = bt_state_open(&keeper->paths, &keeper->state, error);
    if (result < 0)
        return result;
    if (strcmp(kind, "agent") == 0) {
        keeper->role = BT_ROLE_AGENT;
        return bt_keeper_agent_run(keeper, error);
    }
    keeper->role = strcmp(kind, "gateway") == 0 ? BT_ROLE_GATEWAY : BT_ROLE_ORCHESTRATOR;
    return bt_keeper_infra_run(keeper, error);
}

int bt_keeper_main(void)
{
    struct bt_keeper keeper = {.progress_fd = BT_KEEPER_PROGRESS_FD,
                               .lock_fd = -1,
                               .helper = {.fd = -1},
                               .console = {.read_fd = -1, .write_fd = -1, .log_fd = -1}};
    struct bt_error error = {0};
    json_t *request = NULL;
    harden();
    (void)fcntl(BT_KEEPER_PROGRESS_FD, F_SETFD, FD_CLOEXEC);
    if (fcntl(BT_KEEPER_LOCK_FD, F_SETFD, FD_CLOEXEC) == 0)
        keeper.lock_fd = BT_KEEPER_LOCK_FD;
    if (read_request(&request) < 0 || bt_keeper_signals_open() < 0) {
        (void)fputs("berth: keeper is not a command for people: it is started by berth spawn and berth up\n",
                    stderr);
        json_decref(request);
        return BT_EXIT_USAGE;
    }
    keeper.request = request;
    keeper.folder = bt_keeper_text(&keeper, "folder");
    keeper.steps = json_array();
    int result = run_kind(&keeper, &error);
    if (result < 0)
        report_failure(&keeper, &error);
    bt_fd_close(&keeper.progress_fd);
    bt_state_close(keeper.state);
    json_decref(keeper.steps);
    json_decref(request);
    return result < 0 ? (int)error.status : BT_EXIT_OK;
}
