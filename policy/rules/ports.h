/* The ports that the programs of policy/ serve, and berth's default address blocks. The firewall's side of
 * the same numbers is ipc/wire/pool.h; tests/unit/test_rules.c holds the two together.
 */
#ifndef BERTH_POLICY_RULES_PORTS_H
#define BERTH_POLICY_RULES_PORTS_H

#define BT_PORT_PROXY 8119
#define BT_PORT_DNS 53
#define BT_PORT_HTTP 80
#define BT_PORT_HTTPS 443
#define BT_PORT_ORCHESTRATOR 7400

/* Slot numbers of one registry are below this: TAP slots, then bridge slots. */
#define BT_SLOTS_MAX 2048

#define BT_BLOCK_TAP 0x0af30000U    /* 10.243.0.0/21: 1024 slots of two addresses */
#define BT_BLOCK_BRIDGE 0x0af20000U /* 10.242.0.0/19 */

#endif
