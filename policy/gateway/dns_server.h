/* The agents' DNS, on UDP and TCP port 53: allowed names get the address at which the asking agent sees its
 * gateway, everything else is refused. No agent's question ever goes upstream. Called by main.c.
 */
#ifndef BERTH_POLICY_GATEWAY_DNS_SERVER_H
#define BERTH_POLICY_GATEWAY_DNS_SERVER_H

#include "policy/gateway/gateway.h"

struct bt_dns_server;

/* Takes over a bound UDP socket (with IP_PKTINFO set). */
struct bt_dns_server *bt_dns_server_new(struct bt_gateway *gateway, int udp_fd);
struct bt_dns_server *bt_dns_server_free(struct bt_dns_server *server);

/* Takes over an accepted TCP connection. */
void bt_dns_server_accept(struct bt_dns_server *server, evutil_socket_t fd, uint32_t address);

#endif
