/* Between exchange*.c: one exchange. */
#ifndef BERTH_POLICY_GATEWAY_EXCHANGE_INTERNAL_H
#define BERTH_POLICY_GATEWAY_EXCHANGE_INTERNAL_H

#include "policy/gateway/approvals.h"
#include "policy/gateway/exchange.h"
#include "policy/gateway/filter.h"
#include "policy/gateway/message.h"
#include "policy/gateway/upstream.h"

/* One direction. */
struct bt_half {
    struct evbuffer *waiting; /* taken from the source, no room yet at the target; NULL: never needed */
    size_t owed;              /* given by the source and not yet consumed there */
    struct bt_kept_message *trailers;
    struct bt_filter *filter; /* what passes goes through it into waiting; NULL: none */
    int64_t filtered_ms;      /* when it last got something */
    struct evbuffer *behind;  /* came while the exchange was held; NULL: nothing */
    bool is_ended;            /* the source said all */
    bool is_sent;             /* the target was told so */
};

struct bt_exchange {
    TAILQ_ENTRY(bt_exchange) link;
    struct bt_session *session;
    struct bt_stream *agent;    /* the agent's stream */
    struct bt_stream *upstream; /* NULL: none yet */
    struct bt_agent_waiter waiter;
    struct bt_upstream_wait wait;
    struct bt_kept_message *head;     /* the request as it came */
    struct bt_kept_message *filtered; /* as its filter lets it pass; NULL: as it came */
    struct bt_verdict verdict;
    char host[BT_HOST_NAME_SIZE]; /* matched and dialled */
    uint16_t port;
    char shown_host[BT_SHOWN_HOST_SIZE];
    char method[33];
    char authority[BT_HOST_NAME_SIZE + 8]; /* as it goes upstream */
    uint32_t address;                      /* dialled */
    /* Whom it was authorised for, to see that it changed. */
    uint16_t slot;
    uint32_t generation;
    uint64_t policy_version; /* the filters look for the secrets of this one */
    int64_t since_ms;
    size_t interim_size; /* of the interim answers so far */
    int64_t left_ms;     /* since when its client's direction is over and its host silent; 0: not so */
    struct bt_half request, response;
    bool is_authorised; /* the policy allowed it once */
    struct bt_approval_wait approval;
    char asked[160];         /* what its owner is, or was last, asked about */
    bool is_held;            /* until its owner answered: nothing of the request goes on */
    bool is_upstream_asked;  /* for the first time */
    bool is_complete;        /* the request has no body */
    bool is_asking_protocol; /* the request wants another protocol (WebSocket) */
    bool is_asking_websocket;
    bool is_body_used; /* some of its body went upstream: it cannot be sent again */
    bool is_reused;    /* the upstream connection carried others before */
    bool is_retried;
    bool is_raw;       /* another protocol, after 101 */
    bool has_response; /* its head went to the agent */
    bool is_ending;
};

/* exchange_flow.c: bytes. */
extern const struct bt_stream_events bt_exchange_agent_events, bt_exchange_upstream_events;
void bt_exchange_pump_request(struct bt_exchange *exchange);
/* The exchange may be over afterwards. */
void bt_exchange_pump_response(struct bt_exchange *exchange);

/* exchange_filter.c: those that return bool say whether the exchange goes on now; false: it was refused or
 * cut, and is gone, or it is held. */
/* Makes the filters of an allowed request and shows them its head, as it will be sent but for what is
 * injected. */
bool bt_exchange_filter_request(struct bt_exchange *exchange, struct bt_message *head);
/* exchange->response.filter is there. */
bool bt_exchange_filter_response(struct bt_exchange *exchange, struct bt_message *head);
/* half->filter is there. What may pass is added to half->waiting. */
bool bt_exchange_filter_data(struct bt_exchange *exchange, struct bt_half *half, const void *data,
                             size_t length);
/* trailers: NULL, or changed as needed. Without a filter: nothing to do. */
bool bt_exchange_filter_end(struct bt_exchange *exchange, struct bt_half *half, struct bt_message *trailers);
/* The end of a request that came before it might be looked at. */
bool bt_exchange_filter_kept_end(struct bt_exchange *exchange, struct bt_half *half);
/* Its owner said yes. */
bool bt_exchange_filter_resume(struct bt_exchange *exchange);
/* Once a second: what a filter holds goes on, into half->waiting, when its source is silent. */
bool bt_exchange_filter_pause(struct bt_exchange *exchange, struct bt_half *half, int64_t now_ms);
void bt_exchange_filters_free(struct bt_exchange *exchange);

/* exchange_hold.c */
/* Asks the owner about what the request's filter found. The exchange may be over afterwards. */
void bt_exchange_hold(struct bt_exchange *exchange);
/* Keeps what comes of a request that is held. */
void bt_exchange_hold_data(struct bt_half *half, const void *data, size_t length);

/* exchange.c */
/* After more of a body came: goes on when enough of it was looked at. The exchange may be over afterwards. */
void bt_exchange_gather(struct bt_exchange *exchange);
/* The head as a filter is shown it: as it will be sent but for what is injected. */
void bt_exchange_get_shown_head(const struct bt_exchange *exchange, struct bt_message *ret_head);
/* A request that its filter let through, or its owner. The exchange may be over afterwards. */
void bt_exchange_resume(struct bt_exchange *exchange);
void bt_exchange_take_head(struct bt_exchange *exchange, const struct bt_message *head);
/* Each is the last thing a caller does with the exchange. */
void bt_exchange_refuse(struct bt_exchange *exchange, const struct bt_refusal *refusal);
void bt_exchange_end(struct bt_exchange *exchange);
/* The upstream stream is lost before a response; it was released. */
void bt_exchange_upstream_lost(struct bt_exchange *exchange, enum bt_abort reason);
void bt_exchange_record(struct bt_exchange *exchange, bool is_allowed, const char *rule, const char *reason);

#endif
