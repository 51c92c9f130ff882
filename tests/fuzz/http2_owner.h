/* What the fuzzers of the HTTP/2 codec share: an owner that does to streams what exchange.c does, and looks
 * at each call; the input as a script of acts. Included by one file of a program. */
#ifndef BERTH_TESTS_FUZZ_HTTP2_OWNER_H
#define BERTH_TESTS_FUZZ_HTTP2_OWNER_H

#include <string.h>

#include "policy/gateway/http2_connection.h"
#include "tests/lib/fake/gateway_clock.h"
#include "tests/lib/memory_channel.h"

#define OWNED_MAX 160

struct owned {
    struct bt_stream *stream; /* NULL: this place is free */
    size_t held;
    bool has_head, has_ended, is_aborted, is_sent, is_finished;
};

struct script {
    const uint8_t *at;
    size_t left;
};

static struct world {
    struct event_base *base;
    struct bt_channel *channel;
    bool is_gone;
    struct bt_http2 *http2;
    struct owned owned[OWNED_MAX];
    struct script script;
    bool is_over;
} world;

#define REQUIRE(condition)                                                                                   \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            abort();                                                                                         \
    } while (false)

static uint8_t next(void)
{
    if (world.script.left == 0)
        return 0;
    world.script.left--;
    return *world.script.at++;
}

/* ---- what is delivered ------------------------------------------------------------------------------------
 */

static bool has_bytes(struct bt_http_slice text, const char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (text.length > 0 && memchr(text.data, bytes[i], text.length) != NULL)
            return true;
    return false;
}

/* What an HTTP/1.1 leg relies upon. */
static void look_at(const struct bt_message *message, bool is_request, bool is_trailers)
{
    REQUIRE(message->field_count <= BT_HTTP_FIELDS_MAX);
    for (size_t i = 0; i < message->field_count; i++) {
        struct bt_http_slice name = message->fields[i].name, value = message->fields[i].value;
        REQUIRE(name.length > 0 && !has_bytes(name, "\0\r\n :", 5) && !has_bytes(value, "\0\r\n", 3));
        for (size_t at = 0; at < name.length; at++)
            REQUIRE(name.data[at] < 'A' || name.data[at] > 'Z');
        REQUIRE(!bt_http_slice_is(name, "connection") && !bt_http_slice_is(name, "transfer-encoding") &&
                !bt_http_slice_is(name, "content-length") && !bt_http_slice_is(name, "host") &&
                !bt_http_slice_is(name, "te") && !bt_http_slice_is(name, "upgrade"));
    }
    if (is_trailers)
        return;
    if (!is_request) {
        REQUIRE(message->status >= 100 && message->status <= 599);
        return;
    }
    REQUIRE(message->method.length > 0 && !has_bytes(message->method, "\0\r\n ", 4));
    REQUIRE(message->authority.length > 0 && !has_bytes(message->authority, "\0\r\n @/", 6));
    REQUIRE(message->path.length > 0 && !has_bytes(message->path, "\0\r\n ", 4));
    REQUIRE(message->path.data[0] == '/' || bt_http_slice_is(message->path, "*"));
    REQUIRE(bt_http_slice_is(message->scheme, "https"));
    REQUIRE(!bt_http_slice_is(message->method, "CONNECT"));
}

static void maybe_free(void)
{
    if (next() == 0xfe && world.http2 != NULL)
        world.http2 = bt_http2_free(world.http2);
}

static void on_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    struct owned *owned = context;
    REQUIRE(owned->stream == stream && !owned->has_ended && !owned->is_aborted);
    look_at(head, head->status == 0, false);
    owned->has_head = head->status == 0 || head->status == 101 || head->status >= 200;
    maybe_free();
}

static void on_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct owned *owned = context;
    REQUIRE(owned->stream == stream && owned->has_head && !owned->has_ended && !owned->is_aborted);
    REQUIRE(data != NULL && length > 0);
    owned->held += length;
    REQUIRE(owned->held <= (world.http2->role == BT_HTTP2_SERVER ? BT_STREAM_HELD_MAX : BT_HTTP2_WINDOW_MAX));
    maybe_free();
}

static void on_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct owned *owned = context;
    REQUIRE(owned->stream == stream && owned->has_head && !owned->has_ended && !owned->is_aborted);
    owned->has_ended = true;
    if (trailers != NULL)
        look_at(trailers, false, true);
    maybe_free();
}

static void on_room(void *context, struct bt_stream *stream)
{
    struct owned *owned = context;
    REQUIRE(owned->stream == stream && !owned->is_aborted && !owned->is_finished);
    REQUIRE(stream->operations->room(stream) > 0);
    maybe_free();
}

static void on_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct owned *owned = context;
    REQUIRE(owned->stream == stream && !owned->is_aborted && !(owned->has_ended && owned->is_finished));
    REQUIRE(reason <= BT_ABORT_LOST);
    owned->is_aborted = true;
}

static const struct bt_stream_events stream_events = {on_head, on_data, on_end, on_room, on_abort};

static struct owned *free_place(void)
{
    for (size_t i = 0; i < OWNED_MAX; i++)
        if (world.owned[i].stream == NULL)
            return &world.owned[i];
    return NULL;
}

static bool on_stream(void *context, struct bt_stream *stream)
{
    struct owned *owned = free_place();
    (void)context;
    if (owned == NULL)
        return false;
    *owned = (struct owned){.stream = stream};
    stream->events = &stream_events;
    stream->context = owned;
    return true;
}

static void on_malformed(void *context, const char *reason)
{
    (void)context;
    REQUIRE(reason != NULL);
}

static void on_connection_end(void *context, const char *reason)
{
    (void)context;
    REQUIRE(reason != NULL && !world.is_over);
    world.is_over = true;
}

static void on_capacity(void *context)
{
    (void)context;
    maybe_free();
}

static const struct bt_http2_events events = {on_stream, on_malformed, on_capacity, on_connection_end};

/* ---- what the owner does ----------------------------------------------------------------------------------
 */

static void release(struct owned *owned)
{
    struct bt_stream *stream = BT_TAKE(owned->stream);
    stream->operations->release(stream);
}

static void send_head(struct owned *owned, bool is_request, uint8_t choice)
{
    struct bt_message message = {.content_length = -1};
    if (is_request) {
        message.method = (struct bt_http_slice){(choice & 1) != 0 ? "HEAD" : "POST", 4};
        message.scheme = (struct bt_http_slice){"https", 5};
        message.authority = (struct bt_http_slice){"a.example", 9};
        message.path = (struct bt_http_slice){"/", 1};
        if ((choice & 2) != 0)
            message.protocol = (struct bt_http_slice){"websocket", 9};
    } else {
        static const uint16_t statuses[] = {100, 101, 200, 204, 304, 403, 103, 599};
        message.status = statuses[choice % 8];
    }
    bool is_end = (choice & 0x80) != 0;
    bool is_interim = !is_request && message.status < 200 && message.status != 101;
    if (owned->stream->operations->send_head(owned->stream, &message, is_end) != 0 || is_interim)
        return;
    owned->is_sent = true;
    owned->is_finished = is_end && message.protocol.length == 0;
}

static void send_some(struct owned *owned, uint8_t choice)
{
    static const char zeros[BT_STREAM_HELD_MAX];
    size_t room = owned->stream->operations->room(owned->stream);
    REQUIRE(room <= BT_STREAM_HELD_MAX);
    (void)owned->stream->operations->send_data(owned->stream, zeros, room * choice / 255);
}

static void send_end(struct owned *owned, uint8_t choice)
{
    struct bt_message trailers = {.content_length = -1, .field_count = 1};
    trailers.fields[0] = (struct bt_http_field){{"x", 1}, {"y", 1}};
    if (owned->stream->operations->send_end(owned->stream, (choice & 1) != 0 ? &trailers : NULL) == 0)
        owned->is_finished = true;
}

/* One act on one stream. */
static void act(bool is_client, uint8_t what)
{
    struct owned *owned = &world.owned[next() % OWNED_MAX];
    uint8_t choice = next();
    if (owned->stream == NULL)
        return;
    switch (what % 8) {
    case 0:
        send_head(owned, is_client, choice);
        return;
    case 1:
        send_some(owned, choice);
        return;
    case 2:
        send_end(owned, choice);
        return;
    case 3:
        owned->stream->operations->consume(owned->stream, owned->held * choice / 255);
        owned->held -= owned->held * choice / 255;
        return;
    case 4:
        owned->stream->operations->abort(owned->stream, (enum bt_abort)(choice % 5));
        owned->is_finished = owned->has_ended = true; /* nothing is told any more */
        owned->is_aborted = true;
        return;
    default:
        release(owned);
        return;
    }
}

static void look_at_bounds(void)
{
    if (world.is_gone || world.http2 == NULL)
        return;
    REQUIRE(evbuffer_get_length(world.channel->output) <= BT_HTTP2_OUTPUT_MAX + 16384 + 9);
    REQUIRE(world.http2->memory <= BT_HTTP2_MEMORY_MAX + 4096);
    REQUIRE(world.http2->stream_count <= 2 * BT_HTTP2_STREAMS_MAX);
}

static void turn(void)
{
    event_base_loop(world.base, EVLOOP_NONBLOCK);
    look_at_bounds();
}

static void drain_output(void)
{
    static char piece[16384];
    while (!world.is_gone && memory_channel_take(world.channel, piece, sizeof(piece)) > 0)
        turn();
}

/* The script: a byte below 0xc0 gives so many bytes of it (times four) to the codec; the others are acts. */
static void play(bool is_client)
{
    while (world.script.left > 0 && !world.is_gone && world.http2 != NULL) {
        uint8_t what = next();
        if (what < 0xc0) {
            size_t length = (size_t)what * 4 < world.script.left ? (size_t)what * 4 : world.script.left;
            const uint8_t *from = world.script.at;
            world.script.at += length;
            world.script.left -= length;
            (void)memory_channel_feed(world.channel, from, length);
        } else if (what < 0xe0) {
            act(is_client, what);
        } else if (what < 0xe8) {
            drain_output();
        } else if (what < 0xf0) {
            now_ms += 20000;
            event_active(world.http2->watch, EV_TIMEOUT, 0);
        } else if (what < 0xf4) {
            bt_http2_drain(world.http2);
        } else if (what < 0xfc && is_client) {
            struct owned *owned = free_place();
            if (owned != NULL) {
                *owned = (struct owned){0};
                owned->stream = bt_http2_open(world.http2);
                if (owned->stream != NULL) {
                    owned->stream->events = &stream_events;
                    owned->stream->context = owned;
                }
            }
        } else if (what == 0xff) {
            memory_channel_end(world.channel, BT_CHANNEL_ENDED);
        }
        turn();
    }
}

static int run(enum bt_http2_role role, const uint8_t *data, size_t size, const void *opening,
               size_t opening_length)
{
    struct event_base *base = world.base != NULL ? world.base : event_base_new();
    memset(&world, 0, sizeof(world));
    now_ms = 1000;
    world.base = base;
    world.channel = memory_channel_new(&world.is_gone);
    world.script = (struct script){data, size};
    world.http2 = bt_http2_new(world.base, world.channel, role, "https", &events, NULL);
    turn();
    (void)memory_channel_feed(world.channel, opening, opening_length);
    play(role == BT_HTTP2_CLIENT);
    drain_output();
    if (world.http2 != NULL)
        world.http2 = bt_http2_free(world.http2);
    REQUIRE(world.is_gone);
    for (size_t i = 0; i < OWNED_MAX; i++)
        if (world.owned[i].stream != NULL)
            release(&world.owned[i]);
    return 0;
}

#endif
