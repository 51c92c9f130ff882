/* A connection to an allowed host: the name resolved once, every answer checked, and the checked address
 * dialled. Called by upstream.c and session_pass.c after the policy said yes.
 *
 * With a parent proxy the name goes to it unresolved: what it resolves to is then that proxy's affair.
 */
#ifndef BERTH_POLICY_GATEWAY_DIAL_H
#define BERTH_POLICY_GATEWAY_DIAL_H

#include "policy/gateway/channel.h"
#include "policy/gateway/gateway.h"

struct bt_dial;

struct bt_dial_result {
    struct bt_channel *channel; /* connected, without an owner of its events; the callee's; NULL: it failed */
    uint32_t address;           /* dialled, 0 when none was */
    const char *rule;           /* when it failed: "resolve-failed", "private-answer", "connect-failed" */
    char reason[160];
};
typedef void bt_dial_done(void *context, const struct bt_dial_result *result);

/* is_tunnel: through a parent proxy, by CONNECT. The callback comes later, once, unless it is cancelled. */
struct bt_dial *bt_dial_start(struct bt_gateway *gateway, struct bt_agent *agent, const char *host,
                              uint16_t port, bool may_be_private, bool is_tunnel, bt_dial_done *done,
                              void *context);
struct bt_dial *bt_dial_cancel(struct bt_dial *dial); /* returns NULL, accepts NULL */

/* No Nagle delay, and probes after a minute of silence, so that a vanished peer ends its tunnel. */
void bt_dial_tune_socket(evutil_socket_t fd);

#endif
