/* What the engine on macOS asks of the process that runs pfctl: "these are now the leases of an environment".
 *
 * The engine has given up root; the other process has not, and believes nothing: an order is numbers in a
 * fixed form, checked against the pool. Pure; compiled and tested on every system.
 */
#ifndef BERTH_HELPER_MACOS_ORDER_H
#define BERTH_HELPER_MACOS_ORDER_H

#include "helper/kernel.h"

#define BT_ORDER_HEADER_SIZE 16U
#define BT_ORDER_LEASE_SIZE 16U
#define BT_ORDER_SIZE_MAX (BT_ORDER_HEADER_SIZE + BT_POOL_SLOTS_MAX * BT_ORDER_LEASE_SIZE)
#define BT_ORDER_CUT_NOTHING UINT16_MAX

struct bt_order {
    uint8_t environment;
    uint16_t cut_slot; /* connections of this slot's network end now; BT_ORDER_CUT_NOTHING: of none */
    uint16_t count;
    struct bt_lease leases[BT_POOL_SLOTS_MAX]; /* of kind pf, ascending by slot: all of the environment's */
};

/* ret_bytes has room for BT_ORDER_SIZE_MAX. Returns the length. */
size_t bt_order_encode(const struct bt_order *order, uint8_t *ret_bytes);

/* From the header: how long the whole order is. -EBADMSG: it is none. */
int bt_order_length(const uint8_t header[BT_ORDER_HEADER_SIZE], size_t *ret_length) BT_MUST_CHECK;

/* bytes[0..length), length as told by bt_order_length. -EBADMSG: not what bt_order_encode makes, or not of
 * this pool. */
int bt_order_decode(const struct bt_pool *pool, const uint8_t *bytes, size_t length,
                    struct bt_order *ret_order) BT_MUST_CHECK;

#endif
