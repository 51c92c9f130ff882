/* Any bytes as an order to the process that runs pfctl, and as what pfctl printed: an order is refused, or is
 * numbers whose rules have no byte that could mean something else to pf, and which nothing but themselves
 * equals.
 */
#include <stdlib.h>
#include <string.h>

#include "helper/macos/anchor.h"
#include "helper/macos/order.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool condition)
{
    if (!condition)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789 ./:\"\n";
    static struct bt_order order;
    static struct bt_anchor_text text;
    static uint8_t back[BT_ORDER_SIZE_MAX];
    const struct bt_kernel_config config = {.pool = {.tap_base = BT_POOL_TAP_BASE_DEFAULT,
                                                     .bridge_base = BT_POOL_BRIDGE_BASE_DEFAULT,
                                                     .slots = BT_POOL_SLOTS_MAX},
                                            .deny_private_uplink = size % 2 == 0,
                                            .resolvers = {1, UINT32_MAX},
                                            .resolver_count = size % 3};
    if (bt_order_decode(&config.pool, data, size, &order) < 0)
        return 0;
    must(bt_order_encode(&order, back) == size && memcmp(back, data, size) == 0);
    must(bt_anchor_encode(&config, order.environment, order.leases, order.count, &text) == 0);
    for (size_t i = 0; i < text.length; i++)
        must(memchr(alphabet, text.bytes[i], sizeof(alphabet) - 1) != NULL);
    must(bt_anchor_is_in_force(&text, text.bytes, text.length));
    must(!bt_anchor_is_in_force(&text, (const char *)data, size) || text.length == 0);
    return 0;
}
