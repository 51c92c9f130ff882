/* The network pool's arithmetic: names, addresses and MACs of a slot.
 *
 * Called by the engine, the client and tests. Pure: no memory, no I/O, no state; every slot is checked here,
 * also where a caller has checked it before.
 */
#include "ipc/wire/pool.h"

#include <errno.h>
#include <string.h>

#define HOST_SIDE 0x01U
#define GUEST_SIDE 0x02U

static bool is_slot(const struct bt_pool *pool, uint16_t slot)
{
    return pool->slots <= BT_POOL_SLOTS_MAX && slot < pool->slots;
}

int bt_pool_tap_addresses(const struct bt_pool *pool, uint16_t slot, uint32_t *ret_host, uint32_t *ret_guest)
{
    uint32_t host;
    if (!is_slot(pool, slot) || pool->tap_base % 2 != 0)
        return -ERANGE;
    if (__builtin_add_overflow(pool->tap_base, 2U * slot, &host))
        return -ERANGE;
    *ret_host = host;
    *ret_guest = host + 1; /* host is even, so this cannot wrap */
    return 0;
}

int bt_pool_tap_name(const struct bt_pool *pool, uint16_t slot, char ret_name[BT_INTERFACE_NAME_SIZE])
{
    static const char prefix[] = {'b', 'e', 'r', 't', 'h'};
    char digits[4];
    size_t count = 0;
    unsigned rest = slot;
    if (!is_slot(pool, slot))
        return -ERANGE;
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    memset(ret_name, 0, BT_INTERFACE_NAME_SIZE);
    memcpy(ret_name, prefix, sizeof(prefix));
    for (size_t i = 0; i < count; i++)
        ret_name[sizeof(prefix) + i] = digits[count - 1 - i];
    return 0;
}

static void fill_mac(uint8_t mac[6], uint8_t side, uint16_t slot)
{
    mac[0] = 0x02; /* locally administered, unicast */
    mac[1] = 'b';
    mac[2] = 't';
    mac[3] = side;
    mac[4] = (uint8_t)(slot >> 8);
    mac[5] = (uint8_t)slot;
}

int bt_pool_tap_macs(const struct bt_pool *pool, uint16_t slot, uint8_t ret_host[6], uint8_t ret_guest[6])
{
    if (!is_slot(pool, slot))
        return -ERANGE;
    fill_mac(ret_host, HOST_SIDE, slot);
    fill_mac(ret_guest, GUEST_SIDE, slot);
    return 0;
}
