/* For the tests of the HTTP/2 codec: one connection on a channel in memory, an owner that writes down what it
 * is told, and the peer's side made by hand, frame by frame. */
#ifndef BERTH_TESTS_UNIT_HTTP2_FIXTURE_H
#define BERTH_TESTS_UNIT_HTTP2_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "policy/gateway/http2_connection.h"
#include "tests/lib/fake/gateway_clock.h"
#include "tests/lib/memory_channel.h"

#define STREAMS 600

/* One stream as its owner knows it. */
struct seen {
    struct bt_stream *stream; /* NULL: released */
    unsigned heads, ends, rooms, aborts;
    char head[600], trailers[200];
    bool is_complete;
    char body[64];
    size_t length, held;
    enum bt_abort reason;
};

struct world {
    struct event_base *base;
    struct bt_channel *channel;
    bool is_gone; /* the channel was freed */
    struct bt_http2 *http2;
    const char *end_reason; /* on_end */
    char malformed[100];
    unsigned malformed_count, capacity_count;
    struct seen seen[STREAMS];
    size_t seen_count;
    bool is_holding; /* nothing is consumed */
    bool is_refusing;
    const char *free_in; /* the callback in which the connection is freed */

    nghttp2_hd_deflater *deflater;
    nghttp2_hd_inflater *inflater;
    struct bt_buffer input; /* the peer's: not parsed yet */
    struct bt_buffer log;   /* one line a frame */
    size_t data_length;     /* in DATA frames */
    size_t magic_left;      /* what a client says before its first frame */
    size_t output_most, memory_most;
};

static struct world *world;

/* ---- the owner --------------------------------------------------------------------------------------------
 */

static inline void free_in(const char *where)
{
    if (world->free_in != NULL && strcmp(world->free_in, where) == 0 && world->http2 != NULL)
        world->http2 = bt_http2_free(world->http2);
}

static inline void describe(const struct bt_message *message, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
#define ADD(...) at += (size_t)snprintf(text + at, at < size ? size - at : 0, __VA_ARGS__)
    if (message->status != 0)
        ADD("%u", message->status);
    else if (message->method.length > 0)
        ADD("%.*s %.*s %.*s %.*s", (int)message->method.length, message->method.data,
            (int)message->scheme.length, message->scheme.data, (int)message->authority.length,
            message->authority.data, (int)message->path.length, message->path.data);
    if (message->protocol.length > 0)
        ADD(" protocol=%.*s", (int)message->protocol.length, message->protocol.data);
    if (message->content_length >= 0)
        ADD(" length=%lld", (long long)message->content_length);
    if (message->expects_continue)
        ADD(" continue");
    for (size_t i = 0; i < message->field_count && at < size; i++)
        ADD(" %.*s=%.*s", (int)message->fields[i].name.length, message->fields[i].name.data,
            (int)message->fields[i].value.length, message->fields[i].value.data);
#undef ADD
}

static inline void on_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    struct seen *seen = context;
    assert_ptr_equal(seen->stream, stream);
    assert_int_equal(seen->ends + seen->aborts, 0);
    describe(head, seen->head, sizeof(seen->head));
    seen->is_complete = head->is_complete;
    seen->heads++;
    free_in("head");
}

static inline void on_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct seen *seen = context;
    assert_ptr_equal(seen->stream, stream);
    assert_true(seen->heads > 0 && seen->ends + seen->aborts == 0 && length > 0);
    for (size_t i = 0; i < length && seen->length + i < sizeof(seen->body) - 1; i++)
        seen->body[seen->length + i] = ((const char *)data)[i];
    seen->length += length;
    seen->held += length;
    assert_true(seen->held <=
                (world->http2->role == BT_HTTP2_SERVER ? BT_STREAM_HELD_MAX : BT_HTTP2_WINDOW_MAX));
    if (!world->is_holding) {
        stream->operations->consume(stream, seen->held);
        seen->held = 0;
    }
    free_in("data");
}

static inline void on_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct seen *seen = context;
    assert_ptr_equal(seen->stream, stream);
    assert_true(seen->heads > 0 && seen->ends + seen->aborts == 0);
    if (trailers != NULL)
        describe(trailers, seen->trailers, sizeof(seen->trailers));
    seen->ends++;
    free_in("end");
}

static inline void on_room(void *context, struct bt_stream *stream)
{
    struct seen *seen = context;
    assert_ptr_equal(seen->stream, stream);
    assert_int_equal(seen->aborts, 0);
    assert_true(stream->operations->room(stream) > 0);
    seen->rooms++;
    free_in("room");
}

static inline void on_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct seen *seen = context;
    assert_ptr_equal(seen->stream, stream);
    assert_int_equal(seen->aborts, 0);
    seen->aborts++;
    seen->reason = reason;
    free_in("abort");
}

static const struct bt_stream_events stream_events = {on_head, on_data, on_end, on_room, on_abort};

static inline bool on_stream(void *context, struct bt_stream *stream)
{
    struct world *self = context;
    if (self->is_refusing)
        return false;
    assert_true(self->seen_count < STREAMS);
    struct seen *seen = &self->seen[self->seen_count++];
    seen->stream = stream;
    stream->events = &stream_events;
    stream->context = seen;
    free_in("stream");
    return true;
}

static inline void on_malformed(void *context, const char *reason)
{
    struct world *self = context;
    self->malformed_count++;
    snprintf(self->malformed, sizeof(self->malformed), "%s", reason);
    free_in("malformed");
}

static inline void on_capacity(void *context)
{
    struct world *self = context;
    self->capacity_count++;
}

static inline void on_end_of_connection(void *context, const char *reason)
{
    struct world *self = context;
    assert_null(self->end_reason);
    assert_non_null(reason);
    self->end_reason = reason;
    free_in("connection");
}

static const struct bt_http2_events events = {on_stream, on_malformed, on_capacity, on_end_of_connection};

static inline struct seen *open_stream(void)
{
    struct seen *seen = &world->seen[world->seen_count];
    seen->stream = bt_http2_open(world->http2);
    if (seen->stream == NULL)
        return NULL;
    seen->stream->events = &stream_events;
    seen->stream->context = seen;
    world->seen_count++;
    return seen;
}

static inline void release(struct seen *seen)
{
    struct bt_stream *stream = BT_TAKE(seen->stream);
    stream->operations->release(stream);
}

/* ---- the peer ---------------------------------------------------------------------------------------------
 */

static inline const char *type_name(unsigned type)
{
    static const char *const names[] = {"DATA",          "HEADERS",      "PRIORITY", "RST_STREAM",
                                        "SETTINGS",      "PUSH_PROMISE", "PING",     "GOAWAY",
                                        "WINDOW_UPDATE", "CONTINUATION"};
    return type < BT_ARRAY_LENGTH(names) ? names[type] : "?";
}

static inline uint32_t number(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline void log_fields(const uint8_t *block, size_t length)
{
    for (;;) {
        nghttp2_nv nv;
        int flags = 0;
        ssize_t used = nghttp2_hd_inflate_hd2(world->inflater, &nv, &flags, block, length, 1);
        assert_true(used >= 0);
        block += used;
        length -= (size_t)used;
        if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0)
            assert_int_equal(bt_buffer_add_format(&world->log, " %.*s=%.*s", (int)nv.namelen,
                                                  (const char *)nv.name, (int)nv.valuelen,
                                                  (const char *)nv.value),
                             0);
        if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0)
            break;
    }
    nghttp2_hd_inflate_end_headers(world->inflater);
}

static inline void log_frame(const uint8_t *frame, size_t length)
{
    unsigned type = frame[3], flags = frame[4];
    const uint8_t *payload = frame + 9;
    assert_int_equal(bt_buffer_add_format(&world->log, "%s %u", type_name(type), number(frame + 5)), 0);
    if (type == NGHTTP2_HEADERS) {
        assert_true((flags & NGHTTP2_FLAG_END_HEADERS) != 0);
        log_fields(payload, length);
    } else if (type == NGHTTP2_DATA) {
        world->data_length += length;
        assert_int_equal(bt_buffer_add_format(&world->log, " %zu", length), 0);
    } else if (type == NGHTTP2_RST_STREAM || type == NGHTTP2_WINDOW_UPDATE) {
        assert_int_equal(bt_buffer_add_format(&world->log, " %u", number(payload)), 0);
    } else if (type == NGHTTP2_GOAWAY) {
        assert_int_equal(bt_buffer_add_format(&world->log, " %u %u", number(payload), number(payload + 4)),
                         0);
    } else if (type == NGHTTP2_SETTINGS && (flags & NGHTTP2_FLAG_ACK) == 0) {
        for (size_t at = 0; at + 6 <= length; at += 6)
            assert_int_equal(bt_buffer_add_format(&world->log, " %u=%u", payload[at] * 256U + payload[at + 1],
                                                  number(payload + at + 2)),
                             0);
    }
    bool is_end = (type <= NGHTTP2_HEADERS && (flags & NGHTTP2_FLAG_END_STREAM) != 0);
    bool is_ack = (type == NGHTTP2_SETTINGS || type == NGHTTP2_PING) && (flags & NGHTTP2_FLAG_ACK) != 0;
    assert_int_equal(bt_buffer_add_text(&world->log, is_end ? " END\n" : is_ack ? " ACK\n" : "\n"), 0);
}

static inline void measure(void)
{
    if (world->is_gone)
        return;
    size_t waiting = evbuffer_get_length(world->channel->output);
    world->output_most = waiting > world->output_most ? waiting : world->output_most;
    if (world->http2 != NULL && world->http2->memory > world->memory_most)
        world->memory_most = world->http2->memory;
}

static inline void turn(void)
{
    event_base_loop(world->base, EVLOOP_NONBLOCK);
    measure();
}

/* Takes everything that the connection has to say, and writes it down. */
static inline void listen_to_it(void)
{
    static char piece[16384];
    size_t at = 0, taken;
    turn();
    while (!world->is_gone && (taken = memory_channel_take(world->channel, piece, sizeof(piece))) > 0) {
        assert_int_equal(bt_buffer_add(&world->input, piece, taken), 0);
        turn();
    }
    const uint8_t *bytes = (const uint8_t *)world->input.data;
    if (world->input.length >= world->magic_left) {
        at = world->magic_left;
        world->magic_left = 0;
    }
    while (world->input.length - at >= 9) {
        size_t length = number(bytes + at) >> 8;
        if (world->input.length - at - 9 < length)
            break;
        log_frame(bytes + at, length);
        at += 9 + length;
    }
    memmove(world->input.data, world->input.data + at, world->input.length - at);
    world->input.length -= at;
}

static inline void forget(void)
{
    world->log.length = 0;
    world->data_length = 0;
    if (world->log.data != NULL)
        world->log.data[0] = '\0';
}

static inline unsigned count(const char *line_start)
{
    unsigned found = 0;
    for (const char *line = world->log.length > 0 ? world->log.data : NULL; line != NULL && *line != '\0';) {
        found += strncmp(line, line_start, strlen(line_start)) == 0;
        line = strchr(line, '\n');
        line = line != NULL ? line + 1 : NULL;
    }
    return found;
}

static inline void expect(const char *line_start)
{
    if (count(line_start) == 0)
        fail_msg("no frame \"%s\" in:\n%s", line_start,
                 world->log.length > 0 ? world->log.data : "(nothing)");
}

static inline void say_bytes(const void *data, size_t length)
{
    const char *at = data;
    while (length > 0 && !world->is_gone) {
        size_t taken = memory_channel_feed(world->channel, at, length);
        turn();
        if (taken == 0)
            return;
        at += taken;
        length -= taken;
    }
}

static inline void say(unsigned type, unsigned flags, uint32_t stream, const void *payload, size_t length)
{
    bt_auto_buffer frame = {0};
    uint8_t head[9] = {(uint8_t)(length >> 16), (uint8_t)(length >> 8), (uint8_t)length,
                       (uint8_t)type,           (uint8_t)flags,         (uint8_t)(stream >> 24),
                       (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    assert_int_equal(bt_buffer_add(&frame, head, sizeof(head)), 0);
    if (length > 0)
        assert_int_equal(bt_buffer_add(&frame, payload, length), 0);
    say_bytes(frame.data, frame.length);
}

static inline void say_number(unsigned type, uint32_t stream, uint32_t value)
{
    uint8_t payload[4] = {(uint8_t)(value >> 24), (uint8_t)(value >> 16), (uint8_t)(value >> 8),
                          (uint8_t)value};
    say(type, 0, stream, payload, sizeof(payload));
}

static inline void say_setting(uint16_t id, uint32_t value)
{
    uint8_t payload[6] = {(uint8_t)(id >> 8),     (uint8_t)id,           (uint8_t)(value >> 24),
                          (uint8_t)(value >> 16), (uint8_t)(value >> 8), (uint8_t)value};
    say(NGHTTP2_SETTINGS, 0, 0, payload, sizeof(payload));
}

/* Fields as "name=value" strings, NULL at the end; nothing in them is checked on this side. */
static inline void say_head(uint32_t stream, int is_end, ...)
{
    nghttp2_nv fields[64];
    uint8_t block[16384];
    size_t number_of_fields = 0;
    va_list list;
    va_start(list, is_end);
    for (const char *text; (text = va_arg(list, const char *)) != NULL; number_of_fields++) {
        const char *equals = strchr(text + 1, '=');
        union {
            const char *text;
            uint8_t *bytes;
        } name = {text}, value = {equals + 1};
        fields[number_of_fields] =
            (nghttp2_nv){name.bytes, value.bytes, (size_t)(equals - text), strlen(equals + 1), 0};
    }
    va_end(list);
    ssize_t length = nghttp2_hd_deflate_hd(world->deflater, block, sizeof(block), fields, number_of_fields);
    assert_true(length > 0);
    say(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | (is_end ? NGHTTP2_FLAG_END_STREAM : 0U), stream, block,
        (size_t)length);
}

static inline void say_data(uint32_t stream, size_t length, bool is_end)
{
    static char zeros[16384];
    do {
        size_t piece = length < sizeof(zeros) ? length : sizeof(zeros);
        length -= piece;
        say(NGHTTP2_DATA, is_end && length == 0 ? NGHTTP2_FLAG_END_STREAM : 0, stream, zeros, piece);
    } while (length > 0);
}

static inline void say_text(uint32_t stream, const char *text, bool is_end)
{
    say(NGHTTP2_DATA, is_end ? NGHTTP2_FLAG_END_STREAM : 0, stream, text, strlen(text));
}

#define GET(stream, ...)                                                                                     \
    say_head(stream, true, ":method=GET", ":scheme=https", ":authority=a.example", ":path=/", ##__VA_ARGS__, \
             (const char *)NULL)
#define POST(stream, ...)                                                                                    \
    say_head(stream, false, ":method=POST", ":scheme=https", ":authority=a.example", ":path=/p",             \
             ##__VA_ARGS__, (const char *)NULL)

/* ---- the world --------------------------------------------------------------------------------------------
 */

static inline void world_open(enum bt_http2_role role)
{
    world = bt_new(1, sizeof(*world));
    world->base = event_base_new();
    world->magic_left = role == BT_HTTP2_CLIENT ? NGHTTP2_CLIENT_MAGIC_LEN : 0;
    world->channel = memory_channel_new(&world->is_gone);
    world->http2 = bt_http2_new(world->base, world->channel, role, "https", &events, world);
    assert_int_equal(nghttp2_hd_deflate_new(&world->deflater, 4096), 0);
    assert_int_equal(nghttp2_hd_inflate_new(&world->inflater), 0);
    listen_to_it();
}

static inline void world_start(enum bt_http2_role role)
{
    world_open(role);
    if (role == BT_HTTP2_SERVER)
        say_bytes(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
    say(NGHTTP2_SETTINGS, 0, 0, NULL, 0);
    say(NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
    listen_to_it();
    forget();
}

static inline void world_stop(void)
{
    if (world->http2 != NULL)
        world->http2 = bt_http2_free(world->http2);
    assert_true(world->is_gone);
    for (size_t i = 0; i < world->seen_count; i++)
        if (world->seen[i].stream != NULL)
            release(&world->seen[i]);
    nghttp2_hd_deflate_del(world->deflater);
    nghttp2_hd_inflate_del(world->inflater);
    bt_buffer_free(&world->input);
    bt_buffer_free(&world->log);
    event_base_free(world->base);
    free(world);
}

#endif
