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
#define BRIDGE_SIDE 0x03U

enum { BRIDGE_ADDRESSES = 8, BRIDGE_PREFIX = 29, ROUTER = 1, GATEWAY = 2, MEMBER = 3 };

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

static void fill_name(const char *prefix, size_t prefix_length, uint16_t slot, char *name)
{
    char digits[4];
    size_t count = 0;
    unsigned rest = slot;
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    memset(name, 0, BT_INTERFACE_NAME_SIZE);
    memcpy(name, prefix, prefix_length);
    for (size_t i = 0; i < count; i++)
        name[prefix_length + i] = digits[count - 1 - i];
}

int bt_pool_tap_name(const struct bt_pool *pool, uint16_t slot, char ret_name[BT_INTERFACE_NAME_SIZE])
{
    if (!is_slot(pool, slot))
        return -ERANGE;
    fill_name("berth", 5, slot, ret_name);
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

static void fill_container_mac(uint8_t mac[6], uint32_t address)
{
    mac[0] = 0x02;
    mac[1] = 0x42;
    for (unsigned i = 0; i < 4; i++)
        mac[2 + i] = (uint8_t)(address >> (24 - 8 * i));
}

static int place_bridge(const struct bt_pool *pool, enum bt_role role, uint16_t slot,
                        struct bt_place *ret_place)
{
    struct bt_place place = {.prefix_length = BRIDGE_PREFIX};
    uint32_t network;
    if (!is_slot(pool, slot) || pool->bridge_base % BRIDGE_ADDRESSES != 0 ||
        __builtin_add_overflow(pool->bridge_base, (uint32_t)BRIDGE_ADDRESSES * slot, &network))
        return -ERANGE;
    fill_name("berthd", 6, slot, place.interface_name);
    place.host_address = network + ROUTER;
    place.gateway_address = network + GATEWAY;
    place.guest_address = network + (role == BT_ROLE_GATEWAY ? GATEWAY : MEMBER);
    fill_mac(place.host_mac, BRIDGE_SIDE, slot);
    fill_container_mac(place.guest_mac, place.guest_address);
    fill_container_mac(place.gateway_mac, place.gateway_address);
    *ret_place = place;
    return 0;
}

int bt_pool_place(const struct bt_pool *pool, enum bt_kind kind, enum bt_role role, uint16_t slot,
                  struct bt_place *ret_place)
{
    struct bt_place place = {.prefix_length = 31};
    if (kind == BT_KIND_BRIDGE)
        return place_bridge(pool, role, slot, ret_place);
    if (kind != BT_KIND_TAP_FD && kind != BT_KIND_TAP_NAMED)
        return -EOPNOTSUPP;
    int error = bt_pool_tap_addresses(pool, slot, &place.host_address, &place.guest_address);
    if (error == 0)
        error = bt_pool_tap_macs(pool, slot, place.host_mac, place.guest_mac);
    if (error == 0)
        error = bt_pool_tap_name(pool, slot, place.interface_name);
    if (error == 0)
        *ret_place = place;
    return error;
}
