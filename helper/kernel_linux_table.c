/* The skeleton of table inet berth: the table, its sets and chains, and its comparison with what the kernel
 * has.
 *
 * Called when the table is made (a restart finds it there) and when it is verified or repaired. Must not be
 * called on the way of LEASE or RELEASE, but for the brackets of a transaction: libnftnl allocates.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <libnftnl/chain.h>
#include <libnftnl/common.h>
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <libnftnl/set.h>
#include <libnftnl/table.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter_ipv4.h>
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
    [BT_SET_SOURCES] = {"sources", TYPE_TRIPLE(TYPE_INTERFACE, TYPE_MAC, TYPE_ADDRESS), 16, 0, 0, false},
    [BT_SET_GENERATIONS] = {"generations", TYPE_INTERFACE, 4, TYPE_MARK, 4, false},
    [BT_SET_LIVE] = {"live", TYPE_PAIR(TYPE_INTERFACE, TYPE_MARK), 8, 0, 0, false},
    [BT_SET_OWNERS] = {"owners", TYPE_PAIR(TYPE_INTERFACE, TYPE_UID), 8, 0, 0, false},
    [BT_SET_AGENT_PAIRS] = {"agent_pairs", TYPE_PAIR_OF_LINK, 12, 0, 0, true},
    [BT_SET_GATEWAY_PAIRS] = {"gateway_pairs", TYPE_PAIR_OF_LINK, 12, 0, 0, true},
    [BT_SET_AGENT_BRIDGES] = {"agent_bridges", TYPE_BRIDGE, 16, 0, 0, true},
    [BT_SET_CONTROL_BRIDGES] = {"control_bridges", TYPE_BRIDGE, 16, 0, 0, true},
    [BT_SET_UPLINKS] = {"uplinks", TYPE_PAIR(TYPE_INTERFACE, TYPE_MARK), 8, 0, 0, false},
    [BT_SET_GATEWAYS] = {"gateways", TYPE_PAIR(TYPE_INTERFACE, TYPE_ADDRESS), 8, TYPE_ADDRESS, 4, true},
    [BT_SET_ORCHESTRATORS] = {"orchestrators", TYPE_PAIR(TYPE_INTERFACE, TYPE_ADDRESS), 8, TYPE_ADDRESS, 4,
                              true},
    [BT_SET_ACCEPTED] = {"accepted", TYPE_INTERFACE, 4, 0, 0, false},
    [BT_SET_REFUSED] = {"refused", TYPE_INTERFACE, 4, 0, 0, false},
    [BT_SET_LEASES] = {"leases", TYPE_INTERFACE, 4, 0, 0, false},
    [BT_SET_RESERVED] = {"reserved", TYPE_INTERFACE, 4, 0, 0, false},
    [BT_SET_STATE] = {"state", TYPE_MARK, 4, 0, 0, false},
    [BT_SET_BORROWED] = {"borrowed", TYPE_INTERFACE, 4, 0, 0, false},
    [BT_SET_RESOLVERS] = {"resolvers", TYPE_ADDRESS, 4, 0, 0, false},
    [BT_SET_GATEWAY_PORTS] = {"gateway_ports", TYPE_PAIR(TYPE_PROTOCOL, TYPE_PORT), 8, 0, 0, false},
    [BT_SET_AGENT_FLOWS] = {"agent_flows", TYPE_MARK, 4, 0, 0, false},
    [BT_SET_GATEWAY_FLOWS] = {"gateway_flows", TYPE_MARK, 4, 0, 0, false},
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

/* Jumps lead downwards in this list reversed: every chain is made before any rule. */
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

#define NFT_MESSAGE(type) ((NFNL_SUBSYS_NFTABLES << 8) | (type))

static struct nlmsghdr *message_open(struct bt_batch *batch, uint16_t type, uint16_t flags)
{
    struct nlmsghdr *message = bt_batch_message(batch, type, flags, sizeof(struct nfgenmsg));
    if (message) {
        struct nfgenmsg *family = mnl_nlmsg_get_payload(message);
        family->nfgen_family = NFPROTO_INET;
    }
    return message;
}

static void transaction_edge(struct bt_batch *batch, uint16_t type)
{
    struct nlmsghdr *message = bt_batch_message(batch, type, 0, sizeof(struct nfgenmsg));
    if (message) {
        struct nfgenmsg *family = mnl_nlmsg_get_payload(message);
        family->res_id = htons(NFNL_SUBSYS_NFTABLES);
    }
    bt_batch_message_end(batch, message);
}

void bt_transaction_start(struct bt_kernel *kernel, struct bt_batch *batch)
{
    bt_batch_start(kernel, batch);
    transaction_edge(batch, NFNL_MSG_BATCH_BEGIN);
}

int bt_transaction_commit(struct bt_kernel *kernel, struct bt_batch *batch)
{
    /* Only the last message within is to be acknowledged: begin and end never are before Linux 6.10. */
    if (batch->last)
        batch->last->nlmsg_flags |= NLM_F_ACK;
    struct nlmsghdr *last = batch->last;
    transaction_edge(batch, NFNL_MSG_BATCH_END);
    batch->last = last;
    return bt_batch_send_nftables(kernel, batch);
}

/* ---- encoding ---------------------------------------------------------------------------------------------
 */

static int encode_table(struct bt_batch *batch, uint16_t type, uint16_t flags)
{
    struct nlmsghdr *message = message_open(batch, type, flags);
    if (message)
        mnl_attr_put_strz(message, NFTA_TABLE_NAME, BT_TABLE_NAME);
    bt_batch_message_end(batch, message);
    return batch->is_full ? -EMSGSIZE : 0;
}

void bt_table_encode_removal(struct bt_batch *batch)
{
    /* Adding what is there is no error, deleting what is not there is one. */
    (void)encode_table(batch, NFT_MESSAGE(NFT_MSG_NEWTABLE), NLM_F_CREATE);
    (void)encode_table(batch, NFT_MESSAGE(NFT_MSG_DELTABLE), 0);
}

static int set_add_counter(struct nftnl_set *set)
{
    struct nftnl_expr *expression = nftnl_expr_alloc("counter");
    if (!expression)
        return -ENOMEM;
    nftnl_set_add_expr(set, expression);
    return 0;
}

static int set_add_limit(struct nftnl_set *set)
{
    struct nftnl_expr *expression = nftnl_expr_alloc("limit");
    if (!expression)
        return -ENOMEM;
    nftnl_expr_set_u64(expression, NFTNL_EXPR_LIMIT_RATE, REFUSALS_PER_SECOND);
    nftnl_expr_set_u64(expression, NFTNL_EXPR_LIMIT_UNIT, 1);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_LIMIT_BURST, REFUSALS_BURST);
    nftnl_expr_set_u32(expression, NFTNL_EXPR_LIMIT_TYPE, NFT_LIMIT_PKTS);
    nftnl_set_add_expr(set, expression);
    return 0;
}

static uint32_t set_flags(enum bt_set set)
{
    uint32_t flags = 0;
    if (bt_set_layouts[set].data_length > 0)
        flags |= NFT_SET_MAP;
    if (set == BT_SET_ACCEPTED || set == BT_SET_REFUSED)
        flags |= NFT_SET_EXPR;
    if (set >= BT_SET_COUNTED)
        flags |= NFT_SET_EVAL;
    return flags;
}

/* Room for what a transaction takes out and puts in again, at most four elements a slot (pairs of an agent).
 */
static uint32_t set_size(const struct bt_kernel *kernel)
{
    return 8U * kernel->config.pool.slots + 64U;
}

/* For `nft list` alone: in which byte order it is to print keys and values. {type, length, value}, as nft
 * writes it. */
static void describe_set(const struct bt_set_layout *layout, struct nftnl_set *set)
{
    enum { KEY_ORDER = 0, DATA_ORDER = 1, HOST_ORDER = 1, NETWORK_ORDER = 2 };
    uint8_t key_order = layout->key_type == TYPE_ADDRESS ? NETWORK_ORDER : HOST_ORDER;
    uint8_t data_order = layout->data_type == TYPE_ADDRESS ? NETWORK_ORDER : HOST_ORDER;
    const uint8_t description[] = {KEY_ORDER, 4, key_order, 0, 0, 0, DATA_ORDER, 4, data_order, 0, 0, 0};
    (void)nftnl_set_set_data(set, NFTNL_SET_USERDATA, description, sizeof(description));
}

static int build_set(const struct bt_kernel *kernel, enum bt_set index, struct nftnl_set *set)
{
    const struct bt_set_layout *layout = &bt_set_layouts[index];
    nftnl_set_set_u32(set, NFTNL_SET_FAMILY, NFPROTO_INET);
    if (nftnl_set_set_str(set, NFTNL_SET_TABLE, BT_TABLE_NAME) < 0 ||
        nftnl_set_set_str(set, NFTNL_SET_NAME, layout->name) < 0)
        return -ENOMEM;
    nftnl_set_set_u32(set, NFTNL_SET_ID, (uint32_t)index + 1);
    nftnl_set_set_u32(set, NFTNL_SET_FLAGS, set_flags(index));
    nftnl_set_set_u32(set, NFTNL_SET_KEY_TYPE, layout->key_type);
    nftnl_set_set_u32(set, NFTNL_SET_KEY_LEN, layout->key_length);
    nftnl_set_set_u32(set, NFTNL_SET_DESC_SIZE, set_size(kernel));
    if (layout->data_length > 0) {
        nftnl_set_set_u32(set, NFTNL_SET_DATA_TYPE, layout->data_type);
        nftnl_set_set_u32(set, NFTNL_SET_DATA_LEN, layout->data_length);
    }
    describe_set(layout, set);
    int error = 0;
    if (index == BT_SET_ACCEPTED || index == BT_SET_REFUSED)
        error = set_add_counter(set);
    if (error == 0 && index == BT_SET_REFUSED)
        error = set_add_limit(set);
    return error;
}

static int encode_set(const struct bt_kernel *kernel, struct bt_batch *batch, enum bt_set index)
{
    struct nftnl_set *set = nftnl_set_alloc();
    if (!set)
        return -ENOMEM;
    int error = build_set(kernel, index, set);
    struct nlmsghdr *message =
        error < 0 ? NULL : message_open(batch, NFT_MESSAGE(NFT_MSG_NEWSET), NLM_F_CREATE);
    if (message)
        nftnl_set_nlmsg_build_payload(message, set);
    bt_batch_message_end(batch, message);
    nftnl_set_free(set);
    return error;
}

static int encode_chain(struct bt_batch *batch, const struct chain_layout *layout)
{
    struct nftnl_chain *chain = nftnl_chain_alloc();
    if (!chain)
        return -ENOMEM;
    nftnl_chain_set_u32(chain, NFTNL_CHAIN_FAMILY, NFPROTO_INET);
    (void)nftnl_chain_set_str(chain, NFTNL_CHAIN_TABLE, BT_TABLE_NAME);
    (void)nftnl_chain_set_str(chain, NFTNL_CHAIN_NAME, layout->name);
    if (layout->type) {
        (void)nftnl_chain_set_str(chain, NFTNL_CHAIN_TYPE, layout->type);
        nftnl_chain_set_u32(chain, NFTNL_CHAIN_HOOKNUM, layout->hook);
        nftnl_chain_set_s32(chain, NFTNL_CHAIN_PRIO, layout->priority);
        nftnl_chain_set_u32(chain, NFTNL_CHAIN_POLICY, NF_ACCEPT);
    }
    struct nlmsghdr *message = message_open(batch, NFT_MESSAGE(NFT_MSG_NEWCHAIN), NLM_F_CREATE);
    if (message)
        nftnl_chain_nlmsg_build_payload(message, chain);
    bt_batch_message_end(batch, message);
    nftnl_chain_free(chain);
    return 0;
}

int bt_table_encode(struct bt_kernel *kernel, struct bt_batch *batch)
{
    int error = encode_table(batch, NFT_MESSAGE(NFT_MSG_NEWTABLE), NLM_F_CREATE | NLM_F_EXCL);
    for (size_t i = 0; error == 0 && i < BT_SET_MAX; i++)
        error = encode_set(kernel, batch, (enum bt_set)i);
    for (size_t i = 0; error == 0 && i < BT_ARRAY_LENGTH(chains); i++)
        error = encode_chain(batch, &chains[i]);
    if (error < 0)
        return error;
    uint64_t digest;
    uint32_t count;
    error = bt_rules_build(kernel, batch, &digest, &count);
    if (error < 0)
        return error;
    return batch->is_full ? -EMSGSIZE : 0;
}

/* ---- comparing --------------------------------------------------------------------------------------------
 */

struct comparison {
    const struct bt_kernel *kernel;
    uint64_t rule_digest;
    uint32_t rules, sets, chains;
    bool is_different;
};

/* Parses into a libnftnl object; what cannot be parsed is a difference. */
static int compare_rule(const struct nlmsghdr *message, void *context)
{
    struct comparison *comparison = context;
    struct nftnl_rule *rule = nftnl_rule_alloc();
    if (!rule)
        return -ENOMEM;
    if (nftnl_rule_nlmsg_parse(message, rule) < 0) {
        comparison->is_different = true;
    } else if (nftnl_rule_get_u32(rule, NFTNL_RULE_FAMILY) == NFPROTO_INET &&
               strcmp(nftnl_rule_get_str(rule, NFTNL_RULE_TABLE), BT_TABLE_NAME) == 0) {
        comparison->rules++;
        if (bt_rule_digest(rule, &comparison->rule_digest) < 0)
            comparison->is_different = true;
    }
    nftnl_rule_free(rule);
    return 0;
}

static bool is_set_equal(const struct nftnl_set *set)
{
    const char *name = nftnl_set_get_str(set, NFTNL_SET_NAME);
    for (size_t i = 0; name && i < BT_SET_MAX; i++) {
        const struct bt_set_layout *layout = &bt_set_layouts[i];
        if (strcmp(name, layout->name) != 0)
            continue;
        return nftnl_set_get_u32(set, NFTNL_SET_KEY_LEN) == layout->key_length &&
               nftnl_set_get_u32(set, NFTNL_SET_FLAGS) == set_flags((enum bt_set)i) &&
               (layout->data_length == 0 ||
                nftnl_set_get_u32(set, NFTNL_SET_DATA_LEN) == layout->data_length);
    }
    return false;
}

static int compare_set(const struct nlmsghdr *message, void *context)
{
    struct comparison *comparison = context;
    struct nftnl_set *set = nftnl_set_alloc();
    if (!set)
        return -ENOMEM;
    if (nftnl_set_nlmsg_parse(message, set) < 0) {
        comparison->is_different = true;
    } else if (strcmp(nftnl_set_get_str(set, NFTNL_SET_TABLE), BT_TABLE_NAME) == 0) {
        comparison->sets++;
        if (!is_set_equal(set))
            comparison->is_different = true;
    }
    nftnl_set_free(set);
    return 0;
}

static bool is_chain_equal(const struct nftnl_chain *chain)
{
    const char *name = nftnl_chain_get_str(chain, NFTNL_CHAIN_NAME);
    for (size_t i = 0; name && i < BT_ARRAY_LENGTH(chains); i++) {
        if (strcmp(name, chains[i].name) != 0)
            continue;
        bool is_base = nftnl_chain_is_set(chain, NFTNL_CHAIN_HOOKNUM);
        if (!chains[i].type || !is_base)
            return !chains[i].type && !is_base;
        const char *type = nftnl_chain_get_str(chain, NFTNL_CHAIN_TYPE);
        return type && strcmp(type, chains[i].type) == 0 &&
               nftnl_chain_get_u32(chain, NFTNL_CHAIN_HOOKNUM) == chains[i].hook &&
               nftnl_chain_get_s32(chain, NFTNL_CHAIN_PRIO) == chains[i].priority &&
               nftnl_chain_get_u32(chain, NFTNL_CHAIN_POLICY) == NF_ACCEPT;
    }
    return false;
}

static int compare_chain(const struct nlmsghdr *message, void *context)
{
    struct comparison *comparison = context;
    struct nftnl_chain *chain = nftnl_chain_alloc();
    if (!chain)
        return -ENOMEM;
    if (nftnl_chain_nlmsg_parse(message, chain) < 0) {
        comparison->is_different = true;
    } else if (strcmp(nftnl_chain_get_str(chain, NFTNL_CHAIN_TABLE), BT_TABLE_NAME) == 0) {
        comparison->chains++;
        if (!is_chain_equal(chain))
            comparison->is_different = true;
    }
    nftnl_chain_free(chain);
    return 0;
}

/* A dump of everything of one kind in our table. */
static int dump(struct bt_kernel *kernel, uint16_t type, bt_netlink_visit visit, void *context)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = message_open(&batch, type, NLM_F_DUMP);
    mnl_attr_put_strz(message, 1, BT_TABLE_NAME); /* the table's name has number 1 in every kind of message */
    bt_batch_message_end(&batch, message);
    kernel->sequence = batch.sequence;
    return bt_netlink_query(kernel, kernel->netfilter_fd, message, visit, context);
}

static int table_found(const struct nlmsghdr *message, void *context)
{
    struct comparison *comparison = context;
    struct nftnl_table *table = nftnl_table_alloc();
    if (!table)
        return -ENOMEM;
    if (nftnl_table_nlmsg_parse(message, table) < 0 || nftnl_table_get_u32(table, NFTNL_TABLE_FLAGS) != 0)
        comparison->is_different = true; /* a dormant table filters nothing */
    nftnl_table_free(table);
    return 0;
}

static int compare_table(struct bt_kernel *kernel, struct comparison *comparison)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = message_open(&batch, NFT_MESSAGE(NFT_MSG_GETTABLE), NLM_F_ACK);
    mnl_attr_put_strz(message, NFTA_TABLE_NAME, BT_TABLE_NAME);
    bt_batch_message_end(&batch, message);
    kernel->sequence = batch.sequence;
    return bt_netlink_query(kernel, kernel->netfilter_fd, message, table_found, comparison);
}

int bt_table_compare(struct bt_kernel *kernel)
{
    uint64_t digest;
    uint32_t count;
    struct comparison comparison = {.kernel = kernel, .rule_digest = BT_DIGEST_START};
    int error = compare_table(kernel, &comparison);
    if (error < 0)
        return error;
    error = bt_rules_build(kernel, NULL, &digest, &count);
    if (error == 0)
        error = dump(kernel, NFT_MESSAGE(NFT_MSG_GETRULE), compare_rule, &comparison);
    if (error == 0)
        error = dump(kernel, NFT_MESSAGE(NFT_MSG_GETSET), compare_set, &comparison);
    if (error == 0)
        error = dump(kernel, NFT_MESSAGE(NFT_MSG_GETCHAIN), compare_chain, &comparison);
    if (error < 0)
        return error;
    bool is_equal = !comparison.is_different && comparison.rule_digest == digest &&
                    comparison.rules == count && comparison.sets == BT_SET_MAX &&
                    comparison.chains == BT_ARRAY_LENGTH(chains);
    return is_equal ? 0 : -EUCLEAN;
}
