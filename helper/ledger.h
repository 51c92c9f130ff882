/* Who holds which slot. Pure bookkeeping: no kernel, no clock, no I/O; constant size.
 *
 * Used by the engine alone. A slot is FREE, LIVE (its lease is an open connection) or RESERVED (kept for
 * adoption after a restart; authorises nothing). A device that is not deleted yet is the kernel part's
 * knowledge, not ours.
 */
#ifndef BERTH_HELPER_LEDGER_H
#define BERTH_HELPER_LEDGER_H

#include "helper/kernel.h"

enum bt_hold_state { BT_HOLD_FREE = 0, BT_HOLD_LIVE = 1, BT_HOLD_RESERVED = 2 };

struct bt_ledger {
    struct bt_lease leases[BT_POOL_SLOTS_MAX]; /* by slot; valid unless FREE */
    enum bt_hold_state states[BT_POOL_SLOTS_MAX];
    struct bt_lease view[BT_POOL_SLOTS_MAX]; /* what bt_ledger_live last returned */
    uint32_t last_generation;
    uint16_t slots;
    uint16_t cursor; /* where the search for a free slot goes on */
};

/* slots: 1..BT_POOL_SLOTS_MAX. last_generation: the highest one that may have been handed out in this boot.
 */
void bt_ledger_init(struct bt_ledger *ledger, uint16_t slots, uint32_t last_generation);

/* Puts a lease into its slot, which may have been in any state before. */
void bt_ledger_put(struct bt_ledger *ledger, const struct bt_lease *lease, enum bt_hold_state state);
void bt_ledger_remove(struct bt_ledger *ledger, uint16_t slot);

/* The lease of a slot in this state, or NULL. Borrowed, valid until the slot changes. */
struct bt_lease *bt_ledger_find(struct bt_ledger *ledger, uint16_t slot, enum bt_hold_state state);

/* Never used before in this boot. -ENOSPC: all 2^32 are used up. */
int bt_ledger_next_generation(struct bt_ledger *ledger, uint32_t *ret_generation) BT_MUST_CHECK;

/* All live leases, in the ledger's own view array: valid until the next call. */
struct bt_lease_table bt_ledger_live(struct bt_ledger *ledger);

/* Slots of this uid, by state; both together count against the quota. */
#define BT_ANYBODY UINT32_MAX
unsigned bt_ledger_count(const struct bt_ledger *ledger, uint32_t uid, enum bt_hold_state state);

/* Is there a live lease with the uid, environment and role of this one, and, like it, in a bridge or not? A
 * user may have both an infra pair of virtual machines and one of containers. */
bool bt_ledger_has_role(const struct bt_ledger *ledger, const struct bt_lease *like);

#endif
