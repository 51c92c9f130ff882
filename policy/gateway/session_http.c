/* Requests of an agent's connection. See session.h. */
#include <string.h>

#include "policy/gateway/budget.h"
#include "policy/gateway/exchange.h"
#include "policy/gateway/tls.h"
#include "policy/rules/service.h"

/* On the proxy port each head carries the identity token, until a CONNECT was answered. */
static void take_token(struct bt_session *session, const struct bt_http_head *raw)
{
    char token[BT_HTTP_TOKEN_SIZE];
    int result = bt_http_proxy_token(raw, token);
    session->has_digest = result == 0;
    session->token_error = result == 0 ? NULL : "the identity token is missing";
    if (result == 0)
        bt_service_secret_digest(token, strlen(token), session->digest);
    explicit_bzero(token, sizeof(token));
}

static void on_stream(void *context, struct bt_stream *stream, const struct bt_http_head *raw)
{
    struct bt_session *session = context;
    bool is_proxy = session->entrance == BT_ENTRANCE_PROXY && !session->is_tunnel;
    if (is_proxy)
        take_token(session, raw);
    if (is_proxy && bt_http_slice_is(raw->method, "CONNECT"))
        bt_session_connect(session, stream);
    else
        bt_exchange_start(session, stream);
}

static void on_fault(void *context, struct bt_stream *stream, const struct bt_http1_fault *fault)
{
    struct bt_session *session = context;
    struct bt_refusal refusal = {fault->status, fault->rule, fault->reason,
                                 "see policy/gateway/README.md for what the proxy accepts"};
    bt_session_record(session, false, fault->rule, fault->reason);
    bt_refusal_answer(&refusal, session->is_fixed ? session->shown_host : "", stream);
    stream->operations->release(stream);
}

static void on_close(void *context)
{
    bt_session_end(context);
}

static const struct bt_http1_events http1_events = {
    .on_stream = on_stream, .on_fault = on_fault, .on_close = on_close};

/* ---- HTTP/2 -----------------------------------------------------------------------------------------------
 */

static bool on_http2_stream(void *context, struct bt_stream *stream)
{
    struct bt_session *session = context;
    if (session->agent->exchange_count >= BT_AGENT_EXCHANGES_MAX) {
        bt_session_record(session, false, "too-many", "too many requests at once");
        return false;
    }
    if (!bt_budget_allows(session->gateway, session->agent)) {
        bt_session_record(session, false, "too-many", BT_BUDGET_REASON);
        return false;
    }
    bt_exchange_start(session, stream);
    return true;
}

static void on_http2_malformed(void *context, const char *reason)
{
    bt_session_record(context, false, "bad-request", reason);
}

static void on_http2_end(void *context, const char *reason)
{
    (void)reason;
    bt_session_end(context);
}

static const struct bt_http2_events http2_events = {
    .on_stream = on_http2_stream, .on_malformed = on_http2_malformed, .on_end = on_http2_end};

void bt_session_serve(struct bt_session *session)
{
    struct bt_http1_settings settings = {
        .is_proxy = session->entrance == BT_ENTRANCE_PROXY && !session->is_tunnel,
        .scheme = session->is_tls ? "https" : "http",
    };
    bt_session_set_stage(session, BT_STAGE_HTTP);
    if (session->is_tls && bt_tls_is_http2(bt_channel_ssl(session->channel))) {
        session->http2 = bt_http2_new(session->gateway->base, BT_TAKE(session->channel), BT_HTTP2_SERVER,
                                      "https", &http2_events, session);
        return;
    }
    session->http1_state = BT_HTTP1_IDLE;
    session->http1 = bt_http1_new(BT_TAKE(session->channel), &settings, &http1_events, session);
}
