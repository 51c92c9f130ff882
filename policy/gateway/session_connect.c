/* CONNECT on the proxy port: who asks, may this host be spoken to at all, and will its TLS be opened. See
 * session.h.
 */
#include <errno.h>
#include <string.h>

#include "policy/gateway/session.h"

static void refuse(struct bt_session *session, const struct bt_refusal *refusal)
{
    struct bt_stream *stream = BT_TAKE(session->connect);
    bt_session_record(session, false, refusal->rule, refusal->reason);
    bt_refusal_answer(refusal, session->shown_host, stream);
    session->is_fixed = session->is_pass_allowed = false;
    stream->operations->release(stream);
}

static void establish(struct bt_session *session)
{
    static const char phrase[] = "Connection established";
    struct bt_message head = {.status = 200, .reason = {phrase, sizeof(phrase) - 1}, .content_length = -1};
    session->connect->operations->send_head(session->connect, &head, true);
    session->connect = NULL;
    session->is_tunnel = true;
    session->channel = bt_http1_detach(BT_TAKE(session->http1));
    bt_session_await_hello(session);
}

static void on_dialled(void *context, const struct bt_dial_result *result)
{
    struct bt_session *session = context;
    session->dial = NULL;
    session->dialled = result->address;
    session->upstream = result->channel;
    if (result->channel != NULL) {
        establish(session);
        return;
    }
    bool is_private = strcmp(result->rule, "private-answer") == 0;
    struct bt_refusal refusal = {is_private ? 403 : 502, result->rule, result->reason,
                                 is_private ? "set private: true on the route if this is meant"
                                            : "try again later"};
    refuse(session, &refusal);
}

static void on_identified(void *context, enum bt_identity identity)
{
    struct bt_session *session = context;
    struct bt_refusal refusal;
    struct bt_verdict *verdict = &session->verdict;
    if (identity != BT_IDENTITY_OK) {
        bt_session_identity_refusal(identity, &refusal);
        refuse(session, &refusal);
        return;
    }
    bt_policy_decide_connection(session->agent->policy, session->host, session->port, verdict);
    if (!verdict->is_allowed) {
        refusal = (struct bt_refusal){403, verdict->rule, verdict->reason, verdict->hint};
        refuse(session, &refusal);
    } else if (verdict->is_intercepted) {
        establish(session);
    } else {
        bt_session_pass_dial(session, on_dialled);
    }
}

static void on_head(void *context, struct bt_stream *stream, const struct bt_message *head)
{
    struct bt_session *session = context;
    (void)stream;
    bt_refusal_show(head->authority, session->shown_host);
    session->port = 0;
    session->host[0] = '\0';
    int result = bt_http_authority_parse(head->authority, 0, session->host, &session->port);
    struct bt_refusal refusal = {403, "bad-host", "not a valid host and port",
                                 "check the spelling of the host"};
    if (result == -EADDRNOTAVAIL)
        refusal = (struct bt_refusal){403, "ip-literal", "addresses are not allowed, only names",
                                      "use the host's name"};
    if (session->token_error != NULL)
        refusal = (struct bt_refusal){407, "identity", session->token_error,
                                      "use the proxy URL that the agent was given, with its token"};
    if (result < 0 || session->token_error != NULL) {
        refuse(session, &refusal);
        return;
    }
    memcpy(session->shown_host, session->host, sizeof(session->shown_host));
    session->is_fixed = true;
    bt_agents_identify(session->gateway->agents, session->agent, session->digest, &session->waiter,
                       on_identified, session);
}

static void on_abort(void *context, struct bt_stream *stream, enum bt_abort reason)
{
    struct bt_session *session = context;
    (void)reason;
    session->connect = NULL;
    session->is_fixed = session->is_pass_allowed = false;
    bt_agent_waiter_cancel(&session->waiter);
    session->dial = bt_dial_cancel(session->dial);
    stream->operations->release(stream);
}

static void on_data(void *context, struct bt_stream *stream, const void *data, size_t length)
{
    (void)context;
    (void)data;
    stream->operations->consume(stream, length); /* a CONNECT has no body: the reader sees to that */
}

static void on_end(void *context, struct bt_stream *stream, const struct bt_message *trailers)
{
    (void)context;
    (void)stream;
    (void)trailers;
}

static void on_room(void *context, struct bt_stream *stream)
{
    (void)context;
    (void)stream;
}

void bt_session_connect(struct bt_session *session, struct bt_stream *stream)
{
    static const struct bt_stream_events events = {
        .on_head = on_head, .on_data = on_data, .on_end = on_end, .on_room = on_room, .on_abort = on_abort};
    session->connect = stream;
    stream->events = &events;
    stream->context = session;
}
