/* What the owner of a stream says to the peer, and how a stream ends. See http2_connection.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/gateway/http2_connection.h"

/* What the windows of all streams of this process have above BT_STREAM_HELD_MAX, and the most they may. */
static size_t extra_windows;
#define EXTRA_WINDOWS_MAX (32U * 1024 * 1024)

static struct bt_http2_stream *of(struct bt_stream *stream)
{
    return (struct bt_http2_stream *)stream;
}

bool bt_http2_stream_is_complete(const struct bt_http2_stream *stream)
{
    return stream->has_ended && stream->is_end_sent;
}

static void free_stream(struct bt_http2_stream *stream)
{
    evbuffer_free(stream->output);
    free(stream->trailers);
    free(stream);
}

void bt_http2_stream_detach(struct bt_http2_stream *stream)
{
    struct bt_http2 *http2 = stream->http2;
    if (http2 == NULL)
        return;
    TAILQ_REMOVE(&http2->streams, stream, link);
    if (stream->is_drained)
        TAILQ_REMOVE(&http2->drained, stream, drained_link);
    http2->stream_count--;
    extra_windows -= stream->window - BT_STREAM_HELD_MAX;
    stream->window = BT_STREAM_HELD_MAX;
    http2->has_capacity_news = true;
    stream->is_drained = false;
    stream->http2 = NULL;
    (void)evbuffer_drain(stream->output, evbuffer_get_length(stream->output));
    if (stream->is_released)
        free_stream(stream);
}

void bt_http2_stream_lose(struct bt_http2_stream *stream, enum bt_abort reason)
{
    bool is_told = !stream->is_silent && !stream->is_released && !bt_http2_stream_is_complete(stream);
    stream->is_silent = true;
    bt_http2_stream_detach(stream);
    if (is_told)
        stream->base.events->on_abort(stream->base.context, &stream->base, reason);
}

/* RFC 9113, 7. On the agents' side a loss is the gateway's: the agent did nothing wrong. */
static uint32_t code_of(const struct bt_http2 *http2, enum bt_abort reason)
{
    switch (reason) {
    case BT_ABORT_REFUSED:
        return NGHTTP2_REFUSED_STREAM;
    case BT_ABORT_PROTOCOL:
    case BT_ABORT_LOST:
        return http2->role == BT_HTTP2_SERVER ? NGHTTP2_INTERNAL_ERROR : NGHTTP2_CANCEL;
    case BT_ABORT_CANCELLED:
    case BT_ABORT_POLICY:
        break;
    }
    return NGHTTP2_CANCEL;
}

static void reset(struct bt_http2_stream *stream, uint32_t code)
{
    struct bt_http2 *http2 = stream->http2;
    stream->is_silent = true;
    (void)evbuffer_drain(stream->output, evbuffer_get_length(stream->output));
    if (stream->id == 0) {
        bt_http2_stream_detach(stream);
        bt_http2_schedule(http2);
        return;
    }
    if (nghttp2_submit_rst_stream(http2->session, NGHTTP2_FLAG_NONE, stream->id, code) != 0)
        bt_http2_terminate(http2, NGHTTP2_INTERNAL_ERROR, "out of memory for this connection");
    bt_http2_schedule(http2);
}

void bt_http2_stream_break(struct bt_http2_stream *stream, uint32_t code)
{
    if (stream->is_silent || stream->is_released || stream->is_failed)
        return;
    reset(stream, code);
    stream->base.events->on_abort(stream->base.context, &stream->base, BT_ABORT_PROTOCOL);
}

/* Something that must not be sent, or no memory for it: nobody gets a part of it. Called from operations, so
 * the owner is told later: by the end of the stream, or by bt_http2_tell_failed. */
static int give_up(struct bt_http2_stream *stream)
{
    struct bt_http2 *http2 = stream->http2;
    stream->is_failed = http2->has_failed_streams = true;
    (void)evbuffer_drain(stream->output, evbuffer_get_length(stream->output));
    if (stream->id != 0 &&
        nghttp2_submit_rst_stream(http2->session, NGHTTP2_FLAG_NONE, stream->id, NGHTTP2_INTERNAL_ERROR) != 0)
        bt_http2_terminate(http2, NGHTTP2_INTERNAL_ERROR, "out of memory for this connection");
    bt_http2_schedule(http2);
    return -EPIPE;
}

void bt_http2_tell_failed(struct bt_http2 *http2)
{
    struct bt_http2_stream *stream = TAILQ_FIRST(&http2->streams);
    if (!http2->has_failed_streams)
        return;
    http2->has_failed_streams = false;
    while (stream != NULL && !http2->is_freed) {
        struct bt_http2_stream *next = TAILQ_NEXT(stream, link);
        if (stream->is_failed && stream->id == 0) {
            bt_http2_stream_lose(stream, BT_ABORT_PROTOCOL);
            next = TAILQ_FIRST(&http2->streams); /* the owner may have let others go, too */
        }
        stream = next;
    }
}

/* ---- the body
 * ----------------------------------------------------------------------------------------------
 */

static ssize_t read_end(struct bt_http2_stream *stream, uint32_t *flags)
{
    *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (stream->trailers == NULL)
        return 0;
    *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
    int result = nghttp2_submit_trailer(stream->http2->session, stream->id, stream->trailers->fields,
                                        stream->trailers->count);
    return result == 0 ? 0 : NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
}

static ssize_t read_output(nghttp2_session *session, int32_t stream_id, uint8_t *buffer, size_t length,
                           uint32_t *flags, nghttp2_data_source *source, void *context)
{
    struct bt_http2_stream *stream = source->ptr;
    struct bt_http2 *http2 = context;
    (void)session, (void)stream_id;
    if (evbuffer_get_length(stream->output) == 0 && !stream->is_end_sent) {
        stream->is_deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    int taken = evbuffer_remove(stream->output, buffer, length);
    if (taken > 0 && !stream->is_drained) {
        stream->is_drained = true;
        TAILQ_INSERT_TAIL(&http2->drained, stream, drained_link);
    }
    if (stream->is_end_sent && evbuffer_get_length(stream->output) == 0) {
        ssize_t result = read_end(stream, flags);
        if (result < 0)
            return result;
    }
    return taken < 0 ? 0 : taken;
}

static void resume(struct bt_http2_stream *stream)
{
    if (stream->is_deferred) {
        stream->is_deferred = false;
        (void)nghttp2_session_resume_data(stream->http2->session, stream->id);
    }
    bt_http2_schedule(stream->http2);
}

static bool may_send(const struct bt_http2_stream *stream)
{
    return stream->http2 != NULL && !stream->is_silent && !stream->is_failed && !stream->is_end_sent;
}

static size_t room(const struct bt_stream *base)
{
    const struct bt_http2_stream *stream = (const struct bt_http2_stream *)base;
    if (!may_send(stream))
        return BT_STREAM_HELD_MAX;
    size_t waiting = evbuffer_get_length(stream->output);
    return waiting < BT_STREAM_HELD_MAX ? BT_STREAM_HELD_MAX - waiting : 0;
}

static int send_data(struct bt_stream *base, const void *data, size_t length)
{
    struct bt_http2_stream *stream = of(base);
    if (!may_send(stream) || !stream->is_head_sent)
        return -EPIPE;
    if (length == 0)
        return 0;
    if (evbuffer_add(stream->output, data, length) < 0)
        abort(); /* out of memory, as in bt_new */
    resume(stream);
    return 0;
}

static int send_end(struct bt_stream *base, const struct bt_message *trailers)
{
    struct bt_http2_stream *stream = of(base);
    if (!may_send(stream) || !stream->is_head_sent)
        return -EPIPE;
    if (trailers != NULL && trailers->field_count > 0) {
        struct bt_http2_fields fields;
        if (bt_http2_fields_set(&fields, BT_HTTP2_TRAILERS, trailers, false) < 0)
            return give_up(stream);
        if (fields.count > 0)
            stream->trailers = bt_http2_fields_copy(&fields);
    }
    stream->is_end_sent = true;
    resume(stream);
    return 0;
}

/* ---- heads
 * -------------------------------------------------------------------------------------------------
 */

static int submit_request(struct bt_http2_stream *stream, const struct bt_http2_fields *fields,
                          const nghttp2_data_provider *body)
{
    int32_t id =
        nghttp2_submit_request(stream->http2->session, NULL, fields->fields, fields->count, body, stream);
    if (id < 0)
        return id;
    stream->id = id;
    return 0;
}

static int send_head(struct bt_stream *base, const struct bt_message *head, bool is_end)
{
    struct bt_http2_stream *stream = of(base);
    struct bt_http2_fields fields;
    nghttp2_data_provider body = {{.ptr = stream}, read_output};
    int result;
    if (!may_send(stream) || stream->is_head_sent)
        return -EPIPE;
    bool is_client = stream->http2->role == BT_HTTP2_CLIENT;
    bool is_interim = !is_client && head->status < 200 && head->status != 101;
    if (is_client && head->protocol.length > 0) {
        if (!bt_http2_allows_protocol(stream->http2))
            return give_up(stream);
        stream->is_protocol = true;
        is_end = false;
    }
    if (bt_http2_fields_set(&fields, is_client ? BT_HTTP2_REQUEST : BT_HTTP2_RESPONSE, head,
                            stream->is_protocol) < 0)
        return give_up(stream);
    if (is_client)
        result = submit_request(stream, &fields, is_end ? NULL : &body);
    else if (is_interim)
        result = nghttp2_submit_headers(stream->http2->session, NGHTTP2_FLAG_NONE, stream->id, NULL,
                                        fields.fields, fields.count, NULL);
    else
        result = nghttp2_submit_response(stream->http2->session, stream->id, fields.fields, fields.count,
                                         is_end ? NULL : &body);
    if (result != 0)
        return give_up(stream);
    stream->is_head_sent = !is_interim;
    stream->is_end_sent = is_end && !is_interim;
    bt_http2_schedule(stream->http2);
    return 0;
}

/* ---- ends
 * --------------------------------------------------------------------------------------------------
 */

/* A window is what a host may send in one round trip: a receiver that keeps up gets it doubled. */
static void grow_window(struct bt_http2_stream *stream)
{
    size_t more = stream->window;
    if (stream->http2->role != BT_HTTP2_CLIENT || stream->kept_up < stream->window ||
        stream->window + more > BT_HTTP2_WINDOW_MAX || extra_windows + more > EXTRA_WINDOWS_MAX)
        return;
    if (nghttp2_session_set_local_window_size(stream->http2->session, NGHTTP2_FLAG_NONE, stream->id,
                                              (int32_t)(stream->window + more)) != 0)
        return;
    extra_windows += more;
    stream->window += more;
    stream->kept_up = 0;
}

static void consume(struct bt_stream *base, size_t length)
{
    struct bt_http2_stream *stream = of(base);
    length = length < stream->held ? length : stream->held;
    stream->held -= length;
    if (stream->http2 == NULL || length == 0)
        return;
    if (nghttp2_session_consume_stream(stream->http2->session, stream->id, length) != 0)
        bt_http2_terminate(stream->http2, NGHTTP2_INTERNAL_ERROR, "out of memory for this connection");
    stream->kept_up = stream->held == 0 ? stream->kept_up + length : 0;
    grow_window(stream);
    bt_http2_schedule(stream->http2);
}

static void abort_stream(struct bt_stream *base, enum bt_abort reason)
{
    struct bt_http2_stream *stream = of(base);
    bool is_open = stream->http2 != NULL && !stream->is_silent;
    stream->is_silent = true;
    if (is_open)
        reset(stream, code_of(stream->http2, reason));
}

static void release(struct bt_stream *base)
{
    struct bt_http2_stream *stream = of(base);
    bool is_said = stream->is_end_sent; /* what was said may still leave */
    bool was_silent = stream->is_silent;
    stream->is_silent = true;
    stream->is_released = true;
    if (stream->http2 == NULL) {
        free_stream(stream);
        return;
    }
    if (was_silent || (is_said && stream->has_ended))
        return;
    if (stream->http2->role == BT_HTTP2_CLIENT || !is_said)
        reset(stream, NGHTTP2_CANCEL);
}

bool bt_http2_stream_is_answered(const struct bt_http2_stream *stream)
{
    return stream->http2 != NULL && stream->http2->role == BT_HTTP2_SERVER && stream->is_released &&
           stream->is_end_on_wire;
}

void bt_http2_stream_wind_up(struct bt_http2_stream *stream)
{
    if (!bt_http2_stream_is_answered(stream))
        return;
    if (stream->is_late)
        reset(stream, NGHTTP2_NO_ERROR);
    else
        stream->is_late = true;
}

static const struct bt_stream_operations operations = {
    .send_head = send_head,
    .room = room,
    .send_data = send_data,
    .send_end = send_end,
    .consume = consume,
    .abort = abort_stream,
    .release = release,
};

struct bt_http2_stream *bt_http2_stream_new(struct bt_http2 *http2, int32_t id)
{
    /* Urgency 3 is everybody's; incremental: streams take turns, whatever their peers wish (RFC 9218). */
    static const nghttp2_extpri in_turns = {.urgency = NGHTTP2_EXTPRI_DEFAULT_URGENCY, .inc = 1};
    struct bt_http2_stream *stream = bt_new(1, sizeof(*stream));
    stream->base.operations = &operations;
    stream->http2 = http2;
    stream->id = id;
    stream->window = BT_STREAM_HELD_MAX;
    stream->output = evbuffer_new();
    if (stream->output == NULL)
        abort(); /* out of memory, as in bt_new */
    TAILQ_INSERT_TAIL(&http2->streams, stream, link);
    http2->stream_count++;
    if (http2->role == BT_HTTP2_SERVER) {
        (void)nghttp2_session_set_stream_user_data(http2->session, id, stream);
        (void)nghttp2_session_change_extpri_stream_priority(http2->session, id, &in_turns, 1);
    }
    return stream;
}
