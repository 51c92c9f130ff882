/* Life of a session. See session.h. */
#include "policy/gateway/session.h"

#include <errno.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINGER_MS 2000

static void on_client_read(struct bufferevent *client, void *context);

void bt_session_set_deadline(struct bt_session *session, int delay_ms)
{
    struct timeval delay = {delay_ms / 1000, (delay_ms % 1000) * 1000};
    if (delay_ms > 0)
        (void)event_add(session->deadline, &delay);
    else
        (void)event_del(session->deadline);
}

void bt_session_end(struct bt_session *session)
{
    TAILQ_REMOVE(&session->gateway->sessions, session, link);
    session->gateway->session_count--;
    session->agent->session_count--;
    bt_report_counters(session->gateway->report, session->agent);
    bt_agent_waiter_cancel(&session->waiter);
    session->dial = bt_dial_cancel(session->dial);
    if (session->client != NULL)
        bufferevent_free(session->client);
    if (session->upstream != NULL)
        bufferevent_free(session->upstream);
    event_free(session->deadline);
    bt_buffer_wipe(&session->request);
    free(session);
}

/* Ends with a reset towards the client, so that a cut is never taken for an end. */
static void end_with_reset(struct bt_session *session)
{
    static const struct linger at_once = {1, 0};
    (void)setsockopt(bufferevent_getfd(session->client), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    bt_session_end(session);
}

void bt_session_record(struct bt_session *session, bool is_allowed, const char *rule, const char *reason)
{
    static const char *const kinds[] = {"connect", "http", "tls"};
    size_t kind = session->entrance == BT_ENTRANCE_TLS                            ? 2
                  : session->is_connect && session->entrance == BT_ENTRANCE_PROXY ? 0
                                                                                  : 1;
    struct bt_decision decision = {
        .kind = kinds[kind],
        .host = session->shown_host,
        .port = session->port,
        .method = session->method,
        .is_allowed = is_allowed,
        .rule = rule,
        .reason = reason,
        .granted_by = is_allowed ? session->verdict.granted_by : "",
        .address = session->dialled,
    };
    bt_report_decision(session->gateway->report, session->agent, &decision);
}

void bt_session_close_after_flush(struct bt_session *session)
{
    session->stage = BT_STAGE_CLOSING;
    if (session->upstream != NULL)
        bufferevent_free(BT_TAKE(session->upstream));
    bt_session_set_deadline(session, BT_SESSION_START_MS);
    if (evbuffer_get_length(bufferevent_get_output(session->client)) > 0)
        return;
    /* Everything left. Wait a moment for the client's end: closing over its unread bytes would reset the
     * connection and could take the answer with it. */
    if (session->is_reset) {
        end_with_reset(session);
        return;
    }
    (void)shutdown(bufferevent_getfd(session->client), SHUT_WR);
    session->is_client_shut = true;
    if (session->is_client_finished)
        bt_session_end(session);
    else
        bt_session_set_deadline(session, LINGER_MS);
}

void bt_session_refuse(struct bt_session *session, const struct bt_refusal *refusal)
{
    bt_session_record(session, false, refusal->rule, refusal->reason);
    if (session->entrance == BT_ENTRANCE_TLS || (session->is_tunnel_open && session->stage == BT_STAGE_HELLO))
        bt_session_tls_alert(session);
    else
        bt_session_http_refuse(session, refusal);
}

/* ---- identity and decision ------------------------------------------------------------------------------
 */

static void on_dialled(void *context, const struct bt_dial_result *result)
{
    struct bt_session *session = context;
    session->dial = NULL;
    session->dialled = result->address;
    if (result->upstream == NULL) {
        bool is_refused = strcmp(result->rule, "private-answer") == 0;
        struct bt_refusal refusal = {is_refused ? 403 : 502, result->rule, result->reason,
                                     is_refused ? "set private: true on the route if this is meant"
                                                : "try again later"};
        bt_session_refuse(session, &refusal);
        return;
    }
    session->upstream = result->upstream;
    if (session->entrance == BT_ENTRANCE_TLS) {
        bt_session_record(session, true, session->verdict.rule, session->verdict.reason);
        bt_session_relay(session);
        return;
    }
    if (!session->is_connect) {
        bt_session_http_start(session);
        return;
    }
    if (session->is_client_finished && evbuffer_get_length(bufferevent_get_input(session->client)) == 0) {
        bt_session_end(session); /* it left while this was dialled */
        return;
    }
    static const char established[] = "HTTP/1.1 200 Connection established\r\n\r\n";
    (void)bufferevent_write(session->client, established, sizeof(established) - 1);
    session->is_tunnel_open = true;
    session->stage = BT_STAGE_HELLO;
    bt_session_set_deadline(session, BT_SESSION_START_MS);
    on_client_read(session->client, session);
}

static void decide(struct bt_session *session)
{
    struct bt_refusal refusal = {.status = 403,
                                 .rule = "bad-host",
                                 .reason = "not a valid host and port",
                                 .hint = "check the spelling of the host"};
    if (session->target_error == -EADDRNOTAVAIL)
        refusal = (struct bt_refusal){403, "ip-literal", "addresses are not allowed, only names",
                                      "use the host's name"};
    if (session->target_error < 0) {
        bt_session_refuse(session, &refusal);
        return;
    }
    bt_policy_decide_connection(session->agent->policy, session->host, session->port, &session->verdict);
    if (!session->verdict.is_allowed) {
        refusal =
            (struct bt_refusal){403, session->verdict.rule, session->verdict.reason, session->verdict.hint};
        bt_session_refuse(session, &refusal);
        return;
    }
    session->stage = BT_STAGE_WAIT;
    session->dial = bt_dial_start(
        session->gateway, session->agent, session->host, session->port, session->verdict.may_be_private,
        session->is_connect || session->entrance == BT_ENTRANCE_TLS, on_dialled, session);
}

static void on_identified(void *context, enum bt_identity identity)
{
    struct bt_session *session = context;
    struct bt_refusal refusal = {.status = 403,
                                 .rule = "unknown-agent",
                                 .reason = "no agent is registered at this address",
                                 .hint = "the agent's keeper registers it; see `berth list` on the host"};
    switch (identity) {
    case BT_IDENTITY_OK:
        session->is_authorised = true;
        session->slot = session->agent->slot;
        session->generation = session->agent->generation;
        decide(session);
        return;
    case BT_IDENTITY_WRONG_TOKEN:
        bt_session_record(session, false, "identity", "the identity token is not the one of this address");
        bt_session_http_challenge(session, "the identity token is not the one of this address");
        return;
    case BT_IDENTITY_UNREACHABLE:
        refusal =
            (struct bt_refusal){503, "orchestrator-unreachable",
                                "the orchestrator cannot be asked who this is", "run `berth up` on the host"};
        break;
    case BT_IDENTITY_BUSY:
        refusal =
            (struct bt_refusal){503, "too-many", "too many requests of this agent wait at once", "try again"};
        break;
    case BT_IDENTITY_UNKNOWN:
        break;
    }
    bt_session_refuse(session, &refusal);
}

void bt_session_identify(struct bt_session *session, const char *digest)
{
    session->stage = BT_STAGE_WAIT;
    bt_session_set_deadline(session, 0);
    bt_agents_identify(session->gateway->agents, session->agent, digest, &session->waiter, on_identified,
                       session);
}

/* ---- relay ------------------------------------------------------------------------------------------------
 */

/* Passes an end of stream on once everything before it left. Returns true when the session ended. */
static bool pass_end(struct bt_session *session, struct bufferevent *source, struct bufferevent *target,
                     bool is_finished, bool *is_shut)
{
    if (!is_finished || *is_shut || evbuffer_get_length(bufferevent_get_input(source)) > 0 ||
        evbuffer_get_length(bufferevent_get_output(target)) > 0)
        return false;
    if (session->is_reset && target == session->client) {
        end_with_reset(session);
        return true;
    }
    (void)shutdown(bufferevent_getfd(target), SHUT_WR);
    *is_shut = true;
    if (!session->is_client_shut || !session->is_upstream_shut)
        return false;
    bt_session_end(session);
    return true;
}

/* Moves what may be moved; may end the session. */
static void pump(struct bt_session *session, bool is_to_client)
{
    struct bufferevent *source = is_to_client ? session->upstream : session->client;
    struct bufferevent *target = is_to_client ? session->client : session->upstream;
    struct evbuffer *input = bufferevent_get_input(source);
    size_t length = evbuffer_get_length(input);
    /* What does not fit stays in the input, whose high watermark then stops the reading. */
    if (length > 0 && evbuffer_get_length(bufferevent_get_output(target)) < BT_SESSION_BUFFER) {
        session->agent->counters.bytes += length;
        session->agent->has_news = true;
        (void)bufferevent_write_buffer(target, input);
    }
    if (is_to_client)
        (void)pass_end(session, source, target, session->is_upstream_finished, &session->is_client_shut);
    else
        (void)pass_end(session, source, target, session->is_client_finished, &session->is_upstream_shut);
}

static void on_upstream_read(struct bufferevent *upstream, void *context)
{
    struct bt_session *session = context;
    (void)upstream;
    if (session->stage == BT_STAGE_HTTP)
        bt_session_http_response(session);
    else if (session->stage == BT_STAGE_RELAY)
        pump(session, true);
}

static void on_upstream_write(struct bufferevent *upstream, void *context)
{
    struct bt_session *session = context;
    (void)upstream;
    if (session->stage == BT_STAGE_HTTP)
        bt_session_http_body(session);
    else if (session->stage == BT_STAGE_RELAY)
        pump(session, false);
}

static void on_upstream_event(struct bufferevent *upstream, short events, void *context)
{
    struct bt_session *session = context;
    (void)upstream;
    if ((events & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) == 0)
        return;
    session->is_upstream_finished = true;
    session->is_reset = (events & BEV_EVENT_ERROR) != 0;
    if (session->stage == BT_STAGE_HTTP)
        bt_session_http_response(session);
    else if (session->stage == BT_STAGE_RELAY)
        pump(session, true);
    else
        end_with_reset(session); /* upstream hung up before anything was said */
}

void bt_session_watch_upstream(struct bt_session *session)
{
    bt_session_set_deadline(session, 0);
    bufferevent_setcb(session->upstream, on_upstream_read, on_upstream_write, on_upstream_event, session);
    bufferevent_setwatermark(session->upstream, EV_READ, 0, BT_SESSION_BUFFER);
    bufferevent_setwatermark(session->upstream, EV_WRITE, BT_SESSION_BUFFER / 4, 0);
    (void)bufferevent_enable(session->upstream, EV_READ | EV_WRITE);
}

void bt_session_relay(struct bt_session *session)
{
    session->stage = BT_STAGE_RELAY;
    bt_session_watch_upstream(session);
    pump(session, false);
}

/* ---- the client's side
 * -------------------------------------------------------------------------------------- */

static void on_client_read(struct bufferevent *client, void *context)
{
    struct bt_session *session = context;
    struct evbuffer *input = bufferevent_get_input(client);
    switch (session->stage) {
    case BT_STAGE_HEAD:
        bt_session_http_read(session);
        return;
    case BT_STAGE_HELLO:
        bt_session_hello_read(session);
        return;
    case BT_STAGE_HTTP:
        bt_session_http_body(session);
        return;
    case BT_STAGE_RELAY:
        pump(session, false);
        return;
    case BT_STAGE_CLOSING:
        (void)evbuffer_drain(input, evbuffer_get_length(input));
        return;
    case BT_STAGE_WAIT:
        return; /* stays in the input until it is wanted; bounded by its watermark */
    }
}

static void on_client_write(struct bufferevent *client, void *context)
{
    struct bt_session *session = context;
    switch (session->stage) {
    case BT_STAGE_HEAD:
        on_client_read(client, session); /* a request may have waited for room for its answer */
        return;
    case BT_STAGE_HTTP:
        bt_session_http_response(session);
        return;
    case BT_STAGE_RELAY:
        pump(session, true);
        return;
    case BT_STAGE_CLOSING:
        if (!session->is_client_shut)
            bt_session_close_after_flush(session);
        return;
    case BT_STAGE_HELLO:
    case BT_STAGE_WAIT:
        return;
    }
}

static void on_client_event(struct bufferevent *client, short events, void *context)
{
    struct bt_session *session = context;
    if ((events & BEV_EVENT_ERROR) != 0) {
        bt_session_end(session);
        return;
    }
    if ((events & BEV_EVENT_EOF) == 0)
        return;
    session->is_client_finished = true;
    switch (session->stage) {
    case BT_STAGE_HEAD:
    case BT_STAGE_HELLO:
        bt_session_end(session);
        return;
    case BT_STAGE_CLOSING:
        if (session->is_client_shut)
            bt_session_end(session);
        return;
    case BT_STAGE_HTTP:
    case BT_STAGE_RELAY:
        on_client_read(client, session);
        return;
    case BT_STAGE_WAIT:
        return; /* a client may shut its side after its request and still read */
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *context)
{
    struct bt_session *session = context;
    (void)fd;
    (void)what;
    if (session->stage == BT_STAGE_HELLO) {
        struct bt_refusal refusal = {408, "not-tls", "no ClientHello came within 30 seconds", ""};
        bt_session_refuse(session, &refusal);
        return;
    }
    bt_session_end(session);
}

static void turn_away(struct bt_gateway *gateway, struct bt_agent *agent, evutil_socket_t fd)
{
    static const struct bt_decision decision = {
        .kind = "connect",
        .host = "",
        .method = "",
        .rule = "too-many",
        .reason = "too many connections at once",
        .granted_by = "",
    };
    if (agent != NULL)
        bt_report_decision(gateway->report, agent, &decision);
    static const char busy[] =
        "HTTP/1.1 503 Too many connections\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    (void)send(fd, busy, sizeof(busy) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)evutil_closesocket(fd);
}

void bt_session_start(struct bt_gateway *gateway, evutil_socket_t fd, uint32_t address,
                      enum bt_entrance entrance)
{
    struct bt_agent *agent = bt_agents_get(gateway->agents, address);
    if (agent == NULL || agent->session_count >= BT_AGENT_SESSIONS_MAX ||
        gateway->session_count >= gateway->session_limit) {
        turn_away(gateway, agent, fd);
        return;
    }
    struct bt_session *session = bt_new(1, sizeof(*session));
    session->gateway = gateway;
    session->agent = agent;
    session->entrance = entrance;
    session->stage = entrance == BT_ENTRANCE_TLS ? BT_STAGE_HELLO : BT_STAGE_HEAD;
    session->port = entrance == BT_ENTRANCE_TLS ? 443 : entrance == BT_ENTRANCE_HTTP ? 80 : 0;
    session->client = bufferevent_socket_new(gateway->base, fd, BEV_OPT_CLOSE_ON_FREE);
    session->deadline = evtimer_new(gateway->base, on_deadline, session);
    if (session->client == NULL || session->deadline == NULL)
        abort(); /* out of memory, as in bt_new */
    TAILQ_INSERT_TAIL(&gateway->sessions, session, link);
    gateway->session_count++;
    agent->session_count++;
    bt_dial_tune_socket(fd);
    bufferevent_setcb(session->client, on_client_read, on_client_write, on_client_event, session);
    bufferevent_setwatermark(session->client, EV_READ, 0, BT_SESSION_BUFFER);
    bufferevent_setwatermark(session->client, EV_WRITE, BT_SESSION_BUFFER / 4, 0);
    bt_session_set_deadline(session, BT_SESSION_START_MS);
    (void)bufferevent_enable(session->client, EV_READ | EV_WRITE);
}

static bool is_still_allowed(const struct bt_session *session)
{
    const struct bt_agent *agent = session->agent;
    struct bt_verdict verdict;
    if (!session->is_authorised || session->stage == BT_STAGE_CLOSING)
        return true; /* nothing was granted yet, or nothing is any more */
    if (!agent->is_known || agent->slot != session->slot || agent->generation != session->generation)
        return false;
    if (session->target_error < 0 || session->host[0] == '\0')
        return true;
    bt_policy_decide_connection(agent->policy, session->host, session->port, &verdict);
    return verdict.is_allowed;
}

void bt_session_recheck(struct bt_gateway *gateway, struct bt_agent *agent)
{
    struct bt_session *session = TAILQ_FIRST(&gateway->sessions);
    while (session != NULL) {
        struct bt_session *next = TAILQ_NEXT(session, link);
        if (session->agent == agent && !is_still_allowed(session)) {
            bt_session_record(session, false, "revoked", "the registration or policy no longer allows this");
            end_with_reset(session);
        }
        session = next;
    }
}
