/* For the tests of the HTTP/2 codec towards agents: answers of the owner's, and time that passes. */
#ifndef BERTH_TESTS_UNIT_HTTP2_SERVER_FIXTURE_H
#define BERTH_TESTS_UNIT_HTTP2_SERVER_FIXTURE_H

#include "tests/unit/http2_fixture.h"

static inline int answer(struct seen *seen, unsigned status, int64_t length, bool is_end)
{
    struct bt_message message = {.status = status, .content_length = length};
    return seen->stream->operations->send_head(seen->stream, &message, is_end);
}

static inline int answer_data(struct seen *seen, const char *text)
{
    return seen->stream->operations->send_data(seen->stream, text, strlen(text));
}

static inline int answer_end(struct seen *seen)
{
    return seen->stream->operations->send_end(seen->stream, NULL);
}

/* Lets the connection's own timer come once. */
static inline void pass_time(int64_t ms)
{
    now_ms += ms;
    event_active(world->http2->watch, EV_TIMEOUT, 0);
    listen_to_it();
}

static inline void say_ping(unsigned i)
{
    uint8_t payload[8] = {(uint8_t)i};
    say(NGHTTP2_PING, 0, 0, payload, 8);
}

#endif
