/* TAP devices by /dev/net/tun and rtnetlink: made, configured, checked, set down, deleted.
 *
 * Called by the verbs. All settings of an interface travel in one message and are there before it is up;
 * /proc/sys is not written. A device is never used for a second lease: who had its descriptor could change
 * its MAC, owner, persistence and carrier.
 */
#include "helper/kernel_linux.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libmnl/libmnl.h>
#include <linux/if_link.h>
#include <linux/if_tun.h>
#include <linux/ip.h>
#include <linux/neighbour.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- messages --------------------------------------------------------------------------------------- */

static struct nlmsghdr *link_message(struct bt_batch *batch, uint16_t type, int ifindex)
{
    struct nlmsghdr *message = bt_batch_message(batch, type, NLM_F_ACK, sizeof(struct ifinfomsg));
    if (message) {
        struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
        link->ifi_family = AF_UNSPEC;
        link->ifi_index = ifindex;
    }
    return message;
}

static void message_flags(struct nlmsghdr *message, bool is_up)
{
    struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    link->ifi_change = IFF_UP;
    link->ifi_flags = is_up ? IFF_UP : 0;
}

/* Per-interface settings, as /proc/sys/net/ipv4/conf/<interface> would have them. */
static void put_settings(struct nlmsghdr *message, bool has_ipv6)
{
    static const struct {
        uint16_t setting;
        uint32_t value;
    } settings[] = {
        {IPV4_DEVCONF_FORWARDING, 1},          {IPV4_DEVCONF_RP_FILTER, 1},
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

static void encode_settings(struct bt_batch *batch, int ifindex, const uint8_t mac[6], bool has_ipv6)
{
    struct nlmsghdr *message = link_message(batch, RTM_NEWLINK, ifindex);
    if (!message)
        return;
    mnl_attr_put(message, IFLA_ADDRESS, 6, mac);
    mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_LIVE);
    put_settings(message, has_ipv6);
    bt_batch_message_end(batch, message);
}

static void encode_address(struct bt_batch *batch, int ifindex, uint32_t host)
{
    struct nlmsghdr *message =
        bt_batch_message(batch, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sizeof(struct ifaddrmsg));
    if (!message)
        return;
    struct ifaddrmsg *address = mnl_nlmsg_get_payload(message);
    address->ifa_family = AF_INET;
    address->ifa_prefixlen = 31;
    address->ifa_scope = RT_SCOPE_LINK; /* never the source of a packet that leaves by another interface */
    address->ifa_index = (uint32_t)ifindex;
    mnl_attr_put_u32(message, IFA_LOCAL, htonl(host));
    mnl_attr_put_u32(message, IFA_ADDRESS, htonl(host));
    bt_batch_message_end(batch, message);
}

/* A device that goes down loses its neighbours, the permanent ones too. */
static void encode_neighbour(struct bt_batch *batch, int ifindex, uint32_t guest, const uint8_t mac[6])
{
    struct nlmsghdr *message =
        bt_batch_message(batch, RTM_NEWNEIGH, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, sizeof(struct ndmsg));
    if (!message)
        return;
    struct ndmsg *neighbour = mnl_nlmsg_get_payload(message);
    neighbour->ndm_family = AF_INET;
    neighbour->ndm_ifindex = ifindex;
    neighbour->ndm_state = NUD_PERMANENT;
    mnl_attr_put_u32(message, NDA_DST, htonl(guest));
    mnl_attr_put(message, NDA_LLADDR, 6, mac);
    bt_batch_message_end(batch, message);
}

static void encode_up(struct bt_batch *batch, int ifindex)
{
    struct nlmsghdr *message = link_message(batch, RTM_NEWLINK, ifindex);
    if (message)
        message_flags(message, true);
    bt_batch_message_end(batch, message);
}

static void encode_down(struct bt_batch *batch, int ifindex, bool is_dead)
{
    struct nlmsghdr *message = link_message(batch, RTM_NEWLINK, ifindex);
    if (message) {
        message_flags(message, false);
        if (is_dead)
            mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_DEAD);
    }
    bt_batch_message_end(batch, message);
}

/* ---- making ----------------------------------------------------------------------------------------- */

static int tap_open(const struct bt_kernel *kernel, const struct bt_lease *lease, int *ret_fd,
                    int *ret_ifindex)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    request.ifr_flags = (short)(request.ifr_flags | IFF_TUN_EXCL);
    int error = bt_pool_tap_name(&kernel->config.pool, lease->slot, request.ifr_name);
    if (error < 0)
        return error;
    bt_auto_fd fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    if (ioctl(fd, TUNSETIFF, &request) < 0)
        return -errno; /* -EBUSY: a device of that name is there */
    if (ioctl(kernel->route_fd, SIOCGIFINDEX, &request) < 0)
        return -errno;
    *ret_ifindex = request.ifr_ifindex;
    *ret_fd = bt_fd_take(&fd);
    return 0;
}

/* For a VMM that opens its device by name: persistent, and the owner's alone. */
static int tap_name(int fd, uint32_t uid)
{
    if (ioctl(fd, TUNSETOWNER, (unsigned long)uid) < 0 || ioctl(fd, TUNSETPERSIST, 1UL) < 0)
        return -errno;
    return 0;
}

static int configure(struct bt_kernel *kernel, uint16_t slot, int ifindex)
{
    struct bt_batch batch;
    uint32_t host, guest;
    uint8_t host_mac[6], guest_mac[6];
    int error = bt_pool_tap_addresses(&kernel->config.pool, slot, &host, &guest);
    if (error == 0)
        error = bt_pool_tap_macs(&kernel->config.pool, slot, host_mac, guest_mac);
    if (error < 0)
        return error;
    bt_batch_start(kernel, &batch);
    encode_settings(&batch, ifindex, host_mac, kernel->has_ipv6);
    encode_address(&batch, ifindex, host);
    encode_neighbour(&batch, ifindex, guest, guest_mac);
    return bt_batch_send_route(kernel, &batch);
}

int bt_link_create(struct bt_kernel *kernel, const struct bt_lease *lease, int *ret_tap_fd, int *ret_ifindex)
{
    bt_auto_fd fd = -1;
    int ifindex = 0;
    if (lease->kind != BT_KIND_TAP_FD && lease->kind != BT_KIND_TAP_NAMED)
        return -EOPNOTSUPP;
    int error = tap_open(kernel, lease, &fd, &ifindex);
    if (error < 0)
        return error;
    error = configure(kernel, lease->slot, ifindex);
    if (error == -EAFNOSUPPORT && kernel->has_ipv6) {
        kernel->has_ipv6 = false; /* a kernel without IPv6 knows no such settings */
        error = configure(kernel, lease->slot, ifindex);
    }
    if (error == 0 && lease->kind == BT_KIND_TAP_NAMED)
        error = tap_name(fd, lease->uid);
    if (error < 0)
        return error;
    *ret_tap_fd = bt_fd_take(&fd);
    *ret_ifindex = ifindex;
    return 0;
}

/* ---- up and down ------------------------------------------------------------------------------------ */

/* With its own name: the rules for whole devices go by name, so one that was renamed must not come up as it
 * is. The kernel renames first, and stops there when it cannot. */
static void encode_slot_up(struct bt_kernel *kernel, struct bt_batch *batch, uint16_t slot)
{
    uint32_t host, guest;
    uint8_t host_mac[6], guest_mac[6];
    char name[BT_INTERFACE_NAME_SIZE];
    if (bt_pool_tap_addresses(&kernel->config.pool, slot, &host, &guest) < 0 ||
        bt_pool_tap_macs(&kernel->config.pool, slot, host_mac, guest_mac) < 0 ||
        bt_pool_tap_name(&kernel->config.pool, slot, name) < 0)
        return; /* outside the pool, which no leased slot is: it stays down */
    encode_neighbour(batch, kernel->slots[slot].ifindex, guest, guest_mac);
    struct nlmsghdr *message = link_message(batch, RTM_NEWLINK, kernel->slots[slot].ifindex);
    if (message) {
        message_flags(message, true);
        mnl_attr_put_strz(message, IFLA_IFNAME, name);
    }
    bt_batch_message_end(batch, message);
}

int bt_link_set_up(struct bt_kernel *kernel, uint16_t slot)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    if (kernel->slots[slot].is_down)
        encode_slot_up(kernel, &batch, slot);
    else
        encode_up(&batch, kernel->slots[slot].ifindex);
    int error = bt_batch_send_route(kernel, &batch);
    if (error == 0)
        kernel->slots[slot].is_down = false;
    return error;
}

int bt_link_set_down(struct bt_kernel *kernel, uint16_t slot, bool is_dead)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    encode_down(&batch, kernel->slots[slot].ifindex, is_dead);
    int error = bt_batch_send_route(kernel, &batch);
    return error == -ENODEV ? 0 : error;
}

/* Appends what is wanted of one slot. */
typedef void (*slot_encode)(struct bt_kernel *kernel, struct bt_batch *batch, uint16_t slot);

/* One device may be gone already: the others must not suffer, so each has its own message, and -ENODEV is no
 * error. */
static int for_all_slots(struct bt_kernel *kernel, slot_encode encode)
{
    int first_error = 0;
    uint16_t slot = 0;
    while (slot < kernel->config.pool.slots) {
        struct bt_batch batch;
        bt_batch_start(kernel, &batch);
        for (unsigned in_batch = 0; slot < kernel->config.pool.slots && in_batch < 64; slot++) {
            const struct bt_slot *one = &kernel->slots[slot];
            if (one->state != BT_SLOT_LIVE && one->state != BT_SLOT_RESERVED)
                continue;
            encode(kernel, &batch, slot);
            in_batch++;
        }
        int error = bt_batch_send_route(kernel, &batch);
        if (error < 0 && error != -ENODEV && first_error == 0)
            first_error = error;
    }
    return first_error;
}

static void encode_slot_down(struct bt_kernel *kernel, struct bt_batch *batch, uint16_t slot)
{
    encode_down(batch, kernel->slots[slot].ifindex, false);
    kernel->slots[slot].is_down = true;
}

static void encode_slot_settings(struct bt_kernel *kernel, struct bt_batch *batch, uint16_t slot)
{
    struct nlmsghdr *message = link_message(batch, RTM_NEWLINK, kernel->slots[slot].ifindex);
    if (message)
        put_settings(message, kernel->has_ipv6);
    bt_batch_message_end(batch, message);
}

int bt_link_set_all(struct bt_kernel *kernel, bool is_up)
{
    int error = for_all_slots(kernel, is_up ? encode_slot_up : encode_slot_down);
    for (size_t slot = 0; is_up && error == 0 && slot < kernel->config.pool.slots; slot++)
        kernel->slots[slot].is_down = false;
    return error;
}

int bt_link_settle_all(struct bt_kernel *kernel)
{
    return for_all_slots(kernel, encode_slot_settings);
}

/* ---- checking --------------------------------------------------------------------------------------- */

struct link_check {
    const struct bt_lease *lease;
    const char *name;
    const uint8_t *mac;
    bool is_found, is_right;
    uint32_t host;
    unsigned right_addresses, wrong_addresses;
};

static bool is_payload(const struct nlattr *attribute, const void *wanted, size_t length)
{
    return attribute && mnl_attr_get_payload_len(attribute) >= length &&
           memcmp(mnl_attr_get_payload(attribute), wanted, length) == 0;
}

static bool is_tap_right(const struct nlattr *information, const struct bt_lease *lease)
{
    if (!information ||
        !is_payload(bt_attribute_find(bt_attributes_in(information), IFLA_INFO_KIND), "tun", 4))
        return false;
    const struct nlattr *data = bt_attribute_find(bt_attributes_in(information), IFLA_INFO_DATA);
    if (!data)
        return false;
    uint8_t type = IFF_TAP, persist = lease->kind == BT_KIND_TAP_NAMED ? 1 : 0;
    struct bt_attributes walk = bt_attributes_in(data);
    uint32_t owner = bt_attribute_u32(bt_attribute_find(walk, IFLA_TUN_OWNER), UINT32_MAX);
    uint32_t wanted_owner = lease->kind == BT_KIND_TAP_NAMED ? lease->uid : UINT32_MAX;
    return is_payload(bt_attribute_find(walk, IFLA_TUN_TYPE), &type, sizeof(type)) &&
           is_payload(bt_attribute_find(walk, IFLA_TUN_PERSIST), &persist, sizeof(persist)) &&
           owner == wanted_owner;
}

static int check_link(const struct nlmsghdr *message, void *context)
{
    struct link_check *check = context;
    if (message->nlmsg_type != RTM_NEWLINK)
        return 0;
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct ifinfomsg));
    check->is_found = true;
    check->is_right =
        is_payload(bt_attribute_find(walk, IFLA_IFNAME), check->name, strlen(check->name) + 1) &&
        is_payload(bt_attribute_find(walk, IFLA_ADDRESS), check->mac, 6) &&
        bt_attribute_u32(bt_attribute_find(walk, IFLA_GROUP), 0) == BT_GROUP_LIVE &&
        is_tap_right(bt_attribute_find(walk, IFLA_LINKINFO), check->lease);
    return 0;
}

static int check_address(const struct nlmsghdr *message, void *context)
{
    struct link_check *check = context;
    if (message->nlmsg_type != RTM_NEWADDR || mnl_nlmsg_get_payload_len(message) < sizeof(struct ifaddrmsg))
        return 0;
    const struct ifaddrmsg *address = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct ifaddrmsg));
    uint32_t wanted = htonl(check->host);
    bool is_right = address->ifa_family == AF_INET && address->ifa_prefixlen == 31 &&
                    is_payload(bt_attribute_find(walk, IFA_LOCAL), &wanted, sizeof(wanted));
    if (is_right)
        check->right_addresses++;
    else
        check->wrong_addresses++;
    return 0;
}

static int query_link(struct bt_kernel *kernel, int ifindex, bt_netlink_visit visit, void *context)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = bt_batch_message(&batch, RTM_GETLINK, 0, sizeof(struct ifinfomsg));
    struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    link->ifi_index = ifindex;
    kernel->sequence = batch.sequence;
    return bt_netlink_query(kernel, kernel->route_fd, message, visit, context);
}

static int query_addresses(struct bt_kernel *kernel, int ifindex, struct link_check *check)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = bt_batch_message(&batch, RTM_GETADDR, NLM_F_DUMP, sizeof(struct ifaddrmsg));
    struct ifaddrmsg *address = mnl_nlmsg_get_payload(message);
    address->ifa_family = AF_INET;
    address->ifa_index = (uint32_t)ifindex; /* a filter, by NETLINK_GET_STRICT_CHK */
    kernel->sequence = batch.sequence;
    return bt_netlink_query(kernel, kernel->route_fd, message, check_address, check);
}

int bt_link_check(struct bt_kernel *kernel, const struct bt_lease *lease, int ifindex)
{
    char name[BT_INTERFACE_NAME_SIZE];
    uint8_t host_mac[6], guest_mac[6];
    uint32_t guest;
    struct link_check check = {.lease = lease, .name = name, .mac = host_mac};
    int error = bt_pool_tap_addresses(&kernel->config.pool, lease->slot, &check.host, &guest);
    if (error == 0)
        error = bt_pool_tap_name(&kernel->config.pool, lease->slot, name);
    if (error == 0)
        error = bt_pool_tap_macs(&kernel->config.pool, lease->slot, host_mac, guest_mac);
    if (error == 0)
        error = query_link(kernel, ifindex, check_link, &check);
    if (error == 0)
        error = query_addresses(kernel, ifindex, &check);
    if (error < 0)
        return error;
    if (!check.is_found)
        return -ENODEV;
    return check.is_right && check.right_addresses == 1 && check.wrong_addresses == 0 ? 0 : -EPERM;
}

static int note_found(const struct nlmsghdr *message, void *context)
{
    if (message->nlmsg_type == RTM_NEWLINK)
        *(bool *)context = true;
    return 0;
}

bool bt_link_exists(struct bt_kernel *kernel, int ifindex)
{
    bool is_found = false;
    int error = query_link(kernel, ifindex, note_found, &is_found);
    return error == -ENODEV ? false : error < 0 || is_found;
}

/* ---- deleting --------------------------------------------------------------------------------------- */

int bt_link_delete_dead(struct bt_kernel *kernel)
{
    struct bt_batch batch;
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = link_message(&batch, RTM_DELLINK, 0);
    mnl_attr_put_u32(message, IFLA_GROUP, BT_GROUP_DEAD);
    bt_batch_message_end(&batch, message);
    int error = bt_batch_send_route(kernel, &batch);
    return error == -ENODEV ? 0 : error;
}

/* Devices of ours in the live group that no slot knows: left by a helper that died before it wrote the
 * elements. */
struct strangers {
    struct bt_kernel *kernel;
    int ifindexes[BT_POOL_SLOTS_MAX];
    size_t count;
};

static bool is_known(const struct bt_kernel *kernel, int ifindex)
{
    for (size_t slot = 0; slot < BT_POOL_SLOTS_MAX; slot++) {
        if (kernel->slots[slot].state != BT_SLOT_CLEAN && kernel->slots[slot].ifindex == ifindex)
            return true;
    }
    return false;
}

static int note_stranger(const struct nlmsghdr *message, void *context)
{
    struct strangers *strangers = context;
    if (message->nlmsg_type != RTM_NEWLINK || mnl_nlmsg_get_payload_len(message) < sizeof(struct ifinfomsg))
        return 0;
    const struct ifinfomsg *link = mnl_nlmsg_get_payload(message);
    struct bt_attributes walk = bt_attributes_of(message, sizeof(struct ifinfomsg));
    uint32_t group = bt_attribute_u32(bt_attribute_find(walk, IFLA_GROUP), 0);
    bool is_tap = is_payload(bt_attribute_find(walk, IFLA_IFNAME), BT_TAP_PREFIX, sizeof(BT_TAP_PREFIX) - 1);
    if (is_tap && group == BT_GROUP_LIVE && !is_known(strangers->kernel, link->ifi_index) &&
        strangers->count < BT_POOL_SLOTS_MAX)
        strangers->ifindexes[strangers->count++] = link->ifi_index;
    return 0;
}

int bt_link_disown_strangers(struct bt_kernel *kernel)
{
    struct bt_batch batch;
    static struct strangers strangers; /* too large for the stack; one kernel instance a process */
    strangers = (struct strangers){.kernel = kernel};
    bt_batch_start(kernel, &batch);
    struct nlmsghdr *message = bt_batch_message(&batch, RTM_GETLINK, NLM_F_DUMP, sizeof(struct ifinfomsg));
    kernel->sequence = batch.sequence;
    int error = bt_netlink_query(kernel, kernel->route_fd, message, note_stranger, &strangers);
    if (error < 0)
        return error;
    bt_batch_start(kernel, &batch);
    for (size_t i = 0; i < strangers.count; i++)
        encode_down(&batch, strangers.ifindexes[i], true);
    error = bt_batch_send_route(kernel, &batch);
    return error < 0 && error != -ENODEV ? error : (int)strangers.count;
}
