/* ClientHellos: on port 443, and first in every CONNECT tunnel. The name in clear must be the one that was
 * allowed; then the agent is shown a leaf of that name, or the route's bytes pass unread. See session.h.
 */
#include <errno.h>
#include <string.h>

#include "policy/gateway/session.h"
#include "policy/gateway/tls.h"

/* Where no leaf can be shown, an alert is all that can be said. */
static void refuse_by_alert(struct bt_session *session, const char *rule, const char *reason)
{
    bt_session_record(session, false, rule, reason);
    bt_session_set_stage(session, BT_STAGE_ALERT);
    bt_channel_write(session->channel, bt_session_alert, sizeof(bt_session_alert));
    bt_channel_finish(session->channel);
}

/* ---- the handshake with the agent -------------------------------------------------------------------------
 */

static void on_secure(void *context)
{
    bt_session_serve(context);
}

static void on_handshake_read(void *context)
{
    struct bt_session *session = context;
    if (bt_channel_end_of(session->channel) == BT_CHANNEL_OPEN)
        return;
    /* Mostly a client that does not trust the authority; its alert is the reason. */
    const char *why = bt_channel_error(session->channel);
    bt_session_record(session, false, "bad-hello",
                      why[0] != '\0' ? why : "the client ended the TLS handshake");
    bt_session_end(session);
}

static const struct bt_channel_events handshake_events = {.on_read = on_handshake_read,
                                                          .on_secure = on_secure};

/* name: that of the ClientHello. */
static void intercept(struct bt_session *session, const char *name)
{
    SSL *ssl = bt_tls_accept(session->gateway->tls, name);
    if (ssl == NULL) {
        refuse_by_alert(session, "bad-hello", "no certificate can be made for this name");
        return;
    }
    session->is_tls = true;
    bt_session_set_stage(session, BT_STAGE_HANDSHAKE);
    bt_channel_set_events(session->channel, &handshake_events, session);
    bt_channel_start_tls(session->channel, ssl);
}

/* A refusal inside TLS: every request is answered with it. The texts must outlive the session. */
static void intercept_to_refuse(struct bt_session *session, const char *name,
                                const struct bt_refusal *refusal)
{
    session->standing = *refusal;
    intercept(session, name);
}

/* ---- port 443: the name in the hello is the target --------------------------------------------------------
 */

static void on_dialled(void *context, const struct bt_dial_result *result)
{
    struct bt_session *session = context;
    session->dial = NULL;
    session->dialled = result->address;
    session->upstream = result->channel;
    if (result->channel == NULL) {
        refuse_by_alert(session, result->rule, result->reason);
        return;
    }
    bt_session_record(session, true, session->verdict.rule, session->verdict.reason);
    bt_session_pass(session);
}

static void on_identified(void *context, enum bt_identity identity)
{
    struct bt_session *session = context;
    struct bt_verdict *verdict = &session->verdict;
    struct bt_refusal refusal;
    if (identity != BT_IDENTITY_OK) {
        bt_session_identity_refusal(identity, &refusal);
        intercept_to_refuse(session, session->host, &refusal);
        return;
    }
    bt_policy_decide_connection(session->agent->policy, session->host, session->port, verdict);
    if (verdict->is_allowed && !verdict->is_intercepted) {
        bt_session_pass_dial(session, on_dialled);
        return;
    }
    refusal = (struct bt_refusal){403, verdict->rule, verdict->reason, verdict->hint};
    if (verdict->is_allowed)
        intercept(session, session->host);
    else
        intercept_to_refuse(session, session->host, &refusal);
}

static void take_target(struct bt_session *session, const struct bt_hello *hello)
{
    memcpy(session->host, hello->name, sizeof(session->host));
    memcpy(session->shown_host, hello->name, sizeof(session->shown_host));
    session->is_fixed = true;
    bt_session_set_stage(session, BT_STAGE_WAIT);
    bt_agents_identify(session->gateway->agents, session->agent, NULL, &session->waiter, on_identified,
                       session);
}

/* ---- hellos -----------------------------------------------------------------------------------------------
 */

static void take_hello(struct bt_session *session, const struct bt_hello *hello)
{
    static const struct bt_refusal mismatch = {421, "sni-mismatch",
                                               "the ClientHello names another server than CONNECT did",
                                               "ask for the host that is meant"};
    if (hello->has_encrypted_hello)
        refuse_by_alert(session, "ech",
                        "the ClientHello is encrypted (ECH), so its real name cannot be checked");
    else if (!hello->has_name)
        refuse_by_alert(session, "sni-missing", "the ClientHello names no server");
    else if (!session->is_tunnel)
        take_target(session, hello);
    else if (strcmp(hello->name, session->host) != 0)
        intercept_to_refuse(session, hello->name, &mismatch);
    else if (session->verdict.is_intercepted)
        intercept(session, session->host);
    else {
        bt_session_record(session, true, session->verdict.rule, session->verdict.reason);
        bt_session_pass(session);
    }
}

/* Some clients CONNECT for plain http:// too: the same checks as without. */
static void take_plain(struct bt_session *session)
{
    session->upstream = bt_channel_free(session->upstream);
    session->is_pass_allowed = false; /* its requests are held against the policy one by one */
    bt_session_serve(session);
}

static void on_read(void *context)
{
    struct bt_session *session = context;
    struct evbuffer *input = bt_channel_input(session->channel);
    size_t length = evbuffer_get_length(input);
    bool has_ended = bt_channel_end_of(session->channel) != BT_CHANNEL_OPEN;
    struct bt_hello hello;
    if (session->stage != BT_STAGE_HELLO) {
        if (session->stage == BT_STAGE_ALERT)
            (void)evbuffer_drain(input, length);
        if (has_ended &&
            (session->stage == BT_STAGE_ALERT || bt_channel_end_of(session->channel) == BT_CHANNEL_BROKEN))
            bt_session_end(session);
        return; /* what else came stays in the input until it is wanted */
    }
    const uint8_t *data = length > 0 ? evbuffer_pullup(input, -1) : NULL;
    int result = length > 0 ? bt_hello_parse(data, length, &hello) : -EAGAIN;
    if (result == -EAGAIN) {
        /* Bounded by BT_HELLO_MAX, which lies below what the input takes, and by the sweep. */
        if (has_ended)
            bt_session_end(session);
    } else if (result == 0) {
        take_hello(session, &hello);
    } else if (result == -EPROTO && session->is_tunnel && data[0] >= 'A' && data[0] <= 'Z') {
        take_plain(session);
    } else if (result == -EPROTO) {
        refuse_by_alert(session, "not-tls", "this is neither TLS nor HTTP");
    } else {
        refuse_by_alert(session, "bad-hello",
                        "the ClientHello is malformed or its server name is no host name");
    }
}

static const struct bt_channel_events hello_events = {.on_read = on_read};

void bt_session_await_hello(struct bt_session *session)
{
    bt_session_set_stage(session, BT_STAGE_HELLO);
    bt_channel_set_events(session->channel, &hello_events, session);
}
