/* Life of a session. See session.h. */
#include "policy/gateway/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "policy/gateway/budget.h"
#include "policy/gateway/clock.h"
#include "policy/gateway/exchange_internal.h"

void bt_session_set_stage(struct bt_session *session, enum bt_stage stage)
{
    session->stage = stage;
    session->since_ms = bt_clock_ms();
}

void bt_session_end(struct bt_session *session)
{
    TAILQ_REMOVE(&session->gateway->sessions, session, link);
    while (!TAILQ_EMPTY(&session->exchanges))
        bt_exchange_abort(TAILQ_FIRST(&session->exchanges), BT_ABORT_CANCELLED);
    session->gateway->session_count--;
    session->agent->session_count--;
    bt_report_counters(session->gateway->report, session->agent);
    bt_agent_waiter_cancel(&session->waiter);
    bt_dial_cancel(session->dial);
    bt_channel_free(session->upstream);
    bt_http1_free(session->http1);
    bt_http2_free(session->http2);
    bt_channel_free(session->channel);
    free(session);
}

void bt_session_cut(struct bt_session *session)
{
    session->channel = bt_channel_reset(session->channel);
    bt_session_end(session);
}

const char *bt_session_kind(const struct bt_session *session)
{
    if (session->entrance == BT_ENTRANCE_TLS)
        return "tls";
    return session->is_tunnel || session->connect != NULL ? "connect" : "http";
}

void bt_session_record(struct bt_session *session, bool is_allowed, const char *rule, const char *reason)
{
    struct bt_decision decision = {
        .kind = bt_session_kind(session),
        .host = session->shown_host,
        .port = session->port,
        .method = session->connect != NULL ? "CONNECT" : "",
        .is_allowed = is_allowed,
        .rule = rule,
        .reason = reason,
        .granted_by = is_allowed ? session->verdict.granted_by : "",
        .address = session->dialled,
    };
    bt_report_decision(session->gateway->report, session->agent, &decision);
}

void bt_session_identity_refusal(enum bt_identity identity, struct bt_refusal *ret_refusal)
{
    static const struct bt_refusal refusals[] = {
        [BT_IDENTITY_OK] = {403, "identity", "", ""},
        [BT_IDENTITY_UNKNOWN] = {403, "unknown-agent", "no agent is registered at this address",
                                 "the agent's keeper registers it; see `berth list` on the host"},
        [BT_IDENTITY_WRONG_TOKEN] = {407, "identity", "the identity token is not the one of this address",
                                     "use the proxy URL that the agent was given, with its token"},
        [BT_IDENTITY_UNREACHABLE] = {503, "orchestrator-unreachable",
                                     "the orchestrator cannot be asked who this is",
                                     "run `berth up` on the host"},
        [BT_IDENTITY_BUSY] = {503, "too-many", "too many requests of this agent wait at once", "try again"},
    };
    *ret_refusal = refusals[identity];
}

/* ---- the start --------------------------------------------------------------------------------------------
 */

/* NULL, or why the agent gets no further connection. */
static const char *find_obstacle(struct bt_gateway *gateway, const struct bt_agent *agent)
{
    if (agent == NULL || agent->session_count >= BT_AGENT_SESSIONS_MAX)
        return "too many connections at once";
    if (gateway->session_count >= bt_agent_places(gateway->session_limit, agent->session_count))
        return "too many connections of all agents at once, and this one has some";
    return bt_budget_allows(gateway, agent) ? NULL : BT_BUDGET_REASON;
}

static void turn_away(struct bt_gateway *gateway, struct bt_agent *agent, evutil_socket_t fd,
                      enum bt_entrance entrance, const char *reason)
{
    const struct bt_decision decision = {
        .kind = "connect",
        .host = "",
        .method = "",
        .rule = "too-many",
        .reason = reason,
        .granted_by = "",
    };
    const struct bt_refusal refusal = {503, decision.rule, reason, "close some connections, or try again"};
    if (agent != NULL) {
        bt_agents_meet(gateway->agents, agent);
        bt_report_decision(gateway->report, agent, &decision);
    }
    if (entrance == BT_ENTRANCE_TLS)
        (void)send(fd, bt_session_alert, sizeof(bt_session_alert), MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        bt_refusal_send(&refusal, fd);
    (void)evutil_closesocket(fd);
}

void bt_session_start(struct bt_gateway *gateway, evutil_socket_t fd, uint32_t address,
                      enum bt_entrance entrance)
{
    struct bt_agent *agent = bt_agents_get(gateway->agents, address);
    const char *obstacle = find_obstacle(gateway, agent);
    if (obstacle != NULL) {
        turn_away(gateway, agent, fd, entrance, obstacle);
        return;
    }
    struct bt_session *session = bt_new(1, sizeof(*session));
    session->gateway = gateway;
    session->agent = agent;
    session->entrance = entrance;
    session->port = entrance == BT_ENTRANCE_TLS ? 443 : 80;
    TAILQ_INIT(&session->exchanges);
    TAILQ_INSERT_TAIL(&gateway->sessions, session, link);
    gateway->session_count++;
    agent->session_count++;
    bt_dial_tune_socket(fd);
    session->channel = bt_channel_new(gateway->channels, fd, NULL, NULL);
    if (entrance == BT_ENTRANCE_TLS)
        bt_session_await_hello(session);
    else
        bt_session_serve(session);
}

/* ---- memory -----------------------------------------------------------------------------------------------
 */

#define SESSION_SIZE (4U * 1024) /* itself, its codec, its events */

size_t bt_session_weight(const struct bt_session *session)
{
    size_t held = SESSION_SIZE + (session->is_tls ? BT_BUDGET_TLS : 0);
    const struct bt_exchange *exchange;
    if (session->channel != NULL)
        held += bt_channel_weight(session->channel);
    if (session->upstream != NULL)
        held += bt_channel_weight(session->upstream);
    if (session->http1 != NULL)
        held += bt_http1_weight(session->http1);
    if (session->http2 != NULL)
        held += bt_http2_weight(session->http2);
    TAILQ_FOREACH(exchange, &session->exchanges, link)
    held += bt_exchange_weight(exchange);
    return held;
}

/* ---- changes and limits -----------------------------------------------------------------------------------
 */

/* Of a connection as a whole; requests are looked at one by one. */
static bool is_still_allowed(const struct bt_session *session)
{
    const struct bt_agent *agent = session->agent;
    struct bt_verdict verdict;
    if (!session->is_pass_allowed)
        return true;
    if (!agent->is_known || agent->slot != session->slot || agent->generation != session->generation)
        return false;
    bt_policy_decide_connection(agent->policy, session->host, session->port, &verdict);
    return verdict.is_allowed && !verdict.is_intercepted;
}

void bt_session_recheck(struct bt_gateway *gateway, struct bt_agent *agent)
{
    struct bt_session *next_session;
    bt_upstreams_retire(gateway->upstreams, agent);
    for (struct bt_session *session = TAILQ_FIRST(&gateway->sessions); session != NULL;
         session = next_session) {
        next_session = TAILQ_NEXT(session, link);
        if (session->agent != agent)
            continue;
        struct bt_exchange *next;
        for (struct bt_exchange *exchange = TAILQ_FIRST(&session->exchanges); exchange != NULL;
             exchange = next) {
            next = TAILQ_NEXT(exchange, link);
            bt_exchange_recheck(exchange);
        }
        if (is_still_allowed(session))
            continue;
        bt_session_record(session, false, "revoked", "the registration or policy no longer allows this");
        bt_session_cut(session);
    }
}

/* How long a session may stay as it is; 0: for ever. */
static int64_t limit_of(struct bt_session *session)
{
    switch (session->stage) {
    case BT_STAGE_HELLO:
    case BT_STAGE_HANDSHAKE:
        return BT_SESSION_START_MS;
    case BT_STAGE_ALERT:
        return BT_SESSION_LINGER_MS;
    case BT_STAGE_WAIT:
        return 0;
    case BT_STAGE_PASS:
        return session->is_client_finished || session->is_upstream_finished ? BT_SESSION_HALF_MS : 0;
    case BT_STAGE_HTTP:
        break;
    }
    if (session->http2 != NULL)
        return 0; /* the codec has limits of its own */
    enum bt_http1_state state = bt_http1_state_of(session->http1);
    if (state != session->http1_state)
        session->since_ms = bt_clock_ms();
    session->http1_state = state;
    switch (state) {
    case BT_HTTP1_IDLE:
        return BT_SESSION_IDLE_MS;
    case BT_HTTP1_HEAD:
        return BT_SESSION_START_MS;
    case BT_HTTP1_CLOSING:
        return bt_http1_is_sent(session->http1) ? BT_SESSION_LINGER_MS : BT_SESSION_LEAVE_MS;
    case BT_HTTP1_BUSY:
        break;
    }
    return 0;
}

static void give_up(struct bt_session *session)
{
    if (session->stage == BT_STAGE_HELLO)
        bt_session_record(session, false, "not-tls", "no ClientHello came within 30 seconds");
    if (session->stage == BT_STAGE_HTTP && session->http1_state == BT_HTTP1_HEAD)
        bt_session_record(session, false, "bad-request", "a head did not come to its end within 30 seconds");
    if (session->stage != BT_STAGE_PASS) {
        bt_session_end(session);
        return;
    }
    bt_session_record(session, false, "bad-response",
                      "one side ended its direction, and nothing came from the other for 15 minutes");
    bt_session_cut(session);
}

void bt_session_sweep(struct bt_gateway *gateway)
{
    int64_t now_ms = bt_clock_ms();
    struct bt_session *next_session;
    for (struct bt_session *session = TAILQ_FIRST(&gateway->sessions); session != NULL;
         session = next_session) {
        next_session = TAILQ_NEXT(session, link);
        int64_t limit_ms = limit_of(session);
        struct bt_exchange *next;
        for (struct bt_exchange *exchange = TAILQ_FIRST(&session->exchanges); exchange != NULL;
             exchange = next) {
            next = TAILQ_NEXT(exchange, link);
            bt_exchange_sweep(exchange, now_ms);
        }
        if (limit_ms == 0 || now_ms - session->since_ms < limit_ms)
            continue;
        give_up(session);
    }
}

void bt_session_drain(struct bt_gateway *gateway)
{
    struct bt_session *next;
    for (struct bt_session *session = TAILQ_FIRST(&gateway->sessions); session != NULL; session = next) {
        next = TAILQ_NEXT(session, link);
        bool is_busy = !TAILQ_EMPTY(&session->exchanges);
        if (is_busy && session->http1 != NULL)
            bt_http1_drain(session->http1);
        else if (is_busy && session->http2 != NULL)
            bt_http2_drain(session->http2);
        else if (session->stage != BT_STAGE_PASS)
            bt_session_end(session);
    }
}
