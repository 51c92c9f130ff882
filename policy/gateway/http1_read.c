/* What a peer sends: heads into messages, bodies into data. See http1_codec.h. */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "policy/gateway/http1_internal.h"

/* ---- heads ------------------------------------------------------------------------------------------------
 */

/* The whole input in one piece, once a head may be complete in it: a head that comes byte by byte is looked
 * at once a line, not once a byte. NULL: not yet. */
static char *head_text(struct bt_http1 *http1, size_t *ret_length)
{
    struct evbuffer *input = bt_channel_input(http1->channel);
    size_t length = evbuffer_get_length(input);
    char *text = (char *)evbuffer_pullup(input, -1);
    bool has_line = memchr(text + http1->scanned, '\n', length - http1->scanned) != NULL;
    http1->scanned = length;
    *ret_length = length;
    return has_line || length >= BT_HTTP_HEAD_MAX ? text : NULL;
}

static const struct bt_http1_fault *fault_of(int error)
{
    static const struct bt_http1_fault large = {431, "bad-request",
                                                "the request's head is larger than 64 KiB or 128 fields"};
    static const struct bt_http1_fault version = {505, "bad-request", "HTTP/1.1 and 1.0 are spoken here"};
    static const struct bt_http1_fault malformed = {400, "bad-request",
                                                    "the request is malformed or ambiguous"};
    if (error == -E2BIG)
        return &large;
    return error == -EPROTONOSUPPORT ? &version : &malformed;
}

static bool is_same(struct bt_http_slice left, struct bt_http_slice right)
{
    return left.length == right.length && strncasecmp(left.data, right.data, left.length) == 0;
}

/* Whether the Host field names the target; that of a CONNECT may leave the port out (undici does). */
static bool is_host_matching(const struct bt_http_head *head, struct bt_http_slice authority, uint16_t port)
{
    const struct bt_http_field *field = bt_http_find(head, "host", NULL);
    char host[BT_HOST_NAME_SIZE], named[BT_HOST_NAME_SIZE];
    uint16_t host_port, named_port;
    if (field == NULL || is_same(field->value, authority))
        return true; /* a CONNECT and HTTP/1.0 need none */
    if (bt_http_authority_parse(authority, port, host, &host_port) < 0 ||
        bt_http_authority_parse(field->value, port != 0 ? port : host_port, named, &named_port) < 0)
        return false;
    return strcmp(host, named) == 0 && host_port == named_port;
}

/* The target of a request on the proxy port. */
static const char *take_proxy_target(const struct bt_http_head *head, struct bt_message *message)
{
    bool is_connect = bt_http_slice_is(head->method, "CONNECT");
    message->authority = head->target;
    message->scheme = (struct bt_http_slice){"http", 4};
    message->path = (struct bt_http_slice){"", 0};
    /* Methods are case-sensitive (RFC 9110, 9.1), but not every proxy behind this one need think so. */
    if (!is_connect && bt_http_slice_is_nocase(head->method, "CONNECT"))
        return "CONNECT is written in capitals";
    if (!is_connect && bt_http_absolute_parse(head->target, &message->authority, &message->path) < 0)
        return "a proxy request must be CONNECT host:port or name an http:// URL";
    return is_host_matching(head, message->authority, is_connect ? 0 : 80)
               ? NULL
               : "the Host field and the request's target differ";
}

static const char *take_origin_target(const struct bt_http1 *http1, const struct bt_http_head *head,
                                      struct bt_message *message)
{
    const struct bt_http_field *host = bt_http_find(head, "host", NULL);
    bool is_server_wide = bt_http_slice_is(head->target, "*") && bt_http_slice_is(head->method, "OPTIONS");
    if (host == NULL)
        return "the request names no host";
    if (bt_http_slice_is_nocase(head->method, "CONNECT") ||
        (head->target.data[0] != '/' && !is_server_wide) ||
        memchr(head->target.data, '#', head->target.length) != NULL)
        return "this connection takes requests in origin-form only";
    message->authority = host->value;
    message->scheme = (struct bt_http_slice){http1->settings.scheme, strlen(http1->settings.scheme)};
    message->path = head->target;
    return NULL;
}

static bool wants_close(const struct bt_http_head *head)
{
    static const struct bt_http_slice close = {"close", 5};
    return bt_http_lists(head, "connection", close) || bt_http_lists(head, "proxy-connection", close);
}

/* The end-to-end fields, names in lower case. The text is the input's own, so it may be written. */
static void take_fields(const struct bt_http_head *head, bool is_request, struct bt_message *message)
{
    message->field_count = 0;
    for (size_t i = 0; i < head->field_count; i++) {
        struct bt_http_field field = head->fields[i];
        if (bt_http_is_hop_by_hop(head, field.name) ||
            bt_http_slice_is_nocase(field.name, "content-length") ||
            (is_request && (bt_http_slice_is_nocase(field.name, "host") ||
                            bt_http_slice_is_nocase(field.name, "expect"))) ||
            bt_http_slice_is_nocase(field.name, is_request ? "sec-websocket-key" : "sec-websocket-accept"))
            continue;
        bt_http_lower(field.name);
        message->fields[message->field_count++] = field;
    }
}

/* Returns false when the request wants a WebSocket and does not do it right. */
static bool take_protocol(struct bt_http1 *http1, const struct bt_http_head *head, struct bt_message *message)
{
    static const struct bt_http_slice upgrade = {"upgrade", 7};
    size_t count, key_count;
    const struct bt_http_field *field = bt_http_find(head, "upgrade", &count);
    const struct bt_http_field *key = bt_http_find(head, "sec-websocket-key", &key_count);
    /* Others (h2c) are what a server may ignore; so this one does. */
    http1->is_raw_asked = !head->is_old && count == 1 && bt_http_lists(head, "connection", upgrade) &&
                          bt_http_slice_is_nocase(field->value, "websocket");
    if (!http1->is_raw_asked)
        return true;
    if (!bt_http_slice_is(head->method, "GET") || head->body != BT_HTTP_BODY_NONE || key_count != 1 ||
        key->value.length != BT_WEBSOCKET_KEY_LENGTH)
        return false;
    memcpy(http1->websocket_key, key->value.data, key->value.length);
    http1->websocket_key[key->value.length] = '\0';
    message->protocol = (struct bt_http_slice){"websocket", 9};
    return true;
}

/* Fills the message from a parsed request. Returns NULL, or what is wrong with the request. */
static const struct bt_http1_fault *take_request(struct bt_http1 *http1, const struct bt_http_head *head,
                                                 struct bt_message *message)
{
    static _Thread_local struct bt_http1_fault fault;
    size_t expectations;
    const struct bt_http_field *expect = bt_http_find(head, "expect", &expectations);
    message->method = head->method;
    message->content_length = head->body == BT_HTTP_BODY_LENGTH ? (int64_t)head->body_length
                              : bt_http_find(head, "content-length", NULL) != NULL ? 0
                                                                                   : -1;
    /* HTTP/1.0 knows no interim answers and no other protocols; such fields are left unheard (RFC
     * 9110, 10.1.1 and 7.8). */
    expectations = head->is_old ? 0 : expectations;
    message->expects_continue = expectations == 1 && bt_http_slice_is_nocase(expect->value, "100-continue");
    const char *wrong = http1->settings.is_proxy ? take_proxy_target(head, message)
                                                 : take_origin_target(http1, head, message);
    fault = (struct bt_http1_fault){400, "host-mismatch", wrong};
    if (wrong == NULL && message->authority.length == 0)
        fault = (struct bt_http1_fault){400, "bad-request", "the request names no host"};
    else if (wrong == NULL && expectations > 0 && !message->expects_continue)
        fault = (struct bt_http1_fault){417, "bad-request", "only 100-continue may be expected"};
    else if (wrong == NULL && !take_protocol(http1, head, message))
        fault = (struct bt_http1_fault){400, "bad-request", "the request for a WebSocket is malformed"};
    if (fault.reason != NULL)
        return &fault;
    message->is_complete = head->body == BT_HTTP_BODY_NONE && message->protocol.length == 0;
    message->expects_continue = message->expects_continue && !message->is_complete;
    take_fields(head, true, message);
    return NULL;
}

static enum bt_step tell_end(struct bt_http1 *http1, const struct bt_message *trailers)
{
    struct bt_http1_frame frame;
    http1->receiving = BT_RECEIVE_DONE;
    bt_http1_enter(http1, &frame);
    http1->stream.events->on_end(http1->stream.context, &http1->stream, trailers);
    return bt_http1_leave(http1, &frame) ? BT_STEP_AGAIN : BT_STEP_GONE;
}

static enum bt_step tell_head(struct bt_http1 *http1, const struct bt_message *message)
{
    struct bt_http1_frame frame;
    bt_http1_enter(http1, &frame);
    http1->stream.events->on_head(http1->stream.context, &http1->stream, message);
    return bt_http1_leave(http1, &frame) ? BT_STEP_AGAIN : BT_STEP_GONE;
}

static enum bt_step tell_fault(struct bt_http1 *http1, const struct bt_http1_fault *fault)
{
    struct bt_http1_frame frame;
    http1->is_open = true;
    http1->must_close = true;
    http1->receiving = BT_RECEIVE_DONE;
    bt_http1_enter(http1, &frame);
    http1->events->on_fault(http1->context, &http1->stream, fault);
    return bt_http1_leave(http1, &frame) ? BT_STEP_AGAIN : BT_STEP_GONE;
}

static enum bt_step tell_request(struct bt_http1 *http1, const struct bt_http_head *head,
                                 const struct bt_message *message)
{
    struct bt_http1_frame frame;
    http1->is_open = true;
    http1->is_head_only = bt_http_slice_is(head->method, "HEAD");
    http1->is_connect = bt_http_slice_is(head->method, "CONNECT");
    http1->is_old = head->is_old;
    http1->must_close = head->is_old || wants_close(head);
    bt_http_body_start(&http1->reader, head->body, head->body_length);
    http1->receiving = message->is_complete           ? BT_RECEIVE_DONE
                       : message->protocol.length > 0 ? BT_RECEIVE_RAW
                                                      : BT_RECEIVE_BODY;
    bt_http1_enter(http1, &frame);
    http1->events->on_stream(http1->context, &http1->stream, head);
    if (!bt_http1_leave(http1, &frame))
        return BT_STEP_GONE;
    return tell_head(http1, message);
}

enum bt_step bt_http1_read_request(struct bt_http1 *http1)
{
    size_t length;
    struct bt_http_head head;
    struct bt_message message;
    const char *text = head_text(http1, &length);
    int result = text != NULL ? bt_http_request_parse(text, length, &head) : -EAGAIN;
    if (result == -EAGAIN && bt_channel_end_of(http1->channel) == BT_CHANNEL_OPEN)
        return BT_STEP_WAIT;
    if (result == -EAGAIN)
        return bt_http1_fail(http1, BT_ABORT_LOST);
    http1->scanned = 0;
    memset(&message, 0, offsetof(struct bt_message, fields));
    const struct bt_http1_fault *fault = result < 0 ? fault_of(result) : take_request(http1, &head, &message);
    if (fault != NULL)
        return tell_fault(http1, fault);
    /* The head stays in the input, which the message borrows from, until it was told. */
    bool is_complete = message.is_complete;
    http1->told = head.length;
    enum bt_step step = tell_request(http1, &head, &message);
    if (step == BT_STEP_GONE)
        return step;
    http1->told = 0;
    (void)evbuffer_drain(bt_channel_input(http1->channel), head.length);
    if (is_complete && http1->is_open && !http1->is_failed)
        return tell_end(http1, NULL);
    return BT_STEP_AGAIN;
}

/* ---- responses --------------------------------------------------------------------------------------------
 */

/* What follows a final response (RFC 9112, 6.3). */
static void take_framing(struct bt_http1 *http1, struct bt_http_head *head, struct bt_message *message)
{
    bool has_length = bt_http_find(head, "content-length", NULL) != NULL;
    message->content_length = has_length ? (int64_t)head->body_length : -1;
    if (http1->is_head_only || head->status == 204 || head->status == 304)
        head->body = BT_HTTP_BODY_NONE;
    if (head->status == 204)
        message->content_length = -1;
    message->is_complete = head->body == BT_HTTP_BODY_NONE;
    bt_http_body_start(&http1->reader, head->body, head->body_length);
    http1->must_close =
        http1->must_close || head->is_old || head->body == BT_HTTP_BODY_UNTIL_CLOSE || wants_close(head);
    http1->receiving = message->is_complete ? BT_RECEIVE_DONE : BT_RECEIVE_BODY;
}

static bool is_protocol_answered(const struct bt_http1 *http1, const struct bt_http_head *head)
{
    size_t count, accept_count;
    char wanted[BT_WEBSOCKET_ACCEPT_SIZE];
    const struct bt_http_field *field = bt_http_find(head, "upgrade", &count);
    const struct bt_http_field *accept = bt_http_find(head, "sec-websocket-accept", &accept_count);
    if (!http1->is_raw_asked || count != 1 || accept_count != 1)
        return false;
    bt_http1_websocket_accept(http1->websocket_key, wanted);
    return bt_http_slice_is_nocase(field->value, "websocket") && bt_http_slice_is(accept->value, wanted);
}

enum bt_step bt_http1_read_response(struct bt_http1 *http1)
{
    size_t length;
    struct bt_http_head head;
    struct bt_message message;
    const char *text = head_text(http1, &length);
    int result = text != NULL ? bt_http_response_parse(text, length, &head) : -EAGAIN;
    if (result == -EAGAIN && bt_channel_end_of(http1->channel) == BT_CHANNEL_OPEN)
        return BT_STEP_WAIT;
    if (result < 0 || (head.status == 101 && !is_protocol_answered(http1, &head)))
        return bt_http1_fail(http1, result == -EAGAIN ? BT_ABORT_LOST : BT_ABORT_PROTOCOL);
    http1->scanned = 0;
    memset(&message, 0, offsetof(struct bt_message, fields));
    message.status = head.status;
    message.reason = head.reason;
    if (message.reason.length > 0) {
        message.reason.data++; /* the blank behind the status */
        message.reason.length--;
    }
    message.content_length = -1;
    if (head.status == 101) {
        message.protocol = (struct bt_http_slice){"websocket", 9};
        http1->receiving = BT_RECEIVE_RAW;
        http1->sending = BT_SEND_RAW;
    } else if (head.status >= 200) {
        if (http1->is_raw_asked)
            http1->sending = BT_SEND_DONE;
        http1->is_raw_asked = false;
        take_framing(http1, &head, &message);
    }
    bool is_complete = message.is_complete;
    take_fields(&head, false, &message);
    enum bt_step step = tell_head(http1, &message);
    if (step == BT_STEP_GONE)
        return step;
    (void)evbuffer_drain(bt_channel_input(http1->channel), head.length);
    if (is_complete && http1->is_open && !http1->is_failed)
        return tell_end(http1, NULL);
    return BT_STEP_AGAIN;
}

/* ---- bodies -----------------------------------------------------------------------------------------------
 */

static enum bt_step tell_data(struct bt_http1 *http1, struct bt_http_slice data, size_t taken)
{
    struct bt_http1_frame frame;
    http1->held += data.length;
    bt_http1_enter(http1, &frame);
    http1->stream.events->on_data(http1->stream.context, &http1->stream, data.data, data.length);
    if (!bt_http1_leave(http1, &frame))
        return BT_STEP_GONE;
    (void)evbuffer_drain(bt_channel_input(http1->channel), taken);
    return BT_STEP_AGAIN;
}

/* The end came before the body did. */
static enum bt_step end_of_body(struct bt_http1 *http1)
{
    enum bt_channel_end end = bt_channel_end_of(http1->channel);
    if (end == BT_CHANNEL_OPEN)
        return BT_STEP_WAIT;
    if (end == BT_CHANNEL_ENDED && http1->reader.body == BT_HTTP_BODY_UNTIL_CLOSE)
        return tell_end(http1, NULL);
    return bt_http1_fail(http1, BT_ABORT_LOST);
}

/* Fields that say where a message ends, where it goes or who sends it have no place behind it (RFC
 * 9110, 6.5.1). */
static bool may_trail(struct bt_http_slice name)
{
    static const char *const forbidden[] = {
        "host",       "content-length", "content-encoding", "content-type",  "authorization", "cookie",
        "set-cookie", "expect",         "cache-control",    "content-range", "max-forwards",  "range"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(forbidden); i++)
        if (bt_http_slice_is_nocase(name, forbidden[i]))
            return false;
    return true;
}

static enum bt_step read_trailers(struct bt_http1 *http1)
{
    size_t length;
    struct bt_http_head head = {0};
    struct bt_message message;
    if (evbuffer_get_length(bt_channel_input(http1->channel)) == 0)
        return end_of_body(http1);
    const char *text = head_text(http1, &length);
    int result = text != NULL ? bt_http_trailers_parse(text, length, &head) : -EAGAIN;
    if (result == -EAGAIN)
        return end_of_body(http1);
    if (result < 0)
        return bt_http1_fail(http1, BT_ABORT_PROTOCOL);
    http1->scanned = 0;
    memset(&message, 0, offsetof(struct bt_message, fields));
    take_fields(&head, false, &message);
    size_t kept = 0;
    for (size_t i = 0; i < message.field_count; i++)
        if (may_trail(message.fields[i].name))
            message.fields[kept++] = message.fields[i];
    message.field_count = kept;
    enum bt_step step = tell_end(http1, kept > 0 ? &message : NULL);
    if (step != BT_STEP_GONE)
        (void)evbuffer_drain(bt_channel_input(http1->channel), head.length);
    return step;
}

enum bt_step bt_http1_read_body(struct bt_http1 *http1)
{
    struct evbuffer *input = bt_channel_input(http1->channel);
    struct evbuffer_iovec first = {0};
    struct bt_http_slice data;
    size_t taken;
    if (!http1->is_open || http1->is_failed)
        return BT_STEP_WAIT;
    if (http1->receiving == BT_RECEIVE_TRAILERS)
        return read_trailers(http1);
    if (evbuffer_get_length(input) == 0)
        return end_of_body(http1);
    if (http1->held >= BT_STREAM_HELD_MAX)
        return BT_STEP_WAIT;
    (void)evbuffer_peek(input, -1, NULL, &first, 1);
    size_t size = BT_STREAM_HELD_MAX - http1->held;
    size = first.iov_len < size ? first.iov_len : size;
    int piece = bt_http_body_read(&http1->reader, first.iov_base, size, &taken, &data);
    if (piece < 0)
        return bt_http1_fail(http1, BT_ABORT_PROTOCOL);
    enum bt_step step = BT_STEP_AGAIN;
    if (piece == BT_HTTP_PIECE_DATA)
        step = tell_data(http1, data, taken);
    else
        (void)evbuffer_drain(input, taken);
    if (step == BT_STEP_GONE || !http1->is_open || http1->is_failed)
        return step;
    if (piece == BT_HTTP_PIECE_TRAILERS)
        http1->receiving = BT_RECEIVE_TRAILERS;
    bool is_last = http1->reader.body == BT_HTTP_BODY_LENGTH && http1->reader.left == 0;
    return piece == BT_HTTP_PIECE_END || is_last ? tell_end(http1, NULL) : step;
}

enum bt_step bt_http1_read_raw(struct bt_http1 *http1)
{
    struct evbuffer *input = bt_channel_input(http1->channel);
    struct evbuffer_iovec first = {0};
    enum bt_channel_end end = bt_channel_end_of(http1->channel);
    if (!http1->is_open || http1->is_failed || http1->sending == BT_SEND_HEAD)
        return end == BT_CHANNEL_OPEN || !http1->is_open ? BT_STEP_WAIT
                                                         : bt_http1_fail(http1, BT_ABORT_CANCELLED);
    if (evbuffer_get_length(input) == 0) {
        if (end == BT_CHANNEL_OPEN)
            return BT_STEP_WAIT;
        return end == BT_CHANNEL_ENDED ? tell_end(http1, NULL) : bt_http1_fail(http1, BT_ABORT_LOST);
    }
    if (http1->held >= BT_STREAM_HELD_MAX)
        return BT_STEP_WAIT;
    (void)evbuffer_peek(input, -1, NULL, &first, 1);
    size_t size = BT_STREAM_HELD_MAX - http1->held;
    struct bt_http_slice data = {first.iov_base, first.iov_len < size ? first.iov_len : size};
    return tell_data(http1, data, data.length);
}
