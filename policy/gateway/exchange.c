/* What becomes of a request. See exchange.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/memory.h"
#include "policy/gateway/clock.h"
#include "policy/gateway/exchange_internal.h"

/* What cannot be sent twice goes out on a kept connection only shortly after that was used: servers close
 * theirs after as little as 5 s (Node), and their FIN may be under way. */
#define FRESH_MS 3000
#define GATHERED_MAX (BT_STREAM_HELD_MAX / 2) /* below what a stream delivers ahead */

/* ---- the end ----------------------------------------------------------------------------------------------
 */

static void free_half(struct bt_half *half)
{
    if (half->waiting != NULL)
        evbuffer_free(half->waiting);
    if (half->behind != NULL)
        evbuffer_free(half->behind);
    bt_kept_message_free(half->trailers);
}

void bt_exchange_end(struct bt_exchange *exchange)
{
    struct bt_stream *agent = exchange->agent, *upstream = exchange->upstream;
    if (exchange->is_ending)
        return;
    exchange->is_ending = true;
    TAILQ_REMOVE(&exchange->session->exchanges, exchange, link);
    exchange->session->agent->exchange_count--;
    bt_report_counters(exchange->session->gateway->report, exchange->session->agent);
    bt_agent_waiter_cancel(&exchange->waiter);
    bt_upstream_wait_cancel(&exchange->wait);
    bt_approval_wait_cancel(&exchange->approval);
    free_half(&exchange->request);
    free_half(&exchange->response);
    bt_exchange_filters_free(exchange);
    bt_kept_message_free(exchange->head);
    free(exchange);
    /* The upstream first: the agent's next request may want its connection. */
    if (upstream != NULL)
        upstream->operations->release(upstream);
    agent->operations->release(agent);
}

void bt_exchange_abort(struct bt_exchange *exchange, enum bt_abort reason)
{
    exchange->agent->operations->abort(exchange->agent, reason);
    if (exchange->upstream != NULL)
        exchange->upstream->operations->abort(exchange->upstream, BT_ABORT_CANCELLED);
    bt_exchange_end(exchange);
}

void bt_exchange_record(struct bt_exchange *exchange, bool is_allowed, const char *rule, const char *reason)
{
    struct bt_decision decision = {
        .kind = "http",
        .host = exchange->shown_host,
        .port = exchange->port,
        .method = exchange->method,
        .is_allowed = is_allowed,
        .rule = rule,
        .reason = reason,
        .granted_by = is_allowed ? exchange->verdict.granted_by : "",
        .address = exchange->address,
    };
    bt_report_decision(exchange->session->gateway->report, exchange->session->agent, &decision);
}

void bt_exchange_refuse(struct bt_exchange *exchange, const struct bt_refusal *refusal)
{
    bt_exchange_record(exchange, false, refusal->rule, refusal->reason);
    if (exchange->has_response) {
        bt_exchange_abort(exchange, BT_ABORT_POLICY);
        return;
    }
    bt_refusal_answer(refusal, exchange->shown_host, exchange->agent);
    bt_exchange_end(exchange);
}

/* ---- the upstream -----------------------------------------------------------------------------------------
 */

static void ask_upstream(struct bt_exchange *exchange, int64_t idle_ms_max);

/* The request as it may go out: what a filter overwrote in it is in no record either. */
static void get_head(const struct bt_exchange *exchange, struct bt_message *ret_head)
{
    bt_kept_message_get(exchange->filtered != NULL ? exchange->filtered : exchange->head, ret_head);
}

/* Without the query, where secrets are; cut to what a record may hold. */
static const char *recorded_path(const struct bt_exchange *exchange, char path[BT_FILTER_PATH_SIZE])
{
    struct bt_message head;
    get_head(exchange, &head);
    bt_filter_show_path(exchange->request.filter, head.path, path);
    return path;
}

/* One record a connection, unless the route wants one a request (policy/POLICY.md, log). */
static void record_allowed(struct bt_exchange *exchange)
{
    struct bt_session *session = exchange->session;
    bool is_first =
        session->recorded_port != exchange->port || strcmp(session->recorded_host, exchange->host) != 0;
    memcpy(session->recorded_host, exchange->host, sizeof(session->recorded_host));
    session->recorded_port = exchange->port;
    if (exchange->verdict.log == BT_LOG_REFUSALS ||
        (exchange->verdict.log == BT_LOG_CONNECTIONS && !is_first))
        return;
    char path[BT_FILTER_PATH_SIZE];
    struct bt_decision decision = {
        .kind = exchange->verdict.log == BT_LOG_REQUESTS ? "http" : bt_session_kind(session),
        .path = exchange->verdict.log == BT_LOG_REQUESTS ? recorded_path(exchange, path) : NULL,
        .host = exchange->shown_host,
        .port = exchange->port,
        .method = exchange->method,
        .is_allowed = true,
        .rule = exchange->verdict.rule,
        .reason = exchange->verdict.reason,
        .granted_by = exchange->verdict.granted_by,
        .address = exchange->address,
    };
    bt_report_decision(session->gateway->report, session->agent, &decision);
}

static void refuse_without_credential(struct bt_exchange *exchange, int code)
{
    static const struct bt_refusal missing = {
        503, "credential-unavailable", "the route's credential is not here yet",
        "try again; if it stays so, berth status says whether the agent's keeper is well"};
    static const struct bt_refusal full = {
        400, "bad-request", "no room for one more field in the request's head", "send fewer header fields"};
    bt_exchange_refuse(exchange, code == -E2BIG ? &full : &missing);
}

static void send_request(struct bt_exchange *exchange)
{
    static const struct bt_refusal changed = {
        503, "policy-changed", "the policy or a credential changed while the request was on its way",
        "ask again"};
    struct bt_message head;
    /* Its filters know the credentials of the version that allowed it, and would not take another one's out
     * of the answer. */
    if (exchange->session->agent->policy_version != exchange->policy_version) {
        bt_exchange_refuse(exchange, &changed);
        return;
    }
    get_head(exchange, &head);
    char field_text[BT_CREDENTIAL_FIELD_SIZE];
    int applied =
        bt_credentials_apply(exchange->session->agent->credentials, &exchange->verdict, &head, field_text);
    if (applied < 0) {
        refuse_without_credential(exchange, applied);
        return;
    }
    head.authority = (struct bt_http_slice){exchange->authority, strlen(exchange->authority)};
    /* A failure is told by on_abort. */
    (void)exchange->upstream->operations->send_head(exchange->upstream, &head, exchange->is_complete);
    explicit_bzero(field_text, sizeof(field_text));
    if (exchange->is_complete)
        exchange->request.is_sent = true;
    else if (exchange->request.waiting != NULL)
        exchange->is_body_used = true;
    bt_exchange_pump_request(exchange);
}

static void on_upstream(void *context, const struct bt_upstream_result *result)
{
    struct bt_exchange *exchange = context;
    exchange->address = result->address;
    if (result->stream == NULL) {
        bool is_private = strcmp(result->rule, "private-answer") == 0;
        struct bt_refusal refusal = {result->status, result->rule, result->reason,
                                     is_private ? "set private: true on the route if this is meant"
                                                : "try again later"};
        bt_exchange_refuse(exchange, &refusal);
        return;
    }
    exchange->upstream = result->stream;
    exchange->is_reused = result->is_reused;
    exchange->upstream->events = &bt_exchange_upstream_events;
    exchange->upstream->context = exchange;
    record_allowed(exchange);
    send_request(exchange);
}

static void ask_upstream(struct bt_exchange *exchange, int64_t idle_ms_max)
{
    struct bt_upstream_target target = {
        .agent = exchange->session->agent,
        .host = exchange->host,
        .port = exchange->port,
        .is_tls = exchange->session->is_tls,
        .may_be_private = exchange->verdict.may_be_private,
        .is_protocol = exchange->is_asking_protocol,
        .idle_ms_max = idle_ms_max,
    };
    bt_upstreams_ask(exchange->session->gateway->upstreams, &target, &exchange->wait, on_upstream, exchange);
}

/* RFC 9110, 9.2.2: only these may be sent again when nobody knows whether the first one was acted upon. */
static bool is_idempotent(const struct bt_exchange *exchange)
{
    static const char *const methods[] = {"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"};
    for (size_t i = 0; i < BT_ARRAY_LENGTH(methods); i++)
        if (strcmp(exchange->method, methods[i]) == 0)
            return true;
    return false;
}

void bt_exchange_upstream_lost(struct bt_exchange *exchange, enum bt_abort reason)
{
    bool is_whole = exchange->is_complete || !exchange->is_body_used; /* all of it is still here */
    bool is_stale = exchange->is_reused && (is_idempotent(exchange) || !exchange->is_complete);
    if (is_whole && (is_stale || reason == BT_ABORT_REFUSED) && !exchange->is_retried) {
        exchange->is_retried = true;
        exchange->request.is_sent = false;
        ask_upstream(exchange, -1);
        return;
    }
    struct bt_refusal refusal = {502, "bad-response",
                                 reason == BT_ABORT_PROTOCOL
                                     ? "the host's answer is malformed"
                                     : "the host ended the connection without an answer",
                                 "try again later"};
    bt_exchange_refuse(exchange, &refusal);
}

/* ---- identity and decision --------------------------------------------------------------------------------
 */

static void decide(struct bt_exchange *exchange)
{
    struct bt_session *session = exchange->session;
    struct bt_message head;
    bt_kept_message_get(exchange->head, &head);
    struct bt_policy_request request = {
        .host = exchange->host,
        .port = exchange->port,
        .method = head.method,
        .path = head.path,
        .fields = head.fields,
        .field_count = head.field_count,
        .is_tls = session->is_tls,
        .is_transparent = session->entrance != BT_ENTRANCE_PROXY,
    };
    bt_policy_decide(session->agent->policy, &request, &exchange->verdict);
}

void bt_exchange_get_shown_head(const struct bt_exchange *exchange, struct bt_message *ret_head)
{
    bt_kept_message_get(exchange->head, ret_head);
    bt_credentials_strip(&exchange->verdict, ret_head);
    ret_head->authority = (struct bt_http_slice){exchange->authority, strlen(exchange->authority)};
}

/* Shows the request to its filter. Returns whether it goes on now. */
static bool pass_filter(struct bt_exchange *exchange)
{
    struct bt_message head;
    bt_exchange_get_shown_head(exchange, &head);
    return bt_exchange_filter_request(exchange, &head);
}

/* Where the owner may be asked, a body is looked at before its host hears of the request: to its end, or as
 * far as it comes without a pause and GATHERED_MAX reaches. Who waits for the host's leave to send one gets
 * that from the host. */
static bool is_gathered(const struct bt_exchange *exchange)
{
    const struct bt_half *half = &exchange->request;
    struct bt_message head;
    bt_kept_message_get(exchange->head, &head);
    return exchange->verdict.dlp.outbound != BT_DLP_OUTBOUND_SUPERVISE || exchange->is_complete ||
           half->is_ended || exchange->is_asking_protocol || head.expects_continue ||
           (half->waiting != NULL && evbuffer_get_length(half->waiting) >= GATHERED_MAX) ||
           bt_clock_ms() - half->filtered_ms >= BT_FILTER_PAUSE_MS;
}

void bt_exchange_gather(struct bt_exchange *exchange)
{
    if (exchange->is_authorised && !exchange->is_upstream_asked && !exchange->is_held)
        bt_exchange_resume(exchange);
}

void bt_exchange_resume(struct bt_exchange *exchange)
{
    if (!exchange->is_upstream_asked && !is_gathered(exchange))
        return;
    if (!exchange->is_upstream_asked) {
        exchange->is_upstream_asked = true;
        ask_upstream(exchange, exchange->is_complete && is_idempotent(exchange) ? INT64_MAX / 2 : FRESH_MS);
        return;
    }
    exchange->is_body_used = exchange->is_body_used || exchange->upstream != NULL;
    bt_exchange_pump_request(exchange);
    if (exchange->is_raw)
        bt_exchange_pump_response(exchange);
}

static void on_identified(void *context, enum bt_identity identity)
{
    struct bt_exchange *exchange = context;
    struct bt_refusal refusal;
    if (identity != BT_IDENTITY_OK) {
        bt_session_identity_refusal(identity, &refusal);
        bt_exchange_refuse(exchange, &refusal);
        return;
    }
    decide(exchange);
    if (!exchange->verdict.is_allowed) {
        refusal = (struct bt_refusal){403, exchange->verdict.rule, exchange->verdict.reason,
                                      exchange->verdict.hint};
        bt_exchange_refuse(exchange, &refusal);
        return;
    }
    if (!bt_credentials_have(exchange->session->agent->credentials, &exchange->verdict)) {
        refuse_without_credential(exchange, -ENOKEY);
        return;
    }
    exchange->is_authorised = true;
    exchange->slot = exchange->session->agent->slot;
    exchange->generation = exchange->session->agent->generation;
    exchange->policy_version = exchange->session->agent->policy_version;
    if (pass_filter(exchange))
        bt_exchange_resume(exchange);
}

/* The authority must be the tunnel's, and a name that may be dialled. Returns whether it is; else it was
 * refused. */
static bool take_authority(struct bt_exchange *exchange, const struct bt_message *head)
{
    const struct bt_session *session = exchange->session;
    uint16_t default_port = session->is_tls ? 443 : 80;
    int result = bt_http_authority_parse(head->authority, default_port, exchange->host, &exchange->port);
    bt_refusal_show(head->authority, exchange->shown_host);
    struct bt_refusal refusal = {403, "bad-host", "not a valid host and port",
                                 "check the spelling of the host"};
    if (result == -EADDRNOTAVAIL)
        refusal = (struct bt_refusal){403, "ip-literal", "addresses are not allowed, only names",
                                      "use the host's name"};
    if (result == 0) {
        memcpy(exchange->shown_host, exchange->host, sizeof(exchange->shown_host));
        bool is_other = session->is_fixed &&
                        (session->port != exchange->port || strcmp(session->host, exchange->host) != 0);
        bool is_other_port =
            !session->is_fixed && session->entrance == BT_ENTRANCE_HTTP && exchange->port != 80;
        if (!is_other && !is_other_port)
            return true;
        refusal = (struct bt_refusal){session->is_tls ? 421 : 400, "host-mismatch",
                                      is_other ? "the request names another host than its connection"
                                               : "the Host field names another port than the connection's",
                                      "ask for the host that is meant"};
    }
    bt_exchange_refuse(exchange, &refusal);
    return false;
}

/* What goes out as Host or :authority. */
static void write_authority(struct bt_exchange *exchange)
{
    bool is_default = exchange->port == (exchange->session->is_tls ? 443 : 80);
    if (is_default)
        (void)snprintf(exchange->authority, sizeof(exchange->authority), "%s", exchange->host);
    else
        (void)snprintf(exchange->authority, sizeof(exchange->authority), "%s:%u", exchange->host,
                       exchange->port);
}

void bt_exchange_take_head(struct bt_exchange *exchange, const struct bt_message *head)
{
    struct bt_session *session = exchange->session;
    size_t length = head->method.length < sizeof(exchange->method) - 1 ? head->method.length
                                                                       : sizeof(exchange->method) - 1;
    memcpy(exchange->method, head->method.data, length);
    exchange->is_complete = head->is_complete;
    exchange->is_asking_protocol = head->protocol.length > 0;
    exchange->is_asking_websocket = bt_http_slice_is(head->protocol, "websocket");
    if (session->standing.rule != NULL) {
        bt_refusal_show(head->authority, exchange->shown_host);
        bt_exchange_refuse(exchange, &session->standing);
        return;
    }
    if (session->token_error != NULL) {
        struct bt_refusal refusal = {407, "identity", session->token_error,
                                     "use the proxy URL that the agent was given, with its token"};
        bt_refusal_show(head->authority, exchange->shown_host);
        bt_exchange_refuse(exchange, &refusal);
        return;
    }
    if (!take_authority(exchange, head))
        return;
    write_authority(exchange);
    exchange->head = bt_message_keep(head);
    bt_agents_identify(session->gateway->agents, session->agent, session->has_digest ? session->digest : NULL,
                       &exchange->waiter, on_identified, exchange);
}

/* ---- from the session -------------------------------------------------------------------------------------
 */

void bt_exchange_start(struct bt_session *session, struct bt_stream *stream)
{
    struct bt_exchange *exchange = bt_new(1, sizeof(*exchange));
    exchange->session = session;
    exchange->agent = stream;
    exchange->since_ms = bt_clock_ms();
    TAILQ_INSERT_TAIL(&session->exchanges, exchange, link);
    session->agent->exchange_count++;
    stream->events = &bt_exchange_agent_events;
    stream->context = exchange;
}

void bt_exchange_recheck(struct bt_exchange *exchange)
{
    const struct bt_agent *agent = exchange->session->agent;
    if (!exchange->is_authorised)
        return; /* nothing was granted yet */
    bool is_allowed =
        agent->is_known && agent->slot == exchange->slot && agent->generation == exchange->generation;
    if (is_allowed) {
        bool was_private = exchange->verdict.may_be_private;
        decide(exchange);
        is_allowed = exchange->verdict.is_allowed && (!was_private || exchange->verdict.may_be_private);
    }
    if (is_allowed)
        return;
    bt_exchange_record(exchange, false, "revoked", "the registration or policy no longer allows this");
    bt_exchange_abort(exchange, BT_ABORT_POLICY);
}

/* Whether nobody need be waited for any more; exchange_flow.c starts the time anew when the host sends. */
static bool is_left(struct bt_exchange *exchange, int64_t now_ms)
{
    const struct bt_http1 *http1 = exchange->session->http1;
    /* An owner who is asked has a time of his own; a client that is slow has something to read. */
    if (http1 == NULL || !bt_http1_is_half_closed(http1) || exchange->is_held || !bt_http1_is_sent(http1))
        exchange->left_ms = 0;
    else if (exchange->left_ms == 0)
        exchange->left_ms = now_ms;
    return exchange->left_ms != 0 && now_ms - exchange->left_ms >= BT_EXCHANGE_LEFT_MS;
}

void bt_exchange_sweep(struct bt_exchange *exchange, int64_t now_ms)
{
    static const struct bt_refusal refusal = {
        504, "bad-response", "the host did not begin to answer in 20 minutes", "try again later"};
    static const struct bt_refusal left = {
        504, "bad-response",
        "the client ended its direction of the connection, and the host sent nothing for a minute",
        "leave the connection open while the host works"};
    if (!exchange->has_response && exchange->upstream != NULL &&
        now_ms - exchange->since_ms >= BT_EXCHANGE_ANSWER_MS) {
        bt_exchange_refuse(exchange, &refusal);
        return;
    }
    if (is_left(exchange, now_ms)) {
        bt_exchange_refuse(exchange, &left);
        return;
    }
    if (!exchange->is_held && !bt_exchange_filter_pause(exchange, &exchange->request, now_ms))
        return;
    bt_exchange_pump_request(exchange);
    if (!exchange->is_upstream_asked) {
        bt_exchange_gather(exchange);
        return;
    }
    if (bt_exchange_filter_pause(exchange, &exchange->response, now_ms))
        bt_exchange_pump_response(exchange);
}
