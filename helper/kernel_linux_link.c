/* TAPs by /dev/net/tun, bridges by rtnetlink: made, configured, checked, set down, deleted.
 *
 * Called by the verbs. All settings of an interface travel in one message and are there before it is up;
 * /proc/sys is not written. A device is never used for a second lease: who had its descriptor could change
 * its MAC, owner, persistence and carrier; a container engine still has ports in its bridge.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/if_bridge.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/ip.h>
#include <linux/neighbour.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct bt_place bt_place_of(const struct bt_kernel *kernel, const struct bt_lease *lease)
{
    struct bt_place place;
    if (bt_pool_place(&kernel->config.pool, (enum bt_kind)lease->kind, (enum bt_role)lease->role, lease->slot,
                      &place) < 0)
        return (struct bt_place){.prefix_length = 32};
    return place;
}

/* ---- messages --------------------------------------------------------------------------------------- */

static struct nlmsghdr *link_message(struct bt_batch *batch, uint16_t type, int ifindex)
{
    struct ifinfomsg link = {.ifi_index = ifindex};
    return bt_message(batch, type, NLM_F_ACK, &link, sizeof(link));
}

static struct nlmsghdr *flags_message(struct bt_batch *batch, int ifindex, bool is_up)
{
    struct ifinfomsg link = {.ifi_index = ifindex, .ifi_change = IFF_UP, .ifi_flags = is_up ? IFF_UP : 0};
    return bt_message(batch, RTM_NEWLINK, NLM_F_ACK, &link, sizeof(link));
}

/* Per-interface settings, as /proc/sys/net/ipv4/conf/<interface> would have them. Nothing that comes by an
 * internal bridge is ever to be routed: so the kernel does not, also in a moment without our table. */
static void put_settings(struct nlmsghdr *message, const struct bt_lease *lease, bool has_ipv6)
{
    bool is_routed = lease->kind != BT_KIND_BRIDGE || lease->role == BT_ROLE_GATEWAY;
    const struct {
        uint16_t setting;
        uint32_t value;
    } settings[] = {
        {IPV4_DEVCONF_FORWARDING, is_routed},  {IPV4_DEVCONF_RP_FILTER, 1},
        {IPV4_DEVCONF_ARP_IGNORE, 2}, /* only the interface's own address, only for its own subnet */
        {IPV4_DEVCONF_PROXY_ARP, 0},           {IPV4_DEVCONF_PROXY_ARP_PVLAN, 0},
        {IPV4_DEVCONF_ACCEPT_REDIRECTS, 0},    {IPV4_DEVCONF_SEND_REDIRECTS, 0},
        {IPV4_DEVCONF_ACCEPT_SOURCE_ROUTE, 0}, {IPV4_DEVCONF_ACCEPT_LOCAL, 0},
        {IPV4_DEVCONF_ROUTE_LOCALNET, 0},      {IPV4_DEVCONF_ARP_ACCEPT, 0},
        {IPV4_DEVCONF_BC_FORWARDING, 0},
    };
    struct nlattr *families = mnl_attr_nest_start(message, IFLA_AF_SPEC);
    struct nlattr *family = mnl_attr_nest_start(message, AF_INET);
    struct nlattr *conf = mnl_attr_nest_start(message, IFLA_INET_CONF);
    for (size_t i = 0; i < BT_ARRAY_LENGTH(settings); i++)
        mnl_attr_put_u32(message, settings[i].setting, settings[i].value);
    mnl_attr_nest_end(message, conf);
    mnl_attr_nest_end(message, family);
    if (has_ipv6) {
        family = mnl_attr_nest_start(message, AF_INET6);
        mnl_attr_put_u8(message, IFLA_INET6_ADDR_GEN_MODE, IN6_ADDR_GEN_MODE_NONE);
        mnl_attr_nest_end(message, family);
    }
    mnl_attr_nest_end(message, families);
}

static void encode_address(struct bt_batch *batch, int ifindex, const struct bt_place *place)
{
    struct ifaddrmsg address = {
        .ifa_family = AF_INET,
        .ifa_prefixlen = place->prefix_length,
        .ifa_scope = RT_SCOPE_LINK, /* never the source of a packet that leaves by another interface */
        .ifa_index = (uint32_t)ifindex};
    struct nlmsghdr *message =
        bt_message(batch, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &address, sizeof(address));
    mnl_attr_put_u32(message, IFA_LOCAL, htonl(place->host_address));
    mnl_attr_put_u32(message, IFA_ADDRESS, htonl(place->host_address));
}

static void encode_neighbour(struct bt_batch *batch, int ifindex, uint32_t guest, const uint8_t mac[6])
{
    struct ndmsg neighbour = {.ndm_family = AF_INET, .ndm_ifindex = ifindex, .ndm_state = NUD_PERMANENT};
    struct nlmsghdr *message = bt_message(batch, RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE,
                                          &neighbour, sizeof(neighbour));
    mnl_attr_put_u32(message, NDA_DST, htonl(guest));
    mnl_attr_put(message, NDA_LLADDR, 6, mac);
}

static void encode_down(struct bt_batch *batch, int ifindex, bool is_dead)
{
    struct nlmsghdr *message = flags_message(batch, ifindex, false);
    if (is_dead)
        mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_DEAD);
}

/* ---- making ----------------------------------------------------------------------------------------- */

static int find_ifindex(struct bt_kernel *kernel, const char *name, int *ret_ifindex)
{
    struct ifreq request = {.ifr_flags = 0};
    memcpy(request.ifr_name, name, BT_INTERFACE_NAME_SIZE);
    if (ioctl(kernel->route_fd, SIOCGIFINDEX, &request) < 0)
        return -errno;
    *ret_ifindex = request.ifr_ifindex;
    return 0;
}

static int tap_open(const char *name, int *ret_fd)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    request.ifr_flags = (short)(request.ifr_flags | IFF_TUN_EXCL);
    memcpy(request.ifr_name, name, BT_INTERFACE_NAME_SIZE);
    bt_auto_fd fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, TUNSETIFF, &request) < 0)
        return -errno; /* -EBUSY: a device of that name is there */
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

/* Its packets ask the inet hooks, also on hosts where those of other bridges do not (net.bridge's sysctls 0).
 * It keeps no memory of multicast groups, which would be filled by whoever sends. */
static int bridge_make(struct bt_kernel *kernel, const char *name)
{
    struct bt_batch batch;
    struct ifinfomsg link = {.ifi_index = 0};
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message =
        bt_message(&batch, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, &link, sizeof(link));
    mnl_attr_put_strz(message, IFLA_IFNAME, name);
    /* Until it is configured it may be deleted at any time. */
    mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_DEAD);
    struct nlattr *information = mnl_attr_nest_start(message, IFLA_LINKINFO);
    mnl_attr_put_strz(message, IFLA_INFO_KIND, "bridge");
    struct nlattr *data = mnl_attr_nest_start(message, IFLA_INFO_DATA);
    mnl_attr_put_u8(message, IFLA_BR_NF_CALL_IPTABLES, 1);
    mnl_attr_put_u8(message, IFLA_BR_NF_CALL_IP6TABLES, 1);
    mnl_attr_put_u8(message, IFLA_BR_MCAST_SNOOPING, 0);
    mnl_attr_nest_end(message, data);
    mnl_attr_nest_end(message, information);
    return bt_batch_send_route(kernel, &batch);
}

static int device_make(struct bt_kernel *kernel, const struct bt_lease *lease, const char *name, int *ret_fd)
{
    return lease->kind == BT_KIND_BRIDGE ? bridge_make(kernel, name) : tap_open(name, ret_fd);
}

/* For a VMM that opens its device by name: persistent, and the owner's alone. */
static int tap_name(int fd, uint32_t uid)
{
    if (ioctl(fd, TUNSETOWNER, (unsigned long)uid) < 0 || ioctl(fd, TUNSETPERSIST, 1UL) < 0)
        return -errno;
    return 0;
}

static int configure(struct bt_kernel *kernel, const struct bt_lease *lease, const struct bt_place *place,
                     int ifindex)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = link_message(&batch, RTM_NEWLINK, ifindex);
    mnl_attr_put(message, IFLA_ADDRESS, sizeof(place->host_mac), place->host_mac);
    mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_LIVE);
    put_settings(message, lease, kernel->has_ipv6);
    encode_address(&batch, ifindex, place);
    return bt_batch_send_route(kernel, &batch);
}

static int device_configure(struct bt_kernel *kernel, const struct bt_lease *lease,
                            const struct bt_place *place, int fd, int ifindex)
{
    int error = configure(kernel, lease, place, ifindex);
    if (error == -EAFNOSUPPORT && kernel->has_ipv6) {
        kernel->has_ipv6 = false; /* a kernel without IPv6 knows no such settings */
        error = configure(kernel, lease, place, ifindex);
    }
    if (error == 0 && lease->kind == BT_KIND_TAP_NAMED)
        error = tap_name(fd, lease->uid);
    return error;
}

void bt_link_discard(struct bt_kernel *kernel, const struct bt_lease *lease, int ifindex)
{
    struct bt_batch batch;
    if (lease->kind == BT_KIND_TAP_FD)
        return;
    bt_batch_start(kernel, &batch);
    if (ifindex != 0)
        encode_down(&batch, ifindex, true);
    /* What is refused is tried again by the next collect, or at the next start. */
    (void)!bt_batch_send_route(kernel, &batch);
    (void)!bt_link_delete_dead(kernel);
}

int bt_link_create(struct bt_kernel *kernel, const struct bt_lease *lease, int *ret_tap_fd, int *ret_ifindex)
{
    bt_auto_fd fd = -1;
    int ifindex = 0;
    struct bt_place place;
    int error = bt_pool_place(&kernel->config.pool, (enum bt_kind)lease->kind, (enum bt_role)lease->role,
                              lease->slot, &place);
    if (error == 0)
        error = device_make(kernel, lease, place.interface_name, &fd);
    if (error == 0)
        error = find_ifindex(kernel, place.interface_name, &ifindex);
    if (error == 0)
        error = device_configure(kernel, lease, &place, fd, ifindex);
    if (error < 0) {
        bt_link_discard(kernel, lease, ifindex);
        return error;
    }
    *ret_tap_fd = bt_fd_take(&fd);
    *ret_ifindex = ifindex;
    return 0;
}

/* ---- up and down ------------------------------------------------------------------------------------ */

/* With its neighbours, which a device loses when it goes down, the permanent ones too; and with its own name:
 * the rules for whole devices go by name, so one that was renamed must not come up as it is. The kernel
 * renames first, and stops there when it cannot. A sealed bridge stays down. */
static void encode_slot_up(struct bt_kernel *kernel, struct bt_batch *batch, uint16_t slot)
{
    struct bt_slot *one = &kernel->slots[slot];
    struct bt_place place = bt_place_of(kernel, &one->lease);
    if (one->lease.kind == BT_KIND_BRIDGE && one->lease.is_sealed)
        return;
    encode_neighbour(batch, one->ifindex, place.guest_address, place.guest_mac);
    if (place.gateway_address != 0 && place.gateway_address != place.guest_address)
        encode_neighbour(batch, one->ifindex, place.gateway_address, place.gateway_mac);
    struct nlmsghdr *message = flags_message(batch, one->ifindex, true);
    mnl_attr_put_strz(message, IFLA_IFNAME, place.interface_name);
    one->is_down = false;
}

static void encode_change(struct bt_kernel *kernel, struct bt_batch *batch, uint16_t slot,
                          enum bt_link_change change)
{
    struct bt_slot *one = &kernel->slots[slot];
    switch (change) {
    case BT_LINK_UP:
        encode_slot_up(kernel, batch, slot);
        break;
    case BT_LINK_SETTINGS:
        put_settings(link_message(batch, RTM_NEWLINK, one->ifindex), &one->lease, kernel->has_ipv6);
        break;
    case BT_LINK_DOWN:
    case BT_LINK_DEAD:
        encode_down(batch, one->ifindex, change == BT_LINK_DEAD);
        one->is_down = true;
        break;
    }
}

int bt_link_set(struct bt_kernel *kernel, uint16_t slot, enum bt_link_change change)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    encode_change(kernel, &batch, slot, change);
    int error = bt_batch_send_route(kernel, &batch);
    return error == -ENODEV && change != BT_LINK_UP ? 0 : error;
}

/* One device may be gone already: the others must not suffer, so each has its own message, and -ENODEV is no
 * error. */
int bt_link_set_all(struct bt_kernel *kernel, enum bt_link_change change, bool is_for_bridges)
{
    int first_error = 0;
    uint16_t slot = 0;
    while (slot < kernel->config.pool.slots) {
        struct bt_batch batch;
        bt_batch_start(kernel, &batch);
        for (unsigned in_batch = 0; slot < kernel->config.pool.slots && in_batch < 64; slot++) {
            const struct bt_slot *one = &kernel->slots[slot];
            if ((one->state != BT_SLOT_LIVE && one->state != BT_SLOT_RESERVED) ||
                (is_for_bridges && one->lease.kind != BT_KIND_BRIDGE))
                continue;
            encode_change(kernel, &batch, slot, change);
            in_batch++;
        }
        int error = bt_batch_send_route(kernel, &batch);
        if (error < 0 && error != -ENODEV && first_error == 0)
            first_error = error;
    }
    return first_error;
}

/* ---- checking --------------------------------------------------------------------------------------- */

struct link_check {
    const struct bt_lease *lease;
    struct bt_place place;
    bool is_found, is_right;
    unsigned right_addresses, wrong_addresses;
};

static bool is_payload(const struct nlattr *attribute, const void *wanted, size_t length)
{
    return attribute && mnl_attr_get_payload_len(attribute) >= length &&
           memcmp(mnl_attr_get_payload(attribute), wanted, length) == 0;
}

static bool is_tap_right(struct bt_attributes walk, const struct bt_lease *lease)
{
    uint8_t type = IFF_TAP, persist = lease->kind == BT_KIND_TAP_NAMED ? 1 : 0;
    uint32_t owner = bt_attribute_u32(bt_attribute_find(walk, IFLA_TUN_OWNER), UINT32_MAX);
    uint32_t wanted_owner = lease->kind == BT_KIND_TAP_NAMED ? lease->uid : UINT32_MAX;
    return is_payload(bt_attribute_find(walk, IFLA_TUN_TYPE), &type, sizeof(type)) &&
           is_payload(bt_attribute_find(walk, IFLA_TUN_PERSIST), &persist, sizeof(persist)) &&
           owner == wanted_owner;
}

/* A kernel without that part of bridges does not tell of a setting. */
static bool is_on_if_told(struct bt_attributes walk, uint16_t setting)
{
    uint8_t on = 1;
    const struct nlattr *told = bt_attribute_find(walk, setting);
    return !told || is_payload(told, &on, sizeof(on));
}

static bool is_bridge_right(struct bt_attributes walk)
{
    return is_on_if_told(walk, IFLA_BR_NF_CALL_IPTABLES) && is_on_if_told(walk, IFLA_BR_NF_CALL_IP6TABLES);
}

static bool is_device_right(const struct nlattr *information, const struct bt_lease *lease)
{
    if (!information)
        return false;
    bool is_bridge = lease->kind == BT_KIND_BRIDGE;
    const char *wanted = is_bridge ? "bridge" : "tun";
    const struct nlattr *kind = bt_attribute_find(bt_attributes_in(information), IFLA_INFO_KIND);
    const struct nlattr *data = bt_attribute_find(bt_attributes_in(information), IFLA_INFO_DATA);
    if (!data || !is_payload(kind, wanted, strlen(wanted) + 1))
        return false;
    return is_bridge ? is_bridge_right(bt_attributes_in(data)) : is_tap_right(bt_attributes_in(data), lease);
}

static int check_link(const struct nlmsghdr *message, void *context)
{
    struct link_check *check = context;
    if (message->nlmsg_type != RTM_NEWLINK)
        return 0;
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct ifinfomsg));
    check->is_found = true;
    check->is_right = is_payload(bt_attribute_find(walk, IFLA_IFNAME), check->place.interface_name,
                                 strlen(check->place.interface_name) + 1) &&
                      is_payload(bt_attribute_find(walk, IFLA_ADDRESS), check->place.host_mac, 6) &&
                      bt_attribute_u32(bt_attribute_find(walk, IFLA_GROUP), 0) == BT_GROUP_LIVE &&
                      is_device_right(bt_attribute_find(walk, IFLA_LINKINFO), check->lease);
    return 0;
}

static int check_address(const struct nlmsghdr *message, void *context)
{
    struct link_check *check = context;
    if (message->nlmsg_type != RTM_NEWADDR || mnl_nlmsg_get_payload_len(message) < sizeof(struct ifaddrmsg))
        return 0;
    const struct ifaddrmsg *address = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct ifaddrmsg));
    uint32_t wanted = htonl(check->place.host_address);
    bool is_right = address->ifa_family == AF_INET && address->ifa_prefixlen == check->place.prefix_length &&
                    is_payload(bt_attribute_find(walk, IFA_LOCAL), &wanted, sizeof(wanted));
    if (is_right)
        check->right_addresses++;
    else
        check->wrong_addresses++;
    return 0;
}

int bt_link_query(struct bt_kernel *kernel, int ifindex, bt_netlink_visit visit, void *context)
{
    struct bt_batch batch;
    struct ifinfomsg link = {.ifi_index = ifindex};
    bt_batch_start(kernel, &batch);
    (void)bt_message(&batch, RTM_GETLINK, 0, &link, sizeof(link));
    return bt_netlink_query(kernel, kernel->route_fd, &batch, visit, context);
}

static int query_addresses(struct bt_kernel *kernel, int ifindex, struct link_check *check)
{
    struct bt_batch batch;
    /* The index filters, by NETLINK_GET_STRICT_CHK. */
    struct ifaddrmsg address = {.ifa_family = AF_INET, .ifa_index = (uint32_t)ifindex};
    bt_batch_start(kernel, &batch);
    (void)bt_message(&batch, RTM_GETADDR, NLM_F_DUMP, &address, sizeof(address));
    return bt_netlink_query(kernel, kernel->route_fd, &batch, check_address, check);
}

int bt_link_check(struct bt_kernel *kernel, const struct bt_lease *lease, int ifindex)
{
    struct link_check check = {.lease = lease, .place = bt_place_of(kernel, lease)};
    int error = bt_link_query(kernel, ifindex, check_link, &check);
    if (error == 0)
        error = query_addresses(kernel, ifindex, &check);
    if (error < 0)
        return error;
    if (!check.is_found)
        return -ENODEV;
    return check.is_right && check.right_addresses == 1 && check.wrong_addresses == 0 ? 0 : -EPERM;
}

/* ---- deleting --------------------------------------------------------------------------------------- */

#define DUMP_ATTEMPTS 16U

/* What a dump is looked through for, and what it found. Too large for the stack; one kernel instance a
 * process.
 */
struct search {
    const struct bt_kernel *kernel;
    int bridge; /* whose ports that are up; 0: strangers */
    int found[BT_POOL_SLOTS_MAX];
    size_t count;
};

static bool is_link(const struct nlmsghdr *message)
{
    return message->nlmsg_type == RTM_NEWLINK &&
           mnl_nlmsg_get_payload_len(message) >= sizeof(struct ifinfomsg);
}

static bool is_bridge(struct bt_attributes walk)
{
    const struct nlattr *information = bt_attribute_find(walk, IFLA_LINKINFO);
    return information && is_payload(bt_attribute_find(bt_attributes_in(information), IFLA_INFO_KIND),
                                     "bridge", sizeof("bridge"));
}

static bool is_port_up(const struct nlmsghdr *message, int bridge)
{
    if (!is_link(message))
        return false;
    const struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(*link));
    return (link->ifi_flags & IFF_UP) != 0 &&
           bt_attribute_u32(bt_attribute_find(walk, IFLA_MASTER), 0) == (uint32_t)bridge;
}

static int note_found_link(const struct nlmsghdr *message, void *context)
{
    struct search *search = context;
    bool is_wanted = search->bridge != 0 ? is_port_up(message, search->bridge)
                                         : bt_link_is_stranger(search->kernel, message);
    if (is_wanted && search->count < BT_ARRAY_LENGTH(search->found))
        search->found[search->count++] =
            ((const struct ifinfomsg *)mnl_nlmsg_get_payload(message))->ifi_index;
    return 0;
}

/* Links that change meanwhile, anybody's, interrupt the kernel's telling: it is asked again. */
static int find_links(struct bt_kernel *kernel, int bridge, struct search *search)
{
    struct bt_batch batch;
    struct ifinfomsg link = {.ifi_index = 0};
    int error = -EINTR;
    for (unsigned attempt = 0; attempt < DUMP_ATTEMPTS && error == -EINTR; attempt++) {
        search->kernel = kernel;
        search->bridge = bridge;
        search->count = 0;
        bt_batch_start(kernel, &batch);
        struct nlmsghdr *message = bt_message(&batch, RTM_GETLINK, NLM_F_DUMP, &link, sizeof(link));
        if (bridge != 0) /* the kernel tells less then; what it tells is looked at all the same */
            mnl_attr_put_u32(message, IFLA_MASTER, (uint32_t)bridge);
        error = bt_netlink_query(kernel, kernel->route_fd, &batch, note_found_link, search);
    }
    return error;
}

/* A bridge that is deleted lets go of its ports, and they stay up: a container that still runs, because its
 * engine does not hear, would then have a line to the host by an interface that no rule of ours is about. */
static int set_ports_down(struct bt_kernel *kernel, int bridge)
{
    static struct search ports;
    int error;
    do {
        struct bt_batch batch;
        error = find_links(kernel, bridge, &ports);
        bt_batch_start(kernel, &batch);
        for (size_t i = 0; i < ports.count; i++)
            (void)flags_message(&batch, ports.found[i], false);
        if (error == 0)
            error = bt_batch_send_route(kernel, &batch);
        error = error == -ENODEV ? 0 : error;
    } while (error == 0 && ports.count == BT_ARRAY_LENGTH(ports.found));
    return error;
}

int bt_link_delete_dead(struct bt_kernel *kernel)
{
    struct bt_batch batch;
    for (uint16_t slot = 0; slot < kernel->config.pool.slots; slot++) {
        const struct bt_slot *one = &kernel->slots[slot];
        bool is_dead = one->state == BT_SLOT_DEAD || one->state == BT_SLOT_STUCK;
        int error = is_dead && one->lease.kind == BT_KIND_BRIDGE ? set_ports_down(kernel, one->ifindex) : 0;
        if (error < 0)
            return error;
    }
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = link_message(&batch, RTM_DELLINK, 0);
    mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_DEAD);
    int error = bt_batch_send_route(kernel, &batch);
    return error == -ENODEV ? 0 : error;
}

/* Devices of ours that no slot knows. Of our groups: left by a helper that died before it wrote the elements,
 * or before it deleted what was dead. Bridges by their name: a container engine that starts makes those of
 * its networks anew, also where the lease ended while it was not there to be told, and never deletes them
 * since it did not make the first. */
static bool is_known(const struct bt_kernel *kernel, int ifindex)
{
    for (size_t slot = 0; slot < BT_POOL_SLOTS_MAX; slot++) {
        if (kernel->slots[slot].state != BT_SLOT_CLEAN && kernel->slots[slot].ifindex == ifindex)
            return true;
    }
    return false;
}

/* berthd<number>, also beyond the pool, which may have been larger. */
static bool has_bridge_name(struct bt_attributes walk)
{
    const size_t prefix_length = sizeof(BT_BRIDGE_PREFIX) - 1;
    const struct nlattr *found = bt_attribute_find(walk, IFLA_IFNAME);
    if (!is_payload(found, BT_BRIDGE_PREFIX, prefix_length))
        return false;
    const char *number = (const char *)mnl_attr_get_payload(found) + prefix_length;
    size_t length = strnlen(number, mnl_attr_get_payload_len(found) - prefix_length);
    for (size_t i = 0; i < length; i++) {
        if (number[i] < '0' || number[i] > '9')
            return false;
    }
    return length > 0;
}

bool bt_link_is_stranger(const struct bt_kernel *kernel, const struct nlmsghdr *message)
{
    if (!is_link(message))
        return false;
    const struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct ifinfomsg));
    uint32_t group = bt_attribute_u32(bt_attribute_find(walk, IFLA_GROUP), 0);
    bool is_made_by_us = group == BT_GROUP_DEAD ||
                         (group == BT_GROUP_LIVE && is_payload(bt_attribute_find(walk, IFLA_IFNAME),
                                                               BT_TAP_PREFIX, sizeof(BT_TAP_PREFIX) - 1));
    return (is_made_by_us || (has_bridge_name(walk) && is_bridge(walk))) &&
           !is_known(kernel, link->ifi_index);
}

int bt_link_disown(struct bt_kernel *kernel, int ifindex)
{
    struct bt_batch batch;
    int error = set_ports_down(kernel, ifindex);
    if (error < 0)
        return error;
    bt_batch_start(kernel, &batch);
    encode_down(&batch, ifindex, true);
    error = bt_batch_send_route(kernel, &batch);
    if (error == -ENODEV)
        return 0;
    return error < 0 ? error : 1;
}

int bt_link_disown_strangers(struct bt_kernel *kernel)
{
    static struct search strangers;
    int count = 0;
    int error = find_links(kernel, 0, &strangers);
    for (size_t i = 0; i < strangers.count && error >= 0; i++) {
        error = bt_link_disown(kernel, strangers.found[i]);
        count += error > 0;
    }
    return error < 0 ? error : count;
}
