/* API v1 (policy/API.md) over libevent's HTTP server. Called by main.c. It answers; it opens no connection.
 */
#ifndef BERTH_POLICY_ORCHESTRATOR_API_H
#define BERTH_POLICY_ORCHESTRATOR_API_H

#include <event2/http.h>

#include "policy/orchestrator/approval_queue.h"
#include "policy/orchestrator/counters.h"
#include "policy/orchestrator/jwt.h"
#include "policy/orchestrator/registry.h"
#include "policy/orchestrator/vault.h"

#define BT_API_VERSION "1"
#define BT_API_BODY_MAX (1024 * 1024)

struct bt_api {
    struct bt_registry *registry; /* borrowed, as are the others */
    struct bt_counters *counters;
    struct bt_vault *vault;
    struct bt_queue *queue;
    const char *host_key_sha256;
    const char *gateway_secret_sha256;
    uint8_t jwt_key[BT_JWT_KEY_SIZE];
    int64_t gateway_seen_ms; /* monotonic; -1: never */
};

/* Sets limits, methods and the handler on a server. api must outlive it. */
void bt_api_attach(struct bt_api *api, struct evhttp *server);

/* What handlers share (api.c): */
int64_t bt_api_now_ms(void); /* monotonic */
/* Sends a document (taken over) or an error; every handler ends in one of the two. */
void bt_api_reply(struct evhttp_request *request, json_t *document);
void bt_api_refuse(struct evhttp_request *request, int status, const char *message, const char *hint);
void bt_api_refuse_error(struct evhttp_request *request, const struct bt_error *error);
/* The body as JSON, owned; NULL after it has answered with 400. */
json_t *bt_api_body(struct evhttp_request *request);

/* Handlers. Parts of the path after the resource's name, split at '/', or NULL. */
typedef void bt_api_handler(struct bt_api *api, struct evhttp_request *request, char *const parts[2]);
bt_api_handler bt_api_put_agent, bt_api_delete_agent, bt_api_get_agents, bt_api_get_counters,
    bt_api_get_decisions, bt_api_get_metrics, bt_api_get_approvals, bt_api_put_approval;
bt_api_handler bt_api_post_token, bt_api_post_resolve, bt_api_post_decisions, bt_api_post_counters,
    bt_api_post_approvals, bt_api_post_held;

#endif
