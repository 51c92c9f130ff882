/* What all keepers share: the lease, the console, the guest. See keeper.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "frontend/keeper.h"

#define CONSOLE_LOG_MAX (1024U * 1024U)

double bt_keeper_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1000.0 + (double)now.tv_nsec / 1e6;
}

const char *bt_keeper_text(const struct bt_keeper *keeper, const char *key)
{
    return json_string_value(json_object_get(keeper->request, key));
}

int64_t bt_keeper_number(const struct bt_keeper *keeper, const char *key)
{
    return json_integer_value(json_object_get(keeper->request, key));
}

bool bt_keeper_flag(const struct bt_keeper *keeper, const char *key)
{
    return json_is_true(json_object_get(keeper->request, key));
}

static void send_event(struct bt_keeper *keeper, json_t *event)
{
    bt_auto_free char *text = event == NULL ? NULL : json_dumps(event, JSON_COMPACT);
    json_decref(event);
    if (text == NULL || keeper->progress_fd < 0)
        return;
    size_t length = strlen(text);
    text[length] = '\n'; /* takes the NUL's place */
    if (bt_write_all(keeper->progress_fd, text, length + 1) < 0) {
        bt_fd_close(&keeper->progress_fd);
        keeper->is_abandoned = true;
    }
}

void bt_keeper_step(struct bt_keeper *keeper, const char *name, double started_ms)
{
    double took = bt_keeper_now_ms() - started_ms;
    json_t *step = json_pack("{s:s, s:f}", "step", name, "ms", took);
    (void)json_array_append_new(keeper->steps, step);
    send_event(keeper, json_pack("{s:s, s:s, s:f}", "event", "step", "step", name, "ms", took));
}

void bt_keeper_note(struct bt_keeper *keeper, const char *text, uint64_t done, uint64_t total)
{
    send_event(keeper, json_pack("{s:s, s:s, s:I, s:I}", "event", "note", "text", text, "done",
                                 (json_int_t)done, "total", (json_int_t)total));
}

void bt_keeper_ready(struct bt_keeper *keeper, json_t *facts)
{
    (void)json_object_set_new(facts, "event", json_string("ready"));
    send_event(keeper, facts);
    bt_fd_close(&keeper->progress_fd);
}

static int helper_failure(int code, const char *doing, struct bt_error *error)
{
    const char *hint = "see berth doctor";
    if (code == ENOENT || code == ECONNREFUSED)
        hint = "the helper is not running: an administrator starts it with systemctl start "
               "berth-helper.socket, or "
               "berth-helper listen";
    else if (code == EACCES || code == EPERM)
        hint = "ask an administrator to add you to the group berth, then log in again";
    else if (code == EDQUOT)
        hint = "stop an agent (berth list), or ask an administrator to raise slots_per_uid";
    else if (code == ENOSPC)
        hint =
            "all slots of this machine are taken: stop an agent, or ask an administrator for a larger pool";
    else if (code == EIO)
        hint = "the kernel refused the helper, whose log says what; often /dev/net/tun is missing or closed "
               "to others: "
               "berth doctor";
    else if (code == EEXIST)
        hint = "another infra pair of this environment is alive: berth status, berth down";
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, code, hint, "%s: %s", doing, strerror(code));
}

int bt_keeper_helper_answers(const char *socket_path, struct bt_error *error)
{
    struct bt_helper helper;
    int result = bt_helper_connect(socket_path, &helper);
    if (result < 0)
        return helper_failure(-result, "cannot reach berth-helper", error);
    bt_helper_close(&helper);
    return 0;
}

int bt_keeper_lease(struct bt_keeper *keeper, int *ret_tap_fd, struct bt_error *error)
{
    int result = bt_helper_connect(bt_keeper_text(keeper, "helper_socket"), &keeper->helper);
    if (result < 0) {
        keeper->helper.fd = -1;
        return helper_failure(-result, "cannot reach berth-helper", error);
    }
    result = bt_helper_lease(&keeper->helper, keeper->backend->lease_kind, keeper->role,
                             (unsigned)bt_keeper_number(keeper, "environment_number"), -1, &keeper->lease,
                             ret_tap_fd);
    if (result < 0)
        return helper_failure(-result, "berth-helper gives no slot", error);
    keeper->gateway_address = keeper->backend->gateway_address(&keeper->lease);
    return 0;
}

struct bt_guest_identity bt_keeper_identity(const struct bt_keeper *keeper, const char *name)
{
    enum bt_guest_role role = keeper->role == BT_ROLE_AGENT     ? BT_GUEST_AGENT
                              : keeper->role == BT_ROLE_GATEWAY ? BT_GUEST_GATEWAY
                                                                : BT_GUEST_ORCHESTRATOR;
    return (struct bt_guest_identity){keeper->paths.state, bt_keeper_text(keeper, "environment"), role,
                                      name == NULL ? "" : name};
}

int bt_keeper_adopt(struct bt_keeper *keeper, struct bt_error *error)
{
    struct bt_helper helper;
    struct bt_helper_lease lease;
    int result = bt_helper_connect(bt_keeper_text(keeper, "helper_socket"), &helper);
    if (result < 0)
        return -EAGAIN;
    result = bt_helper_adopt(&helper, keeper->lease.slot, keeper->lease.generation, &lease);
    if (result == 0) {
        keeper->helper = helper;
        keeper->lease = lease;
        return 0;
    }
    bt_helper_close(&helper);
    if (result != -ENOENT && result != -EEXIST)
        return -EAGAIN; /* busy with a repair, for one */
    return helper_failure(-result, "berth-helper was started again and does not know the lease any more",
                          error);
}

/* Copies the guest's console to a bounded file and remembers how it ended: a thread, since the VMM must never
 * wait. */
static void *console_pump(void *argument)
{
    struct bt_console *console = argument;
    size_t logged = 0;
    char chunk[4096];
    char line[sizeof console->last_line] = "";
    size_t line_length = 0;
    for (;;) {
        ssize_t got = read(console->read_fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return NULL;
        if (logged < CONSOLE_LOG_MAX && bt_write_all(console->log_fd, chunk, (size_t)got) == 0)
            logged += (size_t)got;
        for (ssize_t i = 0; i < got; i++) {
            if (chunk[i] == '\n' || line_length + 1 == sizeof line) {
                line[line_length] = '\0';
                if (strstr(line, "fatal") != NULL || strstr(line, "panic") != NULL)
                    memcpy(console->last_line, line, sizeof line);
                line_length = 0;
            } else if (chunk[i] >= ' ' && chunk[i] <= '~') {
                line[line_length++] = chunk[i];
            }
        }
    }
}

int bt_keeper_console_open(struct bt_keeper *keeper, struct bt_error *error)
{
    struct bt_console *console = &keeper->console;
    bt_auto_free char *path = bt_string_format("%s/console.log", keeper->folder);
    int ends[2] = {-1, -1};
    pthread_attr_t attributes;
    bt_auto_fd log_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    int result = log_fd < 0 || pipe2(ends, O_CLOEXEC) < 0 ? errno : 0;
    if (result == 0) {
        console->log_fd = bt_fd_take(&log_fd);
        console->read_fd = ends[0];
        console->write_fd = ends[1];
        (void)pthread_attr_init(&attributes);
        (void)pthread_attr_setstacksize(&attributes, 65536);
        result = pthread_create(&console->thread, &attributes, console_pump, console);
        (void)pthread_attr_destroy(&attributes);
        console->is_running = result == 0;
    }
    if (result != 0)
        return bt_fail(error, BT_EXIT_ERROR, result, NULL, "cannot open the console log: %s",
                       strerror(result));
    return 0;
}

static void console_close(struct bt_keeper *keeper)
{
    struct bt_console *console = &keeper->console;
    bt_fd_close(&console->write_fd);
    if (console->is_running)
        (void)pthread_join(console->thread, NULL); /* ends with the VMM's end of the pipe */
    console->is_running = false;
    bt_fd_close(&console->read_fd);
    bt_fd_close(&console->log_fd);
}

void bt_keeper_teardown(struct bt_keeper *keeper, int grace_ms)
{
    if (keeper->guest != NULL)
        keeper->guest = keeper->backend->stop(keeper->guest, grace_ms);
    console_close(keeper);
    if (keeper->helper.fd >= 0 && bt_helper_release(&keeper->helper) < 0)
        (void)fprintf(stderr, "the slot is given back by closing the connection\n");
    bt_helper_close(&keeper->helper);
}

int bt_keeper_guest_ended(struct bt_keeper *keeper, const char *doing, struct bt_error *error)
{
    (void)usleep(20000); /* lets the console thread take in the last words */
    const char *words = keeper->console.last_line[0] == '\0' ? "it said nothing" : keeper->console.last_line;
    const char *reason =
        keeper->backend->end_reason == NULL ? NULL : keeper->backend->end_reason(keeper->guest);
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ECANCELED,
                   "its console is in console.log in the agent's folder", "the guest ended while %s: %s",
                   doing, reason == NULL ? words : reason);
}
