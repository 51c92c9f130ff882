/* The host's side of the orchestrator's API v1 (policy/API.md), for keepers and commands. libcurl, no proxy,
 * no redirects, deadlines. Every call is one request; bodies are JSON (jansson).
 */
#ifndef BERTH_POLICY_CLIENT_ORCHESTRATOR_CLIENT_H
#define BERTH_POLICY_CLIENT_ORCHESTRATOR_CLIENT_H

#include <jansson.h>

#include "lib/error.h"

struct bt_orchestrator {
    uint32_t address;     /* host byte order */
    uint16_t port;        /* BT_ORCHESTRATOR_PORT */
    const char *host_key; /* hex; secret */
};

struct bt_registration {
    uint16_t slot;
    uint32_t generation;
    const char *name;
    uint32_t address;         /* the agent guest's */
    uint32_t gateway_address; /* where that agent sees its gateway: its slot's host address */
    const char *token;        /* identity token; who has it is found by its SHA-256 */
    const json_t *policy;     /* policy/POLICY.md */
    /* Secret: what the policy's credentials are worth, by name, and a text that is nowhere but in this agent
     * (NULL: none); the key that they and the token are kept under, so that gateways can look for them (64
     * hex digits, NULL only when there is neither: the token is not sent then). */
    const json_t *credentials;
    const char *canary;
    const char *credential_key;
};

/* Waits until the orchestrator answers GET /v1/health, at most deadline_ms; wait_fd as in bt_guest_connect.
 */
int bt_orchestrator_wait(const struct bt_orchestrator *orchestrator, int deadline_ms, int wait_fd,
                         struct bt_error *error);
int bt_orchestrator_register(const struct bt_orchestrator *orchestrator,
                             const struct bt_registration *registration, struct bt_error *error);
int bt_orchestrator_unregister(const struct bt_orchestrator *orchestrator, uint16_t slot, uint32_t generation,
                               struct bt_error *error);
/* GET /v1/agents, /v1/counters/{slot}, /v1/decisions?slot=&generation=&after=ID&limit=: owned JSON. */
int bt_orchestrator_get(const struct bt_orchestrator *orchestrator, const char *path, json_t **ret_document,
                        struct bt_error *error);
/* The same, for who would rather do without than wait longer. */
int bt_orchestrator_get_within(const struct bt_orchestrator *orchestrator, const char *path, long timeout_ms,
                               json_t **ret_document, struct bt_error *error);
/* PUT of a document that is not a registration: /v1/approvals/{number}. -ENOENT: there is nothing at that
 * path (any more). */
int bt_orchestrator_put(const struct bt_orchestrator *orchestrator, const char *path, const json_t *document,
                        struct bt_error *error);
/* Whether a gateway has fetched a token and reported within the last seconds (health document's
 * "gateway_seen"). */
int bt_orchestrator_wait_gateway(const struct bt_orchestrator *orchestrator, int deadline_ms, int wait_fd,
                                 struct bt_error *error);

#endif
