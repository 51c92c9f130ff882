/* Names to IPv4 addresses, through c-ares on the event loop, from the configured resolvers only (no hosts
 * file, no search list). Called by dial.c.
 */
#ifndef BERTH_POLICY_GATEWAY_RESOLVER_H
#define BERTH_POLICY_GATEWAY_RESOLVER_H

#include <event2/event.h>

#include "lib/error.h"

#define BT_RESOLVER_ADDRESSES_MAX 16

struct bt_resolver;

/* servers: comma-separated "address[:port]". */
int bt_resolver_new(struct event_base *base, const char *servers, struct bt_resolver **ret_resolver,
                    struct bt_error *error);
struct bt_resolver *bt_resolver_free(struct bt_resolver *resolver);

struct bt_resolve; /* one question, until its callback or its cancellation */

/* reason: NULL, or why there is no address; addresses in host byte order. The callback always comes later. */
typedef void bt_resolve_done(void *context, const uint32_t *addresses, size_t count, const char *reason);
struct bt_resolve *bt_resolver_ask(struct bt_resolver *resolver, const char *host, bt_resolve_done *done,
                                   void *context);
void bt_resolve_cancel(struct bt_resolve *resolve); /* the callback will not come */

#endif
