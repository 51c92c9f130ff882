/* The pf anchors of macOS as text, see anchor.h.
 *
 * Called by the process that runs pfctl, and by tests. Pure: no memory, no I/O, no state.
 */
#include "helper/macos/anchor.h"

#include <errno.h>
#include <string.h>

static const char label_start[] = " label \"berth:";

/* One rule after the other; what does not fit is noticed, never cut off. */
struct writer {
    struct bt_anchor_text *text;
    const struct bt_lease *lease;
    char network[BT_ANCHOR_NETWORK_SIZE], host[BT_IPV4_TEXT_SIZE];
    unsigned rule;
    bool is_full;
};

static void add(struct writer *writer, const char *addition)
{
    size_t length = strlen(addition);
    if (length > sizeof(writer->text->bytes) - writer->text->length) {
        writer->is_full = true;
        return;
    }
    memcpy(writer->text->bytes + writer->text->length, addition, length);
    writer->text->length += length;
}

static void format_number(uint32_t number, char ret_text[11])
{
    char digits[10];
    size_t count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    for (size_t i = 0; i < count; i++)
        ret_text[i] = digits[count - 1 - i];
    ret_text[count] = '\0';
}

static void add_number(struct writer *writer, uint32_t number)
{
    char text[11];
    format_number(number, text);
    add(writer, text);
}

/* What the lease is, and which of its rules this is. */
static void end_rule(struct writer *writer)
{
    const struct bt_lease *lease = writer->lease;
    const uint32_t numbers[] = {lease->slot, lease->generation,  lease->uid,
                                lease->role, lease->environment, lease->is_sealed};
    add(writer, label_start);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(numbers); i++) {
        add_number(writer, numbers[i]);
        add(writer, ":");
    }
    add_number(writer, writer->rule++);
    add(writer, "\"\n");
}

/* ACTION inet from the slot's network to WHERE. */
static void add_from(struct writer *writer, const char *action, const char *where)
{
    add(writer, action);
    add(writer, " quick inet from ");
    add(writer, writer->network);
    add(writer, " to ");
    add(writer, where);
    end_rule(writer);
}

/* Connections to a guest are its owner's and root's; their answers pass by pf's own state. */
static void add_towards(struct writer *writer)
{
    const struct bt_lease *lease = writer->lease;
    for (unsigned i = 0; i < (lease->uid == 0 ? 1U : 2U); i++) {
        add(writer, "pass out quick inet proto tcp from any to ");
        add(writer, writer->network);
        add(writer, " user ");
        add_number(writer, i == 0 ? 0 : lease->uid);
        end_rule(writer);
    }
    add(writer, "block drop out quick inet from any to ");
    add(writer, writer->network);
    end_rule(writer);
}

static void format_network(uint32_t address, uint32_t prefix, char ret_network[BT_ANCHOR_NETWORK_SIZE])
{
    char digits[11];
    bt_ipv4_format(address, ret_network);
    size_t length = strlen(ret_network);
    format_number(prefix, digits);
    ret_network[length] = '/';
    memcpy(ret_network + length + 1, digits, strlen(digits) + 1);
}

/* A gateway dials the world, and neither berth's own networks, nor the host, nor what is only here. */
static void add_gateway(struct writer *writer, const struct bt_kernel_config *config)
{
    static const char *const private_blocks[] = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"};
    static const struct {
        bool is_bridge;
        uint32_t prefix;
    } blocks[] = {{true, 19}, {false, 21}}; /* the largest pools: 1024 networks of 8, 1024 pairs */
    char text[BT_ANCHOR_NETWORK_SIZE];
    add_from(writer, "block drop in", writer->host);
    add_from(writer, "block drop in", "self");
    for (size_t i = 0; i < BT_ARRAY_LENGTH(blocks); i++) {
        uint32_t base = blocks[i].is_bridge ? config->pool.bridge_base : config->pool.tap_base;
        format_network(base & (UINT32_MAX << (32 - blocks[i].prefix)), blocks[i].prefix, text);
        add_from(writer, "block drop in", text);
    }
    add_from(writer, "block drop in", "169.254.0.0/16");
    if (config->deny_private_uplink) {
        for (size_t i = 0; i < config->resolver_count && i < BT_ARRAY_LENGTH(config->resolvers); i++) {
            bt_ipv4_format(config->resolvers[i], text);
            add_from(writer, "pass in", text);
        }
        for (size_t i = 0; i < BT_ARRAY_LENGTH(private_blocks); i++)
            add_from(writer, "block drop in", private_blocks[i]);
    }
    add_from(writer, "pass in", "any");
}

static void add_lease(struct writer *writer, const struct bt_kernel_config *config)
{
    if (writer->lease->is_sealed) {
        add_from(writer, "block drop", "any");
        add(writer, "block drop quick inet from any to ");
        add(writer, writer->network);
        end_rule(writer);
        return;
    }
    if (writer->lease->role == BT_ROLE_GATEWAY)
        add_gateway(writer, config);
    else
        add_from(writer, "block drop in", "any");
    add_towards(writer);
}

static int find_network(const struct bt_pool *pool, uint16_t slot, uint32_t *ret_address)
{
    struct bt_place place;
    int error = bt_pool_place(pool, BT_KIND_BRIDGE, BT_ROLE_AGENT, slot, &place);
    if (error < 0)
        return error;
    *ret_address = place.host_address - 1;
    return 0;
}

int bt_anchor_name(uint8_t environment, char ret_name[BT_ANCHOR_NAME_SIZE])
{
    static const char base[] = "com.apple/berth";
    char digits[11];
    if (environment >= BT_ENVIRONMENTS)
        return -ERANGE;
    memset(ret_name, 0, BT_ANCHOR_NAME_SIZE);
    memcpy(ret_name, base, sizeof(base));
    if (environment == 0)
        return 0;
    format_number(environment, digits);
    ret_name[sizeof(base) - 1] = '.';
    for (size_t i = 0; digits[i] != '\0'; i++)
        ret_name[sizeof(base) + i] = digits[i];
    return 0;
}

int bt_anchor_network(const struct bt_pool *pool, uint16_t slot, char ret_network[BT_ANCHOR_NETWORK_SIZE])
{
    uint32_t address;
    int error = find_network(pool, slot, &address);
    if (error == 0)
        format_network(address, 29, ret_network);
    return error;
}

int bt_anchor_encode(const struct bt_kernel_config *config, uint8_t environment,
                     const struct bt_lease *leases, size_t count, struct bt_anchor_text *ret_text)
{
    struct writer writer = {.text = ret_text};
    uint32_t address;
    if (environment >= BT_ENVIRONMENTS)
        return -ERANGE;
    ret_text->length = 0;
    for (size_t i = 0; i < count; i++) {
        const struct bt_lease *lease = &leases[i];
        if (lease->kind != BT_KIND_PF || lease->role >= BT_ROLE_MAX || lease->environment != environment ||
            lease->generation == 0 || lease->uid == UINT32_MAX ||
            (i > 0 && lease->slot <= leases[i - 1].slot))
            return -EINVAL;
        int error = find_network(&config->pool, lease->slot, &address);
        if (error < 0)
            return error;
        format_network(address, 29, writer.network);
        bt_ipv4_format(address + 1, writer.host);
        writer.lease = lease;
        writer.rule = 0;
        add_lease(&writer, config);
    }
    return writer.is_full ? -ENOSPC : 0;
}

/* The next rule's label, from *at on; NULL: no more. */
static const char *find_label(const char *text, size_t length, size_t *at, size_t *ret_length)
{
    const char *start = memmem(text + *at, length - *at, label_start, sizeof(label_start) - 1);
    if (!start)
        return NULL;
    const char *label = start + sizeof(label_start) - 1;
    const char *end = memchr(label, '"', length - (size_t)(label - text));
    if (!end)
        return NULL;
    *ret_length = (size_t)(end - label);
    *at = (size_t)(end - text) + 1;
    return label;
}

static size_t count_lines(const char *text, size_t length)
{
    size_t lines = 0;
    for (const char *at = text; (at = memchr(at, '\n', length - (size_t)(at - text))); at++)
        lines++;
    return length > 0 && text[length - 1] != '\n' ? lines + 1 : lines;
}

bool bt_anchor_is_in_force(const struct bt_anchor_text *text, const char *printed, size_t length)
{
    size_t wanted_at = 0, got_at = 0, wanted_length = 0, got_length = 0, rules = 0;
    for (;; rules++) {
        const char *wanted = find_label(text->bytes, text->length, &wanted_at, &wanted_length);
        const char *got = find_label(printed, length, &got_at, &got_length);
        if (!wanted || !got)
            return !wanted && !got && count_lines(printed, length) == rules;
        if (wanted_length != got_length || memcmp(wanted, got, got_length) != 0)
            return false;
    }
}
