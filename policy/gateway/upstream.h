/* Connections to allowed hosts, kept for the next request of the same agent.
 *
 * A connection belongs to one lease of an agent, one host and port, in clear or under TLS; nothing of it is
 * ever used for anybody else. Under TLS the host chooses between HTTP/1.1, with one request at a time, and
 * HTTP/2, with many: requests that come while a connection is on its way wait to see. Its name was resolved
 * once, its address checked and its certificate verified before the first byte of a request went out. Called
 * by exchange.c.
 */
#ifndef BERTH_POLICY_GATEWAY_UPSTREAM_H
#define BERTH_POLICY_GATEWAY_UPSTREAM_H

#include "policy/gateway/gateway.h"
#include "policy/gateway/stream.h"

#define BT_UPSTREAM_IDLE_MS 50000 /* many servers close after 60 s: close first, or meet in the middle */
#define BT_UPSTREAM_IDLE_MAX 64   /* idle connections of one agent */
#define BT_UPSTREAM_SECURE_MS 10000

struct bt_upstreams;
struct bt_upstreams *bt_upstreams_new(struct bt_gateway *gateway);
struct bt_upstreams *bt_upstreams_free(struct bt_upstreams *upstreams); /* accepts NULL */

struct bt_upstream_target {
    struct bt_agent *agent; /* known, and held by a session of the caller */
    const char *host;       /* canonical */
    uint16_t port;
    bool is_tls;
    bool may_be_private;
    bool is_protocol; /* the request asks for another protocol */
    /* A kept connection is taken when it was idle for at most this; negative: a new one is made. The host may
     * be closing a kept one just now, so what cannot be sent twice wants a short limit. */
    int64_t idle_ms_max;
};

struct bt_upstream_result {
    struct bt_stream *stream; /* for one request: set its events and context; NULL: it failed */
    uint32_t address;         /* dialled, 0 when none was */
    bool is_reused;           /* the host may have closed it meanwhile: worth another try */
    unsigned status;          /* of the refusal, when it failed */
    const char *rule;
    char reason[200];
};

TAILQ_HEAD(bt_upstream_waits, bt_upstream_wait);

/* One caller's question; lives in the caller's memory until its answer or its end. */
struct bt_upstream_wait {
    TAILQ_ENTRY(bt_upstream_wait) link;
    struct bt_upstream_waits *list; /* it is in; NULL: idle */
    void (*done)(void *context, const struct bt_upstream_result *result);
    void *context;
};

/* Asks for a stream. The answer may come from within this call. The wait must
 * be idle. */
void bt_upstreams_ask(struct bt_upstreams *upstreams, const struct bt_upstream_target *target,
                      struct bt_upstream_wait *wait,
                      void (*done)(void *context, const struct bt_upstream_result *result), void *context);
void bt_upstream_wait_cancel(struct bt_upstream_wait *wait); /* accepts an idle one */

/* What an agent is allowed changed: none of its connections is used again. */
void bt_upstreams_retire(struct bt_upstreams *upstreams, const struct bt_agent *agent);
/* Adds about how many bytes connections take to what their agents hold; of those with sessions. */
void bt_upstreams_weigh(struct bt_upstreams *upstreams);
/* Closes all of an agent's, which has no request under way. */
void bt_upstreams_close_all(struct bt_upstreams *upstreams, const struct bt_agent *agent);
/* Closes what carries nothing. */
void bt_upstreams_close_idle(struct bt_upstreams *upstreams);
/* Closes what was idle for too long and what does not come up. Once a second. */
void bt_upstreams_sweep(struct bt_upstreams *upstreams);

#endif
