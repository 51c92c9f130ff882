/* Channels. See channel.h.
 *
 * System calls are what a proxy of small messages costs, so: reading stops at the first short read instead of
 * asking again, output is sent when the callback that wrote it returns instead of when the loop says that it
 * may be, and TLS reads and writes through a BIO of its own that needs no call for a record's header.
 */
#include "policy/gateway/channel.h"

#include <errno.h>
#include <event2/event_struct.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "lib/memory.h"

#define RECORD_MAX 16384U
#define WIRE_SIZE (80U * 1024) /* ciphertext of one system call */
#define WIRE_FULL (64U * 1024) /* no further record above this */
#define READ_SIZE (32U * 1024) /* of one system call */
#define PIECES_MAX 16

struct bt_channel_loop {
    struct event_base *base;
    struct event *flush; /* for what is written outside of a channel's own callbacks */
    BIO_METHOD *method;
    TAILQ_HEAD(bt_channel_list, bt_channel) dirty;
    void (*after)(void *context);
    void *context;
    unsigned depth; /* above 0: somebody will flush when the callback returns */
    size_t wire_length;
    char wire[WIRE_SIZE];
    char plain[READ_SIZE];
};

struct bt_channel {
    TAILQ_ENTRY(bt_channel) dirty_link;
    struct bt_channel_loop *loop;
    const struct bt_channel_events *events;
    void *context;
    evutil_socket_t fd;
    struct event readable, writable;
    /* Made active by bt_channel_poke and the like, and never waited for. `readable` would not do: event_add
     * does nothing to an event that is active and not waited for, and event_del takes an activation back. */
    struct event poked;
    SSL *ssl;
    struct evbuffer *input, *output;
    struct evbuffer *wire_input;  /* read before TLS began; NULL: none left */
    struct evbuffer *wire_output; /* encrypted, not sent; NULL: none ever was */
    enum bt_channel_end end;
    bool is_dirty, is_reading, is_paused, wants_reading, is_secure, is_drained, is_cut, was_above, has_news;
    bool is_finishing, is_shut, is_reset;
    bool *is_freed; /* of the frame that is in one of our callbacks */
    char error[120];
};

/* ---- the loop --------------------------------------------------------------------------------------------
 */

static void flush_all(struct bt_channel_loop *loop);

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    (void)what;
    flush_all(context);
}

static int wire_read(BIO *bio, char *data, int length);
static int wire_write(BIO *bio, const char *data, int length);

static long wire_control(BIO *bio, int command, long number, void *pointer)
{
    const struct bt_channel *channel = BIO_get_data(bio);
    (void)number;
    (void)pointer;
    if (command == BIO_CTRL_EOF)
        return channel->end != BT_CHANNEL_OPEN;
    return command == BIO_CTRL_FLUSH;
}

struct bt_channel_loop *bt_channel_loop_new(struct event_base *base)
{
    struct bt_channel_loop *loop = bt_new(1, sizeof(*loop));
    loop->base = base;
    TAILQ_INIT(&loop->dirty);
    loop->flush = event_new(base, -1, 0, on_flush, loop);
    loop->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "channel");
    if (loop->flush == NULL || loop->method == NULL)
        abort(); /* out of memory, as in bt_new */
    (void)BIO_meth_set_read(loop->method, wire_read);
    (void)BIO_meth_set_write(loop->method, wire_write);
    (void)BIO_meth_set_ctrl(loop->method, wire_control);
    return loop;
}

void bt_channel_loop_watch(struct bt_channel_loop *loop, void (*after)(void *context), void *context)
{
    loop->after = after;
    loop->context = context;
}

struct bt_channel_loop *bt_channel_loop_free(struct bt_channel_loop *loop)
{
    if (loop == NULL)
        return NULL;
    event_free(loop->flush);
    BIO_meth_free(loop->method);
    explicit_bzero(loop->plain, sizeof(loop->plain));
    free(loop);
    return NULL;
}

/* ---- callbacks -------------------------------------------------------------------------------------------
 */

/* Returns false when the callback freed the channel. */
static bool call(struct bt_channel *channel, void (*callback)(void *context))
{
    bool is_freed = false;
    if (callback == NULL)
        return true;
    /* Taken back below, unless the channel is gone. */
    // cppcheck-suppress autoVariables
    channel->is_freed = &is_freed;
    callback(channel->context);
    if (!is_freed)
        channel->is_freed = NULL;
    return !is_freed;
}

static bool tell_read(struct bt_channel *channel)
{
    return channel->events == NULL || call(channel, channel->events->on_read);
}

static void stop_watching(struct bt_channel *channel)
{
    if (channel->is_reading)
        (void)event_del(&channel->readable);
    channel->is_reading = false;
}

static void end(struct bt_channel *channel, enum bt_channel_end how, const char *error)
{
    stop_watching(channel);
    if (how <= channel->end)
        return;
    channel->end = how;
    if (how != BT_CHANNEL_BROKEN)
        return;
    (void)snprintf(channel->error, sizeof(channel->error), "%s", error);
    (void)event_del(&channel->writable);
    (void)evbuffer_drain(channel->output, evbuffer_get_length(channel->output));
    if (channel->wire_output != NULL)
        (void)evbuffer_drain(channel->wire_output, evbuffer_get_length(channel->wire_output));
}

/* ---- reading ---------------------------------------------------------------------------------------------
 */

/* Returns what recv(2) does; remembers when there is nothing more for now, and the end. */
static ssize_t receive(struct bt_channel *channel, void *data, size_t size)
{
    if (channel->is_drained || channel->end != BT_CHANNEL_OPEN) {
        errno = EAGAIN;
        return channel->end == BT_CHANNEL_OPEN ? -1 : 0;
    }
    ssize_t got = recv(channel->fd, data, size, 0);
    if (got == 0)
        end(channel, channel->ssl != NULL ? BT_CHANNEL_TRUNCATED : BT_CHANNEL_ENDED, "");
    else if (got < 0 && errno != EAGAIN && errno != EINTR)
        end(channel, BT_CHANNEL_BROKEN, strerror(errno));
    channel->is_drained = got < (ssize_t)size;
    return got;
}

static int wire_read(BIO *bio, char *data, int length)
{
    struct bt_channel *channel = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (channel->wire_input != NULL) {
        int taken = evbuffer_remove(channel->wire_input, data, (size_t)length);
        if (evbuffer_get_length(channel->wire_input) == 0) {
            evbuffer_free(channel->wire_input);
            channel->wire_input = NULL;
        }
        return taken;
    }
    ssize_t got = receive(channel, data, (size_t)length);
    if (got < 0 && channel->end == BT_CHANNEL_OPEN)
        BIO_set_retry_read(bio);
    return (int)got;
}

static void send_wire(struct bt_channel *channel);

static void tls_failed(struct bt_channel *channel, int result)
{
    int kind = SSL_get_error(channel->ssl, result);
    if (kind == SSL_ERROR_WANT_READ || kind == SSL_ERROR_WANT_WRITE)
        return;
    if (kind == SSL_ERROR_ZERO_RETURN) {
        end(channel, BT_CHANNEL_ENDED, "");
        return;
    }
    if (channel->end != BT_CHANNEL_OPEN && channel->is_secure)
        return;         /* the connection's own end, known already */
    send_wire(channel); /* the alert, as far as it goes */
    long verified = SSL_get_verify_result(channel->ssl);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    if (channel->end == BT_CHANNEL_TRUNCATED)
        reason = "the connection ended during the TLS handshake";
    else if (verified != X509_V_OK)
        reason = X509_verify_cert_error_string(verified);
    end(channel, BT_CHANNEL_BROKEN, reason != NULL ? reason : "TLS failed");
}

/* Returns whether something changed for the owner. */
static bool read_tls(struct bt_channel *channel, bool *ret_is_secured)
{
    bool is_news = false;
    ERR_clear_error();
    if (!channel->is_secure) {
        int result = SSL_do_handshake(channel->ssl);
        if (result != 1) {
            tls_failed(channel, result);
            return channel->end != BT_CHANNEL_OPEN;
        }
        channel->is_secure = *ret_is_secured = true;
    }
    channel->is_cut = true;
    while (evbuffer_get_length(channel->input) < BT_CHANNEL_INPUT_MAX) {
        int got = SSL_read(channel->ssl, channel->loop->plain, RECORD_MAX);
        if (got <= 0) {
            channel->is_cut = false;
            tls_failed(channel, got);
            break;
        }
        (void)evbuffer_add(channel->input, channel->loop->plain, (size_t)got);
        is_news = true;
    }
    return is_news || channel->end != BT_CHANNEL_OPEN;
}

static bool read_plain(struct bt_channel *channel)
{
    bool is_news = false;
    while (evbuffer_get_length(channel->input) < BT_CHANNEL_INPUT_MAX) {
        ssize_t got = receive(channel, channel->loop->plain, READ_SIZE);
        if (got <= 0)
            break;
        (void)evbuffer_add(channel->input, channel->loop->plain, (size_t)got);
        is_news = true;
    }
    return is_news || channel->end != BT_CHANNEL_OPEN;
}

static void on_input_change(struct evbuffer *input, const struct evbuffer_cb_info *change, void *context);

static void plan_reading(struct bt_channel *channel)
{
    bool is_full = evbuffer_get_length(channel->input) >= BT_CHANNEL_INPUT_MAX;
    if (is_full && !channel->is_paused) {
        channel->is_paused = true;
        (void)evbuffer_add_cb(channel->input, on_input_change, channel);
    }
    bool may_read = channel->wants_reading && !channel->is_paused && channel->end == BT_CHANNEL_OPEN;
    if (!may_read) {
        stop_watching(channel);
        return;
    }
    if (!channel->is_reading)
        (void)event_add(&channel->readable, NULL);
    channel->is_reading = true;
    /* TLS may hold bytes that the socket will not announce again. */
    if (channel->is_cut)
        event_active(&channel->poked, EV_READ, 0);
}

static void on_input_change(struct evbuffer *input, const struct evbuffer_cb_info *change, void *context)
{
    struct bt_channel *channel = context;
    (void)change;
    if (evbuffer_get_length(input) > BT_CHANNEL_INPUT_MAX / 2)
        return;
    (void)evbuffer_remove_cb(input, on_input_change, channel);
    channel->is_paused = false;
    plan_reading(channel);
}

/* Returns false when the channel was freed. */
static bool take_input(struct bt_channel *channel, short what)
{
    bool is_secured = false, is_news = channel->has_news;
    channel->has_news = false;
    enum bt_channel_end before = channel->end;
    if ((what & EV_READ) != 0 && !channel->is_paused && channel->wants_reading && before == BT_CHANNEL_OPEN) {
        channel->is_drained = false;
        bool is_read = channel->ssl != NULL ? read_tls(channel, &is_secured) : read_plain(channel);
        is_news = is_news || is_read;
        send_wire(channel);
    }
    if (is_secured && channel->events != NULL && !call(channel, channel->events->on_secure))
        return false;
    if (is_news && !tell_read(channel))
        return false;
    plan_reading(channel);
    return true;
}

static void on_readable(evutil_socket_t fd, short what, void *context)
{
    struct bt_channel *channel = context;
    struct bt_channel_loop *loop = channel->loop;
    (void)fd;
    loop->depth++;
    (void)take_input(channel, what);
    loop->depth--;
    flush_all(loop);
}

/* ---- writing ---------------------------------------------------------------------------------------------
 */

static int wire_write(BIO *bio, const char *data, int length)
{
    struct bt_channel *channel = BIO_get_data(bio);
    struct bt_channel_loop *loop = channel->loop;
    BIO_clear_retry_flags(bio);
    bool is_behind = channel->wire_output != NULL && evbuffer_get_length(channel->wire_output) > 0;
    if (!is_behind && (size_t)length <= sizeof(loop->wire) - loop->wire_length) {
        memcpy(loop->wire + loop->wire_length, data, (size_t)length);
        loop->wire_length += (size_t)length;
        return length;
    }
    if (channel->wire_output == NULL)
        channel->wire_output = evbuffer_new();
    if (!is_behind)
        (void)evbuffer_add(channel->wire_output, loop->wire, loop->wire_length);
    loop->wire_length = is_behind ? loop->wire_length : 0;
    (void)evbuffer_add(channel->wire_output, data, (size_t)length);
    return length;
}

/* Sends from a buffer until the socket takes no more. Returns false when something is left. */
static bool send_buffer(struct bt_channel *channel, struct evbuffer *buffer)
{
    while (evbuffer_get_length(buffer) > 0) {
        struct evbuffer_iovec pieces[PIECES_MAX];
        int count = evbuffer_peek(buffer, WIRE_FULL, NULL, pieces, PIECES_MAX);
        struct msghdr message = {.msg_iov = pieces,
                                 .msg_iovlen = (size_t)(count < PIECES_MAX ? count : PIECES_MAX)};
        ssize_t sent = sendmsg(channel->fd, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR)
            end(channel, BT_CHANNEL_BROKEN, strerror(errno));
        if (sent <= 0)
            return channel->end == BT_CHANNEL_BROKEN;
        (void)evbuffer_drain(buffer, (size_t)sent);
    }
    return true;
}

/* Sends what TLS wrote just now: the loop's scratch memory is empty afterwards. */
static void send_wire(struct bt_channel *channel)
{
    struct bt_channel_loop *loop = channel->loop;
    size_t length = loop->wire_length;
    loop->wire_length = 0;
    if (length > 0 && channel->end != BT_CHANNEL_BROKEN) {
        ssize_t sent = send(channel->fd, loop->wire, length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            end(channel, BT_CHANNEL_BROKEN, strerror(errno));
            return;
        }
        size_t done = sent > 0 ? (size_t)sent : 0;
        if (done < length && channel->wire_output == NULL)
            channel->wire_output = evbuffer_new();
        if (done < length)
            (void)evbuffer_add(channel->wire_output, loop->wire + done, length - done);
    }
    if (channel->wire_output != NULL && evbuffer_get_length(channel->wire_output) > 0 &&
        !event_pending(&channel->writable, EV_WRITE, NULL))
        (void)event_add(&channel->writable, NULL);
}

/* Encrypts one record from the output. */
static bool encrypt(struct bt_channel *channel)
{
    size_t length = evbuffer_get_length(channel->output);
    size_t size = length < RECORD_MAX ? length : RECORD_MAX;
    const void *data = channel->loop->plain;
    struct evbuffer_iovec first;
    (void)evbuffer_peek(channel->output, (ev_ssize_t)size, NULL, &first, 1);
    if (first.iov_len >= size)
        data = first.iov_base;
    else
        (void)evbuffer_copyout(channel->output, channel->loop->plain, size);
    int written = SSL_write(channel->ssl, data, (int)size);
    if (written <= 0) {
        tls_failed(channel, written);
        return false;
    }
    (void)evbuffer_drain(channel->output, (size_t)written);
    return true;
}

/* Returns true when everything was sent. */
static bool send_tls(struct bt_channel *channel)
{
    if (channel->wire_output != NULL && !send_buffer(channel, channel->wire_output))
        return false;
    ERR_clear_error();
    while (channel->is_secure && channel->end != BT_CHANNEL_BROKEN &&
           evbuffer_get_length(channel->output) > 0) {
        while (channel->loop->wire_length < WIRE_FULL && evbuffer_get_length(channel->output) > 0)
            if (!encrypt(channel))
                break;
        send_wire(channel);
        if (channel->wire_output != NULL && evbuffer_get_length(channel->wire_output) > 0)
            return false;
    }
    return true;
}

static void send_end(struct bt_channel *channel)
{
    if (!channel->is_shut && channel->ssl != NULL && channel->is_secure) {
        channel->is_shut = true;
        ERR_clear_error();
        (void)SSL_shutdown(channel->ssl);
        send_wire(channel);
        if (channel->wire_output != NULL && evbuffer_get_length(channel->wire_output) > 0)
            return; /* FIN follows once that is out */
    }
    channel->is_shut = true;
    channel->is_finishing = false;
    (void)shutdown(channel->fd, SHUT_WR);
}

static void flush(struct bt_channel *channel)
{
    enum bt_channel_end before = channel->end;
    if (before == BT_CHANNEL_BROKEN)
        return;
    bool is_done = channel->ssl != NULL ? send_tls(channel) : send_buffer(channel, channel->output);
    if (channel->end == BT_CHANNEL_BROKEN) {
        (void)tell_read(channel);
        return;
    }
    bool is_waiting = event_pending(&channel->writable, EV_WRITE, NULL) != 0;
    if (!is_done && !is_waiting)
        (void)event_add(&channel->writable, NULL);
    else if (is_done && is_waiting)
        (void)event_del(&channel->writable);
    if (is_done && channel->is_finishing && evbuffer_get_length(channel->output) == 0)
        send_end(channel);
    if (channel->was_above && bt_channel_waiting(channel) <= BT_CHANNEL_OUTPUT_LOW) {
        channel->was_above = false;
        if (channel->events != NULL)
            (void)call(channel, channel->events->on_write);
    }
}

static void flush_all(struct bt_channel_loop *loop)
{
    if (loop->depth > 0)
        return;
    loop->depth++;
    while (!TAILQ_EMPTY(&loop->dirty)) {
        struct bt_channel *channel = TAILQ_FIRST(&loop->dirty);
        TAILQ_REMOVE(&loop->dirty, channel, dirty_link);
        channel->is_dirty = false;
        flush(channel);
    }
    loop->depth--;
    if (loop->after != NULL)
        loop->after(loop->context);
}

static void on_writable(evutil_socket_t fd, short what, void *context)
{
    struct bt_channel *channel = context;
    struct bt_channel_loop *loop = channel->loop;
    (void)fd;
    (void)what;
    loop->depth++;
    flush(channel);
    loop->depth--;
    flush_all(loop);
}

/* ---- the interface ---------------------------------------------------------------------------------------
 */

/* From the beginning, so that the end of the process is a reset as well: of a body that only the end of its
 * connection ends, a part would be taken for the whole. */
static void reset_at_close(evutil_socket_t fd, bool is_reset)
{
    struct linger at_once = {is_reset, 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

struct bt_channel *bt_channel_new(struct bt_channel_loop *loop, evutil_socket_t fd,
                                  const struct bt_channel_events *events, void *context)
{
    struct bt_channel *channel = bt_new(1, sizeof(*channel));
    channel->loop = loop;
    channel->fd = fd;
    channel->events = events;
    channel->context = context;
    channel->wants_reading = true;
    reset_at_close(fd, true);
    channel->input = evbuffer_new();
    channel->output = evbuffer_new();
    if (channel->input == NULL || channel->output == NULL ||
        event_assign(&channel->readable, loop->base, fd, EV_READ | EV_PERSIST, on_readable, channel) < 0 ||
        event_assign(&channel->poked, loop->base, -1, 0, on_readable, channel) < 0 ||
        event_assign(&channel->writable, loop->base, fd, EV_WRITE | EV_PERSIST, on_writable, channel) < 0)
        abort(); /* out of memory, as in bt_new */
    plan_reading(channel);
    return channel;
}

struct bt_channel *bt_channel_free(struct bt_channel *channel)
{
    if (channel == NULL)
        return NULL;
    if (channel->is_freed != NULL)
        *channel->is_freed = true;
    if (channel->is_dirty)
        TAILQ_REMOVE(&channel->loop->dirty, channel, dirty_link);
    (void)event_del(&channel->readable);
    (void)event_del(&channel->writable);
    (void)event_del(&channel->poked);
    SSL_free(channel->ssl);
    evbuffer_free(channel->input);
    evbuffer_free(channel->output);
    if (channel->wire_input != NULL)
        evbuffer_free(channel->wire_input);
    if (channel->wire_output != NULL)
        evbuffer_free(channel->wire_output);
    if (!channel->is_reset)
        reset_at_close(channel->fd, false);
    (void)evutil_closesocket(channel->fd);
    free(channel);
    return NULL;
}

struct bt_channel *bt_channel_reset(struct bt_channel *channel)
{
    if (channel != NULL)
        channel->is_reset = true;
    return bt_channel_free(channel);
}

void bt_channel_set_events(struct bt_channel *channel, const struct bt_channel_events *events, void *context)
{
    channel->events = events;
    channel->context = context;
    if (evbuffer_get_length(channel->input) > 0 || channel->end != BT_CHANNEL_OPEN)
        bt_channel_poke(channel);
}

void bt_channel_poke(struct bt_channel *channel)
{
    channel->has_news = true;
    event_active(&channel->poked, 0, 0);
}

void bt_channel_start_tls(struct bt_channel *channel, SSL *ssl)
{
    BIO *bio = BIO_new(channel->loop->method);
    if (bio == NULL)
        abort(); /* out of memory, as in bt_new */
    BIO_set_data(bio, channel);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_read_ahead(ssl, 1);
    SSL_set_default_read_buffer_len(ssl, READ_SIZE);
    (void)SSL_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    channel->ssl = ssl;
    if (evbuffer_get_length(channel->input) > 0) {
        channel->wire_input = channel->input;
        channel->input = evbuffer_new();
        if (channel->input == NULL)
            abort(); /* out of memory, as in bt_new */
        channel->is_paused = false;
    }
    event_active(&channel->poked, EV_READ, 0);
}

const SSL *bt_channel_ssl(const struct bt_channel *channel)
{
    return channel->ssl;
}

struct evbuffer *bt_channel_input(struct bt_channel *channel)
{
    return channel->input;
}

enum bt_channel_end bt_channel_end_of(const struct bt_channel *channel)
{
    return channel->end;
}

const char *bt_channel_error(const struct bt_channel *channel)
{
    return channel->error;
}

void bt_channel_set_reading(struct bt_channel *channel, bool is_reading)
{
    channel->wants_reading = is_reading;
    plan_reading(channel);
}

void bt_channel_write(struct bt_channel *channel, const void *data, size_t length)
{
    (void)evbuffer_add(channel->output, data, length);
    bt_channel_touch(channel);
}

void bt_channel_write_buffer(struct bt_channel *channel, struct evbuffer *data)
{
    (void)evbuffer_add_buffer(channel->output, data);
    bt_channel_touch(channel);
}

struct evbuffer *bt_channel_output(struct bt_channel *channel)
{
    return channel->output;
}

void bt_channel_touch(struct bt_channel *channel)
{
    if (channel->end == BT_CHANNEL_BROKEN) {
        (void)evbuffer_drain(channel->output, evbuffer_get_length(channel->output));
        return;
    }
    channel->was_above = channel->was_above || bt_channel_waiting(channel) > BT_CHANNEL_OUTPUT_LOW;
    if (channel->is_dirty || event_pending(&channel->writable, EV_WRITE, NULL))
        return;
    channel->is_dirty = true;
    TAILQ_INSERT_TAIL(&channel->loop->dirty, channel, dirty_link);
    if (channel->loop->depth == 0)
        event_active(channel->loop->flush, 0, 0);
}

size_t bt_channel_waiting(const struct bt_channel *channel)
{
    return evbuffer_get_length(channel->output) +
           (channel->wire_output != NULL ? evbuffer_get_length(channel->wire_output) : 0);
}

size_t bt_channel_weight(const struct bt_channel *channel)
{
    return bt_channel_waiting(channel) + evbuffer_get_length(channel->input) +
           (channel->wire_input != NULL ? evbuffer_get_length(channel->wire_input) : 0);
}

void bt_channel_finish(struct bt_channel *channel)
{
    if (channel->is_shut)
        return;
    channel->is_finishing = true;
    bt_channel_touch(channel);
}
