/* What happens to rules, links and routes behind our back.
 *
 * Two sockets that the engine polls. Our own transactions are filtered out in the kernel, by the port of the
 * socket that sent them, so a busy helper does not wake itself. After an overflow the table is read back.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libmnl/libmnl.h>
#include <linux/filter.h>
#include <linux/if.h>
#include <linux/netconf.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <string.h>
#include <sys/socket.h>

/* Events come in bursts; the rest stays for the next turn of the engine's loop. */
#define DATAGRAMS_PER_TURN 256

static int ignore_own(int fd, uint32_t own_port)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct nlmsghdr, nlmsg_pid)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, htonl(own_port), 0, 1), /* loads are big-endian */
        BPF_STMT(BPF_RET | BPF_K, 0),
        BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
    };
    struct sock_fprog program = {.len = BT_ARRAY_LENGTH(code), .filter = code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) < 0 ? -errno : 0;
}

static int join(int fd, int group)
{
    return setsockopt(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof(group)) < 0 ? -errno : 0;
}

int bt_events_open(struct bt_kernel *kernel)
{
    int error = bt_netlink_open(NETLINK_NETFILTER, 0, &kernel->netfilter_events_fd, NULL);
    if (error == 0)
        error = ignore_own(kernel->netfilter_events_fd, kernel->netfilter_port);
    if (error == 0)
        error = join(kernel->netfilter_events_fd, NFNLGRP_NFTABLES);
    if (error == 0)
        error =
            bt_netlink_open(NETLINK_ROUTE, RTMGRP_LINK | RTMGRP_IPV4_ROUTE, &kernel->route_events_fd, NULL);
    if (error == 0)
        error = join(kernel->route_events_fd, RTNLGRP_IPV4_NETCONF);
    return error;
}

void bt_kernel_event_fds(const struct bt_kernel *kernel, int ret_fds[BT_KERNEL_EVENT_FDS])
{
    ret_fds[0] = kernel->netfilter_events_fd;
    ret_fds[1] = kernel->route_events_fd;
}

struct findings {
    struct bt_kernel *kernel;
    bool is_drift;
    bool is_uplink_touched;
    bool is_forwarding_touched;
    bool has_strangers;
};

/* Every nftables event but the new generation names its table in attribute 1. */
static void look_at_rules(const struct nlmsghdr *message, struct findings *findings)
{
    if (NFNL_SUBSYS_ID(message->nlmsg_type) != NFNL_SUBSYS_NFTABLES ||
        NFNL_MSG_TYPE(message->nlmsg_type) == NFT_MSG_NEWGEN ||
        message->nlmsg_pid == findings->kernel->netfilter_port)
        return;
    const struct nlattr *table = bt_attribute_find(bt_attributes_of(message, sizeof(struct nfgenmsg)), 1);
    if (table && mnl_attr_get_payload_len(table) == sizeof(BT_TABLE_NAME) &&
        memcmp(mnl_attr_get_payload(table), BT_TABLE_NAME, sizeof(BT_TABLE_NAME)) == 0)
        findings->is_drift = true;
}

/* A bridge that nobody has a lease for must not be up: what stays within it may not ask the table. */
static void look_at_other_link(const struct nlmsghdr *message, struct findings *findings)
{
    const struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    struct bt_kernel *kernel = findings->kernel;
    if ((link->ifi_flags & IFF_UP) != 0 && bt_link_is_stranger(kernel, message)) {
        int result = bt_link_disown(kernel, link->ifi_index);
        findings->has_strangers |= result > 0;
        findings->is_drift |= result < 0;
    }
    if (message->nlmsg_type == RTM_DELLINK && bt_uplink_forget(kernel, link->ifi_index) < 0)
        findings->is_drift = true;
    findings->is_uplink_touched = true;
}

/* A leased device under another name would not be caught by the rules for berth*. */
static void look_at_link(const struct nlmsghdr *message, struct findings *findings)
{
    const struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    struct bt_kernel *kernel = findings->kernel;
    for (size_t i = 0; i < kernel->config.pool.slots; i++) {
        const struct bt_slot *slot = &kernel->slots[i];
        if (slot->state == BT_SLOT_CLEAN || slot->ifindex != link->ifi_index)
            continue;
        struct bt_place place = bt_place_of(kernel, &slot->lease);
        const struct nlattr *found =
            bt_attribute_find(bt_attributes_of(message, sizeof(struct ifinfomsg)), IFLA_IFNAME);
        bool is_live = slot->state == BT_SLOT_LIVE || slot->state == BT_SLOT_RESERVED;
        if (is_live && found &&
            strncmp(mnl_attr_get_payload(found), place.interface_name, mnl_attr_get_payload_len(found)) != 0)
            findings->is_drift = true;
        /* A container engine that starts sets its bridges up, sealed and reserved ones too. */
        if (message->nlmsg_type == RTM_NEWLINK && slot->is_down && (link->ifi_flags & IFF_UP) != 0 &&
            bt_link_set(kernel, (uint16_t)i, is_live ? BT_LINK_DOWN : BT_LINK_DEAD) < 0)
            findings->is_drift = true;
        return;
    }
    look_at_other_link(message, findings);
}

/* Somebody wrote to net.ipv4.conf: our own settings are made by rtnetlink and tell nobody. Writing "all"
 * writes to every interface, ours too. */
static void look_at_settings(const struct nlmsghdr *message, struct findings *findings)
{
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct netconfmsg));
    const struct nlattr *forwarding = bt_attribute_find(walk, NETCONFA_FORWARDING);
    int ifindex = (int)bt_attribute_u32(bt_attribute_find(walk, NETCONFA_IFINDEX), 0);
    if (!forwarding)
        return;
    if (ifindex == NETCONFA_IFINDEX_ALL)
        findings->is_forwarding_touched = true;
    else if (ifindex > 0 && bt_attribute_u32(forwarding, 0) != 0 &&
             bt_uplink_forget(findings->kernel, ifindex) < 0)
        findings->is_drift = true;
}

static void look_at_route(const struct nlmsghdr *message, struct findings *findings)
{
    switch (message->nlmsg_type) {
    case RTM_NEWLINK:
    case RTM_DELLINK:
        if (mnl_nlmsg_get_payload_len(message) >= sizeof(struct ifinfomsg))
            look_at_link(message, findings);
        break;
    case RTM_NEWROUTE:
    case RTM_DELROUTE:
        if (mnl_nlmsg_get_payload_len(message) >= sizeof(struct rtmsg) &&
            ((const struct rtmsg *)mnl_nlmsg_get_payload(message))->rtm_dst_len == 0)
            findings->is_uplink_touched = true;
        break;
    case RTM_NEWNETCONF:
        if (mnl_nlmsg_get_payload_len(message) >= sizeof(struct netconfmsg))
            look_at_settings(message, findings);
        break;
    default:
        break;
    }
}

typedef void (*look)(const struct nlmsghdr *message, struct findings *findings);

/* 1: events were lost. */
static int read_events(struct findings *findings, int fd, look look_at)
{
    struct bt_kernel *kernel = findings->kernel;
    bool is_lossy = false;
    for (int i = 0; i < DATAGRAMS_PER_TURN; i++) {
        struct sockaddr_nl from = {0};
        socklen_t from_length = sizeof(from);
        ssize_t length = recvfrom(fd, kernel->event_buffer, sizeof(kernel->event_buffer),
                                  MSG_DONTWAIT | MSG_TRUNC, (struct sockaddr *)&from, &from_length);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0 && errno == ENOBUFS) {
            is_lossy = true;
            continue;
        }
        if (length < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? is_lossy : -errno;
        if (from.nl_pid != 0)
            continue; /* not the kernel */
        if ((size_t)length > sizeof(kernel->event_buffer)) {
            is_lossy = true;
            continue;
        }
        int left = (int)length;
        const struct nlmsghdr *message = (const struct nlmsghdr *)(const void *)kernel->event_buffer;
        for (; bt_message_is_whole(message, left); message = mnl_nlmsg_next(message, &left))
            look_at(message, findings);
    }
    return is_lossy;
}

/* Events that were lost may have been about some. */
static void end_strangers(struct findings *findings, bool is_lossy)
{
    int error = is_lossy ? bt_link_disown_strangers(findings->kernel) : 0;
    findings->has_strangers |= error > 0;
    if (error >= 0 && findings->has_strangers)
        error = bt_link_delete_dead(findings->kernel);
    if (error < 0)
        findings->is_drift = true;
}

int bt_kernel_handle_events(struct bt_kernel *kernel, bool *ret_is_drift)
{
    struct findings findings = {.kernel = kernel};
    int rules = read_events(&findings, kernel->netfilter_events_fd, look_at_rules);
    if (rules < 0)
        return rules;
    int links = read_events(&findings, kernel->route_events_fd, look_at_route);
    if (links < 0)
        return links;
    /* What could not be put right here is drift: the engine verifies, and repairs. */
    end_strangers(&findings, links > 0);
    if ((findings.is_forwarding_touched || links > 0) && bt_link_set_all(kernel, BT_LINK_SETTINGS, false) < 0)
        findings.is_drift = true;
    if ((findings.is_uplink_touched || findings.is_forwarding_touched || links > 0) &&
        bt_uplinks_refresh(kernel) < 0)
        findings.is_drift = true;
    /* Somebody's large ruleset may have filled the queue: only reading back tells whether ours was meant. */
    if (rules > 0 && bt_kernel_verify(kernel, bt_slots_live(kernel)) != 0)
        findings.is_drift = true;
    *ret_is_drift = findings.is_drift;
    return findings.has_strangers;
}
