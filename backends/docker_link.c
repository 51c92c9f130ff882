/* The way into a container: an exec of "berth-init relay" for each command, its stream taken over from the
 * engine. See vm/guest_link_internal.h for what a transport does, vm/container_protocol.h for the bytes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/docker_internal.h"
#include "vm/container_protocol.h"
#include "vm/guest_link_internal.h"

struct docker_link {
    struct bt_guest_link link;
    struct bt_docker docker;
    char container[BT_DOCKER_NAME_SIZE];
};

struct channel {
    int fd;
    char exec[BT_DOCKER_EXEC_SIZE];
    struct bt_docker_demux demux;
    /* A frame that is being sent. */
    char frame[BT_RELAY_HEADER_LENGTH + BT_RELAY_FRAME_MAX];
    size_t frame_length, frame_sent;
    /* What was read and is not delivered yet. */
    char input[BT_GUEST_SESSION_CHUNK];
    size_t input_start, input_end;
};

static struct docker_link *link_of(const struct bt_guest_session *session)
{
    return (struct docker_link *)session->link;
}

static int give_up(struct bt_guest_session *session, int code, const char *what, struct bt_error *error)
{
    session->link->is_usable = false;
    return bt_fail(error, BT_EXIT_ERROR, code, "berth list shows whether the agent still runs",
                   "%s: the connection to %s broke: %s", what, session->link->name, strerror(code));
}

static void make_frame(struct channel *channel, char type, const void *content, size_t length)
{
    uint8_t *header = (uint8_t *)channel->frame;
    header[0] = (uint8_t)type;
    bt_store_u32(header + 1, (uint32_t)length);
    memcpy(channel->frame + BT_RELAY_HEADER_LENGTH, content, length);
    channel->frame_length = BT_RELAY_HEADER_LENGTH + length;
    channel->frame_sent = 0;
}

/* The next frame, if there is something to say. */
static bool next_frame(struct bt_guest_session *session)
{
    struct channel *channel = session->channel;
    if (session->is_resized) {
        uint8_t size[4];
        bt_store_u16(size, (uint16_t)session->columns);
        bt_store_u16(size + 2, (uint16_t)session->rows);
        session->is_resized = false;
        make_frame(channel, BT_RELAY_SIZE, size, sizeof(size));
    } else if (session->out_length > 0) {
        size_t length = session->out_length < BT_RELAY_FRAME_MAX ? session->out_length : BT_RELAY_FRAME_MAX;
        make_frame(channel, BT_RELAY_DATA, session->out, length);
        session->out += length;
        session->out_length -= length;
    } else if (session->may_end && !session->is_ended) {
        session->is_ended = true;
        make_frame(channel, BT_RELAY_END, "", 0);
    } else {
        return false;
    }
    return true;
}

static int step_write(struct bt_guest_session *session, struct bt_error *error)
{
    struct channel *channel = session->channel;
    if (channel->frame_length == channel->frame_sent && !next_frame(session))
        return 0;
    ssize_t count = send(channel->fd, channel->frame + channel->frame_sent,
                         channel->frame_length - channel->frame_sent, MSG_NOSIGNAL);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (count < 0 &&
        (errno == EPIPE || errno == ECONNRESET)) { /* the command has ended: its output says how */
        session->out_length = 0;
        session->may_end = false;
        channel->frame_sent = channel->frame_length;
        return 1;
    }
    if (count < 0)
        return give_up(session, errno, "sending", error);
    channel->frame_sent += (size_t)count;
    if (channel->frame_sent == channel->frame_length)
        explicit_bzero(channel->frame, channel->frame_length);
    return 1;
}

/* Hands on what was read. Stops where the reader of standard output has to take its chunk first. */
static int deliver(struct bt_guest_session *session, struct bt_error *error)
{
    struct channel *channel = session->channel;
    int moved = 0;
    while (channel->input_start < channel->input_end && session->chunk_length == 0) {
        const char *data;
        size_t length;
        int stream;
        ssize_t used = bt_docker_demux(&channel->demux, channel->input + channel->input_start,
                                       channel->input_end - channel->input_start, &stream, &data, &length);
        if (used < 0)
            return give_up(session, EBADMSG, "receiving", error);
        channel->input_start += (size_t)used;
        moved = 1;
        int result = length > 0 ? bt_guest_session_deliver(session, stream == 2, data, length, error) : 0;
        if (result < 0)
            return result;
    }
    return moved;
}

static int step_read(struct bt_guest_session *session, struct bt_error *error)
{
    struct channel *channel = session->channel;
    int moved = deliver(session, error);
    if (moved < 0 || channel->input_start < channel->input_end || session->chunk_length > 0)
        return moved;
    ssize_t count = recv(channel->fd, channel->input, sizeof(channel->input), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return moved;
    if (count < 0 && errno != ECONNRESET)
        return give_up(session, errno, "receiving", error);
    if (count <= 0) {
        session->is_closed = true;
        session->out_length = 0;
        return 1;
    }
    channel->input_start = 0;
    channel->input_end = (size_t)count;
    return deliver(session, error) < 0 ? -error->code : 1;
}

static int step(struct bt_guest_session *session, struct bt_error *error)
{
    int written = step_write(session, error);
    int read = written < 0 ? written : step_read(session, error);
    return read < 0 ? read : (written | read);
}

static struct pollfd watch(const struct bt_guest_session *session)
{
    const struct channel *channel = session->channel;
    struct pollfd watched = {.fd = channel->fd, .events = session->chunk_length > 0 ? 0 : POLLIN};
    if (channel->frame_sent < channel->frame_length)
        watched.events |= POLLOUT;
    return watched;
}

/* An engine that went took the stream along, and what the command does now is not known. */
static int lost_or_killed(struct bt_guest_session *session, struct bt_error *error)
{
    struct bt_docker docker;
    if (bt_docker_connect(&docker, NULL) == 0)
        return 137; /* killed with its container */
    session->link->is_usable = false;
    return bt_fail(error, BT_EXIT_INFRASTRUCTURE, ECONNRESET, "berth list shows whether the agent still runs",
                   "the container engine was stopped, or is being started again, and the command's streams "
                   "ended with it");
}

static int status(struct bt_guest_session *session, struct bt_error *error)
{
    const struct channel *channel = session->channel;
    int status = bt_docker_exec_status(&link_of(session)->docker, channel->exec);
    return status < 0 ? lost_or_killed(session, error) : status;
}

static void end(struct bt_guest_session *session)
{
    struct channel *channel = session->channel;
    bt_fd_close(&channel->fd); /* which the relay takes for the end of its command */
    explicit_bzero(channel, sizeof(*channel));
    free(channel);
}

/* Exec as the user of the command: nobody in a container can change to another. */
static int create_exec(struct bt_guest_session *session, const struct bt_guest_command *command,
                       const char *terminal, struct bt_error *error)
{
    struct docker_link *link = link_of(session);
    struct channel *channel = session->channel;
    bt_auto_free char *user = bt_string_format("%u:%u", command->uid, command->gid);
    json_t *body = json_pack("{s:b, s:b, s:b, s:b, s:s, s:[s, s, s?]}", "AttachStdin", true, "AttachStdout",
                             true, "AttachStderr", true, "Tty", false, "User", user, "Cmd", BT_CONTAINER_INIT,
                             "relay", terminal != NULL ? "terminal" : NULL);
    if (terminal == NULL)
        (void)json_array_remove(json_object_get(body, "Cmd"), 2);
    return bt_docker_exec_create(&link->docker, link->container, body, channel->exec, error);
}

static int start(struct bt_guest_session *session, const struct bt_guest_command *command,
                 const char *terminal, struct bt_error *error)
{
    struct docker_link *link = link_of(session);
    struct channel *channel = bt_new(1, sizeof(*channel));
    channel->fd = -1;
    session->channel = channel;
    session->is_resized = terminal != NULL;
    int result = create_exec(session, command, terminal, error);
    if (result < 0)
        return bt_error_prefix(error, "cannot start a command in %s", session->link->name);
    result = bt_docker_exec_start(&link->docker, channel->exec, &channel->fd, error);
    return result < 0 ? bt_error_prefix(error, "cannot start a command in %s", session->link->name) : 0;
}

static void close_link(struct bt_guest_link *link)
{
    free(link);
}

int bt_docker_link(const struct bt_guest_access *access, struct bt_guest_link **ret_link,
                   struct bt_error *error)
{
    static const struct bt_guest_transport transport = {
        .start = start,
        .step = step,
        .watch = watch,
        .status = status,
        .end = end,
        .close = close_link,
        .is_root_plain = true,
        .agent_id = BT_DOCKER_AGENT_ID,
    };
    struct docker_link *link = bt_new(1, sizeof(*link));
    link->link.transport = &transport;
    link->link.is_usable = true;
    (void)snprintf(link->link.name, sizeof(link->link.name), "the container of %.40s", access->identity.name);
    bt_docker_name(&access->identity, link->container);
    int result = bt_docker_connect(&link->docker, error);
    if (result < 0) {
        free(link);
        return result;
    }
    *ret_link = &link->link;
    return 0;
}
