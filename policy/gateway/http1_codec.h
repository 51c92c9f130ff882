/* HTTP/1.1 (RFC 9112) over a channel, for both legs: a connection's bytes as streams (stream.h), one at a
 * time.
 *
 * As a server (towards agents) it reads requests, pipelined ones too: the next one is looked at when the
 * stream of the one before was released. As a client (towards upstreams) it carries one request after the
 * other. What is written is made anew from what was understood, so that nobody behind can understand anything
 * else. Called by session*.c and upstream.c; must not know the policy.
 */
#ifndef BERTH_POLICY_GATEWAY_HTTP1_CODEC_H
#define BERTH_POLICY_GATEWAY_HTTP1_CODEC_H

#include "policy/gateway/channel.h"
#include "policy/gateway/stream.h"

struct bt_http1;

/* Why something is no request that may be served. */
struct bt_http1_fault {
    unsigned status; /* of the answer */
    const char *rule, *reason;
};

struct bt_http1_events {
    /* Server: a request came. Set stream->events and ->context; on_head follows at once. raw has the
     * hop-by-hop fields, too; borrowed. */
    void (*on_stream)(void *context, struct bt_stream *stream, const struct bt_http_head *raw);
    /* Server: what came is no request. The stream wants an answer and has no on_head; the connection ends
     * behind it. */
    void (*on_fault)(void *context, struct bt_stream *stream, const struct bt_http1_fault *fault);
    /* Client: the stream was released and another one may be opened. Comes from within release. */
    void (*on_idle)(void *context);
    /* No further stream: the owner calls bt_http1_free, now or later. For a client this may come from within
     * release. */
    void (*on_close)(void *context);
};

struct bt_http1_settings {
    bool is_client;
    bool is_proxy;      /* server: CONNECT and absolute-form; client: absolute-form, to a parent proxy */
    const char *scheme; /* of origin-form requests: "http" or "https" */
    const char *authorization; /* client with is_proxy: for Proxy-Authorization: Basic, or NULL */
};

/* Takes the channel over. settings' texts and events must outlive the codec. */
struct bt_http1 *bt_http1_new(struct bt_channel *channel, const struct bt_http1_settings *settings,
                              const struct bt_http1_events *events, void *context);
/* Closes the connection: by a reset where the peer could take what it has for complete. Accepts NULL. */
struct bt_http1 *bt_http1_free(struct bt_http1 *http1);

/* Server, after a CONNECT was answered with 2xx and before its stream was released: what follows on the
 * connection is not HTTP. Frees the codec and its stream; the caller owns the channel. */
struct bt_channel *bt_http1_detach(struct bt_http1 *http1) BT_MUST_CHECK;

/* Client: a stream for one request; NULL when the connection cannot take one now. Set ->events and ->context.
 */
struct bt_stream *bt_http1_open(struct bt_http1 *http1);

enum bt_http1_state {
    BT_HTTP1_IDLE,    /* no request is under way */
    BT_HTTP1_HEAD,    /* server: a part of a head has come */
    BT_HTTP1_BUSY,    /* a stream is open */
    BT_HTTP1_CLOSING, /* the last answer leaves, or the peer's end is awaited */
};
enum bt_http1_state bt_http1_state_of(const struct bt_http1 *http1);

size_t bt_http1_weight(const struct bt_http1 *http1); /* bytes that it keeps, both ways */
bool bt_http1_is_sent(const struct bt_http1 *http1);  /* nothing waits to be sent */
/* The peer sends nothing more. Whether it still reads shows only when something is sent to it. */
bool bt_http1_is_half_closed(const struct bt_http1 *http1);

/* Server: take no further request; what is under way is completed. on_close follows. */
void bt_http1_drain(struct bt_http1 *http1);

#endif
