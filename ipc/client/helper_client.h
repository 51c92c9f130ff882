/* The helper's verbs for unprivileged programs. One connection carries at most one lease and is that lease:
 * closing it (or dying) gives the slot back. Blocking, with a deadline of a few seconds a call.
 */
#ifndef BERTH_IPC_CLIENT_HELPER_CLIENT_H
#define BERTH_IPC_CLIENT_HELPER_CLIENT_H

#include "ipc/wire/pool.h"

#define BT_HELPER_SOCKET_DEFAULT "/run/berth/helper.sock"

struct bt_helper {
    int fd;         /* -1 when closed; the caller may poll it: readable at rest means the engine is gone */
    uint64_t epoch; /* of the engine's start */
    struct bt_pool pool;
    uint16_t quota; /* slots this uid may hold */
    uint32_t sequence;
};

struct bt_helper_lease {
    uint16_t slot;
    uint32_t generation;
    enum bt_kind kind;
    enum bt_role role;
    uint8_t environment;
    bool is_sealed; /* an adopted slot stays in quarantine */
    char interface_name[BT_INTERFACE_NAME_SIZE];
    uint32_t host_address, guest_address; /* host byte order */
    uint8_t prefix_length;
    uint8_t host_mac[6], guest_mac[6];
    uint32_t gateway_address; /* bridges: of the gateway's container; else 0, and its MAC too */
    uint8_t gateway_mac[6];
};

/* A lease of kind BT_KIND_BRIDGE, for a container engine in the helper's network namespace:
 *
 *   network of  kind and role of the lease         members                          their way
 *   an agent    BT_KIND_BRIDGE, BT_ROLE_AGENT      .3 the agent, .2 the gateway     .3 to .2, ports of a
 * gateway control     BT_KIND_BRIDGE, BT_ROLE_ORCHESTRATOR  .3 the orchestrator, .2 the gateway  .2 to .3,
 * TCP 7400 egress      BT_KIND_BRIDGE, BT_ROLE_GATEWAY    .2 the gateway                   out, masqueraded
 * by the helper
 *
 * interface_name is a bridge that the helper made, with host_address (.1) on it, up. Make the engine's
 * network on it, with the options in helper/README.md (bridge name, the /29 of host_address as subnet,
 * gateway host_address, no masquerading; internal for agents and control), and connect containers with
 * guest_address and gateway_address and exactly these MACs: nothing else may send. All this holds only while
 * one user and environment has a live egress lease (and, for control, a live orchestrator's). The owner
 * reaches the members from the host, as with TAPs: an orchestrator's API is guest_address, port 7400. The
 * bridge goes down with bt_helper_seal, bt_helper_release or the end of the connection, and is then deleted,
 * whatever the engine still has on it; the engine itself deletes only bridges that it made. */

struct bt_helper_status {
    uint8_t own[BT_POOL_SLOTS_MAX / 8]; /* bitmap of this uid's slots, reserved ones included */
    uint16_t live, reserved, dead, free;
    bool is_healthy; /* every rule in the kernel is what it should be */
};

struct bt_helper_counters {
    uint64_t accepted_packets, accepted_bytes, dropped_packets, dropped_bytes;
};

/* Connects and says HELLO. -ENOENT, -ECONNREFUSED: not running; -EACCES: not in group berth; -EPERM: this uid
 * is not served (uid_max of the helper's configuration); -EPROTO: other version; -EBUSY: too many connections
 * of this uid. */
int bt_helper_connect(const char *socket_path, struct bt_helper *ret_helper) BT_MUST_CHECK;
void bt_helper_close(struct bt_helper *helper);
int bt_helper_status(struct bt_helper *helper, struct bt_helper_status *ret_status) BT_MUST_CHECK;
/* environment: 0..15. slot_hint: a slot number, or -1. *ret_tap_fd is owned by the caller (-1 for kinds
 * without one). -EDQUOT: own quota used up; -ENOSPC: pool used up; -EEXIST: this uid and environment has a
 * live gateway or orchestrator already (of microvms and of containers it may have one each). */
int bt_helper_lease(struct bt_helper *helper, enum bt_kind kind, enum bt_role role, unsigned environment,
                    int slot_hint, struct bt_helper_lease *ret_lease, int *ret_tap_fd) BT_MUST_CHECK;
/* After an engine restart, on a new connection. -ENOENT: not reserved for this uid any more. */
int bt_helper_adopt(struct bt_helper *helper, uint16_t slot, uint32_t generation,
                    struct bt_helper_lease *ret_lease) BT_MUST_CHECK;
int bt_helper_seal(struct bt_helper *helper) BT_MUST_CHECK;
int bt_helper_counters(struct bt_helper *helper, struct bt_helper_counters *ret_counters) BT_MUST_CHECK;
int bt_helper_release(struct bt_helper *helper) BT_MUST_CHECK;
/* Compares the rules in the kernel with what the engine knows, repairs them. -EPERM unless the caller is uid
 * 0. */
int bt_helper_reconcile(struct bt_helper *helper) BT_MUST_CHECK;

#endif
