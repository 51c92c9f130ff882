/* The rules of table inet berth: a table of them, whose number does not depend on the number of slots, and
 * its encoding.
 *
 * Rules know no slot: slots are elements of the sets. A rule is a row of steps; each loads something into a
 * register, compares a register, looks a key up that lies in neighbouring registers, or ends the rule.
 *
 * The order within a packet's way, and why:
 *   prerouting -110  after conntrack (-200), other people's mangling (-150); before any DNAT. Source check;
 *                    an unconfirmed flow gets its generation as mark. A confirmed flow of an earlier lease
 *                    keeps the old mark, also while it is unreplied ("new"), so it fails the checks below
 *                    instead of being re-marked.
 *   prerouting -105  DNAT, before other people's (-100), which could catch the same ports.
 *   forward, input, output -5   (interface, mark) and the permitted pair decide, before any look at the
 *                    flow's state.
 *   postrouting 95   masquerade of gateways.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_conntrack_common.h>
#include <linux/netfilter/nf_nat.h>
#include <linux/netfilter/nf_tables.h>
#include <string.h>

/* Registers of four bytes; a key of several parts lies in neighbouring ones. The kernel names the first
 * NFT_REG_1. */
#define A NFT_REG_1
#define B NFT_REG32_01
#define C NFT_REG32_02
#define D NFT_REG32_03

/* What is compared may be in the configuration. */
enum setting { CONSTANT, BRIDGES_FIRST, BRIDGES_LAST, TAPS_FIRST, TAPS_LAST };

/* An expression of nf_tables: its name, its attributes that are numbers (linux/netfilter/nf_tables.h), and
 * one more thing that some have. */
struct step {
    const char *expression; /* NULL: the rule ends */
    struct {
        uint16_t attribute; /* 0: no more */
        uint32_t value;
    } numbers[5];
    enum {
        NOTHING,
        CONDITION,     /* first: the rule is there only in this configuration */
        COMPARED_WITH, /* value */
        BITS_KEPT,     /* value, of four bytes */
        SET,           /* which one */
        FLOW_LIMIT,
        CODE_OF_ICMP,
        CODE_OF_VERDICT
    } more;
    uint32_t length;  /* of value */
    uint32_t code;    /* of a verdict */
    const char *name; /* of a chain */
    enum bt_set set;
    enum setting setting;
    uint8_t value[6];
};

#define STEP(...)                                                                                            \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
#define NUMBERS(...) .numbers = {__VA_ARGS__}
#define META(key, register) STEP("meta", NUMBERS({NFTA_META_KEY, key}, {NFTA_META_DREG, register}))
#define CT(key, register) STEP("ct", NUMBERS({NFTA_CT_KEY, key}, {NFTA_CT_DREG, register}))
#define SET_MARK STEP("ct", NUMBERS({NFTA_CT_KEY, NFT_CT_MARK}, {NFTA_CT_SREG, A}))
#define PAYLOAD(base, from, bytes, register)                                                                 \
    STEP("payload", NUMBERS({NFTA_PAYLOAD_DREG, register}, {NFTA_PAYLOAD_BASE, base},                        \
                            {NFTA_PAYLOAD_OFFSET, from}, {NFTA_PAYLOAD_LEN, bytes}))
#define ROUTE(result, flags)                                                                                 \
    STEP("fib", NUMBERS({NFTA_FIB_DREG, A}, {NFTA_FIB_RESULT, result}, {NFTA_FIB_FLAGS, flags}))
#define COMPARED(operation, size)                                                                            \
    NUMBERS({NFTA_CMP_SREG, A}, {NFTA_CMP_OP, operation}), .more = COMPARED_WITH, .length = (size)
#define COMPARE(operation, size, ...) STEP("cmp", COMPARED(operation, size), .value = {__VA_ARGS__})
#define COMPARE_SETTING(operation, which) STEP("cmp", COMPARED(operation, 4), .setting = (which))
#define MASK(...)                                                                                            \
    STEP("bitwise", NUMBERS({NFTA_BITWISE_SREG, A}, {NFTA_BITWISE_DREG, A}, {NFTA_BITWISE_LEN, 4}),          \
         .more = BITS_KEPT, .value = {__VA_ARGS__})
#define IN(which) STEP("lookup", NUMBERS({NFTA_LOOKUP_SREG, A}), .more = SET, .set = BT_SET_##which)
#define BELOW_LIMIT(which)                                                                                   \
    STEP("dynset", NUMBERS({NFTA_DYNSET_SREG_KEY, A}, {NFTA_DYNSET_OP, NFT_DYNSET_OP_ADD}),                  \
         .more = FLOW_LIMIT, .set = BT_SET_##which)
#define DNAT                                                                                                 \
    STEP("nat",                                                                                              \
         NUMBERS({NFTA_NAT_TYPE, NFT_NAT_DNAT}, {NFTA_NAT_FAMILY, NFPROTO_IPV4}, {NFTA_NAT_REG_ADDR_MIN, A}, \
                 {NFTA_NAT_REG_ADDR_MAX, A}, {NFTA_NAT_FLAGS, NF_NAT_RANGE_MAP_IPS}))
#define MASQUERADE STEP(.expression = "masq")
#define REJECT STEP("reject", NUMBERS({NFTA_REJECT_TYPE, NFT_REJECT_ICMPX_UNREACH}), .more = CODE_OF_ICMP)
#define VERDICT(verdict, chain)                                                                              \
    STEP("immediate", NUMBERS({NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT}), .more = CODE_OF_VERDICT,              \
         .code = (uint32_t)(verdict), .name = (chain))
#define ACCEPT VERDICT(NF_ACCEPT, NULL)
#define DROP VERDICT(NF_DROP, NULL)
#define GO(chain) VERDICT(NFT_GOTO, chain)
#define JUMP(chain) VERDICT(NFT_JUMP, chain)
#define WHERE_PRIVATE_IS_DENIED STEP("", .more = CONDITION)

/* What packets have. Numbers in headers and of ports are in network byte order, conntrack's in the host's. */
#define EQ NFT_CMP_EQ
#define NEQ NFT_CMP_NEQ
#define IN_DEVICE(register) META(NFT_META_IIF, register)
#define OUT_DEVICE(register) META(NFT_META_OIF, register)
#define MARK(register) CT(NFT_CT_MARK, register)
#define SOURCE_MAC(register) PAYLOAD(NFT_PAYLOAD_LL_HEADER, 6, 6, register)
#define SOURCE(register) PAYLOAD(NFT_PAYLOAD_NETWORK_HEADER, 12, 4, register)
#define DESTINATION(register) PAYLOAD(NFT_PAYLOAD_NETWORK_HEADER, 16, 4, register)
#define PROTOCOL(register) META(NFT_META_L4PROTO, register)
#define PORT(register) PAYLOAD(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, register)
#define IS_GUEST(key, operation) META(key, A), COMPARE(operation, 5, 'b', 'e', 'r', 't', 'h')
#define FROM_GUEST IS_GUEST(NFT_META_IIFNAME, EQ)
#define TO_GUEST IS_GUEST(NFT_META_OIFNAME, EQ)
#define NOT_TO_GUEST IS_GUEST(NFT_META_OIFNAME, NEQ)
#define FROM_BRIDGE META(NFT_META_IIFNAME, A), COMPARE(EQ, 6, 'b', 'e', 'r', 't', 'h', 'd')
/* By another interface than it came by, or by none. The host's own addresses have no route. */
#define LEADS_AWAY                                                                                           \
    ROUTE(NFT_FIB_RESULT_OIF, NFTA_FIB_F_DADDR | NFTA_FIB_F_IIF), COMPARE(EQ, 4, 0),                         \
        ROUTE(NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR), COMPARE(NEQ, 4, BITS(RTN_LOCAL))
#define NOT_IPV4 META(NFT_META_NFPROTO, A), COMPARE(NEQ, 1, NFPROTO_IPV4)
#define OF_UID(operation, uid) META(NFT_META_SKUID, A), COMPARE(operation, 4, uid)
#define TCP PROTOCOL(A), COMPARE(EQ, 1, IPPROTO_TCP)
#define ICMP PROTOCOL(A), COMPARE(EQ, 1, IPPROTO_ICMP)
#define TO_GATEWAY_PORT PROTOCOL(A), PORT(B), IN(GATEWAY_PORTS)
#define TO_ORCHESTRATOR_PORT                                                                                 \
    TCP, PORT(A), COMPARE(EQ, 2, BT_ORCHESTRATOR_PORT >> 8, BT_ORCHESTRATOR_PORT & 0xff)
#define BITS(number) HOST_BYTE(number, 0), HOST_BYTE(number, 1), HOST_BYTE(number, 2), HOST_BYTE(number, 3)
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define HOST_BYTE(number, at) (uint8_t)((unsigned)(number) >> 8 * (at))
#else
#define HOST_BYTE(number, at) (uint8_t)((unsigned)(number) >> (24 - 8 * (at)))
#endif
#define ANY_OF(key, bits) CT(key, A), MASK(BITS(bits)), COMPARE(NEQ, 4, 0)
#define NONE_OF(key, bits) CT(key, A), MASK(BITS(bits)), COMPARE(EQ, 4, 0)
#define ANSWER CT(NFT_CT_DIRECTION, A), COMPARE(EQ, 1, IP_CT_DIR_REPLY)
#define QUESTION CT(NFT_CT_DIRECTION, A), COMPARE(EQ, 1, IP_CT_DIR_ORIGINAL)
/* A flow that passed once. Not by its state: one that a helper of conntrack expects (FTP and the like, should
 * the host's administrator have one) is RELATED from its first packet on, and has yet to be looked at. */
#define PASSED_BEFORE ANY_OF(NFT_CT_STATUS, IPS_CONFIRMED)
#define NEW_FLOW NONE_OF(NFT_CT_STATUS, IPS_CONFIRMED)
#define TRANSLATED ANY_OF(NFT_CT_STATUS, IPS_DST_NAT)
#define STATE_INVALID 1U
#define STATE(info) (1U << ((info) % IP_CT_IS_REPLY + 1))
/* SYN without ACK: conntrack takes it for the answer to a connection that the other side gave up meanwhile,
 * and the port may have a new owner by then. */
#define FIRST_OF_TCP                                                                                         \
    TCP, PAYLOAD(NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, A), MASK(0x12, 0, 0, 0), COMPARE(EQ, 4, 0x02, 0, 0, 0)
#define TO_NETWORK(bits, ...) DESTINATION(A), MASK bits, COMPARE(EQ, 4, __VA_ARGS__)
#define TO_RANGE(first, last)                                                                                \
    DESTINATION(A), COMPARE_SETTING(NFT_CMP_GTE, first), COMPARE_SETTING(NFT_CMP_LTE, last)
/* A bridge's ports are one device, so in and out are the same; the address is the server's. */
#define WITHIN(set, address) IN_DEVICE(A), OUT_DEVICE(B), MARK(C), address(D), IN(set)
#define BETWEEN(set) IN_DEVICE(A), OUT_DEVICE(B), MARK(C), IN(set)

enum { STEPS_MAX = 14 };

static const struct rule {
    const char *chain;
    struct step steps[STEPS_MAX];
} rules[] = {
    /* Every packet of a guest, before anything else looks at it. */
    {"prerouting", {FROM_GUEST, JUMP("from_guest")}},
    {"from_guest", {NOT_IPV4, GO("forged")}},
    {"from_guest", {IN_DEVICE(A), SOURCE_MAC(B), SOURCE(D), IN(SOURCES), GO("mark_incoming")}},
    {"from_guest", {GO("forged")}},
    {"mark_incoming", {NEW_FLOW, IN_DEVICE(A), IN(GENERATIONS), SET_MARK}},
    /* Nothing of an internal bridge is routed: its interface does not forward (kernel_linux_link.c), also
     * when this table is gone. Here it is counted, and answered. */
    {"mark_incoming", {IN_DEVICE(A), MARK(B), IN(UPLINKS), ACCEPT}},
    {"mark_incoming", {FROM_BRIDGE, LEADS_AWAY, GO("refuse")}},
    /* No answer to a bad source: it would go to somebody else. */
    {"forged", {IN_DEVICE(A), IN(REFUSED), DROP}},
    {"forged", {DROP}},

    {"prerouting_nat", {IS_GUEST(NFT_META_IIFNAME, NEQ), ACCEPT}},
    {"prerouting_nat", {TO_GATEWAY_PORT, IN_DEVICE(A), DESTINATION(B), IN(GATEWAYS), DNAT}},
    {"prerouting_nat", {TO_ORCHESTRATOR_PORT, IN_DEVICE(A), DESTINATION(B), IN(ORCHESTRATORS), DNAT}},

    {"forward", {FROM_GUEST, GO("forward_from_guest")}},
    {"forward", {TO_GUEST, GO("forward_to_guest")}},
    {"forward", {IN_DEVICE(A), IN(BORROWED), DROP}},
    /* A permitted pair, and the flow went through the DNAT of its own host address. */
    {"forward_from_guest", {BETWEEN(AGENT_PAIRS), TRANSLATED, GO("agent_flow")}},
    {"forward_from_guest", {BETWEEN(GATEWAY_PAIRS), TRANSLATED, GO("gateway_flow")}},
    {"forward_from_guest", {IN_DEVICE(A), MARK(B), IN(UPLINKS), NOT_TO_GUEST, GO("uplink")}},
    /* What goes from one port of a bridge to another comes here where bridges ask the inet hooks
     * (br_netfilter), which ours are set to, or when it is sent to the host's MAC. */
    {"forward_from_guest", {WITHIN(AGENT_BRIDGES, DESTINATION), QUESTION, TO_GATEWAY_PORT, GO("agent_flow")}},
    {"forward_from_guest",
     {WITHIN(CONTROL_BRIDGES, DESTINATION), QUESTION, TO_ORCHESTRATOR_PORT, GO("gateway_flow")}},
    {"forward_from_guest", {WITHIN(AGENT_BRIDGES, SOURCE), ANSWER, GO("bridge_answer")}},
    {"forward_from_guest", {WITHIN(CONTROL_BRIDGES, SOURCE), ANSWER, GO("bridge_answer")}},
    {"forward_from_guest", {GO("refuse")}},
    /* From outside only answers to a gateway's own flows. */
    {"forward_to_guest", {OUT_DEVICE(A), MARK(B), IN(UPLINKS), ANSWER, ACCEPT}},
    {"forward_to_guest", {DROP}},
    {"bridge_answer", {FIRST_OF_TCP, GO("refuse")}},
    {"bridge_answer", {GO("accepted_from_guest")}},

    /* What a gateway may not dial: also an address of the host that somebody else translates, such as a
     * published port of a container. */
    {"uplink", {PASSED_BEFORE, GO("accepted_from_guest")}},
    {"uplink", {TRANSLATED, GO("refuse")}},
    {"uplink", {TO_NETWORK((255, 255, 0, 0), 169, 254, 0, 0), GO("refuse")}},
    {"uplink", {TO_RANGE(BRIDGES_FIRST, BRIDGES_LAST), GO("refuse")}},
    {"uplink", {TO_RANGE(TAPS_FIRST, TAPS_LAST), GO("refuse")}},
    {"uplink", {WHERE_PRIVATE_IS_DENIED, DESTINATION(A), IN(RESOLVERS), GO("gateway_flow")}},
    {"uplink", {WHERE_PRIVATE_IS_DENIED, TO_NETWORK((255, 0, 0, 0), 10, 0, 0, 0), GO("refuse")}},
    {"uplink", {WHERE_PRIVATE_IS_DENIED, TO_NETWORK((255, 240, 0, 0), 172, 16, 0, 0), GO("refuse")}},
    {"uplink", {WHERE_PRIVATE_IS_DENIED, TO_NETWORK((255, 255, 0, 0), 192, 168, 0, 0), GO("refuse")}},
    {"uplink", {GO("gateway_flow")}},

    /* A new flow passes while its lease has fewer than so many others. The set's elements come and go with
     * flows. A set that static elements of ours would fill is no choice: kernels before 6.13 reap idle
     * elements with a limit. */
    {"agent_flow", {PASSED_BEFORE, GO("accepted_from_guest")}},
    {"agent_flow", {MARK(A), BELOW_LIMIT(AGENT_FLOWS), GO("accepted_from_guest")}},
    {"agent_flow", {GO("refuse")}},
    {"gateway_flow", {PASSED_BEFORE, GO("accepted_from_guest")}},
    {"gateway_flow", {MARK(A), BELOW_LIMIT(GATEWAY_FLOWS), GO("accepted_from_guest")}},
    {"gateway_flow", {GO("refuse")}},

    {"accepted_from_guest", {IN_DEVICE(A), IN(ACCEPTED), ACCEPT}},
    {"accepted_from_guest", {DROP}},
    /* Counted, and told as long as the slot's rate allows; conntrack's leftovers are not worth an answer. */
    {"refuse", {ANY_OF(NFT_CT_STATE, STATE_INVALID), GO("forged")}},
    {"refuse", {IN_DEVICE(A), IN(REFUSED), REJECT}},
    {"refuse", {DROP}},

    /* Between guest and host: only flows that the host opened. */
    {"input", {FROM_GUEST, GO("input_from_guest")}},
    {"input_from_guest", {FIRST_OF_TCP, GO("refuse")}},
    {"input_from_guest", {IN_DEVICE(A), MARK(B), IN(LIVE), ANSWER, GO("accepted_from_guest")}},
    {"input_from_guest", {GO("refuse")}},

    {"output", {TO_GUEST, GO("output_to_guest")}},
    {"output_to_guest", {NOT_IPV4, DROP}},
    /* Each packet of a socket is asked for its owner, not only the first: another uid may bind the port of a
     * UDP flow that the owner has just left. */
    {"output_to_guest", {OUT_DEVICE(A), META(NFT_META_SKUID, B), IN(OWNERS), GO("mark_outgoing")}},
    {"output_to_guest", {OF_UID(EQ, 0), GO("mark_outgoing")}},
    {"output_to_guest", {OF_UID(NEQ, 0), DROP}},
    /* No socket any more: what the kernel still sends for a closed one, and its ICMP errors. */
    {"output_to_guest",
     {ANY_OF(NFT_CT_STATE, STATE(IP_CT_ESTABLISHED) | STATE(IP_CT_RELATED)), OUT_DEVICE(A), MARK(B), IN(LIVE),
      QUESTION, ACCEPT}},
    {"output_to_guest",
     {ICMP, ANY_OF(NFT_CT_STATE, STATE(IP_CT_RELATED)), OUT_DEVICE(A), MARK(B), IN(LIVE), ACCEPT}},
    {"output_to_guest", {DROP}},
    {"mark_outgoing", {NEW_FLOW, OUT_DEVICE(A), IN(GENERATIONS), SET_MARK}},
    {"mark_outgoing", {OUT_DEVICE(A), MARK(B), IN(LIVE), QUESTION, ACCEPT}},
    {"mark_outgoing", {DROP}},

    {"postrouting_nat", {IN_DEVICE(A), MARK(B), IN(UPLINKS), NOT_TO_GUEST, MASQUERADE}},
};

/* ---- encoding --------------------------------------------------------------------------------------- */

static void put_compared(struct nlmsghdr *message, const struct bt_pool *pool, const struct step *step)
{
    const uint32_t settings[] = {
        [BRIDGES_FIRST] = htonl(pool->bridge_base),
        [BRIDGES_LAST] = htonl(pool->bridge_base + BT_POOL_BRIDGE_BLOCK - 1U),
        [TAPS_FIRST] = htonl(pool->tap_base),
        [TAPS_LAST] = htonl(pool->tap_base + 2U * pool->slots - 1U),
    };
    bt_put_data(message, NFTA_CMP_DATA,
                step->setting == CONSTANT ? (const void *)step->value : &settings[step->setting],
                step->length);
}

static void put_flow_limit(struct nlmsghdr *message, const struct bt_kernel_config *config, enum bt_set set)
{
    mnl_attr_put_strz(message, NFTA_DYNSET_SET_NAME, bt_set_layouts[set].name);
    struct nlattr *expression = mnl_attr_nest_start(message, NFTA_DYNSET_EXPR);
    mnl_attr_put_strz(message, NFTA_EXPR_NAME, "connlimit");
    struct nlattr *data = mnl_attr_nest_start(message, NFTA_EXPR_DATA);
    bt_put_be32(message, NFTA_CONNLIMIT_COUNT,
                set == BT_SET_AGENT_FLOWS ? config->agent_flows : config->gateway_flows);
    mnl_attr_nest_end(message, data);
    mnl_attr_nest_end(message, expression);
}

static void put_verdict(struct nlmsghdr *message, const struct step *step)
{
    struct nlattr *data = mnl_attr_nest_start(message, NFTA_IMMEDIATE_DATA);
    struct nlattr *verdict = mnl_attr_nest_start(message, NFTA_DATA_VERDICT);
    bt_put_be32(message, NFTA_VERDICT_CODE, step->code);
    if (step->name)
        mnl_attr_put_strz(message, NFTA_VERDICT_CHAIN, step->name);
    mnl_attr_nest_end(message, verdict);
    mnl_attr_nest_end(message, data);
}

static void put_step(struct nlmsghdr *message, const struct bt_kernel_config *config, const struct step *step)
{
    static const uint8_t nothing[4];
    for (size_t i = 0; i < BT_ARRAY_LENGTH(step->numbers) && step->numbers[i].attribute != 0; i++)
        bt_put_be32(message, step->numbers[i].attribute, step->numbers[i].value);
    switch (step->more) {
    case COMPARED_WITH:
        put_compared(message, &config->pool, step);
        break;
    case BITS_KEPT:
        bt_put_data(message, NFTA_BITWISE_MASK, step->value, sizeof(nothing));
        bt_put_data(message, NFTA_BITWISE_XOR, nothing, sizeof(nothing));
        break;
    case SET: /* a map's value goes to register A */
        mnl_attr_put_strz(message, NFTA_LOOKUP_SET, bt_set_layouts[step->set].name);
        if (bt_set_layouts[step->set].data_type != 0)
            bt_put_be32(message, NFTA_LOOKUP_DREG, A);
        break;
    case FLOW_LIMIT:
        put_flow_limit(message, config, step->set);
        break;
    case CODE_OF_ICMP:
        mnl_attr_put_u8(message, NFTA_REJECT_ICMP_CODE, NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
        break;
    case CODE_OF_VERDICT:
        put_verdict(message, step);
        break;
    case CONDITION:
    case NOTHING:
        break;
    }
}

static void encode_rule(const struct bt_kernel_config *config, struct bt_batch *batch,
                        const struct rule *rule)
{
    const struct step *step = rule->steps;
    if (step->more == CONDITION && !config->deny_private_uplink)
        return;
    step += step->more == CONDITION;
    struct nlmsghdr *message = bt_table_message(batch, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
    mnl_attr_put_strz(message, NFTA_RULE_CHAIN, rule->chain);
    struct nlattr *expressions = mnl_attr_nest_start(message, NFTA_RULE_EXPRESSIONS);
    for (; step->expression; step++) {
        struct nlattr *expression = mnl_attr_nest_start(message, NFTA_LIST_ELEM);
        mnl_attr_put_strz(message, NFTA_EXPR_NAME, step->expression);
        struct nlattr *data = mnl_attr_nest_start(message, NFTA_EXPR_DATA);
        put_step(message, config, step);
        mnl_attr_nest_end(message, data);
        mnl_attr_nest_end(message, expression);
    }
    mnl_attr_nest_end(message, expressions);
}

void bt_rules_encode(const struct bt_kernel *kernel, struct bt_batch *batch)
{
    for (size_t i = 0; i < BT_ARRAY_LENGTH(rules); i++)
        encode_rule(&kernel->config, batch, &rules[i]);
}
