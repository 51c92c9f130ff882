/* What else there is in this host's network that berth's blocks of addresses would overlap: routes, which
 * every address has, and each other.
 *
 * Run by install and status. It only reads.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

#include "helper/admin.h"

#define ROUTES_MAX 65536
#define INTERFACE_PREFIX "berth"
#define SHORTEST_PREFIX 4 /* shorter ones (0.0.0.0/1 of a VPN) are default routes in all but name */

/* A block of the configuration, by the name of its setting. */
struct block {
    const char *name;
    struct bt_block at;
};

struct route {
    uint32_t first, last;
    unsigned ifindex; /* 0: none (unreachable, several next hops) */
};

struct routes {
    struct route *items;
    size_t count;
};

struct parsed_route {
    uint32_t destination; /* network order */
    unsigned ifindex;
};

static int note_attribute(const struct nlattr *attribute, void *context)
{
    struct parsed_route *parsed = context;
    if (mnl_attr_validate(attribute, MNL_TYPE_U32) < 0)
        return MNL_CB_OK;
    if (mnl_attr_get_type(attribute) == RTA_DST)
        parsed->destination = mnl_attr_get_u32(attribute);
    else if (mnl_attr_get_type(attribute) == RTA_OIF)
        parsed->ifindex = mnl_attr_get_u32(attribute);
    return MNL_CB_OK;
}

static int note_route(const struct nlmsghdr *message, void *context)
{
    struct routes *routes = context;
    struct parsed_route parsed = {.ifindex = 0};
    const struct rtmsg *header = mnl_nlmsg_get_payload(message);
    if (mnl_nlmsg_get_payload_len(message) < sizeof(*header) || message->nlmsg_type != RTM_NEWROUTE ||
        header->rtm_family != AF_INET || header->rtm_dst_len < SHORTEST_PREFIX || header->rtm_dst_len > 32)
        return MNL_CB_OK;
    (void)mnl_attr_parse(message, sizeof(*header), note_attribute, &parsed);
    uint32_t first = ntohl(parsed.destination);
    uint32_t rest = header->rtm_dst_len == 32 ? 0 : UINT32_MAX >> header->rtm_dst_len;
    if (routes->count == ROUTES_MAX) {
        errno = E2BIG;
        return MNL_CB_ERROR;
    }
    routes->items[routes->count++] =
        (struct route){.first = first, .last = first | rest, .ifindex = parsed.ifindex};
    return MNL_CB_OK;
}

/* All tables: those of VPNs too, and the local one, which has every address of the host. */
static int read_routes(struct routes *routes)
{
    uint8_t buffer[256] = {0};
    struct nlmsghdr *request = mnl_nlmsg_put_header(buffer);
    request->nlmsg_type = RTM_GETROUTE;
    struct rtmsg *header = mnl_nlmsg_put_extra_header(request, sizeof(*header));
    header->rtm_family = AF_INET;
    return bt_admin_dump(NETLINK_ROUTE, request, note_route, routes);
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
static const struct route *find_culprit(const struct routes *routes, struct bt_block block,
                                        char ret_name[IF_NAMESIZE])
{
    for (size_t i = 0; i < routes->count; i++) {
        const struct route *route = &routes->items[i];
        if (route->last < block.base || route->first > block.base + (block.size - 1))
            continue;
        if (route->ifindex == 0 || !if_indextoname(route->ifindex, ret_name))
            memcpy(ret_name, "", 1);
        if (strncmp(ret_name, INTERFACE_PREFIX, strlen(INTERFACE_PREFIX)) != 0)
            return route;
    }
    return NULL;
}

/* Private blocks, from the unlikely ones on; not what the other block of ours has. */
static bool propose(const struct routes *routes, uint32_t size, struct bt_block other, uint32_t *ret_base)
{
    for (uint32_t step = 0; step < 256; step++) {
        char name[IF_NAMESIZE];
        struct bt_block block = {.size = size};
        if (step < 240)
            block.base = 10U << 24 | (241 - step) << 16; /* 10.241 to 10.2 */
        else
            block.base = 172U << 24 | (271 - step) << 16; /* 172.31 to 172.16 */
        if (!bt_config_blocks_overlap(block, other) && !find_culprit(routes, block, name)) {
            *ret_base = block.base;
            return true;
        }
    }
    return false;
}

static void tell_proposal(const struct routes *routes, struct block *block, const struct block *other)
{
    char free_text[BT_IPV4_TEXT_SIZE];
    uint32_t base;
    if (!propose(routes, block->at.size, other->at, &base)) {
        bt_admin_complain("no free private block was found for %s; free one and set it in %s", block->name,
                          BT_CONFIG_PATH_DEFAULT);
        return;
    }
    block->at.base = base; /* so that it is not proposed for the other one as well */
    bt_ipv4_format(base, free_text);
    bt_admin_complain("a free block: set `%s: %s` in %s", block->name, free_text, BT_CONFIG_PATH_DEFAULT);
}

/* 0: free. 1: taken, and it has been said by what. */
static int check_block(const struct routes *routes, struct block *block, const struct block *other)
{
    char name[IF_NAMESIZE], first[BT_IPV4_TEXT_SIZE], last[BT_IPV4_TEXT_SIZE];
    char from[BT_IPV4_TEXT_SIZE], to[BT_IPV4_TEXT_SIZE];
    const struct route *route = find_culprit(routes, block->at, name);
    bt_ipv4_format(block->at.base, first);
    bt_ipv4_format(block->at.base + (block->at.size - 1), last);
    if (!route && !bt_config_blocks_overlap(block->at, other->at)) {
        bt_admin_tell("free: %s, %s-%s", block->name, first, last);
        return 0;
    }
    if (!route) {
        bt_admin_complain("%s %s-%s overlaps %s of the configuration", block->name, first, last, other->name);
    } else {
        bt_ipv4_format(route->first, from);
        bt_ipv4_format(route->last, to);
        bt_admin_complain(
            "%s %s-%s overlaps %s-%s, which %s%s (%s)", block->name, first, last, from, to,
            name[0] ? "leads to " : "leads nowhere: ", name[0] ? name : "an unreachable or blackhole route",
            name[0] ? describe_interface(name) : "ip route show table all");
    }
    tell_proposal(routes, block, other);
    return 1;
}

int bt_admin_check_blocks(const struct bt_config *config)
{
    const struct bt_pool *pool = &config->kernel.pool;
    struct block taps = {"tap_base", bt_config_tap_block(pool)};
    struct block bridges = {"bridge_base", bt_config_bridge_block(pool)};
    struct routes routes = {.items = calloc(ROUTES_MAX, sizeof(struct route))};
    int error = routes.items ? read_routes(&routes) : -ENOMEM;
    int taken = 0;
    if (error < 0)
        bt_admin_complain("the routes of this host cannot be read: %s", strerror(-error));
    else {
        taken += check_block(&routes, &taps, &bridges);
        taken += check_block(&routes, &bridges, &taps);
    }
    free(routes.items);
    return error < 0 || taken > 0 ? 1 : 0;
}
