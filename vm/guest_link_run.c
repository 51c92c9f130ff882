/* Running a command in a guest to its end, its output streamed or collected.
 *
 * Called by the keeper, the probe runner and the owner's commands.
 */
#include "vm/guest_link_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct feed {
    int fd; /* -1 when nothing more is to come from it */
    char data[BT_GUEST_SESSION_CHUNK];
};

/* Reads the next piece of standard input once the last one is sent. */
static int feed_read(struct feed *feed, struct bt_guest_session *session, struct bt_error *error)
{
    ssize_t count = read(feed->fd, feed->data, sizeof(feed->data));
    if (count < 0 && (errno == EINTR || errno == EAGAIN))
        return 0;
    if (count < 0)
        return bt_fail(error, BT_EXIT_ERROR, errno, NULL, "cannot read the input of the command: %s",
                       strerror(errno));
    if (count == 0)
        feed->fd = -1;
    session->out = feed->data;
    session->out_length = (size_t)count;
    return 0;
}

static int run_loop(struct bt_guest_session *session, struct feed *feed, struct bt_error *error)
{
    while (!session->is_closed) {
        if (session->out_length == 0 && feed->fd < 0)
            session->may_end = true;
        int result = bt_guest_session_step(session, error);
        if (result < 0)
            return result;
        if (bt_link_left_ms(session->deadline_ms) == 0)
            return bt_fail(error, BT_EXIT_ERROR, ETIMEDOUT, NULL,
                           "the command in the guest at %s took too long", session->link->name);
        bool may_feed = session->out_length == 0 && feed->fd >= 0;
        if (result > 0 && !may_feed)
            continue;
        struct pollfd input = {.fd = may_feed ? feed->fd : -1, .events = POLLIN};
        if (result > 0) /* only look at the input, without waiting */
            (void)poll(&input, 1, 0);
        else if ((result = bt_guest_session_wait(session, &input, 1, -1, error)) < 0)
            return result;
        if (may_feed && input.revents && (result = feed_read(feed, session, error)) < 0)
            return result;
    }
    return 0;
}

int bt_guest_run(struct bt_guest_link *link, const struct bt_guest_command *command, int *ret_status,
                 struct bt_error *error)
{
    struct bt_guest_session *session = bt_new(1, sizeof(*session));
    struct feed *feed = bt_new(1, sizeof(*feed));
    feed->fd = command->input_fd;
    int status = 0;
    int result = bt_guest_session_start(link, command, NULL, 0, 0, session, error);
    if (result == 0) {
        session->out = command->input;
        session->out_length = command->input ? command->input_length : 0;
        result = run_loop(session, feed, error);
        if (result == 0)
            result = bt_guest_session_finish(session, &status, error);
        bt_guest_session_close(session);
    }
    explicit_bzero(feed->data, sizeof(feed->data));
    free(feed);
    free(session);
    if (result == 0)
        *ret_status = status;
    return result;
}

struct collection {
    struct bt_buffer streams[2];
    bool is_full;
};

static int collect(void *context, bool is_stderr, const char *data, size_t length)
{
    struct collection *collection = context;
    if (bt_buffer_add(&collection->streams[is_stderr], data, length) == 0)
        return 0;
    collection->is_full = true;
    return 1;
}

int bt_guest_run_collect(struct bt_guest_link *link, const struct bt_guest_command *command, size_t limit,
                         struct bt_buffer *ret_output, struct bt_buffer *ret_errors, int *ret_status,
                         struct bt_error *error)
{
    struct collection collection = {.streams = {{.limit = limit}, {.limit = limit}}};
    struct bt_guest_command collecting = *command;
    collecting.on_output = collect;
    collecting.context = &collection;
    int result = bt_guest_run(link, &collecting, ret_status, error);
    if (collection.is_full)
        result = bt_fail(error, BT_EXIT_ERROR, EFBIG, NULL, "the command wrote more than %zu bytes", limit);
    if (result < 0) {
        bt_buffer_free(&collection.streams[0]);
        bt_buffer_free(&collection.streams[1]);
        return result;
    }
    *ret_output = collection.streams[0];
    *ret_errors = collection.streams[1];
    return 0;
}
