/* What the files of the HTTP/2 codec share: http2_codec.c (a connection's life, its input and output),
 * http2_session.c (nghttp2 with its limits), http2_frames.c (what the peer says) and http2_stream.c (what the
 * owner of a stream says). Nobody else includes this.
 *
 * Lifetimes: a stream's memory lives until the owner released it and it is over on the wire. A connection
 * that is freed while nghttp2 is on the stack (depth > 0) lets its streams go at once and its memory when the
 * stack is back; so a callback of nghttp2 looks at is_freed after each call of an owner's callback, and only
 * then at the stream.
 */
#ifndef BERTH_POLICY_GATEWAY_HTTP2_CONNECTION_H
#define BERTH_POLICY_GATEWAY_HTTP2_CONNECTION_H

#include <sys/queue.h>

#include "policy/gateway/clock.h"
#include "policy/gateway/http2_codec.h"
#include "policy/gateway/http2_head.h"

struct bt_http2_stream {
    struct bt_stream base;
    TAILQ_ENTRY(bt_http2_stream) link;         /* in http2->streams, while http2 is set */
    TAILQ_ENTRY(bt_http2_stream) drained_link; /* in http2->drained, while is_drained */
    struct bt_http2 *http2;                    /* NULL: over on the wire */
    int32_t id;                                /* 0: the request was not handed to nghttp2 yet */
    size_t window;                             /* the most that may be held */
    size_t kept_up;                   /* consumed since the window grew, while the receiver kept up */
    size_t held;                      /* delivered, not consumed */
    struct evbuffer *output;          /* of the body, not framed yet */
    struct bt_http2_fields *trailers; /* to be sent behind it, or NULL */

    bool is_protocol;    /* the request is for another protocol */
    bool has_head;       /* client: the final response head was received */
    bool has_ended;      /* the peer's direction is complete, and on_end was called */
    bool was_reset;      /* by the peer */
    bool is_on_wire;     /* client: the request's head left for the channel */
    bool is_head_sent;   /* a final head was handed to nghttp2 */
    bool is_end_sent;    /* the owner ended its direction */
    bool is_end_on_wire; /* and END_STREAM left for the channel */
    bool is_deferred;    /* nghttp2 waits for output */
    bool is_drained;     /* nghttp2 took output since on_room */
    bool is_failed; /* what its owner said could not be sent: on_abort follows from the loop, and nothing else
                     */
    bool is_silent; /* no callback follows */
    bool is_released;
    bool is_late; /* answered a while ago, and the request still has not ended */
};
TAILQ_HEAD(bt_http2_stream_list, bt_http2_stream);

enum bt_http2_stage {
    BT_HTTP2_OPEN,
    BT_HTTP2_LINGERING, /* everything was said; the peer has a moment to read it */
    BT_HTTP2_OVER,      /* on_end was called */
};

struct bt_http2 {
    struct bt_channel *channel;
    struct event *flush, *watch;
    nghttp2_session *session;
    enum bt_http2_role role;
    enum bt_http2_stage stage;
    const char *scheme;
    const struct bt_http2_events *events;
    void *context;
    struct bt_http2_stream_list streams, drained;
    size_t stream_count;
    struct bt_http2_head *head; /* the one that comes now; frames do not interleave within it */
    const char *end_reason;     /* why the connection ends, once that is decided */
    size_t memory;              /* of nghttp2 */
    int64_t started_ms, head_ms, idle_ms, linger_ms, allowance_ms;
    int allowance;
    unsigned depth;
    bool is_freed;
    bool is_settled;  /* the peer's SETTINGS came */
    bool is_draining; /* a drain was asked for */
    bool has_said_goodbye;
    bool is_blocked; /* not read, because it does not read */
    bool has_failed_streams, has_capacity_news;
};

/* http2_session.c. The session starts with its SETTINGS; returns 0 or -ENOMEM. */
int bt_http2_session_start(struct bt_http2 *http2) BT_MUST_CHECK;

/* http2_codec.c */
void bt_http2_schedule(struct bt_http2 *http2); /* frames what waits, from the loop */
/* GOAWAY with this code (NGHTTP2_*) and an end. The first reason stays. */
void bt_http2_terminate(struct bt_http2 *http2, uint32_t code, const char *reason);
void bt_http2_spend(struct bt_http2 *http2, int cost); /* may terminate */
void bt_http2_earn(struct bt_http2 *http2, int gain);
/* The last GOAWAY of a drain: the streams that there are now are the last. */
void bt_http2_say_goodbye(struct bt_http2 *http2);

/* http2_frames.c */
void bt_http2_frames_set_callbacks(nghttp2_session_callbacks *callbacks);

/* http2_stream.c */
struct bt_http2_stream *bt_http2_stream_new(struct bt_http2 *http2, int32_t id);
/* It is over on the wire. Frees it when it is released. Calls nobody. */
void bt_http2_stream_detach(struct bt_http2_stream *stream);
/* The same for one that its owner may still count on: on_abort, unless it is complete or silent. */
void bt_http2_stream_lose(struct bt_http2_stream *stream, enum bt_abort reason);
/* Resets it with this code (NGHTTP2_*), and on_abort (PROTOCOL), unless it is silent. */
void bt_http2_stream_break(struct bt_http2_stream *stream, uint32_t code);
void bt_http2_tell_failed(struct bt_http2 *http2); /* on_abort for streams that never reached nghttp2 */
bool bt_http2_stream_is_complete(const struct bt_http2_stream *stream);
/* Whether an agent's stream was answered to its end while its request may still come. It gets no more window.
 * A reset at once (RFC 9113, 8.1) would be right, but clients that still send take it for a failure and drop
 * the answer (curl 7.88 does); so it gets a while. */
bool bt_http2_stream_is_answered(const struct bt_http2_stream *stream);
void bt_http2_stream_wind_up(struct bt_http2_stream *stream); /* resets it at the second call */

#endif
