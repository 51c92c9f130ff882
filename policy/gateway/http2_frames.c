/* What the peer says: the callbacks of nghttp2. See http2_connection.h.
 *
 * nghttp2 has seen to the states of streams, to content-length and to most of RFC 9113, 8; a head that it or
 * http2_head.c finds malformed never becomes a stream.
 */
#include "policy/gateway/http2_connection.h"

/* What frames that bring nothing cost, and what useful ones give back: see bt_http2_spend. A WINDOW_UPDATE is
 * the answer to DATA, of which most clients send two for each frame. */
#define COST_CONTROL 1
#define COST_EMPTY_DATA 2
#define COST_SETTINGS 5
#define COST_RESET 10
#define COST_MALFORMED 20
#define GAIN_DATA_RECEIVED 1
#define GAIN_DATA_SENT 2
#define GAIN_STREAM 5

static struct bt_http2_stream *find(struct bt_http2 *http2, int32_t id)
{
    return nghttp2_session_get_stream_user_data(http2->session, id);
}

/* After an owner's callback: whether nghttp2 may go on. */
static int go_on(const struct bt_http2 *http2)
{
    return http2->is_freed ? NGHTTP2_ERR_CALLBACK_FAILURE : 0;
}

/* ---- heads
 * -------------------------------------------------------------------------------------------------
 */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    struct bt_http2 *http2 = context;
    const struct bt_http2_stream *stream = find(http2, frame->hd.stream_id);
    (void)session;
    http2->head = bt_http2_head_free(http2->head);
    http2->head_ms = bt_clock_ms();
    if (http2->role == BT_HTTP2_SERVER && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
        http2->head = bt_http2_head_new(BT_HTTP2_REQUEST);
    else if (stream != NULL && !stream->is_silent && !stream->is_failed)
        http2->head = bt_http2_head_new(
            http2->role == BT_HTTP2_SERVER || stream->has_head ? BT_HTTP2_TRAILERS : BT_HTTP2_RESPONSE);
    return 0;
}

static struct bt_http_slice slice_of(nghttp2_rcbuf *text)
{
    nghttp2_vec bytes = nghttp2_rcbuf_get_buf(text);
    return (struct bt_http_slice){(const char *)bytes.base, bytes.len};
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, nghttp2_rcbuf *name,
                     nghttp2_rcbuf *value, uint8_t flags, void *context)
{
    struct bt_http2 *http2 = context;
    (void)session, (void)frame, (void)flags;
    if (http2->head != NULL)
        bt_http2_head_add(http2->head, slice_of(name), slice_of(value));
    return 0;
}

/* nghttp2 would leave such a field out and go on. */
static int on_invalid_header(nghttp2_session *session, const nghttp2_frame *frame, nghttp2_rcbuf *name,
                             nghttp2_rcbuf *value, uint8_t flags, void *context)
{
    struct bt_http2 *http2 = context;
    (void)on_header(session, frame, name, value, flags, context);
    if (http2->head != NULL && http2->head->error == NULL)
        http2->head->error = "a field that HTTP/2 does not allow";
    return 0;
}

static int tell_malformed(struct bt_http2 *http2, const char *reason)
{
    bt_http2_spend(http2, COST_MALFORMED);
    if (http2->events->on_malformed != NULL)
        http2->events->on_malformed(http2->context, reason);
    return go_on(http2);
}

/* A request without a stream of ours: 431, or a reset. */
static int refuse_request(struct bt_http2 *http2, int32_t id, const struct bt_http2_head *head)
{
    static uint8_t name[] = ":status", value[] = "431";
    static const nghttp2_nv status = {name, value, sizeof(name) - 1, sizeof(value) - 1, NGHTTP2_NV_FLAG_NONE};
    if (head->is_too_large)
        (void)nghttp2_submit_response(http2->session, id, &status, 1, NULL);
    else
        (void)nghttp2_submit_rst_stream(http2->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_PROTOCOL_ERROR);
    return tell_malformed(http2, head->error);
}

static int end_of_peer(struct bt_http2 *http2, struct bt_http2_stream *stream,
                       const struct bt_message *trailers)
{
    if (stream->is_silent || stream->is_failed || stream->has_ended)
        return 0;
    stream->has_ended = true;
    stream->base.events->on_end(stream->base.context, &stream->base, trailers);
    return go_on(http2);
}

static int give_head(struct bt_http2 *http2, struct bt_http2_stream *stream, const struct bt_message *message,
                     bool is_end)
{
    http2->head->message.is_complete = is_end;
    stream->base.events->on_head(stream->base.context, &stream->base, message);
    if (http2->is_freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return is_end ? end_of_peer(http2, stream, NULL) : 0;
}

static int take_request(struct bt_http2 *http2, int32_t id, bool is_end)
{
    const struct bt_message *message = bt_http2_head_finish(http2->head, http2->scheme);
    if (message == NULL)
        return refuse_request(http2, id, http2->head);
    struct bt_http2_stream *stream = bt_http2_stream_new(http2, id);
    stream->is_protocol = message->protocol.length > 0;
    bool is_taken = http2->events->on_stream(http2->context, &stream->base);
    if (http2->is_freed)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (is_taken)
        return give_head(http2, stream, message, is_end);
    stream->is_silent = stream->is_released = true;
    (void)nghttp2_submit_rst_stream(http2->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_REFUSED_STREAM);
    return 0;
}

static int take_response(struct bt_http2 *http2, struct bt_http2_stream *stream, bool is_end)
{
    struct bt_message *message = &http2->head->message;
    stream->has_head = message->status >= 200;
    if (stream->is_protocol && message->status >= 200 && message->status < 300) {
        message->status = 101;
        message->content_length = -1;
    }
    return give_head(http2, stream, message, is_end);
}

static int take_head(struct bt_http2 *http2, const nghttp2_frame *frame)
{
    int32_t id = frame->hd.stream_id;
    bool is_end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (http2->head->kind == BT_HTTP2_REQUEST)
        return take_request(http2, id, is_end);
    struct bt_http2_stream *stream = find(http2, id);
    if (stream == NULL || stream->is_silent || stream->is_failed)
        return 0;
    if (bt_http2_head_finish(http2->head, http2->scheme) == NULL) {
        int result = tell_malformed(http2, http2->head->error);
        if (result == 0)
            bt_http2_stream_break(stream, NGHTTP2_PROTOCOL_ERROR);
        return result == 0 ? go_on(http2) : result;
    }
    if (http2->head->kind == BT_HTTP2_RESPONSE)
        return take_response(http2, stream, is_end);
    return end_of_peer(http2, stream, &http2->head->message);
}

/* ---- frames
 * ------------------------------------------------------------------------------------------------
 */

/* Priorities are not for on_frame: nghttp2 skips them. (Types that it does not know it skips without any
 * word; they cost no more than their bytes.) */
static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *context)
{
    (void)session;
    if (hd->type == NGHTTP2_PRIORITY)
        bt_http2_spend(context, COST_CONTROL);
    return 0;
}

static int take_data_frame(struct bt_http2 *http2, const nghttp2_frame *frame)
{
    struct bt_http2_stream *stream = find(http2, frame->hd.stream_id);
    bool is_end = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (frame->hd.length > frame->data.padlen)
        bt_http2_earn(http2, GAIN_DATA_RECEIVED);
    else if (!is_end)
        bt_http2_spend(http2, COST_EMPTY_DATA);
    return is_end && stream != NULL ? end_of_peer(http2, stream, NULL) : 0;
}

static int take_settings(struct bt_http2 *http2, const nghttp2_frame *frame)
{
    if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0)
        return 0;
    if (http2->is_settled)
        bt_http2_spend(http2, COST_SETTINGS);
    http2->is_settled = http2->has_capacity_news = true;
    return 0;
}

/* The second half of a drain: what was on its way when it began has come, for the answer to a PING came
 * behind. */
static void take_ping(struct bt_http2 *http2, const nghttp2_frame *frame)
{
    if ((frame->hd.flags & NGHTTP2_FLAG_ACK) != 0 && http2->is_draining)
        bt_http2_say_goodbye(http2);
    else
        bt_http2_spend(http2, COST_CONTROL);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    struct bt_http2 *http2 = context;
    struct bt_http2_stream *stream;
    int result = 0;
    (void)session;
    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
        if (http2->head != NULL)
            result = take_head(http2, frame);
        http2->head = bt_http2_head_free(http2->head);
        return result;
    case NGHTTP2_DATA:
        return take_data_frame(http2, frame);
    case NGHTTP2_SETTINGS:
        return take_settings(http2, frame);
    case NGHTTP2_GOAWAY:
        http2->has_capacity_news = true;
        bt_http2_spend(http2, COST_RESET);
        return 0;
    case NGHTTP2_RST_STREAM:
        bt_http2_spend(http2, COST_RESET);
        stream = find(http2, frame->hd.stream_id);
        if (stream != NULL)
            stream->was_reset = true;
        return 0;
    case NGHTTP2_PING:
        take_ping(http2, frame);
        return 0;
    case NGHTTP2_PRIORITY:
        return 0;
    default:
        bt_http2_spend(http2, COST_CONTROL);
        return 0;
    }
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int error, void *context)
{
    struct bt_http2 *http2 = context;
    (void)session;
    if (frame->hd.type == NGHTTP2_HEADERS)
        http2->head = bt_http2_head_free(http2->head);
    return tell_malformed(http2, nghttp2_strerror(error));
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data, size_t length,
                   void *context)
{
    struct bt_http2 *http2 = context;
    struct bt_http2_stream *stream = find(http2, id);
    (void)flags;
    /* The connection's window is given back at once: what is held is bounded by the windows of the streams.
     */
    if (nghttp2_session_consume_connection(session, length) != 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (stream == NULL || stream->is_silent || stream->is_failed) {
        if (stream == NULL || !bt_http2_stream_is_answered(stream))
            (void)nghttp2_session_consume_stream(session, id, length);
        return 0;
    }
    if (length > stream->window - stream->held) {
        /* More than its window. nghttp2 resets it too, but goes on to deliver until that is sent. */
        bt_http2_spend(http2, COST_RESET);
        bt_http2_stream_break(stream, NGHTTP2_FLOW_CONTROL_ERROR);
        return go_on(http2);
    }
    stream->held += length;
    stream->base.events->on_data(stream->base.context, &stream->base, data, length);
    return go_on(http2);
}

/* ---- what was sent, and the end of a stream
 * ----------------------------------------------------------------
 */

static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *context)
{
    struct bt_http2 *http2 = context;
    int32_t id = frame->hd.stream_id;
    struct bt_http2_stream *stream = id > 0 ? find(http2, id) : NULL;
    if (frame->hd.type == NGHTTP2_DATA && frame->hd.length > 0)
        bt_http2_earn(http2, GAIN_DATA_SENT + (int)(frame->hd.length / 1024));
    if (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS)
        return 0;
    if (stream != NULL)
        stream->is_on_wire = true;
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
        return 0;
    if (stream != NULL)
        stream->is_end_on_wire = true;
    else if (http2->role == BT_HTTP2_SERVER && nghttp2_session_get_stream_remote_close(session, id) == 0)
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, id,
                                        NGHTTP2_NO_ERROR); /* it never was one */
    return 0;
}

/* A head that nghttp2 cannot send (too large, no memory): the peer must not wait for it. */
static int on_frame_not_sent(nghttp2_session *session, const nghttp2_frame *frame, int error, void *context)
{
    (void)context;
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat != NGHTTP2_HCAT_REQUEST &&
        error != NGHTTP2_ERR_STREAM_CLOSED && error != NGHTTP2_ERR_STREAM_CLOSING)
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, frame->hd.stream_id,
                                        NGHTTP2_INTERNAL_ERROR);
    return 0;
}

static enum bt_abort reason_of(const struct bt_http2_stream *stream, uint32_t code)
{
    if (code == NGHTTP2_REFUSED_STREAM)
        return BT_ABORT_REFUSED;
    return stream->was_reset ? BT_ABORT_CANCELLED : BT_ABORT_PROTOCOL;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *context)
{
    struct bt_http2 *http2 = context;
    struct bt_http2_stream *stream = find(http2, id);
    (void)session;
    if (code == NGHTTP2_NO_ERROR)
        bt_http2_earn(http2, GAIN_STREAM);
    if (stream == NULL)
        return 0;
    http2->idle_ms = bt_clock_ms();
    if (!stream->is_silent && !stream->was_reset && code != NGHTTP2_NO_ERROR)
        bt_http2_spend(http2, COST_RESET); /* nghttp2 found fault with it */
    if (http2->role == BT_HTTP2_CLIENT && stream->has_ended && !stream->is_protocol && !stream->is_silent &&
        !stream->is_end_sent) {
        /* The answer is complete, and the rest of the request is not wanted: not a failure. */
        stream->is_silent = true;
        bt_http2_stream_detach(stream);
        stream->base.events->on_room(stream->base.context, &stream->base);
    } else {
        bt_http2_stream_lose(stream, reason_of(stream, code));
    }
    return go_on(http2);
}

void bt_http2_frames_set_callbacks(nghttp2_session_callbacks *callbacks)
{
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback2(callbacks, on_header);
    nghttp2_session_callbacks_set_on_invalid_header_callback2(callbacks, on_invalid_header);
    nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, on_invalid_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_sent);
    nghttp2_session_callbacks_set_on_frame_not_send_callback(callbacks, on_frame_not_sent);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
}
