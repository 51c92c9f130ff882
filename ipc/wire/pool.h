/* The network pool: what a slot number means. Pure arithmetic; engine, client and tests share it.
 *
 * TAP slot i has host address base + 2i and guest address base + 2i + 1, a /31 (RFC 3021). Bridge slot i has
 * the /29 at base + 8i: .1 is the host, .2 the gateway's container, .3 that of an agent or orchestrator.
 */
#ifndef BERTH_IPC_WIRE_POOL_H
#define BERTH_IPC_WIRE_POOL_H

#include "ipc/base/base.h"

#define BT_POOL_SLOTS_MAX 1024U
#define BT_POOL_SLOTS_DEFAULT 256U
#define BT_POOL_TAP_BASE_DEFAULT 0x0af30000U    /* 10.243.0.0 */
#define BT_POOL_BRIDGE_BASE_DEFAULT 0x0af20000U /* 10.242.0.0 */
#define BT_POOL_BRIDGE_BLOCK 8192U              /* addresses of all bridges: a /19 */
#define BT_ENVIRONMENTS 16U
#define BT_INTERFACE_NAME_SIZE 16 /* IFNAMSIZ */
#define BT_ORCHESTRATOR_PORT 7400U

enum bt_kind { BT_KIND_TAP_FD = 0, BT_KIND_TAP_NAMED = 1, BT_KIND_BRIDGE = 2, BT_KIND_PF = 3, BT_KIND_MAX };
enum bt_role { BT_ROLE_AGENT = 0, BT_ROLE_GATEWAY = 1, BT_ROLE_ORCHESTRATOR = 2, BT_ROLE_MAX };

struct bt_pool {
    uint32_t tap_base;    /* host byte order, /21 aligned at least to 2 * slots */
    uint32_t bridge_base; /* host byte order */
    uint16_t slots;       /* 1..BT_POOL_SLOTS_MAX */
};

/* Ports on a slot's host address that are forwarded to the gateway of the same uid and environment.
 * UDP only for 53. */
#define BT_GATEWAY_PORT_PROXY 8119U
#define BT_GATEWAY_PORT_DNS 53U
#define BT_GATEWAY_PORT_HTTP 80U
#define BT_GATEWAY_PORT_HTTPS 443U
#define BT_GATEWAY_PORT_GIT 9420U
#define BT_GATEWAY_PORT_APPROVALS 9100U

/* What a slot is on the network, by kind and role of its lease. Addresses in host byte order. */
struct bt_place {
    char interface_name[BT_INTERFACE_NAME_SIZE]; /* NUL-padded */
    uint8_t prefix_length;                       /* 31; of a bridge 29 */
    uint32_t host_address;                       /* of the interface itself */
    uint32_t guest_address;                      /* whose lease it is */
    uint32_t gateway_address; /* bridges: the gateway's container, also where it is the guest; else 0 */
    uint8_t host_mac[6];
    uint8_t guest_mac[6]; /* in a bridge 02:42 and the address, which container engines give by themselves */
    uint8_t gateway_mac[6]; /* zero without gateway_address */
};

/* -ERANGE: no such slot. -EOPNOTSUPP: a kind without an interface of ours (pf). */
int bt_pool_place(const struct bt_pool *pool, enum bt_kind kind, enum bt_role role, uint16_t slot,
                  struct bt_place *ret_place) BT_MUST_CHECK;

/* The parts of a TAP's place. All of these return -ERANGE for a slot outside the pool and touch their outputs
 * only on success. */
int bt_pool_tap_addresses(const struct bt_pool *pool, uint16_t slot, uint32_t *ret_host,
                          uint32_t *ret_guest) BT_MUST_CHECK;
int bt_pool_tap_name(const struct bt_pool *pool, uint16_t slot,
                     char ret_name[BT_INTERFACE_NAME_SIZE]) BT_MUST_CHECK;
int bt_pool_tap_macs(const struct bt_pool *pool, uint16_t slot, uint8_t ret_host[6],
                     uint8_t ret_guest[6]) BT_MUST_CHECK;

#endif
