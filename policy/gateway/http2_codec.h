/* One HTTP/2 connection (RFC 9113), of an agent or to an upstream, as streams (stream.h).
 *
 * nghttp2 has frames, HPACK and the states of streams; this codec adds what a proxy owes: exact heads
 * (http2_head.h), flow control from end to end, and a limit on all that a peer can make grow or repeat.
 * Called by session.c (server side) and upstream.c (client side); knows no policy.
 *
 * Limits, each of one connection:
 *   streams at once: BT_HTTP2_STREAMS_MAX; those above are refused and may be tried again
 *   a header list:   BT_HTTP_HEAD_MAX as RFC 9113, 6.5.2 counts; a request above it is answered 431
 *   a body:          BT_STREAM_HELD_MAX held a stream; a slow stream does not stop the others. From
 *                    upstreams up to BT_HTTP2_WINDOW_MAX as long as the receiver keeps up: far hosts
 *                    are slow otherwise. What all streams have above BT_STREAM_HELD_MAX is bounded, too
 *   waiting output:  above BT_HTTP2_OUTPUT_MAX nothing more is framed, and a peer that does not read the
 *                    answers to its own frames is not read either
 *   useless frames:  (PING, SETTINGS, RST_STREAM, WINDOW_UPDATE, empty DATA, malformed heads...) spend an
 *                    allowance that useful frames and time give back; at its end ENHANCE_YOUR_CALM
 *   nghttp2's memory: BT_HTTP2_MEMORY_MAX
 *   time:            BT_HTTP2_HEAD_MS for the preface and for each head; BT_HTTP2_IDLE_MS without a
 *                    stream (server)
 */
#ifndef BERTH_POLICY_GATEWAY_HTTP2_CODEC_H
#define BERTH_POLICY_GATEWAY_HTTP2_CODEC_H

#include "policy/gateway/channel.h"
#include "policy/gateway/stream.h"

#define BT_HTTP2_STREAMS_MAX 100
#define BT_HTTP2_WINDOW_MAX (1024U * 1024)
#define BT_HTTP2_OUTPUT_MAX (64U * 1024)
#define BT_HTTP2_MEMORY_MAX (2U * 1024 * 1024)
#define BT_HTTP2_HEAD_MS 30000
#define BT_HTTP2_IDLE_MS 180000

struct bt_http2;

enum bt_http2_role { BT_HTTP2_SERVER, BT_HTTP2_CLIENT };

/* What a connection tells its owner. Any of them may call bt_http2_free. */
struct bt_http2_events {
    /* Server: a request has come. The owner sets events and context of the stream and returns true, then
     * on_head follows; or returns false: REFUSED_STREAM, and the stream is gone. */
    bool (*on_stream)(void *context, struct bt_stream *stream);
    /* A head was not HTTP, or told a lie (reason: a phrase); its stream was reset. May be NULL. */
    void (*on_malformed)(void *context, const char *reason);
    /* Client: bt_http2_capacity, bt_http2_allows_protocol or bt_http2_stream_count may have changed. From the
     * loop. */
    void (*on_capacity)(void *context);
    /* The connection is over and its streams were aborted; the owner calls bt_http2_free, now or later. Comes
     * once, from the event loop. reason: a phrase. */
    void (*on_end)(void *context, const char *reason);
};

/* Takes over a channel whose handshake is done; what it has read already is used. scheme: "https" or "http",
 * which requests of this connection must name (server). */
struct bt_http2 *bt_http2_new(struct event_base *base, struct bt_channel *channel, enum bt_http2_role role,
                              const char *scheme, const struct bt_http2_events *events, void *context);
/* Closes at once: on_abort (LOST) for each stream that is not complete, no other callback. Streams that were
 * not released keep their memory until they are. Accepts NULL; returns NULL. */
struct bt_http2 *bt_http2_free(struct bt_http2 *http2);

/* Ends in order: GOAWAY, the streams there are go on to their end, then on_end. */
void bt_http2_drain(struct bt_http2 *http2);

/* Client: another stream: set its events and context, then send_head. NULL when bt_http2_capacity is 0. */
struct bt_stream *bt_http2_open(struct bt_http2 *http2);
/* Client: how many more streams may be opened now; 0 for good after a GOAWAY. */
size_t bt_http2_capacity(const struct bt_http2 *http2);
/* Client: whether requests with a protocol may be sent: the peer's SETTINGS said so (RFC 8441, 3). */
bool bt_http2_allows_protocol(const struct bt_http2 *http2);
/* Streams that are not over. */
size_t bt_http2_stream_count(const struct bt_http2 *http2);
/* Bytes that it keeps, both ways, but for bodies of streams. */
size_t bt_http2_weight(const struct bt_http2 *http2);

#endif
