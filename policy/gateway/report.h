/* What the gateway tells the orchestrator: one record a decision, and each agent's counters. Batched,
 * bounded; records that do not fit are counted, and the count is itself a record.
 *
 * Called by session.c and dns_server.c.
 */
#ifndef BERTH_POLICY_GATEWAY_REPORT_H
#define BERTH_POLICY_GATEWAY_REPORT_H

#include "policy/gateway/agents.h"

struct bt_report;

struct bt_decision {
    const char *kind;   /* "connect", "http", "tls", "dns", "gateway" */
    const char *host;   /* as asked; bytes that are not printable ASCII become '?' */
    uint16_t port;      /* 0: none */
    const char *method; /* of a request, else "" */
    const char *path;   /* of a request that is recorded with it, without the query; else NULL */
    bool is_allowed;
    const char *rule;
    const char *reason;
    const char *granted_by;
    uint32_t address; /* dialled; 0: none */
};

/* worker: whose counters they are (workers.h). */
struct bt_report *bt_report_new(struct event_base *base, struct bt_control *control, struct bt_agents *agents,
                                unsigned worker);
struct bt_report *bt_report_free(struct bt_report *report);

/* Queues a record about an agent, known or not, and counts it as allowed or refused. */
void bt_report_decision(struct bt_report *report, struct bt_agent *agent, const struct bt_decision *decision);

/* Tells that counters of an agent changed, so that they are sent within BT_REPORT_FLUSH_MS. */
#define BT_REPORT_FLUSH_MS 100
void bt_report_counters(struct bt_report *report, struct bt_agent *agent);

#endif
