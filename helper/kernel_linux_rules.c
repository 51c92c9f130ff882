/* The skeleton of table inet berth: sets, chains and rules, whose number does not depend on the number of
 * slots.
 *
 * Called when the table is made (a restart finds it there) and when it is compared with what it must be.
 * Rules know no slot: slots are elements of the sets. Must not be called on the way of LEASE or RELEASE:
 * libnftnl allocates.
 *
 * The order within a packet's way, and why:
 *   prerouting -110  after conntrack (-200), other people's mangling (-150); before any DNAT. Source check;
 * an unconfirmed flow gets its generation as mark. A confirmed flow of an earlier lease keeps the old mark,
 *                    also while it is unreplied ("new"), so it fails the checks below instead of being
 * re-marked. prerouting -105  DNAT, before other people's (-100), which could catch the same ports. forward,
 * input, output -5   (interface, mark) and the permitted pair decide, before any look at the flow's state.
 *   postrouting 95   masquerade of gateways.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <libnftnl/common.h>
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_conntrack_common.h>
#include <linux/netfilter/nf_nat.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>

/* Registers of four bytes; a key of several parts lies in neighbouring ones. The kernel names the first
 * NFT_REG_1. */
#define REGISTER_A NFT_REG_1
#define REGISTER_B NFT_REG32_01
#define REGISTER_C NFT_REG32_02
#define REGISTER_D NFT_REG32_03

/* What is done with each rule: sent to the kernel, or compared with the kernel's. */
struct rules {
    const struct bt_kernel *kernel;
    struct bt_batch *batch; /* NULL: only the digest is wanted */
    uint64_t digest;
    uint32_t count;
    int error;
    const char *chain;
    struct nftnl_rule *rule; /* being built */
};

/* ---- digests: FNV-1a over the text that libnftnl gives each expression ------------------------------------
 */

uint64_t bt_digest_add(uint64_t digest, const void *data, size_t length)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < length; i++)
        digest = (digest ^ bytes[i]) * 0x100000001b3U;
    return digest;
}

static uint64_t digest_text(uint64_t digest, const char *text)
{
    return bt_digest_add(digest, text ? text : "", text ? strlen(text) + 1 : 1);
}

static int digest_expression(struct nftnl_expr *expression, void *context);

/* By attributes: kernels differ in whether they name a timeout that is not there. */
static int digest_dynset(struct nftnl_expr *expression, uint64_t *digest)
{
    uint32_t numbers[] = {nftnl_expr_get_u32(expression, NFTNL_EXPR_DYNSET_SREG_KEY),
                          nftnl_expr_get_u32(expression, NFTNL_EXPR_DYNSET_OP)};
    *digest = bt_digest_add(*digest, numbers, sizeof(numbers));
    *digest = digest_text(*digest, nftnl_expr_get_str(expression, NFTNL_EXPR_DYNSET_SET_NAME));
    return nftnl_expr_expr_foreach(expression, digest_expression, digest);
}

static int digest_expression(struct nftnl_expr *expression, void *context)
{
    uint64_t *digest = context;
    char text[512] = {0};
    const char *name = nftnl_expr_get_str(expression, NFTNL_EXPR_NAME);
    *digest = digest_text(*digest, name);
    if (strcmp(name, "dynset") == 0)
        return digest_dynset(expression, digest);
    int length = nftnl_expr_snprintf(text, sizeof(text), expression, NFTNL_OUTPUT_DEFAULT, 0);
    if (length < 0 || (size_t)length >= sizeof(text))
        return -1;
    *digest = digest_text(*digest, text);
    return 0;
}

int bt_rule_digest(const struct nftnl_rule *rule, uint64_t *digest)
{
    *digest = digest_text(*digest, nftnl_rule_get_str(rule, NFTNL_RULE_CHAIN));
    /* libnftnl's iterator takes a mutable rule but does not change it. */
    return nftnl_expr_foreach((struct nftnl_rule *)(uintptr_t)rule, digest_expression, digest) < 0 ? -EUCLEAN
                                                                                                   : 0;
}

/* ---- building rules --------------------------------------------------------------------------------- */

static void rule_open(struct rules *rules)
{
    rules->rule = nftnl_rule_alloc();
    if (!rules->rule) {
        rules->error = -ENOMEM;
        return;
    }
    nftnl_rule_set_u32(rules->rule, NFTNL_RULE_FAMILY, NFPROTO_INET);
    (void)nftnl_rule_set_str(rules->rule, NFTNL_RULE_TABLE, BT_TABLE_NAME);
    (void)nftnl_rule_set_str(rules->rule, NFTNL_RULE_CHAIN, rules->chain);
}

static struct nftnl_expr *add(struct rules *rules, const char *name)
{
    if (!rules->rule)
        rule_open(rules);
    if (!rules->rule)
        return NULL;
    struct nftnl_expr *expression = nftnl_expr_alloc(name);
    if (!expression) {
        rules->error = -ENOMEM;
        return NULL;
    }
    nftnl_rule_add_expr(rules->rule, expression);
    return expression;
}

static void rule_close(struct rules *rules)
{
    if (!rules->rule)
        return;
    if (rules->batch) {
        struct nlmsghdr *message =
            bt_batch_message(rules->batch, (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWRULE,
                             NLM_F_CREATE | NLM_F_APPEND, sizeof(struct nfgenmsg));
        if (message) {
            struct nfgenmsg *family = mnl_nlmsg_get_payload(message);
            family->nfgen_family = NFPROTO_INET;
            nftnl_rule_nlmsg_build_payload(message, rules->rule);
        }
        bt_batch_message_end(rules->batch, message);
    }
    if (bt_rule_digest(rules->rule, &rules->digest) < 0)
        rules->error = -EUCLEAN;
    rules->count++;
    nftnl_rule_free(rules->rule);
    rules->rule = NULL;
}

static void load_meta(struct rules *rules, uint32_t key, uint32_t to)
{
    struct nftnl_expr *expression = add(rules, "meta");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_META_KEY, key);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_META_DREG, to);
}

static void load_ct(struct rules *rules, uint32_t key, uint32_t to)
{
    struct nftnl_expr *expression = add(rules, "ct");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_CT_KEY, key);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_CT_DREG, to);
}

static void set_ct_mark(struct rules *rules, uint32_t from)
{
    struct nftnl_expr *expression = add(rules, "ct");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_CT_KEY, NFT_CT_MARK);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_CT_SREG, from);
}

static void load_payload(struct rules *rules, uint32_t base, uint32_t offset, uint32_t length, uint32_t to)
{
    struct nftnl_expr *expression = add(rules, "payload");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_PAYLOAD_DREG, to);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_PAYLOAD_BASE, base);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_PAYLOAD_OFFSET, offset);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_PAYLOAD_LEN, length);
}

static void load_source_address(struct rules *rules, uint32_t to)
{
    load_payload(rules, NFT_PAYLOAD_NETWORK_HEADER, 12, 4, to);
}

static void load_destination_address(struct rules *rules, uint32_t to)
{
    load_payload(rules, NFT_PAYLOAD_NETWORK_HEADER, 16, 4, to);
}

static void compare(struct rules *rules, uint32_t operation, const void *data, uint32_t length)
{
    struct nftnl_expr *expression = add(rules, "cmp");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_CMP_SREG, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_CMP_OP, operation);
    (void)nftnl_expr_set(expression, NFTNL_EXPR_CMP_DATA, data, length);
}

static void mask(struct rules *rules, uint32_t bits)
{
    uint32_t nothing = 0;
    struct nftnl_expr *expression = add(rules, "bitwise");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_BITWISE_SREG, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_BITWISE_DREG, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_BITWISE_LEN, sizeof(bits));
    (void)nftnl_expr_set(expression, NFTNL_EXPR_BITWISE_MASK, &bits, sizeof(bits));
    (void)nftnl_expr_set(expression, NFTNL_EXPR_BITWISE_XOR, &nothing, sizeof(nothing));
}

/* Looks the key that starts at register A up; a map's value goes to register A. */
static void lookup(struct rules *rules, enum bt_set set)
{
    struct nftnl_expr *expression = add(rules, "lookup");
    if (!expression)
        return;
    (void)nftnl_expr_set_str(expression, NFTNL_EXPR_LOOKUP_SET, bt_set_layouts[set].name);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_LOOKUP_SREG, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_LOOKUP_FLAGS, 0); /* as the kernel dumps it */
    if (bt_set_layouts[set].data_length > 0)
        nftnl_expr_set_u32(expression, NFTNL_EXPR_LOOKUP_DREG, REGISTER_A);
}

static void verdict(struct rules *rules, int code, const char *chain)
{
    struct nftnl_expr *expression = add(rules, "immediate");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_IMM_DREG, NFT_REG_VERDICT);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_IMM_VERDICT, (uint32_t)code);
    if (chain)
        (void)nftnl_expr_set_str(expression, NFTNL_EXPR_IMM_CHAIN, chain);
    rule_close(rules);
}

static void pass(struct rules *rules)
{
    verdict(rules, NF_ACCEPT, NULL);
}

static void drop(struct rules *rules)
{
    verdict(rules, NF_DROP, NULL);
}

static void go(struct rules *rules, const char *chain)
{
    verdict(rules, NFT_GOTO, chain);
}

static void match_interface_prefix(struct rules *rules, uint32_t key, uint32_t operation)
{
    load_meta(rules, key, REGISTER_A);
    compare(rules, operation, BT_TAP_PREFIX, sizeof(BT_TAP_PREFIX) - 1);
}

static void match_byte(struct rules *rules, uint32_t meta_key, uint32_t operation, uint8_t value)
{
    load_meta(rules, meta_key, REGISTER_A);
    compare(rules, operation, &value, sizeof(value));
}

static void match_port(struct rules *rules, uint8_t protocol, uint16_t port)
{
    uint16_t network_order = htons(port);
    match_byte(rules, NFT_META_L4PROTO, NFT_CMP_EQ, protocol);
    load_payload(rules, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, REGISTER_A);
    compare(rules, NFT_CMP_EQ, &network_order, sizeof(network_order));
}

static void match_ct_bits(struct rules *rules, uint32_t key, uint32_t bits, uint32_t operation)
{
    uint32_t nothing = 0;
    load_ct(rules, key, REGISTER_A);
    mask(rules, bits);
    compare(rules, operation, &nothing, sizeof(nothing));
}

static void match_direction(struct rules *rules, uint8_t direction)
{
    load_ct(rules, NFT_CT_DIRECTION, REGISTER_A);
    compare(rules, NFT_CMP_EQ, &direction, sizeof(direction));
}

/* (interface, mark), where the interface is the incoming or the outgoing one. */
static void match_live(struct rules *rules, enum bt_set set, uint32_t interface_key)
{
    load_meta(rules, interface_key, REGISTER_A);
    load_ct(rules, NFT_CT_MARK, REGISTER_B);
    lookup(rules, set);
}

static void match_network(struct rules *rules, uint32_t network, uint32_t prefix_bits)
{
    uint32_t bits = htonl(prefix_bits == 0 ? 0 : ~0U << (32 - prefix_bits));
    uint32_t wanted = htonl(network) & bits;
    load_destination_address(rules, REGISTER_A);
    mask(rules, bits);
    compare(rules, NFT_CMP_EQ, &wanted, sizeof(wanted));
}

static void match_range(struct rules *rules, uint32_t first, uint32_t last)
{
    uint32_t low = htonl(first), high = htonl(last);
    load_destination_address(rules, REGISTER_A);
    compare(rules, NFT_CMP_GTE, &low, sizeof(low));
    compare(rules, NFT_CMP_LTE, &high, sizeof(high));
}

#define CT_STATE_INVALID 1U
#define CT_STATE(info) (1U << ((info) % IP_CT_IS_REPLY + 1))
#define CT_STATE_KNOWN (CT_STATE(IP_CT_ESTABLISHED) | CT_STATE(IP_CT_RELATED))

/* ---- the chains ------------------------------------------------------------------------------------- */

/* Every packet of a guest, before anything else looks at it. */
static void rules_prerouting(struct rules *rules)
{
    rules->chain = "prerouting";
    match_interface_prefix(rules, NFT_META_IIFNAME, NFT_CMP_EQ);
    verdict(rules, NFT_JUMP, "from_guest");

    rules->chain = "from_guest";
    match_byte(rules, NFT_META_NFPROTO, NFT_CMP_NEQ, NFPROTO_IPV4);
    go(rules, "forged");
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    load_payload(rules, NFT_PAYLOAD_LL_HEADER, 6, 6, REGISTER_B);
    load_source_address(rules, REGISTER_D);
    lookup(rules, BT_SET_SOURCES);
    go(rules, "mark_incoming");
    go(rules, "forged");

    rules->chain = "mark_incoming";
    match_ct_bits(rules, NFT_CT_STATUS, IPS_CONFIRMED, NFT_CMP_EQ);
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    lookup(rules, BT_SET_GENERATIONS);
    set_ct_mark(rules, REGISTER_A);
    rule_close(rules);

    /* No answer to a bad source: it would go to somebody else. */
    rules->chain = "forged";
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    lookup(rules, BT_SET_REFUSED);
    drop(rules);
    drop(rules);
}

static void match_gateway_ports(struct rules *rules)
{
    load_meta(rules, NFT_META_L4PROTO, REGISTER_A);
    load_payload(rules, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, REGISTER_B);
    lookup(rules, BT_SET_GATEWAY_PORTS);
}

static void rule_dnat(struct rules *rules, enum bt_set map)
{
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    load_destination_address(rules, REGISTER_B);
    lookup(rules, map);
    struct nftnl_expr *expression = add(rules, "nat");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_NAT_TYPE, NFT_NAT_DNAT);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_NAT_FAMILY, NFPROTO_IPV4);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_NAT_REG_ADDR_MIN, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_NAT_REG_ADDR_MAX, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_NAT_FLAGS, NF_NAT_RANGE_MAP_IPS);
    rule_close(rules);
}

static void rules_dnat(struct rules *rules)
{
    rules->chain = "prerouting_nat";
    match_interface_prefix(rules, NFT_META_IIFNAME, NFT_CMP_NEQ);
    pass(rules);
    match_gateway_ports(rules);
    rule_dnat(rules, BT_SET_GATEWAYS);
    match_port(rules, IPPROTO_TCP, BT_ORCHESTRATOR_PORT);
    rule_dnat(rules, BT_SET_ORCHESTRATORS);
}

/* A flow that passed once. Not by its state: one that a helper of conntrack expects (FTP and the like, should
 * the host's administrator have one) is RELATED from its first packet on, and has yet to be looked at. */
static void match_confirmed(struct rules *rules)
{
    match_ct_bits(rules, NFT_CT_STATUS, IPS_CONFIRMED, NFT_CMP_NEQ);
}

/* in . out . mark is a permitted pair, and the flow went through the DNAT of its own host address. */
static void match_pair(struct rules *rules, enum bt_set set)
{
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    load_meta(rules, NFT_META_OIF, REGISTER_B);
    load_ct(rules, NFT_CT_MARK, REGISTER_C);
    lookup(rules, set);
    match_ct_bits(rules, NFT_CT_STATUS, IPS_DST_NAT, NFT_CMP_NEQ);
}

/* TCP's first packet, SYN without ACK: conntrack takes it for the answer to a connection that the other side
 * gave up meanwhile, and the port may have a new owner by then. */
static void match_first_of_tcp(struct rules *rules)
{
    uint32_t flags = htonl(0x12000000),
             first = htonl(0x02000000); /* byte 13 of the header: ACK and SYN, SYN */
    match_byte(rules, NFT_META_L4PROTO, NFT_CMP_EQ, IPPROTO_TCP);
    load_payload(rules, NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, REGISTER_A);
    mask(rules, flags);
    compare(rules, NFT_CMP_EQ, &first, sizeof(first));
}

/* in . out . mark . address: a bridge's ports are one device, so in and out are the same. The server has the
 * destination of a question and the source of an answer. */
static void match_bridge(struct rules *rules, enum bt_set set, uint8_t direction)
{
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    load_meta(rules, NFT_META_OIF, REGISTER_B);
    load_ct(rules, NFT_CT_MARK, REGISTER_C);
    if (direction == IP_CT_DIR_ORIGINAL)
        load_destination_address(rules, REGISTER_D);
    else
        load_source_address(rules, REGISTER_D);
    lookup(rules, set);
    match_direction(rules, direction);
}

/* What goes from one port of a bridge to another comes here where bridges ask the inet hooks (br_netfilter),
 * which ours are set to, or when it is sent to the host's MAC. */
static void rules_bridge(struct rules *rules)
{
    match_bridge(rules, BT_SET_AGENT_BRIDGES, IP_CT_DIR_ORIGINAL);
    match_gateway_ports(rules);
    go(rules, "agent_flow");
    match_bridge(rules, BT_SET_CONTROL_BRIDGES, IP_CT_DIR_ORIGINAL);
    match_port(rules, IPPROTO_TCP, BT_ORCHESTRATOR_PORT);
    go(rules, "gateway_flow");
    match_bridge(rules, BT_SET_AGENT_BRIDGES, IP_CT_DIR_REPLY);
    go(rules, "bridge_answer");
    match_bridge(rules, BT_SET_CONTROL_BRIDGES, IP_CT_DIR_REPLY);
    go(rules, "bridge_answer");
}

static void rules_forward(struct rules *rules)
{
    rules->chain = "forward";
    match_interface_prefix(rules, NFT_META_IIFNAME, NFT_CMP_EQ);
    go(rules, "forward_from_guest");
    match_interface_prefix(rules, NFT_META_OIFNAME, NFT_CMP_EQ);
    go(rules, "forward_to_guest");
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    lookup(rules, BT_SET_BORROWED);
    drop(rules);

    rules->chain = "forward_from_guest";
    match_pair(rules, BT_SET_AGENT_PAIRS);
    go(rules, "agent_flow");
    match_pair(rules, BT_SET_GATEWAY_PAIRS);
    go(rules, "gateway_flow");
    match_live(rules, BT_SET_UPLINKS, NFT_META_IIF);
    match_interface_prefix(rules, NFT_META_OIFNAME, NFT_CMP_NEQ);
    go(rules, "uplink");
    rules_bridge(rules);
    go(rules, "refuse");

    /* From outside only answers to a gateway's own flows. */
    rules->chain = "forward_to_guest";
    match_live(rules, BT_SET_UPLINKS, NFT_META_OIF);
    match_direction(rules, IP_CT_DIR_REPLY);
    pass(rules);
    drop(rules);

    rules->chain = "bridge_answer";
    match_first_of_tcp(rules);
    go(rules, "refuse");
    go(rules, "accepted_from_guest");
}

/* What a gateway may not dial. */
static void rules_uplink(struct rules *rules)
{
    const struct bt_kernel_config *config = &rules->kernel->config;
    rules->chain = "uplink";
    match_confirmed(rules);
    go(rules, "accepted_from_guest");
    /* An address of the host that somebody else translates, such as a published port of a container. */
    match_ct_bits(rules, NFT_CT_STATUS, IPS_DST_NAT, NFT_CMP_NEQ);
    go(rules, "refuse");
    match_network(rules, 0xa9fe0000, 16);
    go(rules, "refuse");
    match_range(rules, config->pool.bridge_base, config->pool.bridge_base + BT_POOL_BRIDGE_BLOCK - 1U);
    go(rules, "refuse");
    match_range(rules, config->pool.tap_base, config->pool.tap_base + 2U * config->pool.slots - 1U);
    go(rules, "refuse");
    if (config->deny_private_uplink) {
        load_destination_address(rules, REGISTER_A);
        lookup(rules, BT_SET_RESOLVERS);
        go(rules, "gateway_flow");
        match_network(rules, 0x0a000000, 8);
        go(rules, "refuse");
        match_network(rules, 0xac100000, 12);
        go(rules, "refuse");
        match_network(rules, 0xc0a80000, 16);
        go(rules, "refuse");
    }
    go(rules, "gateway_flow");
}

static struct nftnl_expr *connection_limit(uint32_t count)
{
    struct nftnl_expr *expression = nftnl_expr_alloc("connlimit");
    if (expression)
        nftnl_expr_set_u32(expression, NFTNL_EXPR_CONNLIMIT_COUNT, count);
    return expression;
}

/* A new flow passes while its lease has fewer than count others. The set's elements come and go with flows. A
 * set that static elements of ours would fill is no choice: kernels before 6.13 reap idle elements with a
 * limit. */
static void rules_flow(struct rules *rules, const char *chain, enum bt_set set, uint32_t count)
{
    rules->chain = chain;
    match_confirmed(rules);
    go(rules, "accepted_from_guest");
    load_ct(rules, NFT_CT_MARK, REGISTER_A);
    struct nftnl_expr *expression = add(rules, "dynset");
    struct nftnl_expr *limit = connection_limit(count);
    if (!expression || !limit) {
        rules->error = -ENOMEM;
        return;
    }
    nftnl_expr_set_u32(expression, NFTNL_EXPR_DYNSET_SREG_KEY, REGISTER_A);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_DYNSET_OP, NFT_DYNSET_OP_ADD);
    (void)nftnl_expr_set_str(expression, NFTNL_EXPR_DYNSET_SET_NAME, bt_set_layouts[set].name);
    nftnl_expr_add_expr(expression, NFTNL_EXPR_DYNSET_EXPRESSIONS, limit);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_DYNSET_FLAGS, NFT_DYNSET_F_EXPR);
    go(rules, "accepted_from_guest");
    go(rules, "refuse");
}

static void rules_verdicts(struct rules *rules)
{
    rules->chain = "accepted_from_guest";
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    lookup(rules, BT_SET_ACCEPTED);
    pass(rules);
    drop(rules);

    /* Counted, and told as long as the slot's rate allows; conntrack's leftovers are not worth an answer. */
    rules->chain = "refuse";
    match_ct_bits(rules, NFT_CT_STATE, CT_STATE_INVALID, NFT_CMP_NEQ);
    go(rules, "forged");
    load_meta(rules, NFT_META_IIF, REGISTER_A);
    lookup(rules, BT_SET_REFUSED);
    struct nftnl_expr *expression = add(rules, "reject");
    if (!expression)
        return;
    nftnl_expr_set_u32(expression, NFTNL_EXPR_REJECT_TYPE, NFT_REJECT_ICMPX_UNREACH);
    nftnl_expr_set_u8(expression, NFTNL_EXPR_REJECT_CODE, NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
    rule_close(rules);
    drop(rules);
}

/* Between guest and host: only flows that the host opened. */
static void rules_input(struct rules *rules)
{
    rules->chain = "input";
    match_interface_prefix(rules, NFT_META_IIFNAME, NFT_CMP_EQ);
    go(rules, "input_from_guest");

    rules->chain = "input_from_guest";
    match_first_of_tcp(rules);
    go(rules, "refuse");
    match_live(rules, BT_SET_LIVE, NFT_META_IIF);
    match_direction(rules, IP_CT_DIR_REPLY);
    go(rules, "accepted_from_guest");
    go(rules, "refuse");
}

static void rules_output(struct rules *rules)
{
    uint32_t root = 0;
    rules->chain = "output";
    match_interface_prefix(rules, NFT_META_OIFNAME, NFT_CMP_EQ);
    go(rules, "output_to_guest");

    rules->chain = "output_to_guest";
    match_byte(rules, NFT_META_NFPROTO, NFT_CMP_NEQ, NFPROTO_IPV4);
    drop(rules);
    /* Each packet of a socket is asked for its owner, not only the first: another uid may bind the port of a
     * UDP flow that the owner has just left. */
    load_meta(rules, NFT_META_OIF, REGISTER_A);
    load_meta(rules, NFT_META_SKUID, REGISTER_B);
    lookup(rules, BT_SET_OWNERS);
    go(rules, "mark_outgoing");
    load_meta(rules, NFT_META_SKUID, REGISTER_A);
    compare(rules, NFT_CMP_EQ, &root, sizeof(root));
    go(rules, "mark_outgoing");
    load_meta(rules, NFT_META_SKUID, REGISTER_A);
    compare(rules, NFT_CMP_NEQ, &root, sizeof(root));
    drop(rules);
    /* No socket any more: what the kernel still sends for a closed one, and its ICMP errors. */
    match_ct_bits(rules, NFT_CT_STATE, CT_STATE_KNOWN, NFT_CMP_NEQ);
    match_live(rules, BT_SET_LIVE, NFT_META_OIF);
    match_direction(rules, IP_CT_DIR_ORIGINAL);
    pass(rules);
    match_byte(rules, NFT_META_L4PROTO, NFT_CMP_EQ, IPPROTO_ICMP);
    match_ct_bits(rules, NFT_CT_STATE, CT_STATE(IP_CT_RELATED), NFT_CMP_NEQ);
    match_live(rules, BT_SET_LIVE, NFT_META_OIF);
    pass(rules);
    drop(rules);

    rules->chain = "mark_outgoing";
    match_ct_bits(rules, NFT_CT_STATUS, IPS_CONFIRMED, NFT_CMP_EQ);
    load_meta(rules, NFT_META_OIF, REGISTER_A);
    lookup(rules, BT_SET_GENERATIONS);
    set_ct_mark(rules, REGISTER_A);
    rule_close(rules);
    match_live(rules, BT_SET_LIVE, NFT_META_OIF);
    match_direction(rules, IP_CT_DIR_ORIGINAL);
    pass(rules);
    drop(rules);
}

static void rules_masquerade(struct rules *rules)
{
    rules->chain = "postrouting_nat";
    match_live(rules, BT_SET_UPLINKS, NFT_META_IIF);
    match_interface_prefix(rules, NFT_META_OIFNAME, NFT_CMP_NEQ);
    (void)add(rules, "masq");
    rule_close(rules);
}

int bt_rules_build(const struct bt_kernel *kernel, struct bt_batch *batch, uint64_t *ret_digest,
                   uint32_t *ret_count)
{
    struct rules rules = {.kernel = kernel, .batch = batch, .digest = BT_DIGEST_START};
    rules_prerouting(&rules);
    rules_dnat(&rules);
    rules_forward(&rules);
    rules_uplink(&rules);
    rules_flow(&rules, "agent_flow", BT_SET_AGENT_FLOWS, kernel->config.agent_flows);
    rules_flow(&rules, "gateway_flow", BT_SET_GATEWAY_FLOWS, kernel->config.gateway_flows);
    rules_verdicts(&rules);
    rules_input(&rules);
    rules_output(&rules);
    rules_masquerade(&rules);
    if (rules.rule)
        nftnl_rule_free(rules.rule);
    if (rules.error < 0)
        return rules.error;
    *ret_digest = rules.digest;
    *ret_count = rules.count;
    return 0;
}
