/* The bytes of an exchange, both ways. See exchange.h. */
#include <stdlib.h>

#include "lib/memory.h"
#include "policy/gateway/exchange_internal.h"

/* Gives a source leave to send what is neither here nor refused any more. */
static void settle(struct bt_half *half, struct bt_stream *source)
{
    size_t waiting = half->waiting != NULL ? evbuffer_get_length(half->waiting) : 0;
    if (half->owed <= waiting)
        return;
    size_t done = half->owed - waiting;
    half->owed = waiting;
    source->operations->consume(source, done);
}

/* Sends what waits, as far as there is room, then the end. Returns false when the target takes no more. */
static bool pump(struct bt_half *half, struct bt_stream *source, struct bt_stream *target)
{
    while (half->waiting != NULL && evbuffer_get_length(half->waiting) > 0) {
        struct evbuffer_iovec first;
        size_t room = target->operations->room(target);
        if (room == 0)
            break;
        (void)evbuffer_peek(half->waiting, -1, NULL, &first, 1);
        size_t size = first.iov_len < room ? first.iov_len : room;
        if (target->operations->send_data(target, first.iov_base, size) < 0)
            return false;
        (void)evbuffer_drain(half->waiting, size);
    }
    settle(half, source);
    if (!half->is_ended || half->is_sent || (half->waiting != NULL && evbuffer_get_length(half->waiting) > 0))
        return true;
    struct bt_message trailers;
    if (half->trailers != NULL)
        bt_kept_message_get(half->trailers, &trailers);
    half->is_sent = true;
    return target->operations->send_end(target, half->trailers != NULL ? &trailers : NULL) == 0;
}

/* Counts bytes that a source gave. */
static void note(struct bt_exchange *exchange, struct bt_half *half, size_t length)
{
    if (half == &exchange->response)
        exchange->left_ms = 0; /* the host is at work */
    exchange->session->agent->counters.bytes += length;
    exchange->session->agent->has_news = true;
    half->owed += length;
}

static void need_waiting(struct bt_half *half)
{
    if (half->waiting == NULL)
        half->waiting = evbuffer_new();
    if (half->waiting == NULL)
        abort(); /* out of memory, as in bt_new */
}

/* Takes bytes through the half's filter. Returns whether the exchange goes on. */
static bool take_filtered(struct bt_exchange *exchange, struct bt_half *half, const void *data, size_t length)
{
    note(exchange, half, length);
    need_waiting(half);
    return bt_exchange_filter_data(exchange, half, data, length);
}

/* Takes bytes from a source: what there is room for goes on at once, the rest waits. */
static bool take(struct bt_exchange *exchange, struct bt_half *half, struct bt_stream *target,
                 const char *data, size_t length)
{
    size_t waiting = half->waiting != NULL ? evbuffer_get_length(half->waiting) : 0;
    size_t size = 0;
    note(exchange, half, length);
    if (target != NULL && waiting == 0) {
        size_t room = target->operations->room(target);
        size = length < room ? length : room;
        if (size > 0 && target->operations->send_data(target, data, size) < 0)
            return false;
    }
    if (size == length)
        return true;
    need_waiting(half);
    (void)evbuffer_add(half->waiting, data + size, length - size);
    return true;
}

/* The response is what counts: after it nobody waits for the rest of a request. */
static void end_when_done(struct bt_exchange *exchange)
{
    if (exchange->response.is_sent && (exchange->request.is_sent || !exchange->is_raw))
        bt_exchange_end(exchange);
}

/* ---- memory -----------------------------------------------------------------------------------------------
 */

#define EXCHANGE_SIZE (8U * 1024) /* itself and its two streams */

static size_t length_of(const struct evbuffer *buffer)
{
    return buffer != NULL ? evbuffer_get_length(buffer) : 0;
}

static size_t half_weight(const struct bt_half *half)
{
    return length_of(half->waiting) + length_of(half->behind) + bt_kept_message_weight(half->trailers) +
           (half->filter != NULL ? bt_filter_weight(half->filter) : 0);
}

/* What a stream has taken and not sent. */
static size_t backlog(const struct bt_stream *stream)
{
    size_t room = stream->operations->room(stream);
    return room < BT_STREAM_HELD_MAX ? BT_STREAM_HELD_MAX - room : 0;
}

size_t bt_exchange_weight(const struct bt_exchange *exchange)
{
    size_t held = EXCHANGE_SIZE + bt_kept_message_weight(exchange->head) +
                  bt_kept_message_weight(exchange->filtered) + half_weight(&exchange->request) +
                  half_weight(&exchange->response);
    if (exchange->session->http2 != NULL) /* HTTP/1.1's is its connection's */
        held += backlog(exchange->agent);
    return exchange->upstream != NULL ? held + backlog(exchange->upstream) : held;
}

/* ---- from the agent ---------------------------------------------------------------------------------------
 */

static void on_agent_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    (void)stream;
    bt_exchange_take_head(context, head);
}

/* An upstream that takes no more of a request may still answer it (413): what comes is dropped meanwhile. */
static void drop_request(struct bt_exchange *exchange)
{
    struct bt_half *half = &exchange->request;
    half->is_sent = true;
    if (half->waiting != NULL)
        (void)evbuffer_drain(half->waiting, evbuffer_get_length(half->waiting));
    settle(half, exchange->agent);
}

/* Where the request's bytes may go now: another protocol's only after 101. */
static struct bt_stream *request_target(const struct bt_exchange *exchange)
{
    return exchange->is_asking_protocol && !exchange->is_raw ? NULL : exchange->upstream;
}

void bt_exchange_pump_request(struct bt_exchange *exchange)
{
    struct bt_stream *target = request_target(exchange);
    if (target == NULL || exchange->request.is_sent || exchange->is_held)
        return;
    if (!pump(&exchange->request, exchange->agent, target))
        drop_request(exchange);
}

static void on_agent_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct bt_exchange *exchange = context;
    (void)stream;
    if (exchange->request.is_sent) {
        exchange->agent->operations->consume(exchange->agent, length);
        return;
    }
    if (exchange->is_held) {
        note(exchange, &exchange->request, length);
        bt_exchange_hold_data(&exchange->request, data, length);
        return;
    }
    struct bt_stream *target = request_target(exchange);
    exchange->is_body_used = exchange->is_body_used || target != NULL;
    if (exchange->request.filter != NULL) {
        if (take_filtered(exchange, &exchange->request, data, length)) {
            bt_exchange_pump_request(exchange);
            bt_exchange_gather(exchange);
        }
        return;
    }
    if (!take(exchange, &exchange->request, target, data, length))
        drop_request(exchange);
    else if (target != NULL)
        settle(&exchange->request, exchange->agent);
}

/* Kept first: who is asked about what is in the trailers may take a while. */
static void on_agent_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct bt_exchange *exchange = context;
    struct bt_half *half = &exchange->request;
    (void)stream;
    half->is_ended = true;
    if (trailers != NULL && !half->is_sent)
        half->trailers = bt_message_keep(trailers);
    if (!half->is_sent && !exchange->is_held && !bt_exchange_filter_kept_end(exchange, half))
        return;
    bt_exchange_pump_request(exchange);
    if (exchange->is_raw)
        end_when_done(exchange);
    else
        bt_exchange_gather(exchange);
}

void bt_exchange_pump_response(struct bt_exchange *exchange)
{
    if (exchange->upstream == NULL || !exchange->has_response)
        return;
    if (!pump(&exchange->response, exchange->upstream, exchange->agent)) {
        bt_exchange_abort(exchange, BT_ABORT_CANCELLED);
        return;
    }
    end_when_done(exchange);
}

static void on_agent_room(void *context, struct bt_stream *stream)
{
    (void)stream;
    bt_exchange_pump_response(context);
}

static void on_agent_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    static const struct bt_refusal malformed = {400, "bad-request", "the request's body is malformed", ""};
    struct bt_exchange *exchange = context;
    (void)stream;
    if (reason == BT_ABORT_PROTOCOL && !exchange->has_response)
        bt_exchange_refuse(exchange, &malformed);
    else
        bt_exchange_abort(exchange, BT_ABORT_CANCELLED);
}

const struct bt_stream_events bt_exchange_agent_events = {
    .on_head = on_agent_head,
    .on_data = on_agent_data,
    .on_end = on_agent_end,
    .on_room = on_agent_room,
    .on_abort = on_agent_abort,
};

/* ---- from the upstream ------------------------------------------------------------------------------------
 */

#define INTERIM_SIZE 64 /* of a head without fields: 1024 of those is more than 20 minutes of progress */

/* Interim answers go to the agent whether it reads or not, so there is an end to them: all together may be as
 * large as one head. */
static bool is_interim_excess(struct bt_exchange *exchange, const struct bt_message *head)
{
    exchange->interim_size += INTERIM_SIZE + head->reason.length;
    for (size_t i = 0; i < head->field_count; i++)
        exchange->interim_size += head->fields[i].name.length + head->fields[i].value.length;
    return exchange->interim_size > BT_HTTP_HEAD_MAX;
}

static void on_upstream_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    static const struct bt_refusal excess = {
        502, "bad-response", "the host sent too many interim answers (1xx)", "try again later"};
    struct bt_exchange *exchange = context;
    bool is_final = head->status >= 200 || head->status == 101;
    struct bt_message filtered;
    (void)stream;
    exchange->left_ms = 0;
    if (!is_final && is_interim_excess(exchange, head)) {
        bt_exchange_refuse(exchange, &excess);
        return;
    }
    if (exchange->response.filter != NULL) {
        filtered = *head;
        if (!bt_exchange_filter_response(exchange, &filtered))
            return;
        head = &filtered;
    }
    if (is_final) {
        exchange->has_response = true;
        exchange->is_raw = head->status == 101;
        /* Only 101 lets the other protocol's bytes through. */
        if (!exchange->is_raw && exchange->is_asking_protocol)
            exchange->request.is_sent = true;
    }
    if (exchange->agent->operations->send_head(exchange->agent, head, head->is_complete) < 0) {
        bt_exchange_abort(exchange, BT_ABORT_CANCELLED);
        return;
    }
    if (is_final && head->is_complete)
        exchange->response.is_sent = true;
    if (exchange->is_raw)
        bt_exchange_pump_request(exchange);
}

static void on_upstream_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    struct bt_exchange *exchange = context;
    (void)stream;
    if (exchange->response.filter != NULL) {
        if (!take_filtered(exchange, &exchange->response, data, length))
            return;
        if (!pump(&exchange->response, exchange->upstream, exchange->agent))
            bt_exchange_abort(exchange, BT_ABORT_PROTOCOL);
        return;
    }
    if (!take(exchange, &exchange->response, exchange->agent, data, length))
        bt_exchange_abort(exchange, BT_ABORT_PROTOCOL);
    else
        settle(&exchange->response, exchange->upstream);
}

static void on_upstream_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    struct bt_exchange *exchange = context;
    struct bt_message filtered;
    (void)stream;
    if (trailers != NULL)
        filtered = *trailers;
    if (!bt_exchange_filter_end(exchange, &exchange->response, trailers != NULL ? &filtered : NULL))
        return;
    exchange->response.is_ended = true;
    if (trailers != NULL)
        exchange->response.trailers = bt_message_keep(&filtered);
    if (!pump(&exchange->response, exchange->upstream, exchange->agent)) {
        bt_exchange_abort(exchange, BT_ABORT_PROTOCOL);
        return;
    }
    end_when_done(exchange);
}

static void on_upstream_room(void *context, struct bt_stream *stream)
{
    struct bt_exchange *exchange = context;
    (void)stream;
    bt_exchange_pump_request(exchange);
    if (exchange->is_raw)
        end_when_done(exchange);
}

static void on_upstream_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct bt_exchange *exchange = context;
    exchange->upstream = NULL;
    stream->operations->release(stream);
    if (!exchange->has_response) {
        bt_exchange_upstream_lost(exchange, reason);
        return;
    }
    /* Half an answer is out: only a cut says that the rest is not coming. */
    bt_exchange_record(exchange, false, "bad-response",
                       reason == BT_ABORT_PROTOCOL ? "the host's answer is malformed"
                                                   : "the host broke off its answer");
    bt_exchange_abort(exchange, BT_ABORT_LOST);
}

const struct bt_stream_events bt_exchange_upstream_events = {
    .on_head = on_upstream_head,
    .on_data = on_upstream_data,
    .on_end = on_upstream_end,
    .on_room = on_upstream_room,
    .on_abort = on_upstream_abort,
};
