/* Life of an HTTP/1.1 connection. See http1_codec.h. */
#include <stdlib.h>

#include "lib/memory.h"
#include "policy/gateway/http1_internal.h"

static bool has_ended(const struct bt_http1 *http1)
{
    return bt_channel_end_of(http1->channel) != BT_CHANNEL_OPEN;
}

/* An agent that does not read its answers: its next request is not taken until it does. */
static bool is_backed_up(const struct bt_http1 *http1)
{
    return !http1->settings.is_client && !http1->is_open &&
           bt_channel_waiting(http1->channel) > BT_CHANNEL_OUTPUT_LOW;
}

/* Tells the owner once that no stream will come any more. Returns false when it freed the connection. */
static bool report_close(struct bt_http1 *http1)
{
    struct bt_http1_frame frame;
    if (http1->is_reported)
        return true;
    http1->is_reported = true;
    bt_http1_enter(http1, &frame);
    http1->events->on_close(http1->context);
    return bt_http1_leave(http1, &frame);
}

enum bt_step bt_http1_fail(struct bt_http1 *http1, enum bt_abort reason)
{
    struct bt_http1_frame frame;
    bool is_told = http1->is_failed;
    http1->is_closing = true;
    /* An agent whose request is malformed can still be told so. */
    http1->is_failed = http1->settings.is_client || reason != BT_ABORT_PROTOCOL;
    http1->receiving = http1->is_failed ? http1->receiving : BT_RECEIVE_DONE;
    if (!http1->is_open)
        return report_close(http1) ? BT_STEP_WAIT : BT_STEP_GONE;
    if (is_told || http1->stream.events == NULL)
        return BT_STEP_WAIT;
    http1->is_cut = http1->is_failed;
    http1->must_close = true;
    bt_http1_enter(http1, &frame);
    http1->stream.events->on_abort(http1->stream.context, &http1->stream, reason);
    return bt_http1_leave(http1, &frame) ? BT_STEP_WAIT : BT_STEP_GONE;
}

/* What the peer's end means, once everything before it was read. */
static enum bt_step take_end(struct bt_http1 *http1)
{
    enum bt_channel_end end = bt_channel_end_of(http1->channel);
    if (!http1->is_open)
        return report_close(http1) ? BT_STEP_WAIT : BT_STEP_GONE;
    http1->must_close = true;
    if (http1->receiving == BT_RECEIVE_DONE && http1->settings.is_client)
        return BT_STEP_WAIT; /* the answer is complete */
    if (end == BT_CHANNEL_BROKEN || http1->receiving != BT_RECEIVE_DONE)
        return bt_http1_fail(http1, BT_ABORT_LOST);
    /* The request is complete. Who ends a TLS connection reads no answer; in clear, half-closed is in use. Of
     * another protocol the host was told the end, and has what came before it to read. */
    if (bt_channel_ssl(http1->channel) != NULL && http1->sending != BT_SEND_RAW)
        return bt_http1_fail(http1, BT_ABORT_CANCELLED);
    return BT_STEP_WAIT;
}

/* After the last answer: waits for the peer's end, so that closing over unread bytes does not reset the
 * connection and take the answer along. */
static enum bt_step linger(struct bt_http1 *http1)
{
    struct evbuffer *input = bt_channel_input(http1->channel);
    (void)evbuffer_drain(input, evbuffer_get_length(input));
    if (!http1->is_finished)
        bt_channel_finish(http1->channel);
    http1->is_finished = true;
    return has_ended(http1) || http1->is_cut ? (report_close(http1) ? BT_STEP_WAIT : BT_STEP_GONE)
                                             : BT_STEP_WAIT;
}

static enum bt_step step(struct bt_http1 *http1)
{
    bool has_input = evbuffer_get_length(bt_channel_input(http1->channel)) > 0;
    /* An upstream may answer and break off at once: what came of its answer still counts. */
    if (bt_channel_end_of(http1->channel) == BT_CHANNEL_BROKEN && (!http1->settings.is_client || !has_input))
        return take_end(http1);
    if (http1->is_closing && !http1->is_open)
        return http1->settings.is_client ? (report_close(http1) ? BT_STEP_WAIT : BT_STEP_GONE)
                                         : linger(http1);
    switch (http1->receiving) {
    case BT_RECEIVE_HEAD:
        if (http1->settings.is_client && !http1->is_open && has_input)
            return bt_http1_fail(http1, BT_ABORT_PROTOCOL); /* nobody asked for this */
        if (has_input && is_backed_up(http1))
            return BT_STEP_WAIT;
        if (!has_input || (http1->is_open && !http1->settings.is_client) || http1->is_failed)
            return has_ended(http1) ? take_end(http1) : BT_STEP_WAIT;
        return http1->settings.is_client ? bt_http1_read_response(http1) : bt_http1_read_request(http1);
    case BT_RECEIVE_BODY:
    case BT_RECEIVE_TRAILERS:
        return bt_http1_read_body(http1);
    case BT_RECEIVE_RAW:
        return bt_http1_read_raw(http1);
    case BT_RECEIVE_DONE:
        if (http1->settings.is_client && has_input)
            http1->must_close = true; /* more than the answer */
        return has_ended(http1) && (!has_input || http1->settings.is_client) ? take_end(http1) : BT_STEP_WAIT;
    }
    return BT_STEP_WAIT;
}

static void on_read(void *context)
{
    struct bt_http1 *http1 = context;
    while (step(http1) == BT_STEP_AGAIN)
        continue;
}

static void on_write(void *context)
{
    struct bt_http1 *http1 = context;
    if (http1->is_open && !http1->is_failed && http1->stream.events != NULL &&
        http1->sending != BT_SEND_HEAD && http1->sending != BT_SEND_DONE)
        http1->stream.events->on_room(http1->stream.context, &http1->stream);
    else if (!http1->is_open && !http1->settings.is_client)
        bt_channel_poke(http1->channel);
}

static const struct bt_channel_events channel_events = {.on_read = on_read, .on_write = on_write};

/* ---- operations -------------------------------------------------------------------------------------------
 */

static void consume(struct bt_stream *stream, size_t length)
{
    struct bt_http1 *http1 = (struct bt_http1 *)stream;
    bool was_full = http1->held >= BT_STREAM_HELD_MAX;
    http1->held -= length < http1->held ? length : http1->held;
    if (was_full && http1->held < BT_STREAM_HELD_MAX)
        bt_channel_poke(http1->channel);
}

static void abort_stream(struct bt_stream *stream, enum bt_abort reason)
{
    struct bt_http1 *http1 = (struct bt_http1 *)stream;
    (void)reason; /* HTTP/1.1 has one way to say it */
    http1->is_failed = http1->is_closing = http1->is_cut = true;
}

static bool is_reusable(const struct bt_http1 *http1)
{
    return !http1->is_failed && !http1->must_close && !http1->is_closing &&
           http1->receiving == BT_RECEIVE_DONE && http1->sending == BT_SEND_DONE && !has_ended(http1);
}

static void begin(struct bt_http1 *http1)
{
    http1->receiving = BT_RECEIVE_HEAD;
    http1->sending = BT_SEND_HEAD;
    http1->held = http1->scanned = 0;
    http1->is_head_only = http1->is_connect = http1->is_raw_asked = http1->must_close = http1->is_old = false;
    http1->stream.events = NULL;
    http1->stream.context = NULL;
}

static void release(struct bt_stream *stream)
{
    struct bt_http1 *http1 = (struct bt_http1 *)stream;
    http1->is_open = false;
    if (is_reusable(http1)) {
        begin(http1);
        if (http1->settings.is_client)
            http1->events->on_idle(http1->context);
        else if (evbuffer_get_length(bt_channel_input(http1->channel)) > 0)
            bt_channel_poke(http1->channel);
        return;
    }
    http1->is_closing = true;
    if (http1->sending != BT_SEND_DONE)
        http1->is_cut = true;
    if (http1->settings.is_client)
        (void)report_close(http1);
    else
        bt_channel_poke(http1->channel);
}

static const struct bt_stream_operations operations = {
    .send_head = bt_http1_send_head,
    .room = bt_http1_room,
    .send_data = bt_http1_send_data,
    .send_end = bt_http1_send_end,
    .consume = consume,
    .abort = abort_stream,
    .release = release,
};

/* ---- the interface ----------------------------------------------------------------------------------------
 */

struct bt_http1 *bt_http1_new(struct bt_channel *channel, const struct bt_http1_settings *settings,
                              const struct bt_http1_events *events, void *context)
{
    struct bt_http1 *http1 = bt_new(1, sizeof(*http1));
    http1->stream.operations = &operations;
    http1->channel = channel;
    http1->settings = *settings;
    http1->events = events;
    http1->context = context;
    begin(http1);
    bt_channel_set_events(channel, &channel_events, http1);
    return http1;
}

struct bt_http1 *bt_http1_free(struct bt_http1 *http1)
{
    if (http1 == NULL)
        return NULL;
    if (http1->is_freed != NULL)
        *http1->is_freed = true;
    if (http1->is_cut || http1->is_open)
        bt_channel_reset(http1->channel);
    else
        bt_channel_free(http1->channel);
    free(http1);
    return NULL;
}

struct bt_channel *bt_http1_detach(struct bt_http1 *http1)
{
    struct bt_channel *channel = http1->channel;
    if (http1->is_freed != NULL)
        *http1->is_freed = true;
    (void)evbuffer_drain(bt_channel_input(channel), http1->told);
    bt_channel_set_events(channel, NULL, NULL);
    free(http1);
    return channel;
}

struct bt_stream *bt_http1_open(struct bt_http1 *http1)
{
    if (http1->is_open || http1->is_closing || has_ended(http1) ||
        evbuffer_get_length(bt_channel_input(http1->channel)) > 0)
        return NULL;
    http1->is_open = true;
    return &http1->stream;
}

enum bt_http1_state bt_http1_state_of(const struct bt_http1 *http1)
{
    if (http1->is_open)
        return BT_HTTP1_BUSY;
    if (http1->is_closing)
        return BT_HTTP1_CLOSING;
    return http1->scanned > 0 && !is_backed_up(http1) ? BT_HTTP1_HEAD : BT_HTTP1_IDLE;
}

size_t bt_http1_weight(const struct bt_http1 *http1)
{
    return bt_channel_weight(http1->channel);
}

bool bt_http1_is_sent(const struct bt_http1 *http1)
{
    return bt_channel_waiting(http1->channel) == 0;
}

bool bt_http1_is_half_closed(const struct bt_http1 *http1)
{
    return has_ended(http1);
}

void bt_http1_drain(struct bt_http1 *http1)
{
    http1->must_close = true;
    if (http1->is_open)
        return;
    http1->is_closing = true;
    bt_channel_poke(http1->channel);
}
