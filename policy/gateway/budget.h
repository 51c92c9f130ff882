/* What all agents together may make this process hold, so that a few of them cannot take the memory of all.
 *
 * Each connection, request and agent has bounds of its own (README.md, Bounds); their sum is more than there
 * is. Above three quarters of the budget an agent that holds more than an equal share gets no further
 * connections and streams; above all of it, kept connections to hosts that carry nothing are closed, then the
 * heaviest connections of the heaviest agents are cut until three quarters are left. Each is a record.
 *
 * Called by session*.c and main.c. What an agent holds is estimated, and only when memory is short.
 */
#ifndef BERTH_POLICY_GATEWAY_BUDGET_H
#define BERTH_POLICY_GATEWAY_BUDGET_H

#include "policy/gateway/gateway.h"

#define BT_BUDGET_REASON "the gateway's memory is short, and this agent holds more than its share of it"

/* About what TLS takes for a connection (OpenSSL 3), in bytes. */
#define BT_BUDGET_TLS (24U * 1024)

/* The budget of each of so many processes in a guest or container of memory bytes; 0: that is too little. */
size_t bt_budget_of(uint64_t memory, unsigned workers);

/* Whether the agent may begin something more. */
bool bt_budget_allows(struct bt_gateway *gateway, const struct bt_agent *agent);

/* Cuts what must go. From the event loop alone: any session may end, with its requests and connections. */
void bt_budget_enforce(struct bt_gateway *gateway);

#endif
