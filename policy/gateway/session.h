/* One connection of an agent, from its first byte to its last, on the proxy port or a transparent one.
 *
 * session.c holds its life and limits; session_http.c gives its requests to exchanges (exchange.h);
 * session_connect.c answers CONNECT; session_tls.c reads ClientHellos and opens TLS; session_pass.c relays
 * what a route passes through. Every function that may end the session is the last thing its caller does with
 * it.
 */
#ifndef BERTH_POLICY_GATEWAY_SESSION_H
#define BERTH_POLICY_GATEWAY_SESSION_H

#include "lib/memory.h"
#include "policy/gateway/dial.h"
#include "policy/gateway/hello.h"
#include "policy/gateway/http1_codec.h"
#include "policy/gateway/http2_codec.h"
#include "policy/gateway/refusal.h"

#define BT_SESSION_START_MS 30000 /* for a head, a ClientHello, a handshake */
#define BT_SESSION_IDLE_MS 900000 /* between two requests */
#define BT_SESSION_LINGER_MS 2000 /* for the client's end, after the last answer */
#define BT_SESSION_LEAVE_MS 30000 /* for the last answer to leave */
/* Of a connection that is passed through: for bytes in one direction after the other one ended. Who ended it
 * may have gone for good, which shows only when something is sent to it. */
#define BT_SESSION_HALF_MS 900000

enum bt_entrance {
    BT_ENTRANCE_PROXY, /* 8119: token and address */
    BT_ENTRANCE_HTTP,  /* 80: address alone, Host names the target */
    BT_ENTRANCE_TLS,   /* 443: address alone, SNI names the target */
};

enum bt_stage {
    BT_STAGE_HTTP,      /* requests come; the codec has the channel */
    BT_STAGE_HELLO,     /* a ClientHello is awaited (or, in a CONNECT tunnel, a plain request) */
    BT_STAGE_WAIT,      /* identity or dialling is under way */
    BT_STAGE_HANDSHAKE, /* of TLS, with the agent */
    BT_STAGE_PASS,      /* bytes pass unread */
    BT_STAGE_ALERT,     /* a TLS alert leaves */
};

struct bt_session {
    TAILQ_ENTRY(bt_session) link;
    struct bt_gateway *gateway;
    struct bt_agent *agent; /* the entry of its source address; never NULL */
    enum bt_entrance entrance;
    enum bt_stage stage;
    size_t weight;              /* bytes, as budget.c estimated it last */
    int64_t since_ms;           /* when the stage, or the codec's state, began; passed through: last byte */
    struct bt_channel *channel; /* the agent's, while no codec has it */
    struct bt_http1 *http1;     /* one of the two, when requests come */
    struct bt_http2 *http2;
    enum bt_http1_state http1_state; /* at the last sweep */
    TAILQ_HEAD(bt_exchanges, bt_exchange) exchanges;

    /* Who asks: the token of the latest head on the proxy port, or of the CONNECT. */
    bool has_digest;
    char digest[BT_DIGEST_TEXT_SIZE];
    const char *token_error; /* NULL, or what is wrong with the token that came */
    struct bt_agent_waiter waiter;

    /* A connection that is for one host: a tunnel, or TLS on port 443. One buffer, matched and dialled. */
    bool is_fixed;
    bool is_tunnel; /* by CONNECT */
    bool is_tls;    /* intercepted */
    char host[BT_HOST_NAME_SIZE];
    uint16_t port;
    char shown_host[BT_SHOWN_HOST_SIZE];
    struct bt_verdict verdict;  /* on the connection */
    struct bt_stream *connect;  /* the CONNECT that is not answered yet */
    struct bt_refusal standing; /* rule not NULL: what every request in this connection is answered */

    /* tls: pass */
    bool is_pass_allowed; /* for whom: */
    uint16_t slot;
    uint32_t generation;
    uint32_t dialled;
    struct bt_dial *dial;
    struct bt_channel *upstream;
    bool is_client_finished, is_upstream_finished; /* towards it, the end was sent */

    /* The host of the last record of something allowed. */
    char recorded_host[BT_HOST_NAME_SIZE];
    uint16_t recorded_port;
};

/* A TLS record with a fatal access_denied (RFC 8446, 6.2), of TLS 1.2 as every client reads it: all that can
 * be said where there is no handshake. */
static const uint8_t bt_session_alert[] = {21, 3, 3, 0, 2, 2, 49};

/* Takes over an accepted socket. */
void bt_session_start(struct bt_gateway *gateway, evutil_socket_t fd, uint32_t address,
                      enum bt_entrance entrance);
void bt_session_end(struct bt_session *session);
/* Cuts what an agent's present registration does not allow any more. */
void bt_session_recheck(struct bt_gateway *gateway, struct bt_agent *agent);
/* Lets what is under way come to its end, and ends the rest. */
void bt_session_drain(struct bt_gateway *gateway);
/* Ends what took too long. Once a second. */
void bt_session_sweep(struct bt_gateway *gateway);

/* Between session*.c and exchange.c: */
const char *bt_session_kind(const struct bt_session *session); /* of a record */
void bt_session_record(struct bt_session *session, bool is_allowed, const char *rule, const char *reason);
void bt_session_identity_refusal(enum bt_identity identity, struct bt_refusal *ret_refusal);
void bt_session_set_stage(struct bt_session *session, enum bt_stage stage);
/* About how many bytes it takes, with its requests. */
size_t bt_session_weight(const struct bt_session *session);
/* Ends with a reset towards the agent, so that a cut is never taken for an end. */
void bt_session_cut(struct bt_session *session);

/* session_http.c: the channel's requests, in clear or under TLS, become exchanges. */
void bt_session_serve(struct bt_session *session);

/* session_connect.c: a stream that is a CONNECT; its head is about to come. */
void bt_session_connect(struct bt_session *session, struct bt_stream *stream);

/* session_tls.c: what comes on the channel is a ClientHello, or, in a tunnel, a plain request. */
void bt_session_await_hello(struct bt_session *session);

/* session_pass.c: bt_session_pass_dial on the way to a connection that is passed through: done tells how it
 * went; bt_session_pass begins to relay. */
void bt_session_pass_dial(struct bt_session *session, bt_dial_done *done);
void bt_session_pass(struct bt_session *session);

#endif
