/* The skeleton of table inet berth: the table, its sets and chains, and its comparison with what the kernel
 * has.
 *
 * Called when the table is made (a restart finds it there) and when it is verified or repaired. Comparing
 * encodes the skeleton again and holds what the kernel tells against it, attribute by attribute: the layout
 * is written down once.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>

/* nft's numbers of data types (its documentation of typeof and set types), for `nft list`. */
#define TYPE_ADDRESS 7U
#define TYPE_MAC 9U
#define TYPE_PROTOCOL 12U
#define TYPE_PORT 13U
#define TYPE_MARK 19U
#define TYPE_INTERFACE 20U
#define TYPE_UID 24U
#define TYPE_PAIR(a, b) ((a) << 6 | (b))
#define TYPE_TRIPLE(a, b, c) (TYPE_PAIR(a, b) << 6 | (c))
#define TYPE_QUADRUPLE(a, b, c, d) (TYPE_TRIPLE(a, b, c) << 6 | (d))
#define TYPE_PAIR_OF_LINK TYPE_TRIPLE(TYPE_INTERFACE, TYPE_INTERFACE, TYPE_MARK)
#define TYPE_BRIDGE TYPE_QUADRUPLE(TYPE_INTERFACE, TYPE_INTERFACE, TYPE_MARK, TYPE_ADDRESS)

const struct bt_set_layout bt_set_layouts[BT_SET_MAX] = {
    [BT_SET_SOURCES] = {"sources", BT_SET_OF_AUTHORITY, TYPE_TRIPLE(TYPE_INTERFACE, TYPE_MAC, TYPE_ADDRESS),
                        16, 0},
    [BT_SET_GENERATIONS] = {"generations", BT_SET_OF_AUTHORITY, TYPE_INTERFACE, 4, TYPE_MARK},
    [BT_SET_LIVE] = {"live", BT_SET_OF_AUTHORITY, TYPE_PAIR(TYPE_INTERFACE, TYPE_MARK), 8, 0},
    [BT_SET_OWNERS] = {"owners", BT_SET_OF_AUTHORITY, TYPE_PAIR(TYPE_INTERFACE, TYPE_UID), 8, 0},
    [BT_SET_AGENT_PAIRS] = {"agent_pairs", BT_SET_OF_LINKS, TYPE_PAIR_OF_LINK, 12, 0},
    [BT_SET_GATEWAY_PAIRS] = {"gateway_pairs", BT_SET_OF_LINKS, TYPE_PAIR_OF_LINK, 12, 0},
    [BT_SET_AGENT_BRIDGES] = {"agent_bridges", BT_SET_OF_LINKS, TYPE_BRIDGE, 16, 0},
    [BT_SET_CONTROL_BRIDGES] = {"control_bridges", BT_SET_OF_LINKS, TYPE_BRIDGE, 16, 0},
    [BT_SET_UPLINKS] = {"uplinks", BT_SET_OF_AUTHORITY, TYPE_PAIR(TYPE_INTERFACE, TYPE_MARK), 8, 0},
    [BT_SET_GATEWAYS] = {"gateways", BT_SET_OF_LINKS, TYPE_PAIR(TYPE_INTERFACE, TYPE_ADDRESS), 8,
                         TYPE_ADDRESS},
    [BT_SET_ORCHESTRATORS] = {"orchestrators", BT_SET_OF_LINKS, TYPE_PAIR(TYPE_INTERFACE, TYPE_ADDRESS), 8,
                              TYPE_ADDRESS},
    [BT_SET_ACCEPTED] = {"accepted", BT_SET_OF_ACCOUNT, TYPE_INTERFACE, 4, 0},
    [BT_SET_REFUSED] = {"refused", BT_SET_OF_ACCOUNT, TYPE_INTERFACE, 4, 0},
    [BT_SET_LEASES] = {"leases", BT_SET_OF_AUTHORITY, TYPE_INTERFACE, 4, 0},
    [BT_SET_RESERVED] = {"reserved", BT_SET_OF_AUTHORITY, TYPE_INTERFACE, 4, 0},
    [BT_SET_STATE] = {"state", BT_SET_OF_TABLE, TYPE_MARK, 4, 0},
    [BT_SET_BORROWED] = {"borrowed", BT_SET_OF_TABLE, TYPE_INTERFACE, 4, 0},
    [BT_SET_RESOLVERS] = {"resolvers", BT_SET_OF_TABLE, TYPE_ADDRESS, 4, 0},
    [BT_SET_GATEWAY_PORTS] = {"gateway_ports", BT_SET_OF_TABLE, TYPE_PAIR(TYPE_PROTOCOL, TYPE_PORT), 8, 0},
    [BT_SET_AGENT_FLOWS] = {"agent_flows", BT_SET_OF_PACKETS, TYPE_MARK, 4, 0},
    [BT_SET_GATEWAY_FLOWS] = {"gateway_flows", BT_SET_OF_PACKETS, TYPE_MARK, 4, 0},
};

/* Refusals that a guest is told about: per slot, so that one guest cannot use up another's. */
#define REFUSALS_PER_SECOND 50U
#define REFUSALS_BURST 50U

struct chain_layout {
    const char *name;
    const char *type; /* NULL: not a base chain */
    uint32_t hook;
    int32_t priority;
};

/* In the order of the rules in kernel_linux_rules.c. */
static const struct chain_layout chains[] = {
    {"prerouting", "filter", NF_INET_PRE_ROUTING, -110},
    {"from_guest", NULL, 0, 0},
    {"mark_incoming", NULL, 0, 0},
    {"forged", NULL, 0, 0},
    {"prerouting_nat", "nat", NF_INET_PRE_ROUTING, -105},
    {"forward", "filter", NF_INET_FORWARD, -5},
    {"forward_from_guest", NULL, 0, 0},
    {"forward_to_guest", NULL, 0, 0},
    {"bridge_answer", NULL, 0, 0},
    {"uplink", NULL, 0, 0},
    {"agent_flow", NULL, 0, 0},
    {"gateway_flow", NULL, 0, 0},
    {"accepted_from_guest", NULL, 0, 0},
    {"refuse", NULL, 0, 0},
    {"input", "filter", NF_INET_LOCAL_IN, -5},
    {"input_from_guest", NULL, 0, 0},
    {"output", "filter", NF_INET_LOCAL_OUT, -5},
    {"output_to_guest", NULL, 0, 0},
    {"mark_outgoing", NULL, 0, 0},
    {"postrouting_nat", "nat", NF_INET_POST_ROUTING, 95},
};

/* The number of the table's name, in every kind of message. */
#define ATTRIBUTE_TABLE 1U

struct nlmsghdr *bt_table_message(struct bt_batch *batch, uint16_t type, uint16_t flags)
{
    struct nfgenmsg family = {.nfgen_family = NFPROTO_INET};
    struct nlmsghdr *message =
        bt_message(batch, (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | type), flags, &family, sizeof(family));
    mnl_attr_put_strz(message, ATTRIBUTE_TABLE, BT_TABLE_NAME);
    return message;
}

void bt_put_be32(struct nlmsghdr *message, uint16_t attribute, uint32_t value)
{
    mnl_attr_put_u32(message, attribute, htonl(value));
}

void bt_put_data(struct nlmsghdr *message, uint16_t attribute, const void *data, uint32_t length)
{
    struct nlattr *nest = mnl_attr_nest_start(message, attribute);
    mnl_attr_put(message, NFTA_DATA_VALUE, length, data);
    mnl_attr_nest_end(message, nest);
}

static void transaction_edge(struct bt_batch *batch, uint16_t type)
{
    struct nfgenmsg family = {.res_id = htons(NFNL_SUBSYS_NFTABLES)};
    (void)bt_message(batch, type, 0, &family, sizeof(family));
}

void bt_transaction_start(struct bt_kernel *kernel, struct bt_batch *batch)
{
    bt_batch_start(kernel, batch);
    transaction_edge(batch, NFNL_MSG_BATCH_BEGIN);
}

int bt_transaction_commit(struct bt_kernel *kernel, struct bt_batch *batch)
{
    /* Only the last message within is to be acknowledged: begin and end never are before Linux 6.10. */
    batch->last->nlmsg_flags |= NLM_F_ACK;
    transaction_edge(batch, NFNL_MSG_BATCH_END);
    return bt_batch_send_nftables(kernel, batch);
}

/* ---- encoding ---------------------------------------------------------------------------------------------
 */

void bt_table_encode_removal(struct bt_batch *batch)
{
    /* Adding what is there is no error, deleting what is not there is one. */
    (void)bt_table_message(batch, NFT_MSG_NEWTABLE, NLM_F_CREATE);
    (void)bt_table_message(batch, NFT_MSG_DELTABLE, 0);
}

static void put_counter(struct nlmsghdr *message, uint16_t attribute)
{
    struct nlattr *expression = mnl_attr_nest_start(message, attribute);
    mnl_attr_put_strz(message, NFTA_EXPR_NAME, "counter");
    struct nlattr *data = mnl_attr_nest_start(message, NFTA_EXPR_DATA);
    mnl_attr_put_u64(message, NFTA_COUNTER_BYTES, 0);
    mnl_attr_put_u64(message, NFTA_COUNTER_PACKETS, 0);
    mnl_attr_nest_end(message, data);
    mnl_attr_nest_end(message, expression);
}

static void put_limit(struct nlmsghdr *message, uint16_t attribute)
{
    struct nlattr *expression = mnl_attr_nest_start(message, attribute);
    mnl_attr_put_strz(message, NFTA_EXPR_NAME, "limit");
    struct nlattr *data = mnl_attr_nest_start(message, NFTA_EXPR_DATA);
    mnl_attr_put_u64(message, NFTA_LIMIT_RATE, htobe64(REFUSALS_PER_SECOND));
    mnl_attr_put_u64(message, NFTA_LIMIT_UNIT, htobe64(1));
    bt_put_be32(message, NFTA_LIMIT_BURST, REFUSALS_BURST);
    bt_put_be32(message, NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS);
    mnl_attr_nest_end(message, data);
    mnl_attr_nest_end(message, expression);
}

/* For `nft list` alone: in which byte order it is to print keys and values. {type, length, value}, as nft
 * writes it. */
static void put_description(struct nlmsghdr *message, const struct bt_set_layout *layout)
{
    enum { KEY_ORDER = 0, DATA_ORDER = 1, HOST_ORDER = 1, NETWORK_ORDER = 2 };
    uint8_t key_order = layout->key_type == TYPE_ADDRESS ? NETWORK_ORDER : HOST_ORDER;
    uint8_t data_order = layout->data_type == TYPE_ADDRESS ? NETWORK_ORDER : HOST_ORDER;
    const uint8_t description[] = {KEY_ORDER, 4, key_order, 0, 0, 0, DATA_ORDER, 4, data_order, 0, 0, 0};
    mnl_attr_put(message, NFTA_SET_USERDATA, sizeof(description), description);
}

static uint32_t set_flags(const struct bt_set_layout *layout)
{
    return (layout->data_type != 0 ? NFT_SET_MAP : 0U) |
           (layout->kind == BT_SET_OF_ACCOUNT ? NFT_SET_EXPR : 0U) |
           (layout->kind == BT_SET_OF_PACKETS ? NFT_SET_EVAL : 0U);
}

static void encode_set(const struct bt_kernel *kernel, struct bt_batch *batch, enum bt_set set)
{
    const struct bt_set_layout *layout = &bt_set_layouts[set];
    struct nlmsghdr *message = bt_table_message(batch, NFT_MSG_NEWSET, NLM_F_CREATE);
    mnl_attr_put_strz(message, NFTA_SET_NAME, layout->name);
    bt_put_be32(message, NFTA_SET_ID, 0); /* names the set within a transaction: not needed, but asked for */
    bt_put_be32(message, NFTA_SET_FLAGS, set_flags(layout));
    bt_put_be32(message, NFTA_SET_KEY_TYPE, layout->key_type);
    bt_put_be32(message, NFTA_SET_KEY_LEN, layout->key_length);
    if (layout->data_type != 0) {
        bt_put_be32(message, NFTA_SET_DATA_TYPE, layout->data_type);
        bt_put_be32(message, NFTA_SET_DATA_LEN, sizeof(uint32_t));
    }
    /* Room for what a transaction takes out and puts in again, at most four elements a slot. */
    struct nlattr *nest = mnl_attr_nest_start(message, NFTA_SET_DESC);
    bt_put_be32(message, NFTA_SET_DESC_SIZE, 8U * kernel->config.pool.slots + 64U);
    mnl_attr_nest_end(message, nest);
    put_description(message, layout);
    if (set == BT_SET_ACCEPTED)
        put_counter(message, NFTA_SET_EXPR);
    if (set == BT_SET_REFUSED) {
        nest = mnl_attr_nest_start(message, NFTA_SET_EXPRESSIONS);
        put_counter(message, NFTA_LIST_ELEM);
        put_limit(message, NFTA_LIST_ELEM);
        mnl_attr_nest_end(message, nest);
    }
}

static void encode_chain(struct bt_batch *batch, const struct chain_layout *layout)
{
    struct nlmsghdr *message = bt_table_message(batch, NFT_MSG_NEWCHAIN, NLM_F_CREATE);
    mnl_attr_put_strz(message, NFTA_CHAIN_NAME, layout->name);
    if (!layout->type)
        return;
    struct nlattr *hook = mnl_attr_nest_start(message, NFTA_CHAIN_HOOK);
    bt_put_be32(message, NFTA_HOOK_HOOKNUM, layout->hook);
    bt_put_be32(message, NFTA_HOOK_PRIORITY, (uint32_t)layout->priority);
    mnl_attr_nest_end(message, hook);
    bt_put_be32(message, NFTA_CHAIN_POLICY, NF_ACCEPT);
    mnl_attr_put_strz(message, NFTA_CHAIN_TYPE, layout->type);
}

void bt_table_encode(struct bt_kernel *kernel, struct bt_batch *batch)
{
    bt_put_be32(bt_table_message(batch, NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_EXCL), NFTA_TABLE_FLAGS, 0);
    for (unsigned set = 0; set < BT_SET_MAX; set++)
        encode_set(kernel, batch, (enum bt_set)set);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(chains); i++)
        encode_chain(batch, &chains[i]);
    bt_rules_encode(kernel, batch);
}

/* ---- comparing --------------------------------------------------------------------------------------------
 */

static bool is_zero(const struct nlattr *attribute)
{
    const uint8_t *bytes = mnl_attr_get_payload(attribute);
    for (size_t i = 0; i < mnl_attr_get_payload_len(attribute); i++) {
        if (bytes[i] != 0)
            return false;
    }
    return true;
}

/* The count-th attribute of that type. */
static const struct nlattr *find_nth(struct bt_attributes walk, uint16_t type, unsigned count)
{
    const struct nlattr *attribute;
    while (bt_attribute_next(&walk, &attribute)) {
        if (mnl_attr_get_type(attribute) == type && count-- == 0)
            return attribute;
    }
    return NULL;
}

static bool is_payload_same(const struct nlattr *ours, const struct nlattr *theirs)
{
    size_t length = mnl_attr_get_payload_len(ours);
    return mnl_attr_get_payload_len(theirs) == length &&
           memcmp(mnl_attr_get_payload(ours), mnl_attr_get_payload(theirs), length) == 0;
}

/* Is all of ours in theirs, in the same order where attributes repeat? Within what we encoded as a nest there
 * must be nothing else; kernels differ in whether they name a setting that is 0. Beside it, in an object
 * itself, they tell more (handles, counts). As deep as our own encoding. */
static bool is_same(struct bt_attributes ours, struct bt_attributes theirs, bool is_object)
{
    const struct nlattr *attribute;
    uint8_t seen[32] = {0}; /* attributes of each type; ours are all lower */
    while (bt_attribute_next(&ours, &attribute)) {
        uint16_t type = mnl_attr_get_type(attribute);
        const struct nlattr *other = find_nth(theirs, type, seen[type]++);
        bool is_nest = (attribute->nla_type & NLA_F_NESTED) != 0;
        if (!other && is_zero(attribute))
            continue;
        if (!other || (is_nest && !is_same(bt_attributes_in(attribute), bt_attributes_in(other), false)) ||
            (!is_nest && !is_payload_same(attribute, other)))
            return false;
    }
    while (!is_object && bt_attribute_next(&theirs, &attribute)) {
        uint16_t type = mnl_attr_get_type(attribute);
        if (type < sizeof(seen) && seen[type] > 0)
            seen[type]--;
        else if (!is_zero(attribute))
            return false;
    }
    return true;
}

struct comparison {
    const struct nlmsghdr *expected; /* the next one */
    const uint8_t *end;
    bool is_different;
};

static int compare_object(const struct nlmsghdr *message, void *context)
{
    struct comparison *comparison = context;
    const struct nlmsghdr *expected = comparison->expected;
    struct bt_attributes theirs = bt_attributes_of(message, sizeof(struct nfgenmsg));
    const struct nlattr *table = bt_attribute_find(theirs, ATTRIBUTE_TABLE);
    if (!table || mnl_attr_get_payload_len(table) != sizeof(BT_TABLE_NAME) ||
        memcmp(mnl_attr_get_payload(table), BT_TABLE_NAME, sizeof(BT_TABLE_NAME)) != 0)
        return 0; /* chains are told of all tables */
    if ((const uint8_t *)expected == comparison->end || expected->nlmsg_type != message->nlmsg_type ||
        !is_same(bt_attributes_of(expected, sizeof(struct nfgenmsg)), theirs, true)) {
        comparison->is_different = true;
        return 0;
    }
    comparison->expected =
        (const struct nlmsghdr *)(const void *)((const uint8_t *)expected + NLMSG_ALIGN(expected->nlmsg_len));
    return 0;
}

/* The kernel tells sets, chains and rules in the order in which they were made, rules chain by chain. */
int bt_table_compare(struct bt_kernel *kernel)
{
    static const uint16_t dumps[] = {NFT_MSG_GETSET, NFT_MSG_GETCHAIN, NFT_MSG_GETRULE};
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    bt_table_encode(kernel, &batch);
    struct comparison comparison = {.expected = (const struct nlmsghdr *)(const void *)batch.buffer,
                                    .end = batch.buffer + bt_batch_used(&batch)};
    (void)bt_table_message(&batch, NFT_MSG_GETTABLE, NLM_F_ACK);
    int error = bt_netlink_query(kernel, kernel->netfilter_fd, &batch, compare_object, &comparison);
    for (size_t i = 0; error == 0 && i < BT_ARRAY_LENGTH(dumps); i++) {
        (void)bt_table_message(&batch, dumps[i], NLM_F_DUMP);
        error = bt_netlink_query(kernel, kernel->netfilter_fd, &batch, compare_object, &comparison);
    }
    if (error < 0)
        return error;
    bool is_complete = (const uint8_t *)comparison.expected == comparison.end;
    return is_complete && !comparison.is_different ? 0 : -EUCLEAN;
}
