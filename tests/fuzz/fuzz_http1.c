/* Bytes of an agent, or of an upstream, into the HTTP/1.1 codec, with an owner that answers, holds, aborts
 * and releases at any moment. The first byte chooses the side and how the rest is cut; each piece's first
 * byte is what the owner does afterwards. Invariants: heads that either version may carry, callbacks in order
 * and none after an abort or the end, bounded held bytes, and on a server that what was written begins with
 * what the parser accepts. */
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/http1_codec.h"
#include "tests/lib/memory_channel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct owner {
    struct bt_http1 *http1;
    struct bt_stream *stream;
    bool is_client, has_head, has_final, is_ended, is_aborted, is_answered, is_raw, keeps;
    size_t held;
    int64_t left; /* of an announced body; -1: not announced */
    uint8_t act;
};

static void require(bool is_true)
{
    if (!is_true)
        abort();
}

static void check_slice(struct bt_http_slice slice)
{
    for (size_t i = 0; i < slice.length; i++)
        require(slice.data[i] != '\r' && slice.data[i] != '\n' && slice.data[i] != '\0');
}

static void check_fields(const struct bt_message *message)
{
    static const char *const hop[] = {"connection",     "keep-alive",          "te",
                                      "trailer",        "transfer-encoding",   "upgrade",
                                      "content-length", "proxy-authorization", "proxy-connection"};
    require(message->field_count <= BT_HTTP_FIELDS_MAX);
    for (size_t i = 0; i < message->field_count; i++) {
        check_slice(message->fields[i].name);
        check_slice(message->fields[i].value);
        require(message->fields[i].name.length > 0);
        for (size_t j = 0; j < message->fields[i].name.length; j++)
            require(message->fields[i].name.data[j] < 'A' || message->fields[i].name.data[j] > 'Z');
        for (size_t j = 0; j < BT_ARRAY_LENGTH(hop); j++)
            require(!bt_http_slice_is(message->fields[i].name, hop[j]));
    }
}

static void answer(struct owner *owner)
{
    struct bt_stream *stream = owner->stream;
    struct bt_message head = {.status = owner->act & 1 ? 200 : 404,
                              .content_length = owner->act & 2 ? 3 : -1};
    if (owner->is_client || owner->is_answered || stream == NULL)
        return;
    owner->is_answered = true;
    if (stream->operations->send_head(stream, &head, false) < 0)
        return;
    (void)stream->operations->send_data(stream, "abc", owner->act & 4 ? 3 : 2);
    (void)stream->operations->send_end(stream, NULL);
}

static void release(struct owner *owner)
{
    struct bt_stream *stream = owner->stream;
    owner->stream = NULL;
    if (stream != NULL)
        stream->operations->release(stream);
}

static void act(struct owner *owner)
{
    if (owner->stream == NULL)
        return;
    switch (owner->act >> 4) {
    case 0:
        answer(owner);
        break;
    case 1:
        answer(owner);
        release(owner);
        break;
    case 2:
        owner->stream->operations->abort(owner->stream, BT_ABORT_CANCELLED);
        release(owner);
        break;
    case 3:
        owner->keeps = !owner->keeps;
        break;
    case 4:
        owner->stream->operations->consume(owner->stream, owner->held);
        owner->held = 0;
        break;
    default:
        break;
    }
}

static void on_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    struct owner *owner = context;
    require(stream == owner->stream && !owner->is_ended && !owner->is_aborted && !owner->has_final);
    check_fields(head);
    if (!owner->is_client) {
        require(!owner->has_head && head->method.length > 0 && head->authority.length > 0);
        check_slice(head->method);
        check_slice(head->authority);
        check_slice(head->path);
        require(memchr(head->path.data, ' ', head->path.length) == NULL);
        owner->has_final = true;
    } else {
        require(head->status >= 100 && head->status <= 599);
        owner->has_final = head->status >= 200 || head->status == 101;
    }
    owner->has_head = true;
    owner->left = head->is_complete || head->protocol.length > 0 ? -1 : head->content_length;
    act(owner);
}

static void on_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct owner *owner = context;
    (void)data;
    require(stream == owner->stream && owner->has_final && !owner->is_ended && !owner->is_aborted &&
            length > 0);
    owner->held += length;
    require(owner->held <= BT_STREAM_HELD_MAX);
    require(owner->left < 0 || owner->left >= (int64_t)length);
    owner->left -= owner->left < 0 ? 0 : (int64_t)length;
    if (!owner->keeps) {
        stream->operations->consume(stream, owner->held);
        owner->held = 0;
    }
}

static void on_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct owner *owner = context;
    require(stream == owner->stream && owner->has_final && !owner->is_ended && !owner->is_aborted);
    require(owner->left <= 0);
    owner->is_ended = true;
    if (trailers != NULL)
        check_fields(trailers);
    act(owner);
}

static void on_room(void *context, struct bt_stream *stream)
{
    struct owner *owner = context;
    require(stream == owner->stream && !owner->is_aborted);
}

static void on_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct owner *owner = context;
    (void)reason;
    require(stream == owner->stream && !owner->is_aborted);
    owner->is_aborted = true;
    if (owner->act & 8)
        answer(owner);
    release(owner);
}

static const struct bt_stream_events stream_events = {
    .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_room = on_room, .on_abort = on_abort};

static void take(struct owner *owner, struct bt_stream *stream)
{
    *owner = (struct owner){
        .http1 = owner->http1, .stream = stream, .is_client = owner->is_client, .act = owner->act};
    stream->events = &stream_events;
    stream->context = owner;
}

static void on_stream(void *context, struct bt_stream *stream, const struct bt_http_head *raw)
{
    struct owner *owner = context;
    require(owner->stream == NULL && raw->field_count <= BT_HTTP_FIELDS_MAX);
    take(owner, stream);
}

static void on_fault(void *context, struct bt_stream *stream, const struct bt_http1_fault *fault)
{
    struct owner *owner = context;
    require(owner->stream == NULL && fault->status >= 400);
    *owner = (struct owner){
        .http1 = owner->http1, .stream = stream, .is_client = owner->is_client, .act = owner->act};
    answer(owner);
    release(owner);
}

static void ask(struct owner *owner)
{
    struct bt_message head = {.method = {"GET", 3},
                              .scheme = {"https", 5},
                              .authority = {"a.example", 9},
                              .path = {"/", 1},
                              .content_length = -1};
    struct bt_stream *stream = bt_http1_open(owner->http1);
    if (stream == NULL)
        return;
    take(owner, stream);
    if (owner->act & 1)
        head.method = (struct bt_http_slice){"HEAD", 4};
    else if (owner->act & 2)
        head.protocol = (struct bt_http_slice){"websocket", 9};
    (void)stream->operations->send_head(stream, &head, (owner->act & 2) == 0);
}

static void on_idle(void *context)
{
    struct owner *owner = context;
    require(owner->stream == NULL);
}

static void on_close(void *context)
{
    struct owner *owner = context;
    require(owner->stream == NULL);
    owner->http1 = bt_http1_free(owner->http1);
}

static const struct bt_http1_events codec_events = {
    .on_stream = on_stream, .on_fault = on_fault, .on_idle = on_idle, .on_close = on_close};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    struct owner owner = {.is_client = (data[0] & 1) != 0};
    struct bt_http1_settings settings = {
        .is_client = owner.is_client, .is_proxy = (data[0] & 2) != 0, .scheme = "https"};
    size_t piece = data[0] & 4 ? 1 : data[0] & 8 ? 17 : 4096;
    bool is_gone;
    struct bt_channel *channel = memory_channel_new(&is_gone);
    owner.act = data[1];
    owner.http1 = bt_http1_new(channel, &settings, &codec_events, &owner);
    for (size_t at = 2; at < size && !is_gone;) {
        size_t part = size - at < piece ? size - at : piece;
        char sink[512];
        if (owner.is_client && owner.stream == NULL)
            ask(&owner);
        if (memory_channel_feed(channel, data + at, part) == 0 && owner.stream != NULL) {
            owner.stream->operations->consume(owner.stream, owner.held);
            owner.held = 0;
        }
        memory_channel_turn(channel, &is_gone);
        owner.act = data[at];
        if (!is_gone)
            act(&owner);
        memory_channel_turn(channel, &is_gone);
        while (!is_gone && memory_channel_take(channel, sink, sizeof(sink)) > 0)
            continue;
        at += part;
    }
    if (!is_gone) {
        memory_channel_end(channel, data[0] & 16 ? BT_CHANNEL_ENDED : BT_CHANNEL_TRUNCATED);
        memory_channel_turn(channel, &is_gone);
    }
    if (!is_gone && owner.stream != NULL)
        release(&owner);
    if (!is_gone)
        memory_channel_turn(channel, &is_gone);
    bt_http1_free(owner.http1);
    return 0;
}
