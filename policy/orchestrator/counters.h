/* What the gateway counted for each agent, as totals since the agent's registration. In memory only: they
 * answer "did anything go upstream since", not history. Called by api.c.
 */
#ifndef BERTH_POLICY_ORCHESTRATOR_COUNTERS_H
#define BERTH_POLICY_ORCHESTRATOR_COUNTERS_H

#include <jansson.h>

#include "ipc/base/base.h"
#include "policy/rules/ports.h"

struct bt_counters; /* one entry a slot */

struct bt_counters *bt_counters_new(void);
struct bt_counters *bt_counters_free(struct bt_counters *counters);

/* Takes one entry of POST /v1/counters at now_ms (monotonic). Returns 0 or -EINVAL. */
int bt_counters_report(struct bt_counters *counters, const json_t *entry, int64_t now_ms);

/* An owned object as GET /v1/counters/{slot} shows it; zeros when this generation was not reported. */
json_t *bt_counters_get(const struct bt_counters *counters, uint16_t slot, uint32_t generation,
                        int64_t now_ms);

#endif
