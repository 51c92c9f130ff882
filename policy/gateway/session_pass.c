/* Connections that a route passes through (tls: pass): bytes, unread, both ways. See session.h. */
#include "policy/gateway/clock.h"
#include "policy/gateway/session.h"

void bt_session_pass_dial(struct bt_session *session, bt_dial_done *done)
{
    if (session->entrance == BT_ENTRANCE_TLS)
        bt_session_set_stage(session, BT_STAGE_WAIT);
    /* From here on a change of what is allowed cuts it, also before the first byte passes. */
    session->is_pass_allowed = true;
    session->slot = session->agent->slot;
    session->generation = session->agent->generation;
    session->dial = bt_dial_start(session->gateway, session->agent, session->host, session->port,
                                  session->verdict.may_be_private, true, done, session);
}

/* Passes an end on, once everything before it left for the other side. */
static void pass_end(struct bt_channel *source, struct bt_channel *target, bool *is_finished)
{
    if (*is_finished || bt_channel_end_of(source) == BT_CHANNEL_OPEN ||
        evbuffer_get_length(bt_channel_input(source)) > 0)
        return;
    *is_finished = true;
    bt_channel_finish(target);
}

static void move(struct bt_session *session, struct bt_channel *source, struct bt_channel *target)
{
    struct evbuffer *input = bt_channel_input(source);
    size_t length = evbuffer_get_length(input);
    /* What does not fit stays in the input, which then takes no more. */
    if (length == 0 || bt_channel_waiting(target) >= BT_CHANNEL_INPUT_MAX)
        return;
    session->agent->counters.bytes += length;
    session->agent->has_news = true;
    session->since_ms = bt_clock_ms();
    bt_channel_write_buffer(target, input);
}

static void pump(void *context)
{
    struct bt_session *session = context;
    if (bt_channel_end_of(session->channel) == BT_CHANNEL_BROKEN) {
        bt_session_end(session);
        return;
    }
    move(session, session->channel, session->upstream);
    move(session, session->upstream, session->channel);
    if (bt_channel_end_of(session->upstream) == BT_CHANNEL_BROKEN) {
        bt_session_cut(session);
        return;
    }
    pass_end(session->channel, session->upstream, &session->is_upstream_finished);
    pass_end(session->upstream, session->channel, &session->is_client_finished);
    if (session->is_client_finished && session->is_upstream_finished &&
        bt_channel_waiting(session->channel) == 0 && bt_channel_waiting(session->upstream) == 0)
        bt_session_end(session);
}

void bt_session_pass(struct bt_session *session)
{
    static const struct bt_channel_events events = {.on_read = pump, .on_write = pump};
    bt_session_set_stage(session, BT_STAGE_PASS);
    bt_channel_set_events(session->channel, &events, session);
    bt_channel_set_events(session->upstream, &events, session);
}
