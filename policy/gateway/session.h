/* One connection of an agent, from its first byte to its last, on the proxy port or a transparent one.
 *
 * session.c holds its life, its stages and the relay; session_http.c reads requests and rewrites heads;
 * session_tls.c reads ClientHellos. Every function that may end the session is the last thing its caller does
 * with it.
 */
#ifndef BERTH_POLICY_GATEWAY_SESSION_H
#define BERTH_POLICY_GATEWAY_SESSION_H

#include "lib/memory.h"
#include "policy/gateway/dial.h"
#include "policy/gateway/hello.h"
#include "policy/gateway/http.h"

#define BT_SESSION_BUFFER (64U * 1024) /* in each direction */
#define BT_SESSION_START_MS 30000      /* for a head, a ClientHello */

enum bt_entrance {
    BT_ENTRANCE_PROXY, /* 8119: token and address */
    BT_ENTRANCE_HTTP,  /* 80: address alone, Host names the target */
    BT_ENTRANCE_TLS,   /* 443: address alone, SNI names the target */
};

enum bt_stage {
    BT_STAGE_HEAD,    /* a request head is awaited */
    BT_STAGE_HELLO,   /* a ClientHello is awaited (or, in a CONNECT tunnel, a plain request) */
    BT_STAGE_WAIT,    /* identity or dialling is under way */
    BT_STAGE_HTTP,    /* one request and its response pass */
    BT_STAGE_RELAY,   /* bytes pass unread */
    BT_STAGE_CLOSING, /* the last answer leaves */
};

struct bt_session {
    TAILQ_ENTRY(bt_session) link;
    struct bt_gateway *gateway;
    struct bt_agent *agent; /* the entry of its source address; never NULL */
    enum bt_entrance entrance;
    enum bt_stage stage;
    struct bufferevent *client;
    struct bufferevent *upstream; /* NULL until dialled */
    struct event *deadline;
    struct bt_agent_waiter waiter;
    struct bt_dial *dial;

    /* Whom the session was authorised for, to see that it changed. */
    bool is_authorised;
    uint16_t slot;
    uint32_t generation;

    /* The target: one buffer, matched and dialled. */
    char host[BT_HOST_NAME_SIZE];
    uint16_t port;
    char shown_host[BT_HOST_NAME_SIZE]; /* as asked, for records and refusals */
    char method[33];
    int target_error; /* of bt_http_authority_parse */
    struct bt_verdict verdict;
    uint32_t dialled;

    bool is_connect;          /* the current request is CONNECT, or a CONNECT tunnel stands */
    bool is_tunnel_open;      /* 200 was sent */
    bool is_reusable;         /* the connection may carry another request after a refusal */
    struct bt_buffer request; /* head for the upstream */
    struct bt_http_follower follower;
    bool is_request_done; /* all of its body went upstream */
    bool has_response_head;

    bool is_client_finished, is_upstream_finished; /* EOF was read */
    bool is_client_shut, is_upstream_shut;         /* FIN was sent */
    bool is_reset;                                 /* upstream broke off: the client must see that */
};

/* Takes over an accepted socket. */
void bt_session_start(struct bt_gateway *gateway, evutil_socket_t fd, uint32_t address,
                      enum bt_entrance entrance);
void bt_session_end(struct bt_session *session);
/* Ends the sessions of an agent that its present registration does not allow any more. */
void bt_session_recheck(struct bt_gateway *gateway, struct bt_agent *agent);

/* Between session*.c: */
void bt_session_set_deadline(struct bt_session *session, int delay_ms); /* 0: none */
/* Asks who this is, holds the target against the policy, then dials or refuses. */
void bt_session_identify(struct bt_session *session, const char *digest);
void bt_session_relay(struct bt_session *session); /* from now on bytes pass unread */
void bt_session_close_after_flush(struct bt_session *session);
void bt_session_watch_upstream(struct bt_session *session); /* callbacks and watermarks */
void bt_session_record(struct bt_session *session, bool is_allowed, const char *rule, const char *reason);
/* Records a refusal and answers it as the entrance and stage can: JSON, a TLS alert, or an end. */
struct bt_refusal {
    unsigned status; /* of HTTP */
    const char *rule, *reason, *hint;
};
void bt_session_refuse(struct bt_session *session, const struct bt_refusal *refusal);

/* session_http.c */
void bt_session_http_read(struct bt_session *session);     /* BT_STAGE_HEAD: bytes came */
void bt_session_http_start(struct bt_session *session);    /* upstream is there: sends the request */
void bt_session_http_body(struct bt_session *session);     /* BT_STAGE_HTTP: bytes from the client */
void bt_session_http_response(struct bt_session *session); /* BT_STAGE_HTTP: bytes from upstream */
void bt_session_http_refuse(struct bt_session *session, const struct bt_refusal *refusal);
void bt_session_http_challenge(struct bt_session *session, const char *reason); /* 407 */

/* session_tls.c */
void bt_session_hello_read(struct bt_session *session);
void bt_session_tls_alert(struct bt_session *session); /* access_denied, then an end */

#endif
