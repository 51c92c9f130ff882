/* One command running in a guest: moving bytes both ways, with back-pressure, over whatever transport the
 * link has.
 *
 * Called by the other vm/guest_link_*.c. Nothing here blocks but bt_guest_session_wait(), and memory is one
 * chunk a session plus what the transport keeps, whatever the command writes.
 */
#include "vm/guest_link_internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "vm/run_protocol.h"

int64_t bt_link_now_ms(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int bt_link_left_ms(int64_t deadline_ms)
{
    if (deadline_ms == INT64_MAX)
        return -1;
    int64_t left = deadline_ms - bt_link_now_ms();
    return left <= 0 ? 0 : left > INT32_MAX ? INT32_MAX : (int)left;
}

#define LINE_SIZE 512

/* The first line of a guest's words, which must not steer a terminal. */
static const char *first_line(const char *text, size_t text_length, char ret_line[static LINE_SIZE])
{
    size_t length = 0;
    while (length < text_length && length < LINE_SIZE - 1 && text[length] != '\0' && text[length] != '\n') {
        unsigned char byte = (unsigned char)text[length];
        ret_line[length++] = (char)(byte < 0x20 || byte == 0x7f ? '?' : byte);
    }
    ret_line[length] = '\0';
    return ret_line;
}

int bt_guest_session_deliver(struct bt_guest_session *session, bool is_stderr, const char *data,
                             size_t length, struct bt_error *error)
{
    if (!session->is_ready && !is_stderr) {
        char line[LINE_SIZE];
        if (data[0] != BT_RUN_READY) /* a container engine says here why it could not start the command */
            return bt_fail(
                error, BT_EXIT_ERROR, EPROTO,
                "if nothing else explains it, the image or its initrd is of another version: rebuild it",
                "the guest at %s does not start commands as this program expects; it says: %s",
                session->link->name, first_line(data, length, line));
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

int bt_guest_session_step(struct bt_guest_session *session, struct bt_error *error)
{
    return session->link->transport->step(session, error);
}

int bt_guest_session_wait(struct bt_guest_session *session, struct pollfd *extra, nfds_t extra_count,
                          int at_most_ms, struct bt_error *error)
{
    struct pollfd fds[4];
    fds[0] = session->link->transport->watch(session);
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
    int status = session->link->transport->status(session, error);
    if (status < 0)
        return status;
    *ret_status = status;
    return 0;
}

void bt_guest_session_close(struct bt_guest_session *session)
{
    if (session->channel != NULL)
        session->link->transport->end(session);
    session->channel = NULL;
}

uint32_t bt_guest_reader(const struct bt_guest_link *link, uint32_t agent_id)
{
    return link->transport->is_root_plain ? agent_id : 0;
}

struct bt_guest_link *bt_guest_close(struct bt_guest_link *link)
{
    if (link != NULL)
        link->transport->close(link);
    return NULL;
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
        if (!session->is_closed)
            continue;
        int status = session->link->transport->status(session, error);
        return status < 0 ? status
                          : bt_fail(error, BT_EXIT_ERROR, EPROTO,
                                    "the image or its initrd is of another version: rebuild it",
                                    "the guest at %s cannot start commands (exit status %d)",
                                    session->link->name, status);
    }
    return 0;
}

static struct bt_guest_command as_numbered_there(const struct bt_guest_link *link,
                                                 const struct bt_guest_command *command)
{
    struct bt_guest_command there = *command;
    uint32_t agent_id = link->transport->agent_id;
    if (agent_id != 0 && there.uid == BT_GUEST_AGENT_ID)
        there.uid = agent_id;
    if (agent_id != 0 && there.gid == BT_GUEST_AGENT_ID)
        there.gid = agent_id;
    return there;
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
    const struct bt_guest_command there = as_numbered_there(link, command);
    int result = bt_run_request_encode(&there, &request, error);
    if (result < 0)
        return result;
    *session = (struct bt_guest_session){
        .link = link,
        .deadline_ms = command->timeout_ms ? bt_link_now_ms() + command->timeout_ms : INT64_MAX,
        .columns = columns,
        .rows = rows,
        .on_output = command->on_output,
        .context = command->context};
    result = link->transport->start(session, &there, terminal, error);
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
    char line[LINE_SIZE];
    (void)first_line(errors->text, sizeof(errors->text), line);
    return bt_fail(error, BT_EXIT_ERROR, EIO, NULL, "%s failed in the guest (exit status %d): %s", what,
                   status, line[0] != '\0' ? line : "it gave no reason");
}
