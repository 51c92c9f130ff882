/* Which DNS servers a gateway may ask: the configured ones, else the host's real upstream ones. */
#ifndef BERTH_FRONTEND_RESOLVERS_H
#define BERTH_FRONTEND_RESOLVERS_H

#include "lib/error.h"
#include "lib/memory.h"

/* Fills ret_resolvers with IPv4 addresses ("a.b.c.d" or "a.b.c.d:port"). configured: gateway.resolvers of
 * config.yaml. Reads /etc/resolv.conf (resolv.conf(5)), and systemd-resolved's own file when that names its
 * stub. A resolver on the host's loopback cannot be reached from the gateway: -EHOSTUNREACH, naming it and
 * the setting. */
int bt_resolvers_find(const struct bt_list *configured, struct bt_list *ret_resolvers,
                      struct bt_error *error);

#endif
