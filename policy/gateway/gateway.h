/* What the parts of the gateway share: its settings and its one instance. */
#ifndef BERTH_POLICY_GATEWAY_GATEWAY_H
#define BERTH_POLICY_GATEWAY_GATEWAY_H

#include <sys/queue.h>

#include "policy/gateway/agents.h"
#include "policy/gateway/report.h"
#include "policy/gateway/resolver.h"

struct bt_parent_proxy {
    bool is_set;
    char host[BT_HOST_NAME_SIZE]; /* a name, or a dotted quad */
    uint16_t port;
    char authorization[512]; /* base64 of user:password for Proxy-Authorization, or empty; secret */
};

struct bt_address_block {
    uint32_t base, mask;
};

struct bt_gateway_settings {
    json_t *document;           /* what the strings borrow from */
    struct bt_buffer authority; /* whose leaves agents are shown: certificate and private key, PEM; wiped once
                                 * they are in use */
    struct bt_buffer anchors;   /* what upstreams are verified against, PEM */
    uint32_t orchestrator_address;
    uint16_t orchestrator_port;
    const char *secret;
    char *resolvers; /* comma-separated, for bt_resolver_new */
    struct bt_parent_proxy parent;
    uint32_t listen_address;
    unsigned workers;                /* 1 to BT_SERVICE_WORKERS_MAX */
    size_t budget;                   /* of memory, for each worker (budget.h) */
    struct bt_address_block pool[2]; /* of TAP and of bridge slots: never dialled */
};

int bt_gateway_settings_load(const char *path, struct bt_gateway_settings *ret_settings,
                             struct bt_error *error);
void bt_gateway_settings_clear(struct bt_gateway_settings *settings);

struct bt_gateway {
    struct bt_gateway_settings settings;
    struct event_base *base;
    struct bt_control *control;
    struct bt_agents *agents;
    struct bt_approvals *approvals;
    struct bt_report *report;
    struct bt_resolver *resolver;
    struct bt_channel_loop *channels;
    struct bt_tls *tls;
    struct bt_upstreams *upstreams;
    TAILQ_HEAD(bt_session_list, bt_session) sessions;
    size_t session_count;
    size_t session_limit;
    size_t budget; /* of memory, of this process; what follows is budget.c's: */
    int64_t weighed_ms;
    size_t holder_count; /* agents with sessions, then */
    unsigned worker;     /* which one this process is */
};

/* Whether a resolved address may be dialled: NULL, or the reason why not. */
const char *bt_gateway_check_address(const struct bt_gateway *gateway, uint32_t address, bool may_be_private);

#endif
