/* A connection's life: its input, its output, its allowance and its end. See http2_codec.h. */
#include "policy/gateway/http2_codec.h"

#include <stdlib.h>

#include "policy/gateway/http2_connection.h"

#define WATCH_MS 5000
#define LINGER_MS 1000
#define BLOCKED_QUEUE 100 /* control frames that wait because the peer does not read */

/* A token bucket. A client that reads slowly in small windows and cancels now and then never sees its end;
 * one that floods is gone within some thousand frames. */
#define ALLOWANCE_MAX 2000
#define ALLOWANCE_MS 10 /* for one to come back */

/* ---- decisions to end
 * --------------------------------------------------------------------------------------
 */

void bt_http2_schedule(struct bt_http2 *http2)
{
    if (http2->stage == BT_HTTP2_OPEN && !http2->is_freed)
        event_active(http2->flush, EV_TIMEOUT, 0);
}

void bt_http2_terminate(struct bt_http2 *http2, uint32_t code, const char *reason)
{
    if (http2->end_reason != NULL)
        return;
    http2->end_reason = reason;
    (void)nghttp2_session_terminate_session(http2->session, code);
    bt_http2_schedule(http2);
}

void bt_http2_spend(struct bt_http2 *http2, int cost)
{
    int64_t now_ms = bt_clock_ms();
    int64_t gain = (now_ms - http2->allowance_ms) / ALLOWANCE_MS;
    http2->allowance_ms += gain * ALLOWANCE_MS;
    bt_http2_earn(http2, gain < ALLOWANCE_MAX ? (int)gain : ALLOWANCE_MAX);
    http2->allowance -= cost;
    if (http2->allowance < 0)
        bt_http2_terminate(http2, NGHTTP2_ENHANCE_YOUR_CALM, "too many frames that bring nothing");
}

void bt_http2_earn(struct bt_http2 *http2, int gain)
{
    http2->allowance = http2->allowance + gain < ALLOWANCE_MAX ? http2->allowance + gain : ALLOWANCE_MAX;
}

void bt_http2_say_goodbye(struct bt_http2 *http2)
{
    if (http2->has_said_goodbye)
        return;
    http2->has_said_goodbye = true;
    (void)nghttp2_submit_goaway(
        http2->session, NGHTTP2_FLAG_NONE,
        http2->role == BT_HTTP2_SERVER ? nghttp2_session_get_last_proc_stream_id(http2->session) : 0,
        NGHTTP2_NO_ERROR, NULL, 0);
    bt_http2_schedule(http2);
}

void bt_http2_drain(struct bt_http2 *http2)
{
    if (http2->is_draining || http2->stage != BT_HTTP2_OPEN)
        return;
    http2->is_draining = true;
    if (http2->role == BT_HTTP2_CLIENT) {
        bt_http2_say_goodbye(http2);
        return;
    }
    /* RFC 9113, 6.8: first a notice, then, after a round trip, which streams were the last. */
    (void)nghttp2_submit_shutdown_notice(http2->session);
    (void)nghttp2_submit_ping(http2->session, NGHTTP2_FLAG_NONE, NULL);
    bt_http2_schedule(http2);
}

/* ---- the end
 * -----------------------------------------------------------------------------------------------
 */

static void lose_streams(struct bt_http2 *http2)
{
    struct bt_http2_stream *stream;
    while ((stream = TAILQ_FIRST(&http2->streams)) != NULL)
        bt_http2_stream_lose(stream, http2->role == BT_HTTP2_CLIENT && !stream->is_on_wire ? BT_ABORT_REFUSED
                                                                                           : BT_ABORT_LOST);
}

/* With the stack of nghttp2 left behind. */
static void dispose(struct bt_http2 *http2)
{
    bt_http2_head_free(http2->head);
    nghttp2_session_del(http2->session);
    event_free(http2->flush);
    event_free(http2->watch);
    bt_channel_free(http2->channel);
    free(http2);
}

static void enter(struct bt_http2 *http2)
{
    http2->depth++;
}

/* Returns false when the connection is gone. */
static bool leave(struct bt_http2 *http2)
{
    http2->depth--;
    if (!http2->is_freed)
        return true;
    if (http2->depth == 0)
        dispose(http2);
    return false;
}

struct bt_http2 *bt_http2_free(struct bt_http2 *http2)
{
    if (http2 == NULL || http2->is_freed)
        return NULL;
    http2->is_freed = true;
    enter(http2);
    lose_streams(http2);
    (void)leave(http2);
    return NULL;
}

static void finish(struct bt_http2 *http2)
{
    if (http2->stage == BT_HTTP2_OVER)
        return;
    http2->stage = BT_HTTP2_OVER;
    (void)event_del(http2->watch);
    http2->events->on_end(http2->context, http2->end_reason);
}

/* Called from the loop alone, between enter and leave: tells the streams' owners, then the connection's. */
static void end(struct bt_http2 *http2, const char *reason)
{
    struct timeval soon = {0, (suseconds_t)(LINGER_MS / 10) * 1000};
    if (http2->stage != BT_HTTP2_OPEN)
        return;
    http2->stage = BT_HTTP2_LINGERING;
    if (http2->end_reason == NULL)
        http2->end_reason = reason;
    (void)event_del(http2->flush);
    lose_streams(http2);
    if (http2->is_freed)
        return;
    if (bt_channel_end_of(http2->channel) != BT_CHANNEL_OPEN) {
        finish(http2);
        return;
    }
    /* A close with input unread would be a reset, and the peer might never read why. */
    bt_channel_finish(http2->channel);
    bt_channel_set_reading(http2->channel, true);
    http2->linger_ms = bt_clock_ms();
    (void)event_add(http2->watch, &soon);
}

/* ---- input and output
 * --------------------------------------------------------------------------------------
 */

static void read_input(struct bt_http2 *http2)
{
    struct evbuffer *input = bt_channel_input(http2->channel);
    bool was_blocked = http2->is_blocked;
    size_t length;
    http2->is_blocked = false;
    while (http2->end_reason == NULL && (length = evbuffer_get_contiguous_space(input)) > 0) {
        http2->is_blocked = bt_channel_waiting(http2->channel) >= BT_HTTP2_OUTPUT_MAX &&
                            nghttp2_session_get_outbound_queue_size(http2->session) > BLOCKED_QUEUE;
        if (http2->is_blocked)
            break;
        ssize_t taken =
            nghttp2_session_mem_recv(http2->session, evbuffer_pullup(input, (ev_ssize_t)length), length);
        if (http2->is_freed)
            return;
        if (taken < 0) {
            end(http2, nghttp2_strerror((int)taken));
            return;
        }
        (void)evbuffer_drain(input, (size_t)taken);
    }
    if (http2->is_blocked != was_blocked)
        bt_channel_set_reading(http2->channel, !http2->is_blocked);
}

static void tell_room(struct bt_http2 *http2)
{
    struct bt_http2_stream *stream;
    while (!http2->is_freed && (stream = TAILQ_FIRST(&http2->drained)) != NULL) {
        TAILQ_REMOVE(&http2->drained, stream, drained_link);
        stream->is_drained = false;
        if (!stream->is_silent && !stream->is_end_sent)
            stream->base.events->on_room(stream->base.context, &stream->base);
    }
}

static void tell_capacity(struct bt_http2 *http2)
{
    if (!http2->has_capacity_news || http2->role != BT_HTTP2_CLIENT)
        return;
    http2->has_capacity_news = false;
    http2->events->on_capacity(http2->context);
}

static void write_output(struct bt_http2 *http2)
{
    struct evbuffer *output = bt_channel_output(http2->channel);
    const uint8_t *data;
    ssize_t length = 0;
    while (bt_channel_waiting(http2->channel) < BT_HTTP2_OUTPUT_MAX) {
        length = nghttp2_session_mem_send(http2->session, &data);
        if (http2->is_freed)
            return;
        if (length <= 0)
            break;
        if (evbuffer_add(output, data, (size_t)length) < 0)
            abort(); /* out of memory, as in bt_new */
    }
    bt_channel_touch(http2->channel);
    if (length < 0) {
        end(http2, nghttp2_strerror((int)length));
        return;
    }
    tell_room(http2);
}

static bool is_done(const struct bt_http2 *http2)
{
    return nghttp2_session_want_read(http2->session) == 0 && nghttp2_session_want_write(http2->session) == 0;
}

/* Both directions as far as they go, and the end when there is one. */
static void run(struct bt_http2 *http2)
{
    enter(http2);
    read_input(http2);
    if (!http2->is_freed && http2->stage == BT_HTTP2_OPEN)
        write_output(http2);
    if (!http2->is_freed && http2->stage == BT_HTTP2_OPEN)
        bt_http2_tell_failed(http2);
    if (!http2->is_freed && http2->stage == BT_HTTP2_OPEN)
        tell_capacity(http2);
    if (!http2->is_freed && http2->stage == BT_HTTP2_OPEN) {
        if (is_done(http2))
            end(http2, "ended in order");
        else if (bt_channel_end_of(http2->channel) != BT_CHANNEL_OPEN)
            end(http2, "the peer closed the connection");
    }
    (void)leave(http2);
}

static void on_read(void *context)
{
    struct bt_http2 *http2 = context;
    struct evbuffer *input = bt_channel_input(http2->channel);
    if (http2->stage == BT_HTTP2_OPEN) {
        run(http2);
        return;
    }
    (void)evbuffer_drain(input, evbuffer_get_length(input));
    if (bt_channel_end_of(http2->channel) != BT_CHANNEL_OPEN)
        finish(http2);
}

static void on_write(void *context)
{
    struct bt_http2 *http2 = context;
    if (http2->stage == BT_HTTP2_OPEN)
        run(http2);
}

static void on_flush(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    on_write(context);
}

/* ---- time
 * --------------------------------------------------------------------------------------------------
 */

static void wind_up_streams(struct bt_http2 *http2)
{
    struct bt_http2_stream *stream, *next;
    for (stream = TAILQ_FIRST(&http2->streams); stream != NULL; stream = next) {
        next = TAILQ_NEXT(stream, link);
        bt_http2_stream_wind_up(stream);
    }
}

static void on_watch(evutil_socket_t fd, short what, void *context)
{
    struct bt_http2 *http2 = context;
    int64_t now_ms = bt_clock_ms();
    (void)fd, (void)what;
    if (http2->stage != BT_HTTP2_OPEN) {
        if (bt_channel_waiting(http2->channel) == 0 || now_ms - http2->linger_ms >= LINGER_MS)
            finish(http2);
        return;
    }
    if (http2->end_reason != NULL) { /* decided, but the peer does not even read the GOAWAY */
        enter(http2);
        end(http2, http2->end_reason);
        (void)leave(http2);
        return;
    }
    wind_up_streams(http2);
    if (!http2->is_settled && now_ms - http2->started_ms >= BT_HTTP2_HEAD_MS)
        bt_http2_terminate(http2, NGHTTP2_SETTINGS_TIMEOUT, "no HTTP/2 preface came");
    else if (http2->head != NULL && now_ms - http2->head_ms >= BT_HTTP2_HEAD_MS)
        bt_http2_terminate(http2, NGHTTP2_ENHANCE_YOUR_CALM, "a head did not end in time");
    else if (http2->is_draining)
        bt_http2_say_goodbye(http2); /* a peer that does not answer the PING has had its time */
    else if (http2->role == BT_HTTP2_SERVER && http2->stream_count == 0 &&
             now_ms - http2->idle_ms >= BT_HTTP2_IDLE_MS)
        bt_http2_drain(http2);
}

/* ---- the face
 * ----------------------------------------------------------------------------------------------
 */

struct bt_http2 *bt_http2_new(struct event_base *base, struct bt_channel *channel, enum bt_http2_role role,
                              const char *scheme, const struct bt_http2_events *events, void *context)
{
    static const struct bt_channel_events channel_events = {.on_read = on_read, .on_write = on_write};
    struct timeval period = {WATCH_MS / 1000, 0};
    struct bt_http2 *http2 = bt_new(1, sizeof(*http2));
    http2->channel = channel;
    http2->role = role;
    http2->scheme = scheme;
    http2->events = events;
    http2->context = context;
    TAILQ_INIT(&http2->streams);
    TAILQ_INIT(&http2->drained);
    http2->allowance = ALLOWANCE_MAX;
    http2->started_ms = http2->idle_ms = http2->allowance_ms = bt_clock_ms();
    http2->flush = evtimer_new(base, on_flush, http2);
    http2->watch = event_new(base, -1, EV_PERSIST, on_watch, http2);
    if (http2->flush == NULL || http2->watch == NULL || bt_http2_session_start(http2) < 0)
        abort(); /* out of memory, as in bt_new */
    (void)event_add(http2->watch, &period);
    bt_channel_set_events(channel, &channel_events, http2);
    bt_http2_schedule(http2);
    return http2;
}

size_t bt_http2_capacity(const struct bt_http2 *http2)
{
    if (http2->is_freed || http2->stage != BT_HTTP2_OPEN || http2->end_reason != NULL || http2->is_draining ||
        nghttp2_session_check_request_allowed(http2->session) == 0)
        return 0;
    uint32_t limit =
        nghttp2_session_get_remote_settings(http2->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
    limit = limit < BT_HTTP2_STREAMS_MAX ? limit : BT_HTTP2_STREAMS_MAX;
    return http2->stream_count < limit ? limit - http2->stream_count : 0;
}

struct bt_stream *bt_http2_open(struct bt_http2 *http2)
{
    if (bt_http2_capacity(http2) == 0)
        return NULL;
    return &bt_http2_stream_new(http2, 0)->base;
}

bool bt_http2_allows_protocol(const struct bt_http2 *http2)
{
    return http2->is_settled &&
           nghttp2_session_get_remote_settings(http2->session, NGHTTP2_SETTINGS_ENABLE_CONNECT_PROTOCOL) == 1;
}

size_t bt_http2_stream_count(const struct bt_http2 *http2)
{
    return http2->stream_count;
}

size_t bt_http2_weight(const struct bt_http2 *http2)
{
    return http2->is_freed ? 0 : bt_channel_weight(http2->channel) + http2->memory;
}
