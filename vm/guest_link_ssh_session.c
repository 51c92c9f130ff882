/* One command over an SSH channel. See guest_link_internal.h for what a transport does.
 *
 * libssh2 is used non-blocking only. It allows one half-sent packet at a time: the call that left it must be
 * repeated before any other. A channel remembers that call (enum pending), and this is the one rule to keep
 * here. Memory is libssh2's receive window (2 MiB), whatever the command writes.
 */
#include "vm/guest_link_ssh.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "vm/guest_config.h"

#define CONTROL_MS 30000 /* for one answer of the SSH server; an emulated guest under load is slow */
#define RUN_COMMAND BT_GUEST_RUN " run"
#define CLOSE_MS 300 /* a command that is still busy then costs the link */
/* What one write may offer: libssh2 makes one packet of at most this of it. */
#define WRITE_MAX 32000U

enum pending {
    PENDING_NONE,
    PENDING_WRITE,
    PENDING_END,
    PENDING_RESIZE,
    PENDING_READ,
};

struct channel {
    LIBSSH2_CHANNEL *ssh;
    enum pending pending;
};

static struct bt_ssh_link *link_of(const struct bt_guest_session *session)
{
    return (struct bt_ssh_link *)session->link;
}

static struct channel *channel_of(const struct bt_guest_session *session)
{
    return session->channel;
}

static bool is_outbound(const struct bt_guest_session *session)
{
    return (libssh2_session_block_directions(link_of(session)->ssh) & LIBSSH2_SESSION_BLOCK_OUTBOUND) != 0;
}

/* How often a half-sent packet is pushed on before its state is known: each push but the last moves bytes of
 * it. */
#define PUSHES_MAX 64

/* Repeats a call while it is unclear what its EAGAIN means: when the rest of a half-sent packet goes out in
 * part only, libssh2 1.10 forgets to say that it waits for the socket to become writable. The next push
 * tells. */
#define PUSH(session, call, expression)                                                                      \
    ({                                                                                                       \
        ssize_t count_ = (expression);                                                                       \
        for (int pushes_ = 0; count_ == LIBSSH2_ERROR_EAGAIN && channel_of(session)->pending == (call) &&    \
                              !is_outbound(session) && pushes_ < PUSHES_MAX;                                 \
             pushes_++)                                                                                      \
            count_ = (expression);                                                                           \
        if (count_ == LIBSSH2_ERROR_EAGAIN)                                                                  \
            channel_of(session)->pending = is_outbound(session) ? (call) : PENDING_NONE;                     \
        else                                                                                                 \
            channel_of(session)->pending = PENDING_NONE;                                                     \
        count_;                                                                                              \
    })

static int step_write(struct bt_guest_session *session, struct bt_error *error)
{
    size_t length = session->out_length < WRITE_MAX ? session->out_length : WRITE_MAX;
    ssize_t count =
        PUSH(session, PENDING_WRITE, libssh2_channel_write(channel_of(session)->ssh, session->out, length));
    if (count == LIBSSH2_ERROR_EAGAIN)
        return 0;
    if (count == LIBSSH2_ERROR_CHANNEL_CLOSED || count == LIBSSH2_ERROR_CHANNEL_EOF_SENT) {
        session->out_length = 0;
        return 1;
    }
    if (count < 0)
        return bt_ssh_fail(link_of(session), error, "sending");
    session->out += count;
    session->out_length -= (size_t)count;
    return count > 0;
}

/* Calls whose answer is 0, EAGAIN or an error: end of input, window size. */
static int step_control(struct bt_guest_session *session, enum pending call, struct bt_error *error)
{
    ssize_t code = PUSH(session, call,
                        call == PENDING_END ? libssh2_channel_send_eof(channel_of(session)->ssh)
                                            : libssh2_channel_request_pty_size(
                                                  channel_of(session)->ssh, session->columns, session->rows));
    if (code == LIBSSH2_ERROR_EAGAIN)
        return 0;
    if (call == PENDING_END)
        session->is_ended = true;
    else
        session->is_resized = false;
    /* A refused size change, or an end told to a command that is gone, harms nobody. */
    if (code == LIBSSH2_ERROR_SOCKET_SEND)
        return bt_ssh_fail(link_of(session), error, "sending");
    return 1;
}

static int step_read(struct bt_guest_session *session, int stream, struct bt_error *error)
{
    char other[8192]; /* standard error while the chunk holds output that was not taken */
    bool is_held = session->chunk_length > 0;
    if (is_held && stream == 0)
        return 0;
    char *buffer = is_held ? other : session->chunk;
    size_t size = is_held ? sizeof(other) : sizeof(session->chunk);
    ssize_t count =
        PUSH(session, PENDING_READ, libssh2_channel_read_ex(channel_of(session)->ssh, stream, buffer, size));
    if (count == LIBSSH2_ERROR_EAGAIN || count == LIBSSH2_ERROR_CHANNEL_CLOSED)
        return 0;
    if (count < 0)
        return bt_ssh_fail(link_of(session), error, "receiving");
    if (count == 0)
        return 0;
    int result = bt_guest_session_deliver(session, stream != 0, buffer, (size_t)count, error);
    return result < 0 ? result : 1;
}

static int step_closed(struct bt_guest_session *session, struct bt_error *error)
{
    if (session->chunk_length > 0 || !libssh2_channel_eof(channel_of(session)->ssh))
        return 0;
    ssize_t code = PUSH(session, PENDING_READ, libssh2_channel_wait_closed(channel_of(session)->ssh));
    if (code == LIBSSH2_ERROR_EAGAIN)
        return 0;
    if (code < 0)
        return bt_ssh_fail(link_of(session), error, "the end of a command");
    session->is_closed = true;
    session->out_length = 0;
    return 1;
}

int bt_ssh_step(struct bt_guest_session *session, struct bt_error *error)
{
    int moved = 0, result = 0;
    if (channel_of(session)->pending == PENDING_END || channel_of(session)->pending == PENDING_RESIZE)
        result = step_control(session, channel_of(session)->pending, error);
    if (session->out_length > 0 &&
        (channel_of(session)->pending == PENDING_NONE || channel_of(session)->pending == PENDING_WRITE))
        result = step_write(session, error);
    moved |= result > 0;
    if (result >= 0 && session->may_end && !session->is_ended && session->out_length == 0 &&
        channel_of(session)->pending == PENDING_NONE)
        result = step_control(session, PENDING_END, error);
    if (result >= 0 && session->is_resized && channel_of(session)->pending == PENDING_NONE)
        result = step_control(session, PENDING_RESIZE, error);
    moved |= result > 0;
    for (int stream = 0; stream <= 1 && result >= 0; stream++) {
        if (channel_of(session)->pending != PENDING_NONE && channel_of(session)->pending != PENDING_READ)
            return moved;
        result = step_read(session, stream, error);
        moved |= result > 0;
    }
    if (result >= 0 && channel_of(session)->pending == PENDING_NONE && !moved)
        result = step_closed(session, error);
    return result < 0 ? result : (moved | (result > 0));
}

static int signal_number(const char *name)
{
    static const struct {
        const char *name;
        int number;
    } signals[] = {{"HUP", 1},   {"INT", 2},   {"QUIT", 3},  {"ILL", 4},   {"ABRT", 6},
                   {"FPE", 8},   {"KILL", 9},  {"USR1", 10}, {"SEGV", 11}, {"USR2", 12},
                   {"PIPE", 13}, {"ALRM", 14}, {"TERM", 15}};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(signals); i++) {
        if (strcmp(name, signals[i].name) == 0)
            return signals[i].number;
    }
    return 127; /* unknown: still not success */
}

int bt_ssh_status(struct bt_guest_session *session, struct bt_error *error)
{
    (void)error;
    char *name = NULL;
    if (libssh2_channel_get_exit_signal(channel_of(session)->ssh, &name, NULL, NULL, NULL, NULL, NULL) == 0 &&
        name) {
        int number = signal_number(name);
        libssh2_free(link_of(session)->ssh, name);
        return 128 + number;
    }
    return libssh2_channel_get_exit_status(channel_of(session)->ssh) & 0xff;
}

/* Waits a moment for the end of a command that was given up, its output dropped, its input ended. */
static void wind_up(struct bt_guest_session *session)
{
    int64_t deadline_ms = bt_link_now_ms() + CLOSE_MS;
    session->on_output = NULL;
    session->is_pull = false;
    session->may_end = true;
    session->is_ready = true;
    session->deadline_ms = INT64_MAX;
    if (channel_of(session)->pending != PENDING_WRITE)
        session->out_length = 0; /* else the half-sent packet goes first */
    while (session->link->is_usable && !session->is_closed) {
        int left_ms = bt_link_left_ms(deadline_ms);
        session->chunk_length = 0;
        int result = bt_guest_session_step(session, NULL);
        if (result == 0)
            result = bt_guest_session_wait(session, NULL, 0, left_ms, NULL);
        if (result < 0 || left_ms == 0)
            session->link->is_usable = false;
    }
}

/* Dropbear 2022.83 ends the whole connection when it is told to close a channel whose command still writes
 * ("Failed assertion"). So a channel is only closed after the other side has closed it. */
void bt_ssh_end(struct bt_guest_session *session)
{
    struct bt_ssh_link *link = link_of(session);
    if (channel_of(session)->ssh != NULL)
        wind_up(session);
    int64_t deadline_ms = bt_link_now_ms() + CLOSE_MS;
    int code = 0;
    while (link->link.is_usable && channel_of(session)->ssh != NULL &&
           (code = libssh2_channel_free(channel_of(session)->ssh)) == LIBSSH2_ERROR_EAGAIN) {
        if (bt_ssh_wait(link, deadline_ms, -1) < 0)
            link->link.is_usable = false;
    }
    if (code != 0)
        link->link.is_usable = false;
    free(session->channel); /* an unusable link frees its channels when it is closed */
}

/* Repeats a libssh2 call until it stops answering EAGAIN. Evaluates to 0 or a negative errno with *error
 * filled. */
#define CONTROL(session, what, error, call)                                                                  \
    ({                                                                                                       \
        int64_t until_ms_ = bt_link_now_ms() + CONTROL_MS;                                                   \
        int code_, result_ = 0;                                                                              \
        while (result_ == 0 && (code_ = (call)) == LIBSSH2_ERROR_EAGAIN) {                                   \
            if (bt_ssh_wait(link_of(session), until_ms_, -1) < 0) {                                          \
                (session)->link->is_usable = false;                                                          \
                result_ = bt_fail(error, BT_EXIT_ERROR, ETIMEDOUT, NULL,                                     \
                                  "%s: the guest at %s does not answer", what, (session)->link->name);       \
            }                                                                                                \
        }                                                                                                    \
        if (result_ == 0 && code_ < 0)                                                                       \
            result_ = bt_ssh_fail(link_of(session), error, what);                                            \
        result_;                                                                                             \
    })

static int channel_open(struct bt_guest_session *session, struct bt_error *error)
{
    LIBSSH2_SESSION *ssh = link_of(session)->ssh;
    return CONTROL(
        session, "opening a channel", error,
        (channel_of(session)->ssh = libssh2_channel_open_session(ssh)) ? 0 : libssh2_session_last_errno(ssh));
}

int bt_ssh_start(struct bt_guest_session *session, const struct bt_guest_command *command,
                 const char *terminal, struct bt_error *error)
{
    (void)command; /* its user is named in the request: root's login starts every command */
    session->channel = bt_new(1, sizeof(struct channel));
    int result = channel_open(session, error);
    if (result == 0 && terminal)
        result = CONTROL(session, "asking for a terminal", error,
                         libssh2_channel_request_pty_ex(channel_of(session)->ssh, terminal,
                                                        (unsigned)strlen(terminal), NULL, 0, session->columns,
                                                        session->rows, 0, 0));
    if (result == 0)
        result = CONTROL(session, "starting a command", error,
                         libssh2_channel_exec(channel_of(session)->ssh, RUN_COMMAND));
    return result;
}

struct pollfd bt_ssh_watch(const struct bt_guest_session *session)
{
    struct pollfd watched = {.fd = link_of(session)->fd, .events = POLLIN};
    if (is_outbound(session))
        watched.events = POLLIN | POLLOUT;
    if (is_outbound(session) && channel_of(session)->pending != PENDING_NONE)
        watched.events = POLLOUT; /* with a half-sent packet nothing else may be done */
    return watched;
}
