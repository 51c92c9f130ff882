/* What else there is in this host's network: routes and addresses that berth's blocks would overlap, and
 * base chains of other tables that drop what is forwarded.
 *
 * Run by install, status and check, as root. It only reads.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "helper/admin.h"
#include "helper/kernel_linux.h"

#define CHAINS_MAX 64
#define ROUTES_MAX 65536
#define SHORTEST_PREFIX 4 /* shorter ones (0.0.0.0/1 of a VPN) are default routes in all but name */

/* ---- a dump ------------------------------------------------------------------------------------------- */

struct visitor {
    void (*visit)(const struct nlmsghdr *message, void *context);
    void *context;
};

static int visit_message(const struct nlmsghdr *message, void *context)
{
    const struct visitor *visitor = context;
    visitor->visit(message, visitor->context);
    return MNL_CB_OK;
}

/* Every message of the answer to a dump request. */
static int dump(int protocol, const struct nlmsghdr *request,
                void (*visit)(const struct nlmsghdr *message, void *context), void *context)
{
    static uint8_t buffer[BT_RECEIVE_SIZE];
    struct visitor visitor = {.visit = visit, .context = context};
    bt_auto_fd fd = -1;
    uint32_t port;
    int error = bt_netlink_open(protocol, 0, &fd, &port);
    if (error < 0)
        return error;
    if (send(fd, request, request->nlmsg_len, 0) < 0)
        return -errno;
    for (;;) {
        ssize_t got = recv(fd, buffer, sizeof(buffer), 0); /* a dump's next part is made by this call */
        if (got < 0)
            return -errno;
        int verdict = mnl_cb_run(buffer, (size_t)got, request->nlmsg_seq, port, visit_message, &visitor);
        if (verdict < 0)
            return -errno;
        if (verdict == MNL_CB_STOP)
            return 0;
    }
}

/* ---- overlaps ----------------------------------------------------------------------------------------- */

struct route {
    uint32_t first, last;
    unsigned ifindex; /* 0: none (unreachable, several next hops) */
};

struct routes {
    struct route *items;
    size_t count;
    bool is_truncated;
};

static void note_route(const struct nlmsghdr *message, void *context)
{
    struct routes *routes = context;
    const struct rtmsg *header = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(*header));
    if (mnl_nlmsg_get_payload_len(message) < sizeof(*header) || message->nlmsg_type != RTM_NEWROUTE ||
        header->rtm_family != AF_INET || header->rtm_dst_len < SHORTEST_PREFIX || header->rtm_dst_len > 32)
        return;
    uint32_t first = ntohl(bt_attribute_u32(bt_attribute_find(walk, RTA_DST), 0));
    uint32_t rest = header->rtm_dst_len == 32 ? 0 : UINT32_MAX >> header->rtm_dst_len;
    if (routes->count == ROUTES_MAX) {
        routes->is_truncated = true;
        return;
    }
    routes->items[routes->count++] =
        (struct route){.first = first,
                       .last = first | rest,
                       .ifindex = bt_attribute_u32(bt_attribute_find(walk, RTA_OIF), 0)};
}

/* All tables: those of VPNs too, and the local one, which has every address of the host. */
static int read_routes(struct routes *routes)
{
    uint8_t buffer[256] = {0};
    struct nlmsghdr *request = mnl_nlmsg_put_header(buffer);
    request->nlmsg_type = RTM_GETROUTE;
    request->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request->nlmsg_seq = 1;
    struct rtmsg *header = mnl_nlmsg_put_extra_header(request, sizeof(*header));
    header->rtm_family = AF_INET;
    int error = dump(NETLINK_ROUTE, request, note_route, routes);
    return error == 0 && routes->is_truncated ? -E2BIG : error;
}

static const char *describe_interface(const char *name)
{
    static const struct {
        const char *start, *description;
    } known[] = {
        {"docker", "Docker"},
        {"br-", "a network of Docker"},
        {"virbr", "libvirt"},
        {"podman", "podman"},
        {"cni-podman", "podman"},
        {"lxc", "LXC"},
        {"tun", "a VPN"},
        {"tap", "a VPN or virtual machine"},
        {"wg", "a VPN (WireGuard)"},
        {"ppp", "a VPN"},
        {"tailscale", "a VPN (Tailscale)"},
    };
    for (size_t i = 0; i < BT_ARRAY_LENGTH(known); i++)
        if (strncmp(name, known[i].start, strlen(known[i].start)) == 0)
            return known[i].description;
    return "an interface";
}

/* The route that overlaps, or NULL. Interfaces of berth itself are no obstacle. */
static const struct route *find_culprit(const struct routes *routes, uint32_t first, uint32_t last,
                                        char ret_name[IF_NAMESIZE])
{
    for (size_t i = 0; i < routes->count; i++) {
        const struct route *route = &routes->items[i];
        if (route->last < first || route->first > last)
            continue;
        if (route->ifindex == 0 || !if_indextoname(route->ifindex, ret_name))
            memcpy(ret_name, "?", sizeof("?"));
        if (strncmp(ret_name, BT_TAP_PREFIX, strlen(BT_TAP_PREFIX)) != 0)
            return route;
    }
    return NULL;
}

/* Private blocks, from the unlikely ones on. */
static bool propose(const struct routes *routes, uint32_t size, uint32_t *ret_base)
{
    char name[IF_NAMESIZE];
    for (uint32_t second = 241; second > 1; second--) {
        uint32_t base = 10U << 24 | second << 16;
        if (!find_culprit(routes, base, base + size - 1, name)) {
            *ret_base = base;
            return true;
        }
    }
    for (uint32_t second = 31; second >= 16; second--) {
        uint32_t base = 172U << 24 | second << 16;
        if (!find_culprit(routes, base, base + size - 1, name)) {
            *ret_base = base;
            return true;
        }
    }
    return false;
}

static void tell_overlap(const char *what, uint32_t base, uint32_t size, const struct route *route,
                         const char *name, const struct routes *routes)
{
    char first[BT_IPV4_TEXT_SIZE], last[BT_IPV4_TEXT_SIZE], from[BT_IPV4_TEXT_SIZE], to[BT_IPV4_TEXT_SIZE];
    char free_text[BT_IPV4_TEXT_SIZE];
    uint32_t free_base;
    bt_ipv4_format(base, first);
    bt_ipv4_format(base + size - 1, last);
    bt_ipv4_format(route->first, from);
    bt_ipv4_format(route->last, to);
    if (propose(routes, size, &free_base))
        bt_ipv4_format(free_base, free_text);
    else
        memcpy(free_text, "none found", sizeof("none found"));
    bt_admin_complain("%s %s-%s overlaps %s-%s, which leads to %s (%s); a free block: set `%s: %s` in %s",
                      what, first, last, from, to, name, describe_interface(name), what, free_text,
                      BT_CONFIG_PATH_DEFAULT);
}

int bt_admin_find_overlap(const char *what, uint32_t base, uint32_t size, bool is_quiet)
{
    char name[IF_NAMESIZE];
    struct routes routes = {.items = calloc(ROUTES_MAX, sizeof(struct route))};
    if (!routes.items)
        return -ENOMEM;
    int result = read_routes(&routes);
    if (result == 0) {
        const struct route *route = find_culprit(&routes, base, base + size - 1, name);
        if (route && !is_quiet)
            tell_overlap(what, base, size, route, name, &routes);
        result = route ? 1 : 0;
    }
    free(routes.items);
    return result;
}

/* ---- other firewalls ---------------------------------------------------------------------------------- */

struct chain {
    uint8_t family;
    char table[64], name[64];
    bool has_berth; /* a rule of that table names our interfaces */
};

struct chains {
    struct chain items[CHAINS_MAX];
    size_t count;
    struct chain *current;
};

static void copy_name(const struct nlattr *attribute, char ret_name[64])
{
    size_t length = attribute ? mnl_attr_get_payload_len(attribute) : 0;
    if (length > 63)
        length = 63;
    memset(ret_name, 0, 64);
    if (length > 0)
        memcpy(ret_name, mnl_attr_get_payload(attribute), length);
}

/* firewalld's chain has no policy: its last rule refuses. */
static void note_chain(const struct nlmsghdr *message, void *context)
{
    struct chains *chains = context;
    struct chain chain = {.has_berth = false};
    const struct nfgenmsg *family = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(*family));
    const struct nlattr *hook = bt_attribute_find(walk, NFTA_CHAIN_HOOK);
    bool is_watched = family->nfgen_family == NFPROTO_INET || family->nfgen_family == NFPROTO_IPV4;
    if (mnl_nlmsg_get_payload_len(message) < sizeof(*family) || !hook || !is_watched ||
        chains->count == CHAINS_MAX)
        return;
    uint32_t number =
        ntohl(bt_attribute_u32(bt_attribute_find(bt_attributes_in(hook), NFTA_HOOK_HOOKNUM), UINT32_MAX));
    uint32_t policy = ntohl(bt_attribute_u32(bt_attribute_find(walk, NFTA_CHAIN_POLICY), htonl(NF_ACCEPT)));
    chain.family = family->nfgen_family;
    copy_name(bt_attribute_find(walk, NFTA_CHAIN_TABLE), chain.table);
    copy_name(bt_attribute_find(walk, NFTA_CHAIN_NAME), chain.name);
    bool is_ours = chain.family == NFPROTO_INET && strcmp(chain.table, BT_TABLE_NAME) == 0;
    if (number == NF_INET_FORWARD && !is_ours && (policy == NF_DROP || strcmp(chain.table, "firewalld") == 0))
        chains->items[chains->count++] = chain;
}

/* The name is compared as a prefix ("berth*", "berth+"), so it stands in the rule without its zero. */
static void note_rule(const struct nlmsghdr *message, void *context)
{
    struct chains *chains = context;
    char table[64];
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct nfgenmsg));
    copy_name(bt_attribute_find(walk, NFTA_RULE_TABLE), table);
    const struct nlattr *expressions = bt_attribute_find(walk, NFTA_RULE_EXPRESSIONS);
    if (expressions && strcmp(table, chains->current->table) == 0 &&
        memmem(mnl_attr_get_payload(expressions), mnl_attr_get_payload_len(expressions), BT_TAP_PREFIX,
               strlen(BT_TAP_PREFIX)))
        chains->current->has_berth = true;
}

static int dump_nftables(uint16_t type, uint8_t family,
                         void (*visit)(const struct nlmsghdr *message, void *context), struct chains *chains)
{
    uint8_t buffer[256] = {0};
    struct nlmsghdr *request = mnl_nlmsg_put_header(buffer);
    request->nlmsg_type = (uint16_t)(NFNL_SUBSYS_NFTABLES << 8 | type);
    request->nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
    request->nlmsg_seq = 1;
    struct nfgenmsg *header = mnl_nlmsg_put_extra_header(request, sizeof(*header));
    header->nfgen_family = family;
    return dump(NETLINK_NETFILTER, request, visit, chains);
}

int bt_admin_find_blocking_chains(bool is_quiet)
{
    static struct chains chains;
    int blocking = 0;
    chains = (struct chains){.count = 0};
    int error = dump_nftables(NFT_MSG_GETCHAIN, NFPROTO_UNSPEC, note_chain, &chains);
    for (size_t i = 0; i < chains.count && error == 0; i++) {
        struct chain *chain = chains.current = &chains.items[i];
        const char *family = chain->family == NFPROTO_INET ? "inet" : "ip";
        error = dump_nftables(NFT_MSG_GETRULE, chain->family, note_rule, &chains);
        if (chain->has_berth)
            continue;
        blocking++;
        if (!is_quiet)
            bt_admin_tell(
                "the chain `%s %s %s` drops what agents and gateways send; run `berth-helper firewall`, or "
                "add to it: nft insert rule %s %s %s meta iifname \"berth*\" accept, and the same with "
                "oifname",
                family, chain->table, chain->name, family, chain->table, chain->name);
    }
    return error < 0 ? error : blocking;
}
