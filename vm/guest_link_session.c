/* One command running in a guest: moving bytes both ways over an SSH channel, with back-pressure.
 *
 * Called by the other vm/guest_link_*.c. Nothing here blocks but bt_guest_session_wait(), and memory is one
 * chunk a session plus libssh2's receive window (2 MiB), whatever the command writes.
 */
#include "vm/guest_link_internal.h"

#include <errno.h>
#include <string.h>

#include "vm/guest_config.h"
#include "vm/run_protocol.h"

#define RUN_COMMAND BT_GUEST_RUN " run"
#define CLOSE_MS 300 /* a command that is still busy then costs the link */
/* What one write may offer: libssh2 makes one packet of at most this of it. */
#define WRITE_MAX 32000U

static bool is_outbound(const struct bt_guest_session *session)
{
    return (libssh2_session_block_directions(session->link->ssh) & LIBSSH2_SESSION_BLOCK_OUTBOUND) != 0;
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
        for (int pushes_ = 0; count_ == LIBSSH2_ERROR_EAGAIN && (session)->pending == (call) &&              \
                              !is_outbound(session) && pushes_ < PUSHES_MAX;                                 \
             pushes_++)                                                                                      \
            count_ = (expression);                                                                           \
        if (count_ == LIBSSH2_ERROR_EAGAIN)                                                                  \
            (session)->pending = is_outbound(session) ? (call) : BT_PENDING_NONE;                            \
        else                                                                                                 \
            (session)->pending = BT_PENDING_NONE;                                                            \
        count_;                                                                                              \
    })

static int step_write(struct bt_guest_session *session, struct bt_error *error)
{
    size_t length = session->out_length < WRITE_MAX ? session->out_length : WRITE_MAX;
    ssize_t count =
        PUSH(session, BT_PENDING_WRITE, libssh2_channel_write(session->channel, session->out, length));
    if (count == LIBSSH2_ERROR_EAGAIN)
        return 0;
    if (count == LIBSSH2_ERROR_CHANNEL_CLOSED || count == LIBSSH2_ERROR_CHANNEL_EOF_SENT) {
        session->out_length = 0;
        return 1;
    }
    if (count < 0)
        return bt_link_fail(session->link, error, "sending");
    session->out += count;
    session->out_length -= (size_t)count;
    return count > 0;
}

/* Calls whose answer is 0, EAGAIN or an error: end of input, window size. */
static int step_control(struct bt_guest_session *session, enum bt_guest_session_pending call,
                        struct bt_error *error)
{
    ssize_t code =
        PUSH(session, call,
             call == BT_PENDING_END
                 ? libssh2_channel_send_eof(session->channel)
                 : libssh2_channel_request_pty_size(session->channel, session->columns, session->rows));
    if (code == LIBSSH2_ERROR_EAGAIN)
        return 0;
    if (call == BT_PENDING_END)
        session->is_ended = true;
    else
        session->is_resized = false;
    /* A refused size change, or an end told to a command that is gone, harms nobody. */
    if (code == LIBSSH2_ERROR_SOCKET_SEND)
        return bt_link_fail(session->link, error, "sending");
    return 1;
}

static int deliver(struct bt_guest_session *session, bool is_stderr, const char *data, size_t length,
                   struct bt_error *error)
{
    if (!session->is_ready && !is_stderr) {
        if (data[0] != BT_RUN_READY)
            return bt_fail(
                error, BT_EXIT_ERROR, EPROTO, "the image or its initrd is of another version: rebuild it",
                "the guest at %s does not start commands as this program expects", session->link->name);
        session->is_ready = true;
        data++;
        length--;
    }
    if (session->is_pull && !is_stderr) {
        memmove(session->chunk, data, length);
        session->chunk_length = length;
        return 0;
    }
    if (length > 0 && session->on_output &&
        session->on_output(session->context, is_stderr, data, length) != 0)
        return bt_fail(error, BT_EXIT_ERROR, ECANCELED, NULL,
                       "the command was ended by the receiver of its output");
    return 0;
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
        PUSH(session, BT_PENDING_READ, libssh2_channel_read_ex(session->channel, stream, buffer, size));
    if (count == LIBSSH2_ERROR_EAGAIN || count == LIBSSH2_ERROR_CHANNEL_CLOSED)
        return 0;
    if (count < 0)
        return bt_link_fail(session->link, error, "receiving");
    if (count == 0)
        return 0;
    int result = deliver(session, stream != 0, buffer, (size_t)count, error);
    return result < 0 ? result : 1;
}

static int step_closed(struct bt_guest_session *session, struct bt_error *error)
{
    if (session->chunk_length > 0 || !libssh2_channel_eof(session->channel))
        return 0;
    ssize_t code = PUSH(session, BT_PENDING_READ, libssh2_channel_wait_closed(session->channel));
    if (code == LIBSSH2_ERROR_EAGAIN)
        return 0;
    if (code < 0)
        return bt_link_fail(session->link, error, "the end of a command");
    session->is_closed = true;
    session->out_length = 0;
    return 1;
}

int bt_guest_session_step(struct bt_guest_session *session, struct bt_error *error)
{
    int moved = 0, result = 0;
    if (session->pending == BT_PENDING_END || session->pending == BT_PENDING_RESIZE)
        result = step_control(session, session->pending, error);
    if (session->out_length > 0 &&
        (session->pending == BT_PENDING_NONE || session->pending == BT_PENDING_WRITE))
        result = step_write(session, error);
    moved |= result > 0;
    if (result >= 0 && session->may_end && !session->is_ended && session->out_length == 0 &&
        session->pending == BT_PENDING_NONE)
        result = step_control(session, BT_PENDING_END, error);
    if (result >= 0 && session->is_resized && session->pending == BT_PENDING_NONE)
        result = step_control(session, BT_PENDING_RESIZE, error);
    moved |= result > 0;
    for (int stream = 0; stream <= 1 && result >= 0; stream++) {
        if (session->pending != BT_PENDING_NONE && session->pending != BT_PENDING_READ)
            return moved;
        result = step_read(session, stream, error);
        moved |= result > 0;
    }
    if (result >= 0 && session->pending == BT_PENDING_NONE && !moved)
        result = step_closed(session, error);
    return result < 0 ? result : (moved | (result > 0));
}

int bt_guest_session_wait(struct bt_guest_session *session, struct pollfd *extra, nfds_t extra_count,
                          int at_most_ms, struct bt_error *error)
{
    struct pollfd fds[4];
    fds[0] = (struct pollfd){.fd = session->link->fd, .events = POLLIN};
    if (is_outbound(session))
        fds[0].events = POLLIN | POLLOUT;
    if (is_outbound(session) && session->pending != BT_PENDING_NONE)
        fds[0].events = POLLOUT; /* with a half-sent packet nothing else may be done */
    for (nfds_t i = 0; i < extra_count && i < BT_ARRAY_LENGTH(fds) - 1; i++)
        fds[1 + i] = extra[i];
    int left_ms = bt_link_left_ms(session->deadline_ms);
    int wait_ms = at_most_ms >= 0 && (left_ms < 0 || at_most_ms < left_ms) ? at_most_ms : left_ms;
    int count = poll(fds, 1 + extra_count, wait_ms);
    for (nfds_t i = 0; i < extra_count; i++)
        extra[i].revents = 0;
    for (nfds_t i = 0; i < extra_count && count > 0; i++)
        extra[i].revents = fds[1 + i].revents;
    if (count < 0 && errno != EINTR)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot wait for the guest at %s: %s",
                       session->link->name, strerror(errno));
    if (count == 0 && left_ms == 0)
        return bt_fail(error, BT_EXIT_ERROR, ETIMEDOUT, NULL, "the command in the guest at %s took too long",
                       session->link->name);
    return 0;
}

int bt_guest_session_write(struct bt_guest_session *session, const void *data, size_t length,
                           struct bt_error *error)
{
    session->out = data;
    session->out_length = length;
    while (session->out_length > 0) {
        int result = bt_guest_session_step(session, error);
        if (result < 0)
            return result;
        if (session->is_closed)
            return bt_fail(error, BT_EXIT_ERROR, EPIPE, NULL,
                           "the command ended before it had read its input");
        if (result == 0 && session->out_length > 0 &&
            (result = bt_guest_session_wait(session, NULL, 0, -1, error)) < 0)
            return result;
    }
    return 0;
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

static int exit_status(struct bt_guest_session *session)
{
    char *name = NULL;
    if (libssh2_channel_get_exit_signal(session->channel, &name, NULL, NULL, NULL, NULL, NULL) == 0 && name) {
        int number = signal_number(name);
        libssh2_free(session->link->ssh, name);
        return 128 + number;
    }
    return libssh2_channel_get_exit_status(session->channel) & 0xff;
}

int bt_guest_session_finish(struct bt_guest_session *session, int *ret_status, struct bt_error *error)
{
    session->may_end = true;
    while (!session->is_closed) {
        int result = bt_guest_session_step(session, error);
        if (result == 0)
            result = bt_guest_session_wait(session, NULL, 0, -1, error);
        if (result < 0)
            return result;
    }
    *ret_status = exit_status(session);
    return 0;
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
    if (session->pending != BT_PENDING_WRITE)
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
void bt_guest_session_close(struct bt_guest_session *session)
{
    struct bt_guest_link *link = session->link;
    if (!session->channel)
        return;
    wind_up(session);
    int64_t deadline_ms = bt_link_now_ms() + CLOSE_MS;
    int code = 0;
    while (link->is_usable && (code = libssh2_channel_free(session->channel)) == LIBSSH2_ERROR_EAGAIN) {
        if (bt_link_wait(link, deadline_ms, -1) < 0)
            link->is_usable = false;
    }
    if (code != 0)
        link->is_usable = false;
    session->channel = NULL; /* an unusable link frees its channels when it is closed */
}

/* Repeats a libssh2 call until it stops answering EAGAIN. Evaluates to 0 or a negative errno with *error
 * filled. */
#define CONTROL(session, what, error, call)                                                                  \
    ({                                                                                                       \
        int64_t until_ms_ = bt_link_now_ms() + BT_LINK_CONTROL_MS;                                           \
        int code_, result_ = 0;                                                                              \
        while (result_ == 0 && (code_ = (call)) == LIBSSH2_ERROR_EAGAIN) {                                   \
            if (bt_link_wait((session)->link, until_ms_, -1) < 0) {                                          \
                (session)->link->is_usable = false;                                                          \
                result_ = bt_fail(error, BT_EXIT_ERROR, ETIMEDOUT, NULL,                                     \
                                  "%s: the guest at %s does not answer", what, (session)->link->name);       \
            }                                                                                                \
        }                                                                                                    \
        if (result_ == 0 && code_ < 0)                                                                       \
            result_ = bt_link_fail((session)->link, error, what);                                            \
        result_;                                                                                             \
    })

static int channel_open(struct bt_guest_session *session, struct bt_error *error)
{
    struct bt_guest_link *link = session->link;
    return CONTROL(session, "opening a channel", error,
                   (session->channel = libssh2_channel_open_session(link->ssh))
                       ? 0
                       : libssh2_session_last_errno(link->ssh));
}

/* On a terminal the request may only be sent once echo is off, which the ready byte says. */
static int wait_ready(struct bt_guest_session *session, struct bt_error *error)
{
    while (!session->is_ready) {
        int result = bt_guest_session_step(session, error);
        if (result == 0)
            result = bt_guest_session_wait(session, NULL, 0, -1, error);
        if (result < 0)
            return result;
        if (session->is_closed)
            return bt_fail(error, BT_EXIT_ERROR, EPROTO,
                           "the image or its initrd is of another version: rebuild it",
                           "the guest at %s cannot start commands (exit status %d)", session->link->name,
                           exit_status(session));
    }
    return 0;
}

int bt_guest_session_start(struct bt_guest_link *link, const struct bt_guest_command *command,
                           const char *terminal, int columns, int rows, struct bt_guest_session *ret_session,
                           struct bt_error *error)
{
    struct bt_guest_session *session = ret_session;
    if (!link->is_usable)
        return bt_fail(error, BT_EXIT_ERROR, ENOTCONN, "connect again",
                       "the connection to the guest at %s was given up with an earlier command", link->name);
    struct bt_buffer request = {0};
    int result = bt_run_request_encode(command, &request, error);
    if (result < 0)
        return result;
    *session = (struct bt_guest_session){
        .link = link,
        .deadline_ms = command->timeout_ms ? bt_link_now_ms() + command->timeout_ms : INT64_MAX,
        .columns = columns,
        .rows = rows,
        .on_output = command->on_output,
        .context = command->context};
    result = channel_open(session, error);
    if (result == 0 && terminal)
        result =
            CONTROL(session, "asking for a terminal", error,
                    libssh2_channel_request_pty_ex(session->channel, terminal, (unsigned)strlen(terminal),
                                                   NULL, 0, columns, rows, 0, 0));
    if (result == 0)
        result = CONTROL(session, "starting a command", error,
                         libssh2_channel_exec(session->channel, RUN_COMMAND));
    if (result == 0 && terminal)
        result = wait_ready(session, error);
    if (result == 0)
        result = bt_guest_session_write(session, request.data, request.length, error);
    /* A command that fails before it has read everything still says why: that is taken by whoever finishes
     * it. */
    if (result == -EPIPE)
        result = 0;
    if (result < 0)
        bt_guest_session_close(session);
    bt_buffer_wipe(&request);
    return result;
}

int bt_guest_session_keep_errors(void *context, bool is_stderr, const char *data, size_t length)
{
    struct bt_guest_session_errors *errors = context;
    (void)is_stderr;
    size_t room = sizeof(errors->text) - 1 - errors->length;
    size_t part = length < room ? length : room;
    memcpy(errors->text + errors->length, data, part);
    errors->length += part;
    errors->text[errors->length] = '\0';
    return 0;
}

int bt_guest_session_fail(const struct bt_guest_session_errors *errors, int status, const char *what,
                          struct bt_error *error)
{
    char line[sizeof(errors->text)];
    size_t length = strcspn(errors->text, "\n");
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)errors->text[i];
        line[i] =
            (char)(byte < 0x20 || byte == 0x7f ? '?'
                                               : byte); /* the guest's words must not steer a terminal */
    }
    line[length] = '\0';
    return bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "%s failed in the guest (exit status %d): %s", what,
                   status, length ? line : "it gave no reason");
}
