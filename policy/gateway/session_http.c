/* Requests in clear: CONNECT and absolute-form on the proxy port, origin-form on port 80 and inside CONNECT
 * tunnels.
 *
 * What goes upstream is written anew from what was understood, so that the upstream cannot understand
 * anything else. A connection carries one forwarded request; refusals and challenges leave it usable.
 */
#include <errno.h>
#include <event2/buffer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "policy/gateway/session.h"
#include "policy/rules/service.h"

/* ---- answers of the gateway itself ----------------------------------------------------------------------
 */

static const char *reason_phrase(unsigned status)
{
    switch (status) {
    case 400:
        return "Bad request";
    case 403:
        return "Refused by berth";
    case 407:
        return "Proxy authentication required";
    case 431:
        return "Head too large";
    case 502:
        return "Bad gateway";
    case 503:
        return "Unavailable";
    default:
        return "Error";
    }
}

static void answer(struct bt_session *session, const struct bt_refusal *refusal, const char *extra_fields)
{
    bool may_continue = session->is_reusable && !session->is_client_finished && session->upstream == NULL &&
                        !session->is_tunnel_open && session->entrance == BT_ENTRANCE_PROXY;
    json_t *document = json_pack("{s:s, s:s, s:s, s:s, s:s}", "error", reason_phrase(refusal->status), "host",
                                 session->shown_host, "reason", refusal->reason, "rule", refusal->rule,
                                 "hint", refusal->hint);
    char *body = document != NULL ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    struct evbuffer *output = bufferevent_get_output(session->client);
    const char *text = body != NULL ? body : "{}";
    (void)evbuffer_add_printf(
        output,
        "HTTP/1.1 %u %s (%s)\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
        "Cache-Control: no-store\r\n%s%s\r\n",
        refusal->status, reason_phrase(refusal->status), refusal->rule, strlen(text), extra_fields,
        may_continue ? "" : "Connection: close\r\n");
    if (!bt_http_slice_is((struct bt_http_slice){session->method, strlen(session->method)}, "HEAD"))
        (void)evbuffer_add(output, text, strlen(text));
    free(body);
    if (!may_continue) {
        bt_session_close_after_flush(session);
        return;
    }
    session->stage = BT_STAGE_HEAD;
    session->is_connect = false;
    bt_session_set_deadline(session, BT_SESSION_START_MS);
    /* From the loop, not from here: a thousand requests in one packet must not nest. */
    bufferevent_trigger(session->client, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
}

void bt_session_http_refuse(struct bt_session *session, const struct bt_refusal *refusal)
{
    if (session->has_response_head) {
        /* Half an answer is out: only a cut says that the rest is not coming. */
        session->is_reset = true;
        bt_session_close_after_flush(session);
        return;
    }
    answer(session, refusal, "");
}

void bt_session_http_challenge(struct bt_session *session, const char *reason)
{
    struct bt_refusal refusal = {407, "identity", reason,
                                 "use the proxy URL that the agent was given, with its token"};
    answer(session, &refusal, "Proxy-Authenticate: Basic realm=\"berth\"\r\n");
}

/* ---- reading a request
 * -------------------------------------------------------------------------------------- */

static void show_host(struct bt_session *session, struct bt_http_slice text)
{
    size_t length =
        text.length < sizeof(session->shown_host) - 1 ? text.length : sizeof(session->shown_host) - 1;
    for (size_t i = 0; i < length; i++)
        session->shown_host[i] = (char)(text.data[i] > ' ' && text.data[i] < 0x7f ? text.data[i] : '?');
    session->shown_host[length] = '\0';
}

/* For records: the name alone once it is understood, else what was sent. */
static void show_target(struct bt_session *session, struct bt_http_slice text)
{
    show_host(session, text);
    if (session->target_error == 0)
        memcpy(session->shown_host, session->host, sizeof(session->shown_host));
}

static void refuse_head(struct bt_session *session, unsigned status, const char *rule, const char *reason)
{
    struct bt_refusal refusal = {status, rule, reason,
                                 "see policy/gateway/README.md for what the proxy accepts"};
    session->is_reusable = false;
    bt_session_refuse(session, &refusal);
}

static void refuse_parse_error(struct bt_session *session, int error)
{
    session->shown_host[0] = '\0';
    session->method[0] = '\0';
    if (error == -E2BIG)
        refuse_head(session, 431, "bad-request", "the request's head is larger than 64 KiB or 128 fields");
    else if (error == -EPROTONOSUPPORT)
        refuse_head(session, 505, "bad-request", "only HTTP/1.1 is spoken here");
    else
        refuse_head(session, 400, "bad-request", "the request is malformed or ambiguous");
}

/* Whether the Host field names this host and port; a CONNECT's may leave the port out (undici does). */
static bool is_host_matching(const struct bt_http_head *head, const char *host, uint16_t port,
                             uint16_t default_port)
{
    const struct bt_http_field *field = bt_http_find(head, "host", NULL);
    char named[BT_HOST_NAME_SIZE];
    uint16_t named_port;
    if (field == NULL)
        return true; /* only CONNECT gets here without one */
    return bt_http_authority_parse(field->value, default_port, named, &named_port) == 0 &&
           strcmp(named, host) == 0 && named_port == port;
}

/* Methods are case-sensitive (RFC 9110, 9.1), but not every proxy behind this one need think so: what it
 * could take for a CONNECT never leaves. */
static bool is_any_connect(const struct bt_http_head *head)
{
    return bt_http_slice_is_nocase(head->method, "CONNECT");
}

/* Takes the target of a request on the proxy port. Returns NULL, or what is wrong with the request as a
 * whole; an authority that is no name goes to target_error, to be refused as such. */
static const char *take_proxy_target(struct bt_session *session, const struct bt_http_head *head,
                                     struct bt_http_slice *ret_path)
{
    struct bt_http_slice authority = head->target;
    session->is_connect = bt_http_slice_is(head->method, "CONNECT");
    if (!session->is_connect && is_any_connect(head))
        return "CONNECT is written in capitals";
    if (!session->is_connect && bt_http_absolute_parse(head->target, &authority, ret_path) < 0)
        return "a proxy request must be CONNECT host:port or name an http:// URL";
    session->host[0] = '\0';
    session->port = 0;
    session->target_error =
        bt_http_authority_parse(authority, session->is_connect ? 0 : 80, session->host, &session->port);
    show_target(session, authority);
    if (session->target_error == 0 &&
        !is_host_matching(head, session->host, session->port, session->is_connect ? session->port : 80))
        return "the Host field and the request's target differ";
    return NULL;
}

/* The same for a request in origin-form: on port 80 Host is the target, in a tunnel it must be the tunnel's.
 */
static const char *take_origin_target(struct bt_session *session, const struct bt_http_head *head,
                                      struct bt_http_slice *ret_path)
{
    const struct bt_http_field *host = bt_http_find(head, "host", NULL);
    if (host == NULL || is_any_connect(head) || head->target.data[0] != '/' ||
        memchr(head->target.data, '#', head->target.length) != NULL)
        return "this connection takes requests in origin-form only";
    *ret_path = head->target;
    if (session->is_tunnel_open)
        return is_host_matching(head, session->host, session->port, 80)
                   ? NULL
                   : "the Host field differs from the tunnel's host";
    session->host[0] = '\0';
    session->port = 80;
    session->target_error = bt_http_authority_parse(host->value, 80, session->host, &session->port);
    show_target(session, host->value);
    if (session->target_error == 0 && session->port != 80)
        return "the Host field names another port than the connection's";
    return NULL;
}

static bool is_forwarded(const struct bt_http_head *head, struct bt_http_slice name)
{
    /* Authorization: section 8 of the design; no route of this version may keep it in clear. */
    static const char *const written_anew[] = {"host", "content-length", "authorization"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(written_anew); i++)
        if (bt_http_slice_is_nocase(name, written_anew[i]))
            return false;
    return !bt_http_is_hop_by_hop(head, name);
}

static int add_slice(struct bt_buffer *buffer, struct bt_http_slice slice)
{
    return slice.length > 0 ? bt_buffer_add(buffer, slice.data, slice.length) : 0;
}

/* The request as it will go upstream. Called while the head's bytes are still there. */
static int write_request(struct bt_session *session, const struct bt_http_head *head,
                         struct bt_http_slice path)
{
    const struct bt_parent_proxy *parent = &session->gateway->settings.parent;
    bool is_absolute = parent->is_set && !session->is_tunnel_open;
    char port[8] = "";
    struct bt_buffer *request = &session->request;
    bt_buffer_wipe(request);
    request->limit = 2 * BT_HTTP_HEAD_MAX;
    if (session->port != 80)
        (void)snprintf(port, sizeof(port), ":%u", session->port);
    int result = bt_buffer_add_format(request, "%s ", session->method);
    if (result == 0 && is_absolute)
        result = bt_buffer_add_format(request, "http://%s%s", session->host, port);
    result = result < 0 ? result : add_slice(request, path);
    result = result < 0 ? result
                        : bt_buffer_add_format(request, " HTTP/1.1\r\nHost: %s%s\r\n", session->host, port);
    if (result == 0 && is_absolute && parent->authorization[0] != '\0')
        result = bt_buffer_add_format(request, "Proxy-Authorization: Basic %s\r\n", parent->authorization);
    for (size_t i = 0; i < head->field_count && result == 0; i++) {
        const struct bt_http_field *field = &head->fields[i];
        if (!is_forwarded(head, field->name))
            continue;
        result = add_slice(request, field->name);
        result = result < 0 ? result : bt_buffer_add_text(request, ": ");
        result = result < 0 ? result : add_slice(request, field->value);
        result = result < 0 ? result : bt_buffer_add_text(request, "\r\n");
    }
    if (result == 0 && head->body == BT_HTTP_BODY_CHUNKED)
        result = bt_buffer_add_text(request, "Transfer-Encoding: chunked\r\n");
    else if (result == 0 && bt_http_find(head, "content-length", NULL) != NULL)
        result =
            bt_buffer_add_format(request, "Content-Length: %llu\r\n", (unsigned long long)head->body_length);
    return result < 0 ? result : bt_buffer_add_text(request, "Connection: close\r\n\r\n");
}

static bool wants_close(const struct bt_http_head *head)
{
    const struct bt_http_field *option = bt_http_find(head, "connection", NULL);
    const struct bt_http_field *proxy_option = bt_http_find(head, "proxy-connection", NULL);
    return (option != NULL && bt_http_slice_is_nocase(option->value, "close")) ||
           (proxy_option != NULL && bt_http_slice_is_nocase(proxy_option->value, "close"));
}

/* What follows the head's parse. The head is drained from the input before anything can end the session. */
static void take_request(struct bt_session *session, const struct bt_http_head *head, struct evbuffer *input)
{
    bool is_proxy = session->entrance == BT_ENTRANCE_PROXY && !session->is_tunnel_open;
    char token[BT_HTTP_TOKEN_SIZE];
    char digest[BT_DIGEST_TEXT_SIZE];
    struct bt_http_slice path = {0};
    memcpy(session->method, head->method.data, head->method.length);
    session->method[head->method.length] = '\0';
    session->is_reusable = head->body == BT_HTTP_BODY_NONE && !wants_close(head);
    const char *wrong =
        is_proxy ? take_proxy_target(session, head, &path) : take_origin_target(session, head, &path);
    if (wrong == NULL && session->target_error == 0 && (!session->is_connect || session->is_tunnel_open) &&
        write_request(session, head, path) < 0)
        wrong = "the request's head is too large";
    int token_result = is_proxy ? bt_http_proxy_token(head, token) : 0;
    if (is_proxy && token_result == 0)
        bt_service_secret_digest(token, strlen(token), digest);
    explicit_bzero(token, sizeof(token));
    bt_http_follow_start(&session->follower, head);
    (void)evbuffer_drain(input, head->length);
    if (wrong != NULL)
        refuse_head(session, 400, "host-mismatch", wrong);
    else if (token_result < 0)
        bt_session_http_challenge(session, "the identity token is missing");
    else if (session->is_tunnel_open)
        bt_session_http_start(session);
    else
        bt_session_identify(session, is_proxy ? digest : NULL);
}

void bt_session_http_read(struct bt_session *session)
{
    struct evbuffer *input = bufferevent_get_input(session->client);
    size_t length = evbuffer_get_length(input);
    struct bt_http_head head;
    /* A client that sends requests and reads no answers waits until it does. */
    if (length == 0 || evbuffer_get_length(bufferevent_get_output(session->client)) >= BT_SESSION_BUFFER)
        return;
    int result = bt_http_request_parse((const char *)evbuffer_pullup(input, -1), length, &head);
    if (result == -EAGAIN) {
        if (session->is_client_finished)
            bt_session_end(session);
        return;
    }
    if (result < 0)
        refuse_parse_error(session, result);
    else
        take_request(session, &head, input);
}

/* ---- forwarding
 * ---------------------------------------------------------------------------------------------- */

void bt_session_http_start(struct bt_session *session)
{
    session->is_connect = false; /* in a tunnel too, it is the request inside that counts now */
    session->stage = BT_STAGE_HTTP;
    bt_session_record(session, true, session->verdict.rule, session->verdict.reason);
    (void)bufferevent_write(session->upstream, session->request.data, session->request.length);
    bt_buffer_wipe(&session->request);
    bt_session_watch_upstream(session);
    bt_session_http_body(session);
}

/* Moves body bytes upstream. Returns 0, or -EBADMSG when they do not have the form that the head announced.
 */
static int forward_body(struct bt_session *session)
{
    struct evbuffer *input = bufferevent_get_input(session->client);
    struct evbuffer *output = bufferevent_get_output(session->upstream);
    size_t length = evbuffer_get_length(input);
    size_t taken = 0;
    if (!session->is_request_done && evbuffer_get_length(output) < BT_SESSION_BUFFER) {
        const char *data = length > 0 ? (const char *)evbuffer_pullup(input, -1) : "";
        int result = bt_http_follow(&session->follower, data, length, &taken);
        if (result < 0)
            return result;
        session->is_request_done = result == 1;
        session->agent->counters.bytes += taken;
        (void)evbuffer_remove_buffer(input, output, taken);
    }
    /* What comes behind the request is not for this upstream; the answer tells the client that the connection
     * ends. */
    if (session->is_request_done)
        (void)evbuffer_drain(input, evbuffer_get_length(input));
    return 0;
}

void bt_session_http_body(struct bt_session *session)
{
    if (forward_body(session) < 0) {
        struct bt_refusal refusal = {400, "bad-request", "the request's body is malformed", ""};
        session->is_reusable = false;
        bt_session_refuse(session, &refusal);
        return;
    }
    if (!session->is_client_finished)
        return;
    if (!session->is_request_done && evbuffer_get_length(bufferevent_get_input(session->client)) == 0)
        bt_session_end(session); /* half a request: its length tells the upstream so */
    else if (session->is_request_done && !session->is_upstream_shut &&
             evbuffer_get_length(bufferevent_get_output(session->upstream)) == 0) {
        session->is_upstream_shut = true;
        (void)shutdown(bufferevent_getfd(session->upstream), SHUT_WR);
    }
}

static void write_response_head(struct bt_session *session, const struct bt_http_head *head)
{
    struct evbuffer *output = bufferevent_get_output(session->client);
    bool is_interim = head->status < 200;
    (void)evbuffer_add_printf(output, "HTTP/1.1 %u", head->status);
    (void)evbuffer_add(output, head->reason.data, head->reason.length);
    (void)evbuffer_add(output, "\r\n", 2);
    for (size_t i = 0; i < head->field_count; i++) {
        const struct bt_http_field *field = &head->fields[i];
        /* The body passes as it is, chunks included, so its coding stays. */
        if (bt_http_is_hop_by_hop(head, field->name) &&
            !bt_http_slice_is_nocase(field->name, "transfer-encoding"))
            continue;
        (void)evbuffer_add(output, field->name.data, field->name.length);
        (void)evbuffer_add(output, ": ", 2);
        (void)evbuffer_add(output, field->value.data, field->value.length);
        (void)evbuffer_add(output, "\r\n", 2);
    }
    (void)evbuffer_add_printf(output, "%s\r\n", is_interim ? "" : "Connection: close\r\n");
}

/* Takes response heads, interim ones too. Returns 0, -EAGAIN, or what is wrong. */
static int take_response_head(struct bt_session *session)
{
    struct evbuffer *input = bufferevent_get_input(session->upstream);
    struct bt_http_head head;
    while (!session->has_response_head) {
        size_t length = evbuffer_get_length(input);
        if (length == 0)
            return -EAGAIN;
        int result = bt_http_response_parse((const char *)evbuffer_pullup(input, -1), length, &head);
        if (result < 0)
            return result;
        if (head.status == 101)
            return -EBADMSG; /* no Upgrade was sent on */
        write_response_head(session, &head);
        (void)evbuffer_drain(input, head.length);
        session->has_response_head = head.status >= 200;
    }
    return 0;
}

void bt_session_http_response(struct bt_session *session)
{
    struct evbuffer *input = bufferevent_get_input(session->upstream);
    struct evbuffer *output = bufferevent_get_output(session->client);
    if (evbuffer_get_length(output) >= BT_SESSION_BUFFER)
        return;
    int result = take_response_head(session);
    if (result == -EAGAIN && !session->is_upstream_finished)
        return;
    if (result < 0) {
        struct bt_refusal refusal = {502, "bad-response", "the host's answer is malformed or missing", ""};
        session->is_reusable = false;
        bt_session_refuse(session, &refusal);
        return;
    }
    size_t length = evbuffer_get_length(input);
    session->agent->counters.bytes += length;
    if (length > 0)
        (void)bufferevent_write_buffer(session->client, input);
    if (session->is_upstream_finished)
        bt_session_close_after_flush(session);
}
