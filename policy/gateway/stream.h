/* One HTTP request and its response, as either leg sees it, whatever version is on the wire (RFC 9110).
 *
 * A codec (http1_codec.c, http2_codec.c) owns the bytes of one connection (a struct bt_channel, channel.h: in
 * clear or under TLS, made by the caller and owned by the codec from then on) and turns them into streams;
 * HTTP/1.1 has one stream at a time, HTTP/2 many. exchange.c joins a stream of the agent's connection with a
 * stream of an upstream connection, holds the policy against the request, and lets filters see what passes.
 * No codec knows the policy, and nothing above a codec knows a version.
 *
 * Flow control, end to end: a codec delivers bytes through on_data and counts them as held until the receiver
 * calls consume; above BT_STREAM_HELD_MAX held bytes of a stream it stops reading (HTTP/1.1) or gives no more
 * window (HTTP/2). An HTTP/2 host whose bytes were taken at once so far may have a larger window
 * (http2_codec.h), so more may come before it stops. A sender never sends more than room() says, and is told
 * by on_room when there is some again.
 *
 * A server's stream that was aborted with BT_ABORT_PROTOCOL may still be answered where the version permits
 * it (HTTP/1.1): send_* are tried, and fail elsewhere.
 *
 * Ownership: the codec owns the stream, and its memory until release() is called. After on_abort, or once
 * both directions ended, no callback follows. Slices and fields handed to a callback or to an operation are
 * borrowed for that call. Callbacks never come from within an operation on the same stream, except on_abort.
 */
#ifndef BERTH_POLICY_GATEWAY_STREAM_H
#define BERTH_POLICY_GATEWAY_STREAM_H

#include "policy/gateway/http.h"

#define BT_STREAM_HELD_MAX                                                                                   \
    (64U * 1024) /* delivered, not yet consumed; also the most that waits to be sent                         \
                  */

/* A head, end-to-end parts only: hop-by-hop fields (RFC 9110, 7.6.1) never leave a codec, field names are
 * lower case, values are without blanks around them and without CR, LF and NUL. */
struct bt_message {
    /* Requests. authority is always there, canonical form not yet checked; path begins with '/' (or is "*").
     */
    struct bt_http_slice method, scheme, authority, path;
    /* Requests for another protocol on this stream (Upgrade, RFC 8441's :protocol), e.g. "websocket"; else
     * empty. method is then GET in either version. Accepted by 101, which codecs translate to what their
     * version says; both directions then carry its bytes. Sec-WebSocket-Key and -Accept, which HTTP/2 does
     * not have, never leave a codec: HTTP/1.1's makes and checks them. */
    struct bt_http_slice protocol;
    struct bt_http_slice reason; /* responses: HTTP/1.1's phrase, or empty; HTTP/2 has none */
    unsigned status;             /* responses; 1xx are interim but for 101, more heads follow those */
    int64_t content_length; /* -1: not announced. A codec sees to it that a body has the length announced */
    bool expects_continue;  /* requests: Expect: 100-continue */
    bool is_complete;       /* on_head only: neither body nor trailers follow; on_end comes next */
    size_t field_count;
    struct bt_http_field fields[BT_HTTP_FIELDS_MAX]; /* without Host, Content-Length, Expect */
};

enum bt_abort {
    BT_ABORT_CANCELLED, /* the peer, or the other leg, gave up */
    BT_ABORT_PROTOCOL,  /* bytes that are not HTTP, or that lie about their length */
    BT_ABORT_REFUSED,   /* this stream was not acted upon: it may be tried again on another connection */
    BT_ABORT_LOST,      /* the connection ended early */
    BT_ABORT_POLICY,    /* cut by the gateway: revoked, or found in a body */
};

struct bt_stream;

/* What a codec tells the owner of a stream. context is what bt_stream_events carries. */
struct bt_stream_events {
    void (*on_head)(void *context, struct bt_stream *stream, const struct bt_message *head);
    void (*on_data)(void *context, struct bt_stream *stream, const void *data, size_t length);
    /* The peer's direction is complete. trailers: NULL, or fields only. */
    void (*on_end)(void *context, struct bt_stream *stream, const struct bt_message *trailers);
    void (*on_room)(void *context, struct bt_stream *stream);
    void (*on_abort)(void *context, struct bt_stream *stream, enum bt_abort reason);
};

/* What the owner asks of a stream. The results of send_*: 0, or -EPIPE when the peer does not listen any more
 * (nothing else needs doing; on_abort tells what follows, and nothing when the peer had sent all of its own
 * direction before: room() is then BT_STREAM_HELD_MAX, so that nobody waits for it). */
struct bt_stream_operations {
    int (*send_head)(struct bt_stream *stream, const struct bt_message *head, bool is_end);
    size_t (*room)(const struct bt_stream *stream);
    int (*send_data)(struct bt_stream *stream, const void *data, size_t length); /* length <= room() */
    int (*send_end)(struct bt_stream *stream, const struct bt_message *trailers);
    void (*consume)(struct bt_stream *stream, size_t length);
    /* Ends both directions at once so that the peer cannot take it for a complete message. */
    void (*abort)(struct bt_stream *stream, enum bt_abort reason);
    void (*release)(struct bt_stream *stream); /* the last call; aborts what is not complete */
};

/* The head of each codec's own stream structure. */
struct bt_stream {
    const struct bt_stream_operations *operations;
    const struct bt_stream_events *events;
    void *context;
};

#endif
