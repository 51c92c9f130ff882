/* Agents as people and programs see them: one wording for list, status, rm and cleanup.
 */
#ifndef BERTH_FRONTEND_DESCRIBE_H
#define BERTH_FRONTEND_DESCRIBE_H

#include <jansson.h>

#include "frontend/output.h"
#include "frontend/state.h"
#include "ipc/wire/pool.h"

/* An agent as it is now (liveness asked from the kernel). pool: of the helper, for the guest's address; NULL
 * = not known, and no address. A new reference. */
json_t *bt_describe_agent(const struct bt_agent *agent, const struct bt_pool *pool);
enum bt_color bt_describe_color(enum bt_agent_status status);
/* What to do about this status, a sentence, or NULL. */
const char *bt_describe_advice(enum bt_agent_status status);
/* ISO 8601 in UTC; empty for 0. */
void bt_describe_time(int64_t seconds, char ret_text[BT_OUTPUT_TEXT_SIZE]);

/* What a route (its keys but the host, policy/POLICY.md) is for, in a line: "POST /v1/files; credential
 * example". Owned by the caller. */
char *bt_describe_rules(const json_t *rules);

#endif
