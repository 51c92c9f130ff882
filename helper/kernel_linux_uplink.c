/* Forwarding on the interfaces of the default routes, without net.ipv4.ip_forward and without /proc/sys.
 *
 * Called at start and on link and route events. Answers from outside come in by these interfaces and must be
 * forwarded to gateways. An interface that did not forward before is `borrowed`: the table drops what it
 * would forward to anything but a guest, so that the host is no more of a router than it was.
 */
#include "helper/kernel_linux.h"

#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/netconf.h>
#include <linux/netfilter/nf_tables.h>
#include <string.h>
#include <sys/socket.h>

struct default_routes {
    int ifindexes[BT_UPLINKS_MAX];
    size_t count;
};

static void note_interface(struct default_routes *routes, int ifindex)
{
    for (size_t i = 0; i < routes->count; i++) {
        if (routes->ifindexes[i] == ifindex)
            return;
    }
    if (ifindex > 0 && routes->count < BT_UPLINKS_MAX)
        routes->ifindexes[routes->count++] = ifindex;
}

static void note_hops(struct default_routes *routes, const struct nlattr *hops)
{
    const uint8_t *at = mnl_attr_get_payload(hops);
    size_t left = mnl_attr_get_payload_len(hops);
    while (left >= sizeof(struct rtnexthop)) {
        struct rtnexthop hop;
        memcpy(&hop, at, sizeof(hop));
        size_t step = ((size_t)hop.rtnh_len + 3U) & ~(size_t)3U;
        if (hop.rtnh_len < sizeof(hop) || step > left)
            return;
        note_interface(routes, hop.rtnh_ifindex);
        at += step;
        left -= step;
    }
}

static int note_route(const struct nlmsghdr *message, void *context)
{
    struct default_routes *routes = context;
    if (message->nlmsg_type != RTM_NEWROUTE || mnl_nlmsg_get_payload_len(message) < sizeof(struct rtmsg))
        return 0;
    const struct rtmsg *route = mnl_nlmsg_get_payload(message);
    if (route->rtm_family != AF_INET || route->rtm_dst_len != 0 || route->rtm_type != RTN_UNICAST)
        return 0;
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct rtmsg));
    note_interface(routes, (int)bt_attribute_u32(bt_attribute_find(walk, RTA_OIF), 0));
    const struct nlattr *hops = bt_attribute_find(walk, RTA_MULTIPATH);
    if (hops)
        note_hops(routes, hops);
    return 0;
}

static int find_default_routes(struct bt_kernel *kernel, struct default_routes *routes)
{
    struct rtmsg route = {.rtm_family = AF_INET};
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    (void)bt_message(&batch, RTM_GETROUTE, NLM_F_DUMP, &route, sizeof(route));
    return bt_netlink_query(kernel, kernel->route_fd, &batch, note_route, routes);
}

/* IFLA_AF_SPEC / AF_INET / IFLA_INET_CONF is an array of the settings, the first at index 0. */
static int note_forwarding(const struct nlmsghdr *message, void *context)
{
    uint32_t value;
    size_t offset = (IPV4_DEVCONF_FORWARDING - 1) * sizeof(value);
    if (message->nlmsg_type != RTM_NEWLINK)
        return 0;
    const struct nlattr *at =
        bt_attribute_find(bt_attributes_of(message, sizeof(struct ifinfomsg)), IFLA_AF_SPEC);
    if (at)
        at = bt_attribute_find(bt_attributes_in(at), AF_INET);
    if (at)
        at = bt_attribute_find(bt_attributes_in(at), IFLA_INET_CONF);
    if (!at || mnl_attr_get_payload_len(at) < offset + sizeof(value))
        return 0;
    memcpy(&value, (const uint8_t *)mnl_attr_get_payload(at) + offset, sizeof(value));
    *(bool *)context = value != 0;
    return 0;
}

static int read_forwarding(struct bt_kernel *kernel, int ifindex, bool *ret_does_forward)
{
    bool does_forward = false;
    int error = bt_link_query(kernel, ifindex, note_forwarding, &does_forward);
    if (error == 0)
        *ret_does_forward = does_forward;
    return error;
}

int bt_uplink_set_forwarding(struct bt_kernel *kernel, int ifindex, bool does_forward)
{
    struct bt_batch batch;
    struct ifinfomsg link = {.ifi_index = ifindex};
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = bt_message(&batch, RTM_NEWLINK, NLM_F_ACK, &link, sizeof(link));
    struct nlattr *families = mnl_attr_nest_start(message, IFLA_AF_SPEC);
    struct nlattr *family = mnl_attr_nest_start(message, AF_INET);
    struct nlattr *conf = mnl_attr_nest_start(message, IFLA_INET_CONF);
    mnl_attr_put_u32(message, IPV4_DEVCONF_FORWARDING, does_forward ? 1 : 0);
    mnl_attr_nest_end(message, conf);
    mnl_attr_nest_end(message, family);
    mnl_attr_nest_end(message, families);
    return bt_batch_send_route(kernel, &batch);
}

static int write_borrowed(struct bt_kernel *kernel, int ifindex, bool is_added)
{
    struct bt_batch batch;
    struct bt_element element;
    bt_element_interface(BT_SET_BORROWED, ifindex, &element);
    bt_transaction_start(kernel, &batch);
    bt_element_write(&batch, is_added ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM, &element);
    return bt_transaction_commit(kernel, &batch);
}

static int *find_borrowed(struct bt_kernel *kernel, int ifindex)
{
    for (size_t i = 0; i < kernel->borrowed_count; i++) {
        if (kernel->borrowed[i] == ifindex)
            return &kernel->borrowed[i];
    }
    return NULL;
}

/* The drop for everybody else comes before the forwarding that would let them through. */
static int open_uplink(struct bt_kernel *kernel, int ifindex)
{
    bool does_forward;
    int error = read_forwarding(kernel, ifindex, &does_forward);
    if (error == -ENODEV || (error == 0 && does_forward))
        return 0;
    if (error == 0 && !find_borrowed(kernel, ifindex)) {
        error = kernel->borrowed_count < BT_UPLINKS_MAX ? write_borrowed(kernel, ifindex, true) : -ENOSPC;
        if (error == 0)
            kernel->borrowed[kernel->borrowed_count++] = ifindex;
    }
    if (error == 0)
        error = bt_uplink_set_forwarding(kernel, ifindex, true);
    return error == -ENODEV ? 0 : error;
}

int bt_uplink_forget(struct bt_kernel *kernel, int ifindex)
{
    int *borrowed = find_borrowed(kernel, ifindex);
    if (!borrowed)
        return 0;
    /* Forgotten in any case: a refusal is drift, which is repaired from what is remembered. */
    *borrowed = kernel->borrowed[--kernel->borrowed_count];
    return write_borrowed(kernel, ifindex, false);
}

static int note_host_forwarding(const struct nlmsghdr *message, void *context)
{
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct netconfmsg));
    if (message->nlmsg_type == RTM_NEWNETCONF)
        *(bool *)context = bt_attribute_u32(bt_attribute_find(walk, NETCONFA_FORWARDING), 0) != 0;
    return 0;
}

static int read_host_forwarding(struct bt_kernel *kernel, bool *ret_does_forward)
{
    struct netconfmsg family = {.ncm_family = AF_INET};
    struct bt_batch batch;
    bool does_forward = false;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = bt_message(&batch, RTM_GETNETCONF, 0, &family, sizeof(family));
    mnl_attr_put_u32(message, NETCONFA_IFINDEX, (uint32_t)NETCONFA_IFINDEX_ALL);
    int error = bt_netlink_query(kernel, kernel->route_fd, &batch, note_host_forwarding, &does_forward);
    if (error == 0)
        *ret_does_forward = does_forward;
    return error;
}

int bt_uplinks_refresh(struct bt_kernel *kernel)
{
    struct default_routes routes = {.count = 0};
    bool does_host_forward;
    int error = read_host_forwarding(kernel, &does_host_forward);
    /* The host forwards now by its admin's will (a container engine sets net.ipv4.ip_forward when it starts):
     * nothing is borrowed any more, and dropping would break others. */
    while (error == 0 && does_host_forward && kernel->borrowed_count > 0)
        error = bt_uplink_forget(kernel, kernel->borrowed[0]);
    if (error == 0)
        error = find_default_routes(kernel, &routes);
    for (size_t i = 0; error == 0 && i < routes.count; i++)
        error = open_uplink(kernel, routes.ifindexes[i]);
    return error;
}
