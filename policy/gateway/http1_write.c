/* What goes to a peer: heads written anew, bodies framed. See http1_codec.h. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "policy/gateway/http1_internal.h"

static const struct {
    unsigned status;
    const char *phrase;
} phrases[] = {
    {100, "Continue"},
    {101, "Switching Protocols"},
    {103, "Early Hints"},
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {206, "Partial Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {304, "Not Modified"},
    {307, "Temporary Redirect"},
    {308, "Permanent Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {421, "Misdirected Request"},
    {429, "Too Many Requests"},
    {500, "Internal Server Error"},
    {502, "Bad Gateway"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
};

static struct bt_http_slice phrase_of(const struct bt_message *head)
{
    if (head->reason.length > 0)
        return head->reason;
    for (size_t i = 0; i < BT_ARRAY_LENGTH(phrases); i++)
        if (phrases[i].status == head->status)
            return (struct bt_http_slice){phrases[i].phrase, strlen(phrases[i].phrase)};
    return (struct bt_http_slice){"", 0};
}

/* A head is put together in one piece of the output's own memory. */
struct writer {
    char *at;
};

static void put(struct writer *writer, const char *data, size_t length)
{
    if (length > 0)
        memcpy(writer->at, data, length);
    writer->at += length;
}

static void put_slice(struct writer *writer, struct bt_http_slice slice)
{
    put(writer, slice.data, slice.length);
}

static void put_text(struct writer *writer, const char *text)
{
    put(writer, text, strlen(text));
}

static void put_fields(struct writer *writer, const struct bt_message *message)
{
    for (size_t i = 0; i < message->field_count; i++) {
        put_slice(writer, message->fields[i].name);
        put(writer, ": ", 2);
        put_slice(writer, message->fields[i].value);
        put(writer, "\r\n", 2);
    }
}

#define LINE_ROOM 512 /* status line or fixed parts of a request line, framing and connection fields */

static size_t size_of(const struct bt_message *message)
{
    size_t size = LINE_ROOM + message->reason.length + message->method.length + message->path.length +
                  2 * message->authority.length + message->protocol.length;
    for (size_t i = 0; i < message->field_count; i++)
        size += message->fields[i].name.length + message->fields[i].value.length + 4;
    return size;
}

/* Lets fill write at most size bytes. */
static void write_piece(struct bt_http1 *http1, const struct bt_message *head, size_t size, bool is_end,
                        void (*fill)(struct bt_http1 *http1, const struct bt_message *head, bool is_end,
                                     struct writer *writer))
{
    struct evbuffer *output = bt_channel_output(http1->channel);
    struct evbuffer_iovec space;
    if (evbuffer_reserve_space(output, (ev_ssize_t)size, &space, 1) != 1)
        return;
    struct writer writer = {space.iov_base};
    fill(http1, head, is_end, &writer);
    space.iov_len = (size_t)(writer.at - (char *)space.iov_base);
    (void)evbuffer_commit_space(output, &space, 1);
    bt_channel_touch(http1->channel);
}

static void put_length(struct writer *writer, uint64_t length)
{
    char text[48];
    int written = snprintf(text, sizeof(text), "content-length: %llu\r\n", (unsigned long long)length);
    put(writer, text, (size_t)written);
}

/* Writes the field that frames what follows, and remembers it. */
static void put_framing(struct bt_http1 *http1, const struct bt_message *head, bool is_end, bool needs_length,
                        struct writer *writer)
{
    if (is_end) {
        http1->sending = BT_SEND_DONE;
        if (head->content_length >= 0 || needs_length)
            put_length(writer, 0);
    } else if (head->content_length >= 0) {
        http1->sending = BT_SEND_LENGTH;
        http1->send_left = (uint64_t)head->content_length;
        put_length(writer, http1->send_left);
    } else if (http1->is_old) {
        http1->sending = BT_SEND_CLOSE;
    } else {
        http1->sending = BT_SEND_CHUNKED;
        put_text(writer, "transfer-encoding: chunked\r\n");
    }
}

static void fill_request(struct bt_http1 *http1, const struct bt_message *head, bool is_end,
                         struct writer *writer)
{
    const struct bt_http1_settings *settings = &http1->settings;
    bool may_have_body = bt_http_slice_is(head->method, "POST") || bt_http_slice_is(head->method, "PUT") ||
                         bt_http_slice_is(head->method, "PATCH");
    put_slice(writer, head->method);
    put(writer, " ", 1);
    if (settings->is_proxy) {
        put_text(writer, "http://");
        put_slice(writer, head->authority);
    }
    put_slice(writer, head->path);
    put_text(writer, " HTTP/1.1\r\nhost: ");
    put_slice(writer, head->authority);
    put(writer, "\r\n", 2);
    if (settings->is_proxy && settings->authorization != NULL) {
        put_text(writer, "proxy-authorization: Basic ");
        put_text(writer, settings->authorization);
        put(writer, "\r\n", 2);
    }
    put_fields(writer, head);
    http1->is_head_only = bt_http_slice_is(head->method, "HEAD");
    http1->is_raw_asked = head->protocol.length > 0;
    if (http1->is_raw_asked) {
        bt_http1_websocket_key(http1->websocket_key);
        put_text(writer, "connection: Upgrade\r\nupgrade: ");
        put_slice(writer, head->protocol);
        put_text(writer, "\r\nsec-websocket-key: ");
        put_text(writer, http1->websocket_key);
        put(writer, "\r\n", 2);
        http1->sending = BT_SEND_NOTHING;
    } else {
        put_framing(http1, head, is_end, may_have_body, writer);
    }
    if (head->expects_continue)
        put_text(writer, "expect: 100-continue\r\n");
    put(writer, "\r\n", 2);
}

static void fill_status(const struct bt_message *head, struct writer *writer)
{
    char line[32];
    int written = snprintf(line, sizeof(line), "HTTP/1.1 %u ", head->status);
    put(writer, line, (size_t)written);
    put_slice(writer, phrase_of(head));
    put(writer, "\r\n", 2);
    put_fields(writer, head);
}

static void fill_interim(struct bt_http1 *http1, const struct bt_message *head, bool is_end,
                         struct writer *writer)
{
    (void)is_end;
    fill_status(head, writer);
    if (head->status == 101) {
        char accept[BT_WEBSOCKET_ACCEPT_SIZE];
        bt_http1_websocket_accept(http1->websocket_key, accept);
        put_text(writer, "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: ");
        put_text(writer, accept);
        put(writer, "\r\n", 2);
        http1->sending = BT_SEND_RAW;
        http1->must_close = true;
    }
    put(writer, "\r\n", 2);
}

static void fill_response(struct bt_http1 *http1, const struct bt_message *head, bool is_end,
                          struct writer *writer)
{
    bool is_tunnel = http1->is_connect && head->status < 300;
    bool is_bare = http1->is_head_only || head->status == 204 || head->status == 304 || is_tunnel;
    fill_status(head, writer);
    if (is_bare) {
        http1->sending = is_end ? BT_SEND_DONE : BT_SEND_NOTHING;
        if (head->content_length >= 0 && head->status != 204)
            put_length(writer, (uint64_t)head->content_length);
    } else {
        put_framing(http1, head, is_end, true, writer);
    }
    /* What is left of a request that was refused is not read. */
    if (http1->receiving != BT_RECEIVE_DONE && head->status >= 400)
        http1->must_close = true;
    if (http1->must_close && !is_tunnel)
        put_text(writer, "connection: close\r\n");
    put(writer, "\r\n", 2);
}

int bt_http1_send_head(struct bt_stream *stream, const struct bt_message *head, bool is_end)
{
    struct bt_http1 *http1 = (struct bt_http1 *)stream;
    if (http1->is_failed)
        return -EPIPE;
    size_t size =
        size_of(head) + (http1->settings.authorization != NULL ? strlen(http1->settings.authorization) : 0);
    if (http1->settings.is_client) {
        write_piece(http1, head, size, is_end, fill_request);
        return 0;
    }
    if (head->status == 101 && !http1->is_raw_asked)
        return -EPIPE;
    if (head->status < 200) {
        if (http1->is_old)
            return 0;
        write_piece(http1, head, size, is_end, fill_interim);
        if (head->status == 101)
            bt_channel_poke(http1->channel); /* bytes of the other protocol may be waiting */
        return 0;
    }
    if (http1->is_raw_asked) {
        /* Refused: what the client sends next is a request again. */
        http1->receiving = BT_RECEIVE_DONE;
        http1->is_raw_asked = false;
    }
    write_piece(http1, head, size, is_end, fill_response);
    return 0;
}

size_t bt_http1_room(const struct bt_stream *stream)
{
    const struct bt_http1 *http1 = (const struct bt_http1 *)stream;
    size_t waiting = bt_channel_waiting(http1->channel);
    return waiting < BT_STREAM_HELD_MAX ? BT_STREAM_HELD_MAX - waiting : 0;
}

int bt_http1_send_data(struct bt_stream *stream, const void *data, size_t length)
{
    struct bt_http1 *http1 = (struct bt_http1 *)stream;
    char size[24];
    if (http1->is_failed || http1->sending == BT_SEND_DONE)
        return -EPIPE;
    if (length == 0 || http1->sending == BT_SEND_NOTHING)
        return 0;
    if (http1->sending == BT_SEND_LENGTH) {
        if (length > http1->send_left)
            return -EPIPE;
        http1->send_left -= length;
    }
    struct evbuffer *output = bt_channel_output(http1->channel);
    if (http1->sending == BT_SEND_CHUNKED)
        (void)evbuffer_add(output, size, (size_t)snprintf(size, sizeof(size), "%zx\r\n", length));
    (void)evbuffer_add(output, data, length);
    if (http1->sending == BT_SEND_CHUNKED)
        (void)evbuffer_add(output, "\r\n", 2);
    bt_channel_touch(http1->channel);
    return 0;
}

static void fill_trailers(struct bt_http1 *http1, const struct bt_message *trailers, bool is_end,
                          struct writer *writer)
{
    (void)http1;
    (void)is_end;
    put_text(writer, "0\r\n");
    if (trailers != NULL)
        put_fields(writer, trailers);
    put(writer, "\r\n", 2);
}

int bt_http1_send_end(struct bt_stream *stream, const struct bt_message *trailers)
{
    struct bt_http1 *http1 = (struct bt_http1 *)stream;
    if (http1->is_failed)
        return -EPIPE;
    switch (http1->sending) {
    case BT_SEND_LENGTH:
        if (http1->send_left > 0)
            return -EPIPE; /* released like this, the connection is reset */
        break;
    case BT_SEND_CHUNKED:
        write_piece(http1, trailers, trailers != NULL ? size_of(trailers) : LINE_ROOM, true, fill_trailers);
        break;
    case BT_SEND_RAW:
        bt_channel_finish(http1->channel);
        http1->is_finished = true;
        break;
    case BT_SEND_HEAD:
        return -EPIPE;
    case BT_SEND_CLOSE:
    case BT_SEND_NOTHING:
    case BT_SEND_DONE:
        break;
    }
    http1->sending = BT_SEND_DONE;
    return 0;
}
