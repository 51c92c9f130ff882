/* Base chains of other tables that drop what is forwarded, and say nothing of berth's interfaces.
 *
 * Run by install and status, as root. It only reads. It looks at what decides in the end, a chain's policy
 * and its last rule; a rule in between that drops our packets is not found.
 */
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <libnftnl/chain.h>
#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>
#include <unistd.h>

#include "helper/admin.h"

#define CHAINS_MAX 64
#define NAME_SIZE 64
#define OWN_TABLE "berth"
#define INTERFACE_PREFIX "berth"
#define IPTABLES_LEGACY "/usr/sbin/iptables-legacy"
#define LEGACY_TABLES "/proc/net/ip_tables_names"

struct chain {
    uint32_t family;
    char table[NAME_SIZE], name[NAME_SIZE];
    bool drops;         /* by its policy, or by its last rule */
    bool accepts_berth; /* a rule of its table lets pass what comes from our interfaces */
};

struct chains {
    struct chain items[CHAINS_MAX];
    size_t count;
    struct chain *current;
};

/* ---- nftables ----------------------------------------------------------------------------------------- */

static void copy_name(const char *name, char ret_name[NAME_SIZE])
{
    size_t length = name ? strnlen(name, NAME_SIZE - 1) : 0;
    memset(ret_name, 0, NAME_SIZE);
    if (length > 0)
        memcpy(ret_name, name, length);
}

static void note_base_chain(const struct nftnl_chain *from, struct chains *chains)
{
    struct chain chain = {.family = nftnl_chain_get_u32(from, NFTNL_CHAIN_FAMILY)};
    const char *type = nftnl_chain_get_str(from, NFTNL_CHAIN_TYPE);
    copy_name(nftnl_chain_get_str(from, NFTNL_CHAIN_TABLE), chain.table);
    copy_name(nftnl_chain_get_str(from, NFTNL_CHAIN_NAME), chain.name);
    bool is_watched = chain.family == NFPROTO_INET || chain.family == NFPROTO_IPV4;
    bool is_own = chain.family == NFPROTO_INET && strcmp(chain.table, OWN_TABLE) == 0;
    if (!nftnl_chain_is_set(from, NFTNL_CHAIN_HOOKNUM) || !is_watched || is_own || !type ||
        strcmp(type, "filter") != 0 || nftnl_chain_get_u32(from, NFTNL_CHAIN_HOOKNUM) != NF_INET_FORWARD ||
        chains->count == CHAINS_MAX)
        return;
    chain.drops = nftnl_chain_is_set(from, NFTNL_CHAIN_POLICY) &&
                  nftnl_chain_get_u32(from, NFTNL_CHAIN_POLICY) == NF_DROP;
    chains->items[chains->count++] = chain;
}

static int note_chain(const struct nlmsghdr *message, void *context)
{
    struct nftnl_chain *chain = nftnl_chain_alloc();
    if (!chain)
        return MNL_CB_ERROR;
    if (nftnl_chain_nlmsg_parse(message, chain) == 0)
        note_base_chain(chain, context);
    nftnl_chain_free(chain);
    return MNL_CB_OK;
}

struct summary {
    uint32_t meta_key; /* what the last comparison is about */
    bool is_conditional, refuses, passes, is_from_berth;
};

/* `-i berth+` and `iifname "berth*"` compare five bytes. */
static bool is_prefix_of_berth(const struct nftnl_expr *comparison)
{
    uint32_t length = 0;
    const void *data = nftnl_expr_get(comparison, NFTNL_EXPR_CMP_DATA, &length);
    return nftnl_expr_get_u32(comparison, NFTNL_EXPR_CMP_OP) == NFT_CMP_EQ && data &&
           length == strlen(INTERFACE_PREFIX) && memcmp(data, INTERFACE_PREFIX, length) == 0;
}

static void note_verdict(uint32_t verdict, struct summary *summary)
{
    summary->refuses = verdict == NF_DROP;
    summary->passes = verdict == NF_ACCEPT || verdict == (uint32_t)NFT_JUMP || verdict == (uint32_t)NFT_GOTO;
}

/* What a rule does, as far as it matters here. Where it jumps to is not followed. */
static void summarise(const struct nftnl_expr *expression, struct summary *summary)
{
    const char *name = nftnl_expr_get_str(expression, NFTNL_EXPR_NAME);
    if (strcmp(name, "meta") == 0)
        summary->meta_key = nftnl_expr_get_u32(expression, NFTNL_EXPR_META_KEY);
    if (strcmp(name, "cmp") == 0 && summary->meta_key == NFT_META_IIFNAME && is_prefix_of_berth(expression))
        summary->is_from_berth = true;
    if (strcmp(name, "immediate") == 0 && nftnl_expr_is_set(expression, NFTNL_EXPR_IMM_VERDICT))
        note_verdict(nftnl_expr_get_u32(expression, NFTNL_EXPR_IMM_VERDICT), summary);
    else if (strcmp(name, "target") == 0)
        summary->refuses = strcmp(nftnl_expr_get_str(expression, NFTNL_EXPR_TG_NAME), "REJECT") == 0;
    else if (strcmp(name, "reject") == 0)
        summary->refuses = true;
    else if (strcmp(name, "counter") != 0 && strcmp(name, "log") != 0)
        summary->is_conditional = true;
}

static void note_rule_of(const struct nftnl_rule *rule, struct chain *chain)
{
    struct summary summary = {.meta_key = UINT32_MAX};
    const char *name = nftnl_rule_get_str(rule, NFTNL_RULE_CHAIN);
    struct nftnl_expr_iter *walk = nftnl_expr_iter_create(rule);
    if (!walk)
        return;
    for (const struct nftnl_expr *one = nftnl_expr_iter_next(walk); one; one = nftnl_expr_iter_next(walk))
        summarise(one, &summary);
    nftnl_expr_iter_destroy(walk);
    if (summary.is_from_berth && summary.passes)
        chain->accepts_berth = true;
    if (name && strcmp(name, chain->name) == 0 && summary.refuses && !summary.is_conditional)
        chain->drops = true;
}

static int note_rule(const struct nlmsghdr *message, void *context)
{
    struct chains *chains = context;
    struct nftnl_rule *rule = nftnl_rule_alloc();
    if (!rule)
        return MNL_CB_ERROR;
    if (nftnl_rule_nlmsg_parse(message, rule) == 0 &&
        strcmp(nftnl_rule_get_str(rule, NFTNL_RULE_TABLE), chains->current->table) == 0)
        note_rule_of(rule, chains->current);
    nftnl_rule_free(rule);
    return MNL_CB_OK;
}

static int dump_nftables(uint16_t type, uint32_t family,
                         int (*visit)(const struct nlmsghdr *message, void *context), struct chains *chains)
{
    uint8_t buffer[256] = {0};
    struct nlmsghdr *request = mnl_nlmsg_put_header(buffer);
    request->nlmsg_type = (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | type);
    struct nfgenmsg *header = mnl_nlmsg_put_extra_header(request, sizeof(*header));
    header->nfgen_family = (uint8_t)family;
    return bt_admin_dump(NETLINK_NETFILTER, request, visit, chains);
}

static void tell_chain(const struct chain *chain)
{
    const char *family = chain->family == NFPROTO_INET ? "inet" : "ip";
    bt_admin_tell("other firewalls: the chain `%s %s %s` drops what agents and gateways send; run "
                  "`berth-helper firewall`, or add to it: nft insert rule %s %s %s meta iifname \"berth*\" "
                  "accept, and the same with oifname",
                  family, chain->table, chain->name, family, chain->table, chain->name);
}

/* ---- iptables-legacy, which nftables does not show ------------------------------------------------------
 */

/* Looking at a table by iptables-legacy makes it, so only if it is there. (The root of a user namespace may
 * not read the names.) */
static bool has_legacy_filter(void)
{
    char names[256] = "\n";
    bt_auto_fd fd = open(LEGACY_TABLES, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == EACCES;
    ssize_t got = read(fd, names + 1, sizeof(names) - 2);
    return got > 0 && strstr(names, "\nfilter\n");
}

/* Among the rules of `iptables -S`: one that accepts what comes from our interfaces. */
static bool accepts_berth(const char *rules)
{
    static const char accept[] = " -i " INTERFACE_PREFIX "+ -j ACCEPT\n", inverse[] = " !";
    for (const char *at = strstr(rules, accept); at; at = strstr(at + 1, accept)) {
        size_t before = (size_t)(at - rules);
        if (before < strlen(inverse) || memcmp(at - strlen(inverse), inverse, strlen(inverse)) != 0)
            return true;
    }
    return false;
}

/* 1 when it drops what is forwarded; negative errno. */
static int find_legacy(void)
{
    static const char *const save[] = {IPTABLES_LEGACY, "-w", "5", "-S", NULL};
    static char rules[256 * 1024];
    if (!has_legacy_filter() || access(IPTABLES_LEGACY, X_OK) < 0)
        return 0;
    int status = bt_admin_read_output(save, rules, sizeof(rules));
    if (status != 0)
        return status < 0 ? status : -EPERM;
    if (!strstr(rules, "-P FORWARD DROP\n") || accepts_berth(rules))
        return 0;
    bt_admin_tell(
        "other firewalls: the chain FORWARD of iptables-legacy drops what agents and gateways send; "
        "run `berth-helper firewall` when iptables is that one, or: iptables-legacy -I FORWARD -i "
        "berth+ -j ACCEPT, and the same with -o");
    return 1;
}

int bt_admin_find_blocking_chains(void)
{
    static struct chains chains;
    int blocking = 0;
    chains = (struct chains){.count = 0};
    int error = dump_nftables(NFT_MSG_GETCHAIN, NFPROTO_UNSPEC, note_chain, &chains);
    for (size_t i = 0; i < chains.count && error == 0; i++) {
        struct chain *chain = chains.current = &chains.items[i];
        error = dump_nftables(NFT_MSG_GETRULE, chain->family, note_rule, &chains);
        if (error == 0 && chain->drops && !chain->accepts_berth) {
            tell_chain(chain);
            blocking++;
        }
    }
    int legacy = error < 0 ? error : find_legacy();
    return legacy < 0 ? legacy : blocking + legacy;
}
