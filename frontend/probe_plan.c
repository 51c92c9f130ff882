/* What a guest is made to try: the checks of one run, as items to judge and as text for berth-probe.
 *
 * Used by probe_run.c. Pure but for the random nonces.
 */
#include "frontend/probe_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/wire/pool.h"

/* Below the second after which the kernel would repeat a SYN: one silent check is one packet in the drop
 * counter. */
#define BLOCK_MS 900
#define CONTROL_MS 5000
#define PUBLIC_IPV6 "2606:4700:4700::1111"
#define METADATA_ADDRESS 0xa9fea9feU

/* Adds an item; returns NULL when there is no room, which the caller ignores: the count is checked at the
 * end. */
static struct bt_probe_item *item_add(struct bt_probe_items *items, const char *name, enum bt_probe_rule rule,
                                      uint32_t address, bool has_nonce)
{
    if (items->count >= BT_PROBE_ITEMS_MAX) {
        items->count = BT_PROBE_ITEMS_MAX + 1;
        return NULL;
    }
    struct bt_probe_item *item = &items->list[items->count++];
    *item = (struct bt_probe_item){.rule = rule, .address = address};
    (void)snprintf(item->name, sizeof(item->name), "%s", name);
    if (has_nonce)
        bt_random_hex(item->nonce, (sizeof(item->nonce) - 1) / 2);
    return item;
}

static void add_connect(struct bt_probe_items *items, const char *name, uint32_t address, uint16_t port)
{
    char text[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(address, text);
    struct bt_probe_item *item = address ? item_add(items, name, BT_PROBE_RULE_BLOCK, address, false) : NULL;
    if (!item)
        return;
    item->is_tcp = true;
    (void)snprintf(item->line, sizeof(item->line), "connect %s %d %s %u", name, BLOCK_MS, text, port);
}

/* A packet with a nonce: to a canary, or to nobody that answers. */
static void add_nonce(struct bt_probe_items *items, const char *kind, const char *name, uint32_t address,
                      uint16_t port)
{
    char text[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(address, text);
    struct bt_probe_item *item = address ? item_add(items, name, BT_PROBE_RULE_BLOCK, address, true) : NULL;
    if (!item)
        return;
    item->is_tcp = strcmp(kind, "tcp") == 0;
    (void)snprintf(item->line, sizeof(item->line), "%s %s %d %s %u %s", kind, name, BLOCK_MS, text, port,
                   item->nonce);
}

static void add_name_question(struct bt_probe_items *items, const char *name, enum bt_probe_rule rule,
                              uint32_t server, int deadline_ms)
{
    char text[BT_IPV4_TEXT_SIZE], label[25];
    bt_ipv4_format(server, text);
    bt_random_hex(label, (sizeof(label) - 1) / 2);
    struct bt_probe_item *item = server ? item_add(items, name, rule, server, false) : NULL;
    if (item)
        (void)snprintf(item->line, sizeof(item->line), "dns %s %d %s berth-%s.example.com", name, deadline_ms,
                       text, label);
}

static void add_ipv6(struct bt_probe_items *items)
{
    struct bt_probe_item *item = item_add(items, "ipv6-tcp", BT_PROBE_RULE_IPV6, 0, false);
    if (item)
        (void)snprintf(item->line, sizeof(item->line), "connect ipv6-tcp %d " PUBLIC_IPV6 " 443", BLOCK_MS);
    item = item_add(items, "ipv6-udp", BT_PROBE_RULE_IPV6, 0, true);
    if (item)
        (void)snprintf(item->line, sizeof(item->line), "udp ipv6-udp %d " PUBLIC_IPV6 " 443 %s", BLOCK_MS,
                       item->nonce);
}

static void add_host_wide(struct bt_probe_items *items, const struct bt_probe_facts *facts,
                          const struct bt_probe_canary *host)
{
    add_nonce(items, "tcp", "host-tcp", host->address, host->tcp_port);
    add_nonce(items, "udp", "host-udp", host->address, host->udp_port);
    add_connect(items, "public-tcp", facts->public_address, 443);
    add_nonce(items, "udp", "public-udp", facts->public_address, 443);
    add_name_question(items, "public-dns", BT_PROBE_RULE_BLOCK, facts->public_address, BLOCK_MS);
    add_connect(items, "metadata", METADATA_ADDRESS, 80);
    add_ipv6(items);
}

static void add_spoofed(struct bt_probe_items *items, const struct bt_probe_facts *facts,
                        const struct bt_probe_canary *slot)
{
    char source[BT_IPV4_TEXT_SIZE], target[BT_IPV4_TEXT_SIZE];
    bt_ipv4_format(facts->foreign_address, source);
    bt_ipv4_format(slot->address, target);
    struct bt_probe_item *item =
        facts->foreign_address ? item_add(items, "spoofed-source", BT_PROBE_RULE_SPOOF, slot->address, true)
                               : NULL;
    if (item)
        (void)snprintf(item->line, sizeof(item->line), "spoof spoofed-source %d %s %s %u %s", BLOCK_MS,
                       source, target, slot->udp_port, item->nonce);
}

static void add_slot(struct bt_probe_items *items, const struct bt_probe_facts *facts,
                     const struct bt_probe_canary *slot)
{
    char text[BT_IPV4_TEXT_SIZE], name[48];
    uint32_t gateway = facts->own_gateway_address ? facts->own_gateway_address : facts->slot_host_address;
    bt_ipv4_format(gateway, text);
    struct bt_probe_item *item = item_add(items, "gateway-proxy", BT_PROBE_RULE_CONTROL, gateway, false);
    if (item) {
        item->is_tcp = true;
        (void)snprintf(item->line, sizeof(item->line), "connect gateway-proxy %d %s %u", CONTROL_MS, text,
                       BT_GATEWAY_PORT_PROXY);
    }
    add_name_question(items, "random-name", BT_PROBE_RULE_NAME, gateway, CONTROL_MS);
    add_nonce(items, "tcp", "slot-host-tcp", slot->address, slot->tcp_port);
    add_nonce(items, "udp", "slot-host-udp", slot->address, slot->udp_port);
    add_spoofed(items, facts, slot);
    add_connect(items, "orchestrator", facts->orchestrator_address, BT_ORCHESTRATOR_PORT);
    add_connect(items, "gateway-direct", facts->gateway_address, BT_GATEWAY_PORT_PROXY);
    for (size_t i = 0; i < facts->sibling_count && i < BT_PROBE_SIBLINGS_MAX; i++) {
        uint32_t sibling = facts->siblings[i];
        (void)snprintf(name, sizeof(name), "sibling-%u-%u-%u-%u", sibling >> 24, (sibling >> 16) & 0xff,
                       (sibling >> 8) & 0xff, sibling & 0xff);
        add_connect(items, name, sibling, 1);
    }
}

int bt_probe_items_make(const struct bt_probe_facts *facts, const struct bt_probe_canary *host,
                        const struct bt_probe_canary *slot, struct bt_probe_items *ret_items)
{
    ret_items->count = 0;
    add_slot(ret_items, facts, slot);
    if (facts->has_host_wide)
        add_host_wide(ret_items, facts, host);
    return ret_items->count <= BT_PROBE_ITEMS_MAX ? 0 : -E2BIG;
}

int bt_probe_items_plan(const struct bt_probe_items *items, struct bt_buffer *ret_plan)
{
    struct bt_buffer plan = {0};
    int result = 0;
    for (size_t i = 0; result == 0 && i < items->count; i++)
        result = bt_buffer_add_format(&plan, "%s\n", items->list[i].line);
    if (result == 0)
        *ret_plan = plan;
    else
        bt_buffer_free(&plan);
    return result;
}
