/* For the tests of the HTTP/1.1 codec: one connection over a socket pair, an owner that writes down what it
 * is told, and the peer at the other end. */
#ifndef BERTH_TESTS_UNIT_HTTP1_FIXTURE_H
#define BERTH_TESTS_UNIT_HTTP1_FIXTURE_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "lib/memory.h"
#include "policy/gateway/http1_codec.h"

/* What an owner of streams saw, as text: "head GET / a.example", "data ...", "end", "abort 1", ... */
struct owner {
    struct event_base *base;
    struct bt_channel_loop *loop;
    struct bt_http1 *http1;
    struct bt_stream *stream;
    int peer;
    struct bt_buffer seen;
    bool keeps; /* does not consume */
    bool is_closed;
    size_t held;
};

static inline void note(struct owner *owner, const char *format, ...) BT_PRINTF(2, 3);
static inline void note(struct owner *owner, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    assert_int_equal(bt_buffer_add_text(&owner->seen, text), 0);
}

static inline void on_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    struct owner *owner = context;
    (void)stream;
    if (head->status != 0)
        note(owner, "[%u %lld%s", head->status, (long long)head->content_length,
             head->is_complete ? " complete" : "");
    else
        note(owner, "[%.*s %.*s://%.*s%.*s%s", (int)head->method.length, head->method.data,
             (int)head->scheme.length, head->scheme.data, (int)head->authority.length, head->authority.data,
             (int)head->path.length, head->path.data, head->is_complete ? " complete" : "");
    if (head->protocol.length > 0)
        note(owner, " %.*s", (int)head->protocol.length, head->protocol.data);
    for (size_t i = 0; i < head->field_count; i++)
        note(owner, " %.*s=%.*s", (int)head->fields[i].name.length, head->fields[i].name.data,
             (int)head->fields[i].value.length, head->fields[i].value.data);
    note(owner, "]");
}

static inline void on_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct owner *owner = context;
    if (length < 200)
        note(owner, "%.*s", (int)length, (const char *)data);
    owner->held += length;
    if (!owner->keeps)
        stream->operations->consume(stream, length);
}

static inline void on_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct owner *owner = context;
    (void)stream;
    note(owner, "<end");
    for (size_t i = 0; trailers != NULL && i < trailers->field_count; i++)
        note(owner, " %.*s=%.*s", (int)trailers->fields[i].name.length, trailers->fields[i].name.data,
             (int)trailers->fields[i].value.length, trailers->fields[i].value.data);
    note(owner, ">");
}

static inline void on_room(void *context, struct bt_stream *stream)
{
    (void)context;
    (void)stream;
}

static inline void on_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct owner *owner = context;
    (void)stream;
    note(owner, "<abort %d>", (int)reason);
}

static const struct bt_stream_events stream_events = {
    .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_room = on_room, .on_abort = on_abort};

static inline void on_stream(void *context, struct bt_stream *stream, const struct bt_http_head *raw)
{
    struct owner *owner = context;
    (void)raw;
    owner->stream = stream;
    stream->events = &stream_events;
    stream->context = owner;
}

static inline void on_fault(void *context, struct bt_stream *stream, const struct bt_http1_fault *fault)
{
    struct owner *owner = context;
    owner->stream = stream;
    note(owner, "<fault %u>", fault->status);
}

static inline void on_idle(void *context)
{
    note(context, "<idle>");
}

static inline void on_close(void *context)
{
    struct owner *owner = context;
    note(owner, "<close>");
    owner->is_closed = true;
}

static const struct bt_http1_events codec_events = {
    .on_stream = on_stream, .on_fault = on_fault, .on_idle = on_idle, .on_close = on_close};

static inline void turn(struct owner *owner)
{
    for (int i = 0; i < 6; i++)
        (void)event_base_loop(owner->base, EVLOOP_NONBLOCK);
}

static inline void open_owner(struct owner *owner, bool is_client, bool is_proxy)
{
    struct bt_http1_settings settings = {.is_client = is_client, .is_proxy = is_proxy, .scheme = "https"};
    int ends[2];
    *owner = (struct owner){.base = event_base_new()};
    assert_non_null(owner->base);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    owner->loop = bt_channel_loop_new(owner->base);
    owner->peer = ends[1];
    owner->http1 =
        bt_http1_new(bt_channel_new(owner->loop, ends[0], NULL, NULL), &settings, &codec_events, owner);
    if (!is_client)
        return;
    owner->stream = bt_http1_open(owner->http1);
    assert_non_null(owner->stream);
    owner->stream->events = &stream_events;
    owner->stream->context = owner;
}

static inline void close_owner(struct owner *owner)
{
    bt_http1_free(owner->http1);
    if (owner->peer >= 0)
        (void)close(owner->peer);
    bt_channel_loop_free(owner->loop);
    event_base_free(owner->base);
    bt_buffer_free(&owner->seen);
}

static inline void peer_sends(struct owner *owner, const char *text, size_t piece)
{
    size_t length = strlen(text);
    for (size_t at = 0; at < length; at += piece) {
        size_t part = length - at < piece ? length - at : piece;
        assert_int_equal(send(owner->peer, text + at, part, MSG_NOSIGNAL), part);
        turn(owner);
    }
}

static inline void peer_ends(struct owner *owner)
{
    (void)shutdown(owner->peer, SHUT_WR);
    turn(owner);
}

static inline void assert_seen(struct owner *owner, const char *wanted)
{
    assert_string_equal(owner->seen.data != NULL ? owner->seen.data : "", wanted);
    bt_buffer_free(&owner->seen);
}

/* What came to the peer since the last time. */
static inline void assert_peer(struct owner *owner, const char *wanted)
{
    char text[4096];
    turn(owner);
    ssize_t got = recv(owner->peer, text, sizeof(text) - 1, MSG_DONTWAIT);
    text[got > 0 ? got : 0] = '\0';
    assert_string_equal(text, wanted);
}

static inline struct bt_http_slice slice(const char *text)
{
    return (struct bt_http_slice){text, strlen(text)};
}

static inline void release(struct owner *owner)
{
    struct bt_stream *stream = BT_TAKE(owner->stream);
    stream->operations->release(stream);
    turn(owner);
}

#endif
