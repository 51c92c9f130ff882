/* Bookkeeping of slots, see ledger.h.
 *
 * Called by the engine. It must not touch the kernel or the clock: that keeps it exhaustively testable.
 */
#include "helper/ledger.h"

#include <errno.h>
#include <string.h>

#include "helper/say.h"

void bt_ledger_init(struct bt_ledger *ledger, uint16_t slots, uint32_t last_generation)
{
    bt_require(slots >= 1 && slots <= BT_POOL_SLOTS_MAX, "ledger: a slot outside the pool");
    memset(ledger, 0, sizeof(*ledger));
    ledger->slots = slots;
    ledger->last_generation = last_generation;
}

void bt_ledger_put(struct bt_ledger *ledger, const struct bt_lease *lease, enum bt_hold_state state)
{
    bt_require(lease->slot < ledger->slots, "ledger: a slot outside the pool");
    ledger->leases[lease->slot] = *lease;
    ledger->states[lease->slot] = state;
    if (lease->generation > ledger->last_generation)
        ledger->last_generation = lease->generation;
}

void bt_ledger_remove(struct bt_ledger *ledger, uint16_t slot)
{
    bt_require(slot < ledger->slots, "ledger: a slot outside the pool");
    ledger->states[slot] = BT_HOLD_FREE;
    memset(&ledger->leases[slot], 0, sizeof(ledger->leases[slot]));
}

struct bt_lease *bt_ledger_find(struct bt_ledger *ledger, uint16_t slot, enum bt_hold_state state)
{
    if (slot >= ledger->slots || ledger->states[slot] != state)
        return NULL;
    return &ledger->leases[slot];
}

int bt_ledger_next_generation(struct bt_ledger *ledger, uint32_t *ret_generation)
{
    if (ledger->last_generation == UINT32_MAX)
        return -ENOSPC;
    *ret_generation = ++ledger->last_generation;
    return 0;
}

struct bt_lease_table bt_ledger_live(struct bt_ledger *ledger)
{
    size_t count = 0;
    for (uint16_t slot = 0; slot < ledger->slots; slot++)
        if (ledger->states[slot] == BT_HOLD_LIVE)
            ledger->view[count++] = ledger->leases[slot];
    return (struct bt_lease_table){.leases = ledger->view, .count = count};
}

unsigned bt_ledger_count(const struct bt_ledger *ledger, uint32_t uid, enum bt_hold_state state)
{
    unsigned count = 0;
    for (uint16_t slot = 0; slot < ledger->slots; slot++)
        if (ledger->states[slot] == state && (ledger->leases[slot].uid == uid || uid == BT_ANYBODY))
            count++;
    return count;
}

bool bt_ledger_has_role(const struct bt_ledger *ledger, const struct bt_lease *like)
{
    for (uint16_t slot = 0; slot < ledger->slots; slot++) {
        const struct bt_lease *lease = &ledger->leases[slot];
        if (ledger->states[slot] == BT_HOLD_LIVE && lease->uid == like->uid &&
            lease->environment == like->environment && lease->role == like->role &&
            (lease->kind == BT_KIND_BRIDGE) == (like->kind == BT_KIND_BRIDGE))
            return true;
    }
    return false;
}
