/* Orders of the engine to the process that runs pfctl, see order.h.
 *
 * Layout, little-endian: "BPF1", environment (1), 0 (1), count (2), cut slot (2), 0 (6); then count times:
 * slot (2), role (1), sealed (1), generation (4), uid (4), 0 (4).
 */
#include "helper/macos/order.h"

#include <errno.h>
#include <string.h>

static const uint8_t magic[4] = {'B', 'P', 'F', '1'};

size_t bt_order_encode(const struct bt_order *order, uint8_t *ret_bytes)
{
    uint8_t *at = ret_bytes + BT_ORDER_HEADER_SIZE;
    memset(ret_bytes, 0, BT_ORDER_HEADER_SIZE);
    memcpy(ret_bytes, magic, sizeof(magic));
    ret_bytes[4] = order->environment;
    bt_store_u16(ret_bytes + 6, order->count);
    bt_store_u16(ret_bytes + 8, order->cut_slot);
    for (size_t i = 0; i < order->count; i++, at += BT_ORDER_LEASE_SIZE) {
        const struct bt_lease *lease = &order->leases[i];
        bt_store_u16(at, lease->slot);
        at[2] = lease->role;
        at[3] = lease->is_sealed;
        bt_store_u32(at + 4, lease->generation);
        bt_store_u32(at + 8, lease->uid);
        bt_store_u32(at + 12, 0);
    }
    return (size_t)(at - ret_bytes);
}

int bt_order_length(const uint8_t header[BT_ORDER_HEADER_SIZE], size_t *ret_length)
{
    uint16_t count = bt_load_u16(header + 6);
    if (memcmp(header, magic, sizeof(magic)) != 0 || count > BT_POOL_SLOTS_MAX)
        return -EBADMSG;
    *ret_length = BT_ORDER_HEADER_SIZE + (size_t)count * BT_ORDER_LEASE_SIZE;
    return 0;
}

static int decode_lease(const struct bt_pool *pool, const uint8_t *at, uint8_t environment,
                        struct bt_lease *ret_lease)
{
    struct bt_lease lease = {.slot = bt_load_u16(at),
                             .role = at[2],
                             .generation = bt_load_u32(at + 4),
                             .uid = bt_load_u32(at + 8),
                             .kind = BT_KIND_PF,
                             .environment = environment,
                             .is_sealed = at[3] == 1};
    if (lease.slot >= pool->slots || lease.role >= BT_ROLE_MAX || at[3] > 1 || lease.generation == 0 ||
        lease.uid == UINT32_MAX || bt_load_u32(at + 12) != 0)
        return -EBADMSG;
    *ret_lease = lease;
    return 0;
}

int bt_order_decode(const struct bt_pool *pool, const uint8_t *bytes, size_t length,
                    struct bt_order *ret_order)
{
    static const uint8_t zero[6];
    size_t wanted;
    if (length < BT_ORDER_HEADER_SIZE || bt_order_length(bytes, &wanted) < 0 || wanted != length)
        return -EBADMSG;
    ret_order->environment = bytes[4];
    ret_order->count = bt_load_u16(bytes + 6);
    ret_order->cut_slot = bt_load_u16(bytes + 8);
    bool is_cut_known = ret_order->cut_slot == BT_ORDER_CUT_NOTHING || ret_order->cut_slot < pool->slots;
    if (ret_order->environment >= BT_ENVIRONMENTS || bytes[5] != 0 || !is_cut_known ||
        memcmp(bytes + 10, zero, sizeof(zero)) != 0)
        return -EBADMSG;
    for (size_t i = 0; i < ret_order->count; i++) {
        const uint8_t *at = bytes + BT_ORDER_HEADER_SIZE + i * BT_ORDER_LEASE_SIZE;
        int error = decode_lease(pool, at, ret_order->environment, &ret_order->leases[i]);
        if (error < 0 || (i > 0 && ret_order->leases[i].slot <= ret_order->leases[i - 1].slot))
            return -EBADMSG;
    }
    return 0;
}
