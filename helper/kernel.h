/* Everything that the engine asks of the kernel: TAP devices, addresses, neighbours and the table inet berth.
 *
 * Linux: kernel_linux*.c over libmnl. Tests replace it with an in-memory kernel of the same
 * functions. No function allocates for the caller, prints, or takes a name, path or rule text from a client.
 * All return 0 or -errno. A function that fails has undone what it began: there is never a lease without its
 * rules, nor the reverse.
 */
#ifndef BERTH_HELPER_KERNEL_H
#define BERTH_HELPER_KERNEL_H

#include <sys/types.h>

#include "ipc/wire/frame.h"

/* What is written in the kernel for one lease; also kept there as user data, so that a restart can read it
 * back. */
struct bt_lease {
    uint16_t slot;
    uint32_t generation; /* never 0; unique within a boot; the conntrack mark of the lease's flows */
    uint32_t uid;
    uint8_t kind;        /* enum bt_kind */
    uint8_t role;        /* enum bt_role */
    uint8_t environment; /* 0..15 */
    bool is_sealed;
};

/* All leases that are live at this moment, as the engine knows them: needed since a gateway or orchestrator
 * that comes or goes changes the maps of every agent of its uid and environment, in the same transaction. */
struct bt_lease_table {
    const struct bt_lease *leases; /* borrowed */
    size_t count;
};

/* Milliseconds of CLOCK_BOOTTIME, which deadlines in the kernel are in. */
uint64_t bt_boottime_ms(void);

struct bt_kernel_config {
    struct bt_pool pool;
    bool deny_private_uplink; /* gateways may not dial RFC 1918 addresses except resolvers[] */
    uint32_t resolvers[8];
    size_t resolver_count;
    uint32_t agent_flows;   /* concurrent flows an agent may have; default 512 */
    uint32_t gateway_flows; /* default 16384 */
};

struct bt_kernel; /* one static instance per process; arrays of constant size */

/* Opens netlink sockets (nftables requests and events, rtnetlink requests and events, conntrack). Before the
 * drop. */
int bt_kernel_open(const struct bt_kernel_config *config, struct bt_kernel **ret_kernel) BT_MUST_CHECK;

/* Closes the sockets. What is in the kernel stays: a later open and provision find it. */
void bt_kernel_close(struct bt_kernel *kernel);

/* Makes the table when it is absent. When it is there (a restart): reads the leases of its elements (live or
 * already reserved) into ret_leases, with the deadline they carry, and leaves the rules in force untouched. A
 * table that is not of this program's making is -EEXIST; one of a version that this build does not read is
 * -EPROTONOSUPPORT; both are left as they are. *ret_generation is the
 * highest generation ever handed out in this boot, as far as the kernel knows: a new lease must be above it.
 */
int bt_kernel_provision(struct bt_kernel *kernel, struct bt_lease ret_leases[BT_POOL_SLOTS_MAX],
                        size_t *ret_count, uint64_t *ret_deadline_ms, uint32_t *ret_generation) BT_MUST_CHECK;

/* To be called after bt_kernel_provision returned leases. Rules of another configuration are replaced here.
 * One transaction: every lease becomes reserved (authorises nothing), with an absolute CLOCK_BOOTTIME
 * deadline. */
int bt_kernel_reserve_all(struct bt_kernel *kernel, struct bt_lease_table live,
                          uint64_t deadline_ms) BT_MUST_CHECK;

/* Makes the device and its rules. table holds the other live leases. *ret_tap_fd: the TAP of a tap-fd lease,
 * owned by the caller. -EBUSY: the device of the slot's last lease is not gone yet. */
int bt_kernel_lease(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease,
                    int *ret_tap_fd) BT_MUST_CHECK;

/* Reserved -> live, after the device was verified (exists, is a TAP, persistent or attached as it must be,
 * name, addresses). -ENODEV, -EPERM: it is not what was leased; the caller then releases it. */
int bt_kernel_adopt(struct bt_kernel *kernel, struct bt_lease_table table,
                    const struct bt_lease *lease) BT_MUST_CHECK;

/* Everything of this slot is dropped from now on, flows included; its owner and root do not reach the guest
 * either. -ESTALE: not live, or another generation. Sealing a sealed lease is no error. */
int bt_kernel_seal(struct bt_kernel *kernel, struct bt_lease_table table,
                   const struct bt_lease *lease) BT_MUST_CHECK;

/* Elements out, link down; flows and device are deleted later by bt_kernel_collect. Never fails half
 * way: what the kernel refused is tried again by bt_kernel_collect, and the slot stays unleasable until then.
 * table holds the other live leases. Works for reserved leases too. */
int bt_kernel_release(struct bt_kernel *kernel, struct bt_lease_table table, const struct bt_lease *lease);

/* Deletes dead devices, in groups; called when idle. Returns how many slots became leasable. */
int bt_kernel_collect(struct bt_kernel *kernel);
bool bt_kernel_is_slot_clean(const struct bt_kernel *kernel, uint16_t slot);
size_t bt_kernel_dead_count(const struct bt_kernel *kernel);

int bt_kernel_counters(struct bt_kernel *kernel, const struct bt_lease *lease,
                       struct bt_lease_counters *ret) BT_MUST_CHECK;

/* Reads the table back and compares it with what these leases must have there. 0: equal. -EUCLEAN: different.
 */
int bt_kernel_verify(struct bt_kernel *kernel, struct bt_lease_table live) BT_MUST_CHECK;

/* Drift: sets every berth interface down, rebuilds the table from the leases, verifies, sets them up again.
 */
int bt_kernel_repair(struct bt_kernel *kernel, struct bt_lease_table live) BT_MUST_CHECK;

/* Descriptors that become readable when rules, links or routes change (nftables and rtnetlink events), and
 * what to do then. *ret_is_drift: our table was touched by somebody else, a leased device was renamed, or a
 * setting could not be kept. Uplink forwarding is kept up to date here, and devices of ours that came up
 * without a lease are taken away: 1 if there was one, else 0. */
#define BT_KERNEL_EVENT_FDS 2
void bt_kernel_event_fds(const struct bt_kernel *kernel, int ret_fds[BT_KERNEL_EVENT_FDS]);
int bt_kernel_handle_events(struct bt_kernel *kernel, bool *ret_is_drift) BT_MUST_CHECK;

#endif
